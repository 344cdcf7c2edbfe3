"""What the themes look like to eyes that see little, other colours, or none: measured."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from rich.color import Color, ColorSystem
from rich.style import Style
from textual.theme import Theme

from console.forms import settings
from console.text.tones import CONTRAST, DARK, LIGHT, PLAIN, SAFE, SIXTEEN, STATES, THEMES, name_of, theme_for, tones

COLOURED = (DARK, LIGHT, CONTRAST, SAFE)
ON_PAGES = ("", "strong", "dim", "ok", "warn", "bad", "info", "accent", "head", "link", "bar")
"""Tones of text that stands on the page, and on the line of the cursor."""
IN_BLOCKS = ("header", "sorted", "top", "key", "off", "tab", "brand", "alarm", "caution", "faint",
             *(f"mark {name}" for name in settings.COLOURS))  # fmt: skip
"""Tones of text on a ground of its own; faint text is drawn as other text is where the cursor stands."""
UNUSABLE = "faded"
"""Keys that do nothing now, of which WCAG asks nothing."""
STATE_TONES = sorted({tone for _, tone in STATES.values()} - {""})

Rgb = tuple[float, float, float]


def rgb(colour: Color, depth: ColorSystem = ColorSystem.TRUECOLOR) -> Rgb:
    """As a terminal of that depth shows it, linear."""
    triplet = colour.downgrade(depth).get_truecolor()
    red, green, blue = (c / 255 for c in triplet)
    return linear(red), linear(green), linear(blue)


def linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def contrast(one: Rgb, other: Rgb) -> float:
    """WCAG 2.2: 1 to 21."""
    dark, light = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in (one, other))
    return (light + 0.05) / (dark + 0.05)


def grounds(theme: Theme, tone: str) -> list[Style]:
    """What a tone is drawn over."""
    looks = tones(theme)
    if tone in ON_PAGES:
        return [looks["base"], looks["base"] + looks["cursor"]]
    return [looks["base"]]


@pytest.mark.parametrize("depth", [ColorSystem.TRUECOLOR, ColorSystem.EIGHT_BIT], ids=["24 bit", "256 colours"])
@pytest.mark.parametrize("theme", COLOURED, ids=name_of)
def test_text_can_be_read(theme: Theme, depth: ColorSystem) -> None:
    least = dict.fromkeys((*ON_PAGES, *IN_BLOCKS), 7.0 if theme is CONTRAST else 4.5) | {UNUSABLE: 3.0}
    poor = []
    for tone, wanted in least.items():
        for ground in grounds(theme, tone):
            style = ground + tones(theme)[tone]
            assert style.color is not None
            assert style.bgcolor is not None
            found = contrast(rgb(style.color, depth), rgb(style.bgcolor, depth))
            if found < wanted:
                poor.append(f"{tone or 'text'} on {style.bgcolor.name}: {found:.2f} < {wanted}")
    assert poor == []


def test_every_tone_is_one_whose_contrast_is_measured() -> None:
    assert {*ON_PAGES, *IN_BLOCKS, UNUSABLE, "base", "cursor", "rule"} == set(tones(DARK))
    assert all(tones(theme).keys() == tones(DARK).keys() for theme in THEMES)


BLIND = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""Machado, Oliveira and Fernandes 2009, of full severity, on linear RGB."""


def seen(colour: Rgb, matrix: tuple[Rgb, Rgb, Rgb]) -> Rgb:
    red, green, blue = (
        min(1.0, max(0.0, sum(part * channel for part, channel in zip(row, colour, strict=True)))) for row in matrix
    )
    return red, green, blue


