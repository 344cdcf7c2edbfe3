"""The mirror of one Kubernetes cluster in one engine: what was observed there becomes observations of the cell.

Changes are gathered in tables as they come (`cluster_tables`). A pass makes observations of what was marked since the
last one, and tells the engine those that differ from the last it was told. Nothing is told before every kind was listed
once: half a cluster is none. What the cell has from before, and the cluster no longer, is told as gone with the first
pass. The mirror keeps nothing that another first list would not find again.

So everything is listed anew after a restart, and no watch is resumed from a kept version: the cell's journal has
workloads and not the objects that they were made of, which a watch would leave unknown. To keep them too would cost
more than it saves: 100,000 pods listed are 1.4 to 3.3 s of CPU time (`docs/kubernetes.md`).
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from engine.control import Engine
from engine.external.kubernetes.cluster_tables import ClusterTables, TableChanges
from engine.external.kubernetes.model_comparison import ModelComparison
from engine.external.kubernetes.names import node_id, workload_id
from engine.external.kubernetes.node_mapping import NodeMapping
from engine.external.kubernetes.queue_mapping import QueueMapping
from engine.external.kubernetes.workload_mapping import ENDS, NOT_READ, ClusterFacts, PodRecord, WorkloadMapping
from engine.external.kubernetes_api.kinds import KUEUE, ObjectKind
from engine.external.kubernetes_api.kueue_objects import Workload
from engine.external.kubernetes_api.observation import ClusterObservation
from engine.external.kubernetes_api.reflector import ReflectorReport
from engine.external.kubernetes_api.resources import ResourceReader
from engine.external.kubernetes_api.transport import KubernetesTransport
from engine.external.mirror_pass import Call, MirrorPass, live_of, tell
from engine.external.mirror_report import LeftOut, UnsupportedCounts
from engine.model import external_cells as seen
from engine.model.errors import MusterError, UnreachableError
from engine.model.specs import NodeSpec, Policy, PoolSpec

BEAT_S = 0.5
"""From one pass to the next, while anything changes."""
AGAIN_S = 5.0
"""After a fault of our own."""
_CONFIG = frozenset(["resourceflavors", "topologies", "clusterqueues", "cohorts", "localqueues"])
_OF_QUEUES = _CONFIG - {"topologies"}
_COUNTED_EVERY_S = 10.0
_GIVES_UP = ("denied", "refused")


class CellBefore(NamedTuple):
    """What the cell has when a mirror begins."""

    pools: tuple[PoolSpec, ...]
    nodes: frozenset[str]
    queues: tuple[seen.QueueSeen, ...]
    live: frozenset[str]


class ClusterMirror:
    """`look` is called by one thread; the rest may be called from any."""

    def __init__(
        self, tables: ClusterTables, reader: ResourceReader, call: Call, wall_s: Callable[[], float], *, policy: Policy
    ) -> None:
        """`policy`: the model of the cluster's scheduler that forks decide by."""
        self.tables = tables
        self._policy = seen.PolicySeen(policy=policy)
        self._reader = reader
        self._call = call
        self._wall_s = wall_s
        self.comparison = ModelComparison(call) if policy == "kueue" else None
        self._before: CellBefore | None = None
        self._nodes = NodeMapping(reader)
        self._facts: ClusterFacts | None = None
        self._config: Any = None
        self._told: dict[tuple[str, str], seen.AnySeen] = {}
        self._workloads: dict[str, seen.WorkloadSeen] = {}
        """UID -> what was told of it last."""
        self._uid_of: dict[str, str] = {}
        """Workload of the cell -> UID, of those in `_workloads`."""
        self._classes: set[str] = set()
        self._again: set[str] = set()
        """UIDs of Workloads that were cut for lack of room, to be told once more."""
        self._left_queues = UnsupportedCounts()
        self._left: dict[str, UnsupportedCounts] = {}
        """UID of a Workload -> what is left out of it."""
        self._left_engine: tuple[str, ...] = ()
        self._counted: tuple[LeftOut, ...] = ()
        self._counted_at = -1e9

    # -- for any thread -----------------------------------------------------------------------------------------------

    def left_out(self) -> tuple[LeftOut, ...]:
        """The things that Kubernetes and Kueue go by and the mirror does not, as of some seconds ago."""
        own = tuple(LeftOut(text=text, count=1, examples=()) for text in self._left_engine)
        return (*self._counted, *own, NOT_READ)

    def workload_of(self, name: str) -> tuple[Workload, list[PodRecord]] | None:
        """The Workload that a workload of the cell stands for, with its pods."""
        uid = self._uid_of.get(name, "")
        found = self.tables.of_kind("workloads").get(uid)
        return None if found is None else (found, self.tables.pods_of(uid))

    # -- a pass -------------------------------------------------------------------------------------------------------

    def start_over(self) -> None:
        """Have the next pass tell everything."""
        self._before = None
        self._told, self._workloads, self._uid_of, self._facts, self._config = {}, {}, {}, None, None

    def look(self) -> MirrorPass:
        """Tell what was marked since the last pass. Raises UnreachableError where the engine is gone."""
        began = time.monotonic()
        changes = self.tables.take_changes()
        first = self._before is None
        if self._before is None:
            self._before = self._call(_cell_before)
            self._nodes = NodeMapping(self._reader, self._before.pools)
        told = self._observations(changes, self._before if first else None)
        try:
            if first or self.comparison is None:
                self._tell(told)
            else:
                self._tell_and_compare(told, self.comparison)
        except BaseException:
            self.start_over()
            raise
        if first or began - self._counted_at > _COUNTED_EVERY_S:
            self._count_left_out()
        return MirrorPass(
            at_s=self._wall_s(),
            jobs=len(self.tables.of_kind("workloads")),
            nodes=len(self.tables.of_kind("nodes")),
            changed=len(told),
            asked_s=0.0,
            told_s=time.monotonic() - began,
            unchanged=not told,
        )

    def _observations(self, changes: TableChanges, before: CellBefore | None) -> list[seen.AnySeen]:
        of_kind = self.tables.of_kind
        divided = self._nodes.learn(of_kind("resourceflavors").values(), of_kind("topologies").values())
        everything = divided or before is not None
        nodes = of_kind("nodes") if everything else {uid: of_kind("nodes")[uid]
                                                     for uid in changes.nodes if uid in of_kind("nodes")}  # fmt: skip
        placed = self._nodes.observed(nodes.values())
        pools = [seen.PoolSeen(pool=pool) for pool in self._nodes.pools.values()]
        new_nodes = self._news(placed)
        moved = {each.node.id for each in new_nodes if isinstance(each, seen.NodeSeen) and self._is_other(each)}
        for name in moved:
            self._told.pop(("node-load", name), None)
        queues = self._new_queues(changes, before)
        uids = self._uids(changes, moved, self._config_changed() or everything)
        facts, classes = self._new_workloads(uids)
        loads = changes.loads | moved
        if before is not None:
            loads = {node_id(each.metadata.name) for each in of_kind("nodes").values()}
        leaving = [fact for fact in facts if not fact.holds]
        coming = [fact for fact in facts if fact.holds]
        gone = self._gone(changes, before)
        new_loads = self._news([self.tables.load_of(node) for node in sorted(loads)])
        return [
            *self._news([self._policy]),
            *self._news(pools),
            *gone,
            *new_nodes,
            *queues,
            *classes,
            *leaving,
            *new_loads,
            *coming,
        ]

    def _news(self, observed: Sequence[seen.AnySeen]) -> list[seen.AnySeen]:
        """Those that differ from what was told."""
        return [each for each in observed if self._told.get(_subject(each)) != each]

    def _is_other(self, each: seen.NodeSeen) -> bool:
        """True if the cell may take it for another node than before: what is on it is told again."""
        told = self._told.get(_subject(each))
        return not isinstance(told, seen.NodeSeen) or _where(told.node) != _where(each.node)

    def _new_queues(self, changes: TableChanges, before: CellBefore | None) -> list[seen.AnySeen]:
        """Queues that differ. What workloads are matched against is made anew where anything of it is another."""
        of_kind = self.tables.of_kind
        flavors = {each.metadata.name: each for each in of_kind("resourceflavors").values()}
        pools_of = {name: self._nodes.pools_of(flavor) for name, flavor in flavors.items()}
        if self._facts is not None and pools_of == self._facts.pools_of and changes.kinds.isdisjoint(_OF_QUEUES):
            return []
        left = UnsupportedCounts()
        queues = QueueMapping(
            self._reader, of_kind("cohorts").values(), of_kind("clusterqueues").values(), pools_of, left
        )
        self._left_queues = left
        self._facts = ClusterFacts(
            reader=self._reader,
            queues=queues,
            level_of=self._nodes.level_of,
            cluster_queues={each.metadata.name: each for each in of_kind("clusterqueues").values()},
            local_queues={(each.metadata.namespace, each.metadata.name): each
                          for each in of_kind("localqueues").values()},
            flavors=flavors,
            pools_of=pools_of,
        )  # fmt: skip
        observed = queues.observed()
        names = {each.queue.name for each in observed}
        known = [told for told in self._told.values() if isinstance(told, seen.QueueSeen)]
        known += before.queues if before is not None else ()
        gone = [_closed(told) for told in known if told.queue.name not in names]
        return self._news([*observed, *gone])

    def _config_changed(self) -> bool:
        """Return whether workloads are matched against something else than in the last pass."""
        facts = self._facts
        assert facts is not None
        now = (
            facts.pools_of,
            dict(facts.level_of),
            {name: each.spec for name, each in facts.cluster_queues.items()},
            {name: each.spec for name, each in facts.local_queues.items()},
            {name: each.spec for name, each in facts.flavors.items()},
        )
        before, self._config = self._config, now
        return bool(now != before)

    def _uids(self, changes: TableChanges, moved: set[str], everything: bool) -> Iterable[str]:
        """Workloads to be looked at."""
        every = self.tables.of_kind("workloads")
        if everything:
            return list(every)
        uids = changes.workloads | self._again
        for uid, told in self._workloads.items():
            if told.phase == "waiting" and told.wake_ms <= self._wall_s() * 1000:
                uids.add(uid)
            elif not moved.isdisjoint(held.node for held in told.holds):
                uids.add(uid)
                self._again.add(uid)
        return [uid for uid in uids if uid in every]

    def _new_workloads(self, uids: Iterable[str]) -> tuple[list[seen.WorkloadSeen], list[seen.AnySeen]]:
        """(those that differ, priority classes that were not told)"""
        assert self._facts is not None
        of_kind = self.tables.of_kind("workloads")
        facts: list[seen.WorkloadSeen] = []
        mapping = WorkloadMapping(self._facts, self._wall_s())
        for uid in uids:
            pods = self.tables.pods_of(uid)
            mapping.left = UnsupportedCounts()
            fact = mapping.observed(of_kind[uid], pods)
            self._left.pop(uid, None)
            if mapping.left.any:
                self._left[uid] = mapping.left
            if fact is None:
                continue
            told = self._workloads.get(uid)
            if told is not None and not any(pod.said for pod in pods):
                fact = between_pods(told, fact)
            if fact != told or uid in self._again:
                facts.append(fact)
                self._workloads[uid] = fact
                self._uid_of[fact.spec.id] = uid
        self._again = set()
        classes: list[seen.AnySeen] = [
            seen.PriorityClassSeen(priority_class=spec)
            for name, spec in mapping.classes.items()
            if name not in self._classes
        ]
        self._classes |= mapping.classes.keys()
        facts.sort(key=lambda fact: (bool(fact.holds), fact.submitted_ms, fact.spec.id))
        return facts, classes

    def _gone(self, changes: TableChanges, before: CellBefore | None) -> list[seen.AnySeen]:
        """Nodes and workloads that the cluster no longer has."""
        every = self.tables.of_kind("workloads")
        found: list[seen.AnySeen] = []
        now_ms = int(self._wall_s() * 1000)
        for uid in [uid for uid in self._workloads if uid not in every]:
            told = self._workloads.pop(uid)
            self._uid_of.pop(told.spec.id, None)
            self._left.pop(uid, None)
            if told.phase not in ENDS:
                found.append(
                    msgspec.structs.replace(told, phase="cancelled", holds=(), reserves=(), ended_ms=now_ms, cause="")
                )
        names = {node_id(each.metadata.name) for each in self.tables.of_kind("nodes").values()}
        lost = set(changes.nodes_gone)
        if before is not None:
            lost |= before.nodes
            known = {workload_id(each.metadata.namespace, each.metadata.name, each.metadata.uid)
                     for each in every.values()}  # fmt: skip
            found += [seen.WorkloadGone(id=name) for name in sorted(before.live - known)]
        for name in sorted(lost - names):
            self._told.pop(("node", name), None)
            self._told.pop(("node-load", name), None)
            found.append(seen.NodeGone(id=name))
        return found

    def _tell_and_compare(self, told: list[seen.AnySeen], comparison: ModelComparison) -> None:
        """What makes room is told before what Kueue gave it to: in between the model is asked to whom it gives it."""
        admitted = [each for each in told if isinstance(each, seen.WorkloadSeen) and (each.holds or each.reserves)
                    and not each.cause]  # fmt: skip
        coming = {id(each) for each in admitted}
        self._tell([each for each in told if id(each) not in coming])
        fork = comparison.fork(changed=bool(told))
        self._tell(list(admitted))
        comparison.look(fork, admitted, self._wall_s())

    def _tell(self, told: list[seen.AnySeen]) -> None:
        left: list[str] = []
        for part, out in tell(self._call, told):
            left += out
            for each in part:
                if not isinstance(each, seen.WorkloadSeen | seen.WorkloadGone | seen.NodeGone):
                    self._told[_subject(each)] = each
        if told:
            self._left_engine = tuple(left[:100])
        if left and not self._again:
            self._tell_again(told, left)

    def _tell_again(self, told: list[seen.AnySeen], left: list[str]) -> None:
        """What was cut for lack of room may have it now that all was told."""
        text = "\n".join(left)
        self._again = {uid for uid, fact in self._workloads.items() if fact.holds and f"'{fact.spec.id}'" in text}
        for each in told:
            if isinstance(each, seen.NodeLoadSeen) and f"'{each.node}'" in text:
                self._told.pop(_subject(each), None)

    def _count_left_out(self) -> None:
        left = UnsupportedCounts()
        for each in (self._nodes.left, self._left_queues, *self._left.values()):
            left.add(each)
        self.tables.note_left_out(left)
        for name, count in self._reader.unknown.items():
            left.note(f"the resource '{name}' is not counted", name, count)
        pods, queues = self.tables.loose_pods(), self.tables.of_kind("localqueues")
        if pods:
            left.note("pods of no queue count as load of their nodes", "", pods)
        for queue in queues.values():
            left.note("local queues are teams of the cell, not queues",
                      f"{queue.metadata.namespace}/{queue.metadata.name}")  # fmt: skip
        self._counted = left.all()
        self._counted_at = time.monotonic()


