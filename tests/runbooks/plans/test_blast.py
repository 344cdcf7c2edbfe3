"""What an act touches: counted once, never too little."""

from __future__ import annotations

from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.reports import PoolSize
from engine.model.specs import ScalingSpec
from runbooks.gate.composition import blast_of, total
from runbooks.plans.typed_plan import Act, Blast, MoneyChange, ScalingChange, Target


def act(action: Any, *targets: str, **fields: Any) -> Act:
    return Act(action=action, targets=targets, **fields)


def node(name: str, state: str = "ready", pool: str = "p", work: tuple[str, ...] = ()) -> Target:
    return Target(id=name, state=state, pool=pool, gpu_milli=8000, work=work)


def work(name: str, state: str = "running", **facts: Any) -> Target:
    return Target(id=name, state=state, **({"gpu_milli": 4000, "tenant": "t"} | facts))


def pool(ready: int = 10, price: int = 100, **facts: Any) -> Target:
    limits = {name: facts.pop(name) for name in ("least", "most", "headroom") if name in facts}
    scaling = ScalingSpec(**({"least": 2, "most": 20} | limits))
    size = PoolSize(
        pool="p", scaling=scaling, ready=ready, asked=0, wanted=0,
        **({"booting": 0, "other": 0, "ordered": 0, "set_for": ()} | facts),
    )  # fmt: skip
    return Target(id="p", state="growing", size=size, gpu_milli=8000, price_microusd_hour=price)


def test_a_drain_counts_nodes_that_were_in_use_and_the_work_on_all_of_them() -> None:
    nodes = (node("n1", work=("a", "b")), node("n2", "cordoned", work=("c",)))
    stops = (work("a", nodes=("n1",)), work("b", nodes=("n1", "n9"), tenant="u"), work("c", nodes=("n2",)))
    found = blast_of(act("drain", "n1", "n2"), nodes, stops)
    assert found.nodes == (("p", 1),)
    assert found.workloads == 3
    assert found.tenants == ("t", "u")
    # n1; b, which lies elsewhere too; and c, whose node was out of use.
    assert found.gpu_milli == 8000 + 4000 + 4000


def test_what_stops_nothing_touches_nothing() -> None:
    assert blast_of(act("hold", "a"), (work("a", "queued"),)) == Blast()
    assert blast_of(act("uncordon", "n1"), (node("n1", "cordoned"),)) == Blast()
    assert blast_of(act("set_priority", "a"), (work("a", was="low"),)) == Blast()
    assert blast_of(act("notify", "ops"), (Target(id="ops", state="known"),)) == Blast()


@pytest.mark.parametrize("action", ["requeue", "preempt", "suspend", "cancel", "consolidate", "resize"])
def test_work_that_is_stopped_counts(action: str) -> None:
    found = blast_of(act(action, "a", "b"), (work("a"), work("b", "queued")))
    assert (found.workloads, found.gpu_milli, found.tenants) == (1, 4000, ("t",))


def test_what_has_to_give_way_counts() -> None:
    target = Target(id="w", state="queued", was="low", work=("v",))
    found = blast_of(act("set_priority", "w", to="high"), (target,), (work("v"),))
    assert (found.workloads, found.gpu_milli) == (1, 4000)


def test_a_reservation_takes_its_nodes_from_everyone_else() -> None:
    kept = Target(id="r", state="not made", keeps=(("n1", "p", 8000), ("n2", "q", 0)))
    found = blast_of(act("reserve", "r"), (kept,))
    assert (found.nodes, found.gpu_milli) == ((("p", 1), ("q", 1)), 8000)


@pytest.mark.parametrize(
    ("done", "of", "fewer", "dearer"),
    [
        (act("scale_pool", "p", nodes=4), pool(), 6, 0),
        (act("scale_pool", "p", nodes=13), pool(), 0, 300),
        (act("scale_pool", "p", nodes=8), pool(booting=1, ordered=2), 5, 0),
        (act("scale_pool", "p", nodes=0), pool(ready=2, other=3), 2, 0),
        (act("set_scaling", "p", scaling=ScalingChange(most=50)), pool(), 0, 3000),
        (act("set_scaling", "p", scaling=ScalingChange(most=7)), pool(), 3, 0),
        (act("set_scaling", "p", scaling=ScalingChange(least=0)), pool(least=6), 6, 0),
        (act("set_scaling", "p", scaling=ScalingChange(headroom=4)), pool(), 0, 400),
        (act("set_scaling", "p", scaling=ScalingChange(least=12)), pool(), 0, 200),
        (act("set_targets", "p", scaling=ScalingChange(targets=((5, 14), (9, 0)))), pool(), 0, 400),
        (act("set_targets", "p", scaling=ScalingChange()), pool(set_for=((5, 8),)), 8, 0),
        (act("set_targets", "p", scaling=ScalingChange(targets=((3, 5),))), pool(set_for=((5, 8),)), 3, 0),
    ],
)
def test_sizes_of_pools(done: Act, of: Target, fewer: int, dearer: int) -> None:
    found = blast_of(done, (of,))
    assert found.nodes == ((("p", fewer),) if fewer else ())
    assert found.gpu_milli == fewer * 8000
    assert found.cost_microusd_hour == dearer


