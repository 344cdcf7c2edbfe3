"""The pass over candidates in their order: each is admitted or passed over, and many of one task start together.

After a start, the next of its group follows. While room, quota and order alone decide, the first candidates start in
batches, in the order in which they would start one by one. In the simple case all waiting work has just come and keeps
its queues within their quotas. The order is then priority and age, and no share moves. Otherwise a draw takes the first
candidate of the lineup and its quota, as if it started, and goes on with the next first one. All drawn workloads are
placed in one go. The first without a node ends the batch: those drawn after it are put back, and it is looked at like
any other. Work that depends on more than room, quota and order is not drawn.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.capacity.index import NOWHERE, Capacity
from engine.capacity.task_shapes import Shape
from engine.model import events as ev
from engine.model.columns import view
from engine.placement.gang_placement import packed
from engine.placement.node_choice import is_simple
from engine.scheduling.candidate_order import CandidateOrder, Order, ShortestFirst
from engine.scheduling.cycle_memory import MAX_DECISIONS, Binder, CandidateVerdict, CycleMemory
from engine.scheduling.workload_admission import Admission, Preemptor
from engine.state.cell_state import State
from engine.state.pending_work import Key
from engine.state.queue_tree import REFUSED, WIDTH, Reach, Vector
from engine.state.work_changes import requests
from engine.state.workloads import NONE, WorkloadClass

MIN_SIZE = 32
"""Workloads drawn for the first batch, and after one that failed early."""


class Draw(NamedTuple):
    order: Order
    key: Key
    shape: Shape
    flags: int


class BatchCandidates(NamedTuple):
    """All that waits, in the order in which it may start."""

    rows: np.ndarray[Any, np.dtype[np.int32]]
    classes: list[int]

    def orders(self, state: State, first: int, last: int) -> list[Order]:
        """Places in the order of those from `first` to before `last`."""
        w, path = state.workloads, state.queues.path
        return [
            (
                -w.priority_band[w.priority[row]],
                (0,) * len(path[w.queue[row]]),
                -w.priority_value[w.priority[row]],
                row,
            )
            for row in self.rows[first:last].tolist()
        ]


class BatchQuota(NamedTuple):
    """The quota taken by the start of one of a class in a queue."""

    shape: Shape
    request: Vector
    reach: Reach
    limited: bool


class Batches:
    """Starts batches for one scheduler. Holds nothing that could not be found again from the state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._plans: dict[tuple[int, int], BatchQuota | None] = {}
        """(queue row, class row) -> plan; None for what is not started in batches."""
        self._rules = -1
        """`State.rules` that the plans were made by."""
        self._size = MIN_SIZE
        """Candidates drawn for the next batch: more after each that started as a whole."""
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
        patience = state.settings.starve_after_ms
        if patience and state.now_ms - w.submitted[int(rows[0])] > patience:
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

    def may_begin(self, lineup: CandidateOrder) -> bool:
        """True if the first of the lineup may find a node: a batch that ends before it began costs another lineup."""
        self._forget()
        first = lineup.first()
        if first is None:
            return False
        place = (first[1][1], self._state.workloads.cls[first[0][3]])
        plan = self._plans[place] if place in self._plans else self._plan(*place)
        return plan is None or self._state.capacity.find(plan.shape) != NOWHERE

    def are_sure(self) -> bool:
        """True if no nodes are kept and no outside cap applies: room, quota and order alone decide starts, as long as
        no time is promised.
        """
        bookings = self._state.bookings
        return not bookings.reservations and not bookings.clearings and not self._state.caps.any

    def start(self, binder: Binder, draws: list[Draw]) -> int:
        """Start those drawn, up to the first that finds no node. Returns how many started."""
        claims = place_singles(self._state.capacity, [draw.shape for draw in draws])
        begun = len(claims)
        if begun:
            binder.bind_many(placed([d.order[3] for d in draws], [d.flags for d in draws], claims), begun)
        self._size = max(begun, MIN_SIZE) if begun < len(draws) else min(2 * self._size, binder.max_at_once)
        return begun

    def start_rush(self, binder: Binder, rush: BatchCandidates) -> int:
        """The same for all that waits."""
        classes = self._state.workloads.classes
        claims = place_singles(self._state.capacity, [classes[cls].shapes[0] for cls in rush.classes])
        if claims:
            binder.bind_many(placed(rush.rows.tolist(), (), claims), len(claims))
        return len(claims)

    def draw(self, lineup: CandidateOrder, closed: set[int], refused: set[int]) -> tuple[list[Draw], list[Order]]:
        """Candidates that may start as far as quota goes, taken out of the lineup; and where the
        candidate stood that was next after each. Candidates of closed queues and refused kinds are dropped. The quota
        itself is as before afterwards: the event of those that start charges it."""
        state = self._state
        self._forget()
        groups, queues = state.pending.groups, state.queues
        cls_of, kept = state.workloads.cls, state.workloads.kept
        taken: dict[Key, int] = {}
        """Number drawn from the group."""
        drawn = queues.drawn[:]
        of_tenants: list[tuple[list[int], Vector]] = []
        """Use that was counted for tenants, and what was added."""
        draws: list[Draw] = []
        nexts: list[Order] = []
        while len(draws) < self._size:
            first = lineup.first()
            if first is None:
                break
            order, key = first
            queue, row = key[1], order[3]
            if len(nexts) < len(draws):
                nexts.append(order)
            if queue in closed or key[2] in refused:
                lineup.drop()
                continue
            place = (queue, cls_of[row])
            plan = self._plans[place] if place in self._plans else self._plan(*place)
            group = groups[key]
            at = group.front + taken.get(key, 0)
            # What was preempted during this pass is ahead in its group, and yet no candidate.
            if plan is None or kept[row] or group.rows[at] != row:
                break
            flags = queues.draw(plan.reach, limited=plan.limited)
            if flags == REFUSED:
                break
            draws.append(Draw(order, key, plan.shape, flags))
            if key[3] != NONE:
                use = state.tenant_use.setdefault((queue, key[3]), [0, 0, 0, 0])
                of_tenants.append((use, plan.request))
                use[:] = [a + b for a, b in zip(use, plan.request, strict=True)]
            taken[key] = taken.get(key, 0) + 1
            lineup.started(group.rows[at + 1] if at + 1 < len(group.rows) else None)
        queues.drawn = drawn
        for use, request in of_tenants:
            use[:] = [a - b for a, b in zip(use, request, strict=True)]
        return draws, nexts

    def _plan(self, queue: int, cls: int) -> BatchQuota | None:
        queues = self._state.queues
        workload_class = self._state.workloads.classes[cls]
        plan = None
        sure = queues.is_open(queue) and not queues.flavored(queue) and not queues.profile(queue)
        if sure and self._is_plain(cls):
            reach = queues.reach(queue, workload_class.charge)
            plan = BatchQuota(workload_class.shapes[0], workload_class.request, reach, bool(queues.limited[queue]))
        self._plans[queue, cls] = plan
        return plan


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
    claims: list[tuple[int, int]] = []
    for shape in shapes:
        node = capacity.find(shape)
        if node == NOWHERE:
            break
        claims.append((node, capacity.claim(node, shape, 1)))
    return claims


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


