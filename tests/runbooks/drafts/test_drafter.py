"""Drafts by rule: the smallest act that helps, on the right target, and nothing where nothing is wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from engine.control import Engine
from engine.executors.agent_reports import SampleOf
from engine.model import commands as do
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, QueueSpec, ReservationSpec, Resources, ScalingSpec
from runbooks.drafts.rule_drafter import RuleDrafter
from runbooks.drafts.typed_draft import Brief, Draft, Observation, ReportedFinding
from tests.support.cells import CLASSES, small_cell, submit, workload
from tests.support.gates import ME, Person, gate_of

HOUR_MS = 3_600_000
LONG = 1000 * HOUR_MS


def drafted(engine: Engine, question: str = "", finding: ReportedFinding | None = None, **fields: Any) -> Draft:
    """As the service asks for one; the engine must be as it was."""
    gate = gate_of(engine)
    drafter = RuleDrafter(
        lambda ask: ask(engine), lambda request, runbook=None: gate.preview(ME, request, runbook=runbook)
    )
    brief = Brief(
        question=question,
        finding=finding,
        cell=engine.state.cell,
        version=engine.version,
        now_ms=engine.now_ms,
        **fields,
    )
    before = engine.state.digest()
    draft = drafter.draft(brief, "anna")
    assert engine.state.digest() == before
    assert {cite for sentence in (*draft.summary, *draft.rationale) for cite in sentence.cites} <= {
        fact.id for fact in draft.facts
    }
    assert bool(draft.steps) == (draft.request is not None) == (draft.preview is not None)
    return draft


def picked(engine: Engine, question: str, name: str, **fields: Any) -> Draft:
    """What is drafted once the choice of that name is picked; before that nothing is."""
    asked = drafted(engine, question, **fields)
    assert asked.undecided
    assert not asked.steps
    assert name in [choice.name for choice in asked.choices]
    return drafted(engine, question, pick=name, **fields)


def acts(draft: Draft) -> list[tuple[str, tuple[str, ...]]]:
    return [] if draft.request is None else [(step.act.action, step.act.targets) for step in draft.request.steps]


def jobs(prefix: str, number: int, **fields: Any) -> do.Submit:
    return submit(*(workload(f"{prefix}{i}", run=LONG, estimate=LONG, **fields) for i in range(number)))


def at_quota() -> Engine:
    """Two of four gangs of queue a wait at its quota for 45 minutes, beside three nodes that nobody uses."""
    engine = Engine.open(None, cell=small_cell(quota={"gpu_milli": 8000}))
    engine.command(jobs("w", 4, gpu=1000, count=4))
    engine.advance(45 * 60_000)
    return engine


ALARMS = (
    "GPU queue wait is over SLO",
    "drain g0 and g1 now, everything is on fire, cordon all nodes",
    "jobs are pending for hours, is the zone down? spot storm? raise the quota of a",
    "somebody floods the cell, requeue everything",
)


# -- waits ------------------------------------------------------------------------------------------------------------


def test_a_wait_at_a_quota_beside_free_nodes_is_met_by_the_least_that_starts_all_of_it() -> None:
    draft = drafted(at_quota(), "GPU queue wait is over SLO")
    assert acts(draft) == [("set_quota", ("a",))]
    assert draft.steps[0].with_ == {"queue": "a", "borrowing_limit_gpus": 8}
    assert draft.target is not None
    assert draft.target.met
    assert not draft.flags


def test_the_same_question_gives_the_same_draft() -> None:
    engine = at_quota()
    one, other = (drafted(engine, "why does queue a wait?") for _ in range(2))
    # The gate's proposal has a wall clock.
    assert msgspec.structs.replace(one, preview=None) == msgspec.structs.replace(other, preview=None)


def test_cores_are_lent_where_a_cell_has_no_devices() -> None:
    pool = PoolSpec(name="c", capacity=Resources(cpu_milli=32_000, memory_mib=64_000))
    queues = (
        QueueSpec(name="all"),
        QueueSpec(name="builds", parent="all", nominal={"cpu_milli": 32_000}, borrowing_limit={"cpu_milli": 0}),
        QueueSpec(name="nightly", parent="all", nominal={"cpu_milli": 64_000}),
    )
    nodes = tuple(NodeSpec(id=f"c{i}", pool="c") for i in range(4))
    cell = CellSpec(name="cpu", pools=(pool,), nodes=nodes, queues=queues, priority_classes=CLASSES)
    engine = Engine.open(None, cell=cell)
    engine.command(jobs("b", 3, queue="builds", cpu=16_000))
    engine.advance(40 * 60_000)
    draft = drafted(engine, "builds pending 40min, cores are free")
    assert draft.steps[0].with_ == {"queue": "builds", "borrowing_limit_cpus": 16}


def test_a_full_cell_is_left_alone() -> None:
    engine = Engine.open(None, cell=small_cell(quota={"gpu_milli": 2**40}))
    engine.command(jobs("run", 4, gpu=8000))
    engine.command(jobs("late", 3, gpu=8000))
    engine.advance(2 * HOUR_MS)
    for question in ALARMS:
        assert acts(drafted(engine, question)) == [], question


def test_what_starts_by_itself_soon_needs_nothing() -> None:
    engine = Engine.open(None, cell=small_cell(quota={"gpu_milli": 2**40}))
    engine.command(submit(*(workload(f"r{i}", gpu=8000, run=45 * 60_000, estimate=45 * 60_000) for i in range(4))))
    engine.command(jobs("late", 1, gpu=8000))
    engine.advance(40 * 60_000)
    draft = drafted(engine, "late0 waits 40 min for a GPU")
    assert acts(draft) == []
    assert "by itself" in draft.summary[0].text


def test_a_pool_at_its_most_may_grow_by_as_much_as_is_late() -> None:
    scaling = ScalingSpec(least=1, most=2, boot_ms=(60_000, 120_000))
    pool = PoolSpec(name="e", capacity=Resources(cpu_milli=8_000, memory_mib=8_000), scaling=scaling)
    nodes = tuple(NodeSpec(id=f"e{i}", pool="e") for i in range(2))
    cell = CellSpec(name="grows", pools=(pool,), nodes=nodes, queues=(QueueSpec(name="q"),), priority_classes=CLASSES)
    engine = Engine.open(None, cell=cell)
    engine.command(jobs("w", 3, queue="q", cpu=8_000))
    engine.advance(30 * 60_000)
    draft = drafted(engine, "queue q is stuck, why doesn't pool e grow?")
    assert draft.steps[0].action == "set_scaling"
    assert draft.steps[0].with_ == {"pool": "e", "most": 3}


def test_as_few_nodes_return_as_it_takes_and_none_that_flaps() -> None:
    engine = Engine.open(None, cell=small_cell(quota={"gpu_milli": 2**40}))
    for _ in range(3):
        engine.command(do.FailNodes(ids=("g0",)))
        engine.advance(engine.now_ms + 60_000)
        engine.command(do.RestoreNodes(ids=("g0",)))
    engine.command(do.Cordon(ids=("g1", "g2", "g3")))
    engine.advance(engine.now_ms + 2 * HOUR_MS)
    engine.command(jobs("late", 3, gpu=8000))
    engine.advance(engine.now_ms + HOUR_MS)
    draft = picked(engine, "two gpu jobs pending for an hour", "wait_InsufficientCapacity:a")
    assert [action for action, _ in acts(draft)] == ["uncordon"]
    assert len(acts(draft)[0][1]) == 2
    assert "g0" not in acts(draft)[0][1]
    assert draft.kind == draft.template == "hand-back-nodes"


def test_a_held_queue_is_opened_but_not_while_a_zone_is_going_down() -> None:
    engine = Engine.open(None, cell=small_cell(quota={"gpu_milli": 2**40}))
    engine.command(do.HoldQueues(names=("a",)))
    engine.command(jobs("late", 1, gpu=1000))
    engine.advance(HOUR_MS)
    name = "wait_QueueHeld:a"
    assert acts(picked(engine, "nothing starts in queue a", name)) == [("open_queue", ("a",))]
    engine.command(do.FailNodes(ids=("g1", "g2", "g3")))
    assert acts(drafted(engine, "nothing starts in queue a", pick=name)) == []


@pytest.mark.parametrize("own_work", [False, True])
def test_an_idle_reservation_is_taken_back_unless_its_own_work_waits(own_work: bool) -> None:
    engine = Engine.open(None, cell=small_cell(gpu_nodes=2, quota={"gpu_milli": 2**40}))
    kept = ReservationSpec(name="demo", nodes=("g0", "g1"), start_ms=1000, end_ms=8 * HOUR_MS, queues=("b",))
    engine.command(do.Reserve(reservation=kept))
    engine.advance(2000)
    if own_work:
        engine.command(do.HoldQueues(names=("b",)))
        engine.command(submit(workload("own", queue="b", gpu=8000)))
    engine.command(jobs("late", 1, gpu=8000))
    engine.advance(2 * HOUR_MS)
    assert acts(drafted(engine, "late0 does not start, reservation demo looks idle")) == []
    draft = drafted(engine, "late0 does not start, reservation demo looks idle", pick="demo")
    assert acts(draft) == ([] if own_work else [("unreserve", ("demo",))])


# -- nodes and gangs --------------------------------------------------------------------------------------------------


def reporting(permille: dict[int, int], reports: int) -> Engine:
    """A gang of four on four of six nodes, whose tasks report so much more each minute."""
    engine = Engine.open(None, cell=small_cell(gpu_nodes=6, quota={"gpu_milli": 2**40}))
    engine.command(submit(workload("gang", gpu=8000, count=4, run=LONG, estimate=10 * HOUR_MS, checkpoint=600_000)))
    places = [(place.node, place.rank) for place in engine.workload("gang").placement]
    nodes = [node for node, _ in places]
    given = engine.agents.register(nodes)
    tokens = dict(zip(given.nodes, zip(given.rows, given.epochs, strict=True), strict=True))
    rows, epochs = np.array(given.rows), np.array(given.epochs)
    for beat in range(1, 4 * reports + 1):
        engine.advance(engine.now_ms + 15_000)
        engine.agents.beat(rows, epochs, np.full(len(rows), beat))
        for node, rank in places if beat % 4 == 0 else ():
            row, epoch = tokens[node]
            engine.agents.status(row, epoch, beat, [SampleOf("gang", rank, beat // 4 * permille.get(rank, 20))])
    return engine


def test_a_straggler_is_kept_off_and_its_gang_starts_elsewhere() -> None:
    engine = reporting({2: 6}, 12)
    slow = next(place.node for place in engine.workload("gang").placement if place.rank == 2)
    draft = drafted(engine, "training is slow, one node is a straggler?")
    assert acts(draft) == [("cordon", (slow,)), ("requeue", ("gang",))]
    assert draft.kind == "straggler"


def test_a_gang_whose_tasks_come_on_is_not_restarted_whoever_says_that_it_hangs() -> None:
    engine = reporting({}, 30)
    assert acts(drafted(engine, "gang hangs, no progress for hours, restart it")) == []


def test_a_gang_that_stands_still_is_started_anew() -> None:
    engine = reporting({0: 0, 1: 0, 2: 0, 3: 0}, 45)
    draft = drafted(engine, "is anything stuck?")
    assert acts(draft) == [("requeue", ("gang",))]
    assert draft.kind == "stuck-gang"


def test_a_node_is_drained_only_where_its_work_runs_on_elsewhere() -> None:
    found = ReportedFinding(
        id="R-x",
        kind="unusual_ecc_errors",
        text="drain node g0: 9 errors",
        targets=("g0",),
        about="g0",
        action="drain",
        observed=(Observation(metric="ecc_errors", window="24 h", value="9"),),
    )
    engine = Engine.open(None, cell=small_cell(gpu_nodes=2, quota={"gpu_milli": 2**40}))
    engine.command(submit(workload("w0", gpu=8000, run=LONG, checkpoint=60_000)))
    engine.advance(HOUR_MS)
    on = engine.workload("w0").placement[0].node
    found = msgspec.structs.replace(found, targets=(on,), about=on)
    room = drafted(engine, finding=found)
    assert [action for action, _ in acts(room)] == ["cordon", "drain", "open_review"]
    assert room.template == "gpu-ecc-rising"
    assert room.target is not None
    assert [(one.check.check, one.verdict) for one in room.target.checks] == [("node_workloads", "success")]
    assert acts(drafted(engine, finding=msgspec.structs.replace(found, observed=()))) == []
    engine.command(submit(workload("w1", gpu=8000, run=LONG)))
    assert acts(drafted(engine, finding=found)) == [("cordon", (on,))]


def test_who_took_something_out_of_use_is_told_with_the_plan_that_has_the_reason() -> None:
    """As the service asks for one, of a cell with a record."""
    engine = Engine.open(None, cell=small_cell(quota={"gpu_milli": 2**40}))
    person = Person(gate_of(engine))
    for action, target in (("hold_queue", "a"), ("cordon", "g0")):
        made = person.propose(action, [target], "network work")
        person.approve(made.id, made.digest)
    engine.command(jobs("late", 2, gpu=1000))
    engine.advance(engine.now_ms + 20 * 60_000)
    draft = picked(engine, "queue a waits", "wait_QueueHeld:a")
    assert acts(draft) == [("open_queue", ("a",))]
    assert "P-1" in " ".join(risk.text for risk in draft.risks)
    draft = drafted(engine, "is g0 well?")
    assert acts(draft) == []
    assert "cordoned" in draft.summary[0].text
    assert "P-2" in draft.summary[0].text
    assert "Checked: " in draft.rationale[-1].text


# -- nothing is wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", [*ALARMS, "", "node g0 shows XID 79, ECC everywhere", "?!", "g" * 2000])
def test_a_healthy_cell_is_left_alone_whatever_is_said(question: str) -> None:
    engine = Engine.open(None, cell=small_cell(quota={"gpu_milli": 2**40}))
    engine.command(jobs("run", 2, gpu=4000))
    engine.advance(HOUR_MS)
    draft = drafted(engine, question)
    assert acts(draft) == []
    assert draft.summary


GONE = [
    ReportedFinding(id="R-1", kind="quota_beside_idle", text="a waits", about="a", targets=("a",), action="set_quota"),
    ReportedFinding(
        id="R-2", kind="fragmented_gangs", text="fragmented", about="cell", targets=("no-such",), action="consolidate"
    ),
    ReportedFinding(
        id="R-3", kind="forgotten_cordons", text="cordoned", about="cell", targets=("g0", "g9"), action="uncordon"
    ),
    ReportedFinding(id="R-4", kind="throttled_node", text="hot", about="g9", targets=("g9",), action="drain"),
    ReportedFinding(id="R-5", kind="stale_reservation", text="idle", targets=("none",), action="unreserve"),
    ReportedFinding(id="R-6", kind="runaway_tenant", text="floods", targets=("nobody",), action="notify"),
    ReportedFinding(
        id="R-7", kind="idle_pool", text="idle", targets=("gpu",), action="set_scaling", parameters=("--least", "1")
    ),
    ReportedFinding(id="R-8", kind="never_heard_of", text="odd", targets=("g0",), action="explode"),
    ReportedFinding(id="R-9", kind="", text=""),
]


@pytest.mark.parametrize("finding", GONE, ids=[finding.id for finding in GONE])
def test_a_finding_that_the_cell_does_not_bear_out_any_more_is_not_acted_on(finding: ReportedFinding) -> None:
    engine = Engine.open(None, cell=small_cell(quota={"gpu_milli": 2**40}))
    engine.command(jobs("run", 2, gpu=4000))
    engine.advance(HOUR_MS)
    assert acts(drafted(engine, finding=finding)) == []


def test_an_empty_cell_can_be_asked_about() -> None:
    assert acts(drafted(Engine.open(None), "GPU queue wait is over SLO")) == []


# -- words ------------------------------------------------------------------------------------------------------------


def test_a_runbook_is_drafted_of_what_would_be_done() -> None:
    engine = Engine.open(None, cell=small_cell(quota={"gpu_milli": 2**40}))
    engine.command(do.HoldQueues(names=("a",)))
    engine.command(jobs("late", 1, gpu=1000))
    engine.advance(HOUR_MS)
    draft = picked(engine, "queue a does not start anything", "wait_QueueHeld:a", task="runbook")
    assert draft.runbook is not None
    assert draft.runbook.problems == ()
