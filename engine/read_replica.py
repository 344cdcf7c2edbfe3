"""Reads of a large cell, answered by a child process that holds a copy of the engine, made by copy on write. No reader
waits for a turn of the engine, and no turn waits for a reader.

While anybody reads, a fresh copy replaces the last one every few tenths of a second. Each answer carries its version,
and versions never go back. The engine's thread makes the copy between two turns, and is held up for the fork alone. A
new copy first works out the answers that the last one was asked for, while that one goes on answering, so repeated
questions are always answered from memory. Screens, reports and searches do not wait for each other (`Urgency`). A small
cell has no copy: its engine answers within a turn.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sized
from enum import IntEnum
from typing import Any

import msgspec

from engine.control import Engine
from engine.model.consolidation_queries import Consolidation, ConsolidationRequest
from engine.model.details import NodeDetail, QueueDetail, Unblocking, WorkloadDetail
from engine.model.errors import MusterError, RefusedError, of_code
from engine.model.external_cells import IntentsReport
from engine.model.list_queries import Named, Page, Query
from engine.model.overviews import Changes, Overview
from engine.model.past_queries import CellDifference, DifferenceRequest
from engine.model.reports import (
    BudgetReport,
    FairnessReport,
    FragmentationReport,
    GoodputReport,
    HeatMap,
    HeatRequest,
    ScalingReport,
    Showback,
    ShowbackRequest,
)
from engine.model.twin_queries import StartForecast
from engine.model.visibility import Visibility
from engine.reads.scoped_answers import ScopedRead
from engine.twin import forks

LARGE = 20_000
"""Nodes and workloads from which on a cell is read beside its engine."""
EVERY_S = 0.25
"""Wall seconds between two copies: a console draws no more often."""
MANY, EVERY_OF_MANY_S = 100, 0.75
"""From so many questions to one copy on it is kept for longer: what it found for one it need not find for the next."""
MIN_SHARE = 20
"""A copy that took long to make is followed by a pause of so many times that: the engine has the rest."""
IDLE_S = 5.0
"""Wall seconds without a reader after which no copy is made or kept."""
AFTER_WRITE_S = 0.1
"""Between two copies that are made at once because somebody wrote and will want to see it."""
AHEAD = 48
"""Answers that a copy has ready before it is shown: to what was asked last of those before it, in `AGAIN_S`."""
AHEAD_S = 1.0
"""All of them within that, or it is shown without the rest. What took longer by itself is not made ready."""
AGAIN_S = 3.0
INDEX_S = 0.01
"""Part of each turn for indexing, at most about that long, until all texts are indexed."""
PATIENCE_S = 10.0
"""Wall seconds until a copy that does not answer counts as lost."""
SLOW_PATIENCE_S = 600.0
"""Time limit of slow answers."""
END_S = 2.0
"""Wall seconds that a copy has to end by itself once nobody can ask it any more."""
MAX_LIGHT_ROWS = 1_000
"""Windows of more rows are answered beside those of a screen."""
_LIFE_S = 3600.0
HEADER = struct.Struct("<I")
"""The length of a frame, in either direction."""
_ANSWERS: dict[str, Any] = {
    "query": Page,
    "overview": Overview,
    "workload": WorkloadDetail,
    "start_forecast": StartForecast | None,
    "node": NodeDetail,
    "queue": QueueDetail,
    "find": tuple[Named, ...],
    "changes": Changes,
    "fairness": FairnessReport,
    "showback": Showback,
    "budgets": BudgetReport,
    "goodput": GoodputReport,
    "scaling": ScalingReport,
    "fragmentation": FragmentationReport,
    "topology": HeatMap,
    "unblocking": Unblocking,
    "consolidation": Consolidation,
    "intents": IntentsReport,
    "difference": CellDifference,
    "own_work": tuple[str, ...],
    "hidden_words": tuple[str, ...],
}
"""The questions that a copy answers, with their answer types."""
_ASKED_WITH: dict[str, Any] = {
    "query": tuple[Query],
    "workload": tuple[str],
    "start_forecast": tuple[str],
    "node": tuple[str],
    "queue": tuple[str],
    "find": tuple[str, tuple[str, ...], int],
    "changes": tuple[int, int],
    "showback": tuple[ShowbackRequest],
    "topology": tuple[HeatRequest],
    "unblocking": tuple[str],
    "consolidation": tuple[ConsolidationRequest],
    "intents": tuple[int],
    "difference": tuple[DifferenceRequest],
    "own_work": tuple[tuple[str, ...]],
    "hidden_words": tuple[tuple[str, ...]],
}
_REPORTS = frozenset(("fairness", "showback", "budgets", "goodput", "scaling", "fragmentation"))


def _unblocking(engine: Engine, workload_id: str) -> Unblocking:
    from engine.twin.counterfactuals import verified

    return verified(engine, workload_id)


def _consolidation(engine: Engine, request: ConsolidationRequest) -> Consolidation:
    from engine.twin.consolidation import plan

    return plan(engine.fork(), request)


_SEARCHES: dict[str, Callable[..., Any]] = {"unblocking": _unblocking, "consolidation": _consolidation}
"""Answered by the twin, on forks of the copy; all other questions by the engine's method of that name."""
_ASKED_AGAIN = frozenset(("query", "overview", "workload", "start_forecast", "node", "queue", "topology"))


