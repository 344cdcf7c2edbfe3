"""What the blend of `recommender.demand` is made of: forecasts of every member at every recent hour, in one sweep.

An origin is a number of hours known: what is said at it uses those and no more. Fitted members are fitted at a few of
the origins and used until the next.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recommender.hourly import DAY

Floats = NDArray[np.float64]

WEEK = 7 * DAY
FADE = 0.85
"""How much of today's difference from the profile is left after each hour."""
STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 21, 24, 25, 27, 30, 36, 42, 48, 72, 96, 120, 144, 168)
"""Hours ahead for which a regression is fitted; between them it goes on a line."""
FOLDS = 4
"""A regression is fitted anew at so many of the judged origins."""
PENALTY = 10.0
ROUNDS = 4
"""Of reweighting, towards least absolute errors."""


def sweep(series: Floats, hours: int, judged: int, *, models: bool, season: bool) -> tuple[tuple[str, ...], Floats]:
    """Names of members, and [member, origin, hour ahead]: what each says when all but the last `judged` hours are known,
    all but the last but one, and so on; at the last origin, everything."""
    said = simple(series, hours, judged, season=season)
    if models:
        said["regression"] = regression(series, hours, judged)
    return tuple(said), np.maximum(np.stack(list(said.values())), 0)


def simple(series: Floats, hours: int, judged: int, *, season: bool) -> dict[str, Floats]:
    """As in the last hour; and what the same hours of days before say, as far as those are known at all origins."""
    known = len(series) - judged
    origins = np.arange(known, len(series) + 1)
    ahead = np.arange(hours)
    last = series[origins - 1][:, None]
    said = {"last value": np.repeat(last, hours, axis=1)}
    if not season:
        return said
    day = origins[:, None] + ahead - DAY * (ahead // DAY + 1)
    said["same hour, day before"] = series[day]
    days = min(7, known // DAY)
    profile = np.median([series[np.maximum(day - DAY * back, 0)] for back in range(days)], axis=0)
    usual = np.median([series[np.maximum(origins - 1 - DAY * (back + 1), 0)] for back in range(days)], axis=0)
    said["same hour, median of days"] = profile
    said["that, from where it is now"] = profile + (last - usual[:, None]) * FADE ** (ahead + 1.0)
    if known >= WEEK + DAY:
        week = origins[:, None] + ahead - WEEK
        said["same hour, week before"] = series[week]
        said["that week, from where it is now"] = series[week] + (
            last - series[origins - 1 - WEEK][:, None]
        ) * FADE ** (ahead + 1.0)
    return said


def regression(series: Floats, hours: int, judged: int) -> Floats:
    """Square roots of the hours ahead from those of the last hours, and of the same hours of days before: least absolute
    errors (by reweighting), each lead by itself, shrunk towards the last value."""
    root = np.sqrt(series)
    size = len(root)
    known = size - judged
    weekly = known >= 2 * WEEK + 2 * DAY
    first = WEEK + DAY if weekly else 2 * DAY
    steps = [step for step in STEPS if step < hours] + [hours]
    origins = np.arange(first, size + 1)
    cuts = np.linspace(known, size, FOLDS + 1).astype(int)
    means = {span: _trailing(root, span) for span in (6, DAY, WEEK)}
    profile = _profile(root)

    def columns(origin: NDArray[np.int64], step: int) -> tuple[Floats, Floats]:
        """Differences from the last value, and that value, by origin."""
        target = origin + step - 1
        day = target - DAY * ((step - 1) // DAY + 1)
        last = root[origin - 1]
        seen = [*(root[np.maximum(origin - back, 0)] for back in (2, 3, 4, 6)), means[6][origin], means[DAY][origin]]
        seen += [root[day], profile[day], root[origin - 1 - DAY], profile[origin - 1 - DAY]]
        seen += [root[np.maximum(day + at, 0)] for at in (-DAY, -1)] + [root[np.minimum(day + 1, origin - 1)]]
        if weekly:
            week = target - WEEK
            seen += [root[week], root[np.minimum(week + 1, origin - 1)], root[week - 1], root[origin - 1 - WEEK]]
            seen.append(means[WEEK][origin])
        return np.stack([*(column - last for column in seen), np.ones(len(origin))], axis=-1), last

    fitted = []
    for step in steps:
        of = origins[origins + step - 1 < size]
        inputs, last = columns(of, step)
        fitted.append(_least_absolute(inputs, root[of + step - 1] - last, np.searchsorted(of + step - 1, cuts)))
    told = np.arange(known, size + 1)
    fold = np.minimum(np.searchsorted(cuts, told, side="right") - 1, FOLDS)
    said = np.empty((judged + 1, hours))
    for step in range(1, hours + 1):
        right = int(np.searchsorted(steps, step))
        share = 1.0 if steps[right] == step else (step - steps[right - 1]) / (steps[right] - steps[right - 1])
        coefficients = share * fitted[right] + ((1 - share) * fitted[right - 1] if share < 1 else 0)
        inputs, last = columns(told, step)
        said[:, step - 1] = last + (inputs * coefficients[fold]).sum(axis=1)
    return np.asarray(np.clip(said, 0, 1.25 * root.max()) ** 2)


def _least_absolute(inputs: Floats, wanted: Floats, cuts: NDArray[np.int64]) -> Floats:
    """[cut, column]: coefficients from the rows before each cut. How rows are weighted is found from all of them."""
    size = np.sqrt(np.maximum((inputs**2).mean(axis=0), 1e-12))
    ridge = np.diag(PENALTY * size**2)
    weights = np.ones(len(wanted))
    for _ in range(ROUNDS):
        weighted = inputs * weights[:, None]
        best = np.linalg.solve(weighted.T @ inputs + ridge, weighted.T @ wanted)
        off = np.abs(wanted - inputs @ best)
        usual = float(np.median(off)) + 1e-9
        weights = usual / np.maximum(off, 0.5 * usual)
    parts = [slice(low, high) for low, high in zip([0, *cuts[:-1]], cuts, strict=True)]
    weighted = inputs * weights[:, None]
    squares = np.cumsum([weighted[part].T @ inputs[part] for part in parts], axis=0)
    sums = np.cumsum([weighted[part].T @ wanted[part] for part in parts], axis=0)
    return np.asarray(np.linalg.solve(squares + ridge, sums[..., None])[..., 0])


def _trailing(series: Floats, span: int) -> Floats:
    """[origin]: mean of the last `span` of the hours known, or of as many as there are; 0 when none is."""
    sums = np.concatenate([[0.0], np.cumsum(series)])
    origin = np.arange(len(series) + 1)
    low = np.maximum(origin - span, 0)
    return np.asarray((sums[origin] - sums[low]) / np.maximum(origin - low, 1))


def _profile(series: Floats) -> Floats:
    """[hour]: mean of this hour and the same one of up to six days before."""
    total, count = series.copy(), np.ones(len(series))
    for back in range(1, 7):
        total[DAY * back :] += series[: -DAY * back]
        count[DAY * back :] += 1
    return np.asarray(total / count)
