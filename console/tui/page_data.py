"""Data of a page: copied to the clipboard, exported as CSV or JSON, or written as a Markdown report.

`y` copies through the terminal's clipboard (OSC 52); longer data goes into a file. `o` and `:export` write all rows
that match, window by window, so that memory does not grow with their number. A file gets its name once it is whole,
is readable by its owner only, and replaces no other file unasked. Copied text cannot act on a terminal: see
`console.text.plain_tables.pasteable`.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from asyncio import CancelledError
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast
from urllib.parse import quote

from textual import events
from textual.binding import Binding, BindingType

from console.client.change_feed import in_thread
from console.forms.settings import WEB_ADDRESS
from console.text.plain_tables import csv_text, harmless, iso, json_text, pasteable, plain, title, tsv_text, unformed
from console.text.terminal_text import cut, duration, fit, printable, timestamp
from console.tui.dialog_frames import MenuDialog, OverwriteDialog
from console.tui.widgets.list_pane import ListPane, TablePane
from console.tui.widgets.pane import Connect, DetailPane, Pane
from console.tui.widgets.window_table import Fetch
from console.views.lists import KEY_COLUMN, SHARE, ListView, Row, share_of
from console.views.sections import Line
from engine.model.errors import MusterError, RefusedError, SpecError
from engine.model.list_queries import Column

if TYPE_CHECKING:
    from console.tui.app import MusterApp
    from console.tui.screens.draft import DraftPane
    from engine.model.list_queries import Page
    from runbooks.drafts.typed_draft import DraftRun, Sentence


STEP = 10_000
"""Rows asked for at a time: the engine gives no more in one answer."""


class PageRows(NamedTuple):
    """Rows of one answer."""

    ids: list[str]
    cells: list[list[str]]
    """For a spreadsheet."""
    items: list[dict[str, Any]]
    """The rows with the engine's own values, by name of column."""
    matched: int
    version: int
    at_ms: int


class PageData(NamedTuple):
    """Rows of a page as data: its columns, and rows by offset and limit. Reading blocks."""

    name: str
    titles: tuple[str, ...]
    read: Callable[[int, int], PageRows]


def page_data(pane: Pane | None) -> PageData:
    """Data of the page as it is now. Raises RefusedError where it lists nothing."""
    if isinstance(pane, ListPane):
        return list_data(pane.connect, pane.view.copy())
    if isinstance(pane, TablePane) and pane.table.fetch is not None:
        headings, fetch = pane.table.headings, pane.table.fetch
        names = tuple(heading.name for heading in headings)
        return PageData(pane.NAME, names, lambda offset, limit: _part_of_rows(fetch, names, offset, limit))
    raise RefusedError("this page has no list", "Go to a list first, such as :workloads")


def list_data(connect: Connect, view: ListView) -> PageData:
    columns = view.columns

    def read(offset: int, limit: int) -> PageRows:
        return _part_of_page(connect().query(view.query(offset, limit)), columns, KEY_COLUMN[view.kind])

    return PageData(view.kind, tuple(title(column) for column in columns), read)


def _part_of_page(page: Page, columns: Sequence[Column], key: str) -> PageRows:
    index = {name: at for at, name in enumerate(page.columns)}

    def value(column: Column, row: list[Any]) -> Any:
        return share_of(row, index) if column is SHARE else row[index[column.name]]

    rows = [[value(column, row) for column in columns] for row in page.rows]
    return PageRows(
        [str(row[index[key]]) for row in page.rows],
        [[plain(column, each) for column, each in zip(columns, row, strict=True)] for row in rows],
        [{column.name: each for column, each in zip(columns, row, strict=True)} for row in rows],
        page.matched,
        page.version,
        page.at_ms,
    )


