"""When Python looks for garbage: not through what a process was started with, and in a console while no key comes."""

from __future__ import annotations

import gc

EVERY_S = 60.0
"""Between two looks through all that a console made."""
PAUSE_S = 0.5
"""Without a key, after which a look disturbs nobody."""
_THRESHOLDS = (20_000, 20, 1_000)
"""While keys come only new objects are looked through. A look through 10,000 takes 2 to 7 ms, through 100,000 a tenth
of a second."""


def keep() -> None:
    """Leave what is there now out of every later look, and look seldom.

    CPU from a key to its frame, p99: 33 ms, and 106 ms with Python's own settings, for a budget of 50 ms (2026-11-23,
    140x45, `console_bench.py --nodes 5000 --workloads 50000`).
    """
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def collect() -> None:
    """Free the pages that were left.

    Textual 8 remembers two colours for each of the last 1,024 widgets, and with them every line that those drew: 0.4 MB
    for each page that was open once.
    """
    from textual._styles_cache import StylesCache

    StylesCache.get_inner_outer.cache_clear()
    gc.collect()


def keep_state() -> None:
    """In a process of an engine, once its state is there: to look through a million workloads takes a quarter of a
    second, in which nobody is answered, and finds nothing. What comes later is looked through as ever."""
    gc.collect()
    gc.freeze()
