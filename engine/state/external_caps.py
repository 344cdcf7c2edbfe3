"""Caps on what runs together, as a scheduler that decides outside has them: of a QOS, an account, a user.

A cap is a name and how much may be in use at once; what a workload draws from which caps is told with it. Who runs is
counted, so that in a fork of a mirror nothing is started over a cap. In the mirror itself nothing is started anyway.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.model.specs import WorkloadState
from engine.tables.columns import Names, Table

if TYPE_CHECKING:
    from engine.state.cell_state import State

Draw = tuple[str, int]
"""(name of a cap, how much of it)"""
NONE = -1
"""In place of a limit: there is no such cap any more."""


class Full(NamedTuple):
    """A cap that does not let a workload start now. The name is untrusted."""

    name: str
    most: int
    used: int
    wanted: int


class Caps(Table):
    columns = ("names", "most", "sets", "set_of")

    def __init__(self) -> None:
        self.names = Names()
        self.most = array("q")
        """By cap; NONE where it is gone."""
        self.sets: list[Any] = [()]
        """Each a tuple of (cap, how much): many workloads draw the same. The first is empty."""
        self.set_of = array("i")
        """Index into `sets` by workload row; rows beyond the end draw nothing."""
        self.derive()

    def derive(self) -> None:
        self.sets = [tuple((cap, amount) for cap, amount in each) for each in self.sets]
        self._index = {each: i for i, each in enumerate(self.sets)}
        self.used = array("q", bytes(8 * len(self.most)))
        """By cap, of all that is placed or runs. Counted anew by the state."""

    @property
    def any(self) -> bool:
        """Whether anything draws on a cap."""
        return len(self.sets) > 1

    def limit(self, most: Iterable[Draw]) -> None:
        """All caps there are, in place of those before."""
        self.most = array("q", [NONE]) * len(self.most)
        for name, amount in most:
            self.most[self._cap(name)] = amount

    def set_number(self, row: int) -> int:
        return self.set_of[row] if row < len(self.set_of) else 0

    def draws(self, row: int) -> tuple[Draw, ...]:
        return tuple((self.names.names[cap], amount) for cap, amount in self.sets[self.set_number(row)])

    def draw(self, row: int, draws: Sequence[Draw]) -> None:
        """What the workload draws from now on. One that is placed or runs is to be counted out before and in after."""
        key = tuple((self._cap(name), amount) for name, amount in draws)
        number = self._index.get(key)
        if number is None:
            number = self._index[key] = len(self.sets)
            self.sets.append(key)
        missing = row + 1 - len(self.set_of)
        if missing > 0:
            self.set_of.extend([0] * missing)
        self.set_of[row] = number

    def count(self, row: int, sign: int) -> None:
        """It is placed, or leaves its nodes."""
        for cap, amount in self.sets[self.set_number(row)]:
            self.used[cap] += sign * amount

    def stopping(self, row: int) -> Full | None:
        """The first cap over which its start would go."""
        for cap, amount in self.sets[self.set_number(row)]:
            most = self.most[cap]
            if most != NONE and self.used[cap] + amount > most:
                return Full(self.names.names[cap], most, self.used[cap], amount)
        return None

    def _cap(self, name: str) -> int:
        cap = self.names.add(name)
        if cap == len(self.most):
            self.most.append(NONE)
            self.used.append(0)
        return cap


def draw(state: State, row: int, draws: Sequence[Draw]) -> None:
    """As `Caps.draw`, wherever the workload is."""
    queued = state.workloads.state[row] == WorkloadState.QUEUED
    bound = state.is_bound(row)
    if queued:
        state.dequeue(row)
    if bound:
        state.caps.count(row, -1)
    state.caps.draw(row, draws)
    if bound:
        state.caps.count(row, 1)
    if queued:
        state.enqueue(row)
