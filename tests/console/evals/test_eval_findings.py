"""`muster eval findings`: what is counted, and one stretch of each sort."""

from __future__ import annotations

import pytest

from console.evals.eval_findings import FindingsScore, StretchResult, played, report_lines, score, stretches
from console.evals.finding_days import SCENES, Stretch
from engine.model.errors import SpecError
from recommender.findings.kinds import KINDS


def result(kind: str = "straggler", seed: int = 1, found: float | None = 5.0, **more: object) -> StretchResult:
    given = {"fault": True, "hours": 12.0, "false": (), "found_min": found}
    return StretchResult(kind=kind, seed=seed, **{**given, **more})  # type: ignore[arg-type]


def test_recall_false_alarms_and_the_time_to_find_are_counted() -> None:
    quiet = result(fault=False, found=None, false=("03:00 straggler: x",), told=("04:00 overrun: y",))
    made = score("held", [result(), result(found=None), result(found=15.0), quiet])
    assert (made.faults, made.found, made.recall, made.median_min) == (3, 2, 0.667, 10.0)
    assert (made.quiet_days, made.false, made.false_a_day, made.told) == (2.0, 1, 0.5, 1)
    assert not made.good
    lines = report_lines([made], {"held": [result(found=None, seed=7)]}, 1.0)
    assert "not found: straggler 7" in lines


def test_it_is_good_only_within_every_bar_and_when_no_draft_made_it_worse() -> None:
    assert score("held", [result()]).good
    assert not score("held", [result(worse=("hold: 1 -> 2",))]).good
    assert isinstance(score("held", [result()]), FindingsScore)


def test_parts_have_seeds_of_their_own_and_every_scene_is_of_a_declared_kind() -> None:
    assert set(SCENES) <= set(KINDS)
    seeds = [{each.seed for each in stretches(part, 60, 60)} for part in ("development", "held")]
    assert seeds[0].isdisjoint(seeds[1])
    assert [each.fault for each in stretches("held", 2, 1)] == [True, True, False]
    with pytest.raises(SpecError, match="no scenes"):
        stretches("held", 1, 1, ["flying"])


@pytest.mark.parametrize("kind", ["failing_node", "mispriced_pool"])
def test_a_fault_is_found_and_its_look_alike_is_not_called_so(kind: str) -> None:
    found = played(Stretch(kind, 77, True))
    assert found.found_min is not None
    assert found.found_min <= 15
    assert not found.worse
    assert not [text for text in played(Stretch(kind, 77, False)).false if f" {kind}:" in text]
