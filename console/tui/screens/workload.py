"""The page of one workload.

It asks for what is slow (unblocking change, estimates, proposals, findings) after the first paint.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, cast

from console.actions.registry import ActionTarget, Context
from console.client.change_feed import in_thread
from console.text.terminal_text import cut, fit, permille, printable
from console.tui.widgets.list_pane import TablePane
from console.tui.widgets.pane import Connect, DetailPane
from console.views.external_scheduler import job_section
from console.views.sections import Line, Section, text_line
from console.views.what_if import eta_section
from console.views.workload import WorkloadContext, action_section, ask_gpu_use, workload_columns
from engine.model.details import Reason, Unblocking, WorkloadDetail
from engine.model.errors import MusterError, NotFoundError
from engine.model.list_queries import Page, Query, Term
from engine.model.twin_queries import AskStart, RunStatus, StartEstimate, StartForecast
from recommender.history.metrics import kind_of

if TYPE_CHECKING:
    from console.client.protocol import Client, RuntimeEstimate
    from console.tui.app import MusterApp
    from engine.external.mirror_report import Mirrored
    from recommender.history.metrics import History


SAID = 12
MAX_SIBLINGS = 1_000
MAX_PROPOSALS = 64
FORESEE_EVERY_MS = 30_000
"""Cell time for which the page shows one start forecast."""
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
        self._starts: StartForecast | None = None
        """When it may start, as told last."""
        self._foretold: tuple[str, int] | None = None
        """The state, and the span of FORESEE_EVERY_MS, for which that was asked."""
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
        left, right = workload_columns(detail, width, self._unblocking, self._likely, beside, self._starts)
        if self._eta is not None:
            left.insert(1, self._eta_section(self._eta, width))
        if self._beside.job is not None:
            left.insert(1, job_section(self._beside.job, width, self._starts))
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
        if self.detail is not None:
            asked = (self.detail.state, self.detail.now_ms // FORESEE_EVERY_MS)
            if asked != self._foretold:
                self._foretold = asked
                self.run_worker(self._foresee(), exclusive=True, group="start")
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
            if isinstance(status.answer, StartEstimate) and status.answer.forecast is not None:
                self._starts = status.answer.forecast
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
        if self.detail is not None:
            use = await in_thread(partial(_gpu_use, self.connect, self.detail))
            self._beside = self._beside._replace(gpu_use=use)
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

    async def _foresee(self) -> None:
        """Ask when it may start. Errors show nothing."""
        with suppress(MusterError):
            waits = bool(self.detail and self.detail.reasons)
            starts = await in_thread(lambda: self.connect().start_forecast(self._workload_id)) if waits else None
            if starts != self._starts:
                self._starts = starts
                self._draw()

    async def _estimate(self) -> None:
        """Ask for the estimate of its run time. Errors show nothing."""
        with suppress(MusterError):
            self._likely = await in_thread(lambda: self.connect().estimate(self._workload_id))
            self._draw()


def _gpu_use(connect: Connect, detail: WorkloadDetail) -> History | None:
    return ask_gpu_use(connect(), detail)


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
