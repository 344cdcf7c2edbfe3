"""Files of a cell's runs on this machine: their places, and reports on processes and output that are read from them.

Each task of an attempt has a folder, into which its keeper (`engine.executors.task_shim`) writes:

    runs/<workload>/<submitted ms>.<attempt>/<group>.<index>/

The engine reads the files, and so does whoever looks at output: the engine need not be asked, and need not be there.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from engine.model.errors import NotFoundError
from engine.model.spec_parts import exit_words

STATUS, TASK, LOCK, USAGE = "status.json", "task.json", "lock", "usage"
OUTPUT = "output."
LIVE = ".live"
"""Folder with an empty file for each attempt that may have processes: what is looked at after a restart."""


class AttemptKey(NamedTuple):
    """One attempt of one workload. The time of its submission tells it from another life of the same name."""

    workload: str
    submitted_ms: int
    attempt: int

    @property
    def name(self) -> str:
        return f"{self.submitted_ms}.{self.attempt}"


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on the kept output of tasks, in bytes."""

    task: int = 64 << 20
    """Of one task: the beginning, and the end."""
    all: int = 4 << 30
    """Of all runs together; beyond it the oldest that have ended go."""
    least_free: int = 1 << 30
    """That must stay free on the disk: below it nothing more is kept, and the tasks go on."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The status that a keeper writes. Times are Unix milliseconds, 0 where there is none yet."""

    phase: str = ""
    """"ready", "started" or "ended"; empty before any."""
    keeper: int = 0
    """Its process id."""
    born: int = 0
    """When that process began, in ticks since the machine did."""
    boot: str = ""
    pid: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    code: int = 0
    signal: int = 0
    why: str = ""
    """Why the keeper ended it, or there was nothing to end; empty where it ended by itself or was asked to stop."""
    detail: str = ""
    peak_mib: int = 0
    cpu_ms: int = 0
    limits: str = ""
    output: int = 0
    dropped: int = 0

    @property
    def succeeded(self) -> bool:
        return self.phase == "ended" and not (self.code or self.signal or self.why)


_status = msgspec.json.Decoder(Status)
_CAUSES = ("", "memory", "time limit", "not started")
"""Of the keeper, in the order of EXIT_CAUSES of `engine.model.spec_parts`."""


def exit_status(status: Status) -> int:
    """Return the exit status as `engine.model.events.Exited` has it."""
    code = 128 + status.signal if status.signal else status.code
    cause = _CAUSES.index(status.why) if status.why in _CAUSES else 0
    return cause * 256 + min(code, 255)


def folder_name(workload: str) -> str:
    """Ids have slashes, and no plus sign."""
    return workload.replace("/", "+")


def attempt_folder(root: Path, key: AttemptKey) -> Path:
    return root / folder_name(key.workload) / key.name


def live_name(key: AttemptKey) -> str:
    return f"{folder_name(key.workload)}@{key.name}"


def live_keys(root: Path) -> list[AttemptKey]:
    """Attempts that may have processes."""
    found = []
    for name in _listed(root / LIVE):
        workload, _, rest = name.rpartition("@")
        submitted, _, attempt = rest.partition(".")
        if submitted.isdecimal() and attempt.isdecimal():
            found.append(AttemptKey(workload.replace("+", "/"), int(submitted), int(attempt)))
    return found


def task_names(folder: Path) -> list[str]:
    """Return the names of an attempt's tasks, in order of group and number."""
    return sorted(_listed(folder), key=_order)


def _order(name: str) -> tuple[str, int]:
    group, _, index = name.rpartition(".")
    return group, int(index) if index.isdecimal() else 0


def attempts_of(root: Path, workload: str, submitted_ms: int) -> list[int]:
    """Numbers of the attempts of which anything is kept, the first first."""
    names = [name.partition(".") for name in _listed(root / folder_name(workload))]
    return sorted(int(attempt) for submitted, _, attempt in names if submitted == str(submitted_ms))


def status_of(folder: Path) -> Status:
    """Read the status of a task; a blank one where none can be read."""
    try:
        return _status.decode((folder / STATUS).read_bytes())
    except (OSError, msgspec.DecodeError):
        return Status()


