"""A fault drill: in the cell of `gke-65k`, full of work, a rack, a zone and 40 % of the spot nodes are lost at once.

Rack and zone are gone without a word; the spot nodes get their provider's notice of 30 s. What is measured: whether
anything is lost or half placed, how long in cell time until every workload that lost its nodes runs again where there
is room, how long the decisions take, and what cannot run and why. Half an hour later the nodes come back and all must
run again; then all runs to its end.

The load is chosen here. In cell time a loss is known the moment it happens: how long silence lasts before a node is
taken for lost is a setting of the watch over nodes (`engine.executors.node_watch`), and comes on top.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from engine.control import Engine
from engine.model.columns import Rows, view
from engine.model.commands import AddNodes, AnyCommand, Cancel, FailNodes, Interrupt, RestoreNodes, Submit
from engine.model.errors import MusterError
from engine.model.specs import HOUR_MS, NodeSpec, NodeState, TopologyRequest, WorkloadSpec, WorkloadState
from engine.placement.gang_placement import place, unplace
from engine.scenarios.gke import (
    FOREVER_MS,
    MINUTE_MS,
    RACK,
    EngineStopwatch,
    SpecFactory,
    cell,
    lost_work,
    running_tasks,
)
from engine.state.invariants import faults_of
from engine.state.workloads import NONE, SWAPPED

NODES = 65_000
SPOT_PERMILLE = 400
"""Of the cell's nodes."""
TAKEN_PERMILLE = 400
"""Of the spot nodes."""
LOST_ZONE = "zone-b"
NOTICE_MS = 30_000
BEFORE_MS = 25 * MINUTE_MS
"""How long the load runs before the loss."""
DOWN_MS = 30 * MINUTE_MS
STEP_MS = 1000
"""Between looks at what runs again."""
LONGEST_MS = 10 * MINUTE_MS
"""What does not run by then, without anything having changed, waits for room."""


class EvictedWork(msgspec.Struct, frozen=True, kw_only=True):
    """The workloads of one priority class that had tasks on lost nodes, or had to make room for those."""

    priority: str
    on_lost_nodes: int
    made_room: int
    """Others that were preempted for them."""
    running_again: int
    waiting: int
    lost_ms: int
    """Longest stretch of work that one of them lost, since its last checkpoint."""


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """What happened."""

    nodes: int
    workloads: int
    tasks: int
    """That ran before."""
    lost_nodes: dict[str, int]
    """Rack, zone, spot -> nodes."""
    tasks_on_lost: int
    swapped: int
    """Gangs that went on with other nodes in the place of lost ones."""
    evicted: tuple[EvictedWork, ...]
    recovered_ms: int
    """Cell time from the loss until the last of those that run again did."""
    waiting: dict[str, int]
    """Why what waits does -> workloads."""
    free_nodes: int
    """Ready nodes with nothing on them, after the recovery."""
    fail_wall_ms: float
    """The turn in which rack and zone were lost: evictions, swaps, and all that was started in their place."""
    spot_wall_ms: float
    """The turns until the spot nodes were gone and their work placed again."""
    back_wall_ms: float
    """The turns in which the nodes came back and all ran again."""
    back_ms: int
    """Cell time from their return until all ran."""
    decisions_ms: float
    decisions_cpu_ms: float
    checks: int
    finished: int
    """Workloads that ran to their end; the others are inference, scaled down by the drill."""


