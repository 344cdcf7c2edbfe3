"""The engine's only entry point: `Engine.open`, then `command`, `advance`, `query` and `changes`.

Synchronous and single-threaded. One turn takes commands or time, folds the events into the state, runs a scheduling
cycle, and commits all of it as one journal transaction before it answers. `engine.loop` drives an engine in real time
on a thread of its own.
"""

from __future__ import annotations

import contextlib
import random
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from sqlalchemy import Connection

from engine.admission.workload_changes import RequestRecommender, recommended
from engine.command_checks import check
from engine.controllers import Controller, controllers_of
from engine.elasticity import scaling_report
from engine.elasticity.providers import ProviderFaults
from engine.executors.agent_reports import Agents
from engine.executors.protocol import Confirmations, Executor, ExecutorReport, ReportKind, ReportOutcome
from engine.executors.simulated_executor import Faults, SimulatedExecutor
from engine.external.observed_changes import ObservationFold, intend, intent_key
from engine.journal.database import Place
from engine.journal.event_journal import Beside, Journal, Memory
from engine.journal.outside_readers import StandbyResult
from engine.journal.postgres_store import Lease
from engine.journal.tables import MAX_ESTIMATES, Estimate
from engine.model import events as ev
from engine.model import spans
from engine.model.columns import view
from engine.model.commands import AnyCommand, Command, Define, Observe, Receipt, Submit
from engine.model.details import NodeDetail, QueueDetail, WorkloadDetail
from engine.model.durations import DurationHistogram
from engine.model.errors import JournalError, MusterError, RefusedError
from engine.model.external_cells import IntentsReport
from engine.model.list_queries import Named, Page, Query
from engine.model.overviews import Changes, Overview
from engine.model.reports import (
    BudgetReport,
    FairnessReport,
    FragmentationReport,
    GoodputReport,
    HeatMap,
    HeatRequest,
    ScalingReport,
    Showback,
    ShowbackRequest,
)
from engine.model.spec_parts import TIME_LIMIT
from engine.model.specs import HOUR_MS, CellSpec, ReservationSpec, UsageSample, WorkloadState
from engine.reads import answers as read
from engine.reads import cost_reports
from engine.reads.id_search import find
from engine.reads.recent_activity import Recent
from engine.scheduling.cycle import Scheduler, never
from engine.state import pending_work
from engine.state.cell_state import State
from engine.state.demand import Forecaster
from engine.state.pending_work import Cause
from engine.state.timers import MIN_DOWNTIME_MS, Entry, Timer
from engine.state.workloads import NONE, at_full_speed, ends_alone

T = TypeVar("T")
Answers = list[Receipt | MusterError]

MIN_AT_ONCE = 8
"""Starts or ends that are recorded together: fewer are quicker one by one."""
MAX_ROUNDS = 17
"""Cycles of one turn: what starts in one may let others start or grow in the next."""
MIN_PAUSE_MS = 1000
"""Between attempts to have a gang confirmed, so that a full executor is not asked all the time."""
STOPS = (ev.Cancelled, ev.Evicted, ev.Suspended, ev.Failed)
"""Events after which executors let go of what they had of a workload, if they had anything."""
RESIZES = (ev.Shrunk, ev.Swapped)
SNAPSHOT_EVERY = 200_000
"""Events between snapshots: bounds the tail to replay at start."""


