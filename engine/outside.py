"""What the scheduler that decides says of the work of a cell that Muster mirrors; empty where Muster decides itself."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from engine.columns import Names, Table

SILENT = -1


class Outside(Table):
    """Its words by workload row. They are shown and explained; no decision goes by them."""

    columns = ("words", "word")

    def __init__(self) -> None:
        self.words = Names()
        self.word = array("i")
        """Index into `words`; SILENT where it says nothing, and for rows beyond the end."""

    def word_of(self, row: int) -> str:
        """Why the workload waits or how it ended, in its word; empty where it says nothing."""
        said = self.word[row] if row < len(self.word) else SILENT
        return "" if said == SILENT else self.words.names[said]

    def forget(self) -> None:
        """In a fork time goes on without the scheduler that said it."""
        self.words = Names()
        self.word = array("i")

    def say(self, said: Iterable[tuple[int, str]]) -> None:
        for row, word in said:
            missing = row + 1 - len(self.word)
            if missing > 0:
                self.word.extend([SILENT] * missing)
            self.word[row] = self.words.add(word) if word else SILENT
