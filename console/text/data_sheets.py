"""Rows as data for other programs: CSV, TSV and JSON, the same from the console and from the shell.

In CSV and TSV quantities are in units that a spreadsheet adds up (GPU, CPU, MiB, seconds, USD, percent), times ISO 8601
in UTC; JSON has the engine's own integers. A text that a spreadsheet would take for a formula gets an apostrophe in
front, and what could act on a terminal is an escape.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from console.text.terminal_text import LONGEST, visible
from engine.model.queries import Column

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a formula of a spreadsheet begins with, in both widths."""
PART = LONGEST // 10  # an escape takes up to ten characters
_UNITS = {"memory": "mib", "disk": "mib", "duration": "s", "permille": "percent", "money": "usd"}
_SCALES = {"cpu": 1_000, "gpu": 1_000, "duration": 1_000, "permille": 10, "money": 1_000_000}


def pasteable(text: str) -> str:
    """Text of any length that does nothing to a terminal it is pasted into but stand there: only its own line ends and
    tabs stay, and none at the end."""
    lines = text.rstrip("\r\n").split("\n")
    return "\n".join("\t".join(harmless(cell) for cell in line.split("\t")) for line in lines)


def harmless(text: str) -> str:
    """One line of any length in which whatever could act on a terminal is an escape."""
    if len(text) <= PART:
        return visible(text)
    return "".join(visible(text[at : at + PART]) for at in range(0, len(text), PART))


def title(column: Column) -> str:
    """Name of a column with the unit its numbers are in: `wait_s`."""
    unit = _UNITS.get(column.unit)
    return f"{column.name}_{unit}" if unit else column.name


def plain(column: Column, value: Any) -> str:
    """A value for a spreadsheet; empty where it does not apply."""
    if value is None or value == "":
        return ""
    if not isinstance(value, int):
        return unformed(harmless(str(value)))
    if column.unit == "time":
        return iso(value)
    return decimal(value, _SCALES.get(column.unit, 1))


def unformed(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA) else text


def decimal(value: int, scale: int) -> str:
    """`value / scale`, exactly: 250 of 1000 is 0.25."""
    if scale == 1:
        return str(value)
    whole, rest = divmod(abs(value), scale)
    digits = f"{rest:0{len(str(scale)) - 1}d}".rstrip("0")
    return f"{'-' if value < 0 else ''}{whole}{'.' + digits if digits else ''}"


def iso(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return str(at_ms)


def csv_text(rows: Iterable[Sequence[str]]) -> str:
    """Lines of CSV, each with its end."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def tsv_text(rows: Iterable[Sequence[str]]) -> str:
    """Lines between which there are line ends, cells between which there are tabs: none is within a cell."""
    return "\n".join("\t".join(row) for row in rows)


def json_text(value: Any) -> str:
    """One line of JSON, in ASCII."""
    return json.dumps(value, separators=(",", ":"))
