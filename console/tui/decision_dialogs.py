"""Dialogs that confirm an action: the plan, the reason, the signature, and a person's yes.

The plan is drawn from the typed proposal only. Enter and Esc never approve. A yes counts after the dialog has been
painted for a moment and the end of the plan has been on the screen. A reason comes first where the policy asks for
one, then a key or the first characters of the digest. A passphrase has a dialog of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, cast

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input

from console.client.change_feed import in_thread
from console.text.terminal_text import printable, wrap
from console.tui import dialog_frames
from console.tui.dialog_frames import Dialog
from console.tui.widgets.drawing import OneLine, Part, part
from console.tui.widgets.pane import SectionsView
from console.tui.widgets.prompt_bar import PromptInput
from console.views.decision_needs import by_author_alone, one_key, others_needed
from console.views.proposal import context_sections, hanging, plan_sections, word_sections
from console.views.sections import Line, Section, text_line
from engine.model.errors import MusterError
from runbooks.plans.typed_plan import DIGEST_TYPED, Proposal

if TYPE_CHECKING:
    from console.tui.app import MusterApp


NO = (part(" n ", "key"), part("no, cancel ", "strong"), part("  "))
READ_ON = part("scroll to the end: pgdn, G", "warn")


class AskingDialog(Dialog):
    """A dialog whose yes counts only after it could be read."""

    DECIDES = True
    """Others see that something is being decided here."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._painted_at = math.inf

    def on_mount(self) -> None:
        self.read_anew()

    def read_anew(self) -> None:
        """Note that the question differs now: keys count again a moment after it was painted."""
        self._painted_at = math.inf
        self.call_after_refresh(self._painted)

    def _painted(self) -> None:
        self._painted_at = self._clock()

    @property
    def too_early(self) -> bool:
        """Keys typed before it could be read do not count as an answer."""
        return self._clock() - self._painted_at < dialog_frames.GUARD_S or self._painted_at == math.inf


class DigestTyping:
    """The beginning of a digest, typed by a person who means just this plan."""

    def __init__(self, digest: str) -> None:
        self._digest = digest
        self._typed = ""

    @property
    def done(self) -> bool:
        return len(self._typed) == DIGEST_TYPED

    def take(self, event: events.Key) -> bool:
        """Add a key. True where it is part of the expected digits; a wrong key starts again."""
        if event.key == "backspace":
            self._typed = self._typed[:-1]
        elif event.character and event.character in "0123456789abcdef":
            self._typed += event.character
        else:
            return False
        event.stop()
        if not self._digest.startswith(self._typed):
            self._typed = ""
        return True

    def question(self, deed: str) -> list[Part]:
        typed = self._typed + "_" * (DIGEST_TYPED - len(self._typed))
        wanted = printable(self._digest)[:DIGEST_TYPED]
        return [
            part("type ", "off"),
            part(wanted, "key"),
            part(": ", "off"),
            part(typed, "strong"),
            part(f" to {deed}", "off"),
        ]


class PlanView(SectionsView):
    """Says when it has room for other lines than before."""

    class LaidOut(Message):
        """The dialog was laid out; its height may differ."""

    def on_resize(self) -> None:
        self.post_message(self.LaidOut())


