"""The start of waiting work at once, without running ahead: p10, p50 and p90, and what decides it.

Nobody knows who will go first, so three lines are looked at: with nobody ahead, with its own queue, with all that is
older. The expected wait is the geometric mean of the three and of the time that it has waited so far, since what has
waited long waits long. What earlier forecasts have taught then corrects it and gives the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from engine.capacity.task_shapes import Shape
from engine.control import Engine
from engine.external.slurm.limits import not_foretold
from engine.model.errors import RefusedError
from engine.model.spec_parts import MINUTE_MS
from engine.model.specs import WorkloadSpec, WorkloadState
from engine.model.twin_queries import ForecastKind, StartForecast
from engine.reads import pending_reasons as why
from engine.state.cell_state import State
from engine.state.run_times import HistoricRunTimes, RunTimes
from engine.state.workloads import DEPENDS_ON, WorkloadClass, class_key
from engine.twin.cell_flow import Asked, CellFlow, First
from engine.twin.start_line import NEVER_MS
from engine.twin.start_record import StartRecord

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


SHOWN_MS = 30_000
"""Cell time for which what was shown of a workload is shown again."""
MAX_SHOWN = 1_000
"""Workloads of which that is kept."""


class StartForecasts:
    """Forecasts of one engine. For the engine's thread."""

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
        self._shown: dict[int, tuple[int, StartForecast]] = {}
        """By row: attempts, and what was shown last."""

    def show(self, workload_id: str) -> StartForecast | None:
        """The forecast of a workload, kept to be scored; None where it does not wait. The same again for `SHOWN_MS`:
        whoever looks at a page asks every second. Raises NotFoundError."""
        w = self._engine.state.workloads
        row = w.row(workload_id)
        attempts, last = self._shown.get(row, (-1, None))
        if last is not None and attempts == w.attempts[row] and self._engine.now_ms < last.at_ms + SHOWN_MS:
            return last if self._waits(row) else None
        found = self.of(row)
        if found is not None and found.p10_ms is not None:
            self.record.keep(workload_id, w.attempts[row], found)
            if len(self._shown) >= MAX_SHOWN:
                self._shown.clear()
            self._shown[row] = w.attempts[row], found
        return found

    def _waits(self, row: int) -> bool:
        state = self._engine.state
        return not state.is_bound(row) and not WorkloadState(state.workloads.state[row]).terminal

    def of(self, row: int, depth: int = 0) -> StartForecast | None:
        """The forecast of the workload in that row; None where it does not wait."""
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
        found = self.of(target, depth + 1) if depth < MAX_CHAIN else None
        if found is None or found.p50_ms is None:
            return None
        return found.p50_ms - found.at_ms + (0 if started else int(np.median(flow.run_ms(rows))))

    def _of_line(
        self, flow: CellFlow, asked: Asked, waited_ms: int | None = None, gate_ms: int = 0, gate: str = ""
    ) -> StartForecast:
        """The forecast by the lines for room and for quota. `waited_ms` is None for what is not in line yet.
        `gate_ms`: that much later, when `gate` opens."""
        rooms = [flow.room_ms(asked, first) for first in First]
        quotas = [flow.quota_ms(asked, first) for first in First]
        waits = [float(np.median(np.maximum(*pair))) for pair in zip(rooms, quotas, strict=True)]
        line_ms = gate_ms + mean_wait_ms(waits if waited_ms is None else [*waits, max(waited_ms, 0)])
        kind = "gate" if gate_ms else _kind(float(np.median(rooms[-1])), float(np.median(quotas[-1])))
        learnt = self.record.correction(kind)
        low, middle, high = (
            gate_ms + _corrected(line_ms - gate_ms, log) if gate_ms else _corrected(line_ms, log) for log in learnt.logs
        )
        now_ms = self._engine.now_ms
        return StartForecast(
            at_ms=now_ms,
            kind=kind,
            p10_ms=now_ms + low,
            p50_ms=now_ms + middle,
            p90_ms=now_ms + high,
            decides=gate or f"{_WORDS[kind]}; {flow.ahead_in_queue(asked):,} ahead in its queue",
            line_ms=line_ms,
            alike=learnt.alike,
            p90_held_permille=learnt.p90_held * 1000 // learnt.alike if learnt.alike else None,
        )


def mean_wait_ms(waits: list[float]) -> int:
    """The geometric mean, with a minute added to each first: a wait may be nothing."""
    logs = [math.log(min(wait, NEVER_MS) + MINUTE_MS) for wait in waits]
    return round(math.exp(sum(logs) / len(logs))) - MINUTE_MS


def _corrected(wait_ms: int, log: float) -> int:
    """Never before now, and no later than anything is foreseen."""
    return min(max(round((wait_ms + MINUTE_MS) * math.exp(log)) - MINUTE_MS, 0), NEVER_MS)


def _kind(room_ms: float, quota_ms: float) -> ForecastKind:
    if not quota_ms:
        return "room"
    return "both" if room_ms else "quota"
