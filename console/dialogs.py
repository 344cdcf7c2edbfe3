"""What lies over a page: the confirmation of a plan, the choice of a column, help, and the `/` and `:` bars.

The confirmation is drawn from the typed proposal only. Its default is No: Enter and Esc both leave things as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input

from console.actions import Action, Context, key_label
from console.details import Line, Section, text_line
from console.proposal_text import TIERS, effect_lines, framed, hanging
from console.query import FilterError, token_at
from console.screens.lines import OneLine, Part, part
from console.screens.sections import SectionsView
from console.text import cut, fit, printable, visible, wrap
from engine.errors import SpecError
from engine.query import Column
from runbooks.plan import Proposal

GUARD_S = 0.4
"""Keys typed before a dialog could be read do not count as an answer."""
PREFIX = 6
"""Characters of the digest to be typed for a disruptive plan: `runbooks.policy.DIGEST_TYPED`."""
NO = (part(" n ", "key"), part("no, leave it ", "strong"), part("  "))


class Dialog(ModalScreen[bool]):
    """A framed page over the page."""

    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog > Vertical { width: 90%; max-width: 100; height: auto; max-height: 92%; background: $background;
        border: round $border; padding: 0 1; }
    Dialog SectionsView { height: auto; max-height: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,backspace,q", "leave", show=False)]

    def action_leave(self) -> None:
        self.dismiss(False)

    def leave_room(self, body: SectionsView, lines: int) -> None:
        """Have the body scroll before it pushes what is asked below it, so many lines, out of the frame."""
        body.styles.max_height = max(1, self.size.height * 92 // 100 - 2 - lines)


class DigestTyping:
    """The beginning of a digest, typed by a person who means just this plan."""

    def __init__(self, digest: str) -> None:
        self._digest = digest
        self._typed = ""

    @property
    def done(self) -> bool:
        return len(self._typed) == PREFIX

    def take(self, event: events.Key) -> bool:
        """Whether the key is one of these. After a wrong one it begins anew."""
        if event.key == "backspace":
            self._typed = self._typed[:-1]
        elif event.character and event.character in "0123456789abcdef":
            self._typed += event.character
        else:
            return False
        event.stop()
        if not self._digest.startswith(self._typed):
            self._typed = ""
        return True

    def question(self, deed: str) -> list[Part]:
        typed = self._typed + "_" * (PREFIX - len(self._typed))
        wanted = printable(self._digest)[:PREFIX]
        return [part("type ", "off"), part(wanted, "key"), part(f" to {deed}: ", "off"), part(typed, "strong")]


class ConfirmDialog(Dialog):
    """Shows a proposal and asks. True only after `y` (T0, T1) or the first characters of the digest (T2, T3). Where the
    policy wants others than who asks, `y` puts it to the vote and does nothing else."""

    DEFAULT_CSS = """
    ConfirmDialog > Vertical { border: round $warning; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,n,N,enter", "leave", show=False, priority=True)]

    def __init__(
        self,
        proposal: Proposal,
        shell: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        asks_only: bool = False,
        above: Callable[[int], Sequence[Line]] | None = None,
    ) -> None:
        """`asks_only`: a yes puts it to the vote, whoever may approve it. `above`: lines before the plan."""
        super().__init__()
        self._above = above
        self._asks_only = asks_only
        self._proposal = proposal
        self._shell = shell
        self._clock = clock
        self._shown_at = 0.0
        self._digest = DigestTyping(proposal.digest)
        self._body = SectionsView()
        self._question = OneLine("top")

    @property
    def _plain(self) -> bool:
        return not self.alone or one_key(self._proposal)

    @property
    def alone(self) -> bool:
        """Who asks may approve it alone."""
        return by_author_alone(self._proposal) and not self._asks_only

    @property
    def _deed(self) -> str:
        steps = self._proposal.plan.steps  # none where the stored plan cannot be read
        return steps[0].act.action.replace("_", " ") if steps else "approve"

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body
            yield self._question

    def on_mount(self) -> None:
        self._shown_at = self._clock()
        self._ask()
        self._body.focus()

    def on_resize(self) -> None:
        self.leave_room(self._body, 1)
        self.call_after_refresh(self._show_plan)

    def _show_plan(self) -> None:
        width = self._body.text_width
        sections = proposal_sections(self._proposal, self._shell, width)
        if self._above is not None:
            sections.insert(0, Section("The run", tuple(self._above(width))))
        self._body.show(sections)

    def on_key(self, event: events.Key) -> None:
        """The only way to yes."""
        if self._clock() - self._shown_at < GUARD_S:
            return
        if self._plain:
            if event.key in ("y", "Y"):
                event.stop()
                self.dismiss(True)
            return
        if self._digest.take(event):
            if self._digest.done:
                self.dismiss(True)
            self._ask()

    def _ask(self) -> None:
        if self._plain:
            yes = f"yes, {self._deed}" if self.alone else "put it to the vote, nothing else"
            self._question.show([*NO, part(" y ", "key"), part(yes, "off")])
        else:
            self._question.show([*NO, *self._digest.question(self._deed)])


def one_key(proposal: Proposal) -> bool:
    """Whether `y` is a yes: not where the tier or the policy asks for the digest."""
    return proposal.typed == "key" and proposal.tier in ("T0", "T1")


def by_author_alone(proposal: Proposal) -> bool:
    """Whether the votes of others are not needed."""
    return not proposal.needs or (proposal.self_approvable and proposal.needs == 1)


def others_needed(proposal: Proposal) -> str:
    """As in "needs 1 vote of another than you: approver, neither its author nor who asked for it"."""
    votes = "1 vote" if proposal.needs == 1 else f"{proposal.needs} votes"
    return f"needs {votes} of others than you: {printable(proposal.need)}"


def proposal_sections(proposal: Proposal, shell: str, width: int) -> list[Section]:
    """Everything a person is to see before saying yes, from the typed plan."""
    steps = [
        line
        for number, step in enumerate(proposal.steps, 1)
        for line in hanging(f"{number:>4}  ", printable(step), width)
    ]
    for note in (step.act.note for step in proposal.plan.steps if step.act.note is not None):
        steps += framed(note.text, width - 6, "      ")
    count = len({target for step in proposal.plan.steps for target in step.act.targets})
    tier = Line(((f"{proposal.tier}    ", "warn"), (TIERS[proposal.tier], "")))
    state = f"  simulated on state v{proposal.version:,}"
    plan = Line((("plan  ", "dim"), (printable(proposal.digest)[:16], ""), (state, "dim")))
    vote = [] if by_author_alone(proposal) else hanging("vote  ", others_needed(proposal), width, "dim", "warn")
    why = [line for why in proposal.why_tier for line in hanging("      ", printable(why), width, "", "dim")]
    sections = [
        Section(printable(proposal.title), (*vote, tier, *why, plan)),
        Section("What is done", tuple(steps), f"{count:,} target{'s' if count != 1 else ''}"),
    ]
    if proposal.effects:
        sections.append(Section("Before and after", tuple(effect_lines(proposal.effects, width)), "simulated"))
    back = [text_line(line) for line in wrap(printable(proposal.inverse), width)]
    sections.append(Section("To take it back", tuple(back)))
    if shell:
        sections.append(
            Section("The same from the shell", tuple(text_line(line, "dim") for line in wrap(shell, width)[:6]))
        )
    return sections


class HelpDialog(Dialog):
    """Every action of the registry: keys, `:` command, and why it is not possible here."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark", "leave", show=False)]

    def __init__(self, available: Sequence[Action], context: Context) -> None:
        super().__init__()
        self._rows = available
        self._where = context
        self._body = SectionsView()

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body

    def on_mount(self) -> None:
        self._body.focus()

    def on_resize(self) -> None:
        self.call_after_refresh(lambda: self._body.show(help_sections(self._rows, self._where)))


MOVING = (
    ("j k ↓ ↑", "one line"),
    ("^d ^u pgdn pgup", "half a page, a page"),
    ("g G home end", "first, last"),
    ("← →", "columns to the side"),
    ("space", "mark, for an action on several"),
    ("tab", "next column of a page"),
)


def help_sections(available: Sequence[Action], context: Context) -> list[Section]:
    """The registry as help: what can be done here first."""
    here = [action for action in available if context.screen in action.screens and action.keys]
    away = [action for action in available if context.screen not in action.screens and action.keys]
    sections = [
        Section("Here", tuple(_help_line(action, action.disabled_reason(context)) for action in here), context.screen)
    ]
    sections.append(Section("Moving", tuple(Line(((fit(keys, 18), "accent"), (what, ""))) for keys, what in MOVING)))
    if away:
        sections.append(
            Section("On other pages", tuple(_help_line(action, ", ".join(action.screens)) for action in away))
        )
    commands = tuple(
        Line(
            (
                (fit(":" + " :".join(action.commands), 18), "accent"),
                (fit(action.title, 22), ""),
                (_argument(action), "dim"),
            )
        )
        for action in available
        if action.commands
    )
    sections.append(Section("Commands", commands))
    sections.append(Section("Filters", tuple(Line(((fit(text, 34), "accent"), (what, ""))) for text, what in FILTERS)))
    return sections


FILTERS = (
    ("state:queued,held", "is one of"),
    ("queue:research/*  name~llama", "like, contains"),
    ("gpu>=8 wait>2h memory>64g use<50%", "quantities with units"),
    ("!tenant:acme", "not"),
    ("llama", "id or name contains"),
    ("sort:-wait", "order, - for descending"),
)


def _help_line(action: Action, reason: str) -> Line:
    keys = " ".join(key_label(key) for key in action.keys)
    title = f"{action.title} ({action.tier}, asks first)" if action.mutates else action.title
    return Line(((fit(keys, 12), "accent"), (fit(title, 28), "dim" if reason else ""), (reason, "dim")))


def _argument(action: Action) -> str:
    words = {
        "": "",
        "filter": "[filter]",
        "id": "ID",
        "ids": "[ID …]",
        "flags": "as in the shell",
        "column": "[-]column",
        "edit": "[EDIT]",
        "words": "[words]",
    }
    return words[action.argument]


class SortDialog(Dialog):
    """One line per column; Enter sorts by it."""

    DEFAULT_CSS = """
    SortDialog > Vertical { max-width: 60; }
    """

    def __init__(self, columns: Sequence[Column], sorted_by: tuple[str, bool], chosen: Callable[[str], object]) -> None:
        super().__init__()
        self._columns = columns
        self._sorted_by = sorted_by
        self._chosen = chosen
        self._body = SectionsView()

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body

    def on_mount(self) -> None:
        self._body.focus()
        name, down = self._sorted_by
        lines = tuple(
            Line(
                (
                    (("↓ " if down else "↑ ") if column.name == name else "  ", "accent"),
                    (fit(column.name, 16), ""),
                    (column.help, "dim"),
                ),
                column.name,
            )
            for column in self._columns
        )
        self._body.show([Section("Sort by", lines, "again turns it")])

    @on(SectionsView.LinkChosen)
    def _pick(self, event: SectionsView.LinkChosen) -> None:
        event.stop()
        self._chosen(event.link)
        self.dismiss(True)


class PromptInput(Input):
    """An input of one line that hides nothing, whatever is typed, pasted or put there by completion."""

    def validate_value(self, value: str) -> str:
        return visible(value)

    def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.insert_text_at_cursor(cut(visible(event.text.strip()), 500))


class PromptBar(Vertical):
    """The `/` or `:` bar: an input, and below it either what Tab would give or what is wrong and where."""

    DEFAULT_CSS = """
    PromptBar { height: 2; dock: bottom; background: $panel; layout: vertical; }
    PromptBar > Horizontal { height: 1; }
    PromptBar Input { border: none; height: 1; padding: 0; background: $panel; width: 1fr; }
    PromptBar Input:focus { border: none; background: $panel; background-tint: $panel 0%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", show=False, priority=True),
        Binding("tab", "complete", show=False, priority=True),
        Binding("up", "recall(-1)", show=False, priority=True),
        Binding("down", "recall(1)", show=False, priority=True),
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

    class Cancelled(Message):
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
        self.sign = sign
        self._candidates = candidates
        self._history = [*history, text]
        self._recalled = len(history)
        self._sign = OneLine("key")
        self._hint = OneLine("top")
        self._input = PromptInput(text, select_on_focus=False)
        self._offers: list[str] = []
        self._offered = -1
        self._expected = text

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield self._sign
            yield self._input
        yield self._hint

    def on_mount(self) -> None:
        self._input.cursor_blink = False
        self._sign.styles.width = 3
        self._sign.show([part(f" {self.sign} ", "key")])
        self.screen.set_focus(self._input)
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
        elif key.key == "escape":
            self.action_cancel()

    def point_at(self, error: SpecError) -> None:
        """Say what is wrong, below where it is wrong."""
        start, end = (error.start, error.end) if isinstance(error, FilterError) else (0, 0)
        text = printable(error.short if isinstance(error, FilterError) else error.problem)
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
        self._offered = -1
        self._show_offers()

    def _show_offers(self) -> None:
        parts = [part("tab ", "off")] if self._offers else []
        for index, offer in enumerate(self._offers[:24]):
            parts.append(part(f" {printable(offer)} ", "key" if index == self._offered else "off"))
        self._hint.show([part("   ", "off"), *parts])

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        if event.value == self._expected and self._offered >= 0:
            self._show_offers()
        else:
            self._offer()
        self.post_message(self.Edited(event.value))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Accepted(event.value))

    def action_cancel(self) -> None:
        self.post_message(self.Cancelled())

    def action_complete(self) -> None:
        """Put the next candidate in place of the word under the cursor."""
        if not self._offers:
            return
        text, cursor = self._input.value, self._input.cursor_position
        token = token_at(text, cursor)
        self._offered = (self._offered + 1) % len(self._offers)
        offer = self._offers[self._offered]
        self._expected = text[: token.start] + offer + text[token.end :]
        self._input.value = self._expected
        self._input.cursor_position = token.start + len(offer)

    def action_recall(self, step: int) -> None:
        """Earlier and later lines of this session."""
        self._recalled = max(0, min(len(self._history) - 1, self._recalled + step))
        self._input.value = self._history[self._recalled]
        self._input.cursor_position = len(self._input.value)
