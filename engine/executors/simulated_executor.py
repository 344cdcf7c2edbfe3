"""The simulated executor: tasks run for a time known from the trace or drawn from the seed, and no machine is needed.

It owns no fact that the state does not hold: what it reports, and when, is a function of (seed, workload id, attempt),
so after a crash `adopt` finds every gang again, and each starts and ends when it would have.
"""

from __future__ import annotations

import math
import random
from array import array
from heapq import heappop, heappush
from typing import Any

import msgspec
import numpy as np

from engine.executors.protocol import Executor, ExecutorReport, ReportKind
from engine.model.columns import view
from engine.model.errors import SpecError
from engine.model.specs import WorkloadState, check_quantity
from engine.state.cell_state import State
from engine.state.workloads import NONE, at_full_speed, ends_alone

MEDIAN_UNKNOWN_MS = 30 * 60_000
"""Median run time drawn for a workload that gives neither estimate nor simulated run time."""
Entry = tuple[int, int, int, int, int, int, int]
"""(cell ms, row, then as in a Report: kind, attempt, part, tasks; and `rated` of the workload when the end was
reckoned, or ALWAYS)"""
ALWAYS = -1
"""In place of a cell time at which tasks were rated: the report is made whatever has become of its token."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Faults of the simulated executor, to rehearse executors that are slow, lossy or full.

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


MIN_TOGETHER = 16
"""Starts below which each end is kept on its own."""
Column = np.ndarray[Any, np.dtype[Any]]


class Ends:
    """Ends of work that started together, in order of time and row."""

    __slots__ = ("at", "attempt", "rated", "row", "taken", "tasks")

    def __init__(self, at: Column, row: Column, attempt: Column, tasks: Column, rated: Column) -> None:
        order = np.lexsort((row, at))
        self.at, self.row, self.attempt, self.tasks, self.rated = (
            column[order] for column in (at, row, attempt, tasks, rated)
        )
        self.taken = 0
        """How many have been reported, or dropped."""

    def entry(self, number: int) -> tuple[int, int, int, Ends]:
        """Return the key of these ends in a heap, by the next of them."""
        return int(self.at[self.taken]), int(self.row[self.taken]), number, self

    def until(self, until_ms: int) -> slice:
        """Return the slice of ends up to the time."""
        return slice(self.taken, self.taken + int(np.searchsorted(self.at[self.taken :], until_ms, side="right")))

    def entries(self, until_ms: int) -> list[Entry]:
        """Take those up to the time, as single entries."""
        part = self.until(until_ms)
        self.taken = part.stop
        columns = (column[part].tolist() for column in (self.at, self.row, self.attempt, self.tasks, self.rated))
        return [
            (at, row, ReportKind.FINISHED, attempt, 0, tasks, rated)
            for at, row, attempt, tasks, rated in zip(*columns, strict=True)
        ]


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
        self._together: list[tuple[int, int, int, Ends]] = []
        """Heap of (cell ms and row of the next, number, ends)."""
        self._numbered = 0
        self.held: set[tuple[int, int]] = set()
        """Tokens whose tasks are kept ready: tried or acknowledged, neither confirmed nor released since."""
        states = np.asarray(w.state)
        for row in np.flatnonzero(states == WorkloadState.PLACED).tolist():
            self._answer(row, self.faults or Faults())
        running = np.flatnonzero(states == WorkloadState.RUNNING).astype(np.int32)
        self._adopted: tuple[Column, Column, Column] | None = (
            (running, np.asarray(w.attempts)[running], np.asarray(w.rated)[running]) if len(running) else None
        )
        """Row, attempt and `rated` of running work whose ends were not asked for yet. Drawing how long it all runs
        takes longer than all else of a fork, and few forks live to see any of it end."""

    def _reckon(self) -> None:
        """Put on their way the ends of adopted work that still runs as it did: whatever was done to it since has put
        another on its way, or none."""
        if self._adopted is None:
            return
        rows, attempts, rated = self._adopted
        self._adopted = None
        w = self._state.workloads
        same = (view(w.state)[rows] == WorkloadState.RUNNING) & (view(w.attempts)[rows] == attempts)
        rows = rows[same & (view(w.rated)[rows] == rated)]
        together = rows[:0]
        if len(rows) >= MIN_TOGETHER:
            at_full = at_full_speed(w, rows)
            rows, together = rows[~at_full], rows[at_full]
        for row in rows.tolist():
            self._await_end(row)
        self._keep_together(together)

    # -- asked by the engine ------------------------------------------------------------------------------------------

    def try_start(self, row: int) -> bool:
        if self.faults is None:
            return True
        self._answer(row, self.faults)
        return False

    def confirm(self, row: int) -> None:
        self.held.discard((row, self._state.workloads.attempts[row]))
        self._await_end(row)

    def confirm_many(self, rows: list[int]) -> None:
        if self.held:
            self.held.difference_update([(row, self._state.workloads.attempts[row]) for row in rows])
        if len(rows) < MIN_TOGETHER:
            for row in rows:
                self._await_end(row)
            return
        self._keep_together(np.array(rows, np.int32))

    def _keep_together(self, rows: Column) -> None:
        """Reckon the ends of running work that keeps the speed of all its tasks."""
        if not len(rows):
            return
        w = self._state.workloads
        terms = view(w.terms)[rows]
        if terms.any():
            rows = rows[[w.terms_specs[each].service is None for each in terms.tolist()]]
        failing = self.failing(rows)
        for row in rows[failing].tolist():
            self._await_end(row)
        there = rows[~failing]
        if not len(there):
            return
        rated = view(w.rated)[there]
        left_ms = np.maximum(self.run_times(there) - view(w.kept)[there] - view(w.done)[there], 1)
        ends = Ends(rated + left_ms, there, view(w.attempts)[there], view(w.tasks)[there], rated)
        self._put_back(self._numbered, ends)
        self._numbered += 1

    def release(self, row: int, attempt: int) -> None:
        self.held.discard((row, attempt))

    def resized(self, row: int) -> None:
        self._await_end(row)

    @property
    def prompt(self) -> bool:  # type: ignore[override]
        return self.faults is None

    def carry_out(self) -> None:
        """Nothing of it shows outside."""

    def close(self) -> None:
        """Nothing is held."""

    # -- reports ------------------------------------------------------------------------------------------------------

    def next_report_ms(self) -> int | None:
        self._reckon()
        while self._reports and not self._made(self._reports[0]):
            heappop(self._reports)
        while self._together:
            at_ms, row, number, ends = self._together[0]
            token = (int(column[ends.taken]) for column in (ends.attempt, ends.tasks, ends.rated))
            attempt, tasks, rated = token
            if self._made((at_ms, row, ReportKind.FINISHED, attempt, 0, tasks, rated)):
                return min(at_ms, self._reports[0][0]) if self._reports else at_ms
            heappop(self._together)
            ends.taken += 1
            self._put_back(number, ends)
        return self._reports[0][0] if self._reports else None

    def _put_back(self, number: int, ends: Ends) -> None:
        if ends.taken < len(ends.at):
            heappush(self._together, ends.entry(number))

    def _part(self, until_ms: int) -> None:
        """Enter what started together and ends by then one by one."""
        while self._together and self._together[0][0] <= until_ms:
            _, _, number, ends = heappop(self._together)
            for entry in ends.entries(until_ms):
                heappush(self._reports, entry)
            self._put_back(number, ends)

    def take_ends(self, until_ms: int) -> tuple[array[int], array[int]]:
        times, rows = array("q"), array("i")
        if self.faults is not None:
            return times, rows
        self._reckon()
        if not self._reports or self._reports[0][0] > until_ms:
            taken = self._take_together(until_ms)
            if taken is not None:
                return taken
        self._part(until_ms)
        w, reports = self._state.workloads, self._reports
        while reports and reports[0][0] <= until_ms:
            entry = reports[0]
            at_ms, row, kind, _, _, _, rated = entry
            if self._made(entry):
                if kind != ReportKind.FINISHED or rated == ALWAYS or not ends_alone(w, row):
                    break
                if not times or times[-1] != at_ms or rows[-1] != row:
                    times.append(at_ms)
                    rows.append(row)
            heappop(reports)
        return times, rows

    def _take_together(self, until_ms: int) -> tuple[array[int], array[int]] | None:
        """The same of what started together alone; None, and all as before, when others wait for some of it."""
        found: list[tuple[int, Ends, slice]] = []
        while self._together and self._together[0][0] <= until_ms:
            _, _, number, ends = heappop(self._together)
            found.append((number, ends, ends.until(until_ms)))
        times, rows = array("q"), array("i")
        if not found:
            return times, rows
        at, row, attempt, tasks, rated = (
            np.concatenate([getattr(ends, name)[part] for _, ends, part in found])
            for name in ("at", "row", "attempt", "tasks", "rated")
        )
        w = self._state.workloads
        made = view(w.state)[row] == WorkloadState.RUNNING
        made &= (view(w.attempts)[row] == attempt) & (view(w.tasks)[row] == tasks) & (view(w.rated)[row] == rated)
        at, row = at[made], row[made]
        waited_for = bool((view(w.first_dependent)[row] != NONE).any())
        for number, ends, part in found:
            if not waited_for:
                ends.taken = part.stop
            self._put_back(number, ends)
        if waited_for:
            return None
        order = np.lexsort((row, at))
        times.frombytes(at[order].tobytes())
        rows.frombytes(row[order].tobytes())
        return times, rows

    def take_reports(self, until_ms: int) -> list[ExecutorReport]:
        self._reckon()
        self._part(until_ms)
        taken = []
        while self._reports and self._reports[0][0] <= until_ms:
            entry = heappop(self._reports)
            if not self._made(entry):
                continue
            report = ExecutorReport(ReportKind(entry[2]), entry[1], *entry[3:6])
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
        """Return whether the report is made: an end is not once the token is over or its tasks run at another speed."""
        _, row, _, attempt, _, tasks, rated = entry
        w = self._state.workloads
        if rated == ALWAYS:
            return True
        if not (self._runs(row, attempt) and w.rated[row] == rated and w.tasks[row] == tasks):
            return False
        # Resized and thrown back to its last checkpoint within one millisecond, it has another end.
        return not w.elastic[row] or entry[0] == self._end_of(row)[0]

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

    def _repeat_end(self, at_ms: int, report: ExecutorReport) -> None:
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

    def _await_end(self, row: int) -> None:
        """Put the end of a running workload on its way. Services have none."""
        if self._state.workloads.terms_at(row).service is None:
            heappush(self._reports, self._end_of(row))

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
        """Return whether the present attempt of the workload fails half-way."""
        w = self._state.workloads
        return bool(w.failures[row] < w.failing[row])

    def failing(self, rows: Column) -> Column:
        """`fails` of each."""
        w = self._state.workloads
        found: Column = view(w.failures)[rows] < view(w.failing)[rows]
        return found

    def run_times(self, rows: Column) -> Column:
        """`run_time` of each."""
        work: Column = view(self._state.workloads.simulated)[rows]
        for at in np.flatnonzero(work == 0).tolist():
            work[at] = self.run_time(int(rows[at]))
        return work

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
