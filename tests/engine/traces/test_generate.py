"""The generated AI day: valid, possible, repeatable, and as busy as it says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from engine.model.errors import SpecError
from engine.model.specs import CellSpec, PoolSpec, WorkloadSpec, check_id, check_pool, check_quantity, check_workload
from engine.traces.generated_day import DAY_MS, HOUR_MS, MIN_NODES, ai_cell, ai_day

SIZES = (MIN_NODES, 33, 100, 400)
DIGEST = """
from hashlib import sha256
from engine.traces.generated_day import ai_day
print(sha256(repr(ai_day(7, nodes=60)).encode()).hexdigest())
"""


def eligible(cell: CellSpec, spec: WorkloadSpec, group: int) -> list[PoolSpec]:
    wanted = spec.groups[group]
    return [
        pool
        for pool in cell.pools
        if (not wanted.gpu_models or pool.gpu_model in wanted.gpu_models)
        and (not wanted.pools or pool.name in wanted.pools)
        and all(have >= want for have, want in zip(pool.capacity.vector(), wanted.request.vector(), strict=True))
    ]


def gpus(spec: WorkloadSpec) -> int:
    return sum(group.count * group.request.gpu_milli for group in spec.groups)


def gpu_capacity(cell: CellSpec) -> int:
    per_node = {pool.name: pool.capacity.gpu_milli for pool in cell.pools}
    return sum(per_node[node.pool] for node in cell.nodes)


def gpu_demand_by_hour(seed: int, days: int) -> list[float]:
    """Share of the cell's GPUs in use in each hour if everything started on arrival."""
    used = [0.0] * 24 * days
    for day in range(days):
        cell, arrivals = ai_day(seed, day=day)
        for at_ms, spec in arrivals:
            start = day * DAY_MS + at_ms
            end = min(start + spec.simulated_runtime_ms, days * DAY_MS)
            for hour in range(start // HOUR_MS, -(-end // HOUR_MS)):
                overlap = min(end, (hour + 1) * HOUR_MS) - max(start, hour * HOUR_MS)
                used[hour] += gpus(spec) * overlap / HOUR_MS
    return [hour / gpu_capacity(cell) for hour in used]


@pytest.mark.parametrize("nodes", SIZES)
def test_cell_is_well_formed(nodes: int) -> None:
    cell = ai_cell(nodes)
    assert len(cell.nodes) == len({node.id for node in cell.nodes}) == nodes
    for pool in cell.pools:
        check_pool(pool)
        assert pool.price_microusd_hour > 0
    assert {node.pool for node in cell.nodes} == {pool.name for pool in cell.pools}
    places: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for node in cell.nodes:
        check_id(node.id, "id")
        places[node.rack].add((node.zone, node.block))
    assert all(len(inside) == 1 for inside in places.values())
    known = {""}
    for queue in cell.queues:
        check_id(queue.name, "queue")
        assert queue.parent in known, "a parent comes before its children"
        known.add(queue.name)
        for quantity in queue.nominal.values():
            check_quantity(quantity, queue.name, least=1)
    assert {c.name: c.value for c in cell.priority_classes} == {"low": 100, "normal": 500, "high": 900}


def department_gpus(cell: CellSpec) -> dict[str, int]:
    """Milli-GPU that the teams of each department have together: what each of them may use at most."""
    sums: dict[str, int] = defaultdict(int)
    for queue in cell.queues:
        sums[queue.parent or queue.name] += queue.nominal.get("gpu_milli", 0)
    return sums


@pytest.mark.parametrize("nodes", SIZES)
def test_departments_have_about_what_there_is(nodes: int) -> None:
    cell = ai_cell(nodes)
    assert 1.0 <= sum(department_gpus(cell).values()) / gpu_capacity(cell) <= 1.3


@pytest.mark.thorough
@pytest.mark.parametrize("nodes", SIZES)
def test_every_workload_is_valid_and_can_start_in_an_empty_cell(nodes: int) -> None:
    cell, _ = ai_day(3, nodes=nodes)
    counts = Counter(node.pool for node in cell.nodes)
    departments = department_gpus(cell)
    classes = {priority.name for priority in cell.priority_classes}
    for day in (0, 1):
        for _, spec in ai_day(3, nodes=nodes, day=day)[1]:
            check_workload(spec)
            assert spec.priority_class in classes
            assert not any(queue.parent == spec.queue for queue in cell.queues), "only leaves take workloads"
            for i, group in enumerate(spec.groups):
                slots = 0
                for pool in eligible(cell, spec, i):
                    pairs = zip(pool.capacity.vector(), group.request.vector(), strict=True)
                    slots += counts[pool.name] * min(have // want for have, want in pairs if want)
                assert slots >= group.count, spec
            asked = sum(group.count * group.request.gpu_milli for group in spec.groups)
            assert asked <= departments[spec.queue.partition("/")[0]], spec


def test_arrivals_are_in_order_within_the_day_and_ids_never_repeat() -> None:
    seen: set[str] = set()
    for day in range(4):
        _, arrivals = ai_day(5, nodes=60, day=day)
        assert all(earlier[0] <= later[0] for earlier, later in pairwise(arrivals))
        assert all(0 <= at_ms < DAY_MS for at_ms, _ in arrivals)
        ids = {spec.id for _, spec in arrivals}
        assert len(ids) == len(arrivals)
        assert not ids & seen
        seen |= ids
        assert max(map(len, ids)) <= 16


def test_same_seed_same_day_in_any_process() -> None:
    def digest(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", DIGEST]
        checkout = Path(__file__).parents[3]
        run = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True, check=True)
        return run.stdout

    assert digest("1") == digest("2") != ""
    assert ai_day(1, nodes=60) != ai_day(2, nodes=60)
    assert ai_day(1, nodes=60)[1] != ai_day(1, nodes=60, day=1)[1]


@pytest.mark.parametrize("nodes", SIZES)
def test_day_0_begins_busy_and_all_of_it_can_run_at_once(nodes: int) -> None:
    cell, arrivals = ai_day(11, nodes=nodes)
    there = [spec for at_ms, spec in arrivals if at_ms == 0]
    assert 0.6 <= sum(map(gpus, there)) / gpu_capacity(cell) <= 0.71
    for department, quota in department_gpus(cell).items():
        below = [spec for spec in there if spec.queue.partition("/")[0] == department]
        assert sum(map(gpus, below)) <= quota
    assert not any(at_ms == 0 for at_ms, _ in ai_day(11, nodes=nodes, day=1)[1])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_demand_meets_capacity_at_the_peak_and_eases_at_night(seed: int) -> None:
    demand = gpu_demand_by_hour(seed, days=3)
    for day in range(3):
        hours = demand[24 * day : 24 * (day + 1)]
        afternoon = sum(hours[11:18]) / 7
        assert 0.85 <= afternoon <= 1.15
        assert 0.9 <= max(hours) <= 1.3
        assert sum(hours[2:8]) / 6 <= 0.75


def test_the_day_is_mixed() -> None:
    _, arrivals = ai_day(1)
    specs = [spec for _, spec in arrivals]
    kinds = Counter(spec.tags["kind"] for spec in specs)
    assert {"training", "finetune", "sweep", "notebook", "batch", "build", "eval", "service"} == set(kinds)
    assert min(kinds.values()) >= 30
    assert len({spec.tenant for spec in specs}) >= 4
    assert {spec.priority_class for spec in specs} == {"low", "normal", "high"}
    training = [spec for spec in specs if spec.tags["kind"] == "training"]
    assert {8_000, 256_000} <= {gpus(spec) for spec in training}
    assert all(spec.checkpoint_interval_ms > 0 for spec in training)
    assert any(len(spec.groups) == 2 for spec in training)
    notebooks = [spec for spec in specs if spec.tags["kind"] == "notebook"]
    assert {gpus(spec) for spec in notebooks} == {250, 500}
    assert not any("{" in spec.name for spec in specs)
    assert any(spec.name == "etl-clicks-0413" for spec in specs)


def test_estimates_overshoot_as_those_of_people_do() -> None:
    _, arrivals = ai_day(2)
    timed = [spec for _, spec in arrivals if spec.tags["kind"] != "service"]
    ratios = sorted(spec.estimate_ms / spec.simulated_runtime_ms for spec in timed)
    assert 2 <= ratios[len(ratios) // 2] <= 5
    assert 0.005 <= sum(ratio < 1 for ratio in ratios) / len(ratios) <= 0.06
    assert all(spec.estimate_ms == 0 for _, spec in arrivals if spec.tags["kind"] == "service")


def test_a_cell_too_small_for_the_mix_is_refused() -> None:
    with pytest.raises(SpecError, match=f"Give {MIN_NODES} or more"):
        ai_day(1, nodes=MIN_NODES - 1)
