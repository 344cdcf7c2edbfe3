"""Every action of the catalogue, on a real engine: the dry run is the deed, the effect is read back, the way back leads
back."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from effort import examples
from every_action import ACTS, HOUR, MINUTE, MORE, world
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.control import Engine
from engine.model.columns import canonical
from engine.model.errors import NotFoundError, RefusedError
from engine.model.events import AuditEntry
from runbooks.actions import catalogue, target_readings, wording
from runbooks.actions.wording import inverse_of, why_not_inverse
from runbooks.plans.typed_plan import Act, ActionName, Target

SOME = settings(
    max_examples=examples(25), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
EVERY = pytest.mark.parametrize("act", [*ACTS, *MORE], ids=lambda act: f"{act.action}-{act.targets[0]}")


def seen(engine: Engine, act: Act, *, executed: bool = False) -> tuple[Target, ...]:
    return target_readings.read(engine, catalogue.find(act.action), act, executed=executed)


def do(engine: Engine, act: Act) -> tuple[Target, ...]:
    """As the gate does it, without people: checked, resolved, shown, done. Gives what was shown."""
    row = catalogue.find(act.action)
    catalogue.check(act)
    shown = seen(engine, act)
    target_readings.refuse_inapplicable(row, shown)
    target_readings.refuse_outdated(row, act, shown)
    if row.command:
        engine.command(catalogue.command(act))
    return shown


def taken_back(engine: Engine, way_back: tuple[Act, ...]) -> str:
    """Why that is refused; empty when it is done."""
    try:
        for back in way_back:
            do(engine, back)
    except (RefusedError, NotFoundError) as refused:
        return refused.problem
    return ""


def contents(engine: Engine) -> bytes:
    """The whole state but its version, which counts records of the audit too."""
    dump: dict[str, Any] = engine.state.dump()
    dump["scalars"] = {name: value for name, value in dump["scalars"].items() if name != "version"}
    return canonical(dump)


def declared(engine: Engine, act: Act) -> list[object]:
    """What people have declared of the targets, apart from what runs because of it just now."""
    found: list[object] = []
    for target in seen(engine, act, executed=True):
        match catalogue.find(act.action).kind:
            case "workload":
                wants = target.state if target.state in ("held", "suspended") else "to run"
                found.append((target.id, wants, target.was, target.asks, target.approved))
            case "node":
                found.append((target.id, target.state == "ready"))
            case "policy":
                found.append(target.state)
            case "scaling" if target.size is not None:
                found.append((target.size.scaling, target.size.set_for))
            case _:
                facts = msgspec.structs.asdict(target)
                found.append({name: facts[name] for name in facts if name not in ("work", "count", "keeps")})
    return found


def test_there_is_an_act_of_every_action() -> None:
    """But of those that Slurm alone can be asked for: tests/runbooks/actions/test_outside.py has them."""
    here = {name for name in get_args(ActionName) if not catalogue.find(name).only_outside}
    assert {act.action for act in ACTS} == here


@EVERY
def test_the_dry_run_is_the_deed(act: Act) -> None:
    if not catalogue.find(act.action).command:
        return
    engine = world()
    fork, again = engine.fork(), engine.fork()
    for one in (fork, again):
        one.command(catalogue.command(act))
    entry = AuditEntry(at_wall_ms=1, actor="unix:1000", action=act.action, digest="", plan=b"")
    engine.command(catalogue.command(act), audit=entry)
    assert contents(fork) == contents(again) == contents(engine)


@EVERY
def test_its_effect_is_read_back_and_its_absence_too(act: Act) -> None:
    engine = world()
    shown = do(engine, act)
    row = catalogue.find(act.action)
    if act.action == "scale_pool":
        engine.advance(engine.now_ms + 10 * MINUTE)
    for before, now in zip(shown, seen(engine, act, executed=True), strict=True):
        assert catalogue.verdict(act, before, now, in_time=False) == "success", wording.check(act, before, now)
        assert wording.check(act, before, now).startswith("verified: ")
        if row.command and before.state not in ("cordoned",):
            # Nothing was done: what it takes time for is open until its time is over, the rest has failed.
            assert catalogue.verdict(act, before, before, in_time=False) == "failure"
            assert catalogue.verdict(act, before, before, in_time=True) == ("inconclusive" if row.waits else "failure")


@EVERY
def test_the_way_back_leads_back(act: Act) -> None:
    engine = world()
    before = declared(engine, act)
    shown = do(engine, act)
    way_back = inverse_of(act, shown)
    assert bool(way_back) == (catalogue.find(act.action).back is not None)
    assert why_not_inverse(act, shown, way_back) == ""
    for back in way_back:
        do(engine, back)
    if way_back:
        assert declared(engine, act) == before


@SOME
@given(st.lists(st.sampled_from((*ACTS, *MORE)), min_size=1, max_size=4), st.sampled_from([0, 1000, MINUTE, HOUR]))
def test_several_acts_are_taken_back_in_reverse(acts: list[Act], pause_ms: int) -> None:
    """Whatever came before, and however much time passed between."""
    engine = world()
    for act in acts:
        try:
            before = declared(engine, act)
            shown = do(engine, act)
        except (RefusedError, NotFoundError):
            continue
        engine.advance(engine.now_ms + pause_ms)
        way_back = inverse_of(act, shown)
        assert why_not_inverse(act, shown, way_back) == ""
        problem = taken_back(engine, way_back)
        # Its work has ended or begun, its nodes are gone or used, or it is so again already: said by name.
        assert not problem or any(target in problem for back in way_back for target in back.targets)
        if way_back and not problem:
            assert declared(engine, act) == before


@EVERY
def test_a_rollback_that_is_not_the_inverse_is_named(act: Act) -> None:
    shown = seen(world(), act)
    way_back = inverse_of(act, shown)
    for stranger in (Act(action="cordon", targets=("g1",)), Act(action="requeue", targets=(act.targets[0],))):
        assert why_not_inverse(act, shown, (*way_back, stranger))
    if way_back:
        assert why_not_inverse(act, shown, ())
        assert why_not_inverse(act, shown, way_back + way_back)
        first = way_back[0]
        for one in (
            (msgspec.structs.replace(first, targets=(*first.targets, "other")), *way_back[1:]),
            (msgspec.structs.replace(first, targets=("other",)), *way_back[1:]),
        ):
            assert why_not_inverse(act, shown, one)
    assert all(catalogue.find(back.action).back is not None for back in way_back)
