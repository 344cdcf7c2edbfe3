"""Streams and agents as somebody would use them who may do less than they try: to listen in another's name, to hold
what they were given for longer than it holds, to speak for nodes that are not theirs."""

from __future__ import annotations

import itertools
import json
import random
import struct
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from console.client.presence import PresenceAsk
from console.server import authentication
from engine.loop import EngineLoop
from runbooks.plans.identity import Scope
from tests.support.gates import gate_of
from tests.support.network import Line, reached
from tests.support.people import person, team
from tests.support.served import running_loop

pytestmark = pytest.mark.thorough
PEOPLE = team(person("alice", "operator"), person("bob", "viewer"), person("dave", "admin"))
SESSION = "ab" * 16


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture
def line(loop: EngineLoop) -> Iterator[Line]:
    with reached(loop, gate_of(loop.engine, PEOPLE)) as there:
        yield there


def test_nobody_listens_by_the_session_of_another(line: Line) -> None:
    alice, bob = (line.make_token(name).token for name in ("alice", "bob"))
    with closing(line.client(token=alice)) as hers:
        hers.present(PresenceAsk(session=SESSION, page="proposal", thing="proposal P-7"))
        with line.http(bob) as http:
            answer = http.get("/v1/events", params={"session": SESSION})
            assert answer.status_code == 409
            assert "alice" not in answer.text
            assert "P-7" not in answer.text
        # It did not keep her here either, nor send her away.
        with closing(line.client(token=bob)) as his:
            assert [each.thing for each in his.present(PresenceAsk(session="cd" * 16, page="nodes")).here] == [
                "proposal P-7"
            ]


UNFOLLOWED = (
    "session=x", "session=" + "a" * 10_000, f"session={SESSION.upper()}", "session=%00", f"session={SESSION}%0a",
    "pace_s=nan", "pace_s=inf", "pace_s=-1", "pace_s=1e308", "pace_s=", "items=2", "after=-2", "after=1e400",
)  # fmt: skip


def test_what_cannot_be_followed_is_named(line: Line) -> None:
    with line.http(line.make_token("bob").token) as http:
        for query in UNFOLLOWED:
            answer = http.get(f"/v1/events?{query}")
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid"), query
            assert int(answer.headers["muster-version"]) > 0


def test_a_console_whose_token_was_revoked_hears_no_more(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "LOOK_S", 0.05)
    made = line.make_token("bob")
    with closing(line.client(token=made.token)) as his:
        his.present(PresenceAsk(session=SESSION, page="nodes"))
    with (
        line.http(made.token) as http,
        http.stream("GET", "/v1/events", params={"session": SESSION, "items": "0"}) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        with closing(line.client(name="dave")) as admin:
            admin.revoke_token(made.line.id)
        assert sum(1 for _ in lines) < 50
        assert http.get("/v1/events").status_code == 401


def test_agents_neither_listen_nor_look(line: Line) -> None:
    token = line.make_token("dave", "agent", service="node-agent", within=Scope(pools=("gpu",))).token
    with line.http(token) as http:
        for path in ("/v1/events", "/v1/changes", "/v1/overview", "/metrics", "/v1/openapi.json"):
            answer = http.get(path)
            assert answer.status_code == 403, path
            assert "g0" not in answer.text


def test_no_column_of_an_agent_reaches_a_node_of_another_pool(line: Line, loop: EngineLoop) -> None:
    """Guessed rows and epochs of every kind: what they renew is in their own pool."""
    tokens = {
        pool: line.make_token("dave", "agent", service="node-agent", within=Scope(pools=(pool,))).token
        for pool in ("cpu", "gpu")
    }
    with line.http(tokens["cpu"]) as theirs:
        given = theirs.post("/v1/agents/register", json={"nodes": ["c0", "c1"]}).json()
    seen = loop.call(lambda engine: engine.agents.leases.number[given["rows"]].tolist())
    rng = random.Random(7)
    edge = (0, 1, -1, 2**31 - 1, -(2**31), 2**30)
    with line.http(tokens["gpu"]) as http:
        for rows, epochs in itertools.product(
            (given["rows"], [*edge], [rng.randrange(-9, 9) for _ in range(40)]), (given["epochs"], edge)
        ):
            size = min(len(rows), len(epochs))
            packed = [struct.pack(f"<{size}i", *column[:size]) for column in (rows, epochs, [9] * size)]
            content = json.dumps(dict(zip(("rows", "epochs", "numbers"), map(_base64, packed), strict=True)))
            answer = http.post("/v1/agents/heartbeats", content=content)
            assert answer.status_code == 200
            assert answer.json()["renewed"] == 0
            _report(http, rows[:size], epochs[:size])
        assert http.post("/v1/agents/leave", json={"nodes": ["c0", "c1"]}).json()["forbidden"] == ["c0", "c1"]
    assert loop.call(lambda engine: engine.agents.leases.number[given["rows"]].tolist()) == seen
    assert loop.call(lambda engine: engine.overview().watched) == 2


def _base64(raw: bytes) -> str:
    import base64

    return base64.b64encode(raw).decode()


def _report(http: httpx.Client, rows: list[int], epochs: list[int]) -> None:
    reports = [{"row": row, "epoch": epoch, "number": 1} for row, epoch in zip(rows, epochs, strict=True)]
    for row, usage in ((2**70, []), (2**31, []), (0, [["w", 2**70, 1]]), (0, [["w", -1, 1]])):
        wild = {"row": row, "epoch": 1, "number": 1, "usage": usage}
        answer = http.post("/v1/agents/status", json={"reports": [*reports, wild]})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    answer = http.post("/v1/agents/status", json={"reports": reports})
    assert answer.status_code == 200
    assert answer.json()["taken"] == 0
