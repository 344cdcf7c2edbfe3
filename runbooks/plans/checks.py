"""Checks: the closed list of typed conditions on one object, for before and after a step.

A check compares one reading with a constant. The reading has a domain, so that a check which is always or never true is
found without a cell (`vacuous`). `runbooks.plans.check_readings` takes the readings.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from engine.model.errors import SpecError
from engine.model.specs import Policy

CheckName = Literal[
    "node_state", "node_workloads", "node_free_gpus", "node_losses_day", "node_stragglers",
    "workload_state", "workload_reason", "workload_wait_s", "workload_run_s",
    "pool_free_gpus", "pool_nodes", "pool_ready", "pool_booting", "pool_suspect", "pool_down", "pool_ending",
    "pool_wanted", "pool_short", "pool_target", "pool_most",
    "queue_mode", "queue_waiting", "queue_running", "queue_oldest_wait_s", "queue_gpus", "queue_gpu_quota",
    "queue_gpus_borrowed",
    "tenant_running", "tenant_waiting", "tenant_gpus",
    "zone_ready", "zone_lost",
    "cell_waiting", "cell_wait_p95_s", "cell_policy", "cell_fragmentation_permille", "cell_cost_microusd_hour",
    "cell_suspect",
    "reservation_state", "reservation_idle_permille", "reservation_left_s",
    "budget_spent_permille", "budget_forecast_permille",
]  # fmt: skip
Operator = Literal["<", "<=", "==", "!=", ">=", ">"]
OPERATORS: tuple[Operator, ...] = get_args(Operator)
Verdict = Literal["success", "failure", "inconclusive"]
Subject = Literal["node", "workload", "pool", "queue", "tenant", "zone", "cell", "reservation", "budget"]
MAX_TOLERANCE_PERMILLE = 500
MAX_WITHIN_MS = 24 * 3_600_000


class Check(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One condition on one object."""

    check: CheckName
    of: str = ""
    """Id of the node, workload, pool, queue or reservation; empty for the cell."""
    op: Operator
    value: int | str
    tolerance_permille: int = 0
    """As a precondition: how far the value may be missed by."""
    within_ms: int = 0
    """As a verification: wall time it may take to come true; until then it is inconclusive."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check."""

    check: Check
    verdict: Verdict
    found: str
    """In words, as in "node n1 is cordoned"."""


class CheckMeaning(msgspec.Struct, frozen=True, kw_only=True):
    """The reading of a check: its object, its words and its domain."""

    of: Subject
    says: str
    """In words; `{of}` and `{value}` are put in."""
    labels: tuple[str, ...] = ()
    """All that it can be, where it is a word."""
    least: int = 0
    most: int = 0
    """Where it is a number: no cell goes beyond."""
    live: bool = False
    """Known of the cell alone, not of a fork: of use before the first step, not between steps of a trial."""


