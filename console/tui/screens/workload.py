"""Pages of one workload, and of the output of its tasks.

The page of a workload asks for what is slow (unblocking change, estimates, proposals, findings) after the first paint.
The output page follows the end of a log and draws only the lines in view.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from rich.style import Style
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from console.actions.key_map import key_of
from console.actions.registry import ActionTarget, Context
from console.client.change_feed import in_thread
from console.text.terminal_text import cut, fit, mebibytes, permille, printable
from console.text.tones import drawn, tones
from console.tui.widgets.drawing import MOVES, OneLine, PlacedScroll, part
from console.tui.widgets.list_pane import TablePane
from console.tui.widgets.pane import Connect, DetailPane, Pane
from console.views.external_scheduler import job_section
from console.views.sections import Line, Section, plural, text_line
from console.views.what_if import eta_section
from console.views.workload import LogLines, WorkloadContext, action_section, as_left, task_line, workload_columns
from engine.executors.task_files import OutputPart, OutputRequest, ProcessReport
from engine.model.errors import MusterError, NotFoundError, UnreachableError
from engine.model.queries import Page, Query, Reason, Term, Unblocking, WorkloadDetail
from engine.model.twin_queries import AskStart, RunStatus, StartEstimate
from recommender.history.metrics import kind_of

if TYPE_CHECKING:
    from console.client.protocol import Client, RuntimeEstimate
    from console.tui.app import MusterApp
    from engine.external.mirror_report import Mirrored


SAID = 12
MAX_SIBLINGS = 1_000
MAX_PROPOSALS = 64
LOOK_S = 0.5
"""Longest time the engine may hold a question for a run's progress."""
OVER = ("finished", "failed", "cancelled")


