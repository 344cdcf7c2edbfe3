"""Anomalies: unusual levels in a series as it comes, and unusual counts where little happens.

`Detector` judges every point of a level (utilisation, waits, cost) by what came before it only. The usual value is the
best of several plain forecasts, by their own recent errors. The bar is read from the tail of the errors so far, as in
streaming peaks over threshold (Siffer et al., Anomaly detection in streams with extreme value theory, 2017): bursty
series earn a higher bar than steady ones, and nobody sets a threshold. Alarms within a cool-down are one.

`Counts` holds a count of events against a Poisson rate, and `chance_of_share` a share against a binomial one. Both
rates are themselves uncertain, the more so the shorter the past: their chances come from the negative binomial and the
beta-binomial distribution (the posterior predictive ones under Jeffreys' priors). The past is forgotten by half every
HALF_LIFE_MS.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.model.errors import SpecError

Floats = NDArray[np.float64]

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
WEEK_MS = 7 * DAY_MS


class DetectorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The sensitivity of a detector. The defaults hold for every series: nobody tunes one."""

    weeks: float = 8.0
    """A point alarms when errors like it are seen once in so many weeks, by the tail of the errors so far."""
    spans: tuple[int, ...] = (1, 12)
    """Points whose mean is judged: one for spikes, more for what lasts."""
    cool_down_ms: int = 2 * DAY_MS
    """What is out of the ordinary within this time after a point of an alarm belongs to that alarm."""
    least_points: int = 100
    """Judged points before the first alarm can be raised; and at least `least_ms` of them."""
    least_ms: int = 36 * HOUR_MS
    memory_ms: int = 28 * DAY_MS
    """How far back errors, and values of the same hour, count."""


DEFAULTS = DetectorSettings()
TAIL = 0.95
"""Errors above this quantile of theirs are the tail that a generalised Pareto distribution is fitted to."""
MIN_TAIL = 5
SHAPE_MOST = 0.9
FORGET_MS = 3 * DAY_MS
"""Within such a time the errors of the candidates are forgotten to 1/e."""
RENEWED = 24
"""The level of the last day is renewed so often a day, at most at each point."""
BAR_POINTS = 8
"""Points between renewals of the bar, at the least: it moves slowly, and is the dear part."""


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """Something out of the ordinary, when it was first seen."""

    at_ms: int
    value: float
    """Of the point, or of the mean of the last `points`."""
    expected: float
    bar: float
    """How far off the expected value it may be."""
    points: int
    rows: int
    """Past points that it was judged by."""

    @property
    def above(self) -> bool:
        return self.value > self.expected

    @property
    def severity(self) -> float:
        """The distance from the usual value, in units of the bar; above 1."""
        return abs(self.value - self.expected) / self.bar


class Detector:
    """Watches one series of a level. Points come in order of time; gaps are fine."""

    def __init__(self, step_ms: int, settings: DetectorSettings = DEFAULTS) -> None:
        """`step_ms`: the usual time between points."""
        if step_ms < 1:
            raise SpecError(
                "step_ms", f"{step_ms} is not a time between points", "Give a whole number of milliseconds, 1 or more"
            )
        self._step_ms = step_ms
        self._settings = settings
        self._spans = [SpanDetector(points, step_ms, settings) for points in settings.spans]
        self._last: int | None = None
        self._open_until = -(2**62)
        self.alarms = 0
        """Raised so far."""
        self.open: Alarm | None = None
        """The last that was raised."""
        self.off_ms: int | None = None
        """When a point was last out of the ordinary."""
        self.passed_over = 0
        """Points that were not judged: not numbers, or at or before a time already seen."""

    def push(self, at_ms: int, value: float) -> Alarm | None:
        """The alarm this point raises, if any."""
        at = at_ms // self._step_ms
        if not math.isfinite(value) or (self._last is not None and at <= self._last):
            self.passed_over += 1
            return None
        self._last = at
        worst: Alarm | None = None
        for span in self._spans:
            found = span.push(at, at_ms, value)
            if found is not None and (worst is None or found.severity > worst.severity):
                worst = found
        if worst is None:
            return None
        opened = at_ms >= self._open_until
        self._open_until = at_ms + self._settings.cool_down_ms
        self.off_ms = at_ms
        if not opened:
            return None
        self.open = worst
        self.alarms += 1
        return worst


