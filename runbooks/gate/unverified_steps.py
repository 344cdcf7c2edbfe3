"""What a person can know, and do, about an intent to another scheduler of which nobody can tell whether it happened.

It can be settled, by as many as its plan needs votes of, and by none who may not vote on that plan: it accepts what
could not be verified. Of a submission, by who may submit. Each with a reason, on record. A submission can be carried
again: it needs no vote the first time either. An act cannot: the gate has each step of an approved plan done once,
under a key of its own, for the cell as it was when it was voted on. To have it once more is another act, proposed anew,
simulated on the cell as it is, and voted on; `IntentDetail.act` is what to propose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection, select

from engine.model import commands as cmd
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.intent_reports import IntentWord
from engine.state.intent_answers import in_doubt
from engine.state.intents import Intent, Phase, subjects_of, view_of, wanted
from runbooks.actions import catalogue, target_readings
from runbooks.audit.tables import record_table
from runbooks.gate import store
from runbooks.gate.composition import scope_of
from runbooks.gate.runbook_approvals import NOBODY
from runbooks.gate.store import EFFECT, VOTE, ProposalRow
from runbooks.people.identity import SYSTEM, WHOLE, Actor, Scope
from runbooks.plans.intent_queries import MIN_REASON, IntentAnswer, IntentDetail
from runbooks.plans.typed_plan import Act, Origin, Party, Plan, Tier
from runbooks.policy import approval_policy
from runbooks.policy.direct_requests import tag_of, touched_by

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.journal.event_journal import Beside
    from engine.model.commands import Receipt
    from runbooks.gate.approval_gate import Gate

MAX_NAMES = 50
"""Of what an intent is about, in the record."""
AGREED = "intent.agreed"
"""Type of the record of a word that others must say too."""
NEAR_MS = 60_000
"""By so much the wall clock of a record and the cell's may differ."""
GIVEN = ("priority_class", "qos", "priority", "queue")
"""Fields of commands that are an act's `to`."""


def detail(engine: Engine, gate: Gate, number: int) -> tuple[IntentDetail, Intent]:
    """All but what the other scheduler shows. On the engine's thread. Raises NotFoundError."""
    intent = engine.state.intents.known(number)
    if intent is None:
        raise NotFoundError(f"there is no intent i{number}", "The last 500 that were settled are kept: muster intents")
    left = engine.recorded(lambda connection: left_by(connection, intent))
    votes = engine.recorded(lambda connection: _votes(connection, left[0])) if left else ()
    command = wanted(intent)
    return IntentDetail(
        version=engine.version,
        now_ms=engine.now_ms,
        view=view_of(intent),
        wants=wants(command),
        words=tuple(IntentWord(at_ms=w.at_ms, phase=Phase(w.phase).label, text=w.text) for w in intent.words),
        proposal=left[0].id if left else "",
        by=left[0].author if left else "",
        agreed=votes,
        act=act_of(command),
    ), intent


def wants(command: cmd.AnyCommand) -> tuple[str, ...]:
    """What is asked for, in lines, as far as its name and its subjects do not say it."""
    if isinstance(command, cmd.Submit):
        spec = command.workloads[0]
        argv = " ".join(spec.run.argv) if spec.run is not None else ""
        tags = ", ".join(f"{name}={value}" for name, value in sorted(spec.tags.items()))
        told = {"queue": spec.queue, "tenant": spec.tenant, "team": spec.team, "tags": tags, "runs": argv}
        return tuple(f"{name} {value}" for name, value in told.items() if value)
    act = act_of(command)
    if act is None:
        return ()
    if act.reservation is not None:
        return (f"nodes {', '.join(act.reservation.nodes)}",)
    return (f"to {act.to}",) if act.to else ()


def act_of(command: cmd.AnyCommand) -> Act | None:
    """The act that comes to the same command; None where there is none."""
    action = catalogue.of_command(type(command))
    if action is None:
        return None
    if isinstance(command, cmd.Reserve):
        return Act(action=action, targets=(command.reservation.name,), reservation=command.reservation)
    to = next((str(getattr(command, field)) for field in GIVEN if hasattr(command, field)), "")
    act = Act(action=action, targets=subjects_of(command), to=to)
    return act if catalogue.command(act) == command else None


# -- who asked for it -------------------------------------------------------------------------------------------------


