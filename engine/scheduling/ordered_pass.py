"""The pass over candidates in their order: each is admitted or passed over, and many of one task start together.

After a start, the next of its group follows. While room, quota, order and the promise to somebody else decide alone,
candidates start together: each is admitted and placed in its turn, and one event records them. In the simple case all
waiting work has just come and keeps its queues within their quotas. The order is then priority and age, and no share
moves. Otherwise each takes its quota from the tree as it comes, as if it had started. Work that depends on more than
that ends the batch, and is looked at by itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.capacity.devices import PoolIndex
from engine.capacity.index import NOWHERE, Capacity
from engine.capacity.task_shapes import Shape
from engine.model import events as ev
from engine.model.columns import view
from engine.placement.gang_placement import Claim, packed
from engine.placement.node_choice import is_simple
from engine.scheduling.candidate_order import CandidateOrder, Order, ShortestFirst, has_waited_too_long
from engine.scheduling.cycle_memory import MAX_DECISIONS, Binder, CandidateVerdict, CycleMemory
from engine.scheduling.preemption import may_preempt
from engine.scheduling.workload_admission import Admission, Preemptor
from engine.state.cell_state import State
from engine.state.pending_work import Key
from engine.state.queue_tree import NO_LIMIT, REFUSED, WIDTH, Charge, Reach, Vector
from engine.state.work_changes import requests
from engine.state.workloads import NONE, WorkloadClass


class BatchCandidates(NamedTuple):
    """All that waits, in the order in which it may start."""

    rows: np.ndarray[Any, np.dtype[np.int32]]
    classes: list[int]

    def orders(self, state: State, first: int, last: int) -> list[Order]:
        """Places in the order of those from `first` to before `last`."""
        w, path = state.workloads, state.queues.path
        bands, values = [-band for band in w.priority_band], [-value for value in w.priority_value]
        shares = [(0,) * len(each) for each in path]
        rows = self.rows[first:last]
        columns = rows.tolist(), view(w.priority)[rows].tolist(), view(w.queue)[rows].tolist()
        each = zip(*columns, strict=True)
        return [(bands[priority], shares[queue], values[priority], row) for row, priority, queue in each]


class BatchPlan(NamedTuple):
    """How one of a class starts from a queue."""

    shapes: tuple[Shape]
    request: Vector
    charge: Charge
    """What of its charge is limited."""
    reach: Reach
    limited: bool


class StartBatch:
    """Starts that become one event. Their nodes are claimed; their quota is drawn on the tree alone until it is."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._groups = state.pending.groups
        self._places: dict[Shape, list[PoolIndex]] = {}
        """Where tasks of a shape may go."""
        self._rows: list[int] = []
        self._flags: list[int] = []
        self._claims: list[tuple[int, int]] = []
        self._drawn: array[int] | None = None
        """What was drawn on the tree before."""
        self._of_tenants: list[tuple[list[int], Vector]] = []
        """Use that was counted for tenants, and what was added."""
        self._taken: dict[Key, int] = {}
        self.lowest = NO_LIMIT
        """Lowest priority of what starts."""
        self._anyone_borrows: bool | None = None
        """None until it was asked for: starts can only make it true."""

    def next_of(self, key: Key) -> int | None:
        """The first row of the group that is not in the batch."""
        group = self._groups[key]
        at = group.front + self._taken.get(key, 0)
        return group.rows[at] if at < len(group.rows) else None

    def claim(self, shape: Shape) -> Claim | None:
        """Claim the node that `Capacity.find` gives for one task of the shape; None when it fits nowhere."""
        capacity, places = self._state.capacity, self._places.get(shape)
        if places is None:
            places = self._places[shape] = capacity.indexes_for(shape)
        node = capacity.find_among(places, shape)
        return None if node == NOWHERE else (0, node, 1, capacity.claim(node, shape, 1))

    def add(self, key: Key, row: int, plan: BatchPlan, claim: Claim, *, backfilled: bool) -> None:
        """Start it on its claim."""
        _, node, _, mask = claim
        if self._drawn is None:
            self._drawn = self._state.queues.drawn[:]
        flags = self._state.queues.draw(plan.reach, limited=plan.limited)
        assert flags != REFUSED, "quota allowed it"
        if self._anyone_borrows is False and plan.limited:
            self._anyone_borrows = self._state.queues.passes_quota(plan.reach)
        if key[3] != NONE:
            use = self._state.tenant_use.setdefault((key[1], key[3]), [0, 0, 0, 0])
            use[:] = [a + b for a, b in zip(use, plan.request, strict=True)]
            self._of_tenants.append((use, plan.request))
        self._rows.append(row)
        self._flags.append(flags | ev.BACKFILLED if backfilled else flags)
        self._claims.append((node, mask))
        self._taken[key] = self._taken.get(key, 0) + 1
        self.lowest = min(self.lowest, self._state.workloads.value_at(row))

    def may_preempt(self, row: int) -> bool:
        """`may_preempt` once all of them have started, for one that is not above the lowest of them."""
        if self._anyone_borrows is None:
            self._anyone_borrows = self._state.queues.anyone_borrows()
        return may_preempt(self._state, row, anyone_borrows=self._anyone_borrows)

    def start(self, binder: Binder) -> None:
        """Record them: the event charges what was drawn."""
        if self._drawn is None:
            return
        self._state.queues.drawn = self._drawn
        for use, request in self._of_tenants:
            use[:] = [a - b for a, b in zip(use, request, strict=True)]
        binder.bind_many(placed(self._rows, self._flags, self._claims), len(self._rows))


