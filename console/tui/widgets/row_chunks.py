"""The rows of a table that are in memory: chunks of them around what is in view, and what is to be fetched next. No
Textual in here.
"""

from __future__ import annotations

from console.views.lists import Row, Window

CHUNK = 50
"""Rows fetched and kept together."""
KEEP_CHUNKS = 80


class RowChunks:
    """Rows by index, as they were when they were asked for last."""

    def __init__(self) -> None:
        self.matched = -1
        """How many rows there are; -1 before the first answer."""
        self.generation = 0
        """Grows whenever all is asked for anew: rows of an older one are shown until the new ones are there."""
        self._chunks: dict[int, tuple[int, list[Row]]] = {}
        """Generation and rows by chunk, the oldest answer first."""

    def row(self, index: int) -> Row | None:
        chunk, at = divmod(index, CHUNK)
        rows = self._chunks.get(chunk, _NEVER)[1]
        return rows[at] if 0 <= at < len(rows) and index < self.matched else None

    def row_with(self, name: str) -> Row | None:
        """The row of that id, if it is in memory."""
        return next((row for _, rows in self._chunks.values() for row in rows if row.id == name), None)

    def ask_again(self) -> None:
        """What is here is old from now on."""
        self.generation += 1

    def clear(self) -> None:
        self.matched = -1
        self._chunks.clear()

    def put(self, window: Window, asked: int, generation: int) -> None:
        """Rows that arrived in place of the old ones. `asked`: how many there were to be."""
        for start in range(0, asked, CHUNK):
            self._chunks.pop((window.start + start) // CHUNK, None)
            self._chunks[(window.start + start) // CHUNK] = (generation, window.rows[start : start + CHUNK])
        while len(self._chunks) > KEEP_CHUNKS:
            self._chunks.pop(next(iter(self._chunks)))
        self.matched = window.matched

    def missing(self, top: int, height: int, marking: tuple[int, int]) -> tuple[int, int] | None:
        """Offset and limit of what is to be fetched next: what is in view, then its neighbours, then the range that is
        being marked (first and last index)."""
        first, last = top // CHUNK, max(top, min(top + height - 1, max(0, self.matched - 1))) // CHUNK
        if any(self._chunks.get(chunk, _NEVER)[0] != self.generation for chunk in range(first, last + 1)):
            return first * CHUNK, (last - first + 1) * CHUNK
        for chunk in (last + 1, first - 1):
            if 0 <= chunk * CHUNK < self.matched and chunk not in self._chunks:
                return chunk * CHUNK, CHUNK
        for chunk in range(marking[0] // CHUNK, marking[1] // CHUNK + 1):
            if chunk not in self._chunks:
                return chunk * CHUNK, CHUNK
        return None


def range_at(top: int, height: int) -> tuple[int, int]:
    """Offset and limit of the chunks in view."""
    first, last = max(0, top) // CHUNK, max(0, top + height) // CHUNK
    return first * CHUNK, (last - first + 1) * CHUNK


_NEVER: tuple[int, list[Row]] = (-1, [])
"""A chunk that was never fetched."""
