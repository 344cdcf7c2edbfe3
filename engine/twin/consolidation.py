"""Consolidation: plans that move running gangs so that a waiting one fits, or so that whole nodes come free.

A plan moves whole gangs, and only if every one of them has its new place in the plan. `engine.scheduling.migration`
decides which may be moved. Priority does not matter, because moved work goes on.

`engine.scheduling.victims` names the cheapest set whose removal makes room. With that set off the nodes, the blocked
work takes its place first. Then the moved gangs take theirs, the hardest to place first, each within its quota. A gang
without a place stays, and the search is made again without it. The result is tried on a fork, through the same entry
point and scheduling cycle as in the cell. It counts only if every moved gang runs where the plan says, nothing else is
stopped, and the blocked work has started.

The cost of a move is the work since the last checkpoint (or the time to write one on request) and a restart, times the
share of the cell that the gang holds. The benefit is the share of the work that starts because of it, times its wait
without the plan, or times its run time where that is shorter. A plan is worth it when the benefit is at least half the
cost, as in Karpenter's balanced consolidation; the caller may set another ratio.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from engine.capacity.task_shapes import Shape, task_size
from engine.capacity.topology import domain_room, levels_asked
from engine.control import Engine
from engine.model import commands as cmd
from engine.model.columns import Rows, view
from engine.model.consolidation_queries import (
    Consolidation,
    ConsolidationPlan,
    ConsolidationRequest,
    NodeTasks,
    Relocation,
    Unblocked,
)
from engine.model.errors import MusterError, NotFoundError, SpecError
from engine.model.quantities import shortlist
from engine.model.specs import HOUR_MS, TaskGroup, Toleration, WorkloadState
from engine.placement.fragmentation import headline_ppm, in_one_piece
from engine.placement.gang_placement import Claim, place, unplace, variants
from engine.reads.pending_reasons import FRAGMENTED, SCATTERED
from engine.scheduling.migration import KEPT, Movable
from engine.scheduling.preemption import bound_rows, off_nodes
from engine.scheduling.victim_candidates import VictimCandidates
from engine.scheduling.victims import cheapest, cheapest_in_one
from engine.state.cell_state import State
from engine.state.workloads import NONE

MAX_MOVES = 64
"""Gangs that one plan moves, unless the person asking says otherwise."""
MAX_ROUNDS = 24
"""Searches for one goal, each without those that found no new place in the last."""
MAX_GOALS = 8
"""Waiting workloads that a plan is looked for when none is named."""
MAX_LOTS = 500
"""Lots of like waiting workloads that are looked at for those."""
UNKNOWN_MS = HOUR_MS
"""Value of an unknown wait or run time, and of the useful time of a freed node."""
MILLION = 1_000_000


class PlacementGoal(NamedTuple):
    """The work or nodes that need room."""

    name: str
    row: int
    """The waiting workload; NONE for empty nodes."""
    shapes: tuple[Shape, ...]
    counts: tuple[int, ...]


class GangMove(NamedTuple):
    """A gang's new place."""

    row: int
    nodes: tuple[int, ...]
    """Nodes in the order in which they are to be filled."""


class MoveLayout(NamedTuple):
    """The place of everything once the moved gangs are off their nodes."""

    nodes: frozenset[int]
    """Nodes of the goal."""
    relays: tuple[GangMove, ...]
    """Moved gangs in the order in which they found their places."""


def plan(engine: Engine, request: ConsolidationRequest) -> Consolidation:
    """The moves that the request asks for, tried on forks. The engine is forked and otherwise left alone.

    Raises NotFoundError for a workload or pool that does not exist, and SpecError for a request that asks for nothing
    or for two things.
    """
    check(engine.state, request)
    row = engine.state.workloads.row_of.get(request.unblock, NONE)
    if row != NONE and engine.state.workloads.state[row] != WorkloadState.QUEUED:
        label = WorkloadState(engine.state.workloads.state[row]).label
        return _answer(engine, request, None, f"{request.unblock} is {label}: it is not waiting for capacity")
    base = engine.fork()
    # What is told is to be due to the moves alone: first everything starts that would start without them.
    base.settle()
    if row != NONE and base.state.is_bound(row):
        return _answer(
            engine, request, None, f"{request.unblock} starts in the next scheduling cycle, without any move"
        )
    planner = _Planner(base, request)
    found, why = planner.run()
    return _answer(engine, request, found, why, planner.tried)