def lab(colour: Rgb) -> Rgb:
    red, green, blue = colour
    x = (0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047
    y = 0.2126729 * red + 0.7151522 * green + 0.0721750 * blue
    z = (0.0193339 * red + 0.1191920 * green + 0.9503041 * blue) / 1.08883
    fx, fy, fz = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def nearest(theme: Theme, matrix: tuple[Rgb, Rgb, Rgb]) -> tuple[float, str, str]:
    """The two tones of states that look most alike, and how far apart they are: CIE 1976, where 2.3 is just seen."""
    looks = {tone: lab(seen(rgb(style.color), matrix)) for tone, style in tones(theme).items() if style.color}
    return min((math.dist(looks[one], looks[other]), one, other) for one, other in combinations(STATE_TONES, 2))


@pytest.mark.parametrize("matrix", BLIND.values(), ids=BLIND.keys())
def test_the_safe_theme_keeps_states_apart_for_the_colour_blind(matrix: tuple[Rgb, Rgb, Rgb]) -> None:
    distance, one, other = nearest(SAFE, matrix)
    assert distance > 25, f"{one} and {other}"


def test_the_measure_finds_what_the_colour_blind_confuse() -> None:
    assert nearest(DARK, BLIND["deuteranopia"])[0] < 10


def test_states_of_one_tone_differ_in_their_glyph_or_mean_the_same_kind_of_thing() -> None:
    """The word always stands beside the glyph; two states that need opposite answers share neither glyph nor tone."""
    alarming = {glyph for glyph, tone in STATES.values() if tone == "bad"}
    calm = {glyph for glyph, tone in STATES.values() if tone in ("ok", "info")}
    assert not alarming & calm


VGA = {1: "#aa0000", 9: "#ff5555", 10: "#55ff55", 11: "#ffff55", 13: "#ff55ff", 14: "#55ffff"}
XTERM = {1: "#cd0000", 9: "#ff0000", 10: "#00ff00", 11: "#ffff00", 13: "#ff00ff", 14: "#00ffff"}


@pytest.mark.parametrize("palette", [VGA, XTERM], ids=["console of Linux", "xterm"])
def test_sixteen_colours_can_be_read_on_black(palette: dict[int, str]) -> None:
    black = (0.0, 0.0, 0.0)
    for tone, style in tones(SIXTEEN).items():
        assert style.bgcolor is None or style.bgcolor.is_default, "the ground is the terminal's"
        if style.color is not None and not style.color.is_default:
            assert style.color.number in palette, tone
            assert contrast(rgb(Color.parse(palette[style.color.number])), black) >= 4.5, tone


def test_the_plain_theme_has_no_colour() -> None:
    for tone, style in tones(PLAIN).items():
        for colour in (style.color, style.bgcolor):
            assert colour is None or colour.is_default, tone


def test_without_colour_blocks_keys_and_the_cursor_still_stand_out() -> None:
    plain = tones(PLAIN)
    assert plain["cursor"].reverse
    assert plain["alarm"].reverse
    assert plain["tab"].reverse
    assert plain["key"].bold
    assert not plain["off"].bold


def test_settings_name_the_themes_there_are() -> None:
    assert ("auto", *map(name_of, THEMES)) == settings.THEMES


@pytest.mark.parametrize(
    ("wanted", "environment", "colours", "expected"),
    [
        ("auto", {}, "truecolor", DARK),
        ("auto", {}, "256", DARK),
        ("auto", {}, "standard", SIXTEEN),
        ("auto", {}, None, PLAIN),
        ("auto", {"COLORFGBG": "0;15"}, "truecolor", LIGHT),
        ("auto", {"COLORFGBG": "15;default;0"}, "truecolor", DARK),
        ("auto", {"NO_COLOR": "1"}, "truecolor", PLAIN),
        ("auto", {"NO_COLOR": ""}, "truecolor", DARK),
        ("safe", {"NO_COLOR": "1"}, "truecolor", SAFE),
        ("contrast", {}, "standard", CONTRAST),
    ],
)
def test_auto_takes_what_the_terminal_says(
    wanted: str, environment: dict[str, str], colours: str | None, expected: Theme
) -> None:
    assert theme_for(wanted, environment, colours) is expected
