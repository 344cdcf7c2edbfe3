"""Reading hourly series: what is mended, what is told, what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from engine.model.errors import SpecError, TraceError
from engine.traces.trace_reader import Problems
from recommender.estimates.hourly_series import filled, read


def written(folder: Path, text: str, name: str = "series.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_dates_and_hour_numbers_plain_and_gzip(tmp_path: Path) -> None:
    dated = read(written(tmp_path, "time,value\n1970-01-02 00:00:00,1\n1970-01-02T01:00:00Z,2.5\n"), Problems())
    assert (dated.name, dated.first_hour, dated.mended) == ("series", 24, ())
    assert dated.values.tolist() == [1, 2.5]
    numbered = read(written(tmp_path, "value,time\n4,24\n5,25\n", "load.csv.gz"), Problems())
    assert (numbered.name, numbered.first_hour) == ("load", None)
    assert numbered.values.tolist() == [4, 5]


def test_disorder_is_mended_and_told(tmp_path: Path) -> None:
    rows = [
        "2026-01-01 03:00,4",
        "2026-01-01 00:00,1",
        "2026-01-01 00:00,2",
        "2026-01-01 03:30,6",
        "2026-01-01 04:00,1",
    ]
    text = "time,value\n" + "\n".join(rows)
    problems = Problems()
    series = read(written(tmp_path, text), problems)
    np.testing.assert_array_equal(series.values, [2, np.nan, np.nan, 5, 1])
    assert series.mended == (
        "1 rows out of order: sorted",
        "1 several rows for one time: the last one counts",
        "1 hours with several rows: their mean",
        "2 hours without a value",
    )
    assert problems.count == 0


def test_rows_of_no_use_are_told_one_by_one(tmp_path: Path) -> None:
    rows = ["0,1", "1,-3", "2,nan", "3,inf", "4,many", "soon,1", "5,2", "6"]
    problems = Problems()
    series = read(written(tmp_path, "time,value\n" + "\n".join(rows)), problems)
    np.testing.assert_array_equal(series.values, [1, *[np.nan] * 4, 2])
    assert problems.count == 6
    assert "series.csv:3: column value" in str(problems.first[0])


def test_the_future_is_left_out(tmp_path: Path) -> None:
    problems = Problems()
    path = written(tmp_path, "time,value\n1970-01-01 00:00,1\n1970-01-01 01:00,1\n1970-01-01 02:00,9\n")
    assert read(path, problems, now_hour=1).values.tolist() == [1, 1]
    assert "a time that is past" in str(problems.first[0])


def test_what_is_no_series_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="header"):
        read(written(tmp_path, "when,much\n1,2\n"), Problems())
    with pytest.raises(TraceError, match="empty"):
        read(written(tmp_path, ""), Problems())
    with pytest.raises(SpecError, match="no row can be used"):
        read(written(tmp_path, "time,value\nx,1\n"), Problems())
    with pytest.raises(SpecError, match="widest gap is 867,264 h"):
        read(written(tmp_path, "time,value\n2000-01-01 00:00,1\n2098-12-08 00:00,2\n"), Problems())


def test_short_gaps_are_bridged_and_long_ones_repeat_the_day_before() -> None:
    nan = np.nan
    np.testing.assert_array_equal(filled([nan, 2, nan, nan, 5]), [2, 2, 3, 4, 5])
    day = np.arange(24.0)
    np.testing.assert_array_equal(filled([*day, *[nan] * 10, 7]), [*day, *day[:10], 7])
    np.testing.assert_array_equal(filled([1, nan]), [1, 1])
    np.testing.assert_array_equal(filled([nan, nan]), [0, 0])
