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


class Numbers(Widget):
    """As many lines of one sign as it is high."""

    DEFAULT_CSS = "Numbers { height: 1fr; }"

    def __init__(self, sign: str) -> None:
        super().__init__()
        self._sign = sign

    def render_lines(self, crop: Region) -> list[Strip]:
        return [Strip([Segment(self._sign * crop.width)])] * crop.height


class Sheet(PageScreen):
    def compose(self) -> ComposeResult:
        yield Numbers("1")


async def test_a_widget_somebody_asks_about_before_it_was_laid_out_is_drawn() -> None:
    """The page after a key: its first frame comes after somebody asked where its list is."""

    class Sheets(App[None]):
        def get_default_screen(self) -> PageScreen:
            return Sheet()

    async with Sheets().run_test(size=(20, 4)) as pilot:
        screen, was = pilot.app.screen, pilot.app.screen.query_one(Numbers)
        assert isinstance(screen, PageScreen)
        compositor = screen._compositor
        sent: list[Region] = []
        draws = compositor.render_update

        def noted(*arguments: object, **named: object) -> object:
            sent.extend(compositor._dirty_regions)
            return draws(*arguments, **named)  # type: ignore[arg-type]

        compositor.render_update = noted  # type: ignore[assignment, method-assign]
        comes = Numbers("2")
        with pilot.app.batch_update():
            was.display = False
            await screen.mount(comes)
            compositor._full_map_invalidated = True
            assert compositor.full_map[comes].region == Region(0, 0, 20, 4)
            screen.draw(lay_out=False)
            sent.clear()
        screen.draw()
        assert Region(0, 0, 20, 4) in sent
        assert picture(compositor) == ["2" * 20] * 4
