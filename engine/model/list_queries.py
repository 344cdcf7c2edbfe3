"""Queries of lists, and their answers: windows with filter, sort and paging on the engine's side.

Types only, so that a console imports them without loading the engine. `engine.reads.lists` evaluates them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Kind = Literal["workloads", "nodes", "queues", "reservations", "pools", "orders"]


Op = Literal["=", "!=", "~", "!~", "<", "<=", ">", ">="]
"""`~` is "contains, ignoring case"; for text `=` accepts `*` as "any characters"."""


class Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One condition. Terms on the same column with `=` or `~` are alternatives; everything else must all hold."""

    column: str
    op: Op
    value: str | int
    """Integers are in the column's own unit (milli-CPU, MiB, milli-GPU, milliseconds)."""


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Kind
    columns: tuple[str, ...] = ()
    """Empty means the kind's default columns."""
    where: tuple[Term, ...] = ()
    sort: tuple[str, ...] = ()
    """Column names, `-` in front for descending. Ties always end in creation order."""
    offset: int = 0
    limit: int = 100
    from_row: int = 0
    """Only rows that are not older than this one, as the `next_row` of another page told it: whoever goes on from there
    meets every row once, whatever happens meanwhile. In creation order only."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A window. `rows[i][j]` is column `columns[j]`: text, integer, or null where it does not apply."""

    version: int
    at_ms: int
    columns: tuple[str, ...]
    rows: list[list[Any]]
    matched: int
    """Number of rows that satisfy the filter."""
    total: int
    """Number of rows of this kind."""
    next_row: int = -1
    """Row at which a page in creation order goes on; -1 at the end, and in any other order."""


class Column(msgspec.Struct, frozen=True):
    """The content of a column. `unit` decides how clients print it and how they read a filter's value."""

    name: str
    title: str
    unit: Literal["text", "count", "cpu", "memory", "gpu", "disk", "duration", "time", "permille", "money"]
    help: str


