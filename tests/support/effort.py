"""How much the tests try, by TESTS_THOROUGH. `make test-long` sets `all`: every case. `make check` sets it otherwise:
a third of the random cases. `make test` does not: a tenth."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
THOROUGH = bool(os.environ.get("TESTS_THOROUGH"))
ALL = os.environ.get("TESTS_THOROUGH") == "all"
_PART = 1 if ALL else 3 if THOROUGH else 10


def examples(most: int) -> int:
    """Random cases of a property test."""
    return max(most // _PART, 3)


def some(rows: Sequence[T], every: int) -> Sequence[T]:
    """Rows of a table that one test goes through: all of them, or each of so many."""
    return rows if THOROUGH else rows[::every]


def most(rows: Sequence[T], every: int) -> Sequence[T]:
    """Rows of a table that a thorough test goes through: each of so many in `make check`."""
    return rows if ALL else rows[::every]
