"""The run-time estimator: back-off, honesty about thin evidence, measured skill, bounded memory."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import SpecError
from recommender.runtime import LEAST_SAMPLES, WINDOW, Asked, Finished, RuntimeModel, Window


def run(run_ms: int, name: str = "train-1", tenant: str = "ml", queue: str = "q", **facts: int) -> Finished:
    return Finished(
        name=name,
        tenant=tenant,
        queue=queue,
        run_ms=run_ms,
        **{"tasks": 1, "gpu_milli": 1000, "estimate_ms": 0, **facts},
    )


def ask(name: str = "train-1", tenant: str = "ml", queue: str = "q", tasks: int = 1, gpu_milli: int = 1000) -> Asked:
    return Asked(name=name, tenant=tenant, queue=queue, tasks=tasks, gpu_milli=gpu_milli)


def taught(*runs: Finished) -> RuntimeModel:
    model = RuntimeModel()
    for finished in runs:
        model.learn(finished)
    return model


def test_says_nothing_without_enough_evidence() -> None:
    assert RuntimeModel().estimate(ask()) is None
    assert taught(*[run(5)] * (LEAST_SAMPLES - 1)).estimate(ask()) is None
    assert RuntimeModel().skill() is None


def test_same_name_without_digits_is_nearest() -> None:
    model = taught(*[run(100, f"train-{i}") for i in range(8)], *[run(9000, f"eval-{i}") for i in range(50)])
    likely = model.estimate(ask("train-99"))
    assert likely is not None
    assert (likely.p10_ms, likely.p50_ms, likely.p90_ms) == (100, 100, 100)
    assert (likely.samples, likely.level) == (8, "tenant and name")


@pytest.mark.parametrize(
    ("asked", "level"),
    [
        (ask("train-7"), "tenant and name"),
        (ask("unseen"), "tenant and size"),
        (ask("train-7", tenant="other"), "queue and size"),
        (ask("train-7", tenant="other", queue="elsewhere"), "all"),
        (ask("unseen", tasks=512, gpu_milli=4_096_000), "all"),
    ],
)
def test_backs_off_to_farther_likes(asked: Asked, level: str) -> None:
    likely = taught(*[run(i) for i in range(20)]).estimate(asked)
    assert likely is not None
    assert likely.level == level


@pytest.mark.parametrize("name", ["", "12345", "7-8", "__3"])
def test_names_that_say_nothing_are_not_likes(name: str) -> None:
    likely = taught(*[run(i, name) for i in range(20)]).estimate(ask(name))
    assert likely is not None
    assert likely.level == "tenant and size"


def test_quantiles_are_ranks_of_what_was_seen() -> None:
    likely = taught(*[run(i) for i in range(1, 100)]).estimate(ask())
    assert likely is not None
    assert (likely.p10_ms, likely.p50_ms, likely.p90_ms) == (10, 50, 90)


def test_follows_a_change_and_forgets_the_old() -> None:
    model = taught(*[run(1000)] * 500, *[run(50)] * WINDOW)
    likely = model.estimate(ask())
    assert likely is not None
    assert (likely.p10_ms, likely.p90_ms, likely.samples) == (50, 50, WINDOW)


def test_estimating_teaches_nothing() -> None:
    model = taught(*[run(i) for i in range(20)])
    first = model.estimate(ask())
    assert [model.estimate(ask()) for _ in range(50)] == [first] * 50


def test_skill_is_measured_before_learning() -> None:
    # The ninth run is the first that can be scored: eight runs of 100 say p50 = p90 = 100, and it took 200.
    model = taught(*[run(100)] * 8)
    assert model.skill() is None
    model.learn(run(200, estimate_ms=400))
    skill = model.skill()
    assert skill is not None
    assert (skill.scored, skill.abstained, skill.p90_coverage_permille) == (1, 8, 0)
    assert skill.median_abs_log_error == pytest.approx(0.6931, abs=1e-4)
    assert skill.owners_median_abs_log_error == pytest.approx(0.6931, abs=1e-4)


def test_owners_are_not_scored_when_they_gave_no_estimate() -> None:
    skill = taught(*[run(100)] * 20).skill()
    assert skill is not None
    assert skill.owners_median_abs_log_error is None


def test_p90_covers_nine_in_ten_of_like_runs() -> None:
    draw = random.Random(7)
    skill = taught(*[run(int(draw.lognormvariate(15, 1))) for _ in range(3000)]).skill()
    assert skill is not None
    assert 870 <= skill.p90_coverage_permille <= 930
    assert skill.scored == 1000


def test_runs_of_no_time_are_no_trouble() -> None:
    skill = taught(*[run(0)] * 20).skill()
    assert skill is not None
    assert skill.median_abs_log_error == 0


@pytest.mark.parametrize("field", ["run_ms", "tasks", "gpu_milli", "estimate_ms"])
def test_impossible_records_are_refused_and_not_learnt(field: str) -> None:
    model = taught(*[run(5)] * (LEAST_SAMPLES - 1))
    with pytest.raises(SpecError, match=field):
        model.learn(run(**{"run_ms": 5, field: -1}))
    assert model.estimate(ask()) is None


def test_memory_is_bounded_whatever_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recommender.runtime.MAX_KEYS", 50)
    letters = "abcdefghij"
    model = taught(*[run(10, f"{a}{b}{c}") for a in letters for b in letters for c in letters])
    assert len(model._likes) == 50
    likely = model.estimate(ask("never-seen"))
    assert likely is not None, "what is used all the time is not forgotten"
    assert likely.samples == WINDOW


@given(st.lists(st.integers(0, 10**12), max_size=300), st.integers(1, 50))
@settings(max_examples=100, deadline=None, database=None)
def test_window_is_the_sorted_tail(values: list[int], size: int) -> None:
    window = Window(size)
    for value in values:
        window.add(value)
    expected = sorted(values[-size:])
    assert len(window) == len(expected)
    assert [window.at_rank(rank) for rank in range(1, len(expected) + 1)] == expected


@given(st.lists(st.integers(0, 10**12), min_size=LEAST_SAMPLES, max_size=250))
@settings(max_examples=100, deadline=None, database=None)
def test_quantiles_are_ordered_and_were_seen(values: list[int]) -> None:
    likely = taught(*[run(value) for value in values]).estimate(ask())
    assert likely is not None
    assert likely.p10_ms <= likely.p50_ms <= likely.p90_ms
    assert {likely.p10_ms, likely.p50_ms, likely.p90_ms} <= set(values)
