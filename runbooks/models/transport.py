"""The only way out of the child: one POST to one address, one bounded answer back.

The SDK and httpx2 follow redirects, unpack bodies, read without limit and keep cookies. So the request is rebuilt here
from its method, path and body. The connection goes to the pinned host and port only and is closed after one answer.
Bytes are counted as they arrive, before any parser. Only a status and a body are handed back.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any

import httpcore2
import httpx2

HEAD_BYTES = 16 * 1024
"""Of status lines and headers, interim answers with them."""
FRAMING_BYTES = 32 * 1024
"""Of chunk sizes, chunk extensions and trailers, beside an eighth of the body."""
ERROR_BYTES = 16 * 1024
"""Read of the body of an answer that is none, to see what the server minds."""
ERROR_PART = 0.25
"""Of the time that is left, at most, for reading that."""
READ_BYTES = 4096
"""Of one read: parsers work through a read without pause, so it is short."""
CLOSE_S = 0.05
_BODY_OF = frozenset({400, 404, 422, 500})
"""Statuses whose body says something that we act on."""
_RETRIED = frozenset({429, 502, 503, 504})

SocketOptions = Iterable[Any]


class TransportRefused(Exception):
    """There is no answer to read. `reason` is one of runbooks.drafts.typed_draft.REASONS or http_NNN."""

    def __init__(self, reason: str, problem: str, remedy: str = "", *, again: bool = False) -> None:
        super().__init__(problem)
        self.reason = reason
        self.problem = problem
        self.remedy = remedy
        self.again = again
        """It may be otherwise a moment later."""
        self.retry_after: str | None = None
        """What the server asks for, as it says it."""
        self.body = b""
        """The first bytes of an error's body."""


class _TooMuch(httpcore2.RemoteProtocolError):
    """More of a head than is read."""


class WireLog:
    """The bytes seen on the wire during one call, all attempts together, and the listener to tell."""

    def __init__(self, deadline: float, tell: Callable[[str, int], None]) -> None:
        self.deadline = deadline
        """On the event loop's clock."""
        self.tell = tell
        self.attempts = 0
        self.status = 0
        self.body_bytes = 0
        self.sha256 = hashlib.sha256()
        """Of the last answer's body, as far as it came."""


