"""Status of a proposal: the votes it needs, the votes that count, the rules it breaks, and its view for people.

`what_differs` and `why_not_now` look again before a plan begins and before each later step: do targets, tier,
preconditions, freezes and limits still allow what was approved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from sqlalchemy import Connection, func, or_, select

from engine.model.errors import NotFoundError, RefusedError
from engine.model.quantities import utc
from engine.model.specs import HOUR_MS
from runbooks.actions import catalogue, declaration, target_readings
from runbooks.audit.log import Audit
from runbooks.gate import approval_policy, composition, run_limits, store
from runbooks.gate.approval_policy import ApprovalNeed, Policy, Vote, VoteTally
from runbooks.gate.authority import why_not_usable
from runbooks.gate.composition import scope_of, tier_of_all
from runbooks.gate.policy_versions import Policies
from runbooks.gate.run_limits import ByTier, LimitUsage, Size
from runbooks.gate.store import PROPOSAL, VOTE, ProposalRow, RevisionText
from runbooks.plans import typed_plan
from runbooks.plans.amounts import span
from runbooks.plans.check_readings import evaluate
from runbooks.plans.identity import Signed
from runbooks.plans.typed_plan import (
    TIERS,
    Act,
    Blast,
    Difference,
    EarlierPlan,
    Party,
    Plan,
    Proposal,
    Sealed,
    Simulated,
    Tier,
    VoteLine,
)

if TYPE_CHECKING:
    from engine.control import Engine
    from runbooks.plans.typed_plan import Origin


MAX_LOOKED_BACK = 100
"""Plans that were carried out, the newest of which are looked at for what a plan takes back."""
MAX_REMEMBERED = 1_000
"""Proposals that have ended, kept as they are shown."""


class CountedPlan(NamedTuple):
    """Another proposal, as far as it counts towards the limits of an hour."""

    tier: Tier
    state: str
    author: str
    blast: Blast


class ProposalStatus:
    """Answers about proposals, from inside a transaction."""

    def __init__(self, engine: Engine, audit: Audit, policies: Policies) -> None:
        self._engine = engine
        self._audit = audit
        self._policies = policies
        self._ended: dict[int, tuple[tuple[int, int], Proposal]] = {}

    def need(self, connection: Connection, plan: Plan) -> ApprovalNeed:
        """The stricter need of the policy in force and of the plan's own."""
        return self._need(connection, plan, self._policies.current(connection))

    def _need(self, connection: Connection, plan: Plan, in_force: Policy) -> ApprovalNeed:
        scope = composition.scope_of(plan.steps)
        found = approval_policy.need_of(in_force, plan, scope)
        if plan.policy_digest == in_force.digest():
            return found
        was = self._policies.get(connection, plan.policy_digest)
        return approval_policy.stricter(found, approval_policy.need_of(was, plan, scope))

    def votes(self, connection: Connection, row: ProposalRow) -> list[Vote]:
        """The votes on the present revision, in the order given. Votes on another plan do not count."""
        return [vote for vote, _ in self._votes(connection, row)]

    def _votes(self, connection: Connection, row: ProposalRow) -> list[tuple[Vote, Sealed | None]]:
        where = (VOTE.c.number == row.number) & (VOTE.c.revision == row.revision) & (VOTE.c.digest == row.digest)
        found: list[tuple[Vote, Sealed | None]] = []
        for values in connection.execute(select(VOTE).where(where).order_by(VOTE.c.id)).mappings():
            vote = Vote(
                subject=values["subject"], kind="human", account=values["account"],
                key=self._key(connection, row, values), verdict=values["verdict"], at_ms=values["at_ms"],
            )  # fmt: skip
            comment = values["comment"]
            found.append((vote, msgspec.json.decode(comment, type=Sealed) if comment else None))
        return found

    def _key(self, connection: Connection, row: ProposalRow, values: Mapping[Any, Any]) -> str:
        """The key that signed a vote, if the signature that is kept with it holds."""
        key: str = values["key"]
        if not key:
            return ""
        kept = values["signed"]
        signed = msgspec.json.decode(kept, type=Signed) if kept else None
        if signed is None or signed.subject != values["subject"]:
            return ""
        return key if self._policies.still_holds(connection, signed, key, row, values["verdict"]) else ""

    def tally(self, connection: Connection, row: ProposalRow, plan: Plan) -> VoteTally:
        """The votes counted by the roles and keys of now."""
        in_force = self._policies.current(connection)
        need = self._need(connection, plan, in_force)
        return self._tally(in_force, self.votes(connection, row), plan, need)

    def _tally(self, in_force: Policy, votes: list[Vote], plan: Plan, need: ApprovalNeed) -> VoteTally:
        scope = composition.scope_of(plan.steps)
        owner = self._policies.owner
        return approval_policy.tally(in_force, votes, plan.author, plan.requester, need, scope, owner=owner)

    def _line(self, connection: Connection, plan: Plan, vote: Vote, sealed: Sealed | None, why_not: str) -> VoteLine:
        return VoteLine(
            subject=vote.subject,
            verdict=vote.verdict,
            at_ms=vote.at_ms,
            comment="" if sealed is None else self._audit.reveal(connection, sealed.ref) or "(erased)",
            counts=why_not,
            one_account=vote.account == plan.author.account and vote.subject != plan.author.subject,
        )

    def too_late(self, connection: Connection, row: ProposalRow) -> RefusedError:
        """The refusal of a vote on a proposal that is no longer open, saying what became of it."""
        if row.executed_ms:
            return RefusedError(
                f"{row.id} was executed at {utc(row.executed_ms)}, approved by {self._approvers(connection, row)}",
                "Propose it again to run it once more",
            )
        if row.state == "expired":
            return RefusedError(f"{row.id} expired at {utc(row.expires_ms)}", "Propose it again")
        state = row.state.replace("_", " ")
        why = f": {row.note}" if row.note else ""
        if row.state == "approved":
            why = f", approved by {self._approvers(connection, row)}"
        return RefusedError(
            f"{row.id} is {state} since {utc(row.since_ms)}{why}", typed_plan.STATE_REMEDIES.get(row.state, "")
        )

    def _approvers(self, connection: Connection, row: ProposalRow) -> str:
        votes = self.votes(connection, row)
        return ", ".join(vote.subject for vote in votes if vote.verdict == "approve") or "nobody"

    # -- rules --------------------------------------------------------------------------------------------------------

    def broken_rules(
        self, connection: Connection, row: ProposalRow, plan: Plan, now_ms: int, *, of_author: bool = False
    ) -> tuple[str, ...]:
        """The limits that it would exceed, counted over what runs, what is approved and what was executed within the
        hour, by the tighter of the policy in force and its own; each with the rule's name. What those touched already
        counts once: taking a plan back needs no second share of the hour. What somebody does with their own work counts
        for them alone. `of_author`: also how much one may propose."""
        in_force = self._policies.current(connection)
        most = in_force.limits
        if plan.policy_digest != in_force.digest():
            most = run_limits.tighter(most, self._policies.get(connection, plan.policy_digest).limits)
        rules = [] if self.need(connection, plan).own else self._over(connection, row, plan, in_force, most, now_ms)
        if own := plan.blast.own:
            done = self._of_own(connection, row, now_ms)
            allowed = in_force.own_work.workloads_per_hour if in_force.own_work else 0
            if done + own.workloads > allowed:
                words = f"{done:,} workloads of their own this hour and {own.workloads:,} more, at most {allowed:,}"
                rules.append(f"{words} (own_work.workloads_per_hour)")
        if of_author:
            proposed = self._proposed(connection, row, now_ms)
            if proposed >= most.proposals_per_author_hour:
                rules.append(f"{proposed:,} proposals of {row.author} this hour (limits.proposals_per_author_hour)")
        return tuple(rules)

    def _over(
        self,
        connection: Connection,
        row: ProposalRow,
        plan: Plan,
        in_force: Policy,
        most: run_limits.PolicyLimits,
        now_ms: int,
    ) -> list[str]:
        others = [other for other in self._hour(connection, row, now_ms) if not other.blast.own]
        executions = ByTier(**{tier: sum(other.tier == tier for other in others) for tier in TIERS})
        size = self._size()
        blasts, out = [other.blast for other in others], [self._still_out(other) for other in others]
        small = run_limits.at_a_time(most, size)

        def by_pool(hour: Blast, now: Blast) -> tuple[tuple[str, int], ...]:
            return (
                *(each for each in hour.nodes if each[0] not in small),
                *(each for each in now.nodes if each[0] in small),
            )

        nodes = by_pool(composition.total(blasts), composition.total(out))
        used = msgspec.structs.replace(_usage(executions, blasts), nodes=nodes)
        more = composition.added(blasts, plan.blast)
        more = msgspec.structs.replace(more, nodes=by_pool(more, composition.added(out, plan.blast)))
        factor = in_force.break_glass.factor if row.breakglass else 1
        broken = run_limits.over(most, used, plan.tier, more, size, factor=factor)
        return [f"{one.words} ({one.rule})" for one in broken]

    def _hour(self, connection: Connection, row: ProposalRow, now_ms: int) -> list[CountedPlan]:
        """Other proposals that count towards the limits of the hour. A plan that was taken back counts too."""
        counts = or_(PROPOSAL.c.state.in_((*typed_plan.LIVE, "approved")), PROPOSAL.c.executed_ms > now_ms - HOUR_MS)
        columns = (PROPOSAL.c.tier, PROPOSAL.c.state, PROPOSAL.c.author, PROPOSAL.c.blast)
        query = select(*columns).where(counts & (PROPOSAL.c.number != row.number))
        return [
            CountedPlan(tier, state, author, msgspec.json.decode(kept, type=Blast))
            for tier, state, author, kept in connection.execute(query)
        ]

    def own_allowed(self, connection: Connection, row: ProposalRow, in_force: Policy, more: int, now_ms: int) -> bool:
        """True while the hour of its author has room for so many workloads of their own."""
        rule = in_force.own_work
        return bool(rule and self._of_own(connection, row, now_ms) + more <= rule.workloads_per_hour)

    def _of_own(self, connection: Connection, row: ProposalRow, now_ms: int) -> int:
        """Workloads of their own on which the same author acted within the hour, or is about to."""
        mine = (other.blast.own for other in self._hour(connection, row, now_ms) if other.author == row.author)
        return sum(own.workloads for own in mine if own)

    def _still_out(self, other: CountedPlan) -> Blast:
        """What a plan touched, without the nodes that are in service again now that it is done: what is mended and back
        is in the way of nothing."""
        blast = other.blast
        if other.state not in ("verified", "rolled_back"):
            return blast
        back = {id_ for id_, _, _ in blast.named_nodes if target_readings.in_service(self._engine, id_)}
        left = Counter(dict(blast.nodes))
        left.subtract(pool for id_, pool, _ in blast.named_nodes if id_ in back)
        return msgspec.structs.replace(
            blast,
            nodes=tuple(sorted(left.items())),
            named_nodes=tuple(node for node in blast.named_nodes if node[0] not in back),
        )

    def _size(self) -> Size:
        return Size(nodes=target_readings.pool_nodes(self._engine), gpu_milli=self._engine.state.capacity.totals[2])

    def _proposed(self, connection: Connection, row: ProposalRow, now_ms: int) -> int:
        """Other proposals by its author within the hour."""
        where = (
            (PROPOSAL.c.author == row.author)
            & (PROPOSAL.c.created_ms > now_ms - HOUR_MS)
            & (PROPOSAL.c.number != row.number)
        )
        return connection.execute(select(func.count()).select_from(PROPOSAL).where(where)).scalar_one()

    # -- words --------------------------------------------------------------------------------------------------------

    def listed(self, connection: Connection, row: ProposalRow) -> Proposal:
        """As `proposal`, for lists: what has ended is remembered, until it is changed or a text is erased. One whose
        stored plan was changed hides none of the others: it is shown without its plan."""
        try:
            return self._listed(connection, row)
        except (RefusedError, msgspec.MsgspecError) as error:
            return unreadable(row, error.problem if isinstance(error, RefusedError) else str(error))

    def _listed(self, connection: Connection, row: ProposalRow) -> Proposal:
        if row.state not in typed_plan.ENDED:
            return self._stored(connection, row)
        stamp = (row.serial, self._audit.erased)
        known = self._ended.get(row.number)
        if known is None or known[0] != stamp:
            if len(self._ended) >= MAX_REMEMBERED:
                self._ended.clear()
            known = self._ended[row.number] = (stamp, self._stored(connection, row))
        return known[1]

    def proposal(self, connection: Connection, row: ProposalRow) -> Proposal:
        """As it is shown, with what it takes back. Raises RefusedError when the stored plan is not the one that was
        voted on."""
        return self.in_context(connection, row, self._stored(connection, row))

    def in_context(self, connection: Connection, row: ProposalRow, shown: Proposal) -> Proposal:
        """With what it takes back; lists go without that."""
        return msgspec.structs.replace(shown, takes_back=self._takes_back(connection, row, shown.plan))

    def _stored(self, connection: Connection, row: ProposalRow) -> Proposal:
        plan, words, _ = store.plan_of(connection, row)
        reason = ""
        if plan.reason is not None:
            reason = self._audit.reveal(connection, plan.reason.ref) or "(erased)"
        return self.shown(connection, row, plan, words, reason)

    def shown(self, connection: Connection, row: ProposalRow, plan: Plan, words: RevisionText, reason: str) -> Proposal:
        in_force = self._policies.current(connection)
        need, votes = self._need(connection, plan, in_force), self._votes(connection, row)
        tally = self._tally(in_force, [vote for vote, _ in votes], plan, need)
        kept = store.standing(connection, row)
        is_open = row.state in typed_plan.OPEN
        return Proposal(
            id=row.id,
            plan=plan,
            digest=row.digest,
            tier=plan.tier,
            title=words.title,
            steps=words.steps,
            effects=plan.simulated.effects,
            inverse=words.inverse,
            version=plan.simulated.version,
            expires_ms=row.expires_ms,
            revision=row.revision,
            state=row.state,
            reason=reason,
            created_ms=row.created_ms,
            needs=tally.missing if is_open else 0,
            need=tally.wanted if is_open else "",
            self_approvable=need.self_ok,
            signed=need.signed,
            typed=need.typed,
            wants_reason=need.reason,
            why_tier=words.why_tier,
            votes=tuple(
                self._line(connection, plan, vote, sealed, why_not)
                for (vote, sealed), why_not in zip(votes, tally.why_not, strict=True)
            ),
            standing=tuple(kept[i] for i in sorted(kept)),
            stale=store.stale_of(row),
            note=row.note,
            breakglass=row.breakglass,
            carried=()
            if row.state in typed_plan.ENDED
            else target_readings.carried(self._engine, (s.act for s in plan.steps)),
        )

    def _takes_back(self, connection: Connection, row: ProposalRow, plan: Plan) -> tuple[EarlierPlan, ...]:
        """For each target the last plan that did to it what this one takes back."""
        targets = tuple(dict.fromkeys(target for step in plan.steps for target in step.act.targets))
        wanted = _pairs(step.act for step in plan.steps)
        found: list[EarlierPlan] = []
        for earlier in store.carried_out_before(connection, row, MAX_LOOKED_BACK):
            if not wanted:
                break
            try:
                its_plan, words, _ = store.plan_of(connection, earlier)
            except (RefusedError, msgspec.MsgspecError):
                continue
            undone = wanted & _pairs(act for step in its_plan.steps for act in step.rollback)
            # What did the same before leaves nothing to take back.
            wanted -= undone | _pairs(step.act for step in its_plan.steps)
            names = {target for _, target in undone}
            if names:
                of_it = tuple(target for target in targets if target in names)
                found.append(self._earlier(connection, earlier, its_plan, words, of_it))
        return tuple(found)

    def _earlier(
        self, connection: Connection, row: ProposalRow, plan: Plan, words: RevisionText, targets: tuple[str, ...]
    ) -> EarlierPlan:
        reason = plan.reason
        return EarlierPlan(
            proposal=row.id, title=words.title, targets=targets, author=plan.requester or plan.author.subject,
            approved_by=tuple(vote.subject for vote in self.votes(connection, row) if vote.verdict == "approve"),
            executed_ms=row.executed_ms,
            reason="" if reason is None else self._audit.reveal(connection, reason.ref) or "(erased)",
        )  # fmt: skip


