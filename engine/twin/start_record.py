"""The record of start forecasts: some of what waits, taken at random, is foretold now and then, kept, and compared with
the start. It corrects the forecasts that follow.

Who looks does not decide what is recorded: people look at what waits long, and the next forecast would be made for what
people look at. So the engine's process draws the sample, and answers to people are not recorded.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator

import msgspec
import numpy as np

from engine.control import Engine
from engine.journal.tables import Estimate
from engine.model.errors import JournalError
from engine.model.spec_parts import MINUTE_MS
from engine.model.twin_queries import FORECAST_KINDS, ForecastKind, StartForecast
from engine.state import workloads as wl
from engine.state.workloads import Workloads
from engine.twin.start_regression import EQUAL, P10, P90, Aim, LineWaits, Outcomes, StartFit, fitted

NEWEST = 2000
"""Forecasts that are looked at."""
MIN_ALIKE = 20
"""Forecasts of one kind of wait that are enough to tell how these held; with fewer, all kinds are told."""


class KeptStart(msgspec.Struct):
    """One that was kept."""

    told: Estimate
    waits: LineWaits
    queue: int
    priority: int
    start_ms: int | None = None
    """Cell time; None while it is not known."""

    def told_ms(self, aim: Aim) -> int:
        return (self.told.p10_ms if aim is P10 else self.told.p90_ms) or 0

    def held(self, aim: Aim, now_ms: int) -> bool | None:
        """Whether it started by p10 or p90; None until then. Counted as soon as it starts, the short waits would be
        known first, and the record would be too good."""
        told_ms = self.told_ms(aim)
        return None if now_ms <= told_ms else self.start_ms is not None and self.start_ms <= told_ms


class StartRecord:
    """The record of one engine. For the engine's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: deque[KeptStart] | None = None
        self._fit: StartFit | None = None
        self._held: dict[ForecastKind, Counter[bool]] = {}

    def keep(self, row: int, found: StartForecast, waits: LineWaits) -> None:
        """Note a forecast of the workload in that row."""
        w = self._engine.state.workloads
        told = Estimate(
            at_ms=found.at_ms,
            version=self._engine.version,
            horizon_ms=0,
            kind=found.kind,
            workload=w.ids[row],
            attempts=w.attempts[row],
            p10_ms=found.p10_ms,
            p50_ms=found.p50_ms,
            p90_ms=found.p90_ms,
            chance_permille=1000,
            line_ms=found.line_ms,
            waits=msgspec.json.encode(waits).decode(),
        )
        self._newest().append(KeptStart(told, waits, w.queue[row], w.priority[row]))
        try:
            self._engine.keep_estimates([told])
        except JournalError as error:
            self._engine.journal_error = str(error)

    @property
    def fit(self) -> StartFit:
        """What the record taught last."""
        if self._fit is None:
            self._fit = self.learn()
        return self._fit

    def held(self, kind: ForecastKind) -> tuple[int, int]:
        """(forecasts of this kind of wait of which it is known whether they held, or of all kinds where these are few;
        those that had started by their p90)"""
        counts = self._held.get(kind, Counter())
        if counts.total() < MIN_ALIKE:
            counts = sum(self._held.values(), Counter())
        return counts.total(), counts[True]

    def _newest(self) -> deque[KeptStart]:
        if self._kept is None:
            self._kept = deque(maxlen=NEWEST)
            try:
                self._kept += self._known(self._engine.estimates(NEWEST))
            except JournalError as error:
                # It costs what was learnt, and no forecast.
                self._engine.journal_error = str(error)
        return self._kept

    def _known(self, earlier: list[Estimate]) -> Iterator[KeptStart]:
        """Forecasts of work that is still known."""
        w = self._engine.state.workloads
        for told in earlier:
            row = w.row_of.get(told.workload)
            if told.kind in FORECAST_KINDS and told.waits and row is not None:
                waits = msgspec.json.decode(told.waits, type=LineWaits)
                yield KeptStart(told, waits, w.queue[row], w.priority[row])

    def learn(self) -> StartFit:
        """Look what came of all that are kept, and what that teaches."""
        kept, now_ms = self._newest(), self._engine.now_ms
        for one in kept:
            if one.start_ms is None:
                one.start_ms = start_of_attempt(self._engine.state.workloads, one.told.workload, one.told.attempts)
        self._held = {}
        for one in kept:
            held = one.held(P90, now_ms)
            if held is not None:
                self._held.setdefault(one.told.kind, Counter())[held] += 1  # type: ignore[arg-type]
        low, high = (aim.after(self._held_in_turn(aim, kept)) for aim in (P10, P90))
        self._fit = fitted(self._outcomes(kept), low, high)
        return self._fit

    def _held_in_turn(self, aim: Aim, kept: deque[KeptStart]) -> Iterator[bool]:
        """Whether each held of which that is known, in the order in which it was."""
        for one in sorted(kept, key=lambda one: one.told_ms(aim)):
            held = one.held(aim, self._engine.now_ms)
            if held is not None:
                yield held

    def _outcomes(self, kept: deque[KeptStart]) -> Outcomes:
        number: dict[tuple[str, int], int] = {}
        waited = [(one.start_ms or self._waits_until(one)) - one.told.at_ms for one in kept]
        return Outcomes(
            logs=np.log(np.array([one.waits for one in kept], np.float64).reshape(-1, len(EQUAL)) + MINUTE_MS),
            queue=np.array([one.queue for one in kept], np.int64),
            priority=np.array([one.priority for one in kept], np.int64),
            waits=np.array([math.log(max(ms, 0) + MINUTE_MS) for ms in waited]),
            seen=np.array([one.start_ms is not None for one in kept], bool),
            kind=np.array([FORECAST_KINDS.index(one.told.kind) for one in kept], np.int64),
            workload=np.array(
                [number.setdefault((one.told.workload, one.told.attempts), len(number)) for one in kept], np.int64
            ),
        )

    def _waits_until(self, one: KeptStart) -> int:
        """Up to when it has waited without a start."""
        w = self._engine.state.workloads
        row = w.row_of.get(one.told.workload)
        ended = -1 if row is None else w.ended[row]
        return ended if ended >= 0 else self._engine.now_ms


def start_of_attempt(w: Workloads, workload: str, attempts: int) -> int | None:
    """Cell time of the start that came after so many; None while there is none."""
    row = w.row_of.get(workload)
    if row is None or w.attempts[row] <= attempts:
        return None
    starts = []
    entry = w.history[row]
    while entry >= 0:
        if w.history_what[entry] == wl.PLACED:
            starts.append(w.history_at[entry])
        entry = w.history_previous[entry]
    found: int = starts[::-1][attempts]
    return found
