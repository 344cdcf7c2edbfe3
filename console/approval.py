"""From a wish to a change: the engine's plan, a person's yes to exactly that plan, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from console.dialogs import ConfirmDialog
from console.feed import in_thread

if TYPE_CHECKING:
    from console.actions import Action
    from console.app import MusterApp
    from runbooks.plan import ActionName


async def propose(app: MusterApp, action: Action, ids: tuple[str, ...]) -> str:
    """What to tell the person in the end. Raises MusterError when the engine refuses or does not answer."""
    name = cast("ActionName", action.id)
    proposal = await in_thread(lambda: app.client().propose(name, ids))
    if not await app.push_screen_wait(ConfirmDialog(proposal, action.shell_line(ids), app.clock)):
        return f"{action.title}: nothing was changed"
    outcome = await in_thread(lambda: app.client().approve(proposal.id, proposal.digest))
    return "\n".join([f"{proposal.title}: done", *outcome.verified[:5]])
