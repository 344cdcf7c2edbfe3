"""Nodes whose memory runs short put work out, in one of two orders.

`kubelet`: as the kubelet does (https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/): first
what uses more than it asks for, then what has the lower priority, then what is further above its request; best effort
counts as asking for nothing. The class of service has no say of its own. `qos`: best effort, then burstable work above
its request, then burstable work within it, guaranteed work last; then as above.

What is put out waits at its age for a while before it may start again, and has not failed: no retry is used up. A gang
goes as a whole, unless it is elastic and can do without its tasks there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from engine.model import events as ev
from engine.model.qos import EvictionOrder
from engine.model.specs import Qos
from engine.placement.gang_placement import packed
from engine.placement.hot_swap import spared
from engine.state.cell_state import State
from engine.state.reconsider import Cause
from engine.state.usage import memory_limit


class EvictionCandidate(NamedTuple):
    """Work on a node that runs short."""

    row: int
    qos: Qos
    priority: int
    use_mib: int
    request_mib: int


def rank(candidate: EvictionCandidate, order: EvictionOrder) -> tuple[int, int, int, int]:
    """The smallest goes first."""
    asked = 0 if candidate.qos == "best_effort" else candidate.request_mib
    above = candidate.use_mib - asked
    if order == "kubelet":
        step = 0 if above > 0 else 1
    else:
        step = {"best_effort": 0, "burstable": 1 if above > 0 else 2, "guaranteed": 3}[candidate.qos]
    return step, candidate.priority, -above, candidate.row


class PressureRelief:
    """The controller of all nodes of a cell."""

    def __init__(self, state: State, emit: Callable[[ev.AnyEvent], None]) -> None:
        self._state = state
        self._emit = emit

    def next_ms(self, now_ms: int) -> int | None:
        """The next look at nodes that run short, or the end of a time in which work did not grow."""
        state = self._state
        if not (state.usage.pressed or state.replicas.held_ms):
            return None
        times = [at_ms for at_ms in state.replicas.held_ms.values() if at_ms > now_ms]
        if state.usage.pressed:
            every = state.settings.pressure.check_every_ms
            times.append((now_ms // every + 1) * every)
        return min(times, default=None)

    def act(self, now_ms: int) -> None:
        state = self._state
        if now_ms in state.replicas.held_ms.values():
            state.reconsider.ask(Cause.TIME)
        if now_ms % state.settings.pressure.check_every_ms == 0:
            for node in sorted(state.usage.pressed):
                self._relieve(node, now_ms)

    def _relieve(self, node: int, now_ms: int) -> None:
        state = self._state
        pressure = state.settings.pressure
        limit_mib = memory_limit(state, node, pressure.evict_to_permille)
        while state.usage.memory_on(node) > limit_mib:
            first = min(candidates(state, node), key=lambda candidate: rank(candidate, pressure.order))
            self._put_out(first.row, node, now_ms + pressure.pause_ms)

    def _put_out(self, row: int, node: int, until_ms: int) -> None:
        state = self._state
        surplus = spared(state, row, (node,))
        if surplus is not None:
            groups = packed(surplus, len(state.workloads.class_at(row).counts))
            self._emit(ev.Shrunk(row, groups, until_ms=until_ms))
        else:
            self._emit(ev.Requeued(row, ev.REQUEUE_CAUSES.index("node pressure"), wake_at_ms=until_ms))


def candidates(state: State, node: int) -> list[EvictionCandidate]:
    """All work on the node that is known to use memory there."""
    w, a = state.workloads, state.allocations
    asked: dict[int, int] = {}
    for i in a.on_node(node):
        row = a.workload[i]
        request = w.class_at(row).groups[a.group[i]].request.memory_mib
        asked[row] = asked.get(row, 0) + request * a.count[i]
    return [
        EvictionCandidate(row, w.class_at(row).bonds.qos, w.value_at(row), use.memory_mib, asked[row])
        for row, use in sorted(state.usage.on.get(node, {}).items())
        if use.memory_mib
    ]
