"""How much will be asked for: the interface of forecasters of demand, and the one that is built in.

A series is demand hour by hour, oldest first, without gaps. A forecaster gets the past alone and answers for one hour
ahead of it, so it cannot look at what it foretells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

Series = np.ndarray[Any, np.dtype[np.float64]]
DAY, WEEK = 24, 168
"""Hours after which demand is likely to look alike."""
KEPT = 6 * WEEK
"""Hours that are looked back at most."""
JUDGED = WEEK
"""Hours over which the errors of a guess decide how much it counts."""
RESIDUALS = 4 * WEEK
"""Hours whose errors tell how far off the blend may be."""
MIN_JUDGED = 12
"""Errors that must be known of a guess before it counts."""


class Forecaster(Protocol):
    """What the autoscaler goes by when it orders ahead."""

    def quantiles(self, past: Series, lead: int, permilles: Sequence[int]) -> list[float]:
        """Demand in the hour that is `lead` hours (1 or more) after the last of `past`: for each of `permilles` what it
        stays below with that chance in a thousand. In the unit of the series, never below 0; 0 if nothing is known."""
        ...


class SeasonalBaseline:
    """A blend of five simple guesses: as in the last hour known; as at the same hour yesterday, and a week ago; and the
    last hour changed by as much as it changed then, yesterday and a week ago. Each counts with the inverse square of
    its mean absolute error of the week before, as known when the guess is made. The quantile is that of the blend's own
    errors at this lead in the last four weeks. What it has seen for less than two days it does not foretell: it answers
    with the most that was asked for in the last 24 hours.
    """

    def __str__(self) -> str:
        return "built-in: last hours, yesterday and a week ago"

    def quantiles(self, past: Series, lead: int, permilles: Sequence[int]) -> list[float]:
        past = np.asarray(past, np.float64)[-KEPT:]
        if len(past) < 2 * DAY + lead:
            return [float(past[-DAY:].max(initial=0))] * len(permilles)
        blend = blended(past, lead)
        known = blend[:-lead]
        errors = (past - known)[lead + MIN_JUDGED :][-RESIDUALS:]
        off = np.quantile(errors, np.array(permilles) / 1000)
        return [max(float(blend[-1] + error), 0.0) for error in off]


def blended(past: Series, lead: int) -> Series:
    """Of every hour of `past`, and the `lead` hours after it, what the baseline's blend of guesses says of it from what
    was known `lead` hours before."""
    hours = len(past) + lead
    guesses = _guesses(past, lead)
    errors = np.abs(guesses[:, : len(past)] - past)
    known = ~np.isnan(errors)
    total = np.cumsum(np.where(known, errors, 0), axis=1)
    count = np.cumsum(known, axis=1)
    # For hour t errors are known up to hour t - lead, which is entry t - lead of the sums.
    since = np.arange(hours) - lead
    before = since - JUDGED

    def within(sums: Series) -> Series:
        window = np.where(since >= 0, sums[:, np.maximum(since, 0)], 0)
        return np.asarray(window - np.where(before >= 0, sums[:, np.maximum(before, 0)], 0))

    judged = within(count)
    # The smallest error that counts: a guess that was never off would else outweigh the others without bound.
    floor = 1e-6 * max(float(np.abs(past).mean()), 1e-9)
    weights = (within(total) / np.maximum(judged, 1) + floor) ** -2
    weights[(judged < MIN_JUDGED) | np.isnan(guesses)] = 0
    sums = weights.sum(axis=0)
    blended = (np.nan_to_num(guesses) * weights).sum(axis=0) / np.where(sums > 0, sums, 1)
    # Before any guess has proved itself: as in the last hour known, or the first.
    found: Series = np.where(sums > 0, blended, np.where(np.isnan(guesses[0]), past[0], guesses[0]))
    return found


def _guesses(past: Series, lead: int) -> Series:
    """[guess, hour]: what each says of every hour of `past` and the `lead` after it; nan where it says nothing."""

    def ago(hours: int) -> Series:
        shifted = np.full(len(past) + lead, np.nan)
        shifted[hours:] = past[: max(len(past) + lead - hours, 0)]
        return shifted

    day, week = -(-lead // DAY) * DAY, -(-lead // WEEK) * WEEK
    last = ago(lead)
    return np.stack([
        last, ago(day), ago(week), last + ago(day) - ago(lead + day), last + ago(week) - ago(lead + week)
    ])  # fmt: skip
