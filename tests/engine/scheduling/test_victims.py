"""Victim selection against exact answers: every subset on tiny cells, an integer program on larger ones."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from engine.capacity.index import Capacity
from engine.capacity.task_shapes import Shape
from engine.model.specs import NodeSpec, NodeState, PoolSpec, Resources, TaskGroup
from engine.placement.gang_placement import place
from engine.scheduling.victim_candidates import Ask, Quota, VictimCandidates
from engine.scheduling.victims import CORE, cheapest
from engine.state.allocations import NONE, Allocations, RequestColumns
from engine.state.workloads import ClassKey, WorkloadClass

POOLS = (
    PoolSpec(name="large", capacity=Resources(cpu_milli=64_000, memory_mib=512_000, gpu_milli=8000), gpu_model="H100"),
    PoolSpec(name="small", capacity=Resources(cpu_milli=32_000, memory_mib=256_000, gpu_milli=4000), gpu_model="H100"),
)
SHARES = (300, 500, 700)


class Cell:
    """Gangs placed at random on a few nodes, and whatever is asked of them."""

    def __init__(self, rng: random.Random, nodes: int, gangs: int, devices: Sequence[int]) -> None:
        self.rng = rng
        self.capacity = Capacity()
        self.allocations = Allocations()
        for pool in POOLS:
            self.capacity.add_pool(pool)
        for node in range(nodes):
            self.capacity.add_node(NodeSpec(id=f"n{node}", pool=rng.choice(POOLS).name), 0)
            self.allocations.add_node()
        self.classes: list[WorkloadClass] = []
        self.first = [self._place(row, devices) for row in range(gangs)]
        tasks = [sum(1 for _ in self.held_by(row)) for row in range(gangs)]
        self.cost = [rng.choice([0, rng.randrange(1, 1000), rng.randrange(1, 1000)]) * count for count in tasks]
        self.level = [rng.choice([0, 0, 0, 1, -1]) for _ in range(gangs)]
        self.amount = [rng.randrange(5) * (count > 0) for count in tasks]

    def _place(self, row: int, devices: Sequence[int]) -> int:
        """A gang of up to eight equal tasks, as many as fit. Returns its first allocation."""
        rng, capacity = self.rng, self.capacity
        gpu = rng.choice(devices)
        request = Resources(
            cpu_milli=rng.choice([1000, 2000, 4000]) * max(gpu // 1000, 1) if rng.random() < 0.8 else 16_000,
            gpu_milli=gpu,
            memory_mib=rng.choice([0, 20_000, 60_000]),
        )
        group = TaskGroup(count=rng.choice([1, 1, 1, 2, 3, 4, 8]), request=request)
        self.classes.append(WorkloadClass(ClassKey((group,), 1000)))
        shape = Shape(group, capacity.pools)
        self.classes[-1].shapes = (shape,)
        first = NONE
        for _ in range(group.count):
            fitting = [n for n in shape_nodes(capacity, shape) if capacity.fits(n, shape)]
            if fitting:
                node = rng.choice(fitting)
                first = self.allocations.add(row, 0, node, 1, capacity.claim(node, shape, 1), first)
        return first

    def held_by(self, row: int) -> Iterator[int]:
        return self.allocations.of_workload(self.first[row])

    def ask(self, devices: Sequence[int], more: int) -> Ask:
        """Up to `more` tasks more than there is room for."""
        gpu = self.rng.choice(devices)
        request = Resources(
            cpu_milli=self.rng.choice([1000, 8000, 30_000]), gpu_milli=gpu, memory_mib=self.rng.choice([0, 30_000])
        )
        shape = Shape(TaskGroup(request=request), self.capacity.pools)
        return shape, self.capacity.slots(shape) + self.rng.randint(1, more)

    def without(self, rows: Collection[int]) -> Capacity:
        """The capacity with these gangs gone, one allocation after the other."""
        capacity = self.capacity.copy()
        for row in rows:
            for i in self.held_by(row):
                a = self.allocations
                capacity.give_back(a.node[i], self.classes[row].shapes[a.group[i]], a.count[i], a.devices[i])
        return capacity

    def enough(self, rows: Collection[int], asks: Sequence[Ask], short: int = 0) -> bool:
        """Whether the asks fit, really placed, and enough is given back."""
        shapes, counts = zip(*asks, strict=True)
        return place(self.without(rows), shapes, counts) is not None and sum(self.amount[r] for r in rows) >= short

    def choose(self, asks: Sequence[Ask], **rest: Any) -> list[int] | None:
        requests = RequestColumns()
        requests.update(self.classes)
        candidates = VictimCandidates(np.array(self.level, np.int16), np.array(self.cost, np.int64))
        classes = np.arange(len(self.classes), dtype=np.int32)
        return cheapest(self.capacity, self.allocations, requests, classes, asks, candidates, **rest)

    def worth(self, rows: Sequence[int]) -> tuple[Any, ...]:
        """What the choice minimises."""
        level = max((self.level[row] for row in rows), default=-1)
        return level, sum(self.cost[row] for row in rows), len(rows), sorted(-row for row in rows)

    def touchable(self) -> list[int]:
        return [row for row, level in enumerate(self.level) if level >= 0 and self.first[row] != NONE]


def shape_nodes(capacity: Capacity, shape: Shape) -> list[int]:
    return [node for node in range(len(capacity.node_ids)) if capacity.usable(node, shape)]


class AtMost:
    """No more than so many of each kind, which is a row's remainder by three."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = [0, 0, 0]

    def take(self, row: int) -> bool:
        if self.taken[row % 3] >= self.most:
            return False
        self.taken[row % 3] += 1
        return True

    def untake(self, row: int) -> None:
        self.taken[row % 3] -= 1


