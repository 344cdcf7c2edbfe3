"""Where a workload would do best, as faces are told. Types only; nothing heavy is loaded."""

from __future__ import annotations

from typing import Literal

import msgspec


class QuantileSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Of a quantity that is not known for sure."""

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
