"""Nodes whose memory runs short: who is put out, in which order, and that nothing is lost by it."""

from __future__ import annotations

import random

import msgspec
import pytest

from engine.control import Engine
from engine.executors.node_watch import EvictionCandidate, rank
from engine.model import commands as cmd
from engine.model.errors import SpecError
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    PoolSpec,
    Pressure,
    QueueSpec,
    Resources,
    ServiceSpec,
    Settings,
    UsageSample,
    WorkloadSpec,
    WorkloadState,
)
from tests.support.cells import CLASSES, submit, workload
from tests.support.invariants import WatchedEngine, check_state

SECOND = 1000
MINUTE = 60_000
HOUR = 60 * MINUTE


def cell(nodes: int = 1, *, reserved: int = 0, memory: int = 2000, pressure: Pressure | None = None) -> CellSpec:
    """Nodes of 10,000 MiB that promise twice as much."""
    pool = PoolSpec(
        name="p",
        capacity=Resources(cpu_milli=100_000, memory_mib=10_000 - reserved),
        reserved=Resources(memory_mib=reserved),
        overcommit={"memory_mib": memory},
    )
    return CellSpec(
        pools=(pool,),
        nodes=tuple(NodeSpec(id=f"n{i}", pool="p") for i in range(nodes)),
        queues=(QueueSpec(name="a"),),
        priority_classes=CLASSES,
        settings=Settings(pressure=pressure or Pressure()),
    )


def job(name: str, memory: int, use_permille: int, *, qos: str = "burstable", **fields: object) -> WorkloadSpec:
    spec = workload(name, memory=memory, estimate=HOUR, run=HOUR, **fields)
    return msgspec.structs.replace(spec, qos=qos, simulated_usage_permille=use_permille)


def running(engine: Engine) -> set[str]:
    check_state(engine.state)
    w = engine.state.workloads
    return {name for row, name in enumerate(w.ids) if w.state[row] == WorkloadState.RUNNING}


def last_history(engine: Engine, name: str) -> list[tuple[str, str]]:
    return [(item.what, item.detail) for item in engine.workload(name).history]


# -- the order --------------------------------------------------------------------------------------------------------

TABLE = [
    # name, qos, priority, use, request
    ("best effort, small", "best_effort", 0, 100, 500),
    ("best effort, high priority", "best_effort", 900, 100, 500),
    ("burstable, far above", "burstable", 500, 900, 100),
    ("burstable, a little above", "burstable", 500, 200, 100),
    ("burstable, above, high priority", "burstable", 900, 5000, 100),
    ("burstable, within, low priority", "burstable", 100, 100, 400),
    ("burstable, within, near its request", "burstable", 500, 390, 400),
    ("guaranteed, low priority", "guaranteed", 100, 1000, 1000),
    ("guaranteed, high priority", "guaranteed", 900, 100, 1000),
]
GOLDEN = {
    # Use above request first; then priority; then how far above. The class alone decides nothing.
    "kubelet": [
        "best effort, small",
        "burstable, far above",
        "burstable, a little above",
        "burstable, above, high priority",
        "best effort, high priority",
        "guaranteed, low priority",
        "burstable, within, low priority",
        "burstable, within, near its request",
        "guaranteed, high priority",
    ],
    # Best effort, burstable above, burstable within, guaranteed.
    "qos": [
        "best effort, small",
        "best effort, high priority",
        "burstable, far above",
        "burstable, a little above",
        "burstable, above, high priority",
        "burstable, within, low priority",
        "burstable, within, near its request",
        "guaranteed, low priority",
        "guaranteed, high priority",
    ],
}


@pytest.mark.parametrize("order", ["kubelet", "qos"])
def test_the_order_in_which_work_goes(order: str) -> None:
    there = [
        EvictionCandidate(row, qos, priority, use, asked) for row, (_, qos, priority, use, asked) in enumerate(TABLE)
    ]
    random.Random(1).shuffle(there)
    gone = [TABLE[candidate.row][0] for candidate in sorted(there, key=lambda candidate: rank(candidate, order))]
    assert gone == GOLDEN[order]


# -- in a cell --------------------------------------------------------------------------------------------------------


def test_work_goes_until_no_more_than_the_lower_limit_is_in_use() -> None:
    engine = Engine.open(None, cell=cell())
    engine.command(submit(*(job(f"b{i}", 1000, 1000 + 10 * i) for i in range(9))))
    assert len(running(engine)) == 9
    assert engine.state.usage.memory_on(0) == 9360
    engine.command(submit(job("more", 1000, 900)))
    assert engine.state.usage.memory_on(0) == 10_260
    engine.advance(10 * SECOND)
    # 9,500 is the limit; it goes down to 9,000: two that are furthest above their requests.
    assert running(engine) == {*(f"b{i}" for i in range(7)), "more"}
    assert engine.state.usage.memory_on(0) == 8110
    assert ("requeued", "node pressure") in last_history(engine, "b8")


