"""How long a test waits for what must come: it ends a run that hangs, and measures nothing. No test fails because the
machine is slow; what is to be quick is measured as CPU time, as a ratio, or in `tests/bench`."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 180.0


def until(true: Callable[[], object], told: Callable[[], object] = lambda: "") -> None:
    """Returns once it is so. `told` says how far it has come, for the failure."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, f"not so within {PATIENCE_S:g} s: {told()}"
        time.sleep(0.02)