def left_by(connection: Connection, intent: Intent) -> tuple[ProposalRow, Plan] | None:
    """The proposal whose step, or the way back of whose step, left the intent."""
    action = catalogue.of_command(type(wanted(intent)))
    if action is None or not store.exist(connection):
        return None
    near = EFFECT.c.at_ms.between(intent.at_ms - NEAR_MS, intent.at_ms + NEAR_MS)
    found = connection.execute(select(EFFECT).where(near & (EFFECT.c.action == action))).mappings().all()
    for effect in sorted(found, key=lambda each: abs(each["at_ms"] - intent.at_ms)):
        row = store.find(connection, effect["number"])
        if row is None or row.revision != effect["revision"]:
            continue
        plan = store.plan_of(connection, row)[0]
        step = plan.steps[effect["step"]]
        acts = step.rollback if effect["back"] else (step.act,)
        if any(set(act.targets).issuperset(subjects_of(wanted(intent))) for act in acts if act.action == action):
            return row, plan
    return None


def _votes(connection: Connection, row: ProposalRow) -> tuple[str, ...]:
    of_plan = (VOTE.c.number == row.number) & (VOTE.c.revision == row.revision) & (VOTE.c.verdict == "approve")
    return tuple(connection.execute(select(VOTE.c.subject).where(of_plan).order_by(VOTE.c.id)).scalars())


# -- what Muster does again by itself ---------------------------------------------------------------------------------


def recorded_again(engine: Engine, gate: Gate, changes: Sequence[cmd.IntentChange]) -> Beside | None:
    """The records of acts that the other scheduler forgot, and that are done again under their first approval."""
    known = [(change, engine.state.intents.known(change.number)) for change in changes if change.phase == Phase.OPEN]
    again = [(change, wanted(intent)) for change, intent in known if intent is not None and intent.phase != Phase.OPEN]
    again = [(change, command) for change, command in again if not isinstance(command, cmd.Submit)]
    if not again:
        return None

    def beside(connection: Connection) -> None:
        for change, command in again:
            data = {
                "intent": change.number, "command": tag_of(command), "targets": list(subjects_of(command))[:MAX_NAMES],
                "why": change.text,
            }  # fmt: skip
            gate.audit.append(connection, "intent.again", SYSTEM, data=data)

    return beside


def frozen(engine: Engine, gate: Gate, number: int) -> str:
    """Why an act that the other scheduler forgot is not done again by itself now: a freeze holds that would stop its
    plan. Empty: none does."""
    intent = engine.state.intents.known(number)
    if intent is None:
        return ""

    def look(connection: Connection) -> str:
        tier, scope = _weight(left_by(connection, intent), intent)
        in_force, by_hand = gate.policies.current(connection), gate.policies.freezes(connection)
        return approval_policy.frozen(in_force, by_hand, gate.policies.clock(), tier, scope)

    name = gate.policies.looked(look)
    return f"slurmctld has forgotten it, and freeze {name} holds: it is not done again by itself" if name else ""


# -- a word on it -----------------------------------------------------------------------------------------------------


def answer(engine: Engine, gate: Gate, actor: Actor, said: IntentAnswer) -> Receipt:
    """Settle it, or have a submission carried again; with its record. On the engine's thread. Raises NotFoundError,
    SpecError, and RefusedError for one that is not in doubt, for whom the policy does not let, and while others must
    say the same: then the word is kept."""
    target_readings.check_text(said.reason, "reason", target_readings.MAX_COMMENT)
    if len(said.reason.strip()) < MIN_REASON:
        raise SpecError("reason", "is too short", f"Say what was found, in {MIN_REASON} characters or more")
    intent = in_doubt(engine.state, said.number)
    command = wanted(intent)
    if isinstance(command, cmd.Submit):
        gate.refuse_unless(actor, "submit", touched_by(command, outside=True))
    else:
        _agree(engine, gate, actor, said, intent)

    def beside(connection: Connection) -> None:
        sealed = gate.audit.seal(connection, said.reason)
        gate.audit.append(
            connection, "intent.answered", actor, private=(sealed,),
            data={
                "intent": said.number, "outcome": said.outcome, "command": tag_of(command),
                "targets": list(subjects_of(command))[:MAX_NAMES], "reason": [sealed.ref],
            },
        )  # fmt: skip

    said_by = cmd.AnswerIntent(number=said.number, outcome=said.outcome, by=actor.subject)
    return engine.command(said_by, beside=beside)


