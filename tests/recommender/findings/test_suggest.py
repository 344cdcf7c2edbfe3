"""Suggestions: the same finding keeps its id, is listed once, and what is worth most comes first."""

from __future__ import annotations

from typing import Any

import pytest

from recommender.findings.suggestions import (
    Benefit,
    Evidence,
    PromiseRecord,
    Suggestion,
    ranked,
    same_id,
    worth_gpu_milli_h,
)


def suggestion(kind: str = "k", **fields: Any) -> Suggestion:
    given: dict[str, Any] = {
        "finding": "something stands out",
        "action": "notify",
        "targets": ("a",),
        "evidence": (Evidence(metric="m", window="now", rows=1, value="2"),),
        "counterfactual": "Not suggested if it were not so",
        "alternatives": ("No action: it stays so",),
    }
    return Suggestion(kind=kind, **{**given, **fields})


def test_an_id_is_short_typed_in_any_case_and_stays_as_targets_are_listed_in_another_order() -> None:
    one, other = suggestion(targets=("a", "b")), suggestion(targets=("b", "a"), finding="in other words")
    assert one.id == other.id
    assert len(one.id) == len("R-xxxxx")
    assert same_id(one.id.upper()) == same_id(one.id.removeprefix("R-")) == one.id


def test_another_kind_or_target_is_another_id() -> None:
    assert (
        len({suggestion().id, suggestion(kind="l").id, suggestion(targets=("b",)).id, suggestion(about="a b").id}) == 4
    )


def test_what_it_is_about_is_its_identity_however_its_targets_change() -> None:
    assert suggestion(about="q", targets=("a",)).id == suggestion(about="q", targets=("b", "c")).id


def test_a_finding_is_listed_once_and_the_most_worth_is_first() -> None:
    small = suggestion(kind="small", benefit=Benefit(waiting_gpu_milli_h=1_000))
    large = suggestion(kind="large", benefit=Benefit(waiting_gpu_milli_h=9_000))
    assert [each.kind for _, each in ranked([small, large, small], {})] == ["large", "small"]


@pytest.mark.parametrize(
    ("fields", "record", "worth"),
    [
        ({"benefit": Benefit(waiting_gpu_milli_h=4_000, at_risk_gpu_milli_h=2_000)}, None, 6_000),
        ({"benefit": Benefit(waiting_gpu_milli_h=4_000), "thin": ("one reading",)}, None, 2_000),
        ({"benefit": Benefit(waiting_gpu_milli_h=4_000)}, PromiseRecord(kept=2, broken=4), 2_000),
        ({"benefit": Benefit(waiting_gpu_milli_h=4_000, lost_gpu_milli_h=5_000)}, None, -1_000),
        ({"cost_delta_microusd_hour": -2_000_000}, None, 24_000),
        ({"cost_delta_microusd_hour": 2_000_000}, None, -24_000),
    ],
)
def test_worth_is_gains_weighed_by_certainty_less_what_acting_costs(
    fields: dict[str, Any], record: PromiseRecord | None, worth: int
) -> None:
    assert worth_gpu_milli_h(suggestion(**fields), record, gpu_hour_microusd=2_000_000) == worth
