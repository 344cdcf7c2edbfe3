"""Scores of nodes for a task: one function per score, over arrays of nodes that were already found to fit.

Every score gives 0 to 100 for each node, higher is better. A profile is weights by name (`SCORES`). `weighted` sums the
scores, cut to whole numbers as in the Kubernetes scheduler, so that near ties are ties and go to the lowest row. To add
a score, write one function here and name it in `SCORES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.model.errors import SpecError
from engine.model.specs import LEVELS, RESOURCES

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

CPU, MEMORY, GPU, DISK = range(len(RESOURCES))
WHOLE = 1000
"""Milli-GPU of a whole device."""
BEST = 100


@dataclass(slots=True)
class CandidateNodes:
    """Nodes to choose among, as they are before the task is placed. k nodes, each with at most d devices."""

    rows: Longs
    """[k] rows of the node table, ascending."""
    capacity: Longs
    """[4, k] in the order of `engine.model.specs.RESOURCES`."""
    free: Longs
    """[4, k] likewise."""
    devices: NDArray[np.int32]
    """[k, d] free milli-GPU of each device, -1 where a node has no such device."""
    model: NDArray[np.int32]
    """[k] GPU model, -1 for none."""
    price: Longs
    """[k] micro-USD per hour."""
    spot: NDArray[np.bool_]
    """[k] may be taken away by its provider."""
    zone: NDArray[np.int32]
    """[k] zone, -1 for none."""
    distance: NDArray[np.int32]
    """[k] topology levels up to the domain shared with the tasks of the gang placed so far; 0 on their node, and
    everywhere when there are none."""


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """The request of one task. GPUs are `gpus` whole devices or a `share` of one device, never both."""

    cpu: int = 0
    memory: int = 0
    gpus: int = 0
    share: int = 0
    """Milli-GPU of one device, 0 to 999."""
    disk: int = 0
    models: tuple[int, ...] = ()
    """Acceptable GPU models, as in `CandidateNodes.model`. Empty: any."""
    zones: tuple[int, ...] = ()
    """Zones that hold the data it reads, as in `CandidateNodes.zone`. Empty: nowhere in particular."""

    @property
    def gpu_milli(self) -> int:
        return self.gpus * WHOLE + self.share

    def vector(self) -> tuple[int, int, int, int]:
        """The quantities in the order of `engine.model.specs.RESOURCES`."""
        return (self.cpu, self.memory, self.gpu_milli, self.disk)


@dataclass(frozen=True, slots=True)
class MixShape:
    """One kind of task in the mix that fragmentation is measured by."""

    cpu: int
    """milli-CPU."""
    per_device: int
    """Milli-GPU of each of its devices; 0 for work without GPUs."""
    devices: int
    models: tuple[int, ...]
    """Acceptable GPU models; empty: any."""
    count: int
    """The number of such tasks."""
    memory: int = 0
    """MiB."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Inputs of scores besides the nodes. With the defaults the scores that use them are flat."""

    mix: tuple[MixShape, ...] = ()
    """Tasks that want a place, now or as seen lately."""
    largest: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Largest capacity of one node by resource; a resource with 0 is left out of `dot_product` and `best_fit`."""
    highest_price: int = 0
    """Price of the dearest node, micro-USD per hour."""
    spot_risk: int = BEST
    """Points a spot node loses."""
    levels: int = len(LEVELS)
    """Distance of nodes that share no domain."""


NOWHERE = Surroundings()

Score = Callable[[CandidateNodes, TaskRequest, Surroundings], Floats]


def pack(nodes: CandidateNodes, wish: TaskRequest, around: Surroundings) -> Floats:
    """Fullest node first: mean of the used fractions with the task on it, over what the node has. `MostAllocated` of
    Kubernetes' NodeResourcesFit."""
    return BEST * _mean(_used(nodes, wish), nodes.capacity)


def spread(nodes: CandidateNodes, wish: TaskRequest, around: Surroundings) -> Floats:
    """Emptiest node first: 100 - `pack`. `LeastAllocated` of Kubernetes' NodeResourcesFit."""
    return BEST - pack(nodes, wish, around)


def balance(nodes: CandidateNodes, wish: TaskRequest, around: Surroundings) -> Floats:
    """1 - standard deviation of the used fractions with the task on it, over what the node has.
    `NodeResourcesBalancedAllocation` of Kubernetes."""
    used = _used(nodes, wish)
    mean = _mean(used, nodes.capacity)
    return BEST * (1.0 - np.sqrt(_mean((used - mean) ** 2, nodes.capacity)))


