"""The control plane as others program against it: state versions, keys, pages, streams, probes, too much at once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from console.server import idempotency, load_limits, watching
from engine import read_replica
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.commands import AddQueues, Cancel, Submit
from engine.model.list_queries import Query
from engine.model.specs import QueueSpec
from runbooks.plans.typed_plan import Act, Request, StepRequest
from tests.support.gates import gate_of
from tests.support.network import reached
from tests.support.patience import PATIENCE_S
from tests.support.people import person, team
from tests.support.served import gpu_job, running_loop, served_on_unix


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture
def http(loop: EngineLoop) -> Iterator[httpx.Client]:
    with served_on_unix(loop) as path, over_unix(path) as client:
        yield client


def over_unix(path: Path) -> httpx.Client:
    return httpx.Client(
        transport=httpx.HTTPTransport(uds=str(path), verify=False), base_url="http://muster", trust_env=False,
        timeout=PATIENCE_S,
    )  # fmt: skip


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.005)


def submission(*ids: str) -> bytes:
    return msgspec.json.encode(Submit(workloads=tuple(gpu_job(each) for each in ids)))


def keyed(http: httpx.Client, key: str, content: bytes, path: str = "/v1/command") -> httpx.Response:
    return http.post(path, content=content, headers={"Idempotency-Key": key})


def held_up(loop: EngineLoop) -> Callable[[], None]:
    """Keep the engine's thread busy; call the answer to let it go."""
    begun, go_on = threading.Event(), threading.Event()
    loop.post(lambda _: (begun.set(), go_on.wait(PATIENCE_S)))
    assert begun.wait(PATIENCE_S)
    return go_on.set


# -- state versions ---------------------------------------------------------------------------------------------------


def test_every_answer_says_its_version_and_own_writes_are_seen(http: httpx.Client) -> None:
    written = http.post("/v1/command", content=submission("a"))
    version = int(written.headers["muster-version"])
    assert version == written.json()["version"]
    for path in ("/v1/health", "/v1/overview", "/v1/workloads/a", "/v1/proposals", "/v1/changes", "/v1/scores"):
        assert int(http.get(path).headers["muster-version"]) >= version, path
    page = http.post("/v1/query", content=msgspec.json.encode(Query(kind="workloads")))
    assert int(page.headers["muster-version"]) == page.json()["version"] >= version


def test_a_version_that_is_not_there_is_refused(http: httpx.Client) -> None:
    now = int(http.get("/v1/overview").headers["muster-version"])
    assert http.get("/v1/overview", headers={"Muster-At-Least": str(now)}).status_code == 200
    ahead = http.get("/v1/overview", headers={"Muster-At-Least": str(now + 1000)})
    assert (ahead.status_code, ahead.json()["code"]) == (409, "refused")
    for text in ("-1", "x", "1" * 30, "1.5"):
        assert http.get("/v1/overview", headers={"Muster-At-Least": text}).status_code == 400


@pytest.mark.thorough
def test_what_is_not_asked_of_the_cell_has_no_answer_as_of_an_earlier_time(http: httpx.Client) -> None:
    answer = http.get("/v1/login", headers={"muster-as-of": "1000"})
    assert answer.status_code == 409
    assert "/v1/login has no answer as of an earlier time" in answer.json()["problem"]


def test_of_a_large_cell_a_reader_sees_what_another_wrote_if_they_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_replica, "LARGE", 1)
    with running_loop() as loop, served_on_unix(loop) as path, over_unix(path) as http:
        for number in range(8):
            wrote = http.post("/v1/command", content=submission(f"w{number}"))
            least = wrote.headers["muster-version"]
            seen = http.get(f"/v1/workloads/w{number}", headers={"Muster-At-Least": least})
            assert seen.status_code == 200
            assert int(seen.headers["muster-version"]) >= int(least)
        # Who does not care is answered from a moment ago, and an error is told as the engine would.
        assert http.get("/v1/overview", headers={"Muster-At-Least": "0"}).status_code == 200
        missing = http.get("/v1/workloads/none")
        assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


