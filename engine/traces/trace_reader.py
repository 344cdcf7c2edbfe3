"""What every trace reader shares: the job they yield, how files are opened, and how bad lines are told.

A file that is no trace at all (missing, empty, binary, wrong header) raises `TraceError`. A bad line, or a file that
breaks off, goes to `Problems`: counted and kept by default, raised in strict mode. All other lines are delivered.

To add a format: a module here with `jobs(file) -> Iterator[TraceJob]`, and its name in `FORMATS`.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from importlib import import_module
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import TypeVar

import msgspec

from engine.model.errors import SpecError, TraceError
from engine.model.specs import ID_PATTERN, Resources

MAX_LINE = 2**20
"""Longest accepted line in bytes."""
MAX_SECONDS = 99_999_999_999
"""Largest accepted time in seconds (3,170 years); in milliseconds it is still below `model.MAX_QUANTITY`."""
KEPT_PROBLEMS = 20
SHOWN_CHARACTERS = 40

T = TypeVar("T")

_GZIP_MAGIC = b"\x1f\x8b"
_FOREIGN_MAGIC = {
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ\x00": "an xz file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"PK\x03\x04": "a zip file",
    b"PAR1": "a parquet file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}
_HEAD = 1024
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f\ufffd]")
_DECIMAL = re.compile(r"[0-9]{1,11}(\.[0-9]{1,20})?")


class TraceJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a trace, in the order of the file. Times in milliseconds."""

    id: str
    arrival_ms: int
    """Since the trace's own zero, which may lie long before its first job."""
    run_ms: int
    """Time it ran; 0 when the trace does not say."""
    requested_ms: int = 0
    """Time its user asked for; 0 when the trace does not say."""
    wait_ms: int | None = None
    """From arrival to its start, as logged; None when the trace does not say, or it never started."""
    tasks: int = 1
    request: Resources
    """For one task."""
    name: str = ""
    user: str = ""
    queue: str = ""
    gpu_models: tuple[str, ...] = ()
    """Acceptable device models; empty means any."""
    figures: dict[str, int] = {}
    """What else the trace tells of a job before it runs, by the trace's own names. For models, not for placement."""


class Problems:
    """What was wrong with a trace: how often, and the first errors in full. In strict mode the first is raised."""

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self.count = 0
        """Lines that could not be read."""
        self.first: list[TraceError] = []
        self.skipped: dict[str, int] = {}
        """Reason -> number of correct lines that describe nothing to run."""

    def report(self, error: TraceError) -> None:
        if self.strict:
            raise error
        self.count += 1
        if len(self.first) < KEPT_PROBLEMS:
            self.first.append(error)

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


class TraceFile:
    """A trace on disk, plain or gzip (told by its first bytes, not its name), read line by line."""

    def __init__(self, path: Path | str, problems: Problems) -> None:
        self.path = Path(path)
        self.problems = problems
        self.origin_ms = 0
        """Time of the jobs' zero on the file's own clock, once the first job is read: files of one clock can be joined.
        """

    def wrong(self, line: int, column: str, expected: str, found: str) -> TraceError:
        """`found` is a description; pass text from the file through `shown` first."""
        return TraceError(str(self.path), line, column, f"expected {expected}, found {found}")

    def lines(self) -> Generator[tuple[int, bytes], None, None]:
        """Line numbers from 1, and lines without their ends. Overlong lines and lines with NUL bytes are reported."""
        with self._open() as raw:
            if raw.peek(2)[:2] != _GZIP_MAGIC:
                yield from self._lines(raw)
                return
            with gzip.open(raw) as unzipped:
                yield from self._lines(unzipped)

    def _open(self) -> BufferedReader:
        try:
            return self.path.open("rb")
        except OSError as error:
            raise self.wrong(0, "-", "a readable file", error.strerror or "none") from error
        except ValueError as error:
            raise self.wrong(0, "-", "a file name", "a name with a NUL byte") from error

    def _lines(self, stream: BufferedReader | gzip.GzipFile) -> Iterator[tuple[int, bytes]]:
        self._check_head(stream)
        for number in count(1):
            try:
                line = stream.readline(MAX_LINE + 1)
                surplus = _discard_line(stream) if len(line) > MAX_LINE and not line.endswith(b"\n") else 0
            except (OSError, EOFError, zlib.error) as error:
                if number == 1:
                    raise self._broken(number, error) from error
                self.problems.report(self._broken(number, error))
                return
            if not line:
                return
            if len(line) > MAX_LINE and not line.endswith(b"\n"):
                length = len(line) + surplus
                self.problems.report(self.wrong(number, str(MAX_LINE), f"at most {MAX_LINE} bytes", f"{length} bytes"))
                continue
            if b"\0" in line:
                self.problems.report(self.wrong(number, str(line.index(b"\0") + 1), "text", "a NUL byte"))
                continue
            yield number, line.rstrip(b"\r\n")

    def _check_head(self, stream: BufferedReader | gzip.GzipFile) -> None:
        try:
            head = stream.peek(_HEAD)[:_HEAD]
        except (OSError, EOFError, zlib.error) as error:
            raise self._broken(1, error) from error
        if not head:
            raise self.wrong(1, "1", "a trace", "an empty file")
        for magic, what in _FOREIGN_MAGIC.items():
            if head.startswith(magic):
                raise self.wrong(1, "1", "UTF-8 text, plain or gzip", what)
        text = head.decode(errors="replace")
        if 10 * len(_CONTROL.findall(text)) > len(text):
            raise self.wrong(1, "1", "UTF-8 text, plain or gzip", f"a binary file starting {shown(head[:8])}")

    def _broken(self, line: int, error: Exception) -> TraceError:
        if isinstance(error, EOFError):
            return self.wrong(line, "1", "the rest of a gzip file", "its end: the file is truncated")
        return self.wrong(line, "1", "readable data", f"damage ({error})")


