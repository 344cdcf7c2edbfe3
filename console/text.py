"""Text as it may reach a terminal, and quantities as people read and write them.

`printable` is the one function every foreign string passes before it is drawn: job names, tenants and error texts are
written by strangers, and Textual forwards raw control bytes to the terminal. `show` and `read_value` are the two
directions of the same units.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from rich.cells import cell_len

NONE = "–"
"""How a value that does not apply is shown."""
LONGEST = 4_096
"""No cell, sentence or dialog line is longer; what lies beyond is cut before it costs anything."""

_SPACES = re.compile(r"[\t\n\r\v\f]")
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # soft hyphen, joiners, invisible letters
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero width, line separators, bidi controls
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"  # fillers, variation selectors, byte order mark
    "\ud800-\udfff\U000e0000-\U000e0fff]"  # lone surrogates, tags
)


_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0951-\u0957\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"
    "\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
)
_FLOOD = re.compile(f"([{_MARKS}]{{3}})[{_MARKS}]+")
"""Marks above and below one letter beyond three: more of them reach into the lines around it."""


def printable(text: str) -> str:
    """The text with whitespace controls as spaces and everything that could act on a terminal as U+FFFD; and of the
    marks on one letter three."""
    if len(text) > LONGEST:
        text = text[:LONGEST]
    if text.isascii() and text.isprintable():
        return text
    return _FLOOD.sub(r"\1", _UNSAFE.sub("\ufffd", _SPACES.sub(" ", text)))


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


def permille(value: int) -> str:
    """Parts per thousand as percent. Rounded down: a node with room left never reads 100 %."""
    return f"{value // 10}%"


def money(microusd: int) -> str:
    """Micro-USD as dollars and cents."""
    cents = round(abs(microusd) / 10_000)
    return f"{'-' if microusd < 0 else ''}${cents // 100:,}.{cents % 100:02d}"


_SHOW = {
    "count": lambda value: f"{value:,}",
    "cpu": milli,
    "gpu": milli,
    "memory": mebibytes,
    "disk": mebibytes,
    "duration": duration,
    "time": lambda value: timestamp(value)[5:],
    "permille": permille,
    "money": money,
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
    """What a person typed, in the unit columns are stored in. Raises ValueError saying what would be understood."""
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
        raise ValueError(f"'{printable(text)}' is not a duration; write for example 90s, 15m, 2h30m or 3d")
    if any(suffix not in _DURATION for _, suffix in parts) and parts != [("0", "")]:
        raise ValueError(f"'{printable(text)}' needs a unit; write for example 90s, 15m, 2h30m or 3d")
    return round(sum(float(number) * _DURATION.get(suffix, 1) for number, suffix in parts))


def _read_time(text: str) -> int:
    for layout in _TIMES:
        try:
            return int(datetime.strptime(text.strip().rstrip("Z"), layout).replace(tzinfo=UTC).timestamp() * 1000)
        except ValueError:
            continue
    raise ValueError(f"'{printable(text)}' is not a time; write for example 2026-03-01 or 2026-03-01T14:30 (UTC)")


def _read_memory(number: float, suffix: str) -> int:
    suffix = suffix.removesuffix("ib").removesuffix("b")
    if suffix not in _MEMORY and number:
        raise ValueError("memory needs a unit; write for example 512m, 64g or 1.5t")
    return round(number * _MEMORY.get(suffix, 1))


def _read_milli(number: float, suffix: str) -> int:
    if suffix not in ("", "m"):
        raise ValueError(f"'{suffix}' is not a unit here; write for example 8, 0.5 or 500m")
    return round(number if suffix else number * 1000)


def _read_count(number: float, suffix: str) -> int:
    if suffix or number != int(number):
        raise ValueError("a whole number is expected")
    return int(number)


def _read_percent(number: float, suffix: str) -> int:
    if suffix not in ("", "%"):
        raise ValueError("a percentage is expected, for example 80%")
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
_EXAMPLE = {"memory": "; write for example 64g", "disk": "; write for example 64g", "permille": "; write 80%"}
