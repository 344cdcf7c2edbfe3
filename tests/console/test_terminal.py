"""The whole thing in real terminals: `muster --demo` under tmux, and what becomes of a terminal that goes away."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar, cast

import pytest
from textual.drivers._writer_thread import WriterThread

from console.guarded import Vanishing

MUSTER = str(Path(sys.executable).with_name("muster"))
PATIENCE_S = 30.0
T = TypeVar("T")


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """State of its own, and no engine left behind."""
    mine = os.environ | {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("STATE", "CONFIG", "DATA")}
    mine |= {"XDG_RUNTIME_DIR": str(tmp_path), "TERM": "xterm-256color", "TMUX_TMPDIR": str(tmp_path)}
    mine.pop("TMUX", None)
    mine.pop("NO_COLOR", None)
    yield mine
    subprocess.run([MUSTER, "stop", "--cell", "demo"], env=mine, capture_output=True, check=False)


class Tmux:
    """One session on a server of its own."""

    def __init__(self, environment: dict[str, str], name: str) -> None:
        self._base = ["tmux", "-L", name, "-f", "/dev/null"]
        self._environment = environment

    def call(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._base, *arguments], env=self._environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    def screen(self) -> str:
        return self.call("capture-pane", "-p", "-t", "s")

    def press(self, *keys: str) -> None:
        self.call("send-keys", "-t", "s", *keys)

    def type(self, text: str) -> None:
        self.call("send-keys", "-t", "s", "-l", text)

    def until(self, *texts: str) -> str:
        """The screen once it shows all the texts."""
        return wait_for(self.screen, lambda screen: all(text in screen for text in texts), f"{texts} on the screen")


def wait_for(read: Callable[[], T], good: Callable[[T], bool], what: str) -> T:
    until = time.monotonic() + PATIENCE_S
    while not good(value := read()):
        assert time.monotonic() < until, f"no {what} within {PATIENCE_S:g} s, but:\n{value}"
    return value


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_session_in_tmux(environment: dict[str, str], tmp_path: Path) -> None:
    tmux = Tmux(environment, f"muster-test-{os.getpid()}")
    shell = f"{shlex.quote(MUSTER)} --demo --nodes 40; echo left with $?; sleep 60"
    tmux.call("new-session", "-d", "-s", "s", "-x", "80", "-y", "24", shell)
    try:
        tmux.until("overview", "nodes ready", "running")
        tmux.press("3")
        tmux.until("workloads", "STATE", "● running")
        # All at once, as fast fingers and pasted text come: what follows "/" belongs to the bar, not to the page.
        tmux.type("/state:running")
        tmux.press("Enter")
        tmux.until("/state:running")
        tmux.press("Enter")
        workload = re.search(r"workloads › (\S+)", tmux.until("workloads ›", "Where it runs")).group(1)
        tmux.press("X")
        tmux.until(f"Cancel workload {workload}", "Before and after")
        tmux.press("Escape")
        tmux.until("Where it runs", "nothing was changed")
        tmux.press("q")
        tmux.until("/state:running")
        tmux.type(":nodes state:ready")
        tmux.press("Enter")
        tmux.until("nodes", "/state:ready")
        tmux.press("C-c")
        left = tmux.until("left with 0", "the engine goes on as process", "muster stop --cell demo")
        assert "overview" not in left, "the alternate screen was not left"
        seen = subprocess.run(
            [MUSTER, "get", "workloads", workload, "--cell", "demo", "--json"],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert '"cancelled"' not in seen.stdout, "looking at a plan must not act"
    finally:
        tmux.call("kill-server")


def in_a_terminal(environment: dict[str, str], *arguments: str) -> tuple[int, int]:
    """(process, terminal) of `muster` in a pseudo-terminal of its own."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(MUSTER, [MUSTER, *arguments], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    return child, terminal


def read_until(terminal: int, wanted: bytes) -> bytes:
    seen = b""

    def more() -> bytes:
        nonlocal seen
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                seen += os.read(terminal, 65_536)
            except OSError:  # the other side has closed
                return seen
        return seen

    return wait_for(more, lambda text: wanted in text, f"{wanted!r}")


def exit_status(child: int) -> int:
    return wait_for(lambda: os.waitpid(child, os.WNOHANG), lambda ended: ended[0] == child, "end of the process")[1]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_console_and_restores_the_terminal(environment: dict[str, str], how: signal.Signals) -> None:
    child, terminal = in_a_terminal(environment, "--demo", "--nodes", "40")
    try:
        read_until(terminal, b"nodes ready")
        os.kill(child, how)
        read_until(terminal, b"\x1b[?1049l")
        assert os.waitstatus_to_exitcode(exit_status(child)) == 0
    finally:
        os.close(terminal)


def test_a_terminal_that_goes_away_takes_the_console_with_it_but_not_the_engine(environment: dict[str, str]) -> None:
    child, terminal = in_a_terminal(environment, "--demo", "--nodes", "40")
    read_until(terminal, b"nodes ready")
    os.close(terminal)
    exit_status(child)
    alive = subprocess.run(
        [MUSTER, "overview", "--cell", "demo"], env=environment, capture_output=True, text=True, check=False
    )
    assert alive.returncode == 0, alive.stderr


def test_what_is_still_to_be_drawn_when_the_terminal_is_gone_keeps_nobody_waiting() -> None:
    terminal, inside = pty.openpty()
    drawn_on = io.TextIOWrapper(io.FileIO(inside, "w"), write_through=True)
    writer = WriterThread(cast(IO[str], Vanishing(drawn_on)))
    os.close(terminal)

    def draw_and_leave() -> None:
        for _ in range(200):
            writer.write("x" * 500)
        writer.stop()

    writer.start()
    leaving = threading.Thread(target=draw_and_leave, daemon=True)
    leaving.start()
    leaving.join(PATIENCE_S)
    assert not leaving.is_alive()
    drawn_on.close()


def test_without_a_terminal_it_says_so_and_names_what_to_use(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [MUSTER, "--demo"], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "muster overview" in done.stderr
    assert "Traceback" not in done.stderr
