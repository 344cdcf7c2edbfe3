"""Counterfactuals: the smallest single change found and tried that would let a waiting workload start.

Candidates follow from the primary reason, the cheapest for an operator first. Each is applied to a fork of the cell,
through the same entry point and scheduling cycle as in the cell. It counts only if the workload then has its nodes. So
no answer shows a start that the scheduler would not make: work ahead in the order takes new capacity first, and a
change that starts only that work is no answer. A search stops at its first success, and after MAX_FORKS forks.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sized
from itertools import count as numbers
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np

from engine.admission.workload_changes import spec_of
from engine.capacity.index import OPEN
from engine.capacity.task_shapes import ANY, Bonds, Shape, task_size
from engine.capacity.topology import Span, domain_room, lacking, levels_asked
from engine.control import Engine
from engine.model import commands as cmd
from engine.model.columns import view
from engine.model.errors import MusterError
from engine.model.quantities import counted, shortlist, usd, utc
from engine.model.queries import ConsolidationRequest, Counterfactual, Unblocking
from engine.model.spec_parts import MICROUSD
from engine.model.specs import (
    LEVELS,
    FlavorQuota,
    NodeSpec,
    NodeState,
    PoolSpec,
    QueueMode,
    QueueSpec,
    Resources,
    TaskGroup,
    TopologyRequest,
    WorkloadSpec,
    quantity,
)
from engine.placement.gang_placement import variants
from engine.reads.pending_reasons import (
    ARRAY_LIMIT,
    BACKOFF,
    BEHIND,
    BUDGET,
    CAPACITY,
    DEPENDENCY,
    FRAGMENTED,
    NEVER,
    NO_NODES,
    ON_HOLD,
    QUEUE_HELD,
    RESERVED,
    SCATTERED,
    START_TIME,
    SUSPENDED,
)
from engine.reads.quota_reasons import QUOTA, amount, borrowers
from engine.scheduling.candidate_order import order_of
from engine.state.cell_state import BOUND, State
from engine.state.queue_tree import Lack, QueueTree
from engine.twin.consolidation import plan

MAX_FORKS = 12
MAX_AHEAD = 5
"""Workloads that are held to let one pass. With more, another order is the smaller change."""
MAX_LENDERS = 3
"""Queues that are asked for borrowed quota, one after the other."""
MAX_NEW_TASKS = 4096
"""Room for that many more tasks is tried at most."""
MAX_ROUNDS = 4
"""Number of times that more quota is added for others that took what was meant for the workload."""
DEVICE = 1000
"""Milli-GPU of a whole device."""
QUOTA_STEPS = (1000, 1024, DEVICE, 1024)
"""Steps in which people give quota, in the order of RESOURCES: whole CPUs, GiB and devices."""


class ChangeTrial(NamedTuple):
    """One change, not yet tried."""

    kind: str
    text: str
    edits: tuple[cmd.AnyCommand, ...]
    starts: str = ""
    """Id of a copy that starts in place of the workload."""


def verified(engine: Engine, workload_id: str) -> Unblocking:
    """The change that would let the workload start now. The engine is forked and otherwise left alone.

    Nothing is found for a workload that does not wait. Raises NotFoundError.
    """
    row = engine.state.workloads.row(workload_id)
    if not engine.reader.explainer.token(row):
        return Unblocking(version=engine.version, found=None, tried=(), forks=0)
    # What is told is to be due to the change alone: first everything starts that would start without it.
    settled = engine.fork()
    settled.settle()
    search = _Search(settled, row)
    nothing = ChangeTrial("nothing", "the next scheduling cycle runs", ())
    try:
        found = _stated(nothing, workload_id) if settled.state.is_bound(row) else search.run()
    finally:
        search.forget()
        settled.forget()
    return Unblocking(version=engine.version, found=found, tried=tuple(search.tried), forks=search.forks)


class _Search:
    """Candidates for one workload, and the forks they are tried on."""

    def __init__(self, engine: Engine, row: int) -> None:
        self.state: State = engine.state
        self.row = row
        self.id: str = engine.state.workloads.ids[row]
        self.tried: list[str] = []
        self.forks = 1
        self._engine = engine
        self._after: State = engine.state
        """State of the cell after the last trial."""
        self._tried_on: Engine | None = None
        """The fork of the last trial. One at a time: each of a large cell takes a quarter of a gigabyte."""

    def forget(self) -> None:
        """Free the fork of the last trial, and what is known of it."""
        self._after = self.state
        if self._tried_on is not None:
            self._tried_on.forget()
            self._tried_on = None

    def run(self) -> Counterfactual | None:
        for look in _LOOKS.get(self._engine.reader.explainer.token(self.row), ()):
            for found in look(self):
                if found is not None:
                    return found
        return None

    # -- trying -------------------------------------------------------------------------------------------------------

    def _try(self, trial: ChangeTrial) -> Counterfactual | None:
        return _stated(trial, self.id) if self._starts(trial) else None

    def _starts(self, trial: ChangeTrial) -> bool:
        """True if the workload has its nodes after the change. False without a try when all forks are used up."""
        if self.forks == MAX_FORKS:
            return False
        self.forks += 1
        self.forget()
        fork = self._tried_on = self._engine.fork()
        refusals = [answer for answer in fork.commands(trial.edits) if isinstance(answer, MusterError)]
        if refusals:
            self.tried.append(f"{trial.text}: refused, {refusals[0].problem}")
            return False
        self._after = fork.state
        starts = fork.state.workloads.row(trial.starts or self.id)
        if fork.state.is_bound(starts):
            return True
        then = fork.reader.explainer.reasons(starts)
        self.tried.append(f"{trial.text}: then {then[0].token if then else 'it is gone'}")
        return False

    def _least(self, low: int, high: int, trial_of: Callable[[int], ChangeTrial]) -> Counterfactual | None:
        """The smallest number from `low` to `high` that is enough, where one more is never worse. `low - 1` was tried,
        or is nothing at all."""
        best: ChangeTrial | None = None
        at, step = low, 1
        while low <= high and self.forks < MAX_FORKS:
            trial = trial_of(at)
            if self._starts(trial):
                best, high = trial, at - 1
            else:
                low = at + 1
            at, step = (min(at + step, high), step * 4) if best is None else ((low + high) // 2, step)
        return None if best is None else _stated(best, self.id, smallest=low > high)

    def _copy(self, kind: str, text: str, **changes: Any) -> ChangeTrial:
        """Submit it anew, a little different, and cancel the original."""
        copy = _spec_of(self.state, self.row, **changes)
        return ChangeTrial(kind, text, (cmd.Cancel(ids=(self.id,)), cmd.Submit(workloads=(copy,))), copy.id)

    # -- people and rules ---------------------------------------------------------------------------------------------

    def release(self) -> Iterator[Counterfactual | None]:
        yield self._try(ChangeTrial("release", f"{self.id} is released", (cmd.Release(ids=(self.id,)),)))

    def resume(self) -> Iterator[Counterfactual | None]:
        yield self._try(ChangeTrial("resume", f"{self.id} is resumed", (cmd.Resume(ids=(self.id,)),)))

    def open_queue(self) -> Iterator[Counterfactual | None]:
        queues = self.state.queues
        path = queues.path[self.state.workloads.queue[self.row]]
        closed = tuple(queues.specs[vertex].name for vertex in path if queues.mode[vertex] != QueueMode.OPEN)
        yield self._try(
            ChangeTrial("queue", f"queue {' and '.join(closed)} is opened", (cmd.OpenQueues(names=closed),))
        )

    def without_dependencies(self) -> Iterator[Counterfactual | None]:
        w = self.state.workloads
        if not self._may_be_copied():
            return
        targets = shortlist([w.ids[target] for target, _ in w.dependencies(self.row)], 3)
        yield self._try(self._copy("dependency", f"{self.id} is submitted again without waiting for {targets}"))

    def without_start_time(self) -> Iterator[Counterfactual | None]:
        if self._may_be_copied():
            text = f"{self.id} is submitted again without waiting until {utc(self.state.workloads.wake[self.row])}"
            yield self._try(self._copy("start_time", text, not_before_ms=0))

    def more_budget(self) -> Iterator[Counterfactual | None]:
        """Approval, where the budget asks for it; or a tenth more than is spent, for each budget that stops it."""
        state = self.state
        budgets = state.budgets
        first = budgets.stopping(state, self.row)
        if first is not None and budgets.specs[first].action == "approve":
            command = cmd.ApproveSpending(ids=(self.id,))
            yield self._try(ChangeTrial("budget", f"the spending of {self.id} is approved", (command,)))
        stopping = [budget for budget in range(len(budgets.specs)) if budgets.stops_row(state, budget, self.row)]
        raised = []
        for budget in stopping:
            spec, spent = budgets.specs[budget], budgets.outlook(budget, self._engine.now_ms).spent
            more = max(spent + spent // 10, spec.limit_microusd) // MICROUSD * MICROUSD + MICROUSD
            raised.append(msgspec.structs.replace(spec, limit_microusd=more))
        text = " and ".join(f"budget {spec.name} is raised to {usd(spec.limit_microusd)}" for spec in raised)
        yield self._try(ChangeTrial("budget", text, (cmd.SetBudgets(budgets=tuple(raised)),)))

    def one_member_less(self) -> Iterator[Counterfactual | None]:
        """Stop the member of its array that loses least work."""
        w = self.state.workloads
        running = [row for row in np.flatnonzero(view(w.array) == w.array[self.row]).tolist() if self._is_bound(row)]
        least = min(running, key=self._loss)
        yield self._try(ChangeTrial("array", f"{w.ids[least]} is suspended", (cmd.Suspend(ids=(w.ids[least],)),)))

    def ahead(self) -> Iterator[Counterfactual | None]:
        """Hold what is ahead of it in its strict queue, where that is little."""
        state = self.state
        w = state.workloads
        mine = order_of(state, state.pending_key(self.row), self.row)
        queue = w.queue[self.row]
        groups = [(key, group) for key, group in state.pending.groups.items() if key[1] == queue]
        before = [row for key, group in groups for row in group.rows[group.front :] if order_of(state, key, row) < mine]
        if len(before) <= MAX_AHEAD:
            ids = tuple(w.ids[row] for row in sorted(before))
            yield self._try(
                ChangeTrial("ahead", f"{', '.join(ids)} ahead of it {_be(ids)} put on hold", (cmd.Hold(ids=ids),))
            )

    def other_order(self) -> Iterator[Counterfactual | None]:
        spec = self.state.queues.specs[self.state.workloads.queue[self.row]]
        if self.state.policy == "fcfs":
            yield self._try(ChangeTrial("policy", "the policy is easy", (cmd.SetPolicy(policy="easy"),)))
        else:
            freer = msgspec.structs.replace(spec, order="best_effort")
            text = f"queue {spec.name} passes over what cannot start (order best_effort)"
            yield self._try(ChangeTrial("queue", text, (cmd.ChangeQueue(queue=freer, over="keep"),)))

    # -- promises -----------------------------------------------------------------------------------------------------

    def shorter_estimate(self) -> Iterator[Counterfactual | None]:
        """The longest estimate that would not delay promised or reserved work."""
        state = self.state
        workload_class = state.workloads.class_at(self.row)
        if workload_class.reservation or not self._may_be_copied():
            return
        ends = {reservation.spec.start_ms for reservation in state.bookings.reservations}
        if state.policy == "conservative":
            # What was promised starts when something ends.
            w = state.workloads
            bound = np.flatnonzero(np.isin(view(w.state), BOUND)).tolist()
            ends |= {w.expected_end(row, self._engine.now_ms) for row in bound}
        ends |= set(self._engine.reader.explainer.promised().values())
        lengths = sorted((end_ms - self._engine.now_ms for end_ms in ends), reverse=True)
        lengths = [length for length in lengths if 0 < length < workload_class.bound_ms]

        def shorter(at: int) -> ChangeTrial:
            text = f"{self.id} is submitted again with an estimate of {lengths[at] / 1000:g} s"
            return self._copy("estimate", text, estimate_ms=lengths[at])

        yield self._least(0, len(lengths) - 1, shorter)

    def promised_on_hold(self) -> Iterator[Counterfactual | None]:
        promised = self._engine.reader.explainer.promised()
        others = [row for row in promised if row != self.row]
        if others:
            first = self.state.workloads.ids[min(others, key=promised.__getitem__)]
            text = f"{first}, which has a promised start, is put on hold"
            yield self._try(ChangeTrial("promise", text, (cmd.Hold(ids=(first,)),)))

    def unreserve(self) -> Iterator[Counterfactual | None]:
        """Cancel one advance reservation: the smallest first."""
        reservations = self.state.bookings.reservations
        for reservation in sorted(reservations, key=lambda r: (len(r.spec.nodes), r.booking)):
            name = reservation.spec.name
            if name == self.state.workloads.class_at(self.row).reservation:
                continue
            text = f"reservation {name} is removed"
            yield self._try(ChangeTrial("reservation", text, (cmd.Unreserve(names=(name,)),)))

    def without_reservation(self) -> Iterator[Counterfactual | None]:
        name = self.state.workloads.class_at(self.row).reservation
        if name and self._may_be_copied():
            text = f"{self.id} is submitted again without the reservation {name}"
            yield self._try(self._copy("reservation", text, reservation=""))

    # -- quota --------------------------------------------------------------------------------------------------------

    def returned(self) -> Iterator[Counterfactual | None]:
        """Another queue gives back borrowed quota: it starts nothing more, and just enough of its work is evicted."""
        lack = self._lack(self.state.queues)
        if lack is None:
            return
        w, queues = self.state.workloads, self.state.queues
        own = w.queue[self.row]
        found = [item for item in borrowers(self.state, lack.vertex, lack.slot) if item[0] != own]
        for queue, borrowed, bursts in found[:MAX_LENDERS]:
            leaving = self._least_costly(queue, lack)
            if not leaving:
                continue
            name, ids = queues.specs[queue].name, tuple(w.ids[row] for row, _ in leaving)
            total = sum(part for _, part in leaving)
            text = f"queue {name} returns {amount(lack.slot, total)}"
            above, part = ("that it borrows", "borrowed") if not bursts else ("above its own quota",) * 2
            text += f" {above}" if total <= borrowed else f", {amount(lack.slot, borrowed)} of it {part}"
            text += f" ({shortlist(list(ids), 3)} {_be(ids)} requeued and the queue is held)"
            yield self._try(ChangeTrial("returned", text, (cmd.HoldQueues(names=(name,)), cmd.Requeue(ids=ids))))

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
        """Add the missing nominal quota of its queue, at whichever vertex above; and again, when others ahead of it
        took that.
        """
        added: dict[tuple[int, int], int] = {}
        after = self.state
        for _ in range(MAX_ROUNDS):
            raised = after.queues.copy()
            before = sum(added.values())
            while (lack := self._lack(raised)) is not None:
                vertex = self._to_be_raised(lack)
                if not _may_name(raised, vertex, lack.slot):
                    return
                step = QUOTA_STEPS[lack.slot % len(QUOTA_STEPS)]
                more = -(-lack.short // step) * step
                added[vertex, lack.slot] = added.get((vertex, lack.slot), 0) + more
                raised.change(_with_more(raised, vertex, lack.slot, more))
            if sum(added.values()) == before:
                return
            specs = {vertex: raised.specs[vertex] for vertex, _ in added}
            edits = tuple(cmd.ChangeQueue(queue=spec, over="keep") for spec in specs.values())
            text = " and ".join(_more_nominal(raised, vertex, slot, more) for (vertex, slot), more in added.items())
            found = self._try(ChangeTrial("quota", text, edits))
            yield found
            after = self._after

    def _to_be_raised(self, lack: Lack) -> int:
        """Its own queue; of a pool that it does not name, the vertex that refuses."""
        queue: int = self.state.workloads.queue[self.row]
        pool, _ = self.state.queues.named_slot(lack.slot)
        return queue if not pool or pool in self.state.queues.flavors_of(queue) else lack.vertex

    def _lack(self, queues: QueueTree) -> Lack | None:
        """The missing quota in the way to start that it prefers."""
        state = self.state
        shapes = next(variants(self.state, self.row), None)
        if shapes is None:
            return None
        charge = state.charge_if(self.row, shapes, state.workloads.class_at(self.row).least)
        return queues.lack(state.workloads.queue[self.row], charge, self._engine.now_ms)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def uncordon(self) -> Iterator[Counterfactual | None]:
        """Uncordon as many nodes as it takes, those with most room for it first."""
        for span in self._homes():
            nodes = self._asleep_enough(span)
            if nodes:
                ids = tuple(self.state.capacity.node_ids[node] for node in nodes)
                text = f"{counted(len(ids), 'node')} {_be(ids)} uncordoned ({shortlist(list(ids), 3)})"
                yield self._try(ChangeTrial("uncordon", text, (cmd.Uncordon(ids=ids),)))
                return

    def _asleep_enough(self, span: Span | None) -> list[int]:
        """Cordoned nodes there that would be enough, in ascending order; empty when they would not be."""
        capacity = self.state.capacity
        nodes: dict[int, None] = {}
        there = np.ones(len(capacity.node_ids), bool)
        if span is not None:
            there[:] = False
            there[domain_room(capacity).tree.rows[span[0] : span[1]]] = True
        least = self.state.workloads.class_at(self.row).least
        for shape, needed, missing in zip(self._shapes(), least, self._missing(span), strict=True):
            asleep = there & np.isin(view(capacity.pool), shape.pools) & (view(capacity.booking) == OPEN)
            asleep &= np.isin(view(capacity.state), (NodeState.CORDONED, NodeState.DRAINING))
            # What its provider takes back stays out.
            asleep &= view(capacity.doomed) < 0
            asleep &= capacity.suited_mask(shape)
            rooms = [(capacity.room(node, shape, needed), node) for node in np.flatnonzero(asleep).tolist()]
            for room, node in sorted(rooms, key=lambda item: (-item[0], item[1])):
                if missing > 0 and room > 0:
                    nodes[node] = None
                    missing -= room
            if missing > 0:
                return []
        return sorted(nodes)

    def _homes(self) -> list[Span | None]:
        """Its possible domains: None for anywhere; or the domains of its required level, those first in which it lacks
        least.
        """
        capacity, asked = self.state.capacity, self._shapes()[0].topology
        if asked is None or asked.required is None:
            return [None]
        tree = domain_room(capacity).tree
        level, _ = levels_asked(tree, asked)
        return [tree.bounds(level, domain) for domain in lacking(capacity, self._shapes(), self._least_tasks(), level)]

    def _least_tasks(self) -> tuple[int, ...]:
        return self.state.workloads.class_at(self.row).least

    def _missing(self, span: Span | None) -> list[int]:
        """Tasks of each group for which there is no room there; below 0 where there is more than enough."""
        capacity = self.state.capacity
        pairs = zip(self._shapes(), self._least_tasks(), strict=True)
        if span is None:
            return [least - capacity.slots(shape) for shape, least in pairs]
        known = domain_room(capacity)
        return [least - known.rooms(capacity, shape).total(span) for shape, least in pairs]

    def moved(self) -> Iterator[Counterfactual | None]:
        """Moves of running work, each gang to another place, where that brings more than it costs."""
        if self.forks + 2 >= MAX_FORKS:
            return
        self.forks += 2
        made = plan(self._engine, ConsolidationRequest(unblock=self.id)).found
        if made is not None and made.worth_it:
            ids = [move.id for move in made.moves]
            nodes = shortlist(list(dict.fromkeys(node for move in made.moves for node in move.nodes)), 3)
            moves = tuple(cmd.Move(id=move.id, nodes=move.nodes) for move in made.moves)
            text = f"{shortlist(ids, 3)} {_be(ids)} moved to {nodes}"
            yield self._try(ChangeTrial("consolidate", text, (cmd.Migrate(moves=moves),)))

    def more_nodes(self) -> Iterator[Counterfactual | None]:
        """The fewest more tasks of each group that lacks room that there would have to be room for."""
        workload_class = self.state.workloads.class_at(self.row)
        if workload_class.reservation:
            return
        home = self._homes()[0]
        missing = [max(0, tasks) for tasks in self._missing(home)]
        if not any(missing):
            missing = list(workload_class.least)
        sites = [
            _Site(self.state, self.row, group, shape, home)
            for group, (shape, tasks) in enumerate(zip(self._shapes(), missing, strict=True))
            if tasks
        ]
        if sum(missing) > MAX_NEW_TASKS or not all(site.per_node for site in sites):
            return
        if len(sites) > 1:
            yield self._try(_grown([(site, -(-missing[site.group] // site.per_node)) for site in sites]))
            return
        site = sites[0]
        fewest = -(-missing[site.group] // site.per_node)
        yield self._least(max(1, fewest - 1), MAX_NEW_TASKS // site.per_node, lambda nodes: _grown([(site, nodes)]))

    def wider(self) -> Iterator[Counterfactual | None]:
        """Its level preferred instead of required."""
        asked = self._shapes()[0].topology
        if asked is not None and asked.required is not None and self._may_be_copied():
            text = f"{self.id} is submitted again with its {asked.required} preferred instead of required"
            softer = TopologyRequest(preferred=asked.preferred or asked.required)
            yield self._try(self._copy("topology", text, topology=softer))

    def fewer_tasks(self) -> Iterator[Counterfactual | None]:
        """A smaller gang, as large as starts."""
        workload_class = self.state.workloads.class_at(self.row)
        if len(workload_class.groups) > 1 or not self._may_be_copied():
            return
        group, fewest = workload_class.groups[0], workload_class.least[0]
        most = min(fewest - 1, fewest - self._missing(self._homes()[0])[0] + 1)

        def smaller(left_out: int) -> ChangeTrial:
            tasks = most - left_out
            fewer = msgspec.structs.replace(group, count=tasks, min_count=0)
            text = f"{self.id} is submitted again with {tasks} of {counted(fewest, 'task')}"
            return self._copy("tasks", text, groups=(fewer,), elastic=False)

        if most > 0:
            yield self._least(0, most - 1, smaller)

    # -- the workload -------------------------------------------------------------------------------------------------

    def _shapes(self) -> tuple[Shape, ...]:
        """Its groups in the way it would like best."""
        shapes = next(variants(self.state, self.row), None)
        return self.state.workloads.class_at(self.row).shapes if shapes is None else shapes

    def _is_bound(self, row: int) -> bool:
        return self.state.workloads.state[row] in BOUND

    def _loss(self, row: int) -> tuple[int, int]:
        """Task-milliseconds of work that stopping it loses; the youngest of equals first."""
        w = self.state.workloads
        lost = 0 if w.checkpoint_cost[row] else w.lost_if_stopped(row, self._engine.now_ms)
        return lost * w.tasks[row], -row

    def _may_be_copied(self) -> bool:
        """A copy starts from nothing, and outside its array."""
        w = self.state.workloads
        return not w.kept[self.row] and w.array[self.row] < 0


class _Site:
    """The place of new nodes for the tasks of one group: in a pool of their own, each just large enough for one task;
    or, where the group or the quota names pools, in the pool it prefers.
    """

    def __init__(self, state: State, row: int, group: int, shape: Shape, home: Span | None) -> None:
        """`home`: the domain that they should be in, if that matters."""
        capacity, w = state.capacity, state.workloads
        self.capacity = capacity
        self.group = group
        self.task: TaskGroup = w.class_at(row).groups[group]
        like = shape.pools[0] if shape.pools else None
        self.is_new = like is None or not (self.task.pools or state.queues.flavored(w.queue[row]))
        self.pool: PoolSpec = self._like(None if like is None else capacity.pools[like])
        self.shape = Shape(self.task, [self.pool], Bonds(qos=w.class_at(row).bonds.qos))
        self.per_node = self.shape.most_on(self.pool) if self.shape.pools else 0
        """Tasks that one such node holds; 0 when it holds none."""
        alone = shape.terms is not None and bool(shape.terms.apart or shape.terms.shunned)
        """True if it must be alone: where its place is unknown, no other work is near it."""
        self.place = self._place_in(home, shape) if home is not None else {} if alone else self._place(like)
        """Level -> name of where they stand."""

    def _like(self, pool: PoolSpec | None) -> PoolSpec:
        if pool is not None and not self.is_new:
            return pool
        cpu, memory, gpu_milli, disk = self.task.request.vector()
        one = Resources(cpu_milli=cpu, memory_mib=memory, gpu_milli=-(-gpu_milli // DEVICE) * DEVICE, disk_mib=disk)
        if pool is None:
            model = self.task.gpu_models[0] if self.task.gpu_models and gpu_milli else ""
            named_pools = [name for name in self.task.pools if name not in self.capacity.pool_of]
            pool = PoolSpec(name=named_pools[0] if named_pools else "pool", capacity=one, gpu_model=model)
        name = _free_names(f"{pool.name[:90]}-{self.task.name[:20]}", self.capacity.pool_of, 1)[0]
        labels = pool.labels | {key: values[0] for key, values in self.task.node_labels.items() if values[0] != ANY}
        kept = {key: value for key, value in labels.items() if key not in self.task.avoid_labels}
        return msgspec.structs.replace(
            pool, name=name, capacity=one, labels=kept, taints=(), nvlink_group=0, overcommit={}
        )

    def _place(self, pool: int | None) -> dict[str, str]:
        """The place with most free devices of the pool, so that a gang stays close together."""
        capacity = self.capacity
        nodes = np.flatnonzero(view(capacity.pool) == pool) if pool is not None else np.empty(0, np.int64)
        if not len(nodes):
            return {}
        racks = view(capacity.rack)[nodes]
        free = np.bincount(racks, weights=np.bitwise_count(view(capacity.whole)[nodes]))
        rack = int(free.argmax()) if free.any() else int(racks[0])
        return self._names_at(int(nodes[np.flatnonzero(racks == rack)[0]]), ("zone", "block", "rack"))

    def _place_in(self, home: Span, shape: Shape) -> dict[str, str]:
        """The place in the domain, down to the level that is required."""
        required = shape.topology.required if shape.topology is not None else None
        levels = LEVELS[: LEVELS.index(required or "node") + 1]
        return self._names_at(int(domain_room(self.capacity).tree.rows[home[0]]), levels)

    def _names_at(self, node: int, levels: tuple[str, ...]) -> dict[str, str]:
        capacity = self.capacity
        return {at: capacity.places.names[getattr(capacity, at)[node]] for at in levels if at != "node"}

    def text(self, nodes: int) -> str:
        """So many nodes, in words."""
        level = next((at for at in ("rack", "block", "zone", "region") if self.place.get(at)), "")
        where = f" in {level} {self.place[level]}" if level else ""
        if not self.is_new:
            return f"{counted(nodes, 'node')} more in pool {self.pool.name}{where}"
        tasks = nodes * self.per_node
        vector = self.task.request.vector()
        scarce = next(i for i in _SCARCEST if vector[i])
        model = f" of model {self.pool.gpu_model}" if self.pool.gpu_model and self.task.request.gpu_milli else ""
        room = f"as room for {counted(tasks, 'task')} of {task_size(self.shape)}"
        return f"{quantity(scarce, vector[scarce] * tasks)} more{model}{where}, {room}"


def _grown(wanted: list[tuple[_Site, int]]) -> ChangeTrial:
    """Edits for so many new nodes on each site."""
    edits: list[cmd.AnyCommand] = [cmd.AddPools(pools=(site.pool,)) for site, _ in wanted if site.is_new]
    nodes: list[NodeSpec] = []
    for site, count in wanted:
        taken = site.capacity.row_of.keys() | {node.id for node in nodes}
        names = _free_names(f"{site.pool.name[:100]}-new", taken, count)
        nodes += [msgspec.structs.replace(NodeSpec(id=n, pool=site.pool.name), **site.place) for n in names]
    edits.append(cmd.AddNodes(nodes=tuple(nodes)))
    return ChangeTrial("capacity", " and ".join(site.text(count) for site, count in wanted), tuple(edits))


def _may_name(tree: QueueTree, vertex: int, slot: int) -> bool:
    """True if the vertex may be given quota of the slot's pool. A queue that names no pools takes any; the first it
    names would close the others to it.
    """
    pool, _ = tree.named_slot(slot)
    return not pool or pool in tree.flavors_of(vertex) or bool(tree.children[vertex])


def _with_more(tree: QueueTree, vertex: int, slot: int, more: int) -> QueueSpec:
    """The spec of the vertex with more nominal quota in one slot."""
    spec: QueueSpec = tree.specs[vertex]
    pool, resource = tree.named_slot(slot)
    if pool:
        flavors = list(spec.flavors)
        at = next((i for i, flavor in enumerate(flavors) if flavor.pool == pool), len(flavors))
        if at == len(flavors):
            flavors.append(FlavorQuota(pool=pool))
        flavors[at] = msgspec.structs.replace(flavors[at], nominal=_plus(flavors[at].nominal, resource, more))
        return msgspec.structs.replace(spec, flavors=tuple(flavors))
    nominal, burst = _plus(spec.nominal, resource, more), spec.burst
    if burst is not None and resource in burst.limit:
        # A burst limit below nominal quota and borrowing limit together is refused.
        burst = msgspec.structs.replace(burst, limit=_plus(burst.limit, resource, more))
    return msgspec.structs.replace(spec, nominal=nominal, burst=burst)


def _more_nominal(tree: QueueTree, vertex: int, slot: int, more: int) -> str:
    pool, _ = tree.named_slot(slot)
    where = f" in pool {pool}" if pool else ""
    return f"{amount(slot, more)} more nominal quota{where} in queue {tree.specs[vertex].name}"


def _plus(given: dict[str, int], resource: str, more: int) -> dict[str, int]:
    return given | {resource: given.get(resource, 0) + more}


def _spec_of(state: State, row: int, **changes: Any) -> WorkloadSpec:
    """The workload as if it were submitted now, under another id."""
    w = state.workloads
    taken = w.row_of.keys() | w.array_names.index.keys()
    return spec_of(state, row, _free_names(f"{w.ids[row][:110]}-again", taken, 1)[0], **changes)


def _free_names(base: str, taken: Container[str], count: int) -> list[str]:
    """`<base>-<number>`, as many as asked for, of those that nobody has."""
    free = (name for i in numbers(1) if (name := f"{base}-{i}") not in taken)
    return list(islice(free, count))


def _stated(trial: ChangeTrial, workload_id: str, *, smallest: bool = False) -> Counterfactual:
    edits = tuple(msgspec.to_builtins(edit) for edit in trial.edits)
    return Counterfactual(
        kind=trial.kind, text=trial.text, edits=edits, starts=trial.starts or workload_id, smallest=smallest
    )


def _be(names: Sized) -> str:
    return "is" if len(names) == 1 else "are"


_SCARCEST = (2, 0, 1, 3)
"""Indexes into RESOURCES: what a request is known by, if it asks for it."""
_LOOKS: dict[str, tuple[Callable[[_Search], Iterator[Counterfactual | None]], ...]] = {
    ON_HOLD: (_Search.release,),
    SUSPENDED: (_Search.resume,),
    NEVER: (_Search.without_dependencies,),
    DEPENDENCY: (_Search.without_dependencies,),
    START_TIME: (_Search.without_start_time,),
    BACKOFF: (_Search.without_start_time,),
    QUEUE_HELD: (_Search.open_queue,),
    BEHIND: (_Search.ahead, _Search.other_order),
    ARRAY_LIMIT: (_Search.one_member_less,),
    BUDGET: (_Search.more_budget,),
    NO_NODES: (_Search.without_reservation, _Search.more_nodes),
    QUOTA: (_Search.returned, _Search.more_quota, _Search.fewer_tasks),
    CAPACITY: (_Search.uncordon, _Search.more_nodes, _Search.without_reservation, _Search.fewer_tasks),
    FRAGMENTED: (_Search.uncordon, _Search.moved, _Search.more_nodes, _Search.without_reservation, _Search.fewer_tasks),
    SCATTERED: (
        _Search.uncordon,
        _Search.moved,
        _Search.wider,
        _Search.more_nodes,
        _Search.without_reservation,
        _Search.fewer_tasks,
    ),
    RESERVED: (_Search.without_reservation, _Search.shorter_estimate, _Search.promised_on_hold, _Search.unreserve),
}
"""By primary reason, the cheapest change for an operator first."""
