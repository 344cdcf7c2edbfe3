"""What people may do alone with the work that they submitted, and what makes it an ordinary plan."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gate_history import Lived, opened

from engine.admission.fleet_routing import BY_TAG
from engine.control import Engine
from engine.model.commands import Submit
from engine.model.errors import RefusedError
from runbooks.audit import verify
from runbooks.gate.approval_policy import OwnWork, Policy, ServiceIdentity, is_own
from runbooks.gate.decisions import admit, owned
from runbooks.plans.identity import TCP, Actor
from runbooks.plans.typed_plan import Act, OwnedWork, Party, Proposal, Request, Source, StepRequest
from tests.support.gate_cells import CELL, HOUR, Clock, Watched, work
from tests.support.gates import asked
from tests.support.records import records
from tests.support.team import Member, account, changed, members, put_in_force, team, team_gate


def policy(**fields: Any) -> Policy:
    """Besides the team's, eve may submit and nothing else."""
    return msgspec.structs.replace(changed(team(), "eve", roles=("submitter",)), version=1, **fields)


def submitted(gate: Any, engine: Engine, who: Actor, *ids: str, **fields: Any) -> None:
    admit(engine, gate, who, Submit(workloads=tuple(work(id_, **fields) for id_ in ids)))


@pytest.fixture
def of() -> dict[str, Member]:
    """ann's a0 and a1 and eve's e0 run, and eve's e1 waits."""
    engine = Engine.open(None, cell=CELL)
    gate = team_gate(Watched(engine), Clock(), policy())
    of = members(gate)
    for name, ids in (("ann", ("a0",)), ("eve", ("e0",)), ("ann", ("a1",)), ("eve", ("e1",))):
        submitted(gate, engine, of[name].actor, *ids)
    engine.advance(engine.now_ms + HOUR)
    return of


def by_account(member: Member, shown: Proposal) -> str:
    """A yes from their account alone: without a signature."""
    return member.gate.approve(member.actor, shown.id, shown.digest, "seen and wanted").state


def test_an_owner_cancels_what_runs_by_their_own_unsigned_vote(of: dict[str, Member]) -> None:
    shown = of["ann"].propose("cancel", ["a0"])
    assert (shown.tier, shown.needs, shown.signed, shown.wants_reason, shown.self_approvable) == (
        "T3", 1, False, True, True,
    )  # fmt: skip
    assert by_account(of["ann"], shown) == "verified"


def test_somebody_who_may_only_submit_acts_on_their_own_work_and_on_nothing_else(of: dict[str, Member]) -> None:
    assert by_account(of["eve"], of["eve"].propose("requeue", ["e0"])) == "verified"
    for action, targets in (("cancel", ["a0"]), ("requeue", ["a1"]), ("cancel", ["e1", "a1"]), ("cordon", ["n0"])):
        with pytest.raises(RefusedError, match="is not an operator"):
            of["eve"].propose(action, targets)


def test_for_anybody_else_and_anything_else_it_is_as_it_was(of: dict[str, Member]) -> None:
    others = of["ben"].propose("cancel", ["a0"])
    assert (others.needs, others.signed) == (2, True)
    with pytest.raises(RefusedError, match="does not count"):
        by_account(of["ann"], others)  # whose work it is, but ben asks
    assert of["ann"].propose("cancel", ["a0", "e0"]).needs == 2
    acts = (Act(action="cancel", targets=("a0",)), Act(action="cordon", targets=("n0",)))
    besides = Request(steps=tuple(StepRequest(act=act) for act in acts))
    assert of["ann"].gate.propose(of["ann"].actor, besides).needs == 2
    assert of["ann"].propose("cancel", ["a0"], requester="ben").needs == 2
    drafted = msgspec.structs.replace(asked("cancel", ["a0"]), source=Source(kind="model"))
    assert of["ann"].gate.propose(of["ann"].actor, drafted).needs == 2


def test_the_owner_is_whom_the_door_knew_whatever_a_submission_says(of: dict[str, Member]) -> None:
    gate, engine = of["ann"].gate, of["ann"].gate._engine.engine
    forged = Submit(workloads=(work("f0", tags={"owner": "person:ann", "user": "ann"}),), owner="person:ann")
    admit(engine, gate, of["eve"].actor, forged)
    assert engine.workload("f0").owner == "person:eve"
    nobody = (
        ("by-fleet", of["ann"].actor, {"tags": {BY_TAG: "unix:2001"}}),
        ("by-service", Actor(subject="service:ci", kind="service", account=account("ann")), {}),
    )
    put_in_force(gate, policy(services=(ServiceIdentity(id="ci", roles=("submitter",)),)))
    for id_, who, fields in nobody:
        submitted(gate, engine, who, id_, **fields)
        assert engine.workload(id_).owner == ""
    assert owned(Actor(subject=TCP, account=TCP), forged).owner == ""


