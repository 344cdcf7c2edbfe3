"""After a step: rollbacks, the judging of canaries, and intents in doubt.

A rollback takes the way back that was approved with the plan, last step first, each act once. It is tried on a fork
first. The votes on the plan cover it while it is no riskier than they knew and stops nothing that runs. Otherwise it is
proposed as a plan of its own.

A canary is judged over a window of cell time, by the waits of first starts in it and of work that came in it and still
waits. It fails when the 95th percentile is more than `worst_permille` of what it was in as long a window before; where
the waits of other queues grew, it may have grown as much. A wait below a minute counts as a minute. Work that started
more than once is left out, because the wait of its first start is not kept.

An intent is in doubt when nobody can tell whether the other scheduler carried it out. It is settled by as many people
as its plan needs votes of, each with a reason on record; an intent of a submission by who may submit. A submission can
be carried again. An act cannot: `IntentDetail.act` is what to propose instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from sqlalchemy import Connection, select

from engine.model import commands as cmd
from engine.model.columns import view
from engine.model.errors import JournalError, MusterError, NotFoundError, RefusedError, SpecError
from engine.model.external_cells import SCHEDULERS, IntentWord
from engine.model.quantities import counted, shortlist, utc
from engine.model.specs import WorkloadState
from engine.state.external_cell import Intent, Phase, in_doubt, subjects_of, view_of, wanted
from runbooks.actions import catalogue, declaration, target_readings
from runbooks.audit.log import Audit, record_table
from runbooks.gate import approval_policy, store
from runbooks.gate.authority import NOBODY
from runbooks.gate.composition import Composed, compose, scope_of
from runbooks.gate.decisions import tag_of, touched_by
from runbooks.gate.policy_versions import Policies
from runbooks.gate.store import EFFECT, VOTE, Outbox, ProposalRow
from runbooks.plans import typed_plan
from runbooks.plans.amounts import span
from runbooks.plans.checks import Verdict
from runbooks.plans.identity import SYSTEM, WHOLE, Actor, Scope
from runbooks.plans.queries import MIN_REASON, IntentAnswer, IntentDetail
from runbooks.plans.typed_plan import Act, Origin, Party, Plan, QueueChange, Request, Step, StepRequest, Tier

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.journal.event_journal import Beside
    from engine.model.commands import Receipt
    from engine.state.cell_state import State
    from runbooks.gate.approval_gate import Gate


ROLLBACK_WITHIN_MS = 24 * 3_600_000
"""How long after it was executed the votes on a plan cover its way back."""
Do = Callable[[Actor, ProposalRow, Act, str, int, Callable[[Connection], None]], None]
"""Has the engine do one act: by whom, of which proposal, what, its key, when, and what is recorded beside it."""


class Rollback:
    """`do` is the executor's: there is one place where a plan reaches the engine."""

    def __init__(
        self,
        engine: Engine,
        audit: Audit,
        policies: Policies,
        outbox: Outbox,
        now: Callable[[], int],
        do: Do,
    ) -> None:
        self._engine = engine
        self._audit = audit
        self._policies = policies
        self._outbox = outbox
        self._now = now
        self._act = do

    def tried(self, row: ProposalRow, plan: Plan, request: Request) -> Composed | None:
        """The effect of taking it back now, tried on a fork; None: everything is as it was before. `request` has the
        reason and limits asked for. Raises RefusedError when nothing of it can be taken back."""
        left = self._left(row, plan, request)
        return None if left is None else self._composed(left)

    def _left(self, row: ProposalRow, plan: Plan, request: Request) -> Request | None:
        """The request with what is still to be taken back as its steps; None: nothing is."""
        typed_plan.after(row.state, "taken_back", row.id)
        done = [number for number in range(len(plan.steps)) if self._done(row, number)]
        if not done:
            raise RefusedError(f"no step of {row.id} was done", "Nothing to roll back")
        if not any(plan.steps[number].rollback for number in done):
            raise RefusedError(
                f"{row.id} cannot be rolled back", "Its actions have no inverse; see muster proposal show"
            )
        acts = [
            act
            for number in reversed(done)
            for part, act in enumerate(plan.steps[number].rollback)
            if not self._has_effect(store.back_key(row, number, part))
        ]
        if not any(target_readings.needed(self._engine, act) for act in acts):
            return None
        steps = tuple(StepRequest(act=act) for act in acts)
        return msgspec.structs.replace(request, rolls_back=row.id, steps=steps)

    def _composed(self, left: Request) -> Composed:
        found = compose(self._engine, left, target_readings.needed)
        words = msgspec.structs.replace(found.words, title=f"Roll back {left.rolls_back}: {found.words.title}")
        return msgspec.structs.replace(found, words=words)

    def why_own_votes(self, row: ProposalRow, plan: Plan, found: Composed) -> str:
        """The reason that the votes on the plan do not cover taking it back now: it is too late, stops running work, or
        is riskier than when they were given. Empty when they cover it."""
        if row.executed_ms + ROLLBACK_WITHIN_MS < self._now():
            return f"{row.id} was executed at {utc(row.executed_ms)}: its votes are too old for a rollback"
        if found.tier > max(plan.tier, plan.rollback_tier):
            why = f": {'; '.join(found.words.why_tier)}" if found.words.why_tier else ""
            return f"rolling back {row.id} is {found.tier} now, and was approved as {plan.rollback_tier}{why}"
        count, stopped = found.blast.workloads, tuple(id_ for id_, _ in found.blast.named_work)
        if count:
            run = "runs" if count == 1 else "run"
            return f"rolling back {row.id} stops {counted(count, 'workload')} that {run} now: {shortlist(stopped)}"
        return ""

    def refuse_uncovered(self, row: ProposalRow, plan: Plan, found: Composed, reason: str) -> None:
        """Raises RefusedError where taking it back needs votes of its own, and where its tier wants a reason."""
        why = self.why_own_votes(row, plan, found)
        if why:
            remedy = f"It needs votes of its own: muster proposal rollback {row.id} shows and proposes it"
            raise RefusedError(why, remedy)
        need = self._engine.recorded(
            lambda connection: approval_policy.need(
                self._policies.current(connection), found.tier, "person", found.scope
            )
        )
        if need.reason and not reason.strip():
            raise RefusedError(f"rolling back {row.id} is {found.tier}: a reason is required", "Give a reason")

    def composition(self, request: Request) -> Callable[[], Composed]:
        """What works out the effect of rolling back the proposal that a request names. Raises RefusedError when there
        is nothing to take back."""
        if request.steps:
            raise SpecError("steps", "cannot be combined with rolls_back", "Leave them out: they follow from the plan")
        row, plan = self._engine.record(lambda connection: found_with_plan(connection, request.rolls_back))
        left = self._left(row, plan, request)
        if left is None:
            raise RefusedError(f"everything {row.id} changed is already back", "Nothing to roll back")
        return lambda: self._composed(left)

    def why_votes_asked(self, request: Request, found: Composed) -> str:
        """`why_own_votes` of the proposal that a request names."""
        row, plan = self._engine.recorded(lambda connection: found_with_plan(connection, request.rolls_back))
        return self.why_own_votes(row, plan, found)

    def begin(
        self,
        connection: Connection,
        actor: Actor,
        row: ProposalRow,
        reason: str,
        now_ms: int,
        found: Composed | None = None,
    ) -> ProposalRow:
        """Inside a transaction: from here on the way back is gone to its end, whatever happens to the process. `found`:
        what it was seen to do."""
        sealed = (self._audit.seal(connection, reason),) if reason else ()
        data: dict[str, Any] = {"votes_of": row.id}
        if found is not None:
            data |= {"tier": found.tier, "at_version": found.simulated.version, "does": list(found.words.steps)[:20]}
        return store.move(
            connection, self._audit, row, "taken_back", actor, now_ms, data=data, private=sealed, note=""
        )  # fmt: skip

    def taken_by(self, connection: Connection, row: ProposalRow, plan: Plan, now_ms: int) -> None:
        """Inside the transaction in which a rollback with votes of its own is verified: what it takes back is."""
        if not plan.rolls_back:
            return
        first = store.found(connection, plan.rolls_back)
        if (first.state, "taken_back") not in typed_plan.EDGES:
            return
        data = {"votes_of": row.id}
        begun = store.move(connection, self._audit, first, "taken_back", SYSTEM, now_ms, data=data, note="")
        store.move(
            connection, self._audit, begun, "rolled_back", SYSTEM, now_ms, data=data, note=f"rolled back by {row.id}"
        )

    def take(self, actor: Actor, row: ProposalRow, plan: Plan) -> ProposalRow:
        """Every inverse of every step that was done and is not taken back yet."""
        now_ms = self._now()
        kept: list[str] = []
        for number in reversed(range(len(plan.steps))):
            step = plan.steps[number]
            if not self._done(row, number):
                continue
            if not step.rollback:
                kept.append(step.id)
                continue
            for part, act in enumerate(step.rollback):
                try:
                    self._undo_one(actor, row, plan, number, part, act)
                except JournalError:
                    raise
                except MusterError as error:
                    return self._undo_failed(actor, row, step, error)
        note = f"step {', '.join(kept)} cannot be rolled back" if kept else ""
        return self._engine.record(
            lambda connection: store.move(
                connection, self._audit, row, "rolled_back", actor, now_ms, data={"kept": kept}, note=note
            )
        )

    def _undo_one(self, actor: Actor, row: ProposalRow, plan: Plan, number: int, part: int, act: Act) -> None:
        """Does one inverse act, once. A target that is as it was needs nothing."""
        now_ms = self._now()
        step = plan.steps[number]
        key = store.back_key(row, number, part)
        if self._has_effect(key):
            return
        act, nothing = self._as_needed(plan, step, act)

        def beside(connection: Connection) -> None:
            store.refuse_second(connection, key, row)
            version = self._engine.version
            effect = {
                "key": key, "number": row.number, "revision": row.revision, "step": number, "back": True,
                "action": act.action, "at_ms": now_ms, "version": version, "changed": msgspec.json.encode(act.targets),
            }  # fmt: skip
            standing = msgspec.structs.replace(store.standing(connection, row)[number], state="rolled_back")
            rows = {
                **store.add_effect(connection, effect),
                **store.set_standing(connection, self._audit, row, number, standing),
            }
            store.add_record(
                connection, self._audit, row, "exec.effect" if not nothing else "exec.needless", actor,
                {"key": key, "action": act.action, "targets": list(act.targets)[:100], "version": version},
                step=step.id, rows=rows,
            )  # fmt: skip

        if nothing:
            self._engine.record(beside)
        else:
            self._act(actor, row, act, key, now_ms, beside)

    def _as_needed(self, plan: Plan, step: Step, act: Act) -> tuple[Act, bool]:
        """An act of the way back without what has gone, or is as it was; and whether nothing is left of it. Raises
        RefusedError where it would disrupt more than was voted on: it was mild when it was shown, and work has come to
        where it leads since."""
        left = target_readings.needed(self._engine, act)
        if left is None:
            return act, True
        act, action = left, catalogue.find(act.action)
        targets = target_readings.still_there(self._engine, action, act)
        pools, running = target_readings.pool_nodes(self._engine), target_readings.bound(self._engine)
        tier, why = declaration.tier_and_why(action, act, targets, pools, running)
        stops = (*targets, *target_readings.read_work(self._engine, action, targets).values())
        if tier > plan.tier and any(declaration.loses_work(action, target) for target in stops):
            told = f": {'; '.join(why)}" if why else ""
            raise RefusedError(
                f"{act.action} {shortlist(act.targets)}, the rollback of step {step.id}, is {tier} now, and the plan "
                f"approved as {plan.tier}{told}",
                f"Propose it on its own: {act.action}",
            )
        return act, False

    def _undo_failed(self, actor: Actor, row: ProposalRow, step: Step, error: MusterError) -> ProposalRow:
        now_ms = self._now()

        def write(connection: Connection) -> ProposalRow:
            for channel in self._policies.current(connection).paged():
                self._outbox.put(
                    connection, f"{row.digest}:{row.serial}:rollback_failed:{channel}", row.number, channel,
                    f"{row.id} could not be rolled back: step {step.id}: {error.problem}"[:500], now_ms,
                )  # fmt: skip
            return store.move(
                connection, self._audit, row, "rollback_failed", actor, now_ms,
                data={"step": step.id, "why": error.problem[:500]}, note=f"step {step.id}: {error.problem}",
            )  # fmt: skip

        return self._engine.record(write)

    def _done(self, row: ProposalRow, number: int) -> bool:
        return self._has_effect(store.effect_key(row, number))

    def _has_effect(self, key: str) -> bool:
        return self._engine.record(lambda connection: store.has_effect(connection, key))


