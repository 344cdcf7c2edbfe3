"""Microsoft ITP 2021, as published with ElasticFlow: job_id, submission_time (s), duration (s), num_gpu."""

from __future__ import annotations

from collections.abc import Iterator

from engine.model.specs import MAX_TASKS, Resources
from engine.traces.trace_reader import MAX_SECONDS, TraceFile, TraceJob, TraceRow, csv_jobs

COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")
ONE_GPU = Resources(gpu_milli=1000)


def jobs(file: TraceFile) -> Iterator[TraceJob]:
    """One task per GPU. Arrivals count from the first row; a row that was submitted before it is reported."""
    zero: list[int] = []

    def job(row: TraceRow) -> TraceJob | None:
        submitted = row.whole("submission_time", least=zero[0] if zero else 0, most=MAX_SECONDS)
        run = row.whole("duration", most=MAX_SECONDS)
        gpus = row.whole("num_gpu", most=MAX_TASKS)
        job_id = row.typable("job_id")
        zero[:] = zero or [submitted]
        file.origin_ms = zero[0] * 1000
        if not run or not gpus:
            file.problems.skip("duration is 0" if not run else "no GPUs")
            return None
        return TraceJob(
            id=job_id, arrival_ms=(submitted - zero[0]) * 1000, run_ms=run * 1000, tasks=gpus, request=ONE_GPU
        )

    return csv_jobs(file, COLUMNS, job)
