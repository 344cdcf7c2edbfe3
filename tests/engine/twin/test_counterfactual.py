"""What would let work start: told only if it does, in whatever cell; and the reason beside it is true."""

from __future__ import annotations

import msgspec
import pytest
from cells import CLASSES, small_cell, submit, workload
from contended_cells import RandomCell

from engine.capacity.task_shapes import accepts
from engine.control import Engine
from engine.model import commands as cmd
from engine.model.details import Counterfactual, Unblocking
from engine.model.errors import MusterError, NotFoundError
from engine.model.specs import (
    ArraySpec,
    Dependency,
    NodeSpec,
    NodeState,
    PriorityClassSpec,
    QueueMode,
    QueueSpec,
    ReservationSpec,
    Resources,
    ScalingSpec,
    Taint,
    TaskGroup,
    Toleration,
    TopologyRequest,
    WorkloadState,
)
from engine.placement.gang_placement import place, variants
from engine.state.cell_state import BOUND, State
from engine.state.workloads import DEPENDS_ON
from engine.twin.counterfactuals import MAX_FORKS, MAX_LINE_FORKS, MAX_SECOND_FORKS, verified

S = 1000
HOUR = 3600 * S


def cell(policy: str = "easy", queues: tuple[QueueSpec, ...] = (), **sizes: object) -> Engine:
    spec = small_cell(**sizes)
    engine = Engine.open(None, cell=msgspec.structs.replace(spec, queues=queues or spec.queues))
    engine.command(cmd.SetPolicy(policy=policy))
    return engine


def apply(engine: Engine, found: Counterfactual) -> Engine:
    """A fresh fork on which the edits were asked for, as data, through the door."""
    fork = engine.fork()
    edits = [msgspec.convert(edit, cmd.AnyCommand) for edit in found.edits]
    answers = fork.commands(edits)
    assert not [answer for answer in answers if isinstance(answer, MusterError)], found
    fork.settle()
    return fork


def starts(engine: Engine, found: Counterfactual) -> bool:
    after = apply(engine, found).state
    return after.is_bound(after.workloads.row(found.starts))


def told(engine: Engine, name: str) -> Counterfactual:
    """What is stated for the workload, which really starts it and leaves the cell as it is."""
    before = engine.state.digest()
    answer = verified(engine, name)
    assert engine.state.digest() == before
    assert (answer.version, answer.forks <= MAX_FORKS + MAX_SECOND_FORKS + 1 + MAX_LINE_FORKS) == (engine.version, True)
    found = answer.found
    assert found is not None, answer.tried
    assert found.verified
    assert starts(engine, found)
    return found


def line_of(engine: Engine, name: str, ahead: int) -> Counterfactual:
    """What is stated for the line up to the workload: it starts all that are ahead, and the workload."""
    answer = verified(engine, name)
    assert (answer.ahead, answer.line is not None) == (ahead, True), answer.tried
    line = answer.line
    assert line is not None
    after = apply(engine, line).state
    mine = engine.workload(name)
    line_up = [engine.workload(other) for other in engine.state.workloads.ids]
    waiting = [other for other in line_up if other.reasons and other.queue == mine.queue and other.position]
    upto = [other.id for other in waiting if other.position <= mine.position]
    assert len(upto) == ahead + 1
    assert [other for other in upto if not after.is_bound(after.workloads.row(other))] == []
    return line


# -- kinds ------------------------------------------------------------------------------------------------------------


def test_what_does_not_wait_and_what_is_not_there() -> None:
    engine = cell()
    engine.command(submit(workload("x")))
    assert verified(engine, "x") == Unblocking(version=engine.version, found=None, tried=(), forks=0)
    with pytest.raises(NotFoundError, match="'y'"):
        verified(engine, "y")


def test_on_hold_suspended_and_behind_a_held_queue() -> None:
    engine = cell()
    engine.command(submit(workload("h", held=True), workload("s"), workload("q", queue="b")))
    engine.command(cmd.Suspend(ids=("s",)))
    engine.command(cmd.HoldQueues(names=("root",)))
    engine.command(submit(workload("later", queue="b")))
    assert told(engine, "later").edits == ({"do": "open_queues", "names": ("root",)},)
    engine.command(cmd.OpenQueues(names=("root",)))
    assert told(engine, "h").edits == ({"do": "release", "ids": ("h",)},)
    assert told(engine, "s").text == "s is resumed"


def test_one_change_is_not_enough_and_what_was_tried_is_told() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(workload("now", gpu=8000), workload("h", gpu=8000, held=True)))
    answer = verified(engine, "h")
    assert answer.found is None
    assert answer.tried == ("h is released: then InsufficientCapacity",)


