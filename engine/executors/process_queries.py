"""What is told of the processes of a workload on this machine, and of what they write. Read from the files of the runs:
the engine need not be asked, and need not be there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.executors.task_files import (
    AttemptKey,
    Status,
    attempt_folder,
    attempts_of,
    exit_status,
    is_kept,
    output_of,
    status_of,
    task_names,
    usage_of,
)
from engine.model.errors import NotFoundError
from engine.model.run_spec import exit_words

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
    """Which stretch of what a task wrote."""

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


def report_of(root: Path, workload: str, submitted_ms: int) -> ProcessReport:
    """What is kept of its attempts."""
    numbers = attempts_of(root, workload, submitted_ms)[::-1]
    attempts = tuple(_attempt(root, AttemptKey(workload, submitted_ms, number)) for number in numbers[:20])
    return ProcessReport(id=workload, attempts=attempts, why_none="" if attempts else "it has not been started yet")


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
        raise NotFoundError(f"'{workload}' has written nothing yet", "It was not started, or its output was let go")
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
    raise NotFoundError(f"'{request.id}' has no task {request.task[:80]!a}", f"There is {known}")
