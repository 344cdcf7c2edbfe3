"""What faces ask and are told of demand in the hours ahead. Types only; nothing heavy is loaded."""

from __future__ import annotations

import msgspec

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
