"""The executor that runs tasks as processes of this machine, and the thread that supervises them.

`ProcessExecutor` starts and stops nothing before the journal has what led to it: what the engine asks for in a turn is
kept until `carry_out`, which it calls once the turn is durable. What a crash keeps from being carried out is found by
`adopt`.

`TaskSupervisor` starts keepers, tells gangs to go, follows them to their end, stops what is over, and finds survivors
after a restart. Orders come from the engine's thread, which never waits; results return as `AttemptReport`. A gang
begins when all of its tasks are ready and what it takes over is really free: an attempt does not begin before the one
before it has ended, nor on a device that another still holds.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import sys
import threading
import time
import traceback
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine.executors.gang_tasks import Gang, GangTask, SupervisedTask, TaskStage, gang_of, key_of, task_file, verdict
from engine.executors.protocol import Executor, ExecutorReport, ReportKind
from engine.executors.task_files import LIVE, AttemptKey, Bounds, attempt_folder, live_keys, live_name, status_of
from engine.executors.this_machine import Cgroups, Cpus, free_port, more_files, prune
from engine.model import spans
from engine.model.columns import view
from engine.model.errors import RefusedError
from engine.model.spec_parts import RunSpec
from engine.model.specs import WorkloadState
from engine.state.cell_state import State

LOOK_S = 0.1
"""Between looks at what waits for a keeper of an earlier life, or for room."""
IDLE_S = 5.0
PRUNE_S = 60.0
_NOTHING = RunSpec(argv=("true",))


class AttemptReport(NamedTuple):
    """A report on one attempt."""

    key: AttemptKey
    kind: ReportKind
    tasks: int
    """As in Report: acknowledged tasks; of an end, the rank of the task that decided about it."""
    status: int = 0
    """How that one ended, as `engine.model.events.Exited` has it."""


class GangRequirements(NamedTuple):
    """The room that a gang must find free."""

    cpu_milli: int
    memory_mib: int


class _Attempt:
    """A gang under way."""

    def __init__(self, gang: Gang, folder: Path, running: bool) -> None:
        self.gang = gang
        self.folder = folder
        self.tasks: dict[str, SupervisedTask] = {}
        self.running = running
        """The state says that it runs: it may be told to go."""
        self.began = False
        """Its keepers were started, or found."""
        self.acknowledged = False
        self.released = False
        """The engine wants no more of it."""
        self.decided: tuple[ReportKind, int, int] | None = None
        """How it ended, once one task has decided that: told when all are over."""
        self.port = 0


class TaskSupervisor:
    """Owns every keeper under `root`. `tell` is called on its thread."""

    def __init__(
        self, root: Path, bounds: Bounds, tell: Callable[[AttemptReport], None], *, cgroups: Cgroups | None, umask: int
    ) -> None:
        self.root = root
        self.bounds = bounds
        self.fault = ""
        """Why the thread ended when nobody asked it to; empty while all is well."""
        self._tell = tell
        self._cgroups = cgroups
        self._umask = umask
        self._files = more_files()
        self._cpus = Cpus()
        self._machine = GangRequirements(0, 0)
        self._attempts: dict[AttemptKey, _Attempt] = {}
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._watched: dict[int, tuple[_Attempt, SupervisedTask]] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        self._ending = threading.Lock()
        self._ended = False
        """The pipe is closed: its numbers may be another file's by now."""
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._prune_at = 0.0
        self._said = ""
        """The last that went wrong."""
        self._thread = threading.Thread(target=self._run, name="processes", daemon=True)

    def start(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.root / LIVE).mkdir(mode=0o700, exist_ok=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. What runs goes on, and is found again."""
        self._order(None)
        if self._thread.is_alive():
            self._thread.join()

    def _order(self, order: Callable[[], None] | None) -> None:
        self._orders.put(order)
        with self._ending, contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            if not self._ended:
                os.write(self._waker, b"o")

    # -- orders, given on any thread ----------------------------------------------------------------------------------

    def adopt(self, gangs: list[tuple[Gang, bool]], machine: GangRequirements) -> None:
        """These are to be, with whether they run; every other is over."""
        self._order(lambda: self._adopt(gangs, machine))

    def prepare(self, gang: Gang, machine: GangRequirements) -> None:
        self._order(lambda: self._prepare(gang, machine))

    def go(self, key: AttemptKey) -> None:
        self._order(lambda: self._go(key))

    def resize(self, gang: Gang) -> None:
        self._order(lambda: self._resize(gang))

    def release(self, key: AttemptKey) -> None:
        self._order(lambda: self._release(key))

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:
            traceback.print_exc()
            self.fault = f"no more work is started or stopped here: {type(error).__name__}: {error}"
            print(f"muster: {self.fault}", file=sys.stderr)
        for attempt in self._attempts.values():
            for task in attempt.tasks.values():
                task.let_go()
        self._selector.close()
        with self._ending:
            self._ended = True
            os.close(self._wake)
            os.close(self._waker)

    def _turn(self) -> bool:
        """Return whether to go on."""
        restless = any(not attempt.began or self._unsure(attempt) for attempt in self._attempts.values())
        for key, _ in self._selector.select(LOOK_S if restless else IDLE_S):
            if key.fd == self._wake:
                os.read(self._wake, 4096)
            elif key.fd in self._watched:
                self._heard(key.fd)
        while True:
            try:
                order = self._orders.get_nowait()
            except queue.Empty:
                break
            if order is None:
                return False
            self._try(order)
        for attempt in list(self._attempts.values()):
            self._try(lambda attempt=attempt: self._tend(attempt))  # type: ignore[misc]
        self._try(self._prune)
        return True

    def _try(self, step: Callable[[], None]) -> None:
        """A disk that is full or broken keeps one step from being done, not the others; it is tried again, or what
        waits for it is given back at its deadline."""
        try:
            step()
        except OSError as error:
            if str(error) != self._said:
                self._said = str(error)
                print(f"muster: processes: {error}", file=sys.stderr, flush=True)

    @staticmethod
    def _unsure(attempt: _Attempt) -> bool:
        return any(task.stage == TaskStage.UNSURE for task in attempt.tasks.values())

    def _heard(self, fd: int) -> None:
        _, task = self._watched[fd]
        if fd == task.told:
            if not task.heard():
                self._ignore(fd)
            return
        for other in (task.told, task.pidfd):
            self._ignore(other)
        task.gone()

    def _watch(self, attempt: _Attempt, task: SupervisedTask) -> None:
        for fd in (task.told, task.pidfd):
            if fd >= 0 and fd not in self._watched:
                self._watched[fd] = (attempt, task)
                self._selector.register(fd, selectors.EVENT_READ)

    def _ignore(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            self._selector.unregister(fd)

    # -- what is to be ------------------------------------------------------------------------------------------------

    def _adopt(self, gangs: list[tuple[Gang, bool]], machine: GangRequirements) -> None:
        self._machine = machine
        wanted = {gang.key for gang, _ in gangs}
        for key in self._attempts.keys() - wanted:
            self._release(key)
        for key in live_keys(self.root):
            if key not in wanted and key not in self._attempts:
                self._clear_away(key)
        for gang, running in gangs:
            known = self._attempts.get(gang.key)
            if known is None:
                self._enter(gang, running=running)
            elif running and not known.running:
                self._go(gang.key)
            else:
                known.acknowledged = False

    def _prepare(self, gang: Gang, machine: GangRequirements) -> None:
        self._machine = machine
        self._enter(gang, running=False)

    def _enter(self, gang: Gang, *, running: bool) -> None:
        known = self._attempts.get(gang.key)
        if known is not None and not known.released:
            known.acknowledged = False
            return
        (self.root / LIVE / live_name(gang.key)).touch(mode=0o600)
        attempt = _Attempt(gang, attempt_folder(self.root, gang.key), running)
        self._attempts[gang.key] = attempt
        for task in gang.tasks:
            self._add(attempt, task)
        # What runs already has its place; only what begins must wait for it.
        attempt.began = any(task.stage != TaskStage.STARTING for task in attempt.tasks.values())

    def _add(self, attempt: _Attempt, task: GangTask) -> SupervisedTask:
        kept = attempt.tasks[task.name] = SupervisedTask(attempt.folder / task.name, task.rank)
        kept.find()
        self._watch(attempt, kept)
        return kept

    def _clear_away(self, key: AttemptKey) -> None:
        """Stop what is left of an attempt that nobody knows any more."""
        folder = attempt_folder(self.root, key)
        gang = Gang(
            key=key, run=_NOTHING, tasks=(), service=False, max_runtime_ms=0, cpu_milli=0, memory_mib=0, devices=0
        )
        attempt = self._attempts[key] = _Attempt(gang, folder, running=False)
        attempt.began = attempt.released = True
        for name in os.listdir(folder) if folder.is_dir() else ():
            kept = attempt.tasks[name] = SupervisedTask(folder / name, 0)
            kept.find()
            if kept.stage == TaskStage.STARTING:
                kept.stage = TaskStage.REFUSED
            self._watch(attempt, kept)
            kept.stop()

    def _go(self, key: AttemptKey) -> None:
        attempt = self._attempts.get(key)
        if attempt is not None:
            attempt.running = True

    def _release(self, key: AttemptKey) -> None:
        attempt = self._attempts.get(key)
        if attempt is not None and not attempt.released:
            attempt.released = True
            self._stop(attempt)

    def _stop(self, attempt: _Attempt) -> None:
        for task in attempt.tasks.values():
            task.stop()

    def _resize(self, gang: Gang) -> None:
        """Other tasks: the new begin, those that are not wanted any more stop, and their end decides nothing."""
        attempt = self._attempts.get(gang.key)
        if attempt is None or attempt.released or attempt.decided:
            return
        attempt.gang = gang
        names = {task.name for task in gang.tasks}
        for name, kept in attempt.tasks.items():
            if name not in names:
                kept.stop()
        for task in gang.tasks:
            if task.name not in attempt.tasks:
                self._renew(attempt, task)

    def _come_back(self, attempt: _Attempt) -> None:
        """Members that were stopped because it shrank, and are wanted again since."""
        if attempt.decided is None:
            for task in attempt.gang.tasks:
                kept = attempt.tasks[task.name]
                if kept.stopped and kept.over:
                    self._renew(attempt, task)

    def _renew(self, attempt: _Attempt, task: GangTask) -> None:
        """A member that comes back has its folder anew; what the last one wrote goes."""
        folder = attempt.folder / task.name
        if task.name in attempt.tasks and folder.is_dir():
            number = 1
            while (old := attempt.folder / f"{task.name}.{number}").exists():
                number += 1
            folder.rename(old)
        self._spawn(attempt, task, self._add(attempt, task))

    # -- how it goes --------------------------------------------------------------------------------------------------

    def _tend(self, attempt: _Attempt) -> None:
        """Whatever is next for it."""
        for task in attempt.tasks.values():
            if task.stage == TaskStage.UNSURE:
                task.find()
                self._watch(attempt, task)
            if task.stage == TaskStage.LOST and task.why:
                task.sweep()
                task.why = ""
        if attempt.released:
            if all(task.over or task.unborn for task in attempt.tasks.values()):
                self._forget(attempt)
            return
        if not attempt.began:
            if not self._has_room(attempt):
                return
            attempt.began = True
        self._spawn_missing(attempt)
        self._come_back(attempt)
        self._judge(attempt)
        if attempt.decided is None and all(attempt.tasks[task.name].is_ready for task in attempt.gang.tasks):
            self._advance(attempt)

    def _advance(self, attempt: _Attempt) -> None:
        """All are ready, or further."""
        if attempt.running:
            for task in attempt.tasks.values():
                if task.stage == TaskStage.READY and not task.stopped:
                    self._ignore(task.told)
                    task.go()
        elif not attempt.acknowledged:
            attempt.acknowledged = True
            self._tell(AttemptReport(attempt.gang.key, ReportKind.ACKED, len(attempt.gang.tasks)))

    def _spawn_missing(self, attempt: _Attempt) -> None:
        if attempt.decided is not None:
            return
        for task in attempt.gang.tasks:
            kept = attempt.tasks[task.name]
            if kept.unborn:
                self._spawn(attempt, task, kept)

    def _spawn(self, attempt: _Attempt, task: GangTask, kept: SupervisedTask) -> None:
        controllers, group = frozenset[str](), None
        try:
            if self._cgroups is not None:
                group = self._cgroups.make(f"task-{kept.token}", task.cpu_milli, task.memory_mib)
                controllers = self._cgroups.controllers
            if not attempt.port and len(attempt.gang.tasks) > 1:
                attempt.port = free_port()
            cpus = [] if "cpu" in controllers else self._cpus.take(kept.token, task.cpu_milli)
            kept.spawn(
                task_file(
                    attempt.gang,
                    task,
                    kept.token,
                    port=attempt.port,
                    cgroup=group,
                    controllers=controllers,
                    cpus=cpus,
                    output_bytes=self.bounds.task,
                    least_free_bytes=self.bounds.least_free,
                    umask=self._umask,
                    files=self._files,
                )
            )
        except OSError as error:
            kept.stage, kept.why = TaskStage.REFUSED, f"{error.strerror}: {error.filename or ''}"
            return
        self._watch(attempt, kept)

    def _judge(self, attempt: _Attempt) -> None:
        """Decide about the gang when a task that is over decides about all, and tell it once all are over."""
        wanted = {task.name for task in attempt.gang.tasks}
        members = [kept for name, kept in attempt.tasks.items() if name in wanted]
        if attempt.decided is None:
            attempt.decided = verdict(
                [(kept.rank, TaskStage.RUNNING if kept.stopped else kept.stage, kept.status) for kept in members],
                service=attempt.gang.service,
                running=attempt.running,
            )
            if attempt.decided is None:
                return
            self._stop(attempt)
        if all(task.over for task in attempt.tasks.values()):
            kind, rank, status = attempt.decided
            self._forget(attempt)
            self._tell(AttemptReport(attempt.gang.key, kind, rank, status))

    def _has_room(self, attempt: _Attempt) -> bool:
        """Return whether what it is to have is free: what is being stopped keeps it until it has ended."""
        gang, cpu, memory = attempt.gang, 0, 0
        for other in self._attempts.values():
            if other is attempt or not other.began:
                continue
            if other.gang.key.workload == gang.key.workload or other.gang.devices & gang.devices:
                return False
            if not other.released and any(task.stopped and not task.over for task in other.tasks.values()):
                return False  # it shrinks, and what it gives up is not free yet
            cpu += other.gang.cpu_milli
            memory += other.gang.memory_mib
        machine = self._machine
        return cpu + gang.cpu_milli <= machine.cpu_milli and memory + gang.memory_mib <= machine.memory_mib

    def _forget(self, attempt: _Attempt) -> None:
        """Nothing is left of it but its files."""
        key = attempt.gang.key
        for task in attempt.tasks.values():
            for fd in (task.told, task.pidfd):
                self._ignore(fd)
            task.let_go()
            self._cpus.give_back(task.token)
        if self._attempts.get(key) is attempt:
            del self._attempts[key]
        (self.root / LIVE / live_name(key)).unlink(missing_ok=True)

    def _prune(self) -> None:
        now = time.monotonic()
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_S
            prune(self.root, self.bounds.all, {attempt.folder for attempt in self._attempts.values()})


AT_ONCE = 0
"""Cell time of reports: they are of now, whatever that is. The cell's clock and the machine's agree when a cell is
opened, and may drift apart while one of them is stopped."""


class ProcessExecutor(Executor):
    """Runs what is placed on the node `node`, which is this machine. Files of the runs are under `root`."""

    prompt = False

    def __init__(
        self,
        root: Path,
        node: str,
        *,
        bounds: Bounds | None = None,
        cgroups: Cgroups | None = None,
        umask: int = 0o077,
        open_door: bool = False,
    ) -> None:
        self.root = root
        self.open_door = open_door
        """Others than whoever owns it may have it run commands too."""
        self.node = node
        self._told: deque[AttemptReport] = deque()
        self._ended_before: list[tuple[int, AttemptReport]] = []
        """(Unix ms, what has come of it) of work that ended while no engine ran, the last first."""
        self._orders: list[Callable[[], None]] = []
        """Of the turn that is not durable yet."""
        self._keys: dict[tuple[int, int], AttemptKey] = {}
        """By row and attempt."""
        self._rows: dict[AttemptKey, int] = {}
        self.limits_by = "control groups" if cgroups else "rlimits and watching"
        self._attendant = TaskSupervisor(root, bounds or Bounds(), self._told.append, cgroups=cgroups, umask=umask)
        self._started = False

    @property
    def fault(self) -> str:
        """Why nothing is started or stopped any more; empty while all is well."""
        return self._attendant.fault

    def adopt(self, state: State) -> None:
        self._state = state
        self._orders.clear()
        self._keys.clear()
        self._rows.clear()
        gangs: list[tuple[Gang, bool]] = []
        states = view(state.workloads.state) if state.workloads.ids else np.empty(0, np.int8)
        bound = np.flatnonzero((states == WorkloadState.PLACED) | (states == WorkloadState.RUNNING))
        bound = bound if state.settings.executor == "process" else bound[:0]
        for row in bound.tolist():
            running = state.workloads.state[row] == WorkloadState.RUNNING
            gang = self._gang(row)
            if gang is None:
                continue
            if self._started or not running or not self._ended_unseen(gang):
                gangs.append((gang, running))
        self._attendant.adopt(gangs, self._machine())
        if not self._started:
            self._started = True
            self._attendant.start()

    def _ended_unseen(self, gang: Gang) -> bool:
        """Return whether it ended while no engine ran: then it is told for when it did."""
        folder = attempt_folder(self.root, gang.key)
        found = [(task.rank, status_of(folder / task.name)) for task in gang.tasks]
        if not all(status.phase == "ended" for _, status in found):
            return False
        ended = verdict([(rank, TaskStage.ENDED, status) for rank, status in found], service=gang.service, running=True)
        if ended is None:
            return False
        self._ended_before.append((max(status.ended_ms for _, status in found), AttemptReport(gang.key, *ended)))
        self._ended_before.sort(reverse=True)
        return True

    def _machine(self) -> GangRequirements:
        """Return what requests here may come to."""
        capacity = self._state.capacity
        row = capacity.row_of.get(self.node)
        if row is None:
            return GangRequirements(0, 0)
        offered = capacity.pools[capacity.pool[row]].offered
        return GangRequirements(offered.cpu_milli, offered.memory_mib)

    def _gang(self, row: int) -> Gang | None:
        """Return what is to run; None, and refused, for what cannot run here."""
        key = key_of(self._state, row)
        self._keys[row, key.attempt] = key
        self._rows[key] = row
        try:
            return gang_of(self._state, row, self.node)
        except RefusedError:
            self._told.append(AttemptReport(key, ReportKind.REFUSED, 0))
            return None

    # -- asked by the engine ------------------------------------------------------------------------------------------

    def try_start(self, row: int) -> bool:
        gang = self._gang(row)
        if gang is not None:
            machine = self._machine()
            self._orders.append(lambda: self._attendant.prepare(gang, machine))
        return False

    def confirm(self, row: int) -> None:
        key = key_of(self._state, row)
        self._orders.append(lambda: self._attendant.go(key))

    def confirm_many(self, rows: list[int]) -> None:
        for row in rows:
            self.confirm(row)

    def release(self, row: int, attempt: int) -> None:
        key = self._keys.pop((row, attempt), None)
        if key is not None:
            self._rows.pop(key, None)
            self._orders.append(lambda: self._attendant.release(key))

    def resized(self, row: int) -> None:
        gang = self._gang(row)
        if gang is not None:
            self._orders.append(lambda: self._attendant.resize(gang))

    def carry_out(self) -> None:
        orders, self._orders = self._orders, []
        if not orders:
            return
        with spans.span("executor.carry_out", muster_orders=len(orders)):
            for order in orders:
                order()

    def close(self) -> None:
        """Let go of what runs, which goes on."""
        self._attendant.close()

    # -- reports ------------------------------------------------------------------------------------------------------

    def next_report_ms(self) -> int | None:
        if self._told:
            return AT_ONCE
        return self._ended_before[-1][0] if self._ended_before else None

    def take_ends(self, until_ms: int) -> tuple[array[int], array[int]]:
        return array("q"), array("i")

    def take_reports(self, until_ms: int) -> list[ExecutorReport]:
        reports = []
        while self._ended_before and self._ended_before[-1][0] <= until_ms:
            self._told.append(self._ended_before.pop()[1])
        while self._told:
            told = self._told.popleft()
            row = self._rows.get(told.key)
            if row is not None:
                reports.append(ExecutorReport(told.kind, row, told.key.attempt, 0, told.tasks, told.status))
        return reports
