"""The measurements of the demo's past: thirty days of the series that a live cell measures, made from its seed.

A model of flows, not of single workloads. Each habit of the site asks for its share of its pool by its clock, somewhat
more or less from day to day. What a pool cannot hold waits, and Little's law makes waits of that. There are hours of
the whole time and five minutes of its last two days, as far as a live cell would still have them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.model.spec_parts import DAY_MS, HOUR_MS, MINUTE_MS
from engine.model.specs import CellSpec, PoolSpec
from engine.traces.generated_day import SITE, Team, TeamHabit

if TYPE_CHECKING:
    from recommender.history.telemetry import Row, Telemetry

FINE_MS, FINE_STEP_MS = 2 * DAY_MS, 5 * MINUTE_MS
FULL = 0.97
"""Share of a pool that work can fill: the rest is in pieces."""
BUSY = 0.9
"""The load of the month, as a part of what the site's habits would ask for if every day were a busy one."""
STAYS = 0.4
"""Share of what waits that is still there an hour later, beside what comes."""
DAY_SPREAD, HOUR_SPREAD, HOUR_MEMORY = 0.08, 0.04, 0.8
"""Standard deviations of the logarithm of a day's and an hour's load, and how much an hour is like the one before."""
MIN_WAITING = 0.5
"""Workloads that wait on average, from which on something waits in the interval."""
P50, P95 = math.log(2), math.log(20)
"""Quantiles of an exponential wait with mean 1."""

Values = np.ndarray[Any, np.dtype[np.float64]]
Times = np.ndarray[Any, np.dtype[np.int64]]


class PoolOutage(NamedTuple):
    """Nodes of a pool that took no work for a while."""

    pool: str
    nodes: int
    begin_ms: int
    end_ms: int


