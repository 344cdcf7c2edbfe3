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

from collections.abc import Generator, Iterator
from contextlib import closing
from heapq import heappop, heappush

from engine.capacity import mig
from engine.capacity.devices import cut_devices
from engine.capacity.task_shapes import Shape
from engine.capacity.topology import Span, domain_room, levels_asked
from engine.model.specs import TopologyRequest
from engine.placement.gang_placement import Claim
from engine.state.cell_state import BOUND, State

Returned = tuple[Shape, int, int]
"""(shape, tasks, device mask)"""


def correct_overdue(state: State) -> bool:
    """Give what has outrun its expected end a later one. True if there was any: what was promised before may not hold.

    Afterwards the first of `state.ends` is current and lies ahead.
    """
    overdue = False
    states, ends = state.workloads.state, state.ends
    while ends:
        end, row = ends[0]
        if states[row] not in BOUND:
            heappop(ends)
            continue
        if state.ends_at(row, end):
            break
        heappop(ends)
        if end <= state.now_ms:
            overdue = True
            heappush(ends, (state.workloads.expected_end(row, state.now_ms), row))
    return overdue


def expected_ends(state: State) -> Generator[tuple[int, int], None, None]:
    """(expected end ms, row) of what runs, soonest first; all lie ahead. Costs only what is taken from it. Close it
    before the state changes: what was taken is put back then."""
    correct_overdue(state)
    passed: list[tuple[int, int]] = []
    try:
        while state.ends:
            end, row = heappop(state.ends)
            if state.ends_at(row, end) and not (passed and passed[-1] == (end, row)):
                passed.append((end, row))
                yield end, row
    finally:
        for entry in passed:
            heappush(state.ends, entry)


def all_expected_ends(state: State) -> list[tuple[int, int]]:
    """The same for everything that runs. Drops what is stale from `state.ends`."""
    correct_overdue(state)
    # A sorted list is a heap.
    state.ends[:] = [(end, row) for end, row in sorted(set(state.ends)) if state.ends_at(row, end)]
    return state.ends


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

    def __init__(self, state: State, row: int) -> None:
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
        with closing(expected_ends(state)) as ends:
            for _, row in ends:
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
        with closing(expected_ends(state)) as ends:
            for end, row in ends:
                self._give_back(row)
                if min(self._spare) >= 0:
                    self.start_ms = end
                    break

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
            for shape, count, devices in self._returned.pop(node, ()):
                ahead.shift(shape, count, devices)
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
        charge = queues.total_charge(w.class_at(row).request)
        promised = queues.total_charge(self.workload_class.request_of(self.workload_class.least))
        return queues.leaves_short(w.queue[row], charge, [(w.queue[self.row], promised)], self._state.now_ms)

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
