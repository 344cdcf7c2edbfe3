"""Cells with a pool that grows and shrinks by itself."""

from __future__ import annotations

from pathlib import Path

from engine.control import Engine
from engine.model.commands import Submit
from engine.model.specs import (
    Autoscaling,
    CellSpec,
    NodeSpec,
    PoolSpec,
    QueueSpec,
    Resources,
    ScalingSpec,
    Settings,
    TaskGroup,
    WorkloadSpec,
)

MINUTE = 60_000
HOUR = 60 * MINUTE


def cell(
    nodes: int = 4, *, queues: tuple[QueueSpec, ...] = (QueueSpec(name="a"),), fixed: int = 0, **more: object
) -> CellSpec:
    """A pool of 8-CPU nodes n0, n1, ... that grows and shrinks; and `fixed` nodes f0, ... of a pool that does not."""
    fields = {"least": 0, "most": 20, "headroom": 0}
    scaling = ScalingSpec(**{name: more.pop(name, default) for name, default in fields.items()})  # type: ignore[arg-type]
    capacity = Resources(cpu_milli=8000, memory_mib=64_000)
    pools = (
        PoolSpec(name="p", capacity=capacity, price_microusd_hour=1_000_000, scaling=scaling),
        PoolSpec(name="fixed", capacity=capacity, price_microusd_hour=2_000_000),
    )
    settings = Settings(autoscaling=Autoscaling(**({"scan_every_ms": 30_000} | more)))  # type: ignore[arg-type]
    specs = [NodeSpec(id=f"n{i}", pool="p") for i in range(nodes)]
    specs += [NodeSpec(id=f"f{i}", pool="fixed") for i in range(fixed)]
    return CellSpec(name="test", pools=pools, nodes=tuple(specs), queues=queues, settings=settings)


def job(name: str, cpu: int, *, queue: str = "a", tasks: int = 1, run: int = 9 * HOUR, **more: object) -> WorkloadSpec:
    """One that writes a checkpoint when asked, unless `checkpoint_cost_ms` is 0."""
    given = {"checkpoint_cost_ms": 1000} | more
    group = TaskGroup(count=tasks, request=Resources(cpu_milli=cpu))
    return WorkloadSpec(
        id=name, queue=queue, groups=(group,), estimate_ms=run, simulated_runtime_ms=run, **given  # type: ignore[arg-type]
    )  # fmt: skip


def started(spec: CellSpec, *jobs: WorkloadSpec, path: Path | None = None) -> Engine:
    engine = Engine.open(path, cell=spec)
    engine.advance(1000)
    for one in jobs:
        engine.command(Submit(workloads=(one,)))
    return engine


def there(engine: Engine) -> list[str]:
    """Ids of the nodes that are left."""
    return sorted(engine.state.capacity.row_of)
