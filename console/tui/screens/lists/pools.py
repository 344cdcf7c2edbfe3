"""All pools: how large, what boots and is on order, what they cost. Enter shows a pool's nodes."""

from __future__ import annotations

from textual import on

from console.forms.filters import quoted
from console.tui.widgets.list_pane import ListPane
from console.tui.widgets.window_table import WindowTable


class PoolsPane(ListPane):
    NAME = "pools"
    KIND = "pools"

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        self.post_message(self.Follow(f"nodes pool:{quoted(event.row.id)}"))
