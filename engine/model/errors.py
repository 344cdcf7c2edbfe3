"""Every error a person can meet, in one tree.

    MusterError
    ├── SpecError        what was asked for is malformed: field, problem, remedy
    ├── RefusedError     well-formed, but not possible in the present state
    ├── NotFoundError    names something that does not exist
    ├── JournalError     the journal cannot be read or written
    │   ├── JournalCorrupt   a checksum does not match; the engine will not start
    │   ├── JournalBusy      another engine holds it
    │   │   └── JournalTaken     another engine has taken it over from this one
    │   └── JournalFormat    another Muster wrote it, in a way that this one does not read
    ├── TraceError       a trace file's line is not what its format says
    ├── BusyError        more was asked for at once than can be answered in time
    └── UnreachableError the engine process does not answer
        └── NotSentError     nobody was there: nothing was sent

Each carries `problem` (what was wrong and where) and `remedy` (what to do about it). `str()` gives both.
`code` is stable: shell exit codes and HTTP answers are derived from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from engine.model.quantities import shortlist


class MusterError(Exception):
    """Base of all named errors."""

    code = "error"

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}. {self.remedy}" if self.remedy else self.problem


class SpecError(MusterError):
    """A spec or command is malformed. `where` is a path such as `groups[0].request.cpu_milli`."""

    code = "invalid"

    def __init__(self, where: str, problem: str, remedy: str = "") -> None:
        super().__init__(f"{where}: {problem}" if where else problem, remedy)
        self.where = where


class RefusedError(MusterError):
    """The request is well-formed but cannot be done now."""

    code = "refused"


class NotFoundError(MusterError):
    """The request names something that does not exist."""

    code = "not_found"


class JournalError(MusterError):
    """The journal cannot be read or written. Nothing after the last acknowledged change is kept."""

    code = "journal"


class JournalCorrupt(JournalError):
    """A checksum or the sequence does not hold. The engine refuses to start rather than guess."""

    code = "journal_corrupt"


class JournalBusy(JournalError):
    """Another engine process holds the journal."""

    code = "journal_busy"


class JournalFormat(JournalError):
    """Another Muster wrote the journal, in a way that this one does not read."""


class JournalTaken(JournalBusy):
    """Another engine process has taken the journal over: this one can never write it again."""


class TraceError(MusterError):
    """One line of a trace is not what its format says; line 0 is the file as a whole."""

    code = "trace"

    def __init__(self, file: str, line: int, column: str, problem: str) -> None:
        super().__init__(f"{file}:{line}: column {column}: {problem}" if line else f"{file}: {problem}")
        self.file = file
        self.line = line
        self.column = column


class BusyError(MusterError):
    """More was asked for at once than can be answered in time. Nothing was done: asked again later it may be."""

    code = "busy"


class UnreachableError(MusterError):
    """The engine process does not answer."""

    code = "unreachable"


class NotSentError(UnreachableError):
    """The engine process is not there: the request has certainly had no effect."""


_BY_CODE: dict[str, type[MusterError]] = {
    kind.code: kind
    for kind in (RefusedError, NotFoundError, JournalError, JournalCorrupt, JournalBusy, BusyError, UnreachableError)
}


def of_code(code: str, problem: str, remedy: str) -> MusterError:
    """The error again that went over a wire as these three."""
    if code == SpecError.code:
        return SpecError("", problem, remedy)
    return _BY_CODE.get(code, MusterError)(problem, remedy)


MAX_ALIKE = 2_000
"""Names that one with a slip is compared with."""
MIN_BEGUN = 3
"""Letters of a name that is taken for the beginning of another."""
MAX_LOOKED_AT = 100_000
"""Of a longer list only so many are looked through for names that begin alike."""
LISTED_BY = {
    "workload": "muster get workloads", "node": "muster get nodes", "queue": "muster get queues",
    "pool": "muster get pools", "reservation": "muster get reservations", "budget": "muster budget list",
}  # fmt: skip
"""Kind of thing -> the command that lists those there are."""


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """The known name most like this one in whatever case, empty when none is. Of many, only those that begin alike are
    compared. `likeness` is the ratio of `difflib.SequenceMatcher` below which two names are not taken for one."""
    names = list(islice(known, MAX_LOOKED_AT))
    if len(names) > MAX_ALIKE:
        names = [other for other in names if other[:2] == name[:2]][:MAX_ALIKE]
    from difflib import get_close_matches  # a right name does without

    name = name[:128].lower()
    by_lower = {other.lower(): other for other in reversed(names)}
    begun = (other for other in by_lower if len(name) >= MIN_BEGUN and other.startswith(name))
    near = next(iter(get_close_matches(name, by_lower, 1, likeness)), "") or next(begun, "")
    return by_lower[near] if near else ""


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", form: str = "{}") -> str:
    """As in "Did you mean drain?": a remedy with the nearest name in the form given, such as `:{}`; `otherwise` where
    none is like it."""
    near = nearest(name, known)
    return f"Did you mean {form.format(near)}?" if near else otherwise


def not_found(kind: str, names: Iterable[str], known: Iterable[str]) -> NotFoundError:
    """The error for names that nothing of the kind has: the nearest to the first, and the command that lists them."""
    unknown = list(names)
    remedy = f"{did_you_mean(unknown[0], known)} List them with: {LISTED_BY[kind]}".lstrip()
    return NotFoundError(f"there is no {kind} {listed(unknown)}", remedy)


def listed(names: Sequence[str]) -> str:
    """The first of the names in quotes, and how many more there are."""
    return shortlist([f"'{name[:64].encode('unicode_escape').decode()}'" for name in names])


class Misfit(NamedTuple):
    """Value that does not fit the field it is given for, in words for who wrote it."""

    path: str
    """Of the value, such as `.groups[0].request`; empty for the whole."""
    problem: str
    remedy: str
    field: str = ""
    """Name that is no field there, if that is the problem."""


_MISFIT = re.compile(r"(?s)(.*?)(?: - at `(?:key in )?\$(.*?)`)?")
_EXPECTED = re.compile(r"(?s)Expected `([^`]*)`(.*?)(?:, got `?([^`]*?)`?)?")
_TYPES = {
    "int": ("a number", "a whole number"), "float": ("a number with a fraction", "a number"),
    "bool": ("true or false", "true or false"), "null": ("empty", "nothing"),
    "str": ("text", "text, in quotes where it looks like a number"),
    "object": ("a mapping", "a mapping, as in {field: value}"), "array": ("a list", "a list, as in [one, two]"),
}  # fmt: skip
"""Type in messages of msgspec -> a value of it, and what is asked for where it is expected."""


def misfit(message: str) -> Misfit:
    """A message of `msgspec` about a value that it could not convert."""
    text, path = _MISFIT.fullmatch(message).groups()  # type: ignore[union-attr]
    name = text.partition("`")[2].rpartition("`")[0]
    if text.startswith("Object contains unknown field"):
        return Misfit(path or "", f"there is no field '{name}'", "Remove it, or correct its spelling", name)
    if text.startswith("Object missing required field"):
        return Misfit(path or "", f"{name} is missing", f"Add {name}")
    if wrong := re.match(r"(?s)Invalid (?:enum )?value (.*)", text):
        return Misfit(path or "", f"{wrong[1]} is not allowed", "Use one of the values that the documentation lists")
    if (expected := _EXPECTED.fullmatch(text)) is None:
        return Misfit(path or "", f"is not as it must be ({text})", "Correct this value")
    kinds, limit, got = expected.groups()
    wanted = " or ".join(_TYPES.get(kind, ("", kind))[1] for kind in kinds.removesuffix(" | null").split(" | "))
    wanted += limit.replace(" of length", ", of length").replace("matching regex", "of the form")
    given = _TYPES[got][0] if got in _TYPES else f"{got} long" if got else "out of range"
    return Misfit(path or "", f"is {given}; it must be {wanted.partition(', ')[0]}", f"Write {wanted}")
