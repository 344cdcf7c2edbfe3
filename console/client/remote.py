"""The client of an engine in another process: HTTP over a Unix socket or TCP. Safe to use from several threads.

A console keeps one live line (`LiveLine`) for everything it waits for: a new version of the cell, the presence of
others, a vote. The engine sends these as they happen (`console.server.watching`), and the waiting threads of this
process wake. The line is an optimisation: while it is broken, or something in between holds streams back, each caller
waits by a long poll that starts at the last version seen, so nothing is missed. The line reconnects by itself, with a
random delay so that many consoles do not reconnect at once.
"""

from __future__ import annotations

import contextlib
import copy
import random
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from console.client.presence import PresenceAsk, Present
from console.client.protocol import Client, Login
from console.client.questions import (
    AS_OF,
    Arguments,
    ServiceQuestion,
    decoder,
    question_of,
    refuse_past,
    refuse_read_only,
)
from engine.model.errors import BusyError, MusterError, NotSentError, SpecError, UnreachableError, of_code
from engine.model.overviews import Changes
from runbooks.gate.approval_policy import Caller

if TYPE_CHECKING:
    import ssl

    from console.client.credentials import Identity


PACE_S = 1.0
"""Shortest time between two messages about the cell's version: a console draws no more often. The first after a rest
comes at once."""
RETRY_S = (0.5, 1.0, 2.0, 4.0, 8.0)
FRUITLESS = 3
"""Connected lines in a row without any message, after which something in between is taken to hold streams back."""
SPOILED_S = 300.0
"""Seconds for which no line is tried then."""
EventLines = Iterator[tuple[str, bytes]]
"""(event, data) one after the other."""


class LiveLine:
    """The live line of one client. `stream` opens it with these parameters, and raises MusterError when it ends or
    breaks."""

    def __init__(self, stream: Callable[[dict[str, str]], contextlib.AbstractContextManager[EventLines]]) -> None:
        self._stream = stream
        self._moved = threading.Condition()
        self._closed = threading.Event()
        self._again = threading.Event()
        """Somebody wants the line anew, or it is to be closed."""
        self._thread: threading.Thread | None = None
        self._session = ""
        self._up = False
        self._version, self._at_ms = -1, 0
        self._present: Present | None = None
        self.records = -1
        """A number that is another one when somebody voted, proposed or decided; -1: not known."""

    def close(self) -> None:
        """Returns at once; the thread ends with the next message from the engine."""
        self._closed.set()
        self._again.set()
        self._fallen()

    # -- who waits ----------------------------------------------------------------------------------------------------

    def changes(self, after: int, wait_s: float) -> Changes | None:
        """The cell's version once it is beyond `after`, or when the time is up; None while the line is down."""
        self._begin()
        with self._moved:
            self._moved.wait_for(lambda: self._version > after or not self._up, wait_s if self._up else 0)
            if not self._up:
                return None
            return Changes(version=self._version, at_ms=self._at_ms, items=(), missed=0)

    def others(self, session: str, after: int, wait_s: float) -> Present | None:
        """Everybody here but the console of that session; None where it is not known."""
        self._begin(session)
        with self._moved:

            def told() -> bool:
                return not self._up or self._present is None or self._present.serial > after

            self._moved.wait_for(told, wait_s)
            return self._present if self._up else None

    def _begin(self, session: str = "") -> None:
        with self._moved:
            if session and session != self._session:
                self._session, self._present = session, None
                self._again.set()
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._follow, daemon=True, name="muster-line")
                self._thread.start()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        tries = fruitless = 0
        while not self._closed.is_set():
            self._again.clear()
            came, reached = False, True
            try:
                with contextlib.closing(self._words()) as words:
                    for _ in words:
                        came = True
                        if self._again.is_set():
                            break
            except NotSentError:
                reached = False
            except SpecError:
                self._version = -1  # an engine that has less behind it than the one before
            except Exception:  # whatever it is, long polls do without the line
                pass
            self._fallen()
            if self._again.is_set():
                continue
            tries = 0 if came else tries + 1
            fruitless = 0 if came else fruitless + reached
            if fruitless >= FRUITLESS:
                fruitless, pause_s = 0, SPOILED_S
            else:
                pause_s = RETRY_S[min(tries, len(RETRY_S) - 1)]
            self._again.wait(pause_s * random.uniform(0.5, 1.5))

    def _words(self) -> Generator[None]:
        """Take each message, and wake the threads that wait for it."""
        params = {"items": "0", "pace_s": f"{PACE_S:g}", "after": str(self._version), "session": self._session}
        with self._stream({name: value for name, value in params.items() if value}) as said:
            for event, data in said:
                self._take(event, data)
                yield

    def _take(self, event: str, data: bytes) -> None:
        with self._moved:
            if event == "changes":
                found = decoder(Changes).decode(data)
                self._version, self._at_ms, self._up = found.version, found.at_ms, True
            elif event == "present":
                self._present = decoder(Present).decode(data)
            elif event == "absent":
                self._present = None
            elif event == "gate":
                self.records = decoder(dict[str, int]).decode(data)["serial"]
            else:
                return
            self._moved.notify_all()

    def _fallen(self) -> None:
        """Mark the line as down: callers ask for themselves."""
        with self._moved:
            self._up, self._present, self.records = False, None, -1
            self._moved.notify_all()


