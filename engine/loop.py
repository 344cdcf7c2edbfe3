"""A thread that drives an engine in real time. Callers hand in functions, and the thread runs them between turns, so
the engine stays single-threaded and no caller waits for a lock.
"""

from __future__ import annotations

import contextvars
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from engine.control import Engine
from engine.journal.postgres_store import awake_or_asleep_s
from engine.model.commands import AnyCommand, Submit
from engine.model.durations import DurationHistogram
from engine.model.errors import JournalError, MusterError, RefusedError, UnreachableError
from engine.model.specs import WorkloadSpec
from engine.model.visibility import Visibility
from engine.read_replica import Copies, answer_json, decoded, encoded_answer
from engine.scheduling.cycle import never
from engine.state.timers import MIN_DOWNTIME_MS
from engine.twin import forks
from engine.twin.forks import Pages
from engine.twin.live_twin import Twins

T = TypeVar("T")
LOG = logging.getLogger("muster.engine")
_Call = tuple[Callable[["Engine"], Any], "Future[Any]"]
Feed = Iterator[tuple[int, WorkloadSpec | AnyCommand]]
"""(cell ms, workload to submit or what else is commanded), in order of time."""
TURN_S = 0.05
"""Wall seconds between turns when nobody asks for anything: how late cell time may be seen to pass."""
MAX_TURN_S = 0.025
"""CPU seconds for which the thread decides before it hears callers again: the rest of a cycle, and of the time that is
due, comes in the next turn."""
MAX_BEHIND_S = 0.25
"""Wall seconds by which time lags a feed that comes faster than it can be decided on: beyond that less time passes."""
BETWEEN_TURNS_S = 0.001
"""Wall seconds between turns while something is left over."""
CYCLE_EVERY_MS = 100
"""Cell milliseconds between scheduling cycles as time passes: many ends share one cycle when time runs fast."""
AWAY_S = 2.0
"""Wall seconds without a turn after which we count as having been away: nobody was heard meanwhile."""
TIDY_S = 0.002
"""Wall seconds, of each turn, in which memory is made ready for quick forks."""
TIDY_EVERY_S = 5.0
"""Wall seconds until the next look at the memory, once all of it is ready."""
MIN_KEEP_SHARE = 50
"""A start forecast that was kept is followed by a pause of so many times what it took, however fast time runs."""
KEEP_TIME_S = 60.0
"""Wall seconds after which the time is recorded although nothing happened."""
ANSWER_S = 30.0
"""Wall seconds for which a caller waits for the engine's thread."""
BESIDE_FROM = 5_000
"""Nodes and workloads from which on a copy of the process works out what takes long: on fewer it is as quick as the
fork."""
BESIDE_S = 120.0
"""Wall seconds that it may take."""
RETRY_S = 1.0
"""Wall seconds between attempts to write after the journal failed."""
BELOW = 5
"""Niceness of the thread below the rest of the process: where cores are scarce, whoever looks or decides goes first."""


def _stand_back() -> None:
    """Lower the thread's priority. On Linux a thread has one of its own."""
    if sys.platform == "linux":
        os.nice(BELOW)


