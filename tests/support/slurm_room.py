"""A real cluster, the cell that mirrors it, the driver that acts on it, and one person before the gate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gates import Person
from slurm_cluster import SlurmCluster, soon

from engine.control import Engine
from engine.external.slurm.change_carrier import SlurmDriver
from engine.external.slurm.mirror_passes import Mirror
from engine.external.slurm.mirror_watch import Watcher
from engine.loop import EngineLoop
from engine.model.commands import Define, Submit
from engine.model.specs import CellSpec, Resources, RunSpec, Settings, TaskGroup, WorkloadSpec
from runbooks.audit.log import Audit
from runbooks.gate.approval_gate import Gate, wall_ms
from runbooks.gate.approval_policy import SOLO
from runbooks.gate.policy_versions import Policies
from tests.support.patience import PATIENCE_S


class SlurmRoom:
    def __init__(self, cluster: SlurmCluster, after: ExitStack) -> None:
        self.cluster = cluster
        self.connection = cluster.connection()
        after.callback(self.connection.close)
        self.engine = Engine.open(None)
        self.engine.acts = True
        self.engine.advance(time.time_ns() // 1_000_000)
        self.engine.command(Define(cell=CellSpec(name="hpc", settings=Settings(decided_by="slurm"))))
        self.loop = EngineLoop(self.engine)
        self.loop.start()
        after.callback(self.loop.stop)
        self.mirror = Mirror(self.connection, self.loop.call)
        self.watcher = Watcher(self.connection, self.mirror, where=cluster.socket, acts=True)
        self.watcher.start()
        after.callback(self.watcher.stop)
        self.driver = SlurmDriver(
            self.connection, self.loop, self.mirror.job_of, acted=self.watcher.poke, missing=self.mirror.missing
        )
        self.driver.start()
        after.callback(self.driver.stop)
        self.gate: Gate = self.loop.call(_gate)
        self.person = Person(self.gate)
        soon(lambda: self.watcher.report().state == "following")

    def submit(self, name: str, argv: tuple[str, ...] = ("sleep", "300"), **fields: object) -> None:
        group = TaskGroup(request=Resources(cpu_milli=1000, memory_mib=50))
        spec = WorkloadSpec(
            id=name, groups=(group,), run=RunSpec(argv=argv, cwd=str(self.cluster.folder / "jobs")),
            **{"queue": "batch", **fields},  # type: ignore[arg-type]
        )  # fmt: skip
        self.loop.call(lambda engine: engine.command(Submit(workloads=(spec,))))

    def state(self, name: str) -> str:
        def read(engine: Engine) -> str:
            return engine.workload(name).state if name in engine.state.workloads.row_of else ""

        return self.loop.call(read)

    def do(self, action: str, target: str, within_s: float = PATIENCE_S, **specs: object) -> str:
        """Propose, approve, and wait for the verdict. Gives the state of the proposal."""

        def begin(engine: Engine) -> str:
            shown = self.person.propose(action, [target], "for the test", **specs)
            self.person.approve(shown.id, shown.plan.digest())
            return shown.id

        name = self.loop.call(begin)

        def over() -> bool:
            self.loop.call(lambda engine: self.gate.tick())
            return self.told(name) not in ("executing", "verifying")

        soon(over, within_s)
        return self.told(name)

    def told(self, proposal: str) -> str:
        return self.loop.call(lambda engine: self.gate.proposal(proposal).state)


def _gate(engine: Engine) -> Gate:
    audit = Audit(engine, wall_ms)
    return Gate(engine, Policies(engine, audit, wall_ms, default=SOLO), audit)


@contextmanager
def room(cluster: SlurmCluster) -> Iterator[SlurmRoom]:
    with ExitStack() as after:
        yield SlurmRoom(cluster, after)
