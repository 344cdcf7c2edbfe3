"""A week of work on machines that may be taken back, under several policies of buying them, in the real engine.

Prices: of EC2 spot machines in 2015, one series for each zone, when given; a machine is bid for at the on-demand price,
so while the price is above it all of a zone's machines are taken, after two minutes of notice, and none is to be had.
What a machine costs is the integral of the price over its life. Without series: one zone at a constant price, each
machine taken by chance, as an assumption that is told.

Work: jobs of about an hour that start over when stopped; jobs of a day that write checkpoints, some also when asked;
jobs of some hours that must not be on spot machines. All have deadlines. Every task takes one machine.

The bound knows every price beforehand: each job by itself buys the cheapest minutes between arrival and deadline, in
any zone or on demand, moving at no cost and without machines that boot or idle. No policy can be cheaper.
"""

from __future__ import annotations

import csv
import gzip
import math
import random
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from engine.control import Engine
from engine.controllers import TAKEN
from engine.model import commands as cmd
from engine.model.columns import view
from engine.model.errors import SpecError
from engine.model.specs import (
    HOUR_MS,
    Autoscaling,
    CapacityType,
    CellSpec,
    NodeState,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    ScalingSpec,
    Settings,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
)
from engine.state import workloads as wl

MINUTE_MS = 60_000
DAY_MS = 24 * HOUR_MS
ARRIVALS_MS = 6 * DAY_MS
"""Work arrives for so long; then the rest of it ends."""
LONGEST_MS = 10 * DAY_MS
NOTICE_MS = 120_000
"""EC2 gives two minutes."""
BOOT_MS = (60_000, 120_000)
MOST = 500
"""Machines of a zone."""
ON_DEMAND_USD = {"m3.medium": 0.067, "r3.large": 0.175, "c3.xlarge": 0.21, "g2.2xlarge": 0.65, "d2.8xlarge": 5.52}
"""AWS list prices per hour, Linux, us-east-1, 2015."""
ASSUMED_USD, ASSUMED_SHARE, ASSUMED_PERMILLE = 0.175, 0.3, 50
"""Without series: on-demand price per hour, spot price as part of it, machines taken in an hour."""
NODE = Resources(cpu_milli=2000, memory_mib=15_616)
Policy = Literal["on-demand only", "spot only", "mixed", "spot first"]
POLICIES: tuple[Policy, ...] = ("on-demand only", "spot only", "mixed", "spot first")
"""The last two are Muster's: any machine to be had, the cheapest first; and spot machines until the slack runs out."""


class ZonePrices(msgspec.Struct, frozen=True, kw_only=True):
    """Price of one zone's machines by cell time."""

    zone: str
    at_ms: tuple[int, ...]
    """Ascending; the first is at or before 0."""
    microusd_hour: tuple[int, ...]
    """From that moment on."""
    mean_before: int
    """Mean before cell time 0 while it was not above on-demand: what the engine goes by."""

    def cost(self, since_ms: int, until_ms: int) -> int:
        """Micro-USD of one machine between two moments, rounded down."""
        total = 0
        at = bisect_right(self.at_ms, since_ms) - 1
        while since_ms < until_ms:
            end_ms = min(self.at_ms[at + 1] if at + 1 < len(self.at_ms) else until_ms, until_ms)
            total += self.microusd_hour[at] * (end_ms - since_ms)
            since_ms, at = end_ms, at + 1
        return total // HOUR_MS

    def above(self, most: int) -> list[tuple[int, int]]:
        """(from, to) of the times from cell time 0 on at which the price is higher."""
        found: list[tuple[int, int]] = []
        for i, (at_ms, price) in enumerate(zip(self.at_ms, self.microusd_hour, strict=True)):
            end_ms = self.at_ms[i + 1] if i + 1 < len(self.at_ms) else LONGEST_MS
            if price > most and end_ms > 0 and at_ms < LONGEST_MS:
                if found and found[-1][1] == at_ms:
                    found[-1] = (found[-1][0], end_ms)
                else:
                    found.append((max(at_ms, 0), end_ms))
        return found


