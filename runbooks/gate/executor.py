"""The executor: the only code that carries out plans.

It claims an approved plan, looks again before every step, writes a step's effect and record in one transaction, and
reads the effect back. `runbooks.gate.aftermath` takes it back where that is asked for.

Each effect happens exactly once: its key is unique in the database, in the transaction that journals what the engine
did. A killed process has done a step with its record, or neither. At the next start a mild and recent plan goes on
after another look; any other waits for a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, insert, select

from engine.model import spans
from engine.model.errors import JournalError, MusterError, NotFoundError, RefusedError
from engine.model.events import AuditEntry
from engine.model.quantities import utc
from runbooks.actions import catalogue, target_readings, wording
from runbooks.audit.log import NO_ROWS, Audit, Rows, kept
from runbooks.gate import aftermath, approval_policy, store
from runbooks.gate.aftermath import Rollback, found_with_plan
from runbooks.gate.composition import scope_of
from runbooks.gate.policy_versions import Policies
from runbooks.gate.proposal_status import ProposalStatus, what_differs, why_not_now
from runbooks.gate.store import CONFIRMATION, Outbox, ProposalRow
from runbooks.plans import typed_plan
from runbooks.plans.check_readings import evaluate
from runbooks.plans.checks import Verdict
from runbooks.plans.identity import SYSTEM, Actor
from runbooks.plans.typed_plan import Act, Difference, Outcome, Plan, Request, Step, StepStanding, Target

if TYPE_CHECKING:
    from engine.control import Engine

RESUME_WITHIN_MS = 120_000
"""After a crash: how old a mild plan may be to go on by itself."""


class PlanExecutor:
    """Holds the engine's mutating handle for plans. `now` gives wall time in Unix milliseconds."""

    def __init__(
        self,
        engine: Engine,
        audit: Audit,
        policies: Policies,
        status: ProposalStatus,
        outbox: Outbox,
        now: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._audit = audit
        self._policies = policies
        self._status = status
        self._outbox = outbox
        self._now = now
        self.way_back = Rollback(engine, audit, policies, outbox, now, self._act)

    # -- from approved to done ----------------------------------------------------------------------------------------

    def execute(self, actor: Actor, proposal_id: str) -> Outcome:
        """Carry out what is approved; go on with what was interrupted."""
        row, plan = self._read(proposal_id)
        spans.remember(row.id)
        if row.state == "executing":
            return self._go_on(actor, row, plan)
        typed_plan.after(row.state, "claimed", row.id)
        return self._go_on(actor, self._claim(actor, row, plan), plan, looked=True)

    def _claim(self, actor: Actor, row: ProposalRow, plan: Plan) -> ProposalRow:
        """Moves an approved proposal to executing, if everything that was approved still holds. A second claim finds it
        claimed."""
        now_ms = self._now()
        differences = what_differs(self._engine, row, plan, 0)
        if differences:
            raise self._stale(actor, row, differences, now_ms)

        def write(connection: Connection) -> ProposalRow | RefusedError:
            found = self._policies.authority.of(connection, row, plan)
            if found.changed or (found.lacks and row.breakglass):
                why = found.changed or found.lacks
                store.add_record(connection, self._audit, row, "exec.refused", actor, {"why": why[:500]})
                return unauthorised(row, why)
            if now_ms >= row.expires_ms:
                store.move(connection, self._audit, row, "expired", SYSTEM, now_ms)
                return RefusedError(f"{row.id} expired at {utc(row.expires_ms)}", "Propose it again")
            if found.lacks or (not row.breakglass and self._status.tally(connection, row, plan).missing):
                store.add_record(connection, self._audit, row, "exec.refused", actor, {"why": "votes no longer count"})
                store.move(connection, self._audit, row, "fell_short", SYSTEM, now_ms, expires_ms=plan.expires_ms)
                return RefusedError(
                    f"{row.id} lacks a vote: a vote no longer counts",
                    "muster proposal show says which and why",
                )
            why_not = why_not_now(connection, self._policies, self._status, row, plan, now_ms)
            if why_not is not None:
                store.add_record(connection, self._audit, row, "exec.refused", actor, {"why": why_not.problem[:500]})
                return why_not
            return store.move(connection, self._audit, row, "claimed", actor, now_ms, executed_ms=now_ms, cursor=0)

        claimed = self._engine.record(write)
        if isinstance(claimed, RefusedError):
            raise claimed
        return claimed

    def _stale(self, actor: Actor, row: ProposalRow, differences: tuple[Difference, ...], now_ms: int) -> RefusedError:
        """Record it, and give what to raise."""
        told_all = "; ".join(difference.text for difference in differences)
        self._engine.record(
            lambda connection: store.move(
                connection, self._audit, row, "staled", actor, now_ms, data={"why": told_all[:2000]},
                note=told_all, stale=msgspec.json.encode(differences),
            )
        )  # fmt: skip
        return RefusedError(
            f"{row.id} is stale, nothing was done: {told_all}", "Propose it again to see what it would do now"
        )

    def _go_on(self, actor: Actor, row: ProposalRow, plan: Plan, *, looked: bool = False) -> Outcome:
        """Do one step after the other, as far as that goes now. `looked`: everything was looked at just now."""
        while row.state == "executing":
            refused = None if looked else self._look_before(row, plan)
            looked = False
            if refused is not None:
                row = refused
                break
            row = self._do(actor, row, plan)
            row = self._verify(actor, row, plan)
        self._audit.after(at_once=row.state in typed_plan.ENDED)
        return self._outcome(row, plan)

    def _look_before(self, row: ProposalRow, plan: Plan) -> ProposalRow | None:
        """Before a step that was not claimed just now: freezes, roles, limits, targets and preconditions once more. The
        row, paused, where something is in the way."""
        now_ms = self._now()
        differences = what_differs(self._engine, row, plan, row.cursor)

        def write(connection: Connection) -> ProposalRow | None:
            why = ""
            if differences:
                why = "; ".join(difference.text for difference in differences)
            elif not row.breakglass and self._status.tally(connection, row, plan).missing:
                why = "a vote no longer counts"
            elif (refused := why_not_now(connection, self._policies, self._status, row, plan, now_ms)) is not None:
                why = refused.problem
            if not why:
                return None
            return store.move(
                connection, self._audit, row, "paused", SYSTEM, now_ms,
                data={"step": plan.steps[row.cursor].id, "why": why[:500]},
                note=f"before step {plan.steps[row.cursor].id}: {why}", stale=msgspec.json.encode(differences),
            )  # fmt: skip

        return self._engine.record(write)

    def _do(self, actor: Actor, row: ProposalRow, plan: Plan) -> ProposalRow:
        """The step at the cursor, with its record, in one transaction. Raises what the engine refuses, after saying so
        on record; a failure to record leaves everything as it was."""
        now_ms = self._now()
        number = row.cursor
        step = plan.steps[number]
        if step.confirm != "none" and not self._engine.record(lambda c: self._confirmed(c, row, number)):
            return self._engine.record(
                lambda connection: store.move(
                    connection, self._audit, row, "paused", SYSTEM, now_ms, data={"step": step.id},
                    note=f"step {step.id} waits for confirmation by an {step.confirm}",
                )
            )  # fmt: skip
        moved: list[ProposalRow] = []

        changed = tuple(dict.fromkeys((*step.act.targets, *(target.id for target in step.stops))))

        def beside(connection: Connection) -> None:
            moved.append(self._write_effect(connection, actor, row, plan, number, changed, now_ms))

        try:
            with spans.span("plan.step", muster_proposal=row.id, muster_step=step.id, muster_action=step.act.action):
                self._act(actor, row, step.act, store.effect_key(row, number), now_ms, beside)
        except JournalError:
            raise
        except MusterError as error:
            failed = self._fail(row, step, error)
            if failed.state == "rolling_back":
                self.way_back.take(SYSTEM, failed, plan)
            raise
        return moved[-1]

    def _act(
        self,
        actor: Actor,
        row: ProposalRow,
        act: Act,
        key: str,
        now_ms: int,
        beside: Callable[[Connection], None],
    ) -> None:
        """The one place where a plan reaches the engine."""
        if not catalogue.find(act.action).command:
            self._engine.record(beside)
            return
        entry = AuditEntry(
            at_wall_ms=now_ms,
            actor=actor.subject,
            action=act.action,
            digest=row.digest,
            plan=msgspec.json.encode(act, order="sorted"),
            key=key,
        )
        self._engine.command(catalogue.command(act), audit=entry, beside=beside)

    def _write_effect(
        self,
        connection: Connection,
        actor: Actor,
        row: ProposalRow,
        plan: Plan,
        number: int,
        changed: tuple[str, ...],
        now_ms: int,
    ) -> ProposalRow:
        """Writes all records of a step that is being done."""
        step = plan.steps[number]
        version = self._engine.version
        key = store.effect_key(row, number)
        store.refuse_second(connection, key, row)
        effect = {
            "key": key, "number": row.number, "revision": row.revision, "step": number, "back": False,
            "action": step.act.action, "at_ms": now_ms, "version": version, "changed": msgspec.json.encode(changed),
        }  # fmt: skip
        rows = {
            **store.add_effect(connection, effect),
            **self._beside_engine(connection, actor, row, step, key, now_ms),
        }
        standing = StepStanding(
            id=step.id, state="done", at_ms=now_ms, version=version, cell_ms=self._engine.now_ms, changed=changed
        )
        rows |= store.set_standing(connection, self._audit, row, number, standing)
        store.add_record(
            connection, self._audit, row, "exec.effect", actor,
            {"key": key, "action": step.act.action, "targets": list(step.act.targets)[:100], "version": version},
            step=step.id, rows=rows,
        )  # fmt: skip
        return store.move(
            connection, self._audit, row, "acted", actor, now_ms,
            data={"step": step.id}, cursor=number + 1, verify_by_ms=now_ms + step.timeout_ms, note="",
        )  # fmt: skip

    def _beside_engine(
        self, connection: Connection, actor: Actor, row: ProposalRow, step: Step, key: str, now_ms: int
    ) -> Rows:
        """Writes messages and reviews, for actions without an engine command. Returns the rows of reviews for the
        record of the effect."""
        note, rows = step.act.note, dict(NO_ROWS)
        if note is None:
            return rows
        for target in step.act.targets:
            if step.act.action == "notify":
                self._outbox.put(connection, f"{key}:{target}", row.number, target, note.text, now_ms)
            else:
                values = {
                    "number": row.number, "about": target, "subject": actor.subject, "forced": False,
                    "text": note.text, "opened_ms": now_ms,
                }  # fmt: skip
                rows |= store.add_review(connection, values)[1]
        return rows

    def _fail(self, row: ProposalRow, step: Step, error: MusterError) -> ProposalRow:
        """The engine refused the step: nothing of it has happened. A way back that follows is begun with that, so that
        no end of the process comes between."""
        now_ms = self._now()
        event: typed_plan.Event = "failed" if row.cursor == 0 or step.on_fail != "pause" else "paused"

        def write(connection: Connection) -> ProposalRow:
            failed = store.move(
                connection, self._audit, row, event, SYSTEM, now_ms, data={"step": step.id, "why": error.problem[:500]},
                note=f"step {step.id}: {error.problem}",
            )  # fmt: skip
            if step.on_fail == "rollback" and row.cursor > 0:
                return self.way_back.begin(connection, SYSTEM, failed, f"step {step.id} was refused", now_ms)
            return failed

        return self._engine.record(write)

    # -- reading back -------------------------------------------------------------------------------------------------

    def look_again(self, proposal_id: str) -> None:
        """Reads back a step whose effect takes its time. Called as time passes."""
        row, plan = self._read(proposal_id)
        if row.state == "verifying":
            with spans.going_on(spans.remembered(proposal_id)):
                row = self._verify(SYSTEM, row, plan)
                if row.state == "executing":
                    self._go_on(SYSTEM, row, plan)

    def _verify(self, actor: Actor, row: ProposalRow, plan: Plan) -> ProposalRow:
        """Reads back the step before the cursor and moves the proposal: verified, not yet, or failed."""
        if row.state != "verifying":
            return row
        now_ms = self._now()
        number = row.cursor - 1
        step = plan.steps[number]
        verdict, lines = self._read_back(row, step, now_ms)
        last = row.cursor == len(plan.steps)

        def write(connection: Connection) -> ProposalRow:
            standing = store.standing(connection, row)[number]
            state: Any = {"success": "verified", "failure": "failed", "inconclusive": "inconclusive"}[verdict]
            seen_before = standing.state == state and standing.verified == lines
            if verdict == "inconclusive" and seen_before:
                return row
            rows = NO_ROWS
            if not seen_before:
                new = msgspec.structs.replace(standing, state=state, verified=lines)
                rows = store.set_standing(connection, self._audit, row, number, new)
            data = {"step": step.id, "found": [line[:200] for line in lines][:20]}
            store.add_record(
                connection,
                self._audit,
                row,
                "exec.verify",
                actor,
                {"verdict": verdict, **data},
                step=step.id,
                rows=rows,
            )
            if verdict == "inconclusive":
                return row
            if verdict == "success":
                event: typed_plan.Event = "verified" if last else "continued"
                if last:
                    self.way_back.taken_by(connection, row, plan, now_ms)
                return store.move(connection, self._audit, row, event, SYSTEM, now_ms, data={"step": step.id})
            event = "paused" if step.on_fail == "pause" else "failed"
            note = f"step {step.id} could not be verified: {'; '.join(lines)}"
            failed = store.move(connection, self._audit, row, event, SYSTEM, now_ms, data=data, note=note)
            if step.on_fail == "rollback":
                return self.way_back.begin(connection, SYSTEM, failed, f"step {step.id} could not be verified", now_ms)
            return failed

        row = self._engine.record(write)
        return self.way_back.take(SYSTEM, row, plan) if row.state == "rolling_back" else row

    def _read_back(self, row: ProposalRow, step: Step, now_ms: int) -> tuple[Verdict, tuple[str, ...]]:
        """The verdict on a step that is done, and what was read."""
        action = catalogue.find(step.act.action)
        in_time = now_ms < row.verify_by_ms
        lines: list[str] = []
        verdicts: list[Verdict] = []
        if action.command:
            try:
                found = target_readings.read(self._engine, action, step.act, executed=True)
            except NotFoundError as gone:
                return "failure", (f"NOT verified: {gone.problem}",)
            after = {target.id: target for target in found}
            if target_readings.is_outside(self._engine):
                verdict, told = self._read_outside(row, step, after, in_time=in_time)
                lines += told
                verdicts.append(verdict)
            else:
                for before in step.shown:
                    lines.append(wording.check(step.act, before, after[before.id], in_time=in_time))
                    verdicts.append(catalogue.verdict(step.act, before, after[before.id], in_time=in_time))
        if step.act.canary is not None:
            verdict, line = self._judged(row, step, in_time=in_time)
            lines.append(line)
            verdicts.append(verdict)
        for check in step.verify:
            finding = evaluate(self._engine, check)
            waits = check.within_ms > 0 and now_ms < row.since_ms + check.within_ms
            held = finding.verdict == "success"
            lines.append(f"{'verified' if held else 'NOT verified'}: {finding.found}")
            verdicts.append("success" if held else "inconclusive" if waits and in_time else "failure")
        if "failure" in verdicts:
            return "failure", tuple(lines)
        return ("inconclusive" if "inconclusive" in verdicts else "success"), tuple(lines)

    def _read_outside(
        self, row: ProposalRow, step: Step, after: Mapping[str, Target], *, in_time: bool
    ) -> tuple[Verdict, list[str]]:
        """The verdict where another scheduler decides: by its reading of the intent and by the cell as observed
        since."""
        since_ms = self._engine.recorded(lambda connection: store.standing(connection, row))[row.cursor - 1].cell_ms
        intent = target_readings.intent_of(self._engine, step.act, since_ms)
        verdicts = [
            target_readings.verdict(intent, step.act, before, after[before.id], in_time=in_time)
            for before in step.shown
        ]
        worst: Verdict = "failure" if "failure" in verdicts else "inconclusive"
        if set(verdicts) == {"success"}:
            worst = "success"
        begins = {"success": "verified", "inconclusive": "not yet", "failure": "NOT verified"}
        action = catalogue.find(step.act.action)
        lines = [
            f"{begins[each]}: {wording.found_now(action, before, after[before.id], done=each == 'success')}"
            for each, before in zip(verdicts, step.shown, strict=True)
        ]
        by = self._engine.state.settings.decided_by
        return worst, [*lines, *((target_readings.line(intent, by),) if intent is not None else ())]

    def _judged(self, row: ProposalRow, step: Step, *, in_time: bool) -> tuple[Verdict, str]:
        """The verdict on a canary. A canary without a conclusion in time has failed."""
        number = row.cursor - 1
        since_ms = self._engine.record(lambda connection: store.standing(connection, row))[number].cell_ms
        judged = aftermath.judge(self._engine, step.act, since_ms)
        if judged is None:
            return ("inconclusive" if in_time else "failure"), "not yet: its window is still open"
        if judged.verdict == "success":
            return "success", f"verified: {judged.text}"
        return ("inconclusive" if judged.verdict == "inconclusive" and in_time else "failure"), (
            f"NOT verified: {judged.text}"
        )

    # -- people step in -----------------------------------------------------------------------------------------------

    def pause(self, actor: Actor, proposal_id: str, reason: str) -> None:
        now_ms = self._now()
        typed_plan.check_line(reason, "reason", typed_plan.MAX_COMMENT)

        def write(connection: Connection) -> None:
            row = store.found(connection, proposal_id)
            sealed = (self._audit.seal(connection, reason),) if reason else ()
            store.move(
                connection, self._audit, row, "paused", actor, now_ms, private=sealed,
                note=f"paused by {actor.subject}",
            )  # fmt: skip

        self._engine.record(write)

    def resume(self, actor: Actor, proposal_id: str, *, accept: bool) -> Outcome:
        """Go on with what is paused: look again at the last step, then do the next. Raises RefusedError while what it
        was paused for still holds."""
        row, plan = self._read(proposal_id)
        typed_plan.after(row.state, "resumed", row.id)
        now_ms = self._now()
        if row.cursor > 0 and not accept:
            fresh = msgspec.structs.replace(row, verify_by_ms=0, since_ms=0)
            verdict, lines = self._read_back(fresh, plan.steps[row.cursor - 1], now_ms)
            if verdict != "success":
                raise RefusedError(
                    f"step {plan.steps[row.cursor - 1].id} of {row.id} is still not verified: {'; '.join(lines)}",
                    "An approver may accept it, or roll it back",
                )

        def write(connection: Connection) -> ProposalRow:
            if accept and row.cursor > 0:
                store.add_record(
                    connection, self._audit, row, "exec.accepted", actor, {"step": plan.steps[row.cursor - 1].id},
                    step=plan.steps[row.cursor - 1].id,
                )  # fmt: skip
            resumed = store.move(connection, self._audit, row, "resumed", actor, now_ms, note="", stale=b"[]")
            if resumed.cursor == len(plan.steps):
                self.way_back.taken_by(connection, row, plan, now_ms)
                resumed = store.move(connection, self._audit, resumed, "finished", actor, now_ms)
            return resumed

        return self._go_on(actor, self._engine.record(write), plan)

    def confirm(self, actor: Actor, proposal_id: str, step_id: str) -> Outcome:
        """Say go to a step that waits for that, and go on. Raises RefusedError for somebody who may not."""
        row, plan = self._read(proposal_id)
        now_ms = self._now()
        step = plan.steps[min(row.cursor, len(plan.steps) - 1)]
        if row.state != "paused" or step.id != step_id or step.confirm == "none":
            raise RefusedError(
                f"{row.id} does not wait for confirmation of step {step_id[:40]!a}",
                "muster proposal show says what it waits for",
            )

        def write(connection: Connection) -> str:
            why_not = self._why_no_word(connection, actor, plan, step, now_ms)
            if why_not:
                store.add_record(
                    connection,
                    self._audit,
                    row,
                    "command.refused",
                    actor,
                    {"deed": "confirm", "why": why_not},
                    step=step.id,
                )
                return why_not
            if not self._confirmed(connection, row, row.cursor):
                word = {
                    "number": row.number, "revision": row.revision, "step": row.cursor, "subject": actor.subject,
                    "at_ms": now_ms,
                }  # fmt: skip
                connection.execute(insert(CONFIRMATION).values(**word))
                rows = kept(CONFIRMATION, word)
                store.add_record(connection, self._audit, row, "exec.confirmed", actor, {}, step=step.id, rows=rows)
            return ""

        why_not = self._engine.record(write)
        if why_not:
            raise RefusedError(f"you may not confirm step {step.id}: {why_not}", f"Ask an {step.confirm}")
        return self.resume(actor, proposal_id, accept=False)

    def _why_no_word(self, connection: Connection, actor: Actor, plan: Plan, step: Step, now_ms: int) -> str:
        """The reason that somebody may not confirm a step; empty when they may. An approver who confirms must be
        another than the author, as for votes."""
        in_force, scope = self._policies.current(connection), scope_of(plan.steps)
        if step.confirm == "operator":
            return self._policies.why_not(connection, actor, "execute", plan.tier, scope)
        need = approval_policy.ApprovalNeed(
            approvals=1, roles=("approver",), expiry_ms=0, window_ms=0, self_ok=in_force.mode == "solo"
        )  # fmt: skip
        word = approval_policy.vote_of(actor, "approve", now_ms)
        why_not = approval_policy.why_not_counted(
            in_force, word, plan.author, plan.requester, need, scope, owner=self._policies.owner
        )
        return f"your confirmation does not count: it {why_not}" if why_not else ""

    def _confirmed(self, connection: Connection, row: ProposalRow, number: int) -> bool:
        where = (
            (CONFIRMATION.c.number == row.number)
            & (CONFIRMATION.c.revision == row.revision)
            & (CONFIRMATION.c.step == number)
        )
        return connection.execute(select(CONFIRMATION.c.subject).where(where)).first() is not None

    def roll_back(self, actor: Actor, proposal_id: str, reason: str) -> Outcome:
        """Take back what was done, the last step first, where the votes on it cover what that does now. Raises
        RefusedError."""
        typed_plan.check_line(reason, "reason", typed_plan.MAX_COMMENT)
        row, plan = self._read(proposal_id)
        found = self.way_back.tried(row, plan, Request())
        if found is not None:
            self.way_back.refuse_uncovered(row, plan, found, reason)
        now_ms = self._now()
        row = self._engine.record(lambda connection: self.way_back.begin(connection, actor, row, reason, now_ms, found))
        row = self.way_back.take(actor, row, plan)
        self._audit.after(at_once=True)
        return self._outcome(row, plan)

    # -- after a crash ------------------------------------------------------------------------------------------------

    def recover(self, *, started: bool = False) -> None:
        """Goes on with plans that an ended process, or a journal that could not be written, left under way. A mild and
        recent plan goes on after another look, others are paused for a person, and a rollback is completed. `started`:
        another process left them, and it may have ended between the last vote and the start."""
        states = ("executing", "rolling_back", *(("approved", "verifying") if started else ()))
        for row in self._engine.recorded(lambda connection: store.in_states(connection, states)):
            try:
                self._recover(row)
            except JournalError:
                raise
            except MusterError:
                # What is refused was said on record where it was met; the engine must start whatever one plan is like.
                continue

    def _recover(self, row: ProposalRow) -> None:
        plan = self._read(row.id)[1]
        goes_on = row.tier <= "T1" and self._now() - row.since_ms < RESUME_WITHIN_MS
        if row.state == "rolling_back":
            self.way_back.take(SYSTEM, row, plan)
        elif row.state == "approved":
            if goes_on and plan.start == "approved":
                self.execute(SYSTEM, row.id)
        elif row.state == "executing" and goes_on:
            self._go_on(SYSTEM, row, plan)
        elif row.state == "executing" or (not goes_on and row.cursor < len(plan.steps)):
            self._leave(row, plan)

    def _leave(self, row: ProposalRow, plan: Plan) -> None:
        """Pauses a plan for a person."""
        now_ms = self._now()
        note = f"the engine stopped before step {plan.steps[min(row.cursor, len(plan.steps) - 1)].id}"
        self._engine.record(
            lambda connection: store.move(connection, self._audit, row, "paused", SYSTEM, now_ms, note=note)
        )

    # -- ground -------------------------------------------------------------------------------------------------------

    def _read(self, proposal_id: str) -> tuple[ProposalRow, Plan]:
        """Raises NotFoundError, and RefusedError when the stored plan is not the one that was voted on, or how far it
        is is not what the records say. Of what is approved the claim looks at that."""

        def read(connection: Connection) -> tuple[ProposalRow, Plan]:
            row, plan = found_with_plan(connection, proposal_id)
            if row.state != "approved" and (changed := self._policies.authority.of(connection, row, plan).changed):
                raise unauthorised(row, changed)
            return row, plan

        return self._engine.record(read)

    def _outcome(self, row: ProposalRow, plan: Plan) -> Outcome:
        standing = self._engine.record(lambda connection: store.standing(connection, row))
        steps = [standing[number] for number in sorted(standing)]
        waits = {
            "verifying": f"its effect, due by {utc(row.verify_by_ms)}",
            "paused": row.note or "somebody to resume it",
            "failed": row.note,
            "rollback_failed": row.note,
        }
        return Outcome(
            proposal=row.id,
            digest=row.digest,
            version=max((step.version for step in steps), default=0),
            changed=tuple(id_ for step in steps for id_ in step.changed),
            verified=tuple(line for step in steps for line in step.verified),
            state=row.state,
            waits_for=waits.get(row.state, ""),
        )


def unauthorised(row: ProposalRow, why: str) -> RefusedError:
    """The refusal of a proposal that the records do not authorise."""
    return RefusedError(
        f"{row.id} was not executed: the audit does not authorise it: {why}",
        "The database was changed outside Muster: run muster audit verify, investigate, then propose it again",
    )
