"""Devices: close together, shares, MIG instances, and all of them mixed in one cell against a scan of every node."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace
from random_cells import SOME, Fork, Life, Submit, live, lives

from engine.capacity import mig
from engine.capacity.devices import check_devices, closest
from engine.capacity.index import NOWHERE, Capacity
from engine.capacity.task_shapes import Shape
from engine.model.errors import SpecError
from engine.model.specs import NodeSpec, NodeState, PoolSpec, Resources, TaskGroup

NODE = Resources(cpu_milli=64_000, memory_mib=512_000, gpu_milli=8000)
POOLS = (
    PoolSpec(name="a100", capacity=NODE, gpu_model="A100-80GB", mig=True, nvlink_group=4),
    PoolSpec(name="old", capacity=Resources(cpu_milli=16_000, gpu_milli=2000), gpu_model="A100-40GB", mig=True),
    PoolSpec(name="h100", capacity=NODE, gpu_model="H100"),
    PoolSpec(name="l4", capacity=Resources(cpu_milli=8000, gpu_milli=1000), gpu_model="L4"),
    PoolSpec(name="cpu", capacity=Resources(cpu_milli=8000)),
)
PROFILES = ("1g.5gb", "1g.10gb", "1g.20gb", "2g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")


def cell(nodes: int, pools: tuple[PoolSpec, ...] = POOLS) -> Capacity:
    capacity = Capacity()
    for pool in pools:
        capacity.add_pool(pool)
    for i in range(nodes):
        capacity.add_node(NodeSpec(id=f"n{i}", pool=pools[i % len(pools)].name), 0)
    return capacity


def shape(capacity: Capacity, gpu: int = 0, profile: str = "", cpu: int = 100) -> Shape:
    request = Resources(cpu_milli=cpu, gpu_milli=gpu or mig.gpu_milli_of(profile))
    return Shape(TaskGroup(request=request, mig=profile), capacity.pools)


def cut(capacity: Capacity, node: int, device: int) -> str:
    """Compute slices of the device's instances, those in use in brackets."""
    at = capacity.device_base[node] + device
    layout, used = mig.LAYOUTS[capacity.device_layout[at]], capacity.device_used[at]
    sizes = [mig.KINDS[kind].compute for kind, _ in layout]
    return "".join(f"[{size}]" if used >> i & 1 else f"{size}" for i, size in enumerate(sizes))


# -- close together ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "want", "size", "taken"),
    [
        (0b1111_1111, 2, 4, 0b0000_0011),
        (0b1111_0110, 2, 4, 0b0000_0110),
        (0b1111_0111, 4, 4, 0b1111_0000),
        (0b0111_0111, 4, 4, 0b0001_0111),
        (0b11_01_10_11, 3, 2, 0b00_00_10_11),
        (0b11_01_11_11, 3, 2, 0b00_01_00_11),
        (0b1010_1010, 2, 0, 0b0000_1010),
        (0b1110_0001, 1, 4, 0b0000_0001),
    ],
)
def test_whole_devices_come_from_the_fewest_groups_and_leave_the_others_whole(free, want, size, taken):
    assert f"{closest(free, want, size):b}" == f"{taken:b}"


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(free=st.integers(1, 255), size=st.sampled_from([1, 2, 4, 8]), data=st.data())
def test_no_choice_is_of_fewer_groups_or_leaves_a_fitting_group_with_less(free, size, data):
    want = data.draw(st.integers(1, free.bit_count()))
    taken = closest(free, want, size)
    assert taken & ~free == 0
    assert taken.bit_count() == want
    groups = [(1 << size) - 1 << first for first in range(0, 8, size)]
    holding = sorted(((free & group).bit_count() for group in groups), reverse=True)
    fewest = next(n for n in range(1, len(groups) + 1) if sum(holding[:n]) >= want)
    used = [group for group in groups if taken & group]
    assert len(used) == fewest
    if fewest == 1:
        assert (free & used[0]).bit_count() == min(have for have in holding if have >= want)


def test_a_node_with_a_whole_group_is_preferred_to_a_fuller_one_without():
    capacity = cell(0, (POOLS[0],))
    for i in range(40):
        capacity.add_node(NodeSpec(id=f"n{i}", pool="a100"), 0)
    one, four = shape(capacity, 1000), shape(capacity, 4000)
    for node in range(39):
        for device in (0, 1, 4, 5):
            capacity.take(node, one, 1, 1 << device)
    # Four devices are free on each of 39 nodes, though two here and two there.
    assert capacity.find(four) == 39
    assert capacity.claim(39, four, 1) == 0b0000_1111
    assert capacity.claim(39, four, 1) == 0b1111_0000
    assert capacity.find(four) == 0, "apart is better than not at all"
    assert capacity.claim(0, four, 1) == 0b1100_1100


