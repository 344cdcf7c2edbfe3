"""Answers about the cell as a whole: its overview, and what has changed lately. Types only."""

from __future__ import annotations

import msgspec

from engine.model.details import Burn


class PoolOverview(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    gpu_model: str
    nodes: int
    ready: int
    cordoned: int
    draining: int
    down: int
    capacity: dict[str, int]
    used: dict[str, int]
    price_microusd_hour: int = 0
    """Price of one node."""
    booting: int = 0
    suspect: int = 0
    ordered: int = 0
    """Asked for and not granted yet."""
    spot: bool = False
    """Its provider may take its nodes back."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    now_ms: int
    cell: str
    policy: str
    states: dict[str, int]
    """Workload state label -> how many."""
    capacity: dict[str, int]
    used: dict[str, int]
    pools: tuple[PoolOverview, ...]
    blocked: tuple[tuple[str, int], ...]
    """Reason token -> queued workloads, most frequent first."""
    oldest_wait_ms: int
    oldest_waiting: str
    """Id of the longest-waiting queued workload, or empty."""
    wait_p50_ms: int
    wait_p95_ms: int
    """Over the last 1,000 workloads started."""
    started_last_hour: int
    finished_last_hour: int
    history: tuple[tuple[int, int, int], ...]
    """Up to 240 samples (time ms, GPU or else CPU use in permille, queued), oldest first, for sparklines."""
    fragmentation_ppm: int | None = None
    """Share of the free GPU that the work of this cell could not use (`FragmentationReport.ppm`)."""
    watched: int = 0
    """Nodes that agents call from."""
    suspect: int = 0
    """The watched nodes that are silent and not declared lost yet."""
    mass_suspicion: bool = False
    """True if there are so many that it may be the network: few are declared lost at a time."""
    cost_microusd_hour: int = 0
    """Cost of all nodes now."""
    idle_microusd_hour: int = 0
    """The part of that which no workload is charged for."""
    burns: tuple[Burn, ...] = ()
    """Burns of the queues that have an objective."""
    borrowed: dict[str, int] = {}
    """The part of `used` that queues draw above their quotas; nothing where there are no quotas."""
    in_burst: dict[str, int] = {}
    """The part of that which they draw above their borrowing limits too, for a while."""
    tenants: dict[str, dict[str, int]] = {}
    """Requests of placed and running work, by tenant; the empty name is for work without one."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the event tail."""

    version: int
    at_ms: int
    what: str
    subject: str
    detail: str = ""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    at_ms: int
    items: tuple[Change, ...] = ()
    missed: int = 0
    """Number of changes dropped from `items` because the reader was too far behind."""
