"""Authentication of every request before a handler sees it: by account, client certificate, token or signature.

A request is refused where its claim does not hold or is not enough, or where its caller asks too often. Plain HTTP
on a loopback port may be read by any account of this machine. On a port that other machines can reach, and by TLS,
nobody is served without a token or a certificate, except by the probes.

Requests that a web page could have a browser send are refused first (`BrowserGuard`): nothing here is meant for a
page, and a browser acts with its user's rights.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from console.client.credentials import CALLER, SIGNED, IdentityClaim, claim_of, peer_of
from console.server.load_limits import TokenBuckets, network_of, too_many
from console.server.operations import Forbidden, body, refusal
from engine.model.errors import MusterError
from runbooks.plans.identity import TCP, TOKEN, Actor, AuthRefused, Unauthenticated, stands_for

if TYPE_CHECKING:
    from console.service.local_client import LocalClient
    from console.service.token_store import PresentedToken

CHAT_PATH, APPROVAL_PATH = "/v1/chat/slack", "/v1/approval"
"""Of who is believed by a signature of the chat, or of this engine: see `console.service.chat`."""
OPEN_PATHS = ("/healthz", "/readyz", CHAT_PATH, APPROVAL_PATH)
"""Served without a name. The first two say whether the server is up, and nothing else."""
LOGIN_PATHS = ("/v1/login", "/v1/login/token")
"""Served to who has nothing to show yet: how to log in, and what proves it."""
MAX_LOGIN = 32 * 1024
"""Bytes that are read of a request of somebody who has shown nothing."""
STREAMS = ("/v1/events",)
LOOK_S = 0.5
"""How often it is looked whether the token of a stream still holds."""
AGENTS = "/v1/agents/"
ALERTS = "/v1/alerts"
ALERTS_PER_S, ALERTS_AT_ONCE = 5, 100
"""Reports of one source of alerts: each may write to the audit."""
FAILURES, FAILURES_PER_S = 10, 1 / 6
"""Of showing what does not hold, by address: so many at once, and ten a minute; beyond that they are not on record."""
BEARER = "bearer "
MAX_TOKEN = 200


def guarded_ports(sockets: Iterable[socket.socket], secured: Iterable[socket.socket] = ()) -> frozenset[int]:
    """Ports on which unnamed callers are refused: those that other machines can reach, and those with TLS, which
    something in front of them may expose."""
    bound = [each.getsockname() for each in sockets if each.family in (socket.AF_INET, socket.AF_INET6)]
    reached = {port for host, port, *_ in bound if not ipaddress.ip_address(host.partition("%")[0]).is_loopback}
    return frozenset(reached.union(each.getsockname()[1] for each in secured))


@dataclass
class Doors:
    """Ports that requests come through, and the rate for one caller."""

    guarded: frozenset[int] = frozenset()
    """TCP ports on which nobody is served unnamed."""
    per_s: int = 2_000
    """Requests a second of one caller by TCP, and twice as many at once; 0: no bound."""
    asked: TokenBuckets = field(init=False)
    failed: TokenBuckets = field(init=False)
    alerts: TokenBuckets = field(init=False)

    def __post_init__(self) -> None:
        self.asked = TokenBuckets(self.per_s or 1, 2 * self.per_s, time.monotonic)
        self.failed = TokenBuckets(FAILURES_PER_S, FAILURES, time.monotonic)
        self.alerts = TokenBuckets(ALERTS_PER_S, ALERTS_AT_ONCE, time.monotonic)


class Authentication:
    """Middleware that sets `CALLER` while a request is answered."""

    def __init__(self, app: ASGIApp, client: LocalClient, doors: Doors | None = None) -> None:
        self._app = app
        self._client = client
        self._doors = doors or Doors()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] in OPEN_PATHS:
            CALLER.set(Actor(subject=TCP, account=TCP))
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        account, address = peer_of(scope["client"])
        try:
            actor, receive = await self._named(request, receive, account, address)
            _check_token(actor, account, scope["path"])
            if scope["path"] == ALERTS and (wait_s := self._doors.alerts.take(actor.subject)):
                raise too_many(wait_s, "you report too often")
        except MusterError as error:
            await self._answer(error, account, address)(scope, receive, send)
            return
        except ClientDisconnect:
            return
        CALLER.set(actor)
        if scope["path"] in LOGIN_PATHS and address:
            send = self._counting_refusals(send, address)
        if actor.session and scope["path"] in STREAMS:
            await self._while_it_holds(actor.session, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _while_it_holds(self, session: str, scope: Scope, receive: Receive, send: Send) -> None:
        """End a stream when the token it was asked for with is revoked or expires."""
        answering = asyncio.ensure_future(self._app(scope, receive, send))
        try:
            while not (await asyncio.wait((answering,), timeout=LOOK_S))[0]:
                if not self._client.tokens_kept.holds(session.removeprefix(TOKEN)):
                    break
            else:
                await answering
        finally:
            if not answering.done():
                answering.cancel()
                await asyncio.wait((answering,))
                with contextlib.suppress(RuntimeError):  # it had not begun to answer
                    await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _counting_refusals(self, send: Send, address: str) -> Send:
        """Count a failed login like a token that does not hold."""

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401:
                self._doors.failed.take(network_of(address))
            await send(message)

        return counting

    def _answer(self, error: MusterError, account: str, address: str) -> ASGIApp:
        wait_s = 0.0
        if isinstance(error, AuthRefused) and not account.startswith("unix:"):
            wait_s = self._doors.failed.take(network_of(address))
        return refusal(too_many(wait_s, f"{error.problem}, too often") if wait_s else error)

    async def _named(self, request: Request, receive: Receive, account: str, address: str) -> tuple[Actor, Receive]:
        """The caller of a request, and where its body can be read. Raises AuthRefused, on record; Crowded; and
        TooLarge."""
        shown = await self._shown(request, address)
        if shown is not None:
            account = shown.account
        self._take(account, address)
        if request.scope["path"] in LOGIN_PATHS and address:
            wait_s = self._doors.failed.left(network_of(address))
            if wait_s:
                raise too_many(wait_s, "too many failed logins from your address")
        actor = self._client.glanced(account)
        if actor is None:
            actor = await run_in_threadpool(self._client.identified, IdentityClaim(account))
        self._admit(request, actor)
        content = b""
        if SIGNED in request.headers:
            content = await body(request, MAX_LOGIN if request.scope["path"] in LOGIN_PATHS else 0)
            receive = _again(content)
        try:
            path = request.scope["raw_path"].decode("latin-1")
            claim = claim_of(account, request.headers, request.method, path, content)
        except AuthRefused as error:
            await self._on_record(account, address, error)
            raise
        if claim.person or claim.signed:
            wait_s = 0.0 if account.startswith("unix:") else self._doors.failed.left(network_of(address))
            if wait_s:  # each that does not hold is put on record
                raise too_many(wait_s, "too many bad signatures from your address")
            actor = await run_in_threadpool(self._client.identified, claim)
        if shown is not None:
            session = f"{TOKEN}{shown.id}"
            actor = msgspec.structs.replace(
                actor, session=session, deeds=shown.deeds, within=shown.within, groups=shown.groups
            )
        return actor, receive

    async def _shown(self, request: Request, address: str) -> PresentedToken | None:
        """The token of a request. Raises Unauthenticated for text that is no token, and for one that is revoked or
        expired."""
        given = request.headers.getlist("authorization")
        if not given:
            return None
        if len(given) > 1 or given[0][: len(BEARER)].lower() != BEARER or len(given[0]) > MAX_TOKEN:
            raise Unauthenticated("the Authorization header has no token", "Send: Authorization: Bearer muster_…")
        tokens, text = self._client.tokens_kept, given[0][len(BEARER) :].strip()
        if not tokens.loaded:
            await run_in_threadpool(tokens.load)
        try:
            return tokens.check(text, address)
        except Unauthenticated as error:
            await self._on_record(TCP, address, error)
            raise

    async def _on_record(self, account: str, address: str, error: AuthRefused) -> None:
        """Write a refusal to the audit, unless the address has caused many already."""
        if account.startswith("unix:") or not self._doors.failed.left(network_of(address)):
            await run_in_threadpool(self._client.refused, account, error)

    def _take(self, account: str, address: str) -> None:
        """Raises Crowded for a caller who asks too often; callers on this machine's own socket are not counted."""
        if not self._doors.per_s or account.startswith("unix:"):
            return
        caller = network_of(address) if account == TCP else account
        wait_s = self._doors.asked.take(caller)
        if wait_s:
            raise too_many(wait_s)

    def _admit(self, request: Request, actor: Actor) -> None:
        """Raises Unauthenticated for a token of somebody whom the policy no longer names, and on guarded ports for a
        caller without a token, or with a certificate of nobody."""
        if actor.account.startswith("unix:"):
            return
        if actor.subject.startswith(TOKEN):
            raise Unauthenticated(f"the policy does not name {stands_for(actor.subject)} any more", "Ask an admin")
        server = request.scope.get("server")
        if server is None or server[1] not in self._doors.guarded or request.scope["path"] in LOGIN_PATHS:
            return
        if actor.account == TCP:
            raise Unauthenticated("no credentials", "Send a token: see `muster token create`, `muster token login`")
        if actor.subject == actor.account:
            raise Unauthenticated(f"the policy has no person with account {actor.account!a}", "Ask an admin")


