"""How gangs start: acknowledgements, the simulated executor, and an engine whose executor misbehaves."""

from __future__ import annotations

import tempfile
from array import array
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from math import ceil
from pathlib import Path
from types import SimpleNamespace

import pytest
from cells import small_cell, submit, workload
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from invariants import check_state

from engine.control import Engine
from engine.executors.protocol import Confirmations, ExecutorReport, ReportKind, ReportOutcome
from engine.executors.simulated_executor import Faults, SimulatedExecutor
from engine.model import commands as cmd
from engine.model.errors import SpecError
from engine.model.specs import Resources, TaskGroup, WorkloadSpec, WorkloadState
from engine.state import workloads as wl
from engine.state.workloads import USUAL

ACKED, REFUSED, FINISHED, FAILED, _ = ReportKind
QUEUED, PLACED, RUNNING = WorkloadState.QUEUED, WorkloadState.PLACED, WorkloadState.RUNNING
SECOND_MS = 1000
TRY_TIMEOUT_MS = 30 * SECOND_MS


# -- counting acknowledgements ----------------------------------------------------------------------------------------


def acked(attempt: int, part: int = 0, tasks: int = 1) -> ExecutorReport:
    return ExecutorReport(ACKED, 0, attempt, part, tasks)


def of_one(state: WorkloadState, tasks: int = 1) -> tuple[SimpleNamespace, Confirmations]:
    """The columns of one workload in its third attempt, and who counts for it."""
    columns = SimpleNamespace(state=[state], attempts=[3], tasks=[tasks])
    return columns, Confirmations(columns)


def test_a_gang_acknowledged_at_once_is_confirmed() -> None:
    _, confirmations = of_one(PLACED, tasks=8)
    assert confirmations.take(acked(3, tasks=8)) is ReportOutcome.CONFIRM


def test_a_part_acknowledged_twice_counts_once() -> None:
    _, confirmations = of_one(PLACED, tasks=2)
    answers = [confirmations.take(acked(3, part)) for part in (1, 1, 0)]
    assert answers == [ReportOutcome.WAITING, ReportOutcome.DUPLICATE, ReportOutcome.CONFIRM]


@pytest.mark.parametrize("kind", [REFUSED, FINISHED, FAILED])
def test_anything_but_acknowledgements_aborts_a_gang_that_is_tried(kind) -> None:
    _, confirmations = of_one(PLACED, tasks=2)
    confirmations.take(acked(3, 0))
    assert confirmations.take(ExecutorReport(kind, 0, 3)) is ReportOutcome.ABORT


@pytest.mark.parametrize(
    ("state", "kind", "attempt", "outcome"),
    [
        (RUNNING, ACKED, 3, ReportOutcome.DUPLICATE),
        (RUNNING, REFUSED, 3, ReportOutcome.DUPLICATE),
        (RUNNING, FINISHED, 3, ReportOutcome.ENDED),
        (RUNNING, FAILED, 3, ReportOutcome.ENDED),
        (RUNNING, ACKED, 2, ReportOutcome.LATE),
        (RUNNING, FINISHED, 2, ReportOutcome.DUPLICATE),
        (PLACED, ACKED, 2, ReportOutcome.LATE),
        (PLACED, REFUSED, 2, ReportOutcome.DUPLICATE),
        (PLACED, FAILED, 2, ReportOutcome.DUPLICATE),
        (QUEUED, ACKED, 3, ReportOutcome.LATE),
        (QUEUED, REFUSED, 3, ReportOutcome.DUPLICATE),
        (WorkloadState.FINISHED, FINISHED, 3, ReportOutcome.DUPLICATE),
        (WorkloadState.CANCELLED, ACKED, 3, ReportOutcome.LATE),
    ],
)
def test_what_is_said_of_a_token_that_is_not_tried(state, kind, attempt, outcome) -> None:
    _, confirmations = of_one(state)
    assert confirmations.take(ExecutorReport(kind, 0, attempt, tasks=1)) is outcome