def test_below_the_limit_nothing_goes() -> None:
    engine = Engine.open(None, cell=cell())
    engine.command(submit(*(job(f"b{i}", 1000, 950) for i in range(10))))
    assert engine.state.usage.memory_on(0) == 9500
    engine.advance(30 * MINUTE)
    assert len(running(engine)) == 10


def test_the_limit_is_of_physical_memory_what_the_system_keeps_included() -> None:
    engine = Engine.open(None, cell=cell(reserved=1000))
    engine.command(submit(*(job(f"b{i}", 1000, 950) for i in range(10))))
    engine.advance(30 * MINUTE)
    assert len(running(engine)) == 10


def test_what_was_put_out_waits_a_while_uses_up_no_retry_and_comes_back() -> None:
    engine = Engine.open(None, cell=cell())
    engine.command(submit(job("first", 5000, 1000, checkpoint=SECOND), job("second", 5000, 1200, checkpoint=SECOND)))
    engine.advance(10 * SECOND)
    assert (engine.workload("second").state, engine.workload("second").failures) == ("waiting", 0)
    assert engine.workload("second").kept_ms == 10 * SECOND
    engine.advance(HOUR)
    assert engine.workload("first").state == "finished"
    engine.advance(3 * HOUR)
    assert engine.workload("second").state == "finished"


def test_the_other_order_is_a_setting() -> None:
    gone = []
    for order in ("kubelet", "qos"):
        engine = Engine.open(None, cell=cell(pressure=Pressure(order=order)))
        engine.command(
            submit(job("above", 3000, 2000, priority="low"), job("none", 4000, 900, qos="best_effort", priority="high"))
        )
        engine.advance(10 * SECOND)
        gone.append({"above", "none"} - running(engine))
    assert gone == [{"above"}, {"none"}]


def test_a_gang_goes_whole_though_only_one_of_its_nodes_runs_short() -> None:
    engine = Engine.open(None, cell=cell(nodes=2))
    engine.command(submit(job("gang", 11_000, 700, count=2, priority="low"), job("there", 8000, 900)))
    assert len(engine.workload("gang").placement) == 2
    engine.advance(10 * SECOND)
    assert running(engine) == {"there"}
    assert engine.workload("gang").tasks_placed == 0


def test_elastic_work_shrinks_and_does_not_grow_again_at_once() -> None:
    engine = Engine.open(None, cell=cell(nodes=2, memory=2000))
    elastic = job("elastic", 11_000, 600, count=2)
    group = msgspec.structs.replace(elastic.groups[0], min_count=1)
    engine.command(submit(msgspec.structs.replace(elastic, groups=(group,), elastic=True)))
    engine.command(submit(job("other", 4000, 1000, priority="high")))
    engine.advance(10 * SECOND)
    assert engine.workload("elastic").tasks_placed == 1
    assert running(engine) == {"elastic", "other"}
    engine.advance(10 * SECOND + 5 * MINUTE - 1)
    assert engine.workload("elastic").tasks_placed == 1
    engine.advance(10 * SECOND + 5 * MINUTE)
    assert engine.workload("elastic").tasks_placed == 2


def test_guaranteed_work_uses_no_more_than_it_asks_for_and_burstable_no_more_than_its_limit() -> None:
    engine = Engine.open(None, cell=cell(memory=1000))
    engine.command(submit(job("g", 1000, 5000, qos="guaranteed")))
    limited = job("b", 1000, 5000)
    group = msgspec.structs.replace(limited.groups[0], limit=Resources(memory_mib=2500))
    engine.command(submit(msgspec.structs.replace(limited, groups=(group,))))
    assert engine.state.usage.memory_on(0) == 1000 + 2500


def test_reports_of_agents_count_like_simulated_use_and_not_longer_than_the_work_is_there() -> None:
    engine = Engine.open(None, cell=cell())
    engine.command(submit(job("a1", 1000, 0), job("a2", 1000, 0)))
    engine.report_usage(
        [
            UsageSample(workload="a1", node="n0", cpu_milli=10, memory_mib=6000),
            UsageSample(workload="a2", node="n0", cpu_milli=10, memory_mib=5000),
        ]
    )
    engine.advance(10 * SECOND)
    assert running(engine) == {"a2"}
    assert engine.state.usage.memory_on(0) == 5000
    engine.command(cmd.Cancel(ids=("a2",)))
    assert engine.state.usage.memory_on(0) == 0


