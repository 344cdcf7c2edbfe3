"""Cells whose pools grow, and shortcuts for tests of what is ordered for them."""

from __future__ import annotations

from engine.control import Engine
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.specs import (
    Autoscaling,
    CellSpec,
    NodeSpec,
    NodeState,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    ScalingSpec,
    Settings,
    TaskGroup,
    WorkloadSpec,
)
from engine.state.machines import OrderState

SECOND, MINUTE = 1000, 60_000
QUICK = Autoscaling(scale_up_after_ms=0, scale_down_below_permille=0)
"""Orders at once and gives nothing back, so that tests see what is ordered alone."""


def pool(
    name: str, *, cpu: int = 8, memory: int = 32, gpu: int = 0, price: int = 100, most: int = 100, **scaling
) -> PoolSpec:
    """A growing pool: CPUs, GiB, devices, micro-USD an hour; the rest as in ScalingSpec."""
    return PoolSpec(
        name=name,
        capacity=Resources(cpu_milli=cpu * 1000, memory_mib=memory * 1024, gpu_milli=gpu * 1000),
        gpu_model="H100" if gpu else "",
        price_microusd_hour=price,
        scaling=ScalingSpec(most=most, **scaling),
    )


def elastic(
    *pools: PoolSpec, settings: Autoscaling = QUICK, nodes: tuple[NodeSpec, ...] = (), queues=None, path=None, **engine
) -> Engine:
    """An engine, in memory unless a path is given. `queues`: specs; one without quota by default."""
    cell = CellSpec(
        name="elastic",
        pools=pools,
        nodes=nodes,
        queues=queues or (QueueSpec(name="q"),),
        priority_classes=(PriorityClassSpec(name="normal", value=0), PriorityClassSpec(name="high", value=100)),
        settings=Settings(autoscaling=settings),
    )
    return Engine.open(path, cell=cell, **engine)


def work(
    name: str, *, cpu: int = 1, memory: int = 1, gpu: int = 0, count: int = 1, run: int = 3_600_000, **spec
) -> WorkloadSpec:
    """One group: CPUs, GiB and devices of each of its tasks; the rest as in WorkloadSpec or TaskGroup."""
    terms = {key: spec.pop(key) for key in ("node_labels", "tolerations", "pools", "spread") if key in spec}
    request = Resources(cpu_milli=cpu * 1000, memory_mib=memory * 1024, gpu_milli=gpu * 1000)
    return WorkloadSpec(
        id=name,
        **{"queue": "q", "simulated_runtime_ms": run, "estimate_ms": run} | spec,
        groups=(TaskGroup(count=count, request=request, **terms),),
    )


def submit(engine: Engine, *workloads: WorkloadSpec) -> None:
    engine.command(cmd.Submit(workloads=workloads))


def orders(engine: Engine) -> list[tuple[str, str, int, str]]:
    """(pool, zone, nodes, state) of every order."""
    o, pools = engine.state.orders, engine.state.capacity.pools
    return [
        (pools[o.pool[row]].name, o.zone[row], o.wanted[row], OrderState(o.state[row]).label)
        for row in range(len(o.pool))
    ]


def nodes_in(engine: Engine, state: NodeState) -> list[str]:
    c = engine.state.capacity
    return [c.node_ids[row] for row in c.row_of.values() if c.state[row] == state]


def state_of(engine: Engine, workload_id: str) -> str:
    return engine.workload(workload_id).state


def said(engine: Engine, what: str) -> list[str]:
    """Details of what the events page says under that word."""
    return [change.detail for change in engine.changes(0, 10_000).items if change.what == what]


def why(engine: Engine, workload_id: str) -> str:
    """What is said about nodes to come; empty when nothing is."""
    return next((r.text for r in engine.workload(workload_id).reasons if r.token == "WaitingForNodes"), "")


def order(
    engine: Engine, count: int, *, pool: int = 0, zone: str = "", gang: int = -1, timeout: int = 15 * MINUTE
) -> None:
    """Make an order by hand."""
    with engine._turn():
        engine._emit(ev.Ordered(pool, zone, count, engine.now_ms + timeout, gang))
