"""What this machine has, as a cell of one node."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import NamedTuple

from engine.model.gpu_models import memory_by_name
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, QueueSpec, Resources, Settings

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
    """Of this machine, or what a container may use of it."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text()) >> 20)
        except (OSError, ValueError):
            continue
    return total


def find_gpus() -> Gpus | None:
    """What `nvidia-smi` tells; None without it, or without devices. Where there are several models, of the first as
    many as stand in a row from device 0: a pool has one."""
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
