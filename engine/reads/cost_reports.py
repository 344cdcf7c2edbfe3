"""Cost reports from the ledger: charges in a window of days, budgets, goodput, and the cost of finished work, for the
cell, by pool and by tenant.

Goodput is a share of money, so that large and small machines weigh as they should. Of the cost of all nodes it is the
part charged for work that was not lost and whose workload neither failed nor was cancelled (`engine.state.ledger`
defines charged and lost). Running work counts as useful.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.model.columns import view
from engine.model.errors import SpecError
from engine.model.quantities import shown
from engine.model.reports import (
    GROUPINGS,
    TAG,
    BudgetLine,
    BudgetReport,
    GoodputReport,
    PoolGoodput,
    Showback,
    ShowbackLine,
    ShowbackRequest,
    TenantGoodput,
)
from engine.model.spec_parts import DAY_MS
from engine.model.specs import NodeState, WorkloadState
from engine.model.visibility import OTHERS
from engine.state.ledger import GRAINS
from engine.state.timers import hazard_ppm_hour

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.state.cell_state import State
    from engine.state.ledger import Meters


def showback(
    state: State, request: ShowbackRequest, now_ms: int, named: Callable[[int], bool] | None = None
) -> Showback:
    """`named`: which accounts of the ledger are told by name; None: all. The others are one group. Raises SpecError for
    a grouping that there is not, or a window that ends before it begins."""
    since = max(request.since_ms, 0) // DAY_MS
    until = now_ms if request.until_ms is None else min(-(-request.until_ms // DAY_MS) * DAY_MS, now_ms)
    if until < since * DAY_MS or (request.until_ms is not None and request.until_ms < request.since_ms):
        raise SpecError("until_ms", "is before the start of the window", "Give a later end, or an earlier start")

    def within(meters: Meters, row: int) -> int:
        end = meters.amount(row, now_ms) if until == now_ms else meters.amount_before(row, until // DAY_MS)
        return end - (meters.amount_before(row, since) if since * DAY_MS <= now_ms else 0)

    books = state.ledger
    total = sum(within(books.cost, pool) for pool in range(len(books.cost)))
    sums: dict[str, int] = {}
    if request.by == "pool":
        for row, pool in enumerate(state.capacity.pools):
            sums[pool.name] = within(books.used, row)
    else:
        name_of = _names(state, request.by)
        for row in range(len(books.accounts)):
            name = name_of(row) if named is None or named(row) else OTHERS
            sums[name] = sums.get(name, 0) + within(books.accounts, row)
    parts = [("group", name, grains) for name, grains in sums.items() if grains]
    parts.sort(key=lambda part: (-part[2], part[1]))
    down = sum(within(books.down, pool) for pool in range(len(books.down)))
    if down:
        parts.append(("downtime", "", down))
    parts.append(("idle", "", total - down - sum(sums.values())))
    amounts = _whole([grains for _, _, grains in parts], total)
    lines = [
        ShowbackLine(kind=kind, name=name, microusd=amount, permille=grains * 1000 // total if total else 0)  # type: ignore[arg-type]
        for (kind, name, grains), amount in zip(parts, amounts, strict=True)
    ]
    return Showback(
        version=state.version,
        now_ms=now_ms,
        by=request.by,
        since_ms=since * DAY_MS,
        until_ms=until,
        total_microusd=sum(amounts),
        lines=tuple(lines),
    )


def _names(state: State, by: str) -> Callable[[int], str]:
    """Account row -> name of its group. Raises SpecError."""
    books, w = state.ledger, state.workloads
    if by == "tenant":
        return lambda row: w.tenants.names[books.account_tenant[row]]
    if by == "team":
        return lambda row: w.teams.names[books.account_team[row]]
    if by == "queue":
        return lambda row: str(state.queues.specs[books.account_queue[row]].name)
    key = by.removeprefix(TAG)
    if key and key != by:
        return lambda row: w.tags_of(books.account_tags[row]).get(key, "")
    raise SpecError("by", f"there is no grouping {shown(by)}", f"Use one of {', '.join(GROUPINGS)} or {TAG}KEY")


def _whole(parts: list[int], total: int) -> list[int]:
    """Grains as micro-USD that add up to the total, rounded down: what is missing goes to the largest remainders, of
    equal ones to the first."""
    from engine.state.ledger import GRAINS

    amounts = [part // GRAINS for part in parts]
    missing = total // GRAINS - sum(amounts)
    for i in sorted(range(len(parts)), key=lambda i: (-(parts[i] % GRAINS), i))[:missing]:
        amounts[i] += 1
    return amounts


def budgets(state: State, now_ms: int) -> BudgetReport:
    """All of them, in the order in which they were first set."""
    table = state.budgets
    waiting = [0] * len(table.specs)
    if table.any_stops:
        from engine.state.pending_work import STOPPED

        for key, group in state.pending.groups.items():
            for row in group.rows[group.front :] if key[3] == STOPPED else ():
                for budget in range(len(table.specs)):
                    waiting[budget] += table.stops_row(state, budget, row)
    lines = []
    for budget, spec in enumerate(table.specs):
        found = table.outlook(budget, now_ms)
        lines.append(
            BudgetLine(
                spec=spec,
                stage=table.stage_at(budget, now_ms).label,
                spent_microusd=found.spent,
                rate_microusd_hour=found.rate,
                window_start_ms=found.window_start_ms,
                window_end_ms=found.window_end_ms,
                forecast_microusd=found.forecast,
                spent_at_ms=found.spent_at_ms,
                waiting=waiting[budget],
            )
        )
    return BudgetReport(version=state.version, now_ms=now_ms, budgets=tuple(lines))


def report(state: State, now_ms: int) -> GoodputReport:
    """Costs a pass over all workloads and nodes."""
    books, w = state.ledger, state.workloads
    cost = books.total(now_ms)
    tenants = _tenants(state, now_ms)
    wasted = sum(line.wasted_microusd for line in tenants)
    charged = books.spent(now_ms)
    finished = w.state_counts[WorkloadState.FINISHED]
    live = [row for row in range(len(w.ids)) if w.terms[row] and not WorkloadState(w.state[row]).terminal]
    return GoodputReport(
        version=state.version,
        now_ms=now_ms,
        cost_microusd=cost,
        charged_microusd=charged,
        downtime_microusd=books.downtime(now_ms),
        wasted_microusd=wasted,
        goodput_permille=(charged - wasted) * 1000 // cost if cost else 0,
        finished=finished,
        per_finished_microusd=cost // finished if finished else None,
        turned=sum(map(w.has_turned, live)),
        pools=tuple(_pools(state, now_ms)),
        tenants=tuple(tenants),
    )


def _pools(state: State, now_ms: int) -> list[PoolGoodput]:
    capacity, books = state.capacity, state.ledger
    pool_of, doomed = view(capacity.pool), view(capacity.doomed) >= 0
    there = view(capacity.state) != NodeState.REMOVED
    count = len(capacity.pools)
    nodes, ending, taken = (
        np.bincount(pool_of[mask], minlength=count).tolist() for mask in (there, there & doomed, doomed)
    )
    return [
        PoolGoodput(
            pool=pool.name,
            spot=pool.spot,
            nodes=nodes[row],
            ending=ending[row],
            taken=taken[row],
            interruptions_ppm_hour=hazard_ppm_hour(state, row) if pool.spot else 0,
            cost_microusd=books.cost.amount(row, now_ms) // GRAINS,
            used_microusd=books.used.amount(row, now_ms) // GRAINS,
        )
        for row, pool in enumerate(capacity.pools)
    ]


def _tenants(state: State, now_ms: int) -> list[TenantGoodput]:
    w, books = state.workloads, state.ledger
    names = w.tenants.names
    now, tenant = view(w.state), view(w.tenant)
    charged = books.costs(now_ms)
    in_vain = (now == WorkloadState.FAILED) | (now == WorkloadState.CANCELLED)
    wasted = np.where(in_vain, charged, view(books.wasted_whole))
    sums = np.zeros((2, len(names)), np.int64)
    for total, column in zip(sums, (charged, wasted), strict=True):
        np.add.at(total, tenant, column)
    finished = np.bincount(tenant[now == WorkloadState.FINISHED], minlength=len(names)).tolist()
    lines = [
        TenantGoodput(
            tenant=name,
            finished=finished[row],
            charged_microusd=int(sums[0, row]),
            wasted_microusd=int(sums[1, row]),
            per_finished_microusd=int(sums[0, row]) // finished[row] if finished[row] else None,
        )
        for row, name in enumerate(names)
    ]
    return sorted(lines, key=lambda line: (-line.charged_microusd, line.tenant))
