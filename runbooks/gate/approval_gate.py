"""The gate: the only way an action reaches the engine.

`Gate.propose` resolves a request to explicit ids, simulates it on a fork, and binds it to the digest of its plan. Votes
name that digest (`runbooks.gate.decisions`). The approval policy says who may vote, how many must, and how much may be
touched in an hour. An approved plan is carried out once (`runbooks.gate.executor`). The life of a proposal is the table
in `runbooks.plans.typed_plan`. Until execution nothing is simulated on, or written to, the live engine.

Call it on the engine's thread. All state is in the journal's database, so a restart forgets nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import msgspec
from sqlalchemy import Connection, func, insert, select

from engine.model import spans
from engine.model.errors import JournalError, MusterError, RefusedError, SpecError
from runbooks.audit.log import Audit, kept
from runbooks.gate import approval_policy, store
from runbooks.gate.approval_policy import Policy, Verdict
from runbooks.gate.authority import facts_of
from runbooks.gate.composition import Composed, compose, scope_of
from runbooks.gate.decisions import BreakGlassHandler, Voting
from runbooks.gate.executor import PlanExecutor
from runbooks.gate.incidents import Incidents
from runbooks.gate.objective_watch import ObjectiveWatch
from runbooks.gate.policy_changes import freezes_now
from runbooks.gate.policy_versions import Policies
from runbooks.gate.proposal_status import ProposalStatus
from runbooks.gate.run_limits import Freeze
from runbooks.gate.store import PROPOSAL, REVISION, Outbox, ProposalRow
from runbooks.plans import typed_plan
from runbooks.plans.identity import SYSTEM, WHOLE, Actor, Scope, Signed
from runbooks.plans.incidents import ObjectKind
from runbooks.plans.typed_plan import (
    Outcome,
    Party,
    Plan,
    Proposal,
    Request,
    Review,
    RunbookRef,
    Sealed,
    Source,
    StepStanding,
)

if TYPE_CHECKING:
    from engine.control import Engine

MAX_OPEN = 64
"""Open proposals of one author: the oldest gives way, because refusing the new one would let a flood of them lock out
the person on call."""
MAX_REVISIONS = 50
"""Of one proposal: they count against no limit of the policy."""
CLOCK_TOLERANCE_MS = 1_000
"""A wall clock that falls back further than this expires what is open: it could otherwise revive a proposal."""
MIN_COMMENT = 10
"""Characters in which the review of a break-glass must say what was found."""

NO_LABELS: Mapping[str, ObjectKind] = {}


def wall_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


class Gate:
    """Proposals for one engine. `clock` gives wall time in Unix milliseconds."""

    def __init__(
        self,
        engine: Engine,
        policies: Policies | None = None,
        audit: Audit | None = None,
        clock: Callable[[], int] = wall_ms,
        outbox: Outbox | None = None,
        *,
        alert_labels: Mapping[str, ObjectKind] = NO_LABELS,
    ) -> None:
        """`alert_labels`: labels of alerts that name objects of the cell, besides those that are known."""
        self._engine = engine
        self._clock = clock
        self.audit = audit or Audit(engine, clock)
        self.policies = policies or Policies(engine, self.audit, clock)
        self.outbox = outbox or Outbox(engine, self.audit, clock)
        self._status = ProposalStatus(engine, self.audit, self.policies)
        self._voting = Voting(self.audit, self.policies, self._status)
        self._glass = BreakGlassHandler(self.audit, self.policies, self._status, self.outbox)
        self._executor = PlanExecutor(engine, self.audit, self.policies, self._status, self.outbox, self._now)
        self.incidents = Incidents(engine, self.audit, self.policies, clock, self.refuse_unless, alert_labels)
        self._objectives = ObjectiveWatch(engine, self.incidents, clock)
        self._latest_ms = 0
        self._ready = False
        self._open()

    def _open(self) -> None:
        """Prepares the gate if the journal can be written; otherwise each later use tries again, and everything can
        still be read."""
        with contextlib.suppress(JournalError):
            self._prepare()

    def _prepare(self) -> None:
        """Tables, the clock, and what the last process left under way. Raises JournalError."""
        if self._ready:
            return
        self._engine.record(store.create)
        newest = select(func.max(PROPOSAL.c.since_ms))
        self._latest_ms = self._engine.recorded(lambda connection: connection.execute(newest).scalar()) or 0
        self._ready = True
        try:
            self._executor.recover(started=True)
        except JournalError:
            self._ready = False
            raise

    # -- asking -------------------------------------------------------------------------------------------------------

    def composition(self, request: Request, author: Actor | None = None) -> Callable[[], Composed]:
        """What works out the plan of a request: resolves it and simulates it on a fork. It needs no record, so it may
        be called in another process that has this gate's engine as it is now. Raises RefusedError where `author` may
        propose nothing."""
        if author is not None:
            self.refuse_unless(author, "propose", None)
        if request.rolls_back:
            return self._executor.way_back.composition(request)
        return lambda: compose(self._engine, request)

    def preview(
        self,
        actor: Actor,
        request: Request,
        *,
        runbook: RunbookRef | None = None,
        composed: Composed | None = None,
    ) -> Proposal:
        """The proposal as it would be shown. Its note names the policy rules that would deny it, or the reason that a
        rollback needs votes of its own. Nothing is kept. Arguments and errors as of `propose`."""
        now_ms = self._now()
        drafted = DraftedPlan(actor, request, runbook, composed or self.composition(request)())
        shown = self._engine.recorded(lambda connection: self._shown_only(connection, drafted, now_ms))
        if not request.rolls_back:
            return shown
        why_votes = self._executor.way_back.why_votes_asked(request, drafted.composed)
        return msgspec.structs.replace(shown, covered=not why_votes, note=shown.note or why_votes)

    @spans.traced("gate.propose")
    def propose(
        self,
        actor: Actor,
        request: Request,
        *,
        runbook: RunbookRef | None = None,
        composed: Composed | None = None,
    ) -> Proposal:
        """Resolve, simulate on a fork, and put to the vote. Changes nothing in the cell. `composed`: what `composition`
        of the same request has found a moment ago; None: it is worked out here.

        Raises SpecError for an unknown action or malformed targets, NotFoundError naming every unknown target, and
        RefusedError naming every target the action does not apply to, who may not propose it, and the rules of the
        policy that it breaks.
        """
        now_ms = self._now()
        self.refuse_unless(actor, "propose", None)  # for what it touches that is looked at again, once it is known
        drafted = DraftedPlan(actor, request, runbook, composed or self.composition(request)())
        shown = self._engine.record(lambda connection: self._draft(connection, drafted, now_ms))
        if shown.state == "denied":
            raise RefusedError(
                f"{shown.id} is denied by policy: {shown.note}", "See what is allowed with muster policy show"
            )
        return shown

    def revise(self, actor: Actor, proposal_id: str, request: Request, *, composed: Composed | None = None) -> Proposal:
        """Another plan under the same id: a new revision, on which nobody has voted. For its author alone, so that
        nobody's name stands under what others wrote. Arguments and errors as of `propose`."""
        now_ms = self._now()
        self.refuse_unless(actor, "propose", None)  # for what it touches that is looked at again, once it is known
        plan = composed or self.composition(request)()

        def write(connection: Connection) -> Proposal:
            row = store.found(connection, proposal_id)
            if row.author != actor.subject:
                raise RefusedError(f"{row.id} is {row.author}'s", "Propose your own")
            if row.revision >= MAX_REVISIONS:
                raise RefusedError(f"{row.id} was revised {row.revision - 1} times", "Propose it again as a new one")
            before = store.plan_of(connection, row)[0].source
            row = store.move(connection, self.audit, row, "revised", actor, now_ms, revision=row.revision + 1)
            # What somebody writes in place of a runbook's steps is no longer what was approved as that runbook.
            asked = request
            if asked.source is None and before is not None and before.origin in approval_policy.MACHINES:
                # An edit does not make a machine's draft the editor's own.
                asked = msgspec.structs.replace(asked, source=before)
            return self._submit(connection, row, DraftedPlan(actor, asked, None, plan), now_ms)

        return self._engine.record(write)

    def _draft(self, connection: Connection, drafted: DraftedPlan, now_ms: int) -> Proposal:
        actor, source = drafted.actor, drafted.source
        values = self._first_row(connection, drafted, now_ms)
        row = store.add(connection, {**values, "revision": 1, "state": "drafted"})
        self.audit.append(
            connection, "proposal.drafted", actor, proposal=row.id, revision=1, policy_digest=row.policy,
            data={
                "actions": [step.act.action for step in drafted.composed.steps], "origin": row.origin,
                "source": source.words(),
            },
            rows=store.on_record(row),
        )  # fmt: skip
        shown = self._submit(connection, row, drafted, now_ms)
        if shown.state == "awaiting":
            self._make_room(connection, drafted, now_ms, row.number)
        return shown

    def _first_row(self, connection: Connection, drafted: DraftedPlan, now_ms: int) -> dict[str, Any]:
        """The values of a proposal that nothing has happened to, without revision and state."""
        return {
            "serial": 0, "since_ms": now_ms, "created_ms": now_ms, "author": drafted.actor.subject,
            "origin": drafted.source.origin, "tier": drafted.composed.tier, "digest": "",
            "policy": self.policies.current(connection).digest(), "blast": b"{}", "expires_ms": now_ms,
        }  # fmt: skip

    def _submit(self, connection: Connection, row: ProposalRow, drafted: DraftedPlan, now_ms: int) -> Proposal:
        """Moves a drafted proposal to awaiting, or to denied."""
        actor, reason = drafted.actor, drafted.request.reason
        sealed = self.audit.seal(connection, reason) if reason else None
        plan = self._plan_of(connection, row, drafted, sealed, now_ms)
        digest = plan.digest()
        values = {
            "number": row.number, "revision": row.revision, "digest": digest, "plan": plan.canonical(),
            "request": drafted.asked, "words": msgspec.json.encode(drafted.composed.words),
        }  # fmt: skip
        connection.execute(insert(REVISION).values(**values))
        rows = kept(REVISION, values)
        for i, step in enumerate(plan.steps):
            rows |= store.set_standing(connection, self.audit, row, i, StepStanding(id=step.id))
        row = store.move(
            connection, self.audit, row, "simulated", actor, now_ms,
            data={
                "tier": plan.tier, "steps": len(plan.steps), "version": plan.simulated.version, "of": facts_of(plan),
            },
            private=(sealed,) if sealed else (), rows=rows,
            digest=digest, policy=plan.policy_digest, tier=plan.tier, blast=msgspec.json.encode(plan.blast),
            expires_ms=plan.expires_ms, origin=plan.origin,
            cursor=0, verify_by_ms=0, executed_ms=0, breakglass=False, note="", stale=b"[]",
        )  # fmt: skip
        rules = self._broken(connection, actor, row, plan, now_ms)
        if rules:
            note = "; ".join(rules)
            row = store.move(
                connection, self.audit, row, "denied", actor, now_ms, data={"rules": list(rules)}, note=note
            )
        else:
            row = store.move(connection, self.audit, row, "submitted", actor, now_ms)
        return self._status.proposal(connection, row)

    def _plan_of(
        self, connection: Connection, row: ProposalRow, drafted: DraftedPlan, reason: Sealed | None, now_ms: int
    ) -> Plan:
        """The plan of a revision; with what of it is its author's own, where they have not done too much of that."""
        in_force = self.policies.current(connection)
        plan = plan_of(row, drafted, in_force, reason, now_ms)
        own = drafted.composed.own
        if (
            own is None
            or not approval_policy.is_own(in_force, own, plan.author, plan.requester, plan.origin)
            or not self._status.own_allowed(connection, row, in_force, own.workloads, now_ms)
        ):
            return plan
        return msgspec.structs.replace(plan, blast=msgspec.structs.replace(plan.blast, own=own))

    def _broken(
        self, connection: Connection, actor: Actor, row: ProposalRow, plan: Plan, now_ms: int
    ) -> tuple[str, ...]:
        """The rules of the policy that proposing it breaks."""
        in_force = self.policies.current(connection)
        rules = self._status.broken_rules(connection, row, plan, now_ms, of_author=True)
        # Their own work may be in parts of the cell that no role of theirs covers.
        scope = None if plan.blast.own else scope_of(plan.steps)
        why_not = self.policies.why_not(connection, actor, "propose", plan.tier, scope)
        return (*((why_not,) if why_not else ()), *rules, *unknown_channels(in_force, plan))

    def _shown_only(self, connection: Connection, drafted: DraftedPlan, now_ms: int) -> Proposal:
        values = self._first_row(connection, drafted, now_ms)
        row = ProposalRow(
            number=0, revision=0, state="simulated", cursor=0, verify_by_ms=0, executed_ms=0, breakglass=False,
            note="", stale=b"[]", **values,
        )  # fmt: skip
        plan = self._plan_of(connection, row, drafted, None, now_ms)
        note = "; ".join(self._broken(connection, drafted.actor, row, plan, now_ms))
        row = msgspec.structs.replace(row, digest=plan.digest(), note=note)
        shown = self._status.shown(connection, row, plan, drafted.composed.words, drafted.request.reason)
        return self._status.in_context(connection, row, shown)

    def _make_room(self, connection: Connection, drafted: DraftedPlan, now_ms: int, newest: int) -> None:
        """Replaces an open proposal with the same request; and the oldest, when an author has too many open."""
        actor = drafted.actor
        others = (PROPOSAL.c.author == actor.subject) & (PROPOSAL.c.number != newest)
        is_open = PROPOSAL.c.state.in_(tuple(typed_plan.OPEN))
        query = select(PROPOSAL).where(others & is_open).order_by(PROPOSAL.c.number.desc())
        kept = 0
        for row in [ProposalRow(**values) for values in connection.execute(query).mappings()]:
            where = (REVISION.c.number == row.number) & (REVISION.c.revision == row.revision)
            same = connection.execute(select(REVISION.c.request).where(where)).scalar() == drafted.asked
            kept += not same
            if (same or kept >= MAX_OPEN) and not (same and row.state == "approved"):
                store.move(connection, self.audit, row, "superseded", actor, now_ms, note="replaced by a newer one")

    # -- deciding -----------------------------------------------------------------------------------------------------

    @spans.traced("gate.vote")
    def vote(
        self,
        actor: Actor,
        proposal_id: str,
        digest: str,
        verdict: Verdict,
        comment: str = "",
        signed: Signed | None = None,
    ) -> Proposal:
        """Say yes, no or nothing to exactly the plan whose digest was shown. The last yes that is needed approves it;
        any no of somebody who might have said yes ends it.

        Raises NotFoundError, and RefusedError for another digest, a proposal that is not open, and a vote that does not
        count: the refusal is in the audit.
        """
        now_ms = self._now()
        if verdict not in get_args(Verdict):
            raise SpecError("verdict", f"is not one of {', '.join(get_args(Verdict))}", "Give one of them")
        typed_plan.check_line(comment, "comment", typed_plan.MAX_COMMENT)
        row, refused = self._engine.record(
            lambda connection: self._voting.take(
                connection,
                self._found(connection, proposal_id, now_ms),
                actor,
                digest,
                verdict,
                comment,
                signed,
                now_ms,
            )
        )
        if refused is not None:
            raise refused
        self.audit.after(at_once=row.state == "approved")
        return self.proposal(proposal_id)

    def approve(
        self, actor: Actor, proposal_id: str, digest: str, comment: str = "", signed: Signed | None = None
    ) -> Outcome:
        """Vote yes; and when that was the last vote needed, and the plan is to start then, carry it out and read back
        what it did. Errors as `vote` and `execute`: one that keeps the plan from being carried out, such as a freeze,
        says that the vote is kept."""
        not_for = approval_policy.why_not_token(actor, "vote", None)
        if not_for:
            raise RefusedError(f"you may not approve {proposal_id}: {not_for}", "Use another token")
        now_ms = self._now()
        kept, refused = self._engine.record(
            lambda connection: self._voting.kept(
                connection, store.found(connection, proposal_id), actor, digest, signed, now_ms
            )
        )
        if refused is not None:
            raise refused
        if not kept:
            self.vote(actor, proposal_id, digest, "approve", comment, signed)
        shown = self.proposal(proposal_id)
        if shown.state == "awaiting":
            return outcome_of(shown, shown.need)
        if shown.plan.start == "asked":
            return outcome_of(shown, "somebody to execute it")
        try:
            return self.execute(actor, proposal_id, by_vote=True)
        except RefusedError as error:
            if kept or self.proposal(proposal_id).state != "approved":
                raise
            problem = f"your vote is recorded and {proposal_id} is approved, but nothing was executed: {error.problem}"
            raise RefusedError(problem, error.remedy) from error

    def break_glass(
        self, actor: Actor, proposal_id: str, digest: str, reason: str, signed: Signed | None = None
    ) -> Outcome:
        """Carry out at once what others would have had to approve. It is simulated, limited, revalidated and recorded
        like everything else. Raises RefusedError."""
        now_ms = self._now()
        typed_plan.check_line(reason, "reason", typed_plan.MAX_COMMENT)
        refused = self._engine.record(
            lambda connection: self._glass.use(
                connection, self._found(connection, proposal_id, now_ms), actor, digest, reason, signed, now_ms
            )
        )
        if refused is not None:
            raise refused
        self.audit.after(at_once=True)
        return self.execute(actor, proposal_id, by_vote=True)

    def close_review(self, actor: Actor, review: int, comment: str) -> None:
        """Say that it was looked at. For a person other than the one it is about. Raises RefusedError."""
        now_ms = self._now()
        typed_plan.check_line(comment, "comment", typed_plan.MAX_COMMENT)
        if len(comment.strip()) < MIN_COMMENT:
            raise SpecError("comment", "is too short", f"Say what you found, in {MIN_COMMENT} characters or more")
        self._engine.record(lambda connection: self._glass.close_review(connection, actor, review, comment, now_ms))

    # -- doing --------------------------------------------------------------------------------------------------------

    def execute(self, actor: Actor, proposal_id: str, *, by_vote: bool = False) -> Outcome:
        """Carry out what is approved, or go on with what was interrupted. `by_vote`: the last vote asks for it, and
        whoever gave it need not be one who may ask. Raises RefusedError with the reason, and JournalError when nothing
        can be recorded: then nothing has happened."""
        with spans.span("gate.execute", muster_proposal=proposal_id):
            self._now()
            if not by_vote:
                self._refuse_for(actor, "execute", proposal_id)
            return self._executor.execute(actor, proposal_id)

    def pause(self, actor: Actor, proposal_id: str, reason: str = "") -> Proposal:
        """Do no further step until somebody resumes it."""
        self._refuse_for(actor, "pause", proposal_id)
        self._executor.pause(actor, proposal_id, reason)
        return self.proposal(proposal_id)

    def resume(self, actor: Actor, proposal_id: str, *, accept: bool = False) -> Outcome:
        """Go on. `accept`: although the last step could not be verified."""
        self._refuse_for(actor, "vote" if accept else "execute", proposal_id)
        return self._executor.resume(actor, proposal_id, accept=accept)

    def confirm(self, actor: Actor, proposal_id: str, step: str) -> Outcome:
        """Say go to a step that waits for it."""
        self._now()
        return self._executor.confirm(actor, proposal_id, step)

    def rollback(self, actor: Actor, proposal_id: str, reason: str = "") -> Outcome:
        """Take back what it did, the last step first, by the way back that was approved with it; while the votes on it
        cover what that does now. Else it is proposed, with `rolls_back`."""
        self._refuse_for(actor, "rollback", proposal_id)
        return self._executor.roll_back(actor, proposal_id, reason)

    def cancel(self, actor: Actor, proposal_id: str, reason: str = "") -> Proposal:
        """Withdraw it before it is executed: its author may, and who may reject it."""
        now_ms = self._now()
        typed_plan.check_line(reason, "reason", typed_plan.MAX_COMMENT)

        def write(connection: Connection) -> Proposal:
            row = store.found(connection, proposal_id)
            if row.author != actor.subject:
                plan, _, _ = store.plan_of(connection, row)
                why_not = self.policies.why_not(connection, actor, "cancel", plan.tier, scope_of(plan.steps))
                if why_not:
                    raise RefusedError(f"you may not withdraw {row.id}: {why_not}", "Ask its author, or reject it")
            elif not_for := approval_policy.why_not_token(actor, "cancel", None):
                raise RefusedError(f"you may not withdraw {row.id}: {not_for}", "Use another token")
            sealed = (self.audit.seal(connection, reason),) if reason else ()
            row = store.move(
                connection, self.audit, row, "cancelled", actor, now_ms, data={"reason": [s.ref for s in sealed]},
                private=sealed, note=f"withdrawn by {actor.subject}",
            )  # fmt: skip
            return self._status.proposal(connection, row)

        return self._engine.record(write)

    def tick(self) -> None:
        """Work that time brings, about once a second: expiry, slow verifications, outgoing messages, and plans that a
        failed write left under way."""
        now_ms = self._now()
        is_due = PROPOSAL.c.state.in_(tuple(typed_plan.OPEN)) & (PROPOSAL.c.expires_ms <= now_ms)
        due = select(PROPOSAL).where(is_due)

        def look(connection: Connection) -> tuple[bool, list[ProposalRow]]:
            return connection.execute(due).first() is not None, store.in_states(connection, ("verifying",))

        def expire(connection: Connection) -> None:
            for values in connection.execute(due).mappings().all():
                self._expired(connection, ProposalRow(**values), now_ms)

        # Most seconds bring nothing, and then nothing is written.
        anything, verifying = self._engine.recorded(look)
        if anything:
            self._engine.record(expire)
        for row in verifying:
            try:
                self._executor.look_again(row.id)
            except JournalError:
                raise
            except MusterError:
                continue  # It was said on record where it was met; the others must not wait for it.
        self._executor.recover()
        self._objectives.look()
        self.outbox.deliver()
        self.audit.after()

    # -- messages -----------------------------------------------------------------------------------------------------

    def announce(self, channel: str) -> None:
        """Queue a message for each revision that waits for votes and was not announced on this channel. Its key says
        whether votes on it must be signed."""
        now_ms = self._now()
        waiting = self._engine.recorded(
            lambda connection: [
                (row, self._status.listed(connection, row))
                for row in (store.in_states(connection, ("awaiting",)) if self._any(connection) else ())
                if not self.outbox.has(connection, announcement_keys(row.digest, channel))
            ]
        )
        if not waiting:
            return

        def write(connection: Connection) -> None:
            for row, shown in waiting:
                free, signed = announcement_keys(row.digest, channel)
                text = f"{shown.id} waits for {shown.need}: {shown.title} [{shown.tier}]. Asked by {row.author}"
                key = signed if shown.signed else free
                self.outbox.put(connection, key, row.number, channel, text[:500], now_ms)

        self._engine.record(write)

    def tell(self, channel: str, messages: Mapping[str, tuple[str, str]]) -> None:
        """Queue messages: key -> (proposal id or nothing, text). A key that was queued before is left out."""
        now_ms = self._now()
        known = self._engine.recorded(
            lambda connection: {key for key in messages if self.outbox.has(connection, (key,))}
        )
        new = {key: each for key, each in messages.items() if key not in known}

        def write(connection: Connection) -> None:
            for key, (proposal, text) in new.items():
                number = store.number_of(proposal) if proposal else 0
                self.outbox.put(connection, key, number, channel, text[:500], now_ms)

        if new:
            self._engine.record(write)

    # -- looking ------------------------------------------------------------------------------------------------------

    def proposal(self, proposal_id: str) -> Proposal:
        """As it stands now. Raises NotFoundError."""

        def read(connection: Connection) -> Proposal:
            if not self._any(connection):
                raise store.unknown(proposal_id)
            return self._status.proposal(connection, store.found(connection, proposal_id))

        return self._engine.recorded(read)

    def proposals(self, states: Sequence[str] = (), limit: int = 200) -> tuple[Proposal, ...]:
        """The proposals in these states, or all, newest first."""
        wanted = tuple(states) or tuple(set(typed_plan.EDGES.values()))

        def read(connection: Connection) -> tuple[Proposal, ...]:
            rows = store.in_states(connection, wanted, limit) if self._any(connection) else []
            return tuple(self._status.listed(connection, row) for row in rows)

        return self._engine.recorded(read)

    def _any(self, connection: Connection) -> bool:
        """True when the gate's tables exist. A journal that a gate could never write has none."""
        return self._ready or store.exist(connection)

    def reviews(self, limit: int = 200) -> tuple[Review, ...]:
        """Open reviews, the oldest first, then closed ones, the newest first."""
        return self._engine.recorded(lambda connection: self._glass.reviews(connection, limit))

    def mode(self) -> str:
        """ "solo", "pair" or "team", as the policy in force has it; empty while nothing can be read."""
        try:
            return self._engine.recorded(self.policies.current).mode
        except MusterError:
            return ""

    def pending(self) -> tuple[int, int, int]:
        """Counts of proposals that wait for votes, of those stuck under way, and of incidents that are open or claimed;
        zeros while nothing can be read."""

        def read(connection: Connection) -> tuple[int, int, int]:
            if not self._any(connection):
                return 0, 0, 0
            awaiting, stuck = ("awaiting",), ("paused", "rollback_failed")
            return store.count(connection, awaiting), store.count(connection, stuck), self.incidents.count(connection)

        try:
            return self._engine.recorded(read)
        except MusterError:
            return 0, 0, 0

    def channels(self) -> dict[str, str]:
        """The channels of the policy in force: id -> target."""
        return dict(self._engine.recorded(self.policies.current).channels)

    def freezes(self) -> tuple[Freeze, ...]:
        """Freezes of the policy and those set by hand, each with whether it stops plans now."""
        now_ms = self._now()
        return self._engine.recorded(lambda connection: freezes_now(self.policies, connection, now_ms))

    # -- ground -------------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        """Wall time that never goes back further than CLOCK_TOLERANCE_MS without ending what is open."""
        self._prepare()
        now_ms = self._clock()
        if now_ms < self._latest_ms - CLOCK_TOLERANCE_MS:
            self._engine.record(lambda connection: self._expire_all(connection, now_ms))
            self._latest_ms = now_ms
        self._latest_ms = max(self._latest_ms, now_ms)
        return self._latest_ms

    def _expire_all(self, connection: Connection, now_ms: int) -> None:
        for row in store.in_states(connection, tuple(typed_plan.OPEN)):
            store.move(connection, self.audit, row, "expired", SYSTEM, now_ms, note="the wall clock was set back")

    def _found(self, connection: Connection, proposal_id: str, now_ms: int) -> ProposalRow:
        return self._expired(connection, store.found(connection, proposal_id), now_ms)

    def _expired(self, connection: Connection, row: ProposalRow, now_ms: int) -> ProposalRow:
        if row.state in typed_plan.OPEN and now_ms >= row.expires_ms:
            return store.move(connection, self.audit, row, "expired", SYSTEM, now_ms)
        return row

    def refuse_unless(self, actor: Actor, deed: approval_policy.Deed, scope: Scope | None = WHOLE) -> None:
        """Raises RefusedError, on record, for somebody who may not do such a thing in all of `scope`; None: anywhere
        at all."""
        why_not = self._engine.recorded(lambda connection: self.policies.why_not(connection, actor, deed, scope=scope))
        if why_not:
            data = {"deed": deed, "why": why_not}
            self._engine.record(lambda connection: self.audit.append(connection, "command.refused", actor, data=data))
            raise RefusedError(f"you may not {deed}: {why_not}", "Ask somebody with that role")

    def _refuse_for(self, actor: Actor, deed: approval_policy.Deed, proposal_id: str) -> None:
        """Raises RefusedError, on record, for somebody who may not do this to this proposal."""
        now_ms = self._now()

        def write(connection: Connection) -> str:
            row = self._found(connection, proposal_id, now_ms)
            plan, _, _ = store.plan_of(connection, row)
            why_not = self.policies.why_not(connection, actor, deed, plan.tier, scope_of(plan.steps))
            if why_not:
                self.audit.append(
                    connection, "command.refused", actor, proposal=row.id, revision=row.revision,
                    plan_digest=row.digest, data={"deed": deed, "why": why_not},
                )  # fmt: skip
            return why_not

        why_not = self._engine.record(write)
        if why_not:
            raise RefusedError(
                f"you may not {deed.replace('_', ' ')} {proposal_id}: {why_not}", "Ask somebody with that role"
            )


