"""Requests changed through the gate: what is shown before, what is done, and how it is taken back."""

from __future__ import annotations

import pytest

from engine.control import Engine
from engine.model.errors import RefusedError, SpecError
from runbooks.actions import catalogue, wording
from runbooks.plans.typed_plan import Act, Proposal, RequestChange, Target
from tests.support.cells import small_cell, submit, workload
from tests.support.gates import Person, gate_of

SECOND = 1000


@pytest.fixture
def engine() -> Engine:
    """Two nodes of 32 cores; `runs` has one for itself, `waits` finds no room beside it."""
    engine = Engine.open(None, cell=small_cell(gpu_nodes=0, cpu_nodes=1))
    engine.command(submit(workload("runs", cpu=30_000, checkpoint=10 * SECOND), workload("waits", cpu=4000)))
    engine.advance(25 * SECOND)
    return engine


def propose(gate: Person, *ids: str, group: str = "", **request: int) -> Proposal:
    change = RequestChange(group=group, request=request, evidence="p95 800m x 1.15")
    return gate.propose("resize", ids, resize=change)


def test_a_plan_shows_before_and_after_and_what_starts_because_of_it(engine: Engine) -> None:
    gate = Person(gate_of(engine))
    proposal = propose(gate, "waits", cpu_milli=1000)
    assert proposal.title == "Resize workload waits"
    assert proposal.steps == ("resize waits (queued, 4 CPU) from 4 CPU to 1 CPU",)
    assert proposal.inverse == "Resize waits back to 4 CPU"
    assert proposal.tier == "T1"
    assert ("Starts as a result", "waits") in [(effect.label, effect.after) for effect in proposal.effects]
    outcome = gate.approve(proposal.id, proposal.digest)
    assert outcome.changed == ("waits",)
    assert outcome.verified == ("verified: waits is running and asks for main: 1 CPU",)
    history = [item.detail for item in engine.workload("waits").history if item.what == "resized"]
    assert history == ["request cut from 4 CPU to 1 CPU: p95 800m x 1.15"]


def test_what_runs_is_riskier_and_its_loss_is_shown(engine: Engine) -> None:
    proposal = propose(Person(gate_of(engine)), "runs", cpu_milli=8000)
    assert proposal.tier == "T2"
    assert proposal.steps == ("resize runs (running, 30 CPU, 5 s of work lost) from 30 CPU to 8 CPU",)
    assert ("Requeued", "1 workload") in [(effect.label, effect.after) for effect in proposal.effects]


def test_what_asks_for_that_already_is_refused(engine: Engine) -> None:
    with pytest.raises(RefusedError, match="already asks for that"):
        propose(Person(gate_of(engine)), "waits", cpu_milli=4000)


def test_a_request_that_changed_meanwhile_makes_the_plan_stale(engine: Engine) -> None:
    gate = Person(gate_of(engine))
    first, second = (propose(gate, "waits", cpu_milli=cpu) for cpu in (3000, 3500))
    gate.approve(first.id, first.digest)
    with pytest.raises(RefusedError, match="another request"):
        gate.approve(second.id, second.digest)


def test_a_resize_without_its_request_and_a_request_without_resize_are_refused() -> None:
    with pytest.raises(SpecError, match="is missing"):
        catalogue.command(Act(action="resize", targets=("a",)))
    with pytest.raises(SpecError, match="has no meaning for cancel"):
        catalogue.command(Act(action="cancel", targets=("a",), resize=RequestChange(request={"cpu_milli": 1})))


def test_reading_back_can_fail() -> None:
    act = Act(action="resize", targets=("w",), resize=RequestChange(request={"cpu_milli": 1000}))
    was = Target(id="w", state="queued", asks=(("main", {"cpu_milli": 4000}),))
    now = Target(id="w", state="queued", asks=(("main", {"cpu_milli": 1000}),))
    assert wording.check(act, was, now).startswith("verified: ")
    assert wording.check(act, was, was).startswith("NOT verified: ")
