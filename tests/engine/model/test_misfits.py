"""Values of a wrong type and names that nothing has: what was wrong, where, and what to do, in no parser's words."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
import pytest

from engine.model.errors import misfit, nearest, not_found


class Part(msgspec.Struct):
    count: int
    share: float = 0.5
    when: str | None = None
    level: Literal["rack", "zone"] = "rack"


class Whole(msgspec.Struct, forbid_unknown_fields=True):
    parts: list[Part]
    held: bool = False


@pytest.mark.parametrize(
    ("value", "path", "problem", "remedy"),
    [
        ({"parts": [{"count": "8"}]}, ".parts[0].count", "is text; it must be a whole number", "Write a whole number"),
        ({"parts": [{"count": 1.5}]}, ".parts[0].count", "is a number with a fraction; it must be a whole number", ""),
        ({"parts": [{}]}, ".parts[0]", "count is missing", "Add count"),
        (
            {"parts": [{"count": 1, "when": []}]},
            ".parts[0].when",
            "is a list; it must be text",
            "Write text, in quotes",
        ),
        ({"parts": [{"count": 1, "level": "rock"}]}, ".parts[0].level", "'rock' is not allowed", "Use one of"),
        ({"parts": {}}, ".parts", "is a mapping; it must be a list", "Write a list, as in [one, two]"),
        ({"parts": [], "held": "yes"}, ".held", "is text; it must be true or false", "Write true or false"),
        ({"parts": None}, ".parts", "is empty; it must be a list", "Write a list"),
        ({"parts": [], "hold": 1}, "", "there is no field 'hold'", "Remove it, or correct its spelling"),
        ("text", "", "is text; it must be a mapping", "Write a mapping, as in {field: value}"),
    ],
)
def test_a_value_that_does_not_fit_is_told_in_plain_words(value: Any, path: str, problem: str, remedy: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, Whole)
    wrong = misfit(str(caught.value))
    assert (wrong.path, wrong.problem) == (path, problem)
    assert wrong.remedy.startswith(remedy)
    assert not re.search(
        r"`|Expected|Object|enum|\bgot\b|\b(str|int|bool|float|array)\b", f"{wrong.problem} {wrong.remedy}"
    )


def test_a_name_that_nothing_has_gets_the_nearest_and_the_command_that_lists() -> None:
    nodes = [f"h100-{number:04}" for number in range(5000)]
    error = not_found("node", ["h100-001"], nodes)
    assert error.problem == "there is no node 'h100-001'"
    assert re.fullmatch(r"Did you mean h100-\d{4}\? List them with: muster get nodes", error.remedy)
    assert not_found("queue", ["x\x1b[2J"], ["research"]).problem == r"there is no queue 'x\x1b[2J'"
    assert not_found("pool", ["zz"], ["h100"]).remedy == "List them with: muster get pools"
    assert nearest("research/n", ["research/nlp", "product"]) == "research/nlp"