class Urgency(IntEnum):
    """Questions of one urgency wait for each other, and for no others: each has a process of its own."""

    SCREEN = 0
    """A screen waits for the answer: milliseconds."""
    REPORT = 1
    """Goes through the whole cell: up to seconds."""
    SEARCH = 2
    """Tries changes on forks of the cell: many seconds. The others have the processors first."""


class CopyGone(Exception):
    """The copy cannot be asked any more."""


class CopyLost(CopyGone):
    """The copy ended or hung on this question."""


class CopyFailed(Exception):
    """The copy met a defect of ours."""


class CopyChannel:
    """A socket to the copy, for one question at a time."""

    def __init__(self, patience_s: float) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.lock = threading.Lock()
        self.ours.settimeout(patience_s)

    def ask(self, frame: bytes) -> bytes:
        """Raises CopyGone, and Lost."""
        with self.lock:
            if self.ours.fileno() < 0:
                raise CopyGone
            try:
                self.ours.sendall(HEADER.pack(len(frame)) + frame)
                answer = received(self.ours)
            except OSError:
                answer = None
            if answer is None:
                # What might still come would be taken for the answer to the next question.
                self.ours.close()
                raise CopyLost
        return answer

    def close(self) -> bool:
        """Close it and return True, but not while a caller waits for an answer."""
        if not self.lock.acquire(blocking=False):
            return False
        self.ours.close()
        self.lock.release()
        return True


class OpenLane:
    """A lane of many questions at once, answered in order: for one asker who waits for none of them."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self._ours: socket.socket | None = ours
        self._door = threading.Lock()

    def take(self) -> socket.socket | None:
        """Our end, for good; None where it was taken or closed before. Frames as `framed` makes them go in, and answers
        come out in the same form."""
        with self._door:
            ours, self._ours = self._ours, None
            return ours

    def close(self) -> None:
        """Unless somebody took it, who closes it when they have their answers."""
        ours = self.take()
        if ours is not None:
            ours.close()


class Copy:
    """The engine as it was, in a process of its own."""

    def __init__(self, engine: Engine, answers: Answers, ahead: tuple[bytes, ...] = ()) -> None:
        """`ahead`: what is likely to be asked. On the engine's thread. Raises OSError when there is no process or
        memory to be had."""
        begun = time.monotonic()
        self.version, self.at_ms = engine.version, engine.now_ms
        self.lanes = {
            urgency: CopyChannel(PATIENCE_S if urgency == Urgency.SCREEN else SLOW_PATIENCE_S) for urgency in Urgency
        }
        self.many = OpenLane()
        lanes = [self.many.theirs.detach(), *(lane.theirs.detach() for lane in self.lanes.values())]
        try:
            self._worker = forks.start(
                lambda report: serve(answers, lanes, ahead, report), _LIFE_S, keep=tuple(lanes), niceness=0
            )
        finally:
            for lane in lanes:
                os.close(lane)
        self.made_at = time.monotonic()
        self.cost_s = self.made_at - begun
        self.asked = 0
        """Questions by `many`, about."""
        self.lost = False
        """True if it failed to answer: it gets no further question."""
        self._retired_at = 0.0

    def ready(self) -> bool:
        """True if it has prepared its answers. On the engine's thread."""
        told = bool(self._worker.frames())
        self.lost = self.lost or self._worker.over
        return told

    def ask(self, frame: bytes, urgency: Urgency) -> bytes:
        """The answer as JSON. Raises what the engine would, Gone, Lost and Failed."""
        try:
            answer = self.lanes[urgency].ask(frame)
        except CopyLost:
            self.lost = True
            raise
        return answer_json(answer)

    def retire(self) -> bool:
        """Let go of it, unless somebody still waits for an answer. True when it is gone."""
        self.many.close()
        closed = [lane.close() for lane in self.lanes.values()]
        if not all(closed):
            return False
        now = time.monotonic()
        self._retired_at = self._retired_at or now
        # It ends by itself when nobody can ask it any more, if it can.
        if now - self._retired_at > END_S:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._worker.pid, signal.SIGKILL)
        self._worker.frames()
        return self._worker.over

    def end(self) -> None:
        self._worker.cancel()


