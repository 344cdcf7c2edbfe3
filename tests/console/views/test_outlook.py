"""What the twin answers, as people read it."""

from __future__ import annotations

import pytest

from console.views.what_if import (
    change,
    dry_run_lines,
    eta_lines,
    forecast_facts,
    outlook_lines,
    outlook_sections,
    score_lines,
    spread,
    start,
)
from engine.model.twin_queries import (
    Driver,
    DryRun,
    Figure,
    Interval,
    Outlook,
    Score,
    ScoreReport,
    StartEstimate,
    StartFigure,
    StartForecast,
    Trial,
)
from engine.twin.what_if import NEVER, interval, start_of

NOW = 1_776_000_000_000
HOUR = 3_600_000
MINUTE = 60_000
HOSTILE = "job\x1b[31m[red]{x}"


def exactly(value: int) -> Interval:
    return Interval(runs=8, least=value, p10=value, p50=value, p90=value, most=value)


def between(p10: int, p50: int, p90: int) -> Interval:
    return Interval(runs=8, least=p10, p10=p10, p50=p50, p90=p90, most=p90)


def figure(over: Interval, better: str = "lower") -> Figure:
    return Figure(
        name="wait_mean", title="wait mean", unit="duration", better=better, of="cell", subject="",
        before=exactly(12 * MINUTE), after=between(14 * MINUTE, 15 * MINUTE, 16 * MINUTE), change=over,
    )  # fmt: skip


def outlook(**given: object) -> Outlook:
    known = {
        "version": 7, "at_ms": NOW, "horizon_ms": 24 * HOUR, "covered_ms": 24 * HOUR, "seeds": 8,
        "edits": ("drain n-1",), "figures": (figure(exactly(3 * MINUTE)),), "starts": (), "notes": (),
    }  # fmt: skip
    return Outlook(**(known | given))  # type: ignore[arg-type]


def test_a_figure_shows_its_spread_only_where_there_is_one() -> None:
    assert spread("duration", exactly(12 * MINUTE)) == "12m"
    assert spread("money", between(1_000_000, 2_500_000, 3_000_000)) == "$2.50 ($1.00..$3.00)"
    assert spread("permille", exactly(876)) == "87.6%"
    assert spread("device_time", exactly(5 * HOUR + HOUR // 2)) == "5.5 dev-h"


@pytest.mark.parametrize(
    ("over", "better", "text", "tone"),
    [
        (exactly(0), "lower", "the same", "dim"),
        (exactly(-3 * MINUTE), "lower", "-3m better", "ok"),
        (exactly(3 * MINUTE), "lower", "+3m worse", "bad"),
        (exactly(3 * MINUTE), "higher", "+3m better", "ok"),
        (exactly(3 * MINUTE), "", "+3m", ""),
        (between(-MINUTE, 2 * MINUTE, 5 * MINUTE), "lower", "+2m (-1m..+5m) unclear", "dim"),
    ],
)
def test_a_change_is_called_better_only_where_the_seeds_agree(
    over: Interval, better: str, text: str, tone: str
) -> None:
    assert change(figure(over, better)) == (text, tone)


def test_before_and_after_stand_beside_each_other() -> None:
    moved = StartFigure(
        id="big", queue="research", why="later",
        before=start_of([NOW] * 5),
        after=start_of([NOW + HOUR, NOW + 2 * HOUR, NOW + 2 * HOUR, NOW + 3 * HOUR, NEVER]),
    )  # fmt: skip
    lines = outlook_lines(outlook(starts=(moved,), notes=("one edit was too late",)))
    assert lines[0] == "what if   drain n-1"
    assert "1d ahead, 8 seeds" in lines[1]
    assert lines[4].split("  ")[0] == "wait mean"
    assert "12m" in lines[4]
    assert "15m (14m..16m)" in lines[4]
    assert lines[4].endswith("+3m worse")
    assert "now" in lines[7]
    assert "2h (1h..over 1d), 80% within 1d" in lines[7]
    assert lines[-1] == "note: one edit was too late"


def test_a_first_estimate_says_that_it_covers_a_part() -> None:
    assert "the first 6h of 1d ahead, 1 seed" in outlook_lines(outlook(covered_ms=6 * HOUR, seeds=1))[1]


def test_a_start_that_never_comes_is_no_time() -> None:
    assert start(start_of([NEVER] * 5), NOW, 2 * HOUR) == "not within 2h"
    assert start(None, NOW, 2 * HOUR) == "–"


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ([NOW + HOUR], "1h in one run"),
        ([NEVER], "not within 2h in one run"),
        ([NOW, NOW + HOUR, NOW + HOUR], "now..1h in 3 runs"),
        ([NOW + HOUR, NEVER, NEVER, NEVER], "1h..over 2h in 4 runs"),
    ],
)
def test_a_start_from_too_few_runs_is_told_as_what_they_say_and_has_no_quantile(times: list[int], text: str) -> None:
    found = start_of(times)
    assert (found.p10_ms, found.p50_ms, found.p90_ms, found.chance_permille) == (None,) * 4
    assert (found.runs, found.started) == (len(times), sum(at_ms != NEVER for at_ms in times))
    assert start(found, NOW, 2 * HOUR) == text