class Trials(RuleBasedStateMachine):
    """Gangs are placed, given back and ended; messages about any token come in any order, any number of times. The
    model keeps every message of a token and decides from all of them each time."""

    @initialize(sizes=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=3))
    def waiting(self, sizes: list[list[int]]) -> None:
        self.parts = sizes
        """Tasks of each part, by row."""
        rows = range(len(sizes))
        self.columns = SimpleNamespace(
            state=[QUEUED for _ in rows], attempts=[0 for _ in rows], tasks=[sum(parts) for parts in sizes]
        )
        self.confirmations = Confirmations(self.columns)
        self.heard: dict[tuple[int, int], list[int]] = {}
        """Parts acknowledged while the token was tried, in the order heard."""
        self.started: Counter[tuple[int, int]] = Counter()

    def rows(self, *states: WorkloadState) -> list[int]:
        return [row for row, state in enumerate(self.columns.state) if state in states]

    @precondition(lambda self: self.rows(QUEUED))
    @rule(data=st.data())
    def place(self, data) -> None:
        row = data.draw(st.sampled_from(self.rows(QUEUED)))
        self.columns.attempts[row] += 1
        self.columns.state[row] = PLACED

    @precondition(lambda self: self.rows(PLACED, RUNNING))
    @rule(data=st.data())
    def give_back(self, data) -> None:
        """The deadline has passed, or it was requeued."""
        row = data.draw(st.sampled_from(self.rows(PLACED, RUNNING)))
        self.confirmations.forget(row)
        self.columns.state[row] = QUEUED

    @precondition(lambda self: max(self.columns.attempts))
    @rule(data=st.data())
    def hear(self, data) -> None:
        row = data.draw(st.sampled_from([row for row, tried in enumerate(self.columns.attempts) if tried]))
        newest = self.columns.attempts[row]
        attempt = data.draw(st.integers(max(1, newest - 1), newest))
        kind = data.draw(st.sampled_from([ACKED] * 6 + [REFUSED, FINISHED, FAILED]))
        part = data.draw(st.integers(0, len(self.parts[row]) - 1))
        outcome = self.confirmations.take(ExecutorReport(kind, row, attempt, part, self.parts[row][part]))
        assert outcome is self.expected(row, attempt, kind, part)
        if outcome is ReportOutcome.CONFIRM:
            self.started[row, attempt] += 1
            self.columns.state[row] = RUNNING
        elif outcome in (ReportOutcome.ABORT, ReportOutcome.ENDED):
            self.confirmations.forget(row)
            self.columns.state[row] = QUEUED

    def expected(self, row: int, attempt: int, kind: ReportKind, part: int) -> ReportOutcome:
        newest = attempt == self.columns.attempts[row]
        if newest and self.columns.state[row] == PLACED:
            if kind != ACKED:
                return ReportOutcome.ABORT
            heard = self.heard.setdefault((row, attempt), [])
            heard.append(part)
            if heard.count(part) > 1:
                return ReportOutcome.DUPLICATE
            return ReportOutcome.CONFIRM if set(heard) == set(range(len(self.parts[row]))) else ReportOutcome.WAITING
        runs = newest and self.columns.state[row] == RUNNING
        if kind == ACKED:
            return ReportOutcome.DUPLICATE if runs else ReportOutcome.LATE
        return ReportOutcome.ENDED if runs and kind != REFUSED else ReportOutcome.DUPLICATE

    @invariant()
    def no_token_starts_twice(self) -> None:
        if hasattr(self, "started"):
            assert max(self.started.values(), default=0) <= 1


Trials.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None, derandomize=True)
TestTrials = Trials.TestCase


# -- the simulated executor -------------------------------------------------------------------------------------------


