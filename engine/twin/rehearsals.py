"""Rehearsals: the same engine run ahead in a process of its own, with run times drawn instead of known.

A Rehearsal takes over the state of the engine it was made from, so it lives in a child process (`engine.twin.forks`),
where that state is a copy. It has no journal. It ignores the simulated executor's knowledge of the future (run times
and failing attempts). Run times are drawn from their distribution (`engine.state.run_times`), those of running work
given its age, and nothing fails. The same seed draws the same for the same workload, so two rehearsals differ by their
edits alone.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Literal

import msgspec
import numpy as np

from engine.admission.what_if_edits import commands_of
from engine.admission.workload_changes import spec_of
from engine.control import Engine
from engine.controllers import Controller, controllers_of
from engine.executors.protocol import Executor, ReportKind
from engine.executors.simulated_executor import ALWAYS, Column, SimulatedExecutor
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model import what_if_edits as ed
from engine.model.columns import view
from engine.model.errors import MusterError
from engine.model.specs import HOUR_MS, WorkloadSpec, WorkloadState
from engine.state.cell_state import State
from engine.state.external_cell import draw
from engine.state.run_times import Parts, RunTimes, together, uniforms
from engine.twin.forks import Report
from engine.twin.measurements import Focus, Key, Probe

MIN_CYCLE_MS = 1000
"""Scheduling cycles are at least so far apart, and a part of the time that has passed: what is far ahead is not known
to the second anyway."""
MAX_LOOKS = 40_000
"""About how often one rehearsal looks at a kind of waiting work in all: with many kinds, cycles are further apart.
Half of them are spent evenly over the horizon, the other half the denser the nearer."""
NEAR_MS = 60_000
"""Upper limit of a near time, for that purpose."""
MARKS = 48
"""Times in the horizon at which fragmentation is measured and progress told."""
MIN_CHECK_MS = 30_000
"""The first look whether everything in focus has done what was waited for."""
FIRST_LOOKS = (256, 64, 16, 4)
"""Parts of the horizon after which a first run already says what it has measured."""
HISTORY_MS = 24 * HOUR_MS
"""Arrivals are resampled from the last day, or as far back as the cell goes."""
MIRRORED_MS = 3_600_000
"""In a mirrored cell, the minimum period over which recent arrivals are counted."""
MAX_ARRIVALS = 200_000


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of one rehearsal."""

    seed: int
    horizon_ms: int
    arrivals: bool = False
    focus: tuple[str, ...] = ()
    """Workloads followed one by one."""
    until: Literal["horizon", "started", "over", "ended"] = "horizon"
    """The earliest end of the run: everything in focus has started; or is over; or has ended, and as much time again
    has passed.
    """
    looks: bool = False
    """Report what was measured so far at FIRST_LOOKS too."""
    give_up_cpu_s: float = 0.0
    """CPU time of its process after which it stops with what it has by then; 0: never."""
    give_up_s: float = 0.0
    """Reading of the monotonic clock at which it does so too; 0: never."""
    grain_permille: int = 1
    """Scheduling cycles are at least so large a part of the time that has passed apart."""
    most_looks: int = MAX_LOOKS
    figures: bool = True
    """Measure the cell too, not only what is in focus."""


class HorizonProgress(msgspec.Struct, frozen=True, array_like=True, tag="covered"):
    """The part of the horizon that has been run."""

    ms: int


class RehearsalSample(msgspec.Struct, frozen=True, array_like=True, tag="sample"):
    """The measurements of one rehearsal."""

    covered_ms: int
    whole: bool
    figures: list[tuple[Key, int]]
    focus: tuple[Focus, ...]
    notes: tuple[str, ...]
    rows: bytes = b""
    """int32: rows that were there from the beginning and have started."""
    starts: bytes = b""
    """int64: cell ms at which."""
    stopped_for: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(id in focus, ids that were stopped for it at once)"""
    cpu_s: float = 0.0
    """CPU time that the rehearsal took."""


class EditsRefused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The edits cannot be made now."""

    problems: tuple[str, ...]


Frame = HorizonProgress | RehearsalSample | EditsRefused
_encode = msgspec.msgpack.Encoder().encode


