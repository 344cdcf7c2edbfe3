"""The reasons why a workload waits: one primary reason that is true now, then the others.

Reasons are worked out on request, by the scheduler's own tests and in its order. They are kept for all workloads that
wait for the same until something changes. Nothing is stored that could go stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np

from engine.capacity.devices import Census, census
from engine.capacity.index import OPEN
from engine.capacity.task_shapes import Shape, task_size
from engine.capacity.topology import NearestDomain, domain_room, levels_asked, nearest
from engine.elasticity.scaling_report import outlook
from engine.external.slurm.limits import outside_reasons, outside_token, without_cycle
from engine.model.columns import Numbers, view
from engine.model.details import Reason
from engine.model.quantities import shortlist, usd, utc
from engine.model.specs import LEVELS, RESOURCES, NodeState, QueueMode, WorkloadState, quantity
from engine.placement.fragmentation import free_gpu, in_one_piece
from engine.placement.gang_placement import place, unplace, variants
from engine.placement.node_choice import Bar, bars, condition, could_be, grows, named_taints
from engine.reads.preemption_bars import preemption_bars
from engine.reads.quota_reasons import QUOTA as QUOTA
from engine.reads.quota_reasons import quota_reason
from engine.scheduling.backfill import PromisedStart
from engine.scheduling.candidate_order import order_of
from engine.scheduling.cycle_memory import CycleMemory
from engine.state.cell_changes import Reservation as Booked
from engine.state.cell_state import State
from engine.state.pending_work import STOPPED
from engine.state.queue_tree import Charge, Lack
from engine.state.workloads import DEPENDS_ON, NONE

ON_HOLD = "OnHold"
SUSPENDED = "Suspended"
NEVER = "DependencyNeverSatisfied"
DEPENDENCY = "WaitingForDependency"
BACKOFF = "Backoff"
START_TIME = "WaitingForStartTime"
PREEMPTED = "WaitingForPreempted"
QUEUE_HELD = "QueueHeld"
BEHIND = "BehindInQueue"
ARRAY_LIMIT = "ArrayLimit"
CAP = "OutsideLimit"
BUDGET = "BudgetHold"
NO_NODES = "NoMatchingNodes"
CAPACITY = "InsufficientCapacity"
FRAGMENTED = "Fragmented"
SCATTERED = "NoDomainFits"
RESERVED = "WaitingForReservation"
UNSEEN = "AwaitingEvaluation"
TURNED = "TurnedOnDemand"

GPU = RESOURCES.index("gpu_milli")
FEW = 256
"""Rows whose tokens are looked up one by one."""
MAX_KINDS = 1 << 22
Kind = tuple[int, int, int]
"""(priority class row, queue row, class row): what like workloads share. In place of the class row, a negative number
of its own for one that differs from its like."""


class Explainer:
    """Answers for one version of the state at a time."""

    def __init__(self, state: State, memory: CycleMemory) -> None:
        self._state = state
        self._memory = memory
        self._version = -1
        self._room = ShapeRoom(state)
        self._heads: dict[int, int] = {}
        self._waiting: dict[Kind, QueueBlockers] = {}
        self._starts: dict[int, int | None] = {}
        self._outlooks: dict[int, tuple[Reason, ...]] = {}

    def token(self, row: int) -> str:
        """The primary reason's token, without working out its numbers; empty unless the workload waits."""
        w = self._state.workloads
        said = outside_token(self._state, row)
        if said:
            return said
        if w.state[row] == WorkloadState.QUEUED:
            return self._queued(row).tokens[0]
        reasons = _parked(self._state, row)
        return reasons[0].token if reasons else ""

    def tokens(self, rows: Numbers) -> tuple[Numbers, list[str]]:
        """(code of the token of each row, tokens by code) of many rows that wait: one of each kind is looked at."""
        names: dict[str, int] = {}

        def code(row: int) -> int:
            return names.setdefault(self.token(row), len(names))

        codes = np.zeros(len(rows), np.int32)
        if self._state.outside.word:
            # Each has its own word.
            return np.array([code(row) for row in rows.tolist()], np.int32), list(names)
        like = self._like_others(rows) if len(rows) > FEW else np.zeros(len(rows), bool)
        for at in np.flatnonzero(~like).tolist():
            codes[at] = code(int(rows[at]))
        alike = np.flatnonzero(like)
        if len(alike):
            w, chosen = self._state.workloads, rows[alike]
            # Which gate is closed to it is no matter of its priority; what is said of that may be.
            kinds = view(w.queue)[chosen].astype(np.int64) * len(w.classes) + view(w.cls)[chosen]
            firsts, kind_of = _firsts(kinds, len(self._state.queues.specs) * len(w.classes))
            codes[alike] = np.array([code(row) for row in chosen[firsts].tolist()], np.int32)[kind_of]
        return codes, list(names)

    def _like_others(self, rows: Numbers) -> Numbers:
        """Mask of those that share their token with all of their kind, as `_queued` has it."""
        state, w = self._state, self._state.workloads
        if state.budgets.specs:
            return np.zeros(len(rows), bool)
        self._renew()
        queues = view(w.queue)[rows]
        like: Numbers = (view(w.state)[rows] == WorkloadState.QUEUED) & (view(w.kept)[rows] == 0)
        own = {*self.promised(), *(clearing.row for clearing in state.bookings.clearings)}
        for queue in np.unique(queues[like]).tolist():
            if state.is_strict(queue):
                self._ahead_of(int(rows[np.flatnonzero(like & (queues == queue))[0]]))
                own.add(self._heads[queue])
        like[np.isin(rows, list(own))] = False
        return like

    def reasons(self, row: int) -> tuple[Reason, ...]:
        """Primary first; empty unless the workload waits. Where another scheduler decides, its word is first, and what
        follows is what the mirror makes of it."""
        said = outside_reasons(self._state, row)
        if self._state.workloads.state[row] == WorkloadState.QUEUED:
            own = self._queued(row).reasons + _turned(self._state, row)
            by = self._state.settings.decided_by
            return (*said, *own) if by == "muster" else (*said, *without_cycle(own, by))
        return (*said, *_parked(self._state, row))

    def outlook(self, row: int) -> tuple[Reason, ...]:
        """The report on nodes to come, where it waits for room and pools grow. Costs a scan of the autoscaler."""
        if self._state.workloads.state[row] != WorkloadState.QUEUED or _OF_ROOM.isdisjoint(self._queued(row).tokens):
            return ()
        if row not in self._outlooks:
            found = outlook(self._state, row)
            self._outlooks[row] = () if found is None else (found,)
        return self._outlooks[row]

    def start_bound(self, row: int) -> int | None:
        """Cell time before which it does not start: enough is free then if estimates hold and nothing else takes it. A
        bound, no forecast. None when unknown.

        Looks at capacity only: what waits for quota, or for people, has no such time.
        """
        state = self._state
        if state.workloads.state[row] != WorkloadState.QUEUED:
            return None
        tokens = self._queued(row).tokens
        if PREEMPTED in tokens:
            clearing = state.bookings.clearing_for(row)
            return None if clearing is None else clearing.at_ms
        if not _WITHOUT_A_TIME.isdisjoint(tokens):
            return None
        promised_ms = self.promised().get(row)
        if promised_ms is not None:
            return promised_ms
        cls = state.workloads.cls[row]
        if cls not in self._starts:
            self._starts[cls] = PromisedStart(state, row).start_ms
        return self._starts[cls]

    def promised(self) -> dict[int, int]:
        """Workload row -> cell time at which the policy has promised it a start."""
        return _promised(self._state, self._memory)

    def _queued(self, row: int) -> QueueBlockers:
        """The blockers of a queued workload; evaluated once for all of its kind."""
        self._renew()
        state = self._state
        w = state.workloads
        ahead = self._ahead_of(row)
        alone = w.kept[row] or state.bookings.clearing_for(row) is not None or row in self.promised()
        first_of_strict = ahead == NONE and self._state.is_strict(w.queue[row])
        stopped = bool(state.budgets.specs) and state.budgets.stopping(state, row) is not None
        alone = alone or first_of_strict or stopped
        kind = (w.priority[row], w.queue[row], -1 - row if alone else w.cls[row])
        found = self._waiting.get(kind)
        if found is None:
            found = self._waiting[kind] = QueueBlockers(state, self._memory, self._room, row, ahead)
        return found

    def _renew(self) -> None:
        """Forget what is of another version."""
        if self._version != self._state.version:
            self._version = self._state.version
            self._room = ShapeRoom(self._state)
            self._heads.clear()
            self._waiting.clear()
            self._starts.clear()
            self._outlooks.clear()

    def _ahead_of(self, row: int) -> int:
        """The first of its queue, where nothing starts before that; NONE when nothing is in its way."""
        state = self._state
        queue = state.workloads.queue[row]
        if not state.is_strict(queue) or state.pending_key(row)[3] == STOPPED:
            return NONE
        if queue not in self._heads:
            waiting = state.pending.groups.items()
            groups = ((key, group) for key, group in waiting if key[1] == queue and key[3] != STOPPED)
            self._heads[queue] = min(order_of(state, key, group.rows[group.front]) for key, group in groups)[-1]
        first = self._heads[queue]
        return NONE if first == row else first


