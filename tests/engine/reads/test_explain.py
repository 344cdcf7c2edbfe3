"""Why work waits: every reason with its numbers, true while it is shown, and start times that come true. Whether the
primary reason is true in whatever cell is tested with the counterfactuals."""

from __future__ import annotations

import msgspec
import pytest
from cells import small_cell, submit, workload
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.details import Reason
from engine.model.list_queries import Query
from engine.model.specs import (
    ArraySpec,
    BurstSpec,
    Dependency,
    FlavorQuota,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    TaskGroup,
    WorkloadSpec,
)

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
    assert engine.workload("x").start_not_before_ms is None
    engine.command(cmd.Release(ids=("x",)))
    assert tokens(engine, "x") == []


def test_quota_says_what_is_asked_used_and_allowed_and_by_whom() -> None:
    engine = cell(quota={"gpu_milli": 8000})
    engine.command(submit(workload("x", gpu=6000), workload("y", count=2, gpu=1500 * 2)))
    reason = why(engine, "y")
    assert reason.token == "WaitingForQuota"
    assert reason.text == (
        "asks for 6 GPU, 4 GPU above the borrowing limit of queue a, 0 GPU on top of its 8 GPU; it uses 6 GPU"
    )
    assert "4 GPU returned in a" in reason.unblock
    assert engine.workload("y").start_not_before_ms is None, "nobody knows when quota is returned"
    engine.advance(60 * S)
    assert tokens(engine, "y") == []


def test_capacity_says_how_many_tasks_are_needed_and_how_many_have_room() -> None:
    engine = cell(gpu_nodes=4, cpu_nodes=0)
    engine.command(submit(workload("x", count=2, gpu=8000), workload("y", count=3, gpu=8000, memory=2048)))
    reason = why(engine, "y")
    assert reason.token == "InsufficientCapacity"
    assert reason.text == "3 tasks of 1 CPU + 2 GiB memory + 8 GPU needed at once, room for 2 now in pool gpu"
    assert reason.unblock == "room for 1 task more"


def test_free_capacity_in_pieces_is_told_apart_from_too_little() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(submit(workload("x", gpu=6000), workload("y", gpu=6000), workload("z", gpu=4000)))
    assert why(engine, "z").token == "Fragmented"
    assert why(engine, "z").text == (
        "1 task of 1 CPU + 4 GPU needed at once; what is free in pool gpu would hold 1, but it is fragmented and "
        "holds 0: free 4 GPU, usable 0 GPU"
    )
    engine.command(submit(workload("more", gpu=5000)))
    assert tokens(engine, "more") == ["InsufficientCapacity"]


def test_shares_of_devices_in_pieces() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("x", count=8, gpu=600), workload("y", gpu=500), workload("z", gpu=400)))
    assert tokens(engine, "y") == ["Fragmented"]
    assert engine.workload("z").state == "running"


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
    assert texts[1].startswith("1 task of 32 CPU needed")


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


def test_behind_in_queue_says_what_goes_first_and_by_which_rule() -> None:
    engine = cell("fcfs", gpu_nodes=1, cpu_nodes=1)
    engine.command(submit(workload("now", gpu=8000)))
    engine.command(submit(workload("first", gpu=8000), *(workload(f"w{i}") for i in range(3))))
    for i in range(3):
        reason = why(engine, f"w{i}")
        assert reason.token == "BehindInQueue"
        assert reason.text == (
            "nothing in queue a starts before first, which is ahead: the policy is first come, first served"
        )
        assert engine.workload(f"w{i}").position == i + 2
    engine.command(cmd.SetPolicy(policy="easy"))
    assert [engine.workload(f"w{i}").state for i in range(3)] == ["running"] * 3


def test_waiting_for_a_reservation_names_whom_it_was_promised_to() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(submit(workload("now", gpu=8000, run=100 * S, estimate=100 * S)))
    engine.command(submit(workload("big", count=2, gpu=8000)))
    engine.command(submit(workload("late", gpu=1000, estimate=HOUR), workload("short", gpu=1000, estimate=100 * S)))
    assert tokens(engine, "late") == ["WaitingForReservation"]
    assert "promised start of big" in why(engine, "late").text
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


