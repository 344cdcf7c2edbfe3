"""Long shell commands that were started from the console: each a process of its own, of lower priority, that is listed
with how far it is and what came of it, and ends with the console. They never touch the cell; no Textual in here.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from io import StringIO
from typing import IO, Literal

from console import progress
from console.guarded import inert
from console.progress import Step
from console.text import cut, printable
from engine.errors import NotFoundError, RefusedError, SpecError

COMMANDS = ("replay", "backtest", "bench", "pack", "drill", "eval")
"""What can be started from the console."""
MOST_LINES = 5_000
"""Of the output, the last ones."""
MOST_LINE = 2_000
MOST_RUNNING = 2
"""At once: a machine has other things to do."""
MOST_KEPT = 20
NICENESS = 10
GRACE_S = 2.0
"""How long a process may take to end by itself."""

State = Literal["running", "done", "failed", "stopped"]


class Task:
    """One command, from its start to its end. Its fields are written by its threads and read by pages."""

    def __init__(self, task_id: str, words: Sequence[str], process: subprocess.Popen[str]) -> None:
        self.id = task_id
        self.words = tuple(words)
        self.began_s = time.time()
        self.ended_s: float | None = None
        self.state: State = "running"
        self.code: int | None = None
        self.step: Step | None = None
        self.output: deque[str] = deque(maxlen=MOST_LINES)
        self.dropped = 0
        """Lines of the output that are no longer kept."""
        self._stopping = False
        self._process = process
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True, name=f"muster-{task_id}")
            for stream in (process.stdout, process.stderr)
        ]
        for reader in self._readers:
            reader.start()
        threading.Thread(target=self._wait, daemon=True, name=f"muster-{task_id}-end").start()

    @property
    def line(self) -> str:
        """What does the same from the shell."""
        return shlex.join(["muster", *self.words])

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return (time.time() if self.ended_s is None else self.ended_s) - self.began_s

    def stop(self) -> bool:
        """End the process and all that it started; false when it is over. Returns at once."""
        if self.state != "running":
            return False
        self._stopping = True
        self._signal(signal.SIGINT)
        threading.Thread(target=self._insist, daemon=True, name=f"muster-{self.id}-stop").start()
        return True

    def kill(self) -> None:
        """As `stop`, at once."""
        if self.state == "running":
            self._stopping = True
            self._signal(signal.SIGKILL)

    def _insist(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # It leads a group of its own, which outlives it while something in it goes on.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _read(self, stream: IO[str]) -> None:
        with stream:
            while text := stream.readline(MOST_LINE):
                step = progress.read(text)
                if step is not None:
                    self.step = step
                else:
                    self.dropped += len(self.output) == MOST_LINES
                    self.output.append(inert(text.rstrip("\r\n")))

    def _wait(self) -> None:
        code = self._process.wait()
        for reader in self._readers:
            reader.join(GRACE_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self.ended_s, self.code = time.time(), code
        self.state = "stopped" if self._stopping else "failed" if code else "done"


class Tasks:
    """Those of one console, newest first."""

    def __init__(self) -> None:
        self._tasks: list[Task] = []
        self._count = 0

    @property
    def all(self) -> tuple[Task, ...]:
        return tuple(self._tasks)

    @property
    def running(self) -> list[Task]:
        return [task for task in self._tasks if task.state == "running"]

    def task(self, task_id: str) -> Task:
        """Raises NotFoundError."""
        for task in self._tasks:
            if task.id == task_id:
                return task
        raise NotFoundError(f"there is no task '{printable(task_id)[:20]}'", ":tasks lists them")

    def start(self, words: Sequence[str]) -> Task:
        """Raises SpecError for a line that the command would not take, RefusedError while enough run."""
        check(words)
        if len(self.running) >= MOST_RUNNING:
            raise RefusedError(f"{MOST_RUNNING} tasks run already", "Wait, or stop one: :tasks")
        self._count += 1
        process = subprocess.Popen(
            [sys.executable, "-m", "console.cli", *words, "--progress", "json"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace",
            start_new_session=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        task = Task(f"J-{self._count}", words, process)
        self._tasks.insert(0, task)
        over = [each for each in self._tasks if each.state != "running"]
        for old in over[MOST_KEPT:]:
            self._tasks.remove(old)
        return task

    def close(self) -> None:
        """End all that run: the console ends."""
        for task in self.running:
            task.kill()


def check(words: Sequence[str]) -> None:
    """Raises SpecError where the shell would refuse the line, and for what needs the terminal."""
    from console.cli import parser

    if not words or words[0] not in COMMANDS:
        raise SpecError("", f"no long command is called '{' '.join(words[:1])[:20]}'", f"Use {', '.join(COMMANDS)}")
    said = StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            arguments = parser().parse_args([*words])
    except SystemExit:
        raise SpecError("", _complaint(said.getvalue()), f"See muster {words[0]} --help") from None
    if getattr(arguments, "live", False):
        raise SpecError("", "--live needs a console of its own", "Start it from the shell")


def _complaint(text: str) -> str:
    """What the shell's parser finds wrong, without the program's name and how the command is written."""
    told = next((line for line in text.splitlines() if line.startswith("muster: ") or ": error: " in line), "")
    problem = told.partition(": error: ")[2] or told.removeprefix("muster: ")
    return cut(printable(problem), 160) or "it cannot be read"
