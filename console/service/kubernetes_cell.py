"""The mirror of a Kubernetes cluster in an engine's process: its line, its watch, and their answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.external.kubernetes.acting import ActBy
from engine.external.mirror_report import FollowedKind, Mirrored, MirrorReport
from engine.model.errors import MusterError, NotFoundError, RefusedError
from recommender.history.metrics import OutsideNames

if TYPE_CHECKING:
    from engine.executors.task_files import OutputPart, OutputRequest
    from engine.external.kubernetes.change_carrier import KubernetesDriver
    from engine.external.kubernetes.cluster_mirror import ClusterWatch
    from engine.external.kubernetes_api.capabilities import KubernetesCapabilities
    from engine.external.kubernetes_api.reflector import ReflectorReport
    from engine.loop import EngineLoop
    from engine.model.external_cells import FarLook
    from engine.state.external_cell import Intent

AGAIN_S = 5.0
"""Until a cluster that did not answer is asked again."""
PATCHES = "patches"
"""Folder in that of the cell."""
OLD_S = 180.0
"""An API server sends a bookmark a minute, so what was heard of no kind for so long may be old."""


@dataclass(frozen=True)
class KubernetesAt:
    """The cluster, and how it is reached. `kueue` False: its Kueue, if it has one, is not looked at. `acts`: what is
    decided here is carried out there, by the API server or by patch files."""

    context: str = ""
    kubeconfig: str = ""
    in_cluster: bool = False
    insecure: bool = False
    kueue: bool = True
    acts: bool = False
    act_by: ActBy = "api"


class KubernetesCell:
    """The mirror of one engine loop. The answers are those of `SlurmCell`. A cluster that is away when the engine
    starts is asked again until it answers."""

    def __init__(self, loop: EngineLoop, at: KubernetesAt, folder: Path | None = None) -> None:
        """`folder`: of the cell, for patch files. Raises SpecError and RefusedError where the kubeconfig is not to be
        used."""
        from engine.external.kubernetes_api.kubeconfig import reach_of
        from engine.external.kubernetes_api.transport import KubernetesTransport

        reach = reach_of(
            os.environ, file=at.kubeconfig, context=at.context, in_cluster=at.in_cluster, insecure=at.insecure
        )
        self._at = at
        self._loop = loop
        self._line = KubernetesTransport(reach)
        self._can: KubernetesCapabilities | None = None
        self._began_s = time.time()
        self._error = ""
        self._watch: ClusterWatch | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._begin, name="mirror-begin", daemon=True)
        self.driver: KubernetesDriver | None = None
        """Where Muster may act on the cluster."""
        if at.acts:
            from engine.external.kubernetes.acting import PatchFiles
            from engine.external.kubernetes.change_carrier import KubernetesDriver

            files = PatchFiles((folder or Path.cwd()) / PATCHES) if at.act_by == "patch" else None
            # A line of its own: acts do not wait behind lists.
            self._acting = KubernetesTransport(reach)
            self.driver = KubernetesDriver(self._acting, loop, files=files)

    def start(self) -> None:
        self._thread.start()
        if self.driver is not None:
            self.driver.start()

    def stop(self) -> None:
        if self.driver is not None:
            self.driver.stop()
            self._acting.close()
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._watch is not None:
            self._watch.stop()
        self._line.close()

    def _begin(self) -> None:
        from engine.external.kubernetes.cluster_mirror import ClusterWatch
        from engine.external.kubernetes_api.capabilities import capabilities
        from engine.external.kubernetes_api.kinds import KUEUE

        while not self._stopping.is_set():
            try:
                self._can = capabilities(self._line)
            except MusterError as error:
                self._error = str(error)
                self._stopping.wait(AGAIN_S)
                continue
            kinds = [kind for kind in self._can.readable() if self._at.kueue or kind.group != KUEUE]
            self._error = "" if kinds else "nothing of this cluster can be read: muster kubernetes look"
            watch = ClusterWatch(self._line, kinds, self._loop.call)
            watch.start()
            self._watch = watch
            return

    def report(self) -> MirrorReport:
        watch, can = self._watch, self._can
        kinds = () if watch is None else followed(watch.reports().items())
        lost = next((f"{each.resource}: {each.trouble}" for each in kinds if each.state == "lost"), "")
        last = watch.last if watch is not None else None
        error = self._error or (watch.fault if watch is not None else "") or lost
        age_s = max((each.age_s for each in kinds if each.age_s >= 0), default=0.0)
        report = MirrorReport(
            where=self._line.reach.cluster.address,
            state="lost" if error else "following" if last is not None else "starting",
            scheduler="Kubernetes",
            release=can.version if can is not None else "",
            dialect=", ".join(can.kueue) if can is not None and self._at.kueue else "",
            user=self._line.credentials.acts_as,
            error=error,
            since_s=self._began_s,
            every_s=OLD_S / 2,
            lacks=self._lacks(kinds),
            rpcs=self._line.requests,
            kinds=kinds,
            acts=self.driver is not None,
            trouble=self.driver.trouble if self.driver is not None else "",
        )
        if watch is None or last is None:
            return report
        comparison = watch.mirror.comparison
        return msgspec.structs.replace(
            report,
            looked_s=time.time() - age_s,
            jobs=last.jobs,
            nodes=last.nodes,
            looks=watch.passes,
            asked_s=watch.listed_s,
            told_s=last.told_s,
            left_out=watch.mirror.left_out(),
            agreement=comparison.report() if comparison is not None else None,
        )

    def outside_names(self, ids: Sequence[str]) -> OutsideNames:
        """The pods of these workloads."""
        if self._watch is None:
            return OutsideNames()
        found = [(name, self._watch.mirror.workload_of(name)) for name in ids]
        return OutsideNames(
            pods={(pod.namespace, pod.name): name for name, known in found if known is not None for pod in known[1]}
        )

    def _lacks(self, kinds: Sequence[FollowedKind]) -> dict[str, str]:
        known = self._can.kinds if self._can is not None else ()
        absent = {each.resource: each.why for each in known if each.can != "read"}
        return absent | {each.resource: each.trouble for each in kinds if each.state in ("denied", "refused")}

    def trouble(self) -> str:
        """Reason why the view of the cluster is old; empty while it is fresh."""
        from console.views.external_scheduler import mirror_trouble

        return mirror_trouble(self.report(), time.time())

    def mirrored(self, workload_id: str) -> Mirrored:
        """What Kueue and the scheduler say of the workload. Raises NotFoundError."""
        from engine.external.kubernetes.scheduler_voices import voices_of

        found = None if self._watch is None else self._watch.mirror.workload_of(workload_id)
        if found is None or self._watch is None:
            raise NotFoundError(
                f"Kubernetes has no Workload for '{workload_id}'", "It was deleted: the cell remembers how it ended"
            )
        workload, pods = found
        comparison = self._watch.mirror.comparison
        kept = comparison is not None and comparison.disagrees(workload_id)
        why = "Kueue keeps it waiting, and our model of Kueue would start it now" if kept else ""
        return voices_of(workload_id, workload, pods, time.time(), why)

    def job_output(self, request: OutputRequest) -> OutputPart:
        """Raises RefusedError: logs of pods are not read."""
        raise RefusedError(f"the output of '{request.id}' is in the logs of its pods", "Use: kubectl logs")

    def evidence(self, intent: Intent) -> FarLook | None:
        """What the cluster shows of an intent. None: nothing is sent to a cluster that is only observed."""
        return None if self.driver is None else self.driver.evidence(intent, time.time_ns() // 1_000_000)

    def has_output(self) -> bool:
        """Return whether there may be any."""
        return True

    def shown(self, ids: Sequence[str]) -> None:
        """All that changes is told at once: nothing has to be kept fresh."""


def followed(reports: Iterable[tuple[str, ReflectorReport]]) -> tuple[FollowedKind, ...]:
    now = time.monotonic()
    return tuple(
        FollowedKind(
            resource=name,
            state=each.state,
            objects=each.objects,
            age_s=now - each.heard_s if each.heard_s else -1.0,
            trouble=each.trouble,
        )
        for name, each in reports
    )
