"""Backtests of forecasts and alarms on series, each beside every simple rule.

Demand: 40 origins spread evenly over the last 30 % of an hourly series (40 % where its name ends with `_full`), 24
hours ahead from each; a horizon of H is the mean over hours 1 to H. MASE: mean absolute error, in units of the mean
absolute difference from the day before in the other part. WQL: twice the pinball loss at 0.1, 0.5 and 0.9, in units of
what was demanded. The quantiles of simple rules are their own errors, in hours 1, 2-6 and 7-24, at the earlier origins
whose day is over; so the first eight origins are scored in no quantile, of no method.

Capacity: the capacity of an hour is decided `lead` hours before it, on demand up to then, over the same part of the
series. Each simple rule is given the headroom, a factor, with which exactly 1 % of the unit-hours demanded there are
unmet: it is fitted to what is scored. So is `muster_fitted_headroom`. `muster` gets no such help: its headroom for each
hour comes from errors known when that hour is decided, and it aims at 1 % unmet from the first hour scored on. The
score is the unit-hours provided above demand, in percent of those demanded, beside the percent that were unmet.

Spot prices: hours are time-weighted means; every six hours in the last 40 % the mean of the next 24 is forecast from
the hours before. Errors are absolute, in percent of what came: their median, and their mean over all origins.

Alarms follow the Numenta Anomaly Benchmark where they can: the first 15 % of a series (at most 750 points) is for
getting used to it and not scored; an alarm inside a labelled window is a hit, however early in it. Events count: recall
is the share of windows with an alarm inside, precision that of hit windows among hit windows and false alarms. After an
alarm a method is silent for a cool-down, which is the same for all.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from engine.model.errors import SpecError
from engine.state.demand import Series
from engine.traces.demand_series import FULL, UNMET, over_provisioned
from engine.traces.demand_series import MIN_HOURS as MIN_SCALING_HOURS
from engine.traces.progress import counted
from engine.traces.trace_reader import Problems, TraceFile, csv_rows
from recommender.estimates import capacity_ahead
from recommender.estimates.demand import DemandModel
from recommender.estimates.hourly_series import AHEAD, DAY, WEEK, Floats, Hourly, PriceSeries, filled, forecast, hourly
from recommender.findings.anomalies import DAY_MS, DEFAULTS, WEEK_MS, detect, step_of

TRAIN, TRAIN_FULL = 0.7, 0.6
ORIGINS = 40
UNSCORED = 8
"""First origins, of which no quantile is scored."""
HORIZONS = (1, 6, 24)
MIN_HOURS = 5 * DAY
QUANTILES = np.array([0.1, 0.5, 0.9])
ERRORS_OF = ((0, 1), (1, 6), (6, 24))
"""Hours ahead whose errors are pooled, as slices."""
SMOOTHED = 4 * WEEK
"""Hours that Holt-Winters is fitted to."""


class DemandScore(msgspec.Struct, frozen=True):
    """The score of one method; by horizon in hours, as text. None where the series gives no unit (constant, or all
    zero)."""

    mase: dict[str, float | None]
    wql: dict[str, float | None]
    coverage80: float | None
    """Share of hours from p10 to p90."""


def backtest(series: Hourly) -> dict[str, DemandScore]:
    """Scores by method, `muster` first. SpecError where the series is too short to say anything."""
    values = series.values
    if len(values) < MIN_HOURS:
        raise SpecError(series.name, f"has {len(values)} hours", f"Give at least {MIN_HOURS}, five days")
    train = int(len(values) * (TRAIN_FULL if series.name.endswith("_full") else TRAIN))
    origins = np.unique(np.linspace(train, len(values) - AHEAD, ORIGINS).astype(int))
    truth = np.stack([values[at : at + AHEAD] for at in origins])
    past = values[:train]
    unit = float(np.nanmean(np.abs(past[DAY:] - past[:-DAY])))
    scores = {"muster": score(truth, predictions(series, origins), unit)}
    for name, points in simple_rules(values, origins):
        scores[name] = score(truth, with_own_errors(truth, points, origins), unit)
    return scores


def predictions(series: Hourly, origins: Sequence[int] | np.ndarray) -> Floats:
    """[origin, quantile, hour ahead]: what the model says, given the hours before each origin and nothing else."""
    model = DemandModel()
    each = counted(origins, "origins", len(origins))
    said = [model.forecast(series.values[:at], AHEAD, first_hour=series.first_hour).quantiles for at in each]
    return np.stack(said)


def simple_rules(values: Floats, origins: Sequence[int] | np.ndarray) -> Iterator[tuple[str, Floats]]:
    """Names and points [origin, hour ahead]. Each sees the hours before its origin, holes in them filled. Where there
    are not two weeks yet, the week before is the day before."""
    pasts = [filled(values[:at]) for at in origins]
    for name, cycle in (("seasonal_naive_24", DAY), ("naive", 1), ("seasonal_naive_168", WEEK)):
        yield name, np.stack([_repeated(past, cycle) for past in pasts])
    yield "holt_winters", np.stack([_holt_winters(past[-SMOOTHED:]) for past in pasts])


def _repeated(past: Floats, cycle: int) -> Floats:
    """The last `cycle` hours again; a day where there are not two weeks yet."""
    cycle = DAY if cycle > DAY and len(past) < 2 * cycle else cycle
    return past[np.arange(AHEAD) % cycle - cycle]


def _holt_winters(past: Floats) -> Floats:
    """Level, damped trend and additive season of a day, fitted by least squares of one hour ahead."""
    import warnings

    from statsmodels.tsa.holtwinters import ExponentialSmoothing
    from threadpoolctl import threadpool_limits

    if past.min() == past.max():
        return np.full(AHEAD, past[-1])
    with warnings.catch_warnings(), threadpool_limits(1, "blas"):
        # Where the search does not converge, what it found is still an answer; it is scored like any.
        warnings.simplefilter("ignore")
        model = ExponentialSmoothing(
            past,
            trend="add",
            damped_trend=True,
            seasonal="add",
            seasonal_periods=DAY,
            initialization_method="estimated",
        )
        return np.asarray(model.fit().forecast(AHEAD))


def with_own_errors(truth: Floats, points: Floats, origins: Sequence[int] | np.ndarray) -> Floats:
    """[origin, quantile, hour ahead] of a method that gives points: those plus the quantiles of its errors in hours
    ahead like this one, at origins whose day was over by then. Where there are none, the points."""
    said = np.repeat(points[:, None], len(QUANTILES), axis=1)
    for at, origin in enumerate(origins):
        over = [before for before in range(at) if origins[before] + points.shape[1] <= origin]
        for low, high in ERRORS_OF:
            off = (truth - points)[over, low:high]
            off = off[~np.isnan(off)]
            if len(off):
                said[at, [0, 2], low:high] += np.quantile(off, QUANTILES[[0, 2]])[:, None]
    return said


def score(truth: Floats, said: Floats, unit: float) -> DemandScore:
    """`truth` [origin, hour ahead], nan where nobody knows; `said` [origin, quantile, hour ahead]; `unit` of MASE."""
    off = np.abs(truth - said[:, 1])
    above = truth[UNSCORED:, None] - said[UNSCORED:]
    pinball = 2 * np.maximum(QUANTILES[:, None] * above, (QUANTILES[:, None] - 1) * above).mean(axis=1)
    mase: dict[str, float | None] = {}
    wql: dict[str, float | None] = {}
    for hours in HORIZONS:
        demanded = _sum(truth[UNSCORED:, :hours])
        mase[str(hours)] = _mean(off[:, :hours] / unit) if unit > 0 else None
        wql[str(hours)] = _sum(pinball[:, :hours]) / demanded if demanded > 0 else None
    within = (above[:, 0] >= 0) & (above[:, 2] <= 0)
    return DemandScore(mase, wql, _mean(within[~np.isnan(above[:, 0])]))


def _sum(values: Floats) -> float:
    return float(np.nansum(values))


def _mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    return float(known.mean()) if known.size else None


Rule = Callable[[Series, int], float]


class ScalingScore(msgspec.Struct, frozen=True):
    """The score of one method; None where no headroom leaves as little unmet, or nothing is demanded."""

    over_provision_pct: float | None
    unmet_pct: float | None
    n: int
    """Hours scored."""


def backtest_scaling(series: Hourly, lead: int) -> dict[str, ScalingScore]:
    """Scores by method, `muster` first. `lead`: hours, from 1. SpecError where the series is too short."""
    values = series.values
    first = int(len(values) * (TRAIN_FULL if series.name.endswith(FULL) else TRAIN))
    least = max(MIN_SCALING_HOURS, int(np.ceil((capacity_ahead.LEAST + lead) / TRAIN)))
    if len(values) < least:
        raise SpecError(series.name, f"has {len(values)} hours", f"Give at least {least} for decisions {lead} h ahead")
    hours = range(first, len(values))
    pasts = [filled(values[: hour - lead + 1]) for hour in hours]
    # Hours without a value are not scored.
    scored = np.isfinite(values[first:])
    demand = values[first:][scored]
    said = [capacity_ahead.ahead(past, lead) for past in counted(pasts, "hours", len(pasts))]
    capacity = decided(values, first, lead, said)
    scores = {
        "muster": _score(demand, capacity[scored]),
        "muster_fitted_headroom": _fitted(demand, np.array([each.capacity(UNMET) for each in said])[scored]),
    }
    for name, rule in RULES.items():
        scores[name] = _fitted(demand, np.array([rule(past, lead) for past in pasts])[scored])
    # Fixed at the end of the train part, unlike the others.
    scores["static_peak"] = _fitted(demand, np.full(len(demand), np.nanmax(values[:first])))
    return scores


def decided(values: Series, first: int, lead: int, said: list[capacity_ahead.Ahead]) -> Series:
    """Capacity of every hour from `first` on. `said`: what was foretold of each, `lead` hours before it. Of `values`,
    and of capacity, only what lies `lead` hours back is looked at."""
    capacity = np.zeros(len(values) - first)
    unmet = demanded = 0.0
    for at, each in enumerate(said):
        known = at - lead
        if known >= 0 and np.isfinite(values[first + known]):
            unmet += max(values[first + known] - capacity[known], 0.0)
            demanded += values[first + known]
        end = first + at - lead + 1
        recent = values[max(end - WEEK, 0) : end]
        level = float(np.nanmean(recent)) if np.isfinite(recent).any() else 0.0
        capacity[at] = each.capacity(capacity_ahead.allowed(UNMET, unmet, demanded, level))
    return capacity


def _last(past: Series, lead: int) -> float:
    return float(past[-1])


def _most_of_day(past: Series, lead: int) -> float:
    return float(past[-DAY:].max())


def _last_or_yesterday(past: Series, lead: int) -> float:
    """The most of the last hour known and the same hour on the latest day that is known."""
    back = -(-lead // DAY) * DAY
    return float(max(past[-1], past[lead - 1 - back]))


RULES: dict[str, Rule] = {
    "reactive": _last,
    "reactive_max_24h": _most_of_day,
    "max_last_yesterday": _last_or_yesterday,
}


def _score(demand: Series, capacity: Series) -> ScalingScore:
    total = float(demand.sum())
    if total <= 0:
        return ScalingScore(None, None, len(demand))
    over, unmet = np.maximum(capacity - demand, 0).sum(), np.maximum(demand - capacity, 0).sum()
    return ScalingScore(float(over) / total * 100, float(unmet) / total * 100, len(demand))


def _fitted(demand: Series, capacity: Series) -> ScalingScore:
    """With the one headroom that leaves UNMET of it unmet."""
    over = over_provisioned(demand, capacity) if demand.sum() > 0 else None
    return ScalingScore(over, None if over is None else UNMET * 100, len(demand))


PRICE_TRAIN = 0.6
EVERY = 6
MIN_PRICE_HOURS = 10 * DAY


class SpotPriceScore(msgspec.Struct, frozen=True):
    """The score of one method, in percent."""

    median_ape: float
    mean_ape: float
    n: int
    """Origins."""


def backtest_spot_prices(changes: PriceSeries) -> dict[str, SpotPriceScore]:
    """Scores by method, `muster` first. SpecError where the price is known for too short a time."""
    mean = hourly(changes).mean
    if len(mean) < MIN_PRICE_HOURS:
        raise SpecError(changes.name, f"covers {len(mean)} hours", f"Give at least {MIN_PRICE_HOURS}, ten days")
    origins = range(int(len(mean) * PRICE_TRAIN), len(mean) - AHEAD + 1, EVERY)
    came = np.array([mean[at : at + AHEAD].mean() for at in origins])
    rules = {
        "muster": [forecast(mean[:at]) for at in counted(origins, "origins", len(origins))],
        "last_value": [mean[at - 1] for at in origins],
        "mean_24h": [mean[at - DAY : at].mean() for at in origins],
        "median_7d": [np.median(mean[max(at - WEEK, 0) : at]) for at in origins],
    }
    scores = {}
    for name, said in rules.items():
        off = np.abs(np.array(said) / came - 1) * 100
        scores[name] = SpotPriceScore(float(np.median(off)), float(off.mean()), len(off))
    return scores


PROBATION = 0.15
PROBATION_MOST = 750
"""Points; both from the benchmark."""
MIN_POINTS = 20
SIGMAS = 3.0
STATIC = 0.999
MAX_VALUE = 1e15
TIME_COLUMNS = ("timestamp", "time")

Window = tuple[int, int]


class LabelledSeries(NamedTuple):
    """A series in order of time, one value for each."""

    name: str
    at_ms: list[int]
    values: list[float]
    mended: tuple[str, ...]

    @property
    def scored_from_ms(self) -> int:
        return self.at_ms[min(int(PROBATION * len(self.at_ms)), PROBATION_MOST)]


class AnomalyScore(msgspec.Struct, frozen=True, kw_only=True):
    """The score of one method on one series, or on all."""

    windows: int
    hit: int
    """Windows with an alarm inside."""
    alarms: int
    false: int
    """Alarms outside all windows."""
    weeks: float
    recall: float | None
    """None without windows."""
    precision: float | None
    """None without an alarm."""
    alarms_per_week: float
    false_per_week: float


def read(path: str | Path, problems: Problems) -> LabelledSeries:
    """A CSV with columns `timestamp` (or `time`) and `value`, plain or gzip. Raises TraceError for what is no such
    file, SpecError for too few points; rows that cannot be used go to `problems`."""
    file = TraceFile(path, problems)
    found: dict[int, float] = {}
    unordered = again = 0
    last = -(2**62)
    for row in csv_rows(file, ("value",)):
        column = next((name for name in TIME_COLUMNS if name in row.fields), None)
        if column is None:
            raise file.wrong(1, TIME_COLUMNS[0], "a column timestamp or time", "none")
        at_ms, value = time_of(row.fields[column]), number_of(row.fields["value"])
        if at_ms is None:
            problems.report(row.wrong(column, "a time such as 2026-11-22 02:00:00"))
        elif value is None:
            problems.report(row.wrong("value", f"a number of at most {MAX_VALUE:g}"))
        else:
            unordered += at_ms < last
            again += at_ms in found
            found[at_ms] = value
            last = at_ms
    if len(found) < MIN_POINTS:
        raise SpecError(str(path), f"has {len(found)} points", f"Give a series of at least {MIN_POINTS}")
    times = sorted(found)
    mended = [(unordered, "rows out of order: sorted"), (again, "several rows for one time: the last one counts")]
    name = file.path.name.removesuffix(".gz").removesuffix(".csv")
    return LabelledSeries(name, times, [found[at] for at in times], tuple(f"{n:,} {what}" for n, what in mended if n))


def time_of(text: str) -> int | None:
    """Unix milliseconds of a date with a time (without an offset: UTC)."""
    try:
        time = datetime.fromisoformat(text.strip())
        return round((time.replace(tzinfo=UTC) if time.tzinfo is None else time).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def number_of(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= MAX_VALUE else None


def read_labels(path: str | Path) -> dict[str, list[Window]]:
    """Windows by name of the series: JSON of file name -> [[first time, last time], ...], as the benchmark has it.
    Folders and endings of the names do not count. Raises SpecError."""
    try:
        told = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not JSON"
        raise SpecError(f"--labels {path}", why or "cannot be read", "Give a JSON file of windows") from error
    if not isinstance(told, dict):
        raise SpecError(f"--labels {path}", "is not a JSON object", "Give {file name: [[first, last], ...]}")
    return {
        Path(name).name.removesuffix(".gz").removesuffix(".csv"): [window(each, path, name) for each in windows]
        for name, windows in told.items()
        if isinstance(windows, list)
    }


def window(told: Any, path: str | Path, name: str) -> Window:
    if isinstance(told, list) and len(told) == 2 and all(isinstance(each, str) for each in told):
        first, last = time_of(told[0]), time_of(told[1])
        if first is not None and last is not None and first <= last:
            return first, last
    raise SpecError(f"--labels {path}", f"a window of '{name[:80]}' is not a pair of times", "Give [first, last]")


# -- methods ----------------------------------------------------------------------------------------------------------


def muster(series: LabelledSeries) -> list[int]:
    """Return the alarms of the product's own detector."""
    return [alarm.at_ms for alarm in detect(series.at_ms, series.values)]


