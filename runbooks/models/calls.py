"""The engine's side of a model call: a question in; the text of an answer or DraftRejected out.

A child process makes the call (`runbooks.models.child_process`). It has no database, no engine, no environment and no
open file but two pipes. It is started early and used again. It is killed and replaced when it overruns, is cancelled,
or sends an invalid frame. The caller's thread waits on the pipe, never longer than the deadline and a tenth.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from runbooks.drafts.typed_draft import REASONS, DraftRejected, Phase
from runbooks.models.endpoint import Endpoint
from runbooks.models.frames import (
    CALL,
    HEADER,
    LENGTH,
    MAX_EXTRA,
    MAX_REQUEST,
    OUTCOME,
    PROGRESS,
    READY,
    SETTINGS,
    frame,
)
from runbooks.untrusted import strict_formats

START_S = 20.0
"""How long a child may take until it is ready; 1 s is usual."""
GRACE_S = 1.0
"""A child that has not answered by its deadline and a tenth of it, or this if it is less, is killed."""
KILL_S = 1.0
SLICE_MS = 25
"""How often a wait looks whether it was cancelled."""
RUNG_S = 600.0
"""How long it is remembered that a server takes no schema."""
TELL_S = 0.1
"""How often it is told at most that more bytes have come."""
READ_BYTES = 1 << 16
MAX_WORDS = 1_000
"""Of what a child says is wrong."""
DEADLINE_REMEDY = "Raise model_deadline, or see whether the server is overloaded"
RUNGS = ("json_schema", "json_object", "prompt")
"""How an answer's form is asked for, best first."""

_SHA256 = re.compile(r"([0-9a-f]{64})?")
_STATUS = re.compile(r"http_[0-9]{3}")
_ROOT = str(Path(__file__).resolve().parents[2])
PROGRAM = (
    sys.executable,
    "-I",
    "-c",
    "import sys; sys.path.insert(0, sys.argv[1]); import runbooks; del sys.path[0]; "
    "from runbooks.models.child_process import main; main()",
    _ROOT,
)
"""The child's code is from where this file is, whatever else is installed; nothing else is looked for there."""


class PromptMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["system", "user"]
    content: str


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """A question to the model."""

    messages: tuple[PromptMessage, ...]
    schema: dict[str, Any]
    """JSON schema of the answer. A server may ignore it; the answer is checked all the same."""
    schema_name: str
    max_tokens: int = 0
    """Of the answer; 0: the endpoint's."""


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a call; it holds no text of the call."""

    prompt_sha256: str
    """Of model, messages and schema as they were given."""
    response_sha256: str = ""
    """Of the body's bytes that were received; empty where none was."""
    bytes: int = 0
    """Of the body, as received."""
    attempts: int = 0
    rung: str = ""
    """json_schema, json_object or prompt: how the last attempt asked for the answer's form."""
    ms: int = 0
    """Wall time from the sending on."""
    status: int = 0
    """HTTP status of the last answer; 0: none came."""
    stall_ms: int = 0
    """Longest time for which the child could not attend to its deadline."""


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a model: untrusted, with only its envelope checked."""

    content: str
    returned_model: str
    """As the server calls itself; empty where it does not."""
    tokens_in: int
    tokens_out: int
    estimated: bool
    """Both are our estimate: the server gave none, or none that can be."""
    spent: CallRecord


class _Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of a call as the child reports it."""

    reason: str
    """Empty: there is a body to be read."""
    problem: str
    remedy: str
    status: int
    attempts: int
    rung: int
    bytes: int
    sha256: str
    stall_ms: int


Tell = Callable[[Phase, int], None]
"""Told how far it is, and how many bytes have come."""


