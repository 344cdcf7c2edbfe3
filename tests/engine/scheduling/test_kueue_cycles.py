"""The policy `kueue`: Kueue's order, quota and preemption, on cells small enough to be worked out by hand. That Kueue
itself decides so is seen in `tests/differential/kueue`."""

from __future__ import annotations

import sys
from random import Random
from types import FrameType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import check_state
from random_cells import SOME, Adopt, Fork, Life, Names, Pass, lives

from engine.control import Engine
from engine.model.commands import Cancel, HoldQueues, OpenQueues, SetPolicy, Submit
from engine.model.errors import MusterError
from engine.model.specs import (
    CellSpec,
    FlavorQuota,
    KueueRules,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    TaskGroup,
    TopologyRequest,
    WorkloadSpec,
)
from engine.scheduling.kueue_cycles import MAX_STOPS, KueueCycles
from engine.scheduling.kueue_lines import STRICT, WaitingGroup
from engine.state.cell_state import BOUND, State
from engine.state.pending_work import STOPPED
from tests.differential.kueue.lives import life
from tests.differential.kueue.muster_side import MusterSide
from tests.differential.kueue.verdicts import is_endless

LOWER = KueueRules(within_queue="lower_priority")


def queue(name: str, nominal: int, pool: str = "a", **how: object) -> QueueSpec:
    quota = FlavorQuota(pool=pool, nominal={"cpu_milli": 1000 * nominal})
    return QueueSpec(**{"name": name, "parent": "all", "flavors": (quota,), **how})  # type: ignore[arg-type]


def cell(*queues: QueueSpec, nodes: int = 1, cpu: int = 100) -> Engine:
    """Pools `a` and `b`; racks of two nodes."""
    pools = tuple(PoolSpec(name=name, capacity=Resources(cpu_milli=1000 * cpu)) for name in "ab")
    engine = Engine.open(
        None,
        cell=CellSpec(
            pools=pools,
            nodes=tuple(NodeSpec(id=f"{p}{n}", pool=p, rack=f"{p}-{n // 2}") for p in "ab" for n in range(nodes)),
            queues=(QueueSpec(name="all"), *queues),
            priority_classes=tuple(PriorityClassSpec(name=f"p{value}", value=value) for value in (0, 10, 20)),
        ),
    )
    engine.command(SetPolicy(policy="kueue"))
    return engine


def submit(engine: Engine, name: str, queue: str, cpu: int, priority: int = 0, *, tasks: int = 1, least: int = 0,
           rack: bool = False) -> None:  # fmt: skip
    """At a second of its own. `cpu` of each task."""
    engine.advance(engine.now_ms + 1000)
    group = TaskGroup(count=tasks, min_count=least, request=Resources(cpu_milli=1000 * cpu))
    spec = WorkloadSpec(
        id=name, queue=queue, priority_class=f"p{priority}", groups=(group,), simulated_runtime_ms=10**9,
        topology=TopologyRequest(required="rack") if rack else None,
    )  # fmt: skip
    engine.command(Submit(workloads=(spec,)))
    engine.advance(engine.now_ms + 1)


def running(engine: Engine, *names: str) -> list[str]:
    """Those that run, of these."""
    return [name for name in names if engine.workload(name).state == "running"]


def test_what_others_borrowed_and_lower_work_of_its_own_go_together_where_only_both_are_enough() -> None:
    engine = cell(queue("mine", 6, kueue=LOWER), queue("theirs", 4))
    submit(engine, "low", "mine", 4)
    submit(engine, "owns", "theirs", 4)
    submit(engine, "borrows", "theirs", 2)
    submit(engine, "high", "mine", 6, priority=10)
    assert running(engine, "low", "owns", "borrows", "high") == ["owns", "high"]
    check_state(engine.state)


def test_nobody_is_stopped_where_all_would_not_be_enough() -> None:
    engine = cell(queue("mine", 6, kueue=LOWER))
    submit(engine, "keeps", "mine", 3, priority=20)
    submit(engine, "low", "mine", 3)
    submit(engine, "high", "mine", 6, priority=10)
    assert running(engine, "keeps", "low", "high") == ["keeps", "low"]


