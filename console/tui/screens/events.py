"""What happens in the cell, newest first, as it happens. Enter opens the workload or node an event is about.

While the first line is in view it follows; scrolled away from, it stays where it is read and tells how many are new.
"""

from __future__ import annotations

from functools import partial

from textual import on

from console.forms.filters import FilterError, parse_filter
from console.tui.widgets.pane import Connect
from console.tui.widgets.table_pane import WordsPane
from console.tui.widgets.window_table import WindowTable
from console.views.event_log import EVENT_HEADINGS, EventLog
from engine.model.queries import Term


class EventsPane(WordsPane):
    NAME = "events"
    TAILS = True

    def __init__(self, connect: Connect, log: EventLog) -> None:
        super().__init__(connect)
        self._log = log
        self._terms: tuple[Term, ...] = ()
        self._seen = log.serial
        """Serial of the newest event when the first line was last in view."""

    def on_mount(self) -> None:
        try:
            self.filter(self.argument)
        except FilterError as error:
            self.filter("")
            self.post_message(self.Failed(error))

    @property
    def note(self) -> str:
        if not self.counts:
            return ""
        missed = [f"{self._log.missed:,} missed"] if self._log.missed else []
        return "  ·  ".join([*self.counts, *missed, self._tail])

    @property
    def _tail(self) -> str:
        """Whether it follows what happens."""
        if self.frozen is None and self.table.at_top:
            return "newest first, following"
        new = self._log.newer_than(self._seen, self._terms)
        if self.frozen is not None:
            return f"{new:,} new"
        return f"stays here, {new:,} new, home follows" if new else "stays here, home follows"

    @property
    def copyable(self) -> str:
        row = self.table.cursor_row
        return row.state if row else ""

    def filter(self, text: str) -> None:
        """Show other events. Raises FilterError and stays as it is when the filter cannot be read."""
        self._terms = parse_filter("events", text)
        self._filter = " ".join(text.split())
        self.table.empty = f"no event matches {self._filter}" if self._filter else "nothing happened yet"
        fetch = partial(self._log.window, self._terms)
        self.table.show(EVENT_HEADINGS, fetch, grows_at_top=True)

    @on(WindowTable.Loaded)
    @on(WindowTable.Touched)
    def _follow_tail(self) -> None:
        if self.table.at_top and self.frozen is None:
            self._seen = self._log.serial

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        if event.row.state:
            self.post_message(self.Follow(f"open {event.row.state}"))
