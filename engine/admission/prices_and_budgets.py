"""The check of what is said about money: prices of pools, budgets, and spending that somebody approves."""

from __future__ import annotations

from engine.admission.definitions import Checked, budgets_set
from engine.admission.id_lookup import ids_of, listed, rows_of
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.errors import NotFoundError, RefusedError
from engine.model.specs import WorkloadState, check_price
from engine.state.cell_state import State


def set_price(state: State, command: cmd.SetPrice) -> Checked:
    pool = state.capacity.pool_of.get(command.pool)
    if pool is None:
        known = ", ".join(sorted(state.capacity.pool_of)) or "none is defined"
        raise NotFoundError(f"there is no pool '{command.pool[:64]}'", f"Use one of: {known}")
    check_price(command.price_microusd_hour, "price_microusd_hour")
    same = state.capacity.pools[pool].price_microusd_hour == command.price_microusd_hour
    return [] if same else [ev.PriceSet(pool, command.price_microusd_hour)], (command.pool,)


def set_budgets(state: State, command: cmd.SetBudgets) -> Checked:
    queues = {spec.name for spec in state.queues.specs}
    return budgets_set(command.budgets, queues, "budgets"), tuple(spec.name for spec in command.budgets)


def remove_budgets(state: State, command: cmd.RemoveBudgets) -> Checked:
    names = tuple(dict.fromkeys(command.names))
    unknown = [name for name in names if name not in state.budgets.row_of]
    if unknown:
        raise NotFoundError(f"there is no budget {listed(unknown)[:256]}", "List them with: muster budgets")
    return [ev.BudgetRemoved(name) for name in names], names


def approve_spending(state: State, command: cmd.ApproveSpending) -> Checked:
    """Of work that has not ended. Once approved it stays so, whatever its budgets do."""
    rows = rows_of(state, command.ids)
    w = state.workloads
    ended = [w.ids[row] for row in rows if WorkloadState(w.state[row]).terminal]
    if ended:
        raise RefusedError(f"cannot approve the spending of {listed(ended)}: it has ended", "Leave those out")
    return [ev.SpendingApproved(row) for row in rows if row not in state.budgets.approved], ids_of(state, rows)
