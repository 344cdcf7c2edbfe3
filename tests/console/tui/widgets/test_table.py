"""The virtual table: what it fetches, where the cursor stays, what it draws."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.app import App, ComposeResult
from textual.pilot import Pilot

from console.text.tones import DARK
from console.tui.widgets.table_rows import CHUNK
from console.tui.widgets.window_table import WindowTable
from console.views.lists import Heading, Row, Window
from engine.model.errors import UnreachableError
from tests.support.patience import PATIENCE_S

HEADINGS = (Heading("id", "ID"), Heading("n", "N", right=True), Heading("text", "TEXT", most=40))


class Rows:
    """A source of rows that can change, stand still, or fail."""

    def __init__(self, count: int) -> None:
        self.names = [f"row-{number:06d}" for number in range(count)]
        self.asked: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False

    def fetch(self, offset: int, limit: int) -> Window:
        self.asked.append((offset, limit))
        self.gate.wait(PATIENCE_S)
        if self.broken:
            raise UnreachableError("gone")
        names = self.names[offset : offset + limit]
        rows = [Row(name, ((name, ""), (str(len(name)), ""), ("some text [b]x[/b]", "dim"))) for name in names]
        return Window(offset, rows, len(self.names), len(self.names), 1, 0)


class TableApp(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.register_theme(DARK)
        self.theme = DARK.name
        self.table = WindowTable()
        self.chosen: list[str] = []
        self.sorted: list[str] = []
        self.failed = 0

    def compose(self) -> ComposeResult:
        yield self.table

    def on_window_table_row_chosen(self, event: WindowTable.RowChosen) -> None:
        self.chosen.append(event.row.id)

    def on_window_table_sort_requested(self, event: WindowTable.SortRequested) -> None:
        self.sorted.append(event.name)

    def on_window_table_load_failed(self) -> None:
        self.failed += 1


@asynccontextmanager
async def shown(rows: Rows, size: tuple[int, int] = (60, 21)) -> AsyncIterator[tuple[Pilot[None], WindowTable]]:
    app = TableApp()
    async with app.run_test(size=size) as pilot:
        app.table.show(HEADINGS, rows.fetch, (("n", True),))
        app.table.markable = True
        app.table.focus()
        await settled(pilot)
        yield pilot, app.table


async def settled(pilot: Pilot[None]) -> None:
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


def drawn(table: WindowTable) -> list[str]:
    return [table.render_line(y).text.rstrip() for y in range(table.size.height)]


async def test_draws_a_header_with_the_order_and_the_rows_in_view() -> None:
    async with shown(Rows(5)) as (_, table):
        lines = drawn(table)
        assert lines[0].split() == ["ID", "N", "↓", "TEXT"]
        assert lines[1].startswith("▌ row-000000")
        assert "[b]x[/b]" in lines[1], "markup is text like any other"
        assert lines[6:] == [""] * 15


async def test_a_hundred_thousand_rows_cost_a_window() -> None:
    rows = Rows(100_000)
    async with shown(rows) as (pilot, table):
        began = time.process_time()
        await pilot.press("G")
        await settled(pilot)
        assert table.cursor_row is not None
        assert table.cursor_row.id == "row-099999"
        assert time.process_time() - began < 2
        assert len(rows.asked) <= 6
        assert all(limit <= 3 * CHUNK for _, limit in rows.asked)
        await pilot.press("home")
        assert table.cursor == 0


async def test_moving_keys() -> None:
    async with shown(Rows(1_000)) as (pilot, table):
        for keys, cursor in (
            ("j", 1),
            ("down", 2),
            ("k", 1),
            ("pagedown", 20),
            ("ctrl+d", 29),
            ("ctrl+u", 20),
            ("up", 19),
        ):
            await pilot.press(keys)
            assert table.cursor == cursor, keys
        await pilot.press("home", "k")
        assert table.cursor == 0


async def test_the_cursor_stays_on_its_row_and_on_its_line() -> None:
    rows = Rows(500)
    async with shown(rows) as (pilot, table):
        await pilot.press(*["pagedown"] * 2, "j")
        name, line = table.cursor_row.id, table.cursor - table.scroll_offset.y  # type: ignore[union-attr]
        rows.names[:0] = ["new-1", "new-2", "new-3"]
        table.reload()
        await settled(pilot)
        assert table.cursor_row is not None
        assert table.cursor_row.id == name
        assert table.cursor - table.scroll_offset.y == line


async def test_at_the_top_it_follows_the_top() -> None:
    rows = Rows(50)
    async with shown(rows) as (pilot, table):
        rows.names.insert(0, "newest")
        table.reload()
        await settled(pilot)
        assert table.cursor_row is not None
        assert table.cursor_row.id == "newest"


async def test_old_rows_stay_until_the_new_ones_are_there() -> None:
    rows, others = Rows(50), Rows(3)
    async with shown(rows) as (pilot, table):
        others.gate.clear()
        table.show(HEADINGS, others.fetch)
        await pilot.pause()
        assert drawn(table)[2].strip().startswith("row-000001")
        others.gate.set()
        await settled(pilot)
        assert drawn(table)[4:] == [""] * 17


async def test_a_failed_question_keeps_the_rows_and_is_told() -> None:
    rows = Rows(50)
    async with shown(rows) as (pilot, table):
        rows.broken = True
        table.reload()
        await settled(pilot)
        assert pilot.app.failed == 1  # type: ignore[attr-defined]
        assert drawn(table)[1].startswith("▌ row-000000")
        rows.broken = False
        table.reload()
        await settled(pilot)
        assert table.cursor_row is not None


async def test_rows_that_vanish_leave_the_cursor_inside() -> None:
    rows = Rows(300)
    async with shown(rows) as (pilot, table):
        await pilot.press("G")
        await settled(pilot)
        rows.names = rows.names[:7]
        table.reload()
        await settled(pilot)
        assert table.cursor == 6
        rows.names = []
        table.reload()
        await settled(pilot)
        assert table.cursor_row is None
        assert "empty" in drawn(table)[2]
        await pilot.press("j", "enter", "space", "G")


async def test_enter_chooses_and_space_marks_by_id() -> None:
    rows = Rows(50)
    async with shown(rows) as (pilot, table):
        await pilot.press("space", "space", "enter")
        assert pilot.app.chosen == ["row-000002"]  # type: ignore[attr-defined]
        rows.names.insert(0, "newest")
        table.reload()
        await settled(pilot)
        assert list(table.marked) == ["row-000000", "row-000001"]
        assert drawn(table)[1].startswith("● row-000000")


async def test_mouse_header_sorts_and_second_click_opens() -> None:
    async with shown(Rows(50)) as (pilot, table):
        await pilot.click(table, offset=(14, 0))
        assert pilot.app.sorted == ["n"]  # type: ignore[attr-defined]
        await pilot.click(table, offset=(5, 4))
        assert table.cursor == 3
        await pilot.click(table, offset=(5, 4))
        assert pilot.app.chosen == ["row-000003"]  # type: ignore[attr-defined]


async def test_columns_scroll_beneath_the_first() -> None:
    async with shown(Rows(5), size=(30, 8)) as (pilot, table):
        assert drawn(table)[0].endswith("»")
        await pilot.press("right", "right")
        line = drawn(table)[1]
        assert line.startswith("▌ row-000000")
        assert line.endswith("[/b]")
        await pilot.press("left", "left")
        assert drawn(table)[0].endswith("»")


async def test_nothing_is_repainted_when_nothing_changed() -> None:
    async with shown(Rows(50)) as (pilot, table):
        painted: list[object] = []
        table.refresh = lambda *regions, **_: painted.append(regions) or table  # type: ignore[method-assign,assignment]
        table.reload()
        await settled(pilot)
        assert painted == []
