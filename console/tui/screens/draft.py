"""Pages of drafts: one draft of the rules and of the model side by side, and the list of kept drafts.

The draft of the rules is there at once and can be proposed while the model still works. A draft changes nothing: a
proposal made from it is read and voted on on its own page.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec
from textual.timer import Timer

from console.actions.registry import ActionTarget
from console.client.change_feed import in_thread
from console.forms.filters import Value, matches, parse_filter
from console.text.terminal_text import cut, printable, wrap
from console.tui.widgets.pane import Connect, DetailPane
from console.views.draft import SINCE_MS, by_keys, draft_columns, list_line
from console.views.sections import Line, Section, text_line
from engine.model.errors import MusterError, RefusedError, SpecError
from engine.model.list_queries import Term
from engine.model.quantities import duration_ms
from runbooks.drafts.typed_draft import Draft, DraftAsk, Drafter, DraftRun, ModelStanding, Task

if TYPE_CHECKING:
    from console.client.protocol import Client

LOOK_S = 0.25
"""Interval of looks at a draft in the making."""
SIDE_BY_SIDE = 120
"""From this width on two drafts stand side by side."""
USAGE = ":draft [--llm] [--explain|--runbook] [--from ID] [--texts-of ID] [--pick CHOICE] QUESTION"


class DraftPage(NamedTuple):
    run: DraftRun
    standing: ModelStanding
    now_ms: int


class DraftPane(DetailPane[DraftPage]):
    NAME = "draft"
    TARGETS = "draft"
    TWO_FROM = SIDE_BY_SIDE

    def __init__(self, connect: Connect, draft_id: str) -> None:
        super().__init__(connect)
        self._draft_id = draft_id
        self._standing: ModelStanding | None = None
        self._timer: Timer | None = None
        self._stopped = ""
        """Id of the draft whose model was told to stop."""
        self._proposing = False

    @property
    def crumb(self) -> str:
        return cut(printable(self._draft_id), 32)

    @property
    def note(self) -> str:
        if self.detail is None:
            return ""
        if self.detail.run.model_state == "thinking":
            return "the model is working; no need to wait"
        return "nothing here changes the cell"

    @property
    def copyable(self) -> str:
        return self._draft_id

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        """A target for each possible step; its state tells which."""
        if self.detail is None:
            return ()
        run, standing = self.detail.run, self.detail.standing
        can = [drafter for drafter in ("rule", "model") if _proposable(self._by(drafter))]
        if run.model_state == "thinking":
            can.append("thinking")
        elif standing.configured:
            can.append("askable")
        return tuple(ActionTarget(run.id, state) for state in can) or (ActionTarget(run.id, ""),)

    def on_mount(self) -> None:
        super().on_mount()
        self._timer = self.set_interval(LOOK_S, self._look, pause=True)

    # --- what a person does with it

    def clear_one(self) -> bool:
        """The first Back stops the model; the next leaves, whether or not that could be done."""
        run = self.detail.run if self.detail is not None else None
        if run is None or run.model_state != "thinking" or self._stopped == run.id:
            return False
        self._stopped = run.id
        self.run_worker(self._stop(), group="stop")
        return True

    async def _stop(self) -> None:
        try:
            await self.stop()
        except MusterError as error:
            self.post_message(self.AskFailed(error))

    async def stop(self) -> None:
        """Have the model think no further. Raises MusterError."""
        run = self.detail.run if self.detail is not None else None
        if run is None or run.model_state != "thinking":
            raise RefusedError("the model is not running", "")
        await in_thread(lambda: self.connect().cancel_draft(run.id))
        self.reload()

    async def again(self) -> None:
        """Ask the same question again, for the cell as it is now. Raises MusterError."""
        await self._ask_anew(model=False)

    async def ask_model(self) -> None:
        """Ask the same question again, of the model too. Raises MusterError."""
        await self._ask_anew(model=True)

    async def _ask_anew(self, *, model: bool) -> None:
        if self.detail is None:
            return
        ask = msgspec.structs.replace(self.detail.run.ask, model=model)
        run = await in_thread(lambda: self.connect().draft(ask))
        self._draft_id = run.id
        self._standing = None
        self.reload()

    async def propose(self, drafter: Drafter) -> str:
        """Put one of the two to the vote. Gives the proposal's id: that of the one there is, where it was proposed
        already. Raises MusterError."""
        if self.detail is None or not _proposable(self._by(drafter)):
            raise RefusedError("nothing to propose", "This draft has no action")
        run = self.detail.run
        already = dict(run.proposed).get(drafter, "")
        if already:
            return already
        if self._proposing:
            raise RefusedError("it is being proposed", "Wait a moment")
        self._proposing = True
        try:
            made = await in_thread(lambda: self.connect().propose_draft(run.id, drafter))
        finally:
            self._proposing = False
        return made.id

    def _by(self, drafter: Drafter | str) -> Draft | None:
        run = self.detail.run if self.detail is not None else None
        return None if run is None else run.rule if drafter == "rule" else run.model

    # --- what is shown

    def ask(self, client: Client) -> DraftPage:
        run = client.draft_run(self._draft_id)
        if self._standing is None or self.detail is None or run.model_state != self.detail.run.model_state:
            self._standing = client.model()
        return DraftPage(run, self._standing, client.health().now_ms)

    def columns(self, detail: DraftPage, width: int) -> tuple[list[Section], list[Section]]:
        return draft_columns(*detail, width, two=bool(self._right.display), ways=by_keys())

    def _draw(self) -> None:
        super()._draw()
        if self._timer is not None and self.detail is not None:
            self._timer.pause() if self.detail.run.over else self._timer.resume()

    def _look(self) -> None:
        if self.display:
            self.reload()


def _proposable(draft: Draft | None) -> bool:
    return draft is not None and draft.request is not None


class DraftsPane(DetailPane[tuple[tuple[DraftRun, ...], int]]):
    """The kept drafts, newest first; Enter opens one."""

    NAME = "drafts"
    TWO_FROM = 10_000  # never: one list

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.filter_text = ""
        self._terms: tuple[Term, ...] = ()

    @property
    def note(self) -> str:
        if self.detail is None:
            return ""
        every = len(self.detail[0])
        if not self._terms:
            return f"{every:,} kept"
        return f"{len(self._found(self.detail)):,} of {every:,}  ·  /{printable(self.filter_text)}"

    @property
    def line(self) -> str:
        return f"{self.NAME} {self.filter_text}".rstrip()

    def filter(self, text: str) -> None:
        """Show others. Raises FilterError and stays as it is when the filter cannot be read."""
        self._terms, self.filter_text = parse_filter("drafts", text), " ".join(text.split())
        self._draw()

    def clear_one(self) -> bool:
        if not self.filter_text:
            return False
        self.filter("")
        return True

    def _found(self, detail: tuple[tuple[DraftRun, ...], int]) -> list[DraftRun]:
        runs, now_ms = detail
        return [run for run in runs if matches(self._terms, _values(run, now_ms))]

    @property
    def copyable(self) -> str:
        return self._left.link.partition(" ")[2]

    def ask(self, client: Client) -> tuple[tuple[DraftRun, ...], int]:
        return client.draft_runs(), client.health().now_ms

    def columns(self, detail: tuple[tuple[DraftRun, ...], int], width: int) -> tuple[list[Section], list[Section]]:
        now_ms = detail[1]
        lines = [
            Line(((list_line(run, now_ms, width), ""),), f"draft {printable(run.id)}") for run in self._found(detail)
        ]
        if not lines and self._terms:
            lines = [text_line(f"no drafts match {self.filter_text}", "dim")]
        elif not lines:
            none = "none yet: d on any page drafts what to do about what is selected, or :draft QUESTION"
            lines = [text_line(line, "dim") for line in wrap(none, width)]
        return [Section("Drafts", tuple(lines), "✓ by rule, and by the model")], []


def _values(run: DraftRun, now_ms: int) -> dict[str, Value]:
    age = max(0, now_ms - run.asked_ms)
    question = run.ask.question or run.ask.finding or run.about
    return {"id": run.id, "task": run.ask.task, "question": question, "by": run.who, "age": age}


def is_draft_id(text: str) -> bool:
    return re.fullmatch(r"D-[0-9]{1,11}", text) is not None


def is_pick(text: str) -> bool:
    """True for a choice of a kept draft, as in `--pick 2 D-3`."""
    return re.fullmatch(r"--pick [0-9]{1,2} D-[0-9]{1,11}", text) is not None


def report_of(task: str, line: str) -> Callable[[int], DraftAsk]:
    """Read the argument of `:handover` or `:incident`: how far back, and `--llm`. Returns the question as a function of
    cell time. Raises SpecError."""
    words = line.split()
    model = "--llm" in words
    since = [word for word in words if word != "--llm"]
    if len(since) > 1:
        raise SpecError("", "takes a period and --llm", f"Write :{task} 4h")
    try:
        back_ms = duration_ms(since[0]) if since else SINCE_MS[task]
    except ValueError as error:
        raise SpecError("", str(error), f"Write :{task} 4h") from None
    kind = cast("Task", task)
    return lambda now_ms: DraftAsk(task=kind, model=model, since_ms=max(1, now_ms - back_ms))


def ask_of(line: str) -> DraftAsk:
    """Read the argument of `:draft`: flags, then the question as typed; without one, the cell's own findings. Raises
    SpecError."""
    task: Task = "act"
    given: dict[str, str] = {}
    model = False
    rest = line.strip()
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        rest = rest.lstrip()
        if word == "--llm":
            model = True
        elif word in ("--explain", "--runbook"):
            task = "explain" if word == "--explain" else "runbook"
        elif word in ("--from", "--texts-of", "--pick"):
            value, _, rest = rest.partition(" ")
            rest = rest.lstrip()
            if not value:
                raise SpecError("", f"{word} needs a value", f"Write {USAGE}")
            given[word] = value
        else:
            raise SpecError("", f"there is no {printable(shlex.quote(word))[:40]} here", f"Write {USAGE}")
    texts_of = (given["--texts-of"],) if "--texts-of" in given else ()
    return DraftAsk(
        task=task, question=rest, finding=given.get("--from", ""), pick=given.get("--pick", ""), model=model,
        texts_of=texts_of,
    )  # fmt: skip
