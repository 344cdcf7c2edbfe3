"""The mirror of an outside scheduler: how fresh it is, what it costs there, what it leaves out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from console.tui.widgets.detail_pane import DetailPane
from console.views.external.mirror import mirror_columns
from console.views.sections import Section, plural
from engine.external.slurm.mirror.report import MirrorReport

if TYPE_CHECKING:
    from console.client.protocol import Client


class MirrorPane(DetailPane[MirrorReport]):
    NAME = "mirror"
    WALL_S = staticmethod(time.time)
    """Tells how old what is shown is."""

    @property
    def crumb(self) -> str:
        return "mirror"

    @property
    def note(self) -> str:
        """The place itself is on the page: what must not be cut is how it does."""
        report = self.detail
        if report is None or report.state == "none":
            return ""
        return f"{report.state}  ·  {report.jobs:,} jobs on {report.nodes:,} {plural('node', report.nodes)}"

    def ask(self, client: Client) -> MirrorReport:
        return client.mirror()

    def columns(self, detail: MirrorReport, width: int) -> tuple[list[Section], list[Section]]:
        return mirror_columns(detail, width, self.WALL_S)
