"""Demand of the hours ahead, as quantiles: a blend of members, each weighted by its own recent errors at each lead.

Every member answers not only for now but as it would have answered at each of the last hours (`demand_members`): what
it was off then, as far as that is known by now, decides how much it counts, and how far off the blend may be.
A pure function of the past it is given; no clock, no chance, nothing kept between calls.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.model.errors import SpecError
from recommender.forecasts import demand_members
from recommender.forecasts.hourly_series import DAY, filled

Floats = NDArray[np.float64]
Basis = Literal["models", "season", "last values", "too short"]

MAX_AHEAD = 168
KEPT = 10 * 168
"""Hours that are looked back at most."""
JUDGED = 14 * DAY
"""Hours whose forecasts decide weights and spread."""
MIN_POINTS = 6
MIN_SEASON = 2 * DAY + 12
MIN_MODELS = 5 * DAY
POWER = 8.0
"""Members count with this inverse power of their error in units of the best one's."""
NEAR = 8
"""Errors `ahead / NEAR` hours to both sides count as errors at that lead."""
STEEPNESS = 3.0
"""Errors are those of log(1 + STEEPNESS x demand / mean): in between absolute ones and relative ones."""
RESTLESS_HOURS = 24.0
"""Half-life of how restless the series is: the mean error one hour ahead, to the power of a half."""
WIDER = 16.0
"""Errors are taken as larger by this over the number of origins: those of the past are a little too small, as weights
and coefficients were chosen on them, and the more so the fewer they are."""


KEPT_HOLIDAYS = ((1, 1), (12, 25))
"""Months and days on which work rests in most places. Others differ by place: the caller names them."""
SUNDAY = 6


@dataclass(frozen=True)
class Member:
    """One member of the blend."""

    name: str
    weights: Floats
    """[hour ahead]; over all members they sum to 1."""
    errors: Floats
    """[hour ahead]: its recent mean absolute error."""


@dataclass(frozen=True)
class DemandForecast:
    """Of the hours after the past it was made from, in the unit of the series; never below 0."""

    permilles: tuple[int, ...]
    quantiles: Floats
    """[permille, hour ahead]: what demand stays below with that chance in a thousand."""
    members: tuple[Member, ...]
    basis: Basis
    """What it rests on: models and seasons, seasons alone, the last values alone; "too short" where there is next to
    nothing, and the range seen is all that is told."""

    def at(self, permille: int) -> Floats:
        """[hour ahead] of one of `permilles`."""
        line: Floats = self.quantiles[self.permilles.index(permille)]
        return line

    @property
    def p10(self) -> Floats:
        return self.at(100)

    @property
    def p50(self) -> Floats:
        return self.at(500)

    @property
    def p90(self) -> Floats:
        return self.at(900)


