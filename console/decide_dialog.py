"""What lies over a proposal while a person decides on it: a line for the reason, and then the key or the digest.

Enter and Esc never approve. A passphrase is asked for in a dialog of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input

from console import dialogs
from console.details import Section, text_line
from console.dialogs import NO, Dialog, DigestTyping, PromptInput
from console.proposal_text import hanging
from console.screens.lines import OneLine, part
from console.screens.sections import SectionsView
from console.text import printable, wrap

Ending = Literal["reason", "key", "digest"]
"""What ends it with a yes: Enter behind a reason (for what only stops things), `y`, or the digest's beginning."""


class DecideDialog(Dialog):
    """Asks for what a decision needs. True only after its `ending`; `reason` then holds what was written."""

    DEFAULT_CSS = """
    DecideDialog > Vertical { border: round $warning; }
    DecideDialog.-alarm > Vertical { border: heavy $error; }
    DecideDialog Horizontal { height: 1; margin-top: 1; }
    DecideDialog Input { border: none; height: 1; padding: 0; background: $panel; width: 1fr; }
    DecideDialog Input:focus { border: none; background: $panel; background-tint: $panel 0%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False, priority=True)]

    def __init__(
        self,
        sections: Callable[[int], Sequence[Section]],
        deed: str,
        ending: Ending,
        *,
        digest: str = "",
        least_reason: int | None = None,
        alarm: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sections` of a width is what is shown; `least_reason` the characters a reason must have, None: none is asked
        for."""
        super().__init__()
        self.reason = ""
        self._sections = sections
        self._deed = deed
        self._ending = ending
        self._digest = DigestTyping(digest)
        self._least = least_reason
        self._clock = clock
        self._shown_at = 0.0
        self._writing = least_reason is not None
        self._body = SectionsView()
        self._sign = OneLine("key")
        self._input = PromptInput(select_on_focus=False, max_length=500)
        self._question = OneLine("top")
        self.set_class(alarm, "-alarm")

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body
            if self._writing:
                with Horizontal():
                    yield self._sign
                    yield self._input
            yield self._question

    def on_mount(self) -> None:
        self._shown_at = self._clock()
        self._ask()
        if self._writing:
            self._sign.styles.width = 9
            self._sign.show([part(" reason ", "key")])
            self._input.cursor_blink = False
            self._input.focus()
        else:
            self._body.focus()

    def on_resize(self) -> None:
        self.leave_room(self._body, 3)
        self.call_after_refresh(lambda: self._body.show(self._sections(self._body.text_width)))

    @property
    def _too_early(self) -> bool:
        """Keys typed before it could be read do not count as an answer."""
        return self._clock() - self._shown_at < dialogs.GUARD_S

    @on(Input.Changed)
    def _edited(self, event: Input.Changed) -> None:
        event.stop()
        self._ask()

    @on(Input.Submitted)
    def _written(self, event: Input.Submitted) -> None:
        """The reason is there: that was all, or the answer comes next."""
        event.stop()
        if self._too_early or not self._enough:
            return
        self.reason = " ".join(self._input.value.split())
        if self._ending == "reason":
            self.dismiss(True)
            return
        self._writing = False
        self._input.disabled = True
        self._shown_at = self._clock()
        self._body.focus()
        self._ask()

    @property
    def _enough(self) -> bool:
        return len("".join(self._input.value.split())) >= (self._least or 0)

    def on_key(self, event: events.Key) -> None:
        """The only way to yes once the reason is written."""
        if self._writing:
            return
        if event.key in ("n", "N", "enter"):
            event.stop()
            self.dismiss(False)
            return
        if self._too_early:
            return
        if self._ending == "key":
            if event.key in ("y", "Y"):
                event.stop()
                self.dismiss(True)
            return
        if self._digest.take(event):
            if self._digest.done:
                self.dismiss(True)
            self._ask()

    def _ask(self) -> None:
        if self._writing:
            lacks = (self._least or 0) - len("".join(self._input.value.split()))
            if lacks > 0:
                more = f"say why, {lacks} character{'s' if lacks != 1 else ''} more"
                then = [part(more, "off")]
            else:
                then = [part(" ↵ ", "key"), part(self._deed if self._ending == "reason" else "go on", "off")]
            self._question.show([part(" esc ", "key"), part("leave it ", "strong"), part("  "), *then])
        elif self._ending == "key":
            self._question.show([*NO, part(" y ", "key"), part(f"yes, {self._deed}", "off")])
        else:
            self._question.show([*NO, *self._digest.question(self._deed)])


