"""From a wish to a change: the engine's plan, a person's yes to exactly that plan, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from console.wishes import finish
from runbooks.plan import asks

if TYPE_CHECKING:
    from console.action import Action
    from console.app import MusterApp
    from runbooks.plan import ActionName


async def propose(app: MusterApp, action: Action, ids: tuple[str, ...]) -> str:
    """What to tell the person in the end. Raises MusterError when the engine refuses or does not answer."""
    name = cast("ActionName", action.id)
    return await finish(app, action, lambda: app.client().propose(asks(name, ids)), action.shell_line(ids))
