"""Small cells with more work than fits, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

from cells import CLASSES

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.specs import (
    ArraySpec,
    BurstSpec,
    CellSpec,
    Dependency,
    FlavorQuota,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    TaskGroup,
    WorkloadSpec,
)
from engine.state.workloads import DEPENDS_ON

S = 1000
HOUR = 3600 * S
POLICIES = ("fcfs", "easy", "easy-sjbf", "conservative")

PEOPLE = (
    PriorityClassSpec(name="low", value=1),
    PriorityClassSpec(name="normal", value=5),
    PriorityClassSpec(name="high", value=9, preemption="lower"),
)
"""Some may preempt."""


class RandomCell:
    """A small cell with more work than fits, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        dice = self.dice
        self.flavored = dice.random() < 0.2
        self.leaves = [f"q{i}" for i in range(dice.randint(1, 3))]
        self.engine = Engine.open(
            None,
            cell=CellSpec(
                pools=(
                    PoolSpec(name="gpu", capacity=Resources(cpu_milli=16_000, memory_mib=64, gpu_milli=4000)),
                    PoolSpec(name="cpu", capacity=Resources(cpu_milli=8000, memory_mib=32)),
                ),
                nodes=tuple(
                    NodeSpec(id=f"n{i}", pool=dice.choice(["gpu", "gpu", "cpu"]), rack=f"r{i // 2}") for i in range(4)
                ),
                queues=tuple(self._queues()),
                priority_classes=dice.choice([CLASSES, PEOPLE]),
            ),
            seed=seed,
        )
        self.ask(cmd.SetPolicy(policy=dice.choice(POLICIES)))
        self.submitted = 0
        for _ in range(dice.randint(3, 5)):
            self.ask(cmd.Submit(workloads=tuple(self._workload() for _ in range(dice.randint(1, 4)))))
            self._disturb()
            self.engine.advance(self.engine.now_ms + dice.choice([0, 0, 10 * S, 40 * S]))

    def ask(self, command: cmd.AnyCommand) -> None:
        """It may be refused: sizes and states are random."""
        self.engine.commands([command])

    def _queues(self) -> Iterator[QueueSpec]:
        dice = self.dice
        yield QueueSpec(name="root", nominal=dice.choice([{}, {"gpu_milli": 4000}]))
        for name in self.leaves:
            nominal = {"gpu_milli": dice.choice([0, 2000, 4000])} if dice.random() < 0.6 else {}
            limit = {"gpu_milli": dice.choice([0, 2000])} if dice.random() < 0.4 else {}
            most = nominal.get("gpu_milli", 0) + limit.get("gpu_milli", 0)
            burst = BurstSpec(limit={"gpu_milli": most + 2000}, window_ms=30 * S) if limit else None
            flavors = (FlavorQuota(pool="gpu", nominal={"cpu_milli": 12_000}), FlavorQuota(pool="cpu"))
            yield QueueSpec(
                name=name,
                parent="root",
                nominal=nominal,
                borrowing_limit=limit,
                lending_limit={"gpu_milli": 2000} if dice.random() < 0.2 else {},
                burst=burst if dice.random() < 0.5 else None,
                flavors=flavors if self.flavored else (),
                order=dice.choice(["best_effort", "best_effort", "strict_fifo", "fair"]),
                reclaim=dice.choice(["never", "any"]),
                min_runtime_ms=dice.choice([0, 0, 0, 20 * S]),
                disruptions=dice.choice([-1, -1, -1, 0, 1]),
            )

    def _workload(self) -> WorkloadSpec:
        dice = self.dice
        name = f"w{self.submitted}"
        self.submitted += 1
        earlier = f"w{dice.randrange(self.submitted)}"
        count = dice.choice([1, 1, 2, 3, 6])
        groups = [
            TaskGroup(
                name=f"g{i}",
                count=count,
                min_count=dice.choice([0, 0, 0, 1]),
                request=Resources(
                    cpu_milli=dice.choice([1, 1000, 4000, 9000]),
                    gpu_milli=dice.choice([0, 500, 1000, 2000, 4000]),
                    memory_mib=dice.choice([0, 0, 20]),
                ),
                pools=dice.choice([(), (), (), ("gpu",)]),
            )
            for i in range(dice.choice([1, 1, 1, 2]))
        ]
        return WorkloadSpec(
            id=name,
            queue=dice.choice(self.leaves),
            groups=tuple(groups),
            tenant=dice.choice(["", "t"]),
            priority_class=dice.choice(["low", "normal", "normal", "high"]),
            estimate_ms=dice.choice([0, 20 * S, 60 * S, HOUR]),
            simulated_runtime_ms=dice.choice([15 * S, 60 * S, HOUR]),
            simulated_failures=dice.choice([0, 0, 1]),
            retries=dice.choice([0, 2]),
            checkpoint_interval_ms=dice.choice([0, 5 * S]),
            checkpoint_cost_ms=dice.choice([0, 0, 2 * S]),
            elastic=dice.random() < 0.2,
            held=dice.random() < 0.05,
            not_before_ms=dice.choice([0] * 24 + [2 * HOUR]),
            after=(Dependency(id=earlier, on=dice.choice(DEPENDS_ON)),) if dice.random() < 0.1 else (),
            array=ArraySpec(last=2, max_running=1) if dice.random() < 0.06 else None,
        )

    def _disturb(self) -> None:
        dice = self.dice
        name, node, queue = f"w{dice.randrange(self.submitted)}", f"n{dice.randrange(4)}", dice.choice(self.leaves)
        kind = dice.randrange(16)
        if kind == 0:
            self.ask(cmd.Cordon(ids=(node,)))
        elif kind == 1:
            self.ask(cmd.HoldQueues(names=(queue,)))
        elif kind == 2:
            self.ask(cmd.Suspend(ids=(name,)))
        elif kind == 3:
            self.ask(cmd.Drain(ids=(node,)))
        elif kind == 4:
            start = self.engine.now_ms + dice.choice([0, 30 * S])
            reservation = ReservationSpec(name=f"r-{name}", nodes=(node,), start_ms=start, end_ms=start + 90 * S)
            self.ask(cmd.Reserve(reservation=reservation))
        elif kind < 7:
            self.ask(cmd.Requeue(ids=(name,)))
