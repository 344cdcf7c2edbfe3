"""Standard Workload Format of the Parallel Workloads Archive: 18 numbers a line, `;` before comments, -1 = unknown.

Jobs that never ran (run time <= 0) or had no processors are correct lines with nothing to run: counted as skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from engine.model.specs import MAX_TASKS, Resources
from engine.traces.trace_reader import MAX_SECONDS, Problems, TraceFile, TraceJob, shown, unique_jobs

COLUMNS = (
    "job",
    "submit",
    "wait",
    "run",
    "procs",
    "cpu",
    "mem",
    "req_procs",
    "req_time",
    "req_mem",
    "status",
    "user",
    "group",
    "exe",
    "queue",
    "partition",
    "prev",
    "think",
)
USED = ("job", "submit", "wait", "run", "procs", "req_procs", "req_time", "user", "exe", "queue")
"""Columns that say something a replay needs, in their order."""
ONE_PROCESSOR = Resources(cpu_milli=1000)

_MAX_DIGITS = len(str(MAX_SECONDS))
_DECIMAL_COLUMNS = ("cpu", "mem", "req_mem")
_DECIMAL = re.compile(rb"-1\.0+|[0-9]{1,11}\.[0-9]+")
_NUMBER = rb"[0-9]{1,%d}|-1" % _MAX_DIGITS
_PLAIN = re.compile(
    rb"\s*" + rb"\s+".join(b"(%s)" % _NUMBER if c in USED else b"(?:%s)" % _NUMBER for c in COLUMNS) + rb"\s*"
)
"""A line of whole numbers and -1 only, as nearly all are: read at once."""
_USED_AT = [COLUMNS.index(column) for column in USED]
_HEADER = re.compile(rb";\s*([A-Za-z]{1,40}):\s*(-?[0-9]{1,11})\s*")


def read_header(path: Path | str) -> dict[str, int]:
    """Whole numbers of the comments at the top, such as MaxProcs, MaxJobs and UnixStartTime (seconds)."""
    header: dict[str, int] = {}
    with closing(TraceFile(path, Problems()).lines()) as lines:
        for _, line in lines:
            if line and not line.startswith(b";"):
                break
            if entry := _HEADER.fullmatch(line):
                header.setdefault(entry[1].decode(), int(entry[2]))
    return header


def jobs(file: TraceFile) -> Iterator[TraceJob]:
    """One task per processor: those allocated, or those requested where the log does not say."""
    lines = ((number, (number, line)) for number, line in file.lines() if line.strip() and not line.startswith(b";"))
    return unique_jobs(file, lines, lambda numbered: _job(file, *numbered))


def _job(file: TraceFile, number: int, line: bytes) -> TraceJob | None:
    plain = _PLAIN.fullmatch(line)
    values = [int(value) for value in plain.groups()] if plain else _values(file, number, line)
    job, submit, wait, run, procs, req_procs, req_time, user, exe, queue = values
    for column, value in (("job", job), ("submit", submit)):
        if value < 0:
            raise file.wrong(number, column, "a whole number from 0", str(value))
    tasks = procs if procs > 0 else req_procs
    if tasks > MAX_TASKS:
        raise file.wrong(number, "procs", f"at most {MAX_TASKS} processors", str(tasks))
    if run <= 0 or tasks <= 0:
        file.problems.skip("run time is 0 or unknown" if run <= 0 else "processors are 0 or unknown")
        return None
    return TraceJob(
        id=str(job),
        arrival_ms=submit * 1000,
        run_ms=run * 1000,
        requested_ms=max(req_time, 0) * 1000,
        wait_ms=wait * 1000 if wait >= 0 else None,
        tasks=tasks,
        request=ONE_PROCESSOR,
        name=f"exe-{exe}" if exe >= 0 else "",
        user=f"user-{user}" if user >= 0 else "",
        queue=f"queue-{queue}" if queue >= 0 else "",
    )


def _values(file: TraceFile, number: int, line: bytes) -> list[int]:
    """The columns in USED of a line that may be wrong anywhere."""
    fields = line.split()
    if len(fields) != len(COLUMNS):
        column = COLUMNS[min(len(fields), len(COLUMNS) - 1)]
        raise file.wrong(number, column, f"{len(COLUMNS)} columns", f"{len(fields)}: {shown(line)}")
    values = [
        int(field) if field.isdigit() and len(field) <= _MAX_DIGITS else _unusual(file, number, column, field)
        for column, field in zip(COLUMNS, fields, strict=True)
    ]
    return [values[at] for at in _USED_AT]


def _unusual(file: TraceFile, number: int, column: str, field: bytes) -> int:
    if field == b"-1":
        return -1
    if column in _DECIMAL_COLUMNS and _DECIMAL.fullmatch(field):
        return int(float(field))
    raise file.wrong(number, column, f"a whole number from 0 to {MAX_SECONDS}, or -1", shown(field))