_encode = msgspec.msgpack.Encoder().encode


class _Question(msgspec.Struct, frozen=True, array_like=True):
    """A question, as a copy reads it."""

    what: str
    arguments: msgspec.Raw
    seen_by: Visibility | None = None


_QUESTION = msgspec.msgpack.Decoder(_Question)


def question(what: str, arguments: tuple[object, ...], seen_by: Visibility | None = None) -> bytes:
    """A question, as a copy reads it. `seen_by`: what may be seen by a caller who does not see all."""
    return _encode((what, arguments) if seen_by is None else (what, arguments, seen_by))


def framed(what: str, arguments: tuple[object, ...]) -> bytes:
    """A question, as it goes over a lane of many."""
    frame = question(what, arguments)
    return HEADER.pack(len(frame)) + frame


def urgency_by_name(what: str) -> Urgency:
    """Urgency of a question that is no long list."""
    if what in _SEARCHES:
        return Urgency.SEARCH
    return Urgency.REPORT if what in _REPORTS else Urgency.SCREEN


def decoded(what: str, answer: bytes) -> Any:
    """An answer of a copy."""
    return msgspec.json.decode(answer, type=_ANSWERS[what])


def encoded_answer(work: Callable[[], object]) -> bytes:
    """What the work returns, or the engine's error that it raises, as `answer_json` reads it."""
    try:
        return b"+" + msgspec.json.encode(work())
    except MusterError as error:
        return b"-" + msgspec.json.encode({"code": error.code, "problem": error.problem, "remedy": error.remedy})


def answer_json(answer: bytes) -> bytes:
    """The answer, as JSON. Raises the engine's errors, and Failed."""
    if answer[:1] == b"+":
        return answer[1:]
    if answer == b"?":
        raise CopyFailed
    raise of_code(**msgspec.json.decode(answer[1:], type=dict[str, str]))


def _found_together(query: object) -> object:
    """The same for windows that cost little once one of them was found."""
    assert isinstance(query, Query)
    return query.kind, query.where, query.sort


