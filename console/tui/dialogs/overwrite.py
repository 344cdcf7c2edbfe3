"""Whether a file that is there may be replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from console.text.terminal_text import printable, wrap
from console.tui.dialogs.base import Dialog
from console.tui.widgets.one_line import OneLine, part
from console.tui.widgets.sections_view import SectionsView
from console.views.sections import Section, text_line


class OverwriteDialog(Dialog):
    """The default is No: Enter and Esc leave the file as it is."""

    DEFAULT_CSS = """
    OverwriteDialog > Vertical { max-width: 76; }
    """
    ACTS = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n,N,enter", "leave", show=False, priority=True),
        Binding("y,Y", "accept", show=False, priority=True),
    ]

    def __init__(self, path: str, told: str, accepted: Callable[[], object]) -> None:
        """`told`: what is known of the file, such as its size and age."""
        super().__init__()
        self._path = path
        self._told = told
        self._accepted = accepted
        self._body = SectionsView()
        self._question = OneLine("top")

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body
            yield self._question

    def on_mount(self) -> None:
        self._body.focus()
        self._question.show(
            [part(" n ", "key"), part("no, leave it ", "strong"), part(" y ", "key"), part("yes, replace it", "off")]
        )

    def on_resize(self) -> None:
        self.leave_room(self._body, 1)
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        lines = [*wrap(printable(self._path), self._body.text_width), printable(self._told)]
        self._body.show([Section("There is such a file already", tuple(text_line(line) for line in lines))])

    def action_accept(self) -> None:
        self.dismiss(True)
        self._accepted()
