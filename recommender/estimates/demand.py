"""Demand of the hours ahead, as quantiles: a blend of members, each weighted by its own recent errors at each lead.

Every member answers for now, and as it would have answered at each of the last hours, in one sweep. Its errors then, as
far as they are known by now, decide its weight and the width of the blend. An origin is a number of known hours: a
forecast at it uses those and no more, but for the few parameters of the statsmodels members and the weights of rows,
which are fitted once to everything known now. A pure function of the past: no clock, no chance, nothing kept between
calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.model.errors import SpecError
from recommender.estimates.hourly_series import DAY, filled

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
    """Forecast as in the last hour, and as in the same hours of days before, as far as those are known at all
    origins."""
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
NEAR_LEADS = 8
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
    """A forecast of the hours after the past it was made from, in the unit of the series; never below 0."""

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
            names, said = sweep(series, hours, judged, models=basis == "models", season=basis != "last values")
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
    """Return what so long a past allows, and how many of its last hours can be foretold from the ones before."""
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
        near = slice(max(step - step // NEAR_LEADS, 0), step + step // NEAR_LEADS + 1)
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
