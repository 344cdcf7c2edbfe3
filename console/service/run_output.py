"""What the processes of a workload write, for whoever asks the engine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from engine.executors.process_queries import OutputPart, OutputRequest, ProcessReport, part_of, report_of
from engine.model.errors import RefusedError

if TYPE_CHECKING:
    from pathlib import Path

    from engine.control import Engine
    from engine.loop import EngineLoop

LOOK_S = 0.1
"""Between looks for something new."""
NOT_HERE = "nothing runs for real in this cell"


class RunOutput:
    """Of the cell that `loop` drives."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop

    def report(self, workload_id: str) -> ProcessReport:
        """Its processes, attempt by attempt. Raises NotFoundError."""
        root, submitted_ms = self._loop.call(lambda engine: self._where(engine, workload_id))
        if root is None:
            return ProcessReport(id=workload_id, attempts=(), why_none=NOT_HERE)
        return report_of(root, workload_id, submitted_ms)

    def part(self, request: OutputRequest, wait_s: float = 0.0) -> OutputPart:
        """A stretch of output; waits up to `wait_s` seconds for there to be some. Raises NotFoundError and
        RefusedError."""
        root, submitted_ms = self._loop.call(lambda engine: self._where(engine, request.id))
        if root is None:
            raise RefusedError(NOT_HERE, "Start an engine that runs work with: muster here")
        give_up = time.monotonic() + wait_s
        while True:
            part = part_of(root, submitted_ms, request)
            if part.data or part.over or request.offset < 0 or time.monotonic() >= give_up:
                return part
            time.sleep(LOOK_S)

    @staticmethod
    def _where(engine: Engine, workload_id: str) -> tuple[Path | None, int]:
        w = engine.state.workloads
        row = w.row(workload_id)
        root: Path | None = getattr(engine.processes, "root", None)
        return root, w.submitted[row]
