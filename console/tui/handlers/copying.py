"""`y`: copy what is in view, through the terminal's own clipboard (OSC 52), and what is too much for that into a file.

Whatever is copied does nothing to a terminal that it is pasted into: see `console.text.data_sheets.pasteable`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import events
from textual.binding import Binding, BindingType

from console.client.change_feed import in_thread
from console.text.data_sheets import csv_text, json_text, pasteable, tsv_text
from console.text.terminal_text import cut, fit, printable
from console.tui.dialogs.menu import MenuDialog
from console.tui.handlers.page_data import PageData, PageRows, page_data, row_part
from console.tui.widgets.detail_pane import DetailPane
from console.tui.widgets.list_pane import ListPane
from console.tui.widgets.pane import Pane
from console.tui.widgets.table_pane import TablePane
from console.views.lists import KEY_COLUMN
from console.views.sections import Line
from engine.model.errors import MusterError, RefusedError

if TYPE_CHECKING:
    from console.tui.app import MusterApp

MAX_BYTES = 74_000
"""Of one copy: terminals take 100,000 characters of base64. What is longer goes into a file."""
MAX_ROWS = 1_000
"""Copied of a list at most; `:export` has no such end."""
TMUX_S = 2.0


class CopyChoice(NamedTuple):
    """One line of the menu."""

    key: str
    title: str
    sample: str
    """What it would copy, or how much."""
    text: Callable[[], Awaitable[str | None]]
    """None: it has opened another menu."""


class CopyDialog(MenuDialog):
    """What can be copied here. A letter or Enter copies; `y` again copies the first."""

    DEFAULT_CSS = """
    CopyDialog > Vertical { max-width: 86; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("y", "first", show=False, priority=True)]

    def __init__(self, title: str, choices: Sequence[CopyChoice], chosen: Callable[[CopyChoice], object]) -> None:
        super().__init__(title, "↵ or the letter")
        self._choices = choices
        self._chosen = chosen

    def lines(self) -> Sequence[Line]:
        room = max(8, self._body.text_width - 28)
        return [
            Line(
                (
                    (f" {choice.key} ", "accent"),
                    (fit(printable(choice.title), 24), ""),
                    (cut(printable(choice.sample), room), "dim"),
                ),
                str(number),
            )
            for number, choice in enumerate(self._choices)
        ]

    def take(self, link: str) -> None:
        self._chosen(self._choices[int(link)])

    def action_first(self) -> None:
        if self._choices:
            self.choose("0")

    def on_key(self, event: events.Key) -> None:
        for number, choice in enumerate(self._choices):
            if event.character == choice.key:
                event.stop()
                self.choose(str(number))
                return


def copy(app: MusterApp, _argument: str) -> None:
    """The menu of what can be copied on this page."""
    pane = app.navigator.current
    if pane is not None:
        app.push_screen(CopyDialog("Copy", _choices(app, pane), partial(_take, app)))


def _take(app: MusterApp, choice: CopyChoice) -> None:
    async def do() -> None:
        try:
            text = await choice.text()
            if text is not None:
                await put(app, text)
        except MusterError as error:
            app.report(error)

    app.run_worker(do(), exclusive=True, group="copy")


async def put(app: MusterApp, text: str) -> None:
    """Into the clipboard, or into a file where it is too much. Raises RefusedError where neither can be."""
    size = len(text.encode())
    if size > MAX_BYTES:
        path = await in_thread(partial(keep, text))
        app.say(f"{size:,} bytes are too many for the clipboard: they are in {path}")
        return
    app.copy_to_clipboard(pasteable(text))
    lines = text.count("\n") + 1
    app.say(f"copied {text}" if lines == 1 and len(text) <= 200 else f"copied {lines:,} lines, {size:,} bytes")
    if os.environ.get("TMUX"):
        await in_thread(partial(to_tmux, pasteable(text)))


