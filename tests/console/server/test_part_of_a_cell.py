"""Whoever sees part of a cell: every operation that the service describes is asked as two tenants, in their own words
and in those of the other, and no answer has a word of the other in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from console.client.credentials import TokenAsk
from console.forms.command_arguments import SCOPES
from engine import read_replica
from engine.loop import EngineLoop
from engine.model.list_queries import COLUMNS
from engine.model.twin_queries import AskStart
from runbooks.drafts.typed_draft import DraftAsk
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import ViewRule
from runbooks.gate.run_limits import FreezeSpec
from runbooks.plans.identity import Scope
from runbooks.plans.incidents import NewIncident
from runbooks.plans.typed_plan import Act, Request, StepRequest
from tests.support.gates import gate_of
from tests.support.network import Line, reached
from tests.support.people import person, team
from tests.support.served import running_loop
from tests.support.two_tenants import WORDS, populate

UNKNOWN = {"okapi": "olapi", "zebra": "zebru"}
"""A word as long as the tenant's, which nothing has."""
PEOPLE = team(person("alice", "operator", "approver"), person("dave", "admin", "operator"))
STREAMS = ("/v1/events",)
Described = dict[str, Any]


@pytest.fixture(params=["engine", "copy"])
def loop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLoop]:
    """Of a cell that is read within its engine's turns, and of one that is read beside it."""
    if request.param == "copy":
        monkeypatch.setattr(read_replica, "LARGE", 1)
    with running_loop(tmp_path / "cell.db") as running:
        running.call(populate)
        yield running


@pytest.fixture
def line(loop: EngineLoop) -> Iterator[Line]:
    gate = gate_of(loop.engine, PEOPLE)
    with reached(loop, gate) as found:
        for word in WORDS:
            busy(found, word)
        yield found


def busy(line: Line, word: str) -> None:
    """What stands beside the cell has words of that tenant too."""
    with closing(line.client(name="alice")) as alice:
        hold = Act(action="hold", targets=(f"{word}/waits-0",))
        alice.propose(Request(steps=(StepRequest(act=hold),), reason=f"{word} asked for it"))
        alice.open_incident(NewIncident(title=f"{word} is slow"))
        far = {"from_ms": 2**42, "until_ms": 2**42 + 1}
        alice.freeze(FreezeSpec(name=f"{word}-freeze", scope=Scope(tenants=(word,)), reason=word, **far))
        alice.draft(DraftAsk(question=f"why does {word} wait", finding=f"{word}/waits-0"))
        run = alice.ask(AskStart(id=f"{word}/waits-0", seeds=2))
        alice.run(run.id, run.serial, 30)


def token_of(line: Line, word: str) -> str:
    """For all that a token can be for, in that tenant."""
    scopes = tuple(scope for scope in SCOPES if scope not in ("agent", "alert"))
    return line.make_token("alice", *scopes, within=Scope(tenants=(word,))).token


# -- requests made of the description ---------------------------------------------------------------------------------


def requests_of(path: str, method: str, described: Described, schemas: Described, word: str) -> Iterator[httpx.Request]:
    """Requests of an operation that are about things of a tenant."""
    for place in places(path, word):
        url = "http://cell" + path.replace("{id}", quote(place, safe="")).replace("{name}", quote(place, safe=""))
        url = url.replace("{number}", "1")
        if method != "post":
            yield httpx.Request(method.upper(), url, params=query_of(described, word))
            continue
        for body in bodies(path, described, schemas, word):
            yield httpx.Request("POST", url, json=body)


def places(path: str, word: str) -> list[str]:
    number = str(1 + WORDS.index(word)) if word in WORDS else "9"
    if "/workloads/" in path:
        return [f"{word}/{name}" for name in ("runs-0", "waits-0", "waits-1", "held", "after")]
    if "/queues/" in path:
        return ["root", f"{word}-queue"]
    if "/nodes/" in path:
        return [f"g{number}" for number in range(4)]
    kinds = {"proposals": "P", "incidents": "I", "drafts": "D", "runs": "T", "recommendations": "R"}
    return [f"{letter}-{number}" for kind, letter in kinds.items() if f"/{kind}/" in path] or [word]


def query_of(described: Described, word: str) -> dict[str, Any]:
    given = {"after": 0, "limit": 200, "wait_s": 0, "name": word[:3], "by": "tenant"}
    names = [each["name"] for each in described.get("parameters", ()) if each["in"] == "query"]
    return {name: given[name] for name in names if name in given}


def bodies(path: str, described: Described, schemas: Described, word: str) -> Iterator[Any]:
    if path == "/v1/query":
        for kind, columns in COLUMNS.items():
            names = [column.name for column in columns]
            text = next(column.name for column in columns if column.unit == "text")
            yield {"kind": kind, "columns": names, "limit": 1000, "sort": [f"-{text}"]}
            yield {"kind": kind, "columns": names, "where": [{"column": "text", "op": "~", "value": word}]}
    elif path == "/v1/showback":
        yield from ({"by": by} for by in ("tenant", "team", "queue", "pool", f"tag:{word}-tag"))
    elif path in ("/v1/propose", "/v1/preview"):
        act = {"action": "cancel", "targets": [f"{word}/waits-1"]}
        yield {"steps": [{"act": act}], "reason": "no longer wanted"}
    elif path == "/v1/topology":
        yield from ({"level": level} for level in ("zone", "block", "rack", "node"))
    elif path != "/v1/tokens":
        schema = described.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        yield filled(schema, schemas, f"{word}/waits-0")
        yield filled(schema, schemas, f"{word}-queue")


