"""How the cell watches its nodes, those that agents call from alone, and what it does about those that fail."""

from __future__ import annotations

from engine.model.base import HOUR_MS, MINUTE_MS, Spec, check_quantity
from engine.model.errors import SpecError

MAX_FLAPS = 10
"""Losses of one node that are remembered."""


class HealthSettings(Spec, frozen=True, kw_only=True):
    """Times in milliseconds of the cell's clock."""

    heartbeat_every_ms: int = 10_000
    """How often agents are told to call."""
    suspect_after_ms: int = 40_000
    """A node not heard of for so long takes no new work; what runs there goes on."""
    grace_ms: int = 20_000
    """It is lost, and its work goes elsewhere, when it stays silent so much longer."""
    mass_permille: int = 50
    """With more of the watched nodes suspect at once it may be the network: then few are declared lost at a time."""
    mass_lost_permille: int = 10
    """Those few: so many of the watched nodes, at least one, in any 10 seconds."""
    flaps: int = 3
    """A node that was lost so often within `flap_window_ms` comes back cordoned. 0: never."""
    flap_window_ms: int = HOUR_MS
    give_back_after_ms: int = 10 * MINUTE_MS
    """A node of an elastic pool that has been down so long leaves the cell, for good. 0: never."""
    repair_ms: tuple[int, int] = (0, 0)
    """Median and 95th percentile of a simulated repair of other nodes that are down; lognormal. (0, 0): they stay down
    until somebody says that they are back."""
    repair_fails_permille: int = 0
    """Chance of a simulated repair to fail."""
    most_repairs: int = 3
    """After so many failed repairs a node stays down until people have looked at it."""


_TIMES = ("grace_ms", "flap_window_ms", "give_back_after_ms")


def check_health(settings: HealthSettings, where: str) -> None:
    """Raises SpecError naming the field."""
    check_quantity(settings.heartbeat_every_ms, f"{where}.heartbeat_every_ms", least=100, most=HOUR_MS)
    check_quantity(settings.suspect_after_ms, f"{where}.suspect_after_ms", least=1000, most=24 * HOUR_MS)
    if settings.suspect_after_ms < 2 * settings.heartbeat_every_ms:
        raise SpecError(
            f"{where}.suspect_after_ms",
            f"{settings.suspect_after_ms} is less than two heartbeats, {2 * settings.heartbeat_every_ms}",
            "One heartbeat that is late must not make a node suspect",
        )
    for field in _TIMES:
        check_quantity(getattr(settings, field), f"{where}.{field}", most=365 * 24 * HOUR_MS)
    for field in ("mass_permille", "repair_fails_permille"):
        check_quantity(getattr(settings, field), f"{where}.{field}", most=1000)
    check_quantity(settings.mass_lost_permille, f"{where}.mass_lost_permille", least=1, most=1000)
    check_quantity(settings.flaps, f"{where}.flaps", most=MAX_FLAPS)
    median, late = settings.repair_ms
    check_quantity(median, f"{where}.repair_ms[0]", most=365 * 24 * HOUR_MS)
    check_quantity(late, f"{where}.repair_ms[1]", least=median, most=365 * 24 * HOUR_MS)
    check_quantity(settings.most_repairs, f"{where}.most_repairs", least=1, most=1000)
