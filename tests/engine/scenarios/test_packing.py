"""Packing by the published method: what always holds, the same value by two ways of working it out, the figures."""

from __future__ import annotations

import csv
import gzip
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import get_args

import numpy as np
import pytest

from engine.capacity import scores
from engine.capacity.scores import CandidateNodes, Surroundings, TaskRequest
from engine.model.errors import SpecError, TraceError
from engine.scenarios import fgd_packing
from engine.scenarios.fgd_packing import (
    CHOOSERS,
    MAX_PODS,
    UNFIT,
    Descent,
    Floor,
    Muster,
    NodeList,
    PackingResult,
    Pod,
    Pods,
    Policy,
    pack,
)

OPENB = Path(__file__).parents[4] / "shared" / "data" / "openb"
POLICIES: tuple[Policy, ...] = get_args(Policy)
NODE_LIST = "sn,cpu_milli,memory_mib,gpu,model\n"
POD_LIST = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def some_nodes(random: Random, count: int) -> NodeList:
    """Three device models, a few nodes without devices, more CPU on some than on others."""
    devices = [random.choice((0, 1, 2, 4, 8)) for _ in range(count)]
    return NodeList(
        names=[f"n{row:03}" for row in range(count)],
        cpu=np.array([random.choice((16_000, 48_000, 96_000)) for _ in devices]),
        memory=np.array([random.choice((65_536, 262_144)) for _ in devices]),
        devices=np.array(devices),
        model=np.array([random.randrange(3) if owned else -1 for owned in devices], np.int32),
        models=["A", "B", "C"],
    )


def some_pods(random: Random, count: int) -> Pods:
    """Shares, whole devices and CPU alone; some bound to one model, to two, or to one that no node has."""
    shapes = []
    for _ in range(30):
        devices, per_device = random.choice(
            ((0, 0), (1, 1000), (1, 1000), (2, 1000), (4, 1000), (1, 810), (1, 470), (1, 90))
        )
        models = random.choice(((), (), (), (0,), (0, 2), (fgd_packing.NO_MODEL,))) if devices else ()
        cpu, memory = random.randrange(500, 20_000), random.randrange(1024, 65_536)
        shapes.append(Pod(cpu, memory, per_device, devices, models, "|".join(map(str, models))))
    shapes = list(dict.fromkeys(shapes))
    return Pods(shapes=shapes, shape=[random.randrange(len(shapes)) for _ in range(count)], nowhere=[])


# --- what always holds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_no_node_or_device_is_overcommitted_and_only_what_fits_nowhere_is_dropped(policy: Policy, seed: int) -> None:
    random = Random(seed)
    nodes, pods = some_nodes(random, 25), some_pods(random, 300)
    floor = Floor(nodes, random.sample(range(25), 25))
    capacity, there = floor.free.copy(), floor.devices >= 0
    chooser = CHOOSERS[policy](floor, pods, random)
    for row in pods.shape:
        pod, fits = pods.shapes[row], floor.fits(pods.shapes[row])
        before, devices = floor.free.copy(), floor.devices.copy()
        placed = chooser.place(row)
        assert placed == fits.any()
        taken = before - floor.free
        on = np.flatnonzero(taken.any(axis=0))
        assert on.size == placed
        if placed:
            assert fits[on[0]]
            assert taken[:, on[0]].tolist() == [pod.cpu, pod.memory, pod.gpu_milli, 0]
        used = devices - floor.devices
        assert sorted(used[used > 0].tolist()) == [pod.per_device] * (pod.devices if placed else 0)
        assert (floor.free >= 0).all()
        assert ((floor.devices >= 0) == there).all()
    assert (np.maximum(floor.devices, 0).sum(axis=0) == floor.gpu).all()
    assert floor.idle.sum() == floor.gpu.sum()
    assert (floor.free <= capacity).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_and_allocation_only_grows(policy: Policy) -> None:
    nodes, pods = some_nodes(Random(5), 60), some_pods(Random(6), 300)
    one, again = (pack(nodes, pods, policy, seed=3, inflate=1.35) for _ in range(2))
    assert (one.allocated_milli == again.allocated_milli).all()
    assert (np.diff(one.allocated_milli) >= 0).all()
    assert (one.allocated_milli <= np.minimum(one.arrived_milli, one.capacity_milli)).all()
    at_100, at_130 = one.alloc_at(100), one.alloc_at(130)
    assert at_100 is not None
    assert at_130 is not None
    assert at_100 <= at_130 <= 100
    assert one.arrived_milli.tolist() != pack(nodes, pods, policy, seed=4, inflate=0.1).arrived_milli.tolist()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_node_takes_no_more_pods_than_the_published_limit(policy: Policy) -> None:
    nodes = NodeList(["a"], np.array([10**9]), np.array([10**9]), np.array([1]), np.zeros(1, np.int32), ["A"])
    pods = Pods([Pod(1, 1, 0, 0, (), ""), Pod(1, 1, 1, 1, (), "")], [0] * (MAX_PODS - 3) + [1] * 9, [])
    floor = Floor(nodes, [0])
    chooser = CHOOSERS[policy](floor, pods, Random(1))
    assert sum(chooser.place(row) for row in pods.shape) == MAX_PODS


