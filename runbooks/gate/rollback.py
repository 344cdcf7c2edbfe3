"""The way back: what was approved with a plan to undo it, taken step by step, the last first, each act once.

It is tried on a fork first. The votes on the plan cover it while it is no riskier than they knew and stops nothing that
runs; else it is put to the vote as a plan of its own, which names the one that it takes back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from engine.model.errors import JournalError, MusterError, RefusedError, SpecError
from runbooks.actions import catalogue, risk, target_readings
from runbooks.audit.log import Audit
from runbooks.gate import store
from runbooks.gate.composition import Composed, compose
from runbooks.gate.outbox import Outbox
from runbooks.gate.policy_versions import Policies
from runbooks.gate.store import ProposalRow
from runbooks.people.identity import SYSTEM, Actor
from runbooks.plans import proposal_states
from runbooks.plans.amounts import listed, utc, workloads
from runbooks.plans.typed_plan import Act, Plan, Request, Step, StepRequest
from runbooks.policy import approval_policy

if TYPE_CHECKING:
    from engine.control import Engine

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
        """What taking it back would do now, on a fork; None: all is as it was before already. `request` has what is
        asked besides. Raises RefusedError where nothing of it can be taken back."""
        proposal_states.after(row.state, "taken_back", row.id)
        done = [number for number in range(len(plan.steps)) if self._done(row, number)]
        if not done:
            raise RefusedError(f"nothing of {row.id} was done", "There is nothing to take back")
        if not any(plan.steps[number].rollback for number in done):
            raise RefusedError(f"{row.id} cannot be taken back", "Its actions have no inverse; see muster show")
        acts = [
            act
            for number in reversed(done)
            for part, act in enumerate(plan.steps[number].rollback)
            if not self._has_effect(store.back_key(row, number, part))
        ]
        if not any(target_readings.needed(self._engine, act) for act in acts):
            return None
        steps = tuple(StepRequest(act=act) for act in acts)
        found = compose(
            self._engine, msgspec.structs.replace(request, rolls_back=row.id, steps=steps), target_readings.needed
        )
        words = msgspec.structs.replace(found.words, title=f"Roll back {row.id}: {found.words.title}")
        return msgspec.structs.replace(found, words=words)

    def why_own_votes(self, row: ProposalRow, plan: Plan, found: Composed) -> str:
        """Why the votes on the plan do not cover what taking it back would do now; empty: they do, because it is not
        too late, stops nothing that runs, and is no riskier than it was when they were given."""
        if row.executed_ms + ROLLBACK_WITHIN_MS < self._now():
            return f"{row.id} was executed at {utc(row.executed_ms)}: too long ago for the votes that it got then"
        if found.tier > max(plan.tier, plan.rollback_tier):
            why = f": {'; '.join(found.words.why_tier)}" if found.words.why_tier else ""
            return f"rolling back {row.id} is {found.tier} now, and was approved as {plan.rollback_tier}{why}"
        count, stopped = found.blast.workloads, tuple(id_ for id_, _ in found.blast.named_work)
        if count:
            run = "runs" if count == 1 else "run"
            return f"rolling back {row.id} stops {workloads(count)} that {run} now: {listed(stopped)}"
        return ""

    def refuse_uncovered(self, row: ProposalRow, plan: Plan, found: Composed, reason: str) -> None:
        """Raises RefusedError where taking it back needs votes of its own, and where its tier wants a reason."""
        why = self.why_own_votes(row, plan, found)
        if why:
            remedy = f"It needs votes of its own: muster rollback {row.id} shows what it does and puts that to the vote"
            raise RefusedError(why, remedy)
        need = self._engine.recorded(
            lambda connection: approval_policy.need(
                self._policies.current(connection), found.tier, "person", found.scope
            )
        )
        if need.reason and not reason.strip():
            raise RefusedError(f"rolling back {row.id} is {found.tier}: say why", "Give a reason")

    def asked(self, request: Request) -> tuple[Composed, str]:
        """What rolling back the proposal that a request names would do now, and why that needs votes of its own; empty:
        it does not. Raises RefusedError where there is nothing to take back."""
        if request.steps:
            raise SpecError("steps", "are given beside rolls_back", "Leave them out: they come from what was done")
        row, plan = self._engine.record(lambda connection: found_with_plan(connection, request.rolls_back))
        found = self.tried(row, plan, request)
        if found is None:
            raise RefusedError(f"all that {row.id} did is as it was before", "There is nothing to take back")
        return found, self.why_own_votes(row, plan, found)

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
        if (first.state, "taken_back") not in proposal_states.EDGES:
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
        note = f"step {', '.join(kept)} cannot be taken back" if kept else ""
        return self._engine.record(
            lambda connection: store.move(
                connection, self._audit, row, "rolled_back", actor, now_ms, data={"kept": kept}, note=note
            )
        )

    def _undo_one(self, actor: Actor, row: ProposalRow, plan: Plan, number: int, part: int, act: Act) -> None:
        """One inverse act, once. What is as it was already needs nothing."""
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
            store.say(
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
        tier, why = risk.tier_and_why(action, act, targets, pools, running)
        stops = (*targets, *target_readings.read_work(self._engine, action, targets).values())
        if tier > plan.tier and any(risk.loses_work(action, target) for target in stops):
            told = f": {'; '.join(why)}" if why else ""
            raise RefusedError(
                f"{act.action} {listed(act.targets)}, the way back of step {step.id}, is {tier} now, and the plan was "
                f"approved as {plan.tier}{told}",
                f"Propose it for itself: {act.action}",
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
