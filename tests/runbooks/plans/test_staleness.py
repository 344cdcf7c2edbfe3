"""What was shown is no longer so: then nothing is done. What changed elsewhere does not matter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.control import Engine
from engine.model.commands import Cancel, Cordon, RemoveNodes, Requeue, SetPolicy, Submit, Uncordon
from engine.model.errors import RefusedError
from runbooks.plans.checks import Check
from runbooks.plans.typed_plan import Act, Request, StepRequest
from tests.support.gate_cells import HOUR, Clock, Watched, busy_engine, nodes_of, work
from tests.support.gates import ME, Person, asked, gate_of


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched() -> Watched:
    return Watched(busy_engine())


@pytest.fixture
def gate(watched: Watched, clock: Clock) -> Person:
    return Person(gate_of(watched, clock=clock))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("action", "target", "change", "shown", "now"),
    [
        ("cancel", "w0", lambda e: e.command(Uncordon(ids=("n2",))), "queued", "running"),
        ("hold", "w0", lambda e: e.command(Cancel(ids=("w0",))), "queued", "cancelled"),
        ("requeue", "r0", lambda e: e.advance(e.now_ms + 9 * HOUR), "running", "finished"),
        ("cordon", "n0", lambda e: e.command(Cordon(ids=("n0",))), "ready", "cordoned"),
        ("requeue", "r0", lambda e: e.command(Requeue(ids=("r0",))), "attempt 1", "attempt 2"),
    ],
)
def test_a_changed_target_makes_it_stale(
    gate: Person, watched: Watched, action: str, target: str, change: Callable[[Engine], object], shown: str, now: str
) -> None:
    proposal = gate.propose(action, [target])
    change(watched.engine)
    with pytest.raises(RefusedError, match=f"{target} was shown .*{shown} and is .*{now}"):
        gate.approve(proposal.id, proposal.digest)
    assert watched.executed == []


def test_a_changed_policy_makes_a_switch_stale(gate: Person, watched: Watched) -> None:
    was = watched.overview().policy
    other = "easy" if was == "fcfs" else "fcfs"
    proposal = gate.propose("set_policy", [other])
    watched.engine.command(SetPolicy(policy=other))
    with pytest.raises(RefusedError, match="stale"):
        gate.approve(proposal.id, proposal.digest)


def test_work_that_arrived_unseen_makes_a_drain_stale(gate: Person, watched: Watched) -> None:
    watched.engine.command(Uncordon(ids=("n2",)))
    watched.engine.command(Cancel(ids=("w0", "w1")))
    proposal = gate.propose("drain", ["n2"])
    watched.engine.command(Submit(workloads=(work("late"),)))
    with pytest.raises(RefusedError, match="work that was not shown: late"):
        gate.approve(proposal.id, proposal.digest)


def test_work_that_left_does_not_make_a_drain_stale(gate: Person, watched: Watched) -> None:
    watched.engine.command(Cancel(ids=("w0", "w1")))
    proposal = gate.propose("drain", ["n0"])
    watched.engine.command(Cancel(ids=("r0",)))
    assert gate.approve(proposal.id, proposal.digest).verified == ("verified: n0 is draining",)


def test_a_tier_that_rose_makes_it_stale(clock: Clock) -> None:
    engine = Engine.open(None, cell=nodes_of(20))
    gate = Person(gate_of(engine, clock=clock))
    proposal = gate.propose("cordon", ["n0", "n1"])
    assert proposal.tier == "T1"
    engine.command(RemoveNodes(ids=tuple(f"n{i}" for i in range(10, 20))))
    with pytest.raises(RefusedError, match="it was T1 and is T2 now"):
        gate.approve(proposal.id, proposal.digest)
    assert engine.node("n0").state == "ready"


def test_steps_that_together_have_become_riskier_make_it_stale(clock: Clock) -> None:
    engine = Engine.open(None, cell=nodes_of(40))
    gate = Person(gate_of(engine, clock=clock))
    steps = tuple(StepRequest(act=Act(action="cordon", targets=(f"n{i}",))) for i in range(3))
    proposal = gate.gate.propose(ME, Request(steps=steps))
    assert proposal.tier == "T1"
    engine.command(RemoveNodes(ids=tuple(f"n{i}" for i in range(20, 40))))
    with pytest.raises(RefusedError, match="the plan was T1 and is T2 now: its steps together take 3 of 20 nodes"):
        gate.approve(proposal.id, proposal.digest)
    assert engine.node("n0").state == "ready"


def test_what_is_stale_says_what_was_shown_and_what_is_and_is_revised_from_there(
    gate: Person, watched: Watched
) -> None:
    proposal = gate.propose("suspend", ["r0", "r1"])
    watched.engine.command(Requeue(ids=("r0",)))
    with pytest.raises(RefusedError, match="stale"):
        gate.approve(proposal.id, proposal.digest)
    shown = gate.gate.proposal(proposal.id)
    assert (shown.state, shown.digest, len(shown.stale)) == ("stale", proposal.digest, 1)
    [one] = shown.stale
    assert (one.what, one.shown, one.now) == ("r0", "attempt 1", "attempt 2")
    revised = gate.gate.revise(ME, proposal.id, asked("suspend", ["r0", "r1"]))
    assert (revised.state, revised.revision, revised.stale, revised.votes) == ("awaiting", 2, (), ())
    with pytest.raises(RefusedError, match="digest"):
        gate.approve(proposal.id, proposal.digest)
    assert gate.approve(revised.id, revised.digest).state == "verified"


def test_a_precondition_that_no_longer_holds_makes_it_stale(gate: Person, watched: Watched) -> None:
    waits = Check(check="cell_waiting", op=">=", value=2)
    act = Act(action="hold", targets=("w0",))
    proposal = gate.gate.propose(ME, Request(steps=(StepRequest(act=act, pre=(waits,)),)))
    watched.engine.command(Cancel(ids=("w1",)))
    with pytest.raises(RefusedError, match=r"stale.*1 workloads wait; wanted >= 2"):
        gate.approve(proposal.id, proposal.digest)
    assert watched.state_of("w0") == "queued"


def test_unrelated_changes_do_not_make_it_stale(gate: Person, watched: Watched) -> None:
    proposal = gate.propose("hold", ["w1"])
    watched.engine.command(Submit(workloads=(work("other"),)))
    watched.engine.command(Cordon(ids=("n0",)))
    watched.engine.advance(watched.now_ms + HOUR)
    gate.approve(proposal.id, proposal.digest)
    assert watched.state_of("w1") == "held"
