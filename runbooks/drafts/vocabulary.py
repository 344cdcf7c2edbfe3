"""What facts can be about: a closed list of metrics, each with its subject, its unit and how it reads.

A value is a number in the metric's unit, a word of a fixed list, the name of an object, or, for a few metrics that no
model is told as facts, a text of strangers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from engine.model.quantities import usd, utc, whole
from engine.model.specs import Policy, QueueMode
from engine.state.machines import NOTES
from runbooks.actions.catalogue import CATALOG
from runbooks.drafts.typed_draft import Fact, FactUnit
from runbooks.plans.checks import MEANINGS
from runbooks.plans.typed_plan import EDGES, TIERS

Names = Literal[
    "node", "workload", "queue", "pool", "tenant", "user", "zone", "reservation", "budget", "finding", "proposal",
    "review", "freeze", "runbook", "policy", "channel", "incident",
]  # fmt: skip
Subject = Literal["cell", Names]
Value = Literal["number", "word", "text", Names]
"""Of a metric. `text`: a stranger's, or with names in it."""


class FactMetric(msgspec.Struct, frozen=True):
    """The type and words of a metric."""

    of: Subject
    value: Value
    says: str
    """As a person reads it; `{of}` and `{value}` are put in."""
    unit: FactUnit = ""
    words: frozenset[str] = frozenset()
    """All that it can be, where it is a word."""


def _count(of: Subject, says: str) -> FactMetric:
    return FactMetric(of, "number", says, "count")


def _number(of: Subject, unit: FactUnit, says: str) -> FactMetric:
    return FactMetric(of, "number", says, unit)


def _word(of: Subject, says: str, *words: str) -> FactMetric:
    return FactMetric(of, "word", says, words=frozenset(words))


def _name(of: Subject, value: Names, says: str) -> FactMetric:
    return FactMetric(of, value, says)


def _text(of: Subject, says: str) -> FactMetric:
    return FactMetric(of, "text", says)


NAMEABLE: tuple[Names, ...] = ("node", "workload", "queue", "pool", "tenant", "zone", "reservation", "budget")
"""What texts name that is of the cell."""
ACTED_ON: tuple[Names, ...] = ("node", "workload", "queue", "pool", "reservation", "budget", "channel")
"""What plans are about."""
REASONS: tuple[str, ...] = (*MEANINGS["workload_reason"].labels, "NodeLabels", "NodeTaints", "KeptApart", "NotNear",
                            "WaitingForNodes", "TurnedOnDemand", "NotExamined")  # fmt: skip
_NODE_STATES = (*MEANINGS["node_state"].labels, "terminating")
_WORK_STATES = MEANINGS["workload_state"].labels
_LIFE = tuple(dict.fromkeys((*EDGES.values(), "drafted")))


