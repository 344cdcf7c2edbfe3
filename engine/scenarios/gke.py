"""The published benchmarks of very large GKE clusters, run through the engine phase by phase.

130,000 nodes: https://cloud.google.com/blog/products/containers-kubernetes/how-we-built-a-130000-node-gke-cluster, by
those who quote it; figures that no quotation of it holds are left out. One JobSet over all nodes; a batch of low
priority on half of them; training that preempts 39,000 of it; a surge of inference; scale-down.

65,000 nodes: https://gke-ai-labs.dev/docs/benchmarking/cpu-based-benchmark/. One training job over all nodes; training
beside inference; inference that scales up over the whole cell and interrupts the training, which then waits;
scale-down, and the training goes on; its end.

A pod is a task that fills its node; Kueue's cluster queue is one queue whose quota is the whole cell. Single tasks
arrive 1,000 to the second of cell time, the published rate of pod creation. Not published, and chosen here: run times,
the time between phases, checkpoints every ten minutes, and that the training of 130,000 nodes has 104,000 tasks, which
preempts 39,000 when 65,000 nodes are free, in eight JobSets that come a second apart. Left out: API server, kubelets
and network, which are part of every published figure. Nothing boots.

After each phase the run checks that all is as it must be, and measures how long deciding took. Cell time passes between
phases and is free. The clock of decisions counts the wall time inside the engine's calls, with the writing of the
journal, and nothing else: not the making of specs, not the checks.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np

from engine.control import Engine
from engine.model.columns import Rows, view
from engine.model.commands import AnyCommand, Cancel, Submit
from engine.model.errors import MusterError, SpecError
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
    WorkloadState,
)
from engine.state.cell_state import State
from engine.state.invariants import faults_of

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
    """The published figures of a phase, at the published size; None where nothing was published."""

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
        """Divide tasks into gangs, as evenly as possible."""
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
    """Return the phases of the scenario of that name. Raises SpecError where the counts do not come out even."""
    return phases_65k(nodes, seed) if name == "gke-65k" else phases_130k(nodes, seed, training)


def _check_nodes(nodes: int, unit: int) -> None:
    """Raises SpecError unless the published parts of so many nodes are whole numbers of tasks."""
    if nodes < 10 * unit or nodes % unit:
        problem = f"{nodes:,} nodes cannot be divided as published"
        raise SpecError("--nodes", problem, f"Give a multiple of {unit} from {10 * unit} on")


NEVER = -1


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of a phase. Milliseconds of the clock of decisions where nothing else is said."""

    name: str
    tasks: int
    """Of those that arrived in it, how many started; where none arrived, of those that were there."""
    again: int
    """Started again in a phase in which others arrived."""
    wall_ms: float
    """From its first call until the last of `tasks` had started, or, where none did, until its last call was
    answered."""
    cpu_ms: float
    """Of all calls of the phase, in processor time."""
    tasks_per_s: int
    peak_tasks_per_s: int
    """Most that started in any second, or the rate of a call that took longer."""
    startup_p50_ms: float
    startup_p99_ms: float
    """From the call that submitted a task, or brought it back, to the answer of the call in which it started."""
    preempted: int
    """Tasks that lost their nodes to others."""
    preempted_workloads: int
    preemption_ms: float
    """From the first call until the last of them had."""
    preempted_per_s: int
    arrivals_ms: int
    """Cell time from the first arrival to the last."""
    waited_max_ms: int
    """Cell time: longest wait of a task that arrived in this phase and started in it."""
    lost_ms: int
    """Cell time: longest stretch of work that one workload lost in this phase, since its last checkpoint."""
    objects: int
    """Nodes, workloads that have not ended, and tasks on nodes, when it is over."""
    published: PublishedPhase | None


