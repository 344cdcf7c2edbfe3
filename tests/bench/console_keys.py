"""Keys pressed on the real console in a real pseudo-terminal, and when the frame that answers each was read back.

Every act says how a frame that answers its key differs from the one before, and, where the engine is asked, when its
data are there. Keys come as from fingers: 60 to 140 ms apart, so that the feed's redraws fall in between.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import console_idle

from tests.support.pseudo_terminal import PseudoTerminal
from tests.support.screen_model import ScreenModel

Seen = Callable[[ScreenModel], object]
CURSOR = "▌"
NOT_YET = "  ·"
"""A row that is being fetched."""
PATIENCE_S = 60.0
TITLE_ROWS = slice(1, 5)
"""Where tabs, a banner and the title line are."""
WHERES = ("state:running", "queue:*prod*", "gpus>=8", "tenant:research")


@dataclass
class Pressed:
    """One key, and what it took."""

    act: str
    painted_ms: float
    """From writing the key to having read the frame that answers it."""
    filled_ms: float | None
    """Until the engine's answer was on the screen; None where it is not asked."""
    frame_bytes: int
    """Written to the terminal from the key to that frame."""
    cpu_ms: float = 0.0
    """CPU that the thread that draws used from the key to that frame: steadier than time on a busy machine."""
    free_ms: float = 0.0
    """`painted_ms` without what that thread and we waited for a core: about what it takes on a machine of its own."""


@dataclass
class Fingers:
    """Presses keys and notes what they took."""

    terminal: PseudoTerminal
    pressed: list[Pressed] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(9))
    console: int = field(init=False)
    """Id of the process that draws."""

    def __post_init__(self) -> None:
        self.console = console_idle.console_of(self.terminal.pid)

    def press(self, act: str, key: str, painted: Seen, filled: Seen | None = None) -> None:
        """Raises TimeoutError, which says what was waited for, when the answer does not come."""
        terminal, console = self.terminal, self.console
        before, (cpu, queued) = terminal.bytes_read, console_idle.scheduled_ms(console)
        at = terminal.press(key)
        done = terminal.until(painted, f"answer to {key!r} ({act})", PATIENCE_S)
        painted_ms, count = (done - at) * 1000, terminal.frame_bytes - before
        cpu, queued = (now - then for now, then in zip(console_idle.scheduled_ms(console), (cpu, queued), strict=True))
        full = terminal.until(filled, f"data after {key!r} ({act})", PATIENCE_S) if filled is not None else None
        filled_ms = None if full is None else (full - at) * 1000
        self.pressed.append(Pressed(act, painted_ms, filled_ms, count, cpu, max(cpu, painted_ms - queued)))
        self.rest()

    def rest(self) -> None:
        """As fingers do between two keys; what comes meanwhile is read."""
        pause = self.random.uniform(0.06, 0.14)
        until = self.terminal.now() + pause
        while (left := until - self.terminal.now()) > 0:
            self.terminal.pump(left)

    # --- acts

    def act(self, rounds: int) -> None:
        """Everything a person does, so many times over. Begins and ends on the list of workloads."""
        self.terminal.press("3")
        self.terminal.until(rows_there, "the list of workloads", PATIENCE_S)
        for _ in range(rounds):
            self.move()
            self.scroll()
            self.sort()
            self.filter()
            self.drill()
            self.switch()

    def move(self) -> None:
        for key in "jjjjjjjjjjkkkkk":
            self.press("move", key, moved(self.terminal.screen))

    def scroll(self) -> None:
        down, up = "\x1b[6~", "\x1b[5~"
        for key in (down, down, down, up, down, down, up, up):
            self.press("page", key, moved(self.terminal.screen), rows_there)
        for key in "GgG":
            self.press("ends", "gg" if key == "g" else key, moved(self.terminal.screen), rows_there)
        self.press("ends", "gg", moved(self.terminal.screen), rows_there)

    def sort(self) -> None:
        """By other columns, chosen in the dialog."""
        asks = shows("Sort by ─")
        for downs in (3, 3, 1, 4):
            arrow = header(self.terminal.screen)
            self.press("sort: ask", "s", asks)
            for _ in range(downs):
                self.press("sort: choose", "j", changed(self.terminal.screen))

            def turned(screen: ScreenModel, before: str = arrow) -> bool:
                return not asks(screen) and header(screen) != before

            self.press("sort", "\r", turned, rows_there)

    def filter(self) -> None:
        where = self.random.choice(WHERES)
        self.press("filter: open", "/", lambda screen: bar(screen) is not None)
        typed = ""
        for char in where:
            typed += char
            shown = typed.strip()
            self.press("filter: type", char, lambda screen, text=shown: bar(screen) == text)
        narrowed = shows(f"/{where}")
        at = self.terminal.now()
        full = self.terminal.until(lambda screen: narrowed(screen) and rows_there(screen), where, PATIENCE_S)
        self.pressed.append(Pressed("filter: rows", 0.0, max(0.0, full - at) * 1000, 0))
        self.press("filter: keep", "\r", lambda screen: bar(screen) is None, rows_there)
        self.press("filter: clear", "\x1b", lambda screen: not narrowed(screen), rows_there)

    def drill(self) -> None:
        for _ in range(3):
            self.press("move", "j", moved(self.terminal.screen))
            chosen = cursor(self.terminal.screen)[1]
            deep = crumb(chosen)
            self.press("drill", "\r", deep, lambda screen, deep=deep: deep(screen) and shows("submitted  ")(screen))
            back = "\x1b" if self.random.random() < 0.5 else "h"
            act = "back by Esc" if back == "\x1b" else "back"
            self.press(act, back, lambda screen, deep=deep: not deep(screen) and cursor(screen)[0] >= 0)

    def switch(self) -> None:
        pages = {"1": "Fleet", "2": "QUEUE", "4": "ID", "3": "ID"}
        for key, shown in pages.items():
            name = {"1": "overview", "2": "queues", "4": "nodes", "3": "workloads"}[key]
            self.press("page switch", key, titled(name), lambda screen, shown=shown: shown in "\n".join(screen.text))


