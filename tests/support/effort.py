"""How much the tests try: all of it where TESTS_THOROUGH is set, as by `make check` and `make test-long`; else, as by
`make test`, a part."""

from __future__ import annotations

import os

THOROUGH = bool(os.environ.get("TESTS_THOROUGH"))


def examples(most: int) -> int:
    """Random cases of a property test."""
    return most if THOROUGH else max(most * 2 // 5, 5)
