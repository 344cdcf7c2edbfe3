"""How things look: two themes, the tones text is drawn in, and a glyph and a word for every state.

View models name tones; only here do tones become colours. No state is told by colour alone.
"""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.theme import Theme

from console.text import printable

DARK = Theme(
    name="muster-dark",
    dark=True,
    primary="#7aa2c8",
    secondary="#8a93a6",
    accent="#e0b060",
    foreground="#d3d7de",
    background="#14171c",
    surface="#191d23",
    panel="#232932",
    success="#86b57a",
    warning="#d9a95b",
    error="#d9736e",
    variables={
        "cursor": "#2b3a4d",
        "dim": "#7d8593",
        "faint": "#3a424e",
        "faded": "#5c6472",
        "info": "#6fb3b8",
        "border": "#3a424e",
        "input-cursor-background": "#d3d7de",
        "scrollbar": "#2f3641",
        "scrollbar-hover": "#46505e",
        "scrollbar-active": "#7aa2c8",
        "scrollbar-background": "#14171c",
        "scrollbar-background-hover": "#14171c",
        "scrollbar-background-active": "#14171c",
    },
)

LIGHT = Theme(
    name="muster-light",
    dark=False,
    primary="#2a5f93",
    secondary="#5c6675",
    accent="#8a5a00",
    foreground="#23272e",
    background="#f7f7f4",
    surface="#eeeeea",
    panel="#e3e3dd",
    success="#2f7a35",
    warning="#96610a",
    error="#b3302b",
    variables={
        "cursor": "#cfdff0",
        "dim": "#666d78",
        "faint": "#c9c9c2",
        "faded": "#9a9f98",
        "info": "#1f6f75",
        "border": "#c9c9c2",
        "input-cursor-background": "#23272e",
        "scrollbar": "#cfcfc8",
        "scrollbar-hover": "#b5b5ac",
        "scrollbar-active": "#2a5f93",
        "scrollbar-background": "#f7f7f4",
        "scrollbar-background-hover": "#f7f7f4",
        "scrollbar-background-active": "#f7f7f4",
    },
)

THEMES = (DARK, LIGHT)

STATES: dict[str, tuple[str, str]] = {
    "queued": ("○", "warn"),
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


def tones(theme: Theme) -> dict[str, Style]:
    """The style of every tone a view model may name, in the colours of a theme."""
    colours = theme.variables
    return {
        "base": Style(color=theme.foreground, bgcolor=theme.background),
        "": Style(color=theme.foreground),
        "strong": Style(color=theme.foreground, bold=True),
        "dim": Style(color=colours["dim"]),
        "struck": Style(color=colours["dim"], strike=True),
        "faint": Style(color=colours["faint"]),
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
        "faded": Style(color=colours["faded"], bgcolor=theme.panel),
        "tab": Style(color=theme.background, bgcolor=theme.primary, bold=True),
        "brand": Style(color=theme.background, bgcolor=theme.accent, bold=True),
        "alarm": Style(color=theme.background, bgcolor=theme.error, bold=True),
        "caution": Style(color=theme.background, bgcolor=theme.warning, bold=True),
    }


def drawn(text: str, style: Style) -> Segment:
    """A piece of a line of the screen. Nothing is drawn in another way, so that no text, wherever it was forgotten, can
    act on a terminal or be read as markup."""
    return Segment(printable(text), style)
