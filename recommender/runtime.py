"""How long a workload will run, learnt from finished ones only, with quantiles and a measured skill.

The estimate is the empirical distribution of the nearest likes with enough samples: same tenant and name without
digits, then same tenant and size, then same queue and size, then everything. With too few of all it says nothing.

What it cannot see: work that still runs. While long runs are unfinished, the finished ones look shorter than all are.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from typing import Literal

import msgspec

from engine.errors import SpecError

LEAST_SAMPLES = 8
WINDOW = 200
"""Most recent samples kept for each kind of likes."""
SKILL_WINDOW = 1_000
MAX_KEYS = 20_000
"""Kinds of likes kept; the one not seen for longest is forgotten first."""

Level = Literal["tenant and name", "tenant and size", "queue and size", "all"]
Key = tuple[str, ...]

DIGITS = re.compile(r"\d+")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a workload before it runs."""

    name: str
    tenant: str
    queue: str
    tasks: int
    gpu_milli: int
    """Of all tasks together."""
    estimate_ms: int = 0
    """What its owner asked for; 0 means not given."""


class Finished(Asked, frozen=True, kw_only=True):
    """A workload that ended by itself. Failed and cancelled ones say little of a full run: leave them out."""

    run_ms: int


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of the run time, and what they rest on."""

    p10_ms: int
    p50_ms: int
    p90_ms: int
    samples: int
    level: Level
    """Which likes were used."""


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """How good the estimates were, each made before the run it is compared with was learnt.

    Over the last SKILL_WINDOW ends. Runs are scored as they end, so an estimate may rest on others that ended after
    the run began: somewhat kinder than what was possible at submission.
    """

    scored: int
    abstained: int
    """Ends for which there was not enough evidence to estimate."""
    p90_coverage_permille: int
    """Share of runs that took at most their p90. 900 is perfect."""
    median_abs_log_error: float
    """Of p50 against the run, natural logarithm: 0.69 is a factor of two."""
    owners_median_abs_log_error: float | None
    """The same for the owners' own estimates, over those runs that had one; None when none had."""


class Window:
    """The last `size` values, also in order of magnitude."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        if len(self._recent) == self._size:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(value)
        insort(self._sorted, value)

    def at_rank(self, rank: int) -> float:
        """The rank-th smallest from 1; ranks outside are the least or greatest value."""
        return self._sorted[min(max(rank, 1), len(self._sorted)) - 1]

    def median(self) -> float:
        """The lower of the two middle values when their number is even."""
        return self.at_rank((len(self) + 1) // 2)


class RuntimeModel:
    """Feed it `learn` in the order runs end; ask it `estimate` at any time."""

    def __init__(self) -> None:
        self._likes: OrderedDict[Key, Window] = OrderedDict()
        self._errors = Window(SKILL_WINDOW)
        self._owners_errors = Window(SKILL_WINDOW)
        self._outcomes: deque[bool | None] = deque(maxlen=SKILL_WINDOW)
        """Whether p90 covered the run; None where nothing was estimated."""

    def learn(self, run: Finished) -> None:
        """Score what would have been said of this run, then learn it. Raises SpecError for impossible figures."""
        check(run)
        self._score(run)
        for _, key in keys(run):
            self._window(key).add(run.run_ms)

    def estimate(self, asked: Asked) -> Estimate | None:
        """The run time of such a workload, or None when fewer than LEAST_SAMPLES of any likes have finished."""
        for level, key in keys(asked):
            likes = self._likes.get(key)
            if likes is not None and len(likes) >= LEAST_SAMPLES:
                return quantiles(likes, level)
        return None

    def skill(self) -> Skill | None:
        """Measured so far; None before the first scored run."""
        covered = [outcome for outcome in self._outcomes if outcome is not None]
        if not covered:
            return None
        owners = self._owners_errors
        return Skill(
            scored=len(covered),
            abstained=len(self._outcomes) - len(covered),
            p90_coverage_permille=sum(covered) * 1000 // len(covered),
            median_abs_log_error=self._errors.median(),
            owners_median_abs_log_error=owners.median() if len(owners) else None,
        )

    def _score(self, run: Finished) -> None:
        said = self.estimate(run)
        if said is None:
            self._outcomes.append(None)
            return
        self._outcomes.append(run.run_ms <= said.p90_ms)
        self._errors.add(log_error(said.p50_ms, run.run_ms))
        if run.estimate_ms:
            self._owners_errors.add(log_error(run.estimate_ms, run.run_ms))

    def _window(self, key: Key) -> Window:
        window = self._likes.get(key)
        if window is None:
            if len(self._likes) >= MAX_KEYS:
                self._likes.popitem(last=False)
            window = self._likes[key] = Window(WINDOW)
        self._likes.move_to_end(key)
        return window


def quantiles(likes: Window, level: Level) -> Estimate:
    """Ranks as in split conformal prediction: the next run is at most p90 with 9 chances in 10, if it is like these."""
    n = len(likes)
    return Estimate(
        p10_ms=int(likes.at_rank((n + 1) // 10)),
        p50_ms=int(likes.median()),
        p90_ms=int(likes.at_rank(-(-(n + 1) * 9 // 10))),
        samples=n,
        level=level,
    )


def keys(asked: Asked) -> tuple[tuple[Level, Key], ...]:
    """From the nearest likes to the farthest."""
    size = f"{asked.tasks.bit_length()}/{asked.gpu_milli.bit_length()}"
    coarser: tuple[tuple[Level, Key], ...] = (
        ("tenant and size", ("tenant", asked.tenant, size)),
        ("queue and size", ("queue", asked.queue, size)),
        ("all", ("all",)),
    )
    stem = DIGITS.sub("", asked.name)
    # Names that are empty or a number say nothing of what runs.
    return (("tenant and name", ("name", asked.tenant, stem)), *coarser) if stem.strip("-_./ ") else coarser


def log_error(said_ms: int, was_ms: int) -> float:
    """Absolute natural logarithm of the ratio. Times below one millisecond count as one."""
    return abs(math.log(max(said_ms, 1) / max(was_ms, 1)))


def check(run: Finished) -> None:
    for field in ("run_ms", "estimate_ms", "tasks", "gpu_milli"):
        value = getattr(run, field)
        if value < 0:
            raise SpecError(field, f"{value} is below 0", "Leave the record out or correct it")
