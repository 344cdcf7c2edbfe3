"""Which nodes are ordered for what waits, and what is said where none are."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from elastic_cells import (
    MINUTE,
    QUICK,
    SECOND,
    elastic,
    nodes_in,
    order,
    orders,
    pool,
    state_of,
    submit,
    why,
    work,
)
from invariants import check_state

from engine.capacity.index import Capacity
from engine.capacity.task_shapes import Shape
from engine.control import Engine
from engine.elasticity import scale_up
from engine.elasticity.trial_nodes import GrowthOption, choose, waste_ppm
from engine.model import commands as cmd
from engine.model.columns import view
from engine.model.commands import SetSettings
from engine.model.errors import MusterError, SpecError
from engine.model.specs import (
    Affinity,
    Autoscaling,
    BudgetSpec,
    CellSpec,
    FlavorQuota,
    NodeSpec,
    NodeState,
    PoolSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    ScalingSpec,
    Settings,
    Taint,
    TaskGroup,
    Toleration,
    TopologyRequest,
    WorkloadSpec,
)
from engine.placement.gang_placement import place

BY_WASTE = Autoscaling(scale_up_after_ms=0, scale_down_below_permille=0, expanders=("least-waste", "price"))


def ordered(engine) -> dict[str, int]:
    """Pool -> nodes ordered so far."""
    found: dict[str, int] = {}
    for name, _, count, _ in orders(engine):
        found[name] = found.get(name, 0) + count
    return found


# -- how many ---------------------------------------------------------------------------------------------------------


def test_work_that_waits_gets_nodes_and_starts_on_them() -> None:
    engine = elastic(pool("a", cpu=8))
    submit(engine, *(work(f"w{i}", cpu=2) for i in range(9)))
    engine.advance(10 * SECOND)
    assert orders(engine) == [("a", "", 3, "open")]
    engine.advance(10 * MINUTE)
    assert {state_of(engine, f"w{i}") for i in range(9)} == {"running"}
    assert ordered(engine) == {"a": 3}
    check_state(engine.state)


def test_nothing_is_ordered_before_work_has_waited_long_enough() -> None:
    engine = elastic(pool("a"), settings=Autoscaling(scale_up_after_ms=30_000))
    submit(engine, work("w"))
    engine.advance(20 * SECOND)
    assert orders(engine) == []
    assert why(engine, "w") == "nodes are ordered for work that has waited 30 s"
    engine.advance(30 * SECOND)
    assert ordered(engine) == {"a": 1}


def test_what_is_ordered_or_boots_is_counted_on() -> None:
    engine = elastic(pool("a", cpu=8))
    submit(engine, work("w0", cpu=4))
    engine.advance(10 * SECOND)
    submit(engine, work("w1", cpu=4))
    engine.advance(11 * SECOND)
    assert ordered(engine) == {"a": 1}
    engine.advance(30 * SECOND)
    assert ordered(engine) == {"a": 1}
    submit(engine, work("w2", cpu=4))
    engine.advance(40 * SECOND)
    assert ordered(engine) == {"a": 2}


def test_nothing_is_ordered_while_the_autoscaler_is_off() -> None:
    engine = elastic(pool("a"), settings=Autoscaling(enabled=False, scale_up_after_ms=0))
    submit(engine, work("w"))
    engine.advance(5 * MINUTE)
    assert orders(engine) == []
    assert "the autoscaler is off" in why(engine, "w")


def test_a_scan_that_orders_nothing_changes_nothing_but_the_clock() -> None:
    engine = elastic(pool("a", cpu=8), pool("b", cpu=4))
    submit(engine, *(work(f"w{i}", cpu=1 + i % 5, count=1 + i % 3) for i in range(20)))
    before = engine.state.digest()
    planned = scale_up.plan(engine.state, 10_000, {})
    assert planned
    assert engine.state.digest() == before
    check_state(engine.state)
    assert scale_up.plan(engine.state, 10_000, {}) == planned


def test_work_that_waits_for_quota_gets_no_nodes() -> None:
    engine = elastic(pool("a", cpu=8), queues=(QueueSpec(name="q", nominal={"cpu_milli": 16_000}),))
    submit(engine, *(work(f"w{i}", cpu=8) for i in range(5)))
    engine.advance(20 * SECOND)
    assert ordered(engine) == {"a": 2}


def test_quotas_by_pool_say_which_pool_grows() -> None:
    flavors = (
        {"pool": "a", "nominal": {"cpu_milli": 8_000}},
        {"pool": "b", "nominal": {"cpu_milli": 16_000}},
    )
    queue = QueueSpec(name="q", flavors=tuple(FlavorQuota(**flavor) for flavor in flavors))
    engine = elastic(pool("a", cpu=8), pool("b", cpu=8), queues=(queue,))
    submit(engine, *(work(f"w{i}", cpu=8) for i in range(5)))
    engine.advance(20 * SECOND)
    assert ordered(engine) == {"a": 1, "b": 2}
    engine.advance(10 * MINUTE)
    assert sorted(state_of(engine, f"w{i}") for i in range(5)) == ["queued"] * 2 + ["running"] * 3


def test_least_sizes_and_headroom_are_kept_up() -> None:
    engine = elastic(pool("a", cpu=8, least=2), pool("b", cpu=8, headroom=1, price=50))
    engine.advance(10 * SECOND)
    assert ordered(engine) == {"a": 2, "b": 1}
    engine.advance(5 * MINUTE)
    assert ordered(engine) == {"a": 2, "b": 1}
    submit(engine, work("w", cpu=8, pools=("b",)))
    engine.advance(6 * MINUTE)
    assert state_of(engine, "w") == "running"
    assert ordered(engine) == {"a": 2, "b": 2}


def test_work_on_nodes_that_are_taken_back_gets_its_nodes_beforehand() -> None:
    engine = elastic(pool("a", cpu=8, boot_ms=(20_000, 20_000)))
    submit(engine, work("w", cpu=8))
    engine.advance(2 * MINUTE)
    (node,) = nodes_in(engine, NodeState.READY)
    engine.command(cmd.Interrupt(ids=(node,), notice_ms=60_000))
    engine.advance(2 * MINUTE + 10 * SECOND)
    assert state_of(engine, "w") == "running"
    assert ordered(engine) == {"a": 2}
    engine.advance(3 * MINUTE + 5 * SECOND)
    assert state_of(engine, "w") == "running"


# -- gangs ------------------------------------------------------------------------------------------------------------


def test_a_gang_gets_one_order() -> None:
    engine = elastic(pool("a", cpu=8))
    submit(engine, work("g0", cpu=8, count=3), work("g1", cpu=4, count=4), work("s", cpu=8))
    engine.advance(10 * SECOND)
    w, o = engine.state.workloads, engine.state.orders
    made = [(w.ids[g] if g >= 0 else "", n) for g, n in zip(o.workload, o.wanted, strict=True)]
    assert made == [("g0", 3), ("g1", 2), ("", 1)]
    engine.advance(10 * MINUTE)
    assert {state_of(engine, name) for name in ("g0", "g1", "s")} == {"running"}


def test_a_gang_uses_what_is_free_and_gets_the_rest() -> None:
    fixed = pool("fixed", cpu=8, most=0)
    engine = elastic(pool("a", cpu=8), fixed, nodes=(NodeSpec(id="n0", pool="fixed"), NodeSpec(id="n1", pool="fixed")))
    submit(engine, work("g", cpu=8, count=5))
    engine.advance(10 * SECOND)
    assert ordered(engine) == {"a": 3}
    engine.advance(10 * MINUTE)
    assert state_of(engine, "g") == "running"


def test_a_gang_that_cannot_have_all_gets_none() -> None:
    engine = elastic(pool("a", cpu=8, most=4))
    submit(engine, work("big", cpu=8, count=3), work("bigger", cpu=8, count=4), work("s", cpu=8))
    engine.advance(15 * SECOND)
    assert ordered(engine) == {"a": 4}
    assert list(engine.state.orders.wanted) == [3, 1]
    assert "a is at its maximum, 4 nodes" in why(engine, "bigger")


def test_many_gangs_get_their_orders_over_several_scans() -> None:
    engine = elastic(pool("a", cpu=8, most=5000))
    submit(engine, *(work(f"g{i}", cpu=8, count=2) for i in range(scale_up.MAX_GANGS + 20)))
    engine.advance(10 * SECOND)
    assert len(orders(engine)) == scale_up.MAX_GANGS
    engine.advance(20 * SECOND)
    assert len(orders(engine)) == scale_up.MAX_GANGS + 20
    assert set(engine.state.orders.wanted) == {2}


def test_an_order_for_a_gang_that_is_gone_is_cancelled() -> None:
    engine = elastic(pool("a", cpu=8), settings=Autoscaling(scale_up_after_ms=0, scan_every_ms=1000))
    submit(engine, work("g", cpu=8, count=2))
    engine.advance(1 * SECOND)
    assert orders(engine) == [("a", "", 2, "open")]
    engine.command(cmd.Cancel(ids=("g",)))
    engine.advance(2 * SECOND)
    assert orders(engine) == [("a", "", 2, "cancelled")]
    engine.advance(5 * MINUTE)
    assert not engine.state.capacity.row_of


def test_an_order_for_a_gang_that_has_started_elsewhere_is_cancelled() -> None:
    there = tuple(NodeSpec(id=f"n{i}", pool="a") for i in range(2))
    engine = elastic(pool("a", cpu=8), nodes=there, settings=Autoscaling(scale_up_after_ms=0, scan_every_ms=500))
    submit(engine, *(work(f"s{i}", cpu=8) for i in range(2)))
    submit(engine, work("g", cpu=8, count=2))
    engine.advance(500)
    assert orders(engine) == [("a", "", 2, "open")]
    engine.command(cmd.Cancel(ids=("s0", "s1")))
    assert state_of(engine, "g") == "running"
    engine.advance(1 * SECOND)
    assert orders(engine) == [("a", "", 2, "cancelled")]


def test_groups_of_a_gang_may_need_different_pools() -> None:
    engine = elastic(pool("cpu", cpu=8), pool("gpu", cpu=8, gpu=4, price=1000))
    groups = (
        TaskGroup(name="head", request=Resources(cpu_milli=1000), pools=("cpu",)),
        TaskGroup(name="worker", count=2, request=Resources(cpu_milli=1000, gpu_milli=4000)),
    )
    submit(engine, WorkloadSpec(id="g", queue="q", groups=groups))
    engine.advance(10 * SECOND)
    assert ordered(engine) == {"cpu": 1, "gpu": 2}
    engine.advance(10 * MINUTE)
    assert state_of(engine, "g") == "running"


@pytest.mark.parametrize("level", ["zone", "region"])
def test_a_gang_that_is_to_be_in_one_zone_gets_its_nodes_there(level: str) -> None:
    engine = elastic(pool("a", cpu=8, zones=("z1", "z2"), region="r1"))
    submit(engine, work("s", cpu=8))
    engine.advance(5 * MINUTE)
    submit(engine, work("g", cpu=8, count=3, topology=TopologyRequest(required=level)))
    engine.advance(5 * MINUTE + 10 * SECOND)
    assert orders(engine)[1][1:3] == ("z2", 3)
    engine.advance(15 * MINUTE)
    assert state_of(engine, "g") == "running"
    assert ordered(engine) == {"a": 4}


def test_new_nodes_know_nothing_of_bonds_to_other_work() -> None:
    there = tuple(NodeSpec(id=f"n{i}", pool="a", zone="z1") for i in range(2))
    engine = elastic(pool("a", cpu=8, zones=("z1",)), nodes=there)
    apart = {"tags": {"app": "x"}, "apart": (Affinity(tags={"app": "x"}, level="node"),)}
    submit(engine, *(work(f"s{i}", cpu=8, **apart) for i in range(2)))
    submit(engine, work("g", cpu=8, count=2, topology=TopologyRequest(required="zone"), **apart))
    engine.advance(30 * SECOND)
    assert ordered(engine) == {"a": 2}


def test_a_gang_that_is_to_be_in_one_rack_is_told_that_racks_of_new_nodes_are_unknown() -> None:
    there = tuple(NodeSpec(id=f"n{i}", pool="a", rack="r0") for i in range(2))
    engine = elastic(pool("a", cpu=8), nodes=there)
    submit(engine, work("first", cpu=8))
    submit(engine, work("g", cpu=8, count=2, topology=TopologyRequest(required="rack")))
    engine.advance(20 * SECOND)
    assert orders(engine) == []
    assert "a may be in different racks: only region and zone of a new node are known" in why(engine, "g")


# -- which pool -------------------------------------------------------------------------------------------------------


def test_the_expanders_choose_one_after_the_other() -> None:
    small = GrowthOption(pool=0, priority=0, nodes=4, tasks=4, waste_ppm=500, microusd_hour=100)
    tight = GrowthOption(pool=1, priority=0, nodes=1, tasks=4, waste_ppm=10, microusd_hour=300)
    first = GrowthOption(pool=2, priority=5, nodes=9, tasks=4, waste_ppm=900, microusd_hour=900)
    given = (small, tight, first)
    assert choose(given, ("priority",)) == 2
    assert choose(given, ("least-waste",)) == 1
    assert choose(given, ("price",)) == 0
    assert choose((small, tight), ("priority", "price")) == 0
    assert choose((small._replace(pool=3), small), ()) == 1
    assert choose((small, first._replace(nodes=0)), ("price",)) == 1


def test_waste_is_the_mean_over_what_nodes_have() -> None:
    assert waste_ppm((4, 8, 0, 0), (8, 8, 0, 0), 1) == 250_000
    assert waste_ppm((8, 8, 0, 0), (8, 8, 4, 0), 1) == 333_333
    assert waste_ppm((0, 0, 0, 0), (8, 8, 0, 0), 0) == 0


def test_the_pool_with_least_waste_grows() -> None:
    engine = elastic(pool("large", cpu=64, price=10), pool("fits", cpu=4, memory=4, price=100), settings=BY_WASTE)
    submit(engine, work("w", cpu=4, memory=4))
    engine.advance(10 * SECOND)
    assert ordered(engine) == {"fits": 1}


def test_priority_goes_before_price_and_a_pool_out_of_stock_is_passed_over() -> None:
    engine = elastic(
        pool("spot", cpu=8, priority=10, price=100, stock=((0, 0),)), pool("od", cpu=8, priority=1, price=1)
    )
    submit(engine, work("w", cpu=8))
    engine.advance(10 * SECOND)
    assert ordered(engine) == {"spot": 1}
    engine.advance(25 * SECOND)
    assert ordered(engine) == {"spot": 1, "od": 1}


def test_nodes_with_devices_are_left_to_those_who_need_them() -> None:
    engine = elastic(pool("gpu", cpu=64, gpu=8, price=1, priority=9), pool("cpu", cpu=8, price=100))
    submit(engine, work("w", cpu=4), work("g", cpu=4, gpu=1))
    engine.advance(10 * SECOND)
    assert ordered(engine) == {"gpu": 1, "cpu": 1}


def test_labels_and_taints_of_new_nodes_count() -> None:
    spot = pool("spot", cpu=8)
    tainted = type(spot)(**{f: getattr(spot, f) for f in spot.__struct_fields__} | {"taints": (Taint(key="spot"),)})
    engine = elastic(tainted, pool("od", cpu=8, zones=("z1", "z2"), price=500))
    submit(
        engine,
        work("tolerant", cpu=8, tolerations=(Toleration(key="spot"),), pools=("spot",)),
        work("shy", cpu=8, node_labels={"zone": ("z2",)}),
    )
    engine.advance(10 * SECOND)
    assert [(name, zone, count) for name, zone, count, _ in orders(engine)] == [("spot", "", 1), ("od", "z2", 1)]
    with pytest.raises(MusterError, match="taint"):
        submit(engine, work("no", cpu=8, pools=("spot",)))
    with pytest.raises(MusterError, match="zone"):
        submit(engine, work("no", cpu=8, node_labels={"zone": ("mars",)}))


def test_zones_are_asked_in_turn() -> None:
    engine = elastic(pool("a", cpu=8, zones=("z1", "z2", "z3")))
    for i in range(4):
        submit(engine, work(f"w{i}", cpu=8))
        engine.advance((i + 1) * 10 * SECOND)
    assert [zone for _, zone, _, _ in orders(engine)] == ["z1", "z2", "z3", "z1"]


def test_a_zone_out_of_stock_sends_the_next_order_to_another() -> None:
    engine = elastic(pool("a", cpu=8, zones=("z1", "z2"), stock=((0, 1),)))
    submit(engine, *(work(f"w{i}", cpu=8) for i in range(2)))
    engine.advance(30 * SECOND)
    assert [(zone, state) for _, zone, _, state in orders(engine)] == [("z1", "refused"), ("z2", "filled")]
    assert 0 not in engine.state.orders.backed_off_ms


# -- limits -----------------------------------------------------------------------------------------------------------


def test_pools_and_the_cell_grow_no_further_than_they_may() -> None:
    settings = Autoscaling(scale_up_after_ms=0, scale_down_below_permille=0, most_nodes=5, expanders=("price",))
    engine = elastic(pool("a", cpu=8, most=3, price=1), pool("b", cpu=8, most=9, price=2), settings=settings)
    submit(engine, *(work(f"w{i}", cpu=8) for i in range(12)))
    engine.advance(5 * MINUTE)
    assert ordered(engine) == {"a": 3, "b": 2}
    assert "a is at its maximum, 3 nodes; b would make the cell larger than 5 nodes" in why(engine, "w11")


def test_requests_keep_to_the_quota_of_the_project() -> None:
    engine = elastic(
        pool("a", cpu=8, project="p", requests_per_100_s=4, price=1), pool("b", cpu=4, project="p", price=9)
    )
    submit(engine, *(work(f"w{i}", cpu=8) for i in range(10)), *(work(f"x{i}", cpu=4, pools=("b",)) for i in range(3)))
    asked = []
    for at_ms in range(0, 10 * MINUTE, 5 * SECOND):
        engine.advance(at_ms)
    o = engine.state.orders
    asked = list(zip(o.ordered_ms, o.wanted, strict=True))
    assert ordered(engine) == {"a": 10, "b": 3}
    for at_ms, _ in asked:
        assert sum(count for when, count in asked if at_ms - 100_000 < when <= at_ms) <= 4


def test_large_orders_are_made_in_batches() -> None:
    engine = elastic(pool("a", cpu=8), settings=Autoscaling(scale_up_after_ms=0, most_in_batch=4))
    submit(engine, *(work(f"w{i}", cpu=8) for i in range(10)))
    engine.advance(40 * SECOND)
    assert [count for _, _, count, _ in orders(engine)] == [4, 4, 2]
    engine.advance(10 * MINUTE)
    submit(engine, work("g", cpu=8, count=5))
    engine.advance(11 * MINUTE)
    assert ordered(engine) == {"a": 10}
    assert "a cannot be asked for 5 nodes in one request, 4 at most" in why(engine, "g")


def test_the_head_node_hears_every_machine_that_is_ordered() -> None:
    # Why: a machine whose call is lost costs money until its order's time is over, and is of no use.
    settings = Autoscaling(scale_up_after_ms=0, scale_down_below_permille=0, calls_per_s=36)
    engine = elastic(pool("a", cpu=8, most=500, boot_ms=(40 * SECOND, 100 * SECOND)), settings=settings)
    submit(engine, *(work(f"w{i}", cpu=8) for i in range(400)))
    engine.advance(5 * MINUTE)
    o = engine.state.orders
    asked = list(zip(o.ordered_ms, o.wanted, strict=True))
    for at_ms, _ in asked:
        assert sum(count for when, count in asked if at_ms - 10 * SECOND < when <= at_ms) <= 120
    assert len(nodes_in(engine, NodeState.READY)) == 400
    assert max(Counter(view(engine.state.capacity.since).tolist()).values()) <= 36


def test_calls_above_what_the_head_node_takes_are_lost_and_the_machines_given_back() -> None:
    settings = Autoscaling(scale_up_after_ms=0, scale_down_below_permille=0, calls_per_s=10)
    engine = elastic(pool("a", cpu=8, boot_ms=(60 * SECOND, 60 * SECOND)), settings=settings)
    order(engine, 100)
    engine.advance(5 * MINUTE)
    heard = nodes_in(engine, NodeState.READY)
    assert 10 <= len(heard) <= 20
    other = engine.fork()
    for each in (engine, other):
        each.advance(20 * MINUTE)
        assert nodes_in(each, NodeState.READY) == heard
        assert nodes_in(each, NodeState.BOOTING) == []
    assert engine.state.digest() == other.state.digest()


def test_a_gang_saves_up_the_quota_that_single_tasks_would_use() -> None:
    engine = elastic(pool("a", cpu=8, project="p", requests_per_100_s=4))
    submit(engine, work("first", cpu=8))
    engine.advance(10 * SECOND)
    submit(engine, work("g", cpu=8, count=4), *(work(f"w{i}", cpu=8) for i in range(20)))
    engine.advance(4 * MINUTE)
    gang = engine.state.workloads.row("g")
    assert gang in list(engine.state.orders.workload)


# -- nothing in vain --------------------------------------------------------------------------------------------------


def test_no_more_nodes_are_ordered_where_those_that_are_free_do_not_help() -> None:
    engine = elastic(pool("a", cpu=8, headroom=0, least=2), settings=QUICK)
    engine.advance(5 * MINUTE)
    apart = work("w", cpu=8, tags={"app": "x"})
    submit(engine, apart)
    engine.advance(6 * MINUTE)
    submit(engine, work("far", cpu=8, apart=(Affinity(tags={"app": "x"}, level="region"),)))
    engine.advance(20 * MINUTE)
    assert ordered(engine)["a"] <= 3
    check_state(engine.state)


def test_why_names_the_pools_and_what_is_wrong_with_each() -> None:
    engine = elastic(
        pool("gone", cpu=8, stock=((0, 0),), priority=9),
        pool("tiny", cpu=2),
        pool("full", cpu=8, most=1),
    )
    submit(engine, work("w0", cpu=8), work("w1", cpu=8))
    engine.advance(30 * SECOND)
    text = why(engine, "w1")
    assert "no autoscaled pool could hold it" in text
    assert "gone is out of stock" in text
    assert "tiny has nodes that are too small for its tasks, or of another kind" in text
    assert "full is at its maximum, 1 node" in text
    assert "waiting for nodes: order" in why(engine, "w0")


def test_why_names_the_order_and_when_it_is_likely_to_be_ready() -> None:
    engine = elastic(pool("a", cpu=8, boot_ms=(240_000, 300_000)))
    submit(engine, work("g", cpu=8, count=4))
    engine.advance(20 * SECOND)
    assert why(engine, "g").startswith("waiting for nodes: order 0, 4 of a, ready about 1970-01-01 00:04:1")


def test_work_that_no_pool_could_ever_hold_is_refused_at_the_door() -> None:
    engine = elastic(pool("a", cpu=8, most=2))
    with pytest.raises(SpecError, match="no node of this cell could run one such task"):
        submit(engine, work("w", cpu=9))
    with pytest.raises(SpecError, match=r"larger than the cell|the whole cell has"):
        submit(engine, work("g", cpu=8, count=3))


def test_reserved_nodes_stay_reserved() -> None:
    engine = elastic(pool("a", cpu=8, least=1))
    engine.advance(5 * MINUTE)
    (node,) = nodes_in(engine, NodeState.READY)
    reserved = ReservationSpec(name="r", nodes=(node,), start_ms=6 * MINUTE, end_ms=60 * MINUTE)
    engine.command(cmd.Reserve(reservation=reserved))
    submit(engine, work("w", cpu=8))
    engine.advance(10 * MINUTE)
    assert state_of(engine, "w") == "running"
    assert engine.workload("w").placement[0].node != node


@pytest.mark.parametrize(
    ("scaling", "field"),
    [
        ({"least": 5, "most": 4}, "least"),
        ({"headroom": 5, "most": 4}, "headroom"),
        ({"most": -1}, "most"),
        ({"zones": ("z", "z")}, "zones"),
        ({"boot_ms": (100, 50)}, "boot_ms"),
        ({"stock": ((5, 1), (2, 1))}, "stock"),
        ({"requests_per_100_s": -1}, "requests_per_100_s"),
        ({"price": -1}, "price_microusd_hour"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(scaling: dict[str, object], field: str) -> None:
    with pytest.raises(SpecError, match=field):
        elastic(pool("a", **scaling))


def test_nodes_added_alike_are_as_if_added_one_by_one() -> None:
    alike, single = Capacity(), Capacity()
    specs = (pool("a", cpu=8, gpu=4), pool("b", cpu=8))
    for capacity in (alike, single):
        for spec in specs:
            capacity.add_pool(spec)
        capacity.name_labels(["zone"])
        capacity.parents()
    for spec in specs:
        ids = [f"{spec.name}{i}" for i in range(70)]
        alike.add_alike(NodeSpec(id="", pool=spec.name, zone="z"), ids)
        for name in ids:
            single.add_node(NodeSpec(id=name, pool=spec.name, zone="z"), 0)
    assert alike.dump() == single.dump()
    for name in ("key", "totals", "row_of", "pool_nodes", "partition", "partition_nodes", "open_kinds", "gained"):
        assert getattr(alike, name) == getattr(single, name), name
    shape = Shape(TaskGroup(request=Resources(cpu_milli=3000)), list(specs))
    assert place(alike, (shape,), (200,)) == place(single, (shape,), (200,))


def test_orders_of_a_fork_are_those_of_the_cell() -> None:
    engine = elastic(pool("a", cpu=8, zones=("z1", "z2")), pool("b", cpu=16), settings=BY_WASTE)
    for i in range(6):
        submit(engine, work(f"w{i}", cpu=1 + i, count=1 + i % 2))
        engine.advance((i + 1) * 7 * SECOND)
    fork = engine.fork()
    for other in (engine, fork):
        other.advance(20 * MINUTE)
    assert engine.state.digest() == fork.state.digest()
    assert all(a <= b for a, b in pairwise(engine.state.orders.ordered_ms))


def test_a_pool_whose_machines_boot_longer_than_orders_are_kept_is_refused() -> None:
    scaling = ScalingSpec(most=4, boot_ms=(20 * MINUTE, 30 * MINUTE))
    pool = PoolSpec(name="slow", capacity=Resources(cpu_milli=1000), scaling=scaling)
    with pytest.raises(SpecError, match=r"pools\[0\]\.scaling\.boot_ms: every other machine boots"):
        Engine.open(None, cell=CellSpec(pools=(pool,)))
    patient = Settings(autoscaling=Autoscaling(order_timeout_ms=60 * MINUTE))
    engine = Engine.open(None, cell=CellSpec(pools=(pool,), settings=patient))
    with pytest.raises(SpecError, match="orders are cancelled after"):
        engine.command(SetSettings(settings=Settings()))


def test_what_is_kept_back_by_another_rule_is_not_told_that_quota_is_short() -> None:
    engine = elastic(pool("p", most=4))
    spent = BudgetSpec(name="b", scope="queue", of="q", limit_microusd=0, action="hold")
    engine.command(cmd.SetBudgets(budgets=(spent,)))
    submit(engine, work("w", cpu=8))
    engine.advance(MINUTE)
    assert orders(engine) == []
    assert why(engine, "w") == "no nodes are ordered for it: budget b keeps it from starting"
    engine.command(cmd.RemoveBudgets(names=("b",)))
    engine.command(cmd.HoldQueues(names=("q",)))
    engine.advance(2 * MINUTE)
    assert why(engine, "w") == "no nodes are ordered for it: its queue is held"
