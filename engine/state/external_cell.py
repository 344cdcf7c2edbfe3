"""The state of a cell that another scheduler decides: its caps, its own words on work, and its earlier runs.

A cap of a QOS, an account or a user is a name and the amount that may be in use at once. Each workload says which caps
it draws from. The use is counted so that a fork of a mirror starts nothing over a cap; in the mirror itself Muster
starts nothing. The columns of that scheduler's words are empty where Muster decides itself.
`engine.model.external_cells` declares the records of earlier runs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from heapq import heappush
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from engine.model import events as ev
from engine.model.columns import Names, Table
from engine.model.external_cells import PastRun
from engine.model.specs import WorkloadState
from engine.state import workloads as wl
from engine.state.allocations import NONE
from engine.state.pending_groups import Cause

if TYPE_CHECKING:
    from engine.state.cell_state import State


Draw = tuple[str, int]
"""(name of a cap, how much of it)"""
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
        """True if anything draws on a cap."""
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
        """Set the workload's use of caps from now on. Count out one that is placed or runs before, and in after."""
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


SILENT = -1


class Outside(Table):
    """Its words by workload row. They are shown and explained; no decision goes by them. And which nodes it has powered
    down: what a fork starts there takes a boot to begin."""

    columns = ("words", "word", "boot_ms")

    def __init__(self) -> None:
        self.words = Names()
        self.word = array("i")
        """Index into `words`; SILENT where it says nothing, and for rows beyond the end."""
        self.boot_ms: dict[int, int] = {}
        """Row of a node that is powered down -> how long its boot is likely to take."""

    def word_of(self, row: int) -> str:
        """The reason why the workload waits or ended, in that scheduler's word; empty where it says nothing."""
        said = self.word[row] if row < len(self.word) else SILENT
        return "" if said == SILENT else self.words.names[said]

    def forget(self) -> None:
        """In a fork time goes on without the scheduler that said it."""
        self.words = Names()
        self.word = array("i")

    def powered_down(self, nodes: Iterable[int], boot_ms: int) -> None:
        """0: they are on."""
        for node in nodes:
            self.boot_ms.pop(node, None)
            if boot_ms:
                self.boot_ms[node] = boot_ms

    def say(self, said: Iterable[tuple[int, str]]) -> None:
        for row, word in said:
            missing = row + 1 - len(self.word)
            if missing > 0:
                self.word.extend([SILENT] * missing)
            self.word[row] = self.words.add(word) if word else SILENT


class PastRuns(Table):
    columns = ("runs", "until_ms")

    def __init__(self) -> None:
        self.runs: list[Any] = []
        """PastRun records, in the order of their ends."""
        self.until_ms = 0
        """Time up to which ends are among them; 0: nothing was reported."""

    def derive(self) -> None:
        self.runs = [msgspec.convert(run, PastRun) for run in self.runs]

    def dump(self) -> dict[str, Any]:
        return super().dump() | {"runs": msgspec.to_builtins(self.runs)}

    def tell(self, runs: Iterable[PastRun], until_ms: int) -> None:
        """In place of all that was told before."""
        self.runs, self.until_ms = list(runs), until_ms


_ENDS = (wl.FINISHED, wl.FAILED, wl.CANCELLED, wl.VANISHED)


def dated(state: State, event: ev.Dated) -> None:
    row, at_ms = event.row, min(event.at_ms, state.now_ms)
    w = state.workloads
    if event.what == wl.SUBMITTED:
        w.submitted[row] = at_ms
        if w.state[row] in (WorkloadState.QUEUED, WorkloadState.HELD, WorkloadState.WAITING):
            w.since[row] = at_ms
    elif event.what == wl.RUNNING:
        w.started[row] = at_ms
        if w.state[row] == WorkloadState.RUNNING:
            w.rated[row] = w.since[row] = at_ms
            heappush(state.ends, (w.expected_end(row, state.now_ms), row))
            state.timers.watch(state, row)
    elif event.what in _ENDS and WorkloadState(w.state[row]).terminal:
        w.ended[row] = w.since[row] = at_ms
        if event.what == wl.FINISHED and w.started[row] >= 0 and not w.kept[row]:
            # It may have been seen for a moment only, or not at all.
            w.done[row] = max(at_ms - w.started[row], 1)
            w.note_finished(row)
    entry = w.history[row]
    while entry != NONE and w.history_what[entry] != event.what:
        entry = w.history_previous[entry]
    if entry != NONE:
        w.history_at[entry] = at_ms


def parked(state: State, event: ev.Parked) -> None:
    row, w = event.row, state.workloads
    if w.state[row] == WorkloadState.QUEUED:
        state.dequeue(row)
    if w.state[row] != WorkloadState.WAITING:
        w.set_state(row, WorkloadState.WAITING, wl.WAITING, state.now_ms)
    w.wake[row] = event.wake_at_ms
    state.timers.watch(state, row)


def vanished(state: State, event: ev.Vanished) -> None:
    state.end(event.row, WorkloadState.CANCELLED, wl.VANISHED)


def reestimated(state: State, event: ev.Reestimated) -> None:
    row = event.row
    queued = state.workloads.state[row] == WorkloadState.QUEUED
    if queued:
        state.dequeue(row)
    w = state.workloads
    w.reestimate(row, event.estimate_ms, state.capacity)
    if queued:
        state.enqueue(row)
    elif state.is_bound(row):
        heappush(state.ends, (w.expected_end(row, state.now_ms), row))


def boots_told(state: State, event: ev.BootsTold) -> None:
    state.outside.powered_down(array("i", event.nodes), event.boot_ms)


def outside_said(state: State, event: ev.OutsideSaid) -> None:
    state.outside.say(zip(array("i", event.rows), event.words, strict=True))


def runs_told(state: State, event: ev.RunsTold) -> None:
    state.past.tell(event.runs, event.until_ms)


def caps_told(state: State, event: ev.CapsTold) -> None:
    if event.most is not None:
        state.caps.limit(event.most)
        state.reconsider.ask(Cause.RULES)
    for row, draws in zip(array("i", event.rows), event.draws, strict=True):
        draw(state, row, draws)
