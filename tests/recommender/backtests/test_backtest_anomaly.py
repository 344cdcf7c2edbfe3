"""The backtest of alarms: its protocol, bad files, and precision and recall on the public series."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from console.cli.main import run as muster
from engine.model.errors import SpecError
from engine.traces.trace_reader import Problems, TraceError
from recommender.backtests.series import LabelledSeries, read, read_labels, score_anomalies, three_sigma_day

SHARED = Path(__file__).parents[4] / "shared" / "data"
LABELS = Path(__file__).with_name("nab_windows.json")
HOUR = 3_600_000


def series(values: list[float]) -> LabelledSeries:
    return LabelledSeries("made", [HOUR * at for at in range(len(values))], values, ())


def written(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(["timestamp,value", *rows]) + "\n")
    return path


def test_windows_and_alarms_are_counted_as_events_after_the_probation() -> None:
    made = series([0.0] * 100)
    windows = [(0, 5 * HOUR), (30 * HOUR, 35 * HOUR), (60 * HOUR, 70 * HOUR)]
    found = score_anomalies(made, [2 * HOUR, 31 * HOUR, 33 * HOUR, 50 * HOUR], windows)
    assert (found.windows, found.hit, found.alarms, found.false) == (2, 1, 3, 1)
    assert (found.recall, found.precision) == (0.5, 0.5)
    nothing = score_anomalies(made, [], [])
    assert nothing.recall is None
    assert nothing.precision is None


def test_three_sigma_alarms_once_for_what_belongs_together() -> None:
    assert three_sigma_day(series([0.0, 1.0] * 24 + [50.0, 50.0, 0.0])) == [48 * HOUR]


def test_rows_are_put_in_order_and_bad_ones_told(tmp_path: Path) -> None:
    rows = [f"2026-01-01 {at % 24:02}:00:00,{at}" for at in range(24)]
    path = written(tmp_path / "a.csv", [rows[1], rows[0], *rows[2:], rows[3], "never,1", "2026-01-02 00:00:00,nan"])
    problems = Problems(strict=False)
    found = read(path, problems)
    assert found.values == [float(at) for at in range(24)]
    assert problems.count == 2
    assert found.mended == ("2 rows out of order: sorted", "1 several rows for one time: the last one counts")
    with pytest.raises(SpecError, match="has 3 points"):
        read(written(tmp_path / "b.csv", rows[:3]), Problems(strict=False))
    unnamed = tmp_path / "c.csv"
    unnamed.write_text("when,value\n1,2\n")
    with pytest.raises(TraceError, match="timestamp or time"):
        read(unnamed, Problems(strict=False))


def test_labels_are_pairs_of_times_by_file(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text('{"folder/a.csv": [["1970-01-01 00:00:00.000000", "1970-01-01 01:00:00"]]}')
    assert read_labels(path) == {"a": [(0, HOUR)]}
    for wrong in ('{"a": [["x", "y"]]}', "[]", "{", '{"a": [["1970-01-02", "1970-01-01"]]}'):
        path.write_text(wrong)
        with pytest.raises(SpecError, match="labels"):
            read_labels(path)
    with pytest.raises(SpecError, match="labels"):
        read_labels(tmp_path / "none.json")


def test_the_command_lists_alarms_and_scores_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [10.0 + at % 24 for at in range(24 * 14)]
    values[24 * 12] = 500.0
    rows = [f"2026-01-{1 + at // 24:02} {at % 24:02}:00:00,{value}" for at, value in enumerate(values)]
    path = written(tmp_path / "a.csv", rows)
    assert muster(["backtest", "anomaly", str(path)]) == 0
    assert "2026-01-13 00:00" in capsys.readouterr().out
    labels = tmp_path / "labels.json"
    labels.write_text('{"a.csv": [["2026-01-13 00:00:00", "2026-01-13 06:00:00"]]}')
    assert muster(["backtest", "anomaly", str(path), "--labels", str(labels), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"muster", "three_sigma_day", "static_p999"}
    assert told["muster"]["recall"] == told["muster"]["precision"] == 1
    labels.write_text('{"b.csv": []}')
    assert muster(["backtest", "anomaly", str(path), "--labels", str(labels)]) != 0
    assert "names none of the files" in capsys.readouterr().err


@pytest.mark.slow
def test_public_series_alarm_seldom_and_often_rightly(capsys: pytest.CaptureFixture[str]) -> None:
    """All twelve, pooled: far fewer false alarms than either simple rule, at no less than half of the windows found."""
    files = sorted(map(str, (SHARED / "nab").glob("*.csv.gz")))
    if not files:
        pytest.skip(f"needs the shared traces in {SHARED / 'nab'}")
    assert muster(["backtest", "anomaly", *files, "--labels", str(LABELS), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    own = told["muster"]
    assert own["windows"] == 28
    assert own["recall"] >= 0.5
    assert own["precision"] >= 0.5
    for rule in ("three_sigma_day", "static_p999"):
        assert own["precision"] > 2 * told[rule]["precision"]
        assert own["false_per_week"] < told[rule]["false_per_week"] / 3
