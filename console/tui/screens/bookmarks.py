"""Views with a name. Enter goes to one, `x` takes it away, `y` copies its line."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual import on

from console.text.terminal_text import printable
from console.tui.bookmarks import kept
from console.tui.widgets.pane import AsOf
from console.tui.widgets.table_pane import WordsPane
from console.tui.widgets.window_table import WindowTable
from console.views.lists import Heading, Row, Window

if TYPE_CHECKING:
    from console.tui.app import MusterApp

HEADINGS = (Heading("name", "BOOKMARK", most=40), Heading("line", "LEADS TO", most=400))


class BookmarksPane(WordsPane):
    NAME = "bookmarks"

    def on_mount(self) -> None:
        self.filter(self._filter)

    @property
    def as_of(self) -> AsOf | None:
        """They are this person's own: they do not age."""
        return None

    @property
    def note(self) -> str:
        return "  ·  ".join([*self.counts, "a colleague types the line behind : or :bookmark NAME = LINE"])

    @property
    def copyable(self) -> str:
        """The line, for somebody else's `:` bar."""
        row = self.table.cursor_row
        return kept(cast("MusterApp", self.app).session).get(row.id, "") if row is not None else ""

    def chosen(self) -> str:
        """Name of the one under the cursor."""
        row = self.table.cursor_row
        return row.id if row is not None else ""

    def filter(self, text: str) -> None:
        """Show those in whose name or line every word occurs."""
        self._filter = " ".join(text.split())
        none = "none yet: * keeps the view you are at"
        self.table.empty = f"no bookmark has {self._filter}" if self._filter else none
        self.table.show(HEADINGS, self._rows)

    def _rows(self, offset: int, limit: int) -> Window:
        """Called on a thread; asks nobody."""
        lines, words = kept(cast("MusterApp", self.app).session), self._filter.lower().split()
        found = [
            Row(name, ((printable(name), ""), (printable(":" + line), "dim")))
            for name, line in sorted(lines.items())
            if all(word in f"{name} {line}".lower() for word in words)
        ]
        return Window(offset, found[offset : offset + limit], len(found), len(lines), 0, 0)

    @on(WindowTable.RowChosen)
    def _go(self, event: WindowTable.RowChosen) -> None:
        line = kept(cast("MusterApp", self.app).session).get(event.row.id)
        if line is not None:
            self.post_message(self.Follow(line))
