"""The process that rebuilds states of earlier times and answers questions about them.

It reads the journal beside the engine that writes it, and holds one state, a while before the last time it was asked
for. For every such time it forks a copy of itself, which goes on to that time and answers until nobody can ask any
more. Requests come over a socket, each with the files over which to answer; it ends with the other end of that socket.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine.control import Engine
from engine.journal.database import Place, Schema, SqliteFile
from engine.journal.past_states import Hear, PastState
from engine.model import events as ev
from engine.model.errors import MusterError
from engine.past.differences import DifferenceFold
from engine.read_replica import HEADER, Answers, serve
from engine.reads.recent_activity import Recent
from engine.twin import forks

HEARD_MS = 3_600_000
"""Cell time before the one that is shown from which on events are remembered, for rates and the event tail."""
BACK_MS = 600_000
"""Cell time by which the state that is held is behind: so far one steps back at once."""
TELL_EVERY_S = 0.1
"""Wall seconds between two reports of progress."""
REQUEST_BYTES = 1 << 16
LANES = 5
"""Files of a request: for progress, for many questions at once, and one for each urgency."""


class PlaceFields(msgspec.Struct, frozen=True):
    """A place, as it is sent to this process."""

    path: str = ""
    conninfo: str = ""
    name: str = ""
    shown: str = ""

    @classmethod
    def of(cls, place: Place) -> PlaceFields:
        if isinstance(place, SqliteFile):
            return cls(path=str(place.path.absolute()))
        return cls(conninfo=place.conninfo, name=place.name, shown=place.shown)

    @property
    def place(self) -> Place:
        return SqliteFile(Path(self.path)) if self.path else Schema(self.conninfo, self.name, self.shown)


class PastRequest(msgspec.Struct, frozen=True):
    """A time that is to be shown; with `since_ms`, also what happened from then on."""

    at_ms: int
    since_ms: int = 0


class BuildProgress(msgspec.Struct, frozen=True):
    """How far it is; over once there is a version or an error."""

    permille: int = 0
    version: int = -1
    code: str = ""
    problem: str = ""
    remedy: str = ""


class _Received(NamedTuple):
    request: PastRequest
    lanes: list[int]


_encode = msgspec.msgpack.Encoder().encode


def main() -> None:
    """Serve requests until the other end of standard input closes."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.nice(forks.NICENESS)
    gc.disable()
    control = socket.socket(fileno=os.dup(0))
    forks.bound_memory()
    first = control.recv(REQUEST_BYTES)
    base = _Base(msgspec.msgpack.decode(first, type=PlaceFields).place)
    control.sendall(b".")
    while (received := _receive(control)) is not None:
        _build(base, control, received)


def _receive(control: socket.socket) -> _Received | None:
    """The next request. It is acknowledged, so that no two of them run into one another; None when there are no
    more."""
    content, lanes, _, _ = socket.recv_fds(control, REQUEST_BYTES, LANES)
    if not content:
        return None
    control.sendall(b".")
    return _Received(msgspec.msgpack.decode(content, type=PastRequest), lanes)


class _Teller:
    """Reports progress, and ends the work where nobody waits for it any more."""

    def __init__(self, lane: int, control: socket.socket | None) -> None:
        self._lane, self._control = lane, control
        self._told_at = 0.0

    def tell(self, permille: int) -> None:
        """Permille of what is to be read. Raises OSError."""
        now = time.monotonic()
        if now >= self._told_at + TELL_EVERY_S:
            self._told_at = now
            self.send(BuildProgress(min(permille, 999)))
        if self._control is not None and _closed(self._control):
            os._exit(0)

    def send(self, progress: BuildProgress) -> None:
        frame = _encode(progress)
        rest = memoryview(HEADER.pack(len(frame)) + frame)
        while rest:
            rest = rest[os.write(self._lane, rest) :]


def _closed(control: socket.socket) -> bool:
    watched = select.poll()
    watched.register(control, select.POLLIN)
    return bool(watched.poll(0)) and not control.recv(1, socket.MSG_PEEK)


class _Base:
    """The state that is held, and what was heard of the events that led to it."""

    def __init__(self, place: Place) -> None:
        self.past = PastState(place)
        self._heard_from_ms = 0
        self.recent = Recent(self.past.state)

    def approach(self, at_ms: int, teller: _Teller) -> None:
        """Be a short while before that time, having heard what there is to remember then. Raises JournalError."""
        past = self.past
        from_ms = at_ms - HEARD_MS
        ahead = past.reached_ms > at_ms or past.reached_ms < from_ms - BACK_MS
        if ahead or self._heard_from_ms > max(from_ms, past.earliest_ms):
            past.seek(from_ms - BACK_MS, teller.tell)
            self._heard_from_ms, self.recent = past.reached_ms, Recent(past.state)
        self.go_on(at_ms - BACK_MS, teller)

    def go_on(self, until_ms: int, teller: _Teller, beside: Hear | None = None) -> None:
        """Apply what happened up to then; `beside` hears it too."""

        def both(event: ev.AnyEvent | None) -> None:
            self.hear(event)
            if beside is not None:
                beside(event)

        if until_ms > self.past.reached_ms:
            self.past.go_on(until_ms, both, teller.tell)
        self.past.close()

    def hear(self, event: ev.AnyEvent | None) -> None:
        if event is not None:
            self.recent.note(event)
        else:
            self.recent.sample(self.past.state.now_ms)


def _build(base: _Base, control: socket.socket, received: _Received) -> None:
    """Go to a while before that time, and have a copy go on from there."""
    request, lanes = received
    teller = _Teller(lanes[0], control)
    try:
        base.approach(request.since_ms or request.at_ms, teller)
        if os.fork() == 0:
            control.close()
            _answer(base, request, lanes)
    except OSError:
        pass  # nobody waits for it any more
    except MusterError as error:
        _refuse(teller, error)
    finally:
        for lane in lanes:
            os.close(lane)


def _refuse(teller: _Teller, error: MusterError) -> None:
    try:
        teller.send(BuildProgress(code=error.code, problem=error.problem, remedy=error.remedy))
    except OSError:
        return


def _answer(base: _Base, request: PastRequest, lanes: list[int]) -> None:
    """The life of the copy that shows one time."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        teller = _Teller(lanes[0], None)
        try:
            answers = _answers(base, request, teller)
        except MusterError as error:
            _refuse(teller, error)
        else:
            teller.send(BuildProgress(1000, base.past.state.version))
            serve(answers, lanes[1:], (), lambda _: None)
        code = 0
    except BrokenPipeError:
        code = 0
    except BaseException:  # a copy must not go on as if it were its parent
        traceback.print_exc()
    finally:
        os._exit(code)


def _answers(base: _Base, request: PastRequest, teller: _Teller) -> Answers:
    """Go on to that time."""
    past, more = base.past, {}
    if request.since_ms:
        base.go_on(request.since_ms, teller)
        fold = DifferenceFold()
        fold.begin(past.state, request.since_ms)
        base.go_on(request.at_ms, teller, fold.note)
        fold.finish(request.at_ms)
        more["difference"] = fold.answer
    else:
        base.go_on(request.at_ms, teller)
    return Answers(Engine.standing(past.state, request.at_ms, base.recent, past.seed), more)


if __name__ == "__main__":
    main()
