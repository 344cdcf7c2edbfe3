"""Overcommitted pools: who may go there, and that guaranteed work is never promised what is promised twice."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.errors import SpecError
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, QueueSpec, Resources, TaskGroup, WorkloadSpec
from engine.state.invariants import faults_of
from tests.support.cells import CLASSES, submit, workload
from tests.support.invariants import WatchedEngine, check_state

MINUTE = 60_000
NODE = Resources(cpu_milli=10_000, memory_mib=10_000)


def cell(*, sure: int = 1, shared: int = 1, cpu: int = 1400, memory: int = 1000) -> CellSpec:
    """Nodes of 10 cores and 10,000 MiB: some sure, some overcommitted."""
    pools = (
        PoolSpec(name="sure", capacity=NODE, price_microusd_hour=2_000_000),
        PoolSpec(
            name="shared",
            capacity=NODE,
            price_microusd_hour=1_000_000,
            overcommit={"cpu_milli": cpu, "memory_mib": memory},
        ),
    )
    nodes = [NodeSpec(id=f"sure-{i}", pool="sure") for i in range(sure)]
    nodes += [NodeSpec(id=f"shared-{i}", pool="shared") for i in range(shared)]
    return CellSpec(pools=pools, nodes=tuple(nodes), queues=(QueueSpec(name="a"),), priority_classes=CLASSES)


def job(name: str, qos: str, **fields: object) -> WorkloadSpec:
    return msgspec.structs.replace(workload(name, **fields), qos=qos)


def where(engine: Engine, name: str) -> str:
    places = engine.workload(name).placement
    return places[0].node if places else ""


def test_an_overcommitted_node_takes_burstable_requests_up_to_its_ratio() -> None:
    engine = Engine.open(None, cell=cell(sure=0))
    engine.command(submit(*(job(f"b{i}", "burstable") for i in range(15))))
    assert [engine.workload(f"b{i}").state for i in range(15)] == ["running"] * 14 + ["queued"]
    assert engine.node("shared-0").free["cpu_milli"] == 0
    check_state(engine.state)


def test_guaranteed_work_does_not_go_where_capacity_is_promised_twice() -> None:
    engine = Engine.open(None, cell=cell())
    engine.command(submit(job("g", "guaranteed"), job("b", "burstable"), job("e", "best_effort")))
    assert (where(engine, "g"), where(engine, "b"), where(engine, "e")) == ("sure-0", "shared-0", "shared-0")


def test_work_that_may_go_anywhere_leaves_sure_nodes_to_guaranteed_work() -> None:
    dear = tuple(msgspec.structs.replace(pool, price_microusd_hour=5) for pool in cell().pools)
    engine = Engine.open(None, cell=msgspec.structs.replace(cell(), pools=dear))
    engine.command(submit(*(job(f"b{i}", "burstable", cpu=5000) for i in range(4))))
    assert [where(engine, f"b{i}") for i in range(4)] == ["shared-0", "shared-0", "sure-0", "sure-0"]


def test_guaranteed_work_that_only_an_overcommitted_node_could_hold_is_refused_with_the_reason() -> None:
    engine = Engine.open(None, cell=cell(sure=0))
    with pytest.raises(SpecError, match="guaranteed work does not go there"):
        engine.command(submit(job("g", "guaranteed")))


def test_one_task_may_be_larger_than_the_node_by_the_ratio_and_no_more() -> None:
    engine = Engine.open(None, cell=cell())
    engine.command(submit(job("large", "burstable", cpu=14_000)))
    assert where(engine, "large") == "shared-0"
    with pytest.raises(SpecError, match="no node of this cell"):
        engine.command(submit(job("larger", "burstable", cpu=14_001)))


@pytest.mark.parametrize(
    ("overcommit", "problem"),
    [
        ({"gpu_milli": 1400}, "cannot be overcommitted"),
        ({"disk_mib": 1400}, "cannot be overcommitted"),
        ({"cpu_milli": 900}, "0.9 is below 1"),
    ],
)
def test_what_cannot_be_overcommitted_is_refused(overcommit: dict[str, int], problem: str) -> None:
    engine = Engine.open(None, cell=cell())
    with pytest.raises(SpecError, match=problem):
        engine.command(cmd.AddPools(pools=(PoolSpec(name="more", capacity=NODE, overcommit=overcommit),)))


@pytest.mark.parametrize(
    ("qos", "limit", "problem"),
    [
        ("guaranteed", Resources(cpu_milli=2000), "has no meaning"),
        ("burstable", Resources(cpu_milli=500), "below the request"),
        ("burstable", Resources(gpu_milli=1000), "cannot exceed its request"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(qos: str, limit: Resources, problem: str) -> None:
    engine = Engine.open(None, cell=cell())
    spec = job("b", qos)
    group = msgspec.structs.replace(spec.groups[0], limit=limit)
    with pytest.raises(SpecError, match=problem):
        engine.command(submit(msgspec.structs.replace(spec, groups=(group,))))


def test_many_at_once_go_where_they_would_go_one_by_one() -> None:
    specs = [job(f"w{i}", ("guaranteed", "burstable", "best_effort")[i % 3], cpu=1500) for i in range(30)]
    together, single = (Engine.open(None, cell=cell(sure=2, shared=2)) for _ in range(2))
    single.scheduler.binder.max_at_once = 1
    for engine in (together, single):
        engine.command(submit(*specs))
    assert together.state.digest() == single.state.digest()


@pytest.mark.parametrize("seed", range(6))
def test_requests_by_ratio_never_exceed_a_node(seed: int) -> None:
    """The sum over qos of request / ratio, with ratio 1 for guaranteed work, is at most what the node has."""
    rng = random.Random(seed)
    ratio = {"sure": (1000, 1000), "shared": (rng.randrange(1000, 2500), rng.choice([1000, 1250]))}
    engine = WatchedEngine.open(None, cell=cell(sure=2, shared=2, cpu=ratio["shared"][0], memory=ratio["shared"][1]))
    qos_of = {}
    for i in range(60):
        name, qos = f"w{i}", rng.choice(["guaranteed", "burstable", "best_effort"])
        qos_of[name] = qos
        size = {"cpu": rng.randrange(200, 4000), "memory": rng.randrange(100, 5000), "count": rng.choice([1, 1, 3])}
        run, priority = rng.randrange(1, 5) * MINUTE, rng.choice(["low", "normal", "high"])
        spec = job(name, qos, run=run, priority=priority, **size)
        engine.command(submit(spec))
        if rng.random() < 0.1:
            engine.command(cmd.Drain(ids=(rng.choice(["sure-0", "shared-0"]),)))
            engine.command(cmd.Uncordon(ids=tuple(engine.state.capacity.row_of)))
        engine.advance(engine.now_ms + rng.randrange(MINUTE))
        check_state(engine.state)
        assert faults_of(engine.state) == []
        taken: Counter[tuple[str, int]] = Counter()
        for node, request, count, qos in _there(engine, qos_of):
            pool = engine.node(node).pool
            for i, quantity in enumerate(request.vector()[:2]):
                taken[node, i] += quantity * count * 1_000_000 // (1000 if qos == "guaranteed" else ratio[pool][i])
        for (node, i), quantity in taken.items():
            assert quantity <= NODE.vector()[i] * 1000, f"{node} is promised {quantity} micro-units of resource {i}"
    assert any(state == "finished" for state in (engine.workload(name).state for name in qos_of))


def _there(engine: Engine, qos_of: dict[str, str]) -> list[tuple[str, Resources, int, str]]:
    """(node, request of one task, tasks, qos) of all that is placed."""
    state = engine.state
    a, w = state.allocations, state.workloads
    found = []
    for node, node_id in enumerate(state.capacity.node_ids):
        for at in a.on_node(node):
            row = a.workload[at]
            group: TaskGroup = w.class_at(row).groups[a.group[at]]
            found.append((node_id, group.request, a.count[at], qos_of[w.ids[row]]))
    return found


def test_a_restart_knows_the_qos(tmp_path) -> None:
    path = tmp_path / "cell.db"
    engine = Engine.open(path, cell=cell(sure=0))
    engine.command(submit(*(job(f"b{i}", "burstable") for i in range(15))))
    digest = engine.state.digest()
    engine.close()
    again = Engine.open(path)
    assert again.state.digest() == digest
    again.command(cmd.Cancel(ids=("b0",)))
    assert where(again, "b14") == "shared-0"
    again.close()
