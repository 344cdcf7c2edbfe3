"""Runs the phases of a scenario (`engine.scenarios.gke_phases`) through an engine, looks after each whether all is as
it must be, and measures how long deciding took.

Two clocks are kept apart. Cell time passes between phases and is free: nothing boots, and tasks run the moment they are
placed. The clock of decisions counts the wall time inside the engine's calls, the writing of the journal with it, and
nothing else: not the making of specs, not the checks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import numpy as np

from engine.control import Engine
from engine.model.commands import AnyCommand, Cancel, Submit
from engine.model.errors import MusterError
from engine.model.specs import WorkloadState
from engine.scenarios.gke_phases import PublishedPhase, ScenarioPhase
from engine.state.bulk_allocations import Rows
from engine.state.cell_state import State
from engine.state.invariants import faults_of
from engine.tables.columns import view

NEVER = -1


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What a phase took. Milliseconds of the clock of decisions where nothing else is said."""

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
    """What ended otherwise than it was to, and work that was not kept up to its last checkpoint."""
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
