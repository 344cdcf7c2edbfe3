"""Places outside the log where its checkpoints are remembered: who changes the log cannot change those.

A place may hang, as a disk of the network does: it is written to on a thread of its own, and what fails is told.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from engine.model.errors import SpecError
from runbooks.audit.verify import read_note

MAX_WAITING = 64
"""Checkpoints that wait for a slow place; then the oldest is left out: each stands for all before it."""
CLOSE_S = 2.0
SYSLOG = "/dev/log"
NOTICE = 13 * 8 + 5
"""Facility "log audit", severity "notice" (RFC 5424)."""


class Anchor(Protocol):
    """A place outside the log where checkpoints are remembered."""

    name: str

    def publish(self, note: str) -> None:
        """Raises OSError."""


class FileAnchor:
    """A file to which checkpoints are appended: on another disk, on another machine, in a work tree of git."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path

    def publish(self, note: str) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        try:
            os.write(file, f"{note}\n".encode())
            os.fsync(file)
        finally:
            os.close(file)


class SyslogAnchor:
    """The system's log: one line, `muster-audit/<log> <records> <root>`. `verify --against` reads it too."""

    name = "syslog"

    def __init__(self, address: str = SYSLOG) -> None:
        self._address = address

    def publish(self, note: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
            log.settimeout(CLOSE_S)
            log.connect(self._address)
            log.send(f"<{NOTICE}>muster: {one_line(note)}".encode())


def one_line(note: str) -> str:
    """A checkpoint where there is room for one line."""
    return " ".join(read_note(note).text.splitlines()[:3])


def anchors_of(text: str) -> tuple[Anchor, ...]:
    """The places that a setting lists, as in `file:/mnt/other/muster.notes, syslog`. Raises SpecError."""
    found: list[Anchor] = []
    for place in filter(None, map(str.strip, text.split(","))):
        kind, _, rest = place.partition(":")
        if place == "syslog":
            found.append(SyslogAnchor())
        elif kind == "file" and Path(rest).is_absolute():
            found.append(FileAnchor(Path(rest)))
        else:
            raise SpecError("audit_anchors", f"{place[:80]!a} is no anchor", "Give `syslog` or `file:/path/of/a/file`")
    return tuple(found)


class AnchorPublisher:
    """Publishes notes at all places, one after the other, on a thread of its own."""

    def __init__(self, places: Sequence[Anchor]) -> None:
        self.error = ""
        """What failed last; empty when the last note is everywhere."""
        self.newest = ""
        """The last note that is everywhere."""
        self.names = tuple(place.name for place in places)
        self._places = tuple(places)
        self._waiting: queue.Queue[str] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None

    def publish(self, note: str) -> None:
        """At once, without waiting for it."""
        if not self._places:
            return
        while True:
            try:
                self._waiting.put_nowait(note)
                break
            except queue.Full:
                self._leave_out()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="audit-anchors", daemon=True)
            self._thread.start()

    def _leave_out(self) -> None:
        try:
            self._waiting.get_nowait()
        except queue.Empty:
            return
        self.error = "the anchors of the audit do not keep up"

    def _run(self) -> None:
        while note := self._waiting.get():
            failed = [told for place in self._places if (told := _publish(place, note))]
            self.error = "; ".join(failed)
            if not failed:
                self.newest = note

    def close(self) -> None:
        """Wait for what is under way, for CLOSE_S at most."""
        if self._thread is not None:
            self._waiting.put("")
            self._thread.join(CLOSE_S)


def _publish(place: Anchor, note: str) -> str:
    """Why it failed; empty when it did not."""
    try:
        place.publish(note)
    except OSError as error:
        return f"the audit's anchor {place.name} cannot be written: {error.strerror or error}"
    return ""
