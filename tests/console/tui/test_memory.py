"""A console stays on for days: what was on the screen and is gone is not kept."""

from __future__ import annotations

import gc
from collections import Counter

from textual.strip import Strip

from console.client.garbage_collection import EVERY_S
from console.tui.widgets.pane import SectionsView
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, press, until


async def test_pages_and_dialogs_that_were_left_are_not_kept() -> None:
    later = [0.0]
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
            later[0] += 2 * EVERY_S
            now = pilot.app.clock() + later[0]  # type: ignore[attr-defined]
            pilot.app._garbage.time_passes(now, now - EVERY_S)  # type: ignore[attr-defined]
            gc.collect()
            return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, SectionsView | Strip))

        before, after = await there_and_back(2), await there_and_back(6)
        assert after["SectionsView"] == 0
        assert after["Strip"] <= before["Strip"] * 1.1
