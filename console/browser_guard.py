"""Refuses what a web page could have a browser send: nothing here is meant for one, and a browser brings along what its
user may do."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from console.http_answers import Forbidden, refusal


class BrowserGuard:
    """Refuses any Origin, whatever a browser says that a page asked for, and, in the clear, a foreign Host (DNS
    rebinding; by TLS such a page has no certificate for the name)."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refused = self._why_not(dict(scope["headers"]), scope["scheme"] == "https")
            if refused:
                await refusal(Forbidden(refused, "Use the muster command or an HTTP client"))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _why_not(self, headers: Mapping[bytes, bytes], tls: bool) -> str:
        if b"origin" in headers or headers.get(b"sec-fetch-site", b"none") != b"none":
            return "requests of web pages are not served"
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return "" if tls or name in self._hosts else f"host {host[:80]!a} is not served here"
