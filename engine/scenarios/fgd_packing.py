"""Packing GPU pods onto nodes one by one, by the published method of FGD's simulator, to compare policies.

The method (Weng et al., "Beware of Fragmentation", USENIX ATC 2023; pkg/simulator of hkust-adsl's
kubernetes-scheduler-simulator at 8f3d6417): pods are sorted by name and shuffled; pods drawn with replacement are
appended, or random ones removed, until their GPU request is `inflate` times the capacity; they are placed in that
order, none ever leaves, and one that fits nowhere is dropped but has arrived. A node will do if it has the CPU, the
memory, a device model that the pod accepts, and as many devices with the wanted share free. Scores are cut to whole
numbers; ties go to the smallest node name, after every name got a number of a shuffle in front: first fit in an order
that is random but stays. Measured is the share of all GPU that is allocated when what has arrived asks for 100 % and
130 % of it.

The generator of random numbers is Python's instead of Go's, so a seed does not give the same order as there: means over
seeds are what compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.capacity.scores import (
    BEST,
    CPU,
    GPU,
    MEMORY,
    WHOLE,
    CandidateNodes,
    MixShape,
    Score,
    Surroundings,
    TaskRequest,
    average,
    best_fit,
    dot_product,
)
from engine.model.errors import SpecError, TraceError
from engine.model.specs import RESOURCES
from engine.traces import trace_formats
from engine.traces.progress import counted
from engine.traces.trace_reader import Problems, TraceFile

Policy = Literal["random", "dotprod", "bestfit", "fgd", "muster"]
Longs = NDArray[np.int64]

TYPICAL_PERCENT = 95
"""Pods that the mix must cover, most frequent requests first (podPopularityThreshold of the simulator)."""
MAX_PODS = 1001
"""Of one node."""
LARGEST_CPU_MILLI, LARGEST_GPU_MILLI = 128_000, 8_000
"""What the simulator takes for the largest node, in its scores dotprod and bestfit."""
STEP = 50
"""Milli-GPU: what `muster` takes for equally good, so that it fills nodes in order where it makes no difference."""
SCARCITY = 250
"""Milli-GPU that `muster` asks for taking one device of a model that pods bound to it will want whole."""
MAX_INFLATE = 100
NO_MODEL = -2
"""Stands for models that no node has."""
PPM = 1_000_000
UNFIT = -(2**60)
"""Below every score of a node that fits."""


@dataclass(frozen=True, slots=True)
class NodeList:
    """A node list, sorted by name."""

    names: list[str]
    cpu: Longs
    memory: Longs
    devices: Longs
    """Number of devices of each node."""
    model: NDArray[np.int32]
    """Row in `models`, -1 for nodes without devices."""
    models: list[str]

    @property
    def gpu_milli(self) -> int:
        return int(self.devices.sum()) * WHOLE


@dataclass(frozen=True, slots=True)
class Pod:
    """The request of one pod: one shape of a list."""

    cpu: int
    memory: int
    per_device: int
    """Milli-GPU of each of its devices: 1000 for whole ones, less for a share of one; 0 without GPUs."""
    devices: int
    models: tuple[int, ...]
    """Rows of the acceptable models. Empty: any."""
    spec: str
    """The same as the trace has it."""

    @property
    def gpu_milli(self) -> int:
        return self.per_device * self.devices


@dataclass(frozen=True, slots=True)
class Pods:
    """A pod list: its distinct shapes, and the shape of each pod in the order of their names."""

    shapes: list[Pod]
    shape: list[int]
    nowhere: list[str]
    """Models that pods ask for and no node has."""

    @property
    def gpu_milli(self) -> int:
        return sum(self.shapes[row].gpu_milli for row in self.shape)


@dataclass(frozen=True, slots=True)
class PackingResult:
    """The result of one order of arrivals."""

    policy: Policy
    seed: int
    arrived: int
    """Pods."""
    placed: int
    arrived_milli: Longs
    """[arrived] milli-GPU asked for so far, after each arrival."""
    allocated_milli: Longs
    """[arrived] likewise, allocated."""
    capacity_milli: int

    def alloc_at(self, percent: int) -> float | None:
        """GPU allocation in % when the arrived request is `percent` of the capacity, as the published tables have it:
        the mean where it rounds to that, else where it is off by one at most. None where it never came near."""
        asked = np.round(self.arrived_milli * 100 / self.capacity_milli)
        allocated = np.round(self.allocated_milli * 100 / self.capacity_milli, 2)
        near = np.abs(asked - percent)
        for off in (0, 1):
            if (near <= off).any():
                return round(float(allocated[near <= off].mean()), 2)
        return None


# --- reading -------------------------------------------------------------------------------------------------------


def read_nodes(path: Path | str) -> NodeList:
    """A node list of openb, plain or gzip. The first line that is wrong raises TraceError: figures of a list that was
    read in part would not compare with any other."""
    pools, nodes = trace_formats.read_nodes(path, Problems(strict=True))
    pool = {pool.name: pool for pool in pools}
    nodes.sort(key=lambda node: node.id)
    capacity = [pool[node.pool].capacity for node in nodes]
    if not any(each.gpu_milli for each in capacity):
        raise TraceError(str(path), 1, "gpu", "expected nodes with GPUs, found none")
    models = sorted({pool.gpu_model for pool in pools if pool.gpu_model})
    row = {model: row for row, model in enumerate(models)}
    return NodeList(
        names=[node.id for node in nodes],
        cpu=np.array([each.cpu_milli for each in capacity], np.int64),
        memory=np.array([each.memory_mib for each in capacity], np.int64),
        devices=np.array([each.gpu_milli // WHOLE for each in capacity], np.int64),
        model=np.array([row.get(pool[node.pool].gpu_model, -1) for node in nodes], np.int32),
        models=models,
    )


def read_pods(path: Path | str, nodes: NodeList) -> Pods:
    """A pod list of openb, plain or gzip; times are not looked at. The first line that is wrong raises TraceError."""
    jobs = sorted(trace_formats.openb_jobs(TraceFile(path, Problems(strict=True))), key=lambda job: job.id)
    row = {model: row for row, model in enumerate(nodes.models)}
    rows: dict[Pod, int] = {}
    order = []
    nowhere: set[str] = set()
    for job in jobs:
        gpu = job.request.gpu_milli
        here = tuple(row[model] for model in job.gpu_models if model in row)
        if gpu and job.gpu_models and not here:
            nowhere.update(job.gpu_models)
        pod = Pod(
            cpu=job.request.cpu_milli,
            memory=job.request.memory_mib,
            per_device=min(gpu, WHOLE),
            devices=max(gpu // WHOLE, int(gpu > 0)),
            models=(here or (NO_MODEL,)) if gpu and job.gpu_models else (),
            spec="|".join(job.gpu_models) if gpu else "",
        )
        order.append(rows.setdefault(pod, len(rows)))
    if not any(pod.gpu_milli for pod in rows):
        raise TraceError(str(path), 1, "num_gpu", "expected pods with GPUs, found none")
    return Pods(shapes=list(rows), shape=order, nowhere=sorted(nowhere))


# --- the method ----------------------------------------------------------------------------------------------------


def pack(nodes: NodeList, pods: Pods, policy: Policy, *, seed: int = 42, inflate: float = 1.3) -> PackingResult:
    """One order of arrivals, placed by one policy. `inflate` is the GPU request of all arrivals over the capacity."""
    if not 0 < inflate <= MAX_INFLATE:
        raise SpecError("inflate", f"{inflate} is not above 0 and at most {MAX_INFLATE}", "1.3 is as published")
    random = Random(seed)
    order = arrivals(pods, round(inflate * nodes.gpu_milli), random)
    rank = list(range(len(nodes.names)))
    random.shuffle(rank)
    chooser = CHOOSERS[policy](Floor(nodes, rank), pods, random)
    allocated = np.zeros(len(order), np.int64)
    total = placed = 0
    for at, shape in enumerate(counted(order, "pods", len(order))):
        if chooser.place(shape):
            total += pods.shapes[shape].gpu_milli
            placed += 1
        allocated[at] = total
    return PackingResult(
        policy=policy,
        seed=seed,
        arrived=len(order),
        placed=placed,
        arrived_milli=np.cumsum([pods.shapes[shape].gpu_milli for shape in order], dtype=np.int64),
        allocated_milli=allocated,
        capacity_milli=nodes.gpu_milli,
    )


def arrivals(pods: Pods, target_milli: int, random: Random) -> list[int]:
    """Shapes of the pods in the order of their arrival, so many that they ask for `target_milli` of GPU.

    Like the simulator, it compares with the share of one device of the pod that would be next, not with all of them.
    """
    order = list(pods.shape)
    random.shuffle(order)
    total = pods.gpu_milli
    if total < target_milli:
        while True:
            shape = pods.shape[random.randrange(len(pods.shape))]
            if total + pods.shapes[shape].per_device > target_milli:
                return order
            order.append(shape)
            total += pods.shapes[shape].gpu_milli
    while total > target_milli:
        total -= pods.shapes[order.pop(random.randrange(len(order)))].gpu_milli
    return order


def typical(pods: Pods) -> tuple[MixShape, ...]:
    """The most frequent requests that together are TYPICAL_PERCENT of the pods, memory aside; of equally frequent ones
    the largest first, as the simulator sorts them."""
    frequent: Counter[tuple[int, int, int, str, tuple[int, ...]]] = Counter()
    memory: Counter[tuple[int, int, int, str, tuple[int, ...]]] = Counter()
    for row, count in Counter(pods.shape).items():
        pod = pods.shapes[row]
        key = (pod.cpu, pod.per_device, pod.devices, pod.spec, pod.models)
        frequent[key] += count
        memory[key] += count * pod.memory
    mix: list[MixShape] = []
    covered = 0
    for count, key in sorted(((count, key) for key, count in frequent.items()), reverse=True):
        if covered * 100 >= TYPICAL_PERCENT * len(pods.shape):
            break
        covered += count
        cpu, per_device, devices, _, models = key
        mix.append(MixShape(cpu, per_device, devices, models, count, memory[key] // count))
    return tuple(mix)


# --- the nodes as they fill ----------------------------------------------------------------------------------------


class Floor:
    """The nodes in the order in which ties are broken, and what is free on them."""

    def __init__(self, nodes: NodeList, rank: list[int]) -> None:
        order = np.array(rank, np.int64)
        count = nodes.devices[order]
        self.model = nodes.model[order]
        self.models = len(nodes.models)
        self.free = np.zeros((len(RESOURCES), order.size), np.int64)
        """[4, nodes] in the order of `engine.model.specs.RESOURCES`."""
        self.cpu, self.memory, self.gpu = self.free[CPU], self.free[MEMORY], self.free[GPU]
        self.cpu[:], self.memory[:], self.gpu[:] = nodes.cpu[order], nodes.memory[order], count * WHOLE
        self.devices = np.where(np.arange(int(count.max()))[:, None] < count, WHOLE, -1).astype(np.int32)
        """[slots, nodes] free milli-GPU, -1 where a node has no such device."""
        self.slots = np.full(order.size, MAX_PODS)
        """[nodes] how many more pods they take."""
        self.idle = np.bincount(self.model % (self.models + 1), self.gpu, self.models + 1).astype(np.int64)
        """[models + 1] free milli-GPU by model; the last one stands for none."""

    def fits(self, pod: Pod) -> NDArray[np.bool_]:
        """[nodes] where the pod could go now."""
        fits: NDArray[np.bool_] = (self.cpu >= pod.cpu) & (self.memory >= pod.memory) & (self.slots > 0)
        if pod.devices:
            fits &= (self.devices >= pod.per_device).sum(axis=0, dtype=np.int8) >= pod.devices
        if pod.models:
            fits &= np.isin(self.model, pod.models)
        return fits

    def take(self, node: int, pod: Pod, device: int) -> None:
        """Put the pod on the node: a share on that device, whole devices from the first free one on."""
        self.cpu[node] -= pod.cpu
        self.memory[node] -= pod.memory
        self.gpu[node] -= pod.gpu_milli
        self.idle[self.model[node]] -= pod.gpu_milli
        self.slots[node] -= 1
        if 0 < pod.per_device < WHOLE:
            self.devices[device, node] -= pod.per_device
        elif pod.devices:
            self.devices[np.flatnonzero(self.devices[:, node] == WHOLE)[: pod.devices], node] = 0

    def tightest(self, node: int, pod: Pod) -> int:
        """The device of the node with least free among those that hold the pod's share."""
        free = self.devices[:, node]
        return int(np.where(free >= pod.per_device, free, WHOLE + 1).argmin())


