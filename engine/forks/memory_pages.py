"""Large memory pages, so that a fork of a large engine is quick.

All that `os.fork` does is to copy the page table: 8 bytes and some bookkeeping for every 4 KiB page, 15 ms for a
gigabyte. In pages of 2 MiB the same takes 2 ms, and what is written afterwards is still copied 4 KiB at a time. Nothing
here changes what the memory holds; where the system has no such pages, nothing happens. Linux 6.1 and later
(MADV_COLLAPSE); it asks for no privilege and heeds no setting but its own errors.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator

LARGE = 2 << 20
MIN_BYTES = 256 << 20
"""Smaller processes fork in 4 ms as they are."""
SWEEP_EVERY_S = 30.0
"""Between two sweeps: what is written while a child lives is in small pages again afterwards."""
_MADV_COLLAPSE = 25


class Pages:
    """Sweeps over this process's memory, in steps."""

    def __init__(self) -> None:
        self._rest: Iterator[int] = iter(())
        self._swept_at = -SWEEP_EVERY_S
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise if sys.platform == "linux" else None
        if self._madvise is not None:
            self._madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def tidy(self, budget_s: float) -> bool:
        """Go on for at most about `budget_s` wall seconds (one page can take 10 ms). True when there is nothing to do:
        the process is small, or was swept a little while ago."""
        now = time.monotonic()
        if self._madvise is None:
            return True
        for address in self._rest:
            self._madvise(address, LARGE, _MADV_COLLAPSE)
            if time.monotonic() >= now + budget_s:
                return False
        if now - self._swept_at < SWEEP_EVERY_S or _resident_bytes() < MIN_BYTES:
            return True
        self._swept_at = now
        self._rest = _large_ranges()
        return False


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _large_ranges() -> Iterator[int]:
    """Addresses of all aligned 2 MiB of private memory that belongs to no file."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            lines = maps.readlines()
    except OSError:
        return
    for line in lines:
        span, rights, _, _, inode, *name = line.split(maxsplit=5)
        if rights == "rw-p" and inode == "0" and (not name or name[0].strip() == "[heap]"):
            first, end = (int(part, 16) for part in span.split("-"))
            yield from range(-(-first // LARGE) * LARGE, end // LARGE * LARGE, LARGE)
