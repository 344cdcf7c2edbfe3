"""The control plane against input nobody meant: every answer is a clear error, and the next question is answered."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from console.client.sockets import bind_tcp, bind_unix, parse_listen, private_folder, probe
from console.server import operations
from engine.loop import EngineLoop
from engine.model.errors import MusterError, RefusedError, SpecError
from tests.support.served import running_loop, served_on_unix, serving, socket_folder


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
        transport=httpx.HTTPTransport(uds=str(path), verify=False), base_url="http://muster", trust_env=False
    )


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The body of an error answer, checked for its shape."""
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    assert body.keys() == {"code", "problem", "remedy", "request"}
    assert body["request"] == answer.headers["x-request-id"]
    assert body["code"] == code
    assert "Traceback" not in answer.text
    return body


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/v1/query", b"", "body"),
        ("/v1/query", b"{", "body"),
        ("/v1/query", b"\xff\xfe", "body"),
        ("/v1/query", b"[" * 100_000, "body"),
        ("/v1/query", b'{"kind":"workloads","colour":1}', "colour"),
        ("/v1/query", b'{"kind":"dragons"}', "kind"),
        ("/v1/query", b'{"kind":"workloads","where":[{"column":"id","op":"=","value":1.5}]}', "where[0].value"),
        ("/v1/query", b'{"kind":"workloads","limit":99999999999999999999}', "limit"),
        ("/v1/query", b'{"kind":"workloads","limit":-1}', "limit"),
        ("/v1/command", b'{"do":"explode"}', "explode"),
        ("/v1/command", b'{"do":"submit"}', "workloads"),
        ("/v1/command", b'{"do":"submit","workloads":[{"id":"a","queue":"a","groups":[],"x":1}]}', "workloads[0]"),
        ("/v1/propose", b'{"steps":[{"act":{"action":"explode","targets":["a"]}}]}', "steps[0].act.action"),
        ("/v1/propose", b'{"steps":[{"act":{"action":"cancel","targets":"a"}}]}', "steps[0].act.targets"),
        ("/v1/propose", b'{"steps":[],"tier":"T0"}', "tier"),
        ("/v1/propose", b'{"steps":[],"needs":0}', "needs"),
        ("/v1/preview", b'{"steps":[{"act":{"action":"run_shell","targets":["a"]}}]}', "steps[0].act.action"),
        ("/v1/approve", b'{"proposal":"P-1"}', "digest"),
        ("/v1/approve", b'{"proposal":"P-1","digest":"00","approved_by":["alice"]}', "approved_by"),
        ("/v1/vote", b'{"proposal":"P-1","digest":"00","verdict":"yes"}', "verdict"),
        ("/v1/vote", b'{"proposal":"P-1","digest":"00","verdict":"approve","subject":"person:alice"}', "subject"),
        ("/v1/execute", b'{"proposal":"P-1","force":true}', "force"),
        ("/v1/resume", b'{"proposal":"P-1","accept":"yes"}', "accept"),
        ("/v1/confirm", b'{"proposal":"P-1"}', "step"),
        ("/v1/break-glass", b'{"proposal":"P-1","digest":"00"}', "reason"),
        ("/v1/close-review", b'{"review":"1","comment":"seen"}', "review"),
        ("/v1/answer-intent", b'{"number":1,"outcome":"perhaps","reason":"x"}', "outcome"),
        ("/v1/answer-intent", b'{"number":1,"outcome":"done","reason":"x","by":"person:alice"}', "by"),
        ("/v1/freeze", b'{"name":"x","tier":"T9"}', "tier"),
    ],
)
def test_a_malformed_body_names_the_place(http: httpx.Client, path: str, body: bytes, where: str) -> None:
    assert where in refused(http.post(path, content=body), 400, "invalid")["problem"]
    assert http.get("/v1/health").status_code == 200


@pytest.mark.parametrize(
    "query", ["after=x", "after=-1", "after=nan", "wait_s=inf", "wait_s=61", "limit=0", "limit=1e9"]
)
def test_a_malformed_cursor_is_refused(http: httpx.Client, query: str) -> None:
    assert query.split("=")[0] in refused(http.get(f"/v1/changes?{query}"), 400, "invalid")["problem"]


@pytest.mark.parametrize(
    "body",
    [b'{"do":"cancel","ids":["a"]}', b'{"do":"drain","ids":["g0"]}', b'{"do":"set_policy","policy":"fcfs"}'],
)
def test_actions_cannot_be_commanded_past_the_gate(http: httpx.Client, body: bytes) -> None:
    assert "propose it" in refused(http.post("/v1/command", content=body), 403, "refused")["problem"]


