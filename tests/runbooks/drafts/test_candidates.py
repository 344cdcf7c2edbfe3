"""What a draft could be about besides what is named or odd: told, a few of each, and nothing where nothing is wrong."""

from __future__ import annotations

from engine.control import Engine
from engine.model.commands import FailNodes, Hold, RestoreNodes, Suspend
from engine.model.specs import NodeSpec, QueueSpec
from runbooks.drafts import facts as candidates
from runbooks.drafts.facts import gather
from tests.support.cells import small_cell, submit, workload
from tests.support.gate_cells import CELL, HOUR, nodes_of, work


def test_a_quiet_cell_has_none() -> None:
    engine = Engine.open(None, cell=small_cell())
    engine.command(submit(workload("runs", gpu=8000)))
    engine.advance(HOUR)
    assert candidates.nodes(engine) == candidates.waiting(engine) == candidates.idle_queues(engine) == ()
    assert candidates.giving_way(engine) == (), "nothing waits for its place"


def test_a_node_that_was_lost_and_is_back_is_told_for_a_day() -> None:
    engine = Engine.open(None, cell=CELL)
    for node in ("n0", "n2"):
        engine.command(FailNodes(ids=(node,)))
        engine.advance(engine.now_ms + 60_000)
    engine.command(RestoreNodes(ids=("n0", "n2")))
    assert candidates.nodes(engine) == ("n2", "n0"), "the last first"
    engine.advance(engine.now_ms + 25 * HOUR)
    assert candidates.nodes(engine) == ()


def test_what_is_left_of_a_zone_that_loses_nodes_is_told() -> None:
    cell = nodes_of(0)
    nodes = tuple(NodeSpec(id=f"{zone}{i}", pool="p", zone=zone) for zone in "ab" for i in range(5))
    engine = Engine.open(None, cell=type(cell)(pools=cell.pools, nodes=nodes, queues=cell.queues))
    engine.command(FailNodes(ids=("b0", "b1")))
    assert candidates.nodes(engine) == ()
    engine.command(FailNodes(ids=("b2",)))
    assert candidates.nodes(engine) == ("b3", "b4")


def test_those_that_wait_alike_and_those_kept_back_are_told() -> None:
    engine = Engine.open(None, cell=nodes_of(1))
    engine.command(submit(*(work(f"w{i}") for i in range(12))))
    engine.command(Hold(ids=("w5",)))
    engine.command(Suspend(ids=("w6",)))
    assert candidates.waiting(engine) == ("w1", "w2", "w3", "w4", "w7", "w8", "w5", "w6")


def test_work_of_the_lowest_priority_that_was_submitted_last_gives_way_first() -> None:
    engine = Engine.open(None, cell=small_cell(gpu_nodes=3))
    engine.command(submit(workload("high", gpu=8000, priority="high", run=HOUR)))
    engine.command(submit(workload("low-1", gpu=8000, priority="low", run=HOUR)))
    engine.command(submit(workload("low-2", gpu=8000, priority="low", run=HOUR)))
    engine.command(submit(workload("next", gpu=8000, priority="high")))
    assert candidates.giving_way(engine) == ("low-2", "low-1")


def test_an_idle_quota_beside_a_wait_is_told() -> None:
    nominal = {"gpu_milli": 8000}
    queues = (QueueSpec(name="busy", nominal=nominal), QueueSpec(name="idle", nominal=nominal), QueueSpec(name="free"))
    engine = Engine.open(None, cell=nodes_of(2, queues))
    engine.command(submit(*(work(f"w{i}", queue="busy") for i in range(2))))
    assert candidates.idle_queues(engine) == ("idle",)
    facts = gather(lambda ask: ask(engine)).facts
    assert {fact.subject for fact in facts if fact.kind == "queue"} >= {"busy", "idle"}
    assert {fact.subject for fact in facts if fact.kind == "workload"} == {"w0", "w1"}
