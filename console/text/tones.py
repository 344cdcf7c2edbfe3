"""Tones of text, a glyph and a word for every state, and the themes.

View models name tones; this module turns them into the colours of a theme. No state is told by colour alone. Themes:
dark, light, high contrast, colour-blind safe, sixteen colours, and monochrome. tests/console/text/test_palettes.py
measures their contrast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.theme import Theme

from console.text.terminal_text import printable

STATES: dict[str, tuple[str, str]] = {
    "queued": ("○", ""),
    "held": ("◇", "dim"),
    "placed": ("◔", "info"),
    "running": ("●", "ok"),
    "finished": ("✓", "dim"),
    "failed": ("✗", "bad"),
    "cancelled": ("⊘", "dim"),
    "suspended": ("‖", "dim"),
    "waiting": ("◌", "dim"),
    "open": ("●", "ok"),
    "ready": ("●", "ok"),
    "cordoned": ("◇", "warn"),
    "draining": ("◑", "warn"),
    "booting": ("◔", "info"),
    "suspect": ("?", "warn"),
    "down": ("✗", "bad"),
    "filled": ("✓", "dim"),
    "refused": ("✗", "bad"),
    "awaiting": ("○", "warn"),
    "approved": ("◔", "info"),
    "executing": ("●", "info"),
    "verifying": ("◑", "info"),
    "paused": ("‖", "warn"),
    "verified": ("✓", "ok"),
    "rolling_back": ("◂", "warn"),
    "rolled_back": ("◂", "dim"),
    "rollback_failed": ("✗", "bad"),
    "rejected": ("⊘", "bad"),
    "denied": ("⊘", "bad"),
    "stale": ("!", "warn"),
    "expired": ("◌", "dim"),
    "superseded": ("◌", "dim"),
    "draft": ("○", "dim"),
    "changed": ("!", "warn"),
    "retired": ("⊘", "dim"),
    "faulty": ("✗", "bad"),
}
"""State -> glyph and tone. The word itself always stands beside the glyph."""


def state_look(state: str) -> tuple[str, str]:
    """Glyph and tone of a state; a state this console does not know yet is shown plainly."""
    return STATES.get(state, ("·", ""))


QUIET = ("dim", "faint")
"""Tones in which nothing is drawn on the line of the cursor: that is read first."""


def tones(theme: Theme) -> dict[str, Style]:
    """The style of every tone a view model may name, in the colours of a theme."""
    return _ansi_tones(theme) if theme.ansi else _rgb_tones(theme)


def _marks(theme: Theme) -> dict[str, str | None]:
    """Colours by which a person tells environments apart; their names stand in them."""
    return {
        "red": theme.error, "yellow": theme.warning, "green": theme.success, "cyan": theme.variables["info"],
        "blue": theme.primary, "magenta": theme.variables["mark"],
    }  # fmt: skip


def _rgb_tones(theme: Theme) -> dict[str, Style]:
    colours = theme.variables
    return {
        "base": Style(color=theme.foreground, bgcolor=theme.background),
        "": Style(color=theme.foreground),
        "strong": Style(color=theme.foreground, bold=True),
        "dim": Style(color=colours["dim"]),
        "faint": Style(color=colours["faint"]),
        "rule": Style(color=colours["rule"]),
        "ok": Style(color=theme.success),
        "warn": Style(color=theme.warning),
        "bad": Style(color=theme.error),
        "info": Style(color=colours["info"]),
        "accent": Style(color=theme.accent),
        "head": Style(color=theme.primary, bold=True),
        "link": Style(color=theme.primary),
        "bar": Style(color=theme.primary),
        "cursor": Style(bgcolor=colours["cursor"]),
        "header": Style(color=colours["dim"], bgcolor=theme.surface, bold=True),
        "sorted": Style(color=theme.accent, bgcolor=theme.surface, bold=True),
        "top": Style(color=theme.foreground, bgcolor=theme.panel),
        "key": Style(color=theme.accent, bgcolor=theme.panel, bold=True),
        "off": Style(color=colours["dim"], bgcolor=theme.panel),
        "faded": Style(color=colours["off"], bgcolor=theme.panel),
        "tab": Style(color=theme.background, bgcolor=theme.primary, bold=True),
        "brand": Style(color=theme.background, bgcolor=theme.accent, bold=True),
        "alarm": Style(color=theme.background, bgcolor=theme.error, bold=True),
        "caution": Style(color=theme.background, bgcolor=theme.warning, bold=True),
        **{f"mark {name}": Style(color=theme.background, bgcolor=colour, bold=True)
           for name, colour in _marks(theme).items()},
    }  # fmt: skip


def _ansi_tones(theme: Theme) -> dict[str, Style]:
    """Blocks are made by turning text and ground around: the terminal's palette is its owner's affair."""

    def style(colour: str | None = None, **attributes: Any) -> Style:
        return Style(color=(colour or "default").removeprefix("ansi_"), **attributes)

    return {
        "base": Style(color="default", bgcolor="default"),
        **dict.fromkeys(("", "dim", "top", "off"), style()),
        "strong": style(bold=True),
        **dict.fromkeys(("faint", "rule", "faded"), style(dim=True)),
        "ok": style(theme.success),
        "warn": style(theme.warning),
        "bad": style(theme.error),
        "info": style(theme.variables["info"]),
        "accent": style(theme.accent),
        "head": style(theme.primary, bold=True),
        **dict.fromkeys(("link", "bar"), style(theme.primary)),
        "cursor": Style(reverse=True),
        "header": style(bold=True, underline=True),
        "sorted": style(theme.accent, bold=True, underline=True),
        "key": style(theme.accent, bold=True),
        **dict.fromkeys(("tab", "brand"), style(bold=True, reverse=True)),
        "alarm": style(theme.error, bold=True, reverse=True),
        "caution": style(theme.warning, bold=True, reverse=True),
        **{f"mark {name}": style(colour, bold=True, reverse=True) for name, colour in _marks(theme).items()},
    }


def drawn(text: str, style: Style) -> Segment:
    """A piece of a line of the screen. Nothing is drawn in another way, so that no text, wherever it was forgotten, can
    act on a terminal or be read as markup."""
    return Segment(printable(text), style)


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
    mark: str,
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
            "mark": mark,
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
    named = {name: colours.get(name, plain) for name in ("primary", "accent", "ok", "info", "warn", "bad", "mark")}
    variables: dict[str, str] = {
        "cursor": plain,
        "info": named["info"],
        "mark": named["mark"],
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
    primary="#7aa2c8", accent="#b9a7e6", ok="#86b57a", info="#6fb3b8", warn="#d9a95b", bad="#dd837f", mark="#c397d8",
)  # fmt: skip
LIGHT = _coloured(
    "light", dark=False, ground="#f7f7f4", surface="#eeeeea", panel="#e9e9e4", cursor="#d7ecfa",
    text="#23272e", dim="#5a616b", faint="#6f6f63", rule="#c9c9c2", off="#757b72",
    primary="#2a5f93", accent="#5f2f9a", ok="#2a6d30", info="#1f6a70", warn="#865608", bad="#b32b27", mark="#7d3f98",
)  # fmt: skip
CONTRAST = _coloured(
    "contrast", ground="#000000", surface="#000000", panel="#1c1c1c", cursor="#002a60",
    text="#ffffff", dim="#d0d0d0", faint="#a8a8a8", rule="#808080", off="#b4b4b4",
    primary="#8fd0ff", accent="#d8c4ff", ok="#6ff089", info="#66e5ff", warn="#ffc933", bad="#ffaaa5", mark="#f0b0ff",
)  # fmt: skip
SAFE = _coloured(
    "safe", ground="#14171c", surface="#191d23", panel="#232932", cursor="#222e4c",
    text="#e2e5ea", dim="#98a1b0", faint="#78859a", rule="#3a424e", off="#737d8d",
    primary="#a3b8d0", accent="#d0bcf0", ok="#1ab2ff", info="#dbffff", warn="#ffd91a", bad="#ff9966", mark="#d7a8e8",
)  # fmt: skip
SIXTEEN = _of_the_terminal(
    "sixteen", primary="ansi_bright_cyan", accent="ansi_bright_magenta", ok="ansi_bright_green",
    info="ansi_bright_cyan", warn="ansi_bright_yellow", bad="ansi_bright_red", mark="ansi_bright_magenta",
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