class EngineLoop:
    """The engine's thread. What `feed` yields is commanded as its time comes."""

    def __init__(
        self, engine: Engine, *, speed: float = 1.0, feed: Feed | None = None, real_time: bool = False
    ) -> None:
        """`real_time`: the cell's time is that of its host. Other cells miss what passed while this process stood
        still."""
        self.engine = engine
        self.real_time = real_time
        engine.cycle_every_ms = CYCLE_EVERY_MS
        self.speed = speed
        """Cell milliseconds per wall millisecond."""
        self.paused = False
        self.feed_error = ""
        """The last thing that was wrong with the feed; empty while all of it is taken."""
        self.fault = ""
        """The reason why the thread ended unasked; empty while all is well."""
        self.twins = Twins(engine)
        """What-ifs and start estimates. `start` is for the engine's thread; call the rest from any."""
        self.copies = Copies(engine, {"start_forecast": self.twins.starts.of_workload})
        self._pages = Pages()
        self._feed = feed
        self._next: tuple[int, WorkloadSpec | AnyCommand] | None = None
        self._due: list[WorkloadSpec | AnyCommand] = []
        """Taken from the feed, and not yet recorded."""
        self._behind_ms = 0
        """Cell time that turns before this one did not get to."""
        self._give_up_s = 0.0
        """CPU time of the thread at which it is enough for this turn."""
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self.turns = DurationHistogram()
        """Wall seconds of turns, without the wait for something to do."""
        self._woke_s = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._changed = threading.Condition()
        self._version = engine.version
        self._listeners: list[Callable[[int], None]] = []
        self._stopping = False
        self._door = threading.Lock()
        """Held to put calls in, so that none comes after the end."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish the present turn and end the thread. The engine itself stays open."""
        with self._door:
            self._stopping = True
            self._calls.put(None)
        if self._thread.is_alive():
            self._thread.join()

    @property
    def waiting(self) -> int:
        """Calls that no turn has come for yet, about."""
        return self._calls.qsize()

    def post(self, fn: Callable[[Engine], T]) -> Future[T]:
        """Have `fn(engine)` run on the engine's thread between turns. Waits for nothing."""
        future: Future[T] = Future()
        with self._door:
            if self._stopping:
                raise self._gone()
            # A copy of the caller's context: what is logged and traced inside knows for which request.
            context = contextvars.copy_context()
            self._calls.put((lambda engine: context.run(fn, engine), future))
        return future

    def call(self, fn: Callable[[Engine], T], timeout_s: float = ANSWER_S) -> T:
        """Run `fn(engine)` on the engine's thread between turns; returns or raises what it does."""
        return _result_of(self.post(fn), timeout_s)

    def call_beside(self, prepare: Callable[[Engine], Callable[[], T]], answer: type[T]) -> T:
        """Run what `prepare(engine)` returns on the engine as it is then; returns or raises what it does. Of a large
        cell a copy of this process runs it, and the engine's thread is held up for `prepare` and the fork alone: it may
        use the engine and change it at will, but no file, no lock and no record. `answer` is what it returns, which
        comes back as JSON. Raises RefusedError when the copy does not come to its end."""

        def begin(engine: Engine) -> T | forks.Child:
            work = prepare(engine)
            if len(engine.state.workloads.ids) + len(engine.state.capacity.node_ids) < BESIDE_FROM:
                return work()
            try:
                return forks.start(lambda report: report(encoded_answer(work)), BESIDE_S, niceness=0)
            except OSError as error:
                raise RefusedError(
                    f"no trial can begin: {error.strerror}", "Free some memory, then try again"
                ) from error

        future = self.post(begin)
        try:
            begun = _result_of(future, ANSWER_S)
        except UnreachableError:
            # Nobody waits any more for what begins after this.
            future.add_done_callback(_end_child)
            raise
        return msgspec.json.decode(_answer_of(begun), type=answer) if isinstance(begun, forks.Child) else begun

    def read(self, what: str, *arguments: object, least_version: int = 0, seen_by: Visibility | None = None) -> Any:
        """The engine's answer to a question, of that version or a later one; raises what it raises. A copy of a large
        cell answers, as of a moment ago; the engine of a small one answers between turns. `seen_by`: what may be seen
        by a caller who does not see all.
        """
        found = self.copies.ask(what, arguments, least_version, seen_by)
        if found is None and self.copies.beside:
            # The first look after a while, or somebody's own write is to be seen.
            self.call(lambda _: self.copies.refresh())
            found = self.copies.ask(what, arguments, least_version, seen_by)
        if found is None:
            return self.call(lambda _: self.copies.answers.direct(what, arguments, seen_by))
        return decoded(what, found)

    def wait_version(self, after: int, timeout_s: float) -> int:
        """The version that readers are shown, as soon as it is beyond `after` or the time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > after or self._stopping, timeout_s)
            return self._version

    def on_version(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Call `listener(version)` on the engine's thread after each change. Returns a function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        _stand_back()
        self.engine.enough = lambda: time.thread_time() > self._give_up_s
        try:
            self._turns()
        except Exception as error:
            # A fault of ours. What is journalled is safe; going on from a state in doubt would not be.
            LOG.exception("the engine stopped on an internal error")
            self.fault = f"the engine stopped on an internal error: {type(error).__name__}: {error}"
            self._stopping = True
        self.engine.enough = never
        self.twins.close()
        self.copies.close()
        self._refuse_rest()

    def _turns(self) -> None:
        last = kept = awake_or_asleep_s()
        retry_at = tidy_at = keep_at = 0.0
        while not self._stopping:
            begun = awake_or_asleep_s()
            # Before anybody is answered: a copy of this process cannot read the record.
            if begun >= keep_at and self.twins.starts.keep():
                keep_at = begun + MIN_KEEP_SHARE * (awake_or_asleep_s() - begun)
            self._take_calls()
            if self.twins.children:
                self.twins.poll()
            now = awake_or_asleep_s()
            if now >= tidy_at and not self.twins.children:
                ready = self._pages.tidy(TIDY_S)
                tidy_at = now + (TIDY_EVERY_S if ready else TURN_S)
            passed_ms = (now - last) * 1000 * self.speed
            if self.paused:
                last = now
                if self.engine.is_interrupted:
                    self._begin_turn()
                    self.engine.settle()
            elif passed_ms >= 1 and now >= retry_at:
                away_s = now - last
                # The part of a millisecond that is left over counts in the next turn.
                last = now - passed_ms % 1 / (1000 * self.speed)
                try:
                    self._let_pass(away_s, int(passed_ms))
                    if now - kept >= KEEP_TIME_S:
                        self.engine.keep_time()
                        kept = now
                except JournalError:
                    # The engine says so in journal_error and keeps answering questions.
                    retry_at = now + RETRY_S
            self.copies.tend()
            self._announce()
            self.turns.add(time.monotonic() - self._woke_s)

    def _begin_turn(self) -> None:
        self._give_up_s = time.thread_time() + MAX_TURN_S

    def _take_calls(self) -> None:
        """Wait up to a turn for something to do, then do everything that is there. What comes meanwhile has the next
        turn: whoever keeps asking does not keep time from passing."""
        late = self._behind_ms or self.engine.is_interrupted
        try:
            try:
                entry = self._calls.get(timeout=BETWEEN_TURNS_S if late else TURN_S)
            finally:
                self._woke_s = time.monotonic()
            self._begin_turn()
            for _ in range(self._calls.qsize()):
                if entry is None:
                    return
                self._answer(*entry)
                entry = self._calls.get_nowait()
            if entry is not None:
                self._answer(*entry)
        except queue.Empty:
            return

    def _answer(self, fn: Callable[[Engine], Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(fn(self.engine))
        except BaseException as error:  # the caller gets it, whatever it is
            future.set_exception(error)

    def _let_pass(self, away_s: float, passed_ms: int) -> None:
        """Let the time since the turn before pass."""
        if away_s * 1000 >= MIN_DOWNTIME_MS:
            # This process was stopped, or the machine slept.
            if self.real_time:
                self.engine.catch_up(self.engine.now_ms + passed_ms)
            return
        if away_s > AWAY_S:
            self.engine.agents.leases.excuse(passed_ms)
        self._pass_time(passed_ms)

    def _pass_time(self, passed_ms: int) -> None:
        """Advance the cell's time. The rest of a full turn is left for the next. Where a feed comes faster than it can
        be decided on, less time passes than should.
        """
        until = self.engine.now_ms + passed_ms + self._behind_ms
        self._begin_turn()
        submitted = self._submit_due(until)
        if submitted:
            self.engine.advance(until)
        behind_ms = until - self.engine.now_ms
        self._behind_ms = behind_ms if submitted else min(behind_ms, int(MAX_BEHIND_S * 1000 * self.speed))

    def _submit_due(self, until_ms: int) -> bool:
        """Feed what comes up to `until_ms`, each at its own time. Returns whether that was done before it was
        `enough`."""
        self._submit()
        while (entry := self._peek()) is not None and entry[0] <= until_ms:
            at_ms = entry[0]
            self.engine.advance(at_ms)
            if self.engine.now_ms < at_ms:
                return False
            while (entry := self._peek()) is not None and entry[0] <= at_ms:
                self._due.append(entry[1])
                self._next = None
            self._submit()
            if self.engine.enough():
                return False
        return True

    def _submit(self) -> None:
        """Command what is due. When the journal fails it stays due, for the next turn."""
        if not self._due:
            return
        answer = self.engine.commands(
            [Submit(workloads=(due,)) if isinstance(due, WorkloadSpec) else due for due in self._due]
        )
        self._due.clear()
        refused = [a for a in answer if isinstance(a, MusterError)]
        if refused:
            self._feed_failed(refused[-1])

    def _peek(self) -> tuple[int, WorkloadSpec | AnyCommand] | None:
        if self._next is None and self._feed is not None:
            try:
                self._next = next(self._feed, None)
            except Exception as error:  # whatever a reader of files meets must not end the engine
                self._feed_failed(error)
            if self._next is None:
                self._feed = None
        return self._next

    def _feed_failed(self, error: Exception) -> None:
        """Into the engine's log, once for each new text."""
        if str(error) != self.feed_error:
            self.feed_error = str(error)
            print(f"muster: load that was not taken: {error}", file=sys.stderr)

    def _announce(self) -> None:
        version = self.copies.shown_version()
        if version == self._version:
            return
        with self._changed:
            self._version = version
            self._changed.notify_all()
        for listener in list(self._listeners):
            listener(version)

    def _refuse_rest(self) -> None:
        with self._changed:
            self._changed.notify_all()
        while True:
            try:
                entry = self._calls.get_nowait()
            except queue.Empty:
                return
            if entry is not None and entry[1].set_running_or_notify_cancel():
                entry[1].set_exception(self._gone())

    def _gone(self) -> UnreachableError:
        return UnreachableError(self.fault or "the engine is stopping", "Start it again; the journal is intact")


def _result_of(future: Future[T], timeout_s: float) -> T:
    """What the call returned or raised. Raises UnreachableError when the engine did not come to it in time."""
    try:
        return future.result(timeout_s)
    except TimeoutError:
        if future.done():
            return future.result()
        future.cancel()
        raise UnreachableError(
            f"the engine did not answer within {timeout_s:g} s", "It may be overloaded; try again"
        ) from None


def _end_child(begun: Future[Any]) -> None:
    """End a child that was started for a caller who has gone."""
    if not begun.cancelled() and begun.exception() is None and isinstance(begun.result(), forks.Child):
        begun.result().cancel()


def _answer_of(child: forks.Child) -> bytes:
    """What the child has to say, as JSON. Raises what it raised, and RefusedError when it says nothing."""
    frames: list[bytes] = []
    try:
        while not child.over:
            forks.wait_for([child], BESIDE_S)
            frames += child.frames()
    finally:
        child.cancel()
    if not frames:
        raise RefusedError(
            f"the trial {child.failure_text}", "Try again, or ask for less; the engine's log may have more"
        )
    return answer_json(frames[0])
