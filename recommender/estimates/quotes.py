"""Quotes: the cost of work by option, and the time of its start.

Options come from the state, on the engine's thread: the pools that would do, as work of which queue, and when; a few
pools and queues at most. Starts, run times and costs come from the twin: as quantiles where they were measured from
enough runs, else as single runs say.

Costs are those the ledger would charge: for every task the part of its node's list price, in whole micro-USD an hour,
times the time it holds the node, rounded down to a micro-USD. Where an option was run ahead to its end, they are what
the rehearsals counted by that rule. Where it was run only to its start, they are the rate times the run time; on spot
machines that are known to be taken back, over draws of when that happens (see `interrupted`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from engine.admission.submissions import check_place
from engine.model import quantities
from engine.model.columns import view
from engine.model.errors import MusterError, RefusedError, SpecError, did_you_mean
from engine.model.quantities import MIN_RUNS, shown
from engine.model.spec_parts import HOUR_MS, MAX_QUANTITY, ScalingSpec, check_id, check_quantity
from engine.model.specs import MAX_NAME, Resources, TaskGroup, WorkloadSpec, WorkloadState
from engine.model.twin_queries import Attempt, Options, OptionTrial
from engine.placement.node_choice import grows
from engine.state.ledger import GRAINS, share
from engine.state.timers import hazard_ppm_hour
from recommender.estimates.queries import (
    MAX_NODES,
    MAX_OFFERS,
    MAX_RUN_MS,
    MAX_WITHIN_MS,
    Kind,
    Offer,
    Quantiles,
    QuoteOption,
    QuoteRequest,
    RunTime,
)

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
            raise SpecError("gpus", f"is 0, but {shown(request.model)} is a model of GPUs", "Leave one of them out")
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
        raise SpecError("gpus", "are requested, and no node of this cell has any", "Leave --gpus out for CPU nodes")
    most = max(pool.capacity.gpu_milli // 1000 for _, pool in kind)
    if (request.gpus or 0) > most:
        largest = max(kind, key=lambda each: each[1].capacity.gpu_milli)[1]
        what = f" of {model}" if model else ""
        raise SpecError(
            "gpus",
            f"{request.gpus} on each node are requested, and the largest node{what} has {most} (pool {largest.name})",
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
            warnings.append(f"pool {pool.name} has {have:,} nodes at most, and {request.nodes:,} are requested")
    return fitting, sorted(others, key=lambda each: (each[1].price_microusd_hour, each[1].name))


def _model(asked: str, known: list[str]) -> str:
    """The model as the cell spells it. Raises SpecError naming near ones."""
    if not asked:
        return ""
    same = [model for model in known if model.lower() == asked.lower()]
    if same:
        return same[0]
    if not known:
        raise SpecError("model", f"{shown(asked)} is requested, and the cell has no GPUs", "Leave --model out")
    remedy = f"{did_you_mean(asked, known)} There are: {', '.join(known)}".lstrip()
    raise SpecError("model", f"no node has GPUs of model {shown(asked)}", remedy)


def _of_kind(pool: PoolSpec, request: QuoteRequest, model: str) -> bool:
    if model:
        return pool.gpu_model == model
    return bool(pool.capacity.gpu_milli) == bool(request.gpus)


def _most_nodes(state: State, row: int, pool: PoolSpec) -> int:
    return max(state.capacity.pool_nodes[row], pool.scaling.most if pool.scaling is not None else 0)


# -- the work ---------------------------------------------------------------------------------------------------------


def _request_on(pool: PoolSpec, request: QuoteRequest) -> Resources:
    """Return what one task asks of a node: all of it, or the same part of its CPU and memory as of its devices."""
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
        meant = "" if name in state.queues.row_of else did_you_mean(name, state.queues.row_of)
        raise SpecError("queue", error.problem, meant or error.remedy) from None
    return name


def _largest_queue(state: State, spec: WorkloadSpec) -> str:
    """The leaf with the largest quota that it fits into. Raises SpecError when there is none."""
    queues = state.queues
    leaves = [row for row in range(len(queues.specs)) if not queues.children[row] and queues.takes_work(row)]
    if not leaves:
        raise RefusedError("the cell has no queue that takes work", "Add one: muster cell define")
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
        notes.append(f"pool {pool.name} has no price: give it one with `muster pool set-price`")
    if kind == "pool":
        notes.append("other GPUs: assumes the same run time, which may be wrong")
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


PPM = 1_000_000
DECILES = tuple(range(100, 1000, 100))
DRAWS = 200
"""Lives of work on spot machines that are drawn."""
MIN_FINISHED = 50
"""Workloads that finished, that are enough to tell how often such are stopped."""
MAX_ATTEMPTS = 500
"""Starts in one life, after which it is taken to never end."""
NORMAL_P90 = NormalDist().inv_cdf(0.9)
NEVER = 2**62
"""Sorts after every time."""


def charged(rate_microusd_hour: int, ms: int) -> int:
    """Return the ledger's charge for so long at a rate: micro-USD, rounded down."""
    return rate_microusd_hour * ms // GRAINS