class Guard(httpx2.AsyncBaseTransport):
    """Sends what the SDK has made to one origin and path, as `wire` of the call under way allows."""

    def __init__(self, scheme: str, host: str, port: int, path: str, *, most_bytes: int, ca_pem: str) -> None:
        self._scheme = scheme
        self._host = host
        self._port = port
        self._path = path
        self._most = most_bytes
        self._tls = _tls(ca_pem) if scheme == "https" else None
        self.key = ""
        self.wire: WireLog | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer, if it is a whole 200 with a body of JSON. Raises TransportRefused otherwise."""
        wire = self.wire
        if wire is None or not self._is_ours(request):
            raise TransportRefused("bad_endpoint", "a request was made to another address than the endpoint's")
        wire.attempts += 1
        wire.status = 0
        wire.body_bytes = 0
        wire.sha256 = hashlib.sha256()
        meter = _Meter(self._most)
        # A pool of its own for each request: no byte of an earlier answer can be taken for a later one's.
        pool = httpcore2.AsyncConnectionPool(
            ssl_context=self._tls,
            max_connections=1,
            max_keepalive_connections=0,
            http2=False,
            retries=0,
            network_backend=_Backend(self._host, self._port, meter),
        )
        try:
            body = await self._exchange(pool, await request.aread(), wire, meter)
        except httpcore2.ConnectError as error:
            raise _no_connection(error) from None
        except (httpcore2.NetworkError, httpcore2.TimeoutException):
            if wire.status:
                raise TransportRefused("connection", "the connection broke in the middle of the answer") from None
            raise TransportRefused("connection", "the connection broke before an answer came", again=True) from None
        except httpcore2.ProtocolError as error:
            # A server that restarts closes without a word; one that has said something wrong will say it again.
            raise TransportRefused("connection", _what_is_wrong(error), again=meter.silent) from None
        except (OSError, ssl.SSLError) as error:
            raise TransportRefused("connection", f"the connection broke: {type(error).__name__}") from None
        finally:
            await _close(pool)
        return httpx2.Response(200, headers={"Content-Type": "application/json"}, content=body)

    def _is_ours(self, request: httpx2.Request) -> bool:
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        return (
            request.method == "POST"
            and (url.scheme, url.host.strip("[]"), port) == (self._scheme, self._host, self._port)
            and url.raw_path == self._path.encode()
        )

    async def _exchange(
        self, pool: httpcore2.AsyncConnectionPool, content: bytes, wire: WireLog, meter: _Meter
    ) -> bytes:
        host = f"[{self._host}]" if ":" in self._host else self._host
        usual = self._port == (443 if self._scheme == "https" else 80)
        headers = [
            ("Host", host if usual else f"{host}:{self._port}"),
            ("Accept", "application/json"),
            ("Accept-Encoding", "identity"),
            ("Connection", "close"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(content))),
            ("User-Agent", "muster"),
        ]
        if self.key:
            headers.append(("Authorization", f"Bearer {self.key}"))
        wire.tell("asking", 0)
        response = await pool.handle_async_request(
            httpcore2.Request(
                "POST",
                httpcore2.URL(
                    scheme=self._scheme.encode(),
                    host=self._host.encode(),
                    port=self._port,
                    target=self._path.encode(),
                ),
                headers=headers,
                content=content,
                extensions={"trace": _told_when_sent(wire)},
            )
        )
        wire.status = response.status
        meter.body_begins()
        if response.status != 200:
            raise await self._refusal(response, wire, meter)
        length = _length(response)
        if length is not None and length > self._most:
            raise _too_large(self._most)
        _check_form(response)
        body = bytearray()
        await _read(response, body, self._most, wire, meter)
        if len(body) > self._most:
            raise _too_large(self._most)
        return bytes(body)

    async def _refusal(self, response: httpcore2.Response, wire: WireLog, meter: _Meter) -> TransportRefused:
        """The rejection for an answer with another status than 200."""
        status = response.status
        if status in _BODY_OF:
            body = bytearray()
            left = wire.deadline - asyncio.get_running_loop().time()
            # The status is known: a body that breaks off or does not end takes nothing from that.
            with contextlib.suppress(httpcore2.NetworkError, httpcore2.ProtocolError, TimeoutError, TransportRefused):
                async with asyncio.timeout(max(left, 0) * ERROR_PART):
                    await _read(response, body, ERROR_BYTES, wire, meter)
            refused = _of_status(status)
            refused.body = bytes(body[:ERROR_BYTES])
            return refused
        refused = _of_status(status)
        asked = _values(response, b"retry-after")
        refused.retry_after = asked[0][:64].decode("latin-1") if asked else None
        return refused


class _Meter:
    """Counts one answer's bytes as they come, and says how many more may."""

    def __init__(self, most_body: int) -> None:
        self._most_body = most_body
        self._head = True
        self._raw = 0
        self.body = 0

    def body_begins(self) -> None:
        self._head = False
        self._raw = 0

    def left(self) -> int:
        """Raises when no more may come."""
        if self._head:
            if self._raw >= HEAD_BYTES:
                raise _TooMuch(f"the head of the answer is longer than {HEAD_BYTES // 1024} KiB")
            return HEAD_BYTES - self._raw
        if self._raw - self.body > FRAMING_BYTES + self.body // 8:
            raise TransportRefused("response_too_large", "the answer has more framing than text")
        return READ_BYTES

    def count(self, size: int) -> None:
        self._raw += size

    @property
    def silent(self) -> bool:
        """Notes that nothing has come."""
        return self._head and not self._raw


class _Backend(httpcore2.AsyncNetworkBackend):
    """Opens connections to one host and port, and none other, whatever it is asked for."""

    def __init__(self, host: str, port: int, meter: _Meter) -> None:
        self._host = host
        self._port = port
        self._meter = meter
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: SocketOptions | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        if (host, port) != (self._host, self._port):
            raise TransportRefused("bad_endpoint", "a connection was asked for to another address than the endpoint's")
        return _Stream(await self._network.connect_tcp(host, port), self._meter)


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection whose bytes are counted before anything parses them."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream, meter: _Meter) -> None:
        self._inner = inner
        self._meter = meter

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(min(max_bytes, READ_BYTES, self._meter.left()))
        self._meter.count(len(data))
        # A read that finds its bytes already there need not have waited: the deadline and the pipe get their turn.
        await asyncio.sleep(0)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return _Stream(await self._inner.start_tls(ssl_context, server_hostname), self._meter)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _tls(ca_pem: str) -> ssl.SSLContext:
    """Certificate and host name are always checked; by the machine's certificates, or by `ca_pem` alone."""
    if ca_pem:
        context = ssl.create_default_context(cadata=ca_pem)
    else:
        context = httpx2.create_ssl_context(verify=True, trust_env=False)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if context.verify_mode != ssl.CERT_REQUIRED or not context.check_hostname:
        raise TransportRefused("bad_endpoint", "TLS would not be checked")
    return context


