"""The memory of searches for victims that found nobody, each with what it would take to find one.

What waits is mostly alike, so each holds for all of a queue and priority that want the same, until something that
matters for it has changed: who runs in reach, the quota, the room, or the time.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from engine.capacity.task_shapes import Shape
from engine.model.specs import Settings, WorkloadState
from engine.scheduling.preemption_rules import Place, may_combine, may_take_back
from engine.state.cell_state import State
from engine.state.queue_tree import Charge

MAX_GAINED = 32
"""Nodes with more room that are looked at before a search in vain is made again: beyond that it simply is."""
MIN_KEPT = 64
"""Searches up to which none is dropped."""


class VainReason(IntEnum):
    """Why a search for victims found nobody."""

    NOBODY = 0
    """No work in reach may be stopped."""
    QUOTA = 1
    """All in reach that may be stopped give back too little quota together."""
    ROOM = 2
    """With all of them gone there is too little room."""
    UNPROVEN = 3
    """There may be a set that limits, bonds or other preemptions rule out: nothing is known of any other moment."""


class VainSearch(NamedTuple):
    """A search for victims that found nobody, and what it would take to find one."""

    reason: VainReason
    at: tuple[int, int]
    """Version of the state and cell ms."""
    reach: tuple[int, ...]
    """Vertices of the queue tree: only work there or below may be stopped."""
    joined: int
    """`State.joined` of these together."""
    until_ms: int
    """The first cell time at which more of the work in reach may be stopped."""
    took_back: bool
    """Work of other queues was in reach."""
    together: bool
    """Lower work of the own queue was to leave that within its quota."""
    short: tuple[Place, int] | None = None
    """QUOTA: the place that lacks it, and what all together give back there."""
    gained: int = 0
    """ROOM: `Capacity.gained_mark`."""


Search = tuple[int, int, tuple[Shape, ...], tuple[int, ...], Charge]
"""(queue row, priority class row, shapes, tasks of each, charge)"""


class VainSearches:
    """Those that found nobody under the present rules and settings, and whose workloads wait still. One of a workload
    that has left is dropped before there are twice as many as there were of the others."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._found: dict[Search, tuple[int, tuple[VainSearch, ...]]] = {}
        """With the row that it was made for."""
        self._most = MIN_KEPT
        self._rules: tuple[int, Settings] | None = None
        """`State.rules`, and the settings, by which they were made."""

    def __len__(self) -> int:
        return len(self._found)

    def search_of(self, row: int, shapes: tuple[Shape, ...], counts: tuple[int, ...], charge: Charge) -> Search:
        """The search of the workload for victims, which those like it share."""
        w = self._state.workloads
        return w.queue[row], w.priority[row], shapes, counts, charge

    def holds(self, search: Search, row: int) -> bool:
        """True if the search, for this workload now, would be in vain again."""
        rules = self._state.rules, self._state.settings
        if self._rules != rules:
            self._rules = rules
            self._found.clear()
        found = self._found.get(search)
        if found is None:
            return False
        _, _, shapes, _, charge = search
        if _are_still_in_vain(self._state, row, shapes, charge, found[1]):
            return True
        del self._found[search]
        return False

    def note(self, search: Search, row: int, vain: tuple[VainSearch, ...]) -> None:
        """The search for this workload was in vain."""
        self._found[search] = row, vain
        if len(self._found) > self._most:
            w = self._state.workloads
            self._found = {
                search: found
                for search, found in self._found.items()
                if w.state[found[0]] == WorkloadState.QUEUED and (w.queue[found[0]], w.priority[found[0]]) == search[:2]
            }
            self._most = max(2 * len(self._found), MIN_KEPT)


def _are_still_in_vain(
    state: State, row: int, shapes: tuple[Shape, ...], charge: Charge, vain: tuple[VainSearch, ...]
) -> bool:
    """True if the same searches would find nobody now either. Neither `State.rules` nor the settings have changed."""
    if vain[0].at == (state.version, state.now_ms):
        return True
    if len(vain) == 1 and may_combine(state, row, charge):
        return False
    return all(_is_still_in_vain(state, row, shapes, charge, each) for each in vain)


def _is_still_in_vain(state: State, row: int, shapes: tuple[Shape, ...], charge: Charge, vain: VainSearch) -> bool:
    if vain.reason == VainReason.UNPROVEN or state.now_ms >= vain.until_ms:
        return False
    if sum([state.joined[vertex] for vertex in vain.reach]) != vain.joined:
        return False
    queue = state.workloads.queue[row]
    if not vain.took_back and may_take_back(state, queue, charge):
        return False
    if vain.reason == VainReason.QUOTA and vain.short is not None:
        place, given = vain.short
        borrow = not vain.together
        parts = [(part,) for part in charge if part[0] == place[1]]
        lacks = [state.queues.lack(queue, part, state.now_ms, borrow=borrow) for part in parts]
        return any(lack is not None and lack[:2] == place and lack.short > given for lack in lacks)
    return vain.reason == VainReason.NOBODY or not _has_gained(state, shapes, vain.gained)


def _has_gained(state: State, shapes: tuple[Shape, ...], mark: int) -> bool:
    """True if nodes that these tasks may use may have gained room since `Capacity.gained_mark` was `mark`."""
    gained = state.capacity.gains_since(mark)
    if gained is None or len(gained) > MAX_GAINED:
        return True
    return any(state.capacity.usable(node, shape) for node in set(gained) for shape in shapes)
