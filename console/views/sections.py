"""What pages of sections are made of. No Textual in here.

A page is sections of lines. A line may carry a link: the command that the `:` bar would take to go there.
"""

from __future__ import annotations

from typing import NamedTuple

from console.text.terminal_text import fit, mebibytes, milli, permille, printable
from console.views.lists import Span, meter


class Line(NamedTuple):
    spans: tuple[Span, ...] = ()
    link: str = ""


class Section(NamedTuple):
    title: str
    lines: tuple[Line, ...]
    note: str = ""


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
        tone = "bar" if share < 950 else "warn"
        spans = ((fit(title, 7), "dim"), (meter(share, bar), tone), (f" {permille(share):>4} ", ""))
        lines.append(Line((*spans, (f"{amount:>{longest}}", "dim"))))
    return lines


def quantity(name: str, value: int) -> str:
    """A quantity of the resource vector with its unit; large ones without fractions."""
    if not name.endswith("_milli"):
        return mebibytes(value)
    return milli(value) if value < 100_000 else milli(round(value, -3))


def fact(label: str, text: str, tone: str = "") -> Line:
    return Line(((fit(label, max(11, len(label) + 1)), "dim"), (printable(text), tone)))


def plural(word: str, count: int) -> str:
    return word if count == 1 else word + "s"
