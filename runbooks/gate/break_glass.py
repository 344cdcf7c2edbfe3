"""Breaking the glass: carrying out alone, and at once, what others would have had to approve. It is told to all
channels, and a review of it stays open until another person closes it; until then the same person cannot do it again.

Reviews that a plan opens are kept beside those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select

from engine.model.errors import RefusedError
from runbooks.audit.log import Audit
from runbooks.gate import store
from runbooks.gate.composition import scope_of
from runbooks.gate.outbox import Outbox
from runbooks.gate.policy_versions import Policies, kept_signature, used_nonce
from runbooks.gate.proposal_status import ProposalStatus
from runbooks.gate.store import REVIEW, ProposalRow
from runbooks.people.identity import Actor, Signed
from runbooks.plans.typed_plan import Plan, Review
from runbooks.policy import approval_policy
from runbooks.policy.approval_policy import Policy

GLASS_MS = 30 * 60_000
"""How long after the glass was broken the plan may begin."""


class BreakGlassHandler:
    """Works from inside a transaction."""

    def __init__(self, audit: Audit, policies: Policies, standing: ProposalStatus, outbox: Outbox) -> None:
        self._audit = audit
        self._policies = policies
        self._standing = standing
        self._outbox = outbox

    def use(
        self,
        connection: Connection,
        row: ProposalRow,
        actor: Actor,
        digest: str,
        reason: str,
        signed: Signed | None,
        now_ms: int,
    ) -> RefusedError | None:
        """Approve it, open its review and tell the channels; or why not. A refusal is recorded, so it is not raised."""
        plan, words, _ = store.plan_of(connection, row)
        why_not, who = self._why_not(connection, row, plan, actor, digest, reason, signed, now_ms)
        if why_not is not None:
            self._audit.append(
                connection, "breakglass.refused", who, proposal=row.id, revision=row.revision,
                plan_digest=row.digest, policy_digest=row.policy, data={"why": why_not.problem[:500]},
                rows=used_nonce(connection, signed),
            )  # fmt: skip
            return why_not
        sealed = self._audit.seal(connection, reason)
        self._audit.append(
            connection, "breakglass.used", who, proposal=row.id, revision=row.revision, plan_digest=row.digest,
            policy_digest=row.policy, data=kept_signature(signed), private=(sealed,),
            rows=used_nonce(connection, signed),
        )  # fmt: skip
        row = store.move(
            connection, self._audit, row, "broke_glass", who, now_ms,
            breakglass=True, expires_ms=now_ms + GLASS_MS, note=f"glass broken by {who.subject}",
        )  # fmt: skip
        self._open_review(connection, row, who, now_ms)
        in_force = self._policies.current(connection)
        for channel in in_force.paged():
            self._outbox.put(
                connection, f"{row.digest}:breakglass:{channel}", row.number, channel,
                f"{who.subject} broke the glass for {row.id}: {words.title}", now_ms,
            )  # fmt: skip
        return None

    def _why_not(
        self,
        connection: Connection,
        row: ProposalRow,
        plan: Plan,
        actor: Actor,
        digest: str,
        reason: str,
        signed: Signed | None,
        now_ms: int,
    ) -> tuple[RefusedError | None, Actor]:
        """Why it may not be done, and who it is by: a valid signature proves its subject."""
        if row.state != "awaiting":
            return self._standing.too_late(connection, row), actor
        if digest != row.digest:
            return RefusedError(f"the digest given is not that of {row.id}", "Look at the proposal again"), actor
        try:
            actor = self._policies.proved(connection, actor, signed, "breakglass", row, "approve", now_ms)
        except RefusedError as error:
            return error, actor
        in_force = self._policies.current(connection)
        why_not = approval_policy.may(
            in_force, actor, "break_glass", plan.tier, scope_of(plan.steps), owner=self._policies.owner
        )
        if why_not:
            return RefusedError(f"you may not break the glass: {why_not}", "Ask an approver"), actor
        if self._standing.need(connection, plan).signed and signed is None:
            remedy = "An account is not enough to do alone what others would have had to approve"
            return RefusedError(f"breaking the glass for {row.id} must be signed with your own key", remedy), actor
        least = in_force.break_glass.reason_least
        if len("".join(reason.split())) < least:
            return RefusedError("breaking the glass needs a reason", f"Give one of {least} characters or more"), actor
        if plan.tier == "T3" and (plan.author.kind != "human" or plan.origin in approval_policy.MACHINES):
            remedy = "Propose it yourself"
            return RefusedError("what a machine drafted and is hard to undo needs its votes", remedy), actor
        unreviewed = select(REVIEW.c.subject).where(REVIEW.c.forced & (REVIEW.c.closed_ms == 0))
        if any(self._is_same(in_force, actor, subject) for subject in connection.execute(unreviewed).scalars()):
            remedy = "Have another person close its review"
            return RefusedError("your last break-glass is not reviewed yet", remedy), actor
        return None, actor

    def _is_same(self, in_force: Policy, actor: Actor, subject: str) -> bool:
        """Whether an actor is whom a subject names, by their account or by their name."""
        mine = approval_policy.subject_of(in_force, actor.subject, actor.account)
        return mine == approval_policy.subject_of(in_force, subject, subject)

    def _open_review(self, connection: Connection, row: ProposalRow, actor: Actor, now_ms: int) -> None:
        values = {
            "number": row.number, "about": row.id, "subject": actor.subject, "forced": True,
            "text": f"break-glass of {row.id}", "opened_ms": now_ms,
        }  # fmt: skip
        number, rows = store.add_review(connection, values)
        self._audit.append(
            connection, "review.opened", actor, proposal=row.id, revision=row.revision, plan_digest=row.digest,
            data={"review": number, "forced": True}, rows=rows,
        )  # fmt: skip

    def close_review(self, connection: Connection, actor: Actor, review: int, comment: str, now_ms: int) -> None:
        """For a person other than the one it is about. Raises RefusedError."""
        kept = connection.execute(select(REVIEW).where(REVIEW.c.id == review)).mappings().first()
        if kept is None or kept["closed_ms"]:
            raise RefusedError(f"there is no open review {review}", "See muster reviews")
        in_force = self._policies.current(connection)
        why_not = approval_policy.may(in_force, actor, "review", owner=self._policies.owner)
        if not why_not and kept["forced"] and self._is_same(in_force, actor, kept["subject"]):
            why_not = "it is about what you did yourself"
        if why_not:
            raise RefusedError(f"you may not close review {review}: {why_not}", "Ask another approver")
        about = f"P-{kept['number']}" if kept["number"] else ""
        closed = {"closed_ms": now_ms, "closed_by": actor.subject}
        rows = self._audit.rewrite(connection, REVIEW, REVIEW.c.id == review, closed, about)
        sealed = self._audit.seal(connection, comment)
        self._audit.append(
            connection, "review.closed", actor, proposal=about,
            data={"review": review}, private=(sealed,), rows=rows,
        )  # fmt: skip

    def reviews(self, connection: Connection, limit: int) -> tuple[Review, ...]:
        """Those that wait for a person, the oldest first, and then those that were closed, the newest first."""
        order = (REVIEW.c.closed_ms != 0, -REVIEW.c.closed_ms, REVIEW.c.id)
        query = select(REVIEW).order_by(*order).limit(limit)
        return tuple(review_of(values) for values in connection.execute(query).mappings())


def review_of(values: Mapping[Any, Any]) -> Review:
    """A review as it is kept."""
    return Review(
        id=values["id"], about=values["about"], subject=values["subject"], forced=values["forced"],
        text=values["text"], proposal=f"P-{values['number']}" if values["number"] else "",
        opened_ms=values["opened_ms"], closed_ms=values["closed_ms"], closed_by=values["closed_by"],
    )  # fmt: skip
