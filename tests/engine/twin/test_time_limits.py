"""What a rehearsal makes of time limits, which say how long work may run and little of how long it does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.control import Engine
from engine.model import external_cells as seen
from engine.model.commands import Define, Observe
from engine.model.specs import (
    CellSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    Settings,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
)
from engine.state.run_times import HistoricRunTimes
from engine.twin.rehearsals import DrawnExecutor


def of_a_slurm_cluster(ended_ms: Sequence[int], waiting: int) -> Engine:
    """A mirrored cell of one user's jobs with a limit of 100 s each: some that ended, some that wait."""
    engine = Engine.open(None)
    engine.command(Define(cell=CellSpec(name="mirror", settings=Settings(decided_by="slurm"))))
    engine.advance(10**9)
    told: list[seen.AnySeen] = [
        seen.PoolSeen(pool=PoolSpec(name="pool", capacity=Resources(cpu_milli=1000, memory_mib=1000))),
        seen.QueueSeen(queue=QueueSpec(name="batch")),
        seen.PriorityClassSeen(priority_class=PriorityClassSpec(name="tier-1", value=1)),
    ]
    for i, ms in enumerate([*ended_ms, *[0] * waiting]):
        groups = (TaskGroup(request=Resources(cpu_milli=1000, memory_mib=i + 1)),)
        spec = WorkloadSpec(
            id=f"j{i}", queue="batch", tenant="ann", priority_class="tier-1", estimate_ms=100_000, groups=groups
        )
        phase = {"phase": "finished", "started_ms": 10**9 - ms, "ended_ms": 10**9} if ms else {}
        told.append(seen.WorkloadSeen(spec=spec, submitted_ms=1, **phase))
    engine.command(Observe(seen=tuple(told)))
    return engine


def drawn_of(engine: Engine, seed: int) -> list[int]:
    rows = np.arange(len(engine.state.workloads.ids), dtype=np.int32)
    waits = np.array(engine.state.workloads.state)[rows] == WorkloadState.QUEUED
    return (
        DrawnExecutor(engine.state, seed, HistoricRunTimes(engine.state), engine.now_ms).run_times(rows[waits]).tolist()
    )


def test_time_limits_without_history_leave_open_how_long_all_of_it_takes() -> None:
    engine = of_a_slurm_cluster([], 40)
    means = sorted(sum(drawn_of(engine, seed)) / 40 for seed in range(60))
    assert means[6] < 30_000 < 70_000 < means[-7]
    assert drawn_of(engine, 3) == drawn_of(engine, 3)
    assert "no finished run" in HistoricRunTimes(engine.state).basis()


def test_each_job_that_ends_makes_time_limits_less_of_a_guess() -> None:
    def spread(ended: int) -> int:
        engine = of_a_slurm_cluster([20_000 + 100 * i for i in range(ended)], 10)
        means = sorted(sum(drawn_of(engine, seed)) / 10 for seed in range(60))
        return int(means[-7] - means[6])

    none, few, many = spread(0), spread(6), spread(30)
    assert none > few > many
    assert many < 5_000
