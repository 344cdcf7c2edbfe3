"""The published benchmarks of very large GKE clusters, run through the engine: phases, priorities and counts of tasks.

130,000 nodes: https://cloud.google.com/blog/products/containers-kubernetes/how-we-built-a-130000-node-gke-cluster, by
those who quote it; figures that no quotation of it holds are left out. One JobSet over all nodes; a batch of low
priority on half of them; training that preempts 39,000 of it; a surge of inference; scale-down.
65,000 nodes: https://gke-ai-labs.dev/docs/benchmarking/cpu-based-benchmark/. One training job over all nodes; training
beside inference; inference that scales up over the whole cell and interrupts the training, which then waits;
scale-down, and the training goes on; its end.

What stands in for what: a pod is a task that fills its node; Kueue's cluster queue is one queue whose quota is the
whole cell. Single tasks arrive 1,000 to the second of cell time, the published rate of pod creation. Not published, and
chosen here: run times, the time between phases, checkpoints every ten minutes, and that the training of 130,000 nodes
has 104,000 tasks, which is what preempts 39,000 when 65,000 nodes are free, in eight JobSets that come a second apart.
What is left out: API server, kubelets and network, which are part of every published figure. Nothing boots.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal

import msgspec

from engine.model.commands import Cancel, Submit
from engine.model.errors import SpecError
from engine.model.specs import (
    HOUR_MS,
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    Settings,
    TaskGroup,
    WorkloadSpec,
)

MINUTE_MS = 60_000
SECOND_MS = 1000
TASK = Resources(cpu_milli=4000, memory_mib=16_384)
"""Of one task, and of one node."""
RACK = 50
"""Nodes."""
ZONES = 3
QUEUE = "ai"
RATE = 1000
"""Tasks that arrive in a second of cell time, where they are workloads of their own."""
CHECKPOINT_MS = 10 * MINUTE_MS
JOBSETS = 8
FOREVER_MS = 30 * 24 * HOUR_MS
"""Run time of inference, which runs until it is scaled down."""

Training = Literal["jobsets", "one", "singles"]
"""How the training of 130,000 nodes is cut: eight gangs, a single gang, or tasks of their own."""


class PublishedPhase(msgspec.Struct, frozen=True, kw_only=True):
    """What was published of a phase, at the published size; None where nothing was."""

    tasks: int | None = None
    ms: int | None = None
    """From the first submission until all of them ran; of preemption, until all had been preempted."""
    at_most: bool = False
    """It says "less than"."""
    preempted: int | None = None
    preemption_ms: int | None = None
    startup_p99_ms: int | None = None


class ScenarioPhase(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is done to the cell at a time, and what holds once the engine has decided."""

    name: str
    at_ms: int
    """Cell time from the start."""
    submits: tuple[WorkloadSpec, ...] = ()
    each_second: int = RATE
    """So many of these workloads arrive in a second of cell time."""
    cancels: tuple[str, ...] = ()
    running: dict[str, int]
    """Priority class -> tasks that run when it is over."""
    preempted: int | None = 0
    """Tasks that lose their nodes to others in it; None where that follows from how the training is cut."""
    published: PublishedPhase | None = None

    @property
    def steps(self) -> Iterator[tuple[int, Submit | Cancel | None]]:
        """(cell ms from the start, what is commanded then); None lets time pass alone."""
        if self.cancels:
            yield self.at_ms, Cancel(ids=self.cancels)
        for number, first in enumerate(range(0, len(self.submits), self.each_second)):
            yield self.at_ms + number * SECOND_MS, Submit(workloads=self.submits[first : first + self.each_second])
        if not self.cancels and not self.submits:
            yield self.at_ms, None