class Gangs:
    """The columns the simulated executor reads, and the little of the engine that changes them."""

    def __init__(self) -> None:
        columns = (
            "state", "attempts", "tasks", "since", "rated", "done", "kept", "simulated", "failing", "failures", "cls",
            "terms", "elastic",
        )  # fmt: skip
        columns = {name: array("q") for name in columns}
        self.workloads = SimpleNamespace(ids=[], classes=[], terms_specs=[USUAL], **columns)
        self.workloads.class_at = lambda row: self.workloads.classes[row]
        self.workloads.terms_at = lambda row: USUAL

    def submit(self, tasks: int = 1, *, run: int = 60_000, estimate: int = 0, kept: int = 0, failing: int = 0) -> int:
        """A gang of `tasks` that waits. Returns its row."""
        w = self.workloads
        row = len(w.ids)
        w.ids.append(f"w{row}")
        w.state.append(QUEUED)
        w.attempts.append(0)
        w.tasks.append(tasks)
        w.classes.append(SimpleNamespace(tasks=tasks, estimate_ms=estimate, single=tasks == 1))
        w.cls.append(row)
        w.simulated.append(run)
        w.kept.append(kept)
        w.failing.append(failing)
        for column in (w.since, w.rated, w.done, w.failures, w.terms, w.elastic):
            column.append(0)
        return row

    def place(self, row: int, at_ms: int = 0) -> None:
        w = self.workloads
        w.state[row] = PLACED
        w.attempts[row] += 1
        w.since[row] = w.rated[row] = at_ms
        w.done[row] = 0

    def start(self, row: int, at_ms: int = 0) -> None:
        w = self.workloads
        w.state[row] = RUNNING
        w.since[row] = w.rated[row] = at_ms

    def resize(self, row: int, tasks: int, at_ms: int) -> None:
        w = self.workloads
        w.done[row] += (at_ms - w.rated[row]) * w.tasks[row] // w.classes[row].tasks
        w.tasks[row], w.rated[row] = tasks, at_ms

    def requeue(self, row: int) -> None:
        self.workloads.state[row] = QUEUED


FOREVER = 2**50


def started(gangs: Gangs, *rows: int, seed: int = 1) -> SimulatedExecutor:
    """An executor without faults in which these run since cell time 0."""
    executor = SimulatedExecutor(gangs, seed)
    for row in rows:
        gangs.place(row)
        assert executor.try_start(row)
        gangs.start(row)
        executor.confirm(row)
    return executor


def ends(executor: SimulatedExecutor) -> list[tuple[int, int, ReportKind]]:
    """(cell ms, row, kind) of all reports to come, taken one instant after the other."""
    found = []
    while (at_ms := executor.next_report_ms()) is not None:
        for report in executor.take_reports(at_ms):
            found.append((at_ms, report.row, report.kind))
            executor._state.workloads.state[report.row] = WorkloadState.FINISHED
    return found


def test_without_faults_a_gang_is_acknowledged_in_the_call_and_runs_for_its_time() -> None:
    gangs = Gangs()
    executor = SimulatedExecutor(gangs, seed=1)
    row = gangs.submit(8, run=5000)
    gangs.place(row)
    assert executor.try_start(row)
    assert executor.next_report_ms() is None
    gangs.start(row, at_ms=100)
    executor.confirm(row)
    assert executor.take_reports(5099) == []
    assert executor.take_reports(5100) == [ExecutorReport(FINISHED, row, 1, tasks=8)]
    assert executor.next_report_ms() is None


def test_work_kept_from_earlier_attempts_is_not_done_again() -> None:
    gangs = Gangs()
    rows = [gangs.submit(run=5000, kept=kept) for kept in (0, 3000, 5000)]
    assert ends(started(gangs, *rows)) == [(1, rows[2], FINISHED), (2000, rows[1], FINISHED), (5000, rows[0], FINISHED)]


def test_a_drawn_run_time_depends_on_seed_and_workload_alone() -> None:
    gangs = Gangs()
    rows = [gangs.submit(run=0, estimate=estimate) for estimate in [0, 600_000] * 40]

    def run_times(order: list[int], seed: int) -> list[int]:
        return [at_ms for at_ms, _, _ in sorted(ends(started(gangs, *order, seed=seed)), key=lambda end: end[1])]

    drawn = run_times(rows, seed=1)
    assert run_times(rows[::-1], seed=1) == drawn
    assert run_times(rows, seed=2) != drawn
    assert len(set(drawn[::2])) == 40, "some run equally long"
    assert max(drawn[1::2]) == 600_000, "none or too many run to their limit"
    assert drawn[1::2].count(600_000) < 10


def test_reports_come_in_order_of_time_and_row() -> None:
    gangs = Gangs()
    rows = [gangs.submit(run=run) for run in (900, 500, 900, 500)]
    for executor in (started(gangs, *reversed(rows)), SimulatedExecutor(gangs, 1)):
        assert [report.row for report in executor.take_reports(1000)] == [1, 3, 0, 2]


