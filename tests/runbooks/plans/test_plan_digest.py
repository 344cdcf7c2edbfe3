"""What a vote binds to: a canonical form without floats, in which every field counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import rfc8785
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.errors import SpecError
from runbooks.plans.checks import Check
from runbooks.plans.typed_plan import Act, EvidenceRef, Limits, Plan, Request, StepRequest, plan_digest
from tests.support.gate_cells import Clock, busy_engine
from tests.support.gates import ME, gate_of


def types_in(node: Any, seen: set[type]) -> Iterator[Any]:
    """Every type in a type's tree, each struct once."""
    if isinstance(node, msgspec.inspect.StructType):
        if node.cls in seen:
            return
        seen.add(node.cls)
    yield node
    for field in getattr(node, "fields", ()):
        yield from types_in(field.type, seen)
    for name in ("item_type", "key_type", "value_type"):
        if isinstance(inner := getattr(node, name, None), msgspec.inspect.Type):
            yield from types_in(inner, seen)
    for inner in (*getattr(node, "types", ()), *getattr(node, "item_types", ())):
        yield from types_in(inner, seen)


def test_no_float_and_nothing_without_a_type_is_anywhere_in_a_plan() -> None:
    found = list(types_in(msgspec.inspect.type_info(Plan), set()))
    wrong = (msgspec.inspect.FloatType, msgspec.inspect.DecimalType, msgspec.inspect.AnyType, msgspec.inspect.RawType)
    assert not [node for node in found if isinstance(node, wrong)]
    assert len([node for node in found if isinstance(node, msgspec.inspect.StructType)]) > 10, "it was looked at"


def test_what_is_asked_for_refuses_fields_that_there_are_not() -> None:
    nodes = types_in(msgspec.inspect.type_info(Request), set())
    structs = [node for node in nodes if isinstance(node, msgspec.inspect.StructType)]
    open_ = {node.cls.__name__ for node in structs if not node.forbid_unknown_fields}
    assert not open_, "an unknown field is refused, never left out"


@pytest.fixture(scope="module")
def plan() -> Plan:
    steps = (
        StepRequest(
            act=Act(action="hold", targets=("w0",)),
            pre=(Check(check="cell_waiting", op=">=", value=1),),
            on_fail="abort",
        ),
        StepRequest(act=Act(action="drain", targets=("n0",)), confirm="operator"),
    )
    request = Request(
        steps=steps, reason="why", requester="ann", limits=Limits(nodes=3), start="asked",
        evidence=(EvidenceRef(id="e1", sha256="a" * 64),),
    )  # fmt: skip
    return gate_of(busy_engine(), clock=Clock()).propose(ME, request).plan


def edits(value: Any) -> Iterator[Any]:
    """The same with one thing in it other than it is, for each thing in it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ({**value, key: other} for other in edits(inner))
            yield {other: inner for other, inner in value.items() if other != key}
        yield {**value, "more": 1}
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from ([*value[:i], other, *value[i + 1 :]] for other in edits(inner))
        yield [*value, 1]
        if len(value) > 1 and value != value[::-1]:
            yield value[::-1]
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, str):
        yield value + "."
    else:
        yield 0


def test_changing_any_single_thing_changes_the_digest(plan: Plan) -> None:
    whole = json.loads(plan.canonical())
    digests = [plan_digest(rfc8785.dumps(edited)) for edited in edits(whole)]
    assert len(digests) > 200
    assert plan.digest() == plan_digest(rfc8785.dumps(whole))
    assert len(set(digests)) == len(digests)
    assert plan.digest() not in digests


def test_the_canonical_form_is_read_back_as_the_same_plan(plan: Plan) -> None:
    assert msgspec.json.decode(plan.canonical(), type=Plan) == plan


def test_a_digest_is_in_a_domain_of_its_own(plan: Plan) -> None:
    import hashlib

    assert plan.digest() == hashlib.sha256(b"muster/plan/v1\n" + plan.canonical()).hexdigest()
    assert plan.digest() != hashlib.sha256(plan.canonical()).hexdigest()


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
NUMBER = st.integers(-(2**53) + 1, 2**53 - 1)


@settings(max_examples=examples(200), deadline=None, database=None)
@given(data=st.data())
def test_the_canonical_form_is_that_of_rfc_8785(plan: Plan, data: st.DataObject) -> None:
    """With any text in it, of any script, and any number that JSON can tell."""
    step = plan.steps[0]
    target = msgspec.structs.replace(
        step.shown[0], id=data.draw(TEXT), state=data.draw(TEXT), gpu_milli=data.draw(NUMBER),
        asks=((data.draw(TEXT), data.draw(st.dictionaries(st.sampled_from(("gpu_milli", "cpu_milli", "x")), NUMBER))),),
    )  # fmt: skip
    other = msgspec.structs.replace(
        plan, requester=data.draw(TEXT), expires_ms=data.draw(NUMBER),
        steps=(msgspec.structs.replace(step, shown=(target,)), *plan.steps[1:]),
    )  # fmt: skip
    assert other.canonical() == rfc8785.dumps(json.loads(other.canonical()))
    assert msgspec.json.decode(other.canonical(), type=Plan) == other


BEYOND = (2**53, 2**63, 2**80, -(2**53))


@pytest.mark.parametrize("number", BEYOND)
def test_numbers_that_json_cannot_tell_are_refused(number: int) -> None:
    gate = gate_of(busy_engine(), clock=Clock())
    hold = Act(action="hold", targets=("w0",))
    for request in (
        Request(steps=(StepRequest(act=hold, verify=(Check(check="cell_waiting", op="<=", value=number),)),)),
        Request(steps=(StepRequest(act=hold, pre=(Check(check="cell_waiting", op=">=", value=number),)),)),
        Request(steps=(StepRequest(act=hold),), limits=Limits(nodes=number)),
        Request(steps=(StepRequest(act=hold),), limits=Limits(duration_ms=number)),
        Request(steps=(StepRequest(act=Act(action="scale_pool", targets=("p",), nodes=number)),)),
    ):
        with pytest.raises(SpecError):
            gate.propose(ME, request)


def test_the_same_act_proposed_twice_has_two_digests() -> None:
    """A vote cannot travel: number, revision and author are inside."""
    gate = gate_of(busy_engine(), clock=Clock())
    request = Request(steps=(StepRequest(act=Act(action="hold", targets=("w0",))),))
    one, two = gate.propose(ME, request), gate.propose(ME, request)
    three = gate.revise(ME, two.id, request)
    assert len({one.digest, two.digest, three.digest}) == 3
