"""What to try when somebody asks what work would cost: which pools would do, as work of which queue, and when.

Reads the state on the engine's thread, a few pools and queues at most.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from engine.admission.submissions import check_place
from engine.ledger.charges import share
from engine.model.base import HOUR_MS, MAX_QUANTITY, check_id, check_quantity
from engine.model.errors import MusterError, RefusedError, SpecError
from engine.model.quantity_parsing import shown
from engine.model.specs import MAX_NAME, Resources, TaskGroup, WorkloadSpec, WorkloadState
from engine.placement.node_templates import grows
from engine.state.deadlines import hazard_ppm_hour
from engine.tables.columns import view
from recommender.quotes.queries import MAX_NODES, MAX_OFFERS, MAX_RUN_MS, MAX_WITHIN_MS, Kind, QuoteRequest

if TYPE_CHECKING:
    from engine.model.specs import PoolSpec
    from engine.state.cell_state import State

MAX_POOLS = 3
"""Of the kind that was asked for, cheapest first."""
MAX_OTHERS = 1
"""With other devices, cheapest first."""
MAX_QUEUES = 20
"""Leaves that are looked at when no queue is named, the largest first."""
LOOKBACK_MS = 24 * HOUR_MS
LATE_MS = 5 * 60_000
"""A start so little in the past is now: cells run faster than people type."""


class FinishedWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work of one priority that finished of late."""

    finished: int = 0
    stops: int = 0
    """How often it was taken off its nodes, not counting its own failures."""
    ran_ms: int = 0
    """Run time of all of it, without what was lost at stops."""
    longest_ms: int = 0


class QuoteCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run it."""

    kind: Kind
    label: str
    spec: WorkloadSpec
    pool: str
    machine_type: str
    region: str
    gpu_model: str
    spot: bool
    asked_start_ms: int
    rate_microusd_hour: int
    """What the ledger charges for all tasks together."""
    hazard_ppm_hour: int
    """Expected interruptions of all its machines in an hour, in millionths; 0: none are known of."""
    hazard_told: bool
    """By the pool; else as measured."""
    watched_ms: int
    """Machine time that the measured hazard rests on."""
    max_age_ms: int
    past: FinishedWork
    notes: tuple[str, ...]


class QuotePlan(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    at_ms: int
    queue: str
    queue_chosen: bool
    """By us."""
    candidates: tuple[QuoteCandidate, ...]
    warnings: tuple[str, ...]


def plan(state: State, request: QuoteRequest, now_ms: int) -> QuotePlan:
    """The options of a request. Raises SpecError naming the field."""
    _check(request, now_ms)
    there = [(row, p) for row, p in enumerate(state.capacity.pools) if state.capacity.pool_nodes[row] or grows(p)]
    warnings: list[str] = []
    try:
        fitting, others = _pools(state, request, there, warnings)
    except SpecError as error:
        if not request.offers:
            raise
        # Elsewhere there may be such machines.
        fitting, others = [], []
        warnings.append(f"the cell: {error.problem}")
    asked_ms = now_ms if request.start_ms is None else max(request.start_ms, now_ms)
    wanted: list[tuple[Kind, int, PoolSpec, int]] = [
        ("now" if asked_ms == now_ms else "later", row, pool, asked_ms) for row, pool in fitting[:MAX_POOLS]
    ]
    if fitting and request.other_start_ms is not None and request.other_start_ms > now_ms:
        wanted.append(("later", *fitting[0], request.other_start_ms))
    if fitting and asked_ms > now_ms:
        wanted.append(("now", *fitting[0], now_ms))
    wanted += [("pool", row, pool, asked_ms) for row, pool in others[:MAX_OTHERS]]
    queue = _named_queue(state, request.queue) if request.queue else ""
    candidates: list[QuoteCandidate] = []
    refused: SpecError | None = None
    for kind, row, pool, at_ms in wanted:
        spec = _spec(state, request, row, pool, len(candidates), at_ms if at_ms > now_ms else 0)
        try:
            queue = queue or _largest_queue(state, spec)
            spec = msgspec.structs.replace(spec, queue=queue)
            check_place(state, spec, "request")
        except SpecError as error:
            if kind != "pool":
                # Where in a spec that nobody wrote says nothing.
                why = error.problem.partition(": ")[2] or error.problem
                refused = refused or SpecError("nodes", f"{why} (pool {pool.name})", error.remedy)
                warnings.append(f"pool {pool.name}: {why}")
            continue
        candidates.append(_candidate(state, request, kind, row, pool, spec, at_ms, now_ms))
    if len(fitting) > MAX_POOLS:
        warnings.append(f"not tried: {', '.join(pool.name for _, pool in fitting[MAX_POOLS:][:5])}")
    if refused is not None and not candidates and not request.offers:
        raise refused
    return QuotePlan(
        version=state.version,
        at_ms=now_ms,
        queue=queue,
        queue_chosen=not request.queue,
        candidates=tuple(candidates),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _check(request: QuoteRequest, now_ms: int) -> None:
    check_quantity(request.nodes, "nodes", least=1, most=MAX_NODES)
    if request.gpus is not None:
        check_quantity(request.gpus, "gpus")
        if not request.gpus and request.model:
            raise SpecError("gpus", f"is 0, and {shown(request.model)} is a model of GPUs", "Leave one of them out")
    for field in ("cpu_milli", "memory_mib"):
        if getattr(request, field) is not None:
            check_quantity(getattr(request, field), field)
    check_quantity(request.run_ms, "run_ms", most=MAX_RUN_MS)
    check_quantity(request.checkpoint_interval_ms, "checkpoint_interval_ms", most=MAX_RUN_MS)
    check_quantity(request.seeds, "seeds", most=100)
    check_quantity(request.within_ms, "within_ms", least=1, most=MAX_WITHIN_MS)
    check_quantity(request.seed, "seed", most=MAX_QUANTITY)
    for field in ("queue", "tenant", "priority_class"):
        if getattr(request, field):
            check_id(getattr(request, field), field)
    if len(request.name) > MAX_NAME:
        raise SpecError("name", f"{len(request.name)} characters", f"Give at most {MAX_NAME}")
    if request.start_ms is not None:
        check_quantity(request.start_ms, "start_ms")
        if request.start_ms < now_ms - LATE_MS:
            behind = (now_ms - request.start_ms) / HOUR_MS
            raise SpecError(
                "start", f"lies {behind:,.1f} h in the cell's past", "Give now, +6h, tonight or a later time"
            )
    if len(request.offers) > MAX_OFFERS:
        raise SpecError("offers", f"{len(request.offers):,} list prices", f"Give at most {MAX_OFFERS}: name a region")


# -- pools ------------------------------------------------------------------------------------------------------------

Pools = Sequence[tuple[int, "PoolSpec"]]


def _pools(
    state: State, request: QuoteRequest, there: Pools, warnings: list[str]
) -> tuple[list[tuple[int, PoolSpec]], list[tuple[int, PoolSpec]]]:
    """Pools whose nodes do, and those with other devices that might do instead; on-demand ones first, cheapest first.
    Raises SpecError when there are none of the former."""
    model = _model(request.model, sorted({pool.gpu_model for _, pool in there if pool.gpu_model}))
    kind = [(row, pool) for row, pool in there if _of_kind(pool, request, model)]
    if not kind:
        raise SpecError("gpus", "are asked for, and no node of this cell has any", "Leave --gpus out for CPU nodes")
    most = max(pool.capacity.gpu_milli // 1000 for _, pool in kind)
    if (request.gpus or 0) > most:
        largest = max(kind, key=lambda each: each[1].capacity.gpu_milli)[1]
        what = f" of {model}" if model else ""
        raise SpecError(
            "gpus",
            f"{request.gpus} on each node are asked for, and the largest node{what} has {most} (pool {largest.name})",
            f"Ask for at most {most} on each, and for more nodes",
        )
    large = [(row, pool) for row, pool in kind if pool.capacity.gpu_milli // 1000 >= (request.gpus or 0)]
    if request.spot:
        if not any(pool.spot for _, pool in large):
            spots = ", ".join(pool.name for _, pool in there if pool.spot)
            raise SpecError(
                "spot",
                f"no pool with such nodes is of spot machines: {', '.join(pool.name for _, pool in large)}",
                f"Spot pools are: {spots}" if spots else "The cell has no spot pool",
            )
        large = [(row, pool) for row, pool in large if pool.spot]
    fitting = sorted(large, key=lambda each: (each[1].spot, each[1].price_microusd_hour, each[1].name))
    others = [
        (row, pool)
        for row, pool in there
        if model and pool.gpu_model and pool.gpu_model != model and pool.spot <= request.spot
        and pool.capacity.gpu_milli // 1000 >= (request.gpus or 1)
        and _most_nodes(state, row, pool) >= request.nodes
    ]  # fmt: skip
    for row, pool in fitting:
        have = _most_nodes(state, row, pool)
        if have < request.nodes:
            warnings.append(f"pool {pool.name} has {have:,} nodes at most, and {request.nodes:,} are asked for")
    return fitting, sorted(others, key=lambda each: (each[1].price_microusd_hour, each[1].name))


def _model(asked: str, known: list[str]) -> str:
    """The model as the cell spells it. Raises SpecError naming near ones."""
    if not asked:
        return ""
    same = [model for model in known if model.lower() == asked.lower()]
    if same:
        return same[0]
    if not known:
        raise SpecError("model", f"{shown(asked)} is asked for, and the cell has no GPUs", "Leave --model out")
    folded = {model.lower(): model for model in known}
    near = difflib.get_close_matches(asked.lower(), folded, 3) or [m for m in folded if m.startswith(asked.lower())]
    meant = f"Did you mean {' or '.join(folded[each] for each in near[:3])}? " if near else ""
    raise SpecError("model", f"no node has GPUs of model {shown(asked)}", f"{meant}There are: {', '.join(known)}")


def _of_kind(pool: PoolSpec, request: QuoteRequest, model: str) -> bool:
    if model:
        return pool.gpu_model == model
    return bool(pool.capacity.gpu_milli) == bool(request.gpus)


def _most_nodes(state: State, row: int, pool: PoolSpec) -> int:
    return max(state.capacity.pool_nodes[row], pool.scaling.most if pool.scaling is not None else 0)


# -- the work ---------------------------------------------------------------------------------------------------------


def _request_on(pool: PoolSpec, request: QuoteRequest) -> Resources:
    """What one task asks of a node: all of it, or the same part of its CPU and memory as of its devices."""
    offered = pool.offered
    devices = offered.gpu_milli // 1000
    asked = devices if request.gpus is None else request.gpus
    part, whole = (asked, devices) if devices else (1, 1)
    cpu = offered.cpu_milli * part // whole if request.cpu_milli is None else request.cpu_milli
    memory = offered.memory_mib * part // whole if request.memory_mib is None else request.memory_mib
    return Resources(cpu_milli=cpu, memory_mib=memory, gpu_milli=asked * 1000)


def _spec(
    state: State, request: QuoteRequest, row: int, pool: PoolSpec, number: int, not_before_ms: int
) -> WorkloadSpec:
    names = (f"quote-{number}{'-' * again}" for again in range(1, 1000))
    name = next(name for name in names if name not in state.workloads.row_of)
    classes = state.workloads.priority_of
    usual = "normal" if "normal" in classes else next(iter(classes), "normal")
    if request.priority_class and request.priority_class not in classes:
        raise SpecError("priority_class", f"there is no {shown(request.priority_class)}", f"Use: {', '.join(classes)}")
    return WorkloadSpec(
        id=name,
        name=request.name,
        queue=request.queue or "?",
        tenant=request.tenant,
        priority_class=request.priority_class or usual,
        groups=(TaskGroup(count=request.nodes, request=_request_on(pool, request), pools=(pool.name,)),),
        estimate_ms=request.run_ms,
        checkpoint_interval_ms=request.checkpoint_interval_ms,
        not_before_ms=not_before_ms,
    )


def _named_queue(state: State, name: str) -> str:
    """Raises SpecError for one that is not there or takes no work."""
    try:
        state.queues.leaf(name)
    except MusterError as error:
        near = difflib.get_close_matches(name, state.queues.row_of, 1)
        meant = f"Did you mean {near[0]}?" if near and near[0] != name else error.remedy
        raise SpecError("queue", error.problem, meant) from None
    return name


def _largest_queue(state: State, spec: WorkloadSpec) -> str:
    """The leaf with the largest quota that it fits into. Raises SpecError when there is none."""
    queues = state.queues
    leaves = [row for row in range(len(queues.specs)) if not queues.children[row] and queues.takes_work(row)]
    if not leaves:
        raise RefusedError("the cell has no queue that takes work", "Add one: muster define")
    resource = "gpu_milli" if spec.groups[0].request.gpu_milli else "cpu_milli"
    leaves.sort(key=lambda row: (-_nominal(queues.specs[row].nominal, resource), queues.specs[row].name))
    first: SpecError | None = None
    for row in leaves[:MAX_QUEUES]:
        name: str = queues.specs[row].name
        try:
            check_place(state, msgspec.structs.replace(spec, queue=name), "request")
        except SpecError as error:
            first = first or error
            continue
        return name
    assert first is not None
    raise first


def _nominal(quota: dict[str, int], resource: str) -> int:
    """A queue that does not name the resource may take what there is."""
    return quota.get(resource, MAX_QUANTITY)


def _candidate(
    state: State,
    request: QuoteRequest,
    kind: Kind,
    row: int,
    pool: PoolSpec,
    spec: WorkloadSpec,
    at_ms: int,
    now_ms: int,
) -> QuoteCandidate:
    asked = spec.groups[0].request
    part = share(pool, asked.cpu_milli, asked.memory_mib, asked.gpu_milli)
    scaling = pool.scaling
    notes = []
    if not pool.price_microusd_hour:
        notes.append(f"pool {pool.name} has no price: give it one with `muster set-price`")
    if kind == "pool":
        notes.append("other GPUs: the same run time is taken, which may be wrong")
    have = state.capacity.pool_nodes[row]
    if have < request.nodes:
        notes.append(f"{request.nodes - have:,} nodes would have to be ordered")
    return QuoteCandidate(
        kind=kind,
        label="now" if at_ms <= now_ms else "later",
        spec=spec,
        pool=pool.name,
        machine_type=pool.machine_type,
        region=scaling.region if scaling is not None else "",
        gpu_model=pool.gpu_model,
        spot=pool.spot,
        asked_start_ms=at_ms,
        # As `Ledger.unit`: each task by itself, rounded down.
        rate_microusd_hour=math.floor(part * pool.price_microusd_hour) * request.nodes,
        hazard_ppm_hour=hazard_ppm_hour(state, row, request.nodes) if pool.spot else 0,
        hazard_told=scaling is not None and bool(scaling.taken_permille_hour),
        watched_ms=state.orders.lived_ms.get(row, 0),
        max_age_ms=scaling.max_age_ms if scaling is not None and pool.spot else 0,
        past=FinishedWork() if pool.spot else _past(state, spec.priority_class, now_ms),
        notes=tuple(notes),
    )


def _past(state: State, priority_class: str, now_ms: int) -> FinishedWork:
    """Of that priority, what finished in the last day."""
    w = state.workloads
    if not w.ids:
        return FinishedWork()
    late = view(w.ended) > now_ms - LOOKBACK_MS
    rows = np.flatnonzero(
        late & (view(w.state) == WorkloadState.FINISHED) & (view(w.priority) == w.priority_of[priority_class])
    )
    if not len(rows):
        return FinishedWork()
    started = view(w.started)[rows]
    # What another scheduler ran may have ended without a start that was seen.
    ran_ms = np.where(started >= 0, view(w.ended)[rows] - started, 0) + view(w.kept)[rows]
    return FinishedWork(
        finished=len(rows),
        stops=int((view(w.attempts)[rows] - view(w.failures)[rows] - 1).clip(0).sum()),
        ran_ms=int(ran_ms.sum()),
        longest_ms=int(ran_ms.max()),
    )
