"""What the parameters of a runbook's step come to: the typed act of the catalogue, made for the cell as it is.

Quantities that are given as more or less are added to what there is after the steps before; times are from now on the
cell's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from engine import consolidation
from engine.errors import NotFoundError, RefusedError
from engine.model import FlavorQuota, QueueSpec, ReservationSpec
from engine.query import ConsolidationRequest
from runbooks import sizes
from runbooks.parameters import PARAMETERS
from runbooks.plan import (
    Act,
    ActionName,
    Canary,
    MoneyChange,
    Note,
    QueueChange,
    RequestChange,
    ScalingChange,
    WorkloadMove,
)

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.money import BudgetSpec

MICRO = 1_000_000
MILLI = 1_000
Given = Mapping[str, Any]
"""Parameter -> value: ids as a tuple where it takes several, durations in ms."""


class Maker:
    """Makes the acts of one run, in order: it remembers what the earlier ones change, as far as later ones build on
    it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queues: dict[str, QueueSpec] = {}
        self._budgets: dict[str, BudgetSpec] = {}
        self._nodes: dict[str, int] = {}
        """Pool -> nodes it shall have."""

    def act(self, action: ActionName, given: Given) -> Act:
        """Raises NotFoundError for what does not exist, and RefusedError for what cannot be made here, such as moves
        that nobody finds."""
        make = _MAKERS.get(action)
        if make is not None:
            return make(self, given)
        targets = next(given[name] for name, parameter in PARAMETERS[action].items() if parameter.target)
        return Act(action=action, targets=targets if isinstance(targets, tuple) else (targets,))

    def set_quota(self, given: Given) -> Act:
        name = given["queue"]
        was = self._queues.get(name) or self._engine.queue(name).spec
        changes: dict[str, Any] = {}
        if "pool" in given:
            of = next((flavor for flavor in was.flavors if flavor.pool == given["pool"]), None)
            if of is None:
                raise RefusedError(f"queue {name} has no quota of pool {given['pool']}", "See `muster get queues`")
            to = msgspec.structs.replace(of, **_quotas(name, of, given))
            changes["flavors"] = tuple(to if flavor is of else flavor for flavor in was.flavors)
        else:
            changes |= _quotas(name, was, given)
        for field in ("weight", "order"):
            if field in given:
                changes[field] = given[field]
        self._queues[name] = spec = msgspec.structs.replace(was, **changes)
        change = QueueChange(was=was, to=spec, over=given.get("over", "refuse"))
        return Act(action="set_quota", targets=(name,), queue=change)

    def reserve(self, given: Given) -> Act:
        start_ms = self._engine.now_ms + given.get("starts_in", 0)
        spec = ReservationSpec(
            name=given["name"], nodes=given["nodes"], queues=given.get("queues", ()), start_ms=start_ms,
            end_ms=start_ms + given["lasts"],
        )  # fmt: skip
        return Act(action="reserve", targets=(spec.name,), reservation=spec)

    def consolidate(self, given: Given) -> Act:
        """The moves are looked for now, on forks."""
        asked = ConsolidationRequest(
            unblock=given.get("unblock", ""), pool=given.get("pool", ""), free_nodes=given.get("free_nodes", 0),
            max_moves=given["max_moves"],
        )  # fmt: skip
        answer = consolidation.plan(self._engine, asked)
        found = answer.found
        if found is None or not found.worth_it or not found.moves:
            why = answer.why or "nothing needs to move"
            raise RefusedError(f"no moves are proposed: {why}", "See `muster fragmentation`; wait, or act otherwise")
        moves = tuple(
            WorkloadMove(id=move.id, was=tuple(sorted(at.node for at in move.was)), to=move.nodes)
            for move in found.moves
        )
        return Act(action="consolidate", targets=tuple(move.id for move in moves), moves=moves)

    def resize(self, given: Given) -> Act:
        request = {name: given[name] for name in ("cpu_milli", "memory_mib", "gpu_milli") if name in given}
        change = RequestChange(group=given.get("group", ""), request=request, evidence=given.get("evidence", ""))
        return Act(action="resize", targets=given["workloads"], resize=change)

    def set_price(self, given: Given) -> Act:
        money = MoneyChange(price_microusd_hour=given["microusd_hour"])
        return Act(action="set_price", targets=(given["pool"],), money=money)

    def set_budget(self, given: Given) -> Act:
        name = given["budget"]
        was = self._budgets.get(name) or self._budget(name)
        changes: dict[str, Any] = {}
        if "limit_usd" in given:
            changes["limit_microusd"] = given["limit_usd"] * MICRO
        elif "add_usd" in given:
            changes["limit_microusd"] = was.limit_microusd + given["add_usd"] * MICRO
        if "on_spent" in given:
            changes["action"] = given["on_spent"]
        if "warn_permille" in given:
            changes["warn_permille"] = given["warn_permille"]
        self._budgets[name] = msgspec.structs.replace(was, **changes)
        return Act(action="set_budget", targets=(name,), money=MoneyChange(budget=self._budgets[name]))

    def _budget(self, name: str) -> BudgetSpec:
        for line in self._engine.budgets().budgets:
            if line.spec.name == name:
                return line.spec
        raise NotFoundError(f"there is no budget '{name}'", "See `muster budgets`")

    def set_scaling(self, given: Given) -> Act:
        change = ScalingChange(**{field: given[field] for field in sizes.FIELDS if field in given})
        return Act(action="set_scaling", targets=(given["pool"],), scaling=change)

    def set_targets(self, given: Given) -> Act:
        """What is set already stays; within the window it is raised to so many nodes."""
        pool, nodes = given["pool"], given["nodes"]
        start_ms = self._engine.now_ms + given.get("starts_in", 0)
        end_ms = start_ms + given["lasts"]
        kept = next((size.set_for for size in self._engine.scaling().pools if size.pool == pool), ())

        def standing(at_ms: int) -> int:
            before = [count for since_ms, count in kept if since_ms <= at_ms]
            count = before[-1] if before else 0
            return max(count, nodes) if start_ms <= at_ms < end_ms else count

        targets: list[tuple[int, int]] = []
        for at_ms in sorted({start_ms, end_ms, *(at_ms for at_ms, _ in kept)}):
            if not targets or targets[-1][1] != standing(at_ms):
                targets.append((at_ms, standing(at_ms)))
        return Act(action="set_targets", targets=(pool,), scaling=ScalingChange(targets=tuple(targets)))

    def set_autoscaling(self, given: Given) -> Act:
        change = ScalingChange(preset=given["preset"])
        return Act(action="set_autoscaling", targets=(sizes.AUTOSCALER,), scaling=change)

    def scale_pool(self, given: Given) -> Act:
        pool = given["pool"]
        has = self._nodes.get(pool)
        if has is None:
            has = next(sizes.nodes_of(size) for size in self._engine.scaling().pools if size.pool == pool)
        nodes = given["nodes"] if "nodes" in given else has + given.get("add_nodes", 0) - given.get("remove_nodes", 0)
        if nodes < 0:
            raise RefusedError(f"pool {pool} has {has:,} nodes, fewer than are to go", "Take fewer")
        self._nodes[pool] = nodes
        return Act(action="scale_pool", targets=(pool,), nodes=nodes)

    def canary(self, given: Given) -> Act:
        fields = {name: given[name] for name in ("order", "policy", "worst_permille", "least_starts") if name in given}
        targets = given.get("queues", ()) if "order" in given else (self._engine.state.cell,)
        return Act(action="canary", targets=targets, canary=Canary(window_ms=given["window"], **fields))

    def move(self, given: Given) -> Act:
        return Act(action="move", targets=given["workloads"], to=given["to"])

    def set_priority(self, given: Given) -> Act:
        return Act(action="set_priority", targets=given["workloads"], to=given["to"])

    def set_qos(self, given: Given) -> Act:
        return Act(action="set_qos", targets=given["workloads"], to=given["to"])

    def set_job_priority(self, given: Given) -> Act:
        return Act(action="set_job_priority", targets=given["workloads"], to=str(given["to"]))

    def notify(self, given: Given) -> Act:
        return Act(action="notify", targets=given["channels"], note=Note(text=given["text"]))

    def open_review(self, given: Given) -> Act:
        return Act(action="open_review", targets=(given["about"],), note=Note(text=given["text"]))


