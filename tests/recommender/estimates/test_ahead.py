"""Capacity ahead of demand: nothing of the future is known, what is said of plain and of odd series, and an engine that
goes by it decides alike after a restart and in a fork."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from engine.control import Engine
from engine.elasticity.capacity_ahead import Foresight
from engine.model.commands import Submit
from engine.state.demand import DAY, WEEK, SeasonalBaseline, Series
from engine.twin.rehearsals import Rehearsal
from recommender.backtests.series import decided
from recommender.estimates.capacity_ahead import LEAST, CapacityForecaster, ahead, allowed
from tests.support.growing_cells import HOUR, MINUTE, cell, job

FORECASTER = CapacityForecaster()


def days(hours: int, *, seed: int = 1, noise: float = 0.1) -> Series:
    """Demand with a day and a week, and noise in proportion."""
    at = np.arange(hours)
    usual = 100 + 60 * np.sin(at * 2 * np.pi / DAY) - 30 * (at // DAY % 7 > 4)
    return np.asarray(usual * np.random.default_rng(seed).normal(1, noise, hours).clip(0.2))


def test_the_future_changes_no_decision_made_before_it() -> None:
    lead, first, cut = 6, 320, 335
    true = days(350)
    other = np.concatenate([true[:cut], np.random.default_rng(5).uniform(0, 900, len(true) - cut)])

    def decisions(values: Series) -> Series:
        said = [ahead(values[: hour - lead + 1], lead) for hour in range(first, len(values))]
        return decided(values, first, lead, said)

    one, two = decisions(true), decisions(other)
    # The capacity of an hour may depend on what was known `lead` hours before it, and on nothing later.
    same = cut + lead - first
    assert one[:same].tolist() == two[:same].tolist()
    assert one[same:].tolist() != two[same:].tolist()


def test_decisions_look_only_at_hours_that_are_over() -> None:
    """Also of what was missed: with the same forecasts, later demand changes nothing."""
    lead, first, cut = 3, 200, 220
    true = days(240)
    said = [ahead(true[: hour - lead + 1], lead) for hour in range(first, len(true))]
    other = true.copy()
    other[cut:] *= 9
    same = cut + lead - first
    one, two = decided(true, first, lead, said), decided(other, first, lead, said)
    assert one[:same].tolist() == two[:same].tolist()
    assert one[same:].tolist() != two[same:].tolist()


@pytest.mark.thorough
def test_quantiles_are_met_as_often_as_they_say() -> None:
    series, lead = days(5 * WEEK, seed=3), 6
    hours = range(len(series) - 3 * DAY, len(series))
    said = np.array([FORECASTER.quantiles(series[: hour - lead + 1], lead, (100, 500, 900)) for hour in hours])
    assert (np.diff(said, axis=1) > 0).all()
    met = (series[hours.start :, None] <= said).mean(axis=0)
    assert met == pytest.approx([0.1, 0.5, 0.9], abs=0.13)
    baseline = [SeasonalBaseline().quantiles(series[: hour - lead + 1], lead, (500,))[0] for hour in hours]
    off = np.abs(said[:, 1] - series[hours.start :]).mean()
    assert off < 0.95 * np.abs(np.array(baseline) - series[hours.start :]).mean()


def test_less_may_be_unmet_with_more_capacity() -> None:
    said = ahead(days(500), 6)
    capacities = [said.capacity(unmet) for unmet in (0.2, 0.05, 0.01, 0.001)]
    assert capacities == sorted(capacities)
    assert capacities[0] < said.middle < capacities[-1]


def test_a_short_past_is_left_to_the_baseline() -> None:
    for hours in (0, 1, 3, 30, LEAST - 1):
        past = days(LEAST)[:hours]
        assert FORECASTER.quantiles(past, 2, (500, 900)) == SeasonalBaseline().quantiles(past, 2, (500, 900))


@pytest.mark.parametrize("level", [0.0, 1e-6, 7.0, 1e12])
@pytest.mark.parametrize("lead", [1, 6, 30])
def test_what_never_changes_is_foretold(level: float, lead: int) -> None:
    past = np.full(LEAST + 40, level)
    # Exactly: it is rounded up to nodes.
    assert FORECASTER.quantiles(past, lead, (100, 900)) == [level, level]
    assert ahead(past, lead).capacity(0.01) == pytest.approx(level, rel=0.02, abs=1e-9)


@pytest.mark.parametrize("kind", ["rare", "jump", "falls to nothing", "one spike"])
def test_odd_series_give_finite_answers(kind: str) -> None:
    past = np.zeros(400)
    if kind == "rare":
        past[::37] = 50
    elif kind == "jump":
        past[350:] = 1e6
    elif kind == "falls to nothing":
        past[:390] = days(390)
    else:
        past[200] = 1e9
    for lead in (1, 6, 200):
        said = FORECASTER.quantiles(past, lead, (10, 500, 1000))
        assert np.isfinite(said).all()
        assert said == sorted(said)
        assert said[0] >= 0
        assert said[-1] <= 20 * max(past.max(), 1)
        assert np.isfinite(ahead(past, lead).capacity(0.01))


def test_what_was_saved_is_spent_sooner_than_what_was_overspent_is_made_good() -> None:
    level = 100.0
    even = allowed(0.01, 10.0, 1000.0, level)
    saved, overspent = allowed(0.01, 0.0, 1000.0, level), allowed(0.01, 20.0, 1000.0, level)
    assert even == 0.01
    assert saved - even > 5 * (even - overspent) > 0
    assert allowed(0.01, 1e9, 1000.0, level) == 0.0075
    assert allowed(0.01, 0.0, 1e9, level) == 0.03
    assert allowed(0.01, 0.0, 0.0, 0.0) == 0.01


# -- in an engine -----------------------------------------------------------------------------------------------------


class Counting(CapacityForecaster):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def quantiles(self, past: Series, lead: int, permilles: Sequence[int]) -> list[float]:
        self.asked += len(past) >= LEAST
        return super().quantiles(past, lead, permilles)


def noted(path: Path, forecaster: CapacityForecaster) -> Engine:
    """A cell that has noted a week of demand with a day in it."""
    spec = cell(0, most=99, predict_permille=900, scan_every_ms=HOUR // 2)
    engine = Engine.open(path, cell=spec, forecaster=forecaster)
    for hour in range(WEEK + 2):
        tasks = 1 + 3 * (8 <= hour % DAY < 18) + hour % 5 // 4
        engine.command(Submit(workloads=tuple(job(f"h{hour}-{task}", 8000, run=40 * MINUTE) for task in range(tasks))))
        engine.advance((hour + 1) * HOUR)
    return engine


def test_an_engine_orders_by_it_alike_after_a_restart_and_in_a_fork(tmp_path: Path) -> None:
    path = tmp_path / "cell.db"
    forecaster = Counting()
    engine = noted(path, forecaster)
    assert forecaster.asked > 0
    now_ms, report = engine.now_ms, engine.scaling()
    wanted = Foresight(engine.state, FORECASTER).wanted(now_ms)
    assert {0: report.pools[0].wanted} == wanted
    assert report.forecast == str(FORECASTER)

    def later(one: Engine) -> tuple[int, str]:
        asked = forecaster.asked
        one.advance(now_ms + 3 * HOUR)
        assert forecaster.asked > asked
        return len(one.state.orders.pool), one.state.digest()

    fork, rehearsed = engine.fork(), Rehearsal(engine.fork(), 0, None)
    assert fork.scaling() == rehearsed.scaling() == report
    ordered = later(fork)
    assert later(rehearsed) == ordered
    engine.close()
    again = Engine.open(path, forecaster=forecaster)
    assert again.scaling() == report
    assert later(again) == ordered
    again.close()


def test_without_one_the_built_in_baseline_speaks() -> None:
    engine = Engine.open(None, cell=cell(0))
    assert engine.scaling().forecast == str(SeasonalBaseline()) != str(FORECASTER)
