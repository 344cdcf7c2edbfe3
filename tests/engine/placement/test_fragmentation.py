"""Fragmentation: hand-worked cells, bounds, and the same figure as counting node by node."""

from __future__ import annotations

import random

import msgspec
import pytest

from engine.control import Engine
from engine.model.commands import Cancel, Cordon, Reserve, Submit
from engine.model.reports import FragmentationReport, ShapeFragmentation
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    NodeState,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    Taint,
    WorkloadSpec,
    WorkloadState,
)
from engine.placement.fragmentation import MILLION, headline_ppm, measured
from engine.state.cell_state import BOUND, State
from tests.support.cells import small_cell, submit, workload

HOUR_MS = 3_600_000


def report(engine: Engine) -> FragmentationReport:
    return measured(engine.state, engine.now_ms)


def halves(engine: Engine) -> None:
    """One task of 4 GPU left on each of the first two nodes."""
    engine.command(submit(*(workload(f"h{i}", gpu=4000, run=HOUR_MS, estimate=HOUR_MS) for i in range(4))))
    engine.command(Cancel(ids=("h0", "h2")))


def by_hand(state: State) -> tuple[int, int]:
    """(free that is lost to the mix, free), in milli-GPU times tasks: every task against every device, as the paper
    has it, in pools that the task may use."""
    capacity, w = state.capacity, state.workloads
    lost = free = 0
    for row, now in enumerate(w.state):
        if now not in BOUND and now != WorkloadState.QUEUED:
            continue
        workload_class = w.class_at(row)
        for shape, count in zip(workload_class.shapes, workload_class.counts, strict=True):
            if not shape.gpu_milli:
                continue
            for node in range(len(capacity.node_ids)):
                if capacity.pool[node] not in shape.pool_set or capacity.state[node] != NodeState.READY:
                    continue
                if capacity.booking[node] >= 0:
                    continue
                devices = capacity.devices(node)
                fits = capacity.fits(node, shape)
                free += count * sum(devices)
                lost += count * sum(d for d in devices if not fits or d < min(shape.gpu_milli, 1000))
    return lost, free


