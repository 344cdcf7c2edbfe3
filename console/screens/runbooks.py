"""The shelf of runbooks, and one of them: its typed front matter, its prose framed, and how it is run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import on

from console.actions import Target
from console.details import Section
from console.feed import in_thread
from console.runbook_text import HEADINGS, columns, row_of
from console.screens.pane import Connect, DetailPane, TablePane
from console.table import WindowTable
from console.text import cut, printable
from console.views import Window
from engine.errors import MusterError
from runbooks.runbook_shown import RunbookAsk, RunbookLine, RunbookRun, RunbookView

if TYPE_CHECKING:
    from console.client import Client


class RunbooksPane(TablePane):
    NAME = "runbooks"
    TARGETS = "runbook"

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self._found: tuple[RunbookLine, ...] = ()
        self.table.empty = "there are no runbooks"

    def on_mount(self) -> None:
        self.table.show(HEADINGS, self._rows)

    @property
    def note(self) -> str:
        approved = sum(line.status == "approved" for line in self._found)
        return f"{len(self._found):,}, {approved:,} approved" if self._found else ""

    @property
    def targets(self) -> tuple[Target, ...]:
        row = self.table.cursor_row
        return (Target(row.id, row.state),) if row is not None else ()

    def reload(self) -> None:
        """The shelf changes by people's hands, not by what happens in the cell: `r` looks again."""
        if not self._found:
            self.table.reload()

    def look_again(self) -> None:
        self._found = ()
        self.table.reload()

    def _rows(self, offset: int, limit: int) -> Window:
        """Called on a thread."""
        self._found = self._found or self.connect().runbooks()
        rows = [row_of(line) for line in self._found]
        return Window(offset, rows[offset : offset + limit], len(rows), len(rows), 0, 0)

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        self.post_message(self.Follow(f"runbook {event.row.id}"))


class RunbookPane(DetailPane[RunbookView]):
    NAME = "runbook"
    TARGETS = "runbook"

    def __init__(self, connect: Connect, runbook_id: str) -> None:
        super().__init__(connect)
        self._runbook_id = runbook_id
        self._tried: RunbookRun | str | None = None
        """A dry run without inputs, or why there is none."""
        self._tried_for = ""

    @property
    def crumb(self) -> str:
        return cut(printable(self._runbook_id), 40)

    @property
    def targets(self) -> tuple[Target, ...]:
        return (Target(self._runbook_id, self.detail.line.status),) if self.detail else ()

    def ask(self, client: Client) -> RunbookView:
        return client.runbook(self._runbook_id)

    def reload(self) -> None:
        """What it says does not change with the cell: asked for once, and by `r`."""
        if self.detail is None:
            super().reload()

    def look_again(self) -> None:
        self._tried_for = ""
        super().reload()

    def columns(self, detail: RunbookView, width: int) -> tuple[list[Section], list[Section]]:
        return columns(detail, self._tried, width)

    def _draw(self) -> None:
        super()._draw()
        if self.detail is not None and self._tried_for != self.detail.line.sha256:
            self._tried_for = self.detail.line.sha256
            if not self.detail.problems:
                self.run_worker(self._try(), group="try", exclusive=True)

    async def _try(self) -> None:
        """Whether it applies now, by what its inputs are when nobody gives them."""
        ask = RunbookAsk(id=self._runbook_id, dry_run=True)
        try:
            self._tried = await in_thread(lambda: self.connect().run_runbook(ask))
        except MusterError as error:
            self._tried = f"{error.problem}. {error.remedy}"
        self._draw()
