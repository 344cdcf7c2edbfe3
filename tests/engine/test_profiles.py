"""Which of the nodes that fit work gets, by the scores that its queue or its pool gives weight to."""

from __future__ import annotations

from pathlib import Path

import pytest
from invariants import check_state

from engine.control import Engine
from engine.model.commands import AddNodes, ChangeQueue, Define, SetSettings, Submit
from engine.model.errors import SpecError
from engine.model.specs import (
    PROFILES,
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    Settings,
    TaskGroup,
    WorkloadSpec,
)

SPREAD, PACK = {"spread": 100}, {"pack": 100}
POLICIES = ("fcfs", "easy", "easy-sjbf", "conservative")


def pool(name: str, **given) -> PoolSpec:
    return PoolSpec(name=name, capacity=Resources(cpu_milli=8000, memory_mib=16_000), **given)


def cell(*queues: QueueSpec, pools: tuple[PoolSpec, ...] = (), nodes: int = 4) -> CellSpec:
    pools = pools or (pool("p"),)
    return CellSpec(
        pools=pools,
        nodes=tuple(NodeSpec(id=f"{p.name}{i}", pool=p.name, zone=f"z{i}") for p in pools for i in range(nodes)),
        queues=queues,
        priority_classes=(
            PriorityClassSpec(name="normal", value=0),
            PriorityClassSpec(name="high", value=10, preemption="lower"),
        ),
    )


def work(name: str, queue: str, count: int = 1, cpu: int = 1000, **given) -> WorkloadSpec:
    group = TaskGroup(count=count, request=Resources(cpu_milli=cpu))
    return WorkloadSpec(id=name, queue=queue, groups=(group,), estimate_ms=60_000, simulated_runtime_ms=60_000, **given)