class Copies:
    """The copies that answer reads of one engine. `tend`, `refresh` and `close` are for the engine's thread, the rest
    for any.
    """

    def __init__(self, engine: Engine, more: Mapping[str, Callable[..., Any]] | None = None) -> None:
        """`more`: as of Answers."""
        self._engine = engine
        self.answers = Answers(engine, more)
        """The engine's own, for the engine's thread; a copy has them as they were."""
        self._copy: Copy | None = None
        self._coming: Copy | None = None
        """Takes its place when it is ready."""
        self._retired: list[Copy] = []
        self._looked_at = -IDLE_S
        self._lately: deque[tuple[float, object, bytes]] = deque(maxlen=AHEAD * 16)
        """Recent repeated questions and their times, to be asked again of the next copy."""
        self.beside = False
        """True if reads go to a copy."""
        self._measure()

    # -- on any thread ------------------------------------------------------------------------------------------------

    def ask(
        self, what: str, arguments: tuple[object, ...], least_version: int, seen_by: Visibility | None = None
    ) -> bytes | None:
        """The answer as JSON, from a copy of that version or later; None where there is no such copy. Raises what the
        engine would, and RefusedError when a copy did not survive a question that takes long: the engine would not
        either."""
        self._looked_at = time.monotonic()
        copy = self._copy
        if copy is None or copy.version < least_version:
            return None
        urgency = self.urgency_of(what, arguments)
        frame = question(what, arguments, seen_by)
        begun = time.monotonic()
        try:
            answer = copy.ask(frame, urgency)
        except CopyLost:
            if urgency == Urgency.SCREEN:
                return None
            problem = "the query process took too long, used too much memory or was killed"
            raise RefusedError(problem, "Try again or ask for less; the engine's log may have more") from None
        except (CopyGone, CopyFailed):
            return None
        if urgency == Urgency.SCREEN and seen_by is None:
            self.noted(what, arguments, time.monotonic() - begun)
        return answer

    def urgency_of(self, what: str, arguments: tuple[object, ...]) -> Urgency:
        return Urgency.REPORT if self._is_long_list(what, arguments) else urgency_by_name(what)

    def _is_long_list(self, what: str, arguments: tuple[object, ...]) -> bool:
        """True for a list longer than a page. A window that is only wider than its content is none: a page asks for all
        queues at once.
        """
        query = arguments[0] if what == "query" else None
        if not isinstance(query, Query) or query.limit <= MAX_LIGHT_ROWS:
            return False
        state = self._engine.state
        tables: dict[str, Sized] = {
            "queues": state.queues.specs, "pools": state.capacity.pools, "reservations": state.bookings.reservations,
        }  # fmt: skip
        return query.kind not in tables or len(tables[query.kind]) > MAX_LIGHT_ROWS

    def at_least(self, version: int) -> Copy | None:
        """The copy that readers are shown, if it is of that version or later. Its reader asks it by `Copy.many`."""
        self._looked_at = time.monotonic()
        copy = self._copy
        return None if copy is None or copy.lost or copy.version < version else copy

    def noted(self, what: str, arguments: tuple[object, ...], took_s: float) -> None:
        """Note an answered question, so that the next copy may prepare it."""
        if what in _ASKED_AGAIN and took_s < AHEAD_S:
            frame = question(what, arguments)
            together = _found_together(arguments[0]) if what == "query" else frame
            self._lately.append((time.monotonic(), together, frame))

    def shown_version(self) -> int:
        """The version that a reader is shown."""
        copy = self._copy
        return self._engine.version if copy is None else copy.version

    def shown_ms(self) -> int:
        """The cell time of that version, milliseconds."""
        copy = self._copy
        return self._engine.now_ms if copy is None else copy.at_ms

    # -- on the engine's thread ---------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Between two turns: a fresh copy, if it is time for one."""
        self._retired = [copy for copy in self._retired if not copy.retire()]
        self._measure()
        if self.beside:
            self._index()
        copy, now = self._copy, time.monotonic()
        if copy is None:
            return
        if not self.beside or now - self._looked_at > IDLE_S or copy.lost:
            self._put(None)
        elif self._coming is not None:
            if self._coming.ready():
                self._put(self._coming)
            elif self._coming.lost or now - self._coming.made_at > PATIENCE_S:
                self._put(copy)
        elif now - copy.made_at >= self._pause_s(copy) and not self._is_of_now(copy):
            self._coming = self._made()

    def _pause_s(self, copy: Copy) -> float:
        """Time from this copy to the next."""
        return max(EVERY_OF_MANY_S if copy.asked > MANY else EVERY_S, copy.cost_s * MIN_SHARE)

    def _index(self) -> None:
        """Go on with what is searched and sorted quickly, for as long as a turn is not held up by it."""
        until = time.monotonic() + INDEX_S
        for columns in self._engine.reader.indexes.values():
            for texts in columns.values():
                while texts.cover():
                    if time.monotonic() > until:
                        return

    def refresh(self) -> None:
        """Show a copy of the present state at once."""
        if self.beside and not self._is_of_now(self._copy):
            coming = self._coming
            self._put(coming if self._is_of_now(coming) else self._made())

    def _is_of_now(self, copy: Copy | None) -> bool:
        if copy is None or copy.lost:
            return False
        return (copy.version, copy.at_ms) == (self._engine.version, self._engine.now_ms)

    def _made(self) -> Copy | None:
        """A copy of the present state; None where there is no memory for it: then the engine answers itself."""
        since = time.monotonic() - AGAIN_S
        # Those asked last come first.
        ahead: dict[object, bytes] = {}
        for at, together, frame in tuple(self._lately)[::-1]:
            if at > since and len(ahead) < AHEAD:
                ahead.setdefault(together, frame)
        try:
            return Copy(self._engine, self.answers, tuple(ahead.values()))
        except OSError:
            return None

    def show_written(self) -> None:
        """Somebody wrote: they will look at what came of it."""
        copy = self._copy
        if copy is not None and time.monotonic() - copy.made_at >= AFTER_WRITE_S:
            self.refresh()

    def close(self) -> None:
        self._put(None)
        self.beside = False
        for copy in self._retired:
            copy.retire()
            copy.end()
        self._retired = []

    def _put(self, copy: Copy | None) -> None:
        """Show this one, and no other is on its way."""
        self._retired += [each for each in (self._copy, self._coming) if each is not None and each is not copy]
        self._copy, self._coming = copy, None

    def _measure(self) -> None:
        state = self._engine.state
        self.beside = len(state.workloads.ids) + len(state.capacity.node_ids) >= LARGE


# -- in the child -----------------------------------------------------------------------------------------------------


