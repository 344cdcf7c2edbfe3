"""Scores: the values of their formulas, worked out by hand, and how a profile adds them up."""

from __future__ import annotations

import numpy as np
import pytest

from engine.capacity import scores
from engine.capacity.scores import SCORES, CandidateNodes, MixShape, Surroundings, TaskRequest, weighted
from engine.model.errors import SpecError

GIB = 1024
NOWHERE = Surroundings()


def candidates(
    *devices: tuple[int, ...],
    cpu: tuple[int, ...] = (64_000,),
    memory: tuple[int, ...] = (256 * GIB,),
    used_cpu: tuple[int, ...] = (0,),
    model: tuple[int, ...] = (0,),
    **other: object,
) -> CandidateNodes:
    """Nodes with these free milli-GPU; what is given once holds for all of them. Capacity is 1000 for each device."""
    count = len(devices)
    most = max(map(len, devices))
    slots = np.array([(*free, *(-1,) * (most - len(free))) for free in devices], np.int32).reshape(count, most)

    def each(values: tuple[int, ...]) -> np.ndarray:
        return np.array(values * count if len(values) == 1 else values, np.int64)

    gpu = np.array([1000 * len(free) for free in devices])
    capacity = np.stack((each(cpu), each(memory), gpu, np.zeros(count, np.int64)))
    free = capacity.copy()
    free[0] -= each(used_cpu)
    free[2] = np.maximum(slots, 0).sum(axis=1)
    fields = {
        "price": np.zeros(count, np.int64),
        "spot": np.zeros(count, np.bool_),
        "zone": np.full(count, -1, np.int32),
        "distance": np.zeros(count, np.int32),
    }
    fields.update({name: np.array(value) for name, value in other.items()})
    return CandidateNodes(
        rows=np.arange(count),
        capacity=capacity,
        free=free,
        devices=slots,
        model=each(model).astype(np.int32),
        **fields,
    )


def test_used_fractions_of_75_78_and_75_per_cent() -> None:
    node = candidates((1000,) * 8)
    wish = TaskRequest(cpu=48_000, memory=200 * GIB, gpus=6)
    assert scores.pack(node, wish, NOWHERE) == pytest.approx(76.0417, abs=1e-4)
    assert scores.spread(node, wish, NOWHERE) == pytest.approx(23.9583, abs=1e-4)
    assert scores.balance(node, wish, NOWHERE) == pytest.approx(98.5269, abs=1e-4)


def test_resources_a_node_has_none_of_are_left_out_of_its_mean() -> None:
    node = candidates((), cpu=(10_000,), memory=(10 * GIB,))
    wish = TaskRequest(cpu=5_000, memory=5 * GIB)
    assert scores.pack(node, wish, NOWHERE) == pytest.approx(50)
    assert scores.balance(node, wish, NOWHERE) == pytest.approx(100)


def test_remainder_and_dot_product_are_fractions_of_the_largest_node() -> None:
    """The published simulator's two resources: 128 cores and 8 devices."""
    around = Surroundings(largest=(128_000, 0, 8_000, 0))
    nodes = candidates((1000,) * 8, (1000, 1000))
    wish = TaskRequest(cpu=32_000, gpus=2)
    # remainders: (32/128 + 6/8) / 2 and (32/128 + 0) / 2
    assert scores.best_fit(nodes, wish, around) == pytest.approx((50, 87.5))
    # products: (1/2 x 1/4 + 1 x 1/4) / 2 and (1/2 x 1/4 + 1/4 x 1/4) / 2
    assert scores.dot_product(nodes, wish, around) == pytest.approx((81.25, 90.625))


WHOLE = MixShape(cpu=8_000, per_device=1000, devices=1, models=(), count=3)
HALF = MixShape(cpu=4_000, per_device=500, devices=1, models=(), count=1)
OTHER_MODEL = MixShape(cpu=1_000, per_device=1000, devices=1, models=(1,), count=1)
CPU_ONLY = MixShape(cpu=1_000, per_device=0, devices=0, models=(), count=1)


def test_fragment_is_what_each_task_of_the_mix_could_not_use() -> None:
    node = candidates((1000, 600, 200))

    def lost(cpu: int, *mix: MixShape) -> int:
        return int(scores.fragment(np.array([cpu]), node.devices, node.model, mix)[0])

    assert lost(64_000, WHOLE) == 3 * 800
    assert lost(64_000, HALF) == 200
    assert lost(64_000, OTHER_MODEL) == lost(64_000, CPU_ONLY) == lost(3_999, HALF) == 1800
    assert lost(5_000, WHOLE, HALF) == 3 * 1800 + 200


