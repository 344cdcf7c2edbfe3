"""What earlier forecasts of starts teach the next one: the weights of what is known of a wait, and how far it was off.

All in logarithms of (milliseconds + 1 min). The expected wait is a weighted mean of what the line tells, with an effect
of each queue and each priority class. Weights are those of a ridge regression (Hoerl, Kennard, Technometrics 12, 1970)
that is drawn to EQUAL, and effects are drawn to zero. Those that are known first are the short ones, so work that still
waits counts too: in the regression as the mean of what is beyond its wait so far (Schmee, Hahn, Technometrics 21,
1979), in the quantiles of errors as a lower limit (Kaplan, Meier, JASA 53, 1958).

The interval is that of the residuals of the newest forecasts under the weights of today (Buckley, James, Biometrika 66,
1979). Split conformal prediction (Lei and others, JASA 113, 2018), whose errors are those of forecasts as they were
made, counts a shift of the load twice, in the weights and in the errors: its intervals were too wide where the load
falls. Adaptive conformal inference (Gibbs, Candès, 2021) widened them further there, since what it hears of long waits
is days old.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from engine.model.columns import Mask, Numbers
from engine.model.spec_parts import MINUTE_MS
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
PRIOR = np.linspace(-2.2, 2.2, 10)
"""Logarithms of actual to expected waits, each as one forecast: p90 is six times the median. As on two days of the
demo cell."""
QUANTILES = (0.1, 0.5, 0.9)


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
    errors: tuple[float, float, float]
    """Logarithm of actual to expected waits at QUANTILES."""

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


def fitted(past: Outcomes) -> StartFit:
    """What the outcomes teach."""
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
    residuals = past.waits - sum(parts, equal)
    errors = survived(residuals[-RESIDUALS:], past.seen[-RESIDUALS:])
    return StartFit(weights[:-1], float(weights[-1]), effects[0], effects[1], errors)


def _whole(logs: Parts, seen: Mask, expected: Parts) -> Parts:
    """The logarithms, and for those not `seen` the mean of a normal distribution about `expected` beyond them."""
    off = logs - expected
    spread = max(float(off[seen].std()), MIN_SPREAD) if seen.sum() > MIN_SEEN else FIRST_SPREAD
    open_ = np.flatnonzero(~seen)
    found = logs.copy()
    found[open_] = expected[open_] + spread * np.array([_mean_beyond(z) for z in (off[open_] / spread).tolist()])
    return found


def _mean_beyond(z: float) -> float:
    """Mean of the standard normal distribution beyond z."""
    z = min(max(z, -8.0), 8.0)
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / (math.erfc(z / math.sqrt(2)) / 2)


def survived(logs: Parts, seen: Mask) -> tuple[float, float, float]:
    """Quantiles of logarithms of which those not `seen` are lower limits, with PRIOR beside them."""
    logs, seen = np.concatenate((logs, PRIOR)), np.concatenate((seen, np.ones(len(PRIOR), bool)))
    order = np.lexsort((~seen, logs))
    logs, seen = logs[order], seen[order]
    at_risk = np.arange(len(logs), 0, -1)
    left = np.cumprod(np.where(seen, 1 - 1 / at_risk, 1.0))
    low, middle, high = (
        float(logs[np.argmax(left <= 1 - part + 1e-12)]) if left[-1] <= 1 - part + 1e-12 else float(logs[-1])
        for part in QUANTILES
    )
    return low, middle, high
