"""The HTTP port as somebody would try it who has nothing to show, or less than what they want to reach."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from console.client.oidc import OpenIdProvider
from console.server import load_limits
from console.server.authentication import FAILURES, MAX_LOGIN
from engine.loop import EngineLoop
from engine.model.errors import UnreachableError
from tests.console.client.test_tls import certificate, secured
from tests.support.gates import gate_of
from tests.support.network import Line, reached
from tests.support.oidc_issuer import CLIENT, Issuer, issuing
from tests.support.patience import PATIENCE_S
from tests.support.people import person, team
from tests.support.served import running_loop

pytestmark = pytest.mark.thorough


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


def sent(port: int, raw: bytes) -> bytes:
    """What comes back by TLS, up to the end of the connection."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    with ssl._create_unverified_context().wrap_socket(plain, server_hostname="localhost") as line:
        line.sendall(raw)
        return b"".join(iter(lambda: line.recv(65_536), b""))


def test_no_spelling_of_a_request_leads_past_who_asks(loop: EngineLoop, tmp_path: Path) -> None:
    """Only the very paths of the probes and of the login are served to nobody."""
    hosts = (b"x", b"x/v1/login?", b"x/healthz#", b"x\\@y/v1/login", b"[::1]/v1/login?", b"x/v1/login;")
    paths = (
        b"/v1/login/../overview", b"//v1/overview", b"/v1/%6fverview", b"/v1/login%3f", b"/v1/login%2f..%2foverview",
        b"/healthz/../v1/overview", b"/healthz%00/v1/overview", b"/healthz;/v1/overview", b"/V1/overview",
        b"/v1/agents%2f..%2foverview", b"/v1/overview?/healthz", b"/v1/overview#/healthz", b"/v1/login/",
    )  # fmt: skip
    requests = [b"GET /v1/overview HTTP/1.1\r\nHost: %s\r\n" % host for host in hosts]
    requests += [b"GET %s HTTP/1.1\r\nHost: localhost\r\n" % path for path in paths]
    requests += [
        b"GET /v1/overview HTTP/1.1\r\nHost: localhost\r\nX-Original-URL: /healthz\r\n",
        b"GET /v1/overview HTTP/1.1\r\nHost: localhost\r\nHost: localhost/v1/login?\r\n",
        b"GET /v1/overview HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic Zm9vOmJhcg==\r\n",
        b"GET /v1/overview HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n",
    ]
    with secured(loop, certificate(tmp_path)) as port:
        for request in requests:
            answer = sent(port, request + b"Connection: close\r\n\r\n")
            assert answer[9:12] in (b"400", b"401", b"403", b"404", b"429"), (request, answer[:200])
            assert b"nodes" not in answer
            assert b"Bearer a" not in answer
        assert sent(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")[9:12] == b"200"


def test_a_second_request_behind_the_body_of_the_first_is_asked_anew_who_it_is(
    loop: EngineLoop, tmp_path: Path
) -> None:
    """What a proxy would take for one request is for us either refused or two, each by itself."""
    hidden = b"GET /v1/overview HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    bodies = (
        b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(hidden),
        b"Content-Length: +0\r\n\r\n",
        b"Content-Length: 0\r\n\r\n",
    )
    with secured(loop, certificate(tmp_path)) as port:
        for body in bodies:
            answer = sent(port, b"POST /v1/login/token HTTP/1.1\r\nHost: localhost\r\n" + body + hidden)
            assert b"HTTP/1.1 200" not in answer, (body, answer[:300])
            assert b'"nodes"' not in answer


