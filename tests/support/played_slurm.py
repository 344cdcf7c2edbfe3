"""A slurmrestd that only plays: it answers as it is told, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.support.patience import PATIENCE_S

_METHODS = {
    "/slurm/{v}/job/submit": ["post"],
    "/slurm/{v}/job/{{job_id}}": ["get", "post", "delete"],
    "/slurm/{v}/jobs": ["get"],
    "/slurm/{v}/nodes": ["get"],
    "/slurm/{v}/ping": ["get"],
    "/slurm/{v}/diag": ["get"],
    "/slurmdb/{v}/jobs": ["get"],
}
_LATER = {
    "/slurm/{v}/node/{{node_name}}": ["get", "post"],
    "/slurm/{v}/jobs/state/": ["get"],
    "/slurm/{v}/shares": ["get"],
}


def described(*versions: str) -> dict[str, Any]:
    """The description of itself that a release with these versions gives."""
    paths = {}
    for version in versions:
        calls = _METHODS if version == "v0.0.38" else _METHODS | _LATER
        paths |= {path.format(v=version): {method: {} for method in methods} for path, methods in calls.items()}
    return {"openapi": "3.0.2", "paths": paths}


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answered = tuple[int, Any] | None
"""Status, and a body as bytes or as what JSON is made of. None: hangs up without an answer."""


class PlayedSlurm:
    """`answers`: by the end of the path, before any query. What is not in it is 404."""

    def __init__(self, *versions: str, **answers: Callable[[Asked], Answered] | Answered) -> None:
        self.answers: dict[str, Callable[[Asked], Answered] | Answered] = {
            "openapi/v3": (200, described(*versions)),
            "ping": (200, {"pings": [{"hostname": "x", "pinged": "UP", "ping": "UP"}], **meta("99.1.2")}),
            "diag": (200, {"statistics": {"req_time": 1000, "req_time_start": 900}}),
            **answers,
        }
        self.asked: list[Asked] = []
        self.at_once = 0
        self.most_at_once = 0
        self._lock = threading.Lock()
        played = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                played._serve(self)

            do_POST = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """Who asked has hung up: that is what some tests are about."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)

    def times(self, end: str, method: str = "GET") -> int:
        return sum(1 for one in self.asked if one.method == method and one.path.partition("?")[0].endswith(end))

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        asked = Asked(handler.command, handler.path, dict(handler.headers.items()), body)
        with self._lock:
            self.asked.append(asked)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self._answer(handler, asked)
        finally:
            with self._lock:
                self.at_once -= 1

    def _answer(self, handler: BaseHTTPRequestHandler, asked: Asked) -> None:
        path = asked.path.partition("?")[0].rstrip("/")
        found = max((end for end in self.answers if path.endswith(end)), key=len, default=None)
        answer = self.answers[found] if found else (404, b"Unable find requested URL.")
        if callable(answer):
            answer = answer(asked)
        if answer is None:
            handler.close_connection = True
            handler.connection.close()
            return
        status, content = answer
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


def meta(release: str) -> dict[str, Any]:
    return {"meta": {"slurm": {"release": release, "cluster": "played"}}, "errors": [], "warnings": []}
