"""All queues as a tree: what waits in each, whether it may start, and how much it uses, borrows and lends. Filtered or
sorted it is a flat list. Enter opens a queue, `x` folds a cohort."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from textual import on

from console.text.terminal_text import printable
from console.tui.widgets.list_pane import ListPane
from console.tui.widgets.pane import Connect
from console.tui.widgets.window_table import WindowTable
from console.views.work.queue_tree import fetch

if TYPE_CHECKING:
    from console.tui.widgets.window_table import Fetch
    from console.views.lists import ListView

MAX_KEPT = 500
"""Folded cohorts that are kept with the place."""


class QueuesPane(ListPane):
    NAME = "queues"
    KIND = "queues"
    TARGETS = "queue"

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self._folded: frozenset[str] = frozenset()
        self._cohorts: dict[str, str] = {}
        """Queue -> the cohort it is in, as last fetched."""

    @property
    def note(self) -> str:
        if not self._folded or self.view.where or self.view.sort:
            return super().note
        return f"{super().note}  ·  {len(self._folded)} folded"

    def fetcher(self, view: ListView) -> Fetch:
        return partial(fetch, self.connect, view, self._folded, self._cohorts)

    def fold(self) -> None:
        """Fold the cohort under the cursor away or back; on a queue within one, that one."""
        row = self.table.cursor_row
        if row is None or self.view.where or self.view.sort:
            self.app.notify("a list that is filtered or sorted has no tree to fold", markup=False, timeout=3)
            return
        name = row.id if row.id in self._cohorts.values() else self._cohorts.get(row.id, "")
        if name:
            self._folded ^= {name}
            place = self.table.place
            self._ask_anew(place if name == row.id else place._replace(id=name))

    def place(self) -> dict[str, Any]:
        return super().place() | {"folded": sorted(self._folded)[:MAX_KEPT]}

    def put_back(self, place: dict[str, Any]) -> None:
        folded = place.get("folded")
        if isinstance(folded, list):
            self._folded = frozenset(name for name in folded[:MAX_KEPT] if isinstance(name, str))
            self._ask_anew()
        super().put_back(place)

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        self.post_message(self.Follow(f"queue {printable(event.row.id)}"))
