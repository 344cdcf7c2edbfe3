"""Text that is safe for a terminal, and quantities as people read and write them.

Every foreign string passes `printable` before it is drawn: Textual forwards raw control bytes to the terminal. `show`
and `read_value` are the two directions of the same units.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime
from functools import lru_cache

from rich.cells import cell_len

from console.text.guarded_streams import escaped
from engine.model.quantities import usd

NONE = "–"
"""Text of a value that does not apply."""
LONGEST = 4_096
"""No cell, sentence or dialog line is longer; what lies beyond is cut before it costs anything."""
MAX_MARKS = 3
"""Marks on one letter that are drawn: more of them reach into the lines around it."""

_FINE = re.compile(
    "[ -~\xa1-\xac\xae-\u024f\u0400-\u0482\u048a-\u052f\u2010-\u2027\u2030-\u205e\u2190-\u2328\u232b-\u23ff"
    "\u2500-\u27bf\u3041-\u3096\u30a1-\u30ff\u4e00-\u9fff\uac00-\ud7a3]*"
)
"""Letters and signs that need no second look: each stands for itself, in cells of its own."""
_UNSEEN = re.compile(
    "[\u034f\u115f-\u11ff\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufffc\ud7b0-\ud7ff"
    "\u2e3a\u2e3b\ua9c5\ufdfa\ufdfb\ufdfd\U00012031\U0001242b\U000e0100-\U000e01ef]"
)
"""Drawn as nothing, into their neighbour, or far beyond their cell, though Unicode calls them letters or marks."""
_LINK = re.compile(r"://|\b(?:www\.|mailto:)", re.IGNORECASE)

_EXAMPLE_LINK = re.compile(r"\[:\]//(?=(?:127\.0\.0\.1|(?:USER@)?HOST)(?::(?:\d+|PORT))?(?![\w.:@%-]))")
"""A broken link to this machine, or to a HOST that stands for one."""


def printable(text: str) -> str:
    """A foreign text as it may be drawn: `visible`, and its links such that no terminal makes them clickable
    (`https[:]//`). What it returns it leaves as it is."""
    text = visible(text)
    if "://" in text or "www." in (lower := text.lower()) or "mailto:" in lower:
        text = _LINK.sub(lambda link: f"{link[0][:-1]}[{link[0][-1]}]" if link[0] != "://" else "[:]//", text)
    return text[:LONGEST]


def remedy_text(text: str) -> str:
    """A remedy as it may be drawn: `printable`, with the URLs of its examples whole."""
    return _EXAMPLE_LINK.sub("://", printable(text))


def visible(text: str) -> str:
    r"""A line that hides nothing: whatever could act on a terminal, draws nothing or reorders letters becomes an escape
    such as `\x1b` or `\u202e`, whitespace becomes spaces, and a letter keeps three marks. NFC, at most `LONGEST`
    characters. Alone only for a line that a person edits, where a link must stay as it is."""
    if len(text) > LONGEST:
        text = text[:LONGEST]
    if (text.isascii() and text.isprintable()) or _FINE.fullmatch(text):
        return text
    return _escaped(text)[:LONGEST]


@lru_cache(maxsize=512)
def _escaped(text: str) -> str:
    shown: list[str] = []
    marks = -1  # there is no letter yet that could bear one
    for char in unicodedata.normalize("NFC", _without_floods(text)):
        category = unicodedata.category(char)
        if category[0] == "C" or category in ("Zl", "Zp") or _UNSEEN.match(char):
            shown.append(" " if char in "\t\n\r\v\f" else escaped(char))
            marks = -1
        elif category[0] == "M":
            if marks < 0:  # it would lie on what stands before this text
                shown.append(escaped(char))
            elif marks < MAX_MARKS:
                shown.append(char)
                marks += 1
        else:
            shown.append(" " if category == "Zs" else char)
            marks = -1 if category == "Zs" else 0
    return "".join(shown)


def _without_floods(text: str) -> str:
    """To put marks in order takes the square of their number."""
    kept: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.combining(char) else 0
        if marks <= 4 * MAX_MARKS:
            kept.append(char)
    return "".join(kept)


MIN_CUT_NAME = 5
"""Cells in which a beginning, an ellipsis and an end have room."""


def cut(text: str, width: int) -> str:
    """The text in at most `width` terminal cells, with an ellipsis where something is missing."""
    if width <= 0:
        return ""
    if text.isascii():
        return text if len(text) <= width else text[: width - 1] + "…"
    if cell_len(text) <= width:
        return text
    used = 0
    for index, char in enumerate(text):
        used += cell_len(char)
        if used > width - 1:
            return text[:index] + "…"
    return text


def cut_name(name: str, width: int) -> str:
    """A name in at most `width` terminal cells: its beginning and, as that is where names differ, rather its end."""
    if cell_len(name) <= width or width < MIN_CUT_NAME:
        return cut(name, width)
    head = cut(name, (width + 2) // 3)
    tail, room = "", width - cell_len(head)
    for char in reversed(name):
        if cell_len(char + tail) > room:
            break
        tail = char + tail
    return head + tail


def fit_name(name: str, width: int, *, right: bool = False) -> str:
    """The name cut or padded to exactly `width` cells."""
    return fit(cut_name(name, width), width, right=right)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """The text cut or padded to exactly `width` cells."""
    text = cut(text, width)
    padding = " " * (width - (len(text) if text.isascii() else cell_len(text)))
    return padding + text if right else text + padding


def wrap(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` cells, broken at spaces where that is possible."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        while cell_len(word) > width:
            head = cut(word, width)
            lines.extend([line] if line else [])
            line, word = "", word[len(head) - 1 :]
            lines.append(head[:-1])
        if line and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line or not lines else lines


def milli(value: int) -> str:
    """Milli-CPU or milli-GPU as whole units: 8000 -> "8", 250 -> "0.25"."""
    whole, rest = divmod(abs(value), 1000)
    sign = "-" if value < 0 else ""
    return f"{sign}{whole:,}" + (f".{rest:03d}".rstrip("0") if rest else "")


def mebibytes(value: int) -> str:
    """MiB in the largest unit that keeps it short: "512 MiB", "1.5 TiB"."""
    for unit, size in (("PiB", 1 << 30), ("TiB", 1 << 20), ("GiB", 1 << 10)):
        if abs(value) >= size:
            number = value / size
            return f"{number:.0f} {unit}" if number >= 100 or value % size == 0 else f"{number:.1f} {unit}"
    return f"{value} MiB"


def duration(ms: int) -> str:
    """Milliseconds in at most two units: "45s", "4m 10s", "12m", "3h 5m", "3d 4h"."""
    if ms < 0:
        return "-" + duration(-ms)
    seconds = ms // 1000
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m {seconds}s" if minutes < 10 and seconds else f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes}m" if minutes else f"{hours}h"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h" if hours and days < 100 else f"{days:,}d"


def timestamp(ms: int, *, date: bool = True) -> str:
    """Unix milliseconds as UTC: "2026-03-01 12:00:05"."""
    try:
        when = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return f"{ms} ms"
    return when.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S")


def wall_time(ms: int, *, date: bool = True) -> str:
    """A time of people's clocks: "2026-03-01 12:00:05 UTC (wall)". Votes, records, incidents and policies have one. All
    other times are the cell's, which may run ahead of people's, or faster; they are a `timestamp`."""
    return f"{timestamp(ms, date=date)} UTC (wall)"


def permille(value: int) -> str:
    """Parts per thousand as percent. Rounded down: a node with room left never reads 100 %."""
    return f"{value // 10}%"


_SHOW = {
    "count": lambda value: f"{value:,}",
    "cpu": milli,
    "gpu": milli,
    "memory": mebibytes,
    "disk": mebibytes,
    "duration": duration,
    "time": lambda value: timestamp(value)[5:],
    "permille": permille,
    "money": usd,
}


def show(unit: str, value: object) -> str:
    """A cell's value for people, by the unit of its column."""
    if value is None or value == "":
        return NONE
    if isinstance(value, int) and unit in _SHOW:
        return _SHOW[unit](value)
    return printable(str(value))


