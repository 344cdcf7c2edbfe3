"""Preemption carried out: have others stopped so that a workload starts, at once or when they have saved their work.
Who may be stopped, and who is, `engine.scheduling.preemption` says."""

from __future__ import annotations

from array import array
from collections.abc import Hashable

import numpy as np

from engine.capacity.index import OPEN
from engine.capacity.task_shapes import Shape
from engine.model import events as ev
from engine.placement.start_variants import variants
from engine.scheduling import preemption
from engine.scheduling.binder import Binder
from engine.scheduling.cycle_memory import CandidateVerdict
from engine.scheduling.like_for_like import Exchange
from engine.state.cell_state import State


class Preemptor:
    """Makes room for one workload after the other. Remembers searches in vain, as long as nothing changes."""

    def __init__(self, state: State, binder: Binder) -> None:
        self._state = state
        self._binder = binder
        self._exchanges = Exchange(state)
        self._all_end_soon_at = (-1, False)
        """State version, and whether then all that ran was likely to end soon."""
        self._in_vain: set[Hashable] = set()
        """Searches for victims that found nobody, in the state of `_in_vain_at`: what waits is mostly alike."""
        self._in_vain_at = (-1, -1)
        """(version, cell ms) of the state."""

    def anyone_preempts(self) -> bool:
        """Whether some workload may preempt others as things are."""
        state = self._state
        return any(spec.preemption != "never" for spec in state.workloads.priority_classes) or (
            state.queues.anyone_borrows()
        )

    def is_waited_for(self) -> bool:
        """Whether something waits that might preempt."""
        state = self._state
        return self.anyone_preempts() and any(
            preemption.may_preempt(state, group.rows[group.front]) for group in state.pending.groups.values()
        )

    def make_room(self, row: int) -> CandidateVerdict | None:
        """Start it in the place of others, or ask these for checkpoints first. None when the policy finds nobody, or
        waiting is as quick."""
        state = self._state
        if not preemption.may_preempt(state, row):
            return None
        if state.bookings.clearing_for(row) is not None:
            return CandidateVerdict.CLEARING
        if self._exchange(row):
            return CandidateVerdict.STARTED
        if self._all_end_soon():
            return None
        counts = state.workloads.class_at(row).least
        for shapes in variants(state, row):
            found = self._victims(row, shapes, counts)
            if found is None:
                continue
            victims = np.array([victim for victim, _ in found.victims], np.int64)
            if preemption.waiting_is_better(state, victims, found.delay_ms):
                return None
            if found.delay_ms:
                self._clear(row, found)
                return CandidateVerdict.CLEARING
            for victim, cause in found.victims:
                self._binder.stop(victim, cause, by=row)
            self._binder.bind_in_place(row, shapes)
            self._exchanges.found(row, shapes, found.victims)
            return CandidateVerdict.STARTED
        return None

    def _victims(self, row: int, shapes: tuple[Shape, ...], counts: tuple[int, ...]) -> preemption.Preemption | None:
        """`preemption.find`, which is asked once for all of a queue and priority that want the same."""
        state, w = self._state, self._state.workloads
        if self._in_vain_at != (state.version, state.now_ms):
            self._in_vain_at = (state.version, state.now_ms)
            self._in_vain.clear()
        charge = state.charge_if(row, shapes, counts)
        search = w.queue[row], w.priority[row], shapes, counts, tuple(charge)
        if search in self._in_vain:
            return None
        found = preemption.find(state, row, shapes, counts, charge)
        if found is None:
            self._in_vain.add(search)
        return found

    def _exchange(self, row: int) -> bool:
        """Start it in the place of the victim that is next in a run of like preemptors, if there is one."""
        shapes = next(variants(self._state, row), None) if self._binder.max_at_once > 1 else None
        victim = None if shapes is None else self._exchanges.next(row, shapes)
        if shapes is None or victim is None:
            return False
        self._binder.stop(*victim, by=row)
        self._binder.bind_in_place(row, shapes)
        self._exchanges.took(victim)
        return True

    def _all_end_soon(self) -> bool:
        """Whether everything that runs is likely to end soon: then nobody is worth looking for."""
        state = self._state
        if self._all_end_soon_at[0] != state.version:
            soon = preemption.waiting_is_better(state, preemption.bound_rows(state))
            self._all_end_soon_at = (state.version, soon)
        return self._all_end_soon_at[1]

    def _clear(self, row: int, found: preemption.Preemption) -> None:
        """Ask the victims for checkpoints, and keep the nodes the preemptor will need meanwhile."""
        state = self._state
        nodes = sorted({node for _, node, _, _ in found.claims if state.capacity.booking[node] == OPEN})
        self._binder.emit(
            ev.Preempting(
                row,
                victims=array("i", [victim for victim, _ in found.victims]).tobytes(),
                causes=array("b", [cause for _, cause in found.victims]).tobytes(),
                nodes=array("i", nodes).tobytes(),
                at_ms=state.now_ms + found.delay_ms,
            )
        )

    def carry_out(self, booking: int) -> None:
        """The victims of a preemption have had their time: stop those that still may be, for the reason that holds
        now, and place the preemptor, if it fits then."""
        state = self._state
        clearing = next(c for c in state.bookings.clearings if c.booking == booking)
        w = state.workloads
        row = clearing.row
        if state.budgets.specs and state.budgets.stopping(state, row) is not None:
            self._binder.emit(ev.PreemptionEnded(row))
            return
        victims = [victim for victim in clearing.victims if w.preempting[victim] == row]
        counts = w.class_at(row).least
        for shapes in variants(state, row):
            charge = state.charge_if(row, shapes, counts)
            causes = preemption.still_victims(state, row, shapes, counts, charge, victims)
            # What is taken back from other queues must still be for the queue's own quota.
            borrow = all(w.queue[victim] == w.queue[row] for victim in causes)
            if causes and preemption.lets_start(state, row, shapes, counts, list(causes), borrow=borrow):
                for victim, cause in causes.items():
                    self._binder.stop(victim, cause, by=row, saved=w.checkpoint_cost[victim] > 0)
                self._binder.bind_in_place(row, shapes)
                return
        self._binder.emit(ev.PreemptionEnded(row))
