"""Capacity ahead of demand: what an hour will ask for, how far off that may be, and the capacity that leaves a given
share of demand unmet.

The middle of the forecast is a blend of guesses: the last hour known, the baseline of `engine.state.demand`,
and ridge regressions on lags, hours of the day and days of the week, of demand and of its square root. Each guess
counts with a power of its recent mean absolute error; the blend is moved towards what followed past hours like the last
one. How far off it may be is scaled by the size of recent errors at that time of day. Everything is a function of the
past that is given, so whoever has the same past says the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.state.demand import DAY, WEEK, SeasonalBaseline, Series, blended

LEAST = WEEK
"""Hours of history below which the baseline speaks."""
WINDOW = 14 * WEEK
"""Hours that are looked back at most."""
REFIT = WEEK
"""Hours between fits of the regressions whose errors are looked at; a fit to all speaks of the future."""
FIRST_FIT = 2 * DAY
"""Hours that a regression is fitted to at least."""
LAGS = 16
"""Hours in a row that a regression sees."""
PENALTIES, ROOT_PENALTIES = (10.0, 100.0, 1000.0, 10000.0), (30.0, 300.0, 3000.0)
"""Ridge penalties of the regressions of demand, and of its square root; features have a variance near 1."""
JUDGED, SHARPNESS = WEEK, 8
"""Half-life in hours of the errors by which guesses are judged, and the power of their mean they count less by."""
ANALOGS, MIN_ANALOGS = 30, 10
"""Past hours like the last known that are looked at, at most; and how many must be known."""
ANALOG_LAGS = (0, 1, 2, 3, 5, 8, 12, 18, 23)
ANALOG_WEIGHTS = np.array([2, 1.5, 1.2, 1, 0.8, 0.7, 0.6, 0.5, 0.7])
"""Hours before by which hours are compared, and how much a difference there counts."""
ANALOG_WEIGHT, ANALOG_SHARPNESS = 0.35, 4
"""Weight of what followed them beside the blend when both are as good, and the power of errors by which it changes."""
POWER = 0.7
"""Errors are averaged as this power of their size: a rare large one says little about the next."""
KEPT_A_DAY = 0.95
"""What remains of the weight of errors at a time of day after a day."""
AROUND = (0.25, 0.5, 1.0, 0.5, 0.25)
"""Weights of the hours around a time of day."""
OVERALL_DAYS = 3.0
"""Days' worth of weight that the mean error at any time of day has beside that of the hour."""
SHAPE, PRESENT, LATE = 1000, 240, 336
"""Half-lives in hours: of the shape of errors, of their present size, and of what was missed outright."""
MAX_OFF = 15.0
"""Errors count at most so many times the size that was usual."""
USUAL_HOURS = 30
"""Hours' worth of errors that the usual shape stands for."""
SPENT_IN, REPAID_IN = 48, 720
"""Hours over which what is left of the demand that may go unmet is spent, and what is overspent is made good."""
MIN_ALLOWED, MAX_ALLOWED = 0.75, 3.0
"""Parts of the target that are allowed at least and at most."""
USUAL_OFF = np.array([-8, -2, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 400], np.float64)
USUAL_SHORT = np.array(
    [8.06, 2.17, 1.29, 0.91, 0.62, 0.42, 0.295, 0.205, 0.14, 0.075, 0.045, 0.022, 0.012, 0.005, 0.002, 0]
)
"""The usual shape: for an offset in usual errors, the mean by which demand is above it. Medians over the first 45 % of
twenty series of clusters and services."""


class Ahead(NamedTuple):
    """What is foretold of one hour."""

    middle: float
    """In the unit of the series, 0 or more."""
    size: float
    """Of errors that are usual at that time of day, in the unit of the series."""
    off: Series
    """Past errors in sizes of their own time, smallest first."""
    share: Series
    """Of each of `off`: cumulative weight, up to 1."""
    unmet: Series
    """Of each of `off`: share of demand that would have been unmet with that many sizes above the middle; falling."""

    def quantile(self, permille: int) -> float:
        """What demand stays below with that chance in a thousand; 0 or more."""
        at = min(int(np.searchsorted(self.share, permille / 1000)), len(self.off) - 1)
        return max(self.middle + float(self.off[at]) * self.size, 0.0)

    def capacity(self, unmet: float) -> float:
        """That leaves this share of demand unmet, in volume and over many hours; 0 or more."""
        return max(self.middle + float(np.interp(-unmet, -self.unmet, self.off)) * self.size, 0.0)