def likely_of(run: RunTime) -> tuple[int, ...]:
    """Run times at the deciles, ascending; one where it is known. Between p10, p50 and p90 and beyond, the logarithm is
    taken to be normal on each side of the median."""
    if run.told or run.p10_ms == run.p90_ms:
        return (run.p50_ms,)
    low, high = (
        math.log(max(each, 1) / run.p50_ms) / z for each, z in ((run.p10_ms, -NORMAL_P90), (run.p90_ms, NORMAL_P90))
    )
    found = []
    for permille in DECILES:
        z = NormalDist().inv_cdf(permille / 1000)
        found.append(max(1, round(run.p50_ms * math.exp((low if z < 0 else high) * z))))
    return tuple(sorted(found))


def quantiles(values: Sequence[int]) -> Quantiles:
    """Return the quantiles of one value of each run, at least one, NEVER where it is not known."""
    known = sorted(value for value in values if value < NEVER)
    low, middle, high = quantities.quantiles(known, len(values) - len(known))
    return Quantiles(
        runs=len(values),
        least=known[0] if known else None,
        p10=low,
        p50=middle,
        p90=high,
        most=known[-1] if len(known) == len(values) else None,
    )


def told(value: int) -> Quantiles:
    """Return quantiles of a value that no run measured."""
    return Quantiles(runs=0, least=value, p10=None, p50=None, p90=None, most=value)


def priced(candidate: QuoteCandidate, trial: OptionTrial, options: Options, run: RunTime) -> QuoteOption:
    """An option that the twin has tried."""
    attempts = trial.attempts
    # The cell may have gone on since the options were made up.
    asked_ms = max(candidate.asked_start_ms, options.at_ms)
    start, looked_ms = _start(attempts, options)
    started = sum(one.started_ms is not None and one.started_ms <= options.at_ms + looked_ms for one in attempts)
    wait_ms = max(0, next((at for at in (start.p50, start.least) if at is not None), asked_ms) - asked_ms)
    # What lasts longer than can be run ahead ends in no run: then it is told as where no run goes on to the end.
    ended = options.until == "ended" and not _unseen(candidate) and any(one.ended_ms is not None for one in attempts)
    duration, cost = _ended(attempts) if ended else _until_end(candidate, run, wait_ms)
    odds, odds_basis = _odds(candidate, run)
    if ended and len(attempts) >= MIN_RUNS and all(one.ended_ms is not None or one.stops for one in attempts):
        stopped = sum(one.stops > 0 for one in attempts)
        odds, odds_basis = stopped * 1000 // len(attempts), f"stopped in {stopped} of {len(attempts)} runs to its end"
    return _option(
        candidate,
        run,
        asked_start_ms=asked_ms,
        start_ms=start,
        started=started,
        chance_permille=started * 1000 // len(attempts) if len(attempts) >= MIN_RUNS else None,
        looked_ms=looked_ms,
        reason=trial.reason if asked_ms == options.at_ms else "",
        duration_ms=duration,
        cost_microusd=cost,
        rate_microusd_hour=_rate(candidate, attempts),
        interruption_permille=odds,
        interruption_basis=odds_basis,
        basis="run to its end" if ended else "run to its start",
        seeds=len(attempts),
        arrivals=trial.arrivals,
        notes=(*candidate.notes, *_notes(candidate, trial, options, ended=ended, duration=duration)),
        forecast=trial.forecast,
    )


