"""The order of keys: what is typed at once after a jump, a bar or a new page goes to where it was meant for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual.events import Key
from textual.widgets import Input

from console.actions.key_jumps import PREFIX, Jumps

if TYPE_CHECKING:
    from console.tui.app import MusterApp

AT_ONCE = ("ctrl+c",)
"""Keys that never wait."""
MAX_HELD = 200
"""Keys that wait for a page. Nobody types so many: a paste or a stuck key."""
AWAY = "the engine does not answer: nothing can be done until it is back. esc leaves"


class KeyQueue:
    """Sees every key before any widget does. One per app."""

    def __init__(self, app: MusterApp) -> None:
        self._app = app
        self._held: list[Key] = []
        """Pressed while the page they are for is being put up."""
        self._replaying = False
        self.jumps = Jumps(app.actions.values())

    def passes(self, event: Key) -> Key | None:
        """The key that widgets are to see; None where it has been dealt with."""
        app = self._app
        if event.key in AT_ONCE:
            return event
        if app.screen is not app.screen_stack[0]:
            return self._over_the_page(event)
        if app.bars.typing:
            return None if app.bars.takes(event) else event
        if app.navigator.landing or app.navigator.current is None or (self._held and not self._replaying):
            if len(self._held) < MAX_HELD:
                self._held.append(event)
            return None
        if self.jumps.waiting:
            return self._second(event)
        if event.key == PREFIX and not isinstance(app.focused, Input):
            self.jumps.begin()
            app.drawing.jumps()
            return None
        return None if app.bars.takes(event) else event

    @property
    def on_page(self) -> bool:
        """Whether a key is for the page that is shown, and not text for an input on it."""
        app = self._app
        return app.screen is app.screen_stack[0] and not isinstance(app.focused, Input)

    def hold(self, keys: Iterable[Key]) -> None:
        """Keys for the page that is being put up; for the one that is shown, if none is."""
        self._held.extend(keys)
        if not self._app.navigator.landing:
            self._app.call_later(self.replay)

    async def replay(self) -> None:
        """The page is there: what was typed for it. A key that opens another page leaves the rest to that."""
        self._replaying = True
        try:
            while self._held and not self._app.navigator.landing:
                await self._app.on_event(self._held.pop(0))
        finally:
            self._replaying = False

    def _second(self, event: Key) -> Key | None:
        jump = self.jumps.end(event.key, event.character)
        app = self._app
        if jump.kind == "page":
            app.action_act(jump.action)
        elif jump.kind == "before":
            app.action_act("page_before")
        app.drawing.jumps()
        return Key("home", None) if jump.kind == "first" else None

    def _over_the_page(self, event: Key) -> Key | None:
        from console.tui.dialogs.base import Dialog

        dialog = self._app.screen
        if isinstance(dialog, Dialog) and dialog.refuses(event):
            self._app.say(AWAY)
            return None
        if isinstance(self._app.focused, Input):
            return event
        if self.jumps.waiting:
            # Over a page there is nowhere to go but to the top.
            return Key("home", None) if self.jumps.end(event.key, event.character).kind == "first" else event
        if event.key == PREFIX:
            self.jumps.begin()
            return None
        return event
