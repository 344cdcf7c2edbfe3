"""Whatever has an id is opened by it, from anywhere: one question to the engine; of several, the person chooses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from console.client.change_feed import in_thread
from console.text.terminal_text import printable
from engine.model.errors import MusterError, NotFoundError
from engine.model.queries import Named

if TYPE_CHECKING:
    from console.tui.app import MusterApp

PAGES = {
    "workload": "workload {}", "node": "node {}", "queue": "queue {}", "pool": "pools name:{}", "order": "orders id:{}",
    "reservation": "reservations name:{}", "zone": "nodes zone:{}", "block": "nodes block:{}", "rack": "nodes rack:{}",
    "proposal": "proposal {}", "runbook": "runbook {}", "draft": "draft {}", "recommendation": "recommendations",
    "run": "whatif", "record": "record {}",
}  # fmt: skip
"""The line that leads to something of a kind."""
_LIKE_AN_ID = re.compile(r"[0-9/_.:-]")


def looks_like_an_id(word: str) -> bool:
    """Whether a word that is no command may be meant as an id rather than be a slip of the fingers."""
    return _LIKE_AN_ID.search(word) is not None


def line_to(hit: Named) -> str:
    """The `:` line that leads there."""
    name = f'"{hit.id}"' if re.search(r"\s", hit.id) and ":{}" in PAGES.get(hit.kind, "") else hit.id
    return PAGES[hit.kind].format(name)


async def open_by_id(app: MusterApp, name: str) -> None:
    """To the page of what has this id. Raises MusterError: NotFoundError, with what is called much like it."""
    hits = await in_thread(lambda: app.client().find(name, (), 12))
    exact = [hit for hit in hits if hit.id == name and hit.kind in PAGES]
    if not exact:
        near = ", ".join(dict.fromkeys(printable(hit.id) for hit in hits[:4]))
        raise NotFoundError(f"nothing is called '{printable(name)[:80]}'", f"There is {near}" if near else "")
    if len(exact) == 1:
        go_to(app, exact[0])
        return
    from console.tui.dialogs.choice import ChoiceDialog

    rows = [(str(index), f"{hit.kind} {hit.id}", hit.detail) for index, hit in enumerate(exact)]
    title = f"What is called {printable(name)[:40]}"
    app.push_screen(ChoiceDialog(title, rows, lambda index: go_to(app, exact[int(index)])))


def go_to(app: MusterApp, hit: Named) -> None:
    """To its page; where it is one of several on a page, to its place there."""
    app.steering.follow(line_to(hit))
    point_at = getattr(app.navigator.current, "point_at", None)
    if point_at is not None:
        point_at(hit.id)


def told(app: MusterApp, name: str) -> None:
    """The same for a page or a key: what comes of it is told."""

    async def do() -> None:
        try:
            await open_by_id(app, name)
        except MusterError as error:
            app.report(error)

    app.run_worker(do(), exclusive=True, group="open")
