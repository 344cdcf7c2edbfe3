"""The queue tree against its formulas, worked out anew from the list of all charges."""

from __future__ import annotations

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.admission.definitions import check_change, check_queues
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.events import BORROWED, BURST
from engine.model.specs import HOUR_MS, BurstSpec, FlavorQuota, QueueMode, QueueSpec
from engine.state.queue_tree import NO_LIMIT, UNLIMITED, Charge, Lack, QueueTree

CPU, GPU = 0, 2
WINDOW, COOLDOWN = 40, 10
quotas = st.dictionaries(st.sampled_from(["cpu_milli", "gpu_milli"]), st.integers(0, 12), max_size=2)
vectors = st.tuples(st.integers(0, 8), st.just(0), st.integers(0, 8), st.just(0))
pools = st.sampled_from(["a100", "h100", "elsewhere"])
parts = st.lists(st.tuples(pools, vectors), min_size=1, max_size=2)


@st.composite
def queue_specs(draw, name: str, parent: str) -> QueueSpec:
    """A valid spec; queues without a cohort have nothing to borrow from or lend to."""
    limits = quotas if parent else st.just({})
    flavors = tuple(
        FlavorQuota(pool=pool, nominal=draw(quotas), borrowing_limit=draw(limits), lending_limit=draw(limits))
        for pool in draw(st.lists(st.sampled_from(["a100", "h100"]), max_size=2, unique=True))
    )
    nominal, borrowing = draw(quotas), draw(limits)
    burst = None
    if draw(st.booleans()) and (borrowing or not parent):
        over = {resource: draw(st.integers(0, 9)) for resource in (borrowing if parent else nominal)}
        limit = {name: nominal.get(name, 0) + borrowing.get(name, 0) + more for name, more in over.items()}
        burst = BurstSpec(limit=limit, window_ms=WINDOW, cooldown_ms=COOLDOWN) if limit else None
    return QueueSpec(
        name=name, parent=parent, nominal=nominal, borrowing_limit=borrowing, lending_limit=draw(limits),
        flavors=flavors, burst=burst,
    )  # fmt: skip


@st.composite
def trees(draw) -> list[QueueSpec]:
    """Up to 7 queues, at most 4 deep; each hangs below an earlier one or is a root."""
    specs: list[QueueSpec] = []
    depth = {"": 0}
    for i in range(draw(st.integers(1, 7))):
        parent = draw(st.sampled_from([name for name, levels in depth.items() if levels < 4]))
        depth[f"q{i}"] = depth[parent] + 1
        specs.append(draw(queue_specs(f"q{i}", parent)))
    return specs


def planted(specs: list[QueueSpec]) -> QueueTree:
    tree = QueueTree()
    for spec in specs:
        tree.add(spec)
    return tree


def leaves(specs: list[QueueSpec]) -> list[str]:
    return [spec.name for spec in specs if not any(other.parent == spec.name for other in specs)]


class Plain:
    """A list of what is charged; everything else follows from it by the formulas, with names for rows and slots."""

    def __init__(self, specs: list[QueueSpec]) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.charged: list[tuple[str, Charge]] = []

    def path(self, name: str) -> list[str]:
        found = []
        while name:
            found.append(name)
            name = self.specs[name].parent
        return found

    def below(self, name: str) -> list[str]:
        return [other for other in self.specs if self.specs[other].parent == name]

    def given(self, name: str, slot: tuple[str, str], field: str) -> int | None:
        pool, resource = slot
        spec = self.specs[name]
        for quota in [flavor for flavor in spec.flavors if flavor.pool == pool] if pool else [spec]:
            return getattr(quota, field).get(resource)
        return None

    def limited(self, name: str, slot: tuple[str, str]) -> bool:
        root = self.path(name)[-1]
        return any(
            self.given(other, slot, "nominal") is not None for other in self.specs if self.path(other)[-1] == root
        )

    def quota(self, name: str, slot: tuple[str, str]) -> int:
        lent = sum(self.quota(child, slot) - self.local(child, slot) for child in self.below(name))
        return (self.given(name, slot, "nominal") or 0) + lent

    def local(self, name: str, slot: tuple[str, str]) -> int:
        lends = self.given(name, slot, "lending_limit")
        return 0 if lends is None else max(0, self.quota(name, slot) - lends)

    def used(self, name: str, slot: int) -> int:
        return sum(dict(charge).get(slot, 0) for queue, charge in self.charged if name in self.path(queue))

    def drawn(self, name: str, slot: int, named: tuple[str, str]) -> int:
        if not self.below(name):
            return self.used(name, slot)
        return sum(max(0, self.drawn(child, slot, named) - self.local(child, named)) for child in self.below(name))

    def ceiling(self, name: str, slot: tuple[str, str], bursting: bool) -> int:
        spec, most = self.specs[name], NO_LIMIT
        borrows = self.given(name, slot, "borrowing_limit")
        if not self.limited(name, slot):
            return NO_LIMIT
        if borrows is not None or not spec.parent:
            most = self.quota(name, slot) + (borrows or 0)
        if bursting and spec.burst is not None and not slot[0] and slot[1] in spec.burst.limit:
            most = max(most, spec.burst.limit[slot[1]] - self.kept_below(name, slot))
        return most

    def kept_below(self, name: str, slot: tuple[str, str]) -> int:
        return sum(self.local(child, slot) + self.kept_below(child, slot) for child in self.below(name))


