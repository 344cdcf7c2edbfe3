"""Benchmark of demand forecasts: how long one series takes, every member with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from recommender.estimates.demand import DemandModel

RUNS = 7


def demand() -> Iterator[dict[str, Any]]:
    """48 hours ahead, from the longest past that is looked at and from a week. Processor time: one thread does it."""
    draw, at = np.random.default_rng(1), np.arange(2000)
    series = np.maximum(50 + 40 * np.sin(2 * np.pi * at / 24) + draw.normal(0, 8, len(at)).cumsum() / 10, 0)
    model = DemandModel()
    model.forecast(series[:400])
    for hours in (168, len(series)):
        took = []
        for _ in range(RUNS):
            begin = time.process_time()
            model.forecast(series[:hours], 48)
            took.append(time.process_time() - begin)
        took.sort()
        yield {
            "at": f"{hours:,} h of history, 48 h ahead",
            "result": f"{took[RUNS // 2] * 1000:.0f} ms",
            "milliseconds": took[RUNS // 2] * 1000,
            "reference": f"worst of {RUNS}: {took[-1] * 1000:.0f} ms; 250 ms at most",
        }