class Chooser(Protocol):
    """A policy at work."""

    def place(self, shape: int) -> bool:
        """Place a pod of this shape, if it fits anywhere."""


class RandomPolicy:
    """A node at random of those that fit, a share on a device at random of those that do."""

    def __init__(self, floor: Floor, pods: Pods, random: Random) -> None:
        self.floor = floor
        self.pods = pods.shapes
        self.random = random

    def place(self, shape: int) -> bool:
        pod = self.pods[shape]
        nodes = np.flatnonzero(self.floor.fits(pod))
        if not nodes.size:
            return False
        node = int(nodes[self.random.randrange(nodes.size)])
        fitting = np.flatnonzero(self.floor.devices[:, node] >= pod.per_device)
        device = int(fitting[self.random.randrange(fitting.size)]) if pod.devices else 0
        self.floor.take(node, pod, device)
        return True


class ScorePolicy:
    """The best node by one score of `engine.capacity.scores`, a share on the device with least free."""

    def __init__(self, floor: Floor, pods: Pods, score: Score) -> None:
        self.floor = floor
        self.pods = pods.shapes
        self.score = score
        self.around = Surroundings(largest=(LARGEST_CPU_MILLI, 0, LARGEST_GPU_MILLI, 0))
        count = floor.cpu.size
        nothing = np.zeros(count, np.int32)
        self.nodes = CandidateNodes(
            rows=np.arange(count),
            capacity=floor.free.copy(),
            free=floor.free,
            devices=floor.devices.T,
            model=floor.model,
            price=np.zeros(count, np.int64),
            spot=np.zeros(count, np.bool_),
            zone=nothing,
            distance=nothing,
        )

    def place(self, shape: int) -> bool:
        pod = self.pods[shape]
        whole = pod.devices if pod.per_device == WHOLE else 0
        wish = TaskRequest(cpu=pod.cpu, gpus=whole, share=0 if whole else pod.per_device)
        points = np.where(self.floor.fits(pod), self.score(self.nodes, wish, self.around).astype(np.int64), UNFIT)
        node = int(points.argmax())
        if points[node] == UNFIT:
            return False
        self.floor.take(node, pod, self.floor.tightest(node, pod) if pod.devices else 0)
        return True