def _firsts(kinds: Numbers, most: int) -> tuple[Numbers, Numbers]:
    """(position of the first of each kind there is, which of these each position is of)"""
    if most > MAX_KINDS:
        _, firsts, kind_of = np.unique(kinds, return_index=True, return_inverse=True)
        return firsts, kind_of
    first = np.full(most, -1, np.int64)
    # What is written last stays.
    first[kinds[::-1]] = np.arange(len(kinds))[::-1]
    there = np.flatnonzero(first >= 0)
    number = np.zeros(most, np.int64)
    number[there] = np.arange(len(there))
    return first[there], number[kinds]


_OF_ROOM = frozenset((CAPACITY, FRAGMENTED, SCATTERED, NO_NODES))
"""Gates that new nodes may open."""


def _turned(state: State, row: int) -> tuple[Reason, ...]:
    """The reason that it waits for fewer machines than it requested, because of its deadline."""
    w = state.workloads
    if not w.terms[row] or not w.has_turned(row):
        return ()
    text = "turned to on-demand machines: its deadline leaves no slack for spot machines"
    return (Reason(token=TURNED, text=text),)


_WITHOUT_A_TIME = frozenset((QUEUE_HELD, ARRAY_LIMIT, CAP, BUDGET, NO_NODES, QUOTA))


