"""Where a cell's time goes on when an engine is started, and times in which none decided.

The cell's clock never goes back, and without being asked to never jumps further than the engine was away. A cell in
real time follows its host's clock; what passed meanwhile is on record as a downtime (`DowntimeBegan` to
`DowntimeEnded`), and what nodes cost then without work is charged as that, not as idle. A cell that keeps a time of its
own goes on where its journal ends.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from engine.model import events as ev
from engine.model.quantity_text import moment
from engine.tables.columns import Table

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.state.cell_state import State

MIN_DOWNTIME_MS = 5 * 60_000
"""What is shorter is a restart, and is not told. Time is unrecorded for less than that (`loop.KEEP_TIME_S`)."""
MAX_DOWNTIME_MS = 7 * 86_400_000
"""After a longer one the host's clock is not believed without being asked to."""
MAX_CLOCK_ERROR_MS = 5_000
"""By so much a host's clock may be behind the journal without a word: another host's may differ so much."""
KEPT = 100


class Downtimes(Table):
    """The newest, oldest first."""

    columns = ("began", "ended")

    def __init__(self) -> None:
        self.began = array("q")
        """Cell time."""
        self.ended = array("q")

    def since(self, at_ms: int) -> list[tuple[int, int]]:
        """(began, ended) of those that were not over at `at_ms`."""
        return [(began, ended) for began, ended in zip(self.began, self.ended, strict=False) if ended > at_ms]


def began(state: State, event: ev.DowntimeBegan) -> None:
    times = state.downtimes
    if len(times.began) == KEPT:
        del times.began[0], times.ended[0]
    times.began.append(state.now_ms)
    state.ledger.begin_downtime(state.now_ms)


def ended(state: State, event: ev.DowntimeEnded) -> None:
    state.downtimes.ended.append(state.now_ms)
    state.ledger.end_downtime(state.now_ms)


def clock_held(state: State, event: ev.ClockHeld) -> None:
    """It is only on record: the state has no clock but the cell's own."""


def resume(engine: Engine, host_ms: int, *, follow: bool) -> str:
    """Go on with a cell whose engine was away, at the time that its host's clock shows. Where that would go back, the
    cell goes on from the journal's time, and that is recorded; likewise, unless it is to `follow`, where the cell has
    had a time of its own (a demo, or another speed), or was away for longer than MAX_DOWNTIME_MS: then the clock may
    be wrong. Returns what is to be said, if anything."""
    left_ms, written_ms = engine.now_ms, engine.written_ms
    doubtful = written_ms - left_ms > MIN_DOWNTIME_MS or host_ms - written_ms > MAX_DOWNTIME_MS
    if host_ms < left_ms - MAX_CLOCK_ERROR_MS or (host_ms > left_ms and doubtful and not follow):
        engine.hold_clock(host_ms)
        how = "; start it with --catch-up to follow the host's clock" if host_ms > left_ms else ""
        return (
            f"this host's clock shows {moment(host_ms)}, the journal ends at {moment(left_ms)}: the cell goes on from "
            f"there{how}"
        )
    if host_ms > left_ms:
        engine.catch_up(host_ms)
    if host_ms < left_ms + MIN_DOWNTIME_MS:
        return ""
    return f"no engine decided from {moment(left_ms)} to {moment(host_ms)}: what stood idle then is charged as downtime"