def words_of(lines: Iterator[str]) -> EventLines:
    """Server-sent events of a stream's lines, as (event, data)."""
    event = ""
    for line in lines:
        name, _, text = line.partition(": ")
        if name == "event":
            event = text
        elif name == "data":
            yield event, text.encode()


T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
"""Longest wait for an answer: a large submission or a simulation on a fork may take seconds."""
LONGEST_WAIT_S = 30.0
"""Longest single long poll; the server holds none longer than a minute."""
SILENT_S = 10.0
"""A stream that says nothing for so long is broken: the server says something every second."""
BUSY_S = 10.0
"""Seconds for which a client repeats a request to a busy engine."""
WHOAMI = question_of(Client.whoami)
MAX_BODY_BYTES = 64 * 2**20
"""What the server accepts in one request."""


class RemoteClient(Client, Login):
    """Asks a server what `console.client.protocol` declares.

    `where` is the path of a Unix socket (also `unix:PATH`), or a URL such as `http://127.0.0.1:7373`.
    """

    def __init__(
        self,
        where: str,
        read_only: bool = False,
        identity: Identity | None = None,
        *,
        patience_s: float = READ_TIMEOUT_S,
        live: bool = False,
    ) -> None:
        """`identity` signs what is asked for in another name than the account's own. `patience_s`: longest wait for an
        answer, besides what a question itself may be held for. `live`: what is waited for comes on one line, which
        is kept (`console.client.remote`)."""
        self.read_only = read_only
        self._identity = identity
        self._caller: Caller | None = None
        self._where = where
        self._patience_s = patience_s
        certificate = identity.certificate if identity is not None else None
        self._http = http_client(where, patience_s, certificate)
        token = identity.token(where) if identity is not None else ""
        if token:
            self._http.headers["authorization"] = f"Bearer {token}"
        self._line = LiveLine(self._event_stream) if live else None
        self._as_of_ms = 0
        """Cell time as of which it asks; 0: now."""

    def as_of(self, at_ms: int) -> RemoteClient:
        other = copy.copy(self)
        other.read_only, other._as_of_ms, other._line = True, at_ms, None
        return other

    def changes(self, after: int, wait_s: float, limit: int = 500) -> Changes:
        wait_s = min(max(wait_s, 0.0), LONGEST_WAIT_S)
        waited = self._line.changes(after, wait_s) if self._line is not None and wait_s else None
        if waited is not None:
            if not limit or waited.version <= after:
                return waited
            wait_s = 0.0
        found = super().changes(after, wait_s, max(1, limit))
        return found if limit else msgspec.structs.replace(found, items=(), missed=0)

    def follow(self, after: int = -1) -> Iterator[Changes]:
        missed = 0
        with self._event_stream({"after": str(after)}) as said:
            for event, data in said:
                if event == "missed":
                    missed += self._decoded(data, dict[str, int])["missed"]
                else:
                    found = self._decoded(data, Changes)
                    yield msgspec.structs.replace(found, missed=found.missed + missed)
                    missed = 0
        raise UnreachableError(f"the engine at {self._where} ended the stream", "It is stopping; follow again later")

    @contextlib.contextmanager
    def _event_stream(self, params: dict[str, str]) -> Iterator[EventLines]:
        """Messages of the event stream. Raises MusterError when it cannot be opened, or breaks."""
        asked: dict[str, Any] = {"params": params, "timeout": httpx.Timeout(SILENT_S, connect=CONNECT_TIMEOUT_S)}
        with (
            self._as_our_errors(),
            self._connection_errors(),
            self._http.stream("GET", "/v1/events", **asked) as answer,
        ):
            if answer.status_code != 200:
                answer.read()
                raise self._error(answer)
            yield words_of(answer.iter_lines())

    def records(self) -> int:
        return self._line.records if self._line is not None else -1

    def whoami(self, proved: bool = False) -> Caller:
        known = super().whoami(proved)
        person = self._identity.person if self._identity is not None else ""
        return msgspec.structs.replace(known, acts_as=person, asked_ns=time.monotonic_ns())

    def present(self, ask: PresenceAsk) -> Present:
        if self._line is not None and ask.wait_s and ask.after >= 0 and not ask.leaves:
            told = self._line.others(ask.session, ask.after, ask.wait_s)
            if told is not None:
                return told
        return super().present(ask)

    def call_as_agent(self, what: str, body: object, kind: type[T]) -> T:
        """Send an agent's report from a node, and return the answer (`console.server.agents`)."""
        if self.read_only:
            raise refuse_read_only()
        return self._last("POST", f"/v1/agents/{what}", kind, content=_encoded(body))

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        if not self._as_of_ms:
            self._http.close()

    def _answer_to(self, question: ServiceQuestion, arguments: Arguments) -> Any:
        changes, signed = question.changes_with(arguments), question.signed_with(arguments)
        if changes and self.read_only:
            raise refuse_past(self._as_of_ms) if self._as_of_ms else refuse_read_only()
        waits_s = question.waits_s(**arguments) if question.waits_s is not None else 0.0
        if "wait_s" in arguments:
            waits_s = arguments["wait_s"] = min(max(arguments["wait_s"], 0.0), LONGEST_WAIT_S)
        path, query, body = question.sent(arguments)
        request: dict[str, Any] = {"params": query} if query else {}
        if body is not None:
            request["content"] = _encoded(body)
        if waits_s:
            request["timeout"] = self._patient(waits_s)
        if changes and question.keyed:
            return self._change(question.method, path, question.gives, **request)
        if signed:
            request["headers"] = self._signature_headers(question.method, path, request.get("content", b""))
        ask = self._last if signed or question.once else self._read
        return ask(question.method, path, question.gives, **request)

    def _patient(self, wait_s: float) -> httpx.Timeout:
        """Timeout for a question that the server may hold that long."""
        most_s = self._patience_s
        return httpx.Timeout(most_s, connect=min(CONNECT_TIMEOUT_S, most_s), read=wait_s + most_s)

    def _read(self, method: str, path: str, kind: type[T], **request: Any) -> T:
        """A request without effect: tried once more when the connection had been closed in the meantime."""
        try:
            return self._ask(method, path, kind, **request)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            return self._last(method, path, kind, **request)

    def _change(self, method: str, path: str, kind: type[T], *, content: bytes, **request: Any) -> T:
        """With a key it takes effect once, however often it is sent; a signature holds for one time only."""
        key = {"Idempotency-Key": str(uuid.uuid4())}

        def headers() -> dict[str, str]:
            return key | self._signature_headers(method, path, content)

        try:
            return self._ask(method, path, kind, content=content, headers=headers(), **request)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            try:
                return self._last(method, path, kind, content=content, headers=headers(), **request)
            except NotSentError as error:
                # The second try never left; the first may have arrived.
                raise UnreachableError(
                    f"the engine at {self._where} ended before it answered: {error.problem}",
                    "Check before you repeat it: the request may have taken effect",
                ) from None

    def _signature_headers(self, method: str, path: str, content: bytes) -> dict[str, str]:
        if self._identity is None or not self._identity.person:
            return {}
        if self._caller is None:
            self._caller = self._read("GET", WHOAMI.path, Caller)
        return self._identity.headers(self._caller, method, path, content)

    def _last(self, method: str, path: str, kind: type[T], **request: Any) -> T:
        with self._connection_errors():
            return self._ask(method, path, kind, **request)

    @contextlib.contextmanager
    def _connection_errors(self) -> Iterator[None]:
        try:
            yield
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            raise UnreachableError(
                f"the engine at {self._where} closed the connection before it answered",
                "Check it with `muster doctor`; the request may have taken effect",
            ) from None

    def _ask(self, method: str, path: str, kind: type[T], **request: Any) -> T:
        """Send a request. When the engine is busy it is sent again for a while: nothing was done."""
        until = time.monotonic() + BUSY_S
        while True:
            answer = self._answer(method, path, **request)
            if answer.status_code == 200:
                return self._decoded(answer.content, kind)
            error = self._error(answer)
            pause_s = _pause_s(answer)
            # A signature is used up.
            signed = "muster-signed" in request.get("headers", {})
            if signed or not isinstance(error, BusyError) or time.monotonic() + pause_s > until:
                raise error
            time.sleep(pause_s)

    def _answer(self, method: str, path: str, **request: Any) -> httpx.Response:
        if self._as_of_ms:
            request["headers"] = {**request.get("headers", {}), AS_OF: str(self._as_of_ms)}
        with self._as_our_errors():
            return self._http.request(method, path, **request)

    @contextlib.contextmanager
    def _as_our_errors(self) -> Iterator[None]:
        """Turn failures to reach the engine into our errors. A connection that broke is left to the caller."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _no_engine(self._where, error) from None
        except httpx.TimeoutException:
            raise UnreachableError(f"the engine at {self._where} does not answer", "Try again; see its log") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise SpecError("connect", f"{self._where[:120]!a}: {error}", _FORMS) from None
        except RuntimeError:
            # httpx says so when another thread closed the client.
            raise UnreachableError("this client is closed", "Reconnect") from None

    def _decoded(self, content: bytes, kind: type[T]) -> T:
        try:
            found: T = decoder(kind).decode(content)
            return found
        except msgspec.MsgspecError as error:
            raise MusterError(
                f"the answer of {self._where} is not understood ({error})",
                "Use the same version of Muster on both sides",
            ) from None

    def _error(self, answer: httpx.Response) -> MusterError:
        try:
            body = msgspec.json.decode(answer.content, type=dict[str, str])
            code, problem = body["code"], body["problem"]
        except (msgspec.MsgspecError, KeyError):
            return MusterError(
                f"{self._where} answered {answer.status_code} and is not a Muster engine", "Check the address"
            )
        return of_code(code, problem, body.get("remedy", ""))


_FORMS = "Give the path of a Unix socket or a URL such as http://127.0.0.1:7373"


def http_client(where: str, patience_s: float, certificate: tuple[str, str] | None = None) -> httpx.Client:
    timeout = httpx.Timeout(patience_s, connect=min(CONNECT_TIMEOUT_S, patience_s))
    headers = {"Content-Type": "application/json"}
    # Proxies of the environment are for the web, not for the engine: trust_env=False.
    if "://" in where:
        url = urlsplit(where)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise SpecError("connect", f"an engine is not reached by {url.scheme[:20]!a}", _FORMS)
        # Certificates take longer to load than everything else here.
        verify = _trusted(certificate) if url.scheme == "https" else False
        return httpx.Client(base_url=where, timeout=timeout, headers=headers, trust_env=False, verify=verify)
    transport = httpx.HTTPTransport(uds=where.removeprefix("unix:"), verify=False)
    return httpx.Client(
        transport=transport, base_url="http://muster", timeout=timeout, headers=headers, trust_env=False
    )


def _pause_s(answer: httpx.Response) -> float:
    """Pause that the answer asks for, with a random part so that many callers do not come back at once."""
    told = answer.headers.get("retry-after", "1")
    return (int(told) if told.isdigit() else 1) * random.uniform(1.0, 1.5)


def _trusted(certificate: tuple[str, str] | None) -> ssl.SSLContext:
    """TLS context with this system's authorities; SSL_CERT_FILE names a site's own. `certificate`: files of our
    certificate and its key. Raises SpecError."""
    import ssl

    context = ssl.create_default_context()
    if certificate is not None:
        try:
            context.load_cert_chain(*certificate, password="")
        except (OSError, ssl.SSLError) as error:
            raise SpecError(
                "client_cert", f"{certificate[0]} with {certificate[1]}: {error}",
                "Give PEM files that belong together, the key without a passphrase",
            ) from None  # fmt: skip
    return context


def _encoded(value: object) -> bytes:
    try:
        body = msgspec.json.encode(value)
    except UnicodeEncodeError:
        raise SpecError("request", "has text that is not UTF-8", "Give valid Unicode") from None
    if len(body) > MAX_BODY_BYTES:
        limit = MAX_BODY_BYTES // 2**20
        raise SpecError("request", f"is {len(body) // 2**20} MiB , and the limit is {limit} MiB", "Split it")
    return body


def _no_engine(where: str, error: Exception) -> NotSentError:
    why = str(error).removeprefix("[Errno ").partition("] ")[2] or str(error)
    where = where.rpartition("://")[2]  # as a URL it would be shown broken, as all links are
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return NotSentError(
            f"the certificate of {where} is not trusted here ({why})",
            "For a private certificate authority, set SSL_CERT_FILE to its PEM file",
        )
    return NotSentError(f"no engine answers at {where} ({why})", "Start one with `muster` or `muster serve`")
