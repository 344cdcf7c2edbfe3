"""The record of start forecasts: each that was shown is kept, compared with the start, and corrects those that follow.

The correction is split conformal prediction (Vovk and others 2005; Lei and others, JASA 113, 2018) on the logarithm of
(actual wait + 1 min) / (wait by the line + 1 min). Those that are known first are the short ones, so work that still
waits counts too, as a wait of at least so long, with the estimator of Kaplan and Meier (JASA 53, 1958). While the
record is thin, PRIOR stands beside it.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np

from engine.control import Engine
from engine.journal.tables import Estimate
from engine.model.columns import Mask
from engine.model.errors import JournalError
from engine.model.spec_parts import MINUTE_MS
from engine.model.twin_queries import FORECAST_KINDS, ForecastKind, StartForecast
from engine.state import workloads as wl
from engine.state.run_times import Parts
from engine.state.workloads import Workloads

NEWEST = 1000
"""Forecasts that are looked at."""
MIN_ALIKE = 150
"""Forecasts of one kind of wait that are enough to go by; with fewer, those of all kinds are."""
PRIOR = np.linspace(-2.2, 2.2, 10)
"""Logarithms of actual to expected waits, each as one forecast: p90 is six times the median. As on two days of the
demo cell."""
KEEP_EVERY_MS = 10 * MINUTE_MS
"""Of one workload a forecast is kept so often at most: a page that is open asks all the time."""
QUANTILES = (0.1, 0.5, 0.9)


class Correction(NamedTuple):
    """What earlier forecasts say of the next."""

    logs: tuple[float, float, float]
    """Logarithm of actual to expected wait at QUANTILES."""
    alike: int
    """Earlier ones whose start is known."""
    p90_held: int
    """Of these, starts that came by p90."""


class StartRecord:
    """The record of one engine. For the engine's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._shown: deque[Estimate] | None = None
        self._known: dict[tuple[str, int], int] = {}
        """(workload, attempts before) -> start."""
        self._kept_at: dict[tuple[str, int], int] = {}

    def keep(self, workload: str, attempts: int, found: StartForecast) -> None:
        """Note that a forecast was shown."""
        assert found.p10_ms is not None
        key = (workload, attempts)
        if found.at_ms < self._kept_at.get(key, -KEEP_EVERY_MS) + KEEP_EVERY_MS:
            return
        kept = Estimate(
            at_ms=found.at_ms,
            version=self._engine.version,
            horizon_ms=0,
            kind=found.kind,
            workload=workload,
            attempts=attempts,
            p10_ms=found.p10_ms,
            p50_ms=found.p50_ms,
            p90_ms=found.p90_ms,
            chance_permille=1000,
            line_ms=found.line_ms,
        )
        self._newest().append(kept)
        self._kept_at = {key: at for key, at in self._kept_at.items() if at > found.at_ms - KEEP_EVERY_MS}
        self._kept_at[key] = found.at_ms
        try:
            self._engine.keep_estimates([kept])
        except JournalError as error:
            self._engine.journal_error = str(error)

    def _newest(self) -> deque[Estimate]:
        if self._shown is None:
            earlier = (one for one in self._engine.estimates() if one.kind in FORECAST_KINDS)
            self._shown = deque(earlier, NEWEST)
        return self._shown

    def correction(self, kind: ForecastKind) -> Correction:
        """What forecasts of this kind of wait teach; of all kinds where these are few."""
        alike = [one for one in self._newest() if one.kind == kind]
        if len(alike) < MIN_ALIKE:
            alike = list(self._newest())
        starts = [self._start(one) for one in alike]
        until = [self._waits_until(one) if start is None else start for one, start in zip(alike, starts, strict=True)]
        logs = [
            math.log((max(end - one.at_ms, 0) + MINUTE_MS) / ((one.line_ms or 0) + MINUTE_MS))
            for one, end in zip(alike, until, strict=True)
        ]
        seen = np.array([start is not None for start in starts], bool)
        held = sum(start is not None and start <= (one.p90_ms or 0) for one, start in zip(alike, starts, strict=True))
        low, middle, high = survived(np.array(logs), seen)
        return Correction((low, middle, high), int(seen.sum()), held)

    def _start(self, one: Estimate) -> int | None:
        key = (one.workload, one.attempts)
        if key not in self._known:
            start = start_of_attempt(self._engine.state.workloads, *key)
            if start is None:
                return None
            self._known[key] = start
        return self._known[key]

    def _waits_until(self, one: Estimate) -> int:
        """Up to when it has waited without a start."""
        w = self._engine.state.workloads
        row = w.row_of.get(one.workload)
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


def survived(logs: Parts, seen: Mask) -> tuple[float, float, float]:
    """Quantiles of logarithms of which those not `seen` are lower limits, with PRIOR beside them."""
    logs, seen = np.concatenate((logs, PRIOR)), np.concatenate((seen, np.ones(len(PRIOR), bool)))
    order = np.lexsort((~seen, logs))
    logs, seen = logs[order], seen[order]
    at_risk = np.arange(len(logs), 0, -1)
    left = np.cumprod(np.where(seen, 1 - 1 / at_risk, 1.0))
    low, middle, high = (
        float(logs[np.argmax(left <= 1 - part + 1e-12)]) if left[-1] <= 1 - part + 1e-12 else float(logs[-1])
        for part in QUANTILES
    )
    return low, middle, high
