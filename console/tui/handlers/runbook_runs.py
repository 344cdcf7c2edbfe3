"""From a runbook to a proposal: its inputs, a dry run on a fork that is looked at, and the real one put to the vote."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from console.client.change_feed import in_thread
from console.text.terminal_text import printable
from console.views.decisions.runbook import run_lines
from engine.model.errors import RefusedError
from runbooks.procedures.queries import RunbookAsk

if TYPE_CHECKING:
    from console.tui.app import MusterApp


async def ask_inputs(app: MusterApp, runbook_id: str) -> str:
    """Ask for each input on a line of its own; an empty line leaves it to the runbook. Raises MusterError."""
    from console.tui.dialogs.decision import InputsDialog

    view = await in_thread(lambda: app.client().runbook(runbook_id))
    if not view.inputs:
        return await run(app, runbook_id, {})
    asked = [(each.name, f"{each.type}, {each.bounds}{'. ' + each.help if each.help else ''}") for each in view.inputs]
    dialog = InputsDialog(view.line.title, asked)
    if not await app.push_screen_wait(dialog):
        return f"{printable(runbook_id)}: nothing was tried"
    return await run(app, runbook_id, dialog.values)


async def run(app: MusterApp, runbook_id: str, inputs: Mapping[str, str]) -> str:
    """Try it, show what it would do, and on a yes propose exactly what the same file says now. Raises MusterError."""
    from console.tui.dialogs.confirmation import ConfirmDialog
    from console.tui.handlers.decisions import put_to_vote

    given = dict(inputs)
    tried = await in_thread(lambda: app.client().run_runbook(RunbookAsk(id=runbook_id, inputs=given)))
    if tried.proposal is None:
        raise RefusedError(f"{runbook_id} cannot be run now: {tried.refused}", "Nothing was proposed")
    words = [word for name, value in given.items() for word in ("--input", f"{name}={value}")]
    shell = shlex.join(["muster", "runbook", "run", runbook_id, *words])
    dialog = ConfirmDialog(
        tried.proposal, printable(shell), app.clock, asks_only=True, above=lambda width: run_lines(tried, width)
    )
    if not await app.push_screen_wait(dialog):
        return f"{printable(runbook_id)}: tried on a fork, nothing was proposed"
    wanted = RunbookAsk(id=runbook_id, inputs=given, dry_run=False, sha256=tried.line.sha256)
    made = await in_thread(lambda: app.client().run_runbook(wanted))
    if made.proposal is None:
        raise RefusedError(f"{runbook_id} was not proposed: {made.refused}", "See :runbooks")
    app.navigator.drill("proposal", made.proposal.id)
    return put_to_vote(made.proposal)
