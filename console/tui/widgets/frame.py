"""The frame around every page: header, tabs, title, banner, footer, and the notice for a terminal that is too small.

Ages are measured with a monotonic clock that also counts while the machine sleeps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from textual.app import ComposeResult

from console.actions import registry
from console.actions.key_map import key_of
from console.actions.registry import ConsoleAction, key_label
from console.forms.settings import Environment
from console.text.terminal_text import duration, printable, timestamp
from console.tui.widgets.drawing import NARROW, Covered, OneLine, Part, part
from console.views.lists import Span
from console.views.sections import plural

if TYPE_CHECKING:
    from console.client.protocol import Health
    from console.tui.app import MusterApp
    from console.tui.widgets.pane import AsOf, Pane


TABS = (
    "overview", "queues", "workloads", "nodes", "events", "whatif", "suggestions", "forecast", "proposals", "runbooks",
)  # fmt: skip
"""The main pages, in the order of their digits."""
PAGE_OF_TAB: dict[str, str] = {"suggestions": "recommendations"}
"""Tabs with another name than their page."""

MAX_JUMP_LINES = 6
"""For the pages behind `g`, above the footer."""
CRUMB = "crumb"
"""Prefix of a click on a page of the trail, before its depth."""
MAX_CRUMBS = 5
"""Pages that the title names beside the root; those between are dots."""


class Body(Covered):
    """Holds the pages, of which one is shown."""


class Frame(Covered):
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
        self._tour = OneLine("caution", id="tour")
        self._tour.display = False
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
        yield self._tour
        yield self._footer

    def show_top(self, spans: Sequence[Span]) -> None:
        self._top.show([part(text, tone) for text, tone in spans])

    def show_tabs(self, here: str) -> None:
        """The main pages with their keys: all of them, or as many as there is room for."""
        self._here = here
        pages = {PAGE_OF_TAB.get(name, name): name for name in TABS}
        texts = {page: f" {key_of(page)} {name} " for page, name in pages.items()}
        order = list(texts)
        room = self.size.width - 1
        while here in order[1:] and sum(cell_len(texts[page]) for page in order[: order.index(here) + 1]) > room > 0:
            del order[0]  # until the page that is shown is in view
        parts: list[Part] = [part(" ")]
        for page in order:
            room -= cell_len(texts[page])
            if room < 0:
                break
            parts.append(part(texts[page], "tab" if page == here else "header", page))
        self._tabs.show(parts)

    def on_resize(self) -> None:
        self.show_tabs(self._here)

    def show_title(self, crumbs: Sequence[str], note: str, age: Sequence[Span] = ()) -> None:
        """Show the trail, the counts, and the age of the data at the right end. A click on a page of the trail goes
        there."""
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
        """Show the keys of a prefix while it waits; none: it waits no longer."""
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

    def show_footer(self, offers: Sequence[tuple[ConsoleAction, str]]) -> None:
        """Show the possible actions. Impossible ones are dimmed and give their reason when tried."""
        left: list[Part] = []
        right: list[Part] = []
        for action, reason in offers:
            side = right if action.id == "help" else left
            side.append(part(f" {key_label(action.keys[0])} ", "off" if reason else "key", action.id))
            side.append(part(f"{action.title.lower()} ", "faded" if reason else "top", action.id))
        self._footer.show(left, right)

    def show_tour(self, text: str) -> None:
        """The next step of a tour; empty: none is taken."""
        self._tour.display = bool(text)
        self._tour.show(
            [part(f" {text}", "caution")], [part(" esc ", "key"), part("leave the tour ", "caution")] if text else []
        )

    def show_banner(self, text: str) -> None:
        """A line of alarm; empty takes it away."""
        self._banner.set_class(bool(text), "-lost")
        self._banner.show([part(text, "alarm")])


NEW_S = 3.0
"""Data that are no older than this are called new: one answer takes its time."""
MISSED = 3
"""Missed refreshes after which data count as old."""
OUTDATED_MS = 5_000
"""Cell time after which data are old although the state of the cell is the same: waits and ages go on."""


def since_boot() -> float:
    """Seconds, monotonic, that also pass while the machine is suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


SILENT_S = 10.0
"""Silence after which the connection counts as broken; an engine answers every second."""


class VersionSighting(NamedTuple):
    version: int
    at_ms: int
    moment: float


