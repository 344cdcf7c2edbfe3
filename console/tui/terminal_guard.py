"""The terminal as it was found, also when the console is killed: a process that waits for the console, and tidies up.

`muster` becomes two processes before anything heavy is loaded. The first is the one the shell knows; it only waits. The
second is the console. However the second ends, the first is still there to take back what the terminal was set to, and
ends as the console did. Signals, stopping and going on (ctrl+z, fg) are passed along, so that both are one job to the
shell. When the first is killed, the second notices and ends in order.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
import termios
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from console.text.terminal_text import printable

KEYS, SCREEN = 0, 1
"""File descriptors: keys come from standard input, and the screen is on standard output."""
LEAVE = (
    "\x18"  # an escape sequence that was cut short is none
    "\x1b[?2026l\x1b[0m"  # the frame is over
    "\x1b[?2004l\x1b[?7h\x1b[?2048l"  # bracketed paste, line wrap, reports of the window's size
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"  # the mouse
    "\x1b[<u"  # the keyboard protocol, which belongs to the screen that is left next
    "\x1b[?1049l\x1b[?25h\x1b[?1004l"  # the other screen, a hidden cursor, reports of focus
)
"""What takes back all that a console may have switched on."""
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
GO_ON_S = 0.3
"""How long a stopped console may take to go on with its job, before it is told to."""
TERMINATED = 128
"""Added to the number of a signal that ended a process, to make an exit code of it: as shells do."""


class TerminalGuard:
    """What the two processes share."""

    def __init__(self, drawn: mmap.mmap, lifeline: int) -> None:
        self._drawn = drawn
        self.lifeline = lifeline
        """A file descriptor that becomes readable once nobody watches any more."""

    def entered(self) -> None:
        """From now on the terminal is not as it was found."""
        self._drawn[0] = 1

    def left(self) -> None:
        self._drawn[0] = 0


_watch: TerminalGuard | None = None


def watch() -> TerminalGuard | None:
    """Of this process, if it is a watched console."""
    return _watch


def watched() -> int | None:
    """Make two processes of this one. None in that which is to be the console; in the other, once that has ended, the
    exit code to end with."""
    global _watch
    sys.stdout.flush()
    sys.stderr.flush()
    before = termios.tcgetattr(KEYS)
    drawn = mmap.mmap(-1, 1)
    lifeline, alive = os.pipe()
    console = os.fork()
    if console == 0:
        os.close(alive)
        _watch = TerminalGuard(drawn, lifeline)
        return None
    os.close(lifeline)
    _pass_signals_on(console, lambda: drawn[0] == 1)
    code = _wait_for(console)
    if drawn[0]:
        _restore(before)
    if code < 0:
        _tell(-code)
        return TERMINATED - code
    return code


def _pass_signals_on(console: int, drawn: Callable[[], bool]) -> None:
    def pass_on(number: int, frame: FrameType | None) -> None:
        # A drawn console has taken ctrl+c as a key: this signal came to us alone.
        if number != signal.SIGINT or drawn():
            with contextlib.suppress(ProcessLookupError):
                os.kill(console, number)

    for number in (*PASSED_ON, signal.SIGINT):
        signal.signal(number, pass_on)


def _wait_for(console: int) -> int:
    """The console's exit code, negative for a signal. Stops when it stops, so that the shell gets its prompt."""
    while True:
        _, status = os.waitpid(console, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        os.kill(os.getpid(), signal.SIGSTOP)
        _have_go_on(console)


def _have_go_on(console: int) -> None:
    """We go on. Usually so does the console, as the same job: told twice, it would begin twice."""
    until = time.monotonic() + GO_ON_S
    while time.monotonic() < until:
        found = os.waitid(os.P_PID, console, os.WCONTINUED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            return
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.kill(console, signal.SIGCONT)


def _restore(before: list[Any]) -> None:
    """A terminal that is gone needs nothing."""
    # Also where the shell has taken the terminal back already.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.write(SCREEN, LEAVE.encode("ascii"))
    with contextlib.suppress(termios.error):
        termios.tcflush(KEYS, termios.TCIFLUSH)
        termios.tcsetattr(KEYS, termios.TCSANOW, before)


def _tell(number: int) -> None:
    with contextlib.suppress(OSError):
        told = f"muster: the console was stopped by {signal.Signals(number).name}; the engine is not affected"
        print(printable(told), file=sys.stderr)
