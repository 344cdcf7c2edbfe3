"""How things look: the tones text is drawn in, and a glyph and a word for every state.

View models name tones; only here do tones become the colours of a theme. No state is told by colour alone.
"""

from __future__ import annotations

from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.theme import Theme

from console.text.terminal_text import printable

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


QUIET = ("dim", "faint")
"""Tones in which nothing is drawn on the line of the cursor: that is read first."""


def tones(theme: Theme) -> dict[str, Style]:
    """The style of every tone a view model may name, in the colours of a theme."""
    return _ansi_tones(theme) if theme.ansi else _rgb_tones(theme)


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
    }


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
    }


def drawn(text: str, style: Style) -> Segment:
    """A piece of a line of the screen. Nothing is drawn in another way, so that no text, wherever it was forgotten, can
    act on a terminal or be read as markup."""
    return Segment(printable(text), style)