def filled(schema: Described, schemas: Described, text: str, depth: int = 0) -> Any:
    """A value of a schema: of each object what it must have, and that text wherever a text may be."""
    if "$ref" in schema:
        return filled(schemas[schema["$ref"].rpartition("/")[2]], schemas, text, depth + 1)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return filled(schema[choice][0], schemas, text, depth)
    if "enum" in schema or "const" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        fields = schema.get("properties", {})
        wanted = schema.get("required", ()) if depth > 1 else [*schema.get("required", ()), *_TOLD.intersection(fields)]
        return {name: filled(fields[name], schemas, text, depth + 1) for name in wanted if name in fields}
    if kind == "array":
        least = schema.get("minItems", 1)
        items = schema.get("prefixItems") or [schema.get("items", {})] * max(1, least)
        return [filled(item, schemas, text, depth + 1) for item in items if isinstance(item, dict)]
    return {"string": text, "integer": 1, "number": 1, "boolean": False, "null": None}.get(str(kind), text)


_TOLD = frozenset(("workload", "id", "of", "about", "metric", "series", "kind", "name", "text"))


# -- the walk ---------------------------------------------------------------------------------------------------------


def walk(line: Line, token: str, word: str, as_of_ms: int = 0) -> Iterator[tuple[httpx.Request, httpx.Response]]:
    """Every operation that is described, asked with this token about things of a tenant."""
    with line.http(token) as http:
        described = http.get("/v1/openapi.json").json()
        schemas = described["components"]["schemas"]
        for path, methods in described["paths"].items():
            for method, operation in methods.items():
                if path in STREAMS:
                    continue
                for request in requests_of(path, method, operation, schemas, word):
                    request.headers.update(http.headers)
                    if as_of_ms:
                        request.headers["muster-as-of"] = str(as_of_ms)
                    request.url = request.url.copy_with(host="127.0.0.1", port=line.port)
                    request.headers["host"] = f"127.0.0.1:{line.port}"
                    yield request, http.send(request)


def told(answer: httpx.Response) -> str:
    return f"{dict(answer.headers)} {answer.text}".lower()


def at(request: httpx.Request) -> str:
    return f"{request.method} {request.url.path} {request.content.decode()[:300]}"


@pytest.mark.parametrize("word", WORDS)
def test_no_answer_about_ones_own_things_has_a_word_of_the_other(line: Line, word: str) -> None:
    (other,) = set(WORDS) - {word}
    answered: dict[str, int] = {}
    for request, answer in walk(line, token_of(line, word), word):
        assert other not in told(answer), (at(request), answer.text[:2000])
        assert answer.status_code != 500, (at(request), answer.text)
        if answer.status_code == 200 and word in answer.text.lower():
            answered[request.url.path] = answered.get(request.url.path, 0) + 1
    shown = {path.split("/")[2] for path in answered}
    assert {"query", "workloads", "queues", "nodes", "changes", "find", "overview", "showback", "budgets"} <= shown
    assert {"preview", "propose", "proposals", "fairness", "reservations", "goodput"} <= shown


def test_the_same_walk_of_who_sees_all_meets_both(line: Line) -> None:
    token = line.make_token("alice", "read").token
    met = {request.url.path.split("/")[2] for request, answer in walk(line, token, "okapi") if "zebra" in told(answer)}
    assert {"query", "changes", "proposals", "incidents", "drafts", "runs", "freezes", "overview", "nodes"} <= met


@pytest.mark.parametrize("word", WORDS)
def test_what_is_the_others_is_answered_as_what_does_not_exist(line: Line, word: str) -> None:
    (other,) = set(WORDS) - {word}
    token = token_of(line, word)
    unknown = UNKNOWN[other]
    theirs, nobodys = walk(line, token, other), walk(line, token, unknown)
    for (request, answer), (same, nothing) in zip(theirs, nobodys, strict=True):
        found, expected = _plain(answer.text), _plain(nothing.text)
        if request.url.path != same.url.path or request.url.path.startswith("/v1/runs"):
            found, expected = _numbered(found), _numbered(expected)
        assert answer.status_code == nothing.status_code, (at(request), answer.text, nothing.text)
        assert found.replace(other, "…") == expected.replace(unknown, "…"), at(request)


def _plain(text: str) -> str:
    """Without what differs from one moment to the next."""
    try:
        value = json.loads(text)
    except ValueError:
        return ""  # figures for Prometheus
    return json.dumps(_still(value))


_MOVES = {"version", "at_ms", "now_ms", "asked_ns", "serial", "expires_ms", "digest", "created_ms", "tokens"}


def _still(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _still(each) for name, each in value.items() if name not in _MOVES}
    return [_still(each) for each in value] if isinstance(value, list) else value


def _numbered(text: str) -> str:
    import re

    return re.sub(r"\b([PIDTR])-\d+", r"\1-N", text)


def test_an_earlier_time_is_shown_as_far_as_the_present(line: Line, loop: EngineLoop) -> None:
    now_ms = loop.engine.now_ms
    with line.http(token_of(line, "okapi")) as http:
        answer = http.get("/v1/past", params={"at_ms": now_ms, "wait_s": 30})
        assert answer.status_code == 200, answer.text
    seen = set()
    for request, answer in walk(line, token_of(line, "okapi"), "okapi", now_ms):
        assert "zebra" not in told(answer), (at(request), answer.text[:2000])
        if answer.status_code == 200 and "okapi" in answer.text:
            seen.add(request.url.path.split("/")[2])
    assert {"query", "workloads", "changes"} <= seen


def test_a_stream_tells_of_ones_own_work_alone(line: Line) -> None:
    with line.http(token_of(line, "okapi")) as http, http.stream("GET", "/v1/events", params={"after": 0}) as answer:
        first = next(text for text in answer.iter_text() if "data:" in text)
    assert "okapi/runs-0" in first
    assert "zebra" not in first
