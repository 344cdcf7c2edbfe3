"""Why work waits: every reason with its numbers, true while it is shown, and start times that come true."""

from __future__ import annotations

import pytest
from cells import small_cell, submit, workload
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import commands as cmd
from engine.control import Engine
from engine.model import NodeSpec, PoolSpec, Resources, TaskGroup, WorkloadSpec
from engine.query import Reason

S = 1000
HOUR = 3600 * S


def cell(policy: str = "easy", **sizes: object) -> Engine:
    engine = Engine.open(None, cell=small_cell(**sizes))
    engine.command(cmd.SetPolicy(policy=policy))
    return engine


def why(engine: Engine, name: str) -> Reason:
    """The primary reason."""
    return engine.workload(name).reasons[0]


def tokens(engine: Engine, name: str) -> list[str]:
    return [reason.token for reason in engine.workload(name).reasons]


def test_what_does_not_wait_has_no_reason() -> None:
    engine = cell()
    engine.command(submit(workload("x", run=10 * S), workload("y")))
    engine.command(cmd.Cancel(ids=("y",)))
    assert tokens(engine, "x") == tokens(engine, "y") == []
    engine.advance(10 * S)
    assert engine.workload("x").state == "finished"
    assert tokens(engine, "x") == []


def test_on_hold_says_how_to_release() -> None:
    engine = cell()
    engine.command(submit(workload("x", held=True)))
    assert tokens(engine, "x") == ["OnHold"]
    assert why(engine, "x").unblock == "release x"
    assert engine.workload("x").position is None
    assert engine.workload("x").earliest_start_ms is None
    engine.command(cmd.Release(ids=("x",)))
    assert tokens(engine, "x") == []


def test_quota_says_what_is_asked_used_and_allowed_and_by_whom() -> None:
    engine = cell(quota={"gpu_milli": 8000})
    engine.command(submit(workload("x", gpu=6000), workload("y", count=2, gpu=1500 * 2)))
    reason = why(engine, "y")
    assert reason.token == "WaitingForQuota"
    assert reason.text == "asks for 6 GPU; queue a uses 6 GPU of its nominal 8 GPU"
    assert "4 GPU returned in a" in reason.unblock
    assert engine.workload("y").earliest_start_ms is None, "nobody knows when quota is returned"
    engine.advance(60 * S)
    assert tokens(engine, "y") == []


def test_capacity_says_how_many_tasks_are_needed_and_how_many_have_room() -> None:
    engine = cell(gpu_nodes=4, cpu_nodes=0)
    engine.command(submit(workload("x", count=2, gpu=8000), workload("y", count=3, gpu=8000, memory=2048)))
    reason = why(engine, "y")
    assert reason.token == "InsufficientCapacity"
    assert reason.text.startswith("3 tasks of 1 CPU + 2 GiB memory + 8 GPU needed at once, room for 2 now")
    assert reason.unblock == "room for 1 more such tasks"


def test_scattered_gpus_are_told_apart_from_too_few() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(submit(workload("x", gpu=6000), workload("y", gpu=6000), workload("z", gpu=4000)))
    assert "4 GPUs are free, but not 4 together" in why(engine, "z").text
    engine.command(submit(workload("more", gpu=5000)))
    assert "GPUs are free" not in why(engine, "more").text


def test_each_group_without_room_is_named_by_what_it_asks_for() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=1)
    engine.command(submit(workload("g", gpu=8000), workload("c", cpu=32_000, pools=("cpu",))))
    groups = (
        TaskGroup(name="workers", count=2, request=Resources(gpu_milli=4000)),
        TaskGroup(name="driver", request=Resources(cpu_milli=32_000), pools=("cpu",)),
        TaskGroup(name="light", request=Resources(cpu_milli=1000), pools=("gpu",)),
    )
    engine.command(submit(WorkloadSpec(id="x", queue="b", groups=groups)))
    texts = [reason.text for reason in engine.workload("x").reasons]
    assert tokens(engine, "x") == ["InsufficientCapacity"] * 2
    assert texts[0].startswith("2 tasks of 4 GPU needed")
    assert texts[1].startswith("1 tasks of 32 CPU needed")


