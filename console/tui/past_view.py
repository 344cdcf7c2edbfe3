"""Looking back: every page as the cell was at an earlier time, read only, with a banner that says so.

The client of the pages is one that asks as of that time; the connection itself, and what others see of this console,
go on as of now. While an earlier time is rebuilt the pages stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from console.client.change_feed import in_thread
from console.text.terminal_text import duration, timestamp
from engine.model.errors import MusterError, UnreachableError
from engine.model.spec_parts import MINUTE_MS

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.tui.app import MusterApp
    from engine.model.overviews import Changes
    from engine.model.past_queries import PastStatus

EVENTS = 500
"""Events before the time that is shown, for the pages that list them."""


class SupersededWait(Exception):
    """The person went on to another time."""


class PastView:
    """The time that the pages show. One per app."""

    def __init__(self, app: MusterApp) -> None:
        self._app = app
        self.at_ms = 0
        """Cell time that is shown; 0: now."""
        self.version = 0
        self.target_ms = 0
        """Cell time that is being rebuilt; 0: none."""
        self.marked_ms = 0
        """Cell time to compare another one with; 0: none is marked."""
        self._permille = 0
        self._turn = 0
        """Counts where the person went: what was wanted before counts no more."""

    @property
    def reason(self) -> str:
        """Why nothing can be changed; empty while the pages show the cell as it is."""
        return f"as of {timestamp(self.at_ms)} nothing can be changed; :now goes back" if self.at_ms else ""

    def banner(self, now_ms: int) -> str:
        """The line on every page while an earlier time is shown or rebuilt; empty otherwise."""
        parts = []
        if self.at_ms:
            ago = duration(max(0, now_ms - self.at_ms))
            parts.append(f"AS OF {timestamp(self.at_ms)} UTC ({ago} ago), read only")
        if self.target_ms:
            done = f" {self._permille // 10}%" if self._permille else ""
            parts.append(f"rebuilding {timestamp(self.target_ms)}{done} … esc gives up")
        elif self.at_ms:
            parts.append("t another time · , . a minute · < > five · :now")
        return f" ◀ {' · '.join(parts)}" if parts else ""

    # --- where to

    def go(self, text: str) -> None:
        """To the time that a person wrote, or back to now."""
        if text in ("", "now"):
            self.now()
        else:
            from console.forms.past_times import past_ms

            self._look(lambda known: past_ms(text, known.earliest_ms, known.now_ms))

    def step(self, by_ms: int) -> None:
        """So much later, or earlier where it is negative."""
        begin_ms = self.target_ms or self.at_ms
        if not begin_ms and by_ms > 0:
            self._app.say("this is now")
            return
        at_ms = (begin_ms or self._app.link.seen.at_ms) + by_ms
        if at_ms >= self._app.link.seen.at_ms:
            self.now()
            return
        self.target_ms = at_ms
        self._look(lambda known: max(known.earliest_ms, at_ms))

    def now(self) -> None:
        """Back to the cell as it is."""
        self._turn += 1
        was_past, self.at_ms, self.target_ms, self._app.link.past_ms = bool(self.at_ms), 0, 0, 0
        if was_past:
            self._app.run_worker(self._back_to_now(), group="past", exclusive=True)

    def back_out(self) -> bool:
        """Give up a time that is being rebuilt. False where none is."""
        giving_up = bool(self.target_ms)
        self._turn += giving_up
        self.target_ms = 0
        self._app.drawing.banner()
        return giving_up

    def mark(self) -> None:
        """Mark the time that is shown; where another one is marked, show what changed between the two."""
        at_ms, marked_ms = self.at_ms or self._app.link.seen.at_ms, self.marked_ms
        if marked_ms in (0, at_ms):
            self.marked_ms = at_ms
            self._app.say(f"{timestamp(at_ms)} is marked; = at another time shows what changed between them")
            return
        self.marked_ms = 0
        self._app.navigator.drill("diff", " ".join(map(_written, sorted((at_ms, marked_ms)))))

    # --- on the way

    def _look(self, choose: Callable[[PastStatus], int]) -> None:
        self._turn += 1
        self._permille = 0
        self._app.drawing.banner()
        self._app.run_worker(self._looked(self._turn, choose), group="past", exclusive=True)

    async def _looked(self, turn: int, choose: Callable[[PastStatus], int]) -> None:
        try:
            live = self._app.link.live()
            at_ms = choose(await in_thread(lambda: live.past(0)))
            self.target_ms = at_ms
            self._app.drawing.banner()
            version, events = await in_thread(partial(self._rebuilt, live, at_ms, turn))
        except SupersededWait:
            return
        except MusterError as error:
            if turn == self._turn:
                self.target_ms = 0
                self._app.report(error)
                self._app.drawing.banner()
            return
        if turn == self._turn:
            self.at_ms, self.version, self.target_ms = at_ms, version, 0
            self._app.link.past_ms = at_ms
            self._show(events)

    def _rebuilt(self, live: Client, at_ms: int, turn: int) -> tuple[int, Changes]:
        """Version of that time, and the events before it, once it can be shown. Called on a thread."""
        from console.client.attach import wait_until_shown

        def told(status: PastStatus) -> None:
            if turn != self._turn:
                raise SupersededWait
            self._permille = status.permille
            self._app.call_from_thread(self._app.drawing.banner)

        version = wait_until_shown(live, at_ms, told).version
        return version, live.as_of(at_ms).changes(0, 0.0, EVENTS)

    async def _back_to_now(self) -> None:
        try:
            live = self._app.link.live()
            events = await in_thread(lambda: live.changes(0, 0.0, EVENTS))
        except UnreachableError:
            self._app.events.begin_anew()
        except MusterError as error:
            self._app.report(error)
        else:
            self._show(events)
        self._app.drawing.banner()

    def _show(self, events: Changes) -> None:
        app = self._app
        app.events.begin_anew()
        app.events.add(events.items, events.missed, events.at_ms)
        app.drawing.banner()
        if app.navigator.stack:
            app.navigator.begin_anew()


def ask(app: MusterApp, argument: str) -> None:
    """Open the line that asks for a time, or go there."""
    if argument:
        app.past.go(argument)
    else:
        app.bars.open_command("at ")


def now(app: MusterApp, _argument: str) -> None:
    app.past.now()


def minute_back(app: MusterApp, _argument: str) -> None:
    app.past.step(-MINUTE_MS)


def minute_on(app: MusterApp, _argument: str) -> None:
    app.past.step(MINUTE_MS)


def five_back(app: MusterApp, _argument: str) -> None:
    app.past.step(-5 * MINUTE_MS)


def five_on(app: MusterApp, _argument: str) -> None:
    app.past.step(5 * MINUTE_MS)


def mark(app: MusterApp, _argument: str) -> None:
    app.past.mark()


def difference(app: MusterApp, argument: str) -> None:
    """To the page of what changed between two times; one alone is compared with the time that is shown. Raises
    SpecError."""
    from console.forms.past_times import difference_words

    shown = _written(app.past.at_ms) if app.past.at_ms else "now"
    if not argument and shown == "now":
        app.bars.open_command("diff ")
        return
    words = difference_words(argument or f"{shown} now", shown)
    only = (f"{kind}:{name}" for kind, name in (("queue", words.queue), ("node", words.node)) if name)
    app.navigator.drill("diff", " ".join((words.since.replace(" ", "T"), words.until.replace(" ", "T"), *only)))


def _written(at_ms: int) -> str:
    return timestamp(at_ms).replace(" ", "T")
