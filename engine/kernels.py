"""Placement of many single tasks in a row, compiled: the search of `engine.capacity` over the same columns, in the same
order, with the same choice of node and devices.

A bucket is a bit for each node of its place, with a bit for every 64 of those that has any, and again: three levels, so
that a node enters and leaves in a few steps and the lowest, or the next, is found in a few. Unlike the heaps of
`engine.buckets` it holds nothing stale. Only buckets that have nodes take up memory: a slot of bits each.

Without numba the same functions run interpreted, for tests alone: `engine.fast` does not use them then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from engine.buckets import SHARE_STEP

try:
    import numba
except ModuleNotFoundError:
    numba = None

Ints = np.ndarray[Any, np.dtype[Any]]
F = TypeVar("F", bound=Callable[..., Any])
NOWHERE = -1
PROBES = 4
STEPS = 1000 // SHARE_STEP
ONE = np.int64(1)
BLOCK = 512
"""Nodes compared at once when looking for what has changed."""
PLACE, POSITION, BUCKET, PART = range(4)
"""Columns of `Index.entry`: NOWHERE for a node that is in no place that is known here; place in the order of rows of
the nodes that have the same home, a place that they are in unless they are kept for somebody; key of the bucket it is
entered in, NOWHERE if in none; largest free part of a device it is entered with, milli-GPU, 0 if with none."""
CPU, MEMORY, DISK, GPUS, SHARE, CPU_CLASS, MEMORY_CLASS, FIRST, PLACES = range(9)
"""Columns of the table of requests; the last two say where the places it may use begin, in `Requests.places`, and how
many there are."""


class Nodes(NamedTuple):
    """Columns of `engine.capacity.Capacity`, by node."""

    free_cpu: Ints
    free_memory: Ints
    free_disk: Ints
    whole: Ints
    partial: Ints
    device_base: Ints
    device_free: Ints
    key: Ints


class Index(NamedTuple):
    """Buckets of all places. A place is one index of the capacity, such as that of the open nodes of a pool."""

    entry: Ints
    """One row a node: its place, its position among those of its home, its bucket, its part (PLACE to PART)."""
    row: Ints
    """The inverse of positions: rows of the nodes of one home after those of another."""
    first_row: Ints
    """By place: where they begin."""
    gpu_bits: Ints
    """Which buckets have any: by place;"""
    cpu_bits: Ints
    """by place and devices;"""
    memory_bits: Ints
    """by place and devices << 6 | CPU class."""
    devices: Ints
    """By place: devices of a node."""
    share_bits: Ints
    """By place, which steps of free parts of devices have any."""
    slot: Ints
    """By place and key: the bucket's slot, 0 while it is empty."""
    spare: Ints
    """By place, the order in which slots are taken into use; 0 is for the slot that was there at first."""
    used: Ints
    """By place: how many are in use."""
    words: Ints
    """The bits of all slots."""
    layout: Ints
    """By place: where its slots begin, words of a slot, words of level 0, words of levels 0 and 1. The first STEPS
    slots of a place are those of the steps."""


class Requests(NamedTuple):
    rows: Ints
    """One row a request."""
    places: Ints


class Touched(NamedTuple):
    """What a batch did to nodes, for those that are entered anywhere: each once, as they were before."""

    mark: Ints
    """By node, 1 while it is in the list; all 0 between batches."""
    node: Ints
    key: Ints
    partial: Ints
    totals: Ints
    """What was gained, by place: milli-CPU, memory MiB, whole devices."""


def compiled(function: F) -> F:
    # Nothing is allocated in here: without numba's runtime, handing arrays around counts no references.
    return function if numba is None else cast(F, numba.njit(cache=True, forceinline=True, _nrt=False)(function))


# -- numbers ----------------------------------------------------------------------------------------------------------

lowest_bit: Callable[[int], int]
"""Position of the lowest bit that is set."""
bit_count: Callable[[int], int]
leading_zeros: Callable[[int], int]

if numba is None:

    def _lowest_bit(bits: int) -> int:
        return (int(bits) & -int(bits)).bit_length() - 1

    def _bit_count(bits: int) -> int:
        return int(bits).bit_count()

    def _leading_zeros(bits: int) -> int:
        return 64 - int(bits).bit_length()

    lowest_bit, bit_count, leading_zeros = _lowest_bit, _bit_count, _leading_zeros

