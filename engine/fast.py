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
from array import array
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from engine.buckets import Moves
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
OTHERS = 16
"""Batches of which more than one in so many tasks is of a kind the kernels do not know are placed one by one."""
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
        # The thread did not come along; what it was importing may be half there. And a child, which is there for one
        # piece of work, does not have anything compiled.
        if self.state in ("idle", "preparing"):
            self.state = "failed"
            self.reason = "the process was forked before kernels were ready"


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
    mirror = mirror_of(capacity, len(shapes))
    return one_by_one(capacity, shapes) if mirror is None else mirror.place_many(capacity, shapes)


def give_back_many(capacity: Capacity, shapes: Sequence[Shape], claims: Sequence[Claim]) -> None:
    """Give back one task of each shape, on the node and devices it had: as `give_back` of the capacity."""
    mirror = mirror_of(capacity, len(shapes))
    if mirror is not None:
        mirror.give_back_many(capacity, shapes, claims)
        return
    for shape, (node, devices) in zip(shapes, claims, strict=True):
        capacity.give_back(node, shape, 1, devices)


def one_by_one(capacity: Capacity, shapes: Sequence[Shape]) -> list[Claim]:
    """As `place_many`, without kernels."""
    claims: list[Claim] = []
    for shape in shapes:
        node = capacity.find(shape)
        if node == NOWHERE:
            break
        claims.append((node, capacity.claim(node, shape, 1)))
    return claims


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
    """The kernels' index of the open nodes of one capacity. Its places are the partitions, in the same order."""

    def __init__(self, capacity: Capacity, kernels: ModuleType) -> None:
        self._kernels = kernels
        self._built = capacity.built
        self._count = 0
        """Nodes it knows."""
        self._any_booked = False
        pools = [capacity.pools[partition.pool] for partition in capacity.partitions]
        self._by_links = np.array([pool.nvlink_group > 0 for pool in pools], bool)
        """Places where devices are chosen in ways that the kernels do not know."""
        self._index = _empty_index(kernels, [pool.capacity for pool in pools], view(capacity.partition))
        self._room = np.diff(np.append(self._index.first_row, len(self._index.row)))
        """Nodes that each place has positions for."""
        self._known = np.zeros(len(pools), np.int64)
        """Nodes that have positions, by place."""
        self._mark = np.zeros(len(self._index.row), np.int8)
        self._row_of: dict[Shape, int] = {}
        self._rows = np.zeros((0, kernels.PLACES + 1), np.int64)
        self._places: Ints = np.zeros(0, np.int32)

    def matches(self, capacity: Capacity) -> bool:
        """Whether it can be brought up to date with the capacity, instead of made anew."""
        if capacity.built is not self._built or len(self._built) != len(self._room):
            return False
        new = view(capacity.partition)[self._count :]
        return not len(new) or bool((np.bincount(new, minlength=len(self._room)) + self._known <= self._room).all())

    def place_many(self, capacity: Capacity, shapes: Sequence[Shape]) -> list[Claim]:
        """As the function of that name."""
        rows = self._rows_of(capacity, shapes)
        others = np.flatnonzero(rows == NOWHERE).tolist()
        if len(others) * OTHERS > len(shapes):
            return one_by_one(capacity, shapes)
        claims: list[Claim] = []
        for other in (*others, len(shapes)):
            claims += self._place_run(capacity, rows[len(claims) : other])
            if len(claims) == other:
                claims += one_by_one(capacity, shapes[other : other + 1])
            if len(claims) <= other:
                break
        return claims

    def _place_run(self, capacity: Capacity, rows: Ints) -> list[Claim]:
        if not len(rows):
            return []
        self._catch_up(capacity)
        nodes, masks = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
        touched = self._touched(len(rows))
        placed, count = self._kernels.place_many(
            self._nodes(capacity), self._index, touched, self._requests(), rows, nodes, masks
        )
        self._note(capacity, touched, count)
        return list(zip(nodes[:placed].tolist(), masks[:placed].tolist(), strict=True))

    def give_back_many(self, capacity: Capacity, shapes: Sequence[Shape], claims: Sequence[Claim]) -> None:
        """As the function of that name."""
        rows = self._rows_of(capacity, shapes)
        self._catch_up(capacity)
        flat = view(array("q", chain.from_iterable(claims)))
        nodes, masks = flat[::2].astype(np.int32), flat[1::2].copy()
        mine = (rows != NOWHERE) & (self._index.entry[nodes, self._kernels.BUCKET] != NOWHERE)
        touched = self._touched(len(rows))
        count = self._kernels.give_back_many(
            self._nodes(capacity), self._index, touched, self._requests(), rows[mine], nodes[mine], masks[mine]
        )
        self._note(capacity, touched, count)
        for at in np.flatnonzero(~mine).tolist():
            node, devices = claims[at]
            capacity.give_back(node, shapes[at], 1, devices)

    def run_empty(self) -> None:
        """Run each kernel on nothing."""
        capacity = Capacity()
        none, no_masks = np.zeros(0, np.int32), np.zeros(0, np.int64)
        self._catch_up(capacity)
        given = (self._nodes(capacity), self._index, self._touched(0), self._requests())
        self._kernels.place_many(*given, none, none, no_masks)
        self._kernels.give_back_many(*given, none, none, no_masks)

    # -- what the kernels see -----------------------------------------------------------------------------------------

    def _nodes(self, capacity: Capacity) -> Any:
        c = capacity
        return self._kernels.Nodes(
            view(c.free_cpu), view(c.free_memory), view(c.free_disk), view(c.whole), view(c.partial),
            view(c.device_base), view(c.device_free), view(c.key),
        )  # fmt: skip

    def _touched(self, most: int) -> Any:
        totals = np.zeros((len(self._room), 3), np.int64)
        columns = (np.empty(most, np.int32), np.empty(most, np.int64), np.empty(most, np.int32))
        return self._kernels.Touched(self._mark, *columns, totals)

    def _requests(self) -> Any:
        return self._kernels.Requests(self._rows, self._places)

    def _rows_of(self, capacity: Capacity, shapes: Sequence[Shape]) -> Ints:
        """Row of each shape in the table of requests, NOWHERE for those that the kernels do not know."""
        if len(self._row_of) > MOST_REQUESTS:
            self._row_of.clear()
        try:
            return view(array("i", map(self._row_of.__getitem__, shapes)))
        except KeyError:
            self._learn(capacity, shapes)
        return view(array("i", map(self._row_of.__getitem__, shapes)))

    def _learn(self, capacity: Capacity, shapes: Sequence[Shape]) -> None:
        for shape in dict.fromkeys(shapes):
            if shape not in self._row_of:
                self._row_of[shape] = len(self._row_of) if self._knows(capacity, shape) else NOWHERE
        rows: list[tuple[int, ...]] = []
        places: list[int] = []
        for s in self._row_of:
            there = capacity.reach(s).open
            rows.append(
                (s.cpu, s.memory, s.disk, s.gpus, s.share, s.cpu_class, s.memory_class, len(places), len(there))
            )
            places += there
        self._rows = np.array(rows, np.int64).reshape(-1, self._kernels.PLACES + 1)
        self._places = np.array(places, np.int32)

    def _knows(self, capacity: Capacity, shape: Shape) -> bool:
        """Whether such a task is placed as the kernels do."""
        if shape.kinds or (shape.gpus and shape.share):
            return False
        reach = capacity.reach(shape)
        return not reach.kept and not (shape.gpu_milli and self._by_links[list(reach.open)].any())

    # -- keeping in step ----------------------------------------------------------------------------------------------

    def _catch_up(self, capacity: Capacity) -> None:
        """Bring the kernels' index up to date with the capacity."""
        if capacity.behind and len(capacity.node_ids) == self._count:
            return
        place: Ints = np.zeros(0, np.int32)
        if len(capacity.node_ids) != self._count or self._any_booked or capacity.booked:
            home = view(capacity.partition)
            self._give_positions(home[self._count :])
            self._any_booked = bool(capacity.booked)
            place = np.where(view(capacity.booking) == OPEN, home, NOWHERE).astype(np.int32)
        self._kernels.catch_up(self._index, view(capacity.key), view(capacity.partial), place)

    def _give_positions(self, homes: Ints) -> None:
        """Positions for nodes that are new, which have these homes."""
        rows = np.arange(self._count, self._count + len(homes))
        for home in np.unique(homes).tolist():
            mine = rows[homes == home]
            at = self._known[home] + np.arange(len(mine))
            self._index.entry[mine, self._kernels.POSITION] = at
            self._index.row[self._index.first_row[home] + at] = mine
            self._known[home] += len(mine)
        self._count += len(homes)

    def _note(self, capacity: Capacity, touched: Any, count: int) -> None:
        """Tell the capacity what kernels did to it."""
        capacity.note_moves(
            Moves(touched.node[:count], touched.key[:count], touched.partial[:count]), touched.totals.tolist()
        )


