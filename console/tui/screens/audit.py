"""The audit: every record, newest first, how the log stands, and whether it checks. Enter shows one record whole."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult

from console.client.change_feed import in_thread
from console.text.terminal_text import printable
from console.tui.widgets.drawing import OneLine, part
from console.tui.widgets.list_pane import WordsPane
from console.tui.widgets.pane import AsOf, Connect, DetailPane
from console.tui.widgets.window_table import WindowTable
from console.views.audit import HEADINGS, at, parse_words, record_columns, row_of, state_spans, told
from console.views.lists import Span, Window
from console.views.sections import Section
from engine.model.errors import MusterError, NotFoundError
from runbooks.plans.queries import MAX_ROWS, AuditQuery, AuditRange, AuditRow, AuditState

if TYPE_CHECKING:
    from console.client.protocol import Client

ASK_S = 2.0
"""Interval of questions for new records, which change no state of the cell."""


class AuditPane(WordsPane):
    NAME = "audit"
    EVERY_S = ASK_S

    def __init__(self, connect: Connect, words: str = "") -> None:
        """Raises FilterError."""
        super().__init__(connect, words)
        self._asked_ms = 0
        """Wall time."""
        self._query = parse_words(words, 0)
        self._kept: list[AuditRow] = []
        """Newest first: what was read of the present question from the top on."""
        self._state: AuditState | None = None
        self._verifying = False
        self._head, self._found = OneLine(""), OneLine("")

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._found
        yield from super().compose()

    def on_mount(self) -> None:
        self._found.show([part("  v checks every record and checkpoint", "dim")])
        self.filter(self._filter)
        self.set_interval(ASK_S, self.reload_if_seen)

    @property
    def note(self) -> str:
        return "  ·  ".join([*self.counts, "newest first"]) if self.counts else ""

    @property
    def as_of(self) -> AsOf | None:
        """Records are of no version of the cell."""
        if self._window is None:
            return None
        return self.frozen or AsOf(0, self._asked_ms)

    @property
    def copyable(self) -> str:
        row = self.table.cursor_row
        return row.id if row else ""

    def filter(self, text: str) -> None:
        """Show other records. Raises FilterError and stays as it is when the filter cannot be read."""
        self._query = parse_words(text, round(time.time() * 1000))
        self._filter = " ".join(text.split())
        self.table.empty = f"no records match {self._filter}" if self._filter else "no records yet"
        self.table.show(HEADINGS, partial(self._rows, self._query))

    def _rows(self, query: AuditQuery, offset: int, limit: int) -> Window:
        """Called on a thread, one at a time. Pages are asked for by record, not by place: so they are read in order."""
        client = self.connect()
        page = client.audit_page(at(query, 0, min(MAX_ROWS, max(limit, 1))))
        kept = list(reversed(page.rows))
        if offset and self._kept and kept and self._kept[0].seq <= kept[0].seq:
            # What is read far down stays where it is while new records come at the top.
            kept = self._kept
        while len(kept) < min(offset + limit, page.matched):
            more = client.audit_page(at(query, kept[-1].seq, MAX_ROWS)).rows
            if not more:
                break
            kept = [*kept, *reversed(more)]
        self._kept = kept
        self._state, self._asked_ms = client.audit_state(), round(time.time() * 1000)
        rows = [row_of(record) for record in kept[offset : offset + limit]]
        return Window(offset, rows, page.matched, page.last, page.last, 0)

    @on(WindowTable.Loaded)
    def _show_state(self) -> None:
        if self._state is not None:
            self._head.show(_parts(state_spans(self._state)))

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        self.post_message(self.Follow(f"record {event.row.id}"))

    async def verify(self) -> None:
        """Read the whole log and check it here, beside the engine. Raises MusterError."""
        if self._verifying:
            return
        self._verifying = True
        try:
            with TemporaryDirectory(prefix="muster-audit-") as folder:
                path = Path(folder) / "export.jsonl"
                await self._fetch(path)
                self._found.show([part("  checking …", "accent")])
                self._found.show(_parts(await in_thread(partial(_checked, path))))
        except MusterError:
            self._found.show([part("  not readable, so not checked", "warn")])
            raise
        finally:
            self._verifying = False

    async def _fetch(self, path: Path) -> None:
        from console.commands.audit import export_lines

        client, count = self.connect(), 0
        every = (await in_thread(client.audit_state)).last
        parts = export_lines(client, AuditRange(private=False))
        with path.open("w", encoding="utf-8", newline="") as file:
            while (lines := await in_thread(partial(next, parts, None))) is not None:
                file.write(lines)
                count += lines.count('{"hash":"')
                self._found.show([part(f"  reading: {count:,} of {every:,} records …", "accent")])


def _checked(path: Path) -> list[Span]:
    """Called on a thread."""
    from runbooks.audit.verify import Trust, verify

    code, reports = verify([path], Trust())
    return told(reports, code)


def _parts(spans: list[Span]) -> list[tuple[str, str, str]]:
    return [part(text, tone) for text, tone in spans]


class RecordPane(DetailPane[AuditRow]):
    NAME = "record"

    def __init__(self, connect: Connect, number: str) -> None:
        super().__init__(connect)
        self._number = number

    @property
    def crumb(self) -> str:
        return f"record {printable(self._number)[:12]}"

    @property
    def copyable(self) -> str:
        return self.detail.hash if self.detail else ""

    def ask(self, client: Client) -> AuditRow:
        number = self._number.replace(",", "")
        found = client.audit_page(AuditQuery(seq=int(number))).rows if _is_number(number) else ()
        if not found:
            raise NotFoundError(f"there is no record '{printable(self._number)[:40]}'", "See :audit")
        return found[0]

    def columns(self, detail: AuditRow, width: int) -> tuple[list[Section], list[Section]]:
        return record_columns(detail, width)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < len(text) < 16 and int(text) > 0
