"""What one task asks for, compiled against the pools."""

from __future__ import annotations

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
        self.pool_set = frozenset(eligible)

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
