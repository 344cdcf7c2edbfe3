"""Labels, taints, bonds between workloads, and spread: in every way in which work gets to a node."""

from __future__ import annotations

import pytest
from invariants import check_state

from engine.control import Engine
from engine.model.commands import AddNodes, Cancel, Define, Submit
from engine.model.errors import SpecError
from engine.model.specs import (
    Affinity,
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    Settings,
    Spread,
    Taint,
    TaskGroup,
    Toleration,
    WorkloadSpec,
)

CPU = PoolSpec(name="cpu", capacity=Resources(cpu_milli=4000, memory_mib=16_000))


def cell(*nodes: NodeSpec, pools: tuple[PoolSpec, ...] = (CPU,), **settings) -> CellSpec:
    return CellSpec(
        name="c",
        pools=pools,
        nodes=nodes,
        queues=(QueueSpec(name="q"),),
        priority_classes=(
            PriorityClassSpec(name="normal", value=0),
            PriorityClassSpec(name="high", value=10, preemption="lower"),
        ),
        settings=Settings(preempt_after_ms=0, **settings),
    )


def node(name: str, labels: dict[str, str] | None = None, taints: tuple[Taint, ...] = (), **place: str) -> NodeSpec:
    return NodeSpec(id=name, pool=place.pop("pool", "cpu"), labels=labels or {}, taints=taints, **place)


def work(name: str, count: int = 1, cpu: int = 1000, estimate: int = 60_000, **given) -> WorkloadSpec:
    group = {
        field: given.pop(field)
        for field in ("node_labels", "avoid_labels", "tolerations", "spread", "gpu_memory_mib", "min_count")
        if field in given
    }
    request = given.pop("request", Resources(cpu_milli=cpu))
    return WorkloadSpec(
        id=name,
        queue="q",
        groups=(TaskGroup(count=count, request=request, **group),),
        estimate_ms=estimate,
        simulated_runtime_ms=estimate,
        **given,
    )


def run(spec: CellSpec, *workloads: WorkloadSpec, policy: str = "easy") -> Engine:
    engine = Engine.open(None, cell=spec)
    engine.state.policy = policy
    for each in workloads:
        engine.command(Submit(workloads=(each,)))
    check_state(engine.state)
    return engine


def nodes_of(engine: Engine, name: str) -> dict[str, int]:
    """Node -> tasks."""
    found: dict[str, int] = {}
    for place in engine.workload(name).placement:
        found[place.node] = found.get(place.node, 0) + place.tasks
    return found


def why(engine: Engine, name: str) -> str:
    return "; ".join(reason.text for reason in engine.workload(name).reasons)


def refused(engine: Engine, spec: WorkloadSpec) -> SpecError:
    before = engine.state.digest()
    with pytest.raises(SpecError) as caught:
        engine.command(Submit(workloads=(spec,)))
    assert engine.state.digest() == before
    return caught.value


# -- labels -----------------------------------------------------------------------------------------------------------


def test_work_goes_only_where_the_labels_it_asks_for_are():
    nodes = [
        node("n0"),
        node("n1", {"disk": "ssd"}),
        node("n2", {"disk": "hdd"}),
        node("n3", {"disk": "ssd", "os": "x"}),
    ]
    engine = run(
        cell(*nodes),
        work("ssd", count=8, node_labels={"disk": ("ssd",)}),
        work("any", node_labels={"disk": ("*",)}),
        work("none", count=4, avoid_labels={"disk": ("*",)}),
        work("one-of", node_labels={"disk": ("ssd", "hdd")}),
        work("more", node_labels={"disk": ("ssd",)}),
    )
    assert nodes_of(engine, "ssd") == {"n1": 4, "n3": 4}
    assert nodes_of(engine, "any") == {"n2": 1}
    assert nodes_of(engine, "none") == {"n0": 4}
    assert nodes_of(engine, "one-of") == {"n2": 1}
    assert engine.workload("more").state == "queued"


def test_a_pool_s_labels_are_those_of_its_nodes_unless_they_have_their_own():
    pool = PoolSpec(name="cpu", capacity=CPU.capacity, labels={"gen": "old", "disk": "hdd"})
    engine = run(cell(node("n0"), node("n1", {"gen": "new"}), pools=(pool,)), work("w", node_labels={"gen": ("new",)}))
    assert nodes_of(engine, "w") == {"n1": 1}
    assert engine.node("n1").labels == {"gen": "new", "disk": "hdd"}


