"""What a task of a workload has written on this machine, and goes on writing: the newest at the bottom."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult

from console.client.change_feed import in_thread
from console.text.log_lines import LogLines, as_left
from console.text.terminal_text import cut, mebibytes, printable
from console.tui.widgets.log_view import LogView
from console.tui.widgets.one_line import OneLine, part
from console.tui.widgets.pane import Connect, Pane
from console.views.sections import plural
from console.views.work.processes import task_line
from engine.executors.process_queries import OutputPart, OutputRequest, ProcessReport
from engine.model.errors import MusterError, UnreachableError

if TYPE_CHECKING:
    from console.client.protocol import Client

FIRST = 256 << 10
"""Bytes of the end that are shown first, and that are read at once when somebody goes further back."""
WAIT_S = 10.0
"""Of one question for more."""
PAUSE_S = 0.3
"""Between two looks where more may come: what is written in it is drawn at once."""
AGAIN_S = 2.0
"""Before the next try where there was nothing, or nobody."""


class OutputPane(Pane):
    NAME = "output"

    def __init__(self, connect: Connect, words: str) -> None:
        super().__init__(connect)
        name, _, task = words.partition(" ")
        self._workload_id = name
        self._wanted = task.strip()
        """Name or number of a task; empty: the first."""
        self._attempt = 0
        self._report: ProcessReport | None = None
        self._part: OutputPart | None = None
        self._begin = 0
        """Offset of the first byte that is shown."""
        self._lines = LogLines()
        self._earlier = False
        """Earlier output is being read."""
        self._head = OneLine("")
        self._view = LogView()

    @property
    def crumb(self) -> str:
        return f"output of {cut(printable(self._workload_id), 32)}"

    @property
    def note(self) -> str:
        part = self._part
        if part is None:
            return ""
        tail = "ended" if part.over else "following" if self._view.following else "stays here, end follows"
        dropped = f"{part.dropped_bytes:,} bytes lost, disk full" if part.dropped_bytes else ""
        return "  ·  ".join(
            word for word in (tail, dropped, _size(part.end), f"attempt {part.attempt}", printable(part.task)) if word
        )

    @property
    def copyable(self) -> str:
        return "\n".join(map(printable, self._view.lines[-200:]))

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._view

    def on_mount(self) -> None:
        self._view.empty = "loading …"
        self.run_worker(self._follow(), exclusive=True, group="follow")

    def look_again(self) -> None:
        """From the end again."""
        self._part, self._attempt = None, 0
        self._view.following = True
        self.run_worker(self._follow(), exclusive=True, group="follow")

    def next_task(self) -> None:
        """That of the next member of the gang, or of the attempt before once all were seen."""
        attempts = self._report.attempts if self._report is not None else ()
        here = next((each for each in attempts if self._part and each.attempt == self._part.attempt), None)
        if here is None or self._part is None:
            return
        names = [task.name for task in here.tasks]
        at = names.index(self._part.task) + 1 if self._part.task in names else 0
        earlier = [each.attempt for each in attempts if each.attempt < here.attempt]
        if at < len(names):
            self._attempt, self._wanted = here.attempt, names[at]
        else:
            self._attempt, self._wanted = (earlier or [attempts[0].attempt])[0], ""
        self._part = None
        self._view.following = True
        self.run_worker(self._follow(), exclusive=True, group="follow")

    async def _follow(self) -> None:
        """Until the task has ended; then on to the next attempt as soon as there is one."""
        while self.is_attached:
            try:
                await self._read_on()
            except MusterError as error:
                self._say(error)
                pause = AGAIN_S
            else:
                pause = AGAIN_S if self._part is not None and self._part.over else PAUSE_S
            await _sleep(pause)

    async def _read_on(self) -> None:
        """What is new. Raises MusterError."""
        before = self._part
        if before is None:
            request = OutputRequest(
                id=self._workload_id, task=self._wanted, attempt=self._attempt, offset=-FIRST, most=FIRST
            )
            part = await in_thread(partial(_output, self.connect, request, 0.0))
            self._view.empty = "nothing was written yet"
            data, self._begin = _from_line(part)
            self._lines = LogLines()
            self._view.show(self._lines.take(data), as_left(self._lines.rest))
        else:
            at = before.offset + len(before.data)
            if before.over and at >= before.end:
                await self._look_for_another(before)
                return
            request = OutputRequest(
                id=self._workload_id, task=before.task, attempt=before.attempt, offset=at, most=FIRST
            )
            part = await in_thread(partial(_output, self.connect, request, WAIT_S))
            lost = [f"… {part.offset - at:,} bytes are not kept …"] if part.offset > at else []
            self._view.add([*lost, *self._lines.take(part.data)], as_left(self._lines.rest))
        self._part = part
        if before is None or part.over or part.data:
            await self._look_at_processes()
        self.post_message(self.Changed())

    def _request(self, task: str, attempt: int, offset: int, most: int = FIRST) -> OutputRequest:
        return OutputRequest(id=self._workload_id, task=task, attempt=attempt, offset=offset, most=most)

    async def _look_for_another(self, before: OutputPart) -> None:
        """A workload that was started again writes elsewhere: its last attempt is what somebody wants to see, unless
        they chose one."""
        await self._look_at_processes()
        attempts = self._report.attempts if self._report is not None else ()
        if not self._attempt and attempts and attempts[0].attempt > before.attempt:
            self._part = None

    async def _look_at_processes(self) -> None:
        self._report = await in_thread(lambda: self.connect().processes(self._workload_id))
        attempt = self._part.attempt if self._part is not None else 0
        tasks = next((each.tasks for each in self._report.attempts if each.attempt == attempt), ())
        shown = next((task for task in tasks if self._part and task.name == self._part.task), None)
        more = f"  {len(tasks)} {plural('task', len(tasks))}, n shows the next" if len(tasks) > 1 else ""
        tone = "bad" if shown is not None and shown.ended else "dim"
        self._head.show([part(f"  {task_line(shown)}" if shown is not None else "", tone), part(more, "accent")])

    def _say(self, error: MusterError) -> None:
        """Nothing to show. While the engine is away the banner says so."""
        if self._part is None and not isinstance(error, UnreachableError):
            self._view.empty = str(error)
            self._view.show(())

    @on(LogView.Scrolled)
    def _scrolled(self, event: LogView.Scrolled) -> None:
        self.post_message(self.Changed())
        if event.wants_earlier and self._begin and not self._earlier and self._part is not None:
            self._earlier = True
            self.run_worker(self._read_earlier(self._part))

    async def _read_earlier(self, shown: OutputPart) -> None:
        try:
            start = max(0, self._begin - FIRST)
            request = self._request(shown.task, shown.attempt, start, self._begin - start)
            part = await in_thread(partial(_output, self.connect, request, 0.0))
            if part.offset >= self._begin:
                self._begin = 0  # what was before is kept no more
                return
            data, before = _from_line(part)
            # A line may be longer than all that is read at once: then there is no end to go back to.
            self._begin = before if before < self._begin else 0
            self._view.put_before(LogLines().take(data))
        except MusterError as error:
            self.post_message(self.Failed(error))
        finally:
            self._earlier = False


def _from_line(part: OutputPart) -> tuple[bytes, int]:
    """What was read, from where a line begins, and where that is."""
    cut = part.data.find(b"\n") + 1 if part.offset else 0
    return part.data[cut:], part.offset + cut


def _output(connect: Connect, request: OutputRequest, wait_s: float) -> OutputPart:
    """Called on a thread."""
    client: Client = connect()
    return client.output(request, wait_s)


async def _sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


def _size(count: int) -> str:
    return f"{count:,} bytes" if count < 1 << 20 else mebibytes(count >> 20)
