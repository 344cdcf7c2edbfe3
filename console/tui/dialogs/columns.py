"""Columns of a list: which are shown and in which order, and by which it is sorted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from console.text.terminal_text import fit
from console.tui.dialogs.base import Dialog
from console.tui.dialogs.menu import MenuDialog
from console.tui.widgets.one_line import OneLine, part
from console.tui.widgets.sections_view import SectionsView
from console.views.sections import Line, Section
from engine.model.queries import Column


class ColumnDialog(Dialog):
    """One line per column, the shown ones first in their order. Nothing is changed before Enter."""

    DEFAULT_CSS = """
    ColumnDialog > Vertical { max-width: 76; }
    """
    ACTS = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,x", "turn", show=False, priority=True),
        Binding("K,shift+up,less_than_sign", "shift(-1)", show=False, priority=True),
        Binding("J,shift+down,greater_than_sign", "shift(1)", show=False, priority=True),
        Binding("r", "reset", show=False, priority=True),
        Binding("enter", "accept", show=False, priority=True),
    ]

    def __init__(
        self, every: Sequence[Column], shown: Sequence[str], usual: Sequence[str], chosen: Callable[[list[str]], object]
    ) -> None:
        """`usual`: what is shown where nobody has chosen. `chosen` is called with the names; empty: the usual."""
        super().__init__()
        self._known = {column.name: column for column in every}
        self._usual = list(usual)
        self._chosen = chosen
        self._body = SectionsView()
        self._keys = OneLine("top")
        self._begin(shown)

    def _begin(self, shown: Sequence[str]) -> None:
        self._shown = list(shown)
        self._order = [*shown, *(name for name in self._known if name not in shown)]

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body
            yield self._keys

    def on_mount(self) -> None:
        self._body.focus()
        keys = (("space", "show or hide"), ("J K", "down, up"), ("r", "as usual"), ("↵", "done"), ("esc", "leave"))
        self._keys.show([each for key, what in keys for each in (part(f" {key} ", "key"), part(f"{what} ", "off"))])

    def on_resize(self) -> None:
        self.leave_room(self._body, 1)
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        lines = tuple(
            Line(
                (
                    ("✓ " if name in self._shown else "  ", "accent"),
                    (fit(name, 18), "" if name in self._shown else "dim"),
                    (self._known[name].help, "dim"),
                ),
                name,
            )
            for name in self._order
        )
        count = f"{len(self._shown)} of {len(self._known)}"
        self._body.show([Section("Columns", lines, count)])

    def action_turn(self) -> None:
        """Show or hide the one under the cursor. One stays."""
        name = self._body.link
        if name in self._shown and len(self._shown) > 1:
            self._shown.remove(name)
        elif name not in self._shown:
            self._shown = [each for each in self._order if each in self._shown or each == name]
        self._show()
        self._body.action_move(1)

    def action_shift(self, step: int) -> None:
        """Move the one under the cursor to the left or right of its neighbour."""
        name = self._body.link
        at = self._order.index(name)
        to = max(0, min(len(self._order) - 1, at + step))
        self._order.insert(to, self._order.pop(at))
        self._shown = [each for each in self._order if each in self._shown]
        self._show()
        self._body.show_cursor()

    def action_reset(self) -> None:
        self._begin(self._usual)
        self._show()

    def action_accept(self) -> None:
        self._chosen([] if self._shown == self._usual else self._shown)
        self.dismiss(True)


class SortDialog(MenuDialog):
    """One line per column; Enter sorts by it, `+` by it where the first is equal."""

    DEFAULT_CSS = """
    SortDialog > Vertical { max-width: 72; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("plus,s", "then", show=False, priority=True)]

    def __init__(
        self, columns: Sequence[Column], order: Sequence[tuple[str, bool]], chosen: Callable[[str, bool], object]
    ) -> None:
        """`chosen` is called with the name, and whether it is the second to sort by."""
        super().__init__("Sort by", "↵ by it, again turns it; + then by it")
        self._columns = columns
        self._order = order
        self._chosen = chosen

    def lines(self) -> Sequence[Line]:
        return [
            Line(((self._arrow(column.name), "accent"), (fit(column.name, 20), ""), (column.help, "dim")), column.name)
            for column in self._columns
        ]

    def _arrow(self, name: str) -> str:
        for level, (column, down) in enumerate(self._order):
            if column == name:
                return ("↓" if down else "↑") + ("²" if level else " ") + " "
        return "   "

    def take(self, link: str) -> None:
        self._chosen(link, False)

    def action_then(self) -> None:
        if self._body.link:
            self._chosen(self._body.link, True)
            self.dismiss(True)
