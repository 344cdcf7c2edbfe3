"""Of an engine whose cell is in PostgreSQL: waiting until it may write, and ending when another has taken over."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from console.text.terminal_text import printable
from engine.journal.database import Schema
from engine.journal.outside_readers import StandbyResult, stand_by, wait_for
from engine.journal.postgres_store import Lease
from engine.model.errors import JournalTaken

_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def wait_for_lease(place: Schema, cell: str) -> StandbyResult | None:
    """Wait as a standby. None when a signal said to end. Called on the main thread: signals are its own meanwhile."""
    with _until_signalled() as stop:
        return stand_by(place, stop, lambda news: _say(f"muster standby '{cell}' {news}"))


def wait_for_lease_alone(place: Schema, what: str) -> Lease | None:
    """The same where nothing need be followed meanwhile: `what` reads all it has when it begins."""
    with _until_signalled() as stop:
        return wait_for(place, stop, lambda news: _say(f"muster standby '{what}' {news}"))


@contextlib.contextmanager
def _until_signalled() -> Iterator[threading.Event]:
    """What is set when this process is to end."""
    stop = threading.Event()
    before = {sent: signal.signal(sent, lambda *_: stop.set()) for sent in _ENDS}
    try:
        yield stop
    finally:
        for sent, handler in before.items():
            signal.signal(sent, handler)


def end_when_taken(lease: Lease, failed: Callable[[], bool], what: str = "engine") -> None:
    """End this process as a signal would once another has taken over; and give the lease back when `failed` says that
    the engine does no more work."""
    lease.alive = lambda: not failed()

    def watch() -> None:
        lease.taken.wait()
        if not lease.released:
            _say(f"muster {what} ends: another {what} has taken over, or this one does no more work")
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="lease-watch", daemon=True).start()


def after_loss(lease: Lease, *, again: bool) -> None:
    """What follows when the lease was lost: this process becomes a standby, as a new program that has nothing of the
    old one; without `again` it raises JournalTaken."""
    if not lease.taken.is_set():
        return
    if again:
        _start_again()
    raise JournalTaken(f"another engine has taken over journal {lease.place}", "Attach to that one")


def _start_again() -> NoReturn:
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