COLUMNS: dict[Kind, tuple[Column, ...]] = {
    "workloads": (
        Column("id", "ID", "text", "Unique id"),
        Column("name", "NAME", "text", "Name its owner gave it"),
        Column(
            "state", "STATE", "text", "queued, held, placed, running, finished, failed, cancelled, suspended, waiting"
        ),
        Column("queue", "QUEUE", "text", "Queue it was submitted to"),
        Column("priority", "PRIO", "count", "Integer priority; higher first"),
        Column("tenant", "TENANT", "text", "Who pays"),
        Column("team", "TEAM", "text", "Team inside the tenant"),
        Column("tasks", "TASKS", "count", "Tasks in all groups"),
        Column("cpu", "CPU", "cpu", "CPU asked for by all tasks"),
        Column("memory", "MEM", "memory", "Memory asked for by all tasks"),
        Column("gpu", "GPU", "gpu", "GPU asked for by all tasks"),
        Column("reason", "REASON", "text", "Why it waits: reason token"),
        Column("wait", "WAIT", "duration", "Time spent waiting so far, or before it started"),
        Column("age", "AGE", "duration", "Time since submission"),
        Column("run", "RUN", "duration", "Time running in the present attempt, or in the last"),
        Column("estimate", "EST", "duration", "Requested or estimated run time; 0 unknown"),
        Column("submitted", "SUBMITTED", "time", "When it was submitted"),
        Column("started", "STARTED", "time", "When the present attempt started"),
        Column("ended", "ENDED", "time", "When it ended"),
        Column("attempts", "TRIES", "count", "How often it was started"),
        Column("cost", "COST", "money", "Charged for all its attempts so far"),
        Column("wasted", "WASTED", "money", "Of that for work that was lost and had to be done again"),
        Column("array", "ARRAY", "text", "Array it is a member of"),
    ),
    "nodes": (
        Column("id", "ID", "text", "Unique id"),
        Column("state", "STATE", "text", "ready, cordoned, draining, down"),
        Column("pool", "POOL", "text", "Node pool"),
        Column("zone", "ZONE", "text", "Zone"),
        Column("block", "BLOCK", "text", "Block of racks"),
        Column("rack", "RACK", "text", "Rack"),
        Column("gpu_model", "MODEL", "text", "Device model"),
        Column("cpu", "CPU", "cpu", "CPU capacity"),
        Column("cpu_free", "CPU FREE", "cpu", "CPU not allocated"),
        Column("memory", "MEM", "memory", "Memory capacity"),
        Column("memory_free", "MEM FREE", "memory", "Memory not allocated"),
        Column("gpu", "GPU", "gpu", "Devices"),
        Column("gpu_free", "GPU FREE", "gpu", "Devices not allocated"),
        Column("use", "USE", "permille", "Allocated share of its scarcest resource"),
        Column("workloads", "WORK", "count", "Workloads with a task here"),
        Column("cpu_physical", "CPU PHYS", "cpu", "CPU, its own system's share among it"),
        Column("cpu_allocatable", "CPU ALLOC", "cpu", "CPU left for work; `cpu` is what requests may come to"),
        Column("memory_physical", "MEM PHYS", "memory", "Memory, its own system's share among it"),
        Column("memory_allocatable", "MEM ALLOC", "memory", "Memory left for work; requests may come to `memory`"),
        Column("overcommit", "OVER", "permille", "Requests it takes of what it has, of the resource with most"),
        Column("memory_used", "MEM USED", "memory", "Memory that work is known to use"),
    ),
    "queues": (
        Column("name", "QUEUE", "text", "Queue"),
        Column("parent", "COHORT", "text", "Cohort it belongs to: its parent in the queue tree"),
        Column("depth", "DEPTH", "count", "Levels below the root"),
        Column("state", "STATE", "text", "open, held or draining, by its own mode or that of a cohort above"),
        Column("queued", "QUEUED", "count", "Workloads waiting to be started"),
        Column("held", "HELD", "count", "Workloads on hold"),
        Column("waiting", "WAITING", "count", "Workloads waiting for others, for their time or for a retry"),
        Column("suspended", "SUSPENDED", "count", "Workloads taken off their nodes until resumed"),
        Column("running", "RUNNING", "count", "Workloads placed or running"),
        Column("oldest_wait", "OLDEST", "duration", "Longest wait among its queued workloads"),
        Column("gpu_used", "GPU USED", "gpu", "GPU charged"),
        Column("gpu_nominal", "GPU QUOTA", "gpu", "Nominal GPU quota; null means no limit"),
        Column("cpu_used", "CPU USED", "cpu", "CPU charged"),
        Column("cpu_nominal", "CPU QUOTA", "cpu", "Nominal CPU quota; null means no limit"),
        Column("memory_used", "MEM USED", "memory", "Memory charged"),
        Column("memory_nominal", "MEM QUOTA", "memory", "Nominal memory quota; null means no limit"),
        Column("gpu_borrowed", "GPU BORROWED", "gpu", "GPU drawn above its own quota and what is lent below it"),
        Column("gpu_lent", "GPU LENT", "gpu", "GPU of its idle quota that others use"),
        Column("cpu_borrowed", "CPU BORROWED", "cpu", "CPU drawn above its own quota and what is lent below it"),
        Column("cpu_lent", "CPU LENT", "cpu", "CPU of its idle quota that others use"),
        Column("share", "SHARE", "permille", "Dominant share of the cell above its quota, divided by its weight"),
        Column("past_share", "PAST", "permille", "The same of its average use over the past"),
        Column("burst", "BURST", "text", "idle, burst or cooldown; empty without a burst quota"),
        Column("burst_left", "LEFT", "duration", "Until the burst window or the cool-down ends"),
        Column("weight", "WEIGHT", "count", "Weight in fair sharing"),
        Column("burn", "BURN", "permille", "Late starts of the last hour, of those its objective allows"),
        Column("burn_6h", "BURN 6H", "permille", "The same of the last six hours"),
    ),
    "reservations": (
        Column("name", "RESERVATION", "text", "Advance reservation"),
        Column("state", "STATE", "text", "ahead before its start, active after it"),
        Column("start", "START", "time", "When its window starts"),
        Column("end", "END", "time", "When its window ends"),
        Column("nodes", "NODES", "count", "Nodes kept"),
        Column("queues", "QUEUES", "text", "Queues whose work may use the nodes, besides workloads that name it"),
    ),
    "pools": (
        Column("name", "POOL", "text", "Nodes of one machine type"),
        Column("nodes", "NODES", "count", "Nodes in any state"),
        Column("ready", "READY", "count", "Nodes that take work"),
        Column("use", "USE", "permille", "Allocated share of its GPU, or of its CPU where it has none"),
        Column("gpu_free", "GPU FREE", "gpu", "Devices not allocated, of nodes in any state"),
        Column("gpu", "GPU", "gpu", "Devices of its nodes in any state"),
        Column("down", "DOWN", "count", "Nodes that are lost or broken"),
        Column("booting", "BOOTING", "count", "Granted and paid for, not heard of yet"),
        Column("suspect", "SUSPECT", "count", "Not heard of for a while"),
        Column("ordered", "ORDERED", "count", "Asked for and not granted yet"),
        Column("least", "LEAST", "count", "Nodes it never shrinks below; null where it does not grow by itself"),
        Column("most", "MOST", "count", "Nodes it never grows above; null where it does not grow by itself"),
        Column("headroom", "HEADROOM", "count", "Whole nodes kept free"),
        Column(
            "priority",
            "PRIO",
            "count",
            "Pools of a higher one grow first, where that is what decides; null where it does not grow by itself",
        ),
        Column("price", "PRICE/H", "money", "Of one node, for an hour"),
        Column("spot", "SPOT", "text", "spot where its provider may take nodes back; else on-demand"),
        Column("backed_off", "LEFT ALONE UNTIL", "time", "It failed to deliver, and is not asked before"),
        Column("failures", "FAILURES", "count", "How often in a row it failed to deliver"),
        Column("region", "REGION", "text", "Where its new nodes stand"),
        Column("zones", "ZONES", "text", "Where its new nodes may stand, asked in turn"),
        Column("machine_type", "MACHINE", "text", "What its provider calls the machines"),
    ),
    "orders": (
        Column("id", "ORDER", "text", "Number of the order"),
        Column("state", "STATE", "text", "open, filled, cancelled or refused"),
        Column("pool", "POOL", "text", "Pool that its nodes are of"),
        Column("zone", "ZONE", "text", "Where they are asked for"),
        Column("nodes", "NODES", "count", "Nodes asked for"),
        Column("granted", "GRANTED", "count", "Nodes granted"),
        Column("booting", "BOOTING", "count", "Of them those that have not called yet"),
        Column("refused", "GIVEN BACK", "count", "Machines that were not as ordered"),
        Column("workload", "FOR", "text", "The gang that it is for; empty when for whoever comes"),
        Column("ordered", "ORDERED", "time", "When it was made"),
        Column("ready", "READY", "time", "When its nodes are likely to be ready, by the median of their boot time"),
        Column("expires", "EXPIRES", "time", "When what has not come by then is cancelled and given back"),
        Column("ended", "ENDED", "time", "When it was filled, refused or cancelled"),
    ),
}


