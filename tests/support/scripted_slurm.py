"""A Slurm cluster that is scripted, a mirror of it, and the cell: what a connection would answer is in lists that a
test changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.control import Engine
from engine.external.slurm.capabilities import SlurmLacks, SlurmUnavailable
from engine.external.slurm.mirror_passes import Mirror
from engine.external.slurm.records import (
    Association,
    Diag,
    Job,
    JobList,
    JobState,
    Node,
    PastJob,
    Qos,
    Share,
    SlurmNodes,
    SlurmPartition,
    SlurmReservation,
    TopologySwitch,
)
from engine.model.commands import Define
from engine.model.specs import CellSpec, Settings
from engine.state.invariants import faults_of

NOW_S = 1_800_000_000


class Cluster:
    """What a connection would answer, from lists that a test changes."""

    def __init__(self) -> None:
        self.all_nodes = [
            Node(name=f"c{i}", state="IDLE", cpus=16, memory_mib=64_000, partitions=("batch", "urgent"),
                 features=("rack1",)) for i in (1, 2)
        ] + [
            Node(name="g1", state="IDLE", cpus=32, memory_mib=128_000, partitions=("gpu", "urgent"),
                 gres={"gpu:h100": 8}, features=("rack2",))
        ]  # fmt: skip
        self.all_partitions = [
            SlurmPartition(name="batch", nodes=("c1", "c2"), tier=10, time_limit_s=86_400, preempt_mode="REQUEUE"),
            SlurmPartition(name="gpu", nodes=("g1",), tier=10, preempt_mode="REQUEUE"),
            SlurmPartition(name="urgent", nodes=("c1", "c2", "g1"), tier=100, preempt_mode="OFF"),
        ]
        self.all_jobs: list[Job] = []
        self.all_reservations: list[SlurmReservation] = []
        self.accounting: list[PastJob] | None = None
        self.away = False
        self.asked: list[str] = []

    def _ask(self, what: str) -> None:
        if self.away:
            raise SlurmUnavailable("nobody answers")
        self.asked.append(what)

    def nodes(self, since: int | None = None) -> SlurmNodes:
        self._ask("nodes")
        return SlurmNodes(list=tuple(self.all_nodes), last_update=NOW_S)

    def partitions(self) -> list[SlurmPartition]:
        self._ask("partitions")
        return self.all_partitions

    def reservations(self) -> list[SlurmReservation]:
        self._ask("reservations")
        return self.all_reservations

    def qos(self) -> list[Qos]:
        self._ask("qos")
        raise SlurmLacks(0, "there is no accounting here")

    cluster = "loop"

    def associations(self) -> tuple[Association, ...]:
        raise SlurmLacks(0, "there is no accounting here")

    def resume_timeout_s(self) -> int:
        return 0

    def shares(self) -> tuple[Share, ...]:
        raise SlurmLacks(0, "there is no accounting here")

    def jobs(self, since: int | None = None) -> JobList:
        self._ask("jobs")
        return JobList(list=tuple(self.all_jobs), last_update=NOW_S)

    def past(self, job_id: int) -> tuple[PastJob, ...]:
        self._ask(f"past {job_id}")
        if self.accounting is None:
            raise SlurmLacks(0, "there is no accounting here")
        return tuple(each for each in self.accounting if job_id in (each.id, each.array_id))

    def history(self, since_s: int, until_s: int | None = None) -> tuple[PastJob, ...]:
        raise SlurmLacks(0, "there is no accounting here")

    def forget(self) -> None:
        """Another release may answer next."""

    def diag(self) -> Diag:
        return Diag(cycle_mean_us=7)

    class can:
        @staticmethod
        def missing() -> dict[str, str]:
            return {"history": "no accounting", "requeue": "no command"}

    api, slurm_version = "v0.0.42", "24.11.5"

    def topology(self) -> tuple[TopologySwitch, ...]:
        self._ask("topology")
        return (
            TopologySwitch(name="leaf1", nodes=("c1", "c2")),
            TopologySwitch(name="leaf2", nodes=("g1",)),
            TopologySwitch(name="spine", level=1, switches=("leaf1", "leaf2")),
        )

    def jobs_of(self, job_id: int) -> tuple[Job, ...]:
        self._ask(f"job {job_id}")
        return tuple(job for job in self.all_jobs if job.id == job_id)

    def job_states(self) -> list[JobState]:
        self._ask("states")
        return [
            JobState(id=job.id, state=job.state, flags=job.flags, array_id=job.array_id, array_tasks=job.array_tasks)
            for job in self.all_jobs
        ]


class World:
    """A cluster, a mirror of it, and the engine with the cell."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.engine = Engine.open(None)
        self.engine.advance(NOW_S * 1000)
        self.engine.command(
            Define(cell=CellSpec(name="mirror", settings=Settings(decided_by="slurm", preempt_across=True)))
        )
        self.now_s = NOW_S
        self.mirror = self.restarted()

    def call(self, fn: Callable[[Engine], Any]) -> Any:
        self.engine.advance(max(self.engine.now_ms, self.now_s * 1000))
        return fn(self.engine)

    def restarted(self) -> Mirror:
        self.mirror = Mirror(self.cluster, self.call, wall_s=lambda: self.now_s)
        return self.mirror

    def look(self, *jobs: Job) -> None:
        self.cluster.all_jobs = list(jobs)
        self.mirror.look()
        assert not faults_of(self.engine.state)

    def state(self, name: str) -> str:
        return self.engine.workload(name).state


def job(job_id: int, **more: Any) -> Job:
    given = {
        "name": "train", "user": "ann", "account": "vision", "partition": "batch", "cpus": 4, "memory_mib": 8000,
        "submit_s": NOW_S - 100, "time_limit_s": 3600, "reason": "Priority", "priority": 100,
    }  # fmt: skip
    return Job(id=job_id, **{**given, **more})


def running(job_id: int, *nodes: str, **more: Any) -> Job:
    return job(job_id, state="RUNNING", nodes=nodes, start_s=NOW_S - 50, reason="", **more)
