"""The tail of events: the last changes seen, and which of them a filter lets through. No Textual in here."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice, takewhile

from console.forms.row_filters import Value, matches
from console.text.terminal_text import printable, timestamp
from console.views.lists import Heading, Row, Window
from engine.model.queries import Change, Term

EVENT_HEADINGS = (
    Heading("at", "TIME", most=19),
    Heading("what", "EVENT", most=20),
    Heading("subject", "SUBJECT", most=40),
    Heading("detail", "DETAIL", most=200),
)
EVENT_TONES = {
    "failed": "bad", "down": "bad", "cancelled": "warn", "requeued": "warn", "held": "warn", "draining": "warn",
    "cordoned": "warn", "drained": "warn", "finished": "ok", "running": "ok", "started": "ok", "placed": "info",
    "suspended": "warn", "resumed": "info", "suspect": "warn", "swapped": "warn",
}  # fmt: skip


class EventLog:
    """The last changes seen, newest first. Grows at one end only, so that what is read stays where it is."""

    def __init__(self, keep: int = 5_000) -> None:
        self._kept: deque[tuple[int, Change]] = deque(maxlen=keep)
        self._serial = 0
        self.missed = 0
        self.at_ms = 0
        """Cell time until which all that happened is here."""
        self.whole = False
        """All that has happened until the last news is here."""

    def add(self, items: Sequence[Change], missed: int = 0, at_ms: int = 0, *, whole: bool = True) -> None:
        """Take in a batch, oldest first, that came at a cell time. `whole`: it has all that happened since the one
        before; else something happened, and nobody asked what."""
        self.whole = whole
        self.missed += missed
        if not whole:
            return
        for item in items:
            self._serial += 1
            self._kept.appendleft((self._serial, item))
        self.at_ms = max(self.at_ms, at_ms, items[-1].at_ms if items else 0)

    def clear(self) -> None:
        self._kept.clear()

    @property
    def serial(self) -> int:
        """Of the newest; grows by one with each."""
        return self._serial

    def window(self, terms: Sequence[Term], offset: int, limit: int) -> Window:
        """Those that satisfy the terms of a filter, as rows."""
        every = list(self._kept)  # in one step: another thread adds
        now_ms = self.at_ms
        found = [each for each in every if matches(terms, values_of(each[1], now_ms))] if terms else every
        rows = [_event_row(serial, item) for serial, item in found[offset : offset + limit]]
        return Window(offset, rows, len(found), len(every), every[0][1].version if every else 0, now_ms)

    def newer_than(self, serial: int, terms: Sequence[Term]) -> int:
        """How many of those that came since satisfy the terms."""
        newest = takewhile(lambda each: each[0] > serial, list(self._kept))
        return sum(matches(terms, values_of(item, self.at_ms)) for _, item in newest)

    def newest(self, most: int) -> list[Change]:
        """The last that happened, newest first."""
        return [item for _, item in islice(list(self._kept), most)]

    def about(self, subject: str, most: int) -> list[Change]:
        """The newest that happened to one thing."""
        return list(islice((item for _, item in list(self._kept) if item.subject == subject), most))

    def subjects(self, stem: str, most: int) -> list[str]:
        """What things happened to lately whose id begins so, for completion."""
        names = (item.subject for _, item in list(self._kept) if item.subject.startswith(stem))
        return list(islice(dict.fromkeys(names), most))


def values_of(item: Change, now_ms: int) -> dict[str, Value]:
    age = max(0, now_ms - item.at_ms)
    return {"at": item.at_ms, "what": item.what, "subject": item.subject, "detail": item.detail, "age": age}


def _event_row(serial: int, item: Change) -> Row:
    what = printable(item.what)
    cells = (
        (timestamp(item.at_ms), "dim"),
        (what, EVENT_TONES.get(what, "")),
        (printable(item.subject), ""),
        (printable(item.detail), "dim"),
    )
    return Row(str(serial), cells, printable(item.subject))
