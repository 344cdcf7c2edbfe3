"""The queue tree: nominal quotas, what is charged against them, and who is in the way.

A workload's whole request is charged once at every vertex from its queue to the root, and given back once. A vertex
without a nominal quantity for a resource does not limit it.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from engine.columns import Table
from engine.errors import NotFoundError, RefusedError, SpecError
from engine.model import RESOURCES, QueueSpec, check_id, check_quantity

Vector = tuple[int, int, int, int]
UNLIMITED = -1


class QueueTree(Table):
    """Vertices in creation order; a parent always comes before its children."""

    columns = ("specs", "used", "running")

    def __init__(self) -> None:
        self.specs: list[Any] = []
        self.used = array("q")
        """Charged quantities, len(RESOURCES) entries for each queue."""
        self.running = array("i")
        """Workloads charged at the queue itself."""
        self.derive()

    def derive(self) -> None:
        self.specs = [s if isinstance(s, QueueSpec) else msgspec.convert(s, QueueSpec) for s in self.specs]
        self.row_of = {spec.name: i for i, spec in enumerate(self.specs)}
        self.nominal: list[Vector] = [self._nominal(spec) for spec in self.specs]
        self.path: list[tuple[int, ...]] = []
        """Rows from the queue itself up to its root."""
        self.limits: list[tuple[tuple[int, int, int], ...]] = []
        """(vertex row, resource index, nominal quantity) of every limit on that path, the queue's own first."""
        self.children: list[list[int]] = [[] for _ in self.specs]
        for row, spec in enumerate(self.specs):
            self._link(row, spec)

    def dump(self) -> dict[str, Any]:
        return super().dump() | {"specs": [msgspec.to_builtins(spec) for spec in self.specs]}

    @staticmethod
    def _nominal(spec: QueueSpec) -> Vector:
        a, b, c, d = (spec.nominal.get(name, UNLIMITED) for name in RESOURCES)
        return (a, b, c, d)

    def _link(self, row: int, spec: QueueSpec) -> None:
        if spec.parent:
            parent = self.row_of[spec.parent]
            self.children[parent].append(row)
            self.path.append((row, *self.path[parent]))
        else:
            self.path.append((row,))
        self.limits.append(
            tuple(
                (vertex, i, limit)
                for vertex in self.path[row]
                for i, limit in enumerate(self.nominal[vertex])
                if limit != UNLIMITED
            )
        )

    def add(self, spec: QueueSpec) -> None:
        row = len(self.specs)
        self.specs.append(spec)
        self.row_of[spec.name] = row
        self.nominal.append(self._nominal(spec))
        self.used.extend([0] * len(RESOURCES))
        self.running.append(0)
        self.children.append([])
        self._link(row, spec)

    def row(self, name: str) -> int:
        found = self.row_of.get(name)
        if found is None:
            raise NotFoundError(f"there is no queue '{name}'", "List them with: muster get queues")
        return found

    def leaf(self, name: str) -> int:
        """The row of a queue that takes workloads."""
        row = self.row(name)
        if self.children[row]:
            below = ", ".join(self.specs[child].name for child in self.children[row][:5])
            raise RefusedError(f"queue '{name}' has queues below it and takes no workloads", f"Use one of: {below}")
        return row

    def lacking(self, queue: int, request: Vector) -> tuple[int, int] | None:
        """The first (vertex, resource index) whose nominal quota the request would pass, from the queue upwards."""
        used = self.used
        for vertex, i, limit in self.limits[queue]:
            if request[i] and used[vertex * 4 + i] + request[i] > limit:
                return vertex, i
        return None

    def beyond(self, queue: int, request: Vector) -> tuple[int, int] | None:
        """The first (vertex, resource index) whose nominal quota is below the request even when nothing is used."""
        for vertex, i, limit in self.limits[queue]:
            if request[i] > limit:
                return vertex, i
        return None

    def charge(self, queue: int, request: Vector) -> None:
        self.running[queue] += 1
        self._shift(queue, request, 1)

    def give_back(self, queue: int, request: Vector) -> None:
        self.running[queue] -= 1
        self._shift(queue, request, -1)

    def _shift(self, queue: int, request: Vector, sign: int) -> None:
        cpu, memory, gpu, disk = request
        used = self.used
        for vertex in self.path[queue]:
            base = vertex * 4
            used[base] += sign * cpu
            used[base + 1] += sign * memory
            used[base + 2] += sign * gpu
            used[base + 3] += sign * disk

    def used_vector(self, queue: int) -> Vector:
        a, b, c, d = self.used[queue * 4 : queue * 4 + 4]
        return (a, b, c, d)


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
        check_quantity(spec.weight, f"{at}.weight", least=1, most=1_000_000)
        for resource, quantity in spec.nominal.items():
            if resource not in RESOURCES:
                raise SpecError(f"{at}.nominal", f"unknown resource '{resource}'", f"Use: {', '.join(RESOURCES)}")
            check_quantity(quantity, f"{at}.nominal.{resource}")
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
