"""One intent to an outside scheduler: the page on which a person says what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.actions.action_types import ActionTarget
from console.text.terminal_text import printable
from console.tui.widgets.detail_pane import DetailPane
from console.tui.widgets.pane import Connect
from console.views.external.intent import detail_columns, title_of
from console.views.sections import Section
from engine.model.errors import NotFoundError
from runbooks.plans.intent_queries import IntentDetail

if TYPE_CHECKING:
    from console.client.protocol import Client

ASK_S = 5.0
"""How often Slurm is asked anew: it is a look at the cluster itself, not at its mirror."""


class IntentPane(DetailPane[IntentDetail]):
    NAME = "intent"
    TARGETS = "intent"
    EVERY_S = ASK_S

    def __init__(self, connect: Connect, name: str) -> None:
        super().__init__(connect)
        self._name = name

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(ASK_S, self.reload_if_seen)

    @property
    def crumb(self) -> str:
        return printable(self._name)[:24]

    @property
    def note(self) -> str:
        return "" if self.detail is None else title_of(self.detail.view)

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        return () if self.detail is None else (ActionTarget(self.detail.view.id, self.detail.view.phase),)

    def ask(self, client: Client) -> IntentDetail:
        digits = self._name.removeprefix("i")
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 16):
            raise NotFoundError(f"{self._name[:40]!a} is no number of an intent", "See :intents")
        return client.intent(int(digits))

    def columns(self, detail: IntentDetail, width: int) -> tuple[list[Section], list[Section]]:
        return detail_columns(detail, width)
