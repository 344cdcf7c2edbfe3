"""The guard of the way out: one origin, one path, one connection, whatever it is asked for."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import httpx2
import pytest

from runbooks.models import transport
from runbooks.models.transport import Guard, TransportRefused, WireLog


def guard(**changes: Any) -> Guard:
    there = {"scheme": "http", "host": "127.0.0.1", "port": 9, "path": "/v1/chat/completions", **changes}
    made = Guard(**there, most_bytes=1000, ca_pem="")
    made.wire = WireLog(0.0, lambda _phase, _received: None)
    return made


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("POST", "http://127.0.0.1:10/v1/chat/completions"),
        ("POST", "http://127.0.0.2:9/v1/chat/completions"),
        ("POST", "http://localhost:9/v1/chat/completions"),
        ("POST", "https://127.0.0.1:9/v1/chat/completions"),
        ("POST", "http://169.254.169.254/latest/meta-data/"),
        ("POST", "http://127.0.0.1:9/v1/models"),
        ("POST", "http://127.0.0.1:9/v1/chat/completions?key=x"),
        ("POST", "http://127.0.0.1:9/v1/../v1/chat/completions/"),
        ("GET", "http://127.0.0.1:9/v1/chat/completions"),
        ("DELETE", "http://127.0.0.1:9/v1/chat/completions"),
    ],
)
async def test_no_other_request_is_made(method: str, url: str) -> None:
    here = guard()
    with pytest.raises(TransportRefused) as refused:
        await here.handle_async_request(httpx2.Request(method, url, json={}))
    assert refused.value.reason == "bad_endpoint"
    assert here.wire is not None
    assert here.wire.attempts == 0


async def test_none_is_made_outside_of_a_call() -> None:
    here = guard()
    here.wire = None
    with pytest.raises(TransportRefused) as refused:
        await here.handle_async_request(httpx2.Request("POST", "http://127.0.0.1:9/v1/chat/completions", json={}))
    assert refused.value.reason == "bad_endpoint"


async def test_no_connection_goes_anywhere_else() -> None:
    """Also where the pool would ask for one, as it would for a proxy."""
    called: list[int] = []
    server = await asyncio.start_server(lambda _reader, writer: called.append(writer.close() or 1), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    backend = transport._Backend("127.0.0.1", 9, transport._Meter(1000))
    for host, to in (("127.0.0.1", port), ("localhost", 9), ("0.0.0.0", 9)):
        with pytest.raises(TransportRefused):
            await backend.connect_tcp(host, to)
    server.close()
    assert not called


def test_tls_is_checked_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONHTTPSVERIFY", "SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_NO_VERIFY", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, "0")
    context = guard(scheme="https")._tls
    assert context is not None
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