else:
    from llvmlite import ir

    _YES, _NO = ir.Constant(ir.IntType(1), 1), ir.Constant(ir.IntType(1), 0)
    _SIGNATURE = numba.types.int64(numba.types.int64)

    def _cttz(typing_context: Any, bits: Any) -> Any:
        return _SIGNATURE, lambda context, builder, signature, given: builder.cttz(given[0], _YES)

    def _ctpop(typing_context: Any, bits: Any) -> Any:
        return _SIGNATURE, lambda context, builder, signature, given: builder.ctpop(given[0])

    def _ctlz(typing_context: Any, bits: Any) -> Any:
        return _SIGNATURE, lambda context, builder, signature, given: builder.ctlz(given[0], _NO)

    lowest_bit, bit_count, leading_zeros = map(numba.extending.intrinsic, (_cttz, _ctpop, _ctlz))


@compiled
def size_class(value: int) -> int:
    """As `engine.shape.size_class`."""
    if value < 2:
        return value * 2
    bits = 64 - leading_zeros(value)
    return min(bits << 1 | (value >> (bits - 2) & 1), 63)


# -- slots ------------------------------------------------------------------------------------------------------------


@compiled
def put(index: Index, place: int, slot: int, node: int) -> None:
    """Set the node's bit."""
    begin = index.layout[place, 0] + slot * index.layout[place, 1]
    level_1, level_2 = begin + index.layout[place, 2], begin + index.layout[place, 3]
    at = index.entry[node, POSITION]
    index.words[begin + (at >> 6)] |= ONE << (at & 63)
    index.words[level_1 + (at >> 12)] |= ONE << (at >> 6 & 63)
    index.words[level_2 + (at >> 18)] |= ONE << (at >> 12 & 63)


@compiled
def drop(index: Index, place: int, slot: int, node: int) -> bool:
    """Clear the node's bit. Returns whether any are left."""
    begin = index.layout[place, 0] + slot * index.layout[place, 1]
    level_1, level_2 = begin + index.layout[place, 2], begin + index.layout[place, 3]
    at = index.entry[node, POSITION]
    index.words[begin + (at >> 6)] ^= ONE << (at & 63)
    if index.words[begin + (at >> 6)]:
        return True
    index.words[level_1 + (at >> 12)] ^= ONE << (at >> 6 & 63)
    if index.words[level_1 + (at >> 12)]:
        return True
    index.words[level_2 + (at >> 18)] ^= ONE << (at >> 12 & 63)
    word, end = level_2, begin + index.layout[place, 1]
    while word < end and not index.words[word]:
        word += 1
    return bool(word < end)


@compiled
def following(index: Index, place: int, slot: int, node: int) -> int:
    """Lowest row in the slot above `node`, or of all when that is NOWHERE; NOWHERE if there is none."""
    begin = index.layout[place, 0] + slot * index.layout[place, 1]
    level_1, level_2 = begin + index.layout[place, 2], begin + index.layout[place, 3]
    after = 0 if node == NOWHERE else index.entry[node, POSITION] + 1
    word = after >> 6
    if begin + word >= level_1:
        return NOWHERE
    bits = index.words[begin + word] >> (after & 63) << (after & 63)
    if not bits:
        after = word + 1
        word = after >> 6
        if level_1 + word < level_2:
            bits = index.words[level_1 + word] >> (after & 63) << (after & 63)
        if not bits:
            after = word + 1
            word = after >> 6
            while level_2 + word < begin + index.layout[place, 1] and not bits:
                bits = index.words[level_2 + word] >> (after & 63) << (after & 63)
                after = 0
                word += 1
            if not bits:
                return NOWHERE
            word = (word - 1) << 6 | lowest_bit(bits)
            bits = index.words[level_1 + word]
        word = word << 6 | lowest_bit(bits)
        bits = index.words[begin + word]
    return int(index.row[index.first_row[place] + (word << 6 | lowest_bit(bits))])


# -- buckets ----------------------------------------------------------------------------------------------------------


@compiled
def enter(index: Index, node: int, key: int) -> None:
    """Put a node that is in no bucket into this one."""
    place = index.entry[node, PLACE]
    slot = index.slot[place, key]
    if not slot:
        used = index.used[place]
        slot = index.spare[place, used]
        if not slot:
            slot = STEPS + used
        index.used[place] = used + 1
        index.slot[place, key] = slot
        index.memory_bits[place, key >> 6] |= ONE << (key & 63)
        index.cpu_bits[place, key >> 12] |= ONE << (key >> 6 & 63)
        index.gpu_bits[place] |= ONE << (key >> 12)
    put(index, place, slot, node)
    index.entry[node, BUCKET] = key


@compiled
def leave(index: Index, node: int) -> None:
    """Take the node out of its bucket."""
    place, key = index.entry[node, PLACE], index.entry[node, BUCKET]
    index.entry[node, BUCKET] = NOWHERE
    if drop(index, place, index.slot[place, key], node):
        return
    index.used[place] -= 1
    index.spare[place, index.used[place]] = index.slot[place, key]
    index.slot[place, key] = 0
    index.memory_bits[place, key >> 6] ^= ONE << (key & 63)
    if not index.memory_bits[place, key >> 6]:
        index.cpu_bits[place, key >> 12] ^= ONE << (key >> 6 & 63)
        if not index.cpu_bits[place, key >> 12]:
            index.gpu_bits[place] ^= ONE << (key >> 12)


