"""Decisions that let a request through: votes, break-glass, and what needs no vote.

A vote names the digest of the plan that was shown. The approval policy says whose vote counts. Breaking the glass
carries out at once what others would have had to approve: it is told to the channels, and a review stays open until
another person closes it. Reviews that a plan opens are kept beside those.

Submissions and definitions add to a cell and need no vote, only a role; definitions are on record in the same
transaction. Commands run as the account that owns the engine, so only whoever starts the engine can let others run
them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, insert, select

from engine.admission.fleet_routing import BY_TAG
from engine.model.commands import (
    AddNodes,
    AddPools,
    AddPriorityClasses,
    AddQueues,
    AnyCommand,
    Define,
    Recall,
    Submit,
)
from engine.model.errors import MusterError, RefusedError, SpecError
from engine.model.quantities import utc
from runbooks.audit.log import Audit, kept
from runbooks.gate import approval_policy, store
from runbooks.gate.approval_policy import Policy, Verdict, vote_of
from runbooks.gate.composition import scope_of
from runbooks.gate.policy_versions import Policies, kept_signature, used_nonce
from runbooks.gate.proposal_status import ProposalStatus
from runbooks.gate.store import REVIEW, VOTE, Outbox, ProposalRow
from runbooks.plans import typed_plan
from runbooks.plans.identity import OWNER, TCP, Actor, Scope, Signed
from runbooks.plans.typed_plan import Plan, Review

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.model.commands import Receipt
    from runbooks.gate.approval_gate import Gate


class Voting:
    """Takes votes, from inside a transaction."""

    def __init__(self, audit: Audit, policies: Policies, status: ProposalStatus) -> None:
        self._audit = audit
        self._policies = policies
        self._status = status

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
        if row.state == "awaiting" and not self._status.tally(connection, row, plan).missing:
            need = self._status.need(connection, plan)
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
        """The refusal of a vote, if any, and the actor, whom a valid signature proves."""
        if row.state not in typed_plan.OPEN or (row.state == "approved" and verdict != "reject"):
            return self._status.too_late(connection, row), actor
        if digest != row.digest:
            since = f", revision {row.revision} of {utc(row.since_ms)}" if row.revision > 1 else ""
            problem = f"the digest given does not match {row.id}{since}"
            return RefusedError(problem, "Review the proposal again, then vote"), actor
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
        need = self._status.need(connection, plan)
        # A yes is counted again until all are there, and then the signature of the request it came by is gone.
        key = actor.key if signed or verdict != "approve" else ""
        vote = vote_of(msgspec.structs.replace(actor, key=key), verdict, now_ms)
        if verdict == "abstain":
            no_voter = self._policies.why_not(connection, actor, "vote", plan.tier, scope)
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
        remedy = f"muster proposal show {row.id} says whose votes it needs"
        if why_not:
            return RefusedError(f"your vote on {row.id} does not count: it {why_not}", remedy), actor
        if verdict == "approve" and need.reason and not comment.strip():
            return RefusedError(
                f"{row.id} is {plan.tier}: an approval needs a reason", "Give a reason with the vote"
            ), actor
        before = self._status.votes(connection, row)
        again = any(kept.subject == actor.subject and kept.verdict == verdict for kept in before)
        # One that did not count for a while and does again may be all that was missing: saying so again counts it.
        if again and (verdict != "approve" or self._status.tally(connection, row, plan).missing):
            return RefusedError(f"{actor.subject} has already voted so on {row.id}", remedy), actor
        return None, actor

    def kept(
        self, connection: Connection, row: ProposalRow, actor: Actor, digest: str, signed: Signed | None, now_ms: int
    ) -> tuple[bool, RefusedError | None]:
        """True when they have approved a plan whose execution was prevented, so that no other vote is needed. The
        second value is the refusal, recorded, of a signature that does not hold."""
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
            store.add_record(
                connection, self._audit, row, "vote.repeated", actor, {}, rows=used_nonce(connection, signed)
            )
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
        data = {"verdict": verdict, "why": why.problem[:500]}
        store.add_record(connection, self._audit, row, "vote.refused", actor, data, rows=used_nonce(connection, signed))


GLASS_MS = 30 * 60_000
"""How long after the glass was broken the plan may begin."""


class BreakGlassHandler:
    """Works from inside a transaction."""

    def __init__(self, audit: Audit, policies: Policies, status: ProposalStatus, outbox: Outbox) -> None:
        self._audit = audit
        self._policies = policies
        self._status = status
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
            data, rows = {"why": why_not.problem[:500]}, used_nonce(connection, signed)
            store.add_record(connection, self._audit, row, "breakglass.refused", who, data, rows=rows)
            return why_not
        sealed = self._audit.seal(connection, reason)
        self._audit.append(
            connection, "breakglass.used", who, proposal=row.id, revision=row.revision, plan_digest=row.digest,
            policy_digest=row.policy, data=kept_signature(signed), private=(sealed,),
            rows=used_nonce(connection, signed),
        )  # fmt: skip
        row = store.move(
            connection, self._audit, row, "broke_glass", who, now_ms,
            breakglass=True, expires_ms=now_ms + GLASS_MS, note=f"break-glass by {who.subject}",
        )  # fmt: skip
        self._open_review(connection, row, who, now_ms)
        in_force = self._policies.current(connection)
        for channel in in_force.paged():
            self._outbox.put(
                connection, f"{row.digest}:breakglass:{channel}", row.number, channel,
                f"{who.subject} used break-glass for {row.id}: {words.title}", now_ms,
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
        """The refusal, if any, and the actor, whom a valid signature proves."""
        if row.state != "awaiting":
            return self._status.too_late(connection, row), actor
        if digest != row.digest:
            return RefusedError(f"the digest given does not match {row.id}", "Review the proposal again"), actor
        try:
            actor = self._policies.proved(connection, actor, signed, "breakglass", row, "approve", now_ms)
        except RefusedError as error:
            return error, actor
        in_force = self._policies.current(connection)
        why_not = self._policies.why_not(connection, actor, "break_glass", plan.tier, scope_of(plan.steps))
        if why_not:
            return RefusedError(f"you may not use break-glass: {why_not}", "Ask an approver"), actor
        if self._status.need(connection, plan).signed and signed is None:
            remedy = "Your account alone does not prove who you are"
            return RefusedError(f"break-glass for {row.id} must be signed with your own key", remedy), actor
        least = in_force.break_glass.reason_least
        if len("".join(reason.split())) < least:
            return RefusedError("break-glass needs a reason", f"Give one of {least} characters or more"), actor
        if plan.tier == "T3" and (plan.author.kind != "human" or plan.origin in approval_policy.MACHINES):
            remedy = "Propose it yourself"
            return RefusedError("break-glass is not allowed for a machine's draft that is hard to undo", remedy), actor
        unreviewed = select(REVIEW.c.subject).where(REVIEW.c.forced & (REVIEW.c.closed_ms == 0))
        if any(self._is_same(in_force, actor, subject) for subject in connection.execute(unreviewed).scalars()):
            remedy = "Ask another person to close its review"
            return RefusedError("your last break-glass is not reviewed yet", remedy), actor
        return None, actor

    def _is_same(self, in_force: Policy, actor: Actor, subject: str) -> bool:
        """True when a subject names the actor, by account or by name."""
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
        """Closes a review, by a person other than the one it is about. Raises RefusedError."""
        kept = connection.execute(select(REVIEW).where(REVIEW.c.id == review)).mappings().first()
        if kept is None or kept["closed_ms"]:
            raise RefusedError(f"there is no open review {review}", "See muster proposal reviews")
        in_force = self._policies.current(connection)
        why_not = self._policies.why_not(connection, actor, "review")
        if not why_not and kept["forced"] and self._is_same(in_force, actor, kept["subject"]):
            why_not = "it reviews your own action"
        if why_not:
            raise RefusedError(f"you may not close review {review}: {why_not}", "Ask another approver")
        about = store.about(kept["number"])
        closed = {"closed_ms": now_ms, "closed_by": actor.subject}
        rows = self._audit.rewrite(connection, REVIEW, REVIEW.c.id == review, closed, about)
        sealed = self._audit.seal(connection, comment)
        self._audit.append(
            connection, "review.closed", actor, proposal=about,
            data={"review": review}, private=(sealed,), rows=rows,
        )  # fmt: skip

    def reviews(self, connection: Connection, limit: int) -> tuple[Review, ...]:
        """Open reviews, the oldest first, then closed ones, the newest first."""
        order = (REVIEW.c.closed_ms != 0, -REVIEW.c.closed_ms, REVIEW.c.id)
        query = select(REVIEW).order_by(*order).limit(limit)
        return tuple(review_of(values) for values in connection.execute(query).mappings())


def review_of(values: Mapping[Any, Any]) -> Review:
    """A review as it is kept."""
    return Review(
        id=values["id"], about=values["about"], subject=values["subject"], forced=values["forced"],
        text=values["text"], proposal=store.about(values["number"]),
        opened_ms=values["opened_ms"], closed_ms=values["closed_ms"], closed_by=values["closed_by"],
    )  # fmt: skip


ROOT = "unix:0"
"""May become anybody anyway."""


def check_commands(engine: Engine, actor: Actor, command: Submit) -> None:
    """Raises RefusedError for somebody who may not have this machine run anything, SpecError for work that says
    nothing that could be run. In other cells a command is kept and nothing here runs it."""
    if engine.processes is None:
        return
    # A fleet comes as the account it runs as, whoever told it to.
    accounts = {actor.account, *(spec.tags.get(BY_TAG, actor.account) for spec in command.workloads)}
    if not accounts <= {OWNER, ROOT} and not getattr(engine.processes, "open_door", False):
        raise RefusedError(
            "commands run here only for the account that owns the engine, through its Unix socket",
            "To open it to all who may submit: muster serve --here --for-others",
        )
    for i, spec in enumerate(command.workloads):
        if spec.run is None:
            where = f"workloads[{i}].run" if len(command.workloads) > 1 else "workload.run"
            raise SpecError(where, "is missing: this cell runs commands", "Write it like run: [python3, train.py]")


ADMITTED = (Submit, Recall, Define, AddPools, AddNodes, AddQueues, AddPriorityClasses)
MAX_NAMES = 50
"""Of each kind of thing that is added, in the record."""


def check_admitted(command: AnyCommand) -> None:
    """Raises RefusedError for a command that changes what is there: those go through propose and approve."""
    if not isinstance(command, ADMITTED):
        raise RefusedError(
            f"{tag_of(command)} needs approval: propose it", "Propose it, review the plan, then approve it"
        )


def admit(engine: Engine, gate: Gate, actor: Actor, command: AnyCommand) -> Receipt:
    """Do it in the actor's name. On the engine's thread. Raises RefusedError for what needs approval and for whom the
    policy does not let, and whatever the engine refuses."""
    check_admitted(command)
    if isinstance(command, Submit):
        gate.refuse_unless(actor, "submit", touched_by(command, outside=not engine.decides))
        check_commands(engine, actor, command)
        return engine.command(owned(actor, command))
    if isinstance(command, Recall):
        return _recalled(engine, gate, actor, command)
    gate.refuse_unless(actor, "configure")

    def beside(connection: Connection) -> None:
        gate.audit.append(connection, "config.changed", actor, data=definition_record(command))

    return engine.command(command, beside=beside)


def owned(actor: Actor, command: Submit) -> Submit:
    """The submission as its caller's, whatever it says itself. It is nobody's where nobody proved who they are, where a
    service submits, and where a fleet does so for others."""
    known = actor.kind == "human" and (actor.account != TCP or actor.signed)
    by_fleet = any(BY_TAG in spec.tags for spec in command.workloads)
    return msgspec.structs.replace(command, owner=actor.subject if known and not by_fleet else "")


def _recalled(engine: Engine, gate: Gate, actor: Actor, command: Recall) -> Receipt:
    """A fleet takes back what it sent and what has not begun: as an operator there, for that ends work of others. It is
    on record."""
    w, queues = engine.state.workloads, engine.state.queues
    rows = [w.row_of[name] for name in command.ids if name in w.row_of]
    scope = Scope(
        queues=tuple({queues.specs[w.queue[row]].name for row in rows}),
        tenants=tuple({w.tenants.names[w.tenant[row]] for row in rows}),
    )
    gate.refuse_unless(actor, "configure", scope)
    data = {"ids": list(command.ids), "fleet": command.fleet, "to": command.to}

    def beside(connection: Connection) -> None:
        gate.audit.append(connection, "work.recalled", actor, data=data)

    return engine.command(command, beside=beside)


def touched_by(command: Submit, *, outside: bool = False) -> Scope:
    """The scope of submissions: their queues, tenants, and the pools that they are limited to. A submission for any
    pool is for no role that is limited to pools. `outside`: Slurm decides on the cell, where tags may name another
    partition and another account than queue and tenant do."""
    queues = {spec.queue for spec in command.workloads}
    tenants = {spec.tenant for spec in command.workloads}
    if outside:
        queues |= {name for spec in command.workloads for name in spec.tags.get("partition", "").split(",") if name}
        tenants |= {spec.tags["account"] for spec in command.workloads if spec.tags.get("account")}
    bound = all(group.pools for spec in command.workloads for group in spec.groups)
    pools = {pool for spec in command.workloads for group in spec.groups for pool in group.pools} if bound else set()
    return Scope(pools=tuple(pools), queues=tuple(queues), tenants=tuple(tenants))


def definition_record(command: AnyCommand) -> dict[str, object]:
    """The record of a definition: the objects that it adds, by kind and name, and the hash of all of it."""
    body = msgspec.json.encode(command, order="sorted")
    whole = command.cell if isinstance(command, Define) else command
    adds: dict[str, object] = {}
    for field in ("pools", "nodes", "queues", "priority_classes"):
        names = [str(getattr(thing, "id", "") or getattr(thing, "name", "")) for thing in getattr(whole, field, ())]
        if names:
            adds[field] = {"count": len(names), "names": names[:MAX_NAMES]}
    return {"command": tag_of(command), "adds": adds, "sha256": hashlib.sha256(body).hexdigest()}


def tag_of(command: AnyCommand) -> str:
    return str(type(command).__struct_config__.tag)


def admit_all(
    engine: Engine,
    gate: Gate,
    wanted: Sequence[tuple[Actor, Submit]],
    answered: Callable[[Connection, Sequence[Receipt | MusterError]], None] | None = None,
) -> list[Receipt | MusterError]:
    """Submissions that came together, in one transaction, each accepted or refused on its own. `answered` writes what
    came of each in the same transaction, if one is accepted. On the engine's thread."""
    answers: list[Receipt | MusterError | None] = []
    allowed: list[Submit] = []
    for actor, command in wanted:
        try:
            gate.refuse_unless(actor, "submit", touched_by(command, outside=not engine.decides))
            check_commands(engine, actor, command)
        except MusterError as error:
            answers.append(error)
            continue
        answers.append(None)
        allowed.append(owned(actor, command))
    if not allowed:
        return [answer for answer in answers if answer is not None]

    def whole(of_allowed: Sequence[Receipt | MusterError]) -> list[Receipt | MusterError]:
        coming = iter(of_allowed)
        return [next(coming) if answer is None else answer for answer in answers]

    if answered is None:
        return whole(engine.commands(allowed))
    return whole(engine.commands(allowed, answered=lambda connection, found: answered(connection, whole(found))))
