"""P12: every node-millisecond is charged to a workload or to nobody, exactly; and what follows from that."""

from __future__ import annotations

import tempfile
from array import array
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import task_rate_at
from random_cells import MINUTE, SOME, Adopt, Life, Player, lives

from engine import commands as cmd
from engine import events as ev
from engine.budgets import Stage
from engine.ledger import DAY_MS, GRAINS
from engine.model import BudgetSpec, NodeState
from engine.state import State

DOLLAR = 1_000_000
GPU_NODE = 20 * DOLLAR
"""Price of the nodes with devices in `small_cell`; each device is nine tenths of an eighth of it."""
DEVICE = GPU_NODE * 9 // 80


# -- the recount ------------------------------------------------------------------------------------------------------


class Recount:
    """What everything costs, added up node by node and task by task between any two events."""

    def __init__(self) -> None:
        self.state = State()
        self.by_row: dict[int, int] = defaultdict(int)
        self.by_pool: dict[int, int] = defaultdict(int)
        self.nodes = 0
        self.pieces: list[tuple[int, int, int, int]] = []
        """(workload row, from ms, until ms, micro-USD per hour)"""

    def play(self, events: list[ev.AnyEvent]) -> None:
        for event in events:
            for single in one_by_one(event, self.state):
                if isinstance(single, ev.Tick):
                    self._pass(single.at_ms)
                if isinstance(single, ev.BudgetStaged) and single.stage == Stage.SPENT:
                    self._check_moment(single.budget)
                self.state.apply(single)

    def _pass(self, until_ms: int) -> None:
        state = self.state
        capacity, a, now_ms = state.capacity, state.allocations, state.now_ms
        for node, pool in enumerate(capacity.pool):
            if capacity.state[node] == NodeState.REMOVED:
                assert not list(a.on_node(node))
                continue
            assert capacity.born[node] <= now_ms
            self.nodes += capacity.pools[pool].price_microusd_hour * (until_ms - now_ms)
            for i in a.on_node(node):
                rate = a.count[i] * task_rate_at(state, i)
                self.by_row[a.workload[i]] += rate * (until_ms - now_ms)
                self.by_pool[pool] += rate * (until_ms - now_ms)
                self.pieces.append((a.workload[i], now_ms, until_ms, rate))

    def spent(self, rows: set[int], from_ms: int, until_ms: int) -> int:
        parts = ((min(until, until_ms) - max(start, from_ms), rate) for r, start, until, rate in self.pieces if r in rows)
        return sum(rate * length for length, rate in parts if length > 0)

    def _check_moment(self, budget: int) -> None:
        """It is spent now, and was not a millisecond ago, unless its limit or its window is as new as that."""
        state = self.state
        spec, now_ms = state.budgets.specs[budget], state.now_ms
        if spec.window_ms % DAY_MS == 0:
            rows = {row for row in range(len(state.workloads.ids)) if covered(state, spec, row)}
            start_ms = now_ms // spec.window_ms * spec.window_ms
            limit = spec.limit_microusd * GRAINS
            assert self.spent(rows, start_ms, now_ms) >= limit
            assert self.spent(rows, start_ms, now_ms - 1) < limit or start_ms == now_ms


def one_by_one(event: ev.AnyEvent, state: State) -> list[ev.AnyEvent]:
    """What an event that stands for many stands for."""
    if isinstance(event, ev.PlacedMany):
        rows, nodes = array("i", event.rows), array("i", event.nodes)
        devices = array("q", event.devices) or array("q", bytes(8 * len(rows)))
        flags = array("b", event.flags) or array("b", bytes(len(rows)))
        one = array("i", [1]).tobytes()
        return [
            ev.Placed(row, (ev.GroupPlacement(array("i", [n]).tobytes(), one, array("q", [mask]).tobytes()),), flag)
            for row, n, mask, flag in zip(rows, nodes, devices, flags, strict=True)
        ]
    if isinstance(event, ev.StartedMany):
        return [ev.Started(row) for row in array("i", event.rows)]
    if isinstance(event, ev.SubmittedMany):
        return [ev.Submitted(spec) for spec in event.workloads]
    if isinstance(event, ev.FinishedMany):
        singles: list[ev.AnyEvent] = []
        now_ms = state.now_ms
        for row, at_ms in zip(array("i", event.rows), array("q", event.at_ms), strict=True):
            singles += [ev.Tick(at_ms)] * (at_ms > now_ms) + [ev.Finished(row)]
            now_ms = at_ms
        return singles
    return [event]