def _empty_index(kernels: ModuleType, largest: list[Resources], home: Ints) -> Any:
    """An index without nodes, for places whose nodes have at most that much, with room for some more than these."""
    places = len(largest)
    room = (np.bincount(home, minlength=places) * HEADROOM).astype(np.int64) + 64
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
    total = int(room.sum())
    most = int(devices.max(initial=0)) + 1
    # What is not touched of zeroed arrays takes up no memory: of most slots, nothing ever is.
    index = kernels.Index(
        entry=np.zeros((total, kernels.PART + 1), np.int32),
        row=np.zeros(total, np.int32),
        first_row=np.cumsum(room) - room,
        gpu_bits=np.zeros(places, np.int64),
        cpu_bits=np.zeros((places, most), np.int64),
        memory_bits=np.zeros((places, most << 6), np.int64),
        devices=devices,
        share_bits=np.zeros(places, np.int64),
        slot=np.zeros((places, most << 12), np.int32),
        spare=np.zeros((places, int(slots.max(initial=0))), np.int32),
        used=np.zeros(places, np.int64),
        words=np.zeros(int((slots * size).sum()), np.int64),
        layout=np.stack((np.cumsum(slots * size) - slots * size, size, level_0, level_0 + level_1), axis=1),
    )
    index.entry[:, [kernels.PLACE, kernels.BUCKET]] = NOWHERE
    return index


_mirrors: WeakKeyDictionary[Capacity, Mirror] = WeakKeyDictionary()
_asked: WeakKeyDictionary[Capacity, int] = WeakKeyDictionary()
