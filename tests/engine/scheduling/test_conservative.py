"""Conservative backfill: starts as promised, on nodes of every kind."""

from __future__ import annotations

import pytest
from cells import CLASSES, submit, workload
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import check_state

from engine.control import Engine
from engine.model.commands import Cancel, Cordon, SetPolicy, Submit
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    PoolSpec,
    QueueSpec,
    Resources,
    Settings,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
)
from engine.scheduling.conservative_backfill import HORIZON_MS, Conservative
from engine.state.workloads import UNBOUNDED_MS

MINUTE = 60_000
DEPTH = 100


def engine_of(pools: tuple[PoolSpec, ...], nodes: list[str], depth: int = DEPTH) -> Engine:
    """A cell with nodes of the pools named, under conservative backfill."""
    cell = CellSpec(
        name="test",
        pools=pools,
        nodes=tuple(NodeSpec(id=f"n{i}", pool=pool) for i, pool in enumerate(nodes)),
        queues=(QueueSpec(name="a"),),
        priority_classes=CLASSES,
        settings=Settings(reservation_depth=depth),
    )
    engine = Engine.open(None, cell=cell)
    engine.command(SetPolicy(policy="conservative"))
    return engine


def cpu_nodes(count: int, cpus: int, depth: int = DEPTH) -> Engine:
    pool = PoolSpec(name="cpu", capacity=Resources(cpu_milli=cpus * 1000, memory_mib=cpus))
    return engine_of((pool,), ["cpu"] * count, depth)


def job(name: str, count: int, minutes: int, *, run: int = 0, cpu: int = 1000, memory: int = 0) -> Submit:
    """`run`: minutes it really takes, if not what is expected."""
    spec = workload(name, count=count, cpu=cpu, memory=memory, estimate=minutes * MINUTE, run=(run or minutes) * MINUTE)
    return submit(spec)


def plan_of(engine: Engine, depth: int = DEPTH) -> dict[int, int]:
    """Row -> promised start, of a plan made from scratch; nothing that waits may start now."""
    state = engine.state
    w = state.workloads
    plan = Conservative(state, depth)
    for row, now in enumerate(w.state):
        if now == WorkloadState.QUEUED:
            assert not plan.may_start(row), f"row {row} may start now"
            plan.promise(row)
    return plan.starts


def started(engine: Engine) -> dict[str, int]:
    """Minute at which each workload started."""
    w = engine.state.workloads
    return {name: w.started[row] // MINUTE for row, name in enumerate(w.ids) if w.started[row] >= 0}


def drain(engine: Engine) -> None:
    while (due := engine.next_due()) is not None:
        engine.advance(due)


GPU = PoolSpec(
    name="gpu",
    capacity=Resources(cpu_milli=8000, memory_mib=64, gpu_milli=3000, disk_mib=50),
    gpu_model="H100",
    price_microusd_hour=100,
)
BIG = PoolSpec(name="big", capacity=Resources(cpu_milli=6000, memory_mib=200), price_microusd_hour=10)
SMALL = PoolSpec(name="small", capacity=Resources(cpu_milli=3000, memory_mib=40), price_microusd_hour=1)
requests = st.builds(
    Resources,
    cpu_milli=st.sampled_from([500, 1000, 2500, 3000]),
    memory_mib=st.sampled_from([0, 10, 40, 64]),
    gpu_milli=st.sampled_from([0, 0, 0, 1000, 2000]),
    disk_mib=st.sampled_from([0, 0, 30]),
)
shares = st.builds(
    Resources, cpu_milli=st.sampled_from([500, 3000]), gpu_milli=st.sampled_from([0, 250, 400, 500, 1000, 3000])
)
groups = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=2)
"""(tasks, which request) of each group"""
arrivals = st.tuples(st.integers(0, 3), st.integers(1, 12), groups)
"""(minutes since the one before, run time, groups)"""


@pytest.mark.thorough
@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(
    nodes=st.lists(st.sampled_from(["gpu", "gpu", "big", "small"]), min_size=2, max_size=6),
    kinds=st.lists(requests, min_size=5, max_size=5, unique=True)
    | st.lists(shares, min_size=5, max_size=5, unique=True),
    rows=st.lists(arrivals, min_size=5, max_size=25),
)
def test_while_estimates_hold_everything_starts_when_it_was_first_promised(nodes, kinds, rows) -> None:
    engine = engine_of((GPU, BIG, SMALL), nodes)
    # All kinds are known before the first promise: which timeline is used, and whether devices are named, is settled.
    for i, kind in enumerate(kinds):
        engine.commands([submit(spec_of(f"k{i}", [(1, kind)], 1, held=True))])
    promised: dict[int, int] = {}
    now = 0
    for i, (after, run, asked) in enumerate(rows):
        now += after * MINUTE
        engine.advance(now)
        engine.commands([submit(spec_of(f"w{i}", [(count, kinds[kind]) for count, kind in asked], run))])
        check_state(engine.state)
        starts = plan_of(engine)
        assert all(promised.get(row, start) == start for row, start in starts.items()), "a promise was moved"
        promised |= starts
    drain(engine)
    w = engine.state.workloads
    assert {row: w.started[row] for row in promised} == promised


def spec_of(name: str, asked: list[tuple[int, Resources]], minutes: int, *, held: bool = False) -> WorkloadSpec:
    return WorkloadSpec(
        id=name,
        queue="a",
        groups=tuple(TaskGroup(name=f"g{g}", count=count, request=kind) for g, (count, kind) in enumerate(asked)),
        estimate_ms=minutes * MINUTE,
        simulated_runtime_ms=minutes * MINUTE,
        held=held,
    )