WAIT_REASONS = (
    "none", "OnHold", "Suspended", "WaitingForDependency", "DependencyNeverSatisfied", "WaitingForStartTime",
    "Backoff", "WaitingForPreempted", "QueueHeld", "BehindInQueue", "ArrayLimit", "BudgetHold",
    "WaitingForReservation", "NoMatchingNodes", "WaitingForQuota", "InsufficientCapacity", "Fragmented",
    "NoDomainFits", "AwaitingEvaluation",
)  # fmt: skip
"""Tokens of why a workload waits."""
NODES, GPUS, WORKLOADS, YEARS_S = 1_000_000, 16_000_000, 10_000_000, 10 * 366 * 86_400
MEANINGS: dict[CheckName, CheckMeaning] = {
    "node_state": CheckMeaning(
        of="node",
        says="node {of} is {value}",
        labels=("ready", "cordoned", "draining", "down", "booting", "suspect"),
    ),
    "node_workloads": CheckMeaning(of="node", says="node {of} has {value} workloads", most=10_000),
    "node_free_gpus": CheckMeaning(of="node", says="node {of} has {value} free GPUs", most=64),
    "node_losses_day": CheckMeaning(of="node", says="node {of} was lost {value} times in 24 h", most=10),
    "node_stragglers": CheckMeaning(of="node", says="node {of} has {value} stragglers", most=10_000, live=True),
    "workload_state": CheckMeaning(
        of="workload",
        says="workload {of} is {value}",
        labels=("queued", "held", "placed", "running", "finished", "failed", "cancelled", "suspended", "waiting"),
    ),
    "workload_reason": CheckMeaning(
        of="workload",
        says="workload {of} waits for the reason {value}",
        labels=WAIT_REASONS,
    ),
    "workload_wait_s": CheckMeaning(of="workload", says="workload {of} has waited {value} s", most=YEARS_S),
    "workload_run_s": CheckMeaning(of="workload", says="workload {of} has run {value} s in this attempt", most=YEARS_S),
    "pool_free_gpus": CheckMeaning(
        of="pool", says="pool {of} has {value} free GPUs on nodes that take work", most=GPUS
    ),
    "pool_nodes": CheckMeaning(of="pool", says="pool {of} has {value} nodes", most=NODES),
    "pool_ready": CheckMeaning(of="pool", says="pool {of} has {value} nodes that take work", most=NODES),
    "pool_booting": CheckMeaning(of="pool", says="pool {of} has {value} nodes booting or on order", most=NODES),
    "pool_suspect": CheckMeaning(of="pool", says="pool {of} has {value} silent nodes", most=NODES),
    "pool_down": CheckMeaning(of="pool", says="pool {of} has {value} nodes down", most=NODES),
    "pool_ending": CheckMeaning(of="pool", says="pool {of} has {value} nodes that its provider takes back", most=NODES),
    "pool_wanted": CheckMeaning(of="pool", says="pool {of} is meant to have {value} nodes", most=NODES),
    "pool_short": CheckMeaning(
        of="pool", says="pool {of} lacks {value} nodes for what waits and is foretold", most=NODES
    ),
    "pool_target": CheckMeaning(of="pool", says="pool {of} has a target of {value} nodes, now or later", most=NODES),
    "pool_most": CheckMeaning(of="pool", says="pool {of} may grow to {value} nodes", most=NODES),
    "queue_mode": CheckMeaning(of="queue", says="queue {of} is {value}", labels=("open", "held", "draining")),
    "queue_waiting": CheckMeaning(of="queue", says="queue {of} has {value} workloads waiting", most=WORKLOADS),
    "queue_running": CheckMeaning(of="queue", says="queue {of} has {value} workloads running", most=WORKLOADS),
    "queue_oldest_wait_s": CheckMeaning(of="queue", says="the oldest of queue {of} has waited {value} s", most=YEARS_S),
    "queue_gpus": CheckMeaning(of="queue", says="queue {of} uses {value} GPUs", most=GPUS),
    "queue_gpu_quota": CheckMeaning(of="queue", says="queue {of} has a quota of {value} GPUs", most=GPUS),
    "queue_gpus_borrowed": CheckMeaning(of="queue", says="queue {of} borrows {value} GPUs", most=GPUS),
    "tenant_running": CheckMeaning(of="tenant", says="tenant {of} has {value} workloads running", most=WORKLOADS),
    "tenant_waiting": CheckMeaning(of="tenant", says="tenant {of} has {value} workloads waiting", most=WORKLOADS),
    "tenant_gpus": CheckMeaning(of="tenant", says="tenant {of} uses {value} GPUs", most=GPUS),
    "zone_ready": CheckMeaning(of="zone", says="zone {of} has {value} nodes that take work", most=NODES),
    "zone_lost": CheckMeaning(of="zone", says="zone {of} has {value} nodes down or silent", most=NODES),
    "cell_waiting": CheckMeaning(of="cell", says="{value} workloads wait", most=WORKLOADS),
    "cell_wait_p95_s": CheckMeaning(of="cell", says="the last starts waited {value} s (p95)", most=YEARS_S, live=True),
    "cell_policy": CheckMeaning(of="cell", says="the policy is {value}", labels=get_args(Policy)),
    "cell_fragmentation_permille": CheckMeaning(of="cell", says="{value}/1000 of the free GPU is of no use", most=1000),
    "cell_cost_microusd_hour": CheckMeaning(of="cell", says="the cell costs {value} micro-USD an hour", most=10**15),
    "cell_suspect": CheckMeaning(of="cell", says="{value} nodes are silent", most=NODES),
    "reservation_state": CheckMeaning(
        of="reservation", says="reservation {of} is {value}", labels=("not made", "ahead", "active")
    ),
    "reservation_idle_permille": CheckMeaning(
        of="reservation", says="{value}/1000 of what reservation {of} keeps is idle", most=1000
    ),
    "reservation_left_s": CheckMeaning(of="reservation", says="reservation {of} ends in {value} s", most=YEARS_S),
    "budget_spent_permille": CheckMeaning(of="budget", says="{value}/1000 of budget {of} is spent", most=1_000_000),
    "budget_forecast_permille": CheckMeaning(
        of="budget", says="{value}/1000 of budget {of} will be spent when its window ends", most=1_000_000
    ),
}
"""Every check there is."""

Range = tuple[int, int]

WAITS = {"none": "nothing", "something": "something"}
"""Of `workload_reason`: what is no reason."""


def words(check: Check) -> str:
    """A check in words, as in "node n1 is cordoned", "pool gpu has >= 8 free GPUs"."""
    text = f"{check.value:,}" if isinstance(check.value, int) else check.value
    if check.check == "workload_reason" and check.value == "none":
        return says(check.check, check.of, "none" if check.op == "==" else "something")
    prefix = "" if check.op == "==" else "not " if check.op == "!=" else f"{check.op} "
    return says(check.check, check.of, prefix + text)


def says(name: CheckName, of: str, value: str) -> str:
    """A value of a reading in words, as in "node n1 is ready", "workload w1 waits for nothing"."""
    if name == "workload_reason" and value in WAITS:
        return f"workload {of} waits for {WAITS[value]}"
    return MEANINGS[name].says.format(of=of, value=value)


