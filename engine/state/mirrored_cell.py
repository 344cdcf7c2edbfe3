"""State of a cell of Kubernetes: nodes that get other labels and taints or go to another pool or place, load of no
queue on nodes, quota held without nodes, and tasks that come, end and move while their workload goes on.

A pod that no queue knows takes room on its node and belongs to nobody: `NodeLoads`. Kueue charges a queue when it
admits a workload, before the scheduler has put its pods on nodes: `HeldQuota`. In a fork that decides by itself such a
workload waits like any other, so what it holds is given back there.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from engine.capacity.task_shapes import Shape
from engine.model import events as ev
from engine.model.columns import Table
from engine.model.specs import Resources, TaskGroup
from engine.state import workloads as wl
from engine.state.allocations import NONE
from engine.state.queue_tree import Charge
from engine.state.work_changes import rate, recharge

if TYPE_CHECKING:
    from engine.state.cell_state import State

Load = tuple[int, int, int, int, int]
"""Milli-CPU, MiB of memory, bit mask of devices, MiB of disk, pods."""
LOAD_WIDTH = 5
NO_LOAD: Load = (0, 0, 0, 0, 0)


class NodeLoads(Table):
    """By node row; nodes without load are not in it. The capacity they take is taken in `Capacity`."""

    columns = ("of",)

    def __init__(self) -> None:
        self.of: dict[int, Load] = {}
        self.derive()

    def derive(self) -> None:
        self.of = {node: (a, b, c, d, e) for node, (a, b, c, d, e) in self.of.items()}

    def at(self, node: int) -> Load:
        return self.of.get(node, NO_LOAD)


class HeldQuota(Table):
    """By workload row."""

    columns = ("of",)

    def __init__(self) -> None:
        self.of: dict[int, Any] = {}
        """Shares as in the event QuotaHeld."""
        self.derive()

    def derive(self) -> None:
        self.of = {row: tuple((pool, tuple(quantities)) for pool, quantities in shares)
                   for row, shares in self.of.items()}  # fmt: skip

    def release(self, state: State) -> None:
        """Give all of it back."""
        for row in list(self.of):
            hold(state, row, ())


def charge_held(state: State, row: int) -> Charge:
    """The charge to its queue of what the workload holds without nodes."""
    shares = state.held_quota.of.get(row, ())
    if not state.queues.flavored(state.workloads.queue[row]):
        total = [sum(quantities[i] for _, quantities in shares) for i in range(4)]
        return state.queues.total_charge((total[0], total[1], total[2], total[3]))
    return state.queues.charge_of(shares)


def hold(state: State, row: int, shares: tuple[Any, ...]) -> None:
    """Have the workload hold these shares and no others."""
    before = charge_held(state, row)
    if shares:
        state.held_quota.of[row] = shares
    else:
        state.held_quota.of.pop(row, None)
    state.queues.shift(state.workloads.queue[row], before, charge_held(state, row), state.now_ms)


def quota_held(state: State, event: ev.QuotaHeld) -> None:
    hold(state, event.row, event.shares)


def nodes_relabelled(state: State, event: ev.NodesRelabelled) -> None:
    state.rules += 1
    state.capacity.relabel(event.nodes)


def nodes_moved(state: State, event: ev.NodesMoved) -> None:
    """What runs there is charged from now on for the pools that it is on then, and so are its queues."""
    state.rules += 1
    capacity, a = state.capacity, state.allocations
    nodes = [capacity.row_of[node.id] for node in event.nodes]
    there = sorted({a.workload[i] for node in nodes for i in a.on_node(node)})
    charges = {row: state.charge_of(row) for row in there}
    for row in there:
        state.ledger.stop(state, row)
        state.shift_company(row, -1)
    for node in nodes:
        state.ledger.count_nodes(state, capacity.pool[node], -1)
    capacity.move(event.nodes)
    for node in nodes:
        state.ledger.count_nodes(state, capacity.pool[node], 1)
    for row, before in charges.items():
        state.shift_company(row, 1)
        state.ledger.charge(state, row)
        state.shift_charge(row, before)
        state.note_joined(state.workloads.queue[row])


def node_loads_told(state: State, event: ev.NodeLoadsTold) -> None:
    loads = array("q", event.loads).tolist()
    for i, node in enumerate(array("i", event.nodes)):
        cpu, memory, devices, disk, pods = loads[i * LOAD_WIDTH : (i + 1) * LOAD_WIDTH]
        _shift_load(state, node, (cpu, memory, devices, disk, pods))


def forget_load(state: State, node: int) -> None:
    """The node goes, and what ran there with it."""
    if node in state.loads.of:
        _shift_load(state, node, NO_LOAD)


def _shift_load(state: State, node: int, load: Load) -> None:
    before = state.loads.at(node)
    if before != NO_LOAD:
        state.capacity.give_back(node, _shape(before), 1, before[2])
    if load != NO_LOAD:
        state.capacity.take(node, _shape(load), 1, load[2])
        state.loads.of[node] = load
    else:
        state.loads.of.pop(node, None)
    state.capacity.note_gains([node])


def _shape(load: Load) -> Shape:
    cpu, memory, devices, disk, _ = load
    request = Resources(cpu_milli=cpu, memory_mib=memory, gpu_milli=devices.bit_count() * 1000, disk_mib=disk)
    return Shape(TaskGroup(request=request), [])


def rebound(state: State, event: ev.Rebound) -> None:
    row, w = event.row, state.workloads
    before, had = state.charge_of(row), w.tasks[row]
    rate(state, row)
    sort = (w.priority[row], w.queue[row], w.tenant[row])
    state.count_bound(sort[0], sort[1], w.cls[row], sort[2], -1)
    state.unbind(row, list(state.allocations.of_workload(w.first_allocation[row])))
    w.first_allocation[row] = NONE
    if event.asks != w.class_at(row).groups:
        w.reclass(row, event.asks, "as it runs", state.capacity)
    w.tasks[row] = state.bind(row, event.groups, claimed=False)[0]
    state.count_bound(sort[0], sort[1], w.cls[row], sort[2], 1)
    recharge(state, row, before)
    more = w.tasks[row] - had
    if more:
        w.record(row, wl.GROWN if more > 0 else wl.SHRUNK, state.now_ms, abs(more))
