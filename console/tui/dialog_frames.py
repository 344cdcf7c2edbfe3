"""Frames of the dialogs that lie over a page: menu, choice, overwrite, help and command palette.

Menus and choices have one line per entry; Enter takes the entry under the cursor. Help and the palette are made from
the registry of actions. The palette lists impossible actions too, each with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from rich.cells import cell_len
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.containers import Vertical
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Input

from console.actions.registry import SCREENS, ConsoleAction, Context, Jumps, key_label
from console.text.terminal_text import fit, printable, wrap
from console.tui.widgets.drawing import OneLine, OverPage, part
from console.tui.widgets.frame import where_spans
from console.tui.widgets.pane import SectionsView
from console.tui.widgets.prompt_bar import PromptInput
from console.views.sections import Line, Section, text_line

if TYPE_CHECKING:
    from console.tui.app import MusterApp


GUARD_S = 0.4
"""Keys typed before a dialog could be read do not count as an answer."""


class Dialog(ModalScreen[bool], OverPage[bool]):
    """A framed page over the page."""

    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog > Vertical { width: 90%; max-width: 100; height: auto; max-height: 92%; background: $background;
        border: round $border; padding: 0 1; }
    Dialog.-narrow > Vertical { width: 100%; max-height: 96%; }
    Dialog SectionsView { height: auto; max-height: 100%; }
    Dialog > #outage { dock: bottom; }
    Dialog > #where { dock: top; }
    """
    ACTS: ClassVar[bool] = True
    """A yes in it leads to a change."""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,backspace,q", "leave", show=False)]
    _outage: OneLine | None = None

    def on_mount(self) -> None:
        """Over a change, say in which environment it would be made: the header is dimmed."""
        app = cast("MusterApp", self.app)
        where = where_spans(app.environment) if self.ACTS else []
        if where:
            line = OneLine("top", id="where")
            self.mount(line)
            cell = app.link.health.cell if app.link.health is not None else app.title
            line.show([*(part(text, tone) for text, tone in where), part(f" cell {cell}", "strong")])

    def action_leave(self) -> None:
        self.dismiss(False)

    def tell_outage(self, text: str) -> None:
        """Say over whatever is asked that the engine is away; empty when it is back."""
        if self._outage is None and text and self.is_attached:
            self._outage = OneLine("alarm", id="outage")
            self.mount(self._outage)
        if self._outage is not None:
            self._outage.display = bool(text)
            self._outage.show([part(text, "alarm")])

    def refuses(self, event: Key) -> bool:
        """True for a key that would confirm while there is nobody to carry it out. Reading, writing and leaving go
        on."""
        if not self.ACTS or self._outage is None or not self._outage.display:
            return False
        if isinstance(self.focused, Input):
            return event.key == "enter"
        return event.key in ("y", "Y") or (event.character or " ") in "0123456789abcdef"

    def leave_room(self, body: SectionsView, lines: int) -> None:
        """Have the body scroll before it pushes what is asked below it, so many lines, out of the frame."""
        body.styles.max_height = max(1, self.size.height * 92 // 100 - 2 - lines)


class MenuDialog(Dialog):
    """A menu. Its entries only look, or ask again before they act."""

    ACTS = False

    def __init__(self, title: str, keys: str) -> None:
        """`keys`: what they do here, in a few words."""
        super().__init__()
        self._title = title
        self._keys = keys
        self._body = SectionsView()

    def lines(self) -> Sequence[Line]:
        """The entries, each with a link."""
        raise NotImplementedError

    def take(self, link: str) -> None:
        """A person has chosen the line with this link."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body

    def on_mount(self) -> None:
        self.on_resize()
        self._body.focus()

    def on_resize(self) -> None:
        self.leave_room(self._body, 0)
        self._show()

    def _show(self) -> None:
        self._body.show([Section(self._title, tuple(self.lines()), self._keys)])

    @on(SectionsView.LinkChosen)
    def _link_chosen(self, event: SectionsView.LinkChosen) -> None:
        event.stop()
        self.choose(event.link)

    def choose(self, link: str) -> None:
        """Take it, and leave."""
        self.dismiss(True)
        self.take(link)


class ChoiceDialog(MenuDialog):
    DEFAULT_CSS = """
    ChoiceDialog > Vertical { max-width: 80; }
    """

    def __init__(self, title: str, rows: Sequence[tuple[str, str, str]], chosen: Callable[[str], object]) -> None:
        """`rows`: what is given to `chosen`, what it is, and more of it."""
        super().__init__(title, "↵ chooses one")
        self._rows = rows
        self._chosen = chosen

    def lines(self) -> Sequence[Line]:
        return [
            Line(((fit(printable(what), 30), ""), ("  ", ""), (printable(more), "dim")), link)
            for link, what, more in self._rows
        ]

    def take(self, link: str) -> None:
        self._chosen(link)


class OverwriteDialog(Dialog):
    """The default is No: Enter and Esc leave the file as it is."""

    DEFAULT_CSS = """
    OverwriteDialog > Vertical { max-width: 76; }
    """
    ACTS = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n,N,enter", "leave", show=False, priority=True),
        Binding("y,Y", "accept", show=False, priority=True),
    ]

    def __init__(self, path: str, told: str, accepted: Callable[[], object]) -> None:
        """`told`: what is known of the file, such as its size and age."""
        super().__init__()
        self._path = path
        self._told = told
        self._accepted = accepted
        self._body = SectionsView()
        self._question = OneLine("top")

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body
            yield self._question

    def on_mount(self) -> None:
        self._body.focus()
        self._question.show(
            [part(" n ", "key"), part("no, cancel ", "strong"), part(" y ", "key"), part("yes, replace it", "off")]
        )

    def on_resize(self) -> None:
        self.leave_room(self._body, 1)
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        lines = [*wrap(printable(self._path), self._body.text_width), printable(self._told)]
        self._body.show([Section("This file already exists", tuple(text_line(line) for line in lines))])

    def action_accept(self) -> None:
        self.dismiss(True)
        self._accepted()


KEYS, TITLE, COMMAND, GRID = 14, 26, 22, 31
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

    def __init__(self, available: Sequence[ConsoleAction], context: Context) -> None:
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
    ("← →", "scroll columns"),
    ("space", "mark several for one action"),
    ("tab", "next column; in a bar: complete"),
    ("↑ ^r in a bar", "earlier lines that contain the text"),
)

FILTERS = (
    ("state:queued,held", "is one of"),
    ("queue:research/*  name~llama", "like, contains"),
    ("gpu>=8 wait>2h memory>64g use<50%", "quantities with units"),
    ("!tenant:acme", "not"),
    ("llama", "id or name contains"),
    ("sort:-wait", "sort order, - for descending"),
)


def help_sections(available: Sequence[ConsoleAction], context: Context, width: int = 96) -> list[Section]:
    """The registry as help: what can be done here first."""
    here = [action for action in available if context.screen in action.screens and action.keys]
    pages = [action for action in here if action.jump]
    acts = [action for action in here if action.mutates or action.changes]
    rest = [action for action in here if action not in pages and action not in acts]
    away = [action for action in available if context.screen not in action.screens and action.keys]
    groups = (
        ("Here", [action for action in rest if not _general(action)], context.screen),
        ("Changes the cluster", acts, "each asks for confirmation"),
    )
    sections = [Section(title, _lines(rows, context, width), note) for title, rows, note in groups if rows]
    general = [(" ".join(map(key_label, each.keys)), each.title) for each in rest if _general(each)]
    sections.append(Section("On every page", _grid(general, 11, width)))
    sections.append(Section("Go to", _jump_lines(available, pages, width)))
    sections.append(Section("Moving", _two_columns(MOVING, 18)))
    if away:
        sections.append(Section("On other pages", _lines(away, context, width)))
    sections.append(Section("Commands", tuple(line for action in available for line in _command(action))))
    sections.append(Section("Filters", _two_columns(FILTERS, 36)))
    return sections


def found(sections: Sequence[Section], words: str) -> list[Section]:
    """Lines that contain every word, under their headings."""
    wanted = words.lower().split()
    if not wanted:
        return list(sections)
    kept = [section._replace(lines=tuple(_matching(section.lines, wanted))) for section in sections]
    return [section for section in kept if section.lines] or [
        Section("Nothing", (text_line(f"no key or command matches '{printable(words)}'", "warn"),))
    ]


def _matching(lines: Sequence[Line], wanted: Sequence[str]) -> Iterator[Line]:
    """With each the lines that go on from it."""
    matches = False
    for line in lines:
        matches = _has(line, wanted) or (matches and line.spans[0][0].startswith("   "))
        if matches:
            yield line


def _has(line: Line, wanted: Sequence[str]) -> bool:
    text = "".join(text for text, _ in line.spans).lower()
    return all(word in text for word in wanted)


def _lines(rows: Sequence[ConsoleAction], context: Context, width: int) -> tuple[Line, ...]:
    """What is possible first; what is not says why."""
    told = [(action, action.disabled_reason(context)) for action in rows]
    ordered = sorted(told, key=lambda each: bool(each[1]))
    return tuple(line for action, reason in ordered for line in _help_line(action, reason, width))


def _help_line(action: ConsoleAction, reason: str, width: int) -> list[Line]:
    """Keys, title, and the command that does the same; or why it is not possible, on lines of its own where it is
    long."""
    keys = " ".join(key_label(key) for key in action.keys)
    title = f"{action.title} ({action.tier})" if action.mutates else action.title
    wide = width >= KEYS + TITLE + COMMAND
    first = fit(keys, KEYS if wide else max(6, cell_len(keys) + 1))
    spans = ((first, "accent"), (fit(title, TITLE) if wide else title, "dim" if reason else ""))
    if not reason:
        command = f"  :{action.commands[0]}" if wide and action.commands else ""
        return [Line((*spans, (command, "dim")))]
    indent = KEYS + TITLE + 2 if wide else 6
    why = [Line(((" " * indent + more, "dim"),)) for more in wrap(printable(reason), max(12, width - indent))]
    if wide:
        beside, *why = why
        return [Line((*spans, ("  " + beside.spans[0][0].strip(), "dim"))), *why]
    return [Line(spans), *why]


def _jump_lines(available: Sequence[ConsoleAction], pages: Sequence[ConsoleAction], width: int) -> tuple[Line, ...]:
    """Each page with the keys behind `g` and the others that lead there, as many beside each other as there is room
    for."""
    digits = {action.id: " ".join(key_label(key) for key in action.keys) for action in pages}
    cells = [
        (f"g {key}  {digits.get(action.id, '')}", action.title)
        for key, action in sorted(Jumps(available).pages.items())
    ]
    return _grid([*cells, ("g u", "Previous page")], 9, width)


def _general(action: ConsoleAction) -> bool:
    """Of most pages, so that none is known by it."""
    return 2 * len(action.screens) > len(SCREENS)


def _grid(cells: Sequence[tuple[str, str]], first: int, width: int) -> tuple[Line, ...]:
    """Keys and titles, column by column, in as many as there is room for."""
    rows = -(-len(cells) // max(1, width // GRID))
    return tuple(
        Line(tuple(span for keys, title in cells[row::rows]
                   for span in ((fit(keys, first), "accent"), (fit(title, GRID - first), ""))))
        for row in range(rows)
    )  # fmt: skip


def _command(action: ConsoleAction) -> list[Line]:
    if not action.commands:
        return []
    names = ":" + " :".join(action.commands)
    told = ((fit(action.title, TITLE), ""), (_argument(action), "dim"))
    if len(names) < COMMAND:
        return [Line(((fit(names, COMMAND), "accent"), *told))]
    return [Line(((names, "accent"),)), Line(((" " * COMMAND, ""), *told))]


def _two_columns(rows: Sequence[tuple[str, str]], first: int) -> tuple[Line, ...]:
    return tuple(Line(((fit(left, first), "accent"), (right, ""))) for left, right in rows)


def _argument(action: ConsoleAction) -> str:
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


_NOT_OFFERED = ("palette", "open", "mark")


class ActionProvider(Provider):
    """Titles of actions, found by any of their letters."""

    @property
    def _rows(self) -> list[tuple[ConsoleAction, str]]:
        app = cast("MusterApp", self.app)
        return [
            (action, _hint(action, app.why_not(action))) for action in app.registry if action.id not in _NOT_OFFERED
        ]

    def _run(self, action: ConsoleAction) -> None:
        cast("MusterApp", self.app).action_act(action.id)

    async def discover(self) -> Hits:
        for action, hint in self._rows:
            yield DiscoveryHit(_shown(action.title, hint), partial(self._later, action), action.title)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action, hint in self._rows:
            score = matcher.match(action.title)
            if score > 0:
                yield Hit(score, _shown(action.title, hint), partial(self._later, action), action.title)

    def _later(self, action: ConsoleAction) -> None:
        """When the palette is gone: an action acts on the page beneath."""
        self.app.call_after_refresh(self._run, action)


def _shown(title: str, hint: str) -> Text:
    """Two lines. As plain strings the palette would read markup in them."""
    shown = Text(printable(title))
    return shown.append("\n" + printable(hint), "dim") if hint else shown


def _hint(action: ConsoleAction, reason: str) -> str:
    if reason:
        return f"not now: {reason}"
    keys = " ".join(key_label(key) for key in action.keys)
    commands = " ".join(":" + command for command in action.commands)
    return "  ".join(part for part in (keys, commands, "asks before it acts" if action.mutates else "") if part)
