"""Tasks where another scheduler shows them, as placements of a workload's groups that fit the nodes.

Nothing is bound beyond what a node has: a task that asks for more than is free there counts as far as there is room,
and is named. Tasks of a group that were cut differently are groups of their own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

import msgspec

from engine.capacity.devices import closest
from engine.model import events as ev
from engine.model.external_cells import Holding
from engine.model.specs import RESOURCES, Resources, TaskGroup
from engine.state.cell_state import State
from engine.state.mirrored_cell import LOAD_WIDTH

CUT = "_"
"""Between the name of a group and the number of one that was split off it."""
Bound = tuple[tuple[TaskGroup, ...], tuple[ev.GroupPlacement, ...]]


class NodeRoom:
    """What is free on one node for the tasks of one workload, its own given back."""

    __slots__ = ("cpu", "devices", "disk", "memory", "whole")

    def __init__(self, state: State, node: int) -> None:
        capacity = state.capacity
        self.cpu, self.memory, self.disk = capacity.free_cpu[node], capacity.free_memory[node], capacity.free_disk[node]
        self.whole = capacity.whole[node]
        """Bit mask of the devices that are free."""
        self.devices = capacity.devices(node)

    def give_back(self, request: Resources, count: int, devices: int) -> None:
        self.cpu += request.cpu_milli * count
        self.memory += request.memory_mib * count
        self.disk += request.disk_mib * count
        part = request.gpu_milli % 1000
        self._shift(devices, part * count if part else 1000)

    def take(self, request: Resources) -> tuple[Resources, int]:
        """(as much of the request as there is room for, the devices)"""
        part, count = request.gpu_milli % 1000, request.gpu_milli // 1000
        mask = self._share(part) if part else closest(self.whole, min(count, self.whole.bit_count()), 0)
        cut = request
        if (
            request.cpu_milli > self.cpu
            or request.memory_mib > self.memory
            or request.disk_mib > self.disk
            or (part != request.gpu_milli or not mask if part else mask.bit_count() < count)
        ):
            cut = Resources(
                cpu_milli=min(request.cpu_milli, max(self.cpu, 0)),
                memory_mib=min(request.memory_mib, max(self.memory, 0)),
                gpu_milli=(part if mask else 0) if part else mask.bit_count() * 1000,
                disk_mib=min(request.disk_mib, max(self.disk, 0)),
            )
        self.cpu -= cut.cpu_milli
        self.memory -= cut.memory_mib
        self.disk -= cut.disk_mib
        self._shift(mask, -part or -1000)
        return cut, mask

    def _shift(self, devices: int, more: int) -> None:
        """So much of each of these devices is free, more than before."""
        while devices:
            low = devices & -devices
            devices ^= low
            device = low.bit_length() - 1
            free = self.devices[device] = self.devices[device] + more
            self.whole = self.whole | low if free == 1000 else self.whole & ~low

    def _share(self, part: int) -> int:
        """The fullest device that still has room for the part."""
        fitting = [(free, device) for device, free in enumerate(self.devices) if free >= part]
        return 1 << min(fitting)[1] if fitting else 0


TaskPlace = tuple[str, str, Resources]
"""(group, node, what each task has there)"""


def held_tasks(state: State, row: int) -> dict[TaskPlace, int]:
    """The number of the workload's tasks at each place."""
    a, w = state.allocations, state.workloads
    groups = w.class_at(row).groups
    found: dict[TaskPlace, int] = {}
    for i in a.of_workload(w.first_allocation[row]):
        group = groups[a.group[i]]
        place = group.name.partition(CUT)[0], state.capacity.node_ids[a.node[i]], group.request
        found[place] = found.get(place, 0) + a.count[i]
    return found


def shown_tasks(holds: Iterable[Holding]) -> dict[TaskPlace, int]:
    """The same as its scheduler shows it."""
    found: dict[TaskPlace, int] = {}
    for held in holds:
        place = held.group, held.node, held.resources
        found[place] = found.get(place, 0) + held.count
    return found


