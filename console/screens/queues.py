"""All queues: what waits in each, whether it may start, and how much it uses, borrows and lends. Enter shows a queue's
workloads."""

from __future__ import annotations

from textual import on

from console.query import quoted
from console.screens.pane import ListPane
from console.table import WindowTable


class QueuesPane(ListPane):
    NAME = "queues"
    KIND = "queues"
    TARGETS = "queue"

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        name = event.row.id
        below = "" if "/" in name else f",{quoted(name + '/*')}"
        self.post_message(self.Follow(f"workloads queue:{quoted(name)}{below}"))
