"""Work that somebody has give way to others: what may be preempted, and what follows."""

from __future__ import annotations

import msgspec
import pytest

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.errors import RefusedError
from engine.model.specs import PriorityClassSpec
from tests.support.cells import small_cell, submit, workload
from tests.support.invariants import check_state

SECOND, MINUTE = 1000, 60_000


def cell(**queue: object) -> Engine:
    """One node of 8 GPUs; queue b as given; a class `firm` that nobody preempts."""
    spec = small_cell(gpu_nodes=1, cpu_nodes=0)
    queues = tuple(msgspec.structs.replace(q, **queue) if q.name == "b" else q for q in spec.queues)
    classes = (*spec.priority_classes, PriorityClassSpec(name="firm", value=1, preemptible=False))
    return Engine.open(None, cell=msgspec.structs.replace(spec, queues=queues, priority_classes=classes))


def test_it_gives_its_place_to_who_is_next_and_goes_on_later() -> None:
    engine = cell()
    engine.command(submit(workload("runs", gpu=8000, queue="b", checkpoint=10 * SECOND, run=5 * MINUTE)))
    engine.advance(25 * SECOND)
    engine.command(submit(workload("next", gpu=8000, run=MINUTE)))
    engine.command(cmd.Preempt(ids=("runs",)))
    assert [engine.workload(name).state for name in ("runs", "next")] == ["waiting", "running"]
    assert engine.workload("runs").kept_ms == 20 * SECOND
    assert engine.workload("runs").history[-1].what == "waiting"
    assert "gave way" in [item.detail for item in engine.workload("runs").history]
    check_state(engine.state)
    engine.advance(25 * SECOND + cmd.YIELD_MS + MINUTE)
    assert engine.workload("runs").state == "running"
    check_state(engine.state)


def test_a_requeue_may_take_the_place_back_at_once_and_giving_way_does_not() -> None:
    engine = cell()
    engine.command(submit(workload("runs", gpu=8000, queue="b", run=5 * MINUTE)))
    engine.command(submit(workload("later", gpu=8000, queue="b")))
    twin = engine.fork()
    twin.command(cmd.Requeue(ids=("runs",)))
    assert twin.workload("runs").state == "running"
    engine.command(cmd.Preempt(ids=("runs",)))
    assert engine.workload("later").state == "running"


def test_what_writes_a_checkpoint_when_asked_loses_nothing() -> None:
    engine = cell()
    spec = msgspec.structs.replace(workload("runs", gpu=8000, run=5 * MINUTE), checkpoint_cost_ms=1)
    engine.command(submit(spec))
    engine.advance(25 * SECOND)
    engine.command(cmd.Preempt(ids=("runs",)))
    assert engine.workload("runs").kept_ms == 25 * SECOND


def test_protected_work_is_refused_by_name() -> None:
    engine = cell(min_runtime_ms=MINUTE)
    engine.command(submit(workload("firm", gpu=1000, priority="firm"), workload("young", gpu=1000, queue="b")))
    engine.command(submit(workload("w", gpu=8000)))
    for name, why in (("firm", "not preemptible"), ("young", "0 of the 60000 ms"), ("w", "'w' is queued")):
        with pytest.raises(RefusedError, match=why):
            engine.command(cmd.Preempt(ids=(name,)))
    engine.advance(MINUTE - 1)
    with pytest.raises(RefusedError, match="59999 of the 60000 ms"):
        engine.command(cmd.Preempt(ids=("young",)))
    assert engine.workload("young").attempts == 1


def test_it_counts_against_what_a_queue_may_be_disrupted() -> None:
    engine = cell(disruptions=1)
    engine.command(submit(*(workload(f"b{i}", gpu=1000, queue="b", run=10 * MINUTE) for i in range(3))))
    with pytest.raises(RefusedError, match="'b' may be disrupted 1 more times"):
        engine.command(cmd.Preempt(ids=("b0", "b1")))
    engine.command(cmd.Preempt(ids=("b0",)))
    with pytest.raises(RefusedError, match="'b' may be disrupted 0 more times"):
        engine.command(cmd.Preempt(ids=("b1",)))
    engine.command(cmd.Requeue(ids=("b1",)))
    check_state(engine.state)
