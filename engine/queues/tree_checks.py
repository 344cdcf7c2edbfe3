"""The check of queue specs: names, quotas, bursts and the tree they make."""

from __future__ import annotations

from engine.model.errors import SpecError
from engine.model.specs import RESOURCES, BurstSpec, QueueSpec, check_id, check_quantity
from engine.queues.tree import QueueTree


def check_queues(new: tuple[QueueSpec, ...], known: dict[str, int], busy: set[str]) -> list[QueueSpec]:
    """The new queues, parents first. `busy` names queues that hold workloads and so cannot become parents.

    Raises SpecError for bad fields, a parent that is nowhere, and cycles.
    """
    by_name: dict[str, QueueSpec] = {}
    for i, spec in enumerate(new):
        at = f"queues[{i}]"
        check_id(spec.name, f"{at}.name")
        if spec.name in known or spec.name in by_name:
            raise SpecError(f"{at}.name", f"queue '{spec.name}' is there already", "Give each queue its own name")
        _check_fields(spec, at)
        by_name[spec.name] = spec
    for i, spec in enumerate(new):
        at = f"queues[{i}].parent"
        if spec.parent and spec.parent not in by_name and spec.parent not in known:
            raise SpecError(at, f"there is no queue '{spec.parent}'", "Define the parent too, or leave it empty")
        if spec.parent in busy:
            raise SpecError(
                at, f"queue '{spec.parent}' holds workloads", "Only a queue without workloads can be a parent"
            )
    return _parents_first(by_name)


def check_change(tree: QueueTree, spec: QueueSpec) -> None:
    """Whether the queue of that name can have this spec. Raises NotFoundError, or SpecError for bad fields and for
    another parent."""
    present = tree.specs[tree.row(spec.name)]
    if spec.parent != present.parent:
        raise SpecError(
            "queue.parent",
            f"queue '{spec.name}' is below {present.parent or 'no other'} and cannot be moved",
            "Keep its parent, or define a new queue there",
        )
    _check_fields(spec, "queue")


def _check_fields(spec: QueueSpec, at: str) -> None:
    check_quantity(spec.weight, f"{at}.weight", least=1, most=1_000_000)
    check_quantity(spec.min_runtime_ms, f"{at}.min_runtime_ms")
    check_quantity(spec.disruptions, f"{at}.disruptions", least=-1)
    check_quantity(spec.disruption_window_ms, f"{at}.disruption_window_ms", least=1)
    check_quantity(spec.start_within_ms, f"{at}.start_within_ms")
    check_quantity(spec.objective_permille, f"{at}.objective_permille", least=1, most=999)
    _check_quota(spec, spec.nominal, spec.borrowing_limit, spec.lending_limit, at)
    pools: set[str] = set()
    for i, flavor in enumerate(spec.flavors):
        where = f"{at}.flavors[{i}]"
        check_id(flavor.pool, f"{where}.pool")
        if flavor.pool in pools:
            raise SpecError(f"{where}.pool", f"pool '{flavor.pool}' is named twice", "Name each pool once")
        pools.add(flavor.pool)
        _check_quota(spec, flavor.nominal, flavor.borrowing_limit, flavor.lending_limit, where)
    if spec.burst is not None:
        _check_burst(spec, spec.burst, f"{at}.burst")


def _check_quota(
    spec: QueueSpec, nominal: dict[str, int], borrowing: dict[str, int], lending: dict[str, int], at: str
) -> None:
    for field, given in (("nominal", nominal), ("borrowing_limit", borrowing), ("lending_limit", lending)):
        _check_quantities(given, f"{at}.{field}")
    if not spec.parent:
        for field, given, direction in (("borrowing_limit", borrowing, "from"), ("lending_limit", lending, "to")):
            if given:
                raise SpecError(
                    f"{at}.{field}",
                    f"queue '{spec.name}' has no cohort to {'borrow' if direction == 'from' else 'lend'} {direction}",
                    "Give it a parent, or leave the limit out",
                )


def _check_burst(spec: QueueSpec, burst: BurstSpec, at: str) -> None:
    check_quantity(burst.window_ms, f"{at}.window_ms", least=1)
    check_quantity(burst.cooldown_ms, f"{at}.cooldown_ms", least=1)
    if not burst.limit:
        raise SpecError(
            f"{at}.limit", "is empty", "Say how much of which resource the queue may use, or leave burst out"
        )
    _check_quantities(burst.limit, f"{at}.limit")
    for resource, limit in burst.limit.items():
        if spec.parent and resource not in spec.borrowing_limit:
            raise SpecError(
                f"{at}.limit.{resource}",
                f"queue '{spec.name}' borrows {resource} without limit, so there is nothing beyond",
                f"Give borrowing_limit.{resource} too; 0 to burst from the nominal quota",
            )
        least = spec.nominal.get(resource, 0) + spec.borrowing_limit.get(resource, 0)
        if limit < least:
            raise SpecError(
                f"{at}.limit.{resource}",
                f"{limit} is below nominal quota and borrowing limit together, {least}",
                f"Give at least {least}",
            )


def _check_quantities(given: dict[str, int], at: str) -> None:
    for resource, quantity in given.items():
        if resource not in RESOURCES:
            raise SpecError(at, f"unknown resource '{resource}'", f"Use: {', '.join(RESOURCES)}")
        check_quantity(quantity, f"{at}.{resource}")


def _parents_first(by_name: dict[str, QueueSpec]) -> list[QueueSpec]:
    ordered: list[QueueSpec] = []
    placed: set[str] = set()
    for start in by_name.values():
        chain: list[QueueSpec] = []
        at = start
        while at.name not in placed:
            if at in chain:
                loop = " -> ".join([spec.name for spec in chain[chain.index(at) :]] + [at.name])
                raise SpecError("queues", f"the queue tree has a cycle: {loop}", "Make one of them a root")
            chain.append(at)
            if at.parent not in by_name:
                break
            at = by_name[at.parent]
        for spec in reversed(chain):
            placed.add(spec.name)
            ordered.append(spec)
    return ordered
