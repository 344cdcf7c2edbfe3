"""Readings of checks from an engine or a fork of it.

A reading takes kept counts, one row of a list, or one pass over columns. It is None when the value is not known, and
raises NotFoundError when the object does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from engine.model.columns import view
from engine.model.errors import NotFoundError
from engine.model.list_queries import Kind, Query, Term
from engine.model.specs import NodeState, WorkloadState
from engine.placement.fragmentation import headline_ppm
from runbooks.plans.checks import MEANINGS, Check, CheckName, Finding, check_well_formed, holds, says, wanted, words

if TYPE_CHECKING:
    from engine.control import Engine

DAY_MS = 24 * 3_600_000
Reading = Callable[["Engine", str], int | str | None]


def _node_losses(engine: Engine, node: str) -> int:
    row = engine.state.capacity.row(node)
    since_ms = engine.now_ms - DAY_MS
    return sum(at_ms > since_ms for at_ms in engine.state.failures.losses.get(row, ()))


def _node_stragglers(engine: Engine, node: str) -> int:
    engine.state.capacity.row(node)
    return sum(one.node == node for one in engine.agents.progress.stragglers(engine.state))


def _workload_reason(engine: Engine, workload: str) -> str:
    reasons = engine.workload(workload).reasons
    return reasons[0].token if reasons else "none"


def _workload_wait(engine: Engine, workload: str) -> int | None:
    """The wait, s; None for work that does not wait."""
    detail = engine.workload(workload)
    waits = detail.state in ("queued", "held", "waiting", "suspended")
    return (detail.now_ms - detail.submitted_ms) // 1000 if waits else None


def _workload_run(engine: Engine, workload: str) -> int:
    """0 for one that does not run."""
    detail = engine.workload(workload)
    return (detail.now_ms - (detail.started_ms or 0)) // 1000 if detail.state == "running" else 0


def _cell_of(kind: Kind, column: str, divisor: int = 1) -> Reading:
    """A reading of one column of the row of that name, as lists show it."""

    def read(engine: Engine, name: str) -> int | str | None:
        page = engine.query(Query(kind=kind, columns=("name", column), where=(Term("name", "=", name),), limit=2))
        found = [value for found, value in page.rows if found == name]
        if not found:
            raise NotFoundError(f"there is no {kind[:-1]} '{name}'")
        value: int | str | None = found[0]
        return value // divisor if isinstance(value, int) else value

    return read


def _pool_row(engine: Engine, name: str) -> int:
    for row, pool in enumerate(engine.state.capacity.pools):
        if pool.name == name:
            return row
    raise NotFoundError(f"there is no pool '{name}'")


def _pool_free_gpus(engine: Engine, name: str) -> int:
    c = engine.state.capacity
    ready = (view(c.pool) == _pool_row(engine, name)) & (view(c.state) == NodeState.READY)
    return int(engine.state.capacity.free_gpu()[ready].sum()) // 1000


def _pool_in(state: NodeState) -> Reading:
    def read(engine: Engine, name: str) -> int:
        c = engine.state.capacity
        return int(np.count_nonzero((view(c.pool) == _pool_row(engine, name)) & (view(c.state) == state)))

    return read


def _pool_booting(engine: Engine, name: str) -> int:
    booting = _pool_in(NodeState.BOOTING)(engine, name)
    return int(booting or 0) + engine.state.orders.due(_pool_row(engine, name))


def _pool_ending(engine: Engine, name: str) -> int:
    c = engine.state.capacity
    there = (view(c.pool) == _pool_row(engine, name)) & (view(c.state) != NodeState.REMOVED)
    return int(np.count_nonzero(there & (view(c.doomed) >= 0)))


def _pool_wanted(engine: Engine, name: str) -> int:
    _pool_row(engine, name)
    return next(size.wanted for size in engine.scaling().pools if size.pool == name)


def _pool_short(engine: Engine, name: str) -> int:
    """Nodes asked for by what waits, or foretold, above those that are ready, booting or on order."""
    _pool_row(engine, name)
    size = next(size for size in engine.scaling().pools if size.pool == name)
    return max(0, max(size.asked, size.wanted) - size.ready - size.booting - size.ordered)


def _pool_target(engine: Engine, name: str) -> int:
    """The most nodes that are set for now or for a time to come."""
    targets = engine.state.sizing.targets.get(_pool_row(engine, name), ())
    standing = [nodes for at_ms, nodes in targets if at_ms <= engine.now_ms][-1:]
    return max([*standing, *(nodes for at_ms, nodes in targets if at_ms > engine.now_ms)], default=0)


def _queue_mode(engine: Engine, name: str) -> str:
    return engine.queue(name).mode


def _tenant_row(engine: Engine, tenant: str) -> int:
    row = engine.state.workloads.tenants.index.get(tenant)
    if row is None:
        raise NotFoundError(f"there is no tenant '{tenant}'")
    return row


def _tenant_in(*states: WorkloadState) -> Reading:
    chosen = np.array([state in states for state in WorkloadState])

    def read(engine: Engine, tenant: str) -> int:
        w = engine.state.workloads
        return int(np.count_nonzero((view(w.tenant) == _tenant_row(engine, tenant)) & chosen[view(w.state)]))

    return read


def _tenant_gpus(engine: Engine, tenant: str) -> int:
    row = _tenant_row(engine, tenant)
    return sum(use[2] for (_, of), use in engine.state.tenant_use.items() if of == row) // 1000


def _zone_in(*states: NodeState) -> Reading:
    chosen = np.array([state in states for state in NodeState])

    def read(engine: Engine, zone: str) -> int:
        c = engine.state.capacity
        place = c.places.index.get(zone)
        there = view(c.zone) == (-1 if place is None else place)
        if not (there & (view(c.state) != NodeState.REMOVED)).any():
            raise NotFoundError(f"there is no zone '{zone}'")
        return int(np.count_nonzero(there & chosen[view(c.state)]))

    return read


def _cell_wait_p95(engine: Engine, _: str) -> int | None:
    waits = sorted(engine.recent.waits)
    return waits[len(waits) * 95 // 100] // 1000 if waits else None


def _cell_fragmentation(engine: Engine, _: str) -> int | None:
    ppm = headline_ppm(engine.state)
    return None if ppm is None else ppm // 1000


def _reservation_state(engine: Engine, name: str) -> str:
    try:
        spec = engine.reservation(name)
    except NotFoundError:
        return "not made"
    return "ahead" if engine.now_ms < spec.start_ms else "active"


def _reservation_idle(engine: Engine, name: str) -> int:
    """The idle share, permille, of its nodes' GPUs, or of their CPUs where they have none."""
    total = free = cpus = free_cpus = 0
    for id_ in engine.reservation(name).nodes:
        node = engine.node(id_)
        total, free = total + node.capacity["gpu_milli"], free + node.free["gpu_milli"]
        cpus, free_cpus = cpus + node.capacity["cpu_milli"], free_cpus + node.free["cpu_milli"]
    return free * 1000 // total if total else free_cpus * 1000 // max(cpus, 1)


