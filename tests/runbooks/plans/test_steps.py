"""Plans of several steps: what stops between them, what is verified when, and how they are taken back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sqlalchemy import update

from engine.control import Engine
from engine.model.commands import Cancel, Cordon, Drain, Hold, RemoveNodes, Submit
from engine.model.errors import JournalError, RefusedError, SpecError
from runbooks.gate.proposal_status import GO_ON_WITHIN_MS
from runbooks.gate.run_limits import FreezeSpec
from runbooks.gate.store import REVISION
from runbooks.plans.checks import Check
from runbooks.plans.typed_plan import Act, Limits, Outcome, Proposal, Request, StepRequest
from tests.support.gate_cells import HOUR, MINUTE, START, Clock, Watched, busy_engine, nodes_of, work
from tests.support.gates import ME, Person, gate_of
from tests.support.records import effect_keys, records, types
from tests.support.team import Member, changed, members, put_in_force, team, team_gate

FAILS = Check(check="cell_waiting", op="==", value=99)
"""A verification that does not come true."""


def step(action: Any, target: str, **fields: Any) -> StepRequest:
    return StepRequest(act=Act(action=action, targets=(target,)), **fields)


def asked_for(me: Person, held: str) -> tuple[str, str]:
    """A proposal to release what is held: its id and digest."""
    proposal = me.propose("release", [held])
    return proposal.id, proposal.digest


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched() -> Watched:
    return Watched(busy_engine())


@pytest.fixture
def me(watched: Watched, clock: Clock) -> Person:
    return Person(gate_of(watched, clock=clock))  # type: ignore[arg-type]


def run(me: Person, *steps: StepRequest, **fields: Any) -> tuple[Proposal, Outcome]:
    proposal = me.gate.propose(ME, Request(steps=steps, **fields))
    return proposal, me.approve(proposal.id, proposal.digest)


def test_each_step_is_done_once_in_order_and_read_back(me: Person, watched: Watched) -> None:
    proposal, outcome = run(me, step("hold", "w0"), step("hold", "w1"), step("cordon", "n0"))
    assert outcome.state == "verified"
    assert [entry.key for entry in watched.executed] == [f"{proposal.digest}:1:{i}" for i in range(3)]
    assert types(watched.engine, of=proposal.id).count("exec.verify") == 3
    assert [one.state for one in me.gate.proposal(proposal.id).standing] == ["verified"] * 3


@pytest.mark.parametrize(
    ("on_fail", "state", "w0", "w1"),
    [("rollback", "rolled_back", "queued", "queued"), ("pause", "paused", "held", "held"),
     ("abort", "failed", "held", "held")],
)  # fmt: skip
def test_what_cannot_be_verified_is_taken_back_or_left_as_the_plan_says(
    me: Person, watched: Watched, on_fail: Any, state: str, w0: str, w1: str
) -> None:
    _, outcome = run(me, step("hold", "w0"), step("hold", "w1", verify=(FAILS,), on_fail=on_fail), step("cordon", "n0"))
    assert (outcome.state, watched.state_of("w0"), watched.state_of("w1")) == (state, w0, w1)
    assert watched.engine.node("n0").state == "ready", "the step after it is not done"


@pytest.mark.parametrize(
    ("on_fail", "state", "w0"),
    [("rollback", "rolled_back", "queued"), ("pause", "paused", "held"), ("abort", "failed", "held")],
)
def test_what_the_engine_refuses_half_way_is_treated_like_it(
    watched: Watched, clock: Clock, on_fail: Any, state: str, w0: str
) -> None:
    class Refusing(Watched):
        def command(self, command: Any, **given: Any) -> Any:
            if isinstance(command, Cordon):
                raise RefusedError("the node is not there any more")
            return super().command(command, **given)

    me = Person(gate_of(Refusing(watched.engine), clock=clock))  # type: ignore[arg-type]
    proposal = me.gate.propose(ME, Request(steps=(step("hold", "w0"), step("cordon", "n0", on_fail=on_fail))))
    with pytest.raises(RefusedError, match="not there any more"):
        me.approve(proposal.id, proposal.digest)
    assert (me.gate.proposal(proposal.id).state, watched.state_of("w0")) == (state, w0)


def test_a_change_before_a_later_step_pauses_it_and_going_on_looks_again(me: Person, watched: Watched) -> None:
    proposal, outcome = run(me, step("hold", "w0"), step("hold", "w1", confirm="operator"))
    assert (outcome.state, watched.state_of("w0"), watched.state_of("w1")) == ("paused", "held", "queued")
    watched.engine.command(Hold(ids=("w1",)))
    assert "w1 was shown as queued" in me.gate.confirm(ME, proposal.id, "2").waits_for
    assert "w1 was shown as queued" in me.gate.resume(ME, proposal.id).waits_for
    shown = me.gate.proposal(proposal.id)
    assert [(one.what, one.shown, one.now) for one in shown.stale] == [("w1", "queued", "held")]
    assert len(watched.executed) == 1


def test_what_began_long_ago_does_not_go_on(me: Person, watched: Watched, clock: Clock) -> None:
    proposal, outcome = run(me, step("hold", "w0", confirm="operator"))
    assert outcome.state == "paused"
    clock.now_ms += GO_ON_WITHIN_MS + 1
    assert "nobody has resumed it since" in me.gate.confirm(ME, proposal.id, "1").waits_for
    assert watched.executed == []


def test_the_first_step_waits_for_a_word_too_and_is_looked_at_when_it_is_given(me: Person, watched: Watched) -> None:
    proposal, outcome = run(me, step("hold", "w0", confirm="operator"))
    assert (outcome.state, watched.executed) == ("paused", [])
    watched.engine.command(Cancel(ids=("w0",)))
    assert me.gate.confirm(ME, proposal.id, "1").state == "paused"
    assert watched.executed == []


def test_an_approvers_word_is_another_persons(watched: Watched, clock: Clock) -> None:
    of = members(team_gate(watched, clock))
    gate = of["ben"].gate
    proposal = gate.propose(of["ben"].actor, Request(steps=(step("hold", "w0", confirm="approver"),)))
    assert of["ben"].yes(proposal).state == "paused"
    for name in ("ben", "ann", "sue", "eve"):
        with pytest.raises(RefusedError, match="may not confirm"):
            gate.confirm(of[name].actor, proposal.id, "1")
    for wrong in ("2", "", "1 "):
        with pytest.raises(RefusedError, match="does not wait for confirmation"):
            gate.confirm(of["cat"].actor, proposal.id, wrong)
    assert watched.executed == []
    assert gate.confirm(of["cat"].actor, proposal.id, "1").state == "verified"
    with pytest.raises(RefusedError):
        gate.confirm(of["cat"].actor, proposal.id, "1")


def test_a_freeze_in_mid_plan_stops_before_the_next_step_and_it_goes_on_after(watched: Watched, clock: Clock) -> None:
    of = members(team_gate(watched, clock))
    ann, gate = of["ann"], of["ann"].gate
    proposal = gate.propose(ann.actor, Request(steps=(step("hold", "w0"), step("hold", "w1", confirm="operator"))))
    ann.yes(proposal)
    gate.policies.freeze(of["sue"].actor, FreezeSpec(name="x", tier="T1", from_ms=START, until_ms=START + HOUR))
    outcome = gate.confirm(of["pat"].actor, proposal.id, "2")
    assert (outcome.state, len(watched.executed)) == ("paused", 1)
    assert "freeze 'x'" in outcome.waits_for
    clock.now_ms += HOUR
    assert gate.resume(of["pat"].actor, proposal.id).state == "verified"


def test_a_vote_that_falls_in_mid_plan_stops_before_the_next_step(watched: Watched, clock: Clock) -> None:
    of = members(team_gate(watched, clock))
    gate = of["ann"].gate
    steps = (step("suspend", "r0"), step("suspend", "r1", confirm="operator"))
    proposal = gate.propose(of["ann"].actor, Request(steps=steps))
    assert of["cat"].yes(proposal).state == "paused"
    put_in_force(gate, changed(team(), "cat", roles=()))
    outcome = gate.confirm(of["pat"].actor, proposal.id, "2")
    assert (outcome.state, watched.state_of("r1")) == ("paused", "running")
    assert "no longer counts" in outcome.waits_for


def test_the_time_a_plan_may_take_is_kept(me: Person, watched: Watched, clock: Clock) -> None:
    steps = (step("hold", "w0"), step("hold", "w1", confirm="operator"))
    proposal, _ = run(me, *steps, limits=Limits(duration_ms=10 * MINUTE))
    clock.now_ms += 10 * MINUTE + 1
    assert "within 10m" in me.gate.confirm(ME, proposal.id, "2").waits_for
    assert watched.state_of("w1") == "queued"
    assert me.gate.rollback(ME, proposal.id).state == "rolled_back"


def test_what_takes_its_time_is_inconclusive_until_it_is_seen(me: Person, watched: Watched, clock: Clock) -> None:
    wanted = Check(check="cell_waiting", op="==", value=1, within_ms=5 * MINUTE)
    proposal, outcome = run(me, step("hold", "w1", verify=(wanted,)))
    assert outcome.state == "verified"
    other = Check(check="cell_waiting", op="==", value=3, within_ms=5 * MINUTE)
    proposal, outcome = run(me, step("hold", "w0", verify=(other,), on_fail="abort"), step("cordon", "n0"))
    assert outcome.state == "verifying"
    clock.now_ms += 4 * MINUTE
    me.gate.tick()
    assert me.gate.proposal(proposal.id).state == "verifying"
    watched.engine.command(Submit(workloads=tuple(work(f"x{i}") for i in range(3))))
    me.gate.tick()
    assert me.gate.proposal(proposal.id).state == "verified"
    assert watched.engine.node("n0").state == "cordoned"


def test_what_is_not_seen_in_time_has_failed(me: Person, watched: Watched, clock: Clock) -> None:
    other = Check(check="cell_waiting", op="==", value=3, within_ms=5 * MINUTE)
    proposal, _ = run(me, step("hold", "w0", verify=(other,), on_fail="rollback"))
    clock.now_ms += 5 * MINUTE
    me.gate.tick()
    assert me.gate.proposal(proposal.id).state == "rolled_back"
    assert watched.state_of("w0") == "queued"


@pytest.mark.parametrize("check", [
    Check(check="node_state", of="n0", op="<", value=3),
    Check(check="cell_waiting", op="==", value="many"),
    Check(check="cell_waiting", op=">=", value=0),
    Check(check="node_state", of="n0", op="!=", value="on fire"),
    Check(check="node_state", op="==", value="ready"),
    Check(check="node_state", of="\x1b[2J", op="==", value="ready"),
    Check(check="cell_waiting", op="==", value=1, within_ms=10**15),
])  # fmt: skip
@pytest.mark.parametrize("when", ["pre", "verify"])
def test_a_check_that_could_not_be_made_or_could_not_fail_is_refused_at_once(
    me: Person, watched: Watched, check: Check, when: str
) -> None:
    with pytest.raises(SpecError, match=when):
        me.gate.propose(ME, Request(steps=(step("hold", "w0", **{when: (check,)}),)))
    assert watched.executed == []


def test_one_plan_that_cannot_be_looked_at_does_not_keep_the_others_waiting(watched: Watched, clock: Clock) -> None:
    me = Person(gate_of(watched, clock=clock))  # type: ignore[arg-type]
    waits = Check(check="cell_waiting", op="==", value=3, within_ms=5 * MINUTE)
    bad, _ = run(me, step("hold", "w0", verify=(waits,), on_fail="abort"))
    good, _ = run(me, step("hold", "w1", verify=(waits,), on_fail="abort"))
    edit = update(REVISION).where(REVISION.c.number == 1).values(plan=b"{}")
    watched.engine.record(lambda connection: connection.execute(edit))
    clock.now_ms += HOUR
    me.gate.tick()
    assert me.gate.proposal(good.id).state == "failed"
    with pytest.raises(RefusedError, match="not the one whose digest was shown"):
        me.gate.proposal(bad.id)
    gate_of(watched, clock=clock)  # type: ignore[arg-type]
    assert me.approve(*asked_for(me, "h0")).state == "verified", "the next start goes well too"


def test_what_is_gone_when_it_is_to_be_verified_has_failed(watched: Watched, clock: Clock) -> None:
    me = Person(gate_of(watched, clock=clock))  # type: ignore[arg-type]
    waits = Check(check="cell_waiting", op="==", value=99, within_ms=HOUR)
    proposal, outcome = run(me, step("cordon", "n2" if watched.engine.node("n2").state == "ready" else "n0",
                                     verify=(waits,), on_fail="abort"))  # fmt: skip
    assert outcome.state == "verifying"
    watched.engine.command(Cancel(ids=("r0",)))
    watched.engine.command(RemoveNodes(ids=("n0",)))
    me.gate.tick()
    shown = me.gate.proposal(proposal.id)
    assert (shown.state, "n0" in shown.note) == ("failed", True)


# -- the way back -----------------------------------------------------------------------------------------------------


def test_a_plan_is_taken_back_the_last_step_first_and_once(me: Person, watched: Watched) -> None:
    proposal, _ = run(me, step("hold", "w0"), step("cordon", "n0"))
    assert me.gate.rollback(ME, proposal.id, "not wanted").state == "rolled_back"
    assert [entry.key.split(":", 1)[1] for entry in watched.executed] == ["1:0", "1:1", "1:1:back:0", "1:0:back:0"]
    assert (watched.state_of("w0"), watched.engine.node("n0").state) == ("queued", "ready")
    with pytest.raises(RefusedError, match="cannot be rolled back"):
        me.gate.rollback(ME, proposal.id)
    assert len(effect_keys(watched.engine)) == len(set(effect_keys(watched.engine))) == 4


def test_what_has_no_way_back_is_kept_and_said(me: Person, watched: Watched) -> None:
    proposal, _ = run(me, step("hold", "w0"), step("cancel", "w1"))
    assert me.gate.rollback(ME, proposal.id).state == "rolled_back"
    assert me.gate.proposal(proposal.id).note == "step 2 cannot be rolled back"
    assert watched.state_of("w1") == "cancelled"
    alone, _ = run(me, step("cancel", "h0"))
    with pytest.raises(RefusedError, match="cannot be rolled back"):
        me.gate.rollback(ME, alone.id)


def test_a_way_back_is_no_way_to_disrupt_without_votes(watched: Watched, clock: Clock) -> None:
    """A node that drained takes work again for one operator's word; draining it anew, with work on it, does not."""
    engine = watched.engine
    engine.command(Cancel(ids=("w0", "w1")))
    engine.command(Drain(ids=("n2",)))
    of = members(team_gate(watched, clock))
    ann, gate = of["ann"], of["ann"].gate
    proposal = ann.propose("uncordon", ["n2"])
    assert (proposal.tier, ann.yes(proposal).state) == ("T1", "verified")
    engine.command(Submit(workloads=(work("late"),)))
    engine.advance(engine.now_ms + HOUR)
    before = engine.state.digest()
    with pytest.raises(RefusedError, match="stops 1 workload that runs now: late"):
        gate.rollback(ann.actor, proposal.id)
    assert (gate.proposal(proposal.id).state, engine.state.digest()) == ("verified", before)