# -- every subset -----------------------------------------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**9), limited=st.booleans(), short=st.sampled_from([0, 0, 1, 4, 9]), more=st.integers(1, 4)
)
def test_the_best_of_all_subsets_is_found(seed, limited, short, more):
    rng = random.Random(seed)
    cell = Cell(rng, nodes=4, gangs=10, devices=(0, 1000, 2000, 4000, 8000, *SHARES))
    if rng.random() < 0.3:
        cell.capacity.set_state(rng.randrange(4), NodeState.CORDONED, 0)
    asks = [cell.ask((0, 1000, 4000, 8000, *SHARES), more) for _ in range(rng.choice([1, 1, 2]))]
    limits = AtMost(rng.choice([1, 2])) if limited else None
    found = cell.choose(
        asks,
        quotas=[Quota(np.array(cell.amount, np.int64), short)],
        limits=limits,
        fits=None if len(asks) == 1 else lambda rows: cell.enough(rows, asks),
    )
    touchable = cell.touchable()
    subsets = (rows for size in range(len(touchable) + 1) for rows in combinations(touchable, size))
    admissible = (
        rows
        for rows in subsets
        if limits is None or all(sum(r % 3 == k for r in rows) <= limits.most for k in range(3))
    )
    best = min((list(rows) for rows in admissible if cell.enough(rows, asks, short)), key=cell.worth, default=None)
    assert found == best
    if limits is not None:
        assert limits.taken == [sum(row % 3 == kind for row in found or ()) for kind in range(3)]


def test_nothing_is_removed_where_there_is_room():
    cell = Cell(random.Random(1), nodes=4, gangs=3, devices=(1000,))
    assert cell.choose([(Shape(TaskGroup(request=Resources(gpu_milli=1000)), cell.capacity.pools), 2)]) == []


def test_no_set_is_enough_for_more_than_the_cell_has():
    cell = Cell(random.Random(1), nodes=4, gangs=3, devices=(1000,))
    assert cell.choose([(Shape(TaskGroup(request=Resources(gpu_milli=8000)), cell.capacity.pools), 5)]) is None


def test_a_cell_without_work_offers_nobody():
    cell = Cell(random.Random(1), nodes=1, gangs=0, devices=())
    assert cell.choose([(Shape(TaskGroup(request=Resources(gpu_milli=8000)), cell.capacity.pools), 5)]) is None


# -- larger cells -----------------------------------------------------------------------------------------------------


def least_cost(cell: Cell, ask: Ask, level: int) -> int | None:
    """The least cost of enough victims up to that level. Variables: who goes, how many tasks each node then takes."""
    shape, count = ask
    nodes = shape_nodes(cell.capacity, shape)
    gangs = len(cell.classes)
    wants = [(0, shape.cpu), (1, shape.memory), (2, shape.gpus * 1000)]
    lines, most = [], []
    for at, node in enumerate(nodes):
        for resource, want in wants:
            if want:
                line = np.zeros(gangs + len(nodes))
                line[gangs + at] = want
                for i in cell.allocations.on_node(node):
                    row = cell.allocations.workload[i]
                    line[row] -= cell.classes[row].groups[0].request.vector()[resource]
                lines.append(line)
                most.append(cell.capacity.free_vector(node)[resource])
    lines.append(np.concatenate((np.zeros(gangs), -np.ones(len(nodes)))))
    most.append(-count)
    open_to = [0 <= each <= level for each in cell.level]
    result = milp(
        np.concatenate((cell.cost, np.zeros(len(nodes)))),
        constraints=LinearConstraint(np.array(lines), -np.inf, most),
        integrality=np.ones(gangs + len(nodes)),
        bounds=Bounds(0, np.concatenate((open_to, np.full(len(nodes), 64)))),
        options={"mip_rel_gap": 0},
    )
    return None if result.x is None else round(result.fun)


