"""The first reason of whatever waits names the rule that holds it, with the numbers that the cell goes by."""

from __future__ import annotations

import re

import pytest
from contended_cells import RandomCell

from engine.control import Engine
from engine.model.details import Reason, WorkloadDetail
from engine.model.specs import quantity
from engine.reads.preemption_bars import BARRED
from engine.state.queue_tree import NO_LIMIT, QueueTree

GPU = 2
MUST_SAY = {
    "OnHold": "on hold",
    "Suspended": "suspended",
    "QueueHeld": r"queue \S+ is \w+",
    "WaitingForDependency": r"waits for \S+, which is \w+, to \w+",
    "DependencyNeverSatisfied": r"waits for \S+, which is \w+, to \w+: that can no longer happen",
    "WaitingForStartTime": r"no earlier than \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC",
    "Backoff": r"its attempt \d+ did not succeed; the next may begin at \d{4}-",
    "BehindInQueue": r"nothing in queue \S+ starts before \S+, which is ahead: (the policy|queue \S+) is ",
    "ArrayLimit": r"\d+ members of array \S+ are running, limit \d+",
    "InsufficientCapacity": (
        r"room for \d+ now in pools? |each of its groups would fit alone \(\d+ tasks? of .*, with room for \d"
    ),
    "Fragmented": r"needed at once; what is free in pools? .* would hold \d+, but it is fragmented and holds \d+",
    "NoMatchingNodes": r"no node (of|in) |every suitable node has a taint|its reservation \S+ is over",
    "WaitingForReservation": (
        r"held by reservation \S+, from \d{4}-.* until \d{4}-|promised start of w\S+ at \d{4}-|"
        r"kept for w\S+, which starts there at \d{4}-"
    ),
    "WaitingForPreempted": r"w\S+.* to make room, until \d{4}-",
    "WaitingForQuota": (
        r"asks for [\d.]+ \S+.*, [\d.]+ \S+.* above (the borrowing limit of queue \S+, |the burst limit of queue \S+, |"
        r"the [\d.]+ .* that queue \S+ and the queues below it share|the nominal [\d.]+ .* of queue \S+, which has no)"
    ),
}
"""Token -> what the sentence has to say."""
SHARED = re.compile(r"above the ([\d.]+) GPU that queue (\S+) and the queues below it share; it uses ([\d.]+) GPU")
LIMIT = re.compile(
    r"above the borrowing limit of queue (\S+), ([\d.]+) GPU on top of its ([\d.]+) GPU.*it uses ([\d.]+) GPU"
)
BORROWS = re.compile(r"queue (\S+) borrows ([\d.]+) GPU")
KEEPS = re.compile(r"the lending limit of queue (\S+), ([\d.]+) GPU, keeps ([\d.]+) GPU that it does not use")


def milli(text: str) -> int:
    return round(float(text) * 1000)


def at(tree: QueueTree, name: str) -> int:
    """Index of the GPU slot of the queue."""
    return tree.row(name) * tree.slots + GPU


def numbers_are_true(engine: Engine, text: str) -> bool:
    """The limit, what is held and what is lent are those of the queue tree."""
    tree = engine.state.queues
    if found := SHARED.search(text):
        share, name, used = found.groups()
        slot = at(tree, name)
        if (milli(share), milli(used)) != (tree.quota[slot], tree.drawn[slot]):
            return False
    if found := LIMIT.search(text):
        name, limit, own, used = found.groups()
        slot = at(tree, name)
        if tree.ceiling[slot] == NO_LIMIT or tree.specs[tree.row(name)].borrowing_limit["gpu_milli"] != milli(limit):
            return False
        if (milli(own), milli(used)) != (tree.quota[slot], tree.drawn[slot]):
            return False
    for name, limit, idle in KEEPS.findall(text):
        slot = at(tree, name)
        if tree.specs[tree.row(name)].lending_limit["gpu_milli"] != milli(limit):
            return False
        if tree.local[slot] - tree.drawn[slot] != milli(idle):
            return False
    return all(tree.borrowed(tree.row(name), GPU) >= milli(most) for name, most in BORROWS.findall(text))


def bar_is_told(reasons: tuple[Reason, ...]) -> bool:
    """Every rule that bars preemption names a queue, a workload or a time."""
    bars = [reason.text for reason in reasons if reason.token == BARRED]
    return all(re.search(r"queue \S+|\bw\d+|\d{4}-\d\d-\d\d", text) for text in bars)


def waiting(seed: int) -> list[tuple[Engine, WorkloadDetail]]:
    engine = RandomCell(seed).engine
    every = [engine.workload(name) for name in engine.state.workloads.ids]
    return [(engine, view) for view in every if view.reasons]


def check_cells(seeds: range) -> None:
    seen: set[str] = set()
    barred = 0
    for seed in seeds:
        for engine, view in waiting(seed):
            first = view.reasons[0]
            assert re.search(MUST_SAY[first.token], first.text), f"case {seed}: {view.id}: {first}"
            assert numbers_are_true(engine, first.text), f"case {seed}: {view.id}: {first}"
            assert bar_is_told(view.reasons), f"case {seed}: {view.id}: {view.reasons}"
            seen.add(first.token)
            barred += any(reason.token == BARRED for reason in view.reasons)
    rare = {"NoMatchingNodes", "WaitingForPreempted"}
    assert MUST_SAY.keys() - rare <= seen, f"these cells no longer show every rule: {sorted(MUST_SAY.keys() - seen)}"
    assert barred > len(seeds) // 50, "preemption is hardly ever barred in these cells"


def test_the_first_reason_names_its_rule_with_true_numbers() -> None:
    check_cells(range(400))


@pytest.mark.thorough
def test_the_first_reason_names_its_rule_with_true_numbers_in_many_cells() -> None:
    check_cells(range(400, 2000))


def test_quantities_are_read_as_they_are_written() -> None:
    """The check above depends on it."""
    assert quantity(GPU, milli("1.5")) == "1.5 GPU"
