"""Opinions weighed by how they did of late, and quantiles moved until they cover what they promise."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from recommender.runtime import Window

Floats = NDArray[np.float64]


class Mixture:
    """The mean of several estimates of one quantile, each weighed by its recent pinball loss.

    Weights are exponential in the loss relative to the best (Hedge, Freund and Schapire 1997), losses are forgotten
    at `DECAY` for each run that ends. Losses are of estimates made before the run they are held against had ended.
    """

    DECAY = 0.997

    def __init__(self, opinions: int, quantile: float, sharpness: float) -> None:
        self._losses = np.zeros(opinions)
        self._seen = 0.0
        self._quantile = quantile
        self._sharpness = sharpness

    def weigh(self, opinions: Floats) -> float:
        """Their mean by present weights; all alike before anything was learnt."""
        return float(self.weights() @ opinions)

    def weights(self) -> Floats:
        """They sum to 1."""
        mean = self._losses / max(self._seen, 1.0)
        best = float(mean.min())
        weights: Floats = np.exp(-self._sharpness * (mean - best) / max(best, 0.01))
        return weights / weights.sum()

    def learn(self, opinions: Floats, truth: float) -> None:
        off = truth - opinions
        self._losses = self._losses * self.DECAY + np.maximum(self._quantile * off, (self._quantile - 1) * off)
        self._seen = self._seen * self.DECAY + 1


class Cover:
    """Moves an upper quantile so that the promised share of runs stays below it, as in adaptive conformal inference.

    The quantile is moved by a quantile of its recent errors, whose level rises with each miss and falls with each hit
    (Gibbs and Candès, Adaptive conformal inference under distribution shift, 2021). A slow sum of misses and hits is
    added, which makes up for what the level cannot: the errors known so far are those of the shorter runs. A run that
    has gone past its quantile is a miss from that moment, long before it ends, or the longest would be forgotten.
    """

    WINDOW = 500
    LEAST = 50
    STEP, STEP_MOST = 0.4, 0.02
    """Of the level, for each outcome: STEP over the root of their number, as regret bounds want it."""
    DRIFT = 0.003
    """Of the sum, in the unit of the quantile."""
    LEVELS = (0.5, 0.995)

    def __init__(self, share: float) -> None:
        self._share = share
        self._level = share
        self._sum = 0.0
        self._outcomes = 0
        self._errors = Window(self.WINDOW)

    def shift(self) -> float:
        """What to add to the next one; 0 with fewer than LEAST errors known."""
        n = len(self._errors)
        return self._errors.at_rank(math.ceil(self._level * (n + 1))) + self._sum if n >= self.LEAST else 0.0

    def outcome(self, missed: bool) -> None:
        """Whether a run went past its moved quantile."""
        least, most = self.LEVELS
        surplus = missed - (1 - self._share)
        self._outcomes += 1
        step = min(self.STEP_MOST, self.STEP / math.sqrt(self._outcomes))
        self._level = min(most, max(least, self._level + step * surplus))
        self._sum += self.DRIFT * surplus

    def learn(self, error: float) -> None:
        """The truth of a run that ended, less its quantile before it was moved."""
        self._errors.add(error)
