"""The keys of the screen beneath, then everything else; made from the registry, searched with `/`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from console.actions.action_types import Action, Context
from console.actions.key_jumps import Jumps
from console.actions.registry import key_label
from console.text.terminal_text import fit, printable, wrap
from console.tui.dialogs.base import Dialog
from console.tui.widgets.one_line import OneLine, part
from console.tui.widgets.prompt_bar import PromptInput
from console.tui.widgets.sections_view import SectionsView
from console.views.sections import Line, Section, text_line

KEYS, TITLE, COMMAND = 14, 26, 22
"""Cells of the columns."""


class HelpDialog(Dialog):
    """Every action of the registry: keys, `:` command, and why it is not possible here."""

    DEFAULT_CSS = """
    HelpDialog Input { border: none; height: 1; padding: 0 1; background: $panel; display: none; }
    HelpDialog Input.-open { display: block; }
    HelpDialog Input:focus { border: none; background: $panel; background-tint: $panel 0%; }
    """
    ACTS = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "leave", show=False),
        Binding("slash", "search", show=False),
        Binding("escape", "leave", show=False, priority=True),
    ]

    def __init__(self, available: Sequence[Action], context: Context) -> None:
        super().__init__()
        self._rows = available
        self._where = context
        self._body = SectionsView()
        self._search = PromptInput(select_on_focus=False, max_length=60)
        self._foot = OneLine("top")

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body
            yield self._search
            yield self._foot

    def on_mount(self) -> None:
        self._search.cursor_blink = False
        self._foot.show(
            [part(" / ", "key"), part("search ", "off"), part(" ↓ ↑ pgdn ", "key"), part("read ", "off"),
             part(" esc ", "key"), part("back", "off")]
        )  # fmt: skip
        self._body.focus()

    def on_resize(self) -> None:
        self.leave_room(self._body, 2)
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        sections = help_sections(self._rows, self._where, self._body.text_width)
        self._body.show(found(sections, self._search.value))

    def action_search(self) -> None:
        self._search.add_class("-open")
        self._search.focus()

    def action_leave(self) -> None:
        """First out of the search."""
        if self._search.has_class("-open"):
            self._search.value = ""
            self._search.remove_class("-open")
            self._body.focus()
        else:
            super().action_leave()

    @on(Input.Changed)
    def _edited(self, event: Input.Changed) -> None:
        event.stop()
        self._draw()
        self._body.scroll_to(y=0, animate=False)

    @on(Input.Submitted)
    def _settled(self, event: Input.Submitted) -> None:
        """What was found is read like the rest."""
        event.stop()
        self._body.focus()


MOVING = (
    ("j k ↓ ↑", "one line"),
    ("^d ^u pgdn pgup", "half a page, a page"),
    ("gg G home end", "first, last"),
    ("← →", "columns to the side"),
    ("space", "mark, for an action on several"),
    ("tab", "next column of a page; in a bar: complete"),
    ("↑ ^r in a bar", "earlier lines with what is typed in them"),
)

FILTERS = (
    ("state:queued,held", "is one of"),
    ("queue:research/*  name~llama", "like, contains"),
    ("gpu>=8 wait>2h memory>64g use<50%", "quantities with units"),
    ("!tenant:acme", "not"),
    ("llama", "id or name contains"),
    ("sort:-wait", "order, - for descending"),
)


def help_sections(available: Sequence[Action], context: Context, width: int = 96) -> list[Section]:
    """The registry as help: what can be done here first."""
    here = [action for action in available if context.screen in action.screens and action.keys]
    pages = [action for action in here if action.jump]
    looks = [action for action in here if not action.jump and not (action.mutates or action.changes)]
    acts = [action for action in here if action.mutates or action.changes]
    away = [action for action in available if context.screen not in action.screens and action.keys]
    sections = [Section("Here", _lines(looks, context, width), context.screen)]
    if acts:
        sections.append(Section("Acts on the cluster", _lines(acts, context, width), "each asks first"))
    sections.append(Section("Go to", _jump_lines(available, pages)))
    sections.append(Section("Moving", _two_columns(MOVING, 18)))
    if away:
        sections.append(Section("On other pages", _lines(away, context, width)))
    sections.append(Section("Commands", tuple(line for action in available for line in _command(action))))
    sections.append(Section("Filters", _two_columns(FILTERS, 36)))
    return sections


def found(sections: Sequence[Section], words: str) -> list[Section]:
    """Those lines in which every word occurs, under their headings."""
    wanted = words.lower().split()
    if not wanted:
        return list(sections)
    kept = [section._replace(lines=tuple(line for line in section.lines if _has(line, wanted))) for section in sections]
    return [section for section in kept if section.lines] or [
        Section("Nothing", (text_line(f"no key and no command has to do with '{printable(words)}'", "warn"),))
    ]


def _has(line: Line, wanted: Sequence[str]) -> bool:
    text = "".join(text for text, _ in line.spans).lower()
    return all(word in text for word in wanted)


def _lines(rows: Sequence[Action], context: Context, width: int) -> tuple[Line, ...]:
    """What is possible first; what is not says why."""
    told = [(action, action.disabled_reason(context)) for action in rows]
    ordered = sorted(told, key=lambda each: bool(each[1]))
    return tuple(line for action, reason in ordered for line in _help_line(action, reason, width))


def _help_line(action: Action, reason: str, width: int) -> list[Line]:
    keys = " ".join(key_label(key) for key in action.keys)
    title = f"{action.title} ({action.tier})" if action.mutates else action.title
    why = wrap(printable(reason), max(12, width - KEYS - TITLE - 2)) if reason else [""]
    first = Line(
        ((fit(keys, KEYS), "accent"), (fit(title, TITLE), "dim" if reason else ""), ("  ", ""), (why[0], "dim"))
    )
    return [first, *(Line(((" " * (KEYS + TITLE + 2), ""), (more, "dim"))) for more in why[1:])]


def _jump_lines(available: Sequence[Action], pages: Sequence[Action]) -> tuple[Line, ...]:
    """Each page with the digit and the keys behind `g` that lead there."""
    digits = {action.id: " ".join(key_label(key) for key in action.keys) for action in pages}
    jumps = Jumps(available)
    lines = [
        Line(((fit(f"g {key}", 6), "accent"), (fit(digits.get(action.id, ""), KEYS - 6), "accent"), (action.title, "")))
        for key, action in sorted(jumps.pages.items())
    ]
    return (*lines, Line(((fit("g u", KEYS), "accent"), ("The page before", ""))))


def _command(action: Action) -> list[Line]:
    if not action.commands:
        return []
    names = ":" + " :".join(action.commands)
    told = ((fit(action.title, TITLE), ""), (_argument(action), "dim"))
    if len(names) < COMMAND:
        return [Line(((fit(names, COMMAND), "accent"), *told))]
    return [Line(((names, "accent"),)), Line(((" " * COMMAND, ""), *told))]


def _two_columns(rows: Sequence[tuple[str, str]], first: int) -> tuple[Line, ...]:
    return tuple(Line(((fit(left, first), "accent"), (right, ""))) for left, right in rows)


def _argument(action: Action) -> str:
    words = {
        "": "",
        "filter": "[filter]",
        "id": "ID",
        "ids": "[ID …]",
        "flags": "as in the shell",
        "columns": "column,column …",
        "edit": "[EDIT]",
        "words": "[words]",
    }
    return words[action.argument]
