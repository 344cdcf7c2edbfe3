"""What lies over a page: the frame of every dialog."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Input

from console.tui.widgets.cached_screen import DrawnOnce
from console.tui.widgets.line_widget import OverPage
from console.tui.widgets.one_line import OneLine, part
from console.tui.widgets.sections_view import SectionsView

GUARD_S = 0.4
"""Keys typed before a dialog could be read do not count as an answer."""


class Dialog(OverPage, DrawnOnce, ModalScreen[bool]):
    """A framed page over the page."""

    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog > Vertical { width: 90%; max-width: 100; height: auto; max-height: 92%; background: $background;
        border: round $border; padding: 0 1; }
    Dialog SectionsView { height: auto; max-height: 100%; }
    Dialog > #outage { dock: bottom; }
    """
    ACTS: ClassVar[bool] = True
    """A yes in it leads to a change."""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,backspace,q", "leave", show=False)]
    _outage: OneLine | None = None
    _opening = True

    def action_leave(self) -> None:
        self.dismiss(False)

    def tell_outage(self, text: str) -> None:
        """Say over whatever is asked that the engine is away; empty when it is back."""
        if self._outage is None and text and self.is_attached:
            self._outage = OneLine("alarm", id="outage")
            self.mount(self._outage)
        if self._outage is not None:
            self._outage.display = bool(text)
            self._outage.show([part(text, "alarm")])

    def refuses(self, event: Key) -> bool:
        """Whether a key would lead to a yes while there is nobody to carry it out. Reading, writing and leaving go
        on."""
        if not self.ACTS or self._outage is None or not self._outage.display:
            return False
        if isinstance(self.focused, Input):
            return event.key == "enter"
        return event.key in ("y", "Y") or (event.character or " ") in "0123456789abcdef"

    def leave_room(self, body: SectionsView, lines: int) -> None:
        """Have the body scroll before it pushes what is asked below it, so many lines, out of the frame."""
        body.styles.max_height = max(1, self.size.height * 92 // 100 - 2 - lines)
