"""The line to slurmrestd: HTTP over a Unix socket or TCP, with the tokens that TCP asks for.

Only this module and its like for Kubernetes speak HTTP in the engine (import-linter holds it so), and httpx is imported
when a line is opened. The number of requests at a time and the size of answers are bounded.

Reads keep connections alive, and are asked once more when a kept one turns out dead. Writes use a new connection each
and are never repeated: if the connection could not be made, nothing was asked. While slurmctld is down slurmrestd holds
every request for half a minute (MessageTimeout), so after a failure a ping that waits PING_S precedes the next request.

Tokens are JWTs that slurmctld signs, by default for half an hour. A token is read from a file that somebody keeps fresh
(`scontrol token`, a cron job, a secret store), and read again when the file changes or Slurm no longer takes it. It is
never logged, and no text made here holds it.
"""

from __future__ import annotations

import base64
import binascii
import ssl
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from engine.external.slurm.capabilities import SlurmUnavailable, SlurmUnreadable
from engine.model import spans
from engine.model.errors import SpecError

if TYPE_CHECKING:
    import httpx

    from engine.external.answer_cutter import Cutter


LONGEST = 16_384


class TokenFile:
    """The token in a file: bare, or as `scontrol token` prints it (`SLURM_JWT=...`). Safe in several threads."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._token = ""

    def __repr__(self) -> str:
        return f"TokenFile({str(self.path)!r})"

    def token(self, *, again: bool = False) -> str:
        """The token now in the file; `again` reads it even if the file looks the same. SpecError says what is wrong."""
        with self._lock:
            try:
                about = self.path.stat()
                if about.st_mode & stat.S_IRWXO:
                    raise ValueError("can be read by everybody on this machine")
                stamp = (about.st_mtime_ns, about.st_size, about.st_ino)
                if again or stamp != self._stamp:
                    self._token = _only_token(self.path.read_bytes()[: LONGEST + 1])
                    self._stamp = stamp
            except OSError as error:
                raise SpecError(
                    "slurm token file", f"{self.path}: {error.strerror}", "Give a file with a token"
                ) from None
            except ValueError as error:
                remedy = f"chmod 600 {self.path}" if "everybody" in str(error) else _HOW
                raise SpecError("slurm token file", f"{self.path}: {error}", remedy) from None
            return self._token

    def user(self) -> str:
        """Return whom the token is for, by its own word; empty when it does not say. Slurm checks it, not we."""
        said = _claims(self.token()).get("sun")
        return said if isinstance(said, str) and said.isascii() and said.isprintable() else ""

    def expires_s(self) -> int:
        """Unix second from which Slurm no longer takes it; 0 = it does not say."""
        said = _claims(self.token()).get("exp")
        return int(said) if isinstance(said, int | float) else 0


_HOW = "Make one with `scontrol token username=NAME lifespan=SECONDS`"


def _only_token(content: bytes) -> str:
    try:
        text = content.decode("ascii").strip()
    except UnicodeDecodeError:
        raise ValueError("holds bytes that are not text, and no token") from None
    text = text.removeprefix("SLURM_JWT=").strip()
    if not text:
        raise ValueError("is empty")
    if len(text) > LONGEST or any(letter.isspace() or not letter.isprintable() for letter in text):
        raise ValueError("holds more than one token, or none")
    return text


def _claims(token: str) -> dict[str, Any]:
    """Return the claims of a JWT, unchecked; empty when it is no JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return {}
    return claims if isinstance(claims, dict) else {}


IN_FLIGHT = 6
"""More workers only lengthen slurmctld's tail (measured: 32 give half the rate of 8)."""
CONNECT_S = 2.0
PING_S = 3.0
PING_AGAIN_S = 2.0
"""After a ping without an answer, this long nobody is asked at all."""
BELIEVE_PING_S = 30.0
"""After this long one request is made whatever the ping says: a ping may have reasons of its own to fail."""
LARGEST_ANSWER = 2 << 30
"""Bytes. 100,000 jobs of v0.0.42 are 0.8 GB."""
LONGEST_ANSWER_S = 300.0
"""For all of an answer: one that comes drop by drop would keep a place in the line for ever."""


