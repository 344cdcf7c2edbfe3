"""One node: what it has, what is free on it and on each device, and the workloads bound to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.actions.action_types import ActionTarget
from console.text.terminal_text import cut, printable
from console.tui.widgets.detail_pane import DetailPane
from console.tui.widgets.pane import Connect
from console.views.node import node_columns
from console.views.sections import Section
from engine.model.queries import NodeDetail

if TYPE_CHECKING:
    from console.client.protocol import Client


class NodePane(DetailPane[NodeDetail]):
    NAME = "node"
    THIRD = True
    TARGETS = "node"

    def __init__(self, connect: Connect, node_id: str) -> None:
        super().__init__(connect)
        self._node_id = node_id

    @property
    def crumb(self) -> str:
        return cut(printable(self._node_id), 32)

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        return (ActionTarget(self._node_id, self.detail.state),) if self.detail else ()

    def ask(self, client: Client) -> NodeDetail:
        return client.node(self._node_id)

    def columns(self, detail: NodeDetail, width: int) -> tuple[list[Section], list[Section]]:
        return node_columns(detail, width)
