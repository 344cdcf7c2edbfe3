"""A small cell with something of everything, and one act of every action that can be done there."""

from __future__ import annotations

import msgspec

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.specs import (
    BudgetSpec,
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    ScalingSpec,
    TaskGroup,
    WorkloadSpec,
)
from runbooks.plans.typed_plan import (
    Act,
    Canary,
    MoneyChange,
    Note,
    QueueChange,
    RequestChange,
    ScalingChange,
    WorkloadMove,
)

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
A = QueueSpec(name="a", parent="root", nominal={"gpu_milli": 32_000})
B = QueueSpec(name="b", parent="root", nominal={"gpu_milli": 16_000})
FUTURE = ReservationSpec(name="r1", nodes=("g3",), start_ms=5 * HOUR, end_ms=6 * HOUR, queues=("a",))
BUDGET = BudgetSpec(name="b1", scope="queue", of="b", limit_microusd=10**9, window_ms=24 * HOUR, action="warn")


def world() -> Engine:
    """Four nodes of 8 GPUs (g3 is cordoned), three CPU nodes of a pool that grows (n0 is drained); queues a, b, and c,
    which drains; work that runs, waits, is held and is suspended; a reservation and a size of the pool to come, and a
    budget."""
    pools = (
        PoolSpec(
            name="gpu", capacity=Resources(cpu_milli=64_000, memory_mib=512_000, gpu_milli=8000),
            price_microusd_hour=20_000_000,
        ),
        PoolSpec(
            name="p", capacity=Resources(cpu_milli=8000, memory_mib=64_000), price_microusd_hour=1_000_000,
            scaling=ScalingSpec(least=1, most=20),
        ),
    )  # fmt: skip
    nodes = [NodeSpec(id=f"g{i}", pool="gpu") for i in range(4)] + [NodeSpec(id=f"n{i}", pool="p") for i in range(3)]
    spec = CellSpec(
        name="small", pools=pools, nodes=tuple(nodes), queues=(QueueSpec(name="root"), A, B, QueueSpec(name="c")),
        priority_classes=(
            PriorityClassSpec(name="low", value=1),
            PriorityClassSpec(name="normal", value=5),
            PriorityClassSpec(name="high", value=9, preemption="lower"),
        ),
    )  # fmt: skip
    engine = Engine.open(None, cell=spec)
    engine.command(cmd.Cordon(ids=("g3",)))
    engine.command(cmd.Drain(ids=("n0",)))
    engine.command(cmd.DrainQueues(names=("c",)))
    engine.command(
        cmd.Submit(
            workloads=(
                job("run1", gpu=8000), job("run2", gpu=4000, queue="b"), job("gang", gpu=2000, tasks=2),
                job("wait1", gpu=8000, tasks=3), job("wait2", gpu=8000, tasks=3, queue="b", tenant="t2", low=True),
                job("held1", gpu=8000, tasks=3, held=True), job("susp1", gpu=1000),
            )
        )
    )  # fmt: skip
    engine.command(cmd.Suspend(ids=("susp1",)))
    engine.command(cmd.Reserve(reservation=FUTURE))
    engine.command(cmd.SetTargets(pool="p", targets=((4 * HOUR, 4),)))
    engine.command(cmd.SetBudgets(budgets=(BUDGET,)))
    engine.advance(25 * SECOND)
    return engine


def job(
    name: str, *, gpu: int, tasks: int = 1, queue: str = "a", tenant: str = "t1", held: bool = False, low: bool = False
) -> WorkloadSpec:
    """Ten minutes of work, with a checkpoint every ten seconds."""
    return WorkloadSpec(
        id=name, queue=queue, tenant=tenant, held=held, priority_class="low" if low else "normal",
        groups=(TaskGroup(count=tasks, request=Resources(cpu_milli=1000, gpu_milli=gpu)),),
        estimate_ms=10 * MINUTE, simulated_runtime_ms=10 * MINUTE, checkpoint_interval_ms=10 * SECOND,
    )  # fmt: skip


