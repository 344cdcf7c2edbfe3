"""What lets work start that waits for quota: to borrow more, of what siblings lend; to be lent more; more quota of its
own; or some of an idle sibling's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engine.model.specs import RESOURCES, FlavorQuota, QueueSpec
from engine.queues.tree import Lack
from runbooks.drafts.rules.solver import Case, DraftOption, Family


def more_quota(case: Case) -> Iterator[Family]:
    """To borrow more, of what siblings lend; to be lent more; more of its own; or some of an idle sibling's."""
    lack = case.lack(case.first)
    tree = case.state.queues
    if lack is None:
        return
    pool, resource = tree.named_slot(lack.slot)
    units = {"gpu_milli": "gpus", "cpu_milli": "cpus"}.get(resource, "")
    queue = case.symptom.subject
    own = tree.specs[tree.row(queue)]
    there = case.free(resource) if not pool else _free_of(case, pool, resource)
    most = min(case.wanted(resource), max(there, 0)) // 1000
    if units and most >= 1:
        low = max(1, min(-(-lack.short // 1000), most))
        free = tree.available(tree.row(queue), lack.slot, case.scene.now_ms)
        enough = -(-(case.wanted(resource) - max(free, 0)) // 1000)
        for way in quota_ways(case, lack, own, pool, resource, units):
            if way is not None:
                yield Family(low, most, way, 0, enough)


def quota_ways(
    case: Case, lack: Lack, own: QueueSpec, pool: str, resource: str, units: str
) -> list[Callable[[int], DraftOption] | None]:
    """Mildest first. Of the quota of one pool only what the queue itself has."""
    at = case.state.queues.specs[lack.vertex]
    if pool:
        return [borrow(at, pool, resource, units), nominal(case, own, pool, resource, units)]
    idle = idle_siblings(case, own, resource)
    return [
        borrow(at, "", resource, units), lend(idle, resource, units), nominal(case, own, "", resource, units),
        rebalance(own, idle, resource, units),
    ]  # fmt: skip


def _free_of(case: Case, pool: str, resource: str) -> int:
    found = case.scene.pools.get(pool)
    return 0 if found is None else found.capacity[resource] - found.used[resource]


def quota_of(spec: QueueSpec, pool: str) -> QueueSpec | FlavorQuota:
    """Its quota of all pools together, or of one; empty where it names none."""
    if not pool:
        return spec
    return next((flavor for flavor in spec.flavors if flavor.pool == pool), FlavorQuota(pool=pool))


def idle_siblings(case: Case, own: QueueSpec, resource: str) -> list[tuple[QueueSpec, int]]:
    """(queue, quota of its own that it does not use) under the same parent where nothing waits; most first."""
    tree, slot = case.state.queues, RESOURCES.index(resource)
    found = []
    for row, spec in enumerate(tree.specs):
        if spec.parent != own.parent or spec.name == own.name or resource not in spec.nominal:
            continue
        spare = spec.nominal[resource] - tree.used_vector(row)[slot]
        if spare >= 1000 and not case.scene.queue_lots(spec.name):
            found.append((spec, spare))
    return sorted(found, key=lambda item: (-item[1], item[0].name))


def borrow(spec: QueueSpec, pool: str, resource: str, units: str) -> Callable[[int], DraftOption] | None:
    """Raise the limit of borrowing of whoever it is that keeps it from that."""
    limit = quota_of(spec, pool).borrowing_limit.get(resource)
    if limit is None:
        return None
    word = units.removesuffix("s").upper()
    of = {"pool": pool} if pool else {}

    def option(more: int) -> DraftOption:
        to = limit // 1000 + more
        return DraftOption(
            text=f"let queue {spec.name} borrow {to:,} {word}, {more:,} more",
            steps=(("set_quota", {"queue": spec.name, **of, f"borrowing_limit_{units}": to}),),
            harms="What is borrowed is stopped first when its owners want it back.",
        )

    return option


def lend(idle: list[tuple[QueueSpec, int]], resource: str, units: str) -> Callable[[int], DraftOption] | None:
    """Raise what the idle sibling lends that has most to lend and does not."""
    lender = next(((s, spare) for s, spare in idle if s.lending_limit.get(resource, spare) < spare), None)
    if lender is None:
        return None
    spec, spare = lender
    word, had = units.removesuffix("s").upper(), spec.lending_limit[resource]

    def option(more: int) -> DraftOption:
        to = min(had + more * 1000, spare) // 1000
        return DraftOption(
            text=f"let queue {spec.name}, which does not use it, lend {to:,} {word}",
            steps=(("set_quota", {"queue": spec.name, f"lending_limit_{units}": to}),),
            harms=f"Queue {spec.name} has to take back what it lent when its own work comes.",
        )

    return option


def nominal(case: Case, spec: QueueSpec, pool: str, resource: str, units: str) -> Callable[[int], DraftOption] | None:
    if resource not in quota_of(spec, pool).nominal:
        return None
    of = {"pool": pool} if pool else {}
    word = units.removesuffix("s").upper()
    pools = [pool.name for pool in case.pools() if pool.capacity.gpu_milli]
    late_s = min(1_800_000, case.first.wait_ms - 60_000) // 1000

    def option(more: int) -> DraftOption:
        by_runbook = units == "gpus" and not pool and pools and more <= 512 and late_s >= 60
        return DraftOption(
            text=f"raise the quota of queue {spec.name} by {more:,} {word}",
            steps=(("set_quota", {"queue": spec.name, **of, f"add_{units}": more}),),
            runbook="queue-wait-over-slo" if by_runbook else "",
            inputs={"queue": spec.name, "pool": pools[0] if pools else "", "gpus": str(more), "slo": f"{late_s}s"},
            harms="The quotas are more than before in sum: somebody may miss tomorrow what is free tonight.",
        )

    return option


def rebalance(
    own: QueueSpec, idle: list[tuple[QueueSpec, int]], resource: str, units: str
) -> Callable[[int], DraftOption] | None:
    """From the idle sibling with most to spare to its own."""
    if not idle or resource not in own.nominal:
        return None
    donor, spare = idle[0]
    word = units.removesuffix("s").upper()

    def option(more: int) -> DraftOption:
        moved = min(more, spare // 1000)
        keeps, has = donor.nominal[resource] // 1000 - moved, own.nominal[resource] // 1000 + moved
        whole_numbers = donor.nominal[resource] % 1000 == 0 == own.nominal[resource] % 1000
        return DraftOption(
            text=f"move {moved:,} {word} of quota from queue {donor.name}, which does not use it, to {own.name}",
            steps=(
                ("set_quota", {"queue": donor.name, f"nominal_{units}": keeps}),
                ("set_quota", {"queue": own.name, f"nominal_{units}": has}),
            ),
            runbook="quota-rebalance" if units == "gpus" and whole_numbers else "",
            inputs={
                "donor": donor.name, "donor_gpus": str(keeps), "receiver": own.name, "receiver_gpus": str(has),
            },
            harms=f"Queue {donor.name} waits where it used to start at once, until this is taken back.",
        )  # fmt: skip

    return option
