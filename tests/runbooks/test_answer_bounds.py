"""Bounds of an answer, read alone: what is too long, belongs to another task, or names what was withheld."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runbooks.answer import (
    MOST_CITES,
    MOST_CLAIM,
    MOST_CONTENT_BYTES,
    MOST_QUESTIONS,
    MOST_RATIONALE,
    MOST_RISKS,
    MOST_SENTENCES,
    MOST_SUMMARY,
    MOST_TITLE,
    read_answer,
)
from runbooks.claims import Ground
from runbooks.draft import MOST_STEPS, DraftRejected, Fact, Task
from tests.support.answered import SAID, Desk, marked, step

HOLD = {"action": "hold", "with": {"workloads": ["w1"]}}
CLAIM = {"claim": "It waits.", "cites": []}
PART = {"heading": "What happened", "sentences": [CLAIM]}
TOLD: dict[str, Any] = {"title": "A shift", "parts": [PART], "questions": []}


def rejected(task: Task, **fields: Any) -> DraftRejected:
    answer = {**(TOLD if task in ("handover", "incident") else SAID), **fields}
    with pytest.raises(DraftRejected) as error:
        read_answer(json.dumps(answer, ensure_ascii=False), task)
    return error.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("title", "x" * (MOST_TITLE + 1)),
        ("summary", "x" * (MOST_SUMMARY + 1)),
        ("rationale", [{"claim": "x" * (MOST_CLAIM + 1), "cites": []}]),
        ("rationale", [CLAIM] * (MOST_RATIONALE + 1)),
        ("rationale", [{"claim": "It waits.", "cites": ["F1"] * (MOST_CITES + 1)}]),
        ("risks", ["x" * (MOST_CLAIM + 1)]),
        ("risks", ["x"] * (MOST_RISKS + 1)),
        ("questions", ["x" * (MOST_CLAIM + 1)]),
        ("questions", ["x"] * (MOST_QUESTIONS + 1)),
        ("steps", [HOLD] * (MOST_STEPS + 1)),
        ("title", " \u200b\u2800\u3164 "),
        ("risks", ["\u00ad"]),
    ],
)
def test_what_is_too_long_or_blank_has_not_the_form(field: str, value: object) -> None:
    error = rejected("act", **{field: value})
    assert error.reason == "schema"
    assert field in error.problem
    assert len(error.problem) < 200


def test_what_is_just_within_is_read() -> None:
    answer = {
        **SAID, "title": "x" * MOST_TITLE, "summary": "y" * MOST_SUMMARY, "risks": ["z" * MOST_CLAIM] * MOST_RISKS,
        "rationale": [{"claim": "c" * MOST_CLAIM, "cites": ["F1"] * MOST_CITES}] * MOST_RATIONALE,
    }  # fmt: skip
    assert len(read_answer(json.dumps(answer), "act").rationale) == MOST_RATIONALE


@pytest.mark.parametrize(
    ("task", "field", "value"),
    [
        ("explain", "steps", [HOLD]),
        ("handover", "steps", [HOLD]),
        ("handover", "summary", "x"),
        ("incident", "risks", ["x"]),
        ("incident", "rationale", [CLAIM]),
        ("act", "parts", [PART]),
        ("runbook", "steps", [HOLD]),
    ],
)
def test_a_field_of_another_task_has_no_meaning(task: Task, field: str, value: object) -> None:
    error = rejected(task, **{field: value})
    assert (error.reason, f"{field} has no meaning" in error.problem) == ("schema", True)


@pytest.mark.parametrize(
    "parts",
    [[], [PART, PART], [{**PART, "heading": "Approved by"}], [{**PART, "sentences": [CLAIM] * (MOST_SENTENCES + 1)}]],
)
def test_parts_are_those_of_the_form(parts: list[object]) -> None:
    assert rejected("handover", parts=parts).reason == "schema"


def test_an_answer_is_measured_before_it_is_read() -> None:
    for content in (
        "x" * (MOST_CONTENT_BYTES + 1),
        "é" * (MOST_CONTENT_BYTES // 2 + 1),
        "[" * (MOST_CONTENT_BYTES + 1),
    ):
        with pytest.raises(DraftRejected) as error:
            read_answer(content, "act")
        assert error.value.reason == "content_too_large"


def test_what_an_external_endpoint_is_not_told_of_it_cannot_name() -> None:
    """Its pseudonym may be known, from the question: that makes it no target."""
    desk = Desk(egress="external", question="why do w1 and other-1 wait, acme against zeta?")
    brief, prompt = desk.told("act")
    names = prompt.names
    theirs = [fact.subject for fact in brief.facts if fact.kind == "workload" and fact.tenant == "zeta"]
    assert theirs
    assert ("workload", theirs[0]) not in prompt.allowed
    error = desk.rejected({"steps": [step("suspend", workloads=[names.shown("workload", theirs[0])])]})
    assert error is not None
    assert error.reason == "unknown_target"
    own = next(id_ for kind, id_ in sorted(prompt.allowed) if kind == "workload")
    taken = desk.rejected({"steps": [step("suspend", workloads=[names.shown("workload", own)])]})
    assert taken is None or taken.reason != "unknown_target"


def test_one_statistic_is_not_another() -> None:
    p95 = Fact(id="F1", metric="cell_wait_p95_s", kind="cell", subject="", value=600, unit="seconds",
               text="95 % of the last starts waited at most 10 min")  # fmt: skip
    ground = Ground((p95,), frozenset(), [], now_ms=0)
    assert marked(ground.sentence("The p95 of waits is 10 min.", ("F1",))) == []
    assert marked(ground.sentence("The median of waits is 10 min.", ("F1",))) == ["10 min"]
    assert marked(ground.sentence("The mean wait is 10 min.", ("F1",))) == ["10 min"]