@given(
    run=st.integers(1, 10**9),
    full=st.integers(1, 1000),
    sizes=st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 10**6)), min_size=1, max_size=5),
    failing=st.booleans(),
)
@settings(deadline=None, derandomize=True)
def test_work_goes_on_in_proportion_to_the_tasks(run, full, sizes, failing) -> None:
    """Against the same reckoned in fractions, with as many changes of size as are made before the end."""
    gangs = Gangs()
    row = gangs.submit(full, run=run, failing=int(failing))
    executor = started(gangs, row)
    left = Fraction(run // 2 if failing else run)
    at_ms, tasks, changes = 0, full, 0
    for wanted, wait_ms in sizes:
        size = min(wanted, full)
        if at_ms + wait_ms >= executor.next_report_ms():
            break
        at_ms += wait_ms
        left -= Fraction(wait_ms * tasks, full)
        gangs.resize(row, size, at_ms)
        executor.resized(row)
        tasks, changes = size, changes + 1
    [(end_ms, _, kind)] = ends(executor)
    exact = at_ms + max(ceil(left * full / tasks), 1)
    assert kind == (FAILED if failing else FINISHED)
    assert exact <= end_ms <= exact + ceil(Fraction(changes * full, tasks)), (
        "work in part milliseconds is lost, no more"
    )


def test_a_change_of_size_and_back_at_once_leaves_one_end() -> None:
    gangs = Gangs()
    row = gangs.submit(4, run=1000)
    executor = started(gangs, row)
    for tasks in (2, 4):
        gangs.resize(row, tasks, at_ms=0)
        executor.resized(row)
    assert ends(executor) == [(1000, row, FINISHED)]


def test_as_many_attempts_fail_half_way_as_were_asked_for() -> None:
    gangs = Gangs()
    row = gangs.submit(run=1000, kept=200, failing=2)
    executor = started(gangs, row)
    seen = []
    for failures in range(3):
        at_ms = executor.next_report_ms()
        [report] = executor.take_reports(at_ms)
        seen.append((at_ms, report.kind))
        gangs.workloads.failures[row] = failures + 1
        gangs.place(row, at_ms)
        gangs.start(row, at_ms)
        executor.confirm(row)
    assert seen == [(400, FAILED), (800, FAILED), (1600, FINISHED)]


def test_what_was_stopped_does_not_end() -> None:
    gangs = Gangs()
    row = gangs.submit(run=1000)
    executor = started(gangs, row)
    gangs.requeue(row)
    executor.release(row, 1)
    assert executor.take_reports(1000) == []


def test_an_attempt_does_not_end_for_the_one_after_it() -> None:
    gangs = Gangs()
    row = gangs.submit(run=1000)
    executor = started(gangs, row)
    gangs.requeue(row)
    executor.release(row, 1)
    gangs.place(row)
    gangs.start(row)
    gangs.workloads.kept[row] = 100
    executor.confirm(row)
    assert executor.take_reports(1000) == [ExecutorReport(FINISHED, row, 2, tasks=1)]


def tried(faults: Faults, sizes: list[int], seed: int = 1) -> list[tuple[int, ExecutorReport]]:
    """(cell ms, report) of everything said of gangs of these sizes that are tried at cell time 0."""
    gangs = Gangs()
    executor = SimulatedExecutor(gangs, seed, faults)
    for tasks in sizes:
        row = gangs.submit(tasks)
        gangs.place(row)
        assert not executor.try_start(row)
    return heard(executor)


def heard(executor: SimulatedExecutor) -> list[tuple[int, ExecutorReport]]:
    said = []
    while (at_ms := executor.next_report_ms()) is not None:
        said += [(at_ms, report) for report in executor.take_reports(at_ms)]
    return said


def test_lost_acknowledgements_never_come() -> None:
    assert tried(Faults(lost=1000), [1, 5]) == []


def test_a_full_executor_refuses() -> None:
    assert tried(Faults(refused=1000), [3]) == [(0, ExecutorReport(REFUSED, 0, 1, 0, 3))]


def test_duplicates_come_later() -> None:
    (first_ms, first), (second_ms, second) = tried(Faults(duplicated=1000, delay_ms=(100, 200)), [3])
    assert first == second == ExecutorReport(ACKED, 0, 1, 0, 3)
    assert 100 <= first_ms <= 200
    assert first_ms + 100 <= second_ms <= first_ms + 200


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20), parts=st.integers(1, 10), seed=st.integers(0, 99))
@settings(deadline=None, derandomize=True)
def test_the_parts_of_a_gang_make_up_the_whole(sizes, parts, seed) -> None:
    said = tried(Faults(parts=parts, delay_ms=(10, 50)), sizes, seed)
    assert [at_ms for at_ms, _ in said] == sorted(at_ms for at_ms, _ in said)
    assert all(10 <= at_ms <= 50 for at_ms, _ in said)
    for row, tasks in enumerate(sizes):
        mine = [report for _, report in said if report.row == row]
        assert sorted(report.part for report in mine) == list(range(len(mine)))
        assert len(mine) <= parts
        assert sum(report.tasks for report in mine) == tasks
        assert min(report.tasks for report in mine) >= 1


