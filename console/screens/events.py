"""What happens in the cell, newest first. Enter opens the workload or node an event is about."""

from __future__ import annotations

from functools import partial

from textual import on

from console.event_log import EVENT_HEADINGS, EventLog
from console.query import parse_filter
from console.screens.pane import Connect, WordsPane
from console.table import WindowTable


class EventsPane(WordsPane):
    NAME = "events"

    def __init__(self, connect: Connect, log: EventLog) -> None:
        super().__init__(connect)
        self._log = log

    def on_mount(self) -> None:
        self.filter("")

    @property
    def note(self) -> str:
        missed = [f"{self._log.missed:,} missed"] if self._log.missed else []
        return "  ·  ".join([*self.counts, *missed, "newest first"]) if self.counts else ""

    @property
    def copyable(self) -> str:
        row = self.table.cursor_row
        return row.state if row else ""

    def filter(self, text: str) -> None:
        """Show events in which every word occurs."""
        terms = parse_filter("events", text)
        self._filter = " ".join(text.split())
        self.table.empty = f"no event matches {self._filter}" if self._filter else "nothing happened yet"
        self.table.show(EVENT_HEADINGS, partial(self._log.window, terms))

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        if event.row.state:
            self.post_message(self.Follow(f"open {event.row.state}"))