def dot_product(nodes: CandidateNodes, wish: TaskRequest, around: Surroundings) -> Floats:
    """1 - mean over resources of free x wanted, both as fractions of the largest node's: where the wish is large the
    node should be nearly full. After Tetris (Grandl et al., SIGCOMM 2014) as in the simulator of FGD."""
    total = np.zeros(nodes.rows.size)
    known = [r for r in range(len(RESOURCES)) if around.largest[r]]
    for r in known:
        total += (nodes.free[r] / around.largest[r]) * (wish.vector()[r] / around.largest[r])
    return BEST * (1.0 - total / max(1, len(known)))


def best_fit(nodes: CandidateNodes, wish: TaskRequest, around: Surroundings) -> Floats:
    """1 - mean over resources of what stays free, as fractions of the largest node's: smallest remainder first, also
    between nodes of different size (which `pack` compares each with its own)."""
    left = np.zeros(nodes.rows.size)
    known = [r for r in range(len(RESOURCES)) if around.largest[r]]
    for r in known:
        left += (nodes.free[r] - wish.vector()[r]) / around.largest[r] * (1.0 / len(known))
    return BEST * (1.0 - left)


def gpu_fragmentation(nodes: CandidateNodes, wish: TaskRequest, around: Surroundings) -> Floats:
    """100 x sigmoid(fragment before - after, in devices), by the mix; a share goes to its best device. The gradient of
    FGD (Weng et al., USENIX ATC 2023), with whole numbers where the original sums floats."""
    return _gradient(lambda free, devices: fragment(free[CPU], devices, nodes.model, around.mix), nodes, wish, around)


def gpu_stranding(nodes: CandidateNodes, wish: TaskRequest, around: Surroundings) -> Floats:
    """Score as `gpu_fragmentation`, but of fragment + stranded GPU (`stranded`): idle pieces that no task can use, and
    devices that the node's CPU and memory could not drive if its other tasks were average ones.
    """

    def lost(free: Longs, devices: NDArray[np.int32]) -> Longs:
        pieces = fragment(free[CPU], devices, nodes.model, around.mix)
        return pieces + sum(shape.count for shape in around.mix) * stranded(free, devices, around.mix)

    return _gradient(lost, nodes, wish, around)


def topology(nodes: CandidateNodes, wish: TaskRequest, around: Surroundings) -> Floats:
    """Nearest to the tasks of the gang placed so far: 100 on their node, 0 where no domain is shared."""
    return BEST * (1.0 - nodes.distance / max(1, around.levels))


def price(nodes: CandidateNodes, wish: TaskRequest, around: Surroundings) -> Floats:
    """Cheapest first: 100 for free of charge, 0 for the dearest node there is."""
    if not around.highest_price:
        return np.full(nodes.rows.size, float(BEST))
    return BEST * (1.0 - nodes.price / around.highest_price)


def spot_risk(nodes: CandidateNodes, wish: TaskRequest, around: Surroundings) -> Floats:
    """Nodes that stay before nodes that may be taken away."""
    return np.where(nodes.spot, float(BEST - around.spot_risk), float(BEST))


def data(nodes: CandidateNodes, wish: TaskRequest, around: Surroundings) -> Floats:
    """100 in the zones that hold what the task reads (anywhere, if it reads nothing in particular), 0 elsewhere."""
    if not wish.zones:
        return np.full(nodes.rows.size, float(BEST))
    return np.where(np.isin(nodes.zone, wish.zones), float(BEST), 0.0)


SCORES: dict[str, Score] = {
    score.__name__: score
    for score in (
        pack,
        spread,
        balance,
        dot_product,
        best_fit,
        gpu_fragmentation,
        gpu_stranding,
        topology,
        price,
        spot_risk,
        data,
    )
}
"""Name -> score; what queues and pools may give weights to."""

BY_MIX = ("gpu_fragmentation", "gpu_stranding")
"""Scores that look at `Surroundings.mix`."""


def check_weights(weights: Mapping[str, int], where: str) -> None:
    """Refuse scores that do not exist and weights that are not from 0 to 1000."""
    for name, weight in weights.items():
        if name not in SCORES:
            shown = name[:40].encode("unicode_escape").decode()
            raise SpecError(where, f"there is no score '{shown}'", f"Use some of {', '.join(SCORES)}")
        if not 0 <= weight <= 1000:
            raise SpecError(f"{where}.{name}", f"the weight {weight} is not from 0 to 1000", "Use a smaller one")


def weighted(
    weights: Mapping[str, int], nodes: CandidateNodes, wish: TaskRequest, around: Surroundings = NOWHERE
) -> Longs:
    """[k] sum of weight x score, each score cut to a whole number first."""
    total = np.zeros(nodes.rows.size, np.int64)
    for name, weight in weights.items():
        total += weight * SCORES[name](nodes, wish, around).astype(np.int64)
    return total


