"""Whoever sees part of a cell: every operation that the service describes is asked as two tenants, in their own words
and in those of the other, and no answer has a word of the other in it."""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from console.client.oidc import LoginProof
from console.client.remote import RemoteClient
from console.forms.command_arguments import SCOPES
from console.service.mirrored_cluster import NoMirror
from engine import read_replica
from engine.external.mirror_report import Mirrored
from engine.loop import EngineLoop
from engine.model.commands import Submit
from engine.model.errors import MusterError
from engine.model.list_queries import COLUMNS
from engine.model.specs import Dependency
from engine.model.twin_queries import AskStart
from runbooks.drafts.typed_draft import DraftAsk
from runbooks.gate.approval_policy import ViewRule
from runbooks.gate.run_limits import FreezeSpec
from runbooks.plans.identity import Scope
from runbooks.plans.incidents import NewIncident
from runbooks.plans.typed_plan import Act, Request, StepRequest
from tests.support.gates import gate_of
from tests.support.network import Line, reached
from tests.support.patience import PATIENCE_S
from tests.support.people import person, team
from tests.support.scripted_slurm import World, job, running
from tests.support.served import running_loop, served_on_unix
from tests.support.two_tenants import WORDS, populate, work_of

UNKNOWN = {"okapi": "olapi", "zebra": "zebru"}
"""A word as long as the tenant's, which nothing has."""
PEOPLE = team(person("alice", "operator", "approver"), person("dave", "admin", "operator"))
STREAMS = ("/v1/events",)
Described = dict[str, Any]


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[EngineLoop]:
    """Of a cell with a journal, in which earlier times are kept."""
    with running_loop(tmp_path / "cell.db") as running_:
        running_.call(populate)
        yield running_


@pytest.fixture
def plain() -> Iterator[EngineLoop]:
    """The same cell in memory."""
    with running_loop() as running_:
        running_.call(populate)
        yield running_


@pytest.fixture
def line(loop: EngineLoop) -> Iterator[Line]:
    gate = gate_of(loop.engine, PEOPLE)
    with reached(loop, gate) as found:
        for word in WORDS:
            busy(found, word)
        yield found


@pytest.fixture
def quiet(loop: EngineLoop) -> Iterator[Line]:
    """With nothing beside the cell."""
    with reached(loop, gate_of(loop.engine, PEOPLE)) as found:
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


def requests_of(path: str, method: str, described: Described, schemas: Described, word: str) -> Iterator[Described]:
    """What to ask of an operation about things of a tenant, as httpx takes it."""
    for place in places(path, word):
        url = path.replace("{id}", quote(place, safe="")).replace("{name}", quote(place, safe=""))
        url = url.replace("{number}", "1")
        if method != "post":
            yield {"url": url, "params": query_of(described, word)}
            continue
        for body in bodies(path, described, schemas, word):
            yield {"url": url, "json": body}


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


def walk(http: httpx.Client, word: str, as_of_ms: int = 0) -> Iterator[tuple[httpx.Request, httpx.Response]]:
    """Every operation that is described, asked about things of a tenant."""
    described = http.get("/v1/openapi.json").json()
    schemas = described["components"]["schemas"]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if path in STREAMS:
                continue
            for asked in requests_of(path, method, operation, schemas, word):
                headers = {"muster-as-of": str(as_of_ms)} if as_of_ms else {}
                request = http.build_request(method.upper(), headers=headers, **asked)
                yield request, http.send(request)


def told(answer: httpx.Response) -> str:
    return f"{dict(answer.headers)} {answer.text}".lower()


def at(request: httpx.Request) -> str:
    return f"{request.method} {request.url.path} {request.content.decode()[:300]}"


def check_walk(http: httpx.Client, word: str, other: str, as_of_ms: int = 0) -> set[str]:
    """No answer has the other's word in it; the nouns of the paths whose answers had the own one."""
    shown = set()
    for request, answer in walk(http, word, as_of_ms):
        assert other not in told(answer), (at(request), answer.text[:2000])
        assert answer.status_code != 500, (at(request), answer.text)
        if answer.status_code == 200 and word in answer.text.lower():
            shown.add(request.url.path.split("/")[2])
    return shown


CELL = {"query", "workloads", "queues", "nodes", "changes", "find", "overview", "showback", "fairness"}
"""Whose answers name visible work, of any cell."""


