"""A gang's tasks on this machine: their commands and limits, their keepers, and the meaning of their ends.

`gang_of` makes the tasks of one attempt from the state, on the engine's thread; the result does not change.
`SupervisedTask` is one task with its keeper (`engine.executors.task_shim`), as the supervising thread sees it: started,
told to go, asked to stop, or found again after a restart. `verdict` says what the ends of tasks mean for the gang.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import signal
import sys
import uuid
from collections.abc import Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any

import msgspec

from engine.capacity.devices import closest
from engine.executors import task_shim as program
from engine.executors.protocol import ReportKind
from engine.executors.task_files import TASK, AttemptKey, Status, exit_status, is_kept, status_of
from engine.executors.this_machine import Cgroups
from engine.model.errors import RefusedError
from engine.model.spec_parts import EXIT_CAUSES, RunSpec
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
    """Make the gang of a placed or running workload. Raises RefusedError for one that cannot run here: it names no
    command, or has a place on another node than this."""
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
    """Return the content of a task's file for its keeper (`engine.executors.task_shim`). Where no group of the kernel
    holds it to its memory the keeper looks at it, and a limit of the process is a backstop against what grows between
    two looks."""
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


MAX_TRIES = 3
"""Keepers that may die before they start the task."""


class TaskStage(Enum):
    """The stage of a task, as far as it is known."""

    UNSURE = auto()
    """A keeper of an earlier life of ours may be about to go."""
    STARTING = auto()
    """Its keeper has not said that it is ready."""
    READY = auto()
    RUNNING = auto()
    """It was told to go."""
    ENDED = auto()
    LOST = auto()
    """It was started, and nobody knows how it ended."""
    REFUSED = auto()
    """It never was and never will be."""


OVER = (TaskStage.ENDED, TaskStage.LOST, TaskStage.REFUSED)


class SupervisedTask:
    """A task with its keeper, whose files are in `folder`. Every process that belongs to it has `token` in its
    environment."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.rank = rank
        self.token = _token_in(folder) or uuid.uuid4().hex
        self.stage = TaskStage.STARTING
        self.status = Status()
        self.pidfd = -1
        """Of its keeper, to be watched for its end."""
        self.told = -1
        """Pipe on which the keeper says that the status has changed; -1 for one that was found again."""
        self.stopped = False
        """It was asked to stop."""
        self._go = -1
        self._pid = -1
        """Of the keeper, where it is our child."""
        self._tries = 0
        self.why = ""
        """Why it was refused or lost."""

    @property
    def over(self) -> bool:
        return self.stage in OVER

    @property
    def unborn(self) -> bool:
        """Return whether it has no keeper yet."""
        return self.stage == TaskStage.STARTING and self.pidfd < 0

    @property
    def is_ready(self) -> bool:
        """Or further."""
        return self.stage in (TaskStage.READY, TaskStage.RUNNING, TaskStage.ENDED)

    def spawn(self, task: dict[str, Any]) -> None:
        """Start its keeper, which waits for `go`. Raises OSError."""
        self._tries += 1
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.folder / TASK, "w", encoding="utf-8", opener=_private) as file:
            json.dump(task, file)
        waits, self._go = os.pipe()
        self.told, tells = os.pipe()
        log = os.open(self.folder / "keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", str(program.__file__), str(self.folder)],
                {"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, waits, 0),
                    (os.POSIX_SPAWN_DUP2, tells, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                ],
                setsid=True,
                setsigmask=[],
            )
            self.pidfd = os.pidfd_open(self._pid)
        except OSError:
            self._close()
            raise
        finally:
            for fd in (waits, tells, log):
                os.close(fd)
        os.set_blocking(self.told, False)
        self.stage = TaskStage.STARTING

    def find(self) -> None:
        """Find out what has become of the task while no engine ran."""
        self.status = status_of(self.folder)
        if self.status.phase == "ended":
            self.stage = TaskStage.ENDED
        elif is_kept(self.folder):
            self._attach()
        else:
            # Once more: it may have ended between the two looks.
            self.status = status_of(self.folder)
            self.stage = {"ended": TaskStage.ENDED, "started": TaskStage.LOST}.get(
                self.status.phase, TaskStage.STARTING
            )
            self.why = "its supervisor was killed, or the machine went down" if self.stage == TaskStage.LOST else ""

    def _attach(self) -> None:
        """To the keeper that holds its lock."""
        self.stage = TaskStage.UNSURE
        if self.status.phase != "started":
            return  # it waits for us in vain, and goes
        try:
            self.pidfd = os.pidfd_open(self.status.keeper)
        except OSError:
            return
        if program.born(self.status.keeper) != self.status.born or self.status.boot != program.boot_id():
            self._close()
            return
        self.stage = TaskStage.RUNNING

    def go(self) -> None:
        """Have it begin. Whether it has shows in its status."""
        self.stage = TaskStage.RUNNING
        if self._go >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._go, b"g")
            os.close(self._go)
            self._go = -1
        if self.told >= 0:
            # That it has ended shows by its keeper's end.
            os.close(self.told)
            self.told = -1

    def heard(self) -> bool:
        """The keeper has written something down. False: it is gone, and says no more."""
        with contextlib.suppress(BlockingIOError):
            if not os.read(self.told, 4096):
                return False
        if self.stage == TaskStage.STARTING and status_of(self.folder).phase == "ready":
            self.stage = TaskStage.READY
        return True

    def gone(self) -> None:
        """Note that the keeper has ended."""
        self._close()
        self.status = status_of(self.folder)
        if self.status.phase == "ended":
            self.stage = TaskStage.ENDED
        elif self.status.phase == "started":
            self.stage, self.why = TaskStage.LOST, "its supervisor was killed"
        elif self.stopped or self._tries >= MAX_TRIES:
            self.stage, self.why = TaskStage.REFUSED, _last_line(self.folder / "keeper.log")
        else:
            self.stage = TaskStage.UNSURE

    def stop(self) -> None:
        """Ask it to stop; one that has not begun never does."""
        if self.over:
            return
        self.stopped = True
        if self._go >= 0:
            os.close(self._go)
            self._go = -1
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)

    def sweep(self) -> None:
        """Kill whatever of it is left without a keeper."""
        for _ in range(50):
            found = holders_of(self.token)
            if not found:
                break
            for pid in found:
                _kill(pid, self.token)
            select.select([], [], [], 0.01)
        with contextlib.suppress(OSError, ValueError):
            group = json.loads((self.folder / TASK).read_bytes())["cgroup"]
            if group:
                Cgroups.kill(Path(group))

    def let_go(self) -> None:
        """Forget it, running or not. One that was not told to go goes."""
        self._close()

    def _close(self) -> None:
        for fd in (self._go, self.told, self.pidfd):
            if fd >= 0:
                os.close(fd)
        self._go = self.told = self.pidfd = -1
        if self._pid > 0:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, os.WNOHANG)