def _part_of_rows(fetch: Fetch, names: Sequence[str], offset: int, limit: int) -> PageRows:
    """Data of a page whose rows the console makes: the text of its cells."""
    window = fetch(offset, limit)
    cells = [[harmless(text) for text, _ in row.cells] for row in window.rows]
    return PageRows(
        [row.id for row in window.rows],
        [[unformed(text) for text in row] for row in cells],
        [dict(zip(names, row, strict=True)) for row in cells],
        window.matched,
        window.version,
        window.at_ms,
    )


def row_part(data: PageData, row: Row, index: int) -> PageRows:
    """The row under the cursor as data, wherever it has moved to meanwhile. Blocks. Raises RefusedError where it is not
    listed any more."""
    first = max(0, index - 100)
    part = data.read(first, 201)
    if row.id not in part.ids:
        raise RefusedError(f"{row.id} is no longer listed", "Choose another")
    at = part.ids.index(row.id)
    return part._replace(ids=[row.id], cells=[part.cells[at]], items=[part.items[at]])


MAX_BYTES = 74_000
"""Largest copy: terminals take 100,000 characters of base64. Longer data goes into a file."""
MAX_ROWS = 1_000
"""Copied of a list at most; `:export` has no such end."""
TMUX_S = 2.0


class CopyChoice(NamedTuple):
    """An entry of the copy menu."""

    key: str
    title: str
    sample: str
    """The text that would be copied, or its size."""
    text: Callable[[], Awaitable[str | None]]
    """None: it has opened another menu."""


class CopyDialog(MenuDialog):
    """The copy menu. A letter or Enter copies; `y` again copies the first entry."""

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
        app.say(f"{size:,} bytes are too large for the clipboard: saved to {path}")
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
        raise RefusedError(f"too large for the clipboard, and {path} cannot be written ({error.strerror})") from None
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
        found.append(_fixed("p", "page as text", "\n".join(lines), f"{len(lines):,} lines"))
    command = shell_command(app, pane)
    if command:
        found.append(_fixed("s", "shell command", command))
    found.append(_fixed("l", ": line of the page", pane.line))
    if address := os.environ.get(WEB_ADDRESS):
        found.append(_fixed("u", "address of the page", f"{address}?line={quote(pane.line)}"))
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
        CopyChoice("c", "cell …", "choose the column", cells),
        CopyChoice("r", "row", "cells separated by tabs", tsv_row),
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
    """The shell command that shows the same as this page; empty where there is none."""
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
    filtered = getattr(pane, "filter_text", "")
    if filtered and pane.NAME in ("proposals", "incidents", "runbooks"):
        words += ["-f", filtered]
    elif filtered and pane.NAME == "audit":
        words.append(filtered)
    return "" if any(word.isupper() and word != pane.copyable for word in words) else shlex.join([*words, *engine])


def engine_flags(title: str) -> list[str]:
    """Flags that make a shell command reach the same engine. `title` is its URL or its cell."""
    if "://" in title:
        return ["--connect", title]
    return [] if title == "muster" else ["--cell", title]