def test_what_is_put_out_is_journalled_and_a_fork_decides_alike(tmp_path) -> None:
    path = tmp_path / "cell.db"
    engine = Engine.open(path, cell=cell(nodes=2))
    rng = random.Random(4)
    engine.command(submit(*(job(f"w{i}", rng.randrange(500, 4000), rng.randrange(300, 1600)) for i in range(14))))
    engine.advance(7 * SECOND)
    fork = engine.fork()
    engine.close()
    again = Engine.open(path)
    for each in (again, fork):
        each.advance(30 * MINUTE)
    assert again.state.digest() == fork.state.digest()
    assert any("node pressure" in detail for i in range(14) for _, detail in last_history(again, f"w{i}"))
    again.close()
    third = Engine.open(path)
    assert third.state.digest() == fork.state.digest()
    third.close()


def test_limits_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(SpecError, match="above evict_at_permille"):
        Engine.open(None, cell=cell(pressure=Pressure(evict_at_permille=800)))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
def test_nothing_is_lost_in_a_storm_of_pressure_failures_and_changes(seed: int, tmp_path) -> None:
    rng = random.Random(seed)
    path = tmp_path / "cell.db"
    engine = WatchedEngine.open(path, cell=cell(nodes=3, pressure=Pressure(pause_ms=MINUTE)))
    names = []
    for i in range(40):
        count = rng.choice([1, 1, 1, 2, 3])
        spec = job(
            f"w{i}", rng.randrange(300, 5000), rng.randrange(200, 2500), count=count, checkpoint=SECOND,
            qos=rng.choice(["burstable", "best_effort"]), priority=rng.choice(["low", "normal", "high"]),
        )  # fmt: skip
        spec = msgspec.structs.replace(spec, estimate_ms=2 * MINUTE, simulated_runtime_ms=rng.randrange(2 * MINUTE) + 1)
        if count == 3:
            group = msgspec.structs.replace(spec.groups[0], min_count=1)
            spec = msgspec.structs.replace(spec, groups=(group,), elastic=True)
        if i % 13 == 0:
            spec = msgspec.structs.replace(
                spec, estimate_ms=0, service=ServiceSpec(least=1, most=4, simulated_load=((0, 900), (HOUR, 4000)))
            )
        names.append(spec.id)
        engine.command(submit(spec))
        if rng.random() < 0.15:
            engine.command(cmd.FailNodes(ids=(f"n{rng.randrange(3)}",)))
        if rng.random() < 0.3:
            engine.command(cmd.RestoreNodes(ids=("n0", "n1", "n2")))
        if rng.random() < 0.3:
            resized = rng.choice(names)
            if engine.workload(resized).state != "finished":
                engine.command(cmd.Resize(ids=(resized,), request={"memory_mib": rng.randrange(300, 5000)}))
        engine.advance(engine.now_ms + rng.randrange(20 * SECOND))
        check_state(engine.state)
        usage = engine.state.usage
        assert {node: set(there) for node, there in usage.on.items()} == _turned(usage.of)
        assert all(engine.state.is_bound(row) for row in usage.of)
    engine.command(cmd.RestoreNodes(ids=("n0", "n1", "n2")))
    services = {name for name in names if engine.state.workloads.terms_at(engine.state.workloads.row(name)).service}
    engine.advance(engine.now_ms + 3 * HOUR)
    check_state(engine.state)
    states = {name: engine.workload(name).state for name in names}
    alone = {name for name in names if _uses_alone(engine, name) > 9500}
    assert {state for name, state in states.items() if name not in services | alone} <= {"finished"}
    # They have no end, and may still take turns.
    assert {states[name] for name in services} <= {"running", "waiting", "queued"}
    for node in range(3):
        assert engine.state.usage.memory_on(node) <= 9500 or engine.state.usage.pressed
    engine.close()
    again = Engine.open(path, use_snapshot=seed % 2 == 0)
    assert again.state.digest() == engine.state.digest()
    assert again.state.usage.on == engine.state.usage.on
    again.close()


def _turned(of: dict[int, dict[int, object]]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for row, there in of.items():
        for node in there:
            found.setdefault(node, set()).add(row)
    return found


def _uses_alone(engine: Engine, name: str) -> int:
    """What all its tasks would use on one node."""
    w = engine.state.workloads
    row = w.row(name)
    group = w.class_at(row).groups[0]
    return group.count * group.request.memory_mib * w.terms_at(row).simulated_usage_permille // 1000