def _quotas(queue: str, of: QueueSpec | FlavorQuota, given: Given) -> dict[str, Any]:
    """What changes of a quota, by the names of its fields."""
    changes: dict[str, Any] = {}
    for units, resource in (("gpus", "gpu_milli"), ("cpus", "cpu_milli")):
        to = _nominal(queue, of.nominal.get(resource), given, units)
        if to is not None:
            changes["nominal"] = {**changes.get("nominal", of.nominal), resource: to}
        for limit in ("borrowing_limit", "lending_limit"):
            if f"{limit}_{units}" in given:
                limits = changes.get(limit, getattr(of, limit))
                changes[limit] = {**limits, resource: given[f"{limit}_{units}"] * MILLI}
    return changes


def _nominal(queue: str, was: int | None, given: Given, units: str) -> int | None:
    """Nominal quota of one resource, in thousandths of it; None where nothing is said of it."""
    said = units.upper().replace("S", "s")
    if was is None and (f"add_{units}" in given or f"remove_{units}" in given):
        raise RefusedError(f"queue {queue} has no quota of {said} to change by a difference", "Give it one first")
    have = was or 0
    if f"nominal_{units}" in given:
        return int(given[f"nominal_{units}"]) * MILLI
    if f"add_{units}" in given:
        return have + int(given[f"add_{units}"]) * MILLI
    if f"remove_{units}" not in given:
        return None
    less = int(given[f"remove_{units}"])
    if have < less * MILLI:
        raise RefusedError(f"queue {queue} has a quota of {have // MILLI:,} {said}, less than {less:,}", "Take less")
    return have - less * MILLI


_MAKERS: Mapping[ActionName, Callable[[Maker, Given], Act]] = {
    "set_quota": Maker.set_quota,
    "reserve": Maker.reserve,
    "consolidate": Maker.consolidate,
    "resize": Maker.resize,
    "set_price": Maker.set_price,
    "set_budget": Maker.set_budget,
    "set_scaling": Maker.set_scaling,
    "set_targets": Maker.set_targets,
    "set_autoscaling": Maker.set_autoscaling,
    "scale_pool": Maker.scale_pool,
    "canary": Maker.canary,
    "move": Maker.move,
    "set_priority": Maker.set_priority,
    "set_qos": Maker.set_qos,
    "set_job_priority": Maker.set_job_priority,
    "notify": Maker.notify,
    "open_review": Maker.open_review,
}
"""Those whose act says more than its targets."""
