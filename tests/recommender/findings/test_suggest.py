"""Suggestions: the same finding keeps its id, is listed once, and what is worth most comes first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.model.twin_queries import Figure, Interval
from recommender.findings.suggestions import (
    Benefit,
    Evidence,
    Expected,
    Followed,
    PromiseRecord,
    Suggestion,
    SuggestionTrial,
    foretold,
    looked_up,
    promised,
    ranked,
    relief_permille,
    same_id,
    tracks,
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


def trial(before: int, change: int, name: str = "wait_mean") -> SuggestionTrial:
    def interval(middle: int) -> Interval:
        return Interval(runs=8, least=middle, p10=middle, p50=middle, p90=middle, most=middle)

    figure = Figure(
        name=name, title=name, unit="ms", better="lower", of="cell", subject="", before=interval(before),
        after=interval(before + change), change=interval(change),
    )  # fmt: skip
    return SuggestionTrial(state="done", horizon_ms=6 * 3_600_000, seeds=8, figures=(figure,))


def test_what_is_late_comes_before_what_saves_however_much_that_is() -> None:
    saves = suggestion(kind="oversized", benefit=Benefit(waiting_gpu_milli_h=90_000))
    late = suggestion(kind="never_fits", benefit=Benefit(waiting_gpu_milli_h=10))
    assert [each.kind for _, each in ranked([saves, late], {})] == ["never_fits", "oversized"]


def test_within_an_incident_the_twin_decides_and_what_helps_nothing_is_last() -> None:
    names = ("helps", "helps_more", "untried", "useless")
    each = {
        name: suggestion(kind="never_fits", about=name, benefit=Benefit(waiting_gpu_milli_h=number))
        for number, name in enumerate(names)
    }
    changes = {"helps": -100, "helps_more": -400, "useless": 0}
    trials = {each[name].id: trial(1000, change) for name, change in changes.items()}
    assert [one.about for _, one in ranked(each.values(), {}, trials=trials)] == [
        "helps_more", "helps", "untried", "useless"
    ]  # fmt: skip
    assert relief_permille(trial(1000, -400)) == 400
    first = next(one.about for _, one in ranked(each.values(), {}, trials=trials, burning=("untried",)))
    assert first == "untried", "its queue misses its objective"


def test_a_promise_is_held_against_what_doing_nothing_would_have_brought() -> None:
    expected = Expected(metric="waiting", of="cell", subject="", was=30, to=0, within_ms=3_600_000)
    by_itself = foretold(expected, trial(0, 0, "waiting"))
    assert by_itself == 30 - 30 / 6, "a sixth of the way to the end of the horizon"
    for alone, outcome in ((28.0, "held"), (2.0, "unknown")):
        followed = Followed(
            id="R-aaaaa", kind="k", finding="f", way="acted", at_ms=0, due_ms=3_600_000, expected=expected, alone=alone
        )
        assert looked_up(followed, lambda *_: 1.0, lambda *_: ()).outcome == outcome


def test_a_suggestion_without_a_promise_promises_not_to_be_found_again() -> None:
    found = suggestion()
    assert (promised(found).metric, promised(found).subject, promised(found).to) == ("found", found.id, 0)


@pytest.mark.parametrize(("held", "rarely", "hidden"), [(5, False, False), (4, True, False), (1, True, True)])
def test_a_kind_that_helped_in_under_half_of_ten_says_so_and_one_that_hardly_ever_does_is_hidden(
    held: int, rarely: bool, hidden: bool
) -> None:
    expected = Expected(metric="waiting", of="cell", subject="", was=10, to=0, within_ms=1)
    done = [
        Followed(id=f"R-{n}", kind="k", finding="f", way="acted", at_ms=n, due_ms=n, expected=expected)
        for n in range(10)
    ]
    judged = [
        msgspec.structs.replace(each, verdict=looked_up(each, lambda *_, n=n: 0.0 if n < held else 10.0, lambda *_: ()))
        for n, each in enumerate(done)
    ]
    track = tracks(judged)["k"]
    assert (track.judged, track.helps_rarely, track.hidden) == (10, rarely, hidden)
