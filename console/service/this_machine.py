"""A cell of one node, this machine, on which work runs as real processes.

How such a cell is made, and who may run what (`LocalExecution`); the CPU and memory its processes use, reported to
the engine for the console, for sizing, and for relief when memory runs short (`UsageHere`); and their output
(`RunOutput`).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from engine.executors.task_files import (
    Bounds,
    OutputPart,
    OutputRequest,
    ProcessReport,
    attempt_folder,
    live_keys,
    part_of,
    report_of,
    task_names,
)
from engine.executors.task_files import usage_of as usage_of_task
from engine.model.errors import MusterError, RefusedError, SpecError
from engine.model.specs import UsageSample

if TYPE_CHECKING:
    from console.service.mirrored_cluster import MirroredCluster
    from engine.control import Engine
    from engine.executors.process_executor import ProcessExecutor
    from engine.loop import EngineLoop
    from engine.model.specs import CellSpec


RUNS = "runs"
"""Folder of a cell with what its processes write. Where there is one, the cell runs work on its machine."""


@dataclass(frozen=True)
class LocalExecution:
    """Options of running work on this machine."""

    runs: Path
    """Folder for what is kept of it."""
    bounds: Bounds | None = None
    """How much output is kept; None: as usual."""
    for_others: bool = False
    """Whoever may submit may have it run commands, as the account that owns the engine; else that account alone may."""
    node: str = field(default="")
    """Which node of the cell it is; empty: the one of its name."""

    def executor(self, umask: int) -> ProcessExecutor:
        """`umask`: of whoever owns the work."""
        from engine.executors.process_executor import ProcessExecutor
        from engine.executors.this_machine import find, node_name

        return ProcessExecutor(
            self.runs,
            self.node or node_name(),
            bounds=self.bounds,
            cgroups=find(),
            umask=umask,
            open_door=self.for_others,
        )


def new_cell(folder: Path, given: CellSpec | None) -> CellSpec:
    """This machine as a cell; a cell file may give it other queues, priority classes and settings. Raises
    RefusedError where it cannot run anything, SpecError for a file with nodes."""
    import sys

    import msgspec

    if not sys.platform.startswith("linux"):
        raise RefusedError("running work on this machine needs Linux", "Use a Slurm cluster, or a demo")
    from console.client.sockets import private_folder
    from engine.executors.this_machine import cell_here

    private_folder(folder)
    cell = cell_here(folder)
    if given is None:
        return cell
    if given.pools or given.nodes:
        raise SpecError("--cell-file", "defines pools or nodes", "With --here this machine is the only node")
    return msgspec.structs.replace(
        cell,
        name=given.name if given.name != type(given)().name else cell.name,
        queues=given.queues or cell.queues,
        priority_classes=given.priority_classes,
        settings=msgspec.structs.replace(given.settings, executor="process"),
        budgets=given.budgets,
    )


def usage_of(loop: EngineLoop, here: LocalExecution | None) -> UsageHere:
    """Reporter of the use of work on this machine; idle where none runs here."""
    from engine.executors.this_machine import node_name

    return UsageHere(loop, here.runs if here else None, (here.node if here else "") or node_name())


def check_here(engine: Engine, here: LocalExecution | None) -> None:
    """Raises RefusedError for a cell made to run work for real that would not now, or the other way round."""
    real = engine.state.settings.executor == "process"
    if real and here is None:
        raise RefusedError("this cell runs work on its own machine", "Serve it with --here, on that machine")
    if here is None:
        return
    if not real:
        raise RefusedError("this cell was not made to run work on this machine", "Use another: --cell here")
    node = getattr(engine.processes, "node", "")
    if node not in engine.state.capacity.row_of:
        nodes = ", ".join(engine.state.capacity.node_ids[:4])
        raise RefusedError(f"this machine is '{node}', and the cell is of {nodes}", "Serve it on that machine")


EVERY_S = 5.0


class UsageHere:
    """Reads the files of the runs, on a thread of its own."""

    def __init__(self, loop: EngineLoop, root: Path | None, node: str) -> None:
        """`root`: of the runs; None where there are none."""
        self._loop = loop
        self._root = root
        self._node = node
        self._before: dict[Path, tuple[int, int]] = {}
        """(Unix ms, ms of CPU) of each task when it was looked at last."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    def start(self) -> None:
        if self._root is not None:
            self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(EVERY_S):
            try:
                samples = self.look()
            except OSError:
                continue  # a folder went while it was looked at
            if samples:
                try:
                    self._loop.call(lambda engine, samples=samples: engine.report_usage(samples))  # type: ignore[misc]
                except MusterError:
                    continue  # the engine is busy or stops: the next look tells more than this one

    def look(self) -> list[UsageSample]:
        """Use of each workload, its tasks together; CPU since the last look."""
        samples = []
        before, self._before = self._before, {}
        for key in live_keys(self._root) if self._root is not None else ():
            cpu_milli = memory_mib = 0
            folder = attempt_folder(self._root, key) if self._root is not None else Path()
            for task in (folder / name for name in task_names(folder)):
                used = usage_of_task(task)
                if used is None:
                    continue
                at_ms, cpu_ms, now_mib = used
                self._before[task] = (at_ms, cpu_ms)
                memory_mib += now_mib
                was_ms, was_cpu = before.get(task, (at_ms, cpu_ms))
                if at_ms > was_ms:
                    cpu_milli += max(0, cpu_ms - was_cpu) * 1000 // (at_ms - was_ms)
            if memory_mib:
                samples.append(
                    UsageSample(workload=key.workload, node=self._node, cpu_milli=cpu_milli, memory_mib=memory_mib)
                )
        return samples


LOOK_S = 0.1
"""Between looks for something new."""
NOT_HERE = "this cell runs no real work"


class RunOutput:
    """Output of workloads of the cell that `loop` drives, on this machine or of another scheduler's jobs."""

    def __init__(self, loop: EngineLoop, cluster: MirroredCluster) -> None:
        self._loop = loop
        self._cluster = cluster

    def report(self, workload_id: str) -> ProcessReport:
        """Processes of a workload, attempt by attempt. Raises NotFoundError."""
        root, submitted_ms = self._loop.call(lambda engine: self._where(engine, workload_id))
        if root is None:
            return ProcessReport(id=workload_id, attempts=(), why_none=NOT_HERE)
        return report_of(root, workload_id, submitted_ms)

    def part(self, request: OutputRequest, wait_s: float = 0.0) -> OutputPart:
        """A stretch of output; waits up to `wait_s` seconds for there to be some. Raises NotFoundError and
        RefusedError."""
        root, submitted_ms = self._loop.call(lambda engine: self._where(engine, request.id))
        if root is None and not self._cluster.has_output():
            raise RefusedError(NOT_HERE, "Start an engine that runs work with: muster here")
        give_up = time.monotonic() + wait_s
        while True:
            part = self._cluster.job_output(request) if root is None else part_of(root, submitted_ms, request)
            if part.data or part.over or request.offset < 0 or time.monotonic() >= give_up:
                return part
            time.sleep(LOOK_S)

    @staticmethod
    def _where(engine: Engine, workload_id: str) -> tuple[Path | None, int]:
        w = engine.state.workloads
        row = w.row(workload_id)
        root: Path | None = getattr(engine.processes, "root", None)
        return root, w.submitted[row]
