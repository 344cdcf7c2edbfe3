"""What is wanted of an outside scheduler, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.details import Section
from console.intent_text import intent_columns, standing
from console.screens.detail_pane import DetailPane
from engine.intent_report import IntentsReport

if TYPE_CHECKING:
    from console.client import Client


class IntentsPane(DetailPane[IntentsReport]):
    NAME = "intents"

    @property
    def crumb(self) -> str:
        return "intents"

    @property
    def note(self) -> str:
        return standing(self.detail) if self.detail else ""

    def ask(self, client: Client) -> IntentsReport:
        return client.intents()

    def columns(self, detail: IntentsReport, width: int) -> tuple[list[Section], list[Section]]:
        return intent_columns(detail, width)
