"""All workloads. Enter opens one."""

from __future__ import annotations

from textual import on

from console.tui.widgets.list_pane import ListPane
from console.tui.widgets.window_table import WindowTable


class WorkloadsPane(ListPane):
    NAME = "workloads"
    KIND = "workloads"
    TARGETS = "workload"

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        self.post_message(self.Follow(f"workload {event.row.id}"))
