"""Budgets: the spending limits of tenants, teams and queues in a window, and the events that change prices and budgets.

A budget's meter runs at the sum of the rates of the accounts (`engine.state.ledger`) it covers. The moment at which it
is spent is therefore known ahead, and `BudgetWatch` acts exactly then. A window of whole days counts everything spent
since the window began, also before the budget was set. Any other window counts from when the budget was set.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from engine.model import events as ev
from engine.model.columns import Table
from engine.model.specs import BudgetSpec, WorkloadState
from engine.state import workloads as wl
from engine.state.ledger import DAY_MS, GRAINS, Meters
from engine.state.pending_work import Cause

if TYPE_CHECKING:
    from engine.state.cell_state import State


class BudgetStage(IntEnum):
    """The stage of a budget's use in the present window."""

    OPEN = 0
    WARNED = 1
    SPENT = 2

    @property
    def label(self) -> str:
        return self.name.lower()


class BudgetOutlook(NamedTuple):
    """The standing of a budget. Amounts in micro-USD, rounded down."""

    spent: int
    rate: int
    """Micro-USD per hour."""
    window_start_ms: int
    window_end_ms: int
    forecast: int
    """Spent at the window's end if the rate stays as it is."""
    spent_at_ms: int | None
    """Cell time at which all is spent at this rate; None when not within the window."""


