"""Spot prices: hours of a step function, forecasts that know no future, odds against a bid, the backtest, bad input."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from console.cli.main import run as muster
from engine.model.errors import SpecError
from engine.traces.trace_reader import Problems
from recommender.backtests.series import backtest_spot_prices
from recommender.estimates.hourly_series import PriceSeries, forecast, hourly, read_prices

SHARED = Path(__file__).parents[4] / "shared" / "data" / "spot_ec2_2015"
BEGIN = datetime(2026, 3, 1, tzinfo=UTC).timestamp()


def changes(*steps: tuple[float, float]) -> PriceSeries:
    """(hour, price)"""
    return PriceSeries("made", np.array([BEGIN + at * 3600 for at, _ in steps]), np.array([p for _, p in steps]), ())


def jumping(hours: int, seed: int = 1) -> np.ndarray:
    """A price that stays near 0.1 and jumps tenfold for an hour or two."""
    draw = np.random.default_rng(seed)
    calm = 0.1 * np.exp(np.cumsum(draw.normal(0, 0.01, hours)))
    return np.where(draw.random(hours) < 0.02, 10 * calm, calm)


def file(path: Path, rows: list[str], header: str = "timestamp,spot_price_usd_per_hour") -> str:
    path.write_text("\n".join([header, *rows]))
    return str(path)


def rows(prices: np.ndarray) -> list[str]:
    stamps = [datetime.fromtimestamp(BEGIN + hour * 3600, UTC) for hour in range(len(prices))]
    return [f"{stamp:%Y-%m-%d %H:%M:%S+00:00},{price:.4f}" for stamp, price in zip(stamps, prices, strict=True)]


def test_hours_are_time_weighted_means() -> None:
    made = changes((0.5, 1.0), (1.25, 5.0), (1.5, 1.0), (3.0, 2.0), (4.25, 9.0))
    found = hourly(made)
    assert found.first_hour == BEGIN // 3600 + 1
    assert found.mean == pytest.approx([0.25 * 1 + 0.25 * 5 + 0.5 * 1, 1, 2])


def test_the_future_changes_no_forecast() -> None:
    price = jumping(900)
    other = np.concatenate([price[:700], np.random.default_rng(9).uniform(0.01, 99, 200)])
    for at in (5, 100, 333, 699, 700):
        assert forecast(price[:at]) == forecast(other[:at])
    assert forecast(price[:701]) != forecast(other[:701])


def test_a_jump_is_not_taken_for_the_level_to_come() -> None:
    price = jumping(900)
    price[-1] = 3.0
    assert forecast(price) < 0.6
    # What is always as it was is foretold.
    assert forecast(np.full(500, 0.25)) == pytest.approx(0.25)


def test_a_short_past_gives_its_last_value_and_none_is_refused() -> None:
    assert forecast([0.5, 0.7, 0.6]) == 0.6
    assert 0.05 < forecast(jumping(30)) < 2
    with pytest.raises(SpecError, match="none"):
        forecast([])


def test_figures_are_objects_by_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path / "zone.csv", rows(jumping(600)))
    assert muster(["backtest", "spot", path, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["muster", "last_value", "mean_24h", "median_7d"]
    assert set(told["muster"]) == {"median_ape", "mean_ape", "n"}
    assert told["muster"]["mean_ape"] < min(told["last_value"]["mean_ape"], told["mean_24h"]["mean_ape"])
    assert muster(["backtest", "spot", path, path]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.slow
def test_a_real_price_beats_simple_rules() -> None:
    if not SHARED.exists():
        pytest.skip("the shared prices are not here")
    scores = backtest_spot_prices(read_prices(SHARED / "us-east-1a-Linux-m3.medium.csv.gz", Problems()))
    assert scores["median_7d"].mean_ape == pytest.approx(18, abs=0.2)
    assert scores["muster"].mean_ape < scores["median_7d"].mean_ape
    assert scores["muster"].median_ape < scores["last_value"].median_ape


@pytest.mark.parametrize(
    ("lines", "header", "said"),
    [
        (["2026-03-01 00:00:00,1"] * 3, "timestamp,price", "covers 0 hours"),
        (["2026-03-01 00:00:00,-1", "yesterday,1", "2026-03-01 00:00:00,nan"], "timestamp,price", "no row"),
        (["1,2"], "a,b", "other columns"),
        (["2006-03-01 00:00:00,1", "2026-04-01 00:00:00,1"], "time,value", "20 years"),
    ],
)
def test_what_is_no_price_is_refused(
    lines: list[str], header: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert muster(["backtest", "spot", file(tmp_path / "bad.csv", lines, header)]) != 0
    assert said in capsys.readouterr().err


def test_rows_out_of_order_are_sorted_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = rows(jumping(300))
    assert muster(["backtest", "spot", file(tmp_path / "one.csv", made), "--json"]) == 0
    straight = capsys.readouterr().out
    assert muster(["backtest", "spot", file(tmp_path / "two.csv", [*made[::-1], made[3], "x,y"]), "--json"]) == 0
    found = capsys.readouterr()
    assert found.out == straight
    assert "out of order" in found.err
    assert "several rows for one time" in found.err
    assert "1 rows could not be used" in found.err