def test_unknown_routes_methods_and_things(http: httpx.Client) -> None:
    refused(http.get("/"), 404, "not_found")
    refused(http.get("/v2/health"), 404, "not_found")
    refused(http.get("/v1/workloads/none"), 404, "not_found")
    refused(http.get("/v1/workloads/"), 404, "not_found")
    refused(http.get("/v1/nodes/%00%1b[2J"), 404, "not_found")
    assert refused(http.delete("/v1/health"), 405, "invalid")
    assert http.delete("/v1/health").headers["allow"]


def test_a_body_that_is_too_large_is_refused(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_BODY_BYTES", 1000)
    refused(http.post("/v1/query", content=b" " * 1001), 413, "invalid")
    refused(http.post("/v1/query", content=iter([b" " * 600, b" " * 600])), 413, "invalid")
    assert http.get("/v1/health").status_code == 200


def test_a_client_that_goes_away_in_the_middle_harms_nobody(loop: EngineLoop) -> None:
    with served_on_unix(loop) as path, over_unix(path) as http:
        for sent in (
            b"POST /v1/command HTTP/1.1\r\nHost: muster\r\nContent-Length: 100\r\n\r\n{",
            b"GET /v1/changes?after=999&wait_s=60 HTTP/1.1\r\nHost: muster\r\n\r\n",
            b"\x00\x01\x02 not http\r\n\r\n",
        ):
            with socket.socket(socket.AF_UNIX) as rude:
                rude.connect(str(path))
                rude.sendall(sent)
        assert http.get("/v1/health").status_code == 200


def test_a_defect_is_told_without_a_traceback(
    http: httpx.Client, loop: EngineLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise KeyError("secret value")

    monkeypatch.setattr(loop.engine, "overview", broken)
    assert "secret" not in http.get("/v1/overview").text
    refused(http.get("/v1/overview"), 500, "error")
    assert "secret value" in caplog.text


def test_web_pages_cannot_reach_a_tcp_port(loop: EngineLoop) -> None:
    bound = bind_tcp("127.0.0.1:0")
    port = bound.getsockname()[1]
    with serving(loop, bound), httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False) as http:
        assert http.get("/v1/health").status_code == 200
        assert http.get("/v1/health", headers={"Host": f"localhost:{port}"}).status_code == 200
        refused(http.get("/v1/health", headers={"Host": "evil.example"}), 403, "refused")
        refused(http.get("/v1/health", headers={"Host": f"127.0.0.1.evil.example:{port}"}), 403, "refused")
        refused(http.post("/v1/query", content=b"{}", headers={"Origin": "http://evil.example"}), 403, "refused")
        refused(http.post("/v1/query", content=b"{}", headers={"Origin": f"http://127.0.0.1:{port}"}), 403, "refused")


@pytest.mark.parametrize("listen", ["0.0.0.0:80", "[::]:80", "192.168.1.5:80", "8.8.8.8:80"])
def test_other_machines_are_not_served(listen: str) -> None:
    with pytest.raises(RefusedError, match="authenticate"):
        parse_listen(listen)


@pytest.mark.parametrize("listen", ["", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "example.com:80", "::1"])
def test_a_malformed_address_is_told(listen: str) -> None:
    with pytest.raises((SpecError, RefusedError)):
        bind_tcp(listen).close()


def test_the_socket_is_its_owners_alone() -> None:
    with socket_folder() as folder:
        path = folder / "cell" / "engine.sock"
        with bind_unix(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_dead_socket_is_replaced_and_a_live_one_names_its_process() -> None:
    with socket_folder() as folder:
        path = folder / "engine.sock"
        bind_unix(path).close()
        assert path.exists()
        assert probe(path) is None
        with bind_unix(path) as bound:
            bound.listen()
            assert probe(path) == (os.getpid(), os.getuid())
            with pytest.raises(RefusedError, match=f"process {os.getpid()}"):
                bind_unix(path)


def test_a_file_in_the_way_is_not_removed() -> None:
    with socket_folder() as folder:
        path = folder / "engine.sock"
        path.write_text("precious")
        with pytest.raises(SpecError, match="not a socket"):
            bind_unix(path)
        assert path.read_text() == "precious"


def test_a_folder_others_can_write_is_refused() -> None:
    with socket_folder() as folder:
        open_folder = folder / "open"
        open_folder.mkdir()
        open_folder.chmod(0o777)
        with pytest.raises(MusterError, match="other users"):
            private_folder(open_folder)
