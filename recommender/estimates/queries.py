"""Questions to the estimators and their answers: demand, sizes of requests, machines, and quotes.

Types only: neither numpy nor the engine is loaded for them. Times are cell time in milliseconds, durations
milliseconds, money micro-USD. Integers only.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.model.spec_parts import CURRENCY, HOUR_MS
from engine.model.twin_queries import StartForecast

MAX_HOURS = 168


class ForecastRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One series, and how far ahead. Raises SpecError where it is answered, for what is not kept."""

    subject: str = ""
    """As `queue:research`, `pool:h100`, `tenant:acme` or `gpu_model:H100`; empty for the cell."""
    metric: str = ""
    """As in `recommender.history.metrics`; empty: GPU demand, or CPU demand where there is no GPU."""
    hours: int = 48


class HourAhead(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of one hour's mean, in the unit of the metric."""

    at_ms: int
    """Its begin; cell time."""
    p10: float
    p50: float
    p90: float


class MemberSkill(msgspec.Struct, frozen=True, kw_only=True):
    """One member of the blend, over all hours ahead."""

    name: str
    weight_permille: int
    error: float
    """Mean absolute error over the last weeks, each made from what was known before."""


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """Forecasts that were kept as they were made, against what came."""

    hours_ahead: int
    scored: int
    inside_permille: int
    """Share between p10 and p90. 800 is perfect."""
    below_permille: int
    """Share below p10."""
    above_permille: int
    mean_error: float
    """Mean absolute error of p50."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    metric: str
    unit: str
    of: str
    subject: str
    now_ms: int
    made_ms: int
    """End of the last whole hour it knows; a forecast is made once an hour."""
    known_hours: int
    """Hours of the past that were measured."""
    missing_hours: int
    """Hours between them that were not."""
    stale: bool
    """Whether whoever measures it has fallen silent."""
    basis: str
    """What it rests on: "models", "season", "last values", or "too short" to say more than the range seen."""
    now: float | None
    """The last measured hour."""
    hours: tuple[HourAhead, ...]
    members: tuple[MemberSkill, ...]
    coverage: tuple[Coverage, ...]
    """By hours ahead; empty while none is due."""
    notes: tuple[str, ...]
    """What weakens it."""


class QuantileSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of an uncertain quantity."""

    p10: int
    p50: int
    p90: int


class PlacementOption(msgspec.Struct, frozen=True, kw_only=True):
    """One pool it could run in."""

    pool: str
    gpu_model: str
    spot: bool
    zones: tuple[str, ...]
    allowed: bool
    """Whether its own wishes (device models, pools, spot or not) let it run there."""
    rate_microusd_hour: int
    """What all its tasks would be charged there; list price of the pool now."""
    run_ms: QuantileSpread | None
    """Of the whole work, interruptions among it; None where nothing is known of how fast it runs there."""
    cost_microusd: QuantileSpread | None
    """Of one finished job."""
    basis: Literal["own runs", "other work", "price only"]
    """"own runs": work like it has finished there; "other work": other work tells how fast this type is beside those
    where work like it has finished."""
    runs: int
    """Finished runs of its like there."""
    compared: int
    """Kinds of work that tell of this type and another."""
    interruption_ppm: int | None
    """Odds of being interrupted at least once, millionths; None on demand, and where nothing is known."""
    interruptions: int
    """Seen in the pool."""
    node_hours: float
    """Over which they were seen."""
    thin: tuple[str, ...]
    """Why this is weaker than it looks."""


class PlacementAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Options by the cost of a finished job (p50), those that are allowed and known first."""

    version: int
    workload_id: str
    kind: str
    """"tenant/stem of its name"; empty when its name says nothing."""
    options: tuple[PlacementOption, ...]
    said: str
    """In one sentence: which is best, or that it cannot be told."""
    runs: int
    """Finished runs of its like anywhere."""
    unknown: tuple[str, ...]


Basis = Literal["kind", "tenant", "all", "request"]


class UseEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The estimated peak use of one task of a workload, before it starts."""

    cpu_milli: QuantileSpread
    memory_mib: QuantileSpread
    runs: int
    """Ended runs that it rests on."""
    basis: Basis
    """"kind": its own; "tenant": what part of its requests its tenant's work used; "all": the same of everybody's;
    "request": nothing is known, it is taken to use what it asks for."""


class SizingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """All kinds of work, or only that of one workload."""

    workload_id: str = ""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """CPU (milli) or memory (MiB) of one task."""

    asked: int
    """0: not known."""
    p50: int
    p95: int
    recommended: int
    """0 while too little is known."""


class SizedKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of work."""

    kind: str
    """"tenant/stem of the name"."""
    cpu: Need
    memory: Need
    samples: int
    runs: int
    confidence: float
    """1: a day of samples or ten runs. Below that nothing is changed by itself."""
    tasks: int
    """That run now, of workloads with tasks of one sort."""
    bumped: int
    """Runs that seem to have died of too little memory."""
    saved_cpu_milli: int
    """By all that run now, if they asked for what is recommended; negative: they need more."""
    saved_memory_mib: int
    saved_microusd_hour: int
    """What they would be charged less, as the ledger charges: work with GPUs is charged for those in the main."""


class SizingReport(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    kinds: tuple[SizedKind, ...]
    """Largest savings first."""
    rightsizing: str
    """Whether new work is resized by itself: the cell's setting."""
    estimate: UseEstimate | None
    """What one task will use at its peak, where one workload was asked for that has tasks of one sort."""
    unknown: tuple[str, ...]
    """What could not be judged, and why."""


MAX_NODES = 1_000_000
MAX_RUN_MS = 366 * 24 * HOUR_MS
MAX_OFFERS = 40
WITHIN_MS = 550
"""Wall time of running ahead that still makes an answer within a second."""
MAX_WITHIN_MS = 120_000
AHEAD_MS = 24 * HOUR_MS
"""How far beyond the asked start a start is looked for."""


class Offer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of one machine in one region, by an imported list."""

    machine_type: str
    region: str
    spot: bool
    price_microusd_hour: int
    source: str
    """File and line."""


class QuoteRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gang of one task on each of so many nodes."""

    nodes: int
    gpus: int | None = None
    """Devices on each node; None: all that a node has."""
    model: str = ""
    """Of the devices. Empty: any; without `gpus` nodes that have none."""
    cpu_milli: int | None = None
    memory_mib: int | None = None
    """Of each task. None: the same part of the node as of its devices."""
    run_ms: int = 0
    """How long it runs; 0: as work like it did."""
    name: str = ""
    """By which its like is found."""
    queue: str = ""
    """Empty: the leaf with the largest quota that it fits into."""
    tenant: str = ""
    priority_class: str = ""
    checkpoint_interval_ms: int = 0
    start_ms: int | None = None
    """Not before this; None: now."""
    other_start_ms: int | None = None
    """A later start to set beside it."""
    spot: bool = False
    """Spot machines only."""
    offers: tuple[Offer, ...] = ()
    """List prices of machines outside the cell."""
    seeds: int = 0
    """Runs of each option, up to its end; 0: as many as there is time for, up to its start."""
    seed: int = 0
    within_ms: int = WITHIN_MS
    """Wall time of running ahead, on a machine with nothing else to do, where no `seeds` are asked for."""
    arrivals: bool = True
    """More work arrives as it did of late."""


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of a time or an amount."""

    runs: int
    """What it was measured from: runs of the twin, drawn interruptions, or finished work like it. 0: it follows from
    what was told, and `least` and `most` are both it."""
    least: int | None
    """Of the runs; null where it is not known: later than was looked, or never."""
    p10: int | None
    """The quantiles are null where they are not known, and with fewer than `engine.model.quantities.MIN_RUNS`
    runs."""
    p50: int | None
    p90: int | None
    most: int | None


Kind = Literal["now", "later", "pool", "list"]
QuoteBasis = Literal["run to its end", "run to its start", "as if there were room", "list price"]


class QuoteOption(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    """`pool`: with other devices than were asked for. `list`: outside the cell."""
    label: str
    pool: str
    """Empty outside the cell."""
    machine_type: str
    region: str
    gpu_model: str
    spot: bool
    asked_start_ms: int
    start_ms: Quantiles
    started: int
    """Runs in which it starts within `looked_ms`."""
    chance_permille: int | None
    """Of that; null where no queue is known, and with fewer than `engine.model.quantities.MIN_RUNS` runs."""
    looked_ms: int
    """How far ahead in cell time every run looked for a start."""
    reason: str
    """Why it does not start at once."""
    duration_ms: Quantiles
    """From the first start to the end, with all that interruptions cost."""
    cost_microusd: Quantiles
    currency: str = CURRENCY
    rate_microusd_hour: int
    """While it runs, all tasks together."""
    interruption_permille: int | None
    """Chance that it is stopped at least once in `interruption_over_ms`; null: not known."""
    interruption_over_ms: int
    """How long it runs when nothing stops it; the middle of that where it is not known exactly."""
    interruption_basis: str
    basis: QuoteBasis
    seeds: int
    """Runs of the twin, one for each seed."""
    arrivals: bool
    notes: tuple[str, ...]
    forecast: StartForecast | None = None
    """Its start, where it would wait: by the line ahead of it and by the runs."""


class RunTime(msgspec.Struct, frozen=True, kw_only=True):
    """The run time when nothing stops the work."""

    p10_ms: int
    p50_ms: int
    p90_ms: int
    told: bool
    """By who asks; then all three are the same."""
    samples: int
    """Finished runs of its like."""
    level: str
    """What makes them its like."""
    p90_coverage_permille: int | None
    """How many of those that were compared ended within their p90; 900 is perfect."""


class Quote(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    """State version of the cell that was forked."""
    at_ms: int
    """Cell time when it was asked."""
    nodes: int
    queue: str
    run_time: RunTime
    options: tuple[QuoteOption, ...]
    """As asked first, then others."""
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    took_ms: int
    """Wall time of the answer."""
