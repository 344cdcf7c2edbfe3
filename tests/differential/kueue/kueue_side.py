"""Lives on a real Kueue, several side by side: each has a namespace, queues and cohorts of its own.

A step has settled when every job has its workload, each workload is admitted or waits and the job shows it, Kueue's own
counts say the same and that it is looking at none, and nothing is due to be looked at again (`kueue_log`): found so
twice in a row.
"""

from __future__ import annotations

import re
import ssl
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import msgspec

from engine.external.kubernetes_api import kueue_objects as kueue
from engine.external.kubernetes_api.core_objects import KubernetesObject, ObjectPart
from engine.external.kubernetes_api.kinds import KUEUE, ObjectKind
from engine.external.kubernetes_api.observation import ClusterObservation
from engine.scheduling.kueue_cycles import MAX_STOPS
from tests.differential.kueue.kueue_log import KueueLog
from tests.differential.kueue.lives import Life, Step
from tests.differential.kueue.objects import LifeObjects, shared_by_all
from tests.differential.kueue.verdicts import Verdict, Verdicts, is_endless, without_end
from tests.support.kubernetes_cluster import KubernetesCluster
from tests.support.patience import PATIENCE_S, until

PENDING = re.compile(rb'^kueue_pending_workloads\{.*?cluster_queue="([^"]+)".*?status="(\w+)".*?\} (\d+)', re.M)
LOOK_S = 0.15
Versions = dict[str, str]
WRITERS = 8


class Eviction(ObjectPart, frozen=True):
    reason: str = ""
    count: int = 0


class SchedulingStats(ObjectPart, frozen=True):
    evictions: tuple[Eviction, ...] = ()


class CountedStatus(kueue.WorkloadStatus, frozen=True):
    scheduling_stats: SchedulingStats = SchedulingStats()


class CountedWorkload(KubernetesObject, frozen=True):
    """A workload with what Kueue counts of it."""

    spec: kueue.KueueWorkloadSpec = kueue.KueueWorkloadSpec()
    status: CountedStatus = CountedStatus()

    @property
    def job(self) -> str:
        return next((owner.name for owner in self.metadata.owner_references if owner.kind == "Job"), "")

    @property
    def preemptions(self) -> int:
        return sum(each.count for each in self.status.scheduling_stats.evictions if each.reason == "Preempted")

    @property
    def why(self) -> str:
        """Kueue's words for why it waits."""
        return next((each.message for each in self.status.conditions if each.type == "QuotaReserved"), "")

    def says(self, condition: str) -> bool:
        return any(each.type == condition and each.status == "True" for each in self.status.conditions)


class SuspendedJob(KubernetesObject, frozen=True):
    class Spec(ObjectPart, frozen=True):
        suspend: bool = False

    spec: Spec = Spec()


WORKLOADS = ObjectKind("workloads", CountedWorkload, KUEUE, "v1beta2")
JOBS = ObjectKind("jobs", SuspendedJob, "batch")


class KueueRoom:
    """A cluster that lives are played on, and all that is known of it."""

    def __init__(
        self, cluster: KubernetesCluster, observation: ClusterObservation, log: KueueLog, *, pods: bool
    ) -> None:
        self.log = log
        self.pods = pods
        self.known: dict[str, dict[str, dict[str, KubernetesObject]]] = {}
        """Namespace -> "jobs" or "workloads" -> name -> the object."""
        self.pending: dict[tuple[str, str], int] = {}
        """(cluster queue, "active" or "inadmissible") -> workloads, by Kueue's count."""
        self._observation = observation
        reach = cluster.reach()
        context = ssl.create_default_context(cafile=str(cluster.folder / "pki" / "ca.crt"))
        headers = {"Authorization": f"Bearer {reach.user.token}"}
        self._api = httpx.Client(
            base_url=reach.cluster.server, headers=headers, verify=context, trust_env=False, timeout=PATIENCE_S
        )
        loose = ssl.create_default_context()
        loose.check_hostname, loose.verify_mode = False, ssl.CERT_NONE
        at = msgspec.json.decode((cluster.folder / "kueue.json").read_bytes())["metrics"]["bindAddress"]
        self._metrics = httpx.Client(
            base_url=f"https://{at}", headers=headers, verify=loose, trust_env=False, timeout=PATIENCE_S
        )
        self.writers = ThreadPoolExecutor(WRITERS)

    def close(self) -> None:
        self.writers.shutdown()
        self._api.close()
        self._metrics.close()
        self.log.close()

    def all_nodes_open(self) -> bool:
        """Until it has heard of a new node's condition, Kubernetes keeps it closed by a taint."""
        return not any(node["spec"].get("taints") for node in self._api.get("/api/v1/nodes").json()["items"])

    def create(self, path: str, body: object) -> None:
        """It may be there already."""
        answer = self._api.post(path, json=body)
        assert answer.is_success or answer.status_code == 409, f"POST {path}: {answer.status_code} {answer.text[:500]}"

    def delete(self, path: str) -> None:
        answer = self._api.request("DELETE", path, json={"propagationPolicy": "Background"})
        assert answer.is_success or answer.status_code == 404, (
            f"DELETE {path}: {answer.status_code} {answer.text[:500]}"
        )

    def look(self) -> None:
        """Take in what has changed."""
        self.log.read()
        time.sleep(LOOK_S)
        for batch in self._observation.take(LOOK_S):
            for change in batch.changes:
                of_kind = self.known.setdefault(change.namespace, {}).setdefault(batch.kind.resource, {})
                if change.object is None:
                    of_kind.pop(change.name, None)
                else:
                    of_kind[change.name] = change.object
        text = self._metrics.get("/metrics").content
        self.pending = {(queue.decode(), state.decode()): int(n) for queue, state, n in PENDING.findall(text)}
        self.log.read()


