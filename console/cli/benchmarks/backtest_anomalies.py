"""The command `muster backtest anomaly`: what is out of the ordinary in series anyone can bring, and how often that
agrees with people's labels."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from console.cli.show import write_json, write_lines
from console.text.plain_tables import table
from console.text.terminal_text import NONE, printable, timestamp
from engine.model.errors import SpecError
from engine.traces.trace_reader import Problems
from recommender.backtests import anomalies
from recommender.findings.anomalies import WEEK_MS

SHOWN = 20
"""Alarms listed of one series."""


def anomaly(arguments: argparse.Namespace) -> None:
    """Alarms of each series; with labels, precision and recall beside simple rules. See
    `recommender.backtests.anomalies` for the protocol."""
    labels = anomalies.read_labels(arguments.labels) if arguments.labels else {}
    problems = Problems(strict=False)
    series = [anomalies.read(path, problems) for path in arguments.files]
    names = [each.name for each in series]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SpecError("FILE", f"two series are called '{twice[:80]}'", "Give each file once, under its own name")
    if labels and not any(name in labels for name in names):
        raise SpecError("--labels", "names none of the files", f'It should have such as "{names[0][:80]}.csv"')
    alarms, scores = anomalies.backtest(series, labels)
    if arguments.json:
        write_json(as_object(series, alarms, scores))
    else:
        write_lines(scored_lines(scores, names) if labels else alarm_lines(series, alarms))
    tell(series, problems, [name for name in names if labels and name not in labels])


def as_object(
    series: Sequence[anomalies.LabelledSeries], alarms: dict[str, Any], scores: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """By method: the pooled score, then `files` and `alarms` by series."""
    found: dict[str, Any] = {}
    for method, told in alarms.items():
        by_file = scores[method]
        if by_file:
            sums = msgspec.to_builtins(anomalies.pooled(list(by_file.values())))
        else:
            weeks = sum((each.at_ms[-1] - each.scored_from_ms) / WEEK_MS for each in series)
            count = sum(map(len, told.values()))
            sums = {"alarms": count, "weeks": weeks, "alarms_per_week": count / weeks if weeks else 0.0}
        found[method] = {**sums, **({"files": by_file} if by_file else {}), "alarms_ms": told}
    return found


def scored_lines(scores: dict[str, dict[str, anomalies.AnomalyScore]], names: Sequence[str]) -> list[str]:
    titles = ("METHOD", "RECALL", "PRECISION", "WINDOWS", "HIT", "FALSE", "ALARMS/WK", "FALSE/WK")
    rows = [[method, *cells(anomalies.pooled(list(by_file.values())))] for method, by_file in scores.items()]
    lines = table(titles, rows, (False, *(True,) * 7))
    own = scores["muster"]
    rows = [[printable(name), *cells(own[name])] for name in names if name in own]
    return [*lines, "", *table(("MUSTER, BY SERIES", *titles[1:]), rows, (False, *(True,) * 7))]


def cells(score: anomalies.AnomalyScore) -> list[str]:
    return [
        share(score.recall), share(score.precision), f"{score.windows}", f"{score.hit}", f"{score.false}",
        f"{score.alarms_per_week:.2f}", f"{score.false_per_week:.2f}",
    ]  # fmt: skip


def share(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def alarm_lines(series: Sequence[anomalies.LabelledSeries], alarms: dict[str, dict[str, list[int]]]) -> list[str]:
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


def tell(series: Sequence[anomalies.LabelledSeries], problems: Problems, unlabelled: Sequence[str]) -> None:
    """On standard error: what was mended or left out."""
    for each in series:
        for what in each.mended:
            print(f"muster: {printable(each.name)}: {printable(what)}", file=sys.stderr)
    for name in unlabelled:
        print(f"muster: {printable(name)} has no labels and is not scored", file=sys.stderr)
    if problems.count:
        print(f"muster: {problems.count:,} rows could not be read", file=sys.stderr)
        for problem in problems.first[:3]:
            print(f"  {printable(str(problem))}", file=sys.stderr)
