"""The command palette: every row of the registry, those that are not possible now with the reason."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from rich.text import Text
from textual.command import DiscoveryHit, Hit, Hits, Provider

from console.actions.action_types import Action
from console.actions.registry import ACTIONS, key_label
from console.text.terminal_text import printable

if TYPE_CHECKING:
    from console.tui.app import MusterApp

_NOT_OFFERED = ("palette", "open", "mark")


class ActionProvider(Provider):
    """Titles of actions, found by any of their letters."""

    @property
    def _rows(self) -> list[tuple[Action, str]]:
        app = cast("MusterApp", self.app)
        return [(action, _hint(action, app.why_not(action))) for action in ACTIONS if action.id not in _NOT_OFFERED]

    def _run(self, action: Action) -> None:
        cast("MusterApp", self.app).action_act(action.id)

    async def discover(self) -> Hits:
        for action, hint in self._rows:
            yield DiscoveryHit(_shown(action.title, hint), partial(self._later, action), action.title)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action, hint in self._rows:
            score = matcher.match(action.title)
            if score > 0:
                yield Hit(score, _shown(action.title, hint), partial(self._later, action), action.title)

    def _later(self, action: Action) -> None:
        """When the palette is gone: an action acts on the page beneath."""
        self.app.call_after_refresh(self._run, action)


def _shown(title: str, hint: str) -> Text:
    """Two lines. As plain strings the palette would read markup in them."""
    shown = Text(printable(title))
    return shown.append("\n" + printable(hint), "dim") if hint else shown


def _hint(action: Action, reason: str) -> str:
    if reason:
        return f"not now: {reason}"
    keys = " ".join(key_label(key) for key in action.keys)
    commands = " ".join(":" + command for command in action.commands)
    return "  ".join(part for part in (keys, commands, "asks before it acts" if action.mutates else "") if part)
