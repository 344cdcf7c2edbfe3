"""The command `muster backtest demand`: forecasts of hourly series against what happened, beside simple rules."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from console.cli.show import write_json, write_lines
from console.text.plain_tables import table
from console.text.terminal_text import printable
from engine.model.errors import MusterError, SpecError
from engine.traces.trace_reader import Problems
from recommender.backtests import demand as backtest_demand
from recommender.backtests.demand import HORIZONS, DemandScore
from recommender.forecasts import hourly_series

RULE = "seasonal_naive_24"
"""What the means over several series are relative to."""
MEAN = "mean_over_series"


class MissingStatistics(MusterError):
    """The statistics package is not installed here."""


def demand(arguments: argparse.Namespace) -> None:
    """Demand forecasts on hourly series; see `recommender.backtests.demand` for the protocol. One file: an object keyed
    by method. Several: that object under each series' name, and their geometric mean relative to the day before."""
    if importlib.util.find_spec("statsmodels") is None:
        raise MissingStatistics("statsmodels is not installed, and demand is forecast with it", "pip install .")
    problems = Problems()
    now_hour = int(datetime.now(UTC).timestamp() // 3600)
    read = [hourly_series.read(path, problems, now_hour=now_hour) for path in arguments.files]
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
    for series in read:
        for what in series.mended:
            print(f"muster: {printable(series.name)}: {printable(what)}", file=sys.stderr)
    if problems.count:
        print(f"muster: {problems.count:,} rows could not be used", file=sys.stderr)
        for problem in problems.first[:3]:
            print(f"  {printable(str(problem))}", file=sys.stderr)


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
    """By method: of errors relative to the same hour of the day before, over the series where both are above 0; of the
    share within the 80 % interval, the plain mean."""
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
