"""Who may be stopped for whom, and that exactly as many are as it takes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import commands as cmd
from engine import preemption
from engine.control import Engine
from engine.errors import MusterError
from engine.events import REQUEUE_CAUSES, Requeued
from engine.model import (
    BurstSpec,
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    TaskGroup,
    WorkloadSpec,
)
from engine.preemption import Preemption
from engine.state import BOUND

GPU = "gpu_milli"
HOUR = 3_600_000
CLASSES = (
    PriorityClassSpec(name="low", value=100),
    PriorityClassSpec(name="normal", value=500, preemption="lower"),
    PriorityClassSpec(name="polite", value=500),
    PriorityClassSpec(name="high", value=900, preemption="lower"),
    PriorityClassSpec(name="firm", value=100, preemptible=False),
)


def cell(*queues: QueueSpec, nodes: int = 4) -> CellSpec:
    pool = PoolSpec(
        name="gpu", capacity=Resources(cpu_milli=64_000, memory_mib=512_000, gpu_milli=8000), gpu_model="H100"
    )
    return CellSpec(
        pools=(pool,),
        nodes=tuple(NodeSpec(id=f"n{i}", pool="gpu") for i in range(nodes)),
        queues=(QueueSpec(name="root"), *queues),
        priority_classes=CLASSES,
    )


def queue(name: str, devices: int | None = None, **rest: Any) -> QueueSpec:
    nominal = {} if devices is None else {GPU: devices * 1000}
    return QueueSpec(name=name, **{"parent": "root", "nominal": nominal, **rest})


def work(name: str, queue: str = "a", devices: int = 8, count: int = 1, priority: str = "low", **rest: Any) -> Any:
    group = TaskGroup(count=count, request=Resources(cpu_milli=1000, gpu_milli=devices * 1000))
    estimate = rest.pop("estimate_ms", 10 * HOUR)
    return WorkloadSpec(
        id=name,
        queue=queue,
        priority_class=priority,
        estimate_ms=estimate,
        simulated_runtime_ms=100 * HOUR,
        **{"groups": (group,), **rest},
    )


def running(spec: CellSpec, *workloads: WorkloadSpec) -> Engine:
    """The cell with all of these running."""
    engine = Engine.open(None, cell=spec)
    engine.command(cmd.Submit(workloads=workloads))
    assert all(engine.state.is_bound(row) for row in range(len(workloads))), "the cell is too small for the test"
    return engine


def search(engine: Engine, preemptor: WorkloadSpec) -> Preemption | None:
    """Whom the policy would have stopped for it. Asked of a held workload, so that the engine does not act by itself.
    """
    engine.command(cmd.Submit(workloads=(WorkloadSpec(**{**_fields(preemptor), "held": True}),)))
    state = engine.state
    row = state.workloads.row_of[preemptor.id]
    workload_class = state.workloads.class_at(row)
    charge = state.charge_if(row, workload_class.shapes, workload_class.least)
    before = state.digest()
    found = preemption.find(state, row, workload_class.shapes, workload_class.least, charge)
    assert state.digest() == before, "asking has changed the state"
    return found


def _fields(spec: WorkloadSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


def victims(engine: Engine, preemptor: WorkloadSpec) -> dict[str, str] | None:
    """Id -> cause."""
    found = search(engine, preemptor)
    if found is None:
        return None
    return {engine.state.workloads.ids[row]: REQUEUE_CAUSES[cause] for row, cause in found.victims}


ONE_QUEUE = cell(queue("a"))


def test_lower_priority_of_the_own_queue_makes_room_and_no_more_of_it_than_needed():
    engine = running(ONE_QUEUE, *(work(f"w{i}") for i in range(4)))
    assert victims(engine, work("p", count=2, priority="high")) == {"w2": "lower priority", "w3": "lower priority"}


@pytest.mark.parametrize("priority", ["low", "polite"])
def test_equals_do_not_preempt_each_other_nor_does_who_must_not(priority):
    engine = running(ONE_QUEUE, *(work(f"w{i}") for i in range(4)))
    assert victims(engine, work("p", priority=priority)) is None


STAT=[0,0,0,0]
def crowd(rng: random.Random) -> CellSpec:
    """root -> (a, b, c -> (c1, c2)), with quotas for about what there is, or without."""
    def tree_queue(name: str, limited: bool) -> QueueSpec:
        some = lambda: {GPU: rng.choice([0, 4, 8]) * 1000} if rng.random() < 0.3 else {}
        return QueueSpec(
            name=name,
            parent="c" if name in ("c1", "c2") else "root",
            nominal={GPU: rng.choice([0, 4, 8, 12]) * 1000} if limited else {},
            borrowing_limit=some() if limited else {},
            lending_limit=some() if limited else {},
            reclaim=rng.choice(["any", "any", "never", "lower_priority"]),
            min_runtime_ms=rng.choice([0, 0, 0, 90_000]),
            disruptions=rng.choice([-1, -1, -1, 1, 2]),
        )
    limited = rng.random() < 0.8
    return cell(*(tree_queue(name, limited) for name in ("a", "b", "c", "c1", "c2")), nodes=rng.choice([2, 3, 4]))


def some_work(rng: random.Random, name: str, priorities: Sequence[str]) -> WorkloadSpec:
    groups = tuple(
        TaskGroup(
            name=f"g{i}",
            count=rng.choice([1, 1, 2, 3]),
            request=Resources(
                cpu_milli=rng.choice([1000, 4000, 30_000]), gpu_milli=rng.choice([0, 300, 500, 1000, 2000, 4000, 8000])
            ),
        )
        for i in range(rng.choice([1, 1, 1, 2]))
    )
    return WorkloadSpec(
        id=name,
        queue=rng.choice(["a", "b", "c1", "c2"]),
        groups=groups,
        priority_class=rng.choice(priorities),
        checkpoint_interval_ms=rng.choice([0, 0, 60_000]),
        checkpoint_cost_ms=rng.choice([0, 0, 5000]),
        estimate_ms=rng.choice([60_000, HOUR]),
        simulated_runtime_ms=HOUR,
    )


@settings(max_examples=400, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**9))
def test_victims_are_eligible_enough_and_all_needed(seed):
    rng = random.Random(seed)
    engine = Engine.open(None, cell=crowd(rng))
    engine.command(cmd.SetPolicy(policy="fcfs"))
    for i in range(rng.randrange(4, 24)):
        with suppress(MusterError):
            engine.command(cmd.Submit(workloads=(some_work(rng, f"w{i}", ["low", "low", "polite", "firm"]),)))
        if rng.random() < 0.1:
            engine.advance(engine.now_ms + 40_000)
    for i in range(3):
        check_search(engine, some_work(rng, f"p{i}", ["normal", "high"]))


def check_search(engine, spec):
    try:
        found = search(engine, spec)
    except MusterError:
        return
    STAT[0]+=1
    state = engine.state
    w, queues = state.workloads, state.queues
    row = w.row_of[spec.id]
    workload_class = w.class_at(row)
    def fits(some: list[int]) -> bool:
        return preemption.lets_start(state, row, workload_class.shapes, workload_class.least, some)
    if found is None:
        return
    STAT[1]+=1; STAT[2]+=len(found.victims); STAT[3]=max(STAT[3],len(found.victims))
    rows = [victim for victim, _ in found.victims]
    assert rows == sorted(set(rows))
    assert rows
    assert fits(rows)
    for victim in rows:
        assert not fits([other for other in rows if other != victim])
        assert state.is_bound(victim)
        assert w.priority_classes[w.priority[victim]].preemptible
        spec = queues.specs[w.queue[victim]]
        assert state.now_ms - w.started[victim] >= spec.min_runtime_ms
        if w.queue[victim] == w.queue[row]:
            assert w.value_at(victim) < w.value_at(row)
        else:
            assert queues.specs[w.queue[row]].reclaim != "never"
            assert any(queues.borrowed(w.queue[victim], slot) for slot in range(queues.slots))
    for q, spec in enumerate(queues.specs):
        if spec.disruptions >= 0:
            assert sum(w.queue[v] == q for v in rows) <= spec.disruptions
    print(STAT)
