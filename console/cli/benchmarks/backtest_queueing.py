"""The command `muster backtest queueing`: what learnt run times are worth to a queue, beside EASY backfill."""

from __future__ import annotations

import argparse
import importlib.util
import sys

from console.cli.benchmarks.backtest_run_times import MissingLearner
from console.cli.show import write_json, write_lines
from console.text.plain_tables import facts, table
from console.text.terminal_text import duration, printable
from recommender.backtests import queueing as backtest


def queueing(arguments: argparse.Namespace) -> None:
    """Waits of a trace's jobs by policy; see `recommender.backtests.queueing` for the protocol."""
    if importlib.util.find_spec("sklearn") is None:
        raise MissingLearner("scikit-learn is not installed, and run times are learnt with it", "pip install .")
    plan = backtest.read(arguments.file, arguments.format, nodes=arguments.nodes, arrivals=arguments.arrivals)
    scores = backtest.backtest(plan, arguments.format, every=arguments.every)
    if arguments.json:
        write_json(scores)
    else:
        rows = [
            [
                name,
                f"{s.avg_wait_s:,.0f} s",
                f"{s.p95_wait_s:,.0f} s",
                duration(round(s.max_wait_s * 1000)),
                f"{s.avg_bounded_slowdown:,.2f}",
            ]
            for name, s in scores.items()
        ]
        titles = ("POLICY", "AVERAGE WAIT", "P95 WAIT", "LONGEST", "BOUNDED SLOWDOWN")
        left_out = [(f"left out: {printable(why)}", f"{count:,}") for why, count in plan.problems.skipped.items()]
        write_lines([
            *table(titles, rows, (False, True, True, True, True)),
            "",
            *facts([(name, backtest.ROWS[name]) for name in scores]),
            "",
            *facts([("jobs", f"{len(plan.jobs):,}"), *left_out]),
        ])  # fmt: skip
    if plan.problems.count:
        print(f"muster: {plan.problems.count:,} lines could not be read", file=sys.stderr)
        for problem in plan.problems.first[:3]:
            print(f"  {printable(str(problem))}", file=sys.stderr)