class DrawnExecutor(SimulatedExecutor):
    """Starts everything at once and ends it when the draw says. `now_ms`: up to when running work has gone on."""

    def __init__(self, state: State, seed: int, run_times: RunTimes, now_ms: int) -> None:
        self._run_times = run_times
        self._drawn = np.zeros(len(state.workloads.ids), np.int64)
        """Work of the rows that were there from the beginning; 0 until it is drawn."""
        self._drawn_later: dict[int, int] = {}
        self._on_at: dict[int, int] = {}
        """Row of a node that was powered down and is needed -> when it has booted."""
        self._now_ms = now_ms
        super().__init__(state, seed)

    def adopt(self, state: State) -> None:
        self._state = state
        self.run_times(np.flatnonzero(np.asarray(state.workloads.state) == WorkloadState.RUNNING).astype(np.int32))
        super().adopt(state)

    @property
    def prompt(self) -> bool:  # type: ignore[override]
        return not self._state.outside.boot_ms

    def try_start(self, row: int) -> bool:
        """Start the task; on nodes that another scheduler has powered down it begins once the last of them has
        booted.
        """
        state = self._state
        if not state.outside.boot_ms:
            return True
        w, a = state.workloads, state.allocations
        ready_ms = state.now_ms
        for at in a.of_workload(w.first_allocation[row]):
            boot_ms = state.outside.boot_ms.get(a.node[at], 0)
            if boot_ms:
                ready_ms = max(ready_ms, self._on_at.setdefault(a.node[at], state.now_ms + boot_ms))
        if ready_ms <= state.now_ms:
            return True
        self.held.add((row, w.attempts[row]))
        message = (ReportKind.ACKED, w.attempts[row], 0, w.tasks[row])
        heappush(self._reports, (ready_ms, row, *message, ALWAYS))
        return False

    def run_time(self, row: int) -> int:
        known = row < len(self._drawn)
        work = int(self._drawn[row]) if known else self._drawn_later.get(row, 0)
        if work:
            return work
        w = self._state.workloads
        done = w.work_done(row, max(self._now_ms, w.rated[row]))
        work = self._run_times.draw(row, float(self._shares([row])[0]), done)
        if known:
            self._drawn[row] = work
        else:
            self._drawn_later[row] = work
        return work

    def run_times(self, rows: Column) -> Column:
        known = len(self._drawn)
        if len(rows) and int(rows.max()) < known:
            new = rows[self._drawn[rows] == 0]
            if len(new):
                self._draw_many(new)
            found: Column = self._drawn[rows]
            return found
        return np.array([self.run_time(row) for row in rows.tolist()], np.int64)

    def _draw_many(self, rows: Column) -> None:
        w = self._state.workloads
        tasks = np.array([each.tasks for each in w.classes], np.int64)[view(w.cls)[rows]]
        rated = view(w.rated)[rows]
        done = view(w.done)[rows] + np.maximum(self._now_ms - rated, 0) * view(w.tasks)[rows] // tasks
        done = view(w.kept)[rows] + np.maximum(done, 0)
        self._drawn[rows] = self._run_times.draw_many(rows, self._shares(rows.tolist()), done)

    def _shares(self, rows: list[int]) -> Parts:
        names = [self._state.workloads.ids[row] for row in rows]
        own = uniforms(self.seed, names)
        return together(self.seed, names, map(self._run_times.kin, rows), own) if self._run_times.hangs else own

    def fails(self, row: int) -> bool:
        return False

    def failing(self, rows: Column) -> Column:
        return np.zeros(len(rows), bool)


