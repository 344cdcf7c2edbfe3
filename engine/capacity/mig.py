"""MIG: the instances that a device can be cut into, and one number for any set of taken instances.

A device has 7 compute slices and 8 memory slices. An instance of a kind takes a number of each, and its memory slices
begin at one of the kind's legal starts. A layout is a set of instances that fit together. A device in use has a maximal
layout, to which no instance could be added, and keeps it until all of its instances are free.

Source of profiles, counts and starts: NVIDIA Multi-Instance GPU User Guide, "Supported MIG Profiles", and the output of
`nvidia-smi mig -lgip` and `-lgipp`. Profiles with media extensions (`+me`) are left out; they are cut like those
without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from engine.model.columns import Ints
from engine.model.errors import SpecError
from engine.model.specs import GIB, PoolSpec, TaskGroup, device_memory_mib

COMPUTE_SLICES, MEMORY_SLICES = 7, 8


class InstanceSize(NamedTuple):
    """One size of instance."""

    compute: int
    """Compute slices."""
    memory: int
    """Memory slices, side by side."""
    starts: tuple[int, ...]
    """Memory slices at which it may begin."""
    most: int
    """The number of them that a device holds."""


KINDS = (
    InstanceSize(1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
    InstanceSize(1, 2, (0, 2, 4, 6), 4),
    InstanceSize(2, 2, (0, 2, 4), 3),
    InstanceSize(3, 4, (0, 4), 2),
    InstanceSize(4, 4, (0,), 1),
    InstanceSize(7, 8, (0,), 1),
)
MODELS = {
    "A100-40GB": ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
    "A100-80GB": ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "H100-80GB": ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "H200-141GB": ("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
}
"""Model and memory -> what its profiles are called, in the order of KINDS."""
NOT_CUT = 0
"""The layout of a device that is not partitioned."""

Instance = tuple[int, int]
"""(index into KINDS, first memory slice)"""
Layout = tuple[Instance, ...]
"""Instances by first memory slice."""


def fits_with(layout: Layout, instance: Instance) -> bool:
    """True if the instance can be added to the layout."""
    kind, start = instance
    if start not in KINDS[kind].starts:
        return False
    if sum(KINDS[k].compute for k, _ in layout) + KINDS[kind].compute > COMPUTE_SLICES:
        return False
    end = start + KINDS[kind].memory
    return end <= MEMORY_SLICES and all(end <= at or at + KINDS[k].memory <= start for k, at in layout)


def _maximal(layout: Layout = (), start: int = 0) -> Iterator[Layout]:
    """Every maximal layout that begins with these instances and goes on at that memory slice or later."""
    if start == MEMORY_SLICES:
        if not any(fits_with(layout, (kind, at)) for kind, size in enumerate(KINDS) for at in size.starts):
            yield layout
        return
    for kind, size in enumerate(KINDS):
        if fits_with(layout, (kind, start)):
            yield from _maximal((*layout, (kind, start)), start + size.memory)
    yield from _maximal(layout, start + 1)


LAYOUTS: tuple[Layout, ...] = ((), *_maximal())
"""By number, as states and journals hold them: the order must never change. 0: not partitioned."""
MEMBERS = tuple(
    tuple(sum(1 << i for i, (k, _) in enumerate(layout) if k == kind) for kind in range(len(KINDS)))
    for layout in LAYOUTS
)
"""[layout][kind] -> bit mask of the layout's instances of the kind."""
USED_BITS = 7
"""Instances of a layout at most."""
FREE = np.array(
    [[np.bitwise_count(member & ~np.arange(1 << USED_BITS)) for member in members] for members in MEMBERS], np.int8
).transpose(1, 0, 2).reshape(len(KINDS), -1)  # fmt: skip
"""[kind, layout << USED_BITS | mask of instances in use] -> free instances of the kind."""
OPEN_KINDS = bytes(((FREE > 0).T @ (1 << np.arange(len(KINDS)))).astype(np.uint8))
"""[layout << USED_BITS | mask of instances in use] -> bit mask of the kinds of which an instance is free."""
_RICHEST = tuple(
    tuple(
        number
        for number, members in enumerate(MEMBERS)
        if members[kind].bit_count() == max(other[kind].bit_count() for other in MEMBERS)
    )
    for kind in range(len(KINDS))
)
"""[kind] -> the layouts with most instances of the kind."""


def layout_for(kind: int, live: Sequence[int]) -> int:
    """Number of the layout for an idle device that is to have an instance of the kind: as many of it as possible, and
    beside them what is in use most. `live[k]`: how many instances of each kind are in use, which stands for demand.

    Of equals the one that leaves fewest compute slices out, then the one of fewest instances, then the first.
    """

    def worth(number: int) -> tuple[int, int, int, int]:
        kinds = [k for k, _ in LAYOUTS[number]]
        wanted = sum(live[k] * KINDS[k].compute for k in kinds if k != kind)
        return wanted, sum(KINDS[k].compute for k in kinds), -len(kinds), -number

    candidates = _RICHEST[kind]
    return max(candidates, key=worth) if len(candidates) > 1 else candidates[0]


