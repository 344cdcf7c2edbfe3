"""The start of many workloads of one task, in the order in which they would start one by one.

A draw takes the first candidate of the lineup and its quota, as if it started, and so on with who is first then. All
that were drawn are placed in one go. The first that finds no node ends the batch: those drawn after it are put back,
and it is looked at like any other. What anything but room, quota and order has a say in is not drawn at all.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from engine import events as ev
from engine.capacity import Capacity
from engine.choosing import is_simple
from engine.lineup import Lineup, Order
from engine.pending import Key
from engine.placement import packed
from engine.quota import REFUSED, Reach, Vector
from engine.shape import Shape
from engine.workloads import NONE, WorkloadClass

if TYPE_CHECKING:
    from engine.state import State


class Draw(NamedTuple):
    order: Order
    key: Key
    shape: Shape
    flags: int


class Plan(NamedTuple):
    """What the start of one of a class takes in a queue."""

    shape: Shape
    request: Vector
    reach: Reach
    limited: bool


class Batches:
    """Starts batches for one scheduler. Holds nothing that could not be found again from the state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._plans: dict[tuple[int, int], Plan | None] = {}
        """(queue row, class row) -> plan; None for what is not started in batches."""
        self._rules = -1
        """`State.rules` that the plans were made by."""

    def draw(self, lineup: Lineup, most: int, closed: set[int], refused: set[int]) -> tuple[list[Draw], list[Order]]:
        """Up to so many candidates that may start as far as quota goes, taken out of the lineup; and where the
        candidate stood that was next after each. Candidates of closed queues and refused kinds are dropped. The quota
        itself is as before afterwards: the event of those that start charges it."""
        state = self._state
        if self._rules != state.rules:
            self._plans.clear()
            self._rules = state.rules
        groups, queues = state.pending.groups, state.queues
        cls_of, kept = state.workloads.cls, state.workloads.kept
        taken: dict[Key, int] = {}
        """How many of the group were drawn."""
        drawn = queues.drawn[:]
        of_tenants: list[tuple[list[int], Vector]] = []
        """Use that was counted for tenants, and what was added."""
        draws: list[Draw] = []
        nexts: list[Order] = []
        while len(draws) < most:
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

    def _plan(self, queue: int, cls: int) -> Plan | None:
        queues = self._state.queues
        workload_class = self._state.workloads.classes[cls]
        plan = None
        if is_plain(self._state.capacity, workload_class) and queues.is_open(queue) and not queues.flavored(queue):
            reach = queues.reach(queue, workload_class.charge)
            plan = Plan(workload_class.shapes[0], workload_class.request, reach, bool(queues.limited[queue]))
        self._plans[queue, cls] = plan
        return plan


def is_plain(capacity: Capacity, workload_class: WorkloadClass) -> bool:
    """Whether nothing but room and quota decides whether one of the class starts, and the first bucket that holds its
    one task where."""
    if not workload_class.single or workload_class.reservation or workload_class.array:
        return False
    (shape,) = workload_class.shapes
    return not shape.labels and shape.topology is None and is_simple(capacity, shape)


def placed(draws: list[Draw], claims: list[tuple[int, int]]) -> ev.Placed | ev.PlacedMany:
    """The event of the draws that have claims."""
    started = draws[: len(claims)]
    if len(started) == 1:
        ((node, mask),) = claims
        return ev.Placed(started[0].order[3], packed([(0, node, 1, mask)], 1), started[0].flags)
    masks = [mask for _, mask in claims]
    flags = [draw.flags for draw in started]
    return ev.PlacedMany(
        array("i", [draw.order[3] for draw in started]).tobytes(),
        array("i", [node for node, _ in claims]).tobytes(),
        array("q", masks).tobytes() if any(masks) else b"",
        array("b", flags).tobytes() if any(flags) else b"",
    )


def put_back(lineup: Lineup, draws: list[Draw]) -> list[tuple[Key, int]]:
    """All that are left when these draws are taken back: the key and the first row of each group."""
    left = dict(lineup.rest())
    for draw in reversed(draws):
        left[draw.key] = draw.order[3]
    return list(left.items())
