"""Marks: what an action acts on is what is marked, no more and no less."""

from __future__ import annotations

from console.tui.widgets.table_rows import MOST, Selection
from console.views.lists import Row
from runbooks.actions.declaration import MAX_TARGETS
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, here, line, notes, press, quick, until, write

__all__ = ["quick"]


def row(number: int) -> Row:
    return Row(f"r{number}", (("x", ""),), "queued", (1_000, 0))


def test_no_more_can_be_marked_than_one_plan_takes() -> None:
    assert MOST == MAX_TARGETS
    selection = Selection()
    selection.take(row(number) for number in range(MOST))
    assert not selection.toggle(row(MOST))
    assert len(selection.marked) == MOST
    assert selection.toggle(row(0)), "one may be taken away"
    selection.begin(0)
    selection.extend([row(number) for number in range(2 * MOST)])
    assert len(selection.marked) == MOST


def test_a_range_adds_to_what_was_marked_and_can_be_given_up() -> None:
    selection = Selection()
    selection.toggle(row(9))
    selection.begin(0)
    selection.extend([row(0), row(1), row(2)])
    selection.extend([row(0)])
    assert list(selection.marked) == ["r9", "r0"], "a range that shrinks unmarks"
    selection.give_up()
    assert list(selection.marked) == ["r9"]


async def test_the_title_counts_and_adds_up() -> None:
    async with console(FakeClient(200), size=(160, 30)) as pilot:
        await press(pilot, "space", "space", "space")
        marked = here(pilot).table.marked.values()
        gpu = sum(each.asks[0] for each in marked) / 1000
        assert f"3 marked, {gpu:g} GPU" in line(pilot, "title")


async def test_a_range_is_marked_over_rows_that_were_never_in_view() -> None:
    async with console(FakeClient(2_000), size=(160, 30)) as pilot:
        pane = here(pilot)
        await press(pilot, "j", "v")
        pane.table._go(400)
        await until(pilot, lambda: len(pane.table.marked) == 400)
        assert "range: v keeps it" in line(pilot, "title")
        listed = [each.id for each in pane.view.window(pane.connect().query(pane.view.query(0, 500)), 0).rows]
        assert list(pane.table.marked) == listed[1:401]
        await press(pilot, "v")
        assert len(pane.targets) == 400
        await press(pilot, "escape")
        assert pane.table.marked == {}


async def test_a_range_beyond_one_plan_is_refused() -> None:
    async with console(FakeClient(3_000)) as pilot:
        await press(pilot, "v", "G")
        table = here(pilot).table
        await until(pilot, lambda: len(table.marked) == MOST)
        await until(pilot, lambda: "at most 1,000 workloads" in notes(pilot))
        await press(pilot, "escape")
        assert table.marked == {}


async def test_all_that_match_are_marked_by_id() -> None:
    async with console(FakeClient(500), size=(160, 30)) as pilot:
        here(pilot).filter("state:held")
        await press(pilot, "a")
        await until(pilot, lambda: len(here(pilot).targets) == 50)
        assert {target.state for target in here(pilot).targets} == {"held"}
        await press(pilot, "a")
        assert here(pilot).table.marked == {}, "again: none"


async def test_more_than_one_plan_takes_is_refused_and_counted() -> None:
    async with console(FakeClient(2_500)) as pilot:
        await press(pilot, "a")
        await until(pilot, lambda: "2,500 workloads match, and one plan takes at most 1,000" in notes(pilot))
        assert here(pilot).table.marked == {}


async def test_marks_survive_what_happens_and_fall_when_they_no_longer_match() -> None:
    client = FakeClient(500)
    async with console(client, size=(160, 30)) as pilot:
        here(pilot).filter("state:queued")
        await until(pilot, lambda: here(pilot).table.matched == 100)
        await press(pilot, "space", "space", "space")
        ids = list(here(pilot).table.marked)
        client.happen()
        await until(pilot, lambda: here(pilot).as_of.version == client.version)  # type: ignore[union-attr]
        assert list(here(pilot).table.marked) == ids
        client._find(ids[1])["state"] = "running"
        client.happen("running", ids[1])
        await until(pilot, lambda: list(here(pilot).table.marked) == [ids[0], ids[2]])
        await until(pilot, lambda: "1 marked no longer match" in notes(pilot))
        assert [target.id for target in here(pilot).targets] == [ids[0], ids[2]]


async def test_a_filter_takes_away_marks_that_it_would_hide() -> None:
    async with console(FakeClient(500)) as pilot:
        await press(pilot, "space", "space")
        await press(pilot, "slash")
        await write(pilot, "state:held")
        await press(pilot, "enter")
        assert here(pilot).table.marked == {}


async def test_marks_by_mouse() -> None:
    async with console(FakeClient(500)) as pilot:
        table = here(pilot).table
        await pilot.click(table, offset=(6, 3), control=True)
        await pilot.click(table, offset=(6, 5), control=True)
        assert len(table.marked) == 2
        await pilot.click(table, offset=(6, 8), shift=True)
        assert len(table.marked) == 5
        assert table.cursor == 7
