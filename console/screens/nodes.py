"""All nodes. Enter opens one."""

from __future__ import annotations

from textual import on

from console.screens.list_pane import ListPane
from console.table import WindowTable


class NodesPane(ListPane):
    NAME = "nodes"
    KIND = "nodes"
    TARGETS = "node"

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        self.post_message(self.Follow(f"node {event.row.id}"))