def test_like_workloads_cost_one_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0, quota={"gpu_milli": 64_000})
    engine.command(submit(workload("x", count=2, gpu=8000)))
    engine.command(submit(*(workload(f"w{i}", gpu=8000, estimate=HOUR) for i in range(1000))))
    asked = {"slots": 0, "lack": 0}

    def counted(table: object, name: str) -> None:
        real = getattr(type(table), name)

        def count(*arguments: object, **named: object) -> object:
            asked[name] += 1
            return real(*arguments, **named)

        monkeypatch.setattr(type(table), name, count)

    counted(engine.state.capacity, "slots")
    counted(engine.state.queues, "lack")
    page = engine.query(Query(kind="workloads", columns=("id", "reason"), limit=2000))
    assert [reason for _, reason in page.rows].count("InsufficientCapacity") == 1000
    for i in (0, 1, 500, 999):
        assert tokens(engine, f"w{i}") == ["InsufficientCapacity"]
    # The first of them is promised its time, and so is no longer quite like the others.
    assert asked["lack"] <= 2
    assert asked["slots"] <= 2
    engine.command(cmd.Cancel(ids=("w7",)))
    asked["lack"] = 0
    assert tokens(engine, "w8") == ["InsufficientCapacity"]
    assert asked["lack"] > 0, "a new version is looked at anew"


def tree(*children: QueueSpec, **root: object) -> Engine:
    """48 GPU of nodes under a tree of queues."""
    spec = msgspec.structs.replace(
        small_cell(gpu_nodes=6),
        queues=(QueueSpec(name="root", **root), *children),
        priority_classes=(
            PriorityClassSpec(name="normal", value=5),
            PriorityClassSpec(name="high", value=9, preemption="lower"),
        ),
    )
    return Engine.open(None, cell=spec)


def test_quota_names_the_vertex_the_pool_and_who_borrows_there() -> None:
    engine = tree(
        QueueSpec(name="a", parent="root", nominal={"gpu_milli": 8000}, reclaim="never"),
        QueueSpec(name="b", parent="root", nominal={"gpu_milli": 4000}),
        QueueSpec(name="c", parent="root", nominal={"gpu_milli": 4000}),
    )
    engine.command(submit(workload("c1", queue="c", gpu=6000), workload("b1", queue="b", gpu=8000)))
    engine.command(submit(workload("a1", gpu=4000)))
    assert why(engine, "a1") == Reason(
        token="WaitingForQuota",
        text="asks for 4 GPU, 2 GPU above the 16 GPU that queue root and the queues below it share; it uses 14 GPU; "
        "queue b borrows 4 GPU; queue c borrows 2 GPU",
        unblock="2 GPU returned in root, or a larger quota",
    )


def test_quota_of_a_pool_is_told_by_its_name() -> None:
    engine = tree(
        QueueSpec(name="a", parent="root", flavors=(FlavorQuota(pool="gpu", nominal={"gpu_milli": 4000}),)),
    )
    engine.command(submit(workload("x", gpu=3000), workload("y", gpu=2000)))
    assert why(engine, "y").text == (
        "asks for 2 GPU in pool gpu, 1 GPU above the 4 GPU that queue root and the queues below it share; it uses 3 GPU"
    )
    assert why(engine, "y").unblock == "1 GPU in pool gpu returned in root, or a larger quota"


def test_a_burst_is_shown_with_its_end_and_while_it_cools_down() -> None:
    burst = BurstSpec(limit={"gpu_milli": 16_000}, window_ms=100 * S, cooldown_ms=100 * S)
    engine = tree(
        QueueSpec(name="a", parent="root", nominal={"gpu_milli": 8000}, borrowing_limit={"gpu_milli": 0}, burst=burst),
        nominal={"gpu_milli": 40_000},
    )
    engine.command(submit(*(workload(f"w{i}", gpu=8000, run=HOUR, estimate=HOUR) for i in range(3))))
    assert engine.workload("w0").flags == ()
    assert engine.workload("w1").flags == ("burst",)
    assert engine.workload("w1").burst_ends_ms == 100 * S
    assert tokens(engine, "w2") == ["WaitingForQuota"]
    engine.advance(100 * S)
    assert engine.workload("w1").burst_ends_ms is None
    assert (
        "its burst is over: the next may begin at 1970-01-01 00:03:20 UTC; it uses 16 GPU, 8 GPU of it in a"
        in why(engine, "w2").text
    )