class ModelWorker:
    """Children that ask one endpoint. One is kept warm; a second is started while the first is busy.

    `key` is called for each call and gives the key, empty for none; it may raise DraftRejected (no_key). Methods may
    be called from any thread.
    """

    def __init__(self, endpoint: Endpoint, key: Callable[[], str], *, program: tuple[str, ...] = PROGRAM) -> None:
        self.endpoint = endpoint
        self._key = key
        self._program = program
        self._lock = threading.Lock()
        self._idle: _Child | None = None
        self._busy: set[_Child] = set()
        self._closed = False
        self._rung = 0
        self._rung_until = 0.0

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of its living children."""
        with self._lock:
            children = [*self._busy, *([self._idle] if self._idle is not None else [])]
        return tuple(child.pid for child in children if child.alive)

    def warm(self) -> None:
        """Start a child for the next call, without waiting for it. An error is told by the call that needs it."""
        with self._lock:
            if self._closed or (self._idle is not None and self._idle.alive):
                return
            if self._idle is not None:
                self._idle.end()
                self._idle = None
            with contextlib.suppress(DraftRejected):
                self._idle = _Child(self._program, self.endpoint)

    def ask(self, call: ModelCall, *, cancelled: threading.Event, tell: Tell) -> ModelReply:
        """The model's answer. Raises DraftRejected and nothing else.

        Waits for at most START_S until a child is ready and then for the endpoint's deadline and a tenth of it.
        """
        key = self._key()
        if not key.isascii() or not key.isprintable() or " " in key:
            raise DraftRejected("no_key", "the key has characters that no key has", "Set MUSTER_MODEL_KEY again")
        rung = self._rung if time.monotonic() < self._rung_until else 0
        request = self._request(call, key, rung)
        prompt = hashlib.sha256(
            json.dumps(
                [self.endpoint.model, [[m.role, m.content] for m in call.messages], call.schema], sort_keys=True
            ).encode()
        ).hexdigest()
        try:
            outcome, body, ms = self._converse(request, cancelled, tell)
        except _Ended as ended:
            spent = CallRecord(prompt_sha256=prompt, ms=ended.ms, attempts=ended.sent, rung=RUNGS[rung])
            raise DraftRejected(ended.reason, ended.problem, ended.remedy, spent) from None
        spent = CallRecord(
            prompt_sha256=prompt,
            response_sha256=hashlib.sha256(body).hexdigest() if body else outcome.sha256,
            bytes=outcome.bytes,
            attempts=outcome.attempts,
            rung=RUNGS[outcome.rung],
            ms=ms,
            status=outcome.status,
            stall_ms=outcome.stall_ms,
        )
        if outcome.reason:
            raise DraftRejected(outcome.reason, outcome.problem, outcome.remedy, spent)
        if outcome.rung > rung:
            self._rung, self._rung_until = outcome.rung, time.monotonic() + RUNG_S
        tell("reading", outcome.bytes)
        try:
            read = strict_formats.read_completion(
                body,
                prompt_bytes=sum(len(message.content.encode()) for message in call.messages),
                max_tokens=call.max_tokens or self.endpoint.max_tokens,
                most_bytes=self.endpoint.most_bytes,
            )
        except strict_formats.Unusable as unusable:
            raise DraftRejected(unusable.reason, unusable.problem, unusable.remedy, spent) from None
        return ModelReply(
            content=read.content,
            returned_model=read.model,
            tokens_in=read.tokens_in,
            tokens_out=read.tokens_out,
            estimated=read.estimated,
            spent=spent,
        )

    def close(self) -> None:
        """End all children; calls under way are rejected. Returns when they are gone."""
        with self._lock:
            self._closed = True
            busy = list(self._busy)
            idle, self._idle = self._idle, None
        for child in busy:
            child.kill()
        if idle is not None:
            idle.end()

    def _converse(self, request: bytes, cancelled: threading.Event, tell: Tell) -> tuple[_Outcome, bytes, int]:
        """(outcome, body, wall ms), from a second child if the first had ended before it heard of the request."""
        for last in (False, True):
            tell("starting", 0)
            child = self._take()
            well = False
            try:
                child.wait_ready(cancelled)
                tell("asking", 0)
                started = time.monotonic()
                outcome, body = child.converse(request, started + self._patience_s(), cancelled, tell)
                well = outcome.reason != "worker"
                return outcome, body, math.ceil((time.monotonic() - started) * 1000)
            except _Ended as ended:
                if last or not ended.unheard:
                    raise
            finally:
                self._give_back(child, well=well)
        raise AssertionError

    def _request(self, call: ModelCall, key: str, rung: int) -> bytes:
        asked = {
            "key": key,
            "messages": [{"role": message.role, "content": message.content} for message in call.messages],
            "schema": call.schema,
            "schema_name": call.schema_name,
            "max_tokens": min(call.max_tokens or self.endpoint.max_tokens, self.endpoint.max_tokens),
            "rung": rung,
        }
        try:
            request = json.dumps(asked, ensure_ascii=False, allow_nan=False).encode()
        except ValueError:
            raise DraftRejected("worker", "the question holds what is not Unicode, or no number") from None
        if len(request) > MAX_REQUEST:
            raise DraftRejected(
                "content_too_large",
                f"the question has {len(request)} bytes where at most {MAX_REQUEST} are sent",
                "Ask about less",
            )
        return frame(CALL, request)

    def _patience_s(self) -> float:
        deadline = self.endpoint.deadline_ms / 1000
        return deadline + min(deadline / 10, GRACE_S)

    def _take(self) -> _Child:
        with self._lock:
            if self._closed:
                raise DraftRejected("cancelled", "the engine is stopping")
            child, self._idle = self._idle, None
            if child is not None and not child.alive:
                child.end()
                child = None
            if child is None:
                child = _Child(self._program, self.endpoint)
            self._busy.add(child)
            return child

    def _give_back(self, child: _Child, *, well: bool) -> None:
        with self._lock:
            self._busy.discard(child)
            if well and child.alive and self._idle is None and not self._closed:
                self._idle = child
                return
        child.end()
        if not well:
            self.warm()


class _Ended(Exception):
    """A child that gave no outcome."""

    def __init__(self, reason: str, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.reason = reason
        self.problem = problem
        self.remedy = remedy
        self.ms = 0
        self.sent = 0
        """Attempts that were begun, as far as is known."""
        self.unheard = False
        """It ended, and had not yet begun with what it was asked."""


class _Child:
    """One child process and the two pipes to it. Used by one thread at a time, but for `end`, `alive`."""

    def __init__(self, program: tuple[str, ...], endpoint: Endpoint) -> None:
        try:
            self._process = subprocess.Popen(
                program,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                close_fds=True,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise DraftRejected(
                "worker", f"no process can be started: {error.strerror}", "Look at `muster doctor`"
            ) from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        os.set_blocking(self._to.fileno(), False)
        os.set_blocking(self._from.fileno(), False)
        self._most = endpoint.most_bytes + MAX_EXTRA
        self._unsent = memoryview(frame(SETTINGS, _settings(endpoint)))
        self._received = bytearray()
        self._ready = False
        # It waits in the kernel, so that the child is no zombie for a moment, whenever and however it ends.
        self._reaper = threading.Thread(target=self._process.wait, name="model-child", daemon=True)
        self._reaper.start()

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, cancelled: threading.Event) -> None:
        """Returns when it has its settings. Raises _Ended."""
        until = time.monotonic() + START_S
        while not self._ready:
            for kind, _ in self._turn(until, cancelled, f"was not ready within {START_S:g} s"):
                if kind != READY or self._ready:
                    raise _Ended("worker", "the child said what it should not")
                self._ready = True

    def converse(self, request: bytes, until: float, cancelled: threading.Event, tell: Tell) -> tuple[_Outcome, bytes]:
        """The outcome of a request, and the body where it is to be read. `until` is monotonic. Raises _Ended."""
        started = told_at = time.monotonic()
        told: Phase = "asking"
        self._unsent = memoryview(request)
        heard = False
        try:
            while True:
                for kind, payload in self._turn(until, cancelled, ""):
                    heard = True
                    if kind == OUTCOME:
                        return _outcome(payload)
                    if kind != PROGRESS:
                        raise _Ended("worker", "the child said what it should not")
                    phase, received = _progress(payload)
                    if phase != told or time.monotonic() - told_at >= TELL_S:
                        told, told_at = phase, time.monotonic()
                        tell(phase, received)
        except _Ended as ended:
            ended.ms = math.ceil((time.monotonic() - started) * 1000)
            ended.sent = int(heard)
            ended.unheard = not heard and not self.alive
            raise

    def kill(self) -> None:
        """It has nothing to put in order. Returns when it is gone; whoever converses with it gets _Ended."""
        self._process.kill()
        # One that hangs in the kernel is gone when the kernel lets it: nobody waits for that.
        self._reaper.join(KILL_S)

    def end(self) -> None:
        """Kill it and close its pipes: nobody converses with it."""
        self.kill()
        self._to.close()
        self._from.close()

    def _turn(self, until: float, cancelled: threading.Event, late: str) -> list[tuple[bytes, bytes]]:
        """The frames that have come, after a wait of SLICE_MS at most."""
        if cancelled.is_set():
            raise _Ended("cancelled", "cancelled")
        left_ms = (until - time.monotonic()) * 1000
        if left_ms <= 0:
            if late:
                raise _Ended("worker", f"the child that asks models {late}", "Look at the load of this machine")
            raise _Ended("deadline", "no answer in time, and the child that asks had to be ended", DEADLINE_REMEDY)
        watched = select.poll()
        watched.register(self._from, select.POLLIN)
        if self._unsent:
            watched.register(self._to, select.POLLOUT)
        watched.poll(min(SLICE_MS, left_ms))
        self._write()
        return self._read()

    def _write(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._to.fileno(), self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._unsent = memoryview(b"")  # what it said before it ended, if anything, is read next

    def _read(self) -> list[tuple[bytes, bytes]]:
        try:
            piece = os.read(self._from.fileno(), READ_BYTES)
        except BlockingIOError:
            return []
        if not piece:
            self.kill()
            code = self._process.returncode
            how = "" if code is None else f" by signal {-code}" if code < 0 else f" with exit code {code}"
            raise _Ended("worker", f"the child that asks models ended{how}", "Try again: another is started")
        self._received += piece
        found = []
        while len(self._received) >= HEADER.size:
            kind, size = HEADER.unpack_from(self._received)
            if kind not in (READY, PROGRESS, OUTCOME) or size > self._most:
                raise _Ended("worker", "the child said what it should not", "Try again: another is started")
            end = HEADER.size + size
            if len(self._received) < end:
                break
            found.append((kind, bytes(self._received[HEADER.size : end])))
            del self._received[:end]
        return found


def _settings(endpoint: Endpoint) -> bytes:
    return json.dumps(
        {
            "scheme": endpoint.scheme,
            "host": endpoint.host,
            "port": endpoint.port,
            "path": endpoint.path,
            "model": endpoint.model,
            "deadline_ms": endpoint.deadline_ms,
            "most_bytes": endpoint.most_bytes,
            "ca_pem": endpoint.ca_pem,
        }
    ).encode()


def _outcome(payload: bytes) -> tuple[_Outcome, bytes]:
    try:
        (size,) = LENGTH.unpack_from(payload)
        told = payload[LENGTH.size : LENGTH.size + size]
        outcome = msgspec.convert(strict_formats.loads(told, most_bytes=MAX_EXTRA), _Outcome)
    except (struct.error, strict_formats.NotJson, msgspec.ValidationError):
        raise _Ended("worker", "the child's account of the call cannot be read") from None
    known = not outcome.reason or outcome.reason in REASONS or _STATUS.fullmatch(outcome.reason)
    words = outcome.problem + outcome.remedy
    counts = (outcome.attempts, outcome.status, outcome.bytes, outcome.stall_ms)
    if (
        not known
        or not 0 <= outcome.rung < len(RUNGS)
        or min(counts) < 0
        or not _SHA256.fullmatch(outcome.sha256)
        or not words.isprintable()
        or len(words) > MAX_WORDS
    ):
        raise _Ended("worker", "the child's account of the call is not one")
    return outcome, payload[LENGTH.size + size :]


def _progress(payload: bytes) -> tuple[Phase, int]:
    try:
        phase, received = strict_formats.loads(payload, most_bytes=200)
    except (strict_formats.NotJson, TypeError, ValueError):
        raise _Ended("worker", "the child's progress cannot be read") from None
    if phase not in ("asking", "waiting", "reading") or type(received) is not int:
        raise _Ended("worker", "the child's progress is none")
    return cast(Phase, phase), received
