"""Rejections are kept to until things change; promises are checked against what was measured, and against what
happened where nothing was done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.journal.side_tables import Records
from engine.model.errors import RefusedError, SpecError
from recommender.findings.suggestion_store import GONE_MS, SuggestionRows, SuggestionStore, done_by
from recommender.findings.suggestions import (
    Evidence,
    Expected,
    Followed,
    PromiseRecord,
    Suggestion,
    Verdict,
    judged,
    looked_up,
    record,
    tracks,
    wilson,
)

HOUR = 3_600_000
NOW = 1_000 * HOUR
PROMISED = Expected(metric="waiting", of="queue", subject="a", was=10.0, to=2.0, within_ms=8 * HOUR)


def suggestion(**fields: Any) -> Suggestion:
    given: dict[str, Any] = {
        "kind": "k",
        "about": "a",
        "finding": "much waits",
        "action": "drain",
        "targets": ("n1",),
        "evidence": (Evidence(metric="waiting", window="now", rows=1, value="10"),),
        "counterfactual": "Not suggested if it did not wait",
        "alternatives": ("No action: it waits",),
        "severity": 10.0,
        "expected": PROMISED,
    }
    return Suggestion(**{**given, **fields})


def rejected(shelf: SuggestionStore | None = None) -> SuggestionStore:
    shelf = shelf or SuggestionStore()
    shelf.found([suggestion()], NOW)
    shelf.reject(suggestion(), "ada", "known fault", NOW)
    return shelf


def is_told(shelf: SuggestionStore) -> str:
    """Why it is told again; empty while it is silent."""
    standing = shelf.standings[suggestion().id]
    return "" if standing.rejected else standing.note


def look_up(shelf: SuggestionStore, now_ms: int) -> None:
    """All that is due, where everything that was promised has happened."""
    shelf.settle([(each, looked_up(each, lambda *_: 2.0, lambda *_: ())) for each in shelf.due(now_ms)])


# -- rejections -------------------------------------------------------------------------------------------------------


def test_a_rejected_suggestion_stays_silent_while_nothing_changes() -> None:
    shelf = rejected()
    for hour in range(1, 50):
        shelf.found([suggestion(severity=12.4)], NOW + hour * HOUR)
    assert is_told(shelf) == ""
    with pytest.raises(RefusedError):
        shelf.reject(suggestion(), "ada", "again", NOW)


@pytest.mark.parametrize(
    ("changed", "news"),
    [({"severity": 12.5}, "waiting is 10, where it was"), ({"targets": ("n1", "n2")}, "it is about n2 too")],
)
def test_it_is_told_again_with_who_rejected_it_when_things_change(changed: dict[str, Any], news: str) -> None:
    shelf = rejected()
    shelf.found([suggestion(**changed)], NOW + HOUR)
    assert is_told(shelf).startswith("was rejected on 1970-02-11 16:00:00 UTC by ada because known fault; now ")
    assert news in is_told(shelf)


def test_fewer_targets_or_others_to_notify_are_no_news() -> None:
    shelf = rejected()
    shelf.found([suggestion(targets=())], NOW + HOUR)
    shelf.found([suggestion(action="notify", targets=("n7",))], NOW + 2 * HOUR)
    assert is_told(shelf) == ""


def test_gone_for_a_day_and_found_again_is_news() -> None:
    shelf = rejected()
    shelf.found([], NOW + GONE_MS - 1)
    shelf.found([suggestion()], NOW + GONE_MS)
    assert is_told(shelf) == "", "nobody saw that it was gone for a whole day"
    shelf.found([], NOW + 3 * GONE_MS)
    shelf.found([suggestion()], NOW + 3 * GONE_MS + HOUR)
    assert "gone for 48.0 h" in is_told(shelf)


def test_an_engine_that_was_off_for_days_has_not_seen_it_gone() -> None:
    shelf = rejected()
    shelf.found([suggestion()], NOW + 9 * GONE_MS)
    assert is_told(shelf) == ""


def test_a_reason_is_one_line_of_plain_text() -> None:
    shelf = SuggestionStore()
    shelf.found([suggestion()], NOW)
    for reason in ("a\x1b[31m", "a\nb", "x" * 501):
        with pytest.raises(SpecError):
            shelf.reject(suggestion(), "ada", reason, NOW)


@pytest.mark.both_databases
def test_a_restart_forgets_no_rejection_and_no_promise(tmp_path: Path) -> None:
    records = Records(tmp_path / "rows.db")
    shelf = rejected(SuggestionStore(SuggestionRows(records)))
    again = SuggestionStore(SuggestionRows(records))
    assert again.standings == shelf.standings
    assert again.followed == shelf.followed
    assert [each.way for each in again.followed] == ["left"]
    shelf.acted(suggestion(), "ada", NOW + HOUR)
    again = SuggestionStore(SuggestionRows(records))
    assert [(each.way, each.who) for each in again.followed] == [("acted", "ada")]
    look_up(again, NOW + 99 * HOUR)
    assert SuggestionStore(SuggestionRows(records)).tracks()["k"].held == 1
    records.close()


@pytest.mark.both_databases
def test_old_promises_make_room_on_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recommender.findings.suggestion_store.MAX_FOLLOWED", 3)
    records = Records(tmp_path / "rows.db")
    shelf = SuggestionStore(SuggestionRows(records))
    for number in range(5):
        shelf.found([suggestion(about=f"q{number}")], NOW + number * HOUR)
    kept = SuggestionStore(SuggestionRows(records)).followed
    assert [each.at_ms for each in kept] == [NOW + number * HOUR for number in (2, 3, 4)]
    assert kept == shelf.followed
    records.close()


def test_a_verdict_on_what_was_acted_on_meanwhile_is_dropped() -> None:
    shelf = SuggestionStore()
    shelf.found([suggestion()], NOW)
    due = shelf.due(NOW + 9 * HOUR)
    shelf.acted(suggestion(), "ada", NOW + 9 * HOUR)
    shelf.settle([(each, Verdict(outcome="no", seen=10.0, why="it waits")) for each in due])
    assert [(each.way, each.verdict) for each in shelf.followed] == [("acted", None)]


# -- promises ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "others", "outcome"),
    [
        (2.0, None, "held"),
        (2.8, None, "held"),
        (1.0, 0.0, "held"),
        (5.0, None, "partly"),
        (8.0, None, "no"),
        (14.0, None, "no"),
        (None, None, "unknown"),
        (float("nan"), None, "unknown"),
        (2.0, -7.0, "unknown"),
        (2.0, -3.0, "held"),
    ],
)
def test_a_promise_holds_when_the_metric_went_the_way_and_not_everywhere(
    seen: float | None, others: float | None, outcome: str
) -> None:
    assert judged(PROMISED, seen, others).outcome == outcome


def test_nothing_promised_cannot_be_kept() -> None:
    flat = Expected(metric="waiting", of="queue", subject="a", was=3.0, to=3.0, within_ms=HOUR)
    assert judged(flat, 3.0).outcome == "unknown"


def test_the_last_quarter_of_the_time_counts_and_others_are_the_control() -> None:
    asked: list[tuple[str, int, int]] = []

    def read(metric: str, of: str, subject: str, since_ms: int, until_ms: int) -> float | None:
        asked.append((subject, since_ms - NOW, until_ms - NOW))
        return {"a": 2.0, "b": 6.0, "c": None}[subject]

    shelf = SuggestionStore()
    shelf.found([suggestion()], NOW)
    shelf.acted(suggestion(), "ada", NOW)
    verdict = looked_up(shelf.followed[0], read, lambda *_: ("b", "c"))
    assert (verdict.outcome, verdict.others) == ("held", 0.0)
    assert asked[:3] == [("a", 6 * HOUR, 8 * HOUR), ("b", -2 * HOUR, 0), ("b", 6 * HOUR, 8 * HOUR)]


def test_what_nobody_acted_on_is_followed_too() -> None:
    shelf = SuggestionStore()
    shelf.found([suggestion()], NOW)
    look_up(shelf, NOW + 8 * HOUR - 1)
    assert shelf.tracks() == {}
    look_up(shelf, NOW + 8 * HOUR)
    track = shelf.tracks()["k"]
    assert (track.acted, track.left, track.resolved) == (0, 1, 1)
    shelf.found([suggestion()], NOW + 9 * HOUR)
    assert len(shelf.followed) == 1, "once for as long as it is found without a break"


def test_acting_voids_what_would_have_come_by_itself_and_still_found_when_due_is_told() -> None:
    shelf = SuggestionStore()
    shelf.found([suggestion()], NOW)
    shelf.acted(suggestion(), "ada", NOW + HOUR)
    assert [each.way for each in shelf.followed] == ["acted"]
    shelf.found([suggestion()], NOW + 2 * HOUR)
    assert shelf.standings[suggestion().id].acted_ms
    shelf.found([suggestion()], NOW + 9 * HOUR)
    assert "acted on 1970-02-11 17:00:00 UTC by ada, and still found" in is_told(shelf)


def followed(way: Any, outcome: Any) -> Followed:
    verdict = Verdict(outcome=outcome, seen=1.0, why="")
    return Followed(
        id="R-a", kind="k", finding="", way=way, at_ms=0, due_ms=1, expected=PROMISED, verdict=verdict
    )  # fmt: skip


def test_a_track_record_leaves_out_what_could_not_be_judged() -> None:
    every = [followed("acted", outcome) for outcome in ("held", "held", "held", "partly", "no", "unknown")]
    track = tracks([*every, followed("left", "held"), followed("left", "no")])["k"]
    assert (track.acted, track.held, track.partly, track.unknown, track.left, track.resolved) == (6, 3, 1, 1, 2, 1)
    assert record(track) == PromiseRecord(kept=3, broken=2)
    assert (track.held_low_permille, track.held_high_permille) == (231, 882)


def test_wilson_is_within_0_and_1_and_honest_for_few() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(1, 1) == pytest.approx((0.2065, 1.0), abs=1e-3)
    assert wilson(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-3)


# -- what was acted on ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "targets", "reason", "matches"),
    [
        ("drain", ("n1",), "", True),
        ("drain", ("n0", "n1"), "", True),
        ("drain", ("n2",), "", False),
        ("cordon", ("n1",), "", False),
        ("drain", ("n2",), f"see {suggestion().id}", True),
        ("cordon", ("n1",), suggestion().id, False),
    ],
)
def test_a_plan_acts_on_it_by_the_same_action_on_its_targets_or_by_its_id(
    action: str, targets: tuple[str, ...], reason: str, matches: bool
) -> None:
    assert done_by(action, targets, reason)(suggestion()) is matches