def nodes_of(engine: Engine, *names: str) -> list[str]:
    """Nodes of all tasks, one after the other."""
    places = (place for name in names for place in engine.workload(name).placement)
    return [place.node for place in places for _ in range(place.tasks)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("at_once", [False, True], ids=["one-by-one", "together"])
def test_each_queue_has_its_own_way_under_every_policy(policy: str, at_once: bool) -> None:
    engine = Engine.open(
        None, cell=cell(QueueSpec(name="even", placement=SPREAD), QueueSpec(name="full", placement=PACK))
    )
    engine.state.policy = policy
    works = [work(f"{queue}{i}", queue) for queue in ("even", "full") for i in range(4)]
    for part in [works] if at_once else [[each] for each in works]:
        engine.command(Submit(workloads=tuple(part)))
    check_state(engine.state)
    assert len(set(nodes_of(engine, *(f"even{i}" for i in range(4))))) == 4
    assert len(set(nodes_of(engine, *(f"full{i}" for i in range(4))))) == 1


def test_a_gang_is_placed_task_by_task() -> None:
    engine = Engine.open(None, cell=cell(QueueSpec(name="even", placement=SPREAD), QueueSpec(name="plain")))
    engine.command(Submit(workloads=(work("a", "even", count=8), work("b", "plain", count=2))))
    assert sorted(nodes_of(engine, "a")) == [f"p{i}" for i in range(4) for _ in range(2)]
    assert len(set(nodes_of(engine, "b"))) == 1


def test_the_queue_counts_before_the_pool_and_the_pool_before_nothing() -> None:
    pools = (pool("p", placement=SPREAD),)
    engine = Engine.open(None, cell=cell(QueueSpec(name="q"), QueueSpec(name="full", placement=PACK), pools=pools))
    engine.command(Submit(workloads=tuple(work(f"q{i}", "q") for i in range(4))))
    assert len(set(nodes_of(engine, *(f"q{i}" for i in range(4))))) == 4
    engine.command(Submit(workloads=tuple(work(f"f{i}", "full") for i in range(4))))
    assert len(set(nodes_of(engine, *(f"f{i}" for i in range(4))))) == 1


def test_a_queue_that_weighs_the_price_looks_at_all_its_pools() -> None:
    pools = (pool("dear", price_microusd_hour=9), pool("spot", price_microusd_hour=1, spot=True))
    cheap, safe = (QueueSpec(name=name, placement=PROFILES[name]) for name in ("cheap", "service"))
    engine = Engine.open(None, cell=cell(cheap, safe, pools=pools))
    engine.command(Submit(workloads=(work("a", "cheap"), work("b", "service"))))
    assert nodes_of(engine, "a") == ["spot0"]
    assert nodes_of(engine, "b") == ["dear0"]


def test_data_is_heeded_by_queues_that_weigh_it() -> None:
    engine = Engine.open(None, cell=cell(QueueSpec(name="near", placement={"data": 10}), QueueSpec(name="any")))
    engine.command(Submit(workloads=(work("a", "near", data=("z2",)), work("b", "any", data=("z3",)))))
    assert nodes_of(engine, "a") == ["p2"]
    assert nodes_of(engine, "b") != ["p3"]


def test_a_preemptor_goes_by_the_scores_too() -> None:
    even = QueueSpec(name="even", placement=SPREAD)
    engine = Engine.open(None, cell=cell(even, nodes=4))
    engine.command(SetSettings(settings=Settings(preempt_after_ms=0)))
    engine.command(Submit(workloads=(work("low", "even", count=32),)))
    engine.command(Submit(workloads=(work("high", "even", count=4, priority_class="high"),)))
    engine.settle()
    check_state(engine.state)
    assert len(set(nodes_of(engine, "high"))) == 4


def test_other_weights_hold_from_the_next_start_on_and_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    engine = Engine.open(path, cell=cell(QueueSpec(name="q", placement=SPREAD)))
    engine.command(Submit(workloads=(work("a", "q"), work("b", "q"))))
    engine.command(ChangeQueue(queue=QueueSpec(name="q", placement=PACK)))
    engine.command(Submit(workloads=(work("c", "q"),)))
    assert nodes_of(engine, "a", "b", "c") == ["p0", "p1", "p0"]
    engine.close()
    again = Engine.open(path)
    again.command(Submit(workloads=(work("d", "q"),)))
    assert nodes_of(again, "d") == ["p0"]
    again.command(AddNodes(nodes=(NodeSpec(id="late", pool="p"),)))
    again.command(ChangeQueue(queue=QueueSpec(name="q", placement=SPREAD)))
    again.command(Submit(workloads=(work("e", "q"),)))
    assert nodes_of(again, "e") == ["p2"]
    again.close()


@pytest.mark.parametrize("placement", [{"pak": 1}, {"pack": -1}, {"pack": 1001}])
def test_weights_that_mean_nothing_are_refused(placement: dict[str, int]) -> None:
    engine = Engine.open(None)
    with pytest.raises(SpecError, match=r"queues\[0\]\.placement"):
        engine.command(Define(cell=cell(QueueSpec(name="q", placement=placement))))
    assert engine.version == 0


@pytest.mark.parametrize("score", ["gpu_fragmentation", "gpu_stranding"])
def test_gpu_is_kept_in_the_pieces_that_the_live_mix_can_use(score: str, tmp_path: Path) -> None:
    """Half a device is taken where another half is left over, not from a device that a whole one would need; and only
    because such work waits: the mix is of what is there."""
    gpus = PoolSpec(name="g", capacity=Resources(cpu_milli=64_000, gpu_milli=2000), gpu_model="H100")
    spread = {"spread": 1, score: 100}
    for mixed in (False, True):
        path = tmp_path / f"{mixed}.db"
        engine = Engine.open(path, cell=cell(QueueSpec(name="q", placement=spread), pools=(gpus,), nodes=2))

        def gpu(name: str, milli: int, on: str = "") -> WorkloadSpec:
            labels = {"node": (on,)} if on else {}
            group = TaskGroup(request=Resources(cpu_milli=1000, gpu_milli=milli), node_labels=labels)
            return WorkloadSpec(id=name, queue="q", groups=(group,), estimate_ms=60_000, simulated_runtime_ms=60_000)

        if mixed:
            engine.command(Submit(workloads=(gpu("whole", 1000, "g0"),)))
        engine.command(Submit(workloads=(gpu("half", 500, "g0"),)))
        engine.command(Submit(workloads=(gpu("other", 500),)))
        check_state(engine.state)
        assert engine.state.capacity.mix
        if mixed:
            assert nodes_of(engine, "other") == ["g0"], "the other half, though g1 is emptier"
            assert engine.workload("other").placement[0].devices == engine.workload("half").placement[0].devices
        twin = engine.fork()
        engine.close()
        again = Engine.open(path)
        for each in (twin, again):
            each.command(Submit(workloads=(gpu("third", 500), gpu("fourth", 1000))))
        assert nodes_of(twin, "third", "fourth") == nodes_of(again, "third", "fourth")
        again.close()
