"""The simulated executor: tasks run for a time known from the trace or drawn from the seed, and no machine is needed.

It owns no fact that the state does not hold: what it reports, and when, is a function of (seed, workload id, attempt),
so after a crash `adopt` finds every gang again, and each starts and ends when it would have.
"""

from __future__ import annotations

import math
import random
from heapq import heapify, heappop, heappush

import msgspec
import numpy as np

from engine.errors import SpecError
from engine.executors.protocol import Executor, Report, ReportKind
from engine.model import WorkloadState, check_quantity
from engine.state import State
from engine.workloads import NONE

MEDIAN_UNKNOWN_MS = 30 * 60_000
"""Median run time drawn for a workload that gives neither estimate nor simulated run time."""
Entry = tuple[int, int, int, int, int, int, int]
"""(cell ms, row, then as in a Report: kind, attempt, part, tasks; and `rated` of the workload when the end was
reckoned, or ALWAYS)"""
ALWAYS = -1
"""In place of a cell time at which tasks were rated: the report is made whatever has become of its token."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """How the simulated executor misbehaves: the way to rehearse executors that are slow, lossy or full.

    Rates are per thousand, each drawn on its own for every part of every attempt. Raises SpecError.
    """

    delay_ms: tuple[int, int] = (0, 0)
    """Least and most time between the TRY and an acknowledgement or refusal; everything between is as likely. A
    duplicate comes later by another such time."""
    parts: int = 1
    """Most parts in which a gang is acknowledged."""
    lost: int = 0
    """Acknowledgements and refusals that never come."""
    refused: int = 0
    """Refusals instead of acknowledgements."""
    duplicated: int = 0
    """Reports that come twice; those of ends too."""

    def __post_init__(self) -> None:
        least, most = self.delay_ms
        check_quantity(least, "faults.delay_ms")
        if most < least:
            raise SpecError("faults.delay_ms", f"{most} is below {least}", "Give the least time first, then the most")
        check_quantity(self.parts, "faults.parts", least=1)
        for rate in ("lost", "refused", "duplicated"):
            check_quantity(getattr(self, rate), f"faults.{rate}", most=1000)


class SimulatedExecutor(Executor):
    """Acknowledges at once, or as `faults` says, and reports when workloads end, in cell time."""

    def __init__(self, state: State, seed: int, faults: Faults | None = None) -> None:
        self.seed = seed
        self.faults = faults
        """May be set at any time, for the gangs placed from then on."""
        self.adopt(state)

    def adopt(self, state: State) -> None:
        self._state = state
        w = state.workloads
        self._reports: list[Entry] = []
        """Heap."""
        self.held: set[tuple[int, int]] = set()
        """Tokens whose tasks are kept ready: tried or acknowledged, neither confirmed nor released since."""
        states = np.asarray(w.state)
        for row in np.flatnonzero((states == WorkloadState.PLACED) | (states == WorkloadState.RUNNING)).tolist():
            if w.state[row] == WorkloadState.PLACED:
                self._answer(row, self.faults or Faults())
            else:
                self._reports.append(self._end_of(row))
        heapify(self._reports)

    # -- asked by the engine ------------------------------------------------------------------------------------------

    def try_start(self, row: int) -> bool:
        if self.faults is None:
            return True
        self._answer(row, self.faults)
        return False

    def confirm(self, row: int) -> None:
        self.held.discard((row, self._state.workloads.attempts[row]))
        heappush(self._reports, self._end_of(row))

    def confirm_many(self, rows: list[int]) -> None:
        if self.held:
            self.held.difference_update([(row, self._state.workloads.attempts[row]) for row in rows])
        ends = [self._end_of(row) for row in rows]
        if len(ends) * 8 > len(self._reports):
            self._reports += ends
            heapify(self._reports)
        else:
            for end in ends:
                heappush(self._reports, end)

    def release(self, row: int, attempt: int) -> None:
        self.held.discard((row, attempt))

    def resized(self, row: int) -> None:
        heappush(self._reports, self._end_of(row))

    # -- reports ------------------------------------------------------------------------------------------------------

    def next_report_ms(self) -> int | None:
        while self._reports and not self._made(self._reports[0]):
            heappop(self._reports)
        return self._reports[0][0] if self._reports else None

    def take_ends(self, until_ms: int) -> list[tuple[int, int]]:
        if self.faults is not None:
            return []
        w, reports = self._state.workloads, self._reports
        first_dependent, cls, classes = w.first_dependent, w.cls, w.classes
        taken: list[tuple[int, int]] = []
        while reports and reports[0][0] <= until_ms:
            entry = reports[0]
            at_ms, row, kind, _, _, _, rated = entry
            if self._made(entry):
                single = classes[cls[row]].single and first_dependent[row] == NONE
                if kind != ReportKind.FINISHED or rated == ALWAYS or not single:
                    break
                if not taken or taken[-1] != (at_ms, row):
                    taken.append((at_ms, row))
            heappop(reports)
        return taken

    def take_reports(self, until_ms: int) -> list[Report]:
        taken = []
        while self._reports and self._reports[0][0] <= until_ms:
            entry = heappop(self._reports)
            if not self._made(entry):
                continue
            report = Report(ReportKind(entry[2]), entry[1], *entry[3:6])
            taken.append(report)
            if entry[6] != ALWAYS:
                # Resized and back within a millisecond, it was reckoned twice.
                while self._reports and self._reports[0] == entry:
                    heappop(self._reports)
                self._repeat_end(entry[0], report)
            elif report.kind == ReportKind.ACKED and not self._runs(report.row, report.attempt):
                self.held.add((report.row, report.attempt))
        return taken

    def _made(self, entry: Entry) -> bool:
        """Whether the report is made: an end is not once the token is over or its tasks run at another speed."""
        _, row, _, attempt, _, tasks, rated = entry
        w = self._state.workloads
        return rated == ALWAYS or (self._runs(row, attempt) and w.rated[row] == rated and w.tasks[row] == tasks)

    def _runs(self, row: int, attempt: int) -> bool:
        w = self._state.workloads
        return w.state[row] == WorkloadState.RUNNING and w.attempts[row] == attempt

    # -- starting -----------------------------------------------------------------------------------------------------

    def _answer(self, row: int, faults: Faults) -> None:
        """Put on their way what a gang placed at `since` is answered."""
        w = self._state.workloads
        attempt, tasks = w.attempts[row], w.tasks[row]
        self.held.add((row, attempt))
        parts = self._draw(row, "parts").randint(1, min(faults.parts, tasks))
        for part in range(parts):
            draw = self._draw(row, str(part))
            lost, refused, duplicated = (draw.randrange(1000) for _ in range(3))
            if lost < faults.lost:
                continue
            kind = ReportKind.REFUSED if refused < faults.refused else ReportKind.ACKED
            message = (kind, attempt, part, tasks // parts + (part < tasks % parts))
            at_ms = w.since[row] + draw.randint(*faults.delay_ms)
            heappush(self._reports, (at_ms, row, *message, ALWAYS))
            if duplicated < faults.duplicated:
                heappush(self._reports, (at_ms + draw.randint(*faults.delay_ms), row, *message, ALWAYS))

    def _repeat_end(self, at_ms: int, report: Report) -> None:
        """Put a duplicate of an end on its way, if there is to be one."""
        if self.faults is None:
            return
        draw = self._draw(report.row, "end")
        if draw.randrange(1000) < self.faults.duplicated:
            message = (report.kind, report.attempt, report.part, report.tasks)
            heappush(self._reports, (at_ms + draw.randint(*self.faults.delay_ms), report.row, *message, ALWAYS))

    def _draw(self, row: int, what: str) -> random.Random:
        """A source of chance of its own for one thing of the row's newest token."""
        w = self._state.workloads
        return random.Random(f"{self.seed}/{w.ids[row]}/{w.attempts[row]}/{what}")

    # -- running ------------------------------------------------------------------------------------------------------

    def _end_of(self, row: int) -> Entry:
        """The end of a running workload: with k of its n tasks, work goes on at k/n of the speed."""
        w = self._state.workloads
        work = self.run_time(row) - w.kept[row]
        kind = ReportKind.FINISHED
        if self.fails(row):
            work //= 2
            kind = ReportKind.FAILED
        rated, tasks = w.rated[row], w.tasks[row]
        left_ms = -(-(work - w.done[row]) * w.class_at(row).tasks // tasks)
        return rated + max(left_ms, 1), row, kind, w.attempts[row], 0, tasks, rated

    def fails(self, row: int) -> bool:
        """Whether the present attempt of the workload fails half-way."""
        w = self._state.workloads
        return bool(w.failures[row] < w.failing[row])

    def run_time(self, row: int) -> int:
        """Milliseconds the whole work takes with all tasks, over all attempts."""
        w = self._state.workloads
        given: int = w.simulated[row]
        if given:
            return given
        draw = random.Random(f"{self.seed}/{w.ids[row]}")
        estimate = w.class_at(row).estimate_ms
        if estimate:
            # Users ask for more than they need; about one in twenty runs to its limit.
            return max(1, int(estimate * min(1.0, draw.lognormvariate(math.log(0.45), 0.5))))
        return max(1, int(MEDIAN_UNKNOWN_MS * draw.lognormvariate(0.0, 1.0)))