def test_of_victims_the_lowest_priority_goes_first_and_then_the_youngest_whatever_is_lost() -> None:
    engine = cell(queue("mine", 6, kueue=LOWER))
    for name, priority in (("old", 0), ("young", 0), ("middle", 10)):
        submit(engine, name, "mine", 2, priority)
    submit(engine, "high", "mine", 2, priority=20)
    assert running(engine, "old", "young", "middle", "high") == ["old", "middle", "high"]


def test_victims_that_prove_needless_are_given_back() -> None:
    engine = cell(queue("mine", 6, kueue=LOWER))
    submit(engine, "large", "mine", 4)
    submit(engine, "small", "mine", 2)
    submit(engine, "high", "mine", 4, priority=10)
    assert running(engine, "large", "small", "high") == ["small", "high"]


def test_who_was_refused_is_not_looked_at_again_until_something_of_the_cohort_leaves() -> None:
    """It could reclaim what was borrowed since; Kueue does not look."""
    engine = cell(queue("mine", 4), queue("theirs", 4, kueue=LOWER), queue("third", 0))
    submit(engine, "first", "theirs", 4, priority=10)
    submit(engine, "own", "mine", 2, priority=20)
    submit(engine, "waits", "mine", 4)
    submit(engine, "borrows", "third", 2)
    assert running(engine, "waits", "borrows") == ["borrows"]
    engine.command(Cancel(ids=("own",)))
    assert running(engine, "waits", "borrows") == ["waits"]


def test_a_pool_in_which_it_fits_by_preemption_is_passed_over_or_not_as_the_queue_says() -> None:
    for rule, place in (("try_next", "b"), ("stop", "a")):
        quotas = tuple(FlavorQuota(pool=pool, nominal={"cpu_milli": 4000}) for pool in "ab")
        rules = KueueRules(within_queue="lower_priority", when_can_preempt=rule)  # type: ignore[arg-type]
        engine = cell(QueueSpec(name="mine", parent="all", flavors=quotas, kueue=rules))
        submit(engine, "low", "mine", 4)
        submit(engine, "high", "mine", 4, priority=10)
        assert engine.node(engine.workload("high").placement[0].node).pool == place


def test_a_gang_starts_with_as_many_as_quota_has_and_does_not_grow() -> None:
    engine = cell(queue("mine", 5))
    submit(engine, "other", "mine", 2)
    submit(engine, "gang", "mine", 1, tasks=5, least=2)
    engine.command(Cancel(ids=("other",)))
    assert engine.workload("gang").tasks_placed == 3


def test_a_gang_that_must_be_in_one_rack_preempts_for_room() -> None:
    engine = cell(queue("mine", 100, kueue=LOWER), nodes=4, cpu=4)
    for number in range(4):
        submit(engine, f"low{number}", "mine", 3)
    submit(engine, "gang", "mine", 4, priority=10, tasks=2, rack=True)
    assert running(engine, "gang") == ["gang"]
    assert len(running(engine, *(f"low{number}" for number in range(4)))) == 2
    check_state(engine.state)


def test_a_held_queue_starts_by_priority_and_age_when_it_opens() -> None:
    engine = cell(queue("mine", 2))
    engine.command(HoldQueues(names=("mine",)))
    submit(engine, "low", "mine", 1)
    submit(engine, "old", "mine", 1, priority=10)
    submit(engine, "young", "mine", 1, priority=10)
    engine.command(OpenQueues(names=("mine",)))
    assert running(engine, "low", "old", "young") == ["old", "young"]


def test_a_strict_queue_starts_nothing_behind_its_first() -> None:
    engine = cell(queue("mine", 4, order="strict_fifo"), queue("theirs", 4, reclaim="never"))
    submit(engine, "fills", "theirs", 4, priority=20)
    submit(engine, "runs", "mine", 3)
    submit(engine, "first", "mine", 2)
    submit(engine, "behind", "mine", 1)
    assert running(engine, "first", "behind") == []
    engine.command(Cancel(ids=("runs",)))
    assert running(engine, "first", "behind") == ["first", "behind"]


