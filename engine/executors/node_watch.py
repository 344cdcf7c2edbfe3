"""The watch over nodes: leases renewed by heartbeats, loss and return of silent nodes, and relief of memory pressure.

`Leases` notes who was heard of when, outside the journal and the state. A heartbeat writes one entry of a few columns.
Silent nodes are found by a timing wheel: each node is in one bucket, by the time at which its lease would end as known
when it was put there. A node is looked at again only when its bucket is the first, and moves on if it was heard of
meanwhile: once in the time of a lease, however often it calls (Varghese and Lauck, IEEE/ACM ToN 5(6), 1997, "lazy"
variant).

`NodeWatch` suspects silent nodes, then declares them lost, takes back those that return, and has the lost repaired or
given back. It decides on the state, but for the leases. After a restart every watched node is given as long as if it
had just been heard of. A fork hears nobody and suspects nobody new; whom it found suspect it loses when their time is
over.

`PressureRelief` puts work out of nodes whose memory runs short, in one of two orders. `kubelet` is the kubelet's
(https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/): first what uses more than it asks
for, then lower priority, then what is further above its request; best effort counts as asking for nothing, and the
class of service has no say of its own. `qos` is best effort, then burstable work above its request, then burstable work
within it, guaranteed work last; then as above. Work that was put out waits at its age for a while before it may start
again; no retry is used up. A gang goes as a whole, unless it is elastic and can do without its tasks there.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from engine.capacity.index import OPEN
from engine.model import events as ev
from engine.model.columns import view
from engine.model.quantities import lognormal_ms
from engine.model.spec_parts import EvictionOrder, HealthSettings
from engine.model.specs import NodeState, Qos
from engine.placement.gang_placement import after_loss, packed, spared
from engine.state.cell_state import State
from engine.state.machines import FLAPS, NEEDS_HANDS, memory_limit
from engine.state.pending_work import Cause

BUCKET_MS = 1000
"""Cell milliseconds of one bucket: how late a silence may be noticed."""
NEVER = -1
FOREVER = 2**61
Column = np.ndarray[Any, np.dtype[Any]]


class HeartbeatResult(NamedTuple):
    """The outcome of a batch of heartbeats."""

    renewed: int
    """Leases renewed."""
    repeated: int
    """Heartbeats that came twice, or after a later one of the same node: they renew nothing."""
    refused: Column
    """Where in the batch those stand whose node is gone, unknown, or called by another agent since."""


class Leases:
    """The leases of nodes, by node row. An agent that registers gets an epoch for its row; only the newest epoch of a
    row renews."""

    def __init__(self) -> None:
        self.count = 0
        """Nodes that have a lease."""
        self.opened_ms = NEVER
        """Cell time at which this watch began; nobody was heard before."""
        self.after_ms = 0
        """How long a lease lasts."""
        self.seen_ms: Column = np.zeros(0, np.int64)
        """Cell time at which it was last heard of."""
        self.epoch: Column = np.zeros(0, np.int32)
        """0 while no agent is registered for the row."""
        self.number: Column = np.zeros(0, np.int32)
        """Number of its last heartbeat in this epoch."""
        self.skew_ms: Column = np.zeros(0, np.int64)
        """By how much its clock is ahead of ours, as it last said."""
        self.silent: Column = np.zeros(0, bool)
        """Its lease has ended, which was told; it is in no bucket."""
        self._leased: Column = np.zeros(0, bool)
        self._due: Column = np.zeros(0, np.int64)
        """The bucket it is in."""
        self._wheel: dict[int, list[Column]] = {}
        self._order: list[int] = []
        """Heap of the buckets' times."""
        self._sorted = True
        """The first bucket holds only leases that end then."""
        self._back: list[int] = []
        self.epochs = 0
        """The newest that was given."""

    # -- who has one --------------------------------------------------------------------------------------------------

    def open(self, now_ms: int, after_ms: int, first_epoch: int = 0) -> None:
        """Begin anew with nobody. Epochs are above `first_epoch`."""
        self.__init__()  # type: ignore[misc]
        self.opened_ms, self.after_ms, self.epochs = now_ms, after_ms, first_epoch

    def close(self) -> None:
        """Nobody will be heard, which means nothing: nobody is suspected, and nobody lost."""
        self.open(FOREVER, self.after_ms)

    def lease(self, rows: Column, now_ms: int) -> None:
        """Give these nodes a lease from now on, silent ones and those that have one as well."""
        if not len(rows):
            return
        self._grow(int(rows.max()) + 1)
        self.count += int((~self._leased[rows]).sum())
        outside = rows[~self._leased[rows] | self.silent[rows]]
        self._leased[rows] = True
        self.silent[rows] = False
        self.seen_ms[rows] = now_ms
        self._put(outside)
        self._sorted = False

    def silence(self, rows: Column) -> None:
        """Give these nodes a lease that has ended, which is known."""
        if len(rows):
            self._grow(int(rows.max()) + 1)
            self.count += int((~self._leased[rows]).sum())
            self._leased[rows] = True
            self.silent[rows] = True

    def drop(self, row: int) -> None:
        """The node is gone for good."""
        if row < len(self._leased) and self._leased[row]:
            self.count -= 1
            self._leased[row] = self.silent[row] = False
            self.epoch[row] = 0
            self._sorted = False

    def register(self, rows: Column, now_ms: int) -> Column:
        """New epochs for agents of these nodes, each there once, which call now. Those that had no lease get one."""
        if not len(rows):
            return np.zeros(0, np.int32)
        self._grow(int(rows.max()) + 1)
        self.lease(rows[~self._leased[rows]], now_ms)
        self._heard(rows, now_ms)
        self.epoch[rows] = self.epochs + 1 + np.arange(len(rows), dtype=np.int32)
        self.epochs += len(rows)
        self.number[rows] = 0
        found: Column = self.epoch[rows]
        return found

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def beat(
        self, rows: Column, epochs: Column, numbers: Column, skews_ms: Column | None, now_ms: int
    ) -> HeartbeatResult:
        """Take a batch, all columns of one length: node rows, epochs, and the number of each heartbeat, above 0 and
        rising, within its epoch. `skews_ms`: by how much the agents' clocks are ahead of ours; it is noted, and nothing
        follows from it."""
        known = (rows >= 0) & (rows < len(self.epoch))
        at = np.where(known, rows, 0)
        valid = known & (epochs > 0)
        if len(self.epoch):
            valid &= self.epoch[at] == epochs
        refused = np.flatnonzero(~valid)
        if len(refused):
            rows, numbers = rows[valid], numbers[valid]
            skews_ms = None if skews_ms is None else skews_ms[valid]
        later = numbers > self.number[rows]
        if not later.all():
            rows, numbers = rows[later], numbers[later]
            skews_ms = None if skews_ms is None else skews_ms[later]
        # The same node twice in a batch is one lease renewed, by the later of the two.
        np.maximum.at(self.number, rows, numbers)
        newest = self.number[rows] == numbers
        if not newest.all():
            rows = rows[newest]
            skews_ms = None if skews_ms is None else skews_ms[newest]
        if skews_ms is not None:
            self.skew_ms[rows] = skews_ms
        fresh = np.unique(rows) if len(rows) > 1 else rows
        self._heard(fresh, now_ms)
        return HeartbeatResult(len(fresh), len(known) - len(refused) - len(fresh), refused)

    def _heard(self, rows: Column, now_ms: int) -> None:
        """These nodes, which have leases, are alive."""
        self.seen_ms[rows] = now_ms
        back = rows[self.silent[rows]]
        if len(back):
            self._back += back.tolist()
            self.silent[back] = False
            self._put(back)
            self._sorted = False
        elif self._sorted and self._order and bool((self._due[rows] == self._order[0]).any()):
            self._sorted = False

    def take_back(self) -> list[int]:
        """Nodes that were silent and have been heard of since the last call, in the order in which they were."""
        back, self._back = self._back, []
        return back

    @property
    def anyone_back(self) -> bool:
        return bool(self._back)

    def excuse(self, passed_ms: int) -> None:
        """We were away ourselves for so long and heard nobody: no lease runs meanwhile."""
        self.seen_ms += passed_ms
        self._rebuild()

    def last(self, after_ms: int) -> None:
        """Have leases last so long from now on."""
        if after_ms != self.after_ms:
            self.after_ms = after_ms
            self._rebuild()

    # -- the wheel ----------------------------------------------------------------------------------------------------

    def next_ms(self, now_ms: int) -> int | None:
        """The cell time at which the next lease ends, if its node is not heard of before; to the next full bucket. It
        may be told too early as long as it is more than a bucket away: only then is the bucket looked through."""
        if not self._sorted and self._order and self._order[0] - now_ms <= BUCKET_MS:
            self._sort_first()
        return self._order[0] if self._order else None

    def ended(self, now_ms: int) -> list[int]:
        """Nodes whose lease has ended by now, ascending. Each is told once, and silent until it is heard of."""
        found: list[int] = []
        while (at := self.next_ms(now_ms)) is not None and at <= now_ms:
            # One that was dropped and has a lease again may be in there twice.
            rows = np.unique(np.concatenate(self._wheel.pop(heappop(self._order))))
            self.silent[rows] = True
            found += rows.tolist()
            self._sorted = False
        return sorted(found)

    def _sort_first(self) -> None:
        """Move on those in the first bucket that were heard of since they were put there, until one has any left."""
        while self._order:
            at = self._order[0]
            rows = np.concatenate(self._wheel[at])
            # Dropped, or put elsewhere since.
            rows = rows[self._leased[rows] & ~self.silent[rows] & (self._due[rows] == at)]
            stays = self._ends(rows) <= at
            left = rows[stays]
            if len(left):
                self._wheel[at] = [left]
            else:
                del self._wheel[at]
                heappop(self._order)
            self._put(rows[~stays])
            if len(left):
                break
        self._sorted = True

    def _ends(self, rows: Column) -> Column:
        """The bucket in which the leases of the rows end."""
        ends: Column = -(-(self.seen_ms[rows] + self.after_ms) // BUCKET_MS) * BUCKET_MS
        return ends

    def _put(self, rows: Column) -> None:
        """Enter the rows, which are in no bucket, by when their leases end."""
        if not len(rows):
            return
        ends = self._ends(rows)
        self._due[rows] = ends
        order = np.argsort(ends, kind="stable")
        rows, ends = rows[order], ends[order]
        starts = np.flatnonzero(np.diff(ends, prepend=ends[0] - 1))
        for at, part in zip(ends[starts].tolist(), np.split(rows, starts[1:]), strict=True):
            if at not in self._wheel:
                self._wheel[at] = []
                heappush(self._order, at)
            self._wheel[at].append(part)

    def _rebuild(self) -> None:
        self._wheel, self._order = {}, []
        self._put(np.flatnonzero(self._leased & ~self.silent))
        heapify(self._order)
        self._sorted = False

    def _grow(self, rows: int) -> None:
        if rows <= len(self.epoch):
            return
        size = max(rows, 2 * len(self.epoch), 64)
        for name in ("seen_ms", "epoch", "number", "skew_ms", "silent", "_leased", "_due"):
            old: Column = getattr(self, name)
            grown = np.zeros(size, old.dtype)
            grown[: len(old)] = old
            setattr(self, name, grown)


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
        """Return when something is to be done about a node that is down."""
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
            self._emit(ev.Evicted(row, ev.EVICTION_CAUSES.index("node pressure"), wake_at_ms=until_ms))


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
