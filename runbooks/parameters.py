"""What a step of a runbook says of its action: the parameters of each action, their types and bounds.

A parameter is a reference to an input, or the value itself; ids are whole ids, one by one. Nothing here stands for
"all", and nothing is computed but what is written out below: a quantity more or less than what there is, and a time
from now.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from engine.model import Policy
from engine.scaling import PRESETS
from runbooks.plan import ActionName
from runbooks.runbook import InputType

Type = InputType | Literal["text", "object"]
"""`object`: an id of any kind."""

MOST_NODES = 100_000
MOST_GPUS = 1_000_000
MOST_CPUS = 100_000_000
MOST_TEXT = 500
MOST_ID = 128
MOST_DURATION_MS = 30 * 24 * 3_600_000
MOST_LITERALS = 50
"""Ids written out in a list."""

ANYTHING = frozenset(("all", "any", "every", "everything", "none", "null", "nil", "true", "false", "default"))
"""Words that are no ids here, though the cell would let something be called so: they read as a selector."""
PATTERN = re.compile(r"[*?\[\](){}|^$\\+<>=~,;`'\"!&%#@\s]")
"""Characters of globs, of expressions and of shells; no id has one."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    type: Type
    many: bool = False
    required: bool = False
    target: bool = False
    """It names what the action acts on."""
    least: int = 0
    most: int = 0
    """Of an int; of a duration, in ms."""
    choices: tuple[str, ...] = ()


def _ids(type_: Type) -> Parameter:
    return Parameter(type=type_, many=True, required=True, target=True)


def _one(type_: Type) -> Parameter:
    return Parameter(type=type_, required=True, target=True)


def _int(most: int, least: int = 0, *, required: bool = False) -> Parameter:
    return Parameter(type="int", least=least, most=most, required=required)


def _choice(*choices: str, required: bool = False) -> Parameter:
    return Parameter(type="choice", choices=choices, required=required)


def _duration(most: int = MOST_DURATION_MS, *, required: bool = False, least: int = 0) -> Parameter:
    return Parameter(type="duration", least=least, most=most, required=required)


_WORKLOADS = {"workloads": _ids("workload_id")}
_NODES = {"nodes": _ids("node_id")}
_QUEUES = {"queues": _ids("queue")}
_TEXT = Parameter(type="text", required=True, most=MOST_TEXT)