class CapacityForecaster:
    """The recommender's forecast for whoever orders ahead; implements `engine.state.demand.Forecaster`."""

    def __str__(self) -> str:
        return "recommender: regressions on past hours, days and weeks"

    def quantiles(self, past: Series, lead: int, permilles: Sequence[int]) -> list[float]:
        past = np.asarray(past, np.float64)
        if len(past) < LEAST:
            return SeasonalBaseline().quantiles(past, lead, permilles)
        said = ahead(past, lead)
        # Demand that never changes is foretold as it is: whoever rounds up must not meet the noise of arithmetic.
        return [float(f"{said.quantile(permille):.6g}") for permille in permilles]


def ahead(past: Series, lead: int) -> Ahead:
    """Of the hour that is `lead` hours (1 or more) after the last of `past`. `past`: demand hour by hour, oldest first,
    without gaps, at least LEAST hours."""
    past = past[-WINDOW:]
    hours = len(past)
    level = max(float(past.mean()), 1e-9)
    guesses = np.stack([
        _ago(past, lead, lead),
        blended(past, lead),
        *_regressions(past, lead, PENALTIES),
        *np.maximum(_regressions(np.sqrt(past), lead, ROOT_PENALTIES), 0) ** 2,
    ])  # fmt: skip
    guesses[0, :lead] = past[0]
    # Before its first fit a regression says nothing: the baseline stands in. None may run away.
    guesses = np.clip(np.where(np.isnan(guesses), guesses[1], guesses), 0, 2 * past.max())
    judged = _known(_fading(np.abs(guesses[:, :hours] - past), JUDGED), lead)
    weights = (judged / level + 1e-6) ** -SHARPNESS
    middle = _with_analogs(past, (guesses * weights).sum(axis=0) / weights.sum(axis=0), lead)
    errors = past - middle[:hours]
    first = 2 * DAY + lead
    size = _sizes(errors, first, lead)
    size = np.maximum(size, 1e-4 * np.maximum(_known(_fading(past[None], WEEK), lead)[0], 1e-6 * level))
    return _said(past, middle, size, lead)


def allowed(target: float, unmet: float, demanded: float, level: float) -> float:
    """Share of demand that may go unmet in the hours to come, so that `target` is met over all: `unmet` and `demanded`
    are unit-hours so far, `level` is the demand of a usual hour. What was saved is spent within days; what was
    overspent, mostly by one rare event, is made good over weeks: capacity bought right after one seldom meets the
    next."""
    hours_left = (target * demanded - unmet) / max(target * level, 1e-12)
    share = 1 + hours_left / (SPENT_IN if hours_left > 0 else REPAID_IN)
    return target * min(max(share, MIN_ALLOWED), MAX_ALLOWED)


def _said(past: Series, middle: Series, size: Series, lead: int) -> Ahead:
    hours, begin = len(past), 5 * DAY
    off = np.clip((past[begin:] - middle[begin:hours]) / size[begin:hours], -MAX_OFF, MAX_OFF)
    age = np.arange(hours - begin)[::-1]
    weight, late = 0.5 ** (age / SHAPE), 0.5 ** (age / LATE)
    # Two views of what would have been missed: past shapes of errors at their present size, and what was missed.
    present = 0.5 ** (np.arange(hours)[::-1] / PRESENT)
    ratio = float(present @ size[lead:] / max(float(present @ past), 1e-12))
    by_shape = weight * ratio / (weight.sum() + USUAL_HOURS)
    by_volume = late * size[begin:hours] / max(float(late @ past[begin:]), 1e-12)
    volume = (by_shape + by_volume) / 2
    # The usual shape reaches farther than a short past: its offsets are points of the curve too.
    order = np.argsort(off, kind="stable")
    points = np.concatenate([off[order], USUAL_OFF])
    points.sort(kind="stable")
    above = np.cumsum(volume[order][::-1])[::-1]
    beyond = np.cumsum((volume * off)[order][::-1])[::-1]
    at = np.searchsorted(off[order], points, side="left")
    above, beyond = np.append(above, 0)[at], np.append(beyond, 0)[at]
    usual = ratio * USUAL_HOURS / (weight.sum() + USUAL_HOURS) / 2
    unmet = beyond - points * above + usual * np.interp(points, USUAL_OFF, USUAL_SHORT)
    sums = np.cumsum(weight[order])
    share = np.interp(points, off[order], sums / sums[-1], left=0)
    return Ahead(float(middle[-1]), float(size[-1]), points, share, unmet)