class SlurmAddress(msgspec.Struct, frozen=True):
    """The address of a slurmrestd: a Unix socket, or a URL."""

    url: str
    socket: str = ""

    def __str__(self) -> str:
        return f"unix:{self.socket}" if self.socket else self.url

    @property
    def local(self) -> bool:
        """True on this machine, so that its slurm.conf may be that cluster's."""
        return bool(self.socket) or urlsplit(self.url).hostname in ("localhost", "127.0.0.1", "::1")


def where(text: str) -> SlurmAddress:
    """`unix:/run/slurmrestd.socket`, `/run/slurmrestd.socket`, `http://host:6820`, `https://host`, `host:6820`."""
    text = text.strip()
    if text.startswith(("unix:", "/")):
        path = text.removeprefix("unix:")
        path = "/" + path.lstrip("/") if path.startswith("/") else path
        if not path:
            raise SpecError("slurm", "names no socket", "Give unix:/path/of/slurmrestd.socket")
        return SlurmAddress("http://slurmrestd", path)
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.query or "@" in parts.netloc:
        raise SpecError(
            "slurm",
            f"{text[:200]!r} is not the address of a slurmrestd",
            "Give unix:/path/of/slurmrestd.socket, http://HOST:PORT or https://HOST:PORT",
        )
    return SlurmAddress(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}")


