"""Looking again: whether what was approved still holds, before a plan begins and before each of its later steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection

from engine.model.errors import NotFoundError, RefusedError
from runbooks.actions import catalogue, risk, target_readings
from runbooks.gate import store
from runbooks.gate.composition import scope_of, tier_of_all
from runbooks.gate.policy_versions import Policies
from runbooks.gate.proposal_status import ProposalStatus
from runbooks.gate.runbook_approvals import why_not_usable
from runbooks.gate.store import ProposalRow
from runbooks.plans import proposal_states
from runbooks.plans.amounts import span, utc
from runbooks.plans.checks import evaluate
from runbooks.plans.typed_plan import Difference, Plan
from runbooks.policy import approval_policy

if TYPE_CHECKING:
    from engine.control import Engine

GO_ON_WITHIN_MS = 24 * 3_600_000
"""How long after it began what was paused may go on: votes are not for ever."""


def what_differs(engine: Engine, row: ProposalRow, plan: Plan, number: int) -> tuple[Difference, ...]:
    """How the targets of a step differ from what was shown, in what it depends on; its preconditions that no longer
    hold; its tier, if that has risen."""
    step = plan.steps[number]
    action = catalogue.find(step.act.action)
    try:
        now = target_readings.read(engine, action, step.act)
    except (NotFoundError, RefusedError) as gone:
        return (Difference(what=f"step {step.id}", shown="possible", now="not possible", text=gone.problem),)
    found = [
        difference
        for old, new in zip(step.shown, now, strict=True)
        if (difference := target_readings.difference(action, old, new)) is not None
    ]
    pools, running = target_readings.pool_nodes(engine), target_readings.bound(engine)
    tier, why = risk.tier_and_why(action, step.act, now, pools, running)
    if tier > step.tier:
        text = f"it was {step.tier} and is {tier} now: {'; '.join(why)}"
        found.append(Difference(what=f"tier of step {step.id}", shown=step.tier, now=tier, text=text))
    whole, why_whole = tier_of_all(plan.steps, plan.blast, engine)
    if whole > plan.tier:
        text = f"the plan was {plan.tier} and is {whole} now: {'; '.join(why_whole)}"
        found.append(Difference(what=f"tier of {row.id}", shown=plan.tier, now=whole, text=text))
    for check in step.pre:
        finding = evaluate(engine, check)
        if finding.verdict != "success":
            found.append(Difference(what=f"precondition of {step.id}", shown="held", now="fails", text=finding.found))
    return tuple(found)


def why_not_now(
    connection: Connection, policies: Policies, standing: ProposalStatus, row: ProposalRow, plan: Plan, now_ms: int
) -> RefusedError | None:
    """Freezes and limits, which pass: what they are in the way of stays approved, or paused."""
    in_force = policies.current(connection)
    by_hand, scope = policies.freezes(connection), scope_of(plan.steps)
    window = approval_policy.frozen(in_force, by_hand, now_ms, plan.tier, scope)
    if not window and plan.policy_digest != in_force.digest():
        window = approval_policy.frozen(policies.get(connection, plan.policy_digest), (), now_ms, plan.tier, scope)
    if window and not (row.breakglass and in_force.break_glass.through_freezes):
        return RefusedError(f"{row.id} is in the freeze '{window}'", "Execute it when that is over, or break the glass")
    if row.executed_ms and now_ms > row.executed_ms + GO_ON_WITHIN_MS:
        return RefusedError(
            f"{row.id} began at {utc(row.executed_ms)}, and nobody has let it go on since",
            "Roll it back, or propose what is left of it",
        )
    most_ms = plan.limits.duration_ms
    if most_ms is not None and row.executed_ms and now_ms > row.executed_ms + most_ms:
        return RefusedError(
            f"{row.id} was to be done within {span(most_ms)} and began at {utc(row.executed_ms)}",
            "Roll it back, or propose what is left of it",
        )
    if plan.runbook is not None:
        unusable = why_not_usable(connection, policies, plan.runbook)
        if unusable:
            return RefusedError(f"{row.id} may not go on: {unusable}", "Propose it from what is approved now")
    if plan.rolls_back:
        first = store.found(connection, plan.rolls_back)
        if (first.state, "taken_back") not in proposal_states.EDGES:
            return RefusedError(f"{first.id} is {first.state.replace('_', ' ')} now", "There is nothing to roll back")
    rules = standing.broken_rules(connection, row, plan, now_ms)
    if rules:
        return RefusedError(
            f"{row.id} would exceed what may be done in an hour: {'; '.join(rules)}", "Execute it later"
        )
    return None
