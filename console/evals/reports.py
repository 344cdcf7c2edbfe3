"""Parts that reports of benchmarks and backtests share: the machine they ran on, and what of the input was left out.

Data goes to standard output with the report; what was mended or left out is narration, on standard error.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Iterable, Sequence

from console.text.terminal_text import printable
from engine.model.errors import MusterError
from engine.traces.trace_reader import Problems


class MissingLearner(MusterError):
    """The learning package is not installed here."""


def require_learner() -> None:
    """Raises MissingLearner unless run times can be learnt here."""
    if importlib.util.find_spec("sklearn") is None:
        raise MissingLearner("scikit-learn is not installed, and run times are learnt with it", "pip install .")


def machine() -> dict[str, object]:
    """The machine of a run, for JSON."""
    return {"python": platform.python_version(), "cores": os.cpu_count()}


def machine_fact() -> tuple[str, str]:
    """The same as a labelled line."""
    return "machine", f"Python {platform.python_version()}, {os.cpu_count()} cores"


def tell_mended(series: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Print, for each series by name, what was mended in it."""
    for name, mended in series:
        for what in mended:
            print(f"muster: {printable(name)}: {printable(what)}", file=sys.stderr)


def tell_problems(problems: Problems, what: str) -> None:
    """Print how much of the input had a problem, and the first three. `what`: such as "lines could not be read"."""
    if problems.count:
        print(f"muster: {problems.count:,} {what}", file=sys.stderr)
        for problem in problems.first[:3]:
            print(f"  {printable(str(problem))}", file=sys.stderr)