class WorkloadPane(DetailPane[WorkloadDetail]):
    NAME = "workload"
    THIRD = True
    TAILS = True
    TARGETS = "workload"

    def __init__(self, connect: Connect, workload_id: str) -> None:
        super().__init__(connect)
        self._workload_id = workload_id
        self._unblocking: Unblocking | None = None
        self._searched: tuple[Reason, ...] = ()
        """The reasons for which it was asked what would end them."""
        self._eta: RunStatus | None = None
        """The twin's run that tells when it starts, once a person has asked."""
        self._likely: RuntimeEstimate | None = None
        self._beside = WorkloadContext()
        self._looked_beside: str | None = None
        """The state in which it was asked what lies beside it."""
        self._estimated: tuple[str, int] | None = None
        """The state, and since when, in which it was asked how long it may run."""

    @property
    def crumb(self) -> str:
        return cut(printable(self._workload_id), 32)

    @property
    def note(self) -> str:
        return cut(printable(self.detail.name), 40) if self.detail else ""

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        return (ActionTarget(self._workload_id, self.detail.state),) if self.detail else ()

    @property
    def measured(self) -> str:
        """While it waits, the waits of its queue; then what work of its kind uses."""
        if self.detail is None:
            return ""
        kind = kind_of(self.detail.tenant, self.detail.name)
        ran = self.detail.state in ("placed", "running", *OVER)
        return f"kind:{kind}" if kind and ran else f"queue:{self.detail.queue} wait"

    def ask(self, client: Client) -> WorkloadDetail:
        return client.workload(self._workload_id)

    def columns(self, detail: WorkloadDetail, width: int) -> tuple[list[Section], list[Section]]:
        app = cast("MusterApp", self.app)
        beside = self._beside._replace(events=tuple(app.events.about(detail.id, SAID)))
        left, right = workload_columns(detail, width, self._unblocking, self._likely, beside)
        if self._eta is not None:
            left.insert(1, self._eta_section(self._eta, width))
        if self._beside.job is not None:
            answer = self._eta.answer if self._eta is not None else None
            estimate = answer if isinstance(answer, StartEstimate) else None
            left.insert(1, job_section(self._beside.job, width, estimate))
        context = Context(self.NAME, self.TARGETS, self.targets, app.context().connected)
        right.append(action_section(list(app.actions.values()), context))
        return left, right

    def placeholder_sections(self) -> list[Section]:
        """The row of the list from which it was opened."""
        stack = cast("MusterApp", self.app).navigator.stack
        below = stack[-2] if len(stack) > 1 else None
        row = below.table.row_with(self._workload_id) if isinstance(below, TablePane) else None
        if row is None:
            return super().placeholder_sections()
        named = zip(cast("TablePane", below).table.headings, row.cells, strict=False)
        lines = [Line(((fit(heading.title.lower(), 11), "dim"), cell)) for heading, cell in named]
        return [Section(self.crumb, tuple(lines), "loading the rest …")]

    def look_again(self) -> None:
        self._looked_beside = None
        super().look_again()

    def _draw(self) -> None:
        super()._draw()
        if self.detail is not None and self._looked_beside != self.detail.state:
            self._looked_beside = self.detail.state
            self.run_worker(self._look_beside(self.detail.array), exclusive=True, group="beside")
        reasons = self.detail.reasons if self.detail else ()
        if [reason.token for reason in reasons] != [reason.token for reason in self._searched]:
            self._searched, self._unblocking = reasons, None
            if reasons:
                self.run_worker(self._search(reasons))
        if self.detail and self.detail.state not in OVER:
            moment = (self.detail.state, self.detail.since_ms)
            if moment != self._estimated:
                self._estimated = moment
                self.run_worker(self._estimate())

    async def ask_eta(self) -> None:
        """Have the twin tell when it starts; the page follows the run. Raises MusterError."""
        status = await in_thread(lambda: self.connect().ask(AskStart(id=self._workload_id)))
        while self.is_attached:
            self._eta = status
            self._draw()
            if status.state != "running":
                return
            status = await in_thread(partial(self.connect().run, status.id, status.serial, LOOK_S))

    def _eta_section(self, run: RunStatus, width: int) -> Section:
        if run.error is not None:
            return Section("When it starts", (text_line(f"{run.error.problem}. {run.error.remedy}", "bad"),))
        if not isinstance(run.answer, StartEstimate):
            return Section("When it starts", (text_line("running ahead …", "dim"),), permille(run.progress_permille))
        return eta_section(run.answer, width)

    async def _look_beside(self, array: str) -> None:
        """Ask for its array, processes, job, proposals and findings, one after the other. Asked once in each state of
        the workload; the page does not wait."""
        if array:
            with suppress(MusterError):
                page = await in_thread(partial(_siblings, self.connect, array))
                states = tuple(str(row[0]) for row in page.rows)
                self._beside = self._beside._replace(siblings=states, siblings_total=page.matched)
                self._draw()
        if self.detail is not None and self.detail.run is not None:
            with suppress(MusterError):
                processes = await in_thread(lambda: self.connect().processes(self._workload_id))
                self._beside = self._beside._replace(processes=processes)
                self._draw()
        with suppress(MusterError):
            # Of a cell that Muster decides there is none.
            job = await in_thread(partial(_mirrored, self.connect, self._workload_id))
            self._beside = self._beside._replace(job=job, outside=True)
            self._draw()
        for name, ask in (("proposals", proposals_about), ("findings", findings_about)):
            with suppress(MusterError):  # what could not be had is not known to be none
                found = await in_thread(partial(ask, self.connect, self._workload_id))
                self._beside = self._beside._replace(**{name: found})
        self._draw()

    async def _search(self, reasons: tuple[Reason, ...]) -> None:
        """Ask for the change that would let it start, which takes a while. Errors are left to the page's own
        question."""
        with suppress(MusterError):
            found = await in_thread(lambda: self.connect().unblocking(self._workload_id))
            if reasons is self._searched:
                self._unblocking = found
                self._draw()

    async def _estimate(self) -> None:
        """Ask for the estimate of its run time. Errors show nothing."""
        with suppress(MusterError):
            self._likely = await in_thread(lambda: self.connect().estimate(self._workload_id))
            self._draw()


def _mirrored(connect: Connect, workload_id: str) -> Mirrored | None:
    """Its job in the deciding scheduler; None where that has forgotten it. Raises NotFoundError where there is no such
    scheduler."""
    client = connect()
    try:
        return client.mirrored(workload_id)
    except NotFoundError:
        if client.mirror().state == "none":
            raise
        return None