def refused(tree: QueueTree, plain: Plain, queue: str, charge: Charge, now_ms: int) -> bool:
    """Whether some vertex would draw more because of the charge, and then more than its ceiling."""
    before = {
        (name, slot): plain.drawn(name, slot, tree.named_slot(slot)) for name in plain.path(queue) for slot, _ in charge
    }
    plain.charged.append((queue, charge))
    found = False
    for (name, slot), drawn in before.items():
        after = plain.drawn(name, slot, tree.named_slot(slot))
        bursting = tree.burst_state(tree.row(name), now_ms) != "cooldown"
        found |= after > drawn and after > plain.ceiling(name, tree.named_slot(slot), bursting)
    plain.charged.pop()
    return found


def flags(tree: QueueTree, plain: Plain, queue: str, charge: Charge) -> int:
    """The flags of a charge that was made last, by what the vertices drew before it and draw now."""
    found = 0
    for slot, _ in charge:
        named = tree.named_slot(slot)
        if not plain.limited(queue, named) or plain.used(queue, slot) <= plain.quota(queue, named):
            continue
        found = found or BORROWED
        for name in plain.path(queue):
            after = plain.drawn(name, slot, named)
            last = plain.charged.pop()
            grew = after > plain.drawn(name, slot, named)
            plain.charged.append(last)
            if grew and after > plain.ceiling(name, named, bursting=False):
                found = BURST
    return found


def check_figures(tree: QueueTree, plain: Plain, now_ms: int) -> None:
    for name in plain.specs:
        row = tree.row(name)
        assert tree.running[row] == sum(queue == name for queue, _ in plain.charged)
        for slot in range(tree.slots):
            named, at = tree.named_slot(slot), row * tree.slots + slot
            assert tree.used[at] == plain.used(name, slot)
            assert tree.drawn[at] == plain.drawn(name, slot, named)
            assert tree.guaranteed(row, slot) == plain.quota(name, named)
            assert tree.local[at] == plain.local(name, named)
            nominal = plain.given(name, named, "nominal") or 0
            assert tree.nominal_at(row, slot) == (nominal if plain.limited(name, named) else UNLIMITED)
            bursting = tree.burst_state(row, now_ms) != "cooldown"
            assert tree.ceiling_at(row, slot, now_ms) == plain.ceiling(name, named, bursting)


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(specs=trees(), data=st.data())
def test_every_figure_and_answer_follows_from_the_formulas(specs: list[QueueSpec], data) -> None:
    tree, plain, now = planted(specs), Plain(specs), 0
    for _ in range(data.draw(st.integers(1, 14))):
        step = data.draw(st.sampled_from(["charge", "charge", "charge", "return", "change", "wait"]))
        if step == "charge":
            queue = data.draw(st.sampled_from(leaves(specs)))
            row, charge = tree.leaf(queue), tree.charge_of(data.draw(parts))
            lack = tree.lack(row, charge, now)
            assert (lack is not None) == refused(tree, plain, queue, charge, now)
            if lack is None:
                foretold = tree.flags_of(row, charge)
                tree.charge(row, charge, now)
                plain.charged.append((queue, charge))
                assert flags(tree, plain, queue, charge) == foretold
        elif step == "return" and plain.charged:
            queue, charge = plain.charged.pop(data.draw(st.integers(0, len(plain.charged) - 1)))
            tree.give_back(tree.row(queue), charge, now)
        elif step == "change":
            old = data.draw(st.sampled_from(specs))
            spec = data.draw(queue_specs(old.name, old.parent))
            expected = tree.over_if(spec, now)
            tree.change(spec)
            plain.specs[old.name] = spec
            over = {row: tree.over(row, now) for row in range(len(specs))}
            assert expected == {row: excess for row, excess in over.items() if excess}
        else:
            now += data.draw(st.integers(0, WINDOW))
        check_figures(tree, plain, now)
    for queue, charge in plain.charged:
        tree.give_back(tree.row(queue), charge, now)
    assert set(tree.used) <= {0}
    assert set(tree.drawn) <= {0}, "what was charged is returned, all the way up"


