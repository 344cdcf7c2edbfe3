"""Kueue's performance test as a scenario: the published load, and runs that finish and keep to the quota."""

from __future__ import annotations

from itertools import groupby

import msgspec
import pytest
from invariants import check_state

from engine.control import Engine
from engine.model.commands import Requeue, Submit
from engine.model.errors import MusterError
from engine.model.specs import WorkloadState
from engine.scenarios.kueue import SCENARIOS, KueueScenario, arrivals, bench, cell, measure, run

BASELINE = SCENARIOS["kueue-baseline"]
LARGE = SCENARIOS["kueue-large-scale"]


def small(cohorts: int, queues: int, counts: tuple[int, int, int] = (14, 4, 2)) -> KueueScenario:
    """The baseline with fewer queues, and fewer workloads in each."""
    mix = tuple(msgspec.structs.replace(m, count=n) for m, n in zip(BASELINE.mix, counts, strict=True))
    return msgspec.structs.replace(BASELINE, cohorts=cohorts, queues=queues, mix=mix)


@pytest.mark.parametrize(
    ("scenario", "workloads", "queues", "capacity_bound_ms", "last_arrival_ms"),
    [(BASELINE, 15_000, 30, 66_000, 60_000), (LARGE, 50_000, 1000, 4025, 3300)],
)
def test_the_load_is_the_published_one(
    scenario: KueueScenario, workloads: int, queues: int, capacity_bound_ms: int, last_arrival_ms: int
) -> None:
    load = list(arrivals(scenario))
    assert scenario.workloads == len(load) == len({spec.id for _, spec in load}) == workloads
    assert len({spec.queue for _, spec in load}) == queues
    assert scenario.capacity == queues * 20
    unit_ms = sum(spec.groups[0].count * spec.simulated_runtime_ms for _, spec in load)
    assert unit_ms == scenario.work_unit_ms == capacity_bound_ms * scenario.capacity
    assert scenario.capacity_bound_ms == capacity_bound_ms
    assert [at_ms for at_ms, _ in load] == sorted(at_ms for at_ms, _ in load)
    assert load[-1][0] == last_arrival_ms


def test_the_bound_with_arrivals_waits_for_the_first_large_workload() -> None:
    # By 1.2 s 11 small (0.2 unit-seconds each) and 2 medium ones (2.5) have come before the first large one; what is
    # left of a queue's 1,320 unit-seconds takes its 20 units 65.64 s.
    assert BASELINE.arrival_bound_ms == 1200 + 65_640
    assert LARGE.arrival_bound_ms > LARGE.capacity_bound_ms


def test_nodes_hold_exactly_the_nominal_quotas_and_cohorts_have_none() -> None:
    spec = cell(BASELINE)
    held = {pool.name: pool.capacity for pool in spec.pools}
    cohorts = {queue.parent for queue in spec.queues if queue.parent}
    assert len(cohorts) == 5
    assert sum(held[node.pool].cpu_milli for node in spec.nodes) == 600_000
    assert sum(queue.nominal.get("cpu_milli", 0) for queue in spec.queues) == 600_000
    assert all(not queue.nominal for queue in spec.queues if queue.name in cohorts)


