"""Gangs that may start with fewer tasks than they ask for, grow while they run, and shrink for others."""

from __future__ import annotations

import msgspec
import pytest

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.specs import TaskGroup, WorkloadSpec
from tests.support.cells import small_cell, submit, workload
from tests.support.invariants import check_state

MINUTE = 60_000


@pytest.fixture
def engine() -> Engine:
    """Four nodes of 8 GPUs."""
    return Engine.open(None, cell=small_cell())


def gang(
    name: str, count: int, least: int, *, elastic: bool = False, gpu: int = 8000, **fields: object
) -> WorkloadSpec:
    spec = workload(name, count=count, gpu=gpu, **fields)
    group = msgspec.structs.replace(spec.groups[0], min_count=least)
    return msgspec.structs.replace(spec, groups=(group,), elastic=elastic)


def tasks(engine: Engine, name: str) -> int:
    check_state(engine.state)
    return sum(place.tasks for place in engine.workload(name).placement)


def test_it_starts_with_what_there_is_when_that_is_enough(engine: Engine) -> None:
    engine.command(submit(workload("there", gpu=8000, run=10 * MINUTE)))
    engine.command(submit(gang("g", 4, 2)))
    assert tasks(engine, "g") == 3
    assert engine.state.queues.used_vector(0)[2] == 32_000


def test_it_waits_when_even_the_fewest_find_no_room(engine: Engine) -> None:
    engine.command(submit(workload("there", count=3, gpu=8000)))
    engine.command(submit(gang("g", 4, 2)))
    assert engine.workload("g").state == "queued"
    assert tasks(engine, "g") == 0


def test_with_fewer_tasks_it_takes_longer_in_proportion(engine: Engine) -> None:
    engine.command(submit(workload("there", count=2, gpu=8000, run=10 * MINUTE)))
    engine.command(submit(gang("g", 4, 2, run=MINUTE)))
    engine.advance(2 * MINUTE - 1)
    assert engine.workload("g").state == "running"
    engine.advance(2 * MINUTE)
    assert engine.workload("g").state == "finished"


def test_no_more_tasks_start_than_quota_allows() -> None:
    engine = Engine.open(None, cell=small_cell(quota={"gpu_milli": 24_000}))
    engine.command(submit(gang("g", 4, 2)))
    assert tasks(engine, "g") == 3


def test_an_elastic_gang_grows_when_nothing_else_waits_for_the_room(engine: Engine) -> None:
    engine.command(submit(workload("there", count=2, gpu=8000, run=MINUTE)))
    engine.command(submit(gang("g", 4, 2, elastic=True, run=4 * MINUTE, estimate=4 * MINUTE)))
    assert tasks(engine, "g") == 2
    engine.advance(MINUTE)
    assert tasks(engine, "g") == 4
    # One minute at half speed is half a minute of work; three and a half are left.
    engine.advance(MINUTE + 3 * MINUTE + MINUTE // 2 - 1)
    assert engine.workload("g").state == "running"
    engine.advance(MINUTE + 3 * MINUTE + MINUTE // 2)
    assert engine.workload("g").state == "finished"
    assert tasks(engine, "g") == 0
    assert not any(engine.state.queues.used)


def test_a_gang_that_is_not_elastic_keeps_the_tasks_it_started_with(engine: Engine) -> None:
    engine.command(submit(workload("there", count=2, gpu=8000, run=MINUTE)))
    engine.command(submit(gang("g", 4, 2, run=10 * MINUTE, estimate=10 * MINUTE)))
    engine.advance(2 * MINUTE)
    assert tasks(engine, "g") == 2


def test_what_an_elastic_gang_can_do_without_goes_to_who_needs_it(engine: Engine) -> None:
    engine.command(submit(gang("g", 4, 1, elastic=True, run=10 * MINUTE, estimate=10 * MINUTE)))
    assert tasks(engine, "g") == 4
    engine.command(submit(workload("needs", count=2, gpu=8000, run=MINUTE, queue="b")))
    assert engine.workload("needs").state == "running"
    assert tasks(engine, "g") == 2
    engine.advance(MINUTE)
    assert tasks(engine, "g") == 4


def test_no_more_is_taken_than_is_needed_and_never_below_the_fewest(engine: Engine) -> None:
    engine.command(submit(gang("g", 4, 3, elastic=True, run=10 * MINUTE, estimate=10 * MINUTE)))
    engine.command(submit(workload("too-large", count=2, gpu=8000)))
    assert engine.workload("too-large").state == "queued"
    assert tasks(engine, "g") == 4
    engine.command(submit(workload("small", gpu=1000)))
    assert engine.workload("small").state == "running"
    assert tasks(engine, "g") == 3


def test_of_tasks_that_share_a_node_only_some_may_go(engine: Engine) -> None:
    engine.command(submit(gang("g", 32, 4, elastic=True, gpu=1000, cpu=100)))
    assert tasks(engine, "g") == 32
    engine.command(submit(workload("needs", gpu=3000, cpu=100)))
    assert engine.workload("needs").state == "running"
    assert tasks(engine, "g") >= 24
    check_state(engine.state)


def test_several_groups_start_together_or_not_at_all_with_their_fewest(engine: Engine) -> None:
    request = workload("x", gpu=8000).groups[0].request
    groups = (
        TaskGroup(name="workers", count=4, min_count=3, request=request),
        TaskGroup(name="server", count=1, request=request),
    )
    engine.command(submit(msgspec.structs.replace(workload("g"), groups=groups)))
    placed = {place.group: 0 for place in engine.workload("g").placement}
    for place in engine.workload("g").placement:
        placed[place.group] += place.tasks
    assert placed == {"workers": 3, "server": 1}
    check_state(engine.state)


def test_elastic_work_survives_a_restart_and_a_fork(engine: Engine) -> None:
    engine.command(submit(gang("g", 4, 1, elastic=True, run=10 * MINUTE, estimate=10 * MINUTE)))
    engine.command(submit(workload("needs", count=2, gpu=8000, run=MINUTE, queue="b")))
    fork = engine.fork()
    fork.advance(MINUTE)
    engine.advance(MINUTE)
    assert fork.state.digest() == engine.state.digest()
    assert tasks(fork, "g") == 4


def test_suspending_a_grown_gang_returns_everything(engine: Engine) -> None:
    engine.command(submit(gang("g", 4, 1, elastic=True)))
    engine.command(cmd.Suspend(ids=("g",)))
    assert not any(engine.state.queues.used)
    assert tasks(engine, "g") == 0