@dataclass(frozen=True, slots=True)
class Users:
    """Typical pods that may use one model, grouped by what they ask of its devices."""

    per_device: Longs
    """[groups] milli-GPU of each device."""
    devices: Longs
    """[groups]"""
    served: NDArray[np.float64]
    """[levels + 1, groups] how many of them the free CPU would do for, by levels of CPU."""


class Descent:
    """Fragmentation gradient descent: the node that loses least GPU to pieces that the typical pods cannot use.

    What every shape would be worth on a node is kept, and worked out again for the one node that a pod was put on:
    for all shapes and all devices at once. So the cost of a pod does not grow with the nodes, but for taking the
    maximum. Equal nodes are worked out once.
    """

    strands = False
    """Whether GPU that the free CPU and memory could not drive counts as lost too."""

    def __init__(self, floor: Floor, pods: Pods, random: Random) -> None:
        self.floor = floor
        self.pods = pods.shapes
        self.cpu = np.array([pod.cpu for pod in self.pods], np.int64)
        self.memory = np.array([pod.memory for pod in self.pods], np.int64)
        self.per_device = np.array([pod.per_device for pod in self.pods], np.int64)
        self.count = np.array([pod.devices for pod in self.pods], np.int64)
        self.accepts = np.array([_accepts(pod.models, floor.models) for pod in self.pods])
        self.mix = typical(pods)
        self.weight = sum(shape.count for shape in self.mix)
        self.levels = np.unique(np.array([shape.cpu for shape in self.mix if shape.devices], np.int64))
        self.users = {model: self._users(model) for model in (-1, *range(floor.models))}
        self.averages = (average(self.mix, "cpu"), average(self.mix, "memory"))
        self.known: dict[tuple[int, int, int, bytes], tuple[Longs, Longs]] = {}
        self.worth = np.full((len(self.pods), floor.cpu.size), UNFIT, np.int64)
        """[shapes, nodes] worth of the node for the shape, UNFIT where it does not fit."""
        self.device = np.zeros((len(self.pods), floor.cpu.size), np.int64)
        """[shapes, nodes] the device that a share would get."""
        for node in range(floor.cpu.size):
            self._look_at(node)

    def place(self, shape: int) -> bool:
        worth = self.compared(shape)
        node = int(worth.argmax())
        if self.worth[shape, node] == UNFIT:
            return False
        self.floor.take(node, self.pods[shape], int(self.device[shape, node]))
        self._look_at(node)
        return True

    def compared(self, shape: int) -> Longs:
        """[nodes] what the nodes are worth to the shape now."""
        worth: Longs = self.worth[shape]
        return worth

    def points(self, gain: Longs) -> Longs:
        """Worth of a gain: of milli-GPU less lost, summed over the typical pods by their counts. Published: 100 x
        sigmoid of devices, cut."""
        return (BEST / (1.0 + np.exp(-gain / (self.weight * WHOLE)))).astype(np.int64)

    def _users(self, model: int) -> Users:
        """The typical pods with GPUs that may use the model."""
        groups: dict[tuple[int, int], list[MixShape]] = {}
        for shape in self.mix:
            if shape.devices and (not shape.models or model in shape.models):
                groups.setdefault((shape.per_device, shape.devices), []).append(shape)
        served = np.zeros((self.levels.size + 1, len(groups)))
        for column, group in enumerate(groups.values()):
            for shape in group:
                served[np.searchsorted(self.levels, shape.cpu) + 1 :, column] += shape.count
        per_device, devices = (np.array([key[part] for key in groups], np.int64) for part in (0, 1))
        return Users(per_device, devices, served)

    def _look_at(self, node: int) -> None:
        """Work out again what the node is worth to every shape."""
        floor = self.floor
        devices = floor.devices[:, node]
        key = (int(floor.model[node]), int(floor.cpu[node]), int(floor.memory[node]), devices.tobytes())
        if key not in self.known:
            self.known[key] = self._values(*key[:3], devices.astype(np.int64))
        self.worth[:, node], self.device[:, node] = self.known[key]
        if not floor.slots[node]:
            self.worth[:, node] = UNFIT

    def _values(self, model: int, cpu: int, memory: int, devices: Longs) -> tuple[Longs, Longs]:
        """[shapes] worth of a node in this state, and the device for a share."""
        worth = np.full(len(self.pods), UNFIT, np.int64)
        device = np.zeros(len(self.pods), np.int64)
        fits = (self.cpu <= cpu) & (self.memory <= memory) & self.accepts[:, model]
        fits &= (devices[:, None] >= self.per_device).sum(axis=0, dtype=np.int8) >= self.count
        shared = (self.per_device > 0) & (self.per_device < WHOLE)
        other, share = np.flatnonzero(fits & ~shared), np.flatnonzero(fits & shared)
        slot = np.sort(np.unique(devices, return_index=True)[1]) if share.size else np.zeros(0, np.int64)
        # One variant for the node as it is, one for each other shape, one for each share on each kind of device.
        which = np.concatenate((other, np.tile(share, slot.size)))
        free = np.repeat(devices[slot], share.size)
        left = free - self.per_device[which[other.size :]]
        after = self._lost(
            self.users[model],
            devices,
            cpu - np.concatenate(((0,), self.cpu[which])),
            memory - np.concatenate(((0,), self.memory[which])),
            np.concatenate(((0,), np.full(other.size, WHOLE), free)),
            np.concatenate((np.zeros(1 + other.size, np.int64), left)),
            np.concatenate(((0,), self.count[which])),
        )
        points = self.points(after[0] - after[1:])
        worth[other] = points[: other.size]
        if share.size:
            grid = np.where(left >= 0, points[other.size :], UNFIT).reshape(slot.size, share.size)
            best = grid.argmax(axis=0)
            worth[share] = grid[best, np.arange(share.size)]
            device[share] = slot[best]
        return worth, device

    def _lost(
        self, users: Users, devices: Longs, cpu: Longs, memory: Longs, free: Longs, left: Longs, times: Longs
    ) -> Longs:
        """[variants] GPU lost on a node, as `engine.capacity.scores.fragment` has it, with `cpu` and `memory` free on
        it, after so many (`times`) of its `devices` went from `free` to `left` milli-GPU."""
        room = np.maximum(devices, 0)
        usable = room[:, None] >= users.per_device
        was = (free[:, None] >= users.per_device) * times[:, None]
        stays = (left[:, None] >= users.per_device) * times[:, None]
        count = usable.sum(axis=0) - was + stays
        size = room @ usable - was * free[:, None] + stays * left[:, None]
        # Whole numbers far below 2**53: the sums of floats are exact, in any order.
        served = users.served[np.searchsorted(self.levels, cpu, side="right")]
        used = np.where(count >= users.devices, size * served, 0.0).sum(axis=1).astype(np.int64)
        idle = room.sum() - times * (free - left)
        lost: Longs = self.weight * idle - used
        if self.strands:
            driven = idle
            for quantity, (wanted, gpu) in zip((cpu, memory), self.averages, strict=True):
                if wanted:
                    driven = np.minimum(driven, quantity * gpu // wanted)
            lost = lost + self.weight * (idle - driven)
        return lost


class Muster(Descent):
    """Our own: the gradient of fragment and stranded GPU together (`engine.capacity.scores.gpu_stranding`), and pods
    that are free to choose pay for models that others are bound to.

    A model's scarcity is the part of its free GPU that pods bound to it will ask for while the rest of the capacity
    fills up, if what comes is like the list. Where several models will do for them, each of these gets its part.
    """

    strands = True

    def __init__(self, floor: Floor, pods: Pods, random: Random) -> None:
        super().__init__(floor, pods, random)
        bound: Counter[tuple[int, ...]] = Counter()
        for row, count in Counter(pods.shape).items():
            if pods.shapes[row].models:
                bound[pods.shapes[row].models] += count * pods.shapes[row].gpu_milli
        self.bound = np.array([_accepts(models, floor.models) for models in bound], np.int64)
        """[sets of models that pods are bound to, models]"""
        self.part_ppm = np.array([milli * PPM // pods.gpu_milli for milli in bound.values()], np.int64)
        """[sets] what they ask for, of all that is asked for."""

    def compared(self, shape: int) -> Longs:
        pod = self.pods[shape]
        worth: Longs = self.worth[shape]
        if pod.devices and len(pod.models) != 1 and self.part_ppm.size:
            idle = self.floor.idle
            scarce_ppm = (self.part_ppm * idle.sum() // np.maximum(self.bound @ idle, 1)) @ self.bound
            worth = worth - (SCARCITY * scarce_ppm // PPM * pod.gpu_milli // WHOLE)[self.floor.model]
        return worth // STEP

    def points(self, gain: Longs) -> Longs:
        """Milli-GPU less lost, on average over the typical pods."""
        return gain // self.weight


def _accepts(models: tuple[int, ...], count: int) -> NDArray[np.bool_]:
    """[count + 1] which models will do; the last one stands for none."""
    accepts = np.full(count + 1, not models)
    accepts[[model for model in models if model >= 0]] = True
    return accepts


CHOOSERS: dict[Policy, Callable[[Floor, Pods, Random], Chooser]] = {
    "random": RandomPolicy,
    "dotprod": lambda floor, pods, _: ScorePolicy(floor, pods, dot_product),
    "bestfit": lambda floor, pods, _: ScorePolicy(floor, pods, best_fit),
    "fgd": Descent,
    "muster": Muster,
}
"""Policy -> what works by it."""
