"""What `t` and `:theme NAME` do."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from console.client.change_feed import in_thread
from console.text.terminal_text import printable
from console.text.themes import PLAIN, THEMES, name_of
from engine.model.errors import SpecError

if TYPE_CHECKING:
    from console.tui.app import MusterApp


def choose(app: MusterApp, argument: str) -> None:
    """Draw in the theme of that name; without one, in the next. Raises SpecError."""
    names = [name_of(theme) for theme in THEMES]
    here = names.index(name_of(app.current_theme))
    wanted = argument.strip().lower() or names[(here + 1) % len(names)]
    if wanted not in names:
        near = get_close_matches(wanted, names, 1)
        remedy = f"Did you mean :theme {near[0]}?" if near else f"There are {', '.join(names)}"
        raise SpecError("", f"there is no theme '{printable(wanted)[:40]}'", remedy)
    theme = THEMES[names.index(wanted)]
    app.theme = theme.name
    app.run_worker(in_thread(lambda: app.session.remember("theme", wanted)), group="theme")
    app.say(f"theme {wanted}" + (": no colours" if theme is PLAIN else ""))
