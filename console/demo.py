"""The demo: a generated AI cell whose days follow each other, so that its load never ends and survives restarts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from engine.commands import AnyCommand
from engine.control import Engine
from engine.model import WorkloadSpec
from engine.traces.generate import DAY_MS, HOUR_MS, MINUTE_MS, ai_day

Happening = tuple[int, WorkloadSpec | AnyCommand]
"""(cell ms, workload to submit or what is commanded)"""
NODES = 400
SPEED = 60.0
"""A day passes in 24 minutes: something happens every second, and nothing too fast to follow."""
_FIRST_MIDNIGHT_MS = 1_776_038_400_000
"""2026-04-13 00:00 UTC: the generator's first day."""
START_MS = _FIRST_MIDNIGHT_MS + 9 * HOUR_MS + 30 * MINUTE_MS
"""Cell time at which a demo begins: when people come to work, so that queues form while somebody watches."""


def feed(engine: Engine, seed: int) -> Iterator[Happening]:
    """What comes from the engine's present time on, day after day, for the nodes the engine has."""
    nodes = sum(pool.nodes for pool in engine.overview().pools)
    return ahead(engine, _days(seed, nodes, _until(engine)))


def ahead(engine: Engine, happenings: Iterator[Happening]) -> Iterator[Happening]:
    """Of a load that goes by cell time, what has not happened to the engine yet."""
    after_ms = _until(engine)
    return (happening for happening in happenings if happening[0] > after_ms)


def _until(engine: Engine) -> int:
    """What comes at this very moment has been submitted already, unless nothing has."""
    return engine.now_ms if any(engine.overview().states.values()) else engine.now_ms - 1


def _days(seed: int, nodes: int, after_ms: int) -> Iterator[Happening]:
    for day in count(max(0, after_ms - _FIRST_MIDNIGHT_MS) // DAY_MS):
        midnight = _FIRST_MIDNIGHT_MS + day * DAY_MS
        for offset_ms, spec in ai_day(seed, nodes=nodes, day=day)[1]:
            # What is there when the first day begins is there when the demo does.
            yield (START_MS if day == 0 and offset_ms == 0 else midnight + offset_ms), spec
