"""The stack of pages, the trail of visited pages, bookmarks, and preloading of pages.

Root pages stay mounted, so going back finds the same row. A trail is text: the `:` line of every page of the stack,
and the place on it. `[` and `]` walk along it, and a session keeps it. Pages that are likely to be opened next are
loaded in small parts while nobody types. Links, bookmarks and trails hold only `:` lines that lead to a page; a line
that acts, asks a model, writes a file or quits must be typed.
"""

from __future__ import annotations

import importlib
import re
import threading
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

from console.actions.registry import ParsedCommand, parse_command
from console.client.change_feed import in_thread
from console.forms.filters import PAGE_COLUMNS, FilterError
from console.text.terminal_text import printable
from console.tui.screens.overview import OverviewPane
from console.tui.widgets.list_pane import ListPane
from console.tui.widgets.pane import Connect, PageStep, Pane
from engine.model.errors import SpecError

if TYPE_CHECKING:
    from textual.widget import Widget

    from console.actions.registry import ConsoleAction, ScreenName
    from console.forms.session_state import SessionState
    from console.tui.app import MusterApp
    from console.views.lists import EventLog


MAX_DEPTH = 24
"""Pages of one stack: the oldest between the root and the newest are forgotten."""
MAX_VIEWS = 60
"""Views that `[` goes back through."""


Trail = tuple[PageStep, ...]
"""A stack of pages, the root first."""


def trail_of(value: object) -> Trail:
    """A trail from a session file. It ends at the first entry that is no page of this console."""
    steps: list[PageStep] = []
    for each in value if isinstance(value, list) else ():
        if not (isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) and isinstance(each[1], dict)):
            break
        if not known(each[0].partition(" ")[0]):
            break
        steps.append(PageStep(each[0], each[1]))
    return tuple(steps[:MAX_DEPTH])


def known(name: str) -> bool:
    """True for the name of a page."""
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
        arrives: Callable[[], object] = lambda: None,
        landed: Callable[[], object] = lambda: None,
    ) -> None:
        """`arrives` is called when another page is to be shown, built or not; `landed` when that page can take
        keys."""
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
        """Go up one page; false at a root."""
        if len(self.stack) < 2:
            return False
        self.climb(len(self.stack) - 1)
        return True

    def climb(self, depth: int) -> None:
        """Go up until the stack has that many pages."""
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

    def begin_anew(self) -> None:
        """Make the pages anew, each at its place: what they hold is of another time. What a person has put together on
        a page stays."""
        trail, shown = self.trail(), self.stack[0]
        kept = {name: root for name, root in self._roots.items() if root.KEEPS}
        self._cut(1)
        for name, root in self._roots.items():
            if name not in kept and root.parent is not None:
                root.display = False
                root.remove()
        self._roots = kept
        self.stack = [shown] if shown in kept.values() else []
        self._follow(trail)

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
            # The title says at once where one is going: the page is not there yet to say so itself.
            self._arrives()
            self._body.mount(pane)
            self._body.post_message(Pane.Changed())
            pane.call_after_refresh(self._land, pane)
            return
        pane.display = True
        _settle(pane)
        pane.land()
        self._arrives()
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
    given = {"": (), "log": (log, argument), "argument": (argument,)}[takes]
    pane: Pane = page(connect, *given)
    pane.argument = argument
    if isinstance(pane, ListPane) and argument:
        pane.view.filter(argument)
    return pane


_PAGES: dict[str, tuple[str, str, Literal["", "log", "argument"]]] = {
    "workloads": ("cell_lists", "WorkloadsPane", ""),
    "queues": ("cell_lists", "QueuesPane", ""),
    "nodes": ("cell_lists", "NodesPane", ""),
    "pools": ("cell_lists", "PoolsPane", ""),
    "orders": ("cell_lists", "OrdersPane", ""),
    "reservations": ("cell_lists", "ReservationsPane", ""),
    "bookmarks": ("settings", "BookmarksPane", "argument"),
    "events": ("cell_lists", "EventsPane", "log"),
    "whatif": ("forecast", "WhatIfPane", ""),
    "workload": ("workload", "WorkloadPane", "argument"),
    "diff": ("difference", "DifferencePane", "argument"),
    "output": ("output", "OutputPane", "argument"),
    "node": ("nodes", "NodePane", "argument"),
    "queue": ("cell_lists", "QueuePane", "argument"),
    "topology": ("nodes", "TopologyPane", "argument"),
    "recommendations": ("proposals", "RecommendationsPane", ""),
    "forecast": ("forecast", "ForecastPane", "argument"),
    "curve": ("curve", "CurvePane", "argument"),
    "cost": ("cost", "cost_page", "argument"),
    "mirror": ("outside", "MirrorPane", ""),
    "intents": ("outside", "IntentsPane", ""),
    "intent": ("outside", "IntentPane", "argument"),
    "settings": ("settings", "SettingsPane", "argument"),
    "proposals": ("proposals", "ProposalsPane", "argument"),
    "proposal": ("proposals", "ProposalPane", "argument"),
    "runbooks": ("policy", "RunbooksPane", ""),
    "runbook": ("policy", "RunbookPane", "argument"),
    "audit": ("audit", "AuditPane", "argument"),
    "record": ("audit", "RecordPane", "argument"),
    "draft": ("draft", "DraftPane", "argument"),
    "drafts": ("draft", "DraftsPane", ""),
    "policy": ("policy", "PolicyPane", ""),
    "reviews": ("policy", "ReviewsPane", ""),
    "fleet": ("outside", "FleetPane", "argument"),
    "incidents": ("incidents", "IncidentsPane", "argument"),
    "incident": ("incidents", "IncidentPane", "argument"),
}
"""Module of `console.tui.screens`, class, and what it takes beside the connection. A page is imported when first shown:
the first frame waits for none of them."""


