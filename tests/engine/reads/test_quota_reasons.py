"""Quota that refuses: the rule that holds is named with its numbers, and lifting that rule lets the work start."""

from __future__ import annotations

import msgspec
import pytest
from cells import small_cell, submit, workload

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.specs import BurstSpec, PriorityClassSpec, QueueSpec

S = 1000
HOUR = 3600 * S


def gpu(count: int) -> dict[str, int]:
    return {"gpu_milli": count * 1000}


def tree(*queues: QueueSpec) -> Engine:
    """64 GPU of nodes, so that only quota holds work back."""
    classes = PriorityClassSpec(name="normal", value=500), PriorityClassSpec(name="high", value=900, preemption="lower")
    cell = msgspec.structs.replace(small_cell(gpu_nodes=8), queues=queues, priority_classes=classes)
    return Engine.open(None, cell=cell)


def run(engine: Engine, queue: str, *gpus: int) -> None:
    """Work that runs for an hour."""
    works = [workload(f"{queue}{i}", queue=queue, gpu=n * 1000, run=HOUR, estimate=HOUR) for i, n in enumerate(gpus)]
    engine.command(submit(*works))
    assert {engine.workload(each.id).state for each in works} == {"running"}


def wait(engine: Engine, queue: str, gpus: int) -> str:
    """Why one more workload of that size, named `x`, waits."""
    engine.command(submit(workload("x", queue=queue, gpu=gpus * 1000)))
    reason = engine.workload("x").reasons[0]
    assert reason.token == "WaitingForQuota"
    return reason.text


def change(engine: Engine, name: str, **fields: object) -> None:
    spec = engine.state.queues.specs[engine.state.queues.row(name)]
    engine.command(cmd.ChangeQueue(queue=msgspec.structs.replace(spec, **fields), over="keep"))


def is_lifted_by(engine: Engine, name: str, **fields: object) -> bool:
    """Whether `x` starts after the change of the queue."""
    fork = engine.fork()
    change(fork, name, **fields)
    fork.settle()
    return fork.workload("x").state == "running"


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_a_borrowing_limit(gpus: int) -> None:
    engine = tree(
        QueueSpec(name="root"),
        QueueSpec(name="a", parent="root", nominal=gpu(16), borrowing_limit=gpu(4)),
        QueueSpec(name="b", parent="root", nominal=gpu(40)),
    )
    run(engine, "a", 8, 8, 4)
    assert wait(engine, "a", gpus) == (
        f"asks for {gpus} GPU, {gpus} GPU above the borrowing limit of queue a, 4 GPU on top of its 16 GPU; "
        "it uses 20 GPU, 4 GPU of it borrowed"
    )
    unblock = f"{gpus} GPU returned in a, or a borrowing limit of {4 + gpus} GPU in queue a"
    assert engine.workload("x").reasons[0].unblock == unblock
    assert is_lifted_by(engine, "a", borrowing_limit=gpu(4 + gpus))
    assert not is_lifted_by(engine, "a", borrowing_limit=gpu(4 + gpus - 1))


def test_the_borrowing_limit_of_a_cohort_above() -> None:
    engine = tree(
        QueueSpec(name="root"),
        QueueSpec(name="team", parent="root", borrowing_limit=gpu(2)),
        QueueSpec(name="a", parent="team", nominal=gpu(8)),
        QueueSpec(name="b", parent="root", nominal=gpu(40)),
    )
    run(engine, "a", 8)
    assert wait(engine, "a", 4).startswith(
        "asks for 4 GPU, 2 GPU above the borrowing limit of queue team, 2 GPU on top of its 8 GPU; it uses 8 GPU"
    )
    assert is_lifted_by(engine, "team", borrowing_limit=gpu(4))


def test_the_lending_limit_of_another_queue() -> None:
    engine = tree(
        QueueSpec(name="root"),
        QueueSpec(name="a", parent="root", nominal=gpu(8)),
        QueueSpec(name="b", parent="root", nominal=gpu(16), lending_limit=gpu(2)),
    )
    run(engine, "a", 8)
    run(engine, "b", 4)
    assert wait(engine, "a", 4) == (
        "asks for 4 GPU, 2 GPU above the 10 GPU that queue root and the queues below it share; it uses 8 GPU; "
        "the lending limit of queue b, 2 GPU, keeps 10 GPU that it does not use"
    )
    assert is_lifted_by(engine, "b", lending_limit=gpu(4))
    assert not is_lifted_by(engine, "b", lending_limit=gpu(3))


def test_the_quota_that_a_tree_shares_and_what_of_it_is_in_a_burst() -> None:
    burst = BurstSpec(limit=gpu(12), window_ms=HOUR, cooldown_ms=HOUR)
    engine = tree(
        QueueSpec(name="root"),
        QueueSpec(name="a", parent="root", nominal=gpu(8), reclaim="never"),
        QueueSpec(name="b", parent="root", nominal=gpu(8), borrowing_limit=gpu(1), burst=burst),
    )
    run(engine, "b", 8, 1, 3)
    assert wait(engine, "a", 8) == (
        "asks for 8 GPU, 4 GPU above the 16 GPU that queue root and the queues below it share; it uses 12 GPU; "
        "queue b borrows 1 GPU and has 3 GPU in a burst"
    )
    assert is_lifted_by(engine, "root", nominal=gpu(4))
    assert not is_lifted_by(engine, "root", nominal=gpu(3))


