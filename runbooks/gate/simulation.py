"""What an act would change, measured on a fork: the words of before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.model.money import usd
from engine.model.queries import Overview
from engine.model.specs import WorkloadState
from engine.tables.columns import view
from runbooks.actions import catalogue, risk
from runbooks.actions.declaration import BOUND, Action
from runbooks.plans.amounts import amount, listed, whole, workloads
from runbooks.plans.typed_plan import Act, Effect, Target

if TYPE_CHECKING:
    from engine.control import Engine

SHOWN_STARTS = 1_000
"""Fresh starts compared by name, before and after."""


class ForkTrial:
    """A fork on which the acts of one plan are done in their order.

    The fork runs a cycle before it is looked at: what was about to start anyway is not the plan's doing.
    """

    def __init__(self, engine: Engine) -> None:
        self.fork = engine.fork()
        self.fork.settle()
        self._before = self.fork.overview(brief=True)
        self.after = self._before
        """As the cell is with all done so far."""
        self._started = starts(self.fork)
        self._special: list[Effect] = []
        self._moved: set[str] = set()
        self._lost: dict[str, list[tuple[Action, Target]]] = {}
        self._acted = False

    def close(self) -> None:
        """The fork is not looked at again."""
        self.fork.forget()

    def do(self, row: Action, act: Act, touched: list[Target]) -> None:
        """Raises RefusedError when the engine refuses it there. `touched` are the targets and what it stops besides."""
        fork = self.fork
        if not row.command:
            return
        self._acted = True
        excess, spent = over(fork, act), spending(fork, row, act)
        fragments = fragmented(fork.overview()) if act.moves else ""
        fork.command(catalogue.command(act))
        fork.settle()
        self.after = fork.overview(brief=True)
        if act.moves:
            self._moved.update(act.targets)
            self._note("GPU fragmentation", fragments, fragmented(fork.overview()))
        if excess != over(fork, act):
            self._note("Above what it may use", excess, over(fork, act))
        for (label, before), (_, after) in zip(spent, spending(fork, row, act), strict=True):
            self._note(label, before, after)
        stops = [(row, target) for target in touched if risk.loses_work(row, target)]
        if stops:
            self._lost.setdefault(row.lost, []).extend(stops)

    def effects(self) -> tuple[Effect, ...]:
        """What all of it has changed; nothing where nothing was done to the cell."""
        if not self._acted:
            return ()
        effects = compare(self._before, self.after) + self._special
        for label, stops in self._lost.items():
            by_id = {target.id: (row, target) for row, target in stops}
            effects.append(Effect(label=label, before="none", after=workloads(len(by_id))))
        if self._lost:
            stopped = {target.id: (row, target) for stops in self._lost.values() for row, target in stops}
            effects.append(Effect(label="Work lost, if now", before="none", after=risk.lost_by(stopped.values())))
        names, count = starts(self.fork)
        # What is moved starts anew, but it ran before.
        others = tuple(id_ for id_ in names if id_ not in self._moved)
        effects += compare_starts(self._started, (others, count - len(names) + len(others)))
        return tuple(effects)

    def dearer_microusd_hour(self) -> int:
        """By how much the cell costs more an hour."""
        return max(0, self.after.cost_microusd_hour - self._before.cost_microusd_hour)

    def _note(self, label: str, before: str, after: str) -> None:
        self._special.append(Effect(label=label, before=before, after=after))


def over(fork: Engine, act: Act) -> str:
    """What the queue of the plan draws above what it may."""
    if act.queue is None:
        return "none"
    excess = fork.queue(act.queue.to.name).over
    pairs = ((key.rpartition("/"), quantity) for key, quantity in excess.items())
    return ", ".join(f"{pool}{slash}{amount(name, quantity)}" for (pool, slash, name), quantity in pairs) or "none"


def spending(fork: Engine, row: Action, act: Act) -> list[tuple[str, str]]:
    """Of the budgets that the plan changes: what is spent, and what waits because of that."""
    if row.kind != "budget":
        return []
    lines = {line.spec.name: line for line in fork.budgets().budgets}
    found = []
    for name in act.targets:
        line = lines.get(name)
        spent, waiting = "no budget", 0
        if line is not None:
            spent = f"{usd(line.spent_microusd)} of {usd(line.spec.limit_microusd)}, {line.stage}"
            waiting = line.waiting
        found += [(f"Spent of {name}", spent), (f"Wait for {name}", workloads(waiting) if waiting else "none")]
    return found


def compare(before: Overview, after: Overview) -> list[Effect]:
    """The figures of every plan, and those others that change."""
    unit = scarce(before)[1]
    always = [
        Effect(label="Waiting", before=in_state(before, "queued"), after=in_state(after, "queued")),
        Effect(label="Running", before=running(before), after=running(after)),
        Effect(label=f"{unit} in use", before=in_use(before), after=in_use(after)),
        Effect(label=f"{unit} free", before=free(before), after=free(after)),
    ]
    others = [
        Effect(label="On hold", before=in_state(before, "held"), after=in_state(after, "held")),
        Effect(label="Suspended", before=in_state(before, "suspended"), after=in_state(after, "suspended")),
        Effect(label="Nodes taking work", before=nodes_ready(before), after=nodes_ready(after)),
        Effect(label="Nodes to come", before=to_come(before), after=to_come(after)),
        Effect(label="Cost an hour", before=usd(before.cost_microusd_hour), after=usd(after.cost_microusd_hour)),
    ]
    return always + [effect for effect in others if effect.before != effect.after]


def fragmented(overview: Overview) -> str:
    """Share of the free GPU that the work of the cell could not use."""
    ppm = overview.fragmentation_ppm
    return "unknown" if ppm is None else f"{ppm / 10_000:.1f}%"


def in_state(overview: Overview, state: str) -> str:
    return f"{overview.states.get(state, 0):,}"


def running(overview: Overview) -> str:
    return f"{sum(overview.states.get(state, 0) for state in BOUND):,}"


def nodes_ready(overview: Overview) -> str:
    return f"{sum(pool.ready for pool in overview.pools):,}"


def to_come(overview: Overview) -> str:
    """Nodes that boot or are on order."""
    return f"{sum(pool.booting + pool.ordered for pool in overview.pools):,}"


def scarce(overview: Overview) -> tuple[str, str]:
    """The resource people count in: GPU where the cell has any, else CPU."""
    return ("gpu_milli", "GPU") if overview.capacity.get("gpu_milli") else ("cpu_milli", "CPU")


def in_use(overview: Overview) -> str:
    field, _ = scarce(overview)
    return f"{whole(overview.used.get(field, 0))} of {whole(overview.capacity.get(field, 0))}"


def free(overview: Overview) -> str:
    field, _ = scarce(overview)
    return whole(overview.capacity.get(field, 0) - overview.used.get(field, 0))


def starts(fork: Engine) -> tuple[tuple[str, ...], int]:
    """Workloads given a place at the fork's present time: ids, at most SHOWN_STARTS of a kind, and how many in all."""
    w = fork.state.workloads
    if not w.ids:
        return (), 0
    states = view(w.state)
    waits_for_executor = np.flatnonzero(states == WorkloadState.PLACED)
    runs_already = np.flatnonzero((states == WorkloadState.RUNNING) & (view(w.started) >= fork.now_ms))
    both = (waits_for_executor, runs_already)
    return tuple(w.ids[row] for rows in both for row in rows[:SHOWN_STARTS].tolist()), sum(map(len, both))


def compare_starts(before: tuple[tuple[str, ...], int], after: tuple[tuple[str, ...], int]) -> list[Effect]:
    (old, old_count), (new, new_count) = before, after
    if len(old) < old_count or len(new) < new_count:
        # Cut lists cannot be told apart by name.
        return [Effect(label="Starts now", before=f"{old_count:,}", after=f"{new_count:,}")]
    was, is_ = set(old), set(new)
    gained, missed = tuple(id_ for id_ in new if id_ not in was), tuple(id_ for id_ in old if id_ not in is_)
    effects = []
    if gained:
        effects.append(Effect(label="Starts because of it", before="none", after=listed(gained)))
    if missed:
        effects.append(Effect(label="No longer starts now", before=listed(missed), after="none"))
    return effects
