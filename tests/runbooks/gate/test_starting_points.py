"""The three starting points: their order, what one person may do under each, and who chooses one first."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import msgspec
import pytest

import runbooks
from console.forms.settings import APPROVALS
from engine.control import Engine
from engine.model.errors import RefusedError
from runbooks.actions import catalogue
from runbooks.audit.log import Audit
from runbooks.gate.approval_policy import BUILT_IN, MODES, SOLO, TEAM, Policy, PolicyChange, PolicyVote, need, stricter
from runbooks.gate.policy_changes import view_of
from runbooks.gate.policy_files import read_policy, text_of
from runbooks.gate.policy_versions import Policies
from runbooks.gate.run_limits import LimitUsage, PolicyLimits, Size, over, tighter
from runbooks.gate.starting_points import CASES, FOR_WHOM, table
from runbooks.plans.identity import OWNER, Actor, Kind
from runbooks.plans.typed_plan import ORIGINS, TIERS, Blast
from tests.support.gate_cells import CELL, Clock
from tests.support.records import records
from tests.support.team import team

KINDS: tuple[Kind, ...] = ("human", "service", "llm")


def test_each_starting_point_is_as_strict_as_the_one_before_it_or_stricter() -> None:
    assert tuple(BUILT_IN) == MODES == APPROVALS == tuple(FOR_WHOM)
    for milder, harder in pairwise(BUILT_IN.values()):
        for tier, origin, kind, own in product(TIERS, sorted(set(ORIGINS.values())), KINDS, (False, True)):
            a, b = (need(policy, tier, origin, author=kind, own=own) for policy in (milder, harder))
            assert stricter(a, b) == b
        assert tighter(milder.limits, harder.limits) == harder.limits
        for pool in range(1, 300):
            size, whole = Size(nodes={"p": pool}, gpu_milli=0), Blast(nodes=(("p", 1),))
            assert not over(harder.limits, LimitUsage(), "T1", whole, size), "one node of any pool, under any"


def test_that_owners_may_do_more_lowers_nothing_for_anybody_else() -> None:
    """The needs of `team` and `solo` are those from before there was that rule."""
    for policy, tier, origin, kind in product(BUILT_IN.values(), TIERS, sorted(set(ORIGINS.values())), KINDS):
        without = msgspec.structs.replace(policy, own_work=msgspec.UNSET)
        assert need(policy, tier, origin, author=kind) == need(without, tier, origin, author=kind)
    was = [(1, False, True), (1, False, True), (1, True, False), (2, True, False)]
    for policy, expected in ((TEAM, was), (SOLO, [(1, False, True)] * 4)):
        asked = [need(policy, tier, "person") for tier in TIERS]
        assert [(each.approvals, each.signed, each.self_ok) for each in asked] == expected


def test_the_manual_shows_the_table_that_the_policy_gives() -> None:
    head, *rows = table()
    lines = [head, ("---",) * len(head), *rows]
    made = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    manual = (Path(runbooks.__file__).parents[1] / "docs" / "approval.md").read_text()
    assert made in manual, f"docs/approval.md must begin with:\n{made}"


def test_its_examples_are_of_their_tier() -> None:
    for case in CASES:
        known = [catalogue.find(name) for name in case.examples if name in catalogue.CATALOG]
        if not case.own:
            assert {action.tier for action in known} <= {case.tier}


@pytest.mark.parametrize(("given", "permille", "least"), [("10%", 100, 1), ("2.5%", 25, 1), (3, 0, 3), ("0%", 0, 1)])
def test_a_limit_of_nodes_is_a_share_or_a_number(given: str | int, permille: int, least: int) -> None:
    limits = _read(f"limits: {{nodes: {given}}}").limits
    assert (limits.nodes_permille, limits.nodes_least) == (permille, least)
    assert _read(f"limits: {{gpus: {given}}}").limits.gpus_permille == permille


@pytest.mark.parametrize("wrong", ["nodes: 10, nodes_least: 1", "nodes: 51%", "nodes: ten", "gpus: -1", "nodes: 1e1%"])
def test_a_limit_that_is_neither_is_refused(wrong: str) -> None:
    with pytest.raises(Exception, match=r"limits\.|nodes"):
        _read(f"limits: {{{wrong}}}")


def _read(more: str) -> Policy:
    return read_policy(f"schema: muster-policy/v1\nname: x\nversion: 1\n{more}\n".encode(), "x")


@pytest.mark.parametrize(("pool", "most"), [(1, 1), (4, 1), (19, 1), (20, 2), (39, 3)])
def test_a_share_is_rounded_down_and_never_below_one_node(pool: int, most: int) -> None:
    limits = PolicyLimits(nodes_permille=100, nodes_least=1)
    size = Size(nodes={"p": pool}, gpu_milli=0)
    for nodes in range(1, pool + 1):
        assert bool(over(limits, LimitUsage(), "T1", Blast(nodes=(("p", nodes),)), size)) == (nodes > most)


def test_all_of_a_policy_is_in_its_file() -> None:
    for policy in (*BUILT_IN.values(), msgspec.structs.replace(TEAM, own_work=msgspec.UNSET)):
        policy = msgspec.structs.replace(policy, version=1)
        assert read_policy(text_of(policy).encode(), "x") == policy


# -- chosen first -----------------------------------------------------------------------------------------------------

ME, OTHER = Actor(subject=OWNER, account=OWNER), Actor(subject="unix:9", account="unix:9")


@pytest.fixture
def policies() -> Policies:
    engine = Engine.open(None, cell=CELL)
    return Policies(engine, Audit(engine, Clock()), Clock())


def choose(policies: Policies, actor: Actor, name: str = "", text: str = "") -> str:
    made = policies.propose(actor, PolicyChange(built_in=name, text=text))
    return policies.vote(actor, PolicyVote(candidate=made.id, digest=made.digest)).state


def test_the_account_of_the_engine_chooses_first_on_record_and_nobody_else(policies: Policies) -> None:
    assert view_of(policies, ME).unchosen
    with pytest.raises(RefusedError, match="not an admin"):
        choose(policies, OTHER, "solo")
    assert (policies.latest().name, choose(policies, ME, "pair"), policies.latest().name) == (
        "team",
        "in_force",
        "pair",
    )
    assert not view_of(policies, ME).unchosen
    told = [record["type"] for record in records(policies._engine) if record["type"].startswith("policy.")]
    assert told == ["policy.start", "policy.proposed", "policy.vote", "policy.changed"]


def test_what_was_chosen_is_not_weakened_by_choosing_again(policies: Policies) -> None:
    """It goes by the votes that it asks for itself; nor does starting the engine another way choose anew."""
    named = team(limits=TEAM.limits, people=tuple(
        msgspec.structs.replace(person, accounts=(*person.accounts, OWNER)) if person.id == "sue" else person
        for person in team().people
    ))  # fmt: skip
    assert choose(policies, ME, text=text_of(named)) == "in_force"
    sue = Actor(subject="person:sue", account=OWNER)
    candidate = policies.propose(sue, PolicyChange(built_in="solo"))
    assert any(change.loosens for change in candidate.changes)
    assert (candidate.alone, candidate.signed) == (False, True)
    with pytest.raises(RefusedError, match="does not count"):
        policies.vote(sue, PolicyVote(candidate=candidate.id, digest=candidate.digest))
    again = Policies(policies._engine, Audit(policies._engine, Clock()), Clock(), default=SOLO, chosen=True)
    assert again.latest() == named


def test_a_cell_whose_engine_was_started_with_one_has_chosen() -> None:
    engine = Engine.open(None, cell=CELL)
    chosen = Policies(engine, Audit(engine, Clock()), Clock(), default=SOLO, chosen=True)
    assert not view_of(chosen, ME).unchosen


def test_show_says_what_the_asker_may_do_alone(policies: Policies) -> None:
    alone = dict(view_of(policies, ME).alone)
    assert alone["what disrupts (requeue, drain)"] == "1 other approver, signed"
    assert alone["all that with work you submitted (cancel, hold, requeue)"] == "you alone, with a reason"
    assert all(answer.startswith("not you: unix:9 is not") for _, answer in view_of(policies, OTHER).alone)