class Batches:
    """Starts batches for one scheduler. Holds nothing that could not be found again from the state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._plans: dict[tuple[int, int], BatchPlan | None] = {}
        """(queue row, class row) -> plan; None for what is not started in batches."""
        self._rules = -1
        """`State.rules` that the plans were made by."""
        self._plain: dict[int, bool] = {}
        """True by class row if room, quota and order alone decide about it."""

    def rush(self) -> BatchCandidates | None:
        """All that waits, where nobody has looked at any of it before, nothing but room may keep one of them from
        starting, and they all leave their queues' shares at nothing; None otherwise."""
        state = self._state
        rows = state.pending.all_new()
        if rows is None:
            return None
        self._forget()
        w, queues = state.workloads, state.queues
        if has_waited_too_long(state, int(rows[0])):
            return None
        of_queue, cls, priority = view(w.queue)[rows], view(w.cls)[rows], view(w.priority)[rows]
        if not all(map(self._is_plain, set(cls.tolist()))):
            return None
        there = sorted(set(of_queue.tolist()))
        if any(
            not queues.is_open(queue)
            or queues.flavored(queue)
            or queues.profile(queue)
            or queues.specs[queue].order != "best_effort"
            for queue in there
        ):
            return None
        sums = np.zeros((len(queues.specs), WIDTH), np.int64)
        np.add.at(sums, of_queue, requests(state, cls))
        if not self._within_quota([(queue, sums[queue].tolist()) for queue in there]):
            return None
        bands, values = np.array(w.priority_band), np.array(w.priority_value)
        depth = np.array([len(path) for path in queues.path])[of_queue]
        if (priority != priority[0]).any() or (depth != depth[0]).any():
            order = np.lexsort((rows, -values[priority], depth, -bands[priority]))
            rows, cls = rows[order], cls[order]
        return BatchCandidates(rows, cls.tolist())

    def _within_quota(self, more: list[tuple[int, list[int]]]) -> bool:
        """True if so much more in these queues leaves each vertex on their paths within its quota, with its past draw
        counted as its share counts it.
        """
        state, queues = self._state, self._state.queues
        sums: dict[int, list[int]] = {}
        for queue, quantities in more:
            for vertex in queues.path[queue]:
                have = sums.get(vertex)
                sums[vertex] = quantities if have is None else [a + b for a, b in zip(have, quantities, strict=True)]
        past = state.settings.fair_half_life_ms > 0
        for vertex, quantities in sums.items():
            base, limited = vertex * queues.slots, queues.limited[vertex]
            before = queues.average_use(vertex, state.now_ms) if past else None
            for i, quantity in enumerate(quantities):
                if limited and not limited >> i & 1:
                    continue
                drawn, quota = queues.drawn[base + i] + quantity, queues.quota[base + i]
                if drawn > quota or (before is not None and drawn + before[i] > 2 * quota):
                    return False
        return True

    def _is_plain(self, cls: int) -> bool:
        found = self._plain.get(cls)
        if found is None:
            found = self._plain[cls] = is_plain(self._state.capacity, self._state.workloads.classes[cls])
        return found

    def _forget(self) -> None:
        """Drop the results of rules that have changed."""
        if self._rules != self._state.rules:
            self._plans.clear()
            self._plain.clear()
            self._rules = self._state.rules

    def are_sure(self) -> bool:
        """True if no nodes are kept and no outside cap applies: room, quota and order alone decide starts, as long as
        no time is promised.
        """
        bookings = self._state.bookings
        return not bookings.reservations and not bookings.clearings and not self._state.caps.any

    def start_rush(self, binder: Binder, rush: BatchCandidates) -> int:
        """Start them, up to the first that finds no node. Returns how many started."""
        classes = self._state.workloads.classes
        claims = place_singles(self._state.capacity, [classes[cls].shapes[0] for cls in rush.classes])
        if claims:
            binder.bind_many(placed(rush.rows.tolist(), (), claims), len(claims))
        return len(claims)

    def plan(self, queue: int, cls: int) -> BatchPlan | None:
        """How one of the class starts from the queue; None where more than room, quota and order decides."""
        self._forget()
        place = (queue, cls)
        if place not in self._plans:
            self._plans[place] = self._new_plan(*place)
        return self._plans[place]

    def _new_plan(self, queue: int, cls: int) -> BatchPlan | None:
        queues = self._state.queues
        workload_class = self._state.workloads.classes[cls]
        bursts = any(vertex in queues.bursts for vertex in queues.path[queue])
        if bursts or not queues.is_open(queue) or queues.flavored(queue) or queues.profile(queue):
            return None
        if not self._is_plain(cls):
            return None
        (shape,) = workload_class.shapes
        limited, charge = queues.limited[queue], workload_class.charge
        counted = tuple(part for part in charge if limited >> part[0] & 1)
        return BatchPlan((shape,), workload_class.request, counted, queues.reach(queue, charge), bool(limited))


