"""One wait that is looked into: what is late, what it asks for, and the trials that are made for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from engine.model import PoolSpec
from engine.quota import Lack
from engine.variants import variants
from runbooks.draft import Target, Tried
from runbooks.draft_question import Asked
from runbooks.draft_solver import Option, Solver
from runbooks.symptoms import Lot, Scene, Symptom


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule comes to."""

    option: Option | None
    """None: nothing should be done."""
    why: str
    """A sentence: why this, or why nothing."""
    about: tuple[tuple[str, str], ...] = ()
    """(kind, id) of what is in question, besides what is acted on."""
    target: Target | None = None
    starts: tuple[str, ...] = ()
    """Of what is late, what starts because of it."""
    ahead_ms: int = 0
    """How far the trial ran ahead for that."""
    tried: tuple[Tried, ...] = ()
    questions: tuple[str, ...] = ()
    risks: tuple[str, ...] = ()
    partial: bool = False
    """It helps part of what is late."""


class Family(NamedTuple):
    """Options of one kind, by a number."""

    low: int
    high: int
    option: Callable[[int], Option]
    ahead_ms: int = 0
    enough: int = 0
    """Less of it cannot start all that is late."""


class Case:
    """One symptom of waits that is being looked into."""

    def __init__(self, scene: Scene, symptom: Symptom, asked: Asked) -> None:
        self.scene = scene
        self.state = scene.state
        self.symptom = symptom
        self.asked = asked
        self.lots = symptom.lots
        self.first = symptom.lots[0]
        watched = [id_ for lot in self.lots for id_ in lot.members]
        self.priority = min(lot.priority for lot in self.lots)
        self.solver = Solver(scene.engine, watched, self.priority)

    # -- what is asked for --------------------------------------------------------------------------------------------

    def pools(self) -> list[PoolSpec]:
        """That the late work may use."""
        w, pools = self.state.workloads, self.state.capacity.pools
        rows = {row for lot in self.lots for shape in w.class_at(lot.row).shapes for row in shape.pool_set}
        return [pools[row] for row in sorted(rows)]

    def lack(self, lot: Lot) -> Lack | None:
        """What its queue lacks for one of the lot, in the way it would like best."""
        state = self.state
        shapes = next(variants(state, lot.row), None)
        if shapes is None:
            return None
        charge = state.charge_if(lot.row, shapes, state.workloads.class_at(lot.row).least)
        return state.queues.lack(state.workloads.queue[lot.row], charge, self.scene.now_ms)

    def wanted(self, resource: str) -> int:
        """By all that is late, in the resource's own unit."""
        field = {"cpu_milli": "cpu_milli", "gpu_milli": "gpu_milli"}.get(resource, "memory_mib")
        return sum(int(getattr(lot, field)) * lot.count for lot in self.lots)

    def free(self, resource: str) -> int:
        """In the pools that the late work may use."""
        names = {pool.name for pool in self.pools()}
        return sum(
            pool.capacity[resource] - pool.used[resource] for name, pool in self.scene.pools.items() if name in names
        )
