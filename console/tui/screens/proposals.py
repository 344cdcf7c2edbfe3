"""Pages of recommendations and proposals.

The list of proposals begins with those that need a person. The page of a proposal shows the plan from its typed form,
then votes, progress, changes since, and the words of people in a frame. A vote is taken after the end of the plan has
been on the screen. The page of recommendations lists them and explains the one under the cursor.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from textual import on

from console.actions.key_map import key_of
from console.actions.registry import ActionTarget
from console.client.change_feed import in_thread
from console.forms.filters import parse_filter
from console.text.terminal_text import cut, printable, wrap
from console.tui.widgets.list_pane import WordsPane
from console.tui.widgets.pane import AsOf, Connect, DetailPane, SectionsView
from console.tui.widgets.window_table import WindowTable
from console.views.decision_needs import (
    press_next,
    request_of,
    unverified,
    waiting_step,
)
from console.views.lists import Window, none_found, rows_that_match
from console.views.proposal import (
    LIST_HEADINGS,
    SHOWN_STATES,
    Fresh,
    decision_sections,
    headings,
    list_rows,
)
from console.views.sections import Line, Section, text_line
from console.views.suggestions import (
    followed_rows,
    found_lines,
    found_sections,
    group_sections,
    list_line,
    nothing_found,
    suggestion_sections,
)
from engine.model.errors import MusterError, RefusedError
from engine.model.list_queries import Query, Term
from recommender.findings.suggestions import MAX_TARGETS, Recommendation, Recommendations, Suggestion
from runbooks.plans import typed_plan
from runbooks.plans.typed_plan import Proposal

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.tui.app import MusterApp
    from runbooks.gate.approval_policy import Caller


ASK_S = 2.0
"""Interval of questions for votes, which change no state of the cell."""
DRAW_S = 1.0
SHARE = 20
"""An answer that took so long is asked for again after so many times that: the engine answers between its turns."""
OVER_S = 30.0
"""Interval of questions for finished proposals."""
MAX_OPEN, MAX_OVER = 64, 8
"""Proposals that are listed: under way, and of each state in which they are over."""
OVER = tuple(sorted(typed_plan.ENDED - set(SHOWN_STATES)))


class ProposalsPane(WordsPane):
    NAME = "proposals"
    TARGETS = "proposal"
    EVERY_S = 5.0

    def __init__(self, connect: Connect, words: str = "") -> None:
        """Raises FilterError."""
        super().__init__(connect, words)
        self._terms: tuple[Term, ...] = parse_filter("proposals", words)
        self._found: tuple[Proposal, ...] = ()
        self._caller: Caller | None = None
        self._over: tuple[Proposal, ...] = ()
        self._asked_at = self._over_at = self._ask_after = float("-inf")
        self._clock: Callable[[], float] = lambda: 0.0

    def on_mount(self) -> None:
        self._clock = cast("MusterApp", self.app).clock
        self.filter(self._filter)
        self.set_interval(DRAW_S, self.reload_if_seen)

    def on_resize(self) -> None:
        self.filter(self._filter)

    @property
    def note(self) -> str:
        waiting = sum(each.state == "awaiting" for each in self._found)
        votes = f"{waiting:,} waiting for votes" if waiting else "none waits for votes"
        return "  ·  ".join([*self.counts, votes]) if self.counts else ""

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        row = self.table.cursor_row
        return (ActionTarget(row.id, row.state),) if row is not None else ()

    def chosen(self) -> Proposal | None:
        """The one under the cursor."""
        row = self.table.cursor_row
        return next((each for each in self._found if row is not None and each.id == row.id), None)

    def look_again(self) -> None:
        self._ask_after = self._over_at = float("-inf")
        self.table.reload()

    def filter(self, text: str) -> None:
        """Show others. Raises FilterError and stays as it is when the filter cannot be read."""
        self._terms = parse_filter("proposals", text)
        self._filter = " ".join(text.split())
        self.table.empty = none_found("proposals", self._filter)
        self.table.show(headings(self.size.width), self._rows)

    def _rows(self, offset: int, limit: int) -> Window:
        """Called on a thread. What is listed is asked for now and then; the time left is told each time."""
        now = self._clock()
        if now >= self._ask_after or self._caller is None:
            self._ask(now)
        assert self._caller is not None, "it was asked"
        wall_ms = self._caller.now_ms + round((now - self._asked_at) * 1000)
        rows = list_rows(self._found, wall_ms, self._caller.me)
        kept = rows_that_match(rows, LIST_HEADINGS, self._terms)
        return Window(offset, kept[offset : offset + limit], len(kept), len(rows), 0, self._caller.now_ms)

    def _ask(self, now: float) -> None:
        """Ask for proposals; finished ones in small portions, and seldom."""
        client = self.connect()
        under_way = client.proposals(SHOWN_STATES, MAX_OPEN)
        gone = {each.id for each in self._found if each.state in SHOWN_STATES} - {each.id for each in under_way}
        if gone or now - self._over_at >= OVER_S:
            self._over, self._over_at = (
                tuple(each for state in OVER for each in client.proposals((state,), MAX_OVER)),
                now,
            )
        self._found, self._caller, self._asked_at = (*under_way, *self._over), client.whoami(), self._clock()
        self._ask_after = self._asked_at + max(ASK_S, SHARE * (self._asked_at - now))

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        self.post_message(self.Follow(f"proposal {event.row.id}"))


PROPOSAL_REFRESH_S = 1.0
"""Interval of questions for votes on an open proposal; they change no state of the cell."""
SELDOM_S = 5.0
"""Interval for a finished proposal."""
IS_SUGGESTION = re.compile("R-[a-z2-7]{5}")


class ProposalPage(NamedTuple):
    proposal: Proposal
    caller: Caller
    at: float
    """Monotonic clock when that was answered."""
    fresh: Fresh | None
    """A stale proposal, as it would be now."""


class ProposalPane(DetailPane[ProposalPage]):
    NAME = "proposal"
    TARGETS = "proposal"
    EVERY_S = 5.0

    def __init__(self, connect: Connect, proposal_id: str) -> None:
        super().__init__(connect)
        self._proposal_id = proposal_id
        self._clock: Callable[[], float] = lambda: 0.0
        self._plan_lines = 0
        self._plan_width = 0
        self._top = 0
        """Line to scroll to once there is something to show."""
        self._seen = ("", 0)
        """Digest, and width as it was laid out, of the plan whose end was on the screen."""
        self._found: Recommendation | None = None
        """The suggestion that it follows from."""
        self._asked_found = False
        self._records = -1
        """`Client.records` from before it was asked for."""

    def on_mount(self) -> None:
        super().on_mount()
        self._clock = cast("MusterApp", self.app).clock
        self.set_interval(DRAW_S, self._tick)
        self.watch(self._left, "scroll_y", self._look_for_end, init=False)

    @property
    def crumb(self) -> str:
        return cut(printable(self._proposal_id), 32)

    @property
    def line(self) -> str:
        return f"proposal {self._proposal_id}"

    @property
    def as_of(self) -> AsOf | None:
        return AsOf(0, self.detail.caller.now_ms) if self.detail is not None else None

    @property
    def note(self) -> str:
        """The key to press next, or the reason for waiting."""
        if self.detail is None:
            return ""
        shown = self.detail.proposal
        return press_next(
            shown, self.detail.caller.me, self._now_ms(self.detail), read=self.seen_to_the_end,
            waits_for_word=waiting_step(shown) is not None, unverified=unverified(shown),
        )  # fmt: skip

    def place(self) -> dict[str, Any]:
        return {"top": self._left.scroll_offset.y}

    def put_back(self, place: dict[str, Any]) -> None:
        top = place.get("top")
        self._top = top if isinstance(top, int) else 0

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        if self.detail is None:
            return ()
        shown = self.detail.proposal
        return (ActionTarget(shown.id, shown.state, unverified(shown), waiting_step(shown) is not None),)

    def chosen(self) -> Proposal | None:
        return self.detail.proposal if self.detail is not None else None

    # --- whether it was read

    @property
    def seen_to_the_end(self) -> bool:
        """The last line of exactly this plan, laid out as it is now, was on the screen."""
        return self.detail is not None and self._seen == (self.detail.proposal.digest, self._plan_width)

    @property
    def plan_width(self) -> int:
        """Width at which the plan was read."""
        return self._plan_width

    def refuse_unread(self) -> None:
        """Raises RefusedError while the end of the plan was not on the screen, and when what is shown is not what the
        digest is of: a vote would be on something else."""
        shown = self.detail.proposal if self.detail is not None else None
        if shown is not None and shown.plan.digest() != shown.digest:
            raise RefusedError("the digest shown does not match the plan shown", "Run muster audit verify")
        if not self.seen_to_the_end:
            raise RefusedError("you have not seen the end of the plan yet", "Scroll to the end (pgdn, G), then vote")

    def _look_for_end(self) -> None:
        if self.detail is None or self.seen_to_the_end or not self._plan_lines or not self._left.size.height:
            return
        if self.display and self._left.scroll_offset.y + self._left.size.height >= self._plan_lines:
            self._seen = (self.detail.proposal.digest, self._plan_width)
            self.post_message(self.Changed())

    # --- what is shown

    def ask(self, client: Client) -> ProposalPage:
        self._records = client.records()
        shown, caller = client.proposal(self._proposal_id), client.whoami()
        fresh = None
        if shown.stale:
            before = self.detail
            fresh = before.fresh if before is not None and before.proposal.stale == shown.stale else None
            fresh = fresh or self._proposed_now(client, shown)
        return ProposalPage(shown, caller, self._clock(), fresh)

    async def _ask_found(self, rec_id: str) -> None:
        """Ask once for the finding it follows from, on a worker."""
        self._asked_found = True
        try:
            self._found = await in_thread(lambda: self.connect().recommendation(rec_id))
        except MusterError:
            return
        self._draw()

    def _proposed_now(self, client: Client, shown: Proposal) -> Fresh:
        """Preview of the proposal as it would be now. Nothing is proposed."""
        try:
            return Fresh(client.preview(request_of(shown)))
        except RefusedError as error:
            return Fresh(None, error.problem)
        except MusterError as error:
            return Fresh(None, f"{error.problem} (no more is known)")

    def columns(self, detail: ProposalPage, width: int) -> tuple[list[Section], list[Section]]:
        shown, me = detail.proposal, detail.caller.me
        now_ms = self._now_ms(detail)
        plan, standing = decision_sections(
            shown, now_ms, me, width, detail.fresh, caller=detail.caller, found=found_sections(self._found, width)
        )
        self._plan_lines = sum(1 + len(section.lines) for section in plan) + len(plan) - 1
        self._plan_width = width
        return plan, standing

    def _now_ms(self, detail: ProposalPage) -> int:
        """The engine's wall clock."""
        return detail.caller.now_ms + round((self._clock() - detail.at) * 1000)

    def _draw(self) -> None:
        super()._draw()
        reason = self.detail.proposal.reason if self.detail is not None else ""
        if not self._asked_found and IS_SUGGESTION.fullmatch(reason):
            self.run_worker(self._ask_found(reason))
        if self._top and self.detail is not None:
            self._left.scroll_to(y=self._top, animate=False)
            self._top = 0
        self.call_after_refresh(self._look_for_end)

    def _is_same(self) -> bool:
        """Nobody voted or decided since it was asked for."""
        try:
            return self._records >= 0 and self.connect().records() == self._records
        except MusterError:
            return False

    def _tick(self) -> None:
        if not self.display or not self.is_attached:
            return
        over = self.detail is not None and self.detail.proposal.state in typed_plan.ENDED
        if self.detail is None or self._clock() - self.detail.at >= (
            SELDOM_S if over or self._is_same() else PROPOSAL_REFRESH_S
        ):
            self.reload()
        else:
            self._draw()


