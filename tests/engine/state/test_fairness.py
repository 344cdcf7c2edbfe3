"""Shares, the order they give, averages of the past, and what each queue deserves."""

from __future__ import annotations

from fractions import Fraction

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.specs import HOUR_MS, BurstSpec, FlavorQuota, QueueSpec
from engine.scheduling.candidate_order import VertexReport, deserved, order_key, report, share, water_filling
from engine.state.queue_tree import DAY_MS, QueueTree, Vector

BILLION = 10**9
GPU = 2
CELL: Vector = (100_000, 1000, 100_000, 0)


def planted(*specs: QueueSpec) -> QueueTree:
    tree = QueueTree()
    for spec in specs:
        tree.add(spec)
    return tree


def gpu(quantity: int) -> dict[str, int]:
    return {"gpu_milli": quantity}


def filled(tree: QueueTree, totals: Vector, tasks: dict[str, Vector], *, past: bool = False) -> dict[str, int]:
    """Tasks started by always giving the next to the queue with the smallest key, until no task fits."""
    free, started = list(totals), dict.fromkeys(tasks, 0)
    while True:
        fitting = [q for q, task in tasks.items() if all(a >= b for a, b in zip(free, task, strict=True))]
        if not fitting:
            return started
        name = min(fitting, key=lambda q: (order_key(tree, tree.row(q), totals, 0, past=past), tree.row(q)))
        tree.charge(tree.row(name), tree.total_charge(tasks[name]), 0)
        free = [a - b for a, b in zip(free, tasks[name], strict=True)]
        started[name] += 1


# -- shares and order -------------------------------------------------------------------------------------------------


