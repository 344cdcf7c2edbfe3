"""Counterfactuals: the smallest change found and tried that would let a waiting workload start.

Candidates follow from the primary reason, the cheapest for an operator first. Each is applied to a fork of the cell,
through the same entry point and scheduling cycle as in the cell. It counts only if the workload then has its nodes. So
no answer shows a start that the scheduler would not make: work ahead in the order takes new capacity first, and a
change that starts only that work is no answer. A search stops at its first success, and after MAX_FORKS forks.

Where a change only ends the primary reason and another rule holds the workload then, a second change is looked for on
top of the first: more quota, and nodes uncordoned.

Where others wait ahead by the same rule there are two answers: what starts this workload now, which may take another
place in the order, and what starts the whole line up to it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sized
from fractions import Fraction
from functools import cached_property, partial
from math import ceil
from typing import Any, NamedTuple

import msgspec
import numpy as np

from engine.admission.workload_changes import spec_of
from engine.capacity.index import OPEN
from engine.capacity.task_shapes import Shape, task_size
from engine.capacity.topology import Span, domain_room, lacking, levels_asked
from engine.control import Engine
from engine.model import commands as cmd
from engine.model.columns import view
from engine.model.consolidation_queries import ConsolidationRequest
from engine.model.details import Counterfactual, Unblocking
from engine.model.errors import MusterError
from engine.model.quantities import counted, shortlist, usd, utc
from engine.model.spec_parts import MICROUSD
from engine.model.specs import (
    NodeState,
    QueueMode,
    TopologyRequest,
    WorkloadSpec,
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
from engine.scheduling.preemption import bound_rows
from engine.state.cell_state import BOUND, State
from engine.state.queue_tree import Lack, QueueTree
from engine.twin.consolidation import plan
from engine.twin.pool_growth import PoolGrowth, free_names, grown, pools_that_could_grow
from engine.twin.quota_growth import QuotaGrowth

MAX_FORKS = 12
MAX_SECOND_FORKS = 6
"""Further forks, for a second change."""
MAX_LINE_FORKS = 6
"""Further forks, for what starts the line up to the workload."""
MAX_AHEAD = 5
"""Workloads that are held to let one pass. With more, another order is the smaller change."""
MAX_LENDERS = 3
"""Queues that are asked for borrowed quota, one after the other."""
MAX_NEW_TASKS = 4096
"""Room for that many more tasks is tried at most."""
MAX_ROUNDS = 4
"""Number of times that more quota is added for others that took what was meant for the workload."""
MAX_POOLS = 2
"""Pools that are tried for new nodes, one after the other."""


class ChangeTrial(NamedTuple):
    """One change, not yet tried."""

    kind: str
    text: str
    edits: tuple[cmd.AnyCommand, ...]
    starts: str = ""
    """Id of a copy that starts in place of the workload."""
    rows: tuple[int, ...] = ()
    """Other workloads that have to start too."""


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
    found, line, ahead = None, None, 0
    try:
        if settled.state.is_bound(row):
            found = _stated(nothing, workload_id)
        else:
            found, ahead = search.run(), len(search.ahead_by_same_rule)
            line = search.line() if ahead else None
    finally:
        search.forget()
        settled.forget()
    tried = tuple(search.tried)
    return Unblocking(version=engine.version, found=found, tried=tried, forks=search.forks, ahead=ahead, line=line)


class _Search:
    """Candidates for one workload, and the forks they are tried on."""

    def __init__(self, engine: Engine, row: int, most_forks: int = MAX_FORKS) -> None:
        self.state: State = engine.state
        self.row = row
        self.id: str = engine.state.workloads.ids[row]
        self.tried: list[str] = []
        self.forks = 1
        self._most_forks = most_forks
        self._engine = engine
        self._after: State = engine.state
        """State of the cell after the last trial."""
        self._halfway: list[tuple[ChangeTrial, str]] = []
        """Trials after which another rule holds the workload, and that rule."""
        self._tried_on: Engine | None = None
        """The fork of the last trial. One at a time: each of a large cell takes a quarter of a gigabyte."""

    def forget(self) -> None:
        """Free the fork of the last trial, and what is known of it."""
        self._after = self.state
        if self._tried_on is not None:
            self._tried_on.forget()
            self._tried_on = None

    def run(self) -> Counterfactual | None:
        """One change, or else two together."""
        return self._one_change() or self._two_changes()

    def _two_changes(self) -> Counterfactual | None:
        """More of something that lacks, and what ends the rule that holds it then; rather what stops no work."""
        self.forget()
        halfway = [(first, then) for first, then in self._halfway if then in _OF_AMOUNTS]
        if not halfway or self._engine.reader.explainer.token(self.row) not in _OF_AMOUNTS:
            return None
        first, _ = min(halfway, key=lambda item: any(isinstance(edit, cmd.Requeue) for edit in item[0].edits))
        with_first = self._engine.fork()
        with_first.commands(first.edits)
        search = _Search(with_first, self.row, MAX_SECOND_FORKS)
        try:
            second = search._one_change()
        finally:
            search.forget()
            with_first.forget()
        self.forks += search.forks
        self.tried += [f"{first.text}, and {text}" for text in search.tried]
        if second is None:
            return None
        edits = tuple(msgspec.convert(edit, cmd.AnyCommand) for edit in second.edits)
        text = f"{first.text}, and {second.text}"
        # As they will be asked for: together.
        self._most_forks = self.forks + 1
        return self._try(ChangeTrial(second.kind, text, (*first.edits, *edits), second.starts))

    def _one_change(self) -> Counterfactual | None:
        for look in _LOOKS.get(self._engine.reader.explainer.token(self.row), ()):
            for found in look(self):
                if found is not None:
                    return found
        return None

    def line(self) -> Counterfactual | None:
        """What starts the workload and all that wait ahead of it by the same rule, in the order they have."""
        self._most_forks = self.forks + MAX_LINE_FORKS
        rows = (*self.ahead_by_same_rule, self.row)
        if self._engine.reader.explainer.token(self.row) == QUOTA:
            return next((found for found in self._more_quota(rows) if found is not None), None)
        return self._nodes_for_line(rows)

    @cached_property
    def ahead_by_same_rule(self) -> list[int]:
        """Rows that go before it in its queue and wait for quota or room as it does; empty for other reasons."""
        token = self._engine.reader.explainer.token
        mine = token(self.row)
        return [row for row in self._rows_ahead() if token(row) == mine] if mine in _OF_AMOUNTS else []

    def _rows_ahead(self) -> list[int]:
        """All that go before it in its queue, in the order of their age."""
        state = self.state
        mine = order_of(state, state.pending_key(self.row), self.row)
        queue = state.workloads.queue[self.row]
        found: list[int] = []
        for key, group in state.pending.groups.items():
            if key[1] == queue:
                rows = group.rows[group.front :]
                found += rows[: bisect_left(rows, mine, key=partial(order_of, state, key))]
        return sorted(found)

    # -- trying -------------------------------------------------------------------------------------------------------

    def _try(self, trial: ChangeTrial) -> Counterfactual | None:
        return _stated(trial, self.id) if self._starts(trial) else None

    def _starts(self, trial: ChangeTrial) -> bool:
        """True if the workload, and the others that the trial is for, have their nodes after the change. False without
        a try when all forks are used up."""
        if self.forks >= self._most_forks:
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
        waiting = next((row for row in (*trial.rows, starts) if not fork.state.is_bound(row)), None)
        if waiting is None:
            return True
        then = fork.reader.explainer.reasons(waiting)
        if then and waiting == self.row and then[0].token != self._engine.reader.explainer.token(self.row):
            self._halfway.append((trial, then[0].token))
        self.tried.append(f"{trial.text}: then {then[0].token if then else 'it is gone'}")
        return False

    def _least(self, low: int, high: int, trial_of: Callable[[int], ChangeTrial]) -> Counterfactual | None:
        """The smallest number from `low` to `high` that is enough, where one more is never worse. `low - 1` was tried,
        or is nothing at all."""
        best: ChangeTrial | None = None
        at, step = low, 1
        while low <= high and self.forks < self._most_forks:
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
        before = self._rows_ahead()
        if len(before) <= MAX_AHEAD:
            yield self._try(ChangeTrial("ahead", *self._held(before)))

    def _held(self, rows: list[int]) -> tuple[str, tuple[cmd.AnyCommand, ...]]:
        ids = tuple(self.state.workloads.ids[row] for row in rows)
        return f"{', '.join(ids)} ahead of it {_be(ids)} put on hold", (cmd.Hold(ids=ids),)

    def _let_past(self, trial: ChangeTrial) -> Counterfactual | None:
        """The trial together with a place before the others ahead: a higher priority, the lowest that is enough; or
        those ahead on hold, where they are few. What is preempted for it is told."""
        change = self._first_in_order()
        if change is None:
            return None
        text, edits = change
        both = trial._replace(text=f"{trial.text}, and {text}", edits=(*trial.edits, *edits))
        if not self._starts(both):
            return None
        w, after = self.state.workloads, self._after
        stopped = [w.ids[row] for row in bound_rows(self.state).tolist() if not after.is_bound(row)]
        preempts = f"; that preempts {shortlist(stopped, 3)}" if stopped else ""
        return _stated(both._replace(text=both.text + preempts), self.id)

    def _first_in_order(self) -> tuple[str, tuple[cmd.AnyCommand, ...]] | None:
        w, ahead = self.state.workloads, self.ahead_by_same_rule
        highest = max((w.band_at(row), w.value_at(row)) for row in ahead)
        higher = [w.priority_classes[row] for row in w.priority_of.values()]
        higher = [spec for spec in higher if (spec.value if spec.band is None else spec.band, spec.value) > highest]
        if higher:
            name = min(higher, key=lambda spec: (spec.preemption != "never", spec.value)).name
            return f"{self.id} gets priority {name}", (cmd.SetPriority(ids=(self.id,), priority_class=name),)
        return self._held(ahead) if len(ahead) <= MAX_AHEAD else None

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
        """The missing nominal quota of its queue, at whichever vertex above; with a place before the others, where they
        would take it; and again as much as others of other queues took.
        """
        growth = QuotaGrowth()
        for found in self._more_quota((self.row,), growth):
            yield found
            if self.ahead_by_same_rule:
                yield self._let_past(ChangeTrial("quota", *growth.change()))

    def _more_quota(self, rows: tuple[int, ...], growth: QuotaGrowth | None = None) -> Iterator[Counterfactual | None]:
        """Quota for all of these at once; and more, when others took some of that."""
        growth = growth or QuotaGrowth()
        after = self.state
        for _ in range(MAX_ROUNDS):
            if not growth.admit(after, [row for row in rows if not after.is_bound(row)]):
                return
            yield self._try(ChangeTrial("quota", *growth.change(), rows=rows))
            after = self._after

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
        """The fewest more nodes of a pool of the cell; of one pool for each group that lacks room, where several do."""
        workload_class = self.state.workloads.class_at(self.row)
        if workload_class.reservation:
            return
        home = self._homes()[0]
        missing = [max(0, tasks) for tasks in self._missing(home)]
        if not any(missing):
            missing = list(workload_class.least)
        lacking_room = [(shape, tasks) for shape, tasks in zip(self._shapes(), missing, strict=True) if tasks]
        pools = [pools_that_could_grow(self.state, shape, tasks, home) for shape, tasks in lacking_room]
        for (shape, _), found in zip(lacking_room, pools, strict=True):
            if not found:
                self.tried.append(f"more nodes: no pool of the cell has nodes for a task of {task_size(shape)}")
                return
        if len(pools) > 1:
            sizes = zip(pools, lacking_room, strict=True)
            wanted = [(each[0], each[0].nodes_for(tasks)) for each, (_, tasks) in sizes]
            yield self._try(self._grown(wanted))
            return
        for growth in pools[0][:MAX_POOLS]:
            yield from self._nodes_of(growth, missing=lacking_room[0][1])

    def _nodes_of(self, growth: PoolGrowth, missing: int) -> Iterator[Counterfactual | None]:
        """The fewest nodes of one pool: room for the tasks that lack it, if need be with a place before the others."""
        fewest, most = growth.nodes_for(missing), MAX_NEW_TASKS // growth.per_node
        if self.ahead_by_same_rule:
            yield self._least(max(1, fewest - 1), min(fewest, most), lambda nodes: self._grown([(growth, nodes)]))
            yield self._let_past(self._grown([(growth, fewest)]))
        yield self._least(max(1, fewest - 1), most, lambda nodes: self._grown([(growth, nodes)]))

    def _grown(self, wanted: list[tuple[PoolGrowth, int]], rows: tuple[int, ...] = ()) -> ChangeTrial:
        return ChangeTrial("capacity", *grown(self.state, wanted), rows=rows)

    def _nodes_for_line(self, rows: tuple[int, ...]) -> Counterfactual | None:
        """The fewest nodes that start all of these. Those alike are counted together, each in the pool it likes best;
        with one pool for all, the number is the smallest."""
        w = self.state.workloads
        home = self._homes()[0]
        nodes: dict[PoolGrowth, Fraction] = {}
        for cls, count in Counter(w.cls[row] for row in rows).items():
            shapes, least = w.classes[cls].shapes, w.classes[cls].least
            for shape, tasks in zip(shapes, least, strict=True):
                lacks = tasks * count - self.state.capacity.slots(shape)
                found = pools_that_could_grow(self.state, shape, lacks, home) if lacks > 0 else []
                if lacks > 0 and not found:
                    return None
                for growth in found[:1]:
                    same = next((known for known in nodes if known.key == growth.key), growth)
                    nodes[same] = nodes.get(same, Fraction()) + Fraction(lacks, growth.per_node)
        wanted = [(growth, ceil(number)) for growth, number in nodes.items()]
        if len(wanted) != 1:
            return self._try(self._grown(wanted, rows)) if wanted else None
        [(growth, fewest)] = wanted
        most = max(fewest, MAX_NEW_TASKS // growth.per_node)
        return self._least(max(1, fewest - 1), most, lambda number: self._grown([(growth, number)], rows))

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


def _spec_of(state: State, row: int, **changes: Any) -> WorkloadSpec:
    """The workload as if it were submitted now, under another id."""
    w = state.workloads
    taken = w.row_of.keys() | w.array_names.index.keys()
    return spec_of(state, row, free_names(f"{w.ids[row][:110]}-again", taken, 1)[0], **changes)


def _stated(trial: ChangeTrial, workload_id: str, *, smallest: bool = False) -> Counterfactual:
    edits = tuple(msgspec.to_builtins(edit) for edit in trial.edits)
    return Counterfactual(
        kind=trial.kind, text=trial.text, edits=edits, starts=trial.starts or workload_id, smallest=smallest
    )


def _be(names: Sized) -> str:
    return "is" if len(names) == 1 else "are"


_OF_AMOUNTS = frozenset((QUOTA, CAPACITY, FRAGMENTED, SCATTERED, NO_NODES))
"""Reasons that more of something may end, for all that wait by them."""
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
