"""The welcome of the console, and its tour: what is said to who sees it for the first time. The card says what this is,
what the numbers of the first line are, and three things to try. The tour walks the demo's incident, one step after the
other, each of which is done once its page is there or the plan has come so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from console.client.protocol import Health
from console.text.terminal_text import printable, timestamp
from console.views.sections import Line, Section, text_line
from engine.model.overviews import Overview
from engine.model.quantities import counted


class Suggested(NamedTuple):
    """Something to try: its key on the card, the `:` line that goes there, and what is seen."""

    key: str
    line: str
    text: str


def suggested(overview: Overview | None) -> tuple[Suggested, ...]:
    """A wait, a what-if, and an approval; the wait is the longest there is."""
    waiting = overview.oldest_waiting if overview is not None else ""
    wait = (
        Suggested("1", f"workload {waiting}", f"why {waiting} waits, and what would start it")
        if waiting
        else Suggested("1", "workloads state:queued sort:-wait", "what waits, the longest first; Enter says why")
    )
    return (
        wait,
        Suggested("2", "whatif", "what if: the cell ahead, with and without a change"),
        Suggested("3", "recommendations", "advice; A proposes it, and y approves it"),
    )


SEEN = "welcomed"
"""What a session remembers once the card was shown."""


def is_due(flags: Mapping[str, object], seen: object) -> bool:
    """True for who opens the demo for the first time. `flags` are those of the command line."""
    return bool(flags.get("demo")) and not (flags.get("quiet_day") or flags.get("scenario") or seen)


def welcome(health: Health | None, overview: Overview | None, *, spoken: bool = False) -> list[Section]:
    """The card. `health` is None while the engine has not answered; `spoken`: without the keys of the screen."""
    what = [
        "The on-call console of a batch and AI cluster: what runs, what",
        "waits, and why. A change is tried on a copy, approved, done,",
        "checked, and can be rolled back.",
    ]
    if health is not None and health.speed != 1:
        what += [
            f"This cell is simulated; its clock runs {health.speed:g} times as fast.",
            "People whose names begin with sim- are simulated too.",
        ]
    tries = suggested(overview)
    if spoken:
        return [_section("Muster", what), Section("Try", tuple(text_line(each.text, "", each.line) for each in tries))]
    tour = Suggested(str(len(tries) + 1), "tour", "a tour of the incident, in five minutes")
    shown = [Line(((f" {key} ", "key"), (f" {printable(text)}", "")), line) for key, line, text in (*tries, tour)]
    return [
        _section("Muster", what),
        Section("The first line", _first_line(health)),
        Section("Try", tuple(shown), "Esc closes this, :welcome brings it back"),
    ]


def _section(title: str, lines: Sequence[str]) -> Section:
    return Section(title, tuple(text_line(line) for line in lines))


def _first_line(health: Health | None) -> tuple[Line, ...]:
    """Parts of the console's first line as they are now, and their meaning."""
    time, version, incidents = "09:30:00", "v14,527", 1
    if health is not None:
        time, version = timestamp(health.now_ms, date=False), f"v{health.version:,}"
        incidents = health.incidents or 1
    parts = (
        (f"{time} UTC", "the cell's own clock, and how fast it runs"),
        (version, "version of the state; each change makes a new one"),
        ("● connected", "the engine answers; it goes on when you leave"),
        (f"▲ {counted(incidents, 'incident')}", "what somebody was paged for: g I lists them"),
    )
    return tuple(Line(((f"{sign:<14}", "accent"), (text, ""))) for sign, text in parts)


class TourStep(NamedTuple):
    """A step of the tour. It is done on one of these pages and, of a proposal, in one of these states."""

    text: str
    pages: tuple[str, ...]
    states: tuple[str, ...] = ()


TOUR = (
    TourStep("You were paged: GPU queue wait. Press g I, then Enter", ("incident",)),
    TourStep("Type :workloads state:queued sort:-wait, open the first", ("workload",)),
    TourStep("It says why it waits. Press 7 for advice", ("recommendations",)),
    TourStep("A on the cordoned nodes; read the plan to its end, y", ("proposal",), ("verified",)),
    TourStep("Verified; U would roll it back. What it cost: g c", ("cost",)),
    TourStep("Now hand over the shift: g h", ("draft",)),
)
"""Texts of at most 56 cells: 80 have room for them."""
END = "Found, mended, verified, handed over: that was the tour"


class Tour:
    """The tour of one console: the step that comes next."""

    def __init__(self) -> None:
        self._next = 0

    @property
    def text(self) -> str:
        if self._next == len(TOUR):
            return END
        return f"{self._next + 1}/{len(TOUR)} {TOUR[self._next].text}"

    def arrived(self, page: str, state: str) -> bool:
        """Somebody looks at a page, at something in that state. True where that was the next step."""
        step = TOUR[self._next] if self._next < len(TOUR) else None
        if step is None or page not in step.pages or (step.states and state not in step.states):
            return False
        self._next += 1
        return True
