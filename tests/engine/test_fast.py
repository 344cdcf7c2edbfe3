"""The compiled extra decides as the plain code does, whatever the cell and whatever happens between batches.

Without numba the kernels run interpreted here: slower, and the same code.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import fast
from engine.capacity import OPEN, Capacity
from engine.columns import canonical
from engine.model import NodeSpec, NodeState, PoolSpec, Resources, Taint, TaskGroup, Toleration
from engine.shape import Shape
from tests.support.patience import PATIENCE_S

compiled_only = pytest.mark.skipif(find_spec("numba") is None, reason="the extra `fast` (numba) is not installed")
kernels = fast.load() if find_spec("numba") else import_module("engine.kernels")
POOLS = [
    PoolSpec(name="big", capacity=Resources(cpu_milli=96_000, memory_mib=700_000, gpu_milli=8000), gpu_model="H100"),
    PoolSpec(name="half", capacity=Resources(cpu_milli=48_000, memory_mib=300_000, gpu_milli=4000), gpu_model="A100"),
    PoolSpec(name="cpu", capacity=Resources(cpu_milli=32_000, memory_mib=64_000, disk_mib=5000)),
    PoolSpec(
        name="linked",
        capacity=Resources(cpu_milli=64_000, memory_mib=500_000, gpu_milli=8000),
        gpu_model="V100",
        nvlink_group=4,
    ),
    PoolSpec(
        name="cut",
        capacity=Resources(cpu_milli=64_000, memory_mib=500_000, gpu_milli=4000),
        gpu_model="A100-80GB",
        mig=True,
    ),
]
TAINT = Taint(key="spot")


def add(capacity: Capacity, rng: random.Random, pools: list[PoolSpec]) -> None:
    row = len(capacity.node_ids)
    node = NodeSpec(
        id=f"n{row}",
        pool=rng.choice(pools).name,
        zone=rng.choice(["", "east", "west"]),
        labels={"disk": "ssd"} if rng.random() < 0.3 else {},
        taints=(TAINT,) if rng.random() < 0.2 else (),
    )
    capacity.add_node(node, 0)


def request(rng: random.Random) -> TaskGroup:
    gpu = rng.choice([0, 0, 1, 50, 333, 500, 999, 1000, 1000, 3000, 8000])
    mig = "1g.10gb" if not gpu and rng.random() < 0.1 else ""
    return TaskGroup(
        request=Resources(
            cpu_milli=rng.choice([0, 1, 1000, 1500, 8000, 31_999, 48_000]) or (not gpu and not mig),
            memory_mib=rng.choice([0, 1, 4096, 60_000, 64_000]),
            gpu_milli=gpu,
            disk_mib=rng.choice([0, 0, 0, 0, 2000]) if not gpu else 0,
        ),
        mig=mig,
        node_labels={"disk": ("ssd",)} if rng.random() < 0.1 else {},
        tolerations=(Toleration(key="spot"),) if rng.random() < 0.5 else (),
    )


def same(plain: Capacity, quick: Capacity, shapes: list[Shape]) -> None:
    """Both hold the same, and would choose the same next."""
    assert canonical(plain.dump()) == canonical(quick.dump())
    assert list(plain.key) == list(quick.key)
    for one, other in zip(plain.indexes, quick.indexes, strict=True):
        for name in ("gpu_bits", "cpu_bits", "share_bits", "share_counts", "free_cpu", "free_memory", "free_devices"):
            assert getattr(one, name) == getattr(other, name), name
        assert {k: n for k, n in one.counts.items() if n} == {k: n for k, n in other.counts.items() if n}
    assert [plain.find(shape) for shape in shapes] == [quick.find(shape) for shape in shapes]


@settings(max_examples=60 if find_spec("numba") else 25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1 << 30),
    nodes=st.sampled_from([1, 7, 40, 150]),
    pools=st.lists(st.sampled_from(POOLS), min_size=1, max_size=5, unique_by=lambda pool: pool.name),
)
def test_batches_are_placed_as_one_task_after_another(seed, nodes, pools):
    rng = random.Random(seed)
    plain = Capacity()
    for pool in pools:
        plain.add_pool(pool)
    for _ in range(nodes):
        add(plain, rng, pools)
    if rng.random() < 0.3:
        plain.name_labels(["disk"])
    quick = plain.copy()
    shapes = [Shape(request(rng), plain.pools) for _ in range(12)]
    mirror = fast.Mirror(quick, kernels)
    live: list[tuple[Shape, fast.Claim]] = []
    for _ in range(14):
        if not mirror.matches(quick):
            mirror = fast.Mirror(quick, kernels)
        step = rng.random()
        if step < 0.5:
            # Mostly what the kernels know: a batch of other things would be placed by plain code alone.
            few = rng.sample(shapes, 3) + [shape for shape in shapes if not shape.kinds]
            batch = rng.choices(few, k=rng.choice([1, 5, 60]))
            claims = fast.one_by_one(plain, batch)
            assert mirror.place_many(quick, batch) == claims
            live += list(zip(batch, claims, strict=False))
        elif step < 0.75:
            rng.shuffle(live)
            gone = [live.pop() for _ in range(rng.randrange(len(live) + 1))]
            for shape, (node, devices) in gone:
                plain.give_back(node, shape, 1, devices)
            if rng.random() < 0.7:
                mirror.give_back_many(quick, [shape for shape, _ in gone], [claim for _, claim in gone])
            else:
                for shape, (node, devices) in gone:
                    quick.give_back(node, shape, 1, devices)
        else:
            node, other, moment = rng.randrange(len(plain.node_ids)), rng.choice(shapes), rng.randrange(1 << 30)
            for capacity in (plain, quick):
                disturb(capacity, random.Random(moment), step, node, other, pools)
        if rng.random() < 0.3:
            same(plain, quick, shapes)
        elif rng.random() < 0.2:
            # A fork goes on by itself, and so does what it was made from.
            same(plain, quick.copy(), shapes)
    same(plain, quick, shapes)


def disturb(
    capacity: Capacity, rng: random.Random, step: float, node: int, shape: Shape, pools: list[PoolSpec]
) -> None:
    """Something that plain code does between batches."""
    if step < 0.8:
        capacity.set_state(node, rng.choice([NodeState.READY, NodeState.CORDONED]), 0)
    elif step < 0.85:
        capacity.book([node, (node + 1) % len(capacity.node_ids)], rng.choice([OPEN, 1, 2]))
    elif step < 0.9:
        for _ in range(rng.choice([1, 1, 70])):
            add(capacity, rng, pools)
    elif step < 0.95:
        found = capacity.find(shape)
        if found >= 0:
            capacity.claim(found, shape, 1)
    else:
        capacity.name_labels(["disk", "zone"])


@compiled_only
def test_nobody_waits_for_the_compiler(tmp_path):
    """With an empty cache the first batches are placed by plain code at once; the kernels take over when they are
    there, in this process as in the next one, and place the same."""
    script = """
