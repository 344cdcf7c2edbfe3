"""Quantities, times, lists and spec differences as plans write them. They are exact: two values that differ never read
the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from engine.model.quantities import counted, shortlist, utc, whole

if TYPE_CHECKING:
    from engine.model.specs import FlavorQuota, QueueSpec, ReservationSpec


def amount(resource: str, value: int) -> str:
    """A quantity of a resource of `engine.model.specs.RESOURCES`: "64 GPU", "0.5 CPU", "64 GiB memory"."""
    if resource in ("gpu_milli", "cpu_milli"):
        return f"{whole(value)} {resource.removesuffix('_milli').upper()}"
    return f"{value / 1024:,.15g} GiB {resource.removesuffix('_mib')}"


def size(gpu_milli: int, cpu_milli: int) -> str:
    """As in "64 GPU", or "8 CPU" for work that asks for no device."""
    return amount("gpu_milli", gpu_milli) if gpu_milli else amount("cpu_milli", cpu_milli)


def span(ms: int) -> str:
    """A length of time that was given, exactly: "4h", "1h 30m", "90s", "1500ms"."""
    parts = []
    for unit, length in (("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)):
        count, ms = divmod(ms, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


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
    nodes = f"{counted(len(reservation.nodes), 'node')} ({shortlist(reservation.nodes)})"
    window = f"from {utc(reservation.start_ms)} to {utc(reservation.end_ms)}"
    return f"{nodes} {window} for {shortlist(reservation.queues) or 'work that names it'}"


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
