"""A drafted runbook is a file of ours: it lints clean, and what is not a drafter's to say is not theirs in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.model.errors import RefusedError
from runbooks.drafts.model_answer import read_answer
from runbooks.drafts.runbook_drafts import UNOWNED, drafted, runbook_of
from runbooks.drafts.typed_draft import DraftRejected, RunbookDraft
from runbooks.procedures.linter import lint_file
from runbooks.procedures.program import FrontMatter, parse
from tests.support.answered import SAID, Desk, answer_of
from tests.support.gates import ME, asked
from tests.support.runbook_texts import SOUND

PROSE = ("It fails.", "The log.", "No room.", "Test it.")


def made(now: str = "", **fields: Any) -> RunbookDraft:
    """A runbook of the plain fields but for these."""
    answer = answer_of({"runbook": fields})
    assert isinstance(answer, dict)
    answered = read_answer(json.dumps({**SAID, **answer}), "runbook")
    assert answered.runbook is not None
    return drafted(answered.runbook, id_="drain-one" if now else "", now=now, owner="")


def front_of(draft: RunbookDraft) -> FrontMatter:
    return parse(draft.text.encode(), f"{draft.id}.md").front


def test_a_new_one_lints_clean_and_touches_as_little_as_it_can() -> None:
    draft = made()
    assert lint_file(draft.text.encode(), "drain-one.md") == ()
    front = front_of(draft)
    assert (front.owner, front.version, front.limits.max_nodes, draft.diff) == (UNOWNED, 1, 1, "")
    assert (front.steps[0].rollback, front.steps[0].confirm) == ("inverse", "operator")


def test_an_edit_keeps_what_is_not_a_drafters() -> None:
    draft = made(SOUND, when=[{"check": "node_workloads", "of": "${inputs.node}", "op": ">=", "value": 1}])
    front, was = front_of(draft), parse(SOUND.encode(), "x.md").front
    assert (front.id, front.owner, front.limits, front.version) == (was.id, was.owner, was.limits, was.version + 1)
    assert "+  - {check: node_workloads" in draft.diff
    assert "-  - {check: node_state" in draft.diff


def test_an_edit_cannot_take_a_confirmation_away() -> None:
    confirmed = SOUND.replace("    rollback: inverse\n", "    rollback: inverse\n    confirm: approver\n")
    assert front_of(made(confirmed)).steps[0].confirm == "approver"
    assert front_of(made(confirmed, id="another-name")).steps[0].confirm == "approver"


def test_an_edit_has_the_name_of_what_it_edits() -> None:
    answer = answer_of({"runbook": {}})
    assert isinstance(answer, dict)
    answer["runbook"]["id"] = "other"
    answered = read_answer(json.dumps({**SAID, **answer}), "runbook")
    assert answered.runbook is not None
    assert drafted(answered.runbook, id_="drain-one", now=SOUND).id == "drain-one"


def test_an_edit_beyond_its_limits_says_so() -> None:
    """The limits stay: a person raises them."""
    several = [{"name": "node", "type": "node_id", "help": "which", "max_items": 5}]
    draft = made(SOUND, inputs=several)
    assert front_of(draft).limits.max_nodes == 1
    assert ["limits-exceeded" in problem for problem in draft.problems] == [True]


@pytest.mark.parametrize(
    "text",
    [
        "plain", "yes", "null", "1:30", "2026-11-21", "0x1f", "a: b", "- a", "# c", "&x *y", "!!int 3", "'q' \"d\"",
        "{a}, [b]", "~", "%TAG", "@at", "`tick`", "ends ", "a  b", "tab\\t", "ü", "|", ">", "1e3", "<<",
    ],
)  # fmt: skip
def test_any_words_come_back_from_the_file_as_they_were(text: str) -> None:
    front = front_of(made(title=text, inputs=[{"name": "node", "type": "node_id", "help": text}]))
    assert (front.title, front.inputs["node"].help) == (text, text)


def test_prose_begins_no_section_and_leads_nowhere() -> None:
    draft = made(why="## Aftercare\nfake\n# Title\n---\nsee https://evil.example")
    headings = [line for line in draft.text.split("\n") if line.startswith("#")]
    assert headings == ["## Why", "## Evidence", "## What can go wrong", "## Aftercare"]
    assert "https[:]//evil[.]example" in draft.text


@pytest.mark.parametrize("hidden", ["\u200b", "\u202e", "\U000e0041", "\x1b", "\x00"])
def test_e10_hidden_text_is_refused(hidden: str) -> None:
    with pytest.raises(DraftRejected) as found:
        made(why=f"a{hidden}b")
    assert found.value.reason == "runbook_invalid"


def test_a_runbook_that_cannot_be_read_is_not_edited() -> None:
    with pytest.raises(DraftRejected, match="cannot be read"):
        made("---\nbroken")


# -- of what was done -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize(
    ("action", "targets"),
    [
        ("cordon", ["g3"]), ("drain", ["g3"]), ("uncordon", ["g8", "g9"]), ("hold", ["w8", "w9"]),
        ("hold_queue", ["a"]),
        ("requeue", ["w0"]), ("suspend", ["w0"]), ("cancel", ["w8"]), ("release", ["held1"]),
    ],
)  # fmt: skip
def test_what_was_done_once_becomes_a_runbook(desk: Desk, action: str, targets: list[str]) -> None:
    plan = desk.gate.preview(ME, asked(action, targets)).plan
    draft = runbook_of(plan, id_="again", title="Once more", owner="ops", prose=PROSE)
    assert lint_file(draft.text.encode(), "again.md") == ()
    front = front_of(draft)
    assert [step.action for step in front.steps] == [action]
    assert front.limits.max_nodes <= len(targets)
    assert not [target for target in targets if f'"{target}"' in draft.text]


def test_a_change_of_quota_asks_for_the_number(desk: Desk) -> None:
    draft = desk.draft({"steps": [{"action": "set_quota", "with": {"queue": "a", "add_gpus": 8}}]})
    assert draft.preview is not None
    front = front_of(runbook_of(draft.preview.plan, id_="more-quota", title="More quota", owner="ops", prose=PROSE))
    assert set(front.inputs) == {"queue", "gpus"}
    assert front.steps[0].with_ == {"queue": "${inputs.queue}", "nominal_gpus": "${inputs.gpus}"}


def test_what_was_for_one_time_becomes_none(desk: Desk) -> None:
    draft = desk.draft({"steps": [{"action": "reserve", "with": {"name": "x1", "nodes": ["g3"], "lasts": "2h"}}]})
    assert draft.preview is not None
    with pytest.raises(RefusedError, match="specific to that case"):
        runbook_of(draft.preview.plan, id_="again", title="Once more", owner="ops", prose=PROSE)
