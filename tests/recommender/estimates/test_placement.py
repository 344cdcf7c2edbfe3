"""Which type of machine is best for the money: the truth of generated cells is recovered, and the unknown is said."""

from __future__ import annotations

import math

import numpy as np
import pytest

from recommender.estimates.machine_choice import (
    CandidatePool,
    Fingerprint,
    SpeedModel,
    advised,
    fingerprint,
    hazard_per_ms,
    with_interruptions,
)
from recommender.history.metrics import RunRecord

HOUR = 3_600_000
SPEED = {"T4": 1.0, "L4": 0.8, "A100": 0.3, "H100": 0.18}
"""Run time beside a T4."""


def finished(name: str, model: str, run_ms: float, **changes: object) -> RunRecord:
    base = {
        "id": f"{name}-{model}-{run_ms}", "tenant": "acme", "name": name, "gpu_milli": 8000, "cpu_milli": 64000,
        "submitted_ms": 0, "started_ms": 0, "ended_ms": round(run_ms), "outcome": "finished", "gpu_model": model,
        "pool": model.lower(),
    }  # fmt: skip
    return RunRecord(**{**base, **changes})  # type: ignore[arg-type]


def cell(seed: int, kinds: int = 30) -> tuple[list[RunRecord], dict[tuple[str, str], float]]:
    """Kinds with times of their own that ran on one to three types; and the true median of each on every type."""
    draw, runs = np.random.default_rng(seed), []
    truth: dict[tuple[str, str], float] = {}
    for number in range(kinds):
        name, typical = f"kind{chr(97 + number // 26)}{chr(97 + number % 26)}", 2 * HOUR * math.exp(draw.normal(0, 1))
        for model, factor in SPEED.items():
            truth[name, model] = typical * factor * math.exp(draw.normal(0, 0.15))
        for model in draw.choice(list(SPEED), size=draw.integers(1, 4), replace=False).tolist():
            runs += [
                finished(f"{name}-{each}", model, truth[name, model] * math.exp(draw.normal(0, 0.35)))
                for each in range(draw.integers(3, 25))
            ]
    return runs, truth


def like(name: str) -> Fingerprint:
    found = fingerprint("acme", name, 8000, 1)
    assert found is not None
    return found


def test_the_truth_of_a_generated_cell_is_recovered() -> None:
    """Over five cells: also where a kind never ran on a type, its time there is told within a fifth in the median, and
    runs there fall within p10 and p90 as often as promised."""
    errors: dict[str, list[float]] = {"own runs": [], "other work": []}
    within: list[bool] = []
    for seed in range(5):
        runs, truth = cell(seed)
        model, draw = SpeedModel(runs), np.random.default_rng(seed + 100)
        for (name, type_name), median in truth.items():
            speed = model.speed(like(name), type_name)
            assert speed is not None
            errors[speed.basis].append(abs(speed.mean - math.log(median)))
            next_run = math.log(median) + draw.normal(0, 0.35)
            within.append(abs(next_run - speed.mean) < 1.2815515655446004 * speed.spread)
    assert np.median(errors["own runs"]) < 0.1
    assert np.median(errors["other work"]) < 0.2
    assert len(errors["other work"]) > 200
    assert 0.76 <= float(np.mean(within)) <= 0.88


def test_different_work_on_two_types_tells_nothing_of_their_speed() -> None:
    model = SpeedModel([finished("long", "T4", 9 * HOUR)] * 20 + [finished("short", "H100", HOUR)] * 20)
    assert model.speed(like("long"), "H100") is None
    assert model.speed(like("never-seen"), "T4") is None
    assert SpeedModel([]).speed(like("long"), "T4") is None


def test_runs_that_were_cut_short_or_begun_again_tell_nothing() -> None:
    for changes in ({"outcome": "failed"}, {"attempts": 2}, {"started_ms": -1}, {"gpu_model": "", "pool": ""}):
        assert SpeedModel([finished("long", "T4", HOUR, **changes)] * 20).types_of(like("long")) == {}


