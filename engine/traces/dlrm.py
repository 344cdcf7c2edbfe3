"""Instances of disaggregated recommendation models, Alibaba's cluster-trace-gpu-v2025: seconds from the trace's start.

Instances without a creation or a deletion time (they began before the trace, or outlived it) are skipped: how long
they ran is not known.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.model.specs import Resources
from engine.traces.trace_reader import TraceFile, TraceJob, TraceRow, csv_jobs

COLUMNS = (
    "instance_sn", "role", "app_name", "cpu_request", "gpu_request", "memory_request", "creation_time",
    "scheduled_time", "deletion_time",
)  # fmt: skip
FIGURES = ("rdma_request", "disk_request", "max_instance_per_node")


def jobs(file: TraceFile) -> Iterator[TraceJob]:
    """One task each: user is the application, queue the role (CPU or GPU node)."""

    def job(row: TraceRow) -> TraceJob | None:
        if not row.fields["creation_time"] or not row.fields["deletion_time"]:
            file.problems.skip("its creation or deletion is outside the trace")
            return None
        created, deleted = row.seconds("creation_time"), row.seconds("deletion_time")
        started = max(row.seconds("scheduled_time"), created) if row.fields["scheduled_time"] else created
        if deleted <= started:
            file.problems.skip("run time is 0")
            return None
        return TraceJob(
            id=row.typable("instance_sn"),
            arrival_ms=created,
            run_ms=deleted - started,
            wait_ms=started - created if row.fields["scheduled_time"] else None,
            request=Resources(
                cpu_milli=row.seconds("cpu_request"),
                memory_mib=row.seconds("memory_request") * 1024 // 1000,
                gpu_milli=row.seconds("gpu_request"),
            ),
            user=row.typable("app_name"),
            queue=row.typable("role"),
            figures={name: int(float(row.fields[name])) for name in FIGURES if _plain(row.fields.get(name, ""))},
        )

    return csv_jobs(file, COLUMNS, job)


def _plain(text: str) -> bool:
    """Whether it is a short decimal number. Some limits are -1, for none."""
    digits = text.removeprefix("-").replace(".", "", 1)
    return digits.isascii() and digits.isdigit() and len(digits) <= 12
