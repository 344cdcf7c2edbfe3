"""The queue tree against sums over the whole list of charges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import SpecError
from engine.model import RESOURCES, QueueSpec
from engine.quota import QueueTree, check_queues

limits = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 12), max_size=3)
vectors = st.tuples(*(st.integers(0, 5) for _ in RESOURCES))


@st.composite
def trees(draw) -> list[QueueSpec]:
    """Up to 8 queues; each hangs below an earlier one or is a root."""
    specs = []
    for i in range(draw(st.integers(1, 8))):
        parent = draw(st.sampled_from(["", *(f"q{j}" for j in range(i))]))
        specs.append(QueueSpec(name=f"q{i}", parent=parent, nominal=draw(limits)))
    return specs


def planted(specs: list[QueueSpec]) -> QueueTree:
    tree = QueueTree()
    for spec in specs:
        tree.add(spec)
    return tree


class Plain:
    """A list of what is charged, and everything else worked out from it."""

    def __init__(self, specs: list[QueueSpec]) -> None:
        self.by_name = {spec.name: spec for spec in specs}
        self.charged: list[tuple[str, tuple[int, ...]]] = []

    def above(self, name: str) -> list[str]:
        """The queue and all it hangs below, nearest first."""
        found = []
        while name:
            found.append(name)
            name = self.by_name[name].parent
        return found

    def used(self, name: str) -> list[int]:
        mine = [vector for queue, vector in self.charged if name in self.above(queue)]
        return [sum(vector[i] for vector in mine) for i in range(len(RESOURCES))]

    def in_the_way(self, name: str, request: tuple[int, ...], used: bool) -> tuple[str, str] | None:
        for vertex in self.above(name):
            have = self.used(vertex) if used else [0] * len(RESOURCES)
            for i, resource in enumerate(RESOURCES):
                limit = self.by_name[vertex].nominal.get(resource)
                if limit is not None and request[i] and have[i] + request[i] > limit:
                    return vertex, resource
        return None


def named(tree: QueueTree, found: tuple[int, int] | None) -> tuple[str, str] | None:
    return found and (tree.specs[found[0]].name, RESOURCES[found[1]])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(specs=trees(), data=st.data())
def test_charges_and_limits_agree_with_a_list_of_all_charges(specs: list[QueueSpec], data) -> None:
    tree, plain = planted(specs), Plain(specs)
    leaves = [spec.name for spec in specs if not any(other.parent == spec.name for other in specs)]
    for _ in range(data.draw(st.integers(1, 25))):
        if plain.charged and data.draw(st.booleans()):
            queue, request = plain.charged.pop(data.draw(st.integers(0, len(plain.charged) - 1)))
            tree.give_back(tree.row(queue), request)
        else:
            queue, request = data.draw(st.sampled_from(leaves)), data.draw(vectors)
            row = tree.leaf(queue)
            assert named(tree, tree.beyond(row, request)) == plain.in_the_way(queue, request, used=False)
            lacking = tree.lacking(row, request)
            assert named(tree, lacking) == plain.in_the_way(queue, request, used=True)
            if lacking is None:
                tree.charge(row, request)
                plain.charged.append((queue, request))
        for spec in specs:
            row = tree.row(spec.name)
            assert list(tree.used_vector(row)) == plain.used(spec.name)
            assert tree.running[row] == sum(queue == spec.name for queue, _ in plain.charged)
            for i, resource in enumerate(RESOURCES):
                assert tree.used_vector(row)[i] <= spec.nominal.get(resource, 10**9)
    for queue, request in plain.charged:
        tree.give_back(tree.row(queue), request)
    assert set(tree.used) == {0}, "what was charged is returned, all the way up"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(specs=trees(), data=st.data())
def test_a_tree_that_was_dumped_and_loaded_is_the_same(specs: list[QueueSpec], data) -> None:
    tree = planted(specs)
    for spec in data.draw(st.lists(st.sampled_from(specs), max_size=10)):
        tree.charge(tree.row(spec.name), data.draw(vectors))
    other = QueueTree()
    other.load(tree.dump())
    assert other.dump() == tree.dump()
    request = data.draw(vectors)
    for row in range(len(specs)):
        assert other.lacking(row, request) == tree.lacking(row, request)
        assert other.path[row] == tree.path[row]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(specs=trees(), data=st.data())
def test_queues_in_any_order_are_taken_parents_first(specs: list[QueueSpec], data) -> None:
    shuffled = data.draw(st.permutations(specs))
    ordered = check_queues(tuple(shuffled), {}, set())
    assert sorted(spec.name for spec in ordered) == sorted(spec.name for spec in specs)
    seen = {""}
    for spec in ordered:
        assert spec.parent in seen
        seen.add(spec.name)


@settings(max_examples=100, deadline=None, derandomize=True)
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
