"""What starts when, and where: gangs, order, FCFS and EASY, quota, GPU shares, drains, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from cells import CLASSES, small_cell, submit, workload
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from invariants import check_settled, check_state

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, QueueSpec, Resources, Settings, TaskGroup, WorkloadSpec

S = 1000
HOUR = 3600 * S


def cell(policy: str = "easy", **sizes: object) -> Engine:
    engine = Engine.open(None, cell=small_cell(**sizes))
    engine.command(cmd.SetPolicy(policy=policy))
    return engine


def state(engine: Engine, *names: str) -> list[str]:
    return [engine.workload(name).state for name in names]


def running(engine: Engine) -> set[str]:
    w = engine.state.workloads
    return {name for name in w.ids if engine.workload(name).state == "running"}


def nodes(engine: Engine, name: str) -> dict[str, int]:
    """Node -> tasks there."""
    found: dict[str, int] = {}
    for place in engine.workload(name).placement:
        found[place.node] = found.get(place.node, 0) + place.tasks
    return found


def started(engine: Engine, name: str) -> int:
    at = engine.workload(name).started_ms
    assert at is not None, f"{name} never started"
    return at


def gang(name: str, *groups: tuple[int, dict[str, int]], queue: str = "a", run: int = 60 * S) -> WorkloadSpec:
    made = tuple(
        TaskGroup(name=f"g{i}", count=count, request=Resources(**request)) for i, (count, request) in enumerate(groups)
    )
    return WorkloadSpec(id=name, queue=queue, groups=made, estimate_ms=run, simulated_runtime_ms=run)


# -- gangs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fcfs", "easy"])
def test_a_gang_starts_whole_or_not_at_all(policy: str) -> None:
    engine = cell(policy, gpu_nodes=4, cpu_nodes=0)
    engine.command(submit(workload("one", gpu=8000, run=10 * S, estimate=10 * S)))
    engine.command(submit(workload("four", count=4, gpu=8000)))
    assert state(engine, "four") == ["queued"]
    assert nodes(engine, "four") == {}
    assert engine.overview().used["gpu_milli"] == 8000, "a gang that waits holds nothing"
    engine.advance(10 * S)
    assert nodes(engine, "four") == {f"g{i}": 1 for i in range(4)}
    assert started(engine, "four") == 10 * S


def test_two_gangs_that_each_need_more_than_half_run_one_after_the_other() -> None:
    engine = cell(gpu_nodes=4, cpu_nodes=0)
    engine.command(submit(workload("x", count=3, gpu=8000), workload("y", count=3, gpu=8000, queue="b")))
    assert state(engine, "x", "y") == ["running", "queued"]
    engine.advance(60 * S)
    assert state(engine, "x", "y") == ["finished", "running"]


def test_every_group_of_a_gang_is_placed_and_keeps_its_own_request() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=1)
    spec = gang("x", (1, {"cpu_milli": 20_000}), (3, {"cpu_milli": 4000, "gpu_milli": 4000}), (2, {"gpu_milli": 500}))
    engine.command(submit(spec))
    by_group: dict[str, int] = {}
    for place in engine.workload("x").placement:
        by_group[place.group] = by_group.get(place.group, 0) + place.tasks
    assert by_group == {"g0": 1, "g1": 3, "g2": 2}
    assert engine.overview().used == {"cpu_milli": 32_000, "memory_mib": 0, "gpu_milli": 13_000, "disk_mib": 0}


def test_when_one_group_finds_no_room_the_others_take_none() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=1)
    engine.command(submit(workload("other", gpu=1000, run=10 * S, estimate=10 * S)))
    engine.command(submit(gang("x", (1, {"cpu_milli": 32_000}), (1, {"gpu_milli": 8000}), queue="b")))
    assert state(engine, "x") == ["queued"]
    assert engine.node("c0").free["cpu_milli"] == 32_000
    engine.advance(10 * S)
    assert state(engine, "x") == ["running"]


def test_groups_that_fit_one_by_one_but_not_together_wait_for_room_for_both() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(submit(workload("other", gpu=8000, run=10 * S, estimate=10 * S)))
    engine.command(submit(gang("x", (1, {"gpu_milli": 5000}), (1, {"gpu_milli": 4000}), queue="b")))
    assert state(engine, "x") == ["queued"]
    check_settled(engine)
    engine.advance(10 * S)
    assert len(nodes(engine, "x")) == 2


def test_the_cell_can_be_filled_to_the_last_unit() -> None:
    """Nothing is said not to fit that does: every size that divides a node fills all of them."""
    for gpu in (125, 250, 500, 1000, 2000, 4000, 8000):
        engine = cell(gpu_nodes=3, cpu_nodes=0)
        count = 3 * 8000 // gpu
        engine.command(submit(workload("all", count=count, gpu=gpu, cpu=1)))
        assert state(engine, "all") == ["running"], f"{count} tasks of {gpu} milli-GPU"
        assert engine.overview().used["gpu_milli"] == 24_000


# -- order ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fcfs", "easy"])
def test_higher_priority_goes_first_then_the_older(policy: str) -> None:
    engine = cell(policy, gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("now", gpu=8000, run=1 * S, estimate=1 * S)))
    names = [("l1", "low"), ("n1", "normal"), ("h1", "high"), ("h2", "high"), ("n2", "normal"), ("l2", "low")]
    for name, priority in names:
        engine.command(submit(workload(name, gpu=8000, priority=priority, run=1 * S, estimate=1 * S)))
    engine.advance(HOUR)
    order = sorted((name for name, _ in names), key=lambda name: started(engine, name))
    assert order == ["h1", "h2", "n1", "n2", "l1", "l2"]


def test_priority_counts_across_queues() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("now", gpu=8000)))
    engine.command(submit(workload("old", gpu=8000, queue="a")))
    engine.command(submit(workload("urgent", gpu=8000, queue="b", priority="high")))
    engine.advance(60 * S)
    assert state(engine, "old", "urgent") == ["queued", "running"]


def test_fcfs_starts_nothing_before_what_is_ahead_in_its_queue_but_queues_do_not_wait_for_each_other() -> None:
    engine = cell("fcfs", gpu_nodes=1, cpu_nodes=1)
    engine.command(submit(workload("now", gpu=8000)))
    engine.command(submit(workload("first", gpu=1000), workload("second", pools=("cpu",))))
    engine.command(submit(workload("elsewhere", pools=("cpu",), queue="b")))
    assert state(engine, "first", "second", "elsewhere") == ["queued", "queued", "running"]
    engine.command(cmd.SetPolicy(policy="easy"))
    assert state(engine, "first", "second") == ["queued", "running"]


def test_fcfs_goes_on_when_the_first_is_held_or_cancelled() -> None:
    for action in (cmd.Hold, cmd.Cancel):
        engine = cell("fcfs", gpu_nodes=1, cpu_nodes=1)
        engine.command(submit(workload("now", gpu=8000)))
        engine.command(submit(workload("first", gpu=1000), workload("second", pools=("cpu",))))
        assert state(engine, "second") == ["queued"]
        engine.command(action(ids=("first",)))
        assert state(engine, "second") == ["running"]


# -- EASY -----------------------------------------------------------------------------------------------------------


def promised(late: WorkloadSpec) -> Engine:
    """`now` keeps one node until 100 s, `big` needs two: it is promised 100 s. Then `late` comes."""
    engine = cell(gpu_nodes=2, cpu_nodes=1)
    engine.command(submit(workload("now", gpu=8000, run=100 * S, estimate=100 * S)))
    engine.command(submit(workload("big", count=2, gpu=8000)))
    assert engine.workload("big").start_not_before_ms == 100 * S
    engine.command(submit(late))
    return engine


def test_backfill_starts_what_ends_before_the_promised_start() -> None:
    engine = promised(workload("late", gpu=8000, run=100 * S, estimate=100 * S))
    assert state(engine, "late") == ["running"]
    engine.advance(HOUR)
    assert started(engine, "big") == 100 * S


@pytest.mark.parametrize("estimate", [100 * S + 1, 0])
def test_backfill_starts_nothing_that_would_run_past_the_promised_start_on_what_it_needs(estimate: int) -> None:
    engine = promised(workload("late", gpu=1000, estimate=estimate, run=200 * S))
    assert state(engine, "late") == ["queued"]
    engine.advance(HOUR)
    assert started(engine, "big") == 100 * S
    assert started(engine, "late") >= 160 * S


def test_backfill_starts_what_runs_past_the_promised_start_elsewhere() -> None:
    engine = promised(workload("late", pools=("cpu",), estimate=0, run=HOUR))
    assert state(engine, "late") == ["running"]


def test_backfill_starts_what_runs_past_the_promised_start_on_what_is_left_over() -> None:
    """`big` leaves 8 CPUs to spare on each of its nodes, not 9."""
    for cpu, expected in ((8000, "running"), (9000, "queued")):
        engine = cell(gpu_nodes=2, cpu_nodes=0)
        engine.command(submit(workload("now", cpu=64_000, run=100 * S, estimate=100 * S)))
        engine.command(submit(workload("big", count=2, gpu=1000, cpu=56_000)))
        engine.command(submit(workload("late", cpu=cpu, run=HOUR, estimate=HOUR)))
        assert state(engine, "big", "late") == ["queued", expected]
        engine.advance(HOUR // 2)
        assert started(engine, "big") == 100 * S


def test_what_is_left_over_at_the_promised_start_is_given_away_once() -> None:
    """At 100 s three nodes are free and `big` needs two: one node, not two, may be taken past that time."""
    engine = cell(gpu_nodes=4, cpu_nodes=0)
    engine.command(submit(workload("now", count=2, gpu=8000, run=100 * S, estimate=100 * S)))
    engine.command(submit(workload("big", count=3, gpu=8000)))
    engine.command(submit(*(workload(f"late{i}", gpu=8000, estimate=HOUR, run=HOUR) for i in range(2))))
    assert state(engine, "big", "late0", "late1") == ["queued", "running", "queued"]
    engine.advance(100 * S)
    assert state(engine, "big") == ["running"]


def test_work_that_ends_early_brings_the_promised_start_forward() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(submit(workload("now", gpu=8000, run=10 * S, estimate=100 * S)))
    engine.command(submit(workload("big", count=2, gpu=8000)))
    engine.advance(10 * S)
    assert started(engine, "big") == 10 * S


def test_work_that_outlives_its_estimate_does_not_stop_the_cell() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(submit(workload("now", gpu=8000, run=100 * S, estimate=10 * S)))
    engine.command(submit(workload("big", count=2, gpu=8000)))
    engine.advance(50 * S)
    assert state(engine, "big") == ["queued"]
    assert engine.workload("big").start_not_before_ms == 70 * S, "a minute more than was expected, not in the past"
    engine.advance(100 * S)
    assert state(engine, "big") == ["running"]


def test_a_newcomer_of_higher_priority_takes_the_promise() -> None:
    engine = promised(workload("late", count=2, gpu=8000, priority="high"))
    engine.advance(HOUR)
    assert (started(engine, "late"), started(engine, "big")) == (100 * S, 160 * S)


def test_the_promise_ends_when_the_workload_it_was_given_to_is_held_or_cancelled() -> None:
    for action in (cmd.Hold, cmd.Cancel):
        engine = promised(workload("late", gpu=1000, estimate=HOUR, run=HOUR))
        assert state(engine, "late") == ["queued"]
        engine.command(action(ids=("big",)))
        assert state(engine, "late") == ["running"]


def test_the_promise_passes_to_what_has_waited_too_long_at_that_time_though_nothing_else_happens() -> None:
    """`late` is older, but its queue holds more: `big` of the other queue is promised the nodes first. Once both have
    waited for longer than the cell lets shares count, age does."""
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(cmd.SetSettings(settings=Settings(starve_after_ms=5 * S)))
    engine.command(submit(workload("now", queue="b", gpu=8000, run=100 * S, estimate=100 * S)))
    late = workload("late", queue="b", gpu=8000, run=HOUR, estimate=HOUR)
    engine.command(submit(late, workload("big", count=2, gpu=8000)))
    assert state(engine, "late", "big") == ["queued", "queued"]
    engine.advance(HOUR)
    assert started(engine, "late") == 5 * S + 1


def test_what_no_end_of_running_work_lets_start_holds_up_nobody() -> None:
    """Half of the nodes it needs are cordoned: no time can be promised, so none is kept free."""
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(cmd.Cordon(ids=("g1",)))
    engine.command(submit(workload("big", count=2, gpu=8000)))
    engine.command(submit(workload("small", gpu=1000, run=HOUR, estimate=HOUR)))
    assert state(engine, "big", "small") == ["queued", "running"]
    assert engine.workload("big").start_not_before_ms is None


jobs = st.tuples(
    st.integers(1, 3),  # tasks
    st.sampled_from([(0, 8000), (0, 20_000), (250, 1000), (500, 1000), (1000, 1000), (3000, 4000), (8000, 8000)]),
    st.integers(1, 60),  # seconds
    st.integers(0, 15),  # seconds since the last arrival
)


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(work=st.lists(jobs, min_size=2, max_size=14))
@example(work=[(2, (8000, 1000), 10, 0), (3, (8000, 1000), 5, 0), (1, (500, 1000), 60, 0)])
def test_nobody_starts_later_than_the_start_first_promised(work) -> None:
    """With exact estimates and one priority: whoever was first in line starts no later than it was then told."""
    engine = cell(gpu_nodes=3, cpu_nodes=1)
    told: dict[int, int] = {}

    def note() -> None:
        promise = engine.scheduler.memory.reservation
        if promise is not None and promise.start_ms is not None:
            told.setdefault(promise.row, promise.start_ms)
        check_state(engine.state)

    at = 0
    for i, (count, (gpu, cpu), seconds, gap) in enumerate(work):
        at += gap * S
        follow(engine, at, note)
        spec = workload(f"w{i}", count=count, gpu=gpu, cpu=cpu, run=seconds * S, estimate=seconds * S)
        engine.command(submit(spec))
        note()
    follow(engine, HOUR, note)
    for row, start in told.items():
        assert started(engine, f"w{row}") <= start


def follow(engine: Engine, until: int, note) -> None:
    """Let time pass, and note after each end of work."""
    while (end := engine.next_due()) is not None and end <= until:
        engine.advance(end)
        note()
    engine.advance(until)


# -- quota ----------------------------------------------------------------------------------------------------------


def used(engine: Engine, queue: str) -> int:
    tree = engine.state.queues
    return tree.used_vector(tree.row_of[queue])[2]


def test_what_waits_for_quota_holds_up_nobody_else() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0, quota={"gpu_milli": 8000})
    engine.command(submit(workload("x", gpu=6000)))
    engine.command(submit(workload("over", gpu=4000), workload("within", gpu=2000)))
    engine.command(submit(workload("other", gpu=8000, queue="b")))
    assert state(engine, "over", "within", "other") == ["queued", "running", "running"]
    engine.advance(60 * S)
    assert state(engine, "over") == ["running"]


@pytest.mark.parametrize("ending", ["finish", "cancel", "requeue", "drain"])
def test_quota_is_charged_once_up_the_tree_and_returned_once(ending: str) -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0, quota={"gpu_milli": 8000})
    engine.command(submit(workload("x", count=2, gpu=3000)))
    assert [used(engine, q) for q in ("a", "root", "b")] == [6000, 6000, 0]
    match ending:
        case "finish":
            engine.advance(60 * S)
        case "cancel":
            engine.command(cmd.Cancel(ids=("x",)))
        case "requeue":
            engine.commands([cmd.Requeue(ids=("x",)), cmd.Hold(ids=("x",))])
        case "drain":
            engine.command(cmd.Drain(ids=("g0", "g1")))
    assert [used(engine, q) for q in ("a", "root", "b")] == [0, 0, 0]
    engine.command(cmd.Uncordon(ids=("g0", "g1")))
    if ending in ("finish", "cancel"):
        engine.command(submit(workload("next", gpu=8000)))
        assert state(engine, "next") == ["running"]
    check_state(engine.state)


def test_the_quota_of_a_tree_bounds_all_its_queues_together() -> None:
    queues = (
        QueueSpec(name="root", nominal={"gpu_milli": 2000}),
        QueueSpec(name="a", parent="root", nominal={"gpu_milli": 8000}),
        QueueSpec(name="b", parent="root"),
    )
    engine = Engine.open(None, cell=msgspec.structs.replace(small_cell(), queues=queues))
    engine.command(submit(workload("x", gpu=8000), workload("y", gpu=3000, queue="b")))
    assert state(engine, "x", "y") == ["running", "queued"]
    engine.command(submit(workload("z", gpu=2000, queue="b")))
    assert state(engine, "z") == ["running"]


# -- GPUs -----------------------------------------------------------------------------------------------------------


def devices(engine: Engine, name: str) -> list[tuple[str, int]]:
    """Each device the workload is on."""
    return [(place.node, device) for place in engine.workload(name).placement for device in place.devices]


def test_a_share_is_on_exactly_one_device_even_when_two_halves_are_free() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(*(workload(f"w{i}", gpu=600) for i in range(8))))
    assert sorted(devices(engine, f"w{i}")[0][1] for i in range(8)) == list(range(8))
    engine.command(submit(workload("more", gpu=500)))
    assert state(engine, "more") == ["queued"], "3200 milli are free, but 400 at most on one device"
    engine.command(submit(workload("less", gpu=400)))
    assert len(devices(engine, "less")) == 1


def test_a_share_goes_to_the_device_that_is_fullest() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(submit(workload("x", gpu=300), workload("y", gpu=600)))
    assert devices(engine, "x") == devices(engine, "y")
    engine.command(submit(workload("z", gpu=200)))
    assert devices(engine, "z") != devices(engine, "x")


def test_a_device_is_never_both_shared_and_whole() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("share", gpu=100), workload("whole", gpu=7000)))
    assert len(devices(engine, "whole")) == 7
    assert not set(devices(engine, "whole")) & set(devices(engine, "share"))
    engine.command(submit(workload("one", gpu=1000)))
    assert state(engine, "one") == ["queued"]
    engine.command(submit(workload("rest", gpu=900)))
    assert devices(engine, "rest") == devices(engine, "share")


def test_whole_devices_of_one_task_are_on_one_node() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(submit(workload("x", gpu=6000), workload("y", gpu=6000)))
    assert {len(nodes(engine, name)) for name in ("x", "y")} == {1}
    engine.command(submit(workload("z", gpu=4000)))
    assert state(engine, "z") == ["queued"], "two devices are free on each node"


# -- where ----------------------------------------------------------------------------------------------------------


def test_work_without_gpus_leaves_gpu_nodes_to_others_but_uses_them_when_it_must() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=2)
    for i in range(2):
        engine.command(submit(workload(f"w{i}", cpu=32_000)))
        assert nodes(engine, f"w{i}") == {f"c{i}": 1}
    engine.command(submit(workload("more", cpu=32_000)))
    assert nodes(engine, "more") == {"g0": 1}


def mixed() -> Engine:
    def pool(name: str, model: str) -> PoolSpec:
        return PoolSpec(name=name, gpu_model=model, capacity=Resources(cpu_milli=8000, gpu_milli=2000, disk_mib=100))

    return Engine.open(
        None,
        cell=CellSpec(
            pools=(pool("old", "A100"), pool("new", "H100"), pool("newer", "H200")),
            nodes=tuple(NodeSpec(id=f"{name}{i}", pool=name) for name in ("old", "new", "newer") for i in range(2)),
            queues=(QueueSpec(name="a"),),
            priority_classes=CLASSES,
        ),
    )


def test_device_models_are_obeyed_for_every_task() -> None:
    engine = mixed()
    engine.command(submit(workload("x", count=4, gpu=2000, models=("H100", "H200"))))
    assert set(nodes(engine, "x")) == {"new0", "new1", "newer0", "newer1"}
    engine.command(submit(workload("y", gpu=500, models=("H100",)), workload("z", gpu=500)))
    assert state(engine, "y", "z") == ["queued", "running"]
    assert set(nodes(engine, "z")) <= {"old0", "old1"}


def test_pools_are_obeyed_for_every_task() -> None:
    engine = mixed()
    engine.command(submit(workload("x", count=4, cpu=4000, pools=("newer",))))
    assert nodes(engine, "x") == {"newer0": 2, "newer1": 2}
    engine.command(submit(workload("y", pools=("newer",))))
    assert state(engine, "y") == ["queued"]


def test_a_node_with_too_little_disk_is_passed_by() -> None:
    engine = mixed()
    engine.command(submit(workload("x", disk=60, pools=("old",))))
    engine.command(submit(workload("y", disk=60, pools=("old",))))
    engine.command(submit(workload("z", disk=60, pools=("old",))))
    engine.command(submit(workload("small", disk=40, pools=("old",))))
    assert state(engine, "x", "y", "z", "small") == ["running", "running", "queued", "running"]
    assert nodes(engine, "x") != nodes(engine, "y")


sizes = st.builds(
    Resources,
    cpu_milli=st.sampled_from([500, 3000, 9000, 30_000]),
    memory_mib=st.sampled_from([0, 1000, 50_000]),
    gpu_milli=st.sampled_from([0, 0, 300, 500, 1000, 2000, 5000]),
    disk_mib=st.sampled_from([0, 0, 30_000]),
)


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(requests=st.lists(sizes, min_size=1, max_size=25))
def test_nothing_waits_that_some_node_could_take(requests: Sequence[Resources]) -> None:
    """Single tasks without a run time to promise: each waits only if no node has room for it as a whole."""
    engine = cell(gpu_nodes=2, cpu_nodes=1)
    for i, request in enumerate(requests):
        spec = WorkloadSpec(id=f"w{i}", queue="a", groups=(TaskGroup(request=request),), estimate_ms=S)
        engine.command(submit(spec))
        w = engine.workload(f"w{i}")
        if w.state == "queued":
            assert not any(fits(engine, node, request) for node in ("g0", "g1", "c0")), request
        else:
            assert w.state == "running"


def fits(engine: Engine, node: str, request: Resources) -> bool:
    detail = engine.node(node)
    free = detail.free
    if request.gpu_milli >= 1000:
        gpu = detail.devices.count(1000) * 1000 >= request.gpu_milli
    else:
        gpu = not request.gpu_milli or max(detail.devices, default=0) >= request.gpu_milli
    return gpu and all(free[name] >= getattr(request, name) for name in ("cpu_milli", "memory_mib", "disk_mib"))


# -- nodes come and go ------------------------------------------------------------------------------------------------


def test_a_cordoned_node_keeps_its_work_and_takes_no_more_until_it_is_uncordoned() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("x", gpu=1000, run=10 * S, estimate=10 * S)))
    engine.command(cmd.Cordon(ids=("g0",)))
    engine.command(submit(workload("y", gpu=1000)))
    assert state(engine, "x", "y") == ["running", "queued"]
    engine.advance(10 * S)
    assert state(engine, "x", "y") == ["finished", "queued"]
    engine.command(cmd.Uncordon(ids=("g0",)))
    assert state(engine, "y") == ["running"]


def test_a_drain_moves_a_gang_as_a_whole() -> None:
    engine = cell(gpu_nodes=4, cpu_nodes=0)
    engine.command(submit(workload("x", count=2, gpu=8000), workload("y", gpu=8000)))
    assert nodes(engine, "x") == {"g0": 1, "g1": 1}
    receipt = engine.command(cmd.Drain(ids=("g0",)))
    assert receipt.changed == ("g0", "x")
    assert engine.node("g0").state == "draining"
    assert "g0" not in nodes(engine, "x")
    assert sum(nodes(engine, "x").values()) == 2
    assert engine.workload("y").attempts == 1, "what is not on the node goes on undisturbed"
    assert [item.what for item in engine.workload("x").history][-3:] == ["requeued", "placed", "running"]


@pytest.mark.parametrize("policy", ["fcfs", "easy"])
def test_what_a_drain_put_back_goes_before_what_came_later(policy: str) -> None:
    engine = cell(policy, gpu_nodes=2, cpu_nodes=0)
    engine.command(submit(workload("x", gpu=8000, run=HOUR), workload("y", gpu=8000, run=10 * S, estimate=10 * S)))
    engine.command(submit(workload("younger", gpu=8000)))
    engine.command(cmd.Drain(ids=("g0",)))
    assert state(engine, "x", "younger") == ["queued", "queued"]
    assert [engine.workload(name).position for name in ("x", "younger")] == [1, 2]
    engine.advance(10 * S)
    assert state(engine, "x", "younger") == ["running", "queued"]


# -- checkpoints, and the actions of people ---------------------------------------------------------------------------


def end(engine: Engine, name: str) -> int:
    at = engine.workload(name).ended_ms
    assert at is not None
    return at


@pytest.mark.parametrize(("checkpoint", "kept"), [(0, 0), (10 * S, 30 * S), (7 * S, 35 * S), (40 * S, 0)])
def test_after_a_requeue_only_what_came_after_the_last_checkpoint_is_done_again(checkpoint: int, kept: int) -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("x", gpu=8000, run=60 * S, estimate=60 * S, checkpoint=checkpoint)))
    engine.advance(39 * S)
    engine.command(cmd.Requeue(ids=("x",)))
    assert started(engine, "x") == 39 * S, "with room it starts again at once"
    engine.advance(HOUR)
    assert end(engine, "x") == 39 * S + 60 * S - kept
    assert engine.workload("x").attempts == 2


def test_work_kept_adds_up_over_attempts() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("x", gpu=8000, run=60 * S, estimate=60 * S, checkpoint=10 * S)))
    for at in (25 * S, 50 * S):  # 20 s are kept, then 25 s more: 45 s, of which 40 s
        engine.advance(at)
        engine.command(cmd.Requeue(ids=("x",)))
    engine.advance(HOUR)
    assert end(engine, "x") == 70 * S


def test_work_kept_shortens_what_backfill_expects() -> None:
    """50 of 60 s are kept, so 10 s remain: it fits before a start promised at 20 s from now."""
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(submit(workload("x", gpu=8000, run=60 * S, estimate=60 * S, checkpoint=10 * S, priority="low")))
    engine.command(submit(workload("now", gpu=8000, run=75 * S, estimate=75 * S)))
    engine.advance(55 * S)
    engine.commands([cmd.Requeue(ids=("x",)), cmd.Hold(ids=("x",)), submit(workload("big", count=2, gpu=8000))])
    assert engine.workload("big").start_not_before_ms == 75 * S
    engine.command(cmd.Release(ids=("x",)))
    assert state(engine, "x", "big") == ["running", "queued"]
    engine.advance(75 * S)
    assert (end(engine, "x"), started(engine, "big")) == (65 * S, 75 * S)


def test_work_kept_sets_apart_from_like_workloads_that_have_done_nothing_yet() -> None:
    """Both ask for the same, but the older would run past the promised start and the younger has 10 s left."""
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    like = {"gpu": 8000, "run": 60 * S, "estimate": 60 * S, "checkpoint": 10 * S, "priority": "low"}
    engine.command(submit(workload("old", held=True, **like), workload("young", **like)))
    engine.command(submit(workload("now", gpu=8000, run=75 * S, estimate=75 * S)))
    engine.advance(55 * S)
    engine.commands([cmd.Requeue(ids=("young",)), cmd.Hold(ids=("young",)), submit(workload("big", count=2, gpu=8000))])
    engine.command(cmd.Release(ids=("old", "young")))
    assert state(engine, "old", "young") == ["queued", "running"]
    check_settled(engine)
    engine.advance(75 * S)
    assert state(engine, "big") == ["running"]


def test_held_work_waits_for_its_release_and_then_goes_at_its_age() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("now", gpu=8000), workload("x", gpu=8000, held=True), workload("y", gpu=8000)))
    engine.advance(30 * S)
    assert state(engine, "x") == ["held"]
    engine.command(cmd.Release(ids=("x",)))
    assert engine.workload("x").position == 1
    engine.advance(60 * S)
    assert state(engine, "x", "y") == ["running", "queued"]


def test_held_work_does_not_start_though_there_is_room() -> None:
    engine = cell()
    engine.command(submit(workload("x", held=True)))
    engine.advance(HOUR)
    assert state(engine, "x") == ["held"]
    engine.command(cmd.Release(ids=("x",)))
    assert started(engine, "x") == HOUR


def test_cancelled_work_gives_its_room_to_the_next_at_once_and_never_comes_back() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("x", gpu=8000), workload("y", gpu=8000)))
    engine.advance(10 * S)
    engine.command(cmd.Cancel(ids=("x",)))
    assert state(engine, "x", "y") == ["cancelled", "running"]
    assert end(engine, "x") == 10 * S
    engine.advance(HOUR)
    assert state(engine, "x") == ["cancelled"]


def test_requeued_work_lets_go_of_everything_while_it_waits() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("x", gpu=8000, run=HOUR)))
    engine.command(submit(workload("urgent", gpu=8000, priority="high")))
    engine.advance(10 * S)
    engine.command(cmd.Requeue(ids=("x",)))
    assert state(engine, "x", "urgent") == ["queued", "running"]
    detail = engine.workload("x")
    assert (detail.placement, detail.started_ms, detail.position) == ((), None, 1)
    engine.advance(70 * S)
    assert started(engine, "x") == 70 * S


def test_an_attempt_that_was_given_up_does_not_end_the_next() -> None:
    """The first attempt would have ended at 60 s; the second starts at 50 s and takes its own 60 s."""
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("x", gpu=8000)))
    engine.advance(50 * S)
    engine.command(cmd.Requeue(ids=("x",)))
    engine.advance(60 * S)
    assert state(engine, "x") == ["running"]
    engine.advance(110 * S)
    assert (state(engine, "x"), end(engine, "x")) == (["finished"], 110 * S)


def test_nodes_added_later_take_what_waits() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("x", gpu=8000), workload("y", gpu=8000)))
    engine.command(cmd.AddNodes(nodes=(NodeSpec(id="new", pool="gpu"),)))
    assert nodes(engine, "y") == {"new": 1}


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_the_same_seed_and_commands_give_the_same_history(seed: int) -> None:
    def play() -> str:
        engine = Engine.open(None, cell=small_cell(2, 1), seed=seed)
        for i in range(6):
            engine.command(submit(workload(f"w{i}", gpu=3000 * (i % 3), run=0, estimate=60 * S)))
            engine.advance(engine.now_ms + 7 * S)
        engine.advance(HOUR)
        assert not running(engine)
        return engine.state.digest()

    assert play() == play()


def test_a_gang_whose_groups_never_fit_together_is_promised_nothing_and_holds_up_nobody() -> None:
    """4 x 5 GPUs leave 3 on each of 4 nodes: the one task of 4 finds none, though each group alone would fit."""
    engine = cell(gpu_nodes=4, cpu_nodes=0)
    engine.command(submit(gang("never", (4, {"gpu_milli": 5000}), (1, {"gpu_milli": 4000}), queue="b")))
    engine.command(submit(workload("long", gpu=8000, estimate=HOUR, run=HOUR)))
    assert state(engine, "never", "long") == ["queued", "running"]
    check_settled(engine)


def test_later_work_does_not_take_the_quota_that_the_promised_workload_counts_on() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0, quota={"gpu_milli": 8000})
    engine.command(submit(workload("other1", gpu=8000, queue="b", estimate=10 * S, run=10 * S)))
    engine.command(submit(workload("other2", gpu=4000, queue="b", estimate=10 * S, run=10 * S)))
    engine.command(submit(workload("big", gpu=8000, queue="a", estimate=10 * S, run=10 * S)))
    engine.command(submit(workload("late", gpu=1000, queue="a", estimate=HOUR, run=HOUR)))
    engine.command(submit(workload("short", gpu=1000, queue="a", estimate=5 * S, run=5 * S)))
    assert state(engine, "big", "late", "short") == ["queued", "queued", "queued"]
    check_settled(engine)
    engine.advance(10 * S)
    assert state(engine, "big", "late", "short") == ["running", "queued", "queued"]
