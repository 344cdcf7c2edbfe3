"""The actions that take their time, or reach beyond the cell, through the gate: shown, done, judged, taken back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from every_action import HOUR, MINUTE, world
from every_action import job as gpu_job
from gates import ME, Person, gate_of

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, QueueSpec, Resources, Settings
from runbooks.gate.approval_policy import SOLO
from runbooks.plans.typed_plan import Act, Canary, Note, Outcome, QueueChange, Request, StepRequest
from tests.runbooks.gate.test_canary import busy, cell
from tests.support.growing_cells import cell as growing
from tests.support.growing_cells import job, started

START = 1_800_000_000_000


class Room:
    """One person, one gate, and the time on the wall, which moves with that of the cell."""

    def __init__(self, engine: Engine, **policy: Any) -> None:
        self.engine = engine
        self.now_ms = START
        self.gate = gate_of(engine, msgspec.structs.replace(SOLO, **policy), lambda: self.now_ms)
        self.person = Person(self.gate)

    def do(self, act: Act, on_fail: Any = "pause") -> Outcome:
        request = Request(steps=(StepRequest(act=act, on_fail=on_fail),), reason="a test of it")
        shown = self.gate.propose(ME, request)
        return self.person.approve(shown.id, shown.digest)

    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.engine.advance(self.engine.now_ms + milliseconds)
        self.gate.tick()

    def state(self, outcome: Outcome) -> str:
        return self.gate.proposal(outcome.proposal).state


def tried(order: Any = "strict_fifo", **more: Any) -> Act:
    canary = Canary(order=order, window_ms=HOUR, least_starts=5, **more)
    return Act(action="canary", targets=("a",), canary=canary)


def canaried(run_ms: int, starts: int = 10) -> tuple[Room, Outcome]:
    """Ten jobs of five minutes before, and so many of another length after it."""
    room = Room(cell())
    busy(room.engine, "a", 10, 0, 5 * MINUTE, "before")
    room.engine.advance(HOUR)
    outcome = room.do(tried(), "rollback")
    busy(room.engine, "a", starts, 0, run_ms, "after")
    return room, outcome


def test_a_canary_that_stands_the_test_stays() -> None:
    room, outcome = canaried(5 * MINUTE)
    assert (outcome.state, room.engine.queue("a").spec.order) == ("verifying", "strict_fifo")
    room.wait(HOUR - 1)
    assert room.state(outcome) == "verifying"
    room.wait(1)
    assert room.state(outcome) == "verified"
    assert room.engine.queue("a").spec.order == "strict_fifo"
    told = room.gate.proposal(outcome.proposal).standing[0].verified
    assert told == ("verified: a orders by strict_fifo", "verified: waits p95 45m of 10 starts, before 45m of 10: 100%")


def test_a_canary_that_makes_waits_longer_is_taken_back_by_itself() -> None:
    room, outcome = canaried(20 * MINUTE)
    room.wait(HOUR)
    assert room.state(outcome) == "verifying", "three starts prove nothing; there is time for it to be looked at"
    room, outcome = canaried(8 * MINUTE)
    room.wait(HOUR)
    assert room.state(outcome) == "rolled_back"
    assert room.engine.queue("a").spec.order == "best_effort"


def test_a_canary_that_proves_nothing_is_taken_back_when_its_time_is_over() -> None:
    room, outcome = canaried(5 * MINUTE, starts=3)
    room.wait(HOUR)
    assert room.state(outcome) == "verifying"
    room.wait(10 * MINUTE)
    assert room.state(outcome) == "rolled_back"
    assert room.engine.queue("a").spec.order == "best_effort"


def test_a_policy_is_tried_on_the_cell_by_its_name() -> None:
    room = Room(world())
    act = Act(action="canary", targets=("small",), canary=Canary(policy="fcfs", window_ms=HOUR))
    assert room.do(act).state == "verifying"
    assert room.engine.overview().policy == "fcfs"
    with pytest.raises(NotFoundError, match="'other' is not this cell"):
        room.do(msgspec.structs.replace(act, targets=("other",)))
    with pytest.raises(RefusedError, match="already has that"):
        room.do(act)


def test_a_pool_is_verified_when_its_nodes_are_there() -> None:
    room = Room(started(growing(4), job("busy", 8000)))
    outcome = room.do(Act(action="scale_pool", targets=("p",), nodes=6))
    assert outcome.state == "verifying"
    assert outcome.verified == ("not yet: p has 4 nodes, 2 more on order",)
    room.wait(MINUTE)
    assert room.state(outcome) == "verifying"
    room.wait(10 * MINUTE)
    assert room.state(outcome) == "verified"
    room.gate.rollback(ME, outcome.proposal, "not needed after all")
    assert room.state(outcome) == "rolled_back"
    size = room.engine.scaling().pools[0]
    assert (size.ready, size.set_for) == (4, ())


def test_nodes_that_never_come_fail_in_time() -> None:
    room = Room(started(growing(4, enabled=False)))
    room.engine.command(cmd.SetScaling(pool="p", most=5))
    outcome = room.do(Act(action="scale_pool", targets=("p",), nodes=5))
    room.engine.command(cmd.SetTargets(pool="p"))
    for node in [f"n{i}" for i in range(4)]:
        room.engine.command(cmd.FailNodes(ids=(node,)))
    room.engine.command(cmd.RemoveNodes(ids=("n0", "n1")))
    room.wait(29 * MINUTE)
    assert room.state(outcome) == "verifying"
    room.wait(2 * MINUTE)
    assert room.state(outcome) == "paused"


def test_work_that_gives_way_is_shown_with_what_it_loses() -> None:
    room = Room(world())
    shown = room.person.propose("preempt", ["run1", "run2"], "to let others in")
    assert shown.title == "Preempt 2 workloads"
    assert shown.steps[0].startswith("preempt run1 (running, 8 GPU")
    assert shown.tier == "T2"
    assert shown.plan.blast.workloads == 2
    room.person.approve(shown.id, shown.digest)
    assert room.engine.workload("run1").state == "waiting"


def test_what_the_rules_protect_is_refused_when_it_is_proposed() -> None:
    engine = world()
    spec = msgspec.structs.replace(engine.queue("b").spec, min_runtime_ms=HOUR)
    engine.command(cmd.ChangeQueue(queue=spec))
    with pytest.raises(RefusedError, match="'run2' has run for"):
        Room(engine).person.propose("preempt", ["run2"])


def test_who_has_to_give_way_to_a_priority_is_named_and_raises_the_tier() -> None:
    engine = world()
    engine.command(cmd.SetSettings(settings=msgspec.structs.replace(engine.state.settings, preempt_after_ms=0)))
    engine.command(cmd.Cancel(ids=("wait1", "wait2", "held1")))
    engine.command(cmd.Cordon(ids=("g2",)))
    engine.advance(MINUTE)
    engine.command(cmd.Submit(workloads=(gpu_job("urgent", gpu=8000),)))
    room = Room(engine)
    shown = room.person.propose("set_priority", ["urgent"], "for the deadline", to="high")
    assert shown.plan.steps[0].stops[0].id in ("run1", "gang")
    assert shown.tier == "T2"
    assert shown.why_tier == ("it stops running work",)
    assert shown.plan.blast.workloads == len(shown.plan.steps[0].stops) > 0
    room.person.approve(shown.id, shown.digest)
    assert engine.workload("urgent").state == "running"


def test_nothing_else_can_be_told_than_channels_of_the_policy() -> None:
    room = Room(world(), channels=(("ops", "log:"),))
    before = room.engine.state.digest()
    outcome = room.do(Act(action="notify", targets=("ops",), note=Note(text="see http://x/1 {{ x }}")))
    assert outcome.state == "verified"
    assert room.engine.state.digest() == before
    with pytest.raises(RefusedError, match="the policy names no channel dev"):
        room.do(Act(action="notify", targets=("ops", "dev"), note=Note(text="x")))
    with pytest.raises(SpecError, match="not a valid id"):
        room.do(Act(action="notify", targets=("https://x",), note=Note(text="x")))


def test_a_review_is_opened_and_leaves_the_cell_alone() -> None:
    room = Room(world())
    before = room.engine.state.digest()
    outcome = room.do(Act(action="open_review", targets=("run1",), note=Note(text="why was it drained twice?")))
    assert outcome.state == "verified"
    assert room.engine.state.digest() == before


def test_a_move_shows_where_from_and_where_to() -> None:
    room = Room(world())
    shown = room.person.propose("move", ["wait1", "held1"], to="b")
    assert shown.steps == ("move wait1 (queued, 24 GPU): a -> b", "move held1 (held, 24 GPU): a -> b")
    assert shown.inverse == "Move the same 2 workloads back to a, while not yet started"
    with pytest.raises(RefusedError, match="run1 is running"):
        room.person.propose("move", ["run1"], to="b")
    with pytest.raises(SpecError, match="no queue 'nowhere'"):
        room.person.propose("move", ["wait1"], to="nowhere")
    with pytest.raises(SpecError, match="there is no 'urgent'"):
        room.person.propose("set_priority", ["wait1"], to="urgent")


def test_a_way_back_that_is_no_longer_possible_is_not_called_done() -> None:
    """What was released has started since: to hold it would need it to be stopped, which nobody voted for."""
    room = Room(world())
    room.engine.command(cmd.Submit(workloads=(msgspec.structs.replace(gpu_job("small", gpu=0), held=True),)))
    outcome = room.do(Act(action="release", targets=("small",)))
    assert room.engine.workload("small").state == "running"
    with pytest.raises(RefusedError, match="small is running"):
        room.gate.rollback(ME, outcome.proposal, "held for a reason")
    assert room.state(outcome) == "verified", "nothing was begun"


def test_what_has_ended_or_is_so_again_needs_no_way_back() -> None:
    room = Room(world())
    outcome = room.do(Act(action="suspend", targets=("run1", "wait1")))
    room.engine.command(cmd.Cancel(ids=("run1",)))
    room.engine.command(cmd.Resume(ids=("wait1",)))
    assert room.gate.rollback(ME, outcome.proposal, "not needed").state == "rolled_back"
    outcome = room.do(Act(action="drain", targets=("g0", "g1")))
    room.engine.command(cmd.FailNodes(ids=("g0",)))
    assert room.gate.rollback(ME, outcome.proposal, "not needed").state == "rolled_back"
    assert [room.engine.node(name).state for name in ("g0", "g1")] == ["down", "ready"]


def test_a_way_back_that_stops_nothing_is_taken_though_its_action_is_riskier() -> None:
    """An open queue that drained drains again: nothing has started there meanwhile."""
    room = Room(world())
    outcome = room.do(Act(action="open_queue", targets=("c",)))
    assert room.gate.rollback(ME, outcome.proposal, "too early").state == "rolled_back"
    assert room.engine.queue("c").mode == "draining"
    outcome = room.do(Act(action="open_queue", targets=("c",)))
    room.engine.command(cmd.Submit(workloads=(gpu_job("there", gpu=0, queue="c"),)))
    assert room.engine.workload("there").state == "running"
    with pytest.raises(RefusedError, match="stops 1 workload that runs now: there"):
        room.gate.rollback(ME, outcome.proposal, "too early")
    assert room.state(outcome) == "verified", "nothing was begun"
    assert room.engine.workload("there").state == "running"


def test_a_larger_quota_names_those_whose_borrowed_places_are_taken_back() -> None:
    """Queue b borrows a node; when a gets quota of its own, what waits there takes it back in the next cycle."""
    none = QueueSpec(name="a", parent="root", nominal={"gpu_milli": 0}, borrowing_limit={"gpu_milli": 0})
    some = msgspec.structs.replace(none, nominal={"gpu_milli": 8000})
    spec = CellSpec(
        pools=(PoolSpec(name="gpu", capacity=Resources(cpu_milli=64_000, memory_mib=1000, gpu_milli=8000)),),
        nodes=(NodeSpec(id="g0", pool="gpu"), NodeSpec(id="g1", pool="gpu")),
        queues=(QueueSpec(name="root", nominal={"gpu_milli": 8000}), some, QueueSpec(name="b", parent="root")),
        settings=Settings(preempt_after_ms=0),
    )
    engine = Engine.open(None, cell=spec)
    engine.command(cmd.Submit(workloads=(msgspec.structs.replace(gpu_job("a1", gpu=8000), held=True),)))
    engine.command(cmd.ChangeQueue(queue=none))
    engine.command(cmd.Release(ids=("a1",)))
    engine.command(cmd.Submit(workloads=tuple(gpu_job(f"b{i}", gpu=8000, queue="b") for i in range(2))))
    assert engine.overview().states["queued"] == 2
    engine.command(cmd.ChangeQueue(queue=msgspec.structs.replace(spec.queues[0], nominal={"gpu_milli": 16_000})))
    assert [engine.workload(name).state for name in ("a1", "b0", "b1")] == ["queued", "running", "running"]
    room = Room(engine)
    shown = room.person.propose("set_quota", ["a"], "their turn", queue=QueueChange(was=none, to=some))
    assert [work.id for work in shown.plan.steps[0].stops] == ["b1"]
    assert (shown.tier, shown.plan.blast.workloads) == ("T2", 1)
    assert any(step.startswith("requeue b1 (running, 8 GPU") for step in shown.steps)
    room.person.approve(shown.id, shown.digest)
    assert [engine.workload(name).state for name in ("a1", "b0", "b1")] == ["running", "running", "queued"]
