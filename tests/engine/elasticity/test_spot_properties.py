"""Random lives through storms of spot machines taken back: no work is lost, gangs stay whole, the end comes in time.

The lives are those of `random_cells`, on pools whose machines the simulated provider takes back often, with and without
a greatest age; besides, whole sets of machines get notice at once, some of them twice, some long gone.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cells import (
    HOUR,
    MINUTE,
    SECOND,
    SOME,
    Grow,
    Life,
    Pass,
    Player,
    Submit,
    all_faults,
    cells,
    drafts,
    forks,
    others,
    restarts,
)

from engine.model import commands as cmd
from engine.model.specs import Autoscaling, CellSpec, NodeSpec, NodeState, ScalingSpec, WorkloadState


@dataclass(frozen=True)
class Storm:
    """Notices for these nodes at once."""

    nodes: tuple[int, ...]
    notice_ms: int


class Weathered(Player):
    """A player who sees to it that machines end when their provider said, and that what ran there goes on."""

    def do(self, operation: Any) -> None:
        if isinstance(operation, Storm):
            known = self.names.nodes
            ids = tuple(known[i % len(known)] for i in operation.nodes)
            self.ask(cmd.Interrupt(ids=ids, notice_ms=operation.notice_ms))
        else:
            super().do(operation)

    def check(self) -> None:
        super().check()
        state = self.engine.state
        capacity, w = state.capacity, state.workloads
        for node, end_ms in enumerate(capacity.doomed):
            if end_ms < 0 or capacity.state[node] == NodeState.REMOVED:
                continue
            assert end_ms > self.engine.now_ms, f"{capacity.node_ids[node]} outlived its end"
            assert capacity.state[node] != NodeState.READY, f"{capacity.node_ids[node]} takes work, though it ends"
        for row, name in enumerate(w.ids):
            assert w.failures[row] <= w.failing[row], f"a machine's end counted as a failure of {name}"

    def calm(self) -> None:
        """New machines that stay, and everything that is able to ends."""
        pools = [pool.name for pool in self.life.cell.pools]
        self.ask(
            cmd.SetSettings(settings=msgspec.structs.replace(self.engine.state.settings, autoscaling=NONE_ORDERED))
        )
        for pool in pools:
            self.ask(cmd.AddNodes(nodes=tuple(NodeSpec(id=f"{pool}-late{i}", pool=pool) for i in range(8))))
        self.ask(cmd.OpenQueues(names=tuple(queue.name for queue in self.names.queues)))
        self.engine.faults = self.engine.executor.faults = None
        for state, command in ((WorkloadState.HELD, cmd.Release), (WorkloadState.SUSPENDED, cmd.Resume)):
            rows = [row for row, now in enumerate(self.engine.state.workloads.state) if now == state]
            if rows:
                self.ask(command(ids=tuple(self.engine.state.workloads.ids[row] for row in rows)))
        self.advance(self.engine, 10 * MINUTE)
        self.check()


NONE_ORDERED = Autoscaling(enabled=False)


@st.composite
def stormy_cells(draw: st.DrawFn) -> CellSpec:
    cell = draw(cells())
    pools = []
    for pool in cell.pools:
        scaling = ScalingSpec(
            most=64,
            taken_permille_hour=draw(st.sampled_from([0, 300, 999])),
            notice_ms=draw(st.sampled_from([0, 1, SECOND, 30 * SECOND])),
            max_age_ms=draw(st.sampled_from([0, 0, MINUTE, HOUR])),
        )
        pools.append(
            msgspec.structs.replace(pool, spot=draw(st.booleans()), scaling=scaling if draw(st.booleans()) else None)
        )
    return msgspec.structs.replace(
        cell, pools=tuple(pools), settings=msgspec.structs.replace(cell.settings, autoscaling=NONE_ORDERED)
    )


@st.composite
def mixed_drafts(draw: st.DrawFn) -> Any:
    """With capacity types, guaranteed shares, deadlines and times to read checkpoints back."""
    draft = draw(drafts())
    groups = tuple(
        msgspec.structs.replace(
            group,
            capacity_type=draw(st.sampled_from(["", "", "", "spot", "on-demand"])),
            on_demand=draw(st.sampled_from([0, 0, 0, 1])),
        )
        for group in draft.spec.groups
    )
    spec = msgspec.structs.replace(draft.spec, groups=groups, restore_ms=draw(st.sampled_from([0, 0, 1, 2 * SECOND])))
    return replace(draft, spec=spec, due_in_ms=draw(st.sampled_from([0, SECOND, MINUTE, HOUR])))


storms = st.builds(
    Storm,
    st.lists(st.integers(0, 11), min_size=1, max_size=12).map(tuple),
    st.sampled_from([-1, 0, 1, SECOND, 3 * SECOND, 2 * MINUTE]),
)
arrivals = st.builds(Submit, st.lists(mixed_drafts(), min_size=1, max_size=3).map(tuple))
grows = st.builds(Grow, st.integers(0, 2))
long_passes = st.builds(Pass, st.sampled_from([MINUTE, 20 * MINUTE, 2 * HOUR]))


@st.composite
def stormy_lives(draw: st.DrawFn, durable: bool = False) -> Life:
    happenings = st.one_of(storms, storms, storms, grows, others, long_passes, restarts if durable else forks)
    operations: list[Any] = []
    for _ in range(4):
        operations += draw(st.lists(arrivals, max_size=3))
        operations += draw(st.lists(happenings, max_size=6))
    return Life(
        draw(stormy_cells()),
        draw(st.sampled_from(["easy", "conservative", "fcfs"])),
        draw(st.one_of(st.none(), st.none(), all_faults)),
        draw(st.integers(0, 3)),
        tuple(operations),
    )


def live(life: Life) -> None:
    with tempfile.TemporaryDirectory() as folder:
        player = Weathered(life, folder if life.durable else None)
        try:
            player.play()
            player.calm()
            player.check_replay()
        finally:
            if life.durable:
                player.engine._journal.close()


@given(stormy_lives())
@settings(SOME, max_examples=examples(16))
def test_no_storm_loses_work_or_breaks_gangs(life: Life) -> None:
    live(life)


@given(stormy_lives(durable=True))
@settings(SOME, max_examples=examples(6))
def test_a_restart_in_a_storm_changes_nothing(life: Life) -> None:
    live(life)


@pytest.mark.slow
@given(st.one_of(stormy_lives(), stormy_lives(durable=True)))
@settings(SOME, max_examples=examples(600))
def test_many_storms(life: Life) -> None:
    live(life)
