"""Who may say what came of an intent in doubt, what is on record of it, and what would have it done once more."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cells import workload
from gates import Person, gate_of
from made_up_slurm import outside_cell, put_in_doubt
from people import ALICE, CAROL, DAVE, FAITH, OTTO, actor, team
from sqlalchemy import select

from engine.command_checks import check
from engine.control import Engine
from engine.model import commands as cmd
from engine.model import external_cells as seen
from engine.model.commands import CARRIED
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.specs import QueueSpec, ReservationSpec, RunSpec, Taint
from engine.state.external_cell import Phase
from runbooks.audit.log import record_table
from runbooks.gate import aftermath
from runbooks.gate.approval_gate import Gate, wall_ms
from runbooks.gate.approval_policy import SOLO
from runbooks.gate.run_limits import FreezeSpec
from runbooks.plans.identity import Scope
from runbooks.plans.queries import IntentAnswer
from tests.support.records import problems
from tests.support.team import Member, team_gate

FOUND = "looked at the node: it is drained"


def answer(engine: Engine, gate: Gate, who: Person, number: int, outcome: str = "done", reason: str = FOUND) -> None:
    said = IntentAnswer(number=number, outcome=outcome, reason=reason)  # type: ignore[arg-type]
    aftermath.answer(engine, gate, who.actor, said)


def types(gate: Gate, engine: Engine) -> list[str]:
    return engine.recorded(lambda connection: list(connection.execute(select(record_table.c.type)).scalars()))


def test_who_may_approve_such_an_act_may_say_what_came_of_it(tmp_path: Path) -> None:
    """As with `resume --accept`, it stands for a look that nobody could take."""
    engine = outside_cell()
    gate = gate_of(engine, team())
    node = engine.state.capacity.node_ids[0]
    drain, cordon = (put_in_doubt(engine, kind(ids=(node,))) for kind in (cmd.Drain, cmd.Cordon))
    otto, carol = Person(gate, actor(OTTO)), Person(gate, actor(CAROL))
    for who in (otto, Person(gate, actor(DAVE)), Person(gate, actor(FAITH))):
        with pytest.raises(RefusedError, match=f"you may not settle i{drain}"):
            answer(engine, gate, who, drain)
    assert types(gate, engine).count("command.refused") == 3
    answer(engine, gate, otto, cordon)  # T1: an operator's
    answer(engine, gate, carol, drain, "undone")
    assert types(gate, engine).count("intent.answered") == 2
    assert problems(engine, tmp_path) == []
    assert [Phase(each.phase) for each in engine.state.intents.ended] == [Phase.UNDONE, Phase.DONE]


def carried_cancel(engine: Engine, gate: Gate) -> int:
    """w runs; ben proposed to cancel it, a T3, cat and dan agreed; nobody can tell whether Slurm did it."""
    engine.advance(gate._now())
    engine.command(
        cmd.Observe(
            seen=(
                seen.WorkloadSeen(
                    spec=workload("w"), phase="running",
                    holds=(seen.Holding(node="g0", resources=workload("w").groups[0].request),),
                ),
            )
        )
    )  # fmt: skip
    shown = Member(gate, "ben").propose("cancel", ["w"], "runs wild")
    assert shown.tier == "T3"
    for name in ("cat", "dan"):
        Member(gate, name).yes(shown)
    (number,) = engine.state.intents.open
    lost = cmd.IntentChange(number=number, phase=Phase.IN_DOUBT, text="it may have ended")
    engine.command(cmd.SettleIntents(changes=(lost,)))
    return number


def test_a_doubt_takes_as_many_people_as_its_plan(tmp_path: Path) -> None:
    """Nobody settles alone what took two, nor what they asked for themselves."""
    engine = outside_cell()
    gate = team_gate(engine, wall_ms)
    number = carried_cancel(engine, gate)
    ben, cat, dan = (Member(gate, name) for name in ("ben", "cat", "dan"))
    with pytest.raises(RefusedError, match="it is the author"):
        answer(engine, gate, ben, number)
    for _ in range(2):  # who says it twice is one person all the same
        with pytest.raises(RefusedError, match=r"your answer is recorded, and .* needs 1 more") as caught:
            answer(engine, gate, cat, number)
    assert f"muster intent settle {number} done" in caught.value.remedy
    with pytest.raises(RefusedError, match="your answer is recorded"):
        answer(engine, gate, dan, number, "undone")  # another word agrees with nobody
    assert engine.intents().in_doubt == 1
    answer(engine, gate, dan, number)
    assert [Phase(each.phase) for each in engine.state.intents.ended] == [Phase.DONE]
    assert types(gate, engine).count("intent.agreed") == 3
    assert types(gate, engine).count("intent.answered") == 1
    assert problems(engine, tmp_path) == []


def test_one_person_alone_settles_under_solo() -> None:
    engine = outside_cell()
    gate = gate_of(engine, SOLO)
    number = put_in_doubt(engine, cmd.Cancel(ids=("w",)))
    answer(engine, gate, Person(gate), number)
    assert engine.intents().in_doubt == 0


def test_who_may_submit_there_may_have_a_submission_carried_again() -> None:
    engine = outside_cell()
    gate = gate_of(engine, team())
    spec = msgspec.structs.replace(workload("w"), run=RunSpec(argv=("true",)))
    number = put_in_doubt(engine, cmd.Submit(workloads=(spec,)))
    with pytest.raises(RefusedError, match="you may not submit"):
        answer(engine, gate, Person(gate, actor(FAITH)), number, "retry")
    assert not engine.state.intents.open
    answer(engine, gate, Person(gate, actor(ALICE)), number, "retry")
    assert len(engine.state.intents.open) == 1


@pytest.mark.parametrize("reason", ["", "short", "x" * 501])
def test_what_was_found_must_be_said(reason: str) -> None:
    engine = outside_cell()
    number = put_in_doubt(engine, cmd.Cordon(ids=(engine.state.capacity.node_ids[0],)))
    gate = gate_of(engine)
    with pytest.raises(SpecError, match="reason"):
        answer(engine, gate, Person(gate), number, reason=reason)
    assert engine.intents().in_doubt == 1


def test_a_token_that_is_for_looking_says_nothing() -> None:
    engine = outside_cell()
    gate = gate_of(engine)
    number = put_in_doubt(engine, cmd.Cordon(ids=(engine.state.capacity.node_ids[0],)))
    looker = msgspec.structs.replace(Person(gate).actor, deeds=("read",))
    with pytest.raises(RefusedError, match="token does not allow it"):
        answer(engine, gate, Person(gate, looker), number)


@pytest.mark.parametrize("kind", ["llm", "service"])
def test_what_is_no_person_says_nothing_of_an_act(kind: str) -> None:
    """Nor does a token for another part of the cell, of acts or of submissions."""
    engine = outside_cell()
    gate = gate_of(engine, SOLO)
    spec = msgspec.structs.replace(workload("w"), run=RunSpec(argv=("true",)))
    act = put_in_doubt(engine, cmd.Cordon(ids=(engine.state.capacity.node_ids[0],)))
    submission = put_in_doubt(engine, cmd.Submit(workloads=(spec,)))
    owner = Person(gate).actor
    for outcome in ("done", "undone", "retry"):
        with pytest.raises(RefusedError, match="you may not settle"):
            answer(engine, gate, Person(gate, msgspec.structs.replace(owner, kind=kind)), act, outcome)
        for within in (Scope(tenants=("another",)), Scope(queues=("another",))):
            elsewhere = Person(gate, msgspec.structs.replace(owner, within=within))
            for number in (act, submission):
                with pytest.raises(RefusedError, match="this token covers"):
                    answer(engine, gate, elsewhere, number, outcome)
    assert engine.intents().in_doubt == 2


def test_who_asked_for_it_is_found_by_the_proposal_that_left_it() -> None:
    engine = outside_cell()
    gate = gate_of(engine, SOLO)
    person = Person(gate)
    first, second = engine.state.capacity.node_ids[:2]
    for node in (first, second):
        engine.advance(gate._now())
        shown = person.propose("cordon", [node], "power work")
        person.approve(shown.id, shown.plan.digest())
    numbers = list(engine.state.intents.open)
    for number, proposal, node in zip(numbers, ("P-1", "P-2"), (first, second), strict=True):
        found, _ = aftermath.detail(engine, gate, number)
        assert (found.proposal, found.by, found.agreed) == (proposal, person.actor.subject, (person.actor.subject,))
        assert found.act is not None
        assert (found.act.action, found.act.targets) == ("cordon", (node,))
    with pytest.raises(NotFoundError):
        aftermath.detail(engine, gate, 99)


def test_a_freeze_that_was_set_since_stops_what_would_be_done_again_by_itself() -> None:
    """As it would stop the plan: by its tier, and by what it touches."""
    engine = outside_cell()
    gate = gate_of(engine, SOLO)
    person = Person(gate)
    engine.advance(gate._now())
    for action, targets in (("cordon", ["g0"]), ("hold_queue", ["b"])):
        shown = person.propose(action, targets, "power work")
        person.approve(shown.id, shown.plan.digest())
    cordon, hold = engine.state.intents.open
    assert (aftermath.frozen(engine, gate, cordon), aftermath.frozen(engine, gate, hold)) == ("", "")
    now_ms = gate._now()
    window = {"from_ms": now_ms - 1000, "until_ms": now_ms + 3_600_000}
    gate.policies.freeze(person.actor, FreezeSpec(name="late", tier="T3", **window))
    gate.policies.freeze(person.actor, FreezeSpec(name="gpus", scope=Scope(pools=("gpu",)), **window))
    assert "freeze gpus is in effect: it is not done again automatically" in aftermath.frozen(engine, gate, cordon)
    assert aftermath.frozen(engine, gate, hold) == ""
    gate.policies.thaw(person.actor, "gpus")
    assert aftermath.frozen(engine, gate, cordon) == ""


def test_a_doubt_that_is_settled_as_done_lets_its_plan_go_on() -> None:
    """The plan was paused by the doubt; what a person says counts as what was read there."""
    engine = outside_cell()
    gate = gate_of(engine, SOLO)
    person = Person(gate)
    engine.advance(gate._now())
    node = engine.state.capacity.node_ids[0]
    shown = person.propose("cordon", [node], "power work")
    person.approve(shown.id, shown.plan.digest())
    number = next(iter(engine.state.intents.open))
    lost = cmd.IntentChange(number=number, phase=Phase.IN_DOUBT, text="it is so no longer")
    engine.command(cmd.SettleIntents(changes=(lost,)))
    gate.tick()
    assert gate.proposal(shown.id).state == "paused"
    answer(engine, gate, person, number)
    with pytest.raises(RefusedError, match="still not verified"):
        gate.resume(person.actor, shown.id)  # the mirror does not show it: a word alone is not enough
    with engine._turn():
        for event in check(engine.state, cmd.Cordon(ids=(node,)), engine.now_ms)[0]:
            engine._emit(event)
    assert gate.resume(person.actor, shown.id).state == "verified"


ACTS = (
    cmd.Cancel(ids=("w",)), cmd.Hold(ids=("w", "v")), cmd.Release(ids=("w",)), cmd.Requeue(ids=("w",)),
    cmd.Preempt(ids=("w",)), cmd.SetPriority(ids=("w",), priority_class="high.tier-1"),
    cmd.SetQos(ids=("w",), qos="high"), cmd.SetJobPriority(ids=("w",), priority=500),
    cmd.MoveToQueue(ids=("w",), queue="gpu"), cmd.Cordon(ids=("n",)),
    cmd.Uncordon(ids=("n",)), cmd.Drain(ids=("n",)), cmd.HoldQueues(names=("q",)), cmd.DrainQueues(names=("q",)),
    cmd.OpenQueues(names=("q",)), cmd.Unreserve(names=("r",)), cmd.PowerUp(ids=("n",)), cmd.PowerDown(ids=("n",)),
    cmd.Reserve(reservation=ReservationSpec(name="r", nodes=("n",), start_ms=1_000, end_ms=2_000)),
    cmd.ChangeQueue(queue=QueueSpec(name="root", weight=2)),
    cmd.TaintNodes(ids=("n",), taint=Taint(key="repair", value="psu")),
    cmd.TaintNodes(ids=("n",), taint=Taint(key="repair", value="psu"), remove=True),
)  # fmt: skip


def test_every_act_that_is_carried_can_be_proposed_once_more() -> None:
    from runbooks.actions import catalogue

    state = outside_cell().state
    for command in ACTS:
        act = aftermath.act_of(command, state)
        assert act is not None, command
        assert catalogue.command(act) == command
    carried = {kind for each in CARRIED.values() for kind in each}
    left = carried - {type(each) for each in ACTS}
    assert left == {cmd.Submit, cmd.RestoreNodes}, "another act is carried: it must be possible to propose it once more"


def test_what_muster_does_again_by_itself_is_on_record_beside_its_event(tmp_path: Path) -> None:
    engine = outside_cell()
    gate = gate_of(engine, SOLO)
    node = engine.state.capacity.node_ids[0]
    spec = msgspec.structs.replace(workload("w"), run=RunSpec(argv=("true",)))
    for command in (cmd.Cordon(ids=(node,)), cmd.Submit(workloads=(spec,))):
        engine.command(command)
        number = next(reversed(engine.state.intents.open))
        for phase, why in ((Phase.ACCEPTED, ""), (Phase.OPEN, "slurmctld has lost it: done again")):
            changes = (cmd.IntentChange(number=number, phase=phase, text=why),)
            engine.command(cmd.SettleIntents(changes=changes), beside=aftermath.recorded_again(engine, gate, changes))
    # A submission is carried until there is a job: nobody voted on it.
    assert types(gate, engine).count("intent.again") == 1
    assert problems(engine, tmp_path) == []
