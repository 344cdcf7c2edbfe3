"""The compiled extra: many single tasks placed in one call, where numba is installed (`pip install 'muster[fast]'`).

What it decides is what `engine.capacity` decides, node by node and device by device: whether the extra is there, and
since when, can be seen in nothing but the time it takes. Nobody waits for a compiler: the first batch that would pay
has the kernels compiled by a process of its own, at low priority, into a cache of the user; until they are ready, and
wherever a request is of a kind that they do not know, the plain path serves.

A `Mirror` is the kernels' index of one capacity. It is brought up to date from the capacity's columns before a batch,
and the capacity's own index after it, both by what has changed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from engine.buckets import PoolIndex
from engine.capacity import NOWHERE, OPEN, Capacity
from engine.columns import view
from engine.model import Resources
from engine.shape import Shape, size_class

LEAST = 64
"""Tasks below which one at a time is quicker."""
NODES_A_TASK = 50
"""Making a mirror of so many nodes costs as much as placing one task plainly: it is made when that is earned back."""
HEADROOM = 1.25
"""Room for nodes to come, of those there are."""
MOST_REQUESTS = 4096
"""Different requests remembered."""
CACHE_VARIABLE = "MUSTER_KERNEL_CACHE"
"""Environment variable: folder of compiled kernels; the user's cache folder by default."""
Claim = tuple[int, int]
"""(node row, device mask)"""
Ints = np.ndarray[Any, np.dtype[Any]]


# -- kernels ----------------------------------------------------------------------------------------------------------


class Extra:
    """Whether there are compiled kernels yet. `state` is one of absent, idle, preparing, ready, failed."""

    def __init__(self) -> None:
        self.state = "idle" if find_spec("numba") else "absent"
        self.reason = ""
        """Why it failed."""
        self.kernels: ModuleType | None = None
        """The kernels, once they run without compiling anything."""
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._after_fork)

    def prepare(self) -> None:
        """Have the kernels compiled or loaded in the background, if that was not asked for before."""
        if self.state == "idle":
            self.state = "preparing"
            self._thread = threading.Thread(target=self._prepare, name="kernels", daemon=True)
            self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Whether the kernels are ready, after at most so long: for benchmarks."""
        self.prepare()
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self.state == "ready"

    def _prepare(self) -> None:
        try:
            folder = cache_folder()
            done = folder / f"compiled-{_version()}"
            if not done.exists():
                # A process of its own: compiling would hold this one's interpreter lock for seconds.
                command = [sys.executable, "-c", "from engine import fast; fast.compile_now()"]
                environment = os.environ | {CACHE_VARIABLE: str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
                outcome = subprocess.run(
                    command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
                )
                if outcome.returncode:
                    raise RuntimeError(outcome.stderr.strip().splitlines()[-1] if outcome.stderr.strip() else "killed")
            self.kernels = load()
            self.state = "ready"
        except Exception as error:  # whatever the compiler meets: the plain path goes on
            self.reason = f"{type(error).__name__}: {error}"
            self.state = "failed"

    def _after_fork(self) -> None:
        # The thread did not come along; what it was importing may be half there.
        if self.state == "preparing":
            self.state = "failed"
            self.reason = "the process was forked while kernels were made ready"


def cache_folder() -> Path:
    """Where compiled kernels are kept: readable and writable by the user alone, for they are run as they are."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if not chosen:
        import platformdirs

        chosen = str(Path(platformdirs.user_cache_dir("muster")) / "kernels")
    folder = Path(chosen)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def compile_now() -> None:
    """Compile all kernels into the cache and say so there. Takes seconds."""
    if hasattr(os, "nice"):
        os.nice(10)
    load()
    (cache_folder() / f"compiled-{_version()}").touch()


def load() -> ModuleType:
    """The kernels, each run once so that it is compiled, or read from the cache."""
    import numba

    numba.config.CACHE_DIR = str(cache_folder())
    from engine import kernels

    mirror = Mirror(Capacity(), kernels)
    mirror.run_empty()
    return kernels


