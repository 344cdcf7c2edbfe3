"""Kueue's decisions beside those of the engine's model of it, which is the policy `kueue` on a fork of the cell.

A look forks the cell as it is before Kueue's new admissions are told, has the fork decide once, and compares:

- *kept*: the fork starts what Kueue keeps waiting, in two looks with nothing changed about it;
- *started*: Kueue reserved quota for what the fork leaves waiting for quota.

Each is counted once for a workload and wait. Where Kueue has reserved quota for work whose pods have no nodes yet, the
fork has to start that work anew; where it cannot, nothing of that cohort is compared. Work that the fork leaves waiting
for room is not compared either: Kueue does not look at nodes.

Only the copy is made on the engine's thread. There is a look at most every EVERY_S, less often where it takes long, and
none while nothing is told; admissions between two looks are not compared.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from engine.control import Engine
from engine.external.mirror_pass import Call
from engine.external.mirror_report import ModelAgreement, ModelDisagreement
from engine.model.columns import view
from engine.model.external_cells import WorkloadSeen
from engine.model.specs import QueueMode, WorkloadState
from engine.state.cell_state import State

EVERY_S = 10.0
SHARE = 20
"""A look is made again after so many times as long as the last one took."""
KEPT = 20
OF_QUOTA = frozenset(("WaitingForQuota", "BehindInQueue"))
"""Tokens of the reasons that are about Kueue's decisions."""


class CellFork(NamedTuple):
    """The cell as it was, which decides by itself."""

    engine: Engine
    held: frozenset[str]
    """Workloads with quota and without nodes."""


class ForkDecisions(NamedTuple):
    """What a fork decided about workloads that waited."""

    compared: frozenset[str]
    starts: frozenset[str]
    lacks: dict[str, str]
    """Of those that Kueue has admitted: left waiting for quota -> why."""


class ModelComparison:
    """For one thread; `report` and `disagrees` for any."""

    def __init__(self, call: Call, clock: Callable[[], float] = time.monotonic) -> None:
        self._call = call
        self._clock = clock
        self._due_s = -1e9
        """Our clock: before that there is no look."""
        self._decided: ForkDecisions | None = None
        """By the last look, while nothing was told since."""
        self._compared: set[str] = set()
        """Waiting workloads that are counted."""
        self._fitting: dict[str, tuple[str, float]] = {}
        """Workload that would start -> (Kueue's word on it, when it was first found so)."""
        self._kept: dict[str, float] = {}
        self._counts = [0, 0, 0]
        self._started: deque[ModelDisagreement] = deque(maxlen=KEPT)

    def report(self) -> ModelAgreement:
        compared, kept, started = self._counts
        text = "our model would start it now: a rule of Kueue's that it does not know holds it"
        now = [ModelDisagreement(workload=name, text=text, at_s=at) for name, at in list(self._kept.items())[-KEPT:]]
        last = sorted((*now, *self._started), key=lambda each: -each.at_s)[:KEPT]
        return ModelAgreement(compared=compared, kept=kept, started=started, last=tuple(last))

    def disagrees(self, workload: str) -> bool:
        """True if Kueue keeps it waiting and the model would start it."""
        return workload in self._kept

    def fork(self, *, changed: bool) -> CellFork | None:
        """The cell as it is now, if it is time for a look. `changed`: anything was told since the last call."""
        if changed:
            self._decided = None
        if self._clock() < self._due_s or self._decided is not None:
            return None
        fork: CellFork = self._call(_fork)
        return fork

    def look(self, fork: CellFork | None, admitted: Sequence[WorkloadSeen], now_s: float) -> None:
        """Compare what the fork decides with what is so. `admitted`: Kueue has reserved quota for these since the fork
        was made. Without a fork: nothing has changed since the last one, which would decide the same."""
        began = self._clock()
        if fork is not None:
            names = [fact.spec.id for fact in admitted]
            self._decided = decisions(fork, names)
            fork.engine.forget()
            self._note_admitted(self._decided, names, now_s)
        if self._decided is not None and began >= self._due_s:
            self._note_waiting(self._decided, now_s)
            ended = self._clock()
            self._due_s = ended + max(EVERY_S, SHARE * (ended - began))

    def _note_admitted(self, decided: ForkDecisions, admitted: Iterable[str], now_s: float) -> None:
        for name in admitted:
            self._counts[0] += name in decided.compared and name not in self._compared
            if name in decided.lacks:
                self._counts[2] += 1
                text = f"our model would not: {decided.lacks[name]}"
                self._started.append(ModelDisagreement(workload=name, text=text, at_s=now_s))

    def _note_waiting(self, decided: ForkDecisions, now_s: float) -> None:
        waiting = self._call(partial(_words, decided.compared))
        self._counts[0] += len(waiting.keys() - self._compared)
        self._compared = set(waiting)
        fitting = {name: word for name, word in waiting.items() if name in decided.starts}
        for name in [name for name in self._kept if name not in fitting]:
            del self._kept[name]
        for name, word in fitting.items():
            before = self._fitting.get(name)
            if before is not None and before[0] == word and name not in self._kept:
                self._kept[name] = before[1]
                self._counts[1] += 1
        known, self._fitting = self._fitting, {}
        for name, word in fitting.items():
            same = name in known and known[name][0] == word
            self._fitting[name] = known[name] if same else (word, now_s)


def _fork(engine: Engine) -> CellFork:
    ids = engine.state.workloads.ids
    held = frozenset(ids[row] for row in engine.state.held_quota.of)
    return CellFork(engine.fork(), held)


def decisions(fork: CellFork, admitted: Collection[str] = ()) -> ForkDecisions:
    """Have the fork decide."""
    engine, state = fork.engine, fork.engine.state
    w = state.workloads
    waiting = [row for row in np.flatnonzero(view(w.state) == WorkloadState.QUEUED).tolist()
               if w.ids[row] not in fork.held and state.queues.mode[w.queue[row]] == QueueMode.OPEN]  # fmt: skip
    engine.settle()
    barred = {_cohort(state, w.row_of[name]) for name in fork.held if not state.is_bound(w.row_of[name])}
    compared = frozenset(w.ids[row] for row in waiting if _cohort(state, row) not in barred)
    starts = frozenset(w.ids[row] for row in waiting if w.ids[row] in compared and state.is_bound(row))
    lacks = {name: why for name in compared.intersection(admitted) - starts if (why := _lack(engine, name))}
    return ForkDecisions(compared, starts, lacks)


def _lack(engine: Engine, name: str) -> str:
    """Why it waits, where that is for quota."""
    first = next(iter(engine.reader.explainer.reasons(engine.state.workloads.row_of[name])), None)
    return first.text if first is not None and first.token in OF_QUOTA else ""


def _cohort(state: State, row: int) -> int:
    """The root that the workload's queue is under."""
    return state.queues.path[state.workloads.queue[row]][-1]


def _words(names: Collection[str], engine: Engine) -> dict[str, str]:
    """Those of the workloads that wait for quota now -> Kueue's word on them."""
    state, found = engine.state, {}
    w = state.workloads
    for name in names:
        row = w.row_of.get(name)
        if row is not None and w.state[row] == WorkloadState.QUEUED and row not in state.held_quota.of:
            found[name] = state.outside.word_of(row)
    return found
