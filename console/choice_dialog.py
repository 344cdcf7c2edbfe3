"""One of several: what was meant by a name that several things have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical

from console.details import Line, Section
from console.dialogs import Dialog
from console.screens.sections import SectionsView
from console.text import fit, printable


class ChoiceDialog(Dialog):
    """One line each; Enter takes it."""

    DEFAULT_CSS = """
    ChoiceDialog > Vertical { max-width: 80; }
    """
    ACTS = False

    def __init__(self, title: str, rows: Sequence[tuple[str, str, str]], chosen: Callable[[str], object]) -> None:
        """`rows`: what is given to `chosen`, what it is, and more of it."""
        super().__init__()
        self._title = title
        self._rows = rows
        self._chosen = chosen
        self._body = SectionsView()

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body

    def on_mount(self) -> None:
        self._body.focus()
        lines = tuple(
            Line(((fit(printable(what), 30), ""), ("  ", ""), (printable(more), "dim")), link)
            for link, what, more in self._rows
        )
        self._body.show([Section(self._title, lines, "↵ takes one")])

    @on(SectionsView.LinkChosen)
    def _pick(self, event: SectionsView.LinkChosen) -> None:
        event.stop()
        self.dismiss(True)
        self._chosen(event.link)
