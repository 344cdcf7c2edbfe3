"""Where a plan comes from: by every way in, the plan that is approved and the record say it truly."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from console.cli.main import run
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from console.service.recommendations import command
from console.tui.app import MusterApp
from console.views.proposal import plan_sections
from engine.loop import EngineLoop
from engine.model.commands import Cordon
from engine.model.errors import NotFoundError, RefusedError, SpecError
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import SOLO, TEAM
from runbooks.plans.identity import Actor
from runbooks.plans.queries import RunbookAsk
from runbooks.plans.typed_plan import Proposal, Source
from tests.console.tui.test_app import press, quick, read_to_the_end, until  # noqa: F401
from tests.support.drafting import drafted, drafting, records
from tests.support.gates import ME, asked, gate_of
from tests.support.served import HOUR_MS, running_loop, served_on_unix

OPERATOR = Source(kind="operator")


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    """Two nodes are cordoned and forgotten: one suggestion."""
    with running_loop() as running:
        running.call(lambda engine: engine.command(Cordon(ids=("c0", "c1"))))
        running.call(lambda engine: engine.advance(engine.now_ms + 2 * HOUR_MS))
        yield running


@pytest.fixture
def gate(loop: EngineLoop) -> Gate:
    return gate_of(loop.engine)


@pytest.fixture
def client(loop: EngineLoop, gate: Gate) -> LocalClient:
    return LocalClient(loop, gate, Advisor(loop), who="ada")


def suggested(client: LocalClient) -> tuple[str, Source]:
    """The id of the one that is found, and what a plan that follows it must say."""
    [found] = client.recommendations().open
    return found.suggestion.id, Source(kind="suggestion", id=found.suggestion.id, by=found.suggestion.kind)


def on_record(loop: EngineLoop) -> list[tuple[str, str]]:
    """(origin, source) of everything that was proposed."""
    return [(data["origin"], data["source"]) for type_, data in records(loop, "proposal.drafted")]


def origin_line(proposal: Proposal) -> str:
    lines = ["".join(text for text, _ in line.spans) for part in plan_sections(proposal, 100) for line in part.lines]
    return next(" ".join(line.split()) for line in lines if line.startswith("origin"))


def test_what_a_person_asks_for_is_the_operators_by_every_door(
    loop: EngineLoop, gate: Gate, client: LocalClient, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [gate.propose(ME, asked("cordon", ["g0"])), client.propose(asked("cordon", ["g0"], "loud fan"))]
    with served_on_unix(loop, gate=gate) as path:
        assert run(["proposal", "new", "node", "cordon", "g0", "--reason", "rack moves", "--connect", str(path)]) == 0
        made.append(client.proposal(capsys.readouterr().out.split()[0]))
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as http:
            steps = [{"act": {"action": "cordon", "targets": ["g1"]}}]
            said = http.post("/v1/propose", json={"steps": steps, "source": {"kind": "operator", "id": "", "by": ""}})
            assert said.status_code == 200, said.text
            made.append(client.proposal(said.json()["id"]))
    assert [each.plan.source for each in made] == [OPERATOR] * 4
    assert {origin_line(each) for each in made} == {"origin operator"}
    assert on_record(loop) == [("person", "operator")] * 4


def test_a_suggestion_that_is_taken_is_the_recommenders_by_every_door(
    loop: EngineLoop, gate: Gate, client: LocalClient, capsys: pytest.CaptureFixture[str]
) -> None:
    id_, source = suggested(client)
    asked_for = msgspec.structs.replace(asked("uncordon", ["c0"]), source=Source(kind="suggestion", id=id_.upper()))
    made = [client.propose(asked_for)]
    with served_on_unix(loop, gate=gate) as path:
        words = command(client.recommendations().open[0].suggestion)
        assert words[-2:] == ("--suggestion", id_)
        assert run(["proposal", "new", *words, "--connect", str(path)]) == 0
        made.append(client.proposal(capsys.readouterr().out.split()[0]))
    for each in made:
        assert (each.plan.source, each.plan.origin) == (source, "recommender")
        assert [piece.id for piece in each.plan.evidence] == [id_], "what it rests on is in what is approved"
        assert origin_line(each) == f"origin suggestion {id_} ({source.by})"
    assert on_record(loop) == [("recommender", f"suggestion {id_} ({source.by})")] * 2


async def test_a_suggestion_taken_on_the_console_says_so_before_and_after_the_yes(
    loop: EngineLoop, client: LocalClient
) -> None:
    id_, source = suggested(client)
    app = MusterApp(lambda: client, start="recommendations", title="test")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.context().targets != ())
        await press(pilot, "A")
        await read_to_the_end(pilot)
        shown = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
        assert f"origin      suggestion {id_} ({source.by})" in shown
        assert "thought out" not in shown
        await press(pilot, "y")
        await until(pilot, lambda: loop.engine.node("c0").state == "ready")
    assert client.proposal("P-1").plan.source == source
    assert [each.suggestion.id for each in client.recommendations().open] == []


def test_who_leaves_the_suggestion_out_but_names_it_does_not_pass_for_its_author(client: LocalClient) -> None:
    id_, source = suggested(client)
    assert client.propose(asked("uncordon", ["c0"], f"as in {id_}")).plan.source == source
    assert client.propose(asked("cordon", ["g0"], f"instead of {id_}")).plan.source == OPERATOR


def test_a_suggestion_that_nobody_found_or_that_says_something_else_is_refused(client: LocalClient) -> None:
    id_, _ = suggested(client)
    of = lambda named: Source(kind="suggestion", id=named, by="what I say")  # noqa: E731
    with pytest.raises(NotFoundError, match="R-zzzzz"):
        client.propose(msgspec.structs.replace(asked("uncordon", ["c0"]), source=of("R-zzzzz")))
    with pytest.raises(SpecError, match="is to uncordon"):
        client.propose(msgspec.structs.replace(asked("cordon", ["g0"]), source=of(id_)))


def test_an_edit_and_a_second_try_keep_where_it_comes_from(client: LocalClient) -> None:
    from console.views.decision_needs import request_of

    id_, source = suggested(client)
    asked_for = msgspec.structs.replace(asked("uncordon", ["c0", "c1"]), source=Source(kind="suggestion", id=id_))
    made = client.propose(asked_for)
    assert client.revise(made.id, asked("uncordon", ["c0"])).plan.source == source
    again = client.propose(request_of(made))
    assert (again.plan.source, [piece.id for piece in again.plan.evidence]) == (source, [id_])


def test_in_a_team_who_takes_a_suggestion_does_not_approve_it_alone(loop: EngineLoop) -> None:
    client = LocalClient(loop, gate_of(loop.engine, TEAM), Advisor(loop), who="ada")
    id_, _ = suggested(client)
    taken = client.propose(msgspec.structs.replace(asked("uncordon", ["c0"], f"{id_} is right")))
    assert (taken.plan.origin, taken.self_approvable) == ("recommender", False)
    assert client.propose(asked("uncordon", ["c0"])).self_approvable, "what they thought of themselves"


def test_a_draft_says_which_and_by_what(loop: EngineLoop) -> None:
    with drafting(loop, gate=gate_of(loop.engine)) as service:
        [found] = service._recommender.recommendations().open
        ran = drafted(service, finding=found.suggestion.id)
        made = service.propose(ME, ran.id, "rule")
    assert ran.rule is not None
    assert made.plan.source == Source(kind="rule", id=ran.id, by=ran.rule.kind)
    assert origin_line(made) == f"origin draft by rule {ran.id} ({ran.rule.kind})"
    assert on_record(loop)[-1] == ("recommender", f"draft by rule {ran.id} ({ran.rule.kind})")


@pytest.mark.parametrize("kind", ["operator", "runbook", "rule", "suggestion", "service", "agent"])
def test_what_comes_with_the_token_of_a_service_or_an_agent_is_theirs_whatever_it_says(gate: Gate, kind: str) -> None:
    service = Actor(subject="service:scheduler", kind="service", account="token:service:scheduler")
    agent = Actor(subject="service:llm-drafter", kind="llm", account="token:service:llm-drafter")
    said = msgspec.structs.replace(asked("cordon", ["g0"]), source=Source(kind=kind, by="a person"))  # type: ignore[arg-type]
    of_agent = gate.propose(agent, said).plan
    assert (of_agent.source, of_agent.origin) == (Source(kind="agent", id="llm-drafter"), "model")
    assert gate.propose(service, said).plan.origin == "recommender"
    assert gate.propose(service, asked("cordon", ["g1"])).plan.source == Source(kind="service", id="scheduler")


def test_a_runbook_is_named_with_its_version(loop: EngineLoop, client: LocalClient) -> None:
    ran = client.run_runbook(RunbookAsk(id="drain-failing-node", inputs={"node": "g0"}, dry_run=True))
    assert ran.proposal is not None, ran.refused
    assert ran.proposal.plan.source == Source(kind="runbook", id="drain-failing-node", by=f"version {ran.line.version}")


def test_a_plan_of_before_says_what_is_known_of_it(gate: Gate) -> None:
    """Its bytes are what was signed: they stay as they are."""
    made = gate.propose(ME, asked("cordon", ["g0"]))
    kept = json.loads(made.plan.canonical())
    del kept["source"]
    old = msgspec.structs.replace(made, plan=msgspec.convert(kept, type(made.plan)))
    assert origin_line(old) == "origin person"


def test_solo_lets_the_one_person_take_it(client: LocalClient) -> None:
    assert SOLO.mode == "solo"
    id_, _ = suggested(client)
    taken = client.propose(asked("uncordon", ["c0"], id_))
    assert taken.self_approvable
    with pytest.raises(RefusedError):
        client.approve(taken.id, "0" * 64)
