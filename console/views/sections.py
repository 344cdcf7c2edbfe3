"""Sections: headed lines of which a page consists, with links and bars.

A link is the line that the `:` bar would take to go there. `section_lines` gives the same sections as plain text to
the shell. Every part of a bar has its own sign, so that it reads without colour.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len

from console.text.terminal_text import fit, mebibytes, milli, permille, printable, wrap
from console.views.lists import TRACK, Span, meter


class Line(NamedTuple):
    spans: tuple[Span, ...] = ()
    link: str = ""


HEADING = 78
"""Cells of a heading and its note on one line of the shell."""


class Section(NamedTuple):
    title: str
    lines: tuple[Line, ...]
    note: str = ""
    keys: str = ""
    """Keys and commands of the console that go with it. A screen shows them behind the note; the shell does not."""


def section_lines(sections: Sequence[Section]) -> list[str]:
    """Sections as plain text for the shell: each heading with its note, then its lines, indented by two. A note that is
    too long for the line of its heading stands below it."""
    lines: list[str] = []
    for section in sections:
        head = f"{section.title}  ({section.note})" if section.note else section.title
        below = wrap(section.note, HEADING) if cell_len(head) > HEADING else []
        lines += [""] if lines else []
        lines += [section.title, *(f"  {part}" for part in below)] if below else [head]
        lines += [("  " + "".join(text for text, _ in line.spans)).rstrip() for line in section.lines]
    return lines


_CURVED = re.compile(r'curve (?P<asked>.+)|(?:nodes |workloads )?(?P<of>queue|node|pool|tenant)[ :]"?(?P<name>[^"]+)"?')
"""Links to something that is measured over time."""
_CELL_CURVES = {
    "cost": "cell cost",
    "nodes state:down": "cell nodes_down",
    "workloads state:queued sort:-wait": "cell age",
}


def curve_of(link: str) -> str:
    """The argument of `:curve` for what a link leads to; empty where that is not measured."""
    found = _CURVED.fullmatch(link)
    if found is None:
        return _CELL_CURVES.get(link, "")
    return found["asked"] or f"{found['of']}:{found['name']}"


def text_line(text: str, tone: str = "", link: str = "") -> Line:
    return Line(((printable(text), tone),), link)


def loading(title: str) -> Section:
    """A section whose data have not come yet: what there is, or that there is nothing, is not known."""
    return Section(title, (text_line("loading …", "dim"),))


_RESOURCES = (("gpu_milli", "GPU"), ("cpu_milli", "CPU"), ("memory_mib", "memory"), ("disk_mib", "disk"))


def fact_bars(capacity: dict[str, int], used: dict[str, int], width: int) -> list[Line]:
    """A bar for each resource there is, all of one length."""
    there = [(name, title) for name, title in _RESOURCES if capacity.get(name)]
    amounts = [f"{quantity(name, used.get(name, 0))} / {quantity(name, capacity[name])}" for name, _ in there]
    longest = max((len(amount) for amount in amounts), default=0)
    bar = max(4, width - 7 - 6 - longest)
    lines = []
    for (name, title), amount in zip(there, amounts, strict=True):
        share = used.get(name, 0) * 1000 // capacity[name]
        spans = ((fit(title, 7), "dim"), *metered(share, bar, "bar"), (f" {permille(share):>4} ", ""))
        lines.append(Line((*spans, (f"{amount:>{longest}}", "dim"))))
    return lines


def quantity(name: str, value: int) -> str:
    """A quantity of the resource vector with its unit; large ones without fractions."""
    if not name.endswith("_milli"):
        return mebibytes(value)
    return milli(value) if value < 100_000 else milli(round(value, -3))


FACT = 11
"""Cells of the label of a fact: where its value begins."""


def fact(label: str, text: str, tone: str = "") -> Line:
    return Line(((fit(label, max(FACT, len(label) + 1)), "dim"), (printable(text), tone)))


def plural(word: str, count: int) -> str:
    return word if count == 1 else word + "s"


class BarPart(NamedTuple):
    """A kind of use, its sign in a bar and its word beside a number."""

    sign: str
    word: str
    tone: str


USED = BarPart("━", "used", "bar")
BORROWED = BarPart("═", "borrowed", "info")
BURST = BarPart("≡", "burst", "warn")
LENT = BarPart("╱", "lent", "info")
IDLE = BarPart("┄", "idle", "faint")
OUT = BarPart("◇", "excluded", "warn")
DOWN = BarPart("x", "down", "bad")
BOOTING = BarPart("o", "booting", "info")

Amounts = Sequence[tuple[BarPart, int]]


def bar(amounts: Amounts, width: int) -> list[Span]:
    """A bar of exactly `width` cells, divided as the amounts are. What is not nothing has a cell, if there is one.
    Where some is used and the rest idle, the use ends in half a cell."""
    amounts = [(part, amount) for part, amount in amounts if amount > 0]
    if [part for part, _ in amounts] == [USED, IDLE]:
        (_, used), (_, idle) = amounts
        return metered(min(max(1, used * 1000 // (used + idle)), 999), width, USED.tone)
    cells = _shared([amount for _, amount in amounts], width)
    spans = [(part.sign * count, part.tone) for (part, _), count in zip(amounts, cells, strict=True) if count]
    left = width - sum(cells)
    return [*spans, (" " * left, "")] if left > 0 else spans


def metered(share: int, width: int, tone: str) -> list[Span]:
    """A meter for a share in permille: what is filled in its tone, the rest as a faint track."""
    drawn = meter(share, width)
    filled = drawn.rstrip(TRACK)
    return [(filled, tone), (drawn[len(filled) :], IDLE.tone)]


def _shared(amounts: Sequence[int], width: int) -> list[int]:
    """Cells for each amount: in proportion, at least one each while they last."""
    total = sum(amounts)
    if not total or width < 1:
        return [0] * len(amounts)
    if len(amounts) >= width:
        largest = sorted(range(len(amounts)), key=lambda i: -amounts[i])[:width]
        return [int(i in largest) for i in range(len(amounts))]
    spare = width - len(amounts)
    cells = [1 + amount * spare // total for amount in amounts]
    rest = sorted(range(len(amounts)), key=lambda i: -(amounts[i] * spare % total))
    for i in rest[: width - sum(cells)]:
        cells[i] += 1
    return cells


def quota_parts(used: int, nominal: int | None, borrowed: int, lent: int, burst: int = 0) -> list[tuple[BarPart, int]]:
    """Parts of a queue's use and quota: own, borrowed, burst, lent, idle. Without a quota, its use."""
    if nominal is None:
        return [(USED, used)]
    burst = min(burst, borrowed)
    own = max(0, used - borrowed)
    lent = min(lent, max(0, nominal - own))
    return [
        (USED, own),
        (BORROWED, borrowed - burst),
        (BURST, burst),
        (LENT, lent),
        (IDLE, max(0, nominal - own - lent)),
    ]


def legend(parts: Sequence[BarPart]) -> list[Span]:
    """The meaning of the signs."""
    spans: list[Span] = []
    for part in parts:
        spans += [(part.sign, part.tone), (f" {part.word}  ", "dim")]
    return spans
