"""Tokens over real connections: what they prove, what they are for, when they hold no longer, and that nobody finds
their secret."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import postgres
import pytest

from console.client.credentials import DAY_MS, TokenAsk
from console.client.oidc import LoginProof
from console.forms.command_arguments import SCOPES
from console.server.agents import (
    BeatAnswer,
    BeatBody,
    LeaveAnswer,
    RegisterAnswer,
    RegisterBody,
    StatusAnswer,
    StatusBody,
    StatusReport,
)
from console.service.token_store import Tokens
from engine.control import Engine
from engine.journal.database import place_of
from engine.loop import EngineLoop
from engine.model.commands import Submit
from engine.model.errors import NotFoundError, RefusedError, SpecError
from runbooks.audit.log import record_table
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import Grant, Person, ServiceIdentity
from runbooks.plans.identity import OWNER, Scope
from runbooks.plans.typed_plan import Act, Request, StepRequest
from tests.support.cells import small_cell, workload
from tests.support.gates import gate_of
from tests.support.network import Line, reached, reached_from_afar
from tests.support.people import NOW_MS, person, team
from tests.support.served import running_loop, served_on_unix

pytestmark = pytest.mark.thorough
ALICE = person("alice", "operator", "approver")
BOB = person("bob", "operator", "approver")
DAVE = person("dave", "admin")
SUE = person("sue", scoped=(Grant(roles=("submitter", "operator"), scope=Scope(tenants=("research",))),))
PEOPLE = team(
    ALICE, BOB, DAVE, SUE,
    services=(
        ServiceIdentity(id="recommender"),
        ServiceIdentity(id="ci", scoped=(Grant(roles=("submitter",), scope=Scope(queues=("a",))),)),
    ),
)  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock()


@pytest.fixture
def gate(loop: EngineLoop, clock: Clock) -> Gate:
    return gate_of(loop.engine, PEOPLE, clock)


@pytest.fixture
def line(loop: EngineLoop, gate: Gate) -> Iterator[Line]:
    with reached(loop, gate) as there:
        yield there


def cordon(node: str = "c0") -> Request:
    return Request(steps=(StepRequest(act=Act(action="cordon", targets=(node,))),))


def test_a_token_proves_who_made_it_and_no_more_than_it_is_for(line: Line) -> None:
    made = line.make_token("alice", "propose")
    with closing(line.client(token=made.token)) as client:
        known = client.whoami()
        assert (known.subject, known.account) == ("person:alice", "token:person:alice")
        assert (known.token, known.deeds) == (made.line.id, ("cancel", "propose", "read"))
        assert client.overview().pools
        proposed = client.propose(cordon())
        assert proposed.plan.author.subject == "person:alice"
        with pytest.raises(RefusedError, match="does not allow it"):
            client.approve(proposed.id, proposed.digest)
        with pytest.raises(RefusedError, match="does not allow it"):
            client.command(Submit(workloads=(workload("w"),)))


def test_votes_by_token_count_as_the_policy_asks(line: Line) -> None:
    alice, bob = (line.make_token(name, "propose", "vote", "execute").token for name in ("alice", "bob"))
    with closing(line.client(token=alice)) as author, closing(line.client(token=bob)) as voter:
        light = author.propose(msgspec.structs.replace(cordon(), start="asked"))
        assert author.approve(light.id, light.digest).waits_for == "somebody to execute it"
        heavy = author.propose(Request(steps=(StepRequest(act=Act(action="drain", targets=("g0",))),), start="asked"))
        assert heavy.tier == "T2"
        with pytest.raises(RefusedError, match="not signed with their own key"):
            voter.vote(heavy.id, heavy.digest, "approve")
        assert voter.proposal(heavy.id).state == "awaiting"


@pytest.mark.parametrize(
    "header",
    [
        "Bearer", "Basic YTpi", "Bearer muster_", "Bearer muster_000000000000_", "Bearer x" * 40,
        "Bearer muster_000000000000_" + "A" * 43, "Bearer muster_zzzzzzzzzzzz_" + "\xe9" * 43, "Bearer " + "A" * 9_000,
    ],
)  # fmt: skip
def test_what_is_no_token_is_refused_without_a_word_of_the_cell(line: Line, header: str) -> None:
    with line.http() as http:
        answer = http.get("/v1/overview", headers={b"authorization": header.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert set(answer.json()) == {"code", "problem", "remedy", "request"}


def test_two_tokens_at_once_and_a_wrong_secret_are_refused(line: Line) -> None:
    token = line.make_token("alice").token
    wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
    with line.http() as http:
        headers = [("authorization", f"Bearer {token}")]
        assert http.get("/v1/overview", headers=headers).status_code == 200
        assert http.get("/v1/overview", headers=headers * 2).status_code == 401
        assert http.get("/v1/overview", headers={"authorization": f"Bearer {wrong}"}).status_code == 401


def test_what_is_revoked_counts_for_nothing_from_the_next_request_on(line: Line) -> None:
    made = line.make_token("alice")
    with line.http(made.token) as http, closing(line.client(name="alice")) as alice:
        assert http.get("/v1/overview").status_code == 200
        assert alice.revoke_token(made.line.id).revoked_by == "person:alice"
        refused = http.get("/v1/overview")
        assert (refused.status_code, "revoked" in refused.text) == (401, True)
        assert [each.state(NOW_MS) for each in alice.tokens()] == ["revoked"]


def test_a_stream_ends_when_its_token_does(line: Line) -> None:
    made = line.make_token("alice")
    with line.http(made.token) as http, closing(line.client(name="alice")) as alice:
        with http.stream("GET", "/v1/events") as stream:
            frames = stream.iter_raw()
            assert b"id:" in next(frames)
            alice.revoke_token(made.line.id)
            for _ in frames:
                pass  # until it ends: the client's own patience would be an error
        assert http.get("/v1/events").status_code == 401


def test_a_token_ends_when_it_was_said_to(line: Line, clock: Clock) -> None:
    made = line.make_token("alice", life_ms=3_600_000)
    with line.http(made.token) as http:
        clock.now_ms += 3_599_999
        assert http.get("/v1/overview").status_code == 200
        clock.now_ms += 1
        assert http.get("/v1/overview").status_code == 401


def test_others_see_only_their_own_and_an_admin_all(line: Line) -> None:
    mine = line.make_token("alice").line
    with closing(line.client(name="bob")) as bob, closing(line.client(name="dave")) as dave:
        assert bob.tokens() == ()
        with pytest.raises(NotFoundError):
            bob.revoke_token(mine.id)
        assert [each.id for each in dave.tokens()] == [mine.id]
        assert dave.revoke_token(mine.id).revoked_by == "person:dave"


def test_a_token_makes_no_tokens(line: Line) -> None:
    everything = line.make_token("dave", *(scope for scope in SCOPES if scope != "agent")).token
    with closing(line.client(token=everything)) as dave:
        for ask in (TokenAsk(name="more"), TokenAsk(name="more", service="ci")):
            with pytest.raises(RefusedError, match="cannot make tokens"):
                dave.create_token(ask)
    with closing(line.client()) as nobody, pytest.raises(RefusedError, match="caller is not known"):
        nobody.create_token(TokenAsk(name="x"))


@pytest.mark.parametrize(
    ("ask", "where"),
    [
        (TokenAsk(name=""), "name"),
        (TokenAsk(name="a" * 81), "name"),
        (TokenAsk(name="pay\u202epal"), "name"),
        (TokenAsk(name="x", scopes=()), "scopes"),
        (TokenAsk(name="x", scopes=("root",)), "scopes"),
        (TokenAsk(name="x", life_ms=1), "life_ms"),
        (TokenAsk(name="x", life_ms=401 * DAY_MS), "life_ms"),
        (TokenAsk(name="x", within=Scope(pools=("",))), "pools"),
    ],
)
def test_what_cannot_be_asked_for_is_named(line: Line, ask: TokenAsk, where: str) -> None:
    with closing(line.client(name="alice")) as alice, pytest.raises(SpecError, match=where):
        alice.create_token(ask)


def test_roles_in_a_part_of_the_cell_reach_that_part(line: Line) -> None:
    with closing(line.client(token=line.make_token("sue", "submit", "propose").token)) as sue:
        assert sue.whoami().scoped == ("submitter, operator of tenants research",)
        assert sue.command(Submit(workloads=(workload("ours", tenant="research"),))).version
        for tenant in ("prod", ""):
            with pytest.raises(RefusedError, match="in this part"):
                sue.command(Submit(workloads=(workload("theirs", tenant=tenant), workload("o", tenant="research"))))
        with pytest.raises(RefusedError, match="denied by policy"):
            sue.propose(cordon())
        ours = sue.propose(Request(steps=(StepRequest(act=Act(action="set_priority", targets=("ours",), to="low")),)))
        assert ours.state == "awaiting"


def test_a_token_may_be_for_less_than_its_holder(line: Line) -> None:
    token = line.make_token("alice", "submit", within=Scope(tenants=("research",))).token
    with closing(line.client(token=token)) as client:
        client.command(Submit(workloads=(workload("a1", tenant="research"),)))
        with pytest.raises(RefusedError, match="may not submit"):
            client.command(Submit(workloads=(workload("a2", tenant="prod"),)))


def test_services_submit_where_their_roles_say_and_never_vote(line: Line) -> None:
    made = line.make_token("dave", "submit", "propose", "vote", service="ci")
    assert made.line.subject == "service:ci"
    with pytest.raises(RefusedError, match="not an admin"):
        line.make_token("alice", "submit", service="ci")
    with pytest.raises(RefusedError, match="only look"):
        line.make_token("dave", "submit", service="elsewhere")
    with closing(line.client(token=made.token)) as ci:
        assert ci.whoami().kind == "service"
        ci.command(Submit(workloads=(workload("built", queue="a"),)))
        with pytest.raises(RefusedError, match="may not submit"):
            ci.command(Submit(workloads=(workload("b", queue="b"),)))
        proposed = ci.propose(cordon())
        with pytest.raises(RefusedError, match="never votes"):
            ci.approve(proposed.id, proposed.digest)


def test_who_reports_as_a_node_over_tcp_must_have_a_token_for_that(line: Line, loop: EngineLoop, gate: Gate) -> None:
    agent = line.make_token("dave", "agent", service="node-agent").token
    reader = line.make_token("alice").token
    body = RegisterBody(("g0",))
    for client in (line.client(), line.client(token=reader)):
        with closing(client), pytest.raises(RefusedError, match="needs an agent token"):
            client.call_as_agent("register", body, RegisterAnswer)
    with closing(line.client(token=agent)) as node:
        assert node.call_as_agent("register", body, RegisterAnswer).nodes == ("g0",)
        with pytest.raises(RefusedError, match="does not allow it"):
            node.overview()
    from console.client.remote import RemoteClient

    with served_on_unix(loop, gate=gate) as path, closing(RemoteClient(str(path))) as here:
        assert here.call_as_agent("register", body, RegisterAnswer).nodes == ("g0",)


def test_an_agent_of_one_pool_speaks_for_no_node_of_another(line: Line, loop: EngineLoop) -> None:
    def token(pool: str) -> str:
        return line.make_token("dave", "agent", service="node-agent", within=Scope(pools=(pool,))).token

    def columns(answer: RegisterAnswer) -> dict[str, bytes]:
        ones = array("i", [1] * len(answer.rows)).tobytes()
        return {
            "rows": array("i", answer.rows).tobytes(), "epochs": array("i", answer.epochs).tobytes(), "numbers": ones,
        }  # fmt: skip

    both = RegisterBody(("g0", "c0", "nobody"))
    with closing(line.client(token=token("cpu"))) as theirs, closing(line.client(token=token("gpu"))) as ours:
        there = theirs.call_as_agent("register", both, RegisterAnswer)
        assert (there.nodes, there.refused, there.forbidden) == (("c0",), ("nobody",), ("g0",))
        here = ours.call_as_agent("register", both, RegisterAnswer)
        assert (here.nodes, here.forbidden) == (("g0",), ("c0",))
        # With what the other agent was given, in one batch with its own.
        stolen = msgspec.structs.replace(
            here, rows=(*there.rows, *here.rows, 10**6), epochs=(*there.epochs, *here.epochs, 1)
        )
        beat = ours.call_as_agent("heartbeats", BeatBody(**columns(stolen)), BeatAnswer)
        assert (beat.renewed, beat.refused, beat.forbidden) == (1, (), (0, 2))
        reports = tuple(StatusReport(*each, 1) for each in zip(stolen.rows, stolen.epochs, strict=True))
        status = ours.call_as_agent("status", StatusBody(reports), StatusAnswer)
        assert (status.refused, status.forbidden) == ((), (0, 2))
        assert theirs.call_as_agent("heartbeats", BeatBody(**columns(there)), BeatAnswer).renewed == 1
        left = ours.call_as_agent("leave", both, LeaveAnswer)
        assert (left.refused, left.forbidden) == (("nobody",), ("c0",))
        assert loop.call(lambda engine: engine.overview().watched) == 1


def test_an_agent_is_limited_to_pools_or_to_nothing(line: Line) -> None:
    for within in (Scope(queues=("a",)), Scope(tenants=("t",), pools=("gpu",))):
        with pytest.raises(SpecError, match="do not apply to nodes"):
            line.make_token("dave", "agent", service="node-agent", within=within)


def test_whom_the_policy_ceased_to_name_is_nobody(
    line: Line, gate: Gate, loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = line.make_token("bob").token
    with line.http(token) as http:
        assert http.get("/v1/overview").status_code == 200
        monkeypatch.setattr(gate.policies, "_latest", team(ALICE, DAVE))
        assert http.get("/v1/overview").status_code == 401


def test_a_port_that_other_machines_reach_serves_nobody_unnamed(loop: EngineLoop, gate: Gate) -> None:
    with reached(loop, gate) as near, reached_from_afar(loop, gate) as far:
        with far.http() as http:
            for path in (
                "/v1/overview",
                "/v1/whoami",
                "/v1/openapi.json",
                "/v1/health",
                "/metrics",
                "/v1/tokens",
                "/x",
            ):
                answer = http.get(f"/v1/{path}")
                assert answer.status_code == 401, path
                assert "gpu" not in answer.text
            assert http.get("/healthz").status_code == 200
            assert http.get("/v1/login").status_code == 200
        with closing(far.client(name="alice")) as signing, pytest.raises(RefusedError, match="no credentials"):
            signing.overview()
        assert near.make_token("alice").token


def test_the_secret_is_nowhere_but_in_the_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = tmp_path / "cell.db"
    engine = Engine.open(journal, cell=small_cell())
    loop = EngineLoop(engine)
    loop.start()
    try:
        with reached(loop, gate_of(engine, PEOPLE)) as line:
            made = line.make_token("alice", "submit")
            with line.http(made.token) as http:
                assert http.get("/v1/tokens").text.count(made.line.id) == 1
                assert made.token not in http.get("/v1/tokens").text
            again = {"authorization": "Bearer " + made.token, "idempotency-key": "k1"}
            with line.http() as http:
                http.post("/v1/tokens", content=msgspec.json.encode(TokenAsk(name="x")), headers=again)
        secret = made.token.rpartition("_")[2].encode()
        records = engine.recorded(lambda c: [row.type for row in c.execute(record_table.select())])
        assert "token.created" in records
    finally:
        loop.stop()
        engine.close()
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert secret not in file.read_bytes(), file
    assert secret.decode() not in caplog.text


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_tokens_outlive_the_engine_and_so_does_that_they_ended(tmp_path: Path, database: str) -> None:
    if database == "postgres" and postgres.why_not():
        pytest.skip(postgres.why_not())
    place = place_of(postgres.new_url() if database == "postgres" else str(tmp_path / "cell.db"))
    proof = LoginProof("oidc:https://id.lab#7", b"d" * 32, 2 * NOW_MS)
    people = team(Person(id="alice", accounts=(proof.account,), keys=ALICE.keys, roles=("operator",)), DAVE)
    tokens: list[str] = []
    for again in (False, True):
        engine = Engine.open(place, cell=None if again else small_cell())
        loop = EngineLoop(engine)
        loop.start()
        try:
            gate = gate_of(engine, people)
            with reached(loop, gate) as line, closing(line.client(name="alice")) as alice:
                if not again:
                    lasting, ended = (line.make_token("alice", "submit", within=Scope(queues=("a",))) for _ in range(2))
                    alice.revoke_token(ended.line.id)
                    login = Tokens(loop, gate).log_in(proof, 3_600_000)
                    tokens = [lasting.token, ended.token, login.token]
                with closing(line.client(token=tokens[0])) as client:
                    known = client.whoami()
                    assert (known.subject, known.within) == ("person:alice", "queues a")
                if again:
                    with closing(line.client(token=tokens[2])) as client:
                        assert (client.whoami().subject, client.whoami().deeds) == ("person:alice", None)
                with line.http(tokens[1]) as http:
                    assert http.get("/v1/overview").status_code == 401
                with pytest.raises(RefusedError, match="used before"):
                    Tokens(loop, gate).log_in(proof, 3_600_000)
        finally:
            loop.stop()
            engine.close()


def test_the_owner_of_a_cell_without_people_has_tokens_too(loop: EngineLoop) -> None:
    gate = gate_of(loop.engine)
    from console.client.remote import RemoteClient

    with served_on_unix(loop, gate=gate) as path, closing(RemoteClient(str(path))) as owner:
        made = owner.create_token(TokenAsk(name="laptop", scopes=("read", "submit")))
        assert made.line.subject == OWNER
    with reached(loop, gate) as line, closing(line.client(token=made.token)) as client:
        assert client.whoami().roles == ("admin", "approver", "operator", "viewer")
        client.command(Submit(workloads=(workload("w"),)))
        assert client.workload("w").id == "w"
