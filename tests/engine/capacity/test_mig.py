"""MIG layouts against NVIDIA's tables, and what is said of requests that no device can satisfy."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from engine.capacity import mig
from engine.capacity.mig import KINDS, LAYOUTS, MODELS
from engine.model.errors import SpecError
from engine.model.specs import PoolSpec, Resources, TaskGroup

PUBLISHED = (
    "7", "43", "421", "4111", "33", "321", "3111", "223", "2221", "22111", "2113", "21121", "211111", "1123", "11221",
    "112111", "11113", "111121", "1111111",
)  # fmt: skip
"""Compute slices of the instances by position, as the MIG User Guide draws the A100's configurations. (It draws them
without the profile of one compute slice and two memory slices, which came later.)"""
COUNTS = {"1g.5gb": 7, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1}
"""Instances available, from the guide's table of A100-40GB."""
MEMORY_EIGHTHS = (1, 2, 2, 4, 4, 8)
WIDE = 1
"""The kind of one compute slice and two memory slices."""


def pool(model: str, *, mig: bool = True, memory: int = 0, name: str = "p", devices: int = 8) -> PoolSpec:
    capacity = Resources(cpu_milli=64_000, memory_mib=512_000, gpu_milli=1000 * devices)
    return PoolSpec(name=name, capacity=capacity, gpu_model=model, mig=mig, gpu_memory_mib=memory)


def drawn(layout: mig.Layout) -> str:
    return "".join(str(KINDS[kind].compute) for kind, _ in layout)


def test_the_layouts_of_an_a100_are_the_published_ones():
    derived = [drawn(layout) for layout in LAYOUTS if layout and all(kind != WIDE for kind, _ in layout)]
    assert sorted(derived) == sorted(PUBLISHED)


def test_every_set_of_instances_that_fits_is_part_of_a_layout():
    """Against all subsets of all placements, checked slice by slice."""
    placements = [(kind, start) for kind, size in enumerate(KINDS) for start in size.starts]
    parts = {frozenset(part) for layout in LAYOUTS for n in range(8) for part in itertools.combinations(layout, n)}
    sets = [frozenset[mig.Instance]()]
    fitting = set(sets)
    while sets:
        found = sets.pop()
        for placement in placements:
            more = found | {placement}
            taken = [start + i for kind, start in more for i in range(KINDS[kind].memory)]
            compute = sum(KINDS[kind].compute for kind, _ in more)
            legal = len(taken) == len(set(taken)) and max(taken) < 8 and compute <= 7
            if legal and more not in fitting:
                fitting.add(more)
                sets.append(more)
    assert fitting == parts
    assert all(not any(set(layout) < other for other in fitting) for layout in LAYOUTS if layout), "maximal"


def test_profiles_have_the_published_sizes_and_counts():
    assert dict(zip(MODELS["A100-40GB"], (kind.most for kind in KINDS), strict=True)) == COUNTS
    for model, profiles in MODELS.items():
        size = int(model.split("-")[1][:-2])
        for profile, kind, eighths in zip(profiles, KINDS, MEMORY_EIGHTHS, strict=True):
            compute, memory = profile.split("g.")
            assert (int(compute), eighths) == (kind.compute, kind.memory)
            assert abs(int(memory[:-2]) - size * eighths / 8) <= 0.5, f"{profile} of {model}"
    for number, kind in enumerate(KINDS):
        assert max(sum(k == number for k, _ in layout) for layout in LAYOUTS) == kind.most


def test_the_order_of_the_layouts_is_that_of_states_and_journals():
    digest = hashlib.sha256(repr(LAYOUTS).encode()).hexdigest()
    assert digest == "b97c6be6eec3df2e0c6e45ec4fa1511f9a14b10be060dc73e972770bc29326b1", (
        "claims in journals name layouts by number"
    )


def test_4g_and_3g_exclude_each_other_on_the_lower_half():
    assert not mig.fits_with(((3, 0),), (4, 0))
    assert not mig.fits_with(((4, 0),), (4, 0))
    assert mig.fits_with(((4, 0),), (3, 4))
    assert not mig.fits_with((), (2, 6)), "2g would need compute slices that are not there"