@compiled
def set_partial(index: Index, node: int, partial: int) -> None:
    """Enter the node with that largest free part of a device; 0 takes it out."""
    place, old = index.entry[node, PLACE], index.entry[node, PART]
    index.entry[node, PART] = partial
    step, old_step = partial // SHARE_STEP, old // SHARE_STEP
    if step == old_step and partial and old:
        return
    if old and not drop(index, place, old_step, node):
        index.share_bits[place] ^= ONE << old_step
    if partial:
        index.share_bits[place] |= ONE << step
        put(index, place, step, node)


@compiled
def _differ(one: Ints, other: Ints) -> int:
    """Not 0 when any entries differ."""
    differs = 0
    for at in range(len(one)):
        differs |= one[at] ^ other[at]
    return differs


@compiled
def catch_up(index: Index, key: Ints, partial: Ints, place: Ints) -> int:
    """Enter every node as it is now. `place` is empty when no node has changed its own. Returns how many differed."""
    same = len(place) == 0
    changed = 0
    for begin in range(0, len(key), BLOCK):
        end = min(begin + BLOCK, len(key))
        differs = 0
        entry = index.entry[begin:end]
        differs = _differ(key[begin:end], entry[:, BUCKET]) | _differ(partial[begin:end], entry[:, PART])
        if not same:
            differs |= _differ(place[begin:end], entry[:, PLACE])
        if not differs:
            continue
        for node in range(begin, end):
            there = index.entry[node, PLACE] if same else place[node]
            to = key[node] if there != NOWHERE else NOWHERE
            part = partial[node] if to != NOWHERE else 0
            if (
                to == index.entry[node, BUCKET]
                and part == index.entry[node, PART]
                and there == index.entry[node, PLACE]
            ):
                continue
            changed += 1
            if index.entry[node, BUCKET] != NOWHERE:
                if index.entry[node, PART]:
                    set_partial(index, node, 0)
                leave(index, node)
            index.entry[node, PLACE] = there
            if to != NOWHERE:
                enter(index, node, to)
                if part:
                    set_partial(index, node, part)
    return changed


# -- search -----------------------------------------------------------------------------------------------------------


@compiled
def fits(nodes: Nodes, node: int, want: Ints) -> bool:
    if nodes.free_cpu[node] < want[CPU] or nodes.free_memory[node] < want[MEMORY]:
        return False
    return bool(not want[DISK] or nodes.free_disk[node] >= want[DISK])


@compiled
def walk(nodes: Nodes, index: Index, place: int, want: Ints, gpus: int, probes: int) -> int:
    """As `Capacity._walk`."""
    cpu_floor, memory_floor = want[CPU_CLASS], want[MEMORY_CLASS]
    gpu_bits = index.gpu_bits[place] >> gpus << gpus
    while gpu_bits:
        gpu = lowest_bit(gpu_bits)
        gpu_bits ^= ONE << gpu
        cpu_bits = index.cpu_bits[place, gpu] >> cpu_floor << cpu_floor
        while cpu_bits:
            cpu = lowest_bit(cpu_bits)
            cpu_bits ^= ONE << cpu
            memory_bits = index.memory_bits[place, gpu << 6 | cpu] >> memory_floor << memory_floor
            while memory_bits:
                memory = lowest_bit(memory_bits)
                memory_bits ^= ONE << memory
                slot = index.slot[place, gpu << 12 | cpu << 6 | memory]
                node = following(index, place, slot, NOWHERE)
                if cpu > cpu_floor and memory > memory_floor and not want[DISK]:
                    return node
                left = probes
                while node != NOWHERE:
                    if fits(nodes, node, want):
                        return node
                    left -= 1
                    node = following(index, place, slot, node) if left else NOWHERE
    return NOWHERE


@compiled
def find_share(nodes: Nodes, index: Index, place: int, want: Ints, probes: int) -> int:
    """As `engine.devices.find_share`."""
    floor = want[SHARE] // SHARE_STEP
    bits = index.share_bits[place] >> floor << floor
    while bits:
        step = lowest_bit(bits)
        bits ^= ONE << step
        node = following(index, place, step, NOWHERE)
        left = probes
        while node != NOWHERE:
            if nodes.partial[node] >= want[SHARE] and fits(nodes, node, want):
                return node
            left -= 1
            node = following(index, place, step, node) if left else NOWHERE
    return NOWHERE


