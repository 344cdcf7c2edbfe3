"""What is remembered of how large growing pools ought to be: what was asked of them hour by hour, what people have set
for times to come, and since when nodes are hardly used."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from engine.model.base import HOUR_MS
from engine.model.demand_forecast import KEPT, Series
from engine.tables.columns import Table, view

NEEDED = -1
"""Of a node that is used enough."""


class PoolSizing(Table):
    """By pool row where not said otherwise."""

    columns = ("demand", "last_hour", "targets", "unneeded")

    def __init__(self) -> None:
        self.demand: dict[int, list[int]] = {}
        """The most that was asked for in each hour, in nodes, oldest first; at most KEPT hours."""
        self.last_hour: dict[int, int] = {}
        """Hour of cell time of the last entry of `demand`."""
        self.targets: dict[int, list[Any]] = {}
        """(cell ms, nodes): from then on the pool has at least so many, until the next. Ascending."""
        self.unneeded = array("q")
        """By node row: cell time since which it is used so little that it may go; NEEDED. Rows beyond the end are."""
        self.derive()

    def derive(self) -> None:
        self.targets = {pool: [tuple(entry) for entry in entries] for pool, entries in self.targets.items()}

    def note_demand(self, pool: int, hour: int, nodes: int) -> None:
        """So many nodes were asked for within that hour. Hours of which nothing is known count as the one before."""
        demand = self.demand.setdefault(pool, [])
        last = self.last_hour.get(pool, hour)
        if demand and hour == last:
            demand[-1] = max(demand[-1], nodes)
        else:
            gap = min(hour - last - 1, KEPT) if demand else 0
            demand += [demand[-1]] * gap if gap else []
            demand.append(nodes)
            del demand[:-KEPT]
        self.last_hour[pool] = hour

    def past(self, pool: int, now_ms: int) -> tuple[Series, int]:
        """(what was asked for in each hour that is over, the hour after the last of them)"""
        demand, following = self.demand.get(pool, []), self.last_hour.get(pool, -1) + 1
        if demand and following > now_ms // HOUR_MS:
            return np.array(demand[:-1], np.float64), following - 1
        return np.array(demand, np.float64), following

    def target(self, pool: int, since_ms: int, until_ms: int) -> int:
        """The most nodes that are set for any moment between the two."""
        most = standing = 0
        for at_ms, nodes in self.targets.get(pool, ()):
            if at_ms <= since_ms:
                standing = nodes
            elif at_ms <= until_ms:
                most = max(most, nodes)
        return max(most, standing)

    def set_targets(self, pool: int, targets: tuple[tuple[int, int], ...]) -> None:
        self.targets.pop(pool, None)
        if targets:
            self.targets[pool] = list(targets)

    def mark(self, nodes: array[int], since_ms: int) -> None:
        missing = max(nodes, default=-1) + 1 - len(self.unneeded)
        if missing > 0:
            self.unneeded.extend([NEEDED] * missing)
        view(self.unneeded)[view(nodes)] = since_ms

    def unneeded_since(self, nodes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Of every node of the cell, which has so many rows: cell time, or NEEDED."""
        since = np.full(nodes, NEEDED, np.int64)
        since[: len(self.unneeded)] = view(self.unneeded)
        return since
