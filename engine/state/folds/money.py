"""What events of prices and budgets change in the state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.model import events as ev
from engine.model.specs import WorkloadState
from engine.state import workloads as wl
from engine.state.reconsider import Cause

if TYPE_CHECKING:
    from engine.state.cell_state import State


def price_set(state: State, event: ev.PriceSet) -> None:
    state.rules += 1
    state.ledger.set_price(state, event.pool, event.price_microusd_hour)
    # Cheaper pools are preferred.
    state.workloads.compile(state.capacity)
    state.reconsider.ask(Cause.RULES)


def budget_set(state: State, event: ev.BudgetSet) -> None:
    state.budgets.set(state, event.budget)
    budgets_changed(state)


def budget_removed(state: State, event: ev.BudgetRemoved) -> None:
    state.budgets.remove(event.name)
    budgets_changed(state)


def budget_staged(state: State, event: ev.BudgetStaged) -> None:
    budget = state.budgets.row_of[event.name]
    stopped = state.budgets.stops(budget)
    state.budgets.stage[budget] = event.stage
    state.budgets.turn[budget] = event.window
    if stopped != state.budgets.stops(budget):
        budgets_changed(state)


def spending_approved(state: State, event: ev.SpendingApproved) -> None:
    row = event.row
    queued = state.workloads.state[row] == WorkloadState.QUEUED
    if queued:
        state.pending.discard(state.pending_key(row), row)
    state.budgets.approved[row] = state.now_ms
    state.workloads.record(row, wl.APPROVED, state.now_ms, 0)
    if queued:
        state.pending.add(state.pending_key(row), row)
        state.reconsider.ask(Cause.BUDGET)


def budgets_changed(state: State) -> None:
    """Other work may start, or may not."""
    state.rebuild_pending()
    state.reconsider.ask(Cause.BUDGET)