def test_each_part_of_a_gang_is_under_way_for_a_time_of_its_own() -> None:
    times_ms = [at_ms for at_ms, _ in tried(Faults(parts=20, delay_ms=(0, 10**9)), [20] * 3)]
    assert len(times_ms) > 3
    assert len(set(times_ms)) == len(times_ms)


def test_faults_come_at_their_rates() -> None:
    said = tried(Faults(lost=300, refused=200, duplicated=100, delay_ms=(0, 9)), [1] * 4000)
    kinds = Counter(report.kind for report in {report for _, report in said})
    assert 2600 < kinds.total() < 3000, "about 30 % are lost"
    assert 450 < kinds[REFUSED] < 670, "about 20 % of the rest are refusals"
    assert 200 < len(said) - kinds.total() < 360, "about 10 % of the rest come twice"
    assert {at_ms for at_ms, report in said if report.row % 7} >= set(range(10)), "all delays occur"


FAULTS = Faults(delay_ms=(0, 9000), parts=3, lost=100, refused=100, duplicated=100)


def test_the_same_seed_gives_the_same_faults_in_whatever_order_gangs_are_tried() -> None:
    def all_said(order: list[int], seed: int) -> list[tuple[int, ExecutorReport]]:
        gangs = Gangs()
        executor = SimulatedExecutor(gangs, seed, FAULTS)
        for _ in order:
            gangs.submit(5)
        for row in order:
            gangs.place(row)
            executor.try_start(row)
        return heard(executor)

    rows = list(range(50))
    assert all_said(rows, 1) == all_said(rows[::-1], 1)
    assert all_said(rows, 1) != all_said(rows, 2)


def test_another_attempt_meets_other_faults() -> None:
    gangs = Gangs()
    executor = SimulatedExecutor(gangs, 1, Faults(delay_ms=(0, 10**9)))
    row = gangs.submit()
    delays_ms = []
    for attempt, placed_ms in enumerate([0, 10**10], 1):
        gangs.place(row, placed_ms)
        executor.try_start(row)
        [(at_ms, report)] = heard(executor)
        assert report.attempt == attempt
        assert 0 <= at_ms - placed_ms <= 10**9
        delays_ms.append(at_ms - placed_ms)
    assert delays_ms[0] != delays_ms[1]


def test_after_a_restart_all_is_said_again_under_the_same_tokens() -> None:
    gangs = Gangs()
    executor = SimulatedExecutor(gangs, 1, FAULTS)
    rows = [gangs.submit(5, run=20_000 - row) for row in range(40)]
    running, tried = rows[:20], rows[20:]
    for row in rows:
        gangs.place(row)
        executor.try_start(row)
    for row in running:
        gangs.start(row, at_ms=50)
        executor.confirm(row)
    again = SimulatedExecutor(gangs, 1, FAULTS)
    assert again.held == executor.held == {(row, 1) for row in tried}
    said, said_again = heard(executor), heard(again)
    assert [at_ms for at_ms, _ in said_again] == sorted(at_ms for at_ms, _ in said_again)
    assert [entry for entry in said_again if entry[1].row in tried] == [e for e in said if e[1].row in tried]
    assert set(said_again) <= set(said)
    assert {report.row for _, report in said_again if report.kind == FINISHED} == set(running)


