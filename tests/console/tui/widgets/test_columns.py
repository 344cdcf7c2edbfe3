"""Columns of lists: chosen, put in order, kept; the order of rows; where a person was."""

from __future__ import annotations

from collections import Counter

import pytest

from console.forms.filters import FilterError
from console.forms.session_state import SessionState
from console.text.tones import DARK, tones
from console.tui.list_layout import ColumnDialog
from console.tui.widgets.list_pane import kept_columns
from console.tui.widgets.table_rows import Columns, TableDrawing, VisibleCells
from console.tui.widgets.window_table import TablePosition, WindowTable
from console.views.lists import LISTS, Heading, ListView, Row, share_of
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, here, hint, line, press, quick, until, write

__all__ = ["quick"]


def titles(view: ListView) -> list[str]:
    return [heading.name for heading in view.headings]


def test_a_view_of_chosen_columns_asks_for_what_rows_need_besides() -> None:
    view = ListView.of("workloads")
    view.filter("columns:name,cost")
    assert titles(view) == ["name", "cost"]
    asked = view.query(0, 5).columns
    assert {"name", "cost", "id", "state", "gpu", "cpu"} == set(asked)
    window = view.window(FakeClient(20).query(view.query(0, 5)), 0)
    assert [len(row.cells) for row in window.rows] == [2] * 5
    assert all(row.id.startswith("wl-") and row.state for row in window.rows)


def test_the_computed_share_can_be_chosen() -> None:
    view = ListView.of("queues")
    view.filter("columns:name,quota_use")
    page = FakeClient().query(view.query(0, 10))
    index = {name: at for at, name in enumerate(page.columns)}
    assert share_of(page.rows[0], index) == 750
    with pytest.raises(FilterError):
        ListView.of("workloads").filter("columns:quota_use")


def test_two_levels_of_order() -> None:
    view = ListView.of("workloads")
    view.sort_by("queue")
    view.sort_by("wait", then=True)
    assert view.order == (("queue", False), ("wait", True))
    view.sort_by("wait", then=True)
    assert view.sort == ("queue", "wait"), "again reverses"
    view.sort_by("queue")
    assert view.sort == ("-queue", "wait"), "the second stays"
    view.sort_by("gpu")
    assert view.sort == ("-gpu",)


@pytest.mark.parametrize("text", ["", "state:pending", "gpu>=8 sort:queue,-wait columns:id,gpu", "sort:-wait"])
def test_the_line_of_a_view_leads_back_to_it(text: str) -> None:
    view, again = ListView.of("workloads"), ListView.of("workloads")
    view.filter(text)
    again.filter(view.line)
    assert again == view


async def test_columns_are_chosen_moved_and_kept() -> None:
    async with console(FakeClient(200)) as pilot:
        await press(pilot, "c")
        assert isinstance(pilot.app.screen, ColumnDialog)
        await press(pilot, "J", "k", "space", "enter")  # id behind state, then state hidden
        await until(pilot, lambda: here(pilot).table.headings[0].name == "id")
        assert "state" not in titles(here(pilot).view)
        session: SessionState = pilot.app.session  # type: ignore[attr-defined]
        await until(pilot, lambda: session.recall("columns workloads"))
        assert kept_columns(pilot.app, "workloads") == here(pilot).view.chosen
        assert "columns:id,queue" in here(pilot).line
        await until(pilot, lambda: here(pilot).table.render_line(0).text.split()[:2] == ["ID", "QUEUE"])


async def test_columns_by_command_and_back_as_usual() -> None:
    async with console(FakeClient(200)) as pilot:
        await press(pilot, "colon")
        await write(pilot, "columns id,wait,cost")
        await press(pilot, "enter")
        await until(pilot, lambda: here(pilot).table.render_line(0).text.split() == ["ID", "WAIT", "COST"])
        await press(pilot, "colon")
        await write(pilot, "columns id,wat")
        await press(pilot, "enter")
        await until(pilot, lambda: "no column 'wat'" in hint(pilot))
        assert here(pilot).view.chosen == ("id", "wait", "cost"), "the last good choice stays"
        await write(pilot, "columns reset")
        await press(pilot, "enter")
        assert tuple(titles(here(pilot).view)) == LISTS["workloads"]


async def test_a_second_column_to_sort_by_shows_in_the_header() -> None:
    async with console(FakeClient(200)) as pilot:
        await press(pilot, "colon")
        await write(pilot, "sort queue,-wait")
        await press(pilot, "enter")
        await until(pilot, lambda: "by queue ↑, wait ↓" in line(pilot, "title"))
        await until(pilot, lambda: "QUEUE ↑" in here(pilot).table.render_line(0).text)
        assert "WAIT ↓²" in here(pilot).table.render_line(0).text
        await press(pilot, "s")
        await press(pilot, "j", "j", "j", "plus")
        await until(pilot, lambda: len(here(pilot).view.sort) == 2 and here(pilot).view.sort[0] == "queue")
        assert here(pilot).view.sort[1] == "-gpu"


