"""Series hour by hour, read from a file and mended, and the forecast of spot prices on them.

`time,value` files: times are either dates with times (without an offset: UTC) or whole hour numbers. Rows may come in
any order; of rows with the same time the last counts; of several in one hour, the mean. What was mended is said. An
hour without a row has no value (nan). The reader chooses what stands in for it, see `filled`, because a guess from both
sides of a gap knows the future of one who stands in it.

Spot prices: a price is a step function, each change holding until the next, and is taken as time-weighted hourly means.
The forecast of the mean of the next hours is a blend of plain guesses in logarithms. Each counts with a power of its
error when it was made before, with a half-life of weeks. It is meant for the next day; no history tells when a price
jumps for hours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.model.errors import SpecError
from engine.traces.trace_reader import Problems, TraceFile, TraceRow, csv_rows

Floats = NDArray[np.float64]

DAY, WEEK = 24, 168
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
        (again, "several rows for one time: the last one counts"),
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


HOUR_S = 3600
AHEAD = 24
"""Hours whose mean is forecast."""
EVERY = 3
"""Hours between the moments at which guesses are judged."""
HALF_LIFE, SHARPNESS = 20 * DAY, 12
"""Half-life in hours of a guess's errors, and the power of their mean by which it counts less."""
JUDGED = 90 * DAY
"""Hours that are looked back at most, beside a week more that guesses need."""
LEAST = DAY
"""Hours of history that a forecast needs."""
MAX_PRICE, MAX_HOURS = 1e6, 20 * 366 * DAY
TIMES, PRICES = ("timestamp", "time"), ("spot_price_usd_per_hour", "price", "value")
"""Columns of files."""


class PriceSeries(NamedTuple):
    """One price."""

    name: str
    at_s: Floats
    """Unix seconds of its changes, rising."""
    price: Floats
    """From then on, above 0; a currency per hour."""
    mended: tuple[str, ...]
    """What was not as it should be and is mended."""


class HourlyPrice(NamedTuple):
    """One price hour by hour, whole hours only."""

    first_hour: int
    """Hours from 1970 to the first."""
    mean: Floats
    """Time-weighted."""


def read_prices(path: str | Path, problems: Problems) -> PriceSeries:
    """A CSV of changes with a time and a price above 0, plain or gzip. Rows that cannot be used go to `problems`.

    TraceError for what is no such file, SpecError where no price is left.
    """
    file = TraceFile(path, problems)
    found: dict[float, float] = {}
    unordered = again = 0
    last, columns = -np.inf, ("", "")
    for row in csv_rows(file, ()):
        if not columns[0]:
            columns = _columns(row)
        at, price = _moment(row.fields[columns[0]]), _price(row.fields[columns[1]])
        if at is None:
            problems.report(row.wrong(columns[0], "a time such as 2026-11-22 02:00:00"))
        elif price is None:
            problems.report(row.wrong(columns[1], f"a price above 0, up to {MAX_PRICE:g}"))
        else:
            unordered += at < last
            again += at in found
            found[at], last = price, at
    if not found:
        raise SpecError(str(path), "no row can be used", "Give rows of timestamp,price with prices above 0")
    at_s = np.array(sorted(found))
    if at_s[-1] - at_s[0] > MAX_HOURS * HOUR_S:
        raise SpecError(str(path), "its times are more than 20 years apart", "Mind rows with a wrong date")
    mended = [(unordered, "rows out of order: sorted"), (again, "several rows for one time: the last one counts")]
    name = Path(path).name.removesuffix(".gz").removesuffix(".csv")
    prices = np.array([found[at] for at in at_s.tolist()])
    return PriceSeries(name, at_s, prices, tuple(f"{count:,} {what}" for count, what in mended if count))


def _columns(row: TraceRow) -> tuple[str, str]:
    names = [next((name for name in known if name in row.fields), "") for known in (TIMES, PRICES)]
    if not all(names):
        expected = f"a header with {' or '.join(TIMES)}, and {' or '.join(PRICES)}"
        raise row.file.wrong(1, "1", expected, "other columns")
    return names[0], names[1]


def _moment(text: str) -> float | None:
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (at.replace(tzinfo=UTC) if at.tzinfo is None else at).timestamp()


def _price(text: str) -> float | None:
    try:
        price = float(text)
    except ValueError:
        return None
    return price if 0 < price <= MAX_PRICE else None


def hourly(changes: PriceSeries) -> HourlyPrice:
    """Return the prices of the whole hours from the first change to the last: an hour counts once the price is known up
    to its end."""
    at, price = changes.at_s, changes.price
    first, end = int(np.ceil(at[0] / HOUR_S)), int(at[-1] // HOUR_S)
    edges = np.arange(first, max(end, first) + 1) * float(HOUR_S)
    held = np.searchsorted(at, edges, side="right") - 1
    paid = np.concatenate([[0], np.cumsum(price[:-1] * np.diff(at))])[held] + price[held] * (edges - at[held])
    return HourlyPrice(first, np.diff(paid) / HOUR_S)


def forecast(mean: Sequence[float] | Floats, hours: int = AHEAD) -> float:
    """Mean price of the next `hours`. `mean`: of each hour of the past, oldest first, above 0. The last value where the
    past is shorter than LEAST. SpecError when there is no past."""
    past = np.asarray(mean, np.float64)[-JUDGED - WEEK :]
    if not len(past):
        raise SpecError("prices", "there are none", "Give the price of one hour at least")
    if len(past) < LEAST:
        return float(past[-1])
    # Moments at which guesses were made whose hours are over, and now.
    moments = np.arange(len(past), LEAST - 1, -EVERY)[::-1]
    guesses = _guesses(past, moments)
    over = moments + hours <= len(past)
    if not over.any():
        return float(np.exp(guesses[-1].mean()))
    sums = np.concatenate([[0], np.cumsum(past)])
    came = np.log((sums[moments[over] + hours] - sums[moments[over]]) / hours)
    # Errors in percent of what came, as the square of the mean root: a rare jump does not decide.
    errors = np.sqrt(np.abs(np.expm1(guesses[over] - came[:, None])))
    fading = 0.5 ** ((len(past) - moments[over]) / HALF_LIFE)
    off = (fading @ errors / fading.sum()) ** 2
    # A guess that was never off would else outweigh the others without bound.
    weights = (off / max(float(off.max()), 1e-12) + 1e-6) ** -SHARPNESS
    return float(np.exp(guesses[-1] @ weights / weights.sum()))


def _guesses(past: Floats, moments: np.ndarray[Any, np.dtype[Any]]) -> Floats:
    """[moment, guess]: logarithms of what plain rules say of the hours after so many of `past`. Before the first hour
    the price counts as what it was then."""
    logs = np.log(np.concatenate([np.full(WEEK, past[0]), past]))
    week = np.lib.stride_tricks.sliding_window_view(logs, WEEK)[moments]
    last = week[:, -1]
    return np.stack([
        last,
        np.minimum(last, np.quantile(week, 0.75, axis=1)),
        np.minimum(last, np.quantile(week, 0.9, axis=1)),
        week[:, -6:].mean(axis=1),
        week[:, -DAY:].mean(axis=1),
        np.median(week[:, -DAY:], axis=1),
        np.median(week[:, -3 * DAY :], axis=1),
        np.median(week, axis=1),
    ], axis=1)  # fmt: skip