def test_nor_is_one_that_is_taken_by_itself(watched: Watched, clock: Clock) -> None:
    engine = watched.engine
    engine.command(Drain(ids=("n2",)))
    of = members(team_gate(watched, clock))
    ann, gate = of["ann"], of["ann"].gate
    request = Request(steps=(step("uncordon", "n2", verify=(FAILS,), on_fail="rollback"),))
    proposal = gate.propose(ann.actor, request)
    assert ann.yes(proposal).state == "rollback_failed"
    assert "is T2 now" in gate.proposal(proposal.id).note
    assert engine.node("n2").state == "ready"


@pytest.mark.parametrize(
    "rollback",
    [
        (Act(action="cancel", targets=("w0",)),),
        (Act(action="release", targets=("w1",)),),
        (Act(action="release", targets=("w0",)), Act(action="drain", targets=("n0",))),
        (Act(action="release", targets=("w0", "h0")),),
        (Act(action="hold", targets=("w0",)),),
    ],
)
def test_a_way_back_that_is_not_the_inverse_is_refused(me: Person, watched: Watched, rollback: tuple[Act, ...]) -> None:
    with pytest.raises(SpecError, match="rollback"):
        me.gate.propose(ME, Request(steps=(step("hold", "w0", rollback=rollback),)))
    assert watched.executed == []