def cell(nodes: int, *, spot_permille: int = 0) -> CellSpec:
    """Nodes in racks of 50 in three zones, of which that many are spot: whole racks, evenly over the zones."""
    racks = -(-nodes // RACK)
    pools = [PoolSpec(name="cpu", capacity=TASK)]
    if spot_permille:
        pools.append(PoolSpec(name="cpu-spot", capacity=TASK, spot=True))
    specs = []
    for i in range(nodes):
        rack = i // RACK
        spot = (rack + 1) * spot_permille // 1000 > rack * spot_permille // 1000
        zone = f"zone-{'abc'[rack * ZONES // racks]}"
        specs.append(
            NodeSpec(id=f"n{i:06}", pool="cpu-spot" if spot else "cpu", region="region", zone=zone, rack=f"r{rack:04}")
        )
    return CellSpec(
        name="gke",
        pools=tuple(pools),
        nodes=tuple(specs),
        queues=(QueueSpec(name=QUEUE, nominal={"cpu_milli": nodes * TASK.cpu_milli}),),
        priority_classes=(
            PriorityClassSpec(name="low", value=100),
            PriorityClassSpec(name="medium", value=500, preemption="lower"),
            PriorityClassSpec(name="high", value=1000, preemption="lower"),
        ),
        settings=Settings(preempt_after_ms=0),
    )


class SpecFactory:
    """Makes specs that share what is equal in them."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._groups: dict[int, tuple[TaskGroup, ...]] = {}

    def gang(self, name: str, tasks: int, priority: str, run_ms: int) -> WorkloadSpec:
        groups = self._groups.setdefault(tasks, (TaskGroup(count=tasks, request=TASK),))
        return WorkloadSpec(
            id=name,
            queue=QUEUE,
            groups=groups,
            priority_class=priority,
            team=name.partition("-")[0],
            checkpoint_interval_ms=CHECKPOINT_MS,
            simulated_runtime_ms=run_ms,
        )

    def gangs(self, name: str, tasks: int, count: int, priority: str, run_ms: int) -> tuple[WorkloadSpec, ...]:
        """So many tasks in so many gangs, as even as can be."""
        sizes = [tasks // count + (i < tasks % count) for i in range(count)]
        return tuple(self.gang(f"{name}-{i}", size, priority, run_ms) for i, size in enumerate(sizes))

    def singles(
        self, name: str, count: int, priority: str, least_ms: int, most_ms: int, first: int = 0
    ) -> tuple[WorkloadSpec, ...]:
        """Tasks of their own, with run times drawn evenly in whole seconds."""
        draw = self._draw
        return tuple(
            self.gang(f"{name}-{i:06}", 1, priority, draw.randint(least_ms // 1000, most_ms // 1000) * 1000)
            for i in range(first, first + count)
        )


def phases_130k(nodes: int, seed: int = 1, training: Training = "jobsets") -> list[ScenarioPhase]:
    """The four phases, each in its parts. Counts are the published ones times nodes / 130,000."""
    _check_nodes(nodes, 10)
    make = SpecFactory(seed)
    batch, trained, surge = nodes // 2, nodes * 8 // 10, nodes * 4 // 10
    run_ms = 3 * HOUR_MS
    if training == "singles":
        works = make.singles("training", trained, "medium", run_ms, run_ms)
    else:
        works = make.gangs("training", trained, JOBSETS if training == "jobsets" else 1, "medium", run_ms)
    inference = make.singles("inference", surge, "high", FOREVER_MS, FOREVER_MS)
    left = nodes - trained
    # A gang is preempted whole: what one of all the training leaves beside the surge is for the batch.
    during = {"high": surge, "low": batch} if training == "one" else {"high": surge, "medium": nodes - surge}
    minutes = iter((0, 15, 16, 40, 65, 95, 24 * 60))

    def at() -> int:
        return next(minutes) * MINUTE_MS

    return [
        ScenarioPhase(
            name="1 one gang, all nodes",
            at_ms=at(),
            submits=(make.gang("jobset", nodes, "medium", 10 * MINUTE_MS),),
            running={"medium": nodes},
            published=PublishedPhase(tasks=130_000, ms=220_000),
        ),
        ScenarioPhase(name="1 it ends", at_ms=at(), running={}),
        ScenarioPhase(
            name="2 low-priority batch",
            at_ms=at(),
            submits=make.singles("batch", batch, "low", HOUR_MS, 2 * HOUR_MS),
            running={"low": batch},
            published=PublishedPhase(tasks=65_000, ms=81_000),
        ),
        ScenarioPhase(
            name="2 training preempts",
            at_ms=at(),
            submits=works,
            each_second=RATE if training == "singles" else 1,
            running={"medium": trained, "low": left},
            preempted=batch - left,
            published=PublishedPhase(preempted=39_000, preemption_ms=93_000),
        ),
        ScenarioPhase(
            name="3 inference surge",
            at_ms=at(),
            submits=inference,
            running=during,
            preempted=None,
            published=PublishedPhase(tasks=52_000, startup_p99_ms=10_000),
        ),
        ScenarioPhase(
            name="4 surge goes",
            at_ms=at(),
            cancels=tuple(spec.id for spec in inference),
            running={"medium": trained, "low": left},
            preempted=None,
        ),
        ScenarioPhase(name="4 all ends", at_ms=at(), running={}),
    ]


def phases_65k(nodes: int, seed: int = 1) -> list[ScenarioPhase]:
    """The five phases. Counts are the published ones times nodes / 65,000."""
    _check_nodes(nodes, 13)
    make = SpecFactory(seed)
    trained = nodes * 10 // 13
    served = nodes - trained
    first = make.singles("inference", served, "high", FOREVER_MS, FOREVER_MS)
    more = make.singles("inference", trained, "high", FOREVER_MS, FOREVER_MS, first=served)
    both = {"medium": trained, "high": served}
    return [
        ScenarioPhase(
            name="1 one gang, all nodes",
            at_ms=0,
            submits=(make.gang("training-1", nodes, "medium", 10 * MINUTE_MS),),
            running={"medium": nodes},
            published=PublishedPhase(tasks=65_000, ms=150_000),
        ),
        ScenarioPhase(name="1 it ends", at_ms=15 * MINUTE_MS, running={}),
        ScenarioPhase(
            name="2 training",
            at_ms=16 * MINUTE_MS,
            submits=(make.gang("training-2", trained, "medium", 2 * HOUR_MS),),
            running={"medium": trained},
            published=PublishedPhase(tasks=50_000, ms=120_000, at_most=True),
        ),
        ScenarioPhase(
            name="2 inference beside it",
            at_ms=18 * MINUTE_MS,
            submits=first,
            running=both,
            published=PublishedPhase(tasks=15_000, ms=60_000, at_most=True),
        ),
        ScenarioPhase(
            name="3 inference scales up",
            at_ms=45 * MINUTE_MS,
            submits=more,
            running={"high": nodes},
            preempted=trained,
            published=PublishedPhase(tasks=50_000, ms=240_000, at_most=True),
        ),
        ScenarioPhase(
            name="4 it scales down",
            at_ms=75 * MINUTE_MS,
            cancels=tuple(spec.id for spec in more),
            running=both,
        ),
        ScenarioPhase(name="5 training ends", at_ms=4 * 60 * MINUTE_MS, running={"high": served}),
        ScenarioPhase(
            name="5 inference goes",
            at_ms=4 * 60 * MINUTE_MS + SECOND_MS,
            cancels=tuple(spec.id for spec in first),
            running={},
        ),
    ]


class GkeScenario(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    source: str
    load: str
    also: str = ""
    """What else was published, in a sentence."""


SCENARIOS = {
    "gke-65k": GkeScenario(
        nodes=65_000,
        source="https://gke-ai-labs.dev/docs/benchmarking/cpu-based-benchmark/",
        load="one gang, training beside inference that takes the whole cell, and back, in five phases",
    ),
    "gke-130k": GkeScenario(
        nodes=130_000,
        source="https://cloud.google.com/blog/products/containers-kubernetes/how-we-built-a-130000-node-gke-cluster",
        load="one gang, batch, training that preempts 39,000, a surge of 52,000, in four phases",
        also="Published too: up to 1,000 pods created and bound in a second, over 1,000,000 objects in one database. ",
    ),
}


def phases(name: str, nodes: int, seed: int = 1, training: Training = "jobsets") -> list[ScenarioPhase]:
    """Of the scenario of that name. Raises SpecError where the counts do not come out even."""
    return phases_65k(nodes, seed) if name == "gke-65k" else phases_130k(nodes, seed, training)


def _check_nodes(nodes: int, unit: int) -> None:
    """Raises SpecError unless the published parts of so many nodes are whole numbers of tasks."""
    if nodes < 10 * unit or nodes % unit:
        problem = f"{nodes:,} nodes cannot be divided as published"
        raise SpecError("--nodes", problem, f"Give a multiple of {unit} from {10 * unit} on")