class Engine:
    """A cell: its state, who decides on it, who runs its tasks, and the journal of all that happened."""

    def __init__(
        self,
        state: State,
        *,
        seed: int = 0,
        journal: Journal | None = None,
        snapshot_every: int = SNAPSHOT_EVERY,
        faults: Faults | None = None,
        provider_faults: ProviderFaults | None = None,
        forecaster: Forecaster | None = None,
        model: bool = False,
        processes: Executor | None = None,
    ) -> None:
        self.seed = seed
        self.processes = processes
        """The runner of real tasks; None: nothing runs."""
        self._model = model
        if model:
            state.outside.forget()
            state.held_quota.release(state)
        self.acts = False
        """True if a scheduler that decides the cell may be asked for anything."""
        self.lacks: Mapping[type[Command], str] = {}
        """Requests that the outside scheduler cannot serve over this connection -> the reason."""
        self.ways: Mapping[type[Command], str] = {}
        """The way in which each request reaches the outside scheduler, such as "scontrol"."""
        self.far = ""
        """The outside scheduler, such as "Slurm 24.11.5 at https://head:6820"; empty until it has answered."""
        self.dry_runs: dict[bytes, tuple[str, ...]] = {}
        """Command, encoded -> the outside scheduler's answer when it was tried before anybody voted; the last few."""
        self.faults = faults
        self.provider_faults = provider_faults
        self.forecaster = forecaster
        """Forecaster of the demand that nodes are ordered ahead for; None: the built-in baseline."""
        self.snapshot_every = snapshot_every
        self.keep_ms = 0
        """How long the journal keeps events, cell time; 0: for ever."""
        self.agents = Agents(self)
        self.cycle_every_ms = 0
        """Cell milliseconds between scheduling cycles as time passes: 0 has one at every instant something ends."""
        self.journal_error = ""
        """The reason why the last change could not be recorded; empty when all is well."""
        self.journal_writes = DurationHistogram()
        """Wall seconds of transactions, those that failed too."""
        self.journal_failures = 0
        """Transactions that could not be written."""
        self.enough: Callable[[], bool] = never
        """Asked while it decides: once true, the rest of the cycle and of the time that should pass is left for the
        next turn."""
        self.recommender: RequestRecommender | None = None
        """May change the requests of new work, where the settings let it."""
        self._journal = journal
        self._memory: Memory | None = None
        """Without a journal: the rows beside the events, as soon as there are any."""
        self._beside: Beside | None = None
        """Rows to be written with the present turn."""
        self._estimates: deque[Estimate] = deque(maxlen=MAX_ESTIMATES)
        """Start estimates to be scored, where there is no journal to keep them."""
        self._stale = False
        """The state holds what the journal refused, and must be read again before the next change."""
        self._adopt(state)

    @property
    def decides(self) -> bool:
        """True if it admits, places and ends work. Where another scheduler does, only a fork decides, as its model."""
        return self._model or self.state.settings.decided_by == "muster"

    def _adopt(self, state: State) -> None:
        self.state = state
        self._clock_ms = state.now_ms
        self._cycled_ms = state.now_ms
        self.scheduler = Scheduler(state, self._emit, self._emit_claimed)
        self.executor = self._new_executor()
        self.controllers: list[Controller] = self._new_controllers()
        self._quiet_at = -1
        """Version at which no controller had anything to come."""
        self._unrecorded = False
        """The state's clock shows a time that is not recorded."""
        self._away = False
        """Time passes in which nobody decided."""
        self._confirmations = Confirmations(state.workloads)
        self.recent = self._new_recent()
        self.reader = read.Reader(state, self.scheduler.memory)
        self._batch: list[ev.AnyEvent] = []
        self._first_version = state.version + 1
        self._snapshot_at = state.version
        self._to_launch: list[int] = []
        if state.workloads.ids:
            for row in np.flatnonzero(view(state.workloads.state) == WorkloadState.PLACED).tolist():
                state.timers.watch(state, row)

    def _new_executor(self) -> Executor:
        if self.processes is None:
            return SimulatedExecutor(self.state, self.seed, self.faults)
        self.processes.adopt(self.state)
        return self.processes

    @property
    def rehearsed_faults(self) -> Faults | None:
        """The faults of its simulated executor."""
        return self.executor.faults if isinstance(self.executor, SimulatedExecutor) else None

    def _new_controllers(self) -> list[Controller]:
        return controllers_of(
            self.state,
            self.seed,
            self._emit,
            self.agents.leases,
            self.provider_faults,
            forecaster=self.forecaster,
        )

    def _new_recent(self) -> Recent:
        return Recent(self.state)

    @classmethod
    def open(
        cls,
        path: str | Path | Place | None,
        *,
        seed: int = 0,
        cell: CellSpec | None = None,
        use_snapshot: bool = True,
        snapshot_every: int = SNAPSHOT_EVERY,
        keep_ms: int = 0,
        faults: Faults | None = None,
        provider_faults: ProviderFaults | None = None,
        forecaster: Forecaster | None = None,
        stood_by: StandbyResult | None = None,
        processes: Executor | None = None,
    ) -> Engine:
        """The cell recorded at `path`, a file or a PostgreSQL URL, or a new one; None keeps it in memory only. `cell`
        defines a new one. `faults` rehearses an executor that misbehaves, `provider_faults` a provider that lies.
        `forecaster` foretells demand to the autoscaler, as a function of the past alone: the same after a restart;
        None: the built-in one. `keep_ms`: how long events are kept, cell time; 0: for ever. `stood_by`: what waiting
        for a journal on a server has come to. `processes` runs tasks for real.

        Raises JournalCorrupt, JournalBusy, JournalError, SpecError.
        """
        journal = None if path is None else Journal(path, seed, stood_by.lease if stood_by is not None else None)
        try:
            if journal is None:
                state = State()
            elif stood_by is not None:
                state = stood_by.follower.finish(journal)
            else:
                state = recover(journal, use_snapshot=use_snapshot)
            seed = seed if journal is None else journal.seed
            engine = cls(
                state,
                seed=seed,
                journal=journal,
                snapshot_every=snapshot_every,
                faults=faults,
                provider_faults=provider_faults,
                forecaster=forecaster,
                processes=processes,
            )
            engine.keep_ms = keep_ms
            if cell is not None and state.version == 0:
                engine.command(Define(cell=cell))
            else:
                engine.settle()
            engine.agents.open()
        except BaseException:
            if journal is not None:
                journal.close()
            raise
        return engine

    @classmethod
    def standing(cls, state: State, at_ms: int, recent: Recent, seed: int) -> Engine:
        """An engine that stands at a time, to be asked and never to be commanded. `recent`: what happened before."""
        engine = cls(state, seed=seed)
        engine._clock_ms, engine.recent = at_ms, recent
        return engine

    # -- change -------------------------------------------------------------------------------------------------------

    def command(
        self, command: AnyCommand, *, audit: ev.AuditEntry | None = None, beside: Beside | None = None
    ) -> Receipt:
        """Do it, durably, or raise with nothing done. `audit`, and what `beside` writes, are in the same transaction.
        What `beside` raises undoes it."""
        result = self.commands([command], audit=audit, beside=beside)[0]
        if isinstance(result, MusterError):
            raise result
        return result

    def commands(
        self,
        commands: Sequence[AnyCommand],
        *,
        audit: ev.AuditEntry | None = None,
        beside: Beside | None = None,
        answered: Callable[[Connection, Answers], None] | None = None,
    ) -> Answers:
        """Several in one transaction. Each is accepted or refused on its own; an answer means it is durable. `audit`
        and `beside` are written if one is accepted; so is what `answered`, instead of `beside`, makes of the answers.
        """
        accepted: list[tuple[str, ...] | MusterError] = []
        left_out: list[str] = []
        within = self._turn(undone_without_journal=beside is not None or answered is not None)
        # What is tried in memory, such as a plan on a fork, is no change of the cell.
        doing = spans.span("engine.commands", muster_commands=len(commands)) if self._journal else spans.NO_SPAN
        with doing, within:
            for command in commands:
                if isinstance(command, Observe):
                    accepted.append(self._observe(command, left_out))
                    continue
                try:
                    events, changed = self._events_of(command)
                except MusterError as error:
                    accepted.append(error)
                    continue
                for event in events:
                    self._emit(event)
                if self.recommender is not None and isinstance(command, Submit):
                    self._resize(changed)
                accepted.append(changed)
            if not all(isinstance(answer, MusterError) for answer in accepted):
                self._beside = beside
                if answered is not None:
                    self._beside = lambda connection: answered(connection, self._receipts(accepted, left_out))
                if audit is not None:
                    self._emit(ev.Audited(audit))
            self._cycle()
        return self._receipts(accepted, left_out)

    def _events_of(self, command: AnyCommand) -> tuple[list[ev.AnyEvent], tuple[str, ...]]:
        """The events of the command; where another scheduler decides, the intents."""
        if self.decides:
            return check(self.state, command, self._clock_ms)
        events, changed = intend(self.state, command, self._clock_ms, acts=self.acts, lacks=self.lacks)
        for event in events:
            if isinstance(event, ev.Intended):
                spans.remember(intent_key(event.number))
        return events, changed

    def _receipts(self, accepted: Sequence[tuple[str, ...] | MusterError], left_out: Sequence[str]) -> Answers:
        version, at_ms = self.state.version, self._clock_ms
        return [
            answer
            if isinstance(answer, MusterError)
            else Receipt(version=version, at_ms=at_ms, changed=answer, left_out=tuple(left_out))
            for answer in accepted
        ]

    def _observe(self, command: Observe, left_out: list[str]) -> tuple[str, ...] | MusterError:
        """Take in what was seen of the scheduler that decides: each event depends on those before it."""
        if self.decides:
            return RefusedError("this cell is scheduled by Muster itself", "Only a mirror takes observed changes")
        observation = ObservationFold(self.state, command, self._clock_ms)
        for event in observation.events():
            self._emit(event)
        left_out += observation.left_out
        return tuple(observation.changed)

    def _resize(self, new: tuple[str, ...]) -> None:
        """New workloads as the recommender changes them, where the cell allows it."""
        if self.recommender is not None and self.state.settings.rightsizing == "initial":
            for event in recommended(self.state, self.recommender, new):
                self._emit(event)

    def advance(self, to_ms: int) -> None:
        """Let cell time pass up to `to_ms`: what executors report and what is due, in order of time, and cycles between
        as long as there is anything to decide; one transaction. Once `enough`, less time passes, and none in the
        middle of a cycle. Raises RefusedError when the clock would go back."""
        if to_ms < self._clock_ms:
            raise RefusedError(
                f"the clock would go back from {self._clock_ms} to {to_ms} ms", "Give a time that is not in the past"
            )
        if not self.decides:
            with self._turn():
                self._clock_ms = to_ms
            return
        with self._turn():
            if self.is_interrupted:
                self._cycle()
                if self.enough():
                    return
            while (due := self.next_due()) is not None and due <= to_ms:
                until = self._until(due, to_ms)
                while (due := self._next_event_ms()) is not None and due <= until:
                    if not self._finish_many(until):
                        self._pass_moment(due)
                    until = self._until(due, until)
                self._clock_ms = max(self._clock_ms, until)
                if self.scheduler.has_work(self._clock_ms):
                    self._tick()
                    self._cycle()
                if self.enough():
                    return
            self._clock_ms = max(self._clock_ms, to_ms)

    def catch_up(self, to_ms: int) -> None:
        """Let cell time pass in which nobody decided: no engine ran, or this one stood still. What ends by itself ends
        at its time; the next decisions are made at `to_ms`, and every watched node is given time to call. From
        MIN_DOWNTIME_MS on it is recorded as a downtime. One transaction."""
        since_ms = self._clock_ms
        told = to_ms - since_ms >= MIN_DOWNTIME_MS
        with self._turn():
            if told:
                self._emit(ev.DowntimeBegan())
            self._let_end(to_ms)
            self._clock_ms = max(self._clock_ms, to_ms)
            if told:
                self._emit(ev.DowntimeEnded(since_ms))
            self._tick()
            self._cycle()
        self.agents.reopen()

    def _let_end(self, to_ms: int) -> None:
        """Let work end by itself up to then, and nothing else. Where another scheduler decides, that one reports the
        ends.
        """
        self._away = True
        try:
            while self.decides and (due := self._next_event_ms()) is not None and due <= to_ms:
                if not self._finish_many(to_ms):
                    self._pass_moment(due)
        finally:
            self._away = False

    def hold_clock(self, host_ms: int) -> None:
        """Record that the cell goes on from its own time although its host's clock shows `host_ms`."""
        with self._turn():
            self._emit(ev.ClockHeld(host_ms))

    def keep_time(self) -> None:
        """Record the present time, so that after a crash it is known until when there was an engine."""
        with self._turn():
            self._tick()

    def _until(self, due_ms: int, most_ms: int) -> int:
        """The latest time of the next cycle. None is needed where nothing waits or would grow."""
        if not self.state.pending.groups and not self.state.short:
            return most_ms
        return min(max(due_ms, self._cycled_ms + self.cycle_every_ms), most_ms)

    def next_due(self) -> int | None:
        """Cell time of the next thing that happens by itself, or was expected to; None when nothing does."""
        times = (self._next_event_ms(), self.scheduler.next_look_ms())
        return min((at for at in times if at is not None), default=None)

    def _next_event_ms(self) -> int | None:
        report = self.executor.next_report_ms()
        timer = self._next_timer_ms()
        if report is None or timer is None:
            return timer if report is None else report
        return min(report, timer)

    def _next_timer_ms(self) -> int | None:
        """The next moment that no executor reports."""
        timer = self.state.timers.next_at(self.state, self._clock_ms)
        if self._is_quiet():
            return timer
        quiet = True
        for controller in self.controllers:
            at_ms = controller.next_ms(self._clock_ms)
            if at_ms is not None:
                quiet = False
                if timer is None or at_ms < timer:
                    timer = at_ms
        if quiet:
            self._quiet_at = self.state.version
        return timer

    def _is_quiet(self) -> bool:
        """True if no controller had anything due and nothing has happened since, or no controller runs. Leases are
        outside the state.
        """
        return self._away or (self._quiet_at == self.state.version and not self.agents.leases.count)

    def _let_act(self, controller: Controller) -> None:
        """Let the controllers act. They see the present time, which is recorded only with their events: a look without
        events leaves no trace.
        """
        before_ms = self.state.now_ms
        self._unrecorded = self._clock_ms > before_ms
        self.state.now_ms = self._clock_ms
        controller.act(self._clock_ms)
        if self._unrecorded:
            self.state.now_ms = before_ms
            self._unrecorded = False

    def _pass_moment(self, at_ms: int) -> None:
        """Handle everything that is reported or due by then. Where time alone matters, a look at waiting work is
        requested.
        """
        before = self._clock_ms
        self._clock_ms = max(before, at_ms)
        for report in self.executor.take_reports(at_ms):
            self._take_report(report)
        while (entry := self.state.timers.take(self.state, at_ms)) is not None:
            self._ring(entry)
        for controller in () if self._is_quiet() else self.controllers:
            due_ms = controller.next_ms(before)
            if due_ms is not None and due_ms <= at_ms:
                self._let_act(controller)
                if self._to_launch:
                    # What it moved goes on at once: no cycle need follow.
                    self._launch()
        burst = self.state.queues.next_burst_change(before)
        if burst is not None and burst <= at_ms:
            self.state.reconsider.ask(Cause.TIME)

    def _finish_many(self, until_ms: int) -> int:
        """Record the ends that come next, as many as there are before anything else is due. Returns how many."""
        if self.scheduler.binder.max_at_once < 2:
            return 0
        timer = self._next_timer_ms()
        times, rows = self.executor.take_ends(until_ms if timer is None else min(until_ms, timer - 1))
        if len(times) < MIN_AT_ONCE:
            for at_ms, row in zip(times, rows, strict=True):
                self._clock_ms = max(self._clock_ms, at_ms)
                self._emit(ev.Finished(row))
        else:
            ticks = len(set(times)) - (times[0] <= self.state.now_ms)
            self._emit_ends(ev.FinishedMany(rows.tobytes(), times.tobytes(), ticks))
            self._clock_ms = times[-1]
        return len(times)

    def _emit_ends(self, event: ev.FinishedMany) -> None:
        """Unlike others it brings its own times."""
        self.state.apply(event)
        self._record(event)

    def _take_report(self, report: ExecutorReport) -> None:
        outcome = self._confirmations.take(report)
        row = report.row
        if outcome == ReportOutcome.CONFIRM:
            self._start(row)
        elif outcome == ReportOutcome.ABORT:
            self._abort(row)
        elif outcome == ReportOutcome.LATE:
            self.executor.release(row, report.attempt)
        elif outcome == ReportOutcome.ENDED:
            self._end(row, report)

    def _end(self, row: int, report: ExecutorReport) -> None:
        if report.kind == ReportKind.FINISHED:
            self._emit(ev.Finished(row))
        elif report.kind == ReportKind.LOST:
            self._give_back(row, "processes lost")
        else:
            if report.status:
                self._emit(ev.Exited(row, report.tasks, report.status))
            late = report.status >> 8 == TIME_LIMIT
            self._emit(ev.Failed(row, ev.FAILURE_CAUSES.index("max runtime")) if late else self._failure(row))

    def _failure(self, row: int) -> ev.Failed:
        """The work itself failed: another attempt after a pause, if it may have one."""
        w = self.state.workloads
        terms, failures = w.terms_at(row), w.failures[row]
        if failures >= terms.retries:
            return ev.Failed(row)
        return ev.Failed(row, retry_at_ms=self._clock_ms + self._back_off(row, terms.backoff_ms << min(failures, 30)))

    def _back_off(self, row: int, pause_ms: int) -> int:
        """A pause of up to an hour, and up to a tenth more, so that work that failed together does not come back
        together.
        """
        w = self.state.workloads
        pause_ms = max(1, min(pause_ms, HOUR_MS))
        return pause_ms + random.Random(f"{self.seed}/{w.ids[row]}/{w.attempts[row]}/pause").randint(0, pause_ms // 10)

    def _abort(self, row: int) -> None:
        """Executors did not confirm the gang."""
        self._give_back(row, "not confirmed")

    def _give_back(self, row: int, cause: str) -> None:
        """All that the gang has, and let it wait a little: longer with each attempt."""
        w = self.state.workloads
        pause_ms = max(w.terms_at(row).backoff_ms, MIN_PAUSE_MS) << min(w.attempts[row] - 1, 20)
        wake_at_ms = self._clock_ms + self._back_off(row, pause_ms)
        self._emit(ev.Evicted(row, ev.EVICTION_CAUSES.index(cause), wake_at_ms=wake_at_ms))

    def _ring(self, entry: Entry) -> None:
        _, timer, subject = entry
        if timer == Timer.WAKE:
            self._emit(ev.Woke(subject))
        elif timer == Timer.DEADLINE:
            self._emit(ev.Failed(subject, cause=ev.FAILURE_CAUSES.index("deadline")))
        elif timer == Timer.MAX_RUNTIME:
            self._emit(ev.Failed(subject, cause=ev.FAILURE_CAUSES.index("max runtime")))
        elif timer == Timer.CONFIRM:
            self._abort(subject)
        elif timer == Timer.SLACK:
            self._emit(ev.TurnedOnDemand(subject))
        elif timer == Timer.CLEAR:
            self._tick()
            self.scheduler.carry_out(subject)
        elif timer in (Timer.RESERVATION_START, Timer.MIN_RUNTIME, Timer.TURN, Timer.DISRUPTIONS):
            if self.state.pending.groups:
                self.state.reconsider.ask(Cause.TIME)
        else:
            reservation = next(r for r in self.state.bookings.reservations if r.booking == subject)
            self._emit(ev.Unreserved(reservation.spec.name))

    def report_usage(self, samples: Iterable[UsageSample]) -> int:
        """Take what agents say of the CPU and memory that work uses. It is not journalled; what is decided because of
        it is. Returns how many were of work that is there."""
        self._refresh()
        self._quiet_at = -1
        return self.state.usage.take(self.state, samples, self._clock_ms)

    def settle(self) -> None:
        """Run a scheduling cycle now."""
        with self._turn():
            self._tick()
            self._cycle()

    @contextlib.contextmanager
    def _turn(self, *, undone_without_journal: bool = False) -> Iterator[None]:
        """Journal everything inside as one, or keep none of it. After a fault half-way, as after a refusal of the
        journal, the journal is read again. Without a journal, a copy is kept on demand.
        """
        self._refresh()
        kept = self.state.copy() if undone_without_journal and self._journal is None else None
        try:
            if self.scheduler.memory.fresh and self.decides:
                # A fork or a restart first sees what its origin had seen when it last looked.
                self.scheduler.cycle()
                self._launch()
            yield
            if kept is not None:
                self._write_beside()
        except BaseException:
            self._batch.clear()
            self._beside = None
            self._stale = True
            if kept is not None:
                self._adopt(kept)
                self.agents.reopen()
                self._stale = False
            raise
        self._commit()
        self.executor.carry_out()

    def _write_beside(self) -> None:
        beside, self._beside = self._beside, None
        if beside is not None:
            self.record(beside)

    def record(self, change: Callable[[Connection], T]) -> T:
        """Run `change` in one durable transaction beside the events. It may read and write rows that are no part of the
        state. Raises JournalError, or what `change` raises, with nothing written."""
        with self._writing(0):
            return self._rows().transact(change)

    def recorded(self, read: Callable[[Connection], T]) -> T:
        """Run `read`, which changes nothing, over the rows beside the events: also while nothing can be written. Raises
        JournalError, or what `read` raises."""
        return self._rows().look(read)

    def _rows(self) -> Journal | Memory:
        if self._journal is not None:
            return self._journal
        if self._memory is None:
            self._memory = Memory()
        return self._memory

    def _cycle(self) -> None:
        """Schedule, and have the executor start what was placed, until nothing waits for a start that has come."""
        self._cycled_ms = self._clock_ms
        if not self.decides:
            self.state.arrivals.clear()
            self.state.changed_rows.clear()
            self._to_launch.clear()
            return
        for _ in range(MAX_ROUNDS):
            self.scheduler.cycle(self.enough)
            self._launch()
            if self.is_interrupted or not self.scheduler.memory.unsettled:
                break

    @property
    def is_interrupted(self) -> bool:
        """True if it was `enough` in the middle of a cycle, which the next turn goes on with."""
        return self.scheduler.is_interrupted

    def _launch(self) -> None:
        """Simulated work is running at once, unless faults are rehearsed."""
        if not self._to_launch:
            return
        w = self.state.workloads
        # One that was preempted and placed again is in there twice.
        rows = [row for row in dict.fromkeys(self._to_launch) if w.state[row] == WorkloadState.PLACED]
        self._to_launch = []
        if len(rows) >= MIN_AT_ONCE and self._all_at_once(rows):
            self._start_many(rows)
            return
        ready: list[int] = []
        """Workloads that start together: none waits for another."""
        for row in rows:
            if not self.executor.try_start(row):
                self.state.timers.watch(self.state, row)
            elif ends_alone(w, row):
                ready.append(row)
            else:
                self._start_many(ready)
                ready = []
                self._start(row)
        self._start_many(ready)

    def _all_at_once(self, rows: list[int]) -> bool:
        """True if the executor has them ready, none may be resized, and no work waits for one of them."""
        w = self.state.workloads
        return (
            self.executor.prompt
            and bool(at_full_speed(w, np.array(rows, np.int32)).all())
            and bool((view(w.first_dependent)[rows] == NONE).all())
        )

    def _start(self, row: int) -> None:
        self._emit(ev.Started(row))
        self.executor.confirm(row)

    def _start_many(self, rows: list[int]) -> None:
        if len(rows) < MIN_AT_ONCE or self.scheduler.binder.max_at_once < 2:
            for row in rows:
                self._start(row)
        else:
            self._emit(ev.StartedMany(array("i", rows).tobytes()))
            self.executor.confirm_many(rows)

    def _tick(self) -> None:
        """Bring the state's clock up to now. Time that passes without an event is not recorded."""
        if self._unrecorded or self._clock_ms > self.state.now_ms:
            self._unrecorded = False
            tick = ev.Tick(self._clock_ms)
            self.state.apply(tick)
            self._record(tick)

    def _emit(self, event: ev.AnyEvent) -> None:
        self._tick()
        if isinstance(event, STOPS) and self.state.is_bound(event.row):
            attempt = self.state.workloads.attempts[event.row]
            self._confirmations.forget(event.row)
            self.state.apply(event)
            self.executor.release(event.row, attempt)
        else:
            self.state.apply(event)
            if isinstance(event, RESIZES):
                self.executor.resized(event.row)
            elif isinstance(event, ev.Placed):
                self._to_launch.append(event.row)
        self._record(event)

    def _emit_claimed(self, event: ev.Placed | ev.PlacedMany | ev.Grown) -> None:
        """Tasks whose capacity the scheduler has claimed already."""
        self._tick()
        self.state.apply_claimed(event)
        self._record(event)
        if isinstance(event, ev.Placed):
            self._to_launch.append(event.row)
        elif isinstance(event, ev.PlacedMany):
            self._to_launch += array("i", event.rows)
        else:
            self.executor.resized(event.row)

    def _record(self, event: ev.AnyEvent) -> None:
        self.recent.note(event)
        if self._journal is not None:
            self._batch.append(event)

    def _commit(self) -> None:
        """Make the turn durable. On failure the whole turn is undone, by reading the journal again."""
        self.recent.sample(self._clock_ms)
        # Here, so that those who read a copy of the state find it done.
        pending_work.begin(self.state, self._clock_ms)
        if self._journal is None or not self._batch:
            self._write_beside()
            return
        batch, self._batch = self._batch, []
        beside, self._beside = self._beside, None
        try:
            with self._writing(len(batch)):
                self._journal.append(batch, self._first_version, self.state.now_ms, beside)
        except JournalError as error:
            self.journal_error = str(error)
            self._forget_turn()
            raise
        except BaseException:
            self._forget_turn()
            raise
        self._first_version = self.state.version + 1
        self.journal_error = ""
        if self.state.version - self._snapshot_at >= self.snapshot_every:
            self.snapshot()

    @contextlib.contextmanager
    def _writing(self, events: int) -> Iterator[None]:
        """Time a transaction, and count it when the journal refuses it."""
        begun_s = time.monotonic()
        try:
            with spans.span("journal.write", muster_events=events):
                yield
        except JournalError:
            self.journal_failures += 1
            raise
        finally:
            self.journal_writes.add(time.monotonic() - begun_s)

    def _forget_turn(self) -> None:
        self._stale = True
        with contextlib.suppress(JournalError):
            self._refresh()

    def _refresh(self) -> None:
        """Forget what the journal refused. Raises JournalError while the journal cannot even be read."""
        if self._stale and self._journal is not None:
            self._adopt(recover(self._journal))
            self.agents.reopen()
            self._stale = False

    def snapshot(self) -> None:
        """Store the whole state, so that the next start replays only what comes after. A failure costs nothing."""
        if self._journal is None or self._stale or self._journal.version != self.state.version:
            return
        try:
            self._journal.write_snapshot(self.state.dump(), self.state.version, self.keep_ms)
        except JournalError as error:
            self.journal_error = str(error)
            return
        self._snapshot_at = self.state.version

    def close(self) -> None:
        """Write a snapshot and let go of the journal."""
        if self._journal is not None:
            if self.state.version > self._snapshot_at:
                self.snapshot()
            self._journal.close()
        if self._memory is not None:
            self._memory.close()
        self.executor.close()

    # -- the twin -----------------------------------------------------------------------------------------------------

    def fork(self) -> Engine:
        """An independent engine in the same state, in memory only. Nothing done to it reaches this one."""
        other = Engine(
            self.state.copy(),
            seed=self.seed,
            faults=self.rehearsed_faults,
            provider_faults=self.provider_faults,
            forecaster=self.forecaster,
            model=True,
        )
        other.go_on_from(self)
        return other

    def forget(self) -> None:
        """Free at once the memory of a fork that is of no more use: its parts know each other, so it would stay until
        somebody looks for such rings. Nothing can be asked of it any more."""
        self.close()
        self.__dict__.clear()

    def go_on_from(self, origin: Engine) -> None:
        """Take over the clock of an engine whose state this one has."""
        self._clock_ms = origin._clock_ms
        self._cycled_ms = origin._cycled_ms
        self.cycle_every_ms = origin.cycle_every_ms
        self.recommender = origin.recommender
        self.agents.leases.opened_ms = origin.agents.leases.opened_ms

    def keep_estimates(self, estimates: list[Estimate]) -> None:
        """Remember what was foretold, durably where there is a journal. Raises JournalError."""
        if not estimates:
            return
        if self._journal is None:
            self._estimates += estimates
        else:
            self._journal.keep_estimates(estimates)

    def estimates(self, newest: int = MAX_ESTIMATES) -> list[Estimate]:
        """The last so many that were foretold, oldest first. Raises JournalError."""
        return list(self._estimates)[-newest:] if self._journal is None else self._journal.estimates(newest)

    # -- questions ----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self.state.version

    @property
    def now_ms(self) -> int:
        """Cell time, milliseconds."""
        return self._clock_ms

    @property
    def written_ms(self) -> int:
        """Wall clock of the last change that its journal had when it was opened; 0: it had none."""
        return 0 if self._journal is None else self._journal.written_ms

    @property
    def path(self) -> Path | None:
        """The file that its journal is; None where it is kept in memory or on a server."""
        return None if self._journal is None else self._journal.path

    @property
    def place(self) -> Place | None:
        """The location of its journal; None where it is kept in memory."""
        return None if self._journal is None else self._journal.place

    @property
    def former(self) -> Path | None:
        """Copy of its journal as a former Muster wrote it, when opening has migrated it."""
        return None if self._journal is None else self._journal.former

    @property
    def lease(self) -> Lease | None:
        """The lease by which it may write a journal on a server; None elsewhere."""
        return None if self._journal is None else self._journal.lease

    def query(self, query: Query) -> Page:
        """A window onto workloads, nodes or queues."""
        return self.reader.page(query, self._clock_ms)

    def overview(self, *, brief: bool = False) -> Overview:
        """`brief`: without what takes long to find, `blocked` and `fragmentation_ppm`."""
        return self.reader.overview(self.recent, self._clock_ms, brief=brief)

    def find(self, name: str, kinds: tuple[str, ...] = (), limit: int = 24) -> tuple[Named, ...]:
        """Find the objects of that name, then those whose names begin with it."""
        return find(self.state, name, kinds, limit)

    def workload(self, workload_id: str) -> WorkloadDetail:
        return self.reader.workload(workload_id, self._clock_ms)

    def node(self, node_id: str) -> NodeDetail:
        return self.reader.node(node_id, self._clock_ms)

    def queue(self, name: str) -> QueueDetail:
        return self.reader.queue(name, self._clock_ms)

    def reservation(self, name: str) -> ReservationSpec:
        return self.reader.reservation(name)

    def fairness(self) -> FairnessReport:
        return self.reader.fairness(self._clock_ms)

    def showback(self, request: ShowbackRequest) -> Showback:
        return self.reader.showback(request, self._clock_ms)

    def budgets(self) -> BudgetReport:
        return self.reader.budgets(self._clock_ms)

    def goodput(self) -> GoodputReport:
        return cost_reports.report(self.state, self._clock_ms)

    def scaling(self) -> ScalingReport:
        """The autoscaler's inputs, and the present and wanted sizes of pools."""
        return scaling_report.scaling(self.state, self._clock_ms, self.forecaster)

    def topology(self, request: HeatRequest) -> HeatMap:
        """Zones, blocks, racks or nodes as a map. Raises SpecError and NotFoundError."""
        return self.reader.heat(request, self._clock_ms)

    def intents(self, limit: int = 200) -> IntentsReport:
        """The intents under way to the scheduler that decides, and their outcomes."""
        return self.state.intents.report(self._clock_ms, limit)

    def fragmentation(self) -> FragmentationReport:
        return self.reader.fragmentation(self._clock_ms)

    def changes(self, after: int, limit: int = 500) -> Changes:
        """The changes after version `after`, as far as they are remembered."""
        return self.recent.changes(after, limit, self._clock_ms)


def recover(journal: Journal, *, use_snapshot: bool = True) -> State:
    """The state the journal records: newest snapshot, then every batch after it."""
    body, batches = journal.load(use_snapshot=use_snapshot)
    state = State()
    if body is not None:
        state.load(body)
    for batch in batches:
        for event in batch:
            state.apply(event)
    return state
