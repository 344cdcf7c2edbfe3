"""Gangs close together: one domain where a level is required, few domains where it is preferred.

The oracle knows the nodes' names and the free devices, and looks at every set of domains; it shares no code with the
engine.
"""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import msgspec
import pytest
from cells import CLASSES
from invariants import check_state

from engine.capacity.topology import RACK, domain_room
from engine.control import Engine
from engine.model.commands import AddNodes, AddPriorityClasses, Cancel, Cordon, Drain, Reserve, Submit, Uncordon
from engine.model.details import WorkloadDetail
from engine.model.errors import SpecError
from engine.model.specs import (
    LEVELS,
    CellSpec,
    NodeSpec,
    NodeState,
    PoolSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    TaskGroup,
    TopologyRequest,
    WorkloadSpec,
)
from engine.state.cell_state import State
from engine.twin.counterfactuals import verified

GPU = PoolSpec(name="gpu", capacity=Resources(cpu_milli=64_000, memory_mib=512_000, gpu_milli=8000), gpu_model="H100")
CPU = PoolSpec(name="cpu", capacity=Resources(cpu_milli=32_000, memory_mib=128_000))


def cell(nodes: list[NodeSpec], **fields: object) -> CellSpec:
    queues = fields.pop("queues", (QueueSpec(name="q"),))
    return CellSpec(pools=(GPU, CPU), nodes=tuple(nodes), queues=queues, priority_classes=CLASSES, **fields)


def grid(racks: int, per_rack: int = 4, racks_per_block: int = 2, blocks_per_zone: int = 2) -> list[NodeSpec]:
    return [
        NodeSpec(
            id=f"n{rack}-{i}",
            pool="gpu",
            rack=f"r{rack}",
            block=f"b{rack // racks_per_block}",
            zone=f"z{rack // racks_per_block // blocks_per_zone}",
        )
        for rack in range(racks)
        for i in range(per_rack)
    ]