import sys, time
from engine import fast
from engine.capacity import Capacity
from engine.model import NodeSpec, PoolSpec, Resources, TaskGroup
from engine.shape import Shape
assert "numba" not in sys.modules
capacity = Capacity()
capacity.add_pool(PoolSpec(name="p", capacity=Resources(cpu_milli=64_000, memory_mib=64_000)))
for i in range(500):
    capacity.add_node(NodeSpec(id=f"n{i}", pool="p"), 0)
batch = [Shape(TaskGroup(request=Resources(cpu_milli=1000 + i % 7)), capacity.pools) for i in range(1000)]
begun = time.process_time()
first = fast.place_many(capacity, batch)
assert fast.extra.state == "preparing", (fast.extra.state, fast.extra.reason)
assert time.process_time() - begun < 0.5, "somebody waited"
fast.give_back_many(capacity, batch, first)
assert fast.extra.wait(600), fast.extra.reason
assert fast.place_many(capacity, batch) == first
assert fast.mirror_of(capacity, 1000) is not None
print("ready")
"""
    environment = os.environ | {fast.CACHE_VARIABLE: str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.stdout.strip() == "ready", done.stderr
    assert list((tmp_path / "cache").glob("compiled-*"))


def test_without_the_extra_plain_code_places(monkeypatch):
    monkeypatch.setattr(fast.extra, "state", "absent")
    capacity = Capacity()
    capacity.add_pool(POOLS[2])
    for i in range(8):
        capacity.add_node(NodeSpec(id=f"n{i}", pool="cpu"), 0)
    shape = Shape(TaskGroup(request=Resources(cpu_milli=8000)), capacity.pools)
    claims = fast.place_many(capacity, [shape] * 100)
    assert len(claims) == 32
    fast.give_back_many(capacity, [shape] * 32, claims)
    assert capacity.slots(shape) == 32