def test_tasks_on_one_node_each_get_a_group_of_their_own():
    capacity = cell(1)
    assert capacity.claim(0, shape(capacity, 3000), 2) == 0b0111_0111


def test_shares_fill_a_device_and_then_break_into_the_group_with_least_left():
    capacity = cell(1)
    capacity.take(0, shape(capacity, 1000), 1, 0b0010_0000)
    share = shape(capacity, 400)
    assert [capacity.claim(0, share, 1) for _ in range(5)] == [1 << 4, 1 << 4, 1 << 6, 1 << 6, 1 << 7]


@pytest.mark.parametrize(("group", "devices"), [(3, 8), (16, 8), (-1, 8)])
def test_groups_that_do_not_divide_the_devices_are_refused(group, devices):
    with pytest.raises(SpecError, match="nvlink_group"):
        check_devices(PoolSpec(name="p", capacity=Resources(gpu_milli=1000 * devices), nvlink_group=group), "pools[0]")


# -- MIG --------------------------------------------------------------------------------------------------------------


def test_instances_come_from_devices_that_are_cut_before_another_is():
    capacity = cell(1)
    two, one, three = (shape(capacity, profile=name) for name in ("2g.20gb", "1g.10gb", "3g.40gb"))
    first = capacity.claim(0, two, 1)
    assert cut(capacity, 0, 0) == "[2]221"
    capacity.claim(0, one, 1)
    assert cut(capacity, 0, 0) == "[2]22[1]"
    other = capacity.claim(0, one, 1)
    assert (cut(capacity, 0, 0), cut(capacity, 0, 1)) == ("[2]22[1]", "[1]111111"), "never larger than asked"
    capacity.claim(0, three, 1)
    assert cut(capacity, 0, 2) == "[3]3"
    assert list(capacity.devices(0)) == [0, 0, 0, *[1000] * 5]
    capacity.give_back(0, one, 1, other)
    assert cut(capacity, 0, 1) == "", "idle again"
    assert capacity.claim(0, shape(capacity, 1000), 1) == 0b10, "and whole, in the broken group"
    capacity.give_back(0, two, 1, first)
    assert cut(capacity, 0, 0) == "222[1]", "the layout stays while anything is in use"


def test_a_cut_device_serves_no_other_requests():
    capacity = cell(1, (PoolSpec(name="p", capacity=Resources(gpu_milli=1000), gpu_model="H100", mig=True),))
    claim = capacity.claim(0, shape(capacity, profile="1g.10gb", cpu=0), 1)
    for other in (shape(capacity, 1000, cpu=0), shape(capacity, 100, cpu=0), shape(capacity, profile="2g.20gb", cpu=0)):
        assert capacity.find(other) == NOWHERE
        assert capacity.slots(other) == 0
    assert capacity.slots(shape(capacity, profile="1g.10gb", cpu=0)) == 6
    capacity.give_back(0, shape(capacity, profile="1g.10gb", cpu=0), 1, claim)
    assert capacity.find(shape(capacity, 1000, cpu=0)) == 0


def test_the_same_name_is_another_size_on_another_model():
    capacity = cell(10)
    profile = shape(capacity, profile="1g.10gb")
    assert capacity.slots(profile) == 2 * (8 * 7 + 2 * 4)
    assert cut(capacity, 1, 0) == ""
    capacity.claim(1, profile, 1)
    assert cut(capacity, 1, 0) == "[1]111"


# -- everything at once -----------------------------------------------------------------------------------------------

SIZES = [(gpu, "") for gpu in (0, 250, 300, 700, 1000, 2000, 3000, 8000)] + [(0, profile) for profile in PROFILES]


