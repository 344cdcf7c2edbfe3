"""`o`, `:export csv|json [PATH]`: what the page lists, all rows that match, into a file.

Rows are read by windows and written as they come, so that a million of them take no more memory than ten thousand. The
file gets its name once it is whole; it belongs to this person alone, and replaces no other unasked.
"""

from __future__ import annotations

import errno
import os
import time
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, NamedTuple

from console.client.change_feed import in_thread
from console.text.data_sheets import csv_text, iso, json_text
from console.text.terminal_text import duration, printable
from console.tui.dialogs.overwrite import OverwriteDialog
from console.tui.handlers.page_data import STEP, PageData, PageRows, page_data
from console.tui.widgets.list_pane import ListPane
from console.tui.widgets.table_pane import TablePane
from engine.model.errors import MusterError, RefusedError, SpecError

if TYPE_CHECKING:
    from console.tui.app import MusterApp

Form = Literal["csv", "json"]
OVERLAP = 500
"""Rows asked for again with the next window: what came or went meanwhile has moved the others by no more than so many,
or it is told."""
TELL_S = 0.2
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Of a file system on which a file has one name only."""


def export(app: MusterApp, argument: str) -> None:
    """Without an argument, begin the line that exports, with a name to change. Raises SpecError."""
    pane = app.navigator.current
    if not isinstance(pane, TablePane) or pane.table.fetch is None:
        raise SpecError("", "nothing is listed here", "Go to a list first, such as :workloads")
    if not argument:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        app.bars.open_command(f"export csv ~/muster-{pane.NAME}-{stamp}.csv")
        return
    form, path = read_argument(argument, pane.NAME)
    if pane.work is not None and pane.work.note:
        raise SpecError("", "an export is under way", "Wait for it, or stop it with esc")
    begin = partial(_begin, app, pane, form, path)
    try:
        there = path.lstat()
    except OSError:
        begin(replace=False)
        return
    if not path.is_file():
        raise SpecError("", f"{path} is no file", "Give another name")
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
        raise SpecError("", f"'{printable(word)[:40]}' is no form to export in", "Write :export csv PATH or json PATH")
    rest = rest or f"~/muster-{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.{form}"
    if "\0" in rest:
        raise SpecError("", "a name of a file has no such characters", "Give another name")
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
    """How a window continues what was written."""

    begin: int
    """Index of its first row that is new."""
    sure: bool
    """Whether none was left out or comes twice."""


class Export:
    """One export, written on a thread of its own. `note` and `stop` may be called meanwhile."""

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
            raise RefusedError(f"{self._path}: {_why(error)}", "Nothing was exported. Give another path") from None
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
            moved = f"; the list moved fast meanwhile (v{first:,} to v{last:,}): rows may be missing or be there twice"
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
        """Where in a window, which begins a little before, what is not written yet begins: behind the last written row
        that is still listed."""
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
        return "there is such a file by now"
    return (error.strerror or "cannot be written").lower()
