"""Random work against what the policies promise: starts that do not slip, and preemption that is fair and needed.

What each preemption must keep to is checked, event by event, by `invariants.Witness`; the cells here are small, full
and divided among queues that lend and borrow, so that there is much of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cells import (
    CLASS_NAMES,
    HOUR,
    MINUTE,
    PRIORITY_CLASSES,
    SECOND,
    SOME,
    Draft,
    Life,
    Pass,
    Player,
    Submit,
    drafts,
    live,
    run_times,
)

from engine.model import events as ev
from engine.model.specs import (
    BurstSpec,
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
from engine.state.workloads import MIN_TURN_MS

GPU = "gpu_milli"
BIG = Resources(cpu_milli=64_000, memory_mib=64_000, gpu_milli=4000)


def cell(nodes: int, queues: tuple[QueueSpec, ...], given_settings: Settings) -> CellSpec:
    """Nodes of four devices each."""
    return CellSpec(
        name="full",
        pools=(PoolSpec(name="p", capacity=BIG, gpu_model="A"),),
        nodes=tuple(NodeSpec(id=f"n{i}", pool="p") for i in range(nodes)),
        queues=queues,
        priority_classes=PRIORITY_CLASSES,
        settings=given_settings,
    )


def gang(
    count: int, gpu_milli: int, run_ms: int, priority: str = "normal", least: int = 0, **given: Any
) -> WorkloadSpec:
    """One group, exact estimate."""
    return WorkloadSpec(
        id="open",
        queue="open",
        priority_class=priority,
        groups=(TaskGroup(count=count, min_count=min(least, count), request=Resources(gpu_milli=gpu_milli)),),
        estimate_ms=run_ms,
        simulated_runtime_ms=run_ms,
        **given,
    )


# -- preemption: P4, P5, P13, P18 -------------------------------------------------------------------------------------

contested = st.builds(
    Draft,
    st.builds(
        gang,
        st.sampled_from([1, 1, 2, 3, 5]),
        st.sampled_from([1000, 1000, 2000, 4000, 500]),
        run_times,
        st.sampled_from(CLASS_NAMES),
        st.sampled_from([0, 0, 1, 2]),
        checkpoint_interval_ms=st.sampled_from([0, 700]),
        checkpoint_cost_ms=st.sampled_from([0, 0, 0, 2 * SECOND]),
        elastic=st.booleans(),
    ),
    st.integers(0, 3),
)

fillers = st.builds(
    Draft,
    st.builds(
        gang,
        st.sampled_from([1, 2, 3]),
        st.sampled_from([1000, 2000]),
        st.sampled_from([10 * MINUTE, HOUR]),
        st.sampled_from(["low", "normal"]),
        st.sampled_from([0, 1]),
        elastic=st.booleans(),
        checkpoint_cost_ms=st.sampled_from([0, 0, 0, 2 * SECOND]),
    ),
    st.integers(0, 3),
)
"""Small work that stays: others need several of them gone."""


@st.composite
def lenders(draw: st.DrawFn) -> tuple[QueueSpec, ...]:
    """A cohort, or one within another, of queues that lend, borrow and take back."""
    share = st.sampled_from([2000, 4000, 0, 6000])
    queues = [QueueSpec(name="root", nominal={GPU: draw(st.sampled_from([0, 0, 4000]))})]
    parents = ["root", "root", "root"]
    if draw(st.booleans()):
        queues.append(QueueSpec(name="inner", parent="root", nominal={GPU: draw(share)}))
        parents = ["root", "inner", "inner"]
    for i, parent in enumerate(parents):
        nominal = draw(share)
        borrowing = draw(st.sampled_from([None, 0, 0, 2000]))
        limits = {} if borrowing is None else {GPU: borrowing}
        bursts = borrowing is not None and draw(st.booleans())
        queues.append(
            QueueSpec(
                name=f"q{i}",
                parent=parent,
                nominal={GPU: nominal},
                borrowing_limit=limits,
                lending_limit=draw(st.sampled_from([{}, {}, {GPU: 2000}])),
                burst=BurstSpec(limit={GPU: nominal + borrowing + 4000}, window_ms=SECOND, cooldown_ms=MINUTE)
                if bursts
                else None,
                reclaim=draw(st.sampled_from(["any", "any", "lower_priority", "never"])),
                min_runtime_ms=draw(st.sampled_from([0, 0, 3 * SECOND])),
                disruptions=draw(st.sampled_from([-1, -1, 2, 1])),
                disruption_window_ms=draw(st.sampled_from([SECOND, HOUR])),
            )
        )
    return tuple(queues)


@st.composite
def contests(draw: st.DrawFn) -> Life:
    """Work arrives one by one, with time passing in between, in a cell that is mostly full."""
    settings_ = st.builds(Settings, preempt_after_ms=st.sampled_from([0, 0, SECOND]), reservation_depth=st.just(5))
    arrivals = st.builds(Submit, st.lists(contested, min_size=1, max_size=3).map(tuple))
    passes = st.builds(Pass, st.sampled_from([500, 4 * SECOND, 15 * SECOND]))
    steps = st.lists(st.one_of(arrivals, arrivals, passes), min_size=4, max_size=16)
    first = Submit(tuple(draw(st.lists(fillers, max_size=8))))
    return Life(
        cell(draw(st.integers(1, 3)), draw(lenders()), draw(settings_)),
        draw(st.sampled_from(["easy", "fcfs", "easy-sjbf", "conservative"])),
        None,
        0,
        (first, *draw(steps)),
    )


@settings(SOME, max_examples=examples(100))
@given(contests())
def test_preemption_is_just_needed_and_final(life: Life) -> None:
    live(life)


@pytest.mark.slow
@settings(SOME, max_examples=examples(5000))
@given(contests())
def test_five_thousand_contests(life: Life) -> None:
    live(life)


@pytest.mark.thorough
def test_contests_have_every_kind_of_preemption() -> None:
    """What the tests above find nothing wrong with does happen in them."""
    seen: set[str] = set()

    @settings(SOME, max_examples=200, database=None)
    @given(contests())
    def look(life: Life) -> None:
        player = Player(life)
        for operation in life.operations:
            player.do(operation)
        history = player.engine.witness.history
        seen.update(ev.EVICTION_CAUSES[e.cause] for e in history if type(e) is ev.Evicted)
        seen.update(type(e).__name__ for e in history)

    look()
    wanted = {"reclaimed", "lower priority", "Preempting", "Shrunk", "Grown"}
    assert sorted(wanted - seen) == []


def test_an_expired_burst_is_reclaimed_in_such_lives() -> None:
    burst = BurstSpec(limit={GPU: 4000}, window_ms=SECOND, cooldown_ms=HOUR)
    queues = (
        QueueSpec(name="root"),
        QueueSpec(name="guest", parent="root", nominal={GPU: 0}, borrowing_limit={GPU: 0}, burst=burst),
        QueueSpec(name="host", parent="root", nominal={GPU: 4000}),
    )
    guest, host = (Submit((Draft(gang(4, 1000, 10 * MINUTE), queue),)) for queue in (0, 1))
    shape = cell(1, queues, Settings(preempt_after_ms=0))
    history = live(Life(shape, "easy", None, 0, (guest, Pass(4 * SECOND), host))).engine.witness.history
    causes = [ev.EVICTION_CAUSES[event.cause] for event in history if type(event) is ev.Evicted]
    assert causes == ["expired burst"]


def test_work_that_was_preempted_and_starts_again_is_not_preempted_in_the_same_moment() -> None:
    """`guest` borrows beyond its quota, and two workloads of `host` take back theirs. The first leaves room for a part
    of the guest's work, which is ahead of the second in order; that one has its turn a second later."""
    burst = BurstSpec(limit={GPU: 4000}, window_ms=MINUTE, cooldown_ms=HOUR)
    queues = (
        QueueSpec(name="root"),
        QueueSpec(name="guest", parent="root", nominal={GPU: 0}, borrowing_limit={GPU: 0}, burst=burst),
        QueueSpec(name="host", parent="root", nominal={GPU: 6000}),
    )
    guest, host = 0, 1
    work = (
        Draft(gang(2, 2000, MINUTE), host),
        Draft(gang(2, 2000, HOUR, least=1), guest),
        Draft(gang(1, 2000, HOUR, "low"), host),
        Draft(gang(1, 1000, HOUR), host),
        Draft(gang(1, 4000, HOUR), guest),
    )
    shape = cell(1, queues, Settings(preempt_after_ms=0))
    engine = live(Life(shape, "easy", None, 0, (Submit(work),))).engine
    now_ms, stopped, placed = 0, [], []
    for event in engine.witness.history:
        if type(event) is ev.Tick:
            now_ms = event.at_ms
        elif type(event) is ev.Evicted:
            stopped.append((event.row, event.by, now_ms))
        elif type(event) is ev.Placed:
            placed.append((event.row, now_ms))
    assert stopped == [(1, 3, MINUTE), (1, 2, MINUTE + MIN_TURN_MS)]
    assert placed[:5] == [(0, 0), (1, MINUTE), (3, MINUTE), (1, MINUTE), (2, MINUTE + MIN_TURN_MS)]