def _unseen(candidate: QuoteCandidate) -> bool:
    """Return whether its machines are taken back, but not in rehearsals: there only as often as a pool says."""
    return bool(candidate.hazard_ppm_hour) and not candidate.hazard_told


def as_if_free(candidate: QuoteCandidate, run: RunTime) -> QuoteOption:
    """An option that starts further ahead than the twin can run: nothing is known of the queue of that time."""
    duration, cost = _until_end(candidate, run, 0)
    odds, odds_basis = _odds(candidate, run)
    at_ms = candidate.asked_start_ms
    return _option(
        candidate,
        run,
        asked_start_ms=at_ms,
        start_ms=told(at_ms),
        started=0,
        chance_permille=None,
        looked_ms=0,
        reason="",
        duration_ms=duration,
        cost_microusd=cost,
        rate_microusd_hour=candidate.rate_microusd_hour,
        interruption_permille=odds,
        interruption_basis=odds_basis,
        basis="as if there were room",
        seeds=0,
        arrivals=False,
        notes=(*candidate.notes, "further ahead than can be simulated: the queue at that time is not known"),
    )


def _option(candidate: QuoteCandidate, run: RunTime, **found: Any) -> QuoteOption:
    """Return what the candidate is, and what was found of it: the other fields of a QuoteOption."""
    return QuoteOption(
        kind=candidate.kind,
        label=candidate.label,
        pool=candidate.pool,
        machine_type=candidate.machine_type,
        region=candidate.region,
        gpu_model=candidate.gpu_model,
        spot=candidate.spot,
        interruption_over_ms=run.p50_ms,
        **found,
    )


def listed(offer: Offer, nodes: int, gpu_model: str, at_ms: int, run: RunTime) -> QuoteOption:
    """Return the cost on whole machines bought at a list price, `at_ms` at the soonest: they boot as the simulated
    provider's do where a pool says nothing."""
    rate = offer.price_microusd_hour * nodes
    return QuoteOption(
        kind="list",
        label="list price",
        pool="",
        machine_type=offer.machine_type,
        region=offer.region,
        gpu_model=gpu_model,
        spot=offer.spot,
        asked_start_ms=at_ms,
        start_ms=told(at_ms + _boot_ms(nodes)),
        started=0,
        chance_permille=None,
        looked_ms=0,
        reason="",
        duration_ms=_undisturbed(run, lambda ms: ms),
        cost_microusd=_undisturbed(run, lambda ms: charged(rate, ms)),
        rate_microusd_hour=rate,
        interruption_permille=None if offer.spot else 0,
        interruption_over_ms=run.p50_ms,
        interruption_basis="not known outside the cell" if offer.spot else "on-demand machines are not interrupted",
        basis="list price",
        seeds=0,
        arrivals=False,
        notes=(f"{offer.source}; no queue known: assumes machines are available at once; charged once all run",),
    )


def _boot_ms(nodes: int) -> int:
    """By when all of so many machines have booted, as often as not."""
    median, p95 = ScalingSpec(most=0).boot_ms
    each: float = 0.5 ** (1 / nodes)
    sigma = math.log(p95 / median) / NormalDist().inv_cdf(0.95)
    return round(median * math.exp(sigma * NormalDist().inv_cdf(min(each, 1 - 1e-12))))


