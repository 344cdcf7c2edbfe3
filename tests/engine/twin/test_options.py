"""Options tried by the twin: each alone, under the same draws, and as far as there is time."""

from __future__ import annotations

import time
from types import SimpleNamespace

import msgspec
import pytest
from cells import small_cell, submit, workload

from engine.control import Engine
from engine.model.errors import SpecError
from engine.model.quantities import MIN_RUNS
from engine.model.specs import NodeSpec, ScalingSpec, WorkloadSpec
from engine.model.twin_queries import AskOptions, AskRun, DryRun, Options
from engine.twin.live_twin import Twins
from engine.twin.start_estimates import run_time_in, share_of
from tests.engine.twin.test_eta import experienced, job, told

HOUR, MINUTE = 3_600_000, 60_000


def tried(engine: Engine, *workloads: WorkloadSpec, run_ms: int = HOUR, **more: object) -> Options:
    given = {"seeds": 2, "arrivals": False} | more
    answer = told(engine, AskOptions(workloads=workloads, run_ms=((run_ms,),) * len(workloads), **given))  # type: ignore[arg-type]
    assert isinstance(answer, Options)
    return answer


def test_each_option_is_alone_and_ends_when_its_run_time_says() -> None:
    engine = experienced()
    before = engine.state.digest()
    later = msgspec.structs.replace(job("later"), not_before_ms=engine.now_ms + 3 * HOUR)
    found = tried(engine, job("now"), job("too"), later, run_ms=2 * HOUR)
    assert [trial.id for trial in found.trials] == ["now", "too", "later"]
    for trial, wait_ms in zip(found.trials, (0, 0, 3 * HOUR), strict=True):
        assert len(trial.attempts) == 2
        for one in trial.attempts:
            assert one.started_ms == engine.now_ms + wait_ms
            assert one.ended_ms == one.started_ms + 2 * HOUR
            assert one.cost_microusd == 2 * sum(held.rate_microusd_hour for held in one.placed)
            assert (one.stops, [(held.pool, held.tasks) for held in one.placed]) == (0, [("gpu", 1)])
    assert engine.state.digest() == before


def test_an_option_and_a_dry_run_of_the_same_work_agree() -> None:
    engine = experienced()
    engine.command(submit(job("runs")))
    engine.advance(engine.now_ms + 10 * MINUTE)
    # Its like took an hour each of the two that were asked for.
    option = tried(engine, job("new"), run_ms=HOUR).trials[0]
    dry = told(engine, AskRun(workloads=(job("new"),), seeds=5))
    assert isinstance(dry, DryRun)
    (trial,) = dry.trials
    assert trial.start.p50_ms == engine.now_ms + 50 * MINUTE
    assert {one.started_ms for one in option.attempts} == {trial.start.p50_ms}
    assert {one.ended_ms for one in option.attempts} == {trial.end_p50_ms}
    assert {one.cost_microusd for one in option.attempts} == {trial.cost.p50}
    assert option.reason == trial.reason != ""


