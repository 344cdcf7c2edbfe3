"""Quantities and moments as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

from engine.model.specs import RESOURCES

_LAST_MOMENT_MS = 253_402_300_799_000
"""The end of the year 9999."""


def quantity(resource: int, value: int) -> str:
    """A quantity of RESOURCES[resource] as people write it."""
    name = RESOURCES[resource]
    if name == "cpu_milli":
        return f"{value / 1000:g} CPU"
    if name == "gpu_milli":
        return f"{value / 1000:g} GPU"
    what = "memory" if name == "memory_mib" else "disk"
    return f"{value:g} MiB {what}" if 0 < value < 1024 else f"{value / 1024:.4g} GiB {what}"


def moment(at_ms: int) -> str:
    """A cell time as people write it."""
    at = datetime.fromtimestamp(min(at_ms, _LAST_MOMENT_MS) // 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
