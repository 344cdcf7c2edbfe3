"""The list of mutants does not rot: each is of a line that is there. `make mutants` runs them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "mutants"))
    import draft_mutants as drafts
    import mutants as gate

    for name in ("mutants", "draft_mutants"):
        monkeypatch.delitem(sys.modules, name)
    return [*gate.MUTANTS, *drafts.DRAFT_MUTANTS]


def test_each_mutant_is_of_one_place_and_can_be_read(mutants: list) -> None:  # type: ignore[type-arg]
    assert len({mutant.name for mutant in mutants}) == len(mutants) >= 25
    for mutant in mutants:
        text = (ROOT / mutant.path).read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, f"'{mutant.name}' is of {mutant.old!r} in {mutant.path}"
        assert mutant.new != mutant.old
        ast.parse(text.replace(mutant.old, mutant.new))