def best(weights: Mapping[str, int], nodes: CandidateNodes, wish: TaskRequest, around: Surroundings = NOWHERE) -> int:
    """Position among the candidates of the best one; of equals the one with the lowest row. At least one is needed."""
    return int(np.argmax(weighted(weights, nodes, wish, around)))


# --- fragmentation -------------------------------------------------------------------------------------------------


def fragment(cpu: Longs, devices: NDArray[np.int32], model: NDArray[np.int32], mix: tuple[MixShape, ...]) -> Longs:
    """[k] idle milli-GPU that a task of the mix could not use, summed over the mix by its counts.

    For a task that fits nowhere on the node, and for one without GPUs, all idle GPU is fragment; for one that fits, the
    devices too full for it are. Divided by the counts' sum it is F_n(M) of FGD (ATC 2023, section 3.2). `cpu` [k] is
    free milli-CPU; `devices` [k, d] and `model` [k] as in `CandidateNodes`.
    """
    room = np.maximum(devices, 0)
    idle = room.sum(axis=1, dtype=np.int64)
    total = np.zeros(cpu.size, np.int64)
    for shape in mix:
        if not shape.devices:
            total += shape.count * idle
            continue
        usable = room >= shape.per_device
        fits = (usable.sum(axis=1) >= shape.devices) & (cpu >= shape.cpu)
        if shape.models:
            fits &= np.isin(model, shape.models)
        total += shape.count * np.where(fits, idle - np.where(usable, room, 0).sum(axis=1, dtype=np.int64), idle)
    return total


def stranded(free: Longs, devices: NDArray[np.int32], mix: tuple[MixShape, ...]) -> Longs:
    """[k] idle milli-GPU beyond what the free CPU and memory suffice for at the mix's average per milli-GPU.

    `free` [4, k] and `devices` [k, d] as in `CandidateNodes`. Only tasks with GPUs count for the averages; a mix
    without any strands nothing.
    """
    idle: Longs = np.maximum(devices, 0).sum(axis=1, dtype=np.int64)
    driven: Longs = idle
    for resource, (wanted, gpu) in ((CPU, average(mix, "cpu")), (MEMORY, average(mix, "memory"))):
        if wanted:
            driven = np.minimum(driven, free[resource] * gpu // wanted)
    left: Longs = idle - driven
    return left


def average(mix: tuple[MixShape, ...], quantity: str) -> tuple[int, int]:
    """Sum of one quantity and of milli-GPU over the tasks with GPUs, by their counts."""
    users = [shape for shape in mix if shape.devices]
    wanted = sum(shape.count * getattr(shape, quantity) for shape in users)
    return wanted, sum(shape.count * shape.per_device * shape.devices for shape in users)


def _gradient(
    lost: Callable[[Longs, NDArray[np.int32]], Longs], nodes: CandidateNodes, wish: TaskRequest, around: Surroundings
) -> Floats:
    """100 x sigmoid of what placing the task takes off `lost`, in devices; a share goes to its best device. `lost` is
    of free [4, k] and devices [k, d], summed over the mix by its counts."""
    weight = sum(shape.count for shape in around.mix) * WHOLE
    if not weight:
        return np.full(nodes.rows.size, BEST / 2)
    before = lost(nodes.free, nodes.devices)
    free = nodes.free - np.array(wish.vector(), np.int64)[:, None]
    if not wish.share:
        return _sigmoid((before - lost(free, without_whole(nodes.devices, wish.gpus))) / weight)
    gain = np.full(nodes.rows.size, -np.inf)
    for device in range(nodes.devices.shape[1]):
        left = nodes.devices.copy()
        left[:, device] -= wish.share
        gain = np.maximum(gain, np.where(left[:, device] >= 0, (before - lost(free, left)) / weight, -np.inf))
    return _sigmoid(gain)


def without_whole(devices: NDArray[np.int32], gpus: int) -> NDArray[np.int32]:
    """The devices with the first `gpus` whole free ones of each node taken."""
    if not gpus:
        return devices
    whole = devices == WHOLE
    return np.where(whole & (np.cumsum(whole, axis=1) <= gpus), 0, devices).astype(np.int32)


def _sigmoid(x: Floats) -> Floats:
    return BEST / (1.0 + np.exp(-x))


def _used(nodes: CandidateNodes, wish: TaskRequest) -> Floats:
    """[4, k] used fraction of each resource with the task placed; 0 where a node has none of it."""
    wanted = np.array(wish.vector(), np.int64)[:, None]
    return np.where(nodes.capacity > 0, (nodes.capacity - nodes.free + wanted) / np.maximum(nodes.capacity, 1), 0.0)


def _mean(values: Floats, capacity: Longs) -> Floats:
    """[k] mean over the resources a node has."""
    there = capacity > 0
    mean: Floats = np.where(there, values, 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
    return mean