class DemandModel:
    """Forecasts one hourly series from its past. `holidays`: days (UTC) that will be like Sundays, beside those kept in
    most places; they count only where the hours of the past are known by date."""

    def __init__(self, holidays: Collection[date] = ()) -> None:
        self._holidays = frozenset(holidays)

    def forecast(
        self,
        past: Sequence[float] | ArrayLike,
        hours: int = 48,
        *,
        first_hour: int | None = None,
        permilles: Sequence[int] = (100, 500, 900),
    ) -> DemandForecast:
        """`past`: one value an hour, oldest first; what is nan or negative is taken as unknown. `first_hour`: hours
        from 1970 to past[0], where known. `hours`: 1 to MAX_AHEAD."""
        if not 1 <= hours <= MAX_AHEAD:
            raise SpecError("hours", f"{hours} ahead", f"Give 1 to {MAX_AHEAD}")
        told = tuple(sorted({100, 500, 900, *permilles}))
        series = np.asarray(past, np.float64)
        series = np.where(np.isfinite(series) & (series >= 0), series, np.nan)
        known = np.flatnonzero(~np.isnan(series))
        # No longer than twice what is known of it: what only filled holes proves nothing.
        series = filled(series[known[0] if len(known) else len(series) :])[-min(KEPT, max(2 * len(known), 1)) :]
        if len(known) < MIN_POINTS:
            return _too_short(series[~np.isnan(series)], hours, told)
        from threadpoolctl import threadpool_limits

        basis, judged = _basis(len(series))
        with threadpool_limits(1, "blas"):  # For matrices as small as these, threads would only wait for each other.
            names, said = demand_members.sweep(
                series, hours, judged, models=basis == "models", season=basis != "last values"
            )
        forecast = _blend(series, names, said, told, basis)
        if first_hour is None or basis != "models":
            return forecast
        return self._rested(forecast, series, first_hour + len(np.asarray(past)))

    def _rested(self, forecast: DemandForecast, series: Floats, now_hour: int) -> DemandForecast:
        """On holidays, half way to the same hour of the last Sunday, and the interval as wide as both: how much rests,
        so short a past does not tell."""
        quantiles = forecast.quantiles.copy()
        half = forecast.permilles.index(500)
        for ahead in range(quantiles.shape[1]):
            day = datetime.fromtimestamp((now_hour + ahead) * 3600, UTC).date()
            if (day.month, day.day) not in KEPT_HOLIDAYS and day not in self._holidays:
                continue
            back = (day.weekday() - SUNDAY) % 7 * DAY - ahead
            back = back if back > 0 else back + 7 * DAY
            if day.weekday() == SUNDAY or not 0 < back <= len(series):
                continue
            change = series[-back] - quantiles[half, ahead]
            quantiles[:half, ahead] += min(change, 0)
            quantiles[half, ahead] += change / 2
            quantiles[half + 1 :, ahead] += max(change, 0)
        return replace(forecast, quantiles=np.maximum(quantiles, 0))


