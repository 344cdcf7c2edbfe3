"""openb, the GPU cluster of Alibaba's cluster-trace-gpu-v2023: a list of nodes and many lists of pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engine.model.errors import TraceError
from engine.model.gpu_models import MEMORY_MIB
from engine.model.specs import ID_PATTERN, MAX_QUANTITY, NodeSpec, PoolSpec, Resources
from engine.traces.trace_reader import MAX_SECONDS, Problems, TraceFile, TraceJob, TraceRow, csv_jobs, csv_rows

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


def jobs(file: TraceFile) -> Iterator[TraceJob]:
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