def test_where_a_node_is_counts_as_a_label():
    nodes = [node(f"n{i}", zone=f"z{i % 2}", rack=f"r{i}") for i in range(4)]
    engine = run(
        cell(*nodes),
        work("zone", count=8, node_labels={"zone": ("z1",)}),
        work("rack", node_labels={"rack": ("r2",)}),
        work("node", node_labels={"node": ("n0",)}),
    )
    assert nodes_of(engine, "zone") == {"n1": 4, "n3": 4}
    assert nodes_of(engine, "rack") == {"n2": 1}
    assert nodes_of(engine, "node") == {"n0": 1}


def test_a_label_with_a_value_for_every_node_is_matched_node_by_node():
    nodes = [node(f"n{i}", {"host": f"h{i}"}) for i in range(600)]
    engine = run(
        cell(*nodes),
        work("one", node_labels={"host": ("h577",)}),
        work("two", count=8, node_labels={"host": ("h3", "h599")}),
        work("others", avoid_labels={"host": ("h0", "h1")}),
        work("full", node_labels={"host": ("h3",)}),
    )
    assert len(engine.state.capacity.partitions) == 1
    assert nodes_of(engine, "one") == {"n577": 1}
    assert nodes_of(engine, "two") == {"n3": 4, "n599": 4}
    assert nodes_of(engine, "others").keys() == {"n577"} or nodes_of(engine, "others").keys() == {"n2"}
    assert engine.workload("full").state == "queued"


def test_labels_that_come_with_later_nodes_or_requests_divide_the_cell_then():
    engine = run(cell(node("n0", {"a": "1"}), node("n1", {"a": "2"})), work("first", node_labels={"a": ("2",)}))
    assert len(engine.state.capacity.partitions) == 2
    engine.command(AddNodes(nodes=(node("n2", {"a": "3"}), node("n3", {"b": "x"}))))
    engine.command(Submit(workloads=(work("third", node_labels={"a": ("3",)}), work("b", node_labels={"b": ("x",)}))))
    assert (nodes_of(engine, "third"), nodes_of(engine, "b")) == ({"n2": 1}, {"n3": 1})
    check_state(engine.state)


# -- taints -----------------------------------------------------------------------------------------------------------


def test_a_taint_keeps_away_who_does_not_tolerate_it():
    nodes = [node("n0", taints=(Taint(key="dedicated", value="db"),)), node("n1")]
    engine = run(
        cell(*nodes),
        work("plain", count=4),
        work("db", count=4, tolerations=(Toleration(key="dedicated", value="db"),)),
        work("waits"),
        work("wrong", tolerations=(Toleration(key="dedicated", value="web"),)),
    )
    assert nodes_of(engine, "plain") == {"n1": 4}
    assert nodes_of(engine, "db") == {"n0": 4}
    assert engine.workload("waits").state == engine.workload("wrong").state == "queued"


def test_a_toleration_without_a_value_tolerates_every_value():
    nodes = [node("n0", taints=(Taint(key="t", value="a"), Taint(key="t", value="b")))]
    engine = run(cell(*nodes), work("w", tolerations=(Toleration(key="t"),)))
    assert nodes_of(engine, "w") == {"n0": 1}


def test_nodes_that_are_better_avoided_come_last():
    nodes = [node("n0", taints=(Taint(key="old", effect="PreferNoSchedule"),)), node("n1")]
    engine = run(cell(*nodes), work("w", count=6), work("old", tolerations=(Toleration(key="old"),)))
    assert nodes_of(engine, "w") == {"n1": 4, "n0": 2}


# -- bonds ------------------------------------------------------------------------------------------------------------

WEB = Affinity(tags={"app": "web"})


def test_replicas_that_keep_apart_get_a_node_each():
    nodes = [node(f"n{i}") for i in range(3)]
    replicas = [work(f"web-{i}", tags={"app": "web"}, apart=(WEB,)) for i in range(4)]
    engine = run(cell(*nodes), *replicas)
    placed = [*nodes_of(engine, "web-0"), *nodes_of(engine, "web-1"), *nodes_of(engine, "web-2")]
    assert sorted(placed) == ["n0", "n1", "n2"]
    assert engine.workload("web-3").state == "queued"
    engine.command(Cancel(ids=("web-1",)))
    assert nodes_of(engine, "web-3").keys() == {placed[1]}


