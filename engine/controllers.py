"""What acts by itself as time passes: providers that deliver machines, the autoscaler, the watch over nodes, budgets.

A controller decides on the state and emits events; it holds no fact that the state does not hold, so a restart or a
fork makes it anew and it goes on alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engine.elasticity.autoscaler import Autoscaler
from engine.elasticity.providers import ProviderFaults, Provisioning, SimulatedProvider
from engine.elasticity.service_scaling import Services
from engine.elasticity.spot_interruptions import Interruptions
from engine.health.heartbeats import Leases
from engine.health.memory_pressure import PressureRelief
from engine.health.node_watch import NodeWatch
from engine.ledger.budgets import BudgetWatch
from engine.model import events as ev
from engine.model.demand_forecast import Forecaster
from engine.state.cell_state import State

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
