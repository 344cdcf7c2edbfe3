"""Requests changed to what work uses: by command, and by a recommender when work is submitted."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from engine.admission.workload_changes import RequestRecommendation
from engine.control import Engine
from engine.model import commands as cmd
from engine.model.errors import RefusedError, SpecError
from engine.model.specs import Settings, WorkloadSpec
from tests.support.cells import small_cell, submit, workload
from tests.support.invariants import check_state

SECOND = 1000
MINUTE = 60_000


@pytest.fixture
def engine() -> Engine:
    """Two nodes of 32 cores, and four larger ones with devices."""
    return Engine.open(None, cell=small_cell(gpu_nodes=0))


def resize(*ids: str, group: str = "", evidence: str = "", **request: int) -> cmd.Resize:
    return cmd.Resize(ids=ids, group=group, request=request, evidence=evidence)


def cpu_of(engine: Engine, name: str, group: int = 0) -> int:
    return engine.workload(name).groups[group].cpu_milli


def last(engine: Engine, name: str, what: str) -> str:
    return [item.detail for item in engine.workload(name).history if item.what == what][-1]


def test_what_waits_starts_with_its_new_request(engine: Engine) -> None:
    engine.command(submit(workload("there", cpu=30_000, count=2)))
    engine.command(submit(workload("waits", cpu=4000)))
    assert engine.workload("waits").state == "queued"
    engine.command(resize("waits", cpu_milli=1000, evidence="p95 800m x 1.15"))
    assert (engine.workload("waits").state, cpu_of(engine, "waits")) == ("running", 1000)
    assert last(engine, "waits", "resized") == "request cut from 4 CPU to 1 CPU: p95 800m x 1.15"
    check_state(engine.state)


def test_what_runs_goes_on_from_its_last_checkpoint_with_the_new_request(engine: Engine) -> None:
    engine.command(submit(workload("runs", cpu=30_000, count=2, checkpoint=10 * SECOND)))
    engine.advance(25 * SECOND)
    engine.command(resize("runs", cpu_milli=31_000))
    work = engine.workload("runs")
    assert (work.state, work.attempts, work.kept_ms, work.failures) == ("running", 2, 20 * SECOND, 0)
    assert last(engine, "runs", "resized") == "request raised from 30 CPU to 31 CPU"
    check_state(engine.state)
    engine.advance(25 * SECOND + 40 * SECOND)
    assert engine.workload("runs").state == "finished"


def test_what_would_lose_all_its_work_is_refused(engine: Engine) -> None:
    engine.command(submit(workload("runs")))
    with pytest.raises(RefusedError, match="no checkpoint"):
        engine.command(resize("runs", cpu_milli=2000))
    assert engine.workload("runs").attempts == 1


@pytest.mark.parametrize("state", ["held", "suspended"])
def test_what_is_kept_from_starting_is_resized_and_stays_so(engine: Engine, state: str) -> None:
    engine.command(submit(workload("w", held=state == "held")))
    if state == "suspended":
        engine.command(cmd.Suspend(ids=("w",)))
    engine.command(resize("w", cpu_milli=2000))
    assert (engine.workload("w").state, cpu_of(engine, "w")) == (state, 2000)
    engine.command((cmd.Release if state == "held" else cmd.Resume)(ids=("w",)))
    assert engine.node("c0").free["cpu_milli"] == 30_000
    check_state(engine.state)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (resize("w", cpu_milli=33_000), "could run one such task"),
        (resize("w", cpu_milli=-1), "below 0"),
        (resize("w", cpu_milli=0), "is empty"),
        (resize("w", cores=4), "not a resource"),
        (resize("w"), "is empty"),
        (resize("w", group="other", cpu_milli=4), "no group 'other'"),
        (resize("w", cpu_milli=4, evidence="a\nb"), "one line"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_changes(engine: Engine, command: cmd.Resize, problem: str) -> None:
    engine.command(submit(workload("w", held=True)))
    before = engine.state.digest()
    with pytest.raises(SpecError, match=problem):
        engine.command(command)
    assert engine.state.digest() == before


def test_one_group_of_several_is_named(engine: Engine) -> None:
    spec = workload("w", held=True)
    groups = (spec.groups[0], msgspec.structs.replace(spec.groups[0], name="ps"))
    engine.command(submit(msgspec.structs.replace(spec, groups=groups)))
    with pytest.raises(SpecError, match="Give one of: main, ps"):
        engine.command(resize("w", cpu_milli=500))
    engine.command(resize("w", group="ps", cpu_milli=500))
    assert (cpu_of(engine, "w", 0), cpu_of(engine, "w", 1)) == (1000, 500)


def test_what_has_ended_is_refused_and_what_has_the_request_already_is_left_alone(engine: Engine) -> None:
    engine.command(submit(workload("w")))
    assert engine.command(resize("w", cpu_milli=1000)).changed == ()
    engine.advance(2 * MINUTE)
    with pytest.raises(RefusedError, match="is finished"):
        engine.command(resize("w", cpu_milli=2000))


def test_quota_follows_the_new_request() -> None:
    engine = Engine.open(None, cell=small_cell(quota={"cpu_milli": 5000}))
    engine.command(submit(workload("one", cpu=4000, checkpoint=SECOND), workload("two", cpu=3000)))
    assert engine.workload("two").state == "queued"
    engine.command(resize("one", cpu_milli=2000))
    assert (engine.workload("one").state, engine.workload("two").state) == ("running", "running")
    check_state(engine.state)


def test_a_restart_knows_what_was_resized(tmp_path) -> None:
    path = tmp_path / "cell.db"
    engine = Engine.open(path, cell=small_cell())
    engine.command(submit(workload("w", checkpoint=SECOND)))
    engine.command(resize("w", cpu_milli=2000, evidence="because"))
    digest = engine.state.digest()
    for use_snapshot in (False, True):
        engine.close()
        engine = Engine.open(path, use_snapshot=use_snapshot)
        assert engine.state.digest() == digest
        assert last(engine, "w", "resized") == "request raised from 1 CPU to 2 CPU: because"
    engine.close()


# -- the hook ---------------------------------------------------------------------------------------------------------


class Halving:
    """Knows that everything uses less than half of its CPU."""

    def __init__(self, divisor: int = 2) -> None:
        self.divisor = divisor
        self.asked: list[str] = []

    def recommend(self, spec: WorkloadSpec) -> Sequence[RequestRecommendation]:
        self.asked.append(spec.id)
        cpu = spec.groups[0].request.cpu_milli // self.divisor
        return [RequestRecommendation(cpu_milli=cpu, evidence=f"p95 of 9 like it x 1.15: {cpu}m")]


def cut(engine: Engine, divisor: int = 2) -> Halving:
    engine.recommender = Halving(divisor)
    engine.command(cmd.SetSettings(settings=Settings(rightsizing="initial")))
    return engine.recommender


def test_a_recommender_is_not_asked_unless_the_cell_says_so(engine: Engine) -> None:
    engine.recommender = Halving()
    engine.command(submit(workload("w", cpu=4000)))
    assert (engine.recommender.asked, cpu_of(engine, "w")) == ([], 4000)


def test_new_work_starts_with_what_is_recommended_and_its_history_says_why(engine: Engine) -> None:
    cut(engine)
    engine.command(submit(workload("w", cpu=4000), workload("v", cpu=2000)))
    assert (cpu_of(engine, "w"), cpu_of(engine, "v")) == (2000, 1000)
    assert engine.node("c0").free["cpu_milli"] == 29_000
    assert last(engine, "w", "resized") == "request cut from 4 CPU to 2 CPU: p95 of 9 like it x 1.15: 2000m"
    check_state(engine.state)


def test_what_is_recommended_stays_within_bounds(engine: Engine) -> None:
    cut(engine, 1000)
    engine.command(submit(workload("w", cpu=4000)))
    assert cpu_of(engine, "w") == 400


def test_a_recommendation_that_could_never_start_is_not_followed(engine: Engine) -> None:
    class Wasteful(Halving):
        def recommend(self, spec: WorkloadSpec) -> Sequence[RequestRecommendation]:
            return [
                RequestRecommendation(cpu_milli=64_000, evidence="it grows"),
                RequestRecommendation(group="none", evidence=""),
            ]

    cut(engine)
    engine.recommender = Wasteful()
    engine.command(submit(workload("w", cpu=20_000)))
    assert (cpu_of(engine, "w"), engine.workload("w").state) == (20_000, "running")


def test_replaying_asks_no_recommender(tmp_path) -> None:
    path = tmp_path / "cell.db"
    engine = Engine.open(path, cell=small_cell())
    cut(engine)
    engine.command(submit(workload("w", cpu=4000)))
    digest = engine.state.digest()
    engine.close()
    again = Engine.open(path)
    assert (again.state.digest(), again.recommender) == (digest, None)
    again.close()