def test_arrivals_ask_for_the_inflated_capacity() -> None:
    pods = some_pods(Random(1), 400)
    least = max(pod.gpu_milli for pod in pods.shapes)
    for target in (0, pods.gpu_milli // 2, pods.gpu_milli, 3 * pods.gpu_milli):
        order = fgd_packing.arrivals(pods, target, Random(2))
        asked = sum(pods.shapes[row].gpu_milli for row in order)
        assert target - least < asked < target + least
    whole = fgd_packing.arrivals(pods, pods.gpu_milli, Random(2))
    assert sorted(whole[: len(pods.shape)]) == sorted(pods.shape)
    assert whole[: len(pods.shape)] != pods.shape


def test_typical_pods_are_the_most_frequent_that_cover_95_per_cent() -> None:
    often, often_too, seldom = (Pod(cpu, 8, 1000, 1, (), "") for cpu in (1000, 2000, 3000))
    more_memory = Pod(1000, 16, 1000, 1, (), "")
    pods = Pods([often, seldom, often_too, more_memory], [0] * 30 + [1] * 4 + [2] * 48 + [3] * 18, [])
    mix = fgd_packing.typical(pods)
    assert [(shape.cpu, shape.count) for shape in mix] == [(2000, 48), (1000, 48)]
    assert [shape.memory for shape in mix] == [8, (30 * 8 + 18 * 16) // 48]


def test_allocation_is_read_where_the_arrived_request_rounds_to_the_percentage() -> None:
    def packed(arrived: list[int], allocated: list[int]) -> PackingResult:
        return PackingResult("fgd", 1, len(arrived), 0, np.array(arrived), np.array(allocated), 1000)

    assert packed([990, 996, 1004, 1006], [900, 901, 903, 950]).alloc_at(100) == pytest.approx(90.2)
    assert packed([980, 990, 1010], [900, 910, 930]).alloc_at(100) == pytest.approx(92.0)
    assert packed([980], [900]).alloc_at(100) is None
    assert packed([], []).alloc_at(130) is None


# --- gradients: kept values against the scores of the engine -------------------------------------------------------


def as_candidates(floor: Floor) -> CandidateNodes:
    count = floor.cpu.size
    nothing = np.zeros(count, np.int32)
    return CandidateNodes(
        rows=np.arange(count), capacity=floor.free, free=floor.free, devices=floor.devices.T, model=floor.model,
        price=np.zeros(count, np.int64), spot=np.zeros(count, np.bool_), zone=nothing, distance=nothing,
    )  # fmt: skip


@pytest.mark.parametrize(("policy", "score"), [("fgd", scores.gpu_fragmentation), ("muster", scores.gpu_stranding)])
def test_values_kept_by_node_are_the_scores_of_the_engine(policy: Policy, score: scores.Score) -> None:
    random = Random(11)
    nodes, pods = some_nodes(random, 30), some_pods(random, 250)
    floor = Floor(nodes, list(range(30)))
    chooser = CHOOSERS[policy](floor, pods, random)
    assert isinstance(chooser, Descent)
    around = Surroundings(mix=fgd_packing.typical(pods))
    for step, row in enumerate(pods.shape):
        chooser.place(row)
        if step % 60:
            continue
        for shape, pod in enumerate(pods.shapes):
            whole = pod.devices if pod.per_device == 1000 else 0
            wish = TaskRequest(cpu=pod.cpu, memory=pod.memory, gpus=whole, share=0 if whole else pod.per_device)
            fits = floor.fits(pod)
            assert ((chooser.worth[shape] != UNFIT) == fits).all()
            kept, points = chooser.worth[shape, fits], score(as_candidates(floor), wish, around)[fits]
            if policy == "fgd":
                assert kept.tolist() == points.astype(np.int64).tolist()
            else:
                gain = 1000 * np.log(points / (100 - points))
                assert np.abs(kept - np.floor(gain + 1e-6)).max(initial=0) <= 1


def test_who_is_free_to_choose_leaves_scarce_models_to_those_bound_to_them() -> None:
    """Two nodes alike but for the model, and half of what comes is bound to the first one's."""
    nodes = NodeList(
        ["a", "b"], np.full(2, 96_000), np.full(2, 10**6), np.full(2, 8), np.array([0, 1], np.int32), ["A", "B"]
    )
    anyone, bound = Pod(4_000, 1, 1000, 1, (), ""), Pod(4_000, 1, 1000, 1, (0,), "A")
    pods = Pods([anyone, bound], [0] * 8 + [1] * 8, [])
    floor = Floor(nodes, [0, 1])
    muster = Muster(floor, pods, Random(1))
    assert all(muster.place(row) for row in pods.shape)
    assert floor.gpu.tolist() == [0, 0]


# --- lists ---------------------------------------------------------------------------------------------------------


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_lists_are_read_with_shares_models_and_what_no_node_has(tmp_path: Path) -> None:
    nodes = fgd_packing.read_nodes(
        written(tmp_path, "n.csv", NODE_LIST + "b,96000,1024,8,G2\na,104000,2048,2,T4\nc,8000,64,0,\n")
    )
    assert (nodes.names, nodes.models, nodes.model.tolist()) == (["a", "b", "c"], ["G2", "T4"], [1, 0, -1])
    text = "p2,1000,8,8,1000,\np1,500,4,1,470,T4|A10\np3,500,4,1,1000,A10\np4,700,4,0,0,\n"
    pods = fgd_packing.read_pods(written(tmp_path, "p.csv", POD_LIST + text), nodes)
    asked = [(pod.per_device, pod.devices, pod.models) for pod in (pods.shapes[row] for row in pods.shape)]
    assert asked == [(470, 1, (1,)), (1000, 8, ()), (1000, 1, (fgd_packing.NO_MODEL,)), (0, 0, ())]
    assert pods.nowhere == ["A10"]
    packed = pack(nodes, pods, "fgd", inflate=0.9)
    assert packed.allocated_milli[-1] < packed.arrived_milli[-1]


@pytest.mark.parametrize(
    ("nodes", "pods", "told"),
    [
        ("a,96000,1024,8,G9\n", "p,1,1,1,1000,\n", r"n\.csv:2: column model: expected a GPU model .*'G9'"),
        ("a,96000,1024,8,G2\nb,x,1024,8,G2\n", "p,1,1,1,1000,\n", r"n\.csv:3: column cpu_milli"),
        ("a,96000,1024,8,G2\na,96000,1024,8,G2\n", "p,1,1,1,1000,\n", r"n\.csv:3: column sn: expected a new id"),
        ("a,96000,1024,0,\n", "p,1,1,1,1000,\n", r"n\.csv:1: column gpu: expected nodes with GPUs"),
        ("a,96000,1024,8,G2\n", "p,1,1,1,1000,\nq,1,1,1,1001,\n", r"p\.csv:3: column gpu_milli"),
        ("a,96000,1024,8,G2\n", "p,1,1\n", r"p\.csv:2: column 3: expected 6 columns"),
        ("a,96000,1024,8,G2\n", "p,1,1,0,0,\n", r"p\.csv:1: column num_gpu: expected pods with GPUs"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_packed(tmp_path: Path, nodes: str, pods: str, told: str) -> None:
    listed, wanted = written(tmp_path, "n.csv", NODE_LIST + nodes), written(tmp_path, "p.csv", POD_LIST + pods)
    with pytest.raises(TraceError, match=told):
        fgd_packing.read_pods(wanted, fgd_packing.read_nodes(listed))


@pytest.mark.parametrize("inflate", [0.0, -1.0, float("nan"), 101.0])
def test_absurd_inflation_is_refused(inflate: float) -> None:
    with pytest.raises(SpecError, match="inflate"):
        pack(some_nodes(Random(1), 3), some_pods(Random(1), 9), "fgd", inflate=inflate)


# --- the published figures -----------------------------------------------------------------------------------------

PUBLISHED_AS = {"random": "01-Random", "dotprod": "02-DotProd", "bestfit": "05-BestFit", "fgd": "06-FGD"}
TOLERANCE = 0.6
"""Points between our mean over the seeds and the published one."""
WORST = 0.3
"""Points that `muster` may be below published FGD."""


def published(workload: str, policy: str) -> np.ndarray:
    """Means over its ten seeds at 100 % and 130 %."""
    path = OPENB / "expected_results" / "analysis_allo_discrete.csv.gz"
    if not path.exists():
        pytest.skip("the published results of openb are not on this machine")
    with gzip.open(path, "rt") as lines:
        of = [
            (float(row["100"]), float(row["130"]))
            for row in csv.DictReader(lines)
            if row["workload"] == f"openb_pod_list_{workload}" and row["sc_policy"] == policy
        ]
    return np.mean(of, axis=0)


@cache
def lists(workload: str) -> tuple[NodeList, Pods]:
    nodes = fgd_packing.read_nodes(OPENB / "openb_node_list_gpu_node.csv.gz")
    return nodes, fgd_packing.read_pods(OPENB / f"openb_pod_list_{workload}.csv.gz", nodes)


def measured(workload: str, policy: Policy, seeds: range) -> np.ndarray:
    nodes, pods = lists(workload)
    runs = [pack(nodes, pods, policy, seed=seed) for seed in seeds]
    return np.mean([(run.alloc_at(100), run.alloc_at(130)) for run in runs], axis=0)


@pytest.mark.thorough
def test_one_seed_of_the_default_workload_is_where_the_published_policies_are() -> None:
    """One seed is off its mean by up to three standard deviations of 0.3 (random) or 0.15 points (the others)."""
    for policy, name in PUBLISHED_AS.items():
        off = measured("default", policy, range(42, 43)) - published("default", name)
        assert np.abs(off).max() < (TOLERANCE + 0.3 if policy == "random" else TOLERANCE), (policy, off)
    ours = measured("default", "muster", range(42, 43)) - published("default", PUBLISHED_AS["fgd"])
    assert ours.min() > 0.2


WORKLOADS = (
    "cpu050", "cpu100", "default", "gpushare40", "gpushare60", "gpuspec10", "gpuspec20", "multigpu20", "multigpu30",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("policy", sorted(PUBLISHED_AS))
def test_published_means_are_reproduced(policy: Policy) -> None:
    for workload in WORKLOADS:
        off = measured(workload, policy, range(42, 46)) - published(workload, PUBLISHED_AS[policy])
        assert np.abs(off).max() < TOLERANCE, (workload, off)


@pytest.mark.slow
def test_muster_beats_published_fgd_and_is_nowhere_far_below() -> None:
    ahead = [measured(each, "muster", range(42, 46)) - published(each, PUBLISHED_AS["fgd"]) for each in WORKLOADS]
    assert np.min(ahead) > -WORST
    assert np.mean(ahead, axis=0).min() > 0


BOUND = (0, 30, 5, 14, 47, 4)
"""Weights of the models A10, G2, G3, P100, T4 and V100M16 among pods bound to one."""


def other_mix(pods: Pods, kind: str, random: Random) -> Pods:
    """The pods of a list in a mix that no list here has: more CPU-only pods, shares alone, half of the GPUs asked for
    in twos and more, or a third of the pods bound to models."""
    shapes, kept = pods.shapes, pods.shape
    alone = [row for row in kept if not shapes[row].devices]
    shares = [row for row in kept if 0 < shapes[row].per_device < 1000]
    several = [row for row in kept if shapes[row].devices > 1]
    if kind == "more CPU-only pods":
        return Pods(shapes, kept + random.choices(alone, k=3 * len(alone) // 2), [])
    if kind == "shares alone":
        return Pods(shapes, alone + random.choices(shares, k=len(kept) - len(alone)), [])
    if kind == "half in several devices":
        wanted = pods.gpu_milli - 2 * sum(shapes[row].gpu_milli for row in several)
        more = wanted // (sum(shapes[row].gpu_milli for row in several) // len(several))
        return Pods(shapes, kept + random.choices(several, k=more), [])
    bound = [replace(shape, models=(model,), spec=str(model)) for model in range(len(BOUND)) for shape in shapes]
    rows = [
        (1 + random.choices(range(len(BOUND)), BOUND)[0]) * len(shapes) + row
        if shapes[row].devices == 1 and random.random() < 1 / 3
        else row
        for row in kept
    ]
    return Pods(shapes + bound, rows, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["more CPU-only pods", "shares alone", "half in several devices", "a third bound to models"]
)
def test_muster_is_not_below_fgd_on_mixes_of_other_kinds(kind: str) -> None:
    published("default", "06-FGD")
    nodes, pods = lists("default")
    mix = other_mix(pods, kind, Random(kind))
    ours, fgd = (
        np.mean(
            [(run.alloc_at(100), run.alloc_at(130)) for run in (pack(nodes, mix, each, seed=s) for s in (42, 43))], 0
        )
        for each in ("muster", "fgd")
    )
    assert (ours - fgd).min() > -WORST, (ours, fgd)
