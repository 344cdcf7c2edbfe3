"""One entry of an answer, read field by field whatever types it came with.

v0.0.38 writes numbers plain, and null for what is not set or without limit; v0.0.40 and on write most of them as
`{"set": true, "infinite": false, "number": 4}`. States are a word or a list of words, lists of names a list or a text
with commas. Each reader here takes either, gives None or nothing for what is missing, and puts what it cannot read into
`extra` under its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from engine.external.slurm.answers import NOT_PLAIN_JSON, decoded
from engine.external.slurm.records import UNLIMITED

T = TypeVar("T")

_INFINITE = frozenset([0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF])
_NO_VALUE = frozenset([0xFFFFFFFE, 0xFFFFFFFFFFFFFFFE])
LATEST_S = 253_402_300_799
"""The last second of the year 9999: a later time is none."""


class EntryShape:
    """The fields of one kind of entry that are read, in one text. Others are skipped while the answer is parsed."""

    def __init__(self, kind: str, fields: str) -> None:
        self.fields = tuple(fields.split())
        described = msgspec.defstruct(kind, [(name, Any, None) for name in self.fields], gc=False)
        self._decoder = msgspec.json.Decoder(described)

    def entry(self, raw: msgspec.Raw) -> Entry:
        """ValueError when it is no JSON object."""
        try:
            return Entry(self._decoder.decode(raw))
        except NOT_PLAIN_JSON:
            pass
        value = decoded(raw)
        if not isinstance(value, dict):
            raise ValueError(f"is {type(value).__name__}, not an object")
        return Entry(msgspec.convert({name: value.get(name) for name in self.fields}, self._decoder.type))


class Entry:
    __slots__ = ("extra", "raw")

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.extra: dict[str, Any] = {}

    def text(self, name: str) -> str:
        value = getattr(self.raw, name)
        if type(value) is str:
            return value
        if value is not None and value != {}:
            self.extra[name] = value
        return ""

    def number(self, name: str) -> int | None:
        """None = not set; UNLIMITED = infinite."""
        value = getattr(self.raw, name)
        if type(value) is int and 0 <= value < 0xFFFFFFFE:
            return value
        return self.read_number(name, value)

    def read_number(self, name: str, value: Any) -> int | None:
        """The same, of a value within the field of that name."""
        found = plain_number(value)
        if found is _STRANGE:
            self.extra[name] = value
            return None
        return int(found) if found is not None else None

    def count(self, name: str, otherwise: int = 0) -> int:
        """A number of things; `otherwise` where it is not set, has no limit or makes no sense."""
        value = self.number(name)
        return value if value is not None and value >= 0 else otherwise

    def time(self, name: str) -> int:
        return self.as_time(name, getattr(self.raw, name))

    def as_time(self, name: str, value: Any) -> int:
        seconds = self.read_number(name, value)
        return seconds if seconds is not None and 0 < seconds <= LATEST_S else 0

    def minutes(self, name: str) -> int | None:
        """Minutes as seconds."""
        return in_seconds(self.number(name))

    def real(self, name: str) -> float | None:
        value = getattr(self.raw, name)
        if isinstance(value, dict):
            value = value.get("number") if value.get("set", True) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        if value is not None:
            self.extra[name] = value
        return None

    def flag(self, name: str) -> bool:
        value = getattr(self.raw, name)
        if type(value) is bool:
            return value
        if value in (0, 1):
            return bool(value)
        if value is not None:
            self.extra[name] = value
        return False

    def words(self, name: str) -> tuple[str, ...]:
        """A list of names, or one text with commas."""
        return self.as_words(name, getattr(self.raw, name))

    def as_words(self, name: str, value: Any) -> tuple[str, ...]:
        if not value:
            return ()
        if isinstance(value, str):
            return tuple(word for one in value.split(",") if (word := one.strip()) and word not in ("(null)", "N/A"))
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return tuple(value)
        self.extra[name] = value
        return ()

    def parsed(self, name: str, how: Callable[[str], T], otherwise: T) -> T:
        """A text in one of Slurm's short forms."""
        return self.as_parsed(name, getattr(self.raw, name), how, otherwise)

    def as_parsed(self, name: str, value: Any, how: Callable[[str], T], otherwise: T) -> T:
        if value is None or value == "":
            return otherwise
        try:
            return how(value) if isinstance(value, str) else self._strange(name, value, otherwise)
        except (ValueError, OverflowError):
            return self._strange(name, value, otherwise)

    def _strange(self, name: str, value: Any, otherwise: T) -> T:
        self.extra[name] = value
        return otherwise

    def inside(self, name: str, *path: str) -> Any:
        """A value some levels down; None where any level is missing or no object."""
        return within(getattr(self.raw, name), *path)


def within(value: Any, *path: str) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


_STRANGE = object()


def plain_number(value: Any) -> Any:
    """An int, None for not set, UNLIMITED, or a marker that it is no number."""
    if isinstance(value, dict):
        if value.get("infinite") is True:
            return UNLIMITED
        if "number" not in value:
            return _STRANGE if value else None
        if value.get("set") is False:
            return None
        value = value["number"]
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal() and len(value) < 20:
        value = int(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return _STRANGE
    if value in _NO_VALUE:
        return None
    return UNLIMITED if value in _INFINITE else int(value)


def number_in(value: Any) -> int | None:
    """As `Entry.number`, of a value that nobody keeps when it is strange."""
    found = plain_number(value)
    return None if found is _STRANGE or found is None else int(found)


def in_seconds(minutes: int | None) -> int | None:
    return minutes if minutes is None or minutes == UNLIMITED else minutes * 60


def read_all(
    raws: Sequence[msgspec.Raw], read: Callable[[msgspec.Raw], T], kind: str, *, after: int = 0
) -> tuple[tuple[T, ...], tuple[str, ...]]:
    """What could be read, and a line for each entry that could not be at all. `after`: so many were read before."""
    good: list[T] = []
    bad: list[str] = []
    for at, raw in enumerate(raws):
        try:
            good.append(read(raw))
        except (ValueError, TypeError, RecursionError) as error:
            bad.append(f"{kind} {after + at + 1} of {after + len(raws)}: {str(error)[:200]}")
    return tuple(good), tuple(bad)
