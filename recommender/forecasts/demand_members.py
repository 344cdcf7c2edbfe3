"""What the blend of `recommender.forecasts.demand` is made of: forecasts of every member at every recent hour, in one
sweep.

An origin is a number of hours known: what is said at it uses those and no more, but for the few parameters of the
statsmodels members and the weights of rows, which are fitted once to everything known now.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recommender.forecasts.hourly_series import DAY

Floats = NDArray[np.float64]
Origins = NDArray[np.int64]

WEEK = 7 * DAY
FADE = 0.85
"""How much of today's difference from the profile is left after each hour."""
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 72, 96, 120, 144, 168)
"""Hours ahead for which a regression is fitted; between them its coefficients go on a line."""
FOLDS = 4
"""A regression is fitted anew at so many of the judged origins."""
PENALTY, FEW_ROWS = 20.0, 2000.0
"""Shrinks a regression as PENALTY x (1 + FEW_ROWS / rows) rows of nothing would."""
ROUNDS = 6
"""Of reweighting, from least squares towards least absolute errors."""
NEAR = 0.05
"""Errors below this part of the median one weigh no more than at it."""
COMPONENTS_KEPT = 2 * WEEK + 2 * DAY
SMOOTHING_KEPT = 6 * WEEK
SEARCH = 6
"""Iterations in which the parameters of a statsmodels member are sought. More gained nothing that was seen."""


@dataclass(frozen=True)
class RegressionMethod:
    """One way to regress."""

    steepness: float
    """Of the logarithm that values are taken by: of 1 + steepness x value / mean. Small is next to linear."""
    to_profile: bool
    """Shrunk towards the usual value of the hour the further ahead, instead of the last value."""
    half_life: float | None
    """Hours after which a row counts half."""


REGRESSIONS = {
    "regression": RegressionMethod(10, to_profile=True, half_life=None),
    "regression, recent": RegressionMethod(10, to_profile=True, half_life=400),
    "regression, linear": RegressionMethod(1, to_profile=False, half_life=None),
}


def sweep(series: Floats, hours: int, judged: int, *, models: bool, season: bool) -> tuple[tuple[str, ...], Floats]:
    """Names of members, and [member, origin, hour ahead]: what each says when all but the last `judged` hours are
    known, all but the last but one, and so on; at the last origin, everything."""
    said = simple(series, hours, judged, season=season)
    if models:
        for name, way in REGRESSIONS.items():
            said[name] = regression(series, hours, judged, way)
        said["components"] = components(series, hours, judged)
        said["smoothing"] = smoothing(series, hours, judged)
    most = 1.5 * series.max()
    return tuple(said), np.clip(np.stack(list(said.values())), 0, most)


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
    said["median of days, from now"] = profile + (last - usual[:, None]) * FADE ** (ahead + 1.0)
    if known >= WEEK + DAY:
        said["same hour, week before"] = series[origins[:, None] + ahead - WEEK]
    return said


def regression(series: Floats, hours: int, judged: int, way: RegressionMethod) -> Floats:
    """The hours ahead from the last hours, from the same hours of days and weeks before, and from means of them: least
    absolute errors (by reweighting), each lead by itself."""
    mean = float(series.mean()) or 1.0
    values = np.log1p(series * (way.steepness / mean))
    size = len(values)
    known = size - judged
    origins = np.arange(0, size + 1)
    told = origins[known:]
    inputs = _Inputs(values, weekly=known >= 2 * WEEK + 2 * DAY, to_profile=way.to_profile)
    steps = [step for step in STEPS if step < hours] + [hours]
    cuts = np.linspace(known, size, FOLDS + 1).astype(int)
    fold = np.minimum(np.searchsorted(cuts, told, side="right") - 1, FOLDS)
    fitted = []
    for step in steps:
        of = origins[inputs.first : max(size - step + 1, 0)]
        columns, base = inputs.at(of, step)
        target = of + step - 1
        age = 0.5 ** ((size - target) / way.half_life) if way.half_life else np.ones(len(of))
        fitted.append(_least_absolute(columns, values[target] - base, age, np.searchsorted(target, cuts)))
    said = np.empty((judged + 1, hours))
    for step in range(1, hours + 1):
        right = int(np.searchsorted(steps, step))
        coefficients = fitted[right]
        if steps[right] != step:
            share = (step - steps[right - 1]) / (steps[right] - steps[right - 1])
            coefficients = share * fitted[right] + (1 - share) * fitted[right - 1]
        columns, base = inputs.at(told, step)
        said[:, step - 1] = base + np.einsum("oc,oc->o", columns, coefficients[fold])
    return np.asarray(np.expm1(np.clip(said, 0, values.max() + 1)) * (mean / way.steepness))