def test_the_seed_draws_only_the_order_within_an_instant() -> None:
    one, again, other = (list(arrivals(BASELINE, seed=seed)) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    for left, right in zip(*(groupby(load, key=lambda entry: entry[0]) for load in (one, other)), strict=True):
        assert left[0] == right[0]
        assert {spec.id for _, spec in left[1]} == {spec.id for _, spec in right[1]}


def test_the_engine_is_told_the_run_times_or_nothing_of_them() -> None:
    scenario = small(1, 1)
    assert {spec.estimate_ms for _, spec in arrivals(scenario, estimates="none")} == {0}
    assert all(spec.estimate_ms == spec.simulated_runtime_ms for _, spec in arrivals(scenario, estimates="known"))


@pytest.mark.parametrize("estimates", ["none", "known"])
@pytest.mark.parametrize("scenario", [small(1, 2), small(2, 6, (35, 10, 5))])
def test_a_small_run_finishes_everything_within_the_quota(scenario: KueueScenario, estimates) -> None:
    load = list(arrivals(scenario, estimates=estimates))
    engine, cycles = run(scenario, load)
    result = measure(scenario, engine, cycles, 1.0)
    check_state(engine.state)
    assert engine.state.workloads.state_counts[WorkloadState.FINISHED] == scenario.workloads == result.workloads
    assert all(not any(engine.state.queues.used_vector(row)) for row in range(len(engine.state.queues.specs)))
    assert result.makespan_ms >= scenario.arrival_bound_ms
    assert result.used_permille <= 1000
    assert result.cycles >= len({at_ms for at_ms, _ in load}) + len(set(engine.state.workloads.ended))
    steps = _holdings(engine)
    most = _most_units(steps)
    for queue in engine.state.queues.specs:
        limit = scenario.nominal + scenario.borrowing_limit if queue.parent else scenario.queues * scenario.nominal
        assert 0 < most[queue.name] <= limit
    assert result.starts == scenario.workloads + result.preemptions
    placements = sum(units > 0 and "/" in name for _, units, name in steps)
    assert placements == result.starts + result.withdrawn
    held_unit_ms = sum(-units * at_ms for at_ms, units, name in steps if "/" in name)
    assert result.lost_unit_ms == held_unit_ms - scenario.work_unit_ms


def _holdings(engine: Engine) -> list[tuple[int, int, str]]:
    """(cell ms, units taken or given back, queue or cohort), from what each workload's history says."""
    parents = {spec.name: spec.parent for spec in engine.state.queues.specs}
    signs = {"placed": 1, "requeued": -1, "finished": -1}
    steps = []
    for workload_id in engine.state.workloads.ids:
        view = engine.workload(workload_id)
        for item in view.history:
            units = signs.get(item.what, 0) * view.groups[0].count
            steps += [(item.at_ms, units, name) for name in (view.queue, parents[view.queue])]
    return sorted(steps)


def _most_units(steps: list[tuple[int, int, str]]) -> dict[str, int]:
    """Most units that each queue, and each cohort with all below it, ever held."""
    held = dict.fromkeys((name for _, _, name in steps), 0)
    most = dict(held)
    for _, units, name in steps:
        held[name] += units
        most[name] = max(most[name], held[name])
    assert not any(held.values())
    return most


def test_equal_seeds_give_equal_figures() -> None:
    one, again = (bench(small(1, 3), seed=7) for _ in range(2))
    timed = {"wall_ms": 0, "decisions_per_s": 0}
    assert msgspec.structs.replace(one, **timed) == msgspec.structs.replace(again, **timed)


def test_stopped_work_is_lost_and_its_last_start_is_the_final_admission() -> None:
    scenario = small(1, 1, (0, 1, 0))
    load = list(arrivals(scenario))
    engine = Engine.open(None, cell=cell(scenario))
    engine.advance(500)
    engine.command(Submit(workloads=(load[0][1],)))
    engine.advance(800)
    engine.command(Requeue(ids=(load[0][1].id,)))
    engine.advance(2000)
    result = measure(msgspec.structs.replace(scenario, mix=scenario.mix[1:2]), engine, 3, 1.0)
    (medium,) = result.classes
    assert (medium.first_admission.mean_ms, medium.final_admission.mean_ms) == (0, 300)
    assert (result.starts, result.preemptions, result.lost_unit_ms) == (2, 1, 300 * 5)
    assert result.makespan_ms == 1300
    assert result.used_permille == (500 + 300) * 5 * 1000 // (1300 * 20)


def test_a_run_that_leaves_work_is_no_result() -> None:
    scenario = small(1, 1)
    engine = Engine.open(None, cell=cell(scenario))
    engine.command(Submit(workloads=(next(arrivals(scenario))[1],)))
    with pytest.raises(MusterError, match="never finished"):
        measure(scenario, engine, 1, 1.0)
