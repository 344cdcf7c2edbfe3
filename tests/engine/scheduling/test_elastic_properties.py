"""P14, the safety of the autoscaler, in random lives of cells that grow and shrink: providers that lie, stock that runs
out, machines taken back, work cancelled, restarts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from effort import examples
from elastic_cells import MINUTE, SECOND, elastic, order, pool, work
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import check_state
from random_cells import SOME

from engine.control import Engine
from engine.elasticity.providers import WINDOW_MS, ProviderFaults
from engine.elasticity.scale_up import Planner
from engine.elasticity.scaling_report import outlook
from engine.model import commands as cmd
from engine.model.errors import MusterError
from engine.model.specs import (
    Autoscaling,
    NodeState,
    PoolSpec,
    QueueSpec,
    TopologyRequest,
    WorkloadSpec,
    WorkloadState,
)
from engine.reads.pending_reasons import _OF_ROOM
from engine.state.machines import OrderState

HONEST = ProviderFaults()
rates = st.sampled_from([0, 0, 0, 200, 1000])
lies = st.builds(ProviderFaults, silent=rates, twice=rates, extra=rates, other=rates, late=rates, duplicated=rates)


@st.composite
def pools(draw: st.DrawFn, name: str, *, honest: bool = False) -> PoolSpec:
    """A pool of one of a few sizes. Of an honest provider it has stock without end, and no limit is in the way."""
    most = 40 if honest else draw(st.integers(0, 6))
    limits = {} if honest else {
        "least": draw(st.integers(0, min(most, 2))),
        "headroom": draw(st.integers(0, min(most, 1))),
        "requests_per_100_s": draw(st.sampled_from([0, 0, 3])),
        "project": draw(st.sampled_from(["", "p"])),
        "stock": draw(st.sampled_from([(), (), ((0, 0),), ((0, 2),), ((0, 0), (20 * MINUTE, 5))])),
        "taken_permille_hour": draw(st.sampled_from([0, 0, 900])),
    }  # fmt: skip
    return pool(
        name,
        cpu=draw(st.sampled_from([4, 8, 16])),
        gpu=draw(st.sampled_from([0, 0, 2])),
        price=draw(st.integers(1, 3)),
        most=most,
        priority=draw(st.integers(0, 1)),
        zones=draw(st.sampled_from([(), ("z1",), ("z1", "z2")])),
        boot_ms=draw(st.sampled_from([(30_000, 60_000), (60_000, 600_000)])),
        **limits,
    )


@st.composite
def some_work(draw: st.DrawFn, number: int) -> WorkloadSpec:
    level = draw(st.sampled_from([None, None, None, "zone", "rack"]))
    return work(
        f"w{number}",
        cpu=draw(st.sampled_from([1, 2, 4, 8])),
        gpu=draw(st.sampled_from([0, 0, 0, 1])),
        count=draw(st.sampled_from([1, 1, 1, 2, 4])),
        run=draw(st.sampled_from([30 * SECOND, 5 * MINUTE, 60 * MINUTE])),
        priority_class=draw(st.sampled_from(["normal", "normal", "high"])),
        **({} if level is None else {"topology": TopologyRequest(required=level)}),
        **draw(st.sampled_from([{}, {}, {}, {"node_labels": {"zone": ("z1",)}}])),
    )


@dataclass
class Life:
    engine: Callable[..., Engine]
    steps: list[tuple[str, object]]


@st.composite
def lives(draw: st.DrawFn, *, honest: bool = False) -> Life:
    chosen = tuple(draw(pools(f"p{i}", honest=honest)) for i in range(draw(st.integers(1, 3))))
    autoscaling = Autoscaling(
        scale_up_after_ms=draw(st.sampled_from([0, 30_000])),
        most_nodes=0 if honest else draw(st.sampled_from([0, 0, 8])),
        most_in_batch=50 if honest else draw(st.sampled_from([2, 5000])),
        order_timeout_ms=draw(st.sampled_from([5, 15])) * MINUTE,
        expanders=draw(st.permutations(["priority", "least-waste", "price"]).map(tuple)),
        scale_down_below_permille=draw(st.sampled_from([0, 500])),
        scale_down_after_ms=2 * MINUTE,
        settle_after_add_ms=2 * MINUTE,
    )
    quota = {} if honest else draw(st.sampled_from([{}, {"cpu_milli": 12_000}]))
    faults = HONEST if honest else draw(lies)
    seed = draw(st.integers(0, 99))

    def start(**more: object) -> Engine:
        return elastic(
            *chosen, settings=autoscaling, queues=(QueueSpec(name="q", nominal=quota),), seed=seed,
            provider_faults=faults, **more,
        )  # fmt: skip

    kinds = ["submit"] * 4 + ["pass"] * 4 + ([] if honest else ["cancel", "interrupt", "order", "fork"])
    steps: list[tuple[str, object]] = []
    for number in range(draw(st.integers(3, 14))):
        kind = draw(st.sampled_from(kinds))
        what: object = draw(st.integers(0, 30))
        if kind == "submit":
            what = draw(some_work(number))
        elif kind == "pass":
            what = draw(st.sampled_from([1, 9, 60, 400, 2000])) * SECOND
        steps.append((kind, what))
    return Life(start, steps)


def live(life: Life, engine: Engine, *, closely: bool = True) -> Engine:
    """Play the life; the engine it ended with. `closely`: looking at every moment at which something is due."""
    for kind, what in life.steps:
        w, c = engine.state.workloads, engine.state.capacity
        with contextlib.suppress(MusterError):
            if isinstance(what, WorkloadSpec):
                engine.command(cmd.Submit(workloads=(what,)))
            elif kind == "pass":
                (_pass if closely else Engine.advance)(engine, engine.now_ms + what)
            elif kind == "cancel" and w.ids:
                engine.command(cmd.Cancel(ids=(w.ids[what % len(w.ids)],)))
            elif kind == "interrupt" and c.row_of:
                names = sorted(c.row_of)
                engine.command(cmd.Interrupt(ids=(names[what % len(names)],), notice_ms=60_000))
            elif kind == "order":
                row = what % len(c.pools)
                scaling = c.pools[row].scaling
                if c.pool_nodes[row] + engine.state.orders.due(row) < scaling.most and not scaling.requests_per_100_s:
                    order(engine, 1, pool=row, zone=scaling.zones[0] if scaling.zones else "")
            elif kind == "fork":
                engine = engine.fork()
        check(engine)
    return engine


def _pass(engine: Engine, until_ms: int) -> None:
    """Let time pass, looking at every moment at which something happens."""
    while (due := engine.next_due()) is not None and due <= until_ms:
        # A fork is told again what a provider said since the state last changed: that is due already.
        engine.advance(max(due, engine.now_ms))
        _check_orders(engine)
    engine.advance(until_ms)


def check(engine: Engine) -> None:
    check_state(engine.state)
    _check_orders(engine)


def _check_orders(engine: Engine) -> None:
    state, now_ms = engine.state, engine.now_ms
    o, c = state.orders, state.capacity
    granted = [0] * len(o.pool)
    for row, number in enumerate(c.order):
        if number >= 0:
            granted[number] += 1
            booting = c.state[row] == NodeState.BOOTING
            assert not booting or o.expires_ms[number] > now_ms, "an orphan boots beyond its order's time"
            assert c.pool[row] == o.pool[number]
            assert c.places.names[c.zone[row]] == o.zone[number]
    assert granted == list(o.granted)
    for row in range(len(o.pool)):
        assert o.granted[row] <= o.wanted[row]
        assert o.state[row] != OrderState.OPEN or o.expires_ms[row] > now_ms, "an order is open beyond its time"
        if o.workload[row] >= 0:
            assert o.granted[row] in (0, o.wanted[row]), "a gang got some of its machines"
    for row, spec in enumerate(c.pools):
        assert c.pool_nodes[row] + o.due(row) <= spec.scaling.most, "a pool is larger than it may be"
    most = state.settings.autoscaling.most_nodes
    by_hand = sum(o.wanted[row] for row in range(len(o.pool)) if o.ordered_ms[row] % 10_000)
    assert not most or len(c.row_of) + sum(map(o.due, range(len(c.pools)))) <= most + by_hand
    for row, spec in enumerate(c.pools):
        limit = spec.scaling.requests_per_100_s
        if limit and not spec.scaling.project:
            mine = [(at, n) for at, n, of in zip(o.ordered_ms, o.wanted, o.pool, strict=True) if of == row]
            for at_ms, _ in mine:
                assert sum(n for when, n in mine if at_ms - WINDOW_MS < when <= at_ms) <= limit


def check_nothing_forgotten(engine: Engine) -> None:
    """Whatever waits for room alone has nodes on their way, or it is said why not."""
    state, explainer = engine.state, engine.reader.explainer
    for row, status in enumerate(state.workloads.state):
        if status != WorkloadState.QUEUED:
            continue
        tokens = {reason.token for reason in explainer.reasons(row)}
        if tokens & _OF_ROOM and "WaitingForQuota" not in tokens:
            planner = Planner(state, engine.now_ms, explained=row)
            planner.orders()
            assert planner.outcome == "free" or outlook(state, row) is not None, state.workloads.ids[row]


@settings(SOME, max_examples=examples(20))
@given(lives())
def test_orders_are_safe_whatever_providers_do(life: Life) -> None:
    engine = live(life, life.engine())
    check_nothing_forgotten(engine)
    _pass(engine, engine.now_ms + 20 * MINUTE)
    check(engine)
    check_nothing_forgotten(engine)


@pytest.mark.slow
@settings(SOME, max_examples=examples(500))
@given(lives())
def test_hundreds_of_such_lives(life: Life) -> None:
    engine = live(life, life.engine())
    check_nothing_forgotten(engine)
    _pass(engine, engine.now_ms + 40 * MINUTE)
    check(engine)
    check_nothing_forgotten(engine)


@settings(SOME, max_examples=examples(8))
@given(lives(honest=True))
def test_all_work_ends_where_providers_keep_their_word(life: Life) -> None:
    engine = live(life, life.engine())
    for _ in range(40):
        engine.advance(engine.now_ms + 10 * MINUTE)
    w = engine.state.workloads
    left = [w.ids[row] for row, status in enumerate(w.state) if not WorkloadState(status).terminal]
    unmet = [name for name in left if not any("only region and zone" in r.text for r in engine.workload(name).reasons)]
    assert unmet == []
    # No more is ordered than if every task, each time it started, had a node of its own.
    starts = sum(w.class_at(row).tasks * max(w.attempts[row], 1) for row in range(len(w.ids)))
    assert sum(engine.state.orders.wanted) <= starts


@settings(SOME, max_examples=examples(5))
@given(lives(), st.integers(0, 12))
def test_a_fork_and_a_restart_go_on_alike(tmp_path_factory: pytest.TempPathFactory, life: Life, at: int) -> None:
    path = tmp_path_factory.mktemp("life") / "cell"
    engine = life.engine(path=path)
    first = Life(life.engine, [step for step in life.steps[:at] if step[0] != "fork"])
    rest = Life(life.engine, [step for step in life.steps[at:] if step[0] != "fork"])
    live(first, engine, closely=False)
    fork, faults, seed, now_ms = engine.fork(), engine.provider_faults, engine.seed, engine.now_ms
    engine.close()
    again = Engine.open(path, seed=seed, provider_faults=faults)
    again.advance(now_ms)
    live(rest, fork, closely=False)
    live(rest, again, closely=False)
    for other in (fork, again):
        other.advance(other.now_ms + 20 * MINUTE)
    assert fork.state.digest() == again.state.digest()
    again.close()