LINK = "rec:"
SUGGESTION_OVER = ("finished", "failed", "cancelled")


class RecommendationsPane(DetailPane[Recommendations]):
    NAME = "recommendations"
    EVERY_S = 20.0  # the engine looks for them beside its work

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self._shown = ""
        """Id of the one that was asked for; empty: the first."""
        self._explains = ""
        """Id of the one that is explained: the one under the cursor, which is what A acts on."""

    @property
    def crumb(self) -> str:
        return "suggestions"

    @property
    def note(self) -> str:
        if self.detail is None:
            return ""
        if self._alone:
            return f"{self._shown}   esc: all {len(self.detail.open):,}"
        aside = f", {len(self.detail.aside):,} dismissed" if self.detail.aside else ""
        if not self.detail.open:
            return f"no suggestions{aside}; checked continuously"
        return f"{len(self.detail.open):,} found{aside}"

    @property
    def _alone(self) -> bool:
        """True where there is one column, in which the explanation takes the place of the list."""
        return bool(self._shown) and not self._right.display

    def clear_one(self) -> bool:
        if not self._alone:
            return False
        self._shown = ""
        self._draw()
        self._left.show_cursor()
        return True

    @property
    def copyable(self) -> str:
        chosen = self.chosen()
        return chosen.suggestion.id if chosen else ""

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        """The chosen suggestion as a target of actions, though it is no object of the cell."""
        chosen = self.chosen()
        if chosen is None:
            return ()
        return (
            ActionTarget(
                chosen.suggestion.id, "acted" if chosen.state == "acted" else "action" if chosen.command else "told"
            ),
        )

    @property
    def line(self) -> str:
        return self.NAME

    @property
    def as_of(self) -> AsOf | None:
        return AsOf(self.detail.version, self.detail.now_ms) if self.detail is not None else None

    def place(self) -> dict[str, Any]:
        return {"shown": self._shown}

    def put_back(self, place: dict[str, Any]) -> None:
        shown = place.get("shown")
        self._shown = shown if isinstance(shown, str) else ""
        if self._shown:
            self._left.put_back({"top": 0, "link": f"{LINK}{self._shown}"})

    def ask(self, client: Client) -> Recommendations:
        view = client.recommendations()
        if self._shown and any(each.suggestion.id == self._shown for each in (*view.open, *view.aside)):
            client.recommendation(self._shown)
        return view

    def chosen(self) -> Recommendation | None:
        """The one under the cursor, or the one that is explained."""
        if self.detail is None:
            return None
        every = {each.suggestion.id: each for each in (*self.detail.open, *self.detail.aside)}
        under = self._left.link.removeprefix(LINK)
        first = next(iter(every), "")
        return every.get(under) or every.get(self._shown) or every.get(first)

    def columns(self, detail: Recommendations, width: int) -> tuple[list[Section], list[Section]]:
        explained = self._explained(detail, width)
        if not self._right.display:
            if self._shown and explained:
                return explained, []
            explained = []
        left = group_sections(detail, width, lambda found: self._lines(found, width))
        left = left or [Section("Found", self._lines(detail.open, width) or nothing_found(width), "GPU-hours a day")]
        if detail.aside:
            left.append(Section("Dismissed", self._lines(detail.aside, width), "rejected, or acted on"))
        if detail.followed:
            left.append(Section("Outcomes", followed_rows(detail.followed, width)))
        if detail.unknown:
            told = [line for text in detail.unknown for line in wrap(printable(text), width)]
            left.append(Section("Not known", tuple(text_line(line, "dim") for line in told)))
        return left, explained

    def _lines(self, found: Sequence[Recommendation], width: int) -> tuple[Line, ...]:
        return tuple(
            Line(((list_line(each, width), "dim" if each.state != "open" else ""),), f"{LINK}{each.suggestion.id}")
            for each in found
        )

    def _explained(self, detail: Recommendations, width: int) -> list[Section]:
        shown = self.chosen()
        if shown is None:
            return []
        self._explains = shown.suggestion.id
        link = f"{LINK}{shown.suggestion.id}" if self._alone else ""
        first, *rest = suggestion_sections(shown, width)
        # The first line is a link where the list is away: so the cursor finds its place in the list again.
        return [first._replace(lines=(first.lines[0]._replace(link=link), *first.lines[1:])), *rest]

    def _draw(self) -> None:
        super()._draw()
        chosen = self.chosen()
        if chosen is not None and chosen.suggestion.id != self._explains:
            super()._draw()  # the list differs, and with it what is under the cursor

    def point_at(self, rec_id: str) -> None:
        """Put the cursor on it, and explain it."""
        self._shown = rec_id
        self._left.put_back({"top": 0, "link": f"{LINK}{rec_id}"})
        self.reload()

    async def act(self, app: MusterApp) -> str:
        """Have the action of the chosen one planned, confirmed and done. Gives what to tell. Raises MusterError."""
        from console.actions.request_builder import parse, propose
        from console.forms.action_arguments import declared, metavar_of
        from console.tui.proposal_steps import finish

        chosen = self.chosen()
        if chosen is None:
            raise RefusedError("no suggestions now", "The cell is checked continuously")
        if not chosen.command:
            raise RefusedError("nothing to propose", "This one only asks for a person's attention")
        row = declared(chosen.suggestion.action)
        words = list(chosen.command[len(row.shell.split()) : chosen.command.index("--suggestion")])
        # Work ends by itself, and is then no target any more.
        on_work = row.kind == "workload" and bool(metavar_of(row))
        over = await in_thread(lambda: ended(app.client(), chosen.suggestion)) if on_work else ()
        if over and len(over) == len(chosen.suggestion.targets):
            raise RefusedError(
                "everything it is about has ended since", f"The cell is checked again: {key_of('refresh')} refreshes"
            )
        words = [word for word in words if word not in over]
        arguments = parse(row.word, shlex.join(words))
        action = next(action for action in app.actions.values() if row.word in action.commands)
        shell = shlex.join(["muster", *row.shell.split(), *map(printable, words), "--suggestion", chosen.suggestion.id])
        return await finish(
            app, action, lambda: propose(app.client(), row.word, arguments, suggestion=chosen.suggestion.id), shell,
            found=lambda width: found_lines(chosen, width, over), follow=True,
        )  # fmt: skip

    @on(SectionsView.LinkMoved)
    def _moved(self) -> None:
        """Explain the suggestion under the cursor."""
        if self._left.has_focus and not self._alone and self._right.display:
            self._shown = self._left.link.removeprefix(LINK)
            self._draw()
            self.reload()

    @on(SectionsView.LinkChosen)
    def _chosen(self, event: SectionsView.LinkChosen) -> None:
        """Enter on one of them explains it."""
        if not event.link.startswith(LINK):
            return
        event.prevent_default()
        event.stop()
        self._shown = event.link.removeprefix(LINK)
        self._draw()
        if self._alone:
            self._left.scroll_to(y=0, animate=False)
        self.reload()


def ended(client: Client, suggestion: Suggestion) -> tuple[str, ...]:
    """Targets that have ended since it was found. Blocks."""
    where = tuple(Term("id", "=", target) for target in suggestion.targets)
    page = client.query(Query(kind="workloads", columns=("id", "state"), where=where, limit=MAX_TARGETS))
    live = {row[0] for row in page.rows if row[1] not in SUGGESTION_OVER}
    return tuple(target for target in suggestion.targets if target not in live)
