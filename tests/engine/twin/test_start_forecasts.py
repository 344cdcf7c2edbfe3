"""Starts told at once: the line, what the record teaches, and what is told of each kind of wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.specs import (
    CellSpec,
    Dependency,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    TaskGroup,
    WorkloadSpec,
)
from engine.model.twin_queries import FORECAST_KINDS, StartEstimate, StartForecast
from engine.state.run_times import HistoricRunTimes
from engine.twin.cell_flow import DRAWS, Asked, CellFlow, First
from engine.twin.start_forecasts import KEEP_EVERY_MS, REFINED_MS, StartForecasts
from engine.twin.start_line import MAX_ONE_BY_ONE, NEVER_MS, supply, wait_ms
from engine.twin.start_regression import (
    EQUAL,
    P10,
    P90,
    PRIOR,
    Aim,
    LineWaits,
    Outcomes,
    StartFit,
    fitted,
    survived,
    wait_of,
)
from engine.twin.what_if import NEVER, start_of

MINUTE, HOUR = 60_000, 3_600_000
NODE = Resources(cpu_milli=8000, memory_mib=16_000)


def cell(nodes: int = 4, nominal: int = 0) -> CellSpec:
    """Queues `a` and `b` below `root`; with `nominal`, `a` may hold so many milli-CPU and borrow nothing."""
    a = QueueSpec(name="a", parent="root")
    if nominal:
        quota = {"cpu_milli": nominal}
        a = QueueSpec(name="a", parent="root", nominal=quota, borrowing_limit={"cpu_milli": 0})
    return CellSpec(
        name="line",
        pools=(PoolSpec(name="cpu", capacity=NODE),),
        nodes=tuple(NodeSpec(id=f"n{i}", pool="cpu") for i in range(nodes)),
        queues=(
            QueueSpec(name="root"),
            a,
            QueueSpec(name="b", parent="root"),
        ),
        priority_classes=(PriorityClassSpec(name="normal", value=0), PriorityClassSpec(name="high", value=10)),
    )


def job(name: str, queue: str = "a", run_ms: int = HOUR, **more: object) -> WorkloadSpec:
    group = TaskGroup(request=NODE)
    return WorkloadSpec(
        id=name, queue=queue, groups=(group,), estimate_ms=run_ms, simulated_runtime_ms=run_ms, **more  # type: ignore[arg-type]
    )  # fmt: skip


def full(nodes: int = 4, nominal: int = 0, waiting: int = 6) -> Engine:
    """A cell whose nodes, or whose quota, are taken, and in whose queue `a` others wait: w0, w1 and so on."""
    engine = Engine.open(None, cell=cell(nodes, nominal))
    held = nominal // NODE.cpu_milli or nodes
    submit(engine, *(job(f"runs{i}") for i in range(held)), *(job(f"w{i}") for i in range(waiting)))
    engine.advance(engine.now_ms + 10 * MINUTE)
    return engine


def submit(engine: Engine, *specs: WorkloadSpec) -> None:
    engine.command(cmd.Submit(workloads=specs))


def forecast(engine: Engine, name: str) -> StartForecast:
    found = StartForecasts(engine).of_workload(name)
    assert found is not None
    return found


# -- the line ---------------------------------------------------------------------------------------------------------

TIMES = st.lists(st.integers(1000, NEVER_MS), min_size=1, max_size=12)
SIZES = st.lists(st.floats(0.1, 8), max_size=12)


def line(ends: list[int], sizes: list[float], run_ms: int = HOUR, own: float = 1.0) -> int:
    """One unit comes free at each of the ends."""
    have = supply(0.0, np.ones(len(ends)), np.array(ends))
    return wait_ms(have, np.array(sizes), np.full(len(sizes), run_ms), own)


@given(TIMES, SIZES, st.integers(1000, NEVER_MS), st.floats(0.1, 8))
def test_more_ahead_never_lets_it_start_sooner(ends: list[int], sizes: list[float], run_ms: int, more: float) -> None:
    assert line(ends, [more, *sizes], run_ms) >= line(ends, sizes, run_ms)
    assert line(ends, [*sizes, more], run_ms) >= line(ends, sizes, run_ms)


@given(TIMES, SIZES, st.integers(1000, NEVER_MS), st.floats(0.1, 8), st.floats(0.1, 8))
def test_who_asks_for_more_starts_no_sooner(
    ends: list[int], sizes: list[float], run_ms: int, own: float, more: float
) -> None:
    assert line(ends, sizes, run_ms, own + more) >= line(ends, sizes, run_ms, own)


def test_it_starts_at_the_end_that_covers_what_is_ahead_and_itself() -> None:
    ends = [MINUTE, 5 * MINUTE, HOUR]
    assert [line(ends, [1.0] * ahead, NEVER_MS) for ahead in range(4)] == [*ends, NEVER_MS]


def test_what_went_first_gives_back_what_it_took() -> None:
    assert line([MINUTE], [1.0] * 3, HOUR) == 3 * HOUR + MINUTE


def test_a_line_taken_as_a_whole_ends_about_where_it_does_one_by_one() -> None:
    for slots in (1, 10):
        ends = [MINUTE] * slots
        short, long = (line(ends, [1.0] * count, HOUR) for count in (MAX_ONE_BY_ONE, MAX_ONE_BY_ONE + 1))
        assert abs(long - short) < 0.15 * short + HOUR / slots
        assert abs(line(ends, [1.0] * 10 * slots * slots, MINUTE) - 10 * slots * MINUTE) < 2 * MINUTE


# -- the correction ---------------------------------------------------------------------------------------------------


def quantiles(logs: np.ndarray, seen: np.ndarray, weights: np.ndarray | None = None) -> list[float]:
    return survived(logs, seen, np.ones(len(logs)) if weights is None else weights, (0.1, 0.5, 0.9))


def test_without_a_record_the_prior_is_all_there_is() -> None:
    low, middle, high = quantiles(np.zeros(0), np.zeros(0, bool))
    assert PRIOR[0] <= low < middle < high <= PRIOR[-1]


def test_a_long_record_gives_its_own_quantiles() -> None:
    logs = np.random.default_rng(3).normal(1.0, 0.5, 1000)
    found = quantiles(logs, np.ones(1000, bool))
    assert np.allclose(found, np.quantile(logs, (0.1, 0.5, 0.9)), atol=0.05)


def test_what_still_waits_makes_the_next_later_not_sooner() -> None:
    logs = np.random.default_rng(3).normal(0.0, 1.0, 400)
    seen = logs < 0.5
    cut = np.minimum(logs, 0.5)
    assert quantiles(cut, seen)[1] > quantiles(cut[seen], np.ones(int(seen.sum()), bool))[1]


@given(st.lists(st.tuples(st.floats(-3, 3), st.booleans(), st.integers(1, 4)), max_size=30))
def test_one_that_weighs_as_much_as_several_counts_as_several(each: list[tuple[float, bool, int]]) -> None:
    logs, seen, weights = (np.array([one[at] for one in each]) for at in range(3))
    several = (np.repeat(column, weights.astype(int)) for column in (logs, seen.astype(bool)))
    assert quantiles(logs, seen.astype(bool), weights.astype(float)) == pytest.approx(quantiles(*several))


@given(st.sampled_from((P10, P90)), st.lists(st.booleans(), max_size=100))
def test_a_start_by_what_was_told_lowers_what_is_told_next_within_bounds(aim: Aim, held: list[bool]) -> None:
    before = aim.after(held)
    assert aim.least <= aim.after([*held, True]) <= before <= aim.after([*held, False]) <= aim.most


@pytest.mark.parametrize("aim", [P10, P90])
def test_what_held_too_often_holds_as_often_as_it_should(aim: Aim) -> None:
    rng, held, told = np.random.default_rng(3), [False], []
    for _ in range(1500):
        # Of what is told as this share, too many start.
        told.append(aim.after(held))
        held.append(bool(rng.random() < told[-1] + 0.03))
    assert np.mean(held[500:]) == pytest.approx(aim.share, abs=0.015)
    assert np.mean(told[500:]) == pytest.approx(aim.share - 0.03, abs=0.02)


# -- a cell -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 5), st.booleans())
def test_every_wait_for_room_or_quota_has_an_interval_that_is_never_before_now(row: int, quota: bool) -> None:
    engine = full(nominal=2 * NODE.cpu_milli if quota else 0)
    found = forecast(engine, f"w{row}")
    assert found.kind == ("quota" if quota else "room")
    assert found.p10_ms is not None
    assert found.p50_ms is not None
    assert found.p90_ms is not None
    assert engine.now_ms <= found.p10_ms <= found.p50_ms <= found.p90_ms
    assert f"{row} ahead in its queue" in found.decides


def test_further_back_in_the_line_is_later() -> None:
    engine = full()
    waits_ms = [forecast(engine, f"w{i}").line_ms for i in range(6)]
    assert waits_ms == sorted(waits_ms)
    assert waits_ms[0] < waits_ms[-1]


def test_the_draws_are_those_of_the_seed() -> None:
    engine = full()
    state = engine.state
    row = state.workloads.row("w3")
    asked = Asked(state.workloads.class_at(row), state.workloads.queue[row], state.workloads.priority[row], row)
    flows = [CellFlow(state, HistoricRunTimes(state), engine.now_ms, seed) for seed in (1, 1, 2)]
    one, again, other = (flow.room_ms(asked, First.ALL).tolist() for flow in flows)
    assert len(one) == DRAWS
    assert one == again
    assert one != other


def test_what_nobody_can_say_has_a_cause_and_no_time() -> None:
    engine = full()
    submit(engine, job("held", held=True))
    found = forecast(engine, "held")
    assert (found.kind, found.p50_ms) == ("gate", None)
    assert "hold" in found.decides


def test_what_depends_on_running_work_waits_for_its_end() -> None:
    engine = full(waiting=0)
    submit(engine, job("after", after=(Dependency(id="runs0", on="ended"),)))
    found = forecast(engine, "after")
    assert found.kind == "gate"
    assert found.p10_ms is not None
    assert found.p10_ms > engine.now_ms
    assert "runs0" in found.decides


def test_what_is_not_submitted_waits_behind_what_is() -> None:
    engine = full()
    starts = StartForecasts(engine)
    assert starts.of_spec(job("quote")).line_ms >= forecast(engine, "w0").line_ms
    assert engine.state.workloads.row_of.get("quote") is None


def ahead(engine: Engine, name: str, *waits_ms: int) -> StartEstimate:
    """What runs of the twin say that start it after so long, or not within six hours."""
    times = [NEVER if wait_ms >= 6 * HOUR else engine.now_ms + wait_ms for wait_ms in waits_ms]
    return StartEstimate(
        version=engine.version, at_ms=engine.now_ms, horizon_ms=6 * HOUR, seeds=len(times), id=name, state="queued",
        start=start_of(times), arrivals=True, drivers=(),
    )  # fmt: skip


@given(st.lists(st.integers(0, 12 * HOUR), min_size=5, max_size=9))
def test_runs_of_the_twin_move_the_forecast_towards_their_median_and_keep_its_order(waits_ms: list[int]) -> None:
    engine = full()
    starts = StartForecasts(engine)
    before = starts.of_workload("w2")
    after = starts.refine(ahead(engine, "w2", *waits_ms))
    assert before is not None
    assert after is not None
    assert None not in (before.p50_ms, after.p10_ms, after.p50_ms, after.p90_ms)
    middle_ms = engine.now_ms + sorted(waits_ms)[(len(waits_ms) - 1) // 2]
    if middle_ms < engine.now_ms + 6 * HOUR:
        between = sorted((before.p50_ms or 0, middle_ms))
        assert between[0] - 1 <= (after.p50_ms or 0) <= between[1] + 1
    else:
        assert (after.p50_ms or 0) >= (before.p50_ms or 0) - 1
    assert engine.now_ms <= (after.p10_ms or 0) <= (after.p50_ms or 0) <= (after.p90_ms or 0)
    assert after.seeds == len(waits_ms)


def test_too_few_runs_leave_the_forecast_as_it_is() -> None:
    engine = full()
    starts = StartForecasts(engine)
    before = starts.of_workload("w2")
    assert starts.refine(ahead(engine, "w2", HOUR, HOUR, HOUR, HOUR)) == before


def test_runs_of_the_twin_count_for_ten_minutes_and_only_for_their_workload() -> None:
    engine = full()
    starts = StartForecasts(engine)
    starts.refine(ahead(engine, "w2", *[5 * HOUR] * 5))
    seeds = []
    for name, later_ms in (("w2", 0), ("w3", 0), ("w2", REFINED_MS - 1), ("w2", 1)):
        engine.advance(engine.now_ms + later_ms)
        found = starts.of_workload(name)
        assert found is not None
        seeds.append(found.seeds)
    assert seeds == [5, 0, 5, 0]


def test_what_runs_has_no_forecast() -> None:
    assert StartForecasts(full()).of_workload("runs0") is None


# -- the record -------------------------------------------------------------------------------------------------------


def kept(engine: Engine, hours: int) -> StartForecasts:
    """So many hours in which the engine keeps forecasts."""
    starts = StartForecasts(engine)
    until_ms = engine.now_ms + hours * HOUR
    while engine.now_ms < until_ms:
        starts.keep()
        engine.advance(engine.now_ms + KEEP_EVERY_MS)
    return starts


def test_who_asks_records_nothing() -> None:
    engine = full()
    starts = StartForecasts(engine)
    for _ in range(5):
        starts.of_workload("w2")
        engine.advance(engine.now_ms + MINUTE)
    assert engine.estimates() == []


def test_one_that_waits_is_kept_every_other_minute_and_none_where_nothing_waits() -> None:
    engine = full(nodes=1, waiting=1)
    kept(engine, 3)
    told = engine.estimates()
    assert {one.workload for one in told} == {"w0"}
    assert len(told) == 50 * MINUTE // KEEP_EVERY_MS


def test_the_record_says_how_p90_held_and_is_kept_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    engine = Engine.open(path, cell=cell(1))
    submit(engine, *(job(f"w{i}") for i in range(15)))
    first = forecast(engine, "w1")
    assert (first.alike, first.p90_held_permille) == (0, None)
    kept(engine, 13)
    before = engine.state.workloads.row("w14")
    starts = StartForecasts(engine)
    found = starts.of(before)
    engine.close()
    again = Engine.open(path)
    same = StartForecasts(again).of_workload("w14")
    again.close()
    assert found is not None
    assert found.alike > 20
    assert found.p90_held_permille is not None
    assert same == found


def test_a_forecast_counts_in_the_record_once_its_p90_has_passed_however_early_it_started() -> None:
    engine = full(nodes=1, waiting=1)
    starts = kept(engine, 1)
    first = engine.estimates()[0]
    assert engine.workload("w0").state == "running"
    assert first.p90_ms is not None
    assert first.p90_ms > engine.now_ms
    starts.record.learn()
    assert starts.record.held("room") == (0, 0)
    engine.advance(max(one.p90_ms or 0 for one in engine.estimates()) + 1)
    starts.record.learn()
    assert starts.record.held("room") == (25, 25)


def test_only_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.journal.event_journal.MAX_ESTIMATES", 7)
    engine = Engine.open(tmp_path / "journal.db", cell=cell(1))
    submit(engine, *(job(f"w{i}") for i in range(3)))
    kept(engine, 1)
    told = engine.estimates()
    engine.close()
    assert len(told) == 7
    assert engine.now_ms - told[0].at_ms <= 8 * KEEP_EVERY_MS


# -- what it teaches --------------------------------------------------------------------------------------------------

NOTHING = StartFit(np.zeros(len(EQUAL)), 0.0, np.zeros(0), np.zeros(0), {})
ROOM, QUOTA, BOTH = (FORECAST_KINDS.index(kind) for kind in ("room", "quota", "both"))


def outcomes(count: int, wait: Callable[[LineWaits, int], float], seen_share: float = 1.0) -> Outcomes:
    """Waits in two queues, made of what is known of them."""
    rng = np.random.default_rng(4)
    known = [LineWaits(*(int(ms) for ms in np.exp(rng.uniform(11, 17, len(EQUAL))))) for _ in range(count)]
    queue = rng.integers(0, 2, count)
    waits = np.array([wait(one, of) for one, of in zip(known, queue.tolist(), strict=True)])
    seen = rng.random(count) < seen_share
    logs = np.array([one.logs for one in known])
    return Outcomes(
        logs=logs,
        queue=queue,
        priority=np.zeros(count, np.int64),
        waits=np.where(seen, waits, waits - 1.0),
        seen=seen,
        kind=np.full(count, ROOM),
        workload=np.arange(count),
    )


def test_without_a_record_a_wait_is_the_mean_of_the_lines_and_the_wait_so_far() -> None:
    waits = LineWaits(HOUR, HOUR, HOUR, HOUR, 5 * HOUR, 0)
    assert wait_of(NOTHING.log_wait(waits, 3, 0)) == HOUR
    assert wait_of(NOTHING.log_wait(waits._replace(all=4 * HOUR), 3, 0)) > HOUR


def test_it_learns_which_of_what_it_knows_tells_the_wait() -> None:
    fit = fitted(outcomes(1500, lambda known, _: float(known.logs[4])))
    low, high = (LineWaits(HOUR, HOUR, HOUR, HOUR, alike, 0) for alike in (HOUR // 4, 8 * HOUR))
    assert wait_of(fit.log_wait(high, 0, 0)) > 4 * wait_of(fit.log_wait(low, 0, 0))


def test_it_learns_that_one_queue_waits_longer_than_its_line_says() -> None:
    fit = fitted(outcomes(600, lambda known, queue: float(known.logs @ EQUAL) + queue))
    waits = LineWaits(HOUR, HOUR, HOUR, HOUR, HOUR, HOUR)
    assert fit.log_wait(waits, 1, 0) - fit.log_wait(waits, 0, 0) == pytest.approx(1.0, abs=0.1)
    assert fit.log_wait(waits, 7, 0) < fit.log_wait(waits, 1, 0)


def test_what_the_weights_have_learnt_does_not_widen_the_range_too() -> None:
    low, middle, high = fitted(outcomes(800, lambda known, _: float(known.logs @ EQUAL) + 1.0)).errors["room"]
    assert -0.2 < low <= middle <= high < 0.2


def noisy(quota_part: float, spread: float) -> Outcomes:
    """Waits for room, and a part for quota that are harder to foresee by so much."""
    rng = np.random.default_rng(6)
    past = outcomes(500, lambda known, _: float(known.logs @ EQUAL))
    quota = rng.random(500) < quota_part
    noise = rng.normal(0.0, np.where(quota, spread, 0.3))
    return past._replace(waits=past.waits + noise, kind=np.where(quota, QUOTA, ROOM))


def width(past: Outcomes, kind: str) -> float:
    low, _, high = fitted(past).errors[kind]  # type: ignore[index]
    return high - low


def test_a_kind_of_wait_that_is_harder_to_foresee_has_a_wider_range() -> None:
    past = noisy(0.4, 1.5)
    assert width(past, "quota") > 2.5 * width(past, "room")


def test_a_kind_with_a_thin_record_is_told_what_all_kinds_teach() -> None:
    none, few, many = (width(noisy(part, 1.5), "quota") for part in (0.0, 0.02, 0.4))
    assert none < few < many
    assert width(noisy(0.0, 1.5), "both") == none


def test_many_forecasts_of_few_workloads_have_a_wider_range_than_of_many() -> None:
    past = noisy(0.0, 0.0)
    assert width(past._replace(workload=past.workload % 8), "room") > width(past, "room")


def test_what_has_been_too_sure_is_told_less_surely() -> None:
    past = noisy(0.0, 0.0)
    usual, wider = fitted(past).errors["room"], fitted(past, P10.least, P90.most).errors["room"]
    assert wider[0] < usual[0]
    assert wider[1] == usual[1]
    assert wider[2] > usual[2]


def test_what_still_waits_is_not_learnt_as_if_it_had_started() -> None:
    half = outcomes(800, lambda known, _: float(known.logs @ EQUAL) + 1.0, seen_share=0.5)
    waits = LineWaits(HOUR, HOUR, HOUR, HOUR, HOUR, HOUR)
    as_if = fitted(half._replace(seen=np.ones(800, bool)))
    assert fitted(half).log_wait(waits, 0, 0) > as_if.log_wait(waits, 0, 0) + 0.2