def _version() -> str:
    """Differs whenever code compiled before may not be run: source, compiler, interpreter, processor."""
    from importlib.metadata import version

    import llvmlite.binding

    source = Path(__file__).with_name("kernels.py")
    parts = (
        source.read_text(encoding="utf-8"), str(source), str(source.stat().st_mtime_ns), version("numba"), sys.version,
        version("numpy"), llvmlite.binding.get_host_cpu_name(), str(sorted(llvmlite.binding.get_host_cpu_features())),
    )  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


extra = Extra()


# -- placement --------------------------------------------------------------------------------------------------------


def place_many(capacity: Capacity, shapes: Sequence[Shape]) -> list[Claim]:
    """Claim a node for one task of each shape in turn, up to the first that fits nowhere: exactly what `find` and
    `claim` of the capacity give one after the other. The claims stand."""
    claims: list[Claim] = []
    while len(claims) < len(shapes):
        mirror = mirror_of(capacity, len(shapes) - len(claims))
        if mirror is not None:
            claims += mirror.place_many(capacity, shapes[len(claims) :])
        # One that the kernels do not know, or that does not fit; all of them where there are no kernels.
        for shape in shapes[len(claims) : len(claims) + 1] if mirror is not None else shapes[len(claims) :]:
            node = capacity.find(shape)
            if node == NOWHERE:
                return claims
            claims.append((node, capacity.claim(node, shape, 1)))
    return claims


def give_back_many(capacity: Capacity, shapes: Sequence[Shape], claims: Sequence[Claim]) -> None:
    """Give back one task of each shape, on the node and devices it had."""
    mirror = mirror_of(capacity, len(shapes))
    if mirror is not None:
        mirror.give_back_many(capacity, shapes, claims)
        return
    for shape, (node, devices) in zip(shapes, claims, strict=True):
        capacity.give_back(node, shape, 1, devices)


def mirror_of(capacity: Capacity, tasks: int) -> Mirror | None:
    """The mirror to use for a batch of so many tasks; None when plain code is as quick, or all there is."""
    if tasks < LEAST or extra.state in ("absent", "failed"):
        return None
    if extra.kernels is None:
        extra.prepare()
        return None
    mirror = _mirrors.get(capacity)
    if mirror is None or not mirror.matches(capacity):
        asked = _asked[capacity] = _asked.get(capacity, 0) + tasks
        if asked * NODES_A_TASK < len(capacity.node_ids):
            return None
        mirror = _mirrors[capacity] = Mirror(capacity, extra.kernels)
    return mirror