AFTER_S = 0.5
"""Delay before preloading, by which the first page usually has its data."""
BETWEEN_S = 0.02
PARTS = (
    "console.tui.screens.cell_lists",
    "console.tui.screens.workload",
    "console.tui.widgets.prompt_bar",
    "console.actions.line_completion",
    "console.tui.list_layout",
    "console.tui.screens.nodes",
    "console.tui.dialog_frames",
    "console.tui.screens.proposals",
    "console.tui.screens.curve",
)


def load_ahead() -> None:
    """Import what is likely to be opened next, on a thread. Returns at once.

    Without it the first page of a workload costs 170 ms of CPU for imports (budget 50 ms for key p99; 2026-11-23).
    """
    threading.Thread(target=_load, daemon=True, name="muster-load").start()


def _load() -> None:
    for part in PARTS:
        import_module(part)
        time.sleep(BETWEEN_S)


def page_command(line: str, available: Iterable[ConsoleAction]) -> ParsedCommand:
    """The command of a line that leads to a page. Raises SpecError for any other line."""
    command = parse_command(line, list(available))
    if not _leads(command):
        raise SpecError("", f"':{printable(line)[:80]}' is not a page", "Type it yourself to run it")
    return command


def _leads(command: ParsedCommand) -> bool:

    if command.action.id == "draft":
        # Anything but the id of one, or a choice of it for the rules, is a question to be drafted.
        from console.tui.screens.draft import is_draft_id, is_pick

        return is_draft_id(command.argument) or is_pick(command.argument)
    return command.action.id == "open" or known(command.action.id)


KEY = "bookmarks"
MOST, LONGEST = 200, 500
_NAME = re.compile(r"[^\s=:]{1,40}")


def kept(session: SessionState) -> dict[str, str]:
    """Name -> line, in the order they were made. What a person or another version put there in another form is left
    out."""
    found = session.recall(KEY)
    if not isinstance(found, dict):
        return {}
    return {name: line for name, line in found.items() if isinstance(line, str) and _NAME.fullmatch(name)}


def names(session: SessionState) -> list[str]:
    return sorted(kept(session))


def bookmark(app: MusterApp, argument: str) -> None:
    """`:bookmark NAME` keeps the view that is shown; `:bookmark NAME = LINE` the one that a line leads to, as another
    person has sent it. Without a name the line is begun. Raises SpecError."""
    pane = app.navigator.current
    name, equals, line = (part.strip() for part in argument.partition("="))
    if not equals and pane is not None:
        line = pane.line
    if not name:
        app.bars.open_command(f"bookmark {_free_name(app, line)}")
        return
    if _NAME.fullmatch(name) is None:
        raise SpecError("", f"'{printable(name)[:40]}' is not a bookmark name", "Use one word without = and :")
    if not line or len(line) > LONGEST or not line.isprintable():
        raise SpecError("", "there is no line after =", f"Write :bookmark {name} = workloads state:queued")
    command = page_command(line, app.actions.values())
    if any(name in action.commands for action in app.actions.values()):
        raise SpecError("", f"':{name}' is a command", "Use another name")
    if len(kept(app.session)) >= MOST:
        raise SpecError("", f"there are {MOST} bookmarks", "Remove one first: :forget NAME")
    _check_filter(app, command, argument)
    _change(app, name, line, f"bookmark {name}: :{line}")


def _check_filter(app: MusterApp, command: ParsedCommand, typed: str) -> None:
    """Raise FilterError, pointing into what was typed, for a view whose filter could not be read when it is opened."""
    if not command.argument or (command.action.argument != "filter" and command.action.id not in PAGE_COLUMNS):
        return
    try:
        new_page(cast("ScreenName", command.action.id), command.argument, app.client, app.events)
    except FilterError as error:
        at = typed.rfind(command.argument)
        raise FilterError(error.start + at, error.end + at, error.short, error.remedy) from None


def forget(app: MusterApp, argument: str) -> None:
    """Take a bookmark away; the one under the cursor, on their page. Raises SpecError."""
    pane = app.navigator.current
    name = argument.strip() or (pane.chosen() if pane is not None and pane.NAME == "bookmarks" else "")  # type: ignore[attr-defined]
    if name not in kept(app.session):
        raise SpecError("", f"there is no bookmark '{printable(name)[:40]}'", "See :bookmarks")
    _change(app, name, None, f"bookmark {name} removed; it was :{kept(app.session)[name]}")


def _free_name(app: MusterApp, line: str) -> str:
    """A first name for a bookmark: the page, with a number where that is taken or a command."""
    taken = {*kept(app.session), *(each for action in app.actions.values() for each in action.commands)}
    stem = re.sub(r"[^\w-]+", "-", line.split()[0] if line else "view")
    return next(name for name in (f"{stem}-{number}" for number in range(1, MOST + 2)) if name not in taken)


def _change(app: MusterApp, name: str, line: str | None, told: str) -> None:
    """As a change to whatever another console has kept meanwhile."""

    def change(found: Any) -> Any:
        lines = dict(found) if isinstance(found, dict) else {}
        lines.pop(name, None)
        return lines if line is None else {**lines, name: line}

    async def do() -> None:
        await in_thread(lambda: app.session.alter(KEY, change))
        app.say(told)
        if app.navigator.current is not None:
            app.navigator.current.look_again()

    app.run_worker(do(), group="bookmark")