class DataAge:
    """Version of the cell, and the moment at which it was learnt."""

    def __init__(self, version: int = 0, at_ms: int = 0) -> None:
        self.version = version
        self.at_ms = at_ms
        self.reloaded_ms = 0
        """Cell time when the page was last asked for anew."""
        self._heard: deque[VersionSighting] = deque(maxlen=256)

    def hear(self, version: int, at_ms: int, moment: float) -> None:
        """The cell is there, at that moment of `since_boot`."""
        self.version, self.at_ms = version, at_ms
        self._heard.append(VersionSighting(version, at_ms, moment))

    def outdated_since(self, as_of: AsOf, speed: float = 1.0) -> float | None:
        """The moment from which on something newer than these data was known; None while they are new. `speed`: cell
        milliseconds per wall millisecond."""
        for index, heard in enumerate(self._heard):
            if heard.version > as_of.version or heard.at_ms > as_of.at_ms + OUTDATED_MS:
                # What is newer than the first that was heard may have been for long: the cell's clock tells how long.
                before_ms = heard.at_ms - as_of.at_ms if index == 0 and as_of.at_ms and speed > 0 else 0
                return heard.moment - max(0, before_ms) / speed / 1000 if before_ms else heard.moment
        return None


class Age(NamedTuple):
    """Age of the data in view."""

    seconds: float
    """Never below zero."""
    late: bool
    lost: bool
    """There is no connection."""
    version: int
    frozen: bool = False


def age_spans(age: Age | None, *, wide: bool) -> list[Span]:
    """The end of the title line: words and signs first, the tone only repeats them."""
    if age is None:
        return []
    version = f"v{age.version:,} · " if wide and age.version else ""
    old = f"{duration(int(age.seconds * 1000))} old"
    if age.lost:
        return [(f" ✗ no connection · {version}{old} ", "bad")]
    if age.frozen:
        # Without its age, which would be another one each second.
        return [(f" ‖ frozen{f' · v{age.version:,}' if version else ''} ", "warn")]
    if age.late:
        return [(f" ! late · {version}{old} ", "warn")]
    return [(f" {version}{'now' if age.seconds < NEW_S else old} ", "dim")]


NOWHERE = Environment()


def top_bar(
    health: Health | None, title: str, at_ms: int, version: int, *, read_only: bool, width: int, retrying: bool = False,
    starting: str = "", environment: Environment = NOWHERE, others: tuple[str, bool] = ("", False),
) -> list[Span]:  # fmt: skip
    """The first line: which cell, its clock and speed, the version shown, and whether one may act. `starting`: how far
    its engine is, that is not ready yet. `environment`: that of the cell, for another window that looks the same may be
    the test cell. `others`: who else is here, and whether on the same thing."""
    production, where = environment.production, where_spans(environment)
    brand: list[Span] = [] if where and width < NARROW else [(" muster ", "brand")]
    spans: list[Span] = [*brand, *where, (" ", "top")]
    if health is None:
        doing = printable(starting) or ("retrying …" if retrying else "connecting …")
        spans += [(printable(title), "top"), (f"  {doing}", "off")]
        return [*spans, ("  read-only", "key")] if read_only else spans
    spans.append((printable(health.cell or title)[:24], "strong" if production else "top"))
    if width < NARROW:
        return [*spans, *_narrow(health, at_ms, read_only=read_only, retrying=retrying)]
    spans.append((f"  {timestamp(at_ms, date=width >= 100)} UTC", "top"))
    spans.append((_pace(health), "caution" if health.paused else "off"))
    brief = (others[0] or read_only) and width < WIDE
    spans.append(("" if brief else f"  v{version:,}", "off"))
    spans.append(("  " if retrying else " ", "off"))
    spans.append((" ✗ retrying ", "alarm") if retrying else ("●" if brief else " ● connected", "off"))
    if health.incidents:
        spans += [("  ", "off"), (f" ▲ {health.incidents:,} {plural('incident', health.incidents)} ", "caution")]
    if health.journal_error:
        spans += [("  ", "off"), (" ✗ journal ", "alarm")]
    elif width >= 110 and not others[0]:
        spans.append((f"  engine {printable(health.software)} pid {health.pid}", "off"))
    if read_only:
        spans.append(("  read-only", "key"))
    if others[0]:
        spans.append((f"  {printable(others[0])} ", "caution" if others[1] else "off"))
    return spans


def _narrow(health: Health, at_ms: int, *, read_only: bool, retrying: bool) -> list[Span]:
    """What there is room for on a phone, the most urgent first."""
    trouble = " ✗ retrying " if retrying else " ✗ journal " if health.journal_error else ""
    return [
        (trouble, "alarm") if trouble else (" ●", "ok"),
        (" read-only" if read_only else "", "key"),
        (f" ▲ {health.incidents:,} " if health.incidents else "", "caution"),
        (_pace(health), "caution" if health.paused else "off"),
        (f" {timestamp(at_ms, date=False)} UTC", "top"),
    ]