def _usage(executions: ByTier, blasts: Iterable[Blast]) -> LimitUsage:
    whole = composition.total(blasts)
    return LimitUsage(
        executions=executions,
        gpu_milli=whole.gpu_milli,
        nodes=whole.nodes,
        workloads=whole.workloads,
        cost_microusd_hour=whole.cost_microusd_hour,
    )


def _pairs(acts: Iterable[Act]) -> set[tuple[str, str]]:
    return {(act.action, target) for act in acts for target in act.targets}


def unreadable(row: ProposalRow, why: str) -> Proposal:
    """A proposal whose plan cannot be shown: how it stands is all that is known. It can be neither voted on nor carried
    out."""
    plan = Plan(
        proposal=row.id, revision=row.revision, author=Party(subject=row.author, kind="system", account=""),
        origin=cast("Origin", row.origin), steps=(), tier="T3", blast=Blast(),
        simulated=Simulated(version=0, at_ms=0, effects=()), policy_digest=row.policy, expires_ms=row.expires_ms,
    )  # fmt: skip
    return Proposal(
        id=row.id, plan=plan, digest=row.digest, tier="T3", title="cannot be read", steps=(), effects=(),
        inverse="not known", version=0, expires_ms=row.expires_ms, revision=row.revision, state=row.state,
        created_ms=row.created_ms, note=why, breakglass=row.breakglass,
    )  # fmt: skip


