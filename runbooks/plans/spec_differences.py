"""Specs in words: what two of a queue differ in, and what a reservation keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from runbooks.plans.amounts import amount, listed, span, utc

if TYPE_CHECKING:
    from engine.model.specs import FlavorQuota, QueueSpec, ReservationSpec

UNSET = "not set"


class SpecDifference(NamedTuple):
    what: str
    was: str
    to: str


def differences(was: QueueSpec, to: QueueSpec) -> list[SpecDifference]:
    """Everything in which they differ, as in ("nominal gpu", "32 GPU", "24 GPU")."""
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
