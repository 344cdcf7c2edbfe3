"""From 200 columns on there is a third one, that tells more and is reached by the same keys."""

from __future__ import annotations

from console.tui.screens.overview import OverviewPane
from console.tui.widgets.pane import spread
from console.views.cell_overview import LongestWait, LostNode, RecentColumn, third_column
from console.views.sections import Section, text_line
from engine.model.overviews import Change
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, here, press, quick, until

__all__ = ["quick"]

WAITS = LongestWait("wl-1", "research/nlp", "64 GPU", 7_200_000, "WaitingForQuota")
LOST = LostNode("node-7", "down", "h100", "r2", 3)


def words(sections: list[Section]) -> str:
    return "\n".join("".join(text for text, _ in line.spans) for each in sections for line in each.lines)


def events(count: int) -> list[Change]:
    return [Change(version=i, at_ms=i * 1000, what="failed", subject=f"wl-{i}", detail="exit 1") for i in range(count)]


def test_work_nodes_and_news_share_the_height() -> None:
    told = RecentColumn((WAITS,) * 12, 40, (LOST,) * 8, 9)
    for height in (12, 24, 40, 60):
        sections = third_column(told, events(100), 60, height)
        assert [each.title for each in sections] == ["Longest waits", "Down or silent", "Recent events"]
        assert height < 20 or sum(len(each.lines) + 2 for each in sections) - 1 <= height
        assert all(sum(len(text) for text, _ in line.spans) <= 60 for each in sections for line in each.lines)
    assert "2h" in words(sections)
    assert sections[0].lines[0].link == "workload wl-1"
    assert sections[1].lines[0].link == "node node-7"
    assert sections[2].lines[0].link == "open wl-0"


def test_nothing_to_tell_is_said() -> None:
    assert "nothing is waiting" in words(third_column(RecentColumn(), [], 60, 40))
    assert "no events yet" in words(third_column(RecentColumn(), [], 60, 40))


def test_three_columns_are_as_low_as_can_be_and_keep_the_order() -> None:
    sections = [Section(str(n), (text_line("x"),) * n) for n in (9, 1, 1, 8, 2, 3)]
    columns = spread(sections)
    assert [each for column in columns for each in column] == sections
    assert max(sum(len(each.lines) + 2 for each in column) for column in columns) == 14
    assert spread([]) == ([], [], [])


async def test_the_third_column_comes_and_goes_with_the_width_and_enter_opens_what_it_names() -> None:
    async with console(FakeClient(), "overview", (220, 50)) as pilot:
        page = here(pilot)
        assert isinstance(page, OverviewPane)
        await until(pilot, lambda: page.detail is not None and page.detail.lately.queued > 0)
        assert page.TAILS
        first = page.detail.lately.waiting[0].id
        await press(pilot, "right", "right")
        assert page._third.has_focus
        await until(pilot, lambda: page._third.link.startswith("workload "))
        assert page.copyable == page._third.link.partition(" ")[2]
        assert first in "\n".join(page.text_lines())
        await press(pilot, "enter")
        await until(pilot, lambda: here(pilot).NAME == "workload")
        await press(pilot, "h")
        await until(pilot, lambda: here(pilot) is page and page._third.has_focus)
        await pilot.resize_terminal(140, 40)
        await until(pilot, lambda: not page._third.display)
        assert not page.TAILS
