"""Kueue's decisions beside those of the engine's model of it.

Two kinds of disagreement are counted, each once for a workload and wait: Kueue keeps waiting what the model would
start, for two looks with nothing changed about it; and Kueue reserved quota for what has none left in the model,
counted after all that made room in the same pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from engine.control import Engine
from engine.external.mirror_pass import Call
from engine.external.mirror_report import ModelAgreement, ModelDisagreement
from engine.external.slurm.limits import FITS
from engine.model.external_cells import WorkloadSeen
from engine.model.quantities import with_unit
from engine.model.specs import QueueMode, WorkloadState

EVERY_S = 10.0
MAX_ASKED = 50
"""Waiting workloads of which the model is asked in one look: the first of each queue first."""
KEPT = 20


class ModelComparison:
    """For one thread; `report` for any."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._at = -1e9
        self._fitting: dict[str, tuple[str, float]] = {}
        """Workload that would start -> (its word, when it was first found so)."""
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

    def note_admitted(self, facts: Sequence[WorkloadSeen], now_s: float) -> None:
        """Kueue has reserved quota for these since the last pass; what left since was told already."""
        if not facts:
            return
        asked, lacks = self._call(partial(_lacks, tuple(facts)))
        self._counts[0] += asked
        self._counts[2] += len(lacks)
        for name, why in lacks.items():
            self._started.append(ModelDisagreement(workload=name, text=f"our model would not: {why}", at_s=now_s))

    def look(self, monotonic_s: float, now_s: float) -> None:
        """Ask the model of what waits, from time to time."""
        if monotonic_s - self._at < EVERY_S:
            return
        self._at = monotonic_s
        asked, fitting = self._call(_fitting)
        self._counts[0] += asked
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


def _fitting(engine: Engine) -> tuple[int, dict[str, str]]:
    """(how many were asked about, those that the model would start with the scheduler's word on them)"""
    state = engine.state
    w = state.workloads
    rows = [row for row in range(len(w.ids)) if w.state[row] == WorkloadState.QUEUED
            and row not in state.held_quota.of and state.queues.mode[w.queue[row]] == QueueMode.OPEN]  # fmt: skip
    ranks: dict[int, int] = {}
    order = []
    for row in rows:
        ranks[w.queue[row]] = ranks.get(w.queue[row], 0) + 1
        order.append((ranks[w.queue[row]], row))
    chosen = [row for _, row in sorted(order)[:MAX_ASKED]]
    found = {}
    for row in chosen:
        if any(reason.token == FITS for reason in engine.reader.explainer.reasons(row)):
            found[w.ids[row]] = state.outside.word_of(row)
    return len(chosen), found


def _lacks(facts: Sequence[WorkloadSeen], engine: Engine) -> tuple[int, dict[str, str]]:
    """(how many had no quota before, those for which there is too little -> why)"""
    state, found, asked = engine.state, {}, 0
    w, queues = state.workloads, state.queues
    for fact in facts:
        row = w.row_of.get(fact.spec.id)
        if row is None or state.is_bound(row) or row in state.held_quota.of or queues.flavored(w.queue[row]):
            continue
        asked += 1
        lack = queues.lack(w.queue[row], w.class_at(row).charge, engine.now_ms)
        if lack is not None:
            queue, resource = queues.specs[lack.vertex].name, queues.named_slot(lack.slot)[1]
            found[fact.spec.id] = f"queue '{queue}' has {with_unit(resource, lack.short)} too little"
    return asked, found