def test_two_that_take_each_others_place_for_ever_come_to_an_end_here() -> None:
    """Kueue 0.19.2 preempted the victim of this life 671 times in three minutes: the preemptor, which may start with
    fewer tasks, has it stopped for these and then fits with all of them as little as before."""
    spec = life(109)
    muster = MusterSide(spec)
    verdicts = [muster.play(step) for step in spec.steps[:5]]
    assert [is_endless(each) for each in verdicts] == [False] * 4 + [True]
    assert [name for name, verdict in verdicts[-1].items() if verdict.endless] == ["j1"]
    times = sum(item.what == "requeued" for item in muster.engine.workload("j1").history)
    assert times == MAX_STOPS + 1


@pytest.mark.parametrize("seed", range(40))
def test_random_lives_keep_the_invariants_and_are_the_same_twice(seed: int) -> None:
    spec = life(seed)
    one, other = MusterSide(spec), MusterSide(spec)
    for step in spec.steps:
        assert one.play(step) == other.play(step)
        check_state(one.engine.state)
        check_followed(one.engine.state, one.engine.scheduler._kueue)


# -- what is followed -------------------------------------------------------------------------------------------------


kueue_rules = st.builds(
    KueueRules,
    within_queue=st.sampled_from(["never", "lower_priority", "lower_or_newer_equal"]),
    borrow_within_cohort=st.sampled_from(["never", "lower_priority"]),
    borrow_max_priority=st.sampled_from([None, 500]),
    when_can_borrow=st.sampled_from(["stop", "try_next"]),
    when_can_preempt=st.sampled_from(["stop", "try_next"]),
)


@st.composite
def kueue_lives(draw: st.DrawFn) -> Life:
    """Any life, in a cell whose queues have rules of Kueue and no bursts. What would take it to another policy for good
    brings it back as often."""
    life = draw(lives(policies=("kueue",)))
    queues = (msgspec.structs.replace(each, kueue=draw(kueue_rules), burst=None) for each in life.cell.queues)
    cell = msgspec.structs.replace(life.cell, queues=tuple(queues))
    back = Adopt(SetPolicy(policy="kueue"))
    operations = (
        back if isinstance(each, Adopt) and isinstance(each.command, SetPolicy) and draw(st.booleans()) else each
        for each in life.operations
    )
    return Life(cell, life.policy, life.faults, life.seed, tuple(operations))


@SOME
@given(kueue_lives())
def test_what_is_followed_is_what_a_look_at_every_workload_finds(life: Life) -> None:
    engine = Engine.open(None, cell=life.cell, seed=life.seed, faults=life.faults)
    engine.command(SetPolicy(policy="kueue"))
    names = Names.of(life.cell)
    for operation in life.operations:
        if isinstance(operation, Pass | Fork):
            engine.advance(engine.now_ms + operation.milliseconds)
        else:
            commands = names.commands(operation, engine.now_ms)
            for command, answer in zip(commands, engine.commands(commands), strict=True):
                if not isinstance(answer, MusterError):
                    names.accepted(command, answer.changed)
        check_state(engine.state)
        if engine.state.policy == "kueue" and not engine.scheduler.memory.unsettled:
            check_followed(engine.state, engine.scheduler._kueue)


@SOME
@given(kueue_lives(), st.randoms(use_true_random=False))
def test_a_run_in_slices_decides_as_in_one_and_takes_in_what_happens_between(life: Life, random: Random) -> None:
    """One engine finishes each run before anything else happens, one is interrupted after every cycle of one, and one
    is told of the next thing in the middle of it."""
    whole, sliced, disturbed = (Engine.open(None, cell=life.cell, seed=life.seed, faults=life.faults) for _ in range(3))
    for engine in (whole, sliced, disturbed):
        engine.command(SetPolicy(policy="kueue"))
    names = Names.of(life.cell)
    for operation in life.operations:
        if isinstance(operation, Pass | Fork):
            for engine in (whole, sliced, disturbed):
                finish(engine)
                engine.advance(engine.now_ms + operation.milliseconds)
        else:
            commands = names.commands(operation, whole.now_ms)
            sliced.enough = lambda: True
            disturbed.enough = lambda: random.random() < 0.7
            for command, answer in zip(commands, whole.commands(commands), strict=True):
                if not isinstance(answer, MusterError):
                    names.accepted(command, answer.changed)
            sliced.commands(commands)
            disturbed.commands(commands)
            while sliced.is_interrupted:
                sliced.advance(sliced.now_ms)
        assert places(sliced.state) == places(whole.state)
        check_state(disturbed.state)
    finish(disturbed)
    check_state(disturbed.state)
    if disturbed.state.policy == "kueue" and not disturbed.scheduler.memory.unsettled:
        check_followed(disturbed.state, disturbed.scheduler._kueue)