def test_keeping_apart_holds_for_those_who_come_later_and_do_not_ask_for_it():
    racks = [node(f"n{i}", rack=f"r{i // 2}") for i in range(4)]
    shy = work("shy", apart=(Affinity(tags={"kind": "noisy"}, level="rack"),))
    engine = run(
        cell(*racks), shy, work("noisy", count=8, tags={"kind": "noisy"}), work("noisy-2", tags={"kind": "noisy"})
    )
    assert nodes_of(engine, "shy").keys() <= {"n0", "n1"}
    assert nodes_of(engine, "noisy") == {"n2": 4, "n3": 4}
    assert engine.workload("noisy-2").state == "queued"
    assert "shy" in why(engine, "noisy-2")
    engine.command(Cancel(ids=("shy",)))
    assert engine.workload("noisy-2").state == "running"


def test_what_waits_already_is_kept_apart_too():
    """The tags of work that was submitted before count as soon as somebody keeps apart from them."""
    engine = run(
        cell(node("n0"), node("n1")),
        work("fills", count=8),
        work("noisy", count=2, tags={"kind": "noisy"}),
        work("shy", count=1, apart=(Affinity(tags={"kind": "noisy"}),)),
    )
    assert engine.workload("noisy").state == "queued"
    engine.command(Cancel(ids=("fills",)))
    assert not nodes_of(engine, "noisy").keys() & nodes_of(engine, "shy").keys()
    assert nodes_of(engine, "noisy")
    assert nodes_of(engine, "shy")


def test_work_goes_near_other_work_and_anywhere_before_there_is_any():
    racks = [node(f"n{i}", rack=f"r{i}") for i in range(3)]
    near = (Affinity(tags={"app": "db"}, level="rack"),)
    engine = run(
        cell(*racks),
        work("early", near=near),
        work("fills", count=3, node_labels={"rack": ("r0",)}),
        work("db", tags={"app": "db"}, node_labels={"rack": ("r2",)}),
        work("late", count=3, near=near),
        work("too-many", near=near),
    )
    assert nodes_of(engine, "early") == {"n0": 1}
    assert nodes_of(engine, "late") == {"n2": 3}
    assert engine.workload("too-many").state == "queued"


def test_what_waits_for_company_starts_when_it_comes():
    racks = [node(f"n{i}", rack=f"r{i}") for i in range(2)]
    near = (Affinity(tags={"app": "db"}, level="rack"),)
    engine = run(
        cell(*racks),
        work("db", count=4, tags={"app": "db"}, node_labels={"rack": ("r0",)}),
        work("guest", near=near),
    )
    assert engine.workload("guest").state == "queued"
    engine.command(Submit(workloads=(work("db-2", tags={"app": "db"}),)))
    assert nodes_of(engine, "guest") == {"n1": 1}


def test_an_elastic_workload_may_grow_where_only_its_own_tasks_are():
    nodes = [node("n0"), node("n1")]
    grows = work("web", count=6, min_count=2, elastic=True, tags={"app": "web"}, apart=(WEB,))
    engine = run(cell(*nodes), work("fills", count=6, estimate=1000), grows)
    engine.advance(5000)
    assert sum(nodes_of(engine, "web").values()) == 6
    check_state(engine.state)


def test_a_preemptor_takes_the_place_of_whom_it_keeps_apart_from():
    engine = run(
        cell(node("n0")),
        work("noisy", count=2, tags={"kind": "noisy"}, estimate=3_600_000),
        work("shy", count=4, priority_class="high", apart=(Affinity(tags={"kind": "noisy"}),)),
    )
    assert nodes_of(engine, "shy") == {"n0": 4}
    assert engine.workload("noisy").state == "queued"


def test_labels_and_bonds_survive_a_restart(tmp_path):
    nodes = [node(f"n{i}", {"a": str(i % 2)}, rack=f"r{i // 2}") for i in range(6)]
    first = (
        work("a", count=2, tags={"app": "web"}, apart=(Affinity(tags={"app": "web"}, level="rack"),)),
        work("b", tags={"app": "web"}, node_labels={"a": ("1",)}),
        work("c", tags={"app": "web"}),
    )
    later = (work("d", tags={"app": "web"}), work("e", count=3, near=(WEB,)), work("f", apart=(WEB,)))
    path = tmp_path / "journal.db"
    engine = Engine.open(path, cell=cell(*nodes), snapshot_every=5)
    for each in first:
        engine.command(Submit(workloads=(each,)))
    twin = engine.fork()
    twin.command(Submit(workloads=later))
    engine.close()
    for use_snapshot in (True, False):
        copy = tmp_path / f"{use_snapshot}.db"
        copy.write_bytes(path.read_bytes())
        again = Engine.open(copy, use_snapshot=use_snapshot)
        again.command(Submit(workloads=later))
        assert again.state.digest() == twin.state.digest()
        check_state(again.state)
        again.close()


