"""From a wish to a change: the engine's plan, a person's yes to exactly that plan, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from console.tui.handlers.decisions import finish
from runbooks.plans.typed_plan import asks

if TYPE_CHECKING:
    from console.actions.action_types import Action
    from console.tui.app import MusterApp
    from runbooks.plans.typed_plan import ActionName


async def propose(app: MusterApp, action: Action, ids: tuple[str, ...]) -> str:
    """What to tell the person in the end. Raises MusterError when the engine refuses or does not answer."""
    name = cast("ActionName", action.id)
    return await finish(app, action, lambda: app.client().propose(asks(name, ids)), action.shell_line(ids))
