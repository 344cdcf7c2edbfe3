"""Bad input at the door: the right kind of error, the field or id at fault, a remedy, and nothing changed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from cells import small_cell, submit, workload

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.errors import MusterError, NotFoundError, RefusedError, SpecError
from engine.model.specs import (
    MAX_QUANTITY,
    MAX_TASKS,
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    TaskGroup,
    WorkloadSpec,
)

ESCAPE = "\x1b[2Jx"


@pytest.fixture
def engine() -> Engine:
    """4 nodes of 8 GPUs, 2 of 32 CPUs; queue a may use 12 GPUs; one workload of each state people can meet."""
    engine = Engine.open(None, cell=small_cell(4, 2, {"gpu_milli": 12_000}))
    engine.command(submit(workload("done", run=1)))
    engine.advance(1)
    engine.command(submit(workload("running", gpu=8000), workload("held", held=True)))
    engine.command(submit(workload("waiting", gpu=8000)))
    return engine


def refused(engine: Engine, command: cmd.AnyCommand, kind: type[MusterError]) -> MusterError:
    """The error of exactly this kind, with a remedy, after making sure that nothing changed."""
    before = (engine.version, engine.now_ms, engine.state.digest())
    with pytest.raises(kind) as raised:
        engine.command(command)
    assert type(raised.value) is kind
    assert raised.value.remedy
    assert (engine.version, engine.now_ms, engine.state.digest()) == before
    return raised.value


def malformed(engine: Engine, command: cmd.AnyCommand) -> SpecError:
    error = refused(engine, command, SpecError)
    assert isinstance(error, SpecError)
    return error


def gang(*groups: TaskGroup, name: str = "x") -> cmd.Submit:
    return submit(WorkloadSpec(id=name, queue="b", groups=groups))


def group(name: str = "main", count: int = 1, **request: int) -> TaskGroup:
    return TaskGroup(name=name, count=count, request=Resources(**request))


# -- what does not even decode --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ('{"do":"submit","workloads":[{"id":"x","queue":"a","groups":[],"colour":"red"}]}', "colour"),
        ('{"do":"submit","workloads":[{"id":"x","queue":"a","groups":[{"request":{"cores":4}}]}]}', "request"),
        ('{"do":"submit","workloads":[{"id":"x","queue":"a","groups":[{"request":{"cpu_milli":"4"}}]}]}', "cpu_milli"),
        ('{"do":"submit","workloads":[{"id":"x","queue":"a","groups":[{"request":{"cpu_milli":1.5}}]}]}', "cpu_milli"),
        ('{"do":"submit","workloads":[{"id":"x","queue":"a","groups":[{"request":{"cpu_milli":true}}]}]}', "cpu_milli"),
        ('{"do":"submit","workloads":[{"queue":"a","groups":[]}]}', "id"),
        ('{"do":"submit","workloads":null}', "workloads"),
        ('{"do":"cancel","ids":["a"],"force":true}', "force"),
        ('{"do":"cancel","ids":"a"}', "ids"),
        ('{"do":"set_policy","policy":"lifo"}', "lifo"),
        ('{"do":"reboot","ids":["a"]}', "reboot"),
        ('{"ids":["a"]}', "do"),
    ],
)
def test_what_is_no_command_does_not_decode(text: str, at: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=at):
        msgspec.json.decode(text, type=cmd.AnyCommand)
    with pytest.raises(msgspec.ValidationError, match=at):
        msgspec.convert(msgspec.json.decode(text), type=cmd.AnyCommand)


def test_every_command_survives_the_wire() -> None:
    ids = ("a", "b")
    everything: Sequence[cmd.AnyCommand] = (
        cmd.Define(cell=small_cell()),
        cmd.AddPools(pools=small_cell().pools),
        cmd.AddNodes(nodes=small_cell().nodes),
        cmd.AddQueues(queues=small_cell().queues),
        cmd.AddPriorityClasses(priority_classes=small_cell().priority_classes),
        submit(workload("x", gpu=500, models=("H100",), pools=("gpu",), tenant="acme", held=True, checkpoint=5)),
        *(kind(ids=ids) for kind in (cmd.Cancel, cmd.Hold, cmd.Release, cmd.Requeue)),
        *(kind(ids=ids) for kind in (cmd.Cordon, cmd.Uncordon, cmd.Drain)),
        cmd.SetPolicy(policy="fcfs"),
    )
    for command in everything:
        assert msgspec.json.decode(msgspec.json.encode(command), type=cmd.AnyCommand) == command


# -- submissions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"id": ""}, "workload.id"),
        ({"id": "has space"}, "workload.id"),
        ({"id": "-dash-first"}, "workload.id"),
        ({"id": "line\n"}, "workload.id"),
        ({"id": ESCAPE}, "workload.id"),
        ({"id": "x" * 129}, "workload.id"),
        ({"id": "größe"}, "workload.id"),
        ({"name": "n" * 1025}, "workload.name"),
        ({"tenant": ESCAPE}, "workload.tenant"),
        ({"team": "a b"}, "workload.team"),
        ({"queue": ""}, "workload.queue"),
        ({"queue": ESCAPE}, "workload.queue"),
        ({"priority_class": ESCAPE}, "workload.priority_class"),
        ({"estimate_ms": -1}, "workload.estimate_ms"),
        ({"checkpoint_interval_ms": -1}, "workload.checkpoint_interval_ms"),
        ({"simulated_runtime_ms": MAX_QUANTITY + 1}, "workload.simulated_runtime_ms"),
        ({"groups": ()}, "workload.groups"),
        ({"groups": (group(),)}, "workload.groups[0].request"),
        ({"groups": (group(count=0, cpu_milli=1),)}, "workload.groups[0].count"),
        ({"groups": (group(count=-3, cpu_milli=1),)}, "workload.groups[0].count"),
        ({"groups": (group(count=MAX_TASKS + 1, cpu_milli=1),)}, "workload.groups[0].count"),
        ({"groups": (group(cpu_milli=-1),)}, "workload.groups[0].request.cpu_milli"),
        ({"groups": (group(cpu_milli=1, memory_mib=-1),)}, "workload.groups[0].request.memory_mib"),
        ({"groups": (group(disk_mib=MAX_QUANTITY + 1),)}, "workload.groups[0].request.disk_mib"),
        ({"groups": (group(cpu_milli=10**30),)}, "workload.groups[0].request.cpu_milli"),
        ({"groups": (group(gpu_milli=1500),)}, "workload.groups[0].request.gpu_milli"),
        ({"groups": (group(gpu_milli=1001),)}, "workload.groups[0].request.gpu_milli"),
        ({"groups": (group("a", cpu_milli=1), group("a", cpu_milli=2))}, "workload.groups[1].name"),
        ({"groups": (group("a b", cpu_milli=1),)}, "workload.groups[0].name"),
        ({"groups": (group("a", MAX_TASKS, cpu_milli=1), group("b", cpu_milli=1))}, "workload.groups"),
    ],
)
def test_a_malformed_workload_is_refused_with_the_field_named(engine: Engine, changes, where: str) -> None:
    spec = msgspec.structs.replace(workload("x", queue="b"), **changes)
    error = malformed(engine, submit(spec))
    assert error.where == where
    assert str(error).isprintable(), "an error must not carry what could act on a terminal"


def test_ids_that_are_odd_but_typeable_are_taken(engine: Engine) -> None:
    ids = ("0", "a/b/c", "A.b_c-d", "x" * 128)
    assert engine.command(submit(*(workload(i, queue="b") for i in ids))).changed == ids


def test_an_unknown_queue_is_named(engine: Engine) -> None:
    error = malformed(engine, submit(workload("x", queue="bb")))
    assert error.where == "workload.queue"
    assert "'bb'" in error.problem
    assert "get queues" in error.remedy


def test_an_inner_queue_takes_no_workloads_and_the_remedy_names_its_leaves(engine: Engine) -> None:
    error = malformed(engine, submit(workload("x", queue="root")))
    assert error.where == "workload.queue"
    assert "a, b" in error.remedy


def test_an_unknown_priority_class_is_refused_with_the_known_ones(engine: Engine) -> None:
    error = malformed(engine, submit(workload("x", priority="urgent")))
    assert error.where == "workload.priority_class"
    assert "high, low, normal" in error.remedy


def test_an_unknown_pool_is_refused_with_the_known_ones(engine: Engine) -> None:
    error = malformed(engine, submit(workload("x", pools=("tpu",))))
    assert error.where == "workload.groups[0].pools"
    assert "gpu, cpu" in error.remedy


def test_a_task_larger_than_any_node_is_refused_with_what_the_largest_has(engine: Engine) -> None:
    error = malformed(engine, submit(workload("x", queue="b", cpu=65_000)))
    assert error.where == "workload.groups[0].request"
    assert "A task asks for 65 CPU; the largest node has 64 CPU" in error.remedy


def test_a_task_that_fits_no_single_node_though_each_quantity_exists_somewhere(engine: Engine) -> None:
    """More CPU than a CPU node has, in the pool of CPU nodes."""
    error = malformed(engine, submit(workload("x", queue="b", cpu=33_000, pools=("cpu",))))
    assert error.where == "workload.groups[0].request"
    assert "A task asks for 33 CPU; the largest node of pool cpu has 32 CPU" in error.remedy


def test_a_task_for_a_capacity_type_that_no_pool_has_is_told_so(engine: Engine) -> None:
    spec = workload("x", queue="b")
    group = msgspec.structs.replace(spec.groups[0], capacity_type="spot")
    error = malformed(engine, submit(msgspec.structs.replace(spec, groups=(group,))))
    assert "asks for spot nodes, and there are none" in error.remedy


def test_a_device_model_that_is_nowhere_is_refused_with_those_there_are(engine: Engine) -> None:
    error = malformed(engine, submit(workload("x", queue="b", gpu=1000, models=("B200",))))
    assert error.where == "workload.groups[0].gpu_models"
    assert "B200" in error.problem
    assert "H100" in error.remedy


@pytest.mark.parametrize(
    ("request_", "most"),
    [
        ({"gpu_milli": 8000}, 4),
        ({"gpu_milli": 3000}, 8),  # two to a node, two devices of each left over
        ({"gpu_milli": 400}, 64),  # two to a device
        ({"cpu_milli": 33_000}, 4),
        ({"cpu_milli": 32_000}, 10),
        ({"memory_mib": 128_000}, 18),
        ({"disk_mib": 60_000}, 4),
    ],
)
def test_the_largest_gang_taken_is_what_the_empty_cell_holds(
    engine: Engine, request_: dict[str, int], most: int
) -> None:
    error = malformed(engine, gang(group(count=most + 1, **request_)))
    assert error.where == "workload.groups[0].count"
    assert f"room for {most} when empty" in error.problem
    engine.command(gang(group(count=most, **request_)))
    empty = Engine.open(None, cell=small_cell(4, 2))
    empty.command(gang(group(count=most, **request_)))
    assert empty.workload("x").state == "running", "what is taken must be able to start in an empty cell"


def test_groups_that_fit_alone_but_ask_for_more_than_the_cell_together_are_refused(engine: Engine) -> None:
    error = malformed(engine, gang(group("a", 3, gpu_milli=8000), group("b", 2, gpu_milli=8000)))
    assert error.where == "workload.groups"
    assert "40000" in error.problem
    assert "32000" in error.problem


def test_a_workload_larger_than_the_nominal_quota_is_refused_with_both_numbers(engine: Engine) -> None:
    error = malformed(engine, submit(workload("x", queue="a", count=13, gpu=1000)))
    assert error.where == "workload.groups"
    assert "13000 gpu_milli" in error.problem
    assert "12000" in error.problem
    assert "'a'" in error.problem
    engine.command(submit(workload("x", queue="a", count=12, gpu=1000)))


def test_a_quota_above_the_queue_is_named_when_it_is_the_one_in_the_way() -> None:
    cell = small_cell(4, 2)
    queues = (QueueSpec(name="top", nominal={"cpu_milli": 5000}), QueueSpec(name="leaf", parent="top"))
    engine = Engine.open(None, cell=msgspec.structs.replace(cell, queues=queues))
    error = malformed(engine, submit(workload("x", queue="leaf", cpu=6000)))
    assert "'top'" in error.problem


def test_an_id_that_is_there_is_refused_whatever_became_of_it(engine: Engine) -> None:
    for name in ("done", "running", "held", "waiting"):
        error = malformed(engine, submit(workload(name, queue="b")))
        assert error.where == "workload.id"
        assert f"'{name}' already exists" in error.problem


def test_an_id_given_twice_in_one_submission_is_refused(engine: Engine) -> None:
    error = malformed(engine, submit(workload("x", queue="b"), workload("y", queue="b"), workload("x", queue="b")))
    assert error.where == "workloads[2].id"


@pytest.mark.parametrize(
    "bad",
    [
        workload("bad", queue="nowhere"),
        workload("bad", queue="b", cpu=-1),
        workload("bad", queue="b", cpu=10**9),
        workload("waiting", queue="b"),
    ],
)
def test_one_bad_workload_among_good_ones_refuses_them_all(engine: Engine, bad: WorkloadSpec) -> None:
    error = malformed(engine, submit(workload("x", queue="b"), bad, workload("y", queue="b")))
    assert error.where.startswith("workloads[1].")
    with pytest.raises(NotFoundError):
        engine.workload("x")
    engine.command(submit(workload("x", queue="b"), workload("y", queue="b")))


def test_each_of_several_commands_is_answered_on_its_own(engine: Engine) -> None:
    """A later one sees what an earlier one did; a refused one leaves no trace."""
    answers = engine.commands(
        [
            submit(workload("x", queue="b")),
            submit(workload("x", queue="b")),
            cmd.Cancel(ids=("nobody",)),
            cmd.Cancel(ids=("x",)),
            cmd.Cancel(ids=("x",)),
            submit(workload("y", queue="b")),
        ]
    )
    kinds = [cmd.Receipt, SpecError, NotFoundError, cmd.Receipt, RefusedError, cmd.Receipt]
    assert [type(answer) for answer in answers] == kinds
    assert [answer.changed for answer in answers if isinstance(answer, cmd.Receipt)] == [("x",), ("x",), ("y",)]
    assert {answer.version for answer in answers if isinstance(answer, cmd.Receipt)} == {engine.version}
    assert engine.workload("x").state == "cancelled"
    assert engine.workload("y").state == "running"


def test_when_all_of_several_commands_are_refused_nothing_changes(engine: Engine) -> None:
    before = engine.version, engine.state.digest()
    answers = engine.commands([cmd.Cancel(ids=("nobody",)), submit(workload("x", queue="nowhere"))])
    assert [type(answer) for answer in answers] == [NotFoundError, SpecError]
    assert (engine.version, engine.state.digest()) == before


# -- actions on workloads ---------------------------------------------------------------------------------------------

ON_WORKLOADS = (cmd.Cancel, cmd.Hold, cmd.Release, cmd.Requeue)
ON_NODES = (cmd.Cordon, cmd.Uncordon, cmd.Drain)


@pytest.mark.parametrize("action", ON_WORKLOADS)
def test_all_unknown_workloads_are_named(engine: Engine, action: type[cmd.Cancel]) -> None:
    error = refused(engine, action(ids=("ghost", "running", "held", "waiting", "spook", ESCAPE)), NotFoundError)
    assert "'ghost'" in error.problem
    assert "'spook'" in error.problem
    assert "'running'" not in error.problem
    assert str(error).isprintable()


@pytest.mark.parametrize("action", ON_NODES)
def test_all_unknown_nodes_are_named(engine: Engine, action: type[cmd.Cordon]) -> None:
    error = refused(engine, action(ids=("g0", "g9", ESCAPE, "c9")), NotFoundError)
    assert "'g9'" in error.problem
    assert "'c9'" in error.problem
    assert "'g0'" not in error.problem
    assert str(error).isprintable()


@pytest.mark.parametrize("action", ON_WORKLOADS + ON_NODES)
def test_an_action_on_nothing_is_malformed(engine: Engine, action: type[cmd.Cancel]) -> None:
    assert malformed(engine, action(ids=())).where == "ids"


@pytest.mark.parametrize(
    ("action", "possible"),
    [
        (cmd.Cancel, {"running", "held", "waiting"}),
        (cmd.Hold, {"waiting"}),
        (cmd.Release, {"held"}),
        (cmd.Requeue, {"running"}),
    ],
)
def test_an_action_in_the_wrong_state_is_refused_and_says_the_state(engine: Engine, action, possible: set[str]) -> None:
    states = {"done": "finished", "running": "running", "held": "held", "waiting": "queued"}
    for name in states.keys() - possible:
        error = refused(engine, action(ids=(name,)), RefusedError)
        assert f"'{name}' is {states[name]}" in error.problem
    for name in possible:
        twin = engine.fork()
        assert twin.command(action(ids=(name,))).changed == (name,)


def test_an_action_on_many_is_all_or_nothing_and_names_every_one_in_the_way(engine: Engine) -> None:
    error = refused(engine, cmd.Hold(ids=("waiting", "done", "held")), RefusedError)
    assert "'done' is finished" in error.problem
    assert "'held' is held" in error.problem
    assert "waiting" not in error.problem
    assert engine.workload("waiting").state == "queued"


def test_an_id_named_twice_is_acted_on_once(engine: Engine) -> None:
    assert engine.command(cmd.Cancel(ids=("waiting", "waiting"))).changed == ("waiting",)
    assert [item.what for item in engine.workload("waiting").history] == ["submitted", "cancelled"]


def test_uncordoning_and_cordoning_what_is_so_already_changes_nothing(engine: Engine) -> None:
    before = engine.state.digest()
    assert engine.command(cmd.Uncordon(ids=("g0", "g0"))).changed == ("g0",)
    assert engine.state.digest() == before
    for command in (cmd.Drain(ids=("g3",)), cmd.Cordon(ids=("g3",))):
        engine.command(command)
        before = engine.state.digest()
        engine.command(command)
        assert engine.state.digest() == before


def test_a_drained_node_that_is_cordoned_is_as_before_the_drain(engine: Engine) -> None:
    engine.command(cmd.Cordon(ids=("g3",)))
    engine.command(cmd.Drain(ids=("g3",)))
    assert engine.node("g3").state == "draining"
    engine.command(cmd.Cordon(ids=("g3",)))
    assert engine.node("g3").state == "cordoned"
    engine.command(cmd.Interrupt(ids=("g3",)))
    assert "the provider reclaims 'g3'" in refused(engine, cmd.Cordon(ids=("g3",)), RefusedError).problem
    assert engine.node("g3").state == "draining"


def test_setting_the_policy_that_is_set_changes_nothing(engine: Engine) -> None:
    before = engine.state.digest()
    engine.command(cmd.SetPolicy(policy="easy"))
    assert engine.state.digest() == before


# -- definitions ----------------------------------------------------------------------------------------------------


def test_defining_twice_is_refused(engine: Engine) -> None:
    assert "already defined" in refused(engine, cmd.Define(cell=small_cell()), RefusedError).problem


def test_defining_a_cell_that_has_only_queues_is_refused_too() -> None:
    engine = Engine.open(None)
    engine.command(cmd.AddQueues(queues=(QueueSpec(name="a"),)))
    refused(engine, cmd.Define(cell=CellSpec()), RefusedError)


def queues(engine: Engine, *specs: QueueSpec) -> SpecError:
    return malformed(engine, cmd.AddQueues(queues=specs))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_cycle_of_queues_is_shown(engine: Engine, size: int) -> None:
    names = [f"q{i}" for i in range(size)]
    ring = [QueueSpec(name=name, parent=names[(i + 1) % size]) for i, name in enumerate(names)]
    error = queues(engine, QueueSpec(name="fine", parent="root"), QueueSpec(name="hangs", parent="q0"), *ring)
    assert error.where == "queues"
    assert "cycle" in error.problem
    assert all(name in error.problem for name in names)
    assert "hangs" not in error.problem


def test_a_cycle_in_a_new_cell_is_refused_and_the_cell_stays_empty() -> None:
    engine = Engine.open(None)
    ring = (QueueSpec(name="p", parent="q"), QueueSpec(name="q", parent="p"))
    malformed(engine, cmd.Define(cell=msgspec.structs.replace(small_cell(), queues=ring)))
    engine.command(cmd.Define(cell=small_cell()))


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        (QueueSpec(name="q", parent="nowhere"), "queues[1].parent"),
        (QueueSpec(name="a"), "queues[1].name"),
        (QueueSpec(name="first"), "queues[1].name"),
        (QueueSpec(name=ESCAPE), "queues[1].name"),
        (QueueSpec(name="q", weight=0), "queues[1].weight"),
        (QueueSpec(name="q", weight=10**9), "queues[1].weight"),
        (QueueSpec(name="q", nominal={"gpus": 4}), "queues[1].nominal"),
        (QueueSpec(name="q", nominal={"gpu_milli": -1}), "queues[1].nominal.gpu_milli"),
        (QueueSpec(name="q", nominal={"gpu_milli": MAX_QUANTITY + 1}), "queues[1].nominal.gpu_milli"),
    ],
)
def test_a_malformed_queue_is_refused_with_the_field_named(engine: Engine, spec: QueueSpec, where: str) -> None:
    assert queues(engine, QueueSpec(name="first"), spec).where == where


def test_a_queue_that_holds_workloads_cannot_become_a_parent(engine: Engine) -> None:
    error = queues(engine, QueueSpec(name="below", parent="a"))
    assert error.where == "queues[0].parent"
    assert "'a' holds workloads" in error.problem
    engine.command(cmd.AddQueues(queues=(QueueSpec(name="below", parent="b"),)))


def test_parents_may_be_given_after_their_children(engine: Engine) -> None:
    chain = (QueueSpec(name="z", parent="y"), QueueSpec(name="y", parent="x"), QueueSpec(name="x", parent="root"))
    assert engine.command(cmd.AddQueues(queues=chain)).changed == ("z", "y", "x")
    engine.command(submit(workload("w", queue="z")))


@pytest.mark.parametrize(
    ("pool", "where"),
    [
        (PoolSpec(name="gpu", capacity=Resources(cpu_milli=1)), "pools[0].name"),
        (PoolSpec(name="p q", capacity=Resources(cpu_milli=1)), "pools[0].name"),
        (PoolSpec(name="p", capacity=Resources(cpu_milli=-1)), "pools[0].capacity.cpu_milli"),
        (PoolSpec(name="p", capacity=Resources(memory_mib=MAX_QUANTITY + 1)), "pools[0].capacity.memory_mib"),
        (PoolSpec(name="p", capacity=Resources(gpu_milli=500)), "pools[0].capacity.gpu_milli"),
        (PoolSpec(name="p", capacity=Resources(gpu_milli=1500)), "pools[0].capacity.gpu_milli"),
        (PoolSpec(name="p", capacity=Resources(gpu_milli=63_000)), "pools[0].capacity.gpu_milli"),
        (PoolSpec(name="p", capacity=Resources(), price_microusd_hour=-5), "pools[0].price_microusd_hour"),
    ],
)
def test_a_malformed_pool_is_refused_with_the_field_named(engine: Engine, pool: PoolSpec, where: str) -> None:
    assert malformed(engine, cmd.AddPools(pools=(pool,))).where == where


@pytest.mark.parametrize(
    ("node", "where"),
    [
        (NodeSpec(id="g0", pool="gpu"), "nodes[1].id"),
        (NodeSpec(id="new", pool="gpu"), "nodes[1].id"),
        (NodeSpec(id=ESCAPE, pool="gpu"), "nodes[1].id"),
        (NodeSpec(id="n", pool="tpu"), "nodes[1].pool"),
        (NodeSpec(id="n", pool="gpu", rack=ESCAPE), "nodes[1].rack"),
        (NodeSpec(id="n", pool="gpu", zone="a b"), "nodes[1].zone"),
    ],
)
def test_a_malformed_node_refuses_all_nodes_with_the_field_named(engine: Engine, node: NodeSpec, where: str) -> None:
    error = malformed(engine, cmd.AddNodes(nodes=(NodeSpec(id="new", pool="gpu"), node)))
    assert error.where == where
    assert str(error).isprintable()


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        (PriorityClassSpec(name="high", value=1), "priority_classes[0].name"),
        (PriorityClassSpec(name="a b", value=1), "priority_classes[0].name"),
        (PriorityClassSpec(name="new", value=10**10), "priority_classes[0].value"),
        (PriorityClassSpec(name="new", value=-(10**10)), "priority_classes[0].value"),
    ],
)
def test_a_malformed_priority_class_is_refused_with_the_field_named(
    engine, spec: PriorityClassSpec, where: str
) -> None:
    assert malformed(engine, cmd.AddPriorityClasses(priority_classes=(spec,))).where == where


def test_a_submission_to_a_cell_without_nodes_says_so() -> None:
    engine = Engine.open(None, cell=msgspec.structs.replace(small_cell(), nodes=()))
    assert "no nodes yet" in malformed(engine, submit(workload("x"))).remedy
