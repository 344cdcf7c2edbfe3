"""The backtest of demand: its protocol against published figures, and its answers on odd files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from console.cli.main import run as muster
from engine.traces.trace_reader import Problems
from recommender.backtests.series import DAY, backtest, predictions, score, simple_rules, with_own_errors
from recommender.estimates.hourly_series import Hourly, read

SHARED = Path(__file__).parents[4] / "shared" / "data" / "demand_hourly"


def written(folder: Path, values: list[float], name: str = "load.csv") -> Path:
    path = folder / name
    path.write_text("time,value\n" + "".join(f"{hour},{value}\n" for hour, value in enumerate(values)))
    return path


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the folder `shared/data/demand_hourly` next to the checkout")
def test_the_protocol_gives_the_published_figures() -> None:
    """Day before, last value and week before on three series of the table in traces-and-baselines.md §4."""
    published = {
        "genai2026_lora_requests_first60pct": ((0.55, 0.56, 0.69), (1.31, 2.15, 2.98), (0.55, 0.56, 0.69)),
        "kth_sp2_1996_procs_in_use": ((0.50, 0.61, 0.69), (0.24, 0.53, 0.82), (0.68, 0.71, 0.69)),
        "nab_nyc_taxi": ((1.06, 1.18, 1.30), (0.85, 2.26, 2.93), (1.20, 0.99, 0.98)),
    }
    for name, figures in published.items():
        values = read(SHARED / f"{name}.csv.gz", Problems()).values
        train = int(0.7 * len(values))
        origins = np.linspace(train, len(values) - DAY, 40).astype(int)
        truth = np.stack([values[at : at + DAY] for at in origins])
        unit = float(np.abs(values[DAY:train] - values[: train - DAY]).mean())
        for wanted, (rule, points) in zip(figures, simple_rules(values, origins), strict=False):
            found = score(truth, with_own_errors(truth, points, origins), unit).mase
            assert [found[h] for h in ("1", "6", "24")] == pytest.approx(wanted, abs=0.0051), (name, rule)


def test_the_future_changes_nothing_said_before_it() -> None:
    draw = np.random.default_rng(1)
    at = np.arange(260)
    values = np.abs(20 + 10 * np.sin(2 * np.pi * at / 24) + draw.normal(0, 2, len(at)))
    noisy, cut = values.copy(), 200
    noisy[cut:] = draw.uniform(0, 1e4, len(at) - cut)
    told, other = (predictions(Hourly("", each, None, ()), [150, cut, cut + 9]) for each in (values, noisy))
    np.testing.assert_array_equal(told[:2], other[:2])
    assert not np.array_equal(told[2], other[2])


def test_scores_by_hand() -> None:
    truth = np.full((10, 24), 10.0)
    said = np.stack([np.full((10, 24), at) for at in (8.0, 11.0, 12.0)], axis=1)
    found = score(truth, said, unit=2.0)
    assert found.mase == {"1": 0.5, "6": 0.5, "24": 0.5}
    # Pinball: 0.1 x 2, 0.5 x 1, 0.1 x 2; twice their mean, over 10.
    assert found.wql["24"] == pytest.approx(2 * (0.2 + 0.5 + 0.2) / 3 / 10)
    assert found.coverage80 == 1


def test_own_errors_are_of_days_that_were_over() -> None:
    truth = np.array([[1.0] * 24, [2.0] * 24, [9.0] * 24])
    points = np.zeros((3, 24))
    said = with_own_errors(truth, points, [100, 110, 130])
    assert said[1].max() == 0
    # At 130 the day from 100 is over, the one from 110 is not.
    assert said[2, 0].tolist() == said[2, 2].tolist() == [1.0] * 24


def test_the_shape_of_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wave = [50 + 40 * float(np.sin(hour / 24 * 2 * np.pi)) + hour % 7 for hour in range(120)]
    path = written(tmp_path, wave)
    assert muster(["backtest", "demand", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["muster", "seasonal_naive_24", "naive", "seasonal_naive_168", "holt_winters"]
    for scores in told.values():
        assert set(scores) == {"mase", "wql", "coverage80"}
        assert list(scores["mase"]) == list(scores["wql"]) == ["1", "6", "24"]
        assert all(isinstance(value, float) for value in (*scores["mase"].values(), *scores["wql"].values()))
    assert told["muster"]["mase"]["1"] < told["naive"]["mase"]["1"]


def test_files_that_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert muster(["backtest", "demand", str(written(tmp_path, [1, 2, 3]))]) != 0
    assert "Give at least 120" in capsys.readouterr().err
    assert muster(["backtest", "demand", str(tmp_path / "none.csv")]) != 0
    assert "none.csv" in capsys.readouterr().err


def test_constant_series_and_holes_have_no_figures_but_no_faults(tmp_path: Path) -> None:
    still = backtest(read(written(tmp_path, [5.0] * 120), Problems()))["muster"]
    assert still.mase == {"1": None, "6": None, "24": None}
    assert still.wql["24"] == pytest.approx(0, abs=1e-6)
    holes = [float(hour % 24 + hour % 7) for hour in range(120)]
    holes[90:96] = [float("nan")] * 6
    series = read(written(tmp_path, holes), Problems())
    assert np.isfinite(predictions(series, [94, 96])).all()
    truth = np.stack([series.values[at : at + DAY] for at in (88, 90)])
    assert score(truth, predictions(series, [88, 90]), 1.0).mase["24"] is not None