def is_plain(capacity: Capacity, workload_class: WorkloadClass) -> bool:
    """True if room and quota alone decide the start of one of the class, and the first bucket that holds its one task
    settles its node.
    """
    if not workload_class.single or workload_class.reservation or workload_class.array:
        return False
    (shape,) = workload_class.shapes
    return not shape.labels and shape.topology is None and is_simple(capacity, shape)


def place_singles(capacity: Capacity, shapes: Iterable[Shape]) -> list[tuple[int, int]]:
    """Claim a node for one task of each shape in turn, up to the first that fits nowhere: (node row, device mask) of
    each."""
    return capacity.claim_each(shapes)


def placed(rows: Sequence[int], flags: Sequence[int], claims: list[tuple[int, int]]) -> ev.Placed | ev.PlacedMany:
    """The event of as many of the rows as have claims."""
    if len(claims) == 1:
        ((node, mask),) = claims
        return ev.Placed(rows[0], packed([(0, node, 1, mask)], 1), flags[0] if flags else 0)
    nodes, masks = [node for node, _ in claims], [mask for _, mask in claims]
    return ev.PlacedMany(
        array("i", rows[: len(claims)]).tobytes(),
        array("i", nodes).tobytes(),
        array("q", masks).tobytes() if any(masks) else b"",
        array("b", flags[: len(claims)]).tobytes() if any(flags[: len(claims)]) else b"",
    )


