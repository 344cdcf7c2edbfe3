"""What providers deliver, and what becomes of it when they lie."""

from __future__ import annotations

import pytest
from elastic_cells import MINUTE, QUICK, SECOND, elastic, nodes_in, order, orders, pool, said, submit, work
from invariants import check_state

from engine.control import Engine
from engine.elasticity.providers import Machine, MachinesBooted, MachinesGranted, OutOfStock, ProviderFaults, check
from engine.model.commands import Cordon, Drain, RemoveNodes, RestoreNodes, SetScaling, Uncordon
from engine.model.errors import RefusedError, SpecError
from engine.model.specs import NodeState
from engine.state.machines import OrderState


def machine(engine: Engine, name: str = "m1", **other) -> Machine:
    spec = engine.state.capacity.pools[0]
    given = {"name": name, "pool": spec.name, "region": "", "zone": "", "capacity": spec.capacity} | other
    return Machine(**given)


def report(engine: Engine, said: MachinesGranted | MachinesBooted | OutOfStock) -> list[str]:
    """Have the engine take a report; the names it gives back."""
    with engine._turn():
        events, names = check(engine.state, said, engine.now_ms)
        for event in events:
            engine._emit(event)
    check_state(engine.state)
    return names


def test_an_order_is_answered_within_seconds_and_its_machines_boot() -> None:
    engine = elastic(pool("a", zones=("z1",), region="r", boot_ms=(60_000, 90_000)))
    order(engine, 3, zone="z1")
    engine.advance(4 * SECOND)
    assert orders(engine) == [("a", "z1", 3, "filled")]
    assert nodes_in(engine, NodeState.BOOTING) == ["a-0-1", "a-0-2", "a-0-3"]
    engine.advance(5 * MINUTE)
    assert nodes_in(engine, NodeState.READY) == ["a-0-1", "a-0-2", "a-0-3"]
    node = engine.node("a-0-2")
    assert (node.zone, node.region, node.pool) == ("z1", "r", "a")
    assert len(said(engine, "ready")) >= 1
    check_state(engine.state)


def test_boot_times_are_those_of_the_pool() -> None:
    engine = elastic(pool("a", most=1000, boot_ms=(60_000, 90_000)))
    order(engine, 1000)
    engine.advance(4 * SECOND)
    took = []
    c = engine.state.capacity
    while (due := engine.next_due()) is not None and nodes_in(engine, NodeState.BOOTING):
        engine.advance(due)
    took = sorted(c.since[row] - c.born[row] for row in c.row_of.values())
    assert 55_000 < took[500] < 65_000
    assert 82_000 < took[950] < 98_000


def test_stock_limits_what_is_ours_in_each_zone() -> None:
    engine = elastic(pool("a", zones=("z1", "z2"), stock=((0, 2),)))
    order(engine, 3, zone="z1")
    order(engine, 1, zone="z2")
    engine.advance(10 * SECOND)
    assert orders(engine) == [("a", "z1", 3, "refused"), ("a", "z2", 1, "filled")]
    assert len(engine.state.capacity.row_of) == 3


def test_a_gang_gets_all_of_its_machines_or_none() -> None:
    engine = elastic(pool("a", stock=((0, 3),)))
    submit(engine, work("gang", cpu=8, count=4))
    order(engine, 4, gang=0)
    engine.advance(10 * SECOND)
    assert orders(engine)[0] == ("a", "", 4, "refused")
    assert not engine.state.capacity.row_of


def test_a_pool_that_is_out_of_stock_is_left_alone_twice_as_long_each_time() -> None:
    engine = elastic(pool("a", stock=((0, 0),)))
    submit(engine, work("w"))
    engine.advance(40 * MINUTE)
    o = engine.state.orders
    pauses = [after - before for before, after in zip(o.ordered_ms, o.ordered_ms[1:], strict=False)]
    assert [round(pause / MINUTE) for pause in pauses[:2]] == [5, 10]
    assert o.failures[0] == len(o.pool)


def test_an_order_nobody_answers_is_cancelled_in_time() -> None:
    engine = elastic(pool("a"), provider_faults=ProviderFaults(late=1000))
    submit(engine, work("w"))
    engine.advance(15 * MINUTE + 20 * SECOND)
    assert orders(engine)[0] == ("a", "", 1, "cancelled")
    assert engine.state.orders.backed_off_ms
    # What comes then is given back, and is no node.
    assert said(engine, "refused") == ["1 machine given back, a-0-1 first: order 0 is cancelled"]
    assert not engine.state.capacity.row_of


def test_machines_that_never_boot_are_given_back() -> None:
    engine = elastic(pool("a"), provider_faults=ProviderFaults(silent=1000))
    submit(engine, work("w"))
    engine.advance(14 * MINUTE)
    assert nodes_in(engine, NodeState.BOOTING) == ["a-0-1"]
    engine.advance(15 * MINUTE + 11 * SECOND)
    assert not engine.state.capacity.row_of
    assert engine.state.orders.failures == {0: 1}
    check_state(engine.state)


def test_a_machine_that_boots_as_something_else_is_given_back() -> None:
    engine = elastic(pool("a"), provider_faults=ProviderFaults(other=1000))
    submit(engine, work("w"))
    engine.advance(20 * MINUTE)
    assert all("it is another machine than those of a" in detail for detail in said(engine, "refused"))
    assert said(engine, "refused")
    assert not nodes_in(engine, NodeState.READY)


