"""Alarms on a level: few where nothing is wrong, one for what is, and none of them knows the future."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine.model.errors import SpecError
from recommender.findings.anomalies import DAY_MS, HOUR_MS, Detector, detect, far, step_of

DAY = 24


def hourly(values: object) -> tuple[list[int], list[float]]:
    numbers = np.asarray(values, float).tolist()
    return [HOUR_MS * at for at in range(len(numbers))], numbers


def rhythm(hours: int, seed: int = 0) -> np.ndarray:
    """A day's rhythm with noise about it."""
    at = np.arange(hours)
    return 100 + 40 * np.sin(2 * math.pi * at / DAY) + np.random.default_rng(seed).normal(0, 3, hours)


def test_noise_alarms_about_as_rarely_as_was_set() -> None:
    """Once in 8 weeks for each of two spans: two series of 12 weeks give about six points out of the ordinary."""
    alarms = sum(len(detect(*hourly(rhythm(12 * 7 * DAY, seed)))) for seed in range(2))
    assert alarms <= 2 * 12 / 4


def test_a_spike_in_a_rhythm_is_found_though_the_peak_of_the_day_is_higher() -> None:
    values = rhythm(28 * DAY)
    at = 20 * DAY + 18  # the low of the day
    values[at] += 45
    (alarm,) = [each for each in detect(*hourly(values)) if each.at_ms == at * HOUR_MS]
    assert alarm.above
    assert alarm.severity > 1
    assert values[at] < values.max()
    assert alarm.expected == pytest.approx(60, abs=8)


def test_a_new_level_is_one_alarm_and_then_usual() -> None:
    values = rhythm(42 * DAY)
    values[21 * DAY :] += 120
    times = [each.at_ms for each in detect(*hourly(values)) if each.at_ms >= 21 * DAY * HOUR_MS]
    assert times[0] <= 21 * DAY_MS + 2 * HOUR_MS
    assert len(times) <= 3
    assert all(at_ms < 28 * DAY_MS for at_ms in times)


def test_what_lasts_is_found_though_no_point_of_it_is_far_off() -> None:
    draw = np.random.default_rng(5)
    values = draw.normal(100, 10, 28 * DAY)
    values[24 * DAY : 25 * DAY] += 14
    found = [each for each in detect(*hourly(values)) if 24 * DAY_MS <= each.at_ms < 25 * DAY_MS]
    assert [each.points for each in found] == [12]


def test_a_constant_series_is_quiet_until_it_moves() -> None:
    assert detect(*hourly([7.0] * 30 * DAY)) == []
    moved = [7.0] * 15 * DAY + [9.0] * 10 * DAY + [7.0] * 10 * DAY
    assert [each.at_ms for each in detect(*hourly(moved))] == [15 * DAY_MS]


def test_too_little_history_raises_no_alarm() -> None:
    assert detect(*hourly([1.0, 2.0, 900.0])) == []
    assert detect(*hourly([1.0] * 90 + [900.0])) == []
    assert detect([], []) == []


def test_gaps_duplicates_and_what_is_no_number_are_passed_over() -> None:
    times, values = hourly(rhythm(28 * DAY))
    kept = [at for at in range(len(times)) if not 10 * DAY <= at < 13 * DAY]
    assert detect([times[at] for at in kept], [values[at] for at in kept]) == []
    detector = Detector(HOUR_MS)
    for at_ms, value in ((0, 1.0), (0, 5.0), (HOUR_MS, math.nan), (2 * HOUR_MS, math.inf), (HOUR_MS, 2.0)):
        assert detector.push(at_ms, value) is None
    assert detector.passed_over == 3


def test_no_alarm_depends_on_what_comes_later() -> None:
    values = rhythm(30 * DAY)
    values[15 * DAY] += 60
    cut = 20 * DAY
    other = values.copy()
    other[cut:] = np.random.default_rng(9).normal(0, 1e6, len(values) - cut)
    before = [each for each in detect(*hourly(values)) if each.at_ms < cut * HOUR_MS]
    assert before == [each for each in detect(*hourly(other)) if each.at_ms < cut * HOUR_MS] != []


def test_the_bar_follows_the_tail() -> None:
    draw = np.random.default_rng(1)
    errors = draw.exponential(1.0, 20_000)
    assert far(errors, 1e-4) == pytest.approx(-math.log(1e-4), rel=0.15)
    assert far(draw.pareto(3.0, 20_000), 1e-4) > 2 * far(errors, 1e-4)
    assert far(np.zeros(200), 1e-4) == 0


def test_a_step_is_a_positive_time() -> None:
    assert step_of([0, 300_000, 600_000, 90_000_000]) == 300_000
    with pytest.raises(SpecError, match="step_ms"):
        Detector(0)
