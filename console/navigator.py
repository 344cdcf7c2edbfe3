"""Where a person is: a stack of pages over one of five roots.

Roots are kept, so that coming back finds the same row.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Literal

from console.screens.overview import OverviewPane
from console.screens.pane import Connect, ListPane, Pane

if TYPE_CHECKING:
    from textual.widget import Widget

    from console.actions import ScreenName
    from console.event_log import EventLog


class Navigator:
    """Shows one pane of the stack in `body`, hides the others."""

    def __init__(self, connect: Connect, log: EventLog) -> None:
        self._connect = connect
        self._log = log
        self._body: Widget | None = None
        self._roots: dict[ScreenName, Pane] = {}
        self.stack: list[Pane] = []

    @property
    def current(self) -> Pane | None:
        return self.stack[-1] if self.stack else None

    def open(self, body: Widget, name: ScreenName) -> None:
        """The first page."""
        self._body = body
        self.goto(name)

    def goto(self, name: ScreenName) -> Pane:
        """Leave everything for a root."""
        root = self._roots.get(name)
        if root is None:
            root = self._roots[name] = self._new(name)
        self._leave(1)
        if self.stack and self.stack[0] is not root:
            self.stack[0].display = False
        self.stack = [root]
        self._show(root)
        return root

    def drill(self, name: ScreenName, argument: str = "") -> Pane:
        """A page on top of this one: a workload, a node, or a list through a filter."""
        pane = self._new(name, argument)
        if self.stack:
            self.stack[-1].display = False
        self.stack.append(pane)
        self._show(pane)
        return pane

    def back(self) -> bool:
        """One page back; false at a root."""
        if len(self.stack) < 2:
            return False
        self._leave(len(self.stack) - 1)
        self._show(self.stack[-1])
        return True

    def _leave(self, depth: int) -> None:
        """Take away the pages above `depth`."""
        for pane in self.stack[depth:]:
            pane.remove()
        del self.stack[depth:]

    def _show(self, pane: Pane) -> None:
        assert self._body is not None
        if pane.parent is None:
            self._body.mount(pane)
            pane.call_after_refresh(pane.land)
            return
        pane.display = True
        pane.land()
        pane.reload()
        pane.post_message(Pane.Changed())

    def _new(self, name: ScreenName, argument: str = "") -> Pane:
        if name == "overview":
            return OverviewPane(self._connect)
        module, class_name, takes = _PAGES[name]
        page = getattr(importlib.import_module(f"console.screens.{module}"), class_name)
        given = {"": (), "log": (self._log,), "argument": (argument,)}[takes]
        pane: Pane = page(self._connect, *given)
        if isinstance(pane, ListPane) and argument:
            pane.view.filter(argument)
        return pane


_PAGES: dict[str, tuple[str, str, Literal["", "log", "argument"]]] = {
    "workloads": ("workloads", "WorkloadsPane", ""),
    "queues": ("queues", "QueuesPane", ""),
    "nodes": ("nodes", "NodesPane", ""),
    "pools": ("pools", "PoolsPane", ""),
    "orders": ("orders", "OrdersPane", ""),
    "events": ("events", "EventsPane", "log"),
    "whatif": ("whatif", "WhatIfPane", ""),
    "workload": ("workload", "WorkloadPane", "argument"),
    "node": ("node", "NodePane", "argument"),
    "recommendations": ("recommendations", "RecommendationsPane", ""),
    "forecast": ("forecast", "ForecastPane", "argument"),
    "proposals": ("proposals", "ProposalsPane", "argument"),
    "proposal": ("proposal", "ProposalPane", "argument"),
    "runbooks": ("runbooks", "RunbooksPane", ""),
    "runbook": ("runbooks", "RunbookPane", "argument"),
    "audit": ("audit", "AuditPane", "argument"),
    "record": ("audit", "RecordPane", "argument"),
    "draft": ("draft", "DraftPane", "argument"),
    "drafts": ("draft", "DraftsPane", ""),
}
"""Module of `console.screens`, class, and what it takes beside the connection. A page is imported when first shown: the
first frame waits for none of them."""
