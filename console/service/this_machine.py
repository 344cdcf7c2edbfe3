"""A cell of one node, this machine, on which work runs as real processes: how it is made, and who may have it run
what."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from engine.model.errors import RefusedError, SpecError

if TYPE_CHECKING:
    from console.service.process_usage import UsageHere
    from engine.control import Engine
    from engine.executors.process_executor import ProcessExecutor
    from engine.executors.task_files import Bounds
    from engine.loop import EngineLoop
    from engine.model.specs import CellSpec

RUNS = "runs"
"""Folder of a cell with what its processes write. Where there is one, the cell runs work on its machine."""


@dataclass(frozen=True)
class LocalExecution:
    """How work runs on this machine."""

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
        from engine.executors.cgroups import find
        from engine.executors.process_executor import ProcessExecutor
        from engine.executors.this_machine import node_name

        return ProcessExecutor(
            self.runs,
            self.node or node_name(),
            bounds=self.bounds,
            cgroups=find(),
            umask=umask,
            open_door=self.for_others,
        )


def new_cell(folder: Path, given: CellSpec | None) -> CellSpec:
    """This machine as a cell; a cell file may give it other queues, priority classes and settings. Raises RefusedError
    where it cannot run anything, SpecError for a file with nodes."""
    import sys

    import msgspec

    if not sys.platform.startswith("linux"):
        raise RefusedError("work runs on this machine only where that is Linux", "Use a Slurm cluster, or a demo")
    from console.auth.sockets import private_folder
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
    """Tells the engine what its work uses; nothing where none runs here."""
    from console.service.process_usage import UsageHere
    from engine.executors.this_machine import node_name

    return UsageHere(loop, here.runs if here else None, (here.node if here else "") or node_name())


def check_here(engine: Engine, here: LocalExecution | None) -> None:
    """Raises RefusedError for a cell that was made to run work for real and would not now, or the other way round."""
    real = engine.state.settings.executor == "process"
    if real and here is None:
        raise RefusedError("this cell runs work on its machine", "Serve it with --here, on that machine")
    if here is None:
        return
    if not real:
        raise RefusedError("this cell was not made to run work on this machine", "Take another: --cell here")
    node = engine.processes.node if engine.processes is not None else ""
    if node not in engine.state.capacity.row_of:
        nodes = ", ".join(engine.state.capacity.node_ids[:4])
        raise RefusedError(f"this machine is '{node}', and the cell is of {nodes}", "Serve it on that machine")
