"""Run-time prediction: what it says with much, little and no history, and while a workload runs."""

from __future__ import annotations

import math
import random
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.errors import NotFoundError, SpecError
from recommender.estimates.run_time_model import (
    FIRST_FIT,
    TREES,
    Forest,
    Mixture,
    Overshoot,
    RunModel,
    RunTimeQuantiles,
    SortedWindow,
    SubmittedRun,
    given_elapsed,
    survival_quantile,
)

HOUR = 3_600_000


def submission(at: int, user: str = "ada", requested: int = 0, size: int = 1) -> SubmittedRun:
    return SubmittedRun(at_ms=at * 60_000, user=user, size=size, requested_ms=requested)


def taught(runs: int, *, seed: int = 1) -> RunModel:
    """A minute apart: ada's runs take about a minute times their size, bob's about an hour."""
    draw, model = random.Random(seed), RunModel()
    for at in range(runs):
        user, size = draw.choice(("ada", "bob")), draw.choice((1, 2, 4, 8))
        model.submitted(str(at), submission(at, user, size=size))
        typical = 60_000 * size if user == "ada" else HOUR
        model.ended(str(at), round(typical * math.exp(draw.gauss(0, 0.2))), (at + 1) * 60_000 - 1)
    return model


def test_cold_start_rests_on_the_request_and_says_so() -> None:
    said = RunModel().submitted("a", submission(0, requested=2 * HOUR))
    assert (said.basis, said.samples, said.p50_ms, said.p90_ms) == ("request", 0, HOUR, 2 * HOUR)


def test_nothing_known_is_called_that_and_is_wide() -> None:
    said = RunModel().submitted("a", submission(0))
    assert said.basis == "nothing"
    assert said.p90_ms > 1000 * said.p10_ms


def test_likes_speak_before_trees_can() -> None:
    model = taught(100)
    assert model.submitted("x", submission(200, "bob")).p50_ms == pytest.approx(HOUR, rel=0.3)
    stranger = model.submitted("y", submission(200, "eve"))
    assert (stranger.basis, stranger.nearest) == ("likes", "queue size asked")
    assert stranger.p10_ms < stranger.p50_ms < stranger.p90_ms


def test_a_request_is_better_than_likes_that_share_only_a_size() -> None:
    said = taught(30).submitted("y", submission(200, "eve", requested=9 * HOUR))
    assert (said.basis, said.nearest, said.p90_ms) == ("request", "size", 9 * HOUR)


def test_asking_about_work_that_was_not_submitted_leaves_no_trace() -> None:
    plain, asked = taught(100), taught(100)
    for at in range(20):
        about = asked.about(submission(150 + at, "bob"))
    assert plain.submitted("x", submission(169, "bob")) == about == asked.submitted("x", submission(169, "bob"))


def test_runs_under_way_count_as_longer_than_they_have_run() -> None:
    """Of a burst the short ones end first: the long ones still run, and are not forgotten."""
    overshoot = Overshoot(1)
    for at in range(200):
        number = overshoot.submitted(np.array([0.0]))
        overshoot.started(number, 0)
        if at < 100:
            overshoot.ended(number, 1.0)
    overshoot.started(overshoot.submitted(np.array([0.0])), 0)
    for _ in range(4):
        overshoot.submitted(np.array([0.0]))
    assert overshoot.shift(0.9, 10**6)[0] == pytest.approx(math.log(10**6))
    assert overshoot.shift(0.4, 10**6)[0] == pytest.approx(1.0)


def test_survival_quantiles_of_known_figures() -> None:
    """Kaplan-Meier by hand: of four, the second is still under way at 2; alive 3/4, then 3/4 x 1/2, then 0."""
    values, ended = np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, False, True, True])
    assert [survival_quantile(values, ended, share) for share in (0.2, 0.25, 0.5, 0.62, 0.7)] == [1, 1, 3, 3, 4]
    assert survival_quantile(np.array([1.0, 5.0]), np.array([True, False]), 0.9) == 5.0


def test_each_user_has_weights_of_their_own() -> None:
    mixture = Mixture(2, 0.5)
    for _ in range(300):
        mixture.learn("ada", np.array([0.0, 9.0]), 0.0)
        mixture.learn("bob", np.array([0.0, 9.0]), 9.0)
    assert mixture.weights("ada")[0] > 0.99
    assert mixture.weights("bob")[1] > 0.99
    assert mixture.weights("eve") == pytest.approx([0.5, 0.5], abs=0.05)


def test_trees_tell_users_and_sizes_apart() -> None:
    model = taught(FIRST_FIT + 100)
    bob = model.submitted("bob", submission(900, "bob"))
    small, large = (model.submitted(f"ada {size}", submission(900, size=size)) for size in (1, 8))
    assert {bob.basis, small.basis, large.basis} == {"trees"}
    assert bob.p50_ms == pytest.approx(HOUR, rel=0.3)
    assert small.p50_ms == pytest.approx(60_000, rel=0.4)
    assert large.p50_ms == pytest.approx(480_000, rel=0.4)
    assert all(said.p10_ms < said.p50_ms < said.p90_ms for said in (bob, small, large))


