"""The `:` and `/` bars: completion, history, and the order in which keys are handled.

A bar opens at once. Keys typed right after a jump, a bar or a new page go to the widget they were meant for, even
before it is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

from textual.events import Key
from textual.widgets import Input

from console.actions.registry import ACTIONS, PREFIX, Jumps
from console.client.change_feed import in_thread
from console.forms.filters import PAGE_COLUMNS, FilterError, complete
from console.tui.widgets.list_pane import ListPane
from engine.model.errors import MusterError, SpecError

if TYPE_CHECKING:
    from textual.timer import Timer
    from textual.worker import Worker

    from console.actions.line_completion import CompletionRequest, WantedValue
    from console.tui.app import MusterApp
    from console.tui.widgets.prompt_bar import PromptBar


DEBOUNCE_S = 0.12
"""A filter is applied, and candidates are asked for, when the fingers rest this long."""
MAX_LINES, MAX_LENGTH = 500, 500
"""Lines that are remembered, and characters of each."""
MAX_CANDIDATES = 60
LINES = "lines"
"""Under which the session keeps what was typed."""
_SECRET = re.compile(
    r"secret|token|passw|passphrase|api.?key|bearer|private key|[A-Za-z0-9+/_]{40,}|[0-9a-f]{32,}", re.IGNORECASE
)
"""Lines that look like secrets; history does not keep them."""


def kept_lines(kept: object, line: str = "") -> list[str]:
    """Lines as a session keeps them, with one more at the end; the oldest are forgotten."""
    lines = [each for each in kept if isinstance(each, str)] if isinstance(kept, list) else []
    if line and len(line) <= MAX_LENGTH and not _SECRET.search(line):
        lines = [*(each for each in lines if each != line), line]
    return lines[-MAX_LINES:]


class Bars:
    """The `:` and `/` bars. One per app; at most one bar is open."""

    def __init__(self, app: MusterApp) -> None:
        self._app = app
        self.bar: PromptBar | None = None
        self._kept: PromptBar | None = None
        """The one that was opened last, also while it is closed."""
        self._opened = 0
        """Counts how often one was."""
        self.early: list[Key] | None = None
        """Keys pressed while a bar opens; None when none does."""
        self._filtered: Any = None
        self._before = ""
        self._timer: Timer | None = None
        self._wanted: CompletionRequest | WantedValue | None = None
        self._asked = 0
        """Counts questions for candidates: an answer to an old one is dropped."""
        self._lines: list[str] | None = None
        self._opening: Worker[None] | None = None
        """While the engine is asked what has the id that was typed: keys wait for what comes of it."""

    @property
    def typing(self) -> bool:
        """A bar is open, or opens."""
        return self.bar is not None

    def takes(self, key: Key) -> bool:
        """True for a key that the bars handle before any widget: one that opens a bar, or text typed right after it."""
        if self.early is not None:
            if self._opening is not None and key.key == "escape":
                self._opening.cancel()
                self.cancelled()
            else:
                self.early.append(key)
            return True
        if self.bar is not None and self.bar.has_keys and key.key == "enter":
            # What is typed behind it is for the page that it leads to, or for the line if it leads nowhere.
            self.early = []
            return False
        app = self._app
        if self.bar is None and app.screen is app.screen_stack[0]:
            for name in ("filter", "command"):
                if key.key in app.actions[name].keys:
                    app.action_act(name)
                    return True
        return False

    async def ready(self, bar: PromptBar) -> None:
        """The bar can take keys: first those that came too early."""
        if bar is not self.bar or self.early is None:
            return
        early, self.early = self.early, None
        for index, key in enumerate(early):
            await bar.take(key)
            if key.key in ("enter", "escape"):
                self.early = early[index + 1 :]
                return

    # --- opening and closing

    def open_command(self, text: str = "") -> None:
        """The `:` bar, with a line in it to go on with."""
        if self._lines is None:
            self._lines = kept_lines(self._app.session.recall(LINES))
        self._open(":", text, self._command_candidates, self._lines)

    def open_filter(self) -> None:
        """The `/` bar over the filter of the page, where it has one."""
        pane = self._app.navigator.current
        self._filtered = pane
        if isinstance(pane, ListPane):
            kind = pane.KIND
            self._before = pane.view.filter_text
            self._open("/", self._before, partial(self._filter_candidates, kind))
        elif pane is not None and hasattr(pane, "filter_text"):
            self._before = pane.filter_text
            known = partial(self._filter_candidates, pane.NAME) if pane.NAME in PAGE_COLUMNS else None
            self._open("/", self._before, known or (lambda _text, _cursor: []))

    def _open(
        self, sign: str, text: str, candidates: Callable[[str, int], list[str]], lines: Sequence[str] = ()
    ) -> None:
        from console.tui.widgets.prompt_bar import PromptBar

        self.close()
        self._wanted = None
        self.early = []
        self._opened += 1
        if self._kept is not None and self._kept.is_mounted:
            self.bar = self._kept
            self.bar.open(sign, text, candidates, lines)
        else:
            self.bar = self._kept = PromptBar(sign, text, candidates, lines)
            self._app.frame.mount(self.bar)

    def close(self) -> None:
        if self.bar is not None:
            early = self.early or []
            self.bar.display = False
            self.bar = self.early = self._opening = None
            if self._app.navigator.current is not None:
                self._app.navigator.current.land()
            self._app.draw_now()
            self._app.keys.hold(early)

    # --- candidates

    def _filter_candidates(self, page: str, text: str, cursor: int) -> list[str]:
        from console.actions.line_completion import wanted_value

        self._wanted = wanted_value(page, text, cursor)
        return complete(page, text, cursor)

    def _command_candidates(self, line: str, cursor: int) -> list[str]:
        """Completions known at once. A question to the engine is noted for a pause in typing."""
        from console.actions.line_completion import complete_line
        from console.tui.navigator import names

        pane = self._app.navigator.current
        kind = pane.KIND if isinstance(pane, ListPane) else "workloads"
        available = list(self._app.actions.values())
        found, self._wanted = complete_line(line, cursor, available, kind, names(self._app.session))
        return found

    async def _ask(self, text: str, wanted: CompletionRequest | WantedValue) -> None:
        """Candidates that the engine or the disk knows. Nothing is offered while neither answers."""
        self._asked += 1
        asked = self._asked
        try:
            more = await in_thread(partial(_looked_up, self._app, wanted))
        except MusterError:
            return
        if self.bar is not None and asked == self._asked:
            self.bar.offer_too(text, more)

    # --- what the bar tells

    def edited(self, text: str) -> None:
        """A filter follows the typing; an unreadable one leaves the last good one in place."""
        if self._timer is not None:
            self._timer.stop()
        if self.bar is None:
            return
        wanted, typed, filters = self._wanted, self.bar.typed, self.bar.sign == "/"
        self._wanted = None  # what Tab then puts there asks nothing

        def rested() -> None:
            if (not filters or self._apply_filter(text)) and wanted is not None:
                self._app.run_worker(self._ask(typed, wanted), group="candidates")

        if filters or wanted is not None:
            self._timer = self._app.set_timer(DEBOUNCE_S, rested)

    def _apply_filter(self, text: str) -> bool:
        if self.bar is None:
            return False
        try:
            self._filtered.filter(text)
        except FilterError as error:
            self.bar.point_at(error)
            return False
        return True

    def accepted(self, text: str) -> None:
        """Enter. What cannot be done leaves the bar open, with what is wrong below where it is wrong."""
        self._accept(text)
        if self.bar is not None and self._opening is None:
            self._app.call_later(self.ready, self.bar)

    def _accept(self, text: str) -> None:
        self._asked += 1  # candidates that come now would stand over what is wrong with the line
        if self._timer is not None:
            self._timer.stop()
        if self.bar is None:
            return
        if self.bar.sign == "/":
            if self._apply_filter(text):
                self.close()
            return
        bar, opened = self.bar, self._opened
        try:
            if text.strip():
                self._app.steering.run(text)
                self._remember(text.strip())
        except SpecError as error:
            if not self._may_be_an_id(text, error):
                bar.point_at(error, *_place(text, error))
        else:
            self._close_only(opened)

    def _close_only(self, opened: int) -> None:
        """That which was opened so, if it still is: a line may open another bar."""
        if self._opened == opened:
            self.close()

    def _may_be_an_id(self, text: str, error: SpecError) -> bool:
        """A word that is no command: the engine is asked whether something is called so. If not, the bar still says
        what it would have said."""
        from console.actions.registry import CommandError
        from console.tui.navigation import looks_like_an_id, open_by_id

        word, bar, opened = text.strip(), self.bar, self._opened
        known = any(word.partition(" ")[0] in action.commands for action in ACTIONS)
        if known or " " in word or (isinstance(error, CommandError) and error.near and not looks_like_an_id(word)):
            return False

        async def do() -> None:
            try:
                await open_by_id(self._app, word)
            except MusterError as found:
                if bar is not None and bar is self.bar and self._opened == opened:
                    shown = SpecError("", str(found)) if looks_like_an_id(word) else error
                    bar.point_at(shown, 0, len(word))
                    self._opening = None
                    await self.ready(bar)
            else:
                self._remember(word)
                self._close_only(opened)

        self.early = self.early or []
        if bar is not None:
            bar.tell("asking the engine …")
        self._opening = self._app.run_worker(do(), exclusive=True, group="open")
        return True

    def cancelled(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        if self.bar is not None and self.bar.sign == "/":
            self._filtered.filter(self._before)
        self.close()

    def _remember(self, line: str) -> None:
        self._lines = kept_lines(self._lines, line)
        write = partial(self._app.session.alter, LINES, lambda kept: kept_lines(kept, line))
        Thread(target=write, daemon=True, name="muster-lines").start()


def _looked_up(app: MusterApp, wanted: CompletionRequest | WantedValue) -> list[str]:
    from console.actions.line_completion import WantedValue, paths, values
    from console.forms.filters import quoted

    if isinstance(wanted, WantedValue):
        return values(app.client(), wanted)
    if wanted.files:
        return paths(wanted)
    hits = app.client().find(wanted.begun, wanted.kinds, MAX_CANDIDATES)
    return list(dict.fromkeys(wanted.before + quoted(hit.id) for hit in hits))


def _place(text: str, error: SpecError) -> tuple[int, int]:
    """Position of an error in a line: as the error gives it, or the word that it quotes, or all behind the name."""
    lead = len(text) - len(text.lstrip())
    head, space, argument = text[lead:].partition(" ")
    at = lead + len(head) + len(space) + len(argument) - len(argument.lstrip())
    if isinstance(error, FilterError):
        return error.start + at, error.end + at
    start = getattr(error, "start", None)
    if start is not None:
        return lead + start, lead + error.end  # type: ignore[attr-defined]
    for word in re.findall(r"'([^']{1,80})'", error.problem):
        found = text.find(word, at)
        if found >= 0:
            return found, found + len(word)
    return at, max(at + 1, len(text.rstrip()))


AT_ONCE = ("ctrl+c",)
"""Keys that never wait."""
MAX_HELD = 200
"""Keys that wait for a page. Nobody types so many: a paste or a stuck key."""
AWAY = "the engine does not answer: no action is possible until it is back. esc closes"


class KeyQueue:
    """Sees every key before any widget does. One per app."""

    def __init__(self, app: MusterApp) -> None:
        self._app = app
        self._held: list[Key] = []
        """Pressed while the page they are for is being put up."""
        self._replaying = False
        self.jumps = Jumps(app.actions.values())

    def passes(self, event: Key) -> Key | None:
        """The key that widgets are to see; None where it has been dealt with."""
        app = self._app
        if event.key in AT_ONCE:
            return event
        if app.screen is not app.screen_stack[0]:
            return self._over_the_page(event)
        if app.bars.typing:
            return None if app.bars.takes(event) else event
        if app.navigator.landing or app.navigator.current is None or (self._held and not self._replaying):
            if len(self._held) < MAX_HELD:
                self._held.append(event)
            return None
        if self.jumps.waiting:
            return self._second(event)
        if event.key == PREFIX and not isinstance(app.focused, Input):
            self.jumps.begin()
            app.drawing.jumps()
            return None
        return None if app.bars.takes(event) else event

    @property
    def on_page(self) -> bool:
        """True for a key that belongs to the page and not to an input on it."""
        app = self._app
        return app.screen is app.screen_stack[0] and not isinstance(app.focused, Input)

    def hold(self, keys: Iterable[Key]) -> None:
        """Keys for the page that is being put up; for the one that is shown, if none is."""
        self._held.extend(keys)
        if not self._app.navigator.landing:
            self._app.call_later(self.replay)

    async def replay(self) -> None:
        """The page is there: what was typed for it. A key that opens another page leaves the rest to that."""
        self._replaying = True
        try:
            while self._held and not self._app.navigator.landing:
                await self._app.on_event(self._held.pop(0))
        finally:
            self._replaying = False

    def _second(self, event: Key) -> Key | None:
        jump = self.jumps.end(event.key, event.character)
        app = self._app
        if jump.kind == "page":
            app.action_act(jump.action)
        elif jump.kind == "before":
            app.action_act("page_before")
        app.drawing.jumps()
        return Key("home", None) if jump.kind == "first" else None

    def _over_the_page(self, event: Key) -> Key | None:
        from console.tui.dialog_frames import Dialog

        dialog = self._app.screen
        if isinstance(dialog, Dialog) and dialog.refuses(event):
            self._app.say(AWAY)
            return None
        if isinstance(self._app.focused, Input):
            return event
        if self.jumps.waiting:
            # Over a page there is nowhere to go but to the top.
            return Key("home", None) if self.jumps.end(event.key, event.character).kind == "first" else event
        if event.key == PREFIX:
            self.jumps.begin()
            return None
        return event
