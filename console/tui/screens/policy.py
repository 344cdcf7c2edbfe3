"""Pages of the approval policy, freezes, reviews and runbooks, and the actions of a person there.

Changes are confirmed, and signed where the policy asks for it. A runbook is shown with typed front matter and framed
prose. It is tried on a fork before its plan is proposed.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from textual import on

from console.actions.key_map import key_of
from console.actions.registry import ActionTarget
from console.client.change_feed import in_thread
from console.forms.filters import parse_filter
from console.text.terminal_text import cut, printable
from console.tui.widgets.list_pane import WordsPane
from console.tui.widgets.pane import AsOf, Connect, DetailPane, SectionsView
from console.tui.widgets.window_table import WindowTable
from console.views.lists import Window, rows_that_match
from console.views.policy import (
    CANDIDATE,
    FREEZE,
    HEADINGS,
    REVIEW,
    candidate_sections,
    columns,
    policy_columns,
    review_sections,
    row_of,
    run_lines,
)
from console.views.proposal import hanging, name_of, screen_digest
from console.views.sections import Section, text_line
from engine.model.errors import MusterError, RefusedError, SpecError
from engine.model.list_queries import Term
from runbooks.gate.approval_policy import Candidate, PolicyView, PolicyVote
from runbooks.plans.queries import RunbookAsk, RunbookLine, RunbookRun, RunbookView, RunbookVote
from runbooks.plans.typed_plan import Review

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.tui.app import MusterApp
    from console.tui.decision_dialogs import Ending
    from runbooks.gate.approval_policy import Verdict
    from runbooks.plans.identity import Signed


ASK_S = 5.0
"""Interval of questions for votes and freezes, which change no state of the cell."""


class KeptPolicy(NamedTuple):
    view: PolicyView
    now_ms: int
    """The engine's wall clock."""


class PolicyPane(DetailPane[KeptPolicy]):
    NAME = "policy"
    TARGETS = "policy"
    EVERY_S = ASK_S

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(ASK_S, self.reload_if_seen)

    @property
    def note(self) -> str:
        if self.detail is None:
            return ""
        waiting = len(self.detail.view.candidates)
        hold = sum(freeze.holds for freeze in self.detail.view.freezes)
        told = [f"{waiting} wait{'s' if waiting == 1 else ''} for votes"] if waiting else []
        told += [f"{hold} freeze{'s' if hold != 1 else ''} in effect"] if hold else []
        return "  ·  ".join(told)

    @property
    def as_of(self) -> AsOf | None:
        return AsOf(0, self.detail.now_ms) if self.detail is not None else None

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        link = self._left.link
        if link.startswith(CANDIDATE):
            return (ActionTarget(link.removeprefix(CANDIDATE), "awaiting"),)
        return (ActionTarget(link.removeprefix(FREEZE), "by hand"),) if link.startswith(FREEZE) else ()

    def candidate(self) -> Candidate:
        """The one under the cursor. Raises RefusedError."""
        chosen = next((target.id for target in self.targets if target.state == "awaiting"), "")
        found = [each for each in self.detail.view.candidates if each.id == chosen] if self.detail else []
        if not found:
            raise RefusedError("the cursor is not on a policy that waits for votes", "Select one with j and k")
        return found[0]

    def ask(self, client: Client) -> KeptPolicy:
        return KeptPolicy(client.policy(), client.whoami().now_ms)

    def columns(self, detail: KeptPolicy, width: int) -> tuple[list[Section], list[Section]]:
        return policy_columns(detail.view, detail.now_ms, width)

    @on(SectionsView.LinkChosen)
    def _chosen(self, event: SectionsView.LinkChosen) -> None:
        """What is under the cursor is acted on by its keys; it leads nowhere."""
        event.prevent_default()
        event.stop()


class KeptReviews(NamedTuple):
    reviews: tuple[Review, ...]
    now_ms: int
    """The engine's wall clock."""