@pytest.mark.parametrize("other", [False, True], ids=["slots", "nodes"])
def test_a_short_one_goes_ahead_and_a_long_one_that_would_delay_any_promise_does_not(other: bool) -> None:
    engine = cpu_nodes(1, 4)
    if other:
        engine.commands([job("other", 1, 1, memory=1), Cancel(ids=("other",))])
    engine.commands([job("runs", 3, 10), job("first", 4, 10), job("second", 3, 10)])
    engine.commands([job("long", 1, 11), job("short", 1, 10)])
    assert started(engine) | {"runs": 0, "short": 0} == started(engine)
    assert "long" not in started(engine)
    drain(engine)
    assert started(engine) | {"first": 10, "second": 20, "long": 20} == started(engine)


def test_beyond_the_depth_nothing_is_promised_but_what_delays_no_promise_starts() -> None:
    engine = cpu_nodes(1, 4, depth=1)
    engine.commands([job("runs", 3, 10), job("first", 3, 10), job("second", 4, 10), job("long", 1, 40)])
    assert set(started(engine)) == {"runs", "long"}, "it delays only the second, which is promised nothing"
    assert list(plan_of(engine, depth=1).values()) == [10 * MINUTE]


def test_a_promise_names_nodes_that_stay_free_for_it_throughout() -> None:
    engine = cpu_nodes(2, 2)
    # One CPU is free on each node for good, yet never two on one node before minute 10.
    engine.commands([job("a", 1, 10, cpu=1000), job("b", 1, 20, cpu=1100), job("wide", 1, 5, cpu=2000)])
    assert list(plan_of(engine).values()) == [10 * MINUTE]
    engine.commands([job("narrow", 1, 30, cpu=900)])
    w, a = engine.state.workloads, engine.state.allocations
    nodes = {name: a.node[w.first_allocation[w.row_of[name]]] for name in ("a", "b", "narrow")}
    assert nodes["narrow"] == nodes["b"] != nodes["a"]
    drain(engine)
    assert started(engine)["wide"] == 10


def test_groups_of_a_gang_in_each_others_way_are_tried_in_another_order() -> None:
    pools = (
        PoolSpec(name="memory", capacity=Resources(cpu_milli=4000, memory_mib=10), price_microusd_hour=1),
        PoolSpec(name="plain", capacity=Resources(cpu_milli=4000), price_microusd_hour=2),
    )
    engine = engine_of(pools, ["memory", "plain"])
    # The group with more CPU goes first and takes the cheaper node: the only one that the other can use.
    gang = [(1, Resources(cpu_milli=3000)), (1, Resources(cpu_milli=2000, memory_mib=10))]
    engine.commands([submit(spec_of("now", gang, 10)), submit(spec_of("next", gang, 10))])
    assert list(plan_of(engine).values()) == [10 * MINUTE]
    drain(engine)
    assert started(engine) == {"now": 0, "next": 10}


def test_shares_of_a_device_are_promised_on_one_device() -> None:
    pool = PoolSpec(name="gpu", capacity=Resources(cpu_milli=64_000, gpu_milli=2000), gpu_model="H100")
    engine = engine_of((pool,), ["gpu"])
    engine.commands([submit(spec_of("a", [(1, Resources(gpu_milli=600))], 10))])
    engine.commands([submit(spec_of("b", [(1, Resources(gpu_milli=900))], 20))])
    engine.commands([submit(spec_of("most", [(1, Resources(gpu_milli=800))], 5))])
    assert list(plan_of(engine).values()) == [10 * MINUTE], "500 milli-GPU are free, but never 800 of one device"
    engine.commands([submit(spec_of("rest", [(1, Resources(gpu_milli=200))], 30))])
    engine.commands([submit(spec_of("whole", [(1, Resources(gpu_milli=1000))], 5))])
    drain(engine)
    assert started(engine) == {"a": 0, "b": 0, "most": 10, "rest": 0, "whole": 20}


@pytest.mark.parametrize("other", [False, True], ids=["slots", "nodes"])
def test_what_outruns_its_estimate_is_expected_to_take_longer_and_longer(other: bool) -> None:
    engine = cpu_nodes(1, 2)
    if other:
        engine.commands([job("other", 1, 1, memory=1), Cancel(ids=("other",))])
    engine.commands([job("over", 1, 10, run=60), job("wide", 2, 10)])
    expected = {9: 10, 10: 11, 11: 16, 16: 31, 31: 61}
    for now, start in expected.items():
        engine.advance(now * MINUTE)
        assert list(plan_of(engine).values()) == [start * MINUTE]
    drain(engine)
    assert started(engine)["wide"] == 60


def test_a_correction_is_an_occasion_to_look_again() -> None:
    engine = cpu_nodes(1, 2)
    engine.commands([job("over", 1, 10, run=60), job("wide", 2, 10), job("three", 1, 5)])
    # At 31 minutes what outran its estimate is expected to go on until 61: only then is there time for more beside it.
    engine.commands([job("fifteen", 1, 15)])
    drain(engine)
    assert started(engine) == {"over": 0, "three": 0, "fifteen": 16, "wide": 60}


def test_an_unknown_run_time_delays_what_is_behind_it_without_end() -> None:
    engine = cpu_nodes(1, 2)
    engine.commands([submit(workload("unknown", estimate=0, run=MINUTE)), job("wide", 2, 10)])
    assert list(plan_of(engine).values()) == [UNBOUNDED_MS]
    assert UNBOUNDED_MS < HORIZON_MS


def test_what_no_end_makes_room_for_is_promised_nothing_and_holds_up_nobody() -> None:
    engine = cpu_nodes(2, 2)
    engine.commands([Cordon(ids=("n1",)), job("wide", 3, 10), job("next", 2, 10)])
    assert started(engine) == {"next": 0}
    assert plan_of(engine) == {}