def check_well_formed(check: Check, where: str) -> None:
    """Raises SpecError for a comparison that its reading does not have, or a number out of range."""
    meaning = MEANINGS[check.check]
    if meaning.labels:
        if not isinstance(check.value, str):
            raise SpecError(f"{where}.value", f"{check.check} is a word", f"Give one of {', '.join(meaning.labels)}")
        if check.op not in ("==", "!="):
            raise SpecError(f"{where}.op", f"'{check.op}' does not compare words", "Use == or !=")
        if check.tolerance_permille:
            raise SpecError(f"{where}.tolerance_permille", "has no meaning for words", "Leave it out")
    else:
        if not isinstance(check.value, int):
            raise SpecError(f"{where}.value", f"{check.check} is a whole number", "Give one, without a unit")
        if check.op == "!=" and check.tolerance_permille:
            raise SpecError(f"{where}.tolerance_permille", "has no meaning for !=", "Leave it out")
    if bool(check.of) != (meaning.of != "cell"):
        what = f"is about one {meaning.of}" if meaning.of != "cell" else "is about the whole cell"
        raise SpecError(
            f"{where}.of", f"{check.check} {what}", "Give its id" if meaning.of != "cell" else "Leave it out"
        )
    for field, most in (("tolerance_permille", MAX_TOLERANCE_PERMILLE), ("within_ms", MAX_WITHIN_MS)):
        if not 0 <= getattr(check, field) <= most:
            raise SpecError(f"{where}.{field}", f"{getattr(check, field)} is out of range", f"Give 0 to {most}")


def holds(check: Check, value: int | str) -> bool:
    """True when a reading satisfies the check, within its tolerance."""
    if isinstance(value, str) or isinstance(check.value, str):
        return (value == check.value) == (check.op == "==")
    if check.op == "!=":
        return value != check.value
    low, high = _bounds(check.op, check.value, _slack(check.value, check.tolerance_permille))
    return (low is None or value >= low) and (high is None or value <= high)


def allowed(check: Check) -> frozenset[str] | tuple[Range, ...]:
    """The part of its domain in which a well-formed check holds: words, or ranges with both ends in them."""
    meaning = MEANINGS[check.check]
    if isinstance(check.value, str):
        return frozenset(label for label in meaning.labels if holds(check, label))
    if check.op == "!=":
        parts = [(meaning.least, check.value - 1), (check.value + 1, meaning.most)]
    else:
        low, high = _bounds(check.op, check.value, _slack(check.value, check.tolerance_permille))
        parts = [(meaning.least if low is None else low, meaning.most if high is None else high)]
    clipped = [(max(low, meaning.least), min(high, meaning.most)) for low, high in parts]
    return tuple((low, high) for low, high in clipped if low <= high)


def domain(name: CheckName) -> frozenset[str] | tuple[Range, ...]:
    meaning = MEANINGS[name]
    return frozenset(meaning.labels) or ((meaning.least, meaning.most),)


def within(inner: frozenset[str] | tuple[Range, ...], outer: frozenset[str] | tuple[Range, ...]) -> bool:
    """True when the inner part of a domain lies in the outer part of the same domain."""
    if isinstance(inner, frozenset) or isinstance(outer, frozenset):
        return frozenset(inner) <= frozenset(outer)
    return all(any(low >= least and high <= most for least, most in outer) for low, high in inner)


def both(
    one: frozenset[str] | tuple[Range, ...], other: frozenset[str] | tuple[Range, ...]
) -> frozenset[str] | tuple[Range, ...]:
    """The intersection of two parts of one domain."""
    if isinstance(one, frozenset) or isinstance(other, frozenset):
        return frozenset(label for label in one if isinstance(label, str)) & frozenset(other)
    met = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple((low, high) for low, high in met if low <= high)


def vacuous(check: Check) -> str:
    """The reason that a well-formed check holds always or never; empty when it can go either way."""
    meaning, part = MEANINGS[check.check], allowed(check)
    if isinstance(check.value, str) and check.value not in meaning.labels:
        known = ", ".join(meaning.labels)
        return f"{'always' if check.op == '!=' else 'never'} true: there is no '{check.value}', but {known}"
    if not part:
        return f"never true: {check.check} is from {meaning.least:,} to {meaning.most:,}"
    if within(domain(check.check), part):
        granted = f", with its tolerance of {check.tolerance_permille}/1000" if check.tolerance_permille else ""
        return f"always true: {check.check} is from {meaning.least:,} to {meaning.most:,}{granted}"
    return ""


def wanted(check: Check) -> str:
    value = f"{check.value:,}" if isinstance(check.value, int) else check.value
    granted = f" (within {check.tolerance_permille}/1000)" if check.tolerance_permille else ""
    return f"{check.op} {value}{granted}"


def _slack(value: int, tolerance_permille: int) -> int:
    return abs(value) * tolerance_permille // 1000


def _bounds(op: Operator, value: int, slack: int) -> tuple[int | None, int | None]:
    """Least and most that satisfy it; None: no bound."""
    match op:
        case "<":
            return None, value - 1 + slack
        case "<=":
            return None, value + slack
        case ">=":
            return value - slack, None
        case ">":
            return value + 1 - slack, None
        case _:
            return value - slack, value + slack
