"""One long list read while the answer that holds it still comes.

`Cutter` reads its entries: 100,000 jobs are 0.8 GB of text, and need not be in memory at once. Text
that begins where an entry does and is whole JSON is that entry. So the end of an entry is guessed by what stood between
the first two, and tried. What is not cut out is read as any other answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

NOT_PLAIN_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises of a text that a slower reader may still be able to read."""
T = TypeVar("T")
_NEXT = re.compile(rb"\}(\s*,\s*\{\s*\"[^\"\\]{1,100}\"\s*:)")
MAX_FAILS = 1_000
"""After so many wrong guesses in a row it is no longer tried: an entry is not such JSON as can be told to be whole."""
LONGEST_FIRST = 8 << 20
"""Bytes of a first entry, after which its end is no longer looked for."""
_IS_JSON = msgspec.json.Decoder(msgspec.Raw)


class Cutter(Generic[T]):
    """Feed it an answer, then `rest`. `read` is called with each entry of the list of that name that was cut out."""

    def __init__(self, name: str, read: Callable[[msgspec.Raw], T]) -> None:
        self._begins = re.compile(rb'(?<!\\)"' + name.encode() + rb'"\s*:\s*\[\s*(?=\{)')
        self._read = read
        self._held = bytearray()
        """What came and is not cut yet; once the list has begun, from the beginning of an entry on."""
        self._before = b""
        """Of the answer, up to its first entry."""
        self._between = b""
        """From the end of an entry to the first key of the next."""
        self._searched = 0
        """Up to where in `_held` no end was found."""
        self._fails = 0
        """Guesses in a row that were wrong."""
        self.found: list[T] = []
        self.bad: list[tuple[int, str]] = []
        """Of each entry that could not be read at all, which it is, from 1 on, and why."""

    def feed(self, chunk: bytes) -> None:
        self._held += chunk
        if not self._before:
            begins = self._begins.search(self._held)
            if begins is None:
                return
            self._before = bytes(self._held[: begins.end()])
            del self._held[: begins.end()]
        if self._fails > MAX_FAILS or (not self._between and not self._learn()):
            return
        cut, mark = 0, b"}" + self._between
        while self._fails <= MAX_FAILS and (end := self._held.find(mark, self._searched)) >= 0:
            self._searched = end + 1
            if self._take(bytes(self._held[cut : end + 1])):
                cut = end + 1 + self._between.index(b"{")
        self._searched = max(self._searched, len(self._held) - len(mark) + 1, cut) - cut
        del self._held[:cut]

    @property
    def count(self) -> int:
        """Entries that were cut out so far."""
        return len(self.found) + len(self.bad)

    def rest(self) -> bytes:
        """The answer without the entries that were cut out; nothing more comes."""
        return self._before + bytes(self._held)

    def _learn(self) -> bool:
        """Find what stands between two entries: behind the first."""
        for found in _NEXT.finditer(self._held, self._searched):
            self._searched = found.start() + 1
            if self._is_json(bytes(self._held[: found.start() + 1])):
                self._between, self._searched = found[1], found.start()
                return True
            # A job on many nodes has thousands of objects in it.
            self._fails = MAX_FAILS + 1 if len(self._held) > LONGEST_FIRST else 0
        return False

    def _take(self, entry: bytes) -> bool:
        """Return whether it is a whole entry."""
        if not self._is_json(entry):
            return False
        try:
            self.found.append(self._read(msgspec.Raw(entry)))
        except (ValueError, TypeError, RecursionError) as error:
            self.bad.append((self.count + 1, str(error)[:200]))
        return True

    def _is_json(self, text: bytes) -> bool:
        try:
            _IS_JSON.decode(text)
        except NOT_PLAIN_JSON:
            self._fails += 1
            return False
        self._fails = 0
        return True
