"""Layout of the list in view: columns and their order, sorting, marks, and freezing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from console.actions.key_map import key_of
from console.text.terminal_text import fit
from console.tui.dialog_frames import Dialog, MenuDialog
from console.tui.widgets.drawing import OneLine, part
from console.tui.widgets.list_pane import ListPane, TablePane, sortable
from console.tui.widgets.pane import SectionsView
from console.tui.widgets.table_rows import MOST
from console.views.lists import LISTS, every_column
from console.views.sections import Line, Section
from engine.model.errors import MusterError, SpecError
from engine.model.list_queries import COLUMNS, Column

if TYPE_CHECKING:
    from console.tui.app import MusterApp


class ColumnDialog(Dialog):
    """Choice of columns, one line each, shown ones first in their order. Changes take effect with Enter."""

    DEFAULT_CSS = """
    ColumnDialog > Vertical { max-width: 76; }
    """
    ACTS = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,x", "turn", show=False, priority=True),
        Binding("K,shift+up,less_than_sign", "shift(-1)", show=False, priority=True),
        Binding("J,shift+down,greater_than_sign", "shift(1)", show=False, priority=True),
        Binding("r", "reset", show=False, priority=True),
        Binding("enter", "accept", show=False, priority=True),
    ]

    def __init__(
        self, every: Sequence[Column], shown: Sequence[str], usual: Sequence[str], chosen: Callable[[list[str]], object]
    ) -> None:
        """`usual`: what is shown where nobody has chosen. `chosen` is called with the names; empty: the usual."""
        super().__init__()
        self._known = {column.name: column for column in every}
        self._usual = list(usual)
        self._chosen = chosen
        self._body = SectionsView()
        self._keys = OneLine("top")
        self._begin(shown)

    def _begin(self, shown: Sequence[str]) -> None:
        self._shown = list(shown)
        self._order = [*shown, *(name for name in self._known if name not in shown)]

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body
            yield self._keys

    def on_mount(self) -> None:
        self._body.focus()
        keys = (("space", "show or hide"), ("J K", "down, up"), ("r", "default"), ("↵", "done"), ("esc", "leave"))
        self._keys.show([each for key, what in keys for each in (part(f" {key} ", "key"), part(f"{what} ", "off"))])

    def on_resize(self) -> None:
        self.leave_room(self._body, 1)
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        lines = tuple(
            Line(
                (
                    ("✓ " if name in self._shown else "  ", "accent"),
                    (fit(name, 18), "" if name in self._shown else "dim"),
                    (self._known[name].help, "dim"),
                ),
                name,
            )
            for name in self._order
        )
        count = f"{len(self._shown)} of {len(self._known)}"
        self._body.show([Section("Columns", lines, count)])

    def action_turn(self) -> None:
        """Show or hide the one under the cursor. One stays."""
        name = self._body.link
        if name in self._shown and len(self._shown) > 1:
            self._shown.remove(name)
        elif name not in self._shown:
            self._shown = [each for each in self._order if each in self._shown or each == name]
        self._show()
        self._body.action_move(1)

    def action_shift(self, step: int) -> None:
        """Move the one under the cursor to the left or right of its neighbour."""
        name = self._body.link
        at = self._order.index(name)
        to = max(0, min(len(self._order) - 1, at + step))
        self._order.insert(to, self._order.pop(at))
        self._shown = [each for each in self._order if each in self._shown]
        self._show()
        self._body.show_cursor()

    def action_reset(self) -> None:
        self._begin(self._usual)
        self._show()

    def action_accept(self) -> None:
        self._chosen([] if self._shown == self._usual else self._shown)
        self.dismiss(True)


class SortDialog(MenuDialog):
    """Choice of the sort order: Enter sorts by a column, `+` adds it behind the present ones."""

    DEFAULT_CSS = """
    SortDialog > Vertical { max-width: 72; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("plus,s", "then", show=False, priority=True)]

    def __init__(
        self, columns: Sequence[Column], order: Sequence[tuple[str, bool]], chosen: Callable[[str, bool], object]
    ) -> None:
        """`chosen` is called with the name, and whether it is the second to sort by."""
        super().__init__("Sort by", "↵ sort, again reverses; + adds a sort column")
        self._columns = columns
        self._order = order
        self._chosen = chosen

    def lines(self) -> Sequence[Line]:
        return [
            Line(((self._arrow(column.name), "accent"), (fit(column.name, 20), ""), (column.help, "dim")), column.name)
            for column in self._columns
        ]

    def _arrow(self, name: str) -> str:
        for level, (column, down) in enumerate(self._order):
            if column == name:
                return ("↓" if down else "↑") + ("²" if level else " ") + " "
        return "   "

    def take(self, link: str) -> None:
        self._chosen(link, False)

    def action_then(self) -> None:
        if self._body.link:
            self._chosen(self._body.link, True)
            self.dismiss(True)


RESET = "reset"


def columns(app: MusterApp, argument: str) -> None:
    """`c`: choose. `:columns id,gpu,wait`: these. `:columns reset`: as usual. Raises SpecError."""

    pane = _list(app)
    usual = LISTS[pane.KIND]
    if argument == RESET:
        pane.choose_columns(())
    elif argument:
        names = argument.replace(",", " ").split()
        before = pane.view.chosen
        pane.view.filter(f"{pane.view.filter_text} columns:{','.join(names)}")
        chosen, pane.view.chosen = pane.view.chosen, before
        pane.choose_columns(chosen)
    else:
        shown = [column.name for column in pane.view.columns]
        every = list(every_column(pane.KIND).values())
        app.push_screen(ColumnDialog(every, shown, usual, pane.choose_columns))


def sort(app: MusterApp, argument: str) -> None:
    """`s`: choose. `:sort queue,-wait`: by these. Raises SpecError."""

    pane = _list(app)
    if argument:
        pane.filter(f"{pane.view.filter_text} sort:{','.join(argument.replace(',', ' ').split())}")
        return
    known = {column.name: column for column in COLUMNS[pane.KIND]}
    offered = [known[name] for name in sortable(pane.view)]
    app.push_screen(SortDialog(offered, pane.view.order, lambda name, then: pane.sort_by(name, then=then)))


def mark_range(app: MusterApp, _argument: str) -> None:
    """`v`: from here to wherever the cursor goes; again: keep it."""
    pane = app.navigator.current
    if isinstance(pane, TablePane):
        pane.table.action_range()


def mark_all(app: MusterApp, _argument: str) -> None:
    """`a`: all that match, by id; where that is what is marked already: none."""
    pane = app.navigator.current
    if not isinstance(pane, ListPane):
        return
    if pane.table.marked and len(pane.table.marked) == min(pane.table.matched, MOST):
        pane.table.clear_marks()
        return

    async def do(pane: ListPane) -> None:
        try:
            await pane.mark_all()
        except MusterError as error:
            app.report(error)

    app.run_worker(partial(do, pane), exclusive=True, group="mark")


def freeze(app: MusterApp, _argument: str) -> None:
    """`f`: what is shown stays as it is; again: it follows the cell."""
    pane = app.navigator.current
    if pane is None:
        return
    try:
        pane.freeze()
    except MusterError as error:
        app.report(error)
        return
    app.say(f"{pane.NAME}: frozen; {key_of('still')} resumes" if pane.frozen else f"{pane.NAME}: live")


def _list(app: MusterApp) -> ListPane:
    pane = app.navigator.current
    if not isinstance(pane, ListPane):
        raise SpecError("", "this page has no columns to choose or sort by", "Go to a list first, such as :workloads")
    return pane
