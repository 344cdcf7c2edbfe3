"""What Slurm goes by and the mirror does not: each thing once, with how often it was met."""

from __future__ import annotations

import msgspec

MAX_EXAMPLES = 3


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that Slurm goes by and the mirror does not."""

    text: str
    count: int
    """How many nodes, jobs ... it is about."""
    examples: tuple[str, ...]


class UnsupportedCounts:
    """What was left out, each thing once with how often it was met."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def note(self, text: str, example: str) -> None:
        self._counts[text] = self._counts.get(text, 0) + 1
        examples = self._examples.setdefault(text, [])
        if len(examples) < MAX_EXAMPLES and example not in examples:
            examples.append(example)

    def all(self) -> tuple[LeftOut, ...]:
        found = (
            LeftOut(text=text, count=count, examples=tuple(self._examples[text]))
            for text, count in self._counts.items()
        )
        return tuple(sorted(found, key=lambda each: (-each.count, each.text)))
