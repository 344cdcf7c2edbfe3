"""This machine: its capacity as a cell of one node, and what holds its tasks apart.

Control groups of version 2 hold a task to its memory and CPU, whatever processes it makes, where this user may make
them. A user may where systemd has delegated a group to them, as in `systemd-run --user --scope -p Delegate=yes`. The
engine itself first moves into a group of its own below that one, because groups with members pass no controllers on.

CPUs, ports and the disk with output are shared here where no control group divides them.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import socket
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from engine.executors.task_files import LIVE
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, QueueSpec, Resources, Settings, memory_by_name

KEPT_MIB = 1024
"""Memory left to the system and to Muster itself: a tenth of a smaller machine."""
ASK_S = 10.0
POOL, QUEUE = "here", "main"


class Gpus(NamedTuple):
    """Devices of one kind."""

    model: str
    memory_mib: int
    devices: int


def cell_here(folder: Path) -> CellSpec:
    """One node, this machine, whole but for what its system needs, and one queue. `folder`: whose disk is used."""
    gpus = find_gpus()
    memory = memory_mib()
    kept = min(KEPT_MIB, memory // 10)
    capacity = Resources(
        cpu_milli=len(os.sched_getaffinity(0)) * 1000,
        memory_mib=memory - kept,
        gpu_milli=gpus.devices * 1000 if gpus else 0,
        disk_mib=shutil.disk_usage(folder).free >> 20,
    )
    pool = PoolSpec(
        name=POOL,
        capacity=capacity,
        reserved=Resources(memory_mib=kept),
        gpu_model=gpus.model if gpus else "",
        gpu_memory_mib=gpus.memory_mib if gpus else 0,
    )
    return CellSpec(
        name=node_name(),
        pools=(pool,),
        nodes=(NodeSpec(id=node_name(), pool=POOL),),
        queues=(QueueSpec(name=QUEUE),),
        settings=Settings(executor="process"),
    )


def node_name() -> str:
    """The host's name, as an id."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname().partition(".")[0])[:64].lstrip("._-")
    return name or "here"


def memory_mib() -> int:
    """Return the memory of this machine, or the part that a container may use."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text()) >> 20)
        except (OSError, ValueError):
            continue
    return total


def find_gpus() -> Gpus | None:
    """Return the devices that `nvidia-smi` tells; None without it, or without devices. Where there are several models,
    of the first as many as stand in a row from device 0: a pool has one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        told = subprocess.run(
            [program, "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_S,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return gpus_told(told)


def gpus_told(told: str) -> Gpus | None:
    """The same, of its answer: lines of index, name and MiB."""
    found: Gpus | None = None
    for line in told.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != 3 or not words[2].isdecimal():
            continue
        model = model_of(words[1])
        if found is None:
            found = Gpus(model, int(words[2]), 0)
        if model != found.model:
            break
        found = found._replace(devices=found.devices + 1)
    return found


def model_of(name: str) -> str:
    """`NVIDIA A100-SXM4-80GB` is A100, `NVIDIA GeForce RTX 4090` is RTX-4090."""
    words = re.sub(r"^(NVIDIA|Tesla)\s+", "", re.sub(r"^NVIDIA\s+", "", name.strip()))
    words = re.sub(r"^GeForce\s+", "", words)
    first = words.split("-")[0].split()[0] if words.split("-")[0].split() else ""
    if memory_by_name(first):
        return first
    return re.sub(r"[^A-Za-z0-9._-]+", "-", words)[:64].strip("-.") or "GPU"


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
    """Return a port of the loopback that was free a moment ago. Raises OSError."""
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
