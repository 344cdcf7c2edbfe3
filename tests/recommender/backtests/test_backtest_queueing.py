"""The backtest of queueing: its rows against other simulators and by hand, and no look at the future."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from console.cli.main import run as muster
from engine.model.errors import SpecError
from engine.traces.replay import JobColumns, LastTwoEstimates, backfill, replay
from recommender.backtests.run_times import (
    ROWS,
    ModelEstimates,
    backtest_queueing,
    jobs_of,
    read_queueing,
    score_queueing,
)
from recommender.estimates.run_time_model import SubmittedRun

SHARED = Path(__file__).parents[4] / "shared" / "data"
HOUR = 3_600_000
LINE = "{} {} 0 {} {} -1 -1 {} {} -1 1 {} 1 -1 -1 -1 -1 -1\n"
"""Of an SWF log: number, submitted, ran, processors twice, requested, user."""


def busy(jobs: int, *, seed: int) -> tuple[list[SubmittedRun], list[int]]:
    """More work than eight processors can do at once, by users of their own habits; run times in ms."""
    draw, asked, runs, at = random.Random(seed), [], [], 0
    for _ in range(jobs):
        at += draw.randrange(1, 240_000)
        user = draw.choice("abcd")
        runs.append(draw.randrange(1, 2 * 60_000 * (ord(user) - 96) ** 3))
        asked.append(
            SubmittedRun(at_ms=at, user=user, size=draw.choice((1, 1, 2)), requested_ms=draw.choice((0, 2 * HOUR)))
        )
    return asked, runs


def starts_of(asked: list[SubmittedRun], runs: list[int]) -> list[int]:
    jobs = JobColumns([each.at_ms for each in asked], runs, runs, [each.size for each in asked])
    return backfill(jobs, 8, ModelEstimates(asked, runs), "slowdown")


def noise_after(moment: int, asked: list[SubmittedRun], runs: list[int], starts: list[int]) -> list[int]:
    """Starts where all that was not known at the moment is noise: what arrives, and how long what is there will."""
    draw = random.Random(moment)
    noise = []
    for run, start in zip(runs, starts, strict=True):
        if start > moment:
            noise.append(draw.randrange(1, 10**8))
        else:
            noise.append(run if start + run <= moment else moment - start + draw.randrange(1, 10**8))
    known = sum(each.at_ms <= moment for each in asked)
    later = [SubmittedRun(at_ms=each.at_ms, user="x", size=draw.choice((1, 8))) for each in asked[known:]]
    falsely = starts_of([*asked[:known], *later], noise)
    assert falsely != starts
    return falsely


def test_the_future_changes_no_start_before_it() -> None:
    asked, runs = busy(395, seed=1)
    truly = starts_of(asked, runs)
    ends = sorted(start + run for start, run in zip(truly, runs, strict=True))
    falsely = noise_after(ends[350], asked, runs, truly)
    assert [start if start <= ends[350] else None for start in falsely] == [
        start if start <= ends[350] else None for start in truly
    ]


def test_the_future_changes_no_start_before_any_moment() -> None:
    """Too few jobs to fit trees to, but many moments. Wide ones wait, so it matters when others will have ended."""
    held_up = 0
    for seed in range(3):
        asked, runs = busy(60, seed=seed)
        asked = [SubmittedRun(at_ms=a.at_ms, user=a.user, size=(1, 2, 3, 7)[n % 4]) for n, a in enumerate(asked)]
        truly = starts_of(asked, runs)
        for moment in sorted(truly)[20:60:4]:
            falsely = noise_after(moment, asked, runs, truly)
            told = [(at, start) for at, start in enumerate(truly) if start <= moment]
            assert [(at, start) for at, start in enumerate(falsely) if start <= moment] == told
            held_up += sum(each.at_ms <= moment for each in asked) - len(told)
    assert held_up > 50


class Sealed(list[int]):
    """Run times of which only that of the job that just ended may be looked at."""

    ended = -1

    def __getitem__(self, job: Any) -> Any:
        assert job == self.ended, "a run time is looked at before the run has ended"
        return super().__getitem__(job)


class Watched(ModelEstimates):
    def ended(self, job: int, now: int) -> None:
        self._run_ms.ended = job
        super().ended(job, now)
        self._run_ms.ended = -1


def test_no_run_time_is_looked_at_before_its_end() -> None:
    asked, runs = busy(120, seed=5)
    jobs = JobColumns([each.at_ms for each in asked], runs, runs, [each.size for each in asked])
    starts = backfill(jobs, 8, Watched(asked, Sealed(runs)), "slowdown")
    assert starts == starts_of(asked, runs)


def log(path: Path, jobs: int, *, seed: int) -> Path:
    draw, at, text = random.Random(seed), 0, ""
    for number in range(1, jobs + 1):
        at += draw.randrange(200)
        size, run = draw.choice((1, 2, 4)), draw.randrange(1, 900)
        request = draw.choice((-1, 600, 1200))
        text += LINE.format(number, at, run, size, size, request, draw.randrange(3))
    path.write_text(text)
    return path


def test_rows_without_learning_are_those_of_the_replay(tmp_path: Path) -> None:
    path = log(tmp_path / "log.swf", 120, seed=3)
    scores = backtest_queueing(read_queueing(path, "swf", nodes=5, arrivals=0.8), "swf")
    for row, policy, estimate in (
        ("easy_requested", "easy", "requested"),
        ("easy_actual", "easy", "actual"),
        ("easy_plus_plus", "easy-sjbf", "last-two"),
    ):
        through = replay(path, "swf", nodes=5, arrivals=0.8, policy=policy, estimate=estimate, through="engine")
        assert scores[row].n == through.jobs == 120
        assert scores[row].avg_wait_s == pytest.approx(through.avg_wait_s, abs=1e-9)
        assert scores[row].avg_bounded_slowdown == pytest.approx(through.avg_bounded_slowdown, abs=1e-9)
        assert scores[row].p95_wait_s == through.p95_wait_s


def test_a_small_trace_by_hand(tmp_path: Path) -> None:
    """One processor. The user's runs of 10 s come to be expected although he asks for 1000 s, and go before a run of
    500 s that came earlier; EASY keeps the order of arrival."""
    rows = [(number, number * 100, 10, 1000, 1) for number in range(6)]
    rows += [(6, 600, 100, 100, 2), (7, 610, 500, 500, 3), (8, 620, 10, 1000, 1)]
    path = tmp_path / "log.swf"
    path.write_text("".join(LINE.format(n, at, run, 1, 1, asked, user) for n, at, run, asked, user in rows))
    scores = backtest_queueing(read_queueing(path, "swf", nodes=1), "swf", every=True)
    # The first waits 90 s; then the long one (90 + 0) and the short one behind it (580), or the other way (80 and 100).
    assert scores["easy_requested"].avg_wait_s == pytest.approx((90 + 580) / 9)
    assert scores["muster"].avg_wait_s == pytest.approx((80 + 100) / 9)
    assert scores["muster"].max_wait_s == 100
    assert scores["muster"].avg_bounded_slowdown == pytest.approx((7 + 600 / 500 + 90 / 10) / 9)
    # Nobody may overtake the first that waits; so learning helps only behind it.
    assert scores["easy_learned"].avg_wait_s == scores["easy_requested"].avg_wait_s
    assert list(scores) == list(ROWS)


def test_the_command_tells_every_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log(tmp_path / "log.swf", 40, seed=4)
    command = ["backtest", "queueing", str(path), "--format", "swf", "--nodes", "4"]
    assert muster([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told)[:4] == ["easy_requested", "muster", "easy_plus_plus", "easy_actual"]
    assert "easy_learned" not in told
    for scores in told.values():
        assert {"avg_wait_s", "avg_bounded_slowdown"} <= set(scores)
        assert scores["n"] == 40
    assert muster(command) == 0
    shown = capsys.readouterr().out
    assert "BOUNDED SLOWDOWN" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_what_cannot_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.swf"
    path.write_text(LINE.format(1, 0, 10, 8, 8, 60, 1) + "nonsense\n")
    with pytest.raises(SpecError, match="no job that could run on 4"):
        read_queueing(path, "swf", nodes=4)
    command = ["backtest", "queueing", str(path), "--format", "swf", "--nodes", "8"]
    assert muster([*command, "--arrivals", "0"]) == 2
    assert muster(command) == 0
    assert "1 lines could not be read" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "format", "nodes", "arrivals", "wait", "slowdown"),
    [
        ("swf/KTH-SP2-1996-2.swf.gz", "swf", 100, 1.0, 6592, 69.79),
        ("swf/CEA-Curie-sample-30k.swf.gz", "swf", 93_312, 1.0, 217, 2.08),
        ("swf/NASA-iPSC-1993-3.1-cln.swf.gz", "swf", 128, 0.55, 32_151, 367.49),
    ],
)
def test_easy_plus_plus_gives_the_published_figures(name, format, nodes, arrivals, wait, slowdown) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{path} is not here: the shared traces are kept outside the project")
    plan = read_queueing(path, format, nodes=nodes, arrivals=arrivals)
    jobs = jobs_of(plan)
    met = score_queueing(jobs, backfill(jobs, plan.units, LastTwoEstimates(jobs, [job.user for job in plan.jobs])))
    assert met.avg_wait_s == pytest.approx(wait, rel=0.01)
    assert met.avg_bounded_slowdown == pytest.approx(slowdown, rel=0.01)
