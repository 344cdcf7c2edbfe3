"""The `/` and `:` bars: one line, what Tab would give below it, and what is wrong where it is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input

from console.forms.filters import token_at
from console.text.terminal_text import cut, fit, printable, visible
from console.tui.widgets.drawing import OneLine, part
from engine.model.errors import SpecError

MAX_SHOWN = 24
"""Candidates that are drawn."""
_STEPS = {"tab": 1, "shift+tab": -1, "up": -1, "ctrl+r": -1, "down": 1}
"""Keys that go through candidates, and through earlier lines."""


class PromptInput(Input):
    """An input of one line that hides nothing, whatever is typed, pasted or put there by completion."""

    def validate_value(self, value: str) -> str:
        return visible(value)

    def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.insert_text_at_cursor(cut(visible(event.text.strip()), 500))


class PromptBar(Vertical):
    """The `/` or `:` bar: an input, and below it either what Tab would give or what is wrong and where.

    It is kept while it is closed: to build it takes longer than to draw it.
    """

    DEFAULT_CSS = """
    PromptBar { height: 2; dock: bottom; background: $panel; layout: vertical; }
    PromptBar > Horizontal { height: 1; }
    PromptBar Input { border: none; height: 1; padding: 0; background: $panel; width: 1fr; }
    PromptBar Input:focus { border: none; background: $panel; background-tint: $panel 0%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", show=False, priority=True),
    ]

    class Edited(Message):
        """The line is different."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Accepted(Message):
        """Enter."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class BarCancelled(Message):
        """Esc: as if nothing had been typed."""

    class Ready(Message):
        """Keys reach the input from now on."""

        def __init__(self, bar: PromptBar) -> None:
            super().__init__()
            self.bar = bar

    def __init__(
        self, sign: str, text: str, candidates: Callable[[str, int], list[str]], history: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._sign = OneLine("key")
        self._hint = OneLine("top")
        self._input = PromptInput(select_on_focus=False)
        self._set(sign, text, candidates, history)

    def _set(
        self, sign: str, text: str, candidates: Callable[[str, int], list[str]], history: Sequence[str] = ()
    ) -> None:
        self.sign = sign
        self._candidates = candidates
        self._history = history
        self._matching: list[str] = []
        """Earlier lines in which what was typed occurs, and that itself."""
        self._recalled = 0
        self._offers: list[str] = []
        self._offered = -1
        self._offers_for = ""
        """What was typed when they were found."""
        self._tab: tuple[str, int] | None = None
        """What was typed when Tab found nothing yet, and which way it goes: what comes later is taken by it."""
        self._expected = text

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield self._sign
            yield self._input
        yield self._hint

    def on_mount(self) -> None:
        self._input.cursor_blink = False
        self._sign.styles.width = 3
        self._open()

    def open(
        self, sign: str, text: str, candidates: Callable[[str, int], list[str]], history: Sequence[str] = ()
    ) -> None:
        """Once more, with nothing left of what was typed before."""
        self._set(sign, text, candidates, history)
        self.display = True
        self._open()

    def _open(self) -> None:
        self._sign.show([part(f" {self.sign} ", "key")])
        self.screen.set_focus(self._input)
        with self._input.prevent(Input.Changed):
            self._input.value = self._expected
        self._input.cursor_position = len(self._input.value)
        self._offer()
        self.post_message(self.Ready(self))

    async def take(self, key: events.Key) -> None:
        """A key that was pressed before the input could have it."""
        if key.is_printable and key.character:
            self._input.insert_text_at_cursor(key.character)
        elif key.key == "enter":
            await self._input.action_submit()
        elif key.key == "backspace":
            self._input.action_delete_left()
        elif key.key in _STEPS:
            step = _STEPS[key.key]
            self.complete(step) if key.key.endswith("tab") else self.recall(step)
        elif key.key == "escape":
            self.action_cancel()

    def tell(self, words: str) -> None:
        """Show progress in place of the completions."""
        self._hint.show([part("   "), part(words, "off")])

    @property
    def has_keys(self) -> bool:
        """True while keys go into its line, wherever a click has put the focus."""
        return self.app.focused is self._input

    @property
    def typed(self) -> str:
        """Text before the cursor."""
        return self._input.value[: self._input.cursor_position]

    def point_at(self, error: SpecError, start: int = -1, end: int = -1) -> None:
        """Say what is wrong, below where it is wrong: there, or where the error itself says."""
        if start < 0:
            start, end = getattr(error, "start", 0), getattr(error, "end", 0)
        text = printable(getattr(error, "short", "") or error.problem)
        words = f"{text}. {printable(error.remedy)}" if error.remedy else text
        caret, room = "^" * max(1, end - start), self.size.width - 3
        if start + len(caret) + 1 + len(words) <= room or start < len(words):
            line = " " * start + f"{caret} {words}" if end else words
        else:
            line = fit(words, start - 1) + " " + caret
        self._hint.show([part("   "), part(cut(line, room), "warn")])

    def _offer(self) -> None:
        """Show what Tab would give."""
        self._offers = self._candidates(self._input.value, self._input.cursor_position)
        self._offers_for, self._offered = self.typed, -1
        self._show_offers()

    def offer_too(self, text: str, more: Sequence[str]) -> None:
        """Candidates that came later. What was for another text than is there now is nobody's any more, and what Tab
        goes through already stays."""
        if text == self.typed and self._offered < 0:
            self._offers = list(dict.fromkeys((*self._offers, *more)))
            self._show_offers()
            if self._tab is not None and self._tab[0] == text:
                self.complete(self._tab[1])

    def _show_offers(self) -> None:
        """As many as there is room for, with the chosen one among them."""
        parts = [part("tab ", "off")] if self._offers else []
        first = max(0, self._offered - MAX_SHOWN // 2)
        for index, offer in enumerate(self._offers[first : first + MAX_SHOWN], first):
            chosen = index == self._offered
            parts.append(part(f"[{offer}]" if chosen else f" {offer} ", "key" if chosen else "off"))
        self._hint.show([part("   ", "off"), *parts])

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        if event.value != self._input.value:
            return  # Tab came before this was told, and has put something else there
        if event.value == self._expected and self._offered >= 0:
            self._show_offers()
        else:
            self._offer()
        self.post_message(self.Edited(event.value))

    async def on_key(self, event: events.Key) -> None:
        """Handle keys after the input did, so that text typed or pasted before them is there."""
        if event.key in _STEPS:
            event.stop()
            event.prevent_default()
            await self.take(event)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Accepted(event.value))

    def action_cancel(self) -> None:
        self.post_message(self.BarCancelled())

    def complete(self, step: int) -> None:
        """Put the next candidate in place of the word under the cursor; where the engine is still asked, the first of
        those that come."""
        if self._offered < 0 and self._offers_for != self.typed:
            self._offer()  # of what was typed or pasted a moment ago nobody was told yet
        self._tab = None if self._offers else (self.typed, step)
        if not self._offers:
            return
        text, cursor = self._input.value, self._input.cursor_position
        token = token_at(text, cursor)
        begun = self._offered >= 0 or step > 0
        self._offered = (self._offered + step if begun else -1) % len(self._offers)
        offer = visible(self._offers[self._offered])
        self._expected = text[: token.start] + offer + text[token.end :]
        self._input.value = self._expected
        self._input.cursor_position = token.start + len(offer)

    def recall(self, step: int) -> None:
        """Earlier and later lines in which what was typed occurs."""
        shown = self._matching[self._recalled] if self._matching else None
        if shown != self._input.value:
            typed = self._input.value
            self._matching = [*(line for line in self._history if typed.strip() in line and line != typed), typed]
            self._recalled = len(self._matching) - 1
        self._recalled = max(0, min(len(self._matching) - 1, self._recalled + step))
        self._input.value = self._matching[self._recalled]
        self._input.cursor_position = len(self._input.value)
