"""The line to an API server: HTTP/1.1 with its TLS and its user's proof, own limits of rate, and streams that end when
they are told to.

httpx is imported when a line is opened. Requests that change nothing are asked again where the server has too much to
do (429, or 503 with Retry-After), as long as it says; what it refuses otherwise is an error of `errors` in this room.
What changes something is asked once: whether it was done, its caller looks. 401 has another proof fetched once, without
holding up those who do not ask.

A line makes RATE requests a second at most, after a start of BURST at once, so that no fault here burdens the server.
A server that is not heard of for SILENCE_S in a stream is taken for gone: bookmarks come each minute.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Self

import msgspec

from engine.external.kubernetes_api.credentials import Certificate, Credentials, Proof
from engine.external.kubernetes_api.errors import (
    KubernetesSilent,
    KubernetesUnavailable,
    KubernetesUnreadable,
    eviction_blocked,
    refusal,
    status_of,
)
from engine.external.kubernetes_api.kubeconfig import Reach
from engine.external.kubernetes_api.tls import proxy_of, tls_context
from engine.model import spans

if TYPE_CHECKING:
    import httpx

RATE = 20.0
BURST = 40
CONNECT_S = 5.0
READ_S = 30.0
SILENCE_S = 150.0
CLOSE_S = 5.0
MAX_WAITS = 4
"""Times that a request is asked again of a server that has too much to do."""
MAX_WAIT_S = 60.0
LARGEST_ANSWER = 1 << 30
LARGEST_LINE = 64 << 20
LARGEST_ERROR = 1 << 16
USER_AGENT = "muster"
DONE = frozenset([200, 201, 202])
WEBHOOK_AWAY = "failed calling webhook"
TOO_BUSY = frozenset([429, 503, 504])

Query = Mapping[str, str]


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`what` begins errors: "listing pods". `silence_s`: so long nothing may come."""

    what: str
    path: str
    method: str = "GET"
    query: Query | None = None
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"
    silence_s: float
    once: bool = False
    """It changes something, and is not asked again by itself."""


