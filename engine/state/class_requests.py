"""Requests of the classes of workloads, as columns, so that victims are found without a look at each class."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from engine.state.bulk_allocations import DEVICE, Rows
from engine.state.workloads import WorkloadClass
from engine.tables.columns import view


class RequestColumns:
    """What the classes of workloads ask for, as columns. The first three go by class, the others by (class, group)."""

    def __init__(self) -> None:
        self.first = array("i")
        """First entry of the class in the columns by group."""
        self.tasks = array("q")
        self.bound_ms = array("q")
        self.count = array("q")
        """Tasks of the group; the quantities are for one of them."""
        self.cpu = array("q")
        self.memory = array("q")
        self.gpu_milli = array("q")
        self.disk = array("q")
        self.mig = array("b")
        """Whether the devices asked for are one MIG instance."""

    def copy(self) -> RequestColumns:
        other = object.__new__(RequestColumns)
        other.__dict__ = {name: column[:] for name, column in self.__dict__.items()}
        return other

    def update(self, classes: Sequence[WorkloadClass]) -> None:
        """Append the classes that are new since the last call. Classes never change."""
        for workload_class in classes[len(self.first) :]:
            self.first.append(len(self.count))
            self.tasks.append(workload_class.tasks)
            self.bound_ms.append(workload_class.bound_ms)
            for group in workload_class.groups:
                self.count.append(group.count)
                for column, quantity in zip(self.by_resource, group.request.vector(), strict=True):
                    column.append(quantity)
                self.mig.append(bool(group.mig))

    @property
    def by_resource(self) -> tuple[array[int], ...]:
        """The quantities in the order of RESOURCES."""
        return self.cpu, self.memory, self.gpu_milli, self.disk

    def whole_devices(self) -> Rows:
        return np.where(view(self.mig), 0, view(self.gpu_milli) // DEVICE)

    def parts_of_devices(self) -> Rows:
        """Milli-GPU of a share or MIG instance; 0 for none."""
        return np.where(view(self.mig), view(self.gpu_milli), view(self.gpu_milli) % DEVICE)
