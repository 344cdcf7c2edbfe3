"""Replicas of a cell as of earlier times, each in a process of its own, made when they are first asked about.

One process reads the journal (`engine.past.process`) and is started when somebody looks back; the engine's thread has
no part in it. It makes one replica after the other, and ends a while after the last question. Only so many replicas are
kept: the one that nobody asked for longest goes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from engine.journal.database import Place
from engine.journal.outside_readers import read
from engine.journal.past_states import PastSpan, span
from engine.model.errors import BusyError, JournalError, MusterError, RefusedError, SpecError, of_code
from engine.model.past_queries import PastStatus
from engine.model.quantities import utc
from engine.model.visibility import Visibility
from engine.past.process import BuildProgress, PastRequest, PlaceFields
from engine.read_replica import (
    PATIENCE_S,
    SLOW_PATIENCE_S,
    CopyChannel,
    CopyFailed,
    CopyGone,
    OpenLane,
    Urgency,
    answer_json,
    question,
    received,
    urgency_by_name,
)

MAX_REPLICAS = 4
MAX_BUILDING = 8
"""Replicas that are being made or wait for it."""
IDLE_S = 300.0
"""Seconds after the last question after which no replica is kept."""
_PACKAGES = Path(__file__).resolve().parents[2]


class PastReplica:
    """The cell as of one time: on its way, ready, or failed."""

    def __init__(self, request: PastRequest) -> None:
        self.request = request
        self.progress = BuildProgress()
        self.asked_at = time.monotonic()
        self._told, self._tells = socket.socketpair()
        self._many = OpenLane()
        self._lanes = {
            urgency: CopyChannel(PATIENCE_S if urgency == Urgency.SCREEN else SLOW_PATIENCE_S) for urgency in Urgency
        }

    def hand_over(self) -> list[int]:
        """The other ends of its lanes, for the process that answers; ours to close once that has them."""
        return [
            self._tells.detach(), self._many.theirs.detach(), *(lane.theirs.detach() for lane in self._lanes.values()),
        ]  # fmt: skip

    def hear(self) -> BuildProgress | None:
        """The next report of the process; None when it has ended."""
        try:
            frame = received(self._told)
        except OSError:
            return None
        return None if frame is None else msgspec.msgpack.decode(frame, type=BuildProgress)

    def ask(self, what: str, arguments: tuple[object, ...], seen_by: Visibility | None = None) -> bytes:
        """The answer as JSON. Raises what the engine would, and RefusedError where the process has ended."""
        self.asked_at = time.monotonic()
        try:
            return answer_json(self._lanes[urgency_by_name(what)].ask(question(what, arguments, seen_by)))
        except (CopyGone, CopyFailed):
            at = utc(self.request.at_ms)
            raise RefusedError(f"the copy of the cell as of {at} did not answer", "Try again for that time") from None

    def close(self) -> None:
        """Let the process go."""
        self._many.close()
        for lane in (self._told, *(lane.ours for lane in self._lanes.values())):
            with contextlib.suppress(OSError):
                lane.shutdown(socket.SHUT_RDWR)  # whoever waits for an answer wakes
            lane.close()


class PastReplicas:
    """The replicas of one cell. Safe to use from any thread."""

    def __init__(self, place: Place | None) -> None:
        """`place`: of the cell's journal; None where it has none."""
        self._place = place
        self._changed = threading.Condition()
        self._replicas: dict[PastRequest, PastReplica] = {}
        """The one asked for last comes last."""
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._door = threading.Lock()
        """Held while the process is spoken to."""
        self._asked_at = 0.0
        self._closed = False

    # -- what can be shown --------------------------------------------------------------------------------------------

    def span(self) -> PastSpan:
        """Raises RefusedError for a cell without a journal, and JournalError."""
        place = self._place
        if place is None:
            raise RefusedError(
                "this cell is kept in memory, and has no journal to look back in", "Serve it with a journal"
            )
        return read(place, lambda connection: span(connection, place))

    def check(self, at_ms: int, now_ms: int) -> PastSpan:
        """Raises SpecError for a time that cannot be shown, and names those that can."""
        found = self.span()
        if not found.earliest_ms <= at_ms <= now_ms:
            raise SpecError(
                "at", f"{utc(at_ms)} is {'before' if at_ms < found.earliest_ms else 'after'} what can be shown",
                f"Give a time from {utc(found.earliest_ms)} to {utc(now_ms)}",
            )  # fmt: skip
        return found

    # -- making them --------------------------------------------------------------------------------------------------

    def status(self, request: PastRequest, now_ms: int, wait_s: float = 0.0) -> PastStatus:
        """How far the replica is; it is begun where there is none. Waits up to `wait_s` seconds for it. Raises
        SpecError and RefusedError."""
        found = self.check(request.at_ms, now_ms)
        if request.since_ms:
            self.check(request.since_ms, request.at_ms)
        replica = self._wanted(request)
        with self._changed:
            self._changed.wait_for(lambda: is_over(replica.progress), wait_s)
        progress = replica.progress
        state = "failed" if progress.code else "ready" if progress.version >= 0 else "building"
        return PastStatus(
            earliest_ms=found.earliest_ms, now_ms=now_ms, at_ms=request.at_ms, state=state,  # type: ignore[arg-type]
            permille=progress.permille, version=max(0, progress.version), code=progress.code,
            problem=progress.problem, remedy=progress.remedy,
        )  # fmt: skip

    def ask(
        self,
        request: PastRequest,
        what: str,
        arguments: tuple[object, ...],
        patience_s: float,
        seen_by: Visibility | None = None,
    ) -> bytes:
        """The answer of the replica, as JSON, once it is ready. Raises what the engine would; BusyError where it is
        still being made after `patience_s` seconds."""
        replica = self._wanted(request)
        with self._changed:
            self._changed.wait_for(lambda: is_over(replica.progress), patience_s)
        progress = replica.progress
        if progress.code:
            raise of_code(progress.code, progress.problem, progress.remedy)
        if progress.version < 0:
            done = f"{progress.permille // 10}% done"
            raise BusyError(f"the cell as of {utc(request.at_ms)} is being rebuilt, {done}", "Try again later")
        return replica.ask(what, arguments, seen_by)

    def version(self, request: PastRequest) -> int:
        """State version at that time; 0 while it is not ready."""
        replica = self._replicas.get(request)
        return 0 if replica is None else max(0, replica.progress.version)

    def cancel(self, request: PastRequest) -> None:
        """Make it no further, or let it go."""
        with self._changed:
            replica = self._replicas.pop(request, None)
            if replica is not None:
                replica.progress = BuildProgress(code="refused", problem="it was cancelled", remedy="Try again")
                replica.close()
                self._changed.notify_all()

    def _wanted(self, request: PastRequest) -> PastReplica:
        """The replica, begun if there is none that is fine. Raises BusyError and RefusedError."""
        with self._changed:
            self._asked_at = time.monotonic()
            replica = self._replicas.pop(request, None)
            if replica is None or replica.progress.code:
                replica = self._begun(request)
            self._replicas[request] = replica
            return replica

    def _begun(self, request: PastRequest) -> PastReplica:
        if self._closed:
            raise RefusedError("the engine is stopping", "Start it again; the journal is whole")
        building = [each for each in self._replicas.values() if not is_over(each.progress)]
        if len(building) >= MAX_BUILDING:
            raise BusyError(f"{len(building)} earlier times are being rebuilt", "Try again when some of them are done")
        done = [each for each in self._replicas.values() if is_over(each.progress)]
        for old in done[: max(0, len(done) - MAX_REPLICAS + 1)]:
            del self._replicas[old.request]
            old.close()
        replica = PastReplica(request)
        threading.Thread(target=self._follow, args=(replica,), daemon=True, name="past-replica").start()
        return replica

    def _follow(self, replica: PastReplica) -> None:
        """Have it made, and hear how far it is."""
        try:
            self._send(replica)
        except (OSError, MusterError) as error:
            self._note(replica, BuildProgress(code=JournalError.code, problem=f"no copy can be made: {error}"))
            return
        while not is_over(replica.progress):
            heard = replica.hear()
            self._note(replica, heard if heard is not None else _ENDED)

    def _note(self, replica: PastReplica, progress: BuildProgress) -> None:
        with self._changed:
            if not is_over(replica.progress):
                replica.progress = progress
                self._changed.notify_all()

    # -- the process --------------------------------------------------------------------------------------------------

    def _send(self, replica: PastReplica) -> None:
        lanes = replica.hand_over()
        try:
            with self._door:
                control = self._running()
                socket.send_fds(control, [msgspec.msgpack.encode(replica.request)], lanes)
                if not control.recv(1):
                    raise OSError("its process has ended")
        finally:
            for lane in lanes:
                os.close(lane)

    def _running(self) -> socket.socket:
        """The socket of the process, which is started if there is none."""
        if self._process is not None and self._process.poll() is None and self._control is not None:
            return self._control
        assert self._place is not None
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine.past.process"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd=_PACKAGES,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
        self._control = ours
        ours.sendall(msgspec.msgpack.encode(PlaceFields.of(self._place)))
        if not ours.recv(1):
            raise OSError("its process did not start")
        threading.Thread(target=self._end_when_idle, args=(self._process,), daemon=True, name="past-idle").start()
        return ours

    def _end_when_idle(self, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            with self._changed:
                self._changed.wait_for(lambda: self._closed, IDLE_S / 10)
                idle = time.monotonic() - max(
                    [self._asked_at, *(replica.asked_at for replica in self._replicas.values())]
                )
            if self._closed or idle > IDLE_S:
                self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Let everything go. What is asked for later starts another."""
        with self._changed:
            for request in list(self._replicas):
                self.cancel(request)
        with self._door:
            if self._control is not None:
                self._control.close()
                self._control = None
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End all of it. Returns when the process has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        process = self._process
        if process is not None:
            self._end(process)


def is_over(progress: BuildProgress) -> bool:
    return progress.version >= 0 or bool(progress.code)


_ENDED = BuildProgress(
    code=RefusedError.code,
    problem="the process that rebuilds earlier times ended, or needed more memory than it may have",
    remedy="Try again; the engine's log may have more",
)