# --- what a screen shows


def cursor(screen: ScreenModel) -> tuple[int, str]:
    """Line and id of the row under the cursor; -1 while there is none."""
    for number, line in enumerate(screen.lines):
        if line[0] == CURSOR:
            return number, "".join(line[2:]).split("  ")[0].strip()
    return -1, ""


def rows(screen: ScreenModel) -> list[str]:
    """First cells of the rows in view."""
    text = screen.text
    top = next((number for number, line in enumerate(text) if line.startswith("  ID ")), len(text))
    return [line[:12] for line in text[top + 1 : -1]]


def rows_there(screen: ScreenModel) -> bool:
    found = rows(screen)
    return bool(found) and "loading" not in found[0] and not any(row.startswith(NOT_YET) for row in found)


def moved(before: ScreenModel) -> Seen:
    """The cursor is elsewhere, or other rows are under it."""
    was, listed = cursor(before), rows(before)
    return lambda screen: cursor(screen) != was or rows(screen) != listed


def changed(before: ScreenModel) -> Seen:
    """Anything below the top line differs."""
    was = before.text[1:]
    return lambda screen: screen.text[1:] != was


def header(screen: ScreenModel) -> str:
    """The title with the arrow."""
    found = re.search(r"(\S+) [↑↓]", "\n".join(line for line in screen.text if line.startswith("  ID")))
    return found[0] if found else ""


def bar(screen: ScreenModel) -> str | None:
    """What stands in the `/` bar; None while it is closed."""
    line = screen.text[-2]
    return line[3:].strip() if line.startswith(" / ") else None


def shows(text: str) -> Seen:
    return lambda screen: any(text in line for line in screen.text)


def crumb(thing: str) -> Seen:
    """The title line says that one is at this thing."""
    return lambda screen: any(f"› {thing}" in line for line in screen.text[TITLE_ROWS])


def titled(name: str) -> Seen:
    """The title line begins with this page."""
    return lambda screen: any(line.startswith(f"  {name} ") for line in screen.text[TITLE_ROWS])


def acts(pressed: list[Pressed]) -> Iterator[tuple[str, list[Pressed]]]:
    """By what was done, in the order it was first done."""
    for name in dict.fromkeys(one.act for one in pressed):
        yield name, [one for one in pressed if one.act == name]
