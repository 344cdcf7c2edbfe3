"""The smallest action whose simulation meets the target: options tried on forks of the cell, mildest first.

A trial carries out the acts on a fork and lets it run ahead as long as needed. The result is compared with a fork on
which nothing was done: the work that starts because of it, and the work that would be worse off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from engine.model.columns import view
from engine.model.errors import MusterError
from engine.model.quantities import shortlist
from engine.model.specs import PoolSpec, WorkloadState
from engine.placement.gang_placement import variants
from engine.state.queue_tree import Lack
from runbooks.actions import catalogue
from runbooks.drafts.symptoms import CellScene, Symptom, SymptomQuestion, WaitingLot
from runbooks.drafts.typed_draft import DraftGoal, SymptomChoice, Tried
from runbooks.plans.typed_plan import Act, ActionName
from runbooks.procedures.compiler import Maker

if TYPE_CHECKING:
    from engine.control import Engine


MAX_TRIALS = 30
"""Forks of one draft."""
MAX_AHEAD = 50_000
"""Workloads that wait or run above which a trial does not run ahead: it would take too long."""
CYCLES = 40_000
"""Workloads looked at in all cycles of one trial that runs ahead: in a large cell many ends share a cycle."""
MIN_CYCLES = 4
NEAR = 64
"""A least number is found to such a part of itself."""
GONE = frozenset((WorkloadState.FINISHED, WorkloadState.FAILED, WorkloadState.CANCELLED))
Given = Mapping[str, Any]
"""By the names of `runbooks.actions`, as `Maker.act` takes them."""


class DraftOption(msgspec.Struct, frozen=True, kw_only=True):
    """Something that might be done."""

    text: str
    steps: tuple[tuple[ActionName, Given], ...]
    runbook: str = ""
    """Id of one of the library that does the same, and what it needs to be told."""
    inputs: Mapping[str, str] = {}
    harms: str = ""
    """Who may be hurt, and how: for the risks."""


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an option on a fork."""

    option: DraftOption
    refused: str = ""
    started: frozenset[str] = frozenset()
    """Of those watched, what has its nodes, or has ended, and would not without it."""
    stopped: frozenset[str] = frozenset()
    """What ran and does not any more, though nobody asked for that, and would run without it."""
    delayed: frozenset[str] = frozenset()
    """What is of no lower priority than those watched, would have started without it, and has not."""
    put_off: frozenset[str] = frozenset()
    """What it stops by what it is, and does not run again."""
    ahead_ms: int = 0

    @property
    def harmless(self) -> bool:
        return not (self.refused or self.stopped or self.delayed)

    @property
    def gain(self) -> int:
        return len(self.started) if self.harmless else 0


Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""[workload row]"""


class ForkReading(NamedTuple):
    """The workloads of a fork that are bound, or over, after a time."""

    bound: Mask
    """Placed or running."""
    there: Mask
    """Bound, or over."""


class Solver:
    """Trials on forks of one base, which itself is left as it is. Every one is counted."""

    def __init__(self, base: Engine, watched: Sequence[str], least_priority: int = 0) -> None:
        """`watched`: workloads that are to start. Others of a lower priority than `least_priority` may be later."""
        w = base.state.workloads
        self._base = base
        self.watched = frozenset(watched)
        self._watched = np.zeros(len(w.ids), bool)
        self._watched[[w.row_of[id_] for id_ in watched]] = True
        values = np.array(w.priority_value, np.int64)
        self._important: Mask = values[view(w.priority)] >= least_priority if w.ids else np.zeros(0, bool)
        self._without: dict[int, ForkReading] = {}
        self._before = ran(base)
        self.trials = 0
        self.tried: list[Tried] = []

    @property
    def _live(self) -> int:
        w = self._base.state.workloads
        return len(w.ids) - sum(w.state_counts[state] for state in GONE)

    def ahead(self, ms: int) -> int:
        """The time that a trial of this cell runs ahead: `ms`, or 0 in a cell that is too large."""
        return ms if self._live <= MAX_AHEAD else 0

    def run_ahead(self, fork: Engine, ms: int) -> None:
        if ms:
            cycles = max(MIN_CYCLES, CYCLES // max(self._live, 1))
            fork.cycle_every_ms = max(fork.cycle_every_ms, ms // cycles)
            fork.advance(fork.now_ms + ms)

    def without(self, ahead_ms: int) -> ForkReading:
        """The cell after that time, if nothing is done."""
        found = self._without.get(ahead_ms)
        if found is None:
            with forked(self._base) as fork:
                self.run_ahead(fork, ahead_ms)
                found = self._without[ahead_ms] = ran(fork)
        return found

    def left_alone(self, ahead_ms: int) -> frozenset[str]:
        """The watched workloads that start by themselves within that time."""
        return self._ids(self._watched & self.without(self.ahead(ahead_ms)).there)

    def try_(self, option: DraftOption, ahead_ms: int = 0) -> TrialResult:
        """Do it on a fork and look."""
        ahead_ms = self.ahead(ahead_ms)
        if self.trials >= MAX_TRIALS:
            return TrialResult(option=option, refused="enough was tried")
        self.trials += 1
        with forked(self._base) as fork:
            try:
                acts = done(fork, option)
                fork.settle()
                self.run_ahead(fork, ahead_ms)
            except MusterError as error:
                return self._noted(TrialResult(option=option, refused=error.problem))
            after = ran(fork)
        before, without = self._before, self.without(ahead_ms)
        asked = self._asked(acts)
        others = ~asked
        result = TrialResult(
            option=option,
            started=self._ids(self._watched & after.there & ~without.there),
            stopped=self._ids(before.bound & without.there & ~after.there & others),
            delayed=self._ids(without.there & ~before.there & ~after.there & others & ~self._watched & self._important),
            put_off=self._ids(before.bound & asked & ~after.there),
            ahead_ms=ahead_ms,
        )
        return self._noted(result)

    def _asked(self, acts: Sequence[Act]) -> Mask:
        """The workloads that the acts themselves stop or put off: their targets, and the work on nodes that are
        drained."""
        row_of = self._base.state.workloads.row_of
        found = np.zeros(len(self._watched), bool)
        for act in acts:
            names = set(act.targets)
            if act.action == "drain":
                names = {name for id_ in act.targets for name, _ in self._base.node(id_).workloads}
            found[[row_of[name] for name in names if name in row_of]] = True
        return found

    def _ids(self, mask: Mask) -> frozenset[str]:
        ids = self._base.state.workloads.ids
        return frozenset(ids[row] for row in np.flatnonzero(mask).tolist())

    def _noted(self, result: TrialResult) -> TrialResult:
        if result.refused:
            why = result.refused
        elif result.stopped:
            why = f"it would stop {named(result.stopped)}"
        elif result.delayed:
            why = f"{named(result.delayed)} would be later"
        else:
            why = (
                f"{len(result.started):,} of {len(self.watched):,} start" if self.watched else "nothing is worse for it"
            )
        met = result.harmless and result.started == self.watched
        self.tried.append(Tried(text=result.option.text, met=met, why=why))
        return result

    def least(
        self, low: int, high: int, option_of: Callable[[int], DraftOption], ahead_ms: int = 0, enough: int = 0
    ) -> TrialResult:
        """The smallest number from `low` to `high` that starts as much as `high` does, to one part in NEAR of it;
        `high` itself where that harms nobody and helps nobody, or is refused. With less than `enough` not all of those
        watched can start."""
        best = self.try_(option_of(high), ahead_ms)
        while not best.harmless and high > low and self.trials < MAX_TRIALS:
            high = (low + high) // 2
            best = self.try_(option_of(high), ahead_ms)
        if not best.gain:
            return best
        wanted = best.gain
        if best.started == self.watched:
            low = max(low, min(enough, high))
        while high - low > high // NEAR and self.trials < MAX_TRIALS:
            middle = (low + high) // 2
            result = self.try_(option_of(middle), ahead_ms)
            if result.gain >= wanted:
                best, high = result, middle
            else:
                low = middle + 1
        return best


def unless_harmful(scene: CellScene, option: DraftOption, why: str, *questions: str) -> RuleAnswer | None:
    """The answer that takes this option, with who may be hurt as its risk; None where a fork shows that it is refused,
    or that it harms somebody."""
    if not Solver(scene.engine, ()).try_(option).harmless:
        return None
    return RuleAnswer(option=option, why=why, risks=(option.harms,), questions=questions)


def made(engine: Engine, option: DraftOption) -> tuple[Act, ...]:
    """Its acts for the cell as it is. Raises MusterError."""
    maker = Maker(engine)
    return tuple(maker.act(action, given) for action, given in option.steps)


def done(fork: Engine, option: DraftOption) -> tuple[Act, ...]:
    """Its acts, carried out on the fork one after the other. Raises MusterError."""
    maker = Maker(fork)
    acts = []
    for action, given in option.steps:
        act = maker.act(action, given)
        catalogue.check(act)
        if catalogue.find(act.action).command:
            fork.command(catalogue.command(act))
        acts.append(act)
    return tuple(acts)


@contextlib.contextmanager
def forked(engine: Engine) -> Iterator[Engine]:
    fork = engine.fork()
    try:
        yield fork
    finally:
        fork.forget()


def ran(engine: Engine) -> ForkReading:
    states = view(engine.state.workloads.state)
    bound = (states == WorkloadState.PLACED) | (states == WorkloadState.RUNNING)
    over = (states >= WorkloadState.FINISHED) & (states <= WorkloadState.CANCELLED)
    return ForkReading(bound, bound | over)


def named(ids: Collection[str]) -> str:
    """As in "wl-1, wl-2, wl-3 and 3 more"."""
    return shortlist(tuple(sorted(ids)), 3)


# -- what comes of them ------------------------------------------------------------------------------------------------


class RuleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rule: an option, or why there is none."""

    option: DraftOption | None
    """None: nothing should be done."""
    why: str
    """A sentence: why this, or why nothing."""
    about: tuple[tuple[str, str], ...] = ()
    """(kind, id) of what is in question, besides what is acted on."""
    target: DraftGoal | None = None
    starts: tuple[str, ...] = ()
    """Of what is late, what starts because of it."""
    ahead_ms: int = 0
    """How far the trial ran ahead for that."""
    tried: tuple[Tried, ...] = ()
    questions: tuple[str, ...] = ()
    risks: tuple[str, ...] = ()
    partial: bool = False
    """It helps part of what is late."""
    read_as: str = ""
    """What the question was read as; empty where nothing of it was known."""
    undecided: bool = False
    """A person has to pick one of the choices; where not, they are what else it may be about."""
    choices: tuple[SymptomChoice, ...] = ()