def put_back(lineup: CandidateOrder, draws: list[Draw]) -> list[tuple[Key, int]]:
    """All that are left when these draws are taken back: the key and the first row of each group."""
    left = dict(lineup.rest())
    for draw in reversed(draws):
        left[draw.key] = draw.order[3]
    return list(left.items())


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
        self._one_by_one = binder.max_at_once < 2
        self._started: Order | None = None
        """The last that started, until it is known who was next."""
        memory.lowered.clear()

    def run(self) -> Generator[None, None, None]:
        """Every candidate in turn. It may be interrupted after each, and the state may change meanwhile, but for rules
        (`State.rules`)."""
        while self._next() is not None:
            begun = self._start_together() if self._may_start_together() else 0
            if not begun and (first := self._lineup.first()) is not None:
                self._admit(*first)
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

    def _may_start_together(self) -> bool:
        together = not self._one_by_one and isinstance(self._lineup, CandidateOrder)
        return together and self._memory.reservation is None and self._batches.are_sure()

    def _start_together(self) -> int:
        """Start the first candidates all at once, as many as would start one by one. Returns how many those were. Where
        one found no room, the pass goes on one by one."""
        lineup, batches = self._lineup, self._batches
        assert isinstance(lineup, CandidateOrder)
        if not batches.may_begin(lineup):
            self._one_by_one = True
            return 0
        draws, nexts = batches.draw(lineup, self._closed, self._refused)
        if not draws:
            return 0
        begun = batches.start(self._binder, draws)
        known = list(zip(draws[:begun], nexts, strict=False))[-MAX_DECISIONS:]
        for draw, following in known:
            self._memory.note_decision(draw.order, following)
        if begun < len(draws):
            self._lineup = CandidateOrder(self._state, put_back(lineup, draws[begun:]))
            self._one_by_one = True
        elif len(nexts) < begun:
            self._started = draws[-1].order
        return begun