def _answer(
    engine: Engine,
    request: ConsolidationRequest,
    found: ConsolidationPlan | None,
    why: str,
    tried: list[str] | None = None,
) -> Consolidation:
    return Consolidation(
        version=engine.version, now_ms=engine.now_ms, request=request, found=found, why=why, tried=tuple(tried or ())
    )


def check(state: State, request: ConsolidationRequest) -> None:
    """Raises NotFoundError or SpecError naming the field."""
    if request.unblock:
        state.workloads.row(request.unblock)
    if request.unblock and request.free_nodes:
        raise SpecError("free_nodes", "cannot be combined with a workload to unblock", "Give one of the two")
    if bool(request.free_nodes) != bool(request.pool):
        raise SpecError("pool", "belongs to free_nodes, and free_nodes to it", "Give both or neither")
    if request.pool:
        pool = state.capacity.pool_of.get(request.pool)
        if pool is None:
            names = shortlist([spec.name for spec in state.capacity.pools], 3)
            raise NotFoundError(f"there is no pool '{request.pool[:64]}'", f"Pools: {names}")
        if not 0 < request.free_nodes <= state.capacity.pool_nodes[pool]:
            most = state.capacity.pool_nodes[pool]
            raise SpecError("free_nodes", f"{request.free_nodes} of {most} nodes", f"Give a number from 1 to {most}")
    if request.max_moves < 0:
        raise SpecError("max_moves", f"{request.max_moves} is below 0", "Give the most gangs to move, or 0 for no wish")
    if request.least_ratio_permille < 0:
        raise SpecError("least_ratio_permille", "is below 0", "Give 0 to take a plan at any cost")


