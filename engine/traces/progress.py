"""Progress of long work, for a listener that asked to be told. Loops name what they count; without a listener they cost
what they did before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

Listener = Callable[[str, int, int], object]
"""Called with what is counted, how many are done, and of how many; 0: not known."""
EVERY_S = 0.1

_LISTENER: ContextVar[Listener | None] = ContextVar("progress", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Until the end, work of this thread tells `listener` how far it is."""
    before = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(before)


def stage(what: str) -> None:
    """Something has begun whose length is not known."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what, 0, 0)


def counted(items: Iterable[T], what: str, of: int) -> Iterable[T]:
    """The items as they are. Whoever listens is told at most ten times a second how many have been taken."""
    listener = _LISTENER.get()
    return items if listener is None else _told(items, what, of, listener)


def counter(what: str, of: int) -> Callable[[int], object] | None:
    """For loops that count by themselves: call it with how many are done. None while nobody listens."""
    listener = _LISTENER.get()
    if listener is None:
        return None
    next_s = 0.0

    def tell(done: int) -> None:
        nonlocal next_s
        now_s = time.perf_counter()
        if now_s >= next_s:
            next_s = now_s + EVERY_S
            listener(what, done, of)

    return tell


def _told(items: Iterable[T], what: str, of: int, listener: Listener) -> Iterator[T]:
    next_s = 0.0
    done = 0
    for item in items:
        now_s = time.perf_counter()
        if now_s >= next_s:
            next_s = now_s + EVERY_S
            listener(what, done, of)
        yield item
        done += 1
    listener(what, done, of)
