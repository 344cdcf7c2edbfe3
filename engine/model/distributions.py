"""Times drawn by chance, where their median and 95th percentile are known; and quantiles of what was drawn."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

Z95 = 1.6449
"""The 95th percentile of the standard normal distribution."""
MIN_RUNS = 5
"""Values that quantiles and chances need: of fewer they would be made up."""


def lognormal_ms(draw: random.Random, median_ms: int, late_ms: int) -> int:
    """One draw from the lognormal distribution with that median, above 0, and that 95th percentile; rounded down."""
    return int(draw.lognormvariate(math.log(median_ms), math.log(late_ms / median_ms) / Z95))


def quantiles(values: Sequence[int], beyond: int = 0) -> tuple[int | None, int | None, int | None]:
    """p10, p50 and p90 of the values and of `beyond` more that are larger than all of them but not known. A quantile is
    the least value that so many of the others do not exceed. None where it is one of those, and with fewer than
    MIN_RUNS in all."""
    ordered, count = sorted(values), len(values) + beyond

    def at(permille: int) -> int | None:
        place = -(-count * permille // 1000) - 1
        return ordered[place] if count >= MIN_RUNS and place < len(ordered) else None

    return at(100), at(500), at(900)
