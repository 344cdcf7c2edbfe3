"""The free-capacity index against a scan of every node."""

from __future__ import annotations

import random

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.capacity.index import NOWHERE, OPEN, Capacity
from engine.capacity.task_shapes import Shape, size_class
from engine.model.specs import NodeSpec, NodeState, PoolSpec, Resources, Taint, TaskGroup, Toleration
from engine.placement.gang_placement import place

POOLS = [
    PoolSpec(name="big", capacity=Resources(cpu_milli=96_000, memory_mib=700_000, gpu_milli=8000), gpu_model="H100"),
    PoolSpec(name="half", capacity=Resources(cpu_milli=48_000, memory_mib=300_000, gpu_milli=4000), gpu_model="A100"),
    PoolSpec(name="cpu", capacity=Resources(cpu_milli=32_000, memory_mib=64_000, disk_mib=5000)),
]

REQUESTS = [
    Resources(cpu_milli=cpu, memory_mib=memory, gpu_milli=gpu, disk_mib=disk)
    for cpu, memory, gpu, disk in (
        (1000, 4096, 0, 0), (500, 0, 0, 0), (8000, 60_000, 0, 0), (4000, 100, 1000, 0), (0, 0, 250, 0),
        (1000, 0, 3000, 0), (999, 64_000, 0, 2000), (0, 0, 8000, 0),
    )
]  # fmt: skip

requests = st.builds(
    Resources,
    cpu_milli=st.sampled_from([0, 1, 999, 1000, 1024, 1500, 8000, 31_999, 48_000]),
    memory_mib=st.sampled_from([0, 1, 4096, 60_000, 64_000, 100_000]),
    gpu_milli=st.sampled_from([0, 1, 50, 333, 500, 999, 1000, 3000, 8000]),
    disk_mib=st.sampled_from([0, 0, 0, 2000]),
).filter(lambda r: any(r.vector()))


def cell(nodes: int) -> Capacity:
    capacity = Capacity()
    for pool in POOLS:
        capacity.add_pool(pool)
    for i in range(nodes):
        capacity.add_node(NodeSpec(id=f"n{i}", pool=POOLS[i % 3].name), 0)
    return capacity


def fitting(capacity: Capacity, shape: Shape) -> set[int]:
    """Every ready node that takes one task, by looking at each."""
    return {
        node
        for node in range(len(capacity.node_ids))
        if capacity.state[node] == NodeState.READY
        and capacity.pool[node] in shape.pool_set
        and capacity.fits(node, shape)
    }


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(sizes=st.lists(requests, min_size=1, max_size=6), seed=st.integers(0, 1000), nodes=st.integers(1, 24))
def test_a_search_finds_a_fitting_node_exactly_when_there_is_one(sizes, seed, nodes):
    capacity = cell(nodes)
    shapes = [Shape(TaskGroup(request=size), capacity.pools) for size in sizes]
    rng = random.Random(seed)
    live = []
    for _ in range(120):
        shape = rng.choice(shapes)
        fits = fitting(capacity, shape)
        node = capacity.find(shape)
        assert (node in fits) if fits else node == NOWHERE
        before = capacity.slots(shape)
        if node != NOWHERE and rng.random() < 0.7:
            live.append((node, shape, capacity.claim(node, shape, 1)))
            assert capacity.slots(shape) == before - 1
        elif live:
            node, shape, devices = live.pop(rng.randrange(len(live)))
            capacity.give_back(node, shape, 1, devices)
        if rng.random() < 0.1:
            node = rng.randrange(nodes)
            capacity.set_state(node, rng.choice([NodeState.READY, NodeState.CORDONED]), 0)
    for node, shape, devices in live:
        capacity.give_back(node, shape, 1, devices)
    fresh = cell(nodes)
    assert [capacity.free_vector(n) for n in range(nodes)] == [fresh.free_vector(n) for n in range(nodes)]


