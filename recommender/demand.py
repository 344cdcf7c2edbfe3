"""Demand of the hours ahead, as quantiles: a blend of members, each weighted by its own recent errors at each lead.

Every member answers not only for now but as it would have answered at each of the last hours (`demand_members`): what
it was off then, as far as that is known by now, decides how much it counts, and how far off the blend may be.
A pure function of the past it is given; no clock, no chance, nothing kept between calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recommender import demand_members
from recommender.hourly import DAY, filled

Floats = NDArray[np.float64]
Basis = Literal["models", "season", "last values", "too short"]

KEPT = 10 * 168
"""Hours that are looked back at most."""
JUDGED = 14 * DAY
"""Hours whose forecasts decide weights and spread."""
LEAST_POINTS = 6
LEAST_SEASON = 2 * DAY + 12
LEAST_MODELS = 4 * DAY
POWER = 4.0


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
        return self.quantiles[self.permilles.index(permille)]

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
    """Forecasts one hourly series from its past."""

    def forecast(
        self,
        past: Sequence[float] | ArrayLike,
        hours: int = 48,
        *,
        first_hour: int | None = None,
        permilles: Sequence[int] = (100, 500, 900),
    ) -> DemandForecast:
        """`past`: one value an hour, oldest first; what is nan or negative is taken as unknown. `first_hour`: hours from
        1970 to past[0], where known. `hours`: 1 to 168."""
        told = tuple(sorted({100, 500, 900, *permilles}))
        series = np.asarray(past, np.float64)
        series = np.where(np.isfinite(series) & (series >= 0), series, np.nan)
        known = np.flatnonzero(~np.isnan(series))
        series = filled(series[known[0] if len(known) else len(series) :])[-KEPT:]
        if len(known) < LEAST_POINTS:
            return _too_short(series[~np.isnan(series)], hours, told)
        basis, judged = _basis(len(series), hours)
        names, said = demand_members.sweep(
            series, hours, judged, models=basis == "models", season=basis != "last values"
        )
        return _blend(series, names, said, told, basis)


def _basis(known: int, hours: int) -> tuple[Basis, int]:
    """What so long a past allows, and how many of its last hours can be foretold from the ones before."""
    if known >= LEAST_MODELS + DAY:
        return "models", min(JUDGED, (known - LEAST_MODELS) // 2 + DAY)
    if known >= LEAST_SEASON:
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
    errors = np.where(known, np.abs(said[:, :-1] - truth), np.nan)
    mean = _smooth(errors, known)
    floor = 0.02 * mean.mean(axis=0) + 1e-9 * max(float(np.abs(series).mean()), 1e-9)
    weights = (mean + floor) ** -POWER
    weights /= weights.sum(axis=0)
    blended = (said * weights[:, None, :]).sum(axis=0)
    off = np.where(known, truth - blended[:-1], np.nan)
    quantiles = np.empty((len(permilles), hours))
    at = np.array(permilles) / 1000
    for step in range(hours):
        near = off[:, max(step - step // 4, 0) : step + step // 4 + 1]
        near = near[~np.isnan(near)]
        if len(near) < LEAST_POINTS:
            near = off[~np.isnan(off)]
        quantiles[:, step] = blended[-1, step] + np.quantile(near, at)
    middle = permilles.index(500)
    quantiles[middle] = blended[-1]
    quantiles = np.maximum(np.maximum.accumulate(quantiles, axis=0), 0)
    quantiles[:middle] = np.minimum(quantiles[:middle], np.maximum(blended[-1], 0))
    quantiles[middle] = np.maximum(blended[-1], 0)
    quantiles[middle + 1 :] = np.maximum(quantiles[middle + 1 :], quantiles[middle])
    members = tuple(Member(name, w, e) for name, w, e in zip(names, weights, mean, strict=True))
    return DemandForecast(permilles, quantiles, members, basis)


def _smooth(errors: Floats, known: NDArray[np.bool_]) -> Floats:
    """[member, hour ahead]: mean absolute errors, each over the leads near it, so that few errors do not decide."""
    total = np.concatenate([np.zeros((len(errors), 1)), np.cumsum(np.nansum(errors, axis=1), axis=1)], axis=1)
    count = np.concatenate([[0], np.cumsum(known.sum(axis=0))])
    hours = errors.shape[2]
    step = np.arange(hours)
    low, high = np.maximum(step - step // 4, 0), np.minimum(step + step // 4 + 1, hours)
    few = count[high] - count[low] < LEAST_POINTS
    low, high = np.where(few, 0, low), np.where(few, hours, high)
    return np.asarray((total[:, high] - total[:, low]) / np.maximum(count[high] - count[low], 1))