def found_with_plan(connection: Connection, proposal_id: str) -> tuple[ProposalRow, Plan]:
    """Raises NotFoundError, and RefusedError when the stored plan is not the one that was voted on."""
    row = store.found(connection, proposal_id)
    return row, store.plan_of(connection, row)[0]


SHORT_MS = 60_000
"""WindowWaits below this are as good as none."""
Rows = np.ndarray[Any, np.dtype[Any]]


class WindowWaits(msgspec.Struct, frozen=True, kw_only=True):
    """The waits of a group of queues over one window."""

    starts: int
    p95_ms: int
    """Of the waits; SHORT_MS where they are shorter, or there are none."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    text: str
    """In words, with the figures."""
    before: WindowWaits
    after: WindowWaits
    others_permille: int
    """Waits of the other queues after it, in permille of those before it, at least 1000; 1000 where nothing is known
    of them."""


def judge(engine: Engine, act: Act, since_ms: int) -> Judgement | None:
    """The judgement of the canary that began at that cell time. None while its window is not over. Raises NotFoundError
    for queues that are gone."""
    canary = act.canary
    assert canary is not None, "only a canary is judged"
    end_ms = since_ms + canary.window_ms
    if engine.now_ms < end_ms:
        return None
    mine = queues_of(engine, act)
    before = waits(engine, mine, since_ms - canary.window_ms, since_ms)
    after = waits(engine, mine, since_ms, end_ms)
    others = ~mine
    was, is_ = (waits(engine, others, end - canary.window_ms, end) for end in (since_ms, end_ms))
    known = min(was.starts, is_.starts) >= canary.least_starts
    others_permille = max(1000, is_.p95_ms * 1000 // was.p95_ms) if known else 1000
    found = after.p95_ms * 1000 // before.p95_ms
    text = (
        f"waits p95 {span(after.p95_ms)} of {after.starts:,} starts, before {span(before.p95_ms)} of "
        f"{before.starts:,}: {found / 10:,.12g}%"
    )
    if known:
        text += f"; of other queues {others_permille / 10:,.12g}%"
    verdict: Verdict = "success"
    if min(before.starts, after.starts) < canary.least_starts:
        verdict = "inconclusive"
        text += f"; {canary.least_starts:,} starts are needed on both sides"
    elif found * 1000 > canary.worst_permille * others_permille:
        verdict = "failure"
    return Judgement(verdict=verdict, text=text, before=before, after=after, others_permille=others_permille)


def queues_of(engine: Engine, act: Act) -> Rows:
    """A mask by queue row: the canary is in it."""
    tree = engine.state.queues
    mine: Rows = np.zeros(len(tree.specs), bool)
    if act.canary is not None and act.canary.policy is not None:
        mine[:] = True
        return mine
    for name in act.targets:
        for leaf in engine.queue(name).leaves:
            mine[tree.row_of[leaf]] = True
    return mine


def waits(engine: Engine, queues: Rows, from_ms: int, to_ms: int) -> WindowWaits:
    """The waits of workloads in these queues over a past window of cell time. The end is excluded: work that starts at
    the moment of the change starts because of it."""
    w = engine.state.workloads
    none = WindowWaits(starts=0, p95_ms=SHORT_MS)
    if not w.ids or not queues.any():
        return none
    came, started, attempts = view(w.submitted), view(w.started), view(w.attempts)
    mine = queues[view(w.queue)]
    begun = mine & (attempts == 1) & (started >= from_ms) & (started < to_ms)
    # What a person holds or that waits for others is not kept waiting by any order.
    later = (attempts == 1) & (started >= to_ms)
    waiting = mine & (came >= from_ms) & (came < to_ms) & (later | (view(w.state) == WorkloadState.QUEUED))
    waiting &= later | (attempts == 0)
    found = np.sort(np.concatenate(((started - came)[begun], to_ms - came[waiting])))
    if not len(found):
        return none
    nearest = -(-95 * len(found) // 100) - 1
    return WindowWaits(starts=int(begun.sum()), p95_ms=max(SHORT_MS, int(found[nearest])))


MAX_NAMES = 50
"""Of what an intent is about, in the record."""
AGREED = "intent.agreed"
"""Type of the record of a word that others must say too."""
NEAR_MS = 60_000
"""By so much the wall clock of a record and the cell's may differ."""
GIVEN = ("priority_class", "qos", "priority", "queue")
"""Fields of commands that are an act's `to`."""