class ReviewsPane(DetailPane[KeptReviews]):
    NAME = "reviews"
    TARGETS = "review"
    EVERY_S = ASK_S

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(ASK_S, self.reload_if_seen)

    @property
    def note(self) -> str:
        if self.detail is None:
            return ""
        waiting = sum(not each.closed_ms for each in self.detail.reviews)
        return f"{waiting:,} open" if waiting else "none is open"

    @property
    def as_of(self) -> AsOf | None:
        return AsOf(0, self.detail.now_ms) if self.detail is not None else None

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        chosen = self.chosen()
        return (ActionTarget(str(chosen.id), "closed" if chosen.closed_ms else "open"),) if chosen is not None else ()

    def chosen(self) -> Review | None:
        """The one under the cursor."""
        if self.detail is None:
            return None
        link = self._left.link or self._right.link
        return next((each for each in self.detail.reviews if f"{REVIEW}{each.id}" == link), None)

    def ask(self, client: Client) -> KeptReviews:
        return KeptReviews(client.reviews(), client.whoami().now_ms)

    def columns(self, detail: KeptReviews, width: int) -> tuple[list[Section], list[Section]]:
        return review_sections(detail.reviews, width), []

    @on(SectionsView.LinkChosen)
    def _chosen(self, event: SectionsView.LinkChosen) -> None:
        """Enter goes to what it is about."""
        event.prevent_default()
        event.stop()
        chosen = self.chosen()
        if chosen is not None and chosen.about.startswith("P-"):
            self.post_message(self.Follow(f"proposal {chosen.about}"))


MIN_FOUND = 10
"""Letters of what a review found: `runbooks.gate.decisions.MIN_COMMENT`."""
MIN_REASON = 3
WIDTH = 80
"""Cells at which the text of a candidate is laid out and hashed for a signature."""


async def _asked(
    app: MusterApp, sections: Callable[[int], list[Section]], deed: str, ending: Ending, *, digest: str = "",
    least: int | None = None,
) -> str | None:  # fmt: skip
    """The text that was written; None for no."""
    from console.tui.decision_dialogs import DecideDialog

    dialog = DecideDialog(sections, deed, ending, digest=digest, least_reason=least, clock=app.clock)
    return dialog.reason if await app.push_screen_wait(dialog) else None


# -- the policy -------------------------------------------------------------------------------------------------------


def approve_policy(app: MusterApp, argument: str) -> None:
    """Vote for the policy under the cursor; the last vote that is needed puts it in force."""
    app.steering.tell(lambda: _vote(app, "approve"))


def reject_policy(app: MusterApp, argument: str) -> None:
    """Vote no. One no ends a candidate."""
    app.steering.tell(lambda: _vote(app, "reject"))


async def _vote(app: MusterApp, verdict: Verdict) -> str:
    pane = cast("PolicyPane", app.navigator.current)
    candidate = pane.candidate()
    now_ms = pane.detail.now_ms if pane.detail is not None else 0

    def shown(width: int) -> list[Section]:
        return candidate_sections(candidate, now_ms, width)

    deed, ending = ("put it into force", "digest") if verdict == "approve" else ("reject", "key")
    if await _asked(app, shown, deed, cast("Ending", ending), digest=candidate.digest) is None:
        return f"{printable(candidate.id)}: no vote cast"
    signed = await _policy_signature(app, candidate, verdict, shown) if candidate.signed else None
    vote = PolicyVote(candidate=candidate.id, digest=candidate.digest, verdict=verdict, signed=signed)
    done = await in_thread(lambda: app.client().vote_policy(vote))
    needs = f", needs {done.needs} more: {printable(done.need)}" if done.needs else ""
    return f"{printable(done.id)} is {done.state.replace('_', ' ')}{needs}"


async def _policy_signature(
    app: MusterApp, candidate: Candidate, verdict: Verdict, shown: Callable[[int], list[Section]]
) -> Signed:
    def sign() -> Signed:
        return app.identity.sign(
            app.client().whoami(), kind="policy", proposal=candidate.id, revision=candidate.revision,
            digest=candidate.digest, verdict=verdict, screen=screen_digest(shown(WIDTH)),
        )  # fmt: skip

    return await in_thread(sign)


# -- freezes ----------------------------------------------------------------------------------------------------------


def freeze(app: MusterApp, argument: str) -> None:
    """As `muster policy freeze` takes it. By key: begin the line. Raises SpecError."""
    if not argument:
        app.bars.open_command("freeze NAME --for 2h --tier T1 --reason ''")
        return
    arguments = _freeze_line(argument)

    async def set_it() -> str:
        from console.commands.policy import freeze_spec

        def put() -> str:
            client = app.client()
            spec = freeze_spec(arguments, client.whoami().now_ms)
            client.freeze(spec)
            return spec.name

        return f"freeze {printable(await in_thread(put))} is set: :policy shows it, :thaw ends it"

    app.steering.tell(set_it)


