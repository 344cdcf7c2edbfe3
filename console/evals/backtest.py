"""The commands `muster backtest runtime | demand | scaling | spot | anomaly`: estimates against what happened.

Each takes a file anyone can bring and reports Muster's method beside simple rules. The protocols are in
`recommender.backtests`. `muster backtest queueing` is in `console.evals.engine_runs`.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import msgspec

from console.commands.show import write_json, write_lines
from console.evals.engine_runs import require_learner, tell_mended, tell_problems
from console.text.plain_tables import table
from console.text.terminal_text import NONE, printable, timestamp
from engine.model.errors import MusterError, SpecError
from engine.traces.trace_reader import Problems
from recommender.backtests import run_times
from recommender.backtests import series as backtest_demand
from recommender.backtests.series import HORIZONS, DemandScore
from recommender.estimates import hourly_series as spot_price
from recommender.findings.anomalies import WEEK_MS

SHOWN = 20
"""Alarms listed of one series."""


def anomaly(arguments: argparse.Namespace) -> None:
    """Alarms of each series; with labels, precision and recall beside simple rules."""
    labels = backtest_demand.read_labels(arguments.labels) if arguments.labels else {}
    problems = Problems(strict=False)
    series = [backtest_demand.read(path, problems) for path in arguments.files]
    names = [each.name for each in series]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SpecError("FILE", f"two series are called '{twice[:80]}'", "Give each file once, under its own name")
    if labels and not any(name in labels for name in names):
        raise SpecError("--labels", "names none of the files", f'It should have such as "{names[0][:80]}.csv"')
    alarms, scores = backtest_demand.backtest_anomalies(series, labels)
    if arguments.json:
        write_json(as_object(series, alarms, scores))
    else:
        write_lines(scored_lines(scores, names) if labels else alarm_lines(series, alarms))
    tell(series, problems, [name for name in names if labels and name not in labels])


def as_object(
    series: Sequence[backtest_demand.LabelledSeries], alarms: dict[str, Any], scores: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """By method: the pooled score, then `files` and `alarms` by series."""
    found: dict[str, Any] = {}
    for method, told in alarms.items():
        by_file = scores[method]
        if by_file:
            sums = msgspec.to_builtins(backtest_demand.pooled(list(by_file.values())))
        else:
            weeks = sum((each.at_ms[-1] - each.scored_from_ms) / WEEK_MS for each in series)
            count = sum(map(len, told.values()))
            sums = {"alarms": count, "weeks": weeks, "alarms_per_week": count / weeks if weeks else 0.0}
        found[method] = {**sums, **({"files": by_file} if by_file else {}), "alarms_ms": told}
    return found


def scored_lines(scores: dict[str, dict[str, backtest_demand.AnomalyScore]], names: Sequence[str]) -> list[str]:
    titles = ("METHOD", "RECALL", "PRECISION", "WINDOWS", "HIT", "FALSE", "ALARMS/WK", "FALSE/WK")
    rows = [[method, *cells(backtest_demand.pooled(list(by_file.values())))] for method, by_file in scores.items()]
    lines = table(titles, rows, (False, *(True,) * 7))
    own = scores["muster"]
    rows = [[printable(name), *cells(own[name])] for name in names if name in own]
    return [*lines, "", *table(("MUSTER, BY SERIES", *titles[1:]), rows, (False, *(True,) * 7))]


def cells(score: backtest_demand.AnomalyScore) -> list[str]:
    return [
        share(score.recall), share(score.precision), f"{score.windows}", f"{score.hit}", f"{score.false}",
        f"{score.alarms_per_week:.2f}", f"{score.false_per_week:.2f}",
    ]  # fmt: skip


def share(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def alarm_lines(series: Sequence[backtest_demand.LabelledSeries], alarms: dict[str, dict[str, list[int]]]) -> list[str]:
    lines = []
    for each in series:
        weeks = (each.at_ms[-1] - each.scored_from_ms) / WEEK_MS
        lines.append(f"{printable(each.name)}: {len(each.at_ms):,} points, {weeks:.1f} weeks judged")
        for method, told in alarms.items():
            times = told[each.name]
            lines.append(f"  {method:<16} {len(times):>4} alarms")
            if method == "muster":
                lines += [f"    {timestamp(at_ms)} UTC" for at_ms in times[:SHOWN]]
                lines += [f"    and {len(times) - SHOWN} more"] if len(times) > SHOWN else []
    return lines


def tell(series: Sequence[backtest_demand.LabelledSeries], problems: Problems, unlabelled: Sequence[str]) -> None:
    """Report on standard error what was mended or left out."""
    tell_mended((each.name, each.mended) for each in series)
    for name in unlabelled:
        print(f"muster: {printable(name)} has no labels and is not scored", file=sys.stderr)
    tell_problems(problems, "rows could not be read")


RULE = "seasonal_naive_24"
"""Rule that means over several series are relative to."""
MEAN = "mean_over_series"


class MissingStatistics(MusterError):
    """The statistics package is not installed here."""


def demand(arguments: argparse.Namespace) -> None:
    """Demand forecasts on hourly series. One file: an object keyed by method. Several: that object under each
    series' name, and their geometric mean relative to the day before."""
    if importlib.util.find_spec("statsmodels") is None:
        raise MissingStatistics("statsmodels is not installed, and demand is forecast with it", "pip install .")
    problems = Problems()
    now_hour = int(datetime.now(UTC).timestamp() // 3600)
    read = [spot_price.read(path, problems, now_hour=now_hour) for path in arguments.files]
    scores: dict[str, dict[str, DemandScore]] = {}
    for series in read:
        if series.name in scores:
            raise SpecError("FILE", f"two series are named {printable(series.name)}", "Give each a name of its own")
        scores[series.name] = backtest_demand.backtest(series)
    if len(scores) == 1:
        (told,) = scores.values()
        write_json(told) if arguments.json else write_lines(lines(told))
    elif arguments.json:
        write_json({**scores, MEAN: geometric_means(list(scores.values()))})
    else:
        for name, told in scores.items():
            write_lines([f"{printable(name)}", *lines(told), ""])
        write_lines([f"geometric means over {len(scores)} series, relative to {RULE}; intervals: the plain mean"])
        write_lines(lines(geometric_means(list(scores.values()))))
    tell_mended((series.name, series.mended) for series in read)
    tell_problems(problems, "rows could not be used")


def lines(scores: dict[str, DemandScore]) -> list[str]:
    titles = ["METHOD", *(f"MASE {h}H" for h in HORIZONS), *(f"WQL {h}H" for h in HORIZONS), "IN 80 %"]
    rows = [
        [
            name,
            *(_figure(score.mase[str(h)]) for h in HORIZONS),
            *(_figure(score.wql[str(h)]) for h in HORIZONS),
            _figure(score.coverage80),
        ]
        for name, score in scores.items()
    ]
    return table(titles, rows, (False, *[True] * (len(titles) - 1)))


def geometric_means(scores: Sequence[dict[str, DemandScore]]) -> dict[str, DemandScore]:
    """By method: geometric mean of errors relative to the same hour of the day before, over the series where both
    are above 0; plain mean of the share within the 80 % interval."""
    found = {}
    for name in scores[0]:
        pairs = [(each[name], each[RULE]) for each in scores]
        covered = [own.coverage80 for own, _ in pairs if own.coverage80 is not None]
        found[name] = DemandScore(
            mase={str(h): _ratio([(own.mase[str(h)], rule.mase[str(h)]) for own, rule in pairs]) for h in HORIZONS},
            wql={str(h): _ratio([(own.wql[str(h)], rule.wql[str(h)]) for own, rule in pairs]) for h in HORIZONS},
            coverage80=sum(covered) / len(covered) if covered else None,
        )
    return found


def _ratio(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    logs = [math.log(own / rule) for own, rule in pairs if own and rule]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def runtime(arguments: argparse.Namespace) -> None:
    """Run-time estimates on a trace."""
    require_learner()
    problems = Problems(strict=arguments.strict)
    runs, figures = run_times.read(arguments.files, arguments.format, problems)
    scores = run_times.backtest(runs, figures)
    if arguments.json:
        write_json(scores)
    else:
        rows = [
            [name, *(f"{value:.3f}" for value in (s.pinball50, s.pinball90, s.coverage90, s.within2x)), f"{s.n:,}"]
            for name, s in scores.items()
        ]
        titles = ("METHOD", "PINBALL P50", "PINBALL P90", "COVERAGE P90", "WITHIN 2X", "JOBS")
        write_lines(table(titles, rows, (False, True, True, True, True, True)))
    tell_problems(problems, "lines could not be read")


Figures = Sequence[float | None]


class MethodFigures(Protocol):
    """Figures of one method on one file."""

    @property
    def n(self) -> int: ...


Score = TypeVar("Score", bound=MethodFigures)


def scaling(arguments: argparse.Namespace) -> None:
    """Capacity decided `--lead` hours before. One file: an object keyed by method. Several: that object under each
    series' name, and means: geometric for capacity above demand, plain for unmet demand."""
    problems = Problems()
    now_hour = int(datetime.now(UTC).timestamp() // 3600)
    read = [spot_price.read(path, problems, now_hour=now_hour) for path in arguments.files]
    scores = {}
    for series in read:
        print(f"deciding on {printable(series.name)}: {len(series.values):,} hours", file=sys.stderr)
        scores[series.name] = backtest_demand.backtest_scaling(series, arguments.lead)
    titles = ("METHOD", "ABOVE DEMAND %", "UNMET %", "HOURS")
    _tell(arguments, scores, titles, _scaling_cells, _means)
    tell_mended((series.name, series.mended) for series in read)
    tell_problems(problems, "rows could not be used")


def spot(arguments: argparse.Namespace) -> None:
    """Prices of the next day. Several files: plain means too."""
    problems = Problems()
    read = [spot_price.read_prices(path, problems) for path in arguments.files]
    scores = {changes.name: backtest_demand.backtest_spot_prices(changes) for changes in read}
    titles = ("METHOD", "MEDIAN APE %", "MEAN APE %", "ORIGINS")
    _tell(arguments, scores, titles, _spot_cells, _spot_means)
    tell_mended((changes.name, changes.mended) for changes in read)
    tell_problems(problems, "rows could not be used")


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


def _means(scores: Sequence[Mapping[str, backtest_demand.ScalingScore]]) -> dict[str, backtest_demand.ScalingScore]:
    """Means of each method: geometric for capacity above demand (None if it never held the 1 % on one of them),
    plain for unmet demand."""
    found = {}
    for method in scores[0]:
        over = [each[method].over_provision_pct for each in scores]
        unmet = [each[method].unmet_pct for each in scores]
        n = sum(each[method].n for each in scores)
        found[method] = backtest_demand.ScalingScore(_geometric(over), _plain(unmet), n)
    return found


def _spot_means(
    scores: Sequence[Mapping[str, backtest_demand.SpotPriceScore]],
) -> dict[str, backtest_demand.SpotPriceScore]:
    return {
        method: backtest_demand.SpotPriceScore(
            sum(each[method].median_ape for each in scores) / len(scores),
            sum(each[method].mean_ape for each in scores) / len(scores),
            sum(each[method].n for each in scores),
        )
        for method in scores[0]
    }


def _scaling_cells(each: backtest_demand.ScalingScore) -> list[str]:
    return [_scaling_figure(each.over_provision_pct, 2), _scaling_figure(each.unmet_pct, 2)]


def _spot_cells(each: backtest_demand.SpotPriceScore) -> list[str]:
    return [_scaling_figure(each.median_ape), _scaling_figure(each.mean_ape)]


def _geometric(values: Figures) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or min(known) <= 0:
        return None
    return math.exp(sum(map(math.log, known)) / len(known))


def _plain(values: Figures) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _scaling_figure(value: float | None, places: int = 1) -> str:
    return "-" if value is None else f"{value:,.{places}f}"
