"""An OpenID provider over real HTTP on loopback: discovery, keys, and the device flow, with ways to misbehave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.patience import PATIENCE_S

CLIENT = "muster-lab"


class Issuer:
    """What it says, and who has logged in."""

    def __init__(self) -> None:
        self.url = ""
        self.keys: dict[str, Any] = {"k1": ec.generate_private_key(ec.SECP256R1())}
        self.says_issuer = ""
        """Instead of its own URL."""
        self.pending = 1
        """So many times it says that nobody has logged in yet."""
        self.denies = False
        self.slow_downs = 0
        self.redirects = False
        self.floods = False
        self.asked: list[str] = []
        self.subject = "alice-7"

    def token(
        self, kid: str = "k1", *, algorithm: str = "ES256", headers: Any = None, key: Any = None, **claims: Any
    ) -> str:
        now = int(time.time())
        told = {"iss": self.url, "aud": CLIENT, "sub": self.subject, "iat": now, "exp": now + 300, **claims}
        told = {name: value for name, value in told.items() if value is not None}
        signing = key if key is not None else self.keys[kid]
        return jwt.encode(told, signing, algorithm=algorithm, headers={"kid": kid, **(headers or {})})

    def key_set(self) -> dict[str, Any]:
        made = []
        for kid, key in self.keys.items():
            told = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
            made.append({**told, "kid": kid, "use": "sig", "alg": "ES256"})
        return {"keys": made}

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.says_issuer or self.url, "jwks_uri": f"{self.url}/keys",
            "device_authorization_endpoint": f"{self.url}/device", "token_endpoint": f"{self.url}/token",
        }  # fmt: skip

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if path == "/.well-known/openid-configuration":
            return 200, self.discovery()
        if path == "/keys":
            return 200, self.key_set()
        if form.get("client_id") != CLIENT:
            return 400, {"error": "invalid_client"}
        if path == "/device":
            return 200, {
                "device_code": "d-1", "user_code": "WDJB-\x1b[31mMJHT", "verification_uri": f"{self.url}/go",
                "interval": 0, "expires_in": 60,
            }  # fmt: skip
        if path == "/token" and form.get("device_code") == "d-1":
            if self.denies:
                return 400, {"error": "access_denied"}
            if self.slow_downs:
                self.slow_downs -= 1
                return 400, {"error": "slow_down"}
            if self.pending:
                self.pending -= 1
                return 400, {"error": "authorization_pending"}
            return 200, {"id_token": self.token(), "access_token": "x", "token_type": "Bearer"}
        return 404, {"error": "not_found"}


@contextmanager
def issuing() -> Iterator[Issuer]:
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            size = int(self.headers.get("content-length", "0"))
            form = parse_qs(self.rfile.read(size).decode())
            self._answer({name: values[0] for name, values in form.items()})

        def _answer(self, form: dict[str, str]) -> None:
            issuer.asked.append(self.path)
            if issuer.redirects:
                self.send_response(302)
                self.send_header("location", "http://127.0.0.1:1/")
                self.end_headers()
                return
            status, told = issuer.answer(self.path, form)
            body = b" " * 2_000_000 if issuer.floods else json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)