# -- once -------------------------------------------------------------------------------------------------------------


@pytest.mark.both_databases
def test_a_submission_sent_twice_takes_effect_once(http: httpx.Client) -> None:
    first = keyed(http, "k1", submission("a"))
    again = keyed(http, "k1", submission("a"))
    assert first.status_code == again.status_code == 200
    assert (first.content, first.headers["muster-version"]) == (again.content, again.headers["muster-version"])
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    other = keyed(http, "k1", submission("b"))
    assert (other.status_code, other.json()["code"]) == (409, "refused")
    assert http.get("/v1/workloads/b").status_code == 404
    assert keyed(http, "k2", submission("a")).status_code == 400  # another request, for an id that is there


def test_what_was_refused_may_be_tried_again_with_its_key(http: httpx.Client) -> None:
    wanted = msgspec.json.encode(Submit(workloads=(gpu_job("a", queue="night"),)))
    assert keyed(http, "k", wanted).status_code != 200
    http.post("/v1/command", content=msgspec.json.encode(AddQueues(queues=(QueueSpec(name="night"),))))
    assert keyed(http, "k", wanted).status_code == 200


@pytest.mark.both_databases
def test_definitions_and_proposals_are_done_once_too(http: httpx.Client, loop: EngineLoop) -> None:
    queue = msgspec.json.encode(AddQueues(queues=(QueueSpec(name="night"),)))
    assert keyed(http, "q", queue).json() == keyed(http, "q", queue).json()
    http.post("/v1/command", content=submission("a"))
    wanted = Request(steps=(StepRequest(act=Act(action="cancel", targets=("a",))),))
    body = msgspec.json.encode(wanted)
    first, again = (keyed(http, "p", body, "/v1/propose").json() for _ in range(2))
    assert first["id"] == again["id"]
    assert len(http.get("/v1/proposals").json()) == 1


@pytest.mark.both_databases
def test_a_key_is_its_callers_own(loop: EngineLoop) -> None:
    """Two callers may happen to choose the same key: each has what they asked for done, and sees only their answer."""
    gate = gate_of(loop.engine, team(person("alice", "operator", "submitter"), person("bob", "operator", "submitter")))
    with reached(loop, gate) as line, ExitStack() as after:
        scopes = ("submit", "propose")
        tokens = [line.make_token(name, *scopes).token for name in ("alice", "bob")]
        alice, bob = (after.enter_context(line.http(token)) for token in tokens)
        assert [keyed(http, "k", submission(each)).status_code for http, each in ((alice, "a"), (bob, "b"))] == [
            200,
            200,
        ]
        same = keyed(bob, "k", submission("a"))
        assert (same.status_code, "idempotent-replayed" in same.headers) == (409, False), "his own key, another request"
        wanted = msgspec.json.encode(Request(steps=(StepRequest(act=Act(action="cancel", targets=("a",))),)))
        first, second, again = (keyed(http, "p", wanted, "/v1/propose") for http in (alice, bob, alice))
        assert "idempotent-replayed" not in second.headers
        assert first.json()["id"] != second.json()["id"]
        assert (again.json()["id"], again.headers["idempotent-replayed"]) == (first.json()["id"], "true")


def test_a_key_is_its_callers_own_where_people_share_an_account(loop: EngineLoop) -> None:
    gate = gate_of(loop.engine, team(person("alice", "submitter"), person("bob", "submitter")))
    with reached(loop, gate) as line:
        for name in ("alice", "bob"):
            with closing(line.client(name=name)) as signing:
                signing._http.event_hooks["request"] = [
                    lambda request: request.headers.update({"idempotency-key": "k"})
                ]
                signing.command(Submit(workloads=(gpu_job(f"of-{name}"),)))
        with line.http() as http:
            assert [http.get(f"/v1/workloads/of-{name}").status_code for name in ("alice", "bob")] == [200, 200]


