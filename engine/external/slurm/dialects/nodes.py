"""Nodes, partitions and reservations as the controller lists them."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.external.slurm import hostlist
from engine.external.slurm.dialects.entry_fields import Entry, EntryShape, in_seconds, within
from engine.external.slurm.records import NODE_STATES, Node, SlurmPartition, SlurmReservation

NODE = EntryShape(
    "node",
    """name state state_flags cpus effective_cpus alloc_cpus cpu_load real_memory specialized_memory alloc_memory
    free_mem free_memory gres gres_used sockets cores threads partitions features active_features reason
    reason_changed_at reason_set_by_user boot_time slurmd_start_time last_busy weight address hostname
    instance_type reservation version slurmd_version topology""",
)
PARTITION = EntryShape(
    "partition",
    """name partition state nodes flags max_time_limit default_time_limit maximum_nodes_per_job maximums defaults
    minimums priority priority_tier priority_job_factor preemption_mode preempt_mode preemption_grace_time
    grace_time default_memory_per_cpu default_memory_per_node qos allowed_qos denied_qos allowed_accounts
    denied_accounts accounts total_cpus cpus tres""",
)
RESERVATION = EntryShape(
    "reservation", "name start_time end_time node_list core_count partition users accounts features licenses flags tres"
)

_SAME_FLAG = {"MAINT": "MAINTENANCE", "NO_RESPOND": "NOT_RESPONDING", "REBOOT": "REBOOT_REQUESTED"}


def node(raw: msgspec.Raw) -> Node:
    """ValueError when it has no name."""
    entry = NODE.entry(raw)
    state, flags = _node_state(entry)
    free = entry.number("free_mem" if entry.raw.free_mem is not None else "free_memory")
    load = entry.number("cpu_load")
    version = entry.text("version") or entry.text("slurmd_version")
    return Node(
        name=_name(entry),
        state=state,
        flags=flags,
        cpus=entry.count("effective_cpus") or entry.count("cpus"),
        cpus_used=entry.count("alloc_cpus"),
        cpu_load=load / 100 if load is not None and load >= 0 else None,
        memory_mib=max(0, entry.count("real_memory") - entry.count("specialized_memory")),
        memory_used_mib=entry.count("alloc_memory"),
        memory_free_mib=free if free is not None and free >= 0 else None,
        gres=entry.parsed("gres", hostlist.gres, {}),
        gres_used=entry.parsed("gres_used", hostlist.gres, {}),
        gres_indexes_used=entry.parsed("gres_used", hostlist.gres_indexes, {}),
        sockets=entry.count("sockets"),
        cores_per_socket=entry.count("cores"),
        threads_per_core=entry.count("threads"),
        partitions=entry.words("partitions"),
        features=entry.words("features"),
        features_active=entry.words("active_features"),
        reason=entry.text("reason"),
        reason_s=entry.time("reason_changed_at"),
        reason_user=entry.text("reason_set_by_user"),
        boot_s=entry.time("boot_time"),
        slurmd_start_s=entry.time("slurmd_start_time"),
        last_busy_s=entry.time("last_busy"),
        weight=entry.count("weight", 1),
        address=entry.text("address"),
        hostname=entry.text("hostname"),
        switch=_leaf(entry),
        instance_type=entry.text("instance_type"),
        reservation=entry.text("reservation"),
        version=version,
        extra=entry.extra,
    )


def _name(entry: Entry) -> str:
    name = entry.text("name")
    if not name:
        raise ValueError(f"has no name but {entry.raw.name!r}")
    return name


def _node_state(entry: Entry) -> tuple[str, frozenset[str]]:
    """v0.0.38: a base state in small letters, and `state_flags`. Later: both in one list."""
    words = [word.upper() for word in entry.words("state")]
    flags = frozenset(
        _SAME_FLAG.get(word, word)
        for word in [*words, *(word.upper() for word in entry.words("state_flags"))]
        if word not in NODE_STATES
    )
    known = [word for word in words if word in NODE_STATES]
    if not known and entry.raw.state is not None:
        entry.extra["state"] = entry.raw.state
    return (known[0] if known else "UNKNOWN"), flags


def _leaf(entry: Entry) -> str:
    """Releases from 25.05 say where in the tree: `topo:spine.rack1.node`; earlier ones nothing."""
    path = entry.text("topology").rpartition(":")[2].split(".")
    return path[-2] if len(path) > 1 else ""


def partition(raw: msgspec.Raw) -> SlurmPartition:
    """ValueError when it has no name."""
    entry = PARTITION.entry(raw)
    later = isinstance(entry.raw.nodes, dict)
    return (_later_partition if later else _early_partition)(entry)


def _early_partition(entry: Entry) -> SlurmPartition:
    flags = {word.lower() for word in entry.words("flags")}
    return SlurmPartition(
        name=_name(entry),
        state=entry.text("state").upper() or "UNKNOWN",
        nodes=entry.parsed("nodes", hostlist.hosts, ()),
        default="default" in flags,
        hidden="hidden" in flags,
        time_limit_s=entry.minutes("max_time_limit"),
        default_time_s=entry.minutes("default_time_limit"),
        nodes_max=entry.number("maximum_nodes_per_job"),
        tier=entry.count("priority_tier", 1),
        priority=entry.count("priority_job_factor", 1),
        preempt_mode=_preempt_mode(entry, "preemption_mode"),
        grace_s=entry.count("preemption_grace_time"),
        default_memory_per_cpu_mib=entry.number("default_memory_per_cpu") or None,
        default_memory_per_node_mib=entry.number("default_memory_per_node") or None,
        qos=entry.text("qos"),
        allowed_qos=entry.words("allowed_qos"),
        denied_qos=entry.words("denied_qos"),
        allowed_accounts=entry.words("allowed_accounts"),
        denied_accounts=entry.words("denied_accounts"),
        cpus=entry.count("total_cpus"),
        tres=entry.parsed("tres", hostlist.tres, {}),
        extra=entry.extra,
    )


def _later_partition(entry: Entry) -> SlurmPartition:
    def number(name: str, *path: str) -> int | None:
        return entry.read_number(name, entry.inside(name, *path))

    def names(name: str, *path: str) -> tuple[str, ...]:
        return entry.as_words(name, entry.inside(name, *path))

    states = [word.upper() for word in names("partition", "state")]
    shares = entry.inside("maximums", "oversubscribe", "jobs")
    memory = entry.inside("defaults", "partition_memory_per_cpu"), entry.inside("defaults", "partition_memory_per_node")
    flags = {word.lower() for word in entry.words("flags")}
    return SlurmPartition(
        name=_name(entry),
        state=states[0] if states else "UNKNOWN",
        nodes=entry.as_parsed("nodes", entry.inside("nodes", "configured"), hostlist.hosts, ()),
        default=True if "default" in flags else None,
        hidden="hidden" in flags,
        exclusive=shares == 0,
        oversubscribe=shares if isinstance(shares, int) and shares > 0 else 1,
        time_limit_s=in_seconds(number("maximums", "time")),
        default_time_s=in_seconds(number("defaults", "time")),
        nodes_max=number("maximums", "nodes"),
        nodes_min=number("minimums", "nodes") or 0,
        tier=number("priority", "tier") or 1,
        priority=number("priority", "job_factor") or 1,
        preempt_mode=_preempt_mode(entry, "preempt_mode"),
        grace_s=max(0, entry.number("grace_time") or 0),
        default_memory_per_cpu_mib=entry.read_number("defaults", memory[0]) or None,
        default_memory_per_node_mib=entry.read_number("defaults", memory[1]) or None,
        qos=str(entry.inside("qos", "assigned") or ""),
        allowed_qos=names("qos", "allowed"),
        denied_qos=names("qos", "deny"),
        allowed_accounts=names("accounts", "allowed"),
        denied_accounts=names("accounts", "deny"),
        cpus=number("cpus", "total") or 0,
        tres=entry.as_parsed("tres", within(entry.raw.tres, "configured"), hostlist.tres, {}),
        extra=entry.extra,
    )


def _preempt_mode(entry: Entry, name: str) -> str:
    """`disabled` is what v0.0.38 writes where no mode is set for the partition: as the cluster."""
    words = [word.upper() for word in entry.words(name)]
    return next((word for word in words if word != "DISABLED"), "")


def reservation(raw: msgspec.Raw) -> SlurmReservation:
    """ValueError when it has no name."""
    entry = RESERVATION.entry(raw)
    return SlurmReservation(
        name=_name(entry),
        start_s=entry.time("start_time"),
        end_s=entry.time("end_time"),
        nodes=entry.parsed("node_list", hostlist.hosts, ()),
        cores=entry.count("core_count"),
        partition=entry.text("partition"),
        users=entry.words("users"),
        accounts=entry.words("accounts"),
        features=entry.text("features"),
        licenses=_licenses(entry.raw.licenses),
        flags=frozenset(word.upper() for word in entry.words("flags")),
        tres=entry.parsed("tres", hostlist.tres, {}),
        extra=entry.extra,
    )


def _licenses(value: Any) -> str:
    return value if isinstance(value, str) else ""