Form = Literal["csv", "json"]
OVERLAP = 500
"""Rows asked for again with the next window: what came or went meanwhile has moved the others by no more than so many,
or it is told."""
TELL_S = 0.2
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of a file system without hard links."""


def export(app: MusterApp, argument: str) -> None:
    """Export the page. Without an argument, begin the line that exports, with a name to change. Raises SpecError."""
    pane = app.navigator.current
    if not isinstance(pane, TablePane) or pane.table.fetch is None:
        raise SpecError("", "this page has no list", "Go to a list first, such as :workloads")
    if not argument:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        app.bars.open_command(f"export csv ~/muster-{pane.NAME}-{stamp}.csv")
        return
    form, path = read_argument(argument, pane.NAME)
    if pane.work is not None and pane.work.note:
        raise SpecError("", "an export is running", "Wait, or stop it with esc")
    begin = partial(_begin, app, pane, form, path)
    try:
        there = path.lstat()
    except OSError:
        begin(replace=False)
        return
    if not path.is_file():
        raise SpecError("", f"{path} is not a file", "Give another name")
    age = duration(max(0, round((time.time() - there.st_mtime) * 1000)))
    app.push_screen(OverwriteDialog(str(path), f"{there.st_size:,} bytes, {age} old", partial(begin, replace=True)))


def read_argument(argument: str, name: str) -> tuple[Form, Path]:
    """`csv`, `json PATH`, or a PATH that ends in one of them. Raises SpecError."""
    word, _, rest = argument.strip().partition(" ")
    form: Form
    if word in ("csv", "json"):
        form, rest = ("csv" if word == "csv" else "json"), rest.strip()
    elif argument.strip().endswith((".csv", ".json")):
        form, rest = ("csv" if argument.strip().endswith(".csv") else "json"), argument.strip()
    else:
        raise SpecError(
            "", f"'{printable(word)[:40]}' is not an export format", "Write :export csv PATH or :export json PATH"
        )
    rest = rest or f"~/muster-{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.{form}"
    if "\0" in rest:
        raise SpecError("", "a file name cannot contain these characters", "Give another name")
    return form, Path(os.path.abspath(os.path.expanduser(rest)))


def _begin(app: MusterApp, pane: TablePane, form: Form, path: Path, *, replace: bool) -> None:
    run = Export(page_data(pane), pane.line if isinstance(pane, ListPane) else pane.NAME, form, path, replace)
    pane.work = run
    timer = pane.set_interval(TELL_S, lambda: pane.post_message(TablePane.Changed()))

    async def do() -> None:
        try:
            app.say(await in_thread(run.write))
        except MusterError as error:
            app.report(error)
        except CancelledError:
            run.discard()
            raise
        finally:
            run.over = True
            timer.stop()
            if pane.is_attached:
                pane.post_message(TablePane.Changed())

    app.run_worker(do(), group="export")


class Overlap(NamedTuple):
    """Relation of a window to the rows already written."""

    begin: int
    """Index of its first row that is new."""
    sure: bool
    """True where no row is left out or comes twice."""


class Export:
    """An export on a thread of its own. `note` and `stop` may be called meanwhile."""

    def __init__(
        self,
        data: PageData,
        line: str,
        form: Form,
        path: Path,
        replace: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`line`: what is exported, as the `:` line that leads to it."""
        self._data = data
        self._line = line
        self._form = form
        self._path = path
        self._replace = replace
        self._clock = clock
        self._began = clock()
        self._part = path.with_name(f".{path.name}.{os.getpid()}-{time.monotonic_ns() % 10**6}.part")
        self._stopped = False
        self.over = False
        self.written = 0
        self.matched = -1
        self.versions: tuple[int, int] = (0, 0)
        self._gaps = 0
        self._last: deque[str] = deque(maxlen=OVERLAP)

    @property
    def note(self) -> str:
        """ "exporting 120,000 of 1,000,000, 12%, 8s left, esc stops"."""
        if self.over:
            return ""
        if self.matched < 0:
            return "exporting …, esc stops"
        share = self.written * 100 // max(1, self.matched)
        passed = self._clock() - self._began
        left = passed * (self.matched - self.written) / self.written if self.written else 0
        soon = f", {duration(round(left * 1000))} left" if passed > 1 else ""
        return f"exporting {self.written:,} of {self.matched:,}, {share}%{soon}, esc stops"

    def stop(self) -> bool:
        if self.over or self._stopped:
            return False
        self._stopped = True
        return True

    def write(self) -> str:
        """Blocks until it is done or stopped; gives what to tell. Raises MusterError that says what was wrong, and then
        leaves no file behind."""
        part = self._part
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                self._fill(file)
                file.flush()
                os.fsync(file.fileno())
            named = self._name(part)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise RefusedError(f"{self._path}: {_why(error)}", "Nothing was exported. Use another path") from None
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
        return self._told(named)

    def _name(self, part: Path) -> Path:
        """Give the file its name. Another that has come there meanwhile stays."""
        path = self._path
        if self._stopped:
            path = path.with_name(f"{path.stem}.partial{path.suffix}")
        if self._replace or self._stopped:
            os.replace(part, path)
        else:
            try:
                os.link(part, path)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if path.exists():
                    raise FileExistsError from None
                os.replace(part, path)
            else:
                part.unlink()
        return path

    def discard(self) -> None:
        """The console ends: what was begun is not left lying about."""
        self._stopped = True
        with suppress(OSError):
            self._part.unlink()

    def _told(self, path: Path) -> str:
        count = f"{self.written:,} row{'' if self.written == 1 else 's'}"
        if self._stopped:
            return f"stopped: {count} of {self.matched:,} are in {path}"
        first, last = self.versions
        moved = ""
        if self._gaps:
            moved = f"; the list changed during the export (v{first:,} to v{last:,}): rows may be missing or repeated"
        elif first != last:
            moved = f"; the cell went from v{first:,} to v{last:,} meanwhile"
        return f"exported {count} to {path}{moved}"

    # --- rows

    def _fill(self, file: IO[str]) -> None:
        part = self._data.read(0, STEP)
        self.matched, self.versions = part.matched, (part.version, part.version)
        self._head(file, part)
        begin = 0
        while True:
            self._put(file, part, begin)
            full = len(part.ids) - begin
            if self._stopped or not full or self.written >= part.matched:
                break
            offset = max(0, self.written - min(OVERLAP, self.written))
            part = self._data.read(offset, STEP)
            self.matched, self.versions = part.matched, (self.versions[0], part.version)
            begin, sure = self._continues(part, self.written - offset)
            self._gaps += not sure
        self._foot(file)

    def _continues(self, part: PageRows, expected: int) -> Overlap:
        """Index in an overlapping window of the first row not written yet: behind the last written row still listed."""
        known = {name: at for at, name in enumerate(part.ids[: 2 * OVERLAP])}
        for name in reversed(self._last):
            if name in known:
                return Overlap(known[name] + 1, True)
        return Overlap(min(expected, len(part.ids)), False)

    def _put(self, file: IO[str], part: PageRows, begin: int) -> None:
        if self._form == "csv":
            file.write(csv_text(part.cells[begin:]))
        else:
            lines = map(json_text, part.items[begin:])
            before = ",\n" if self.written else "\n"
            for line in lines:
                file.write(before + line)
                before = ",\n"
        self.written += len(part.ids) - begin
        self._last.extend(part.ids[begin:])

    def _head(self, file: IO[str], part: PageRows) -> None:
        if self._form == "csv":
            file.write(csv_text([self._data.titles]))
        else:
            head = {"page": self._line, "version": part.version, "at_ms": part.at_ms, "at": iso(part.at_ms)}
            file.write(json_text(head)[:-1] + ',"items":[')

    def _foot(self, file: IO[str]) -> None:
        if self._form == "json":
            foot = {"rows": self.written, "complete": not self._stopped, "last_version": self.versions[1]}
            file.write("\n]," + json_text(foot)[1:] + "\n")


