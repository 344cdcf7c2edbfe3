"""What lies over a proposal while a person decides on it: a line for the reason, and then the key or the digest.

Enter and Esc never approve. A passphrase is asked for in a dialog of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, cast

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input

from console.client.change_feed import in_thread
from console.text.terminal_text import printable, wrap
from console.tui.dialogs.base import Dialog
from console.tui.dialogs.confirmation import NO, READ_ON, AskingDialog, DigestTyping, PlanView
from console.tui.widgets.one_line import OneLine, part
from console.tui.widgets.prompt_bar import PromptInput
from console.tui.widgets.sections_view import SectionsView
from console.views.decisions.proposal import hanging
from console.views.sections import Section, text_line
from engine.model.errors import MusterError

if TYPE_CHECKING:
    from console.tui.app import MusterApp

LOOK_S = 1.0
"""How often it is looked whether somebody else has decided meanwhile."""
Ending = Literal["reason", "key", "digest"]
"""What ends it with a yes: Enter behind a reason (for what only stops things), `y`, or the digest's beginning."""


class DialogUpdate(NamedTuple):
    """What has become of what is asked about since it was shown."""

    note: str = ""
    """Worth knowing; an answer still counts."""
    over: str = ""
    """Why no answer counts any more."""


class DecideDialog(AskingDialog):
    """Asks for what a decision needs. True only after its `ending`; `reason` then holds what was written.

    It watches what it asks about: once somebody else has decided that, or while the engine is away, no answer is taken,
    and what was written stays.
    """

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
        written: str = "",
        alarm: bool = False,
        look: Callable[[], DialogUpdate] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sections` of a width is what is shown; `least_reason` the characters a reason must have, 0: as one likes,
        None: there is none; `written`: what was written before; `look`, called on a thread, tells what has become of
        what is asked about."""
        super().__init__(clock)
        self.reason = written
        self._sections = sections
        self._deed = deed
        self._ending = ending
        self._digest = DigestTyping(digest)
        self._least = least_reason
        self._writing = bool(least_reason) or (ending == "reason" and least_reason is not None)
        self._look = look
        self._news = DialogUpdate()
        self._away = ""
        self._body = PlanView()
        self._reached = False
        """The end of what is shown was on the screen."""
        self._sign = OneLine("key")
        self._input = PromptInput(written, select_on_focus=False, max_length=500)
        self._told = OneLine("top")
        self._question = OneLine("top")
        self.set_class(alarm, "-alarm")

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body
            yield self._told
            with Horizontal():
                yield self._sign
                yield self._input
            yield self._question

    def on_mount(self) -> None:
        self._sign.styles.width = 9
        self._sign.show([part(" reason ", "key")])
        self._input.cursor_blink = False
        self._told.display = False
        self.watch(self._body, "scroll_y", self._look_for_end, init=False)
        self._write(self._writing)
        if self._look is not None:
            self.set_interval(LOOK_S, self._look_again)

    def _write(self, writing: bool) -> None:
        self._writing = writing
        self._input.disabled = not writing
        self._input.parent.display = writing or bool(self.reason)  # type: ignore[union-attr]
        (self._input if writing else self._body).focus()
        self._ask()

    def on_resize(self) -> None:
        self.leave_room(self._body, 4)
        self.call_after_refresh(lambda: self._body.show(self._sections(self._body.text_width)))

    @on(PlanView.LaidOut)
    def _look_for_end(self) -> None:
        """Where it does not fit, it is read on to its end before a yes."""
        body = self._body
        laid_out = body.size.height and body.virtual_size.height
        self._reached = self._reached or bool(laid_out and body.scroll_offset.y >= body.max_scroll_y)
        self._ask()

    # --- what others do meanwhile

    def _look_again(self) -> None:
        self.run_worker(self._looked, exclusive=True, group="look")

    async def _looked(self) -> None:
        assert self._look is not None
        try:
            self._news, self._away = await in_thread(self._look), ""
        except MusterError as error:
            self._away = error.problem
        told = self._news.over or self._news.note
        if self._away:
            told = "no answer from the engine: nothing is sent now, and what you wrote stays here"
        elif not told:
            told = cast("MusterApp", self.app).beside.words_on_this()
        self._told.display = bool(told)
        self._told.show([part(f" {told}", "bad" if self._away or self._news.over else "warn")])
        self._ask()

    @property
    def _takes_answers(self) -> bool:
        return not (self.too_early or self._away or self._news.over)

    # --- answering

    @on(Input.Changed)
    def _edited(self, event: Input.Changed) -> None:
        event.stop()
        self._ask()

    @on(Input.Submitted)
    def _written(self, event: Input.Submitted) -> None:
        """The reason is there: that was all, or the answer comes next."""
        event.stop()
        if not self._takes_answers or not self._enough:
            return
        self.reason = " ".join(self._input.value.split())
        if self._ending == "reason":
            self.dismiss(True)
            return
        self.read_anew()
        self._write(False)

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
        if not self._takes_answers:
            return
        if event.key == "r" and self._least is not None:
            event.stop()
            self._write(True)
        elif not self._reached:
            return
        elif self._ending == "key":
            if event.key in ("y", "Y"):
                event.stop()
                self.dismiss(True)
        elif self._digest.take(event):
            if self._digest.done:
                self.dismiss(True)
            self._ask()

    def _ask(self) -> None:
        if self._away or self._news.over:
            self._question.show([part(" esc ", "key"), part("leave it ", "strong")])
        elif self._writing:
            lacks = (self._least or 0) - len("".join(self._input.value.split()))
            if lacks > 0:
                more = f"say why, {lacks} character{'s' if lacks != 1 else ''} more"
                then = [part(more, "off")]
            else:
                then = [part(" ↵ ", "key"), part(self._deed if self._ending == "reason" else "go on", "off")]
            self._question.show([part(" esc ", "key"), part("leave it ", "strong"), part("  "), *then])
        elif not self._reached:
            self._question.show([*NO, READ_ON])
        else:
            yes = [part(" y ", "key"), part(f"yes, {self._deed}", "off")]
            asked = yes if self._ending == "key" else self._digest.question(self._deed)
            why = [part("   "), part(" r ", "key"), part("say why", "off")] if self._least is not None else []
            self._question.show([*NO, *asked, *why])


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
