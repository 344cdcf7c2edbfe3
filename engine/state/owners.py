"""Who submitted which workloads: the subject that the door knew the caller as, for good.

Rows are numbered in order of submission, and callers submit many in a row. So ranges are kept, not a column.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

from engine.model.columns import Names, Table


class Owners(Table):
    """Ranges of workload rows with one owner each, ascending. A row in none of them is nobody's."""

    columns = ("names", "first", "end", "owner")

    def __init__(self) -> None:
        self.names = Names()
        self.first = array("i")
        self.end = array("i")
        """The row after the last one of the range."""
        self.owner = array("i")

    def add(self, owner: str, end: int, count: int) -> None:
        """The `count` rows before row `end` are this subject's."""
        name = self.names.add(owner)
        if self.end and self.end[-1] == end - count and self.owner[-1] == name:
            self.end[-1] = end
            return
        self.first.append(end - count)
        self.end.append(end)
        self.owner.append(name)

    def of(self, row: int) -> str:
        """The owner of a workload; empty: nobody."""
        at = bisect_right(self.first, row) - 1
        return self.names.names[self.owner[at]] if at >= 0 and row < self.end[at] else ""
