"""Work that is moved outside the cycle: eligibility and cost, and the check of migrations.

Eligible is work that runs, is of a preemptible priority class, has run for its queue's minimum runtime, is not being
stopped for other work, does not end by itself in a moment, and belongs to a queue that may still be disrupted.

A migration takes running workloads off their nodes and places them elsewhere, all of them or none. It is tried on the
capacity with all of them off their nodes, so two gangs may change places. The trial is undone. The events that follow
repeat it exactly, in one turn, so nothing else can come in between.
"""

from __future__ import annotations

import numpy as np

from engine.admission.definitions import Checked, nodes_of
from engine.capacity.index import NOWHERE
from engine.capacity.task_shapes import Shape
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.columns import Rows, view
from engine.model.errors import MusterError, NotFoundError, RefusedError, SpecError, listed
from engine.model.specs import WorkloadState
from engine.placement.gang_placement import Claim, packed, place, unplace
from engine.scheduling.preemption import bound_rows, likely_ends, off_nodes
from engine.state.cell_state import State
from engine.state.workloads import NONE

MIGRATED = ev.EVICTION_CAUSES.index("migrated")
Placement = tuple[int, tuple[Shape, ...], list[Claim]]
"""(workload row, shapes it was placed as, claims)"""


def migrate(state: State, command: cmd.Migrate) -> Checked:
    """Raises SpecError, NotFoundError, or RefusedError naming the first workload that does not fit where it should
    go, or whose queue lacks quota there."""
    rows = [_row(state, move, f"moves[{i}]") for i, move in enumerate(command.moves)]
    if not rows:
        raise SpecError("moves", "is empty", "Give at least one workload and its target")
    if len(set(rows)) < len(rows):
        twice = next(state.workloads.ids[row] for row in rows if rows.count(row) > 1)
        raise SpecError("moves", f"'{twice}' is given twice", "Move each workload once")
    targets = [_target(state, move, f"moves[{i}]") for i, move in enumerate(command.moves)]
    placed: list[Placement] = []
    refused: RefusedError | None = None
    with off_nodes(state, rows):
        for row, move, nodes in zip(rows, command.moves, targets, strict=True):
            found = _place(state, row, move.pool, nodes)
            if found is None:
                where = f"pool '{move.pool}'" if move.pool else listed(list(move.nodes))
                refused = RefusedError(
                    f"'{move.id}' does not fit on {where}, with all that moves out of the way",
                    "Choose another place, or move fewer workloads there",
                )
                break
            placed.append((row, *found))
        for _, shapes, claims in reversed(placed):
            unplace(state.capacity, shapes, claims)
    if refused is not None:
        raise refused
    flags = _flags(state, placed)
    w = state.workloads
    events: list[ev.AnyEvent] = [ev.Evicted(row, MIGRATED, saved=w.saves_when_asked(row)) for row in rows]
    events += [
        ev.Placed(row, packed(claims, len(shapes)), flag)
        for (row, shapes, claims), flag in zip(placed, flags, strict=True)
    ]
    return events, tuple(move.id for move in command.moves)


def _row(state: State, move: cmd.Move, where: str) -> int:
    w = state.workloads
    row = w.row(move.id)
    if not state.is_bound(row):
        raise RefusedError(
            f"'{move.id}' is {WorkloadState(w.state[row]).label}", "Only placed or running work can move"
        )
    if w.preempting[row] != NONE:
        raise RefusedError(f"'{move.id}' is making room for '{w.ids[w.preempting[row]]}'", "Leave it out")
    if bool(move.pool) == bool(move.nodes):
        raise SpecError(where, "needs exactly one of pool and nodes", "Give either a pool or nodes")
    return row


def _target(state: State, move: cmd.Move, where: str) -> list[int]:
    """Node rows named; empty for a pool."""
    if move.pool:
        if move.pool not in state.capacity.pool_of:
            known = ", ".join(state.capacity.pool_of)
            raise NotFoundError(f"{where}.pool: there is no pool '{move.pool[:64]}'", f"Use one of: {known}")
        return []
    try:
        return nodes_of(state, move.nodes)
    except MusterError as error:
        raise NotFoundError(f"{where}.nodes: {error.problem}", error.remedy) from None