DEFAULT_COLUMNS: dict[Kind, tuple[str, ...]] = {
    "workloads": ("id", "state", "queue", "priority", "tenant", "tasks", "gpu", "cpu", "wait", "run", "reason", "name"),
    "nodes": ("id", "state", "pool", "rack", "gpu_model", "gpu_free", "gpu", "cpu_free", "cpu", "use", "workloads"),
    "queues": (
        "name", "state", "queued", "held", "running", "oldest_wait", "gpu_used", "gpu_nominal", "gpu_borrowed",
        "gpu_lent", "cpu_used", "cpu_nominal", "share", "burst",
    ),
    "reservations": ("name", "state", "start", "end", "nodes", "queues"),
    "pools": (
        "name", "nodes", "ready", "down", "use", "gpu_free", "gpu", "booting", "ordered", "least", "most", "price",
        "spot", "backed_off", "failures",
    ),
    "orders": (
        "id", "state", "pool", "zone", "nodes", "granted", "booting", "refused", "workload", "ordered", "ready",
    ),
}  # fmt: skip


class Named(msgspec.Struct, frozen=True):
    """Something that has an id, found by the whole of it or by how it begins."""

    kind: str
    """workload, node, queue, pool, order, reservation; a level of the topology; or of what is beside the cell:
    proposal, runbook, draft, recommendation, run, record."""
    id: str
    detail: str = ""
    """Its state, or what it is about."""
