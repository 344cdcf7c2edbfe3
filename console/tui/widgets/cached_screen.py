"""A screen that draws each frame once, and draws at once what answers a key.

Textual draws after it laid out, and again for whatever else was changed in the same turn: of a page that comes up that
is the whole screen twice. And it draws when everything has settled, which for a page takes several turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from textual.reactive import Reactive
from textual.screen import Screen
from textual.widget import Widget

from console.tui.widgets.compositor import LeanCompositor

if TYPE_CHECKING:
    _Screen = Screen[object]
else:
    _Screen = object


class DrawnOnce(_Screen):
    """Stands before the screen among the bases."""

    focused: Reactive[Widget | None] = Reactive(None, repaint=False)
    """Who loses the keys and who has them draws that; the rest of the screen is as it was."""
    _gathering = False
    _owed = False
    _opening = False
    """It comes up and is not laid out yet: who sets this sees nothing of it before that."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._compositor = LeanCompositor()

    def _on_timer_update(self) -> None:
        self._gathering = True
        try:
            super()._on_timer_update()
        finally:
            self._gathering = False
            self._opening = False
        if self._owed:
            self._compositor_refresh()

    def _compositor_refresh(self) -> None:
        self._owed = self._gathering
        if self._gathering or self._opening:
            return
        if self.app.screen is self:
            super()._compositor_refresh()
        else:
            self._tell_what_lies_over()

    def _tell_what_lies_over(self) -> None:
        """What is seen dimly below it is another. Textual would say so again and again."""
        regions = self._compositor._dirty_regions
        if regions and self in self.app._background_screens:
            self.app.screen.refresh(*regions)
            regions.clear()
            self._dirty_widgets.clear()

    def set_focus(self, widget: Widget | None, scroll_visible: bool = True, from_app_focus: bool = False) -> None:
        """The cursor of what has the keys is drawn with the same frame, not when the widget is told."""
        super().set_focus(widget, scroll_visible, from_app_focus)
        if widget is not None and widget is self.focused:
            widget.has_focus = True

    def draw(self, widgets: Iterable[Widget] = (), *, where_they_stand: bool = False) -> None:
        """Lay out and draw now what comes, goes or moves, and these. `where_they_stand`: nothing but these."""
        if not self._drawable:
            return
        self._compositor.update_widgets({widget for widget in widgets if widget in self._compositor})
        if where_they_stand:
            self._compositor_refresh()
        else:
            self._refresh_layout()

    @property
    def _drawable(self) -> bool:
        return self.is_current and self.is_attached and not self.app._batch_count and bool(self.size)


class PageScreen(DrawnOnce, Screen[None]):
    """The screen that the pages are on."""

    BLANK = True  # the frame covers it

    def _on_screen_suspend(self) -> None:
        # Besides Textual's own, which wants it drawn anew: what lies over it now does that.
        self._repaint_required = False
