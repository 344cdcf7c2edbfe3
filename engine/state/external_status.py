"""What the scheduler that decides says of the work of a cell that Muster mirrors; empty where Muster decides itself."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from engine.tables.columns import Names, Table

SILENT = -1


class Outside(Table):
    """Its words by workload row. They are shown and explained; no decision goes by them. And which nodes it has powered
    down: what a fork starts there takes a boot to begin."""

    columns = ("words", "word", "boot_ms")

    def __init__(self) -> None:
        self.words = Names()
        self.word = array("i")
        """Index into `words`; SILENT where it says nothing, and for rows beyond the end."""
        self.boot_ms: dict[int, int] = {}
        """Row of a node that is powered down -> how long its boot is likely to take."""

    def word_of(self, row: int) -> str:
        """Why the workload waits or how it ended, in its word; empty where it says nothing."""
        said = self.word[row] if row < len(self.word) else SILENT
        return "" if said == SILENT else self.words.names[said]

    def forget(self) -> None:
        """In a fork time goes on without the scheduler that said it."""
        self.words = Names()
        self.word = array("i")

    def powered_down(self, nodes: Iterable[int], boot_ms: int) -> None:
        """0: they are on."""
        for node in nodes:
            self.boot_ms.pop(node, None)
            if boot_ms:
                self.boot_ms[node] = boot_ms

    def say(self, said: Iterable[tuple[int, str]]) -> None:
        for row, word in said:
            missing = row + 1 - len(self.word)
            if missing > 0:
                self.word.extend([SILENT] * missing)
            self.word[row] = self.words.add(word) if word else SILENT
