"""Services: replicas follow the load, within bounds, and do not flap."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest

from engine.control import Engine
from engine.elasticity.trial_nodes import missing_replicas
from engine.model import commands as cmd
from engine.model.errors import SpecError
from engine.model.spec_parts import LOOK_EVERY_MS, desired, load_permille
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    PoolSpec,
    QueueSpec,
    Resources,
    ScalingSpec,
    ServiceSpec,
    UsageSample,
    WorkloadSpec,
)
from tests.support.cells import CLASSES, submit, workload
from tests.support.invariants import WatchedEngine, check_state

SECOND = 1000
MINUTE = 60_000
HOUR = 60 * MINUTE


def cell(nodes: int = 4, quota: int = 0) -> CellSpec:
    """Nodes of 10 cores."""
    pool = PoolSpec(name="p", capacity=Resources(cpu_milli=10_000, memory_mib=100_000))
    queue = QueueSpec(name="a", nominal={"cpu_milli": quota} if quota else {})
    return CellSpec(
        pools=(pool,),
        nodes=tuple(NodeSpec(id=f"n{i}", pool="p") for i in range(nodes)),
        queues=(queue,),
        priority_classes=CLASSES,
    )


def service(name: str = "s", *, cpu: int = 1000, **fields: object) -> WorkloadSpec:
    spec = workload(name, cpu=cpu, estimate=0, run=0)
    return msgspec.structs.replace(spec, service=ServiceSpec(**{"most": 20, **fields}))


def replicas(engine: Engine, name: str = "s") -> int:
    check_state(engine.state)
    return engine.workload(name).tasks_placed


def steps(*points: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """A load that jumps at each of the times."""
    found: list[tuple[int, int]] = []
    for at_ms, permille in points:
        if found:
            found.append((at_ms - 1, found[-1][1]))
        found.append((at_ms, permille))
    return tuple(found)


# -- the rule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "use_permille", "wanted"),
    [
        (5, 1600, 10),
        (5, 800, 5),
        (5, 880, 5),
        (5, 881, 6),
        (5, 720, 5),
        (5, 400, 3),
        (5, 0, 1),
        (50, 900, 57),
        (5, 100_000, 100),
    ],
)
def test_the_number_is_what_brings_use_back_to_the_target(there: int, use_permille: int, wanted: int) -> None:
    spec = ServiceSpec(most=100)
    assert desired(spec, there, there, there * use_permille) == wanted


def test_replicas_that_say_nothing_count_against_a_change() -> None:
    spec = ServiceSpec(most=100)
    # Half of them are busy beyond the target, but might be all there is to do.
    assert desired(spec, 4, 2, 2 * 1200) == 4
    assert desired(spec, 4, 2, 2 * 2000) == 5
    # One idles; the others may be busy.
    assert desired(spec, 4, 1, 0) == 3
    assert desired(spec, 4, 0, 0) == 4


def test_the_load_between_two_points_is_in_between() -> None:
    spec = ServiceSpec(most=9, simulated_load=((1000, 100), (2000, 300)))
    assert [load_permille(spec, at) for at in (0, 1000, 1500, 2000, 9000)] == [100, 100, 200, 300, 300]


# -- in a cell --------------------------------------------------------------------------------------------------------


def test_a_service_grows_at_once_to_what_its_load_takes() -> None:
    engine = Engine.open(None, cell=cell())
    engine.command(submit(service(first=5, simulated_load=steps((0, 4000), (MINUTE, 8000)))))
    assert replicas(engine) == 5
    engine.advance(MINUTE)
    assert replicas(engine) == 10


def test_it_begins_with_the_fewest_where_nothing_else_is_said() -> None:
    engine = Engine.open(None, cell=cell())
    engine.command(submit(service(least=3)))
    assert replicas(engine) == 3


def test_it_shrinks_only_to_the_most_that_the_last_minutes_took() -> None:
    engine = Engine.open(None, cell=cell())
    load = steps((0, 8000), (MINUTE, 1600), (3 * MINUTE, 4000), (4 * MINUTE, 1600))
    engine.command(submit(service(first=10, simulated_load=load)))
    engine.advance(MINUTE + 5 * MINUTE - SECOND)
    assert replicas(engine) == 10
    engine.advance(MINUTE + 5 * MINUTE + LOOK_EVERY_MS)
    assert replicas(engine) == 5
    engine.advance(4 * MINUTE + 5 * MINUTE + LOOK_EVERY_MS)
    assert replicas(engine) == 2


def test_it_has_no_end() -> None:
    engine = Engine.open(None, cell=cell())
    engine.command(submit(service(least=2)))
    engine.advance(20 * HOUR)
    assert engine.workload("s").state == "running"
    engine.command(cmd.Cancel(ids=("s",)))
    assert engine.next_due() is None


def test_replicas_without_room_are_told_and_come_when_there_is_some() -> None:
    engine = Engine.open(None, cell=cell(nodes=1))
    engine.command(submit(service(first=5, most=20, simulated_load=((0, 12_000),))))
    engine.advance(LOOK_EVERY_MS)
    assert replicas(engine) == 10
    assert missing_replicas(engine.state) == [(0, 0, 5)]
    engine.command(cmd.AddNodes(nodes=(NodeSpec(id="more", pool="p"),)))
    assert replicas(engine) == 15
    assert missing_replicas(engine.state) == []


def test_what_quota_does_not_allow_is_not_room_that_is_missing() -> None:
    engine = Engine.open(None, cell=cell(quota=7000))
    engine.command(submit(service(first=5, most=7, simulated_load=((0, 12_000),))))
    engine.advance(LOOK_EVERY_MS)
    assert replicas(engine) == 7
    assert missing_replicas(engine.state) == []


def test_a_waiting_job_does_not_keep_a_service_from_growing_and_its_promise_holds() -> None:
    """A gang that needs the whole of both nodes is promised the end of the job; the service may not grow past that."""
    engine = Engine.open(None, cell=cell(nodes=2))
    engine.command(submit(workload("there", cpu=10_000, estimate=10 * MINUTE, run=10 * MINUTE)))
    engine.command(submit(service(first=2, most=9, simulated_load=steps((0, 1600), (MINUTE, 4000)))))
    engine.command(submit(workload("waits", cpu=7_000, count=2, estimate=MINUTE, run=MINUTE)))
    assert engine.workload("waits").state == "queued"
    engine.advance(MINUTE)
    assert replicas(engine) == 2
    engine.advance(11 * MINUTE)
    assert engine.workload("waits").state in ("running", "finished")
    engine.advance(13 * MINUTE)
    assert replicas(engine) == 5


def test_what_agents_report_counts_while_it_is_fresh() -> None:
    engine = Engine.open(None, cell=cell(nodes=1))
    engine.command(submit(service(first=4)))
    assert engine.report_usage([UsageSample(workload="s", node="n0", cpu_milli=4800, memory_mib=10)]) == 1
    engine.advance(LOOK_EVERY_MS)
    assert replicas(engine) == 6
    engine.advance(10 * MINUTE)
    assert replicas(engine) == 6


def test_reports_of_what_is_not_there_are_passed_over() -> None:
    engine = Engine.open(None, cell=cell(nodes=2))
    engine.command(submit(service(least=1)))
    strange = [("s", "n1"), ("nobody", "n0"), ("s", "nowhere")]
    assert not engine.report_usage(
        UsageSample(workload=work, node=node, cpu_milli=9, memory_mib=9) for work, node in strange
    )


def test_a_stopped_service_comes_back_with_the_replicas_it_wanted() -> None:
    engine = Engine.open(None, cell=cell())
    engine.command(submit(service(first=5, simulated_load=((0, 8000),))))
    engine.advance(LOOK_EVERY_MS)
    engine.command(cmd.Requeue(ids=("s",)))
    assert replicas(engine) == 10


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"least": 9, "most": 3}, "more than most"),
        ({"first": 30}, "not from least to most"),
        ({"target_permille": 0}, "0 is below 0.1%"),
        ({"simulated_load": ((5, 1), (5, 2))}, "below 6"),
    ],
)
def test_a_service_that_makes_no_sense_is_refused(fields: dict[str, object], problem: str) -> None:
    engine = Engine.open(None, cell=cell())
    with pytest.raises(SpecError, match=problem):
        engine.command(submit(service(**fields)))


@pytest.mark.parametrize("field", ["estimate_ms", "deadline_ms", "max_runtime_ms"])
def test_a_service_with_an_end_is_refused(field: str) -> None:
    engine = Engine.open(None, cell=cell())
    with pytest.raises(SpecError, match="has no end"):
        engine.command(submit(msgspec.structs.replace(service(), **{field: HOUR})))


# -- properties -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_it_is_never_outside_its_bounds_whatever_the_load(seed: int) -> None:
    rng = random.Random(seed)
    engine = WatchedEngine.open(None, cell=cell(nodes=3))
    least, most = rng.randrange(1, 4), rng.randrange(6, 30)
    times = sorted(rng.sample(range(0, 120 * MINUTE, 7 * SECOND), 40))
    load = tuple((at, rng.choice([0, 500, 3000, 12_000, 90_000])) for at in times)
    engine.command(submit(service(least=least, most=most, simulated_load=load)))
    for i in range(60):
        if rng.random() < 0.4:
            engine.command(submit(workload(f"w{i}", cpu=rng.randrange(500, 5000), run=rng.randrange(20 * MINUTE) + 1)))
        engine.advance(engine.now_ms + rng.randrange(4 * MINUTE))
        there = replicas(engine)
        assert least <= there <= most or engine.workload("s").state != "running"


@pytest.mark.parametrize("centre", [3970, 4000, 4030, 4400, 7200])
def test_a_load_that_trembles_by_a_hundredth_does_not_make_it_flap(centre: int) -> None:
    rng = random.Random(centre)
    load = tuple((at, centre * rng.randrange(990, 1011) // 1000) for at in range(0, 3 * HOUR, LOOK_EVERY_MS))
    engine = Engine.open(None, cell=cell())
    engine.command(submit(service(first=5, simulated_load=load)))
    counts = []
    for _ in range(3 * HOUR // MINUTE):
        engine.advance(engine.now_ms + MINUTE)
        counts.append(engine.workload("s").tasks_placed)
    changes = [b - a for a, b in pairwise(counts) if a != b]
    assert len(changes) <= 2
    assert all(b <= 0 for b in changes[1:]), f"it went up again: {counts}"


def test_a_restart_and_a_fork_go_on_alike(tmp_path) -> None:
    load = tuple((i * 40 * SECOND, (i * 37 % 11) * 900) for i in range(60))
    path = tmp_path / "cell.db"
    engine = Engine.open(path, cell=cell())
    engine.command(submit(service(first=5, simulated_load=load)))
    engine.advance(10 * MINUTE + 7)
    fork = engine.fork()
    engine.close()
    again = Engine.open(path)
    for each in (again, fork):
        each.advance(40 * MINUTE)
    assert again.state.digest() == fork.state.digest()
    again.close()


def test_nodes_are_ordered_for_replicas_without_room_and_go_when_the_service_shrinks() -> None:
    scaling = ScalingSpec(least=1, most=10, boot_ms=(MINUTE, MINUTE))
    pool = PoolSpec(name="p", capacity=Resources(cpu_milli=10_000, memory_mib=100_000), scaling=scaling)
    engine = Engine.open(None, cell=msgspec.structs.replace(cell(nodes=1), pools=(pool,)))
    load = steps((0, 4000), (MINUTE, 20_000), (HOUR, 2000))
    engine.command(submit(service(first=5, most=40, simulated_load=load)))
    engine.advance(30 * MINUTE)
    assert (replicas(engine), len(engine.state.capacity.row_of)) == (25, 3)
    engine.advance(2 * HOUR)
    assert (replicas(engine), len(engine.state.capacity.row_of)) == (3, 1)
