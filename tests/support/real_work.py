"""Work that runs for real in tests: an engine of this machine in a folder, driven by hand in real time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.control import Engine
from engine.executors.process_executor import ProcessExecutor
from engine.executors.task_files import Bounds
from engine.model.commands import Define, Submit
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    PoolSpec,
    QueueSpec,
    Resources,
    RunSpec,
    Settings,
    TaskGroup,
    WorkloadSpec,
)
from tests.support.patience import PATIENCE_S

NODE = "desk"


def desk(cpus: int = 8, memory_mib: int = 4096, gpus: int = 0) -> CellSpec:
    """A machine of that size, whatever this one has."""
    capacity = Resources(cpu_milli=cpus * 1000, memory_mib=memory_mib, gpu_milli=gpus * 1000)
    return CellSpec(
        name=NODE,
        pools=(PoolSpec(name="here", capacity=capacity, gpu_model="A100" if gpus else ""),),
        nodes=(NodeSpec(id=NODE, pool="here"),),
        queues=(QueueSpec(name="main"),),
        settings=Settings(executor="process"),
    )


def job(
    name: str, *argv: str, tasks: int = 1, cpu: int = 1000, memory: int = 256, gpu: int = 0, **more: Any
) -> WorkloadSpec:
    """Of `sh -c` where there is one word."""
    words = ("sh", "-c", *argv) if len(argv) == 1 else argv
    run = RunSpec(argv=words, env=more.pop("env", {}), cwd=more.pop("cwd", "/tmp"), grace_ms=more.pop("grace_ms", 2000))
    request = Resources(cpu_milli=cpu, memory_mib=memory, gpu_milli=gpu)
    return WorkloadSpec(id=name, queue="main", groups=(TaskGroup(count=tasks, request=request),), run=run, **more)


class Desk:
    """An engine whose work runs for real. `crash` loses everything in memory, as a kill does."""

    def __init__(self, folder: Path, cell: CellSpec | None = None, bounds: Bounds | None = None) -> None:
        self.folder = folder
        self.bounds = bounds
        self.root = folder / "runs"
        self.engine = self._opened()
        if self.engine.version == 0:
            self.engine.advance(now_ms())
            self.engine.command(Define(cell=cell or desk()))

    def _opened(self) -> Engine:
        processes = ProcessExecutor(self.root, NODE, bounds=self.bounds)
        return Engine.open(self.folder / "journal.db", processes=processes)

    def submit(self, *specs: WorkloadSpec) -> None:
        self.engine.command(Submit(workloads=specs))

    def pass_time(self) -> None:
        self.engine.advance(max(now_ms(), self.engine.now_ms))

    def until(self, done: Callable[[], bool], what: str = "") -> None:
        """Let time pass until it is so."""
        give_up = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < give_up, f"waited {PATIENCE_S:g} s for {what or done}: {self.states()}"
            self.pass_time()
            time.sleep(0.01)

    def until_state(self, name: str, *states: str) -> None:
        self.until(lambda: self.state(name) in states, f"{name} to be {' or '.join(states)}")

    def state(self, name: str) -> str:
        return self.engine.workload(name).state

    def states(self) -> dict[str, str]:
        return {name: self.state(name) for name in self.engine.state.workloads.ids}

    def told(self, name: str) -> list[str]:
        """What its history says, as in "exited: task 0 with code 3"."""
        return [f"{item.what}: {item.detail}".rstrip(": ") for item in self.engine.workload(name).history]

    def close(self) -> None:
        self.engine.close()

    def again(self) -> None:
        """Closed before, it is opened again."""
        self.engine = self._opened()

    def stop_all(self) -> None:
        """Nothing that a test has started outlives it."""
        w = self.engine.state.workloads
        running = tuple(name for row, name in enumerate(w.ids) if self.engine.state.is_bound(row))
        if running:
            from engine.model.commands import Cancel

            self.engine.command(Cancel(ids=running))
        live = self.root / ".live"
        self.until(lambda: not live.is_dir() or not any(live.iterdir()), "processes to end")
        self.engine.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000