GO_ON_WITHIN_MS = 24 * 3_600_000
"""How long after it began what was paused may go on: votes are not for ever."""


def what_differs(engine: Engine, row: ProposalRow, plan: Plan, number: int) -> tuple[Difference, ...]:
    """The differences between a step as shown and as it is now: targets in what it depends on, failed preconditions,
    and a higher tier."""
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
    tier, why = declaration.tier_and_why(action, step.act, now, pools, running)
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
    connection: Connection, policies: Policies, status: ProposalStatus, row: ProposalRow, plan: Plan, now_ms: int
) -> RefusedError | None:
    """Freezes and limits, which pass: what they are in the way of stays approved, or paused."""
    in_force = policies.current(connection)
    by_hand, scope = policies.freezes(connection), scope_of(plan.steps)
    window = approval_policy.frozen(in_force, by_hand, now_ms, plan.tier, scope)
    if not window and plan.policy_digest != in_force.digest():
        window = approval_policy.frozen(policies.get(connection, plan.policy_digest), (), now_ms, plan.tier, scope)
    if window and not (row.breakglass and in_force.break_glass.through_freezes):
        return RefusedError(f"{row.id} is in the freeze '{window}'", "Execute it after the freeze, or use break-glass")
    if row.executed_ms and now_ms > row.executed_ms + GO_ON_WITHIN_MS:
        return RefusedError(
            f"{row.id} began at {utc(row.executed_ms)}, and nobody has resumed it since",
            "Roll it back, or propose the remaining steps",
        )
    most_ms = plan.limits.duration_ms
    if most_ms is not None and row.executed_ms and now_ms > row.executed_ms + most_ms:
        return RefusedError(
            f"{row.id} had to finish within {span(most_ms)} and began at {utc(row.executed_ms)}",
            "Roll it back, or propose the remaining steps",
        )
    if plan.runbook is not None:
        unusable = why_not_usable(connection, policies, plan.runbook)
        if unusable:
            return RefusedError(f"{row.id} may not continue: {unusable}", "Propose it from what is approved now")
    if plan.rolls_back:
        first = store.found(connection, plan.rolls_back)
        if (first.state, "taken_back") not in typed_plan.EDGES:
            return RefusedError(f"{first.id} is {first.state.replace('_', ' ')} now", "Nothing to roll back")
    rules = status.broken_rules(connection, row, plan, now_ms)
    if rules:
        return RefusedError(f"{row.id} would exceed the hourly limits: {'; '.join(rules)}", "Execute it later")
    return None