def test_without_faults_a_placed_gang_is_acknowledged_after_a_restart() -> None:
    gangs = Gangs()
    row = gangs.submit(4)
    gangs.place(row)
    executor = SimulatedExecutor(gangs, 1)
    assert executor.take_reports(0) == [ExecutorReport(ACKED, row, 1, 0, 4)]


def test_an_end_may_be_reported_twice() -> None:
    gangs = Gangs()
    executor = SimulatedExecutor(gangs, 1, Faults(duplicated=1000, delay_ms=(5, 5)))
    row = gangs.submit(run=1000)
    gangs.place(row)
    gangs.start(row)
    executor.confirm(row)
    assert ends(executor) == [(1000, row, FINISHED), (1005, row, FINISHED)]


def test_what_is_ready_is_held_until_it_starts_or_is_released() -> None:
    gangs = Gangs()
    executor = SimulatedExecutor(gangs, 1, Faults(delay_ms=(100, 100)))
    row, other = gangs.submit(), gangs.submit()
    for each in (row, other):
        gangs.place(each)
        executor.try_start(each)
    assert executor.held == {(row, 1), (other, 1)}
    gangs.start(row)
    executor.confirm(row)
    gangs.requeue(other)
    executor.release(other, 1)
    assert executor.held == set()
    executor.take_reports(100)
    assert executor.held == {(other, 1)}, "an acknowledgement after the release says that it is ready again"
    executor.release(other, 1)
    executor.release(other, 1)
    assert executor.held == set()


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"lost": 1001}, "faults.lost"),
        ({"refused": -1}, "faults.refused"),
        ({"duplicated": 5000}, "faults.duplicated"),
        ({"parts": 0}, "faults.parts"),
        ({"delay_ms": (-1, 5)}, "faults.delay_ms"),
        ({"delay_ms": (6, 5)}, "faults.delay_ms"),
    ],
)
def test_faults_out_of_range_are_refused(wrong, where) -> None:
    with pytest.raises(SpecError) as caught:
        Faults(**wrong)
    assert caught.value.where == where


# -- the engine with an executor that misbehaves ----------------------------------------------------------------------


def cell_with(faults: Faults | None, *gangs: WorkloadSpec) -> Engine:
    engine = Engine.open(None, cell=small_cell(), seed=3, faults=faults)
    engine.command(submit(*gangs))
    return engine


def state_of(engine: Engine, workload_id: str) -> WorkloadState:
    w = engine.state.workloads
    return WorkloadState(w.state[w.row_of[workload_id]])


def run_out(engine: Engine) -> None:
    """Let time pass until every workload has ended."""
    for _ in range(200):
        engine.advance(engine.now_ms + 600 * SECOND_MS)
        if all(WorkloadState(state).terminal for state in engine.state.workloads.state):
            return
    raise AssertionError(f"not all ends: {Counter(engine.state.workloads.state)}")


def check_all_is_over(engine: Engine) -> None:
    """No capacity is held and nothing counted by the engine, nothing is kept ready by the executor."""
    check_state(engine.state)
    assert all(row < 0 for row in engine.state.allocations.workload), "something is still allocated"
    assert engine._confirmations._trials == {}, "acknowledgements are still counted"
    assert engine.executor.held == set(), "the executor keeps tasks ready that nobody will start"


def check_tokens(engine: Engine) -> None:
    """Every start follows a placement of its own, and is the only one of it."""
    w = engine.state.workloads
    for row, entry in enumerate(w.history):
        what = []
        while entry >= 0:
            what.append(w.history_what[entry])
            entry = w.history_previous[entry]
        steps = [step for step in reversed(what) if step in (wl.PLACED, wl.RUNNING)]
        before = {step for step, following in pairwise([None, *steps]) if following == wl.RUNNING}
        assert before <= {wl.PLACED}, f"{w.ids[row]}: {[wl.TRANSITIONS[step] for step in steps]}"