async def test_another_page_of_columns_never_draws_old_rows_under_new_headings() -> None:
    client = FakeClient(200)
    async with console(client) as pilot:
        table = here(pilot).table
        before = table.render_line(1).text
        client.down = True
        here(pilot).choose_columns(["id", "gpu"])
        await press(pilot, "j")
        assert table.render_line(1).text.split()[1:] == before.split()[2:], "as they were, without the cursor"
        client.down = False


async def test_a_place_is_found_again_though_rows_came_meanwhile() -> None:
    client = FakeClient(2_000)
    async with console(client) as pilot:
        here(pilot).sort_by("name")
        here(pilot).sort_by("submitted")
        await pilot.app.workers.wait_for_complete()
        await press(pilot, "pagedown", "pagedown", "pagedown", "j")
        table = here(pilot).table
        place, name = here(pilot).place(), table.cursor_row.id  # type: ignore[union-attr]
        await press(pilot, "home")
        client.submit(3)
        here(pilot).put_back(place)
        await until(pilot, lambda: table.cursor_row is not None and table.cursor_row.id == name)
        assert table.cursor == place["index"] + 3
        here(pilot).put_back({"index": "x", "top": -1})
        assert table.cursor_row is not None
        assert table.cursor_row.id == name, "what is no place is left out"


async def test_what_is_read_stays_when_many_rows_come_at_the_top() -> None:
    client = FakeClient(3_000)
    async with console(client) as pilot:
        table = here(pilot).table
        await press(pilot, "pagedown", "pagedown", "j")
        name, line_of = table.cursor_row.id, table.cursor - table.scroll_offset.y  # type: ignore[union-attr]
        index = table.cursor
        client.now_ms += 1_000
        client.submit(350)
        await until(pilot, lambda: table.cursor == index + 350)
        assert table.cursor_row is not None
        assert table.cursor_row.id == name
        assert table.cursor - table.scroll_offset.y == line_of
        assert table.place == TablePosition(index + 350, name, table.scroll_offset.y, 0)


async def test_coming_back_draws_the_list_at_once_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with console(FakeClient(100)) as pilot:
        await press(pilot, "j", "enter")
        await pilot.app.workers.wait_for_complete()
        drawn: Counter[int] = Counter()
        draw = WindowTable.render_line
        monkeypatch.setattr(WindowTable, "render_line", lambda table, y: drawn.update([y]) or draw(table, y))
        pilot.app.navigator.back()  # type: ignore[attr-defined]
        assert len(drawn) == here(pilot).table.size.height > 20
        await pilot.pause()
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        at_cursor = here(pilot).table.cursor + 1  # it shows who has the keys
        assert {y: times for y, times in drawn.items() if times > 1 and y != at_cursor} == {}


async def test_a_frozen_page_stands_still_until_it_goes_on() -> None:
    client = FakeClient(100)
    async with console(client) as pilot:
        await press(pilot, "f")
        assert "as of 12:00:00" in line(pilot, "title")
        client.submit(5)
        await until(pilot, lambda: pilot.app.link.seen.version == client.version)  # type: ignore[attr-defined]
        await pilot.app.workers.wait_for_complete()
        assert here(pilot).table.matched == 100
        assert here(pilot).frozen is not None
        frames = []
        pilot.app._display = lambda screen, frame: frames.append(frame)  # type: ignore[method-assign]
        client.now_ms += 60_000
        client.submit(5)
        await until(pilot, lambda: pilot.app.link.seen.version == client.version)  # type: ignore[attr-defined]
        for _ in range(3):
            now = pilot.app.clock() + 1  # type: ignore[attr-defined]
            pilot.app.clock = lambda now=now: now  # type: ignore[attr-defined]
            pilot.app._time_passes()  # type: ignore[attr-defined]
            await pilot.pause()
        assert not any(frames), "nothing is written to the terminal"
        del pilot.app._display
        await press(pilot, "f")
        await until(pilot, lambda: here(pilot).table.matched == 110)
        assert "as of" not in line(pilot, "title")


def test_at_the_right_edge_a_text_is_cut_and_a_number_is_left_out_rather_than_half_shown() -> None:
    drawing = TableDrawing()
    drawing.retone(tones(DARK))
    cells = [("alpha", ""), ("1234", ""), ("a long sentence", ""), ("98765", "")]
    titles = (("id", False), ("gpu", True), ("told", False), ("cpu", True))
    drawing.columns = Columns(tuple(Heading(name, name.upper(), right) for name, right in titles))
    drawing.columns.measure([Row("a", tuple(cells))])

    def drawn(width: int) -> str:
        most_shift = max(0, drawing.columns.total(width) - width)
        row = drawing.row(
            Row("a", tuple(cells)), VisibleCells(width, 0, most_shift), at_cursor=False, focused=False, marked=False
        )
        assert row.cell_length == width
        return row.text.rstrip()

    assert drawn(38) == "  alpha  1234  a long sentence  98765"
    assert drawn(36) == "  alpha  1234  a long sentence"
    assert drawn(26) == "  alpha  1234  a long s…"
    assert drawn(14) == "  alpha"
