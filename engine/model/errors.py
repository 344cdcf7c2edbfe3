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
