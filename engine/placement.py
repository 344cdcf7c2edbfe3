"""Gang placement: all tasks of all groups, or nothing.

`place` claims capacity as it goes and gives everything back when a task finds no node, so no half-placed gang exists
outside this function. On success the claims stand: the caller emits `Placed` in the same breath, or gives them back.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice, permutations

import numpy as np

from engine import bulk
from engine.capacity import NOWHERE, Capacity
from engine.events import GroupPlacement
from engine.shape import Shape

Claim = tuple[int, int, int, int]
"""(group, node row, tasks, device mask)"""
MOST_ORDERS = 6
"""Orders in which the groups of a gang are tried."""


def place(
    capacity: Capacity, shapes: tuple[Shape, ...], counts: tuple[int, ...], up_to: tuple[int, ...] | None = None
) -> list[Claim] | None:
    """Claims for `counts[g]` tasks of `shapes[g]`, and for as many more as there is room for up to `up_to[g]`; or None
    with nothing claimed.

    Groups are placed one after the other. Where that fails, groups of one gang may only be in each other's way: other
    orders are tried.
    """
    for order in orders_of_groups(shapes):
        claims: list[Claim] = []
        if all(_place_group(capacity, group, shapes[group], counts[group], claims) for group in order):
            if up_to is not None and up_to != counts:
                for group in order:
                    _extend_group(capacity, group, shapes[group], up_to[group] - counts[group], claims)
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
    return islice(permutations(hardest), MOST_ORDERS)


def _place_group(capacity: Capacity, group: int, shape: Shape, left: int, claims: list[Claim]) -> bool:
    """Add claims for all the tasks; false when not all found room. Adds nothing when none did."""
    if not capacity.could_hold(shape, left):
        return False
    return _extend_group(capacity, group, shape, left, claims) == 0


def _extend_group(capacity: Capacity, group: int, shape: Shape, left: int, claims: list[Claim]) -> int:
    """Add claims for as many of `left` tasks as there is room for. Returns how many were left over."""
    while left:
        node = capacity.find(shape)
        if node == NOWHERE:
            break
        many = bulk.take_first(capacity, shape, node, left)
        if many is not None:
            nodes, tasks = many
            claims += [(group, n, t, 0) for n, t in zip(nodes.tolist(), tasks.tolist(), strict=True)]
            left -= int(tasks.sum())
            continue
        count = capacity.room(node, shape, left)
        claims.append((group, node, count, capacity.claim(node, shape, count)))
        left -= count
    return left


def unplace(capacity: Capacity, shapes: tuple[Shape, ...], claims: list[Claim]) -> None:
    """Give claims back."""
    for group, shape in enumerate(shapes):
        mine = [claim for claim in claims if claim[0] == group]
        if bulk.worth_it(shape, len(mine)):
            _, nodes, counts, _ = np.array(mine, np.int64).T
            bulk.shift_many(capacity, shape, nodes, counts)
        else:
            for _, node, count, devices in reversed(mine):
                capacity.give_back(node, shape, count, devices)


def packed(claims: list[Claim], groups: int) -> tuple[GroupPlacement, ...]:
    """The claims as an event carries them."""
    nodes = [array("i") for _ in range(groups)]
    counts = [array("i") for _ in range(groups)]
    devices = [array("q") for _ in range(groups)]
    for group, node, count, mask in claims:
        nodes[group].append(node)
        counts[group].append(count)
        devices[group].append(mask)
    return tuple(
        GroupPlacement(n.tobytes(), c.tobytes(), d.tobytes() if any(d) else b"")
        for n, c, d in zip(nodes, counts, devices, strict=True)
    )
