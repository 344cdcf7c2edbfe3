"""All proposals, what needs a person first. Enter opens one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from textual import on

from console.actions.action_types import ActionTarget
from console.forms.filters import parse_filter
from console.tui.widgets.pane import Connect
from console.tui.widgets.table_pane import WordsPane
from console.tui.widgets.window_table import WindowTable
from console.views.decisions.proposal import LIST_HEADINGS, SHOWN_STATES, headings, list_rows
from console.views.lists import Window, rows_that_match
from engine.model.queries import Term
from runbooks.plans import proposal_states
from runbooks.plans.typed_plan import Proposal

if TYPE_CHECKING:
    from console.tui.app import MusterApp
    from runbooks.policy.queries import Caller

ASK_S = 2.0
"""How often it is asked anew what nothing else tells: votes change no state of the cell."""
DRAW_S = 1.0
SHARE = 20
"""An answer that took so long is asked for again after so many times that: the engine answers between its turns."""
OVER_S = 30.0
"""How often those that are over are asked for."""
MAX_OPEN, MAX_OVER = 64, 8
"""Proposals that are listed: under way, and of each state in which they are over."""
OVER = tuple(sorted(proposal_states.ENDED - set(SHOWN_STATES)))


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
        votes = f"{waiting:,} wait for votes" if waiting else "none waits for votes"
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
        self.table.empty = f"no proposal matches {self._filter}" if self._filter else "nothing was proposed yet"
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
        """Those that are over in small portions, and seldom."""
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
