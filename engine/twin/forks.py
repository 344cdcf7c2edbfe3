"""Tasks on a copy of this process, made by `os.fork`: nothing is copied until one side writes to it.

The child has only the thread that forked, so it may touch nothing that other threads might have held at that moment. It
closes every file but its pipe, takes no lock, writes to no stream of ours, and leaves by `os._exit` without running
this process's exit handlers. It dies with the thread that started it (Linux), and with any child it started itself. It
sends its results as frames over a pipe; the parent never waits for it. Its memory is bounded, and if memory runs out
all the same the kernel kills a child before any other process.

Large memory pages make the fork of a large engine quick. `os.fork` copies the page table: 8 bytes and some bookkeeping
for every 4 KiB page, 15 ms for a gigabyte. With pages of 2 MiB the same takes 2 ms, and later writes still copy 4 KiB
at a time. The content of the memory stays the same, and where the system has no such pages, nothing happens. Linux 6.1
and later (MADV_COLLAPSE); it needs no privilege and ignores all errors but its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import resource
import select
import signal
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator

NICENESS = 5
"""Below whoever started it, so that the live engine goes first when cores are scarce."""
PIPE_BYTES = 1 << 20
READ_BYTES = 1 << 18
PATIENCE_S = 0.2
"""Time for a child to end its own children and itself before it is killed."""
MAX_FRAME = 1 << 30
MAX_ROOM, MIN_ROOM = 4 << 30, 512 << 20
"""Bytes that a child may take beyond what it began with. Half of what is free then, between these two."""
OUT_OF_MEMORY = 12
"""Exit code of a child that came to that bound."""
_HEADER = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_RUNNING: set[Child] = set()
"""Children of this process that have not been seen to end."""

Report = Callable[[bytes], None]
"""Sends one frame to the parent."""


class Child:
    """A process that works for this one. Read `frames` until it is `over`, or `cancel` it; either way it is reaped."""

    def __init__(self, pid: int, pipe: int, timeout_s: float) -> None:
        self.pid = pid
        self._pipe = pipe
        self._deadline = time.monotonic() + timeout_s
        self._buffer = bytearray()
        self._open = True
        self.over = False
        """True once it has ended and all its frames were read."""
        self.late = False
        """True if it was ended because its time was up."""
        self.exit_code: int | None = None
        """Exit code as in subprocess: negative for a signal."""
        _RUNNING.add(self)

    def fileno(self) -> int:
        """The pipe, for select: readable when there is something to read, or it has ended."""
        return self._pipe

    def frames(self) -> list[bytes]:
        """The frames since the last call. Never waits."""
        if self.over:
            return []
        if time.monotonic() > self._deadline:
            self.late = True
            self.cancel()
            return []
        while self._open:
            try:
                piece = os.read(self._pipe, READ_BYTES)
            except BlockingIOError:
                break
            if not piece:
                os.close(self._pipe)
                self._open = False
            self._buffer += piece
        found = []
        while len(self._buffer) >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + size
            if len(self._buffer) < end:
                break
            found.append(bytes(self._buffer[_HEADER.size : end]))
            del self._buffer[:end]
        if not self._open:
            # It has closed its pipe, which it does by ending.
            self._reap(wait=True)
        return found

    @property
    def failure_text(self) -> str:
        """The error of a child that is over and did not send all it had to."""
        if self.late:
            return "took too long"
        if self.exit_code == OUT_OF_MEMORY:
            return "needed more memory than it may have"
        return f"ended early (exit {self.exit_code})"

    def cancel(self) -> None:
        """End it, if it has not ended. Returns when it is gone."""
        if not self.over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            if self._open:
                # No event asked for: it returns when all that write to the pipe have ended.
                _wait([self], 0, PATIENCE_S)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._reap(wait=True)
        if self._open:
            os.close(self._pipe)
            self._open = False

    def _reap(self, *, wait: bool = False) -> None:
        try:
            pid, status = os.waitpid(self.pid, 0 if wait else os.WNOHANG)
        except ChildProcessError:
            # Somebody who waits for any child has taken it.
            pid, status = self.pid, 0
        if pid:
            self.over = True
            self.exit_code = os.waitstatus_to_exitcode(status)
            _RUNNING.discard(self)


def start(
    work: Callable[[Report], None], timeout_s: float, *, keep: tuple[int, ...] = (), niceness: int = NICENESS
) -> Child:
    """Run `work(report)` in a copy of this process, for at most `timeout_s` wall seconds. `keep`: files of ours that
    stay open in it.

    Called on the thread whose objects it uses: nothing may be half-way changed. Raises OSError when there is no
    process or memory to be had.
    """
    reading, writing = os.pipe()
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    parent = os.getpid()
    # Until it has handlers of its own, a signal to the child would run ours: an event loop would take it for one to us.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    try:
        with warnings.catch_warnings():
            # Later Pythons warn of threads: see above for what keeps to the rules.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _work(work, writing, parent, keep, niceness)
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(writing)
    os.set_blocking(reading, False)
    return Child(pid, reading, timeout_s)


def _work(work: Callable[[Report], None], pipe: int, parent: int, keep: tuple[int, ...], niceness: int) -> None:
    """The child's whole life."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _RUNNING.clear()
        signal.signal(signal.SIGTERM, _end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        die_with_parent()
        if os.getppid() == parent:
            os.nice(niceness)
            bound_memory()
            _close_all_but(pipe, *keep)
            # What was there is never garbage here, and to look through it would copy all of it; what is made here is
            # freed without looking, or ends with the process.
            gc.freeze()
            gc.disable()

            def report(frame: bytes) -> None:
                if len(frame) > MAX_FRAME:
                    raise ValueError(f"a frame of {len(frame)} bytes")
                rest = memoryview(_HEADER.pack(len(frame)) + frame)
                while rest:
                    rest = rest[os.write(pipe, rest) :]

            work(report)
            code = 0
    except MemoryError:
        code = OUT_OF_MEMORY
        with contextlib.suppress(OSError, MemoryError):
            os.write(2, _traced())
    except BaseException:  # whatever it is, this process must not go on as if it were its parent
        with contextlib.suppress(OSError):
            os.write(2, _traced())
    finally:
        os._exit(code)


def die_with_parent() -> None:
    """Called in a child: SIGKILL for it as soon as the thread that forked it has ended, whatever ended that."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def bound_memory() -> None:
    """Address space, because that is known at once: what is shared with the parent counts, what is copied on write of
    it does not count again. One that was bound before is not let out."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
            score.write("1000")
        with open("/proc/self/statm", encoding="ascii") as sizes:
            has = int(sizes.read().split()[0]) * resource.getpagesize()
        with open("/proc/meminfo", encoding="ascii") as lines:
            free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) << 10
        most = has + max(MIN_ROOM, min(MAX_ROOM, free // 2))
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        if soft == resource.RLIM_INFINITY or most < soft:
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _traced() -> bytes:
    """The place of the fault, for a log that people look at: words of strangers in it are escaped."""
    return b"\n".join(line.encode("unicode_escape") for line in traceback.format_exc().split("\n"))


def _end(_signal: int, _frame: object) -> None:
    """Told to end: not before its own children have."""
    for child in list(_RUNNING):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child.pid, 0)
    os._exit(128 + signal.SIGTERM)


def _close_all_but(*kept: int) -> None:
    """Sockets, databases and locks belong to the parent. Standard error stays, for tracebacks."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    for entry in os.listdir("/dev/fd"):
        number = int(entry)
        if number > 2 and number not in kept:
            with contextlib.suppress(OSError):
                os.close(number)


def wait_for(children: Iterable[Child], timeout_s: float | None = None) -> None:
    """Returns when one of them has something to say, has ended, or the time is up."""
    waiting = [child for child in children if not child.over]
    if waiting:
        _wait(waiting, select.POLLIN, timeout_s)


def _wait(children: list[Child], events: int, timeout_s: float | None) -> None:
    watched = select.poll()
    for child in children:
        watched.register(child, events)
    watched.poll(None if timeout_s is None else timeout_s * 1000)


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
