"""How much may be done within an hour: limits over what has run, runs and is approved, taken together."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from runbooks.plans.typed_plan import TIERS, Blast, Tier

HOUR_MS = 3_600_000


class ByTier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A count for each tier."""

    T0: int = 0
    T1: int = 0
    T2: int = 0
    T3: int = 0

    def of(self, tier: Tier) -> int:
        return (self.T0, self.T1, self.T2, self.T3)[TIERS.index(tier)]


class PolicyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Most within any hour. Shares are of the pool, or the cell, as it is."""

    executions_per_hour: ByTier = ByTier(T0=600, T1=240, T2=20, T3=3)
    nodes_permille: int = 50
    nodes_least: int = 1
    """Nodes of a pool taken out of use: its share of the pool, or this if that is more."""
    gpus_permille: int = 100
    gpus_least: int = 16
    """GPUs whose work is stopped or that are taken out of use: their share of the cell's, or this if that is more."""
    workloads_per_hour: int = 500
    """Stopped or moved."""
    cost_microusd_hour: int | None = None
    """By how much the cell may come to cost more per hour; None: no limit."""
    proposals_per_author_hour: int = 120


SOLO_LIMITS = PolicyLimits(
    executions_per_hour=ByTier(T0=2_000, T1=1_000, T2=200, T3=20),
    nodes_permille=250,
    nodes_least=4,
    gpus_permille=250,
    gpus_least=64,
    workloads_per_hour=5_000,
    proposals_per_author_hour=1_000,
)


class LimitUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What of an hour's limits is gone: plans that are approved or run, and what ended within the hour."""

    executions: ByTier = ByTier()
    gpu_milli: int = 0
    nodes: tuple[tuple[str, int], ...] = ()
    """(pool, nodes taken out of use)."""
    workloads: int = 0
    cost_microusd_hour: int = 0


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How large the cell is, where limits are shares of it."""

    nodes: Mapping[str, int]
    """By pool."""
    gpu_milli: int


class LimitViolation(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that a plan would exceed."""

    rule: str
    """Its name, such as "limits.nodes"."""
    words: str


def over(
    limits: PolicyLimits, used: LimitUsage, tier: Tier, planned: Blast, size: Size, *, factor: int = 1
) -> tuple[LimitViolation, ...]:
    """The limits that `planned` would exceed on top of what is used; `factor` widens them, for break-glass."""
    found: list[LimitViolation] = []

    def check(rule: str, what: str, most: int, have: int, more: int, unit: int = 1) -> None:
        if more > 0 and have + more > most * factor:
            words = f"{what}: {_shown(have, unit)} this hour and {_shown(more, unit)} more, at most "
            found.append(LimitViolation(rule=f"limits.{rule}", words=words + _shown(most * factor, unit)))

    executions = limits.executions_per_hour.of(tier)
    check("executions_per_hour", f"plans of {tier}", executions, used.executions.of(tier), 1)
    gone = dict(used.nodes)
    for pool, nodes in planned.nodes:
        most = max(limits.nodes_least, size.nodes.get(pool, 0) * limits.nodes_permille // 1000)
        check("nodes", f"nodes of {pool} taken out of use", most, gone.get(pool, 0), nodes)
    gpus = max(limits.gpus_least * 1000, size.gpu_milli * limits.gpus_permille // 1000)
    check("gpus", "GPUs disturbed", gpus, used.gpu_milli, planned.gpu_milli, 1000)
    check("workloads", "workloads stopped or moved", limits.workloads_per_hour, used.workloads, planned.workloads)
    if limits.cost_microusd_hour is not None:
        more = planned.cost_microusd_hour
        check("cost", "USD per hour more", limits.cost_microusd_hour, used.cost_microusd_hour, more, 1_000_000)
    return tuple(found)


def tighter(a: PolicyLimits, b: PolicyLimits) -> PolicyLimits:
    """What keeps to both."""
    costs = [cost for cost in (a.cost_microusd_hour, b.cost_microusd_hour) if cost is not None]
    executions = ByTier(**{tier: min(a.executions_per_hour.of(tier), b.executions_per_hour.of(tier)) for tier in TIERS})
    names = (
        "nodes_permille", "nodes_least", "gpus_permille", "gpus_least", "workloads_per_hour",
        "proposals_per_author_hour",
    )  # fmt: skip
    return PolicyLimits(
        executions_per_hour=executions,
        cost_microusd_hour=min(costs, default=None),
        **{name: min(getattr(a, name), getattr(b, name)) for name in names},
    )


def _shown(amount: int, unit: int) -> str:
    return f"{amount / unit:,.12g}"