def between_pods(told: seen.WorkloadSeen, fact: seen.WorkloadSeen) -> seen.WorkloadSeen:
    """While the last pods of an admitted workload have ended and the next have not come, nor the scheduler has tried
    to place them, it stays where it was: as a rule its end, or theirs, is about to be told."""
    if fact.phase == "queued" and fact.reserves and told.holds and told.started_ms == fact.started_ms:
        return msgspec.structs.replace(fact, phase=told.phase, holds=told.holds, reserves=told.reserves, word=told.word)
    return fact


def _closed(queue: seen.QueueSeen) -> seen.QueueSeen:
    """A queue that the cluster no longer has: the cell keeps it, with no quota."""
    spec = msgspec.structs.replace(queue.queue, nominal={}, borrowing_limit={}, lending_limit={}, flavors=())
    return seen.QueueSeen(queue=spec, open=False)


def _where(node: NodeSpec) -> tuple[str, ...]:
    return node.pool, node.region, node.zone, node.block, node.rack


def _subject(each: seen.AnySeen) -> tuple[str, str]:
    match each:
        case seen.PoolSeen(pool=pool):
            return "pool", pool.name
        case seen.NodeSeen(node=node):
            return "node", node.id
        case seen.NodeLoadSeen(node=name):
            return "node-load", name
        case seen.QueueSeen(queue=queue):
            return "queue", queue.name
        case seen.PriorityClassSeen(priority_class=spec):
            return "priority class", spec.name
        case seen.PolicySeen():
            return "policy", ""
    raise MusterError(f"{type(each).__name__} has no subject here", "")


