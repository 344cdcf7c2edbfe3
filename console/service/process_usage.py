"""What the processes of this machine use of CPU and memory, told to the engine now and then: for the console, for
sizing, and for relief when memory runs short."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from engine.executors.task_files import attempt_folder, live_keys, task_names, usage_of
from engine.model.errors import MusterError
from engine.state.usage import UsageSample

if TYPE_CHECKING:
    from engine.loop import EngineLoop

EVERY_S = 5.0


class UsageHere:
    """Looks at the files of the runs, on a thread of its own."""

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
        """What each workload uses, its tasks together; CPU since the last look."""
        samples = []
        before, self._before = self._before, {}
        for key in live_keys(self._root) if self._root is not None else ():
            cpu_milli = memory_mib = 0
            folder = attempt_folder(self._root, key) if self._root is not None else Path()
            for task in (folder / name for name in task_names(folder)):
                used = usage_of(task)
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
