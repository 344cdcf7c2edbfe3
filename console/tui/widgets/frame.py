"""The frame around every page: header, tabs, title, banner, footer, and a message for a terminal that is too small."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical

from console.actions.action_types import Action
from console.actions.registry import key_label
from console.tui.widgets.line_widget import Covered
from console.tui.widgets.one_line import OneLine, Part, part
from console.views.lists import Span

TABS = (
    "overview", "queues", "workloads", "nodes", "events", "whatif", "suggestions", "forecast", "proposals", "runbooks",
)  # fmt: skip
"""What the digits open, 1 to 9 and 0."""
PAGE_OF_TAB: dict[str, str] = {"suggestions": "recommendations"}
"""Of the tabs that are called otherwise than their page."""

MAX_JUMP_LINES = 6
"""For the pages behind `g`, above the footer."""
CRUMB = "crumb"
"""Before the depth of a page, in what a click on its name means."""
MAX_CRUMBS = 5
"""Pages that the title names beside the root; those between are dots."""


class Body(Covered, Vertical):
    """Holds the pages, of which one is shown."""


class Frame(Covered, Vertical):
    """Lines of text that the app fills, and a body that holds the pages."""

    def __init__(self) -> None:
        super().__init__(id="frame")
        self._top = OneLine("top", id="top")
        self._tabs = OneLine("header", id="tabs")
        self._title = OneLine("", id="title")
        self._banner = OneLine("alarm", id="banner")
        self._jumps = [OneLine("top") for _ in range(MAX_JUMP_LINES)]
        for line in self._jumps:
            line.add_class("jumps")
        self._footer = OneLine("top", id="footer")
        self.body = Body(id="body")
        self._here = ""

    def compose(self) -> ComposeResult:
        yield self._top
        yield self._tabs
        yield self._banner
        yield self._title
        yield self.body
        yield from self._jumps
        yield self._footer

    @property
    def lines(self) -> tuple[OneLine, ...]:
        """What tells where one is and what can be done there."""
        return self._tabs, self._title, self._footer

    def show_top(self, spans: Sequence[Span]) -> None:
        self._top.show([part(text, tone) for text, tone in spans])

    def show_tabs(self, here: str) -> None:
        """The main pages with their digits: all of them, or as many as there is room for."""
        self._here = here
        parts: list[Part] = [part(" ")]
        room = self.size.width - 1
        for number, name in enumerate(TABS, 1):
            page = PAGE_OF_TAB.get(name, name)
            text = f" {number % 10} {name} "
            room -= len(text)
            if room < 0:
                break
            parts.append(part(text, "tab" if page == here else "header", page))
        self._tabs.show(parts)

    def on_resize(self) -> None:
        self.show_tabs(self._here)

    def show_title(self, crumbs: Sequence[str], note: str, age: Sequence[Span] = ()) -> None:
        """Where one is, what of how much is shown, and at the right end how old that is. A click on a page that lies
        below goes there."""
        parts: list[Part] = [part("  ")]
        first = max(1, len(crumbs) - MAX_CRUMBS)
        for depth, crumb in enumerate(crumbs[:-1], 1):
            if depth == 1 or depth > first:
                parts += [part(crumb, "dim", f"{CRUMB}:{depth}"), part(" › ", "dim")]
            elif depth == first:
                parts.append(part("… › ", "dim"))
        right = [part(text, tone) for text, tone in age]
        self._title.show([*parts, part(crumbs[-1], "head"), part("   "), part(note, "dim")], right)

    def show_jumps(self, offers: Sequence[tuple[str, str, str]]) -> None:
        """What the next key means, while a prefix waits for it; none: it waits no longer."""
        lines: list[list[Part]] = [[part(" g ", "key"), part("and then ", "off")]] if offers else []
        used = 12
        for key, title, action in offers:
            width = len(key) + len(title) + 4
            if used + width > self.size.width and len(lines) < MAX_JUMP_LINES:
                lines.append([])
                used = 0
            used += width
            lines[-1] += [part(f" {key} ", "key", action), part(f"{title} ", "top", action)]
        for index, line in enumerate(self._jumps):
            line.display = index < len(lines)
            line.show(lines[index] if index < len(lines) else [])

    def show_footer(self, offers: Sequence[tuple[Action, str]]) -> None:
        """What can be done here; what cannot is dimmed and says why when tried."""
        left: list[Part] = []
        right: list[Part] = []
        for action, reason in offers:
            side = right if action.id == "help" else left
            side.append(part(f" {key_label(action.keys[0])} ", "off" if reason else "key", action.id))
            side.append(part(f"{action.title.lower()} ", "faded" if reason else "top", action.id))
        self._footer.show(left, right)

    def show_banner(self, text: str) -> None:
        """A line of alarm; empty takes it away."""
        self._banner.set_class(bool(text), "-lost")
        self._banner.show([part(text, "alarm")])