class ConfirmDialog(AskingDialog):
    """Shows a proposal and asks. True only after `y` (T0, T1) or the first characters of the digest (T2, T3). Where the
    policy wants others than who asks, `y` puts it to the vote and does nothing else."""

    DEFAULT_CSS = """
    ConfirmDialog > Vertical { border: round $warning; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,n,N,enter", "leave", show=False, priority=True)]

    def __init__(
        self,
        proposal: Proposal,
        shell: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        asks_only: bool = False,
        above: Callable[[int], Sequence[Line]] | None = None,
        found: Callable[[int], Sequence[Line]] | None = None,
    ) -> None:
        """`asks_only`: a yes puts it to the vote, whoever may approve it. `above`: lines before the plan; `found`: what
        led to it, beside the evidence that is attached."""
        super().__init__(clock)
        self._above = above
        self._found = found
        self._asks_only = asks_only
        self._proposal = proposal
        self._shell = shell
        self._digest = DigestTyping(proposal.digest)
        self._title = OneLine("key")
        self._body = PlanView()
        self._question = OneLine("top")
        self._plan_lines = 0
        self.seen = False
        """The last line of the plan was on the screen."""
        self.plan_width = 0
        """Of the plan as it was shown."""

    @property
    def _plain(self) -> bool:
        return not self.alone or one_key(self._proposal, cast("MusterApp", self.app).environment)

    @property
    def alone(self) -> bool:
        """True where the person may approve their own request."""
        return by_author_alone(self._proposal) and not self._asks_only

    @property
    def _deed(self) -> str:
        steps = self._proposal.plan.steps  # none where the stored plan cannot be read
        return steps[0].act.action.replace("_", " ") if steps else "approve"

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._title
            yield self._body
            yield self._question

    def on_mount(self) -> None:
        shown = self._proposal
        self._title.show([part(f" {printable(shown.title)}")], [part(f"{shown.id} {shown.tier} ")])
        self.watch(self._body, "scroll_y", self._look_for_end, init=False)
        self._ask()
        self._body.focus()

    def on_resize(self) -> None:
        self.leave_room(self._body, 2)
        self.call_after_refresh(self._show_plan)

    def _show_plan(self) -> None:
        width = self._body.text_width
        above = [Section("The run", tuple(self._above(width)))] if self._above is not None else []
        plan = [*above, *plan_sections(self._proposal, width), *context_sections(self._proposal, width)]
        if width != self.plan_width:
            self.plan_width, self.seen = width, False
        self._plan_lines = sum(1 + len(section.lines) for section in plan) + len(plan) - 1
        self._body.show([*plan, *self._behind(width)], width)
        self.call_after_refresh(self._look_for_end)

    def _behind(self, width: int) -> list[Section]:
        """Sections behind the plan: its origin, missing votes, and words of people."""
        found = [Section("Found", tuple(self._found(width)), "by the recommender")] if self._found is not None else []
        if not by_author_alone(self._proposal):
            needs = hanging("vote  ", others_needed(self._proposal), width, "dim", "warn")
            found.append(Section("Who else must vote", tuple(needs)))
        found += word_sections(self._proposal, width) if self._found is None else []
        if self._shell:
            same = tuple(text_line(line, "dim") for line in wrap(self._shell, width)[:6])
            found.append(Section("The same from the shell", same))
        return found

    @on(PlanView.LaidOut)
    def _laid_out(self) -> None:
        self._look_for_end()

    def _look_for_end(self) -> None:
        """The last line of the plan, laid out as it is now, is or was on the screen."""
        height = self._body.size.height
        if not self.seen and height and self._body.scroll_offset.y + height >= self._plan_lines > 0:
            self.seen = True
            self.read_anew()
        self._ask()

    def on_key(self, event: events.Key) -> None:
        """The only way to yes."""
        if self.too_early or not self.seen:
            return
        if self._plain:
            if event.key in ("y", "Y"):
                event.stop()
                self.dismiss(True)
            return
        if self._digest.take(event):
            if self._digest.done:
                self.dismiss(True)
            self._ask()

    def _ask(self) -> None:
        if not self.seen:
            self._question.show([*NO, READ_ON])
        elif self._plain:
            yes = f"yes, {self._deed}" if self.alone else "ask for votes, nothing else"
            self._question.show([*NO, part(" y ", "key"), part(yes, "off")])
        else:
            self._question.show([*NO, *self._digest.question(self._deed)])


LOOK_S = 1.0
"""Interval of checks for decisions by others."""
Ending = Literal["reason", "key", "digest"]
"""The key that confirms: Enter after a reason (for steps that only stop something), `y`, or the digest's beginning."""


class DialogUpdate(NamedTuple):
    """News of the dialog's subject since it was shown."""

    note: str = ""
    """Worth knowing; an answer still counts."""
    over: str = ""
    """The reason why no answer counts any more; empty while one does."""