def test_a_queue_that_is_closed_names_the_vertex() -> None:
    engine = cell()
    engine.command(cmd.HoldQueues(names=("root",)))
    engine.command(submit(workload("x")))
    engine.command(cmd.DrainQueues(names=("a",)))
    assert [reason.text for reason in engine.workload("x").reasons] == ["queue a is draining", "queue root is held"]
    assert why(engine, "x").token == "QueueHeld"
    assert engine.workload("x").start_not_before_ms is None


def test_an_array_at_its_limit_says_how_many_run() -> None:
    engine = cell()
    engine.command(submit(msgspec.structs.replace(workload("m"), array=ArraySpec(last=3, max_running=2))))
    assert why(engine, "m/2").text == "2 members of array m are running, limit 2"
    assert tokens(engine, "m/3") == ["ArrayLimit"]
    assert engine.workload("m/2").array == "m"


def test_dependencies_say_of_whom_and_what_can_never_be() -> None:
    engine = cell()
    after = (Dependency(id="first"), Dependency(id="second", on="ended"))
    engine.command(submit(workload("first"), workload("second"), msgspec.structs.replace(workload("x"), after=after)))
    assert [reason.text for reason in engine.workload("x").reasons] == [
        "waits for first, which is running, to finish", "waits for second, which is running, to end"
    ]  # fmt: skip
    engine.command(cmd.Cancel(ids=("first",)))
    assert tokens(engine, "x") == ["DependencyNeverSatisfied", "WaitingForDependency"]
    assert why(engine, "x").text == "waits for first, which is cancelled, to finish: that can no longer happen"
    found = engine.workload("x").waits_for
    assert [(d.id, d.on, d.state, d.never) for d in found] == [
        ("first", "finished", "cancelled", True), ("second", "ended", "running", False)
    ]  # fmt: skip
    engine.command(cmd.Hold(ids=("x",)))
    assert tokens(engine, "x") == ["OnHold", "DependencyNeverSatisfied", "WaitingForDependency"]


def test_start_time_and_back_off_say_until_when() -> None:
    engine = cell()
    late = msgspec.structs.replace(workload("late"), not_before_ms=HOUR)
    again = msgspec.structs.replace(workload("again"), simulated_failures=1, retries=2, backoff_ms=600 * S)
    engine.command(submit(late, again))
    assert why(engine, "late") == Reason(
        token="WaitingForStartTime", text="is to start no earlier than 1970-01-01 01:00:00 UTC"
    )
    engine.advance(60 * S)
    detail = engine.workload("again")
    assert (detail.state, detail.failures, detail.retries) == ("waiting", 1, 2)
    assert why(engine, "again").token == "Backoff"
    assert why(engine, "again").text.startswith("its attempt 1 did not succeed; the next may begin at 1970-01-01 00:1")
    assert [item.detail for item in detail.history if item.what == "failed"] == ["its work failed"]


def test_a_suspended_workload_says_how_to_resume() -> None:
    engine = cell()
    engine.command(submit(workload("x")))
    engine.command(cmd.Suspend(ids=("x",)))
    assert (why(engine, "x").token, why(engine, "x").unblock) == ("Suspended", "resume x")


def test_preempted_work_says_for_whom_and_by_which_rule() -> None:
    engine = tree(QueueSpec(name="a", parent="root"))
    engine.command(submit(*(workload(f"w{i}", gpu=8000, run=HOUR, estimate=HOUR) for i in range(6))))
    engine.advance(10 * S)
    engine.command(submit(workload("first", gpu=8000, priority="high", estimate=HOUR)))
    assert engine.workload("first").state == "running"
    [name] = [f"w{i}" for i in range(6) if engine.workload(f"w{i}").state == "queued"]
    assert engine.workload(name).history[-1].detail == "preempted for first (lower priority, same queue)"


