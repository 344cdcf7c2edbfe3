"""Is it fine, and if not, what now? Every line with a cursor leads to what it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.details import Section
from console.overview_text import overview_columns
from console.screens.pane import DetailPane
from engine.query import Overview

if TYPE_CHECKING:
    from console.client import Client


class OverviewPane(DetailPane[Overview]):
    NAME = "overview"
    ALWAYS_TWO = True

    _pending = (0, 0)
    """Proposals that wait for votes, and plans that got stuck."""

    def ask(self, client: Client) -> Overview:
        health = client.health()
        self._pending = health.awaiting, health.stuck
        return client.overview()

    def columns(self, detail: Overview, width: int) -> tuple[list[Section], list[Section]]:
        return overview_columns(detail, width, *self._pending)