def _why(error: OSError) -> str:
    """In words, without the name of the temporary file."""
    if isinstance(error, FileExistsError):
        return "the file exists by now"
    return (error.strerror or "cannot be written").lower()


TITLES = {"handover": "Shift handover", "incident": "Incident summary"}
_SIGNS = re.compile(r"([\\`*_\[\]<>#|~])")
"""Characters with a meaning in Markdown or HTML."""


def markdown(run: DraftRun) -> str:
    """A draft as Markdown: sections of the rules; text of a model stands behind `>` and is marked as unchecked."""
    asked = f"{printable(run.id)}, {timestamp(run.asked_ms)} UTC" + (f", for {printable(run.who)}" if run.who else "")
    lines = [f"# {TITLES.get(run.ask.task, 'Draft')}", "", asked, ""]
    if run.ask.question:
        lines += [f"> {quoted_text(run.ask.question)}", ""]
    draft = run.rule
    if draft is None:
        return "\n".join([*lines, quoted_text(run.rule_why) or "There is no draft by rule.", ""])
    lines += _listed("", (*draft.summary, *draft.rationale))
    for part in draft.parts:
        lines += _listed(part.heading, part.sentences, "Nothing.")
    lines += _listed("Mind", draft.risks) + _listed("Find out first", draft.questions)
    if run.model is not None:
        said = (*run.model.summary, *(each for part in run.model.parts for each in part.sentences))
        lines += ["## Model text, not checked", "", *(f"> {text_of(each)}" for each in said), ""]
    facts = {fact.id: fact for fact in draft.facts}
    if facts:
        lines += [
            "## Facts",
            "",
            *(f"- {quoted_text(fact.id)}: {quoted_text(fact.text)}" for fact in facts.values()),
            "",
        ]
    return "\n".join(lines)