def test_a_nominal_quota_without_a_cohort() -> None:
    engine = tree(QueueSpec(name="a", nominal=gpu(8)))
    run(engine, "a", 6)
    assert wait(engine, "a", 4) == (
        "asks for 4 GPU, 2 GPU above the nominal 8 GPU of queue a, which has no cohort to borrow from; it uses 6 GPU"
    )
    assert is_lifted_by(engine, "a", nominal=gpu(10))


def bursting(cooldown_ms: int = HOUR) -> Engine:
    burst = BurstSpec(limit=gpu(16), window_ms=100 * S, cooldown_ms=cooldown_ms)
    return tree(
        QueueSpec(name="root", nominal=gpu(40)),
        QueueSpec(name="a", parent="root", nominal=gpu(8), borrowing_limit=gpu(2), burst=burst),
    )


def test_a_burst_limit() -> None:
    engine = bursting()
    run(engine, "a", 8, 2, 4)
    assert wait(engine, "a", 4) == (
        "asks for 4 GPU, 2 GPU above the burst limit of queue a, 16 GPU in all; "
        "it uses 14 GPU, 2 GPU of it borrowed, 4 GPU of it in a burst"
    )
    more = BurstSpec(limit=gpu(18), window_ms=100 * S, cooldown_ms=HOUR)
    assert is_lifted_by(engine, "a", burst=more)


def test_the_cool_down_after_a_burst_says_until_when() -> None:
    engine = bursting(cooldown_ms=100 * S)
    run(engine, "a", 8, 4)
    engine.advance(100 * S)
    assert wait(engine, "a", 4) == (
        "asks for 4 GPU, 6 GPU above the borrowing limit of queue a, 2 GPU on top of its 8 GPU, and its burst is over: "
        "the next may begin at 1970-01-01 00:03:20 UTC; it uses 12 GPU, 2 GPU of it borrowed, 2 GPU of it in a burst"
    )
    engine.advance(200 * S - 1)
    assert engine.workload("x").state == "queued"
    engine.advance(200 * S)
    assert engine.workload("x").state == "running"


# -- what bars a reclaim ----------------------------------------------------------------------------------------------


def lent(reclaim: str = "any", **lender: object) -> Engine:
    """Queue b runs 8 GPU above its own 8, of which a, with 8 of its own, asks 4 back."""
    engine = tree(
        QueueSpec(name="root"),
        QueueSpec(name="a", parent="root", nominal=gpu(8), reclaim=reclaim),
        QueueSpec(name="b", parent="root", nominal=gpu(8), **lender),
    )
    run(engine, "b", 4, 4, 4, 4)
    return engine


def bars(engine: Engine) -> list[str]:
    wait(engine, "a", 4)
    return [reason.text for reason in engine.workload("x").reasons if reason.token == "PreemptionBarred"]


def test_a_queue_that_reclaims_nothing() -> None:
    engine = lent("never")
    assert bars(engine) == [
        "queue a reclaims nothing from others (reclaim never), though queue b is 8 GPU above its own quota"
    ]
    assert is_lifted_by(engine, "a", reclaim="any")


def test_a_queue_that_would_be_above_its_own_quota_even_without_its_lower_work() -> None:
    engine = lent()
    engine.command(cmd.Cancel(ids=("b3",)))
    run(engine, "a", 4)
    engine.command(submit(workload("x", queue="a", count=3, gpu=4000, priority="high")))
    assert next(reason.text for reason in engine.workload("x").reasons if reason.token == "PreemptionBarred") == (
        "reclaims nothing, though queue b is 4 GPU above its own quota: with it queue a would be 4 GPU above its own "
        "8 GPU even without its lower work"
    )
    engine.command(submit(workload("y", queue="a", gpu=8000, priority="high")))
    assert engine.workload("y").state == "running", "its own lower work and a reclaimed one made way"


def test_a_minimum_runtime_spares_until() -> None:
    engine = lent(min_runtime_ms=100 * S)
    assert bars(engine) == [
        "the minimum runtime of queue b spares 4 of its workloads: b0 until 1970-01-01 00:01:40 UTC"
    ]
    assert is_lifted_by(engine, "b", min_runtime_ms=0)
    engine.advance(100 * S)
    assert engine.workload("x").state == "running"


def test_a_disruption_limit() -> None:
    engine = lent(disruptions=0)
    assert bars(engine) == ["the disruption limit of queue b, 0 in 1h, is reached"]
    assert is_lifted_by(engine, "b", disruptions=1)


def test_lower_priorities_only() -> None:
    engine = lent("lower_priority")
    assert bars(engine) == ["queue a reclaims from lower priorities only; not lower: b0, b1, b2 and 1 more"]
    assert is_lifted_by(engine, "a", reclaim="any")


def test_work_that_was_preempted_often_is_left_to_higher_priorities() -> None:
    engine = tree(
        QueueSpec(name="root"),
        QueueSpec(name="a", parent="root", nominal=gpu(8)),
        QueueSpec(name="b", parent="root", nominal=gpu(0)),
    )
    run(engine, "b", 8)
    for number in range(3):
        engine.command(submit(workload(f"a{number}", queue="a", gpu=8000)))
        assert engine.workload(f"a{number}").state == "running"
        engine.command(cmd.Cancel(ids=(f"a{number}",)))
        engine.advance(engine.now_ms + 2 * S)
        assert engine.workload("b0").state == "running"
    assert bars(engine) == ["preempted 3 times within the last hour, so only a higher priority may do it again: b0"]
    engine.advance(engine.now_ms + HOUR)
    assert engine.workload("x").state != "queued"