class _Planner:
    """The search for one request on an engine of its own, which has settled."""

    def __init__(self, engine: Engine, request: ConsolidationRequest) -> None:
        self.engine = engine
        self.state: State = engine.state
        self.request = request
        self.tried: list[str] = []
        """Trials that came to nothing, each with the reason."""
        self.most_moves = request.max_moves or MAX_MOVES
        self.movable = Movable(self.state, engine.now_ms)

    def run(self) -> tuple[ConsolidationPlan | None, str]:
        """(plan, why there is none)"""
        if self.request.free_nodes:
            return self._serve(self._empty_nodes())
        if self.request.unblock:
            return self._for_workload(self.state.workloads.row(self.request.unblock))
        dear: tuple[ConsolidationPlan | None, str] = (None, "")
        rows = self._most_valuable()
        for row in rows:
            found, why = self._for_workload(row)
            if found is not None and found.worth_it:
                return found, ""
            self.tried.append(f"{self.state.workloads.ids[row]}: {why}")
            dear = (found, why) if found is not None and dear[0] is None else dear
        if dear[0] is not None:
            return dear
        return None, "nothing that waits would start" if rows else "nothing waits because of fragmentation"

    # -- what for -----------------------------------------------------------------------------------------------------

    def _most_valuable(self) -> list[int]:
        """The workloads that fragmentation alone holds up, one of each kind: by band, then by the share of the cell it
        would put to use, then by age.
        """
        state, token = self.state, self.engine.reader.explainer.token
        w = state.workloads
        heads = sorted(group.rows[group.front] for group in state.pending.groups.values())[:MAX_LOTS]
        rows = [row for row in heads if token(row) in (FRAGMENTED, SCATTERED)]
        return sorted(rows, key=lambda r: (-w.band_at(r), -state.cell_share(w.class_at(r).request), r))[:MAX_GOALS]

    def _for_workload(self, row: int) -> tuple[ConsolidationPlan | None, str]:
        """A plan in the first of its variants that quota allows and moves make room for."""
        state = self.state
        least = state.workloads.class_at(row).least
        why = "no node of the cell has what its tasks ask for"
        for shapes in variants(self.state, row):
            lack = state.queues.lack(state.workloads.queue[row], state.charge_if(row, shapes, least), state.now_ms)
            if lack is not None:
                why = f"its queue lacks quota in {state.queues.specs[lack.vertex].name}, which no move gives it"
                continue
            found, why = self._serve(PlacementGoal(state.workloads.ids[row], row, shapes, least))
            if found is not None:
                return found, why
        return None, why

    def _empty_nodes(self) -> PlacementGoal:
        """Room for tasks that take a whole node each."""
        capacity = self.state.capacity
        pool = capacity.pools[capacity.pool_of[self.request.pool]]
        taints = sorted({taint.key for taints in capacity.taint_sets for taint in taints})
        anything = tuple(Toleration(key=key) for key in taints)
        group = TaskGroup(request=pool.capacity, pools=(pool.name,), tolerations=anything)
        return PlacementGoal(f"pool {pool.name}", NONE, (Shape(group, capacity.pools),), (self.request.free_nodes,))

    # -- who moves ----------------------------------------------------------------------------------------------------

    def _serve(self, goal: PlacementGoal) -> tuple[ConsolidationPlan | None, str]:
        """(the cheapest plan found for the goal, why there is none or why it is not worth it)"""
        short = self._short(goal)
        if short:
            return None, short
        level = self.movable.level()
        why = self.movable.reasons(self._in_the_way(goal.shapes), level)
        for _ in range(MAX_ROUNDS):
            moving = self._cheapest(goal, level)
            if moving is None:
                return None, why
            if not moving:
                return None, self._has_room(goal)
            layout, stuck = self._laid_out(goal, moving)
            if layout is not None:
                return self._tried_out(goal, layout)
            level[stuck] = KEPT
            ids = self.state.workloads.ids
            why = f"work that would have to move finds no other place: {shortlist([ids[row] for row in stuck], 3)}"
        return None, f"none found in {MAX_ROUNDS} searches; {why}"

    def _short(self, goal: PlacementGoal) -> str:
        """The shortage even if all free capacity were in one piece; empty when there is none, or when elastic work
        could give some of its own.
        """
        for shape, count in zip(goal.shapes, goal.counts, strict=True):
            room = in_one_piece(self.state.capacity, shape)
            if room < count and not self.state.stretched:
                one = f"empty node of {goal.name}" if goal.row == NONE else f"task of {task_size(shape)}"
                return f"too little is free: {_counted(count, one)} wanted; unfragmented there is room for {room}"
        return ""

    def _has_room(self, goal: PlacementGoal) -> str:
        """The reason why no move is of use where there is room."""
        if goal.row == NONE:
            return f"{_counted(goal.counts[0], f'empty node of {goal.name}')} already there"
        reason = self.engine.reader.explainer.reasons(goal.row)[0]
        return f"there is already room for it, and it waits for another reason: {reason.text} ({reason.token})"

    def _in_the_way(self, shapes: tuple[Shape, ...]) -> Rows:
        """Rows of the workloads on nodes that a task of the goal may use."""
        a = self.state.allocations
        useful = np.logical_or.reduce([self.state.capacity.usable_mask(shape) for shape in shapes])
        used = np.flatnonzero(view(a.workload) != NONE)
        return np.unique(view(a.workload)[used][useful[view(a.node)[used]]])

    def _cheapest(self, goal: PlacementGoal, level: Rows) -> list[int] | None:
        """The cheapest set whose removal makes room, whether or not it finds another place."""
        state = self.state

        def fits(rows: list[int]) -> bool:
            with off_nodes(state, rows):
                claims = place(state.capacity, goal.shapes, goal.counts)
                if claims is not None:
                    unplace(state.capacity, goal.shapes, claims)
            return claims is not None

        what = (
            state.capacity,
            state.allocations,
            self.movable.requests,
            view(state.workloads.cls),
            list(zip(goal.shapes, goal.counts, strict=True)),
            VictimCandidates(level, self.movable.cost),
        )
        joint = None if len(goal.shapes) == 1 else fits
        request = goal.shapes[0].topology
        if request is None or request.required is None:
            return cheapest(*what, limits=self._budget(), fits=joint)
        tree = domain_room(state.capacity).tree
        required, _ = levels_asked(tree, request)
        return cheapest_in_one(*what, tree.domain[required][tree.position], limits=self._budget, fits=joint)

    def _budget(self) -> _Budget:
        return _Budget(self.state, self.engine.now_ms, self.most_moves)

    def _laid_out(self, goal: PlacementGoal, moving: list[int]) -> tuple[MoveLayout | None, list[int]]:
        """(a place for the goal and for each that moves, who found none). The state is left as it was."""
        state = self.state
        w, queues, now_ms = state.workloads, state.queues, state.now_ms
        claimed: list[tuple[tuple[Shape, ...], list[Claim]]] = []
        relays: list[GangMove] = []
        stuck: list[int] = []
        with off_nodes(state, moving), queues.trial():
            for row in moving:
                queues.give_back(w.queue[row], state.charge_of(row), now_ms)
            mine = place(state.capacity, goal.shapes, goal.counts)
            if mine is None:
                return None, moving
            claimed.append((goal.shapes, mine))
            if goal.row != NONE:
                queues.charge(w.queue[goal.row], state.charge_if(goal.row, goal.shapes, goal.counts), now_ms)
            nodes = frozenset(node for _, node, _, _ in mine)
            for row in sorted(moving, key=self._hardness):
                found = self._placed_anew(row)
                if found is None:
                    stuck.append(row)
                    continue
                claimed.append(found)
                # The nodes of the goal last: where there is room elsewhere, none of theirs is taken.
                to = sorted(dict.fromkeys(node for _, node, _, _ in found[1]), key=nodes.__contains__)
                relays.append(GangMove(row, tuple(to)))
            for shapes, claims in reversed(claimed):
                unplace(state.capacity, shapes, claims)
        return (None if stuck else MoveLayout(nodes, tuple(relays))), stuck

    def _hardness(self, row: int) -> tuple[int, ...]:
        """The hardest to place first: large tasks, then large gangs."""
        workload_class = self.state.workloads.class_at(row)
        cpu, _, gpu_milli, _ = workload_class.request
        return -max(s.gpu_milli for s in workload_class.shapes), -gpu_milli, -cpu, row

    def _placed_anew(self, row: int) -> tuple[tuple[Shape, ...], list[Claim]] | None:
        """Claims for all the tasks it has now, or for an elastic one as many as there is room for; in the pools that
        it is in if it can be. Its quota is charged."""
        state = self.state
        w = state.workloads
        queue, have = w.queue[row], tuple(state.placed_of(row))
        least = tuple(map(min, have, w.class_at(row).least)) if w.elastic[row] else have
        pools = {state.capacity.pool[node] for node, _ in self._places(state, row)}
        own_pools_first = sorted(
            variants(self.state, row), key=lambda shapes: len(pools.difference(*(shape.pools for shape in shapes)))
        )
        for shapes in own_pools_first:
            claims = place(state.capacity, shapes, least, have)
            if claims is None:
                continue
            placed = [0] * len(shapes)
            for group, _, count, _ in claims:
                placed[group] += count
            charge = state.charge_if(row, shapes, placed)
            if state.queues.lack(queue, charge, state.now_ms) is None:
                state.queues.charge(queue, charge, state.now_ms)
                return shapes, claims
            unplace(state.capacity, shapes, claims)
        return None

    # -- tried out ----------------------------------------------------------------------------------------------------

    def _tried_out(self, goal: PlacementGoal, layout: MoveLayout) -> tuple[ConsolidationPlan | None, str]:
        """The plan as it went on a fork; none, and what went wrong, when it did not go as planned."""
        state, ids, node_ids = self.state, self.state.workloads.ids, self.state.capacity.node_ids
        fork = self.engine.fork()
        to = {ids[relay.row]: tuple(node_ids[node] for node in relay.nodes) for relay in layout.relays}
        try:
            fork.command(migration(to))
        except MusterError as error:
            return None, f"the cell refuses the moves: {error.problem}"
        after = fork.state
        moved = {relay.row: relay for relay in layout.relays}
        before = set(bound_rows(state).tolist())
        for row in sorted(before):
            if not after.is_bound(row):
                return None, f"{ids[row]} would be stopped and find no place"
            if row not in moved and after.workloads.attempts[row] != state.workloads.attempts[row]:
                return None, f"{ids[row]} would be stopped too"
        starts = [row for row in bound_rows(after).tolist() if row not in before]
        if goal.row != NONE and goal.row not in starts:
            others = shortlist([ids[row] for row in starts], 3)
            return None, f"others that go first would take the room: {others}" if others else "it would still not start"
        if goal.row == NONE:
            there = [ids[row] for row in moved for node, _ in self._places(after, row) if node in layout.nodes]
            if there:
                return None, f"{shortlist(there, 3)} would be put back where it is"
        return self._summed_up(goal, layout, starts, fork)

    def _summed_up(
        self, goal: PlacementGoal, layout: MoveLayout, starts: list[int], fork: Engine
    ) -> tuple[ConsolidationPlan, str]:
        state, w = self.state, self.state.workloads
        movable = self.movable
        rows = [relay.row for relay in layout.relays]
        freed = (
            sorted(node for node in layout.nodes if state.allocations.workloads_on(node)) if goal.row == NONE else []
        )
        unblocks = tuple(self._unblocked(row, fork.state) for row in starts)
        cost = sum(int(movable.cost[row]) for row in rows)
        benefit = sum(state.cell_share(fork.state.workloads.class_at(r).request) * u.gains_ms
                      for r, u in zip(starts, unblocks, strict=True))  # fmt: skip
        pools = [state.capacity.pools[state.capacity.pool[node]].capacity for node in freed]
        benefit += sum(state.cell_share(capacity.vector()) * UNKNOWN_MS for capacity in pools)
        ratio = benefit * 1000 // cost
        resource = (
            2 if any(w.class_at(row).request[2] for row in (*rows, *starts)) or any(c.gpu_milli for c in pools) else 0
        )

        def seconds(row: int, of_ms: int) -> int:
            return int(w.class_at(row).request[resource]) * of_ms // MILLION

        gained = sum(seconds(row, u.gains_ms) for row, u in zip(starts, unblocks, strict=True))
        gained += sum(c.vector()[resource] * UNKNOWN_MS // MILLION for c in pools)
        found = ConsolidationPlan(
            moves=tuple(self._relocation(relay, fork.state) for relay in layout.relays),
            unblocks=unblocks,
            frees=tuple(state.capacity.node_ids[node] for node in freed),
            unit="gpu" if resource else "cpu",
            lost_s=sum(seconds(row, int(movable.lost_ms[row])) for row in rows),
            restart_s=sum(seconds(row, int(movable.pause_ms[row])) for row in rows),
            gained_s=gained,
            ratio_permille=ratio,
            worth_it=ratio >= self.request.least_ratio_permille,
            fragmentation_before_ppm=headline_ppm(state),
            fragmentation_after_ppm=headline_ppm(fork.state),
        )
        if found.worth_it:
            return found, ""
        least = self.request.least_ratio_permille / 1000
        return found, f"it brings {ratio / 1000:.2f} of its cost, and the minimum is {least:.2f} is asked for"

    def _unblocked(self, row: int, after: State) -> Unblocked:
        state = self.state
        w = state.workloads
        start = self.engine.reader.explainer.start_bound(row)
        waits_ms = None if start is None else max(start - self.engine.now_ms, 0)
        runs_ms = w.remaining_ms(row) if w.class_at(row).estimate_ms else None
        known = [ms for ms in (waits_ms, runs_ms) if ms is not None]
        return Unblocked(
            id=w.ids[row],
            tasks=after.workloads.tasks[row],
            gpu_milli=w.class_at(row).request[2],
            cpu_milli=w.class_at(row).request[0],
            waits_ms=waits_ms,
            gains_ms=min(known, default=UNKNOWN_MS),
        )

    def _relocation(self, relay: GangMove, after: State) -> Relocation:
        state, row = self.state, relay.row
        w, node_ids = state.workloads, state.capacity.node_ids
        return Relocation(
            id=w.ids[row],
            queue=state.queues.specs[w.queue[row]].name,
            gpu_milli=w.class_at(row).request[2],
            cpu_milli=w.class_at(row).request[0],
            lost_ms=int(self.movable.lost_ms[row]),
            pause_ms=int(self.movable.pause_ms[row]),
            was=tuple(NodeTasks(node=node_ids[node], tasks=tasks) for node, tasks in self._places(state, row)),
            to=tuple(NodeTasks(node=node_ids[node], tasks=tasks) for node, tasks in self._places(after, row)),
            nodes=tuple(node_ids[node] for node in relay.nodes),
        )

    @staticmethod
    def _places(state: State, row: int) -> list[tuple[int, int]]:
        """(node, tasks) of a workload, by node."""
        a = state.allocations
        tasks: Counter[int] = Counter()
        for i in a.of_workload(state.workloads.first_allocation[row]):
            tasks[a.node[i]] += a.count[i]
        return sorted(tasks.items())


def migration(to: dict[str, tuple[str, ...]]) -> cmd.Migrate:
    """The command that moves each workload to these nodes, filled in that order."""
    return cmd.Migrate(moves=tuple(cmd.Move(id=name, nodes=nodes) for name, nodes in to.items()))


def _counted(count: int, one: str) -> str:
    """A number in words: "2 tasks of 8 GPU are"."""
    noun, _, rest = one.partition(" of ")
    return f"{count} {noun}{'' if count == 1 else 's'} of {rest} {'is' if count == 1 else 'are'}"


class _Budget:
    """The number of gangs that may be moved, in all and of each queue."""

    def __init__(self, state: State, now_ms: int, most: int) -> None:
        self._queue = state.workloads.queue
        self._left = [state.queues.disruptions_left(queue, now_ms) for queue in range(len(state.queues.specs))]
        self._most = most

    def take(self, row: int) -> bool:
        queue = self._queue[row]
        if not self._most or self._left[queue] <= 0:
            return False
        self._most -= 1
        self._left[queue] -= 1
        return True

    def untake(self, row: int) -> None:
        self._most += 1
        self._left[self._queue[row]] += 1