def test_groups_that_have_room_one_by_one_but_not_together_say_so() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(submit(workload("other", gpu=8000)))
    groups = tuple(TaskGroup(name=f"g{gpu}", request=Resources(gpu_milli=gpu)) for gpu in (5000, 4000))
    engine.command(submit(WorkloadSpec(id="x", queue="b", groups=groups)))
    assert tokens(engine, "x") == ["InsufficientCapacity"]
    assert "not all of them together" in why(engine, "x").text


def test_quota_comes_before_capacity_and_both_are_told() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0, quota={"gpu_milli": 8000})
    engine.command(submit(workload("x", gpu=4000), workload("y", gpu=6000, queue="b"), workload("z", gpu=8000)))
    assert tokens(engine, "z") == ["WaitingForQuota", "InsufficientCapacity"]


def test_without_any_ready_node_capacity_is_what_lacks() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(cmd.Cordon(ids=("g0",)))
    engine.command(submit(workload("x", gpu=1000)))
    assert why(engine, "x").token == "InsufficientCapacity"
    assert "room for 0 now" in why(engine, "x").text
    engine.command(cmd.Uncordon(ids=("g0",)))
    assert tokens(engine, "x") == []


def test_behind_in_queue_says_the_place_and_the_policy() -> None:
    engine = cell("fcfs", gpu_nodes=1, cpu_nodes=1)
    engine.command(submit(workload("now", gpu=8000)))
    engine.command(submit(workload("first", gpu=8000), *(workload(f"w{i}") for i in range(3))))
    for i in range(3):
        reason = why(engine, f"w{i}")
        assert reason.token == "BehindInQueue"
        assert f"number {i + 2} in its queue" in reason.text
        assert "first come, first served" in reason.text
    engine.command(cmd.SetPolicy(policy="easy"))
    assert [engine.workload(f"w{i}").state for i in range(3)] == ["running"] * 3


def test_waiting_for_a_reservation_names_whom_it_was_promised_to() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(submit(workload("now", gpu=8000, run=100 * S, estimate=100 * S)))
    engine.command(submit(workload("big", count=2, gpu=8000)))
    engine.command(submit(workload("late", gpu=1000, estimate=HOUR), workload("short", gpu=1000, estimate=100 * S)))
    assert tokens(engine, "late") == ["WaitingForReservation"]
    assert "promised to big" in why(engine, "late").text
    assert "the start of big" in why(engine, "late").unblock
    assert tokens(engine, "short") == [], "what ends in time does not wait for it"
    engine.command(cmd.Cancel(ids=("big",)))
    assert tokens(engine, "late") == []


def test_a_reason_follows_what_happens() -> None:
    """One workload, from reason to reason, to running."""
    engine = cell("easy", gpu_nodes=2, cpu_nodes=0, quota={"gpu_milli": 16_000})
    engine.command(submit(workload("q", gpu=4000, run=10 * S, estimate=10 * S)))
    engine.command(submit(workload("b", gpu=8000, queue="b", run=20 * S, estimate=20 * S)))
    engine.command(submit(workload("x", count=2, gpu=8000, held=True)))
    seen = [why(engine, "x").token]
    engine.command(cmd.Release(ids=("x",)))
    seen.append(why(engine, "x").token)
    engine.advance(10 * S)
    seen.append(why(engine, "x").token)
    assert "room for 1 now" in why(engine, "x").text
    assert seen == ["OnHold", "WaitingForQuota", "InsufficientCapacity"]
    engine.advance(20 * S)
    assert engine.workload("x").state == "running"


def test_when_the_last_fitting_pool_is_for_others_the_reason_is_capacity_not_matching() -> None:
    """A pool that never had nodes does not count as a place to run."""
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(cmd.AddPools(pools=(PoolSpec(name="new", capacity=Resources(cpu_milli=1000), gpu_model="B200"),)))
    engine.command(submit(workload("x", gpu=8000), workload("y", gpu=8000)))
    assert tokens(engine, "y") == ["InsufficientCapacity"]
    engine.command(cmd.AddNodes(nodes=(NodeSpec(id="n", pool="new"),)))
    assert tokens(engine, "y") == ["InsufficientCapacity"], "the new node has no GPU"
    engine.command(cmd.AddNodes(nodes=(NodeSpec(id="g9", pool="gpu"),)))
    assert tokens(engine, "y") == []


