"""What happens in the cell, newest first. Enter opens the workload or node an event is about."""

from __future__ import annotations

from functools import partial

from textual import on
from textual.app import ComposeResult

from console.screens.pane import Connect, Pane
from console.table import WindowTable
from console.views import EVENT_HEADINGS, EventLog, Window


class EventsPane(Pane):
    NAME = "events"

    def __init__(self, connect: Connect, log: EventLog) -> None:
        super().__init__(connect)
        self._log = log
        self._filter = ""
        self._window: Window | None = None
        self.table = WindowTable()

    def compose(self) -> ComposeResult:
        yield self.table

    def on_mount(self) -> None:
        self.filter("")

    @property
    def filter_text(self) -> str:
        return self._filter

    @property
    def note(self) -> str:
        if self._window is None:
            return ""
        parts = [f"{self._window.matched:,} of {self._window.total:,}" if self._filter else f"{self._window.total:,}"]
        if self._filter:
            parts.append(f"/{self._filter}")
        if self._log.missed:
            parts.append(f"{self._log.missed:,} missed")
        return "  ·  ".join([*parts, "newest first"])

    @property
    def copyable(self) -> str:
        row = self.table.cursor_row
        return row.state if row else ""

    def reload(self) -> None:
        self.table.reload()

    def filter(self, text: str) -> None:
        """Show events in which every word occurs."""
        self._filter = " ".join(text.split())
        self.table.empty = f"no event matches {self._filter}" if self._filter else "nothing happened yet"
        self.table.show(EVENT_HEADINGS, partial(self._log.window, self._filter.split()))

    def clear_one(self) -> bool:
        if self._filter:
            self.filter("")
            return True
        return False

    @on(WindowTable.Loaded)
    def _loaded(self, event: WindowTable.Loaded) -> None:
        self._window = event.window
        self.post_message(self.Changed())

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        if event.row.state:
            self.post_message(self.Follow(f"open {event.row.state}"))
