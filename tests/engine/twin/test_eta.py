"""When a workload will start: cases whose answer is known, and what becomes of estimates that were shown."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cells import CLASSES, small_cell, submit, workload

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.specs import WorkloadSpec
from engine.model.twin_queries import Answer, Ask, AskRun, AskStart, DryRun, StartEstimate
from engine.model.what_if_edits import EditsError
from engine.twin import forks
from engine.twin.live_twin import Twins
from engine.twin.start_estimates import score
from tests.support.patience import PATIENCE_S

HOUR, MINUTE = 3_600_000, 60_000
DEVICES_PRICE = 18_000_000
"""Micro-USD an hour of the devices of a GPU node: nine tenths of its price."""


def job(name: str, **more: object) -> WorkloadSpec:
    """A whole GPU node for an hour, although two are asked for."""
    return workload(name, **({"gpu": 8000, "cpu": 0, "run": HOUR, "estimate": 2 * HOUR} | more))  # type: ignore[arg-type]


def experienced(path: Path | None = None, **sizes: int) -> Engine:
    """One GPU node, and a past in which such jobs took exactly an hour each."""
    classes = tuple(
        msgspec.structs.replace(each, preemption="lower" if each.name == "high" else "never") for each in CLASSES
    )
    cell = msgspec.structs.replace(small_cell(**({"gpu_nodes": 1, "cpu_nodes": 1} | sizes)), priority_classes=classes)
    engine = Engine.open(path, cell=cell)
    engine.command(submit(*[job(f"past{i}") for i in range(10)]))
    engine.advance(20 * HOUR)
    assert engine.workload("past9").state == "finished"
    return engine


def told(engine: Engine, ask: Ask) -> Answer:
    twins = Twins(engine)
    run = twins.start(ask).id
    while twins.busy:
        forks.wait_for(list(twins.children.values()), PATIENCE_S)
        twins.poll()
    status = twins.status(run)
    assert status.error is None, status.error
    assert status.answer is not None
    return status.answer


def estimated(engine: Engine, name: str, **more: object) -> StartEstimate:
    answer = told(engine, AskStart(**({"id": name, "seeds": 5, "arrivals": False} | more)))  # type: ignore[arg-type]
    assert isinstance(answer, StartEstimate)
    return answer


def tried(engine: Engine, *workloads: WorkloadSpec, seeds: int = 5) -> DryRun:
    answer = told(engine, AskRun(workloads=workloads, seeds=seeds))
    assert isinstance(answer, DryRun)
    return answer


def started_at(engine: Engine, name: str) -> int:
    """Let time pass until it has started."""
    while engine.workload(name).started_ms is None:
        due = engine.next_due()
        assert due is not None
        engine.advance(due)
    at_ms = engine.workload(name).started_ms
    assert at_ms is not None
    return at_ms


# -- estimates --------------------------------------------------------------------------------------------------------


def test_what_waits_for_a_node_that_is_free_at_a_known_time_starts_then() -> None:
    engine = experienced()
    begun = engine.now_ms
    engine.command(submit(job("runs"), job("waits")))
    engine.advance(begun + 20 * MINUTE)
    found = estimated(engine, "waits")
    assert found.start is not None
    assert found.start.p50_ms == found.start.p90_ms == begun + HOUR
    assert found.start.chance_permille == 1000
    (ends,) = [driver for driver in found.drivers if driver.kind == "ends"]
    assert (ends.subject, ends.chance_permille, ends.at_ms) == ("runs", 1000, begun + HOUR)
    assert found.drivers[0].kind == "gate"
    assert started_at(engine, "waits") == begun + HOUR


def test_who_goes_first_is_a_driver() -> None:
    engine = experienced()
    begun = engine.now_ms
    engine.command(submit(job("runs"), job("first"), job("second")))
    found = estimated(engine, "second")
    assert found.start is not None
    assert found.start.p50_ms == begun + 2 * HOUR
    (ahead,) = [driver for driver in found.drivers if driver.kind == "ahead"]
    assert (ahead.subject, ahead.at_ms) == ("first", begun + HOUR)


def test_work_that_runs_is_expected_to_go_on_from_now_however_long_nothing_has_happened() -> None:
    engine = Engine.open(None, cell=small_cell(gpu_nodes=1))
    engine.command(submit(*[job(f"past{i}", run=(i + 1) * 10 * MINUTE) for i in range(10)]))
    engine.advance(20 * HOUR)
    engine.command(submit(job("runs", run=HOUR * 3 // 2), job("waits")))
    begun = engine.now_ms
    engine.advance(begun + 65 * MINUTE)
    found = estimated(engine, "waits", seeds=20)
    assert found.start is not None
    # Four of the ten have taken longer than it has by now.
    assert found.start.p10_ms is not None
    assert found.start.p10_ms > engine.now_ms
    assert found.start.p50_ms is not None
    assert begun + 70 * MINUTE < found.start.p50_ms < begun + 100 * MINUTE


def test_work_that_has_outlived_all_of_its_likes_has_its_end_ahead() -> None:
    engine = experienced()
    engine.command(submit(job("runs", run=5 * HOUR, estimate=6 * HOUR), job("waits")))
    engine.advance(engine.now_ms + 3 * HOUR)
    found = estimated(engine, "waits")
    assert found.start is not None
    assert found.start.p10_ms is not None
    assert found.start.p10_ms > engine.now_ms


def test_what_will_never_have_room_has_no_start() -> None:
    engine = experienced()
    engine.command(cmd.Cordon(ids=("g0",)))
    engine.command(submit(job("waits")))
    found = estimated(engine, "waits")
    assert found.start is not None
    assert (found.start.p50_ms, found.start.chance_permille) == (None, 0)


def test_new_arrivals_can_only_delay() -> None:
    engine = experienced()
    begun = engine.now_ms
    engine.command(submit(job("runs"), job("waits", priority="low")))
    found = estimated(engine, "waits", arrivals=True)
    assert found.start is not None
    assert found.start.p90_ms is None or found.start.p90_ms >= begun + HOUR


# -- kept and scored --------------------------------------------------------------------------------------------------


def test_every_estimate_that_is_shown_is_kept_and_scored_against_what_happened(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    engine = experienced(path)
    # The first does what all have done; the second takes twice as long, so what waits for it starts later than told.
    engine.command(submit(job("runs"), job("slow", run=2 * HOUR), job("last")))
    for name in ("slow", "last"):
        estimated(engine, name)
    assert engine_scores(engine) == (2, 2, {})
    started_at(engine, "slow")
    estimated(engine, "last")
    engine.advance(engine.now_ms + 10 * HOUR)
    # Both of `last` were an hour early: at two hours, and at one.
    expected = {"all": (3, 333, HOUR), "1 h - 6 h": (3, 333, HOUR)}
    assert engine_scores(engine) == (3, 0, expected)
    engine.close()
    again = Engine.open(path)
    assert engine_scores(again) == (3, 0, expected)
    again.close()


def engine_scores(engine: Engine) -> tuple[int, int, dict[str, tuple[int, int, int]]]:
    """Stored, open, and by lead: how many, how many in a thousand were covered, and the median error; without what was
    told at once."""
    report = score(engine)
    run_ahead = (one for one in report.scores if not one.lead.startswith("at once"))
    rows = {one.lead: (one.estimates, one.covered_permille, one.median_error_ms) for one in run_ahead}
    return report.stored, report.open, rows


def test_an_estimate_of_what_never_starts_stays_open() -> None:
    engine = experienced()
    engine.command(submit(job("runs"), job("waits")))
    estimated(engine, "waits")
    engine.command(cmd.Cancel(ids=("waits",)))
    engine.advance(engine.now_ms + 5 * HOUR)
    assert engine_scores(engine) == (1, 1, {})


def test_an_estimate_from_too_few_runs_has_no_quantile_and_is_not_scored() -> None:
    engine = experienced()
    engine.command(submit(job("runs"), job("waits")))
    for seeds, told in ((4, False), (5, True)):
        found = estimated(engine, "waits", seeds=seeds).start
        assert found is not None
        assert (found.runs, found.started) == (seeds, seeds)
        assert found.least_ms is not None
        assert [each is not None for each in (found.p10_ms, found.p50_ms, found.p90_ms)] == [told] * 3
        assert (found.chance_permille is not None) == told
        assert [one.kind for one in engine.estimates()].count("start") == told


# -- would it run -----------------------------------------------------------------------------------------------------


def test_a_dry_run_of_what_has_room_is_what_submitting_does() -> None:
    engine = experienced()
    before = engine.state.digest()
    found = tried(engine, job("new"))
    (trial,) = found.trials
    assert trial.starts_now
    assert trial.reason == ""
    assert trial.start.p50_ms == engine.now_ms
    assert trial.end_p50_ms == engine.now_ms + HOUR
    assert trial.cost.p50 == DEVICES_PRICE
    assert (found.preempts_now, found.delayed, found.evictions.most) == ((), (), 0)
    assert engine.state.digest() == before
    fork = engine.fork()
    fork.command(submit(job("new")))
    assert fork.workload("new").state == "running"


def test_a_dry_run_of_what_must_wait_tells_why_and_when() -> None:
    engine = experienced()
    engine.command(submit(job("runs")))
    (trial,) = tried(engine, job("new")).trials
    assert not trial.starts_now
    assert trial.reason
    fork = engine.fork()
    fork.command(submit(job("new")))
    assert trial.start.p50_ms == started_at(fork, "new")


def test_a_dry_run_names_those_who_would_be_stopped_and_those_who_would_wait_longer() -> None:
    engine = experienced()
    engine.command(submit(job("mean", priority="low"), job("next", priority="low")))
    found = tried(engine, job("new", priority="high"))
    assert found.trials[0].starts_now
    fork = engine.fork()
    fork.command(submit(job("new", priority="high")))
    assert fork.workload("mean").state == "queued"
    assert found.preempts_now == ("mean",)
    assert found.evictions.p50 == 1
    # It is older than the one that waits, and goes first again.
    (later,) = found.delayed
    assert later.id == "next"
    assert later.before is not None
    assert later.before.p50_ms == engine.now_ms + HOUR
    assert later.after is not None
    assert later.after.p50_ms == started_at(fork, "next")


def test_a_dry_run_of_what_the_cell_refuses_says_so_as_a_submission_would() -> None:
    engine = experienced()
    with pytest.raises(EditsError, match="there is no queue 'nobody'") as caught:
        Twins(engine).start(AskRun(workloads=(job("new", queue="nobody"),)))
    assert "edit 1" not in str(caught.value)
