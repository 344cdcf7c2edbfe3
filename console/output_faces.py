"""Processes of this machine and what they write, over HTTP."""

from __future__ import annotations

from console.operations import WAIT, Asked, Number, Operation, Word
from engine.executors.shown import MOST_BYTES, OutputPart, OutputRequest, ProcessReport

_FARTHEST = 2**52


def _output(asked: Asked) -> OutputPart:
    query = asked.query
    request = OutputRequest(
        id=asked.path["id"], task=query["task"], attempt=query["attempt"], offset=query["offset"], most=query["most"]
    )
    return asked.client.output(request, query["wait_s"])


OUTPUT = (
    Operation(
        "GET", "/v1/workloads/{id:path}/processes", "The processes of a workload on this machine, by attempt",
        lambda asked: asked.client.processes(asked.path["id"]), gives=ProcessReport,
    ),
    Operation(
        "GET", "/v1/workloads/{id:path}/output", "A stretch of what a task of a workload wrote", _output,
        query=(
            Word("task", "Name or number of the task; without it the first"),
            Number("attempt", 0, 0, 2**31, "Which attempt; 0: the last"),
            Number("offset", -65_536, -_FARTHEST, _FARTHEST, "First byte; below 0: so many from the end"),
            Number("most", 65_536, 0, MOST_BYTES, "Most bytes"),
            WAIT,
        ),
        gives=OutputPart, slow=True,
    ),
)  # fmt: skip
"""They come before the workload itself, whose id may have slashes."""
