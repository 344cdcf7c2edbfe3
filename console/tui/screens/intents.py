"""What is wanted of an outside scheduler, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.actions.action_types import ActionTarget
from console.tui.widgets.detail_pane import DetailPane
from console.views.external.intents import intent_columns, standing
from console.views.sections import Section
from engine.model.intent_reports import IntentsReport

if TYPE_CHECKING:
    from console.client.protocol import Client


class IntentsPane(DetailPane[IntentsReport]):
    NAME = "intents"
    TARGETS = "intent"

    @property
    def crumb(self) -> str:
        return "intents"

    @property
    def note(self) -> str:
        return standing(self.detail) if self.detail else ""

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        """The one under the cursor."""
        if self.detail is None:
            return ()
        link = (self._right if self._right.has_focus else self._left).link
        return tuple(ActionTarget(each.id, each.phase) for each in self.detail.items if link == f"intent {each.id}")

    def ask(self, client: Client) -> IntentsReport:
        return client.intents()

    def columns(self, detail: IntentsReport, width: int) -> tuple[list[Section], list[Section]]:
        return intent_columns(detail, width)
