"""Controllers: the parts of the engine that act as time passes. They are the autoscaler, the providers that deliver
machines, the watch over nodes, and budgets.

A controller reads the state and the time, and emits events. It holds no fact that the state does not hold, so a restart
or a fork makes it anew and it goes on alike. `engine.elasticity.scale_up` and `engine.elasticity.scale_down` decide for
the autoscaler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engine.elasticity import scale_down, scale_up
from engine.elasticity.capacity_ahead import Foresight, noted
from engine.elasticity.providers import ProviderFaults, Provisioning, SimulatedProvider
from engine.elasticity.service_scaling import Services
from engine.elasticity.spot_interruptions import Interruptions
from engine.executors.node_watch import Leases, NodeWatch, PressureRelief
from engine.model import events as ev
from engine.state.budgets import BudgetWatch
from engine.state.cell_state import State
from engine.state.demand import Forecaster


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


Emit = Callable[[ev.AnyEvent], None]


class Controller(Protocol):
    """Called by the engine alone, on its thread, in the turn in which its moment comes."""

    def next_ms(self, now_ms: int) -> int | None:
        """Cell time at which it next has something to do; None when nothing is to come. What is due already counts."""
        ...

    def act(self, now_ms: int) -> None:
        """Do what is due. Afterwards `next_ms` lies beyond `now_ms`, or is None."""
        ...


def controllers_of(
    state: State,
    seed: int,
    emit: Emit,
    leases: Leases,
    provider_faults: ProviderFaults | None = None,
    *,
    from_ms: int = 0,
    forecaster: Forecaster | None = None,
) -> list[Controller]:
    """Those that the cell needs, in the order in which they act at one moment. `from_ms`: as in Interruptions.
    `forecaster`: what nodes are ordered ahead by; None: the built-in baseline."""
    return [
        NodeWatch(state, seed, emit, leases),
        Interruptions(state, seed, emit, from_ms),
        Provisioning(state, SimulatedProvider(state, seed, provider_faults), emit),
        Services(state, emit),
        PressureRelief(state, emit),
        BudgetWatch(state, emit),
        Autoscaler(state, emit, forecaster),
    ]
