"""Counts and shares against what is usual: exact chances, and silence where little is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from recommender.findings.anomalies import CHANCE, Counts, chance_of_count, chance_of_share

HOUR_MS = 3_600_000


def pushed(counts: list[float]) -> list[int]:
    watch = Counts()
    return [at for at, count in enumerate(counts) if watch.push(at * HOUR_MS, count) is not None]


def test_chances_are_those_of_the_distributions() -> None:
    expected = stats.nbinom.sf(3, 2.5, 10 / 11)
    assert chance_of_count(4, 2, 10) == pytest.approx(float(expected), rel=1e-9)
    expected = stats.betabinom.sf(4, 20, 3.5, 97.5)
    assert chance_of_share(5, 20, 3, 100) == pytest.approx(float(expected), rel=1e-9)


def test_one_error_after_a_quiet_month_is_no_alarm_and_a_burst_is() -> None:
    quiet: list[float] = [0.0] * 24 * 28
    assert pushed([*quiet, 1]) == []
    assert pushed([*quiet, 4]) == [len(quiet)]


def test_a_node_that_always_has_errors_is_usual() -> None:
    draw = np.random.default_rng(3)
    counts = draw.poisson(0.5, 24 * 60).astype(float)
    assert pushed(counts.tolist()) == []
    assert pushed([*counts.tolist(), 40]) == [len(counts)]


def test_short_pasts_and_bad_counts_tell_nothing() -> None:
    assert pushed([0.0] * 24 + [50.0]) == []
    assert pushed([*[0.0] * 24 * 10, math.nan, -5.0]) == []
    assert chance_of_share(4, 4, 0, 100) == 1
    assert chance_of_share(5, 5, 0, 4) == 1


def test_a_share_needs_more_than_bad_luck() -> None:
    assert chance_of_share(2, 20, 50, 1000) > CHANCE
    assert chance_of_share(12, 20, 50, 1000) < CHANCE
    assert 0 <= chance_of_share(60_000, 100_000, 50, 1000) < CHANCE
