"""Earlier times of the cell as people write them: one, or the two whose difference is asked for."""

from __future__ import annotations

import re
from typing import NamedTuple

from console.text.terminal_text import read_value, timestamp
from engine.model.errors import SpecError
from engine.model.past_queries import DifferenceRequest
from engine.model.quantities import shown
from engine.model.spec_parts import DAY_MS

_TIME_OF_DAY = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
PAST_FORMS = "03:12, -20m or 2026-04-13 03:12"


def past_ms(text: str, earliest_ms: int, now_ms: int) -> int:
    """Unix milliseconds of an earlier cell time: a time of day is the last one that has passed, a duration is so long
    ago, and a date with a time is that (UTC). Raises SpecError that names the times there are."""
    text = text.strip()
    span = f"Give {PAST_FORMS}, from {timestamp(earliest_ms)} to {timestamp(now_ms)} UTC"
    if (of_day := _TIME_OF_DAY.fullmatch(text)) is not None:
        hours, minutes, seconds = (int(part or 0) for part in of_day.groups())
        at_ms = now_ms // DAY_MS * DAY_MS + (hours * 3600 + minutes * 60 + seconds) * 1000
        at_ms -= DAY_MS if at_ms > now_ms else 0
    elif text[-1:] in "smhdw" and text:
        at_ms = now_ms - _read("duration", text.removeprefix("-"), span)
    else:
        at_ms = _read("time", text, span)
    if not earliest_ms <= at_ms <= now_ms:
        when = "has not come yet" if at_ms > now_ms else "is before the first that is kept"
        raise SpecError("", f"{timestamp(at_ms)} {when}", span)
    return at_ms


def _read(unit: str, text: str, remedy: str) -> int:
    try:
        return read_value(unit, text)
    except ValueError:
        raise SpecError("", f"{shown(text)} is not a time", remedy) from None


class DifferenceWords(NamedTuple):
    """Two times as they were written, and of what alone the difference is wanted."""

    since: str
    until: str = "now"
    queue: str = ""
    node: str = ""

    def request(self, earliest_ms: int, now_ms: int, limit: int = 20) -> DifferenceRequest:
        """Raises SpecError for a time that cannot be shown, or two in the wrong order."""
        until_ms = now_ms if self.until == "now" else past_ms(self.until, earliest_ms, now_ms)
        since_ms = past_ms(self.since, earliest_ms, now_ms)
        if since_ms > until_ms:
            problem = f"{timestamp(since_ms)} is after {timestamp(until_ms)}"
            raise SpecError("", problem, "Give the earlier time first, such as 02:30 03:12")
        return DifferenceRequest(since_ms=since_ms, until_ms=until_ms, queue=self.queue, node=self.node, limit=limit)


_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def difference_words(text: str, until: str = "now") -> DifferenceWords:
    """Read `02:30 03:12 queue:research`; without a second time it is `until`. Raises SpecError."""
    times: list[str] = []
    only = {"queue": "", "node": ""}
    for word in text.split():
        kind, colon, name = word.partition(":")
        if colon and kind in only:
            only[kind] = name
        elif times and _DATE.fullmatch(times[-1]):
            times[-1] += f" {word}"
        else:
            times.append(word)
    if not 1 <= len(times) <= 2:
        problem = "needs the earlier time" if not times else f"{len(times)} times"
        raise SpecError("", problem, "Write :diff 02:30 03:12, and queue:NAME or node:ID for that alone")
    return DifferenceWords(*times, *((until,) if len(times) == 1 else ()), **only)
