"""That every answer says a state version, also a refusal, a probe, and what is no HTTP at all.

An answer that shows the cell says itself which version that is (`console.request_handler`). For all others there is one
place, around everything else: it puts in the version that readers are shown at that moment, which is a number in
memory, and waits for nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from console.request_handler import VERSION

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NAME = VERSION.encode()
_NO_HTTP = msgspec.json.encode(
    {"code": "invalid", "problem": "the request is no HTTP/1.1", "remedy": "Send one request after the other, whole"}
)


class Versioned:
    """The whole service as it is served. `shown` gives the version that readers are shown; on any thread."""

    def __init__(self, app: ASGIApp, shown: Callable[[], int]) -> None:
        self._app = app
        self._shown = shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def saying(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.setdefault("headers", [])
                if not any(name == _NAME for name, _ in headers):
                    headers.append((_NAME, b"%d" % self._shown()))
            await send(message)

        await self._app(scope, receive, saying)

    def no_http(self) -> bytes:
        """All that is sent to who sends what cannot be read as a request."""
        head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        head += f"content-length: {len(_NO_HTTP)}\r\n{VERSION}: {self._shown()}\r\n\r\n"
        return head.encode() + _NO_HTTP


class SaysVersion:
    """Mixed into one of uvicorn's HTTP protocols, before it in the order of bases: what it answers by itself."""

    app: Any
    transport: Any

    def send_400_response(self, msg: str) -> None:
        self.transport.write(self.app.no_http())
        self.transport.close()