def _ago(past: Series, lead: int, hours: int) -> Series:
    """Of every hour of `past` and the `lead` after it: demand so many hours before; nan where that is not known."""
    shifted = np.full(len(past) + lead, np.nan)
    shifted[hours:] = past[: max(len(past) + lead - hours, 0)]
    return shifted


def _regressions(past: Series, lead: int, penalties: Sequence[float]) -> Series:
    """[penalty, hour]: of every hour of `past` and the `lead` after it what regressions say that were fitted to what
    was known `lead` hours before its week began; of the last, those fitted to all. nan before the first fit."""
    hours = len(past)
    rows = hours + lead
    last = _ago(past, lead, lead)
    last[:lead] = past[0]
    back = [lead + step for step in range(1, LAGS)]
    back += [since + step for since in (DAY, 2 * DAY, WEEK, 2 * WEEK) for step in (-1, 0, 1, 2) if since + step >= lead]
    back += [DAY + lead, WEEK + lead]
    # A lag from before the first hour counts as no change.
    lags = np.nan_to_num(np.stack([_ago(past, lead, each) - last for each in back], axis=1))
    lags /= max(float(np.sqrt(np.square(lags).mean())), 1e-9)
    level = (last - past.mean()) / max(float(past.std()), 1e-9)
    # Counted from the last hour known: what the clock shows there is the same for all.
    hour = np.arange(rows) - hours
    week = hour[:, None] * (2 * np.pi / WEEK) * np.arange(1, 4)
    inputs = np.concatenate([
        lags, level[:, None], np.eye(DAY)[hour % DAY], np.eye(7)[hour // DAY % 7], np.sin(week), np.cos(week),
        np.ones((rows, 1)),
    ], axis=1)  # fmt: skip
    said = np.full((len(penalties), rows), np.nan)
    width = inputs.shape[1]
    ridge = np.array(penalties)[:, None, None] * np.diag([1.0] * (width - 1) + [1e-6])
    # The first hours, of which not all lags are known, teach nothing; where there is little else, they do.
    fitted = max(at for at in (2 * WEEK + 2, WEEK + lead, DAY + lead) if at <= max(hours // 3, DAY + lead))
    squares, products = np.zeros((width, width)), np.zeros(width)
    changes = past - last[:hours]
    first = fitted + FIRST_FIT + lead
    starts = sorted({max(hours - back, first) for back in range(0, hours - first, REFIT)} | {hours})
    for start, end in zip(starts, [*starts[1:], rows], strict=True):
        # What is known `lead` hours before `start`; of hours after the last, all.
        until = hours if start == hours else start - lead + 1
        new = inputs[fitted:until]
        squares += new.T @ new
        products += new.T @ changes[fitted:until]
        fitted = until
        factors = np.linalg.solve(squares + ridge, np.broadcast_to(products[:, None], (len(penalties), width, 1)))
        said[:, start:end] = last[start:end] + (inputs[start:end] @ factors[:, :, 0].T).T
    return said


def _with_analogs(past: Series, blend: Series, lead: int) -> Series:
    """The blend, moved towards what followed hours like the last known: the farther, the better that did of late."""
    like = _analogs(past, lead)
    like = np.where(np.isnan(like), blend, like)
    off = _known(_fading(np.abs(np.stack([blend, like])[:, : len(past)] - past), JUDGED), lead)
    off = (off / max(float(past.mean()), 1e-9) + 1e-6) ** ANALOG_SHARPNESS
    moved: Series = blend + 2 * ANALOG_WEIGHT * off[0] / off.sum(axis=0) * (like - blend)
    return moved


def _analogs(past: Series, lead: int) -> Series:
    """Of every hour of `past` and the `lead` after it: the change that followed the hours most like the last known, at
    about the same time of day, seen from it. Hours are alike when the square root of demand was, in the day up to them;
    nearer ones count more. nan where too few are known."""
    roots = np.sqrt(past)
    hours, longest = len(past), ANALOG_LAGS[-1]
    said = np.full(hours + lead, np.nan)
    shapes = np.stack([np.roll(roots, back) for back in ANALOG_LAGS], axis=1) * ANALOG_WEIGHTS
    lengths = np.square(shapes).sum(axis=1)
    floor = 1e-3 * max(float(roots.var()), 1e-12)
    all_hours = np.arange(longest, hours)
    for time in range(DAY):
        origins = all_hours[all_hours % DAY == time]
        # What came of them must be known to somebody: those without a past are only compared with.
        others = all_hours[((all_hours - time + 1) % DAY <= 2) & (all_hours + lead < hours)]
        known = np.searchsorted(others, origins - lead, side="right")
        origins, known = origins[known >= MIN_ANALOGS], known[known >= MIN_ANALOGS]
        if not len(origins):
            continue
        apart = np.maximum(lengths[origins, None] + lengths[others] - 2 * shapes[origins] @ shapes[others].T, 0)
        apart[np.arange(len(others)) >= known[:, None]] = np.inf
        most = min(ANALOGS, len(others))
        nearest = np.argpartition(apart, most - 1, axis=1)[:, :most]
        order = np.argsort(np.take_along_axis(apart, nearest, axis=1), axis=1, kind="stable")
        nearest = np.take_along_axis(nearest, order, axis=1)
        apart = np.take_along_axis(apart, nearest, axis=1)
        count = np.minimum(known // 2, most)
        usual = apart[np.arange(len(origins)), count // 2]
        weight = np.where(np.arange(most) < count[:, None], 1 / (apart + floor + 0.3 * usual[:, None]), 0)
        change = roots[others[nearest] + lead] - roots[others[nearest]]
        moved = roots[origins] + (weight * change).sum(axis=1) / weight.sum(axis=1)
        said[origins + lead] = np.maximum(moved, 0) ** 2
    return said


def _fading(values: Series, half_life: float) -> Series:
    """[series, hour]: mean of each series up to every hour, in which values count half as much every half-life."""
    grown = 2.0 ** (np.arange(values.shape[1]) / half_life)
    mean: Series = np.cumsum(values * grown, axis=1) / np.cumsum(grown)
    return mean


def _known(means: Series, lead: int) -> Series:
    """[series, hour]: of every hour, and the `lead` after the last, the mean that was known `lead` hours before."""
    return np.concatenate([np.repeat(means[:, :1], lead, axis=1), means], axis=1)


def _sizes(errors: Series, first: int, lead: int) -> Series:
    """Of every hour, and the `lead` after the last: the size of errors usual at that time of day, from those known
    `lead` hours before. Errors before hour `first` do not count."""
    hours = len(errors)
    powers = np.abs(errors) ** POWER
    powers[:first] = 0
    counts = (np.arange(hours) >= first).astype(np.float64)
    days = -(-hours // DAY)
    by_day = np.zeros((2, days, DAY))
    by_day.reshape(2, -1)[:, :hours] = powers, counts
    grown = KEPT_A_DAY ** -np.arange(days)[:, None]
    sums = (np.cumsum(by_day * grown, axis=1) / grown).reshape(2, -1)
    # Of all hours of the day: the same with every hour of the last week.
    fading = _fading(np.stack([powers, counts]), WEEK)
    overall = _known(fading[:1] / np.maximum(fading[1:], 1e-12), lead)[0]
    at = np.arange(hours + lead)
    total, weight = OVERALL_DAYS * overall, np.full(hours + lead, OVERALL_DAYS)
    for step, each in enumerate(AROUND):
        time = at + step - len(AROUND) // 2
        latest = time - DAY * -(-(time - (at - lead)) // DAY)
        known = latest >= 0
        total[known] += each / sum(AROUND) * sums[0, latest[known]]
        weight[known] += each / sum(AROUND) * sums[1, latest[known]]
    size: Series = (total / weight) ** (1 / POWER)
    return size
