"""The commands `muster backtest scaling` and `muster backtest spot`: capacity decided ahead of demand, and prices
forecast, against what happened, beside simple rules."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from console.cli.show import write_json, write_lines
from console.text.plain_tables import table
from console.text.terminal_text import printable
from engine.traces.trace_reader import Problems
from recommender.backtests import scaling as backtest_scaling
from recommender.backtests import spot_prices as backtest_spot
from recommender.forecasts import hourly_series
from recommender.forecasts import spot_prices as spot_price

MEAN = "mean_over_series"
Figures = Sequence[float | None]


class MethodFigures(Protocol):
    """Figures of one method on one file."""

    @property
    def n(self) -> int: ...


Score = TypeVar("Score", bound=MethodFigures)


def scaling(arguments: argparse.Namespace) -> None:
    """Capacity decided `--lead` hours before; see `recommender.backtests.scaling` for the protocol. One file: an object
    keyed by method. Several: that object under each series' name, and means: geometric of what was provided above
    demand, plain of what was unmet."""
    problems = Problems()
    now_hour = int(datetime.now(UTC).timestamp() // 3600)
    read = [hourly_series.read(path, problems, now_hour=now_hour) for path in arguments.files]
    scores = {}
    for series in read:
        print(f"deciding on {printable(series.name)}: {len(series.values):,} hours", file=sys.stderr)
        scores[series.name] = backtest_scaling.backtest(series, arguments.lead)
    titles = ("METHOD", "ABOVE DEMAND %", "UNMET %", "HOURS")
    _tell(arguments, scores, titles, _scaling_cells, _means)
    _mended([(series.name, series.mended) for series in read], problems)


def spot(arguments: argparse.Namespace) -> None:
    """Prices of the next day; see `recommender.backtests.spot_prices` for the protocol. Several files: plain means
    too."""
    problems = Problems()
    read = [spot_price.read(path, problems) for path in arguments.files]
    scores = {changes.name: backtest_spot.backtest(changes) for changes in read}
    titles = ("METHOD", "MEDIAN APE %", "MEAN APE %", "ORIGINS")
    _tell(arguments, scores, titles, _spot_cells, _spot_means)
    _mended([(changes.name, changes.mended) for changes in read], problems)


def _tell(
    arguments: argparse.Namespace,
    scores: Mapping[str, Mapping[str, Score]],
    titles: Sequence[str],
    cells: Callable[[Score], list[str]],
    means: Callable[[Sequence[Mapping[str, Score]]], dict[str, Score]],
) -> None:
    told: dict[str, Mapping[str, Score]] = dict(scores)
    if len(told) > 1:
        told[MEAN] = means(list(scores.values()))
    if arguments.json:
        write_json(told if len(told) > 1 else next(iter(told.values())))
        return
    right = (False, *(True,) * (len(titles) - 1))
    for number, (name, methods) in enumerate(told.items()):
        if len(told) > 1:
            write_lines([*([""] if number else []), printable(name)])
        write_lines(table(titles, [[method, *cells(each), f"{each.n:,}"] for method, each in methods.items()], right))


def _means(scores: Sequence[Mapping[str, backtest_scaling.ScalingScore]]) -> dict[str, backtest_scaling.ScalingScore]:
    """Of each method; what it provided above demand as the geometric mean of what is above 0, None if it never held the
    1 % on one of them."""
    found = {}
    for method in scores[0]:
        over = [each[method].over_provision_pct for each in scores]
        unmet = [each[method].unmet_pct for each in scores]
        n = sum(each[method].n for each in scores)
        found[method] = backtest_scaling.ScalingScore(_geometric(over), _plain(unmet), n)
    return found


def _spot_means(
    scores: Sequence[Mapping[str, backtest_spot.SpotPriceScore]],
) -> dict[str, backtest_spot.SpotPriceScore]:
    return {
        method: backtest_spot.SpotPriceScore(
            sum(each[method].median_ape for each in scores) / len(scores),
            sum(each[method].mean_ape for each in scores) / len(scores),
            sum(each[method].n for each in scores),
        )
        for method in scores[0]
    }


def _scaling_cells(each: backtest_scaling.ScalingScore) -> list[str]:
    return [_figure(each.over_provision_pct, 2), _figure(each.unmet_pct, 2)]


def _spot_cells(each: backtest_spot.SpotPriceScore) -> list[str]:
    return [_figure(each.median_ape), _figure(each.mean_ape)]


def _geometric(values: Figures) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or min(known) <= 0:
        return None
    return math.exp(sum(map(math.log, known)) / len(known))


def _plain(values: Figures) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _figure(value: float | None, places: int = 1) -> str:
    return "-" if value is None else f"{value:,.{places}f}"


def _mended(told: Sequence[tuple[str, Sequence[str]]], problems: Problems) -> None:
    for name, mended in told:
        for what in mended:
            print(f"muster: {printable(name)}: {printable(what)}", file=sys.stderr)
    if problems.count:
        print(f"muster: {problems.count:,} rows could not be used", file=sys.stderr)
        for problem in problems.first[:3]:
            print(f"  {printable(str(problem))}", file=sys.stderr)
