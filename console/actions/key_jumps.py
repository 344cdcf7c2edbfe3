"""Keys behind `g`: `gg` to the first row, `g` and a letter to a page, `gu` to the page before.

The prefix waits as long as it takes; Esc, or a key that leads nowhere, ends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from console.actions.action_types import Action

PREFIX, FIRST, BEFORE = "g", "g", "u"


class Jump(NamedTuple):
    """What a key behind the prefix means."""

    kind: Literal["first", "before", "page", "nothing"]
    action: str = ""
    """Id of the action of a page."""


class Jumps:
    """Whether the prefix waits for its second key, and what that may be."""

    def __init__(self, actions: Iterable[Action]) -> None:
        self.pages = {action.jump: action for action in actions if action.jump}
        self.waiting = False

    def begin(self) -> None:
        self.waiting = True

    def end(self, key: str, character: str | None) -> Jump:
        """The second key. Whatever it is, the prefix no longer waits."""
        self.waiting = False
        if key == FIRST:
            return Jump("first")
        if key == BEFORE:
            return Jump("before")
        action = self.pages.get(character or key) or self.pages.get(key)
        return Jump("page", action.id) if action is not None else Jump("nothing")

    def offers(self) -> list[tuple[str, str, str]]:
        """(key, title, id of the action) for the footer."""
        pages = [(key, action.title.lower(), action.id) for key, action in sorted(self.pages.items())]
        return [(FIRST, "first row", ""), *pages, (BEFORE, "the page before", "page_before"), ("esc", "no", "")]