def place_of(name: str) -> tuple[str, ...]:
    return tuple(sorted({place.node for place in world().workload(name).placement}))


ACTS: tuple[Act, ...] = (
    Act(action="cancel", targets=("run1", "wait1")),
    Act(action="hold", targets=("wait1", "wait2")),
    Act(action="release", targets=("held1",)),
    Act(action="requeue", targets=("run1",)),
    Act(action="preempt", targets=("run1", "run2")),
    Act(action="suspend", targets=("run1", "wait1")),
    Act(action="resume", targets=("susp1",)),
    Act(action="move", targets=("wait1", "held1"), to="b"),
    Act(action="set_priority", targets=("wait1", "wait2"), to="high"),
    Act(action="resize", targets=("wait1", "run1"), resize=RequestChange(request={"cpu_milli": 2000})),
    Act(action="approve_spending", targets=("wait2",)),
    Act(action="consolidate", targets=("run1",), moves=(WorkloadMove(id="run1", was=place_of("run1"), to=("g2",)),)),
    Act(action="cordon", targets=("g0", "g1")),
    Act(action="uncordon", targets=("g3", "n0")),
    Act(action="drain", targets=("g0", "g3")),
    Act(action="interrupt", targets=("g0",)),
    Act(action="hold_queue", targets=("a", "c")),
    Act(action="drain_queue", targets=("a", "b")),
    Act(action="open_queue", targets=("c",)),
    Act(
        action="set_quota", targets=("a",),
        queue=QueueChange(was=A, to=msgspec.structs.replace(A, nominal={"gpu_milli": 4000}, weight=3), over="evict"),
    ),
    Act(
        action="reserve", targets=("r2",),
        reservation=ReservationSpec(name="r2", nodes=("g0", "g1"), start_ms=2 * HOUR, end_ms=3 * HOUR),
    ),
    Act(action="unreserve", targets=("r1",)),
    Act(action="set_policy", targets=("fcfs",)),
    Act(action="set_price", targets=("gpu",), money=MoneyChange(price_microusd_hour=30_000_000)),
    Act(
        action="set_budget", targets=("b1",),
        money=MoneyChange(budget=msgspec.structs.replace(BUDGET, limit_microusd=2 * 10**9)),
    ),
    Act(action="remove_budget", targets=("b1",)),
    Act(action="set_scaling", targets=("p",), scaling=ScalingChange(least=2, most=30, headroom=1)),
    Act(action="set_targets", targets=("p",), scaling=ScalingChange(targets=((HOUR, 6), (2 * HOUR, 0)))),
    Act(action="set_autoscaling", targets=("autoscaler",), scaling=ScalingChange(settings={"most_in_batch": 7})),
    Act(action="scale_pool", targets=("p",), nodes=5),
    Act(action="canary", targets=("a",), canary=Canary(order="fair", window_ms=HOUR)),
    Act(action="notify", targets=("ops",), note=Note(text="the pool is short of nodes")),
    Act(action="open_review", targets=("P-1",), note=Note(text="why was it drained twice?")),
)  # fmt: skip
"""One of each, in the world above."""
MORE: tuple[Act, ...] = (
    Act(action="scale_pool", targets=("p",), nodes=1),
    Act(action="canary", targets=("small",), canary=Canary(policy="conservative", window_ms=HOUR)),
    Act(
        action="set_budget", targets=("b2",),
        money=MoneyChange(budget=msgspec.structs.replace(BUDGET, name="b2", of="a")),
    ),
    Act(action="suspend", targets=("gang",)),
    Act(action="drain", targets=("g2",)),
    Act(action="set_targets", targets=("p",), scaling=ScalingChange()),
    Act(action="move", targets=("wait2",), to="a"),
)  # fmt: skip
"""Other cases of some of them."""