def _told_when_sent(wire: WireLog) -> Callable[[str, dict[str, Any]], Any]:
    async def trace(event: str, _info: dict[str, Any]) -> None:
        if event == "http11.receive_response_headers.started":
            wire.tell("waiting", 0)

    return trace


async def _read(response: httpcore2.Response, body: bytearray, most: int, wire: WireLog, meter: _Meter) -> None:
    """Reads until the end, or just beyond `most`."""
    async for piece in response.aiter_stream():
        body += piece
        meter.body = wire.body_bytes = len(body)
        wire.sha256.update(piece)
        if len(body) > most:
            return
        wire.tell("reading", len(body))


async def _close(pool: httpcore2.AsyncConnectionPool) -> None:
    """Closes without waiting for the other side to agree."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_S):
            await pool.aclose()


def _values(response: httpcore2.Response, name: bytes) -> list[bytes]:
    return [value.strip() for key, value in response.headers if key.lower() == name]


def _length(response: httpcore2.Response) -> int | None:
    values = _values(response, b"content-length")
    return int(values[0]) if values and values[0].isdigit() and len(values[0]) <= 20 else None


def _check_form(response: httpcore2.Response) -> None:
    """Plain JSON in UTF-8, or TransportRefused."""
    encodings = [value.lower() for value in _values(response, b"content-encoding")]
    if any(value not in (b"", b"identity") for value in encodings):
        raise TransportRefused("encoding", "the answer is packed, though that was not asked for")
    types = _values(response, b"content-type")
    kind, *parameters = [part.strip().lower() for part in types[0].split(b";")] if len(types) == 1 else [b""]
    charsets = [part.partition(b"=")[2].strip(b'" ') for part in parameters if part.startswith(b"charset")]
    if kind != b"application/json" or any(charset not in (b"utf-8", b"utf8") for charset in charsets):
        raise TransportRefused(
            "content_type",
            "the answer does not say that it is JSON in UTF-8",
            "See whether model_url is the base URL of an OpenAI-compatible server",
        )


def _too_large(most: int) -> TransportRefused:
    return TransportRefused("response_too_large", f"the answer is longer than {most // 1024} KiB")


def _of_status(status: int) -> TransportRefused:
    if status in (401, 403):
        return TransportRefused(
            "auth",
            f"the server does not take the key (status {status})",
            "Set a valid MUSTER_MODEL_KEY or model_key_file and restart the engine",
        )
    if status == 404:
        return TransportRefused(
            "model_missing", "the server has no such model, or model_url is not its base URL", "Look at both settings"
        )
    if 300 <= status < 400:
        return TransportRefused(
            "redirect",
            f"the server sends us elsewhere (status {status}), which is not followed",
            "Ask whoever runs it for its base URL",
        )
    return TransportRefused(f"http_{status}", f"the server answers with status {status}", again=status in _RETRIED)


def _no_connection(error: httpcore2.ConnectError) -> TransportRefused:
    """The reason that no connection was made. An invalid certificate stays invalid on a retry."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return TransportRefused(
                "connection",
                f"the server's certificate is not trusted: {cause.verify_message.rstrip('.')}",
                "Set model_ca_file to the file of the CA that signed it",
            )
        if isinstance(cause, ssl.SSLError):
            return TransportRefused(
                "connection", "no TLS connection could be agreed on", "See whether the server speaks TLS"
            )
        cause = cause.__cause__ or cause.__context__
    return TransportRefused(
        "connection", "no connection to the server", "See whether it runs and model_url is right", again=True
    )


def _what_is_wrong(error: Exception) -> str:
    """In our words: the library's have the server's bytes in them, which may be anything, the key too."""
    words = str(error)
    if isinstance(error, _TooMuch):
        return words
    if words.startswith("Server disconnected without"):
        return "the server closed the connection without an answer"
    if words.startswith("peer closed connection without"):
        return "the answer was cut short"
    return "the answer is not HTTP/1.1 as it should be"