# -- promises: P8 -----------------------------------------------------------------------------------------------------

exact_work = st.builds(
    gang,
    st.sampled_from([1, 1, 2, 3, 5]),
    st.sampled_from([1000, 2000, 4000]),
    st.sampled_from([500, SECOND, 7 * SECOND, MINUTE, 10 * MINUTE]),
    st.sampled_from(["low", "low", "steady"]),
)


@st.composite
def days(draw: st.DrawFn, policy: str) -> Life:
    """Everything arrives at once, and all estimates are exact."""
    work = draw(st.lists(st.builds(Draft, exact_work, st.just(0)), min_size=2, max_size=14))
    depth = draw(st.sampled_from([1, 3, 100]))
    queues = (QueueSpec(name="q"),)
    shape = cell(draw(st.integers(2, 4)), queues, Settings(reservation_depth=depth))
    return Life(shape, policy, None, 0, (Submit(tuple(work)),))


def play_to_the_end(life: Life) -> list[dict[int, int]]:
    """What was promised (workload row -> start) after each moment at which something happened. Checks that nothing
    that was promised starts later, and that no cycle leaves more than it may."""
    player = Player(life)
    player.play()
    engine = player.engine
    told: list[dict[int, int]] = []
    latest: dict[int, int] = {}
    while True:
        w, scheduler = engine.state.workloads, engine.scheduler
        promised = promises(scheduler)
        for row, start_ms in promised.items():
            assert start_ms <= latest.get(row, start_ms), f"{w.ids[row]} was promised {latest[row]}, now {start_ms}"
            latest[row] = start_ms
        for row, start_ms in latest.items():
            if w.attempts[row]:
                assert w.started[row] <= start_ms, f"{w.ids[row]} was promised {start_ms}, began {w.started[row]}"
            else:
                assert engine.now_ms < start_ms, f"{w.ids[row]} was promised {start_ms} and waits still"
        told.append(promised)
        due = engine.next_due()
        if due is None:
            break
        engine.advance(due)
        player.check_stable()
    assert all(state == WorkloadState.FINISHED for state in engine.state.workloads.state)
    return told


