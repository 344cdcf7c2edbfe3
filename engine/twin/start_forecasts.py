"""The start of waiting work at once, without running ahead: p10, p50 and p90, and what decides it.

Nobody knows who will go first, so three lines are looked at: with nobody ahead, with its own queue, with all that is
older. Earlier forecasts teach what these weigh beside the wait so far and the waits of work alike, and how wide the
interval is (`engine.twin.start_regression`). Where the twin has run ahead, its starts move the whole interval: it sees
what the lines leave out, but its own spread is far too narrow, as all seeds share what is wrong.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from engine.capacity.task_shapes import Shape
from engine.control import Engine
from engine.external.slurm.limits import not_foretold
from engine.model.columns import view
from engine.model.errors import RefusedError
from engine.model.quantities import MIN_RUNS
from engine.model.spec_parts import MINUTE_MS
from engine.model.specs import WorkloadSpec, WorkloadState
from engine.model.twin_queries import (
    AskOptions,
    AskRun,
    DryRun,
    ForecastKind,
    Options,
    OptionTrial,
    StartEstimate,
    StartForecast,
    Trial,
)
from engine.reads import pending_reasons as why
from engine.state.cell_state import State
from engine.state.run_times import HistoricRunTimes, RunTimes
from engine.state.workloads import DEPENDS_ON, WorkloadClass, class_key
from engine.twin.cell_flow import Asked, CellFlow, First
from engine.twin.start_line import NEVER_MS
from engine.twin.start_record import StartRecord
from engine.twin.start_regression import LineWaits, wait_of

LEARN_EVERY_MS = 10 * MINUTE_MS
"""Run times are learnt anew after so much cell time."""
UNTIL_SOMEBODY_ACTS = frozenset((why.ON_HOLD, why.SUSPENDED, why.NEVER, why.QUEUE_HELD, why.NO_NODES, why.BUDGET))
"""Gates without a time."""
MAX_CHAIN = 8
"""Dependencies of dependencies that are followed."""
NEW_ROW = 2**62
_WORDS: dict[ForecastKind, str] = {
    "room": "room on the nodes it may use",
    "quota": "quota of its queue",
    "both": "quota of its queue, and room",
}

KEEP_EVERY_MS = 2 * MINUTE_MS
"""Cell time between two forecasts that are kept: those of three days are looked at."""
REFINED_MS = 10 * MINUTE_MS
"""Cell time for which runs of the twin refine what is told of their workload."""
TWIN_SHARE = 0.25
"""Of the median of the runs in the expected wait, in logarithms, beside the line and the record: the runs alone are
further off than these (docs/measured.md)."""


class Refinement(NamedTuple):
    """What runs of the twin have made of the forecast of a workload."""

    attempts: int
    at_ms: int
    seeds: int
    by: float
    """Added to the logarithm of its wait."""


class StartForecasts:
    """Forecasts of one engine. For the engine's thread, or for a copy of its process."""

    def __init__(self, engine: Engine, run_times: Callable[[State], RunTimes] = HistoricRunTimes) -> None:
        self._engine = engine
        self.record = StartRecord(engine)
        self._new_run_times = run_times
        self._run_times: RunTimes | None = None
        self._learnt_ms = 0
        self._flow: CellFlow | None = None
        self._at: tuple[int, int] = (-1, -1)
        self._found: dict[int, StartForecast] = {}
        """By row, of one version and time."""
        self._line_waits: dict[int, LineWaits] = {}
        """The same: what they are made of."""
        self._refined: dict[int, Refinement] = {}
        """By row."""
        self._sample = random.Random(0)
        self._kept_ms = -KEEP_EVERY_MS

    def keep(self) -> bool:
        """Foretell the start of one that waits, whichever, and keep it to be scored; False while it is not time for the
        next."""
        engine = self._engine
        if engine.now_ms < self._kept_ms + KEEP_EVERY_MS:
            return False
        self._kept_ms = engine.now_ms
        self.record.learn()
        states = engine.state.workloads.state
        waiting = np.flatnonzero(view(states) == WorkloadState.QUEUED) if states else ()
        if len(waiting):
            row = int(self._sample.choice(waiting))
            found = self._unrefined(row)
            if found is not None and found.p10_ms is not None:
                self.record.keep(row, found, self._line_waits[row])
        return True

    def of_workload(self, workload_id: str) -> StartForecast | None:
        """The forecast of a workload; None where it does not wait. Raises NotFoundError."""
        return self.of(self._engine.state.workloads.row(workload_id))

    def _waits(self, row: int) -> bool:
        state = self._engine.state
        return not state.is_bound(row) and not WorkloadState(state.workloads.state[row]).terminal

    def of(self, row: int) -> StartForecast | None:
        """The forecast of the workload in that row; None where it does not wait."""
        found, last = self._unrefined(row), self._refined.get(row)
        if found is None or last is None or found.at_ms >= last.at_ms + REFINED_MS:
            return found
        return refined(found, last) if last.attempts == self._engine.state.workloads.attempts[row] else found

    def refine(self, ahead: StartEstimate) -> StartForecast | None:
        """Take in what runs of the twin say of a workload. Its forecast then; None where it waits no more."""
        w, now_ms = self._engine.state.workloads, self._engine.now_ms
        row = w.row(ahead.id)
        found = self._unrefined(row)
        self._refined = {each: last for each, last in self._refined.items() if now_ms < last.at_ms + REFINED_MS}
        if found is not None and ahead.start is not None and ahead.start.chance_permille is not None:
            middle_ms = ahead.start.p50_ms or max(ahead.at_ms + ahead.horizon_ms, found.p50_ms or 0)
            self._refined[row] = Refinement(w.attempts[row], now_ms, ahead.seeds, moved_by(found, middle_ms))
        return self.of(row)

    def refine_options(self, ask: AskOptions, found: Options) -> Options:
        """The comparison with a forecast for each option that would wait."""
        pairs = zip(ask.workloads, found.trials, strict=True)
        return msgspec.structs.replace(found, trials=tuple(self._of_option(ask, spec, trial) for spec, trial in pairs))

    def _of_option(self, ask: AskOptions, spec: WorkloadSpec, trial: OptionTrial) -> OptionTrial:
        if not trial.reason or spec.not_before_ms > self._engine.now_ms:
            return trial
        end_ms = self._engine.now_ms + ask.horizon_ms
        starts = sorted(end_ms if one.started_ms is None else one.started_ms for one in trial.attempts)
        # Without arrivals the twin's starts are too early.
        seeds = len(starts) if trial.arrivals == ask.arrivals else 0
        middle_ms = starts[(len(starts) - 1) // 2] if starts else end_ms
        return msgspec.structs.replace(trial, forecast=self._of_tried(spec, middle_ms, seeds))

    def refine_trials(self, ask: AskRun, found: DryRun) -> DryRun:
        """The trials with a forecast for each that would wait; without one for members of an array."""
        specs = {spec.id: spec for spec in ask.workloads if spec.not_before_ms <= self._engine.now_ms}

        def told(trial: Trial) -> Trial:
            if trial.starts_now or trial.id not in specs:
                return trial
            middle_ms = found.at_ms + found.horizon_ms if trial.start.p50_ms is None else trial.start.p50_ms
            forecast = self._of_tried(specs[trial.id], middle_ms, trial.start.runs)
            return msgspec.structs.replace(trial, forecast=forecast)

        return msgspec.structs.replace(found, trials=tuple(map(told, found.trials)))

    def _of_tried(self, spec: WorkloadSpec, middle_ms: int, seeds: int) -> StartForecast:
        """The forecast of work that is not submitted, and that starts then in the middle one of so many runs."""
        found = self.of_spec(spec)
        if seeds < MIN_RUNS:
            return found
        return refined(found, Refinement(0, found.at_ms, seeds, moved_by(found, middle_ms)))

    def _unrefined(self, row: int, depth: int = 0) -> StartForecast | None:
        if not self._waits(row):
            return None
        flow = self._renewed()
        if row not in self._found:
            self._found[row] = self._forecast(flow, row, depth)
        return self._found[row]

    def of_spec(self, spec: WorkloadSpec) -> StartForecast:
        """The forecast of work as if it were submitted now. Raises RefusedError or NotFoundError for a queue or
        priority class that is not there."""
        state, flow = self._engine.state, self._renewed()
        capacity, w = state.capacity, state.workloads
        if spec.priority_class not in w.priority_of:
            raise RefusedError(
                f"there is no priority class '{spec.priority_class}'", f"Use: {', '.join(w.priority_of)}"
            )
        workload_class = WorkloadClass(class_key(spec, capacity.company))
        workload_class.shapes = tuple(
            Shape(group, capacity.pools, workload_class.bonds, capacity.company.number) for group in spec.groups
        )
        asked = Asked(workload_class, state.queues.leaf(spec.queue), w.priority_of[spec.priority_class], NEW_ROW)
        return self._of_line(flow, asked)

    def _renewed(self) -> CellFlow:
        """What runs and waits now."""
        engine = self._engine
        if self._run_times is None or engine.now_ms >= self._learnt_ms + LEARN_EVERY_MS:
            self._run_times, self._learnt_ms, self._flow = self._new_run_times(engine.state), engine.now_ms, None
        if self._flow is None or self._at != (engine.version, engine.now_ms):
            self._at = (engine.version, engine.now_ms)
            self._flow = CellFlow(engine.state, self._run_times, engine.now_ms)
            self._found.clear()
            self._line_waits.clear()
        return self._flow

    def _forecast(self, flow: CellFlow, row: int, depth: int) -> StartForecast:
        w = self._engine.state.workloads
        reasons = self._engine.reader.explainer.reasons(row)
        if reasons and reasons[0].token in UNTIL_SOMEBODY_ACTS:
            return self._open(reasons[0].text)
        outside = not_foretold(self._engine.state, row)
        if outside:
            return self._open(outside)
        asked = Asked(w.class_at(row), w.queue[row], w.priority[row], row)
        if w.state[row] == WorkloadState.QUEUED:
            return self._of_line(flow, asked, self._engine.now_ms - w.submitted[row])
        gate_ms = self._gate_ms(flow, row, depth)
        text = reasons[0].text if reasons else ""
        return self._open(text) if gate_ms is None else self._of_line(flow, asked, None, gate_ms, text)

    def _open(self, text: str) -> StartForecast:
        """A forecast without times."""
        return StartForecast(
            at_ms=self._engine.now_ms, kind="gate", p10_ms=None, p50_ms=None, p90_ms=None, decides=text, line_ms=0,
            alike=0, p90_held_permille=None,
        )  # fmt: skip

    def _gate_ms(self, flow: CellFlow, row: int, depth: int) -> int | None:
        """Milliseconds until its time has come and what it depends on is likely there; None where that is not known."""
        w, now_ms = self._engine.state.workloads, self._engine.now_ms
        waits = [max(w.wake[row] - now_ms, 0)]
        for target, kind in w.dependencies(row):
            found = self._until(flow, target, depth, started=DEPENDS_ON[kind] == "started")
            if found is None:
                return None
            waits.append(found)
        return max(waits)

    def _until(self, flow: CellFlow, target: int, depth: int, *, started: bool) -> int | None:
        """Milliseconds until another workload has likely ended, or started."""
        rows = np.array([target])
        if self._engine.state.is_bound(target):
            return 0 if started else int(np.median(flow.ends_ms(rows)))
        found = self._unrefined(target, depth + 1) if depth < MAX_CHAIN else None
        if found is None or found.p50_ms is None:
            return None
        return found.p50_ms - found.at_ms + (0 if started else int(np.median(flow.run_ms(rows))))

    def _of_line(
        self, flow: CellFlow, asked: Asked, waited_ms: int | None = None, gate_ms: int = 0, gate: str = ""
    ) -> StartForecast:
        """The forecast by the lines for room and for quota. `waited_ms` is None for what is not in line yet.
        `gate_ms`: that much later, when `gate` opens."""
        waits, kind = _line_waits(flow, asked, waited_ms)
        self._line_waits[asked.row] = waits
        fit = self.record.fit
        expected = fit.log_wait(waits, asked.queue, asked.priority)
        now_ms = self._engine.now_ms
        low, middle, high = (now_ms + gate_ms + min(wait_of(expected + error), NEVER_MS) for error in fit.errors[kind])
        alike, held = self.record.held("gate" if gate_ms else kind)
        return StartForecast(
            at_ms=now_ms,
            kind="gate" if gate_ms else kind,
            p10_ms=low,
            p50_ms=middle,
            p90_ms=high,
            decides=gate or f"{_WORDS[kind]}; {flow.ahead_in_queue(asked):,} ahead in its queue",
            line_ms=gate_ms + min(wait_of(expected), NEVER_MS),
            alike=alike,
            p90_held_permille=held * 1000 // alike if alike else None,
        )


def _line_waits(flow: CellFlow, asked: Asked, waited_ms: int | None) -> tuple[LineWaits, ForecastKind]:
    rooms = [flow.room_ms(asked, first) for first in First]
    quotas = [flow.quota_ms(asked, first) for first in First]
    lines = [int(np.median(np.maximum(*pair))) for pair in zip(rooms, quotas, strict=True)]
    waited = mean_wait_ms(lines) if waited_ms is None else max(waited_ms, 0)
    alike = max(flow.last_wait_ms(asked) - (waited_ms or 0), 0)
    waits = LineWaits(lines[0], lines[1], lines[2], waited, alike, flow.ahead_in_queue(asked) * MINUTE_MS)
    return waits, _kind(float(np.median(rooms[-1])), float(np.median(quotas[-1])))


def moved_by(found: StartForecast, middle_ms: int) -> float:
    """How much later runs of the twin with this median make the start, in the logarithm of the wait."""
    if found.p50_ms is None:
        return 0.0
    share = 1.0 if found.line_ms >= NEVER_MS else TWIN_SHARE
    return share * (_log(middle_ms - found.at_ms) - _log(found.p50_ms - found.at_ms))


def refined(found: StartForecast, last: Refinement) -> StartForecast:
    """The forecast moved by what the twin has seen; as wide as the record says."""
    if found.p10_ms is None or found.p50_ms is None or found.p90_ms is None:
        return found
    low, middle, high = (
        found.at_ms + min(wait_of(_log(at_ms - found.at_ms) + last.by), NEVER_MS)
        for at_ms in (found.p10_ms, found.p50_ms, found.p90_ms)
    )
    return msgspec.structs.replace(found, p10_ms=low, p50_ms=middle, p90_ms=high, seeds=last.seeds)


def _log(wait_ms: int) -> float:
    return math.log(max(wait_ms, 0) + MINUTE_MS)


def mean_wait_ms(waits: list[int]) -> int:
    """The geometric mean, with a minute added to each first: a wait may be nothing."""
    return wait_of(float(np.log(np.array(waits) + MINUTE_MS).mean()))


def _kind(room_ms: float, quota_ms: float) -> ForecastKind:
    if not quota_ms:
        return "room"
    return "both" if room_ms else "quota"
