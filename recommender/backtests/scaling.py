"""Capacity ordered ahead of demand against what was demanded, on an hourly series: Muster's beside every simple rule.

The protocol: the capacity of an hour is decided `lead` hours before it, on demand up to then. The last 30 % of the
series are scored (40 % where its name ends with `_full`). Each simple rule is given the headroom, a factor, with which
exactly 1 % of the unit-hours demanded there are unmet: it is fitted to what is scored. So is `muster_fitted_headroom`.
`muster` itself gets no such help: its headroom for each hour comes from errors known when that hour is decided, and it
aims at 1 % unmet from the first hour scored on. What counts is the unit-hours provided above demand, in percent of
those demanded, beside the percent that were unmet.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from engine.model.demand_forecast import DAY, WEEK, Series
from engine.model.errors import SpecError
from engine.traces.demand_series import FULL, MIN_HOURS, UNMET, over_provisioned
from engine.traces.progress import counted
from recommender.forecasts import capacity_ahead
from recommender.forecasts.hourly_series import Hourly, filled

TRAIN, TRAIN_FULL = 0.7, 0.6
Rule = Callable[[Series, int], float]


class ScalingScore(msgspec.Struct, frozen=True):
    """Of one method; None where no headroom leaves as little unmet, or nothing is demanded."""

    over_provision_pct: float | None
    unmet_pct: float | None
    n: int
    """Hours scored."""


def backtest(series: Hourly, lead: int) -> dict[str, ScalingScore]:
    """Scores by method, `muster` first. `lead`: hours, from 1. SpecError where the series is too short."""
    values = series.values
    first = int(len(values) * (TRAIN_FULL if series.name.endswith(FULL) else TRAIN))
    least = max(MIN_HOURS, int(np.ceil((capacity_ahead.LEAST + lead) / TRAIN)))
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