# -- start ------------------------------------------------------------------------------------------------------------


def _start(attempts: Sequence[Attempt], options: Options) -> tuple[Quantiles, int]:
    """The start, and how far ahead it was looked for in every run."""
    missing = [one.covered_ms for one in attempts if one.started_ms is None]
    looked_ms = min(missing, default=options.horizon_ms)
    times = [NEVER if one.started_ms is None else one.started_ms for one in attempts]
    # A start later than some run went ahead says nothing of the order.
    return quantiles([at_ms if at_ms <= options.at_ms + looked_ms else NEVER for at_ms in times]), looked_ms


def _rate(candidate: QuoteCandidate, attempts: Sequence[Attempt]) -> int:
    rates = [sum(held.rate_microusd_hour for held in one.placed) for one in attempts if one.placed]
    return rates[0] if rates else candidate.rate_microusd_hour


# -- duration and cost ------------------------------------------------------------------------------------------------


def _ended(attempts: Sequence[Attempt]) -> tuple[Quantiles, Quantiles]:
    durations, costs = [], []
    for one in attempts:
        over = one.started_ms is not None and one.ended_ms is not None
        durations.append(one.ended_ms - one.started_ms if over else NEVER)  # type: ignore[operator]
        costs.append(one.cost_microusd if over else NEVER)
    return quantiles(durations), quantiles(costs)


def _until_end(candidate: QuoteCandidate, run: RunTime, wait_ms: int) -> tuple[Quantiles, Quantiles]:
    """From the start on, not run ahead."""
    rate = candidate.rate_microusd_hour
    if not candidate.hazard_ppm_hour:
        return _undisturbed(run, lambda ms: ms), _undisturbed(run, lambda ms: charged(rate, ms))
    lives = interrupted(likely_of(run), candidate.hazard_ppm_hour, candidate.spec.checkpoint_interval_ms, wait_ms)
    costs = [NEVER if held_ms >= NEVER else charged(rate, held_ms) for _, held_ms in lives]
    return quantiles([lasts_ms for lasts_ms, _ in lives]), quantiles(costs)


def _undisturbed(run: RunTime, of: Callable[[int], int]) -> Quantiles:
    """Return what hangs on the run time alone."""
    if run.told:
        return told(of(run.p50_ms))
    if run.samples < MIN_RUNS:
        return Quantiles(runs=run.samples, least=of(run.p50_ms), p10=None, p50=None, p90=None, most=of(run.p50_ms))
    return Quantiles(
        runs=run.samples, least=None, p10=of(run.p10_ms), p50=of(run.p50_ms), p90=of(run.p90_ms), most=None
    )


