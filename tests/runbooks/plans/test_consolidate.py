"""Consolidation through the gate: planned, shown, done exactly so, and refused when anything is no longer as shown."""

from __future__ import annotations

import msgspec
import pytest

from engine.control import Engine
from engine.model.commands import Cancel, Cordon, Requeue, Submit
from engine.model.consolidation_queries import ConsolidationPlan, ConsolidationRequest
from engine.model.errors import RefusedError, SpecError
from engine.twin.consolidation import plan
from runbooks.plans.typed_plan import Proposal, WorkloadMove
from tests.support.cells import small_cell, workload
from tests.support.gates import Person, gate_of

MINUTE = 60_000
HOUR = 60 * MINUTE


@pytest.fixture
def engine() -> Engine:
    """Two nodes with a job of 4 GPU each, 15 minutes old with a checkpoint at 10, and one of 8 GPU that waits."""
    made = Engine.open(None, cell=small_cell(gpu_nodes=2, cpu_nodes=0))
    times = {"estimate": 10 * HOUR, "run": 10 * HOUR, "checkpoint": 10 * MINUTE}
    jobs = [workload(name, gpu=4000, **times) for name in ("h0", "x0", "h1", "x1")]
    made.command(Submit(workloads=tuple(jobs)))
    made.advance(15 * MINUTE)
    made.command(Cancel(ids=("x0", "x1")))
    made.command(Submit(workloads=(workload("big", gpu=8000, estimate=5 * HOUR, run=5 * HOUR),)))
    return made


@pytest.fixture
def gate(engine: Engine) -> Person:
    return Person(gate_of(engine))


def planned(engine: Engine) -> ConsolidationPlan:
    answer = plan(engine, ConsolidationRequest(unblock="big"))
    assert answer.found is not None
    return answer.found


def moves_of(made: ConsolidationPlan) -> tuple[WorkloadMove, ...]:
    return tuple(
        WorkloadMove(id=move.id, was=tuple(place.node for place in move.was), to=move.nodes) for move in made.moves
    )


def proposed(engine: Engine, gate: Person) -> Proposal:
    moves = moves_of(planned(engine))
    return gate.propose("consolidate", [move.id for move in moves], "make room", moves=moves)


def test_it_shows_who_moves_where_at_what_loss_and_what_starts(engine: Engine, gate: Person) -> None:
    before = engine.state.digest()
    proposal = proposed(engine, gate)
    assert (proposal.title, proposal.tier) == ("Move workload h1", "T2")
    assert proposal.steps == ("move h1 (running, 4 GPU, 5 min of work lost) from g1 to g0",)
    effects = {effect.label: (effect.before, effect.after) for effect in proposal.effects}
    assert effects["Waiting"] == ("1", "0")
    assert effects["Moved"] == ("none", "1 workload")
    assert effects["Work lost, if now"] == ("none", "0.3 GPU-h")
    assert effects["GPU fragmentation"] == ("33.3%", "0.0%")
    assert effects["Starts as a result"] == ("none", "big")
    assert engine.state.digest() == before


def test_it_does_exactly_what_was_shown(engine: Engine, gate: Person) -> None:
    proposal = proposed(engine, gate)
    outcome = gate.approve(proposal.id, proposal.digest)
    assert outcome.verified == ("verified: h1 is running on g0",)
    assert [(name, engine.workload(name).placement[0].node) for name in ("h0", "h1", "big")] == [
        ("h0", "g0"), ("h1", "g0"), ("big", "g1"),
    ]  # fmt: skip
    assert engine.workload("h1").kept_ms == 10 * MINUTE
    assert (engine.workload("h0").attempts, engine.workload("h1").attempts) == (1, 2)
    with pytest.raises(RefusedError, match="was executed"):
        gate.approve(proposal.id, proposal.digest)


def test_what_was_moved_meanwhile_makes_it_stale(engine: Engine, gate: Person) -> None:
    proposal = proposed(engine, gate)
    engine.command(Requeue(ids=("h1",)))
    before = engine.state.digest()
    with pytest.raises(RefusedError, match="stale, nothing was done: h1 was shown"):
        gate.approve(proposal.id, proposal.digest)
    assert engine.state.digest() == before


def test_it_is_refused_whole_when_a_place_is_gone(engine: Engine, gate: Person) -> None:
    proposal = proposed(engine, gate)
    engine.command(Cordon(ids=("g0",)))
    before = engine.state.digest()
    with pytest.raises(RefusedError, match="'h1' does not fit on 'g0'"):
        gate.approve(proposal.id, proposal.digest)
    assert engine.state.digest() == before
    assert engine.workload("h1").state == "running"


def test_a_change_elsewhere_does_not_matter(engine: Engine, gate: Person) -> None:
    proposal = proposed(engine, gate)
    engine.command(Submit(workloads=(workload("other", cpu=1000),)))
    assert gate.approve(proposal.id, proposal.digest).verified == ("verified: h1 is running on g0",)


def test_a_move_from_where_it_is_not_is_refused(engine: Engine, gate: Person) -> None:
    [move] = moves_of(planned(engine))
    wrong = msgspec.structs.replace(move, was=("g0",))
    with pytest.raises(RefusedError, match="was to be moved from g0 and is on g1 now"):
        gate.propose("consolidate", ["h1"], moves=(wrong,))


def test_a_move_to_where_there_is_no_room_is_refused_when_proposed(engine: Engine, gate: Person) -> None:
    engine.command(Cordon(ids=("g0",)))
    with pytest.raises(RefusedError, match="does not fit"):
        gate.propose("consolidate", ["h1"], moves=(WorkloadMove(id="h1", was=("g1",), to=("g0",)),))


@pytest.mark.parametrize(
    ("action", "targets", "moves"),
    [
        ("consolidate", ["h1"], ()),
        ("consolidate", ["h0", "h1"], (WorkloadMove(id="h1", was=("g1",), to=("g0",)),)),
        ("consolidate", ["h1"], (WorkloadMove(id="h1", was=("g1",), to=()),)),
        ("requeue", ["h1"], (WorkloadMove(id="h1", was=("g1",), to=("g0",)),)),
    ],
)
def test_moves_belong_to_their_targets_and_to_this_action(
    gate: Person, action: str, targets: list[str], moves: tuple[WorkloadMove, ...]
) -> None:
    with pytest.raises(SpecError, match="moves"):
        gate.propose(action, targets, moves=moves)


def test_what_waits_cannot_be_moved(gate: Person) -> None:
    with pytest.raises(RefusedError, match="big is queued"):
        gate.propose("consolidate", ["big"], moves=(WorkloadMove(id="big", was=("g0",), to=("g1",)),))