def gang(name: str, count: int, *, gpu: int = 8000, required: str | None = None, preferred: str | None = None,
         least: int = 0, **fields: object) -> WorkloadSpec:  # fmt: skip
    group = TaskGroup(count=count, min_count=least, request=Resources(gpu_milli=gpu, cpu_milli=gpu // 1000 * 1000))
    asked = TopologyRequest(required=required, preferred=preferred) if required or preferred else None
    fields = {"queue": "q", "groups": (group,), "estimate_ms": 60_000, "simulated_runtime_ms": 60_000} | fields
    return WorkloadSpec(id=name, topology=asked, **fields)


def start(nodes: list[NodeSpec], *specs: WorkloadSpec, policy: str = "easy") -> Engine:
    engine = Engine.open(None, cell=cell(nodes))
    engine.state.policy = policy
    engine.state.rebuild_pending()
    if specs:
        engine.command(Submit(workloads=specs))
    return engine


def places(engine: Engine, name: str) -> list[str]:
    """Nodes of the workload in the order of ranks, one entry for each task."""
    return [place.node for place in engine.workload(name).placement for _ in range(place.tasks)]


def domain(spec: NodeSpec, level: str) -> tuple[str, ...]:
    """What tells the domain from others: the names down to the level; the node alone where it has none there."""
    if level == "node" or not getattr(spec, level):
        return ("", spec.id)
    return tuple(getattr(spec, wider) for wider in LEVELS[: LEVELS.index(level) + 1])


def domains_of(nodes: list[NodeSpec], names: list[str], level: str) -> set[tuple[str, ...]]:
    specs = {spec.id: spec for spec in nodes}
    return {domain(specs[name], level) for name in names}


# -- against the oracle -----------------------------------------------------------------------------------------------


def room(state: State, gpus: int) -> dict[str, int]:
    """Tasks of so many whole devices that fit on each node now, by the free devices alone."""
    capacity = state.capacity
    return {
        name: list(capacity.devices(row)).count(1000) // gpus if capacity.state[row] == NodeState.READY else 0
        for row, name in enumerate(capacity.node_ids)
    }


def best(nodes: list[NodeSpec], free: dict[str, int], count: int, asked: TopologyRequest) -> tuple[int, int] | None:
    """(index of the level of which one domain holds it, fewest domains of the preferred level), or None."""
    required = LEVELS.index(asked.required) if asked.required else -1
    preferred = LEVELS.index(asked.preferred) if asked.preferred else required
    for level in range(preferred, required - 1, -1):
        fewest = None
        inside: dict[tuple[str, ...], list[NodeSpec]] = {}
        for spec in nodes:
            inside.setdefault(domain(spec, LEVELS[level]) if level >= 0 else (), []).append(spec)
        for members in inside.values():
            if asked.required and len({domain(spec, asked.required) for spec in members}) > 1:
                continue
            sums: dict[tuple[str, ...], int] = {}
            for spec in members:
                at = domain(spec, LEVELS[preferred])
                sums[at] = sums.get(at, 0) + free[spec.id]
            for number in range(1, len(sums) + 1):
                if any(sum(some) >= count for some in combinations(sums.values(), number)):
                    fewest = number if fewest is None else min(fewest, number)
                    break
        if fewest is not None:
            return level, fewest
    return None


def random_nodes(rng: random.Random) -> list[NodeSpec]:
    """Few nodes of which some names are not known."""
    nodes = []
    for i in range(rng.randrange(3, 13)):
        block = rng.randrange(3)
        rack = block * 2 + rng.randrange(2)
        names = {"zone": f"z{block // 2}", "block": f"b{block}", "rack": f"r{rack}", "nvlink": f"v{rack}"}
        unknown = rng.choice([(), (), ("nvlink",), ("zone",), ("rack", "nvlink"), tuple(names)])
        nodes.append(NodeSpec(id=f"n{i}", pool="gpu", **{k: v for k, v in names.items() if k not in unknown}))
    return nodes


def standing(engine: Engine) -> list[NodeSpec]:
    """The nodes where the cell has them: names that other nodes tell are filled in."""
    capacity = engine.state.capacity
    names = capacity.places.names
    return [
        NodeSpec(id=name, pool="gpu", **{level: names[getattr(capacity, level)[row]] for level in LEVELS[:-1]})
        for row, name in enumerate(capacity.node_ids)
    ]


@pytest.mark.parametrize("seed", range(60))
def test_a_place_is_found_whenever_there_is_one_and_in_as_few_domains_as_possible(seed: int) -> None:
    rng = random.Random(seed)
    engine = start(random_nodes(rng))
    nodes = standing(engine)
    running: list[str] = []
    for i in range(12):
        name, gpus = f"w{i}", rng.choice([8, 8, 4, 2])
        required = rng.choice([None, "zone", "block", "rack", "nvlink", "node"])
        preferred = rng.choice([None, *LEVELS[LEVELS.index(required) if required else 0 :]])
        spec = gang(name, rng.randrange(1, 7), gpu=gpus * 1000, required=required, preferred=preferred)
        asked, free = spec.topology or TopologyRequest(), room(engine.state, gpus)
        expected = best(nodes, free, spec.groups[0].count, asked)
        try:
            engine.command(Submit(workloads=(spec,)))
        except SpecError:
            assert best(nodes, dict.fromkeys(free, 8 // gpus), spec.groups[0].count, asked) is None
            continue
        used = places(engine, name)
        assert bool(used) == (expected is not None), (spec, free)
        if used and spec.topology is not None:
            level, fewest = expected
            assert len(domains_of(nodes, used, LEVELS[level]) if level >= 0 else [0]) == 1
            if gpus == 8 and (preferred or required):
                assert len(domains_of(nodes, used, preferred or required)) == fewest
            if required:
                assert len(domains_of(nodes, used, required)) == 1
        if used:
            running.append(name)
        else:
            engine.command(Cancel(ids=(name,)))
        if running and rng.random() < 0.4:
            engine.command(Cancel(ids=(running.pop(rng.randrange(len(running))),)))
        if rng.random() < 0.2:
            engine.command(rng.choice([Cordon, Uncordon])(ids=(rng.choice(nodes).id,)))
    check_state(engine.state)


# -- how a gang lies --------------------------------------------------------------------------------------------------


def detail(engine: Engine, name: str) -> WorkloadDetail:
    return engine.workload(name)


def test_ranks_follow_the_network_and_the_crossings_are_told() -> None:
    nodes = grid(8)
    random.Random(3).shuffle(nodes)
    engine = start(nodes, gang("g", 12, preferred="block"))
    view = detail(engine, "g")
    specs = {spec.id: spec for spec in nodes}
    order = [(specs[p.node].block, specs[p.node].rack) for p in view.placement]
    assert [p.rank for p in view.placement] == list(range(12))
    assert all(order.count(at) == 4 for at in order), "three whole racks"
    assert sum(a != b for a, b in pairwise(order)) == 2, "each rack is one run of ranks"
    assert view.topology.required == ""
    assert view.topology.preferred == "block"
    assert view.topology.within == "zone"
    assert view.topology.domains == {"zone": 1, "block": 2, "rack": 3, "node": 12}
    # Nine steps within a rack, one from rack to rack in a block, two between blocks: there and back around the ring.
    assert view.topology.ring_cost == 9 * 2 + 1 * 3 + 2 * 4


def test_several_tasks_on_a_node_have_ranks_of_their_own() -> None:
    engine = start(grid(2), gang("g", 6, gpu=2000, required="rack"))
    view = detail(engine, "g")
    assert [(p.rank, p.tasks) for p in view.placement] == [(0, 4), (4, 2)]
    assert view.topology.domains["node"] == 2
    assert view.topology.ring_cost == 2 * 2
    alone = start(grid(2), gang("g", 4, gpu=2000, required="rack"))
    assert detail(alone, "g").topology.within == "node"
    assert detail(alone, "g").topology.ring_cost == 0


def test_the_smallest_domain_that_is_enough_is_used_up_first() -> None:
    """Small gangs leave whole blocks to large ones."""
    nodes = grid(6)
    engine = start(nodes, gang("a", 3, required="rack"), gang("b", 6, required="block"), gang("c", 1, required="rack"))
    assert domains_of(nodes, places(engine, "c"), "rack") == domains_of(nodes, places(engine, "a"), "rack")
    engine.command(Submit(workloads=(gang("d", 8, required="block"),)))
    assert detail(engine, "d").state == "running"


def test_groups_of_one_gang_are_together() -> None:
    nodes = grid(4)
    cpu_nodes = [NodeSpec(id=f"c{i}", pool="cpu", rack=f"r{i}", block=f"b{i // 2}", zone="z0") for i in range(4)]
    groups = (
        TaskGroup(name="launcher", request=Resources(cpu_milli=20_000)),
        TaskGroup(name="workers", count=3, request=Resources(gpu_milli=8000)),
    )
    spec = gang("g", 1, required="rack", groups=groups)
    engine = start([*nodes, *cpu_nodes], gang("before", 2, required="rack"), spec)
    used = {place.node for place in detail(engine, "g").placement}
    assert len(domains_of([*nodes, *cpu_nodes], list(used), "rack")) == 1
    # The launcher asks for no device: it leaves them to those who do.
    assert any(name.startswith("c") for name in used)


def test_nvlink_domains_are_a_level_below_the_rack() -> None:
    nodes = [NodeSpec(id=f"n{i}", pool="gpu", rack=f"r{i // 8}", nvlink=f"v{i // 4}") for i in range(16)]
    engine = start(nodes, gang("a", 4, required="nvlink"), gang("b", 5, required="rack", preferred="nvlink"))
    assert len(domains_of(nodes, places(engine, "a"), "nvlink")) == 1
    assert len(domains_of(nodes, places(engine, "b"), "nvlink")) == 2
    assert len(domains_of(nodes, places(engine, "b"), "rack")) == 1
    assert detail(engine, "a").topology.within == "nvlink"


def test_one_name_in_two_places_is_two_domains() -> None:
    """A rack that is named in two blocks, however that came about, is not taken for one."""
    capacity = start(grid(2)).state.capacity
    for i, block in enumerate(("x", "x", "y", "y")):
        capacity.add_node(NodeSpec(id=f"m{i}", pool="gpu", zone="z", block=block, rack="same"), 0)
    tree = domain_room(capacity).tree
    at = [int(tree.domain[RACK][tree.position[capacity.row_of[f"m{i}"]]]) for i in range(4)]
    assert at[0] == at[1] != at[2] == at[3]


# -- what else decides ------------------------------------------------------------------------------------------------


def test_nodes_that_are_not_ready_or_kept_for_others_are_no_room() -> None:
    nodes = grid(2)
    engine = start(nodes)
    engine.command(Cordon(ids=("n0-0",)))
    engine.command(
        Reserve(reservation=ReservationSpec(name="kept", nodes=("n1-0",), start_ms=1000, end_ms=2000, queues=()))
    )
    engine.command(Submit(workloads=(gang("a", 4, required="rack"),)))
    assert detail(engine, "a").state == "queued"
    engine.command(Uncordon(ids=("n0-0",)))
    assert detail(engine, "a").state == "running"
    assert domains_of(nodes, places(engine, "a"), "rack") == {("", "z0", "b0", "r0")}


def test_new_nodes_make_room_in_their_domain() -> None:
    nodes = grid(1)
    engine = start([*nodes, *grid(3)[8:]], gang("a", 4, required="rack"), gang("b", 2, required="rack"))
    engine.command(Submit(workloads=(gang("c", 4, required="rack", least=3),)))
    assert detail(engine, "c").state == "queued"
    engine.command(AddNodes(nodes=(NodeSpec(id="new", pool="gpu", rack="r2", block="b1", zone="z0"),)))
    assert sorted(places(engine, "c")) == ["n2-2", "n2-3", "new"]


def test_an_elastic_gang_grows_in_its_domain_only() -> None:
    nodes = grid(2)
    engine = start(nodes, gang("a", 2, required="rack"))
    engine.command(Submit(workloads=(gang("g", 4, required="rack", least=2, elastic=True),)))
    assert len(places(engine, "g")) == 4
    engine = start(nodes, gang("a", 2, required="rack"), gang("b", 2, required="rack"))
    engine.command(Submit(workloads=(gang("g", 4, required="rack", least=1, elastic=True),)))
    rack = domains_of(nodes, places(engine, "g"), "rack")
    engine.command(Cancel(ids=("a", "b")))
    engine.advance(engine.now_ms + 1000)
    assert len(places(engine, "g")) == 4
    assert domains_of(nodes, places(engine, "g"), "rack") == rack
    check_state(engine.state)


def test_a_gang_with_a_least_size_takes_the_domain_that_holds_most() -> None:
    nodes = grid(3)
    engine = start(nodes, gang("a", 3, required="rack"), gang("b", 2, required="rack"), gang("c", 1, required="rack"))
    # Rooms are now 0, 2 and 4 or so: whatever they are, it goes where most of it fits.
    engine.command(Submit(workloads=(gang("g", 6, required="rack", least=2),)))
    assert len(places(engine, "g")) == 4


def test_growing_on_a_node_it_has_is_one_entry() -> None:
    """Many entries are bound and freed all at once, which takes every node once."""
    nodes = [NodeSpec(id=f"c{i}", pool="cpu", rack=f"r{i // 40}") for i in range(40)]
    halves = TaskGroup(count=80, min_count=41, request=Resources(cpu_milli=16_000))
    for asked in (None, "rack"):
        engine = start(nodes)
        engine.command(Submit(workloads=(gang("g", 1, required=asked, groups=(halves,), elastic=True),)))
        check_state(engine.state)
        assert detail(engine, "g").tasks_placed == 80
        engine.command(Cancel(ids=("g",)))
        check_state(engine.state)
        engine.command(Submit(workloads=(gang("one", 1, groups=(TaskGroup(request=Resources(cpu_milli=16_000)),)),)))
        engine.command(Submit(workloads=(gang("h", 1, required=asked, groups=(halves,), elastic=True),)))
        assert detail(engine, "h").tasks_placed == 79
        engine.command(Cancel(ids=("one",)))
        engine.advance(engine.now_ms + 1000)
        assert detail(engine, "h").tasks_placed == 80, "grown by one, beside another of its own"
        check_state(engine.state)
        engine.command(Cancel(ids=("h",)))
        check_state(engine.state)


def test_quota_holds_for_gangs_close_together() -> None:
    queues = (QueueSpec(name="root", nominal={"gpu_milli": 24_000}), QueueSpec(name="q", parent="root"))
    engine = Engine.open(None, cell=cell(grid(4), queues=queues))
    engine.command(Submit(workloads=(gang("a", 2, required="rack"), gang("b", 2, required="rack"))))
    assert [detail(engine, name).state for name in "ab"] == ["running", "queued"]
    assert detail(engine, "b").reasons[0].token == "WaitingForQuota"


def test_what_could_never_fit_is_refused_at_the_door() -> None:
    engine = start(grid(4))
    with pytest.raises(
        SpecError, match="no rack could ever hold 5 such tasks at once: the largest, r0, has room for 4"
    ):
        engine.command(Submit(workloads=(gang("a", 5, required="rack"),)))
    with pytest.raises(SpecError, match="'block' is wider than 'rack', which is required"):
        engine.command(Submit(workloads=(gang("a", 2, required="rack", preferred="block"),)))
    unnamed = start([NodeSpec(id=f"n{i}", pool="gpu") for i in range(4)])
    with pytest.raises(SpecError, match="no rack could ever hold 2"):
        unnamed.command(Submit(workloads=(gang("a", 2, required="rack"),)))


# -- preemption, backfill, conservative -------------------------------------------------------------------------------


def test_victims_free_room_in_one_domain() -> None:
    """Cheap victims that are scattered are of no use; the dearer ones of one rack are."""
    nodes = grid(4, per_rack=2)
    engine = start(nodes)
    forever = {"estimate_ms": 0, "simulated_runtime_ms": 86_400_000}
    engine.command(Submit(workloads=tuple(gang(f"s{i}", 1, priority_class="low", **forever) for i in range(8))))
    engine.advance(3_600_000)
    high = msgspec.structs.replace(CLASSES[2], name="urgent", preemption="lower")
    engine.command(AddPriorityClasses(priority_classes=(high,)))
    engine.command(Submit(workloads=(gang("g", 2, required="rack", priority_class="urgent"),)))
    assert detail(engine, "g").state == "running"
    assert len(domains_of(nodes, places(engine, "g"), "rack")) == 1
    preempted = [f"s{i}" for i in range(8) if detail(engine, f"s{i}").state == "queued"]
    assert len(preempted) == 2
    check_state(engine.state)


def test_backfill_keeps_the_promise_of_one_domain() -> None:
    """Slots elsewhere in the cell are no start for a gang that must be in one rack."""
    nodes = grid(2)
    engine = start(
        nodes,
        gang("a", 2, required="rack", estimate_ms=100_000, simulated_runtime_ms=100_000),
        gang("b", 3, required="rack", estimate_ms=50_000, simulated_runtime_ms=50_000),
    )
    engine.command(Submit(workloads=(gang("g", 4, required="rack"),)))
    assert detail(engine, "g").promised_start_ms == engine.now_ms + 50_000
    rack = domains_of(nodes, places(engine, "b"), "rack")
    # It would run past the promise in the promised rack; in the other it is in nobody's way.
    engine.command(Submit(workloads=(gang("long", 1, estimate_ms=500_000, simulated_runtime_ms=500_000),)))
    engine.command(Submit(workloads=(gang("longer", 1, estimate_ms=500_000, simulated_runtime_ms=500_000),)))
    for name in ("long", "longer"):
        used = places(engine, name)
        assert not used or domains_of(nodes, used, "rack") != rack
    engine.advance(50_000)
    assert detail(engine, "g").state == "running"
    assert domains_of(nodes, places(engine, "g"), "rack") == rack


@pytest.mark.parametrize("policy", ["easy", "easy-sjbf", "conservative", "fcfs"])
@pytest.mark.parametrize("seed", range(4))
def test_required_levels_hold_under_every_policy(policy: str, seed: int) -> None:
    rng = random.Random(seed)
    nodes = grid(6, per_rack=3)
    engine = start(nodes, policy=policy)
    specs = []
    for i in range(40):
        level = rng.choice([None, "rack", "block", "zone"])
        run = rng.randrange(1, 30) * 10_000
        count = rng.randrange(1, 4) if level == "rack" else rng.randrange(1, 7)
        specs.append(
            gang(f"w{i}", count, gpu=rng.choice([8, 4]) * 1000,
                 required=level, preferred=rng.choice([None, "rack"]), estimate_ms=run, simulated_runtime_ms=run)
        )  # fmt: skip
    seen = set()
    promises: dict[str, int] = {}
    for spec in specs:
        engine.command(Submit(workloads=(spec,)))
        engine.advance(engine.now_ms + rng.randrange(20_000))
        for other in specs[: len(seen) + 40]:
            if other.id in seen or other.id not in engine.state.workloads.row_of:
                continue
            view = detail(engine, other.id)
            if view.placement:
                seen.add(other.id)
                if other.topology is not None and other.topology.required:
                    used = [place.node for place in view.placement]
                    assert len(domains_of(nodes, used, other.topology.required)) == 1
                if other.id in promises:
                    assert view.started_ms <= promises[other.id], "started later than it was promised"
            elif policy == "conservative" and view.promised_start_ms is not None:
                promises.setdefault(other.id, view.promised_start_ms)
    engine.advance(engine.now_ms + 3_600_000)
    assert all(detail(engine, spec.id).state == "finished" for spec in specs)
    check_state(engine.state)


# -- words ------------------------------------------------------------------------------------------------------------


def test_the_reason_names_the_best_domain_and_a_change_that_was_tried() -> None:
    nodes = grid(2)
    engine = start(nodes, gang("a", 2, required="rack"), gang("b", 1, required="rack"))
    # Both are in one rack, which has one node left; take one off the other rack.
    busy = places(engine, "a")[0].split("-")[0]
    other = "n1" if busy == "n0" else "n0"
    engine.command(Cordon(ids=(f"{other}-3",)))
    engine.command(Submit(workloads=(gang("g", 4, required="rack"),)))
    reason = detail(engine, "g").reasons[0]
    assert reason.token == "NoDomainFits"
    rack = "r" + other[1:]
    assert reason.text == (
        f"no rack has room for 4 tasks of 8 CPU + 8 GPU at once: the best, {rack}, has 3; the cell has 4"
    )
    assert reason.unblock == f"room for 1 task more in rack {rack}"
    found = verified(engine, "g").found
    assert found is not None
    assert found.kind == "uncordon"
    engine.command(Uncordon(ids=(f"{other}-3",)))
    assert detail(engine, "g").state == "running"


def test_without_cordoned_nodes_a_move_is_offered_before_a_smaller_wish() -> None:
    nodes = grid(2)
    engine = start(nodes, gang("a", 1, required="rack", estimate_ms=0), gang("b", 4, required="rack"))
    engine.command(Cancel(ids=("b",)))
    engine.command(Submit(workloads=(gang("c", 2, required="rack", estimate_ms=0),)))
    engine.command(Submit(workloads=(gang("d", 3, required="rack", estimate_ms=0),)))
    engine.command(Submit(workloads=(gang("e", 2, required="rack"),)))
    view = detail(engine, "e")
    assert view.state == "queued"
    assert view.reasons[0].token == "NoDomainFits"
    found = verified(engine, "e").found
    assert found is not None
    assert found.kind == "consolidate"


def test_the_level_preferred_instead_of_required_is_tried_where_nothing_can_be_moved() -> None:
    nodes = grid(2)
    engine = start(nodes, gang("a", 3, required="rack", estimate_ms=0), gang("b", 3, required="rack", estimate_ms=0))
    engine.command(Submit(workloads=(gang("e", 2, required="rack"),)))
    assert detail(engine, "e").reasons[0].text.startswith("no rack has room for 2 tasks of 8 CPU + 8 GPU at once")
    found = verified(engine, "e").found
    assert found is not None
    assert found.kind == "topology"
    assert found.text == "e is submitted again with its rack preferred instead of required"


# -- the same again ---------------------------------------------------------------------------------------------------


def test_a_restart_decides_alike(tmp_path) -> None:
    rng = random.Random(5)
    nodes = grid(6, per_rack=3)
    engines = [Engine.open(tmp_path / "one.db", cell=cell(nodes)), Engine.open(tmp_path / "two.db", cell=cell(nodes))]
    for i in range(30):
        level = rng.choice(["rack", "block"])
        spec = gang(f"w{i}", rng.randrange(1, 4), required=level, preferred=rng.choice([None, "rack"]))
        turn = rng.randrange(30_000)
        for engine in engines:
            engine.command(Submit(workloads=(spec,)))
            if i == 7:
                engine.command(Drain(ids=("n0-0",)))
            engine.advance(engine.now_ms + turn)
        if i % 5 == 4:
            engines[1].close()
            engines[1] = Engine.open(tmp_path / "two.db", use_snapshot=i % 2 == 0)
            engines[1].advance(engines[0].now_ms)
        assert engines[0].state.digest() == engines[1].state.digest()
    fork = engines[0].fork()
    spec = gang("last", 3, required="rack")
    for engine in (fork, *engines):
        engine.command(Submit(workloads=(spec,)))
    assert places(fork, "last") == places(engines[0], "last") == places(engines[1], "last")
    for engine in engines:
        engine.close()