_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z%]*)")
_MEMORY = {"k": 1 / 1024, "m": 1, "g": 1 << 10, "t": 1 << 20, "p": 1 << 30}
_DURATION = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_TIMES = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%d")


def read_value(unit: str, text: str) -> int:
    """Read a typed value into the unit of the column. Raises ValueError that says which forms are understood."""
    if unit == "duration":
        return _read_duration(text)
    if unit == "time":
        return _read_time(text)
    match = _NUMBER.fullmatch(text.strip().removeprefix("$") if unit == "money" else text.strip())
    if not match:
        raise ValueError(f"'{printable(text)}' is not a number{_EXAMPLE.get(unit, '')}")
    return _READ[unit](float(match[1]), match[2].lower())


def _read_duration(text: str) -> int:
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if not parts or "".join(a + b for a, b in parts) != re.sub(r"\s", "", text.lower()):
        raise ValueError(f"'{printable(text)}' is not a duration; write it like 90s, 15m, 2h30m or 3d")
    if any(suffix not in _DURATION for _, suffix in parts) and parts != [("0", "")]:
        raise ValueError(f"'{printable(text)}' needs a unit; write it like 90s, 15m, 2h30m or 3d")
    return round(sum(float(number) * _DURATION.get(suffix, 1) for number, suffix in parts))


def _read_time(text: str) -> int:
    for layout in _TIMES:
        try:
            return int(datetime.strptime(text.strip().rstrip("Z"), layout).replace(tzinfo=UTC).timestamp() * 1000)
        except ValueError:
            continue
    raise ValueError(f"'{printable(text)}' is not a time; write it like 2026-03-01 or 2026-03-01T14:30 (UTC)")


def _read_memory(number: float, suffix: str) -> int:
    suffix = suffix.removesuffix("ib").removesuffix("b")
    if suffix not in _MEMORY and number:
        raise ValueError("memory needs a unit; write it like 512m, 64g or 1.5t")
    return round(number * _MEMORY.get(suffix, 1))


def _read_milli(number: float, suffix: str) -> int:
    if suffix not in ("", "m"):
        raise ValueError(f"'{suffix}' is not a unit of it; write it like 8, 0.5 or 500m")
    return round(number if suffix else number * 1000)


def _read_count(number: float, suffix: str) -> int:
    if suffix or number != int(number):
        raise ValueError("needs a whole number; write it like 8")
    return int(number)


def _read_percent(number: float, suffix: str) -> int:
    if suffix not in ("", "%"):
        raise ValueError("needs a percentage such as 80%; write it like 80%")
    return round(number * 10)


_READ = {
    "count": _read_count,
    "cpu": _read_milli,
    "gpu": _read_milli,
    "memory": _read_memory,
    "disk": _read_memory,
    "permille": _read_percent,
    "money": lambda number, _suffix: round(number * 1_000_000),
}
_EXAMPLE = {"memory": "; write it like 64g", "disk": "; write it like 64g", "permille": "; write it like 80%"}
