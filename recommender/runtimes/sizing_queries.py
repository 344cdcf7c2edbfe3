"""Requests against use, as faces ask for it and are told. Types only; nothing heavy is loaded."""

from __future__ import annotations

from typing import Literal

import msgspec

from recommender.runtimes.placement_queries import QuantileSpread

Basis = Literal["kind", "tenant", "all", "request"]


class UseEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What one task of a workload will use at its peak, before it starts."""

    cpu_milli: QuantileSpread
    memory_mib: QuantileSpread
    runs: int
    """Ended runs that it rests on."""
    basis: Basis
    """"kind": its own; "tenant": what part of its requests its tenant's work used; "all": the same of everybody's;
    "request": nothing is known, it is taken to use what it asks for."""


class SizingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """All kinds of work, or only that of one workload."""

    workload_id: str = ""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """CPU (milli) or memory (MiB) of one task."""

    asked: int
    """0: not known."""
    p50: int
    p95: int
    recommended: int
    """0 while too little is known."""


class SizedKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of work."""

    kind: str
    """"tenant/stem of the name"."""
    cpu: Need
    memory: Need
    samples: int
    runs: int
    confidence: float
    """1: a day of samples or ten runs. Below that nothing is changed by itself."""
    tasks: int
    """That run now, of workloads with tasks of one sort."""
    bumped: int
    """Runs that seem to have died of too little memory."""
    saved_cpu_milli: int
    """By all that run now, if they asked for what is recommended; negative: they need more."""
    saved_memory_mib: int
    saved_microusd_hour: int
    """What they would be charged less, as the ledger charges: work with GPUs is charged for those in the main."""


class SizingReport(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    kinds: tuple[SizedKind, ...]
    """Largest savings first."""
    rightsizing: str
    """Whether new work is resized by itself: the cell's setting."""
    estimate: UseEstimate | None
    """What one task will use at its peak, where one workload was asked for that has tasks of one sort."""
    unknown: tuple[str, ...]
    """What could not be judged, and why."""
