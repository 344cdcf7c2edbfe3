"""Starts and stops of workloads, as events. Whoever starts one has claimed its capacity already."""

from __future__ import annotations

from collections.abc import Callable

from engine.capacity.task_shapes import Shape
from engine.model import events as ev
from engine.placement.gang_placement import Claim, packed, place
from engine.scheduling.cycle_memory import CycleMemory
from engine.state.cell_state import State


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
        """Put a victim back into its queue, for the reason of that index (`engine.model.events.REQUEUE_CAUSES`)."""
        self.emit(ev.Requeued(victim, cause, by=by, saved=saved))
        self._memory.lowered.add(self._state.workloads.queue[victim])