def detail(engine: Engine, gate: Gate, number: int) -> tuple[IntentDetail, Intent]:
    """All of an intent except what the other scheduler shows. On the engine's thread. Raises NotFoundError."""
    intent = engine.state.intents.known(number)
    if intent is None:
        raise NotFoundError(
            f"there is no intent i{number}", "The last 500 that were settled are kept: muster intent list"
        )
    left = engine.recorded(lambda connection: left_by(connection, intent))
    votes = engine.recorded(lambda connection: _votes(connection, left[0])) if left else ()
    command = wanted(intent)
    return IntentDetail(
        version=engine.version,
        now_ms=engine.now_ms,
        view=view_of(intent),
        scheduler=SCHEDULERS[engine.state.settings.decided_by],
        wants=wants(command),
        words=tuple(IntentWord(at_ms=w.at_ms, phase=Phase(w.phase).label, text=w.text) for w in intent.words),
        proposal=left[0].id if left else "",
        by=left[0].author if left else "",
        agreed=votes,
        act=act_of(command, engine.state),
    ), intent


def wants(command: cmd.AnyCommand) -> tuple[str, ...]:
    """Lines about an intent's command, apart from its name and subjects."""
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


def act_of(command: cmd.AnyCommand, state: State | None = None) -> Act | None:
    """The act that comes to the same command; None where there is none. Of a change of a queue that is one from what
    the queue has in `state`, so there is none without it."""
    action = catalogue.of_command(type(command))
    if action is None:
        return None
    if isinstance(command, cmd.ChangeQueue):
        row = None if state is None else state.queues.row_of.get(command.queue.name)
        if state is None or row is None:
            return None
        change = QueueChange(was=state.queues.specs[row], to=command.queue, over=command.over)
        return Act(action=action, targets=(command.queue.name,), queue=change)
    if isinstance(command, cmd.Reserve):
        return Act(action=action, targets=(command.reservation.name,), reservation=command.reservation)
    if isinstance(command, cmd.TaintNodes):
        return Act(action="untaint" if command.remove else "taint", targets=command.ids, taint=command.taint)
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
    """The reason that an act which the other scheduler forgot is not repeated now: a freeze holds that would stop its
    plan. Empty when none does."""
    intent = engine.state.intents.known(number)
    if intent is None:
        return ""

    def look(connection: Connection) -> str:
        tier, scope = _weight(left_by(connection, intent), intent)
        in_force, by_hand = gate.policies.current(connection), gate.policies.freezes(connection)
        return approval_policy.frozen(in_force, by_hand, gate.policies.clock(), tier, scope)

    name = gate.policies.looked(look)
    return f"slurmctld has lost it, and freeze {name} is in effect: it is not done again automatically" if name else ""


