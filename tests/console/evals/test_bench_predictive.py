"""`muster bench predictive-day`: small series through everything it does."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from console.cli.main import run
from console.evals import bench as bench_predictive
from engine.scenarios import live_scenarios as predictive
from engine.traces.demand_series import QUANTILES, REACTIVE, forecast_rule


@pytest.fixture
def series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two series of twelve days with a step at nine; two hours are played."""
    monkeypatch.setattr(predictive, "PLAYED_HOURS", 2)
    monkeypatch.setattr(predictive, "PEAK_NODES", 5)
    monkeypatch.setattr(bench_predictive, "BOOTS_MS", predictive.BOOTS_MS[1:])
    draw = random.Random(1)
    for name, quiet in (("steps", 4.0), ("almost", 8.0)):
        values = [(quiet if hour % 24 < 9 else 20.0) + draw.random() for hour in range(288)]
        with gzip.open(tmp_path / f"{name}.csv.gz", "wt") as file:
            file.writelines(["time,value\n", *(f"{hour},{value}\n" for hour, value in enumerate(values))])
    return str(tmp_path)


def test_json_has_every_rule_on_every_series_and_what_was_played(
    series: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "predictive-day", "--data", series, "--series", "steps", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["data"] == "given"
    assert [(each["series"], each["lead_h"]) for each in report["scores"]] == [
        ("almost", 1), ("steps", 1), ("almost", 6), ("steps", 6)
    ]  # fmt: skip
    rules = {*REACTIVE, *map(forecast_rule, QUANTILES)}
    for each in report["scores"]:
        assert set(each["over_percent"]) == rules
        assert each["test_hours"] == 288 - int(288 * 0.7)
    assert set(report["geometric_means"]["all"]["1"]["test"]) == rules
    assert report["chosen_permille"] in QUANTILES
    played = report["played"]
    assert (played["series"], played["hours"]) == ("steps", 2)
    for each in played["sizings"]:
        assert each["cost_microusd"] == pytest.approx(each["paid_node_hours"] * 1e6)
        assert 0 <= each["wait_p50_ms"] <= each["wait_p95_ms"] <= each["wait_max_ms"]
    static = [each for each in played["sizings"] if each["sizing"] == "static peak"]
    assert [each["orders"] for each in static] == [0]
    # The step is seen before it comes.
    known = {(each["series"], each["lead_h"]): each["over_percent"] for each in report["scores"]}
    assert known["steps", 6]["forecast q0.9"] < known["steps", 6]["last value"]


def test_the_text_fits_a_terminal(series: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "predictive-day", "--data", series]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "geometric means" in out
    assert "reactive, 3 spare" in out
    assert "no cloud is in it" in out


def test_a_folder_without_series_and_an_unknown_name_are_refused(
    series: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert run(["bench", "predictive-day", "--data", str(tmp_path / "empty")]) != 0
    assert run(["bench", "predictive-day", "--data", series, "--series", "no such"]) != 0
    assert "almost, steps" in capsys.readouterr().err