def borrowing(reclaim: str = "never", order: str = "best_effort") -> Engine:
    """a has a nominal 16 GPU of which b uses 12; 48 GPU of nodes."""
    queues = (
        QueueSpec(name="root"),
        QueueSpec(name="a", parent="root", nominal={"gpu_milli": 16_000}, reclaim=reclaim, order=order),
        QueueSpec(name="b", parent="root", nominal={"gpu_milli": 8000}),
    )
    engine = cell(queues=queues, gpu_nodes=6)
    engine.command(submit(*(workload(f"b{i}", queue="b", gpu=4000) for i in range(5))))
    return engine


def test_borrowed_quota_that_is_returned() -> None:
    engine = borrowing()
    engine.command(submit(workload("a0", queue="a", gpu=8000)))
    found = told(engine, "a0")
    assert found.text == "queue b returns 4 GPU that it borrows (b4 is requeued and the queue is held)"
    assert found.edits == ({"do": "hold_queues", "names": ("b",)}, {"do": "requeue", "ids": ("b4",)})
    assert engine.workload("a0").reasons[0].text == (
        "asks for 8 GPU, 4 GPU above the 24 GPU that queue root and the queues below it share; it uses 20 GPU; "
        "queue b borrows 12 GPU"
    )


def test_as_much_more_quota_as_lacks_and_not_a_milli_gpu_less() -> None:
    engine = cell(quota={"gpu_milli": 8000})
    engine.command(submit(workload("x", gpu=6000), workload("y", count=2, gpu=3000)))
    found = told(engine, "y")
    assert found.text == "4 GPU more nominal quota in queue a"
    [edit] = found.edits
    spec = msgspec.convert(edit, cmd.AnyCommand).queue
    less = msgspec.structs.replace(spec, nominal={"gpu_milli": spec.nominal["gpu_milli"] - 1})
    fork = engine.fork()
    fork.command(cmd.ChangeQueue(queue=less))
    assert fork.workload("y").state == "queued"


def test_quota_is_given_in_whole_devices_and_cpus() -> None:
    engine = cell(quota={"gpu_milli": 1000, "cpu_milli": 2000})
    engine.command(submit(workload("x", gpu=800, cpu=1700), workload("y", gpu=300, cpu=500)))
    assert told(engine, "y").text == "1 CPU and 1 GPU more nominal quota in queue a"


