"""Textual's pilot on a busy machine. Of itself it takes a process that is given no CPU for one that has nothing to do,
and gives up after 30 s."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from textual import app, pilot
from textual.pilot import Pilot

from tests.support.patience import PATIENCE_S

LOOK_S = 0.02
IDLE_S = 0.001
"""CPU time between two looks of a process that does nothing."""


def install() -> None:
    Pilot._wait_for_screen.__defaults__ = (PATIENCE_S,)
    pilot.wait_for_idle = app.wait_for_idle = until_idle  # type: ignore[attr-defined]


async def until_idle(min_sleep: float = LOOK_S, max_sleep: float = 1.0) -> None:
    """As `textual._wait.wait_for_idle`, but `max_sleep` is CPU time, and a thread that waits for a CPU is not idle."""
    begun, begun_cpu = time.monotonic(), time.process_time()
    while True:
        before = time.process_time()
        await asyncio.sleep(LOOK_S)
        now = time.process_time()
        idle = now - before < IDLE_S and not _wants_cpu()
        if (idle and time.monotonic() - begun > min_sleep) or now - begun_cpu >= max_sleep:
            return


def _wants_cpu() -> bool:
    """Whether another thread of this process runs, or would if there were a CPU for it."""
    own = threading.get_native_id()
    for stat in Path("/proc/self/task").glob("*/stat"):
        try:
            if int(stat.parent.name) != own and stat.read_text().rpartition(") ")[2][0] == "R":
                return True
        except OSError:  # it has ended
            continue
    return False