def holders_of(token: str) -> list[int]:
    """Processes of ours that have the token in their environment."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and _holds(int(name), token)]


def _holds(pid: int, token: str) -> bool:
    try:
        return f"{MARK}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _kill(pid: int, token: str) -> None:
    """Unless its id is another process's by now: what is opened first and looked at then stays the same."""
    with contextlib.suppress(OSError):
        held = os.pidfd_open(pid)
        try:
            if _holds(pid, token):
                signal.pidfd_send_signal(held, signal.SIGKILL)
        finally:
            os.close(held)


def _token_in(folder: Path) -> str:
    """Of a task that was begun before; empty where there is none."""
    try:
        return str(json.loads((folder / TASK).read_bytes())["env"][MARK])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _last_line(path: Path) -> str:
    try:
        lines = path.read_bytes()[-4096:].decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:200] if lines else ""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


NOT_STARTED = (len(EXIT_CAUSES) - 1) * 256 + 126


def verdict(
    members: Sequence[tuple[int, TaskStage, Status]], *, service: bool, running: bool
) -> tuple[ReportKind, int, int] | None:
    """(what to report, rank of the task that decides it, its exit status) of tasks by (rank, stage, status), or None as
    long as nothing is decided. One that fails fails all; a service has no good end."""
    for rank, stage, _ in members:
        if stage == TaskStage.LOST:
            return ReportKind.LOST, rank, 0
        if stage == TaskStage.REFUSED:
            return (ReportKind.FAILED, rank, NOT_STARTED) if running else (ReportKind.REFUSED, rank, 0)
    ended = sorted((s.ended_ms, rank, at) for at, (rank, stage, s) in enumerate(members) if stage == TaskStage.ENDED)
    for _, rank, at in ended:
        status = members[at][2]
        if service or not status.succeeded:
            return ReportKind.FAILED, rank, exit_status(status)
    return (ReportKind.FINISHED, ended[-1][1], 0) if ended and len(ended) == len(members) else None
