"""From the shell to the first screen, in a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RUNS = 7
LIMIT_S = 20.0
_ESCAPES = re.compile(rb"\x1b(\[[0-9;?]*[a-zA-Z]|[=>()][0-9A-Z]?|\][^\x07]*\x07)")
SHOWN = (b"Overview", b"overview")
"""Text that only a painted frame has."""


def first_paint() -> Iterator[dict[str, Any]]:
    """Median of `muster` to a painted frame with the engine running already, and of bare `python -c pass`."""
    muster = Path(sys.executable).with_name("muster")
    with tempfile.TemporaryDirectory() as state:
        environment = os.environ | {
            "XDG_STATE_HOME": state, "XDG_CONFIG_HOME": state, "XDG_RUNTIME_DIR": state, "TERM": "xterm-256color",
        }  # fmt: skip
        try:
            cold = paint([str(muster), "--demo"], environment)
            warm = [paint([str(muster), "--demo"], environment) for _ in range(RUNS)]
        finally:
            os.spawnve(os.P_WAIT, str(muster), [str(muster), "stop", "--cell", "demo"], environment)
    bare = [_bare() for _ in range(RUNS)]
    yield {
        "at": "engine running, 120x36 terminal",
        "result": f"{statistics.median(warm):.2f} s",
        "seconds": statistics.median(warm),
        "worst_s": max(warm),
        "engine_not_running_s": cold,
        "reference": f"worst {max(warm):.2f} s; engine not yet running {cold:.2f} s; "
        f"bare Python {statistics.median(bare):.2f} s",
    }


def paint(command: list[str], environment: dict[str, str]) -> float:
    """Seconds from starting the command to its frame. The program is ended afterwards."""
    begun = time.perf_counter()
    child, terminal = pty.fork()
    if child == 0:
        os.execve(command[0], command, environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
    seen = b""
    try:
        while time.perf_counter() - begun < LIMIT_S:
            if select.select([terminal], [], [], 0.05)[0]:
                try:
                    seen += os.read(terminal, 65_536)
                except OSError:
                    break
                if any(text in _ESCAPES.sub(b"", seen) for text in SHOWN):
                    return time.perf_counter() - begun
        raise RuntimeError(f"no frame within {LIMIT_S} s: {_ESCAPES.sub(b'', seen)[-400:]!r}")
    finally:
        os.kill(child, signal.SIGTERM)
        _drain(terminal)
        os.waitpid(child, 0)
        os.close(terminal)


def _drain(terminal: int) -> None:
    """Read until the program has closed its side, so that it can restore the terminal and end."""
    try:
        while select.select([terminal], [], [], 5.0)[0] and os.read(terminal, 65_536):
            pass
    except OSError:
        return


def _bare() -> float:
    begun = time.perf_counter()
    os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", "pass"])
    return time.perf_counter() - begun
