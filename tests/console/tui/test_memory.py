"""A console stays on for days: what was on the screen and is gone is not kept."""

from __future__ import annotations

import gc
from collections import Counter

from textual.strip import Strip

from console.tui.app import free_left_pages
from console.tui.widgets.pane import SectionsView
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, press, until


async def test_pages_and_dialogs_that_were_left_are_not_kept() -> None:
    async with console(FakeClient(200)) as pilot:

        async def there_and_back(times: int) -> Counter[str]:
            for _ in range(times):
                await press(pilot, "enter")
                await until(pilot, lambda: pilot.app.screen.query(SectionsView))
                await press(pilot, "escape")
                await until(pilot, lambda: not pilot.app.screen.query(SectionsView))
                await press(pilot, "s")
                await until(pilot, lambda: len(pilot.app.screen_stack) > 1)
                await press(pilot, "escape")
                await until(pilot, lambda: len(pilot.app.screen_stack) == 1)
            free_left_pages()
            return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, SectionsView | Strip))

        before, after = await there_and_back(2), await there_and_back(6)
        assert after["SectionsView"] == 0
        assert after["Strip"] <= before["Strip"] * 1.1
