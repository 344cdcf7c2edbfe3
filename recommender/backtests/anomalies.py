"""Alarms against windows that people labelled: Muster's beside two simple rules.

The protocol follows the Numenta Anomaly Benchmark where it can: the first 15 % of a series (at most 750 points) is for
getting used to it and not scored; an alarm inside a labelled window is a hit, however early in it. Here events count:
recall is the share of windows with an alarm inside, precision that of hit windows among hit windows and false alarms.
After an alarm a method is silent for a cool-down, which is the same for all.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from engine.model.errors import SpecError
from engine.traces.progress import counted
from engine.traces.trace_reader import Problems, TraceFile, csv_rows
from recommender.findings.anomalies import DAY_MS, DEFAULTS, WEEK_MS, detect, step_of

PROBATION = 0.15
PROBATION_MOST = 750
"""Points; both from the benchmark."""
MIN_POINTS = 20
SIGMAS = 3.0
STATIC = 0.999
MAX_VALUE = 1e15
TIME_COLUMNS = ("timestamp", "time")

Window = tuple[int, int]


class LabelledSeries(NamedTuple):
    """A series in order of time, one value for each."""

    name: str
    at_ms: list[int]
    values: list[float]
    mended: tuple[str, ...]

    @property
    def scored_from_ms(self) -> int:
        return self.at_ms[min(int(PROBATION * len(self.at_ms)), PROBATION_MOST)]


class AnomalyScore(msgspec.Struct, frozen=True, kw_only=True):
    """Of one method on one series, or on all."""

    windows: int
    hit: int
    """Windows with an alarm inside."""
    alarms: int
    false: int
    """Alarms outside all windows."""
    weeks: float
    recall: float | None
    """None without windows."""
    precision: float | None
    """None without an alarm."""
    alarms_per_week: float
    false_per_week: float


def read(path: str | Path, problems: Problems) -> LabelledSeries:
    """A CSV with columns `timestamp` (or `time`) and `value`, plain or gzip. Raises TraceError for what is no such
    file, SpecError for too few points; rows that cannot be used go to `problems`."""
    file = TraceFile(path, problems)
    found: dict[int, float] = {}
    unordered = again = 0
    last = -(2**62)
    for row in csv_rows(file, ("value",)):
        column = next((name for name in TIME_COLUMNS if name in row.fields), None)
        if column is None:
            raise file.wrong(1, TIME_COLUMNS[0], "a column timestamp or time", "none")
        at_ms, value = time_of(row.fields[column]), number_of(row.fields["value"])
        if at_ms is None:
            problems.report(row.wrong(column, "a time such as 2026-11-22 02:00:00"))
        elif value is None:
            problems.report(row.wrong("value", f"a number of at most {MAX_VALUE:g}"))
        else:
            unordered += at_ms < last
            again += at_ms in found
            found[at_ms] = value
            last = at_ms
    if len(found) < MIN_POINTS:
        raise SpecError(str(path), f"has {len(found)} points", f"Give a series of at least {MIN_POINTS}")
    times = sorted(found)
    mended = [(unordered, "rows out of order: sorted"), (again, "rows for a time that was there: the last counts")]
    name = file.path.name.removesuffix(".gz").removesuffix(".csv")
    return LabelledSeries(name, times, [found[at] for at in times], tuple(f"{n:,} {what}" for n, what in mended if n))


def time_of(text: str) -> int | None:
    """Unix milliseconds of a date with a time (without an offset: UTC)."""
    try:
        time = datetime.fromisoformat(text.strip())
        return round((time.replace(tzinfo=UTC) if time.tzinfo is None else time).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def number_of(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= MAX_VALUE else None


def read_labels(path: str | Path) -> dict[str, list[Window]]:
    """Windows by name of the series: JSON of file name -> [[first time, last time], ...], as the benchmark has it.
    Folders and endings of the names do not count. Raises SpecError."""
    try:
        told = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "is no JSON"
        raise SpecError(f"--labels {path}", why or "cannot be read", "Give a JSON file of windows") from error
    if not isinstance(told, dict):
        raise SpecError(f"--labels {path}", "is no JSON object", "Give {file name: [[first, last], ...]}")
    return {
        Path(name).name.removesuffix(".gz").removesuffix(".csv"): [window(each, path, name) for each in windows]
        for name, windows in told.items()
        if isinstance(windows, list)
    }


def window(told: Any, path: str | Path, name: str) -> Window:
    if isinstance(told, list) and len(told) == 2 and all(isinstance(each, str) for each in told):
        first, last = time_of(told[0]), time_of(told[1])
        if first is not None and last is not None and first <= last:
            return first, last
    raise SpecError(f"--labels {path}", f"a window of '{name[:80]}' is no pair of times", "Give [first, last]")


# -- methods ----------------------------------------------------------------------------------------------------------


def muster(series: LabelledSeries) -> list[int]:
    """When the product's own detector alarms."""
    return [alarm.at_ms for alarm in detect(series.at_ms, series.values)]