def places(state: State) -> list[tuple[int, list[tuple[int, int]]]]:
    """State of each workload, and (node, tasks) of what it holds."""
    w, a = state.workloads, state.allocations
    held = [list(a.of_workload(w.first_allocation[row])) for row in range(len(w.ids))]
    return [(w.state[row], sorted((a.node[i], a.count[i]) for i in each)) for row, each in enumerate(held)]


def finish(engine: Engine) -> None:
    """Let what was interrupted come to its end."""
    engine.enough = lambda: False
    engine.advance(engine.now_ms)


def check_followed(state: State, cycles: KueueCycles) -> None:
    """All that holds capacity is known in the order in which it would go, and all that waits is parked, or set aside
    behind the parked first of its strict queue: between runs nobody stands in line."""
    w, lines = state.workloads, cycles._lines
    starts: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in range(len(w.ids)):
        if w.state[row] in BOUND:
            starts.setdefault((w.queue[row], w.value_at(row)), []).append((-w.started[row], -row))
    known = {
        (queue, value): [(-at, -row) for row, at in cycles._bound.latest_first(queue, value)]
        for queue in range(len(state.queues.specs))
        for value in cycles._bound.values(queue)
    }
    assert {place: each for place, each in known.items() if each} == {at: sorted(rows) for at, rows in starts.items()}
    waiting = [r for key, group in state.pending.groups.items() if key[3] != STOPPED for r in group.rows[group.front :]]
    assert sorted(lines) == sorted(waiting)
    assert not lines._lines
    parked = {like: group for groups in lines._parked.values() for like, group in groups.items()}
    aside = {(queue, *STRICT): group for queue, group in lines._aside.items()}
    expected: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
    for row in waiting:
        queue = w.queue[row]
        like = (queue, *STRICT) if state.is_strict(queue) else (queue, w.value_at(row), w.cls[row])
        expected.setdefault(like, []).append((-w.value_at(row), w.submitted[row], row))
    found = {like: entries_of(parked.get(like), aside.get(like)) for like in {*parked, *aside}}
    assert found == {like: sorted(entries) for like, entries in expected.items()}
    assert all(lines._group_of[row] is group for group in (*parked.values(), *aside.values()) for row in group.entries)


def entries_of(*groups: WaitingGroup | None) -> list[tuple[int, int, int]]:
    """Of all of them, in order. The first of each is where it says."""
    entries: list[tuple[int, int, int]] = []
    for group in groups:
        if group is not None:
            assert group.first() == min(group.entries.values())
            entries += group.entries.values()
    return sorted(entries)


def test_an_arrival_costs_the_same_however_much_waits_runs_and_has_ended() -> None:
    """Counted in calls of functions."""
    few, many = calls_for_an_arrival(20), calls_for_an_arrival(2000)
    assert many <= 1.1 * few


def calls_for_an_arrival(others: int) -> int:
    engine = cell(queue("mine", 2), queue("theirs", others, reclaim="never"), cpu=10_000)
    for what, cpu, runs_ms in (("ended", 1, 1), ("runs", 1, 10**9), ("waits", 2, 10**9)):
        group = TaskGroup(request=Resources(cpu_milli=1000 * cpu))
        common = {"queue": "theirs", "priority_class": "p0", "groups": (group,), "simulated_runtime_ms": runs_ms}
        specs = (WorkloadSpec(id=f"{what}{number}", **common) for number in range(others))  # type: ignore[arg-type]
        engine.command(Submit(workloads=tuple(specs)))
        engine.advance(engine.now_ms + 10)
    calls = 0

    def count(frame: FrameType, what: str, argument: object) -> None:
        nonlocal calls
        calls += what == "call"

    sys.setprofile(count)
    try:
        submit(engine, "arrives", "mine", 1)
    finally:
        sys.setprofile(None)
    assert running(engine, "arrives") == ["arrives"]
    return calls
