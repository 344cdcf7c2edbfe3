"""The audit fails at any one record: then nothing of what it would have told has happened."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from engine.model.errors import JournalError
from runbooks.audit.log import Audit
from runbooks.gate.approval_gate import Gate
from runbooks.gate.policy_versions import Policies
from runbooks.gate.store import EFFECT
from runbooks.plans.typed_plan import Act, Request, StepRequest
from tests.support.gate_cells import Clock, busy_engine
from tests.support.protocol_world import Failing
from tests.support.records import records
from tests.support.team import Member, members, team

pytestmark = pytest.mark.thorough

FULL = JournalError("the disk is full", "Make room")
BROKEN = RuntimeError("no error of ours")


class FailingAudit(Audit):
    """Fails at one record, before or after it was written."""

    fails_at = -1
    raises: Exception = FULL
    after_writing = False

    def append(self, *given: Any, **named: Any) -> int:
        self.fails_at -= 1
        if self.fails_at == 0 and not self.after_writing:
            raise self.raises
        number = super().append(*given, **named)
        if self.fails_at == 0:
            raise self.raises
        return number


REQUEST = Request(
    steps=(
        StepRequest(act=Act(action="suspend", targets=("r0",))),
        StepRequest(act=Act(action="cordon", targets=("n0",)), confirm="operator"),
    )
)


def story(of: dict[str, Member]) -> list[Callable[[], object]]:
    """Proposed, approved, begun, confirmed and taken back: each call tried until it is done."""
    gate = of["ann"].gate

    def shown() -> Any:
        return gate.proposal("P-1")

    return [
        lambda: gate.proposals() or gate.propose(of["ann"].actor, REQUEST),
        lambda: of["cat"].yes(shown()) if shown().state in ("awaiting", "approved") else None,
        gate.tick,
        lambda: gate.resume(of["pat"].actor, "P-1") if shown().state == "paused" and done(gate) == 0 else None,
        lambda: gate.confirm(of["pat"].actor, "P-1", "2") if shown().state == "paused" else None,
        gate.tick,
        lambda: gate.resume(of["pat"].actor, "P-1") if shown().state == "paused" else None,
        lambda: gate.rollback(of["pat"].actor, "P-1") if shown().state == "verified" else None,
        gate.tick,
    ]


def done(gate: Gate) -> int:
    return len(gate._engine.record(lambda connection: connection.execute(select(EFFECT.c.key)).all()))


def told_and_happened(engine: Failing) -> None:
    """Effects in the cell, in the books and in the audit are the same; and edges lead from one to the next."""
    kept = set(engine.engine.record(lambda connection: connection.execute(select(EFFECT.c.key)).scalars().all()))
    found = records(engine.engine)
    told = [one["data"]["key"] for one in found if one["type"] == "exec.effect"]
    happened = [entry.key for entry in engine.effects]
    assert told == happened
    assert set(told) == kept
    assert len(set(told)) == len(told)
    state = "drafted"
    for one in found:
        if one["type"].startswith("proposal.") and one["type"] != "proposal.drafted":
            assert one["data"]["from"] == state
            state = one["data"]["to"]


def world() -> tuple[Failing, FailingAudit, dict[str, Member]]:
    engine, clock = Failing(busy_engine()), Clock()
    audit = FailingAudit(engine, clock, log_id="lab")  # type: ignore[arg-type]
    policies = Policies(engine, audit, clock, default=team())  # type: ignore[arg-type]
    return engine, audit, members(Gate(engine, policies, audit, clock))  # type: ignore[arg-type]


def test_the_story_is_told_in_full_when_nothing_fails() -> None:
    engine, _, of = world()
    for call in story(of):
        call()
    assert of["ann"].gate.proposal("P-1").state == "rolled_back"
    assert [entry.action for entry in engine.effects] == ["suspend", "cordon", "uncordon", "resume"]
    told_and_happened(engine)
    assert len(records(engine.engine)) == MOST


MOST = 24
"""Records of the story."""


@pytest.mark.parametrize("after_writing", [False, True])
@pytest.mark.parametrize("raises", [FULL, BROKEN], ids=["journal", "bug"])
def test_a_failure_at_any_record_leaves_nothing_half_done(raises: Exception, after_writing: bool) -> None:
    for at in range(1, MOST, 2 if (raises, after_writing) == (FULL, True) else 5):
        engine, audit, of = world()
        audit.fails_at, audit.raises, audit.after_writing = at, raises, after_writing
        for call in story(of):
            before = engine.state.digest()
            effects = len(engine.effects)
            try:
                call()
            except (JournalError, RuntimeError):
                if len(engine.effects) == effects:
                    assert engine.state.digest() == before, at
                told_and_happened(engine)
                with contextlib.suppress(JournalError):
                    call()
        told_and_happened(engine)
        assert of["ann"].gate.proposal("P-1").state in ("rolled_back", "verified", "paused", "failed"), at
