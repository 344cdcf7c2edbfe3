"""Controllers: the parts of the engine that act as time passes. They are the autoscaler, service scaling, providers and
the interruptions of their spot machines, the watch over nodes, and budgets.

A controller reads the state and the time, and emits events. It holds no fact that the state does not hold, so a restart
or a fork makes it anew and it goes on alike. `engine.elasticity.scale_up` and `engine.elasticity.scale_down` decide for
the autoscaler.

At intervals each running service gets the number of replicas that `engine.model.spec_parts` finds. More replicas are
set at once, and the scheduler starts them as there is room. Fewer are set at once when the largest number that the load
needed during the stabilisation window is below the present one.

Where a pool gives a rate of interruption, the simulated provider takes spot machines back. Each machine's time is drawn
once, from the seed and the machine's id, as an exponential from the start of its payment. Machines of pools with a
maximum age end then at the latest. Real providers, and people who rehearse, send the command `Interrupt` instead. From
the notice on, a machine takes no new work, and running work goes on; work that ends in time has ended. At the deadline
an elastic gang with enough tasks elsewhere loses those on the machine. Any other work goes back to its queue at its
original age. It keeps all of its progress if it can write a checkpoint on request and had the time to, else that of its
last one. Then the machine is gone.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from functools import cached_property
from heapq import heappop, heappush
from itertools import groupby
from typing import Protocol

from engine.admission.definitions import Checked
from engine.elasticity import scale_down, scale_up
from engine.elasticity.capacity_ahead import Foresight, noted
from engine.elasticity.providers import ProviderFaults, Provisioning, SimulatedProvider
from engine.executors.node_watch import Leases, NodeWatch, PressureRelief
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.errors import RefusedError, SpecError, listed, not_found
from engine.model.spec_parts import LOOK_EVERY_MS, desired
from engine.model.specs import HOUR_MS, NodeState, ServiceSpec, check_quantity
from engine.placement.gang_placement import packed, spared
from engine.state.budgets import BudgetWatch
from engine.state.cell_state import State
from engine.state.demand import Forecaster
from engine.state.machines import load_of
from engine.state.run_times import uniforms
from engine.state.workloads import NONE


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


TAKEN = ev.EVICTION_CAUSES.index("spot taken")
NOTICE_MS = 30_000
"""Between notice and end where neither the command nor the pool says."""
FOREVER_MS = 2**60
Fate = tuple[int, int, int]
"""(pool's chance to be taken in an hour, its notice, greatest age of its machines), as in ScalingSpec"""


class Interruptions:
    """The controller of machines that are taken back."""

    def __init__(self, state: State, seed: int, emit: Callable[[ev.AnyEvent], None], from_ms: int = 0) -> None:
        """`from_ms`: of machines that are older it is known only that they were there at that cell time."""
        self._from_ms = from_ms
        self._state = state
        self._seed = seed
        self._emit = emit
        self._rules = -1
        """`State.rules` when it last looked for new machines."""
        self._fates: tuple[Fate, ...] = ()
        self._known = 0
        """Machines whose end has been drawn."""
        self._notices: list[tuple[int, int, int]] = []
        """Heap of (cell ms of the notice, of the end, node row)."""

    def next_ms(self, now_ms: int) -> int | None:
        state = self._state
        if state.rules != self._rules:
            self._look()
        notices, doomed = self._notices, state.doomed
        if not notices and not doomed:
            return None
        capacity = state.capacity
        while notices and (capacity.doomed[notices[0][2]] >= 0 or capacity.state[notices[0][2]] == NodeState.REMOVED):
            heappop(notices)
        while doomed and not self._ends(*doomed[0]):
            heappop(doomed)
        if notices and doomed:
            return min(notices[0][0], doomed[0][0])
        return notices[0][0] if notices else doomed[0][0] if doomed else None

    def act(self, now_ms: int) -> None:
        while (due_ms := self.next_ms(now_ms)) is not None and due_ms <= now_ms:
            self._give_notices(now_ms)
            ending = []
            while self._state.doomed and self._state.doomed[0][0] <= now_ms:
                entry = heappop(self._state.doomed)
                if self._ends(*entry):
                    ending.append(entry[1])
            if ending:
                for event in taken(self._state, sorted(set(ending))):
                    self._emit(event)

    def _ends(self, deadline_ms: int, node: int) -> bool:
        """True if the machine is still there, and ends then."""
        capacity = self._state.capacity
        return capacity.doomed[node] == deadline_ms and capacity.state[node] != NodeState.REMOVED

    def _look(self) -> None:
        """Draw the ends of machines that are new, or of all when a pool's provider behaves in another way."""
        capacity = self._state.capacity
        self._rules = self._state.rules
        fates = tuple(
            (s.taken_permille_hour if pool.spot else 0, s.notice_ms, s.max_age_ms) if s is not None else (0, 0, 0)
            for pool, s in ((pool, pool.scaling) for pool in capacity.pools)
        )
        if fates[: len(self._fates)] != self._fates:
            self._known = 0
            self._notices = []
        self._fates = fates
        if any(rate or age for rate, _, age in fates):
            ending = [bool(rate or age) for rate, _, age in fates]
            new = [
                node
                for node in range(self._known, len(capacity.node_ids))
                if ending[capacity.pool[node]]
                and capacity.state[node] != NodeState.REMOVED
                and capacity.doomed[node] < 0
            ]
            for entry in self._drawn(new):
                heappush(self._notices, entry)
        self._known = len(capacity.node_ids)

    def _drawn(self, nodes: list[int]) -> list[tuple[int, int, int]]:
        """Time of the notice, time of the end, and row, for each machine."""
        capacity = self._state.capacity
        names = [f"{capacity.node_ids[node]}/{capacity.born[node]}/taken" for node in nodes]
        found = []
        for node, part in zip(nodes, uniforms(self._seed, names).tolist(), strict=True):
            rate, notice_ms, age_ms = self._fates[capacity.pool[node]]
            born_ms = capacity.born[node]
            # An exponential has no memory: what is left is drawn like the whole.
            end_ms = max(born_ms, self._from_ms) + lifetime_ms(part, rate) if rate else FOREVER_MS
            end_ms = min(end_ms, born_ms + (age_ms or FOREVER_MS))
            found.append((max(end_ms - notice_ms, born_ms), end_ms, node))
        return found

    def _give_notices(self, now_ms: int) -> None:
        capacity, due = self._state.capacity, []
        while self._notices and self._notices[0][0] <= now_ms:
            _, end_ms, node = heappop(self._notices)
            if capacity.doomed[node] < 0 and capacity.state[node] != NodeState.REMOVED:
                due.append((max(end_ms, now_ms), node))
        for end_ms, machines in groupby(sorted(due), key=lambda each: each[0]):
            self._emit(ev.Interrupted(array("i", [node for _, node in machines]).tobytes(), end_ms))


def interrupt(state: State, command: cmd.Interrupt, now_ms: int) -> Checked:
    """Raises SpecError for a notice that makes no sense; NotFoundError or RefusedError when none of the machines is
    there, or all have had their notice."""
    if not command.ids:
        raise SpecError("ids", "is empty", "Give at least one node")
    if command.notice_ms != -1:
        check_quantity(command.notice_ms, "notice_ms", most=24 * HOUR_MS)
    capacity = state.capacity
    names = list(dict.fromkeys(command.ids))
    known = [capacity.row_of[name] for name in names if name in capacity.row_of]
    if not known:
        raise not_found("node", names, capacity.row_of)
    by_end: dict[int, list[int]] = {}
    for node in sorted(known):
        scaling = capacity.pools[capacity.pool[node]].scaling
        usual_ms = NOTICE_MS if scaling is None else scaling.notice_ms
        end_ms = now_ms + (usual_ms if command.notice_ms < 0 else command.notice_ms)
        if capacity.doomed[node] < 0 or end_ms < capacity.doomed[node]:
            by_end.setdefault(end_ms, []).append(node)
    if not by_end:
        told = [capacity.node_ids[node] for node in known]
        raise RefusedError(f"{listed(told)} already had notice", "Nothing to do: its work is already handled")
    events: list[ev.AnyEvent] = [
        ev.Interrupted(array("i", nodes).tobytes(), end_ms) for end_ms, nodes in sorted(by_end.items())
    ]
    touched = {capacity.node_ids[node] for nodes in by_end.values() for node in nodes}
    return events, tuple(name for name in names if name in touched)


def lifetime_ms(part: float, taken_permille_hour: int) -> int:
    """Time within which that part of machines is taken back, of which so many in a thousand are within an hour."""
    return max(1, int(math.log1p(-part) / math.log1p(-taken_permille_hour / 1000) * HOUR_MS))


def taken(state: State, nodes: Sequence[int]) -> list[ev.AnyEvent]:
    """The events of the loss of these machines: for the work there, oldest first, and for them. `nodes`: rows,
    ascending, of machines that were given notice.
    """
    on = set(nodes)
    rows = sorted({state.allocations.workload[a] for node in nodes for a in state.allocations.on_node(node)})
    events = [_without(state, row, on) for row in rows]
    return [*events, ev.NodesChanged(array("i", nodes).tobytes(), NodeState.REMOVED)]


def _without(state: State, row: int, nodes: set[int]) -> ev.AnyEvent:
    """The workload loses its tasks on the machines; or it stops, where too few would be left."""
    w, a, capacity = state.workloads, state.allocations, state.capacity
    surplus = spared(state, row, nodes) if w.preempting[row] == NONE else None
    if surplus is not None:
        return ev.Shrunk(row, packed(surplus, len(w.class_at(row).counts)))
    gone = (a.node[i] for i in a.of_workload(w.first_allocation[row]) if a.node[i] in nodes)
    warned_ms = min(state.now_ms - capacity.since[node] for node in gone)
    return ev.Evicted(row, TAKEN, saved=0 < w.checkpoint_cost[row] <= warned_ms)


class Autoscaler:
    """Scans at whole multiples of `Autoscaling.scan_every_ms`, while some pool grows by itself."""

    def __init__(self, state: State, emit: Callable[[ev.AnyEvent], None], forecaster: Forecaster | None = None) -> None:
        self._state = state
        self._emit = emit
        self._rules = -1
        """`State.rules` when it was last found out whether a pool grows by itself."""
        self._any = False
        self._forecaster = forecaster

    @cached_property
    def _foresight(self) -> Foresight:
        return Foresight(self._state, self._forecaster)

    def next_ms(self, now_ms: int) -> int | None:
        state = self._state
        if self._rules != state.rules:
            self._rules = state.rules
            self._any = any(pool.scaling is not None for pool in state.capacity.pools)
        if not self._any or not state.settings.autoscaling.enabled:
            return None
        every_ms = state.settings.autoscaling.scan_every_ms
        return now_ms // every_ms * every_ms + every_ms

    def act(self, now_ms: int) -> None:
        state = self._state
        for event in noted(state, now_ms):
            self._emit(event)
        wanted = self._foresight.wanted(now_ms)
        # Each is decided on what the one before has done: nothing is given back that was just ordered.
        for event in scale_up.plan(state, now_ms, wanted):
            self._emit(event)
        for event in scale_down.plan(state, now_ms, wanted):
            self._emit(event)


Emit = Callable[[ev.AnyEvent], None]


class Controller(Protocol):
    """Called by the engine alone, on its thread, in the turn in which its moment comes."""

    def next_ms(self, now_ms: int) -> int | None:
        """Cell time at which it next has something to do; None when nothing is to come. What is due already counts."""
        ...

    def act(self, now_ms: int) -> None:
        """Do what is due. Afterwards `next_ms` lies beyond `now_ms`, or is None."""
        ...


def controllers_of(
    state: State,
    seed: int,
    emit: Emit,
    leases: Leases,
    provider_faults: ProviderFaults | None = None,
    *,
    from_ms: int = 0,
    forecaster: Forecaster | None = None,
) -> list[Controller]:
    """The controllers that the cell needs, in the order in which they act at one moment. `from_ms`: as in
    Interruptions. `forecaster`: forecasts the demand that nodes are ordered ahead for; None: the built-in baseline.
    """
    return [
        NodeWatch(state, seed, emit, leases),
        Interruptions(state, seed, emit, from_ms),
        Provisioning(state, SimulatedProvider(state, seed, provider_faults), emit),
        Services(state, emit),
        PressureRelief(state, emit),
        BudgetWatch(state, emit),
        Autoscaler(state, emit, forecaster),
    ]