def _listed(heading: str, sentences: Sequence[Sentence], none: str = "") -> list[str]:
    if not sentences and not none:
        return []
    head = [f"## {quoted_text(heading)}", ""] if heading else []
    return [*head, *([f"- {text_of(each)}" for each in sentences] or [none]), ""]


def text_of(sentence: Sentence) -> str:
    """A sentence, with the reason where it is unsupported."""
    return quoted_text(
        f"{sentence.text} (unsupported: {sentence.unsupported})" if sentence.unsupported else sentence.text
    )


def quoted_text(text: str) -> str:
    """Foreign text as Markdown shows it letter by letter, on one line."""
    return _SIGNS.sub(r"\\\1", " ".join(printable(text).split()))


# --- into a file, or an editor


def save(app: MusterApp, argument: str) -> None:
    """`:save PATH`; by key, begin that line with a name to change. Raises SpecError."""
    run = _shown(app)
    if not argument:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        app.bars.open_command(f"save ~/muster-{run.ask.task}-{stamp}.md")
        return
    if "\0" in argument:
        raise SpecError("", "a file name cannot contain these characters", "Give another name")
    path = Path(os.path.abspath(os.path.expanduser(argument.strip())))
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(markdown(run))
    except FileExistsError:
        raise SpecError("", f"{printable(str(path))} already exists", "Give another name") from None
    except OSError as error:
        raise SpecError(
            "", f"{printable(str(path))} cannot be written ({error.strerror})", "Give another name"
        ) from None
    app.say(f"{printable(run.id)} is saved to {printable(str(path))}")


def edit(app: MusterApp, argument: str) -> None:
    """In $VISUAL or $EDITOR, while the console stands aside. Raises SpecError."""
    from textual.app import SuspendNotSupported

    run = _shown(app)
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    descriptor, name = tempfile.mkstemp(prefix=f"muster-{run.ask.task}-", suffix=".md")
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(markdown(run))
    try:
        with app.suspend():
            ended = subprocess.run([*editor, name], check=False).returncode
    except SuspendNotSupported:
        Path(name).unlink(missing_ok=True)
        raise SpecError("", "no editor can run here", "Write it to a file with :save PATH") from None
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise SpecError("", f"{printable(editor[0])} cannot be started ({error.strerror})", "Set EDITOR") from None
    app.refresh(layout=True)
    app.say(f"{printable(run.id)} is in {name}" + (f"; the editor exited with {ended}" if ended else ""))


def _shown(app: MusterApp) -> DraftRun:
    """The draft on the page. Raises RefusedError while there is none."""
    detail = cast("DraftPane", app.navigator.current).detail if app.context().screen == "draft" else None
    if detail is None:
        raise RefusedError("this page shows no draft", "Open one first, such as :handover")
    return detail.run
