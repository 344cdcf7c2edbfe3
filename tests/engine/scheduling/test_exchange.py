"""Runs of like preemptors: they take the same victims as if each had searched the cell for itself."""

from __future__ import annotations

import random

import pytest

from engine.control import Engine
from engine.model.commands import Submit
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    Settings,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
)
from engine.state.invariants import faults_of
from tests.support.invariants import check_state

SIZES = (Resources(cpu_milli=4000), Resources(cpu_milli=2000))


def cell(draw: random.Random, nodes: int, **queue: object) -> CellSpec:
    """Low priorities and one that preempts them, with limits that are sometimes met."""
    return CellSpec(
        pools=(PoolSpec(name="cpu", capacity=SIZES[0]), PoolSpec(name="closed", capacity=SIZES[0])),
        nodes=tuple(NodeSpec(id=f"n{i}", pool="cpu" if i % 10 else "closed") for i in range(nodes)),
        queues=(QueueSpec(name="ai", nominal={"cpu_milli": nodes * 4000}, **queue),),  # type: ignore[arg-type]
        priority_classes=(
            PriorityClassSpec(name="idle", value=1),
            PriorityClassSpec(name="low", value=10),
            PriorityClassSpec(name="kept", value=10, preemptible=False),
            PriorityClassSpec(name="high", value=100, preemption="lower"),
            PriorityClassSpec(name="higher", value=200, preemption="lower"),
        ),
        settings=Settings(preempt_after_ms=draw.choice((0, 0, 30_000))),
    )


def work(name: str, priority: str, draw: random.Random, *, size: int = 0, tasks: int = 1) -> WorkloadSpec:
    return WorkloadSpec(
        id=name,
        queue="ai",
        groups=(TaskGroup(count=tasks, request=SIZES[size], pools=("cpu",) if priority == "high" else ()),),
        priority_class=priority,
        estimate_ms=draw.choice((0, 400_000)),
        checkpoint_interval_ms=draw.choice((0, 0, 60_000)),
        checkpoint_cost_ms=draw.choice((0,) * 40 + (5_000,)),
        simulated_runtime_ms=draw.randint(300, 900) * 1000,
    )


def played(seed: int, most_at_once: int) -> Engine:
    draw = random.Random(seed)
    nodes = draw.choice((20, 60, 90))
    limit = draw.choice(({}, {}, {"disruptions": nodes // 3}, {"min_runtime_ms": 120_000}))
    engine = Engine.open(None, seed=seed, cell=cell(draw, nodes, **limit))
    engine.scheduler.binder.max_at_once = most_at_once
    odd = draw.choice((0, 0, 0, 1))
    for i in range(nodes):
        engine.advance(engine.now_ms + draw.randint(0, 5_000))
        priority = draw.choice(("idle", "low", "low", "low", "kept"))
        size = draw.choice((0, 1)) if odd else 0
        engine.command(Submit(workloads=(work(f"low{i}", priority, draw, size=size),)))
    for turn in range(4):
        engine.advance(engine.now_ms + draw.randint(1_000, 90_000))
        specs = [
            work(f"high{turn}-{i}", draw.choice(("high", "high", "high", "higher")), random.Random(seed))
            for i in range(draw.randint(1, nodes // 3))
        ]
        if draw.random() < 0.3:
            specs.append(work(f"gang{turn}", "high", draw, tasks=5))
        engine.commands([Submit(workloads=(spec,)) for spec in specs])
        check_state(engine.state)
        assert faults_of(engine.state) == []
    return engine


@pytest.mark.parametrize("seed", range(6))
def test_runs_take_the_victims_that_single_searches_find(seed: int) -> None:
    together, alone = played(seed, 512), played(seed, 1)
    assert together.state.digest() == alone.state.digest()
    assert together.state.workloads.evictions == alone.state.workloads.evictions


def test_a_run_takes_the_cheapest_first_and_the_youngest_of_equals() -> None:
    nodes = 200
    plain = CellSpec(
        pools=(PoolSpec(name="cpu", capacity=SIZES[0]),),
        nodes=tuple(NodeSpec(id=f"n{i}", pool="cpu") for i in range(nodes)),
        queues=(QueueSpec(name="ai", nominal={"cpu_milli": nodes * 4000}),),
        priority_classes=(
            PriorityClassSpec(name="low", value=10),
            PriorityClassSpec(name="high", value=100, preemption="lower"),
        ),
        settings=Settings(preempt_after_ms=0),
    )
    engine = Engine.open(None, cell=plain)
    groups = (TaskGroup(count=1, request=SIZES[0]),)

    def submit(name: str, count: int, priority: str, checkpoint_ms: int = 0) -> None:
        specs = [
            WorkloadSpec(
                id=f"{name}{i}",
                queue="ai",
                groups=groups,
                priority_class=priority,
                checkpoint_interval_ms=checkpoint_ms,
                simulated_runtime_ms=10_000_000,
            )
            for i in range(count)
        ]
        engine.command(Submit(workloads=tuple(specs)))

    submit("unsaved", 100, "low")
    submit("saved", 100, "low", checkpoint_ms=60_000)
    engine.advance(90_000)
    submit("high", 150, "high")
    w = engine.state.workloads
    assert w.state_counts[WorkloadState.RUNNING] == nodes
    out = [name for name, count in zip(w.ids, w.evictions, strict=True) if count]
    assert out == [f"unsaved{i}" for i in range(50, 100)] + [f"saved{i}" for i in range(100)]
    check_state(engine.state)
