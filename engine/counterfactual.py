"""What would let a waiting workload start: the smallest single change that was found, and tried.

Candidates follow from the primary reason, the cheapest for an operator first. Each is applied to a fork of the cell,
through the same door and followed by the same scheduling cycle as in the cell itself; it counts only if the workload
then has its nodes. So nothing is told that the scheduler would not do: others ahead of it take what is new first, and a
change that would start them instead is no answer. A search stops at its first success, and after MOST_FORKS forks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from engine import commands as cmd
from engine.capacity import OPEN
from engine.columns import view
from engine.control import Engine
from engine.errors import MusterError
from engine.explain import (
    amount,
    borrowers,
    moment,
    named,
)
from engine.model import (
    NodeSpec,
    NodeState,
    PoolSpec,
    QueueMode,
)
from engine.quantities import task_size
from engine.query import Counterfactual, Unblocking
from engine.quota import Lack, QueueTree
from engine.shape import Shape
from engine.state import BOUND, State

MOST_FORKS = 12
MOST_AHEAD = 5
"""Workloads that are held to let one pass. With more, another order is the smaller change."""
MOST_LENDERS = 3
"""Queues that are asked for borrowed quota, one after the other."""
MOST_NEW_TASKS = 4096
"""Room for that many more tasks is tried at most."""
DEVICE = 1000
"""Milli-GPU of a whole device."""


class Trial(NamedTuple):
    """One change, not yet tried."""

    kind: str
    text: str
    edits: tuple[cmd.AnyCommand, ...]
    starts: str = ""
    """Id of a copy that starts in place of the workload."""


def verified(engine: Engine, workload_id: str) -> Unblocking:
    """What would let the workload start now. The engine is forked and otherwise left alone.

    Nothing is found for what does not wait. Raises NotFoundError.
    """
    row = engine.state.workloads.row(workload_id)
    search = _Search(engine, row)
    reasons = engine.reasons(workload_id)
    found = search.run(reasons[0].token) if reasons else None
    return Unblocking(version=engine.version, found=found, tried=tuple(search.tried), forks=search.forks)


class _Search:
    """Candidates for one workload, and the forks they are tried on."""

    def __init__(self, engine: Engine, row: int) -> None:
        self.state: State = engine.state
        self.row = row
        self.id: str = engine.state.workloads.ids[row]
        self.tried: list[str] = []
        self.forks = 0
        self._engine = engine

    def run(self, token: str) -> Counterfactual | None:
        if token not in _AT_ONCE and self._starts(_NOTHING):
            return _stated(_NOTHING, self.id, smallest=False)
        for look in _LOOKS.get(token, ()):
            for found in look(self):
                if found is not None:
                    return found
        return None

    # -- trying -------------------------------------------------------------------------------------------------------

    def _try(self, trial: Trial) -> Counterfactual | None:
        return _stated(trial, self.id, smallest=False) if self._starts(trial) else None

    def _starts(self, trial: Trial) -> bool:
        """Whether the workload has its nodes after the change. False without a try when all forks are used up."""
        if self.forks == MOST_FORKS:
            return False
        self.forks += 1
        fork = self._engine.fork()
        refusals = [answer for answer in fork.commands(trial.edits) if isinstance(answer, MusterError)]
        if refusals:
            self.tried.append(f"{trial.text}: refused, {refusals[0].problem}")
            return False
        starts = fork.state.workloads.row(trial.starts or self.id)
        if fork.state.is_bound(starts):
            return True
        then = fork.reasons(trial.starts or self.id)
        self.tried.append(f"{trial.text}: then {then[0].token}" if then else f"{trial.text}: it does not start")
        return False

    def _least(self, low: int, high: int, trial_of: Callable[[int], Trial]) -> Counterfactual | None:
        """The smallest of the numbers from `low` to `high` that is enough; `low - 1` is known not to be. The larger
        number is taken to be at least as good."""
        best: Trial | None = None
        step = 1
        at = low
        while low <= high and self.forks < MOST_FORKS:
            trial = trial_of(at)
            if self._starts(trial):
                best, high = trial, at - 1
                at = (low + high) // 2
            else:
                low = at + 1
                step *= 4
                at = min(at + step, high) if best is None else (low + high) // 2
        return None if best is None else _stated(best, self.id, smallest=low > high)

    def _copy(self, kind: str, text: str, **changes: Any) -> Trial:
        """Submit it anew, a little different, and cancel the original."""
        copy = _spec_of(self.state, self.row, **changes)
        return Trial(kind, text, (cmd.Cancel(ids=(self.id,)), cmd.Submit(workloads=(copy,))), copy.id)

    # -- people and rules ---------------------------------------------------------------------------------------------

    def release(self) -> Iterator[Counterfactual | None]:
        yield self._try(Trial("release", f"{self.id} is released", (cmd.Release(ids=(self.id,)),)))

    def resume(self) -> Iterator[Counterfactual | None]:
        yield self._try(Trial("resume", f"{self.id} is resumed", (cmd.Resume(ids=(self.id,)),)))

    def open_queue(self) -> Iterator[Counterfactual | None]:
        queues = self.state.queues
        path = queues.path[self.state.workloads.queue[self.row]]
        closed = tuple(queues.specs[vertex].name for vertex in path if queues.mode[vertex] != QueueMode.OPEN)
        yield self._try(Trial("queue", f"queue {' and '.join(closed)} is opened", (cmd.OpenQueues(names=closed),)))

    def without_dependencies(self) -> Iterator[Counterfactual | None]:
        w = self.state.workloads
        targets = named([w.ids[target] for target, _ in w.dependencies(self.row)])
        yield self._try(self._copy("dependency", f"{self.id} is submitted again without waiting for {targets}"))

    def without_start_time(self) -> Iterator[Counterfactual | None]:
        until = moment(self.state.workloads.wake[self.row])
        yield self._try(self._copy("start_time", f"{self.id} is submitted again without waiting until {until}"))

    def one_member_less(self) -> Iterator[Counterfactual | None]:
        """Whatever member of its array loses least work."""
        w = self.state.workloads
        running = [row for row in np.flatnonzero(view(w.array) == w.array[self.row]).tolist() if self._is_bound(row)]
        least = min(running, key=self._loss)
        yield self._try(Trial("array", f"{w.ids[least]} is suspended", (cmd.Suspend(ids=(w.ids[least],)),)))

    def ahead(self) -> Iterator[Counterfactual | None]:
        """Hold what is ahead of it in its strict queue, where that is little."""
        state = self.state
        w, order = state.workloads, self._engine.scheduler.order
        mine = order(state.pending_key(self.row), self.row)
        queue = w.queue[self.row]
        groups = [(key, group) for key, group in state.pending.groups.items() if key[1] == queue]
        before = [row for key, group in groups for row in group.rows[group.front :] if order(key, row) < mine]
        if len(before) <= MOST_AHEAD:
            ids = tuple(w.ids[row] for row in sorted(before))
            yield self._try(Trial("ahead", f"{', '.join(ids)} ahead of it {_be(ids)} put on hold", (cmd.Hold(ids=ids),)))

    def other_order(self) -> Iterator[Counterfactual | None]:
        spec = self.state.queues.specs[self.state.workloads.queue[self.row]]
        if self.state.policy == "fcfs":
            yield self._try(Trial("policy", "the policy is easy", (cmd.SetPolicy(policy="easy"),)))
        else:
            freer = msgspec.structs.replace(spec, order="best_effort")
            text = f"queue {spec.name} passes over what cannot start (order best_effort)"
            yield self._try(Trial("queue", text, (cmd.ChangeQueue(queue=freer, over="keep"),)))

    # -- promises -----------------------------------------------------------------------------------------------------

    def shorter_estimate(self) -> Iterator[Counterfactual | None]:
        """As long as it may run without delaying what was promised or reserved."""
        state = self.state
        if not self._may_be_copied():
            return
        bookings = state.bookings
        starts = [reservation.spec.start_ms for reservation in bookings.reservations]
        promise = self._engine.scheduler.reservation
        if promise is not None and promise.start_ms is not None:
            starts.append(promise.start_ms)
        for start_ms in sorted((start for start in set(starts) if start > state.now_ms), reverse=True):
            estimate_ms = start_ms - state.now_ms
            text = f"{self.id} is submitted again with an estimate of {estimate_ms / 1000:g} s"
            yield self._try(self._copy("estimate", text, estimate_ms=estimate_ms))

    def promised_on_hold(self) -> Iterator[Counterfactual | None]:
        promise = self._engine.scheduler.reservation
        if promise is not None and promise.row != self.row:
            first = self.state.workloads.ids[promise.row]
            text = f"{first}, which is promised a start, is put on hold"
            yield self._try(Trial("promise", text, (cmd.Hold(ids=(first,)),)))

    def unreserve(self) -> Iterator[Counterfactual | None]:
        """One advance reservation less: the smallest first."""
        reservations = self.state.bookings.reservations
        for reservation in sorted(reservations, key=lambda r: (len(r.spec.nodes), r.booking)):
            name = reservation.spec.name
            if name == self.state.workloads.class_at(self.row).reservation:
                continue
            text = f"reservation {name} is taken back"
            yield self._try(Trial("reservation", text, (cmd.Unreserve(names=(name,)),)))

    def without_reservation(self) -> Iterator[Counterfactual | None]:
        name = self.state.workloads.class_at(self.row).reservation
        if name and self._may_be_copied():
            text = f"{self.id} is submitted again without the reservation {name}"
            yield self._try(self._copy("reservation", text, reservation=""))

    # -- quota --------------------------------------------------------------------------------------------------------

    def returned(self) -> Iterator[Counterfactual | None]:
        """Another queue gives back what it borrows: it starts nothing more, and just enough of its work is requeued."""
        lack = self._lack(self.state.queues)
        if lack is None:
            return
        w, queues = self.state.workloads, self.state.queues
        own = w.queue[self.row]
        found = [item for item in borrowers(self.state, lack.vertex, lack.slot) if item[0] != own]
        for queue, borrowed, _ in found[:MOST_LENDERS]:
            leaving = self._least_costly(queue, lack)
            if not leaving:
                continue
            name, ids = queues.specs[queue].name, tuple(w.ids[row] for row, _ in leaving)
            total = sum(part for _, part in leaving)
            text = f"queue {name} returns {amount(lack.slot, total)}"
            text += " that it borrows" if total <= borrowed else f", {amount(lack.slot, borrowed)} of it borrowed"
            text += f" ({', '.join(ids)} {_be(ids)} requeued and the queue is held)"
            yield self._try(Trial("returned", text, (cmd.HoldQueues(names=(name,)), cmd.Requeue(ids=ids))))

    def _least_costly(self, queue: int, lack: Lack) -> list[tuple[int, int]]:
        """(row, quantity in the slot that lacks) of work of the queue that returns enough: what loses least, and none
        that is not needed. Empty when all of it together is not enough."""
        w = self.state.workloads
        in_queue = np.flatnonzero(view(w.queue) == queue).tolist()
        charged = [(row, dict(self.state.charge_of(row)).get(lack.slot, 0)) for row in in_queue if self._is_bound(row)]
        chosen: list[tuple[int, int]] = []
        short = lack.short
        for row, part in sorted(charged, key=lambda item: (w.value_at(item[0]), self._loss(item[0]))):
            if short > 0 and part:
                chosen.append((row, part))
                short -= part
        for item in reversed(chosen[:]):
            if short + item[1] <= 0:
                chosen.remove(item)
                short += item[1]
        return chosen if short <= 0 else []

    def more_quota(self) -> Iterator[Counterfactual | None]:
        """As much more nominal quota of its queue as is lacking, at whichever vertex above."""
        state = self.state
        trial = state.queues.copy()
        added: dict[tuple[int, int], int] = {}
        while (lack := self._lack(trial)) is not None and len(added) <= trial.slots:
            vertex = self._to_be_raised(lack)
            added[vertex, lack.slot] = added.get((vertex, lack.slot), 0) + lack.short
            trial.change(_with_more(trial, vertex, lack.slot, lack.short))
        if not added:
            return
        changed = {vertex: trial.specs[vertex] for vertex, _ in added}
        parts = []
        for (vertex, slot), more in added.items():
            pool, _ = trial.named_slot(slot)
            where = f" in pool {pool}" if pool else ""
            parts.append(f"{amount(slot, more)} more nominal quota{where} in queue {trial.specs[vertex].name}")
        edits = tuple(cmd.ChangeQueue(queue=spec, over="keep") for spec in changed.values())
        yield self._try(Trial("quota", " and ".join(parts), edits))

    def _to_be_raised(self, lack: Lack) -> int:
        """Its own queue; of a pool that it does not name, the vertex that refuses."""
        queue: int = self.state.workloads.queue[self.row]
        pool, _ = self.state.queues.named_slot(lack.slot)
        return queue if not pool or pool in self.state.queues.flavors_of(queue) else lack.vertex

    def _lack(self, queues: QueueTree) -> Lack | None:
        """What it lacks in the way it would like best."""
        state = self.state
        shapes = next(self._engine.scheduler.variants(self.row), None)
        if shapes is None:
            return None
        charge = state.charge_if(self.row, shapes, state.workloads.class_at(self.row).least)
        return queues.lack(state.workloads.queue[self.row], charge, state.now_ms)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def uncordon(self) -> Iterator[Counterfactual | None]:
        """As many of its cordoned nodes as it takes, those with most room for it first."""
        capacity = self.state.capacity
        least = self.state.workloads.class_at(self.row).least
        nodes: dict[int, None] = {}
        for shape, needed in zip(self._shapes(), least, strict=True):
            missing = needed - capacity.slots(shape)
            asleep = np.isin(view(capacity.pool), shape.pools) & (view(capacity.booking) == OPEN)
            asleep &= np.isin(view(capacity.state), (NodeState.CORDONED, NodeState.DRAINING))
            rooms = [(capacity.room(node, shape, needed), node) for node in np.flatnonzero(asleep).tolist()]
            for room, node in sorted(rooms, key=lambda item: (-item[0], item[1])):
                if missing > 0 and room > 0:
                    nodes[node] = None
                    missing -= room
            if missing > 0:
                return
        if nodes:
            ids = tuple(capacity.node_ids[node] for node in sorted(nodes))
            text = f"{_count(len(ids), 'node')} {_be(ids)} uncordoned ({named(list(ids))})"
            yield self._try(Trial("uncordon", text, (cmd.Uncordon(ids=ids),)))

    def more_nodes(self) -> Iterator[Counterfactual | None]:
        """The fewest more tasks of each group that lacks room that there would have to be room for."""
        workload_class = self.state.workloads.class_at(self.row)
        shapes, slots = self._shapes(), self.state.capacity.slots
        missing = [max(0, least - slots(shape)) for shape, least in zip(shapes, workload_class.least, strict=True)]
        if not any(missing):
            missing = list(workload_class.least)
        if sum(missing) > MOST_NEW_TASKS:
            return
        only = [group for group, tasks in enumerate(missing) if tasks]
        if len(only) > 1:
            yield self._try(self._grown({group: missing[group] for group in only}))
            return
        group = only[0]
        pool = self._pool_for(group)
        per_node = 1 if pool.capacity == _one_task(workload_class.groups[group]) else shapes[group].most_on(pool.capacity)
        if not per_node:
            return
        fewest = -(-missing[group] // per_node)
        yield self._least(fewest, MOST_NEW_TASKS // per_node, lambda nodes: self._grown({group: nodes}))

    def _grown(self, nodes_of: dict[int, int]) -> Trial:
        """So many new nodes for tasks of each group: of a pool of their own with room for one task each, or, where
        pools are named, whole nodes of the best of those."""
        capacity = self.state.capacity
        groups = self.state.workloads.class_at(self.row).groups
        edits: list[cmd.AnyCommand] = []
        parts = []
        for group, count in nodes_of.items():
            pool = self._pool_for(group)
            rack = self._roomiest_rack(pool)
            where = f" in rack {rack}" if rack else ""
            if pool.name not in capacity.pool_of:
                edits.append(cmd.AddPools(pools=(pool,)))
                parts.append(f"{_total(groups[group], count)} more{_model(pool)}{where}, as room for {_tasks(count)} of "
                             f"{task_size(Shape(groups[group], [pool]))}")  # fmt: skip
            else:
                parts.append(f"{_count(count, 'node')} more in pool {pool.name}{where}")
            zone, block = self._place_of(rack)
            names = _free_names(f"{pool.name}-new", capacity.row_of, count)
            nodes = tuple(NodeSpec(id=name, pool=pool.name, zone=zone, block=block, rack=rack) for name in names)
            edits.append(cmd.AddNodes(nodes=nodes))
        return Trial("capacity", " and ".join(parts), tuple(edits))

    def _pool_for(self, group: int) -> PoolSpec:
        """The pool that new nodes for the group belong to."""
        state = self.state
        capacity, spec = state.capacity, state.workloads.class_at(self.row).groups[group]
        pools = self._shapes()[group].pools
        own = capacity.pools[pools[0]] if pools else None
        if own is not None and (spec.pools or state.queues.flavored(state.workloads.queue[self.row])):
            return own
        model = spec.gpu_models[0] if spec.gpu_models else ""
        like = own or PoolSpec(name="pool", capacity=_one_task(spec), gpu_model=model if spec.request.gpu_milli else "")
        name = _free_names(f"{like.name[:100]}-for-{spec.name[:20]}", capacity.pool_of, 1)[0]
        return msgspec.structs.replace(like, name=name, capacity=_one_task(spec))

    def _roomiest_rack(self, pool: PoolSpec) -> str:
        """Where most of the pool (or of the pool it is like) is free, so that a gang stays close together."""
        capacity = self.state.capacity
        like = next((p for name, p in capacity.pool_of.items() if pool.name.startswith(name)), None)
        nodes = np.flatnonzero(view(capacity.pool) == like) if like is not None else np.empty(0, np.int64)
        if not len(nodes):
            return ""
        racks = view(capacity.rack)[nodes]
        free = np.bincount(racks, weights=np.bitwise_count(view(capacity.whole)[nodes]) + 1)
        return capacity.places.names[int(free.argmax())]

    def _place_of(self, rack: str) -> tuple[str, str]:
        """(zone, block) of a rack."""
        capacity = self.state.capacity
        if not rack:
            return "", ""
        node = int(np.flatnonzero(view(capacity.rack) == capacity.places.index[rack])[0])
        return capacity.places.names[capacity.zone[node]], capacity.places.names[capacity.block[node]]

    def fewer_tasks(self) -> Iterator[Counterfactual | None]:
        """A smaller gang, as large as starts."""
        workload_class = self.state.workloads.class_at(self.row)
        if len(workload_class.groups) > 1 or not self._may_be_copied():
            return
        group, fewest = workload_class.groups[0], workload_class.least[0]
        most = min(fewest - 1, self.state.capacity.slots(self._shapes()[0]))

        def smaller(left_out: int) -> Trial:
            tasks = most - left_out
            fewer = msgspec.structs.replace(group, count=tasks, min_count=0)
            text = f"{self.id} is submitted again with {tasks} of {_tasks(fewest)}"
            return self._copy("tasks", text, groups=(fewer,), elastic=False)

        if most > 0:
            yield self._least(0, most - 1, smaller)

    # -- the workload -------------------------------------------------------------------------------------------------

    def _shapes(self) -> tuple[Shape, ...]:
        """Its groups in the way it would like best."""
        shapes = next(self._engine.scheduler.variants(self.row), None)
        return self.state.workloads.class_at(self.row).shapes if shapes is None else shapes

    def _is_bound(self, row: int) -> bool:
        return self.state.workloads.state[row] in BOUND

    def _loss(self, row: int) -> tuple[int, int]:
        """Work that stopping it loses, weighed by what it holds; the youngest of equals first."""
        w = self.state.workloads
        lost = 0 if w.checkpoint_cost[row] else w.lost_if_stopped(row, self.state.now_ms)
        return lost * self.state.cell_share(w.class_at(row).request), -row

    def _may_be_copied(self) -> bool:
        """A copy starts from nothing, and outside its array."""
        w = self.state.workloads
        return not w.kept[self.row] and w.array[self.row] < 0
