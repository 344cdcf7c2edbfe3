"""Observations of a scheduler that decides become events, and commands in its cell become intents.

`ObservationFold` compares each observation with the state and yields the events that lead there, so that the cell's own
journal mirrors the cluster. What happened in between is made up for. Whatever the scheduler says, no resource falls
below zero and no gang is half bound: what does not fit is counted as far as there is room, and named in `left_out`.

`intend` is the check at the door of such a cell. A command that Slurm can be asked for becomes an intent; any other is
refused.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Generator, Iterator, Mapping
from itertools import pairwise

import msgspec

from engine.admission import definitions as df
from engine.admission.definitions import Checked, check_queues
from engine.admission.submissions import check_submission, is_usual
from engine.capacity.devices import closest
from engine.command_checks import check
from engine.external.kubernetes.job_manifests import check_job as check_kueue_job
from engine.external.slurm.job_requests import check as check_slurm_job
from engine.external.task_bindings import NodeRoom, bindings, held_tasks, loads_event, shown_tasks
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model import external_cells as seen
from engine.model.commands import CARRIED, why_not
from engine.model.errors import MusterError, RefusedError, SpecError, listed
from engine.model.external_cells import MAX_RUNS
from engine.model.specs import (
    RESOURCES,
    NodeSpec,
    NodeState,
    PoolSpec,
    QueueMode,
    Resources,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
    check_id,
    check_node,
    check_pool,
    check_workload,
)
from engine.state import workloads as wl
from engine.state.cell_state import State, members
from engine.state.external_cell import answered_by

MIN_AT_ONCE = 8
"""New workloads that are told together: fewer are quicker one by one."""
MAX_LEFT_OUT = 1000
"""Lines that one command names."""
_STANDING = {
    "ready": NodeState.READY,
    "cordoned": NodeState.CORDONED,
    "draining": NodeState.DRAINING,
    "down": NodeState.DOWN,
}
_WAITS = ("queued", "held", "waiting")
_HOLDS = ("starting", "running")
_OUTSIDE = ev.EVICTION_CAUSES.index("decided outside")


class ObservationFold:
    """One command Observe being taken in. `events` is to be applied one by one as it yields: what follows depends on
    what came before. Nothing that was seen makes it raise: what cannot be taken is left out and named."""

    def __init__(self, state: State, command: cmd.Observe, now_ms: int) -> None:
        self._state = state
        self._command = command
        self._now_ms = now_ms
        self._sound: set[tuple[TaskGroup, ...]] = set()
        """Groups of workloads found sound: many jobs ask for the same."""
        self.changed: dict[str, None] = {}
        """Ids that it touched, in order."""
        self.left_out: list[str] = []
        """One line for each thing that could not be taken as it was seen."""
        self._words: list[tuple[int, str]] = []
        self._draws: dict[int, tuple[tuple[str, int], ...]] = {}
        """By row: what it draws from caps, where that is news."""

    def events(self) -> Iterator[ev.AnyEvent]:
        for group in _grouped(self._command.seen):
            if isinstance(group[0], seen.NodeSeen):
                yield from self._nodes([each for each in group if isinstance(each, seen.NodeSeen)])
                continue
            if isinstance(group[0], seen.NodeLoadSeen):
                yield from self._loads([each for each in group if isinstance(each, seen.NodeLoadSeen)])
                continue
            if isinstance(group[0], seen.WorkloadSeen):
                yield from self._workloads([each for each in group if isinstance(each, seen.WorkloadSeen)])
                continue
            for each in group:
                yield from self._noting(self._one(each))
        yield from self._said()
        if self._draws:
            yield ev.CapsTold(None, array("i", self._draws).tobytes(), tuple(self._draws.values()))

    def note(self, line: str) -> None:
        if len(self.left_out) < MAX_LEFT_OUT:
            self.left_out.append(line)

    def _noting(self, events: Iterator[ev.AnyEvent]) -> Iterator[ev.AnyEvent]:
        """These up to the first error, which is named."""
        try:
            yield from events
        except MusterError as error:
            self.note(str(error))

    def _one(self, each: seen.AnySeen) -> Iterator[ev.AnyEvent]:
        match each:
            case seen.WorkloadGone(id=name):
                yield from self._workload_gone(name)
            case seen.PoolSeen(pool=pool):
                yield from self._pool(pool)
            case seen.NodeGone(id=name):
                yield from self._node_gone(name)
            case seen.QueueSeen():
                yield from self._queue(each)
            case seen.PriorityClassSeen(priority_class=spec):
                check_id(spec.name, "priority class")
                if spec.name not in self._state.workloads.priority_of:
                    yield ev.PriorityClassAdded(df.canonical(spec))
            case seen.ReservationSeen():
                yield from self._reservation(each)
            case seen.ReservationGone(name=name):
                if any(r.spec.name == name for r in self._state.bookings.reservations):
                    self.changed[name] = None
                    yield ev.Unreserved(name)
            case seen.CapsSeen(most=most):
                yield ev.CapsTold(most)
            case seen.PolicySeen(policy=policy):
                if policy != self._state.policy:
                    yield ev.PolicySet(policy)
            case seen.PastSeen(runs=runs, until_ms=until_ms):
                yield ev.RunsTold(runs[-MAX_RUNS:], min(until_ms, self._now_ms))

    # -- what there is ------------------------------------------------------------------------------------------------

    def _pool(self, pool: PoolSpec) -> Iterator[ev.AnyEvent]:
        check_pool(pool, f"pool '{pool.name[:64]}'")
        known = self._state.capacity.pool_of.get(pool.name)
        if known is None:
            self.changed[pool.name] = None
            yield ev.PoolAdded(df.canonical(pool))
        elif self._state.capacity.pools[known].capacity != pool.capacity:
            raise RefusedError(
                f"pool '{pool.name}' already has different machines", "Put different machines into another pool"
            )

    def _nodes(self, group: list[seen.NodeSeen]) -> Iterator[ev.AnyEvent]:
        """Many at once: new ones are one event. A node that went to another pool or place is another node only where
        its machine cannot be the same."""
        capacity = self._state.capacity
        new: list[NodeSpec] = []
        moved: dict[int, NodeSpec] = {}
        relabelled: list[NodeSpec] = []
        for each in group:
            node = each.node
            row = capacity.row_of.get(node.id)
            if row is not None and not self._is_same(row, node):
                pool = capacity.pool_of.get(node.pool)
                if pool is not None and capacity.can_move(row, pool):
                    moved[row] = node
                    continue
                yield from self._node_gone(node.id)
                row = None
            if row is None:
                new.append(node)
            elif not self._is_labelled(row, node):
                relabelled.append(node)
        new += yield from self._moved_nodes([node for node in moved.values() if self._is_sound(node)])
        yield from self._relabelled(relabelled)
        yield from self._added(new)
        for standing, state in _STANDING.items():
            rows = [capacity.row_of[each.node.id] for each in group
                    if each.standing == standing and each.node.id in capacity.row_of]  # fmt: skip
            turning = [row for row in rows if capacity.state[row] != state]
            if turning:
                self.changed |= dict.fromkeys(capacity.node_ids[row] for row in turning)
                yield ev.NodesChanged(array("i", turning).tobytes(), state)
        yield from self._boots(group)

    def _boots(self, group: list[seen.NodeSeen]) -> Iterator[ev.AnyEvent]:
        row_of, known = self._state.capacity.row_of, self._state.outside.boot_ms
        told: dict[int, list[int]] = {}
        for each in group:
            row = row_of.get(each.node.id)
            if row is not None and known.get(row, 0) != each.boot_ms:
                told.setdefault(each.boot_ms, []).append(row)
        for boot_ms, rows in told.items():
            yield ev.BootsTold(array("i", rows).tobytes(), boot_ms)

    def _loads(self, group: list[seen.NodeLoadSeen]) -> Iterator[ev.AnyEvent]:
        row_of = self._state.capacity.row_of
        known = [(row_of[each.node], each.resources, each.pods) for each in group if each.node in row_of]
        if known:
            self.changed |= dict.fromkeys(each.node for each in group)
            yield loads_event(self._state, known, self.note)

    def _added(self, new: list[NodeSpec]) -> Iterator[ev.AnyEvent]:
        """All of them at once; where one is not sound, those that are."""
        try:
            yield from df.add_nodes(self._state, cmd.AddNodes(nodes=tuple(new)))[0]
            self.changed |= dict.fromkeys(node.id for node in new)
        except MusterError as error:
            if len(new) == 1:
                self.note(str(error))
            for node in new if len(new) > 1 else ():
                yield from self._added([node])

    def _moved_nodes(self, nodes: list[NodeSpec]) -> Generator[ev.AnyEvent, None, list[NodeSpec]]:
        """Return those that are to be added anew, because their old places contradict the new ones."""
        if not nodes:
            return []
        self.changed |= dict.fromkeys(node.id for node in nodes)
        try:
            yield df.move_nodes(self._state, tuple(nodes))
            return []
        except SpecError:
            for node in nodes:
                yield from self._node_gone(node.id)
            return nodes

    def _relabelled(self, nodes: list[NodeSpec]) -> Iterator[ev.AnyEvent]:
        sound = [node for node in nodes if self._is_sound(node)]
        if sound:
            self.changed |= dict.fromkeys(node.id for node in sound)
            yield ev.NodesRelabelled(tuple(sound))

    def _is_sound(self, node: NodeSpec) -> bool:
        """A node that is not is named, and stays as it is."""
        try:
            check_node(node, f"node '{node.id[:64]}'")
        except MusterError as error:
            self.note(str(error))
            return False
        return True

    def _is_same(self, row: int, node: NodeSpec) -> bool:
        capacity = self._state.capacity
        pool: PoolSpec = capacity.pools[capacity.pool[row]]
        return pool.name == node.pool and all(
            not getattr(node, level) or capacity.places.names[getattr(capacity, level)[row]] == getattr(node, level)
            for level in ("region", "zone", "block", "rack", "nvlink")
        )

    def _is_labelled(self, row: int, node: NodeSpec) -> bool:
        capacity = self._state.capacity
        pool: PoolSpec = capacity.pools[capacity.pool[row]]
        labels, taints = pool.labels | node.labels, {*pool.taints, *node.taints}
        return capacity.labels_of(row) == labels and set(capacity.taints_of(row)) == taints

    def _node_gone(self, name: str) -> Iterator[ev.AnyEvent]:
        row = self._state.capacity.row_of.get(name)
        if row is None:
            return
        a, cause = self._state.allocations, ev.EVICTION_CAUSES.index("node removed")
        for workload in sorted({a.workload[i] for i in a.on_node(row)}):
            yield ev.Evicted(workload, cause)
        self.changed[name] = None
        yield ev.NodesChanged(array("i", [row]).tobytes(), NodeState.REMOVED)

    def _queue(self, each: seen.QueueSeen) -> Iterator[ev.AnyEvent]:
        queues, spec = self._state.queues, each.queue
        known = queues.row_of.get(spec.name)
        if known is None:
            check_queues((spec,), queues.row_of, set())
            self.changed[spec.name] = None
            yield ev.QueueAdded(df.canonical(spec))
            known = queues.row_of[spec.name]
        elif queues.specs[known] != spec and queues.specs[known].parent == spec.parent:
            self.changed[spec.name] = None
            yield ev.QueueChanged(df.canonical(spec))
        elif queues.specs[known].parent != spec.parent:
            self.note(
                f"queue '{spec.name}' went to another cohort, '{spec.parent or 'none'}': make a new cell for that"
            )
        mode = QueueMode.OPEN if each.open else QueueMode.HELD
        if queues.mode[known] != mode:
            self.changed[spec.name] = None
            yield ev.QueueModeSet(known, mode)

    def _reservation(self, each: seen.ReservationSeen) -> Iterator[ev.AnyEvent]:
        spec, bookings, capacity = each.reservation, self._state.bookings, self._state.capacity
        check_id(spec.name, "reservation.name")
        known = next((r for r in bookings.reservations if r.spec.name == spec.name), None)
        if known is not None and known.spec == spec:
            return
        if spec.end_ms <= max(self._now_ms, spec.start_ms):
            return
        unknown = [name for name in spec.nodes if name not in capacity.row_of]
        unknown += [name for name in spec.queues if name not in self._state.queues.row_of]
        if unknown or not spec.nodes:
            raise SpecError(f"reservation '{spec.name}'", f"has no nodes that are known: {unknown[:3]}", "")
        if known is not None:
            yield ev.Unreserved(spec.name)
        kept = [name for name in spec.nodes if capacity.booking[capacity.row_of[name]] >= 0]
        if kept:
            raise RefusedError(
                f"reservation '{spec.name}': node '{kept[0]}' is in another reservation too", "It counts for that one"
            )
        self.changed[spec.name] = None
        yield ev.Reserved(df.canonical(spec))

    # -- work ---------------------------------------------------------------------------------------------------------

    def _workloads(self, group: list[seen.WorkloadSeen]) -> Iterator[ev.AnyEvent]:
        """Many that are new are few events. Those of them that are on nodes come last: others may leave room there."""
        new = {each.spec.id: each for each in group if self._is_plain(each)}
        if len(new) < MIN_AT_ONCE:
            new = {}
        sound = [each for each in new.values() if self._is_taken(each.spec)]
        yield from self._submitted(sound)
        for each in group:
            if each.spec.id not in new or each.phase == "queued":
                yield from self._noting(self._workload(each))
        yield from self._begun([each for each in sound if each.phase != "queued"])

    def _is_plain(self, each: seen.WorkloadSeen) -> bool:
        """True if it is new, and all that events of many can tell."""
        known = each.spec.id in self._state.workloads.row_of
        return not known and each.phase in ("queued", *_HOLDS) and is_usual(each.spec) and not each.spec.elastic

    def _is_taken(self, spec: WorkloadSpec) -> bool:
        try:
            self._check(spec)
        except MusterError as error:
            self.note(str(error))
            return False
        return True

    def _submitted(self, new: list[seen.WorkloadSeen]) -> Iterator[ev.AnyEvent]:
        if not new:
            return
        first = len(self._state.workloads.ids)
        self.changed |= dict.fromkeys(each.spec.id for each in new)
        yield ev.SubmittedMany(tuple(each.spec for each in new))
        # What runs was seen late: until it is placed it is as if it had come so long ago as it has waited.
        since = {row: self._since(each) if each.phase == "queued" else self._now_ms - self._waited(each)
                 for row, each in enumerate(new, first)}  # fmt: skip
        yield from self._dated(wl.SUBMITTED, {row: at for row, at in since.items() if at != self._now_ms})

    def _since(self, each: seen.WorkloadSeen) -> int:
        return min(each.submitted_ms or self._now_ms, self._now_ms)

    def _waited(self, each: seen.WorkloadSeen) -> int:
        return min(max((each.started_ms or self._now_ms) - self._since(each), 0), self._now_ms)

    def _dated(self, what: int, times: dict[int, int]) -> Iterator[ev.AnyEvent]:
        if times:
            yield ev.DatedMany(array("i", times).tobytes(), what, array("q", times.values()).tobytes())

    def _begun(self, new: list[seen.WorkloadSeen]) -> Iterator[ev.AnyEvent]:
        """Those that were submitted just now are on nodes, and may run."""
        w = self._state.workloads
        rows = {w.row_of[each.spec.id]: each for each in new}
        together = all(each.holds and each.holds[0].group for each in new)
        rooms: dict[int, NodeRoom] | None = {} if together else None
        placed: dict[int, tuple[ev.GroupPlacement, ...]] = {}
        for row, each in rows.items():
            try:
                groups, placements = self._claims(row, each, rooms)
            except MusterError as error:
                self.note(str(error))
                continue
            yield from self._asked(row, groups)
            placed[row] = placements
            if not together:
                yield ev.Placed(row, placements)
        if together and placed:
            yield ev.PlacedGangs(array("i", placed).tobytes(), tuple(placed.values()))
        for row in placed:
            yield from self._told_beside(row, rows[row])
        yield from self._dated(wl.SUBMITTED, {row: self._since(each) for row, each in rows.items()})
        runs = {row: each.started_ms for row, each in rows.items()
                if each.phase == "running" and w.state[row] == WorkloadState.PLACED}  # fmt: skip
        if runs:
            yield ev.StartedMany(array("i", runs).tobytes())
        yield from self._dated(wl.RUNNING, {row: min(at, self._now_ms) for row, at in runs.items() if at})

    def _workload(self, each: seen.WorkloadSeen) -> Iterator[ev.AnyEvent]:
        spec, w = each.spec, self._state.workloads
        if spec.array is not None:
            yield from self._array(each)
            return
        row = w.row_of.get(spec.id)
        if row is None:
            self._check(spec)
            self.changed[spec.id] = None
            yield ev.Submitted(spec)
            row = w.row_of[spec.id]
            if each.submitted_ms:
                yield ev.Dated(row, wl.SUBMITTED, min(each.submitted_ms, self._now_ms))
        elif WorkloadState(w.state[row]).terminal:
            return
        elif not self._state.is_bound(row):
            yield from self._asks(row, each)
        elif w.class_at(row).estimate_ms != spec.estimate_ms:
            # Time limits are changed while work runs, too.
            yield ev.Reestimated(row, spec.estimate_ms)
            self.changed[spec.id] = None
        reserves = _shares(each)
        if len(reserves) < len(self._state.held_quota.of.get(row, ())):
            yield ev.QuotaHeld(row, reserves)
        yield from self._towards(row, each)
        yield from self._told_beside(row, each)

    def _told_beside(self, row: int, each: seen.WorkloadSeen) -> Iterator[ev.AnyEvent]:
        """What it holds without nodes, and what is told of it with others."""
        w, reserves = self._state.workloads, _shares(each)
        if self._state.held_quota.of.get(row, ()) != reserves:
            yield ev.QuotaHeld(row, reserves)
        if self._state.outside.word_of(row) != each.word:
            self._words.append((row, each.word))
        if not WorkloadState(w.state[row]).terminal and self._state.caps.draws(row) != each.draws:
            self._draws[row] = each.draws

    def _check(self, spec: WorkloadSpec) -> None:
        w = self._state.workloads
        if spec.groups in self._sound:
            check_id(spec.id, "workload.id")
        else:
            check_workload(spec)
            self._sound.add(spec.groups)
        if (
            spec.queue not in self._state.queues.row_of
            or self._state.queues.children[self._state.queues.row_of[spec.queue]]
        ):
            raise SpecError(f"workload '{spec.id}'", f"its queue '{spec.queue[:64]}' is not known", "")
        if spec.priority_class not in w.priority_of:
            raise SpecError(
                f"workload '{spec.id}'", f"its priority class '{spec.priority_class[:64]}' is not known", ""
            )
        if spec.id in w.array_names.index:
            raise SpecError(f"workload '{spec.id}'", "an array has that id", "")
        unknown = [term.id for term in spec.after if term.id not in w.row_of]
        if unknown:
            raise SpecError(f"workload '{spec.id}'", f"waits for '{unknown[0][:64]}', which is not known", "")

    def _array(self, each: seen.WorkloadSeen) -> Iterator[ev.AnyEvent]:
        spec, w = each.spec, self._state.workloads
        assert spec.array is not None
        names = (spec.id, *(f"{spec.id}/{index}" for index in members(spec.array)))
        if spec.id in w.array_names.index or any(name in w.row_of for name in names):
            return
        self._check(spec)
        first = len(w.ids)
        yield ev.Submitted(spec)
        for row in range(first, len(w.ids)):
            self.changed[w.ids[row]] = None
            if each.submitted_ms:
                yield ev.Dated(row, wl.SUBMITTED, min(each.submitted_ms, self._now_ms))

    def _asks(self, row: int, each: seen.WorkloadSeen) -> Iterator[ev.AnyEvent]:
        """Yield the changes of the request, which are possible only while the workload is on no node."""
        spec, state, w = each.spec, self._state, self._state.workloads
        if w.class_at(row).groups != spec.groups:
            self._check(spec)
            yield ev.Reclassed(row, spec.groups, "changed outside")
            self.changed[spec.id] = None
        if w.class_at(row).estimate_ms != spec.estimate_ms:
            yield ev.Reestimated(row, spec.estimate_ms)
            self.changed[spec.id] = None
        queue = state.queues.row_of.get(spec.queue)
        if queue is not None and queue != w.queue[row]:
            if row in state.held_quota.of:
                yield ev.QuotaHeld(row, ())
            yield ev.MovedToQueue(row, queue)
            self.changed[spec.id] = None
        to = w.priority_of.get(spec.priority_class)
        if to is not None and to != w.priority[row]:
            yield ev.PrioritySet(row, to)
            self.changed[spec.id] = None

    def _towards(self, row: int, each: seen.WorkloadSeen) -> Iterator[ev.AnyEvent]:
        """From the state it is in to the one it was seen in."""
        w = self._state.workloads
        before = len(w.history_at)
        if self._state.is_bound(row) and (each.phase in _WAITS or self._started_anew(row, each)):
            cause = each.cause if each.cause in ev.EVICTION_CAUSES else ""
            yield ev.Evicted(row, ev.EVICTION_CAUSES.index(cause) if cause else _OUTSIDE)
        if each.phase in _WAITS:
            yield from self._wait(row, each)
        elif each.phase in _HOLDS:
            yield from self._hold(row, each)
        elif each.phase == "suspended":
            if w.state[row] != WorkloadState.SUSPENDED:
                yield ev.Suspended(row, saved=True)
        else:
            yield from self._end(row, each)
        if len(w.history_at) > before:
            self.changed[each.spec.id] = None

    def _started_anew(self, row: int, each: seen.WorkloadSeen) -> bool:
        """Return whether it was put back and has started again since it was last seen."""
        w = self._state.workloads
        return (
            each.phase in _HOLDS
            and each.restarts >= w.attempts[row]
            and w.state[row] == WorkloadState.RUNNING
            and each.started_ms > w.started[row]
        )

    def _wait(self, row: int, each: seen.WorkloadSeen) -> Iterator[ev.AnyEvent]:
        w = self._state.workloads
        now = WorkloadState(w.state[row])
        if each.phase == "held":
            if now == WorkloadState.SUSPENDED:
                yield ev.Resumed(row)
            if now != WorkloadState.HELD:
                yield ev.Held(row)
            return
        if now == WorkloadState.HELD:
            yield ev.Released(row)
        elif now == WorkloadState.SUSPENDED:
            yield ev.Resumed(row)
        now = WorkloadState(w.state[row])
        if each.phase == "waiting":
            if now == WorkloadState.QUEUED or w.wake[row] != each.wake_ms:
                yield ev.Parked(row, each.wake_ms)
        elif now == WorkloadState.WAITING:
            yield ev.Woke(row)

    def _queued(self, row: int) -> Iterator[ev.AnyEvent]:
        """Have it where work that starts comes from."""
        now = WorkloadState(self._state.workloads.state[row])
        if now == WorkloadState.HELD:
            yield ev.Released(row)
        elif now == WorkloadState.SUSPENDED:
            yield ev.Resumed(row)
        if self._state.workloads.state[row] == WorkloadState.WAITING:
            yield ev.Woke(row)

    def _hold(self, row: int, each: seen.WorkloadSeen) -> Iterator[ev.AnyEvent]:
        state, w = self._state, self._state.workloads
        if state.is_bound(row):
            yield from self._moved(row, each)
        else:
            groups, placements = self._claims(row, each)
            yield from self._queued(row)
            yield from self._asked(row, groups)
            waited = max((each.started_ms or self._now_ms) - w.since[row], 0)
            if self._now_ms - w.since[row] != waited:
                # It started before it was seen to: its wait was over then.
                since = w.submitted[row]
                yield ev.Dated(row, wl.SUBMITTED, max(self._now_ms - waited, 0))
                yield ev.Placed(row, placements)
                yield ev.Dated(row, wl.SUBMITTED, since)
            else:
                yield ev.Placed(row, placements)
        if each.phase == "running" and w.state[row] == WorkloadState.PLACED:
            yield ev.Started(row)
            if each.started_ms:
                yield ev.Dated(row, wl.RUNNING, min(each.started_ms, self._now_ms))

    def _asked(self, row: int, groups: tuple[TaskGroup, ...]) -> Iterator[ev.AnyEvent]:
        if groups != self._state.workloads.class_at(row).groups:
            yield ev.Reclassed(row, groups, "as it was given")

    def _moved(self, row: int, each: seen.WorkloadSeen) -> Iterator[ev.AnyEvent]:
        """Yield the change of tasks that come, end and move while their workload goes on."""
        if not any(held.group for held in each.holds):
            return
        if shown_tasks(each.holds) != held_tasks(self._state, row):
            found = bindings(self._state, row, each.spec.groups, each.holds, self.note)
            if found is not None:
                self.changed[each.spec.id] = None
                yield ev.Rebound(row, *found)

    def _claims(
        self, row: int, each: seen.WorkloadSeen, rooms: dict[int, NodeRoom] | None = None
    ) -> tuple[tuple[TaskGroup, ...], tuple[ev.GroupPlacement, ...]]:
        """Return the workload's holdings as task groups of equal shares with their placements, and no more than there
        is: of the rooms, where these are given. Raises SpecError where nobody knows the nodes."""
        if not each.holds:
            raise SpecError(f"workload '{each.spec.id}'", "runs, but it is not known where", "")
        if any(held.group for held in each.holds):
            found = bindings(self._state, row, each.spec.groups, each.holds, self.note, rooms)
            if found is None:
                raise SpecError(f"workload '{each.spec.id}'", "runs on nodes that are not known", "")
            return found
        capacity = self._state.capacity
        base = each.spec.groups[0]
        by_share: dict[Resources, list[tuple[int, int]]] = {}
        for held in each.holds:
            node = capacity.row_of.get(held.node)
            if node is None:
                self.note(f"workload '{each.spec.id}' runs on '{held.node[:64]}', which is not known")
                continue
            share, mask = self._fitting(node, held, each.spec.id)
            by_share.setdefault(share, []).append((node, mask))
        if not by_share:
            raise SpecError(f"workload '{each.spec.id}'", "runs on nodes that are not known", "")
        groups, placements = [], []
        for i, (share, places) in enumerate(by_share.items()):
            name = base.name if not i else f"{base.name}-{i + 1}"
            groups.append(msgspec.structs.replace(base, name=name, count=len(places), min_count=0, request=share))
            places.sort()
            devices = array("q", [mask for _, mask in places]).tobytes() if share.gpu_milli else b""
            placements.append(
                ev.GroupPlacement(
                    array("i", [node for node, _ in places]).tobytes(), array("i", [1] * len(places)).tobytes(), devices
                )
            )
        return tuple(groups), tuple(placements)

    def _fitting(self, node: int, held: seen.Holding, name: str) -> tuple[Resources, int]:
        """So much of what it has there as is free, and the devices."""
        capacity = self._state.capacity
        wanted, free = held.resources, capacity.free_vector(node)
        whole = capacity.whole[node]
        mask = sum(1 << index for index in set(held.devices))
        count = wanted.gpu_milli // 1000
        if mask.bit_count() != count or mask & ~whole:
            mask = closest(whole, min(count, whole.bit_count()), 0)
        share = Resources(
            cpu_milli=min(wanted.cpu_milli, free[0]),
            memory_mib=min(wanted.memory_mib, free[1]),
            gpu_milli=mask.bit_count() * 1000,
            disk_mib=min(wanted.disk_mib, free[3]),
        )
        if share != wanted:
            lacks = [key for key, a, b in zip(RESOURCES, share.vector(), wanted.vector(), strict=True) if a < b]
            self.note(
                f"workload '{name}' has more {', '.join(lacks)} on '{held.node}' than is free there: others share it, "
                "and it is counted as far as there is room"
            )
        return share, mask

    def _end(self, row: int, each: seen.WorkloadSeen) -> Iterator[ev.AnyEvent]:
        w, state = self._state.workloads, self._state
        unseen = not state.is_bound(row) and each.started_ms > 0 and each.phase != "cancelled"
        if each.phase == "finished":
            what = wl.FINISHED
            yield ev.Finished(row)
        elif each.phase == "cancelled":
            what = wl.CANCELLED
            yield ev.Cancelled(row)
        else:
            what = wl.FAILED
            cause = each.cause if each.cause in ev.FAILURE_CAUSES else ev.FAILURE_CAUSES[0]
            yield ev.Failed(row, cause=ev.FAILURE_CAUSES.index(cause))
        ended_ms = min(each.ended_ms or self._now_ms, self._now_ms)
        if unseen:
            yield ev.Dated(row, wl.RUNNING, min(each.started_ms, ended_ms))
        if unseen or w.ended[row] != ended_ms:
            yield ev.Dated(row, what, ended_ms)

    def _workload_gone(self, name: str) -> Iterator[ev.AnyEvent]:
        row = self._state.workloads.row_of.get(name)
        if row is not None and not WorkloadState(self._state.workloads.state[row]).terminal:
            self.changed[name] = None
            if row in self._state.held_quota.of:
                yield ev.QuotaHeld(row, ())
            yield ev.Vanished(row)

    def _said(self) -> Iterator[ev.AnyEvent]:
        said = [(row, word) for row, word in dict(self._words).items() if self._state.outside.word_of(row) != word]
        if said:
            for row, _ in said:
                self.changed[self._state.workloads.ids[row]] = None
            yield ev.OutsideSaid(array("i", [row for row, _ in said]).tobytes(), tuple(word for _, word in said))


def _shares(each: seen.WorkloadSeen) -> tuple[tuple[str, tuple[int, int, int, int]], ...]:
    return tuple((share.pool, share.resources.vector()) for share in each.reserves)


def _grouped(told: tuple[seen.AnySeen, ...]) -> Iterator[tuple[seen.AnySeen, ...]]:
    """Runs of the same kind, in order."""
    cuts = [0, *(i for i in range(1, len(told)) if type(told[i]) is not type(told[i - 1])), len(told)]
    for first, last in pairwise(cuts):
        if first < last:
            yield told[first:last]


MAX_OPEN = 100_000
"""Beyond this nothing more is taken: the other scheduler has been away for very long."""
TOKEN_BYTES = 10
CHECK_OF = {"slurm": check_slurm_job, "kubernetes": check_kueue_job}
"""Scheduler that decides -> the check of a workload that is submitted to it."""


def intend(
    state: State, command: cmd.AnyCommand, now_ms: int, *, acts: bool, lacks: Mapping[type[cmd.Command], str]
) -> Checked:
    """Check a command in a cell that another scheduler decides: a request to it becomes an intent. Whatever can be
    refused at once is refused. Raises SpecError, NotFoundError or RefusedError."""
    by = state.settings.decided_by
    _refuse_impossible(type(command), by=by, acts=acts, lacks=lacks)
    if not isinstance(command, CARRIED[by]):
        checked = check(state, command, now_ms)
        if any(isinstance(event, ev.Intended) for event in checked[0]):
            # A submission that is carried again: it is one like the first.
            _refuse_impossible(cmd.Submit, by=by, acts=acts, lacks=lacks)
            _refuse_too_many(state)
        return checked
    _refuse_too_many(state)
    if isinstance(command, cmd.Submit):
        return _submissions(state, command, now_ms)
    changed = _about(state, command, now_ms)
    intended = new_intent(state.intents.issued, command)
    return [intended, *answered_by(state, intended.number, intended.command)], changed


def _refuse_impossible(
    command: type[cmd.Command], *, by: str, acts: bool, lacks: Mapping[type[cmd.Command], str]
) -> None:
    why = why_not(command, by=by, acts=acts, lacks=lacks)
    if why:
        name = str(command.__struct_config__.tag).replace("_", " ")
        raise RefusedError(f"cannot {name} in a cell that {by.capitalize()} decides on: {why}", "")


def _refuse_too_many(state: State) -> None:
    if len(state.intents.open) >= MAX_OPEN:
        raise RefusedError(
            f"{len(state.intents.open):,} intents wait for {state.settings.decided_by.capitalize()}",
            "Check them: muster intent list; then try again",
        )


def new_intent(number: int, command: cmd.AnyCommand) -> ev.Intended:
    """The command as an intent of that number, under a token that nobody can guess."""
    return ev.Intended(number, new_token(number), msgspec.msgpack.encode(command))


def intent_key(number: int) -> str:
    """By which `engine.model.spans` remembers the request that an intent comes from."""
    return f"intent {number}"


def new_token(number: int) -> str:
    """A token of an intent. Lower case and digits only: it is read by people, and goes through shells."""
    return f"{number:x}-{secrets.token_hex(TOKEN_BYTES)}"


def _submissions(state: State, command: cmd.Submit, now_ms: int) -> Checked:
    """Each workload is an intent of its own: Slurm takes or refuses them one by one."""
    taken = [spec.id for spec in command.workloads if spec.id in state.intents.ids]
    if taken:
        raise SpecError("workload.id", f"{listed(taken)} was already requested", "Give each workload its own id")
    for i, spec in enumerate(command.workloads):
        CHECK_OF[state.settings.decided_by](spec, f"workloads[{i}]" if len(command.workloads) > 1 else "workload")
    known = state.workloads.priority_of
    # Slurm itself chooses what is not said; which classes there are is known only as far as they were met.
    specs = tuple(
        spec if spec.priority_class in known else msgspec.structs.replace(spec, priority_class=min(known, default=""))
        for spec in command.workloads
    )
    if known:
        changed = check_submission(state, cmd.Submit(workloads=specs), now_ms)[1]
    else:
        changed = tuple(spec.id for spec in command.workloads)
        for spec in command.workloads:
            state.queues.row(spec.queue)
    first = state.intents.issued
    wanted = [_with_rerun(state, spec) for spec in command.workloads]
    return [new_intent(first + i, cmd.Submit(workloads=(spec,))) for i, spec in enumerate(wanted)], changed


def _with_rerun(state: State, spec: WorkloadSpec) -> WorkloadSpec:
    """With the word of its queue, or of the cell, where it has none and Slurm decides: later changes of those are for
    later work."""
    settings = state.settings
    if spec.rerun or settings.decided_by != "slurm":
        return spec
    return msgspec.structs.replace(spec, rerun=settings.queue_rerun.get(spec.queue, settings.rerun))


def _about(state: State, command: cmd.AnyCommand, now_ms: int) -> tuple[str, ...]:
    """Ids of what it would change. The check is that of a cell that Muster decides on, where it has one: a wish that
    makes no sense there makes none here."""
    return check(state, command, now_ms)[1]
