"""Trials of what is proposed, on the cluster that would carry it, before anybody votes.

The cluster's own webhooks, policies and owners of fields speak: what they refuse is refused here, with their words, and
what they say otherwise is shown with the proposal. The engine goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.model.commands import CARRIED
from runbooks.actions import catalogue
from runbooks.gate.composition import Composed

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.loop import EngineLoop
    from engine.model.commands import AnyCommand
    from runbooks.gate.approval_gate import Gate
    from runbooks.plans.typed_plan import Request, Step

MAX_KEPT = 500


class DryRuns:
    """`rehearse` asks the cluster, and raises RefusedError for what it refuses, UnreachableError where it does not
    answer."""

    def __init__(self, loop: EngineLoop, gate: Gate, rehearse: Callable[[AnyCommand], tuple[str, ...]]) -> None:
        self._loop = loop
        self._gate = gate
        self._rehearse = rehearse

    def run(self, request: Request) -> None:
        """Try what is requested. Raises RefusedError, UnreachableError, and what proposing it would raise."""
        composed = self._loop.call_beside(lambda _: self._gate.composition(request), Composed)
        commands = self._loop.call(lambda engine: _commands(engine, composed.steps))
        said = {msgspec.msgpack.encode(command): self._rehearse(command) for command in commands}
        self._loop.call(lambda engine: _keep(engine, said))


def _commands(engine: Engine, steps: Sequence[Step]) -> list[AnyCommand]:
    acts = [step.act for step in steps if catalogue.find(step.act.action).command]
    carried = CARRIED.get(engine.state.settings.decided_by, ())
    return [command for command in map(catalogue.command, acts) if isinstance(command, carried)]


def _keep(engine: Engine, said: dict[bytes, tuple[str, ...]]) -> None:
    for command, lines in said.items():
        engine.dry_runs.pop(command, None)
        engine.dry_runs[command] = lines
    while len(engine.dry_runs) > MAX_KEPT:
        del engine.dry_runs[next(iter(engine.dry_runs))]