def keep(text: str) -> Path:
    """In a file of its own that nobody else reads. Raises RefusedError."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "muster" / "copied"
    path = folder / time.strftime("%Y%m%d-%H%M%S.txt")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(pasteable(text) + "\n")
    except OSError as error:
        raise RefusedError(f"too much for the clipboard, and {path} cannot be written ({error.strerror})") from None
    return path


def to_tmux(text: str) -> None:
    """tmux takes what programs put into the clipboard only where it is told to; its own buffer it fills for anybody,
    and hands on to the terminal."""
    tmux = shutil.which("tmux")
    if tmux is not None:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([tmux, "load-buffer", "-w", "-"], input=text.encode(), timeout=TMUX_S, capture_output=True)


# --- what there is to copy


def _choices(app: MusterApp, pane: Pane) -> list[CopyChoice]:
    found = [_fixed("y", "id" if " " not in pane.copyable else "ids", pane.copyable)] if pane.copyable else []
    if isinstance(pane, TablePane):
        found += _of_table(app, pane)
    if isinstance(pane, DetailPane) and pane.detail is not None:
        lines = pane.text_lines()
        found.append(_fixed("p", "the page as text", "\n".join(lines), f"{len(lines):,} lines"))
    command = shell_command(app, pane)
    if command:
        found.append(_fixed("s", "the shell command", command))
    found.append(_fixed("l", "the : line of the page", pane.line))
    return found


def _fixed(key: str, title: str, text: str, sample: str = "") -> CopyChoice:
    async def ready() -> str:
        return pasteable(text)

    return CopyChoice(key, title, sample or text, ready)


def _of_table(app: MusterApp, pane: TablePane) -> list[CopyChoice]:
    row = pane.table.cursor_row
    data = page_data(pane) if pane.table.fetch is not None else None
    if row is None or data is None:
        return []
    one = partial(in_thread, partial(row_part, data, row, pane.table.cursor))
    every = min(MAX_ROWS, pane.table.matched)
    how_many = f"{every:,} rows" if every == pane.table.matched else f"the first {every:,} of {pane.table.matched:,}"

    async def tsv_row() -> str:
        return tsv_text((await one()).cells)

    async def rows(form: Callable[[PageData, PageRows], str]) -> str:
        return form(data, await in_thread(partial(data.read, 0, every)))

    async def cells() -> None:
        """Ask which one: the menu of cells copies by itself."""
        part = await one()
        named = zip(data.titles, part.cells[0], strict=True)
        keys = "abcdefghijklmnopqrstuvwxz0123456789"
        offers = [
            _fixed(keys[number] if number < len(keys) else "", name, text, text or "–")
            for number, (name, text) in enumerate(named)
        ]
        app.push_screen(CopyDialog("Copy a cell", offers, partial(_take, app)))

    return [
        CopyChoice("c", "a cell …", "choose the column", cells),
        CopyChoice("r", "the row", "with tabs between its cells", tsv_row),
        CopyChoice("t", "all rows, with tabs", how_many, partial(rows, _tsv)),
        CopyChoice("v", "all rows as CSV", how_many, partial(rows, _csv)),
        CopyChoice("j", "all rows as JSON", how_many, partial(rows, _json)),
    ]


def _tsv(data: PageData, part: PageRows) -> str:
    return tsv_text([list(data.titles), *part.cells])


def _csv(data: PageData, part: PageRows) -> str:
    return csv_text([data.titles, *part.cells]).rstrip("\n")


def _json(_data: PageData, part: PageRows) -> str:
    return "[\n" + ",\n".join(map(json_text, part.items)) + "\n]"


def shell_command(app: MusterApp, pane: Pane) -> str:
    """What does the same as this page from the shell; empty where nothing does."""
    engine = engine_flags(app.title)
    if isinstance(pane, ListPane):
        view = pane.view
        words = ["muster", "get", view.kind]
        words += ["-f", view.filter_text] if view.filter_text else []
        words += ["--sort", ",".join(view.sort)] if view.sort else []
        names = [name for name in view.asked if name in {column.name for column in view.columns}]
        words += ["--columns", ",".join(names)] if view.chosen and KEY_COLUMN[view.kind] in names else []
        return shlex.join([*words, "--limit", "0", *engine])
    action = app.actions.get(pane.NAME)
    if action is None or not action.shell:
        return ""
    known = {"ID": pane.copyable, "DRAFT": pane.copyable, "id:ID": f"id:{pane.copyable}"}
    words = [known.get(word, word) for word in action.shell.split()]
    return "" if any(word.isupper() and word != pane.copyable for word in words) else shlex.join([*words, *engine])


def engine_flags(title: str) -> list[str]:
    """Which engine the console is of, for a command that shall reach the same. `title` is its URL, or its cell."""
    if "://" in title:
        return ["--connect", title]
    return [] if title == "muster" else ["--cell", title]
