"""How much the tests try: all of it where TESTS_THOROUGH is set, as by `make check` and `make test-long`; else, as by
`make test`, a part."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
THOROUGH = bool(os.environ.get("TESTS_THOROUGH"))


def examples(most: int) -> int:
    """Random cases of a property test."""
    return most if THOROUGH else max(most // 10, 3)


def some(rows: Sequence[T], every: int) -> Sequence[T]:
    """Rows of a table that one test goes through: all of them, or each of so many."""
    return rows if THOROUGH else rows[::every]
