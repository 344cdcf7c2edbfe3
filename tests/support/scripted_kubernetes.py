"""An API server of Kubernetes that does what a healthy one never does: each answer is what the test says.

    with ScriptedKubernetes(answer) as server: ...

`answer(path, query)` gives status, headers and the pieces of the body. A piece that is None breaks the connection; one
may be made late, so that an answer lasts as long as the test wants. Plain HTTP on loopback.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from engine.external.kubernetes_api.kubeconfig import KubernetesCluster, KubernetesUser, Reach
from engine.external.kubernetes_api.transport import KubernetesTransport
from tests.support.patience import PATIENCE_S

Query = dict[str, str]
Answer = tuple[int, dict[str, str], Iterable[bytes | None]]


class ScriptedKubernetes:
    def __init__(self, answer: Callable[[str, Query], Answer]) -> None:
        self.asked: list[tuple[str, Query]] = []
        self.headers: list[dict[str, str]] = []
        self._answer = answer
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)

    def line(self, user: KubernetesUser | None = None, **how: Any) -> KubernetesTransport:
        cluster = KubernetesCluster(server=self.url)
        reach = Reach(name="scripted", cluster=cluster, user=user or KubernetesUser())
        return KubernetesTransport(reach, **how)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = dict(parse_qsl(parts.query, keep_blank_values=True))
                server.asked.append((parts.path, query))
                server.headers.append(dict(self.headers))
                status, headers, pieces = server._answer(parts.path, query)
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                with contextlib.suppress(OSError):
                    self._write(pieces)

            def _write(self, pieces: Iterable[bytes | None]) -> None:
                for piece in pieces:
                    if piece is None:
                        self.close_connection = True
                        return
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: object) -> None:
                pass

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """Whoever asked hung up."""


# -- what a server says -----------------------------------------------------------------------------------------------


def pod(name: str, version: int | str, uid: str = "", **labels: str) -> dict[str, Any]:
    about = {"name": name, "namespace": "a", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": {**about, "labels": labels}, "spec": {"containers": [{"name": "c"}]}, "status": {}}


def event(happened: str, found: dict[str, Any]) -> bytes:
    return json.dumps({"type": happened, "object": found}).encode() + b"\n"


def bookmark(version: int | str, **annotations: str) -> bytes:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version), "annotations": annotations}})


def initial_end(version: int | str) -> bytes:
    return bookmark(version, **{"k8s.io/initial-events-end": "true"})


def page(version: int | str, *found: dict[str, Any], more: str = "") -> Answer:
    body = {"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(found)}
    return 200, {}, [json.dumps(body).encode()]


def status(code: int, reason: str, **headers: str) -> Answer:
    body = {"kind": "Status", "status": "Failure", "message": f"it is {reason}", "reason": reason, "code": code}
    return code, {name.replace("_", "-"): value for name, value in headers.items()}, [json.dumps(body).encode()]


def error(code: int, reason: str) -> bytes:
    """The event that ends a stream."""
    return event("ERROR", {"kind": "Status", "message": f"it is {reason}", "reason": reason, "code": code})


def until(ends: threading.Event, *pieces: bytes) -> Iterator[bytes]:
    """Pieces of an answer that then lasts until it is ended."""
    yield from pieces
    ends.wait(PATIENCE_S)