class Rehearsal(Engine):
    """An engine that runs ahead on the state of `origin`, which belongs to nobody else any more.

    With `run_times` None it is left to the executor of `origin`, which knows them: then it does what `origin` will do.
    """

    def __init__(
        self, origin: Engine, seed: int, run_times: RunTimes | None, focus: tuple[str, ...] = (), *, trace: bool = False
    ) -> None:
        self._run_times = run_times
        self._focus = focus
        self._from_ms = origin.now_ms
        self._trace = trace
        self._left: dict[int, tuple[int, int]] = {}
        """Node -> (row, cell ms) that left it last; kept only to trace what made room for the focus."""
        known = run_times is None
        super().__init__(
            origin.state,
            seed=seed,
            faults=origin.rehearsed_faults if known else None,
            provider_faults=origin.provider_faults if known else None,
            forecaster=origin.forecaster,
            model=True,
        )
        self.go_on_from(origin)

    def _new_executor(self) -> Executor:
        if self._run_times is None:
            return super()._new_executor()
        return DrawnExecutor(self.state, self.seed, self._run_times, self._from_ms)

    def _new_controllers(self) -> list[Controller]:
        if self._run_times is None:
            return super()._new_controllers()
        # No engine has a seed below 0: what the provider of `origin` will do is not known here.
        return controllers_of(
            self.state,
            -1 - self.seed,
            self._emit,
            self.agents.leases,
            from_ms=self._from_ms,
            forecaster=self.forecaster,
        )

    def _new_recent(self) -> Probe:
        self.probe = Probe(self.state, self._from_ms, self._focus)
        return self.probe

    def _emit(self, event: ev.AnyEvent) -> None:
        if isinstance(event, ev.Evicted | ev.Swapped):
            w = self.state.workloads
            if self.state.is_bound(event.row) and not (isinstance(event, ev.Evicted) and event.saved):
                self.probe.note_lost(event.row, w.lost_if_stopped(event.row, self._clock_ms))
        if self._trace and isinstance(event, ev.Finished | ev.Evicted | ev.Failed | ev.Cancelled | ev.Suspended):
            self._note_left(event.row, self._clock_ms)
        super()._emit(event)

    def _emit_ends(self, event: ev.FinishedMany) -> None:
        if self._trace:
            for row, at_ms in zip(memoryview(event.rows).cast("i"), memoryview(event.at_ms).cast("q"), strict=True):
                self._note_left(row, at_ms)
        super()._emit_ends(event)

    def _note_left(self, row: int, at_ms: int) -> None:
        """The workload is about to leave its nodes."""
        a = self.state.allocations
        for i in a.of_workload(self.state.workloads.first_allocation[row]):
            self._left[a.node[i]] = row, at_ms

    def _emit_claimed(self, event: ev.Placed | ev.PlacedMany | ev.Grown) -> None:
        super()._emit_claimed(event)
        if not self._trace:
            return
        if isinstance(event, ev.Placed):
            self._note_came(event.row, [node for group in event.groups for node in memoryview(group.nodes).cast("i")])
        elif isinstance(event, ev.PlacedMany):
            for row, node in zip(memoryview(event.rows).cast("i"), memoryview(event.nodes).cast("i"), strict=True):
                self._note_came(row, [node])

    def _note_came(self, row: int, nodes: list[int]) -> None:
        """The workload has come to these nodes: if it is in focus, who made room there is kept."""
        ids = self.state.workloads.ids
        if ids[row] in self._focus:
            left = {self._left[node] for node in nodes if node in self._left}
            self.probe.freed_by[ids[row]] = tuple((ids[other], at_ms) for other, at_ms in sorted(left))

    def note_reasons(self) -> None:
        """Note why waiting workloads in focus do not start now."""
        for name in self._focus:
            row = self.state.workloads.row_of.get(name)
            reasons = () if row is None or self.state.is_bound(row) else self.reader.explainer.reasons(row)
            if reasons:
                self.probe.reasons[name] = reasons[0].text


def rehearse(
    origin: Engine, edits: tuple[ed.AnyEdit, ...], under: Conditions, run_times: RunTimes | None, report: Report
) -> None:
    """Run ahead from `origin`, whose state is used up, and report a whole Sample at the end; or Refused, when what is
    to happen at once cannot."""
    run = _Run(origin, edits, under, run_times, report)
    problems = run.at_once()
    if problems:
        report(_encode(EditsRefused(tuple(problems))))
        return
    run.engine.note_reasons()
    run.go()
    report(_encode(run.sample(whole=True)))


def decode(frame: bytes) -> Frame:
    found: Frame = _decoder.decode(frame)
    return found


_decoder = msgspec.msgpack.Decoder(Frame)