class DecideDialog(AskingDialog):
    """Asks for what a decision needs. True only after its `ending`; `reason` then holds what was written.

    It watches what it asks about: once somebody else has decided that, or while the engine is away, no answer is taken,
    and what was written stays.
    """

    DEFAULT_CSS = """
    DecideDialog > Vertical { border: round $warning; }
    DecideDialog.-alarm > Vertical { border: heavy $error; }
    DecideDialog Horizontal { height: 1; margin-top: 1; }
    DecideDialog Input { border: none; height: 1; padding: 0; background: $panel; width: 1fr; }
    DecideDialog Input:focus { border: none; background: $panel; background-tint: $panel 0%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False, priority=True)]

    def __init__(
        self,
        sections: Callable[[int], Sequence[Section]],
        deed: str,
        ending: Ending,
        *,
        digest: str = "",
        least_reason: int | None = None,
        written: str = "",
        alarm: bool = False,
        look: Callable[[], DialogUpdate] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sections` of a width is what is shown; `least_reason` the characters a reason must have, 0: as one likes,
        None: there is none; `written`: what was written before; `look`, called on a thread, tells what has become of
        what is asked about."""
        super().__init__(clock)
        self.reason = written
        self._sections = sections
        self._deed = deed
        self._ending = ending
        self._digest = DigestTyping(digest)
        self._least = least_reason
        self._writing = bool(least_reason) or (ending == "reason" and least_reason is not None)
        self._look = look
        self._news = DialogUpdate()
        self._away = ""
        self._body = PlanView()
        self._reached = False
        """The end of what is shown was on the screen."""
        self._sign = OneLine("key")
        self._input = PromptInput(written, select_on_focus=False, max_length=500)
        self._told = OneLine("top")
        self._question = OneLine("top")
        self.set_class(alarm, "-alarm")

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body
            yield self._told
            with Horizontal():
                yield self._sign
                yield self._input
            yield self._question

    def on_mount(self) -> None:
        self._sign.styles.width = 9
        self._sign.show([part(" reason ", "key")])
        self._input.cursor_blink = False
        self._told.display = False
        self.watch(self._body, "scroll_y", self._look_for_end, init=False)
        self._write(self._writing)
        if self._look is not None:
            self.set_interval(LOOK_S, self._look_again)

    def _write(self, writing: bool) -> None:
        self._writing = writing
        self._input.disabled = not writing
        self._input.parent.display = writing or bool(self.reason)  # type: ignore[union-attr]
        (self._input if writing else self._body).focus()
        self._ask()

    def on_resize(self) -> None:
        self.leave_room(self._body, 4)
        self.call_after_refresh(lambda: self._body.show(self._sections(self._body.text_width)))

    @on(PlanView.LaidOut)
    def _look_for_end(self) -> None:
        """Note that the end of the plan was on the screen, which a yes needs."""
        body = self._body
        laid_out = body.size.height and body.virtual_size.height
        self._reached = self._reached or bool(laid_out and body.scroll_offset.y >= body.max_scroll_y)
        self._ask()

    # --- what others do meanwhile

    def _look_again(self) -> None:
        self.run_worker(self._looked, exclusive=True, group="look")

    async def _looked(self) -> None:
        assert self._look is not None
        try:
            self._news, self._away = await in_thread(self._look), ""
        except MusterError as error:
            self._away = error.problem
        told = self._news.over or self._news.note
        if self._away:
            told = "no answer from the engine: nothing is sent, and your text is kept"
        elif not told:
            told = cast("MusterApp", self.app).beside.words_on_this()
        self._told.display = bool(told)
        self._told.show([part(f" {told}", "bad" if self._away or self._news.over else "warn")])
        self._ask()

    @property
    def _takes_answers(self) -> bool:
        return not (self.too_early or self._away or self._news.over)

    # --- answering

    @on(Input.Changed)
    def _edited(self, event: Input.Changed) -> None:
        event.stop()
        self._ask()

    @on(Input.Submitted)
    def _written(self, event: Input.Submitted) -> None:
        """The reason is there: that was all, or the answer comes next."""
        event.stop()
        if not self._takes_answers or not self._enough:
            return
        self.reason = " ".join(self._input.value.split())
        if self._ending == "reason":
            self.dismiss(True)
            return
        self.read_anew()
        self._write(False)

    @property
    def _enough(self) -> bool:
        return len("".join(self._input.value.split())) >= (self._least or 0)

    def on_key(self, event: events.Key) -> None:
        """The only way to yes once the reason is written."""
        if self._writing:
            return
        if event.key in ("n", "N", "enter"):
            event.stop()
            self.dismiss(False)
            return
        if not self._takes_answers:
            return
        if event.key == "r" and self._least is not None:
            event.stop()
            self._write(True)
        elif not self._reached:
            return
        elif self._ending == "key":
            if event.key in ("y", "Y"):
                event.stop()
                self.dismiss(True)
        elif self._digest.take(event):
            if self._digest.done:
                self.dismiss(True)
            self._ask()

    def _ask(self) -> None:
        if self._away or self._news.over:
            self._question.show([part(" esc ", "key"), part("cancel ", "strong")])
        elif self._writing:
            lacks = (self._least or 0) - len("".join(self._input.value.split()))
            if lacks > 0:
                more = f"give a reason, {lacks} more character{'s' if lacks != 1 else ''}"
                then = [part(more, "off")]
            else:
                then = [part(" ↵ ", "key"), part(self._deed if self._ending == "reason" else "continue", "off")]
            self._question.show([part(" esc ", "key"), part("cancel ", "strong"), part("  "), *then])
        elif not self._reached:
            self._question.show([*NO, READ_ON])
        else:
            yes = [part(" y ", "key"), part(f"yes, {self._deed}", "off")]
            asked = yes if self._ending == "key" else self._digest.question(self._deed)
            why = [part("   "), part(" r ", "key"), part("give a reason", "off")] if self._least is not None else []
            self._question.show([*NO, *asked, *why])


