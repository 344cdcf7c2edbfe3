"""Replays: the published figures on real logs, and job by job the same as a second, engine-free simulator."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import check_state
from msgspec import structs
from reference_sim import Job, simulate

from engine.model.errors import SpecError, TraceError
from engine.model.specs import Resources, WorkloadState
from engine.traces.replay import ReplayPlan, count, countable, prepare, replay, run
from engine.traces.replay import _cell as cell_of
from engine.traces.trace_reader import Problems, TraceJob

DATA = Path(__file__).parents[3].parent / "shared" / "data"
KTH = DATA / "swf" / "KTH-SP2-1996-2.swf.gz"
with_data = pytest.mark.skipif(
    not DATA.exists(), reason="the shared folder with real traces is not beside the checkout"
)


def near(value: float, published: float, percent: float) -> bool:
    return abs(value - published) <= published * percent / 100


@with_data
@pytest.mark.parametrize(
    ("policy", "estimate", "wait", "slowdown"),
    [
        pytest.param("fcfs", "requested", 389_901, 7510.73, marks=pytest.mark.slow),
        pytest.param("easy", "requested", 6868, 89.07, marks=pytest.mark.thorough),
        pytest.param("easy", "actual", 6358, 71.24, marks=pytest.mark.slow),
        pytest.param("easy", "last-two", 6525, 77.06, marks=pytest.mark.slow),
        pytest.param("easy-sjbf", "last-two", 6592, 69.79, marks=pytest.mark.slow),
        pytest.param("conservative", "requested", 8064, 101.78, marks=pytest.mark.slow),
    ],
)
def test_kth_sp2_on_100_processors_gives_the_published_figures(policy, estimate, wait, slowdown):
    result = replay(KTH, "swf", nodes=100, policy=policy, estimate=estimate, through="engine")
    assert result.jobs == 28_481
    assert near(result.avg_wait_s, wait, 1)
    assert near(result.avg_bounded_slowdown, slowdown, 1)
    assert result.problems == 0
    assert result.through == "engine"


@with_data
@pytest.mark.parametrize(
    ("policy", "estimate", "wait", "slowdown"),
    [
        ("fcfs", "requested", 389_901, 7510.73),
        ("easy", "requested", 6868, 89.07),
        ("easy", "actual", 6358, 71.24),
    ],
)
def test_counting_gives_the_published_figures(policy, estimate, wait, slowdown):
    result = replay(KTH, "swf", nodes=100, policy=policy, estimate=estimate)
    assert result.through == "counting"
    assert result.jobs == 28_481
    assert near(result.avg_wait_s, wait, 1)
    assert near(result.avg_bounded_slowdown, slowdown, 1)


@with_data
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fcfs", "easy"])
@pytest.mark.parametrize("nodes", [100, 120, 480])
def test_counting_starts_every_job_of_a_real_log_when_the_engine_does(policy, nodes):
    plan = prepare(KTH, "swf", nodes=nodes)
    assert count(plan, policy) == list(run(plan, policy).state.workloads.started)


def test_what_is_more_than_a_count_goes_through_the_engine(tmp_path: Path) -> None:
    log = tmp_path / "log.swf"
    log.write_text("1 0 0 10 1 -1 -1 1 10 -1 1 1 1 -1 -1 -1 -1 -1\n2 5 0 10 1 -1 -1 1 20 -1 1 1 1 -1 -1 -1 -1 -1\n")
    assert replay(log, "swf", nodes=1).through == "counting"
    assert replay(log, "swf", nodes=1, policy="conservative").through == "engine"
    assert replay(log, "swf", nodes=1, estimate="last-two").through == "engine"
    counted, engine = (replay(log, "swf", nodes=1, through=way) for way in ("auto", "engine"))
    assert structs.replace(counted, wall_s=0, through="engine") == structs.replace(engine, wall_s=0)
    pods = tmp_path / "pods.csv"
    pods.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "a,1000,1024,1,500,,LS,Succeeded,0,90,10\n"
    )
    assert replay(pods, "openb", nodes=2).through == "engine"


@with_data
def test_itp_counts_gpus() -> None:
    result = replay(DATA / "itp2021" / "cluster04.csv.gz", "itp", nodes=592, policy="easy")
    assert result.jobs == 15_802
    assert near(result.avg_wait_s, 6823, 1)
    assert near(result.avg_bounded_slowdown, 2.13, 1)


@with_data
@pytest.mark.thorough
def test_openb_pods_run_on_their_own_nodes() -> None:
    openb = DATA / "openb"
    plan = prepare(
        openb / "openb_pod_list_gpuspec10.csv.gz", "openb", node_file=openb / "openb_node_list_gpu_node.csv.gz"
    )
    engine = run(plan, "easy")
    check_state(engine.state)
    w = engine.state.workloads
    assert w.state_counts[WorkloadState.FINISHED] == len(w.ids)
    assert len(plan.jobs) - len(w.ids) < 5, "only the few pods that no node could ever run are left out"


@pytest.mark.thorough
@with_data
def test_openb_pods_on_single_gpu_nodes_count_their_gpus() -> None:
    plan = prepare(DATA / "openb" / "openb_pod_list_default.csv.gz", "openb", nodes=6212)
    assert plan.problems.skipped["asks for no GPU"] > 1000
    eight = next(job for job in plan.jobs if job.id == "openb-pod-0017")
    assert (eight.tasks, eight.request.gpu_milli) == (8, 1000)
    engine = run(plan, "easy")
    assert engine.state.workloads.state_counts[WorkloadState.FINISHED] == len(plan.jobs) > 6000


USERS = ("ann", "bob")
jobs = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(1, 8), st.integers(0, 30), st.sampled_from(USERS)),
    min_size=1,
    max_size=40,
)
"""(arrival, run time, processors, how much longer was asked for, user); times in steps of 20 s, so that some jobs
outrun their estimate by more than one correction."""
STEP_S = 20


@settings(max_examples=examples(400), deadline=None, derandomize=True)
@given(
    rows=jobs,
    processors=st.integers(8, 16),
    policy=st.sampled_from(["fcfs", "easy", "easy-sjbf", "conservative"]),
    last_two=st.booleans(),
)
def test_every_job_starts_when_the_reference_simulator_starts_it(rows, processors, policy, last_two):
    rows = sorted(((a * STEP_S, r * STEP_S, p, more * STEP_S, user) for a, r, p, more, user in rows), key=itemgetter(0))
    if policy.startswith("easy"):
        # Of jobs expected to end together, at the very time of a promise, the engine counts those that it counted when
        # it made the promise, and the reference those that it would count now: no two are expected at one time.
        rows = [(a, r, p, more + number % STEP_S, user) for number, (a, r, p, more, user) in enumerate(rows)]
    expected = simulate(
        [Job(a, r, p, r + more, USERS.index(user)) for a, r, p, more, user in rows],
        processors,
        policy,
        last_two=last_two,
    )
    plan = ReplayPlan(
        cell=cell_of("swf", processors, False, None, Problems()),
        jobs=[
            TraceJob(
                id=f"j{i}", arrival_ms=a * 1000, run_ms=r * 1000, tasks=p, request=Resources(cpu_milli=1000), user=user
            )
            for i, (a, r, p, _, user) in enumerate(rows)
        ],
        estimates=[(r + more) * 1000 for _, r, _, more, _ in rows],
        learns=last_two,
        units=processors,
        gpu=False,
        problems=Problems(),
    )
    engine = run(plan, policy)
    check_state(engine.state)
    assert [started / 1000 for started in engine.state.workloads.started] == expected
    assert countable(plan, policy) == (policy in ("fcfs", "easy") and not last_two)
    if countable(plan, policy):
        assert [start / 1000 for start in count(plan, policy)] == expected


def test_an_estimate_is_the_mean_of_the_users_last_two_ended_jobs_and_never_above_the_request(tmp_path: Path) -> None:
    log = tmp_path / "log.swf"
    line = "{} {} 0 {} 1 -1 -1 1 {} -1 1 {} 1 -1 -1 -1 -1 -1\n"
    # (submitted, ran, asked, user): the first two arrive together; the fifth before the fourth has ended; the last is
    # of another user.
    rows = [
        (0, 10, 100, 1), (0, 15, 100, 1), (20, 32, 100, 1), (60, 50, 100, 1), (70, 5, 100, 1), (200, 5, 20, 1),
        (210, 5, 90, 2),
    ]  # fmt: skip
    log.write_text("".join(line.format(i, *row) for i, row in enumerate(rows)))
    engine = run(prepare(log, "swf", nodes=4, estimate="last-two"), "easy")
    w = engine.state.workloads
    estimates = [w.class_at(row).estimate_ms for row in range(len(rows))]
    assert estimates == [100_000, 100_000, 12_500, 23_500, 23_500, 20_000, 90_000]


def test_arrivals_stretch_and_compress(tmp_path: Path) -> None:
    log = tmp_path / "log.swf"
    line = "{} {} 0 100 1 -1 -1 1 100 -1 1 1 1 -1 -1 -1 -1 -1\n"
    log.write_text("".join(line.format(i, i * 50) for i in range(4)))
    assert replay(log, "swf", nodes=1).avg_wait_s == (0 + 50 + 100 + 150) / 4
    assert replay(log, "swf", nodes=1, arrivals=2.0).avg_wait_s == 0
    assert replay(log, "swf", nodes=1, arrivals=0.5).avg_wait_s == (0 + 75 + 150 + 225) / 4


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"format": "swf", "nodes": 0}, "nodes"),
        ({"format": "swf", "nodes": 10, "arrivals": 0.0}, "arrivals"),
        ({"format": "swf", "nodes": 10, "arrivals": float("nan")}, "arrivals"),
        ({"format": "nonsense", "nodes": 10}, "nonsense"),
    ],
)
def test_bad_options_are_named(tmp_path: Path, options, names) -> None:
    log = tmp_path / "log.swf"
    log.write_text("1 0 0 10 1 -1 -1 1 10 -1 1 1 1 -1 -1 -1 -1 -1\n")
    with pytest.raises((SpecError, TraceError), match=names):
        replay(log, options.pop("format"), **options)


def test_a_bad_line_is_counted_or_stops_and_the_good_ones_run(tmp_path: Path) -> None:
    log = tmp_path / "log.swf"
    good = "{} 0 0 10 1 -1 -1 1 10 -1 1 1 1 -1 -1 -1 -1 -1\n"
    log.write_text(good.format(1) + "2 zero\n" + good.format(3))
    result = replay(log, "swf", nodes=4)
    assert (result.jobs, result.problems) == (2, 1)
    assert "log.swf:2" in result.first_problems[0]
    with pytest.raises(TraceError, match=r"log\.swf:2"):
        replay(log, "swf", nodes=4, strict=True)


def test_a_job_larger_than_the_cell_is_counted_not_run(tmp_path: Path) -> None:
    log = tmp_path / "log.swf"
    log.write_text("1 0 0 10 8 -1 -1 8 10 -1 1 1 1 -1 -1 -1 -1 -1\n2 0 0 10 2 -1 -1 2 10 -1 1 1 1 -1 -1 -1 -1 -1\n")
    result = replay(log, "swf", nodes=4)
    assert result.jobs == 1
    assert result.skipped == {"larger than the cell": 1}