class DraftedPlan(NamedTuple):
    """A request by an actor, and the plan that it comes to."""

    actor: Actor
    request: Request
    runbook: RunbookRef | None
    composed: Composed

    @property
    def source(self) -> Source:
        return source_of(self.actor, self.request, self.runbook)

    @property
    def asked(self) -> bytes:
        """The request as it is kept, without its reason, which may have to be erased."""
        return msgspec.json.encode(msgspec.structs.replace(self.request, reason=""), order="sorted")


def source_of(actor: Actor, request: Request, runbook: RunbookRef | None) -> Source:
    """The source of a plan. A request may claim that a machine or an agent drafted it. It cannot make a machine's plan
    a person's, a model's plan a rule's, or anything an approved runbook."""
    said = request.source
    claims: tuple[str, ...] = ("model",) if actor.kind == "llm" else ("suggestion", "rule", "model")
    claims += ("agent",) if actor.kind == "human" else ()
    if said is not None and said.kind in claims:
        return said
    name = actor.subject.rpartition(":")[2]
    if actor.kind == "llm":
        return Source(kind="agent", id=name)
    if actor.kind != "human":
        return Source(kind="service", id=name)
    if runbook is not None:
        return Source(kind="runbook", id=runbook.id, by=f"version {runbook.version}")
    return Source(kind="operator")