# -- a word on it -----------------------------------------------------------------------------------------------------


def answer(engine: Engine, gate: Gate, actor: Actor, said: IntentAnswer) -> Receipt:
    """Settle it, or have a submission carried again; with its record. On the engine's thread. Raises NotFoundError,
    SpecError, and RefusedError for one that is not in doubt, for whom the policy does not let, and while others must
    say the same: then the word is kept."""
    typed_plan.check_line(said.reason, "reason", typed_plan.MAX_COMMENT)
    if len(said.reason.strip()) < MIN_REASON:
        raise SpecError("reason", "is too short", f"Say what you found, in {MIN_REASON} characters or more")
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
        words = [*_words(connection, said, actor), approval_policy.vote_of(actor, "approve", gate.policies.clock())]
        counted = approval_policy.tally(in_force, words, author, requester, need, scope, owner=gate.policies.owner)
        not_mine = counted.why_not[-1] and f"your answer does not count: it {counted.why_not[-1]}"
        why_not = gate.policies.why_not(connection, actor, "vote", tier, scope) or not_mine
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
        raise RefusedError(f"you may not settle i{intent.number}: {why_not}", "Ask somebody with that role")
    if wanted:
        raise RefusedError(
            f"your answer is recorded, and i{intent.number} is still in doubt: it is {tier} and needs {wanted}",
            f"They run: muster intent settle {intent.number} {said.outcome} --reason WHY",
        )