@pytest.mark.parametrize(("word", "beside"), [("okapi", False), ("zebra", True)])
def test_no_answer_about_ones_own_things_has_a_word_of_the_other(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, word: str, beside: bool
) -> None:
    """Of a cell that is read within its engine's turns, and of one so large that it is read beside it."""
    if beside:
        monkeypatch.setattr(read_replica, "LARGE", 1)
    line: Line = request.getfixturevalue("line")
    (other,) = set(WORDS) - {word}
    with line.http(token_of(line, word)) as http:
        shown = check_walk(http, word, other)
    assert not CELL - shown
    assert not {"preview", "propose", "proposals", "reservations", "goodput", "budgets"} - shown


def test_the_same_walk_of_who_sees_all_meets_both(line: Line) -> None:
    with line.http(line.make_token("alice", "read").token) as http:
        met = {request.url.path.split("/")[2] for request, answer in walk(http, "okapi") if "zebra" in told(answer)}
    assert not {"query", "changes", "proposals", "incidents", "drafts", "runs", "freezes", "overview", "nodes"} - met


def test_what_is_the_others_is_answered_as_what_does_not_exist(line: Line) -> None:
    with line.http(token_of(line, "okapi")) as http:
        compared = 0
        for (request, answer), (_, nothing) in zip(walk(http, "zebra"), walk(http, UNKNOWN["zebra"]), strict=True):
            if "zebra" not in f"{request.url} {request.content.decode()}":
                continue
            compared += 1
            assert answer.status_code == nothing.status_code, (at(request), answer.text, nothing.text)
            found, expected = _plain(answer.text), _plain(nothing.text)
            assert found.replace("zebra", "…") == expected.replace(UNKNOWN["zebra"], "…"), at(request)
    assert compared > 100


def _plain(text: str) -> str:
    """Without the id of its request, and without numbers: times, versions and money differ from one moment to the
    next."""
    return re.sub(r'"request":"[0-9a-f]+"|\d+', "", text)


def test_an_earlier_time_is_shown_as_far_as_the_present(quiet: Line, loop: EngineLoop) -> None:
    now_ms = loop.engine.now_ms
    with quiet.http(token_of(quiet, "okapi")) as http:
        made = http.get("/v1/past", params={"at_ms": now_ms, "wait_s": 30})
        assert made.status_code == 200, made.text
        shown = check_walk(http, "okapi", "zebra", now_ms)
    assert not {"query", "workloads", "changes"} - shown


def test_a_stream_tells_of_ones_own_work_alone(quiet: Line) -> None:
    with quiet.http(token_of(quiet, "okapi")) as http, http.stream("GET", "/v1/events", params={"after": 0}) as answer:
        first = next(text for text in answer.iter_text() if "data:" in text)
    assert "okapi/runs-0" in first
    assert "zebra" not in first


def test_work_is_submitted_in_ones_own_part_and_waits_for_none_of_the_others(quiet: Line) -> None:
    def submit(client: RemoteClient, name: str, awaited: str) -> str:
        spec = work_of("okapi", name, after=(Dependency(id=awaited),))
        try:
            return str(client.command(Submit(workloads=(spec,))).changed)
        except MusterError as error:
            return str(error)

    token = quiet.make_token("alice", "submit", within=Scope(tenants=("okapi",))).token
    with closing(quiet.client(token=token)) as client:
        assert submit(client, "new", "okapi/runs-0") == "('okapi/new',)"
        foreign, unknown = submit(client, "more", "zebra/runs-0"), submit(client, "more", "zebru/runs-0")
        assert foreign.replace("zebra", "zebru") == unknown
        assert "there is no workload" in unknown
        assert client.workload("okapi/new").waits_for[0].id == "okapi/runs-0"
        with pytest.raises(MusterError, match="covers tenants okapi"):
            client.command(Submit(workloads=(work_of("zebra", "new"),)))


# -- by account and by group ------------------------------------------------------------------------------------------


def by_socket(path: Path) -> httpx.Client:
    """As the account that runs the tests."""
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://muster", timeout=PATIENCE_S)


def test_by_unix_group(plain: EngineLoop) -> None:
    group = grp.getgrgid(pwd.getpwuid(os.getuid()).pw_gid).gr_name
    views = (ViewRule(who=(f"unix-group:{group}",), tenants=("okapi",)),)
    gate = gate_of(plain.engine, msgspec.structs.replace(PEOPLE, views=views))
    with served_on_unix(plain, gate=gate) as path, by_socket(path) as http:
        assert not CELL - check_walk(http, "okapi", "zebra")