@pytest.mark.parametrize(
    ("nodes", "gangs", "devices", "cases"),
    [
        (12, 40, (1000, 2000, 4000, 8000), 60),
        (20, 60, (1000, 2000, 4000, 8000), 60),
        (40, 120, (0, 1000, 2000, 4000, 8000), 60),
        pytest.param(40, 250, (1000, 2000, 4000), 60, marks=pytest.mark.thorough),
        pytest.param(150, 500, (1000, 2000, 4000, 8000), 20, marks=pytest.mark.thorough),
    ],
)
def test_the_cost_is_that_of_an_integer_program_or_close_to_it(nodes, gangs, devices, cases):
    total = least = 0
    for seed in range(cases):
        cell = Cell(random.Random(seed), nodes, gangs, devices)
        ask = cell.ask((0, 1000, 4000, 8000), nodes // 2)
        found = cell.choose([ask])
        bounds = [least_cost(cell, ask, level) for level in range(2)]
        feasible = [level for level, bound in enumerate(bounds) if bound is not None]
        if not feasible:
            assert found is None
            continue
        assert found is not None
        assert max(cell.level[row] for row in found) == feasible[0]
        assert cell.enough(found, [ask])
        for row in found:
            assert not cell.enough([other for other in found if other != row], [ask]), "this one goes in vain"
        cost, bound = sum(cell.cost[row] for row in found), bounds[feasible[0]]
        assert bound is not None
        assert cost >= bound
        if len(cell.touchable()) <= CORE:
            assert cost == bound
        total += cost
        least += bound
    assert least <= total <= 1.05 * least


def halves(rng: random.Random, nodes: int) -> Cell:
    """Two halves on most nodes, in gangs of up to 32."""
    cell = Cell(rng, nodes=0, gangs=0, devices=())
    tasks: dict[int, list[int]] = {4000: [], 8000: []}
    for node in range(nodes):
        cell.capacity.add_node(NodeSpec(id=f"n{node}", pool="large"), 0)
        cell.allocations.add_node()
        size = rng.choice([4000, 4000, 8000])
        tasks[size] += [node] * (8000 // size)
    for size, places in tasks.items():
        rng.shuffle(places)
        while places:
            group = TaskGroup(request=Resources(gpu_milli=size))
            cell.classes.append(WorkloadClass(ClassKey((group,), 1000)))
            cell.classes[-1].shapes = (Shape(group, cell.capacity.pools),)
            first, count = NONE, rng.choice([1, 2, 4, 8, 16, 32])
            for node in places[:count]:
                taken = cell.capacity.claim(node, cell.classes[-1].shapes[0], 1)
                first = cell.allocations.add(len(cell.first), 0, node, 1, taken, first)
            del places[:count]
            cell.first.append(first)
            cell.cost.append(rng.randrange(1000) * count * size // 1000)
    cell.level = [0] * len(cell.first)
    return cell


@pytest.mark.thorough
def test_gangs_that_only_together_clear_a_node_are_chosen_well():
    """To go by each gang's price alone ends up with many halves, and above this."""
    total = least = 0
    for seed in range(8):
        cell = halves(random.Random(seed), nodes=400)
        ask = (Shape(TaskGroup(request=Resources(gpu_milli=8000)), cell.capacity.pools), 60)
        found, bound = cell.choose([ask]), least_cost(cell, ask, 0)
        assert found is not None
        assert bound is not None
        total += sum(cell.cost[row] for row in found)
        least += bound
    assert least <= total <= 1.04 * least


@pytest.mark.thorough
@settings(max_examples=examples(30), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**9), short=st.sampled_from([0, 40]), groups=st.integers(1, 2), most=st.integers(4, 60))
def test_in_a_larger_cell_nobody_goes_in_vain_and_limits_are_kept(seed, short, groups, most):
    rng = random.Random(seed)
    cell = Cell(rng, nodes=100, gangs=300, devices=(0, 1000, 2000, 4000, *SHARES))
    asks = [cell.ask((1000, 4000, 8000, *SHARES), 30) for _ in range(groups)]
    limits = AtMost(most)
    found = cell.choose(
        asks,
        quotas=[Quota(np.array(cell.amount, np.int64), short)],
        limits=limits,
        fits=None if groups == 1 else lambda rows: cell.enough(rows, asks),
    )
    if found is None:
        return
    assert limits.taken == [sum(row % 3 == kind for row in found) for kind in range(3)]
    assert max(limits.taken) <= most
    assert cell.enough(found, asks, short)
    for row in found:
        assert not cell.enough([other for other in found if other != row], asks, short), "this one goes in vain"


def test_a_gang_that_is_chosen_frees_all_its_nodes_at_its_price():
    """A gang on ten nodes costs less than ten on one each, though it costs more than any of these."""
    cell = Cell(random.Random(1), nodes=0, gangs=0, devices=())
    for node in range(200):
        cell.capacity.add_node(NodeSpec(id=f"n{node}", pool="large"), 0)
        cell.allocations.add_node()
    group = TaskGroup(request=Resources(gpu_milli=8000))
    shape = Shape(group, cell.capacity.pools)
    for row in range(191):
        cell.classes.append(WorkloadClass(ClassKey((group,), 1000)))
        cell.classes[-1].shapes = (shape,)
        first = NONE
        for node in range(190, 200) if row == 190 else (row,):
            first = cell.allocations.add(row, 0, node, 1, cell.capacity.claim(node, shape, 1), first)
        cell.first.append(first)
    cell.level = [0] * 191
    cell.cost = [20] * 190 + [150]
    assert cell.choose([(shape, 10)]) == [190]
    assert cell.choose([(shape, 7)]) == list(range(183, 190))
