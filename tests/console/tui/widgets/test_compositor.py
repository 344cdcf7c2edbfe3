"""The picture of the screen is Textual's, with less drawn for it; and nothing is left of what is being laid out."""

from __future__ import annotations

import pytest
from rich.segment import Segment
from textual._compositor import Compositor
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from console.tui.widgets.drawing import LeanCompositor, PageScreen
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, here, press, quick, until

__all__ = ["quick"]


def picture(compositor: Compositor) -> list[str]:
    return [strip.text for strip in compositor.render_strips()]


def as_textual_draws(compositor: Compositor) -> list[str]:
    chops = Compositor._render_chops(compositor, compositor.size.region, lambda _y: True)
    return [Strip.join(chop.values()).text for chop in chops]


@pytest.mark.parametrize("keys", [("1",), ("3",), ("slash",), ("3", "enter")])
async def test_a_page_is_drawn_as_textual_draws_it(keys: tuple[str, ...]) -> None:
    async with console(FakeClient()) as pilot:
        await press(pilot, *keys)
        await until(pilot, lambda: pilot.app.workers is not None and here(pilot) is not None)
        compositor = pilot.app.screen._compositor
        assert isinstance(compositor, LeanCompositor)
        assert picture(compositor) == as_textual_draws(compositor)


class Late(Widget):
    """Still has the lines of another size."""

    DEFAULT_CSS = "Late { height: 1fr; }"

    def render_lines(self, crop: Region) -> list[Strip]:
        return [Strip([Segment("short")])] * (crop.height - 2)


class Page(PageScreen):
    def compose(self) -> ComposeResult:
        with Vertical():
            yield Late()


async def test_what_has_lines_of_another_size_leaves_no_hole() -> None:
    class Late80(App[None]):
        def get_default_screen(self) -> PageScreen:
            return Page()

    async with Late80().run_test(size=(80, 24)) as pilot:
        compositor = pilot.app.screen._compositor
        chops = compositor._render_chops(compositor.size.region, lambda _y: True)
        assert all(piece is not None for chop in chops for piece in chop.values())
        assert compositor.render_full_update().render_segments(pilot.app.console)
