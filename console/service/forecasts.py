"""Demand of the hours ahead, of any series of the history: made once an hour for each series that is asked for or
watched, kept as it was made, and scored when the hours have come.

Lives in the engine's process, beside the engine. What takes long is done on the thread that asks, never the engine's.
"""

from __future__ import annotations

import difflib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine.model.errors import MusterError, NotFoundError, SpecError
from engine.model.quantity_parsing import shown
from engine.model.specs import HOUR_MS
from recommender.forecasts.queries import MAX_HOURS, Coverage, Forecast, ForecastRequest, HourAhead, MemberSkill
from recommender.history.metrics import CELL, METRICS, OFS, SeriesKey

if TYPE_CHECKING:
    from engine.loop import EngineLoop
    from recommender.forecasts.demand import DemandForecast
    from recommender.forecasts.forecast_records import ForecastRows
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
    """The hours that were measured, up to the last whole one."""

    key: SeriesKey
    end_ms: int
    first_hour: int
    values: Sequence[float]
    """[hour] mean; nan where nothing was measured."""


class Forecasts:
    """Answers from a cell's history. May be asked by several threads, but not by the engine's own."""

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
        """Raises SpecError for what is no series, NotFoundError for one that was never measured."""
        if not 1 <= request.hours <= MAX_HOURS:
            raise SpecError("hours", f"{request.hours} is not from 1 to {MAX_HOURS}", "Give for example 48")
        key, now_ms = self._key(request), self._now_ms()
        past, made = self._forecast(key, now_ms, MADE_HOURS if request.hours <= MADE_HOURS else MAX_HOURS)
        return told(past, made, request.hours, now_ms, self._coverage(past))

    def latest(self, metric: str, of: str, subject: str) -> Forecast | None:
        """The last that was made of a series, where that is not more than STILL_MS ago: for findings, which wait for
        none."""
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
        """Make the forecast of one watched series whose hour is over. Returns whether there was one."""
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
        """The series that is meant."""
        of, colon, subject = request.subject.partition(":")
        of = of or "cell"
        if of not in OFS or (of != "cell" and not (colon and subject)):
            raise SpecError("subject", f"{shown(request.subject)} is not WHAT:NAME", "As queue:research, pool:h100")
        if request.metric and request.metric not in METRICS:
            near = difflib.get_close_matches(request.metric, METRICS, 1)
            raise SpecError(
                "metric", f"there is no metric {shown(request.metric)}", f"Did you mean {near[0]}?" if near else ""
            )
        known = [] if self._telemetry is None else self._telemetry.keys(of=of)
        for metric in (request.metric,) if request.metric else self._usual_metrics(of, subject):
            for key in known:
                if (key.metric, key.subject) == (metric, subject):
                    return key
        names = sorted({key.subject for key in known if key.subject})
        near = difflib.get_close_matches(subject, names, 1)
        remedy = (
            f"Did you mean {of}:{near[0]}?" if near else "`muster history` lists what there is; new cells have none"
        )
        raise NotFoundError(f"nothing has been measured of {request.subject or 'the cell'}", remedy)

    def _usual_metrics(self, of: str, subject: str) -> tuple[str, str]:
        """Demand for GPUs first, but for what has none."""
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
                from recommender.forecasts.demand import DemandModel

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
        """As it is now, for the score. A history that cannot be written costs the score, not the forecast."""
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
            from recommender.forecasts.forecast_records import ForecastRows

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
            f"{known:,} hours are known: it goes by {made.basis}, without the models"
            if made.basis != "too short"
            else f"only {known:,} hours are known: the range seen is all that can be told"
        )
    if past.key.stale:
        notes.append(f"whoever measures it ({past.key.source}) has fallen silent: the last value is old")
    if coverage and coverage[0].scored < FEW:
        notes.append(f"fewer than {FEW} of its forecasts have been scored so far")
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
    """End of the last hour that is over. What others measure has its own time: it ends with its last sample, which
    stands for one step."""
    until_ms = now_ms if key.source == CELL else key.last_ms + key.step_ms
    return until_ms // HOUR_MS * HOUR_MS
