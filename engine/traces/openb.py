"""openb, the GPU cluster of Alibaba's cluster-trace-gpu-v2023: a list of nodes and many lists of pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engine.model import ID_PATTERN, MAX_QUANTITY, NodeSpec, PoolSpec, Resources
from engine.traces.trace import MAX_SECONDS, Problems, Row, TraceFile, TraceJob, csv_jobs, csv_rows

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MAX_DEVICES = 62
"""Of one node; see `model.check_pool`."""


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


def _pod(row: Row) -> TraceJob:
    created = _time(row, "creation_time", 0)
    started = _time(row, "scheduled_time", created)
    deleted = _time(row, "deletion_time", started)
    return TraceJob(
        id=row.typable("name"),
        arrival_ms=(created or 0) * 1000,
        run_ms=0,
        request=Resources(),
    )
