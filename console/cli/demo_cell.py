"""A generated AI cell for `muster --demo`: days follow each other, so the load never ends and survives restarts.

One setting is wrong, as happens in real cells: a new team may borrow nothing, so its second training waits beside the
unused quota of a team that has not begun. Only the engine and the recommender report it, after the half hour that such
a wait must last. What a demo has behind it when it begins, and its incident, is in `console.cli.demo_past`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

import msgspec

from engine.control import Engine
from engine.model.commands import AnyCommand
from engine.model.errors import NotFoundError
from engine.model.spec_parts import DAY_MS, HOUR_MS, MICROUSD, MINUTE_MS
from engine.model.specs import BudgetSpec, CellSpec, QueueSpec, Resources, TaskGroup, WorkloadSpec
from engine.traces.generated_day import ai_cell, ai_day

Happening = tuple[int, WorkloadSpec | AnyCommand]
"""(cell ms, workload to submit or what is commanded)"""
NODES = 400
SPEED = 10.0
"""An hour passes in six minutes: something happens every second, and what waits still waits when it has been read."""
FIRST_MIDNIGHT_MS = 1_776_038_400_000
"""2026-04-13 00:00 UTC: the generator's first day."""
START_MS = FIRST_MIDNIGHT_MS + 9 * HOUR_MS + 30 * MINUTE_MS
"""Cell time at which a demo begins: when people come to work, so that queues form while somebody watches."""
WARM_MS = START_MS - 2 * HOUR_MS
"""Since when a demo that has a past has its whole load."""

LABS, AGENTS, ROBOTICS = "labs", "labs/agents", "labs/robotics"
_AGENT_NODE = Resources(gpu_milli=8000, cpu_milli=176_000, memory_mib=1600 * 1024)
_OBJECTIVES = {
    "product": {"start_within_ms": 5 * MINUTE_MS, "objective_permille": 990},
    "research/vision": {"start_within_ms": 60 * MINUTE_MS, "objective_permille": 900},
    "platform/ci": {"start_within_ms": 15 * MINUTE_MS},
}
_NODE_DAYS = {"research": 310 * MICROUSD, "product": 150 * MICROUSD}
"""Queue -> what it may spend in a day for each node of the cell."""
_AGENT_RUNS = (("agent-rl-32b", 6 * HOUR_MS), ("agent-rl-8b", 4 * HOUR_MS))
"""What the new team submits every morning, in this order: the first is all that its own quota holds."""


def cell(nodes: int = NODES) -> CellSpec:
    """The generated cell, and a department of two teams: one has begun and may borrow nothing, the other has not."""
    generated = ai_cell(nodes)
    gpus = _AGENT_NODE.gpu_milli * _gang(nodes)
    cpus = 2 * _AGENT_NODE.cpu_milli * _gang(nodes)
    labs = (
        QueueSpec(name=LABS),
        QueueSpec(
            name=AGENTS, parent=LABS, nominal={"gpu_milli": gpus, "cpu_milli": cpus}, borrowing_limit={"gpu_milli": 0}
        ),
        QueueSpec(name=ROBOTICS, parent=LABS, nominal={"gpu_milli": 2 * gpus, "cpu_milli": cpus}),
    )
    queues = tuple(msgspec.structs.replace(queue, **_OBJECTIVES.get(queue.name, {})) for queue in generated.queues)
    budgets = tuple(
        BudgetSpec(name=queue, scope="queue", of=queue, limit_microusd=per_node * nodes, window_ms=DAY_MS)
        for queue, per_node in _NODE_DAYS.items()
    )
    return msgspec.structs.replace(generated, queues=(*queues, *labs), budgets=budgets)


def feed(engine: Engine, seed: int, there_ms: int = START_MS) -> Iterator[Happening]:
    """Load from the engine's present time on, day after day, for its number of nodes. What is there when the first day
    begins is there at `there_ms`."""
    overview = engine.overview()
    nodes = sum(pool.nodes for pool in overview.pools)
    after_ms = _until(engine)
    days = _days(seed, nodes, after_ms, there_ms)
    if not _has_labs(engine):
        return ahead(engine, days)
    return ahead(engine, heapq.merge(days, _mornings(nodes, after_ms), key=lambda happening: happening[0]))


def _has_labs(engine: Engine) -> bool:
    """False for a cell that was begun before there was such a team, or for another cell."""
    try:
        engine.queue(AGENTS)
    except NotFoundError:
        return False
    return True


def ahead(engine: Engine, happenings: Iterator[Happening]) -> Iterator[Happening]:
    """The part of a load that has not happened to the engine yet."""
    after_ms = _until(engine)
    return (happening for happening in happenings if happening[0] > after_ms)


def _until(engine: Engine) -> int:
    """Time up to which the load has been submitted: the present, unless nothing has been."""
    return engine.now_ms if any(engine.overview().states.values()) else engine.now_ms - 1


def _days(seed: int, nodes: int, after_ms: int, there_ms: int) -> Iterator[Happening]:
    for day in count(max(0, after_ms - FIRST_MIDNIGHT_MS) // DAY_MS):
        midnight = FIRST_MIDNIGHT_MS + day * DAY_MS
        for offset_ms, spec in ai_day(seed, nodes=nodes, day=day)[1]:
            yield (there_ms if day == 0 and offset_ms == 0 else midnight + offset_ms), spec


def _mornings(nodes: int, after_ms: int) -> Iterator[Happening]:
    """Submissions of the team AGENTS, at the same time every day."""
    for day in count(max(0, after_ms - START_MS) // DAY_MS):
        for number, (name, run_ms) in enumerate(_AGENT_RUNS, 1):
            yield (
                START_MS + day * DAY_MS,
                WorkloadSpec(
                    id=f"agents-{day * len(_AGENT_RUNS) + number:04d}", name=name, queue=AGENTS, tenant="lumen",
                    team="agents", tags={"kind": "training"}, priority_class="normal",
                    groups=(TaskGroup(count=_gang(nodes), request=_AGENT_NODE, gpu_models=("H100",)),),
                    estimate_ms=run_ms, checkpoint_interval_ms=30 * MINUTE_MS, simulated_runtime_ms=run_ms,
                ),
            )  # fmt: skip


def _gang(nodes: int) -> int:
    """Whole nodes that one of their trainings takes."""
    return max(1, nodes // 100)
