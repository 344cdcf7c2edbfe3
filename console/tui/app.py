"""The Textual console: one frame, a stack of pages, and a connection to the engine.

The first paint does not wait for the engine. Pages keep their data while the engine is away. On exit the terminal is
left as it was found.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import constants, on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Event, Key, Resize
from textual.filter import LineFilter, Monochrome, NoColor
from textual.message import Message
from textual.widgets import Static

from console.actions import key_map, registry
from console.actions.key_map import KeyMap
from console.actions.registry import ConsoleAction, Context, ScreenName
from console.client.change_feed import Arrived, Connected, Feed, Lost, Starting, in_thread
from console.forms.session_state import SessionState
from console.forms.settings import ConsoleSettings, Environment, EnvironmentOf, no_environment
from console.text.guarded_streams import draw_on_what_may_vanish, inert
from console.text.terminal_text import printable
from console.text.tones import PLAIN, THEMES, theme_for
from console.tui.connection import ConnectionState, Others, PresenceReporter, place_of
from console.tui.input_bars import Bars, KeyQueue
from console.tui.navigation import Navigation
from console.tui.navigator import AFTER_S, Navigator, load_ahead, trail_of
from console.tui.past_view import PastView
from console.tui.terminal_driver import TerminalDriver
from console.tui.widgets.drawing import NARROW, OneLine, PageScreen, Toned
from console.tui.widgets.frame import CRUMB, Frame, FrameDrawing, since_boot
from console.tui.widgets.pane import Pane
from console.views.lists import EventLog
from engine.model.errors import MusterError, SpecError, UnreachableError

if TYPE_CHECKING:
    from textual.command import Provider
    from textual.timer import Timer

    from console.client.credentials import Identity
    from console.client.protocol import Client
    from console.tui.widgets.prompt_bar import PromptBar
    from console.views.welcome import Tour

MIN_WIDTH, MIN_HEIGHT = 40, 15
COLLECT_EVERY_S = 60.0
"""Between two looks through all that a console made."""
COLLECT_AFTER_S = 0.5
"""Without a key, after which a look disturbs nobody."""
GARBAGE_THRESHOLDS = (20_000, 20, 1_000)
"""While keys come only new objects are looked through. A look through 10,000 takes 2 to 7 ms, through 100,000 a tenth
of a second."""
NO_COLOURS = NoColor()
AGAIN_S = 15.0
"""A page that is refused the same within that is not told about again."""
SWITCH_S = 0.001
"""How long a thread that reads an answer may keep the one that draws waiting. With Python's 5 ms, key to paint on a
free core took 70 ms at p99 instead of 43, for a budget of 50; CPU does not show it."""
NOTE_S = 1.0
"""Shortest time between two writes of the person's place."""
THEME = "MUSTER_THEME"
_BOUND_ELSEWHERE = ("enter", "space", "ctrl+p", "ctrl+c")


def _palette() -> type[Provider]:
    """Loaded when ctrl+p is first pressed."""
    from console.tui.dialog_frames import ActionProvider

    return ActionProvider


class Landed(Message):
    """The page that is shown takes keys."""


