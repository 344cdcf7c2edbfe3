"""Goodput and the cost of finished work, for the cell, by pool and by tenant.

Goodput is a share of money, so that large and small machines weigh as they should. Of the cost of all nodes it is the
part charged for work that was not lost and whose workload neither failed nor was cancelled (`engine.state.ledger`
defines charged and lost). Running work counts as useful.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.model.columns import view
from engine.model.specs import NodeState, WorkloadState
from engine.reads.cost_reports import GoodputReport, PoolGoodput, TenantGoodput
from engine.state.ledger import GRAINS
from engine.state.timers import hazard_ppm_hour

if TYPE_CHECKING:
    from engine.state.cell_state import State


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
