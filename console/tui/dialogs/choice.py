"""One of several: what was meant by a name that several things have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from console.text.terminal_text import fit, printable
from console.tui.dialogs.menu import MenuDialog
from console.views.sections import Line


class ChoiceDialog(MenuDialog):
    DEFAULT_CSS = """
    ChoiceDialog > Vertical { max-width: 80; }
    """

    def __init__(self, title: str, rows: Sequence[tuple[str, str, str]], chosen: Callable[[str], object]) -> None:
        """`rows`: what is given to `chosen`, what it is, and more of it."""
        super().__init__(title, "↵ takes one")
        self._rows = rows
        self._chosen = chosen

    def lines(self) -> Sequence[Line]:
        return [
            Line(((fit(printable(what), 30), ""), ("  ", ""), (printable(more), "dim")), link)
            for link, what, more in self._rows
        ]

    def take(self, link: str) -> None:
        self._chosen(link)