def _place(state: State, row: int, pool: str, nodes: list[int]) -> tuple[tuple[Shape, ...], list[Claim]] | None:
    """Claims for the tasks it has now; an elastic workload may get fewer, down to the fewest it needs."""
    w = state.workloads
    workload_class = w.class_at(row)
    counts = tuple(state.placed_of(row))
    least = tuple(map(min, workload_class.least, counts))
    if nodes:
        claims = _on_nodes(state, workload_class.shapes, counts, least, nodes)
        return None if claims is None else (workload_class.shapes, claims)
    at = state.capacity.pool_of[pool]
    if not all(at in shape.pool_set for shape in workload_class.shapes):
        return None
    shapes = tuple(shape.limited((at,), ()) for shape in workload_class.shapes)
    found = place(state.capacity, shapes, least, counts)
    return None if found is None else (shapes, found)


def _on_nodes(
    state: State, shapes: tuple[Shape, ...], counts: tuple[int, ...], least: tuple[int, ...], nodes: list[int]
) -> list[Claim] | None:
    """Claims on the nodes in their order; what asks for most devices first."""
    capacity = state.capacity
    claims: list[Claim] = []
    for group in sorted(range(len(shapes)), key=lambda g: (-shapes[g].gpu_milli, -shapes[g].cpu, g)):
        shape, left = shapes[group], counts[group]
        for node in nodes:
            while left and capacity.usable(node, shape) and capacity.fits(node, shape):
                count = capacity.room(node, shape, left)
                claims.append((group, node, count, capacity.claim(node, shape, count)))
                left -= count
        if counts[group] - left < least[group]:
            unplace(capacity, shapes, claims)
            return None
    return claims


def _flags(state: State, placed: list[Placement]) -> list[int]:
    """The quota flags of each new start. Raises RefusedError when a queue lacks quota in the pool where its work would
    go.
    """
    w, queues = state.workloads, state.queues
    flags = []
    with queues.trial():
        for row, _, _ in placed:
            queues.give_back(w.queue[row], state.charge_of(row), state.now_ms)
        refused = ""
        for row, shapes, claims in placed:
            charge = _charge(state, row, shapes, claims)
            if queues.lack(w.queue[row], charge, state.now_ms) is not None:
                refused = f"queue '{queues.specs[w.queue[row]].name}' lacks quota for '{w.ids[row]}' there"
                break
            flags.append(queues.flags_of(w.queue[row], charge))
            queues.charge(w.queue[row], charge, state.now_ms)
    if refused:
        raise RefusedError(refused, "Choose another place, or raise the quota")
    return flags


def _charge(state: State, row: int, shapes: tuple[Shape, ...], claims: list[Claim]) -> tuple[tuple[int, int], ...]:
    """The charge of these tasks to the queue, pool by pool where its tree has quotas of pools."""
    w, capacity = state.workloads, state.capacity
    by_pool: dict[int, list[int]] = {}
    pool_of = view(capacity.pool)
    for group, node, count, _ in claims:
        pool = int(pool_of[node]) if state.queues.flavored(w.queue[row]) else NONE
        by_pool.setdefault(pool, [0] * len(shapes))[group] += count
    request_of = w.class_at(row).request_of
    if NONE in by_pool:
        return state.queues.total_charge(request_of(by_pool[NONE]))
    return state.queues.charge_of(
        (capacity.pools[pool].name, request_of(counts)) for pool, counts in sorted(by_pool.items())
    )


KEPT = -1
"""Level of those that are not to be moved."""
RESTART_MS = 60_000
"""The time of a stop and a new start besides lost work: to pull images, load weights and connect. An assumption."""


