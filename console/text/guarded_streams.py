"""Guarded standard output and standard error: no text written there can act on a terminal.

Foreign names pass `printable` where lines are made. Everything else, such as messages of libraries and tracebacks,
passes this last door, so that a log file is safe to `cat`.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any, TextIO, cast

_ACTS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and line end, DEL, C1
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # soft hyphen, joiners, invisible letters
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero width, line separators, bidi controls
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffc"  # fillers, variation selectors, byte order mark
    "\ud800-\udfff\U000e0000-\U000e0fff]"  # lone surrogates, tags
)


def inert(text: str) -> str:
    """Text of any length and of many lines as it is, but for what could act on a terminal or hide: that as a visible
    escape. For output and logs as a whole; a name among other words passes `printable` before."""
    return text if text.isascii() and text.isprintable() else _ACTS.sub(lambda found: escaped(found[0]), text)


def inert_json(text: str) -> str:
    """JSON that says the same, with what could act on a terminal or hide in the escapes of JSON."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _ACTS.sub(
        lambda found: f"\\u{ord(found[0]):04x}" if found[0] < "\U00010000" else json.dumps(found[0])[1:-1], text
    )


def escaped(char: str) -> str:
    """A character as a person can read it, and no terminal obeys."""
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class GuardedStream:
    """A stream of text to which only `inert` text is written; for the rest it is the stream within."""

    def __init__(self, within: IO[str]) -> None:
        self.within = within

    def write(self, text: str) -> int:
        self.within.write(inert(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.within, name)


class VanishingTerminal:
    """A terminal that may go away: what is written to it after that is dropped. An error would end the thread that
    draws, and then nobody empties its queue, and the console waits for ever for room in it instead of ending."""

    def __init__(self, within: IO[str]) -> None:
        self.within = within

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self.within.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.within.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.within, name)


def draw_on_what_may_vanish() -> None:
    """For the rest of the process: Textual draws on `sys.__stderr__`."""
    if sys.__stderr__ is not None:
        sys.__stderr__ = cast(TextIO, VanishingTerminal(sys.__stderr__))


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Until the end, nothing that is printed can act on a terminal."""
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast(Any, GuardedStream(out)), cast(Any, GuardedStream(err))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


def exact_output() -> IO[str]:
    """Standard output for what must keep its bytes, such as records that are checked elsewhere: into a file or a pipe
    as it is, to a terminal as anything else."""
    out = sys.stdout
    return out.within if isinstance(out, GuardedStream) and not out.isatty() else out


def write_over(text: str) -> None:
    """Write one line on standard error over the last one; an empty text removes it."""
    line = inert(text).replace("\n", escaped("\n")).replace("\t", " ")
    err = sys.stderr.within if isinstance(sys.stderr, GuardedStream) else sys.stderr
    err.write(f"\r\x1b[K{line}")
    err.flush()
