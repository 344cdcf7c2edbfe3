"""Pages as they are said: one fact a line, in words, for a screen reader. No Textual in here.

The same sections and rows as on the screen. What only lends shape there is left out: bars, rules, glyphs beside their
words. Columns become "name: value, value".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from console.text.terminal_text import NONE, printable
from console.views.decisions.proposal import GUTTER, HANG
from console.views.lists import Heading, Row
from console.views.sections import Line, Section

QUOTED = "quoted: "
"""Before what somebody else wrote: on the screen it stands behind a gutter."""
FACTS = 7
"""Of a row; its page has the rest."""

_SHAPES = re.compile("[\u2500-\u259f\u2800-\u28ff]+")
"""Rules, bars, charts."""
_GLYPHS = re.compile("[○◇◔●✓✗⊘‖◌◑◂↵▸▾☐☑■□▲▼◆★☆]")
"""What always stands beside its word."""
_WORDS = {
    "·": ", ",
    "›": ", ",
    "…": " and more",
    "⇧": "",
    "↑": " rising",
    "↓": " falling",
    "≤": " at most ",
}
_GAP = re.compile(r"\s{2,}")


class SpokenLine(NamedTuple):
    """One line, and the command that tells more of it."""

    text: str
    link: str = ""


def said_of(sections: Sequence[Section]) -> list[SpokenLine]:
    """Each section by its title, then its facts; one without facts is left out."""
    said: list[SpokenLine] = []
    for section in sections:
        facts = _facts(section.lines)
        if facts:
            title = spoken(f"{section.title}  {section.note}" if section.note else section.title)
            said += [SpokenLine(f"{title}." if said or section.title else title), *facts]
    return said


def _facts(lines: Sequence[Line]) -> list[SpokenLine]:
    """What a line goes on with below joins it."""
    facts: list[SpokenLine] = []
    for line in lines:
        text = "".join(part for part, _ in line.spans)
        bare = text.lstrip()
        if bare.startswith(HANG) and facts:
            facts[-1] = facts[-1]._replace(text=f"{facts[-1].text} {spoken(bare[len(HANG) :])}")
        elif bare.startswith(GUTTER.rstrip()):
            facts.append(SpokenLine(QUOTED + printable(bare[len(GUTTER) :]), line.link))
        elif told := spoken(text):
            facts.append(SpokenLine(told, line.link))
    return facts


def spoken(text: str) -> str:
    """A line of the screen in words."""
    text = _GLYPHS.sub(" ", _SHAPES.sub("   ", text))
    if text.lstrip().startswith("→"):
        text = "so " + text.replace("→", "", 1).lstrip()
    text = re.sub(r"\s*→\s*", " to ", text)
    for sign, word in _WORDS.items():
        text = text.replace(sign, word)
    parts = [part for part in (_tidy(part) for part in _GAP.split(text)) if part]
    if len(parts) < 2:
        return parts[0] if parts else ""
    first = parts[0] if parts[0].endswith((":", ",", ".")) else f"{parts[0]}:"
    return f"{first} {', '.join('none' if part == NONE else part for part in parts[1:])}"


def _tidy(part: str) -> str:
    return re.sub(r"\s+,", ",", " ".join(part.split())).strip(", ")


def row_said(row: Row, headings: Sequence[Heading], link: str = "") -> SpokenLine:
    """A row of a table: what it is, then its most important columns by name. What is nothing is left out."""
    texts = [spoken(text) if index else printable(text) for index, (text, _) in enumerate(row.cells)]
    named = [
        f"{heading.title.lower()} {text}"
        for heading, text in zip(headings[1:], texts[1:], strict=False)
        if text not in ("", "0", NONE)
    ]
    return SpokenLine(f"{texts[0]}: {', '.join(named[:FACTS])}", link)


def changes(before: Sequence[SpokenLine], now: Sequence[SpokenLine]) -> list[SpokenLine]:
    """What a page says now that it did not say before, and the reverse."""
    was, is_now = {line.text for line in before}, {line.text for line in now}
    new = [line for line in now if line.text not in was]
    gone = [SpokenLine(f"no more: {line.text}") for line in before if line.text not in is_now]
    return [*new, *gone] if new or gone else [SpokenLine("nothing has changed")]
