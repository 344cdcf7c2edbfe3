"""Lines of a person or a pipe, as they come."""

from __future__ import annotations

import os
import select

from engine.model.errors import SpecError

LONGEST = 4_000
"""Bytes of a line that is read."""
_CHUNK = 65_536


class Lines:
    """Reads a descriptor line by line, and knows whether there is more to read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._kept = b""
        self._ended = False
        self.at_terminal = os.isatty(descriptor)

    def line(self) -> str | None:
        """The next line; None once there is none. Raises SpecError for one that is too long, which is dropped."""
        while b"\n" not in self._kept and not self._ended:
            self._kept = self._kept[: LONGEST + 1] + self._more()
        line, found, self._kept = self._kept.partition(b"\n")
        if not line and not found:
            self._ended = False  # a terminal may go on after Ctrl-D
            return None
        if len(line) > LONGEST:
            raise SpecError("", f"a line has at most {LONGEST:,} bytes; that one was not read")
        return line.decode(errors="replace").strip()

    def waiting(self) -> bool:
        """Whether a line, a part of one, or the end is there already."""
        return bool(self._kept) or bool(select.select([self._descriptor], [], [], 0)[0])

    def forget(self) -> None:
        """At a terminal: what was typed before it was asked for is no answer."""
        if self.at_terminal:
            import termios

            termios.tcflush(self._descriptor, termios.TCIFLUSH)
            self._kept = b""

    def _more(self) -> bytes:
        read = os.read(self._descriptor, _CHUNK)
        self._ended = not read
        return read