def _agree(engine: Engine, gate: Gate, actor: Actor, said: IntentAnswer, intent: Intent) -> None:
    """Raises RefusedError, on record, for whose word does not count: who says what came of it says what could not be
    verified, so that it takes as many, and as independent, as the plan did. Where others must say the same, the word
    is kept, and RefusedError says who."""
    left = engine.recorded(lambda connection: left_by(connection, intent))
    tier, scope = _weight(left, intent)
    proposal = left[0].id if left is not None else ""

    def look(connection: Connection) -> tuple[str, str]:
        in_force = gate.policies.current(connection)
        need, author, requester = _needed(in_force, left, tier, scope)
        words = [*_words(connection, said, actor), _word(actor, gate.policies.clock())]
        counted = approval_policy.tally(in_force, words, author, requester, need, scope, owner=gate.policies.owner)
        not_mine = counted.why_not[-1] and f"your word does not count: it {counted.why_not[-1]}"
        why_not = approval_policy.may(in_force, actor, "vote", tier, scope, owner=gate.policies.owner) or not_mine
        data: dict[str, object] = {"deed": "answer intent", "intent": intent.number}
        if why_not:
            gate.audit.append(connection, "command.refused", actor, proposal=proposal, data=data | {"why": why_not})
        elif counted.missing:
            sealed = gate.audit.seal(connection, said.reason)
            gate.audit.append(
                connection, AGREED, actor, proposal=proposal, private=(sealed,),
                data=data | {"outcome": said.outcome, "reason": [sealed.ref]},
            )  # fmt: skip
        return why_not, f"{counted.missing} more to say the same ({counted.wanted})" if counted.missing else ""

    why_not, wanted = engine.record(look)
    if why_not:
        raise RefusedError(f"you may not say what came of i{intent.number}: {why_not}", "Ask one who may")
    if wanted:
        raise RefusedError(
            f"your word is kept, and i{intent.number} stays in doubt: it is {tier} and needs {wanted}",
            f"They run: muster intents settle {intent.number} {said.outcome} --reason WHY",
        )


def _needed(
    in_force: approval_policy.Policy, left: tuple[ProposalRow, Plan] | None, tier: Tier, scope: Scope
) -> tuple[approval_policy.ApprovalNeed, Party, str]:
    """What its plan needs by the policy in force, its author, and who asked for it. A word is not signed."""
    plan = left[1] if left is not None else None
    author = plan.author if plan is not None else NOBODY
    origin: Origin = plan.origin if plan is not None else "person"
    need = approval_policy.need(in_force, tier, origin, scope, author=author.kind)
    return msgspec.structs.replace(need, signed=False), author, plan.requester if plan is not None else ""


def _word(actor: Actor, at_ms: int) -> approval_policy.Vote:
    return approval_policy.Vote(
        subject=actor.subject, kind=actor.kind, account=actor.account, verdict="approve", at_ms=at_ms, key=actor.key
    )


def _words(connection: Connection, said: IntentAnswer, actor: Actor) -> list[approval_policy.Vote]:
    """What others have said of it, the last of each, where that is the same."""
    query = select(record_table.c.body).where(record_table.c.type == AGREED).order_by(record_table.c.seq)
    last: dict[str, tuple[str, approval_policy.Vote]] = {}
    for body in connection.execute(query).scalars():
        record = msgspec.json.decode(body)
        if record["data"]["intent"] == said.number:
            who = msgspec.convert({key: record["actor"][key] for key in ("subject", "kind", "account", "key")}, Actor)
            last[who.subject] = record["data"]["outcome"], _word(who, record["at_ms"])
    return [vote for subject, (outcome, vote) in last.items() if outcome == said.outcome and subject != actor.subject]


def _weight(left: tuple[ProposalRow, Plan] | None, intent: Intent) -> tuple[Tier, Scope]:
    """How much it takes to say so: as much as to approve the plan that left it; without one, as its action at least."""
    if left is not None:
        return left[1].tier, scope_of(left[1].steps)
    action = catalogue.of_command(type(wanted(intent)))
    return "T2" if action is None else catalogue.find(action).tier, WHOLE