# -- place in line, and when it starts --------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fcfs", "easy"])
def test_position_counts_the_own_queue_by_priority_then_age(policy: str) -> None:
    engine = cell(policy, gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("now", gpu=8000)))
    waiting = [
        workload("n1", gpu=8000),
        workload("l1", gpu=4000, priority="low"),
        workload("other", gpu=8000, queue="b", priority="high"),
        workload("h1", gpu=2000, priority="high"),
        workload("n2", gpu=4000),
        workload("n3", gpu=8000),
    ]
    engine.command(submit(*waiting))
    line = sorted(("n1", "l1", "h1", "n2", "n3"), key=lambda name: engine.workload(name).position or 0)
    assert line == ["h1", "n1", "n2", "n3", "l1"]
    assert [engine.workload(name).position for name in line] == [1, 2, 3, 4, 5]
    assert engine.workload("other").position == 1
    assert engine.workload("now").position is None
    engine.command(cmd.Hold(ids=("n2",)))
    assert [engine.workload(name).position for name in line] == [1, 2, None, 3, 4]
    engine.command(cmd.Release(ids=("n2",)))
    assert [engine.workload(name).position for name in line] == [1, 2, 3, 4, 5]


work = st.tuples(
    st.integers(1, 3),  # tasks
    st.sampled_from([(0, 9000), (400, 1000), (1000, 1000), (3000, 4000), (8000, 8000)]),
    st.integers(1, 90),  # seconds
)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(before=st.lists(work, min_size=1, max_size=8), last=work)
def test_the_first_in_line_starts_exactly_when_it_was_told_if_nothing_else_comes(before, last) -> None:
    """Exact estimates, one group: the earliest start of the first that waits is its start."""
    engine = cell(gpu_nodes=3, cpu_nodes=1)
    engine.advance(5 * S)
    for i, (count, (gpu, cpu), seconds) in enumerate((*before, last)):
        spec = workload(f"w{i}", count=count, gpu=gpu, cpu=cpu, run=seconds * S, estimate=seconds * S)
        engine.command(submit(spec))
        if engine.workload(f"w{i}").state == "queued":
            break
    else:
        assert engine.workload(f"w{i}").earliest_start_ms is None, "what runs has no earliest start"
        return
    told = engine.workload(f"w{i}").earliest_start_ms
    assert told is not None
    engine.advance(told - 1)
    assert engine.workload(f"w{i}").state == "queued"
    engine.advance(told)
    assert engine.workload(f"w{i}").state == "running"


def test_the_earliest_start_is_unknown_when_what_is_in_the_way_gave_no_estimate_but_it_is_not_now() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("now", gpu=8000, estimate=0, run=10 * S), workload("x", gpu=8000)))
    told = engine.workload("x").earliest_start_ms
    assert told is None or told > 365 * 24 * HOUR


def test_the_earliest_start_follows_the_clock_when_work_outlives_its_estimate() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("now", gpu=8000, estimate=10 * S, run=HOUR), workload("x", gpu=8000)))
    assert engine.workload("x").earliest_start_ms == 10 * S
    engine.advance(25 * S)
    told = engine.workload("x").earliest_start_ms
    assert told is not None
    assert told >= 25 * S


def test_asking_why_changes_nothing() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0, quota={"gpu_milli": 8000})
    for i in range(8):
        engine.command(
            submit(workload(f"w{i}", gpu=3000 + 1000 * (i % 4), queue="ab"[i % 2], estimate=HOUR // (i + 1)))
        )
    before = engine.version, engine.state.digest()
    first = [engine.workload(f"w{i}") for i in range(8)]
    assert [engine.workload(f"w{i}") for i in range(8)] == first
    assert (engine.version, engine.state.digest()) == before
    asked, silent = engine.fork(), engine.fork()
    while not all(w.state == "finished" for w in first) and asked.now_ms < 10 * HOUR:
        first = [asked.workload(f"w{i}") for i in range(8)]
        asked.advance(asked.now_ms + 60 * S)
        silent.advance(asked.now_ms)
    assert asked.state.digest() == silent.state.digest()