def _siblings(connect: Connect, array: str) -> Page:
    where = (Term("array", "=", array),)
    return connect().query(Query(kind="workloads", columns=("state",), where=where, limit=MAX_SIBLINGS))


def proposals_about(connect: Connect, workload_id: str) -> tuple[tuple[str, str, str], ...]:
    """(id, state, title) of those under way that act on it. Blocks."""
    from console.views.proposal import SHOWN_STATES

    return tuple(
        (each.id, each.state, each.title)
        for each in connect().proposals(SHOWN_STATES, MAX_PROPOSALS)
        if any(workload_id in step.act.targets for step in each.plan.steps)
    )


def findings_about(connect: Connect, workload_id: str) -> tuple[tuple[str, str], ...]:
    """(id, what is found) of those about it. Blocks."""
    found = connect().recommendations().open
    own = [each.suggestion for each in found if workload_id in (*each.suggestion.targets, each.suggestion.about)]
    return tuple((each.id, each.finding) for each in own)


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
        self.empty = ""
        """Said where there are no lines."""
        self.following = True
        self._open_line = ""
        self._aside = 0
        """Cells that are scrolled out of view on the left."""
        self._tones: dict[str, Style] = {}

    def show(self, lines: Sequence[str], open_line: str = "") -> None:
        """Replace all lines."""
        self.lines = list(lines)
        self._open_line = open_line
        self._settle()

    def add(self, lines: Sequence[str], open_line: str) -> int:
        """Append lines; `open_line` has not ended. Returns the number of oldest lines dropped."""
        self.lines += lines
        self._open_line = open_line
        gone = max(0, len(self.lines) - MAX_LINES)
        if gone:
            del self.lines[:gone]
        self._settle(-gone)
        return gone

    def put_before(self, lines: Sequence[str]) -> None:
        """Prepend lines. The lines in view stay in place."""
        self.lines[:0] = lines
        self._settle(len(lines))

    def _settle(self, moved: int = 0) -> None:
        self.virtual_size = Size(self.size.width, self._count)
        if self.following:
            self.scroll_to(y=max(0, self._count - self.size.height), animate=False, force=True)
        elif moved:
            self.scroll_to(y=max(0, self.scroll_offset.y + moved), animate=False, force=True)
        self.refresh()

    @property
    def _count(self) -> int:
        return len(self.lines) + bool(self._open_line)

    def on_mount(self) -> None:
        self.retone()

    def retone(self) -> None:
        self._tones = tones(self.app.current_theme)
        self.refresh()

    def on_resize(self) -> None:
        self._settle()

    def render_line(self, y: int) -> Strip:
        index, width, style = y + self.scroll_offset.y, self.size.width, self._tones["base"]
        if not self._count and y == 0:
            return Strip([drawn(cut(printable(self.empty), width), style + self._tones["dim"])]).adjust_cell_length(
                width, style
            )
        if index >= self._count:
            return Strip.blank(width, style)
        text = self.lines[index] if index < len(self.lines) else self._open_line
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
        """Go to the next member of the gang, or to the attempt before once all were seen."""
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
        """Read new output. Raises MusterError."""
        before = self._part
        if before is None:
            request = OutputRequest(
                id=self._workload_id, task=self._wanted, attempt=self._attempt, offset=-FIRST, most=FIRST
            )
            part = await in_thread(partial(_output, self.connect, request, 0.0))
            self._view.empty = "no output yet"
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
            lost = [f"… {part.offset - at:,} bytes not kept …"] if part.offset > at else []
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
        more = (
            f"  {len(tasks)} {plural('task', len(tasks))}, {key_of('next_task')} for the next" if len(tasks) > 1 else ""
        )
        tone = "bad" if shown is not None and shown.ended else "dim"
        self._head.show([part(f"  {task_line(shown)}" if shown is not None else "", tone), part(more, "accent")])

    def _say(self, error: MusterError) -> None:
        """Say that there is nothing to show. While the engine is away the banner says so."""
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
