"""Who asks a fleet over the network, and what they may do: what their token says in one of its cells.

A fleet makes no tokens. Its file names a cell as `people`: whoever shows a token of that cell is, for the fleet, who
they are there, with at most the roles that the cell's policy gives them in all of it and what the token is for. So a
token that is revoked there, or a person whom the policy no longer names, counts for nothing here either, after CHECK_S
at the latest. While that cell does not answer, nobody new is let in over the network. On the fleet's socket the account
identifies the caller, as before.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from console.client.credentials import Identity, peer_of
from console.client.remote import RemoteClient
from console.forms.settings import ConsoleSettings
from console.server.authentication import BEARER, FAILURES, FAILURES_PER_S, MAX_TOKEN
from console.server.load_limits import TokenBuckets, network_of, too_many
from console.server.operations import Forbidden, refusal
from engine.admission.fleet_routing import CellLink
from engine.model.errors import MusterError, SpecError
from runbooks.gate.decisions import ROOT
from runbooks.plans.identity import OWNER, Unauthenticated

if TYPE_CHECKING:
    from runbooks.gate.approval_policy import Caller

CHECK_S = 5.0
"""How long what a cell said of a token holds."""
MAX_KEPT = 10_000
PATIENCE_S = 5.0
Ask = Callable[[str], "Caller"]
"""As whom the cell knows the holder of a token. Raises MusterError."""


class FleetCaller(NamedTuple):
    """Who asks a fleet."""

    account: str
    reads: bool = True
    submits: bool = True
    manages: bool = False
    """Whether others' work and the cells are theirs to command."""


class _Shown(Identity):
    """The identity of whoever showed a token."""

    def __init__(self, token: str) -> None:
        super().__init__(ConsoleSettings())
        self._shown = token

    def token(self, where: str) -> str:
        return self._shown


def asked_of(link: CellLink) -> Ask:
    """Ask the cell `people`, which must be reached by TLS or on this machine's own socket. Raises SpecError."""
    if link.connect.startswith("http://"):
        raise SpecError(
            "people", f"cell '{link.name}' is reached in the clear", "Give it as connect: https://HOST:PORT"
        )

    def ask(token: str) -> Caller:
        with closing(RemoteClient(link.connect, identity=_Shown(token), patience_s=PATIENCE_S)) as client:
            return client.whoami()

    return ask


def at_socket(account: str) -> FleetCaller:
    """The caller that the kernel names on the fleet's own socket."""
    return FleetCaller(account, manages=account in (OWNER, ROOT))


def _as_known(caller: Caller) -> FleetCaller:
    def may(deed: str, *roles: str) -> bool:
        return not set(roles).isdisjoint(caller.roles) and (caller.deeds is None or deed in caller.deeds)

    reads = caller.deeds is None or "read" in caller.deeds
    return FleetCaller(caller.subject, reads, may("submit", "submitter", "operator"), may("configure", "admin"))


class FleetAuthentication:
    """Middleware that puts the `FleetCaller` of a request into its state. `ask` None: nobody comes over the network."""

    def __init__(self, app: ASGIApp, ask: Ask | None) -> None:
        self._app = app
        self._ask = ask
        self._kept: dict[bytes, tuple[float, FleetCaller]] = {}
        """SHA-256 of a token -> until when, and who."""
        self._failed = TokenBuckets(FAILURES_PER_S, FAILURES, time.monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        account, address = peer_of(scope["client"])
        try:
            caller = at_socket(account) if account.startswith("unix:") else await self._shown(Request(scope), address)
            if not caller.reads or (scope["method"] != "GET" and not caller.submits):
                raise Forbidden(f"{caller.account} may not do that here", "Ask an admin of the cell that knows you")
        except MusterError as error:
            await refusal(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)

    async def _shown(self, request: Request, address: str) -> FleetCaller:
        """Who showed a token. Raises Unauthenticated, Crowded, and the errors of the cell that is asked."""
        wait_s = self._failed.left(network_of(address))
        if wait_s:
            raise too_many(wait_s, "too many tokens that do not hold came from your address")
        given = request.headers.getlist("authorization")
        if self._ask is None or len(given) != 1 or given[0][: len(BEARER)].lower() != BEARER:
            raise Unauthenticated("no credentials", "Send a token of the cell that the fleet's file names as `people`")
        token = given[0][len(BEARER) :].strip()
        digest, now = hashlib.sha256(token.encode()).digest(), time.monotonic()
        until, known = self._kept.get(digest, (0.0, None))
        if known is not None and until > now:
            return known
        if len(given[0]) > MAX_TOKEN:
            raise Unauthenticated("the Authorization header has no token", "Send: Authorization: Bearer muster_…")
        try:
            found = _as_known(await run_in_threadpool(self._ask, token))
        except Unauthenticated:
            self._kept.pop(digest, None)
            self._failed.take(network_of(address))
            raise
        if len(self._kept) >= MAX_KEPT:
            self._kept = {key: each for key, each in self._kept.items() if each[0] > now}
        self._kept[digest] = (now + CHECK_S, found)
        return found