def interrupted(likely: Sequence[int], hazard_ppm_hour: int, checkpoint_ms: int, wait_ms: int) -> list[tuple[int, int]]:
    """Lives of work whose machines are taken back as a Poisson process with that hazard: (first start to end, time that
    it held machines), milliseconds; NEVER for what does not end in MAX_ATTEMPTS starts.

    A renewal process: at an interruption all work since the last multiple of `checkpoint_ms` is lost (0: all work), and
    it waits for the next start as long as for the first. Drawn DRAWS times from a fixed seed.
    """
    draw = random.Random("interrupted lives")
    mean_ms = PPM * HOUR_MS / hazard_ppm_hour
    lives = []
    for n in range(DRAWS):
        work_ms = likely[n * len(likely) // DRAWS]
        kept_ms = held_ms = waited_ms = 0
        for _ in range(MAX_ATTEMPTS):
            lasts_ms = int(draw.expovariate(1.0) * mean_ms)
            if lasts_ms >= work_ms - kept_ms:
                held_ms += work_ms - kept_ms
                lives.append((held_ms + waited_ms, held_ms))
                break
            held_ms += lasts_ms
            waited_ms += wait_ms
            if checkpoint_ms:
                kept_ms = (kept_ms + lasts_ms) // checkpoint_ms * checkpoint_ms
        else:
            lives.append((NEVER, NEVER))
    return lives


def _odds(candidate: QuoteCandidate, run: RunTime) -> tuple[int | None, str]:
    """Chance that it is stopped at least once in its own run time, at a rate that does not change, and what the rate
    rests on."""
    return _spot_odds(candidate, run) if candidate.spot else _usual_odds(candidate, run)


def _spot_odds(candidate: QuoteCandidate, run: RunTime) -> tuple[int | None, str]:
    likely, oldest_ms = likely_of(run), candidate.max_age_ms
    if oldest_ms and oldest_ms < run.p50_ms:
        return 1000, f"its machines end when they are {oldest_ms / HOUR_MS:g} h old"
    hazard = candidate.hazard_ppm_hour
    if not hazard:
        return None, "no interruption in this pool so far, and the pool declares no rate"
    nodes = candidate.spec.groups[0].count
    whose = "as the pool says" if candidate.hazard_told else "as measured in this cell"
    basis = f"{hazard / PPM:.3g} an hour of its {nodes:,} machines, {whose}, assumed constant"
    asked_ms = nodes * run.p50_ms
    if not candidate.hazard_told and asked_ms > candidate.watched_ms:
        basis += f"; extrapolated: {_hours(asked_ms)} of machines from {_hours(candidate.watched_ms)} that were watched"
    return _at_least_once(hazard / PPM, likely), basis


def _usual_odds(candidate: QuoteCandidate, run: RunTime) -> tuple[int | None, str]:
    """As often as work of its priority was stopped for the time it ran."""
    past = candidate.past
    if past.finished < MIN_FINISHED or not past.ran_ms:
        return None, f"only {past.finished:,} of its priority finished within a day; --seeds 8 runs it to the end"
    seen = f"{past.finished:,} of its priority that finished within a day, {_hours(past.ran_ms)} in all"
    if not past.stops and run.p50_ms > past.ran_ms:
        return None, f"none of {seen}, was stopped: too little to tell of {_hours(run.p50_ms)}"
    basis = f"{past.stops:,} stops of {seen}, at that rate throughout"
    if run.p50_ms > past.longest_ms:
        basis += f"; extrapolated: none ran longer than {_hours(past.longest_ms)}"
    return _at_least_once(past.stops * HOUR_MS / past.ran_ms, likely_of(run)), basis


def _at_least_once(hazard_hour: float, likely: Sequence[int]) -> int:
    """Permille, as a mean over the likely run times."""
    return round(1000 * sum(-math.expm1(-hazard_hour * ms / HOUR_MS) for ms in likely) / len(likely))


def _hours(ms: int) -> str:
    return f"{ms / HOUR_MS:,.3g} h" if ms < 100 * HOUR_MS else f"{ms // HOUR_MS:,} h"


def _notes(
    candidate: QuoteCandidate, trial: OptionTrial, options: Options, *, ended: bool, duration: Quantiles
) -> list[str]:
    notes = []
    if options.arrivals and not trial.arrivals:
        notes.append("new arrivals are ignored to save time: it may start later; --within 20s includes them")
    if options.until == "ended" and not ended and not _unseen(candidate):
        notes.append(f"no run reached its end within {_hours(options.horizon_ms)}: its duration is its run time")
    if not candidate.hazard_ppm_hour:
        return notes
    kept_ms = candidate.spec.checkpoint_interval_ms
    text = (
        f"resuming from checkpoints every {kept_ms / HOUR_MS:g} h" if kept_ms else "restarting from scratch each time"
    )
    notes.append(f"interruptions are {'those of the runs' if ended else 'drawn from its start on'}, {text}")
    if duration.runs >= MIN_RUNS and duration.p90 is None:
        notes.append("it may rarely finish on spot machines: add checkpoints (--checkpoint), or use on-demand")
    return notes
