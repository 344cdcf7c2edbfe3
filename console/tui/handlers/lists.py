"""What a person does with the list in view: columns, order, marks, and having it stand still."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from console.tui.widgets.list_pane import ListPane, sortable
from console.tui.widgets.selection import MOST
from console.tui.widgets.table_pane import TablePane
from console.views.lists import LISTS, every_column
from engine.model.errors import MusterError, SpecError
from engine.model.queries import COLUMNS

if TYPE_CHECKING:
    from console.tui.app import MusterApp

RESET = "reset"


def columns(app: MusterApp, argument: str) -> None:
    """`c`: choose. `:columns id,gpu,wait`: these. `:columns reset`: as usual. Raises SpecError."""
    from console.tui.dialogs.columns import ColumnDialog

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
    from console.tui.dialogs.columns import SortDialog

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
    app.say(f"{pane.NAME} stays as it is; f goes on" if pane.frozen else f"{pane.NAME} follows the cell")


def _list(app: MusterApp) -> ListPane:
    pane = app.navigator.current
    if not isinstance(pane, ListPane):
        raise SpecError("", "this page has no columns to choose or sort by", "Go to a list first, such as :workloads")
    return pane
