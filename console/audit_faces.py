"""The audit over HTTP: what `console.server` serves under /v1/audit.

GET  /v1/audit
POST /v1/audit/page /v1/audit/part /v1/audit/proof /v1/audit/anchor /v1/audit/rotate /v1/audit/redact /v1/audit/seal
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runbooks.audit_pages import AuditProofOf, AuditQuery, AuditRange

if TYPE_CHECKING:
    from console.client import Client


class RedactBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ref: str
    reason: str


class SealBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    before_ms: int


class NoBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked for needs no words."""


Answer = Callable[[Callable[[], object]], Awaitable[Response]]
Read = Callable[[Request, Any], Awaitable[Any]]


class AuditFaces:
    """The handlers. `client` gives one in the name of whoever makes the request; `answer` asks on a worker thread;
    `read` gives a request's body, `change` that of one that changes something, where anything may be changed."""

    def __init__(self, client: Callable[[], Client], answer: Answer, read: Read, change: Read) -> None:
        self._client = client
        self._answer, self._read, self._change = answer, read, change

    def routes(self) -> list[Route]:
        return [
            Route("/v1/audit", self.state, methods=["GET"]),
            Route("/v1/audit/page", self.page, methods=["POST"]),
            Route("/v1/audit/part", self.part, methods=["POST"]),
            Route("/v1/audit/proof", self.proof, methods=["POST"]),
            Route("/v1/audit/anchor", self.anchor, methods=["POST"]),
            Route("/v1/audit/rotate", self.rotate, methods=["POST"]),
            Route("/v1/audit/redact", self.redact, methods=["POST"]),
            Route("/v1/audit/seal", self.seal, methods=["POST"]),
        ]

    async def state(self, request: Request) -> Response:
        return await self._answer(self._client().audit_state)

    async def page(self, request: Request) -> Response:
        query = await self._read(request, AuditQuery)
        client = self._client()
        return await self._answer(lambda: client.audit_page(query))

    async def part(self, request: Request) -> Response:
        wanted = await self._read(request, AuditRange)
        client = self._client()
        return await self._answer(lambda: client.audit_part(wanted))

    async def proof(self, request: Request) -> Response:
        wanted = await self._read(request, AuditProofOf)
        client = self._client()
        return await self._answer(lambda: client.audit_proof(wanted))

    async def anchor(self, request: Request) -> Response:
        await self._change(request, NoBody)
        return await self._answer(self._client().anchor_audit)

    async def rotate(self, request: Request) -> Response:
        await self._change(request, NoBody)
        return await self._answer(self._client().rotate_audit_key)

    async def redact(self, request: Request) -> Response:
        given = await self._change(request, RedactBody)
        client = self._client()
        return await self._answer(lambda: client.redact_audit(given.ref, given.reason))

    async def seal(self, request: Request) -> Response:
        given = await self._change(request, SealBody)
        client = self._client()
        return await self._answer(lambda: client.seal_audit(given.before_ms))
