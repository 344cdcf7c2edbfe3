"""When Python looks for garbage: in a console while nobody presses keys, for that takes 2 to 60 ms, and it would choose
the moment at which most is being made, which is when a page comes up; in an engine only through what is new.
"""

from __future__ import annotations

import gc
from asyncio import TimerHandle, get_running_loop

REST_S = 3.0
"""Without a key, after which there is time to look through all there is."""
EVERY_S = 60.0
PAUSE_S = 0.5
"""Without a key, after which there is time for what has been there for a while."""
AFTER_KEY_S = 0.03
"""Behind a key, when its frame is on the screen and the next one is not there yet."""
_FEW, _LOOKS, _MAX_LOOKS = 3_000, 20, 60
"""New objects that are worth a look, which takes a millisecond or two; looks after which the next older are, in a
pause, and where there is none: pages that were left would pile up under keys that never rest."""
_THRESHOLDS = (20_000, 20, 1_000)
"""For what comes without a key. To look through 10,000 takes 2 to 7 ms, through 100,000 a tenth of a second."""


def put_off() -> None:
    """Until `keep`: what is loaded at the start is no garbage."""
    gc.disable()


def keep() -> None:
    """What is there now stays, and is not looked through again."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()


def keep_state() -> None:
    """In a process of an engine, once its state is there: to look through a million workloads takes a quarter of a
    second, in which nobody is answered, and finds nothing. What comes later is looked through as ever."""
    gc.collect()
    gc.freeze()


class Garbage:
    """One per app."""

    def __init__(self, now: float) -> None:
        self._looked_at = now
        self._soon: TimerHandle | None = None

    def keyed(self) -> None:
        """A key was pressed: what the ones before it left behind is looked through once it is answered."""
        if self._soon is None and gc.get_count()[0] >= _FEW:
            self._soon = get_running_loop().call_later(AFTER_KEY_S, self._look)

    def _look(self) -> None:
        self._soon = None
        if gc.get_count()[1] < _MAX_LOOKS:
            gc.collect(0)
        else:
            _forget_drawn()
            gc.collect(1)

    def time_passes(self, now: float, keyed_at: float) -> None:
        """Look for it if this is the time."""
        rested = now - keyed_at
        if rested >= REST_S and now - self._looked_at >= EVERY_S:
            self._looked_at = now
            _forget_drawn()
            gc.collect()
        elif rested >= PAUSE_S and gc.get_count()[1] >= _LOOKS:
            _forget_drawn()
            gc.collect(1)


def _forget_drawn() -> None:
    """Textual 8 remembers two colours for each of the last 1,024 widgets, and with them, though they are gone, every
    line that they drew: 0.4 MB for each page that was open once."""
    from textual._styles_cache import StylesCache

    StylesCache.get_inner_outer.cache_clear()
