"""The map of the cell: its sums are those of the nodes one by one, its pages are bounded, its order is people's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from cells import submit, workload
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.errors import NotFoundError, SpecError
from engine.model.list_queries import Query
from engine.model.reports import HeatLevel, HeatMap, HeatRequest, HeatTile
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, QueueSpec, Resources

POOLS = (
    PoolSpec(
        name="gpu", capacity=Resources(cpu_milli=64_000, memory_mib=512_000, gpu_milli=4000), gpu_model="H100",
        price_microusd_hour=20_000_000,
    ),
    PoolSpec(
        name="cpu", capacity=Resources(cpu_milli=16_000, memory_mib=64_000), price_microusd_hour=700_001, spot=True,
    ),
)  # fmt: skip


def engine_of(*nodes: NodeSpec) -> Engine:
    cell = CellSpec(name="test", pools=POOLS, nodes=nodes, queues=(QueueSpec(name="a"),))
    return Engine.open(None, cell=cell)


def tiles(engine: Engine, level: HeatLevel, **within: str) -> dict[str, HeatTile]:
    found = engine.topology(HeatRequest(level=level, within=within)).tiles
    return {tile.name: tile for tile in found}


def test_a_tile_tells_what_is_on_its_nodes() -> None:
    engine = engine_of(
        NodeSpec(id="g0", pool="gpu", zone="z", block="b", rack="r1"),
        NodeSpec(id="g1", pool="gpu", zone="z", block="b", rack="r1"),
        NodeSpec(id="c0", pool="cpu", zone="z", block="b", rack="r2"),
    )
    engine.command(submit(workload("w", gpu=3000, cpu=1000)))
    engine.command(cmd.Cordon(ids=("c0",)))
    racks = tiles(engine, "rack")
    assert racks["r1"] == HeatTile(
        name="r1", zone="z", block="b", rack="r1", nodes=2, states={"ready": 2}, use_permille=375, gpu_milli=8000,
        gpu_free_milli=5000, split_milli=1000, price_microusd_hour=40_000_000, spot=0,
    )  # fmt: skip
    assert (racks["r2"].states, racks["r2"].spot, racks["r2"].price_microusd_hour) == ({"cordoned": 1}, 1, 700_001)
    (zone,) = tiles(engine, "zone").values()
    assert (zone.nodes, zone.block, zone.gpu_free_milli) == (3, "", 5000)
    assert [tile.pool for tile in tiles(engine, "node", rack="r2").values()] == ["cpu"]
    assert engine.topology(HeatRequest(level="zone")).dearest_microusd_hour == 20_000_000


def test_places_are_in_the_order_in_which_people_count_and_the_nameless_come_last() -> None:
    racks = ("r10", "r2", "", "r1")
    engine = engine_of(*(NodeSpec(id=f"n{i}", pool="cpu", zone="z", rack=rack) for i, rack in enumerate(racks)))
    assert [tile.name for tile in engine.topology(HeatRequest(level="rack")).tiles] == ["r1", "r2", "r10", ""]
    assert [tile.name for tile in engine.topology(HeatRequest(level="node")).tiles] == ["n3", "n1", "n0", "n2"]
    assert [tile.name for tile in engine.topology(HeatRequest(level="node", within={"rack": ""})).tiles] == ["n2"]


def test_what_cannot_be_asked_is_refused() -> None:
    engine = engine_of(NodeSpec(id="n", pool="cpu", zone="z"))
    with pytest.raises(NotFoundError, match="zone 'nowhere'"):
        engine.topology(HeatRequest(level="rack", within={"zone": "nowhere"}))
    with pytest.raises(SpecError, match="'pool' is not a topology level"):
        engine.topology(HeatRequest(level="rack", within={"pool": "cpu"}))
    for wrong in ({"limit": 10_001}, {"limit": -1}, {"offset": -1}):
        with pytest.raises(SpecError, match="is not a valid window"):
            engine.topology(HeatRequest(level="node", **wrong))


def test_a_cell_without_nodes_has_an_empty_map() -> None:
    engine = Engine.open(None, cell=CellSpec(name="test"))
    for level in ("zone", "node"):
        assert engine.topology(HeatRequest(level=level)).total == 0


def test_nodes_that_came_or_went_are_on_the_next_map() -> None:
    engine = engine_of(NodeSpec(id="n0", pool="cpu", rack="r0"))
    assert set(tiles(engine, "rack")) == {"r0"}
    engine.command(cmd.AddNodes(nodes=(NodeSpec(id="n1", pool="cpu", rack="r1"),)))
    assert set(tiles(engine, "rack")) == {"r0", "r1"}


def plainly(engine: Engine, level: HeatLevel) -> dict[tuple[str, ...], dict[str, Any]]:
    """The same sums, node by node, from their own pages."""
    prices = {pool.name: pool.price_microusd_hour for pool in POOLS}
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for (name,) in engine.query(Query(kind="nodes", columns=("id",), limit=10_000)).rows:
        node = engine.node(name)
        way = (node.zone, node.block, node.rack, name)[: ("zone", "block", "rack", "node").index(level) + 1]
        new = {"nodes": 0, "states": Counter(), "full": Counter(), "free": Counter(), "split": 0, "price": 0, "spot": 0}
        sums = found.setdefault(way, new)
        sums["nodes"] += 1
        sums["states"][node.state] += 1
        sums["full"].update(node.capacity)
        sums["free"].update(node.free)
        gpus, free = node.capacity["gpu_milli"], sum(node.devices)
        sums["split"] += free if 0 < free < gpus else 0
        sums["price"] += prices[node.pool]
        sums["spot"] += node.pool == "cpu"
    return found


def shown(answer: HeatMap) -> dict[tuple[str, ...], HeatTile]:
    depth = ("zone", "block", "rack", "node").index(answer.level) + 1
    return {(*(tile.zone, tile.block, tile.rack)[: min(depth, 3)], *([tile.name] if depth == 4 else [])): tile
            for tile in answer.tiles}  # fmt: skip


NODES = st.lists(
    st.tuples(st.sampled_from(("gpu", "cpu")), st.integers(0, 2), st.integers(0, 2), st.integers(0, 3), st.booleans()),
    min_size=1, max_size=14,
)  # fmt: skip
WORK = st.lists(st.tuples(st.sampled_from((0, 250, 500, 1000, 3000)), st.integers(1, 16)), max_size=12)


@settings(max_examples=examples(10), deadline=None)
@given(nodes=NODES, work=WORK, out=st.sets(st.integers(0, 13)), size=st.integers(1, 5))
def test_sums_are_those_of_the_nodes(
    nodes: list[tuple[str, int, int, int, bool]], work: list[tuple[int, int]], out: set[int], size: int
) -> None:
    specs = [
        NodeSpec(
            id=f"n{i}", pool=pool, zone=f"z{zone}", block=f"b{zone}{block}" if known else "",
            rack=f"r{zone}{block}{rack}" if known else "",
        )
        for i, (pool, zone, block, rack, known) in enumerate(nodes)
    ]  # fmt: skip
    engine = engine_of(*specs)
    # What no node could ever hold is refused by itself.
    engine.commands([submit(workload(f"w{i}", gpu=gpu, cpu=1000 * cpu)) for i, (gpu, cpu) in enumerate(work)])
    chosen = tuple(f"n{i}" for i in sorted(out) if i < len(nodes))
    if chosen:
        engine.command(cmd.Drain(ids=chosen[:1]))
        if chosen[1:]:
            engine.command(cmd.Cordon(ids=chosen[1:]))
    for level in ("zone", "block", "rack", "node"):
        whole = engine.topology(HeatRequest(level=level))
        plain = plainly(engine, level)
        assert set(shown(whole)) == set(plain)
        assert whole.total == len(whole.tiles) == len(plain)
        for way, tile in shown(whole).items():
            sums = plain[way]
            assert (tile.nodes, tile.states, tile.gpu_milli) == (
                sums["nodes"],
                sums["states"],
                sums["full"]["gpu_milli"],
            )
            assert (tile.gpu_free_milli, tile.split_milli) == (sums["free"]["gpu_milli"], sums["split"])
            assert (tile.price_microusd_hour, tile.spot) == (sums["price"], sums["spot"])
            uses = [
                (sums["full"][name] - sums["free"][name]) * 1000 // sums["full"][name]
                for name in ("cpu_milli", "memory_mib", "gpu_milli") if sums["full"][name]
            ]  # fmt: skip
            assert tile.use_permille == max(uses)
        pages = [engine.topology(HeatRequest(level=level, offset=at, limit=size)) for at in range(0, whole.total, size)]
        assert [tile for page in pages for tile in page.tiles] == list(whole.tiles)
        for zone in {tile.zone for tile in whole.tiles}:
            inside = engine.topology(HeatRequest(level=level, within={"zone": zone})).tiles
            assert list(inside) == [tile for tile in whole.tiles if tile.zone == zone]
            assert msgspec.json.encode(inside)
