"""Money as people give it: the largest price, and budgets. One currency per cell, in millionths (micro-USD)."""

from __future__ import annotations

from typing import Literal

from engine.model.base import MINUTE_MS, Spec, check_id, check_quantity

MAX_PRICE = 10**12
"""A million an hour for one node, in micro-USD: a price times the milliseconds of an hour still fits 64 bits."""
CURRENCY = "USD"
"""That the cell counts in. Amounts in others are refused: they cannot be added up."""
MICROUSD = 1_000_000
"""That make one of the currency."""
DAY_MS = 24 * 60 * MINUTE_MS
MAX_WINDOW_MS = 3660 * DAY_MS
Scope = Literal["tenant", "team", "queue"]
BudgetAction = Literal["warn", "hold", "approve"]


class BudgetSpec(Spec, frozen=True, kw_only=True):
    """What a tenant, a team, or a queue and all below it may spend in each window. Work that runs is never stopped for
    it."""

    name: str
    scope: Scope
    of: str
    """Name of the tenant, team or queue."""
    limit_microusd: int
    window_ms: int = 30 * DAY_MS
    """Windows follow each other from cell time 0 on."""
    action: BudgetAction = "warn"
    """What happens when all is spent. `warn`: it is shown. `hold`: nothing more of it starts before the next window.
    `approve`: each workload of it waits until somebody approves what it will cost; with a limit of 0, always."""
    warn_permille: int = 800
    """Of the limit, from which it is shown that it runs out."""


def check_budget(spec: BudgetSpec, where: str) -> None:
    """Raises SpecError naming the field."""
    check_id(spec.name, f"{where}.name")
    check_id(spec.of, f"{where}.of")
    check_quantity(spec.limit_microusd, f"{where}.limit_microusd")
    check_quantity(spec.window_ms, f"{where}.window_ms", least=MINUTE_MS, most=MAX_WINDOW_MS)
    check_quantity(spec.warn_permille, f"{where}.warn_permille", most=1000)


def check_price(price: int, where: str) -> None:
    """Micro-USD per hour. Raises SpecError naming the field."""
    check_quantity(price, where, most=MAX_PRICE)


def usd(microusd: int) -> str:
    """An amount as people write it, to the cent."""
    cents = round(abs(microusd) / 10_000)
    return f"{'-' if microusd < 0 else ''}${cents // 100:,}.{cents % 100:02d}"
