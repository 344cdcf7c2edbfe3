"""Whether more happened than usual, where little happens: counts of events, and shares of what failed.

A count is held against a Poisson rate, a share against a binomial one, and both rates are themselves uncertain, the
more so the shorter the past: their chances come from the negative binomial and the beta-binomial distribution (the
posterior predictive ones under Jeffreys' priors). The past is forgotten by half every HALF_LIFE_MS.
"""

from __future__ import annotations

import math
from collections import deque

import msgspec

DAY_MS = 86_400_000
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
    """Of `count` events or more in one window, after `before` events in `exposure` windows: negative binomial with
    Jeffreys' prior Gamma(1/2, 0) on the rate."""
    most = min(math.ceil(count - 1e-9), MAX_COUNTED)
    shape, miss = before + 0.5, math.log(exposure / (exposure + 1))
    hit = -math.log(exposure + 1)
    below = 0.0
    for k in range(most):
        log_chance = math.lgamma(k + shape) - math.lgamma(shape) - math.lgamma(k + 1) + shape * miss + k * hit
        below += math.exp(log_chance)
    return max(0.0, 1.0 - below)


def chance_of_share(failed: int, tried: int, failed_before: int, tried_before: int) -> float:
    """Of `failed` or more of `tried`, after `failed_before` of `tried_before`: beta-binomial with Jeffreys' prior
    Beta(1/2, 1/2) on the share. 1 with fewer than MIN_TRIED of either: nothing is told by so few."""
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
