"""What is proposed in a cell of Kubernetes is tried on the real cluster before anybody votes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest
from gates import ME, asked
from kubernetes_cluster import KubernetesCluster, shared
from kubernetes_room import KueueQueue

from console.service.dry_runs import DryRuns
from engine.control import Engine
from engine.external.kubernetes.change_carrier import KubernetesDriver
from engine.loop import EngineLoop
from engine.model.commands import Define
from engine.model.errors import RefusedError
from engine.model.specs import CellSpec, QueueSpec, Settings
from runbooks.audit.log import Audit
from runbooks.gate.approval_gate import Gate, wall_ms
from runbooks.gate.approval_policy import SOLO
from runbooks.gate.policy_versions import Policies
from runbooks.plans.typed_plan import QueueChange
from tests.support.patience import until

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubernetesCluster]:
    with shared() as cluster:
        yield cluster


def test_the_cluster_speaks_before_the_vote_and_after_it_the_act_is_carried(cluster: KubernetesCluster) -> None:
    with cluster.admin() as admin, cluster.line() as line:
        mine, theirs = KueueQueue(admin), KueueQueue(admin, manager="argocd-controller")
        nominal = {"cpu_milli": 96_000, "gpu_milli": 8000}
        queues = tuple(QueueSpec(name=each.name, nominal=nominal) for each in (mine, theirs))
        more = msgspec.structs.replace(queues[1], nominal=nominal | {"gpu_milli": 16_000})
        engine = Engine.open(None)
        engine.acts = True
        engine.advance(time.time_ns() // 1_000_000)
        engine.command(Define(cell=CellSpec(name="gpu", queues=queues, settings=Settings(decided_by="kubernetes"))))
        audit = Audit(engine, wall_ms)
        gate = Gate(engine, Policies(engine, audit, wall_ms, default=SOLO), audit)
        loop = EngineLoop(engine)
        driver = KubernetesDriver(line, loop)
        dry_runs = DryRuns(loop, gate, driver.rehearse)
        loop.start()
        driver.start()
        try:
            until(lambda: engine.ways)
            with pytest.raises(RefusedError, match="argocd-controller"):
                dry_runs.run(asked("set_quota", [theirs.name], queue=QueueChange(was=queues[1], to=more)))
            wanted = asked("hold_queue", [mine.name])
            dry_runs.run(wanted)
            shown = loop.call(lambda _: gate.propose(ME, wanted))
            assert f"dry run: {mine.name} has stopPolicy None; the API server would take the change" in shown.carried
            loop.call(lambda _: gate.approve(ME, shown.id, shown.plan.digest(), "seen and wanted"))
            until(lambda: mine.queue()["spec"]["stopPolicy"] == "Hold")
        finally:
            driver.stop()
            loop.stop()
