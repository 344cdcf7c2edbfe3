"""Quantities, times and lists as plans write them: exact, so that two that differ never read the same."""

from __future__ import annotations

from datetime import UTC, datetime


def whole(milli: int) -> str:
    """Thousandths as people write them: "64", "0.25", "130,000"."""
    return f"{milli / 1000:,.12g}"


def amount(resource: str, value: int) -> str:
    """A quantity of a resource of `engine.model.specs.RESOURCES`: "64 GPU", "0.5 CPU", "64 GiB memory"."""
    if resource in ("gpu_milli", "cpu_milli"):
        return f"{whole(value)} {resource.removesuffix('_milli').upper()}"
    return f"{value / 1024:,.15g} GiB {resource.removesuffix('_mib')}"


def size(gpu_milli: int, cpu_milli: int) -> str:
    """As in "64 GPU", or "8 CPU" for work that asks for no device."""
    return amount("gpu_milli", gpu_milli) if gpu_milli else amount("cpu_milli", cpu_milli)


def hours(ms: int) -> str:
    """As in "3.2 h"; minutes below one hour."""
    return f"{ms / 3_600_000:,.1f} h" if ms >= 3_600_000 else f"{ms // 60_000} min"


def span(ms: int) -> str:
    """A length of time that was given, exactly: "4h", "1h 30m", "90s", "1500ms"."""
    parts = []
    for unit, length in (("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)):
        count, ms = divmod(ms, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


def utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def workloads(count: int) -> str:
    return "1 workload" if count == 1 else f"{count:,} workloads"


def listed(ids: tuple[str, ...], most: int = 5) -> str:
    """As in "wl-1, wl-2 and 3 more"."""
    rest = len(ids) - most
    return ", ".join(ids[:most]) + (f" and {rest:,} more" if rest > 0 else "")
