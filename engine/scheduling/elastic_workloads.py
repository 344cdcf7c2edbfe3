"""Elastic workloads: those that run give tasks away for what waits, and get more when nothing does."""

from __future__ import annotations

from collections.abc import Iterator

from engine.capacity.task_shapes import Shape
from engine.model import events as ev
from engine.placement.gang_placement import Claim, packed, place, unplace
from engine.placement.start_variants import counts_in_quota, variants
from engine.scheduling.binder import Binder
from engine.scheduling.cycle_memory import CycleMemory
from engine.state.cell_state import State

Donated = tuple[int, Claim]
"""(workload row, tasks it gives away)"""


class Elastic:
    """Grows and shrinks what runs."""

    def __init__(self, state: State, memory: CycleMemory, binder: Binder) -> None:
        self._state = state
        self._memory = memory
        self._binder = binder

    def grow(self) -> None:
        """Give running elastic workloads more tasks, oldest first: only while nothing waits for capacity. Services get
        theirs then too, as far as that breaks no promise."""
        for row in self._growing():
            for shapes in variants(self._state, row):
                if not self._missing(row):
                    break
                claims = self._place_more(row, shapes)
                promise = self._memory.reservation
                if claims and promise is not None and not promise.allows(shapes, claims, late=True):
                    unplace(self._state.capacity, shapes, claims)
                elif claims:
                    self._binder.emit_claimed(ev.Grown(row, packed(claims, len(shapes))))

    def _growing(self) -> Iterator[int]:
        """Rows that may grow now, oldest first."""
        state = self._state
        held_ms = state.replicas.held_ms
        growing = state.short
        if self._memory.short_of_room:
            growing = state.short & state.replicas.running if state.policy != "conservative" else set()
        for row in sorted(growing):
            if held_ms and held_ms.get(row, 0) > state.now_ms:
                continue
            if not state.budgets.specs or state.budgets.stopping(state, row) is None:
                yield row

    def _missing(self, row: int) -> tuple[int, ...]:
        """Tasks that it lacks of each group; empty when it lacks none."""
        state = self._state
        pairs = zip(state.counts_wanted(row), state.placed_of(row), strict=True)
        missing = tuple(count - have for count, have in pairs)
        return missing if any(missing) else ()

    def _place_more(self, row: int, shapes: tuple[Shape, ...]) -> list[Claim]:
        """Claims for as many of the tasks it lacks as room and quota allow."""
        state = self._state
        missing = self._missing(row)
        beside = state.allocations.node[state.workloads.first_allocation[row]]
        with state.growing(row):
            claims = place(state.capacity, shapes, (0,) * len(missing), missing, beside) or []
        while claims and not self._within_quota(row, shapes, claims):
            group, node, count, devices = claims.pop()
            state.capacity.give_back(node, shapes[group], count, devices)
        return claims

    def _within_quota(self, row: int, shapes: tuple[Shape, ...], claims: list[Claim]) -> bool:
        state = self._state
        more = [0] * len(shapes)
        for group, _, count, _ in claims:
            more[group] += count
        charge = state.charge_if(row, shapes, more)
        return state.queues.lack(state.workloads.queue[row], charge, state.now_ms) is None

    # -- giving away --------------------------------------------------------------------------------------------------

    def shrink_for(self, row: int) -> bool:
        """Take tasks that elastic workloads can do without, of the youngest first, if that lets this one start."""
        state = self._state
        if state.now_ms < state.workloads.may_preempt_at(row, state.settings):
            return False
        least = state.workloads.class_at(row).least
        for shapes in variants(state, row):
            if counts_in_quota(state, row, shapes, borrow=True) is None:
                continue
            donated = self._donate(row, shapes)
            fits = bool(donated) and self._fits(shapes, least)
            needed = self._needed(donated, shapes, least) if fits else donated
            for donor, claim in reversed(needed):
                self._take_again(donor, claim)
            if fits:
                self._shrink(needed, row)
                self._binder.bind_in_place(row, shapes)
                return True
        return False

    def _donate(self, row: int, shapes: tuple[Shape, ...]) -> list[Donated]:
        """All tasks that others can do without on nodes the shapes may use, given back on the capacity."""
        state = self._state
        donated: list[Donated] = []
        for donor in sorted(state.stretched - {row}, reverse=True):
            for claim in state.spare_tasks(donor):
                if any(state.capacity.usable(claim[1], shape) for shape in shapes):
                    self._give_back(donor, claim)
                    donated.append((donor, claim))
        return donated

    def _needed(self, donated: list[Donated], shapes: tuple[Shape, ...], counts: tuple[int, ...]) -> list[Donated]:
        """Those of the tasks, given back on the capacity, without which the gang does not fit; the others are taken
        again."""
        needed = []
        for donor, claim in reversed(donated):
            self._take_again(donor, claim)
            if not self._fits(shapes, counts):
                self._give_back(donor, claim)
                needed.append((donor, claim))
        return needed

    def _fits(self, shapes: tuple[Shape, ...], counts: tuple[int, ...]) -> bool:
        claims = place(self._state.capacity, shapes, counts)
        if claims is not None:
            unplace(self._state.capacity, shapes, claims)
        return claims is not None

    def _give_back(self, donor: int, claim: Claim) -> None:
        group, node, count, devices = claim
        self._state.capacity.give_back(node, self._state.workloads.class_at(donor).shapes[group], count, devices)
        self._state.shift_company(donor, -1, [(node, count)])

    def _take_again(self, donor: int, claim: Claim) -> None:
        group, node, count, devices = claim
        self._state.capacity.take(node, self._state.workloads.class_at(donor).shapes[group], count, devices)
        self._state.shift_company(donor, 1, [(node, count)])

    def _shrink(self, needed: list[Donated], row: int) -> None:
        """Have each donor give away its part for the row."""
        w = self._state.workloads
        for donor in dict.fromkeys(donor for donor, _ in needed):
            given = [claim for other, claim in needed if other == donor]
            self._binder.emit(ev.Shrunk(donor, packed(given, len(w.class_at(donor).shapes)), by=row))
            self._memory.lowered.add(w.queue[donor])
