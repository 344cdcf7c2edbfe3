"""A menu over the page: one line each, Enter takes the one under the cursor."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical

from console.tui.dialogs.base import Dialog
from console.tui.widgets.sections_view import SectionsView
from console.views.sections import Line, Section


class MenuDialog(Dialog):
    """What is chosen here only looks, or asks again before it acts."""

    ACTS = False

    def __init__(self, title: str, keys: str) -> None:
        """`keys`: what they do here, in a few words."""
        super().__init__()
        self._title = title
        self._keys = keys
        self._body = SectionsView()

    def lines(self) -> Sequence[Line]:
        """What there is to choose from, each with a link."""
        raise NotImplementedError

    def take(self, link: str) -> None:
        """A person has chosen the line with this link."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body

    def on_mount(self) -> None:
        self.on_resize()
        self._body.focus()

    def on_resize(self) -> None:
        self.leave_room(self._body, 0)
        self._show()

    def _show(self) -> None:
        self._body.show([Section(self._title, tuple(self.lines()), self._keys)])

    @on(SectionsView.LinkChosen)
    def _link_chosen(self, event: SectionsView.LinkChosen) -> None:
        event.stop()
        self.choose(event.link)

    def choose(self, link: str) -> None:
        """Take it, and leave."""
        self.dismiss(True)
        self.take(link)