@compiled
def find_in(nodes: Nodes, index: Index, place: int, want: Ints) -> int:
    """As `Capacity._find_in`."""
    for probes in (PROBES, 0):
        if want[SHARE]:
            node = find_share(nodes, index, place, want, probes)
            if node != NOWHERE:
                return node
        node = walk(nodes, index, place, want, max(want[GPUS], np.int64(want[SHARE] > 0)), probes)
        if node != NOWHERE:
            return node
    return NOWHERE


@compiled
def find(nodes: Nodes, index: Index, requests: Requests, want: Ints) -> int:
    for at in range(want[FIRST], want[FIRST] + want[PLACES]):
        node = find_in(nodes, index, requests.places[at], want)
        if node != NOWHERE:
            return node
    return NOWHERE


# -- claims -----------------------------------------------------------------------------------------------------------


@compiled
def choose_devices(nodes: Nodes, index: Index, node: int, want: Ints) -> int:
    """As `engine.devices.choose_devices` for one task."""
    if want[SHARE]:
        base, best, best_free = nodes.device_base[node], 0, 1001
        for device in range(index.devices[index.entry[node, PLACE]]):
            free = nodes.device_free[base + device]
            if want[SHARE] <= free < best_free:
                best, best_free = device, free
        return 1 << best
    free, taken = nodes.whole[node], 0
    for _ in range(want[GPUS]):
        low = free & -free
        free ^= low
        taken |= low
    return taken


@compiled
def shift(
    nodes: Nodes, index: Index, touched: Touched, count: int, node: int, want: Ints, devices: int, sign: int
) -> int:
    """Give back one task, or take it where `sign` is -1. Returns the length of the list of touched nodes."""
    place = index.entry[node, PLACE]
    if not touched.mark[node]:
        touched.mark[node] = 1
        touched.node[count] = node
        touched.key[count] = index.entry[node, BUCKET]
        touched.partial[count] = index.entry[node, PART]
        count += 1
    nodes.free_cpu[node] += sign * want[CPU]
    nodes.free_memory[node] += sign * want[MEMORY]
    if want[DISK]:
        nodes.free_disk[node] += sign * want[DISK]
    old = index.entry[node, BUCKET]
    before = old >> 12
    after = before
    if want[GPUS]:
        base, left = nodes.device_base[node], devices
        while left:
            device = lowest_bit(left)
            left = left & (left - 1)
            nodes.device_free[base + device] = 1000 if sign > 0 else 0
        nodes.whole[node] ^= devices
        after += sign * want[GPUS]
    elif want[SHARE]:
        base = nodes.device_base[node]
        device = base + lowest_bit(devices)
        nodes.device_free[device] += sign * want[SHARE]
        if nodes.device_free[device] == 1000:
            nodes.whole[node] |= devices
        else:
            nodes.whole[node] &= ~devices
        after = bit_count(nodes.whole[node])
        partial = 0
        for other in range(base, base + index.devices[index.entry[node, PLACE]]):
            if nodes.device_free[other] < 1000:
                partial = max(partial, nodes.device_free[other])
        nodes.partial[node] = partial
        set_partial(index, node, partial)
    touched.totals[place, 0] += sign * want[CPU]
    touched.totals[place, 1] += sign * want[MEMORY]
    touched.totals[place, 2] += after - before
    key = after << 12 | size_class(nodes.free_cpu[node]) << 6 | size_class(nodes.free_memory[node])
    if key != old:
        nodes.key[node] = key
        leave(index, node)
        enter(index, node, key)
    return count


@compiled
def place_many(
    nodes: Nodes, index: Index, touched: Touched, requests: Requests, batch: Ints, found: Ints, masks: Ints
) -> tuple[int, int]:
    """Claim a node for one task after another, until one fits nowhere. Returns (how many fitted, nodes touched)."""
    count = 0
    placed = 0
    for at in range(len(batch)):
        want = requests.rows[batch[at]]
        node = find(nodes, index, requests, want)
        if node == NOWHERE:
            break
        devices = choose_devices(nodes, index, node, want)
        count = shift(nodes, index, touched, count, node, want, devices, -1)
        found[at] = node
        masks[at] = devices
        placed += 1
    for at in range(count):
        touched.mark[touched.node[at]] = 0
    return placed, count


@compiled
def give_back_many(
    nodes: Nodes, index: Index, touched: Touched, requests: Requests, batch: Ints, where: Ints, masks: Ints
) -> int:
    """Give back one task after another, on nodes that have a place. Returns how many nodes were touched."""
    count = 0
    for at in range(len(batch)):
        count = shift(nodes, index, touched, count, where[at], requests.rows[batch[at]], masks[at], 1)
    for at in range(count):
        touched.mark[touched.node[at]] = 0
    return count
