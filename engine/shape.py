"""What one task asks for, compiled against the pools."""

from __future__ import annotations

from copy import copy

from engine.model import PoolSpec, Resources, TaskGroup


def size_class(value: int) -> int:
    """Two classes to the octave, monotone, at most 63."""
    if value < 2:
        return value * 2
    bits = value.bit_length()
    return min(bits << 1 | (value >> bits - 2 & 1), 63)


class Shape:
    """What one task asks for, compiled against the pools. Equal requests share one Shape."""

    __slots__ = (
        "_limited",
        "booked",
        "cpu",
        "cpu_class",
        "disk",
        "gpu_milli",
        "gpus",
        "memory",
        "memory_class",
        "pool_set",
        "pools",
        "share",
    )

    def __init__(self, group: TaskGroup, pools: list[PoolSpec]) -> None:
        request = group.request
        self.cpu, self.memory, self.gpu_milli, self.disk = request.vector()
        self.gpus, self.share = divmod(self.gpu_milli, 1000)
        self.cpu_class = size_class(self.cpu)
        self.memory_class = size_class(self.memory)
        eligible = [i for i, pool in enumerate(pools) if accepts(group, pool)]
        # Leave devices to those who need them, then take the cheaper pool, then the older one.
        eligible.sort(
            key=lambda i: (pools[i].capacity.gpu_milli > 0 and not self.gpu_milli, pools[i].price_microusd_hour, i)
        )
        self.pools = eligible
        """Rows of the pools whose open nodes it may use, in order of preference."""
        self.pool_set = frozenset(eligible)
        self.booked: tuple[tuple[int, int], ...] = ()
        """(booking, pool row) of kept nodes that it may use besides, in order of preference."""
        self._limited: dict[tuple[tuple[int, ...], tuple[tuple[int, int], ...]], Shape] = {}

    def limited(self, pools: tuple[int, ...], booked: tuple[tuple[int, int], ...]) -> Shape:
        """The same request confined to open nodes of some of its pools, and to kept nodes: (booking, pool row)."""
        if not booked and pools == tuple(self.pools):
            return self
        found = self._limited.get((pools, booked))
        if found is None:
            found = self._limited[pools, booked] = copy(self)
            found.pools = list(pools)
            found.pool_set = frozenset(pools)
            found.booked = booked
            found._limited = {}
        return found

    @property
    def home(self) -> int:
        """The pool of a request that is confined to one."""
        return self.pools[0] if self.pools else self.booked[0][1]

    def most_on(self, capacity: Resources) -> int:
        """How many such tasks an empty node holds."""
        cpu, memory, gpu, disk = capacity.vector()
        counts = [have // want for have, want in ((cpu, self.cpu), (memory, self.memory), (disk, self.disk)) if want]
        if self.gpus:
            counts.append(gpu // 1000 // self.gpus)
        if self.share:
            counts.append(gpu // 1000 * (1000 // self.share))
        return min(counts)


def accepts(group: TaskGroup, pool: PoolSpec) -> bool:
    """Whether an empty node of the pool could hold one task of the group."""
    if group.pools and pool.name not in group.pools:
        return False
    if group.gpu_models and group.request.gpu_milli and pool.gpu_model not in group.gpu_models:
        return False
    return all(have >= want for have, want in zip(pool.capacity.vector(), group.request.vector(), strict=True))
