"""GenTD26, requests for generated images in Alibaba's cluster-trace-v2026-GenAI: lora_request_trace.

The trace names no requests: ids are row numbers. Nothing is said of waiting, so a request runs from its creation.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from engine.model.specs import Resources
from engine.traces.philly import EPOCH, timestamp
from engine.traces.trace_reader import TraceFile, TraceJob, TraceRow, csv_jobs

COLUMNS = ("gmt_create", "predict_type", "predict_status", "exec_time_seconds", "groupId", "num_images_per_prompt")
FIGURES = ("prompt_length", "negative_prompt_length", "num_images_per_prompt", "num_inference_steps", "num_lora")
ONE_GPU = Resources(gpu_milli=1000)


def jobs(file: TraceFile) -> Iterator[TraceJob]:
    """One task each: user is the group, name the checkpoint, queue the kind of request. Failed ones are skipped."""
    zero: list[datetime] = []

    def job(row: TraceRow) -> TraceJob | None:
        created = timestamp(row, "gmt_create")
        if zero and created < zero[0]:
            raise row.wrong("gmt_create", f"a time from {zero[0]}, that of the first row,")
        run_ms = row.seconds("exec_time_seconds")
        user, queue = row.typable("groupId"), row.typable("predict_type")
        figures = {name: row.seconds(name) // 1000 for name in FIGURES if row.fields.get(name)}
        name = row.typable("checkpoint_model_version_id") if row.fields.get("checkpoint_model_version_id") else ""
        zero[:] = zero or [created]
        file.origin_ms = (zero[0] - EPOCH) // timedelta(milliseconds=1)
        if row.fields["predict_status"] != "SUCCEED" or not run_ms:
            file.problems.skip("it failed" if run_ms else "exec_time_seconds is 0")
            return None
        return TraceJob(
            id=f"genai-{row.line - 1}",
            arrival_ms=(created - zero[0]) // timedelta(milliseconds=1),
            run_ms=run_ms,
            request=ONE_GPU,
            name=name,
            user=user,
            queue=queue,
            figures=figures,
        )

    return csv_jobs(file, COLUMNS, job)
