"""The recommender on a live engine: learns what has finished, in bounded windows, once; the same after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from console import advisor
from console.advisor import Advisor
from engine.commands import Cancel, Cordon, Requeue, Submit
from engine.control import Engine
from engine.errors import NotFoundError
from engine.loop import EngineLoop
from engine.query import Page, Query
from recommender.findings import CORDONED_MS
from recommender.runtime import LEAST_SAMPLES, Level
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
    assert (train.samples, train.level) == (20, "tenant and name")
    assert [ms // MINUTE for ms in (train.p10_ms, train.p50_ms, train.p90_ms)] == [2, 10, 19]
    assert (evaluation.p10_ms, evaluation.p90_ms) == (100 * MINUTE, 100 * MINUTE)
    assert train.scored == 40 - LEAST_SAMPLES
    assert train.p90_coverage_permille is not None
    assert train.median_abs_log_error is not None


def test_too_little_has_finished_to_say(loop: EngineLoop) -> None:
    finish(loop, "train", [5] * (LEAST_SAMPLES - 1))
    told = Advisor(loop)
    assert told.estimate("train-0") is None
    finish(loop, "train", [5], first=LEAST_SAMPLES - 1)
    likely = told.estimate("train-0")
    assert likely is not None
    assert (likely.scored, likely.p90_coverage_permille, likely.median_abs_log_error) == (0, None, None)


def test_an_unknown_workload_is_not_found(loop: EngineLoop) -> None:
    with pytest.raises(NotFoundError):
        Advisor(loop).estimate("nothing")


def test_what_runs_was_cancelled_or_began_at_a_checkpoint_is_not_learnt(loop: EngineLoop) -> None:
    finish(loop, "train", [5] * LEAST_SAMPLES)
    submit(loop, "train-runs", run=600 * MINUTE)
    submit(loop, "train-cancelled", run=600 * MINUTE)
    submit(loop, "train-again", run=60 * MINUTE, checkpoint=MINUTE)
    pass_time(loop, 30 * MINUTE)
    loop.call(lambda engine: engine.command(Cancel(ids=("train-cancelled",))))
    loop.call(lambda engine: engine.command(Requeue(ids=("train-again",))))
    pass_time(loop, 90 * MINUTE)
    assert loop.call(lambda engine: engine.workload("train-again").state) == "finished"
    likely = Advisor(loop).estimate("train-runs")
    assert likely is not None
    assert (likely.samples, likely.p90_ms) == (LEAST_SAMPLES, 5 * MINUTE)


def test_a_restart_learns_the_same(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with running_loop(path) as loop:
        told = Advisor(loop)
        finish(loop, "train", [3, 1, 4, 1, 5, 9])
        told.estimate("train-0")
        finish(loop, "train", [2, 6, 5, 3, 5, 8, 9, 7], first=6)
        before = told.estimate("train-0")
    with running_loop(path) as loop:
        pass_time(loop, 1)  # the clock resumes at the last end, and that instant is not over
        assert Advisor(loop).estimate("train-0") == before
    assert before is not None


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
    assert likely.samples == 40


def test_with_too_much_to_learn_the_latest_is_learnt(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advisor, "LOOKBACK", 10)
    finish(loop, "train", [60] * 20 + [5] * 10)
    likely = Advisor(loop).estimate("train-0")
    assert likely is not None
    assert (likely.samples, likely.p90_ms) == (10, 5 * MINUTE)


def test_every_question_is_bounded_and_nothing_is_asked_twice(
    loop: EngineLoop, asked: list[tuple[Query, Page]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advisor, "PAGE", 10)
    told = Advisor(loop)
    finish(loop, "train", [2] * 25)
    told.estimate("train-0")
    told.advice()
    assert all(query.limit <= advisor.WINDOW for query, _ in asked)
    ends = [len(page.rows) for query, page in asked if ("ended" in query.sort)]
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
    assert likely.samples == 25


def test_advice_finds_forgotten_cordons_and_late_runs_in_the_live_cell(loop: EngineLoop) -> None:
    told = Advisor(loop)
    assert told.advice().suggestions == ()
    finish(loop, "train", [5] * 40)
    submit(loop, "train-late", run=10_000 * MINUTE)
    loop.call(lambda engine: engine.command(Cordon(ids=("g3", "c1"))))
    pass_time(loop, CORDONED_MS + MINUTE)
    version = loop.call(lambda engine: engine.version)
    found = told.advice()
    assert found.version == version
    assert {(item.action, item.targets) for item in found.suggestions} == {
        ("uncordon", ("g3", "c1")),
        ("notify", ("train-late",)),
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
    assert found.unknown == ("1 more cordoned nodes were not looked at",)


def test_the_level_is_one_of_those_that_faces_explain() -> None:
    assert set(get_args(Level)) == {"tenant and name", "tenant and size", "queue and size", "all"}
