"""A few random lives on a real Kueue: it decides as the policy `kueue` does. Hundreds: `make agreement`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential.kueue.agreement import kueue_room, results
from tests.differential.kueue.lives import life
from tests.support.kubernetes_cluster import why_not

LIVES = [*(life(seed, topology=False, steps=6) for seed in range(4)), life(4, topology=True, steps=6)]


@pytest.mark.thorough
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_kueue_decides_as_its_model_does(tmp_path: Path) -> None:
    """With pods, which are scheduled and run. Where Kueue decides otherwise the second time, either will do."""
    with kueue_room(tmp_path) as place:
        found = list(results(place, LIVES, at_once=len(LIVES)))
    assert [each.disagreement for each in found if each.disagreement and each.disagreement.repeated] == []
    assert sum(each.preemptions for each in found) > 0