class Market(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of machines, and the times at which they are taken."""

    source: str
    """Where the prices are from, and when the week begins."""
    on_demand: int
    """Micro-USD per hour."""
    zones: tuple[ZonePrices, ...]
    taken_permille_hour: int = 0
    """Chance of a machine to be taken in an hour, where prices do not say."""


class PolicyOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one policy."""

    policy: str
    jobs: int
    finished: int
    in_time: int
    """Finished by their deadline. All have one."""
    cost_microusd: int
    cost_per_finished_microusd: int
    on_demand_cost_microusd: int
    """Of that, for on-demand machines."""
    goodput_permille: int
    """Useful time of finished jobs' tasks in the time that machines were paid for."""
    machine_hours: int
    lost_hours: int
    """Time that tasks ran for what was lost, read back, or not finished."""
    idle_hours: int
    """Time that machines were paid for and had no task: booting, waiting for work, ending."""
    machines_taken: int
    stops: int
    """How often a job was stopped because its machine was taken."""
    turned: int
    """Jobs that turned to on-demand machines because their slack ran out."""
    wall_ms: int = 0


class SpotWeekResult(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    policies: tuple[PolicyOutcome, ...]
    bound_microusd: int
    """What the week's work costs at least."""
    bound_per_job_microusd: int


# -- prices -----------------------------------------------------------------------------------------------------------


def read_market(paths: Sequence[str], week: int) -> Market:
    """A market of one machine type, each file a zone; `week`: which of the whole calendar weeks that all files cover
    (and the three days after), counted from 0 round and round. Raises SpecError."""
    names = [Path(path).name.removesuffix(".gz").removesuffix(".csv") for path in paths]
    types = {next((t for t in ON_DEMAND_USD if name.endswith(t)), "") for name in names}
    if len(types) != 1 or types == {""}:
        known = ", ".join(ON_DEMAND_USD)
        raise SpecError("--prices", "are not of one machine type whose on-demand price is known", f"Known: {known}")
    tables = [_read(path) for path in paths]
    first = max(table[0][0] for table in tables) + timedelta(days=2)
    last = min(table[-1][0] for table in tables) - timedelta(milliseconds=LONGEST_MS)
    monday = (first + timedelta(days=(7 - first.weekday()) % 7)).replace(hour=0, minute=0, second=0, microsecond=0)
    weeks = (last - monday).days // 7 + 1
    if weeks < 1:
        raise SpecError("--prices", "cover no whole calendar week and the three days after", "Give longer series")
    begin = monday + timedelta(weeks=week % weeks)
    price = round(ON_DEMAND_USD[min(types)] * 1_000_000)
    zones = tuple(
        _series(name.removesuffix(f"-{min(types)}"), table, begin, price)
        for name, table in zip(names, tables, strict=True)
    )
    return Market(
        source=f"EC2 spot prices of {min(types)} in {len(zones)} zones, week of {begin:%Y-%m-%d}; while a zone's price "
        f"is above on-demand, {price / 1e6:g} USD/h",
        on_demand=price,
        zones=zones,
    )


def _read(path: str) -> list[tuple[datetime, int]]:
    """(moment, micro-USD per hour), ascending."""
    rows = []
    try:
        with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as lines:
            reader = csv.reader(lines)
            next(reader, None)
            for number, row in enumerate(reader, 2):
                try:
                    rows.append((datetime.fromisoformat(row[0]).astimezone(UTC), round(float(row[1]) * 1_000_000)))
                except (IndexError, ValueError, OverflowError):
                    raise SpecError("--prices", f"{path}, line {number} is not a moment and a price") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError("--prices", f"{path} cannot be read: {error}") from None
    if len(rows) < 2 or any(b[0] < a[0] for a, b in pairwise(rows)) or min(p for _, p in rows) < 0:
        raise SpecError("--prices", f"{path} is not a series of prices from early to late", "Sort it by time")
    return rows


def _series(zone: str, table: list[tuple[datetime, int]], begin: datetime, most: int) -> ZonePrices:
    at_ms = [round((moment - begin).total_seconds() * 1000) for moment, _ in table]
    prices = [price for _, price in table]
    start = bisect_right(at_ms, 0) - 1
    each = zip(at_ms[:start], at_ms[1:], prices, strict=False)
    spans = [(end - at, price) for at, end, price in each if price <= most]
    known_ms = sum(span for span, _ in spans)
    mean = sum(span * price for span, price in spans) // known_ms if known_ms else most
    end = bisect_right(at_ms, LONGEST_MS)
    return ZonePrices(
        zone=zone, at_ms=tuple(at_ms[start:end]), microusd_hour=tuple(prices[start:end]), mean_before=mean
    )


def assumed_market() -> Market:
    """Constant prices, and machines taken by chance."""
    price = round(ASSUMED_USD * 1_000_000)
    spot = round(price * ASSUMED_SHARE)
    return Market(
        source=f"assumed: {ASSUMED_SHARE:.0%} of the on-demand price of {ASSUMED_USD:g} USD/h; "
        f"assumed: {ASSUMED_PERMILLE / 10:g}% of spot machines in an hour, each by chance",
        on_demand=price,
        zones=(ZonePrices(zone="any", at_ms=(0,), microusd_hour=(spot,), mean_before=spot),),
        taken_permille_hour=ASSUMED_PERMILLE,
    )


# -- work -------------------------------------------------------------------------------------------------------------


class SpotJob(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    arrives_ms: int
    work_ms: int
    tasks: int
    deadline_ms: int
    certain: bool = False
    """Never on spot machines."""
    interval_ms: int = 0
    cost_ms: int = 0
    restore_ms: int = 0


def jobs(seed: int, scale: float = 1.0) -> list[SpotJob]:
    """Work of the week, by arrival: about 14 machines' worth of hour-long jobs, 24 of day-long ones, 5 of those that
    stay off spot machines. `scale` multiplies how many there are."""
    draw = random.Random(f"{seed}/spot-week")
    found = []
    kinds = (("hour", 14.0), ("day", 0.6), ("certain", 1.5))
    for kind, per_hour in kinds:
        at_ms, number = 0.0, 0
        while (at_ms := at_ms + draw.expovariate(per_hour * scale) * HOUR_MS) < ARRIVALS_MS:
            found.append(_job(draw, kind, number, int(at_ms)))
            number += 1
    return sorted(found, key=lambda job: (job.arrives_ms, job.id))


def _job(draw: random.Random, kind: str, number: int, at_ms: int) -> SpotJob:
    name = f"{kind}-{number}"
    if kind == "hour":
        work = int(HOUR_MS * min(max(draw.lognormvariate(-0.1, 0.5), 0.2), 3.0))
        return SpotJob(id=name, arrives_ms=at_ms, work_ms=work, tasks=1, deadline_ms=at_ms + work + 6 * HOUR_MS)
    if kind == "certain":
        work = int(HOUR_MS * draw.uniform(1, 5))
        return SpotJob(
            id=name, arrives_ms=at_ms, work_ms=work, tasks=1, deadline_ms=at_ms + work + 6 * HOUR_MS, certain=True
        )
    work = int(HOUR_MS * draw.uniform(12, 28))
    return SpotJob(
        id=name,
        arrives_ms=at_ms,
        work_ms=work,
        tasks=draw.choice((1, 1, 2, 4)),
        deadline_ms=at_ms + int(work * draw.uniform(1.25, 2.0)),
        interval_ms=HOUR_MS,
        cost_ms=draw.choice((0, MINUTE_MS)),
        restore_ms=2 * MINUTE_MS,
    )


def spec_of(job: SpotJob, policy: Policy) -> WorkloadSpec:
    kinds: dict[Policy, CapacityType] = {"on-demand only": "on-demand", "spot only": "spot", "spot first": "spot-first"}
    kind = "on-demand" if job.certain else kinds.get(policy, "")
    return WorkloadSpec(
        id=job.id,
        queue="work",
        groups=(TaskGroup(count=job.tasks, request=NODE, capacity_type=kind),),
        estimate_ms=job.work_ms,
        simulated_runtime_ms=job.work_ms,
        checkpoint_interval_ms=job.interval_ms,
        checkpoint_cost_ms=job.cost_ms,
        restore_ms=job.restore_ms,
        deadline_ms=job.deadline_ms,
    )


# -- a week -----------------------------------------------------------------------------------------------------------


def bench(market: Market, *, seed: int = 1, scale: float = 1.0) -> SpotWeekResult:
    """All policies on the same work and market, and the bound."""
    work = jobs(seed, scale)
    bound = sum(map(Bound(market).cost, work))
    return SpotWeekResult(
        source=market.source,
        policies=tuple(live(market, work, policy, seed) for policy in POLICIES),
        bound_microusd=bound,
        bound_per_job_microusd=bound // len(work),
    )


def live(market: Market, work: Sequence[SpotJob], policy: Policy, seed: int) -> PolicyOutcome:
    """The week under one policy."""
    began = time.monotonic()
    engine = Engine.open(None, seed=seed, cell=cell(market))
    happenings: list[tuple[int, int, SpotJob | str]] = [(job.arrives_ms, 1, job) for job in work]
    for series in market.zones:
        happenings += [(since_ms, 0, f"spot-{series.zone}") for since_ms, _ in series.above(market.on_demand)]
    happenings.sort(key=lambda each: each[:2])
    for at_ms, _, what in happenings:
        engine.advance(at_ms)
        if isinstance(what, SpotJob):
            engine.command(cmd.Submit(workloads=(spec_of(what, policy),)))
        else:
            ids = _machines(engine, what)
            if ids:
                engine.command(cmd.Interrupt(ids=ids, notice_ms=NOTICE_MS))
    while any(not WorkloadState(state).terminal for state in engine.state.workloads.state):
        engine.advance(engine.now_ms + HOUR_MS)
        if engine.now_ms > LONGEST_MS:
            break
    outcome = _measured(engine, market, work, policy)
    return msgspec.structs.replace(outcome, wall_ms=round((time.monotonic() - began) * 1000))


def cell(market: Market) -> CellSpec:
    pools = [
        PoolSpec(
            name=f"spot-{series.zone}",
            capacity=NODE,
            spot=True,
            price_microusd_hour=series.mean_before,
            scaling=ScalingSpec(
                most=MOST,
                boot_ms=BOOT_MS,
                notice_ms=NOTICE_MS,
                taken_permille_hour=market.taken_permille_hour,
                stock=stock_curve(series.above(market.on_demand)),
            ),
        )
        for series in market.zones
    ]
    pools.append(
        PoolSpec(
            name="on-demand",
            capacity=NODE,
            price_microusd_hour=market.on_demand,
            scaling=ScalingSpec(most=MOST, boot_ms=BOOT_MS),
        )
    )
    settings = Settings(
        autoscaling=Autoscaling(
            scan_every_ms=MINUTE_MS,
            scale_up_after_ms=0,
            expanders=("price",),
            scale_down_after_ms=5 * MINUTE_MS,
            settle_after_add_ms=MINUTE_MS,
        )
    )
    return CellSpec(
        name="spot-week",
        pools=tuple(pools),
        queues=(QueueSpec(name="work"),),
        priority_classes=(PriorityClassSpec(name="normal", value=0),),
        settings=settings,
    )


def stock_curve(dear: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """A curve that is 0 while the price is above on-demand; jumps take a millisecond."""
    points: list[tuple[int, int]] = [(0, MOST)]
    for since_ms, until_ms in dear:
        if since_ms <= points[-1][0]:
            points.pop()
        else:
            points.append((since_ms - 1, MOST))
        points += [(since_ms, 0), (until_ms - 1, 0), (until_ms, MOST)]
    return tuple(points) if len(points) > 1 else ()


def _machines(engine: Engine, pool: str) -> tuple[str, ...]:
    """Ids of the pool's machines that have had no notice."""
    capacity = engine.state.capacity
    mine = (view(capacity.pool) == capacity.pool_of[pool]) & (view(capacity.doomed) < 0)
    mine &= view(capacity.state) != NodeState.REMOVED
    return tuple(capacity.node_ids[row] for row in np.flatnonzero(mine).tolist())


def _measured(engine: Engine, market: Market, work: Sequence[SpotJob], policy: Policy) -> PolicyOutcome:
    capacity, w = engine.state.capacity, engine.state.workloads
    by_pool = {f"spot-{series.zone}": series for series in market.zones}
    cost = on_demand = paid_ms = 0
    for node, pool in enumerate(capacity.pool):
        since_ms = capacity.born[node]
        until_ms = capacity.since[node] if capacity.state[node] == NodeState.REMOVED else engine.now_ms
        paid_ms += until_ms - since_ms
        series = by_pool.get(capacity.pools[pool].name)
        if series is None:
            on_demand += market.on_demand * (until_ms - since_ms) // HOUR_MS
        else:
            cost += series.cost(since_ms, until_ms)
    cost += on_demand
    useful_ms = busy_ms = finished = in_time = stops = turned = 0
    for job in work:
        row = w.row_of[job.id]
        ran_ms, stopped = ran_and_stops(w, row)
        busy_ms += ran_ms * job.tasks
        stops += stopped
        turned += w.has_turned(row)
        if w.state[row] == WorkloadState.FINISHED:
            finished += 1
            in_time += w.ended[row] <= job.deadline_ms
            useful_ms += job.work_ms * job.tasks
    return PolicyOutcome(
        policy=policy,
        jobs=len(work),
        finished=finished,
        in_time=in_time,
        cost_microusd=cost,
        cost_per_finished_microusd=cost // max(finished, 1),
        on_demand_cost_microusd=on_demand,
        goodput_permille=useful_ms * 1000 // max(paid_ms, 1),
        machine_hours=paid_ms // HOUR_MS,
        lost_hours=(busy_ms - useful_ms) // HOUR_MS,
        idle_hours=(paid_ms - busy_ms) // HOUR_MS,
        machines_taken=sum(at >= 0 for at in capacity.doomed),
        stops=stops,
        turned=turned,
    )


def ran_and_stops(w: wl.Workloads, row: int) -> tuple[int, int]:
    """(time its tasks ran in all, times stopped because a machine was taken)"""
    ran_ms = stops = 0
    until_ms = -1
    entry = w.history[row]
    while entry != wl.NONE:
        what, at_ms = w.history_what[entry], w.history_at[entry]
        if what in (wl.FINISHED, wl.FAILED, wl.EVICTED, wl.CANCELLED):
            until_ms = at_ms
            stops += what == wl.EVICTED and w.history_detail[entry] & 0xFF == TAKEN
        elif what == wl.RUNNING:
            ran_ms += max(until_ms, at_ms) - at_ms
        entry = w.history_previous[entry]
    return ran_ms, stops


class Bound:
    """The cost of a job when all prices are known beforehand."""

    def __init__(self, market: Market) -> None:
        self._on_demand = market.on_demand
        minutes = range(0, LONGEST_MS, MINUTE_MS)
        each = [[series.cost(at, at + MINUTE_MS) for at in minutes] for series in market.zones]
        certain = market.on_demand * MINUTE_MS // HOUR_MS
        self._cheapest = np.minimum(np.array(each, np.int64).min(axis=0), certain)
        """Micro-USD of each minute, on the cheapest machine to be had. Prices above on-demand are never paid."""

    def cost(self, job: SpotJob) -> int:
        """Micro-USD at least: the cheapest minutes between arrival and deadline, as many as the work takes."""
        if job.certain:
            return self._on_demand * job.work_ms * job.tasks // HOUR_MS
        first, last = job.arrives_ms // MINUTE_MS, math.ceil(job.deadline_ms / MINUTE_MS)
        prices = np.sort(self._cheapest[first:last])
        whole, rest_ms = divmod(job.work_ms, MINUTE_MS)
        dearest = int(prices[whole]) if rest_ms else 0
        return (int(prices[:whole].sum()) + dearest * rest_ms // MINUTE_MS) * job.tasks