def fitting_by_hand(state: State, kind: ShapeFragmentation) -> int:
    """Tasks that fit on ready nodes, node by node."""
    capacity = state.capacity
    total = 0
    for node in range(len(capacity.node_ids)):
        if capacity.state[node] == NodeState.READY and capacity.pools[capacity.pool[node]].name in kind.pools:
            cpu, memory, disk = capacity.free_cpu[node], capacity.free_memory[node], capacity.free_disk[node]
            devices = capacity.devices(node)
            unit = min(kind.gpu_milli, 1000)
            gpus = sum(free // unit for free in devices) * unit // kind.gpu_milli
            asked = ((cpu, kind.cpu_milli), (memory, kind.memory_mib), (disk, kind.disk_mib))
            total += min([gpus, *(have // want for have, want in asked if want)])
    return total


def test_two_halves_are_of_no_use_to_a_whole() -> None:
    engine = Engine.open(None, cell=small_cell(gpu_nodes=2, cpu_nodes=0))
    halves(engine)
    engine.command(submit(workload("big", gpu=8000)))
    found = report(engine)
    # Three tasks are in the mix: two that could use all that is free, and one that could use nothing of it.
    assert found.ppm == MILLION // 3
    assert (found.free_milli, found.mix_tasks, found.covered_tasks) == (8000, 3, 3)
    small, big = found.shapes
    assert (small.running, small.waiting, small.usable_milli, small.fits) == (2, 0, 8000, 2)
    assert (big.running, big.waiting, big.usable_milli, big.unusable_ppm) == (0, 1, 0, MILLION)
    assert (big.fits, big.fits_in_one_piece) == (0, 1)
    assert engine.overview().fragmentation_ppm == found.ppm


def test_a_node_short_of_cpu_loses_its_devices_to_all() -> None:
    engine = Engine.open(None, cell=small_cell(gpu_nodes=1, cpu_nodes=0))
    engine.command(submit(workload("hog", gpu=1000, cpu=60_000, run=HOUR_MS), workload("next", gpu=1000, cpu=8000)))
    hog, following = report(engine).shapes
    assert (hog.usable_milli, following.usable_milli) == (0, 0)
    assert following.fits_in_one_piece == 0
    assert report(engine).ppm == MILLION


def test_shares_fit_the_parts_that_are_left() -> None:
    engine = Engine.open(None, cell=small_cell(gpu_nodes=1, cpu_nodes=0))
    engine.command(submit(*(workload(f"s{i}", gpu=600, run=HOUR_MS) for i in range(8)), workload("t", gpu=300)))
    assert engine.workload("t").state == "running"
    engine.command(submit(workload("late", gpu=600)))
    by_size = {shape.gpu_milli: shape for shape in report(engine).shapes}
    assert by_size[600].usable_milli == 0
    assert by_size[300].usable_milli == 7 * 400
    assert by_size[300].free_milli == 7 * 400 + 100


def test_an_empty_cell_is_not_fragmented_whatever_its_work_may_use() -> None:
    engine = Engine.open(None, cell=small_cell())
    assert report(engine).ppm is None
    engine.command(submit(workload("cpu-only", cpu=1000)))
    assert (report(engine).ppm, report(engine).published_ppm) == (None, MILLION)
    engine.command(submit(workload("odd", gpu=3000)))
    found = report(engine)
    assert found.ppm == 0
    # The paper's rule counts the task that wants no device: nothing that is free is of use to it.
    assert found.published_ppm == MILLION // 2
    assert next(shape for shape in found.shapes if shape.gpu_milli == 3000).unusable_ppm == 0


def test_what_is_kept_or_out_of_use_is_not_free() -> None:
    engine = Engine.open(None, cell=small_cell(gpu_nodes=4, cpu_nodes=0))
    engine.command(submit(workload("one", gpu=1000, run=HOUR_MS)))
    engine.command(Cordon(ids=("g3",)))
    kept = ReservationSpec(name="kept", nodes=("g2",), start_ms=HOUR_MS, end_ms=2 * HOUR_MS)
    engine.command(Reserve(reservation=kept))
    assert report(engine).free_milli == 15_000


def test_pools_are_told_apart() -> None:
    pools = tuple(
        PoolSpec(name=name, gpu_model=name, capacity=Resources(cpu_milli=64_000, gpu_milli=8000)) for name in "ab"
    )
    nodes = tuple(NodeSpec(id=f"{name}{i}", pool=name) for name in "ab" for i in range(2))
    cell = CellSpec(
        pools=pools,
        nodes=nodes,
        queues=(QueueSpec(name="a"),),
        priority_classes=(PriorityClassSpec(name="normal", value=1),),
    )
    engine = Engine.open(None, cell=cell)
    engine.command(submit(*(workload(f"w{i}", gpu=8000, models=("a",), run=HOUR_MS) for i in range(3))))
    found = report(engine)
    # Pool a is full, and nobody in the mix may use pool b.
    assert [(pool.name, pool.free_milli, pool.ppm) for pool in found.pools] == [("a", 0, 0), ("b", 16_000, None)]
    assert (found.ppm, found.published_ppm) == (0, MILLION)


def test_labels_and_taints_confine_what_counts() -> None:
    base = small_cell(gpu_nodes=2, cpu_nodes=0)
    nodes = (
        msgspec.structs.replace(base.nodes[0], labels={"disk": "ssd"}),
        msgspec.structs.replace(base.nodes[1], taints=(Taint(key="kept"),)),
    )
    engine = Engine.open(None, cell=msgspec.structs.replace(base, nodes=nodes))

    def asking(name: str, gpu: int, **more: object) -> WorkloadSpec:
        spec = workload(name, gpu=gpu, run=HOUR_MS)
        return msgspec.structs.replace(spec, groups=(msgspec.structs.replace(spec.groups[0], **more),))

    engine.command(submit(asking("ssd", 2000, node_labels={"disk": ("ssd",)}), asking("any", 1000)))
    found = report(engine)
    # The node with the taint is free for neither: what is free there is not lost to them.
    assert (found.ppm, found.free_milli) == (0, 13_000)
    assert {shape.free_milli for shape in found.shapes} == {5000}
    assert found.shapes[0].usable_milli + found.shapes[1].usable_milli == 10_000


def test_free_instances_of_a_partitioned_device_are_of_use_to_their_kind() -> None:
    base = small_cell(gpu_nodes=1, cpu_nodes=0)
    pool = msgspec.structs.replace(base.pools[0], gpu_model="A100-40GB", mig=True)
    engine = Engine.open(None, cell=msgspec.structs.replace(base, pools=(pool, *base.pools[1:])))
    spec = workload("slice", cpu=1000, run=HOUR_MS)
    sliced = msgspec.structs.replace(spec, groups=(msgspec.structs.replace(spec.groups[0], mig="1g.5gb"),))
    engine.command(submit(sliced, workload("fill", gpu=7000, run=HOUR_MS), workload("whole", gpu=1000)))
    by_size = {shape.gpu_milli: shape for shape in report(engine).shapes}
    # Six of the seven instances of the one device that is cut.
    assert (by_size[142].free_milli, by_size[142].usable_milli, by_size[142].fits) == (6 * 142, 6 * 142, 6)
    assert (by_size[1000].free_milli, by_size[1000].usable_milli) == (6 * 142, 0)


@pytest.mark.parametrize("seed", range(12))
def test_it_is_what_counting_device_by_device_gives(seed: int) -> None:
    rng = random.Random(seed)
    engine = Engine.open(None, cell=small_cell(gpu_nodes=6, cpu_nodes=2))
    sizes = [100, 250, 300, 500, 700, 1000, 2000, 3000, 4000, 8000]
    specs = [
        workload(
            f"w{i}", gpu=rng.choice(sizes), cpu=rng.choice([500, 4000, 9000]), memory=rng.choice([0, 1000, 90_000]),
            count=rng.choice([1, 1, 2]), run=HOUR_MS,
        )
        for i in range(40)
    ]  # fmt: skip
    engine.command(Submit(workloads=tuple(specs)))
    for _ in range(4):
        running = [spec.id for spec in specs if engine.workload(spec.id).state == "running"]
        engine.command(Cancel(ids=tuple(rng.sample(running, min(3, len(running))))))
        engine.command(Cordon(ids=(f"g{rng.randrange(6)}",)))
        lost, free = by_hand(engine.state)
        ppm = headline_ppm(engine.state)
        assert ppm == (lost * MILLION // free if free else 0)
        assert 0 <= ppm <= MILLION
        found = report(engine)
        assert found.ppm == ppm
        assert all(0 <= shape.usable_milli <= shape.free_milli for shape in found.shapes)
        assert all(shape.fits <= shape.fits_in_one_piece for shape in found.shapes)
        assert all(shape.fits == fitting_by_hand(engine.state, shape) for shape in found.shapes)


def test_a_restart_measures_the_same() -> None:
    engine = Engine.open(None, cell=small_cell())
    halves(engine)
    engine.command(submit(workload("big", gpu=8000, count=4)))
    again = State()
    again.load(engine.state.dump())
    assert measured(again, engine.now_ms) == report(engine)