class OrderedPass:
    """Walks over the candidates once."""

    def __init__(
        self,
        state: State,
        memory: CycleMemory,
        admission: Admission,
        binder: Binder,
        preemptor: Preemptor,
        batches: Batches,
        heads: Iterable[tuple[Key, int]],
    ) -> None:
        """`heads`: the pending key and the first row of each group."""
        self._state = state
        self._memory = memory
        self._admission = admission
        self._binder = binder
        self._batches = batches
        self._lineup: CandidateOrder | ShortestFirst = CandidateOrder(state, heads)
        self._closed: set[int] = set()
        """Queues of which nothing more starts."""
        self._refused: set[int] = set()
        """Kinds of which nothing more starts."""
        self._kinds_fare_alike = not preemptor.anyone_preempts() and not state.bookings.reservations
        """True if no queue or priority gets nodes that others of the kind do not."""
        self._in_batches = binder.max_at_once > 1
        self._started: Order | None = None
        """The last that started, until it is known who was next."""
        memory.lowered.clear()

    def run(self) -> Generator[None, None, None]:
        """Every candidate in turn. It may be interrupted after each, and the state may change meanwhile, but for rules
        (`State.rules`)."""
        while (first := self._next()) is not None:
            if not self._may_start_together(*first):
                self._admit(*first)
            elif not self._start_together() and (alone := self._lineup.first()) is not None:
                self._admit(*alone)
            version = self._state.version
            yield
            if self._state.version != version:
                self._keep_those_waiting()

    def _keep_those_waiting(self) -> None:
        """Drop the candidates that wait no longer, or elsewhere."""
        groups = self._state.pending.groups
        heads = [(key, groups[key].rows[groups[key].front]) for key, _ in self._lineup.rest() if key in groups]
        self._lineup = type(self._lineup)(self._state, heads)

    def _next(self) -> tuple[Order, Key] | None:
        """The candidate whose turn it is; None when there is none."""
        if self._state.policy == "easy-sjbf" and self._memory.reservation is not None:
            self._put_shortest_first()
        first = self._lineup.first()
        if self._started is not None:
            self._memory.note_decision(self._started, None if first is None else first[0])
            self._started = None
        return first

    def _put_shortest_first(self) -> None:
        if isinstance(self._lineup, CandidateOrder):
            self._lineup = ShortestFirst(self._state, self._lineup.rest())

    def _admit(self, order: Order, key: Key) -> None:
        """Start the first candidate, or drop it and what fares alike."""
        lineup, memory = self._lineup, self._memory
        if key[1] in self._closed or key[2] in self._refused:
            lineup.drop(self._closed, self._refused)
            return
        verdict = self._admission.admit(order[3])
        if verdict == CandidateVerdict.STARTED:
            group = self._state.pending.groups.get(key)
            lineup.started(None if group is None else group.rows[group.front])
            self._started = order
        else:
            lineup.drop()
            self._pass_over(key, verdict)
        if memory.lowered:
            lineup.lowered(memory.lowered)
            memory.lowered.clear()

    def _pass_over(self, key: Key, verdict: CandidateVerdict) -> None:
        """Pass over all that do not start when the first of a group does not."""
        if verdict == CandidateVerdict.QUEUE_CLOSED or self._state.is_strict(key[1]):
            self._closed.add(key[1])
        elif verdict in (CandidateVerdict.ARRAY_LIMIT, CandidateVerdict.CAP):
            self._refused.add(key[2])
        elif verdict in (CandidateVerdict.NO_CAPACITY, CandidateVerdict.WOULD_DELAY) and self._kinds_fare_alike:
            # In other queues and priorities too: room only shrinks during a pass.
            self._refused.add(key[2])

    # -- together -----------------------------------------------------------------------------------------------------

    def _may_start_together(self, order: Order, key: Key) -> bool:
        """A quick necessary condition for a batch that begins with the candidate."""
        if not self._in_batches or self._batches.plan(key[1], self._state.workloads.cls[order[3]]) is None:
            return False
        return isinstance(self._lineup, CandidateOrder) and self._batches.are_sure()

    def _start_together(self) -> int:
        """Start the first candidates, as many as need no look at anything else. Returns how many those were."""
        lineup, batch = self._lineup, StartBatch(self._state)
        starts: list[Order] = []
        nexts: list[Order] = []
        """Where the candidate stood that was next after each."""
        closed, refused, most = self._closed, self._refused, self._binder.max_at_once
        while len(starts) < most and (first := lineup.first()) is not None:
            order, key = first
            if len(nexts) < len(starts):
                nexts.append(order)
            if key[2] in refused or key[1] in closed:
                lineup.drop(closed, refused)
                continue
            verdict = self._admit_to(batch, key, order[3])
            if verdict is None:
                break
            if verdict == CandidateVerdict.STARTED:
                starts.append(order)
                lineup.started(batch.next_of(key))
            else:
                lineup.drop()
                self._pass_over(key, verdict)
        batch.start(self._binder)
        for order, following in list(zip(starts, nexts, strict=False))[-MAX_DECISIONS:]:
            self._memory.note_decision(order, following)
        if len(nexts) < len(starts):
            self._started = starts[-1]
        return len(starts)

    def _admit_to(self, batch: StartBatch, key: Key, row: int) -> CandidateVerdict | None:
        """`Admission.admit` of a candidate, in a batch; None where it must be looked at by itself."""
        state, memory, queue = self._state, self._memory, key[1]
        cls, promise = state.workloads.cls[row], memory.reservation
        plan = self._batches.plan(queue, cls)
        # What was preempted during this pass is ahead in its group, and yet no candidate.
        if plan is None or state.workloads.kept[row] or batch.next_of(key) != row:
            return None
        if plan.charge and state.queues.lack(queue, plan.charge, state.now_ms) is not None:
            return None
        if memory.refusals.holds(cls, plan.shapes):
            return self._without_room(batch, row)
        if promise is not None and promise.needs_quota(row):
            return None
        late = promise is not None and not promise.ends_in_time(row)
        if late and promise is not None and promise.certainly_in_the_way(plan.shapes, 1):
            return CandidateVerdict.WOULD_DELAY
        (shape,) = plan.shapes
        claim = batch.claim(shape)
        if claim is None:
            memory.refusals.note(cls, plan.shapes)
            return self._without_room(batch, row)
        if promise is not None and not promise.allows(plan.shapes, [claim], late=late):
            state.capacity.give_back(claim[1], shape, 1, claim[3])
            return CandidateVerdict.WOULD_DELAY
        batch.add(key, row, plan, claim, backfilled=promise is not None)
        return CandidateVerdict.STARTED

    def _without_room(self, batch: StartBatch, row: int) -> CandidateVerdict | None:
        """The verdict on a candidate that fits nowhere, if nobody makes room for it and no time is to be promised."""
        state, w = self._state, self._state.workloads
        if self._memory.reservation is None or state.stretched or batch.lowest < w.value_at(row):
            return None
        if batch.may_preempt(row):
            return None
        self._memory.short_of_room = True
        return CandidateVerdict.NO_CAPACITY
