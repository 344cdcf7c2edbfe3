"""Microsoft Philly 2017, as published with ElasticFlow: timestamp, duration (s), num_gpus, gpu_time, cluster.

`gpu_time` is duration x num_gpus and is not read. The trace names no jobs and no users: ids are row numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from engine.model.specs import MAX_TASKS, Resources
from engine.traces.trace_reader import TraceFile, TraceJob, TraceRow, csv_jobs

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
ONE_GPU = Resources(gpu_milli=1000)
EPOCH = datetime(1970, 1, 1)

_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}")


def jobs(file: TraceFile) -> Iterator[TraceJob]:
    """One task per GPU; `queue` is the virtual cluster. Arrivals count from the first row, as in `itp`."""
    zero: list[datetime] = []

    def job(row: TraceRow) -> TraceJob | None:
        submitted = timestamp(row, "timestamp")
        if zero and submitted < zero[0]:
            raise row.wrong("timestamp", f"a time from {zero[0]}, that of the first row,")
        run_ms = row.seconds("duration")
        gpus = row.whole("num_gpus", most=MAX_TASKS)
        cluster = row.typable("cluster")
        zero[:] = zero or [submitted]
        file.origin_ms = (zero[0] - EPOCH) // timedelta(milliseconds=1)
        if not run_ms or not gpus:
            file.problems.skip("duration is 0" if not run_ms else "no GPUs")
            return None
        return TraceJob(
            id=f"philly-{row.line - 1}",
            arrival_ms=(submitted - zero[0]) // timedelta(milliseconds=1),
            run_ms=run_ms,
            tasks=gpus,
            request=ONE_GPU,
            queue=cluster,
        )

    return csv_jobs(file, COLUMNS, job)


def timestamp(row: TraceRow, column: str) -> datetime:
    """A time as YYYY-MM-DD HH:MM:SS."""
    text = row.fields[column]
    if not _TIMESTAMP.fullmatch(text):
        raise row.wrong(column, "a time as YYYY-MM-DD HH:MM:SS")
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise row.wrong(column, "a time that exists") from error