def test_same_history_gives_the_same_answers() -> None:
    first, second = (taught(FIRST_FIT + 50).submitted("x", submission(900)) for _ in range(2))
    assert first == second


def test_one_estimate_of_a_warm_model_takes_under_five_milliseconds() -> None:
    model = taught(FIRST_FIT)
    began = time.process_time()
    for at in range(50):
        model.submitted(f"x{at}", submission(900))
    assert (time.process_time() - began) / 50 < 0.005


def test_flattened_trees_say_what_the_learner_says() -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    draw = np.random.default_rng(3)
    rows = draw.normal(size=(400, 6))
    rows[draw.random(rows.shape) < 0.2] = np.nan
    rows[:, 2], rows[:, 4] = np.nan, 7.0
    truths = np.nan_to_num(rows[:, 0]) * 2 + draw.normal(size=400)
    forest = Forest(rows, truths, (0.5, 0.9))
    kept = [0, 1, 3, 5]
    for at, quantile in enumerate((0.5, 0.9)):
        model = HistGradientBoostingRegressor(loss="quantile", quantile=quantile, **TREES).fit(rows[:, kept], truths)
        said = [forest.predict(row)[at] for row in rows[:50]]
        assert said == pytest.approx(model.predict(rows[:50, kept]).tolist())


def test_runs_past_their_p90_raise_the_next_ones_before_they_end() -> None:
    calm, alarmed = taught(FIRST_FIT + 100), taught(FIRST_FIT + 100)
    for model in (calm, alarmed):
        for at in range(60):
            model.submitted(f"x{at}", submission(900))
    for at in range(60):
        alarmed.outrun(f"x{at}")
        alarmed.outrun(f"x{at}")
    assert alarmed.submitted("y", submission(901)).p90_ms > calm.submitted("y", submission(901)).p90_ms


def test_a_cancelled_workload_teaches_nothing() -> None:
    plain, disturbed = taught(100), taught(100)
    disturbed.submitted("x", submission(150, "bob"))
    disturbed.forget("x")
    for model in (plain, disturbed):
        model.submitted("y", submission(160, "bob"))
        model.ended("y", HOUR, 161 * 60_000)
    assert plain.submitted("z", submission(170, "bob")) == disturbed.submitted("z", submission(170, "bob"))


def test_impossible_figures_and_unknown_ids_are_refused() -> None:
    model = RunModel()
    model.submitted("a", submission(0))
    with pytest.raises(SpecError, match="open already"):
        model.submitted("a", submission(1))
    with pytest.raises(SpecError, match="not a run time"):
        model.ended("a", 0, 1)
    with pytest.raises(SpecError, match="below 0"):
        model.estimate("a", -1)
    with pytest.raises(NotFoundError, match="no open submission b"):
        model.estimate("b")


# While it runs

SAID = RunTimeQuantiles(p10_ms=60_000, p50_ms=600_000, p90_ms=HOUR, basis="trees", samples=9)


def test_before_it_starts_nothing_is_changed() -> None:
    assert given_elapsed(SAID, 0) == SAID


def test_at_its_median_p90_was_four_chances_in_five() -> None:
    """Of runs past their median, a fifth goes past p90: so the 80th percentile is p90, and p90 lies beyond."""
    later = given_elapsed(SAID, SAID.p50_ms)
    assert later.p90_ms > SAID.p90_ms > later.p50_ms > SAID.p50_ms
    slope = math.log(SAID.p90_ms / SAID.p50_ms) / math.log(5)
    assert later.p90_ms == pytest.approx(SAID.p50_ms * 10**slope, rel=1e-6)


@settings(deadline=None, derandomize=True)
@given(
    median=st.integers(10, 10**10),
    down=st.floats(1.01, 1000),
    up=st.floats(1.01, 1000),
    elapsed=st.lists(st.integers(0, 10**12), min_size=2, max_size=5).map(sorted),
)
def test_the_longer_it_runs_the_later_it_ends(median: int, down: float, up: float, elapsed: list[int]) -> None:
    said = RunTimeQuantiles(
        p10_ms=max(1, round(median / down)), p50_ms=median, p90_ms=round(median * up), basis="trees", samples=1
    )
    known = [given_elapsed(said, each) for each in elapsed]
    for spent, now in zip(elapsed, known, strict=True):
        assert spent <= now.p10_ms <= now.p50_ms <= now.p90_ms
    for earlier, later in pairwise(known):
        assert later.p50_ms >= earlier.p50_ms - 1
        assert later.p90_ms >= earlier.p90_ms - 1


@given(st.lists(st.integers(0, 10**12), max_size=300), st.integers(1, 50))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_window_is_the_sorted_tail(values: list[int], size: int) -> None:
    window = SortedWindow(size)
    for value in values:
        window.add(value)
    expected = sorted(values[-size:])
    assert len(window) == len(expected)
    assert [window.at_rank(rank) for rank in range(1, len(expected) + 1)] == expected
