"""The history of the live cell: collected once a minute of its time, answered, and imported.

`Collector` runs on a thread of its own in the engine's process: it only reads the cell, for some milliseconds a
minute. After a restart it continues where it was, and counts what happened meanwhile once. `Archive` answers
questions about the history and takes imports.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from console.text.terminal_text import printable
from engine.model.errors import MusterError, SpecError, did_you_mean
from engine.model.specs import WorkloadState
from engine.reads import overview
from engine.reads.overview import CPU, GPU, Ended, GaugeReading, Gauges
from engine.state.machines import Peaks
from engine.state.queue_tree import UNLIMITED
from recommender.history.metrics import (
    CELL,
    DAY_MS,
    MAX_RUNS,
    MAX_RUNS_TOLD,
    MAX_SAMPLES,
    MAX_SERIES,
    METRICS,
    MINUTE_MS,
    OFS,
    History,
    HistoryPoint,
    HistoryRequest,
    ImportReceipt,
    Refused,
    RunBatch,
    RunCount,
    RunRecord,
    Sample,
    SampleBatch,
    kind_of,
)
from recommender.history.telemetry import Telemetry, clock_of
from runbooks.gate.approval_gate import wall_ms

if TYPE_CHECKING:
    from console.service.prometheus import PrometheusFollower
    from engine.control import Engine
    from engine.loop import EngineLoop
    from recommender.history.chunks import SeriesPoints


EVERY_S = 2.0
"""Wall seconds between looks, at the least: a cell whose time runs fast is looked at less than once of its minutes."""
LOOKED = "collector looked_ms"
"""Name of the note of the last look."""
PAGE = 250
"""Ends that are told at once: some milliseconds of the engine's thread."""
MAX_ENDS = 20_000
"""Ends of one look that are kept, the latest."""
MAX_PEAKS = 20_000
"""Workloads of one look whose use is told."""
MAX_TENANTS = 2_000


class CollectedGauges(NamedTuple):
    """One look at the cell, with what was read on the engine's thread."""

    look: GaugeReading
    peaks: list[tuple[int, int, int]]
    """(row, CPU milli, memory MiB) of work whose use was reported."""
    names: list[str]
    """By row."""
    peak_tenants: list[str]


