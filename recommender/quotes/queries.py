"""What is asked when somebody wants to know when work would start and what it would cost, and what is answered. Types
only: neither numpy nor the engine is loaded for them.

Times are cell time in milliseconds, durations milliseconds, money micro-USD. Integers only.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.model.base import HOUR_MS
from engine.model.money import CURRENCY

MAX_NODES = 1_000_000
MAX_RUN_MS = 366 * 24 * HOUR_MS
MAX_OFFERS = 40
WITHIN_MS = 550
"""Wall time of running ahead that still makes an answer within a second."""
MAX_WITHIN_MS = 120_000
AHEAD_MS = 24 * HOUR_MS
"""How far beyond the asked start a start is looked for."""


class Offer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one machine costs in one region, by a list that somebody brought."""

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
    """What is known of a time or an amount."""

    runs: int
    """What it was measured from: runs of the twin, drawn interruptions, or finished work like it. 0: it follows from
    what was told, and `least` and `most` are both it."""
    least: int | None
    """Of the runs; null where it is not known: later than was looked, or never."""
    p10: int | None
    """The quantiles are null where they are not known, and with fewer than `engine.model.distributions.MIN_RUNS`
    runs."""
    p50: int | None
    p90: int | None
    most: int | None


Kind = Literal["now", "later", "pool", "list"]
Basis = Literal["run to its end", "run to its start", "as if there were room", "list price"]


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
    """Of that; null where no queue is known, and with fewer than `engine.model.distributions.MIN_RUNS` runs."""
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
    basis: Basis
    seeds: int
    """Runs of the twin, one for each seed."""
    arrivals: bool
    notes: tuple[str, ...]


class RunTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long it runs when nothing stops it."""

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
