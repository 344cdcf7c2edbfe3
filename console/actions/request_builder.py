"""From words behind an action's name, in the shell or the `:` bar, to a proposal of the engine, and on to its end."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import msgspec

from console.arguments.actions import action_arguments, declared, typed
from console.arguments.parsing import ShellParser
from console.forms.datetimes import clock_of
from engine.model.errors import MusterError, SpecError
from runbooks.plans.typed_plan import Proposal, Request, Source, StepRequest

if TYPE_CHECKING:
    from console.actions.action_types import Action
    from console.client.protocol import Client
    from console.tui.app import MusterApp
    from console.views.sections import Line
    from engine.model.money import BudgetSpec
    from engine.model.queries import Consolidation, ConsolidationRequest
    from engine.model.specs import QueueSpec

LAST_WORD_S = 1.0
"""How long the end of the console waits for a withdrawal to arrive."""


class LineParser(ShellParser):
    """Says what is wrong with a line of the `:` bar instead of ending the program."""

    def error(self, message: str) -> NoReturn:
        raise SpecError("", message)


def parse(name: str, line: str) -> argparse.Namespace:
    """What stands behind an action's name in the `:` bar, read as the shell reads it. Raises SpecError."""
    parser = LineParser(prog=f":{name}", add_help=False, allow_abbrev=False)
    action_arguments(parser, declared(name))
    try:
        return parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise SpecError("", str(error)) from None


def propose(
    client: Client, name: str, arguments: argparse.Namespace, reason: str = "", suggestion: str = ""
) -> Proposal:
    """The engine's plan for what was typed. `suggestion`: id of the one that it is. Raises MusterError."""
    return client.propose(wanted(client, name, arguments, reason, suggestion))


def wanted(client: Client, name: str, arguments: argparse.Namespace, reason: str = "", suggestion: str = "") -> Request:
    """What was typed, as it is asked of the engine. `suggestion`: id of the one that it is. Raises MusterError."""
    request = _typed(client, name, arguments, reason or suggestion)
    return following(msgspec.structs.replace(request, reason=reason), suggestion)


def following(request: Request, suggestion: str) -> Request:
    """The same as what a suggestion of that id asks for; none where it is empty."""
    return msgspec.structs.replace(request, source=Source(kind="suggestion", id=suggestion)) if suggestion else request


def _typed(client: Client, name: str, arguments: argparse.Namespace, reason: str) -> Request:
    action = declared(name)
    given = typed(action, arguments, clock_of(client)) | {"reason": reason}
    act = action.act(tuple(given["ids"]), given) if action.read is None else action.read(given, SeenThrough(client))
    return Request(steps=(StepRequest(act=act),), reason=reason)


class SeenThrough:
    """The cell as a client shows it: what declarations ask of it to read what was typed."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def name(self) -> str:
        return self._client.overview().cell

    def queue(self, name: str) -> QueueSpec:
        return self._client.queue(name).spec

    def budgets(self) -> Iterator[BudgetSpec]:
        return (line.spec for line in self._client.budgets().budgets)

    def consolidation(self, request: ConsolidationRequest) -> Consolidation:
        return self._client.consolidation(request)


async def finish(
    app: MusterApp,
    action: Action,
    ask: Callable[[], Proposal],
    shell: str,
    *,
    found: Callable[[int], Sequence[Line]] | None = None,
    follow: bool = False,
) -> str:
    """Have the engine's plan confirmed and done; or put to the vote, where the policy wants others than who asks. What
    was not wanted is withdrawn. `found`: what led to it. `follow`: go to its page, which shows how far it is and how to
    take it back. Gives what to tell the person in the end. Raises MusterError."""
    from console.client.change_feed import in_thread
    from console.tui.dialogs.confirmation import ConfirmDialog
    from console.tui.handlers.decisions import approve_own, own_yes, put_to_vote

    def withdraw() -> None:
        # Whether or not the engine can be told: what nobody votes on expires.
        with suppress(MusterError):
            app.client().cancel(proposal.id)

    proposal = await in_thread(ask)
    dialog = ConfirmDialog(proposal, shell, app.clock, found=found)
    try:
        wanted = await app.push_screen_wait(dialog)
        yes = await own_yes(app, proposal, dialog.plan_width) if wanted and dialog.alone else None
    except asyncio.CancelledError:
        # The console ends while it asks: nothing can be awaited any more.
        telling = threading.Thread(target=withdraw, daemon=True, name="muster-withdraw")
        telling.start()
        telling.join(LAST_WORD_S)
        raise
    except MusterError:
        await in_thread(withdraw)
        raise
    if not wanted or (dialog.alone and yes is None):
        await in_thread(withdraw)
        return f"{action.title}: nothing was changed"
    if follow:
        app.navigator.drill("proposal", proposal.id)
    return put_to_vote(proposal) if yes is None else await approve_own(app, proposal, *yes)