def test_the_example_of_the_drf_paper() -> None:
    """9 CPUs and 18 GB; tasks of 1 CPU and 4 GB, and of 3 CPUs and 1 GB: three and two, 2/3 of the cell each."""
    tree = planted(QueueSpec(name="a"), QueueSpec(name="b"))
    totals = (9000, 18 * 1024, 0, 0)
    started = filled(tree, totals, {"a": (1000, 4 * 1024, 0, 0), "b": (3000, 1024, 0, 0)})
    assert started == {"a": 3, "b": 2}
    assert [share(tree, row, totals, 0) for row in (0, 1)] == [2 * BILLION // 3] * 2


def test_a_weight_is_how_many_times_the_share_of_others() -> None:
    tree = planted(QueueSpec(name="a", weight=3), QueueSpec(name="b"))
    assert filled(tree, (80, 0, 0, 0), {"a": (1, 0, 0, 0), "b": (1, 0, 0, 0)}) == {"a": 60, "b": 20}


def test_a_subtree_gets_no_more_for_having_many_queues() -> None:
    many = [QueueSpec(name=f"m{i}", parent="many") for i in range(5)]
    tree = planted(QueueSpec(name="many"), QueueSpec(name="few"), *many, QueueSpec(name="one", parent="few"))
    started = filled(tree, (100, 0, 0, 0), {spec.name: (1, 0, 0, 0) for spec in [*many, QueueSpec(name="one")]})
    assert started == {f"m{i}": 10 for i in range(5)} | {"one": 50}


def test_what_is_within_the_quota_costs_nothing() -> None:
    tree = planted(
        QueueSpec(name="cohort"),
        QueueSpec(name="a", parent="cohort", nominal=gpu(30_000), lending_limit=gpu(10_000)),
        QueueSpec(name="b", parent="cohort", nominal=gpu(10_000)),
    )
    tree.charge(1, ((GPU, 30_000),), 0)
    assert order_key(tree, 1, CELL, 0) == (0, 0), "nor what the cohort does not even lend"
    tree.charge(2, ((GPU, 15_000),), 0)
    assert order_key(tree, 2, CELL, 0) == (5 * BILLION // 100, 5 * BILLION // 100)
    assert order_key(tree, 1, CELL, 0) == (5 * BILLION // 100, 0)
    tree.charge(1, ((0, 40_000),), 0)
    assert share(tree, 1, CELL, 0) == 0, "nobody has a quota of CPUs here"


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(
    tasks=st.lists(st.tuples(*(st.integers(0, 9) for _ in range(4))).filter(any), min_size=2, max_size=4),
    weights=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    past=st.booleans(),
)
def test_nobody_gets_a_task_while_one_with_a_smaller_share_could(
    tasks: list[Vector], weights: list[int], past: bool
) -> None:
    """At the end, a queue whose task would still have fitted when another got its last one has a share no smaller than
    the other had before that one."""
    totals = (30, 40, 50, 60)
    tree = planted(*(QueueSpec(name=f"q{i}", weight=weights[i]) for i in range(len(tasks))))
    filled(tree, totals, {f"q{i}": task for i, task in enumerate(tasks)}, past=past)
    left = [total - sum(tree.used_vector(row)[i] for row in range(len(tasks))) for i, total in enumerate(totals)]
    for row, task in enumerate(tasks):
        for other, last in enumerate(tasks):
            had = [a + b for a, b in zip(left, last, strict=True)]
            if row != other and all(a >= b for a, b in zip(had, task, strict=True)) and any(tree.used_vector(other)):
                before = [use - part for use, part in zip(tree.used_vector(other), last, strict=True)]
                dominant = max(Fraction(use, total) for use, total in zip(before, totals, strict=True))
                mine = max(Fraction(use, total) for use, total in zip(tree.used_vector(row), totals, strict=True))
                assert mine / weights[row] >= dominant / weights[other] - Fraction(1, BILLION)


# -- the past ---------------------------------------------------------------------------------------------------------


def test_past_use_counts_half_after_a_half_life() -> None:
    tree = planted(QueueSpec(name="q"))
    tree.half_life_ms = HOUR_MS
    tree.charge(0, ((GPU, 8000),), 0)
    assert tree.average_use(0, 0) == (0, 0, 0, 0)
    assert tree.average_use(0, HOUR_MS) == (0, 0, 4000, 0)
    assert tree.average_use(0, 2 * HOUR_MS) == (0, 0, 6000, 0)
    tree.give_back(0, ((GPU, 8000),), 2 * HOUR_MS)
    assert [tree.average_use(0, hours * HOUR_MS)[GPU] for hours in (2, 3, 4, 5, 500)] == [6000, 3000, 1500, 750, 0]


def test_averages_have_a_half_life_of_a_day_unless_told() -> None:
    tree = planted(QueueSpec(name="q"))
    tree.charge(0, ((GPU, 8000),), 0)
    assert tree.average_use(0, DAY_MS) == (0, 0, 4000, 0)


def test_with_the_past_who_used_less_before_goes_first() -> None:
    tree = planted(QueueSpec(name="a"), QueueSpec(name="b"))
    tree.charge(0, ((GPU, 8000),), 0)
    tree.give_back(0, ((GPU, 8000),), DAY_MS)
    keys = [order_key(tree, row, CELL, DAY_MS, past=True) for row in (0, 1)]
    assert keys == [(2 * BILLION // 100,), (0,)], "half of the average of 4 GPUs in 100"
    assert order_key(tree, 0, CELL, DAY_MS) == order_key(tree, 1, CELL, DAY_MS)
    tree.charge(1, ((GPU, 5000),), DAY_MS)
    assert order_key(tree, 0, CELL, DAY_MS, past=True) < order_key(tree, 1, CELL, DAY_MS, past=True)


def test_the_mean_of_now_and_the_past_is_free_within_the_quota() -> None:
    tree = planted(
        QueueSpec(name="cohort", nominal=gpu(90_000)), QueueSpec(name="q", parent="cohort", nominal=gpu(2000))
    )
    tree.charge(1, ((GPU, 8000),), 0)
    tree.give_back(1, ((GPU, 8000),), DAY_MS)
    assert share(tree, 1, CELL, DAY_MS, past=True) == 0
    tree.charge(1, ((GPU, 4000),), DAY_MS)
    assert share(tree, 1, CELL, DAY_MS, past=True) == 2 * BILLION // 100


changes = st.lists(st.tuples(st.integers(0, 50_000_000), st.integers(0, 10**6)), min_size=1, max_size=12)


def averaged(changes: list[tuple[int, int]], looks: list[int]) -> list[Vector]:
    """Averages at all times of `looks`, when use is changed to the given levels after the given waits."""
    tree, now, level, seen = planted(QueueSpec(name="root"), QueueSpec(name="q", parent="root")), 0, 0, []
    for wait, new in changes:
        now += wait
        if level:
            tree.give_back(1, ((GPU, level),), now)
        if new:
            tree.charge(1, ((GPU, new),), now)
        level = new
        assert tree.average_use(0, now) == tree.average_use(1, now)
    for look in looks:
        seen.append(tree.average_use(1, now + look))
    return seen


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(changes=changes, look=st.integers(0, 10**9))
def test_an_average_is_the_decayed_sum_of_what_was_used_when(changes: list[tuple[int, int]], look: int) -> None:
    now, level, exact = 0, 0, 0.0
    for wait, new in [*changes, (look, 0)]:
        kept = 0.5 ** (wait / DAY_MS)
        exact = exact * kept + level * (1 - kept)
        now, level = now + wait, new
    (got,) = averaged(changes, [look])
    assert got[GPU] == pytest.approx(exact, abs=3 + 10**6 * len(changes) / 2**20)


@settings(max_examples=examples(50), deadline=None, derandomize=True)
@given(level=st.integers(1, 10**9), steps=st.lists(st.integers(1, 3000), min_size=1, max_size=300))
def test_many_short_times_weigh_as_much_as_one_long_time(level: int, steps: list[int]) -> None:
    one, many = planted(QueueSpec(name="q")), planted(QueueSpec(name="q"))
    for tree in (one, many):
        tree.charge(0, ((GPU, level),), 0)
    now = 0
    for step in steps:
        now += step
        many.charge(0, (), now)
    assert many.average_use(0, now)[GPU] == pytest.approx(one.average_use(0, now)[GPU], abs=1)


def test_an_absurd_use_is_averaged_without_overflow() -> None:
    tree = planted(QueueSpec(name="q"))
    tree.charge(0, ((1, 2**62),), 0)
    tree.give_back(0, ((1, 2**62),), 90 * DAY_MS)
    assert 0 < tree.average_use(0, 91 * DAY_MS)[1] < 2**62


# -- what each deserves -----------------------------------------------------------------------------------------------

divisions = st.integers(1, 7).flatmap(
    lambda n: st.tuples(
        st.integers(0, 200),
        st.lists(st.integers(0, 60), min_size=n, max_size=n),
        st.lists(st.integers(1, 9), min_size=n, max_size=n),
    )
)


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(divisions)
def test_water_filling_is_the_weighted_max_min_division(division: tuple[int, list[int], list[int]]) -> None:
    amount, wanted, weights = division
    got = water_filling(amount, wanted, weights)
    assert sum(got) == min(amount, sum(wanted))
    assert all(0 <= a <= b for a, b in zip(got, wanted, strict=True))
    for i, j in ((i, j) for i in range(len(got)) for j in range(len(got))):
        if got[i] < wanted[i]:
            assert (got[i] + 1) * weights[j] >= (got[j] - 1) * weights[i], (
                "i wants more, so j has no more for its weight"
            )


def test_quota_comes_first_and_the_rest_by_weight() -> None:
    tree = planted(
        QueueSpec(name="cohort"),
        QueueSpec(name="a", parent="cohort", nominal=gpu(40_000)),
        QueueSpec(name="b", parent="cohort", nominal=gpu(10_000), weight=2),
        QueueSpec(name="c", parent="cohort", nominal=gpu(30_000)),
    )
    wants = [(0, 0, quantity, 0) for quantity in (0, 90_000, 90_000, 5_000)]
    assert [vector[GPU] for vector in deserved(tree, CELL, wants)] == [80_000, 48_334, 26_666, 5_000]
    tree.change(QueueSpec(name="b", parent="cohort", nominal=gpu(10_000), weight=2, borrowing_limit=gpu(2_000)))
    assert [vector[GPU] for vector in deserved(tree, CELL, wants)] == [80_000, 63_000, 12_000, 5_000]


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(
    parents=st.lists(st.integers(-1, 6), min_size=1, max_size=8),
    wants=st.lists(st.integers(0, 90_000), min_size=8, max_size=8),
    total=st.integers(0, 200_000),
)
def test_what_queues_deserve_adds_up_at_every_level(parents: list[int], wants: list[int], total: int) -> None:
    tree = planted(
        *(QueueSpec(name=f"q{i}", parent=f"q{parent}" if 0 <= parent < i else "") for i, parent in enumerate(parents))
    )
    demand = [(0, 0, wants[row], 0) for row in range(len(parents))]
    got = [vector[GPU] for vector in deserved(tree, (0, 0, total, 0), demand)]
    for row, children in enumerate(tree.children):
        if children:
            assert got[row] == sum(got[child] for child in children)
        else:
            assert got[row] <= wants[row]
    leaves = [row for row, children in enumerate(tree.children) if not children]
    assert sum(got[row] for row in leaves) == min(total, sum(wants[row] for row in leaves))


# -- the report -------------------------------------------------------------------------------------------------------


def test_the_report_says_who_uses_borrows_lends_and_bursts() -> None:
    tree = planted(
        QueueSpec(name="cohort", nominal=gpu(3)),
        QueueSpec(
            name="a", parent="cohort", nominal=gpu(10), borrowing_limit=gpu(5), weight=2,
            burst=BurstSpec(limit=gpu(30), window_ms=HOUR_MS),
        ),
        QueueSpec(name="b", parent="cohort", nominal=gpu(9), flavors=(FlavorQuota(pool="h100", nominal=gpu(4)),)),
        QueueSpec(name="c", parent="cohort", nominal=gpu(9), lending_limit=gpu(6)),
    )  # fmt: skip
    tree.charge(1, ((GPU, 18),), 0)
    tree.charge(2, tree.charge_of([("h100", (0, 0, 3, 0))]), 0)
    cell = (0, 0, 40, 0)
    demand: list[Vector] = [(0, 0, 0, 0), (0, 0, 40, 0), (0, 0, 3, 0), (0, 0, 0, 0)]
    cohort, a, b, c = report(tree, cell, demand, 1000)
    assert cohort.used == {"gpu_milli": 21, "h100/gpu_milli": 3}
    assert cohort.guaranteed == {"gpu_milli": 28, "h100/gpu_milli": 4}
    assert (cohort.borrowed, cohort.lent, cohort.burst) == ({}, {}, None)
    assert (a.name, a.parent, a.weight) == ("a", "cohort", 2)
    assert (a.used, a.borrowed, a.guaranteed) == (gpu(18), gpu(8), {"gpu_milli": 10, "h100/gpu_milli": 0})
    assert a.burst is not None
    assert (a.burst.state, a.burst.ends_in_ms, a.burst.excess) == ("burst", HOUR_MS - 1000, gpu(3))
    assert a.share_ppb == 8 * BILLION // 40 // 2
    assert (b.used, b.guaranteed) == ({"gpu_milli": 3, "h100/gpu_milli": 3}, {"gpu_milli": 9, "h100/gpu_milli": 4})
    assert (b.lent, c.lent) == (gpu(2), gpu(3)), "8 borrowed, 3 of the cohort's own, and 6 idle at either"
    assert [vertex.deserved for vertex in (cohort, a, b, c)] == [gpu(18), gpu(15), gpu(3), {}]
    assert all(vertex.past_share_ppb == 0 for vertex in (cohort, a, b, c))

    cooling = report(tree, cell, demand, HOUR_MS)[1].burst
    assert cooling is not None
    assert (cooling.state, cooling.ends_in_ms, cooling.excess) == ("cooldown", HOUR_MS, gpu(3))
    idle = report(tree, cell, demand, 2 * HOUR_MS)[1].burst
    assert idle is not None
    assert (idle.state, idle.ends_in_ms) == ("idle", 0)


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(
    own=st.integers(0, 20),
    members=st.lists(
        st.tuples(st.integers(0, 20), st.none() | st.integers(0, 20), st.integers(0, 40)), min_size=2, max_size=6
    ),
)
def test_what_is_borrowed_in_a_cohort_is_its_own_or_lent(own: int, members: list[tuple[int, int | None, int]]) -> None:
    tree = planted(
        QueueSpec(name="cohort", nominal=gpu(own)),
        *(
            QueueSpec(
                name=f"q{i}", parent="cohort", nominal=gpu(quota), lending_limit={} if lends is None else gpu(lends)
            )
            for i, (quota, lends, _) in enumerate(members)
        ),
    )
    for row, (_, _, use) in enumerate(members, 1):
        if use and tree.lack(row, ((GPU, use),), 0) is None:
            tree.charge(row, ((GPU, use),), 0)
    _, *queues = report(tree, CELL, [(0, 0, 0, 0)] * len(tree.specs), 0)
    borrowed = sum(queue.borrowed.get("gpu_milli", 0) for queue in queues)
    lent = [queue.lent.get("gpu_milli", 0) for queue in queues]
    assert sum(lent) == max(0, borrowed - own)
    for quantity, queue, (quota, lends, _) in zip(lent, queues, members, strict=True):
        assert 0 <= quantity <= (quota if lends is None else lends)
        assert quantity == 0 or quantity + queue.used.get("gpu_milli", 0) <= quota


def test_the_report_has_the_share_over_the_past() -> None:
    tree = planted(QueueSpec(name="q"))
    tree.charge(0, ((GPU, 8000),), 0)
    tree.give_back(0, ((GPU, 8000),), DAY_MS)
    (row,) = report(tree, CELL, [(0, 0, 0, 0)], DAY_MS)
    assert (row.share_ppb, row.past_share_ppb) == (0, 4 * BILLION // 100)
    assert isinstance(row, VertexReport)


def test_a_cell_without_queues_has_an_empty_report() -> None:
    assert report(QueueTree(), CELL, [], 0) == []


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(changes=changes)
def test_the_same_history_gives_the_same_state_also_through_a_dump(changes: list[tuple[int, int]]) -> None:
    def run(reload: bool) -> tuple[object, list[VertexReport]]:
        tree, now, level = planted(QueueSpec(name="root"), QueueSpec(name="q", parent="root", nominal=gpu(9))), 0, 0
        for wait, new in changes:
            now += wait
            tree.give_back(1, ((GPU, level),), now)
            tree.charge(1, ((GPU, new),), now)
            level = new
            if reload:
                other = QueueTree()
                other.load(tree.dump())
                tree = other
        return tree.dump(), report(tree, CELL, [(0, 0, 0, 0), (1, 2, 3, 4)], now + 5)

    assert run(reload=True) == run(reload=False)
