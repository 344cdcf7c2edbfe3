"""The page of what a workload writes: the end of its log, followed, with a filter.

Only the lines in view are drawn. Older output is read when somebody scrolls to where it would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from console.actions.key_map import key_of
from console.client.change_feed import in_thread
from console.text.terminal_text import cut, mebibytes, printable, wrap
from console.text.tones import drawn, tones
from console.tui.widgets.drawing import MOVES, OneLine, PlacedScroll, part
from console.tui.widgets.pane import Connect, Pane
from console.views.sections import plural
from console.views.workload import LogLines, as_left, task_line
from engine.executors.task_files import OutputPart, OutputRequest, ProcessReport
from engine.model.errors import MusterError, UnreachableError

if TYPE_CHECKING:
    from console.client.protocol import Client

MAX_LINES = 20_000
"""Lines in memory. Older ones are dropped, and read again on scrolling up."""


class LogView(PlacedScroll, can_focus=True, inherit_bindings=False):
    """Follows the end until somebody scrolls away from it, and again once they are back there."""

    DEFAULT_CSS = """
    LogView { height: 1fr; width: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *MOVES,
        Binding("left", "aside(-16)", show=False),
        Binding("right", "aside(16)", show=False),
    ]

    class Scrolled(Message):
        """Somebody has moved; `wants_earlier`: above what is held."""

        def __init__(self, wants_earlier: bool) -> None:
            super().__init__()
            self.wants_earlier = wants_earlier

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.starts: list[int] = []
        """Offset of each line."""
        self.empty = ""
        """Said where there are no lines."""
        self.following = True
        self._open_line = ""
        self._words: tuple[str, ...] = ()
        self._matching: list[str] | None = None
        """Lines that have all of the words; None: no words, all lines."""
        self._aside = 0
        """Cells that are scrolled out of view on the left."""
        self._tones: dict[str, Style] = {}

    def show(self, lines: Sequence[str], starts: Sequence[int], open_line: str = "") -> None:
        """Replace all lines."""
        self.lines, self.starts = list(lines), list(starts)
        self._open_line = open_line
        self.filter(" ".join(self._words))

    def add(self, lines: Sequence[str], starts: Sequence[int], open_line: str) -> None:
        """Append lines; `open_line` has not ended. The oldest are dropped where there are more than MAX_LINES."""
        self.lines += lines
        self.starts += starts
        self._open_line = open_line
        gone = self.lines[: max(0, len(self.lines) - MAX_LINES)]
        del self.lines[: len(gone)], self.starts[: len(gone)]
        unseen = len(self._matches(gone))
        if self._matching is not None:
            self._matching = [*self._matching, *self._matches(lines)][unseen:]
        self._settle(-unseen)

    def put_before(self, lines: Sequence[str], starts: Sequence[int]) -> None:
        """Prepend lines. The lines in view stay in place."""
        self.lines[:0] = lines
        self.starts[:0] = starts
        fresh = self._matches(lines)
        if self._matching is not None:
            self._matching[:0] = fresh
        self._settle(len(fresh))

    def filter(self, text: str) -> None:
        """Show only lines that have all of these words, whatever their case."""
        self._words = tuple(text.lower().split())
        self._matching = self._matches(self.lines) if self._words else None
        self._settle()

    def _matches(self, lines: Sequence[str]) -> list[str]:
        return [line for line in lines if self._matched(line)] if self._words else list(lines)

    def _matched(self, line: str) -> bool:
        folded = line.lower()
        return all(word in folded for word in self._words)

    @property
    def seen(self) -> list[str]:
        """The lines that match."""
        return self.lines if self._matching is None else self._matching

    def _settle(self, moved: int = 0) -> None:
        self.virtual_size = Size(self.size.width, self._count)
        if self.following:
            self.scroll_to(y=max(0, self._count - self.size.height), animate=False, force=True)
        elif moved:
            self.scroll_to(y=max(0, self.scroll_offset.y + moved), animate=False, force=True)
        self.refresh()

    @property
    def _count(self) -> int:
        return len(self.seen) + (bool(self._open_line) and self._matched(self._open_line))

    def on_mount(self) -> None:
        self.retone()

    def retone(self) -> None:
        self._tones = tones(self.app.current_theme)
        self.refresh()

    def on_resize(self) -> None:
        self._settle()

    def render_line(self, y: int) -> Strip:
        index, width, style = y + self.scroll_offset.y, self.size.width, self._tones["base"]
        if not self._count:
            said = wrap(printable("no line matches" if self._words and self.lines else self.empty), max(20, width - 2))
            text = said[y] if y < len(said) else ""
            return Strip([drawn(cut(text, width), style + self._tones["dim"])]).adjust_cell_length(width, style)
        if index >= self._count:
            return Strip.blank(width, style)
        text = self.seen[index] if index < len(self.seen) else self._open_line
        strip = Strip([drawn(text, style)])
        strip = strip.crop(self._aside, strip.cell_length) if self._aside else strip
        if strip.cell_length > width:
            strip = Strip.join([strip.crop(0, width - 1), Strip([drawn("…", style + self._tones["dim"])])])
        return strip.adjust_cell_length(width, style)

    def action_move(self, step: int) -> None:
        self._go(self.scroll_offset.y + step)

    def action_page(self, pages: int) -> None:
        self._go(self.scroll_offset.y + pages * max(1, self.size.height - 1))

    def action_edge(self, side: int) -> None:
        self._go(-1 if side < 0 else self._count)

    def action_aside(self, cells: int) -> None:
        self._aside = max(0, self._aside + cells)
        self.refresh()

    def on_mouse_scroll_up(self) -> None:
        self._go(self.scroll_offset.y - 3)

    def on_mouse_scroll_down(self) -> None:
        self._go(self.scroll_offset.y + 3)

    def _go(self, top: int) -> None:
        last = max(0, self._count - self.size.height)
        self.following = top >= last
        self.scroll_to(y=min(max(top, 0), last), animate=False, force=True)
        self.refresh()
        self.post_message(self.Scrolled(wants_earlier=top < 0 or (top == 0 and not self.following)))