def place(model: str, rate: int, **changes: object) -> CandidatePool:
    base = CandidatePool(model.lower(), model, False, ("a",), True, rate, 1, 0, 0.0)
    return base._replace(**changes)  # type: ignore[arg-type]


def test_the_cheapest_finished_job_is_first_not_the_cheapest_hour() -> None:
    runs = [finished("train", "T4", 10 * HOUR)] * 12 + [finished("train", "H100", 2 * HOUR)] * 12
    places = [place("T4", 4_000_000), place("H100", 12_000_000), place("L4", 1_000_000)]
    found = advised(SpeedModel(runs), version=7, workload_id="w", like=like("train"), places=places, checkpoint_ms=0)
    assert [each.pool for each in found.options] == ["h100", "t4", "l4"]
    assert found.said.startswith("h100 does it for 40 % less than t4")
    first, _, unknown = found.options
    assert first.cost_microusd is not None
    assert first.cost_microusd.p50 == pytest.approx(24_000_000, rel=0.01)
    assert (first.basis, first.runs, unknown.basis, unknown.cost_microusd) == ("own runs", 12, "price only", None)
    assert unknown.thin == ("no finished job shows how fast it runs there",)


def test_with_nothing_but_prices_that_is_what_is_said() -> None:
    places = [place("T4", 4_000_000), place("L4", 5_000_000), place("H100", 12_000_000, allowed=False)]
    found = advised(SpeedModel([]), version=1, workload_id="w", like=None, places=places, checkpoint_ms=0)
    assert "by price alone, t4" in found.said
    assert found.unknown
    nowhere = [each._replace(allowed=False) for each in places]
    assert (
        "no pool"
        in advised(SpeedModel([]), version=1, workload_id="w", like=None, places=nowhere, checkpoint_ms=0).said
    )


def test_spot_that_is_taken_back_often_costs_more_than_it_saves() -> None:
    runs = [finished("train", "T4", 10 * HOUR)] * 12
    calm = place("T4", 1_500_000, spot=True, pool="t4-spot", interruptions=2, node_hours=10_000.0)
    rough = calm._replace(interruptions=2_000)
    on_demand = place("T4", 4_000_000)

    def best(spot: CandidatePool, checkpoint_ms: int) -> str:
        found = advised(
            SpeedModel(runs), version=1, workload_id="w", like=like("train"), places=[spot, on_demand],
            checkpoint_ms=checkpoint_ms,
        )  # fmt: skip
        return found.options[0].pool

    assert (best(calm, 0), best(rough, 0), best(rough, HOUR)) == ("t4-spot", "t4", "t4-spot")
    unwatched = advised(
        SpeedModel(runs), version=1, workload_id="w", like=like("train"), checkpoint_ms=0,
        places=[calm._replace(interruptions=0, node_hours=0.0)],
    )  # fmt: skip
    assert unwatched.options[0].interruption_ppm is None
    assert "not measured" in unwatched.options[0].thin[-1]


def test_the_time_that_interruptions_cost_is_the_expected_one() -> None:
    """Against ten thousand simulated runs of two hours with an interruption every hour."""
    draw, hazard = np.random.default_rng(4), 1 / HOUR
    assert hazard_per_ms(9, 9.5) == pytest.approx(hazard)
    total = 0.0
    for _ in range(10_000):
        while (until := draw.exponential(HOUR)) < 2 * HOUR:
            total += until
        total += 2 * HOUR
    assert with_interruptions(2 * HOUR, hazard, 0) == pytest.approx(total / 10_000, rel=0.05)
    assert with_interruptions(2 * HOUR, hazard, HOUR // 10) < 2.2 * HOUR
    assert with_interruptions(2 * HOUR, 0.0, 0) == 2 * HOUR