def test_a_figure_from_too_few_runs_is_its_range_and_no_change_is_called_better() -> None:
    few = interval([-3 * MINUTE, -MINUTE])
    assert (few.runs, few.p10, few.p50, few.p90) == (2, None, None, None)
    assert change(figure(few, "lower")) == ("-3m..-1m", "")
    lines = outlook_lines(outlook(seeds=2, figures=(figure(few, "lower"),)))
    assert "too few for quantiles: min..max of 2 runs" in lines[1]


def test_when_a_workload_starts_and_what_decides_it() -> None:
    found = StartEstimate(
        version=7, at_ms=NOW, horizon_ms=24 * HOUR, seeds=20, id=HOSTILE, state="queued",
        start=start_of([NOW + HOUR, NOW + 2 * HOUR, NOW + 2 * HOUR, NOW + 2 * HOUR, NOW + 3 * HOUR]),
        arrivals=False, forecast=told_at_once(seeds=20),
        drivers=(
            Driver(kind="ends", subject="train-1", text="train-1 ends", chance_permille=750, at_ms=NOW + HOUR),
        ),
    )  # fmt: skip
    lines = eta_lines(found)
    assert "\x1b" not in "".join(lines)
    assert lines[1] == "starts      2h (1h..5h), refined by 20 runs of the twin"
    assert not any("(1h..3h)" in line for line in lines), "the runs alone are no second answer"
    assert any("train-1 ends, in 1h (in 75% of the seeds)" in line for line in lines)


def told_at_once(**given: object) -> StartForecast:
    at = {"at_ms": NOW, "p10_ms": NOW + HOUR, "p50_ms": NOW + 2 * HOUR, "p90_ms": NOW + 5 * HOUR}
    more = {"kind": "quota", "decides": HOSTILE, "line_ms": HOUR, "alike": 212, "p90_held_permille": 910}
    return StartForecast(**(at | more | given))  # type: ignore[arg-type]


def test_a_start_told_at_once_has_its_range_its_cause_and_its_record() -> None:
    (starts, decides, record) = forecast_facts(told_at_once(), NOW)
    assert starts == ("starts", "2h (1h..5h)")
    assert "\x1b" not in decides[1]
    assert record == ("record", "of 212 like this, p90 held for 91%")


def test_without_a_record_or_a_time_it_says_so() -> None:
    assert "the range is a guess" in forecast_facts(told_at_once(alike=0, p90_held_permille=None), NOW)[-1][1]
    unknown = forecast_facts(told_at_once(p10_ms=None, p50_ms=None, p90_ms=None), NOW)
    assert unknown[0] == ("starts", "not known: somebody has to act")
    assert forecast_facts(None, NOW) == []


def test_a_dry_run_says_now_or_when_who_and_what() -> None:
    trial = Trial(
        id="probe", starts_now=False,
        start=start_of([NOW + HOUR] * 5),
        end_p50_ms=NOW + 2 * HOUR, cost=exactly(12_340_000), reason="8 GPU more are needed",
    )  # fmt: skip
    view = DryRun(
        version=7, at_ms=NOW, horizon_ms=24 * HOUR, covered_ms=4 * HOUR, seeds=8, trials=(trial,),
        preempts_now=("a", "b"), evictions=exactly(2), delayed=(),
    )  # fmt: skip
    text = "\n".join(dry_run_lines(view))
    assert "$12.34" in text
    assert "8 GPU more are needed" in text
    assert "would preempt now: a, b" in text
    assert text.splitlines()[-1].startswith("nothing was submitted")


def test_scores_are_shown_as_shares_and_errors() -> None:
    score = Score(lead="all", estimates=40, covered_permille=825, early_permille=75, late_permille=100,
                  median_error_ms=4 * MINUTE)  # fmt: skip
    lines = score_lines(ScoreReport(version=1, now_ms=NOW, stored=50, open=10, scores=(score,)))
    assert lines[-1].split() == ["all", "40", "82.5%", "7.5%", "10.0%", "4m"]
    assert score_lines(ScoreReport(version=1, now_ms=NOW, stored=0, open=0, scores=()))[-1] == "no scores yet"


def test_two_runs_are_set_beside_each_other() -> None:
    other = outlook(figures=(figure(exactly(0)),))
    (section,) = outlook_sections(outlook(), 60, beside=other)
    text = "".join(part for part, _ in section.lines[0].spans)
    assert text.count("15m (14m..16m)") == 2
