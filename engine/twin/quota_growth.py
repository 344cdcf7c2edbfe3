"""Nominal quota that a queue would need more for waiting work, in the steps in which people give it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from engine.model import commands as cmd
from engine.model.specs import FlavorQuota, QueueSpec
from engine.placement.gang_placement import variants
from engine.reads.quota_reasons import amount
from engine.state.cell_state import State
from engine.state.queue_tree import Lack, QueueTree

DEVICE = 1000
"""Milli-GPU of a whole device."""
STEPS = (1000, 1024, DEVICE, 1024)
"""In the order of RESOURCES: whole CPUs, GiB and devices."""


class QuotaGrowth:
    """What was added so far. It grows when others took what was meant for the work."""

    def __init__(self) -> None:
        self._added: dict[tuple[int, int], int] = {}
        """(vertex, slot) -> quantity."""
        self._tree: QueueTree | None = None

    def admit(self, state: State, rows: Sequence[int]) -> bool:
        """Add what lacks before these workloads may all be charged, given what is charged in the state. False when
        nothing lacks, or when it cannot be given."""
        tree = self._tree = state.queues.copy()
        before = sum(self._added.values())
        w = state.workloads
        alike = Counter((w.queue[row], w.cls[row]) for row in rows)
        first = {(w.queue[row], w.cls[row]): row for row in reversed(rows)}
        for (queue, cls), count in alike.items():
            row = first[queue, cls]
            shapes = next(variants(state, row), None)
            if shapes is None:
                return False
            charge = state.charge_if(row, shapes, w.class_at(row).least)
            every = tuple((slot, quantity * count) for slot, quantity in charge)
            while (lack := tree.lack(queue, every, state.now_ms)) is not None:
                if not self._raise(tree, queue, lack):
                    return False
            tree.charge(queue, every, state.now_ms, workloads=count)
        return sum(self._added.values()) > before

    def change(self) -> tuple[str, tuple[cmd.AnyCommand, ...]]:
        """(in words, the commands)"""
        assert self._tree is not None, "nothing was asked for"
        specs = {vertex: self._tree.specs[vertex] for vertex, _ in self._added}
        edits = tuple(cmd.ChangeQueue(queue=spec, over="keep") for spec in specs.values())
        return " and ".join(self._text(vertex, spec.name) for vertex, spec in specs.items()), edits

    def _text(self, vertex: int, name: str) -> str:
        assert self._tree is not None
        by_pool: dict[str, list[str]] = {}
        for (at, slot), more in self._added.items():
            if at == vertex:
                by_pool.setdefault(self._tree.named_slot(slot)[0], []).append(amount(slot, more))
        parts = [
            f"{' and '.join(each)} more nominal quota{f' in pool {pool}' * bool(pool)}"
            for pool, each in by_pool.items()
        ]
        return f"{' and '.join(parts)} in queue {name}"

    def _raise(self, tree: QueueTree, queue: int, lack: Lack) -> bool:
        """Give its own queue what lacks; of a pool that it does not name, the vertex that refuses."""
        pool, _ = tree.named_slot(lack.slot)
        vertex = queue if not pool or pool in tree.flavors_of(queue) else lack.vertex
        if not _may_name(tree, vertex, lack.slot):
            return False
        step = STEPS[lack.slot % len(STEPS)]
        more = -(-lack.short // step) * step
        self._added[vertex, lack.slot] = self._added.get((vertex, lack.slot), 0) + more
        tree.change(_with_more(tree, vertex, lack.slot, more))
        return True


def _may_name(tree: QueueTree, vertex: int, slot: int) -> bool:
    """True if the vertex may be given quota of the slot's pool. A queue that names no pools takes any; the first it
    names would close the others to it.
    """
    pool, _ = tree.named_slot(slot)
    return not pool or pool in tree.flavors_of(vertex) or bool(tree.children[vertex])


def _with_more(tree: QueueTree, vertex: int, slot: int, more: int) -> QueueSpec:
    """The spec of the vertex with more nominal quota in one slot."""
    spec: QueueSpec = tree.specs[vertex]
    pool, resource = tree.named_slot(slot)
    if pool:
        flavors = list(spec.flavors)
        at = next((i for i, flavor in enumerate(flavors) if flavor.pool == pool), len(flavors))
        if at == len(flavors):
            flavors.append(FlavorQuota(pool=pool))
        flavors[at] = msgspec.structs.replace(flavors[at], nominal=_plus(flavors[at].nominal, resource, more))
        return msgspec.structs.replace(spec, flavors=tuple(flavors))
    nominal, burst = _plus(spec.nominal, resource, more), spec.burst
    if burst is not None and resource in burst.limit:
        # A burst limit below nominal quota and borrowing limit together is refused.
        burst = msgspec.structs.replace(burst, limit=_plus(burst.limit, resource, more))
    return msgspec.structs.replace(spec, nominal=nominal, burst=burst)


def _plus(given: dict[str, int], resource: str, more: int) -> dict[str, int]:
    return given | {resource: given.get(resource, 0) + more}
