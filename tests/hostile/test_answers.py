"""Groups E and F: whatever a model answers, nothing but a draft or a typed rejection comes of it, and nothing is done.

Every row of answers.yaml is read by the same code as a real answer. After each the cell, the proposals and the audit
are what they were.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from runbooks.drafts.typed_draft import REASONS, Draft, DraftRejected
from runbooks.procedures.program import parse
from tests.support.answered import Desk, answer_of, linked, unsupported
from tests.support.runbook_texts import SOUND

ROWS: list[dict[str, Any]] = yaml.load((Path(__file__).parent / "answers.yaml").read_text(), yaml.CSafeLoader)


@pytest.fixture(scope="module")
def desk() -> Desk:
    return Desk()


def test_every_row_has_an_id_of_its_own() -> None:
    assert len({row["id"] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_what_is_answered(row: dict[str, Any], desk: Desk) -> None:
    before = desk.state()
    try:
        draft: Draft | None = desk.draft(answer_of(row), row.get("task", "act"))
        said = ""
        outcome = "accepted"
    except DraftRejected as error:
        draft, outcome, said = None, error.reason, str(error)
    assert desk.state() == before
    assert outcome in row["expect"], f"{outcome}: {said}"
    assert outcome in REASONS | {"accepted"}
    assert row.get("says", "") in said
    if draft is not None:
        _as_said(row, draft)


def _as_said(row: dict[str, Any], draft: Draft) -> None:
    sentences = (*draft.summary, *draft.rationale, *draft.risks, *draft.questions)
    if "unsupported" in row:
        assert unsupported(sentences) == row["unsupported"]
    if "all_unsupported" in row:
        assert [sentence.text for sentence in draft.risks if not sentence.unsupported] == []
    if "links" in row:
        assert [text for sentence in sentences for text in linked(sentence)] == row["links"]
    if "title" in row:
        assert draft.title == row["title"]
    if "note" in row:
        assert draft.request is not None
        assert [step.act.note.text for step in draft.request.steps if step.act.note is not None] == [row["note"]]
        assert draft.steps[0].with_["text"] == row["note"]
    if draft.runbook is not None:
        front = parse(draft.runbook.text.encode(), "drain-one.md").front
        was = parse(SOUND.encode(), "drain-one.md").front
        assert (front.owner, front.limits, front.version) == (was.owner, was.limits, was.version + 1)