class ShapeRoom:
    """Room for tasks of a shape in one version of the state, counted once for each shape."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._slots: dict[Shape, int] = {}
        self._suits: dict[Shape, bool] = {}
        self._devices: dict[Shape, Census] = {}
        self._bars: dict[Shape, list[Bar]] = {}

    def devices(self, shape: Shape) -> Census:
        """Devices of the nodes that such tasks may use."""
        found = self._devices.get(shape)
        if found is None:
            found = self._devices[shape] = census(self._state.capacity, shape)
        return found

    def bars(self, shape: Shape) -> list[Bar]:
        """The obstacles between such tasks and nodes with room."""
        found = self._bars.get(shape)
        if found is None:
            found = self._bars[shape] = bars(self._state, shape)
        return found

    def suits(self, shape: Shape) -> bool:
        """True if there is a node, in any state, that such tasks may ever use, or one could be ordered."""
        found = self._suits.get(shape)
        if found is None:
            state = self._state
            found = self._suits[shape] = any(could_be(state, shape, state.capacity.suited(shape)))
        return found

    def slots(self, shape: Shape) -> int:
        """Tasks that fit now."""
        found = self._slots.get(shape)
        if found is None:
            found = self._slots[shape] = self._state.capacity.slots(shape)
        return found

    def in_sum(self, shape: Shape) -> int:
        """Tasks that would fit if what is free, on all the nodes it may use together, were in one piece."""
        return in_one_piece(self._state.capacity, shape)

    def kept_from(self, shape: Shape) -> tuple[list[int], int]:
        """(bookings, tasks that would fit on their nodes) of the nodes that are kept from tasks of the shape."""
        capacity = self._state.capacity
        mine = set(shape.booked)
        kept = [(booking, capacity.partitions[partition].pool) for booking, partition in capacity.booked]
        kept = [(booking, pool) for booking, pool in kept if pool in shape.pool_set]
        kept = sorted(set(kept) - mine)
        slots = self.slots(shape.limited((), tuple(kept))) if kept else 0
        return sorted({booking for booking, _ in kept}), slots


class QueueBlockers:
    """The blockers of a queued workload, and of all of its kind."""

    def __init__(self, state: State, memory: CycleMemory, room: ShapeRoom, row: int, ahead: int) -> None:
        """`ahead`: the workload that strictly goes first; NONE when there is none."""
        self._state = state
        self._memory = memory
        self._room = room
        self._row = row
        self._ahead = ahead
        self._class = state.workloads.class_at(row)
        self._queue = state.workloads.queue[row]

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """The tokens of closed gates, in the order in which the scheduler comes to them."""
        return tuple(self._closed_gates()) or (UNSEEN,)

    @cached_property
    def reasons(self) -> tuple[Reason, ...]:
        return tuple(reason for token in self.tokens for reason in _DESCRIBE[token](self))

    # -- the gates ----------------------------------------------------------------------------------------------------

    def _closed_gates(self) -> Iterator[str]:
        if self._state.bookings.clearing_for(self._row) is not None:
            yield PREEMPTED
        if not self._state.queues.is_open(self._queue):
            yield QUEUE_HELD
        if self._ahead != NONE:
            yield BEHIND
        if self._state.workloads.at_array_limit(self._row):
            yield ARRAY_LIMIT
        if self._state.caps.any and self._state.caps.stopping(self._row) is not None:
            yield CAP
        if self._state.budgets.specs and self._state.budgets.stopping(self._state, self._row) is not None:
            yield BUDGET
        if self._own_reservation_keeps_it():
            yield RESERVED
        elif not self._ways:
            yield NO_NODES
        else:
            yield from self._quota_and_room()

    def _own_reservation_keeps_it(self) -> bool:
        """True if it may use only nodes reserved for a time that has not come."""
        return self._own_reservation is not None and self._state.now_ms < self._own_reservation.spec.start_ms

    def _quota_and_room(self) -> Iterator[str]:
        if not self._in_quota:
            yield QUOTA
        ways = self._in_quota or self._ways
        if self._memory.refusals.lacks_room(self._row) or all(self._lacks_room(shapes) for shapes in ways):
            if self._state.capacity.booked and self._kept_from(ways[0]):
                yield RESERVED
            if self._nearest(ways[0]) is not None:
                yield SCATTERED
            else:
                yield FRAGMENTED if self._is_scattered(ways[0]) else CAPACITY
        elif self._would_delay():
            yield RESERVED

    @cached_property
    def _own_reservation(self) -> Booked | None:
        """The advance reservation it names, while there is one."""
        name = self._class.reservation
        return next((r for r in self._state.bookings.reservations if name and r.spec.name == name), None)

    @cached_property
    def _ways(self) -> list[tuple[Shape, ...]]:
        """Its variants in which each group has nodes to run on, whatever their state."""
        if self._class.reservation and self._own_reservation is None:
            return []
        return [
            shapes
            for shapes in variants(self._state, self._row)
            if all(shape.booked or self._room.suits(shape) for shape in shapes)
        ]

    @cached_property
    def _in_quota(self) -> list[tuple[Shape, ...]]:
        """The ways that quota allows, with the fewest tasks it can start with."""
        return [shapes for shapes in self._ways if self._lack(shapes) is None]

    def _lack(self, shapes: tuple[Shape, ...]) -> Lack | None:
        return self._state.queues.lack(self._queue, self._charge(shapes), self._state.now_ms)

    def _charge(self, shapes: tuple[Shape, ...]) -> Charge:
        # Where they are the same, all of them is known.
        counts = self._class.counts if self._class.rigid else self._class.least
        return self._state.charge_if(self._row, shapes, counts)

    def _lacks_room(self, shapes: tuple[Shape, ...]) -> bool:
        """True if its fewest tasks do not fit: each group counted alone, then all of them placed together."""
        if self._short(shapes):
            return True
        if len(shapes) == 1 and shapes[0].topology is None:
            return False
        capacity = self._state.capacity
        claims = place(capacity, shapes, self._class.least)
        if claims is not None:
            unplace(capacity, shapes, claims)
        return claims is None

    def _short(self, shapes: tuple[Shape, ...]) -> list[tuple[Shape, int]]:
        """(shape, tasks needed) of the groups that do not find room even alone."""
        pairs = zip(shapes, self._class.least, strict=True)
        return [(shape, count) for shape, count in pairs if self._room.slots(shape) < count]

    def _nearest(self, shapes: tuple[Shape, ...]) -> NearestDomain | None:
        """The domain of the required level that comes nearest to having room, where that is all that lacks: each group
        has room in the cell, and no domain has room for each. None otherwise."""
        topology = shapes[0].topology
        if topology is None or topology.required is None or self._short(shapes):
            return None
        capacity = self._state.capacity
        level, _ = levels_asked(domain_room(capacity).tree, topology)
        found = nearest(capacity, shapes, self._class.least, level)
        return found if any(room < count for room, count in zip(found.room, self._class.least, strict=True)) else None

    def _is_scattered(self, shapes: tuple[Shape, ...]) -> bool:
        """True if enough is free for each group, but not in pieces that hold its tasks."""
        could_hold = self._state.capacity.could_hold
        if not all(could_hold(shape, count) for shape, count in zip(shapes, self._class.least, strict=True)):
            return False
        short = self._short(shapes)
        return bool(short) and all(self._room.in_sum(shape) >= count for shape, count in short)

    def _kept_from(self, shapes: tuple[Shape, ...]) -> list[int]:
        """Bookings without which every group would find its room; empty when that would not help."""
        bookings: set[int] = set()
        for shape, count in self._short(shapes):
            kept, slots = self._room.kept_from(shape)
            if self._room.slots(shape) + slots < count:
                return []
            bookings.update(kept)
        return sorted(bookings)

    def _would_delay(self) -> bool:
        """True if it fits, but a start now would delay promised starts."""
        if self._state.policy == "conservative":
            return True
        promise = self._memory.reservation
        if promise is None or promise.row == self._row:
            return False
        return not promise.ends_in_time(self._row) or promise.needs_quota(self._row)

    # -- the sentences ------------------------------------------------------------------------------------------------

    def _clearing(self) -> Iterator[Reason]:
        clearing = self._state.bookings.clearing_for(self._row)
        if clearing is not None:
            victims = shortlist([self._state.workloads.ids[victim] for victim in clearing.victims], 3)
            writes = _plural(len(clearing.victims), "writes a checkpoint", "write checkpoints")
            yield Reason(token=PREEMPTED, text=f"{victims} {writes} to make room, until {utc(clearing.at_ms)}")

    def _held_queue(self) -> Iterator[Reason]:
        queues = self._state.queues
        for vertex in queues.path[self._queue]:
            mode = QueueMode(queues.mode[vertex])
            if mode != QueueMode.OPEN:
                name = queues.specs[vertex].name
                yield Reason(token=QUEUE_HELD, text=f"queue {name} is {mode.label}", unblock=f"open queue {name}")

    def _budget(self) -> Iterator[Reason]:
        budgets, now_ms = self._state.budgets, self._state.now_ms
        budget = budgets.stopping(self._state, self._row)
        if budget is not None:
            spec, outlook = budgets.specs[budget], budgets.outlook(budget, now_ms)
            text = (
                f"budget {spec.name} of {spec.scope} {spec.of} has spent {usd(outlook.spent)} of "
                f"{usd(spec.limit_microusd)}; its next window starts {utc(outlook.window_end_ms)}"
            )
            raised = f"budget {spec.name} is raised"
            approved = f"its spending is approved, or {raised}"
            yield Reason(token=BUDGET, text=text, unblock=approved if spec.action == "approve" else raised)

    def _behind(self) -> Iterator[Reason]:
        state = self._state
        first, queue = state.workloads.ids[self._ahead], state.queues.specs[self._queue].name
        if state.pending.by_class:
            rule, change = f"queue {queue} is strictly first in, first out", f"queue {queue} gets another order"
        else:
            rule, change = "the policy is first come, first served", "the policy becomes easy"
        yield Reason(
            token=BEHIND,
            text=f"nothing in queue {queue} starts before {first}, which is ahead: {rule}",
            unblock=f"the workloads ahead of it start, or {change}",
        )

    def _array(self) -> Iterator[Reason]:
        w = self._state.workloads
        array = w.array[self._row]
        name, limit = w.array_names.names[array], w.array_limits[array]
        yield Reason(
            token=ARRAY_LIMIT,
            text=f"{w.array_running[array]} members of array {name} are running, limit {limit}",
            unblock=f"one of them ends, or array {name} gets a higher limit",
        )

    def _cap(self) -> Iterator[Reason]:
        full = self._state.caps.stopping(self._row)
        assert full is not None
        yield Reason(
            token=CAP,
            text=f"the limit {full.name} lets {full.most:,} run together: {full.used:,} are in use, and it needs "
            f"{full.wanted:,}",
            unblock=f"work that {full.name} counts ends, or the limit is raised in Slurm",
        )

    def _no_nodes(self) -> Iterator[Reason]:
        reservation = self._class.reservation
        named_pools = self._state.queues.flavors_of(self._queue)
        if reservation and self._own_reservation is None:
            text = f"its reservation {reservation} is over"
        elif self._class.shapes and (lacking := self._no_such_nodes()):
            text = lacking
        elif named_pools:
            text = (
                f"no node in {shortlist(list(named_pools), 3)}, the pools of its queue, meets the request of its tasks"
            )
        else:
            text = "no node of the cell meets the request of its tasks"
        yield Reason(token=NO_NODES, text=text)

    def _no_such_nodes(self) -> str:
        """The labels or taints that keep it from every node that is large enough; empty when other causes do."""
        capacity = self._state.capacity
        for shape in self._class.shapes:
            if not any(capacity.suited(shape)) and any(capacity.suited(shape, labels=False, taints=False)):
                if not any(capacity.suited(shape, taints=False)):
                    return (
                        f"no node of its pools has {' and '.join(map(condition, shape.labels))}, as its tasks ask for"
                    )
                names = named_taints(capacity, shape, capacity.labelled(shape.labels))
                return f"every suitable node has a taint that it does not tolerate: {names}"
        return ""

    def _quota(self) -> Iterator[Reason]:
        """The missing quota in the way to start that it prefers."""
        shapes = self._ways[0]
        lack = self._lack(shapes)
        if lack is not None:
            charge = self._charge(shapes)
            yield quota_reason(self._state, lack, dict(charge)[lack.slot])
            yield from preemption_bars(self._state, self._row, charge, lack)

    def _insufficient(self) -> Iterator[Reason]:
        short = self._short(self._first_way)
        for shape, count in short:
            slots = self._room.slots(shape)
            text = f"{_tasks(count)} of {task_size(shape)} needed at once, room for {slots} now"
            text += f" in {self._pools(shape)}{self._not_ready(shape)}{self._partitioned(shape)}"
            yield Reason(token=CAPACITY, text=text, unblock=f"room for {_tasks(count - slots)} more")
            yield from self._barred(shape)
        if not short:
            pairs = zip(self._first_way, self._class.least, strict=True)
            each = (
                f"{_tasks(count)} of {task_size(shape)}, with room for {self._room.slots(shape)}"
                for shape, count in pairs
            )
            text = f"each of its groups would fit alone ({'; '.join(each)}), but not all of them together"
            yield Reason(token=CAPACITY, text=text, unblock="room for its groups on different nodes")

    def _partitioned(self, shape: Shape) -> str:
        """The part of MIG in it: a device keeps its instances for as long as one of them is in use."""
        if not shape.gpu_milli:
            return ""
        found = self._room.devices(shape)
        if shape.mig:
            return (
                f"; {found.free} {shape.mig} free on {_devices(found.partitioned)} partitioned, {found.idle} idle, "
                f"{found.otherwise} in other use"
            )
        return f"; {_devices(found.partitioned)} partitioned" if found.partitioned else ""

    def _fragmented(self) -> Iterator[Reason]:
        for shape, count in self._short(self._first_way):
            slots = self._room.slots(shape)
            text = (
                f"{_tasks(count)} of {task_size(shape)} needed at once; what is free in {self._pools(shape)} would "
                f"hold {self._room.in_sum(shape)}, but it is fragmented and holds {slots}"
            )
            if shape.gpu_milli:
                free, usable = free_gpu(self._state.capacity, shape), slots * shape.gpu_milli
                text += f": free {quantity(GPU, free)}, usable {quantity(GPU, usable)}"
            yield Reason(token=FRAGMENTED, text=text, unblock=f"{_tasks(count - slots)} more in whole pieces")
            yield from self._barred(shape)

    def _barred(self, shape: Shape) -> Iterator[Reason]:
        """Nodes that have room and are not for it."""
        for bar in self._room.bars(shape):
            text = f"{_nodes(bar.nodes)} with room {bar.text}"
            yield Reason(token=bar.token, text=text, unblock=bar.unblock)

    def _no_domain(self) -> Iterator[Reason]:
        shapes = self._first_way
        found = self._nearest(shapes)
        if found is None:
            return
        level = LEVELS[found.level]
        for shape, count, room in zip(shapes, self._class.least, found.room, strict=True):
            if room < count:
                yield Reason(
                    token=SCATTERED,
                    text=f"no {level} has room for {_tasks(count)} of {task_size(shape)} at once: the best, "
                    f"{found.name}, has {room}; the cell has {self._room.slots(shape)}",
                    unblock=f"room for {_tasks(count - room)} more in {level} {found.name}",
                )

    def _reserved(self) -> Iterator[Reason]:
        state = self._state
        own, promised = self._own_reservation, _promised(state, self._memory)
        if own is not None and self._own_reservation_keeps_it():
            text = f"may use only the nodes of reservation {own.spec.name}, which starts at {utc(own.spec.start_ms)}"
            yield Reason(token=RESERVED, text=text)
        elif self._lacks_room(self._first_way) and (kept := self._kept_from(self._first_way)):
            yield from self._nodes_kept(kept)
        else:
            # On another of its ways it fits.
            yield self._in_the_way(promised)

    def _in_the_way(self, promised: dict[int, int]) -> Reason:
        """The first promised start that is in the way."""
        others = sorted((start_ms, row) for row, start_ms in promised.items() if row != self._row)
        first = self._state.workloads.ids[others[0][1]] if others else "what goes before it"
        when = f" at {utc(others[0][0])}" if others else ""
        promise = self._memory.reservation
        if promise is not None and promise.needs_quota(self._row):
            text = f"fits now, but would take quota needed for the promised start of {first}{when}"
            return Reason(token=RESERVED, text=text, unblock=f"more quota, or the start of {first}")
        text = f"fits now, but would delay the promised start of {first}{when}"
        return Reason(token=RESERVED, text=text, unblock=f"a shorter estimate, or the start of {first}")

    def _nodes_kept(self, bookings: list[int]) -> Iterator[Reason]:
        state = self._state
        nodes = np.bincount(view(state.capacity.booking) - OPEN)
        for reservation in state.bookings.reservations:
            if reservation.booking in bookings:
                spec = reservation.spec
                yield Reason(
                    token=RESERVED,
                    text=f"{_nodes(len(spec.nodes))} it could use are held by reservation {spec.name}, from "
                    f"{utc(spec.start_ms)} until {utc(spec.end_ms)}",
                    unblock=f"the end of {spec.name}, or an estimate that ends before it begins",
                )
        for clearing in state.bookings.clearings:
            if clearing.booking in bookings:
                first = state.workloads.ids[clearing.row]
                kept = _nodes(int(nodes[clearing.booking - OPEN]))
                yield Reason(
                    token=RESERVED,
                    text=f"{kept} it could use are kept for {first}, which starts there at {utc(clearing.at_ms)}",
                    unblock=f"the start of {first}",
                )

    def _unseen(self) -> Iterator[Reason]:
        yield Reason(token=UNSEEN, text="the next scheduling cycle decides")

    @property
    def _first_way(self) -> tuple[Shape, ...]:
        return (self._in_quota or self._ways)[0]

    def _pools(self, shape: Shape) -> str:
        pools = self._state.capacity.pools
        known = [pool for pool in shape.pools if self._state.capacity.pool_nodes[pool] or grows(pools[pool])]
        if not known:
            return "the nodes of its reservation"
        return f"{_plural(len(known), 'pool', 'pools')} {shortlist([pools[pool].name for pool in known], 3)}"

    def _not_ready(self, shape: Shape) -> str:
        capacity = self._state.capacity
        if not capacity.not_ready:
            return ""
        mine = np.isin(view(capacity.pool), shape.pools) & (view(capacity.state) != NodeState.REMOVED)
        count = int((mine & (view(capacity.state) != NodeState.READY)).sum())
        return f"; {count} of {_nodes(int(mine.sum()))} there are not ready" if count else ""


_DESCRIBE: dict[str, Callable[[QueueBlockers], Iterator[Reason]]] = {
    PREEMPTED: QueueBlockers._clearing,
    QUEUE_HELD: QueueBlockers._held_queue,
    BEHIND: QueueBlockers._behind,
    ARRAY_LIMIT: QueueBlockers._array,
    CAP: QueueBlockers._cap,
    BUDGET: QueueBlockers._budget,
    NO_NODES: QueueBlockers._no_nodes,
    QUOTA: QueueBlockers._quota,
    CAPACITY: QueueBlockers._insufficient,
    FRAGMENTED: QueueBlockers._fragmented,
    SCATTERED: QueueBlockers._no_domain,
    RESERVED: QueueBlockers._reserved,
    UNSEEN: QueueBlockers._unseen,
}


def _promised(state: State, memory: CycleMemory) -> dict[int, int]:
    if state.policy == "conservative":
        queued = WorkloadState.QUEUED
        return {row: at for row, at in memory.promises.items() if state.workloads.state[row] == queued}
    promise = memory.reservation
    return {} if promise is None or promise.start_ms is None else {promise.row: promise.start_ms}


# -- what waits outside the queue -------------------------------------------------------------------------------------


def _parked(state: State, row: int) -> tuple[Reason, ...]:
    """Reasons of a workload that is not considered at all: for people, for others, for its time."""
    w = state.workloads
    own: list[Reason] = []
    if w.state[row] == WorkloadState.HELD:
        own = [Reason(token=ON_HOLD, text="an operator or its owner put it on hold", unblock=f"release {w.ids[row]}")]
    elif w.state[row] == WorkloadState.SUSPENDED:
        text = "an operator or its owner suspended it; what it had done up to its last checkpoint is kept"
        own = [Reason(token=SUSPENDED, text=text, unblock=f"resume {w.ids[row]}")]
    elif w.state[row] != WorkloadState.WAITING:
        return ()
    return (*own, *_dependencies(state, row), *_time(state, row))


def _dependencies(state: State, row: int) -> list[Reason]:
    """The dependencies, those that can never be met first."""
    w = state.workloads
    hopeless, open_ = [], []
    for target, kind in w.dependencies(row):
        what = f"{w.ids[target]}, which is {WorkloadState(w.state[target]).label},"
        verb = _MEANS[DEPENDS_ON[kind]]
        if w.hopeless(target, kind):
            hopeless.append(Reason(token=NEVER, text=f"waits for {what} to {verb}: that can no longer happen"))
        else:
            text = f"waits for {what} to {verb}"
            unblock = f"{w.ids[target]} {_HAPPENS[DEPENDS_ON[kind]]}"
            open_.append(Reason(token=DEPENDENCY, text=text.rstrip(","), unblock=unblock))
    return hopeless + open_


_MEANS = {"finished": "finish", "failed": "fail", "ended": "end", "started": "start"}
_HAPPENS = {"finished": "finishes", "failed": "fails", "ended": "ends", "started": "starts"}


def _time(state: State, row: int) -> list[Reason]:
    w = state.workloads
    if w.wake[row] < 0 or w.wake[row] <= state.now_ms:
        return []
    until = utc(w.wake[row])
    if w.attempts[row]:
        text = f"its attempt {w.attempts[row]} did not succeed; the next may begin at {until}"
        return [Reason(token=BACKOFF, text=text)]
    return [Reason(token=START_TIME, text=f"is to start no earlier than {until}")]


# -- words ------------------------------------------------------------------------------------------------------------


def _tasks(count: int) -> str:
    return f"{count} {_plural(count, 'task', 'tasks')}"


def _devices(count: int) -> str:
    return f"{count} {_plural(count, 'device', 'devices')}"


def _nodes(count: int) -> str:
    return f"{count} {_plural(count, 'node', 'nodes')}"


def _plural(count: int, one: str, many: str) -> str:
    return one if count == 1 else many