def test_a_way_back_is_good_for_a_day(me: Person, clock: Clock, watched: Watched) -> None:
    proposal, _ = run(me, step("hold", "w0"))
    clock.now_ms += 24 * HOUR + 1
    with pytest.raises(RefusedError, match="too old"):
        me.gate.rollback(ME, proposal.id)
    assert watched.state_of("w0") == "held"


def test_a_way_back_that_the_journal_refuses_half_way_is_gone_to_its_end(me: Person, watched: Watched) -> None:
    proposal, _ = run(me, step("hold", "w0"), step("hold", "w1"))
    watched.failure = JournalError("the disk is full", "Make room")
    with pytest.raises(JournalError):
        me.gate.rollback(ME, proposal.id)
    watched.failure = None
    me.gate.tick()
    assert me.gate.proposal(proposal.id).state == "rolled_back"
    assert (watched.state_of("w0"), watched.state_of("w1")) == ("queued", "queued")


# -- many small steps -------------------------------------------------------------------------------------------------


def test_steps_that_together_take_much_of_a_pool_are_as_risky_as_one_that_does(clock: Clock) -> None:
    me = Person(gate_of(Engine.open(None, cell=nodes_of(40)), clock=clock))
    few = me.gate.propose(ME, Request(steps=tuple(step("cordon", f"n{i}") for i in range(3))))
    many = me.gate.propose(ME, Request(steps=tuple(step("cordon", f"n{i}") for i in range(6))))
    once = me.propose("cordon", [f"n{i}" for i in range(6)])
    assert (few.tier, many.tier, once.tier) == ("T1", "T2", "T2")
    assert many.why_tier == ("its steps together take 6 of 40 nodes of p",)