def test_while_victims_write_their_checkpoints_both_sides_say_so() -> None:
    engine = tree(QueueSpec(name="a", parent="root"))
    saving = [
        msgspec.structs.replace(workload(f"w{i}", gpu=8000, run=HOUR, estimate=HOUR), checkpoint_cost_ms=20 * S)
        for i in range(6)
    ]
    engine.command(submit(*saving))
    engine.advance(10 * S)
    engine.command(submit(workload("first", gpu=8000, priority="high", estimate=HOUR), workload("next", gpu=8000)))
    [name] = [f"w{i}" for i in range(6) if engine.workload(f"w{i}").making_room_for]
    assert engine.workload(name).history[-1].detail == "writing a checkpoint to make room for first"
    assert why(engine, "first") == Reason(
        token="WaitingForPreempted", text=f"{name} writes a checkpoint to make room, until 1970-01-01 00:00:30 UTC"
    )
    assert engine.workload("first").start_not_before_ms == 30 * S
    assert why(engine, "next").token == "InsufficientCapacity"
    engine.advance(30 * S)
    assert engine.workload("first").state == "running"
    assert engine.workload(name).making_room_for == ""


def test_an_elastic_gang_says_how_many_it_has_and_who_took_the_others() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    group = TaskGroup(count=4, min_count=1, request=Resources(gpu_milli=4000))
    engine.command(submit(WorkloadSpec(id="e", queue="b", groups=(group,), elastic=True, estimate_ms=HOUR)))
    assert (engine.workload("e").tasks_placed, engine.workload("e").tasks_total) == (4, 4)
    engine.command(submit(workload("x", gpu=8000, estimate=HOUR)))
    assert engine.workload("e").tasks_placed == 2
    assert engine.workload("e").history[-1].detail == "2 tasks less, to make room for x"


def test_nodes_kept_by_a_reservation_are_named() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(
        cmd.Reserve(reservation=ReservationSpec(name="demo", nodes=("g0", "g1"), start_ms=30 * S, end_ms=HOUR))
    )
    own = msgspec.structs.replace(workload("own", gpu=8000), reservation="demo")
    engine.command(submit(workload("x", gpu=8000, estimate=60 * S), own))
    assert tokens(engine, "x") == ["WaitingForReservation", "InsufficientCapacity"]
    assert why(engine, "x").text == (
        "2 nodes it could use are held by reservation demo, from 1970-01-01 00:00:30 UTC until 1970-01-01 01:00:00 UTC"
    )
    assert why(engine, "own").text == (
        "may use only the nodes of reservation demo, which starts at 1970-01-01 00:00:30 UTC"
    )
    engine.advance(30 * S)
    assert engine.workload("own").state == "running"


def test_the_promised_start_is_told() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(submit(workload("now", gpu=8000, run=100 * S, estimate=100 * S)))
    engine.command(submit(workload("big", count=2, gpu=8000), workload("late", gpu=1000, estimate=HOUR)))
    assert engine.workload("big").promised_start_ms == engine.workload("big").start_not_before_ms == 100 * S
    assert engine.workload("late").promised_start_ms is None


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


@settings(max_examples=examples(120), deadline=None, derandomize=True)
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
        assert engine.workload(f"w{i}").start_not_before_ms is None, "what runs has no earliest start"
        return
    told = engine.workload(f"w{i}").start_not_before_ms
    assert told is not None
    engine.advance(told - 1)
    assert engine.workload(f"w{i}").state == "queued"
    engine.advance(told)
    assert engine.workload(f"w{i}").state == "running"


def test_the_earliest_start_is_unknown_when_what_is_in_the_way_gave_no_estimate_but_it_is_not_now() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("now", gpu=8000, estimate=0, run=10 * S), workload("x", gpu=8000)))
    told = engine.workload("x").start_not_before_ms
    assert told is None or told > 365 * 24 * HOUR


def test_the_earliest_start_follows_the_clock_when_work_outlives_its_estimate() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("now", gpu=8000, estimate=10 * S, run=HOUR), workload("x", gpu=8000)))
    assert engine.workload("x").start_not_before_ms == 10 * S
    engine.advance(25 * S)
    told = engine.workload("x").start_not_before_ms
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