@pytest.mark.parametrize(
    ("kind", "live", "beside"),
    [
        (0, {}, "1111111"),
        (4, {}, "43"),
        (4, {0: 10, 3: 1}, "4111"),
        (4, {2: 5}, "421"),
        (2, {}, "2221"),
        (5, {0: 9}, "7"),
    ],
)
def test_a_new_layout_has_most_of_what_is_asked_and_beside_it_what_is_in_use(kind, live, beside):
    assert drawn(LAYOUTS[mig.layout_for(kind, [live.get(k, 0) for k in range(len(KINDS))])]) == beside


def test_the_last_slice_goes_to_what_is_in_use():
    wide = LAYOUTS[mig.layout_for(2, [0, 3, 0, 0, 0, 0])]
    assert wide[-1] == (WIDE, 6)


def test_a_claim_reads_as_it_was_written():
    for device, layout in itertools.product((0, 5, 61), (1, 44, 78)):
        for instance in range(len(LAYOUTS[layout])):
            claim = mig.claim_of(device, layout, instance)
            assert mig.read_claim(claim) == (device, layout, instance)
            assert 2**62 <= claim < 2**63, "an int64 that no mask of 62 devices is"
            assert mig.device_mask(claim) == 1 << device
    assert mig.device_mask(0b1011) == 0b1011


@pytest.mark.parametrize(
    ("model", "memory", "known"),
    [
        ("A100", 0, "A100-40GB"),
        ("A100", 81_920, "A100-80GB"),
        ("NVIDIA-A100-SXM4-80GB", 0, "A100-80GB"),
        ("a100_40gb", 0, "A100-40GB"),
        ("H100", 0, "H100-80GB"),
        ("NVIDIA H100 80GB HBM3", 81_559, "H100-80GB"),
        ("H200", 143_771, "H200-141GB"),
        ("H100", 96_000, None),
        ("L4", 0, None),
        ("A1000", 0, None),
        ("", 40_960, None),
    ],
)
def test_the_model_is_told_by_name_and_memory(model, memory, known):
    assert mig.model_of(pool(model, memory=memory)) == known


def test_the_charge_is_the_part_of_the_compute_slices():
    h100 = pool("H100")
    charges = {}
    for profile in MODELS["H100-80GB"]:
        group = mig.charged(TaskGroup(request=Resources(cpu_milli=1), mig=profile), [h100], "here")
        charges[profile] = group.request.gpu_milli
    assert charges == {"1g.10gb": 142, "1g.20gb": 142, "2g.20gb": 285, "3g.40gb": 428, "4g.40gb": 571, "7g.80gb": 1000}


@pytest.mark.parametrize(
    ("group", "pools", "where", "says"),
    [
        (TaskGroup(request=Resources(), mig="1g"), [pool("H100")], "g.mig", "p: 1g.10gb, 1g.20gb, 2g.20gb"),
        (TaskGroup(request=Resources(), mig="1g.5gb"), [pool("H100")], "g.mig", "that no device here has"),
        (TaskGroup(request=Resources(), mig="1g.10gb"), [pool("H100", mig=False)], "g.mig", "No pool here has mig"),
        (TaskGroup(request=Resources(), mig="1g.10gb", pools=("q",)), [pool("H100")], "g.mig", "no pool or device"),
        (TaskGroup(request=Resources(), mig="1g.10gb", gpu_models=("A",)), [pool("H100")], "g.mig", "no pool or"),
        (
            TaskGroup(request=Resources(gpu_milli=1000), mig="2g.20gb"), [pool("H100")], "g.request.gpu_milli",
            "counts as 285",
        ),
    ],
)  # fmt: skip
def test_what_no_device_can_satisfy_is_refused_with_what_there_is(group, pools, where, says):
    with pytest.raises(SpecError) as refused:
        mig.charged(group, pools, "g")
    assert where in str(refused.value)
    assert says in f"{refused.value.problem} {refused.value.remedy}"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (pool("L4"), "MIG profiles of 'L4'"),
        (pool("H100", memory=96_000), "96000 MiB"),
        (pool("", devices=0), "no devices"),
    ],
)
def test_a_pool_whose_devices_cannot_be_cut_is_refused(spec, says):
    with pytest.raises(SpecError, match=says):
        mig.check_pool(spec, "pools[0]")
