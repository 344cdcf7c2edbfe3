"""The themes: dark, light, of high contrast, safe for the colour-blind, of sixteen colours, and without any.

Contrast and what remains of the colours for the colour-blind are measured by tests/console/text/test_palettes.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from textual.theme import Theme


def _coloured(
    name: str,
    *,
    dark: bool = True,
    ground: str,
    surface: str,
    panel: str,
    cursor: str,
    text: str,
    dim: str,
    faint: str,
    rule: str,
    off: str,
    primary: str,
    accent: str,
    ok: str,
    info: str,
    warn: str,
    bad: str,
) -> Theme:
    """A theme with colours of its own. `dim` and `faint` can be read as `text` can, but not first; `rule` is for lines
    without a meaning, `off` for what cannot be done now."""
    return Theme(
        name=f"muster-{name}",
        dark=dark,
        primary=primary,
        secondary=dim,
        accent=accent,
        foreground=text,
        background=ground,
        surface=surface,
        panel=panel,
        success=ok,
        warning=warn,
        error=bad,
        variables={
            "cursor": cursor,
            "dim": dim,
            "faint": faint,
            "rule": rule,
            "off": off,
            "info": info,
            "border": rule,
            "input-cursor-background": text,
            "input-cursor-foreground": ground,
            "scrollbar": faint,
            "scrollbar-hover": dim,
            "scrollbar-active": primary,
            "scrollbar-background": ground,
            "scrollbar-background-hover": ground,
            "scrollbar-background-active": ground,
        },
    )


def _of_the_terminal(name: str, **colours: str) -> Theme:
    """A theme of the terminal's own sixteen colours on its own ground; what is not given is its colour of text."""
    plain = "ansi_default"
    named = {name: colours.get(name, plain) for name in ("primary", "accent", "ok", "info", "warn", "bad")}
    variables: dict[str, str] = {
        "cursor": plain,
        "info": named["info"],
        "border": plain,
        "border-blurred": plain,
        "ansi-background": plain,
        "ansi-foreground": plain,
        "input-cursor-background": plain,
        "input-cursor-foreground": plain,
        "input-cursor-text-style": "reverse",
        "input-selection-background": plain,
        "block-cursor-foreground": plain,
        "block-cursor-background": plain,
        "block-cursor-text-style": "reverse",
    }
    bars = ("scrollbar", "scrollbar-hover", "scrollbar-active", "scrollbar-corner-color")
    variables |= dict.fromkeys((*bars, *(f"scrollbar-background{state}" for state in ("", "-hover", "-active"))), plain)
    return Theme(
        name=f"muster-{name}", ansi=True, foreground=plain, background=plain, surface=plain, panel=plain, boost=plain,
        secondary=plain, primary=named["primary"], accent=named["accent"], success=named["ok"], warning=named["warn"],
        error=named["bad"], variables=variables,
    )  # fmt: skip


DARK = _coloured(
    "dark", ground="#14171c", surface="#191d23", panel="#232932", cursor="#222e4c",
    text="#d3d7de", dim="#969da8", faint="#78859a", rule="#3a424e", off="#737d8d",
    primary="#7aa2c8", accent="#e0b060", ok="#86b57a", info="#6fb3b8", warn="#d9a95b", bad="#dd837f",
)  # fmt: skip
LIGHT = _coloured(
    "light", dark=False, ground="#f7f7f4", surface="#eeeeea", panel="#e9e9e4", cursor="#d7ecfa",
    text="#23272e", dim="#5a616b", faint="#6f6f63", rule="#c9c9c2", off="#757b72",
    primary="#2a5f93", accent="#855500", ok="#2a6d30", info="#1f6a70", warn="#865608", bad="#b32b27",
)  # fmt: skip
CONTRAST = _coloured(
    "contrast", ground="#000000", surface="#000000", panel="#1c1c1c", cursor="#002a60",
    text="#ffffff", dim="#d0d0d0", faint="#a8a8a8", rule="#808080", off="#b4b4b4",
    primary="#8fd0ff", accent="#ffd75f", ok="#6ff089", info="#66e5ff", warn="#ffc933", bad="#ffaaa5",
)  # fmt: skip
SAFE = _coloured(
    "safe", ground="#14171c", surface="#191d23", panel="#232932", cursor="#222e4c",
    text="#e2e5ea", dim="#98a1b0", faint="#78859a", rule="#3a424e", off="#737d8d",
    primary="#a3b8d0", accent="#e8d3a0", ok="#1ab2ff", info="#dbffff", warn="#ffd91a", bad="#ff9966",
)  # fmt: skip
SIXTEEN = _of_the_terminal(
    "sixteen", primary="ansi_bright_cyan", accent="ansi_bright_yellow", ok="ansi_bright_green",
    info="ansi_bright_cyan", warn="ansi_bright_yellow", bad="ansi_bright_red",
)  # fmt: skip
PLAIN = _of_the_terminal("plain")

THEMES = (DARK, LIGHT, CONTRAST, SAFE, SIXTEEN, PLAIN)
"""By their names behind `muster-`: as `settings.THEMES` has them, and in the order that `t` goes through."""


def name_of(theme: Theme) -> str:
    """As people call it."""
    return theme.name.removeprefix("muster-")


def theme_for(wanted: str, environment: Mapping[str, str], colours: str | None) -> Theme:
    """The theme of a setting; "auto" looks at what the terminal says of itself. `colours` is what it can show, as Rich
    names it: "standard" are sixteen. A theme asked for by name overrides NO_COLOR, as https://no-color.org has it."""
    for theme in THEMES:
        if name_of(theme) == wanted:
            return theme
    if environment.get("NO_COLOR") or colours is None:
        return PLAIN
    if colours == "standard":
        return SIXTEEN
    # As rxvt, konsole and others set it: text;ground.
    return LIGHT if environment.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15") else DARK
