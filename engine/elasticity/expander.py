"""Which pool grows, where several would do: by priority, by what would lie idle, by price, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.model.autoscaling import Expander

MILLION = 1_000_000


class GrowthOption(NamedTuple):
    """New nodes of one pool, and the tasks that would go there."""

    pool: int
    priority: int
    nodes: int
    tasks: int
    waste_ppm: int
    """Part of the nodes that the tasks leave unused, the mean over the resources that they have."""
    microusd_hour: int
    """Of all the nodes together."""


_KEYS: dict[Expander, Callable[[GrowthOption], int]] = {
    "priority": lambda option: -option.priority,
    "least-waste": lambda option: option.waste_ppm,
    "price": lambda option: option.microusd_hour * MILLION // max(option.tasks, 1),
}


def choose(options: Sequence[GrowthOption], chain: Sequence[Expander]) -> int:
    """Index of the best: what needs no new node first, then as the chain says; of equal ones that of the oldest pool,
    and of one pool the first given. There must be one."""
    left = [at for at, option in enumerate(options) if not option.nodes] or list(range(len(options)))
    for name in chain:
        key = _KEYS[name]
        best = min(key(options[at]) for at in left)
        left = [at for at in left if key(options[at]) == best]
    return min(left, key=lambda at: (options[at].pool, at))


def waste_ppm(used: Sequence[int], size: Sequence[int], nodes: int) -> int:
    """Unused part of so many nodes of that size, in parts per million: the mean over the resources that they have.
    `used` may exceed them where tasks went to older nodes as well."""
    parts = [
        max(0, MILLION - quantity * MILLION // (have * nodes))
        for quantity, have in zip(used, size, strict=True)
        if have and nodes
    ]
    return sum(parts) // len(parts) if parts else 0
