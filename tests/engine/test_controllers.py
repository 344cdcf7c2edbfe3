"""What acts by itself: a look that leads to nothing leaves nothing behind, also where the engine starts anew."""

from __future__ import annotations

from pathlib import Path

from engine.control import Engine
from engine.model.commands import Submit
from engine.model.spec_parts import ScalingSpec
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    TaskGroup,
    WorkloadSpec,
)

HOUR_MS = 3_600_000


def cell() -> CellSpec:
    pool = PoolSpec(name="p", capacity=Resources(cpu_milli=8000, memory_mib=32_000), scaling=ScalingSpec(most=4))
    return CellSpec(
        pools=(pool,),
        nodes=(NodeSpec(id="n", pool="p"),),
        queues=(QueueSpec(name="q"),),
        priority_classes=(PriorityClassSpec(name="normal", value=0),),
    )


def work(name: str) -> WorkloadSpec:
    group = TaskGroup(request=Resources(cpu_milli=6000))
    return WorkloadSpec(id=name, queue="q", groups=(group,), estimate_ms=10**9, simulated_runtime_ms=10**9)


def test_scans_that_decide_nothing_are_not_recorded_and_a_restart_goes_on_alike(tmp_path: Path) -> None:
    engine = Engine.open(tmp_path / "a.db", cell=cell())
    engine.command(Submit(workloads=(work("first"),)))
    engine.advance(HOUR_MS)
    version = engine.version
    # Within the hour, so that the demand of the next is not noted.
    engine.advance(HOUR_MS + 1_000_000)
    noted = engine.version
    engine.advance(HOUR_MS + 2_000_000)
    assert engine.version == noted
    assert noted - version <= 2

    digest = engine.state.digest()
    assert engine._journal is not None
    engine._journal.close()
    again = Engine.open(tmp_path / "a.db")
    assert again.state.digest() == digest

    other = Engine.open(None, cell=cell())
    other.command(Submit(workloads=(work("first"),)))
    for one in (again, other):
        one.advance(HOUR_MS + 2_000_000)
        one.command(Submit(workloads=(work("second"),)))
        one.advance(2 * HOUR_MS)
    assert again.workload("second").state == "running"
    assert again.state.digest() == other.state.digest()
    again.close()
