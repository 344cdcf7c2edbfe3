"""The formats of public traces, each with its reader of jobs.

- SWF, the Standard Workload Format of the Parallel Workloads Archive: 18 numbers a line, `;` before comments, -1 =
  unknown. Jobs that never ran (run time <= 0) or had no processors are correct lines with nothing to run: skipped.
- openb, the GPU cluster of Alibaba's cluster-trace-gpu-v2023: a list of nodes and many lists of pods.
- ITP, Microsoft ITP 2021 as published with ElasticFlow: job_id, submission_time (s), duration (s), num_gpu.
- Philly, Microsoft Philly 2017 as published with ElasticFlow: timestamp, duration (s), num_gpus, gpu_time, cluster.
  `gpu_time` is duration x num_gpus and is not read. The trace names no jobs and no users: ids are row numbers.
- GenAI, requests for generated images (GenTD26) in Alibaba's cluster-trace-v2026-GenAI: lora_request_trace. The trace
  names no requests: ids are row numbers. Waits are not told, so a request runs from its creation.
- DLRM, instances of recommendation models in Alibaba's cluster-trace-gpu-v2025: seconds from the trace's start.
  Instances without a creation or a deletion time began before the trace or outlived it: skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

from engine.model.errors import TraceError
from engine.model.specs import ID_PATTERN, MAX_QUANTITY, MAX_TASKS, MEMORY_MIB, NodeSpec, PoolSpec, Resources
from engine.traces.trace_reader import (
    MAX_SECONDS,
    Problems,
    TraceFile,
    TraceJob,
    TraceRow,
    csv_jobs,
    csv_rows,
    shown,
    unique_jobs,
)

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


def swf_jobs(file: TraceFile) -> Iterator[TraceJob]:
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


NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MAX_DEVICES = 62
"""Of one node; see `model.check_pool`."""
MODELS = frozenset(MEMORY_MIB) | {"G1", "G2", "G3", "M40", "1080", "2080", "3090"}
"""Device models that a list may name: those known by name, and what the trace calls its own."""


def read_nodes(path: Path | str, problems: Problems) -> tuple[list[PoolSpec], list[NodeSpec]]:
    """Nodes in the order of the file; each distinct machine (CPU, memory, GPU count and model) is one pool."""
    file = TraceFile(path, problems)
    pools: dict[str, PoolSpec] = {}
    nodes: dict[str, NodeSpec] = {}
    for row in csv_rows(file, NODE_COLUMNS):
        try:
            pool = _pool(row)
            node = NodeSpec(id=row.typable("sn"), pool=pool.name)
            if node.id in nodes:
                raise row.wrong("sn", "a new id")
        except TraceError as error:
            problems.report(error)
            continue
        pools.setdefault(pool.name, pool)
        nodes[node.id] = node
    return list(pools.values()), list(nodes.values())


def openb_jobs(file: TraceFile) -> Iterator[TraceJob]:
    """Pods, one task each. The trace has no queues: `queue` is the pod's QoS class.

    The multigpu lists have no times: arrival is 0 (the order of the file is all there is) and `run_ms` is 0, as for
    pods without a deletion time. Such pods can be packed but not replayed in time; that is for the caller to decide.
    """
    return csv_jobs(file, POD_COLUMNS, _pod)


def _pod(row: TraceRow) -> TraceJob:
    created = _time(row, "creation_time", 0)
    scheduled = _time(row, "scheduled_time", created)
    deleted = _time(row, "deletion_time", max(created, scheduled))
    return TraceJob(
        id=row.typable("name"),
        arrival_ms=created * 1000,
        run_ms=(deleted - max(created, scheduled)) * 1000,
        wait_ms=(scheduled - created) * 1000 if row.fields.get("scheduled_time") else None,
        request=Resources(
            cpu_milli=row.whole("cpu_milli", most=MAX_QUANTITY),
            memory_mib=row.whole("memory_mib", most=MAX_QUANTITY),
            gpu_milli=_gpu_milli(row),
        ),
        queue=row.typable("qos") if row.fields.get("qos") else "",
        gpu_models=_gpu_models(row),
    )


def _time(row: TraceRow, column: str, least: int) -> int:
    """Seconds; `least` when the list has no such column or it is empty."""
    return row.whole(column, least=least, most=MAX_SECONDS) if row.fields.get(column) else least


def _gpu_milli(row: TraceRow) -> int:
    """`gpu_milli` of the trace is a share of each device; only one-device pods share theirs."""
    devices = row.whole("num_gpu", most=MAX_DEVICES)
    if devices == 1:
        return row.whole("gpu_milli", least=1, most=1000)
    return devices * 1000


def _gpu_models(row: TraceRow) -> tuple[str, ...]:
    spec = row.fields.get("gpu_spec", "")
    models = tuple(spec.split("|")) if spec else ()
    if not all(ID_PATTERN.fullmatch(model) for model in models):
        raise row.wrong("gpu_spec", "device models separated by '|'")
    return models


def _pool(row: TraceRow) -> PoolSpec:
    cpu_milli = row.whole("cpu_milli", most=MAX_QUANTITY)
    memory_mib = row.whole("memory_mib", most=MAX_QUANTITY)
    devices = row.whole("gpu", most=MAX_DEVICES)
    model = row.typable("model") if devices and row.fields["model"] else ""
    if model and model not in MODELS:
        raise row.wrong("model", f"a GPU model among {', '.join(sorted(MODELS))}")
    machine = f"{model.lower() or 'gpu'}-{devices}x" if devices else "cpu"
    return PoolSpec(
        name=f"{machine}-{_cores(cpu_milli)}-{_memory(memory_mib)}",
        capacity=Resources(cpu_milli=cpu_milli, memory_mib=memory_mib, gpu_milli=devices * 1000),
        gpu_model=model,
    )


def _cores(milli: int) -> str:
    return f"{milli}m" if milli % 1000 else f"{milli // 1000}c"


def _memory(mib: int) -> str:
    return f"{mib}mi" if mib % 1024 else f"{mib // 1024}g"


ITP_COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")
ONE_GPU = Resources(gpu_milli=1000)


def itp_jobs(file: TraceFile) -> Iterator[TraceJob]:
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

    return csv_jobs(file, ITP_COLUMNS, job)


PHILLY_COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
EPOCH = datetime(1970, 1, 1)

_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}")


def philly_jobs(file: TraceFile) -> Iterator[TraceJob]:
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

    return csv_jobs(file, PHILLY_COLUMNS, job)


def timestamp(row: TraceRow, column: str) -> datetime:
    """A time as YYYY-MM-DD HH:MM:SS."""
    text = row.fields[column]
    if not _TIMESTAMP.fullmatch(text):
        raise row.wrong(column, "a time as YYYY-MM-DD HH:MM:SS")
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise row.wrong(column, "a time that exists") from error


GENAI_COLUMNS = (
    "gmt_create",
    "predict_type",
    "predict_status",
    "exec_time_seconds",
    "groupId",
    "num_images_per_prompt",
)
FIGURES = ("prompt_length", "negative_prompt_length", "num_images_per_prompt", "num_inference_steps", "num_lora")


def genai_jobs(file: TraceFile) -> Iterator[TraceJob]:
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

    return csv_jobs(file, GENAI_COLUMNS, job)


DLRM_COLUMNS = (
    "instance_sn", "role", "app_name", "cpu_request", "gpu_request", "memory_request", "creation_time",
    "scheduled_time", "deletion_time",
)  # fmt: skip
DLRM_FIGURES = ("rdma_request", "disk_request", "max_instance_per_node")


def dlrm_jobs(file: TraceFile) -> Iterator[TraceJob]:
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
            figures={name: int(float(row.fields[name])) for name in DLRM_FIGURES if _plain(row.fields.get(name, ""))},
        )

    return csv_jobs(file, DLRM_COLUMNS, job)


def _plain(text: str) -> bool:
    """Return whether it is a short decimal number. Some limits are -1, for none."""
    digits = text.removeprefix("-").replace(".", "", 1)
    return digits.isascii() and digits.isdigit() and len(digits) <= 12