class SlurmTransport:
    """Safe to use from several threads. `alive` asks, by a short ping, whether slurmctld answers."""

    def __init__(
        self,
        place: SlurmAddress,
        user: str,
        tokens: TokenFile | None,
        *,
        read_s: float,
        in_flight: int = IN_FLIGHT,
        largest: int = LARGEST_ANSWER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place = place
        self.user = user
        self.tokens = tokens
        self.read_s = read_s
        self.largest = largest
        self._clock = clock
        self._room = threading.BoundedSemaphore(in_flight)
        self._kept = _client(place, read_s, in_flight)
        self._fresh = _client(place, read_s, 0)
        self._failed_at: float | None = None
        self._silent_until = 0.0
        self._why = ""
        self.alive: Callable[[], bool] = lambda: True

    def close(self) -> None:
        self._kept.close()
        self._fresh.close()

    def get(
        self,
        path: str,
        query: dict[str, str] | None = None,
        *,
        read_s: float | None = None,
        cutter: Callable[[], Cutter[Any]] | None = None,
    ) -> tuple[int, bytes]:
        """Status and body. SlurmUnavailable when nobody answers: with `arrived` false, as a read changes nothing. With
        `cutter` one of its making takes the body as it comes, and what it leaves is the body."""
        self._look_first()
        try:
            return self._ask("GET", path, query or {}, None, read_s, cutter)
        except SlurmUnavailable as error:
            error.arrived = False
            raise

    def write(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        """Status and body. SlurmUnavailable says by `arrived` whether it may have had its effect."""
        self._look_first()
        return self._ask(method, path, {}, msgspec.json.encode(body) if body is not None else None, None)

    def ping(self, path: str) -> tuple[int, bytes]:
        """A get that waits PING_S, and is made whatever failed before."""
        try:
            return self._once(self._kept, "GET", path, {}, None, PING_S)
        except SlurmUnavailable as error:
            error.arrived = False
            raise

    def failed(self, why: str) -> None:
        """A request came back without a word of slurmctld."""
        self._failed_at = self._clock()
        self._why = why

    def _look_first(self) -> None:
        """After a failure: returns once a ping is answered, or when it is time to try without."""
        if self._failed_at is None or self._clock() - self._failed_at > BELIEVE_PING_S:
            return
        if self._clock() >= self._silent_until:
            if self._answers():
                self._failed_at = None
                return
            self._silent_until = self._clock() + PING_AGAIN_S
        raise SlurmUnavailable(self._why, "It is asked again in a moment", arrived=False)

    def _answers(self) -> bool:
        try:
            return self.alive()
        except SlurmUnavailable as error:
            self._why = error.problem
            return False

    def _ask(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: bytes | None,
        read_s: float | None,
        cutter: Callable[[], Cutter[Any]] | None = None,
    ) -> tuple[int, bytes]:
        try:
            try:
                client = self._kept if method == "GET" else self._fresh
                answer = self._once(client, method, path, query, body, read_s or self.read_s, cutter)
            except _Cut:
                if method != "GET":
                    raise
                answer = self._once(self._fresh, method, path, query, body, read_s or self.read_s, cutter)
        except SlurmUnavailable as error:
            self.failed(error.problem)
            raise
        self._failed_at = None
        return answer

    def _once(
        self,
        client: httpx.Client,
        method: str,
        path: str,
        query: dict[str, str],
        body: bytes | None,
        read_s: float,
        cutter: Callable[[], Cutter[Any]] | None = None,
    ) -> tuple[int, bytes]:
        import httpx

        if not self._room.acquire(timeout=read_s):
            raise SlurmUnavailable(f"{self.place}: too many requests are under way already", arrived=False)
        try:
            timeout = httpx.Timeout(read_s, connect=CONNECT_S)
            request = client.build_request(
                method, path, params=query, content=body, headers=self._headers(body), timeout=timeout
            )
            response = client.send(request, stream=True)
            try:
                return response.status_code, self._body(response, cutter() if cutter is not None else None)
            finally:
                response.close()
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol) as error:
            raise SlurmUnavailable(
                f"nobody answers at {self.place}: {_short(error)}", "Is slurmrestd running?", arrived=False
            ) from None
        except httpx.TimeoutException:
            raise SlurmUnavailable(
                f"{self.place} gave no answer in {read_s:.0f} s", "slurmctld may be down or overloaded: see `sdiag`"
            ) from None
        except httpx.RemoteProtocolError as error:
            raise _Cut(f"{self.place} does not speak HTTP to its end: {_short(error)}", "Is it slurmrestd?") from None
        except httpx.HTTPError as error:
            raise _Cut(f"the line to {self.place} broke: {_short(error)}", "It is tried again") from None
        finally:
            self._room.release()

    def _headers(self, body: bytes | None) -> dict[str, str]:
        headers = {"Accept": "application/json", **spans.traceparent()}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.tokens:
            headers["X-SLURM-USER-TOKEN"] = self.tokens.token()
            user = self.user or self.tokens.user()
            if user:
                headers["X-SLURM-USER-NAME"] = user
        elif self.user:
            headers["X-SLURM-USER-NAME"] = self.user
        return headers

    def _body(self, response: httpx.Response, cutter: Cutter[Any] | None) -> bytes:
        chunks: list[bytes] = []
        size, until = 0, self._clock() + LONGEST_ANSWER_S
        for chunk in response.iter_bytes():
            size += len(chunk)
            if size > self.largest:
                raise SlurmUnreadable(
                    f"{self.place} answers with more than {self.largest >> 20} MiB", "Has it more than 200,000 jobs?"
                )
            if self._clock() > until:
                raise SlurmUnreadable(f"{self.place} took more than {LONGEST_ANSWER_S:.0f} s for an answer")
            if cutter is not None:
                cutter.feed(chunk)
            else:
                chunks.append(chunk)
        return b"".join(chunks) if cutter is None else cutter.rest()


class _Cut(SlurmUnavailable):
    """The connection ended in the middle; of a kept one that may only mean that it was old."""


def _client(place: SlurmAddress, read_s: float, kept: int) -> httpx.Client:
    import httpx

    secure = place.url.startswith("https:")
    transport = httpx.HTTPTransport(
        verify=ssl.create_default_context() if secure else False,
        uds=place.socket or None,
        trust_env=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=kept, keepalive_expiry=30.0),
    )
    return httpx.Client(base_url=place.url, transport=transport, timeout=read_s, trust_env=False)


def _short(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__