def snake(token: str) -> str:
    """A reason's token as part of a metric's name: InsufficientCapacity -> insufficient_capacity."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", token).lower()


METRICS: Mapping[str, FactMetric] = {
    # -- the cell
    "cell_waiting": _count("cell", "{value} workloads are queued"),
    "cell_running": _count("cell", "{value} workloads run"),
    "cell_held": _count("cell", "{value} workloads are on hold"),
    "cell_suspended": _count("cell", "{value} workloads are suspended"),
    "cell_oldest_wait_s": _number("cell", "seconds", "the longest wait in the cell is {value}"),
    "cell_oldest_waiting": _name("cell", "workload", "workload {value} has waited longest"),
    "cell_wait_p50_s": _number("cell", "seconds", "half of the last starts waited at most {value}"),
    "cell_wait_p95_s": _number("cell", "seconds", "95 % of the last starts waited at most {value}"),
    "cell_gpus": _number("cell", "gpu", "the cell has {value}"),
    "cell_gpus_used": _number("cell", "gpu", "{value} are in use in the cell"),
    "cell_cpus": _number("cell", "cpu", "the cell has {value}"),
    "cell_cpus_used": _number("cell", "cpu", "{value} are in use in the cell"),
    "cell_suspect": _count("cell", "{value} nodes are silent"),
    "cell_mass_suspicion": _word("cell", "so many nodes are silent that it may be the network: {value}", "yes", "no"),
    "cell_policy": _word("cell", "the scheduling policy is {value}", *get_args(Policy)),
    "cell_fragmentation_permille": _number("cell", "permille", "{value} of the free GPU is unusable for this work"),
    "cell_cost_microusd_hour": _number("cell", "microusd_hour", "the cell costs {value}"),
    "cell_idle_microusd_hour": _number("cell", "microusd_hour", "{value} of that is idle"),
    "cell_started_hour": _count("cell", "{value} workloads started in the last hour"),
    "cell_finished_hour": _count("cell", "{value} workloads finished in the last hour"),
    **{
        f"cell_waiting_{snake(token)}": _count("cell", f"{{value}} queued workloads wait for the reason {token}")
        for token in REASONS
    },
    # -- queues
    "queue_mode": _word("queue", "queue {of} is {value}", *(mode.label for mode in QueueMode)),
    "queue_waiting": _count("queue", "queue {of} has {value} workloads queued"),
    "queue_held": _count("queue", "queue {of} has {value} workloads on hold"),
    "queue_suspended": _count("queue", "queue {of} has {value} workloads suspended"),
    "queue_running": _count("queue", "queue {of} has {value} workloads running"),
    "queue_oldest_wait_s": _number("queue", "seconds", "the oldest of queue {of} has waited {value}"),
    "queue_gpus": _number("queue", "gpu", "queue {of} uses {value}"),
    "queue_gpu_quota": _number("queue", "gpu", "queue {of} has a quota of {value}"),
    "queue_gpus_borrowed": _number("queue", "gpu", "queue {of} borrows {value}"),
    "queue_gpus_lent": _number("queue", "gpu", "queue {of} lends {value}"),
    "queue_cpus": _number("queue", "cpu", "queue {of} uses {value}"),
    "queue_cpu_quota": _number("queue", "cpu", "queue {of} has a quota of {value}"),
    "queue_burst": _word("queue", "the burst of queue {of}: {value}", "idle", "burst", "cooldown"),
    "queue_cohort": _name("queue", "queue", "queue {of} is part of {value}"),
    # -- pools
    "pool_nodes": _count("pool", "pool {of} has {value} nodes"),
    "pool_ready": _count("pool", "pool {of} has {value} nodes that take work"),
    "pool_booting": _count("pool", "pool {of} has {value} nodes booting"),
    "pool_ordered": _count("pool", "pool {of} has {value} nodes on order"),
    "pool_suspect": _count("pool", "pool {of} has {value} silent nodes"),
    "pool_down": _count("pool", "pool {of} has {value} nodes down"),
    "pool_cordoned": _count("pool", "pool {of} has {value} cordoned nodes"),
    "pool_draining": _count("pool", "pool {of} has {value} draining nodes"),
    "pool_gpus": _number("pool", "gpu", "pool {of} has {value}"),
    "pool_gpus_used": _number("pool", "gpu", "{value} of pool {of} are in use"),
    "pool_cpus": _number("pool", "cpu", "pool {of} has {value}"),
    "pool_cpus_used": _number("pool", "cpu", "{value} of pool {of} are in use"),
    "pool_least": _count("pool", "pool {of} never has fewer than {value} nodes"),
    "pool_most": _count("pool", "pool {of} may grow to {value} nodes"),
    "pool_failures": _count("pool", "pool {of} failed to deliver {value} times in a row"),
    "pool_backed_off": _number("pool", "time_ms", "pool {of} is not asked for nodes before {value}"),
    "pool_price_microusd_hour": _number("pool", "microusd_hour", "a node of pool {of} costs {value}"),
    "pool_spot": _word("pool", "the nodes of pool {of} are {value}", "spot", "on-demand"),
    # -- nodes
    "node_state": _word("node", "node {of} is {value}", *_NODE_STATES),
    "node_since_s": _number("node", "seconds", "node {of} has been so for {value}"),
    "node_workloads": _count("node", "node {of} has {value} workloads"),
    "node_pool": _name("node", "pool", "node {of} is of pool {value}"),
    "node_zone": _name("node", "zone", "node {of} is in zone {value}"),
    "node_gpus": _number("node", "gpu", "node {of} has {value}"),
    "node_free_gpus": _number("node", "gpu", "{value} of node {of} are free"),
    "node_note": _word("node", "node {of} {value}", *NOTES),
    "node_ends": _number("node", "time_ms", "the provider reclaims node {of} at {value}"),
    "node_losses_day": _count("node", "node {of} was lost {value} times in 24 h"),
    # -- workloads
    "workload_state": _word("workload", "workload {of} is {value}", *_WORK_STATES),
    "workload_reason": _word("workload", "workload {of} waits for the reason {value}", *REASONS),
    "workload_wait_s": _number("workload", "seconds", "workload {of} has waited {value}"),
    "workload_run_s": _number("workload", "seconds", "workload {of} has run {value}"),
    "workload_estimate_s": _number("workload", "seconds", "workload {of} is expected to run {value}"),
    "workload_unsaved_s": _number("workload", "seconds", "stopping workload {of} now loses {value} of work"),
    "workload_queue": _name("workload", "queue", "workload {of} is in queue {value}"),
    "workload_tenant": _name("workload", "tenant", "workload {of} is of tenant {value}"),
    "workload_priority": _count("workload", "workload {of} has priority {value}"),
    "workload_tasks": _count("workload", "workload {of} has {value} tasks"),
    "workload_gpus": _number("workload", "gpu", "workload {of} asks for {value}"),
    "workload_cpus": _number("workload", "cpu", "workload {of} asks for {value}"),
    "workload_attempts": _count("workload", "workload {of} was started {value} times"),
    "workload_failures": _count("workload", "workload {of} failed {value} times"),
    "workload_nodes": _count("workload", "workload {of} is on {value} nodes"),
    "workload_node": _name("workload", "node", "workload {of} is on node {value}"),
    "workload_waits_for": _name("workload", "workload", "workload {of} waits for workload {value}"),
    "workload_promised_start": _number("workload", "time_ms", "workload {of} has a promised start at {value}"),
    "workload_deadline": _number("workload", "time_ms", "workload {of} should have ended by {value}"),
    "workload_why": _text("workload", "workload {of} waits: {value}"),
    # -- tenants, zones, reservations, budgets
    "tenant_running": _count("tenant", "tenant {of} has {value} workloads running"),
    "tenant_waiting": _count("tenant", "tenant {of} has {value} workloads queued"),
    "tenant_gpus": _number("tenant", "gpu", "tenant {of} uses {value}"),
    "zone_ready": _count("zone", "zone {of} has {value} nodes that take work"),
    "zone_lost": _count("zone", "zone {of} has {value} nodes down or silent"),
    "reservation_state": _word("reservation", "reservation {of} is {value}", "ahead", "active"),
    "reservation_nodes": _count("reservation", "reservation {of} keeps {value} nodes"),
    "reservation_start": _number("reservation", "time_ms", "reservation {of} starts at {value}"),
    "reservation_end": _number("reservation", "time_ms", "reservation {of} ends at {value}"),
    "reservation_idle_permille": _number("reservation", "permille", "{value} of what reservation {of} keeps is idle"),
    "budget_stage": _word("budget", "budget {of} is {value}", "open", "warned", "spent"),
    "budget_on_spent": _word("budget", "once budget {of} is spent: {value}", "warn", "hold", "approve"),
    "budget_spent_permille": _number("budget", "permille", "{value} of budget {of} is spent"),
    "budget_spent_microusd": _number("budget", "microusd", "{value} of budget {of} is spent"),
    "budget_limit_microusd": _number("budget", "microusd", "budget {of} is {value}"),
    "budget_forecast_permille": _number("budget", "permille", "{value} of budget {of} is spent when its window ends"),
    "budget_gone": _number("budget", "time_ms", "budget {of} is spent at {value} if the rate stays"),
    "budget_end": _number("budget", "time_ms", "the window of budget {of} ends at {value}"),
    "budget_waiting": _count("budget", "{value} workloads wait for budget {of}"),
    # -- what a stranger's text names, and nothing else brought up
    **{f"{kind}_named_in_excerpt": _word(kind, f"an excerpt names {kind} {{of}}", "yes") for kind in NAMEABLE},
    # -- what was found
    "finding_kind": _word("finding", "finding {of} is of kind {value}"),
    "finding_action": _word("finding", "finding {of} suggests {value}", *CATALOG),
    "finding_text": _text("finding", "finding {of}: {value}"),
    "finding_observed": _text("finding", "finding {of} rests on {value}"),
    "channel_known": _word("channel", "channel {of} can be told something", "yes"),
    # -- plans of others that a new one must not collide with
    "proposal_state": _word("proposal", "{of} is {value}", *_LIFE),
    "proposal_tier": _word("proposal", "{of} is of tier {value}", *TIERS),
    "proposal_action": _word("proposal", "{of} is to {value}", *CATALOG),
    "proposal_needs": _count("proposal", "{of} lacks {value} votes"),
    "proposal_expires": _number("proposal", "time_ms", "{of} expires at {value}"),
    "proposal_title": _text("proposal", "{of}: {value}"),
    "proposal_author": _name("proposal", "user", "{of} was proposed by {value}"),
    "proposal_requester": _name("proposal", "user", "{of} was asked for by {value}"),
    "proposal_approver": _name("proposal", "user", "{of} was approved by {value}"),
    "proposal_rejecter": _name("proposal", "user", "{of} was rejected by {value}"),
    "proposal_broken_by": _name("proposal", "user", "{value} used break-glass for {of}"),
    "proposal_asked": _number("proposal", "time_ms", "{of} was proposed at {value}"),
    "proposal_executed": _number("proposal", "time_ms", "{of} started at {value}"),
    "proposal_since": _number("proposal", "time_ms", "{of} has been so since {value}"),
    "proposal_steps": _count("proposal", "steps of {of}: {value}"),
    "proposal_steps_done": _count("proposal", "steps of {of} that are done: {value}"),
    "proposal_checks": _count("proposal", "things read back after {of}: {value}"),
    "proposal_breakglass": _word("proposal", "break-glass for {of}: {value}", "yes"),
    "proposal_waits_for": _text("proposal", "{of} waits for {value}"),
    "proposal_note": _text("proposal", "{of}: {value}"),
    "proposal_reason": _text("proposal", "{of} is wanted because: {value}"),
    **{f"proposal_on_{kind}": _name("proposal", kind, f"{{of}} is about {kind} {{value}}") for kind in ACTED_ON},
    # -- a shift: what was done, and what is left to others
    "shift_since": _number("cell", "time_ms", "this report starts at {value}"),
    "shift_wall_apart_s": _number("cell", "seconds", "the cell's clock and the wall clock are {value} apart"),
    "downtime_began": _number("cell", "time_ms", "no engine decided from {value} on"),
    "downtime_ended": _number("cell", "time_ms", "an engine decided again from {value} on"),
    "shift_proposed": _count("cell", "plans proposed: {value}"),
    **{
        f"shift_{state}": _count("cell", f"plans {state.replace('_', ' ')}: {{value}}")
        for state in ("verified", "failed", "rolled_back", "rollback_failed", "rejected", "expired", "cancelled")
    },
    "shift_refused_votes": _count("cell", "votes that did not count: {value}"),
    "shift_refused_logins": _count("cell", "requests that were not from whom they said: {value}"),
    "shift_messages_failed": _count("cell", "messages that could not be delivered: {value}"),
    "shift_started": _count("cell", "workloads started: {value}"),
    "shift_finished": _count("cell", "workloads finished: {value}"),
    "shift_work_failed": _count("cell", "workloads failed: {value}"),
    "shift_work_cancelled": _count("cell", "workloads cancelled: {value}"),
    "shift_nodes_lost": _count("cell", "losses of nodes: {value}"),
    "shift_waiting_before": _count("cell", "workloads queued when it began: {value}"),
    "shift_use_before_permille": _number("cell", "permille", "{value} were in use when it began"),
    "shift_use_permille": _number("cell", "permille", "{value} are in use now"),
    "node_lost_at": _number("node", "time_ms", "node {of} was lost at {value}"),
    "queue_failed": _count("queue", "workloads of queue {of} that failed: {value}"),
    "policy_changed": _number("policy", "time_ms", "policy {of} came into force at {value}"),
    "policy_changed_by": _name("policy", "user", "policy {of} was put in force by {value}"),
    "policy_needs": _count("policy", "policy {of} lacks {value} votes"),
    "policy_expires": _number("policy", "time_ms", "policy {of} expires at {value}"),
    "freeze_set": _number("freeze", "time_ms", "freeze {of} was set at {value}"),
    "freeze_set_by": _name("freeze", "user", "freeze {of} was set by {value}"),
    "freeze_ended": _number("freeze", "time_ms", "freeze {of} was ended at {value}"),
    "freeze_ended_by": _name("freeze", "user", "freeze {of} was ended by {value}"),
    "freeze_holds": _word("freeze", "freeze {of} stops plans now: {value}", "yes", "no"),
    "freeze_tier": _word("freeze", "freeze {of} stops plans from tier {value} on", *TIERS),
    "freeze_until": _number("freeze", "time_ms", "freeze {of} ends at {value}"),
    "freeze_text": _text("freeze", "freeze {of}: {value}"),
    "incident_opened": _number("incident", "time_ms", "incident {of} was opened at {value}"),
    "incident_state": _word("incident", "incident {of} is {value}", "open", "claimed", "resolved", "closed"),
    "incident_since": _number("incident", "time_ms", "incident {of} is in its state since {value}"),
    "incident_severity": _word("incident", "incident {of} is {value}", "info", "warning", "critical"),
    "incident_owner": _name("incident", "user", "incident {of} is {value}'s"),
    "incident_title": _text("incident", "incident {of}: {value}"),
    "review_opened": _number("review", "time_ms", "review {of} was opened at {value}"),
    "review_forced": _word("review", "review {of} is of a break-glass: {value}", "yes", "no"),
    "review_by": _name("review", "user", "review {of} is about what {value} did"),
    "review_proposal": _name("review", "proposal", "review {of} is of {value}"),
    "review_text": _text("review", "review {of}: {value}"),
    "runbook_approved_by": _name("runbook", "user", "runbook {of} was approved by {value}"),
    "runbook_retired_by": _name("runbook", "user", "runbook {of} was retired by {value}"),
    "audit_trouble": _text("cell", "the audit: {value}"),
}
"""Metric -> what it is: all that any fact is about."""

_ONE = re.compile(r"(\{value\} (?:queued |silent |cordoned |draining )?(?:workload|node|task|time|vote))s\b")
"""What is said of one and of several."""
_COUNTED = re.compile(r"\{value\} ((?:queued |silent |cordoned |draining )?(?:workload|node|task|time|vote))s\b")
_TOKEN = re.compile(r"[a-z][a-z_]{0,40}")


def is_word(metric: FactMetric, value: str) -> bool:
    """True for one of the words that the metric can be. Kinds of findings are an open list of tokens of ours."""
    return value in metric.words or (not metric.words and _TOKEN.fullmatch(value) is not None)


def with_unit(value: int | str, unit: FactUnit) -> str:
    """A value with its unit, as people read it."""
    if isinstance(value, str):
        return value
    match unit:
        case "gpu" | "cpu":
            return f"{whole(value)} {unit.upper()}"
        case "mib":
            return f"{value / 1024:,.4g} GiB"
        case "seconds":
            return lasting(value)
        case "permille":
            return f"{value / 10:,.4g} %"
        case "microusd":
            return usd(value)
        case "microusd_hour":
            return f"{usd(value)}/h"
        case "time_ms":
            return utc(value)
        case _:
            return f"{value:,}"


def value_of(fact: Fact) -> str:
    """A fact's value with its unit; of a count, with what is counted: "41 workloads"."""
    counted = _COUNTED.search(METRICS[fact.metric].says) if fact.unit == "count" else None
    if counted is None:
        return with_unit(fact.value, fact.unit)
    return f"{with_unit(fact.value, fact.unit)} {counted[1]}{'' if fact.value == 1 else 's'}"


def lasting(seconds: int) -> str:
    """As in "45 s", "41 min", "3.2 h", "5.1 d": rounded down, at most two digits are lost."""
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 2 * 3600:
        return f"{seconds // 60} min"
    if seconds < 48 * 3600:
        return f"{seconds * 10 // 3600 / 10:g} h"
    return f"{seconds * 10 // 86_400 / 10:,g} d"


def fact(metric: str, subject: str, value: int | str, *, tenant: str = "") -> Fact:
    """A fact that has no id yet."""
    meaning = METRICS[metric]
    says = _ONE.sub(r"\1", meaning.says) if value == 1 and meaning.unit == "count" else meaning.says
    text = says.format(of=subject, value=with_unit(value, meaning.unit))
    if metric == "workload_reason" and value == "none":
        text = f"workload {subject} waits for nothing"
    return Fact(
        id="", metric=metric, kind=meaning.of, subject=subject, tenant=tenant, value=value, unit=meaning.unit, text=text
    )
