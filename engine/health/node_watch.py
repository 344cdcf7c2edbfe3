"""The watch over nodes: silent ones are suspected, then lost; those that come back return; the lost are repaired or
given back.

What it decides on is in the state, but for the leases (`engine.health.heartbeats`), which are outside the journal.
After a restart every watched node is given as long as if it had just been heard of. A fork hears nobody and suspects
nobody new; whom it found suspect it loses when their time is over.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np

from engine.capacity.index import OPEN
from engine.health.heartbeats import NEVER, Leases
from engine.model import events as ev
from engine.model.distributions import lognormal_ms
from engine.model.health_settings import HealthSettings
from engine.model.specs import NodeState
from engine.placement.hot_swap import after_loss
from engine.state.cell_state import State
from engine.state.node_failures import FLAPS, NEEDS_HANDS
from engine.tables.columns import view

MASS_EVERY_MS = 10_000
"""Between losses that are declared while many are suspect at once."""
_ALIVE = (NodeState.READY, NodeState.CORDONED, NodeState.DRAINING)


class NodeWatch:
    """A controller (`engine.controllers`)."""

    def __init__(self, state: State, seed: int, emit: Callable[[ev.AnyEvent], None], leases: Leases) -> None:
        self._state = state
        self._seed = seed
        self._emit = emit
        self._leases = leases
        self._settings: HealthSettings | None = None
        """Those that `_moments` follow from."""
        self._opened_ms = NEVER
        """When the leases were opened that they follow from."""
        self._moments: list[tuple[int, int]] = []
        """Heap of (cell ms, node) of what is to come for suspects and nodes that are down."""
        self._moment_of: dict[int, int] = {}
        """Node -> its entry in the heap that counts."""

    def next_ms(self, now_ms: int) -> int | None:
        failures, leases = self._state.failures, self._leases
        if failures.touched or self._settings is not self._state.settings.health or self._opened_ms != leases.opened_ms:
            self._look()
        while self._moments and self._moment_of.get(self._moments[0][1]) != self._moments[0][0]:
            heappop(self._moments)
        at_ms = self._moments[0][0] if self._moments else None
        if leases.count:
            lease = now_ms if leases.anyone_back else leases.next_ms(now_ms)
            if lease is not None and (at_ms is None or lease < at_ms):
                return lease
        return at_ms

    def act(self, now_ms: int) -> None:
        self._suspect(self._leases.ended(now_ms))
        self._return(self._leases.take_back(), now_ms)
        silent: list[tuple[int, int]] = []
        down: list[int] = []
        while self._moments and self._moments[0][0] <= now_ms:
            at_ms, node = heappop(self._moments)
            if self._moment_of.get(node) != at_ms:
                continue
            del self._moment_of[node]
            if self._state.capacity.state[node] == NodeState.SUSPECT:
                silent.append((self._state.capacity.since[node], node))
            elif self._state.capacity.state[node] == NodeState.DOWN:
                down.append(node)
        self._lose(sorted(silent), now_ms)
        for node in down:
            self._mend(node, now_ms)
        self._look()

    # -- what is to come ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take note of nodes that have changed; of all of them when the settings have."""
        failures, settings = self._state.failures, self._state.settings.health
        touched = failures.touched
        if settings is not self._settings or self._opened_ms != self._leases.opened_ms:
            self._settings, self._opened_ms = settings, self._leases.opened_ms
            self._leases.last(settings.suspect_after_ms)
            self._moments, self._moment_of = [], {}
            states = view(self._state.capacity.state) if self._state.capacity.state else np.zeros(0, np.int8)
            touched = np.flatnonzero((states == NodeState.SUSPECT) | (states == NodeState.DOWN)).tolist()
        for node in dict.fromkeys(touched):
            self._note(node, settings)
        failures.touched = []

    def _note(self, node: int, settings: HealthSettings) -> None:
        state, leases = self._state.capacity.state[node], self._leases
        self._moment_of.pop(node, None)
        if not self._state.failures.is_watched(node):
            leases.drop(node)
        if state == NodeState.SUSPECT:
            since_ms = self._state.capacity.since[node]
            if leases.opened_ms != NEVER:
                since_ms = max(since_ms, leases.opened_ms + settings.suspect_after_ms)
            self._expect(since_ms + settings.grace_ms, node)
        elif state == NodeState.DOWN:
            at_ms = self._mended_ms(node, settings)
            if at_ms is not None:
                self._expect(at_ms, node)
        elif state in _ALIVE and leases.count and node < len(leases.silent) and leases.silent[node]:
            # Somebody says that it is well: then it is to be heard of as any other.
            leases.lease(np.array([node]), self._state.now_ms)

    def _expect(self, at_ms: int, node: int) -> None:
        self._moment_of[node] = at_ms
        heappush(self._moments, (at_ms, node))

    def _mended_ms(self, node: int, settings: HealthSettings) -> int | None:
        """When something is to be done about a node that is down."""
        capacity, failures = self._state.capacity, self._state.failures
        since_ms = capacity.since[node]
        if capacity.pools[capacity.pool[node]].scaling is not None:
            wanted = settings.give_back_after_ms and capacity.booking[node] == OPEN
            return since_ms + settings.give_back_after_ms if wanted else None
        if node in failures.repair_until:
            return failures.repair_until[node]
        return None if not settings.repair_ms[0] or failures.notes.get(node) == NEEDS_HANDS else since_ms

    # -- silence ------------------------------------------------------------------------------------------------------

    def _suspect(self, nodes: list[int]) -> None:
        self._turn([node for node in nodes if self._state.capacity.state[node] in _ALIVE], NodeState.SUSPECT)

    def _return(self, nodes: list[int], now_ms: int) -> None:
        """They have been heard of again. A node that an executor reported lost does not return by being heard of."""
        capacity, failures = self._state.capacity, self._state.failures
        was: dict[int, list[int]] = {}
        flapping: list[int] = []
        for node in dict.fromkeys(nodes):
            if node not in failures.before:
                continue
            if capacity.state[node] == NodeState.DOWN and self._flaps(node, now_ms):
                flapping.append(node)
            else:
                was.setdefault(failures.before[node], []).append(node)
        for state in sorted(was):
            self._turn(was[state], NodeState(state))
        self._keep_out(flapping)

    def _lose(self, silent: list[tuple[int, int]], now_ms: int) -> None:
        """Declare them lost, (cell ms since when they are suspect, node) each: all, or a few while it may be the
        network."""
        failures, settings = self._state.failures, self._state.settings.health
        if not silent:
            return
        count = len(silent)
        if failures.is_mass(settings.mass_permille):
            count = max(failures.watched_count * settings.mass_lost_permille // 1000, 1)
            if failures.lost_at_ms >= 0 and now_ms < failures.lost_at_ms + MASS_EVERY_MS:
                count = 0
        lost = sorted(node for _, node in silent[:count])
        for event in after_loss(self._state, lost):
            self._emit(event)
        again_ms = failures.lost_at_ms + MASS_EVERY_MS
        for _, node in silent[count:]:
            self._expect(again_ms, node)

    # -- repair -------------------------------------------------------------------------------------------------------

    def _mend(self, node: int, now_ms: int) -> None:
        """Something is due for a node that is down."""
        capacity, failures, settings = self._state.capacity, self._state.failures, self._state.settings.health
        if capacity.pools[capacity.pool[node]].scaling is not None:
            self._turn([node], NodeState.REMOVED)
        elif node not in failures.repair_until:
            self._repair(node, now_ms)
        elif self._draw(node, "fails").randrange(1000) >= settings.repair_fails_permille:
            if self._flaps(node, now_ms):
                self._keep_out([node])
            else:
                self._turn([node], NodeState.READY)
        elif failures.repairs[node] < settings.most_repairs:
            self._repair(node, now_ms)
        else:
            self._emit(ev.NodesNoted(array("i", [node]).tobytes(), NEEDS_HANDS))

    def _repair(self, node: int, now_ms: int) -> None:
        median, late = self._state.settings.health.repair_ms
        takes_ms = lognormal_ms(self._draw(node, "takes"), median, late) if median else 0
        self._emit(ev.RepairStarted(array("i", [node]).tobytes(), now_ms + max(takes_ms, 1)))

    def _draw(self, node: int, what: str) -> random.Random:
        """A source of chance of its own for one thing of the node's present repair, or the next if none is on."""
        failures, capacity = self._state.failures, self._state.capacity
        losses = failures.losses.get(node, [0])
        name = f"{capacity.node_ids[node]}/{losses[-1]}/{failures.repairs.get(node, 0)}"
        return random.Random(f"{self._seed}/{name}/repair {what}")

    def _flaps(self, node: int, now_ms: int) -> bool:
        settings = self._state.settings.health
        return self._state.failures.flaps(node, settings.flaps, settings.flap_window_ms, now_ms)

    def _keep_out(self, nodes: list[int]) -> None:
        """They are back, but not to be trusted."""
        self._turn(nodes, NodeState.CORDONED)
        if nodes:
            self._emit(ev.NodesNoted(array("i", nodes).tobytes(), FLAPS))

    def _turn(self, nodes: list[int], to: NodeState) -> None:
        if nodes:
            self._emit(ev.NodesChanged(array("i", nodes).tobytes(), to))
