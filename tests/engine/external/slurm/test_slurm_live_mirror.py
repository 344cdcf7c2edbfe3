"""Mirrors of both releases of Slurm, real ones on loopback: what happens there is in the cell, soon and as it was."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from slurm_cluster import RELEASES, SlurmCluster, own, shared, soon

from engine.control import Engine
from engine.external.slurm.answers import number_in
from engine.external.slurm.mirror_passes import Mirror
from engine.external.slurm.mirror_watch import Watcher
from engine.loop import EngineLoop
from engine.model.commands import Define
from engine.model.details import WorkloadDetail
from engine.model.specs import CellSpec, Settings
from engine.model.twin_queries import AskStart, StartEstimate
from engine.state.invariants import faults_of

pytestmark = pytest.mark.thorough


class Followed:
    """A cluster, and the cell that follows it."""

    def __init__(self, cluster: SlurmCluster, after: ExitStack) -> None:
        self.cluster = cluster
        self.connection = cluster.connection()
        after.callback(self.connection.close)
        self.engine = Engine.open(None)
        self.engine.advance(int(time.time() * 1000))
        spec = CellSpec(name="mirror", settings=Settings(decided_by="slurm", preempt_across=True))
        self.engine.command(Define(cell=spec))
        self.loop = EngineLoop(self.engine)
        self.loop.start()
        after.callback(self.loop.stop)
        self.mirror = Mirror(self.connection, self.loop.call)
        self.watcher = Watcher(self.connection, self.mirror, where=cluster.socket)
        self.watcher.start()
        after.callback(self.watcher.stop)
        soon(lambda: self.watcher.report().state == "following")
        self._jobs: list[str] = []
        after.callback(self._tidy)

    def submit(self, *flags: str, sleep: int = 120) -> str:
        out = self.cluster.run(
            "sbatch", "--parsable", "-o", "/dev/null", "-t", "10", *flags, "--wrap", f"sleep {sleep}"
        )
        self._jobs.append(out.strip().split(";")[0])
        return self._jobs[-1]

    def workload(self, name: str) -> WorkloadDetail | None:
        if not self.loop.call(lambda engine: name in engine.state.workloads.row_of):
            return None
        found: WorkloadDetail = self.loop.call(lambda engine: engine.workload(name))
        return found

    def state(self, name: str) -> str:
        found = self.workload(name)
        return "" if found is None else found.state

    def tokens(self, name: str) -> list[str]:
        found = self.workload(name)
        return [] if found is None else [reason.token for reason in found.reasons]

    def estimate(self, name: str) -> int:
        found = self.workload(name)
        return 0 if found is None else found.estimate_ms

    def starts_at(self, name: str) -> int:
        """The latest of the likely starts, cell milliseconds."""
        ask = AskStart(id=name, seeds=5, arrivals=False, horizon_ms=7_200_000)
        status = self.loop.call(lambda _: self.loop.twins.start(ask))
        while status.state == "running":
            status = self.loop.twins.wait(status.id, status.serial, 5)
        assert isinstance(status.answer, StartEstimate), status.error
        assert status.answer.start is not None
        assert status.answer.start.p90_ms is not None
        return status.answer.start.p90_ms

    def _tidy(self) -> None:
        with contextlib.suppress(AssertionError):  # a controller that a test has killed
            self.cluster.run("scancel", "--quiet", *self._jobs)


@pytest.fixture(params=list(RELEASES))
def followed(request: pytest.FixtureRequest) -> Iterator[Followed]:
    with ExitStack() as after:
        yield Followed(after.enter_context(shared(request.param)), after)


def test_a_gang_with_gpus_is_there_with_its_nodes_and_devices(followed: Followed) -> None:
    job = followed.submit("-p", "gpu", "-N", "2", "--gres=gpu:3")
    soon(lambda: followed.connection.job(int(job)).state == "RUNNING")
    soon(lambda: followed.state(job) == "running")
    said, found = followed.connection.job(int(job)), followed.workload(job)
    assert found is not None
    assert said.gpus_on is not None
    assert {place.node: place.devices for place in found.placement} == said.gpus_on
    assert found.started_ms == said.start_s * 1000
    assert found.groups[0].gpu_milli == 3000

    followed.cluster.run("scancel", job)
    soon(lambda: followed.connection.job(int(job)).over)
    soon(lambda: followed.state(job) == "cancelled")
    assert not followed.loop.call(lambda engine: faults_of(engine.state))


def test_every_node_has_as_much_in_use_as_slurm_says(followed: Followed) -> None:
    followed.submit("-N", "2", "-n", "6", "-c", "3")
    followed.submit("-n", "5")
    last = followed.submit("-p", "gpu", "-N", "1", "-c", "4", "--gres=gpu:h100:2")
    soon(lambda: followed.state(last) == "running")

    def same() -> bool:
        nodes = followed.connection.asked("listing nodes", "nodes").value("nodes")
        said = {node["name"]: number_in(node["alloc_cpus"]) for node in nodes}

        def used(engine: Engine) -> dict[str, int]:
            capacity = engine.state.capacity
            return {
                name: (capacity.pools[capacity.pool[row]].capacity.cpu_milli - capacity.free_cpu[row]) // 1000
                for name, row in capacity.row_of.items()
            }

        return bool(followed.loop.call(used) == said)

    soon(same)
    assert followed.watcher.report().left_out == ()


def test_arrays_holds_and_requeues_are_followed(followed: Followed) -> None:
    array = followed.submit("--array=0-3%1", "-c", "1")
    held = followed.submit("-H")
    waits = followed.submit("-d", f"afterok:{held}")
    soon(lambda: [followed.state(f"{array}/{n}") for n in range(4)] == ["running", "queued", "queued", "queued"])
    soon(lambda: followed.state(held) == "held" and followed.state(waits) == "waiting")
    found = followed.workload(held)
    assert found is not None
    assert found.reasons[0].token == "JobHeldUser"

    followed.cluster.run("scontrol", "release", held)
    soon(lambda: followed.state(held) == "running")
    followed.cluster.run("scontrol", "requeue", held)
    soon(lambda: followed.state(held) == "waiting")
    again = followed.workload(held)
    assert again is not None
    assert [item.what for item in again.history][-2:] == ["requeued", "waiting"] or "requeued" in [
        item.what for item in again.history
    ]


def test_the_twin_tells_when_a_job_starts_that_waits_for_nodes(followed: Followed) -> None:
    if followed.cluster.release != "host":
        pytest.skip("the twin knows nothing of releases: once is enough")
    first = followed.submit("-p", "gpu", "-N", "4", "--exclusive", "-t", "1", sleep=20)
    soon(lambda: followed.state(first) in ("running", "queued"))
    second = followed.submit("-p", "gpu", "-N", "4", "--exclusive", "-t", "1", sleep=20)
    soon(lambda: followed.state(second) == "queued")
    status = followed.loop.call(lambda _: followed.loop.twins.start(AskStart(id=second, seeds=5)))
    while status.state == "running":
        status = followed.loop.twins.wait(status.id, status.serial, 5)
    assert isinstance(status.answer, StartEstimate), status.error
    assert status.answer.start is not None
    assert status.answer.start.p50_ms is not None
    assert status.answer.start.p50_ms > status.at_ms


@pytest.mark.parametrize("release", RELEASES)
def test_a_limit_a_changed_time_limit_and_the_past_are_in_the_forecast(release: str) -> None:
    with ExitStack() as after:
        cluster = after.enter_context(shared(release))
        name = f"two{os.getpid()}"
        cluster.run("sacctmgr", "-i", "add", "account", name, "GrpTRES=cpu=2")
        after.callback(cluster.run, "sacctmgr", "-i", "delete", "account", name)
        cluster.run("sacctmgr", "-i", "add", "user", "root", f"account={name}")
        followed = Followed(cluster, after)
        like = ("-A", name, "-c", "2", "-J", "limited")
        first, second = followed.submit(*like), followed.submit(*like)
        soon(lambda: followed.state(first) == "running")
        # Why it waits Slurm says with the next look of its scheduler, and limits are asked for beside the jobs.
        soon(lambda: "OutsideLimit" in followed.tokens(second))
        assert followed.state(second) == "queued"
        before = followed.starts_at(second)
        assert before > followed.loop.call(lambda engine: engine.now_ms)

        cluster.run("scontrol", "update", f"jobid={first}", "TimeLimit=1")
        soon(lambda: followed.estimate(first) == 60_000)
        assert followed.starts_at(second) < before
        soon(lambda: followed.loop.call(lambda engine: engine.state.past.until_ms) > 0)


@pytest.mark.slow
@pytest.mark.parametrize("release", ["host"])
def test_a_controller_that_dies_leaves_what_was_seen_and_is_followed_again(release: str) -> None:
    with ExitStack() as after:
        followed = Followed(after.enter_context(own(release)), after)
        job = followed.submit("-c", "1")
        soon(lambda: followed.state(job) == "running")
        followed.cluster.kill("slurmctld", signal.SIGKILL)
        # slurmrestd itself waits half a minute for slurmctld.
        soon(lambda: followed.watcher.report().state == "lost")
        assert followed.state(job) == "running"
        assert followed.watcher.report().error
        followed.cluster.up()
        soon(lambda: followed.watcher.report().state == "following")
        assert followed.state(job) in ("running", "cancelled")