def covered(state: State, spec: BudgetSpec, row: int) -> bool:
    w = state.workloads
    if spec.scope == "queue":
        return spec.of in {state.queues.specs[vertex].name for vertex in state.queues.path[w.queue[row]]}
    return spec.of == (w.tenants.names[w.tenant[row]] if spec.scope == "tenant" else w.teams.names[w.team[row]])


def check_books(state: State, events: list[ev.AnyEvent], until_ms: int) -> None:
    """P12, and that days, queues and budgets add up to it."""
    recount = Recount()
    recount.play([*events, ev.Tick(until_ms)] if until_ms > state.now_ms else events)
    books, w = state.ledger, state.workloads
    assert books.total_grains(until_ms) == recount.nodes
    assert books.spent_grains(until_ms) == sum(recount.by_row.values())
    assert [books.grains_of(row, until_ms) for row in range(len(w.ids))] == [
        recount.by_row[row] for row in range(len(w.ids))
    ]
    for pool in range(len(state.capacity.pools)):
        assert books.used.amount(pool, until_ms) == recount.by_pool[pool]
    rows_of: dict[int, set[int]] = defaultdict(set)
    for row, account in enumerate(books.account):
        rows_of[account].add(row)
    last = until_ms // DAY_MS
    for account in range(len(books.accounts)):
        for day in {0, 1, 2, last // 2, last - 1, last} - {-1}:
            expected = recount.spent(rows_of[account], 0, day * DAY_MS)
            assert books.accounts.amount_before(account, day) == expected, f"account {account} before day {day}"
    for budget, spec in enumerate(state.budgets.specs):
        if spec.window_ms % DAY_MS == 0:
            rows = {row for row in range(len(w.ids)) if covered(state, spec, row)}
            start_ms = until_ms // spec.window_ms * spec.window_ms
            assert state.budgets.spent_grains(budget, until_ms) == recount.spent(rows, start_ms, until_ms)


@st.composite
def priced_lives(draw: st.DrawFn, durable: bool = False) -> Life:
    """Lives in which prices change, and budgets come and go."""
    life = draw(lives(durable=durable))
    pools, queues = st.sampled_from(life.cell.pools), st.sampled_from(life.cell.queues)
    prices = st.builds(
        lambda pool, price: cmd.SetPrice(pool=pool.name, price_microusd_hour=price),
        pools,
        st.sampled_from([0, 1, 999_999, 3 * DOLLAR, 10**12]),
    )
    budgets = st.builds(
        lambda queue, name, limit, window, action: cmd.SetBudgets(
            budgets=(
                BudgetSpec(
                    name=name, scope="queue", of=queue.name, limit_microusd=limit, window_ms=window, action=action
                ),
            )
        ),
        queues,
        st.sampled_from(["one", "two"]),
        st.sampled_from([0, 1000, 100_000, 2 * DOLLAR]),
        st.sampled_from([MINUTE, 7 * MINUTE, DAY_MS, 3 * DAY_MS]),
        st.sampled_from(["warn", "hold", "hold", "approve"]),
    )
    removals = st.builds(lambda name: cmd.RemoveBudgets(names=(name,)), st.sampled_from(["one", "two"]))
    operations = list(life.operations)
    for _ in range(draw(st.integers(1, 4))):
        said = draw(st.one_of(prices, budgets, budgets, removals))
        operations.insert(draw(st.integers(0, len(operations))), Adopt(said))
    return replace(life, operations=tuple(operations))


def play(player: Player) -> None:
    player.play()
    engine = player.engine
    check_books(engine.state, engine.witness.history, engine.now_ms)
    player.ask(cmd.RemoveBudgets(names=tuple(spec.name for spec in engine.state.budgets.specs)))
    player.leave_alone()
    player.check_replay()
    engine = player.engine
    check_books(engine.state, engine.witness.history, engine.now_ms)


@settings(SOME, max_examples=25)
@given(priced_lives())
def test_every_node_millisecond_is_charged_once(life: Life) -> None:
    play(Player(life))


@settings(SOME, max_examples=5)
@given(priced_lives(durable=True))
def test_the_books_outlive_a_restart(life: Life) -> None:
    with tempfile.TemporaryDirectory() as folder:
        player = Player(life, folder)
        try:
            play(player)
        finally:
            player.engine._journal.close()


@pytest.mark.slow
@settings(SOME, max_examples=2000)
@given(priced_lives())
def test_two_thousand_lives_are_charged_exactly(life: Life) -> None:
    play(Player(life))
