"""A page that is a table: where one is in it, what is marked, whether it stands still, and what takes long on it."""

from __future__ import annotations

from typing import Any, Protocol

from textual import on
from textual.app import ComposeResult

from console.text.terminal_text import printable, timestamp
from console.tui.widgets.pane import AsOf, Connect, Pane
from console.tui.widgets.window_table import TablePosition, WindowTable
from console.views.lists import Window


class PageWork(Protocol):
    """Something on a page that takes long."""

    @property
    def note(self) -> str:
        """How far it is, for the title; empty once it is over."""
        ...

    def stop(self) -> bool:
        """End it; false when it is over."""
        ...


class TablePane(Pane):
    """A page that is a table, whose news it passes on."""

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.table = WindowTable()
        self.work: PageWork | None = None
        """What takes long and is told in the title, such as an export."""
        self._window: Window | None = None
        self._still: AsOf | None = None
        """Of when the rows are that stay."""

    def compose(self) -> ComposeResult:
        yield self.table

    @property
    def as_of(self) -> AsOf | None:
        if self._still is not None:
            return self._still
        return AsOf(self._window.version, self._window.at_ms) if self._window is not None else None

    @property
    def frozen(self) -> AsOf | None:
        return self._still

    def freeze(self) -> None:
        """Rows that were never in view are fetched all the same, and said to be newer."""
        self.table.frozen = self._still is None
        self._still = self.as_of or AsOf(0, 0) if self.table.frozen else None
        if not self.table.frozen:
            self.table.reload()
        self.post_message(self.Changed())

    @property
    def frozen_note(self) -> str:
        if self._still is None:
            return ""
        newer = ", rows read since are newer" if self.table.mixed else ""
        return f"as of {timestamp(self._still.at_ms, date=False)}{newer}"

    @property
    def notes(self) -> list[str]:
        """What the title tells of the table whatever is listed: what is under way, and that it stands still."""
        told = [self.work.note] if self.work is not None and self.work.note else []
        return told + ([self.frozen_note] if self._still is not None else [])

    def place(self) -> dict[str, Any]:
        return dict(self.table.place._asdict())

    def put_back(self, place: dict[str, Any]) -> None:
        """What was put into it by hand or by another version counts for nothing."""
        numbers = [place.get(name) for name in ("index", "top", "x")]
        if all(isinstance(number, int) and 0 <= number < 1 << 40 for number in numbers):
            index, top, x = (int(number) for number in numbers if isinstance(number, int))
            self.table.put_back(TablePosition(index, str(place.get("id", "")), top, x))

    def clear_one(self) -> bool:
        """Stop what is under way, give up a range, take marks away: the innermost first."""
        if self.work is not None and self.work.stop():
            return True
        if self.table.give_up_range():
            return True
        if self.table.marked:
            self.table.clear_marks()
            return True
        return False

    def reload(self) -> None:
        self.table.reload()

    def look_again(self) -> None:
        """What is frozen is looked at once more and then stays as it is."""
        if self._still is not None:
            self._still = AsOf(0, 0)
        self.table.look_again()

    @on(WindowTable.Loaded)
    def _loaded(self, event: WindowTable.Loaded) -> None:
        self._window = event.window
        if self._still == AsOf(0, 0):
            self._still = AsOf(event.window.version, event.window.at_ms)
        self.post_message(self.Changed())

    @on(WindowTable.Touched)
    def _touched(self) -> None:
        self.post_message(self.Changed())

    @on(WindowTable.LoadFailed)
    def _load_failed(self, event: WindowTable.LoadFailed) -> None:
        self.post_message(self.Failed(event.error))


class WordsPane(TablePane):
    """A table whose rows are chosen by words of their own, not by the filter of the lists."""

    def __init__(self, connect: Connect, words: str = "") -> None:
        super().__init__(connect)
        self._filter = " ".join(words.split())

    @property
    def filter_text(self) -> str:
        return self._filter

    @property
    def counts(self) -> list[str]:
        """How many rows there are, and by which words; nothing before the first answer."""
        if self._window is None:
            return []
        if not self._filter:
            return [f"{self._window.total:,}", *self.notes]
        return [f"{self._window.matched:,} of {self._window.total:,}", f"/{printable(self._filter)}", *self.notes]

    @property
    def line(self) -> str:
        return f"{self.NAME} {self._filter}".rstrip()

    def filter(self, text: str) -> None:
        """Show other rows. Raises FilterError and stays as it is when the filter cannot be read."""
        raise NotImplementedError

    def take(self, text: str) -> None:
        """Show what a line says. Raises FilterError."""
        self.filter(text)

    def clear_one(self) -> bool:
        if super().clear_one():
            return True
        if self._filter:
            self.filter("")
            return True
        return False
