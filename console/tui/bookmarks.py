"""Views with a name: each is one line of text, as it could be typed into the `:` bar, and so as easily passed on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from console.client.change_feed import in_thread
from console.text.terminal_text import printable
from console.tui.page_lines import page_command
from engine.model.errors import SpecError

if TYPE_CHECKING:
    from console.forms.session_state import SessionState
    from console.tui.app import MusterApp

KEY = "bookmarks"
MOST, LONGEST = 200, 500
_NAME = re.compile(r"[^\s=:]{1,40}")


def kept(session: SessionState) -> dict[str, str]:
    """Name -> line, in the order they were made. What a person or another version put there in another form is left
    out."""
    found = session.recall(KEY)
    if not isinstance(found, dict):
        return {}
    return {name: line for name, line in found.items() if isinstance(line, str) and _NAME.fullmatch(name)}


def names(session: SessionState) -> list[str]:
    return sorted(kept(session))


def bookmark(app: MusterApp, argument: str) -> None:
    """`:bookmark NAME` keeps the view that is shown; `:bookmark NAME = LINE` the one that a line leads to, as another
    person has sent it. Without a name the line is begun. Raises SpecError."""
    pane = app.navigator.current
    name, equals, line = (part.strip() for part in argument.partition("="))
    if not equals and pane is not None:
        line = pane.line
    if not name:
        app.bars.open_command(f"bookmark {_free_name(app, line)}")
        return
    if _NAME.fullmatch(name) is None:
        raise SpecError("", f"'{printable(name)[:40]}' is no name for a bookmark", "One word without = and :")
    if not line or len(line) > LONGEST or not line.isprintable():
        raise SpecError("", "there is no line behind =", f"Write :bookmark {name} = workloads state:queued")
    page_command(line, app.actions.values())
    if any(name in action.commands for action in app.actions.values()):
        raise SpecError("", f"':{name}' is a command", "Take another name")
    if len(kept(app.session)) >= MOST:
        raise SpecError("", f"there are {MOST} bookmarks", "Take one away first: :forget NAME")
    _change(app, name, line, f"bookmark {name}: :{line}")


def forget(app: MusterApp, argument: str) -> None:
    """Take a bookmark away; the one under the cursor, on their page. Raises SpecError."""
    pane = app.navigator.current
    name = argument.strip() or (pane.chosen() if pane is not None and pane.NAME == "bookmarks" else "")  # type: ignore[attr-defined]
    if name not in kept(app.session):
        raise SpecError("", f"there is no bookmark '{printable(name)[:40]}'", "See :bookmarks")
    _change(app, name, None, f"bookmark {name} is gone; it was :{kept(app.session)[name]}")


def _free_name(app: MusterApp, line: str) -> str:
    """One to begin with: the page, and a number where that is taken or a command."""
    taken = {*kept(app.session), *(each for action in app.actions.values() for each in action.commands)}
    stem = re.sub(r"[^\w-]+", "-", line.split()[0] if line else "view")
    return next(name for name in (f"{stem}-{number}" for number in range(1, MOST + 2)) if name not in taken)


def _change(app: MusterApp, name: str, line: str | None, told: str) -> None:
    """As a change to whatever another console has kept meanwhile."""

    def change(found: Any) -> Any:
        lines = dict(found) if isinstance(found, dict) else {}
        lines.pop(name, None)
        return lines if line is None else {**lines, name: line}

    async def do() -> None:
        await in_thread(lambda: app.session.alter(KEY, change))
        app.say(told)
        if app.navigator.current is not None:
            app.navigator.current.look_again()

    app.run_worker(do(), group="bookmark")
