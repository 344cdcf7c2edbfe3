"""What the console costs while nobody touches it: memory, CPU, bytes to the terminal, bytes from the engine."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.pseudo_terminal import PseudoTerminal, children


def processes(pid: int) -> list[int]:
    """The console's processes: what was started, and what it started itself."""
    return [pid, *children(pid)]


def memory_mb(pid: int) -> float:
    """Resident memory of the console's processes, pages that they share counted once."""
    return sum(_kib(each, "smaps_rollup", "Pss") for each in processes(pid)) / 1024


def largest_mb(pid: int) -> float:
    """Resident memory of the largest of them."""
    return max(_kib(each, "status", "VmRSS") for each in processes(pid)) / 1024


def _kib(pid: int, file: str, name: str) -> int:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/{pid}/{file} does not tell {name}")


def cpu_s(pid: int) -> float:
    """CPU seconds that the console's processes have used."""
    ticks = 0
    for each in processes(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def console_of(pid: int) -> int:
    """The process that draws: the last of those that make the console."""
    return processes(pid)[-1]


def scheduled_ms(pid: int) -> tuple[float, float]:
    """CPU that the main thread of a process has used, and the time that it and this thread waited for a core."""
    used, queued = Path(f"/proc/{pid}/schedstat").read_text().split()[:2]
    own = Path("/proc/thread-self/schedstat").read_text().split()[1]
    return int(used) / 1e6, (int(queued) + int(own)) / 1e6


def idle(terminal: PseudoTerminal, seconds: float) -> tuple[float, float]:
    """CPU as a share of one core, and bytes a second to the terminal, while it is only read."""
    begun, cpu, count = time.perf_counter(), cpu_s(terminal.pid), terminal.bytes_read
    while (left := begun + seconds - time.perf_counter()) > 0:
        terminal.pump(left)
    took = time.perf_counter() - begun
    return (cpu_s(terminal.pid) - cpu) / took, (terminal.bytes_read - count) / took


class Counted:
    """Bytes that went through."""

    def __init__(self) -> None:
        self.asked = 0
        self.answered = 0


@contextmanager
def counting(engine: Path, at: Path) -> Iterator[Counted]:
    """A Unix socket that passes everything on to the engine's, and counts."""
    counted, stop = Counted(), threading.Event()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(at))
    listener.listen()
    listener.settimeout(0.2)

    def accept() -> None:
        while not stop.is_set():
            with suppress(TimeoutError):
                near, _ = listener.accept()
                threading.Thread(target=_pass_on, args=(near, engine, counted, stop), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield counted
    finally:
        stop.set()
        thread.join()
        listener.close()
        at.unlink()


def _pass_on(near: socket.socket, engine: Path, counted: Counted, stop: threading.Event) -> None:
    # Whichever side leaves may do so with answers under way.
    with suppress(ConnectionError), near, socket.socket(socket.AF_UNIX) as far:
        far.connect(str(engine))
        while not stop.is_set():
            for ready in select.select([near, far], [], [], 0.2)[0]:
                data = ready.recv(65_536)
                if not data:
                    return
                if ready is near:
                    counted.asked += len(data)
                    far.sendall(data)
                else:
                    counted.answered += len(data)
                    near.sendall(data)
