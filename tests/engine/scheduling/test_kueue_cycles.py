"""The policy `kueue`: Kueue's order, quota and preemption, on cells small enough to be worked out by hand. That Kueue
itself decides so is seen in `tests/differential/kueue`."""

from __future__ import annotations

import pytest
from invariants import check_state

from engine.control import Engine
from engine.model.commands import Cancel, HoldQueues, OpenQueues, SetPolicy, Submit
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
from engine.scheduling.kueue_cycles import MAX_STOPS
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