def _reservation_left(engine: Engine, name: str) -> int:
    return max(0, engine.reservation(name).end_ms - engine.now_ms) // 1000


def _budget(field: str) -> Reading:
    def read(engine: Engine, name: str) -> int | None:
        for line in engine.budgets().budgets:
            if line.spec.name == name:
                spent: int = getattr(line, field)
                return spent * 1000 // line.spec.limit_microusd if line.spec.limit_microusd else None
        raise NotFoundError(f"there is no budget '{name}'")

    return read


READINGS: Mapping[CheckName, Reading] = {
    "node_state": lambda engine, of: NodeState(engine.state.capacity.state[engine.state.capacity.row(of)]).label,
    "node_workloads": lambda engine, of: engine.state.allocations.workloads_on(engine.state.capacity.row(of)),
    "node_free_gpus": lambda engine, of: engine.node(of).free["gpu_milli"] // 1000,
    "node_losses_day": _node_losses,
    "node_stragglers": _node_stragglers,
    "workload_state": lambda engine, of: engine.workload(of).state,
    "workload_reason": _workload_reason,
    "workload_wait_s": _workload_wait,
    "workload_run_s": _workload_run,
    "pool_free_gpus": _pool_free_gpus,
    "pool_nodes": _cell_of("pools", "nodes"),
    "pool_ready": _pool_in(NodeState.READY),
    "pool_booting": _pool_booting,
    "pool_suspect": _pool_in(NodeState.SUSPECT),
    "pool_down": _pool_in(NodeState.DOWN),
    "pool_ending": _pool_ending,
    "pool_wanted": _pool_wanted,
    "pool_short": _pool_short,
    "pool_target": _pool_target,
    "pool_most": _cell_of("pools", "most"),
    "queue_mode": _queue_mode,
    "queue_waiting": _cell_of("queues", "queued"),
    "queue_running": _cell_of("queues", "running"),
    # Nobody waits: nobody has waited long.
    "queue_oldest_wait_s": lambda engine, of: _cell_of("queues", "oldest_wait", 1000)(engine, of) or 0,
    "queue_gpus": _cell_of("queues", "gpu_used", 1000),
    "queue_gpu_quota": _cell_of("queues", "gpu_nominal", 1000),
    "queue_gpus_borrowed": _cell_of("queues", "gpu_borrowed", 1000),
    "tenant_running": _tenant_in(WorkloadState.PLACED, WorkloadState.RUNNING),
    "tenant_waiting": _tenant_in(WorkloadState.QUEUED),
    "tenant_gpus": _tenant_gpus,
    "zone_ready": _zone_in(NodeState.READY),
    "zone_lost": _zone_in(NodeState.DOWN, NodeState.SUSPECT),
    "cell_waiting": lambda engine, _: engine.state.workloads.state_counts[WorkloadState.QUEUED],
    "cell_wait_p95_s": _cell_wait_p95,
    "cell_policy": lambda engine, _: engine.state.policy,
    "cell_fragmentation_permille": _cell_fragmentation,
    "cell_cost_microusd_hour": lambda engine, _: sum(engine.state.ledger.cost.rate),
    "cell_suspect": lambda engine, _: engine.state.failures.suspects,
    "reservation_state": _reservation_state,
    "reservation_idle_permille": _reservation_idle,
    "reservation_left_s": _reservation_left,
    "budget_spent_permille": _budget("spent_microusd"),
    "budget_forecast_permille": _budget("forecast_microusd"),
}


def evaluate(engine: Engine, check: Check) -> Finding:
    """Take the reading now and compare it. A reading that is not known is inconclusive. An object that does not exist
    fails every check about it. Raises SpecError for a check that is malformed."""
    check_well_formed(check, "check")
    meaning = MEANINGS[check.check]
    try:
        value = READINGS[check.check](engine, check.of)
    except NotFoundError:
        return Finding(check=check, verdict="failure", found=f"there is no {meaning.of} {check.of}")
    if value is None:
        return Finding(check=check, verdict="inconclusive", found=f"not known: {words(check)}")
    text = f"{value:,}" if isinstance(value, int) else value
    found = says(check.check, check.of, text)
    if holds(check, value):
        return Finding(check=check, verdict="success", found=found)
    found = f"{found}; wanted {wanted(check)}"
    return Finding(check=check, verdict="failure", found=found)