class Budgets(Table):
    """Budgets by row, in the order they were first set."""

    columns = ("specs", "stage", "turn", "approved")

    def __init__(self) -> None:
        self.specs: list[Any] = []
        self.stage = array("b")
        self.turn = array("q")
        """Number of the window that the stage is of."""
        self.approved: dict[int, int] = {}
        """Workload rows whose spending somebody approved -> cell time."""
        self.meters = Meters(history=False)
        self.derive()

    def derive(self) -> None:
        self.specs = [
            spec if isinstance(spec, BudgetSpec) else msgspec.convert(spec, BudgetSpec) for spec in self.specs
        ]
        self.approved = {int(row): at_ms for row, at_ms in self.approved.items()}
        self.row_of = {spec.name: row for row, spec in enumerate(self.specs)}
        self._of_account: dict[int, tuple[int, ...]] = {}
        """Account -> rows of the budgets that cover it, found when first needed."""

    def dump(self) -> dict[str, Any]:
        plain = {
            "specs": [msgspec.to_builtins(spec) for spec in self.specs],
            "approved": {str(row): at_ms for row, at_ms in self.approved.items()},
        }
        return super().dump() | plain | {"meters": self.meters.dump()}

    def load(self, data: dict[str, Any]) -> None:
        self.meters.load(data["meters"])
        super().load(data)

    # -- change -------------------------------------------------------------------------------------------------------

    def set(self, state: State, spec: BudgetSpec) -> None:
        """A new budget, or another spec for the one of that name."""
        row = self.row_of.get(spec.name)
        if row is not None and self._same_meter(self.specs[row], spec):
            self.specs[row] = spec
        else:
            if row is not None:
                self.remove(spec.name)
            self.specs.append(spec)
            self.stage.append(BudgetStage.OPEN)
            self.turn.append(0)
            self.row_of[spec.name] = row = len(self.specs) - 1
            self._of_account.clear()
            self._start_meter(state, spec)
        self.turn[row] = state.now_ms // spec.window_ms
        self.stage[row] = self.stage_at(row, state.now_ms)

    def _same_meter(self, one: BudgetSpec, other: BudgetSpec) -> bool:
        return (one.scope, one.of, one.window_ms) == (other.scope, other.of, other.window_ms)

    def _start_meter(self, state: State, spec: BudgetSpec) -> None:
        accounts, now_ms = state.ledger.accounts, state.now_ms
        rate = amount = 0
        days = now_ms // spec.window_ms * spec.window_ms // DAY_MS
        for account in range(len(accounts)):
            if self._covers(state, spec, account):
                rate += accounts.rate[account]
                if spec.window_ms % DAY_MS == 0:
                    amount += accounts.amount(account, now_ms) - accounts.amount_before(account, days)
        self.meters.add(spec.window_ms, now_ms, rate, amount)

    def remove(self, name: str) -> None:
        row = self.row_of[name]
        del self.specs[row], self.stage[row], self.turn[row]
        self.meters.remove(row)
        self.derive()

    def shift(self, state: State, account: int, more: int, moment: int, at_ms: int) -> None:
        """The rate of an account has changed, perhaps several times within one day: as `Meters.shift_many`."""
        for row in self._budgets_of(state, account):
            self.meters.shift_many(row, more, moment, at_ms)

    def _budgets_of(self, state: State, account: int) -> tuple[int, ...]:
        found = self._of_account.get(account)
        if found is None:
            rows = range(len(self.specs))
            found = tuple(row for row in rows if self._covers(state, self.specs[row], account))
            self._of_account[account] = found
        return found

    def _covers(self, state: State, spec: BudgetSpec, account: int) -> bool:
        books = state.ledger
        return self._covers_all(
            state, spec, books.account_tenant[account], books.account_team[account], books.account_queue[account]
        )

    def _covers_all(self, state: State, spec: BudgetSpec, tenant: int, team: int, queue: int) -> bool:
        if spec.scope == "tenant":
            return bool(state.workloads.tenants.names[tenant] == spec.of)
        if spec.scope == "team":
            return bool(state.workloads.teams.names[team] == spec.of)
        return any(state.queues.specs[vertex].name == spec.of for vertex in state.queues.path[queue])

    # -- questions ----------------------------------------------------------------------------------------------------

    def spent_grains(self, row: int, now_ms: int) -> int:
        """Spending in the present window."""
        return self.meters.amount(row, now_ms) - self.meters.amount_before(row, now_ms // self.meters.period[row])

    def stage_at(self, row: int, now_ms: int) -> BudgetStage:
        spec, spent = self.specs[row], self.spent_grains(row, now_ms)
        if spent >= spec.limit_microusd * GRAINS:
            return BudgetStage.SPENT
        return (
            BudgetStage.WARNED
            if spent * 1000 >= spec.limit_microusd * spec.warn_permille * GRAINS
            else BudgetStage.OPEN
        )

    def next_ms(self, row: int, now_ms: int) -> int:
        """The time of its next stage: at the present rate, or because its window ends."""
        spec = self.specs[row]
        turn = now_ms // spec.window_ms
        if turn != self.turn[row]:
            return now_ms
        end_ms: int = (turn + 1) * spec.window_ms
        rate = self.meters.rate[row]
        if self.stage[row] == BudgetStage.SPENT:
            return end_ms
        permille = spec.warn_permille if self.stage[row] == BudgetStage.OPEN else 1000
        left = -(-spec.limit_microusd * permille * GRAINS // 1000) - self.spent_grains(row, now_ms)
        if left <= 0:
            return now_ms
        return min(end_ms, now_ms - (-left // rate)) if rate else end_ms

    def outlook(self, row: int, now_ms: int) -> BudgetOutlook:
        spec = self.specs[row]
        start_ms = now_ms // spec.window_ms * spec.window_ms
        end_ms = start_ms + spec.window_ms
        spent, rate = self.spent_grains(row, now_ms), self.meters.rate[row]
        left = spec.limit_microusd * GRAINS - spent
        at_ms = now_ms if left <= 0 else now_ms - (-left // rate) if rate else None
        return BudgetOutlook(
            spent=spent // GRAINS,
            rate=rate,
            window_start_ms=start_ms,
            window_end_ms=end_ms,
            forecast=(spent + rate * (end_ms - now_ms)) // GRAINS,
            spent_at_ms=at_ms if at_ms is not None and at_ms < end_ms else None,
        )

    def stopping(self, state: State, row: int) -> int | None:
        """Row of the first budget for which the workload may not start now; None when there is none."""
        return next((budget for budget in range(len(self.specs)) if self.stops_row(state, budget, row)), None)

    def stops_row(self, state: State, budget: int, row: int) -> bool:
        """True if the budget keeps the workload from starting now."""
        w, spec = state.workloads, self.specs[budget]
        return (
            self.stops(budget)
            and not (spec.action == "approve" and row in self.approved)
            and self._covers_all(state, spec, w.tenant[row], w.team[row], w.queue[row])
        )

    def stops(self, budget: int) -> bool:
        """True if the budget keeps work from starting."""
        return bool(self.stage[budget] == BudgetStage.SPENT) and self.specs[budget].action != "warn"

    @property
    def any_stops(self) -> bool:
        return bool(self.specs) and any(map(self.stops, range(len(self.specs))))


class BudgetWatch:
    """The controller that notes when budgets run out, and when their windows turn."""

    def __init__(self, state: State, emit: Callable[[ev.AnyEvent], None]) -> None:
        self._state = state
        self._emit = emit

    def next_ms(self, now_ms: int) -> int | None:
        budgets = self._state.budgets
        if not budgets.specs:
            return None
        return min(budgets.next_ms(row, now_ms) for row in range(len(budgets.specs)))

    def act(self, now_ms: int) -> None:
        budgets = self._state.budgets
        for row, spec in enumerate(budgets.specs):
            stage = budgets.stage_at(row, now_ms)
            turn = now_ms // spec.window_ms
            if stage != budgets.stage[row] or turn != budgets.turn[row]:
                self._emit(ev.BudgetStaged(spec.name, int(stage), turn))


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
        state.note_change((row,))
        state.reconsider.ask(Cause.BUDGET)


def budgets_changed(state: State) -> None:
    """Other work may start, or may not."""
    state.rebuild_pending()
    state.reconsider.ask(Cause.BUDGET)
