"""What a page lists, as data by windows: what is copied and exported is what is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from console.text.data_sheets import harmless, plain, title, unformed
from console.tui.widgets.list_pane import ListPane
from console.tui.widgets.pane import Connect, Pane
from console.tui.widgets.table_pane import TablePane
from console.tui.widgets.window_table import Fetch
from console.views.lists import KEY_COLUMN, SHARE, ListView, Row, share_of
from engine.model.errors import RefusedError
from engine.model.queries import Column

if TYPE_CHECKING:
    from engine.model.queries import Page

STEP = 10_000
"""Rows asked for at a time: the engine gives no more in one answer."""


class PageRows(NamedTuple):
    """Rows of one answer."""

    ids: list[str]
    cells: list[list[str]]
    """For a spreadsheet."""
    items: list[dict[str, Any]]
    """The same with the engine's own values, by name of column."""
    matched: int
    version: int
    at_ms: int


class PageData(NamedTuple):
    """What a page lists: its columns, and its rows by offset and limit. Reading blocks."""

    name: str
    titles: tuple[str, ...]
    read: Callable[[int, int], PageRows]


def page_data(pane: Pane | None) -> PageData:
    """Of the page as it is now. Raises RefusedError where nothing is listed."""
    if isinstance(pane, ListPane):
        return list_data(pane.connect, pane.view.copy())
    if isinstance(pane, TablePane) and pane.table.fetch is not None:
        headings, fetch = pane.table.headings, pane.table.fetch
        names = tuple(heading.name for heading in headings)
        return PageData(pane.NAME, names, lambda offset, limit: _part_of_rows(fetch, names, offset, limit))
    raise RefusedError("nothing is listed here", "Go to a list first, such as :workloads")


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
    """Of a page whose rows are made by the console: its cells as they read."""
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
        raise RefusedError(f"{row.id} is not listed any more", "Choose another")
    at = part.ids.index(row.id)
    return part._replace(ids=[row.id], cells=[part.cells[at]], items=[part.items[at]])
