"""Facts of a shift: what happened, and what is left open, for hand-overs and incident summaries.

They are read from the audit, the plans, the policy and the state. Plans and votes have wall-clock times; nodes and work
have times of the cell's clock, which is the same in a cell that runs in real time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Connection, func, select

from engine.model.columns import view
from engine.model.list_queries import Query, Term
from engine.model.specs import NodeState, WorkloadState
from runbooks.actions.catalogue import CATALOG
from runbooks.audit import reader
from runbooks.audit.log import record_table
from runbooks.drafts.typed_draft import Fact
from runbooks.drafts.vocabulary import ACTED_ON, fact
from runbooks.gate import store
from runbooks.gate.run_limits import freeze_words
from runbooks.plans import typed_plan
from runbooks.plans.queries import AuditQuery, AuditRow

if TYPE_CHECKING:
    from engine.control import Engine
    from runbooks.gate.approval_gate import Gate
    from runbooks.plans.typed_plan import Proposal
    from runbooks.procedures.registry import EngineCall


MAX_OPEN = 10
"""Plans that are told one by one, of those that are under way or wait, and of those that have ended."""
MAX_ENDED = 8
MAX_NODES = 8
MAX_INCIDENTS = 200
"""Newest incidents that are looked through."""
MAX_OTHERS = 4
"""Freezes, reviews, policies, runbooks."""
MAX_RECORDS = 10_000
"""Of the audit, that are looked through: a shift has hundreds."""
MAX_SAMPLE_AWAY_MS = 10 * 60_000
"""From the beginning of a shift to the measurement that tells how full the cell was then."""
APART_S = 60
"""Seconds between the two clocks from which on it is said."""
_UNDER_WAY: tuple[typed_plan.State, ...] = (
    "paused", "rollback_failed", "executing", "verifying", "rolling_back", "approved", "awaiting",
)  # fmt: skip
"""What is open, the most urgent first."""
_COUNTED = ("verified", "failed", "rolled_back", "rollback_failed", "rejected", "expired", "cancelled")


def shift_facts(call: EngineCall, gate: Gate, *, since_ms: int, speed: float = 1.0) -> tuple[Fact, ...]:
    """The facts from `since_ms` (cell time) until now. `speed`: cell milliseconds per wall-clock millisecond."""
    now_ms, wall_ms = call(lambda engine: (engine.now_ms, gate.policies.clock()))
    wall_since = wall_ms - int(max(0, now_ms - since_ms) / max(speed, 1e-6))
    since_ms = max(0, since_ms)
    told = [fact("shift_since", "", since_ms)]
    if abs(wall_ms - now_ms) > APART_S * 1000:
        told.append(fact("shift_wall_apart_s", "", abs(wall_ms - now_ms) // 1000))
    told += call(partial(_counts, wall_since=wall_since))
    for id_ in call(partial(_open_plans, wall_since=wall_since)):
        told += _plan(call(partial(_shown, gate, id_)))
    for part in (_downtimes, _ended_work, _lost_nodes, _out_of_use, _closed_queues):
        told += call(partial(part, since_ms=since_ms))
    told += call(lambda engine: tuple(_records(engine, wall_since)))
    told += call(lambda _: tuple(_waiting(gate)))
    told += call(lambda _: tuple(_incidents(gate, wall_since)))
    return tuple(told)


def _shown(gate: Gate, id_: str, _: Engine) -> Proposal:
    return gate.proposal(id_)


# -- plans -------------------------------------------------------------------------------------------------------------


def _counts(engine: Engine, wall_since: int) -> tuple[Fact, ...]:
    """Counts of plans proposed, and of those that ended by state."""

    def read(connection: Connection) -> tuple[Fact, ...]:
        if not store.exist(connection):
            return (fact("shift_proposed", "", 0), fact("shift_verified", "", 0))
        columns = store.PROPOSAL.c
        proposed = select(func.count()).select_from(store.PROPOSAL).where(columns.created_ms >= wall_since)
        by_state = select(columns.state, func.count()).where(columns.since_ms >= wall_since).group_by(columns.state)
        ended: dict[str, int] = {row[0]: row[1] for row in connection.execute(by_state)}
        told = [fact("shift_proposed", "", connection.execute(proposed).scalar_one())]
        for state in _COUNTED:
            if ended.get(state) or state == "verified":
                told.append(fact(f"shift_{state}", "", ended.get(state, 0)))
        return tuple(told)

    return engine.recorded(read)


def _open_plans(engine: Engine, wall_since: int) -> tuple[str, ...]:
    """Ids: those under way or waiting, the most urgent first, then those that ended meanwhile, the newest first. What
    was carried out is told before what only lapsed."""

    def read(connection: Connection) -> tuple[str, ...]:
        if not store.exist(connection):
            return ()
        rows = store.in_states(connection, _UNDER_WAY, 200)
        rows.sort(key=lambda row: (_UNDER_WAY.index(row.state), row.expires_ms))
        since = (store.PROPOSAL.c.since_ms >= wall_since) & store.PROPOSAL.c.state.in_(tuple(typed_plan.ENDED))
        order = ((store.PROPOSAL.c.executed_ms == 0), store.PROPOSAL.c.since_ms.desc())
        ended = select(store.PROPOSAL).where(since).order_by(*order).limit(MAX_ENDED)
        lapsed = [store.ProposalRow(**row) for row in connection.execute(ended).mappings()]
        return tuple(dict.fromkeys(row.id for row in (*rows[:MAX_OPEN], *lapsed)))

    return engine.recorded(read)


def _plan(shown: Proposal) -> Iterable[Fact]:
    """The facts of one plan."""
    id_, plan = shown.id, shown.plan
    yield fact("proposal_state", id_, shown.state)
    yield fact("proposal_title", id_, shown.title)
    yield fact("proposal_tier", id_, shown.tier)
    for step in plan.steps:
        yield fact("proposal_action", id_, step.act.action)
        kind = CATALOG[step.act.action].kind
        if kind in ACTED_ON:
            for target in step.act.targets[:3]:
                yield fact(f"proposal_on_{kind}", id_, target)
    yield fact("proposal_author", id_, plan.author.subject)
    if plan.requester and plan.requester != plan.author.subject:
        yield fact("proposal_requester", id_, plan.requester)
    yield fact("proposal_asked", id_, shown.created_ms)
    for vote in shown.votes:
        if vote.verdict == "approve" and not vote.counts:
            yield fact("proposal_approver", id_, vote.subject)
        if vote.verdict == "reject":
            yield fact("proposal_rejecter", id_, vote.subject)
    yield fact("proposal_steps", id_, len(plan.steps))
    done = [step for step in shown.standing if step.state != "waiting"]
    yield fact("proposal_steps_done", id_, len(done))
    if done:
        yield fact("proposal_executed", id_, min(step.at_ms for step in done))
        yield fact("proposal_checks", id_, sum(len(step.verified) for step in done))
    if shown.breakglass:
        yield fact("proposal_breakglass", id_, "yes")
    if shown.state in typed_plan.OPEN:
        yield fact("proposal_expires", id_, shown.expires_ms)
        yield fact("proposal_needs", id_, shown.needs)
        if shown.need:
            yield fact("proposal_waits_for", id_, shown.need)
    if shown.reason:
        yield fact("proposal_reason", id_, shown.reason)
    if shown.note:
        yield fact("proposal_note", id_, shown.note)


# -- the cell ----------------------------------------------------------------------------------------------------------


def _downtimes(engine: Engine, since_ms: int) -> tuple[Fact, ...]:
    """Times in which no engine decided, the newest last."""
    times = engine.state.downtimes.since(since_ms)[-MAX_OTHERS:]
    return tuple(
        fact(metric, "", at_ms)
        for time in times
        for metric, at_ms in zip(("downtime_began", "downtime_ended"), time, strict=True)
    )


def _ended_work(engine: Engine, since_ms: int) -> tuple[Fact, ...]:
    """Counts of work started, finished and failed, and the queues in which most failed."""
    w = engine.state.workloads
    ended, states = view(w.ended), view(w.state)
    late = ended >= since_ms
    told = [fact("shift_started", "", int(np.count_nonzero(view(w.started) >= since_ms)))]
    for metric, state in (
        ("shift_finished", WorkloadState.FINISHED), ("shift_work_failed", WorkloadState.FAILED),
        ("shift_work_cancelled", WorkloadState.CANCELLED),
    ):  # fmt: skip
        told.append(fact(metric, "", int(np.count_nonzero(late & (states == state)))))
    failed = np.bincount(view(w.queue)[late & (states == WorkloadState.FAILED)], minlength=1)
    for row in np.argsort(-failed, kind="stable")[:3].tolist():
        if failed[row]:
            told.append(fact("queue_failed", engine.state.queues.specs[row].name, int(failed[row])))
    before = [sample for sample in engine.recent.samples if abs(sample[0] - since_ms) <= MAX_SAMPLE_AWAY_MS]
    if before:
        told.append(fact("shift_waiting_before", "", before[-1][2]))
        told.append(fact("shift_use_before_permille", "", before[-1][1]))
        told.append(fact("shift_use_permille", "", engine.recent.samples[-1][1]))
    return tuple(told)


def _lost_nodes(engine: Engine, since_ms: int) -> tuple[Fact, ...]:
    """The number of node losses, and the latest of them."""
    ids = engine.state.capacity.node_ids
    losses = engine.state.failures.losses.items()
    lost = sorted((at_ms, ids[node]) for node, times in losses for at_ms in times if at_ms >= since_ms)
    newest = {id_: at_ms for at_ms, id_ in lost}
    told = [fact("shift_nodes_lost", "", len(lost))]
    states = view(engine.state.capacity.state)
    for id_, at_ms in sorted(newest.items(), key=lambda item: (-item[1], item[0]))[:MAX_NODES]:
        told.append(fact("node_lost_at", id_, at_ms))
        row = engine.state.capacity.row_of.get(id_)
        if row is not None and states[row] != NodeState.REMOVED:
            told.append(fact("node_state", id_, NodeState(int(states[row])).label))
    return tuple(told)


def _out_of_use(engine: Engine, since_ms: int) -> tuple[Fact, ...]:
    """Nodes that take no work now, those longest so first, and those that their provider takes back."""
    c = engine.state.capacity
    states, told = view(c.state), []
    for state in (NodeState.SUSPECT, NodeState.DOWN, NodeState.DRAINING, NodeState.CORDONED):
        rows = np.flatnonzero(states == state)
        longest = rows[np.argsort(view(c.since)[rows], kind="stable")]
        for row in longest[: MAX_NODES // 2].tolist():
            told.append(fact("node_state", c.node_ids[row], state.label))
            told.append(fact("node_since_s", c.node_ids[row], (engine.now_ms - c.since[row]) // 1000))
            told.append(fact("node_workloads", c.node_ids[row], engine.state.allocations.workloads_on(row)))
            told.append(fact("node_pool", c.node_ids[row], c.pools[c.pool[row]].name))
            if note := engine.node(c.node_ids[row]).note:
                told.append(fact("node_note", c.node_ids[row], note))
    doomed = view(c.doomed)
    ending = np.flatnonzero((doomed >= 0) & (states != NodeState.REMOVED))
    for row in ending[np.argsort(doomed[ending], kind="stable")][:MAX_OTHERS].tolist():
        told.append(fact("node_ends", c.node_ids[row], int(doomed[row])))
        told.append(fact("node_workloads", c.node_ids[row], engine.state.allocations.workloads_on(row)))
    return tuple(told)


def _closed_queues(engine: Engine, since_ms: int) -> tuple[Fact, ...]:
    """Queues that are held or draining themselves, with what waits there."""
    where = (Term("state", "!=", "open"),)
    page = engine.query(Query(kind="queues", columns=("name", "state", "queued", "held"), where=where, limit=8))
    told = []
    for name, state, queued, held in page.rows:
        told += [fact("queue_mode", name, state), fact("queue_waiting", name, queued)]
        if held:
            told.append(fact("queue_held", name, held))
    return tuple(told)


# -- what else is on record --------------------------------------------------------------------------------------------


def _records(engine: Engine, wall_since: int) -> Iterable[Fact]:
    """Freezes, policies and runbooks that changed; votes and names that were refused; messages that were lost."""
    numbers = engine.recorded(partial(_by_type, wall_since=wall_since))
    for metric, types in (
        ("shift_refused_votes", ("vote.refused", "breakglass.refused", "exec.refused")),
        ("shift_refused_logins", ("auth.refused",)), ("shift_messages_failed", ("outbox.failed",)),
    ):  # fmt: skip
        if count := sum(len(numbers.get(type_, ())) for type_ in types):
            yield fact(metric, "", count)
    for type_ in (
        "breakglass.used", "freeze.set", "freeze.ended", "policy.changed", "runbook.approved", "runbook.retired",
    ):  # fmt: skip
        for seq in numbers.get(type_, ())[:MAX_OTHERS]:
            query = AuditQuery(seq=seq, limit=1)
            for row in engine.recorded(partial(reader.page, query=query)).rows:
                yield from _record(row)


def _by_type(connection: Connection, wall_since: int) -> dict[str, list[int]]:
    """Type -> numbers of its records, the newest first, among the last MAX_RECORDS."""
    columns = record_table.c
    newest = select(columns.seq, columns.type, columns.at_ms).order_by(columns.seq.desc()).limit(MAX_RECORDS)
    found: dict[str, list[int]] = {}
    for seq, type_, at_ms in connection.execute(newest):
        if at_ms >= wall_since:
            found.setdefault(type_, []).append(seq)
    return found


def _record(row: AuditRow) -> Iterable[Fact]:
    match row.type:
        case "breakglass.used":
            yield fact("proposal_broken_by", row.proposal, row.subject)
        case "freeze.set" | "freeze.ended":
            verb, name = row.type.removeprefix("freeze."), str(row.data.get("name", ""))
            yield fact(f"freeze_{verb}", name, row.at_ms)
            yield fact(f"freeze_{verb}_by", name, row.subject)
        case "policy.changed":
            name = str(row.data.get("candidate", ""))
            yield fact("policy_changed", name, row.at_ms)
            yield fact("policy_changed_by", name, row.subject)
        case "runbook.approved" | "runbook.retired":
            yield fact(f"{row.type.replace('.', '_')}_by", str(row.data.get("runbook", "")), row.subject)


def _waiting(gate: Gate) -> Iterable[Fact]:
    """Freezes that are set, reviews that are open, policies that wait for votes, and an audit that is not well."""
    for frozen in gate.freezes()[:MAX_OTHERS]:
        name = frozen.spec.name
        yield fact("freeze_holds", name, "yes" if frozen.holds else "no")
        yield fact("freeze_tier", name, frozen.spec.tier)
        yield fact("freeze_text", name, freeze_words(frozen.spec))
        if frozen.spec.until_ms is not None:
            yield fact("freeze_until", name, frozen.spec.until_ms)
    for review in [review for review in gate.reviews() if not review.closed_ms][:MAX_OTHERS]:
        id_ = str(review.id)
        yield fact("review_forced", id_, "yes" if review.forced else "no")
        yield fact("review_opened", id_, review.opened_ms)
        yield fact("review_by", id_, review.subject)
        yield fact("review_text", id_, review.text)
        if review.proposal:
            yield fact("review_proposal", id_, review.proposal)
    for candidate in gate.policies.looked(gate.policies.candidates):
        if candidate.state == "awaiting":
            yield fact("policy_needs", candidate.id, candidate.needs)
            yield fact("policy_expires", candidate.id, candidate.expires_ms)
    if gate.audit.error:
        yield fact("audit_trouble", "", gate.audit.error)


def _incidents(gate: Gate, wall_since: int) -> Iterable[Fact]:
    """Incidents that are not closed, and those that were resolved or closed in the shift."""
    found = gate.incidents.incidents((), MAX_INCIDENTS)
    told = [each for each in found if each.state != "closed" or each.since_ms >= wall_since]
    for each in sorted(told, key=lambda one: (_STATES.index(one.state), one.opened_ms))[:MAX_OPEN]:
        yield fact("incident_state", each.id, each.state)
        yield fact("incident_severity", each.id, each.severity)
        yield fact("incident_opened", each.id, each.opened_ms)
        yield fact("incident_since", each.id, each.since_ms)
        yield fact("incident_title", each.id, each.title)
        if each.owner:
            yield fact("incident_owner", each.id, each.owner)


_STATES = ("open", "claimed", "resolved", "closed")
