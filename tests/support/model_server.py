"""A model server that answers what a test says, over a real socket. One that attacks is in tests/hostile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.patience import PATIENCE_S

NOTHING = {
    "title": "Nothing is wrong", "summary": "No queue waits longer than it should.", "rationale": [], "steps": [],
    "risks": [], "questions": [],
}  # fmt: skip


class ModelServer(ThreadingHTTPServer):
    """Answers each request with `status` and, for 200, `content` in an envelope."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.content: Any = NOTHING
        self.usage = {"prompt_tokens": 1_500, "completion_tokens": 200}
        self.silent = threading.Event()
        """Set: it takes requests and does not answer until it is stopped."""
        self.model = "made-up"
        """Who says that it answers."""
        self.floods = False
        """It sends on and on."""
        self.stopped = threading.Event()
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelServer

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_POST(self) -> None:
        server = self.server
        server.keys.append(self.headers.get("authorization", ""))
        server.seen.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        if server.silent.is_set():
            server.stopped.wait(PATIENCE_S)
            return
        with suppress(OSError):  # who asks may be gone by now
            if server.floods:
                self._flood()
            else:
                self._answer()

    def _answer(self) -> None:
        content = self.server.content
        text = content if isinstance(content, str) else json.dumps(content)
        message = {"role": "assistant", "content": text}
        body = {
            "id": "a", "object": "chat.completion", "created": 1, "model": self.server.model,
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}], "usage": self.server.usage,
        }  # fmt: skip
        data = json.dumps(body if self.server.status == 200 else {"error": {"message": "no"}}).encode()
        self.send_response(self.server.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _flood(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        while not self.server.stopped.is_set():
            self.wfile.write(b"400\r\n" + b" " * 0x400 + b"\r\n")
            time.sleep(0.002)


@contextmanager
def model_server() -> Iterator[ModelServer]:
    server = ModelServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="model-server")
    thread.start()
    try:
        yield server
    finally:
        server.stopped.set()
        server.shutdown()
        thread.join(PATIENCE_S)
        server.server_close()
