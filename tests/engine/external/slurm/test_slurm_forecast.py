"""What a forecast of a mirrored cluster goes by besides machines: limits of QOS and accounts, time limits as they are
now, and run times that accounting remembers from before."""

from __future__ import annotations

import numpy as np
import pytest
from scripted_slurm import NOW_S, World, job, running

from engine.external.slurm.capabilities import SlurmLacks
from engine.external.slurm.limits import ClusterLimits
from engine.external.slurm.mirror_watch import PastRunsReader, runs_of
from engine.external.slurm.records import Association, PastJob, Qos
from engine.model.twin_queries import AskStart
from engine.state.cell_state import State
from engine.state.external_cell import Full
from engine.state.invariants import faults_of
from engine.state.run_times import HistoricRunTimes
from engine.twin.start_estimates import estimate

HIGH = Qos(name="high", tres_total={"cpu": 8}, jobs_per_user=3)
LAB = Association(account="lab", tres_total={"cpu": 100}, jobs_total=2)
VISION = Association(account="vision", parent="lab")


@pytest.fixture
def world() -> World:
    made = World()
    made.mirror.limit_by(ClusterLimits((HIGH,), (LAB, VISION), made.cluster.all_partitions))
    return made


def starts_in_fork(world: World, *names: str) -> dict[str, str]:
    fork = world.engine.fork()
    fork.settle()
    return {name: fork.workload(name).state for name in names}


def test_in_a_fork_a_limit_of_a_qos_holds_what_there_is_room_for_until_what_it_counts_has_ended(world: World) -> None:
    held = {"qos": "high", "reason": "QOSGrpCpuLimit", "tres_wanted": {"cpu": 4}}
    world.look(
        running(1, "c1", qos="high", tres_held={"cpu": 6}),
        job(2, **held),
        job(3, qos="normal", tres_wanted={"cpu": 4}),
    )
    assert world.state("2") == "queued"
    caps, row = world.engine.state.caps, world.engine.state.workloads.row_of
    assert caps.stopping(row["2"]) == Full("QOS high: cpu", 8, 6, 4)
    said = world.engine.workload("2").reasons
    assert [reason.token for reason in said] == ["QOSGrpCpuLimit", "OutsideLimit"]
    assert starts_in_fork(world, "2", "3") == {"2": "queued", "3": "running"}

    world.look(running(1, "c1", qos="high", tres_held={"cpu": 6}, restarts=0), job(2, **held))
    told = estimate(world.engine, AskStart(id="2", seeds=5, arrivals=False, horizon_ms=7_200_000),
                    HistoricRunTimes(world.engine.state), lambda *_: None)  # fmt: skip
    assert told.start is not None
    assert told.start.p10_ms is not None
    assert told.start.p10_ms > world.engine.now_ms
    assert told.leaves_out == ""


def test_of_many_that_one_limit_counts_as_many_start_as_it_lets(world: World) -> None:
    world.look(*(job(n, qos="high", cpus=1, tres_wanted={"cpu": 1}) for n in range(1, 6)))
    found = starts_in_fork(world, "1", "2", "3", "4", "5")
    # An account above lets two jobs run, the QOS three of one user.
    assert sorted(found.values()) == ["queued", "queued", "queued", "running", "running"]
    world.look(*(job(n, qos="high", cpus=1, tres_wanted={"cpu": 1}, account="alone") for n in range(6, 11)))
    found = starts_in_fork(world, *map(str, range(6, 11)))
    assert sorted(found.values()) == ["queued", "queued", "running", "running", "running"]


def test_what_a_qos_limits_is_not_limited_by_an_account_and_a_raised_limit_counts_at_once(world: World) -> None:
    asked = {"qos": "high", "tres_wanted": {"cpu": 8}, "cpus": 8}
    world.mirror.limit_by(ClusterLimits((HIGH,), (Association(account="vision", tres_total={"cpu": 4}),), ()))
    world.look(job(1, **asked), job(2, **asked))
    assert list(starts_in_fork(world, "1", "2").values()).count("running") == 1
    raised = Qos(name="high", tres_total={"cpu": 16})
    world.mirror.limit_by(ClusterLimits((raised,), (), ()))
    world.look(job(1, **asked), job(2, **asked))
    assert list(starts_in_fork(world, "1", "2").values()).count("running") == 2


@pytest.mark.parametrize("reason", ["QOSMaxWallDurationPerJobLimit", "AssocGrpCPUMinutesLimit", "QOSMaxCpuPerJobLimit"])
def test_a_limit_that_no_cap_tells_has_no_start_and_is_named(world: World, reason: str) -> None:
    world.look(job(1, qos="high", reason=reason))
    assert world.state("1") == "waiting"
    told = estimate(world.engine, AskStart(id="1", seeds=1, arrivals=False, horizon_ms=60_000),
                    HistoricRunTimes(world.engine.state), lambda *_: None)  # fmt: skip
    assert told.start is None or told.start.p50_ms is None
    assert reason in told.leaves_out


def test_caps_are_in_the_journal_and_counted_anew_when_it_is_read(world: World) -> None:
    world.look(running(1, "c1", qos="high", tres_held={"cpu": 6}), job(2, qos="high", tres_wanted={"cpu": 4}))
    state = world.engine.state
    again = State()
    again.load(state.dump())
    assert list(again.caps.used) == list(state.caps.used)
    assert again.digest() == state.digest()
    assert [*again.pending.groups] == [*state.pending.groups]
    world.look(job(2, qos="high", tres_wanted={"cpu": 4}))
    assert not any(world.engine.state.caps.used)
    assert not faults_of(world.engine.state)


