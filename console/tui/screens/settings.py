"""Pages of personal settings: settings with their origin, the theme, and bookmarks.

`:settings NAME=VALUE` begins a change and `:settings -NAME` removes one from the file. Nothing changes before a person
has chosen session or file. A bookmark is a `:` line with a name: Enter follows it, `x` removes it, `y` copies it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, cast

from textual import on

from console.actions.key_map import key_of
from console.client.change_feed import in_thread
from console.forms import settings
from console.forms.setting_sources import refuse_secret, settings_told, write
from console.forms.settings import ConsoleSettings
from console.text.terminal_text import printable
from console.text.tones import PLAIN, THEMES, name_of
from console.tui.navigator import kept
from console.tui.widgets.list_pane import WordsPane
from console.tui.widgets.pane import AsOf, Connect, DetailPane, SectionsView
from console.tui.widgets.window_table import WindowTable
from console.views.lists import Heading, Row, Window
from console.views.sections import Section
from console.views.settings import SettingChange, SettingsPage, pages, values_of
from engine.model.errors import MusterError, SpecError, did_you_mean

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.tui.app import MusterApp


class SettingsPane(DetailPane[SettingsPage]):
    NAME = "settings"

    def __init__(self, connect: Connect, argument: str) -> None:
        super().__init__(connect)
        self._wish = read(argument)

    @property
    def crumb(self) -> str:
        return "settings" if self._wish is None else f"settings {self._wish.name}"

    @property
    def note(self) -> str:
        if self.detail is None:
            return ""
        given = sum(bool(each.where) for each in self.detail.settings)
        return f"{given:,} of {len(self.detail.settings):,} are set"

    @property
    def copyable(self) -> str:
        return self.detail.path if self.detail is not None else ""

    @property
    def _app(self) -> MusterApp:
        return cast("MusterApp", self.app)

    def ask(self, client: Client) -> SettingsPage:
        """Not of the engine: of this machine's file and environment."""
        return self._told()

    def _told(self) -> SettingsPage:
        found, problem = settings_told(self._app.flags)
        if self._wish is not None:
            refuse_secret(self._wish.name, self._wish.value)
        values, defaults = values_of(found)
        file = settings.config_file(os.environ)
        with suppress(ValueError):  # it is in no home
            file = Path("~") / file.relative_to(Path.home())
        return SettingsPage(tuple(found), values, defaults, str(file), printable(problem))

    async def _ask(self) -> None:
        """Also while no engine answers."""
        self._again = False
        try:
            self.detail = await in_thread(self._told)
        except MusterError as error:
            self._app.report(error)
            self._wish = None
            self._again = True
        else:
            self._draw()
        finally:
            self._asking = False
        if self._again:
            self.look_again()

    def reload(self) -> None:
        """Files and the environment do not change with the cell."""
        if self.detail is None and not self._asking:
            self.look_again()

    def look_again(self) -> None:
        self._asking = True
        self.run_worker(self._ask(), exclusive=True, group="settings")

    def clear_one(self) -> bool:
        if self._wish is None or len(self._app.navigator.stack) > 1:
            return False
        self._wish = None
        self._draw()
        return True

    def columns(self, detail: SettingsPage, width: int) -> tuple[list[Section], list[Section]]:
        return pages(detail, self._wish, width)

    @on(SectionsView.LinkChosen)
    def _chosen(self, event: SectionsView.LinkChosen) -> None:
        event.prevent_default()
        event.stop()
        what, _, rest = event.link.partition(":")
        if what == "compose":
            self.post_message(self.Compose(rest))
        elif self._wish is not None:
            self.run_worker(self._change(what, self._wish), exclusive=True, group="change")

    async def _change(self, where: str, wish: SettingChange) -> None:
        try:
            if where == "file":
                path = settings.config_file(os.environ)
                await in_thread(lambda: write(path, wish.name, wish.value))
            if wish.name == "theme":
                self._turn_theme(wish.value)
        except MusterError as error:
            self._app.report(error)
            return
        done = (
            "is removed from the file"
            if wish.value is None
            else "is written"
            if where == "file"
            else "is set for this session"
        )
        self._app.say(f"{wish.name} {done}")
        self._wish = None
        self.look_again()

    def _turn_theme(self, wanted: str | None) -> None:
        """As this console would look if it were started with it."""
        from console.text.tones import theme_for

        self._app.theme = theme_for(wanted or ConsoleSettings().theme, os.environ, self._app.console.color_system).name


