"""Votes on proposals: whose counts, and what the last one leads to. Who may vote is the approval policy's to say; votes
name the digest of the plan that was shown."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, insert, select

from engine.model.errors import RefusedError
from runbooks.audit.log import Audit
from runbooks.audit.row_digests import kept
from runbooks.gate import store
from runbooks.gate.composition import scope_of
from runbooks.gate.policy_versions import Policies, kept_signature, used_nonce
from runbooks.gate.proposal_status import ProposalStatus
from runbooks.gate.store import VOTE, ProposalRow
from runbooks.people.identity import Actor, Signed
from runbooks.plans import proposal_states
from runbooks.plans.amounts import utc
from runbooks.plans.typed_plan import Plan
from runbooks.policy import approval_policy
from runbooks.policy.approval_policy import Verdict, Vote


class Voting:
    """Takes votes, from inside a transaction."""

    def __init__(self, audit: Audit, policies: Policies, standing: ProposalStatus) -> None:
        self._audit = audit
        self._policies = policies
        self._standing = standing

    def take(
        self,
        connection: Connection,
        row: ProposalRow,
        actor: Actor,
        digest: str,
        verdict: Verdict,
        comment: str,
        signed: Signed | None,
        now_ms: int,
    ) -> tuple[ProposalRow, RefusedError | None]:
        """The proposal as it then is, and why the vote is refused. A refusal is recorded, so it is not raised here."""
        plan, _, _ = store.plan_of(connection, row)
        why_not, actor = self._why_not(connection, row, plan, actor, digest, verdict, comment, signed, now_ms)
        if why_not is not None:
            self._record_refused(connection, row, actor, verdict, why_not, signed)
            return row, why_not
        sealed = self._audit.seal(connection, comment) if comment else None
        mine = (VOTE.c.number == row.number) & (VOTE.c.revision == row.revision) & (VOTE.c.subject == actor.subject)
        values = {
            "number": row.number, "revision": row.revision, "digest": digest, "subject": actor.subject,
            "account": actor.account, "key": actor.key, "verdict": verdict, "at_ms": now_ms,
            "signed": msgspec.json.encode(signed) if signed else None,
            "comment": msgspec.json.encode(sealed) if sealed else None,
        }  # fmt: skip
        if connection.execute(select(VOTE.c.id).where(mine)).first() is not None:
            rows = self._audit.rewrite(connection, VOTE, mine, values, row.id)
        else:
            made = connection.execute(insert(VOTE).values(**values))
            rows = kept(VOTE, {**values, "id": store.new_id(made)})
        self._audit.append(
            connection, f"vote.{verdict}", actor, proposal=row.id, revision=row.revision, plan_digest=digest,
            policy_digest=row.policy, data={"key": values["key"], **kept_signature(signed)},
            private=(sealed,) if sealed else (), rows=rows | used_nonce(connection, signed),
        )  # fmt: skip
        if verdict == "reject":
            return store.move(
                connection, self._audit, row, "rejected", actor, now_ms, note=f"rejected by {actor.subject}"
            ), None
        if row.state == "awaiting" and not self._standing.tally(connection, row, plan).missing:
            need = self._standing.need(connection, plan)
            row = store.move(
                connection, self._audit, row, "approved", actor, now_ms, expires_ms=now_ms + need.window_ms
            )
        return row, None

    def _why_not(
        self,
        connection: Connection,
        row: ProposalRow,
        plan: Plan,
        actor: Actor,
        digest: str,
        verdict: Verdict,
        comment: str,
        signed: Signed | None,
        now_ms: int,
    ) -> tuple[RefusedError | None, Actor]:
        """Why the vote does not count, and who it is by: a valid signature proves its subject."""
        if row.state not in proposal_states.OPEN or (row.state == "approved" and verdict != "reject"):
            return self._standing.too_late(connection, row), actor
        if digest != row.digest:
            since = f", revision {row.revision} of {utc(row.since_ms)}" if row.revision > 1 else ""
            problem = f"the digest given is not that of {row.id}{since}"
            return RefusedError(problem, "Look at the proposal again and vote on what it shows"), actor
        try:
            actor = self._policies.proved(connection, actor, signed, "vote", row, verdict, now_ms)
        except RefusedError as error:
            return error, actor
        in_force, scope = self._policies.current(connection), scope_of(plan.steps)
        not_for = approval_policy.why_not_token(actor, "vote", scope)
        if not_for:
            return RefusedError(f"you may not vote on {row.id}: {not_for}", "Use another token"), actor
        # By whatever name they come: one person has one vote.
        actor = msgspec.structs.replace(
            actor, subject=approval_policy.subject_of(in_force, actor.subject, actor.account)
        )
        need = self._standing.need(connection, plan)
        # A yes is counted again until all are there, and then the signature of the request it came by is gone.
        key = actor.key if signed or verdict != "approve" else ""
        vote = Vote(
            subject=actor.subject, kind=actor.kind, account=actor.account, key=key, verdict=verdict, at_ms=now_ms
        )
        if verdict == "abstain":
            no_voter = approval_policy.may(in_force, actor, "vote", plan.tier, scope, owner=self._policies.owner)
            why_not = f"may not be given: {no_voter}" if no_voter else ""
        else:
            why_not = approval_policy.why_not_counted(
                in_force, vote, plan.author, plan.requester, need, scope, owner=self._policies.owner
            )
            by_account = msgspec.structs.replace(actor, signed=False)
            if (
                why_not
                and actor.kind == "human"
                and key != actor.key
                and not approval_policy.person_of(in_force, by_account)
            ):
                why_not = "is not signed, and comes from an OS account that is not theirs"
        remedy = f"muster show {row.id} says whose votes it needs"
        if why_not:
            return RefusedError(f"your vote on {row.id} does not count: it {why_not}", remedy), actor
        if verdict == "approve" and need.reason and not comment.strip():
            return RefusedError(f"{row.id} is {plan.tier}: a yes must say why", "Give a reason with the vote"), actor
        before = self._standing.votes(connection, row)
        again = any(kept.subject == actor.subject and kept.verdict == verdict for kept in before)
        # One that did not count for a while and does again may be all that was missing: saying so again counts it.
        if again and (verdict != "approve" or self._standing.tally(connection, row, plan).missing):
            return RefusedError(f"{actor.subject} has voted so on {row.id} already", remedy), actor
        return None, actor

    def kept(
        self, connection: Connection, row: ProposalRow, actor: Actor, digest: str, signed: Signed | None, now_ms: int
    ) -> tuple[bool, RefusedError | None]:
        """Whether there is a yes of theirs to a plan that something kept from being carried out: going on needs no
        other. And why not, where a signature that comes with the request does not hold; that is recorded."""
        if digest != row.digest:
            return False, None  # and nothing that is no digest is asked of the database
        mine = (VOTE.c.subject == actor.subject) & (VOTE.c.verdict == "approve") & (VOTE.c.digest == row.digest)
        where = (VOTE.c.number == row.number) & (VOTE.c.revision == row.revision) & mine
        voted = connection.execute(select(VOTE.c.id).where(where)).first() is not None
        if not voted or row.state not in ("approved", "executing"):
            return False, None
        try:
            self._policies.proved(connection, actor, signed, "vote", row, "approve", now_ms)
        except RefusedError as error:
            self._record_refused(connection, row, actor, "approve", error, signed)
            return False, error
        if signed is not None:
            self._audit.append(
                connection, "vote.repeated", actor, proposal=row.id, revision=row.revision, plan_digest=digest,
                policy_digest=row.policy, rows=used_nonce(connection, signed),
            )  # fmt: skip
        return True, None

    def _record_refused(
        self,
        connection: Connection,
        row: ProposalRow,
        actor: Actor,
        verdict: Verdict,
        why: RefusedError,
        signed: Signed | None,
    ) -> None:
        self._audit.append(
            connection, "vote.refused", actor, proposal=row.id, revision=row.revision, plan_digest=row.digest,
            policy_digest=row.policy, data={"verdict": verdict, "why": why.problem[:500]},
            rows=used_nonce(connection, signed),
        )  # fmt: skip
