"""The form of an answer: what servers are told of it, and what is read of it whatever they do with that."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbooks.actions.catalogue import CATALOG
from runbooks.drafts.model_answer import (
    MAX_CONTENT_BYTES,
    MODEL_ACTIONS,
    NOT_FOR_MODELS,
    offered,
    read_answer,
    schema_of,
)
from runbooks.drafts.typed_draft import DraftRejected, Task
from tests.support.answered import RUNBOOK, SAID, STEP, step
from tests.support.effort import examples

TASKS: tuple[Task, ...] = get_args(Task)
IDS: dict[Any, list[str]] = {"node_id": ["n1", "n2"], "workload_id": ["w1"], "queue": ["research"], "pool": ["gpu"]}
NOT_TAKEN = {"oneOf", "allOf", "not", "if", "patternProperties", "maxLength", "minLength", "format"}
"""Words of the language of schemas that strict servers refuse."""


def rejected(answer: object, task: Task = "act") -> str:
    content = answer if isinstance(answer, str) else json.dumps(answer)
    with pytest.raises(DraftRejected) as found:
        read_answer(content, task)
    return found.value.reason


def nodes_of(schema: object) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from nodes_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from nodes_of(value)


# -- what servers are told --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_the_schema_is_of_the_part_that_strict_servers_take(task: Task) -> None:
    schema = schema_of(task, ids=IDS)
    assert schema["type"] == "object"
    for node in nodes_of(schema):
        if node.get("type") == "object":
            assert node["additionalProperties"] is False
            assert node["required"] == list(node["properties"])
        assert not NOT_TAKEN & node.keys()
        for name in ("$ref",):
            if isinstance(node.get(name), str):
                assert node[name].removeprefix("#/$defs/") in schema["$defs"]
    json.dumps(schema)


def actions_in(schema: dict[str, Any]) -> set[str]:
    items = schema["properties"]["steps"]["items"]
    return {branch["properties"]["action"]["enum"][0] for branch in items.get("anyOf", ())}


def test_an_action_is_offered_only_with_something_to_act_on() -> None:
    assert "drain" not in actions_in(schema_of("act", ids={"queue": ["research"]}))
    assert actions_in(schema_of("act", ids=IDS)) >= {"drain", "cancel", "set_quota", "reserve"}
    assert schema_of("act", ids={})["properties"]["steps"]["maxItems"] == 0 or actions_in(schema_of("act", ids={}))


def test_what_is_not_for_models_is_not_offered() -> None:
    assert not set(NOT_FOR_MODELS) & set(MODEL_ACTIONS)
    assert set(NOT_FOR_MODELS) | set(MODEL_ACTIONS) == set(CATALOG)
    assert "policy" not in offered("canary")  # it is for the whole cell
    assert "evidence" not in offered("resize")  # it is kept as a fact about a workload
    told = schema_of("act", ids={**IDS, "budget": ["b"], "channel": ["c"], "reservation": ["r"]})
    assert actions_in(told) == set(MODEL_ACTIONS)


def test_the_schema_names_exactly_the_parameters_of_the_catalogue() -> None:
    told = schema_of("act", ids={**IDS, "budget": ["b"], "channel": ["c"], "reservation": ["r"]})
    for branch in told["properties"]["steps"]["items"]["anyOf"]:
        action = branch["properties"]["action"]["enum"][0]
        assert set(branch["properties"]["with"]["properties"]) == set(offered(action))


def test_ids_that_may_be_named_are_listed() -> None:
    told = schema_of("act", ids=IDS)
    assert told["$defs"]["node_id"]["enum"] == ["n1", "n2"]


# -- what is read -----------------------------------------------------------------------------------------------------


def test_a_good_answer_is_read() -> None:
    told = {**SAID, "steps": [step("set_quota", queue="research", add_gpus=8, order=None)],
            "rationale": ["It waits for {F1}."], "risks": ["None."]}  # fmt: skip
    answered = read_answer(json.dumps(told), "act")
    assert answered.steps[0].with_ == {"queue": "research", "add_gpus": 8}
    assert answered.rationale == ("It waits for {F1}.",)


def test_what_may_be_left_out_may_be_null_or_missing() -> None:
    one = read_answer(json.dumps({"title": "Nothing", "summary": "All is well.", "questions": []}), "act")
    assert one.steps == ()


@pytest.mark.parametrize("blank", ["", " ", "\n\t", "\u200b", "\u2800\u3164", "\u00a0\u2003", "\u202e\u2066", "\u0000"])
@pytest.mark.parametrize("field", ["title", "summary"])
def test_d07_what_nobody_sees_is_empty(blank: str, field: str) -> None:
    assert rejected({**SAID, field: blank}) == "schema"
    assert rejected({**SAID, "risks": [blank]}) == "schema"
    assert rejected({**SAID, "rationale": [blank]}) == "schema"


@pytest.mark.parametrize(
    "extra",
    [
        {"shell": "id"}, {"approve": True}, {"approved_by": "alice"}, {"__class__": "x"}, {"$ref": "#"}, {"tier": "T0"},
        {"": 1}, {"titlе": "Cyrillic"}, {"TITLE": "x"}, {"steps ": []}, {"runbook": RUNBOOK}, {"parts": [{}]},
    ],
)  # fmt: skip
def test_d04_a_field_that_there_is_not_is_refused(extra: dict[str, object]) -> None:
    assert rejected({**SAID, **extra}) == "schema"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("title", "x" * 121), ("summary", "x" * 1201), ("title", None), ("title", 1), ("title", ["x"]),
        ("rationale", ["x"] * 9), ("rationale", ["x" * 201]), ("rationale", [{"claim": "x", "cites": ["F1"]}]),
        ("rationale", "x"), ("rationale", {}), ("risks", ["x"] * 6), ("questions", ["x"] * 4), ("risks", [["x"]]),
        ("steps", [None]), ("steps", {}), ("steps", [{}]), ("steps", [{"action": "drain"}]),
        ("steps", [{"action": "drain", "with": []}]), ("steps", [{"action": ["drain"], "with": {"nodes": ["n1"]}}]),
    ],
)  # fmt: skip
def test_d06_what_is_too_much_or_of_another_type_is_refused(field: str, value: object) -> None:
    assert rejected({**SAID, field: value}) == "schema"


def test_d06_what_is_far_too_much_is_refused_unread() -> None:
    assert rejected({**SAID, "summary": "x" * 2_000_000}) == "content_too_large"
    assert rejected('{"title":' + "[" * 2_000) == "content_not_json"
    assert rejected({**SAID, "risks": [""] * 10_000}) == "content_too_large"
    assert len(json.dumps(SAID)) < MAX_CONTENT_BYTES


@pytest.mark.parametrize(
    "content",
    [
        "```json\n{}\n```", "Sure! {}", "{} {}", "{'title': 'x'}", '{"title": "x",}', '{"title": "a\nb"}', "", " ",
        '{"title": "x", "title": "y"}', '{"title": NaN}', "\ufeff{}", '{"title": "\\ud800"}', '{"title": 1e999}',
        '{"title": 11111111111111111111111111111}', "//x\n{}", "\ud800",
    ],
)  # fmt: skip
def test_d01_what_is_no_plain_json_is_refused(content: str) -> None:
    assert rejected(content) == "content_not_json"


@pytest.mark.parametrize("content", ["null", "[]", "1", '"x"', "true", "{}"])
def test_d02_what_is_no_object_of_ours_is_refused(content: str) -> None:
    assert rejected(content) == "schema"


def test_an_answer_is_of_the_task_that_was_asked() -> None:
    part = {"title": "Night", "parts": [{"heading": "What happened", "sentences": ["x"]}],
            "questions": []}  # fmt: skip
    assert read_answer(json.dumps(part), "handover").parts[0].heading == "What happened"
    assert rejected(part, "act") == "schema"
    assert rejected({**SAID, "steps": [step("cordon", nodes=["n1"])]}, "explain") == "schema"
    assert rejected(SAID, "handover") == "schema"
    assert rejected(SAID, "runbook") == "schema"
    assert rejected({**part, "parts": part["parts"] * 2}, "handover") == "schema"
    of_another = [{"heading": "What was affected", "sentences": ["x"]}]
    assert rejected({**part, "parts": of_another}, "handover") == "schema"


# -- nothing else leaves ----------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "action": st.sampled_from((*CATALOG, "rm")) | st.text(max_size=8),
            "with": st.dictionaries(
                st.sampled_from(sorted({name for row in CATALOG.values() for name in row.parameters})), JSON, max_size=5
            ),
        }
    ),
    max_size=4,
)


@given(st.text(max_size=200), st.sampled_from(TASKS))
@settings(max_examples=examples(40), deadline=None, derandomize=True)
def test_any_text_is_rejected_by_name(content: str, task: Task) -> None:
    with pytest.raises(DraftRejected):
        read_answer(content, task)


@given(st.dictionaries(st.sampled_from((*SAID, "runbook", "parts", "confidence")), JSON), STEPS, st.sampled_from(TASKS))
@settings(max_examples=examples(40), deadline=None, derandomize=True)
def test_any_object_is_an_answer_or_rejected_by_name(fields: dict[str, Any], steps: list[Any], task: Task) -> None:
    of_runbook = {**SAID, "runbook": {**RUNBOOK, "steps": steps or [STEP]}}
    for told in ({**SAID, **fields}, {**SAID, "steps": steps}, of_runbook):
        with contextlib.suppress(DraftRejected):
            read_answer(json.dumps(told), task)
