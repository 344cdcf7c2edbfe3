"""Random lives in which nodes are lost: one, a rack, most of them; reported by executors, or fallen silent. Gangs are
whole at every event (P2), and no workload is lost (P6).
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import WatchedEngine
from msgspec.structs import replace
from random_cells import SOME, Adopt, Fork, Life, Pass, Player, Submit, lives

from engine.control import Engine
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.specs import HealthSettings, NodeState
from engine.state.cell_state import BOUND, State
from tests.engine.test_constrained_lives import with_constraints

CALL_EVERY_MS = 5_000
POLICIES = ("fcfs", "easy", "easy-sjbf")
SETTINGS = (
    HealthSettings(),
    HealthSettings(heartbeat_every_ms=5_000, suspect_after_ms=10_000, grace_ms=5_000, flaps=2),
    HealthSettings(heartbeat_every_ms=5_000, suspect_after_ms=10_000, grace_ms=0, mass_permille=1000),
    HealthSettings(repair_ms=(20_000, 60_000), repair_fails_permille=500, most_repairs=2),
)


@dataclasses.dataclass(frozen=True)
class Lose:
    """Nodes that an executor reports lost, or back."""

    nodes: tuple[int, ...]
    back: bool = False


@dataclasses.dataclass(frozen=True)
class LoseRack:
    """All nodes of the rack of one."""

    node: int


@dataclasses.dataclass(frozen=True)
class Silence:
    """Nodes whose agents fall silent, or call again."""

    nodes: tuple[int, ...]
    back: bool = False


def check_gang(state: State, row: int) -> None:
    """P2: it has as many tasks of each group as it needs and no more than it asks for, or none."""
    w, a = state.workloads, state.allocations
    placed = [0] * len(w.class_at(row).counts)
    for i in a.of_workload(w.first_allocation[row]):
        placed[a.group[i]] += a.count[i]
    bound = w.state[row] in BOUND
    least, most = (w.class_at(row).least, w.class_at(row).counts) if bound else ([0] * len(placed),) * 2
    whole = all(low <= have <= high for low, have, high in zip(least, placed, most, strict=True))
    assert whole, f"{w.ids[row]} has {placed} of {most} tasks, at least {least}"


class LossyEngine(WatchedEngine):
    """Looks at the gang of every event that has one."""

    def _record(self, event: ev.AnyEvent) -> None:
        super()._record(event)
        row = getattr(event, "row", -1)
        if row >= 0 and not isinstance(event, ev.Ordered):
            check_gang(self.state, row)


class LossyPlayer(Player):
    """Agents call from all nodes that are not silent as long as time passes; from none unless somebody falls silent in
    this life."""

    def __init__(self, life: Life, folder: str | None = None) -> None:
        self.calling = any(isinstance(operation, Silence) for operation in life.operations)
        self.silent: set[str] = set()
        self.tokens: dict[str, tuple[int, int]] = {}
        self.number = 0
        super().__init__(life, folder)

    def open(self, cell: Any = None, *, use_snapshot: bool = True) -> WatchedEngine:
        self.tokens = {}
        return LossyEngine.open(
            self.path,
            seed=self.life.seed,
            cell=cell,
            faults=self.life.faults,
            snapshot_every=40,
            use_snapshot=use_snapshot,
        )

    def do(self, operation: Any) -> None:
        nodes = self.names.nodes
        if isinstance(operation, Lose):
            names = tuple(dict.fromkeys(nodes[i % len(nodes)] for i in operation.nodes))
            self.ask(cmd.RestoreNodes(ids=names) if operation.back else cmd.FailNodes(ids=names))
        elif isinstance(operation, LoseRack):
            capacity = self.engine.state.capacity
            rack = capacity.rack[capacity.row_of[nodes[operation.node % len(nodes)]]]
            there = tuple(name for name in nodes if capacity.rack[capacity.row_of[name]] == rack)
            self.ask(cmd.FailNodes(ids=there))
        elif isinstance(operation, Silence):
            names = {nodes[i % len(nodes)] for i in operation.nodes}
            self.silent = self.silent - names if operation.back else self.silent | names
        else:
            super().do(operation)
        self.check_nobody_is_on_what_is_down()

    def advance(self, engine: Engine, milliseconds: int) -> None:
        if not self.calling or engine is not self.engine:
            super().advance(engine, milliseconds)
            return
        until = engine.now_ms + milliseconds
        while engine.now_ms < until:
            self.call()
            engine.advance(min(engine.now_ms + CALL_EVERY_MS, until))

    def call(self) -> None:
        alive = [name for name in self.names.nodes if name not in self.silent]
        new = [name for name in alive if name not in self.tokens]
        found = self.engine.agents.register(new)
        self.tokens |= dict(zip(found.nodes, zip(found.rows, found.epochs, strict=True), strict=True))
        self.number += 1
        columns = np.array([self.tokens[name] for name in alive], np.int64).reshape(-1, 2)
        taken = self.engine.agents.beat(columns[:, 0], columns[:, 1], np.full(len(alive), self.number))
        assert taken.renewed == len(alive)

    def check_nobody_is_on_what_is_down(self) -> None:
        state = self.engine.state
        for node, now in enumerate(state.capacity.state):
            if now in (NodeState.DOWN, NodeState.REMOVED):
                assert not list(state.allocations.on_node(node)), f"work is on {state.capacity.node_ids[node]}"

    def leave_alone(self) -> None:
        self.silent = set()
        if self.calling:
            self.call()
            self.engine.advance(self.engine.now_ms)
            # Twenty years of heartbeats would be many.
            self.engine.agents.leases.close()
            self.calling = False
            assert NodeState.SUSPECT not in list(self.engine.state.capacity.state)
        self.ask(cmd.RestoreNodes(ids=tuple(self.names.nodes)))
        super().leave_alone()


numbers = st.integers(0, 11)
some = st.lists(numbers, min_size=1, max_size=6).map(tuple)
reported = st.one_of(st.builds(Lose, some, st.booleans()), st.builds(Lose, some), st.builds(LoseRack, numbers))
silences = st.one_of(st.builds(Silence, some, st.booleans()), st.builds(Silence, some))


@st.composite
def lossy(draw: st.DrawFn, durable: bool = False, calling: bool = False) -> Life:
    """A life in racks with losses here and there; most gangs may be swapped. Where agents call there are no forks: a
    fork hears nobody."""
    random = Random(draw(st.integers(0, 1 << 16)))
    life = with_constraints(draw(lives(durable=durable, policies=POLICIES)), random)
    operations: list[Any] = []
    for operation in life.operations:
        if (calling and isinstance(operation, Fork)) or (isinstance(operation, Adopt) and not_played(operation)):
            continue
        operations.append(swappable(operation, random.random))
        if random.random() < 0.4:
            operations.append(draw(st.one_of(reported, silences) if calling else reported))
            operations.append(Pass(draw(st.sampled_from([1, 5_000, 15_000, 60_000]))))
    if calling:
        operations.append(draw(silences))
    cell = life.cell
    health = draw(st.sampled_from(SETTINGS))
    return dataclasses.replace(
        life,
        cell=replace(cell, settings=replace(cell.settings, health=health)),
        operations=tuple(operations),
    )


def not_played(operation: Adopt) -> bool:
    return isinstance(operation.command, cmd.SetPolicy) and operation.command.policy not in POLICIES


def swappable(operation: Any, chance: Callable[[], float]) -> Any:
    if isinstance(operation, Fork):
        changed = tuple(swappable(step, chance) for step in operation.operations)
        return dataclasses.replace(operation, operations=changed)
    if not isinstance(operation, Submit):
        return operation
    return Submit(
        tuple(
            dataclasses.replace(draft, spec=replace(draft.spec, hot_swap=chance() < 0.7)) for draft in operation.drafts
        )
    )


def live(life: Life) -> LossyPlayer:
    with tempfile.TemporaryDirectory() as folder:
        player = LossyPlayer(life, folder if life.durable else None)
        try:
            player.play()
            player.leave_alone()
            player.check_replay()
        finally:
            if life.durable:
                player.engine._journal.close()
    return player


@settings(SOME, max_examples=examples(8))
@given(lossy())
def test_whatever_is_lost_gangs_are_whole_and_no_work_is_lost(life: Life) -> None:
    live(life)


@settings(SOME, max_examples=examples(8))
@given(lossy(calling=True))
def test_whoever_falls_silent_gangs_are_whole_and_no_work_is_lost(life: Life) -> None:
    live(life)


@settings(SOME, max_examples=examples(2))
@given(lossy(durable=True, calling=True))
def test_a_restart_in_the_midst_of_losses_loses_nothing(life: Life) -> None:
    live(life)


@pytest.mark.slow
@settings(SOME, max_examples=examples(2000))
@given(st.one_of(lossy(), lossy(calling=True), lossy(durable=True, calling=True)))
def test_two_thousand_lives_with_losses(life: Life) -> None:
    live(life)