@st.composite
def busy_trees(draw) -> tuple[QueueTree, int]:
    """A tree some time after the start, with everything charged that was asked for and allowed."""
    specs = draw(trees())
    tree, now = planted(specs), 0
    for _ in range(draw(st.integers(0, 12))):
        queue, charge = tree.row(draw(st.sampled_from(leaves(specs)))), tree.charge_of(draw(parts))
        now += draw(st.integers(0, WINDOW // 2))
        if tree.lack(queue, charge, now) is None:
            tree.charge(queue, charge, now)
    return tree, now


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(busy=busy_trees())
def test_nobody_takes_more_than_the_tree_has_nor_what_is_kept_for_others(busy: tuple[QueueTree, int]) -> None:
    tree, now = busy
    for row, spec in enumerate(tree.specs):
        for slot in range(tree.slots):
            at = row * tree.slots + slot
            if tree.nominal_at(row, slot) == UNLIMITED:
                continue
            if not tree.burst_excess(row).get(slot):
                assert tree.drawn[at] <= tree.ceiling[at]
            if spec.burst is not None and slot < 4:
                limit = spec.burst.limit.get(tree.named_slot(slot)[1], 0)
                assert tree.used[at] <= max(limit, tree.ceiling[at] + tree.subtree_nominal[at] - tree.quota[at])
            if not tree.children[row]:
                assert tree.available(row, slot, now) >= tree.local[at] - tree.used[at], "its own is never lent away"


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(busy=busy_trees(), data=st.data())
def test_what_is_available_is_the_most_that_lacks_nothing(busy: tuple[QueueTree, int], data) -> None:
    tree, now = busy
    row = data.draw(st.sampled_from([row for row, below in enumerate(tree.children) if not below]))
    for slot in range(tree.slots):
        most = tree.available(row, slot, now)
        if most == NO_LIMIT:
            assert tree.lack(row, ((slot, 10**12),), now) is None
        else:
            assert most == 0 or tree.lack(row, ((slot, most),), now) is None
            lack = tree.lack(row, ((slot, most + 1),), now)
            assert lack is not None
            assert lack.slot == slot
            assert lack.vertex in tree.path[row]
            assert lack.short >= 1


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(specs=trees(), data=st.data())
def test_a_charge_is_beyond_a_tree_when_it_does_not_fit_the_empty_one(specs: list[QueueSpec], data) -> None:
    tree = planted(specs)
    row, charge = tree.row(data.draw(st.sampled_from(leaves(specs)))), tree.charge_of(data.draw(parts))
    beyond, lack = tree.beyond(row, charge), tree.lack(row, charge, 0)
    assert (beyond is None) == (lack is None)


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(busy=busy_trees())
def test_a_tree_that_was_dumped_and_loaded_is_the_same(busy: tuple[QueueTree, int]) -> None:
    tree, _ = busy
    other = QueueTree()
    other.load(tree.dump())
    assert other.dump() == tree.dump()
    for name, value in vars(tree).items():
        assert name == "flavors" or getattr(other, name) == value, "derived one queue at a time, or all at once"


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(busy=busy_trees(), data=st.data())
def test_a_copy_lives_its_own_life(busy: tuple[QueueTree, int], data) -> None:
    tree, now = busy
    before, other = tree.dump(), tree.copy()
    row = data.draw(st.integers(0, len(tree.specs) - 1))
    other.note_disruption(row, now)
    other.charge(row, ((CPU, 10**6),), now + 1)
    other.set_mode(row, QueueMode.HELD)
    other.change(data.draw(queue_specs(tree.specs[row].name, tree.specs[row].parent)))
    other.add(QueueSpec(name="new", parent=tree.specs[row].name, flavors=(FlavorQuota(pool="new"),)))
    assert tree.dump() == before
    assert all(len(column) == len(tree.specs) for column in (tree.path, tree.children, tree.limited))


# -- cohorts ----------------------------------------------------------------------------------------------------------


def gpus(quantity: int) -> Charge:
    return ((GPU, quantity),)


def gpu(quantity: int) -> dict[str, int]:
    return {"gpu_milli": quantity}


def cohort(a: QueueSpec, b: QueueSpec, nominal: int = 0) -> QueueTree:
    return planted([QueueSpec(name="cohort", nominal=gpu(nominal) if nominal else {}), a, b])


COHORT, A, B = 0, 1, 2


def test_a_queue_borrows_what_its_cohort_does_not_use() -> None:
    tree = cohort(
        QueueSpec(name="a", parent="cohort", nominal=gpu(9)), QueueSpec(name="b", parent="cohort", nominal=gpu(6))
    )
    assert tree.lack(A, gpus(9), 0, borrow=False) is None
    assert tree.flags_of(A, gpus(9)) == 0
    assert tree.lack(A, gpus(10), 0, borrow=False) == Lack(A, GPU, 1)
    assert tree.lack(A, gpus(15), 0) is None
    assert tree.flags_of(A, gpus(15)) == BORROWED
    assert tree.lack(A, gpus(16), 0) == Lack(COHORT, GPU, 1)
    tree.charge(A, gpus(13), 0)
    assert tree.borrowed(A, GPU) == 4
    assert tree.available(B, GPU, 0) == 2
    assert tree.lack(B, gpus(6), 0, borrow=False) == Lack(COHORT, GPU, 4), "within its own, but lent: to be reclaimed"


def test_a_borrowing_limit_counts_from_the_nominal_quota() -> None:
    tree = cohort(
        QueueSpec(name="a", parent="cohort", nominal=gpu(9), borrowing_limit=gpu(1)),
        QueueSpec(name="b", parent="cohort", nominal=gpu(12)),
    )
    assert tree.available(A, GPU, 0) == 10
    assert tree.beyond(A, gpus(11)) == Lack(A, GPU, 1)
    assert tree.beyond(B, gpus(21)) is None


def test_a_lending_limit_keeps_the_rest_for_the_queue() -> None:
    tree = cohort(
        QueueSpec(name="a", parent="cohort", nominal=gpu(10)),
        QueueSpec(name="b", parent="cohort", nominal=gpu(10), lending_limit=gpu(1)),
    )
    assert tree.guaranteed(COHORT, GPU) == 11
    tree.charge(A, gpus(11), 0)
    assert tree.lack(A, gpus(1), 0) == Lack(COHORT, GPU, 1)
    assert tree.available(B, GPU, 0) == 9
    tree.charge(B, gpus(9), 0)
    assert tree.drawn[COHORT * tree.slots + GPU] == 11, "what is not lent does not reach the cohort"
    assert tree.used_vector(COHORT) == (0, 0, 20, 0)


def test_a_cohort_has_quota_of_its_own_for_all_below_it() -> None:
    tree = cohort(QueueSpec(name="a", parent="cohort", nominal=gpu(1)), QueueSpec(name="b", parent="cohort"), nominal=5)
    assert tree.nominal_at(B, GPU) == 0, "its tree limits GPUs, so it has none of its own"
    tree.charge(B, gpus(6), 0)
    assert tree.lack(A, gpus(1), 0) == Lack(COHORT, GPU, 1)


def test_the_nearest_vertex_in_the_way_is_named() -> None:
    both = {"cpu_milli": 5, "gpu_milli": 5}
    tree = cohort(
        QueueSpec(name="a", parent="cohort", nominal=both, borrowing_limit=gpu(0)),
        QueueSpec(name="b", parent="cohort", nominal=both),
    )
    assert tree.lack(A, ((CPU, 12), (GPU, 6)), 0) == Lack(A, GPU, 1)
    three = planted(
        [
            QueueSpec(name="root", nominal=both),
            QueueSpec(name="mid", parent="root", borrowing_limit={"cpu_milli": 2}),
            QueueSpec(name="q", parent="mid"),
        ]
    )
    assert three.lack(2, ((CPU, 4), (GPU, 7)), 0) == Lack(1, CPU, 2), "not what is further up, though it is more"


def test_what_no_queue_of_a_tree_names_is_not_limited_in_it() -> None:
    tree = planted([QueueSpec(name="free"), QueueSpec(name="tight", nominal=gpu(0))])
    assert tree.lack(0, gpus(10**15), 0) is None
    assert tree.flags_of(0, gpus(10**15)) == 0
    assert tree.lack(1, ((CPU, 10**15),), 0) is None
    assert tree.lack(1, gpus(1), 0) == Lack(1, GPU, 1)


def test_quotas_by_pool_hold_besides_the_total() -> None:
    tree = planted(
        [
            QueueSpec(
                name="q",
                nominal=gpu(10),
                flavors=(FlavorQuota(pool="h100", nominal=gpu(4)), FlavorQuota(pool="a100", nominal=gpu(8))),
            ),
            QueueSpec(name="other"),
        ]
    )
    h100, a100 = 4 + GPU, 8 + GPU
    assert tree.flavored(0)
    assert not tree.flavored(1)
    assert tree.flavors_of(0) == ("h100", "a100")
    assert [tree.named_slot(slot) for slot in (GPU, h100, a100)] == [
        ("", "gpu_milli"), ("h100", "gpu_milli"), ("a100", "gpu_milli"),
    ]  # fmt: skip
    charge = tree.charge_of(
        [("h100", (2, 0, 3, 0)), ("a100", (0, 0, 5, 0)), ("t4", (0, 0, 1, 0)), ("h100", (0, 0, 1, 0))]
    )
    assert charge == ((CPU, 2), (GPU, 10), (4 + CPU, 2), (h100, 4), (a100, 5))
    assert tree.lack(0, charge, 0) is None
    assert tree.lack(0, tree.charge_of([("h100", (0, 0, 5, 0))]), 0) == Lack(0, h100, 1)
    assert tree.lack(0, tree.charge_of([("t4", (0, 0, 11, 0))]), 0) == Lack(0, GPU, 1)


def test_a_pool_that_is_named_later_leaves_what_is_charged_where_it_was() -> None:
    tree = planted([QueueSpec(name="a", nominal=gpu(9)), QueueSpec(name="b", nominal=gpu(9))])
    tree.charge(0, gpus(2), 0)
    tree.charge(1, gpus(3), 0)
    tree.change(QueueSpec(name="b", nominal=gpu(9), flavors=(FlavorQuota(pool="h100", nominal=gpu(1)),)))
    assert tree.slots == 8
    assert [tree.used_vector(row)[GPU] for row in (0, 1)] == [2, 3]
    assert tree.lack(1, ((GPU, 2), (4 + GPU, 2)), 0) == Lack(1, 4 + GPU, 1)
    tree.change(QueueSpec(name="b", nominal=gpu(9)))
    assert not tree.flavored(1)
    assert tree.lack(1, ((GPU, 2), (4 + GPU, 2)), 0) is None


def test_a_reduced_quota_says_what_is_over_and_lets_nothing_more_in() -> None:
    tree = cohort(
        QueueSpec(name="a", parent="cohort", nominal=gpu(9)), QueueSpec(name="b", parent="cohort", nominal=gpu(6))
    )
    tree.charge(A, gpus(9), 0)
    less = QueueSpec(name="a", parent="cohort", nominal=gpu(2), borrowing_limit=gpu(3))
    assert tree.over_if(less, 0) == {COHORT: ((GPU, 1),), A: ((GPU, 4),)}
    assert tree.over(A, 0) == (), "asking changes nothing"
    tree.change(less)
    assert tree.over(A, 0) == ((GPU, 4),)
    assert tree.available(A, GPU, 0) == tree.available(B, GPU, 0) == 0


# -- bursts -----------------------------------------------------------------------------------------------------------

BASE = QueueSpec(name="q", nominal=gpu(100), burst=BurstSpec(limit=gpu(150)))


def test_a_burst_lasts_its_window_and_comes_back_after_the_cooldown() -> None:
    tree = planted([BASE])
    assert tree.lack(0, gpus(120), 0) is None
    assert tree.flags_of(0, gpus(120)) == BURST
    assert tree.beyond(0, gpus(151)) == Lack(0, GPU, 1)
    tree.charge(0, gpus(80), 0)
    tree.charge(0, gpus(20), 0)
    assert tree.burst_state(0, 0) == "idle"
    tree.give_back(0, gpus(20), 0)
    assert tree.next_burst_change(0) is None
    start = HOUR_MS
    tree.charge(0, gpus(40), start)
    assert (tree.burst_state(0, start), tree.burst_excess(0)) == ("burst", {GPU: 20})
    assert tree.next_burst_change(start) == start + 4 * HOUR_MS
    assert tree.lack(0, gpus(30), start + 4 * HOUR_MS - 1) is None
    assert tree.over(0, start + 4 * HOUR_MS - 1) == ()

    ended = start + 4 * HOUR_MS
    assert tree.burst_state(0, ended) == "cooldown"
    assert tree.lack(0, gpus(1), ended) == Lack(0, GPU, 21)
    assert tree.over(0, ended) == ((GPU, 20),)
    assert tree.next_burst_change(ended) == ended + HOUR_MS
    tree.give_back(0, gpus(40), ended)
    assert tree.lack(0, gpus(20), ended + HOUR_MS - 1) is None, "its own quota is not touched by the cool-down"
    assert tree.lack(0, gpus(40), ended + HOUR_MS - 1) == Lack(0, GPU, 20)

    again = ended + HOUR_MS
    assert tree.burst_state(0, again) == "idle"
    assert tree.next_burst_change(again) is None
    assert tree.lack(0, gpus(40), again) is None
    tree.charge(0, gpus(40), again)
    assert tree.next_burst_change(again) == again + 4 * HOUR_MS, "a new window"


def test_a_window_does_not_begin_again_while_it_lasts() -> None:
    tree = planted([BASE])
    tree.charge(0, gpus(120), 0)
    tree.give_back(0, gpus(120), 10)
    tree.charge(0, gpus(130), HOUR_MS)
    assert tree.next_burst_change(HOUR_MS) == 4 * HOUR_MS


def test_more_of_another_resource_begins_no_burst() -> None:
    tree = planted([BASE])
    tree.charge(0, gpus(120), 0)
    after = 5 * HOUR_MS
    tree.charge(0, ((CPU, 5),), after)
    assert tree.burst_state(0, after) == "idle"


def test_a_burst_takes_no_more_than_the_cohort_has() -> None:
    tree = cohort(
        QueueSpec(
            name="a", parent="cohort", nominal=gpu(100), borrowing_limit=gpu(10), burst=BurstSpec(limit=gpu(150))
        ),
        QueueSpec(name="b", parent="cohort", nominal=gpu(30)),
    )
    assert tree.flags_of(A, gpus(110)) == BORROWED
    assert tree.flags_of(A, gpus(111)) == BURST
    assert tree.available(A, GPU, 0) == 130
    tree.charge(A, gpus(130), 0)
    assert tree.burst_excess(A) == {GPU: 20}
    assert tree.burst_excess(COHORT) == {}


def test_a_cohort_may_burst_and_own_quota_is_never_a_burst() -> None:
    tree = planted(
        [
            QueueSpec(name="cohort", burst=BurstSpec(limit=gpu(30))),
            QueueSpec(name="a", parent="cohort", nominal=gpu(10)),
            QueueSpec(name="b", parent="cohort", nominal=gpu(10), lending_limit=gpu(4)),
        ]
    )
    assert tree.flags_of(A, gpus(14)) == BORROWED
    assert tree.flags_of(A, gpus(15)) == BURST
    assert tree.available(A, GPU, 0) == 24, "up to 30 in all, 6 of which are kept for b"
    tree.charge(A, gpus(20), 0)
    assert tree.burst_state(COHORT, 0) == "burst"
    assert tree.flags_of(B, gpus(10)) == 0
    tree.charge(B, gpus(10), 0)
    assert tree.used_vector(COHORT)[GPU] == 30
    assert tree.available(A, GPU, 0) == tree.available(B, GPU, 0) == 0


def test_what_is_kept_for_a_queue_does_not_count_when_its_cohort_bursts() -> None:
    tree = planted(
        [
            QueueSpec(name="cohort", nominal=gpu(5), burst=BurstSpec(limit=gpu(40))),
            QueueSpec(name="a", parent="cohort", nominal=gpu(10), lending_limit=gpu(0)),
        ]
    )
    assert tree.flags_of(1, gpus(15)) == BORROWED
    assert tree.flags_of(1, gpus(16)) == BURST


def test_a_queue_that_loses_its_burst_quota_is_over() -> None:
    tree = planted([BASE])
    tree.charge(0, gpus(120), 0)
    tree.change(QueueSpec(name="q", nominal=gpu(100)))
    assert (tree.over(0, 0), tree.burst_state(0, 0), tree.next_burst_change(0)) == (((GPU, 20),), "idle", None)


# -- modes, disruptions, rows -----------------------------------------------------------------------------------------


def test_what_is_held_or_drains_counts_for_all_below() -> None:
    tree = cohort(QueueSpec(name="a", parent="cohort"), QueueSpec(name="b", parent="cohort"))
    tree.set_mode(COHORT, QueueMode.HELD)
    assert [(tree.is_open(row), tree.takes_work(row)) for row in (A, B)] == [(False, True)] * 2
    tree.set_mode(COHORT, QueueMode.OPEN)
    tree.set_mode(A, QueueMode.DRAINING)
    assert [(tree.is_open(row), tree.takes_work(row)) for row in (COHORT, A, B)] == [
        (True, True), (False, False), (True, True),
    ]  # fmt: skip


def test_disruptions_count_within_their_window() -> None:
    tree = planted([QueueSpec(name="q", disruptions=2, disruption_window_ms=100), QueueSpec(name="any")])
    assert tree.disruptions_left(0, 0) == 2
    for at in (0, 50, 50):
        tree.note_disruption(0, at)
        tree.note_disruption(1, at)
    assert [tree.disruptions_left(0, at) for at in (99, 149, 150)] == [0, 0, 2]
    tree.note_disruption(0, 120)
    assert tree.disruptions[0] == [50, 50, 120], "what is past its window is forgotten"
    assert tree.disruptions_left(1, 50) == NO_LIMIT


def test_a_growing_workload_is_still_one() -> None:
    tree = planted([QueueSpec(name="q", nominal=gpu(9))])
    tree.charge(0, gpus(1), 0)
    tree.charge(0, gpus(2), 0, workloads=0)
    assert (tree.running[0], tree.used_vector(0)) == (1, (0, 0, 3, 0))
    tree.give_back(0, gpus(2), 0, workloads=0)
    tree.give_back(0, gpus(1), 0)
    assert (tree.running[0], tree.used_vector(0)) == (0, (0, 0, 0, 0))


def test_only_leaves_take_work() -> None:
    tree = cohort(QueueSpec(name="a", parent="cohort"), QueueSpec(name="b", parent="cohort"))
    assert tree.leaf("b") == B
    with pytest.raises(RefusedError, match="Use one of: a, b"):
        tree.leaf("cohort")
    with pytest.raises(NotFoundError, match="no queue 'c'"):
        tree.leaf("c")


# -- checks at the door -----------------------------------------------------------------------------------------------


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(specs=trees(), data=st.data())
def test_queues_in_any_order_are_taken_parents_first(specs: list[QueueSpec], data) -> None:
    shuffled = data.draw(st.permutations(specs))
    ordered = check_queues(tuple(shuffled), {}, set())
    assert sorted(spec.name for spec in ordered) == sorted(spec.name for spec in specs)
    seen = {""}
    for spec in ordered:
        assert spec.parent in seen
        seen.add(spec.name)


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(parents=st.lists(st.integers(-1, 6), min_size=1, max_size=7), data=st.data())
def test_queues_are_refused_exactly_when_following_parents_never_ends(parents: list[int], data) -> None:
    parents = [parent if parent < len(parents) else -1 for parent in parents]
    specs = [QueueSpec(name=f"q{i}", parent=f"q{p}" if p >= 0 else "") for i, p in enumerate(parents)]
    endless = False
    for start in range(len(parents)):
        at, steps = start, 0
        while at >= 0 and steps <= len(parents):
            at, steps = parents[at], steps + 1
        endless |= at >= 0
    shuffled = tuple(data.draw(st.permutations(specs)))
    if endless:
        with pytest.raises(SpecError, match="cycle"):
            check_queues(shuffled, {}, set())
    else:
        assert len(check_queues(shuffled, {}, set())) == len(specs)


def queue(**fields: object) -> QueueSpec:
    return QueueSpec(**{"name": "q", "parent": "cohort"} | fields)  # type: ignore[arg-type]


WRONG = [
    (queue(nominal={"gpus": 1}), "nominal", "unknown resource 'gpus'"),
    (queue(nominal=gpu(-1)), "nominal.gpu_milli", "-0.001 GPU is below 0"),
    (queue(borrowing_limit={"gpus": 1}), "borrowing_limit", "unknown resource"),
    (queue(lending_limit=gpu(-1)), "lending_limit.gpu_milli", "below 0"),
    (queue(parent="", borrowing_limit=gpu(1)), "borrowing_limit", "no cohort to borrow from"),
    (queue(parent="", lending_limit=gpu(1)), "lending_limit", "no cohort to lend to"),
    (queue(flavors=(FlavorQuota(pool="a"), FlavorQuota(pool="a"))), "flavors[1].pool", "named twice"),
    (queue(flavors=(FlavorQuota(pool="a b"),)), "flavors[0].pool", "not a valid id"),
    (queue(flavors=(FlavorQuota(pool="a", nominal={"gpus": 1}),)), "flavors[0].nominal", "unknown resource"),
    (
        queue(parent="", flavors=(FlavorQuota(pool="a", lending_limit=gpu(1)),)),
        "flavors[0].lending_limit", "no cohort to lend to",
    ),
    (queue(parent="", burst=BurstSpec(limit={})), "burst.limit", "is empty"),
    (queue(parent="", burst=BurstSpec(limit={"gpus": 1})), "burst.limit", "unknown resource"),
    (queue(parent="", nominal=gpu(5), burst=BurstSpec(limit=gpu(4))), "burst.limit.gpu_milli", "4 is below"),
    (
        queue(nominal=gpu(5), borrowing_limit=gpu(2), burst=BurstSpec(limit=gpu(6))),
        "burst.limit.gpu_milli", "borrowing limit together, 7",
    ),
    (queue(nominal=gpu(5), burst=BurstSpec(limit=gpu(6))), "burst.limit.gpu_milli", "no borrowing limit for gpu_milli"),
    (queue(parent="", burst=BurstSpec(limit=gpu(1), window_ms=0)), "burst.window_ms", "below 1"),
    (queue(parent="", burst=BurstSpec(limit=gpu(1), cooldown_ms=0)), "burst.cooldown_ms", "below 1"),
    (queue(weight=0), "weight", "below 1"),
    (queue(disruptions=-2), "disruptions", "below -1"),
    (queue(disruption_window_ms=0), "disruption_window_ms", "below 1"),
    (queue(min_runtime_ms=-1), "min_runtime_ms", "below 0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "field", "problem"), WRONG, ids=[f"{field}: {problem}" for _, field, problem in WRONG]
)
def test_a_wrong_field_is_named_when_a_queue_is_defined_or_changed(spec: QueueSpec, field: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem) as refused:
        check_queues((QueueSpec(name="cohort"), spec), {}, set())
    assert refused.value.where == f"queues[1].{field}"
    tree = planted([QueueSpec(name="cohort"), QueueSpec(name="q", parent=spec.parent)])
    with pytest.raises(SpecError, match=problem) as refused:
        check_change(tree, spec)
    assert refused.value.where == f"queue.{field}"


def test_a_queue_needs_a_name_of_its_own_and_a_parent_that_can_be_one() -> None:
    with pytest.raises(SpecError, match="already exists"):
        check_queues((QueueSpec(name="q"),), {"q": 0}, set())
    with pytest.raises(SpecError, match="no queue 'p'"):
        check_queues((QueueSpec(name="q", parent="p"),), {}, set())
    with pytest.raises(SpecError, match="holds workloads"):
        check_queues((QueueSpec(name="q", parent="p"),), {"p": 0}, {"p"})


def test_a_queue_cannot_move_and_must_be_there_to_change() -> None:
    tree = cohort(QueueSpec(name="a", parent="cohort"), QueueSpec(name="b", parent="cohort"))
    check_change(tree, QueueSpec(name="a", parent="cohort", nominal=gpu(1)))
    with pytest.raises(SpecError, match="below cohort and cannot be moved"):
        check_change(tree, QueueSpec(name="a", parent="b"))
    with pytest.raises(NotFoundError, match="no queue 'c'"):
        check_change(tree, QueueSpec(name="c"))