def _freeze_line(line: str) -> argparse.Namespace:
    from console.actions.request_builder import LineParser
    from console.forms.gate_arguments import freeze_arguments

    parser = LineParser(prog=":freeze", add_help=False)
    freeze_arguments(parser)
    try:
        return parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise SpecError("", str(error)) from None


def thaw(app: MusterApp, argument: str) -> None:
    """End the freeze of that name, or the one under the cursor."""
    name = argument or next((target.id for target in app.context().targets), "")

    async def end_it() -> str:
        def shown(width: int) -> list[Section]:
            return [Section(f"End freeze {printable(name)}", tuple(hanging("", THAWED, width)))]

        if await _asked(app, shown, "end the freeze", "key") is None:
            return f"freeze {printable(name)} stays in effect"
        await in_thread(lambda: app.client().thaw(name))
        return f"freeze {printable(name)} has ended"

    app.steering.tell(end_it)


THAWED = "Plans that it stopped may then start or resume."

# -- reviews ----------------------------------------------------------------------------------------------------------


def close_review(app: MusterApp, argument: str) -> None:
    """Say what was found: `N WORDS`, or asked for by key. Raises SpecError."""
    number, _, words = argument.partition(" ")
    if argument and not (number.isascii() and number.isdecimal()):
        raise SpecError(
            "", f"'{printable(number)[:20]}' is not a review number", "Write :close-review 3 what was found"
        )
    chosen = None if argument else cast("ReviewsPane", app.navigator.current).chosen()
    review = int(number) if argument else chosen.id if chosen is not None else 0

    async def close() -> str:
        found: str | None = words
        if chosen is not None:
            about = f"{chosen.about}, {name_of(chosen.subject)}: {chosen.text}"

            def shown(width: int) -> list[Section]:
                return [Section(f"Close review {review}: what was found", tuple(hanging("", printable(about), width)))]

            found = await _asked(app, shown, "close the review", "reason", least=MIN_FOUND)
        if found is None:
            return f"review {review} is still open"
        await in_thread(lambda: app.client().close_review(review, found))
        return f"review {review} is closed"

    app.steering.tell(close)


# -- versions of runbooks ---------------------------------------------------------------------------------------------


def approve_runbook(app: MusterApp, argument: str) -> None:
    """Yes to exactly the bytes that were shown, once their end was on the screen."""
    app.steering.tell(lambda: _approve_runbook(app))


async def _approve_runbook(app: MusterApp) -> str:
    pane = cast("RunbookPane", app.navigator.current)
    pane.refuse_unread()
    view = pane.detail
    assert view is not None, "you have read it"
    line = view.line

    def shown(width: int) -> list[Section]:
        what = "It may then run in this cell, exactly as it is; a changed file may not."
        return [_runbook_section("Approve", line, what, width)]

    said = await _asked(app, shown, "approve", "digest", digest=line.sha256, least=0)
    if said is None:
        return f"{printable(line.id)}: no vote cast"

    def sign() -> Signed:
        return app.identity.sign(
            app.client().whoami(), kind="vote", proposal=f"runbook:{line.id}", revision=line.version,
            digest=line.sha256, verdict="approve", screen=pane.read_digest,
        )  # fmt: skip

    signed = await in_thread(sign) if line.signed else None
    vote = RunbookVote(id=line.id, sha256=line.sha256, comment=said, signed=signed)
    return _standing(await in_thread(lambda: app.client().approve_runbook(vote)))


def retire_runbook(app: MusterApp, argument: str) -> None:
    """End the use of the version that is shown, for good."""

    async def retire() -> str:
        pane = cast("RunbookPane", app.navigator.current)
        if pane.detail is None:
            raise RefusedError("the runbook is still loading", "Wait a moment")
        line = pane.detail.line

        def shown(width: int) -> list[Section]:
            what = "This version can never run or be approved again."
            return [_runbook_section("Retire", line, what, width)]

        said = await _asked(app, shown, "retire it for good", "key", least=MIN_REASON)
        if said is None:
            return f"{printable(line.id)}: cancelled, unchanged"
        vote = RunbookVote(id=line.id, sha256=line.sha256, comment=said)
        return _standing(await in_thread(lambda: app.client().retire_runbook(vote)))

    app.steering.tell(retire)


