"""The Textual console: one frame, a stack of pages, and a line to the engine.

It paints before it connects, keeps what it shows while the engine is away, and leaves the terminal as it found it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Event, Key, Resize
from textual.widgets import Static

from console import actions
from console.actions import Action, Context, ScreenName
from console.event_log import EventLog
from console.feed import Arrived, Connected, Feed, Lost, Outage, Seen
from console.guarded import draw_on_what_may_vanish, inert
from console.navigator import Navigator
from console.palettes import THEMES, theme_for
from console.screens.frame import Frame
from console.screens.lines import OneLine
from console.screens.pane import Pane
from console.settings import Settings
from console.steering import Steering
from console.text import printable
from console.views import lost_banner, top_bar, unwritable_banner
from engine.errors import MusterError, SpecError, UnreachableError

if TYPE_CHECKING:
    from textual.command import Provider

    from console.client import Client, Health
    from console.identity import Identity
    from console.prompt_bar import PromptBar

LEAST_WIDTH, LEAST_HEIGHT = 60, 15
STALE_MS = 2_000
"""Cell time after which waits and ages on the screen are asked for anew although nothing happened."""
_BOUND_ELSEWHERE = ("enter", "space", "ctrl+p", "ctrl+c")


def _palette() -> type[Provider]:
    """Loaded when ctrl+p is first pressed."""
    from console.palette import ActionProvider

    return ActionProvider


class MusterApp(App[None]):
    """The console of one engine."""

    CSS_PATH = "console.tcss"
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar = {_palette}
    AUTO_FOCUS = None
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", show=False, priority=True)]

    def __init__(
        self,
        client_factory: Callable[[], Client],
        *,
        read_only: bool = False,
        title: str = "muster",
        start: ScreenName = "overview",
        log: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        identity: Identity | None = None,
        theme: str = "dark",
        production: Sequence[str] = (),
    ) -> None:
        """`theme` as the setting of that name has it; `production`: patterns of names of cells that are."""
        super().__init__()
        self._identity = identity
        self.title = title
        self.read_only = read_only
        self.actions = {action.id: action for action in actions.actions(read_only=read_only)}
        self.events = EventLog()
        self.clock = clock
        self._start = start
        self._log_path = log or Path(os.environ.get("TMPDIR", "/tmp")) / f"muster-console-{os.getuid()}.log"
        self._client: Client | None = None
        self._health: Health | None = None
        self._seen = Seen()
        self._outage: Outage | None = None
        self.feed = Feed(client_factory, self.post_message)
        self.frame = Frame()
        self.navigator = Navigator(self.client, self.events)
        self.steering = Steering(self)
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = theme_for(theme, os.environ, self.console.color_system).name
        self._production = production
        for key in dict.fromkeys(key for action in self.actions.values() for key in action.keys):
            if key not in _BOUND_ELSEWHERE:
                self.bind(key, f"key('{key}')", show=False)

    def compose(self) -> ComposeResult:
        yield self.frame
        yield Static("", id="small", markup=False)

    def on_mount(self) -> None:
        self.frame.show_tabs(self._start)
        self._draw_top()
        if not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self.call_after_refresh(self._open)

    def _open(self) -> None:
        """The frame is on the screen: now there is time for the rest."""
        self.navigator.open(self.frame.body, self._start)
        self.feed.start()

    def on_unmount(self) -> None:
        self.feed.stop()

    def on_resize(self, event: Resize) -> None:
        small = event.size.width < LEAST_WIDTH or event.size.height < LEAST_HEIGHT
        base = self.screen_stack[0]
        if base.has_class("-small") and not small and self.navigator.current is not None:
            # What was hidden has lost the focus.
            self.call_after_refresh(self.navigator.current.land)
        base.set_class(small, "-small")
        base.query_one("#small", Static).update(
            f"{event.size.width:d}x{event.size.height:d} is too small\n{LEAST_WIDTH}x{LEAST_HEIGHT} at least"
        )
        self._draw_top()

    # --- the line to the engine

    def client(self) -> Client:
        """The client of the moment. Raises UnreachableError while there is none. Safe on any thread."""
        client = self._client
        if client is None:
            raise UnreachableError("not connected to an engine", "The console keeps trying")
        return client

    @on(Connected)
    def _connected(self, event: Connected) -> None:
        self._client, self._health = event.client, event.health
        if event.health.version < self._seen.version:
            self.events.clear()
        self._seen = Seen(event.health.version, event.health.now_ms)
        if self._outage is not None:
            self._outage.timer.stop()
            self._outage = None
        self._draw_alarm()
        self._reload()

    @on(Arrived)
    def _arrived(self, event: Arrived) -> None:
        changes = event.changes
        self.events.add(changes.items, changes.missed, changes.at_ms)
        self._health = event.health or self._health
        self._draw_alarm()
        # The first answer brings what happened before, at the version that is known already.
        moved = bool(changes.items) or changes.version != self._seen.version
        moved = moved or changes.at_ms - self._seen.reloaded_ms >= STALE_MS
        self._seen.version, self._seen.at_ms = changes.version, changes.at_ms
        if moved:
            self._reload()
        self._draw_top()

    @on(Lost)
    def _lost(self, event: Lost) -> None:
        self._client = None
        if self._outage is None:
            self._outage = Outage(self.clock(), self.set_interval(1, self._draw_banner))
        known = isinstance(event.error, MusterError | OSError)
        self._outage.problem = str(event.error) if known else f"{type(event.error).__name__} while asking the engine"
        self._outage.retry_at = self.clock() + event.retry_in_s
        self._draw_banner()
        self._draw_footer()

    def _reload(self) -> None:
        self._seen.reloaded_ms = self._seen.at_ms
        if self.navigator.current is not None:
            self.navigator.current.reload()
        self._draw_top()
        self._draw_footer()

    # --- drawing the frame

    def _draw_top(self) -> None:
        seen, width = self._seen, self.size.width
        spans = top_bar(self._health, self.title, seen.at_ms, seen.version, read_only=self.read_only, width=width)
        self.frame.show_top(spans)

    def _draw_alarm(self) -> None:
        """A line on every page while nothing can be recorded, and so nothing executed."""
        if self._outage is None and self._health is not None:
            self.frame.show_banner(unwritable_banner(self._health))

    def _draw_banner(self) -> None:
        if self._outage is not None:
            now = self.clock()
            outage = self._outage
            lost_for, retry_in = now - outage.since, max(0.0, outage.retry_at - now)
            self.frame.show_banner(lost_banner(outage.problem, lost_for, retry_in, self._seen.at_ms))

    @on(Pane.Changed)
    def _draw_page_lines(self) -> None:
        pane = self.navigator.current
        if pane is not None:
            self.frame.show_tabs(self.navigator.stack[0].NAME)
            self.frame.show_title([page.crumb for page in self.navigator.stack], pane.note)
            self._draw_footer()

    def _draw_footer(self) -> None:
        self.frame.show_footer(actions.footer(list(self.actions.values()), self.context()))

    def context(self) -> Context:
        """Where the person is, for the registry."""
        pane = self.navigator.current
        if pane is None:
            return Context(connected=self._client is not None)
        return Context(pane.NAME, pane.TARGETS, pane.targets, self._client is not None, len(self.navigator.stack))

    def say(self, text: str) -> None:
        """A short note in the corner."""
        self.notify("\n".join(printable(line) for line in text.split("\n")), markup=False, timeout=4)

    def report(self, error: MusterError) -> None:
        """Say what went wrong; the page stays."""
        self.notify(printable(str(error)), severity="error", markup=False, timeout=8)

    @on(Pane.Failed)
    def _page_failed(self, event: Pane.Failed) -> None:
        if not isinstance(event.error, UnreachableError):
            self.report(event.error)

    # --- acting

    def action_key(self, key: str) -> None:
        """Do what a key means on the page that is shown."""
        action = actions.by_key(list(self.actions.values()), key, self.context().screen)
        if action is not None:
            self.action_act(action.id)

    def action_act(self, name: str) -> None:
        """Do what a row of the registry says, or say why not."""
        action = self.actions.get(name)
        if action is None or self.screen is not self.screen_stack[0]:
            return
        reason = action.disabled_reason(self.context())
        if reason:
            self.say(f"{action.title}: {reason}")
        elif action.mutates:
            self.propose(action, tuple(target.id for target in self.context().targets))
        else:
            self.steering.do(action)

    @on(Pane.Follow)
    def _follow(self, event: Pane.Follow) -> None:
        try:
            self.steering.run(event.line, drill=True)
        except SpecError as error:
            self.report(error)

    @on(Pane.Compose)
    def _compose(self, event: Pane.Compose) -> None:
        self.steering.open_command(event.line)

    @work(group="propose", exclusive=True)
    async def propose(self, action: Action, ids: tuple[str, ...]) -> None:
        """Ask the engine for a plan, the person for a yes, and the engine to do exactly that plan."""
        from console.approval import propose

        try:
            self.say(await propose(self, action, ids))
        except MusterError as error:
            self.report(error)
        self._reload()

    @property
    def identity(self) -> Identity:
        """What signs in this person's name, once something is to be signed; a passphrase is asked for here."""
        from console.deciding import ask_passphrase

        if self._identity is None:
            from console.identity import Identity

            self._identity = Identity(Settings())
        self._identity.ask_by(ask_passphrase(self))
        return self._identity

    @on(OneLine.Pressed)
    def _pressed(self, event: OneLine.Pressed) -> None:
        self.action_act(event.press)

    async def on_event(self, event: Event) -> None:
        """Keys come by here in order, before the focused widget has seen the one before."""
        if not (isinstance(event, Key) and not event.is_forwarded and self.steering.takes(event)):
            await super().on_event(event)

    async def on_prompt_bar_ready(self, event: PromptBar.Ready) -> None:
        await self.steering.ready(event.bar)

    def on_prompt_bar_edited(self, event: PromptBar.Edited) -> None:
        self.steering.edited(event.text)

    def on_prompt_bar_accepted(self, event: PromptBar.Accepted) -> None:
        self.steering.accepted(event.text)

    def on_prompt_bar_cancelled(self) -> None:
        self.steering.cancelled()

    # --- the end

    def _fatal_error(self) -> None:
        """A fault of this program: details into the log, one line on the screen. Never values of variables."""
        note = "The console stopped on a fault of its own"
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
    production: Sequence[str] = (),
) -> int:
    """Show the console until the person leaves. The factory is called on a thread, after the first paint and again
    after every loss. Returns an exit code."""
    draw_on_what_may_vanish()
    app = MusterApp(
        client_factory, read_only=read_only, title=title, start=start, log=log, identity=identity, theme=theme,
        production=production,
    )  # fmt: skip
    app.run()
    return app.return_code or 0