def fitting(capacity: Capacity, wanted: Shape) -> set[int]:
    """Every ready node that takes one task, by looking at each device."""
    found = set()
    for node in range(len(capacity.node_ids)):
        if capacity.state[node] != NodeState.READY or capacity.pool[node] not in wanted.pool_set:
            continue
        devices = list(capacity.devices(node))
        if wanted.mig:
            kind = mig.kind_in(capacity.pools[capacity.pool[node]], wanted.mig)
            base = capacity.device_base[node]
            states = [(capacity.device_layout[base + i], capacity.device_used[base + i]) for i in range(len(devices))]
            held = any(
                k == kind and not used >> i & 1
                for layout, used in states
                for i, (k, _) in enumerate(mig.LAYOUTS[layout])
            )
            enough = 1000 in devices or held
        else:
            enough = max(devices, default=0) >= wanted.share and devices.count(1000) >= wanted.gpus
        if enough and capacity.free_cpu[node] >= wanted.cpu:
            found.add(node)
    return found


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.sampled_from(SIZES), min_size=2, max_size=6), seed=st.integers(0, 1000), nodes=st.integers(1, 12)
)
def test_a_search_finds_a_fitting_node_exactly_when_there_is_one(sizes, seed, nodes):
    capacity = cell(nodes)
    rng = random.Random(seed)
    shapes = [shape(capacity, gpu, profile, rng.choice([1, 100, 4000])) for gpu, profile in sizes]
    live: list[tuple[int, Shape, int]] = []
    for _ in range(100):
        wanted = rng.choice(shapes)
        fits = fitting(capacity, wanted)
        node = capacity.find(wanted)
        assert (node in fits) if fits else node == NOWHERE
        assert fits == {n for n in range(nodes) if capacity.usable(n, wanted) and capacity.fits(n, wanted)}
        before = capacity.slots(wanted)
        if node != NOWHERE and rng.random() < 0.7:
            live.append((node, wanted, capacity.claim(node, wanted, 1)))
            assert capacity.slots(wanted) == before - 1
        elif live:
            node, wanted, devices = live.pop(rng.randrange(len(live)))
            capacity.give_back(node, wanted, 1, devices)
        if rng.random() < 0.1:
            capacity.set_state(rng.randrange(nodes), rng.choice([NodeState.READY, NodeState.CORDONED]), 0)
    for node, wanted, devices in live:
        capacity.give_back(node, wanted, 1, devices)
    assert [capacity.free_vector(n) for n in range(nodes)] == [cell(nodes).free_vector(n) for n in range(nodes)]
    assert not any(capacity.device_layout)
    assert not any(capacity.device_used)


@settings(max_examples=examples(30), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_what_is_found_depends_on_the_state_alone_not_on_how_it_came_about(seed):
    rng = random.Random(seed)
    capacity = cell(12)
    shapes = [shape(capacity, gpu, profile) for gpu, profile in rng.sample(SIZES, 5)]
    live: list[tuple[int, Shape, int]] = []
    for _ in range(200):
        wanted = rng.choice(shapes)
        node = capacity.find(wanted)
        if node != NOWHERE and rng.random() < 0.6:
            live.append((node, wanted, capacity.claim(node, wanted, 1)))
        elif live:
            node, wanted, devices = live.pop(rng.randrange(len(live)))
            capacity.give_back(node, wanted, 1, devices)
    restarted, replayed = Capacity(), cell(12)
    restarted.load(capacity.dump())
    for node, wanted, devices in rng.sample(live, len(live)):
        replayed.take(node, wanted, 1, devices)
    assert replayed.dump() == capacity.dump(), "claims say all, in whatever order they are taken"
    for wanted in shapes * 10:
        node = capacity.find(wanted)
        assert restarted.find(wanted) == replayed.find(wanted) == node
        if node != NOWHERE:
            claims = {c.claim(node, wanted, 1) for c in (capacity, restarted, replayed)}
            assert len(claims) == 1


class Devices(RuleBasedStateMachine):
    """Whatever is taken and given back: layouts are legal, slices disjoint, and a layout stays while it is in use."""

    def __init__(self) -> None:
        super().__init__()
        self.capacity = cell(0)
        self.live: list[tuple[int, Shape, int]] = []
        self.before: list[tuple[int, int]] = []

    @initialize(nodes=st.integers(1, 8))
    def begin(self, nodes: int) -> None:
        self.capacity = cell(nodes)

    @rule(size=st.sampled_from(SIZES), count=st.integers(1, 4))
    def place(self, size: tuple[int, str], count: int) -> None:
        wanted = shape(self.capacity, *size)
        for _ in range(count):
            node = self.capacity.find(wanted)
            if node != NOWHERE:
                self.live.append((node, wanted, self.capacity.claim(node, wanted, 1)))

    @rule(data=st.data())
    def end(self, data: Any) -> None:
        if self.live:
            node, wanted, devices = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
            self.capacity.give_back(node, wanted, 1, devices)

    @rule(number=st.integers(0, 100), state=st.sampled_from([NodeState.READY, NodeState.DRAINING]))
    def turn(self, number: int, state: NodeState) -> None:
        self.capacity.set_state(number % len(self.capacity.node_ids), state, 0)

    @rule()
    def fork(self) -> None:
        self.capacity = self.capacity.copy()

    @rule()
    def restart(self) -> None:
        dumped = self.capacity.dump()
        self.capacity = Capacity()
        self.capacity.load(dumped)

    @invariant()
    def slices_are_disjoint(self) -> None:
        capacity = self.capacity
        held: dict[int, list[mig.Instance]] = {}
        whole: set[int] = set()
        for node, wanted, devices in self.live:
            base = capacity.device_base[node]
            if wanted.mig:
                device, layout, instance = mig.read_claim(devices)
                held.setdefault(base + device, []).append(mig.LAYOUTS[layout][instance])
                kind = mig.kind_in(capacity.pools[capacity.pool[node]], wanted.mig)
                assert mig.LAYOUTS[layout][instance][0] == kind
            elif wanted.gpus:
                mine = {base + i for i in range(devices.bit_length()) if devices >> i & 1}
                assert not mine & whole
                whole |= mine
        for at, instances in held.items():
            slices = [start + i for kind, start in instances for i in range(mig.KINDS[kind].memory)]
            assert len(slices) == len(set(slices))
            assert max(slices) < 8
            assert sum(mig.KINDS[kind].compute for kind, _ in instances) <= 7
            assert at not in whole
            assert capacity.device_free[at] == 0
            layout = mig.LAYOUTS[capacity.device_layout[at]]
            used = [instance for i, instance in enumerate(layout) if capacity.device_used[at] >> i & 1]
            assert sorted(instances) == sorted(used)
        assert [at for at, layout in enumerate(capacity.device_layout) if layout] == sorted(held)

    @invariant()
    def layouts_in_use_stay(self) -> None:
        now = list(zip(self.capacity.device_layout, self.capacity.device_used, strict=True))
        for (layout, used), (new, still) in zip(self.before, now, strict=False):
            assert not (used and still) or layout == new
        self.before = now


Devices.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None, derandomize=True)
test_every_reachable_layout_is_legal = Devices.TestCase


