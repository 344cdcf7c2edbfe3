"""Where a person is: a stack of pages over one of five roots.

Roots are kept, so that coming back finds the same row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from console.screens.overview import OverviewPane
from console.screens.pane import Connect, ListPane, Pane

if TYPE_CHECKING:
    from textual.widget import Widget

    from console.actions import ScreenName
    from console.views import EventLog


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
        pane = _PAGES[name](self._connect, self._log, argument)
        if isinstance(pane, ListPane) and argument:
            pane.view.filter(argument)
        return pane


# Pages are imported when first shown: the first frame waits for none of them.


def _workloads(connect: Connect, _log: EventLog, _argument: str) -> Pane:
    from console.screens.workloads import WorkloadsPane

    return WorkloadsPane(connect)


def _queues(connect: Connect, _log: EventLog, _argument: str) -> Pane:
    from console.screens.queues import QueuesPane

    return QueuesPane(connect)


def _nodes(connect: Connect, _log: EventLog, _argument: str) -> Pane:
    from console.screens.nodes import NodesPane

    return NodesPane(connect)


def _pools(connect: Connect, _log: EventLog, _argument: str) -> Pane:
    from console.screens.pools import PoolsPane

    return PoolsPane(connect)


def _orders(connect: Connect, _log: EventLog, _argument: str) -> Pane:
    from console.screens.orders import OrdersPane

    return OrdersPane(connect)


def _events(connect: Connect, log: EventLog, _argument: str) -> Pane:
    from console.screens.events import EventsPane

    return EventsPane(connect, log)


def _workload(connect: Connect, _log: EventLog, argument: str) -> Pane:
    from console.screens.workload import WorkloadPane

    return WorkloadPane(connect, argument)


def _node(connect: Connect, _log: EventLog, argument: str) -> Pane:
    from console.screens.node import NodePane

    return NodePane(connect, argument)


def _whatif(connect: Connect, _log: EventLog, _argument: str) -> Pane:
    from console.screens.whatif import WhatIfPane

    return WhatIfPane(connect)


def _recommendations(connect: Connect, _log: EventLog, _argument: str) -> Pane:
    from console.screens.recommendations import RecommendationsPane

    return RecommendationsPane(connect)


def _forecast(connect: Connect, _log: EventLog, argument: str) -> Pane:
    from console.screens.forecast import ForecastPane

    return ForecastPane(connect, argument)


def _proposals(connect: Connect, _log: EventLog, argument: str) -> Pane:
    from console.screens.proposals import ProposalsPane

    return ProposalsPane(connect, argument)


def _proposal(connect: Connect, _log: EventLog, argument: str) -> Pane:
    from console.screens.proposal import ProposalPane

    return ProposalPane(connect, argument)


def _runbooks(connect: Connect, _log: EventLog, _argument: str) -> Pane:
    from console.screens.runbooks import RunbooksPane

    return RunbooksPane(connect)


def _runbook(connect: Connect, _log: EventLog, argument: str) -> Pane:
    from console.screens.runbooks import RunbookPane

    return RunbookPane(connect, argument)


def _audit(connect: Connect, _log: EventLog, argument: str) -> Pane:
    from console.screens.audit import AuditPane

    return AuditPane(connect, argument)


def _record(connect: Connect, _log: EventLog, argument: str) -> Pane:
    from console.screens.audit import RecordPane

    return RecordPane(connect, argument)


def _draft(connect: Connect, _log: EventLog, argument: str) -> Pane:
    from console.screens.draft import DraftPane

    return DraftPane(connect, argument)


def _drafts(connect: Connect, _log: EventLog, _argument: str) -> Pane:
    from console.screens.draft import DraftsPane

    return DraftsPane(connect)


_PAGES: dict[str, Callable[[Connect, EventLog, str], Pane]] = {
    "workloads": _workloads,
    "queues": _queues,
    "nodes": _nodes,
    "pools": _pools,
    "orders": _orders,
    "events": _events,
    "whatif": _whatif,
    "workload": _workload,
    "node": _node,
    "recommendations": _recommendations,
    "forecast": _forecast,
    "proposals": _proposals,
    "proposal": _proposal,
    "runbooks": _runbooks,
    "runbook": _runbook,
    "audit": _audit,
    "record": _record,
    "draft": _draft,
    "drafts": _drafts,
}
