"""Control groups of version 2, where this user may make them: the kernel then holds a task to its memory and CPU,
whatever processes it makes.

A user may where systemd has delegated a group to them, as in `systemd-run --user --scope -p Delegate=yes`. The engine
itself moves into a group of its own below that one first: groups with members pass no controllers on.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
CONTROLLERS = ("cpu", "memory", "pids")


class Cgroups:
    """Groups for tasks below one that is ours. `controllers`: those that bind there."""

    def __init__(self, base: Path, controllers: frozenset[str]) -> None:
        self.base = base
        self.controllers = controllers

    def make(self, name: str, cpu_milli: int, memory_mib: int) -> Path:
        """A group for one task; 0: no limit. Raises OSError."""
        group = self.base / name
        group.mkdir(exist_ok=True)
        if "memory" in self.controllers and memory_mib:
            (group / "memory.max").write_text(str(memory_mib << 20))
            with contextlib.suppress(OSError):  # a kernel without swap
                (group / "memory.swap.max").write_text("0")
            (group / "memory.oom.group").write_text("1")
        if "cpu" in self.controllers and cpu_milli:
            (group / "cpu.max").write_text(f"{max(cpu_milli * PERIOD_US // 1000, 1000)} {PERIOD_US}")
        return group

    @staticmethod
    def kill(group: Path) -> None:
        """All that is left in it, and the group."""
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1")
        with contextlib.suppress(OSError):
            group.rmdir()


def find(root: Path = ROOT) -> Cgroups | None:
    """Groups below the one this process is in, if they may be made there. None: not here."""
    if not (root / "cgroup.controllers").exists():
        return None
    try:
        line = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        own = root / line[3:].lstrip("/")
        own = own.parent if own.name == "engine" and (own.parent / "tasks").is_dir() else own
        offered = set((own / "cgroup.controllers").read_text().split()).intersection(CONTROLLERS)
        if "memory" not in offered:
            return None
        for name in ("engine", "tasks"):
            (own / name).mkdir(exist_ok=True)
        (own / "engine" / "cgroup.procs").write_text(str(os.getpid()))
        for parent in (own, own / "tasks"):
            (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(offered)))
    except (OSError, StopIteration):
        return None
    return Cgroups(own / "tasks", frozenset(offered))