def _basis(known: int) -> tuple[Basis, int]:
    """What so long a past allows, and how many of its last hours can be foretold from the ones before."""
    if known >= MIN_MODELS:
        return "models", min(JUDGED, (known - MIN_MODELS) // 2 + DAY)
    if known >= MIN_SEASON:
        return "season", known - DAY - 1
    return "last values", known - 2


def _too_short(seen: Floats, hours: int, permilles: tuple[int, ...]) -> DemandForecast:
    """From a handful of values: the last one, between the least and the most there was."""
    last, least, most = (seen[-1], seen.min(), seen.max()) if len(seen) else (0.0, 0.0, 0.0)
    at = np.array(permilles) / 1000
    line = np.interp(at, [0.1, 0.5, 0.9], [least, last, most])
    return DemandForecast(permilles, np.repeat(line[:, None], hours, axis=1), (), "too short")


def _blend(
    series: Floats, names: tuple[str, ...], said: Floats, permilles: tuple[int, ...], basis: Basis
) -> DemandForecast:
    """`said` is [member, origin, hour ahead]; the last origin is now, the one before knew one hour less."""
    count, hours = said.shape[1] - 1, said.shape[2]
    target = np.arange(len(series) - count, len(series))[:, None] + np.arange(hours)
    known = target < len(series)
    truth = series[np.minimum(target, len(series) - 1)]
    mean = _errors(np.where(known, np.abs(said[:, :-1] - truth), np.nan), known)
    least = 1e-9 * (float(series.mean()) or 1.0)
    weights = ((mean + least) / (mean.min(axis=0) + least)) ** -POWER
    weights /= weights.sum(axis=0)
    blended = _weighted_median(said, weights)
    members = tuple(Member(name, w, e) for name, w, e in zip(names, weights, mean, strict=True))
    return DemandForecast(permilles, _spread(series, blended, truth, known, permilles), members, basis)


def _errors(errors: Floats, known: NDArray[np.bool_]) -> Floats:
    """[member, hour ahead]: mean absolute errors, each over the leads near it, so that few errors do not decide."""
    hours = errors.shape[2]
    total = np.concatenate([np.zeros((len(errors), 1)), np.cumsum(np.nansum(errors, axis=1), axis=1)], axis=1)
    count = np.concatenate([[0], np.cumsum(known.sum(axis=0))])
    step = np.arange(hours)
    low, high = np.maximum(step - step // 4, 0), np.minimum(step + step // 4 + 1, hours)
    few = count[high] - count[low] < MIN_POINTS
    low, high = np.where(few, 0, low), np.where(few, hours, high)
    return np.asarray((total[:, high] - total[:, low]) / np.maximum(count[high] - count[low], 1))


def _weighted_median(said: Floats, weights: Floats) -> Floats:
    """[origin, hour ahead]: what half of the weight of members stays below, on a line between them: one that is far off
    moves it no more than one that is near."""
    order = np.argsort(said, axis=0, kind="stable")
    values = np.take_along_axis(said, order, axis=0)
    shares = np.take_along_axis(np.broadcast_to(weights[:, None], said.shape), order, axis=0)
    below = np.cumsum(shares, axis=0) - shares / 2
    above = np.argmax(below >= 0.5, axis=0)[None]
    # Where no middle of a member lies above the half, the last member is the one.
    above = np.where((below >= 0.5).any(axis=0), above, len(said) - 1)
    under = np.maximum(above - 1, 0)
    at_above, at_under = np.take_along_axis(below, above, axis=0), np.take_along_axis(below, under, axis=0)
    share = np.clip((0.5 - at_under) / np.maximum(at_above - at_under, 1e-12), 0, 1)
    low, high = np.take_along_axis(values, under, axis=0), np.take_along_axis(values, above, axis=0)
    return np.asarray((low + share * (high - low))[0])


def _spread(
    series: Floats, blended: Floats, truth: Floats, known: NDArray[np.bool_], permilles: tuple[int, ...]
) -> Floats:
    """[permille, hour ahead]: the blend, and around it its own recent errors at that lead. Errors are of logarithms, in
    units of how restless the series was when they were made."""
    count, hours = truth.shape
    unit = (float(series.mean()) or 1.0) / STEEPNESS
    middle = np.log1p(blended / unit)
    off = np.where(known, np.log1p(truth / unit) - middle[:-1], 0)
    restless = _restless(np.abs(off[:, 0]))
    off /= restless[:-1, None]
    most = np.log1p(2 * float(series.max()) / unit)
    wider = 1 + WIDER / count
    at = np.array(permilles) / 1000
    quantiles = np.empty((len(permilles), hours))
    for step in range(hours):
        near = slice(max(step - step // NEAR, 0), step + step // NEAR + 1)
        if known[:, near].sum() < MIN_POINTS:
            near = slice(0, hours)
        errors = np.quantile(off[:, near][known[:, near]], at) * restless[-1] * wider
        quantiles[:, step] = np.expm1(np.clip(middle[-1, step] + errors, 0, most)) * unit
    half = permilles.index(500)
    quantiles[half] = blended[-1]
    quantiles[:half] = np.minimum(quantiles[:half], blended[-1])
    quantiles[half + 1 :] = np.maximum(quantiles[half + 1 :], blended[-1])
    return quantiles


def _restless(off: Floats) -> Floats:
    """[origin, and now]: square root of the mean of errors one hour ahead until then, the newest counting most."""
    keep = 0.5 ** (1 / RESTLESS_HOURS)
    usual = float(np.median(off)) or float(off.mean()) or 1.0
    level = float(off[: int(RESTLESS_HOURS)].mean())
    found = np.empty(len(off) + 1)
    for at, error in enumerate(off.tolist()):
        found[at] = level
        level = keep * level + (1 - keep) * error
    found[-1] = level
    # Within bounds, so that a quiet day does not make one certain, nor one jump despair.
    return np.sqrt(np.clip(found + 0.3 * usual, 0.4 * usual, 3 * usual))
