"""Every page, by rules: its lines keep to every width, and a theme changes colours only, all of which can be read. With
every word a stranger's: test_hostile_text.py. As a person sees them: test_snapshots.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.strip import Strip
from textual.theme import Theme
from textual.widget import Widget

from console.text.tones import CONTRAST, PLAIN, STATES, THEMES, tones
from console.tui.widgets.drawing import OneLine, PlacedScroll
from console.tui.widgets.pane import MARGIN, SectionsView
from console.tui.widgets.window_table import WindowTable
from tests.console.text.test_palettes import contrast, rgb
from tests.console.tui.test_snapshots import FAR, QUICK, SCREENS, app, app_past_the_cell

PHONE = (45, 30)
SIZES = (PHONE, (60, 15), (80, 24), (100, 30), (120, 36), (140, 40), (220, 60))
EVERY_PAGE = SCREENS | FAR
LINES = re.compile(r"[\s─│┃╭╮╰╯▁▔·]*")
"""What is drawn without a meaning, or for one that a word beside it has."""


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=() if page in QUICK else pytest.mark.thorough) for page in EVERY_PAGE]
)
async def test_every_width_and_theme(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    console: Any = app_past_the_cell(monkeypatch) if page in FAR else app()
    async with console.run_test(size=SIZES[-2], notifications=False) as pilot:
        await EVERY_PAGE[page](pilot)
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await settle(pilot)
            keep_to_the_page(pilot)
            if size == PHONE:
                names_are_whole(pilot)
        words = text_of(pilot)
        for theme in THEMES:
            console.theme = theme.name
            await pilot.pause()
            assert text_of(pilot) == words, "a theme changes colours only"
            can_be_read(pilot, theme)
            if theme is PLAIN:
                await loses_nothing_without_colour(pilot)


async def settle(pilot: Pilot[None]) -> None:
    if len(pilot.app.screen_stack) == 1:  # else a worker waits for what the person answers
        await pilot.app.workers.wait_for_complete()
    await pilot.pause()


def text_of(pilot: Pilot[None]) -> list[str]:
    return [strip.text for strip in pilot.app.screen._compositor.render_strips()]


def drawn_by(pilot: Pilot[None]) -> Iterator[tuple[Widget, Strip]]:
    """The lines of every widget in view that draws its own."""
    for widget in pilot.app.screen._compositor.visible_widgets:
        if isinstance(widget, OneLine | PlacedScroll):
            for y in range(widget.size.height):
                yield widget, widget.render_line(y)


def keep_to_the_page(pilot: Pilot[None]) -> None:
    """Each line is exactly as wide as what draws it, so that it stands over no neighbour and leaves nothing of an older
    one; where that is too narrow, it says so."""
    for widget, strip in drawn_by(pilot):
        width = widget.size.width - isinstance(widget, WindowTable)  # its scroll bar has the last cell
        assert strip.cell_length == sum(cell_len(text) for text, _, _ in strip) == width, strip.text
    for widget in pilot.app.screen._compositor.visible_widgets:
        if isinstance(widget, SectionsView):
            top = widget.scroll_offset.y
            for y, line in enumerate(widget.lines[top : top + widget.size.height]):
                if MARGIN + sum(cell_len(text) for text, _ in line.spans) > widget.size.width:
                    assert widget.render_line(y).text.endswith("… "), line.spans


NAME = re.compile(r"\b(?:wl|node|P|R|D)-[A-Za-z0-9]*…|\b(?=[a-f]*[0-9])[0-9a-f]{4,11}…")
"""An id or a digest that is cut."""


def names_are_whole(pilot: Pilot[None]) -> None:
    """On a phone one can tell what a line is about, and what one votes on."""
    for widget, strip in drawn_by(pilot):
        if isinstance(widget, SectionsView):
            assert not NAME.search(strip.text.replace(" …", "…")), strip.text


def can_be_read(pilot: Pilot[None], theme: Theme) -> None:
    """WCAG 2.2 of each pair of colours in which something is written. A theme of the terminal's own colours leaves that
    to the terminal."""
    looks = tones(theme)
    for _, strip in drawn_by(pilot):
        for text, style, _ in strip:
            if LINES.fullmatch(text) or theme.ansi:
                continue
            least = 3.0 if style.color == looks["faded"].color else 7.0 if theme is CONTRAST else 4.5
            assert contrast(rgb(style.color), rgb(style.bgcolor)) >= least, (theme.name, text, style)


async def loses_nothing_without_colour(pilot: Pilot[None]) -> None:
    """States have their signs, the line of the cursor has one, and no colour is left."""
    for strip in pilot.app.screen._compositor.render_strips():
        for text, style, _ in strip:
            for colour in (style.color, style.bgcolor) if style is not None else ():
                assert colour is None or colour.is_default, (text, style)
    for glyph, word in re.findall("([○◇◔●✓✗⊘‖◌◑◂]) ([a-z_]+)", "\n".join(text_of(pilot))):
        if word in STATES:
            assert STATES[word][0] == glyph, f"{glyph} {word}"
    view: Any = pilot.app.focused
    if isinstance(view, SectionsView):
        view.show_cursor()
        await pilot.pause()
    if getattr(view, "link", "") or getattr(view, "cursor_row", None) is not None:
        assert sum("▌" in line for line in text_of(pilot)) == 1
