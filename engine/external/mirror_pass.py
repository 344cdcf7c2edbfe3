"""One pass of a mirror over its cluster, and how its observations get to the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from engine.control import Engine
from engine.model import external_cells as seen
from engine.model.commands import Observe, Receipt
from engine.model.specs import WorkloadState

Call = Callable[[Callable[[Engine], Any]], Any]
"""Runs a function on the engine's thread (`EngineLoop.call`)."""
Observations = tuple[seen.AnySeen, ...]

MAX_TURN = 400
"""Observations of one turn of the engine: each takes it some 50 us, and others wait meanwhile."""


class MirrorPass(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over the cluster."""

    at_s: float
    jobs: int
    nodes: int
    changed: int
    """Observations that were told."""
    asked_s: float
    """Wall seconds that the cluster's answers took."""
    told_s: float
    """Wall seconds from the answers until the engine had it all."""
    unchanged: bool
    behind: int = 0
    """Jobs that moved and were not asked for yet: more moved than a glance asks for."""


def tell(call: Call, observations: Sequence[seen.AnySeen]) -> Iterator[tuple[Observations, tuple[str, ...]]]:
    """Give the engine observations, some in each turn. Yields those of a turn, with what the engine left out of
    them."""
    for at in range(0, len(observations), MAX_TURN):
        part = tuple(observations[at : at + MAX_TURN])
        yield part, call(partial(observe, part)).left_out


def observe(part: Observations, engine: Engine) -> Receipt:
    """Give the engine observations, on its thread."""
    return engine.command(Observe(seen=part))


def live_of(engine: Engine) -> list[str]:
    """Workloads that have not ended."""
    w = engine.state.workloads
    return [name for row, name in enumerate(w.ids) if not WorkloadState(w.state[row]).terminal]