class Family(NamedTuple):
    """Options of one kind, by a number."""

    low: int
    high: int
    option: Callable[[int], DraftOption]
    ahead_ms: int = 0
    enough: int = 0
    """Less of it cannot start all that is late."""


class Case:
    """A symptom of waits, with its lots and a solver for them."""

    def __init__(self, scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> None:
        self.scene = scene
        self.state = scene.state
        self.symptom = symptom
        self.question = question
        self.lots = symptom.lots
        self.first = symptom.lots[0]
        watched = [id_ for lot in self.lots for id_ in lot.members]
        self.priority = min(lot.priority for lot in self.lots)
        self.solver = Solver(scene.engine, watched, self.priority)

    # -- what is asked for --------------------------------------------------------------------------------------------

    def pools(self) -> list[PoolSpec]:
        """Pools that the late work may use."""
        w, pools = self.state.workloads, self.state.capacity.pools
        rows = {row for lot in self.lots for shape in w.class_at(lot.row).shapes for row in shape.pool_set}
        return [pools[row] for row in sorted(rows)]

    def lack(self, lot: WaitingLot) -> Lack | None:
        """The quota that the queue lacks for one workload of the lot, in its preferred variant."""
        state = self.state
        shapes = next(variants(state, lot.row), None)
        if shapes is None:
            return None
        charge = state.charge_if(lot.row, shapes, state.workloads.class_at(lot.row).least)
        return state.queues.lack(state.workloads.queue[lot.row], charge, self.scene.now_ms)

    def wanted(self, resource: str) -> int:
        """The quantity that all late work requests, in the resource's own unit."""
        field = {"cpu_milli": "cpu_milli", "gpu_milli": "gpu_milli"}.get(resource, "memory_mib")
        return sum(int(getattr(lot, field)) * lot.count for lot in self.lots)

    def free(self, resource: str) -> int:
        """The free quantity in the pools that the late work may use."""
        names = {pool.name for pool in self.pools()}
        return sum(
            pool.capacity[resource] - pool.used[resource] for name, pool in self.scene.pools.items() if name in names
        )