def keep_measures(
    telemetry: Telemetry, cell: CellSpec, seed: int, *, begin_ms: int, end_ms: int, outages: Sequence[PoolOutage]
) -> None:
    """Write the series from `begin_ms` up to `end_ms` as if the cell had measured them."""
    fine_ms = (end_ms - FINE_MS) // HOUR_MS * HOUR_MS
    loads = {habit: _load(habit, seed, begin_ms, end_ms) for habit in SITE.habits}

    def flows(since_ms: int, until_ms: int, step_ms: int) -> _Flows:
        at_ms = np.arange(since_ms, until_ms, step_ms, dtype=np.int64)
        measured = _Flows(cell, at_ms, step_ms)
        hours, known = (at_ms - begin_ms) / HOUR_MS, np.arange((end_ms - begin_ms) // HOUR_MS + 2)
        for pool in cell.pools:
            asked = {habit: np.interp(hours, known, load) for habit, load in loads.items() if habit.pool == pool.name}
            measured.add_pool(pool, asked, [outage for outage in outages if outage.pool == pool.name])
        return measured

    fine = list(flows(fine_ms, end_ms, FINE_STEP_MS).rows())
    telemetry.add_rows(fine, step_ms=MINUTE_MS)
    telemetry.flush()
    # Hours are kept of what is still measured: where nothing waited in two days there is no such series.
    there = {row[:3] for row in fine}
    telemetry.add_hours(row for row in flows(begin_ms, fine_ms, HOUR_MS).rows() if row[:3] in there)


def capacity_of(cell: CellSpec, since_ms: int, until_ms: int, outages: Sequence[PoolOutage]) -> Row:
    """The cell's GPU capacity in that time, every five minutes."""
    at_ms = np.arange(since_ms, until_ms, FINE_STEP_MS, dtype=np.int64)
    gpus = {pool.name: pool.capacity.gpu_milli for pool in cell.pools}
    whole = np.full(len(at_ms), sum(gpus[node.pool] for node in cell.nodes))
    out = sum(_nodes_out(at_ms, [outage]) * gpus[outage.pool] for outage in outages)
    return "capacity_gpu", "cell", "", at_ms.tolist(), (whole - out).tolist()


def _nodes_out(at_ms: Times, outages: Sequence[PoolOutage]) -> Values:
    out = np.zeros(len(at_ms))
    for outage in outages:
        out += outage.nodes * ((at_ms >= outage.begin_ms) & (at_ms < outage.end_ms))
    return out


def _load(habit: TeamHabit, seed: int, begin_ms: int, end_ms: int) -> list[float]:
    """By hour from `begin_ms` on: what a habit runs at once, as a part of its pool's capacity."""
    rng = Random(f"measured load {seed} {habit.team} {habit.kind} {habit.pool}")
    profile = _profile(habit)
    loads, noise, of_day = [], 0.0, 0.0
    for hour in range(begin_ms // HOUR_MS, end_ms // HOUR_MS + 2):
        if not loads or hour % 24 == 0:
            of_day = rng.gauss(0, DAY_SPREAD)
        noise = HOUR_MEMORY * noise + rng.gauss(0, HOUR_SPREAD)
        loads.append(BUSY * habit.share * profile[hour % 24] * math.exp(of_day + noise))
    return loads


def _profile(habit: TeamHabit) -> list[float]:
    """Its load by hour of the day, 1 on average: arrivals by its clock, each of which runs on for a while."""
    clock, length_h = SITE.clocks[habit.clock], _length_h(habit)
    stays = [math.exp(-hours / length_h) for hours in range(48)]
    whole = sum(stays) * sum(clock) / 24
    return [sum(clock[(hour - ago) % 24] * stays[ago] for ago in range(48)) / whole for hour in range(24)]


def _length_h(habit: TeamHabit) -> float:
    """Mean run time, hours."""
    return min(habit.median_min / 60 * math.exp(habit.spread**2 / 2), habit.longest_h)


def _quota(cell: CellSpec, queue: str, resource: str) -> int:
    """What the queue and all below it are given by name."""
    return sum(
        each.nominal.get(resource, 0) for each in cell.queues if each.name == queue or each.name.startswith(f"{queue}/")
    )


class _Flows:
    """The series of a cell over some times, summed up pool by pool."""

    def __init__(self, cell: CellSpec, at_ms: Times, step_ms: int) -> None:
        self._at_ms = at_ms
        self._step_h = step_ms / HOUR_MS
        self._nodes = {pool.name: sum(node.pool == pool.name for node in cell.nodes) for pool in cell.pools}
        self._series: dict[tuple[str, str, str], Values] = {}
        self._arriving: dict[tuple[str, str], Values] = {}
        """(of, queue) -> arrivals an hour."""
        for queue in cell.queues:
            for metric in ("demand_gpu", "demand_cpu", "used_gpu", "used_cpu", "cost_rate"):
                self._add(metric, "queue", queue.name, 0.0)
            for resource, quota in (("gpu", "gpu_milli"), ("cpu", "cpu_milli")):
                self._add(f"quota_{resource}", "queue", queue.name, _quota(cell, queue.name, quota))
            self._count("queue", queue.name, 0.0, 0.0, 0.0)

    def add_pool(self, pool: PoolSpec, asked: Mapping[TeamHabit, Values], outages: Sequence[PoolOutage]) -> None:
        """Count a pool, whose habits ask for such parts of it."""
        nodes = self._nodes[pool.name]
        size = nodes * (pool.capacity.gpu_milli or pool.capacity.cpu_milli)
        ready = nodes - _nodes_out(self._at_ms, outages)
        total: Values = np.asarray(sum(asked.values()))
        late = self._late(total, FULL * ready / nodes)
        patient: Values = np.asarray(sum(load for habit, load in asked.items() if not habit.endless))
        used = np.zeros_like(total), np.zeros_like(total)
        for habit, load in asked.items():
            waits = np.zeros_like(load) if habit.endless else np.minimum(late * load / patient, load)
            cpu, gpu = self._add_habit(pool, habit, size * (load - waits), size * waits)
            used = used[0] + cpu, used[1] + gpu
        self._add_capacity(pool, nodes, ready, used, late / np.maximum(total, 1e-9))

    def rows(self) -> Iterator[Row]:
        """The series as telemetry takes them. Of waits only those of intervals in which something started or waited."""
        for (of, queue), arriving in self._arriving.items():
            waiting = self._series["waiting", of, queue]
            mean_s = 3600 * waiting / np.maximum(arriving, 1e-9)
            started, waits = self._series["started", of, queue] > 0, waiting >= MIN_WAITING
            for name, some in (("wait", started), ("waiting", waits)):
                for part, quantile in (("p50", P50), ("p95", P95)):
                    if some.any():
                        values = np.rint(mean_s * quantile)[some].tolist()
                        yield f"{name}_{part}_s", of, queue, self._at_ms[some].tolist(), values
        times = self._at_ms.tolist()
        for key, values in self._series.items():
            yield (*key, times, np.rint(values).tolist())

    def _late(self, total: Values, room: Values) -> Values:
        """What waits, as a part of the pool: it comes again the hour after, and some gives up or starts elsewhere."""
        stays = STAYS**self._step_h
        rooms = np.broadcast_to(room, total.shape).tolist()
        late, found = 0.0, []
        for load, most in zip(total.tolist(), rooms, strict=True):
            late = max(load + stays * late - most, 0.0)
            found.append(late)
        return np.array(found)

    def _add_habit(self, pool: PoolSpec, habit: TeamHabit, used: Values, waits: Values) -> tuple[Values, Values]:
        """Count one habit; returns the milli-CPU and milli-GPU that it holds."""
        team = next(team for team in SITE.teams if team.prefix == habit.team)
        weights = sum(shape.weight for shape in habit.shapes)
        cpu, gpu = (
            sum(s.weight * s.tasks * getattr(s.request, name) for s in habit.shapes) / weights
            for name in ("cpu_milli", "gpu_milli")
        )
        held, waiting = used / (gpu or cpu), waits / (gpu or cpu)
        price = pool.price_microusd_hour / (pool.capacity.gpu_milli or pool.capacity.cpu_milli)
        for of, subject in self._subjects(team):
            self._add("demand_cpu", of, subject, (held + waiting) * cpu)
            self._add("used_cpu", of, subject, held * cpu)
            self._add("demand_gpu", of, subject, (held + waiting) * gpu)
            self._add("used_gpu", of, subject, held * gpu)
            if of != "cell":
                self._add("cost_rate", of, subject, used * price)
            if of != "tenant":
                self._count(of, subject, held, waiting, (held + waiting) / _length_h(habit))
        return held * cpu, held * gpu

    def _subjects(self, team: Team) -> tuple[tuple[str, str], ...]:
        department = team.queue.partition("/")[0]
        return ("cell", ""), ("queue", department), ("queue", team.queue), ("tenant", team.tenant)

    def _count(
        self, of: str, subject: str, held: Values | float, waiting: Values | float, rate: Values | float
    ) -> None:
        """Workloads that run, wait, and come in an hour."""
        self._add("running", of, subject, held)
        self._add("waiting", of, subject, waiting)
        self._arriving[of, subject] = self._arriving.get((of, subject), np.zeros(len(self._at_ms))) + rate
        for metric in ("started", "finished"):
            self._add(metric, of, subject, np.asarray(rate) * self._step_h)

    def _add_capacity(
        self, pool: PoolSpec, nodes: int, ready: Values, used: tuple[Values, Values], late: Values
    ) -> None:
        cpu, gpu, price = pool.capacity.cpu_milli, pool.capacity.gpu_milli, pool.price_microusd_hour
        asked = used[0] * (1 + late), used[1] * (1 + late)
        for of, name in (("cell", ""), ("pool", pool.name)):
            self._add("nodes", of, name, nodes)
            self._add("nodes_down", of, name, 0.0)
            self._add("cost_rate", of, name, nodes * price)
            self._add("capacity_cpu", of, name, ready * cpu)
            self._add("capacity_gpu", of, name, ready * gpu)
        self._add("price", "pool", pool.name, price)
        self._add("used_cpu", "pool", pool.name, used[0])
        self._add("demand_cpu", "pool", pool.name, asked[0])
        share = np.maximum(asked[0] / max(cpu, 1), asked[1] / gpu if gpu else 0.0)
        self._add("demand_nodes", "pool", pool.name, np.ceil(share))
        if gpu:
            self._add("used_gpu", "pool", pool.name, used[1])
            self._add("demand_gpu", "pool", pool.name, asked[1])
            self._add("demand_gpu", "gpu_model", pool.gpu_model, asked[1])
            self._add("demand_cpu", "gpu_model", pool.gpu_model, asked[0])

    def _add(self, metric: str, of: str, subject: str, values: Values | float) -> None:
        key = (metric, of, subject)
        self._series[key] = self._series.get(key, np.zeros(len(self._at_ms))) + values