FIRST = 256 << 10
"""Bytes of the end that are shown first, and that are read at once when somebody goes further back."""
WAIT_S = 10.0
"""Longest time of one question for more output."""
PAUSE_S = 0.3
"""Between two looks where more may come: what is written in it is drawn at once."""
AGAIN_S = 2.0
"""Pause before the next try without new output or without an engine."""


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
        self.filter_text = ""
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
        tail = "ended" if part.over else "following" if self._view.following else "paused, end resumes"
        dropped = f"{part.dropped_bytes:,} bytes lost, disk full" if part.dropped_bytes else ""
        older = f"{_size(self._begin)} older not loaded" if self._begin else ""
        matching = f"{len(self._view.seen):,} of {len(self._view.lines):,} lines  /{printable(self.filter_text)}"
        words = (
            tail, dropped, matching if self.filter_text else "", older, _size(part.end), f"attempt {part.attempt}",
            printable(part.task),
        )  # fmt: skip
        return "  ·  ".join(word for word in words if word)

    def filter(self, text: str) -> None:
        """Show only the lines with these words."""
        self.filter_text = " ".join(text.split())
        self._view.filter(self.filter_text)
        self.post_message(self.Changed())

    def clear_one(self) -> bool:
        """The first Back shows all lines again."""
        if not self.filter_text:
            return False
        self.filter("")
        return True

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
        """Go to the next member of the gang, or to the attempt before once all were seen."""
        attempts = self._report.attempts if self._report is not None else ()
        here = next((each for each in attempts if self._part and each.attempt == self._part.attempt), None)
        if here is None and self._part is not None and len(self._part.tasks) > 1:
            names = self._part.tasks
            self._read_anew(names[(names.index(self._part.task) + 1) % len(names)], 0)
        if here is None or self._part is None:
            return
        names = [task.name for task in here.tasks]
        at = names.index(self._part.task) + 1 if self._part.task in names else 0
        earlier = [each.attempt for each in attempts if each.attempt < here.attempt]
        if at < len(names):
            self._read_anew(names[at], here.attempt)
        else:
            self._read_anew("", (earlier or [attempts[0].attempt])[0])

    def _read_anew(self, task: str, attempt: int) -> None:
        """From the end of what another task wrote."""
        self._wanted, self._attempt = task, attempt
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
        """Read new output. Raises MusterError."""
        before = self._part
        if before is None:
            request = OutputRequest(
                id=self._workload_id, task=self._wanted, attempt=self._attempt, offset=-FIRST, most=FIRST
            )
            part = await in_thread(partial(_output, self.connect, request, 0.0))
            self._view.empty = "no output yet"
            data, self._begin = _from_line(part)
            self._lines = LogLines(self._begin)
            lines = self._lines.take(data)
            self._view.show(lines, self._lines.starts, as_left(self._lines.rest))
        else:
            at = before.offset + len(before.data)
            if before.over and at >= before.end:
                await self._look_for_another(before)
                return
            request = OutputRequest(
                id=self._workload_id, task=before.task, attempt=before.attempt, offset=at, most=FIRST
            )
            part = await in_thread(partial(_output, self.connect, request, WAIT_S))
            self._add(part, at)
        self._part = part
        if before is None or part.over or part.data:
            await self._look_at_processes()
        self.post_message(self.Changed())

    def _add(self, part: OutputPart, at: int) -> None:
        """Show what follows `at`, and what came between."""
        said = []
        if part.offset > at:
            said = [f"… {part.offset - at:,} bytes not kept …"]
        elif part.offset < at:
            said = ["… the file was started over …"]
        if said:
            self._lines = LogLines(part.offset)
        lines = self._lines.take(part.data)
        starts = [part.offset] * len(said) + self._lines.starts
        self._view.add([*said, *lines], starts, as_left(self._lines.rest))
        if len(self._view.lines) == MAX_LINES:
            self._begin = self._view.starts[0]

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
        more = (
            f"  {len(tasks)} {plural('task', len(tasks))}, {key_of('next_task')} for the next" if len(tasks) > 1 else ""
        )
        tone = "bad" if shown is not None and shown.ended else "dim"
        said = task_line(shown) if shown is not None else ""
        if self._part is not None and self._part.path:
            files = len(self._part.tasks)
            said = f"{printable(self._part.node)}  {printable(self._part.path)}".lstrip()
            more = f"  {files} files, {key_of('next_task')} for the next" if files > 1 else ""
        self._head.show([part(f"  {said}" if said else "", tone), part(more, "accent")])

    def _say(self, error: MusterError) -> None:
        """Say that there is nothing to show. While the engine is away the banner says so."""
        if self._part is None and not isinstance(error, UnreachableError):
            self._view.empty = str(error)
            self._view.show((), ())

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
            lines = LogLines(before)
            self._view.put_before(lines.take(data), lines.starts)
        except MusterError as error:
            self.post_message(self.AskFailed(error))
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
