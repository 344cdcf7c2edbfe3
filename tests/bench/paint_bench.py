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
import subprocess
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
FRAME = b"overview"
"""Text that a painted frame has, with or without data."""
DATA = b"nodes ready"
"""Text that only a frame with data has."""


def first_paint() -> Iterator[dict[str, Any]]:
    """`muster` to a painted frame, and to data in it, with the engine running; beside bare `python -c pass`."""
    muster = str(Path(sys.executable).with_name("muster"))
    with tempfile.TemporaryDirectory() as state:
        environment = os.environ | {
            "XDG_STATE_HOME": state, "XDG_CONFIG_HOME": state, "XDG_RUNTIME_DIR": state, "TERM": "xterm-256color",
        }  # fmt: skip
        engine = subprocess.Popen([muster, "serve", "--demo"], env=environment, stderr=subprocess.DEVNULL)
        try:
            _wait_for_engine(muster, environment)
            frames = [paint([muster, "--demo"], environment, FRAME) for _ in range(RUNS)]
            filled = [paint([muster, "--demo"], environment, DATA) for _ in range(RUNS)]
        finally:
            engine.terminate()
            engine.wait()
    bare = [_bare() for _ in range(RUNS)]
    yield {
        "at": "demo engine running, 120x36 terminal",
        "result": f"{statistics.median(frames):.2f} s",
        "seconds": statistics.median(frames),
        "worst_s": max(frames),
        "data_s": statistics.median(filled),
        "reference": f"worst of {RUNS} {max(frames):.2f} s; with data {statistics.median(filled):.2f} s; "
        f"bare Python {statistics.median(bare):.2f} s",
    }


def _wait_for_engine(muster: str, environment: dict[str, str]) -> None:
    """Return when it answers; give up after LIMIT_S."""
    until = time.perf_counter() + LIMIT_S
    asking = [muster, "overview", "--cell", "demo"]
    while subprocess.run(asking, env=environment, capture_output=True, check=False).returncode:
        if time.perf_counter() > until:
            raise RuntimeError("the demo engine does not answer")


def paint(command: list[str], environment: dict[str, str], wanted: bytes) -> float:
    """Seconds from starting the command to `wanted` on its screen. The program is ended afterwards."""
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
                if wanted in _ESCAPES.sub(b"", seen):
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