@contextmanager
def room(cluster: KubernetesCluster, *, pods: bool) -> Iterator[KueueRoom]:
    """Once its nodes may take work. Without `pods` no job has any (`LifeObjects`)."""
    line = cluster.line()
    with ClusterObservation(line, (WORKLOADS, JOBS)) as observation:
        found = KueueRoom(cluster, observation, KueueLog(cluster.folder / "log" / "kueue.log"), pods=pods)
        try:
            for path, body in shared_by_all():
                found.create(path, body)
            until(found.all_nodes_open)
            yield found
        finally:
            found.close()


class KueueLife:
    """One life in a room."""

    def __init__(self, place: KueueRoom, life: Life, space: str, nodes: str) -> None:
        self.life = life
        self.space = space
        self._room = place
        self._objects = LifeObjects(life, space, nodes, pods=place.pods)
        self._live: list[str] = []
        self._preempted: dict[str, int] = {}
        self._seen: Versions | None = None
        """The versions of its objects when it was found quiet; None when it was not."""

    def define(self) -> None:
        for path, body in self._objects.definitions():
            self._room.create(path, body)
        for queue in self.life.queues:
            self._room.log.register(self.space, queue.name, self._objects.name(self.life.root(queue.name)))

    def begin(self, step: Step) -> None:
        self._seen = None
        for job in step.submit:
            self._live.append(job.name)
            self._preempted[job.name] = 0
            self._room.create(*self._objects.job(job))
        if step.end:
            self._live.remove(step.end)
            self._room.delete(f"/apis/batch/v1/namespaces/{self.space}/jobs/{step.end}")

    def settled(self) -> bool:
        """True at the second look in a row that finds it quiet with nothing changed meanwhile."""
        before = self._seen
        everything = [*self._jobs().values(), *self._workloads().values()]
        versions = {each.metadata.uid: each.metadata.resource_version for each in everything}
        self._seen = versions if self._is_quiet() else None
        return self._seen is not None and self._seen == before

    def _is_quiet(self) -> bool:
        jobs, works = self._jobs(), self._workloads()
        if jobs.keys() != set(self._live) or works.keys() != set(self._live):
            return False
        if not all(self._is_clear(work, jobs[name]) for name, work in works.items()):
            return False
        names = [self._objects.name(queue.name) for queue in self.life.queues]
        roots = {self._objects.name(self.life.root(queue.name)) for queue in self.life.queues}
        waiting = sum(work.status.admission is None for work in works.values())
        counted = sum(self._room.pending.get((name, "inadmissible"), 0) for name in names)
        looked_at = sum(self._room.pending.get((name, "active"), 0) for name in names)
        return not looked_at and counted == waiting and not roots & self._room.log.due

    def _is_clear(self, work: CountedWorkload, job: SuspendedJob) -> bool:
        """True if it is admitted or waits, and nothing is under way."""
        if work.status.admission is None:
            return not work.says("QuotaReserved") and job.spec.suspend
        return work.says("Admitted") and not work.says("Evicted") and not job.spec.suspend

    def unsettled(self) -> str:
        """What is missing, for whoever has waited too long."""
        names = [self._objects.name(queue.name) for queue in self.life.queues]
        pending = {key: n for key, n in self._room.pending.items() if key[0] in names and n}
        works = {
            name: (work.status.admission is not None, work.says("Evicted")) for name, work in self._workloads().items()
        }
        return f"{self.space}: live {self._live}, jobs {sorted(self._jobs())}, {works}, {pending}, {self._room.log.due}"

    def endless(self) -> set[str]:
        """The jobs that were preempted again and again in this step."""
        return {
            name
            for name, work in self._workloads().items()
            if work.preemptions - self._preempted.get(name, 0) > MAX_STOPS
        }

    def verdicts(self) -> Verdicts:
        if endless := self.endless():
            return without_end(self._live, endless)
        found: Verdicts = {}
        for name, work in self._workloads().items():
            before, self._preempted[name] = self._preempted[name], work.preemptions
            flavor, pods = "", 0
            if work.status.admission is not None:
                (assigned,) = work.status.admission.pod_set_assignments
                flavor, pods = assigned.flavors["cpu"].removeprefix(f"{self.space}-"), assigned.count
            found[name] = Verdict(flavor, pods, work.preemptions > before, why="" if flavor else work.why)
        return found

    def remove(self) -> None:
        """Without waiting for it: Kueue lets go of a queue once its work has gone."""
        for path in self._objects.removals():
            self._room.delete(path)

    def _jobs(self) -> dict[str, SuspendedJob]:
        found = self._room.known.get(self.space, {}).get("jobs", {})
        return {name: job for name, job in found.items() if isinstance(job, SuspendedJob)}

    def _workloads(self) -> dict[str, CountedWorkload]:
        found = self._room.known.get(self.space, {}).get("workloads", {})
        return {work.job: work for work in found.values() if isinstance(work, CountedWorkload)}