def is_kept(folder: Path) -> bool:
    """Return whether a keeper holds the lock of the task."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def usage_of(folder: Path) -> tuple[int, int, int] | None:
    """(Unix ms, ms of CPU so far, MiB now) of a task; None where it is not known."""
    try:
        at_ms, cpu_ms, memory_mib = (int(word) for word in (folder / USAGE).read_bytes().split())
    except (OSError, ValueError):
        return None
    return at_ms, cpu_ms, memory_mib


class OutputChunk(NamedTuple):
    """A stretch of output."""

    data: bytes
    offset: int
    """Of its first byte, in all that the task has written: later than asked for where that is not kept any more."""
    first: int
    """The first byte after the beginning that is kept; what lies between was let go."""
    end: int
    """So much is there in all."""


def output_of(folder: Path, offset: int, most: int) -> OutputChunk:
    """Up to `most` bytes of a task's output from `offset`; below 0: the last so many."""
    for _ in range(8):  # parts come and go meanwhile
        parts = _parts(folder)
        if not parts:
            return OutputChunk(b"", 0, 0, 0)
        end = parts[-1][0] + parts[-1][1]
        later = parts[1][0] if len(parts) > 1 else parts[0][0] + parts[0][1]
        begin = max(end + max(offset, -most), 0) if offset < 0 else min(offset, end)
        try:
            data, begin = _gathered(folder, parts, begin, most)
        except FileNotFoundError:
            continue
        return OutputChunk(data, begin, later, end)
    return OutputChunk(b"", 0, 0, 0)


def _gathered(folder: Path, parts: list[tuple[int, int]], begin: int, most: int) -> tuple[bytes, int]:
    """Bytes that follow each other, and where they begin. A hole ends them; one at the beginning is passed over."""
    found = b""
    for start, size in parts:
        if found and start != begin + len(found):
            break
        if not found:
            if begin >= start + size:
                continue
            begin = max(begin, start)
        with open(folder / f"{OUTPUT}{start:020}", "rb") as file:
            file.seek(begin + len(found) - start)
            found += file.read(most - len(found))
        if len(found) >= most:
            break
    return found, begin


def _parts(folder: Path) -> list[tuple[int, int]]:
    """(offset, size) of what is kept, in order."""
    found = []
    for name in _listed(folder):
        number = name.removeprefix(OUTPUT)
        if number != name and number.isdecimal():
            try:
                found.append((int(number), (folder / name).stat().st_size))
            except FileNotFoundError:
                continue
    return sorted(found)


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


MAX_BYTES = 1 << 20
"""Of one answer."""
MAX_OFFSET = 2**52
MAX_TASKS = 200
"""Told one by one."""


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """One task of an attempt."""

    name: str
    """Its group and its number there."""
    phase: str
    """"starting", "ready", "running", "ended", or "lost": its processes are gone and nobody knows how they ended."""
    pid: int = 0
    started_ms: int = 0
    """Unix milliseconds, as the next; 0: not yet."""
    ended_ms: int = 0
    ended: str = ""
    """How, in words; empty for one that ended well."""
    cpu_ms: int = 0
    memory_mib: int = 0
    """Now."""
    peak_mib: int = 0
    output_bytes: int = 0
    """Written in all."""
    dropped_bytes: int = 0
    """Of those never kept, for the disk was full."""
    limits: str = ""
    """What holds it to its memory and CPU."""


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    attempt: int
    tasks: tuple[TaskView, ...]
    """In order of group and number; at most 200."""
    tasks_total: int


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    attempts: tuple[AttemptView, ...]
    """Those of which files are kept, the last first; at most 20."""
    why_none: str = ""
    """Why there are none."""


class OutputRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a stretch of a task's output."""

    id: str
    task: Annotated[str, Meta(description="Name or number of the task; without it the first")] = ""
    attempt: Annotated[int, Meta(ge=0, le=2**31, description="Which attempt; 0: the last")] = 0
    offset: Annotated[
        int, Meta(ge=-MAX_OFFSET, le=MAX_OFFSET, description="First byte; below 0: so many from the end")
    ] = -65_536
    most: Annotated[int, Meta(ge=0, le=MAX_BYTES, description="Most bytes")] = 65_536