def test_others_ahead_take_new_quota_first_and_are_counted_in() -> None:
    engine = borrowing()
    engine.command(submit(workload("a0", queue="a", gpu=8000), workload("a1", queue="a", gpu=16_000 // 2, count=2)))
    assert told(engine, "a1").text == "12 GPU more nominal quota in queue a, and a1 gets priority high"
    assert line_of(engine, "a1", 1).text == "20 GPU more nominal quota in queue a"


def test_where_ten_wait_ahead_there_is_what_starts_this_one_and_what_drains_the_line() -> None:
    engine = cell(quota={"gpu_milli": 8000})
    engine.command(submit(workload("now", gpu=8000)))
    engine.command(submit(*(workload(f"w{i}", gpu=2000) for i in range(12)), workload("other", queue="b", cpu=1)))
    found = told(engine, "w10")
    assert found.text == "2 GPU more nominal quota in queue a, and w10 gets priority high"
    assert found.edits[1] == {"do": "set_priority", "ids": ("w10",), "priority_class": "high"}
    assert line_of(engine, "w10", 10).text == "22 GPU more nominal quota in queue a"
    assert verified(engine, "w0").line is None, "nothing is ahead of the first"


def test_those_ahead_are_held_where_no_priority_is_higher() -> None:
    engine = cell(quota={"gpu_milli": 8000})
    engine.command(submit(*(workload(f"w{i}", gpu=8000, priority="high") for i in range(3))))
    assert told(engine, "w2").text == "8 GPU more nominal quota in queue a, and w1 ahead of it is put on hold"


def test_the_work_that_a_higher_priority_preempts_is_told() -> None:
    classes = (*CLASSES[:2], PriorityClassSpec(name="high", value=900, preemption="lower"))
    spec = msgspec.structs.replace(small_cell(gpu_nodes=1, cpu_nodes=0), priority_classes=classes)
    engine = Engine.open(None, cell=spec)
    engine.command(submit(workload("now", gpu=6000)))
    engine.command(submit(*(workload(f"w{i}", gpu=8000) for i in range(2))))
    answer = verified(engine, "w1")
    assert answer.found is not None
    assert answer.line is not None
    after = apply(engine, answer.found).state
    stopped = not after.is_bound(after.workloads.row("now"))
    assert answer.found.text.endswith("; that preempts now") == stopped


def test_the_line_is_of_whole_nodes_of_a_real_pool() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=1)
    engine.command(submit(workload("now", gpu=8000), *(workload(f"w{i}", gpu=4000) for i in range(10))))
    assert told(engine, "w9").text == "1 more node in pool gpu, and w9 gets priority high"
    line = line_of(engine, "w9", 9)
    assert line.text == "5 more nodes in pool gpu"
    assert line.smallest


def test_the_line_of_different_requests_is_of_several_pools() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=1)
    engine.command(submit(workload("gpus", gpu=8000), workload("cpus", cpu=32_000, pools=("cpu",))))
    engine.command(submit(workload("c0", cpu=32_000, pools=("cpu",)), workload("g0", gpu=8000)))
    engine.command(submit(workload("g1", gpu=8000)))
    assert line_of(engine, "g1", 2).text == "1 more node in pool cpu and 2 more nodes in pool gpu"


def test_nothing_helps_where_no_pool_has_such_nodes() -> None:
    spec = small_cell(gpu_nodes=2, cpu_nodes=0)
    nodes = (spec.nodes[0], msgspec.structs.replace(spec.nodes[1], labels={"disk": "nvme"}))
    engine = Engine.open(None, cell=msgspec.structs.replace(spec, nodes=nodes))
    group = TaskGroup(count=1, request=Resources(gpu_milli=8000), node_labels={"disk": ("nvme",)})
    engine.command(cmd.Cordon(ids=("g1",)))
    engine.command(submit(msgspec.structs.replace(workload("x"), groups=(group,))))
    engine.command(cmd.RemoveNodes(ids=("g1",)))
    answer = verified(engine, "x")
    assert answer.found is None
    assert answer.tried == ("more nodes: no pool of the cell has nodes for a task of 8 GPU",)


def test_new_nodes_are_like_those_of_the_pool_that_the_tasks_may_use() -> None:
    spec = small_cell(gpu_nodes=2, cpu_nodes=0)
    taint = Taint(key="team", value="vision")
    nodes = (
        spec.nodes[0],
        msgspec.structs.replace(spec.nodes[1], labels={"disk": "nvme", "serial": "17"}, taints=(taint,)),
    )
    engine = Engine.open(None, cell=msgspec.structs.replace(spec, nodes=nodes))
    group = TaskGroup(
        count=1,
        request=Resources(cpu_milli=1000, gpu_milli=8000),
        node_labels={"disk": ("nvme",)},
        tolerations=(Toleration(key="team", value="vision"),),
    )
    engine.command(submit(*(msgspec.structs.replace(workload(name), groups=(group,)) for name in "xy")))
    found = told(engine, "y")
    assert found.text == "1 more node in pool gpu with disk=nvme"
    [node] = msgspec.convert(found.edits[0], cmd.AnyCommand).nodes
    assert node.taints == (taint,)


def test_a_pool_at_its_most_is_told() -> None:
    spec = small_cell(gpu_nodes=1, cpu_nodes=0)
    pools = (msgspec.structs.replace(spec.pools[0], scaling=ScalingSpec(most=1)), spec.pools[1])
    engine = Engine.open(None, cell=msgspec.structs.replace(spec, pools=pools))
    engine.command(submit(workload("x", gpu=8000), workload("y", gpu=8000)))
    assert told(engine, "y").text == "1 more node in pool gpu, above its most of 1"


def test_new_nodes_are_in_the_rack_that_a_gang_has_to_be_in() -> None:
    engine = cell(gpu_nodes=4, cpu_nodes=0)
    gang = msgspec.structs.replace(workload("y", count=3, gpu=8000), topology=TopologyRequest(required="rack"))
    engine.command(cmd.AddNodes(nodes=(NodeSpec(id="g9", pool="gpu", rack="r1", block="b0", zone="z0"),)))
    engine.command(submit(gang, msgspec.structs.replace(gang, id="z")))
    assert told(engine, "z").text == "1 more node in pool gpu in rack r0"


def test_the_fewest_whole_nodes_of_a_pool() -> None:
    engine = cell(gpu_nodes=4, cpu_nodes=0)
    engine.command(submit(workload("x", count=2, gpu=8000), workload("y", count=4, gpu=8000, memory=2048)))
    found = told(engine, "y")
    assert found.kind == "capacity"
    assert found.smallest
    assert found.text == "2 more nodes in pool gpu"
    [nodes] = found.edits
    assert (nodes["do"], {node["pool"] for node in nodes["nodes"]}, len(nodes["nodes"])) == ("add_nodes", {"gpu"}, 2)
    fewer = msgspec.structs.replace(found, edits=(nodes | {"nodes": nodes["nodes"][:1]},))
    assert not starts(engine, fewer)


def test_room_for_those_ahead_is_counted_in() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(submit(*(workload(f"w{i}", gpu=8000, priority="high" if i else "low") for i in range(6))))
    assert engine.workload("w5").position == 4
    assert told(engine, "w5").text == "1 more node in pool gpu, and w2, w3, w4 ahead of it are put on hold"
    line = line_of(engine, "w5", 3)
    assert line.text == "4 more nodes in pool gpu"
    assert line.smallest


def test_where_quota_and_room_both_lack_two_changes_are_told_together() -> None:
    queues = (
        QueueSpec(name="root"),
        QueueSpec(name="a", parent="root", nominal={"gpu_milli": 4000}),
        QueueSpec(name="b", parent="root", nominal={"gpu_milli": 20_000}),
    )
    engine = cell(queues=queues, gpu_nodes=5, cpu_nodes=0)
    engine.command(submit(workload("x", queue="b", count=2, gpu=8000), workload("z", queue="b", gpu=4000)))
    engine.command(cmd.Cordon(ids=("g4",)))
    engine.command(submit(workload("y", queue="a", count=2, gpu=8000)))
    assert told(engine, "y").text == "12 GPU more nominal quota in queue a, and 1 node is uncordoned (g4)"


def test_a_pool_that_is_named_grows_by_whole_nodes() -> None:
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(submit(workload("x", count=2, gpu=8000), workload("y", count=5, gpu=2000, pools=("gpu",))))
    found = told(engine, "y")
    assert found.text == "2 more nodes in pool gpu"
    assert [edit["do"] for edit in found.edits] == ["add_nodes"]
    assert found.smallest


def test_cordoned_nodes_come_before_new_ones_and_no_more_than_needed() -> None:
    engine = cell(gpu_nodes=3, cpu_nodes=0)
    engine.command(submit(workload("x", gpu=4000)))
    engine.command(cmd.Cordon(ids=("g0", "g1", "g2")))
    engine.command(submit(workload("y", gpu=8000)))
    assert told(engine, "y").text == "1 node is uncordoned (g1)"
    engine.command(cmd.Interrupt(ids=("g1",), notice_ms=600_000))
    assert told(engine, "y").text == "1 node is uncordoned (g2)"


def test_a_smaller_gang_when_no_node_could_be_added() -> None:
    """Its reservation's nodes are all there is for it."""
    engine = cell(gpu_nodes=2, cpu_nodes=0)
    engine.command(cmd.Reserve(reservation=ReservationSpec(name="r", nodes=("g0",), start_ms=0, end_ms=HOUR)))
    gang = msgspec.structs.replace(workload("y", count=2, gpu=8000), reservation="r")
    engine.command(submit(workload("x", gpu=8000), gang))
    found = told(engine, "y")
    assert (found.kind, found.text) == ("tasks", "y is submitted again with 1 of 2 tasks")
    assert found.starts == "y-again-1"
    assert [edit["do"] for edit in found.edits] == ["cancel", "submit"]


@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_the_longest_estimate_that_keeps_the_promise(policy: str) -> None:
    engine = cell(policy, gpu_nodes=2, cpu_nodes=0)
    engine.command(submit(workload("now", gpu=8000, run=100 * S, estimate=100 * S)))
    engine.command(submit(workload("big", count=2, gpu=8000)))
    engine.command(submit(workload("late", gpu=1000, estimate=HOUR)))
    engine.advance(30 * S)
    found = told(engine, "late")
    assert (found.kind, found.text) == ("estimate", "late is submitted again with an estimate of 70 s")
    copy = msgspec.convert(found.edits[1], cmd.AnyCommand).workloads[0]
    longer = msgspec.structs.replace(copy, estimate_ms=copy.estimate_ms + 1)
    edits = (found.edits[0], msgspec.to_builtins(submit(longer)))
    assert not starts(engine, msgspec.structs.replace(found, edits=edits))


def test_a_strict_order_lets_it_pass_when_little_is_ahead() -> None:
    engine = cell("fcfs", gpu_nodes=1, cpu_nodes=1)
    engine.command(submit(workload("now", gpu=8000), workload("first", gpu=8000)))
    engine.command(submit(*(workload(f"w{i}") for i in range(8))))
    assert told(engine, "w0").edits == ({"do": "hold", "ids": ("first",)},)
    assert told(engine, "w7").edits == ({"do": "set_policy", "policy": "easy"},)


def test_a_strict_queue_gets_another_order() -> None:
    engine = borrowing(order="strict_fifo")
    engine.command(submit(workload("first", queue="a", count=2, gpu=8000)))
    engine.command(submit(*(workload(f"w{i}", queue="a") for i in range(8))))
    assert engine.workload("first").reasons[0].token == "WaitingForQuota"
    assert told(engine, "w0").kind == "ahead"
    found = told(engine, "w7")
    assert found.text == "queue a passes over what cannot start (order best_effort)"
    assert msgspec.convert(found.edits[0], cmd.AnyCommand).queue.order == "best_effort"


def test_an_array_at_its_limit() -> None:
    engine = cell()
    spec = msgspec.structs.replace(workload("m"), array=ArraySpec(last=3, max_running=2))
    engine.command(submit(spec))
    assert told(engine, "m/2").edits == ({"do": "suspend", "ids": ("m/1",)},)


def test_what_waits_for_others_or_for_its_time_is_submitted_anew() -> None:
    engine = cell()
    engine.command(submit(workload("first"), msgspec.structs.replace(workload("d"), after=(Dependency(id="first"),))))
    engine.command(submit(msgspec.structs.replace(workload("t"), not_before_ms=HOUR)))
    assert told(engine, "d").text == "d is submitted again without waiting for first"
    assert told(engine, "t").text == "t is submitted again without waiting until 1970-01-01 01:00:00 UTC"
    engine.command(cmd.Cancel(ids=("first",)))
    assert engine.workload("d").reasons[0].token == "DependencyNeverSatisfied"
    assert told(engine, "d").kind == "dependency"


def test_nodes_that_a_reservation_keeps() -> None:
    engine = cell(gpu_nodes=1, cpu_nodes=0)
    engine.command(cmd.Reserve(reservation=ReservationSpec(name="r", nodes=("g0",), start_ms=50 * S, end_ms=HOUR)))
    engine.command(submit(workload("x", gpu=1000, estimate=60 * S)))
    assert engine.workload("x").reasons[0].token == "WaitingForReservation"
    assert told(engine, "x").text == "x is submitted again with an estimate of 50 s"
    engine.advance(50 * S)
    assert told(engine, "x").text == "reservation r is removed"


# -- whatever the cell ------------------------------------------------------------------------------------------------


def check_case(seed: int) -> list[str]:
    """Every waiting workload of one random cell. Returns the kinds of counterfactuals that were stated."""
    engine = RandomCell(seed).engine
    kinds = []
    seen: set[tuple[str, int]] = set()
    for row, name in enumerate(engine.state.workloads.ids):
        reasons = engine.workload(name).reasons
        if not reasons:
            continue
        gate_is_closed(engine, row, reasons[0].token)
        # Like workloads share their answer's kind: the search is made for one of each.
        if (reasons[0].token, engine.state.workloads.cls[row]) in seen:
            continue
        seen.add((reasons[0].token, engine.state.workloads.cls[row]))
        answer = verified(engine, name)
        assert answer.forks <= MAX_FORKS + MAX_SECOND_FORKS + 1 + MAX_LINE_FORKS
        if answer.found is not None:
            kinds.append(answer.found.kind)
            assert starts(engine, answer.found), f"case {seed}: {name}: {answer.found}"
        for change in (answer.found, answer.line):
            assert change is None or gives_what_there_is(engine, change), f"case {seed}: {name}: {change}"
        if answer.line is not None:
            kinds.append(f"line of {answer.line.kind}")
            left = line_left(engine, name, answer.line)
            assert not left, f"case {seed}: {name}: {answer.line} does not start {left}"
    return kinds


def gives_what_there_is(engine: Engine, change: Counterfactual) -> bool:
    """It adds nodes to pools of the cell and quota in whole devices, CPUs and GiB, and makes nothing up."""
    pools = {pool.name for pool in engine.state.capacity.pools}
    for edit in change.edits:
        command = msgspec.convert(edit, cmd.AnyCommand)
        if isinstance(command, cmd.AddPools):
            return False
        if isinstance(command, cmd.AddNodes) and not {node.pool for node in command.nodes} <= pools:
            return False
        if isinstance(command, cmd.ChangeQueue):
            before = engine.state.queues.specs[engine.state.queues.row_of[command.queue.name]].nominal
            for name, quantity in command.queue.nominal.items():
                if (quantity - before.get(name, 0)) % (1000 if name.endswith("milli") else 1024):
                    return False
    return True


def line_left(engine: Engine, name: str, line: Counterfactual) -> list[str]:
    """Workloads at or ahead of it in its queue, waiting by the same rule, that the change does not start."""
    after = apply(engine, line).state
    mine = engine.workload(name)
    if engine.state.queues.specs[engine.state.queues.row_of[mine.queue]].order == "fair":
        return []  # Who is ahead changes there with every start.
    every = [engine.workload(other) for other in engine.state.workloads.ids]
    alike = [other for other in every if other.reasons and other.queue == mine.queue and other.position]
    alike = [other for other in alike if other.reasons[0].token == mine.reasons[0].token]
    upto = [other.id for other in alike if other.position <= mine.position]
    return [other for other in upto if not after.is_bound(after.workloads.row(other))]


def gate_is_closed(engine: Engine, row: int, token: str) -> None:
    """The primary reason's gate really does not let it through, worked out from specs and placements alone."""
    assert GATES[token](engine, row), f"{engine.state.workloads.ids[row]}: {token} is not so"


def in_state(*states: WorkloadState):
    return lambda engine, row: engine.state.workloads.state[row] in states


def queue_is_closed(engine: Engine, row: int) -> bool:
    queues = engine.state.queues
    name = queues.specs[engine.state.workloads.queue[row]].name
    return any(queues.mode[vertex] != QueueMode.OPEN for vertex in path_of(engine.state, name))


def path_of(state: State, name: str) -> list[int]:
    rows = {spec.name: i for i, spec in enumerate(state.queues.specs)}
    found = []
    while name:
        found.append(rows[name])
        name = state.queues.specs[rows[name]].parent
    return found


def waits_for_others(engine: Engine, row: int) -> bool:
    w = engine.state.workloads
    return any(not met(w.state[target], kind, w.attempts[target]) for target, kind in w.dependencies(row))


def met(state: int, kind: int, attempts: int) -> bool:
    on, ended = DEPENDS_ON[kind], WorkloadState(state).terminal
    if on == "finished":
        return state == WorkloadState.FINISHED
    if on == "failed":
        return ended and state != WorkloadState.FINISHED
    return ended or (on == "started" and attempts > 0 and state != WorkloadState.PLACED)


def never_met(engine: Engine, row: int) -> bool:
    w = engine.state.workloads
    return any(
        WorkloadState(w.state[target]).terminal and not met(w.state[target], kind, w.attempts[target])
        for target, kind in w.dependencies(row)
    )


def before_its_time(engine: Engine, row: int) -> bool:
    return engine.state.workloads.wake[row] > engine.state.now_ms


def has_one_ahead(engine: Engine, row: int) -> bool:
    """In its strict queue another waits that has a higher band or priority, or is older; in a fair one, any."""
    state, w = engine.state, engine.state.workloads
    strict = state.policy == "fcfs" or state.queues.specs[w.queue[row]].order == "strict_fifo"
    others = [r for r in range(len(w.ids)) if w.state[r] == WorkloadState.QUEUED and w.queue[r] == w.queue[row]]
    if state.queues.specs[w.queue[row]].order == "fair":
        return strict and len(others) > 1
    return strict and min(others, key=lambda r: (-w.band_at(r), -w.value_at(r), r)) != row


def array_is_full(engine: Engine, row: int) -> bool:
    w = engine.state.workloads
    running = sum(w.array[r] == w.array[row] and w.state[r] in BOUND for r in range(len(w.ids)))
    return 0 < w.array_limits[w.array[row]] <= running


def ways_of(engine: Engine, row: int) -> list[list[int | None]]:
    """For each way its groups may be laid on pools, the pool of each group; None: any."""
    state = engine.state
    w, queues = state.workloads, state.queues
    groups = w.class_at(row).groups
    root = path_of(state, queues.specs[w.queue[row]].name)[-1]
    flavored = any(s.flavors and path_of(state, s.name)[-1] == root for s in queues.specs)
    if not flavored:
        return [[None] * len(groups)]
    named = [flavor.pool for flavor in queues.specs[w.queue[row]].flavors]
    there = sorted(set(state.capacity.pool))
    pools = [i for i in there if not named or state.capacity.pools[i].name in named]
    ways: list[list[int | None]] = [[]]
    for group in groups:
        ways = [[*way, pool] for way in ways for pool in pools if accepts(group, state.capacity.pools[pool])]
    return ways


def quota_lacks(engine: Engine, row: int) -> bool:
    """No way is within quota: availability down the tree, from what runs."""
    return all(not within_quota(engine, row, way) for way in ways_of(engine, row))


def within_quota(engine: Engine, row: int, way: list[int | None]) -> bool:
    state = engine.state
    w = state.workloads
    asked: dict[tuple[str, int], int] = {}
    workload_class = w.class_at(row)
    for group, pool, count in zip(workload_class.groups, way, workload_class.least, strict=True):
        for resource, each in enumerate(group.request.vector()):
            for name in {"", "" if pool is None else state.capacity.pools[pool].name}:
                asked[name, resource] = asked.get((name, resource), 0) + each * count
    path = path_of(state, state.queues.specs[w.queue[row]].name)
    return all(amount <= available(state, path, *slot) for slot, amount in asked.items() if amount)


def available(state: State, path: list[int], pool: str, resource: int) -> int:
    """The most the queue may be charged now, by the recursion of hierarchical cohorts."""
    queues = state.queues
    if not limited(state, path[-1], pool, resource):
        return 2**62
    most = 2**62
    for vertex in reversed(path):
        own = max(0, local(state, vertex, pool, resource) - drawn(state, vertex, pool, resource))
        spec = queues.specs[vertex]
        quota_ = quota(state, vertex, pool, resource)
        limit = given(spec, pool, "borrowing_limit", resource) if spec.parent else 0
        ceiling = 2**62 if limit is None else quota_ + limit
        if spec.burst is not None and not pool and resource_name(resource) in spec.burst.limit:
            since, now_ms = queues.burst_since[vertex], state.now_ms
            cooling = since >= 0 and 0 <= now_ms - since - spec.burst.window_ms < spec.burst.cooldown_ms
            total = spec.burst.limit[resource_name(resource)] - subtree(state, vertex, resource) + quota_
            ceiling = ceiling if cooling else max(ceiling, total)
        most = min(ceiling - drawn(state, vertex, pool, resource), own + most)
    return most


def resource_name(resource: int) -> str:
    return ("cpu_milli", "memory_mib", "gpu_milli", "disk_mib")[resource]


def given(spec: QueueSpec, pool: str, field: str, resource: int) -> int | None:
    part = spec if not pool else next((f for f in spec.flavors if f.pool == pool), None)
    return None if part is None else getattr(part, field).get(resource_name(resource))


def below(state: State, vertex: int) -> list[int]:
    name = state.queues.specs[vertex].name
    return [i for i, spec in enumerate(state.queues.specs) if spec.parent == name]


def limited(state: State, vertex: int, pool: str, resource: int) -> bool:
    own = given(state.queues.specs[vertex], pool, "nominal", resource) is not None
    return own or any(limited(state, child, pool, resource) for child in below(state, vertex))


def subtree(state: State, vertex: int, resource: int) -> int:
    nominal = given(state.queues.specs[vertex], "", "nominal", resource) or 0
    return nominal + sum(subtree(state, child, resource) for child in below(state, vertex))


def quota(state: State, vertex: int, pool: str, resource: int) -> int:
    lent = sum(
        quota(state, child, pool, resource) - local(state, child, pool, resource) for child in below(state, vertex)
    )
    return (given(state.queues.specs[vertex], pool, "nominal", resource) or 0) + lent


def local(state: State, vertex: int, pool: str, resource: int) -> int:
    lending = given(state.queues.specs[vertex], pool, "lending_limit", resource)
    return 0 if lending is None else max(0, quota(state, vertex, pool, resource) - lending)


def drawn(state: State, vertex: int, pool: str, resource: int) -> int:
    children = below(state, vertex)
    if children:
        return sum(
            max(0, drawn(state, child, pool, resource) - local(state, child, pool, resource)) for child in children
        )
    w, a, capacity = state.workloads, state.allocations, state.capacity
    total = 0
    for row in range(len(w.ids)):
        if w.queue[row] == vertex and w.state[row] in BOUND:
            for i in a.of_workload(w.first_allocation[row]):
                if not pool or capacity.pools[capacity.pool[a.node[i]]].name == pool:
                    total += w.class_at(row).groups[a.group[i]].request.vector()[resource] * a.count[i]
    return total


def slots_of(engine: Engine, row: int, group: int, pool: int | None, kept: bool = False) -> int:
    """Tasks of the group that fit node by node; with `kept` also on nodes that are kept for others."""
    capacity, w = engine.state.capacity, engine.state.workloads
    task = w.class_at(row).groups[group]
    cpu, memory, gpu, disk = task.request.vector()
    total = 0
    for node in range(len(capacity.node_ids)):
        if capacity.state[node] != NodeState.READY or not accepts(task, capacity.pools[capacity.pool[node]]):
            continue
        if (pool is not None and capacity.pool[node] != pool) or not (kept or usable(engine, row, node)):
            continue
        free = capacity.free_cpu[node], capacity.free_memory[node], capacity.free_disk[node]
        pairs = zip(free, (cpu, memory, disk), strict=True)
        counts = [have // want for have, want in pairs if want]
        free = list(capacity.devices(node))
        if gpu:
            counts.append(free.count(1000) // (gpu // 1000) if gpu >= 1000 else sum(each // gpu for each in free))
        total += min(counts)
    return total


def usable(engine: Engine, row: int, node: int) -> bool:
    """Open to it: kept for nobody, or by a reservation that it is expected to end before."""
    state = engine.state
    booking = state.capacity.booking[node]
    if booking < 0 or any(c.booking == booking and c.row == row for c in state.bookings.clearings):
        return True
    end = state.now_ms + state.workloads.remaining_ms(row)
    return any(r.booking == booking and end <= r.spec.start_ms for r in state.bookings.reservations)


def room_lacks(engine: Engine, row: int) -> bool:
    """In every way within quota some group finds too few slots, or they are in each other's way."""
    return not quota_lacks(engine, row) and not any(
        fits(engine, row, way) for way in ways_of(engine, row) if within_quota(engine, row, way)
    )


def fits(engine: Engine, row: int, way: list[int | None]) -> bool:
    least = engine.state.workloads.class_at(row).least
    if any(slots_of(engine, row, g, way[g]) < least[g] for g in range(len(least))):
        return False
    return len(least) == 1 or fits_together(engine, row, way)


def fits_together(engine: Engine, row: int, way: list[int | None]) -> bool:
    """Several groups: the search for places says; here it is only asked on a fork of its own."""
    fork = engine.fork()
    ways = variants(fork.state, row)
    shapes = next(s for s in ways if all(pool is None or pool in s[g].pool_set for g, pool in enumerate(way)))
    return place(fork.state.capacity, shapes, fork.state.workloads.class_at(row).least) is not None


def would_be_in_the_way(engine: Engine, row: int) -> bool:
    """A promise or a reservation: either it fits, but ends late; or the nodes kept for others would do."""
    state = engine.state
    if room_lacks(engine, row):
        least = state.workloads.class_at(row).least
        return bool(state.capacity.booked) and any(
            all(slots_of(engine, row, g, way[g], kept=True) >= least[g] for g in range(len(least)))
            for way in ways_of(engine, row)
        )
    promise = engine.scheduler.memory.reservation
    if state.policy == "conservative":
        return not quota_lacks(engine, row)
    if promise is None or promise.start_ms is None or promise.row == row:
        return False
    late = state.now_ms + state.workloads.remaining_ms(row) > promise.start_ms
    return late or not leaves_quota_for(engine, row, promise.row)


def leaves_quota_for(engine: Engine, row: int, other: int) -> bool:
    """Whether the other is still within quota once the row has been charged."""
    w, tree = engine.state.workloads, engine.state.queues.copy()
    tree.charge(w.queue[row], tree.total_charge(w.class_at(row).request), engine.state.now_ms)
    promised = w.class_at(other)
    charge = tree.total_charge(promised.request_of(promised.least))
    return tree.lack(w.queue[other], charge, engine.state.now_ms) is None


def nowhere(engine: Engine, row: int) -> bool:
    capacity, groups = engine.state.capacity, engine.state.workloads.class_at(row).groups
    there = {capacity.pool[node] for node in range(len(capacity.node_ids))}

    def is_nowhere(group: TaskGroup, pool: int | None) -> bool:
        return not any(accepts(group, capacity.pools[p]) for p in there if pool in (None, p))

    return all(
        any(is_nowhere(group, pool) for group, pool in zip(groups, way, strict=True)) for way in ways_of(engine, row)
    )


GATES = {
    "OnHold": in_state(WorkloadState.HELD),
    "Suspended": in_state(WorkloadState.SUSPENDED),
    "QueueHeld": queue_is_closed,
    "WaitingForDependency": waits_for_others,
    "DependencyNeverSatisfied": never_met,
    "WaitingForStartTime": before_its_time,
    "Backoff": before_its_time,
    "BehindInQueue": has_one_ahead,
    "ArrayLimit": array_is_full,
    "WaitingForQuota": quota_lacks,
    "InsufficientCapacity": room_lacks,
    "Fragmented": room_lacks,
    "NoMatchingNodes": nowhere,
    "WaitingForReservation": would_be_in_the_way,
    "WaitingForPreempted": lambda engine, row: any(c.row == row for c in engine.state.bookings.clearings),
}


def check_cases(seeds: range) -> None:
    kinds = [kind for seed in seeds for kind in check_case(seed)]
    wanted = {"release", "resume", "queue", "array", "ahead", "returned", "quota", "uncordon", "capacity", "tasks"}
    wanted |= {"line of quota", "line of capacity"}
    assert wanted <= set(kinds), f"these cells no longer show everything: {sorted(set(kinds))}"


@pytest.mark.thorough
def test_what_is_stated_starts_it_and_the_primary_reason_is_true() -> None:
    check_cases(range(500))


@pytest.mark.slow
def test_what_is_stated_starts_it_and_the_primary_reason_is_true_in_many_cells() -> None:
    check_cases(range(500, 5000))