@pytest.mark.parametrize("seed", range(5))
def test_a_gang_runs_from_the_moment_its_last_part_is_acknowledged_for_the_first_time(seed) -> None:
    engine = Engine.open(
        None, cell=small_cell(), seed=seed, faults=Faults(delay_ms=(1000, 9000), parts=4, duplicated=1000)
    )
    engine.command(submit(workload("x", count=4, gpu=8000, run=60_000)))
    first_ms: dict[int, int] = {}
    for at_ms, _, _, _, part, *_ in sorted(engine.executor._reports):
        first_ms.setdefault(part, at_ms)
    start_ms = max(first_ms.values())
    engine.advance(start_ms - 1)
    assert state_of(engine, "x") == PLACED
    engine.advance(start_ms)
    assert state_of(engine, "x") == RUNNING
    run_out(engine)
    w = engine.state.workloads
    assert (w.started[0], w.ended[0], w.attempts[0]) == (start_ms, start_ms + 60_000, 1)
    check_all_is_over(engine)


def test_a_gang_that_nobody_acknowledges_is_given_back_at_the_deadline_and_tried_again() -> None:
    engine = cell_with(Faults(lost=1000), workload("x", count=4, gpu=8000))
    engine.advance(TRY_TIMEOUT_MS - 1)
    assert state_of(engine, "x") == PLACED
    engine.advance(TRY_TIMEOUT_MS)
    assert state_of(engine, "x") == WorkloadState.WAITING
    check_all_is_over(engine)
    engine.executor.faults = None
    run_out(engine)
    assert state_of(engine, "x") == WorkloadState.FINISHED
    assert engine.state.workloads.attempts[0] == 2
    assert engine.state.workloads.failures[0] == 0, "a start that was not confirmed is no failure of the work"


def test_one_refusal_gives_back_the_whole_gang_at_once() -> None:
    """Until then, all that was acknowledged waits for the rest."""
    for seed in range(20):
        engine = Engine.open(None, cell=small_cell(), seed=seed, faults=Faults(refused=400, parts=4, delay_ms=(1, 999)))
        engine.command(submit(workload("x", count=4, gpu=8000)))
        answers = sorted(entry[:3] for entry in engine.executor._reports)
        refusal_ms = next((at_ms for at_ms, _, kind in answers if kind == REFUSED), None)
        if refusal_ms is not None and answers[0][2] == ACKED:
            break
    engine.advance(refusal_ms - 1)
    assert state_of(engine, "x") == PLACED
    engine.advance(refusal_ms)
    assert state_of(engine, "x") == WorkloadState.WAITING
    engine.advance(999)
    check_all_is_over(engine)


def test_an_acknowledgement_after_the_deadline_is_answered_with_release() -> None:
    engine = cell_with(Faults(delay_ms=(31_000, 35_000)), workload("x"))
    engine.advance(TRY_TIMEOUT_MS)
    assert engine.executor.next_report_ms() > TRY_TIMEOUT_MS, "nothing is late"
    engine.advance(35_000)
    assert engine.executor.next_report_ms() is None
    assert state_of(engine, "x") == WorkloadState.WAITING
    check_all_is_over(engine)


def test_a_gang_that_is_cancelled_while_it_is_tried_never_starts() -> None:
    engine = cell_with(Faults(delay_ms=(5000, 5000)), workload("x", count=2))
    engine.command(cmd.Cancel(ids=("x",)))
    engine.advance(60_000)
    assert state_of(engine, "x") == WorkloadState.CANCELLED
    check_all_is_over(engine)


def test_after_a_crash_a_placed_gang_starts_when_it_would_have_under_the_same_token(tmp_path) -> None:
    faults = Faults(delay_ms=(5000, 5000), parts=3)
    path = tmp_path / "journal.db"
    engine = Engine.open(path, cell=small_cell(), seed=3, faults=faults)
    engine.command(submit(workload("x", count=3, run=10_000)))
    engine.advance(2000)
    engine.command(submit(workload("later", held=True)))
    engine._journal.close()
    engine = Engine.open(path, faults=faults)
    assert (state_of(engine, "x"), engine.now_ms) == (PLACED, 2000)
    engine.advance(15_000)
    w = engine.state.workloads
    assert (w.started[0], w.ended[0], w.attempts[0]) == (5000, 15_000, 1)
    check_all_is_over(engine)
    engine.close()