class OutputPart(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    attempt: int
    task: str
    data: bytes
    """As written: any bytes whatever. Ask from `offset` + its length on for what follows."""
    offset: int
    """Of its first byte: beyond what was asked for where that is kept no more."""
    end: int
    """Bytes written so far."""
    over: bool
    """Nothing more comes after `end`."""
    dropped_bytes: int = 0
    """Never kept, for the disk was full."""
    path: str = ""
    """File that it is read from, where another scheduler runs it."""
    node: str = ""
    """The first node of the job that writes it."""
    tasks: tuple[str, ...] = ()
    """Names of what it writes, where `processes` tells none."""


def report_of(root: Path, workload: str, submitted_ms: int) -> ProcessReport:
    """Report on the kept attempts of a workload."""
    numbers = attempts_of(root, workload, submitted_ms)[::-1]
    attempts = tuple(_attempt(root, AttemptKey(workload, submitted_ms, number)) for number in numbers[:20])
    return ProcessReport(id=workload, attempts=attempts, why_none="" if attempts else "it has not started yet")


def _attempt(root: Path, key: AttemptKey) -> AttemptView:
    folder = attempt_folder(root, key)
    names = task_names(folder)
    tasks = tuple(_task(folder / name) for name in names[:MAX_TASKS])
    return AttemptView(attempt=key.attempt, tasks=tasks, tasks_total=len(names))


def _task(folder: Path) -> TaskView:
    status = status_of(folder)
    usage = usage_of(folder)
    running = status.phase == "started"
    return TaskView(
        name=folder.name,
        phase=_phase(folder, status),
        pid=status.pid if running else 0,
        started_ms=status.started_ms,
        ended_ms=status.ended_ms,
        ended=_ended(status),
        cpu_ms=usage[1] if usage and running else status.cpu_ms,
        memory_mib=usage[2] if usage and running else 0,
        peak_mib=max(status.peak_mib, usage[2] if usage else 0),
        output_bytes=status.output or output_of(folder, 0, 0).end,
        dropped_bytes=status.dropped,
        limits=status.limits,
    )


def _phase(folder: Path, status: Status) -> str:
    if status.phase == "started":
        return "running" if is_kept(folder) else "lost"
    return status.phase or "starting"


def _ended(status: Status) -> str:
    if status.phase != "ended" or status.succeeded:
        return ""
    words = exit_words(0, exit_status(status)).partition(" ")[2].partition(" ")[2]
    return f"{words} ({status.detail})" if status.detail else words


def part_of(root: Path, submitted_ms: int, request: OutputRequest) -> OutputPart:
    """Raises NotFoundError for an attempt or a task that there is not."""
    key = AttemptKey(request.id, submitted_ms, request.attempt or _last(root, request.id, submitted_ms))
    attempt = attempt_folder(root, key)
    name = _named(task_names(attempt), request)
    folder = attempt / name
    over = not is_kept(folder)
    # Looked at before: what it wrote last is there once it is over.
    part = output_of(folder, request.offset, max(0, min(request.most, MAX_BYTES)))
    status = status_of(folder)
    return OutputPart(
        id=request.id, attempt=key.attempt, task=name, data=part.data, offset=part.offset, end=part.end,
        over=over and status.phase in ("started", "ended"), dropped_bytes=status.dropped,
    )  # fmt: skip


def _last(root: Path, workload: str, submitted_ms: int) -> int:
    numbers = attempts_of(root, workload, submitted_ms)
    if not numbers:
        raise NotFoundError(f"'{workload}' has no output yet", "It has not started, or its output was deleted")
    return numbers[-1]


def _named(names: list[str], request: OutputRequest) -> str:
    if not names:
        raise NotFoundError(f"'{request.id}' has no attempt {request.attempt}", "Leave it out for the last")
    if not request.task:
        return names[0]
    if request.task in names:
        return request.task
    if request.task.isdecimal() and int(request.task) < len(names):
        return names[int(request.task)]
    known = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
    raise NotFoundError(f"'{request.id}' has no task {request.task[:80]!a}", f"Tasks: {known}")
