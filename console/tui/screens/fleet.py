"""Several cells as one: `:fleet`; and one submission: `:fleet ID`. The fleet's own process is asked, whatever cell the
console is attached to."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from console.client.change_feed import in_thread
from console.fleet.page_sections import nowhere, pages, submission_pages
from console.fleet.queries import FleetSubmission, FleetView
from console.forms.settings import load
from console.text.terminal_text import printable, wrap
from console.tui.widgets.detail_pane import DetailPane
from console.tui.widgets.pane import AsOf, Connect
from console.views.sections import Section, text_line
from engine.model.errors import MusterError, NotSentError

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.fleet.client import FleetClient
    from console.tui.app import MusterApp

ASK_S = 2.0
PATIENCE_S = 5.0


class FleetPage(NamedTuple):
    """The fleet or one submission; or why there is none."""

    view: FleetView | None = None
    submission: FleetSubmission | None = None
    now_ms: int = 0
    error: MusterError | None = None


class FleetPane(DetailPane[FleetPage]):
    NAME = "fleet"
    EVERY_S = ASK_S
    WALL_NS = staticmethod(time.time_ns)
    """Tells how long a submission waits."""

    def __init__(self, connect: Connect, argument: str) -> None:
        super().__init__(connect)
        self._id = argument.strip()

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(ASK_S, self.reload_if_seen)

    @property
    def crumb(self) -> str:
        return f"fleet {printable(self._id)}" if self._id else "fleet"

    @property
    def note(self) -> str:
        view = self.detail.view if self.detail is not None else None
        if view is None:
            return ""
        up, waiting = sum(cell.state == "up" for cell in view.cells), view.counts.get("waiting", 0)
        return f"{printable(view.name)}  ·  {up} of {len(view.cells)} up  ·  {waiting:,} wait"

    @property
    def as_of(self) -> AsOf | None:
        return AsOf(0, self.detail.now_ms) if self.detail is not None and self.detail.now_ms else None

    @property
    def copyable(self) -> str:
        return self._id or self._left.link.removeprefix("fleet ") or self._right.link.removeprefix("fleet ")

    async def _ask(self) -> None:
        """Also while the console's own engine does not answer."""
        try:
            while self._again and self.is_attached:
                self._again = False
                self.detail = await in_thread(lambda: self._shown(cast("MusterApp", self.app).flags))
                self._draw()
        finally:
            self._asking = False

    def ask(self, client: Client) -> FleetPage:
        """For who has settings and no flags."""
        return self._shown({})

    def _shown(self, flags: Mapping[str, Any]) -> FleetPage:
        now_ms = self.WALL_NS() // 1_000_000
        try:
            with closing(self._fleet(flags)) as client:
                if self._id:
                    return FleetPage(submission=client.submission(self._id), now_ms=now_ms)
                view = client.view()
                return FleetPage(view=view, now_ms=view.now_ms)
        except MusterError as error:
            return FleetPage(error=error)

    def _fleet(self, flags: Mapping[str, Any]) -> FleetClient:
        from console.fleet.client import FleetClient
        from console.fleet.paths import fleet_paths

        return FleetClient(fleet_paths(load(flags)).socket, read_only=True, patience_s=PATIENCE_S)

    def columns(self, detail: FleetPage, width: int) -> tuple[list[Section], list[Section]]:
        if detail.error is not None:
            if isinstance(detail.error, NotSentError):
                return nowhere(detail.error.problem, detail.error.remedy, width), []
            told = tuple(text_line(line, "bad") for line in wrap(printable(str(detail.error)), width))
            return [Section(self.crumb, told)], []
        if detail.submission is not None:
            return submission_pages(detail.submission, detail.now_ms, width)
        return pages(detail.view, width) if detail.view is not None else ([], [])