# -- an instance as a number ------------------------------------------------------------------------------------------

CLAIM = 1 << 62
"""Tells a claim of one instance from a bit mask of whole devices, which has at most 62 of them."""


def claim_of(device: int, layout: int, instance: int) -> int:
    """The instance of that index in the layout, on that device of its node. The layout is part of it, so that taking
    it on an idle device cuts the device the same way every time."""
    return CLAIM | layout << 16 | device << 8 | instance


def read_claim(claim: int) -> tuple[int, int, int]:
    """(device, layout, instance) of a claim."""
    return claim >> 8 & 0xFF, claim >> 16 & 0xFF, claim & 0xFF


def device_mask(claim: int) -> int:
    """Bit mask of the devices that a claim is on, whole or in part."""
    return 1 << (claim >> 8 & 0xFF) if claim & CLAIM else claim


# -- a device as a number ---------------------------------------------------------------------------------------------

WHOLE = 1000
"""The number of an idle device. Less than that and not negative: what is free of one that is shared, in milli-GPU.
Negative: it is partitioned. Every claim takes something off, and gives just that back."""
_CODE = 10
"""Bits below which there is milli-GPU."""
_FULL = WHOLE - ((USED_BITS << USED_BITS | (1 << USED_BITS) - 1) << _CODE)
"""The number of a device on which no instance is free: all seven of layout 1 are in use."""


def burden(claim: int) -> int:
    """The amount that an instance's claim takes off the number of its device: its layout and the bit of the instance.
    The sum over instances holds their layout as many times as bits are set, so it can be read back.
    """
    _, layout, instance = read_claim(claim)
    return (layout << USED_BITS) + (1 << instance) << _CODE


def burdens(claims: Ints) -> Ints:
    """`burden` of each claim; 0 for bit masks of whole devices."""
    taken = ((claims >> 16 & 0xFF) << USED_BITS) + (np.int64(1) << (claims & 0x3F)) << _CODE
    return np.where(claims & CLAIM != 0, taken, 0)


def device_masks(claims: Ints) -> Ints:
    """`device_mask` of each claim."""
    return np.where(claims & CLAIM != 0, np.int64(1) << (claims >> 8 & 0x3F), claims)


def number_of(layout: int, used: int) -> int:
    """The number of a partitioned device."""
    return WHOLE - ((used.bit_count() * layout << USED_BITS) + used << _CODE)


