"""What is to be run for one attempt of a workload on this machine: its tasks, each with its environment and limits.

Made from the state on the engine's thread, and then handed on: nothing here changes.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import msgspec

from engine.capacity.devices import closest
from engine.executors.task_files import AttemptKey
from engine.model.errors import RefusedError
from engine.model.run_spec import RunSpec
from engine.model.specs import PoolSpec
from engine.state.cell_state import State
from engine.state.workloads import NONE

PASSED_ON = frozenset(
    [
        "PATH",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "XDG_RUNTIME_DIR",
        "XDG_DATA_DIRS",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "CONDA_DEFAULT_ENV",
        "CUDA_HOME",
        "CUDA_PATH",
        "NVIDIA_VISIBLE_DEVICES",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
    ]
)
"""Of the engine's own environment. The rest stays with it: keys of services, and what its terminal has set."""


class GangTask(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a gang."""

    name: str
    """Its folder: group and number within the group."""
    rank: int
    cpu_milli: int
    """Most CPU it may use; 0: no limit."""
    memory_mib: int
    """Most memory it may use; 0: no limit."""
    env: dict[str, str]
    """Without that of the machine, and what is known only when it begins."""


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt."""

    key: AttemptKey
    run: RunSpec
    tasks: tuple[GangTask, ...]
    service: bool
    max_runtime_ms: int
    cpu_milli: int
    memory_mib: int
    devices: int
    """Bit mask of those it has."""


def gang_of(state: State, row: int, node: str) -> Gang:
    """Of a placed or running workload. Raises RefusedError for one that cannot run here: it names no command, or has a
    place on another node than this."""
    w, a = state.workloads, state.allocations
    terms, workload_class = w.terms_at(row), w.class_at(row)
    if terms.run is None:
        raise RefusedError(f"'{w.ids[row]}' names no command", "Submit it with `run`")
    # Oldest first: what a group was given later comes last.
    places = list(a.of_workload(w.first_allocation[row]))[::-1]
    elsewhere = [state.capacity.node_ids[a.node[i]] for i in places if state.capacity.node_ids[a.node[i]] != node]
    if elsewhere:
        raise RefusedError(f"'{w.ids[row]}' is placed on {elsewhere[0]}, which is not this machine", "Remove that node")
    tasks: list[GangTask] = []
    common = _of_workload(state, row, node)
    for number, group in enumerate(workload_class.groups):
        request = group.request
        limit = request if workload_class.bonds.qos == "guaranteed" else group.limit
        shape = workload_class.shapes[number]
        index = 0
        for place in (i for i in places if a.group[i] == number):
            left = a.devices[place]
            for _ in range(a.count[place]):
                mine = left if shape.part else closest(left, shape.gpus, _linked(state, place)) if shape.gpus else 0
                left = left if shape.part else left & ~mine
                tasks.append(
                    GangTask(
                        name=f"{group.name.replace('/', '+')}.{index}",
                        rank=len(tasks),
                        cpu_milli=limit.cpu_milli if limit else 0,
                        memory_mib=limit.memory_mib if limit else 0,
                        env=common | _of_task(group.name, len(tasks), index, mine, request.cpu_milli),
                    )
                )
                index += 1
    total = workload_class.request_of(state.placed_of(row))
    mask = 0
    for place in places:
        mask |= a.devices[place]
    return Gang(
        key=key_of(state, row),
        run=terms.run,
        tasks=tuple(tasks),
        service=terms.service is not None,
        max_runtime_ms=terms.max_runtime_ms,
        cpu_milli=total[0],
        memory_mib=total[1],
        devices=mask,
    )


def key_of(state: State, row: int) -> AttemptKey:
    w = state.workloads
    return AttemptKey(w.ids[row], w.submitted[row], w.attempts[row])


def _linked(state: State, place: int) -> int:
    pool: PoolSpec = state.capacity.pools[state.capacity.pool[state.allocations.node[place]]]
    return pool.nvlink_group


def _of_workload(state: State, row: int, node: str) -> dict[str, str]:
    w = state.workloads
    tasks = w.tasks[row]
    env = {
        "MUSTER_WORKLOAD": w.ids[row],
        "MUSTER_ATTEMPT": str(w.attempts[row]),
        "MUSTER_TASKS": str(tasks),
        "MUSTER_NODE": node,
    }
    if w.array[row] != NONE:
        name = w.array_names.names[w.array[row]]
        env |= {"MUSTER_ARRAY": name, "MUSTER_ARRAY_INDEX": w.ids[row][len(name) + 1 :]}
    if tasks > 1:
        env |= {"WORLD_SIZE": str(tasks), "LOCAL_WORLD_SIZE": str(tasks), "MASTER_ADDR": "127.0.0.1"}
    return env


def _of_task(group: str, rank: int, index: int, devices: int, cpu_milli: int) -> dict[str, str]:
    visible = ",".join(str(i) for i in range(devices.bit_length()) if devices >> i & 1)
    return {
        "MUSTER_GROUP": group,
        "MUSTER_GROUP_INDEX": str(index),
        "MUSTER_RANK": str(rank),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "CUDA_VISIBLE_DEVICES": visible,
        "OMP_NUM_THREADS": str(max(1, cpu_milli // 1000)),
    }


def of_machine() -> dict[str, str]:
    """The environment every task begins with: the owner's, and little of the engine's."""
    account = pwd.getpwuid(os.getuid())
    env = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith("LC_")}
    env.setdefault("PATH", os.defpath)
    return env | {
        "HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name,
        "SHELL": account.pw_shell or "/bin/sh",
    }  # fmt: skip


def task_file(
    gang: Gang,
    task: GangTask,
    token: str,
    *,
    port: int,
    cgroup: Path | None,
    controllers: frozenset[str],
    cpus: list[int],
    output_bytes: int,
    least_free_bytes: int,
    umask: int,
    files: int,
) -> dict[str, Any]:
    """What its keeper reads: see `engine.executors.task_shim`. Where no group of the kernel holds it to its memory the
    keeper looks at it, and a limit of the process is a backstop against what grows between two looks."""
    watch = task.memory_mib > 0 and "memory" not in controllers
    devices = {"CUDA_VISIBLE_DEVICES": task.env["CUDA_VISIBLE_DEVICES"]}  # whose they are is not the workload's to say
    env = of_machine() | task.env | gang.run.env | devices | {MARK: token}
    if port and "MASTER_PORT" not in env:
        env["MASTER_PORT"] = str(port)
    rlimits = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": files}
    if watch and not gang.devices:
        rlimits["RLIMIT_DATA"] = (2 * task.memory_mib + 1024) << 20
    return {
        "argv": list(gang.run.argv),
        "env": env,
        "cwd": gang.run.cwd or env["HOME"],
        "grace_ms": gang.run.grace_ms,
        "max_runtime_ms": gang.max_runtime_ms and gang.max_runtime_ms + ENGINE_FIRST_MS,
        "memory_mib": task.memory_mib,
        "watch_memory": watch,
        "cgroup": str(cgroup or ""),
        "cpus": cpus,
        "rlimits": rlimits,
        "limits_by": "cgroup" if cgroup else "rlimits and watching",
        "output_bytes": output_bytes,
        "least_free_bytes": least_free_bytes,
        "umask": umask,
    }


MARK = "MUSTER_TASK_MARK"
"""The variable by which whatever belongs to a task is found. Not MUSTER_TOKEN: that is shown to engines elsewhere."""
ENGINE_FIRST_MS = 2_000
"""How much later than the engine a keeper ends what runs too long: it does so only where no engine is there to."""
