"""Charts made of text: every one reads without colour, in any width. No Textual in here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def length(count: int, most: int, width: int) -> str:
    """A line as long as a count is large, for comparing counts below each other."""
    return "━" * max(1 if count else 0, count * width // max(1, most)) if width > 0 else ""


_EIGHTHS = " ▁▂▃▄▅▆▇█"


def shrink(values: Sequence[int], width: int) -> list[int]:
    """At most `width` values: means of neighbours, so that the whole span stays in view."""
    if len(values) <= width or width < 2:
        return list(values)
    edges = [index * len(values) // width for index in range(width + 1)]
    return [sum(values[a:b]) // (b - a) for a, b in pairwise(edges)]


def graph(values: Sequence[int], height: int, top: int) -> list[str]:
    """Columns of block characters, `height` lines high, the highest line first."""
    levels = [min(height * 8, max(0, -(-value * height * 8 // top))) for value in values]
    return ["".join(_EIGHTHS[min(8, max(0, level - 8 * row))] for level in levels) for row in range(height - 1, -1, -1)]
