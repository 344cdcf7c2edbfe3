"""Questions about an earlier time of the cell, and their answers. Types only. All times are cell milliseconds."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.model.specs import Spec


class PastStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The times that can be shown, and how far the one that was asked for is."""

    earliest_ms: int
    now_ms: int
    at_ms: int
    state: Literal["none", "building", "ready", "failed"] = "none"
    """`none`: no time was asked for."""
    permille: int = 0
    version: int = 0
    """State version at that time, once it is ready."""
    code: str = ""
    """Error code of one that failed."""
    problem: str = ""
    remedy: str = ""


class DifferenceRequest(Spec, frozen=True, kw_only=True):
    """The difference of two times of the cell."""

    since_ms: int
    until_ms: int
    queue: str = ""
    """Only work of this queue and those below it."""
    node: str = ""
    """Only this node, and work that ran on it."""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 20
    """Rows of each kind of happening, the latest of them."""


class QueueDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One queue at both times, and the happenings between."""

    queue: str
    submitted: int = 0
    started: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    evicted: int = 0
    """Preempted, or evicted for any other cause."""
    running_before: int = 0
    running_after: int = 0
    queued_before: int = 0
    queued_after: int = 0


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to a workload or a node."""

    at_ms: int
    what: str
    subject: str
    """Id of the workload or node."""
    place: str
    """Its queue or pool."""
    detail: str
    by: str
    """Who or what brought it about: a person with the plan that was approved, or a part of the engine."""


class ValueChange(msgspec.Struct, frozen=True, kw_only=True):
    """A rule or a price that is another one."""

    at_ms: int
    """Time of the last change."""
    kind: str
    """queue, pool, budget, policy and so on."""
    subject: str
    field: str
    before: str
    after: str
    by: str


class CountedHappenings(msgspec.Struct, frozen=True, kw_only=True):
    """Happenings of one kind."""

    what: str
    count: int
    latest: tuple[Happening, ...]
    """At most `limit` of them, oldest first."""


class CellDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What changed from one time to another."""

    since_ms: int
    until_ms: int
    since_version: int
    until_version: int
    queues: tuple[QueueDifference, ...]
    workloads: tuple[CountedHappenings, ...]
    nodes: tuple[CountedHappenings, ...]
    rules: tuple[ValueChange, ...]
    rule_count: int