class RequestPacer:
    """Tokens of a bucket: `take` gives the seconds to wait before the next request may be made. Safe in several
    threads."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._lock = threading.Lock()
        self._left = float(burst)
        self._at = clock()

    def take(self) -> float:
        with self._lock:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._at) * self._rate) - 1.0
            self._at = now
            return max(0.0, -self._left / self._rate)


class LineStream:
    """Lines of an answer that does not end by itself."""

    def __init__(self, response: httpx.Response, what: str) -> None:
        self._response = response
        self._what = what

    def lines(self) -> Iterator[list[bytes]]:
        """Whole lines, as many as have come, until the server ends the answer. Half a line at the end is dropped: the
        change in it comes again. Raises KubernetesUnavailable when the connection breaks."""
        held = b""
        for chunk in self.chunks():
            *lines, held = (held + chunk).split(b"\n") if held else chunk.split(b"\n")
            if len(held) > LARGEST_LINE:
                raise KubernetesUnreadable(f"{self._what}: a line of more than {LARGEST_LINE >> 20} MiB came")
            if lines:
                yield [line for line in lines if line and not line.isspace()]

    def chunks(self) -> Iterator[bytes]:
        """Bytes as they come. Raises KubernetesUnavailable."""
        with _told(self._what):
            yield from self._response.iter_bytes()

    def cut(self) -> None:
        """End it from another thread, which may be waiting in it."""
        line = self._response.extensions.get("network_stream")
        plain = line.get_extra_info("socket") if line is not None else None
        if isinstance(plain, socket.socket):
            with contextlib.suppress(OSError):
                # Not of the SSLSocket: that would say goodbye first, and take its state from under the reader.
                socket.socket.shutdown(plain, socket.SHUT_RDWR)


class KubernetesTransport:
    """Safe to use from several threads."""

    def __init__(
        self,
        reach: Reach,
        *,
        rate: float = RATE,
        burst: int = BURST,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.reach = reach
        self.silence_s = silence_s
        self.credentials = Credentials(reach)
        self.closed = threading.Event()
        self.requests = 0
        """Made so far."""
        self.put_off = 0
        """Times that the server had too much to do for a request."""
        self._pacer = RequestPacer(rate, burst)
        self._proxy = proxy_of(reach)
        self._lock = threading.Condition()
        self._clients: list[httpx.Client] = []
        """The last is the one in use; the streams of the others go on."""
        self._shown: Certificate | None = None
        self._streams: set[LineStream] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all that is under way. What waits ends with KubernetesUnavailable."""
        self.closed.set()
        with self._lock:
            for stream in self._streams:
                stream.cut()
            # A connection that is read from must not be closed under its reader.
            self._lock.wait_for(lambda: not self._streams, timeout=CLOSE_S)
            for client in self._clients:
                client.close()

    def get(self, what: str, path: str, query: Query | None = None, *, accept: str = "application/json") -> bytes:
        """The body of an answer. `what` begins errors: "listing pods". Raises KubernetesRefused and
        KubernetesUnavailable, with what is below them."""
        return self._read(ApiRequest(what=what, path=path, query=query, accept=accept, silence_s=READ_S))

    def post(self, what: str, path: str, body: object) -> bytes:
        """The body of an answer to a question that changes nothing, such as a review of access."""
        return self._read(
            ApiRequest(what=what, path=path, method="POST", body=msgspec.json.encode(body), silence_s=READ_S)
        )

    def change(
        self, what: str, method: str, path: str, body: object, query: Query, content_type: str = "application/json"
    ) -> bytes:
        """The answer to a request that changes something: asked once. Raises KubernetesRefused where it was not done,
        and KubernetesUnavailable where nobody knows."""
        return self._read(
            ApiRequest(
                what=what, path=path, method=method, query=query, body=msgspec.json.encode(body),
                content_type=content_type, silence_s=READ_S, once=True,
            )
        )  # fmt: skip

    def _read(self, request: ApiRequest) -> bytes:
        with self._streamed(request) as stream:
            return joined(stream.chunks(), request.what)

    def stream(
        self, what: str, path: str, query: Query | None, *, silence_s: float | None = None
    ) -> contextlib.AbstractContextManager[LineStream]:
        """An answer of 200 that is read as it comes. `silence_s`: so long nothing may come."""
        return self._streamed(ApiRequest(what=what, path=path, query=query, silence_s=silence_s or self.silence_s))

    @contextlib.contextmanager
    def _streamed(self, request: ApiRequest) -> Iterator[LineStream]:
        response = self._answered(request)
        stream = LineStream(response, request.what)
        with self._lock:
            self._streams.add(stream)
        try:
            with contextlib.closing(response):
                if self.closed.is_set():
                    raise _closed(request.what)
                yield stream
        finally:
            with self._lock:
                self._streams.discard(stream)
                self._lock.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait so long; True at once where the line is closed."""
        return self.closed.wait(seconds)

    # -- one request --------------------------------------------------------------------------------------------------

    def _answered(self, request: ApiRequest) -> httpx.Response:
        what, again, waits = request.what, True, 0
        while True:
            proof = self.credentials.proof()
            response = self._sent(request, proof)
            if response.status_code in DONE:
                return response
            wait_s = _wait_s(response)
            with contextlib.closing(response), _told(what):
                said = b"".join(_up_to(response, LARGEST_ERROR))
            if response.status_code == 401 and again and self.credentials.refused(proof):
                again = False  # what was not let in changed nothing
            elif response.status_code in TOO_BUSY and wait_s and waits < MAX_WAITS and not request.once:
                waits += 1
                self.put_off += 1
                if self.wait(min(wait_s, MAX_WAIT_S)):
                    raise _closed(what)
            else:
                raise _error(what, response.status_code, said, wait_s)

    def _sent(self, request: ApiRequest, proof: Proof) -> httpx.Response:
        import httpx

        if self.wait(self._pacer.take()):
            raise _closed(request.what)
        client = self._client_for(proof)
        headers = [("Accept", request.accept), ("User-Agent", USER_AGENT), *proof.headers]
        headers += spans.traceparent().items()
        headers += [("Content-Type", request.content_type)] if request.body is not None else []
        headers += [("Accept-Encoding", "identity")] if self.reach.cluster.disable_compression else []
        built = client.build_request(
            request.method,
            self.reach.cluster.server + request.path,
            params=request.query,
            content=request.body,
            headers=headers,
            timeout=httpx.Timeout(request.silence_s, connect=CONNECT_S),
        )
        self.requests += 1
        try:
            with _told(request.what):
                return client.send(built, stream=True)
        except RuntimeError:
            if self.closed.is_set():  # the client of a line that was closed a moment ago
                raise _closed(request.what) from None
            raise

    def _client_for(self, proof: Proof) -> httpx.Client:
        """The client that shows the certificate of the proof; a new one where a plugin gave another."""
        import httpx

        with self._lock:
            if not self._clients or proof.certificate != self._shown:
                context = tls_context(self.reach, proof.certificate)
                limits = httpx.Limits(max_connections=None, max_keepalive_connections=4)
                transport = httpx.HTTPTransport(
                    verify=context, trust_env=False, limits=limits, proxy=self._proxy or None
                )
                self._clients.append(httpx.Client(transport=transport, trust_env=False))
                self._shown = proof.certificate
            return self._clients[-1]


def joined(chunks: Iterable[bytes], what: str) -> bytes:
    """A whole answer. Raises KubernetesUnreadable where it is larger than LARGEST_ANSWER."""
    found, size = [], 0
    for chunk in chunks:
        size += len(chunk)
        if size > LARGEST_ANSWER:
            raise KubernetesUnreadable(f"{what}: the answer is larger than {LARGEST_ANSWER >> 20} MiB")
        found.append(chunk)
    return b"".join(found)


def _up_to(response: httpx.Response, most: int) -> Iterator[bytes]:
    size = 0
    for chunk in response.iter_bytes():
        yield chunk
        size += len(chunk)
        if size >= most:
            return


def _wait_s(response: httpx.Response) -> float:
    """Seconds of Retry-After; 1 for a 429 that names none, as no date is ever given here."""
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return 1.0 if response.status_code == 429 else 0.0


def _error(what: str, code: int, body: bytes, wait_s: float) -> Exception:
    status = status_of(body)
    if code == 429 and (blocked := eviction_blocked(what, status)) is not None:
        return blocked
    if code in TOO_BUSY or code >= 500:
        said = status.message or f"HTTP {code}"
        return KubernetesUnavailable(
            f"{what}: the API server says: {said}", "It is tried again", wait_s=wait_s, answered=True,
            # Too many requests are not begun; what a webhook was not asked about is not written.
            undone=code == 429 or WEBHOOK_AWAY in said,
        )  # fmt: skip
    if code < 400:
        return KubernetesUnreadable(f"{what}: an answer of HTTP {code} came", "Is it an API server of Kubernetes?")
    return refusal(what, code, status)


def _closed(what: str) -> KubernetesUnavailable:
    return KubernetesUnavailable(f"{what}: it was stopped here")


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Errors of httpx as ours."""
    import httpx

    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError, httpx.PoolTimeout) as error:
        raise KubernetesUnavailable(f"{what}: nobody answers: {_short(error)}", _remedy(error)) from None
    except httpx.TimeoutException:
        raise KubernetesSilent(f"{what}: the API server fell silent", "It is tried again") from None
    except (httpx.HTTPError, httpx.StreamError, OSError) as error:
        raise KubernetesUnavailable(f"{what}: the line broke: {_short(error)}", "It is tried again") from None


def _remedy(error: Exception) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "Give the cluster's certificate-authority, or tls-server-name where it goes by another name"
    return "Is the API server up, and is the server of this context its address?"


def _short(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__
