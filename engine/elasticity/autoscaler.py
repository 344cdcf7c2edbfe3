"""The autoscaler: at every scan, orders nodes for what waits, and gives back those that nobody needs.

What it decides is a function of the state and the time: `engine.elasticity.scale_up` and `engine.elasticity.scale_down`
say which events follow, and this emits them.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.elasticity import scale_down, scale_up
from engine.elasticity.capacity_ahead import Foresight, noted
from engine.model import events as ev
from engine.model.demand_forecast import Forecaster
from engine.state.cell_state import State


class Autoscaler:
    """Scans at whole multiples of `Autoscaling.scan_every_ms`, while some pool grows by itself."""

    def __init__(self, state: State, emit: Callable[[ev.AnyEvent], None], forecaster: Forecaster | None = None) -> None:
        self._state = state
        self._emit = emit
        self._rules = -1
        """`State.rules` when it was last found out whether a pool grows by itself."""
        self._any = False
        self._foresight = Foresight(state, forecaster)

    def next_ms(self, now_ms: int) -> int | None:
        state = self._state
        if self._rules != state.rules:
            self._rules = state.rules
            self._any = any(pool.scaling is not None for pool in state.capacity.pools)
        if not self._any or not state.settings.autoscaling.enabled:
            return None
        every_ms = state.settings.autoscaling.scan_every_ms
        return now_ms // every_ms * every_ms + every_ms

    def act(self, now_ms: int) -> None:
        state = self._state
        for event in noted(state, now_ms):
            self._emit(event)
        wanted = self._foresight.wanted(now_ms)
        # Each is decided on what the one before has done: nothing is given back that was just ordered.
        for event in scale_up.plan(state, now_ms, wanted):
            self._emit(event)
        for event in scale_down.plan(state, now_ms, wanted):
            self._emit(event)
