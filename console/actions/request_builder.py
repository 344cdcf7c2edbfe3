"""From words behind an action's name, in the shell or the `:` bar, to a proposal of the engine."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import msgspec

from console.forms.action_arguments import action_arguments, declared, typed
from console.forms.fields import clock_of
from console.forms.shell_parser import ShellParser
from engine.model.errors import SpecError
from runbooks.plans.typed_plan import Proposal, Request, Source, StepRequest

if TYPE_CHECKING:
    from console.client.protocol import Client
    from engine.model.consolidation_queries import Consolidation, ConsolidationRequest
    from engine.model.spec_parts import BudgetSpec
    from engine.model.specs import QueueSpec


class LineParser(ShellParser):
    """Says what is wrong with a line of the `:` bar instead of ending the program."""

    def error(self, message: str) -> NoReturn:
        raise SpecError("", message)


def parse(name: str, line: str) -> argparse.Namespace:
    """Read the argument of an action's `:` line with the shell's own parser. Raises SpecError."""
    parser = LineParser(prog=f":{name}", add_help=False)
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
    """The request for a typed action. `suggestion`: id of the one it follows. Raises MusterError."""
    request = _typed(client, name, arguments, reason or suggestion)
    return following(msgspec.structs.replace(request, reason=reason), suggestion)


def following(request: Request, suggestion: str) -> Request:
    """The request as one that follows that suggestion; unchanged for an empty id."""
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