def test_machines_nobody_ordered_are_given_back() -> None:
    engine = elastic(pool("a"), provider_faults=ProviderFaults(extra=1000, twice=1000, duplicated=1000))
    submit(engine, *(work(f"w{i}", cpu=8) for i in range(6)))
    engine.advance(10 * MINUTE)
    assert len(engine.state.capacity.row_of) == 6
    refused = said(engine, "refused")
    assert any("order 0 is for 6" in detail for detail in refused)
    assert any("nobody ordered it" in detail for detail in refused)
    check_state(engine.state)


def test_reports_that_come_twice_change_nothing_more() -> None:
    engine = elastic(pool("a"))
    order(engine, 2)
    both = MachinesGranted(0, (machine(engine, "m1"), machine(engine, "m2")))
    assert report(engine, both) == []
    before = engine.state.digest()
    assert report(engine, both) == []
    assert report(engine, OutOfStock(0)) == []
    booted = MachinesBooted((machine(engine, "m1"),))
    assert engine.state.digest() == before
    report(engine, booted)
    before = engine.state.digest()
    assert report(engine, booted) == []
    assert engine.state.digest() == before


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"pool": "b"}, "it is of pool b, not a"),
        ({"zone": "z9"}, "it is in zone z9, not -"),
        ({"region": "mars"}, "it is in region mars"),
        ({"name": "there"}, "a node of that name already exists"),
        ({"name": "\x1b[2J"}, "its name is not a valid id"),
    ],
)
def test_a_machine_that_is_not_as_ordered_is_refused_and_the_pool_left_alone(other: dict[str, str], why: str) -> None:
    engine = elastic(pool("a"), pool("b"))
    order(engine, 1)
    report(engine, MachinesGranted(0, (machine(engine, "there"),)))
    order(engine, 1)
    given = machine(engine, **other)
    assert report(engine, MachinesGranted(1, (given,))) == [given.name]
    assert len(engine.state.capacity.row_of) == 1
    assert engine.state.orders.state[1] == OrderState.REFUSED
    assert 0 in engine.state.orders.backed_off_ms
    assert why in said(engine, "refused")[-1]
    assert "\x1b" not in str(engine.changes(0, 1000))


def test_a_pool_made_smaller_meanwhile_takes_no_more_than_it_may_have() -> None:
    engine = elastic(pool("a", most=3))
    order(engine, 3)
    engine.command(SetScaling(pool="a", most=2))
    engine.advance(10 * SECOND)
    assert len(engine.state.capacity.row_of) == 2
    assert said(engine, "refused") == ["1 machine given back, a-0-3 first: its pool may have 2 nodes at most"]
    assert orders(engine) == [("a", "", 3, "refused")]


@pytest.mark.parametrize("command", [Cordon, Uncordon, Drain, RestoreNodes])
def test_nodes_that_boot_can_only_be_waited_for_or_removed(command: type) -> None:
    engine = elastic(pool("a"))
    order(engine, 1)
    engine.advance(10 * SECOND)
    with pytest.raises(RefusedError, match="'a-0-1' is booting"):
        engine.command(command(ids=("a-0-1",)))
    engine.command(RemoveNodes(ids=("a-0-1",)))
    engine.advance(20 * MINUTE)
    assert not engine.state.capacity.row_of
    check_state(engine.state)


def test_reports_for_no_order_are_refused() -> None:
    engine = elastic(pool("a"))
    assert report(engine, MachinesGranted(7, (machine(engine, "m"),))) == ["m"]
    assert report(engine, MachinesBooted((machine(engine, "stranger"),))) == ["stranger"]
    assert report(engine, OutOfStock(-3)) == []
    assert not engine.state.capacity.row_of


def test_a_restart_and_a_fork_go_on_alike(tmp_path) -> None:
    faults = ProviderFaults(silent=200, twice=300, extra=300, other=200, duplicated=500)
    a = pool("a", zones=("z1", "z2"), stock=((0, 9),))
    engine = elastic(a, path=tmp_path / "cell", seed=5, provider_faults=faults)
    submit(engine, *(work(f"w{i}", cpu=4) for i in range(30)))
    engine.advance(100 * SECOND)
    fork = engine.fork()
    engine.close()
    again = Engine.open(tmp_path / "cell", provider_faults=faults, use_snapshot=False)
    for other in (fork, again):
        other.advance(30 * MINUTE)
    again.close()
    snapshot = Engine.open(tmp_path / "cell", provider_faults=faults)
    for other in (fork, snapshot):
        other.advance(40 * MINUTE)
    assert fork.state.digest() == snapshot.state.digest()
    assert len(fork.state.orders.pool) > 3
    check_state(fork.state)
    snapshot.close()


def test_rates_of_lies_are_checked() -> None:
    with pytest.raises(SpecError, match=r"provider_faults\.silent"):
        ProviderFaults(silent=1001)


def test_nothing_is_due_of_orders_that_are_over() -> None:
    engine = elastic(pool("a"), settings=QUICK)
    submit(engine, work("w", run=MINUTE))
    engine.advance(40 * MINUTE)
    assert engine.fork().next_due() == engine.next_due() == engine.now_ms + 10 * SECOND