def read(argument: str) -> SettingChange | None:
    """`NAME=VALUE`, `-NAME`, or nothing. Raises SpecError naming what would do."""
    text = argument.strip()
    if not text:
        return None
    name, equals, value = text.partition("=")
    name = name.strip()
    out = name.startswith("-") and not equals
    name = name.lstrip("-")
    known = [field.name for field in fields(ConsoleSettings)]
    if name not in known:
        if "key" in name or "password" in name or "token" in name or "secret" in name:
            raise SpecError("", f"'{printable(name)[:40]}' is not a setting: secrets are not kept in settings",
                            f"Set {settings.MODEL_KEY}, or name a file with model_key_file")  # fmt: skip
        raise SpecError("", f"there is no setting '{printable(name)[:40]}'",
                        did_you_mean(name, known, ":settings lists them all"))  # fmt: skip
    if out:
        return SettingChange(name, None)
    if not equals:
        raise SpecError("", f"{name} needs a value", f"Write :settings {name}=VALUE, or -{name} to remove it")
    given = settings.from_text(name, value.strip().strip("\"'"))
    return SettingChange(name, settings.checked(name, given, name))


def choose(app: MusterApp, argument: str) -> None:
    """Draw in the theme of that name; without one, in the next. Raises SpecError."""
    names = [name_of(theme) for theme in THEMES]
    here = names.index(name_of(app.current_theme))
    wanted = argument.strip().lower() or names[(here + 1) % len(names)]
    if wanted not in names:
        remedy = did_you_mean(wanted, names, f"Themes: {', '.join(names)}", ":theme {}")
        raise SpecError("", f"there is no theme '{printable(wanted)[:40]}'", remedy)
    theme = THEMES[names.index(wanted)]
    app.theme = theme.name
    app.run_worker(in_thread(lambda: app.session.remember("theme", wanted)), group="theme")
    app.say(f"theme {wanted}" + (": no colours" if theme is PLAIN else ""))


HEADINGS = (Heading("name", "BOOKMARK", most=40), Heading("line", "LEADS TO", most=400))


class BookmarksPane(WordsPane):
    NAME = "bookmarks"

    def on_mount(self) -> None:
        self.filter(self._filter)

    @property
    def as_of(self) -> AsOf | None:
        """They are this person's own: they do not age."""
        return None

    @property
    def note(self) -> str:
        return "  ·  ".join([*self.counts, "share it: a colleague types the line after :, or :bookmark NAME = LINE"])

    @property
    def copyable(self) -> str:
        """The line, for somebody else's `:` bar."""
        row = self.table.cursor_row
        return kept(cast("MusterApp", self.app).session).get(row.id, "") if row is not None else ""

    def chosen(self) -> str:
        """Name of the one under the cursor."""
        row = self.table.cursor_row
        return row.id if row is not None else ""

    def filter(self, text: str) -> None:
        """Show those in whose name or line every word occurs."""
        self._filter = " ".join(text.split())
        none = f"none yet: {key_of('bookmark')} bookmarks the current view"
        self.table.empty = f"no bookmarks match {self._filter}" if self._filter else none
        self.table.show(HEADINGS, self._rows)

    def _rows(self, offset: int, limit: int) -> Window:
        """Called on a thread; asks nobody."""
        lines, words = kept(cast("MusterApp", self.app).session), self._filter.lower().split()
        found = [
            Row(name, ((printable(name), ""), (printable(":" + line), "dim")))
            for name, line in sorted(lines.items())
            if all(word in f"{name} {line}".lower() for word in words)
        ]
        return Window(offset, found[offset : offset + limit], len(found), len(lines), 0, 0)

    @on(WindowTable.RowChosen)
    def _go(self, event: WindowTable.RowChosen) -> None:
        line = kept(cast("MusterApp", self.app).session).get(event.row.id)
        if line is not None:
            self.post_message(self.Follow(line))
