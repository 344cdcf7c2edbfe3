"""Answers of slurmrestd: what an answer means, and its entries field by field.

The HTTP status alone says little: 200 comes with refusals, 500 with unknown ids. `split` takes a body apart, and
`require` raises what its errors mean, by the numbers of slurm_errno.h. Texts are Slurm's own and untrusted.

`Entry` reads one entry whatever types it came with. v0.0.38 writes plain numbers, and null for what is not set or has
no limit; v0.0.40 and later write most numbers as `{"set": true, "infinite": false, "number": 4}`. States are a word or
a list of words, lists of names a list or a text with commas. Each method takes either form, gives None or nothing for
what is missing, and puts what it cannot read into `extra` under its name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from engine.external.answer_cutter import NOT_PLAIN_JSON
from engine.external.slurm.capabilities import (
    OVER,
    SlurmDenied,
    SlurmGone,
    SlurmLacks,
    SlurmRefused,
    SlurmUnavailable,
    SlurmUnreadable,
)
from engine.external.slurm.records import UNLIMITED
from engine.model.errors import MusterError

GONE = frozenset([2017, 2018, OVER])
"""Invalid job id, invalid node name, already done."""
DENIED = frozenset([1007, 2002, 2010])
"""Authentication, access denied, invalid user id."""
BAD_TOKEN = frozenset([1007])
NOT_REACHED = frozenset([1800])
"""slurmrestd could not connect to slurmctld: whatever was asked has had no effect."""
NOTHING_FOUND = 9003
UNSPECIFIED = -1
"""What v0.0.38 says of everything it has no number for; among them a controller that is down."""


DEEPEST = 100
"""Lists in lists. Slurm has some ten."""


class Fault(msgspec.Struct, frozen=True):
    """One entry of `errors` or `warnings`, whichever of its key sets it came with."""

    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.text} (error {self.number})" if self.number not in (0, UNSPECIFIED) else self.text


class SlurmAnswer(msgspec.Struct, frozen=True):
    """A body, split but not read: entries of its lists are decoded one at a time, so a bad one costs only itself."""

    status: int
    fields: dict[str, msgspec.Raw]
    faults: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()

    def entries(self, *keys: str) -> list[msgspec.Raw]:
        """The list under the first of these names that is there. SlurmUnreadable when none is, or it is no list."""
        for key in keys:
            if key in self.fields:
                return raw_list(self.fields[key], key)
        raise SlurmUnreadable(
            f"Slurm's answer has no list named {' or '.join(keys)}",
            "Is this slurmrestd? `muster serve --slurm` knows its releases 22.05 to 26.05",
        )

    def value(self, key: str) -> Any:
        """One field, decoded; None when it is not there."""
        return _readable(self.fields[key], key) if key in self.fields else None


def raw_list(raw: msgspec.Raw, name: str) -> list[msgspec.Raw]:
    """The entries of a list, each still text."""
    try:
        return _RAW_LIST.decode(raw)
    except NOT_PLAIN_JSON:
        pass
    value = _readable(raw, name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise SlurmUnreadable(f"`{name}` in Slurm's answer is {type(value).__name__}, not a list")
    return [msgspec.Raw(msgspec.json.encode(entry)) for entry in value]


def _readable(raw: msgspec.Raw, name: str) -> Any:
    """As `decoded`. SlurmUnreadable when it is no JSON."""
    try:
        return decoded(raw)
    except ValueError as error:
        raise SlurmUnreadable(f"`{name}` in Slurm's answer is {error}") from None


def decoded(raw: msgspec.Raw | bytes) -> Any:
    """JSON as slurmrestd really writes it: names in any encoding, and numbers such as NaN that JSON has not.

    Bytes that are no UTF-8 come out as `\\xNN`, so that the text can be kept and shown. ValueError when it is no JSON.
    """
    try:
        return msgspec.json.decode(raw)
    except NOT_PLAIN_JSON:
        pass
    try:
        value = json.loads(bytes(raw).decode("utf-8", "surrogateescape"), parse_constant=_no_number, strict=False)
        return _encodable(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None


def _no_number(_: str) -> None:
    """NaN and the infinities: not known."""


def _encodable(value: Any, deep: int = 0) -> Any:
    """Bytes that were no UTF-8, and half characters, written out: what is kept can be encoded again. ValueError for
    what is nested too deeply for that."""
    if deep > DEEPEST:
        raise ValueError(f"nested more than {DEEPEST} deep")
    if isinstance(value, str):
        return value if value.isascii() else _HALF.sub(_written_out, value)
    if isinstance(value, list):
        return [_encodable(one, deep + 1) for one in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(one, deep + 1) for key, one in value.items()}
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return None
    return value


_HALF = re.compile("[\ud800-\udfff]")


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_RAW_DICT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def split(status: int, body: bytes) -> SlurmAnswer:
    """A body as an Answer. SlurmUnreadable when it is not a JSON object."""
    try:
        fields = _RAW_DICT.decode(body)
    except NOT_PLAIN_JSON:
        fields = _split_slowly(status, body)
    faults = _faults(fields.get("errors")) + _each_fault(fields)
    return SlurmAnswer(status, fields, faults, _faults(fields.get("warnings")))


def _split_slowly(status: int, body: bytes) -> dict[str, msgspec.Raw]:
    try:
        value = decoded(body)
    except ValueError:
        start = body[:200].decode("utf-8", "replace")
        raise SlurmUnreadable(f"no JSON came with status {status}, but {start!r}", "Is this slurmrestd?") from None
    if not isinstance(value, dict):
        raise SlurmUnreadable(f"a JSON {type(value).__name__} came with status {status}, not an object")
    return {str(key): msgspec.Raw(msgspec.json.encode(one)) for key, one in value.items()}


def _faults(raw: msgspec.Raw | None) -> tuple[Fault, ...]:
    if raw is None or raw == b"[]":
        return ()
    try:
        value = decoded(raw)
    except ValueError:
        return (Fault(0, "an error that could not be read"),)
    return tuple(_fault(one) for one in value if one) if isinstance(value, list) else (Fault(0, _text(value)),)


def _each_fault(fields: dict[str, msgspec.Raw]) -> tuple[Fault, ...]:
    """v0.0.42 says 200 and then, for each job of the request, what came of it: `status` after a cancel, `results` after
    an update."""
    found: list[Fault] = []
    for key in ("status", "results"):
        for one in _objects(fields.get(key)):
            fault = _fault(one["error"] if isinstance(one.get("error"), dict) else one)
            if fault.number:
                found.append(fault)
    return tuple(found)


def _objects(raw: msgspec.Raw | None) -> list[dict[str, Any]]:
    try:
        value = decoded(raw) if raw is not None else None
    except ValueError:
        return []
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else "something other than text"
        if isinstance(value, list | dict)
        else str(value)
    )[:400]


def _fault(entry: Any) -> Fault:
    if not isinstance(entry, dict):
        return Fault(0, _text(entry))
    numbers = (entry.get(key) for key in ("error_number", "error_code", "errno", "code"))
    number = next((one for one in numbers if isinstance(one, int) and not isinstance(one, bool)), 0)
    texts = [_text(entry[key]) for key in ("error", "message", "description") if entry.get(key)]
    if number in (0, UNSPECIFIED):
        texts.reverse()
    return Fault(number, ": ".join(dict.fromkeys(texts))[:400] or "no text")


def require(answer: SlurmAnswer, what: str, *, wrote: bool = False, submitted: bool = False) -> None:
    """Returns quietly, or raises what the answer means.

    `what` names the request for a person ("cancelling job 7"). `wrote`: it may have changed something. `submitted`:
    with a job id the job is there, whatever is said beside it. (A held one is 2042, one that cannot run now 2015, and
    a 22.05 controller that has just started says 2068, "Required node not available", of every job it takes.)
    """
    if submitted and job_id(answer):
        return
    if answer.faults:
        raise _meaning(answer.status, list(answer.faults), what, wrote)
    if answer.status >= 400:
        raise _unexplained(answer.status, what)
    ignored = ignored_fields(answer)
    if wrote and ignored:
        raise SlurmRefused(
            0, f"{what}: Slurm ignored a field that it does not know: {ignored}", "Check in Slurm what was done"
        )


def job_id(answer: SlurmAnswer) -> int:
    """The id that a submission was given; 0 for none. With an error status there is none, whatever is told."""
    told = answer.value("job_id") if answer.status < 400 else None
    return told if isinstance(told, int) and not isinstance(told, bool) and told > 0 else 0


def ignored_fields(answer: SlurmAnswer) -> str:
    """Fields of a request that v0.0.40 and on did not know, and did without; empty for none."""
    return "; ".join(fault.text for fault in answer.warnings if fault.text.startswith("Ignoring unknown field"))


def _meaning(status: int, hard: list[Fault], what: str, wrote: bool) -> MusterError:
    """Of several faults, the one with a number of its own tells most."""
    fault = next((one for one in hard if one.number not in (0, UNSPECIFIED, 9000, 9001, 9202)), hard[0])
    problem, number = f"{what}: {fault}", fault.number
    if number in DENIED or status in (401, 403, 511):
        bad_token = number in BAD_TOKEN or status in (401, 511)
        remedy = "Its token is wrong or has expired: give another" if bad_token else "Ask who runs the cluster"
        return SlurmDenied(number, problem, remedy, bad_token=bad_token)
    if number in GONE:
        return SlurmGone(number, problem)
    if number in NOT_REACHED:
        return SlurmUnavailable(problem, "slurmrestd finds no slurmctld: is it running?", answered=True, arrived=False)
    if not wrote and number == 0 and "Failure to query node" in problem:
        return SlurmGone(number, problem)
    if _a_plain_no(status, hard, number):
        return SlurmRefused(number, problem)
    return SlurmUnavailable(problem, "Does slurmctld run?", answered=True)


def _a_plain_no(status: int, hard: list[Fault], number: int) -> bool:
    """Slurm's own reasons have numbers from 2000, those of the REST API from 9000. All others (a line that broke, time
    that ran out, `Unspecified error`) leave open whether the thing was done."""
    if any(2000 <= one.number < 3000 or 9000 <= one.number < 10_000 for one in hard):
        return True
    return number in (0, UNSPECIFIED) and 400 <= status < 500


def _unexplained(status: int, what: str) -> MusterError:
    if status in (401, 403, 511):
        return SlurmDenied(0, f"{what}: status {status} without a reason", "Give a valid token", bad_token=True)
    if status in (404, 405):
        return SlurmLacks(0, f"{what}: this release's REST API has no such call (status {status})")
    if status >= 500:
        return SlurmUnavailable(f"{what}: status {status} without a reason", answered=True)
    return SlurmRefused(0, f"{what}: status {status} without a reason")


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
        """ValueError when it is not a JSON object."""
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
        """Return a number. None = not set; UNLIMITED = infinite."""
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
    """Return a number as `Entry.number` does, of a value that is not kept when it is strange."""
    found = plain_number(value)
    return None if found is _STRANGE or found is None else int(found)


def in_seconds(minutes: int | None) -> int | None:
    return minutes if minutes is None or minutes == UNLIMITED else minutes * 60


def read_all(
    raws: Sequence[msgspec.Raw], read: Callable[[msgspec.Raw], T], kind: str, *, after: int = 0
) -> tuple[tuple[T, ...], tuple[str, ...]]:
    """Return the entries that could be read, and a line for each that could not. `after`: so many were read before."""
    good: list[T] = []
    bad: list[str] = []
    for at, raw in enumerate(raws):
        try:
            good.append(read(raw))
        except (ValueError, TypeError, RecursionError) as error:
            bad.append(f"{kind} {after + at + 1} of {after + len(raws)}: {str(error)[:200]}")
    return tuple(good), tuple(bad)