def load(nodes: int, seed: int = 1) -> list[WorkloadSpec]:
    """Some 92 % of the nodes: inference, large gangs of which half swap members, gangs that need a rack of their own,
    and batch."""
    make = SpecFactory(seed)
    unit = nodes // 65
    # Of two racks at least, so that losing one leaves something to go on with.
    gangs = make.gangs("training", 20 * unit, max(min(10 * unit // RACK, 20), 1), "medium", 3 * HOUR_MS)
    swapping = [msgspec.structs.replace(spec, hot_swap=i % 2 == 0) for i, spec in enumerate(gangs)]
    racks = [make.gang(f"rack-{i}", RACK, "medium", 2 * HOUR_MS) for i in range(max(2 * unit // RACK, 1))]
    close = TopologyRequest(required="rack")
    return [
        *(msgspec.structs.replace(spec, topology=close) for spec in racks),
        *swapping,
        *make.singles("inference", 15 * unit, "high", FOREVER_MS, FOREVER_MS),
        *make.singles("batch", 23 * unit, "low", 2 * HOUR_MS, 3 * HOUR_MS),
    ]


def bench(nodes: int = NODES, seed: int = 1, check: Callable[[Engine], None] | None = None) -> Drill:
    """Run it. `check`: a further look at the engine after each step. Raises MusterError where anything is amiss."""
    engine = Engine.open(None, seed=seed, cell=cell(nodes, spot_permille=SPOT_PERMILLE))
    return _Drilling(engine, seed, check).run(load(nodes, seed))


class _Drilling:
    def __init__(self, engine: Engine, seed: int, check: Callable[[Engine], None] | None) -> None:
        self._engine = engine
        self._seed = seed
        self._more_checks = check
        self._clock = EngineStopwatch()
        self._checks = 0

    def run(self, specs: Sequence[WorkloadSpec]) -> Drill:
        engine, w = self._engine, self._engine.state.workloads
        self._do(Submit(workloads=tuple(specs)))
        self._check("the load was placed")
        self._all_run("before the loss")
        self._pass_to(engine.now_ms + BEFORE_MS)
        before = running_tasks(engine.state)
        lost = _targets(engine, self._seed)
        self._mark([*lost["rack"], *lost["zone"], *lost["spot"]])
        lost_at_ms = engine.now_ms
        gone = [*lost["rack"], *lost["zone"]]
        fail_ms = self._do(FailNodes(ids=tuple(gone)))
        self._check("rack and zone were lost")
        spot_ms = self._do(Interrupt(ids=tuple(lost["spot"]), notice_ms=NOTICE_MS))
        spot_ms += self._pass_to(lost_at_ms + NOTICE_MS)
        self._check("the spot nodes were gone")
        recovered_ms = self._settle(lost_at_ms)
        self._check("what could run again did")
        evicted, waiting, free = self._evicted(), self._reasons(), _idle_nodes(engine)
        self._nothing_fits()
        self._pass_to(lost_at_ms + DOWN_MS)
        back_at_ms = engine.now_ms
        back_ms = self._do(RestoreNodes(ids=tuple(gone)))
        back_ms += self._do(AddNodes(nodes=tuple(_instead(engine, name) for name in lost["spot"])))
        back_ms += self._pass_to(engine.now_ms + STEP_MS)
        self._check("the nodes were back")
        again_ms = self._settle(back_at_ms)
        self._all_run("after the nodes were back")
        serving = tuple(spec.id for spec in specs if spec.priority_class == "high")
        self._do(Cancel(ids=serving))
        self._pass_to(engine.now_ms + 24 * HOUR_MS)
        self._check("all had ended")
        finished = w.state_counts[WorkloadState.FINISHED]
        if finished + len(serving) != len(specs):
            raise MusterError(f"{len(specs) - len(serving) - finished:,} workloads never finished")
        return Drill(
            nodes=len(self._lost),
            workloads=len(specs),
            tasks=sum(before.values()),
            lost_nodes={what: len(names) for what, names in lost.items()},
            tasks_on_lost=self._tasks_on_lost,
            swapped=int((view(w.history_what) == SWAPPED).sum()),
            evicted=evicted,
            recovered_ms=recovered_ms,
            waiting=waiting,
            free_nodes=free,
            fail_wall_ms=fail_ms,
            spot_wall_ms=spot_ms,
            back_wall_ms=back_ms,
            back_ms=again_ms,
            decisions_ms=round(self._clock.at_s * 1000, 1),
            decisions_cpu_ms=round(self._clock.cpu_s * 1000, 1),
            checks=self._checks,
            finished=finished,
        )

    # -- steps --------------------------------------------------------------------------------------------------------

    def _do(self, command: AnyCommand) -> float:
        """Milliseconds of wall time it took."""
        begun_s, end_s = self._clock.call(self._engine, self._engine.now_ms, command)
        return round((end_s - begun_s) * 1000, 1)

    def _pass_to(self, at_ms: int) -> float:
        begun_s, end_s = self._clock.call(self._engine, at_ms, None)
        return round((end_s - begun_s) * 1000, 1)

    def _settle(self, since_ms: int) -> int:
        """Let cell time pass until nothing more starts that waited. Returns when the last did, from `since_ms`."""
        engine, w = self._engine, self._engine.state.workloads
        until = since_ms + LONGEST_MS
        while w.state_counts[WorkloadState.QUEUED] and engine.now_ms < until:
            due = engine.next_due()
            if due is None or due > until:
                break
            self._pass_to(max(due, engine.now_ms + STEP_MS))
        # Only starts of work that had run before count: a second attempt or a later one.
        again = (view(w.attempts) > 1) & (view(w.state) == WorkloadState.RUNNING) & (view(w.started) >= since_ms)
        return int((view(w.started)[again] - since_ms).max()) if again.any() else 0

    # -- checks -------------------------------------------------------------------------------------------------------

    def _check(self, when: str) -> None:
        """Raises MusterError naming the first moment at which something is amiss."""
        self._checks += 1
        faults = [*faults_of(self._engine.state), *lost_work(self._engine.state)]
        if faults:
            raise MusterError(f"when {when}: {'; '.join(faults)}")
        if self._more_checks is not None:
            self._more_checks(self._engine)

    def _all_run(self, when: str) -> None:
        w = self._engine.state.workloads
        idle = [label for label in WorkloadState if not label.terminal and label != WorkloadState.RUNNING]
        if left := sum(w.state_counts[label] for label in idle):
            raise MusterError(f"{left:,} workloads do not run {when}: {self._reasons()}")

    def _nothing_fits(self) -> None:
        """Raises MusterError when something waits that would fit on what is idle, other than to keep the time that was
        promised to one before it."""
        state, promise = self._engine.state, self._engine.scheduler.memory.reservation
        for group in state.pending.groups.values():
            row = group.rows[group.front]
            if promise is not None and row != promise.row and not promise.ends_in_time(row):
                continue
            workload_class = state.workloads.class_at(row)
            claims = place(state.capacity, workload_class.shapes, workload_class.least)
            if claims is not None:
                unplace(state.capacity, workload_class.shapes, claims)
                raise MusterError(f"'{state.workloads.ids[row]}' waits although it fits")

    # -- figures ------------------------------------------------------------------------------------------------------

    def _mark(self, names: list[str]) -> None:
        """Remember who has tasks on these nodes, and how everybody is doing."""
        state = self._engine.state
        w, a, capacity = state.workloads, state.allocations, state.capacity
        self._lost = np.zeros(len(capacity.node_ids), bool)
        self._lost[[capacity.row_of[name] for name in names]] = True
        there = (view(a.workload) != NONE) & self._lost[view(a.node)]
        self._on_lost: Rows = np.zeros(len(w.ids), bool)
        self._on_lost[view(a.workload)[there]] = True
        self._tasks_on_lost = int(view(a.count)[there].sum())
        self._attempts, self._work = view(w.attempts).copy(), self._done()

    def _done(self) -> Rows:
        w = self._engine.state.workloads
        running = view(w.state) == WorkloadState.RUNNING
        return np.asarray(view(w.kept) + view(w.done) + (self._engine.now_ms - view(w.rated)) * running)

    def _evicted(self) -> tuple[EvictedWork, ...]:
        w = self._engine.state.workloads
        now, priority = view(w.state), view(w.priority)
        running = now == WorkloadState.RUNNING
        stopped = (view(w.attempts) != self._attempts) | ~running
        lost_ms = np.where(stopped, self._work - view(w.kept), 0)
        found = []
        for number, spec in enumerate(w.priority_classes):
            mine = priority == number
            hit, room = mine & self._on_lost, mine & stopped & ~self._on_lost
            if mine.any():
                found.append(
                    EvictedWork(
                        priority=spec.name,
                        on_lost_nodes=int(hit.sum()),
                        made_room=int(room.sum()),
                        running_again=int((mine & stopped & running).sum()),
                        waiting=int((mine & stopped & ~running).sum()),
                        lost_ms=int(lost_ms[mine].max()),
                    )
                )
        return tuple(found)

    def _reasons(self) -> dict[str, int]:
        return dict(self._engine.overview().blocked)


def _targets(engine: Engine, seed: int) -> dict[str, list[str]]:
    """Return what is lost: a zone; a rack elsewhere, of a gang that swaps members if there is one; and so many spot
    nodes in other places, drawn from the seed."""
    capacity = engine.state.capacity
    names, rows = capacity.node_ids, range(len(capacity.node_ids))
    spot = [row for row in rows if capacity.pools[capacity.pool[row]].spot]
    taken = random.Random(seed).sample(spot, len(spot) * TAKEN_PERMILLE // 1000)
    w, a = engine.state.workloads, engine.state.allocations
    zones = [capacity.label(row, "zone") for row in rows]
    swapping = (
        [a.node[i] for i in a.of_workload(w.first_allocation[row])] for row in range(len(w.ids)) if w.hot_swap[row]
    )
    here = next((held[0] for held in swapping if all(zones[node] != LOST_ZONE for node in held)), 0)
    rack = [names[row] for row in rows if capacity.rack[row] == capacity.rack[here]]
    zone = [names[row] for row in rows if zones[row] == LOST_ZONE]
    gone = {*rack, *zone}
    return {"rack": rack, "zone": zone, "spot": sorted({names[row] for row in taken} - gone)}


def _instead(engine: Engine, name: str) -> NodeSpec:
    """The machine that the provider gives for the one that it took."""
    return NodeSpec(id=f"{name}-again", pool="cpu-spot", region="region", zone="zone-a")


def _idle_nodes(engine: Engine) -> int:
    capacity, a = engine.state.capacity, engine.state.allocations
    ready = view(capacity.state) == NodeState.READY
    return int((ready & (view(a.first_on_node) == NONE)).sum())
