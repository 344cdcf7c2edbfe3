"""How long measurements and ended work are kept, and how finely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engine.model.errors import SpecError

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class RetentionTier(NamedTuple):
    """How finely a chunk tells."""

    step_ms: int
    span_ms: int
    """Of one chunk; a multiple of the next tier's step."""


TIERS = (
    RetentionTier(MINUTE_MS, 6 * HOUR_MS),
    RetentionTier(5 * MINUTE_MS, 2 * DAY_MS),
    RetentionTier(HOUR_MS, 32 * DAY_MS),
)


@dataclass(frozen=True)
class Retention:
    """How long what is kept. Raises SpecError when that makes no sense."""

    minutes_ms: int = 2 * DAY_MS
    """As measured, at most one sample a minute."""
    fives_ms: int = 14 * DAY_MS
    """In buckets of five minutes."""
    hours_ms: int = 400 * DAY_MS
    """In buckets of an hour."""
    runs: int = 200_000
    """Ended workloads; those that ended first go first."""
    series: int = 50_000
    """Different series; more are refused."""

    def __post_init__(self) -> None:
        if not HOUR_MS <= self.minutes_ms <= self.fives_ms <= self.hours_ms <= 100 * 365 * DAY_MS:
            raise SpecError(
                "keep_minutes, keep_fives, keep_hours",
                "must be at least an hour, each at least as long as the one before, at most a century",
                "The defaults are 2d, 14d and 400d",
            )
        if not (0 <= self.runs <= 10_000_000 and 0 <= self.series <= 1_000_000):
            raise SpecError("keep_runs, keep_series", "are out of range", "At most 10,000,000 runs, 1,000,000 series")

    @property
    def tiers_ms(self) -> tuple[int, int, int]:
        return self.minutes_ms, self.fives_ms, self.hours_ms