def _runbook_section(verb: str, line: RunbookLine, what: str, width: int) -> Section:
    lines = [*hanging("", what, width), *hanging("sha256  ", line.sha256, width)]
    signing = [text_line("your vote is signed with your key", "warn")] if line.signed else []
    title = cut(printable(f"{verb} {line.id}: {line.title}"), width - 14)
    return Section(title, (*lines, *signing), f"version {line.version}")


def _standing(line: RunbookLine) -> str:
    return f"{printable(line.id)} version {line.version} is {line.status}: {printable(line.note)}"


class RunbooksPane(WordsPane):
    NAME = "runbooks"
    TARGETS = "runbook"

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self._found: tuple[RunbookLine, ...] = ()

    def on_mount(self) -> None:
        self.filter("")

    def filter(self, text: str) -> None:
        """Show others. Raises FilterError and stays as it is when the filter cannot be read."""
        terms = parse_filter("runbooks", text)
        self._filter = " ".join(text.split())
        self.table.empty = f"no runbooks match {self._filter}" if self._filter else "there are no runbooks"
        self.table.show(HEADINGS, partial(self._rows, terms))

    @property
    def as_of(self) -> AsOf | None:
        """The shelf is of no moment of the cell."""
        return None

    @property
    def note(self) -> str:
        approved = sum(line.status == "approved" for line in self._found)
        return "  ·  ".join([*self.counts, f"{approved:,} approved"]) if self._found else ""

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        row = self.table.cursor_row
        return (ActionTarget(row.id, row.state),) if row is not None else ()

    def reload(self) -> None:
        """The shelf changes by people's hands, not by what happens in the cell: `r` looks again."""
        if not self._found:
            self.table.reload()

    def look_again(self) -> None:
        self._found = ()
        self.table.reload()

    def _rows(self, terms: tuple[Term, ...], offset: int, limit: int) -> Window:
        """Called on a thread."""
        self._found = self._found or self.connect().runbooks()
        rows = [row_of(line) for line in self._found]
        kept = rows_that_match(rows, HEADINGS, terms)
        return Window(offset, kept[offset : offset + limit], len(kept), len(rows), 0, 0)

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        self.post_message(self.Follow(f"runbook {event.row.id}"))


