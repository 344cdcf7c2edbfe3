"""Ended work imported from trace files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engine.traces.trace_formats import read_header
from engine.traces.trace_reader import FORMATS, Problems, TraceFile, TraceJob
from recommender.history.metrics import MAX_SUBJECT, RunRecord

DELIVERED = "finished"
"""The readers deliver jobs that ran; how each came out they do not tell."""


def runs_of(path: Path, format: str, problems: Problems) -> Iterator[RunRecord]:
    """The jobs of a trace in the order of the file, at the trace's own times where it tells them, else counted from
    1970. The source is "FORMAT:FILE", so a file of the same name replaces the jobs of the one before. A job whose
    wait is not told counts as started when it came. Jobs without a run time are counted in `problems` as skipped."""
    file = TraceFile(path, problems)
    source = f"{format}:{path.name}"
    began_ms = read_header(path).get("UnixStartTime", 0) * 1000 if format == "swf" else 0
    for job in FORMATS[format](file):
        if job.run_ms <= 0:
            problems.skip("no run time")
            continue
        yield _run(job, source, max(began_ms, 0) + file.origin_ms)


def _run(job: TraceJob, source: str, origin_ms: int) -> RunRecord:
    cpu, memory, gpu, _ = job.request.vector()
    submitted_ms = origin_ms + job.arrival_ms
    started_ms = submitted_ms + (job.wait_ms or 0)
    return RunRecord(
        id=job.id[:MAX_SUBJECT],
        source=source,
        user=job.user,
        name=job.name,
        queue=job.queue,
        tasks=job.tasks,
        gpu_milli=gpu * job.tasks,
        cpu_milli=cpu * job.tasks,
        memory_mib=memory * job.tasks,
        requested_ms=job.requested_ms,
        submitted_ms=submitted_ms,
        started_ms=started_ms,
        ended_ms=started_ms + job.run_ms,
        outcome=DELIVERED,
        gpu_model=job.gpu_models[0] if job.gpu_models else "",
    )
