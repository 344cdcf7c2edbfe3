"""One workload: its state, why it waits and what would end that, where it runs, what happened to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.actions import Target
from console.details import Section, workload_columns
from console.screens.pane import Connect, DetailPane
from console.text import cut, printable
from engine.query import WorkloadDetail

if TYPE_CHECKING:
    from console.client import Client


class WorkloadPane(DetailPane[WorkloadDetail]):
    NAME = "workload"
    TARGETS = "workload"

    def __init__(self, connect: Connect, workload_id: str) -> None:
        super().__init__(connect)
        self._workload_id = workload_id

    @property
    def crumb(self) -> str:
        return cut(printable(self._workload_id), 32)

    @property
    def note(self) -> str:
        return cut(printable(self.detail.name), 40) if self.detail else ""

    @property
    def targets(self) -> tuple[Target, ...]:
        return (Target(self._workload_id, self.detail.state),) if self.detail else ()

    def ask(self, client: Client) -> WorkloadDetail:
        return client.workload(self._workload_id)

    def columns(self, detail: WorkloadDetail, width: int) -> tuple[list[Section], list[Section]]:
        return workload_columns(detail, width)