def test_a_changed_time_limit_of_what_runs_is_mirrored_and_a_forecast_goes_by_it(world: World) -> None:
    world.look(running(1, "c1", cpus=16, time_limit_s=36_000), job(2, nodes_required=("c1",), cpus=16))
    before = _soonest_end(world, "1")
    world.look(running(1, "c1", cpus=16, time_limit_s=600), job(2, nodes_required=("c1",), cpus=16))
    assert world.engine.workload("1").estimate_ms == 600_000
    assert _soonest_end(world, "1") < before
    row = world.engine.state.workloads.row_of["1"]
    likely = HistoricRunTimes(world.engine.state).draw_many(np.array([row]), np.array([0.999]), np.array([1000]))
    assert likely[0] <= 600_000


def _soonest_end(world: World, name: str) -> int:
    state = world.engine.state
    end: int = state.workloads.expected_end(state.workloads.row_of[name], state.now_ms)
    return end


def past(job_id: int, ran_s: int, **more: object) -> PastJob:
    ended = NOW_S - 5_000 + job_id
    given = {
        "name": f"train-{job_id}", "user": "ann", "account": "vision", "partition": "batch", "state": "COMPLETED",
        "submit_s": ended - ran_s - 60, "start_s": ended - ran_s, "end_s": ended, "time_limit_s": 36_000,
        "tres_held": {"cpu": 4, "gres/gpu:h100": 2}, "nodes": ("c1",),
    }  # fmt: skip
    return PastJob(id=job_id, **{**given, **more})  # type: ignore[arg-type]


class Accounting:
    def __init__(self, *jobs: PastJob) -> None:
        self.jobs = jobs
        self.asked: list[tuple[int, int]] = []

    def history(self, since_s: int, until_s: int) -> tuple[PastJob, ...]:
        self.asked.append((since_s, until_s))
        return tuple(each for each in self.jobs if each.end_s > since_s and each.start_s < until_s)


def test_run_times_are_learnt_from_what_accounting_remembers_by_name_and_by_part_of_the_limit(world: World) -> None:
    world.look(job(900, name="train-900", time_limit_s=36_000), job(901, name="other", user="bob", time_limit_s=1000))
    before = HistoricRunTimes(world.engine.state)
    rows = [world.engine.state.workloads.row_of[name] for name in ("900", "901")]
    accounting = Accounting(*(past(n, 600 + n) for n in range(1, 41)), past(41, 700, state="CANCELLED"))
    PastRunsReader(accounting, world.call, wall_s=lambda: NOW_S).learn()  # type: ignore[arg-type]
    learnt = HistoricRunTimes(world.engine.state)
    assert len(world.engine.state.past.runs) == 40
    assert before.draw(rows[0], 0.9, 0) > 10_000_000
    assert 600_000 <= learnt.draw(rows[0], 0.1, 0) < learnt.draw(rows[0], 0.9, 0) <= 640_000
    assert learnt.kin(rows[0]) == ""
    # Of another name: the same part of its own limit.
    assert learnt.draw(rows[1], 0.9, 0) < 20_000
    assert "40 finished runs" in learnt.basis()
    assert "by accounting" in learnt.basis()
    many = learnt.draw_many(np.array(rows), np.array([0.5, 0.5]), np.array([0, 0]))
    assert many.tolist() == [learnt.draw(row, 0.5, 0) for row in rows]


def test_what_the_cell_has_seen_itself_is_not_learnt_twice_and_a_restart_asks_no_more(world: World) -> None:
    mine = past(7, 600)
    world.look(job(7, state="COMPLETED", submit_s=mine.submit_s, start_s=mine.start_s, end_s=mine.end_s))
    accounting = Accounting(mine, past(8, 600))
    PastRunsReader(accounting, world.call, wall_s=lambda: NOW_S).learn()  # type: ignore[arg-type]
    assert [run.name for run in world.engine.state.past.runs] == ["train-8"]
    # Windows go back, each twice as long as the one after it.
    assert accounting.asked[0] == (NOW_S - 3600, NOW_S)
    assert accounting.asked[1] == (NOW_S - 3 * 3600, NOW_S - 3600)
    asked = len(accounting.asked)
    PastRunsReader(accounting, world.call, wall_s=lambda: NOW_S + 60).learn()  # type: ignore[arg-type]
    assert len(accounting.asked) == asked


def test_without_accounting_nothing_is_learnt_and_that_is_said(world: World) -> None:
    class Without:
        def history(self, *_: int) -> tuple[PastJob, ...]:
            raise SlurmLacks(0, "there is no accounting here")

    asks = PastRunsReader(Without(), world.call, wall_s=lambda: NOW_S)  # type: ignore[arg-type]
    asks._run()
    assert asks.lacks == {"run times of before": "there is no accounting here"}
    assert world.engine.state.past.until_ms == 0


def test_a_past_run_keeps_what_tells_its_likes_apart() -> None:
    found = runs_of([past(3, 600, partition="gpu,batch", time_limit_s=None)])[0]
    assert (found.queue, found.tenant, found.team, found.gpu_milli, found.limit_ms) == ("gpu", "vision", "ann", 2000, 0)
    assert found.run_ms == 600_000