PARAMETERS: Mapping[ActionName, Mapping[str, Parameter]] = {
    "cancel": _WORKLOADS,
    "hold": _WORKLOADS,
    "release": _WORKLOADS,
    "requeue": _WORKLOADS,
    "suspend": _WORKLOADS,
    "resume": _WORKLOADS,
    "preempt": _WORKLOADS,
    "approve_spending": _WORKLOADS,
    "move": {**_WORKLOADS, "to": Parameter(type="queue", required=True)},
    "set_priority": {**_WORKLOADS, "to": Parameter(type="name", required=True)},
    "set_qos": {**_WORKLOADS, "to": Parameter(type="name", required=True)},
    "set_job_priority": {**_WORKLOADS, "to": _int(0xFFFFFFFD, 1, required=True)},
    "power_up": _NODES,
    "power_down": _NODES,
    "resize": {
        **_WORKLOADS,
        "group": Parameter(type="name"),
        "cpu_milli": _int(10**9, 1),
        "memory_mib": _int(10**9, 1),
        "gpu_milli": _int(10**9, 1),
        "evidence": Parameter(type="text", most=200),
    },
    "consolidate": {
        "unblock": Parameter(type="workload_id"),
        "pool": Parameter(type="pool"),
        "free_nodes": _int(1000, 1),
        "max_moves": _int(200, 1, required=True),
    },
    "cordon": _NODES,
    "uncordon": _NODES,
    "drain": _NODES,
    "interrupt": _NODES,
    "hold_queue": _QUEUES,
    "drain_queue": _QUEUES,
    "open_queue": _QUEUES,
    "set_quota": {
        "queue": _one("queue"),
        "pool": Parameter(type="pool"),
        "nominal_gpus": _int(MOST_GPUS),
        "add_gpus": _int(MOST_GPUS, 1),
        "remove_gpus": _int(MOST_GPUS, 1),
        "borrowing_limit_gpus": _int(MOST_GPUS),
        "lending_limit_gpus": _int(MOST_GPUS),
        "nominal_cpus": _int(MOST_CPUS),
        "add_cpus": _int(MOST_CPUS, 1),
        "remove_cpus": _int(MOST_CPUS, 1),
        "borrowing_limit_cpus": _int(MOST_CPUS),
        "lending_limit_cpus": _int(MOST_CPUS),
        "weight": _int(1_000_000, 1),
        "order": _choice("best_effort", "strict_fifo", "fair"),
        "over": _choice("refuse", "keep", "evict"),
    },
    "reserve": {
        "name": _one("name"),
        "nodes": Parameter(type="node_id", many=True, required=True),
        "queues": Parameter(type="queue", many=True),
        "starts_in": _duration(),
        "lasts": _duration(required=True, least=60_000),
    },
    "unreserve": {"reservations": _ids("reservation")},
    "set_policy": {"policy": Parameter(type="choice", required=True, target=True, choices=get_args(Policy))},
    "set_price": {"pool": _one("pool"), "microusd_hour": _int(10**12, required=True)},
    "set_budget": {
        "budget": _one("budget"),
        "limit_usd": _int(10**9),
        "add_usd": _int(10**9, 1),
        "on_spent": _choice("warn", "hold", "approve"),
        "warn_permille": _int(1000),
    },
    "remove_budget": {"budgets": _ids("budget")},
    "set_scaling": {
        "pool": _one("pool"),
        "least": _int(MOST_NODES),
        "most": _int(MOST_NODES),
        "headroom": _int(MOST_NODES),
        "priority": _int(1000),
    },
    "set_targets": {
        "pool": _one("pool"),
        "nodes": _int(MOST_NODES, 1, required=True),
        "starts_in": _duration(),
        "lasts": _duration(required=True, least=60_000),
    },
    "set_autoscaling": {"preset": _choice(*PRESETS, required=True)},
    "scale_pool": {
        "pool": _one("pool"),
        "nodes": _int(MOST_NODES),
        "add_nodes": _int(MOST_NODES, 1),
        "remove_nodes": _int(MOST_NODES, 1),
    },
    "canary": {
        "queues": Parameter(type="queue", many=True, target=True),
        "order": _choice("best_effort", "strict_fifo", "fair"),
        "policy": _choice(*get_args(Policy)),
        "window": _duration(least=60_000, required=True),
        "worst_permille": _int(10_000, 1000),
        "least_starts": _int(100_000, 1),
    },
    "notify": {"channels": Parameter(type="channel", many=True, required=True, target=True), "text": _TEXT},
    "open_review": {"about": _one("object"), "text": _TEXT},
}
"""Action -> name of the parameter -> what it is."""

ONE_OF: Mapping[ActionName, tuple[tuple[str, ...], ...]] = {
    "consolidate": (("unblock", "free_nodes"),),
    "scale_pool": (("nodes", "add_nodes", "remove_nodes"),),
    "canary": (("order", "policy"),),
}
"""Exactly one of each of these is given."""
AT_MOST_ONE: Mapping[ActionName, tuple[tuple[str, ...], ...]] = {
    "set_quota": (("nominal_gpus", "add_gpus", "remove_gpus"), ("nominal_cpus", "add_cpus", "remove_cpus")),
    "set_budget": (("limit_usd", "add_usd"),),
}
SOME: Mapping[ActionName, tuple[str, ...]] = {
    "set_quota": (
        "nominal_gpus", "add_gpus", "remove_gpus", "borrowing_limit_gpus", "lending_limit_gpus",
        "nominal_cpus", "add_cpus", "remove_cpus", "borrowing_limit_cpus", "lending_limit_cpus", "weight", "order",
    ),
    "set_budget": ("limit_usd", "add_usd", "on_spent", "warn_permille"),
    "set_scaling": ("least", "most", "headroom", "priority"),
    "resize": ("cpu_milli", "memory_mib", "gpu_milli"),
}  # fmt: skip
"""At least one of these is given: else nothing would change."""


def why_not_id(text: str) -> str:
    """Why a text written in a runbook, or given for an input, cannot stand for one object; empty when it can."""
    if not text:
        return "is empty, which could mean all"
    if not text.isascii():
        odd = next(char for char in text if not char.isascii())
        return f"holds U+{ord(odd):04X}, which only looks like another letter or cannot be seen"
    if len(text) > MOST_ID:
        return "is longer than any id"
    if PATTERN.search(text):
        return "is a pattern or an expression, not an id"
    return "could mean more than one object" if text.lower() in ANYTHING else ""
