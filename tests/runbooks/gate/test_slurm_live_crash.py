"""Jobs that Muster acknowledged are there, once each, after slurmctld was killed while they were submitted. Many more
rounds of it: tests/bench/slurm_crash.py."""

from __future__ import annotations

from collections import Counter

import pytest
from slurm_cluster import RELEASES, own, soon
from slurm_room import room

from engine.external.slurm import submission_carrier

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("release", list(RELEASES))
def test_jobs_survive_a_slurmctld_that_is_killed_while_they_are_submitted(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission_carrier, "SAFE_S", 8.0)
    with own(release) as cluster, room(cluster) as slurm:
        for turn in range(3):
            for i in range(15):
                slurm.submit(f"w{turn}-{i}", held=True, rerun="always")
            soon(lambda turn=turn: f"w{turn}-0" in cluster.run("squeue", "-h", "-o", "%j"))
            cluster.kill("slurmctld")
            slurm.submit(f"down{turn}", held=True, rerun="always")
            cluster.start("slurmctld")
        wanted = {f"w{turn}-{i}" for turn in range(3) for i in range(15)} | {f"down{turn}" for turn in range(3)}

        def settled() -> bool:
            return not slurm.loop.call(lambda engine: dict(engine.state.intents.open))

        soon(settled)
        names = cluster.run("squeue", "-h", "-o", "%j").split()
        assert Counter(name.rpartition(".m")[0] for name in names) == dict.fromkeys(wanted, 1)
