"""What is sent to a port by whoever can reach it: slow, endless, malformed, forged, again and again. Nothing of it has
an effect or an answer that tells anything, and others are served as before."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select

from console.cli.start import stop_running
from console.client.launch import ensure_engine
from console.client.sockets import account_at, bind_tcp
from console.forms.settings import paths_in
from console.server import load_limits
from console.server.authentication import FAILURES, Doors
from console.server.load_limits import TokenBuckets, network_of
from engine.loop import EngineLoop
from engine.model.commands import Submit
from engine.model.errors import RefusedError
from runbooks.audit.log import record_table
from runbooks.gate.approval_gate import Gate
from tests.console.client.test_tls import certificate
from tests.console.server.test_server import over_unix
from tests.support.cells import workload
from tests.support.gates import gate_of
from tests.support.network import Line, reached, reached_from_afar
from tests.support.patience import PATIENCE_S
from tests.support.people import person, team
from tests.support.served import running_loop, served_on_unix, serving

pytestmark = pytest.mark.thorough
PEOPLE = team(person("alice", "operator", "approver"), person("dave", "admin"))


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture
def gate(loop: EngineLoop) -> Gate:
    return gate_of(loop.engine, PEOPLE)


@pytest.fixture
def line(loop: EngineLoop, gate: Gate) -> Iterator[Line]:
    with reached(loop, gate) as there:
        yield there


_OPEN: list[socket.socket] = []


def opened(line: Line) -> socket.socket:
    """Closed when the test ends."""
    _OPEN.append(socket.create_connection(("127.0.0.1", line.port), timeout=PATIENCE_S))
    return _OPEN[-1]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _OPEN:
        _OPEN.pop().close()


def ended(connection: socket.socket) -> bool:
    """Whether the other end closes it before long, whatever it answers first."""
    try:
        while connection.recv(65_536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def is_served(line: Line) -> bool:
    with line.http() as http:
        return http.get("/v1/overview").status_code == 200


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_limits, "HEAD_S", 0.5)
    monkeypatch.setattr(load_limits, "BODY_S", 0.5)


@pytest.mark.usefixtures("impatient")
def test_who_is_slow_with_a_head_is_dropped_and_others_are_served(line: Line) -> None:
    silent, halfway, dripping = opened(line), opened(line), opened(line)
    halfway.sendall(b"GET /v1/overview HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
    dripping.settimeout(0.02)
    until, closed = time.monotonic() + PATIENCE_S, False
    while not closed and time.monotonic() < until:
        try:
            dripping.sendall(b"G")
            closed = dripping.recv(1) == b""
        except TimeoutError:
            continue
        except OSError:
            closed = True
    assert closed
    assert ended(silent)
    assert ended(halfway)
    assert is_served(line)


@pytest.mark.usefixtures("impatient")
def test_who_is_slow_with_a_body_is_dropped(line: Line) -> None:
    slow = opened(line)
    slow.sendall(b"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{")
    assert ended(slow)
    chunked = opened(line)
    chunked.sendall(b"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
    assert ended(chunked)
    assert is_served(line)


@pytest.mark.usefixtures("impatient")
def test_who_waits_for_news_is_not_taken_for_slow(line: Line) -> None:
    with line.http() as http:
        version = http.get("/v1/health").json()["version"]
        began = time.monotonic()
        assert http.get("/v1/changes", params={"after": version + 1_000, "wait_s": 1.2}).status_code == 200
        assert time.monotonic() - began >= 1.0
        assert http.get("/v1/health").status_code == 200


def test_who_takes_no_answers_is_dropped(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_limits, "WRITE_S", 0.3)
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        lazy.connect(("127.0.0.1", line.port))
        lazy.settimeout(0.2)
        asking = b"GET /v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50
        until, dropped = time.monotonic() + PATIENCE_S, False
        while not dropped and time.monotonic() < until:
            try:
                lazy.send(asking)
            except TimeoutError:
                continue
            except OSError:
                dropped = True
        assert dropped
    assert is_served(line)


def test_a_head_without_end_is_cut_off(line: Line) -> None:
    flood = opened(line)
    flood.sendall(b"GET /v1/overview HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    sent, closed = 0, False
    while not closed and sent < 64 * 2**20:
        try:
            sent += flood.send(b"X-" + os.urandom(8).hex().encode() + b": " + b"a" * 4_000 + b"\r\n")
        except OSError:
            closed = True
    assert closed
    assert sent < 16 * 2**20
    assert is_served(line)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00" * 100 + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET  /v1/overview HTTP/1.1\r\n\r\n",
        b"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0",
        b"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    ],
)
def test_what_is_no_http_is_no_request(line: Line, raw: bytes) -> None:
    with opened(line) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 5"))
    assert is_served(line)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-origin"},
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:80"},
    ],
)
def test_what_a_web_page_has_a_browser_send_is_refused_whatever_it_shows(line: Line, headers: dict[str, str]) -> None:
    token = line.make_token("alice", "submit").token
    with line.http(token) as http:
        for method, path in (("GET", "/v1/overview"), ("POST", "/v1/command"), ("GET", "/v1/tokens")):
            assert http.request(method, path, headers=headers).status_code == 403


def test_nothing_is_approved_or_changed_by_get(line: Line) -> None:
    token = line.make_token("alice", "submit", "propose", "vote", "execute").token
    with line.http(token) as http:
        listed = http.get("/v1/openapi.json").json()["paths"]
        posts = [path for path, methods in listed.items() if "get" not in methods and "agents" not in path]
        assert len(posts) > 30
        for path in posts:
            answer = http.get(path.replace("{", "").replace("}", ""))
            assert answer.status_code in (404, 405), path


def test_guessing_is_slowed_down_and_does_not_fill_the_audit(line: Line, loop: EngineLoop) -> None:
    token = line.make_token("alice").token
    before = records(loop, "auth.refused")
    with line.http("muster_000000000000_" + "A" * 43) as guessing:
        answers = [guessing.get("/v1/overview") for _ in range(2 * FAILURES)]
    codes = [answer.status_code for answer in answers]
    assert codes[:FAILURES] == [401] * FAILURES
    assert codes[-1] == 429
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert records(loop, "auth.refused") - before <= FAILURES + 1
    # Who has a right to come from the same address still does.
    with line.http(token) as http:
        assert http.get("/v1/overview").status_code == 200


def test_forged_signatures_do_not_fill_the_audit(line: Line, loop: EngineLoop) -> None:
    before = records(loop, "auth.refused")
    with line.http() as http:
        for number in range(2 * FAILURES):
            codes = [
                http.get("/v1/overview", headers={"muster-as": "alice"}).status_code,
                http.get("/v1/overview", headers={"muster-signed": f"forged-{number}"}).status_code,
            ]
        assert codes == [429, 429]
        assert http.get("/v1/overview").status_code == 200
    assert records(loop, "auth.refused") - before <= FAILURES + 1


def records(loop: EngineLoop, type_: str) -> int:
    query = select(func.count()).select_from(record_table).where(record_table.c.type == type_)
    return int(loop.call(lambda engine: engine.recorded(lambda connection: connection.execute(query).scalar_one())))


def test_one_caller_who_asks_too_often_waits_and_others_do_not(
    loop: EngineLoop, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reached(loop, gate) as line:
        mine, other = (line.make_token(name).token for name in ("alice", "dave"))
    monkeypatch.setattr("console.server.engine_process.Doors", lambda **given: Doors(**given, per_s=1))
    with reached(loop, gate) as line, line.http(mine) as http, line.http(other) as patient:
        codes = [http.get("/v1/whoami").status_code for _ in range(8)]
        assert 200 in codes
        assert codes[-1] == 429
        assert patient.get("/v1/whoami").status_code == 200


def test_a_request_that_was_signed_is_taken_once(line: Line) -> None:
    sent: list[httpx.Request] = []
    with closing(line.client(name="alice")) as alice:
        alice._http.event_hooks["request"] = [sent.append]
        alice.command(Submit(workloads=(workload("once"),)))
    signed = next(request for request in sent if "muster-signed" in request.headers)
    headers = {name: value for name, value in signed.headers.items() if name != "idempotency-key"}
    with line.http() as http:
        again = http.post(signed.url.path, content=signed.content, headers=headers)
        assert (again.status_code, "used before" in again.text) == (403, True)
        other = signed.content.replace(b'"once"', b'"more"')
        assert http.post(signed.url.path, content=other, headers=headers).status_code == 403
    with closing(line.client()) as client, pytest.raises(RefusedError):
        client.command(Submit(workloads=(workload("unsigned"),)))


def test_more_connections_of_one_address_than_are_of_use_are_not_taken(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_limits, "MAX_FROM_ONE", 8)
    held = [opened(line) for _ in range(8)]
    for connection in held:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
    assert ended(opened(line))
    for connection in held:
        connection.close()
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with opened(line) as one:
            one.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            try:
                if one.recv(12) == b"HTTP/1.1 200":
                    return
            except OSError:
                continue
    pytest.fail("it takes no connection any more")


def free_port() -> int:
    with bind_tcp("127.0.0.1:0") as bound:
        return int(bound.getsockname()[1])


def connected(at: tuple[str, int], source: str = "127.0.0.1") -> socket.socket | None:
    """A connection from that address that was answered and is open; None where it was closed instead."""
    one = socket.create_connection(at, PATIENCE_S, source_address=(source, 0))
    try:
        one.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        if one.recv(65_536).startswith(b"HTTP/1.1 200"):
            _OPEN.append(one)
            return one
    except OSError:
        pass
    one.close()
    return None


def test_an_engine_keeps_its_bounds_of_connections_as_it_is_served(tmp_path: Path) -> None:
    """As a process, on the loop that it has there."""
    paths, port = paths_in(tmp_path / "lab"), free_port()
    ensure_engine(paths, ["--data", str(paths.folder), "--cell", "lab", "--listen", f"127.0.0.1:{port}"])
    at = ("127.0.0.1", port)
    try:
        taken = [connected(at) for _ in range(load_limits.MAX_FROM_ONE + 100)]
        assert [each is not None for each in taken] == [True] * load_limits.MAX_FROM_ONE + [False] * 100
        assert connected(at, "127.0.0.2"), "another address is served"
        with over_unix(paths.socket) as http:
            assert http.get("/healthz").status_code == 200
        while _OPEN:
            _OPEN.pop().close()
        until = time.monotonic() + PATIENCE_S
        while not connected(at):
            assert time.monotonic() < until, "it takes no connection any more"
    finally:
        stop_running(paths)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can connect as another account")
def test_an_account_on_the_socket_has_its_bounds_too(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_limits, "MAX_FROM_ONE", 4)
    monkeypatch.setattr(load_limits, "MAX_IN_ALL", 0)
    with served_on_unix(loop) as path:
        held = [socket.socket(socket.AF_UNIX) for _ in range(5)]
        _OPEN.extend(held)
        for one in held:
            one.settimeout(PATIENCE_S)
            one.connect(str(path))
        for one in held[:4]:
            one.sendall(b"GET /healthz HTTP/1.1\r\nHost: muster\r\n\r\n")
            assert one.recv(12) == b"HTTP/1.1 200"
        assert ended(held[4])
        path.parent.chmod(0o711)
        path.chmod(0o666)
        asking = (
            "import os, socket; os.setgid(65534); os.setuid(65534); "
            f"s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r}); "
            "s.sendall(b'GET /healthz HTTP/1.1\\r\\nHost: muster\\r\\n\\r\\n'); print(s.recv(12).decode())"
        )
        told = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True, check=True).stdout
        assert told.startswith("HTTP/1.1 200"), "another account is served"


def test_connections_that_begin_no_tls_count_too(
    loop: EngineLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_limits, "MAX_FROM_ONE", 4)
    bound = bind_tcp("127.0.0.1:0", secured=True)
    at = bound.getsockname()
    tls = certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=str(tls.certificate))
    with serving(loop, bound, tls=tls):
        silent = [socket.create_connection(at, PATIENCE_S) for _ in range(4)]
        _OPEN.extend(silent)
        with socket.create_connection(at, PATIENCE_S) as beyond:
            assert ended(beyond)
        other = socket.create_connection(at, PATIENCE_S, source_address=("127.0.0.2", 0))
        with trusted.wrap_socket(other, server_hostname="localhost") as served:
            served.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert served.recv(12) == b"HTTP/1.1 200"


@pytest.mark.usefixtures("impatient")
def test_who_begins_no_tls_is_dropped(loop: EngineLoop, tmp_path: Path) -> None:
    bound = bind_tcp("127.0.0.1:0", secured=True)
    at = bound.getsockname()
    with serving(loop, bound, tls=certificate(tmp_path)), socket.create_connection(at, PATIENCE_S) as silent:
        assert ended(silent)


def test_a_name_with_an_address_in_it_is_nobody_elses(line: Line) -> None:
    assert load_limits._certified({"subject": ((("commonName", "alice"),),)}) == "cert:alice"
    for name in ("alice 10.0.0.1", "", "a" * 100, "alice\x00", "-x", "ålice"):
        assert load_limits._certified({"subject": ((("commonName", name),),)}) == ""
    assert load_limits._certified({"subject": ((("commonName", "a"),), (("commonName", "b"),))}) == ""
    assert load_limits._certified(None) == ""


def test_buckets_fill_again_and_forget_whoever_is_long_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    buckets = TokenBuckets(2.0, 4.0, lambda: now[0])
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0]
    assert buckets.take("a") == pytest.approx(0.5)
    assert buckets.take("b") == 0
    now[0] = 0.5
    assert buckets.take("a") == 0
    monkeypatch.setattr("console.server.load_limits.MAX_CALLERS", 3)
    for number in range(10):
        buckets.take(str(number))
    assert len(buckets._held) == 3
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff") == "2001:db8::/64"
    assert network_of("::ffff:10.0.0.7") == network_of("10.0.0.7") == "10.0.0.7"


def test_far_and_near_are_told_apart_by_the_port_they_come_through(loop: EngineLoop, gate: Gate) -> None:
    with reached_from_afar(loop, gate) as far, opened(far) as calling:
        assert account_at(calling) == "tcp"
        with far.http() as http:
            assert http.get("/v1/overview", headers={"x-forwarded-for": "127.0.0.1"}).status_code == 401
            assert http.get("/v1/overview", headers={"muster-as": "alice"}).status_code == 401
            assert http.get("/healthz").status_code == 200