Reader = Callable[[TraceFile], Iterator[TraceJob]]


class TraceRow:
    """One line of a CSV trace. Every method reads one column and raises TraceError when it is not what it must be."""

    __slots__ = ("fields", "file", "line")

    def __init__(self, file: TraceFile, line: int, fields: dict[str, str]) -> None:
        self.file = file
        self.line = line
        self.fields = fields

    def wrong(self, column: str, expected: str) -> TraceError:
        return self.file.wrong(self.line, column, expected, shown(self.fields[column]))

    def whole(self, column: str, *, most: int, least: int = 0) -> int:
        """A whole number from `least` to `most`."""
        text = self.fields[column]
        if text.isascii() and text.isdigit() and len(text) <= 15 and least <= int(text) <= most:
            return int(text)
        raise self.wrong(column, f"a whole number from {least} to {most}")

    def seconds(self, column: str) -> int:
        """A decimal number of seconds, as milliseconds."""
        text = self.fields[column]
        if not _DECIMAL.fullmatch(text):
            raise self.wrong(column, f"seconds from 0 to {MAX_SECONDS}")
        return round(float(text) * 1000)

    def typable(self, column: str) -> str:
        """A name that people can type and screens can show: see `model.ID_PATTERN`."""
        text = self.fields[column]
        if not ID_PATTERN.fullmatch(text):
            raise self.wrong(column, "a name of 1 to 128 letters, digits, '.', '_', '-' or '/'")
        return text


def csv_rows(file: TraceFile, required: tuple[str, ...]) -> Iterator[TraceRow]:
    """Rows of a file whose first line names its columns, in any order; more columns than required are welcome."""
    columns: list[str] = []
    for line, raw in file.lines():
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            file.problems.report(file.wrong(line, str(error.start + 1), "UTF-8 text", shown(raw[error.start :])))
            continue
        if not columns:
            columns = _header(file, line, text.removeprefix("\ufeff"), required)
            continue
        if not text:
            continue
        fields = text.split(",")
        if len(fields) != len(columns):
            column = str(min(len(fields), len(columns)))
            file.problems.report(file.wrong(line, column, f"{len(columns)} columns", f"{len(fields)}: {shown(text)}"))
            continue
        yield TraceRow(file, line, dict(zip(columns, fields, strict=True)))
    if not columns:
        raise file.wrong(1, "1", f"a header with {', '.join(required)}", "none")


def csv_jobs(
    file: TraceFile, required: tuple[str, ...], parse: Callable[[TraceRow], TraceJob | None]
) -> Iterator[TraceJob]:
    """Jobs of a CSV trace. `parse` gives None for a correct row with nothing to run, and counts it as skipped."""
    return unique_jobs(file, ((row.line, row) for row in csv_rows(file, required)), parse)


def unique_jobs(
    file: TraceFile, lines: Iterable[tuple[int, T]], parse: Callable[[T], TraceJob | None]
) -> Iterator[TraceJob]:
    """Parse lines one by one. Lines that `parse` refuses, and ids seen before, go to the file's problems."""
    seen: set[str] = set()
    for number, line in lines:
        try:
            job = parse(line)
        except TraceError as error:
            file.problems.report(error)
            continue
        if job is None:
            continue
        if job.id in seen:
            file.problems.report(file.wrong(number, "id", "a new id", f"{shown(job.id)} again"))
            continue
        seen.add(job.id)
        yield job


def shown(text: str | bytes) -> str:
    """Text from a file as it may appear in a message: in quotes, escaped and cut."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    escaped = text[:SHOWN_CHARACTERS].encode("unicode_escape").decode()[:SHOWN_CHARACTERS]
    return f"'{escaped}{'…' if len(text) > SHOWN_CHARACTERS or len(escaped) < len(text) else ''}'"


def read_jobs(path: Path | str, format: str, problems: Problems) -> Iterator[TraceJob]:
    """Stream the runnable jobs of a trace in the order of the file. `format` is a key of FORMATS."""
    if format not in FORMATS:
        raise SpecError("format", f"{shown(format)} is not a known trace format", f"Give one of {', '.join(FORMATS)}")
    return FORMATS[format](TraceFile(path, problems))


def _header(file: TraceFile, line: int, text: str, required: tuple[str, ...]) -> list[str]:
    columns = text.split(",")
    missing = [column for column in required if column not in columns]
    if missing:
        raise file.wrong(line, missing[0], f"a header with {', '.join(required)}", shown(text))
    repeated = [column for column in columns if columns.count(column) > 1]
    if repeated:
        raise file.wrong(line, shown(repeated[0]), "each column once in the header", shown(text))
    return columns


def _discard_line(stream: BufferedReader | gzip.GzipFile) -> int:
    """Read to the end of the line without keeping it; its length in bytes."""
    length = 0
    while part := stream.readline(MAX_LINE):
        length += len(part)
        if part.endswith(b"\n"):
            break
    return length


def _reader(name: str) -> Reader:
    """Readers build on this module, so they are imported when first used, not with it."""

    def read(file: TraceFile) -> Iterator[TraceJob]:
        jobs: Reader = getattr(import_module("engine.traces.trace_formats"), f"{name}_jobs")
        return jobs(file)

    return read


FORMATS: dict[str, Reader] = {name: _reader(name) for name in ("swf", "openb", "itp", "philly", "genai", "dlrm")}
"""Format name -> reader."""
