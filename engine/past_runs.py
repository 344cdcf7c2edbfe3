"""How long work ran before a cell looked on: what the accounting of the scheduler that decides remembers.

Run times are learnt from it (`engine.run_times`); it is no work of the cell, and nothing is charged for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from engine.columns import Table

MOST_RUNS = 5_000
_DIGITS = re.compile(r"\d+")


class PastRun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One run from its start to its end. Names as the cell has them; times are of the cell's clock, milliseconds."""

    queue: str
    tenant: str
    team: str
    name: str
    tasks: int
    gpu_milli: int
    """Of all tasks together."""
    limit_ms: int
    """The time limit by which it would have been ended; 0: without one."""
    run_ms: int
    submitted_ms: int
    started_ms: int
    ended_ms: int
    finished: bool
    """It ended by itself and well."""


class PastRuns(Table):
    columns = ("runs", "until_ms")

    def __init__(self) -> None:
        self.runs: list[Any] = []
        """Of PastRun, in the order in which they ended."""
        self.until_ms = 0
        """What ended later is not among them; 0: nothing was told."""

    def derive(self) -> None:
        self.runs = [msgspec.convert(run, PastRun) for run in self.runs]

    def dump(self) -> dict[str, Any]:
        return super().dump() | {"runs": msgspec.to_builtins(self.runs)}

    def tell(self, runs: Iterable[PastRun], until_ms: int) -> None:
        """In place of all that was told before."""
        self.runs, self.until_ms = list(runs), until_ms


def stem(name: str) -> str:
    """What names of like work have in common: `train-17` and `train-18`. Empty where that says nothing."""
    found = _DIGITS.sub("", name)
    return found if found.strip("-_./ ") else ""