class ScenarioRun(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario that ran to its end with nothing amiss."""

    nodes: int
    phases: tuple[PhaseTimes, ...]
    define_ms: float
    """Wall time to define the cell."""
    decisions_ms: float
    """Of all phases, in the engine's calls."""
    decisions_cpu_ms: float
    """The same in processor time."""
    checks: int
    """Times the whole state was checked."""
    wall_ms: float
    """Of everything: specs, decisions, checks."""
    events: int


class EngineStopwatch:
    """Time spent inside the engine's calls, in seconds: of the wall's clock, and of the processor, which other work on
    the machine does not lengthen."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.cpu_s = 0.0

    def call(self, engine: Engine, at_ms: int, command: AnyCommand | None) -> tuple[float, float]:
        """Let cell time pass and command. Returns (begin, end) on this clock. Raises MusterError if it is refused."""
        begun, real, cpu = self.at_s, time.perf_counter(), time.process_time()
        engine.advance(at_ms)
        if command is not None:
            engine.command(command)
        self.at_s += time.perf_counter() - real
        self.cpu_s += time.process_time() - cpu
        return begun, self.at_s


def run_phase(engine: Engine, clock: EngineStopwatch, phase: ScenarioPhase, start_ms: int) -> PhaseTimes:
    """Raises MusterError where what runs afterwards is not what must, or an invariant does not hold."""
    state = engine.state
    watch, cpu_s = _Watch(state, clock.at_s), clock.cpu_s
    for at_ms, command in phase.steps:
        watch.before(command)
        watch.after(*clock.call(engine, start_ms + at_ms, command))
    _check(engine, phase, watch)
    return watch.measured(phase, clock.cpu_s - cpu_s)


def _check(engine: Engine, phase: ScenarioPhase, watch: _Watch) -> None:
    faults = faults_of(engine.state)
    running = running_tasks(engine.state)
    if running != {name: count for name, count in phase.running.items() if count}:
        faults.append(f"{_listed(running)} run, and not {_listed(phase.running)}")
    if phase.preempted is not None and watch.preempted != phase.preempted:
        faults.append(f"{watch.preempted:,} tasks were preempted, and not {phase.preempted:,}")
    faults += lost_work(engine.state)
    if faults:
        raise MusterError(f"phase '{phase.name}' went wrong: {'; '.join(faults)}")


def running_tasks(state: State) -> dict[str, int]:
    """Priority class -> tasks that run."""
    w = state.workloads
    if not w.ids:
        return {}
    running = view(w.state) == WorkloadState.RUNNING
    sums = np.bincount(view(w.priority)[running], weights=view(w.tasks)[running], minlength=len(w.priority_classes))
    return {spec.name: int(n) for spec, n in zip(w.priority_classes, sums.tolist(), strict=True) if n}


def lost_work(state: State) -> list[str]:
    """Return the work that ended otherwise than it was to, and work that was not kept up to its last checkpoint."""
    w = state.workloads
    now = view(w.state)
    found = []
    if failed := int((now == WorkloadState.FAILED).sum()):
        found.append(f"{failed:,} workloads failed")
    done = now == WorkloadState.FINISHED
    if (view(w.kept)[done] + view(w.done)[done] != view(w.simulated)[done]).any():
        found.append("something finished before all its work was done")
    kept, interval = view(w.kept), view(w.checkpoint)
    if (kept % np.maximum(interval, 1) * (interval > 0)).any():
        found.append("work was kept that no checkpoint held")
    return found


def _listed(running: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in running.items()) or "none"


class _Watch:
    """Counts what starts and what is preempted, call by call."""

    def __init__(self, state: State, begun_s: float) -> None:
        self._state = state
        self._begun_s = begun_s
        self._calls: list[tuple[float, float, int]] = []
        """(begin, end, tasks started)"""
        self._first = len(state.workloads.ids)
        self._asked_s = np.full(self._first, begun_s)
        """By row: when it was submitted; when the phase began for those that were there."""
        self._again = 0
        self._startups: list[tuple[Rows, Rows]] = []
        """(seconds, tasks) of each call."""
        self._waits_ms = 0
        self._lost_ms = 0
        self._arrivals: list[int] = []
        self._preempted_until_s = begun_s
        self.preempted = 0
        self.preempted_workloads = 0

    def before(self, command: Submit | Cancel | None) -> None:
        w = self._state.workloads
        self._attempts = view(w.attempts).copy()
        self._evictions = view(w.evictions).copy()
        self._tasks = view(w.tasks).copy()
        running = view(w.state) == WorkloadState.RUNNING
        self._rated = np.where(running, view(w.rated), NEVER)
        self._work = view(w.kept) + view(w.done)
        self._command = command

    def after(self, begun_s: float, end_s: float) -> None:
        w, now_ms = self._state.workloads, self._state.now_ms
        more = len(w.ids) - len(self._asked_s)
        self._asked_s = np.append(self._asked_s, np.full(more, begun_s))
        if isinstance(self._command, Submit):
            self._arrivals.append(now_ms)
        old = len(self._attempts)
        before = np.append(self._attempts, np.zeros(len(w.ids) - old, self._attempts.dtype))
        started = np.flatnonzero((view(w.attempts) != before) & (view(w.state) == WorkloadState.RUNNING))
        own = started[started >= self._first] if len(w.ids) > self._first else started
        tasks = view(w.tasks)[own].astype(np.int64)
        self._again += int(view(w.tasks)[started].sum()) - int(tasks.sum())
        self._startups.append((end_s - self._asked_s[own], tasks))
        self._calls.append((begun_s, end_s, int(tasks.sum())))
        arrived = own[own >= self._first]
        if len(arrived):
            self._waits_ms = max(self._waits_ms, int((now_ms - view(w.submitted)[arrived]).max()))
        stopped = np.flatnonzero(view(w.evictions)[:old] != self._evictions)
        if len(stopped):
            self.preempted += int(self._tasks[stopped].sum())
            self.preempted_workloads += len(stopped)
            self._preempted_until_s = end_s
            ran = np.where(self._rated[stopped] == NEVER, 0, now_ms - self._rated[stopped])
            lost = self._work[stopped] + ran - view(w.kept)[stopped]
            self._lost_ms = max(self._lost_ms, int(lost.max()))

    def measured(self, phase: ScenarioPhase, cpu_s: float) -> PhaseTimes:
        state = self._state
        began = self._begun_s
        started = [call for call in self._calls if call[2]]
        wall_s = (started or self._calls)[-1][1] - began
        tasks = sum(call[2] for call in started)
        p50_s, p99_s = _percentiles(self._startups, (0.5, 0.99))
        took_s = self._preempted_until_s - began
        w = state.workloads
        live = int(np.isin(view(w.state), LIVE).sum())
        return PhaseTimes(
            name=phase.name,
            tasks=tasks,
            again=self._again,
            wall_ms=round(wall_s * 1000, 1),
            cpu_ms=round(cpu_s * 1000, 1),
            tasks_per_s=round(tasks / wall_s),
            peak_tasks_per_s=_peak(started),
            startup_p50_ms=round(p50_s * 1000, 1),
            startup_p99_ms=round(p99_s * 1000, 1),
            preempted=self.preempted,
            preempted_workloads=self.preempted_workloads,
            preemption_ms=round(took_s * 1000, 1),
            preempted_per_s=round(self.preempted / took_s) if self.preempted else 0,
            arrivals_ms=max(self._arrivals) - min(self._arrivals) if self._arrivals else 0,
            waited_max_ms=self._waits_ms,
            lost_ms=self._lost_ms,
            objects=len(state.capacity.node_ids) + live + int(view(w.tasks).sum()),
            published=phase.published,
        )


LIVE = [state for state in WorkloadState if not state.terminal]


def _percentiles(samples: Sequence[tuple[Rows, Rows]], quantiles: tuple[float, ...]) -> list[float]:
    """Of values with weights; 0 where there are none."""
    values = np.concatenate([each for each, _ in samples])
    weights = np.concatenate([each for _, each in samples])
    if not weights.sum():
        return [0.0] * len(quantiles)
    order = np.argsort(values, kind="stable")
    sums = np.cumsum(weights[order])
    return [float(values[order][np.searchsorted(sums, quantile * sums[-1])]) for quantile in quantiles]


def _peak(calls: list[tuple[float, float, int]]) -> int:
    """Most that started in any second."""
    best = 0.0
    first = held = 0
    for begun_s, end_s, tasks in calls:
        held += tasks
        while calls[first][0] < end_s - 1 and calls[first][0] < begun_s:
            held -= calls[first][2]
            first += 1
        best = max(best, held / max(end_s - calls[first][0], 1.0))
    return round(best)


def run(engine: Engine, phases: Sequence[ScenarioPhase], define_ms: float = 0.0) -> ScenarioRun:
    """All phases in their order. Raises MusterError where something is amiss."""
    real = time.perf_counter()
    clock = EngineStopwatch()
    start_ms = engine.now_ms
    measured = tuple(run_phase(engine, clock, phase, start_ms) for phase in phases)
    return ScenarioRun(
        nodes=len(engine.state.capacity.node_ids),
        phases=measured,
        define_ms=round(define_ms, 1),
        decisions_ms=round(clock.at_s * 1000, 1),
        decisions_cpu_ms=round(clock.cpu_s * 1000, 1),
        checks=len(measured),
        wall_ms=round((time.perf_counter() - real) * 1000 + define_ms, 1),
        events=engine.state.version,
    )
