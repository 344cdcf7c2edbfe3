"""Where a person is: a stack of pages over one of the roots, and the way they came.

Roots are kept, so that coming back finds the same row. The way is kept as text, one trail for each view: the line of
every page of the stack and the place on it. It is what `[` and `]` go through and what a session keeps.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, cast

from console.tui.screens.overview import OverviewPane
from console.tui.widgets.list_pane import ListPane
from console.tui.widgets.pane import Connect, PageStep, Pane
from engine.model.errors import SpecError

if TYPE_CHECKING:
    from textual.widget import Widget

    from console.actions.action_types import ScreenName
    from console.views.event_log import EventLog

MAX_DEPTH = 24
"""Pages of one stack: the oldest between the root and the newest are forgotten."""
MAX_VIEWS = 60
"""Views that `[` goes back through."""


Trail = tuple[PageStep, ...]
"""A stack of pages, the root first."""


def trail_of(value: object) -> Trail:
    """What a session kept, as a trail. Whatever is not a page of this console ends it."""
    steps: list[PageStep] = []
    for each in value if isinstance(value, list) else ():
        if not (isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) and isinstance(each[1], dict)):
            break
        if not known(each[0].partition(" ")[0]):
            break
        steps.append(PageStep(each[0], each[1]))
    return tuple(steps[:MAX_DEPTH])


def known(name: str) -> bool:
    """Whether there is a page of that name."""
    return name == "overview" or name in _PAGES


def _line(pane: Pane) -> str:
    return pane.awaited.line if pane.awaited is not None else pane.line


def _settle(pane: Pane) -> None:
    """Have a page that is put up show what it was last seen with."""
    step, pane.awaited = pane.awaited, None
    if step is None:
        return
    take = getattr(pane, "take", getattr(pane, "filter", None))
    if pane.line != step.line and take is not None:
        try:
            take(step.line.partition(" ")[2])
        except SpecError:
            return  # kept by another version: the page opens as it does
    if pane.place() != step.place:
        pane.put_back(step.place)


class Navigator:
    """Shows one pane of the stack in `body`, hides the others."""

    def __init__(
        self,
        connect: Connect,
        log: EventLog,
        arrives: Callable[[bool], object] = lambda _: None,
        landed: Callable[[], object] = lambda: None,
    ) -> None:
        """`arrives` is called when another page is to be shown, with whether it is there or still to be built; `landed`
        when the page that is shown can take keys."""
        self._connect = connect
        self._log = log
        self._arrives = arrives
        self._landed = landed
        self._body: Widget | None = None
        self._roots: dict[str, Pane] = {}
        self._landing: Pane | None = None
        self.stack: list[Pane] = []
        self._views: list[Trail] = []
        self._at = -1
        self._before: Trail = ()

    @property
    def current(self) -> Pane | None:
        return self.stack[-1] if self.stack else None

    @property
    def landing(self) -> bool:
        """The page that is shown is being put up and takes no keys yet."""
        return self._landing is not None and self._landing is self.current

    def open(self, body: Widget, name: ScreenName, trail: Trail = ()) -> None:
        """The first page, or the pages where somebody was."""
        self._body = body
        if trail:
            self._follow(trail)
            self._enter()
        else:
            self.goto(name)

    def goto(self, name: ScreenName) -> Pane:
        """Leave everything for a root."""
        self._leave_view()
        root = self._root(name)
        self._cut(1)
        if self.stack and self.stack[0] is not root:
            self.stack[0].display = False
        self.stack = [root]
        self._show(root)
        self._enter()
        return root

    def drill(self, name: ScreenName, argument: str = "") -> Pane:
        """A page on top of this one: a workload, a node, or a list through a filter."""
        self._leave_view()
        pane = self._new(name, argument)
        if self.stack:
            self.stack[-1].display = False
        self.stack.append(pane)
        if len(self.stack) > MAX_DEPTH:
            self._forget(1)
        self._show(pane)
        self._enter()
        return pane

    def back(self) -> bool:
        """One page up; false at a root."""
        if len(self.stack) < 2:
            return False
        self.climb(len(self.stack) - 1)
        return True

    def climb(self, depth: int) -> None:
        """Up to the page that so many pages make a stack of."""
        if 0 < depth < len(self.stack):
            self._leave_view()
            self._cut(depth)
            self._show(self.stack[-1])
            self._enter()

    # --- the way one came

    def travel(self, step: int) -> bool:
        """To an earlier (-1) or later (1) view, with its place; false where there is none."""
        if not 0 <= self._at + step < len(self._views):
            return False
        self._leave_view()
        self._at += step
        self._follow(self._views[self._at])
        return True

    def page_before(self) -> bool:
        """To the view before this one, wherever in the way that is; again comes back."""
        if not self._before:
            return False
        before = self._before
        self._leave_view()
        self._follow(before)
        self._enter()
        return True

    def trail(self) -> Trail:
        """The pages of the stack and the place on each."""
        return tuple(pane.awaited or PageStep(pane.line, pane.place()) for pane in self.stack)

    def _leave_view(self) -> None:
        """Write down where on the present view the person was."""
        if self.stack and self._at >= 0:
            self._before = self._views[self._at] = self.trail()

    def _enter(self) -> None:
        """A new view: what lay ahead of the one before is no longer where `]` leads."""
        del self._views[self._at + 1 :]
        self._views.append(self.trail())
        del self._views[:-MAX_VIEWS]
        self._at = len(self._views) - 1

    def _follow(self, trail: Trail) -> None:
        """Have the stack be these pages. Those that are there already are kept as they are. One whose line cannot be
        read, because another version kept it or somebody wrote into the file, ends it."""
        name, _, argument = trail[0].line.partition(" ")
        root = self._roots.get(name)
        if root is None:
            try:
                root = self._new(cast("ScreenName", name), argument)
            except SpecError:
                root, trail = self._new(cast("ScreenName", name)), (PageStep(name, {}),)
            self._roots[name] = root
            root.awaited = trail[0]
        if self.stack:
            self.stack[-1].display = False
        if not self.stack or self.stack[0] is not root:
            self._cut(1)
            self.stack = [root]
        same = 1
        while same < min(len(self.stack), len(trail)) and _line(self.stack[same]) == trail[same].line:
            same += 1
        self._cut(same)
        for step in trail[same:]:
            name, _, argument = step.line.partition(" ")
            try:
                pane = self._new(cast("ScreenName", name), argument)
            except SpecError:
                trail = trail[: len(self.stack)]
                break
            pane.awaited = step
            self.stack.append(pane)
        top = self.stack[-1]
        top.awaited = trail[-1]
        self._show(top)

    # --- panes

    def _root(self, name: ScreenName) -> Pane:
        root = self._roots.get(name)
        if root is None:
            root = self._roots[name] = self._new(name)
        return root

    def _cut(self, depth: int) -> None:
        """Take away the pages above `depth`."""
        while len(self.stack) > depth:
            self._forget(len(self.stack) - 1)

    def _forget(self, index: int) -> None:
        pane = self.stack.pop(index)
        if pane.parent is not None:
            pane.display = False
            pane.remove()

    def _show(self, pane: Pane) -> None:
        assert self._body is not None
        if pane.parent is None:
            self._landing = pane
            # Where one is going is said at once; it is not there yet to say so itself.
            self._arrives(False)
            self._body.mount(pane)
            self._body.post_message(Pane.Changed())
            pane.call_after_refresh(self._land, pane)
            return
        pane.display = True
        _settle(pane)
        pane.land()
        self._arrives(True)
        pane.reload()
        pane.post_message(Pane.Changed())
        if not self.landing:
            self._landed()

    def _land(self, pane: Pane) -> None:
        if pane is self._landing:
            self._landing = None
        if pane is self.current:
            _settle(pane)
            pane.land()
            self._landed()

    def _new(self, name: ScreenName, argument: str = "") -> Pane:
        return new_page(name, argument, self._connect, self._log)


def new_page(name: ScreenName, argument: str, connect: Connect, log: EventLog) -> Pane:
    """A page that is on no screen yet. Raises FilterError for a list through a filter that cannot be read."""
    if name == "overview":
        return OverviewPane(connect, log)
    module, class_name, takes = _PAGES[name]
    page = getattr(importlib.import_module(f"console.tui.screens.{module}"), class_name)
    given = {"": (), "log": (log,), "argument": (argument,)}[takes]
    pane: Pane = page(connect, *given)
    pane.argument = argument
    if isinstance(pane, ListPane) and argument:
        pane.view.filter(argument)
    return pane


_PAGES: dict[str, tuple[str, str, Literal["", "log", "argument"]]] = {
    "workloads": ("lists.workloads", "WorkloadsPane", ""),
    "queues": ("lists.queues", "QueuesPane", ""),
    "nodes": ("lists.nodes", "NodesPane", ""),
    "pools": ("lists.pools", "PoolsPane", ""),
    "orders": ("lists.orders", "OrdersPane", ""),
    "reservations": ("lists.reservations", "ReservationsPane", ""),
    "bookmarks": ("bookmarks", "BookmarksPane", "argument"),
    "events": ("events", "EventsPane", "log"),
    "whatif": ("whatif", "WhatIfPane", ""),
    "workload": ("workload", "WorkloadPane", "argument"),
    "output": ("output", "OutputPane", "argument"),
    "node": ("node", "NodePane", "argument"),
    "queue": ("queue", "QueuePane", "argument"),
    "topology": ("topology", "TopologyPane", "argument"),
    "recommendations": ("recommendations", "RecommendationsPane", ""),
    "forecast": ("forecast", "ForecastPane", "argument"),
    "cost": ("cost", "cost_page", "argument"),
    "mirror": ("mirror", "MirrorPane", ""),
    "intents": ("intents", "IntentsPane", ""),
    "intent": ("intent", "IntentPane", "argument"),
    "settings": ("settings", "SettingsPane", "argument"),
    "proposals": ("proposals", "ProposalsPane", "argument"),
    "proposal": ("proposal", "ProposalPane", "argument"),
    "runbooks": ("runbooks", "RunbooksPane", ""),
    "runbook": ("runbooks", "RunbookPane", "argument"),
    "audit": ("audit", "AuditPane", "argument"),
    "record": ("audit", "RecordPane", "argument"),
    "draft": ("draft", "DraftPane", "argument"),
    "drafts": ("draft", "DraftsPane", ""),
    "policy": ("policy", "PolicyPane", ""),
    "reviews": ("policy", "ReviewsPane", ""),
    "fleet": ("fleet", "FleetPane", "argument"),
}
"""Module of `console.tui.screens`, class, and what it takes beside the connection. A page is imported when first shown:
the first frame waits for none of them."""
