"""History: nothing is lost or counted twice as it is summed up, and what cannot be is refused by its reason."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from engine.journal.side_tables import Records
from engine.model.errors import SpecError
from recommender.history.chunks import CHUNK, FOLDED_AT_ONCE, SERIES
from recommender.history.metrics import (
    DAY_MS,
    HOUR_MS,
    METRICS,
    MINUTE_MS,
    OFS,
    Retention,
    RunRecord,
    Sample,
    SeriesKey,
    kind_of,
)
from recommender.history.telemetry import Telemetry

T0 = 1_700_000_400_000 // HOUR_MS * HOUR_MS
SHORT = Retention(minutes_ms=HOUR_MS, fives_ms=3 * HOUR_MS, hours_ms=400 * DAY_MS)


def sample(minute: float, value: float, subject: str = "a", metric: str = "demand_gpu") -> Sample:
    return Sample(metric, "queue", subject, round(T0 + minute * MINUTE_MS), value)


def told_of(kept: Telemetry) -> list[SeriesKey]:
    """The series there are."""
    return list(kept.keys())


def tidied(kept: Telemetry, now_ms: int) -> None:
    while kept.tidy(now_ms):
        pass


def whole(kept: Telemetry, subject: str = "a", step_ms: int = HOUR_MS) -> tuple[int, float, float, float]:
    """(samples, sum, least, most) of all there is."""
    points = kept.series("demand_gpu", "queue", subject, T0 - 40 * DAY_MS, T0 + 60 * DAY_MS, step_ms)
    if not points.count.any():
        return 0, 0.0, math.inf, -math.inf
    return int(points.count.sum()), np.nansum(points.total), np.nanmin(points.least), np.nanmax(points.most)


histories = st.lists(
    st.tuples(st.integers(0, 3 * 1440), st.integers(0, 59_999), st.sampled_from("ab"), st.integers(-(2**30), 2**30)),
    min_size=1,
    max_size=60,
)


@settings(max_examples=15, deadline=None)
@given(histories, st.integers(1, 5), st.lists(st.integers(0, 30 * 24), min_size=1, max_size=4))
def test_summing_up_conserves_counts_sums_and_extremes(
    history: list[tuple[int, int, str, int]], batches: int, tidy_hours: list[int]
) -> None:
    kept = Telemetry(keep=SHORT)
    samples = [sample(minute + ms / MINUTE_MS, value, subject) for minute, ms, subject, value in history]
    for part in range(batches):
        kept.add(samples[part::batches])
    written = [each for part in range(batches) for each in samples[part::batches]]
    for subject in "ab":
        latest: dict[int, Sample] = {}
        for each in written:
            before = latest.get(each.at_ms // MINUTE_MS)
            if each.subject == subject and (before is None or each.at_ms >= before.at_ms):
                latest[each.at_ms // MINUTE_MS] = each
        values = [each.value for each in latest.values()]
        expected = (len(values), sum(values), min(values, default=math.inf), max(values, default=-math.inf))
        assert whole(kept, subject) == expected
        for hours in sorted(tidy_hours):
            tidied(kept, T0 + hours * HOUR_MS)
            assert whole(kept, subject) == expected


def test_the_order_in_which_samples_come_does_not_matter() -> None:
    samples = [sample(minute, minute * 10.0) for minute in range(200)]
    orders = [samples, samples[::-1], samples[1::2] + samples[::2]]
    told = []
    for order in orders:
        kept = Telemetry(keep=SHORT)
        kept.add(order)
        told.append(kept.series("demand_gpu", "queue", "a", T0, T0 + 4 * HOUR_MS, MINUTE_MS).mean)
    assert all(np.array_equal(each, told[0], equal_nan=True) for each in told)


def test_a_time_has_one_value_the_one_written_last_and_a_minute_its_latest() -> None:
    kept = Telemetry()
    kept.add([sample(0, 1.0), sample(0, 2.0), sample(1.5, 5.0), sample(1.25, 9.0)])
    kept.add([sample(0, 3.0)])
    kept.flush()
    kept.add([sample(1.25, 8.0)])
    points = kept.series("demand_gpu", "queue", "a", T0, T0 + 3 * MINUTE_MS, MINUTE_MS)
    assert points.mean.tolist()[:2] == [3.0, 5.0]
    assert points.count.tolist() == [1, 1, 0]
    assert math.isnan(points.mean[2])


def test_the_same_history_twice_is_the_same_also_after_it_was_summed_up() -> None:
    kept = Telemetry(keep=SHORT)
    samples = [sample(minute, float(minute % 7)) for minute in range(24 * 60)]
    kept.add(samples)
    kept.add(samples)
    once = whole(kept)
    assert once[0] == len(samples)
    for day in (1, 3, 40):
        tidied(kept, T0 + day * DAY_MS)
        refused: Counter[str] = Counter()
        kept.add(samples, refused=refused)
        assert whole(kept) == once
    assert refused == {"of a time that has been summed up": len(samples)}


def test_late_samples_of_a_time_nobody_had_measured_are_taken() -> None:
    kept = Telemetry(keep=SHORT)
    kept.add([sample(minute, 1.0) for minute in range(0, 600, 2)])
    tidied(kept, T0 + 2 * DAY_MS)
    before = whole(kept)[0]
    assert kept.add([sample(-30 * 60 + minute, 2.0) for minute in range(10)]) == 10
    tidied(kept, T0 + 3 * DAY_MS)
    assert whole(kept)[0] == before + 10


def test_gaps_stay_gaps_and_the_future_is_not_told() -> None:
    kept = Telemetry()
    kept.add([sample(minute, float(minute)) for minute in (0, 1, 2, 300, 301)])
    points = kept.series("demand_gpu", "queue", "a", T0, T0 + 301 * MINUTE_MS, HOUR_MS)
    assert points.count.tolist() == [3, 0, 0, 0, 0, 1]
    assert np.isnan(points.mean[1:5]).all()
    # A later value in the same minute does not hide what was known before it.
    kept.add([sample(300.5, 9.0)])
    known = kept.series("demand_gpu", "queue", "a", T0 + 300 * MINUTE_MS, T0 + round(300.4 * MINUTE_MS), MINUTE_MS)
    assert known.last.tolist() == [300.0]


def test_of_what_is_summed_up_only_buckets_that_had_ended_are_told() -> None:
    kept = Telemetry(keep=SHORT)
    kept.add([sample(minute, 1.0) for minute in range(360)])
    tidied(kept, T0 + 2 * HOUR_MS + 6 * HOUR_MS)
    until = T0 + 182 * MINUTE_MS
    assert kept.series("demand_gpu", "queue", "a", T0, until, HOUR_MS).count.sum() in (180, 182)
    tidied(kept, T0 + 60 * DAY_MS)
    assert kept.series("demand_gpu", "queue", "a", T0, until, HOUR_MS).count.sum() == 180


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (sample(0, math.nan), "not a finite number"),
        (sample(0, math.inf), "not a finite number"),
        (sample(10, 1.0), "of the future"),
        (sample(-500 * 1440, 1.0), "older than is kept"),
        (Sample("nonsense", "queue", "a", T0, 1.0), "unknown metric"),
        (Sample("gpu_util", "queue", "a", T0, 1.0), "not measured of a queue"),
        (Sample("demand_gpu", "queue", "", T0, 1.0), "without the name"),
        (Sample("demand_gpu", "cell", "x", T0, 1.0), "without the name"),
        (Sample("demand_gpu", "queue", "x" * 400, T0, 1.0), "too long"),
        (Sample("demand_gpu", "queue", "a", -5, 1.0), "no possible time"),
    ],
)
def test_what_cannot_be_is_refused_by_its_reason(bad: Sample, reason: str) -> None:
    kept = Telemetry(clock=lambda _: T0)
    refused: Counter[str] = Counter()
    assert kept.add([bad, sample(0, 1.0)], refused=refused) == 1
    ((why, count),) = refused.items()
    assert reason in why
    assert count == 1


def test_numbers_beyond_any_float_are_refused_and_the_rest_is_taken() -> None:
    kept, refused = Telemetry(), Counter[str]()
    rows = [("demand_gpu", "queue", "a", (10**400, -(10**400), 60_000), (1.0, 2.0, 3.0))]
    assert kept.add_rows(rows, refused=refused) == 1
    assert refused == {"at no possible time": 2}


def test_nobody_else_tells_what_the_cell_measures_itself() -> None:
    kept = Telemetry()
    kept.add([sample(0, 1.0)])
    refused: Counter[str] = Counter()
    assert kept.add([sample(1, 2.0), sample(1, 2.0, "b")], source="elsewhere", refused=refused) == 1
    assert refused == {"measured by the cell itself": 1}
    assert kept.add([sample(2, 3.0, "b")]) == 1
    assert {key.source for key in told_of(kept)} == {"cell"}


def test_no_more_series_than_are_allowed() -> None:
    kept = Telemetry(keep=Retention(series=2))
    refused: Counter[str] = Counter()
    assert kept.add([sample(0, 1.0, name) for name in "abcab"], refused=refused) == 4
    assert refused == {"more than 2 series (keep_series)": 1}


def test_what_is_too_old_goes_and_its_series_with_it() -> None:
    kept = Telemetry(keep=Retention(hours_ms=20 * DAY_MS))
    kept.add([sample(0, 1.0, "old"), sample(60 * 1440, 1.0, "new")])
    kept.flush()
    tidied(kept, T0 + 100 * DAY_MS)
    assert [key.subject for key in told_of(kept)] == ["new"]
    tidied(kept, T0 + 200 * DAY_MS)
    assert kept.keys() == []
    with kept.records.reading() as connection:
        assert connection.execute(select(func.count()).select_from(CHUNK)).scalar() == 0
        assert connection.execute(select(func.count()).select_from(SERIES)).scalar() == 0


def test_one_tidy_does_a_bounded_amount_of_work() -> None:
    kept = Telemetry(keep=SHORT)
    kept.add([sample(6 * 60 * part, 1.0, f"q{number}") for part in range(3) for number in range(300)])
    kept.flush()

    def fine() -> int:
        with kept.records.reading() as connection:
            return connection.execute(select(func.count()).where(CHUNK.c.tier == 0)).scalar() or 0

    assert fine() == 900
    assert kept.tidy(T0 + 10 * DAY_MS)
    assert fine() == 900 - FOLDED_AT_ONCE


def test_silence_is_marked_stale() -> None:
    now = {"ms": T0}
    kept = Telemetry(clock=lambda _: now["ms"])
    kept.add([sample(0, 1.0)], step_ms=2 * MINUTE_MS)
    now["ms"] = T0 + 6 * MINUTE_MS
    assert [key.stale for key in told_of(kept)] == [False]
    now["ms"] += 1
    assert [key.stale for key in told_of(kept)] == [True]


@pytest.mark.both_databases
def test_all_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    first = Telemetry(Records(path))
    first.add([sample(minute, float(minute)) for minute in range(100)])
    first.flush()
    first.add([sample(minute, float(minute)) for minute in range(100, 130)], note=("looked", 7.0))
    before = whole(first), first.keys()
    first.records.close()
    again = Telemetry(Records(path))
    assert again.note("looked") == 7.0
    assert whole(again) == before[0]
    assert [(key.first_ms, key.last_ms) for key in told_of(again)] == [(T0, T0 + 129 * MINUTE_MS)]
    again.flush()
    assert whole(again) == before[0]
    again.records.close()


@pytest.mark.both_databases
def test_a_damaged_piece_reads_as_a_gap(tmp_path: Path) -> None:
    kept = Telemetry(Records(tmp_path / "journal.db"))
    kept.add([sample(minute, 1.0) for minute in (0, 400)])
    kept.flush()
    kept.records.write(
        lambda connection: connection.execute(update(CHUNK).where(CHUNK.c.start_ms < T0 + 60_000).values(body=b"x"))
    )
    assert whole(kept)[0] == 1
    assert kept.damaged == 1
    kept.records.close()


def run(number: int, source: str = "cell", **changes: object) -> RunRecord:
    at = T0 + number * MINUTE_MS
    fields = {"submitted_ms": at, "started_ms": at + 1000, "ended_ms": at + 60_000, "outcome": "finished"} | changes
    return RunRecord(id=f"w-{number}", source=source, **fields)  # type: ignore[arg-type]


def test_runs_are_kept_once_told_by_window_and_bounded() -> None:
    kept = Telemetry(keep=Retention(runs=50))
    runs = [run(number) for number in range(80)]
    kept.add_runs(runs)
    kept.add_runs(runs[::-1])
    kept.add_runs([run(200, "swf:x"), run(200, "swf:y")])
    assert kept.run_counts() == {"cell": 80, "swf:x": 1, "swf:y": 1}
    assert kept.runs(T0, T0 + 12 * MINUTE_MS, 3) == runs[8:11]
    tidied(kept, T0)
    assert kept.run_counts() == {"cell": 48, "swf:x": 1, "swf:y": 1}
    # The newest stay, whatever comes again.
    kept.add_runs(runs)
    tidied(kept, T0)
    assert kept.runs(0, 2**50, 100, "cell") == runs[32:]


def test_runs_that_cannot_be_are_refused() -> None:
    kept = Telemetry(clock=lambda _: T0)
    refused: Counter[str] = Counter()
    bad = [run(1), run(2, ended_ms=T0 - 5), run(-3, started_ms=T0 + 9), RunRecord(
        id="", submitted_ms=0, started_ms=0, ended_ms=0, outcome="finished"
    )]  # fmt: skip
    bad += [run(-7, name="x" * 1000), run(-8, cpu_milli=-5), run(-9, tasks=2**63)]
    assert kept.add_runs([run(-5), *bad], refused) == 1
    assert refused == {
        "of the future": 1,
        "ends before it begins": 2,
        "without an id or a source": 1,
        "with a text that is too long": 1,
        "with a number that is too small or too large": 2,
    }


def test_steps_are_bounded_and_retention_must_make_sense() -> None:
    kept = Telemetry()
    with pytest.raises(SpecError, match="steps"):
        kept.series("demand_gpu", "queue", "a", 0, T0, 1000)
    with pytest.raises(SpecError, match="keep_minutes"):
        Retention(minutes_ms=5 * DAY_MS, fives_ms=DAY_MS)
    with pytest.raises(SpecError, match="keep_runs"):
        Retention(runs=-1)


def test_every_metric_is_of_something_known_and_kinds_lose_their_numbers() -> None:
    assert all(metric.of and set(metric.of) <= set(OFS) and metric.meaning for metric in METRICS.values())
    assert kind_of("acme", "train-llm-0017") == "acme/train-llm"
    assert kind_of("acme", "0017") == ""
