"""Times drawn by chance, where their median and 95th percentile are known."""

from __future__ import annotations

import math
import random

Z95 = 1.6449
"""The 95th percentile of the standard normal distribution."""


def lognormal_ms(draw: random.Random, median_ms: int, late_ms: int) -> int:
    """One draw from the lognormal distribution with that median, above 0, and that 95th percentile; rounded down."""
    return int(draw.lognormvariate(math.log(median_ms), math.log(late_ms / median_ms) / Z95))