# -- whole lives ------------------------------------------------------------------------------------------------------

PARTS = {250: "1g.10gb", 333: "3g.40gb", 500: "2g.20gb", 2000: "4g.40gb"}


def with_instances(life: Life) -> Life:
    """The same life where devices can be cut and are linked in pairs, and half of the parts asked for are instances."""
    models = {"A": "A100-80GB", "B": "H100", "C": "L4"}

    def pool(spec: PoolSpec) -> PoolSpec:
        model = models.get(spec.gpu_model, "")
        return replace(spec, gpu_model=model, mig=model not in ("", "L4"), nvlink_group=2 if model else 0)

    def group(spec: TaskGroup) -> TaskGroup:
        profile = PARTS.get(spec.request.gpu_milli, "") if (spec.count + spec.request.cpu_milli // 500) % 2 else ""
        request = replace(spec.request, gpu_milli=0) if profile else spec.request
        accepted = tuple(models[model] for model in spec.gpu_models)
        return replace(spec, gpu_models=accepted, mig=profile, request=request)

    def changed(operation: Any) -> Any:
        if isinstance(operation, Fork):
            return dataclasses.replace(operation, operations=tuple(map(changed, operation.operations)))
        if not isinstance(operation, Submit):
            return operation
        specs = [replace(draft.spec, groups=tuple(map(group, draft.spec.groups))) for draft in operation.drafts]
        drafts = zip(operation.drafts, specs, strict=True)
        return Submit(tuple(dataclasses.replace(draft, spec=spec) for draft, spec in drafts))

    cell = replace(life.cell, pools=tuple(map(pool, life.cell.pools)))
    return dataclasses.replace(life, cell=cell, operations=tuple(map(changed, life.operations)))


@settings(SOME, max_examples=examples(40))
@given(lives().map(with_instances))
def test_whatever_happens_instances_are_legal_and_nothing_is_lost(life: Life) -> None:
    live(life)


@settings(SOME, max_examples=examples(10))
@given(lives(durable=True).map(with_instances))
def test_the_journal_brings_instances_back(life: Life) -> None:
    live(life)


@pytest.mark.slow
@settings(SOME, max_examples=examples(3000))
@given(lives().map(with_instances))
def test_three_thousand_lives_with_instances(life: Life) -> None:
    live(life)