def _states(numbers: Ints) -> Ints:
    """Layout << USED_BITS | mask of instances in use, of partitioned devices."""
    code = WHOLE - numbers >> _CODE
    used = code & (1 << USED_BITS) - 1
    return np.asarray((code >> USED_BITS) // np.maximum(np.bitwise_count(used), 1) << USED_BITS | used)


def read_number(number: int) -> tuple[int, int]:
    """(layout, mask of instances in use) of a device."""
    code = WHOLE - number >> _CODE if number < 0 else 0
    used = code & (1 << USED_BITS) - 1
    return (code >> USED_BITS) // used.bit_count() if used else NOT_CUT, used


def instances_of(number: int, kind: int) -> int:
    """The number of instances of the kind that a device has free, or could have if it is idle; 0 for the kind -1."""
    if kind < 0 or 0 <= number < WHOLE:
        return 0
    layout, used = read_number(number)
    return (MEMBERS[layout][kind] & ~used).bit_count() if used else KINDS[kind].most


def instances_in(numbers: Ints, kinds: Ints) -> Ints:
    """`instances_of` each device."""
    cut = numbers < 0
    found = np.where(numbers == WHOLE, _MOST[kinds], 0)
    found[cut] = FREE[kinds[cut], _states(numbers[cut])]
    return np.where(kinds >= 0, found, 0)


_MOST = np.array([kind.most for kind in KINDS], np.int64)


def throughout(numbers: Ints, first: Ints, last: Ints) -> Ints:
    """The numbers, by window and device, of devices as they are throughout the rows from `first` to before `last`:
    what is free in all of them. One that has different layouts, or is partitioned and shared in turn, offers nothing.
    Columns of other quantities, which are never negative, may be among them."""
    edges = np.column_stack((first, last)).ravel()

    def over(ufunc: np.ufunc, values: np.ndarray[Any, Any]) -> Ints:
        return np.asarray(ufunc.reduceat(np.concatenate((values, values[-1:])), edges, axis=0)[::2])

    found = over(np.minimum, numbers)
    columns = np.flatnonzero((found < 0).any(axis=0))
    if len(columns):
        part = numbers[:, columns]
        cut = part < 0
        states = np.where(cut, _states(part), 0)
        used = over(np.bitwise_or, states & (1 << USED_BITS) - 1)
        layouts = states >> USED_BITS
        layout = over(np.maximum, layouts)
        clash = over(np.minimum, np.where(cut, layouts, len(LAYOUTS))) != layout
        clash |= over(np.logical_or, (part >= 0) & (part < WHOLE))
        codes = (np.bitwise_count(used).astype(np.int64) * layout << USED_BITS) + used << _CODE
        found[:, columns] = np.where(layout > 0, np.where(clash, _FULL, WHOLE - codes), found[:, columns])
    return found


# -- words ------------------------------------------------------------------------------------------------------------

_FAMILY = re.compile(r"(?<![A-Z0-9])(A100|H100|H200)(?![A-Z0-9])")
_MEMORY_SLACK = 10
"""Percent by which a device may have less or more memory than its name says: drivers keep some, and GB are not GiB."""


def model_of(pool: PoolSpec) -> str | None:
    """Key of MODELS for the pool's devices, by the name of the model and their memory; None when it is none of them."""
    family = _FAMILY.search(pool.gpu_model.upper())
    memory = device_memory_mib(pool)
    for model in MODELS if family else ():
        name, size = model.removesuffix("GB").split("-")
        if family and name == family[1] and abs(memory - int(size) * GIB) * 100 <= int(size) * GIB * _MEMORY_SLACK:
            return model
    return None


def profiles_of(pool: PoolSpec) -> tuple[str, ...]:
    """The names of instances of the pool's devices, in the order of KINDS; empty when they are never partitioned."""
    model = model_of(pool) if pool.mig else None
    return MODELS[model] if model else ()


def kind_in(pool: PoolSpec, profile: str) -> int:
    """Index into KINDS of the profile on the pool's devices; -1 when they have none of that name."""
    profiles = profiles_of(pool)
    return profiles.index(profile) if profile in profiles else -1


def gpu_milli_of(profile: str) -> int:
    """The charge of an instance: its part of the compute slices, a whole device for all of them; 0 when there is no
    such profile.
    """
    for profiles in MODELS.values():
        if profile in profiles:
            return KINDS[profiles.index(profile)].compute * 1000 // COMPUTE_SLICES
    return 0


def check_pool(pool: PoolSpec, where: str) -> None:
    """Refuse MIG where it is not known how the devices are cut. Raises SpecError."""
    if not pool.mig or model_of(pool):
        return
    if not pool.capacity.gpu_milli:
        raise SpecError(f"{where}.mig", "its nodes have no devices", "Leave mig out, or give capacity.gpu_milli")
    memory = f"{device_memory_mib(pool)} MiB" if device_memory_mib(pool) else "unknown memory"
    raise SpecError(
        f"{where}.mig",
        f"the MIG profiles of '{pool.gpu_model[:64]}' with {memory} are not known",
        f"Known: {', '.join(MODELS)}. Use one as gpu_model, or leave mig out",
    )


def charged(group: TaskGroup, pools: Sequence[PoolSpec], where: str) -> TaskGroup:
    """The group with what its MIG instance is charged as. Raises SpecError for a profile that no device has which the
    group may use in these pools, and for another charge."""
    if not group.mig:
        return group
    milli = gpu_milli_of(group.mig)
    if not any(group.mig in profiles_of(pool) for pool in pools):
        what = "is a MIG profile that no device here has" if milli else "is not a MIG profile that is known"
        raise SpecError(f"{where}.mig", f"'{group.mig[:64]}' {what}", offered(pools))
    if not any(group.mig in profiles_of(pool) and _may_use(group, pool) for pool in pools):
        raise SpecError(
            f"{where}.mig", f"no pool or device model it accepts has the profile {group.mig}", offered(pools)
        )
    if group.request.gpu_milli not in (0, milli):
        raise SpecError(
            f"{where}.request.gpu_milli",
            f"{group.request.gpu_milli} contradicts the MIG profile {group.mig}, which counts as {milli}",
            f"Leave it out, or give {milli}",
        )
    return msgspec.structs.replace(group, request=msgspec.structs.replace(group.request, gpu_milli=milli))


def _may_use(group: TaskGroup, pool: PoolSpec) -> bool:
    return pool.name in (group.pools or (pool.name,)) and pool.gpu_model in (group.gpu_models or (pool.gpu_model,))


def offered(pools: Sequence[PoolSpec]) -> str:
    """The profiles that exist, by pool."""
    parts = [f"{pool.name}: {', '.join(names)}" for pool in pools if (names := profiles_of(pool))]
    return "Profiles by pool: " + "; ".join(parts) if parts else "No pool here has mig set: ask for whole devices"