# -- spread -----------------------------------------------------------------------------------------------------------


def test_tasks_are_spread_evenly_over_zones():
    nodes = [node(f"n{i}", zone=f"z{i % 3}") for i in range(9)]
    engine = run(cell(*nodes), work("w", count=8, spread=Spread(level="zone")))
    zones: dict[str, int] = {}
    for name, tasks in nodes_of(engine, "w").items():
        zones[engine.node(name).zone] = zones.get(engine.node(name).zone, 0) + tasks
    assert sorted(zones.values()) == [2, 3, 3]


def test_a_greater_skew_lets_tasks_pack_closer():
    nodes = [node(f"n{i}", zone=f"z{i}") for i in range(3)]
    even, loose = (run(cell(*nodes), work("w", count=4, spread=Spread(level="zone", max_skew=skew))) for skew in (1, 3))
    assert sorted(nodes_of(even, "w").values()) == [1, 1, 2]
    assert sorted(nodes_of(loose, "w").values()) == [1, 3]


def test_a_full_domain_does_not_hold_up_the_others():
    nodes = [node("n0", zone="z0"), node("n1", zone="z1")]
    engine = run(
        cell(*nodes),
        work("fills", count=3, node_labels={"zone": ("z0",)}),
        work("w", count=5, spread=Spread(level="zone")),
    )
    assert nodes_of(engine, "w") == {"n0": 1, "n1": 4}


@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_spread_holds_with_a_plan_too(policy):
    nodes = [node(f"n{i}", zone=f"z{i}") for i in range(4)]
    engine = run(cell(*nodes), work("x", count=2), work("w", count=6, spread=Spread(level="zone")), policy=policy)
    assert max(nodes_of(engine, "w").values()) - min(nodes_of(engine, "w").values()) <= 1
    assert len(nodes_of(engine, "w")) == 4


# -- device memory ----------------------------------------------------------------------------------------------------


def gpus(name: str, model: str, memory: int = 0) -> PoolSpec:
    return PoolSpec(
        name=name, capacity=Resources(cpu_milli=8000, gpu_milli=1000), gpu_model=model, gpu_memory_mib=memory
    )


ONE_GPU = Resources(gpu_milli=1000)


def test_device_memory_is_known_by_the_model_or_by_the_pool():
    pools = (gpus("old", "V100"), gpus("new", "A100-80GB"), gpus("own", "X9", 200_000))
    nodes = [node(f"{pool.name}-{i}", pool=pool.name) for pool in pools for i in range(2)]
    engine = run(
        cell(*nodes, pools=pools),
        work("large", count=4, request=ONE_GPU, gpu_memory_mib=80 * 1024),
        work("huge", request=ONE_GPU, gpu_memory_mib=150_000),
    )
    assert nodes_of(engine, "large").keys() == {"new-0", "new-1", "own-0", "own-1"}
    assert engine.workload("huge").state == "queued"


# -- refused at the door ----------------------------------------------------------------------------------------------


def test_what_no_node_could_ever_do_is_refused_with_what_there_is():
    pools = (CPU, gpus("g", "H100"), gpus("odd", "X9"))
    nodes = [
        node("n0", {"disk": "ssd"}),
        node("n1", {"gen": "new"}, (Taint(key="dedicated", value="db"),)),
        node("g0", pool="g"),
        node("o0", pool="odd"),
    ]
    engine = run(cell(*nodes, pools=pools))
    error = refused(engine, work("x", node_labels={"disk": ("sdd",)}))
    assert error.where == "workload.groups[0].node_labels.disk"
    assert "Did you mean ssd?" in error.remedy
    error = refused(engine, work("x", node_labels={"disc": ("ssd",)}))
    assert "Did you mean disk?" in error.remedy
    error = refused(engine, work("x", node_labels={"gen": ("new",)}))
    assert error.where == "workload.groups[0].tolerations"
    assert "dedicated=db" in error.problem
    error = refused(engine, work("x", node_labels={"disk": ("ssd",), "gen": ("new",)}))
    assert "together" in error.problem
    error = refused(engine, work("x", request=ONE_GPU, gpu_memory_mib=90_000))
    assert "81920" in error.problem
    assert "'odd'" in error.remedy
    spec = work("x", request=ONE_GPU)
    wrong = TaskGroup(request=ONE_GPU, gpu_models=("H10O",))
    error = refused(engine, WorkloadSpec(id="x", queue="q", groups=(wrong,), estimate_ms=spec.estimate_ms))
    assert error.where == "workload.groups[0].gpu_models"
    assert "Did you mean H100?" in error.remedy