class LifePlay:
    """A life while it is played. At least a second passes between its steps: Kubernetes keeps times in seconds, and
    Kueue's order goes by them."""

    def __init__(self, place: KueueRoom, life: Life, space: str, nodes: str) -> None:
        self.found: list[Verdicts] = []
        """After each step."""
        self._life = KueueLife(place, life, space, nodes)
        self._steps = iter(life.steps)
        self._begun_s = 0
        self._doing = place.writers.submit(self._life.define)
        self._writers = place.writers
        self._end_s = time.monotonic() + PATIENCE_S

    def go_on(self) -> bool:
        """Take the next step if the last has settled. False once the life is over and removed."""
        if not self._doing.done():
            return True
        self._doing.result()
        if self._begun_s and not self._is_over():
            assert time.monotonic() < self._end_s, self._life.unsettled()
            return True
        if self._begun_s:
            self.found.append(self._life.verdicts())
        step = next(self._steps, None)
        if step is None or (self.found and is_endless(self.found[-1])):
            self._writers.submit(self._life.remove).result()
            return False
        self._begun_s, self._end_s = int(time.time()), time.monotonic() + PATIENCE_S
        self._doing = self._writers.submit(self._life.begin, step)
        return True

    def _is_over(self) -> bool:
        settled = self._life.settled() or bool(self._life.endless())
        return settled and int(time.time()) != self._begun_s


def play(
    place: KueueRoom, waiting: deque[tuple[Life, str]], *, places: int, at_once: int
) -> Iterator[tuple[Life, list[Verdicts]]]:
    """Play what waits, (life, namespace), also what comes to it meanwhile: `at_once` side by side, and of those with a
    topology as many as there are `places`. Each comes with the verdicts after each of its steps when it is over."""
    free = [str(number) for number in range(places)]
    going: list[tuple[Life, str, LifePlay]] = []
    while waiting or going:
        for _ in range(min(len(waiting), at_once - len(going))):
            life, space = waiting.popleft()
            if life.topology and not free:
                waiting.append((life, space))
                continue
            nodes = free.pop() if life.topology else "ample"
            going.append((life, nodes, LifePlay(place, life, space, nodes)))
        place.look()
        over = [entry for entry in going if not entry[2].go_on()]
        going = [entry for entry in going if entry not in over]
        for life, nodes, played in over:
            if life.topology:
                free.append(nodes)
            yield life, played.found
