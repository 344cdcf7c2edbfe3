"""Objects of Kueue for tests, and a carrier of intents to a real cluster."""

from __future__ import annotations

import time
import uuid
from typing import Any

from kubernetes_cluster import Admin
from made_up_slurm import EngineLedger

from engine.control import Engine
from engine.external.intent_carrier import IntentJournal
from engine.external.kubernetes.acting import PatchFiles
from engine.external.kubernetes.change_carrier import KubernetesCarrier
from engine.external.kubernetes.change_requests import ChangeApi
from engine.external.kubernetes.names import workload_id
from engine.external.kubernetes_api.transport import KubernetesTransport
from engine.external.observed_changes import new_intent
from engine.model.commands import AnyCommand, Define
from engine.model.specs import CellSpec, Resources, RunSpec, Settings, TaskGroup, WorkloadSpec
from engine.state.external_cell import Intent, Phase
from tests.support.patience import until

QUEUES = "/apis/kueue.x-k8s.io/v1beta2"
V1BETA2 = "kueue.x-k8s.io/v1beta2"
MANAGER = "fieldManager=muster&force=true"


class KueueQueue:
    """A namespace, its LocalQueue `mine`, and the ClusterQueue and flavor of it alone. The quotas belong to the
    manager `muster`."""

    def __init__(self, admin: Admin, *, gpus: int = 8, manager: str = "muster") -> None:
        self.admin = admin
        self.space = admin.namespace(f"t-{uuid.uuid4().hex[:8]}")
        self.name, flavor = f"q-{self.space}", f"f-{self.space}"
        self.local = f"{self.space}/mine"
        self.path = f"{QUEUES}/clusterqueues/{self.name}"
        admin.do("POST", f"{QUEUES}/resourceflavors", {
            "apiVersion": V1BETA2, "kind": "ResourceFlavor", "metadata": {"name": flavor}, "spec": {},
        })  # fmt: skip
        quotas = [{"name": "cpu", "nominalQuota": "96"}, {"name": "nvidia.com/gpu", "nominalQuota": str(gpus)}]
        groups = [{"coveredResources": ["cpu", "nvidia.com/gpu"], "flavors": [{"name": flavor, "resources": quotas}]}]
        queue = {
            "apiVersion": V1BETA2, "kind": "ClusterQueue", "metadata": {"name": self.name},
            "spec": {
                "cohortName": f"c-{self.space}", "resourceGroups": groups,
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.space}},
            },
        }  # fmt: skip
        admin.do("PATCH", f"{self.path}?fieldManager={manager}", queue, "application/apply-patch+yaml")
        admin.do("POST", f"{QUEUES}/namespaces/{self.space}/localqueues", {
            "apiVersion": V1BETA2, "kind": "LocalQueue", "metadata": {"name": "mine"},
            "spec": {"clusterQueue": self.name},
        })  # fmt: skip

    def job(self, name: str, *, pods: int = 1, gpus: int = 1, **labels: str) -> None:
        resources = {"requests": {"cpu": "100m", "nvidia.com/gpu": str(gpus)}, "limits": {"nvidia.com/gpu": str(gpus)}}
        self.admin.do("POST", f"/apis/batch/v1/namespaces/{self.space}/jobs", {
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "mine", **labels}},
            "spec": {
                "parallelism": pods, "completions": pods, "suspend": True,
                "template": {"metadata": {"labels": {"app": name}}, "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "main", "image": "none", "resources": resources}],
                }},
            },
        })  # fmt: skip

    def work_of(self, job: str) -> dict[str, Any]:
        """The Workload of a job, once there is one."""
        found: list[dict[str, Any]] = []

        def made() -> bool:
            items = self.admin.do("GET", f"{QUEUES}/namespaces/{self.space}/workloads")["items"]
            found[:] = [each for each in items if each["metadata"]["ownerReferences"][0]["name"] == job]
            return bool(found)

        until(made, lambda: job)
        return found[0]

    def id_of(self, job: str) -> str:
        about = self.work_of(job)["metadata"]
        return workload_id(self.space, about["name"], about["uid"])

    def is_admitted(self, job: str) -> bool:
        return bool(self.work_of(job).get("status", {}).get("admission"))

    def jobs(self) -> dict[str, dict[str, Any]]:
        items = self.admin.do("GET", f"/apis/batch/v1/namespaces/{self.space}/jobs")["items"]
        return {each["metadata"]["name"]: each for each in items}

    def pods(self, job: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.admin.do(
            "GET", f"/api/v1/namespaces/{self.space}/pods?labelSelector=app={job}"
        )["items"]
        return found

    def queue(self) -> dict[str, Any]:
        return self.admin.do("GET", self.path)

    def spec(self, name: str, **fields: Any) -> WorkloadSpec:
        """A workload to be submitted."""
        group = TaskGroup(count=fields.pop("count", 1), request=Resources(cpu_milli=100, gpu_milli=1000))
        return WorkloadSpec(
            id=name, queue=self.local, groups=(group,), run=RunSpec(argv=("sleep", "60")), tags={"image": "none"},
            **fields,
        )  # fmt: skip


class KubernetesRoom:
    """A cell, a cluster, and the carrier between them."""

    def __init__(self, line: KubernetesTransport, files: PatchFiles | None = None) -> None:
        self.engine = Engine.open(None)
        self.engine.acts = True
        self.engine.advance(time.time_ns() // 1_000_000)
        self.engine.command(Define(cell=CellSpec(name="gpu", settings=Settings(decided_by="kubernetes"))))
        self.api = ChangeApi(line)
        self.files = files
        self.later_s = 0.0
        """Our clock is ahead of the machine's by so much."""
        self.restart()

    def restart(self) -> None:
        """As after a restart of Muster."""
        journal: IntentJournal = EngineLedger(self.engine)
        self.carrier = KubernetesCarrier(
            self.api, journal, files=self.files, clock=lambda: time.monotonic() + self.later_s,
            wall_ms=lambda: self.engine.now_ms,
        )  # fmt: skip

    def want(self, command: AnyCommand) -> int:
        """Past the check at the door, which asks the mirrored state."""
        with self.engine._turn():
            number = self.engine.state.intents.issued
            self.engine._emit(new_intent(number, command))
        return number

    def turn(self, later_s: float = 0.0) -> None:
        self.later_s += later_s
        self.engine.advance(time.time_ns() // 1_000_000 + int(self.later_s * 1000))
        self.carrier.turn()

    def found(self, number: int) -> Intent:
        intents = self.engine.state.intents
        return intents.open.get(number) or next(i for i in intents.ended if i.number == number)

    def settled(self, number: int) -> Intent:
        def so() -> bool:
            self.turn()
            return Phase(self.found(number).phase).settled

        until(so, lambda: f"{self.found(number)} {self.carrier.trouble}")
        return self.found(number)

    def do(self, command: AnyCommand) -> tuple[Phase, str]:
        found = self.settled(self.want(command))
        return Phase(found.phase), found.text
