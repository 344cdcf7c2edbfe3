"""The command `muster backtest`: estimates against what happened, on a file anyone can bring, beside simple rules."""

from __future__ import annotations

import argparse
import importlib.util
import sys

from console.cli.show import write_json, write_lines
from console.text.plain_tables import table
from console.text.terminal_text import printable
from engine.model.errors import MusterError
from engine.traces.trace_reader import Problems
from recommender.backtests import run_times


class MissingLearner(MusterError):
    """The learning package is not installed here."""


def runtime(arguments: argparse.Namespace) -> None:
    """Run-time estimates on a trace; see `recommender.backtests.run_times` for the protocol."""
    if importlib.util.find_spec("sklearn") is None:
        raise MissingLearner("scikit-learn is not installed, and run times are learnt with it", "pip install .")
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
    if problems.count:
        print(f"muster: {problems.count:,} lines could not be read", file=sys.stderr)
        for problem in problems.first[:3]:
            print(f"  {printable(str(problem))}", file=sys.stderr)
