"""The page of what changed between two times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.client.attach import wait_until_shown
from console.forms.past_times import difference_words
from console.text.terminal_text import duration, printable, timestamp
from console.tui.widgets.pane import AsOf, Connect, DetailPane
from console.views.difference import columns
from console.views.sections import Section, text_line
from engine.model.past_queries import CellDifference

if TYPE_CHECKING:
    from console.client.protocol import Client
    from engine.model.past_queries import DifferenceRequest, PastStatus


class DifferencePane(DetailPane[CellDifference]):
    """Worked out once: two times that are over do not change."""

    NAME = "diff"

    def __init__(self, connect: Connect, argument: str) -> None:
        """Raises SpecError for times that cannot be read."""
        super().__init__(connect)
        self._words = difference_words(argument)
        self._request: DifferenceRequest | None = None

    @property
    def crumb(self) -> str:
        words = self._words
        only = words.queue or words.node
        return printable(f"diff {words.since} {words.until}{f' of {only}' if only else ''}")

    @property
    def note(self) -> str:
        found = self.detail
        if found is None:
            return ""
        until = timestamp(found.until_ms, date=False)
        return f"{timestamp(found.since_ms)} to {until}, {duration(found.until_ms - found.since_ms)}"

    @property
    def as_of(self) -> AsOf | None:
        """What happened between two times is of neither."""
        return None

    def ask(self, client: Client) -> CellDifference:
        if self._request is None:
            known = client.past(0)
            self._request = self._words.request(known.earliest_ms, known.now_ms)
        asked = self._request
        wait_until_shown(client, asked.until_ms, self._told, asked.since_ms)
        return client.difference(asked)

    def _told(self, status: PastStatus) -> None:
        if self.is_attached:
            self.app.call_from_thread(self._progress, status.permille)

    def _progress(self, permille: int) -> None:
        if self.detail is None:
            self._left.show(
                [Section(self.crumb, (text_line(f"reading the events between, {permille // 10}%", "dim"),))]
            )

    def reload(self) -> None:
        if self.detail is None:
            super().reload()

    def columns(self, detail: CellDifference, width: int) -> tuple[list[Section], list[Section]]:
        return columns(detail, width)
