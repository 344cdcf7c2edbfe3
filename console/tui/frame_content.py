"""What the frame shows of the moment: the first line, the banner, the title, the keys of the footer."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from console.actions import registry
from console.views.frame import age_spans, lost_banner, silent_banner, top_bar, unwritable_banner

if TYPE_CHECKING:
    from console.tui.app import MusterApp

WIDE = 100
"""From this width on the age of a page's data is told in words."""


class FrameDrawing:
    """One per app. Nothing is drawn that reads as before: `Frame` sees to that."""

    def __init__(self, app: MusterApp, production: Sequence[str]) -> None:
        """`production`: patterns of names of cells that are."""
        self._app = app
        self._production = production

    def time_passes(self) -> None:
        """Ages, and how long the engine has been away."""
        self.banner()
        self.title()
        self.top()

    def top(self) -> None:
        app = self._app
        health, seen = app.link.health, app.link.seen
        name = health.cell if health is not None else app.title
        app.frame.show_top(
            top_bar(
                health, app.title, seen.at_ms, seen.version,
                read_only=app.read_only, width=app.size.width, retrying=app.link.outage is not None,
                production=any(fnmatchcase(name, pattern) for pattern in self._production),
                others=(app.beside.words(), app.beside.together),
            )
        )  # fmt: skip

    def banner(self) -> None:
        """A line on every page while the engine is away, or nothing can be recorded and so nothing executed."""
        link, now = self._app.link, self._app.clock()
        outage, text = link.outage, ""
        if outage is not None:
            lost_for, retry_in = now - outage.since, max(0.0, outage.retry_at - now)
            text = lost_banner(outage.problem, lost_for, retry_in, link.seen.at_ms)
        elif link.health is not None:
            text = silent_banner(link.silence(now)) or unwritable_banner(link.health)
        self._app.frame.show_banner(text)
        for screen in self._app.screen_stack[1:]:
            if hasattr(screen, "tell_outage"):
                screen.tell_outage(text if outage is not None else "")

    def page(self) -> None:
        """The page, or what is selected on it, is another."""
        self._app.frame.show_tabs(self._app.navigator.stack[0].NAME)
        self.title()
        self.footer()

    def title(self) -> None:
        app = self._app
        pane = app.navigator.current
        if pane is not None:
            age = age_spans(app.link.age(pane, app.clock()), wide=app.size.width >= WIDE)
            app.frame.show_title([page.crumb for page in app.navigator.stack], pane.note, age)

    def footer(self) -> None:
        """What the keys mean now."""
        self._app.frame.show_footer(registry.footer(list(self._app.actions.values()), self._app.context()))

    def jumps(self) -> None:
        """What the next key means, while a prefix waits for it."""
        jumps = self._app.keys.jumps
        self._app.frame.show_jumps(jumps.offers() if jumps.waiting else [])
