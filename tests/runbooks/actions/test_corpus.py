"""The corpus of hostile requests: each is refused for what is wrong with it, and nothing else happens at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from engine.model.errors import NotFoundError, RefusedError, SpecError
from runbooks.plans.identity import Actor
from runbooks.plans.typed_plan import Request
from tests.support.gate_cells import Clock, Watched, busy_engine
from tests.support.records import effect_keys, problems, records, states
from tests.support.team import Member, team, team_gate

CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parents[1] / "corpus" / "actions.yaml").read_text())
ERRORS: dict[str, type[Exception]] = {
    "schema": msgspec.ValidationError, "spec": SpecError, "not_found": NotFoundError, "refused": RefusedError,
}  # fmt: skip
FINE = [{"act": {"action": "hold", "targets": ["w0"]}}]
AUTHORS = {
    "person": Actor(subject="person:ann", account="unix:2001"),
    "model": Actor(subject="service:llm-drafter", kind="llm", account="unix:7"),
}


@pytest.fixture(scope="module")
def ann() -> Member:
    return Member(team_gate(Watched(busy_engine()), Clock(), team(channels=(("ops", "log:"),))), "ann")


@pytest.mark.parametrize("author", AUTHORS)
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_it_is_refused_and_leaves_nothing(ann: Member, case: dict[str, Any], author: str) -> None:
    engine = ann.gate._engine
    body = msgspec.json.encode({"steps": case.get("steps", FINE)} | case.get("request", {}))
    before, digest, kept = len(records(engine)), engine.state.digest(), states(ann.gate)
    with pytest.raises(ERRORS[case["error"]], match=case["says"]) as caught:
        ann.gate.propose(AUTHORS[author], msgspec.json.decode(body, type=Request))
    assert str(caught.value).isprintable()
    assert engine.state.digest() == digest
    assert (engine.executed, effect_keys(engine), states(ann.gate)) == ([], [], kept)
    assert len(records(engine)) == before


def test_the_same_without_what_is_wrong_is_taken(ann: Member, tmp_path: Path) -> None:
    """Else the cases would show nothing."""
    body = msgspec.json.encode({"steps": FINE, "reason": "{{ 7 * 7 }} $(curl x) [@click=app.approve('P-1')]yes[/]"})
    before = len(records(ann.gate._engine))
    shown = ann.gate.propose(ann.actor, msgspec.json.decode(body, type=Request))
    assert shown.reason == "{{ 7 * 7 }} $(curl x) [@click=app.approve('P-1')]yes[/]", "kept as it is, as data"
    assert [one["type"] for one in records(ann.gate._engine, before)] == [
        "proposal.drafted", "proposal.simulated", "proposal.submitted",
    ]  # fmt: skip
    assert problems(ann.gate._engine, tmp_path) == []


def test_a_channel_that_the_policy_does_not_name_is_denied(ann: Member) -> None:
    """E11: what the policy says no to is kept, with its reason, and can neither be voted on nor done."""
    steps = [{"act": {"action": "notify", "targets": ["evil"], "note": {"text": "hello"}}}]
    before = len(records(ann.gate._engine))
    with pytest.raises(RefusedError, match="no channel evil"):
        ann.gate.propose(ann.actor, msgspec.json.decode(msgspec.json.encode({"steps": steps}), type=Request))
    new = records(ann.gate._engine, before)
    assert [one["type"] for one in new] == ["proposal.drafted", "proposal.simulated", "proposal.denied"]
    denied = ann.gate.proposal(new[0]["proposal"])
    for call in (ann.yes, lambda shown: ann.gate.execute(ann.actor, shown.id)):
        with pytest.raises(RefusedError, match="denied"):
            call(denied)
    assert effect_keys(ann.gate._engine) == []


def test_no_identifier_of_a_case_is_there_twice() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES) > 50