def test_much_of_ones_own_is_counted_and_keeps_nobody_else_from_acting(of: dict[str, Member]) -> None:
    gate, engine = of["ann"].gate, of["ann"].gate._engine.engine
    own = OwnWork(workloads=2, workloads_per_hour=3)
    narrow = msgspec.structs.replace(
        policy(own_work=own), version=2, limits=msgspec.structs.replace(team().limits, workloads_per_hour=1)
    )
    put_in_force(gate, narrow)
    submitted(gate, engine, of["ann"].actor, *(f"m{i}" for i in range(4)))
    assert of["ann"].propose("cancel", ["m0", "m1", "m2"]).need.startswith("approver"), "more than two at once"
    assert by_account(of["ann"], of["ann"].propose("cancel", ["m0", "m1"])) == "verified"
    assert by_account(of["ann"], of["ann"].propose("cancel", ["a0"])) == "verified"
    assert of["ann"].propose("cancel", ["m3"]).need.startswith("approver"), "the fourth within the hour"
    assert of["cat"].yes(of["ben"].propose("requeue", ["e0"])).state == "verified", "the one of all others"


def test_by_a_policy_that_does_not_say_so_owners_are_as_anybody(of: dict[str, Member]) -> None:
    put_in_force(of["ann"].gate, msgspec.structs.replace(policy(own_work=msgspec.UNSET), version=2))
    assert of["ann"].propose("cancel", ["a0"]).needs == 2
    with pytest.raises(RefusedError, match="is not an operator"):
        of["eve"].propose("cancel", ["e0"])
    put_in_force(of["ann"].gate, msgspec.structs.replace(policy(own_work=OwnWork(actions=("hold",))), version=3))
    assert of["ann"].propose("cancel", ["a0"]).needs == 2


def test_ranges_of_owners_are_the_same_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with opened(path) as lived:
        for name, ids in (("ann", ("x0", "x1")), ("ann", ("x2",)), ("ben", ("y0",)), ("ann", ("x3",))):
            submitted(lived.gate, lived.engine, lived.of[name].actor, *ids)
        before, ranges = lived.engine.state.digest(), len(lived.engine.state.owners.first)
    with contextlib.closing(Engine.open(path)) as engine:
        assert (engine.state.digest(), ranges) == (before, 3)
        assert [engine.workload(id_).owner for id_ in ("r0", "x0", "x2", "y0", "x3")] == [
            "", "person:ann", "person:ann", "person:ben", "person:ann",
        ]  # fmt: skip


def test_in_a_slurm_cell_the_owner_is_the_user_whom_the_policy_maps_to_a_person() -> None:
    mapped = changed(policy(), "ann", accounts=(account("ann"), "slurm:alice"))
    ann = Party(subject="person:ann", kind="human", account=account("ann"))
    owners = ("slurm:alice", "slurm:ann", "slurm:bob", "person:ann", account("ann"), account("ben"), "tcp")
    mine = [
        owner
        for owner in owners
        if is_own(mapped, OwnedWork(owner=owner, actions=("cancel",), workloads=1), ann, "", "person")
    ]
    assert mine == ["slurm:alice", "person:ann", account("ann")], "a like name is nobody's"


# -- forged -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def lived(tmp_path: Path) -> Iterator[Lived]:
    """eve and ann have work of their own, and ann's plan to cancel hers has her vote and waits to be carried out."""
    with opened(tmp_path / "journal.db") as found:
        submitted(found.gate, found.engine, found.of["ann"].actor, "a0")
        submitted(found.gate, found.engine, found.of["ben"].actor, "b0")
        yield found


def _waiting(lived: Lived, name: str, target: str) -> Proposal:
    request = msgspec.structs.replace(asked("cancel", [target]), start="asked")
    return lived.gate.propose(lived.of[name].actor, request)


def test_the_verifier_knows_the_rule(lived: Lived) -> None:
    shown = _waiting(lived, "ann", "a0")
    lived.gate.vote(lived.of["ann"].actor, shown.id, shown.digest, "approve", "mine")
    assert lived.gate.execute(lived.of["ann"].actor, shown.id).state == "verified"
    lived.checkpoint()
    code, _ = verify.verify([lived.folder / "journal.db"], verify.Trust())
    assert code == 0


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda facts: facts["own"].update(owner="person:ben"), "it lacks 1 vote"),
        (lambda facts: facts["own"].update(workloads=51), "it lacks 1 vote"),
        (lambda facts: facts["own"].update(actions=["cancel", "drain"]), "it lacks 1 vote"),
        (lambda facts: facts["own"].update(actions=["hold"]), "on more than the work of its author"),
        (lambda facts: facts.update(origin="model"), "it lacks 1 vote"),
        (lambda facts: facts.update(requester="person:ben"), "it lacks 1 vote"),
        (lambda facts: facts["author"].update(subject="person:ben"), "it lacks 1 vote"),
        (lambda facts: facts.pop("own"), "it lacks 1 vote"),
    ],
)
def test_a_forged_record_of_ones_own_work_authorises_nothing(lived: Lived, edit: Any, what: str) -> None:
    """An exported log alone, whose every link was made anew."""
    shown = _waiting(lived, "ann", "a0")
    lived.gate.vote(lived.of["ann"].actor, shown.id, shown.digest, "approve", "mine")
    lived.gate.execute(lived.of["ann"].actor, shown.id)

    def problems(forged: bool) -> list[str]:
        replay = verify.AuthorisationReplay()
        replay.whole = True
        for seq, record in enumerate(records(lived.engine), 1):
            body = json.loads(json.dumps(record))
            if forged and body["type"] == "proposal.simulated":
                edit(body["data"]["of"])
            replay.take(seq, verify.content_of(verify.canonical(body)))
        return [told for _, told in replay.problems]

    assert problems(forged=False) == []
    assert any(what in told for told in problems(forged=True))