def test_a_key_is_its_callers_own_at_once_too(loop: EngineLoop) -> None:
    """Submissions of two callers are taken in one turn of the engine; other changes run beside each other."""
    gate = gate_of(loop.engine, team(person("alice", "operator", "submitter"), person("bob", "operator", "submitter")))
    cancel = msgspec.json.encode(Request(steps=(StepRequest(act=Act(action="cancel", targets=("one",))),)))
    with reached(loop, gate) as line, ExitStack() as after:
        tokens = [line.make_token(name, "submit", "propose").token for name in ("alice", "bob")]
        callers = [after.enter_context(line.http(token)) for token in tokens]
        for path, *asks in (("/v1/command", submission("one"), submission("two")), ("/v1/propose", cancel, cancel)):
            go = held_up(loop)
            with ThreadPoolExecutor(2) as pool:
                found = [pool.submit(keyed, http, path, ask, path) for http, ask in zip(callers, asks, strict=True)]
                wait(found, timeout=0.2)
                go()
            answers = [each.result() for each in found]
            assert [answer.status_code for answer in answers] == [200, 200], [answer.text for answer in answers]
            assert not any("idempotent-replayed" in answer.headers for answer in answers)


def test_the_same_at_once_from_many_is_one(http: httpx.Client, loop: EngineLoop) -> None:
    go = held_up(loop)
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(keyed(http, "k", submission("a")))) for _ in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    go()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert sum("idempotent-replayed" in answer.headers for answer in answers) == 5


@pytest.mark.parametrize("key", ["", "x" * 201, "a\x00b", "ключ"])
def test_a_key_that_is_none_is_refused(http: httpx.Client, key: str) -> None:
    raw = key.encode()
    if b"\x00" in raw:
        return  # no HTTP client sends it
    answer = http.post("/v1/command", content=submission("a"), headers=[(b"Idempotency-Key", raw)])
    assert answer.status_code == 400
    assert "idempotency-key" in answer.json()["problem"]


@pytest.mark.both_databases
def test_keys_outlive_the_engine_and_what_was_cut_off_is_not_done_again(tmp_path: Path) -> None:
    journal = tmp_path / "journal.db"
    with ExitStack() as first:
        loop = first.enter_context(running_loop(journal))
        http = first.enter_context(over_unix(first.enter_context(served_on_unix(loop))))
        told = keyed(http, "k", submission("a")).content
        key = idempotency.key_of("cut", caller(loop), "POST", "/v1/freeze?", FREEZE)
        loop.call(lambda engine: engine.record(lambda db: idempotency.keep(db, [(key, idempotency.BEGUN)])))
    engine = Engine.open(journal)
    loop = EngineLoop(engine)
    loop.start()
    try:
        with served_on_unix(loop) as path, over_unix(path) as http:
            again = keyed(http, "k", submission("a"))
            assert (again.content, again.headers["idempotent-replayed"]) == (told, "true")
            cut = keyed(http, "cut", FREEZE, "/v1/freeze")
            assert (cut.status_code, "may have taken effect" in cut.json()["problem"]) == (409, True)
            assert http.get("/v1/freezes").json() == []
    finally:
        loop.stop()
        engine.close()


FREEZE = b'{"name":"x"}'


def caller(loop: EngineLoop) -> str:
    """As the server calls whoever runs this test."""
    import os

    actor = gate_of(loop.engine).policies.identified(f"unix:{os.getuid()}")
    return f"{actor.account} {actor.subject}"


