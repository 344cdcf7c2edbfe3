"""The recommender on a live engine: learns what has finished, in bounded windows, once; the same after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from console.service import advisor
from console.service.advisor import Advisor
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.commands import Cancel, Cordon, Requeue, Submit
from engine.model.errors import NotFoundError
from engine.model.list_queries import Page, Query
from recommender.estimates import run_time_model
from recommender.estimates.cell_runs import WorkloadFeatures
from recommender.estimates.run_time_model import ENOUGH
from recommender.findings.live_findings import CORDONED_MS
from tests.support.cells import workload
from tests.support.served import running_loop

MINUTE = 60_000


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Query, Page]]:
    """Every window the engine was asked for, with its answer."""
    seen: list[tuple[Query, Page]] = []
    answer = Engine.query

    def query(engine: Engine, query: Query) -> Page:
        page = answer(engine, query)
        seen.append((query, page))
        return page

    monkeypatch.setattr(Engine, "query", query)
    return seen


def finish(loop: EngineLoop, stem: str, minutes: list[int], *, first: int = 0) -> None:
    """Workloads `stem-N` that run so many minutes, one after the other, all ended."""
    for number, run in enumerate(minutes, first):
        spec = workload(f"{stem}-{number}", tenant="ml", run=run * MINUTE, estimate=run * MINUTE)
        loop.call(lambda engine, spec=spec: engine.command(Submit(workloads=(spec,))))
        pass_time(loop, run * MINUTE + 1)


def pass_time(loop: EngineLoop, ms: int) -> None:
    loop.call(lambda engine: engine.advance(engine.now_ms + ms))


def submit(loop: EngineLoop, workload_id: str, **options: int) -> None:
    spec = workload(workload_id, tenant="ml", **options)
    loop.call(lambda engine: engine.command(Submit(workloads=(spec,))))


def test_each_name_has_quantiles_of_its_own(loop: EngineLoop) -> None:
    finish(loop, "train", list(range(1, 21)))
    finish(loop, "eval", [100] * 20)
    submit(loop, "train-99")
    submit(loop, "eval-99")
    told = Advisor(loop)
    train, evaluation = told.estimate("train-99"), told.estimate("eval-99")
    assert train is not None
    assert evaluation is not None
    assert (train.samples, train.level, train.basis, train.learnt) == (20, "tenant and name", "likes", 40)
    assert [ms // MINUTE for ms in (train.p10_ms, train.p50_ms, train.p90_ms)] == [2, 10, 18]
    assert [round(ms / MINUTE) for ms in (evaluation.p50_ms, evaluation.p90_ms)] == [100, 102]
    # Every one had asked for a time, so something could be said of each when it was submitted.
    assert train.scored == 40
    assert train.p90_coverage_permille is not None
    assert train.within2x_permille is not None
    assert train.median_abs_log_error is not None


def test_with_nothing_finished_the_request_is_all_there_is(loop: EngineLoop) -> None:
    submit(loop, "asks", estimate=60 * MINUTE, run=600 * MINUTE)
    submit(loop, "does-not", estimate=0, run=600 * MINUTE)
    told = Advisor(loop)
    assert told.estimate("does-not") is None
    said = told.estimate("asks")
    assert said is not None
    assert (said.basis, said.samples, said.level, round(said.p90_ms / MINUTE)) == ("request", 0, "", 60)
    assert (said.scored, said.p90_coverage_permille, said.within2x_permille) == (0, None, None)


def test_too_little_has_finished_to_say(loop: EngineLoop) -> None:
    finish(loop, "train", [5] * (ENOUGH - 1))
    submit(loop, "train-99", estimate=0, run=600 * MINUTE)
    told = Advisor(loop)
    assert told.estimate("train-99") is None
    finish(loop, "train", [5], first=ENOUGH - 1)
    assert told.estimate("train-99") is not None


def test_while_it_runs_what_it_has_run_counts(loop: EngineLoop) -> None:
    finish(loop, "train", list(range(10, 30)))
    submit(loop, "train-99", run=600 * MINUTE, estimate=0)
    told = Advisor(loop)
    before = told.estimate("train-99")
    pass_time(loop, 100 * MINUTE)
    later = told.estimate("train-99")
    assert before is not None
    assert later is not None
    assert before.p90_ms < 40 * MINUTE
    assert (round(later.elapsed_ms / MINUTE), later.samples) == (100, before.samples)
    assert 100 * MINUTE <= later.p10_ms < later.p50_ms < later.p90_ms


def test_work_that_is_not_there_yet_can_be_asked_about(loop: EngineLoop) -> None:
    finish(loop, "train", [30] * 20)
    told = Advisor(loop)
    asked = WorkloadFeatures(name="train-500", tenant="ml", queue="a", tasks=1, gpu_milli=0)
    said = told.run_time_of(asked)
    assert said is not None
    assert round(said.p50_ms / MINUTE) == 30
    assert told.run_time_of(asked) == said


def test_trees_are_fitted_beside_and_speak_afterwards(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_time_model, "FIRST_FIT", 120)
    monkeypatch.setitem(run_time_model.TREES, "max_iter", 20)
    specs = [
        workload(f"{name}-{number}", tenant="ml", run=minutes * MINUTE, estimate=0)
        for number in range(60)
        for name, minutes in (("short", 1), ("long", 60))
    ]
    told = Advisor(loop)
    for start in range(0, 120, 2):
        loop.call(lambda engine, two=tuple(specs[start : start + 2]): engine.command(Submit(workloads=two)))
        pass_time(loop, 61 * MINUTE)
    first = told.estimate("long-3")
    told.run_times.settle()
    then = told.estimate("long-3")
    assert first is not None
    assert then is not None
    assert (first.basis, then.basis) == ("likes", "trees")
    assert 50 * MINUTE < then.p50_ms < 70 * MINUTE


def test_an_unknown_workload_is_not_found(loop: EngineLoop) -> None:
    with pytest.raises(NotFoundError):
        Advisor(loop).estimate("nothing")


def test_what_runs_was_cancelled_or_began_at_a_checkpoint_is_not_learnt(loop: EngineLoop) -> None:
    finish(loop, "train", [5] * 8)
    submit(loop, "train-runs", run=600 * MINUTE, estimate=5 * MINUTE)
    submit(loop, "train-cancelled", run=600 * MINUTE)
    submit(loop, "train-again", run=60 * MINUTE, checkpoint=MINUTE)
    pass_time(loop, 30 * MINUTE)
    loop.call(lambda engine: engine.command(Cancel(ids=("train-cancelled",))))
    loop.call(lambda engine: engine.command(Requeue(ids=("train-again",))))
    pass_time(loop, 90 * MINUTE)
    assert loop.call(lambda engine: engine.workload("train-again").state) == "finished"
    asked = WorkloadFeatures(name="train-9", tenant="ml", queue="a", tasks=1, gpu_milli=0)
    likely = Advisor(loop).run_time_of(asked)
    assert likely is not None
    assert (likely.samples, likely.learnt, round(likely.p90_ms / MINUTE)) == (8, 8, 5)


def test_a_restart_learns_the_same(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with running_loop(path) as loop:
        told = Advisor(loop)
        finish(loop, "train", [3, 1, 4, 1, 5, 9])
        told.estimate("train-0")
        submit(loop, "train-held", held=True)
        told.estimate("train-0")
        finish(loop, "train", [2, 6, 5, 3, 5, 8, 9, 7], first=6)
        before = told.estimate("train-held")
    with running_loop(path) as loop:
        pass_time(loop, 1)  # the clock resumes at the last end, and that instant is not over
        after = Advisor(loop).estimate("train-held")
    assert before is not None
    assert after is not None
    assert (after.learnt, after.scored, after.p90_coverage_permille) == (14, 14, before.p90_coverage_permille)
    assert [after.p10_ms, after.p50_ms, after.p90_ms] == [before.p10_ms, before.p50_ms, before.p90_ms]


def test_nothing_of_the_future_reaches_what_was_said(loop: EngineLoop) -> None:
    """Two cells with the same past; afterwards one works on as before, in the other everything takes a thousandfold.

    What had been said of each at its submission is told by its score, and all scores of the past must stay the same:
    both when the cell was looked at all along, and when it is looked at for the first time after all of that.
    """
    scores = []
    for factor in (1, 1000):
        with running_loop() as other:
            watched = Advisor(other)
            finish(other, "train", [3, 1, 4, 1, 5, 9, 2, 6, 5, 3] * 6)
            watched.estimate("train-0")
            finish(other, "train", [7 * factor, 2 * factor, 9 * factor] * 4, first=60)
            watched.estimate("train-0")
            late = Advisor(other)
            late.estimate("train-0")
            for told in (watched, late):
                scores.append(list(told.run_times._runs._scores))
    assert len(scores[0]) == 72
    assert scores[0][:60] == scores[1][:60] == scores[2][:60] == scores[3][:60]
    assert scores[0][60:] != scores[2][60:]


def test_ends_of_one_instant_are_each_learnt_once_whatever_the_window(
    loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advisor, "PAGE", 7)
    specs = tuple(workload(f"train-{number}", tenant="ml", run=MINUTE) for number in range(40))
    loop.call(lambda engine: engine.command(Submit(workloads=specs)))
    told = Advisor(loop)
    for _ in range(5):
        told.estimate("train-0")
        pass_time(loop, MINUTE // 2)
    likely = told.estimate("train-0")
    assert likely is not None
    assert likely.learnt == 40


def test_with_too_much_to_learn_the_latest_is_learnt(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advisor, "LOOKBACK", 10)
    told = Advisor(loop)
    asked = WorkloadFeatures(name="train-9", tenant="ml", queue="a", tasks=1, gpu_milli=0)
    finish(loop, "train", [60] * 8)
    assert told.run_time_of(asked) is not None
    finish(loop, "train", [60] * 12 + [5] * 10, first=8)
    likely = told.run_time_of(asked)
    assert likely is not None
    assert (likely.samples, round(likely.p90_ms / MINUTE)) == (10, 5)


def test_every_question_is_bounded_and_nothing_is_asked_twice(
    loop: EngineLoop, asked: list[tuple[Query, Page]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advisor, "PAGE", 10)
    told = Advisor(loop)
    finish(loop, "train", [2] * 25)
    told.estimate("train-0")
    told.advice()
    assert all(query.limit <= advisor.WINDOW for query, _ in asked)
    ends = [len(page.rows) for query, page in asked if query.sort == ("ended",)]
    assert max(ends) <= 10
    assert sum(ends) == 25
    asked.clear()
    finish(loop, "train", [2] * 3, first=25)
    told.estimate("train-0")
    told.estimate("train-0")
    assert sum(page.matched for query, page in asked if query.sort == ("ended",)) == 3


def test_a_failure_in_the_middle_loses_and_doubles_nothing(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advisor, "PAGE", 10)
    finish(loop, "train", [2] * 25)
    told = Advisor(loop)
    answer = Engine.query

    def fail_late(engine: Engine, query: Query) -> Page:
        if query.offset == 20:
            raise NotFoundError("not now", "")
        return answer(engine, query)

    monkeypatch.setattr(Engine, "query", fail_late)
    with pytest.raises(NotFoundError):
        told.estimate("train-0")
    monkeypatch.setattr(Engine, "query", answer)
    likely = told.estimate("train-0")
    assert likely is not None
    assert (likely.learnt, likely.scored) == (25, 25)


def test_advice_finds_forgotten_cordons_and_late_runs_in_the_live_cell(loop: EngineLoop) -> None:
    told = Advisor(loop)
    assert told.advice().suggestions == ()
    finish(loop, "train", [5] * 40)
    submit(loop, "train-99", run=10_000 * MINUTE)
    loop.call(lambda engine: engine.command(Cordon(ids=("g3", "c1"))))
    pass_time(loop, CORDONED_MS + MINUTE)
    version = loop.call(lambda engine: engine.version)
    found = told.advice()
    assert found.version == version
    assert {(item.action, item.targets) for item in found.suggestions} == {
        ("uncordon", ("g3", "c1")),
        ("notify", ("train-99",)),
    }
    assert found.unknown == ()
    assert loop.call(lambda engine: engine.version) == version
    assert loop.call(lambda engine: engine.node("g3").state) == "cordoned"


def test_more_cordoned_nodes_than_are_looked_at_are_told(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    import msgspec

    monkeypatch.setattr(advisor, "CORDONED", msgspec.structs.replace(advisor.CORDONED, limit=2))
    loop.call(lambda engine: engine.command(Cordon(ids=("g1", "g2", "g3"))))
    pass_time(loop, CORDONED_MS + MINUTE)
    found = Advisor(loop).advice()
    assert [len(item.targets) for item in found.suggestions] == [2]
    assert found.unknown == ("1 more cordoned nodes were not checked",)