class Collector:
    """Records the gauges of one loop's cell. `collect` may be called by hand where no thread was started."""

    def __init__(self, loop: EngineLoop, telemetry: Telemetry) -> None:
        self._loop = loop
        self._telemetry = telemetry
        self._gauges: Gauges | None = None
        self._taken: list[int] | None = None
        """Nodes of each pool that had been taken back at the last look."""
        self._tenants: dict[str, None] = {}
        """Those ever seen with demand: from then on they are measured, also while they have none."""
        self._begun = False
        """Whether a look was made before: only then is it known which interval counts are of."""
        self.passed_over = 0
        """Ends that were not kept since the start, because there were more than MAX_ENDS in one look."""
        self._said = ""
        self.latest: dict[str, float] = {}
        """The cell's own figures of the last look, by metric."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Call before the loop stops."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        seen = -1
        while not self._stopping.wait(EVERY_S):
            minute = self._loop.engine.now_ms // MINUTE_MS
            if minute in (seen, 0):
                continue
            try:
                self.collect()
            except MusterError as error:
                self._say(str(error))
            except Exception as error:  # a defect of ours must not end it, nor the engine
                self._say(f"the collector met {type(error).__name__}: {error}")
            seen = minute

    def _say(self, text: str) -> None:
        """Write a text to the engine's log, once for each new one."""
        if text != self._said:
            self._said = text
            print(f"muster: {printable(text)}", file=sys.stderr, flush=True)

    def collect(self) -> int:
        """Make one look. Returns the number of samples kept. Raises RecordsError while the disk fails."""
        if self._gauges is None:
            looked = self._telemetry.note(LOOKED)
            self._begun = looked is not None
            self._gauges = Gauges(int(looked or 0))
            while not self._loop.call(self._meet):
                pass
            self._tenants = {key.subject: None for key in self._telemetry.keys("demand_cpu", "tenant")}
        seen = self._loop.call(self._look)
        try:
            kept = self._keep(seen)
        except MusterError:
            # What was looked at and is not kept is looked at again.
            self._gauges = None
            raise
        self._telemetry.tidy()
        return kept

    # -- on the engine's thread ---------------------------------------------------------------------------------------

    def _meet(self, engine: Engine) -> bool:
        assert self._gauges is not None
        return self._gauges.meet(engine.state)

    def _look(self, engine: Engine) -> CollectedGauges:
        state, now_ms = engine.state, engine.now_ms
        assert self._gauges is not None
        # A journal restored from a copy may be behind what was noted.
        self._gauges.since_ms = min(self._gauges.since_ms, now_ms)
        look = self._gauges.look(state, now_ms)
        if state.usage.peaks is None:
            state.usage.peaks = Peaks()
        lately, state.usage.peaks.lately = state.usage.peaks.lately, {}
        peaks = [(row, cpu, memory) for row, (cpu, memory) in islice(lately.items(), MAX_PEAKS)]
        tenants = [state.workloads.tenants.names[state.workloads.tenant[row]] for row, _, _ in peaks]
        return CollectedGauges(look, peaks, state.workloads.names, tenants)

    @staticmethod
    def _ends(engine: Engine, rows: list[int], pools: list[int], now_ms: int) -> list[tuple[Ended, tuple[int, int]]]:
        peaks = engine.state.usage.peaks
        used = [(0, 0) if peaks is None else peaks.of.pop(row, (0, 0)) for row in rows]
        return list(zip(overview.ended(engine.state, rows, pools, now_ms), used, strict=True))

    # -- beside it ----------------------------------------------------------------------------------------------------

    def _keep(self, seen: CollectedGauges) -> int:
        """Store ended work first: the note of the look, stored with the samples, says that all of it is kept."""
        look = seen.look
        if not self._keep_runs(look):
            return 0
        samples = list(self._samples(seen))
        step_ms = max(MINUTE_MS, look.now_ms - look.since_ms) if self._begun else MINUTE_MS
        self.latest = {sample.metric: sample.value for sample in samples if sample.of == CELL}
        kept = self._telemetry.add(samples, step_ms=step_ms, note=(LOOKED, look.now_ms))
        self._begun, self._taken = True, look.taken
        return kept

    def _keep_runs(self, look: GaugeReading) -> bool:
        """Store ended work. Returns False when stopped meanwhile: the next start looks at all of it again."""
        rows, pools = look.ended_rows.tolist(), look.ended_pool.tolist()
        extra = len(rows) - MAX_ENDS
        if extra > 0:
            self.passed_over += extra
            self._say(
                f"{extra:,} ended workloads were not recorded, the oldest: more than {MAX_ENDS:,} since the last look"
            )
            gone = rows[:extra]
            self._loop.call(lambda engine: _forget_peaks(engine, gone))
            rows, pools = rows[extra:], pools[extra:]
        for at in range(0, len(rows), PAGE):
            part, where = rows[at : at + PAGE], pools[at : at + PAGE]
            ends = self._loop.call(lambda engine, part=part, where=where: self._ends(engine, part, where, look.now_ms))  # type: ignore[misc]
            self._telemetry.add_runs(_record(end, cpu, memory) for end, (cpu, memory) in ends)
            if self._stopping.is_set():
                return False
        return True

    def _samples(self, seen: CollectedGauges) -> Iterator[Sample]:
        look, at_ms = seen.look, seen.look.now_ms

        def of(kind: str, subject: str, values: dict[str, float]) -> Iterator[Sample]:
            return (Sample(metric, kind, subject, at_ms, float(value)) for metric, value in values.items())

        asked = _asked_pools(look)
        for row, pool in enumerate(look.pools):
            yield from of("pool", pool.name, self._pool(look, row, asked))
        for model, values in _models(look, asked).items():
            yield from of("gpu_model", model, values)
        gpus = any(pool.capacity.gpu_milli for pool in look.pools)
        for subject, values in self._queues(look, gpus):
            yield from of("queue" if subject else CELL, subject, values)
        for tenant, values in self._of_tenants(look, gpus):
            yield from of("tenant", tenant, values)
        yield from of(CELL, "", self._cell(look, gpus))
        for kind, (cpu, memory) in _kinds(seen).items():
            yield from of("kind", kind, {"use_cpu": cpu, "use_memory_mib": memory})

    def _pool(self, look: GaugeReading, row: int, asked: list[list[float]]) -> dict[str, float]:
        pool, nodes, ready = look.pools[row], look.nodes[row], look.ready[row]
        cpu, _, gpu, _ = pool.offered.vector()
        used_cpu, used_gpu = cpu * nodes - look.free_cpu[row], gpu * nodes - look.free_gpu[row]
        demand_cpu, demand_gpu = used_cpu + asked[row][0], used_gpu + asked[row][1]
        values: dict[str, float] = {
            "nodes": nodes, "nodes_down": look.down[row], "price": pool.price_microusd_hour,
            "cost_rate": look.spent_rate[row], "capacity_cpu": cpu * ready, "used_cpu": used_cpu,
            "demand_cpu": demand_cpu,
            "demand_nodes": float(np.ceil(max(demand_cpu / max(cpu, 1), demand_gpu / max(gpu, 1)))),
        }  # fmt: skip
        if gpu:
            values |= {"capacity_gpu": gpu * ready, "used_gpu": used_gpu, "demand_gpu": demand_gpu}
        if self._begun:
            values |= _quantiles("wait", look.wait_ms[look.wait_pool == row])
            values["evicted"] = int((look.evicted_pool == row).sum())
            if self._taken is not None and row < len(self._taken):
                values["interrupted"] = max(look.taken[row] - self._taken[row], 0)
        return values

    def _cell(self, look: GaugeReading, gpus: bool) -> dict[str, float]:
        """Gauges of the cell that are not the sum of its queues."""
        offered = [pool.offered.vector() for pool in look.pools]
        values: dict[str, float] = {
            "nodes": sum(look.nodes), "nodes_down": sum(look.down), "cost_rate": sum(look.spent_rate),
            "capacity_cpu": sum(vector[CPU] * count for vector, count in zip(offered, look.ready, strict=True)),
        }  # fmt: skip
        if gpus:
            values["capacity_gpu"] = sum(vector[GPU] * count for vector, count in zip(offered, look.ready, strict=True))
        if self._begun and self._taken is not None:
            values["interrupted"] = max(sum(look.taken) - sum(self._taken), 0)
        return values

    def _queues(self, look: GaugeReading, gpus: bool) -> Iterator[tuple[str, dict[str, float]]]:
        """Gauges of each queue with those below it; the empty name is the cell."""
        up = _Sums(look.parents)
        waiting, cpu, gpu = (up.all(column.tolist()) for column in (
            look.queue_waiting, look.queue_waiting_cpu, look.queue_waiting_gpu
        ))  # fmt: skip
        running = up.all(look.queue_running)
        cost = up.all(_by(look.account_queue, up.size, look.account_rate))
        ended = look.ended_queue, look.ended_state
        flows: dict[str, list[float]] = {}
        if self._begun:
            flows = {
                "started": up.all(_by(look.started_queue, up.size)),
                "finished": up.all(_by(ended[0][ended[1] == WorkloadState.FINISHED], up.size)),
                "failed": up.all(_by(ended[0][ended[1] == WorkloadState.FAILED], up.size)),
                "evicted": up.all(_by(look.evicted_queue, up.size)),
            }
        none = np.zeros(0, np.int64)
        waits = up.gathered(look.wait_queue, look.wait_ms) if self._begun else {}
        waited = up.gathered(look.waiting_queue, look.waiting_ms)
        quota = [up.all([max(own[i], 0) for own in look.queue_quota]) for i in range(2)]
        used = [*look.queue_used]
        tops = [row for row, parent in enumerate(look.parents) if parent < 0]
        used.append((sum(used[row][0] for row in tops), sum(used[row][1] for row in tops)))
        for row, name in enumerate([*(spec.name for spec in look.queues), ""]):
            values: dict[str, float] = {
                "demand_cpu": used[row][0] + cpu[row], "used_cpu": used[row][0], "waiting": waiting[row],
                "running": running[row], **{metric: column[row] for metric, column in flows.items()},
            }  # fmt: skip
            if gpus:
                values |= {"demand_gpu": used[row][1] + gpu[row], "used_gpu": used[row][1]}
            if name:
                values["cost_rate"] = cost[row]
                values |= {
                    metric: quota[i][row]
                    for i, metric in enumerate(("quota_cpu", "quota_gpu")[: 1 + gpus])
                    if look.queue_quota[row][i] != UNLIMITED
                }
            values |= _quantiles("wait", waits.get(row, none)) | _quantiles("waiting", waited.get(row, none))
            yield name, values

    def _of_tenants(self, look: GaugeReading, gpus: bool) -> Iterator[tuple[str, dict[str, float]]]:
        cost = _by(look.account_tenant, len(look.tenants), look.account_rate)
        for row, name in enumerate(look.tenants):
            used = look.tenant_used.get(row, (0, 0))
            demand = used[0] + look.tenant_waiting_cpu[row], used[1] + look.tenant_waiting_gpu[row]
            if not name or (name not in self._tenants and (not any(demand) or len(self._tenants) >= MAX_TENANTS)):
                continue
            self._tenants[name] = None
            values = {"demand_cpu": demand[0], "used_cpu": used[0], "cost_rate": cost[row]}
            if gpus:
                values |= {"demand_gpu": demand[1], "used_gpu": used[1]}
            yield name, values


