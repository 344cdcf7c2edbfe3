"""Opinions weighed by how they did of late, and quantiles moved until they cover what they promise."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Mixture:
    """Several estimates of one quantile as one, each weighed by its recent pinball loss, of this user's runs first.

    Weights are exponential in the loss relative to the best (Hedge, Freund and Schapire 1997). Losses are forgotten at
    `DECAY` for each run that ends, a user's own at `OWN_DECAY` for each of theirs; the loss of everybody's runs counts
    as much as `PRIOR` runs of the user. Losses are of estimates made before the run they are held against had ended.
    """

    DECAY, OWN_DECAY = 0.998, 0.995
    PRIOR = 100.0
    SHARPNESS = 8.0
    MIN_LOSS = 0.01
    """A best loss below this counts as this."""
    USERS = 20_000
    """Users kept; who has not been heard of for longest is forgotten first."""

    def __init__(self, opinions: int, quantile: float, *, median: bool = False) -> None:
        """`median`: the answer is one of the opinions, their weighted median, instead of the weighted mean.

        The mean of a rule that says a minute and one that says an hour is a time that nothing takes.
        """
        self._quantile = quantile
        self._median = median
        self._all = np.zeros(opinions + 1)
        """Sum of losses of each, and of ones."""
        self._users: OrderedDict[str, Floats] = OrderedDict()

    def weigh(self, user: str, opinions: Floats) -> float:
        """One for all; all weigh alike before anything was learnt."""
        weights = self.weights(user)
        if not self._median:
            return float(weights @ opinions)
        order = np.argsort(opinions, kind="stable")
        reached = np.cumsum(weights[order])
        return float(opinions[order[np.searchsorted(reached, reached[-1] / 2)]])

    def weights(self, user: str) -> Floats:
        """They sum to 1."""
        loss = self._all[:-1] / max(self._all[-1], 1.0)
        own = self._users.get(user)
        if own is not None:
            loss = (own[:-1] + self.PRIOR * loss) / (own[-1] + self.PRIOR)
        best = float(loss.min())
        weights = np.exp(-self.SHARPNESS * (loss - best) / max(best, self.MIN_LOSS))
        normed: Floats = weights / weights.sum()
        return normed

    def learn(self, user: str, opinions: Floats, truth: float) -> None:
        off = truth - opinions
        losses = np.append(np.maximum(self._quantile * off, (self._quantile - 1) * off), 1.0)
        own = self._users.get(user)
        if own is None:
            if len(self._users) >= self.USERS:
                self._users.popitem(last=False)
            own = np.zeros(len(losses))
        self._users[user] = own * self.OWN_DECAY + losses
        self._users.move_to_end(user)
        self._all = self._all * self.DECAY + losses


class Overshoot:
    """By how much runs exceed what was said of them: a quantile over the latest submissions, whether ended or not.

    Of those that still run it is known that they take longer than they have run. Leaving them out would make runs look
    short whenever work comes in bursts, so they count as censored (Kaplan and Meier, Nonparametric estimation from
    incomplete observations, 1958). Unit: natural logarithms of ms.
    """

    LATEST = 1_000
    LEAST = 50
    """Ended ones below which nothing is said."""
    EVERY = 5
    """Submissions between two looks."""

    def __init__(self, said: int) -> None:
        """`said`: how many statements are judged for each submission."""
        self._said = np.zeros((self.LATEST, said))
        self._started_ms = np.full(self.LATEST, np.inf)
        self._log_run = np.full(self.LATEST, np.nan)
        """NaN while it runs."""
        self._number = 0
        self._shift = np.zeros(said)

    def shift(self, share: float, now_ms: int) -> Floats:
        """What to add to each statement so that this share of runs does not exceed it; 0 while too few are known."""
        if self._number % self.EVERY == 0:
            ended = ~np.isnan(self._log_run)
            known = ended | (self._started_ms < now_ms)
            if ended.sum() >= self.LEAST:
                with np.errstate(divide="ignore", invalid="ignore"):
                    so_far = np.log(np.maximum(now_ms - self._started_ms, 1.0))
                run = np.where(ended, self._log_run, so_far)[known]
                for at, said in enumerate(self._said.T):
                    self._shift[at] = survival_quantile(run - said[known], ended[known], share)
        return self._shift.copy()

    def submitted(self, said: Floats) -> int:
        """A number to tell its start and end by."""
        at = self._number % self.LATEST
        self._said[at], self._started_ms[at], self._log_run[at] = said, np.inf, np.nan
        self._number += 1
        return self._number - 1

    def started(self, number: int, now_ms: int) -> None:
        if self._number - number <= self.LATEST:
            self._started_ms[number % self.LATEST] = now_ms

    def ended(self, number: int, log_run: float) -> None:
        if self._number - number <= self.LATEST:
            self._log_run[number % self.LATEST] = log_run

    def forget(self, number: int) -> None:
        """It will not end by itself: it counts as if it had never been submitted."""
        if self._number - number <= self.LATEST:
            self._started_ms[number % self.LATEST] = np.inf


def survival_quantile(values: Floats, ended: NDArray[np.bool_], share: float) -> float:
    """The least value that at most 1 - share outlive, where those not ended outlive their value; else the greatest."""
    order = np.argsort(values, kind="stable")
    alive = np.arange(len(values), 0, -1)
    outlived = np.cumprod(1 - ended[order] / alive)
    at = int(np.searchsorted(-outlived, share - 1 - 1e-12))
    return float(values[order[min(at, len(order) - 1)]])


class Drift:
    """A slow sum of misses and hits, added to an upper quantile so that in the long run it covers its share.

    Online gradient descent on its pinball loss (Gibbs and Candès, Adaptive conformal inference under distribution
    shift, 2021). A run that has gone past its quantile is a miss from that moment, long before it ends.
    """

    STEP = 0.001
    """Of the sum for each outcome, in the unit of the quantile."""

    def __init__(self, share: float) -> None:
        self._share = share
        self.shift = 0.0

    def outcome(self, missed: bool) -> None:
        self.shift += self.STEP * (missed - (1 - self._share))
