"""The child process that calls a model: frames on standard input and output, one server in between.

It starts with no environment, no other descriptor and `/` as its folder (`runbooks.models.calls`), and gives up its
remaining abilities before it reads anything of a server. It ends when its standard input ends, so it cannot outlive the
engine. An alarm that it cannot hold off ends it when a call takes much too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import email.utils
import json
import os
import re
import resource
import signal
import sys
import time
from typing import Any, NamedTuple

import httpx2
import openai

from runbooks.models.frames import CALL, HEADER, LENGTH, MAX_REQUEST, OUTCOME, PROGRESS, READY, SETTINGS, frame
from runbooks.models.transport import Guard, TransportRefused, WireLog

MAX_ATTEMPTS = 4
"""Of one call: one retry, and a step down for each form that the server does not take."""
ALARM_S = 1.0
"""After the deadline: then the kernel ends this process, whatever it does."""
TICK_S = 0.01
TELL_S = 0.05
MAX_DATA_BYTES = 192 * 2**20
MAX_ADDRESS_BYTES = 2**30
MAX_FILES = 64
_PR_SET_NO_NEW_PRIVS = 38
_PROMPT_RUNG = 2

_MINDS_FORM = re.compile(
    rb"response_format|json_schema|json_object|structured|guided|grammar|schema|constrain", re.IGNORECASE
)
_NO_MODEL = re.compile(
    rb"model_not_found|model[^{}\n]{0,160}(?:not found|does not exist|not exist|unknown)", re.IGNORECASE
)


class EndpointSettings(NamedTuple):
    """The server to call, as the first frame gives it."""

    scheme: str
    host: str
    port: int
    path: str
    model: str
    deadline_ms: int
    most_bytes: int
    ca_pem: str


class Ask(NamedTuple):
    """The question, as a CALL frame gives it."""

    key: str
    messages: list[dict[str, str]]
    schema: dict[str, Any]
    schema_name: str
    max_tokens: int
    rung: int


def main() -> None:
    """Serves until standard input ends."""
    # Whatever prints to standard output shall not be taken for a frame.
    out = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    give_up_rights()
    try:
        asyncio.run(_serve(out))
    except BaseException:  # its traceback might show a prompt or the key
        os._exit(1)


def give_up_rights() -> None:
    """No file is written, no core left, memory bounded, no right gained by a program; first to go when memory lacks."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as score:
        score.write(b"1000")
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.umask(0o077)
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, MAX_FILES),
        (resource.RLIMIT_DATA, MAX_DATA_BYTES),
        (resource.RLIMIT_AS, MAX_ADDRESS_BYTES),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (most, most))