class _Run:
    """One rehearsal and the events that are still to come in it."""

    def __init__(
        self,
        origin: Engine,
        edits: tuple[ed.AnyEdit, ...],
        under: Conditions,
        run_times: RunTimes | None,
        report: Report,
    ) -> None:
        self.under = under
        self.report = report
        self.from_ms = origin.now_ms
        self.until_ms = self.from_ms + under.horizon_ms
        self.known = len(origin.state.workloads.ids)
        """Workloads that were there from the beginning: rows below mean the same in every rehearsal."""
        self.notes: list[str] = []
        trace = under.until == "started"
        self.arrivals = _arrivals(origin, under) if under.arrivals else []
        self.engine = Rehearsal(origin, under.seed, run_times, under.focus, trace=trace)
        self.exact = run_times is None
        self.agenda: list[tuple[int, int, str, ed.AnyEdit | tuple[cmd.AnyCommand, ...]]] = [
            (self.from_ms + edit.at_ms, i, _edit_name(i, edit), edit) for i, edit in enumerate(edits)
        ]
        heapify(self.agenda)
        self.stopped_at_once: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def at_once(self) -> list[str]:
        """Make the edits that are due now. Returns what was wrong with them."""
        self.engine.settle()
        problems: list[str] = []
        while self.agenda and self.agenda[0][0] <= self.from_ms:
            problems += self._next()
        w, probe = self.engine.state.workloads, self.engine.probe
        self.stopped_at_once = tuple(
            (name, tuple(w.ids[row] for row in probe.stopped_for.get(w.row_of[name], ())))
            for name in self.under.focus
            if name in w.row_of
        )
        return problems

    def go(self) -> None:
        """Let the time of the horizon pass."""
        engine, horizon = self.engine, self.under.horizon_ms
        looks = {horizon // part for part in FIRST_LOOKS} if self.under.looks else set()
        marks = {horizon * i // MARKS for i in range(1, MARKS + 1)} | looks
        stops = set(_checks(horizon)) if self.under.until != "horizon" else set()
        at = 0
        for stop in sorted(marks | stops):
            while at < len(self.arrivals) and self.arrivals[at][0] <= self.from_ms + stop:
                at = self._arrive(at)
                if self._given_up():
                    return
            self._pass_until(self.from_ms + stop)
            if stop in marks and self.under.figures:
                engine.probe.mark()
                if stop in looks:
                    self.report(_encode(self.sample(whole=False)))
                self.report(_encode(HorizonProgress(stop)))
            if self._settled() or self._given_up():
                return

    def _given_up(self) -> bool:
        under = self.under
        return 0 < under.give_up_cpu_s <= time.process_time() or 0 < under.give_up_s <= time.monotonic()

    def _arrive(self, at: int) -> int:
        """Submit everything that arrives within one cycle. Returns the first that does not."""
        self._pass_until(self.arrivals[at][0])
        last_ms = self.arrivals[at][0] + self.engine.cycle_every_ms
        specs = []
        while at < len(self.arrivals) and self.arrivals[at][0] <= last_ms:
            specs.append(_like(self.engine.state, self.arrivals[at][1], self.under.seed, at))
            at += 1
        refused = [
            a for a in self.engine.commands([cmd.Submit(workloads=(s,)) for s in specs]) if isinstance(a, MusterError)
        ]
        self._draw_alike(specs, at)
        if refused and not any(note.startswith("arrivals") for note in self.notes):
            self.notes.append(f"arrivals that the cell refuses are left out: {refused[0].problem}")
        return at

    def _draw_alike(self, specs: list[WorkloadSpec], end: int) -> None:
        """Let arrivals up to `end` count for the same caps as the work they are modelled on."""
        state = self.engine.state
        if not state.caps.any:
            return
        for spec, (_, like) in zip(specs, self.arrivals[end - len(specs) : end], strict=True):
            row = state.workloads.row_of.get(spec.id)
            if row is not None and (draws := state.caps.draws(like)):
                draw(state, row, draws)

    def _pass_until(self, to_ms: int) -> None:
        """Advance, with the edits that fall into the time. Arrivals are taken a cycle at a time: their time may have
        passed already.
        """
        while self.agenda and self.agenda[0][0] <= to_ms:
            self._advance(self.agenda[0][0])
            self.notes += self._next()
        self._advance(to_ms)

    def _advance(self, to_ms: int) -> None:
        engine = self.engine
        if not self.exact:
            engine.cycle_every_ms = self._cycle_ms()
        if to_ms > engine.now_ms:
            engine.advance(to_ms)

    def _cycle_ms(self) -> int:
        """Time between cycles, at present."""
        passed, horizon = self.engine.now_ms - self.from_ms, self.under.horizon_ms
        kinds = len(self.engine.state.pending.groups)
        most = self.under.most_looks
        evenly = 2 * horizon * kinds // most
        # As many cycles again, each longer than the last by the same part of what has passed.
        part = 2 * math.log1p(horizon / NEAR_MS) * kinds / most
        least = max(MIN_CYCLE_MS, passed * self.under.grain_permille // 1000)
        return max(least, min(evenly, int(part * (passed + NEAR_MS))))

    def _next(self) -> list[str]:
        """Do the first thing on the agenda. Returns what was wrong with it."""
        engine = self.engine
        _, order, said, what = heappop(self.agenda)
        try:
            if isinstance(what, tuple):
                steps = [(engine.now_ms, what)]
            else:
                steps = commands_of(engine.state, what, self.under.seed, engine.now_ms)
            for at_ms, commands in steps:
                if at_ms > engine.now_ms:
                    heappush(self.agenda, (at_ms, order, said, commands))
                    continue
                for command in commands:
                    engine.command(command)
        except MusterError as error:
            return [f"{said}: {error}"]
        return []

    def _settled(self) -> bool:
        """True if everything in focus has reached the awaited state."""
        if self.under.until == "horizon" or self.agenda:
            return False
        w, started = self.engine.state.workloads, self.engine.probe.started
        rows = [w.row_of.get(name) for name in self.under.focus]
        if self.under.until == "started":
            return all(row is not None and (row in started or WorkloadState(w.state[row]).terminal) for row in rows)
        if any(row is None or not WorkloadState(w.state[row]).terminal for row in rows):
            return False
        if self.under.until == "over":
            return True
        # As long again, for those who had to wait for it.
        ended_ms = max(w.ended[row] for row in rows if row is not None)
        return self.engine.now_ms - ended_ms >= ended_ms - self.from_ms

    def sample(self, *, whole: bool) -> RehearsalSample:
        engine, probe = self.engine, self.engine.probe
        whole_cell = whole and self.under.figures
        rows, starts = probe.starts() if whole_cell else (b"", b"")
        if whole_cell:
            kept = np.frombuffer(rows, np.int32) < self.known
            rows = np.frombuffer(rows, np.int32)[kept].tobytes()
            starts = np.frombuffer(starts, np.int64)[kept].tobytes()
        return RehearsalSample(
            covered_ms=engine.now_ms - self.from_ms,
            whole=whole,
            figures=probe.figures(engine.now_ms) if self.under.figures else [],
            focus=probe.followed(engine.now_ms),
            notes=tuple(self.notes),
            rows=rows,
            starts=starts,
            stopped_for=self.stopped_at_once,
            cpu_s=time.process_time(),
        )


def _checks(horizon_ms: int) -> Iterator[int]:
    """The times at which to check whether it may stop: the nearer, the closer together."""
    at_ms = MIN_CHECK_MS
    while at_ms < horizon_ms:
        yield at_ms
        at_ms += at_ms // 5


def _edit_name(i: int, edit: ed.AnyEdit) -> str:
    return f"edit {i + 1} '{ed.written(edit)[:80]}'"


def _arrivals(origin: Engine, under: Conditions) -> list[tuple[int, int]]:
    """As many arrivals as recently in the same time, each like one of those, at times drawn evenly over the horizon:
    (cell ms, row it is like).
    """
    now_ms = origin.now_ms
    recent, span = _came(origin.state, now_ms)
    draw = random.Random(f"{under.seed}/arrivals")
    count = min(len(recent) * under.horizon_ms // span, MAX_ARRIVALS)
    times = sorted(now_ms + 1 + draw.randrange(under.horizon_ms) for _ in range(count))
    return [(at_ms, draw.choice(recent)) for at_ms in times]


def arrivals_within(state: State, now_ms: int, ms: int) -> int:
    """The number of arrivals in so much time."""
    recent, span = _came(state, now_ms)
    return len(recent) * ms // span


def _came(state: State, now_ms: int) -> tuple[list[int], int]:
    """Rows that came of late, and within how many milliseconds."""
    w = state.workloads
    if not w.ids:
        return [], 1
    submitted, alone = view(w.submitted), view(w.array) < 0
    since = max(now_ms - HISTORY_MS, int(submitted.min()))
    span = now_ms - since
    if span <= 0:
        return [], 1
    if state.settings.decided_by != "muster":
        # The cluster is older than the mirror of it: a burst in its first minutes is no rate.
        span = max(span, MIRRORED_MS)
    # What was there at the very beginning did not arrive, unless nothing else is known.
    recent = np.flatnonzero((submitted > since) & alone)
    if not len(recent):
        recent = np.flatnonzero((submitted >= since) & alone)
    return recent.tolist(), span


def _like(state: State, row: int, seed: int, number: int) -> WorkloadSpec:
    return spec_of(
        state,
        row,
        f"arrival-{seed}-{number}",
        not_before_ms=0,
        deadline_ms=0,
        reservation="",
        simulated_runtime_ms=0,
        simulated_failures=0,
    )
