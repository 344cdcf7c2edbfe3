"""Demand forecasts against what happened, on an hourly series: Muster's beside every simple rule.

The protocol: 40 origins spread evenly over the last 30 % of the series (40 % where its name ends with `_full`), 24
hours ahead from each; a horizon of H is the mean over hours 1 to H. MASE: mean absolute error, in units of the mean
absolute difference from the day before in the other part. WQL: twice the pinball loss at 0.1, 0.5 and 0.9, in units of
what was demanded. The quantiles of simple rules are their own errors, in hours 1, 2-6 and 7-24, at the
earlier origins whose day is over; so the first eight origins are scored in no quantile, of no method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from engine.model.errors import SpecError
from engine.traces.progress import counted
from recommender.forecasts.demand import DemandModel
from recommender.forecasts.hourly_series import DAY, Floats, Hourly, filled

TRAIN, TRAIN_FULL = 0.7, 0.6
ORIGINS = 40
UNSCORED = 8
"""First origins, of which no quantile is scored."""
HORIZONS = (1, 6, 24)
AHEAD = 24
WEEK = 7 * DAY
MIN_HOURS = 5 * DAY
QUANTILES = np.array([0.1, 0.5, 0.9])
ERRORS_OF = ((0, 1), (1, 6), (6, 24))
"""Hours ahead whose errors are pooled, as slices."""
SMOOTHED = 4 * WEEK
"""Hours that Holt-Winters is fitted to."""


class DemandScore(msgspec.Struct, frozen=True):
    """Of one method; by horizon in hours, as text. None where the series gives no unit (constant, or all zero)."""

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