class PassphraseDialog(Dialog):
    """Asks for a passphrase, which is not shown. `value` holds it after a yes."""

    DEFAULT_CSS = """
    PassphraseDialog > Vertical { max-width: 70; }
    PassphraseDialog Input { border: none; height: 1; padding: 0; background: $panel; }
    PassphraseDialog Input:focus { border: none; background: $panel; background-tint: $panel 0%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False, priority=True)]

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self.value = ""
        self._prompt = prompt
        self._body = SectionsView()
        self._input = Input(password=True)

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body
            yield self._input

    def on_mount(self) -> None:
        self._input.cursor_blink = False
        self._input.focus()

    def on_resize(self) -> None:
        self.leave_room(self._body, 1)
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        lines = tuple(map(text_line, wrap(printable(self._prompt), self._body.text_width)))
        self._body.show([Section("Sign your vote", lines, "↵ signs, esc cancels")])

    @on(Input.Submitted)
    def _given(self, event: Input.Submitted) -> None:
        event.stop()
        self.value = event.value
        self.dismiss(True)


class InputsDialog(Dialog):
    """A form with one line per input. Enter goes to the next line, and after the last one the form is done."""

    DEFAULT_CSS = """
    InputsDialog Vertical { overflow-y: auto; }
    InputsDialog Horizontal { height: 1; }
    InputsDialog Input { border: none; height: 1; padding: 0; background: $panel; width: 1fr; }
    InputsDialog Input:focus { border: none; background: $cursor; background-tint: $panel 0%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False, priority=True),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
    ]

    def __init__(self, title: str, asked: Sequence[tuple[str, str]]) -> None:
        """`asked`: (name, what it is)."""
        super().__init__()
        self._title = title
        self._asked = asked
        self._body = SectionsView()
        self._body.can_focus = False
        self._signs = [OneLine("key") for _ in asked]
        self._inputs = [PromptInput(max_length=500) for _ in asked]
        self._hint = OneLine("top")

    @property
    def values(self) -> dict[str, str]:
        """The inputs that were filled in, by name."""
        given = zip(self._asked, self._inputs, strict=True)
        return {name: text for (name, _), line in given if (text := line.value.strip())}

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body
            for sign, line in zip(self._signs, self._inputs, strict=True):
                with Horizontal():
                    yield sign
                    yield line
            yield self._hint

    def on_mount(self) -> None:
        width = min(20, max(len(name) for name, _ in self._asked)) + 2
        for (name, _), sign, line in zip(self._asked, self._signs, self._inputs, strict=True):
            sign.styles.width = width
            sign.show([part(f" {name}"[:width], "key")])
            line.cursor_blink = False
        self._inputs[0].focus()
        self._hint.show(
            [part(" esc ", "key"), part("cancel ", "strong"), part(" ↵ ", "key"),
             part("next; after the last: try it on a fork", "off")]
        )  # fmt: skip

    def on_resize(self) -> None:
        self.leave_room(self._body, len(self._asked) + 1)
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        width = self._body.text_width
        lines = [
            line
            for name, what in self._asked
            for line in hanging(f"{printable(name)}  ", printable(what), width, "accent")
        ]
        self._body.show([Section(printable(self._title), tuple(lines), "empty: the runbook's default")])

    @on(Input.Submitted)
    def _written(self, event: Input.Submitted) -> None:
        event.stop()
        at = self._inputs.index(event.input)  # type: ignore[arg-type]
        if at + 1 < len(self._inputs):
            self._inputs[at + 1].focus()
        else:
            self.dismiss(True)