def serve(answers: Answers, fds: list[int], ahead: tuple[bytes, ...], report: forks.Report) -> None:
    """Answer until nobody can ask any more. `fds`: what many ask at once, then a lane for each urgency. What is not for
    a screen goes to a copy of this copy, one for each urgency, as soon as there is any; what was asked of the last copy
    is answered before anybody asks again, and then that is reported. None of them outlives the engine's thread."""
    lanes = {fd: socket.socket(fileno=fd) for fd in fds}
    beside = {fds[1 + urgency]: urgency for urgency in Urgency if urgency != Urgency.SCREEN}
    working: list[int] = []
    coming: list[bytes] | None = list(reversed(ahead))
    until = time.monotonic() + AHEAD_S
    # Unlike `select`, it takes any number of a file: the engine's process may have thousands open.
    asking = select.poll()
    for fd in fds:
        asking.register(fd, select.POLLIN)
    while lanes.keys() - beside:
        ready = asking.poll(None if coming is None else 0)
        if coming and not ready:
            answers.to(coming.pop())
        if coming is not None and (not coming or time.monotonic() > until):
            coming = None
            report(b"ready")
        for fd, _ in ready:
            lane = lanes[fd]
            if fd not in beside:
                if _answer(answers, lane):
                    continue
            elif lane.recv(1, socket.MSG_PEEK):
                pid = os.fork()
                if pid == 0:
                    _answer_beside(answers, lane, beside[fd], [other for other in lanes.values() if other is not lane])
                    return
                working.append(pid)
            asking.unregister(fd)
            del lanes[fd]
            lane.close()
    for pid in working:
        # They end with this process, and may be asked for longer.
        os.waitpid(pid, 0)


def _answer_beside(answers: Answers, lane: socket.socket, urgency: Urgency, others: list[socket.socket]) -> None:
    """The life of a copy of the copy, which answers what comes over one lane."""
    forks.die_with_parent()
    if urgency == Urgency.SEARCH:
        os.nice(forks.NICENESS)
    for other in others:
        other.close()
    while _answer_in_time(answers, lane):
        pass


class Answers:
    """A copy's answers. The copy does not change, and so neither do they."""

    def __init__(self, engine: Engine, more: Mapping[str, Callable[..., Any]] | None = None) -> None:
        """`more`: answers to questions by name, in place of the engine's own."""
        self._engine = engine
        self._more = more or {}
        self._given: dict[bytes, bytes] = {}

    def to(self, frame: bytes) -> bytes:
        answer = self._given.get(frame)
        if answer is None:
            answer = self._given[frame] = self._found(frame)
        return answer

    def _found(self, frame: bytes) -> bytes:
        asked = _QUESTION.decode(frame)
        try:
            arguments = msgspec.msgpack.decode(asked.arguments, type=_ASKED_WITH.get(asked.what, tuple[()]))
            return encoded_answer(lambda: self.direct(asked.what, arguments, asked.seen_by))
        except MemoryError:
            # Not asked of the engine, which nothing bounds.
            raise
        except Exception:
            # A defect: the engine is asked the same, and says so where it belongs.
            return b"?"

    def direct(self, what: str, arguments: tuple[Any, ...], seen_by: Visibility | None = None) -> Any:
        """The answer, worked out anew. Raises what the engine would."""
        if seen_by is not None:
            return ScopedRead(self._engine, seen_by, self._more).answer(what, arguments)
        if what in self._more:
            return self._more[what](*arguments)
        search = _SEARCHES.get(what)
        return search(self._engine, *arguments) if search else getattr(self._engine, what)(*arguments)


def _answer(answers: Answers, lane: socket.socket) -> bool:
    """Take one question and answer it. False when there are no more."""
    frame = received(lane)
    if frame is None:
        return False
    answer = answers.to(frame)
    try:
        lane.sendall(HEADER.pack(len(answer)) + answer)
    except BrokenPipeError:
        return False
    return True


def _answer_in_time(answers: Answers, lane: socket.socket) -> bool:
    """The same for what takes long. Ends this process when nobody can be waiting any more."""
    lane.recv(1, socket.MSG_PEEK)
    signal.alarm(int(SLOW_PATIENCE_S) + 1)
    try:
        return _answer(answers, lane)
    finally:
        signal.alarm(0)


def received(lane: socket.socket) -> bytes | None:
    """Receive one frame; None when the other end is closed."""
    header = _exactly(lane, HEADER.size)
    return None if header is None else _exactly(lane, HEADER.unpack(header)[0])


def _exactly(lane: socket.socket, size: int) -> bytes | None:
    found = lane.recv(size)
    while found and len(found) < size:
        more = lane.recv(size - len(found))
        if not more:
            return None
        found += more
    return found or None