class Mirror:
    """The kernels' index of one capacity."""

    def __init__(self, capacity: Capacity, kernels: ModuleType) -> None:
        self._kernels = kernels
        self._pools = len(capacity.pools)
        self._nodes_known = 0
        self._any_booked = False
        home = self._homes(capacity)
        self._devices_of_place = np.array([pool.capacity.gpu_milli // 1000 for pool in capacity.pools], np.int64)
        self._index = _empty_index(kernels, [pool.capacity for pool in capacity.pools], home)
        self._room = np.diff(np.append(self._index.first_row, len(self._index.row)))
        """Nodes that each place has positions for."""
        self._known = np.zeros(len(self._room), np.int64)
        """Nodes that each place has given positions to."""
        self._mark = np.zeros(len(self._index.place), np.int8)
        self._devices = np.zeros(0, np.int64)
        self._row_of: dict[Shape, int] = {}
        self._rows = np.zeros((0, kernels.PLACES + 1), np.int64)
        self._places: Ints = np.zeros(0, np.int32)

    def matches(self, capacity: Capacity) -> bool:
        """Whether it can be brought up to date with the capacity, instead of made anew."""
        if len(capacity.pools) != self._pools or len(capacity.node_ids) > len(self._mark):
            return False
        new = self._homes(capacity)[self._nodes_known :]
        return bool((np.bincount(new, minlength=self._pools) + self._known <= self._room).all())

    def place_many(self, capacity: Capacity, shapes: Sequence[Shape]) -> list[Claim]:
        """As the function of that name, up to the first that the kernels do not know."""
        batch = self._batch(capacity, shapes)
        if not len(batch):
            return []
        self._catch_up(capacity)
        found = np.empty(len(batch), np.int32)
        masks = np.empty(len(batch), np.int64)
        touched = self._touched(len(batch))
        placed, count = self._kernels.place_many(
            self._nodes(capacity), self._index, touched, self._requests(), batch, found, masks
        )
        self._bring_up(capacity, touched, count)
        return list(zip(found[:placed].tolist(), masks[:placed].tolist(), strict=True))

    def give_back_many(self, capacity: Capacity, shapes: Sequence[Shape], claims: Sequence[Claim]) -> None:
        batch = self._batch(capacity, shapes)
        self._catch_up(capacity)
        where, masks = np.array(claims, np.int64).reshape(-1, 2)[: len(batch)].T
        known = self._index.place[where] != NOWHERE
        touched = self._touched(len(batch))
        count = self._kernels.give_back_many(
            self._nodes(capacity), self._index, touched, self._requests(),
            batch[known], where[known].astype(np.int32), np.ascontiguousarray(masks[known]),
        )  # fmt: skip
        self._bring_up(capacity, touched, count)
        for at in (*np.flatnonzero(~known).tolist(), *range(len(batch), len(shapes))):
            node, devices = claims[at]
            capacity.give_back(node, shapes[at], 1, devices)

    def run_empty(self) -> None:
        """Run each kernel on nothing."""
        capacity = Capacity()
        none = np.zeros(0, np.int32)
        self._catch_up(capacity)
        given = (self._nodes(capacity), self._index, self._touched(0), self._requests())
        self._kernels.place_many(*given, none, none, np.zeros(0, np.int64))
        self._kernels.give_back_many(*given, none, none, np.zeros(0, np.int64))

    # -- what the kernels see -------------------------------------------------------------------------------------

    def _nodes(self, capacity: Capacity) -> Any:
        c = capacity
        return self._kernels.Nodes(
            view(c.free_cpu), view(c.free_memory), view(c.free_disk), view(c.whole), view(c.partial),
            view(c.device_base), view(c.device_free), view(c.key), self._devices,
        )  # fmt: skip

    def _touched(self, most: int) -> Any:
        return self._kernels.Touched(
            self._mark,
            np.empty(most, np.int32),
            np.empty(most, np.int64),
            np.empty(most, np.int32),
            np.zeros((len(self._room), 3), np.int64),
        )

    def _requests(self) -> Any:
        return self._kernels.Requests(self._rows, self._places)

    def _batch(self, capacity: Capacity, shapes: Sequence[Shape]) -> Ints:
        """Row of each shape in the table of requests, up to the first that the kernels do not know."""
        rows = [self._row_of.get(shape, NOWHERE) for shape in shapes]
        if NOWHERE in rows:
            if len(self._row_of) > MOST_REQUESTS:
                self._row_of.clear()
            new = [shape for shape in dict.fromkeys(shapes) if shape not in self._row_of and _known(shape)]
            for shape in new:
                self._row_of[shape] = len(self._row_of)
            self._tabulate()
            rows = [self._row_of.get(shape, NOWHERE) for shape in shapes]
            if NOWHERE in rows:
                del rows[rows.index(NOWHERE) :]
        return np.array(rows, np.int32)

    def _tabulate(self) -> None:
        rows, places = [], []
        for s in self._row_of:
            rows.append(
                (s.cpu, s.memory, s.disk, s.gpus, s.share, s.cpu_class, s.memory_class, len(places), len(s.pools))
            )
            places += s.pools
        self._rows = np.array(rows, np.int64).reshape(-1, self._kernels.PLACES + 1)
        self._places = np.array(places, np.int32)

    # -- keeping in step ------------------------------------------------------------------------------------------

    def _homes(self, capacity: Capacity) -> Ints:
        """By node, the place it belongs to while nobody has booked it."""
        return view(capacity.pool)

    def _catch_up(self, capacity: Capacity) -> None:
        """Bring the kernels' index up to date with the capacity."""
        place: Ints = np.zeros(0, np.int32)
        if len(capacity.node_ids) != self._nodes_known or self._any_booked or capacity.booked:
            home = self._homes(capacity)
            self._give_positions(home[self._nodes_known :])
            self._any_booked = bool(capacity.booked)
            place = np.where(view(capacity.booking) == OPEN, home, NOWHERE).astype(np.int32)
        self._kernels.catch_up(self._index, view(capacity.key), view(capacity.partial), place)

    def _give_positions(self, homes: Ints) -> None:
        """Positions for nodes that are new, which have these homes."""
        rows = np.arange(self._nodes_known, self._nodes_known + len(homes))
        for home in np.unique(homes).tolist():
            mine = rows[homes == home]
            at = self._known[home] + np.arange(len(mine))
            self._index.position[mine] = at
            self._index.row[self._index.first_row[home] + at] = mine
            self._known[home] += len(mine)
        self._devices = np.append(self._devices, self._devices_of_place[homes])
        self._nodes_known += len(homes)

    def _bring_up(self, capacity: Capacity, touched: Any, count: int) -> None:
        """Bring the capacity's index up to date with what the kernels did to its columns."""
        nodes = touched.node[:count]
        place = self._index.place[nodes]
        new, old = self._index.key[nodes], touched.key[:count]
        moved = np.flatnonzero(new != old)
        by_place = place[moved].astype(np.int64) << 32
        for bucket, less in zip(*_counted(by_place | old[moved]), strict=True):
            _place_of(capacity, bucket >> 32).remove(bucket & 0xFFFFFFFF, less)
        rows = nodes[moved]
        buckets = by_place | new[moved]
        order = np.lexsort((rows, buckets))
        names, counts = _counted(buckets)
        entries = rows[order].tolist()
        begin = 0
        for bucket, more in zip(names, counts, strict=True):
            index, key = _place_of(capacity, bucket >> 32), bucket & 0xFFFFFFFF
            index.insert_many(key, entries[begin : begin + more])
            capacity.tidy(index, key)
            begin += more
        for at, (cpu, memory, devices) in enumerate(touched.totals.tolist()):
            index = _place_of(capacity, at)
            index.free_cpu += cpu
            index.free_memory += memory
            index.free_devices += devices


def _place_of(capacity: Capacity, place: int) -> PoolIndex:
    return capacity.indexes[place]


def _empty_index(kernels: ModuleType, largest: list[Resources], home: Ints) -> Any:
    """An index without nodes, for places whose nodes have at most that much, with room for some more than these."""
    places = len(largest)
    count = np.bincount(home, minlength=places)
    room = (count * HEADROOM).astype(np.int64) + 64
    level_0 = -(-room // 64)
    level_1 = -(-level_0 // 64)
    level_2 = -(-level_1 // 64)
    size = level_0 + level_1 + level_2
    devices = np.array([have.gpu_milli // 1000 for have in largest], np.int64)
    keys = [
        (have.gpu_milli // 1000 + 1) * (size_class(have.cpu_milli) + 1) * (size_class(have.memory_mib) + 1)
        for have in largest
    ]
    slots = np.minimum(np.array(keys, np.int64), room) + kernels.STEPS
    begin = np.cumsum(slots * size) - slots * size
    total = int(room.sum())
    most = int(devices.max(initial=0)) + 1
    # What is not touched of zeroed arrays takes up no memory: of most slots, nothing ever is.
    return kernels.Index(
        place=np.full(total, NOWHERE, np.int32),
        position=np.zeros(total, np.int32),
        row=np.zeros(total, np.int32),
        first_row=np.cumsum(room) - room,
        key=np.full(total, NOWHERE, np.int64),
        partial=np.zeros(total, np.int32),
        gpu_bits=np.zeros(places, np.int64),
        cpu_bits=np.zeros((places, most), np.int64),
        memory_bits=np.zeros((places, most << 6), np.int64),
        share_bits=np.zeros(places, np.int64),
        slot=np.zeros((places, most << 12), np.int32),
        spare=np.zeros((places, int(slots.max(initial=0))), np.int32),
        used=np.zeros(places, np.int64),
        words=np.zeros(int((slots * size).sum()), np.int64),
        layout=np.stack((begin, size, level_0, level_0 + level_1), axis=1),
    )


def _known(shape: Shape) -> bool:
    """Whether the kernels can place such a task."""
    return not shape.booked and not (shape.gpus and shape.share)


def _counted(values: Ints) -> tuple[list[int], list[int]]:
    names, counts = np.unique(values, return_counts=True)
    return names.tolist(), counts.tolist()


_mirrors: WeakKeyDictionary[Capacity, Mirror] = WeakKeyDictionary()
_asked: WeakKeyDictionary[Capacity, int] = WeakKeyDictionary()
