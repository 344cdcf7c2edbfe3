"""Quantities, times, lists and spec differences as plans write them. They are exact: two values that differ never read
the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from engine.model.specs import FlavorQuota, QueueSpec, ReservationSpec


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


UNSET = "not set"


class SpecDifference(NamedTuple):
    what: str
    was: str
    to: str


def differences(was: QueueSpec, to: QueueSpec) -> list[SpecDifference]:
    """All differences of two specs, as in ("nominal gpu", "32 GPU", "24 GPU")."""
    before, after = dict(_facts(was)), dict(_facts(to))
    found = [SpecDifference(what, before.get(what, UNSET), after.get(what, UNSET)) for what in before | after]
    return [difference for difference in found if difference.was != difference.to]


def kept(reservation: ReservationSpec) -> str:
    """As in "2 nodes (n0, n1) from … to … for research"."""
    nodes = f"{len(reservation.nodes):,} node{'s' if len(reservation.nodes) != 1 else ''} ({listed(reservation.nodes)})"
    window = f"from {utc(reservation.start_ms)} to {utc(reservation.end_ms)}"
    return f"{nodes} {window} for {listed(reservation.queues) or 'work that names it'}"


def _facts(spec: QueueSpec) -> Iterator[tuple[str, str]]:
    yield from _quota(spec, "")
    if spec.flavors:
        yield "pools", ", ".join(flavor.pool for flavor in spec.flavors)
    for flavor in spec.flavors:
        yield from _quota(flavor, f"{flavor.pool}: ")
    if spec.burst is not None:
        for resource, quantity in spec.burst.limit.items():
            yield f"burst {_short(resource)}", amount(resource, quantity)
        yield "burst window", span(spec.burst.window_ms)
        yield "burst cool-down", span(spec.burst.cooldown_ms)
    yield "weight", f"{spec.weight:,}"
    yield "order", spec.order
    yield "reclaim", spec.reclaim
    yield "minimum run time", span(spec.min_runtime_ms)
    yield "disruptions", "no limit" if spec.disruptions < 0 else f"{spec.disruptions:,}"
    yield "disruption window", span(spec.disruption_window_ms)
    if spec.start_within_ms:
        yield "objective", f"{spec.objective_permille / 10:g} % start within {span(spec.start_within_ms)}"
    if spec.placement:
        yield "placement", ", ".join(f"{score} {weight}" for score, weight in spec.placement.items())


def _quota(quota: QueueSpec | FlavorQuota, prefix: str) -> Iterator[tuple[str, str]]:
    for name in ("nominal", "borrowing_limit", "lending_limit"):
        for resource, quantity in getattr(quota, name).items():
            yield f"{prefix}{name.replace('_', ' ')} {_short(resource)}", amount(resource, quantity)


def _short(resource: str) -> str:
    return resource.partition("_")[0]
