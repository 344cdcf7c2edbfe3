"""Alerts over real HTTP: what Alertmanager and a plain POST open, who may, and what does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from console.cli.main import run
from engine.loop import EngineLoop
from runbooks.gate.approval_gate import Gate
from runbooks.plans.incidents import Incident
from tests.support.gates import gate_of
from tests.support.network import Line, reached
from tests.support.people import NOW_MS, person, team
from tests.support.records import problems, types
from tests.support.served import running_loop, served_on_unix

PEOPLE = team(person("alice", "operator", "approver"), person("bob", "operator"), person("dave", "admin"))
GROUP = '{}/{severity="critical"}:{alertname="QueueWaitHigh", queue="a"}'


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture
def gate(loop: EngineLoop, clock: Clock) -> Gate:
    return gate_of(loop.engine, PEOPLE, clock)


@pytest.fixture
def line(loop: EngineLoop, gate: Gate) -> Iterator[Line]:
    with reached(loop, gate) as there:
        yield there


@pytest.fixture
def token(line: Line) -> str:
    return line.make_token("dave", "alert", service="alertmanager").token


def notification(status: str = "firing", **labels: str) -> dict[str, Any]:
    """As Alertmanager 0.27 sends it."""
    ends = "2026-03-01T11:59:00Z" if status == "resolved" else "0001-01-01T00:00:00Z"
    one = {
        "status": status,
        "labels": {"alertname": "QueueWaitHigh", "severity": "critical", "queue": "a", **labels},
        "annotations": {"summary": "GPU queue wait p95 of a is 40 min", "description": "for 10 min"},
        "startsAt": "2026-03-01T11:48:26.739266876Z",
        "endsAt": ends,
        "generatorURL": "http://prometheus.example.org/graph?g0.expr=x",
        "fingerprint": "c1a9f5b4e5e0d3a2",
    }
    return {
        "version": "4", "groupKey": GROUP, "truncatedAlerts": 0, "status": status, "receiver": "muster",
        "groupLabels": {"alertname": "QueueWaitHigh", "queue": "a"}, "commonLabels": one["labels"],
        "commonAnnotations": one["annotations"], "externalURL": "http://alertmanager.example.org", "alerts": [one],
    }  # fmt: skip


def sent(line: Line, token: str, body: Any) -> httpx.Response:
    with line.http(token) as http:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return http.post("/v1/alerts", content=content, headers={"content-type": "application/json"})


def incidents(line: Line) -> tuple[Incident, ...]:
    with closing(line.client(name="alice")) as client:
        return client.incidents()


def test_alertmanager_opens_updates_and_resolves_one_incident(
    line: Line, token: str, loop: EngineLoop, tmp_path: Path
) -> None:
    assert [sent(line, token, notification()).json()["change"] for _ in range(2)] == ["opened", "unchanged"]
    [shown] = incidents(line)
    assert (shown.id, shown.state, shown.severity) == ("I-1", "open", "critical")
    assert shown.title == "GPU queue wait p95 of a is 40 min"
    assert shown.named("queue") == ("a",)
    assert shown.began_ms == NOW_MS - 693_261
    assert sent(line, token, notification("resolved")).json() == {
        "incident": "I-1", "change": "resolved", "state": "resolved"
    }  # fmt: skip
    with closing(line.client(name="bob")) as client:
        assert client.claim_incident("I-1").owner == "person:bob"
        assert client.hand_over_incident("I-1", "alice", "mine ends").owner == "person:alice"
    with closing(line.client(name="alice")) as client:
        assert client.close_incident("I-1", "a burst of short jobs").state == "closed"
    assert problems(loop.engine, tmp_path) == []


def test_a_plain_post_is_enough(line: Line, token: str) -> None:
    made = sent(line, token, {"title": "login nodes do not answer", "severity": "page", "labels": {"node": "g1"}})
    assert made.status_code == 200, made.text
    again = sent(line, token, {"title": "login nodes do not answer", "severity": "page", "labels": {"node": "g1"}})
    assert again.json()["change"] == "unchanged"
    [shown] = incidents(line)
    assert (shown.title, shown.severity, shown.named("node")) == ("login nodes do not answer", "critical", ("g1",))


def test_a_token_for_alerts_does_nothing_else(line: Line, token: str) -> None:
    sent(line, token, notification())
    with line.http(token) as http:
        assert http.get("/v1/overview").status_code == 403
        assert http.get("/v1/incidents").status_code == 403
        assert http.post("/v1/incidents/I-1/claim", json={}).status_code == 403
        assert http.post("/v1/vote", json={}).status_code == 403
    assert incidents(line)[0].owner == ""


def test_who_may_not_opens_nothing(line: Line, loop: EngineLoop, clock: Clock) -> None:
    """A forged, a revoked and an expired token, one for something else, and nobody."""
    revoked = line.make_token("dave", "alert", service="alertmanager")
    expired = line.make_token("dave", "alert", service="alertmanager", life_ms=60_000)
    reads = line.make_token("alice", "read", "propose")
    with closing(line.client(name="dave")) as client:
        client.revoke_token(revoked.line.id)
    clock.now_ms += 60_001
    forged = revoked.token[:-4] + "AAAA"
    answers = [
        sent(line, token, notification()).status_code
        for token in (forged, revoked.token, expired.token, reads.token, "")
    ]
    assert answers == [401, 401, 401, 409, 409]
    clock.now_ms -= 60_001
    assert incidents(line) == ()
    assert "incident.opened" not in types(loop.engine)


def test_a_limited_token_for_alerts_is_not_made(line: Line) -> None:
    from runbooks.plans.identity import Scope

    with pytest.raises(Exception, match="limits a source of alerts"):
        line.make_token("dave", "alert", service="alertmanager", within=Scope(queues=("a",)))


def test_too_much_is_refused_and_says_when_to_come_again(line: Line, token: str) -> None:
    assert sent(line, token, b'{"title": "' + b"x" * (1 << 20) + b'"}').status_code == 413
    many = notification()
    many["alerts"] = many["alerts"] * 501
    assert "max_alerts: 500" in sent(line, token, many).json()["remedy"]
    for body in (b"[]", b'{"title": 1}', b"\xff", b'{"labels": {"a": {"b": 1}}}'):
        assert sent(line, token, body).status_code == 400
    with line.http(token) as http:
        codes = [http.post("/v1/alerts", json={"title": "x"}).status_code for _ in range(120)]
    assert codes.count(429) >= 1
    assert len(incidents(line)) == 1


def test_labels_of_strangers_stay_text(line: Line, token: str) -> None:
    evil = "\x1b[2J\u202egnp.exe [bold red]x[/] https://evil.example {0}"
    assert sent(line, token, notification(queue=evil, instance="g0:9100; rm -rf /")).status_code == 200
    [shown] = incidents(line)
    assert shown.objects == ()
    assert {each.id for each in shown.unmatched} == {evil, "g0:9100; rm -rf /"}
    assert shown.title.isprintable()


def test_a_read_only_engine_takes_no_alert(loop: EngineLoop, gate: Gate) -> None:
    with served_on_unix(loop, read_only=True, gate=gate) as path:
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://localhost") as http:
            assert http.post("/v1/alerts", json={"title": "x"}).status_code == 403


@pytest.mark.about_files("the command is given the journal's file")
def test_the_record_of_an_incident_is_verified_by_the_command(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "journal.db"
    with running_loop(path) as loop, served_on_unix(loop, gate=gate_of(loop.engine, clock=clock)) as at:
        transport = httpx.HTTPTransport(uds=str(at))
        with httpx.Client(transport=transport, base_url="http://localhost") as http:
            assert http.post("/v1/alerts", json=notification()).json()["change"] == "opened"
            assert http.post("/v1/incidents/I-1/claim", json={}).json()["owner"].startswith("unix:")
            assert http.post("/v1/incidents/I-1/note", json={"text": "looking"}).status_code == 200
            closed = http.post("/v1/incidents/I-1/close", json={"found": "a burst of short jobs"})
            assert closed.json()["state"] == "closed"
        assert run(["audit", "verify", str(path)]) == 0
