"""When Python looks for garbage: in a console while nobody presses keys, for that takes 2 to 60 ms, and it would choose
the moment at which most is being made, which is when a page comes up; in an engine only through what is new."""

from __future__ import annotations

import gc

REST_S = 3.0
"""Without a key, after which there is time for it."""
EVERY_S = 60.0
YOUNG_REST_S = 0.5
"""The same for what was made since the last look, which takes 2 to 7 ms."""
_MOST_YOUNG = 100_000
"""So many objects are looked through without being asked: a few MB. A page that comes up makes 5,000 to 20,000."""
_FEW = 3_000
_THRESHOLDS = (_MOST_YOUNG, 20, 1_000)


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

    def time_passes(self, now: float, keyed_at: float) -> None:
        """Look for it if this is the time."""
        if now - keyed_at >= REST_S and now - self._looked_at >= EVERY_S:
            self._looked_at = now
            gc.collect()
        elif now - keyed_at >= YOUNG_REST_S and gc.get_count()[0] >= _FEW:
            gc.collect(0)
