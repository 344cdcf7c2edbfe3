"""Series hour by hour: read from a file of `time,value`, mended, and said what was mended.

Times are either dates with times (without an offset: UTC) or whole hour numbers. Rows may come in any order; of rows
with the same time the last counts; of several in one hour, the mean. An hour without a row has no value (nan): what
stands in for it is the reader's choice, see `filled`, because a guess made from both sides of a gap knows the future of
whoever stands in it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.model.errors import SpecError
from engine.traces.trace_reader import Problems, TraceFile, csv_rows

Floats = NDArray[np.float64]

DAY = 24
LONGEST = 30 * 366 * DAY
"""Hours from first to last that are still believed to be one series."""
MAX_VALUE = 1e15
SHORT_GAP = 6
"""Hours without a value over which a straight line is drawn; longer gaps repeat the day before."""
_WHOLE = re.compile(r"-?[0-9]{1,9}(\.0+)?")


@dataclass(frozen=True)
class Hourly:
    """One value for each hour, without holes in time."""

    name: str
    """Of the file, without its endings."""
    values: Floats
    """[hour], 0 or more; nan where the file has none. The first and the last are known."""
    first_hour: int | None
    """Hours from 1970-01-01 00:00 UTC to the first; None where the file only numbers its hours."""
    mended: tuple[str, ...]
    """What was not as it should be and is mended: "3 rows out of order"."""


def read(path: str | Path, problems: Problems, *, now_hour: int | None = None) -> Hourly:
    """The series in a CSV with columns `time` and `value`, plain or gzip.

    Rows that cannot be used go to `problems` (not a time, not a number, negative, infinite, later than `now_hour` where
    that is given). TraceError for what is no such file, SpecError where its times are no series.
    """
    file = TraceFile(path, problems)
    found: dict[float, float] = {}
    dated: bool | None = None
    unordered = again = 0
    last = -math.inf
    for row in csv_rows(file, ("time", "value")):
        text = row.fields["time"].strip()
        if dated is None:
            dated = not _WHOLE.fullmatch(text)
        parsed = _hour(text, dated)
        value = _value(row.fields["value"])
        if parsed is None:
            expected = "a time such as 2026-11-22 02:00:00" if dated else "an hour number"
            problems.report(row.wrong("time", expected))
        elif dated and now_hour is not None and parsed >= now_hour + 1:
            problems.report(row.wrong("time", "a time that is past"))
        elif value is None:
            problems.report(row.wrong("value", f"a number from 0 to {MAX_VALUE:g}"))
        else:
            unordered += parsed < last
            again += parsed in found
            found[parsed] = value
            last = parsed
    if not found:
        raise SpecError(str(path), "no row can be used", "Give rows of time,value with values of 0 or more")
    return _series(file.path, found, bool(dated), unordered, again)


def _series(path: Path, found: dict[float, float], dated: bool, unordered: int, again: int) -> Hourly:
    times = np.array(sorted(found))
    hours = np.floor(times).astype(np.int64)
    span = int(hours[-1] - hours[0]) + 1
    apart = np.unique(hours)
    if span > LONGEST or span > 2 * len(apart) + 2 * DAY:
        widest = int(np.argmax(np.diff(apart)))
        raise SpecError(
            str(path),
            f"{len(apart):,} hours with a value in {span:,}: the widest gap is {apart[widest + 1] - apart[widest]:,} h",
            "Give a series in which most hours have a value; mind rows with a wrong date",
        )
    at = hours - hours[0]
    count = np.bincount(at, minlength=span)
    total = np.bincount(at, weights=[found[time] for time in times.tolist()], minlength=span)
    values = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    missing = int((count == 0).sum())
    finer = int((count > 1).sum())
    mended = [
        (unordered, "rows out of order: sorted"),
        (again, "rows for a time that another gave: the last counts"),
        (finer, "hours with several rows: their mean"),
        (missing, "hours without a value"),
    ]
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    first = int(hours[0]) if dated else None
    return Hourly(name, values, first, tuple(f"{n:,} {what}" for n, what in mended if n))


def filled(values: ArrayLike) -> Floats:
    """A copy in which hours without a value (nan) have one: on a straight line between their neighbours in gaps of up
    to SHORT_GAP hours, else that of the same hour the day before, else the last known. What is missing at the start is
    the first known; a series of nothing is 0. Made of all of `values`: give it a past."""
    series = np.array(values, np.float64)
    known = np.flatnonzero(np.isfinite(series))
    if len(known) == len(series):
        return series
    if not len(known):
        return np.zeros(len(series))
    series[: known[0]] = series[known[0]]
    for left, right in zip(known.tolist(), [*known[1:].tolist(), len(series)], strict=True):
        gap = right - left - 1
        if not gap:
            continue
        if gap <= SHORT_GAP and right < len(series):
            series[left + 1 : right] = np.linspace(series[left], series[right], gap + 2)[1:-1]
            continue
        for at in range(left + 1, right):
            series[at] = series[at - DAY] if at >= DAY else series[left]
    return series


def _hour(text: str, dated: bool) -> float | None:
    """Hours since 1970 of a date, or the number given; None if it is neither."""
    if not dated:
        return float(text) if _WHOLE.fullmatch(text) else None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    return time.timestamp() / 3600


def _value(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= MAX_VALUE else None
