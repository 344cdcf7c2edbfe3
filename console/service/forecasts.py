"""Forecasts from the cell's history: demand of the hours ahead, and the findings of advice in it.

`Forecasts` makes one forecast an hour for each series that is asked for or watched, keeps it as made, and scores it
when its hours have come. `HistoryFindings` gives advice what it looks at besides the present cell: history,
forecasts, pools and reservations. Both live in the engine's process; the engine is asked for a moment at a time, and
long work is done on the calling thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine.model.columns import view
from engine.model.errors import MusterError, NotFoundError, SpecError, did_you_mean
from engine.model.list_queries import Query, Term
from engine.model.overviews import Overview
from engine.model.quantities import shown
from engine.model.specs import HOUR_MS
from engine.state.workloads import NONE
from recommender.estimates.queries import MAX_HOURS, Coverage, Forecast, ForecastRequest, HourAhead, MemberSkill
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
from recommender.history.metrics import CELL, METRICS, OFS, SeriesKey

if TYPE_CHECKING:
    from console.service.insights import Insights
    from console.service.prometheus import PrometheusFollower
    from engine.control import Engine
    from engine.loop import EngineLoop
    from recommender.estimates.demand import DemandForecast
    from recommender.findings.history_watch import HistoryWatch
    from recommender.history.chunks import ForecastRows
    from recommender.history.telemetry import Telemetry


KNOWN_HOURS = 8 * 168
"""Hours of the past that are looked at."""
MADE_HOURS = 48
MAX_MADE = 128
"""Forecasts that are remembered."""
SCORED_AHEAD = (1, 6, 24, 48)
"""Hours ahead that are kept and scored."""
WATCHED = (("demand_nodes", "pool"), ("demand_gpu", "cell"), ("demand_cpu", "cell"), ("demand_gpu", "queue"))
MAX_WATCHED = 8
"""Series, so many of each kind, that are foretold every hour: findings rest on them, and it is known how good forecasts
are before somebody asks."""
STILL_MS = 4 * HOUR_MS
FEW = 30
"""Scored hours below which a coverage says little."""


class MeasuredHours(NamedTuple):
    """Measured hours of a series, up to the last whole one."""

    key: SeriesKey
    end_ms: int
    first_hour: int
    values: Sequence[float]
    """[hour] mean; nan where nothing was measured."""


class Forecasts:
    """Forecasts from a cell's history. May be called by several threads, but not by the engine's own."""

    def __init__(self, loop: EngineLoop, telemetry: Telemetry | None = None) -> None:
        self._loop = loop
        self._telemetry = telemetry
        self._rows: ForecastRows | None = None
        self._made: OrderedDict[tuple[str, str, str, int, int], tuple[MeasuredHours, DemandForecast]] = OrderedDict()
        """(metric, of, subject, end of the last known hour, hours ahead) -> what was made."""
        self._making = threading.Lock()
        """Held to make one: one core is enough."""
        self._lock = threading.Lock()
        """Held to look at those that were made."""

    def answer(self, request: ForecastRequest) -> Forecast:
        """Forecast of a series. Raises SpecError for a malformed one, NotFoundError for one that was never measured."""
        if not 1 <= request.hours <= MAX_HOURS:
            raise SpecError("hours", f"{request.hours} must be 1 to {MAX_HOURS}", "Write it like 48")
        key, now_ms = self._key(request), self._now_ms()
        past, made = self._forecast(key, now_ms, MADE_HOURS if request.hours <= MADE_HOURS else MAX_HOURS)
        return told(past, made, request.hours, now_ms, self._coverage(past))

    def latest(self, metric: str, of: str, subject: str) -> Forecast | None:
        """Last forecast made of a series, if it is at most STILL_MS old: for findings, which do not wait for one."""
        now_ms = self._now_ms()
        with self._lock:
            found = [
                made
                for key, made in self._made.items()
                if key[:3] == (metric, of, subject) and key[3] > now_ms - STILL_MS
            ]
        if not found:
            return None
        past, made = max(found, key=lambda each: each[0].end_ms)
        return told(past, made, MADE_HOURS, now_ms, self._coverage(past))

    def keep_up(self) -> bool:
        """Make the forecast of one watched series whose hour is over. Returns False when there was none."""
        if self._telemetry is None:
            return False
        now_ms = self._now_ms()
        watched = [
            key for metric, of in WATCHED for key in self._telemetry.keys(metric, of)[:MAX_WATCHED] if not key.stale
        ]
        for key in watched:
            if (key.metric, key.of, key.subject, _end_ms(key, now_ms), MADE_HOURS) not in self._made:
                self._forecast(key, now_ms, MADE_HOURS)
                return True
        return False

    # -- inside -------------------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._loop.call(lambda engine: engine.now_ms)

    def _key(self, request: ForecastRequest) -> SeriesKey:
        """The series that a request means."""
        of, colon, subject = request.subject.partition(":")
        of = of or "cell"
        if of not in OFS or (of != "cell" and not (colon and subject)):
            raise SpecError(
                "subject", f"{shown(request.subject)} is not WHAT:NAME", "Write it like queue:research or pool:h100"
            )
        if request.metric and request.metric not in METRICS:
            remedy = did_you_mean(request.metric, METRICS)
            raise SpecError("metric", f"there is no metric {shown(request.metric)}", remedy)
        known = [] if self._telemetry is None else self._telemetry.keys(of=of)
        for metric in (request.metric,) if request.metric else self._usual_metrics(of, subject):
            for key in known:
                if (key.metric, key.subject) == (metric, subject):
                    return key
        names = sorted({key.subject for key in known if key.subject})
        measured = "`muster history show` lists what there is; new cells have none"
        remedy = did_you_mean(subject, names, measured, f"{of}:{{}}")
        raise NotFoundError(f"no measurements yet of {request.subject or 'the cell'}", remedy)

    def _usual_metrics(self, of: str, subject: str) -> tuple[str, str]:
        """Metrics to try in order: demand for GPUs first, except for objects without any."""
        overview = self._loop.call(lambda engine: engine.overview())
        pools = {pool.name: pool.capacity for pool in overview.pools}
        capacity = pools.get(subject, overview.capacity) if of == "pool" else overview.capacity
        return ("demand_gpu", "demand_cpu") if capacity.get("gpu_milli") else ("demand_cpu", "demand_gpu")

    def _forecast(self, key: SeriesKey, now_ms: int, hours: int) -> tuple[MeasuredHours, DemandForecast]:
        end_ms = _end_ms(key, now_ms)
        wanted = (key.metric, key.of, key.subject, end_ms, hours)
        made = self._made.get(wanted)
        if made is not None:
            return made
        with self._making:
            made = self._made.get(wanted)
            if made is None:
                from recommender.estimates.demand import DemandModel

                past = self._past(key, end_ms)
                made = past, DemandModel().forecast(past.values, hours, first_hour=past.first_hour)
                with self._lock:
                    self._made[wanted] = made
                    if len(self._made) > MAX_MADE:
                        self._made.popitem(last=False)
                self._keep(past, made[1])
            return made

    def _past(self, key: SeriesKey, end_ms: int) -> MeasuredHours:
        assert self._telemetry is not None
        since_ms = max(key.first_ms // HOUR_MS * HOUR_MS, end_ms - KNOWN_HOURS * HOUR_MS)
        points = self._telemetry.series(key.metric, key.of, key.subject, min(since_ms, end_ms), end_ms, HOUR_MS)
        return MeasuredHours(key, end_ms, since_ms // HOUR_MS, points.mean.tolist())

    def _keep(self, past: MeasuredHours, made: DemandForecast) -> None:
        """Store a forecast for its score. A history that cannot be written costs the score, not the forecast."""
        rows = self._score_rows()
        if rows is None or made.basis == "too short":
            return
        ahead = [hours for hours in SCORED_AHEAD if hours <= made.quantiles.shape[1]]
        try:
            rows.keep(
                (past.key.metric, past.key.of, past.key.subject),
                past.end_ms,
                [(hours, made.p10[hours - 1], made.p50[hours - 1], made.p90[hours - 1]) for hours in ahead],
            )
        except MusterError:
            return

    def _coverage(self, past: MeasuredHours) -> tuple[Coverage, ...]:
        rows = self._score_rows()
        if rows is None:
            return ()
        measured = {(past.first_hour + i) * HOUR_MS: value for i, value in enumerate(past.values) if value == value}
        found = []
        kept = rows.kept((past.key.metric, past.key.of, past.key.subject), past.first_hour * HOUR_MS)
        for hours in SCORED_AHEAD:
            pairs = [
                (low, middle, high, measured[made_ms + (hours - 1) * HOUR_MS])
                for made_ms, ahead, low, middle, high in kept
                if ahead == hours and made_ms + (hours - 1) * HOUR_MS in measured
            ]
            if pairs:
                below, above = sum(x < low for low, _, _, x in pairs), sum(x > high for _, _, high, x in pairs)
                found.append(
                    Coverage(
                        hours_ahead=hours,
                        scored=len(pairs),
                        inside_permille=(len(pairs) - below - above) * 1000 // len(pairs),
                        below_permille=below * 1000 // len(pairs),
                        above_permille=above * 1000 // len(pairs),
                        mean_error=sum(abs(x - middle) for _, middle, _, x in pairs) / len(pairs),
                    )
                )
        return tuple(found)

    def _score_rows(self) -> ForecastRows | None:
        if self._rows is None and self._telemetry is not None:
            from recommender.history.chunks import ForecastRows

            self._rows = ForecastRows(self._telemetry.records)
        return self._rows


def told(
    past: MeasuredHours, made: DemandForecast, hours: int, now_ms: int, coverage: tuple[Coverage, ...]
) -> Forecast:
    """The forecast in plain numbers."""
    known = sum(value == value for value in past.values)
    notes = []
    if made.basis != "models":
        notes.append(
            f"{known:,} hours of history: based on {made.basis}, without the models"
            if made.basis != "too short"
            else f"only {known:,} hours of history: only the measured range is shown"
        )
    if past.key.stale:
        notes.append(f"its source ({past.key.source}) has stopped reporting: the last value is old")
    if coverage and coverage[0].scored < FEW:
        notes.append(f"fewer than {FEW} of its forecasts are scored so far")
    last = next((value for value in reversed(past.values) if value == value), None)
    return Forecast(
        metric=past.key.metric,
        unit=METRICS[past.key.metric].unit,
        of=past.key.of,
        subject=past.key.subject,
        now_ms=now_ms,
        made_ms=past.end_ms,
        known_hours=known,
        missing_hours=len(past.values) - known,
        stale=past.key.stale,
        basis=made.basis,
        now=last,
        hours=tuple(
            HourAhead(at_ms=past.end_ms + i * HOUR_MS, p10=low, p50=middle, p90=high)
            for i, (low, middle, high) in enumerate(
                zip(made.p10[:hours].tolist(), made.p50[:hours].tolist(), made.p90[:hours].tolist(), strict=True)
            )
        ),
        members=tuple(
            MemberSkill(
                name=member.name,
                weight_permille=round(float(member.weights[:hours].mean()) * 1000),
                error=float(member.errors[:hours].mean()),
            )
            for member in made.members
        ),
        coverage=coverage,
        notes=tuple(notes),
    )


def _end_ms(key: SeriesKey, now_ms: int) -> int:
    """End of the last hour that is over. Series of other sources have their own time: they end with their last
    sample, which stands for one step."""
    until_ms = now_ms if key.source == CELL else key.last_ms + key.step_ms
    return until_ms // HOUR_MS * HOUR_MS


MAX_RESERVATIONS = 200
MAX_SERIES = 200
"""Tenants, or pools, that are looked at."""
WAITING = Query(kind="workloads", columns=("gpu", "cpu"), where=(Term("state", "=", "queued"),), limit=2_000)


class CellNow(NamedTuple):
    """State of the engine for the findings, read in one go."""

    now_ms: int
    pools: list[PoolNow]
    steered: frozenset[str]
    """Pools whose size people have set for times to come."""
    reservations: list[ReservationNow]
    waiting_gpu: int
    waiting_cpu: int


class PromiseReader(NamedTuple):
    """The history as promises are held against it (`recommender.findings.suggestions.looked_up`)."""

    telemetry: Telemetry

    def read(self, metric: str, of: str, subject: str, since_ms: int, until_ms: int) -> float | None:
        """Mean of a series in a window, of counts their rate per hour; None where nothing was measured."""
        # Small steps: the first may begin before the window, with what was before a deed.
        step_ms = max((until_ms - since_ms) // 500, 60_000)
        try:
            points = self.telemetry.series(metric, of, subject, since_ms, until_ms, step_ms)
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
            keys = self.telemetry.keys(metric, of)
        except MusterError:
            return ()
        return [key.subject for key in keys if key.subject != subject][:MAX_SERIES]


class HistoryFindings:
    """Findings in the history. May be used by one thread at a time, but not by the engine's own."""

    def __init__(
        self, loop: EngineLoop, telemetry: Telemetry, forecasts: Forecasts, insights: Insights | None = None
    ) -> None:
        """`insights` finds work of the wrong size and work that is slowed down, where it is given."""
        self._loop = loop
        self._telemetry = telemetry
        self._forecasts = forecasts
        self._insights = insights
        self.follower: PrometheusFollower | None = None
        """Finds GPUs that are held and idle, where a Prometheus is followed."""
        self._watch: HistoryWatch | None = None
        self._read_ms = 0
        self._known: dict[tuple[str, str, str, str], HourlySeries] = {}
        """What was read of the hours up to then."""
        self._lock = threading.Lock()

    def __call__(self, overview: Overview) -> tuple[Sequence[Suggestion], Sequence[str]]:
        """Findings, and what could not be judged. A history that cannot be read is one of the latter."""
        now = self._loop.call(cell_now)
        unit, waiting = ("GPU", now.waiting_gpu) if overview.capacity.get("gpu_milli") else ("CPU", now.waiting_cpu)
        found = stale_reservations(now.reservations, now.now_ms, waiting)
        try:
            found += self._insights.findings() if self._insights is not None else []
            with self._lock:
                more, unknown = self._watched(now.now_ms)
                found += more
                if self.follower is not None:
                    idle = self.follower.findings(now.waiting_gpu)
                    found += idle.suggestions
                    unknown += idle.unknown
                found += self._of_pools(now)
                tenants = self._series(f"used_{unit.lower()}", "tenant", now.now_ms)
            found += runaways(tenants, overview.capacity.get(f"{unit.lower()}_milli", 0), waiting, unit)
        except MusterError as error:
            return found, (f"the history cannot be read: {error.problem}",)
        return found, unknown

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
        """Findings from forecasts of growing pools whose size nobody sets."""
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
        """Hours of the last two weeks, up to the last whole one."""
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
    value = f"{first.inside_permille:,} of 1,000 (800 is ideal)"
    return ModelSkill(
        model="demand forecast",
        measure=f"hours within p10..p90, {first.hours_ahead} h ahead",
        value=value,
        scored=first.scored,
    )


# -- on the engine's thread -------------------------------------------------------------------------------------------


def cell_now(engine: Engine) -> CellNow:
    """Pools, reservations, and the demand of waiting work."""
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