class _Sums:
    """Sums over a tree of queues; one more row at the end is the whole cell."""

    def __init__(self, parents: Sequence[int]) -> None:
        self.size = len(parents)
        self._up = [parent if parent >= 0 else self.size for parent in parents]

    def all(self, own: Sequence[float]) -> list[float]:
        """Sums of each queue and all below it."""
        sums = [*own, 0.0]
        for row in range(self.size - 1, -1, -1):
            sums[self._up[row]] += sums[row]
        return sums

    def gathered(self, queues: Any, values: Any) -> dict[int, Any]:
        """Values of each queue and all below it, of those that have some."""
        found: dict[int, list[Any]] = {}
        order = np.argsort(queues, kind="stable")
        rows, begins = np.unique(queues[order], return_index=True)
        for row, own in zip(rows.tolist(), np.split(values[order], begins[1:]), strict=False):
            above = row
            while True:
                found.setdefault(above, []).append(own)
                if above == self.size:
                    break
                above = self._up[above]
        return {row: np.concatenate(parts) for row, parts in found.items()}


def _by(rows: Any, size: int, weights: Any = None) -> list[float]:
    sums: list[float] = np.bincount(rows, weights=weights, minlength=size)[:size].tolist()
    return sums


def _quantiles(what: str, waits_ms: Any) -> dict[str, float]:
    """Median and 95th percentile of these waits, by metric; none of no waits."""
    if not len(waits_ms):
        return {}
    places = [len(waits_ms) * percent // 100 for percent in (50, 95)]
    ordered = np.partition(waits_ms, places)
    return {f"{what}_p{n}_s": float(ordered[at]) / 1000 for n, at in zip((50, 95), places, strict=True)}


def _asked_pools(look: GaugeReading) -> list[list[float]]:
    """By pool, [CPU, GPU] milli of waiting work that would go there first; one row more for work that no pool could
    hold."""
    asked = [[0.0, 0.0] for _ in range(len(look.pools) + 1)]
    for kind, count in look.waiting_classes:
        for group, shape in zip(kind.groups, kind.shapes, strict=True):
            cpu, _, gpu, _ = group.request.vector()
            pool = asked[shape.pools[0] if shape.pools else -1]
            pool[0] += cpu * group.count * count
            pool[1] += gpu * group.count * count
    return asked


def _models(look: GaugeReading, asked: list[list[float]]) -> dict[str, dict[str, float]]:
    """Demand for each GPU model: running work in its pools, and waiting work that would go there first."""
    found: dict[str, dict[str, float]] = {}
    for row, pool in enumerate(look.pools):
        if pool.gpu_model:
            cpu, _, gpu, _ = (quantity * look.nodes[row] for quantity in pool.offered.vector())
            sums = found.setdefault(pool.gpu_model, {"demand_cpu": 0.0, "demand_gpu": 0.0})
            sums["demand_cpu"] += cpu - look.free_cpu[row] + asked[row][0]
            sums["demand_gpu"] += gpu - look.free_gpu[row] + asked[row][1]
    return found


def _kinds(seen: CollectedGauges) -> dict[str, tuple[int, int]]:
    """Peak use of one task, by kind of work."""
    found: dict[str, tuple[int, int]] = {}
    for (row, cpu, memory), tenant in zip(seen.peaks, seen.peak_tenants, strict=True):
        kind = kind_of(tenant, seen.names[row])
        if kind:
            before = found.get(kind, (0, 0))
            found[kind] = max(before[0], cpu), max(before[1], memory)
    return found


def _forget_peaks(engine: Engine, rows: list[int]) -> None:
    peaks = engine.state.usage.peaks
    if peaks is not None and peaks.of:
        for row in rows:
            peaks.of.pop(row, None)


def _record(end: Ended, peak_cpu_milli: int, peak_memory_mib: int) -> RunRecord:
    cpu, memory, gpu, _ = end.request
    return RunRecord(
        id=end.id,
        tenant=end.tenant,
        team=end.team,
        name=end.name,
        queue=end.queue,
        tasks=end.tasks,
        gpu_milli=gpu,
        cpu_milli=cpu,
        memory_mib=memory,
        requested_ms=end.estimate_ms,
        submitted_ms=end.submitted_ms,
        started_ms=end.started_ms,
        ended_ms=end.ended_ms,
        outcome=end.outcome,
        attempts=end.attempts,
        pool=end.pool.name if end.pool else "",
        gpu_model=end.pool.gpu_model if end.pool and gpu else "",
        spot=end.pool.spot if end.pool else False,
        cost_microusd=end.cost_microusd,
        peak_cpu_milli=peak_cpu_milli,
        peak_memory_mib=peak_memory_mib,
    )


def kept_by(loop: EngineLoop) -> Callable[[Callable[[], Any]], Any]:
    """Function by which `engine.journal.side_tables` writes on the thread of a running loop, between turns."""
    return lambda change: loop.call(lambda _: change())


MAX_SOURCE = 200


class Archive:
    """The history of one loop's cell. May be called by several threads, but not by the engine's own.

    Without a `telemetry` it keeps one in memory, made when it is first needed.
    """

    def __init__(self, loop: EngineLoop, telemetry: Telemetry | None = None) -> None:
        self._loop = loop
        self._telemetry = telemetry
        self.follower: PrometheusFollower | None = None
        """Of the Prometheus that is followed, where one is."""

    @property
    def telemetry(self) -> Telemetry:
        if self._telemetry is None:
            self._telemetry = Telemetry(clock=clock_of(lambda: self._loop.engine.now_ms))
        return self._telemetry

    @property
    def error(self) -> str:
        """Reason why nothing is kept at present; empty while all is well."""
        return "" if self._telemetry is None else self._telemetry.records.error

    def history(self, request: HistoryRequest) -> History:
        """Measurements of a window. Raises SpecError for an unknown metric or an impossible window, RecordsError
        while the disk fails."""
        check(request)
        now_ms, kept = self._loop.engine.now_ms, self.telemetry
        of = request.of or (CELL if request.metric else "")
        found = [key for key in kept.keys(request.metric, of) if request.subject in ("", key.subject)]
        own = not found or found[0].source == CELL
        # Series from elsewhere go by the time of this machine.
        until_ms = request.until_ms or (now_ms if own else wall_ms()) + 1
        since_ms = max(until_ms - request.last_ms, 0) if request.last_ms else min(request.since_ms, until_ms)
        points: tuple[HistoryPoint, ...] = ()
        if request.metric and (request.subject or of == CELL):
            found_points = None
            if self.follower is not None and of == "workload":
                found_points = self.follower.series(request.metric, request.subject, since_ms, until_ms)
            if found_points is None:
                found_points = kept.series(request.metric, of, request.subject, since_ms, until_ms, request.step_ms)
            points = told(found_points)
        runs = kept.runs(since_ms, until_ms, request.runs) if request.runs else []
        return History(
            now_ms=now_ms,
            since_ms=since_ms,
            until_ms=until_ms,
            series=tuple(found[:MAX_SERIES]),
            series_count=len(found),
            stale_count=sum(key.stale for key in found),
            points=points,
            runs=tuple(runs),
            run_counts=tuple(RunCount(source, count) for source, count in kept.run_counts().items()),
            keep_ms=kept.keep.tiers_ms,
            keep_runs=kept.keep.runs,
            error=kept.records.error,
            followed=None if self.follower is None else self.follower.report(),
            damaged=kept.damaged,
        )

    def import_samples(self, batch: SampleBatch) -> ImportReceipt:
        """Import measurements. Raises SpecError when the batch is malformed as a whole, RecordsError while the disk
        fails."""
        check_source(batch.source)
        if not 1000 <= batch.step_ms <= DAY_MS:
            raise SpecError("step_ms", f"{batch.step_ms} is out of range", "Give a second to a day")
        for i, row in enumerate(batch.series):
            if len(row.at_ms) != len(row.values):
                raise SpecError(
                    f"series[{i}]", "has a different number of times and values", "Give one time for each value"
                )
        if (count := sum(len(row.at_ms) for row in batch.series)) > MAX_SAMPLES:
            raise SpecError("series", f"{count:,} samples, at most {MAX_SAMPLES:,} at once", "Split it")
        refused: Counter[str] = Counter()
        rows = ((row.metric, row.of, row.subject, row.at_ms, row.values) for row in batch.series)
        taken = self.telemetry.add_rows(rows, source=batch.source, step_ms=batch.step_ms, refused=refused)
        self.telemetry.tidy()
        return _receipt(taken, refused)

    def import_runs(self, batch: RunBatch) -> ImportReceipt:
        """Import ended work. Raises SpecError when the batch is malformed as a whole, RecordsError while the disk
        fails."""
        if len(batch.runs) > MAX_RUNS:
            raise SpecError("runs", f"{len(batch.runs):,}, at most {MAX_RUNS:,} at once", "Split it")
        for source in {run.source for run in batch.runs}:
            check_source(source)
        refused: Counter[str] = Counter()
        taken = self.telemetry.add_runs(batch.runs, refused)
        self.telemetry.tidy()
        return _receipt(taken, refused)


def check(request: HistoryRequest) -> None:
    """Raises SpecError naming what is wrong with it."""
    if request.metric and request.metric not in METRICS:
        remedy = did_you_mean(request.metric, METRICS, f"Known: {', '.join(METRICS)}", "'{}'")
        raise SpecError("metric", f"there is no '{request.metric[:40]}'", remedy)
    if request.of and request.of not in OFS:
        raise SpecError("of", f"'{request.of[:40]}' is not a kind of subject", f"Use one of {', '.join(OFS)}")
    if request.metric and (request.of or CELL) not in METRICS[request.metric].of:
        kinds = ", ".join(METRICS[request.metric].of)
        raise SpecError(
            "of", f"{request.metric} is not measured for a {request.of or CELL}", f"It is measured for: {kinds}"
        )
    if request.step_ms < 1 or min(request.since_ms, request.last_ms) < 0 or 0 < request.until_ms < request.since_ms:
        raise SpecError("step_ms" if request.step_ms < 1 else "since_ms", "is an empty window", "Start before the end")
    if max(request.since_ms, request.until_ms, request.last_ms, request.step_ms) >= 2**53:
        raise SpecError("until_ms", "is not a valid time", "Give Unix milliseconds")
    if not 0 <= request.runs <= MAX_RUNS_TOLD:
        raise SpecError("runs", f"{request.runs} is out of range", f"At most {MAX_RUNS_TOLD} are shown")


def check_source(source: str) -> None:
    """Raises SpecError unless it may be the name of a source from elsewhere."""
    if not source or source == CELL or len(source) > MAX_SOURCE or not source.isprintable():
        raise SpecError(
            "source", f"{source[:40]!a} is not a valid source", f"Name its source; '{CELL}' means the engine"
        )


def told(points: SeriesPoints) -> tuple[HistoryPoint, ...]:
    """The points in their wire form."""
    columns = (points.mean, points.least, points.most, points.total, points.last)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(
        HistoryPoint(at_ms, count, *(None if math.isnan(value) else value for value in row))
        for at_ms, count, row in zip(points.at_ms.tolist(), points.count.tolist(), values, strict=True)
    )


def _receipt(taken: int, refused: Counter[str]) -> ImportReceipt:
    return ImportReceipt(taken=taken, refused=tuple(Refused(why, count) for why, count in sorted(refused.items())))
