"""What the frame around a page says: the first line, the banner, and how old the page's data are. No Textual in here.

Ages are measured with a clock that never goes back and also counts while the machine sleeps, never with a wall clock.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from console.text.terminal_text import duration, printable, timestamp
from console.views.lists import Span

if TYPE_CHECKING:
    from console.client.health import Health
    from console.tui.widgets.pane import AsOf

NEW_S = 3.0
"""Data that are no older than this are called new: one answer takes its time."""
MISSED = 3
"""So many refreshes that did not come are too many."""
OUTDATED_MS = 5_000
"""Cell time after which data are old although the state of the cell is the same: waits and ages go on."""


def since_boot() -> float:
    """Seconds, monotonic, that also pass while the machine is suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


SILENT_S = 10.0
"""It answers every second: after so many something is wrong with it, or with the way to it."""


class VersionSighting(NamedTuple):
    version: int
    at_ms: int
    moment: float


class DataAge:
    """What is known of how far the cell is, and since when."""

    def __init__(self, version: int = 0, at_ms: int = 0) -> None:
        self.version = version
        self.at_ms = at_ms
        self.reloaded_ms = 0
        """Cell time when the page was last asked for anew."""
        self._heard: deque[VersionSighting] = deque(maxlen=256)

    def hear(self, version: int, at_ms: int, moment: float) -> None:
        """The cell is there, at that moment of `since_boot`."""
        self.version, self.at_ms = version, at_ms
        self._heard.append(VersionSighting(version, at_ms, moment))

    def outdated_since(self, as_of: AsOf, speed: float = 1.0) -> float | None:
        """The moment from which on something newer than these data was known; None while they are new. `speed`: cell
        milliseconds per wall millisecond."""
        for index, heard in enumerate(self._heard):
            if heard.version > as_of.version or heard.at_ms > as_of.at_ms + OUTDATED_MS:
                # What is newer than the first that was heard may have been for long: the cell's clock tells how long.
                before_ms = heard.at_ms - as_of.at_ms if index == 0 and as_of.at_ms and speed > 0 else 0
                return heard.moment - max(0, before_ms) / speed / 1000 if before_ms else heard.moment
        return None


class Age(NamedTuple):
    """How old what is shown is."""

    seconds: float
    """Never below zero."""
    late: bool
    lost: bool
    """There is no connection."""
    version: int
    frozen: bool = False


def age_spans(age: Age | None, *, wide: bool) -> list[Span]:
    """The end of the title line: words and signs first, the tone only repeats them."""
    if age is None:
        return []
    version = f"v{age.version:,} · " if wide and age.version else ""
    old = f"{duration(int(age.seconds * 1000))} old"
    if age.lost:
        return [(f" ✗ no connection · {version}{old} ", "bad")]
    if age.frozen:
        return [(f" ‖ frozen · {version}{old} ", "warn")]
    if age.late:
        return [(f" ! late · {version}{old} ", "warn")]
    return [(f" {version}{'now' if age.seconds < NEW_S else old} ", "dim")]


def top_bar(
    health: Health | None, title: str, at_ms: int, version: int, *, read_only: bool, width: int, retrying: bool = False,
    production: bool = False, others: tuple[str, bool] = ("", False),
) -> list[Span]:  # fmt: skip
    """The first line: which cell, its clock and speed, the version shown, and whether one may act. `production`: it is
    red and says so, for another window that looks the same may be the test cell. `others`: who else is here, and
    whether on the same thing."""
    spans: list[Span] = [(" muster PRODUCTION ", "alarm") if production else (" muster ", "brand"), (" ", "top")]
    if health is None:
        spans += [(printable(title), "top"), ("  retrying …" if retrying else "  connecting …", "off")]
        return [*spans, ("  read-only", "key")] if read_only else spans
    spans.append((printable(health.cell or title)[:24], "strong" if production else "top"))
    spans.append((f"  {timestamp(at_ms, date=width >= 100)} UTC", "top"))
    spans.append((_pace(health), "caution" if health.paused else "off"))
    spans.append((f"  v{version:,}", "off"))
    spans.append((" ✗ retrying ", "alarm") if retrying else (" ● connected", "off"))
    if health.journal_error:
        spans.append(("  ✗ journal ", "alarm"))
    elif width >= 110 and not others[0]:
        spans.append((f"  engine {printable(health.software)} pid {health.pid}", "off"))
    if read_only:
        spans.append(("  read-only", "key"))
    if others[0]:
        spans.append((f"  {printable(others[0])} ", "caution" if others[1] else "off"))
    return spans


def _pace(health: Health) -> str:
    if health.paused:
        return " PAUSED "
    return "" if health.speed == 1 else f" ×{health.speed:g}"


def lost_banner(problem: str, lost_for_s: float, retry_in_s: float, at_ms: int) -> str:
    """What the banner says while the engine does not answer."""
    retry = f"retry in {retry_in_s:.0f}s" if retry_in_s >= 1 else "connecting"
    age = f" · data of {timestamp(at_ms, date=False)}" if at_ms else ""
    lost_for = duration(max(0, int(lost_for_s * 1000)))
    return f" ✗ no connection for {lost_for}{age} · {retry} · {printable(problem)}"


def silent_banner(silent_s: float) -> str:
    """What the banner says while there is a connection and nothing comes over it; empty while something does."""
    if silent_s < SILENT_S:
        return ""
    return f" ! the engine has said nothing for {duration(int(silent_s * 1000))}: it is very busy, stopped, or gone"


def unwritable_banner(health: Health) -> str:
    """What the banner says while nothing can be recorded, or what is shown is old; empty while all is well."""
    if health.journal_error:
        problem = printable(health.journal_error)
        return f" ✗ the journal cannot be written: nothing can be executed, looking goes on · {problem}"
    if health.audit_error:
        return f" ✗ audit: {printable(health.audit_error)}"
    return f" ✗ {printable(health.mirror_error)}" if health.mirror_error else ""