class RunbookPane(DetailPane[RunbookView]):
    NAME = "runbook"
    TARGETS = "runbook"

    def __init__(self, connect: Connect, runbook_id: str) -> None:
        super().__init__(connect)
        self._runbook_id = runbook_id
        self._tried: RunbookRun | str | None = None
        """A dry run without inputs, or why there is none."""
        self._tried_for = ""
        self._lengths = (0, 0)
        """Lines of the file, as laid out, in the left and the right column."""
        self._unread = [True, True]
        self._read_of = ("", 0)
        """SHA-256 and width of what `_unread` is about."""
        self.read_digest = ""
        """Of the text that was shown of it."""

    def on_mount(self) -> None:
        super().on_mount()
        self.watch(self._left, "scroll_y", self._look_for_ends, init=False)
        self.watch(self._right, "scroll_y", self._look_for_ends, init=False)

    @property
    def line(self) -> str:
        return f"runbook {self._runbook_id}"

    @property
    def note(self) -> str:
        if self.detail is None or self.detail.line.status not in ("draft", "changed"):
            return ""
        if any(self._unread):
            return "scroll to the end to approve it (pgdn, G; → other column)"
        return f"{key_of('approve_runbook')} approves this version, {key_of('run')} tries it"

    def refuse_unread(self) -> None:
        """Raises RefusedError while the end of the file was not on the screen."""
        if self.detail is None or any(self._unread):
            raise RefusedError("you have not seen the end yet", "Scroll to the end (pgdn, G), then approve it")

    @property
    def crumb(self) -> str:
        return cut(printable(self._runbook_id), 40)

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        return (ActionTarget(self._runbook_id, self.detail.line.status),) if self.detail else ()

    def ask(self, client: Client) -> RunbookView:
        return client.runbook(self._runbook_id)

    def reload(self) -> None:
        """Ask once; the content does not change with the cell. `r` asks again."""
        if self.detail is None:
            super().reload()

    def look_again(self) -> None:
        self._tried_for = ""
        super().reload()

    def columns(self, detail: RunbookView, width: int) -> tuple[list[Section], list[Section]]:
        left, right = columns(detail, self._tried, width)
        if self._read_of != (detail.line.sha256, width):
            self._read_of, self._unread = (detail.line.sha256, width), [True, True]
        self.read_digest = screen_digest([*left, *right])
        sides = (left, right) if self._right.display else ([*left, *right], [])
        self._lengths = (_height(sides[0]), _height(sides[1]))
        return left, right

    def _look_for_ends(self) -> None:
        """Note that the last line of each column was on the screen."""
        before = list(self._unread)
        for at, view in enumerate((self._left, self._right)):
            seen = view.size.height and view.scroll_offset.y + view.size.height >= self._lengths[at]
            if self.display and (seen or not self._lengths[at]):
                self._unread[at] = False
        if before != self._unread:
            self.post_message(self.Changed())

    def _draw(self) -> None:
        super()._draw()
        self.call_after_refresh(self._look_for_ends)
        if self.detail is not None and self._tried_for != self.detail.line.sha256:
            self._tried_for = self.detail.line.sha256
            if not self.detail.problems:
                self.run_worker(self._try(), group="try", exclusive=True)

    async def _try(self) -> None:
        """Try the runbook with its default inputs: does it apply now?"""
        ask = RunbookAsk(id=self._runbook_id, dry_run=True)
        try:
            self._tried = await in_thread(lambda: self.connect().run_runbook(ask))
        except MusterError as error:
            self._tried = f"{error.problem}. {error.remedy}"
        self._draw()


def _height(sections: Sequence[Section]) -> int:
    """Lines that they take, with their heads and the gaps between."""
    return sum(1 + len(section.lines) for section in sections) + max(len(sections) - 1, 0)


async def ask_inputs(app: MusterApp, runbook_id: str) -> str:
    """Ask for each input on a line of its own; an empty line leaves it to the runbook. Raises MusterError."""
    from console.tui.decision_dialogs import InputsDialog

    view = await in_thread(lambda: app.client().runbook(runbook_id))
    if not view.inputs:
        return await run(app, runbook_id, {})
    asked = [(each.name, f"{each.type}, {each.bounds}{'. ' + each.help if each.help else ''}") for each in view.inputs]
    dialog = InputsDialog(view.line.title, asked)
    if not await app.push_screen_wait(dialog):
        return f"{printable(runbook_id)}: cancelled, nothing tried"
    return await run(app, runbook_id, dialog.values)


async def run(app: MusterApp, runbook_id: str, inputs: Mapping[str, str]) -> str:
    """Try it, show what it would do, and on a yes propose exactly what the same file says now. Raises MusterError."""
    from console.tui.decision_dialogs import ConfirmDialog
    from console.tui.proposal_steps import put_to_vote

    given = dict(inputs)
    tried = await in_thread(lambda: app.client().run_runbook(RunbookAsk(id=runbook_id, inputs=given)))
    if tried.proposal is None:
        raise RefusedError(f"{runbook_id} cannot be run now: {tried.refused}", "Nothing was proposed")
    words = [word for name, value in given.items() for word in ("--input", f"{name}={value}")]
    shell = shlex.join(["muster", "runbook", "run", runbook_id, *words])
    dialog = ConfirmDialog(
        tried.proposal, printable(shell), app.clock, asks_only=True, above=lambda width: run_lines(tried, width)
    )
    if not await app.push_screen_wait(dialog):
        return f"{printable(runbook_id)}: tried on a fork, nothing was proposed"
    wanted = RunbookAsk(id=runbook_id, inputs=given, dry_run=False, sha256=tried.line.sha256)
    made = await in_thread(lambda: app.client().run_runbook(wanted))
    if made.proposal is None:
        raise RefusedError(f"{runbook_id} was not proposed: {made.refused}", "See :runbooks")
    app.navigator.drill("proposal", made.proposal.id)
    return put_to_vote(made.proposal)