class MusterApp(App[None]):
    """The console of one engine."""

    CSS_PATH = "console.tcss"
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar = {_palette}
    AUTO_FOCUS = None
    HORIZONTAL_BREAKPOINTS: ClassVar = [(0, "-narrow"), (NARROW, "-usual")]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
        Binding("ctrl+l", "redraw", show=False, priority=True),
    ]

    def __init__(
        self,
        client_factory: Callable[[], Client],
        *,
        read_only: bool = False,
        title: str = "muster",
        start: ScreenName = "overview",
        log: Path | None = None,
        clock: Callable[[], float] = since_boot,
        identity: Identity | None = None,
        theme: str = "dark",
        keys: KeyMap = key_map.DEFAULT,
        environment_of: EnvironmentOf = no_environment,
        session: SessionState | None = None,
        flags: Mapping[str, Any] | None = None,
        page: str = "",
        at: str = "",
    ) -> None:
        """`at`: the earlier time to begin at, as a person writes it; `theme` as the setting of that name has it;
        `environment_of`: the environment of a cell of these names; `flags`: what was given on the command line, for the
        page of settings; `page`: the `:` line to begin on."""
        super().__init__()
        self._page = page
        self.registry = key_map.rows(keys.bound)
        """Every action, with the keys of this person."""
        key_map.show(self.registry)
        self._own_keys = {key for bound in keys.bound.values() for key in bound.keys} - key_map.RESERVED.keys()
        self._key_problems = keys.problems
        self._environment_of = environment_of
        self.flags = flags or {}
        self._identity = identity
        self.title = title
        self.read_only = read_only
        self.actions = {action.id: action for action in registry.actions(self.registry, read_only=read_only)}
        self.events = EventLog()
        self.clock = clock
        self._keyed_at = self._collected_at = clock()
        self._start = start
        self._log_path = log or Path(os.environ.get("TMPDIR", "/tmp")) / f"muster-console-{os.getuid()}.log"
        self.session = session or SessionState()
        self._noting: Timer | None = None
        self._refused = ("", float("-inf"))
        """What a page was refused last, and when."""
        self.link = ConnectionState()
        self.past = PastView(self)
        self._welcomed = bool(page)  # who asked for a page wants that
        self.tour: Tour | None = None
        """The tour that this person takes."""
        self._begin_at = at
        self.feed = Feed(client_factory, self.post_message)
        self.beside = PresenceReporter(
            self.link.live, self.post_message, identity.person if identity is not None else ""
        )
        self.frame = Frame()
        self.drawing = FrameDrawing(self)
        self.navigator = Navigator(self.client, self.events, self._arrives, lambda: self.post_message(Landed()))
        self.bars = Bars(self)
        self.steering = Navigation(self)
        self.keys = KeyQueue(self)
        for known in THEMES:
            self.register_theme(known)
        if theme == "auto" and not os.environ.get("NO_COLOR"):
            theme = self.session.recall("theme") or theme
        self._usual_theme = theme
        self._dressed_for: str | None = None
        self._dress()
        for key in dict.fromkeys(key for action in self.registry for key in action.keys):
            if key not in _BOUND_ELSEWHERE:
                self.bind(key, f"key('{key}')", show=False)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual answers NO_COLOR by shades of grey; here a theme does, and without any colour."""
        filters = [each for each in super().get_line_filters() if not isinstance(each, Monochrome)]
        return [*filters, NO_COLOURS] if self.theme == PLAIN.name else filters

    def watch_theme(self) -> None:
        for screen in self.screen_stack if self.is_running else ():
            for widget in screen.walk_children():
                if isinstance(widget, Toned):
                    widget.retone()

    def get_default_screen(self) -> PageScreen:
        return PageScreen(id="_default")

    def compose(self) -> ComposeResult:
        yield self.frame
        yield Static("", id="small", markup=False)

    def on_mount(self) -> None:
        self.frame.show_tabs(self._start)
        self.drawing.top()
        if not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self.call_after_refresh(self._open)

    def _open(self) -> None:
        """The frame is on the screen: now there is time for the rest."""
        keep_what_is_loaded()
        place, lost = self.session.begin()
        trail = trail_of(place.get("trail"))
        if trail and lost:
            self.say("restored where you were before the last console was lost")
        self.navigator.open(self.frame.body, self._start, () if self._page else trail)
        if self._page:
            self.steering.follow(self._page)
        self.feed.start()
        self.set_timer(AFTER_S, load_ahead)
        self.set_interval(1, self._time_passes)
        for problem in self.session.problems:
            self.report(SpecError("", problem))
        if self._key_problems:
            more = f" ({len(self._key_problems) - 1} more: `muster config check`)" if self._key_problems[1:] else ""
            self.report(SpecError("", f"the keys are the usual ones: {self._key_problems[0]}{more}"))

    def _arrives(self) -> None:
        """Another page is shown, or about to be built."""
        self.drawing.page()
        self._tell_place()
        if self.navigator.current is not None:
            self.feed.tail(self.navigator.current.TAILS)
        # Of a page that is still to be built that is its name, over what was there before.
        self.draw_now(lay_out=not self.navigator.landing)

    def draw_now(self, *, lay_out: bool = True) -> None:
        """Draw what answers a key before anything else is done."""
        if isinstance(self.screen, PageScreen):
            self.screen.draw(lay_out=lay_out)

    def _tell_place(self) -> None:
        """To the others who are here."""
        deciding = any(getattr(screen, "DECIDES", False) for screen in self.screen_stack[1:])
        self.beside.move(place_of(self.navigator.current, deciding=deciding))

    @on(Others)
    def _others(self) -> None:
        self.drawing.top()

    def _time_passes(self) -> None:
        self._tell_place()
        self.drawing.time_passes()
        self._collect()

    def _collect(self) -> None:
        now = self.clock()
        rested = now - self._keyed_at >= COLLECT_AFTER_S
        if rested and now - self._collected_at >= COLLECT_EVERY_S:
            self._collected_at = now
            free_left_pages()

    @on(Landed)
    async def _landed(self) -> None:
        await self.keys.replay()

    def leave(self) -> None:
        """The person ends the console."""
        self.session.leave(self._place())
        self.exit()

    async def action_quit(self) -> None:
        self.leave()

    def on_unmount(self) -> None:
        self.feed.stop()
        self.beside.close()
        if self.navigator.stack:
            self.session.note_place(self._place())
        self.session.close()

    def _place(self) -> dict[str, Any]:
        return {"trail": self.navigator.trail()}

    def _note_place(self) -> None:
        """Soon, beside the keys."""
        if self._noting is None:
            self._noting = self.set_timer(NOTE_S, self._write_place)

    async def _write_place(self) -> None:
        self._noting = None
        place = self._place()
        await in_thread(lambda: self.session.note_place(place))

    def on_resize(self, event: Resize) -> None:
        small = event.size.width < MIN_WIDTH or event.size.height < MIN_HEIGHT
        base = self.screen_stack[0]
        if base.has_class("-small") and not small and self.navigator.current is not None:
            # What was hidden has lost the focus.
            self.call_after_refresh(self.navigator.current.land)
        base.set_class(small, "-small")
        base.query_one("#small", Static).update(
            f"{event.size.width:d}x{event.size.height:d} is too small\n{MIN_WIDTH}x{MIN_HEIGHT} at least"
        )
        self.drawing.top()
        self.drawing.title()
        if self.navigator.current is not None:
            self.feed.tail(self.navigator.current.TAILS)

    # --- the line to the engine

    def client(self) -> Client:
        """The client of the moment. Raises UnreachableError while there is none. Safe on any thread."""
        return self.link.client()

    @on(Starting)
    def _starts(self, event: Starting) -> None:
        self.link.starts(event)
        self.drawing.time_passes()

    @on(Connected)
    def _connected(self, event: Connected) -> None:
        again = self.link.outage is not None
        if self.link.connected(event, self.clock()):
            self.events.clear()
        self.beside.start()
        self._dress()
        self.drawing.banner()
        if self._begin_at:
            self.past.go(self._begin_at)
            self._begin_at = ""
        if not self._welcomed:
            self._welcomed = True
            if self.flags.get("demo"):
                from console.tui.welcome import show_once

                show_once(self)
        if again and self.navigator.current is not None:
            # Whatever was being waited for died with the engine; what is not of the cell may have changed too.
            self.navigator.current.look_again()
        self.reload()

    @on(Arrived)
    def _arrived(self, event: Arrived) -> None:
        changes = event.changes
        if not self.past.at_ms:
            if changes.version < self.link.seen.version:
                self.events.clear()
            self.events.add(changes.items, changes.missed, changes.at_ms, whole=event.whole)
        moved = self.link.arrived(event, self.clock())
        self.drawing.banner()
        if moved and not self.past.at_ms:
            self.reload()
        self.drawing.top()

    @on(Lost)
    def _lost(self, event: Lost) -> None:
        self.link.lost(event, self.clock())
        self.drawing.time_passes()
        self.drawing.footer()

    def reload(self) -> None:
        """Ask the page that is shown anew."""
        self.link.seen.reloaded_ms = self.link.seen.at_ms
        if self.navigator.current is not None:
            self.navigator.current.reload()
        self.drawing.top()
        self.drawing.footer()

    def leave_tour(self) -> bool:
        """Leave the tour. False where none is taken."""
        was, self.tour = self.tour, None
        self.drawing.tour()
        return was is not None

    @on(Pane.Changed)
    def _draw_page(self) -> None:
        if self.navigator.current is not None:
            self.drawing.page()
            self._note_place()

    def context(self) -> Context:
        """The current page, its targets and the state of the connection, for the registry."""
        pane = self.navigator.current
        if pane is None:
            return Context(connected=self.connected)
        return Context(
            pane.NAME, pane.TARGETS, pane.targets, self.connected, len(self.navigator.stack), self.past.reason
        )

    @property
    def connected(self) -> bool:
        return self.link.client_now is not None

    def _dress(self) -> None:
        """Take the theme of the environment once its cell is known, unless another was asked for by name."""
        here = self.environment
        if here.name != self._dressed_for:
            asked = self.flags.get("theme") or os.environ.get(THEME)
            wanted = self._usual_theme if asked else here.theme or self._usual_theme
            self.theme = theme_for(wanted, os.environ, self.console.color_system).name
            self._dressed_for = here.name

    @property
    def environment(self) -> Environment:
        """Of the cell; until it has answered, of what it was called by whoever started this."""
        health = self.link.health
        return self._environment_of((self.title,) if health is None else (health.cell, health.name))

    def action_redraw(self) -> None:
        """Everything anew: another program wrote on the terminal."""
        self.refresh(layout=True)

    def say(self, text: str) -> None:
        """A short note in the corner."""
        self.notify("\n".join(printable(line) for line in text.split("\n")), markup=False, timeout=4)

    def report(self, error: MusterError) -> None:
        """Say what went wrong; the page stays."""
        self.notify(printable(str(error)), severity="error", markup=False, timeout=8)

    @on(Pane.AskFailed)
    def _page_failed(self, event: Pane.AskFailed) -> None:
        """Once for what is refused again and again: a page asks every second."""
        told, now = str(event.error), self.clock()
        again = told == self._refused[0] and now - self._refused[1] < AGAIN_S
        self._refused = (told, now)
        if not again and not isinstance(event.error, UnreachableError):
            self.report(event.error)

    # --- acting

    def action_key(self, key: str) -> None:
        """Do what a key means on the page that is shown."""
        action = registry.by_key(self.registry, key, self.context().screen)
        if action is not None:
            self.action_act(action.id)

    def why_not(self, action: ConsoleAction) -> str:
        """The reason why an action of the registry is impossible now; empty where it is possible."""
        return action.disabled_reason(self.context()) if action.id in self.actions else registry.READ_ONLY

    def action_act(self, name: str) -> None:
        """Do what a row of the registry says, or say why not."""
        action = next((action for action in self.registry if action.id == name), None)
        if action is None or self.screen is not self.screen_stack[0]:
            return
        reason = self.why_not(action)
        if reason:
            self.say(f"{action.title}: {reason}")
        elif action.mutates:
            pane = self.navigator.current
            targets = self.context().targets if pane is None else pane.acted_on(action, self.context())
            self.propose(action, tuple(target.id for target in targets))
        else:
            self.steering.do(action)

    @on(Pane.Follow)
    def _follow(self, event: Pane.Follow) -> None:
        self.steering.follow(event.line)

    @on(Pane.Compose)
    def _compose(self, event: Pane.Compose) -> None:
        self.bars.open_command(event.line)

    @work(group="propose", exclusive=True)
    async def propose(self, action: ConsoleAction, ids: tuple[str, ...]) -> None:
        """Ask the engine for a plan, the person for a yes, and the engine to do exactly that plan."""
        from console.tui.proposal_steps import propose

        try:
            self.say(await propose(self, action, ids))
        except MusterError as error:
            self.report(error)
        self.reload()

    @property
    def identity(self) -> Identity:
        """The identity that signs in this person's name. Asks for a passphrase once something is to be signed."""
        from console.tui.proposal_steps import ask_passphrase

        if self._identity is None:
            from console.client.credentials import Identity

            self._identity = Identity(ConsoleSettings())
        self._identity.ask_by(ask_passphrase(self))
        return self._identity

    @on(OneLine.Pressed)
    def _pressed(self, event: OneLine.Pressed) -> None:
        crumb, _, depth = event.press.partition(":")
        if crumb == CRUMB:
            self.navigator.climb(int(depth))
        else:
            self.action_act(event.press)

    async def on_event(self, event: Event) -> None:
        """Keys come by here in order, before the focused widget has seen the one before."""
        if isinstance(event, Key) and not event.is_forwarded:
            self._keyed_at = self.clock()
            passed = self.keys.passes(event)
            if passed is None:
                return
            if self.keys.on_page and await self._acts_on_page(passed.key):
                return
            event = passed
        await super().on_event(event)

    async def _acts_on_page(self, key: str) -> bool:
        """Do what is bound to a key, if anything is, before the next key is looked at. Textual would first hand it from
        the focused widget up to the app, and a `/` behind it would open its bar over the page that the key leaves."""
        if key in self._own_keys:  # before what a list or a page does by it
            self.action_key(key)
            return True
        return await self._check_bindings(key, priority=True) or await self._check_bindings(key)

    async def on_prompt_bar_ready(self, event: PromptBar.Ready) -> None:
        self.draw_now()
        await self.bars.ready(event.bar)

    def on_prompt_bar_edited(self, event: PromptBar.Edited) -> None:
        self.bars.edited(event.text)

    def on_prompt_bar_accepted(self, event: PromptBar.Accepted) -> None:
        self.bars.accepted(event.text)

    def on_prompt_bar_bar_cancelled(self) -> None:
        self.bars.cancelled()

    # --- the end

    def _fatal_error(self) -> None:
        """A fault of this program: details into the log, one line on the screen. Never values of variables."""
        note = "The console stopped on an internal error"
        try:
            with self._log_path.open("a", encoding="utf-8") as log:
                log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n{inert(traceback.format_exc())}\n")
            note += f"; details are in {self._log_path}"
        except OSError as error:
            note += f"; its log cannot be written ({error.strerror})"
        self._exit_renderables.append(Text(printable(note + ". The engine is not affected.")))
        self._close_messages_no_wait()