def test_a_gang_larger_than_the_nodes_with_its_labels_is_refused():
    engine = run(cell(node("n0", {"a": "1"}), node("n1")))
    error = refused(engine, work("x", count=5, node_labels={"a": ("1",)}))
    assert "room for 4" in error.problem


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"node_labels": {"a b": ("x",)}}, "workload.groups[0].node_labels"),
        ({"node_labels": {"a": ()}}, "workload.groups[0].node_labels.a"),
        ({"node_labels": {"a": ("\x1b[2J",)}}, "workload.groups[0].node_labels.a"),
        ({"node_labels": {"a": ("x",)}, "avoid_labels": {"a": ("x",)}}, "workload.groups[0].avoid_labels.a"),
        ({"tolerations": (Toleration(key=""),)}, "workload.groups[0].tolerations[0].key"),
        ({"spread": Spread(level="zone", max_skew=0)}, "workload.groups[0].spread.max_skew"),
        ({"gpu_memory_mib": 1}, "workload.groups[0].gpu_memory_mib"),
        ({"near": (Affinity(tags={}),)}, "workload.near[0].tags"),
        ({"near": (WEB,), "apart": (WEB,)}, "workload.apart"),
        ({"data": ("",)}, "workload.data[0]"),
    ],
)
def test_malformed_constraints_are_named(given, where):
    engine = run(cell(node("n0", {"a": "x"})))
    assert refused(engine, work("x", **given)).where == where


def test_malformed_nodes_are_named():
    twice = Taint(key="t")
    for nodes, where, words in (
        ((node("n0", {"": "x"}),), "nodes[0].labels", "not a valid id"),
        ((node("n0", taints=(twice, twice)),), "nodes[0].taints[1]", "twice"),
        ((node("n0", rack="r", block="b0"), node("n1", rack="r", block="b1")), "nodes[1].rack", "'b1'"),
        ((node("n0", rack="r", zone="z0"), node("n1", rack="r", zone="z1", block="b")), "nodes[1].rack", "'z0'"),
    ):
        engine = Engine.open(None)
        with pytest.raises(SpecError) as caught:
            engine.command(Define(cell=cell(*nodes)))
        assert caught.value.where == where
        assert words in caught.value.problem
        assert not engine.state.capacity.node_ids


def test_a_rack_that_is_there_already_is_in_one_block_only():
    engine = run(cell(node("n0", rack="r", block="b0")))
    with pytest.raises(SpecError, match="in block 'b0' elsewhere"):
        engine.command(AddNodes(nodes=(node("n1", rack="r", block="b1"),)))
    engine.command(AddNodes(nodes=(node("n2", rack="r", block="b0"), node("n3", rack="r"))))
    assert engine.node("n3").block == "b0", "as the others of its rack"


def test_what_one_node_tells_of_a_place_holds_for_all_in_it():
    nodes = (node("n0", rack="r"), node("n1", rack="r", block="b"), node("n2", block="b", zone="z"), node("n3"))
    engine = run(cell(*nodes))
    assert [(engine.node(n.id).zone, engine.node(n.id).block) for n in nodes] == [
        ("z", "b"),
        ("z", "b"),
        ("z", "b"),
        ("", ""),
    ]
    with pytest.raises(SpecError, match="block 'b' is in zone 'y' here, but in zone 'z' elsewhere"):
        run(cell(node("n9", rack="s", zone="y"), *nodes[1:], node("n8", rack="s", block="b")))


def test_nodes_that_are_there_are_not_moved_by_what_new_ones_tell():
    engine = run(cell(node("n0", rack="r")))
    with pytest.raises(SpecError, match="not known in which block") as caught:
        engine.command(AddNodes(nodes=(node("n1", rack="r", block="b"),)))
    assert caught.value.where == "nodes[0].block"
    engine.command(AddNodes(nodes=(node("n2", rack="r"), node("n3", rack="s", block="b"))))