def test_a_dearer_pool_costs_more_for_every_node_it_has() -> None:
    priced = Target(id="p", state="priced", price_microusd_hour=100, count=7)
    assert (
        blast_of(act("set_price", "p", money=MoneyChange(price_microusd_hour=130)), (priced,)).cost_microusd_hour == 210
    )
    assert blast_of(act("set_price", "p", money=MoneyChange(price_microusd_hour=90)), (priced,)).cost_microusd_hour == 0


def test_what_several_acts_touch_counts_once() -> None:
    cordoned = blast_of(act("cordon", "n1", "n2"), (node("n1"), node("n2")))
    drained = blast_of(act("drain", "n2", "n3"), (node("n2"), node("n3")), (work("a", nodes=("n3",)),))
    requeued = blast_of(act("requeue", "a"), (work("a", nodes=("n3",)),))
    both = total((cordoned, drained, requeued))
    assert both.nodes == (("p", 3),)
    assert both.workloads == 1
    # Where it lies is not told: it may lie anywhere.
    assert both.gpu_milli == 3 * 8000 + 4000
    shrunk = blast_of(act("scale_pool", "p", nodes=4), (pool(),))
    assert total((both, shrunk)).nodes == (("p", 9),)


GANG = work("g", gpu_milli=20_000, nodes=("n1", "n2", "n3"), holds=(("n1", 8000), ("n2", 8000), ("n3", 4000)))


def test_a_gpu_of_a_gang_on_a_node_that_counts_does_not_count_again() -> None:
    one = blast_of(act("drain", "n1"), (node("n1", work=("g",)),), (GANG,))
    assert one.gpu_milli == 8000 + 12_000
    two = blast_of(act("drain", "n2"), (node("n2", work=("g",)),), (GANG,))
    assert total((one, two)).gpu_milli == 16_000 + 4000
    assert total((one, two)) == blast_of(
        act("drain", "n1", "n2"), (node("n1", work=("g",)), node("n2", work=("g",))), (GANG,)
    )
    cordoned, requeued = blast_of(act("cordon", "n1"), (node("n1"),)), blast_of(act("requeue", "g"), (GANG,))
    assert requeued.gpu_milli == 20_000
    for both in ((cordoned, requeued), (requeued, cordoned), (cordoned, requeued, requeued)):
        assert total(both).gpu_milli == 20_000


def test_shares_of_one_gpu_count_as_what_they_are() -> None:
    halves = tuple(work(name, gpu_milli=500, nodes=("n1",), holds=(("n1", 500),)) for name in "ab")
    assert blast_of(act("requeue", "a", "b"), halves).gpu_milli == 1000
    drained = blast_of(act("drain", "n1"), (node("n1", work=("a", "b")),), halves)
    assert total((drained, blast_of(act("requeue", "a"), halves[:1]))).gpu_milli == 8000


NODES = st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True)


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(st.lists(NODES, min_size=1, max_size=13))
def test_many_small_steps_count_as_much_as_one_large(steps: list[list[int]]) -> None:
    def drained(numbers: list[int]) -> Blast:
        names = [f"n{i}" for i in numbers]
        found = tuple(node(name, work=(f"w{name}",)) for name in names)
        gang = work(
            "gang", gpu_milli=10_000, nodes=tuple(f"n{i}" for i in range(10)),
            holds=tuple((f"n{i}", 1000) for i in range(10)),
        )  # fmt: skip
        alone = tuple(work(f"w{name}", nodes=(name, "far"), holds=((name, 1000), ("far", 3000))) for name in names)
        return blast_of(act("drain", *names), found, (*alone, gang))

    every = sorted({i for numbers in steps for i in numbers})
    assert total(drained(numbers) for numbers in steps) == drained(every)
    assert total((total(map(drained, steps[:3])), total(map(drained, steps[3:])))) == drained(every)
