"""Rows that a person has marked, one by one, as a range, or all that match. No Textual in here.

What an action then acts on is exactly these ids; it is never more than one plan takes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from console.views.lists import Row

MOST = 1_000
"""Targets that one plan takes: `runbooks.actions.target_readings.MAX_TARGETS`."""


class Selection:
    """Marked rows in the order in which they were marked."""

    def __init__(self) -> None:
        self.marked: dict[str, Row] = {}
        self.anchor: int | None = None
        """Where the range that is being marked began; None while none is."""
        self._before: dict[str, Row] = {}
        self._turns = 0
        """Grows whenever marks come or go, so that a check that was asked for before does not undo what came after."""

    @property
    def turns(self) -> int:
        return self._turns

    def toggle(self, row: Row) -> bool:
        """Mark it or take its mark away. False: there are as many as one plan takes."""
        self._turns += 1
        if self.marked.pop(row.id, None) is None:
            if len(self.marked) >= MOST:
                return False
            self.marked[row.id] = row
        return True

    def take(self, rows: Iterable[Row]) -> None:
        """These instead."""
        self._turns += 1
        self.anchor = None
        self.marked = {row.id: row for row in rows}

    def clear(self) -> None:
        self.take(())

    def begin(self, index: int) -> None:
        """Begin a range; what was marked before stays marked."""
        self.anchor, self._before = index, dict(self.marked)

    def extend(self, rows: Sequence[Row]) -> None:
        """The range holds these now."""
        self._turns += 1
        added = [row for row in rows if row.id not in self._before][: MOST - len(self._before)]
        self.marked = self._before | {row.id: row for row in added}

    def end(self) -> None:
        """Keep what the range holds."""
        self.anchor = None

    def give_up(self) -> None:
        """As before the range was begun."""
        self._turns += 1
        self.anchor, self.marked = None, self._before

    def span(self, cursor: int) -> tuple[int, int]:
        """First and last index of the range that is being marked up to the cursor, no more of them than one plan takes;
        (0, -1) for none."""
        if self.anchor is None:
            return 0, -1
        if cursor >= self.anchor:
            return self.anchor, min(cursor, self.anchor + MOST - 1)
        return max(cursor, self.anchor - MOST + 1), self.anchor

    def refresh(self, rows: Iterable[Row]) -> None:
        """News of rows that may be marked: an action asks for their state."""
        for row in rows:
            if row.id in self.marked:
                self.marked[row.id] = row

    def keep(self, ids: Collection[str]) -> int:
        """Take away the marks of all others; how many those were."""
        gone = [name for name in self.marked if name not in ids]
        for name in gone:
            del self.marked[name]
        self._turns += bool(gone)
        return len(gone)
