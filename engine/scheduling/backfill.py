"""EASY backfill: a promise to the first blocked workload, and the test that keeps it.

From the expected ends of running work, the reservation finds the earliest time at which every group of the blocked
workload has enough slots (a slot: room for one task), and counts the slots at that time. A later workload may start now
if it is expected to end before then, or if enough slots remain beside it. Counting slots rather than naming nodes keeps
the promise on mixed nodes too, and costs only the candidate's own nodes. Work that ends at that very time but later in
the order is not counted as spare. The simulators that our figures are compared with do the same, and it errs towards
the promise.

A candidate is tested once in a pass, with the nodes that the placer gives it at that moment and the ends counted when
the promise was made. If it fails, later starts in the pass may fill those nodes or end by the reserved time, so that a
fresh look would start it after all. It waits until capacity is freed and everything is looked at again, or longer if
the placer then prefers nodes in the way again. Room may stay idle, but no promise is broken; looking on until nothing
more starts would cost a pass for each start. A fork, or another process that goes on from the journal, has that fresh
look and may start it at once. A candidate that ends by the reserved start, fits, and takes no quota that is counted on
is never refused.

Groups are counted independently of each other, so for a gang of several groups the time is a lower bound. A gang that
finds its slots now and yet cannot be placed is promised nothing. A gang that must be in one domain of the topology is
promised the domain that has its slots first, and the slots of that domain are counted.

Source of the rule: Lifka, "The ANL/IBM SP scheduling system" (1995); counting of spare nodes as in Mu'alem and
Feitelson, IEEE TPDS 12(6), 2001.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np

from engine.capacity import mig
from engine.capacity.devices import cut_devices
from engine.capacity.task_shapes import Shape
from engine.capacity.topology import Span, domain_room, levels_asked
from engine.model.columns import Mask, Rows, view
from engine.model.specs import RESOURCES, TopologyRequest
from engine.placement.gang_placement import Claim
from engine.state.cell_state import BOUND, State
from engine.state.expected_ends import ExpectedEnds, estimated_ends
from engine.state.workloads import NONE

Returned = tuple[Shape, int, int]
"""(shape, tasks, device mask)"""
GPU = RESOURCES.index("gpu_milli")
MANY = 512
"""Workloads that run, from which on what they give back is compared at once before it is looked at one by one."""


def correct_overdue(state: State) -> bool:
    """Give what has outrun its expected end a later one. True if there was any: what was promised before may not hold.

    Afterwards the first of `state.ends` is current and lies ahead.
    """
    overdue = False
    ends = state.ends
    while True:
        first = ends.at(0)
        if first is None or state.ends_at(first[1], first[0]):
            return overdue
        end, row = first
        if not state.is_bound(row):
            ends.drop_first(state.is_bound)
            continue
        ends.drop(0)
        if end <= state.now_ms:
            overdue = True
            ends.add(state.workloads.expected_end(row, state.now_ms), row)


def expected_ends(state: State) -> Iterator[tuple[int, int]]:
    """(expected end ms, row) of what runs, soonest first; all lie ahead. Costs only what is taken from it. Nothing may
    start or end meanwhile."""
    correct_overdue(state)
    place, passed = 0, None
    while (entry := state.ends.at(place)) is not None:
        end, row = entry
        if entry == passed or not state.ends_at(row, end):
            state.ends.drop(place)
            continue
        yield entry
        place, passed = place + 1, entry


def soonest_ends(state: State, count: int) -> tuple[Rows, Rows]:
    """(expected ends, rows) of so many of the first of these, or of all; both in columns."""
    correct_overdue(state)
    while True:
        ends, rows = state.ends.first(count)
        stale = ~_are_current(state, ends, rows)
        stale[1:] |= (ends[1:] == ends[:-1]) & (rows[1:] == rows[:-1])
        if not stale.any():
            return ends, rows
        state.ends.drop_of_first(stale)


def _are_current(state: State, ends: Rows, rows: Rows) -> Mask:
    """`State.ends_at` of each."""
    states = view(state.workloads.state)[rows]
    current = np.logical_or.reduce([states == bound for bound in BOUND])
    expected = np.zeros(len(rows), np.int64)
    expected[current] = estimated_ends(state, rows[current])
    for i in np.flatnonzero(current & (expected <= state.now_ms)).tolist():
        expected[i] = state.workloads.expected_end(int(rows[i]), state.now_ms)
    return np.asarray(current & (expected == ends))


def all_expected_ends(state: State) -> list[tuple[int, int]]:
    """The same for everything that runs. Drops what is stale from `state.ends`."""
    correct_overdue(state)
    found = [(end, row) for end, row in sorted(set(state.ends)) if state.ends_at(row, end)]
    state.ends = ExpectedEnds(found)
    return found


class EndingTasks:
    """What the first that end give back, by node."""

    def __init__(self, state: State, rows: Rows) -> None:
        """`rows`: in order of end."""
        a = state.allocations
        held, place = view(state.workloads.first_allocation)[rows].astype(np.int64), np.arange(len(rows))
        parts = []
        while len(held):
            parts.append((held, place))
            following = view(a.next_of_workload)[held].astype(np.int64)
            held, place = following[following != NONE], place[following != NONE]
        self.held, self.place = (np.concatenate(column) for column in zip(*parts, strict=True))
        node = view(a.node)[self.held].astype(np.int64)
        order = np.lexsort((self.place, node))
        self.held, self.place, self.node = self.held[order], self.place[order], node[order]
        """Allocation, place of its workload among the rows, and node of each: by node, then by place."""
        self._nodes: list[int] | None = None
        """The nodes as numbers, once one is looked up."""
        self._state = state

    def of_use(self, shapes: tuple[Shape, ...]) -> list[int]:
        """Indexes of those after which their nodes may have room for a task of one of the shapes, in order of end: a
        quick necessary condition. After all others there is none."""
        capacity = self._state.capacity
        free_gpu = capacity.free_gpu()[self.node]
        free = [view(column)[self.node] for column in (capacity.free_cpu, capacity.free_memory, capacity.free_disk)]
        cpu, memory, gpu, disk = self._returned()
        ahead = free[0] + cpu, free[1] + memory, free[2] + disk, free_gpu + gpu
        found = np.zeros(len(self.held), bool)
        for shape in shapes:
            wanted = shape.cpu, shape.memory, shape.disk, 1000 * shape.gpus or shape.share
            may = np.logical_and.reduce([have >= want for have, want in zip(ahead, wanted, strict=True)])
            found[may] |= capacity.usable_mask(shape, self.node[may])
        indexes = np.flatnonzero(found)
        return list(indexes[np.argsort(self.place[indexes], kind="stable")].tolist())

    def _returned(self) -> Rows:
        """By resource: what its node has been given back once each has ended."""
        a, requests = self._state.allocations, self._state.requests
        cls = view(self._state.workloads.cls)[view(a.workload)[self.held]]
        entry = view(requests.first)[cls] + view(a.group)[self.held]
        count = view(a.count)[self.held]
        each = np.stack([view(column)[entry] * count for column in requests.by_resource])
        # The device of the last instance in use is a whole one again.
        each[GPU] = np.where(view(requests.mig)[entry], 1000 * count, each[GPU])
        sums = np.cumsum(each, axis=1)
        first = np.searchsorted(self.node, self.node)
        return np.asarray(sums - sums[:, first] + each[:, first])

    def on_node(self, node: int, before: int | None = None, *, ended: int = 0) -> list[Returned]:
        """What the node has been given back before that index, or by the workloads in the first `ended` places."""
        if self._nodes is None:
            self._nodes = self.node.tolist()
        low, high = bisect_left(self._nodes, node), bisect_right(self._nodes, node)
        last = bisect_left(self.place, ended, low, high) if before is None else before
        return [self.task(index) for index in range(low, last)]

    def task(self, index: int) -> Returned:
        a, held = self._state.allocations, int(self.held[index])
        return self._state.workloads.class_at(a.workload[held]).shapes[a.group[held]], a.count[held], a.devices[held]


class NodeAhead:
    """Free capacity of one node at the reserved time."""

    __slots__ = ("cpu", "cut", "devices", "disk", "memory", "pool")

    def __init__(self, state: State, node: int) -> None:
        capacity = state.capacity
        self.cpu = capacity.free_cpu[node]
        self.memory = capacity.free_memory[node]
        self.disk = capacity.free_disk[node]
        self.devices = list(capacity.devices(node))
        self.cut = cut_devices(capacity, node)
        """Partitioned devices -> [MIG layout, mask of instances in use]."""
        self.pool = capacity.pool[node]

    def shift(self, shape: Shape, count: int, mask: int) -> None:
        """Give back `count` tasks, or take them when negative."""
        self.cpu += shape.cpu * count
        self.memory += shape.memory * count
        self.disk += shape.disk * count
        if shape.kinds:
            self._shift_instance(mask)
            return
        share = shape.share * count if shape.share else (1000 if count > 0 else -1000)
        while mask:
            low = mask & -mask
            mask ^= low
            self.devices[low.bit_length() - 1] += share

    def _shift_instance(self, claim: int) -> None:
        device, layout, instance = mig.read_claim(claim)
        used = self.cut.get(device, [layout, 0])[1] ^ 1 << instance
        if used:
            self.cut[device] = [layout, used]
        else:
            del self.cut[device]
        self.devices[device] = 0 if used else 1000

    def slots(self, shape: Shape) -> int:
        counts = [
            have // want
            for have, want in ((self.cpu, shape.cpu), (self.memory, shape.memory), (self.disk, shape.disk))
            if want
        ]
        if shape.gpus:
            counts.append(self.devices.count(1000) // shape.gpus)
        elif shape.share:
            counts.append(sum(free // shape.share for free in self.devices))
        elif shape.kinds:
            counts.append(self._instances(shape.kinds[self.pool]))
        return min(counts)

    def _instances(self, kind: int) -> int:
        """MIG instances of the kind that are free, or could be made of idle devices."""
        if kind < 0:
            return 0
        free = sum((mig.MEMBERS[layout][kind] & ~used).bit_count() for layout, used in self.cut.values())
        return free + mig.KINDS[kind].most * self.devices.count(1000)


class PromisedStart:
    """The start promised to the first blocked workload."""

    def __init__(self, state: State, row: int, likely_ended: int = 0) -> None:
        """`likely_ended`: how many of what runs will have ended by then, as far as that can be guessed; it saves time
        to guess well."""
        self.row = row
        self.workload_class = state.workloads.class_at(row)
        self.start_ms: int | None = None
        """Its start if the estimates hold; None when even an otherwise empty cell is too small now."""
        self._state = state
        self._ahead: dict[int, NodeAhead] = {}
        self._returned: dict[int, list[Returned]] = {}
        """Node -> what will have been given back there by then, for nodes not in `_ahead`."""
        self._ending: list[int] = []
        """Rows whose tasks are one slot each, not yet entered in `_returned`: needed only when a node is read."""
        self._tasks_ending: EndingTasks | None = None
        """Where many run: the same for all that end first."""
        self.ended = 0
        """The number of their workloads that will have ended by then."""
        self._first_look = max(MANY, likely_ended + likely_ended // 2)
        only = self.workload_class.shapes[0] if len(self.workload_class.shapes) == 1 else None
        self._domain: Span | None = None
        """Positions of the domain that is promised; None when it may be anywhere."""
        asked = self.workload_class.shapes[0].topology
        if asked is not None and asked.required is not None:
            only = None
            self._tree = domain_room(state.capacity).tree
            self._domain = self._first_domain(asked)
        self._own = None if only is None or only.part else only
        """The one shape that is asked for. Such a task, given back or taken, is exactly one slot: no need to look."""
        self._spare = [
            self._slots(shape) - count
            for shape, count in zip(self.workload_class.shapes, self.workload_class.least, strict=True)
        ]
        """Slots at the reserved time beyond what each group needs."""
        self._find_start()
        self._counted_on = state.queues.counted_on(state.workloads.queue[row], self.workload_class.least_charge)

    def _slots(self, shape: Shape) -> int:
        """Slots there are now where it may be."""
        capacity = self._state.capacity
        if self._domain is None:
            return capacity.slots(shape)
        return domain_room(capacity).rooms(capacity, shape).total(self._domain)

    def _counts(self, node: int) -> list[bool]:
        """For each group whether the node is one that it may use."""
        capacity = self._state.capacity
        if self._domain is not None:
            low, high = self._domain
            if not low <= self._tree.position[node] < high:
                return [False] * len(self.workload_class.shapes)
        return [capacity.usable(node, shape) for shape in self.workload_class.shapes]

    def _first_domain(self, request: TopologyRequest) -> Span:
        """The domain in which every group has its slots first, as what runs ends; the first of all when none ever
        does."""
        state, shapes, tree = self._state, self.workload_class.shapes, self._tree
        known = domain_room(state.capacity)
        level, _ = levels_asked(tree, request)
        spare = [
            [have - least for have in known.rooms(state.capacity, shape).sums(level)]
            for shape, least in zip(shapes, self.workload_class.least, strict=True)
        ]
        enough = (domain for domain in range(len(tree.starts[level]) - 1) if all(have[domain] >= 0 for have in spare))
        found = next(enough, None)
        if found is not None:
            return tree.bounds(level, found)
        ahead: dict[int, NodeAhead] = {}
        for _, row in expected_ends(state):
            touched: set[int] = set()
            for given_back, node, count, devices in self._tasks_of(row):
                usable = [state.capacity.usable(node, shape) for shape in shapes]
                if not any(usable):
                    continue
                if node not in ahead:
                    ahead[node] = NodeAhead(state, node)
                domain = int(tree.domain[level][tree.position[node]])
                touched.add(domain)
                before = [ahead[node].slots(shape) for shape in shapes]
                ahead[node].shift(given_back, count, devices)
                for group, shape in enumerate(shapes):
                    spare[group][domain] += (ahead[node].slots(shape) - before[group]) * usable[group]
            enough = (domain for domain in sorted(touched) if all(have[domain] >= 0 for have in spare))
            found = next(enough, None)
            if found is not None:
                return tree.bounds(level, found)
        return tree.bounds(level, 0) if len(tree.starts[level]) > 1 else (0, 0)

    def _find_start(self) -> None:
        """Give back what ends, in order of expected end, until every group has its slots."""
        state = self._state
        if min(self._spare) >= 0:
            self.start_ms = state.now_ms
            return
        if len(state.ends) > MANY:
            self._find_start_among_many()
            return
        for end, row in expected_ends(state):
            self._give_back(row)
            if min(self._spare) >= 0:
                self.start_ms = end
                break

    def _find_start_among_many(self) -> None:
        """The same, where most of what ends makes no room for it."""
        looked_at, more, last = 0, self._first_look, 0
        while min(self._spare) < 0:
            ends, rows = soonest_ends(self._state, more)
            if len(rows) == looked_at:
                return
            ending = self._tasks_ending = EndingTasks(self._state, rows)
            self.ended = len(rows)
            for index in ending.of_use(self.workload_class.shapes):
                place = int(ending.place[index])
                if place < looked_at:
                    continue
                if min(self._spare) >= 0 and place > last:
                    break
                last = place
                self._give_back_task(index)
            if min(self._spare) >= 0:
                self.start_ms, self.ended = int(ends[last]), last + 1
            looked_at, more = len(rows), 4 * more

    def _give_back_task(self, index: int) -> None:
        """Give back one of the tasks that end; what its node was given back before it made no room."""
        ending = self._tasks_ending
        assert ending is not None, "few run"
        node, (shape, count, devices) = int(ending.node[index]), ending.task(index)
        if node not in self._ahead:
            if shape is self._own:
                self._spare[0] += count
                return
            ahead = self._ahead[node] = NodeAhead(self._state, node)
            for earlier in ending.on_node(node, index):
                ahead.shift(*earlier)
        self._shift(node, shape, count, devices)

    def _give_back(self, row: int) -> None:
        state = self._state
        workload_class = state.workloads.class_at(row)
        alone = workload_class.shapes == (self._own,) and not self._ahead
        if alone and state.capacity.all_ready and not state.capacity.booked:
            self._spare[0] += state.workloads.tasks[row]
            self._ending.append(row)
            return
        for shape, node, count, devices in self._tasks_of(row):
            self._shift(node, shape, count, devices)

    def _tasks_of(self, row: int) -> Iterator[tuple[Shape, int, int, int]]:
        """(shape, node, tasks, device mask) of what the workload has."""
        a = self._state.allocations
        shapes = self._state.workloads.class_at(row).shapes
        for i in a.of_workload(self._state.workloads.first_allocation[row]):
            yield shapes[a.group[i]], a.node[i], a.count[i], a.devices[i]

    def _shift(self, node: int, shape: Shape, count: int, devices: int) -> None:
        """Give back tasks (take, when negative) at the reserved time, and adjust the spare slots."""
        mine = self.workload_class.shapes
        counts = self._counts(node)
        if not any(counts):
            return
        if shape is self._own and node not in self._ahead:
            self._spare[0] += count
            if count > 0:
                self._returned.setdefault(node, []).append((shape, count, devices))
            return
        ahead = self._node_ahead(node)
        before = [ahead.slots(own) if counted else 0 for own, counted in zip(mine, counts, strict=True)]
        ahead.shift(shape, count, devices)
        for i, own in enumerate(mine):
            if counts[i]:
                self._spare[i] += ahead.slots(own) - before[i]

    def _node_ahead(self, node: int) -> NodeAhead:
        """The node as it will be: as it is now, with what will have been given back."""
        for row in self._ending:
            for shape, at, count, devices in self._tasks_of(row):
                self._returned.setdefault(at, []).append((shape, count, devices))
        self._ending.clear()
        ahead = self._ahead.get(node)
        if ahead is None:
            ahead = self._ahead[node] = NodeAhead(self._state, node)
            if self._tasks_ending is not None:
                for returned in self._tasks_ending.on_node(node, ended=self.ended):
                    ahead.shift(*returned)
            for returned in self._returned.pop(node, ()):
                ahead.shift(*returned)
        return ahead

    def ends_in_time(self, row: int) -> bool:
        """True if the workload, started now, is expected to be gone by the reserved start."""
        remaining_ms = self._state.workloads.remaining_ms(row)
        return self.start_ms is None or self._state.now_ms + remaining_ms <= self.start_ms

    def needs_quota(self, row: int) -> bool:
        """True if the workload takes quota that the reserved one counts on, even if it gives it back by the reserved
        start: one that lacked quota meanwhile would no longer be seen to wait for its start.
        """
        w, queues = self._state.workloads, self._state.queues
        if not queues.limited[w.queue[row]]:
            return False
        charge = w.class_at(row).charge
        if queues.leaves_plenty(charge, self._counted_on):
            return False
        promised = [(w.queue[self.row], self.workload_class.least_charge)]
        return queues.leaves_short(w.queue[row], charge, promised, self._state.now_ms)

    def certainly_in_the_way(self, shapes: tuple[Shape, ...], count: int) -> bool:
        """A quick test for tasks just like the reserved ones: each takes exactly one slot."""
        alike = len(shapes) == 1 and shapes == self.workload_class.shapes and self._domain is None
        return alike and count > self._spare[0]

    def allows(self, shapes: tuple[Shape, ...], claims: list[Claim], *, late: bool) -> bool:
        """True if claims just made keep the promise. `late`: by work that may run past the reserved start."""
        if late:
            return self.admits(shapes, claims)
        self.pass_over(shapes, claims)
        return True

    def admits(self, shapes: tuple[Shape, ...], claims: list[Claim]) -> bool:
        """True if claims just made, held past the reserved start, leave enough slots. If so they are counted in."""
        if shapes == (self._own,):
            taken = sum(count for _, node, count, _ in claims if node not in self._ahead)
            seen = [claim for claim in claims if claim[1] in self._ahead]
        else:
            # A node first looked at now shows the claims already: note it as it was before them.
            for group, node, count, devices in claims:
                if node not in self._ahead:
                    self._returned.setdefault(node, []).append((shapes[group], count, devices))
            taken, seen = 0, claims
            for node in {claim[1] for claim in claims}:
                self._node_ahead(node)
        self._spare[0] -= taken
        for group, node, count, devices in seen:
            self._shift(node, shapes[group], -count, devices)
        if min(self._spare) >= 0:
            return True
        self._spare[0] += taken
        for group, node, count, devices in reversed(seen):
            self._shift(node, shapes[group], count, devices)
        return False

    def pass_over(self, shapes: tuple[Shape, ...], claims: list[Claim]) -> None:
        """Claims just made by a workload that will be gone by the reserved start: given back by then."""
        for group, node, count, devices in claims:
            if node not in self._ahead:
                self._returned.setdefault(node, []).append((shapes[group], count, devices))