def where_spans(environment: Environment) -> list[Span]:
    """The environment's name in its colour; PRODUCTION as a word, for those who see no colours. Empty without one."""
    tone = f"mark {environment.colour or ('red' if environment.production else 'blue')}"
    word = "PRODUCTION" if environment.production else ""
    name = "" if environment.name.lower() in ("prod", "production") and word else environment.name
    text = " ".join(filter(None, (word, printable(name))))
    return [(f" {text} ", tone)] if text else []


def _pace(health: Health) -> str:
    if health.paused:
        return " PAUSED "
    return "" if health.speed == 1 else f" ×{health.speed:g}"


def lost_banner(problem: str, lost_for_s: float, retry_in_s: float, at_ms: int) -> str:
    """Banner while the engine does not answer."""
    retry = f"retry in {retry_in_s:.0f}s" if retry_in_s >= 1 else "connecting"
    age = f" · data of {timestamp(at_ms, date=False)}" if at_ms else ""
    lost_for = duration(max(0, int(lost_for_s * 1000)))
    return f" ✗ no connection for {lost_for}{age} · {retry} · {printable(problem)}"


def silent_banner(silent_s: float) -> str:
    """Banner while a connection brings no data; empty while it does."""
    if silent_s < SILENT_S:
        return ""
    return f" ! no data from the engine for {duration(int(silent_s * 1000))}: very busy, stopped, or gone"


def unwritable_banner(health: Health) -> str:
    """Banner while nothing can be recorded or the mirror is behind; empty otherwise."""
    if health.journal_error:
        problem = printable(health.journal_error)
        return f" ✗ the journal cannot be written: no action can run, viewing still works · {problem}"
    if health.audit_error:
        return f" ✗ audit: {printable(health.audit_error)}"
    return f" ✗ {printable(health.mirror_error)}" if health.mirror_error else ""


WIDE = 100
"""From this width on the age of a page's data is told in words."""


class FrameDrawing:
    """Draws the frame, one per app. `Frame` skips lines that read as before."""

    def __init__(self, app: MusterApp) -> None:
        self._app = app
        self._at_ms = self._version = 0
        """Cell time and version that the first line tells."""

    def time_passes(self) -> None:
        """Ages, and how long the engine has been away."""
        self.banner()
        self.title()
        self.top()

    def top(self) -> None:
        app = self._app
        health, pane = app.link.health, app.navigator.current
        if app.past.at_ms:
            self._at_ms, self._version = app.past.at_ms, app.past.version
        elif pane is None or pane.frozen is None:
            # The clock stands while a page is frozen: nothing is written to the terminal then.
            self._at_ms, self._version = app.link.seen.at_ms, app.link.seen.version
        app.frame.show_top(
            top_bar(
                health, app.title, self._at_ms, self._version,
                read_only=app.read_only, width=app.size.width, retrying=app.link.outage is not None,
                starting=app.link.starting, environment=app.environment,
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
            past = self._app.past.banner(link.seen.at_ms)
            text = past or silent_banner(link.silence(now)) or unwritable_banner(link.health)
        self._app.frame.show_banner(text)
        for screen in self._app.screen_stack[1:]:
            if hasattr(screen, "tell_outage"):
                screen.tell_outage(text if outage is not None else "")

    def page(self) -> None:
        """The page, or what is selected on it, is another."""
        self._app.frame.show_tabs(self._app.navigator.stack[0].NAME)
        self.title()
        self.footer()
        self.tour()

    def tour(self) -> None:
        """The next step of the tour, if one is taken; the page that is shown may have been the one before."""
        tour, context = self._app.tour, self._app.context()
        if tour is not None:
            tour.arrived(context.screen, context.targets[0].state if context.targets else "")
        self._app.frame.show_tour("" if tour is None else tour.text)

    def title(self) -> None:
        app = self._app
        pane = app.navigator.current
        if pane is not None:
            age = [(" ◀ as of then ", "warn")] if app.past.at_ms else self._age(pane)
            app.frame.show_title([page.crumb for page in app.navigator.stack], pane.note, age)

    def _age(self, pane: Pane) -> list[Span]:
        return age_spans(self._app.link.age(pane, self._app.clock()), wide=self._app.size.width >= WIDE)

    def footer(self) -> None:
        """Keys and their meaning now."""
        self._app.frame.show_footer(registry.footer(list(self._app.actions.values()), self._app.context()))

    def jumps(self) -> None:
        """Keys behind a waiting prefix, and their meaning."""
        jumps = self._app.keys.jumps
        self._app.frame.show_jumps(jumps.offers() if jumps.waiting else [])
