"""The shelf of runbooks, and one of them: its typed front matter, its prose framed, and how it is run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from textual import on

from console.actions.action_types import ActionTarget
from console.client.change_feed import in_thread
from console.forms.filters import parse_filter
from console.text.terminal_text import cut, printable
from console.tui.widgets.detail_pane import DetailPane
from console.tui.widgets.pane import AsOf, Connect
from console.tui.widgets.table_pane import WordsPane
from console.tui.widgets.window_table import WindowTable
from console.views.decisions.proposal import screen_digest
from console.views.decisions.runbook import HEADINGS, columns, row_of
from console.views.lists import Window, rows_that_match
from console.views.sections import Section
from engine.model.errors import MusterError, RefusedError
from engine.model.queries import Term
from runbooks.procedures.queries import RunbookAsk, RunbookLine, RunbookRun, RunbookView

if TYPE_CHECKING:
    from console.client.protocol import Client


class RunbooksPane(WordsPane):
    NAME = "runbooks"
    TARGETS = "runbook"

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self._found: tuple[RunbookLine, ...] = ()

    def on_mount(self) -> None:
        self.filter("")

    def filter(self, text: str) -> None:
        """Show others. Raises FilterError and stays as it is when the filter cannot be read."""
        terms = parse_filter("runbooks", text)
        self._filter = " ".join(text.split())
        self.table.empty = f"no runbook matches {self._filter}" if self._filter else "there are no runbooks"
        self.table.show(HEADINGS, partial(self._rows, terms))

    @property
    def as_of(self) -> AsOf | None:
        """The shelf is of no moment of the cell."""
        return None

    @property
    def note(self) -> str:
        approved = sum(line.status == "approved" for line in self._found)
        return "  ·  ".join([*self.counts, f"{approved:,} approved"]) if self._found else ""

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        row = self.table.cursor_row
        return (ActionTarget(row.id, row.state),) if row is not None else ()

    def reload(self) -> None:
        """The shelf changes by people's hands, not by what happens in the cell: `r` looks again."""
        if not self._found:
            self.table.reload()

    def look_again(self) -> None:
        self._found = ()
        self.table.reload()

    def _rows(self, terms: tuple[Term, ...], offset: int, limit: int) -> Window:
        """Called on a thread."""
        self._found = self._found or self.connect().runbooks()
        rows = [row_of(line) for line in self._found]
        kept = rows_that_match(rows, HEADINGS, terms)
        return Window(offset, kept[offset : offset + limit], len(kept), len(rows), 0, 0)

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
        self._lengths = (0, 0)
        """Lines of the file, as laid out, in the left and the right column."""
        self._unread = [True, True]
        self._read_of = ("", 0)
        """SHA-256 and width of what `_unread` is about."""
        self.read_digest = ""
        """Of the text that was shown of it."""

    def on_mount(self) -> None:
        super().on_mount()
        self.watch(self._left, "scroll_y", self._look_for_ends, init=False)
        self.watch(self._right, "scroll_y", self._look_for_ends, init=False)

    @property
    def line(self) -> str:
        return f"runbook {self._runbook_id}"

    @property
    def note(self) -> str:
        if self.detail is None or self.detail.line.status not in ("draft", "changed"):
            return ""
        if any(self._unread):
            return "read to its end to approve it (pgdn, G; → the other column)"
        return "Y approves this version, A tries it"

    def refuse_unread(self) -> None:
        """Raises RefusedError while the end of the file was not on the screen."""
        if self.detail is None or any(self._unread):
            raise RefusedError("the end of it was not on the screen yet", "Read on to it (pgdn, G), then approve it")

    @property
    def crumb(self) -> str:
        return cut(printable(self._runbook_id), 40)

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        return (ActionTarget(self._runbook_id, self.detail.line.status),) if self.detail else ()

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
        left, right = columns(detail, self._tried, width)
        if self._read_of != (detail.line.sha256, width):
            self._read_of, self._unread = (detail.line.sha256, width), [True, True]
        self.read_digest = screen_digest([*left, *right])
        sides = (left, right) if self._right.display else ([*left, *right], [])
        self._lengths = (_height(sides[0]), _height(sides[1]))
        return left, right

    def _look_for_ends(self) -> None:
        """Of each column the last line, laid out as it is now, is or was on the screen."""
        before = list(self._unread)
        for at, view in enumerate((self._left, self._right)):
            seen = view.size.height and view.scroll_offset.y + view.size.height >= self._lengths[at]
            if self.display and (seen or not self._lengths[at]):
                self._unread[at] = False
        if before != self._unread:
            self.post_message(self.Changed())

    def _draw(self) -> None:
        super()._draw()
        self.call_after_refresh(self._look_for_ends)
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


def _height(sections: Sequence[Section]) -> int:
    """Lines that they take, with their heads and the gaps between."""
    return sum(1 + len(section.lines) for section in sections) + max(len(sections) - 1, 0)
