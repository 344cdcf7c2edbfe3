"""Every answer says a state version: a refusal, a probe, what is no HTTP; and at once while the engine is busy."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from engine.loop import EngineLoop
from tests.support.gates import gate_of
from tests.support.network import Line, reached, reached_from_afar
from tests.support.patience import PATIENCE_S
from tests.support.served import running_loop

_SAYS = re.compile(rb"\r\nmuster-version: (\d+)\r\n", re.IGNORECASE)


@pytest.fixture(scope="module")
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        running.paused = True
        yield running


@pytest.fixture(scope="module")
def line(loop: EngineLoop) -> Iterator[Line]:
    with reached(loop, gate_of(loop.engine)) as there:
        yield there


def said(answer: httpx.Response) -> int:
    return int(answer.headers["muster-version"])


def every_operation(http: httpx.Client) -> list[tuple[str, str]]:
    described = http.get("/v1/openapi.json").json()["paths"]
    return [(method, path) for path, methods in described.items() for method in methods]


def test_every_operation_says_it_whatever_it_answers(loop: EngineLoop, line: Line) -> None:
    statuses = set()
    with line.http() as http:
        operations = every_operation(http)
        assert len(operations) > 90
        for method, path in operations:
            found = re.sub(r"{\w+}", "nothing", path)
            for content in (b"{}", b"{") if method == "post" else (None,):
                with http.stream(method, found, content=content) as answer:
                    assert 0 < said(answer) <= loop.engine.version, (method, found, answer.status_code)
                    statuses.add(answer.status_code)
    assert {200, 400, 403, 404} <= statuses
    assert 500 not in statuses


def test_what_no_operation_answers_says_it_too(loop: EngineLoop, line: Line) -> None:
    with line.http() as http:
        assert said(http.get("/v1/nowhere")) == loop.engine.version
        assert said(http.put("/v1/overview")) == loop.engine.version
        assert said(http.get("/v1/overview/")) == loop.engine.version
        assert said(http.get("/v1/overview", headers={"origin": "https://evil.example"})) == loop.engine.version
        assert said(http.get("/v1/overview", headers={"authorization": "Bearer x"})) == loop.engine.version


def test_who_is_not_let_in_is_told_no_more_than_that(loop: EngineLoop) -> None:
    with reached_from_afar(loop, gate_of(loop.engine)) as line, line.http() as http:
        for path in ("/v1/overview", "/metrics", "/v1/events"):
            answer = http.get(path)
            assert (answer.status_code, said(answer)) == (401, loop.engine.version)
        assert said(http.get("/healthz")) == said(http.get("/readyz")) == loop.engine.version


def test_what_is_no_http_is_answered_like_everything_else(loop: EngineLoop, line: Line) -> None:
    too_large = b"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % 2**40
    for raw, status in ((b"NONSENSE\r\n\r\n", b"400"), (too_large, b"413")):
        with socket.create_connection(("127.0.0.1", line.port), timeout=PATIENCE_S) as connection:
            connection.sendall(raw)
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(65_536)
        found = _SAYS.search(answer)
        assert answer.startswith(b"HTTP/1.1 %s " % status)
        assert found is not None
        assert int(found[1]) == loop.engine.version
        assert b'"code":"invalid"' in answer


def test_it_is_said_at_once_while_the_engine_is_busy(loop: EngineLoop, line: Line) -> None:
    busy, done = threading.Event(), threading.Event()
    held = loop.post(lambda engine: (busy.set(), done.wait(PATIENCE_S)))
    try:
        assert busy.wait(PATIENCE_S)
        with line.http() as http:
            for path in ("/healthz", "/readyz", "/metrics", "/v1/nowhere", "/v1/openapi.json"):
                assert said(http.get(path, timeout=PATIENCE_S)) == loop.engine.version
            assert said(http.post("/v1/query", content=b"{", timeout=PATIENCE_S)) == loop.engine.version
        assert not held.done()
    finally:
        done.set()
