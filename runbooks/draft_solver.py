"""The smallest action whose simulation meets the target: options tried on forks of the cell, mildest first.

A trial is a fork on which the acts are done through the same door, and which then runs ahead as far as it takes. It is
compared with a fork on which nothing was done: what starts because of it, and what would be the worse for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from engine.columns import view
from engine.errors import MusterError
from engine.model import WorkloadState
from runbooks import catalog
from runbooks.acts import Maker
from runbooks.plan import Act, ActionName

if TYPE_CHECKING:
    from engine.control import Engine

Given = Mapping[str, Any]


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """Something that might be done."""

    text: str
    steps: tuple[tuple[ActionName, Given], ...]
    """By the names of `runbooks.parameters`, as `Maker.act` takes them."""
    runbook: str = ""
    """Id of one of the library that says the same, with what it needs to be told."""
    inputs: Mapping[str, str] = {}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an option on a fork."""

    option: Option
    refused: str = ""
    started: frozenset[str] = frozenset()
    """Of those watched, what has its nodes at the end."""
    stopped: frozenset[str] = frozenset()
    """What ran before and does not any more, though nobody asked for that."""
    value: int = 0
    """Of the target, at the end."""
    met: bool = False

    @property
    def harmless(self) -> bool:
        return not self.refused and not self.stopped


class Solver:
    """Trials on forks of one base, which itself is left as it is."""

    def __init__(self, base: Engine, read: Callable[[Engine], int], met: Callable[[int], bool], watched: Sequence[str]):
        self._base = base
        self._read = read
        self._met = met
        self._watched = tuple(watched)
        self._ran = running(base)
        self.results: list[Result] = []

    def acts(self, engine: Engine, option: Option) -> tuple[Act, ...]:
        maker = Maker(engine)
        return tuple(maker.act(action, given) for action, given in option.steps)

    def try_(self, option: Option, ahead_ms: int = 0) -> Result:
        """Do it on a fork and look."""
        result = self._tried(option, ahead_ms)
        self.results.append(result)
        return result

    def _tried(self, option: Option, ahead_ms: int) -> Result:
        with forked(self._base) as fork:
            try:
                acts = self.acts(fork, option)
                for act in acts:
                    catalog.check(act)
                    row = catalog.find(act.action)
                    if row.command is not None:
                        fork.command(catalog.command(act))
                fork.settle()
                if ahead_ms:
                    fork.advance(fork.now_ms + ahead_ms)
            except MusterError as error:
                return Result(option=option, refused=error.problem)
            asked = {target for act in acts for target in act.targets}
            ended = {w for w in self._ran if is_over(fork, w)}
            value = self._read(fork)
            return Result(
                option=option,
                started=frozenset(id_ for id_ in self._watched if is_bound(fork, id_)),
                stopped=frozenset(self._ran - running(fork) - asked - ended),
                value=value,
                met=self._met(value),
            )

    def least(self, low: int, high: int, option_of: Callable[[int], Option], ahead_ms: int = 0) -> Result | None:
        """The smallest number that meets the target harmlessly, by bisection; None where `high` does not."""
        best = self.try_(option_of(high), ahead_ms)
        if not best.met or not best.harmless:
            return None
        while low < high:
            middle = (low + high) // 2
            result = self.try_(option_of(middle), ahead_ms)
            if result.met and result.harmless:
                best, high = result, middle
            else:
                low = middle + 1
        return best


@contextlib.contextmanager
def forked(engine: Engine) -> Iterator[Engine]:
    fork = engine.fork()
    try:
        yield fork
    finally:
        fork.forget()


def running(engine: Engine) -> frozenset[str]:
    """Ids of what is placed or runs."""
    w = engine.state.workloads
    if not w.ids:
        return frozenset()
    states = view(w.state)
    bound = np.flatnonzero((states == WorkloadState.PLACED) | (states == WorkloadState.RUNNING))
    return frozenset(w.ids[row] for row in bound.tolist())


def is_bound(engine: Engine, id_: str) -> bool:
    w = engine.state.workloads
    return engine.state.is_bound(w.row_of[id_])


def is_over(engine: Engine, id_: str) -> bool:
    w = engine.state.workloads
    return WorkloadState(w.state[w.row_of[id_]]).terminal
