"""How pools grow and shrink is set through the gate: shown, approved, done, and refused when it makes no sense."""

from __future__ import annotations

from typing import Any

import pytest

from engine.control import Engine
from engine.model.commands import SetScaling
from engine.model.errors import MusterError, NotFoundError, RefusedError, SpecError
from engine.model.spec_parts import PRESETS
from runbooks.plans.typed_plan import ScalingChange
from tests.support.gates import Person, gate_of
from tests.support.growing_cells import HOUR, cell, started


def asked(engine: Engine, action: str, target: str, **change: Any) -> tuple[Person, Any]:
    gate = Person(gate_of(engine))
    return gate, gate.propose(action, (target,), scaling=ScalingChange(**change))


def test_the_size_of_a_pool_is_shown_and_then_set() -> None:
    engine = started(cell(2, least=1))
    gate, proposal = asked(engine, "set_scaling", "p", least=3, headroom=1)
    assert proposal.title == "Set the size of pool p"
    assert proposal.steps == ("set-scaling p: least 1, headroom 0 -> least 3, headroom 1",)
    assert "back to least 1, headroom 0" in proposal.inverse
    assert proposal.tier == "T1"
    outcome = gate.approve(proposal.id, proposal.digest)
    scaling = engine.state.capacity.pools[0].scaling
    assert scaling is not None
    assert (scaling.least, scaling.headroom, scaling.most) == (3, 1, 20)
    assert outcome.verified == ("verified: p has the new setting",)


def test_a_fixed_pool_is_made_to_grow() -> None:
    engine = started(cell(1, fixed=1))
    gate, proposal = asked(engine, "set_scaling", "fixed", most=4)
    assert proposal.steps == ("set-scaling fixed: is not autoscaled -> most 4",)
    gate.approve(proposal.id, proposal.digest)
    assert engine.scaling().pools[1].scaling is not None


def test_targets_are_shown_in_order_and_taken_back() -> None:
    engine = started(cell(1))
    gate, proposal = asked(engine, "set_targets", "p", targets=((4 * HOUR, 0), (2 * HOUR, 6)))
    at = "1970-01-01 0{}:00:00 UTC"
    assert proposal.steps == (f"set-targets p: nothing set -> 6 nodes from {at.format(2)}, 0 from {at.format(4)}",)
    gate.approve(proposal.id, proposal.digest)
    assert engine.scaling().pools[0].set_for == ((2 * HOUR, 6), (4 * HOUR, 0))
    gate, back = asked(engine, "set_targets", "p")
    assert back.steps[0].endswith("-> nothing set")
    gate.approve(back.id, back.digest)
    assert engine.scaling().pools[0].set_for == ()


def test_settings_of_the_autoscaler_are_named_where_they_change() -> None:
    engine = started(cell(1))
    gate, proposal = asked(
        engine, "set_autoscaling", "autoscaler", settings={"predict_permille": 900, "scan_every_ms": 30_000}
    )
    assert proposal.title == "Set the autoscaler"
    assert proposal.steps == ("set-autoscaling autoscaler: predict_permille 0 -> predict_permille 900",)
    gate.approve(proposal.id, proposal.digest)
    gate, preset = asked(engine, "set_autoscaling", "autoscaler", preset="ca")
    gate.approve(preset.id, preset.digest)
    assert engine.scaling().settings == PRESETS["ca"]


def test_what_was_changed_meanwhile_is_not_overwritten() -> None:
    engine = started(cell(1))
    gate, proposal = asked(engine, "set_scaling", "p", least=3)
    engine.command(SetScaling(pool="p", most=9))
    with pytest.raises(RefusedError, match="has changed"):
        gate.approve(proposal.id, proposal.digest)


@pytest.mark.parametrize(
    ("action", "target", "change", "error", "said"),
    [
        ("set_scaling", "nowhere", {"least": 1}, NotFoundError, "there is no pool 'nowhere'"),
        ("set_scaling", "p", {"least": 0}, RefusedError, "already has that"),
        ("set_scaling", "p", {"least": 30}, SpecError, "more than most"),
        ("set_scaling", "fixed", {"least": 1}, SpecError, "most"),
        ("set_targets", "fixed", {"targets": ((0, 1),)}, RefusedError, "fixed is fixed"),
        ("set_targets", "p", {"targets": ((0, 21),)}, SpecError, "above the pool's maximum"),
        ("set_targets", "p", {}, RefusedError, "already has that"),
        ("set_autoscaling", "p", {"preset": "ca"}, SpecError, "not autoscaler"),
        ("set_autoscaling", "autoscaler", {"preset": "fast"}, SpecError, "no 'fast'"),
        ("set_autoscaling", "autoscaler", {"settings": {"enabled": True}}, RefusedError, "already has that"),
        ("set_autoscaling", "autoscaler", {"settings": {"order_timeout_ms": 1000}}, SpecError, "pool 'p'.*over and"),
    ],
)
def test_what_makes_no_sense_is_refused(
    action: str, target: str, change: dict[str, Any], error: type[MusterError], said: str
) -> None:
    engine = started(cell(1, fixed=1))
    version = engine.version
    with pytest.raises(error, match=said):
        asked(engine, action, target, **change)
    assert engine.version == version


def test_other_actions_take_no_change_of_scaling() -> None:
    engine = started(cell(1))
    with pytest.raises(SpecError, match="no meaning"):
        asked(engine, "cordon", "n0", least=1)
    with pytest.raises(SpecError, match="missing"):
        Person(gate_of(engine)).propose("set_scaling", ("p",))