def _needed(
    in_force: approval_policy.Policy, left: tuple[ProposalRow, Plan] | None, tier: Tier, scope: Scope
) -> tuple[approval_policy.ApprovalNeed, Party, str]:
    """The need of the intent's plan by the policy in force, its author, and its requester. A word on an intent is not
    signed."""
    plan = left[1] if left is not None else None
    author = plan.author if plan is not None else NOBODY
    origin: Origin = plan.origin if plan is not None else "person"
    need = approval_policy.need(in_force, tier, origin, scope, author=author.kind)
    return msgspec.structs.replace(need, signed=False), author, plan.requester if plan is not None else ""


def _words(connection: Connection, said: IntentAnswer, actor: Actor) -> list[approval_policy.Vote]:
    """The votes of others who last said the same of this intent."""
    query = select(record_table.c.body).where(record_table.c.type == AGREED).order_by(record_table.c.seq)
    last: dict[str, tuple[str, approval_policy.Vote]] = {}
    for body in connection.execute(query).scalars():
        record = msgspec.json.decode(body)
        if record["data"]["intent"] == said.number:
            who = msgspec.convert({key: record["actor"][key] for key in ("subject", "kind", "account", "key")}, Actor)
            last[who.subject] = record["data"]["outcome"], approval_policy.vote_of(who, "approve", record["at_ms"])
    return [vote for subject, (outcome, vote) in last.items() if outcome == said.outcome and subject != actor.subject]


def _weight(left: tuple[ProposalRow, Plan] | None, intent: Intent) -> tuple[Tier, Scope]:
    """The tier and scope whose need applies: those of the plan that left the intent, else at least its action's
    tier."""
    if left is not None:
        return left[1].tier, scope_of(left[1].steps)
    action = catalogue.of_command(type(wanted(intent)))
    return "T2" if action is None else catalogue.find(action).tier, WHOLE