def test_connections_on_which_nothing_comes_leave_room_for_others(
    loop: EngineLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted before TLS is begun, and let go when they end."""
    for bound, most in (("MAX_FROM_ONE", 6), ("MAX_IN_ALL", 6)):
        with monkeypatch.context() as patched, secured(loop, certificate(tmp_path)) as port:
            patched.setattr(load_limits, bound, most)
            silent_ones = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(most)]
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as beyond:
                assert beyond.recv(1) == b""
            for each in silent_ones:
                each.close()
            until, answer = time.monotonic() + PATIENCE_S, b""
            while time.monotonic() < until and not answer:
                with contextlib.suppress(OSError):
                    answer = sent(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert answer[9:12] == b"200"


# -- logging in -------------------------------------------------------------------------------------------------------


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as there:
        yield there


@contextmanager
def silent() -> Iterator[str]:
    """The URL of a provider that takes connections and says nothing."""
    with ExitStack() as after:
        bound = after.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def people_line(loop: EngineLoop, provider: OpenIdProvider) -> object:
    return reached(loop, gate_of(loop.engine, team(person("alice", "operator"), person("dave", "admin"))), provider)


def test_a_login_of_nobody_is_read_to_a_few_bytes_only(loop: EngineLoop, issuer: Issuer) -> None:
    with people_line(loop, OpenIdProvider(issuer.url, CLIENT)) as line, line.http() as http:  # type: ignore[attr-defined]
        for headers in ({}, {"muster-signed": "x"}):
            for content in (b'{"id_token":"' + b"a" * MAX_LOGIN + b'"}', iter([b"a" * 40_000, b"a" * 40_000])):
                answer = http.post("/v1/login/token", content=content, headers=headers)
                assert answer.status_code == 413
        assert http.post("/v1/login/token", content=b"[" * 20_000).status_code == 400


def test_logins_that_do_not_hold_are_slowed_down_like_tokens(loop: EngineLoop, issuer: Issuer) -> None:
    with people_line(loop, OpenIdProvider(issuer.url, CLIENT)) as line, line.http() as http:  # type: ignore[attr-defined]
        codes = [http.post("/v1/login/token", json={"id_token": "a.b.c"}).status_code for _ in range(FAILURES + 3)]
        assert codes[:FAILURES] == [401] * FAILURES
        assert codes[-1] == 429


def test_made_up_logins_while_the_provider_is_silent_hold_up_nobody(
    loop: EngineLoop, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.client.oidc.TIMEOUT_S", PATIENCE_S)
    forged = issuer.token()
    provider = ExitStack()
    url = provider.enter_context(silent())
    with provider, people_line(loop, OpenIdProvider(url, CLIENT)) as line:  # type: ignore[attr-defined]
        assert isinstance(line, Line)
        token = line.make_token("alice").token
        stop = threading.Event()

        def flood(_: int) -> set[int]:
            codes = set()
            with line.http() as http:
                while not stop.is_set():
                    codes.add(http.post("/v1/login/token", json={"id_token": forged}).status_code)
                    stop.wait(0.1)
            return codes

        with ThreadPoolExecutor(60) as pool:
            flooding = [pool.submit(flood, number) for number in range(60)]
            try:
                time.sleep(0.5)  # until all of them are in the midst of it
                with line.http(token) as http:
                    assert http.get("/v1/whoami").status_code == 200
                    assert http.get("/v1/overview").status_code == 200
                with line.http() as http:  # nobody, who is looked up anew
                    assert http.get("/v1/whoami").status_code in (200, 429)
            finally:
                stop.set()
                provider.close()  # which ends every login that waits for it
            codes = set().union(*(each.result() for each in flooding))
        assert codes <= {502, 503, 429}


def test_a_provider_that_failed_is_not_waited_for_at_once_again_and_its_keys_are_believed_on(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.client.oidc.AGAIN_S", 0.0)
    provider = OpenIdProvider(issuer.url, CLIENT)
    assert provider.proved(issuer.token()).account
    issuer.floods = True
    before = len(issuer.asked)
    for number in range(5):
        with pytest.raises(UnreachableError):
            provider.proved(issuer.token(headers={"kid": f"made-up-{number}"}))
    assert len(issuer.asked) - before <= 1
    assert provider.proved(issuer.token()).account


def test_the_line_takes_a_token_of_the_right_shape_only(loop: EngineLoop) -> None:
    """Nothing of what is shown comes back."""
    gate = gate_of(loop.engine, team(person("alice", "operator")))
    with reached(loop, gate) as line, httpx.Client(base_url=line.url, trust_env=False) as http:
        for text in ("muster_" + "0" * 12 + "_" + "s3kr3t" * 7 + "x", "s3kr3t", "muster_é_s3kr3t", "x" * 5_000):
            answer = http.get("/v1/overview", headers={"authorization": f"Bearer {text}".encode()})
            assert answer.status_code in (401, 429)
            assert "s3kr3t" not in answer.text
