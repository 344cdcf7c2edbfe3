"""The way back: what was approved with a plan to undo it, taken step by step, the last first, each act once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection, insert

from engine.errors import JournalError, MusterError, NotFoundError, RefusedError
from runbooks import books, catalog, readings
from runbooks.amounts import listed, utc
from runbooks.audit import Audit
from runbooks.books import EFFECT, Row
from runbooks.identity import Actor
from runbooks.outbox import Outbox
from runbooks.plan import Act, Plan, Step, Target
from runbooks.policies import Policies

if TYPE_CHECKING:
    from engine.control import Engine

ROLLBACK_WITHIN_MS = 24 * 3_600_000
"""How long after it was executed the way back that was approved with a plan may be taken."""
Do = Callable[[Actor, Row, Act, str, int, Callable[[Connection], None]], None]
"""Has the engine do one act: by whom, of which proposal, what, its key, when, and what is recorded beside it."""


class WayBack:
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

    def check(self, row: Row, plan: Plan) -> None:
        """Raises RefusedError where nothing of it can be taken back, and where that would disrupt more than was voted
        on."""
        if row.executed_ms + ROLLBACK_WITHIN_MS < self._now():
            raise RefusedError(
                f"{row.id} was executed at {utc(row.executed_ms)}: too long ago to take the way back approved with it",
                "Propose what shall be done now",
            )
        done = [number for number in range(len(plan.steps)) if self._done(row, number)]
        if not done:
            raise RefusedError(f"nothing of {row.id} was done", "There is nothing to take back")
        if not any(plan.steps[number].rollback for number in done):
            raise RefusedError(f"{row.id} cannot be taken back", "Its actions have no inverse; see muster show")
        for number in reversed(done):
            for part, act in enumerate(plan.steps[number].rollback):
                if not self._has_effect(books.back_key(row, number, part)):
                    self._as_needed(plan, plan.steps[number], act)

    def begin(self, connection: Connection, actor: Actor, row: Row, reason: str, now_ms: int) -> Row:
        """Inside a transaction: from here on the way back is gone to its end, whatever happens to the process."""
        sealed = (self._audit.seal(connection, reason),) if reason else ()
        return books.move(connection, self._audit, row, "taken_back", actor, now_ms, private=sealed, note="")

    def take(self, actor: Actor, row: Row, plan: Plan) -> Row:
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
            lambda connection: books.move(
                connection, self._audit, row, "rolled_back", actor, now_ms, data={"kept": kept}, note=note
            )
        )

    def _undo_one(self, actor: Actor, row: Row, plan: Plan, number: int, part: int, act: Act) -> None:
        """One inverse act, once. What is as it was already needs nothing."""
        now_ms = self._now()
        step = plan.steps[number]
        key = books.back_key(row, number, part)
        if self._has_effect(key):
            return
        act, nothing = self._as_needed(plan, step, act)

        def beside(connection: Connection) -> None:
            books.refuse_second(connection, key, row)
            version = self._engine.version
            connection.execute(
                insert(EFFECT).values(
                    key=key, number=row.number, revision=row.revision, step=number, back=True, action=act.action,
                    at_ms=now_ms, version=version, changed=msgspec.json.encode(act.targets),
                )
            )  # fmt: skip
            standing = books.standing(connection, row)[number]
            books.set_standing(connection, row, number, msgspec.structs.replace(standing, state="rolled_back"))
            books.say(
                connection, self._audit, row, "exec.effect" if not nothing else "exec.needless", actor,
                {"key": key, "action": act.action, "targets": list(act.targets)[:100], "version": version},
                step=step.id,
            )  # fmt: skip

        if nothing:
            self._engine.record(beside)
        else:
            self._act(actor, row, act, key, now_ms, beside)

    def _as_needed(self, plan: Plan, step: Step, act: Act) -> tuple[Act, bool]:
        """An act of the way back without what has gone, or is as it was; and whether nothing is left of it. Raises
        RefusedError where it would disrupt more than was voted on: it was mild when it was shown, and work has come to
        where it leads since."""
        action = catalog.find(act.action)
        targets = self._still_there(action, act)
        left = tuple(target for target in targets if not catalog.needless(act, target))
        if action.kind in ("workload", "node", "queue", "reservation", "budget") and not left:
            return act, True
        if action.kind in ("workload", "node"):
            readings.refuse_inapplicable(action, left)
            act = msgspec.structs.replace(act, targets=tuple(target.id for target in left))
            targets = left
        pools, running = readings.pool_nodes(self._engine), readings.bound(self._engine)
        tier, why = catalog.tier_and_why(action, act, targets, pools, running)
        stops = (*targets, *readings.read_work(self._engine, action, targets).values())
        if tier > plan.tier and any(catalog.loses_work(action, target) for target in stops):
            told = f": {'; '.join(why)}" if why else ""
            raise RefusedError(
                f"{act.action} {listed(act.targets)}, the way back of step {step.id}, is {tier} now, and the plan was "
                f"approved as {plan.tier}{told}",
                f"Propose it for itself: {act.action}",
            )
        return act, False

    def _still_there(self, action: catalog.Action, act: Act) -> tuple[Target, ...]:
        """The targets that exist: what has gone meanwhile needs no way back."""
        try:
            return readings.read(self._engine, action, act)
        except NotFoundError:
            found: list[Target] = []
            for id_ in act.targets:
                try:
                    found += readings.read(self._engine, action, msgspec.structs.replace(act, targets=(id_,)))
                except NotFoundError:
                    continue
            return tuple(found)

    def _undo_failed(self, actor: Actor, row: Row, step: Step, error: MusterError) -> Row:
        now_ms = self._now()

        def write(connection: Connection) -> Row:
            for channel in self._policies.current(connection).paged():
                self._outbox.put(
                    connection, f"{row.digest}:{row.serial}:rollback_failed:{channel}", row.number, channel,
                    f"{row.id} could not be rolled back: step {step.id}: {error.problem}"[:500], now_ms,
                )  # fmt: skip
            return books.move(
                connection, self._audit, row, "rollback_failed", actor, now_ms,
                data={"step": step.id, "why": error.problem[:500]}, note=f"step {step.id}: {error.problem}",
            )  # fmt: skip

        return self._engine.record(write)

    def _done(self, row: Row, number: int) -> bool:
        return self._has_effect(books.effect_key(row, number))

    def _has_effect(self, key: str) -> bool:
        return self._engine.record(lambda connection: books.has_effect(connection, key))
