"""Honest and hostile calls in any order: nothing happens that was not approved, and all of it is on record."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from effort import THOROUGH

from tests.support.protocol_world import World
from tests.support.records import problems

OPERATIONS = 400
"""Of one world."""


def run(seeds: range, folder: Path) -> tuple[Counter[str], int]:
    """What the gate let through, by name of the operation, and how many effects there were."""
    done: Counter[str] = Counter()
    effects = 0
    for seed in seeds:
        world = World(seed)
        for number in range(OPERATIONS):
            try:
                world.step()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, operation {number}: {error}") from error
        world.check_books()
        for problem in problems(world.engine.engine, folder):
            assert any(re.search(rf"proposal(_revision)?:{number}\b", problem) for number in world.edited), problem
        done += world.done
        effects += len(world.engine.effects)
    return done, effects


def test_nothing_happens_that_was_not_approved(tmp_path: Path) -> None:
    worlds = 3 if THOROUGH else 1
    done, effects = run(range(worlds), tmp_path)
    assert effects > 5 * worlds, "else nothing was tried"
    assert all(done[name] for name in ("propose", "vote", "approve", "revise"))


@pytest.mark.thorough
def test_nothing_happens_that_was_not_approved_in_twenty_thousand_operations(tmp_path: Path) -> None:
    _, effects = run(range(100, 150), tmp_path)
    assert effects > 300
