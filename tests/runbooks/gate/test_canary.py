"""A canary is judged by waits, against before and against the others."""

from __future__ import annotations

from typing import Any

import pytest

from engine.control import Engine
from engine.model.commands import OrderQueues, Submit
from engine.model.errors import SpecError
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, QueueSpec, Resources, TaskGroup, WorkloadSpec
from runbooks.actions import catalogue
from runbooks.gate.aftermath import SHORT_MS, Judgement, judge
from runbooks.plans.typed_plan import Act, Canary

MINUTE, HOUR = 60_000, 3_600_000
TRIED = Act(action="canary", targets=("a",), canary=Canary(order="strict_fifo", window_ms=HOUR, least_starts=5))
WHOLE = Act(action="canary", targets=("cell",), canary=Canary(policy="fcfs", window_ms=HOUR, least_starts=5))


def cell() -> Engine:
    """One node of 4 CPUs for each of the queues a and b, and 2 more for a."""
    pools = tuple(PoolSpec(name=name, capacity=Resources(cpu_milli=4000, memory_mib=1000)) for name in ("pa", "pb"))
    nodes = tuple(NodeSpec(id=f"n{pool.name}", pool=pool.name) for pool in pools)
    queues = tuple(QueueSpec(name=name) for name in ("a", "b"))
    return Engine.open(None, cell=CellSpec(name="cell", pools=pools, nodes=nodes, queues=queues))


def busy(engine: Engine, queue: str, starts: int, every_ms: int, run_ms: int, tag: str) -> None:
    """Work for the whole node of the queue, one by one: each waits for those before it."""
    group = TaskGroup(request=Resources(cpu_milli=4000), pools=(f"p{queue}",))
    for i in range(starts):
        job = WorkloadSpec(
            id=f"{queue}{tag}{i}", queue=queue, groups=(group,), estimate_ms=run_ms, simulated_runtime_ms=run_ms,
            not_before_ms=engine.now_ms + i * every_ms,
        )  # fmt: skip
        engine.command(Submit(workloads=(job,)))


def lived(
    before: tuple[int, int], after: tuple[int, int], *, others: tuple[int, int, int, int] | None = None
) -> Engine:
    """Two windows; of each (starts of a, how long each runs); of b the same for both."""
    engine = cell()
    for window, (starts, run_ms) in enumerate((before, after)):
        busy(engine, "a", starts, 0, run_ms, f"w{window}-")
        if others is not None:
            busy(engine, "b", others[2 * window], 0, others[2 * window + 1], f"w{window}-")
        if window == 0:
            engine.advance(HOUR)
            engine.command(OrderQueues(names=("a",), order="strict_fifo"))
    engine.advance(2 * HOUR)
    return engine


def judged(engine: Engine, act: Act = TRIED) -> Judgement:
    found = judge(engine, act, HOUR)
    assert found is not None
    return found


def test_before_its_window_is_over_nothing_is_said() -> None:
    engine = cell()
    engine.advance(2 * HOUR - 1)
    assert judge(engine, TRIED, HOUR) is None
    engine.advance(2 * HOUR)
    assert judged(engine).verdict == "inconclusive"


@pytest.mark.parametrize("act", [TRIED, WHOLE], ids=["queue", "cell"])
def test_the_same_waits_are_a_success_and_longer_ones_a_failure(act: Act) -> None:
    same = judged(lived((10, 5 * MINUTE), (10, 5 * MINUTE)), act)
    assert (same.verdict, same.before.p95_ms, same.after.p95_ms) == ("success", 45 * MINUTE, 45 * MINUTE)
    worse = judged(lived((10, 2 * MINUTE), (10, 5 * MINUTE)), act)
    assert worse.verdict == "failure"
    assert worse.text == "waits p95 45m of 10 starts, before 18m of 10: 250%"


def test_too_few_starts_on_either_side_conclude_nothing() -> None:
    assert judged(lived((4, 5 * MINUTE), (10, 5 * MINUTE))).verdict == "inconclusive"
    few = judged(lived((10, MINUTE), (4, 14 * MINUTE)))
    assert few.verdict == "inconclusive"
    assert "5 starts are needed on both sides" in few.text


def test_a_busier_cell_is_not_its_fault() -> None:
    """The waits of b grew as much, which kept its order."""
    grown = judged(lived((10, 2 * MINUTE), (10, 5 * MINUTE), others=(10, 2 * MINUTE, 10, 5 * MINUTE)))
    assert (grown.verdict, grown.others_permille) == ("success", 2500)
    assert "of other queues 250%" in grown.text
    assert (
        judged(lived((10, 2 * MINUTE), (10, 5 * MINUTE), others=(10, 5 * MINUTE, 10, 5 * MINUTE))).verdict == "failure"
    )
    # That the others do better is no reason to expect more of it; nor is one start of theirs a reason to expect less.
    assert judged(lived((10, 5 * MINUTE), (10, 5 * MINUTE), others=(10, 5 * MINUTE, 10, MINUTE))).verdict == "success"
    assert judged(lived((10, 2 * MINUTE), (10, 5 * MINUTE), others=(1, MINUTE, 2, 30 * MINUTE))).verdict == "failure"


def test_what_never_starts_has_waited_too() -> None:
    """Ten start and wait little; twenty more came and still wait when the window ends."""
    starved = judged(lived((30, MINUTE), (30, 5 * MINUTE)))
    assert starved.after.starts < 30
    assert starved.after.p95_ms == HOUR
    assert starved.verdict == "failure"


def test_waits_below_a_minute_are_as_good_as_none() -> None:
    found = judged(lived((10, 100), (10, 5_000)))
    assert (found.before.p95_ms, found.after.p95_ms) == (SHORT_MS, SHORT_MS)
    assert found.verdict == "success"


@pytest.mark.parametrize(
    "wrong",
    [
        Canary(window_ms=HOUR),
        Canary(order="fair", policy="fcfs", window_ms=HOUR),
        Canary(order="fair", window_ms=0),
        Canary(order="fair", window_ms=-HOUR),
        Canary(order="fair", window_ms=365 * 24 * HOUR),
        Canary(order="fair", window_ms=HOUR, worst_permille=0),
        Canary(order="fair", window_ms=HOUR, worst_permille=10**6),
        Canary(order="fair", window_ms=HOUR, least_starts=0),
    ],
)
def test_a_canary_that_proves_nothing_is_refused(wrong: Any) -> None:
    """One that is always a success, or is judged before anything starts, could be used to pass any change."""
    with pytest.raises(SpecError, match="canary"):
        catalogue.check(Act(action="canary", targets=("a",), canary=wrong))


def test_a_policy_is_tried_on_the_one_cell() -> None:
    with pytest.raises(SpecError, match="targets"):
        catalogue.check(Act(action="canary", targets=("cell", "a"), canary=Canary(policy="fcfs", window_ms=HOUR)))