def _check_token(actor: Actor, account: str, path: str) -> None:
    """Raises AuthRefused where a token's scope does not include the request: reading, or reporting as a node."""
    if path.startswith(AGENTS):
        if account.startswith("unix:") or "agent" in (actor.deeds or ()):
            return
        raise AuthRefused(
            "reporting as a node over TCP needs an agent token",
            "Make one with `muster token create --scope agent --service node-agent NAME`",
        )
    if path == ALERTS and "alert" in (actor.deeds or ()):
        return
    if actor.deeds is not None and "read" not in actor.deeds:
        raise AuthRefused(f"this token does not allow it ({', '.join(actor.deeds)})", "Use another token")


def _again(content: bytes) -> Receive:
    """A receiver for a body that was read already."""
    parts = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive() -> Message:
        return next(parts, {"type": "http.disconnect"})

    return receive


class BrowserGuard:
    """Middleware that refuses any Origin, requests that a browser marks as a page's, and in the clear a foreign Host
    (DNS rebinding; by TLS such a page has no certificate for the name)."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refused = self._why_not(dict(scope["headers"]), scope["scheme"] == "https", link=_is_link(scope))
            if refused:
                await refusal(Forbidden(refused, "Use the muster command or an HTTP client"))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _why_not(self, headers: Mapping[bytes, bytes], tls: bool, *, link: bool) -> str:
        from_page = b"origin" in headers or headers.get(b"sec-fetch-site", b"none") != b"none"
        if from_page and not link:
            return "requests of web pages are not served"
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return "" if tls or name in self._hosts else f"host {host[:80]!a} is not served here"


def _is_link(scope: Scope) -> bool:
    """True for a link that somebody follows, as in a chat in the browser: it shows one page, which nothing reads."""
    return scope["method"] == "GET" and scope["path"] == APPROVAL_PATH
