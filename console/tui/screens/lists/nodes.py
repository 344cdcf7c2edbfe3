"""All nodes. Enter opens one."""

from __future__ import annotations

from textual import on

from console.tui.widgets.list_pane import ListPane
from console.tui.widgets.window_table import WindowTable


class NodesPane(ListPane):
    NAME = "nodes"
    KIND = "nodes"
    TARGETS = "node"

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        self.post_message(self.Follow(f"node {event.row.id}"))
