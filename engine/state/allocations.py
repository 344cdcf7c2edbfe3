"""Who has what where: one row for tasks of one group of one workload on one node, chained per workload and per node."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.tables.columns import Table, view

Numbers = np.ndarray[Any, np.dtype[Any]]
NONE = -1


class Allocations(Table):
    """Rows are reused. `devices` is a bit mask of device indexes on the node."""

    columns = (
        "workload", "group", "node", "count", "devices", "next_of_workload", "next_on_node", "previous_on_node",
        "first_on_node", "unused",
    )  # fmt: skip

    def __init__(self) -> None:
        self.workload = array("i")
        self.group = array("i")
        self.node = array("i")
        self.count = array("i")
        self.devices = array("q")
        self.next_of_workload = array("i")
        self.next_on_node = array("i")
        self.previous_on_node = array("i")
        self.first_on_node = array("i")
        self.unused = array("i")

    def add_node(self) -> None:
        self.first_on_node.append(NONE)

    def row_columns(self) -> tuple[array[int], ...]:
        """The columns that have an entry for each row."""
        return (
            self.workload, self.group, self.node, self.count, self.devices, self.next_of_workload, self.next_on_node,
            self.previous_on_node,
        )  # fmt: skip

    def add(self, workload: int, group: int, node: int, count: int, devices: int, following: int) -> int:
        """A new row in front of `following`, the workload's rows so far. Returns it."""
        head = self.first_on_node[node]
        values = (workload, group, node, count, devices, following, head, NONE)
        columns = self.row_columns()
        if self.unused:
            row = self.unused.pop()
            for column, value in zip(columns, values, strict=True):
                column[row] = value
        else:
            row = len(self.node)
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        if head != NONE:
            self.previous_on_node[head] = row
        self.first_on_node[node] = row
        return row

    def drop(self, row: int) -> None:
        """Free the row."""
        after, before = self.next_on_node[row], self.previous_on_node[row]
        if before == NONE:
            self.first_on_node[self.node[row]] = after
        else:
            self.next_on_node[before] = after
        if after != NONE:
            self.previous_on_node[after] = before
        self.workload[row] = NONE
        self.unused.append(row)

    def of_workload(self, first: int) -> Iterator[int]:
        """Rows of the workload whose first row is `first`."""
        while first != NONE:
            yield first
            first = self.next_of_workload[first]

    def on_node(self, node: int) -> Iterator[int]:
        row = self.first_on_node[node]
        while row != NONE:
            yield row
            row = self.next_on_node[row]

    def workloads_on(self, node: int) -> int:
        """How many different workloads have a task on the node."""
        return len({self.workload[row] for row in self.on_node(node)})

    def workloads_on_each(self) -> Numbers:
        """The same of every node."""
        there = view(self.workload) != NONE
        nodes, workloads = view(self.node)[there].astype(np.int64), view(self.workload)[there]
        counts = np.bincount(nodes, minlength=len(self.first_on_node))
        # One can have several rows on a node.
        shared = counts[nodes] > 1
        pairs = np.unique(nodes[shared] << 32 | workloads[shared])
        return np.where(counts > 1, np.bincount(pairs >> 32, minlength=len(counts)), counts)