def _cell_before(engine: Engine) -> CellBefore:
    state = engine.state
    return CellBefore(
        pools=tuple(state.capacity.pools),
        nodes=frozenset(state.capacity.row_of),
        queues=tuple(seen.QueueSeen(queue=spec) for spec in state.queues.specs),
        live=frozenset(live_of(engine)),
    )


class ClusterWatch:
    """A mirror on a thread of its own, which follows the cluster from `start` until `stop`. Any thread may ask."""

    def __init__(
        self,
        line: KubernetesTransport,
        kinds: Sequence[ObjectKind],
        call: Call,
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._kinds = {kind.resource for kind in kinds}
        self.has_kueue = any(kind.group == KUEUE for kind in kinds)
        self._wall_s = wall_s
        self._observation = ClusterObservation(line, kinds)
        reader = ResourceReader()
        policy: Policy = "kueue" if self.has_kueue else "easy"
        self.mirror = ClusterMirror(ClusterTables(reader), reader, call, wall_s, policy=policy)
        self.last: MirrorPass | None = None
        self.passes = 0
        self.fault = ""
        """Why it does not follow, by a fault of our own."""
        self.listed_s = 0.0
        """Seconds from the start to the first pass that was told."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def reports(self) -> dict[str, ReflectorReport]:
        """Resource -> how it is followed."""
        return self._observation.reports()

    def _run(self) -> None:
        began = time.monotonic()
        with self._observation:
            while not self._stopping.is_set():
                for batch in self._observation.take(BEAT_S):
                    self.mirror.tables.apply(batch)
                if not self._is_whole():
                    continue
                try:
                    self.last = self.mirror.look()
                except UnreachableError:
                    self._stopping.wait(BEAT_S)  # the engine is stopping, or has not begun
                    continue
                except Exception as error:
                    traceback.print_exc()
                    self.fault = f"internal error of Muster: {type(error).__name__}: {error}"
                    self.mirror.start_over()
                    self._stopping.wait(AGAIN_S)
                    continue
                self.fault = ""
                self.passes += 1
                self.listed_s = self.listed_s or time.monotonic() - began

    def _is_whole(self) -> bool:
        """Return whether each kind was listed once, or cannot be."""
        waiting = self._kinds - self.mirror.tables.listed
        if waiting:
            reports = self.reports()
            waiting = {kind for kind in waiting if reports[kind].state not in _GIVES_UP}
        return not waiting