class Rehearsal(RuleBasedStateMachine):
    """A small cell whose executor is slow, loses, repeats and refuses; people act, time passes, engines crash."""

    @initialize(
        faults=st.builds(
            Faults,
            delay_ms=st.tuples(st.integers(0, 2000), st.sampled_from([2000, 20_000, 45_000])),
            parts=st.integers(1, 4),
            lost=st.sampled_from([0, 100, 500]),
            refused=st.sampled_from([0, 100, 500]),
            duplicated=st.sampled_from([0, 300, 1000]),
        ),
        policy=st.sampled_from(["fcfs", "easy"]),
    )
    def open(self, faults: Faults, policy: str) -> None:
        self.faults = faults
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "journal.db"
        self.engine = Engine.open(self.path, cell=small_cell(3, 2), seed=5, faults=faults, snapshot_every=40)
        self.engine.command(cmd.SetPolicy(policy=policy))
        self.submitted: list[str] = []

    def teardown(self) -> None:
        """With an executor that does as it is asked, everything comes to its end."""
        if not hasattr(self, "engine"):
            return
        try:
            self.engine.executor.faults = None
            run_out(self.engine)
            check_tokens(self.engine)
            check_all_is_over(self.engine)
        finally:
            self.engine._journal.close()
            self.folder.cleanup()

    @rule(
        counts=st.lists(st.integers(1, 5), min_size=1, max_size=2),
        gpu=st.sampled_from([0, 500, 1000, 2000]),
        queue=st.sampled_from(["a", "b"]),
        priority=st.sampled_from(["low", "normal", "high"]),
        run=st.sampled_from([1, 900, 60_000]),
        fails=st.integers(0, 2),
        retries=st.integers(0, 2),
        elastic=st.booleans(),
    )
    def submit(self, counts, gpu, queue, priority, run, fails, retries, elastic) -> None:
        request = Resources(cpu_milli=1000, gpu_milli=gpu)
        spec = WorkloadSpec(
            id=f"w{len(self.submitted)}",
            queue=queue,
            priority_class=priority,
            groups=tuple(
                TaskGroup(name=f"g{i}", count=count, min_count=1 if elastic else count, request=request)
                for i, count in enumerate(counts)
            ),
            elastic=elastic,
            estimate_ms=60_000,
            simulated_runtime_ms=run,
            simulated_failures=fails,
            retries=retries,
        )
        self.engine.command(submit(spec))
        self.submitted.append(spec.id)

    @rule(milliseconds=st.sampled_from([1, 1000, 8000, 29_999, 30_000, 300_000]))
    def pass_time(self, milliseconds: int) -> None:
        self.engine.advance(self.engine.now_ms + milliseconds)

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), action=st.sampled_from([cmd.Cancel, cmd.Requeue]))
    def act(self, data, action) -> None:
        self.engine.commands([action(ids=(data.draw(st.sampled_from(self.submitted)),))])

    @rule()
    def crash(self) -> None:
        before = self.engine.state.digest()
        self.engine._journal.close()
        self.engine = Engine.open(self.path, faults=self.faults, snapshot_every=40)
        assert self.engine.state.digest() == before

    @rule(milliseconds=st.sampled_from([1000, 40_000]))
    def fork(self, milliseconds: int) -> None:
        """Left alone, a fork meets the same faults: it is this cell's future."""
        twin = self.engine.fork()
        twin.advance(twin.now_ms + milliseconds)
        self.engine.advance(self.engine.now_ms + milliseconds)
        assert self.engine.state.digest() == twin.state.digest()

    @invariant()
    def a_gang_is_whole_or_not_there(self) -> None:
        if hasattr(self, "engine"):
            check_state(self.engine.state)

    @invariant()
    def no_trial_outlives_its_deadline(self) -> None:
        if hasattr(self, "engine"):
            w = self.engine.state.workloads
            tried_ms = [self.engine.now_ms - w.since[row] for row, state in enumerate(w.state) if state == PLACED]
            assert all(waited_ms < TRY_TIMEOUT_MS for waited_ms in tried_ms)

    @invariant()
    def no_token_starts_twice(self) -> None:
        if hasattr(self, "engine"):
            check_tokens(self.engine)


Rehearsal.TestCase.settings = settings(
    max_examples=examples(50),
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestRehearsal = Rehearsal.TestCase