def promises(scheduler: Any) -> dict[int, int]:
    """Workload row -> start promised now."""
    if scheduler.state.policy == "conservative":
        return dict(scheduler.memory.promises)
    promise = scheduler.memory.reservation
    return {} if promise is None or promise.start_ms is None else {promise.row: promise.start_ms}


def test_shortest_first_keeps_the_order_of_a_strict_queue() -> None:
    """Behind what `open` was promised, the shortest of `strict` has no room, and is not ahead of the one that has."""
    queues = (
        QueueSpec(name="root"),
        QueueSpec(name="open", parent="root"),
        QueueSpec(name="strict", parent="root", order="strict_fifo"),
    )
    opened, strict = 0, 1
    work = (
        Draft(gang(1, 4000, 10 * MINUTE), strict),
        Draft(gang(2, 4000, HOUR), opened),
        Draft(gang(1, 1000, 5 * MINUTE), strict),
        Draft(gang(2, 4000, SECOND), strict),
    )
    life = Life(cell(2, queues, Settings()), "easy-sjbf", None, 0, tuple(Submit((draft,)) for draft in work))
    player = Player(life)
    player.play()
    states = [WorkloadState(state).label for state in player.engine.state.workloads.state]
    assert states == ["running", "queued", "running", "queued"]


@pytest.mark.parametrize("policy", ["easy", "easy-sjbf", "conservative"])
def test_with_exact_estimates_no_promised_start_slips(policy: str) -> None:
    told: list[int] = []

    @settings(SOME, max_examples=80)
    @given(days(policy))
    def check(life: Life) -> None:
        told.append(sum(map(len, play_to_the_end(life))))

    check()
    assert sum(map(bool, told)) > len(told) // 4, "hardly anything was promised"