class PassphraseDialog(Dialog):
    """Asks for a passphrase, which is not shown. `value` holds it after a yes."""

    DEFAULT_CSS = """
    PassphraseDialog > Vertical { max-width: 70; }
    PassphraseDialog Input { border: none; height: 1; padding: 0; background: $panel; }
    PassphraseDialog Input:focus { border: none; background: $panel; background-tint: $panel 0%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False, priority=True)]

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self.value = ""
        self._prompt = prompt
        self._body = SectionsView()
        self._input = Input(password=True)

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body
            yield self._input

    def on_mount(self) -> None:
        self._input.cursor_blink = False
        self._input.focus()

    def on_resize(self) -> None:
        self.leave_room(self._body, 1)
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        lines = tuple(map(text_line, wrap(printable(self._prompt), self._body.text_width)))
        self._body.show([Section("To sign your vote", lines, "↵ signs, esc leaves it")])

    @on(Input.Submitted)
    def _given(self, event: Input.Submitted) -> None:
        event.stop()
        self.value = event.value
        self.dismiss(True)


class InputsDialog(Dialog):
    """One line for each thing that is asked for; Enter goes to the next, behind the last one it is done."""

    DEFAULT_CSS = """
    InputsDialog Vertical { overflow-y: auto; }
    InputsDialog Horizontal { height: 1; }
    InputsDialog Input { border: none; height: 1; padding: 0; background: $panel; width: 1fr; }
    InputsDialog Input:focus { border: none; background: $cursor; background-tint: $panel 0%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False, priority=True),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
    ]

    def __init__(self, title: str, asked: Sequence[tuple[str, str]]) -> None:
        """`asked`: (name, what it is)."""
        super().__init__()
        self._title = title
        self._asked = asked
        self._body = SectionsView()
        self._body.can_focus = False
        self._signs = [OneLine("key") for _ in asked]
        self._inputs = [PromptInput(max_length=500) for _ in asked]
        self._hint = OneLine("top")

    @property
    def values(self) -> dict[str, str]:
        """What was written; what was left empty is not in it."""
        given = zip(self._asked, self._inputs, strict=True)
        return {name: text for (name, _), line in given if (text := line.value.strip())}

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body
            for sign, line in zip(self._signs, self._inputs, strict=True):
                with Horizontal():
                    yield sign
                    yield line
            yield self._hint

    def on_mount(self) -> None:
        width = min(20, max(len(name) for name, _ in self._asked)) + 2
        for (name, _), sign, line in zip(self._asked, self._signs, self._inputs, strict=True):
            sign.styles.width = width
            sign.show([part(f" {name}"[:width], "key")])
            line.cursor_blink = False
        self._inputs[0].focus()
        self._hint.show(
            [part(" esc ", "key"), part("leave it ", "strong"), part(" ↵ ", "key"),
             part("next; behind the last: try it on a fork", "off")]
        )  # fmt: skip

    def on_resize(self) -> None:
        self.leave_room(self._body, len(self._asked) + 1)
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        width = self._body.text_width
        lines = [
            line
            for name, what in self._asked
            for line in hanging(f"{printable(name)}  ", printable(what), width, "accent")
        ]
        self._body.show([Section(printable(self._title), tuple(lines), "empty: as the runbook says")])

    @on(Input.Submitted)
    def _written(self, event: Input.Submitted) -> None:
        event.stop()
        at = self._inputs.index(event.input)  # type: ignore[arg-type]
        if at + 1 < len(self._inputs):
            self._inputs[at + 1].focus()
        else:
            self.dismiss(True)