def busy_twins(rng: random.Random, nodes: int) -> tuple[Capacity, Capacity, list[Shape]]:
    """Twice the same cell, in part taken, some of its nodes kept or not ready; and shapes of tasks."""
    one, other = cell(nodes), cell(nodes)
    shapes = [Shape(TaskGroup(request=rng.choice(REQUESTS)), one.pools) for _ in range(5)]
    for _ in range(nodes * 2):
        shape = rng.choice(shapes)
        node = one.find(shape)
        if node != NOWHERE and rng.random() < 0.6:
            assert other.claim(node, shape, 1) == one.claim(node, shape, 1)
    kept, closed = rng.sample(range(nodes), nodes // 6), rng.sample(range(nodes), nodes // 6)
    for capacity in (one, other):
        capacity.book(kept, 1)
        for node in closed:
            capacity.set_state(node, NodeState.CORDONED, 0)
    return one, other, shapes


def contents(capacity: Capacity) -> list[tuple[int, ...]]:
    """What is free on every node, its bucket, and the totals of the indexes."""
    nodes = [(capacity.key[n], *capacity.free_vector(n)) for n in range(len(capacity.node_ids))]
    indexes = (*capacity.indexes, *capacity.booked.values())
    return nodes + [(index.free_cpu, index.free_memory, index.free_devices, index.gpu_bits) for index in indexes]


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), nodes=st.integers(6, 40))
def test_many_single_tasks_are_claimed_as_if_each_was_found_and_claimed(seed: int, nodes: int) -> None:
    rng = random.Random(seed)
    one, other, shapes = busy_twins(rng, nodes)
    asked = [rng.choice(shapes) for _ in range(rng.randrange(1, 3 * nodes))]
    claims = []
    for shape in asked:
        node = other.find(shape)
        if node == NOWHERE:
            break
        claims.append((node, other.claim(node, shape, 1)))
    assert one.claim_each(asked) == claims
    assert contents(one) == contents(other)


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), nodes=st.integers(6, 120))
def test_a_gang_is_placed_as_if_each_of_its_nodes_was_found_and_filled(seed: int, nodes: int) -> None:
    rng = random.Random(seed)
    one, other, shapes = busy_twins(rng, nodes)
    shape, most = rng.choice(shapes), rng.randrange(1, 4 * nodes)
    claims, left = [], most
    while left and (node := other.find(shape)) != NOWHERE:
        count = other.room(node, shape, left)
        claims.append((0, node, count, other.claim(node, shape, count)))
        left -= count
    assert place(one, (shape,), (0,), (most,)) == claims
    assert contents(one) == contents(other)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_what_is_found_depends_on_the_state_alone_not_on_how_it_came_about(seed):
    """A restart, which builds the index anew, makes the same choices as the original with its history."""
    rng = random.Random(seed)
    capacity = cell(30)
    sizes = [
        Resources(cpu_milli=rng.choice([500, 4000]), gpu_milli=rng.choice([0, 250, 400, 1000, 2000])) for _ in range(5)
    ]
    shapes = [Shape(TaskGroup(request=size), capacity.pools) for size in sizes]
    live = []
    for _ in range(300):
        shape = rng.choice(shapes)
        node = capacity.find(shape)
        if node != NOWHERE and rng.random() < 0.6:
            live.append((node, shape, capacity.claim(node, shape, 1)))
        elif live:
            node, shape, devices = live.pop(rng.randrange(len(live)))
            capacity.give_back(node, shape, 1, devices)
    copy = Capacity()
    copy.load(capacity.dump())
    for shape in shapes * 10:
        node = capacity.find(shape)
        assert copy.find(shape) == node
        if node != NOWHERE:
            assert copy.claim(node, shape, 1) == capacity.claim(node, shape, 1)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_nodes_that_get_other_labels_and_taints_are_found_as_if_they_always_had_them(seed):
    rng = random.Random(seed)
    capacity, taint = cell(12), Taint(key="repair")
    capacity.name_labels(["tier"])
    tolerant = (Toleration(key="repair"),)
    groups = [
        TaskGroup(
            request=Resources(cpu_milli=4000, gpu_milli=rng.choice([0, 250, 1000])),
            node_labels=rng.choice([{}, {"tier": ("spot",)}, {"rack": ("r1",)}]),
            tolerations=rng.choice([(), tolerant]),
        )
        for _ in range(5)
    ]
    shapes = [Shape(group, capacity.pools) for group in groups]
    told, live = {}, []
    for _ in range(100):
        shape = rng.choice(shapes)
        node = capacity.find(shape)
        if node != NOWHERE and rng.random() < 0.5:
            live.append((node, shape, capacity.claim(node, shape, 1)))
        elif live:
            node, shape, devices = live.pop()
            capacity.give_back(node, shape, 1, devices)
        for row in rng.sample(range(12), rng.choice([0, 0, 1, 4])):
            labels = rng.choice([{}, {"tier": "spot"}, {"tier": "kept", "rack": "r1"}])
            told[row] = NodeSpec(
                id=f"n{row}", pool=POOLS[row % 3].name, labels=labels, taints=rng.choice([(), (taint,)])
            )
            capacity.relabel([told[row]])
            assert capacity.labels_of(row) == labels
        if rng.random() < 0.1:
            capacity.book(rng.sample(range(12), 2), rng.choice([OPEN, 3]))
    copy = Capacity()
    copy.load(capacity.dump())
    for shape in shapes:
        assert copy.find(shape) == capacity.find(shape)
        assert copy.suited_mask(shape).tolist() == capacity.suited_mask(shape).tolist()
        assert copy.suited(shape) == capacity.suited(shape)
        assert copy.slots(shape) == capacity.slots(shape)


def test_size_classes_never_decrease():
    values = [*range(5000), *(2**i + d for i in range(13, 60) for d in (-1, 0, 1))]
    classes = [size_class(v) for v in sorted(values)]
    assert classes == sorted(classes)
    assert max(classes) <= 63


def test_the_one_node_that_fits_is_found_among_many_that_almost_do():
    """All have nearly as much free, so they share a bucket, and only a few of a bucket are probed at first."""
    capacity = Capacity()
    capacity.add_pool(POOLS[2])
    for i in range(40):
        capacity.add_node(NodeSpec(id=f"n{i}", pool="cpu"), 0)
    little = Shape(TaskGroup(request=Resources(cpu_milli=2000)), capacity.pools)
    for node in range(39):
        capacity.claim(node, little, 1)
    large = Shape(TaskGroup(request=Resources(cpu_milli=31_000)), capacity.pools)
    assert capacity.find(large) == 39
    capacity.claim(39, little, 1)
    assert capacity.find(large) == NOWHERE


def test_the_one_shared_device_that_fits_is_found_among_many_that_almost_do():
    capacity = Capacity()
    capacity.add_pool(PoolSpec(name="one", capacity=Resources(cpu_milli=8000, gpu_milli=1000), gpu_model="L4"))
    for i in range(40):
        capacity.add_node(NodeSpec(id=f"n{i}", pool="one"), 0)
    most = Shape(TaskGroup(request=Resources(gpu_milli=520)), capacity.pools)
    less = Shape(TaskGroup(request=Resources(gpu_milli=505)), capacity.pools)
    for node in range(40):
        capacity.claim(node, less if node == 39 else most, 1)
    share = Shape(TaskGroup(request=Resources(gpu_milli=490)), capacity.pools)
    assert capacity.find(share) == 39
    capacity.claim(39, share, 1)
    assert capacity.find(share) == NOWHERE
