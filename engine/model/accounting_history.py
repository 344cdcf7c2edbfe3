"""How long work ran before a cell looked on: what the accounting of the scheduler that decides remembers.

Run times are learnt from it (`engine.state.run_times`); it is no work of the cell, and nothing is charged for it.
"""

from __future__ import annotations

import re

import msgspec

MAX_RUNS = 5_000
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


def stem(name: str) -> str:
    """What names of like work have in common: `train-17` and `train-18`. Empty where that says nothing."""
    found = _DIGITS.sub("", name)
    return found if found.strip("-_./ ") else ""
