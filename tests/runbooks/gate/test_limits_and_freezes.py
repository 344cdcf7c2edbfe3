"""How much may be done in an hour, by however many proposals; and when nothing may be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.control import Engine
from engine.model.errors import RefusedError
from engine.model.specs import NodeState, ReservationSpec
from runbooks.gate.approval_gate import MAX_REVISIONS
from runbooks.gate.run_limits import ByTier, FreezeSpec
from runbooks.plans.identity import AuthRefused, Scope
from runbooks.plans.typed_plan import Act, Proposal, Request, RequestChange, StepRequest
from tests.support.gate_cells import HOUR, MINUTE, START, Clock, Watched, busy_engine, nodes_of
from tests.support.gates import asked
from tests.support.growing_cells import cell, started
from tests.support.records import records, types
from tests.support.team import Member, members, put_in_force, team, team_gate


@pytest.fixture
def clock() -> Clock:
    return Clock()


def limited(**fields: Any) -> Any:
    return team(limits=msgspec.structs.replace(team().limits, **fields))


def twenty_nodes(clock: Clock, **fields: Any) -> dict[str, Member]:
    return members(team_gate(Watched(Engine.open(None, cell=nodes_of(20))), clock, limited(**fields)))


def cordon(member: Member, *nodes: str, start: Any = "approved") -> Proposal:
    request = msgspec.structs.replace(asked("cordon", nodes), start=start)
    return member.gate.propose(member.actor, request)


def executed(member: Member) -> list[Any]:
    return member.gate._engine.executed


def test_a_limit_counts_over_proposals_and_authors(clock: Clock) -> None:
    of = twenty_nodes(clock, nodes_permille=100)
    first, second = cordon(of["ann"], "n0"), cordon(of["ben"], "n1")
    third = cordon(of["pat"], "n2")
    of["ann"].yes(first)
    of["ben"].yes(second)
    with pytest.raises(RefusedError, match=r"limits\.nodes"):
        of["pat"].yes(third)
    assert len(executed(of["ann"])) == 2
    with pytest.raises(RefusedError, match=r"denied by policy.*limits\.nodes"):
        cordon(of["ann"], "n3")


def test_it_counts_what_is_approved_but_not_begun(clock: Clock) -> None:
    of = twenty_nodes(clock, nodes_permille=100)
    waits = cordon(of["ann"], "n0", "n1", start="asked")
    other = cordon(of["ben"], "n2")
    assert of["ann"].yes(waits).state == "approved"
    with pytest.raises(RefusedError, match=r"limits\.nodes"):
        of["ben"].yes(other)
    of["ann"].gate.cancel(of["ann"].actor, waits.id)
    assert of["ben"].gate.execute(of["ben"].actor, other.id).state == "verified"


def test_taking_back_or_revising_gives_nothing_back_within_the_hour(clock: Clock) -> None:
    of = twenty_nodes(clock, nodes_permille=100)
    ann, gate = of["ann"], of["ann"].gate
    first = cordon(ann, "n0", "n1")
    ann.yes(first)
    gate.rollback(ann.actor, first.id)
    with pytest.raises(RefusedError, match=r"limits\.nodes"):
        cordon(ann, "n2")
    small = ann.gate.propose(ann.actor, asked("hold_queue", ["q"]))
    assert gate.revise(ann.actor, small.id, asked("cordon", ["n2"])).state == "denied"
    with pytest.raises(RefusedError, match="denied"):
        ann.yes(gate.proposal(small.id))
    clock.now_ms += HOUR
    assert ann.yes(cordon(ann, "n2", "n3")).state == "verified"
    assert len(executed(ann)) == 3, "two plans, and one taken back"


def test_the_same_nodes_may_be_taken_out_again_within_the_hour_but_no_others(clock: Clock) -> None:
    of = twenty_nodes(clock, nodes_permille=100)
    ann, gate = of["ann"], of["ann"].gate
    out = cordon(ann, "n0", "n1")
    ann.yes(out)
    back = gate.propose(ann.actor, asked("uncordon", ["n0", "n1"]))
    ann.yes(back)
    taken_back = gate.rollback(ann.actor, back.id)
    assert taken_back.state == "rolled_back"
    assert gate._engine.state.capacity.state.count(NodeState.READY) == 18
    with pytest.raises(RefusedError, match=r"2 this hour and 1 more, at most 2 \(limits\.nodes\)"):
        cordon(ann, "n2")


def test_a_small_pool_is_maintained_node_by_node_within_the_hour(clock: Clock) -> None:
    """One of four at a time, by however many proposals: what is in service again is in the way of nothing, and what is
    kept for a reservation is not in service."""
    engine = Engine.open(None, cell=nodes_of(4))
    ann = members(team_gate(Watched(engine), clock, limited(nodes_permille=100)))["ann"]
    for node in ("n0", "n1", "n2"):
        waits = cordon(ann, node, start="asked")
        assert ann.yes(waits).state == "approved"
        with pytest.raises(RefusedError, match=r"1 now and 1 more, at most 1 \(limits\.nodes\)"):
            cordon(ann, "n3")
        ann.gate.execute(ann.actor, waits.id)
        with pytest.raises(RefusedError, match=r"1 now and 1 more, at most 1"):
            cordon(ann, "n3")
        ann.yes(ann.propose("uncordon", [node]))
    ends = ReservationSpec(name="keep", nodes=("n0",), start_ms=engine.now_ms + HOUR, end_ms=engine.now_ms + 2 * HOUR)
    ann.yes(ann.propose("reserve", ["keep"], reservation=ends))
    with pytest.raises(RefusedError, match=r"1 now and 1 more, at most 1"):
        cordon(ann, "n3")


def test_the_tighter_of_the_policy_of_then_and_of_now_counts(clock: Clock) -> None:
    of = twenty_nodes(clock, nodes_permille=100)
    ann, gate = of["ann"], of["ann"].gate
    proposals = [cordon(ann, f"n{i}") for i in range(3)]
    put_in_force(gate, msgspec.structs.replace(team(), version=2))
    for proposal in proposals[:2]:
        ann.yes(proposal)
    with pytest.raises(RefusedError, match=r"limits\.nodes"):
        ann.yes(proposals[2])
    late = cordon(ann, "n4")
    put_in_force(gate, msgspec.structs.replace(limited(nodes_permille=50), version=3))
    with pytest.raises(RefusedError, match=r"limits\.nodes"):
        ann.yes(late)
    assert len(executed(ann)) == 2


def test_executions_are_counted_by_tier(clock: Clock) -> None:
    most = ByTier(T0=600, T1=2, T2=20, T3=3)
    of = members(team_gate(Watched(busy_engine()), clock, limited(executions_per_hour=most)))
    ann = of["ann"]
    proposals = [ann.propose("hold", ["w0"]), ann.propose("hold", ["w1"]), ann.propose("release", ["h0"])]
    for proposal in proposals[:2]:
        ann.yes(proposal)
    with pytest.raises(RefusedError, match=r"limits\.executions_per_hour"):
        ann.yes(proposals[2])
    assert of["cat"].yes(ann.propose("suspend", ["r0"])).state == "verified", "of another tier"
    clock.now_ms += HOUR - 1
    with pytest.raises(RefusedError, match="expired|executions_per_hour"):  # noqa: RUF043
        ann.yes(ann.propose("release", ["h0"]))
    clock.now_ms += 1
    assert ann.yes(ann.propose("release", ["h0"])).state == "verified"


def test_a_flood_of_one_author_is_denied_and_leaves_the_others_alone(clock: Clock) -> None:
    of = members(team_gate(Watched(busy_engine()), clock, limited(proposals_per_author_hour=3)))
    ann = of["ann"]
    for _ in range(3):
        ann.propose("hold", ["w0"])
    before = len(records(ann.gate._engine))
    with pytest.raises(RefusedError, match=r"limits\.proposals_per_author_hour"):
        ann.propose("hold", ["w0"])
    assert [one["type"] for one in records(ann.gate._engine, before)][-1] == "proposal.denied"
    assert of["ben"].propose("hold", ["w0"]).state == "awaiting"


@pytest.mark.thorough
def test_revising_is_bounded_too(clock: Clock) -> None:
    ann = members(team_gate(Watched(busy_engine()), clock))["ann"]
    shown = ann.propose("hold", ["w0"])
    for i in range(MAX_REVISIONS - 1):
        change = RequestChange(request={"cpu_milli": 2000 + i})
        shown = ann.gate.revise(ann.actor, shown.id, asked("resize", ["w0"], resize=change))
    with pytest.raises(RefusedError, match="was revised"):
        ann.gate.revise(ann.actor, shown.id, asked("hold", ["w0"]))


def test_money_is_counted_even_where_the_trial_costs_nothing_yet(clock: Clock) -> None:
    engine = Watched(started(cell(2, least=1)))
    of = members(team_gate(engine, clock, limited(cost_microusd_hour=1)))
    act = Act(action="scale_pool", targets=("p",), nodes=9)
    with pytest.raises(RefusedError, match=r"limits\.cost"):
        of["ann"].gate.propose(of["ann"].actor, Request(steps=(StepRequest(act=act),)))
    assert engine.executed == []


# -- freezes ----------------------------------------------------------------------------------------------------------


def frozen(member: Member, name: str = "night", tier: Any = "T1", **fields: Any) -> None:
    spec = FreezeSpec(name=name, tier=tier, from_ms=START, until_ms=START + HOUR, **fields)
    member.gate.policies.freeze(member.actor, spec)


@pytest.fixture
def of(clock: Clock) -> dict[str, Member]:
    return members(team_gate(Watched(busy_engine()), clock))


def test_a_freeze_between_approval_and_execution_stops_it_and_it_is_there_afterwards(
    of: dict[str, Member], clock: Clock
) -> None:
    ann, gate = of["ann"], of["ann"].gate
    request = msgspec.structs.replace(asked("suspend", ["r0"]), start="asked")
    proposal = gate.propose(ann.actor, request)
    of["cat"].yes(proposal)
    frozen(of["sue"])
    gate.policies.freeze(of["sue"].actor, FreezeSpec(name="short", tier="T1", from_ms=START, until_ms=START + MINUTE))
    gate.policies.thaw(of["sue"].actor, "night")
    with pytest.raises(RefusedError, match="freeze 'short'"):
        gate.execute(ann.actor, proposal.id)
    assert gate.proposal(proposal.id).state == "approved"
    clock.now_ms += MINUTE - 1
    with pytest.raises(RefusedError, match="freeze"):
        gate.execute(ann.actor, proposal.id)
    assert executed(ann) == []
    clock.now_ms += 1
    assert gate.execute(ann.actor, proposal.id).state == "verified"


def test_a_freeze_is_of_a_tier_and_of_a_part_of_the_cell(of: dict[str, Member]) -> None:
    frozen(of["sue"], tier="T2")
    frozen(of["sue"], name="elsewhere", scope=Scope(pools=("other",)))
    ann = of["ann"]
    assert ann.yes(ann.propose("cordon", ["n0"])).state == "verified"
    with pytest.raises(RefusedError, match="freeze 'night'"):
        of["cat"].yes(ann.propose("suspend", ["r0"]))


def test_a_vote_in_a_freeze_is_kept_and_whoever_gave_it_can_go_on_with_it(of: dict[str, Member], clock: Clock) -> None:
    frozen(of["sue"])
    proposal = of["ann"].propose("hold", ["w0"])
    for told in (
        "your vote is recorded and P-1 is approved, but nothing was executed: P-1 is in the freeze",
        "P-1 is in the freeze",
    ):
        with pytest.raises(RefusedError, match=f"^{told}"):
            of["ann"].approve(proposal.id, proposal.digest)
    gate = of["ann"].gate
    gate.policies.thaw(of["tom"].actor, "night")
    assert of["ann"].approve(proposal.id, proposal.digest).state == "verified"


def test_going_on_after_a_freeze_with_a_signature_that_does_not_hold_is_refused(
    of: dict[str, Member], clock: Clock
) -> None:
    ann, gate = of["ann"], of["ann"].gate
    frozen(of["sue"])
    proposal = ann.propose("hold", ["w0"])
    signed = ann.sign(proposal, "approve")
    with pytest.raises(RefusedError, match="freeze 'night'"):
        gate.approve(ann.actor, proposal.id, proposal.digest, "wanted", signed)
    gate.policies.thaw(of["tom"].actor, "night")
    clock.now_ms += 20 * MINUTE
    with pytest.raises(AuthRefused, match="away from now"):
        gate.approve(ann.actor, proposal.id, proposal.digest, "wanted", signed)
    assert gate.proposal(proposal.id).state == "approved"
    assert types(gate._engine)[-1] == "vote.refused"
    now = ann.sign(proposal, "approve")
    assert gate.approve(ann.actor, proposal.id, proposal.digest, "wanted", now).state == "verified"


@pytest.mark.parametrize("name", ["eve", "cat", "ann", "ben"])
def test_who_set_a_freeze_and_an_admin_end_it_and_nobody_else(of: dict[str, Member], name: str) -> None:
    frozen(of["sue"])
    with pytest.raises(RefusedError, match="may not thaw"):
        of[name].gate.policies.thaw(of[name].actor, "night")