def test_fragmentation_gradient_of_a_share_takes_its_best_device() -> None:
    """On the whole device a half would spoil it for whole tasks; beside another half it uses up a fragment."""
    around = Surroundings(mix=(WHOLE, HALF))
    # before (3 x 500 + 0) / 4; on the half-free device after it 0, so 375 milli-GPU less
    beside = scores.gpu_fragmentation(candidates((1000, 500)), TaskRequest(cpu=1000, share=500), around)
    assert beside == pytest.approx(100 / (1 + np.exp(-0.375)))
    # before 0, after (3 x 500 + 0) / 4
    alone = scores.gpu_fragmentation(candidates((1000,)), TaskRequest(cpu=1000, share=500), around)
    assert alone == pytest.approx(100 / (1 + np.exp(0.375)))


def test_without_a_mix_every_node_is_as_good() -> None:
    nodes = candidates((1000,), (500,))
    for name in scores.BY_MIX:
        assert SCORES[name](nodes, TaskRequest(cpu=1000, share=500), NOWHERE) == pytest.approx((50, 50))


def test_stranded_is_what_cpu_and_memory_cannot_drive() -> None:
    node = candidates((1000,) * 4, cpu=(16_000,), memory=(100 * GIB,))
    mix = (MixShape(8_000, 1000, 1, (), 1, memory=10 * GIB), MixShape(4_000, 1000, 1, (), 1, memory=30 * GIB), CPU_ONLY)
    # 6 cores and 20 GiB for a device on average: 16 cores drive 2.666 devices, 100 GiB all four
    assert scores.stranded(node.free, node.devices, mix).tolist() == [4000 - 2666]
    node.free[1] = 40 * GIB
    assert scores.stranded(node.free, node.devices, mix).tolist() == [2000]
    assert scores.stranded(node.free, node.devices, (CPU_ONLY,)).tolist() == [0]


def test_stranding_keeps_cpu_hungry_work_off_nodes_that_have_just_enough() -> None:
    mix = (MixShape(10_000, 1000, 1, (), 1),)
    tight, ample = (1000,) * 4, (1000,) * 4
    nodes = candidates(tight, ample, cpu=(40_000, 100_000))
    hungry = scores.gpu_stranding(nodes, TaskRequest(cpu=25_000, gpus=1), Surroundings(mix=mix))
    assert hungry[1] > hungry[0]


def test_closeness_price_spot_and_data() -> None:
    nodes = candidates(
        (1000,), (1000,), (1000,),
        distance=[0, 3, 6], price=[0, 500, 2000], spot=[False, True, True], zone=[4, 5, -1],
    )  # fmt: skip
    wish = TaskRequest(cpu=1000)
    assert scores.topology(nodes, wish, NOWHERE) == pytest.approx((100, 50, 0))
    assert scores.price(nodes, wish, Surroundings(highest_price=2000)) == pytest.approx((100, 75, 0))
    assert scores.price(nodes, wish, NOWHERE) == pytest.approx((100, 100, 100))
    assert scores.spot_risk(nodes, wish, NOWHERE) == pytest.approx((100, 0, 0))
    assert scores.spot_risk(nodes, wish, Surroundings(spot_risk=30)) == pytest.approx((100, 70, 70))
    assert scores.data(nodes, TaskRequest(zones=(5, 7)), NOWHERE) == pytest.approx((0, 100, 0))
    assert scores.data(nodes, wish, NOWHERE) == pytest.approx((100, 100, 100))


def test_every_score_stays_between_0_and_100() -> None:
    random = np.random.default_rng(7)
    free = [tuple(random.integers(500, 1001, random.integers(1, 9)).tolist()) for _ in range(200)]
    nodes = candidates(
        *free, used_cpu=tuple(random.integers(0, 60_000, 200).tolist()), price=random.integers(0, 9, 200)
    )
    mix = (WHOLE, HALF, OTHER_MODEL, CPU_ONLY)
    around = Surroundings(mix=mix, largest=(64_000, 256 * GIB, 8_000, 0), highest_price=9)
    for name, score in SCORES.items():
        points = score(nodes, TaskRequest(cpu=4_000, memory=GIB, share=300), around)
        assert points.shape == (200,), name
        assert ((points >= 0) & (points <= 100)).all(), name


def test_a_profile_adds_whole_points_and_ties_go_to_the_lowest_row() -> None:
    nodes = candidates((1000,), (1000,), (1000,), price=[300, 301, 309], used_cpu=(0, 640, 0))
    wish, around = TaskRequest(cpu=1000), Surroundings(highest_price=1000)
    assert weighted({"price": 2}, nodes, wish, around).tolist() == [140, 138, 138]
    same = weighted({"price": 1, "spot_risk": 1}, nodes, wish, Surroundings(highest_price=100_000))
    assert same.tolist() == [199, 199, 199]
    assert scores.best({"price": 1}, nodes, wish, Surroundings(highest_price=100_000)) == 0


def test_weights_of_unknown_scores_and_of_absurd_size_are_refused() -> None:
    scores.check_weights({"pack": 1, "topology": 1000}, "placement")
    with pytest.raises(SpecError, match="there is no score 'packs'"):
        scores.check_weights({"packs": 1}, "placement")
    for weight in (-1, 1001):
        with pytest.raises(SpecError, match="not from 0 to 1000"):
            scores.check_weights({"pack": weight}, "placement")