def test_steps_that_together_stop_much_of_the_work_are_as_risky_as_one_that_does(clock: Clock) -> None:
    engine = Engine.open(None, cell=nodes_of(20))
    engine.command(Submit(workloads=tuple(work(f"x{i}") for i in range(20))))
    me = Member(team_gate(engine, clock), "ann")
    many = me.gate.propose(me.actor, Request(steps=tuple(step("preempt", f"x{i}") for i in range(12))))
    once = me.propose("preempt", [f"x{i}" for i in range(12)])
    assert (many.tier, once.tier) == ("T3", "T3")
    assert many.why_tier == ("its steps together stop 12 of 20 workloads",)


def test_twelve_small_drains_of_most_of_a_pool_are_denied(clock: Clock) -> None:
    engine = Engine.open(None, cell=nodes_of(16))
    gate = team_gate(engine, clock, team(limits=msgspec.structs.replace(team().limits, nodes_permille=250)))
    ann = Member(gate, "ann")
    with pytest.raises(RefusedError, match=r"denied by policy.*limits\.nodes"):
        gate.propose(ann.actor, Request(steps=tuple(step("drain", f"n{i}") for i in range(12))))
    assert records(engine)[-1]["type"] == "proposal.denied"


@pytest.mark.parametrize("name", ["a b", "1: all is well", "\u0455tep", "x" * 129, "\x1b[2J", "a\n", "[b]"])
def test_a_step_has_a_plain_name(me: Person, name: str) -> None:
    with pytest.raises(SpecError, match="id"):
        me.gate.propose(ME, Request(steps=(step("hold", "w0", id=name), step("hold", "w1"))))


def test_two_steps_have_two_names(me: Person) -> None:
    with pytest.raises(SpecError, match="used twice"):
        me.gate.propose(ME, Request(steps=(step("hold", "w0", id="2"), step("hold", "w1"))))


def test_later_steps_see_what_the_ones_before_them_did(me: Person, watched: Watched) -> None:
    _, outcome = run(me, step("hold", "w0"), step("release", "w0"), step("hold", "w0"))
    assert (outcome.state, watched.state_of("w0")) == ("verified", "held")
    with pytest.raises(RefusedError, match="w1 is held"):
        me.gate.propose(ME, Request(steps=(step("hold", "w1"), step("hold", "w1"))))
