"""Replay of a trace through the engine, and what its jobs met, counted job by job.

Two ways to the starts of a trace's jobs: through the engine, and by counting free processors, for rigid jobs on
identical processors with run times known or estimated.

Where every task asks for exactly one processor and all are alike, the start of a job depends on how many are free and
never on which. So FCFS and EASY need a number and the expected ends of running jobs. The starts are the engine's own,
without the engine. At one instant ends come first, then arrivals, then decisions. Of several jobs expected to end at
the moment the blocked one is due, only those it needs, older ones first, count as gone (`engine.scheduling.backfill`).

With estimates that may prove wrong, backfill is as in EASY: the first waiting job is promised the time at which enough
processors are expected to be free, and others may start before it if they fit and do not delay that. A job that outruns
its estimate is expected to take longer, which is an occasion to decide, after ends and arrivals of the same instant.

`Order` says which job is first. "fcfs": the earliest arrival; of the others the shortest is looked at first (Tsafrir,
Etsion and Feitelson, IEEE TPDS 18(6), 2007). "slowdown": the largest wait beside the expected run time, in everything:
the largest expansion factor (LXF in Chiang, Arpaci-Dusseau and Vernon, JSSPP 2002), with HEAD_START_MS added to all
waits so that among new jobs the short come first. A job that has waited OVERDUE_MS goes before all others, in order of
arrival, and these then start before it only if they are safely gone in time: nothing starves.

Replay a trace as fast as it goes, and measure what its jobs would have met.

It goes through the engine, except where every task asks for exactly one of many equal processors: what starts when is
then decided by counting (this module), with the same starts as the engine's and many times faster.

Conventions: jobs that ran no time, or that are larger than the cell, are left out and counted. The estimate of a job is
the longer of what its user asked for and what it ran, so nothing is cut short; where the trace says nothing of requests
the 95th percentile stands in, which is no information. Or it is the mean run time of the last two jobs of its user that
had ended when it arrived (Tsafrir, Etsion and Feitelson, IEEE TPDS 18(6), 2007), within that bound; jobs of no known
user count as one user's. At equal times ends come before arrivals. Bounded slowdown is
max(1, (wait + run) / max(run, tau)) with tau = 10 s; all jobs count (Feitelson and Rudolph, JSSPP 1998).
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.control import Engine
from engine.model.commands import SetPolicy, Submit
from engine.model.errors import MusterError, SpecError
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    Policy,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    Settings,
    TaskGroup,
    WorkloadSpec,
)
from engine.state.workloads import CORRECTIONS_MS, LAST_STEP_MS, NONE
from engine.traces.progress import counted, counter, stage
from engine.traces.trace_formats import read_header, read_nodes
from engine.traces.trace_reader import Problems, TraceJob, read_jobs

NEVER = 2**62
"""After every arrival."""


@dataclass(frozen=True, slots=True)
class JobColumns:
    """Jobs in order of arrival; times in ms."""

    arrival: Sequence[int]
    run: Sequence[int]
    estimate: Sequence[int]
    """Never below `run`."""
    processors: Sequence[int]
    """At most as many as there are."""


def fcfs(jobs: JobColumns, processors: int) -> list[int]:
    """Start of each job: in order of arrival, none overtakes. Costs O(log running) for each job."""
    free, now = processors, 0
    running: list[tuple[int, int]] = []
    starts: list[int] = []
    for arrival, run, wanted in zip(jobs.arrival, jobs.run, jobs.processors, strict=True):
        now = max(now, arrival)
        while running and (free < wanted or running[0][0] <= now):
            end, given_back = heappop(running)
            now = max(now, end)
            free += given_back
        free -= wanted
        heappush(running, (now + run, wanted))
        starts.append(now)
    return starts


def easy(jobs: JobColumns, processors: int) -> list[int]:
    """Start of each job by EASY backfill.

    Costs O(waiting + running) where something ends, else what arrives: whoever was refused stays refused until then.
    """
    run = EasyRun(jobs, processors)
    arrivals = [*jobs.arrival, NEVER]
    ends, arrived = run.ends, 0
    tell = counter("jobs", len(jobs.arrival))
    while ends or arrivals[arrived] < NEVER:
        if tell is not None:
            tell(arrived)
        now = arrivals[arrived]
        something_ended = bool(ends) and ends[0][0] <= now
        if something_ended:
            now = ends[0][0]
            run.end_due(now)
        first = arrived
        while arrivals[arrived] == now:
            arrived += 1
        if run.waiting or first < arrived:
            run.decide(now, range(first, arrived), afresh=something_ended)
    return run.starts


class EasyRun:
    """EASY under way."""

    def __init__(self, jobs: JobColumns, processors: int) -> None:
        self.jobs = jobs
        self.free = processors
        self.starts = [-1] * len(jobs.arrival)
        self.waiting: list[int] = []
        """Jobs in order of arrival; the first one is promised a start."""
        self.ends: list[tuple[int, int]] = []
        """Heap of (end, job) of what runs."""
        self.expected: list[tuple[int, int]] = []
        """(expected end, job) of what runs, sorted."""
        self.promised = 0
        """Start promised to the first that waits."""
        self.spare = 0
        """Processors that it will then leave over."""

    def end_due(self, now: int) -> None:
        """Take back what ends now."""
        ends, expected = self.ends, self.expected
        while ends and ends[0][0] == now:
            _, job = heappop(ends)
            self.free += self.jobs.processors[job]
            del expected[bisect_left(expected, (self.starts[job] + self.jobs.estimate[job], job))]

    def decide(self, now: int, arriving: range, *, afresh: bool) -> None:
        """Start what can start. `afresh`: something ended, so everyone who waits is looked at again."""
        waiting = self.waiting
        if waiting and not afresh:
            # The promise stands, and so does every refusal.
            started = self._backfill(now, arriving)
            waiting += [job for job in arriving if job not in started] if started else arriving
            return
        waiting += arriving
        front = 0
        while front < len(waiting) and self.jobs.processors[waiting[front]] <= self.free:
            self._start(waiting[front], now)
            front += 1
        del waiting[:front]
        if not waiting:
            return
        self._promise(waiting[0])
        started = self._backfill(now, waiting[1:])
        if started:
            self.waiting = [job for job in waiting if job not in started]

    def _promise(self, job: int) -> None:
        """Count how the processors come back until the job has enough."""
        available, wanted, sizes = self.free, self.jobs.processors[job], self.jobs.processors
        for end, ending in self.expected:
            available += sizes[ending]
            if available >= wanted:
                self.promised, self.spare = end, available - wanted
                return

    def _backfill(self, now: int, candidates: Sequence[int]) -> set[int]:
        """Start whoever fits and does not delay the first that waits."""
        started: set[int] = set()
        sizes, estimates = self.jobs.processors, self.jobs.estimate
        for job in candidates:
            if not self.free:
                break
            wanted = sizes[job]
            if wanted > self.free:
                continue
            if now + estimates[job] > self.promised:
                if wanted > self.spare:
                    continue
                self.spare -= wanted
            self._start(job, now)
            started.add(job)
        return started

    def _start(self, job: int, now: int) -> None:
        self.starts[job] = now
        self.free -= self.jobs.processors[job]
        heappush(self.ends, (now + self.jobs.run[job], job))
        insort(self.expected, (now + self.jobs.estimate[job], job))


Order = Literal["fcfs", "slowdown"]
HEAD_START_MS = 3_600_000
OVERDUE_MS = 72 * 3_600_000
SHORTEST_MS = 10_000
"""Expected run times below this are taken as this much where slowdowns are compared, as in the bounded slowdown."""


class Estimates(Protocol):
    """What is expected of run times, told in the order things happen. Jobs by their number, times in ms."""

    def submitted(self, job: int, now: int) -> tuple[int, int]:
        """(likely, safe) run time, at least 1. The likely one says who is short and who will be gone in time; the safe
        one when the processors of what runs come back."""

    def started(self, job: int, now: int) -> None:
        """Note that the run begins now."""

    def longer(self, job: int, elapsed: int) -> int:
        """Whole run time to expect, above `elapsed`, of one that has run so long, which is more than was expected."""

    def ended(self, job: int, now: int) -> None:
        """It ran until now."""


class LastTwoEstimates:
    """The mean of the last two runs of the user that had ended, or of the one there is, rounded up; raised step by step
    where it proves too short. Never above `jobs.estimate`, which is also what is told of who has no history. This with
    the order "fcfs" is EASY++ (Tsafrir et al.)."""

    def __init__(self, jobs: JobColumns, users: Sequence[str]) -> None:
        self._jobs = jobs
        self._users = users
        self._ended: dict[str, list[int]] = {}
        """User -> the last two run times."""
        self._said: dict[int, int] = {}

    def submitted(self, job: int, now: int) -> tuple[int, int]:
        recent, most = self._ended.get(self._users[job]), self._jobs.estimate[job]
        said = self._said[job] = most if recent is None else min(-(-sum(recent) // len(recent)), most)
        return said, said

    def started(self, job: int, now: int) -> None:
        pass

    def longer(self, job: int, elapsed: int) -> int:
        said = self._said[job]
        more = next((step for step in CORRECTIONS_MS if said + step > elapsed), None)
        if more is None:
            more = CORRECTIONS_MS[-1] + ((elapsed - said - CORRECTIONS_MS[-1]) // LAST_STEP_MS + 1) * LAST_STEP_MS
        return min(said + more, self._jobs.estimate[job])

    def ended(self, job: int, now: int) -> None:
        del self._said[job]
        user = self._users[job]
        self._ended[user] = [*self._ended.get(user, ())[-1:], self._jobs.run[job]]


def backfill(jobs: JobColumns, processors: int, estimates: Estimates, order: Order = "fcfs") -> list[int]:
    """Start of each job; `jobs.estimate` is not looked at."""
    run = EstimatedRun(jobs, processors, estimates, order)
    arrivals = [*jobs.arrival, NEVER]
    arrived = 0
    tell = counter("jobs", len(jobs.arrival))
    while run.ends or arrivals[arrived] < NEVER:
        if tell is not None:
            tell(arrived)
        now = min(arrivals[arrived], run.next_event())
        run.end_due(now)
        while arrivals[arrived] == now:
            run.arrive(arrived, now)
            arrived += 1
        if run.waiting.size:
            run.correct(now)
            run.decide(now)
    return run.starts


class EstimatedRun:
    """A replay under way."""

    def __init__(self, jobs: JobColumns, processors: int, estimates: Estimates, order: Order) -> None:
        self.jobs = jobs
        self.estimates = estimates
        self.order = order
        self.free = processors
        self.starts = [-1] * len(jobs.arrival)
        self.begun = np.zeros(len(jobs.arrival), dtype=bool)
        self.arrival = np.array(jobs.arrival, dtype=np.int64)
        self.sizes = np.array(jobs.processors, dtype=np.int64)
        self.likely = np.zeros(len(jobs.arrival), dtype=np.int64)
        self.safe = np.zeros(len(jobs.arrival), dtype=np.int64)
        self.waiting: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        """Jobs in order of arrival."""
        self.ends: list[tuple[int, int]] = []
        """Heap of (end, job) of what runs."""
        self.expected: list[tuple[int, int]] = []
        """(expected end, job) of what runs, sorted."""
        self.expected_end: dict[int, int] = {}

    def next_event(self) -> int:
        """The next end, or while someone waits the next expected one."""
        ends = self.ends[0][0] if self.ends else NEVER
        return min(ends, self.expected[0][0]) if self.waiting.size and self.expected else ends

    def end_due(self, now: int) -> None:
        ends, expected = self.ends, self.expected
        while ends and ends[0][0] == now:
            _, job = heappop(ends)
            self.free += self.jobs.processors[job]
            del expected[bisect_left(expected, (self.expected_end.pop(job), job))]
            self.estimates.ended(job, now)

    def arrive(self, job: int, now: int) -> None:
        self.likely[job], self.safe[job] = self.estimates.submitted(job, now)
        self.waiting = np.append(self.waiting, job)

    def correct(self, now: int) -> None:
        """Expect more of what has outrun what was expected."""
        expected = self.expected
        while expected and expected[0][0] <= now:
            _, job = expected.pop(0)
            begun = self.starts[job]
            self.expected_end[job] = begun + self.estimates.longer(job, now - begun)
            insort(expected, (self.expected_end[job], job))

    def decide(self, now: int) -> None:
        """Start what can start."""
        waiting = self.waiting
        if self.sizes[waiting].min() > self.free:
            return
        overdue = now - self.arrival[waiting] > OVERDUE_MS
        if self.order == "slowdown":
            waited = now - self.arrival[waiting] + HEAD_START_MS
            beside = np.where(overdue, np.inf, waited / np.maximum(self.likely[waiting], SHORTEST_MS))
            rank = np.argsort(-beside, kind="stable")
            waiting, overdue = waiting[rank], overdue[rank]
        front = 0
        while front < len(waiting) and self.sizes[waiting[front]] <= self.free:
            self._start(int(waiting[front]), now)
            front += 1
        if front < len(waiting) and self.free:
            careful = self.order == "slowdown" and bool(overdue[front])
            self._fill(int(waiting[front]), waiting[front + 1 :], now, self.safe if careful else self.likely)
        self.waiting = self.waiting[~self.begun[self.waiting]]

    def _fill(self, first: int, others: NDArray[np.int64], now: int, takes: NDArray[np.int64]) -> None:
        """Start those of the others that fit and, taking as long as `takes` says, do not delay the first."""
        promised, spare = self._promise(first)
        fitting = others[self.sizes[others] <= self.free]
        if self.order == "fcfs":
            fitting = fitting[np.argsort(self.likely[fitting], kind="stable")]
        for job in fitting.tolist():
            wanted = self.jobs.processors[job]
            if wanted > self.free:
                continue
            if now + takes[job] > promised:
                if wanted > spare:
                    continue
                spare -= wanted
            self._start(job, now)
            if not self.free:
                break

    def _promise(self, job: int) -> tuple[int, int]:
        """Return when the job is expected to have its processors, and how many it then leaves over."""
        available, wanted, sizes = self.free, self.jobs.processors[job], self.jobs.processors
        for end, ending in self.expected:
            available += sizes[ending]
            if available >= wanted:
                return end, available - wanted
        raise AssertionError("a job is never larger than the cell")

    def _start(self, job: int, now: int) -> None:
        self.starts[job] = now
        self.begun[job] = True
        self.free -= self.jobs.processors[job]
        heappush(self.ends, (now + self.jobs.run[job], job))
        self.expected_end[job] = now + int(self.safe[job])
        insort(self.expected, (self.expected_end[job], job))
        self.estimates.started(job, now)


Estimate = Literal["requested", "actual", "last-two"]
Through = Literal["auto", "engine"]
TAU_MS = 10_000
MAX_DEPTH = 1_000_000
"""Waiting jobs that conservative backfill promises a start: all of them, as the published figures have it."""
QUEUE = "trace"
WHOLE_REQUESTS = ("openb",)
"""Formats whose tasks ask for CPU, memory and devices together. On a list of real nodes they ask for all of it; on
single-GPU nodes only their GPUs count."""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the jobs met. Seconds, and utilisation as a fraction of the processors (or GPUs) from first to last."""

    jobs: int
    avg_wait_s: float
    p95_wait_s: float
    avg_bounded_slowdown: float
    makespan_s: float
    utilisation: float
    skipped: dict[str, int]
    """Reason -> correct lines that were left out."""
    problems: int
    """Lines that could not be read."""
    first_problems: tuple[str, ...]
    wall_s: float
    """Wall time of the simulation, without reading the file."""
    through: Literal["engine", "counting"]
    """What decided the starts."""


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A trace made ready: the cell, and its jobs in order of arrival."""

    cell: CellSpec
    jobs: list[TraceJob]
    estimates: list[int]
    """What is known of each run time before the replay: with `learns` an upper bound, else the estimate itself."""
    learns: bool = False
    """Whether estimates are learnt from the jobs that have ended."""
    units: int
    """Processors or GPUs of the cell."""
    gpu: bool
    problems: Problems


def prepare(
    path: str | Path,
    format: str,
    *,
    nodes: int = 0,
    estimate: Estimate = "requested",
    arrivals: float = 1.0,
    strict: bool = False,
    node_file: str | Path | None = None,
) -> ReplayPlan:
    """Read the trace and define its cell. `arrivals` stretches (above 1) or compresses arrival times.

    Raises TraceError for a file that is no such trace (or, if strict, has a bad line), SpecError for bad options.
    """
    if not math.isfinite(arrivals) or not 0.0001 <= arrivals <= 10_000:
        raise SpecError("arrivals", f"{arrivals} is out of range", "Give a number from 0.0001 to 10000")
    problems = Problems(strict=strict)
    stage("reading the trace")
    raw = [job for job in read_jobs(path, format, problems) if job.run_ms > 0]
    if format in WHOLE_REQUESTS and node_file is None:
        raw = list(_gpus_only(raw, problems))
    gpu = any(job.request.gpu_milli for job in raw)
    cell = _cell(format, nodes, gpu, node_file, problems)
    units = _units(cell, gpu)
    # A log that tells its date is replayed at it.
    zero_ms = max(0, read_header(path).get("UnixStartTime", 0)) * 1000 if format == "swf" else 0
    jobs: list[TraceJob] = []
    for job in raw:
        if job.tasks * (job.request.gpu_milli if gpu else job.request.cpu_milli) > units * 1000:
            problems.skip("larger than the cell")
        else:
            arrival_ms = zero_ms + round(job.arrival_ms * arrivals)
            jobs.append(job if arrival_ms == job.arrival_ms else msgspec.structs.replace(job, arrival_ms=arrival_ms))
    jobs.sort(key=lambda job: job.arrival_ms)
    return ReplayPlan(
        cell=cell,
        jobs=jobs,
        estimates=_estimates(jobs, estimate),
        learns=estimate == "last-two",
        units=units,
        gpu=gpu,
        problems=problems,
    )


def _gpus_only(jobs: list[TraceJob], problems: Problems) -> Iterator[TraceJob]:
    """The jobs as a count of GPUs: one task for each whole GPU, or one for a share; any model."""
    for job in jobs:
        whole, share = divmod(job.request.gpu_milli, 1000)
        if not whole and not share:
            problems.skip("asks for no GPU")
            continue
        request = Resources(gpu_milli=1000 if whole else share)
        yield msgspec.structs.replace(job, tasks=job.tasks * max(whole, 1), request=request, gpu_models=())


def _cell(format: str, nodes: int, gpu: bool, node_file: str | Path | None, problems: Problems) -> CellSpec:
    """N nodes of one processor or GPU each, or the nodes of a list."""
    if node_file is not None:
        pools, listed = read_nodes(node_file, problems)
        listed = listed[:nodes] if nodes else listed
        return _cell_of(tuple(pools), tuple(listed))
    if not 1 <= nodes <= 1_000_000:
        raise SpecError("nodes", f"{nodes} is out of range", "Give --nodes from 1 to 1000000")
    capacity = Resources(gpu_milli=1000) if gpu else Resources(cpu_milli=1000)
    pool = PoolSpec(name="pool", capacity=capacity, gpu_model="gpu" if gpu else "")
    width = len(str(nodes - 1))
    return _cell_of((pool,), tuple(NodeSpec(id=f"n{i:0{width}}", pool="pool") for i in range(nodes)))


def _cell_of(pools: tuple[PoolSpec, ...], nodes: tuple[NodeSpec, ...]) -> CellSpec:
    return CellSpec(
        name="replay",
        pools=pools,
        nodes=nodes,
        queues=(QueueSpec(name=QUEUE),),
        priority_classes=(PriorityClassSpec(name="normal", value=0),),
        settings=Settings(reservation_depth=MAX_DEPTH),
    )


def _units(cell: CellSpec, gpu: bool) -> int:
    """Whole processors or GPUs of the cell."""
    each = {p.name: p.capacity.gpu_milli if gpu else p.capacity.cpu_milli for p in cell.pools}
    return sum(each[node.pool] for node in cell.nodes) // 1000


def _estimates(jobs: list[TraceJob], estimate: Estimate) -> list[int]:
    if estimate == "actual":
        return [job.run_ms for job in jobs]
    known = sorted(job.requested_ms for job in jobs if job.requested_ms > 0) or sorted(job.run_ms for job in jobs)
    missing = known[min(len(known) - 1, len(known) * 95 // 100)] if known else 0
    return [max(job.requested_ms or missing, job.run_ms) for job in jobs]


def workload(job: TraceJob, estimate_ms: int, longest_ms: int = 0) -> WorkloadSpec:
    """The job as it is submitted. `longest_ms` bounds what is expected of it once it outruns the estimate; 0: none."""
    return WorkloadSpec(
        id=job.id,
        name=job.name,
        queue=QUEUE,
        groups=(TaskGroup(count=job.tasks, request=job.request, gpu_models=job.gpu_models),),
        estimate_ms=estimate_ms,
        max_runtime_ms=longest_ms,
        simulated_runtime_ms=job.run_ms,
        tags={"user": job.user, "queue": job.queue} if job.user or job.queue else {},
    )


class LastTwoRuns:
    """The last two run times of every user, as they become known."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: dict[str, list[tuple[str, int]]] = {}
        """User -> (job id, run time in ms) of jobs that had not ended when last looked at."""
        self._ended: dict[str, list[tuple[int, int]]] = {}
        """User -> (end, run time) of the last two, in ms."""

    def estimate(self, job: TraceJob, longest_ms: int) -> int:
        """Mean run time of the last two jobs of the user, or of the one there is, rounded up and at most `longest_ms`;
        that itself where none has ended. The job counts among the user's from now on."""
        w = self._engine.state.workloads
        ended, still_open = self._ended.get(job.user, []), []
        for other, run_ms in self._open.get(job.user, []):
            row = w.row_of.get(other, NONE)
            if row != NONE and w.ended[row] >= 0:
                ended.append((w.ended[row], run_ms))
            else:
                still_open.append((other, run_ms))
        self._open[job.user] = [*still_open, (job.id, job.run_ms)]
        self._ended[job.user] = ended = sorted(ended, key=lambda entry: entry[0])[-2:]
        return min(-(-sum(run for _, run in ended) // len(ended)), longest_ms) if ended else longest_ms


def _submitted(plan: ReplayPlan, last_two: LastTwoRuns, job: TraceJob, known_ms: int) -> WorkloadSpec:
    return workload(job, last_two.estimate(job, known_ms), known_ms) if plan.learns else workload(job, known_ms)


def feed(plan: ReplayPlan, engine: Engine) -> Iterator[tuple[int, WorkloadSpec]]:
    """(arrival ms, workload) of every job, in order, to feed the engine as its time comes. With `learns` a job's
    estimate knows of what has ended when the one before it arrives."""
    last_two = LastTwoRuns(engine)
    for job, known_ms in zip(plan.jobs, plan.estimates, strict=True):
        yield job.arrival_ms, _submitted(plan, last_two, job, known_ms)


def replay(
    path: str | Path,
    format: str,
    *,
    nodes: int = 0,
    policy: Policy = "easy",
    estimate: Estimate = "requested",
    arrivals: float = 1.0,
    strict: bool = False,
    node_file: str | Path | None = None,
    through: Through = "auto",
) -> ReplayResult:
    """Run the whole trace: through the engine, or, left to choose, by counting where that gives the same. Raises as
    `prepare` does."""
    plan = prepare(path, format, nodes=nodes, estimate=estimate, arrivals=arrivals, strict=strict, node_file=node_file)
    if through == "auto" and countable(plan, policy):
        begun = time.perf_counter()
        starts = count(plan, policy)
        met = [(job, start - job.arrival_ms) for job, start in zip(plan.jobs, starts, strict=True)]
        return measure(plan, met, time.perf_counter() - begun, "counting")
    begun = time.perf_counter()
    engine = run(plan, policy)
    wall_s = time.perf_counter() - begun
    return measure(plan, waits(plan, engine), wall_s, "engine")


def countable(plan: ReplayPlan, policy: Policy) -> bool:
    """Return whether the starts are a matter of how many processors are free: identical ones, one for each task,
    estimates that nobody outruns, and a policy that `by_count` knows."""
    one = plan.cell.pools[0].capacity
    return (
        policy in ("fcfs", "easy")
        and not plan.learns
        and len(plan.cell.pools) == 1
        and plan.units == len(plan.cell.nodes)
        and all(job.request == one and not job.gpu_models for job in plan.jobs)
    )


def count(plan: ReplayPlan, policy: Policy) -> list[int]:
    """Start of each job in ms, by counting free processors. Only for what is `countable`."""
    jobs = JobColumns(
        arrival=[job.arrival_ms for job in plan.jobs],
        run=[job.run_ms for job in plan.jobs],
        estimate=plan.estimates,
        processors=[job.tasks for job in plan.jobs],
    )
    return fcfs(jobs, plan.units) if policy == "fcfs" else easy(jobs, plan.units)


def run(plan: ReplayPlan, policy: Policy) -> Engine:
    """The engine after the last job has ended."""
    engine = Engine.open(None, cell=plan.cell)
    engine.command(SetPolicy(policy=policy))
    last_two = LastTwoRuns(engine)
    jobs = counted(zip(plan.jobs, plan.estimates, strict=True), "jobs", len(plan.jobs))
    for at_ms, arriving in groupby(jobs, key=lambda entry: entry[0].arrival_ms):
        engine.advance(at_ms)
        specs = [_submitted(plan, last_two, job, known) for job, known in arriving]
        for answer in engine.commands([Submit(workloads=(spec,)) for spec in specs]):
            if isinstance(answer, MusterError):
                plan.problems.skip(answer.problem)
    stage("the last jobs end")
    while (due := engine.next_due()) is not None:
        engine.advance(due)
    return engine


def waits(plan: ReplayPlan, engine: Engine) -> list[tuple[TraceJob, int]]:
    """(job, wait in ms) of what ran, after a replay through the engine."""
    w = engine.state.workloads
    rows = ((job, w.row_of.get(job.id, NONE)) for job in plan.jobs)
    return [(job, w.started[row] - w.submitted[row]) for job, row in rows if row != NONE and w.started[row] >= 0]


def measure(
    plan: ReplayPlan, met: list[tuple[TraceJob, int]], wall_s: float, through: Literal["engine", "counting"]
) -> ReplayResult:
    """The figures of a finished replay: `met` is each job that ran and its wait in ms, in order of arrival."""
    slowdowns = 0.0
    busy = 0.0
    for job, wait_ms in met:
        slowdowns += max(1.0, (wait_ms + job.run_ms) / max(job.run_ms, TAU_MS))
        busy += job.tasks * (job.request.gpu_milli if plan.gpu else job.request.cpu_milli) / 1000 * job.run_ms
    ordered = sorted(wait_ms for _, wait_ms in met)
    first = met[0][0].arrival_ms if met else 0
    makespan_ms = max((job.arrival_ms + wait_ms + job.run_ms for job, wait_ms in met), default=first) - first
    return ReplayResult(
        jobs=len(met),
        avg_wait_s=sum(ordered) / len(met) / 1000 if met else 0.0,
        p95_wait_s=ordered[min(len(met) - 1, len(met) * 95 // 100)] / 1000 if met else 0.0,
        avg_bounded_slowdown=slowdowns / len(met) if met else 0.0,
        makespan_s=makespan_ms / 1000,
        utilisation=busy / (plan.units * makespan_ms) if makespan_ms else 0.0,
        skipped=dict(plan.problems.skipped),
        problems=plan.problems.count,
        first_problems=tuple(str(error) for error in plan.problems.first),
        wall_s=wall_s,
        through=through,
    )
