"""The mirror of an outside scheduler: how fresh it is, what it costs there, what it leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.details import Section
from console.mirror_text import mirror_columns
from console.screens.detail_pane import DetailPane
from console.text import cut, printable
from engine.slurm.report import MirrorReport

if TYPE_CHECKING:
    from console.client import Client


class MirrorPane(DetailPane[MirrorReport]):
    NAME = "mirror"

    @property
    def crumb(self) -> str:
        return "mirror"

    @property
    def note(self) -> str:
        return cut(printable(self.detail.where), 40) if self.detail else ""

    def ask(self, client: Client) -> MirrorReport:
        return client.mirror()

    def columns(self, detail: MirrorReport, width: int) -> tuple[list[Section], list[Section]]:
        return mirror_columns(detail, width)
