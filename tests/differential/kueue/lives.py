"""Random lives of a cell with Kueue: its queues, and what is submitted and ended. The same for the same seed.

A unit is one CPU. Times have no part in it: each step is played once the one before has settled.
"""

from __future__ import annotations

import random
from typing import Literal

import msgspec

FLAVORS = ("a", "b")
LEVELS = ("block", "rack", "node")
NODES = [(block, rack, node) for block in range(2) for rack in range(2) for node in range(2)]
"""Of one flavor in a life with a topology: (block, rack in it, node in it)."""
NODE_CPU = 4
GPU = "nvidia.com/gpu"
Quota = tuple[int, int | None, int | None]
"""Nominal, borrowing limit, lending limit; None: no limit."""


class FlavorLimits(msgspec.Struct, frozen=True):
    """Quota of a queue in one flavor; None: no limit."""

    flavor: str
    nominal: int
    borrowing: int | None
    lending: int | None
    gpu: Quota | None = None
    """None where the life knows no GPUs."""


class LifeQueue(msgspec.Struct, frozen=True):
    """A cluster queue. The words are Kueue's."""

    name: str
    cohort: str
    flavors: tuple[FlavorLimits, ...]
    within: str = "Never"
    reclaim: str = "Never"
    borrow_within: str = "Never"
    max_priority: int | None = None
    when_can_borrow: str = "MayStopSearch"
    when_can_preempt: str = "TryNextFlavor"


class LifeJob(msgspec.Struct, frozen=True):
    """A gang of `count` pods of `cpu` units. `least`: pods it may start with; 0: all."""

    name: str
    queue: str
    priority: int
    count: int
    cpu: int
    least: int = 0
    topology: tuple[Literal["required", "preferred"], str] | None = None
    gpu: int = 0
    """Of each pod."""


class Step(msgspec.Struct, frozen=True):
    """Jobs submitted one after the other at once, and one that is ended, whether it runs or waits."""

    submit: tuple[LifeJob, ...] = ()
    end: str = ""

    def __str__(self) -> str:
        asked = (
            f"{job.name} to {job.queue}: {job.count}x{job.cpu}" + (f"+{job.gpu}" if job.gpu else "")
            + (f" least {job.least}" if job.least else "")
            + f" priority {job.priority}" + (f" {' '.join(job.topology)}" if job.topology else "")
            for job in self.submit
        )  # fmt: skip
        return f"end {self.end}" if self.end else "submit " + "; ".join(asked)


class Life(msgspec.Struct, frozen=True):
    seed: int
    topology: bool
    flavors: tuple[str, ...]
    cohorts: dict[str, str]
    """Cohort -> the one it is in, or ""."""
    queues: tuple[LifeQueue, ...]
    steps: tuple[Step, ...]

    def root(self, queue: str) -> str:
        """The widest cohort around a queue."""
        cohort = next(each.cohort for each in self.queues if each.name == queue)
        return self.cohorts[cohort] or cohort


def life(seed: int, *, topology: bool | None = None, steps: int = 8) -> Life:
    """One in four has a topology, unless it is said."""
    dice = random.Random(seed)
    drawn = dice.random() < 0.25
    with_topology = drawn if topology is None else topology
    flavors = FLAVORS[: dice.choice((1, 2, 2))]
    cohorts = {"c0": ""}
    if dice.random() < 0.5:
        cohorts = {"c0": "", "c1": ""} if dice.random() < 0.6 else {"top": "", "c0": "top", "c1": "top"}
    queues = tuple(_queue(dice, f"q{n}", cohorts, flavors, with_topology) for n in range(dice.randint(2, 6)))
    return Life(seed, with_topology, flavors, cohorts, queues, tuple(_steps(dice, queues, with_topology, steps)))


def with_gpu(life: Life) -> Life:
    """The life with a second resource in every quota, which some of its jobs ask for too."""
    dice = random.Random(f"gpu {life.seed}")
    replace = msgspec.structs.replace

    def quota() -> Quota:
        nominal = dice.choice((0, 2, 2, 4, 4, 6))
        return nominal, dice.choice((None, None, 0, 2, 4)), dice.choice((None, None, None, nominal, nominal // 2, 0))

    def having(queue: LifeQueue) -> LifeQueue:
        return replace(queue, flavors=tuple(replace(limits, gpu=quota()) for limits in queue.flavors))

    def asking(job: LifeJob) -> LifeJob:
        return replace(job, gpu=dice.choice((0, 0, 1, 1, 2)))

    steps = tuple(replace(step, submit=tuple(map(asking, step.submit))) for step in life.steps)
    return replace(life, queues=tuple(map(having, life.queues)), steps=steps)


def _queue(
    dice: random.Random, name: str, cohorts: dict[str, str], flavors: tuple[str, ...], topology: bool
) -> LifeQueue:
    own = list(flavors) if dice.random() < 0.7 else [dice.choice(flavors)]
    if dice.random() < 0.3:
        own.reverse()
    limits = []
    for flavor in own:
        nominal = dice.choice((0, 2, 4, 4, 6, 8, 10))
        borrowing = dice.choice((None, None, 0, 2, 4, 8))
        lending = dice.choice((None, None, None, nominal, nominal // 2, 0))
        limits.append(FlavorLimits(flavor, nominal, borrowing, lending))
    reclaim = dice.choice(("Never", "LowerPriority", "Any", "Any"))
    borrow_within = dice.choice(("Never", "Never", "LowerPriority")) if reclaim != "Never" else "Never"
    return LifeQueue(
        name=name,
        cohort=dice.choice([cohort for cohort in cohorts if cohort != "top"]),
        flavors=tuple(limits),
        within=dice.choice(("Never", "LowerPriority", "LowerPriority", "LowerOrNewerEqualPriority")),
        reclaim=reclaim,
        borrow_within=borrow_within,
        max_priority=dice.choice((None, 0, 10)) if borrow_within != "Never" else None,
        when_can_borrow=dice.choice(("MayStopSearch", "MayStopSearch", "TryNextFlavor")),
        when_can_preempt=dice.choice(("MayStopSearch", "TryNextFlavor", "TryNextFlavor")),
    )


def _steps(dice: random.Random, queues: tuple[LifeQueue, ...], topology: bool, count: int) -> list[Step]:
    steps: list[Step] = []
    there: list[str] = []
    number = 0
    while len(steps) < count:
        if there and len(steps) > 2 and dice.random() < 0.25:
            steps.append(Step(end=there.pop(dice.randrange(len(there)))))
            continue
        many = dice.randint(2, 4) if dice.random() < 0.15 else 1
        jobs = tuple(_job(dice, f"j{number + n}", queues, topology) for n in range(many))
        number += many
        there += [job.name for job in jobs]
        steps.append(Step(submit=jobs))
    return steps


def _job(dice: random.Random, name: str, queues: tuple[LifeQueue, ...], topology: bool) -> LifeJob:
    count, cpu = dice.choice((1, 1, 2, 2, 3, 4, 6)), dice.choice((1, 2, 2, 3))
    asked: tuple[Literal["required", "preferred"], str] | None = None
    if topology and dice.random() < 0.7:
        asked = dice.choice(("required", "preferred")), dice.choice(LEVELS[:2])
    return LifeJob(
        name=name,
        queue=dice.choice(queues).name,
        priority=dice.choice((0, 0, 10, 20)),
        count=count,
        cpu=cpu,
        least=dice.randint(1, count - 1) if count > 1 and dice.random() < 0.2 else 0,
        topology=asked,
    )
