"""Every act on a real Slurm of either release: approved, carried there, read back there, and seen in the cell. What is
asserted is what Slurm's own commands say afterwards."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from slurm_cluster import RELEASES, SlurmCluster, own, shared, soon
from slurm_room import SlurmRoom, room

from engine.external.slurm import submission_carrier
from engine.model.commands import AnswerIntent
from engine.state.external_cell import Phase

pytestmark = pytest.mark.thorough
releases = pytest.mark.parametrize("release", list(RELEASES))
mostly_host = pytest.mark.parametrize("release", ["host", pytest.param("trixie", marks=pytest.mark.slow)])


def field(slurm: SlurmRoom, kind: str, name: str, what: str) -> str:
    """As `scontrol show` tells it."""
    told = slurm.cluster.run("scontrol", "-o", "show", kind, name)
    found = re.search(rf"\b{what}=(\S+)", told)
    return found[1] if found else ""


def job_field(slurm: SlurmRoom, workload: str, what: str) -> str:
    job = slurm.mirror.job_of(workload)
    assert job is not None
    return field(slurm, "job", str(job.id), what)


@releases
def test_everything_that_is_changed_of_a_job_that_waits(release: str) -> None:
    """With accounting: without it there are no QOS."""
    with shared(release) as cluster, room(cluster) as slurm:
        name = f"act{time.time_ns() % 10**9}"
        slurm.submit(name, not_before_ms=time.time_ns() // 1_000_000 + 3_600_000)
        soon(lambda: slurm.state(name) == "waiting")
        before = slurm.loop.call(lambda engine: engine.workload(name).priority_class)
        assert slurm.do("set_job_priority", name, to="4321") == "verified"
        assert job_field(slurm, name, "Priority") == "4321"
        assert slurm.do("set_qos", name, to="high") == "verified"
        assert job_field(slurm, name, "QOS") == "high"
        assert slurm.do("set_priority", name, to=before) == "verified"
        assert job_field(slurm, name, "QOS") == "normal"
        assert slurm.do("move", name, to="spot") == "verified"
        assert job_field(slurm, name, "Partition") == "spot"
        assert slurm.do("hold", name) == "verified"
        assert job_field(slurm, name, "Reason").startswith("JobHeld")
        assert slurm.do("release", name) == "verified"
        assert job_field(slurm, name, "Priority") != "0"
        assert slurm.do("cancel", name) == "verified"
        assert job_field(slurm, name, "JobState") == "CANCELLED"


@mostly_host
def test_a_drain_and_a_queue_that_is_drained_put_their_work_back(release: str) -> None:
    with own(release) as cluster, room(cluster) as slurm:
        slurm.submit("on-node")
        soon(lambda: slurm.state("on-node") == "running")
        node = slurm.loop.call(lambda engine: engine.workload("on-node").placement[0].node)
        assert slurm.do("drain", node) == "verified"
        assert "DRAIN" in field(slurm, "node", node, "State")
        assert field(slurm, "node", node, "Reason") == "muster"
        assert job_field(slurm, "on-node", "Restarts") == "1"
        assert slurm.do("uncordon", node) == "verified"
        assert "DRAIN" not in field(slurm, "node", node, "State")
        slurm.submit("in-queue", queue="spot")
        soon(lambda: slurm.state("in-queue") == "running")
        assert slurm.do("drain_queue", "spot") == "verified"
        assert field(slurm, "partition", "spot", "State") == "INACTIVE"
        assert job_field(slurm, "in-queue", "Restarts") == "1"
        assert slurm.do("open_queue", "spot") == "verified"
        assert field(slurm, "partition", "spot", "State") == "UP"


@contextmanager
def powered(release: str) -> Iterator[tuple[SlurmCluster, SlurmRoom]]:
    """No node is stopped by Slurm itself while the test looks."""
    with own(release, "--boot-delay", "1", "--suspend-time", "600") as cluster, room(cluster) as slurm:
        yield cluster, slurm


@mostly_host
def test_a_cloud_node_boots_runs_work_and_is_stopped(release: str) -> None:
    with powered(release) as (cluster, slurm):

        def state() -> str:
            return field(slurm, "node", "cloud001", "State")

        soon(lambda: "POWERED_DOWN" in state())
        assert slurm.do("power_up", "cloud001") == "verified"
        soon(lambda: state() == "IDLE+CLOUD")
        assert "booted cloud001" in (cluster.folder / "log" / "power.log").read_text()
        slurm.submit("on-cloud", queue="cloud")
        soon(lambda: slurm.state("on-cloud") == "running")
        assert slurm.do("cancel", "on-cloud") == "verified"
        soon(lambda: state() == "IDLE+CLOUD")
        assert slurm.do("power_down", "cloud001") == "verified"
        soon(lambda: "POWERED_DOWN" in state() and "POWERING" not in state())
        assert "suspend cloud001" in (cluster.folder / "log" / "power.log").read_text()


@mostly_host
def test_what_somebody_undoes_is_shown_to_a_person_with_what_slurm_says(release: str) -> None:
    with own(release) as cluster, room(cluster) as slurm:
        assert slurm.do("cordon", "cpu002") == "verified"
        cluster.run("scontrol", "update", "NodeName=cpu002", "State=RESUME")
        for held in slurm.driver.actor._held.values():
            held.wake_s = 0.0  # as if the 20 s were over
        soon(lambda: slurm.loop.call(lambda engine: engine.intents()).in_doubt == 1)
        intent = slurm.loop.call(lambda engine: engine.state.intents.ended[-1])
        found = submission_carrier.look(slurm.connection, intent, slurm.mirror.job_of, 0)
        assert (found.shows, found.lines) == ("undone", ("cpu002 is IDLE",))
        assert found.since_by == "scontrol show config"
        assert 0 < found.since_ms <= intent.at_ms
        answer = AnswerIntent(number=intent.number, outcome="undone", by="person:ann")
        slurm.loop.call(lambda engine: engine.command(answer))
        assert slurm.loop.call(lambda engine: engine.state.intents.ended[-1].phase) == Phase.UNDONE
        slurm.submit("evident", held=True)
        soon(lambda: slurm.state("evident") == "held")
        intent = slurm.loop.call(lambda engine: next(iter(engine.state.intents.open.values())))
        found = submission_carrier.look(slurm.connection, intent, slurm.mirror.job_of, 0)
        assert found.shows == "done"
        assert "carries its token: PENDING held" in found.lines[0]
