"""P12: every node-millisecond is charged to a workload or to nobody, exactly; and what follows from that."""

from __future__ import annotations

import tempfile
from array import array
from collections import defaultdict
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from cells import small_cell, submit, workload
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import check_state, task_rate, task_rate_at
from random_cells import HOUR, MINUTE, SOME, Adopt, Life, Player, differences, lives

from engine.control import Engine
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.specs import (
    BudgetSpec,
    CellSpec,
    NodeSpec,
    NodeState,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    WorkloadSpec,
    WorkloadState,
)
from engine.state.budgets import BudgetStage
from engine.state.cell_state import State
from engine.state.ledger import DAY_MS, GRAINS

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
                if isinstance(single, ev.BudgetStaged) and single.stage == BudgetStage.SPENT:
                    self._check_moment(self.state.budgets.row_of[single.name])
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
        mine = (piece for piece in self.pieces if piece[0] in rows)
        parts = ((min(until, until_ms) - max(start, from_ms), rate) for _, start, until, rate in mine)
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
        for day in {0, last // 2, max(last - 1, 0), last}:
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


@settings(SOME, max_examples=examples(10))
@given(priced_lives())
def test_every_node_millisecond_is_charged_once(life: Life) -> None:
    play(Player(life))


@settings(SOME, max_examples=examples(4))
@given(priced_lives(durable=True))
def test_the_books_outlive_a_restart(life: Life) -> None:
    with tempfile.TemporaryDirectory() as folder:
        player = Player(life, folder)
        try:
            play(player)
        finally:
            player.engine._journal.close()


@pytest.mark.slow
@settings(SOME, max_examples=examples(2000))
@given(priced_lives())
def test_two_thousand_lives_are_charged_exactly(life: Life) -> None:
    play(Player(life))


# -- single cases -----------------------------------------------------------------------------------------------------


def cell_of(price: int = DOLLAR, nodes: int = 1, **pool: Any) -> CellSpec:
    """One pool of nodes with 4 vCPU and 36 GiB: of their price half goes by each."""
    capacity = Resources(cpu_milli=4000, memory_mib=36 * 1024)
    return CellSpec(
        pools=(PoolSpec(name="p", capacity=capacity, price_microusd_hour=price, **pool),),
        nodes=tuple(NodeSpec(id=f"n{i}", pool="p") for i in range(nodes)),
        queues=(QueueSpec(name="root"), QueueSpec(name="a", parent="root"), QueueSpec(name="b", parent="root")),
    )


def test_a_task_is_charged_its_share_of_the_node() -> None:
    engine = Engine.open(None, cell=small_cell())
    engine.command(submit(workload("two", gpu=2000, cpu=0, run=HOUR)))
    engine.advance(HOUR)
    books = engine.state.ledger
    assert books.cost_of(0, HOUR) == 2 * DEVICE
    assert books.total(HOUR) == 4 * GPU_NODE + 2 * DOLLAR
    assert books.idle(HOUR) == books.total(HOUR) - 2 * DEVICE
    engine.advance(2 * HOUR)
    assert books.cost_of(0, 2 * HOUR) == 2 * DEVICE, "it has ended"


@pytest.mark.parametrize(
    ("cpu", "memory_gib", "part"), [(4000, 0, 0.5), (0, 36, 0.5), (2000, 18, 0.5), (4000, 36, 1), (1000, 0, 0.125)]
)
def test_cpu_weighs_nine_times_as_much_as_a_gib(cpu: int, memory_gib: int, part: float) -> None:
    engine = Engine.open(None, cell=cell_of())
    engine.command(submit(workload("w", cpu=cpu, memory=memory_gib * 1024, run=HOUR)))
    assert engine.state.ledger.rate[0] == part * DOLLAR


def test_an_overcommitted_node_is_not_sold_twice() -> None:
    engine = Engine.open(None, cell=cell_of(overcommit={"cpu_milli": 2000, "memory_mib": 2000}))
    specs = [workload(f"w{i}", cpu=4000, memory=36 * 1024, run=HOUR) for i in range(2)]
    engine.command(submit(*(msgspec.structs.replace(spec, qos="burstable") for spec in specs)))
    assert list(engine.state.ledger.rate) == [DOLLAR // 2] * 2
    check_state(engine.state)


def test_work_that_has_to_be_done_again_is_wasted() -> None:
    engine = Engine.open(None, cell=cell_of())
    engine.command(submit(workload("w", cpu=4000, memory=36 * 1024, run=HOUR, estimate=HOUR, checkpoint=10 * MINUTE)))
    engine.advance(25 * MINUTE)
    engine.command(cmd.Requeue(ids=("w",)))
    books = engine.state.ledger
    assert books.wasted_of(0) == DOLLAR * 5 // 60, "five minutes since its last checkpoint"
    engine.advance(2 * HOUR)
    assert engine.state.workloads.state[0] == WorkloadState.FINISHED
    assert books.cost_of(0, engine.now_ms) == DOLLAR * 65 // 60
    assert books.wasted() == books.wasted_of(0)


def test_a_price_counts_from_when_it_is_said() -> None:
    engine = Engine.open(None, cell=cell_of())
    engine.command(submit(workload("w", cpu=4000, memory=36 * 1024, run=4 * HOUR)))
    engine.advance(HOUR)
    engine.command(cmd.SetPrice(pool="p", price_microusd_hour=3 * DOLLAR))
    engine.advance(2 * HOUR)
    books = engine.state.ledger
    assert books.cost_of(0, engine.now_ms) == books.total(engine.now_ms) == 4 * DOLLAR
    assert engine.state.capacity.pools[0].price_microusd_hour == 3 * DOLLAR


def test_what_runs_when_the_first_price_is_set_is_charged_from_then_on() -> None:
    engine = Engine.open(None, cell=cell_of(price=0))
    engine.command(submit(*(workload(f"w{i}", cpu=100, run=2 * HOUR + i) for i in range(40))))
    engine.advance(HOUR)
    engine.command(cmd.SetPrice(pool="p", price_microusd_hour=DOLLAR))
    engine.advance(4 * HOUR)
    check_state(engine.state)
    assert engine.state.ledger.total(4 * HOUR) == 3 * DOLLAR
    assert engine.state.ledger.cost_of(0, 4 * HOUR) == DOLLAR // 80


def test_booting_nodes_are_paid_for_and_removed_ones_are_not() -> None:
    engine = Engine.open(None, cell=cell_of(nodes=2))
    engine.advance(HOUR)
    engine.command(cmd.FailNodes(ids=("n0",)))
    engine.advance(2 * HOUR)
    engine.command(cmd.RemoveNodes(ids=("n0",)))
    engine.advance(3 * HOUR)
    assert engine.state.ledger.total(3 * HOUR) == 5 * DOLLAR, "until it is removed also what is down is paid for"


def test_a_large_gang_for_a_year_is_exact() -> None:
    """As much as 130,000 nodes at $100 an hour: 1.1e17 micro-USD, 4e23 grains."""
    price, size, year = 13_000 * DOLLAR, 1000, 365 * DAY_MS
    cell = cell_of(price=price, nodes=0)
    nodes = tuple(NodeSpec(id=f"n{i}", pool="p") for i in range(size))
    engine = Engine.open(None, cell=CellSpec(pools=cell.pools, nodes=nodes, queues=cell.queues))
    engine.command(submit(workload("all", count=size, cpu=4000, memory=36 * 1024, run=year, estimate=year)))
    engine.advance(year + 1)
    books = engine.state.ledger
    assert books.cost_of(0, engine.now_ms) == price * size * 24 * 365
    assert books.total_grains(engine.now_ms) - books.spent_grains(engine.now_ms) == price * size
    twin = State()
    twin.load(engine.state.dump())
    assert twin.digest() == engine.state.digest()
    assert twin.ledger.spent_grains(engine.now_ms) == books.spent_grains(engine.now_ms)


def test_days_are_told_apart_also_when_nothing_happens_for_days() -> None:
    engine = Engine.open(None, cell=cell_of())
    engine.command(submit(workload("w", cpu=4000, memory=36 * 1024, run=3 * DAY_MS + HOUR)))
    engine.advance(10 * DAY_MS)
    accounts = engine.state.ledger.accounts
    days = [accounts.amount_before(0, day + 1) - accounts.amount_before(0, day) for day in range(5)]
    assert days == [24 * DOLLAR * GRAINS] * 3 + [DOLLAR * GRAINS, 0]


def test_ends_on_both_sides_of_midnight_are_charged_to_their_days() -> None:
    """Hundreds of ends that are recorded together."""
    engine = Engine.open(None, cell=cell_of(nodes=100))
    engine.advance(DAY_MS - 1000)
    engine.command(submit(*(workload(f"w{i}", cpu=1000, run=10 * i + 1, tenant=f"t{i % 3}") for i in range(200))))
    engine.advance(DAY_MS + HOUR)
    check_state(engine.state)
    accounts = engine.state.ledger.accounts
    first = sum(accounts.amount_before(row, 1) for row in range(len(accounts)))
    assert first == sum(DOLLAR // 8 * min(10 * i + 1, 1000) for i in range(200))


# -- budgets ----------------------------------------------------------------------------------------------------------


def budget(action: str = "hold", limit: int = DOLLAR, **given: Any) -> cmd.SetBudgets:
    fields = {"name": "team", "scope": "tenant", "of": "ai", "window_ms": DAY_MS} | given
    return cmd.SetBudgets(budgets=(BudgetSpec(limit_microusd=limit, action=action, **fields),))


def spender(name: str, tenant: str = "ai", run: int = 2 * HOUR) -> WorkloadSpec:
    """Costs half a dollar an hour."""
    return workload(name, cpu=4000, run=run, estimate=run, tenant=tenant)


def started(engine: Engine) -> set[str]:
    w = engine.state.workloads
    return {w.ids[row] for row in range(len(w.ids)) if w.started[row] >= 0}


def test_a_budget_holds_new_work_when_it_is_spent_and_not_before() -> None:
    engine = Engine.open(None, cell=cell_of(nodes=2))
    engine.command(budget())
    engine.command(submit(spender("long", run=5 * HOUR), spender("other", "web", run=HOUR)))
    engine.advance(2 * HOUR - 1)
    engine.command(submit(spender("early", run=1)))
    engine.advance(2 * HOUR - 1)
    assert "early" in started(engine)
    engine.advance(2 * HOUR)
    engine.command(submit(spender("late"), spender("later"), spender("web", "web", run=1)))
    engine.advance(4 * HOUR)
    assert started(engine) == {"long", "other", "early", "web"}, "others of the kind pass by what is held"
    assert engine.state.workloads.state[0] == WorkloadState.RUNNING, "what runs is not stopped"
    reason = engine.workload("late").reasons[0]
    assert reason.token == "BudgetHold"
    assert "$1.00" in reason.text
    assert "1970-01-02 00:00:00 UTC" in reason.text
    check_state(engine.state)
    engine.advance(DAY_MS - 1)
    assert "late" not in started(engine)
    engine.advance(DAY_MS)
    assert {"late", "later"} <= started(engine), "another window has begun"


def test_a_raised_or_removed_budget_lets_work_start() -> None:
    for command in (budget(limit=100 * DOLLAR), budget(action="warn", limit=0), cmd.RemoveBudgets(names=("team",))):
        engine = Engine.open(None, cell=cell_of())
        engine.command(budget(limit=0))
        engine.command(submit(spender("w")))
        assert not started(engine)
        engine.command(command)
        assert started(engine) == {"w"}
        check_state(engine.state)


def test_each_workload_waits_for_approval_when_a_budget_asks_for_it() -> None:
    engine = Engine.open(None, cell=cell_of())
    engine.command(budget("approve", limit=0))
    engine.command(submit(spender("one"), spender("two")))
    engine.command(cmd.ApproveSpending(ids=("two",)))
    assert started(engine) == {"two"}
    engine.command(cmd.Requeue(ids=("two",)))
    assert engine.state.workloads.attempts[1] == 2, "it stays approved"
    assert "is approved" in engine.workload("one").reasons[0].unblock
    check_state(engine.state)


def test_a_budget_of_a_queue_covers_those_below_it_and_what_was_spent_today() -> None:
    engine = Engine.open(None, cell=cell_of(nodes=2))
    spec = workload("w", queue="b", cpu=4000, run=3 * HOUR, estimate=3 * HOUR)
    engine.command(submit(spec))
    engine.advance(HOUR)
    engine.command(budget(scope="queue", of="root", limit=4 * DOLLAR, warn_permille=250))
    budgets = engine.state.budgets
    outlook = budgets.outlook(0, engine.now_ms)
    assert (outlook.spent, outlook.rate, outlook.spent_at_ms) == (DOLLAR // 2, DOLLAR // 2, 8 * HOUR)
    assert outlook.forecast == 12 * DOLLAR
    assert budgets.stage[0] == BudgetStage.OPEN
    engine.advance(2 * HOUR)
    assert budgets.stage[0] == BudgetStage.WARNED
    engine.advance(DAY_MS)
    assert budgets.stage[0] == BudgetStage.OPEN
    assert budgets.outlook(0, engine.now_ms).spent == 0


def test_batches_do_not_slip_past_a_budget() -> None:
    """Hundreds at once, of which only those of the other tenant may start."""
    engine = Engine.open(None, cell=cell_of(nodes=100))
    engine.command(budget(limit=0))
    engine.command(submit(*(workload(f"w{i}", cpu=1000, run=HOUR, tenant=("ai", "web")[i % 2]) for i in range(300))))
    engine.command(submit(*(workload(f"v{i}", cpu=1000, run=HOUR, tenant="ai") for i in range(20))))
    assert started(engine) == {f"w{i}" for i in range(1, 300, 2)}
    check_state(engine.state)
    engine.command(cmd.RemoveBudgets(names=("team",)))
    assert len(started(engine)) == 320


def test_a_fork_and_a_restart_hold_at_the_same_moment() -> None:
    engine = Engine.open(None, cell=cell_of(nodes=2))
    engine.command(budget(window_ms=7 * HOUR))
    engine.command(submit(spender("long", run=9 * HOUR)))
    engine.advance(HOUR)
    fork = engine.fork()
    restarted = Engine(State())
    restarted.state.load(engine.state.dump())
    restarted = Engine(restarted.state)
    restarted.go_on_from(engine)
    for each in (engine, fork, restarted):
        each.advance(10 * HOUR)
    assert engine.state.digest() == fork.state.digest() == restarted.state.digest()


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        (cmd.SetPrice(pool="none", price_microusd_hour=1), NotFoundError, "no pool 'none'"),
        (cmd.SetPrice(pool="p", price_microusd_hour=-1), SpecError, r"-\$0.000001( an hour)? is below 0"),
        (cmd.SetPrice(pool="p", price_microusd_hour=10**12 + 1), SpecError, "is above"),
        (budget(limit=-1), SpecError, r"-\$0.000001( an hour)? is below 0"),
        (budget(window_ms=0), SpecError, "window_ms"),
        (budget(name="a b"), SpecError, "not a valid id"),
        (budget(scope="queue", of="none"), SpecError, "no queue 'none'"),
        (cmd.RemoveBudgets(names=("none",)), NotFoundError, "no budget 'none'"),
        (cmd.ApproveSpending(ids=("none",)), NotFoundError, "none"),
        (cmd.ApproveSpending(ids=("over",)), RefusedError, "it has ended"),
    ],
)
def test_bad_words_about_money_are_refused(command: Any, error: type[Exception], words: str) -> None:
    engine = Engine.open(None, cell=cell_of())
    engine.command(submit(spender("over", run=1)))
    engine.advance(HOUR)
    before = engine.state.digest()
    with pytest.raises(error, match=words):
        engine.command(command)
    assert engine.state.digest() == before


def test_rates_are_whole_and_never_round_up() -> None:
    pool = PoolSpec(name="p", capacity=Resources(cpu_milli=3000, gpu_milli=7000), price_microusd_hour=1_000_001)
    rate = task_rate(pool, 1000, 0, 1000)
    assert rate == int(1_000_001 * (9 / 70 + 1 / 30))
    assert 3 * rate <= 1_000_001


def test_costs_of_all_are_those_of_each_also_of_large_gangs() -> None:
    cell = cell_of(price=10**11, nodes=0)
    nodes = tuple(NodeSpec(id=f"n{i}", pool="p") for i in range(500))
    engine = Engine.open(None, cell=CellSpec(pools=cell.pools, nodes=nodes, queues=cell.queues))
    run = 3000 * DAY_MS
    engine.command(submit(workload("all", count=400, cpu=4000, memory=36 * 1024, run=run, estimate=run)))
    engine.command(submit(*(workload(f"w{i}", cpu=700 * i, run=HOUR * i, estimate=run) for i in range(1, 6))))
    engine.advance(1000 * DAY_MS + 12_345)
    books = engine.state.ledger
    assert books.costs(engine.now_ms).tolist() == [books.cost_of(row, engine.now_ms) for row in range(6)]


@pytest.mark.parametrize("policy", ["fcfs", "easy", "easy-sjbf", "conservative"])
@pytest.mark.parametrize("order", ["best_effort", "strict_fifo", "fair"])
def test_work_without_budget_holds_up_nobody(policy: Any, order: Any) -> None:
    """It is first in its queue, also where that keeps strict order."""
    cell = cell_of(nodes=1)
    queues = tuple(msgspec.structs.replace(spec, order=order) for spec in cell.queues)
    engine = Engine.open(None, cell=msgspec.structs.replace(cell, queues=queues))
    engine.command(cmd.SetPolicy(policy=policy))
    engine.command(budget(limit=0))
    engine.command(submit(spender("held", run=HOUR)))
    engine.command(submit(spender("first", "web", run=HOUR), spender("second", "web", run=HOUR)))
    check_state(engine.state)
    assert started(engine) == {"first"}
    assert engine.workload("held").reasons[0].token == "BudgetHold"
    assert engine.workload("second").reasons[0].token != "BudgetHold"
    engine.advance(2 * HOUR)
    assert started(engine) == {"first", "second"}
    engine.command(cmd.RemoveBudgets(names=("team",)))
    assert started(engine) == {"first", "second", "held"}


def test_a_preemptor_whose_budget_is_spent_meanwhile_does_not_start() -> None:
    """Its victim writes a checkpoint for ten minutes; after one of them the budget is lowered."""
    classes = tuple(
        PriorityClassSpec(name=name, value=value, preemption="lower") for name, value in (("low", 1), ("high", 9))
    )
    engine = Engine.open(None, cell=msgspec.structs.replace(cell_of(), priority_classes=classes))
    engine.command(budget(limit=100 * DOLLAR))
    victim = msgspec.structs.replace(spender("victim", "web", run=9 * HOUR), checkpoint_cost_ms=10 * MINUTE)
    engine.command(submit(msgspec.structs.replace(victim, priority_class="low")))
    engine.advance(HOUR)
    engine.command(submit(msgspec.structs.replace(spender("urgent"), priority_class="high")))
    assert engine.workload("urgent").reasons[0].token == "WaitingForPreempted"
    engine.advance(HOUR + MINUTE)
    engine.command(budget(limit=0))
    engine.advance(2 * HOUR)
    assert started(engine) == {"victim"}
    assert engine.state.workloads.attempts[0] == 1
    check_state(engine.state)


def test_what_runs_when_the_first_priced_pool_comes_is_in_the_books() -> None:
    engine = Engine.open(None, cell=cell_of(price=0))
    engine.command(submit(*(workload(f"w{i}", cpu=100, run=HOUR + i) for i in range(20))))
    dear = PoolSpec(name="dear", capacity=Resources(cpu_milli=1000), price_microusd_hour=DOLLAR)
    engine.command(cmd.AddPools(pools=(dear,)))
    engine.command(cmd.AddNodes(nodes=(NodeSpec(id="d", pool="dear"),)))
    engine.advance(2 * HOUR)
    check_state(engine.state)
    assert (engine.state.ledger.total(2 * HOUR), engine.state.ledger.spent(2 * HOUR)) == (2 * DOLLAR, 0)


def test_a_gang_that_lost_a_member_and_goes_on_is_charged_for_what_it_has() -> None:
    engine = Engine.open(None, cell=cell_of(nodes=3))
    gang = workload("gang", count=2, cpu=4000, run=4 * HOUR, estimate=4 * HOUR)
    engine.command(submit(msgspec.structs.replace(gang, hot_swap=True)))
    engine.advance(HOUR)
    engine.command(cmd.FailNodes(ids=("n0",)))
    check_state(engine.state)
    books = engine.state.ledger
    assert books.wasted_of(0) == DOLLAR, "an hour of both, without a checkpoint"
    engine.advance(2 * HOUR)
    assert books.cost_of(0, 2 * HOUR) == 2 * DOLLAR
    check_state(engine.state)


def test_many_at_once_leave_the_books_that_single_steps_leave() -> None:
    """Hundreds of ends recorded together, across the windows of budgets and midnight."""
    states = []
    for most_at_once in (1, 512):
        engine = Engine.open(None, cell=cell_of(nodes=100))
        engine.scheduler.binder.max_at_once = most_at_once
        engine.advance(DAY_MS - 10 * MINUTE)
        for window_ms in (7 * MINUTE, HOUR, DAY_MS):
            engine.command(budget("warn", name=f"of-{window_ms}", window_ms=window_ms))
        for n in range(3):
            specs = [
                workload(
                    f"w{n}-{i}",
                    cpu=100 * (i % 9 + 1),
                    run=9_000 * i + 1,
                    tenant=("ai", "web")[i % 2],
                    queue="ab"[n % 2],
                )
                for i in range(1, 300)
            ]
            engine.command(submit(*specs))
            engine.advance(engine.now_ms + 20 * MINUTE)
            check_state(engine.state)
        states.append(engine.state)
    assert not differences(*states)
    assert states[0].ledger.spent(states[0].now_ms) > 0