async def _serve(out: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb", buffering=0))
    settings = EndpointSettings(**json.loads(await _next(reader, SETTINGS)))
    asker = _Asker(settings, out)
    await asker.rehearse()
    _send(out, frame(READY, b""))
    while True:
        ask = Ask(**json.loads(await _next(reader, CALL)))
        # Only the end of input comes while a call is under way: nobody is left who would read its answer.
        ended = asyncio.create_task(reader.read(1))
        ended.add_done_callback(_end_unless_cancelled)
        signal.setitimer(signal.ITIMER_REAL, settings.deadline_ms / 1000 + ALARM_S)
        outcome = await asker.answer(ask)
        signal.setitimer(signal.ITIMER_REAL, 0)
        ended.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ended
        _send(out, outcome)
        del ask, outcome


async def _next(reader: asyncio.StreamReader, kind: bytes) -> bytes:
    """The next frame's payload. Ends the process at the end of input, and at a frame of another kind."""
    try:
        told, size = HEADER.unpack(await reader.readexactly(HEADER.size))
        if told != kind or size > MAX_REQUEST:
            os._exit(2)
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        os._exit(0)


def _end_unless_cancelled(task: asyncio.Task[bytes]) -> None:
    if not task.cancelled():
        os._exit(0)


def _send(out: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(out, rest) :]


class _Asker:
    """The SDK over the guarded transport, with retries and the answer's form decided here."""

    def __init__(self, settings: EndpointSettings, out: int) -> None:
        self._settings = settings
        self._out = out
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        base_url = f"{settings.scheme}://{host}:{settings.port}{settings.path}"
        self._guard = Guard(
            settings.scheme,
            settings.host,
            settings.port,
            settings.path + "/chat/completions",
            most_bytes=settings.most_bytes,
            ca_pem=settings.ca_pem,
        )
        # The guard holds the key and builds the headers: what the SDK would add or read elsewhere reaches no server.
        self._client = openai.AsyncOpenAI(
            api_key="none",
            organization="",
            project="",
            base_url=base_url,
            timeout=None,
            max_retries=0,
            default_headers={"Authorization": "none"},
            http_client=httpx2.AsyncClient(
                transport=self._guard, trust_env=False, follow_redirects=False, timeout=None, max_redirects=0
            ),
        )

    async def rehearse(self) -> None:
        """A call as far as the guard, which has nobody to send it to yet: what the SDK loads late is loaded before a
        deadline runs."""
        with contextlib.suppress(TransportRefused):
            rehearsed = WireLog(0.0, lambda _phase, _received: None)
            await self._ask(Ask("", [{"role": "user", "content": ""}], {}, "x", 1, 0), rehearsed, _Rung(0))

    async def answer(self, ask: Ask) -> bytes:
        """The OUTCOME frame of a call."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.deadline_ms / 1000
        wire = WireLog(deadline, self._teller())
        lag = _Lag()
        ticking = asyncio.create_task(lag.watch())
        self._guard.key, self._guard.wire = ask.key, wire
        rung = _Rung(ask.rung)
        body = b""
        refused = TransportRefused("", "")
        try:
            async with asyncio.timeout_at(deadline):
                body = await self._ask(ask, wire, rung)
        except TimeoutError:
            refused = _late(self._settings.deadline_ms)
        except TransportRefused as error:
            refused = error
        except MemoryError:
            os._exit(3)
        except Exception as error:
            refused = TransportRefused("worker", f"asking failed: {type(error).__name__}")
        finally:
            self._guard.key, self._guard.wire = "", None
            ticking.cancel()
        told = json.dumps(
            {
                "reason": refused.reason,
                "problem": refused.problem,
                "remedy": refused.remedy,
                "status": wire.status,
                "attempts": wire.attempts,
                "rung": rung.now,
                "bytes": wire.body_bytes,
                "sha256": wire.sha256.hexdigest() if wire.body_bytes else "",
                "stall_ms": lag.worst_ms,
            }
        ).encode()
        return frame(OUTCOME, LENGTH.pack(len(told)) + told + body)

    async def _ask(self, ask: Ask, wire: WireLog, rung: _Rung) -> bytes:
        retried = False
        tokens_name = "max_tokens"
        create: Any = self._client.chat.completions.with_raw_response.create
        while True:
            try:
                raw = await create(
                    model=self._settings.model,
                    messages=_messages(ask, rung.now),
                    **{tokens_name: ask.max_tokens},
                    **_form(ask, rung.now),
                )
                body: bytes = raw.http_response.content
                return body
            except TransportRefused as refused:
                if wire.attempts >= MAX_ATTEMPTS:
                    raise
                if refused.body and _NO_MODEL.search(refused.body):
                    raise TransportRefused(
                        "model_missing", "the server has no such model", "Look at the setting `model`"
                    ) from None
                if wire.status == 400 and tokens_name == "max_tokens" and b"max_completion_tokens" in refused.body:
                    tokens_name = "max_completion_tokens"
                elif rung.now < _PROMPT_RUNG and wire.status in (400, 422, 500) and _MINDS_FORM.search(refused.body):
                    rung.now += 1
                elif refused.again and not retried:
                    retried = True
                    await self._wait(refused, wire)
                else:
                    raise

    async def _wait(self, refused: TransportRefused, wire: WireLog) -> None:
        """Until it may be tried again, if that is before the deadline."""
        wait_s = _asked_wait_s(refused.retry_after)
        if wait_s is None:
            wait_s = min(0.5, self._settings.deadline_ms / 8000)
        if asyncio.get_running_loop().time() + wait_s >= wire.deadline:
            raise TransportRefused(
                "deadline",
                f"the server asks us to wait longer than there is time ({refused.reason})",
                "Try again later, or raise model_deadline",
            )
        await asyncio.sleep(wait_s)

    def _teller(self) -> Any:
        told_at = 0.0
        told = ""

        def tell(phase: str, received: int) -> None:
            nonlocal told_at, told
            now = time.monotonic()
            if phase != told or now - told_at >= TELL_S:
                told, told_at = phase, now
                _send(self._out, frame(PROGRESS, json.dumps([phase, received]).encode()))

        return tell


class _Rung:
    """The way in which the answer's form is requested: 0 by schema, 1 as any JSON, 2 in words."""

    def __init__(self, start: int) -> None:
        self.now = start


class _Lag:
    """The longest time that the event loop did not turn."""

    def __init__(self) -> None:
        self.worst_ms = 0

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time()
            await asyncio.sleep(TICK_S)
            self.worst_ms = max(self.worst_ms, int((loop.time() - asked - TICK_S) * 1000))


def _messages(ask: Ask, rung: int) -> list[dict[str, str]]:
    if rung < _PROMPT_RUNG:
        return ask.messages
    words = "Answer with one JSON object and nothing else. Its JSON schema: " + json.dumps(ask.schema)
    return [*ask.messages, {"role": "system", "content": words}]


def _form(ask: Ask, rung: int) -> dict[str, Any]:
    if rung == 0:
        schema = {"name": ask.schema_name, "strict": True, "schema": ask.schema}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if rung == 1:
        return {"response_format": {"type": "json_object", "schema": ask.schema}}
    return {}


def _asked_wait_s(value: str | None) -> float | None:
    """The wait that a Retry-After header asks for, as seconds or a date; None when it is of no use."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _late(deadline_ms: int) -> TransportRefused:
    return TransportRefused(
        "deadline",
        f"no answer within {deadline_ms / 1000:g} s",
        "Raise model_deadline, or see whether the server is overloaded",
    )
