"""Gang placement: all tasks of all groups, or nothing.

`place` claims capacity as it goes and gives everything back when a task finds no node, so no half-placed gang exists
outside this function. On success the claims stand: the caller emits `Placed` in the same breath, or gives them back.
"""

from __future__ import annotations

from array import array

import numpy as np

from engine import bulk
from engine.capacity import NOWHERE, Capacity
from engine.events import GroupPlacement
from engine.shape import Shape

Claim = tuple[int, int, int, int]
"""(group, node row, tasks, device mask)"""


def place(capacity: Capacity, shapes: tuple[Shape, ...], counts: tuple[int, ...]) -> list[Claim] | None:
    """Claims for `counts[g]` tasks of `shapes[g]`, or None with nothing claimed."""
    claims: list[Claim] = []
    # What asks for most devices, then most CPU, is hardest to place: first.
    order = sorted(range(len(shapes)), key=lambda g: (-shapes[g].gpu_milli, -shapes[g].cpu, g))
    for group in order:
        shape, left = shapes[group], counts[group]
        if not capacity.could_hold(shape, left):
            unplace(capacity, shapes, claims)
            return None
        while left:
            node = capacity.find(shape)
            if node == NOWHERE:
                unplace(capacity, shapes, claims)
                return None
            many = bulk.take_first(capacity, shape, node, left)
            if many is not None:
                nodes, tasks = many
                claims += [(group, n, t, 0) for n, t in zip(nodes.tolist(), tasks.tolist(), strict=True)]
                left -= int(tasks.sum())
                continue
            count = capacity.room(node, shape, left)
            claims.append((group, node, count, capacity.claim(node, shape, count)))
            left -= count
    return claims


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
