"""A cell that is reached over TCP by people of a policy: each by their key, by a token, or by nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx

from console.client.credentials import Identity, NewToken, TokenAsk
from console.client.oidc import OpenIdProvider
from console.client.remote import RemoteClient
from console.client.sockets import bind_tcp
from console.forms.settings import ConsoleSettings
from engine.loop import EngineLoop
from runbooks.gate.approval_gate import Gate
from tests.support.patience import PATIENCE_S
from tests.support.people import key_of
from tests.support.served import serving


class Held(Identity):
    """An identity whose key is at hand."""

    def __init__(self, name: str) -> None:
        super().__init__(ConsoleSettings(operator=name))
        self._key = key_of(name)


class Shows(Identity):
    """Nobody in particular, with a token."""

    def __init__(self, token: str) -> None:
        super().__init__(ConsoleSettings())
        self._token = token

    def token(self, where: str) -> str:
        return self._token


class Line:
    """How the cell is reached."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def client(self, *, name: str = "", token: str = "") -> RemoteClient:
        """Somebody who signs, somebody with a token, or nobody."""
        identity = Held(name) if name else Shows(token) if token else None
        return RemoteClient(self.url, identity=identity)

    def make_token(self, name: str, *scopes: str, **more: object) -> NewToken:
        """One of that person's, by their key."""
        with closing(self.client(name=name)) as client:
            return client.create_token(TokenAsk(name="test", scopes=scopes or ("read",), **more))  # type: ignore[arg-type]

    def http(self, token: str = "") -> httpx.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=PATIENCE_S)


@contextmanager
def reached(loop: EngineLoop, gate: Gate, provider: OpenIdProvider | None = None) -> Iterator[Line]:
    """On this machine alone."""
    bound = bind_tcp("127.0.0.1:0")
    with serving(loop, bound, gate=gate, provider=provider):
        yield Line(bound.getsockname()[1])


@contextmanager
def reached_from_afar(loop: EngineLoop, gate: Gate) -> Iterator[Line]:
    """On a port that other machines could reach. In the clear: who is let in is the same by TLS."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.bind(("0.0.0.0", 0))
    with serving(loop, bound, gate=gate):
        yield Line(bound.getsockname()[1])
