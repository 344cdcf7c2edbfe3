"""What programs write, as lines that may be drawn: bytes of any kind come in, in any pieces."""

from __future__ import annotations

import codecs
import re

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[()][A-Za-z0-9]|\x1b[=>NOMDEHc78]"
)
MAX_LINE = 16_384
"""Letters of a line; a longer one is broken."""


class LogLines:
    """Decodes what comes, and takes it apart. A line that a program has written over again and again, as a progress bar
    does, is what it was last. What colours or moves on a terminal is taken out; whatever else there is is for
    `printable`."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.rest = ""
        """The line that has not ended."""

    def take(self, data: bytes) -> list[str]:
        """The lines that have ended with this."""
        *whole, self.rest = (self.rest + self._decoder.decode(data)).split("\n")
        while len(self.rest) > MAX_LINE:
            whole.append(self.rest[:MAX_LINE])
            self.rest = self.rest[MAX_LINE:]
        return [part for line in whole for part in _broken(as_left(line))]


def as_left(line: str) -> str:
    """A line as a terminal would show it in the end."""
    line = line.rstrip("\r")
    if "\r" in line:
        line = line[line.rindex("\r") + 1 :]
    return _ESCAPES.sub("", line).expandtabs() if "\x1b" in line or "\t" in line else line


def _broken(line: str) -> list[str]:
    return [line[at : at + MAX_LINE] for at in range(0, len(line), MAX_LINE)] or [""]