class SpanDetector:
    """Judges the mean of the last so many points of a series."""

    CANDIDATES = 4

    def __init__(self, points: int, step_ms: int, settings: DetectorSettings) -> None:
        self._points = points
        self._step_ms = step_ms
        self._day = max(1, round(DAY_MS / step_ms))
        self._memory = max(1, settings.memory_ms // step_ms)
        self._renew = max(1, self._day // RENEWED)
        self._least = max(settings.least_points, math.ceil(settings.least_ms / step_ms))
        self._once = step_ms / (settings.weeks * WEEK_MS)
        self._window: deque[float] = deque(maxlen=points)
        self._means = np.full(self._memory + 2 * self._day, np.nan)
        """Ring of means by the number of their step."""
        self._errors = np.full(self._memory, np.nan)
        self._judged = 0
        self._loss, self._weight = np.zeros(self.CANDIDATES), np.zeros(self.CANDIDATES)
        self._forget = math.exp(-step_ms / FORGET_MS)
        self._level = self._bar = math.nan
        self._finest = math.inf
        self._before: float | None = None
        self._seen: int | None = None
        self._count = 0

    def push(self, at: int, at_ms: int, value: float) -> Alarm | None:
        """`at`: number of the step. The alarm of this span, whether or not another one is open."""
        size = len(self._means)
        if self._seen is not None:
            gap = at - self._seen - 1
            if gap >= size:
                self._means[:] = np.nan
            elif gap > 0:
                self._means[np.arange(self._seen + 1, at) % size] = np.nan
            if gap > self._points:
                self._window.clear()
        self._window.append(value)
        mean = math.fsum(self._window) / len(self._window)
        opinions = self._opinions(at)
        self._means[at % size] = mean
        self._seen = at
        self._count += 1
        found, off = self._judge(opinions, mean, at_ms)
        if self._before is not None and value != self._before:
            self._finest = min(self._finest, abs(value - self._before))
        self._before = value
        if off is not None:
            # What alarms is not learnt as usual, beyond what is usual already; but a constant series may move once.
            moved = self._finest if math.isfinite(self._finest) else 0.0
            self._errors[self._judged % self._memory] = (
                off if math.isnan(self._bar) else min(off, max(self._bar, moved))
            )
            self._judged += 1
        return found

    def _opinions(self, at: int) -> Floats:
        """Return what each candidate expects: the usual value of this time of day, of this time of the week, the level
        of the last day, and the last value that shares no point with this one."""
        means, size = self._means, len(self._means)
        if self._count % self._renew == 0 or math.isnan(self._level):
            recent = means[np.arange(at - self._points - self._day, at - self._points + 1) % size]
            known = recent[~np.isnan(recent)]
            self._level = float(np.median(known)) if len(known) else math.nan
        daily = middle([means[(at - self._day * days) % size] for days in range(1, 8)], 2)
        weeks = range(7, 1 + self._memory // self._day, 7)
        weekly = middle([means[(at - self._day * days) % size] for days in weeks], 1)
        return np.array([daily, self._level, weekly, means[(at - self._points) % size]])

    def _judge(self, opinions: Floats, mean: float, at_ms: int) -> tuple[Alarm | None, float | None]:
        """The alarm, and how far off the point is; None where nothing is expected yet."""
        known = ~np.isnan(opinions)
        usable = known & (self._weight > self._day / 4)
        found, off, loss = None, None, np.where(usable, self._loss / np.maximum(self._weight, 1e-9), np.inf)
        if usable.any():
            expected = float(opinions[int(np.argmin(loss))])
            off = abs(mean - expected)
            if self._judged >= self._least and (
                self._judged % max(self._renew, BAR_POINTS) == 0 or math.isnan(self._bar)
            ):
                self._bar = max(self._far(), 1e-9 * abs(expected), 1e-12)
            if off > self._bar:
                found = Alarm(
                    at_ms=at_ms, value=mean, expected=expected, bar=self._bar, points=self._points,
                    rows=min(self._judged, self._memory),
                )  # fmt: skip
        self._loss = self._loss * self._forget + np.where(known, np.abs(opinions - mean), 0.0)
        self._weight = self._weight * self._forget + known
        return found, off

    def _far(self) -> float:
        """The error that is passed once in the weeks that were set, and never less than the finest change seen: a
        constant series has no tail."""
        least = self._finest if math.isfinite(self._finest) else 0.0
        return max(far(self._errors[: min(self._judged, self._memory)], self._once), least)


def middle(values: Sequence[float], least: int) -> float:
    """The median of those known; NaN with fewer than `least`."""
    known = sorted(value for value in values if value == value)
    if len(known) < least:
        return math.nan
    half = len(known) // 2
    return float(known[half] if len(known) % 2 else (known[half - 1] + known[half]) / 2)


def far(errors: Floats, once: float) -> float:
    """The error that is passed with the chance `once`: the tail of `errors` is taken as generalised Pareto.

    The tail's shape and scale come from its probability-weighted moments (Hosking and Wallis 1987); the shape is kept
    between exponential (0) and very heavy (SHAPE_MOST). With too few in the tail: half as much again as the largest.
    """
    start = float(np.quantile(errors, TAIL))
    tail = np.sort(errors[errors > start] - start)
    count = len(tail)
    if count < MIN_TAIL:
        return float(errors.max()) * 1.5
    first = float(tail.mean())
    second = float(tail @ np.arange(count - 1, -1, -1)) / (count * (count - 1))
    shape = min(max(2 - first / max(first - 2 * second, 1e-12 * first), 0.0), SHAPE_MOST)
    scale = first * (1 - shape)
    share = once * len(errors) / count
    return start + (scale / shape * (share**-shape - 1) if shape > 1e-3 else -scale * math.log(share))


def detect(at_ms: Sequence[int], values: Sequence[float], settings: DetectorSettings = DEFAULTS) -> list[Alarm]:
    """Every alarm of a series, each raised by what had come until then."""
    if not len(at_ms):
        return []
    detector = Detector(step_of(at_ms), settings)
    found = (detector.push(int(at), float(value)) for at, value in zip(at_ms, values, strict=True))
    return [alarm for alarm in found if alarm is not None]


def step_of(at_ms: Sequence[int]) -> int:
    """The usual time between points, by the first of them; an hour where it cannot be told."""
    steps = sorted(step for step in map(int, np.diff(np.asarray(at_ms[:100], dtype=np.int64))) if step > 0)
    return steps[len(steps) // 2] if steps else HOUR_MS


HALF_LIFE_MS = 14 * DAY_MS
MIN_MS = 36 * 3_600_000
"""Past without which a count is not judged."""
MIN_TRIED = 5
"""Recent attempts, and past ones, without which a share is not judged."""
CHANCE = 1e-4
"""What is less likely than this by the usual rate is out of the ordinary: a day's count of a thousand series, each
judged once a day, would alarm falsely once in ten days."""
MAX_COUNTED = 1_000
"""Larger counts are judged as this one: their chance is smaller still."""


class RareEvent(msgspec.Struct, frozen=True, kw_only=True):
    """More than usual in the last window."""

    at_ms: int
    count: float
    """Events in the window."""
    usual: float
    """Expected there, by the past before the window."""
    chance: float
    """Of so many or more, if all were as usual."""
    past_ms: int
    """How much past that rests on."""


class Counts:
    """Watches the count of a rare event. Points come in order of time; what is missing counted nothing."""

    def __init__(self, window_ms: int = DAY_MS, chance: float = CHANCE) -> None:
        self._window_ms = window_ms
        self._chance = chance
        self._recent: deque[tuple[int, float]] = deque()
        self._sum = 0.0
        self._before = 0.0
        """Events before the window, those long past in part."""
        self._exposure_ms = 0.0
        self._first_ms: int | None = None
        self._until_ms = 0
        """Where the window began when it was last looked at."""

    def push(self, at_ms: int, count: float) -> RareEvent | None:
        """`count` events since the point before. What is found, if anything; nothing for a count that is none."""
        if not (math.isfinite(count) and count >= 0) or (self._recent and at_ms <= self._recent[-1][0]):
            return None
        if self._first_ms is None:
            self._first_ms = self._until_ms = at_ms
        start = at_ms - self._window_ms
        while self._recent and self._recent[0][0] <= start:
            then, events = self._recent.popleft()
            self._move(then)
            self._before += events
            self._sum -= events
        self._move(start)
        self._recent.append((at_ms, count))
        self._sum += count
        past_ms = self._until_ms - self._first_ms
        if past_ms < MIN_MS or count == 0:
            return None
        usual = (self._before + 0.5) * self._window_ms / self._exposure_ms
        chance = chance_of_count(self._sum, self._before, self._exposure_ms / self._window_ms)
        if chance >= self._chance:
            return None
        return RareEvent(at_ms=at_ms, count=self._sum, usual=usual, chance=chance, past_ms=past_ms)

    def _move(self, to_ms: int) -> None:
        """Let the past reach up to `to_ms`."""
        passed = to_ms - self._until_ms
        if passed > 0:
            kept = 0.5 ** (passed / HALF_LIFE_MS)
            # The integral of what is left of each moment that has passed.
            self._exposure_ms = self._exposure_ms * kept + HALF_LIFE_MS / math.log(2) * (1 - kept)
            self._before *= kept
            self._until_ms = to_ms


def chance_of_count(count: float, before: float, exposure: float) -> float:
    """Return the chance of `count` events or more in one window, after `before` events in `exposure` windows: negative
    binomial with Jeffreys' prior Gamma(1/2, 0) on the rate."""
    most = min(math.ceil(count - 1e-9), MAX_COUNTED)
    shape, miss = before + 0.5, math.log(exposure / (exposure + 1))
    hit = -math.log(exposure + 1)
    below = 0.0
    for k in range(most):
        log_chance = math.lgamma(k + shape) - math.lgamma(shape) - math.lgamma(k + 1) + shape * miss + k * hit
        below += math.exp(log_chance)
    return max(0.0, 1.0 - below)


def chance_of_share(failed: int, tried: int, failed_before: int, tried_before: int) -> float:
    """Return the chance of `failed` or more of `tried`, after `failed_before` of `tried_before`: beta-binomial with
    Jeffreys' prior Beta(1/2, 1/2) on the share. 1 with fewer than MIN_TRIED of either: nothing is told by so few."""
    if min(tried, tried_before) < MIN_TRIED:
        return 1.0
    if tried > MAX_COUNTED:
        failed, tried = failed * MAX_COUNTED // tried, MAX_COUNTED
    a, b = failed_before + 0.5, tried_before - failed_before + 0.5
    whole = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) - math.lgamma(a + b + tried)
    chance = 0.0
    for k in range(failed, tried + 1):
        ways = math.lgamma(tried + 1) - math.lgamma(k + 1) - math.lgamma(tried - k + 1)
        chance += math.exp(ways + math.lgamma(a + k) + math.lgamma(b + tried - k) + whole)
    return min(1.0, chance)
