"""One task with its keeper, as the thread that looks after them sees it: a process that is started, told to go, asked
to stop, or found again after a restart.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import uuid
from enum import Enum, auto
from pathlib import Path
from typing import Any

from engine.executors import task_shim as program
from engine.executors.cgroups import Cgroups
from engine.executors.gang_launch import MARK
from engine.executors.task_files import TASK, Status, is_kept, status_of

MAX_TRIES = 3
"""Keepers that may die before they start the task."""


class TaskStage(Enum):
    """How far a task is, as far as we know."""

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
    """Its files are in `folder`. Every process that belongs to it has `token` in its environment."""

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
        """Whether it has no keeper yet."""
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
        """What has become of it in the time we were away."""
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
            self.why = "its keeper was killed, or the machine went down" if self.stage == TaskStage.LOST else ""

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
        """Its keeper has ended."""
        self._close()
        self.status = status_of(self.folder)
        if self.status.phase == "ended":
            self.stage = TaskStage.ENDED
        elif self.status.phase == "started":
            self.stage, self.why = TaskStage.LOST, "its keeper was killed"
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
