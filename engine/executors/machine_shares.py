"""What tasks on this machine share where no control group divides it: CPUs, ports, and the disk that output is on."""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections import Counter
from pathlib import Path

from engine.executors.task_files import LIVE


class Cpus:
    """Gives each task with a limit CPUs of its own as long as there are any, else those that fewest use."""

    def __init__(self) -> None:
        self._users: Counter[int] = Counter(dict.fromkeys(os.sched_getaffinity(0), 0))
        self._given: dict[str, list[int]] = {}

    def take(self, token: str, cpu_milli: int) -> list[int]:
        """CPUs for a task; none said where it has no limit, or may use them all."""
        wanted = -(-cpu_milli // 1000)
        if not wanted or wanted >= len(self._users):
            return []
        given = self._given[token] = sorted(sorted(self._users), key=lambda cpu: self._users[cpu])[:wanted]
        self._users.update(given)
        return given

    def give_back(self, token: str) -> None:
        self._users.subtract(self._given.pop(token, ()))


def more_files() -> int:
    """Let this process have as many files open as it may: each task takes one. Returns how many it could have before,
    which is what tasks are given: some programs cannot deal with more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft


def free_port() -> int:
    """Of the loopback, free a moment ago. Raises OSError."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prune(root: Path, most: int, live: set[Path]) -> int:
    """Remove runs, the oldest first, until no more than `most` bytes are kept. Those of `live` stay. Returns the bytes
    that are left."""
    found: list[tuple[float, int, Path]] = []
    for workload in root.iterdir() if root.is_dir() else ():
        if workload.name == LIVE or not workload.is_dir():
            continue
        for attempt in workload.iterdir():
            found.append((_changed(attempt), _size(attempt), attempt))
    total = sum(size for _, size, _ in found)
    for _, size, attempt in sorted(found):
        if total <= most:
            break
        if attempt not in live:
            shutil.rmtree(attempt, ignore_errors=True)
            total -= size
            try:
                attempt.parent.rmdir()
            except OSError:
                continue
    return total


def _changed(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except OSError:
                continue
    return total
