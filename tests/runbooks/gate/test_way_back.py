"""A rollback is tried as the cell is now: the votes on the plan cover it, or it gets votes of its own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.control import Engine
from engine.model.commands import Cancel, ChangeQueue, Drain, Submit
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.specs import QueueSpec
from runbooks.gate.approval_policy import SOLO
from runbooks.plans.typed_plan import Request, RequestChange
from tests.support.gate_cells import HOUR, Clock, Watched, busy_engine, change, effects, nodes_of, work
from tests.support.gates import ME, Person, asked, gate_of
from tests.support.records import effect_keys, records
from tests.support.team import Member, members, team_gate

BACK = Request(rolls_back="P-1", reason="not wanted")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def closed_queue() -> Engine:
    """Queue q may use 8 GPU and no more; `first` runs there, `second` waits; each is of a tenant of its own."""
    spec = QueueSpec(name="q", nominal={"gpu_milli": 8000}, borrowing_limit={"gpu_milli": 0})
    engine = Engine.open(None, cell=nodes_of(3, (QueueSpec(name="root"), msgspec.structs.replace(spec, parent="root"))))
    engine.command(Submit(workloads=(work("first", tenant="vision"), work("second", tenant="speech"))))
    engine.advance(engine.now_ms + HOUR)
    return engine


def raised(watched: Watched, clock: Clock, **policy: Any) -> Person:
    """Somebody who has given q room for both."""
    me = Person(gate_of(watched, msgspec.structs.replace(SOLO, **policy), clock))  # type: ignore[arg-type]
    to = change(watched, "q", nominal={"gpu_milli": 16000})
    proposal = me.propose("set_quota", ["q"], "two are due", queue=to)
    assert me.approve(proposal.id, proposal.digest).state == "verified"
    assert watched.state_of("second") == "running"
    return me


@pytest.fixture
def disrupting(clock: Clock) -> tuple[Watched, dict[str, Member]]:
    """P-1 let n2, which had drained, take work again; `late` runs there by now, so that draining it anew disrupts."""
    watched = Watched(busy_engine())
    watched.engine.command(Cancel(ids=("w0", "w1")))
    watched.engine.command(Drain(ids=("n2",)))
    of = members(team_gate(watched, clock))
    assert of["ann"].yes(of["ann"].propose("uncordon", ["n2"])).state == "verified"
    watched.engine.command(Submit(workloads=(work("late"),)))
    watched.engine.advance(watched.engine.now_ms + HOUR)
    watched.executed.clear()
    return watched, of


def of_type(engine: Engine, type_: str) -> list[dict[str, Any]]:
    """What records of that type say, without the digests of rows."""
    found = [record["data"] for record in records(engine) if record["type"] == type_]
    return [{key: value for key, value in data.items() if key != "rows"} for data in found]


def test_it_is_shown_as_what_it_does_now_with_who_is_hit(clock: Clock) -> None:
    watched = Watched(closed_queue())
    me = raised(watched, clock)
    before, keys = watched.engine.state.digest(), effect_keys(watched.engine)
    shown = me.gate.preview(ME, BACK)
    assert (shown.title, shown.tier, shown.covered) == ("Roll back P-1: Set quota of queue q", "T1", True)
    assert effects(shown)["Over limit"] == ("none", "8 GPU")
    assert "q: nominal gpu 16 GPU -> 8 GPU" in "\n".join(shown.steps)
    assert any("runs on above the quota" in line and "(8 GPU)" in line for line in shown.steps), shown.steps
    assert shown.plan.rolls_back == "P-1"
    assert (watched.engine.state.digest(), effect_keys(watched.engine)) == (before, keys), "only shown"
    assert [each.id for each in me.gate.proposals()] == ["P-1"]


def test_what_the_votes_cover_is_done_on_them_and_the_record_says_so(clock: Clock) -> None:
    watched = Watched(closed_queue())
    me = raised(watched, clock)
    assert me.gate.rollback(ME, "P-1", "not wanted").state == "rolled_back"
    [taken] = of_type(watched.engine, "proposal.taken_back")
    assert (taken["votes_of"], taken["tier"]) == ("P-1", "T1")
    assert any("nominal gpu 16 GPU -> 8 GPU" in line for line in taken["does"])


def test_what_disrupts_now_needs_votes_of_its_own(disrupting: tuple[Watched, dict[str, Member]]) -> None:
    watched, of = disrupting
    gate, ann = of["ann"].gate, of["ann"].actor
    shown = gate.preview(ann, BACK)
    assert (shown.covered, shown.tier, shown.plan.blast.workloads) == (False, "T2", 1)
    assert shown.note == "rolling back P-1 stops 1 workload that runs now: late"
    assert any("requeues late" in line for line in shown.steps)
    with pytest.raises(RefusedError, match="votes of its own"):
        gate.rollback(ann, "P-1", "in a hurry")
    made = gate.propose(ann, BACK)
    assert (made.state, made.self_approvable, made.signed) == ("awaiting", False, True)
    with pytest.raises(RefusedError):
        of["ann"].yes(made)
    assert (watched.state_of("late"), watched.executed) == ("running", [])
    of["ben"].yes(made)
    watched.engine.advance(watched.engine.now_ms + HOUR)
    gate.tick()
    assert gate.proposal(made.id).state == "verified"
    first = gate.proposal("P-1")
    assert (first.state, first.note) == ("rolled_back", f"rolled back by {made.id}")
    assert {entry.digest for entry in watched.executed} == {made.digest}, "it is done on the votes that it got"
    assert of_type(watched.engine, "proposal.taken_back") == [
        {"from": "verified", "to": "rolling_back", "votes_of": made.id}
    ]


def test_it_stops_no_work_on_the_votes_of_a_plan_of_that_tier(clock: Clock) -> None:
    """That it is stopped once was approved; that it is stopped once more, by a resize back, was not."""
    watched = Watched(Engine.open(None, cell=nodes_of(1)))
    watched.engine.command(Submit(workloads=(work("r0", checkpoint_interval_ms=60_000),)))
    watched.engine.advance(watched.engine.now_ms + HOUR)
    me = Person(gate_of(watched, clock=clock))  # type: ignore[arg-type]
    smaller = RequestChange(request={"cpu_milli": 500})
    proposal = me.propose("resize", ["r0"], resize=smaller)
    assert (proposal.tier, me.approve(proposal.id, proposal.digest).state) == ("T2", "verified")
    assert watched.state_of("r0") == "running"
    shown = me.gate.preview(ME, BACK)
    assert (shown.tier, shown.covered, shown.plan.blast.workloads) == ("T2", False, 1)
    with pytest.raises(RefusedError, match="stops 1 workload that runs now: r0"):
        me.gate.rollback(ME, "P-1", "it needs more")


def test_what_somebody_changed_since_is_not_undone(clock: Clock) -> None:
    """Nothing is begun, so nothing is left half way."""
    watched = Watched(closed_queue())
    me = raised(watched, clock)
    later = msgspec.structs.replace(watched.engine.queue("q").spec, nominal={"gpu_milli": 24000})
    watched.engine.command(ChangeQueue(queue=later))
    for ask in (lambda: me.gate.preview(ME, BACK), lambda: me.gate.rollback(ME, "P-1", "x")):
        with pytest.raises(RefusedError, match="24 GPU"):
            ask()
    assert me.gate.proposal("P-1").state == "verified"


def test_after_a_day_the_votes_of_then_do_not_cover_it(clock: Clock) -> None:
    watched = Watched(closed_queue())
    me = raised(watched, clock)
    clock.now_ms += 24 * HOUR + 1
    shown = me.gate.preview(ME, BACK)
    assert (shown.covered, "too old" in shown.note) == (False, True)
    made = me.gate.propose(ME, BACK)
    assert me.approve(made.id, made.digest).state == "verified"
    assert me.gate.proposal("P-1").state == "rolled_back"


def test_it_wants_a_reason_where_acts_of_its_tier_do(clock: Clock) -> None:
    rules = tuple(msgspec.structs.replace(rule, reason=True) for rule in SOLO.rules)
    watched = Watched(closed_queue())
    me = raised(watched, clock, rules=rules)
    with pytest.raises(RefusedError, match="a reason is required"):
        me.gate.rollback(ME, "P-1", "  ")
    assert me.gate.rollback(ME, "P-1", "not wanted").state == "rolled_back"


def test_of_two_rollbacks_one_is_carried_out(clock: Clock) -> None:
    watched = Watched(closed_queue())
    me = raised(watched, clock)
    made = me.gate.propose(ME, BACK)
    me.gate.rollback(ME, "P-1", "somebody was faster")
    watched.executed.clear()
    with pytest.raises(RefusedError, match=r"P-1 is rolled back now|stale"):
        me.approve(made.id, made.digest)
    assert watched.executed == []
    with pytest.raises(RefusedError, match="cannot be rolled back"):
        me.gate.propose(ME, BACK)


def test_what_is_as_it_was_already_is_said(clock: Clock) -> None:
    watched = Watched(closed_queue())
    me = raised(watched, clock)
    former = msgspec.structs.replace(watched.engine.queue("q").spec, nominal={"gpu_milli": 8000})
    watched.engine.command(ChangeQueue(queue=former, over="keep"))
    with pytest.raises(RefusedError, match="is already back"):
        me.gate.preview(ME, BACK)


def test_what_cannot_be_asked_for(clock: Clock) -> None:
    me = raised(Watched(closed_queue()), clock)
    steps = asked("hold", ["second"]).steps
    with pytest.raises(SpecError, match="rolls_back"):
        me.gate.propose(ME, msgspec.structs.replace(BACK, steps=steps))
    with pytest.raises(NotFoundError):
        me.gate.propose(ME, Request(rolls_back="P-9"))
    waits = me.propose("cordon", ["n0"])
    with pytest.raises(RefusedError, match="cannot be rolled back"):
        me.gate.preview(ME, Request(rolls_back=waits.id))


def test_a_plan_tells_whose_plan_it_takes_back_and_why_that_was_made(clock: Clock) -> None:
    """Nodes are out, and somebody is about to return them: the record knows who took them out, and what for."""
    watched = Watched(busy_engine())
    me = Person(gate_of(watched, SOLO, clock))  # type: ignore[arg-type]

    def done(action: str, nodes: list[str], reason: str) -> str:
        proposal = me.propose(action, nodes, reason)
        assert me.approve(proposal.id, proposal.digest).state == "verified"
        return proposal.id

    first = done("cordon", ["n0"], "firmware, done by 09:00")
    second = done("cordon", ["n1"], "a fan is loud")
    told = me.gate.preview(ME, asked("uncordon", ["n0", "n1"])).takes_back
    assert [(each.proposal, each.targets, each.reason) for each in told] == [
        (second, ("n1",), "a fan is loud"), (first, ("n0",), "firmware, done by 09:00"),
    ]  # fmt: skip
    back = done("uncordon", ["n0"], "the firmware is done")
    again = done("cordon", ["n0"], "firmware once more")
    assert [each.proposal for each in me.gate.proposal(back).takes_back] == [first], "what came later is no part of it"
    latest = me.gate.preview(ME, asked("uncordon", ["n0"])).takes_back
    assert [each.proposal for each in latest] == [again], "the last one counts"
