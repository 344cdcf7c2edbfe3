"""The memory between scheduling passes: the promise, the verdicts that still hold, and the work already seen. Also the
binder, which turns starts and stops into events; a caller claims the capacity of a start first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

from engine.capacity.index import Capacity
from engine.capacity.task_shapes import Shape
from engine.model import events as ev
from engine.model.specs import NodeState
from engine.placement.gang_placement import Claim, packed, place, variants
from engine.scheduling.backfill import PromisedStart
from engine.scheduling.candidate_order import FOREVER, Order
from engine.scheduling.vain_searches import VainSearches
from engine.state.cell_state import State
from engine.state.pending_work import Cause

MAX_DECISIONS = 256
MAX_GAINED = 8
"""Nodes with more room that are looked at for each class: beyond that it is simply tried again."""


class CandidateVerdict(IntEnum):
    """The result of a look at one workload."""

    STARTED = 0
    NO_QUOTA = 1
    NO_CAPACITY = 2
    WOULD_DELAY = 3
    PROMISED_QUOTA = 4
    QUEUE_CLOSED = 5
    ARRAY_LIMIT = 6
    CLEARING = 7
    """Victims are writing their checkpoints for it."""
    NOT_YET = 8
    """The reservation it names has not begun."""
    BUDGET = 9
    """A budget that it spends is spent."""
    CAP = 10
    """More than the outside scheduler lets run together."""


class Decision(NamedTuple):
    """The reason why a workload went first."""

    at_ms: int
    row: int
    order: Order
    next_order: Order | None
    """Place in the order of the next workload; None when no other was a candidate."""


class CycleMemory:
    """Facts are in the state alone: dropping this costs another look at everything that waits."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._gains = -1
        """`Capacity.gains` when the last pass began; -1 before the first."""
        self.reservation: PromisedStart | None = None
        """The start promised to the first blocked workload."""
        self.ended_by_promise = 0
        """`PromisedStart.ended` of the last one: the next is mostly much like it."""
        self.promises: dict[int, int] = {}
        """Conservative: row -> promised start, cell ms, as far as the last pass worked them out."""
        self.reordered_ms = FOREVER
        """Cell time at which the order changes next because one that waits has waited too long."""
        self.short_of_room = False
        """The last full pass left something waiting for capacity."""
        self.refusals = Refusals(state)
        self.vain = VainSearches(state)
        self.decisions: deque[Decision] = deque(maxlen=MAX_DECISIONS)
        self.starts = 0
        """Workloads started so far."""
        self.lowered: set[int] = set()
        """Queues of which something was stopped, since the order of candidates last heard of it."""

    @property
    def fresh(self) -> bool:
        """True if nothing was ever looked at."""
        return self._gains < 0

    @property
    def unsettled(self) -> bool:
        """True if something has changed since the last pass began."""
        state = self._state
        return bool(state.arrivals) or self._gains != state.capacity.gains or bool(state.reconsider.causes)

    def take_changes(self) -> tuple[list[int], set[Cause]]:
        """(rows that became pending, reasons to look at everything again) since this was last asked."""
        state = self._state
        arrivals, state.arrivals = state.arrivals, []
        causes = state.reconsider.take()
        if self.fresh:
            causes.add(Cause.FIRST_LOOK)
        elif self._gains != state.capacity.gains:
            causes.add(Cause.ROOM)
        self._gains = state.capacity.gains
        return arrivals, causes

    def note_decision(self, started: Order, following: Order | None) -> None:
        self.decisions.append(Decision(self._state.now_ms, started[3], started, following))

    def note_decisions(self, started: Sequence[Order], following: Sequence[Order | None]) -> None:
        """The same of several; there may be more that follow."""
        now_ms = self._state.now_ms
        each = zip(started, following, strict=False)
        self.decisions.extend([Decision(now_ms, order[3], order, other) for order, other in each])


