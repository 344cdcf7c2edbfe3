"""Spot prices of the next day against what they were: Muster's forecast beside every simple rule.

The protocol: hours are time-weighted means; every six hours in the last 40 % the mean of the next 24 is forecast from
the hours before. Errors are absolute, in percent of what came: their median, and their mean over all origins.
"""

from __future__ import annotations

import msgspec
import numpy as np

from engine.model.errors import SpecError
from engine.traces.progress import counted
from recommender.forecasts.spot_prices import AHEAD, DAY, WEEK, PriceSeries, forecast, hourly

TRAIN = 0.6
EVERY = 6
MIN_HOURS = 10 * DAY


class SpotPriceScore(msgspec.Struct, frozen=True):
    """Of one method, percent."""

    median_ape: float
    mean_ape: float
    n: int
    """Origins."""


def backtest(changes: PriceSeries) -> dict[str, SpotPriceScore]:
    """Scores by method, `muster` first. SpecError where the price is known for too short a time."""
    mean = hourly(changes).mean
    if len(mean) < MIN_HOURS:
        raise SpecError(changes.name, f"covers {len(mean)} hours", f"Give at least {MIN_HOURS}, ten days")
    origins = range(int(len(mean) * TRAIN), len(mean) - AHEAD + 1, EVERY)
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