class _Inputs:
    """What a regression sees at an origin of the hour `step` ahead: differences of known values from a base."""

    def __init__(self, values: Floats, *, weekly: bool, to_profile: bool) -> None:
        self.values = values
        self.weekly = weekly
        self.to_profile = to_profile
        self.first = WEEK + DAY if weekly else 2 * DAY
        """First origin at which all of it is known."""
        self.means = {span: _trailing(values, span) for span in (6, DAY, 2 * DAY, WEEK)}
        self.daily = _profile(values, DAY, 7)
        self.weeks = _profile(values, WEEK, 4)
        windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([np.full(DAY, values[0]), values]), DAY)
        self.most, self.least = windows.max(axis=1), windows.min(axis=1)

    def at(self, origin: Origins, step: int) -> tuple[Floats, Floats]:
        """[origin, column] and the base [origin]."""
        values, means = self.values, self.means
        target = origin + step - 1
        day = target - DAY * ((step - 1) // DAY + 1)
        last = values[origin - 1]
        base = last
        if self.to_profile:
            usual = self.daily[day]
            if self.weekly:
                usual = (usual + values[target - WEEK]) / 2
            base = 0.9**step * last + (1 - 0.9**step) * usual
        seen = [last, *(values[np.maximum(origin - back, 0)] for back in (2, 3, 4, 6))]
        seen += [means[6][origin], means[DAY][origin], means[2 * DAY][origin], self.most[origin], self.least[origin]]
        seen += [values[origin - 1 - DAY], self.daily[origin - 1 - DAY], means[6][origin - DAY]]
        seen += [values[day], self.daily[day], means[6][np.minimum(day + 3, origin)]]
        if self.weekly:
            week, then = target - WEEK, origin - 1 - WEEK
            seen += [values[week], self.weeks[week], means[DAY][week]]
            seen += [values[then], self.weeks[then], means[DAY][then + 1], means[WEEK][origin]]
        columns = [column - base for column in seen[0 if self.to_profile else 1 :]]
        return np.stack([*columns, np.ones(len(origin))], axis=-1), base


def _least_absolute(columns: Floats, wanted: Floats, age: Floats, cuts: Origins) -> Floats:
    """[cut, column]: coefficients from the rows before each cut; 0 where there are none."""
    if not len(wanted):
        return np.zeros((len(cuts), columns.shape[1]))
    ridge = np.diag(PENALTY * (1 + FEW_ROWS / len(wanted)) * (age @ columns**2 / age.sum() + 1e-9))
    weights = age
    for _ in range(ROUNDS):
        weighted = columns * weights[:, None]
        best = np.linalg.solve(weighted.T @ columns + ridge, weighted.T @ wanted)
        off = np.abs(wanted - columns @ best)
        usual = float(np.median(off)) + 1e-9
        weights = age * (usual / np.maximum(off, NEAR * usual))
    parts = [slice(low, high) for low, high in zip([0, *cuts[:-1]], cuts, strict=True)]
    weighted = columns * weights[:, None]
    squares = np.cumsum([weighted[part].T @ columns[part] for part in parts], axis=0)
    sums = np.cumsum([weighted[part].T @ wanted[part] for part in parts], axis=0)
    return np.asarray(np.linalg.solve(squares + ridge, sums[..., None])[..., 0])


def components(series: Floats, hours: int, judged: int) -> Floats:
    """A level that wanders, a day of four harmonics that drifts, and what fades of the last hour's (AR 1), of
    square roots: statsmodels' UnobservedComponents, filtered once."""
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    root, unit = _roots(series[-max(COMPONENTS_KEPT, judged + 2 * DAY) :])
    middle = root.mean()
    with warnings.catch_warnings():
        # The search is cut short on purpose; how good what it found is, its errors tell.
        warnings.simplefilter("ignore")
        model = UnobservedComponents(
            root - middle, "llevel", freq_seasonal=[{"period": DAY, "harmonics": 4}], autoregressive=1
        )
        found = model.fit(disp=0, maxiter=SEARCH, method="lbfgs", return_params=True)
        result = model.filter(found, cov_type="none")
    transition = result.model.ssm["transition"]
    look = result.model.ssm["design"].reshape(-1)
    looks = np.empty((hours, len(look)))
    for step in range(hours):
        looks[step] = look
        look = look @ transition
    states = result.predicted_state[:, len(root) - judged : len(root) + 1]
    return np.asarray((np.maximum((looks @ states).T + middle, 0) * unit) ** 2)


def smoothing(series: Floats, hours: int, judged: int) -> Floats:
    """Level, damped trend and additive day, of square roots: statsmodels' exponential smoothing (ETS A,Ad,A)."""
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    root, unit = _roots(series[-max(SMOOTHING_KEPT, judged + 2 * DAY) :])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ETSModel(
            root,
            "add",
            "add",
            damped_trend=True,
            seasonal="add",
            seasonal_periods=DAY,
            initialization_method="heuristic",
        )
        result = model.fit(disp=0, maxiter=SEARCH)
    origins = np.arange(len(root) - judged, len(root) + 1)
    ahead = np.arange(hours)
    fading = np.cumsum(result.damping_trend ** (ahead + 1.0))
    season = np.asarray(result.season)[origins[:, None] + ahead - DAY * (ahead // DAY + 1)]
    level, trend = np.asarray(result.level)[origins - 1], np.asarray(result.slope)[origins - 1]
    return np.asarray((np.maximum(level[:, None] + trend[:, None] * fading + season, 0) * unit) ** 2)


def _roots(series: Floats) -> tuple[Floats, float]:
    """Square roots, in units of what they change by from hour to hour."""
    root = np.sqrt(series)
    unit = float(np.diff(root).std()) or 1.0
    return root / unit, unit


def _trailing(series: Floats, span: int) -> Floats:
    """[origin]: mean of the last `span` of the hours known, or of as many as there are; 0 when none is."""
    sums = np.concatenate([[0.0], np.cumsum(series)])
    origin = np.arange(len(series) + 1)
    low = np.maximum(origin - span, 0)
    return np.asarray((sums[origin] - sums[low]) / np.maximum(origin - low, 1))


def _profile(series: Floats, cycle: int, most: int) -> Floats:
    """[hour]: mean of this hour and the same one of cycles before, `most` in all."""
    total, count = series.copy(), np.ones(len(series))
    for back in range(cycle, min(cycle * most, len(series)), cycle):
        total[back:] += series[:-back]
        count[back:] += 1
    return np.asarray(total / count)
