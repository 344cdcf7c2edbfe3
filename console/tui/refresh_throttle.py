"""When a page is asked anew: a key is answered before the cell's news."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.timer import Timer

    from console.tui.app import MusterApp

REST_S = 0.15
"""While keys come quicker than that, what happens in the cell waits."""
LONGEST_S = 1.0
"""How long it waits at most."""


class RefreshThrottle:
    """One per app."""

    def __init__(self, app: MusterApp) -> None:
        self._app = app
        self.keyed_at = float("-inf")
        """When a key was pressed last, by the app's clock."""
        self._due_at = float("-inf")
        self._waiting: Timer | None = None

    def keyed(self) -> None:
        """A key was pressed."""
        self.keyed_at = self._app.clock()

    def news(self) -> None:
        """The cell is further: the page is asked anew when the fingers rest, or have kept it waiting long enough."""
        now = self._app.clock()
        if self._waiting is not None:
            return
        if now - self.keyed_at >= REST_S and not self._covered:
            self._app.reload()
            return
        self._due_at = now + LONGEST_S
        self._waiting = self._app.set_timer(REST_S, self._rested)

    @property
    def _covered(self) -> bool:
        """What lies over the page would be drawn anew with it, and is what is read."""
        return len(self._app.screen_stack) > 1

    def _rested(self) -> None:
        self._waiting = None
        now = self._app.clock()
        if self._covered or (now - self.keyed_at < REST_S and now < self._due_at):
            self._waiting = self._app.set_timer(REST_S, self._rested)
        else:
            self._app.reload()
