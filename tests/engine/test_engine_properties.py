"""Random lives of random cells: whatever people, time and executors do, the books balance and nothing is lost.

Every life is played on an engine whose every event is looked at (`invariants.Witness`), and after every operation the
whole state is checked from the ground up. At the end the cell is left alone until nothing happens any more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from random_cells import SOME, Life, live, lives

from engine.model import events as ev
from tests.support.patience import PATIENCE_S

MANY = settings(SOME, max_examples=examples(10_000))


@SOME
@given(lives())
def test_whatever_happens_the_books_balance_and_nothing_is_lost(life: Life) -> None:
    live(life)


@settings(SOME, max_examples=examples(30))
@given(lives(durable=True))
def test_the_journal_brings_everything_back(life: Life) -> None:
    live(life)


@pytest.mark.slow
@MANY
@given(lives())
def test_ten_thousand_lives(life: Life) -> None:
    live(life)


@pytest.mark.slow
@settings(MANY, max_examples=examples(1000))
@given(lives(durable=True))
def test_a_thousand_lives_with_restarts(life: Life) -> None:
    live(life)


# -- the same again: P9 -----------------------------------------------------------------------------------------------


@settings(SOME, max_examples=examples(10))
@given(lives())
def test_the_same_life_has_the_same_history(life: Life) -> None:
    first, second = live(life).engine, live(life).engine
    assert ev.encode(first.witness.history) == ev.encode(second.witness.history)
    assert first.state.digest() == second.state.digest()


@pytest.mark.thorough
def test_another_process_comes_to_the_same_end() -> None:
    """Neither the order of sets nor that of dictionaries of strings decides anything."""
    found = {play_elsewhere(hash_seed) for hash_seed in ("1", "2")}
    assert len(found) == 1
    assert len(set(found.pop().split())) > 5


def play_elsewhere(hash_seed: str) -> str:
    """The digests at the end of some lives, as a new process finds them."""
    program = "import sys; sys.path[:0] = sys.argv[1:]; import test_engine_properties as here; print(*here.digests())"
    here = Path(__file__).parent
    folders = [str(folder) for folder in (here, here.parent / "support", here.parent.parent)]
    done = subprocess.run(
        [sys.executable, "-c", program, *folders],
        capture_output=True,
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "TESTS_THOROUGH": "all"},
        timeout=PATIENCE_S,
        check=False,
    )
    assert not done.returncode, done.stderr.decode()
    return done.stdout.decode()


def digests() -> list[str]:
    """The ends of a few lives, always the same ones."""
    found: list[str] = []

    @settings(SOME, max_examples=examples(8), database=None)
    @given(lives())
    def play(life: Life) -> None:
        found.append(live(life).engine.state.digest())

    play()
    return found