def bindings(
    state: State,
    row: int,
    asks: tuple[TaskGroup, ...],
    holds: Iterable[Holding],
    note: Callable[[str], None],
    rooms: dict[int, NodeRoom] | None = None,
) -> Bound | None:
    """The workload's groups and the places of their tasks, all of them; None where no node is known. A group that is
    there whole is as it was asked for; of another only the tasks that are there are in it. `rooms`: what those that
    are placed together with it leave, by node."""
    name = state.workloads.ids[row]
    rooms = _rooms(state, row) if rooms is None else rooms
    by_cut: dict[tuple[str, Resources], list[tuple[int, int]]] = {}
    for held in holds:
        node = state.capacity.row_of.get(held.node)
        if node is None:
            note(f"workload '{name}' has tasks on '{held.node[:64]}', which is not known")
            continue
        room = rooms.get(node) or rooms.setdefault(node, NodeRoom(state, node))
        for _ in range(held.count):
            cut, mask = room.take(held.resources)
            if cut is not held.resources:
                _note_cut(note, name, held, cut)
            if any(cut.vector()):
                by_cut.setdefault((held.group, cut), []).append((node, mask))
    return _grouped(asks, by_cut) if by_cut else None


def _rooms(state: State, row: int) -> dict[int, NodeRoom]:
    """By node that it is on: the room there without its own tasks."""
    a, w = state.allocations, state.workloads
    groups = w.class_at(row).groups
    rooms: dict[int, NodeRoom] = {}
    for i in a.of_workload(w.first_allocation[row]):
        room = rooms.get(a.node[i]) or rooms.setdefault(a.node[i], NodeRoom(state, a.node[i]))
        room.give_back(groups[a.group[i]].request, a.count[i], a.devices[i])
    return rooms


def _note_cut(note: Callable[[str], None], name: str, held: Holding, cut: Resources) -> None:
    lacks = [key for key, a, b in zip(RESOURCES, cut.vector(), held.resources.vector(), strict=True) if a < b]
    note(
        f"workload '{name}' has more {', '.join(lacks)} on '{held.node}' than is free there: it is counted as far as "
        "there is room"
    )


def _grouped(asks: tuple[TaskGroup, ...], by_cut: dict[tuple[str, Resources], list[tuple[int, int]]]) -> Bound:
    asked = {group.name: group for group in asks}
    groups, placements, numbers = [], [], dict.fromkeys(asked, 0)
    for (name, cut), places in by_cut.items():
        base = asked.get(name, asks[0])
        numbers[base.name] += 1
        whole = cut == base.request and len(places) == base.count
        own = base.name if numbers[base.name] == 1 else f"{base.name}{CUT}{numbers[base.name]}"
        groups.append(
            base if whole else msgspec.structs.replace(base, name=own, count=len(places), min_count=0, request=cut)
        )
        placements.append(_placement(cut, places))
    return tuple(groups), tuple(placements)


def _placement(cut: Resources, places: list[tuple[int, int]]) -> ev.GroupPlacement:
    """Tasks on the same node are one entry, but for parts of a device."""
    entries: list[tuple[int, int, int]] = []
    if cut.gpu_milli % 1000 or len({node for node, _ in places}) == len(places):
        entries = sorted((node, 1, mask) for node, mask in places)
    else:
        on: dict[int, tuple[int, int]] = {}
        for node, mask in places:
            count, devices = on.get(node, (0, 0))
            on[node] = count + 1, devices | mask
        entries = sorted((node, count, devices) for node, (count, devices) in on.items())
    nodes, counts, masks = ([entry[i] for entry in entries] for i in range(3))
    packed = array("q", masks).tobytes() if cut.gpu_milli else b""
    return ev.GroupPlacement(array("i", nodes).tobytes(), array("i", counts).tobytes(), packed)


def loads_event(
    state: State, wanted: list[tuple[int, Resources, int]], note: Callable[[str], None]
) -> ev.NodeLoadsTold:
    """The event that gives these nodes (row, resources, pods) their load, as far as there is room for it."""
    nodes, loads = array("i"), array("q")
    for node, resources, pods in wanted:
        before = state.loads.at(node)
        room = NodeRoom(state, node)
        had = Resources(
            cpu_milli=before[0], memory_mib=before[1], gpu_milli=before[2].bit_count() * 1000, disk_mib=before[3]
        )
        room.give_back(had, 1, before[2])
        whole = msgspec.structs.replace(resources, gpu_milli=-(-resources.gpu_milli // 1000) * 1000)
        cut, mask = room.take(whole)
        if cut != whole:
            note(f"pods of no queue have more on '{state.capacity.node_ids[node]}' than is free there")
        nodes.append(node)
        loads.extend((cut.cpu_milli, cut.memory_mib, mask, cut.disk_mib, pods))
    assert len(loads) == LOAD_WIDTH * len(nodes)
    return ev.NodeLoadsTold(nodes.tobytes(), loads.tobytes())
