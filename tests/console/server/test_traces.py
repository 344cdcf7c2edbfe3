"""A request's trace, at a collector of our own, and its id in answer, refusal and log."""

from __future__ import annotations

import io
import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from console.server.request_log import logging_to_stderr, request_id
from console.service import trace_export
from console.service.trace_export import SPANS, TraceExporter
from engine.external.intent_carrier import CarriedIntent, IntentCarrier
from engine.external.observed_changes import intent_key
from engine.loop import EngineLoop
from engine.model import spans
from engine.model.commands import Cancel
from engine.model.spans import SpanContext, read_traceparent
from engine.state.external_cell import Phase
from tests.console.server.test_api import over_unix, submission
from tests.support.gates import asked
from tests.support.patience import PATIENCE_S, until
from tests.support.served import running_loop, served_on_unix

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ASKED = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "shift-7/42"}
LEFT_OUT = {"traceparent": f"00-{TRACE}-{PARENT}-00"}


class Value(msgspec.Struct, forbid_unknown_fields=True):
    """Of OTLP: common.proto and trace.proto as proto3 JSON; an unknown field is a mistake of ours."""

    stringValue: str | None = None
    intValue: str | None = None
    boolValue: bool | None = None


class Attribute(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    value: Value


class Link(msgspec.Struct, forbid_unknown_fields=True):
    traceId: str
    spanId: str


class Status(msgspec.Struct, forbid_unknown_fields=True):
    code: int = 0
    message: str = ""


class ToldSpan(msgspec.Struct, forbid_unknown_fields=True):
    traceId: str
    spanId: str
    name: str
    kind: int
    startTimeUnixNano: str
    endTimeUnixNano: str
    flags: int
    attributes: list[Attribute]
    status: Status
    parentSpanId: str = ""
    links: list[Link] = []

    def told(self, key: str) -> str | None:
        found = {each.key: each.value for each in self.attributes}.get(key, Value())
        return found.stringValue or found.intValue


class Collector:
    """A collector of OpenTelemetry that keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[ToldSpan] = []
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/json")
                for resource in json.loads(content)["resourceSpans"]:
                    names = {each["key"]: each["value"] for each in resource["resource"]["attributes"]}
                    assert names["service.name"] == {"stringValue": "muster"}
                    for scope in resource["scopeSpans"]:
                        collector.spans += msgspec.convert(scope["spans"], list[ToldSpan])
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def path_to(self, span: ToldSpan) -> list[str]:
        """Names from the request down to that span."""
        of = {each.spanId: each for each in self.spans}
        above = of.get(span.parentSpanId)
        return [*(self.path_to(above) if above else []), span.name]

    def paths(self) -> list[list[str]]:
        return [self.path_to(span) for span in self.spans if span.traceId == TRACE]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr(trace_export, "EVERY_S", 0.02)
    made = Collector()
    exporter = TraceExporter(made.url, "lab")
    exporter.start()
    yield made
    exporter.stop()
    made.close()


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[EngineLoop]:
    with running_loop(tmp_path / "journal.db") as running:
        yield running


# -- traces -----------------------------------------------------------------------------------------------------------


def test_a_request_is_followed_through_gate_door_and_journal(collector: Collector, loop: EngineLoop) -> None:
    with served_on_unix(loop) as path, over_unix(path) as http:
        http.post("/v1/command", content=submission("a"), headers=ASKED)
        request = msgspec.json.encode(asked("cancel", ["a"], "not needed"))
        proposal = http.post("/v1/propose", content=request, headers=ASKED).json()
        wanted = {"proposal": proposal["id"], "digest": proposal["digest"], "comment": "it is stuck"}
        http.post("/v1/approve", json=wanted, headers=ASKED)
        http.get("/v1/overview", headers=LEFT_OUT)
        http.get("/v1/health")
        until(lambda: ["POST /v1/approve"] in collector.paths())
    paths = collector.paths()
    door = ["engine.commands", "journal.write"]
    assert ["POST /v1/command", "submissions", *door] in paths
    assert ["POST /v1/propose", "gate.propose", "journal.write"] in paths
    assert any(each[1:3] == ["gate.execute", "plan.step"] and each[3:] == door for each in paths), "\n".join(
        map(str, paths)
    )
    first = next(span for span in collector.spans if span.name == "POST /v1/command")
    assert (first.traceId, first.parentSpanId, first.kind) == (TRACE, PARENT, 2)
    assert first.told("http.response.status_code") == "200"
    assert first.told("muster.request") == ASKED["x-request-id"]
    assert {span.traceId for span in collector.spans} == {TRACE}, "who left it out, or brought none, is not recorded"
    assert all(int(span.startTimeUnixNano) <= int(span.endTimeUnixNano) for span in collector.spans)
    assert "not needed" not in str(collector.spans)


def test_what_is_carried_outside_later_is_part_of_the_trace(collector: Collector) -> None:
    carried = []

    class Carrier(IntentCarrier[CarriedIntent]):
        def _carry(self, held: CarriedIntent) -> None:
            carried.append(spans.traceparent()["traceparent"])
            held.phase = Phase.DONE

    carrier: Any = Carrier(None)  # type: ignore[arg-type]
    carrier._held = {7: CarriedIntent(number=7, command=Cancel(ids=("a",)), at_ms=0, phase=Phase.OPEN)}
    with spans.going_on(SpanContext(TRACE, PARENT, True)):
        spans.remember(intent_key(7))
    with ThreadPoolExecutor() as other:
        other.submit(carrier._carry_all).result()
    until(lambda: bool(collector.spans))
    (span,) = collector.spans
    assert (span.name, span.parentSpanId, span.told("muster.command")) == ("outside.act", PARENT, "Cancel")
    assert carried == [f"00-{TRACE}-{span.spanId}-01"], "what is sent to the cluster names it"


def test_a_collector_that_is_away_delays_nothing_and_is_counted(
    collector: Collector, loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_export, "MAX_WAITING", 20)
    before = SPANS["dropped"]
    collector.status = 503
    with served_on_unix(loop) as path, over_unix(path) as http:
        for _ in range(30):
            assert http.get("/v1/overview", headers=ASKED).status_code == 200
        until(lambda: SPANS["dropped"] > before)
        until(lambda: 'muster_trace_spans_total{outcome="dropped"}' in http.get("/metrics").text)


def test_nothing_is_recorded_where_nobody_listens(loop: EngineLoop) -> None:
    made = []
    with served_on_unix(loop) as path, over_unix(path) as http:
        http.post("/v1/command", content=submission("a"), headers=ASKED)
        loop.call(lambda _: made.append(spans.CURRENT.get()))
    assert made == [None]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"00-{TRACE}-{PARENT}-00", False),
        (f"cc-{TRACE}-{PARENT}-03-more.of-a-later-version", True),
        (f"00-{TRACE}-{PARENT}-01-more", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        (f"00-{TRACE}-{PARENT}-01\n", None),
        ("", None),
    ],
)
def test_a_traceparent_is_read_as_w3c_has_it(text: str, found: bool | None) -> None:
    read = read_traceparent([text])
    assert (read.recorded if read else None) is found
    assert read_traceparent([text, text]) is None


# -- ids and log ------------------------------------------------------------------------------------------------------


@contextmanager
def logged(format_: Any) -> Iterator[Callable[[], list[str]]]:
    before, sys.stderr = sys.stderr, io.StringIO()
    written = sys.stderr
    try:
        with logging_to_stderr(format_):
            yield lambda: written.getvalue().splitlines()
    finally:
        sys.stderr = before


FORGED = 'gone\n{"level":"info","message":"all is well"}\nmuster engine \'x\' ready\x1b[2J'


def break_it(loop: EngineLoop) -> None:
    def broken() -> None:
        print("reading the cell", file=sys.stderr)
        raise KeyError(FORGED)

    loop.engine.overview = broken  # type: ignore[assignment]


def test_json_has_one_object_a_line_and_each_names_its_request(loop: EngineLoop) -> None:
    with logged("json") as lines, served_on_unix(loop) as path, over_unix(path) as http:
        http.post("/v1/command", content=submission("a"), headers={"x-request-id": "mine"})
        http.get("/healthz")
        break_it(loop)
        answer = http.get("/v1/overview", headers={"x-request-id": "broken-1"})
        until(lambda: len(lines()) >= 4)
        told = [json.loads(line) for line in lines()]
    assert answer.json()["request"] == answer.headers["x-request-id"] == "broken-1"
    assert "broken-1" in answer.json()["remedy"]
    (done,) = [each for each in told if each.get("route") == "/v1/command"]
    assert (done["request"], done["method"], done["status"], done["level"]) == ("mine", "POST", 200, "info")
    of_broken = [each for each in told if each.get("request") == "broken-1"]
    assert {each["message"] for each in of_broken} >= {"reading the cell", "a request met a defect"}, (
        "also what was printed on the engine's thread"
    )
    assert any("all is well" in each.get("error", "") for each in of_broken)
    assert not [each for each in told if each["message"] == "all is well" or each.get("route") == "/healthz"]
    assert "\x1b" not in "".join(lines())


def test_text_has_no_line_that_a_stranger_began(loop: EngineLoop) -> None:
    with logged("text") as lines, served_on_unix(loop) as path, over_unix(path) as http:
        http.post("/v1/command", content=submission("a"))
        break_it(loop)
        http.get("/v1/overview", headers={"x-request-id": "broken-1"})
        logging.getLogger("muster.test").warning("two\nlines: %s", FORGED)
        until(lambda: any("two" in line for line in lines()))
    assert any(line.startswith("a request met a defect") for line in lines())
    assert any(line.startswith("GET /v1/overview answered 500") and "broken-1" in line for line in lines())
    assert not [line for line in lines() if line.startswith(("{", "muster engine", "lines"))]
    assert not [line for line in lines() if "\x1b" in line or "/v1/command" in line]


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "a\x00", "é", "<script>", ";rm", "-begins"])
def test_an_id_that_no_log_can_hold_is_replaced(given: str) -> None:
    assert request_id(given) != given
    assert len(request_id(given)) == 16


def test_an_id_cannot_bring_a_header_of_its_own(loop: EngineLoop) -> None:
    with served_on_unix(loop) as path, socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(path))
        raw.settimeout(PATIENCE_S)
        head = b"GET /v1/health HTTP/1.1\r\nhost: muster\r\nconnection: close\r\n"
        raw.sendall(head + b"x-request-id: a\rset-cookie: b\r\n\r\n")
        answer = b""
        while part := raw.recv(65536):
            answer += part
    assert b"set-cookie" not in answer
