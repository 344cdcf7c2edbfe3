"""The protocol between the engine and executors: a gang starts by TRY, then CONFIRM or ABORT.

A token is (row, attempt): one placement of one workload. The engine tries a token when the gang is placed. The executor
makes the tasks ready and acknowledges them, all at once or in parts. Once every task is acknowledged the engine
confirms and all of them start together. On a refusal, or at the deadline, it gives everything back and releases the
token. Messages may come late, twice, out of order or never: a token starts at most once, and whole.
"""

from __future__ import annotations

from array import array
from enum import Enum, IntEnum, auto
from typing import Protocol

import msgspec

from engine.model.specs import WorkloadState
from engine.state.cell_state import State
from engine.state.workloads import Workloads


class ReportKind(IntEnum):
    """The kinds of reports on a token."""

    ACKED = 0
    """A part of its tasks is ready to start."""
    REFUSED = 1
    """A part of its tasks cannot start. Meant for tokens not fully acknowledged; after that, tasks fail."""
    FINISHED = 2
    """It has run to its end."""
    FAILED = 3
    """It has stopped because the work itself failed."""
    LOST = 4
    """Its processes are gone, and nobody knows how they ended: it must be started again."""


class ExecutorReport(msgspec.Struct, frozen=True, array_like=True, gc=False, order=True):
    """One message of an executor."""

    kind: ReportKind
    row: int
    """Workload row; with `attempt` the token."""
    attempt: int
    part: int = 0
    """Which part of the gang is acknowledged or refused. A part is counted once, however often it is reported."""
    tasks: int = 0
    """How many tasks an acknowledged part has; of an end, the rank of the task that decided about it."""
    status: int = 0
    """How that task ended, where it is known, as `engine.model.events.Exited` has it."""


class Executor(Protocol):
    """Runs tasks. Called by the engine alone, on its thread, after the state has changed; it never changes the state.

    The engine may die between any two calls and ask again after it is back, so every call may be repeated.
    """

    prompt: bool
    """Whether every gang is ready as soon as it is tried."""

    def adopt(self, state: State) -> None:
        """Agree with `state`, which is new to it: after a restart, or because it is a fork of another. Placed gangs
        are tried again under the same tokens, running ones go on, and every other token is over."""
        ...

    def try_start(self, row: int) -> bool:
        """Make the tasks of a gang that was just placed ready to start, but do not start them.

        True: all are ready, which spares the reports that say so.
        """
        ...

    def confirm(self, row: int) -> None:
        """Start the tasks of a gang, all of which are acknowledged: the state says that it runs."""
        ...

    def confirm_many(self, rows: list[int]) -> None:
        """The same for several, which keep all their tasks to their ends."""
        ...

    def release(self, row: int, attempt: int) -> None:
        """The token is over: drop or stop what there is of it. Nothing happens if there is none."""
        ...

    def resized(self, row: int) -> None:
        """A running elastic workload has another number of tasks, or other nodes, from now on."""
        ...

    def carry_out(self) -> None:
        """All that was asked for since the last time is durable now. Before that nothing may be done that shows outside
        of this process; `adopt` instead of this says that it is forgotten."""
        ...

    def close(self) -> None:
        """The engine goes; what runs outside of this process goes on."""
        ...

    def next_report_ms(self) -> int | None:
        """Cell time of the earliest report not taken yet, as far as it is known; None when there is none."""
        ...

    def take_ends(self, until_ms: int) -> tuple[array[int], array[int]]:
        """Return the next ends, up to the cell time, of running work that has finished, kept all its tasks and for
        which no other work waits: cell ms (int64) and workload rows (int32), in order. The first report of another kind
        ends them."""
        ...

    def take_reports(self, until_ms: int) -> list[ExecutorReport]:
        """Reports made up to the cell time `until_ms`, each given once, in order of time and row."""
        ...


class ReportOutcome(Enum):
    """The engine's reaction to a report."""

    WAITING = auto()
    """Nothing yet: other parts are still to be acknowledged."""
    CONFIRM = auto()
    """Every task is acknowledged: start the gang."""
    ABORT = auto()
    """The gang cannot start: give everything back, release the token."""
    ENDED = auto()
    """What runs has come to its end: record it as the report says."""
    LATE = auto()
    """Acknowledged after the token was over: release it, or the executor keeps it ready for ever."""
    DUPLICATE = auto()
    """Nothing new: ignore it."""


class _Trial:
    """A token acknowledged in part."""

    __slots__ = ("missing", "parts")

    def __init__(self, missing: int) -> None:
        self.missing = missing
        """Tasks not acknowledged yet."""
        self.parts: set[int] = set()
        """Parts acknowledged so far."""


class Confirmations:
    """Counts the acknowledgements of placed gangs.

    In memory only. Whether a token is tried, runs or is over is read from the workloads, so nothing has to be saved:
    after a restart placed gangs are tried again, and acknowledged again.
    """

    def __init__(self, workloads: Workloads) -> None:
        self._workloads = workloads
        self._trials: dict[tuple[int, int], _Trial] = {}

    def take(self, report: ExecutorReport) -> ReportOutcome:
        """Count a report, and say what it asks for. The state must follow before the next report is taken."""
        w = self._workloads
        state = w.state[report.row] if w.attempts[report.row] == report.attempt else None
        if state == WorkloadState.PLACED:
            return self._acknowledge(report) if report.kind == ReportKind.ACKED else ReportOutcome.ABORT
        if report.kind == ReportKind.ACKED:
            return ReportOutcome.DUPLICATE if state == WorkloadState.RUNNING else ReportOutcome.LATE
        ended = state == WorkloadState.RUNNING and report.kind != ReportKind.REFUSED
        return ReportOutcome.ENDED if ended else ReportOutcome.DUPLICATE

    def _acknowledge(self, report: ExecutorReport) -> ReportOutcome:
        token = (report.row, report.attempt)
        trial = self._trials.get(token)
        if trial is None:
            trial = self._trials[token] = _Trial(self._workloads.tasks[report.row])
        if report.part in trial.parts:
            return ReportOutcome.DUPLICATE
        trial.parts.add(report.part)
        trial.missing -= report.tasks
        if trial.missing > 0:
            return ReportOutcome.WAITING
        del self._trials[token]
        return ReportOutcome.CONFIRM

    def forget(self, row: int) -> None:
        """The gang in this row was given back: what was counted for its token is not needed any more."""
        self._trials.pop((row, self._workloads.attempts[row]), None)
