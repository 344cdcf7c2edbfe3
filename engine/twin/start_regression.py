"""What earlier forecasts of starts teach the next one: the weights of what is known of a wait, and how far it was off.

All in logarithms of (milliseconds + 1 min). The expected wait is a weighted mean of what the line tells, with an effect
of each queue and each priority class. Weights are those of a ridge regression (Hoerl, Kennard, Technometrics 12, 1970)
that is drawn to EQUAL, and effects are drawn to zero. Those that are known first are the short ones, so work that still
waits counts too: in the regression as the mean of what is beyond its wait so far (Schmee, Hahn, Technometrics 21,
1979), in the quantiles of errors as a lower limit (Kaplan, Meier, JASA 53, 1958).

The interval is a weighted conformal one (Tibshirani and others, NeurIPS 2019) of the residuals of the newest forecasts
under the weights of today (Buckley, James, Biometrika 66, 1979). Those of its own kind of wait count whole, all others
together as POOLED, and the one asked for counts as one more workload: forecasts of one workload are wrong together.
Split conformal prediction (Lei and others, JASA 113, 2018), whose errors are those of forecasts as they were made,
counts a shift of the load twice, in the weights and in the errors.

Where a backlog grows or drains, the next is wrong like the last. So the quantiles that are told as p10 and p90 are
corrected by adaptive conformal inference (Gibbs, Candès, NeurIPS 2021), within bounds, since what it hears of long
waits is days old.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from engine.model.columns import Mask, Numbers
from engine.model.spec_parts import MINUTE_MS
from engine.model.twin_queries import FORECAST_KINDS, ForecastKind
from engine.state.run_times import Parts

EQUAL = np.array((0.25, 0.25, 0.25, 0.25, 0.0, 0.0))
"""Weights of `LineWaits` without a record: the geometric mean of the three lines and of the wait so far, since what has
waited long waits long."""
RIDGE, LEVEL, OWN = 100.0, 1.0, 10.0
"""Forecasts that count as much as what they are drawn to: for the weights, the level, a queue or priority class."""
RESIDUALS = 500
"""Residuals of the newest forecasts that count: what was harder to foresee, or easier, is soon over."""
ROUNDS = 8
"""Weights and effects are found in turns."""
MIN_SPREAD, FIRST_SPREAD = 0.3, 1.5
MIN_SEEN = 5
NORMAL = np.linspace(-8, 8, 1601)
MEAN_BEYOND = np.exp(-(NORMAL**2) / 2) / np.sqrt(2 * np.pi) / [math.erfc(z / math.sqrt(2)) / 2 for z in NORMAL]
"""Mean of the standard normal distribution beyond each of these."""
PRIOR = np.linspace(-2.2, 2.2, 10)
"""Logarithms of actual to expected waits, each as one forecast of a workload: p90 of them is six times the median, as
on two days of the demo cell."""
MIDDLE = 0.5
POOLED = 50.0
"""Forecasts as which those of all kinds of wait count beside those of its own."""
STEP = 0.005
"""Of adaptive conformal inference, as in its paper."""


class Aim(NamedTuple):
    """A share of starts that are to come by the time that is told."""

    share: float
    least: float
    most: float
    """Bounds of the quantile that is told."""

    def after(self, held: Iterable[bool]) -> float:
        """The quantile to be told, by whether the earlier ones had started by what was told, the oldest first."""
        told = self.share
        for one in held:
            told = min(max(told + STEP * (self.share - one), self.least), self.most)
        return told


P10, P90 = Aim(0.1, 0.0, 0.2), Aim(0.9, 0.8, 0.95)


class LineWaits(NamedTuple):
    """What is known of a wait, each as milliseconds."""

    nobody: int
    """By the line for room and quota, if nobody else goes first."""
    own_queue: int
    all: int
    waited: int
    """So far; the mean of the three before it for what is not in line yet."""
    alike: int
    """What is left of the wait of the last that started of its queue and class, else of its queue."""
    ahead: int
    """A minute for each workload ahead in its queue."""

    @property
    def logs(self) -> Parts:
        return np.log(np.array(self, np.float64) + MINUTE_MS)


def wait_of(log: float) -> int:
    """The wait of a logarithm, milliseconds."""
    return max(round(math.exp(log)) - MINUTE_MS, 0)


class StartFit(NamedTuple):
    weights: Parts
    """Of LineWaits, beyond EQUAL."""
    level: float
    of_queue: Parts
    of_priority: Parts
    """By row; of rows that were not there, none."""
    errors: dict[ForecastKind, tuple[float, float, float]]
    """Logarithm of actual to expected waits that is told as p10, p50 and p90."""

    def log_wait(self, waits: LineWaits, queue: int, priority: int) -> float:
        """The expected wait."""
        logs = waits.logs
        equal = float(logs @ EQUAL)
        effects = _effect(self.of_queue, queue) + _effect(self.of_priority, priority)
        return equal + float((logs - equal) @ self.weights) + self.level + effects


def _effect(effects: Parts, row: int) -> float:
    return float(effects[row]) if row < len(effects) else 0.0


class Outcomes(NamedTuple):
    """Earlier forecasts, one in each row, the newest last."""

    logs: Parts
    """[rows, LineWaits]"""
    queue: Numbers
    priority: Numbers
    waits: Parts
    """Logarithm of the wait, or of as much of it as is over."""
    seen: Mask
    """True where it is over."""
    kind: Numbers
    """Of wait, in FORECAST_KINDS."""
    workload: Numbers
    """The same for forecasts of the same wait, from 0."""


def fitted(past: Outcomes, low: float = P10.share, high: float = P90.share) -> StartFit:
    """What the outcomes teach. `low`, `high`: the quantiles that are told as p10 and p90."""
    equal = past.logs @ EQUAL
    beyond_equal = past.waits - equal
    given = np.column_stack((past.logs - equal[:, None], np.ones(len(equal))))
    solved = np.linalg.inv(given.T @ given + np.diag([RIDGE] * len(EQUAL) + [LEVEL])) @ given.T
    rows = (past.queue, past.priority)
    effects = [np.zeros(int(each.max(initial=-1)) + 1) for each in rows]
    weights = np.zeros(len(EQUAL) + 1)
    for _ in range(ROUNDS):
        parts = [given @ weights, *(effect[each] for effect, each in zip(effects, rows, strict=True))]
        whole = _whole(beyond_equal, past.seen, sum(parts, np.zeros(len(equal))))
        weights = solved @ (whole - parts[1] - parts[2])
        parts[0] = given @ weights
        for number, (effect, each) in enumerate(zip(effects, rows, strict=True), 1):
            rest = whole - parts[0] - parts[3 - number]
            effect[:] = np.bincount(each, rest, len(effect)) / (np.bincount(each, minlength=len(effect)) + OWN)
            parts[number] = effect[each]
    residuals, newest = past.waits - sum(parts, equal), slice(-RESIDUALS, None)
    errors = {
        kind: _errors(
            residuals[newest], past.seen[newest], past.kind[newest] == number, past.workload[newest], (low, high)
        )
        for number, kind in enumerate(FORECAST_KINDS)
    }
    return StartFit(weights[:-1], float(weights[-1]), effects[0], effects[1], errors)


def _whole(logs: Parts, seen: Mask, expected: Parts) -> Parts:
    """The logarithms, and for those not `seen` the mean of a normal distribution about `expected` beyond them."""
    off = logs - expected
    spread = max(float(off[seen].std()), MIN_SPREAD) if seen.sum() > MIN_SEEN else FIRST_SPREAD
    open_ = np.flatnonzero(~seen)
    found = logs.copy()
    found[open_] = expected[open_] + spread * np.interp(off[open_] / spread, NORMAL, MEAN_BEYOND)
    return found


def _errors(
    residuals: Parts, seen: Mask, alike: Mask, workload: Numbers, outer: tuple[float, float]
) -> tuple[float, float, float]:
    """What is told as p10, p50 and p90 of one kind of wait. `alike`: those of this kind; `outer`: quantiles."""
    weights = np.where(alike, 1.0, min(POOLED / max(len(alike), 1), 1.0))
    workloads = np.zeros(int(workload.max(initial=-1)) + 1)
    np.maximum.at(workloads, workload, weights)
    one, (low, high) = 1 / (float(workloads.sum()) + len(PRIOR)), outer
    first, middle, last = survived(residuals, seen, weights, (low - (1 - low) * one, MIDDLE, high + high * one))
    return first, middle, last


def survived(logs: Parts, seen: Mask, weights: Parts, parts: Iterable[float]) -> list[float]:
    """Weighted quantiles of logarithms of which those not `seen` are lower limits, with PRIOR beside them; the first
    or last where a part is not within them."""
    logs, seen = np.concatenate((logs, PRIOR)), np.concatenate((seen, np.ones(len(PRIOR), bool)))
    weights = np.concatenate((weights, np.ones(len(PRIOR))))
    order = np.lexsort((~seen, logs))
    logs, seen, weights = logs[order], seen[order], weights[order]
    at_risk = np.cumsum(weights[::-1])[::-1]
    left = np.cumprod(np.where(seen, 1 - weights / at_risk, 1.0))
    places = (np.flatnonzero(left <= 1 - part + 1e-9) for part in parts)
    return [float(logs[place[0]] if len(place) else logs[-1]) for place in places]
