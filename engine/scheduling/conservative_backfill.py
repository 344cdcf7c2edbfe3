"""Conservative backfill: every waiting workload is promised the earliest start that delays none before it.

The plan is made anew at each scheduling pass, in the order of the queue, from the state alone. It starts from the
expected ends of running work. Each waiting workload then gets a placement held for the whole of its estimate. It starts
if the placement begins now; otherwise it keeps its place in the plan, and later ones go around it. While estimates
hold, planning again gives the same starts: nothing that starts ahead of its turn touches a placement promised before.

Two timelines hold the future of the cell. Where all work ever submitted asks for the same (as in most batch logs) a
task is a slot, slots are interchangeable, and one step function of free slots is exact. Otherwise each node has its own
future, and a promise names nodes: the first ones, in a fixed order, that have room over the whole window. The order
must not depend on other placements, or planning again could move a promise into the way of a later one. For the same
reason work starts on the nodes that the plan found. Devices are named too once a share of a device was ever asked for.
Whole devices alone are only counted, because any set of intervals that never needs more than n devices at once can be
given n devices in order of their starts. The first workload of a second kind, or the first share, changes the way of
counting and may move promises once.

Source of the rule: Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from engine.capacity import mig
from engine.capacity.devices import closest, device_numbers
from engine.capacity.task_shapes import Shape
from engine.capacity.topology import DomainChoice, domain_room, levels_asked, pick
from engine.model.columns import Ints, Mask, view
from engine.model.specs import LEVELS, NodeState, TopologyRequest
from engine.placement import node_choice
from engine.placement.gang_placement import Claim, counts_in_quota, orders_of_groups, place, variants
from engine.scheduling.backfill import all_expected_ends
from engine.scheduling.candidate_order import FOREVER, CandidateOrder, Order
from engine.scheduling.cycle_memory import Binder, CandidateVerdict, CycleMemory
from engine.scheduling.workload_admission import Admission, Preemptor
from engine.state.allocations import NONE
from engine.state.cell_state import State
from engine.state.pending_work import STOPPED, Key
from engine.state.workloads import WorkloadClass

_TIME_BITS = 42
HORIZON_MS = 1 << _TIME_BITS
"""The time ahead within which starts are promised: 139 years, so that a node and a time fit one sort key."""
_FIRST, _NEVER = np.zeros(1, np.int64), np.full(1, FOREVER)
_WHOLE = 1000
"""Milli-GPU of a device that is wholly free."""


class Conservative:
    """The plan of one pass. Ask for workloads in the order of the queue: each is planned around those before it."""

    def __init__(self, state: State, depth: int) -> None:
        """`depth`: how many workloads are promised a start. Those behind may still start where that delays none."""
        self.starts: dict[int, int] = {}
        """Row -> promised start, cell ms."""
        self._state = state
        self._depth = depth
        self._timeline: SlotTimeline | NodeTimeline = SlotTimeline(state) if is_uniform(state) else NodeTimeline(state)

    @property
    def full(self) -> bool:
        """True if all promises are given out."""
        return len(self.starts) >= self._depth

    def may_start(self, row: int) -> bool:
        """True if the workload, on open nodes, can start now and keep every promise made so far. Once False it stays
        False: a plan only fills up.
        """
        asked = self._state.workloads.class_at(row)
        return self._timeline.fits_now(asked.confined(asked.shapes, asked.least), self._length(row))

    def start(self, row: int, shapes: tuple[Shape, ...], counts: tuple[int, ...]) -> list[Claim] | None:
        """Claims for a start now, with so many tasks of these shapes, that keeps every promise; taken from the capacity
        already. Or None."""
        w = self._state.workloads
        new = w.submitted[row] == self._state.now_ms
        return self._timeline.start(w.class_at(row).confined(shapes, counts), self._length(row), new=new)

    def promise(self, row: int) -> int | None:
        """Hold the earliest place on open nodes for the workload. Its start in cell ms; None when all promises are
        given out, or when no end of running work will make room for it."""
        if self.full:
            return None
        asked = self._state.workloads.class_at(row)
        start_ms = self._timeline.hold(asked.confined(asked.shapes, asked.least), self._length(row))
        if start_ms is not None:
            self.starts[row] = start_ms
        return start_ms

    def needs_quota(self, row: int) -> bool:
        """True if the workload, started now, holds quota past the start of a promised one that counts on it."""
        w, queues = self._state.workloads, self._state.queues
        if not queues.limited[w.queue[row]]:
            return False
        end_ms = self._state.now_ms + w.remaining_ms(row)
        promised = [
            (w.queue[other], queues.total_charge(w.class_at(other).request_of(w.class_at(other).least)))
            for other, start_ms in self.starts.items()
            if start_ms < end_ms
        ]
        charge = queues.total_charge(w.class_at(row).request)
        return queues.leaves_short(w.queue[row], charge, promised, self._state.now_ms)

    def _length(self, row: int) -> int:
        return min(self._state.workloads.remaining_ms(row), HORIZON_MS // 2)


def is_uniform(state: State) -> bool:
    """True if every task, of all work ever submitted, is one slot that any other can use as well."""
    shapes = state.workloads.shapes.values()
    alike = len(shapes) == 1 and all(
        len(shape.pools) == 1 and shape.topology is None and shape.terms is None for shape in shapes
    )
    return alike and not state.capacity.booked


class SlotTimeline:
    """Free slots as a step function of time, where every task is one slot."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._shape = next(iter(state.workloads.shapes.values()))
        ends, freed = [state.now_ms], [state.capacity.slots(self._shape)]
        for end, row in all_expected_ends(state):
            ends.append(end)
            freed.append(self._slots_of(row))
        times = np.array(ends, np.int64)
        last = np.append(times[1:] != times[:-1], True)
        self._size = int(last.sum())
        """Steps; the arrays have room for more, and one beyond the last step always says FOREVER."""
        self._times: Ints = np.full(2 * self._size, FOREVER)
        self._free: Ints = np.zeros(2 * self._size, np.int64)
        """Slots free from the time beside it until the next."""
        self._times[: self._size] = times[last]
        self._free[: self._size] = np.cumsum(np.array(freed, np.int64))[last]

    def _slots_of(self, row: int) -> int:
        """Slots that the end of the workload gives back."""
        w, a, capacity = self._state.workloads, self._state.allocations, self._state.capacity
        if capacity.all_ready:
            return w.tasks[row]
        rows = a.of_workload(w.first_allocation[row])
        return sum(a.count[i] for i in rows if capacity.usable(a.node[i], self._shape))

    def fits_now(self, workload_class: WorkloadClass, length_ms: int) -> bool:
        until = int(self._times.searchsorted(self._times[0] + length_ms))
        return self._allows(workload_class) and bool(self._free[: min(until, self._size)].min() >= workload_class.tasks)

    def _allows(self, workload_class: WorkloadClass) -> bool:
        """False for work that names a reservation whose nodes it cannot have: it may use no others."""
        return all(shape.plain is self._shape for shape in workload_class.shapes)

    def start(self, workload_class: WorkloadClass, length_ms: int, *, new: bool) -> list[Claim] | None:
        if not self.fits_now(workload_class, length_ms):
            return None
        claims = place(self._state.capacity, workload_class.shapes, workload_class.counts)
        if claims is not None:
            self._take(self._state.now_ms, length_ms, workload_class.tasks)
        return claims

    def hold(self, workload_class: WorkloadClass, length_ms: int) -> int | None:
        """Hold the slots. Only now and the steps that follow a lack of slots can be the first from which enough are
        free.
        """
        times, tasks = self._times, workload_class.tasks
        lacking = np.flatnonzero(self._free[: self._size] < tasks)
        begins = times[np.concatenate((_FIRST, lacking + 1))]
        ends = np.concatenate((times[lacking], _NEVER))
        found = int(np.argmax(ends - begins >= length_ms))
        start_ms = int(begins[found])
        if not self._allows(workload_class) or ends[found] - start_ms < length_ms:
            return None
        if start_ms >= self._state.now_ms + HORIZON_MS:
            return None
        self._take(start_ms, length_ms, tasks)
        return start_ms

    def _take(self, start_ms: int, length_ms: int, tasks: int) -> None:
        first, last = self._step(start_ms), self._step(start_ms + length_ms)
        self._free[first:last] -= tasks

    def _step(self, at_ms: int) -> int:
        """The step that begins at that time, made if need be."""
        step = int(self._times.searchsorted(at_ms))
        if self._times[step] != at_ms:
            if self._size + 1 == len(self._times):
                self._times = np.concatenate((self._times, np.full(self._size, FOREVER)))
                self._free = np.concatenate((self._free, np.zeros(self._size, np.int64)))
            for column in (self._times, self._free):
                column[step + 1 : self._size + 1] = column[step : self._size]
            self._times[step] = at_ms
            self._free[step] = self._free[step - 1]
            self._size += 1
        return step


