"""The twin of a live engine: what-ifs, start estimates and trials of one workload.

A child process answers each question on the engine's state at that moment, by copy on write; the live engine goes on
meanwhile. Call `start` and `poll` on the engine's thread, which forks and keeps the answers; call the others from any
thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from engine.admission.what_if_edits import refuse_wrong
from engine.control import Engine
from engine.model import what_if_edits as ed
from engine.model.errors import JournalError, MusterError, NotFoundError, RefusedError, SpecError
from engine.model.specs import WorkloadState
from engine.model.twin_queries import (
    MAX_HORIZON_MS,
    MAX_SEEDS,
    MAX_WATCHED,
    Answer,
    Ask,
    AskOptions,
    AskRun,
    AskStart,
    DryRun,
    Options,
    RunError,
    RunStatus,
    StartEstimate,
    WhatIf,
)
from engine.state.cell_state import State
from engine.state.run_times import HistoricRunTimes, RunTimes
from engine.twin import forks, start_estimates, what_if
from engine.twin.start_forecasts import StartForecasts

MIN_HORIZON_MS = 60_000
MAX_AT_ONCE = 3
MAX_KEPT = 16
"""Runs that are over and can still be read, the last ones."""
MAX_SECONDS = 1800.0
"""Wall time after which a run is given up."""
TELL_EVERY_S = 0.1
"""Wall time between two reports of mere progress."""


class RunProgress(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """The progress of a run, and its findings so far."""

    permille: int
    answer: Answer | None
    whole: bool


class RunFailed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    error: RunError


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(RunProgress | RunFailed)


class Twins:
    """The runs of one engine. `run_times` makes the source that run times are drawn from, in the child."""

    def __init__(self, engine: Engine, run_times: Callable[[State], RunTimes] = HistoricRunTimes) -> None:
        self._engine = engine
        self._run_times = run_times
        self.starts = StartForecasts(engine, run_times)
        """Forecasts without a run, for the engine's thread."""
        self._runs: dict[str, RunStatus] = {}
        self.children: dict[str, forks.Child] = {}
        """Children of the runs under way, by id."""
        self._count = 0
        self._changed = threading.Condition()

    # -- on the engine's thread ---------------------------------------------------------------------------------------

    def start(self, ask: Ask) -> RunStatus:
        """Begin to answer. Raises EditsError with all problems of all edits, SpecError, NotFoundError for what the
        cell does not have, RefusedError when too many runs are under way."""
        check(self._engine.state, ask)
        with self._changed:
            if len(self.children) >= MAX_AT_ONCE:
                raise RefusedError(
                    f"{len(self.children)} runs of the twin are in progress", "Wait for one of them, or cancel it"
                )
            engine, run_times = self._engine, self._run_times
            try:
                worker = forks.start(lambda report: answer(engine, ask, run_times(engine.state), report), MAX_SECONDS)
            except OSError as error:
                raise RefusedError(
                    f"the twin cannot start: {error.strerror}", "Free some memory, then try again"
                ) from error
            self._count += 1
            status = RunStatus(
                id=f"T-{self._count}",
                ask=ask,
                version=engine.version,
                at_ms=engine.now_ms,
                state="running",
                progress_permille=0,
                answer=self._at_once(ask),
                error=None,
                serial=1,
            )
            self.children[status.id] = worker
            self._runs[status.id] = status
            self._forget_old()
            return status

    def _at_once(self, ask: Ask) -> Answer | None:
        """What can be told before any seed."""
        if not isinstance(ask, AskStart):
            return None
        forecast = self.starts.of_workload(ask.id)
        return start_estimates.without_seeds(self._engine, ask, forecast) if forecast is not None else None

    @property
    def busy(self) -> bool:
        """True if runs are under way."""
        return bool(self.children)

    def poll(self) -> None:
        """Take in what the children have said. Cheap when nothing is under way; never waits."""
        if not self.children:
            return
        with self._changed:
            before = {run_id: self._runs[run_id].serial for run_id in self.children}
            for run_id, worker in list(self.children.items()):
                for frame in worker.frames():
                    self._hear(run_id, _decoder.decode(frame))
                if worker.over:
                    del self.children[run_id]
                    if self._runs[run_id].state == "running":
                        less = worker.late or worker.exit_code == forks.OUT_OF_MEMORY
                        remedy = "Use a shorter horizon or fewer seeds" if less else "The engine's log has more"
                        problem = f"the run {worker.failure_text}"
                        self._note(run_id, state="failed", error=_error(RefusedError(problem, remedy)))
            if any(self._runs[run_id].serial != serial for run_id, serial in before.items()):
                self._changed.notify_all()

    def _hear(self, run_id: str, what: RunProgress | RunFailed) -> None:
        if isinstance(what, RunFailed):
            self._note(run_id, state="failed", error=what.error)
            return
        before = self._runs[run_id].answer
        found = what.answer if what.answer is not None else before
        if isinstance(found, StartEstimate) and isinstance(before, StartEstimate):
            now = self.starts.refine(found) if what.answer is not None else before.forecast
            # What has started meanwhile has none any more.
            found = msgspec.structs.replace(found, forecast=now or before.forecast)
        elif what.answer is not None:
            found = self._with_forecasts(self._runs[run_id].ask, what.answer)
        if not what.whole:
            self._note(run_id, progress_permille=min(what.permille, 999), answer=found)
            return
        if isinstance(found, StartEstimate | DryRun):
            try:
                self._engine.keep_estimates(start_estimates.shown(self._engine, found))
            except JournalError as error:
                self._engine.journal_error = str(error)
        self._note(run_id, progress_permille=1000, answer=found, state="done")

    def _with_forecasts(self, ask: Ask, found: Answer) -> Answer:
        """The answer with what is told of the start of work that would wait."""
        if isinstance(ask, AskOptions) and isinstance(found, Options):
            return self.starts.refine_options(ask, found)
        if isinstance(ask, AskRun) and isinstance(found, DryRun):
            return self.starts.refine_trials(ask, found)
        return found

    # -- on any thread ------------------------------------------------------------------------------------------------

    def status(self, run_id: str) -> RunStatus:
        """Raises NotFoundError for a run that is not kept."""
        found = self._runs.get(run_id)
        if found is None:
            raise NotFoundError(
                f"there is no run '{run_id[:40]}'", "It was dropped, or the engine restarted; ask again"
            )
        return found

    def wait(self, run_id: str, after: int, timeout_s: float) -> RunStatus:
        """The run as soon as its serial is above `after`, it is over, or the time is up."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.status(run_id).serial > after or self.status(run_id).state != "running", timeout_s
            )
            return self.status(run_id)

    def finish(self, run_id: str, timeout_s: float) -> RunStatus:
        """The run as soon as it is over, or the time is up."""
        return self.wait(run_id, 2**62, timeout_s)

    def cancel(self, run_id: str) -> RunStatus:
        """End it; what it had found is kept. Nothing happens when it is over."""
        with self._changed:
            worker = self.children.pop(run_id, None)
            if worker is not None:
                worker.cancel()
                self._note(run_id, state="cancelled")
                self._changed.notify_all()
            return self.status(run_id)

    def runs(self) -> tuple[RunStatus, ...]:
        """The runs under way and the last that are over, newest first."""
        return tuple(reversed(self._runs.values()))

    def close(self) -> None:
        """End all that are under way."""
        for run_id in list(self.children):
            self.cancel(run_id)

    def _note(self, run_id: str, **changes: object) -> None:
        now = self._runs[run_id]
        self._runs[run_id] = msgspec.structs.replace(now, serial=now.serial + 1, **changes)

    def _forget_old(self) -> None:
        over = [run_id for run_id, status in self._runs.items() if status.state != "running"]
        for run_id in over[: max(0, len(over) - MAX_KEPT)]:
            del self._runs[run_id]


# -- what is asked ----------------------------------------------------------------------------------------------------


def check(state: State, ask: Ask) -> None:
    """Raises EditsError, SpecError or NotFoundError for what cannot be answered."""
    if not MIN_HORIZON_MS <= ask.horizon_ms <= MAX_HORIZON_MS:
        raise SpecError("horizon_ms", f"{ask.horizon_ms} must be one minute to seven days", "Write it like 24h")
    if not 1 <= ask.seeds <= MAX_SEEDS:
        raise SpecError("seeds", f"{ask.seeds} must be 1 to {MAX_SEEDS}", "Write it like 8")
    if not 0 <= ask.seed < 2**62:
        raise SpecError("seed", "is not from 0 to 2^62", "Write it like 0")
    if isinstance(ask, WhatIf):
        if len(ask.watch) > MAX_WATCHED:
            raise SpecError("watch", f"{len(ask.watch)} workloads", f"Name at most {MAX_WATCHED}")
        refuse_wrong(state, ask.edits, ask.horizon_ms)
        submitted = {
            name for e in ask.edits if isinstance(e, ed.SubmitEdit) for s in e.workloads for name in what_if.ids_of(s)
        }
        for name in ask.watch:
            if name not in submitted:
                state.workloads.row(name)
    elif isinstance(ask, AskStart):
        row = state.workloads.row(ask.id)
        found = WorkloadState(state.workloads.state[row])
        if state.is_bound(row) or found.terminal:
            raise RefusedError(f"'{ask.id}' is {found.label}", "Only work that has not started has a start estimate")
    elif isinstance(ask, AskOptions):
        _check_options(state, ask)
    else:
        _check_run(state, ask)


def _check_options(state: State, ask: AskOptions) -> None:
    if len(ask.workloads) > start_estimates.MAX_OPTIONS:
        raise SpecError(
            "workloads", f"{len(ask.workloads)} options", f"Try at most {start_estimates.MAX_OPTIONS} at a time"
        )
    if any(spec.array is not None for spec in ask.workloads):
        raise SpecError("workloads", "an option cannot be an array", "Try one of its members")
    if len(ask.run_ms) != len(ask.workloads):
        raise SpecError("run_ms", f"is of {len(ask.run_ms)} of {len(ask.workloads)} options", "Give one for each")
    for i, likely in enumerate(ask.run_ms):
        if not likely or min(likely) < 1 or list(likely) != sorted(likely):
            raise SpecError(f"run_ms[{i}]", "is not of ascending times above 0", "Give at least one")
    if ask.within_ms < 0:
        raise SpecError("within_ms", "is negative", "Give 0 for no limit")
    _check_run(state, AskRun(workloads=ask.workloads))


def _check_run(state: State, ask: AskRun) -> None:
    if not ask.workloads:
        raise SpecError("workloads", "is empty", "Give at least one")
    try:
        refuse_wrong(state, (ed.SubmitEdit(workloads=ask.workloads),), ask.horizon_ms)
    except ed.EditsError as error:
        raise ed.EditsError(_without_edit(error.problems), error.remedies) from None
    names = [name for spec in ask.workloads for name in what_if.ids_of(spec)]
    if len(names) > MAX_WATCHED:
        raise SpecError("workloads", f"make {len(names)} in all", f"Try at most {MAX_WATCHED} at a time")


def _without_edit(problems: tuple[str, ...]) -> list[str]:
    """Without the name of the one edit, which nobody wrote."""
    return [problem.partition("': ")[2] or problem for problem in problems]


# -- in the child -----------------------------------------------------------------------------------------------------


def answer(engine: Engine, ask: Ask, run_times: RunTimes, report: forks.Report) -> None:
    """Work the answer out and report it as it comes, as frames that `Twins` reads."""
    last = 0.0

    def tell(permille: int, found: Answer | None) -> None:
        nonlocal last
        now = time.monotonic()
        if found is not None or now - last >= TELL_EVERY_S:
            last = now
            report(_encode(RunProgress(permille, found, False)))

    try:
        found: Answer
        if isinstance(ask, WhatIf):
            found = what_if.answer(engine, ask, run_times, tell)
        elif isinstance(ask, AskStart):
            found = start_estimates.estimate(engine, ask, run_times, tell)
        elif isinstance(ask, AskOptions):
            try:
                found = start_estimates.answer(engine, ask, run_times, tell)
            except ed.EditsError as error:
                raise ed.EditsError(_without_edit(error.problems), error.remedies) from None
        else:
            try:
                found = start_estimates.dry_run(engine, ask, run_times, tell)
            except ed.EditsError as error:
                raise ed.EditsError(_without_edit(error.problems), error.remedies) from None
    except MusterError as error:
        report(_encode(RunFailed(_error(error))))
    else:
        report(_encode(RunProgress(1000, found, True)))


def _error(error: MusterError) -> RunError:
    return RunError(code=error.code, problem=error.problem, remedy=error.remedy)