def test_old_keys_go(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MAX_KEPT", 5)
    monkeypatch.setattr(idempotency, "TIDY_EVERY", 1)
    keys = idempotency.IdempotencyKeys(loop)
    wanted = [idempotency.IdempotencyKey("me", f"k{n}", "d") for n in range(12)]

    def work(engine: Engine) -> set[str]:
        engine.record(lambda db: keys.known(db, wanted))
        for key in wanted:
            engine.record(lambda db, key=key: idempotency.keep(db, [(key, b"1 {}")]))
        return {key for _, key in engine.record(lambda db: idempotency.kept(db, wanted))}

    assert loop.call(work) == {f"k{n}" for n in range(7, 12)}


def test_submissions_that_come_together_are_one_transaction(
    http: httpx.Client, loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    commands = loop.engine.commands

    def counted(wanted: Any, **named: Any) -> Any:
        turns.append(len(wanted))
        return commands(wanted, **named)

    monkeypatch.setattr(loop.engine, "commands", counted)
    go = held_up(loop)
    answers: list[int] = []
    threads = [
        threading.Thread(
            target=lambda n=n: answers.append(keyed(http, f"k{n}", submission("w0" if n == 7 else f"w{n}")).status_code)
        )
        for n in range(10)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    go()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200] * 9 + [400]  # one id came twice, and each is answered for itself
    assert len(turns) <= 3
    assert sum(turns) == 10


# -- streams ----------------------------------------------------------------------------------------------------------


class Stream:
    """Reads server-sent events beside the test."""

    def __init__(self, path: Path, query: str = "", headers: dict[str, str] | None = None) -> None:
        self.events: list[tuple[str, int, dict[str, Any]]] = []
        self.status = 0
        self._socket, self._path, self._headers = path, f"/v1/events{query}", headers or {}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        event, at = "", 0
        with over_unix(self._socket) as http, http.stream("GET", self._path, headers=self._headers) as answer:
            self.status = answer.status_code
            for line in answer.iter_lines():
                name, _, text = line.partition(": ")
                if name == "id":
                    at = int(text)
                elif name == "event":
                    event = text
                elif name == "data":
                    self.events.append((event, at, json.loads(text)))

    def subjects(self) -> list[str]:
        return [item["subject"] for _, _, data in self.events for item in data.get("items", ())]

    def ended(self) -> bool:
        """Whether the server has ended it."""
        self._thread.join(PATIENCE_S)
        return not self._thread.is_alive()


def test_everybody_who_follows_is_told_what_happens(loop: EngineLoop) -> None:
    with served_on_unix(loop) as path, over_unix(path) as http:
        streams = [Stream(path) for _ in range(5)]
        bare = Stream(path, "?items=0")
        until(lambda: all(stream.events for stream in (*streams, bare)))
        http.post("/v1/command", content=submission("a", "b"))
        until(lambda: all({"a", "b"} <= set(stream.subjects()) for stream in streams))
        for stream in streams:
            assert [at for _, at, _ in stream.events] == sorted(at for _, at, _ in stream.events)
            told = [item["version"] for _, _, data in stream.events for item in data["items"]]
            assert told == sorted(set(told)), "nothing twice"
        until(lambda: bare.events[-1][1] == streams[0].events[-1][1])
        assert bare.subjects() == []
        assert "muster_http_followers 6.0" in http.get("/metrics").text
    assert all(stream.ended() for stream in (*streams, bare))


def test_who_comes_back_is_told_what_they_missed(loop: EngineLoop) -> None:
    with served_on_unix(loop) as path, over_unix(path) as http:
        before = int(http.post("/v1/command", content=submission("a")).headers["muster-version"])
        http.post("/v1/command", content=submission("b"))
        streams = [Stream(path, f"?after={before}"), Stream(path, headers={"Last-Event-ID": str(before)})]
        for stream in streams:
            until(lambda stream=stream: "b" in stream.subjects())
            assert "a" not in stream.subjects()
        ahead = http.get("/v1/events?after=99999999")
        assert ahead.status_code == 400
    assert all(stream.ended() for stream in streams)


# -- probes, and too much ---------------------------------------------------------------------------------------------


def test_probes_tell_what_may_be_relied_on(http: httpx.Client, loop: EngineLoop) -> None:
    assert http.get("/healthz").json() == {"ok": True, "why": ""}
    assert http.get("/readyz").status_code == 200
    loop.engine.journal_error = "the disk is full"
    unready = http.get("/readyz")
    assert (unready.status_code, unready.json()["why"]) == (503, "the journal cannot be written")
    assert http.get("/healthz").status_code == 200
    loop.fault = "broken"
    assert http.get("/healthz").status_code == 503
    loop.fault = ""


def test_figures_count_what_was_answered(http: httpx.Client) -> None:
    http.get("/v1/overview")
    http.get("/v1/nothing")
    text = http.get("/metrics").text
    assert 'muster_http_requests_total{operation="get_overview",status="200"} 1.0' in text
    assert 'muster_http_requests_total{operation="none",status="404"} 1.0' in text
    assert "muster_state_version" in text


def test_too_much_at_once_is_turned_away_and_the_rest_is_answered(
    loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(load_limits.MOST, "read", 4)
    with served_on_unix(loop) as path, over_unix(path) as http:
        http.get("/v1/overview")  # who asks is known from now on, without the engine
        go = held_up(loop)
        answers: list[httpx.Response] = []
        threads = [threading.Thread(target=lambda: answers.append(http.get("/v1/overview"))) for _ in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: len(answers) == 5)
        for answer in answers:
            assert (answer.status_code, answer.json()["code"]) == (429, "busy")  # three of four for one caller
            assert int(answer.headers["retry-after"]) >= 1
        assert http.get("/healthz").status_code == 200
        go()
        for thread in threads:
            thread.join()
        assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 5
        assert http.get("/v1/overview").status_code == 200


# -- pages ------------------------------------------------------------------------------------------------------------


def test_a_list_is_read_page_by_page_and_every_row_comes_once(http: httpx.Client, loop: EngineLoop) -> None:
    http.post("/v1/command", content=submission(*(f"w{n:02}" for n in range(20))))
    seen: list[str] = []
    cursor, number = "", 0
    while True:
        query = {"filter": "!state:cancelled", "columns": "id,state", "limit": "6", "cursor": cursor}
        page = http.get("/v1/workloads", params=query).json()
        assert page["columns"] == ["id", "state"]
        seen += [row[0] for row in page["rows"]]
        if not (cursor := page["next"]):
            break
        # What ends, starts and comes between two pages moves nobody to another page.
        number += 1
        http.post("/v1/command", content=submission(f"new{number}"))
        loop.call(lambda engine, n=number: engine.command(Cancel(ids=(f"w{n:02}",))))
    assert len(seen) == len(set(seen))
    assert set(seen) >= {f"w{n:02}" for n in range(20)} - {f"w{n:02}" for n in range(number + 1)}
    assert seen[-number:] == [f"new{n}" for n in range(1, number + 1)]


def test_lists_take_the_filters_of_the_console(http: httpx.Client) -> None:
    http.post("/v1/command", content=submission("a", "b"))
    found = http.get("/v1/workloads", params={"filter": "state:running gpu>=8", "sort": "-gpu", "columns": "id"})
    assert found.json()["rows"] == [["a"], ["b"]]
    assert http.get("/v1/nodes", params={"limit": "1"}).json()["total"] > 0
    for wrong in (
        {"filter": "colour:red"},
        {"limit": "0"},
        {"cursor": "!!"},
        {"cursor": "MTIgYWJj"},
        {"cursor": "é"},
        {"cursor": "MTIgYWJj", "sort": "gpu"},
    ):
        answer = http.get("/v1/workloads", params=wrong)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid"), wrong


def test_who_reads_too_slowly_is_told_how_much_they_missed() -> None:
    follower = watching.StreamFollower(items=True)
    frames = [watching.EventFrame(n, 10, 0, b"", b"") for n in range(1, watching.MAX_BEHIND + 4)]
    for frame in frames:
        follower.give(frame)
    assert follower.lost == 10 * watching.MAX_BEHIND
    waiting = [follower.frames.get_nowait() for _ in range(follower.frames.qsize())]
    assert waiting == frames[watching.MAX_BEHIND :]