def day(policy: str, nodes: int, *work: tuple[int, int, int, str]) -> Life:
    """Work, all at once: (tasks, thousandths of a device for each, run time in ms, priority class)."""
    given_work = tuple(Draft(gang(*each), 0) for each in work)
    return Life(cell(nodes, (QueueSpec(name="q"),), Settings()), policy, None, 0, (Submit(given_work),))


SHORT, LONG = 500, 10 * MINUTE
LEFT_WAITING = {
    # w7 is promised both the node of w0, w1 and w3, and the idle one. w5 then starts there, and ends with them, but
    # after w4 in the order: with w4's node counted in place of that one, w6 beside w5 is not in the way any more.
    "ends at one time": (
        day(
            "easy-sjbf",
            3,
            *[(1, 1000, SHORT, "steady")] * 2,
            (1, 1000, SHORT, "low"),
            (1, 1000, SHORT, "steady"),
            (1, 4000, SHORT, "steady"),
            (1, 1000, SHORT, "low"),
            (1, 1000, SECOND, "low"),
            (2, 4000, SHORT, "steady"),
        ),
        "w6",
    ),
    # When w1 and w3 end, n0 has three devices free beside w0, and n1, which w4 is promised, two. The placer gives w5
    # the fuller node, where it is in the way; w6, which is not, then takes that.
    "nodes the placer prefers": (
        day(
            "easy",
            2,
            (1, 1000, LONG, "low"),
            (1, 2000, SHORT, "low"),
            (1, 2000, 7 * SECOND, "low"),
            (1, 2000, SHORT, "low"),
            (1, 4000, MINUTE, "low"),
            (1, 2000, LONG, "low"),
            (1, 2000, SECOND, "low"),
        ),
        "w5",
    ),
}


@pytest.mark.parametrize("case", LEFT_WAITING)
def test_what_easy_leaves_to_a_fresh_look_breaks_no_promise(case: str) -> None:
    """EASY looks once at each: a fork, which looks afresh, starts one more, and no promise slips in either."""
    life, left = LEFT_WAITING[case]
    play_to_the_end(life)
    player = Player(life)
    player.play()
    found: set[str] = set()
    while (due := player.engine.next_due()) is not None and not found:
        waiting, twin = player.engine.state.workloads, player.engine.fork()
        promised = promises(player.engine.scheduler)
        twin.settle()
        found = {name for row, name in enumerate(waiting.ids) if twin.state.workloads.state[row] != waiting.state[row]}
        player.engine.advance(due)
    assert found == {left}
    twin.advance(HOUR)
    assert promised
    assert all(twin.state.workloads.started[row] <= start_ms for row, start_ms in promised.items())


@settings(SOME, max_examples=examples(40))
@given(st.lists(drafts(exact=True), min_size=1, max_size=6), st.sampled_from(["easy", "conservative"]))
def test_finite_work_of_every_kind_ends(work: list[Draft], policy: str) -> None:
    """Each in a turn of its own, the same all in one turn: the cell is empty in the end."""
    shape = cell(3, (QueueSpec(name="q"),), Settings())
    together = Life(shape, policy, None, 0, (Submit(tuple(work)),))
    for life in (together, replace(together, operations=tuple(Submit((draft,)) for draft in work))):
        state = live(life).engine.state
        assert not any(state.queues.used)
        assert state.capacity.free_vector(0) == msgspec.structs.astuple(BIG)