class Refusals:
    """Workload classes that were found not to fit. A verdict holds until a node that would take one of their tasks has
    gained room: claims only take room away."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._found: dict[tuple[int, tuple[Shape, ...]], tuple[int, int]] = {}
        """(class row, shapes) -> `gained_mark` at which it was found not to fit, and for work with bonds the version of
        the company."""

    def lacks_room(self, row: int) -> bool:
        """True if the workload was found not to fit, in any of its variants, and still does not."""
        cls = self._state.workloads.cls[row]
        return all(self.holds(cls, shapes) for shapes in variants(self._state, row))

    def note(self, cls: int, shapes: tuple[Shape, ...]) -> None:
        """The class does not fit now."""
        capacity = self._state.capacity
        self._found[cls, shapes] = capacity.gained_mark, _company(capacity, shapes)

    def holds(self, cls: int, shapes: tuple[Shape, ...]) -> bool:
        """True if the class was found not to fit and still does not."""
        found = self._found.get((cls, shapes))
        if found is None:
            return False
        mark, company = found
        capacity = self._state.capacity
        gained = capacity.gains_since(mark) if company == _company(capacity, shapes) else None
        if (
            gained is None
            or len(gained) > MAX_GAINED
            or any(_gains_for(capacity, node, shapes) for node in set(gained))
        ):
            del self._found[cls, shapes]
            return False
        self._found[cls, shapes] = capacity.gained_mark, company
        return True


def _company(capacity: Capacity, shapes: tuple[Shape, ...]) -> int:
    """Version of what else decides where these tasks may go."""
    return capacity.company.version if shapes[0].terms is not None else 0


def _gains_for(capacity: Capacity, node: int, shapes: tuple[Shape, ...]) -> bool:
    """True if the node, which gained room, takes a task of one of the shapes."""
    if capacity.state[node] != NodeState.READY:
        return False
    return any(capacity.usable(node, shape) and capacity.fits(node, shape) for shape in shapes)


class Binder:
    """Records what a scheduling cycle decides."""

    max_at_once = 512
    """Workloads that are started in one batch. Below 2 they are started one by one, and each preemptor searches for its
    victims, which gives the same."""

    def __init__(
        self,
        state: State,
        memory: CycleMemory,
        emit: Callable[[ev.AnyEvent], None],
        emit_claimed: Callable[[ev.Placed | ev.PlacedMany | ev.Grown], None],
    ) -> None:
        """`emit_claimed` takes events whose capacity is claimed already."""
        self._state = state
        self._memory = memory
        self.emit = emit
        self.emit_claimed = emit_claimed

    def bind(self, row: int, shapes: tuple[Shape, ...], claims: list[Claim], *, backfilled: bool = False) -> None:
        """Start a gang on its claims."""
        state = self._state
        queue = state.workloads.queue[row]
        flags = ev.BACKFILLED if backfilled else 0
        if state.queues.limited[queue]:
            placed = [0] * len(shapes)
            for group, _, count, _ in claims:
                placed[group] += count
            flags |= state.queues.flags_of(queue, state.charge_if(row, shapes, placed))
        self._memory.starts += 1
        self.emit_claimed(ev.Placed(row, packed(claims, len(shapes)), flags))

    def bind_many(self, event: ev.Placed | ev.PlacedMany, count: int) -> None:
        """Start so many workloads of one task."""
        self._memory.starts += count
        self.emit_claimed(event)

    def bind_in_place(self, row: int, shapes: tuple[Shape, ...]) -> None:
        """Start a gang where others were stopped for it."""
        claims = place(self._state.capacity, shapes, self._state.workloads.class_at(row).least)
        if claims is None:
            raise AssertionError(f"preemption for row {row} was verified, and yet it does not fit")
        self.bind(row, shapes, claims)
        # What was promised counted on the victims, or on the room they left.
        self._memory.reservation = None

    def stop(self, victim: int, cause: int, *, by: int, saved: bool = False) -> None:
        """Put a victim back into its queue, for the reason of that index (`engine.model.events.EVICTION_CAUSES`)."""
        self.emit(ev.Evicted(victim, cause, by=by, saved=saved))
        self._memory.lowered.add(self._state.workloads.queue[victim])