def three_sigma_day(series: LabelledSeries) -> list[int]:
    """Further than three standard deviations from the mean of the last day's points."""
    day = max(2, DAY_MS // step_of(series.at_ms))
    recent: deque[float] = deque(maxlen=day)
    found, total, squares = [], 0.0, 0.0
    for at_ms, value in zip(series.at_ms, series.values, strict=True):
        if len(recent) == day:
            mean = total / day
            if abs(value - mean) > SIGMAS * math.sqrt(max(squares / day - mean * mean, 0.0)):
                found.append(at_ms)
            total, squares = total - recent[0], squares - recent[0] ** 2
        recent.append(value)
        total, squares = total + value, squares + value**2
    return merged(found)


def static_p999(series: LabelledSeries) -> list[int]:
    """Above the quantile 0.999 of the points that are not scored."""
    start = series.scored_from_ms
    known = [value for at_ms, value in zip(series.at_ms, series.values, strict=True) if at_ms < start]
    bar = float(np.quantile(known or series.values[:1], STATIC))
    pairs = zip(series.at_ms, series.values, strict=True)
    return merged(at_ms for at_ms, value in pairs if at_ms >= start and value > bar)


METHODS: dict[str, Callable[[LabelledSeries], list[int]]] = {
    "muster": muster,
    "three_sigma_day": three_sigma_day,
    "static_p999": static_p999,
}


def merged(times_ms: Iterable[int]) -> list[int]:
    """At most one in each cool-down. The rules' are not drawn out by what comes within: theirs would never end."""
    found: list[int] = []
    until = -(2**62)
    for at_ms in times_ms:
        if at_ms >= until:
            found.append(at_ms)
            until = at_ms + DEFAULTS.cool_down_ms
    return found


# -- scores -----------------------------------------------------------------------------------------------------------


def score(series: LabelledSeries, alarms_ms: Sequence[int], windows: Sequence[Window]) -> AnomalyScore:
    """Windows and alarms before the scored part are left out."""
    start = series.scored_from_ms
    alarms = [at_ms for at_ms in alarms_ms if at_ms >= start]
    ahead = [each for each in windows if each[1] >= start]
    hit = sum(any(first <= at_ms <= last for at_ms in alarms) for first, last in ahead)
    false = sum(not any(first <= at_ms <= last for first, last in ahead) for at_ms in alarms)
    return made(len(ahead), hit, len(alarms), false, (series.at_ms[-1] - start) / WEEK_MS)


def pooled(scores: Sequence[AnomalyScore]) -> AnomalyScore:
    return made(
        sum(each.windows for each in scores), sum(each.hit for each in scores), sum(each.alarms for each in scores),
        sum(each.false for each in scores), sum(each.weeks for each in scores),
    )  # fmt: skip


def made(windows: int, hit: int, alarms: int, false: int, weeks: float) -> AnomalyScore:
    told = hit + false
    return AnomalyScore(
        windows=windows, hit=hit, alarms=alarms, false=false, weeks=weeks,
        recall=hit / windows if windows else None,
        precision=hit / told if told else None,
        alarms_per_week=alarms / weeks if weeks else 0.0,
        false_per_week=false / weeks if weeks else 0.0,
    )  # fmt: skip


def backtest(
    all_series: Sequence[LabelledSeries], labels: Mapping[str, Sequence[Window]]
) -> tuple[dict[str, dict[str, list[int]]], dict[str, dict[str, AnomalyScore]]]:
    """By method and series: when it alarms in the scored part; and, of the series that `labels` name, how well that
    agrees with their windows."""
    alarms = {
        method: {
            series.name: [at_ms for at_ms in alarm(series) if at_ms >= series.scored_from_ms]
            for series in counted(all_series, f"series by {method}", len(all_series))
        }
        for method, alarm in METHODS.items()
    }
    scores = {
        method: {
            series.name: score(series, told[series.name], labels[series.name])
            for series in all_series
            if series.name in labels
        }
        for method, told in alarms.items()
    }
    return alarms, scores
