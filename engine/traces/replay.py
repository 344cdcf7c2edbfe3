"""Replay a trace as fast as it goes, and measure what its jobs would have met.

It goes through the engine, except where every task asks for exactly one of many equal processors: what starts when is
then decided by counting (`engine.traces.counted_jobs`), with the same starts as the engine's and many times faster.

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
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Literal

import msgspec

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
from engine.state.workloads import NONE
from engine.traces import counted_jobs
from engine.traces.progress import counted, stage
from engine.traces.trace_formats import read_header, read_nodes
from engine.traces.trace_reader import Problems, TraceJob, read_jobs

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
    jobs = counted_jobs.JobColumns(
        arrival=[job.arrival_ms for job in plan.jobs],
        run=[job.run_ms for job in plan.jobs],
        estimate=plan.estimates,
        processors=[job.tasks for job in plan.jobs],
    )
    return counted_jobs.fcfs(jobs, plan.units) if policy == "fcfs" else counted_jobs.easy(jobs, plan.units)


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