class NodeTimeline:
    """The free capacity of each node from now on, as steps: (node, time from which, free quantities)."""

    def __init__(self, state: State) -> None:
        self._state = state
        capacity = state.capacity
        self._named = any(shape.part for shape in state.workloads.shapes.values())
        """True if devices are named, each as a number of `engine.capacity.mig`; else they are counted."""
        pools = {pool for shape in state.workloads.shapes.values() for pool in shape.pools}
        eligible = np.isin(view(capacity.pool), list(pools)) & (view(capacity.state) == NodeState.READY)
        self._nodes: Ints = np.flatnonzero(eligible)
        """Node rows, ascending; below, a node goes by its place in here."""
        kept_for = view(capacity.booking)[self._nodes] + 1
        self._places = view(capacity.partition)[self._nodes] + kept_for * len(capacity.partitions)
        """Partition of each node, and for whom it is kept, as one number: the partition's row for an open node."""
        self._device_columns = self._most_devices(pools) if self._named else 1
        self._orders: dict[Shape, Ints] = {}
        self._bars: dict[Shape, tuple[int, Mask]] = {}
        if any(shape.topology is not None for shape in state.workloads.shapes.values()):
            self._tree = domain_room(capacity).tree
            self._positions: Ints = self._tree.position[self._nodes]
            """Of each node in the order of the tree."""
        self._keys, self._free = self._future()

    # -- how it is built ----------------------------------------------------------------------------------------------

    def _most_devices(self, pools: set[int]) -> int:
        return max((self._state.capacity.pools[pool].capacity.gpu_milli // _WHOLE for pool in pools), default=0)

    def _future(self) -> tuple[Ints, Ints]:
        """Sort keys (place of the node, time since now) and free quantities of every step."""
        places, ends, given_back = self._given_back()
        count = len(self._nodes)
        if not count:
            return np.empty(0, np.int64), np.empty((0, 3 + self._device_columns), np.int64)
        keys = np.concatenate((np.arange(count) << _TIME_BITS, places << _TIME_BITS | ends))
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        running = np.cumsum(np.concatenate((self._free_now(), given_back))[order], axis=0)
        # Each node's sums start anew: take off what the nodes before it left in the running sum.
        first = np.searchsorted(keys, np.arange(count) << _TIME_BITS)
        before = np.concatenate((np.zeros((1, running.shape[1]), np.int64), running))[first]
        free = running - before[keys >> _TIME_BITS]
        last = np.append(keys[1:] != keys[:-1], True)
        return keys[last], free[last]

    def _free_now(self) -> Ints:
        capacity = self._state.capacity
        besides = (capacity.free_cpu, capacity.free_memory, capacity.free_disk)
        columns = [view(column)[self._nodes] for column in besides]
        if not self._named:
            columns.append(np.bitwise_count(view(capacity.whole)[self._nodes]).astype(np.int64))
            return np.column_stack(columns)
        devices = np.zeros((len(self._nodes), self._device_columns), np.int64)
        numbers = device_numbers(capacity)
        for place_, node in enumerate(self._nodes.tolist()):
            first, count = capacity.device_base[node], capacity.device_count(node)
            devices[place_, :count] = numbers[first : first + count]
        return np.column_stack((*columns, devices))

    def _given_back(self) -> tuple[Ints, Ints, Ints]:
        """(place of the node, time since now, quantities) of everything that ends."""
        a, w = self._state.allocations, self._state.workloads
        rows = np.flatnonzero(view(a.workload) != NONE)
        place_of = np.full(len(self._state.capacity.node_ids), -1, np.int64)
        place_of[self._nodes] = np.arange(len(self._nodes))
        rows = rows[place_of[view(a.node)[rows]] >= 0]
        end_of = np.zeros(len(w.ids), np.int64)
        group_of = np.zeros(len(w.ids), np.int64)
        """First entry of the workload's groups in `demands`."""
        demands: list[tuple[int, int, int, int, int]] = []
        for end, row in all_expected_ends(self._state):
            end_of[row], group_of[row] = min(end - self._state.now_ms, HORIZON_MS - 1), len(demands)
            shapes = w.class_at(row).shapes
            demands += [(s.cpu, s.memory, s.disk, s.gpus, s.share or _WHOLE * (s.gpus > 0)) for s in shapes]
        owners = view(a.workload)[rows]
        demand = np.array(demands or [(0,) * 5], np.int64)[group_of[owners] + view(a.group)[rows]]
        counts = view(a.count)[rows].astype(np.int64)[:, None]
        if self._named:
            claims = view(a.devices)[rows]
            bits = mig.device_masks(claims)[:, None] >> np.arange(self._device_columns) & 1
            each = demand[:, 4] + mig.burdens(claims)
            given_back = np.column_stack((demand[:, :3] * counts, bits * each[:, None]))
        else:
            given_back = demand[:, :4] * counts
        return place_of[view(a.node)[rows]], end_of[owners], given_back

    # -- asking and holding -------------------------------------------------------------------------------------------

    def fits_now(self, workload_class: WorkloadClass, length_ms: int) -> bool:
        capacity = self._state.capacity
        groups = zip(workload_class.shapes, workload_class.counts, strict=True)
        return (
            all(capacity.could_hold(shape, count) for shape, count in groups)
            and self._place(workload_class, 0, length_ms) is not None
        )

    def start(self, workload_class: WorkloadClass, length_ms: int, *, new: bool) -> list[Claim] | None:
        capacity = self._state.capacity
        claims = self._place(workload_class, 0, length_ms, best=new)
        if claims is None:
            return None
        self._take(workload_class, claims, 0, length_ms)
        taken: list[Claim] = []
        for group, node, count, mask in claims:
            shape = workload_class.shapes[group]
            if self._named:
                capacity.take(node, shape, count, mask)
                taken.append((group, node, count, mask))
            else:
                taken.append((group, node, count, capacity.claim(node, shape, count)))
        return taken

    def hold(self, workload_class: WorkloadClass, length_ms: int) -> int | None:
        for start in self._candidates(workload_class, length_ms).tolist():
            claims = self._place(workload_class, start, length_ms)
            if claims is not None:
                self._take(workload_class, claims, start, length_ms)
                return int(self._state.now_ms + start)
        return None

    def _candidates(self, workload_class: WorkloadClass, length_ms: int) -> Ints:
        """Times since now from which, for as long as asked for, each group finds enough room at every moment, though
        perhaps not on the same nodes throughout."""
        if not len(self._nodes):
            return np.empty(0, np.int64)
        times = np.unique(self._keys & HORIZON_MS - 1)
        enough = np.ones(len(times), bool)
        first = np.append(True, np.diff(self._keys >> _TIME_BITS) > 0)
        request = workload_class.shapes[0].topology
        if request is not None and request.required is not None:
            return self._candidates_by_domain(workload_class, length_ms, request)
        for shape, count in zip(workload_class.shapes, workload_class.counts, strict=True):
            room = self._room(self._free, shape, self._keys >> _TIME_BITS)
            change = np.where(first, room, np.diff(room, prepend=0))
            total = np.zeros(len(times), np.int64)
            np.add.at(total, np.searchsorted(times, self._keys & HORIZON_MS - 1), change)
            enough &= np.cumsum(total) >= count
        starts = windows(times, enough, length_ms)
        return starts[starts + length_ms < HORIZON_MS]

    def _candidates_by_domain(self, workload_class: WorkloadClass, length_ms: int, request: TopologyRequest) -> Ints:
        """The same for a gang that must be in one domain: the times at which one of them has the room."""
        tree = self._tree
        level, _ = levels_asked(tree, request)
        nodes, at = self._keys >> _TIME_BITS, self._keys & HORIZON_MS - 1
        first = np.append(True, np.diff(nodes) > 0)
        inside = tree.domain[level][self._positions][nodes]
        order = np.lexsort((at, inside))
        changes = []
        for shape in workload_class.shapes:
            room = self._room(self._free, shape, nodes)
            changes.append(np.where(first, room, np.diff(room, prepend=0))[order])
        at, starts = at[order], np.flatnonzero(np.diff(inside[order], prepend=-1))
        found = []
        for begin, end in zip(starts, np.append(starts[1:], len(at)), strict=True):
            times, step = np.unique(at[begin:end], return_inverse=True)
            enough = np.ones(len(times), bool)
            for change, count in zip(changes, workload_class.counts, strict=True):
                total = np.zeros(len(times), np.int64)
                np.add.at(total, step, change[begin:end])
                enough &= np.cumsum(total) >= count
            if enough.any():
                found.append(windows(times, enough, length_ms))
        starting = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
        return np.asarray(starting[starting + length_ms < HORIZON_MS])

    def _room(self, free: Ints, shape: Shape, places: Ints) -> Ints:
        """The number of tasks of the shape that fit into each of the free quantities, given with their nodes."""
        usable = np.isin(self._places[places], self._places_of(shape))
        barred = self._barred(shape)
        if barred is not None:
            usable &= ~barred[places]
        room = np.where(usable, np.iinfo(np.int32).max, 0).astype(np.int64)
        for column, want in enumerate((shape.cpu, shape.memory, shape.disk)):
            if want:
                np.minimum(room, free[:, column] // want, out=room)
        devices = free[:, 3:]
        if shape.share:
            np.minimum(room, (np.maximum(devices, 0) // shape.share).sum(axis=1), out=room)
        elif shape.kinds:
            kinds = np.array(shape.kinds)[view(self._state.capacity.pool)[self._nodes[places]]]
            found = mig.instances_in(devices.ravel(), np.repeat(kinds, devices.shape[1]))
            np.minimum(room, found.reshape(devices.shape).sum(axis=1), out=room)
        elif shape.gpus:
            whole = (devices == _WHOLE).sum(axis=1) if self._named else devices[:, 0]
            np.minimum(room, whole // shape.gpus, out=room)
        return room

    def _barred(self, shape: Shape) -> Mask | None:
        """Nodes that are not for tasks of the shape though their partition is: by labels that are matched node by node,
        or by who is where now. A promise is made as if nobody of those left: none is made too early."""
        capacity = self._state.capacity
        if not capacity.reach(shape).loose and shape.terms is None:
            return None
        barred = self._bars.get(shape)
        if barred is None or barred[0] != capacity.company.version:
            barred = self._bars[shape] = capacity.company.version, ~capacity.usable_mask(shape)[self._nodes]
        return barred[1]

    def _place(
        self, workload_class: WorkloadClass, start: int, length_ms: int, *, best: bool = False
    ) -> list[Claim] | None:
        """The first nodes with room over the whole window, for the first order of groups in which all find it. A gang
        that asks for a level of the topology gets the first domain that is enough, or, if it is to have the `best`,
        the one that a placement of its own would get: that is for what starts as it comes. Whatever starts changes
        which is best, and what was promised, to it or around it, must not move for that."""
        if not len(self._nodes):
            return None
        free = self._least(start, length_ms)
        for choice in self._choices(workload_class, free, best=best):
            for order in orders_of_groups(workload_class.shapes):
                claims = self._place_in_order(workload_class, order, free.copy(), choice, best=best)
                if claims is not None:
                    return claims
        return None

    def _choices(self, workload_class: WorkloadClass, free: Ints, *, best: bool) -> Iterator[DomainChoice | None]:
        """The domains in which each group has room, as far as it asks for one; None stands for anywhere."""
        request = workload_class.shapes[0].topology
        if request is None:
            yield None
            return
        tree = self._tree
        required, preferred = levels_asked(tree, request)
        places = np.arange(len(self._nodes))
        rooms = np.stack([self._room(free, shape, places) for shape in workload_class.shapes])
        counts = np.array(workload_class.counts)[:, None]
        for level in tree.wider(preferred, required):
            inside = tree.domain[level][self._positions]
            size = len(tree.starts[level]) - 1
            sums = np.stack([np.bincount(inside, weights=room, minlength=size) for room in rooms])
            domains = np.flatnonzero((sums >= counts).all(axis=0))
            if best:
                domains = domains[np.lexsort((domains, sums[:, domains].sum(axis=0)))]
            for domain in domains.tolist():
                span = tree.bounds(level, domain)
                if tree.holds(required, span):
                    yield DomainChoice(span, tree.next_narrower(level) if level == preferred else preferred)

    def _place_in_order(
        self,
        workload_class: WorkloadClass,
        order_: tuple[int, ...],
        free: Ints,
        choice: DomainChoice | None,
        *,
        best: bool,
    ) -> list[Claim] | None:
        """Place one group after the other; their claims come off `free`."""
        shapes, counts = workload_class.shapes, workload_class.counts
        places = np.arange(len(self._nodes))
        claims: list[Claim] = []
        for group in order_:
            shape, order = shapes[group], self._order(shapes[group])
            every = self._room(free, shape, places)
            if choice is not None:
                low, high = choice.span
                every[(self._positions < low) | (self._positions >= high)] = 0
                if int(every.sum()) < counts[group]:
                    return None
            if shape.spread is not None:
                every = self._spread(shape, group, order, every, counts[group])
            elif choice is not None and best:
                order, every = self._picked(every, choice, counts[group])
            elif best:
                order = order[node_choice.by_score(self._state.capacity, shape, self._nodes[order])]
            room = every[order]
            reached = np.cumsum(room)
            if not len(reached) or reached[-1] < counts[group]:
                return None
            tasks = np.minimum(room, np.maximum(counts[group] - (reached - room), 0))
            for i in np.flatnonzero(tasks).tolist():
                claims += self._choose(free[order[i]], group, shape, int(self._nodes[order[i]]), int(tasks[i]))
        return claims

    def _spread(self, shape: Shape, group: int, order: Ints, room: Ints, count: int) -> Ints:
        """Tasks on every node for a group that is spread evenly, as far as the plan leaves room."""
        capacity = self._state.capacity
        if shape.spread is None:
            return room
        domain = capacity.domain_column(LEVELS.index(shape.spread.level))[self._nodes]
        have = node_choice.spread_counts(capacity, group, shape, [])
        return node_choice.evenly(order, room, domain, count, shape.spread.max_skew, have)

    def _picked(self, room: Ints, choice: DomainChoice, count: int) -> tuple[Ints, Ints]:
        """(nodes in the order of the tree, tasks on every node) for tasks that lie close together."""
        tree = self._tree
        by_position = np.zeros(len(tree.rows), np.int64)
        by_position[self._positions] = room
        positions, tasks = pick(tree, by_position, choice, count)
        place_of = np.zeros(len(tree.rows), np.int64)
        place_of[self._positions] = np.arange(len(self._nodes))
        picked = np.zeros(len(self._nodes), np.int64)
        picked[place_of[positions]] = tasks
        return place_of[positions], picked

    def _order(self, shape: Shape) -> Ints:
        """Nodes in the order the shape prefers their partitions, older ones first."""
        order = self._orders.get(shape)
        if order is None:
            found = [np.flatnonzero(self._places == place_) for place_ in self._places_of(shape)]
            order = self._orders[shape] = np.concatenate(found or [np.zeros(0, np.int64)])
        return order

    def _places_of(self, shape: Shape) -> list[int]:
        """The nodes that tasks of the shape may use, kept nodes first."""
        capacity = self._state.capacity
        reach, partitions = capacity.reach(shape), len(capacity.partitions)
        return [partition + (booking + 1) * partitions for booking, partition in reach.kept] + list(reach.open)

    def _least(self, start: int, length_ms: int) -> Ints:
        """The capacity of each node that is free throughout the window."""
        base = np.arange(len(self._nodes)) << _TIME_BITS
        first = np.searchsorted(self._keys, base + start, side="right") - 1
        last = np.searchsorted(self._keys, base + start + length_ms)
        return mig.throughout(self._free, first, last) if len(first) else self._free

    def _choose(self, free: Ints, group: int, shape: Shape, node: int, tasks: int) -> list[Claim]:
        """Claims for tasks on one node, taken off `free`; a part of a device is a claim of its own."""
        free[:3] -= np.array((shape.cpu, shape.memory, shape.disk)) * tasks
        if not shape.gpu_milli or not self._named:
            free[3:] -= shape.gpus * tasks
            return [(group, node, tasks, 0)]
        if shape.gpus:
            size = self._state.capacity.pools[self._state.capacity.pool[node]].nvlink_group
            whole = sum(1 << device for device in np.flatnonzero(free[3:] == _WHOLE).tolist())
            left = whole
            for _ in range(tasks):
                left &= ~closest(left, shape.gpus, size)
            chosen = np.flatnonzero((whole ^ left) >> np.arange(self._device_columns) & 1)
            free[3 + chosen] = 0
            return [(group, node, tasks, whole ^ left)]
        claims: list[Claim] = []
        if shape.kinds:
            kind = shape.kinds[self._state.capacity.pool[node]]
            for _ in range(tasks):
                claim = _instance(free[3:].tolist(), kind)
                free[3 + (mig.device_mask(claim).bit_length() - 1)] -= mig.burden(claim)
                claims.append((group, node, 1, claim))
            return claims
        for device in range(self._device_columns):
            here = min(max(int(free[3 + device]), 0) // shape.share, tasks - len(claims))
            free[3 + device] -= here * shape.share
            claims += [(group, node, 1, 1 << device)] * here
        return claims

    def _take(self, workload_class: WorkloadClass, claims: list[Claim], start: int, length_ms: int) -> None:
        """Take the claims off the future."""
        places = np.searchsorted(self._nodes, np.array([claim[1] for claim in claims], np.int64))
        for at in (start, start + length_ms):
            self._break(np.unique(places) << _TIME_BITS | at)
        taken = np.zeros((len(claims), self._free.shape[1]), np.int64)
        for i, (group, _, count, mask) in enumerate(claims):
            shape = workload_class.shapes[group]
            taken[i, :3] = shape.cpu * count, shape.memory * count, shape.disk * count
            if self._named:
                each = mig.burden(mask) if shape.kinds else shape.share or _WHOLE
                taken[i, 3:] = (mig.device_mask(mask) >> np.arange(self._device_columns) & 1) * each
            else:
                taken[i, 3] = shape.gpus * count
        change = np.zeros((len(self._keys) + 1, self._free.shape[1]), np.int64)
        np.add.at(change, np.searchsorted(self._keys, places << _TIME_BITS | start), -taken)
        np.add.at(change, np.searchsorted(self._keys, places << _TIME_BITS | start + length_ms), taken)
        self._free = self._free + np.cumsum(change, axis=0)[:-1]

    def _break(self, keys: Ints) -> None:
        """Have a step begin at each of the keys."""
        at = np.searchsorted(self._keys, keys)
        new = (at == len(self._keys)) | (np.append(self._keys, -1)[at] != keys)
        self._keys = np.insert(self._keys, at[new], keys[new])
        self._free = np.insert(self._free, at[new], self._free[at[new] - 1], axis=0)


def _instance(numbers: list[int], kind: int) -> int:
    """The claim of a MIG instance on one of the devices, of which some has it: one that is partitioned before one that
    is idle, lowest first. How an idle one is partitioned does not depend on what else is in use, or planning again
    could partition it otherwise."""
    for device, number in enumerate(numbers):
        if number < 0:
            layout, used = mig.read_number(number)
            free = mig.MEMBERS[layout][kind] & ~used
            if free:
                return mig.claim_of(device, layout, (free & -free).bit_length() - 1)
    layout = mig.layout_for(kind, [0] * len(mig.KINDS))
    first = mig.MEMBERS[layout][kind]
    return mig.claim_of(numbers.index(_WHOLE), layout, (first & -first).bit_length() - 1)


def windows(times: Ints, enough: Mask, length_ms: int) -> Ints:
    """The times from which every step is `enough` for that long. The last step lasts for good."""
    lacking = np.flatnonzero(~enough)
    end = np.append(times[lacking], np.iinfo(np.int64).max)[np.searchsorted(lacking, np.arange(len(times)))]
    return times[enough & (end - times >= length_ms)]


class ConservativePass:
    """One pass over all waiting work, in order. It stops as soon as nothing more can start: promises that no start
    depends on are not worked out.
    """

    def __init__(
        self, state: State, memory: CycleMemory, admission: Admission, binder: Binder, preemptor: Preemptor
    ) -> None:
        self._state = state
        self._memory = memory
        self._admission = admission
        self._binder = binder
        self._preemptor = preemptor

    def run(self) -> None:
        """Start what may start, and promise the rest their times."""
        state = self._state
        only_room_counts = self._only_room_counts()
        groups = state.pending.groups
        if only_room_counts and not any(self._may_fit(group.rows[group.front]) for group in groups.values()):
            self._memory.short_of_room = bool(groups)
            return
        self._waiting = {key: deque(group.rows[group.front :]) for key, group in groups.items() if key[3] != STOPPED}
        heads = [(key, rows[0]) for key, rows in self._waiting.items()]
        self._lineup = CandidateOrder(state, heads)
        self._plan = Conservative(state, state.settings.reservation_depth)
        self._hopeful = heads[:] if only_room_counts else None
        while (first := self._next()) is not None:
            if not self._look_at(*first):
                return
        self._memory.promises = self._plan.starts

    def _next(self) -> tuple[Order, Key] | None:
        """The candidate whose turn it is; None when none is left that can start."""
        hopeful = self._hopeful
        while hopeful and (not self._waiting[hopeful[-1][0]] or not self._plan.may_start(hopeful[-1][1])):
            hopeful.pop()
        first = self._lineup.first()
        if first is None or (hopeful is not None and not hopeful):
            self._memory.short_of_room = first is not None
            return None
        return first

    def _look_at(self, order: Order, key: Key) -> bool:
        """Start or promise it, and say who follows. False when others were stopped for it: the plan is of a past."""
        lineup, waiting = self._lineup, self._waiting[key]
        waiting.popleft()
        before = self._state.changes_mark
        verdict = self._start_or_promise(order[3])
        if self._state.changes_mark != before:
            return False
        follower = waiting[0] if waiting else None
        if verdict == CandidateVerdict.STARTED:
            lineup.started(follower)
            ahead = lineup.first()
            self._memory.note_decision(order, None if ahead is None else ahead[0])
            return True
        lineup.drop()
        if verdict == CandidateVerdict.QUEUE_CLOSED or self._state.is_strict(key[1]):
            lineup.leave_out(key[1])
        elif verdict == CandidateVerdict.NO_CAPACITY and not self._plan.full and follower is not None:
            lineup.put(key, follower)
        return True

    def _may_fit(self, row: int) -> bool:
        """A quick necessary condition for a start on open nodes."""
        workload_class = self._state.workloads.class_at(row)
        pairs = zip(workload_class.shapes, workload_class.least, strict=True)
        return all(self._state.capacity.could_hold(shape, count) for shape, count in pairs)

    def _only_room_counts(self) -> bool:
        """True if room on open nodes alone decides starts."""
        bookings = self._state.bookings
        preempted = self._preemptor.anyone_preempts()
        return not (preempted or bookings.reservations or bookings.clearings or self._state.stretched)

    def _start_or_promise(self, row: int) -> CandidateVerdict:
        """Start the workload if the plan allows, or promise it its time."""
        closed = self._admission.closed_gate(row)
        if closed is not None:
            return closed
        verdict = self._start(row)
        if verdict in (CandidateVerdict.STARTED, CandidateVerdict.PROMISED_QUOTA):
            return verdict
        made_room = self._preemptor.make_room(row)
        if made_room is not None:
            return made_room
        if verdict == CandidateVerdict.NO_CAPACITY:
            self._memory.short_of_room = True
            self._plan.promise(row)
        return verdict

    def _start(self, row: int) -> CandidateVerdict:
        """Start it in the first of its variants that quota and the plan allow."""
        state, plan = self._state, self._plan
        verdict = CandidateVerdict.NO_QUOTA
        for borrow in (False, True) if state.queues.flavored(state.workloads.queue[row]) else (True,):
            for shapes in variants(state, row):
                allowed = counts_in_quota(state, row, shapes, borrow=borrow)
                if allowed is None:
                    continue
                if plan.needs_quota(row):
                    return CandidateVerdict.PROMISED_QUOTA
                verdict = CandidateVerdict.NO_CAPACITY
                for counts in dict.fromkeys((allowed, state.workloads.class_at(row).least)):
                    claims = plan.start(row, shapes, counts)
                    if claims is not None:
                        self._binder.bind(row, shapes, claims, backfilled=bool(plan.starts))
                        return CandidateVerdict.STARTED
        return verdict
