"""The check of migrations: running workloads are taken off their nodes and placed elsewhere, all of them or none.

Every move is tried on the capacity with all that moves given back, so two gangs may change places. What was tried is
undone; the events that follow repeat it exactly, in one turn, so nothing else can come in between.
"""

from __future__ import annotations

from engine.admission.definitions import Checked
from engine.admission.id_lookup import listed, nodes_of
from engine.capacity.task_shapes import Shape
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.errors import MusterError, NotFoundError, RefusedError, SpecError
from engine.model.specs import WorkloadState
from engine.placement.gang_placement import Claim, packed, place, unplace
from engine.scheduling.preemption import off_nodes
from engine.state.cell_state import State
from engine.state.workloads import NONE
from engine.tables.columns import view

MIGRATED = ev.REQUEUE_CAUSES.index("migrated")
Placement = tuple[int, tuple[Shape, ...], list[Claim]]
"""(workload row, shapes it was placed as, claims)"""


def migrate(state: State, command: cmd.Migrate) -> Checked:
    """Raises SpecError, NotFoundError, or RefusedError naming the first workload that does not fit where it should
    go, or whose queue lacks quota there."""
    rows = [_row(state, move, f"moves[{i}]") for i, move in enumerate(command.moves)]
    if not rows:
        raise SpecError("moves", "is empty", "Name at least one workload and where it goes")
    if len(set(rows)) < len(rows):
        twice = next(state.workloads.ids[row] for row in rows if rows.count(row) > 1)
        raise SpecError("moves", f"'{twice}' is there twice", "Move each workload once")
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
    events: list[ev.AnyEvent] = [ev.Requeued(row, MIGRATED, saved=w.saves_when_asked(row)) for row in rows]
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
            f"'{move.id}' is {WorkloadState(w.state[row]).label}", "Only what is placed or runs can move"
        )
    if w.preempting[row] != NONE:
        raise RefusedError(f"'{move.id}' makes room for '{w.ids[w.preempting[row]]}'", "Leave it out")
    if bool(move.pool) == bool(move.nodes):
        raise SpecError(where, "names no place, or two", "Give either a pool or nodes")
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
    """How each may start again. Raises RefusedError when a queue lacks quota in the pool where its work would go."""
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
    """What these tasks cost the queue, pool by pool where its tree has quotas of pools."""
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
