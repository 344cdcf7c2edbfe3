"""The executor that runs tasks as real processes of this machine, by `engine.executors.task_supervisor`.

Nothing is started or stopped before the journal has what led to it: what the engine asks for in a turn is kept until
`carry_out`, which it calls once the turn is durable. What a crash keeps from being carried out is found by `adopt`.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from engine.executors.cgroups import Cgroups
from engine.executors.gang_launch import Gang, gang_of, key_of
from engine.executors.gang_outcome import verdict
from engine.executors.protocol import Executor, ExecutorReport, ReportKind
from engine.executors.supervised_task import TaskStage
from engine.executors.task_files import AttemptKey, Bounds, attempt_folder, status_of
from engine.executors.task_supervisor import AttemptReport, GangRequirements, TaskSupervisor
from engine.model.errors import RefusedError
from engine.model.specs import WorkloadState
from engine.state.cell_state import State
from engine.tables.columns import view

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
        """Whether it ended while no engine ran: then it is told for when it did."""
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
        """What requests here may come to."""
        capacity = self._state.capacity
        row = capacity.row_of.get(self.node)
        if row is None:
            return GangRequirements(0, 0)
        offered = capacity.pools[capacity.pool[row]].offered
        return GangRequirements(offered.cpu_milli, offered.memory_mib)

    def _gang(self, row: int) -> Gang | None:
        """What is to run; None, and refused, for what cannot run here."""
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
