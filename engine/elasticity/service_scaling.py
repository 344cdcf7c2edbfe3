"""Service scaling: at intervals each running service gets the number of replicas that `engine.model.spec_parts` finds.

More replicas are set at once, and the scheduler starts them as there is room. Fewer are set at once when the largest
number that the load needed during the stabilisation window is below the present one.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.model import events as ev
from engine.model.spec_parts import LOOK_EVERY_MS, desired
from engine.model.specs import ServiceSpec
from engine.placement.gang_placement import packed
from engine.state.cell_state import State
from engine.state.usage import load_of


class Services:
    """The controller of all services of a cell."""

    def __init__(self, state: State, emit: Callable[[ev.AnyEvent], None]) -> None:
        self._state = state
        self._emit = emit

    def next_ms(self, now_ms: int) -> int | None:
        if not self._state.replicas.running:
            return None
        return (now_ms // LOOK_EVERY_MS + 1) * LOOK_EVERY_MS

    def act(self, now_ms: int) -> None:
        state = self._state
        for row in sorted(state.replicas.running):
            spec = state.workloads.terms_at(row).service
            if spec is not None:
                self._look_at(row, spec, now_ms)

    def _look_at(self, row: int, spec: ServiceSpec, now_ms: int) -> None:
        replicas, w = self._state.replicas, self._state.workloads
        reported, use = load_of(self._state, row, spec, now_ms)
        if not reported:
            return
        load = desired(spec, w.tasks[row], reported, use)
        wanted = replicas.wanted[row]
        fewest = max(load, replicas.most_seen(row, now_ms - spec.stabilise_ms))
        to = load if load > wanted else min(wanted, fewest)
        seen = replicas.seen.get(row)
        if to != wanted or not seen or seen[-1][1] != load:
            self._emit(ev.Wanted(row, to, load))
        if w.tasks[row] > to:
            surplus = self._state.spare_tasks(row)
            self._emit(ev.Shrunk(row, packed(surplus, len(w.class_at(row).counts))))