def requester_of(in_force: Policy, requester: str) -> str:
    """The subject for whom it is written. Raises SpecError for somebody whom a policy that names people does not know:
    they do not count as a voter, so it must be clear who they are."""
    named = f"person:{requester}"
    if any(person.subject == named for person in in_force.people):
        return named
    known = {person.subject for person in in_force.people} | {service.subject for service in in_force.services}
    known |= {account for person in in_force.people for account in person.accounts}
    if not requester or not in_force.people or requester in known:
        return requester
    raise SpecError("requester", f"{requester!a} is not in the policy", "Give a person of the policy, or leave it out")


def unknown_channels(in_force: approval_policy.Policy, plan: Plan) -> tuple[str, ...]:
    """A problem for each message to a channel that the policy does not name."""
    known = {name for name, _ in in_force.channels}
    named = {id_: None for step in plan.steps if step.act.action == "notify" for id_ in step.act.targets}
    return tuple(
        f"the policy names no channel {id_} (it names {', '.join(sorted(known)) or 'none'})"
        for id_ in named
        if id_ not in known
    )


def plan_of(row: ProposalRow, drafted: DraftedPlan, in_force: Policy, reason: Sealed | None, now_ms: int) -> Plan:
    """The plan of a revision."""
    actor, request, runbook, composed = drafted
    source = drafted.source
    need = approval_policy.need(in_force, composed.tier, source.origin, composed.scope, author=actor.kind)
    return Plan(
        proposal=row.id,
        revision=row.revision,
        author=Party(subject=actor.subject, kind=actor.kind, account=actor.account, signed=actor.signed),
        requester=requester_of(in_force, request.requester),
        origin=source.origin,
        source=source,
        reason=reason,
        steps=composed.steps,
        tier=composed.tier,
        blast=composed.blast,
        limits=request.limits,
        rollback_tier=composed.rollback_tier,
        rolls_back=request.rolls_back,
        simulated=composed.simulated,
        evidence=request.evidence,
        policy_digest=in_force.digest(),
        runbook=runbook,
        start=request.start,
        expires_ms=now_ms + need.expiry_ms,
    )


def announcement_keys(digest: str, channel: str) -> tuple[str, str]:
    """Keys of the message that announces a plan: where votes need no signature, and where they do."""
    return f"{digest}:awaiting:{channel}", f"{digest}:signing:{channel}"


def outcome_of(shown: Proposal, waits_for: str) -> Outcome:
    """The outcome of a proposal of which nothing is done yet."""
    return Outcome(
        proposal=shown.id, digest=shown.digest, version=shown.version, changed=(), verified=(), state=shown.state,
        waits_for=waits_for,
    )  # fmt: skip
