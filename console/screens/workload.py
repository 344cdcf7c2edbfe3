"""One workload: its state, why it waits and what would end that, where it runs, what happened to it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from console.actions import Target
from console.details import Section, text_line
from console.feed import in_thread
from console.outlook import eta_section
from console.plain import estimate_line
from console.screens.pane import Connect, DetailPane
from console.text import cut, permille, printable, wrap
from console.workload_text import workload_columns
from engine.errors import MusterError
from engine.outlook import AskStart, RunStatus, StartEstimate
from engine.query import Reason, Unblocking, WorkloadDetail

if TYPE_CHECKING:
    from console.client import Client, RuntimeEstimate

LOOK_S = 0.5
"""How long the engine may hold the question how far a run of the twin is."""
OVER = ("finished", "failed", "cancelled")


class WorkloadPane(DetailPane[WorkloadDetail]):
    NAME = "workload"
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
        self._estimated: tuple[str, int] | None = None
        """The state, and since when, in which it was asked how long it may run."""

    @property
    def crumb(self) -> str:
        return cut(printable(self._workload_id), 32)

    @property
    def note(self) -> str:
        return cut(printable(self.detail.name), 40) if self.detail else ""

    @property
    def targets(self) -> tuple[Target, ...]:
        return (Target(self._workload_id, self.detail.state),) if self.detail else ()

    def ask(self, client: Client) -> WorkloadDetail:
        return client.workload(self._workload_id)

    def columns(self, detail: WorkloadDetail, width: int) -> tuple[list[Section], list[Section]]:
        left, right = workload_columns(detail, width, self._unblocking)
        if self._eta is not None:
            left.insert(1, self._eta_section(self._eta, width))
        if self._likely is not None and detail.state not in OVER:
            lines = tuple(map(text_line, wrap(estimate_line(self._likely), width)))
            # Behind where it runs, which comes first on a small screen.
            right.insert(1, Section("How long it runs", lines))
        return left, right

    def _draw(self) -> None:
        super()._draw()
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

    async def _search(self, reasons: tuple[Reason, ...]) -> None:
        """What would let it start takes a while to find: the page is shown without it first. Whatever keeps the engine
        from answering, the page itself meets too and tells."""
        with suppress(MusterError):
            found = await in_thread(lambda: self.connect().unblocking(self._workload_id))
            if reasons is self._searched:
                self._unblocking = found
                self._draw()

    async def _estimate(self) -> None:
        """What has been learnt of work like it. Nothing is shown where that cannot be asked."""
        with suppress(MusterError):
            self._likely = await in_thread(lambda: self.connect().estimate(self._workload_id))
            self._draw()
