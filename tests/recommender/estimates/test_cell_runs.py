"""Learning from a cell's rows: in the order things happened, however it is cut into windows, and only what counts."""

from __future__ import annotations

import math
import random

import pytest

from recommender.estimates import cell_runs
from recommender.estimates.cell_runs import CellRuns, WorkloadFeatures, WorkloadRow

MINUTE = 60_000


def cell(workloads: int, *, seed: int = 1) -> list[WorkloadRow]:
    """What would be seen after everything ended: a submission each few minutes, waits, failures and second attempts."""
    draw, rows, at = random.Random(seed), [], 0
    for number in range(workloads):
        at += draw.randrange(1, 10 * MINUTE)
        start = at + draw.choice((0, 30 * MINUTE))
        name = draw.choice(("train", "eval"))
        run = round((20 if name == "train" else 2) * MINUTE * math.exp(draw.gauss(0, 0.5)))
        state, attempts = draw.choice((("finished", 1),) * 8 + (("failed", 1), ("finished", 2)))
        asked = draw.choice((0, 60 * MINUTE))
        rows.append(
            WorkloadRow(
                f"w{number}",
                f"{name}-{number}",
                "ml",
                "q",
                1,
                1000,
                asked,
                state,
                attempts,
                run,
                at,
                start,
                start + run,
            )
        )
    return rows


def told(rows: list[WorkloadRow], cuts: list[int]) -> CellRuns:
    """Fed as the engine's pages show it at each of these moments."""
    runs, from_ms = CellRuns(), 0
    for until_ms in cuts:
        seen = [
            row if row.ended_ms < until_ms else row._replace(ended_ms=None, run_ms=None, state="running", attempts=1)
            for row in rows
            if row.submitted_ms < until_ms and row.ended_ms is not None and row.ended_ms >= from_ms
        ]
        fed = [row for row in seen if row.ended_ms is not None or max(row.submitted_ms, row.started_ms or 0) >= from_ms]
        runs.feed(fed, from_ms, until_ms)
        from_ms = until_ms
    return runs


def scores(runs: CellRuns) -> list[tuple[bool, float] | None]:
    return list(runs._scores)


def test_what_was_said_does_not_depend_on_when_it_was_looked_at() -> None:
    rows = [row for row in cell(400) if row.attempts == 1]
    end = max(row.ended_ms or 0 for row in rows) + 1
    at_once = told(rows, [end])
    often = told(rows, [*range(7 * MINUTE, end, 53 * MINUTE), end])
    assert len(scores(at_once)) == sum(row.state == "finished" for row in rows)
    assert scores(at_once) == scores(often)
    asked = WorkloadFeatures(name="train-x", tenant="ml", queue="q", tasks=1, gpu_milli=1000)
    assert at_once.about(asked, end) == often.about(asked, end)


def test_the_future_changes_no_score_of_the_past() -> None:
    rows = cell(300)
    cut = rows[200].submitted_ms
    noise = random.Random(9)
    other = [
        row
        if (row.ended_ms or 0) < cut
        else row._replace(run_ms=(longer := noise.randrange(10**9)), ended_ms=cut + longer)
        for row in rows
    ]
    end = max(row.ended_ms or 0 for row in (*rows, *other)) + 1
    before = sum((row.ended_ms or 0) < cut and row.state == "finished" and row.attempts == 1 for row in rows)
    assert scores(told(rows, [end]))[:before] == scores(told(other, [end]))[:before]
    assert scores(told(rows, [end]))[before:] != scores(told(other, [end]))[before:]


def test_failed_and_repeated_work_teaches_nothing() -> None:
    rows = cell(300)
    runs = told(rows, [max(row.ended_ms or 0 for row in rows) + 1])
    skill = runs.skill()
    assert skill is not None
    assert skill.scored + skill.abstained == sum(row.state == "finished" and row.attempts == 1 for row in rows)
    assert 850 <= skill.p90_coverage_permille <= 950
    assert skill.within2x_permille > 600


def test_followed_work_is_bounded_and_the_rest_is_learnt_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_runs, "MAX_OPEN", 5)
    rows = [row._replace(state="finished", attempts=1) for row in cell(40)]
    runs = CellRuns()
    now = rows[-1].submitted_ms + 1
    live = [row._replace(state="queued", started_ms=None, ended_ms=None, run_ms=None) for row in rows]
    for row in live:
        runs.feed([row], row.submitted_ms, row.submitted_ms + 1)
    later = [row._replace(started_ms=now, ended_ms=now + (row.run_ms or 0)) for row in rows]
    runs.feed(later, now, now + 10**9)
    assert len(scores(runs)) == 5
    known = runs.about(WorkloadFeatures(name="train-x", tenant="ml", queue="q", tasks=1, gpu_milli=1000), now + 10**9)
    assert known is not None
    assert known.samples == 40


@pytest.mark.parametrize("name", ["", "12345", "7-8", "__3"])
def test_names_that_say_nothing_are_not_likes(name: str) -> None:
    row = WorkloadRow("", name, "ml", "q", 1, 1000, 0, "finished", 1, MINUTE, 0, 0, MINUTE)
    runs = CellRuns()
    runs.feed([row._replace(id=str(at), ended_ms=MINUTE + at) for at in range(20)], 0, 10 * MINUTE)
    known = runs.about(WorkloadFeatures(name="99-1", tenant="ml", queue="other", tasks=2, gpu_milli=1000), 10 * MINUTE)
    assert known is not None
    assert cell_runs.LEVELS[known.nearest] == "tenant and size"
