"""What makes room for work that waits: nodes that come back into use, pieces put together, larger pools."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engine.model.money import usd
from engine.model.specs import PoolSpec
from engine.placement.node_templates import grows, suits
from engine.reads import pending_reasons
from engine.twin.counterfactuals import verified
from runbooks.drafts.rules import nodes
from runbooks.drafts.rules.solver import Case, DraftOption, Family
from runbooks.drafts.rules.symptoms import counted

MAX_AHEAD_MS = 40 * 60_000
"""However long machines boot."""
MAX_NODES = 100
"""Returned or added in one draft."""


def uncordoned(case: Case) -> Iterator[Family]:
    """As few as it takes of the healthy nodes that are out of use, of pools that it may use."""
    c = case.state.capacity
    names = {pool.name for pool in case.pools()}
    fit = [id_ for id_ in case.scene.healthy_cordoned if c.pools[c.pool[c.row_of[id_]]].name in names]
    empty = [id_ for id_ in fit if case.scene.is_idle(c.row_of[id_])][:MAX_NODES]
    if not empty:
        return

    def option(count: int) -> DraftOption:
        ids = tuple(empty[:count])
        return DraftOption(
            text=f"return {counted(count, 'node')} that {'is' if count == 1 else 'are'} cordoned, healthy and empty",
            steps=(("uncordon", {"nodes": ids}),),
            runbook="hand-back-nodes" if count <= 12 else "",
            inputs={"nodes": ",".join(ids)},
            harms=nodes.why_out(case.scene, ids),
        )

    domain = _in_one_domain(case, set(empty))
    if domain is not None:
        yield Family(1, 1, lambda _: domain)
    yield Family(1, len(empty), option)


def _in_one_domain(case: Case, healthy: set[str]) -> DraftOption | None:
    """Nodes of one domain, for work that must be in one; of what would start it otherwise nothing is taken."""
    if case.symptom.kind != f"wait_{pending_reasons.SCATTERED}":
        return None
    found_ = verified(case.scene.engine, case.first.id).found
    if found_ is None or found_.kind != "uncordon":
        return None
    ids = tuple(id_ for edit in found_.edits for id_ in edit.get("ids", ()))
    if not ids or not healthy.issuperset(ids):
        return None
    return DraftOption(
        text=f"return {counted(len(ids), 'node')} of one domain, cordoned, healthy and empty",
        steps=(("uncordon", {"nodes": ids}),),
        runbook="hand-back-nodes" if len(ids) <= 12 else "",
        inputs={"nodes": ",".join(ids)},
        harms=nodes.why_out(case.scene, ids),
    )


def consolidated(case: Case) -> Iterator[Family]:
    """Moves that make room for the largest of them."""
    largest = max(case.lots, key=lambda lot: (lot.gpu_milli, lot.cpu_milli, lot.wait_ms))
    option = DraftOption(
        text=f"move small work together so that {largest.id} fits",
        steps=(("consolidate", {"unblock": largest.id, "max_moves": 6}),),
        runbook="fragmented-gang" if case.symptom.kind == f"wait_{pending_reasons.FRAGMENTED}" else "",
        inputs={"gang": largest.id},
        harms="What is moved starts again from its last checkpoint.",
    )
    yield Family(1, 1, lambda _: option, 60_000)


def larger_pools(case: Case) -> Iterator[Family]:
    """Pools that grow by themselves and have come to their most; or that would, if the autoscaler were not off."""
    enabled = case.state.settings.autoscaling.enabled
    for pool in growing(case):
        size = case.scene.sizes[pool.name]
        there = size.ready + size.booting + size.other + size.ordered
        scaling = pool.scaling
        if scaling is None or case.scene.state.orders.backed_off_ms.get(pool_row(case, pool), -1) > case.scene.now_ms:
            continue
        low, high = _nodes_for(case, pool), min(MAX_NODES, max(scaling.most, 8))
        if not 0 < low <= high:
            continue
        ahead_ms = min(scaling.boot_ms[1] + 3 * 60_000, MAX_AHEAD_MS)
        if not enabled and there < scaling.most:
            room = scaling.most - there
            yield Family(min(low, room), room, _added(pool), ahead_ms)
        elif there + low > scaling.most:
            short = there + low - scaling.most
            yield Family(short, min(short + 8, high), _higher(pool, scaling.most), ahead_ms)


def _added(pool: PoolSpec) -> Callable[[int], DraftOption]:
    return lambda more: DraftOption(
        text=f"add {counted(more, 'node')} to pool {pool.name}",
        steps=(("scale_pool", {"pool": pool.name, "add_nodes": more}),),
        harms=f"{usd(more * pool.price_microusd_hour)} an hour, from when they boot.",
    )


def _higher(pool: PoolSpec, most: int) -> Callable[[int], DraftOption]:
    return lambda more: DraftOption(
        text=f"let pool {pool.name} grow to {most + more:,} nodes, {more:,} more",
        steps=(("set_scaling", {"pool": pool.name, "most": most + more}),),
        harms=f"Up to {usd(more * pool.price_microusd_hour)} an hour more, for as long as there is work for them.",
    )


def growing(case: Case) -> list[PoolSpec]:
    """Pools that grow, or are kept from it, and would do for what is late: those that are named, then those that grow,
    then the cheapest; those on demand before spot of the same price."""
    w = case.state.workloads
    shapes = [shape for lot in case.lots for shape in w.class_at(lot.row).shapes]
    pools = [pool for pool in case.pools() if pool.scaling is not None and any(suits(pool, s) for s in shapes)]
    named = case.question.names("pool")

    def key(pool: PoolSpec) -> tuple[bool, bool, int, bool, str]:
        return pool.name not in named, not grows(pool), pool.price_microusd_hour, pool.spot, pool.name

    return sorted(pools, key=key)


def _nodes_for(case: Case, pool: PoolSpec) -> int:
    """Nodes of the pool that all that is late would take, beside what is free."""
    need = 0
    for lot in case.lots:
        for shape, tasks in zip(
            case.state.workloads.class_at(lot.row).shapes, case.state.workloads.class_at(lot.row).least, strict=True
        ):
            per_node = shape.most_on(pool)
            if per_node:
                need += -(-max(0, tasks * lot.count - case.state.capacity.slots(shape)) // per_node)
    return max(need, 1)


def pool_row(case: Case, pool: PoolSpec) -> int:
    return int(case.state.capacity.pool_of[pool.name])


def boot_ms(case: Case) -> int:
    """How long machines that come by themselves may take."""
    if not case.state.settings.autoscaling.enabled:
        return 0
    boots = [pool.scaling.boot_ms[1] for pool in growing(case) if pool.scaling is not None]
    return min(max(boots, default=0) + 2 * 60_000, MAX_AHEAD_MS) if boots else 0