def test_whom_no_view_names_sees_load_alone(plain: EngineLoop) -> None:
    views = (ViewRule(who=("person:somebody-else",), tenants=("okapi", "zebra")),)
    gate = gate_of(plain.engine, msgspec.structs.replace(PEOPLE, views=views))
    with served_on_unix(plain, gate=gate) as path, by_socket(path) as http:
        # What is asked for is repeated, here the tag by which the cost is grouped.
        assert check_walk(http, "okapi", "zebra") <= {"showback"}
        overview = http.get("/v1/overview").json()
    assert (overview["states"]["running"], overview["used"]["gpu_milli"]) == (0, 32_000)


class Provider:
    """Says who somebody is, and in which groups."""

    issuer, client_id = "https://id.example", "lab"

    def proved(self, token: str) -> LoginProof:
        who, _, group = token.partition(":")
        return LoginProof(f"oidc:{self.issuer}#{who}", token.encode(), 2**42, (group,))


def test_by_group_of_an_openid_provider(plain: EngineLoop) -> None:
    views = (ViewRule(who=("oidc-group:research",), teams=("okapi:okapi-team",)),)
    gate = gate_of(plain.engine, msgspec.structs.replace(PEOPLE, views=views))
    with reached(plain, gate, Provider()) as line:  # type: ignore[arg-type]
        with line.http() as http:
            token = http.post("/v1/login/token", json={"id_token": "ann:research"}).json()["token"]
            stranger = http.post("/v1/login/token", json={"id_token": "ben:other"})
        assert (stranger.status_code, "no person" in stranger.text) == (401, True)
        with line.http(token) as http:
            assert not CELL - check_walk(http, "okapi", "zebra")


# -- a mirrored Slurm cluster -----------------------------------------------------------------------------------------


class ScriptedMirror(NoMirror):
    """Answers for the cluster as the mirror last saw it."""

    def __init__(self, loop: EngineLoop, world: World) -> None:
        super().__init__(loop)
        self._world = world

    def mirrored(self, workload_id: str) -> Mirrored:
        found = self._world.mirror.job_of(workload_id)
        if found is None:
            return super().mirrored(workload_id)
        return Mirrored.of(workload_id, found)


def test_users_of_a_mirrored_slurm_cluster_see_their_own_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    mine = {"user": me, "account": "okapi", "name": "okapi-job"}
    theirs = {"user": "zebra", "account": "zebra-lab", "name": "zebra-job", "priority": 900}
    world = World()
    world.look(
        running(880001, "c1", cpus=16, **theirs), running(880002, "g1", partition="gpu", **theirs),
        job(880003, cpus=32, nodes_min=2, **theirs), job(880004, reason="Dependency", **theirs),
        running(77, "c2", cpus=16, **mine), job(78, **mine, cpus=16, reason_text="behind 880003 of zebra"),
    )  # fmt: skip
    monkeypatch.setattr("tests.console.server.test_part_of_a_cell.places", lambda path, word: _slurm_places(path))
    loop = EngineLoop(world.engine)
    loop.start()
    views = (ViewRule(who=("everyone",), own=True),)
    gate = gate_of(world.engine, msgspec.structs.replace(PEOPLE, views=views))
    try:
        with served_on_unix(loop, gate=gate, cluster=ScriptedMirror(loop, world)) as path, by_socket(path) as http:
            for request, answer in walk(http, "okapi"):
                heard = told(answer).replace(str(request.url.path), "")
                assert "zebra" not in heard, (at(request), answer.text[:2000])
                if "88000" not in str(request.url):  # nor among the decimals of a time
                    assert not re.search(r"(?<![\d.])88000\d(?!\d)", heard), (at(request), answer.text[:2000])
            jobs = http.get("/v1/workloads").json()
            assert {row[0] for row in jobs["rows"]} == {"77", "78"}
            assert (jobs["matched"], jobs["total"]) == (2, 2)
            assert http.get("/v1/workloads/77/mirrored").json()["user"] == me
            for end in ("", "/mirrored", "/output", "/processes", "/start", "/estimate"):
                foreign, unknown = (http.get(f"/v1/workloads/{name}{end}") for name in ("880001", "990001"))
                assert _plain(foreign.text) == _plain(unknown.text)
    finally:
        loop.stop()


def _slurm_places(path: str) -> list[str]:
    if "/workloads/" in path:
        return ["77", "78", "880001", "880003"]
    return ["c1", "c2", "g1"] if "/nodes/" in path else ["batch", "gpu", "urgent", "P-1"]
