"""A program in a pseudo-terminal, read like a terminal reads it: as soon as something comes, with the time it came."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.patience import PATIENCE_S
from tests.support.screen_model import ScreenModel

READ_BYTES = 65_536
_ASKED_SYNC = "\x1b[?2026$p"
_SYNC_KNOWN = b"\x1b[?2026;2$y"
ASKED = re.compile(r"\[y/N\] |Type ([0-9a-f]{6}) to execute: ")
"""A question before something is done, and what must be typed where a yes is not enough."""
_FRAME_ENDS = re.compile("(?<=\x1b\\[\\?2026l)")


class PseudoTerminal:
    """Starts the program at once. It answers, as terminals of today do, that it can show whole frames at once; with
    `plain` it answers nothing, as older ones."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        width: int = 80,
        height: int = 24,
        plain: bool = False,
    ) -> None:
        self.screen = ScreenModel(width, height)
        self.bytes_read = 0
        self.read_at = 0.0
        """When the last bytes came, by `time.perf_counter`."""
        self.frame_at = 0.0
        """When the bytes came with which the frame that `screen` shows was complete."""
        self.frame_bytes = 0
        """Bytes up to the end of that frame."""
        self.closed = False
        self.raw = ""
        """Everything that was read."""
        self._plain = plain
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._unread: list[tuple[float, int, str]] = []
        self.begun = time.perf_counter()
        leader, follower = pty.openpty()
        fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.before = termios.tcgetattr(follower)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(leader)
            os.login_tty(follower)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever runs the tests may have it ignored
            os.execve(command[0], list(command), dict(environment))
        self.leader, self._follower = leader, follower

    # --- what a person does

    def press(self, keys: str | bytes) -> float:
        """Send keys. Returns the time just before."""
        at = time.perf_counter()
        os.write(self.leader, keys.encode() if isinstance(keys, str) else keys)
        return at

    def resize(self, width: int, height: int) -> None:
        self.screen.resize(width, height)
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    # --- what a terminal does

    @staticmethod
    def now() -> float:
        return time.perf_counter()

    def pump(self, seconds: float) -> bool:
        """Read for up to so long; returns early, with true, when a whole frame was taken in.

        Reading comes first: what was read is put on the screen model only while nothing more waits to be read.
        """
        until = time.perf_counter() + seconds
        while True:
            waiting = 0.0 if self._unread else max(0.0, until - time.perf_counter())
            if self._readable(waiting):
                self._read()
            elif self._unread:
                if self._take_in():
                    return True
            elif self.closed or time.perf_counter() >= until:
                return False

    def until(self, good: Callable[[ScreenModel], object], what: str, seconds: float = PATIENCE_S) -> float:
        """Read until a frame is as wanted; returns when its last byte came. Raises TimeoutError with the screen."""
        deadline = time.perf_counter() + seconds
        while not good(self.screen):
            if time.perf_counter() > deadline or (self.closed and not self._unread):
                raise TimeoutError(f"no {what} within {seconds:g} s, but:\n" + "\n".join(self.screen.text))
            self.pump(min(0.05, max(0.0, deadline - time.perf_counter())))
        return self.frame_at

    def shows(self, *texts: str, seconds: float = PATIENCE_S) -> float:
        """`until` all these texts are on the screen."""

        def there(screen: ScreenModel) -> bool:
            text = "\n".join(screen.text)
            return all(wanted in text for wanted in texts)

        return self.until(there, f"{texts}", seconds)

    def settle(self, quiet_s: float, most_s: float) -> None:
        """Read until nothing came for `quiet_s`, or for `most_s` in all."""
        until = time.perf_counter() + most_s
        while (now := time.perf_counter()) < until and not self.closed:
            before = self.bytes_read
            self.pump(min(quiet_s, until - now))
            if self.bytes_read == before and time.perf_counter() - max(self.read_at, now) >= quiet_s * 0.9:
                return

    def _readable(self, seconds: float) -> bool:
        return not self.closed and bool(select.select([self.leader], [], [], seconds)[0])

    def _read(self) -> None:
        try:
            data = os.read(self.leader, READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return
        self.read_at = time.perf_counter()
        self.bytes_read += len(data)
        text = self._decode(data)
        self.raw += text
        if not self._plain and _ASKED_SYNC in self.raw[-len(text) - len(_ASKED_SYNC) :]:
            os.write(self.leader, _SYNC_KNOWN)
        self._unread.append((self.read_at, self.bytes_read, text))

    def _take_in(self) -> bool:
        """Put what was read on the screen, up to the end of a frame. True when there was one."""
        at, count, text = self._unread.pop(0)
        first, *more = _FRAME_ENDS.split(text, maxsplit=1)
        if more and more[0]:
            self._unread.insert(0, (at, count, more[0]))
        before = self.screen.frames
        self.screen.feed(first)
        if self._plain or self.screen.frames > before or not self.screen.frames:
            self.frame_at, self.frame_bytes = at, count
        return self._plain or self.screen.frames > before

    # --- its end

    def wait(self, seconds: float = PATIENCE_S) -> int:
        """The exit code, negative for a signal; reads meanwhile, so that it can end. Raises TimeoutError."""
        deadline = time.perf_counter() + seconds
        while True:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.pid = 0
                self.pump(0.1)
                return os.waitstatus_to_exitcode(status)
            if time.perf_counter() > deadline:
                raise TimeoutError(f"process {self.pid} did not end within {seconds:g} s")
            self.pump(0.02)

    @property
    def attributes(self) -> list[object]:
        """What the terminal's line discipline is set to now, to compare with `before`."""
        return termios.tcgetattr(self._follower)

    def close(self) -> None:
        """End what still runs, and let the terminal go."""
        if self.pid:
            for how in (signal.SIGTERM, signal.SIGKILL):
                os.kill(self.pid, how)
                try:
                    self.wait(PATIENCE_S)
                    break
                except TimeoutError:
                    continue
        for end in (self.leader, self._follower):
            os.close(end)


def read_text(terminal: int, seconds: float = PATIENCE_S) -> str:
    """The next text that comes; none once no process has the terminal open. Raises TimeoutError."""
    if not select.select([terminal], [], [], seconds)[0]:
        raise TimeoutError(f"the terminal shows nothing more within {seconds:g} s")
    try:
        return os.read(terminal, READ_BYTES).decode(errors="replace")
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    """Process ids of all that descend from a process."""
    try:
        direct = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [found for child in direct for found in (child, *children(child))]
