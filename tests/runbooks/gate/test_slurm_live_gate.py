"""What is approved is done in a real Slurm of either release, read back there, and seen in the cell."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from slurm_cluster import RELEASES, own, soon
from slurm_room import SlurmRoom, room

from engine.model.errors import RefusedError
from engine.model.specs import ReservationSpec

pytestmark = pytest.mark.thorough


@pytest.fixture(params=list(RELEASES))
def slurm(request: pytest.FixtureRequest) -> Iterator[SlurmRoom]:
    with own(request.param) as cluster, room(cluster) as made:
        yield made


def test_the_life_of_a_job_and_of_a_node_through_the_gate(slurm: SlurmRoom) -> None:
    slurm.submit("train", held=True)
    soon(lambda: slurm.state("train") == "held")
    assert slurm.do("release", "train") == "verified"
    soon(lambda: slurm.state("train") == "running")
    node = slurm.loop.call(lambda engine: engine.workload("train").placement[0].node)

    assert slurm.do("cordon", node) == "verified"
    assert "muster i" in slurm.cluster.run("scontrol", "show", "node", node)
    assert slurm.do("requeue", "train") == "verified"
    assert slurm.do("uncordon", node) == "verified"
    assert slurm.do("cancel", "train") == "verified"
    assert slurm.state("train") == "cancelled"

    assert slurm.do("hold_queue", "spot") == "verified"
    assert "State=DOWN" in slurm.cluster.run("scontrol", "show", "partition", "spot")
    assert slurm.do("open_queue", "spot") == "verified"

    start_ms = (time.time_ns() // 1_000_000_000 + 3600) * 1000
    kept = ReservationSpec(name="upkeep", nodes=(node,), start_ms=start_ms, end_ms=start_ms + 3_600_000)
    assert slurm.do("reserve", "upkeep", reservation=kept) == "verified"
    assert "upkeep" in slurm.cluster.run("scontrol", "show", "reservation")
    assert slurm.do("unreserve", "upkeep") == "verified"

    assert slurm.do("power_up", "cloud001") == "verified"
    with pytest.raises(RefusedError, match="keeps its memory"):
        slurm.do("suspend", "train")

    # Without accounting there is no QOS: 22.05 answers that with success, and nothing has changed.
    slurm.submit("later", held=True)
    soon(lambda: slurm.state("later") == "held")
    slurm.loop.call(lambda engine: setattr(slurm.driver.actor, "_wall_ms", lambda: engine.now_ms + 200_000))
    assert slurm.do("set_qos", "later", to="no-such-qos") == "paused"
