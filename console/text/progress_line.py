"""Progress of a long command on standard error: one line with the time left, or JSON for programs.

In JSON mode the command ends when its standard input closes, that is when its starter is gone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec

from console.text.guarded_streams import GuardedStream, write_over
from console.text.terminal_text import duration, printable
from engine.traces.progress import listening

EVERY_S = 0.2
SURE_S = 2.0
"""Time before which no time left is shown: it would be a guess."""


class ProgressStep(msgspec.Struct, frozen=True):
    """Progress of one step."""

    what: str
    """The work, or the unit that is counted."""
    done: int
    of: int
    """0: not known."""
    left_s: float | None = None
    """Time left at this pace; None: not known."""

    @property
    def permille(self) -> int | None:
        return min(1000, self.done * 1000 // self.of) if self.of else None


class TimeLeft:
    """Time left of what is counted, from how fast it went so far."""

    def __init__(self) -> None:
        self._what = ""
        self._began = 0.0
        self._done = 0

    @property
    def went_s(self) -> float:
        """Since what is counted has begun."""
        return time.perf_counter() - self._began if self._what else 0.0

    def step(self, what: str, done: int, of: int) -> ProgressStep:
        now = time.perf_counter()
        if what != self._what or done < self._done:
            self._what, self._began = what, now
        self._done = done
        went = now - self._began
        left = went * (of - done) / done if of and done and went >= SURE_S else None
        return ProgressStep(what, done, of, None if left is None else round(left, 1))


@contextmanager
def told(arguments: argparse.Namespace) -> Iterator[None]:
    """While it lasts, work that counts itself is shown as `--progress` says (auto, json, off). Nothing of
    it stays on a terminal."""
    how = getattr(arguments, "progress", "off")
    if how == "json":
        end_with_starter()
        with listening(_Teller(_json).tell):
            yield
    elif how == "auto" and sys.stderr.isatty():
        with _above_the_line(), listening(_Teller(_line).tell):
            yield
    else:
        yield


STARTING = "the engine is starting: "
"""Begins a line by which an engine that is not ready yet says in its log how far it is."""


@contextmanager
def told_in_log() -> Iterator[None]:
    """While it lasts, work that counts itself is told on standard error, a line for each thing that is done."""
    shown = ""

    def show(step: ProgressStep) -> None:
        nonlocal shown
        words = step_words(ProgressStep(step.what, step.done, step.of))
        if words != shown:
            shown = words
            print(printable(f"{STARTING}{words}"), file=sys.stderr, flush=True)

    with listening(_Teller(show).tell):
        yield


class _Above(GuardedStream):
    """A stream that takes the line of progress away before it writes."""

    def write(self, text: str) -> int:
        _take_away()
        return super().write(text)


@contextmanager
def _above_the_line() -> Iterator[None]:
    """Nothing is written behind a line of progress, and none is left at the end."""
    out, err = sys.stdout, sys.stderr
    if isinstance(out, GuardedStream) and isinstance(err, GuardedStream):
        sys.stdout, sys.stderr = cast(Any, _Above(out.within)), cast(Any, _Above(err.within))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
        _take_away()


class _Teller:
    """Passes on at most so many steps a second, but every beginning."""

    def __init__(self, show: Any) -> None:
        self._show = show
        self._pace = TimeLeft()
        self._what = ""
        self._next = 0.0

    def tell(self, what: str, done: int, of: int) -> None:
        now = time.perf_counter()
        step = self._pace.step(what, done, of)
        if what != self._what or now >= self._next:
            self._what, self._next = what, now + EVERY_S
            self._show(step)


_shown = threading.Event()
"""A line of progress is on the terminal."""


def _line(step: ProgressStep) -> None:
    _shown.set()
    write_over(step_words(step))


def _take_away() -> None:
    if _shown.is_set():
        _shown.clear()
        write_over("")


def step_words(step: ProgressStep) -> str:
    """As `jobs 12,345 of 77,222, 16%, 1m 20s left`."""
    if not step.of:
        return f"{printable(step.what)} …"
    left = "" if step.left_s is None else f", {duration(round(step.left_s * 1000))} left"
    return f"{printable(step.what)} {step.done:,} of {step.of:,}, {(step.permille or 0) // 10}%{left}"


def _json(step: ProgressStep) -> None:
    err = sys.stderr.within if isinstance(sys.stderr, GuardedStream) else sys.stderr
    print(json.dumps({"progress": msgspec.to_builtins(step)}), file=err, flush=True)


def end_with_starter() -> None:
    """End the process when the other end of standard input closes: its starter, who reads the result, is gone."""

    def wait() -> None:
        try:
            while os.read(0, 4096):
                pass
        except OSError:
            return
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="muster-starter").start()