def test_an_option_that_is_stopped_tells_how_often_and_costs_what_it_held() -> None:
    base = small_cell()
    taken = ScalingSpec(least=2, most=2, taken_permille_hour=600, boot_ms=(MINUTE, MINUTE))
    pool = msgspec.structs.replace(base.pools[0], name="cheap", spot=True, scaling=taken)
    nodes = tuple(NodeSpec(id=f"s{i}", pool="cheap") for i in range(2))
    cell = msgspec.structs.replace(base, pools=(*base.pools, pool), nodes=(*base.nodes, *nodes))
    engine = Engine.open(None, cell=cell)
    engine.advance(HOUR)
    spec = workload("new", gpu=8000, cpu=0, pools=("cheap",), checkpoint=HOUR // 4, estimate=2 * HOUR)
    attempts = tried(engine, spec, run_ms=2 * HOUR, seeds=2).trials[0].attempts
    assert sum(one.stops for one in attempts) > 0
    for one in attempts:
        assert one.started_ms is not None
        assert one.ended_ms is not None
        assert (one.ended_ms - one.started_ms > 2 * HOUR) == (one.stops > 0)
        # It pays for the work that was lost too, not for the time in which it waited.
        rate = one.placed[0].rate_microusd_hour
        assert 2 * rate <= one.cost_microusd <= (one.ended_ms - one.started_ms) * rate // HOUR


def test_where_time_is_short_there_are_fewer_seeds_and_what_has_room_is_still_known() -> None:
    engine = experienced()
    found = tried(engine, job("new"), until="started", seeds=100, within_ms=150, arrivals=True)
    (trial,) = found.trials
    assert 1 <= len(trial.attempts) == found.seeds <= 100
    assert {one.started_ms for one in trial.attempts} == {engine.now_ms}
    assert engine.workload("past0").state == "finished"


def test_where_time_is_short_what_is_reached_is_run_often_enough_for_quantiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that is cut off does not take the time of those whose start is known. The clock is that of this
    process: a busy machine has as much time for it."""
    monkeypatch.setattr(
        "engine.twin.start_estimates.time", SimpleNamespace(monotonic=time.process_time, process_time=time.process_time)
    )
    engine = experienced(gpu_nodes=2)
    # Ten days of work on all devices: what needs them all does not start within the week that is run ahead.
    ahead = [workload(f"w{i}", gpu=1000, run=HOUR + i, estimate=HOUR + 60_000 * (i % 50)) for i in range(4_000)]
    engine.command(submit(*ahead))
    engine.advance(engine.now_ms + MINUTE)
    whole = workload("whole", gpu=8000, count=2, priority="low")
    given = {"until": "started", "seeds": 8, "within_ms": 1_500, "arrivals": False, "horizon_ms": 7 * 24 * HOUR}
    cut_off, free = tried(engine, whole, workload("free"), **given).trials
    assert [one.started_ms for one in cut_off.attempts] == [None]
    assert {one.started_ms for one in free.attempts} == {engine.now_ms}
    assert len(free.attempts) >= MIN_RUNS


def test_with_time_enough_a_start_that_must_be_waited_for_is_told_with_arrivals_and_all_seeds() -> None:
    engine = experienced()
    engine.command(submit(job("runs")))
    limited = tried(engine, job("new"), until="started", seeds=3, within_ms=60_000, arrivals=True).trials[0]
    assert (limited.arrivals, len(limited.attempts)) == (True, 3)
    whole = tried(engine, job("new"), until="started", seeds=3, arrivals=True).trials[0]
    for one, exact in zip(limited.attempts, whole.attempts, strict=True):
        assert one.started_ms is not None
        assert exact.started_ms is not None
        # Where time is short a start is told to a fiftieth of how far ahead it is.
        assert 0 <= one.started_ms - exact.started_ms <= (exact.started_ms - engine.now_ms) // 25


def test_the_same_seed_gives_the_same_options() -> None:
    engine = experienced(gpu_nodes=2)
    engine.command(submit(*[workload(f"w{i}", gpu=8000, run=HOUR, estimate=3 * HOUR) for i in range(4)]))
    first, again = (tried(engine, job("new"), arrivals=True, seed=5) for _ in range(2))
    assert first == again


def test_run_times_of_the_seeds_are_spread_evenly_the_median_first() -> None:
    likely = [10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert run_time_in(likely, 0) == 50
    assert run_time_in([7], 3) == 7
    shares = sorted(share_of(n) for n in range(50))
    assert all(abs(share - (i + 0.5) / 50) < 0.03 for i, share in enumerate(shares))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"run_ms": ()}, "run_ms"),
        ({"run_ms": ((5, 3),)}, "ascending"),
        ({"run_ms": ((1,),), "within_ms": -1}, "negative"),
    ],
)
def test_an_ask_that_makes_no_sense_is_refused(more: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Twins(experienced()).start(AskOptions(workloads=(job("new"),), **more))  # type: ignore[arg-type]