def three_sigma_day(series: LabelledSeries) -> list[int]:
    """Further than three standard deviations from the mean of the last day's points."""
    day = max(2, DAY_MS // step_of(series.at_ms))
    recent: deque[float] = deque(maxlen=day)
    found, total, squares = [], 0.0, 0.0
    for at_ms, value in zip(series.at_ms, series.values, strict=True):
        if len(recent) == day:
            mean = total / day
            if abs(value - mean) > SIGMAS * math.sqrt(max(squares / day - mean * mean, 0.0)):
                found.append(at_ms)
            total, squares = total - recent[0], squares - recent[0] ** 2
        recent.append(value)
        total, squares = total + value, squares + value**2
    return merged(found)


def static_p999(series: LabelledSeries) -> list[int]:
    """Above the quantile 0.999 of the points that are not scored."""
    start = series.scored_from_ms
    known = [value for at_ms, value in zip(series.at_ms, series.values, strict=True) if at_ms < start]
    bar = float(np.quantile(known or series.values[:1], STATIC))
    pairs = zip(series.at_ms, series.values, strict=True)
    return merged(at_ms for at_ms, value in pairs if at_ms >= start and value > bar)


METHODS: dict[str, Callable[[LabelledSeries], list[int]]] = {
    "muster": muster,
    "three_sigma_day": three_sigma_day,
    "static_p999": static_p999,
}


def merged(times_ms: Iterable[int]) -> list[int]:
    """Keep at most one alarm in each cool-down. The rules' are not drawn out by what comes within: theirs would never
    end."""
    found: list[int] = []
    until = -(2**62)
    for at_ms in times_ms:
        if at_ms >= until:
            found.append(at_ms)
            until = at_ms + DEFAULTS.cool_down_ms
    return found


# -- scores -----------------------------------------------------------------------------------------------------------


def score_anomalies(series: LabelledSeries, alarms_ms: Sequence[int], windows: Sequence[Window]) -> AnomalyScore:
    """Windows and alarms before the scored part are left out."""
    start = series.scored_from_ms
    alarms = [at_ms for at_ms in alarms_ms if at_ms >= start]
    ahead = [each for each in windows if each[1] >= start]
    hit = sum(any(first <= at_ms <= last for at_ms in alarms) for first, last in ahead)
    false = sum(not any(first <= at_ms <= last for first, last in ahead) for at_ms in alarms)
    return made(len(ahead), hit, len(alarms), false, (series.at_ms[-1] - start) / WEEK_MS)


def pooled(scores: Sequence[AnomalyScore]) -> AnomalyScore:
    return made(
        sum(each.windows for each in scores), sum(each.hit for each in scores), sum(each.alarms for each in scores),
        sum(each.false for each in scores), sum(each.weeks for each in scores),
    )  # fmt: skip


def made(windows: int, hit: int, alarms: int, false: int, weeks: float) -> AnomalyScore:
    told = hit + false
    return AnomalyScore(
        windows=windows, hit=hit, alarms=alarms, false=false, weeks=weeks,
        recall=hit / windows if windows else None,
        precision=hit / told if told else None,
        alarms_per_week=alarms / weeks if weeks else 0.0,
        false_per_week=false / weeks if weeks else 0.0,
    )  # fmt: skip


def backtest_anomalies(
    all_series: Sequence[LabelledSeries], labels: Mapping[str, Sequence[Window]]
) -> tuple[dict[str, dict[str, list[int]]], dict[str, dict[str, AnomalyScore]]]:
    """Return the alarms in the scored part by method and series; and, of the series that `labels` name, how well that
    agrees with their windows."""
    alarms = {
        method: {
            series.name: [at_ms for at_ms in alarm(series) if at_ms >= series.scored_from_ms]
            for series in counted(all_series, f"series by {method}", len(all_series))
        }
        for method, alarm in METHODS.items()
    }
    scores = {
        method: {
            series.name: score_anomalies(series, told[series.name], labels[series.name])
            for series in all_series
            if series.name in labels
        }
        for method, told in alarms.items()
    }
    return alarms, scores
