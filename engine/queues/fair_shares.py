"""Who goes first among queues: hierarchical, weighted dominant-resource fairness.

A queue's share is that of its dominant resource, the one of which it holds the largest part of the cell (DRF: Ghodsi et
al., NSDI 2011), divided by its weight. What is within its quota costs nothing, as in Kueue; where a tree has quotas,
only the resources they are of count. In a tree, siblings are
compared with each other at every level, from the roots down (Bhattacharya et al., SoCC 2013): the queue with the
smallest key goes next, and a subtree gets no more for having many queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from engine.model.queries import BurstReport, VertexReport
from engine.queues.tree import NO_LIMIT, UNLIMITED, WIDTH, QueueTree, Vector

BILLION = 10**9


def share(tree: QueueTree, vertex: int, totals: Vector, now_ms: int, *, past: bool = False) -> int:
    """Weighted dominant share in parts per billion of the cell, whose capacity is `totals`.

    With `past`, use is the mean of what the vertex draws now and its average draw before: a start still counts at once,
    and of two that draw the same now, the one that drew less before goes first.
    """
    at = vertex * tree.slots
    draw = tree.drawn[at : at + WIDTH]
    if not past:
        return _weighted_dominant(tree, vertex, draw, totals)
    both = [now + before for now, before in zip(draw, tree.average_use(vertex, now_ms), strict=True)]
    return _weighted_dominant(tree, vertex, both, totals, parts=2)


def _weighted_dominant(tree: QueueTree, vertex: int, use: Sequence[int], totals: Vector, parts: int = 1) -> int:
    """The share of a use given as the sum of `parts` uses, whose mean counts."""
    quota, at, limited = tree.quota, vertex * tree.slots, tree.limited[vertex]
    largest = 0
    for i, total in enumerate(totals):
        excess = use[i] - quota[at + i] * parts
        if excess > 0 and total and (not limited or limited >> i & 1):
            largest = max(largest, excess * BILLION // (total * parts))
    weight: int = tree.specs[vertex].weight
    return largest // weight


def order_key(tree: QueueTree, queue: int, totals: Vector, now_ms: int, *, past: bool = False) -> tuple[int, ...]:
    """Shares from the queue's root down to the queue. The queue with the smallest key goes first."""
    return tuple([share(tree, vertex, totals, now_ms, past=past) for vertex in reversed(tree.path[queue])])


class Shares:
    """What `share` says of each vertex at one time, reckoned when first asked for and again after `changed`."""

    def __init__(self, tree: QueueTree, totals: Vector, now_ms: int, *, past: bool = False) -> None:
        self._tree = tree
        self._totals = totals
        self._now_ms = now_ms
        self._past = past
        self._share: list[int] = [UNKNOWN] * len(tree.specs)
        self._scales: dict[int, tuple[tuple[int, int, int], ...]] = {}
        """Vertex -> (index of its draw, what of it costs nothing, capacity) of each resource that counts."""

    def of(self, vertex: int) -> int:
        """The share in parts per billion."""
        found: int = self._share[vertex]
        if found != UNKNOWN:
            return found
        scale = self._scales.get(vertex)
        if scale is None:
            scale = self._scales[vertex] = self._scale(vertex)
        drawn = self._tree.drawn
        largest = 0
        for at, free, total in scale:
            excess = drawn[at] - free
            if excess > 0:
                part = excess * BILLION // total
                if part > largest:
                    largest = part
        found = largest // self._tree.specs[vertex].weight
        self._share[vertex] = found
        return found

    def changed(self, path: Iterable[int]) -> None:
        """What these vertices draw has changed."""
        for vertex in path:
            self._share[vertex] = UNKNOWN

    def _scale(self, vertex: int) -> tuple[tuple[int, int, int], ...]:
        tree = self._tree
        limited, at = tree.limited[vertex], vertex * tree.slots
        # Past use does not change while time stands still: of the sum of both it is a part that is always there.
        past = tree.average_use(vertex, self._now_ms) if self._past else (0,) * WIDTH
        parts = 2 if self._past else 1
        return tuple(
            (at + i, tree.quota[at + i] * parts - past[i], total * parts)
            for i, total in enumerate(self._totals)
            if total and (not limited or limited >> i & 1)
        )


UNKNOWN = -1


# -- what each deserves -----------------------------------------------------------------------------------------------


def deserved(tree: QueueTree, totals: Vector, demand: Sequence[Vector]) -> list[Vector]:
    """What each vertex would hold if the cell were divided afresh, resource by resource.

    At every level each vertex first gets what it wants within its quota, then the rest is divided by weight among those
    that want more. `demand` has what each leaf uses and waits for; a vertex wants no more than it may borrow.
    """
    columns = [_divided(tree, i, totals[i], [vector[i] for vector in demand]) for i in range(WIDTH)]
    return list(zip(*columns, strict=True)) if tree.specs else []


def _divided(tree: QueueTree, resource: int, total: int, demand: list[int]) -> list[int]:
    """One resource of every vertex."""
    rows = range(len(tree.specs))
    wanted = [0 if tree.children[row] else demand[row] for row in rows]
    for row in reversed(rows):
        at = row * tree.slots + resource
        wanted[row] += sum(wanted[child] for child in tree.children[row])
        if tree.ceiling[at] != NO_LIMIT:
            wanted[row] = min(wanted[row], tree.ceiling[at] - tree.quota[at] + tree.subtree_nominal[at])
    got = [0] * len(rows)
    _divide(tree, resource, total, [row for row in rows if not tree.specs[row].parent], wanted, got)
    for row in rows:
        _divide(tree, resource, got[row], tree.children[row], wanted, got)
    return got


