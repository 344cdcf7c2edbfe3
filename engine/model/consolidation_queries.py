"""The question for a consolidation, and its answer: gangs that move so that another can start. Types only."""

from __future__ import annotations

import msgspec


class ConsolidationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The aim of moves. With neither a workload nor nodes: the start of the most valuable workload that fragmentation
    holds up.
    """

    unblock: str = ""
    """Id of a waiting workload that is to start."""
    free_nodes: int = 0
    """The number of nodes of the pool that are to be empty, including those that already are."""
    pool: str = ""
    max_moves: int = 0
    """Most workloads to move; 0: as many as a plan ever moves."""
    least_ratio_permille: int = 500
    """Least benefit for its cost; 0 takes a plan at any cost."""


class NodeTasks(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    tasks: int


class Relocation(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that is stopped and goes on elsewhere in the same turn, whole."""

    id: str
    queue: str
    gpu_milli: int
    """GPU of all its tasks."""
    cpu_milli: int
    lost_ms: int
    """Work since its last checkpoint, which is done again; 0 where it writes one when asked."""
    pause_ms: int
    """Time without progress besides: to write that checkpoint, and to start anew."""
    was: tuple[NodeTasks, ...]
    to: tuple[NodeTasks, ...]
    nodes: tuple[str, ...]
    """The nodes it goes to, in the order in which they are filled."""


class Unblocked(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that starts because of the moves."""

    id: str
    tasks: int
    gpu_milli: int
    """GPU of all its tasks."""
    cpu_milli: int
    waits_ms: int | None
    """Its minimum wait without the plan, if estimates hold and nobody else takes the room. None when that is
    not known.
    """
    gains_ms: int
    """Time for which its place would have been of no use to it otherwise: that wait, or its run time if shorter."""


class ConsolidationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Moves that were carried out on a fork of the cell, and what came of it there."""

    moves: tuple[Relocation, ...]
    unblocks: tuple[Unblocked, ...]
    frees: tuple[str, ...]
    """Nodes that are emptied."""
    unit: str
    """Unit of the device seconds below: gpu or cpu."""
    lost_s: int
    """Device-seconds, or core-seconds, of work that is done again."""
    restart_s: int
    """The same of time without progress."""
    gained_s: int
    """The same of what starts because of it, and of what is emptied for an hour."""
    ratio_permille: int
    """Benefit for its cost, each weighed by shares of the cell."""
    worth_it: bool
    """True if that is at least the requested ratio."""
    fragmentation_before_ppm: int | None
    fragmentation_after_ppm: int | None


class Consolidation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request."""

    version: int
    """State version of the cell that was forked."""
    now_ms: int
    request: ConsolidationRequest
    found: ConsolidationPlan | None
    why: str
    """The reason why there is no plan, or why the plan is not worth it; empty for one that is."""
    tried: tuple[str, ...] = ()
    """Earlier trials, each with its result."""
