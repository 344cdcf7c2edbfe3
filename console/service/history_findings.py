"""What advice looks at besides the cell as it is: its history, forecasts of it, its pools and reservations.

In the engine's process. The engine is asked for a moment at a time; the history is read beside it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine.model.errors import MusterError
from engine.model.queries import Query, Term
from engine.model.specs import HOUR_MS
from engine.state.workloads import NONE
from engine.tables.columns import view
from recommender.findings.history_findings import (
    WEEK,
    HourlySeries,
    PoolNow,
    ReservationNow,
    idle_pools,
    interruptions,
    pools_ahead,
    runaways,
    stale_reservations,
)
from recommender.findings.suggestions import ModelSkill, Suggestion
from recommender.history.metrics import METRICS

if TYPE_CHECKING:
    from console.service.forecasts import Forecasts
    from console.service.insights import Insights
    from engine.control import Engine
    from engine.loop import EngineLoop
    from engine.model.queries import Overview
    from recommender.findings.history_watch import HistoryWatch
    from recommender.forecasts.queries import Forecast
    from recommender.history.telemetry import Telemetry

MAX_RESERVATIONS = 200
MAX_SERIES = 200
"""Tenants, or pools, that are looked at."""
WAITING = Query(kind="workloads", columns=("gpu", "cpu"), where=(Term("state", "=", "queued"),), limit=2_000)


class CellNow(NamedTuple):
    """What the engine is asked for, in one go."""

    now_ms: int
    pools: list[PoolNow]
    steered: frozenset[str]
    """Pools whose size people have set for times to come."""
    reservations: list[ReservationNow]
    waiting_gpu: int
    waiting_cpu: int


class HistoryFindings:
    """May be used by one thread at a time, but not by the engine's own."""

    def __init__(
        self, loop: EngineLoop, telemetry: Telemetry, forecasts: Forecasts, insights: Insights | None = None
    ) -> None:
        """`insights` finds work of the wrong size and work that is slowed down, where it is given."""
        self._loop = loop
        self._telemetry = telemetry
        self._forecasts = forecasts
        self._insights = insights
        self._watch: HistoryWatch | None = None
        self._read_ms = 0
        self._known: dict[tuple[str, str, str, str], HourlySeries] = {}
        """What was read of the hours up to then."""
        self._lock = threading.Lock()

    def __call__(self, overview: Overview) -> tuple[Sequence[Suggestion], Sequence[str]]:
        """What stands out, and what could not be judged. A history that cannot be read is one of those."""
        now = self._loop.call(cell_now)
        unit, waiting = ("GPU", now.waiting_gpu) if overview.capacity.get("gpu_milli") else ("CPU", now.waiting_cpu)
        found = stale_reservations(now.reservations, now.now_ms, waiting)
        try:
            found += self._insights.findings() if self._insights is not None else []
            with self._lock:
                more, unknown = self._watched(now.now_ms)
                found += more
                found += self._of_pools(now)
                tenants = self._series(f"used_{unit.lower()}", "tenant", now.now_ms)
            found += runaways(tenants, overview.capacity.get(f"{unit.lower()}_milli", 0), waiting, unit)
        except MusterError as error:
            return found, (f"the history cannot be read: {error.problem}",)
        return found, unknown

    # -- what is promised ---------------------------------------------------------------------------------------------

    def read(self, metric: str, of: str, subject: str, since_ms: int, until_ms: int) -> float | None:
        """Mean of a series from one time up to another, of what is counted so many an hour; None where nothing was
        measured."""
        # Small steps: the first may begin before the window, with what was before a deed.
        step_ms = max((until_ms - since_ms) // 500, 60_000)
        try:
            points = self._telemetry.series(metric, of, subject, since_ms, until_ms, step_ms)
        except MusterError:
            return None
        known = points.count > 0
        if not known.any():
            return None
        if METRICS[metric].counts:
            return float(points.total[known].sum()) * HOUR_MS / max(until_ms - since_ms, 1)
        return float(points.mean[known].mean())

    def others(self, metric: str, of: str, subject: str) -> Sequence[str]:
        """Other subjects with the same metric."""
        try:
            keys = self._telemetry.keys(metric, of)
        except MusterError:
            return ()
        return [key.subject for key in keys if key.subject != subject][:MAX_SERIES]

    # -- inside -------------------------------------------------------------------------------------------------------

    def _watched(self, now_ms: int) -> tuple[list[Suggestion], list[str]]:
        if self._watch is None:
            from recommender.findings.history_watch import HistoryWatch

            self._watch = HistoryWatch()
        return self._watch.look(self._telemetry, now_ms)

    def _of_pools(self, now: CellNow) -> list[Suggestion]:
        used, taken = {}, {}
        for pool in now.pools[:MAX_SERIES]:
            metric = "used_gpu" if pool.node_gpu_milli else "used_cpu"
            used[pool.name] = self._hours(metric, "pool", pool.name, now.now_ms, "most")
            if pool.spot:
                taken[pool.name] = self._hours("interrupted", "pool", pool.name, now.now_ms, "total")
        return [*self._ahead(now), *idle_pools(now.pools, used), *interruptions(now.pools, taken)]

    def _ahead(self, now: CellNow) -> list[Suggestion]:
        """Forecasts of growing pools that nobody steers."""
        demand, skill, thin, made_ms = {}, {}, {}, 0
        growing = [pool for pool in now.pools if pool.least is not None and pool.name not in now.steered]
        for pool in growing[:MAX_SERIES]:
            made = self._forecasts.latest("demand_nodes", "pool", pool.name)
            if made is None or made.stale:
                continue
            made_ms = made.made_ms
            demand[pool.name] = [hour.p90 for hour in made.hours]
            skill[pool.name] = _skill(made)
            thin[pool.name] = made.notes
        return pools_ahead(growing, demand, now.now_ms, made_ms, skill, thin)

    def _series(self, metric: str, of: str, now_ms: int) -> list[HourlySeries]:
        keys = self._telemetry.keys(metric, of)
        return [self._hours(metric, of, key.subject, now_ms, "mean") for key in keys[:MAX_SERIES] if not key.stale]

    def _hours(self, metric: str, of: str, subject: str, now_ms: int, figure: str) -> HourlySeries:
        """Of the last two weeks, up to the last whole hour."""
        until_ms = now_ms // HOUR_MS * HOUR_MS
        if until_ms != self._read_ms:
            self._read_ms, self._known = until_ms, {}
        key = (metric, of, subject, figure)
        if key not in self._known:
            since_ms = max(until_ms - 2 * WEEK * HOUR_MS, 0)
            points = self._telemetry.series(metric, of, subject, since_ms, until_ms, HOUR_MS)
            known = zip(getattr(points, figure).tolist(), points.count.tolist(), strict=True)
            self._known[key] = HourlySeries(
                subject=subject, hours=[value if count else float("nan") for value, count in known]
            )
        return self._known[key]


def _skill(made: Forecast) -> ModelSkill:
    first = made.coverage[0] if made.coverage else None
    if first is None:
        return ModelSkill(model="demand forecast", measure="hours within p10..p90", value="unknown", scored=0)
    value = f"{first.inside_permille:,} of 1,000 (800 is perfect)"
    return ModelSkill(
        model="demand forecast",
        measure=f"hours within p10..p90, {first.hours_ahead} h ahead",
        value=value,
        scored=first.scored,
    )


# -- on the engine's thread -------------------------------------------------------------------------------------------


def cell_now(engine: Engine) -> CellNow:
    """Pools, reservations, and what is asked for by what waits."""
    report = engine.scaling()
    sizes = {size.pool: size for size in report.pools}
    pools = []
    for spec in engine.state.capacity.pools:
        size = sizes[spec.name]
        pools.append(
            PoolNow(
                name=spec.name,
                nodes=size.ready + size.booting + size.other + size.ordered,
                least=None if spec.scaling is None else spec.scaling.least,
                most=0 if spec.scaling is None else spec.scaling.most,
                wanted=size.wanted,
                boot_ms=0 if spec.scaling is None else spec.scaling.boot_ms[1],
                price_microusd_hour=spec.price_microusd_hour,
                node_gpu_milli=spec.capacity.gpu_milli,
                node_cpu_milli=spec.capacity.cpu_milli,
                spot=spec.spot,
            )
        )
    waiting = engine.query(WAITING).rows
    return CellNow(
        now_ms=engine.now_ms,
        pools=pools,
        steered=frozenset(size.pool for size in report.pools if any(at > engine.now_ms for at, _ in size.set_for)),
        reservations=_reservations(engine),
        waiting_gpu=sum(gpu for gpu, _ in waiting),
        waiting_cpu=sum(cpu for _, cpu in waiting),
    )


def _reservations(engine: Engine) -> list[ReservationNow]:
    """Those that are active."""
    state, now_ms = engine.state, engine.now_ms
    active = [each.spec for each in state.bookings.reservations if each.spec.start_ms <= now_ms < each.spec.end_ms]
    if not active:
        return []
    import numpy as np

    c, a = state.capacity, state.allocations
    busy = np.zeros(len(c.node_ids), bool)
    busy[view(a.node)[view(a.workload) != NONE]] = True
    found = []
    for spec in active[:MAX_RESERVATIONS]:
        nodes = [c.row_of[name] for name in spec.nodes if name in c.row_of]
        sizes = [c.pools[c.pool[node]].capacity for node in nodes]
        found.append(
            ReservationNow(
                name=spec.name,
                nodes=len(nodes),
                busy=int(busy[nodes].sum()),
                gpu_milli=sum(size.gpu_milli for size in sizes),
                cpu_milli=sum(size.cpu_milli for size in sizes),
                since_ms=spec.start_ms,
                end_ms=spec.end_ms,
            )
        )
    return found