def _divide(
    tree: QueueTree, resource: int, amount: int, siblings: list[int], wanted: list[int], got: list[int]
) -> None:
    weights = [tree.specs[row].weight for row in siblings]
    within = [min(wanted[row], tree.subtree_nominal[row * tree.slots + resource]) for row in siblings]
    first = water_filling(amount, within, weights)
    rest = [wanted[row] - quantity for row, quantity in zip(siblings, first, strict=True)]
    second = water_filling(amount - sum(first), rest, weights)
    for row, a, b in zip(siblings, first, second, strict=True):
        got[row] = a + b


def water_filling(amount: int, wanted: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Weighted max-min division: nobody gets more than wanted, and who gets less has as much for its weight as any.

    Whole units: what is left after rounding goes to the first in order, one each.
    """
    got = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda i: (Fraction(wanted[i], weights[i]), i))
    weight = sum(weights)
    full = 0
    for i in order:
        if wanted[i] * weight > amount * weights[i]:
            break
        got[i] = wanted[i]
        amount -= wanted[i]
        weight -= weights[i]
        full += 1
    short = sorted(order[full:])
    for i in short:
        got[i] = amount * weights[i] // weight
    for i in short[: amount - sum(got[i] for i in short)]:
        got[i] += 1
    return got


# -- the report -------------------------------------------------------------------------------------------------------


def report(tree: QueueTree, totals: Vector, demand: Sequence[Vector], now_ms: int) -> list[VertexReport]:
    """All vertices in creation order. `totals` and `demand` as in `deserved`."""
    deserves = deserved(tree, totals, demand)
    lent = _lent(tree)
    return [
        VertexReport(
            name=spec.name,
            parent=spec.parent,
            weight=spec.weight,
            used=_named(tree, enumerate(tree.used[row * tree.slots : (row + 1) * tree.slots])),
            guaranteed={
                _key(tree, slot): tree.guaranteed(row, slot)
                for slot in range(tree.slots)
                if tree.nominal_at(row, slot) != UNLIMITED
            },
            borrowed=_named(tree, ((slot, tree.borrowed(row, slot)) for slot in range(tree.slots))),
            lent=_named(tree, lent[row].items()),
            burst=_burst(tree, row, now_ms),
            share_ppb=share(tree, row, totals, now_ms),
            past_share_ppb=_weighted_dominant(tree, row, tree.average_use(row, now_ms), totals),
            deserved=_named(tree, enumerate(deserves[row])),
        )
        for row, spec in enumerate(tree.specs)
    ]


def above_quota(tree: QueueTree) -> tuple[list[int], list[int]]:
    """(what the queues that take work draw above their quotas, what of it is in a burst), in the order of RESOURCES.
    Where only single pools have quotas, what is above those."""
    borrowed, bursting = [0] * WIDTH, [0] * WIDTH
    for row, children in enumerate(tree.children):
        if children:
            continue
        excess = tree.burst_excess(row)
        for resource in range(WIDTH):
            whole = (resource,) if tree.limited[row] >> resource & 1 else range(resource, tree.slots, WIDTH)
            borrowed[resource] += sum(tree.borrowed(row, slot) for slot in whole)
            bursting[resource] += sum(excess.get(slot, 0) for slot in whole)
    return borrowed, bursting


def _key(tree: QueueTree, slot: int) -> str:
    pool, resource = tree.named_slot(slot)
    return f"{pool}/{resource}" if pool else resource


def _named(tree: QueueTree, quantities: Iterable[tuple[int, int]]) -> dict[str, int]:
    return {_key(tree, slot): quantity for slot, quantity in quantities if quantity}


def _burst(tree: QueueTree, row: int, now_ms: int) -> BurstReport | None:
    burst = tree.specs[row].burst
    if burst is None:
        return None
    state = tree.burst_state(row, now_ms)
    ends = tree.burst_since[row] + burst.window_ms + (burst.cooldown_ms if state == "cooldown" else 0)
    return BurstReport(
        state=state,
        ends_in_ms=0 if state == "idle" else ends - now_ms,
        excess=_named(tree, tree.burst_excess(row).items()),
    )


def _lent(tree: QueueTree) -> list[dict[int, int]]:
    """For each vertex: slot -> what its siblings use of its idle quota."""
    lent: list[dict[int, int]] = [{} for _ in tree.specs]
    for parent, children in enumerate(tree.children):
        for slot in range(tree.slots):
            if tree.nominal_at(parent, slot) == UNLIMITED:
                continue
            at = [child * tree.slots + slot for child in children]
            idle = [max(0, tree.quota[i] - max(tree.drawn[i], tree.local[i])) for i in at]
            borrowed = sum(tree.borrowed(child, slot) for child in children)
            from_siblings = min(sum(idle), max(0, borrowed - tree.nominal_at(parent, slot)))
            if from_siblings:
                passed = 0
                for child, quantity in zip(children, idle, strict=True):
                    before = from_siblings * passed // sum(idle)
                    passed += quantity
                    lent[child][slot] = from_siblings * passed // sum(idle) - before
    return lent