class Movable:
    """The workloads that may be moved, and the cost of each move, as columns over all workload rows."""

    def __init__(self, state: State, now_ms: int) -> None:
        self._state = state
        self.requests = state.requests
        self.requests.update(state.workloads.classes)
        size = len(state.workloads.ids)
        self.lost_ms: Rows = np.zeros(size, np.int64)
        """Work that stopping each now would lose."""
        self.pause_ms: Rows = np.zeros(size, np.int64)
        """Time without progress besides: to write a checkpoint where it is asked for one, and to start anew."""
        self.cost: Rows = np.zeros(size, np.int64)
        """Both together, times the share of the cell that it holds in parts per million."""
        self.kept_because: dict[str, Rows] = {}
        """The reason why some may not be moved -> their rows."""
        self.allowed: Rows = np.zeros(size, bool)
        rows = bound_rows(state)
        if len(rows):
            self._admit(rows, now_ms)
            self._price(rows, now_ms)

    def _admit(self, rows: Rows, now_ms: int) -> None:
        state = self._state
        w, queues = state.workloads, state.queues
        queue = view(w.queue)[rows]
        preemptible = np.array([spec.preemptible for spec in w.priority_classes], bool)[view(w.priority)[rows]]
        least_ms = np.array([spec.min_runtime_ms for spec in queues.specs], np.int64)[queue]
        budget = np.array([queues.disruptions_left(q, now_ms) for q in range(len(queues.specs))])[queue]
        reserved = np.array([bool(c.reservation) for c in w.classes], bool)[view(w.cls)[rows]]
        running = view(w.state)[rows] == WorkloadState.RUNNING
        soon = likely_ends(state, rows) <= now_ms + RESTART_MS
        held = (
            ("not preemptible", ~preemptible),
            ("younger than the minimum runtime of its queue", now_ms - view(w.started)[rows] < least_ms),
            ("of a queue that may not be disrupted any more", budget <= 0),
            ("not confirmed to run yet, or being stopped already", ~running | (view(w.preempting)[rows] != NONE)),
            ("on the nodes of its reservation", reserved),
            ("at its end in a moment", soon),
        )
        left = np.ones(len(rows), bool)
        for why, marks in held:
            self.kept_because[why] = rows[left & marks]
            left &= ~marks
        self.allowed[rows[left]] = True

    def _price(self, rows: Rows, now_ms: int) -> None:
        state, requests = self._state, self.requests
        w = state.workloads
        cls = view(w.cls)[rows]
        tasks, all_tasks = view(w.tasks)[rows].astype(np.int64), view(requests.tasks)[cls]
        running = view(w.state)[rows] == WorkloadState.RUNNING
        done = view(w.done)[rows] + running * (now_ms - view(w.rated)[rows]) * tasks // all_tasks
        np.maximum(done, 0, out=done)
        interval, write_ms = view(w.checkpoint)[rows], view(w.checkpoint_cost)[rows]
        lost = np.where(interval > 0, done % np.maximum(interval, 1), done)
        lost[write_ms > 0] = 0
        share = np.array([max(state.cell_share(c.request), 1) for c in w.classes], np.int64)[cls]
        self.lost_ms[rows] = lost
        self.pause_ms[rows] = write_ms + RESTART_MS
        self.cost[rows] = (lost + write_ms + RESTART_MS) * np.maximum(share * tasks // all_tasks, 1)

    def level(self) -> Rows:
        """Level of each workload for `engine.scheduling.victims`: 0 for those that may be moved and have somewhere to
        go, one task of theirs at least; KEPT for the others."""
        state = self._state
        w = state.workloads
        level = np.full(len(w.ids), KEPT, np.int16)
        rows = np.flatnonzero(self.allowed)
        movable = np.unique(view(w.cls)[rows]).tolist()
        shapes = dict.fromkeys(shape for cls in movable for shape in w.classes[cls].shapes)
        has_room = {shape for shape in shapes if state.capacity.find(shape) != NOWHERE}
        goes: Rows = np.zeros(len(w.classes), bool)
        goes[[cls for cls in movable if not has_room.isdisjoint(w.classes[cls].shapes)]] = True
        level[rows[goes[view(w.cls)[rows]]]] = 0
        return level

    def reasons(self, rows: Rows, level: Rows) -> str:
        """The reasons why those of these workloads that stand in the way may not be moved."""
        concerned: Rows = np.zeros(len(level), bool)
        concerned[rows] = True
        counts = [(int(concerned[kept].sum()), why) for why, kept in self.kept_because.items()]
        counts.append((int((concerned & self.allowed & (level == KEPT)).sum()), "without another place that they fit"))
        told = "; ".join(f"{count} {why}" for count, why in counts if count)
        return f"no allowed move makes room for it ({told})" if told else "no moves make room for it"
