"""Engine, API server, etcd and Kueue are killed while acts and submissions flow: none is lost, doubled, or in doubt
without a person told. The long run is `tests/bench/kubernetes_crash.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes_cluster import own

from tests.bench.kubernetes_crash import through_muster

pytestmark = [pytest.mark.thorough, pytest.mark.slow]


def test_none_is_lost_or_doubled_when_any_part_is_killed(tmp_path: Path) -> None:
    with own("--nodes", "2") as cluster:
        found = through_muster(cluster, kills=6, seed=3, folder=tmp_path)
    assert found["submitted"]
    assert found["acts"]
    assert (found["lost"], found["doubled"], found["cancelled and still there"], found["still open"]) == (0, 0, 0, 0)
    assert len(found["told"]) == found["in doubt"]
    if not found["in doubt"] and not found["refused or expired"]:
        assert found["not as last acknowledged"] == {}