def run(
    client_factory: Callable[[], Client],
    *,
    read_only: bool = False,
    title: str = "muster",
    start: ScreenName = "overview",
    log: Path | None = None,
    identity: Identity | None = None,
    theme: str = "auto",
    keys: KeyMap = key_map.DEFAULT,
    environment_of: EnvironmentOf = no_environment,
    session: SessionState | None = None,
    flags: Mapping[str, Any] | None = None,
    page: str = "",
    at: str = "",
) -> int:
    """Show the console until the person leaves. The factory is called on a thread, after the first paint and again
    after every loss. Returns an exit code."""
    draw_on_what_may_vanish()
    sys.setswitchinterval(SWITCH_S)
    app = MusterApp(
        client_factory, read_only=read_only, title=title, start=start, log=log, identity=identity, theme=theme,
        keys=keys, environment_of=environment_of, session=session, flags=flags, at=at, page=page,
    )  # fmt: skip
    if constants.DRIVER is None:
        # Not in a browser, where textual-serve brings one.
        app.driver_class = TerminalDriver
    app.run()
    return app.return_code or 0


def keep_what_is_loaded() -> None:
    """Leave what is there now out of every later look, and look seldom.

    CPU from a key to its frame, p99: 33 ms, and 106 ms with Python's own settings, for a budget of 50 ms (2026-11-23,
    140x45, `console_bench.py --nodes 5000 --workloads 50000`).
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def free_left_pages() -> None:
    """Free the pages that were left.

    Textual 8 remembers two colours for each of the last 1,024 widgets, and with them every line that those drew: 0.4 MB
    for each page that was open once.
    """
    from textual._styles_cache import StylesCache

    StylesCache.get_inner_outer.cache_clear()
    gc.collect()
