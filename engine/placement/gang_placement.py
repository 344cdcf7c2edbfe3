"""Gang placement: all tasks of all groups, or nothing.

`place` claims capacity as it goes and gives everything back when a task finds no node, so no half-placed gang exists
outside this function. On success the claims stand: the caller emits `Placed` in the same breath, or gives them back.

A gang that asks for a level of the topology goes where `engine.capacity.topology_domains` has room for it: a required
level holds it in one domain of that level, and a preferred one has it use as few of its domains as possible. Its claims
are in the order of the tree, so that neighbours in rank are neighbours in the network.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice, permutations

import numpy as np

from engine.capacity.index import NOWHERE, OPEN, Capacity
from engine.capacity.task_shapes import Shape
from engine.capacity.topology import Ints, TopologyTree
from engine.capacity.topology_domains import DomainChoice, DomainRoom, domain_room, levels_asked, pick, spans
from engine.model.events import GroupPlacement
from engine.model.specs import TopologyRequest
from engine.placement import node_choice
from engine.state import bulk_allocations
from engine.tables.columns import view

Claim = tuple[int, int, int, int]
"""(group, node row, tasks, device mask)"""
MAX_ORDERS = 6
"""Orders in which the groups of a gang are tried."""


def place(
    capacity: Capacity,
    shapes: tuple[Shape, ...],
    counts: tuple[int, ...],
    up_to: tuple[int, ...] | None = None,
    beside: int = NOWHERE,
) -> list[Claim] | None:
    """Claims for `counts[g]` tasks of `shapes[g]`, and for as many more as there is room for up to `up_to[g]`; or None
    with nothing claimed. `beside`: a node that the gang is on already, if it is.

    Groups are placed one after the other. Where that fails, groups of one gang may only be in each other's way: other
    orders are tried.
    """
    if shapes[0].topology is not None:
        return _place_close(capacity, shapes, counts, up_to or counts, shapes[0].topology, beside)
    for order in orders_of_groups(shapes):
        claims: list[Claim] = []
        if all(_place_group(capacity, group, shapes[group], counts[group], claims) for group in order):
            if up_to is not None and up_to != counts:
                for group in order:
                    _extend_group(capacity, group, shapes[group], up_to[group] - counts[group], claims)
                return _merged(shapes, claims)
            return claims
        unplace(capacity, shapes, claims)
        if not claims:
            # Its first group finds no room even alone, whatever the order.
            return None
    return None


def orders_of_groups(shapes: tuple[Shape, ...]) -> Iterator[tuple[int, ...]]:
    """Orders in which to place the groups of a gang. What asks for most devices, then most CPU, then has fewest pools
    to choose from, is hardest to place and goes first in the first of them."""
    hardest = sorted(range(len(shapes)), key=lambda g: (-shapes[g].gpu_milli, -shapes[g].cpu, len(shapes[g].pools), g))
    return islice(permutations(hardest), MAX_ORDERS)


def _place_group(capacity: Capacity, group: int, shape: Shape, left: int, claims: list[Claim]) -> bool:
    """Add claims for all the tasks; false when not all found room. Adds nothing when none did."""
    if not capacity.could_hold(shape, left):
        return False
    return _extend_group(capacity, group, shape, left, claims) == 0


def _extend_group(capacity: Capacity, group: int, shape: Shape, left: int, claims: list[Claim]) -> int:
    """Add claims for as many of `left` tasks as there is room for. Returns how many were left over."""
    if not node_choice.is_simple(capacity, shape):
        return node_choice.extend(capacity, group, shape, left, claims)
    while left:
        node = capacity.find(shape)
        if node == NOWHERE:
            break
        many = bulk_allocations.take_first(capacity, shape, node, left)
        if many is not None:
            nodes, tasks = many
            claims += [(group, n, t, 0) for n, t in zip(nodes.tolist(), tasks.tolist(), strict=True)]
            left -= int(tasks.sum())
            continue
        count = capacity.room(node, shape, left)
        claims.append((group, node, count, capacity.claim(node, shape, count)))
        left -= count
    return left


# -- close together ---------------------------------------------------------------------------------------------------


def _place_close(
    capacity: Capacity,
    shapes: tuple[Shape, ...],
    counts: tuple[int, ...],
    up_to: tuple[int, ...],
    request: TopologyRequest,
    beside: int,
) -> list[Claim] | None:
    known = domain_room(capacity)
    if beside != NOWHERE:
        return _place_beside(capacity, known, shapes, counts, up_to, request, beside)
    rooms = [known.rooms(capacity, shape) for shape in shapes]
    if len(shapes) == 1 and up_to != counts:
        # As many as fit where most do, but no more than asked for.
        required, _ = levels_asked(known.tree, request)
        up_to = (min(up_to[0], max(rooms[0].largest(required)[0], counts[0])),)
    for wanted in dict.fromkeys((up_to, counts)):
        for choice in spans(known.tree, rooms, wanted, request):
            claims = _place_in(capacity, known, shapes, wanted, choice)
            if claims is not None:
                if wanted != up_to:
                    claims = _extend_in(capacity, known, shapes, wanted, up_to, choice, claims)
                # One group's are in order already.
                return claims if len(shapes) == 1 else _in_rank_order(known.tree, claims)
    return None


def _place_in(
    capacity: Capacity, known: DomainRoom, shapes: tuple[Shape, ...], counts: tuple[int, ...], choice: DomainChoice
) -> list[Claim] | None:
    """Claims for all groups within the span, or None with nothing claimed."""
    for order in orders_of_groups(shapes):
        claims: list[Claim] = []
        if all(_claim_in(capacity, known, group, shapes[group], counts[group], choice, claims) for group in order):
            return claims
        unplace(capacity, shapes, claims)
    return None


def _claim_in(
    capacity: Capacity,
    known: DomainRoom,
    group: int,
    shape: Shape,
    count: int,
    choice: DomainChoice,
    claims: list[Claim],
) -> bool:
    """Add claims for tasks of one group within the span; False, and none added, when there is not room for all."""
    if not count:
        return True
    tree, rooms = known.tree, known.rooms(capacity, shape)
    low, high = choice.span
    room = rooms.by_position
    if int(room[low:high].sum()) < count:
        return False
    if shape.spread is not None:
        return not node_choice.spread_over(capacity, group, shape, count, claims, tree.rows[low:high], room[low:high])
    if len(shape.pools) + len(shape.booked) > 1:
        room = _of_liked_pools(capacity, tree, shape, room, choice, count)
    positions, tasks = pick(tree, room, choice, count)
    claims += _claim_many(capacity, group, shape, tree.rows[positions], tasks)
    return True


def _claim_many(capacity: Capacity, group: int, shape: Shape, rows: Ints, tasks: Ints) -> list[Claim]:
    """Claims for tasks of one group on different nodes that have room for them; parts of devices one at a time."""
    nodes, counts = rows.tolist(), tasks.tolist()
    if bulk_allocations.worth_it(shape, len(nodes)):
        bulk_allocations.shift_many(capacity, shape, rows, -tasks)
        return [(group, node, count, 0) for node, count in zip(nodes, counts, strict=True)]
    masks = bulk_allocations.take_all_devices(capacity, shape, rows, tasks)
    if masks is not None:
        return [(group, *claim) for claim in zip(nodes, counts, masks.tolist(), strict=True)]
    if shape.part:
        return [
            (group, node, 1, capacity.claim(node, shape, 1))
            for node, count in zip(nodes, counts, strict=True)
            for _ in range(count)
        ]
    return [(group, node, count, capacity.claim(node, shape, count)) for node, count in zip(nodes, counts, strict=True)]


def _of_liked_pools(
    capacity: Capacity, tree: TopologyTree, shape: Shape, room: Ints, choice: DomainChoice, count: int
) -> Ints:
    """The room within the span on kept nodes and those of the pools the shape likes best, as many as are enough."""
    low, high = choice.span
    rows = tree.rows[low:high]
    rank = np.zeros(len(capacity.pools), np.int64)
    rank[shape.pools] = np.arange(1, len(shape.pools) + 1)
    ranks = np.where(view(capacity.booking)[rows] == OPEN, rank[view(capacity.pool)[rows]], 0)
    reached = np.cumsum(np.bincount(ranks, weights=room[low:high], minlength=len(shape.pools) + 1))
    liked = np.zeros(len(room), np.int64)
    liked[low:high] = np.where(ranks <= np.searchsorted(reached, count), room[low:high], 0)
    return liked


def _extend_in(
    capacity: Capacity,
    known: DomainRoom,
    shapes: tuple[Shape, ...],
    counts: tuple[int, ...],
    up_to: tuple[int, ...],
    choice: DomainChoice,
    claims: list[Claim],
) -> list[Claim]:
    """The claims, and more of each group where the span has room."""
    for group, shape in enumerate(shapes):
        more = min(up_to[group] - counts[group], known.rooms(capacity, shape).total(choice.span))
        _claim_in(capacity, known, group, shape, more, choice, claims)
    return _merged(shapes, claims)


def _place_beside(
    capacity: Capacity,
    known: DomainRoom,
    shapes: tuple[Shape, ...],
    counts: tuple[int, ...],
    up_to: tuple[int, ...],
    request: TopologyRequest,
    beside: int,
) -> list[Claim] | None:
    """More tasks for a gang that is there: as near to it as there is room, and in its domain of the required level."""
    required, preferred = levels_asked(known.tree, request)
    claims: list[Claim] = []
    placed = [0] * len(shapes)
    for level in known.tree.wider(preferred, required):
        near, within = known.tree.around(level, beside), known.tree.around(required, beside)
        span = max(near[0], within[0]), min(near[1], within[1])
        choice = DomainChoice(span, known.tree.next_narrower(level))
        for group, shape in enumerate(shapes):
            more = min(up_to[group] - placed[group], known.rooms(capacity, shape).total(choice.span))
            if _claim_in(capacity, known, group, shape, more, choice, claims):
                placed[group] += more
    if any(have < least for have, least in zip(placed, counts, strict=True)):
        unplace(capacity, shapes, claims)
        return None
    return _in_rank_order(known.tree, _merged(shapes, claims))


def _in_rank_order(tree: TopologyTree, claims: list[Claim]) -> list[Claim]:
    """Group by group in the order of the tree."""
    return sorted(claims, key=lambda claim: (claim[0], tree.position[claim[1]], claim[3]))


def _merged(shapes: tuple[Shape, ...], claims: list[Claim]) -> list[Claim]:
    """The claims with one for each node that a group got twice. Parts of devices stay by themselves."""
    merged: list[Claim] = []
    at: dict[tuple[int, int], int] = {}
    for claim in claims:
        group, node, count, devices = claim
        before = len(merged) if shapes[group].part else at.setdefault((group, node), len(merged))
        if before == len(merged):
            merged.append(claim)
        else:
            merged[before] = (group, node, merged[before][2] + count, merged[before][3] | devices)
    return merged


def unplace(capacity: Capacity, shapes: tuple[Shape, ...], claims: list[Claim]) -> None:
    """Give claims back."""
    for group, shape in enumerate(shapes):
        mine = [claim for claim in claims if claim[0] == group]
        _, nodes, counts, masks = np.array(mine, np.int64).reshape(-1, 4).T
        if bulk_allocations.worth_shifting(shape, nodes):
            bulk_allocations.shift_many(capacity, shape, nodes, counts, masks)
        else:
            for _, node, count, devices in reversed(mine):
                capacity.give_back(node, shape, count, devices)


def packed(claims: list[Claim], groups: int) -> tuple[GroupPlacement, ...]:
    """The claims as an event carries them."""
    nodes = [array("i") for _ in range(groups)]
    counts = [array("i") for _ in range(groups)]
    devices = [array("q") for _ in range(groups)]
    for group in range(groups):
        mine = claims if groups == 1 else [claim for claim in claims if claim[0] == group]
        if mine:
            _, *columns = zip(*mine, strict=True)
            for column, values in zip((nodes[group], counts[group], devices[group]), columns, strict=True):
                column.extend(values)
    return tuple(
        GroupPlacement(n.tobytes(), c.tobytes(), d.tobytes() if any(d) else b"")
        for n, c, d in zip(nodes, counts, devices, strict=True)
    )
