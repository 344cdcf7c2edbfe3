"""Small cells and workloads for tests."""

from __future__ import annotations

from engine.model.commands import Submit
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

CLASSES = (
    PriorityClassSpec(name="low", value=100),
    PriorityClassSpec(name="normal", value=500),
    PriorityClassSpec(name="high", value=900),
)


def small_cell(gpu_nodes: int = 4, cpu_nodes: int = 2, quota: dict[str, int] | None = None) -> CellSpec:
    """8-GPU nodes, CPU nodes, and a tree root -> (a, which borrows nothing above `quota`, and b, which may borrow all
    that the root has)."""
    pools = (
        PoolSpec(
            name="gpu",
            capacity=Resources(cpu_milli=64_000, memory_mib=512_000, gpu_milli=8000, disk_mib=100_000),
            gpu_model="H100",
            price_microusd_hour=20_000_000,
        ),
        PoolSpec(name="cpu", capacity=Resources(cpu_milli=32_000, memory_mib=128_000), price_microusd_hour=1_000_000),
    )
    nodes = [NodeSpec(id=f"g{i}", pool="gpu", rack=f"r{i // 2}", block="b0", zone="z0") for i in range(gpu_nodes)]
    nodes += [NodeSpec(id=f"c{i}", pool="cpu", rack="rc", block="b0", zone="z0") for i in range(cpu_nodes)]
    queues = (
        QueueSpec(name="root", nominal=dict.fromkeys(quota or {}, 2**40)),
        QueueSpec(name="a", parent="root", nominal=quota or {}, borrowing_limit=dict.fromkeys(quota or {}, 0)),
        QueueSpec(name="b", parent="root"),
    )
    return CellSpec(name="test", pools=pools, nodes=tuple(nodes), queues=queues, priority_classes=CLASSES)


def workload(
    name: str, *, queue: str = "a", count: int = 1, gpu: int = 0, cpu: int = 1000, memory: int = 0, disk: int = 0,
    estimate: int = 60_000, run: int = 60_000, priority: str = "normal", held: bool = False, checkpoint: int = 0,
    models: tuple[str, ...] = (), pools: tuple[str, ...] = (), tenant: str = "",
) -> WorkloadSpec:  # fmt: skip
    """One group of `count` equal tasks."""
    request = Resources(cpu_milli=cpu, memory_mib=memory, gpu_milli=gpu, disk_mib=disk)
    return WorkloadSpec(
        id=name,
        name=name,
        queue=queue,
        tenant=tenant,
        priority_class=priority,
        groups=(TaskGroup(count=count, request=request, gpu_models=models, pools=pools),),
        estimate_ms=estimate,
        simulated_runtime_ms=run,
        checkpoint_interval_ms=checkpoint,
        held=held,
    )


def submit(*workloads: WorkloadSpec) -> Submit:
    return Submit(workloads=workloads)
