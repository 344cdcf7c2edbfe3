"""What must hold of any state, checked from the ground up: nothing here uses the engine's own sums."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import islice, permutations

from engine.capacity import mig
from engine.capacity.index import NOWHERE, OPEN
from engine.capacity.task_shapes import accepts
from engine.control import Engine
from engine.model import events as ev
from engine.model.specs import (
    LEVELS,
    RESOURCES,
    Affinity,
    NodeSpec,
    NodeState,
    PoolSpec,
    QueueSpec,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
)
from engine.placement.gang_placement import place, variants
from engine.state.cell_state import BOUND, State, members
from engine.state.ledger import GRAINS
from engine.state.timers import Timer
from engine.state.workloads import UNBOUNDED_MS


def check_state(state: State) -> None:
    """Every invariant of one state (DESIGN section 5). Raises AssertionError naming what is off."""
    _check_nodes(state)
    _check_gangs(state)
    _check_quota(state)
    _check_pending(state)
    _check_owners(state)
    _check_bookings(state)
    _check_ledger(state)


def _check_nodes(state: State) -> None:
    capacity, allocations, w = state.capacity, state.allocations, state.workloads
    for node, node_id in enumerate(capacity.node_ids):
        pool = capacity.pools[capacity.pool[node]]
        cpu, memory, gpu, disk = pool.offered.vector()
        devices = [1000] * (gpu // 1000)
        instances: dict[int, list[tuple[int, int]]] = {}
        if capacity.state[node] == NodeState.REMOVED:
            cpu = memory = disk = 0
            devices = [0] * len(devices)
        for a in allocations.on_node(node):
            assert allocations.node[a] == node, f"allocation {a} is in the chain of {node_id} but not on it"
            shape = w.class_at(allocations.workload[a]).shapes[allocations.group[a]]
            count, mask = allocations.count[a], allocations.devices[a]
            cpu -= shape.cpu * count
            memory -= shape.memory * count
            disk -= shape.disk * count
            if shape.mig:
                device, layout, instance = mig.read_claim(mask)
                kind, start = mig.LAYOUTS[layout][instance]
                assert (count, mig.profiles_of(pool)[kind]) == (1, shape.mig), f"instance of allocation {a}"
                assert device < len(devices), f"allocation {a} uses a device that {node_id} does not have"
                at = capacity.device_base[node] + device
                assert capacity.device_layout[at] == layout, f"layout of device {device} of {node_id}"
                assert capacity.device_used[at] >> instance & 1, f"allocation {a} has an instance that counts as free"
                instances.setdefault(device, []).append((kind, start))
                continue
            assert mask.bit_count() == (shape.gpus * count or bool(shape.share)), f"devices of allocation {a}"
            for device in range(len(devices)):
                if mask >> device & 1:
                    devices[device] -= shape.share * count if shape.share else 1000
            assert mask >> len(devices) == 0, f"allocation {a} uses a device that {node_id} does not have"
        for device, held in instances.items():
            assert devices[device] == 1000, f"device {device} of {node_id} is partitioned and used otherwise"
            devices[device] = 0
            slices = [start + i for kind, start in held for i in range(mig.KINDS[kind].memory)]
            assert sorted(set(slices) & set(range(mig.MEMORY_SLICES))) == sorted(slices), f"slices of {node_id} overlap"
            assert sum(mig.KINDS[kind].compute for kind, _ in held) <= mig.COMPUTE_SLICES, f"compute of {node_id}"
            assert capacity.device_used[capacity.device_base[node] + device].bit_count() == len(held)
        cut = capacity.device_layout[capacity.device_base[node] :][: len(devices)]
        assert {i for i, layout in enumerate(cut) if layout} == set(instances), f"partitioned devices of {node_id}"
        assert (cpu, memory, disk) == (
            capacity.free_cpu[node],
            capacity.free_memory[node],
            capacity.free_disk[node],
        ), f"free capacity of {node_id}"
        assert min(cpu, memory, disk) >= 0, f"{node_id} below zero"
        assert devices == list(capacity.devices(node)), f"devices of {node_id}"
        assert all(0 <= free <= 1000 for free in devices), f"devices of {node_id} out of range"
        assert capacity.whole[node] == sum(1 << i for i, free in enumerate(devices) if free == 1000)
        assert capacity.partial[node] == max((free for free in devices if free < 1000), default=0)
        assert (capacity.key[node] != NOWHERE) == (capacity.state[node] == NodeState.READY), f"index of {node_id}"
    everywhere = {(OPEN, part): index for part, index in enumerate(capacity.indexes)} | capacity.booked
    for (booking, part), index in everywhere.items():
        ready = [
            n
            for n in range(len(capacity.node_ids))
            if (capacity.booking[n], capacity.partition[n]) == (booking, part) and capacity.key[n] != NOWHERE
        ]
        assert index.free_cpu == sum(capacity.free_cpu[n] for n in ready)
        assert index.free_memory == sum(capacity.free_memory[n] for n in ready)
        assert index.free_devices == sum(capacity.whole[n].bit_count() for n in ready)
        assert sum(index.counts.values()) == len(ready)
        found = {key: set(heap) for key, heap in index.heaps.items()}
        assert all(n in found[capacity.key[n]] for n in ready), "a ready node cannot be found"
        for kind, heap in enumerate(index.instance_heaps):
            holders = {n for n in ready if capacity.open_kinds[n] >> kind & 1}
            assert index.instance_counts[kind] == len(holders)
            assert holders <= set(heap), "a node with a free instance cannot be found"


def _check_gangs(state: State) -> None:
    w, allocations = state.workloads, state.allocations
    assert len(set(w.ids)) == len(w.ids), "an id is used twice"
    for row, name in enumerate(w.ids):
        placed = [0] * len(w.class_at(row).groups)
        for a in allocations.of_workload(w.first_allocation[row]):
            assert allocations.workload[a] == row
            placed[allocations.group[a]] += allocations.count[a]
        if w.state[row] in BOUND:
            least, most = w.class_at(row).least, w.class_at(row).counts
            within = all(low <= have <= high for low, have, high in zip(least, placed, most, strict=True))
        else:
            within = not any(placed)
        assert within, f"{name} ({WorkloadState(w.state[row]).label}) has {placed} tasks placed"
        assert w.tasks[row] == sum(placed), f"tasks of {name}"
        assert (w.ended[row] >= 0) == WorkloadState(w.state[row]).terminal, f"end of {name}"
    assert w.state_counts == [list(w.state).count(s) for s in WorkloadState]


def _check_quota(state: State) -> None:
    """P3: what is charged follows from what is placed, and no tree draws more than it has, bursts apart."""
    q, w, a, capacity = state.queues, state.workloads, state.allocations, state.capacity
    used = [[0] * q.slots for _ in q.specs]
    running = [0] * len(q.specs)
    for row in range(len(w.ids)):
        if w.state[row] not in BOUND:
            continue
        running[w.queue[row]] += 1
        for i in a.of_workload(w.first_allocation[row]):
            pool = capacity.pools[capacity.pool[a.node[i]]].name
            flavor = q.flavors.index.get(pool, 0) if q.flavored(w.queue[row]) else 0
            for resource, each in enumerate(w.class_at(row).groups[a.group[i]].request.vector()):
                for vertex in q.path[w.queue[row]]:
                    used[vertex][resource] += each * a.count[i]
                    if flavor:
                        used[vertex][flavor * 4 + resource] += each * a.count[i]
    assert running == list(q.running), "workloads charged to the queues"
    for vertex, spec in enumerate(q.specs):
        stored = list(q.used[vertex * q.slots : (vertex + 1) * q.slots])
        assert used[vertex] == stored, f"charge of queue {spec.name}"
    books = Books(q.specs)
    draws = books.draws(leaf_use(state))
    for (name, pool, resource), drawn in draws.items():
        vertex, flavor = q.row_of[name], q.flavors.index[pool]
        stored_draw = q.drawn[vertex * q.slots + flavor * 4 + RESOURCES.index(resource)]
        assert drawn == stored_draw, f"draw of queue {name} in {resource} {pool}"


def check_quota_kept(state: State) -> None:
    """No queue draws more than it may now. Holds while quotas are not reduced below what is in use."""
    q = state.queues
    for vertex, spec in enumerate(q.specs):
        if q.burst_since[vertex] < 0 and not any(q.burst_since[v] >= 0 for v in range(len(q.specs))):
            assert not q.over(vertex, state.now_ms), f"queue {spec.name} draws more than it may"


def _check_pending(state: State) -> None:
    w = state.workloads
    waiting = [row for group in state.pending.groups.values() for row in group.rows[group.front :]]
    assert sorted(waiting) == [r for r in range(len(w.ids)) if w.state[r] == WorkloadState.QUEUED], "pending order"
    for key, group in state.pending.groups.items():
        rows = group.rows[group.front :]
        assert rows == sorted(rows), "a group is out of order"
        assert all(state.pending_key(row) == key for row in rows), "a workload is in the wrong group"


def _check_owners(state: State) -> None:
    """P6: what has not ended is somewhere from where it can go on: pending, bound, stopped by a person, or waiting for
    others or for a moment that will come."""
    w = state.workloads
    moments = set(state.timers._heap)
    for row, name in enumerate(w.ids):
        now = w.state[row]
        if now == WorkloadState.WAITING:
            waits_for = w.dependencies(row)
            assert w.unmet[row] == len(waits_for), f"{name} counts {w.unmet[row]} dependencies, has {len(waits_for)}"
            assert waits_for or w.wake[row] >= 0, f"{name} waits for nothing"
            assert not any(w.fulfilled(target, kind) for target, kind in waits_for), f"{name} waits for what has come"
            if not waits_for:
                assert (w.wake[row], Timer.WAKE, row) in moments, f"nothing wakes {name}"
        elif now == WorkloadState.QUEUED:
            assert w.unmet[row] == 0, f"{name} is queued though it waits for others"
            assert w.wake[row] <= state.now_ms, f"{name} is queued before its time"
        timeout = state.settings.try_timeout_ms
        if now == WorkloadState.PLACED and timeout:
            assert (w.since[row] + timeout, Timer.CONFIRM, row) in moments or w.since[row] == state.now_ms, (
                f"nobody waits for the confirmation of {name}"
            )
        terms = w.terms_at(row)
        if now == WorkloadState.RUNNING and terms.max_runtime_ms:
            assert (w.started[row] + terms.max_runtime_ms, Timer.MAX_RUNTIME, row) in moments, f"nothing stops {name}"
        assert (w.preempting[row] < 0) or (
            now in BOUND and any(row in c.victims and c.row == w.preempting[row] for c in state.bookings.clearings)
        ), f"{name} is being preempted for nobody"


def _check_bookings(state: State) -> None:
    """P7: kept nodes belong to exactly one live reservation or preemption, and those have all their nodes."""
    capacity, w = state.capacity, state.workloads
    kept: dict[int, set[int]] = {}
    for node, booking in enumerate(capacity.booking):
        if booking != OPEN:
            kept.setdefault(booking, set()).add(node)
    owned = {
        r.booking: {
            node
            for name in r.spec.nodes
            # Machines that are gone are kept for nobody, nor is one that has the name of such a one.
            if (node := capacity.row_of.get(name, -1)) >= 0 and capacity.booking[node] == r.booking
        }
        for r in state.bookings.reservations
    }
    owned |= {
        c.booking: {node for node in c.nodes if capacity.state[node] != NodeState.REMOVED}
        for c in state.bookings.clearings
    }
    assert kept == {booking: nodes for booking, nodes in owned.items() if nodes}, "nodes kept for nobody"
    rows = [clearing.row for clearing in state.bookings.clearings]
    assert len(rows) == len(set(rows)), "cleared for twice"
    assert all(w.state[row] == WorkloadState.QUEUED for row in rows), "cleared for one that does not wait"


def task_rate(pool: PoolSpec, cpu_milli: int, memory_mib: int, gpu_milli: int) -> int:
    """Micro-USD per hour that a task asking for so much is charged on a node of the pool, from the words of
    docs/policy.md: a GiB weighs as much as a ninth of a vCPU, and devices nine tenths of a node that has some."""
    offered = pool.offered
    host = Fraction(offered.cpu_milli, 1000) * 9 + Fraction(offered.memory_mib, 1024)
    asked = Fraction(cpu_milli, 1000) * 9 + Fraction(memory_mib, 1024)
    part = asked / host if host else Fraction(0)
    if offered.gpu_milli:
        devices = Fraction(gpu_milli, offered.gpu_milli)
        part = (9 * devices + part) / 10 if host else devices
    return int(pool.price_microusd_hour * part)


def task_rate_at(state: State, allocation: int) -> int:
    """The same of one task of the allocation."""
    w, a, capacity = state.workloads, state.allocations, state.capacity
    shape = w.class_at(a.workload[allocation]).shapes[a.group[allocation]]
    pool = capacity.pools[capacity.pool[a.node[allocation]]]
    return task_rate(pool, shape.cpu, shape.memory, shape.gpu_milli)


def _check_ledger(state: State) -> None:
    """What is charged now follows from what is placed, no node is charged twice, and all books tell the same sum."""
    books, budgets, w, a, capacity = state.ledger, state.budgets, state.workloads, state.allocations, state.capacity
    by_row, by_pool, paid = [0] * len(w.ids), [0] * len(capacity.pools), [0] * len(capacity.pools)
    for node in range(len(capacity.node_ids)):
        pool = capacity.pool[node]
        price = capacity.pools[pool].price_microusd_hour
        charged = 0
        for i in a.on_node(node):
            rate = a.count[i] * task_rate_at(state, i)
            by_row[a.workload[i]] += rate
            charged += rate
        assert charged <= price, f"{capacity.node_ids[node]} is charged for more than it costs"
        by_pool[pool] += charged
        paid[pool] += price if capacity.state[node] != NodeState.REMOVED else 0
    assert list(books.rate) == by_row, "rates of workloads"
    assert (list(books.used.rate), list(books.cost.rate)) == (by_pool, paid), "rates of pools"
    by_account = [0] * len(books.accounts)
    for row, rate in enumerate(by_row):
        assert rate == 0 or books.account[row] >= 0
        if books.account[row] >= 0:
            by_account[books.account[row]] += rate
            key = (w.tenant[row], w.team[row], w.queue[row], w.tags[row])
            assert books.account_of[key] == books.account[row]
    assert list(books.accounts.rate) == by_account, "rates of accounts"
    now_ms = state.now_ms
    charged = sum(books.grains_of(row, now_ms) for row in range(len(w.ids)))
    assert charged == books.spent_grains(now_ms), "workloads and pools"
    assert charged == sum(books.accounts.amount(row, now_ms) for row in range(len(by_account))), "accounts"
    assert charged <= books.total_grains(now_ms), "more is charged than the nodes cost"
    for row in range(len(w.ids)):
        wasted = books.wasted_whole[row] * GRAINS + books.wasted_rest[row]
        assert 0 <= wasted <= books.grains_of(row, now_ms), f"waste of {w.ids[row]}"
    for budget, spec in enumerate(budgets.specs):
        covered = [
            row
            for row, queue in enumerate(w.queue)
            if spec.of
            == {
                "tenant": w.tenants.names[w.tenant[row]],
                "team": w.teams.names[w.team[row]],
                "queue": spec.of if spec.of in (state.queues.specs[v].name for v in state.queues.path[queue]) else "",
            }[spec.scope]
        ]
        assert budgets.meters.rate[budget] == sum(by_row[row] for row in covered), f"rate of budget {spec.name}"
        for row in covered:
            stopped = budgets.stage[budget] == 2 and (
                spec.action == "hold" or (spec.action == "approve" and row not in budgets.approved)
            )
            if stopped and w.state[row] == WorkloadState.QUEUED:
                assert budgets.stopping(state, row) is not None, f"{w.ids[row]} may start against {spec.name}"


def check_in_time(state: State, now_ms: int) -> None:
    """P7: nothing waits for a confirmation, a moment or a preemption longer than it may."""
    w, timeout = state.workloads, state.settings.try_timeout_ms
    for row, name in enumerate(w.ids):
        if w.state[row] == WorkloadState.PLACED and timeout:
            assert now_ms < w.since[row] + timeout, f"{name} still holds nodes without a confirmation"
        if w.state[row] == WorkloadState.WAITING and not w.unmet[row]:
            assert now_ms < w.wake[row], f"{name} slept in"
    assert all(now_ms < c.at_ms for c in state.bookings.clearings), "a preemption was not carried out"
    assert all(now_ms < r.spec.end_ms for r in state.bookings.reservations), "a reservation outlived its window"


# -- quota, from the specs alone --------------------------------------------------------------------------------------

Slot = tuple[str, str]
"""(pool name, resource name); an empty pool name stands for all pools together."""


def leaf_use(state: State, only: set[int] | None = None) -> dict[tuple[str, str, str], int]:
    """(queue, pool, resource) -> what its placed tasks ask for there; in all pools under the empty name. Of these rows
    alone, when given."""
    w, a, capacity = state.workloads, state.allocations, state.capacity
    use: dict[tuple[str, str, str], int] = {}
    for row in range(len(w.ids)):
        if w.state[row] not in BOUND or (only is not None and row not in only):
            continue
        queue = state.queues.specs[w.queue[row]].name
        for i in a.of_workload(w.first_allocation[row]):
            request = w.class_at(row).groups[a.group[i]].request.vector()
            for resource, each in zip(RESOURCES, request, strict=True):
                for pool in ("", capacity.pools[capacity.pool[a.node[i]]].name):
                    key = queue, pool, resource
                    use[key] = use.get(key, 0) + each * a.count[i]
    return use


class Books:
    """The quota rules, worked out recursively from what the specs say."""

    def __init__(self, specs: Sequence[QueueSpec]) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.children: dict[str, list[str]] = {spec.name: [] for spec in specs}
        for spec in specs:
            if spec.parent:
                self.children[spec.parent].append(spec.name)
        self.pools = ("", *dict.fromkeys(flavor.pool for spec in specs for flavor in spec.flavors))
        self._limited = {
            (self.root(spec.name), pool, resource)
            for spec in specs
            for pool in self.pools
            for resource in self._given(spec.name, pool, "nominal")
        }

    def root(self, name: str) -> str:
        while self.specs[name].parent:
            name = self.specs[name].parent
        return name

    def path(self, name: str) -> list[str]:
        """From the queue up to its root."""
        found = [name]
        while self.specs[found[-1]].parent:
            found.append(self.specs[found[-1]].parent)
        return found

    def flavored(self, name: str) -> bool:
        root = self.root(name)
        return any(spec.flavors and self.root(spec.name) == root for spec in self.specs.values())

    def limited(self, name: str, slot: Slot) -> bool:
        """Whether some vertex of the same tree gives a nominal quota."""
        return (self.root(name), *slot) in self._limited

    def _given(self, name: str, pool: str, field: str) -> dict[str, int]:
        spec = self.specs[name]
        if not pool:
            return getattr(spec, field)
        return next((getattr(flavor, field) for flavor in spec.flavors if flavor.pool == pool), {})

    def nominal(self, name: str, slot: Slot) -> int:
        return self._given(name, slot[0], "nominal").get(slot[1], 0)

    def quota(self, name: str, slot: Slot) -> int:
        lent = (self.quota(child, slot) - self.local(child, slot) for child in self.children[name])
        return self.nominal(name, slot) + sum(lent)

    def local(self, name: str, slot: Slot) -> int:
        """What only the subtree itself may use."""
        lending = self._given(name, slot[0], "lending_limit").get(slot[1])
        return 0 if lending is None else max(0, self.quota(name, slot) - lending)

    def ceiling(self, name: str, slot: Slot) -> int | None:
        """The most the vertex may draw, bursts apart; None: whatever those above allow."""
        if not self.limited(name, slot):
            return None
        if not self.specs[name].parent:
            return self.quota(name, slot)
        borrowing = self._given(name, slot[0], "borrowing_limit").get(slot[1])
        return None if borrowing is None else self.quota(name, slot) + borrowing

    def drawn(self, name: str, slot: Slot, use: dict[tuple[str, str, str], int]) -> int:
        """What the vertex takes of its own quota and of those above."""
        if not self.children[name]:
            return 0 if slot[0] and not self.flavored(name) else use.get((name, *slot), 0)
        return sum(max(0, self.drawn(child, slot, use) - self.local(child, slot)) for child in self.children[name])

    def draws(self, use: dict[tuple[str, str, str], int]) -> dict[tuple[str, str, str], int]:
        """(vertex, pool, resource) -> what it draws."""
        slots = [(pool, resource) for pool in self.pools for resource in RESOURCES]
        return {(name, *slot): self.drawn(name, slot, use) for name in self.specs for slot in slots}

    def used(self, name: str, slot: Slot, use: dict[tuple[str, str, str], int]) -> int:
        """All use of the vertex and those below it."""
        below = sum(self.used(child, slot, use) for child in self.children[name])
        return below + use.get((name, *slot), 0)

    def borrows(self, name: str, use: dict[tuple[str, str, str], int]) -> list[Slot]:
        """Slots in which the queue uses more than its nominal quota, where quotas count."""
        return [
            (pool, resource)
            for pool in self.pools
            if not pool or self.flavored(name)
            for resource in RESOURCES
            if self.limited(name, (pool, resource))
            and use.get((name, pool, resource), 0) > self.nominal(name, (pool, resource))
        ]


# -- what must hold of every event ------------------------------------------------------------------------------------


class Series:
    """A preemption while it happens: victims go one by one, then the preemptor is placed."""

    def __init__(self, row: int, before: State, cleared: bool) -> None:
        self.row = row
        self.before = before
        """The state just before it."""
        self.cleared = cleared
        """The victims were chosen earlier, and given time to write checkpoints."""
        self.victims: list[ev.Evicted] = []


class Witness:
    """Looks at every event just before and just after it happens."""

    def __init__(self) -> None:
        self.history: list[ev.AnyEvent] = []
        self.series: Series | None = None
        self.preempted: list[tuple[str, int]] = []
        """(queue, cell ms) of every preemption."""
        self.pairs: set[tuple[int, int]] = set()
        """(preemptor, victim) since `new_turn`, at the time `pairs_at`."""
        self.pairs_at = -1
        self.places = Places()
        self.backfilled_at: tuple[int, int] | None = None
        """`State.changes_mark` when something last started behind a reservation. The reservation is made anew whenever
        anything is freed."""
        self.most_events = 50_000
        """More than any of the small cells can need: the engine goes round in circles."""

    def new_turn(self) -> None:
        """Something new was asked of the engine: what is preempted again is preempted for that."""
        self.pairs.clear()

    def record(self, event: ev.AnyEvent) -> None:
        self.history.append(event)
        self.places.learn(event)
        assert len(self.history) < self.most_events, "the engine goes round in circles"

    def before(self, state: State, event: ev.AnyEvent) -> None:
        if self.series is not None and not _goes_on(event, self.series.row):
            raise AssertionError(f"victims were evicted for row {self.series.row}, and then came {event}")
        if type(event) is ev.Evicted and event.cause in ev.PREEMPTIONS:
            if self.series is None:
                cleared = state.bookings.clearing_for(event.by) is not None
                self.series = Series(event.by, state.copy(), cleared)
            self.series.victims.append(event)
            self._check_victim(state, event)
        elif type(event) in (ev.Placed, ev.Grown, ev.Swapped):
            self._use, self._bursts = leaf_use(state), _bursting(state)

    def after(self, state: State, event: ev.AnyEvent) -> None:
        if type(event) in (ev.Placed, ev.Grown, ev.Swapped):
            _check_admission(state, self._use, self._bursts)
            _check_place(state, event)
            self.places.check(state, event)
        if type(event) is ev.Placed and self.series is not None:
            series, self.series = self.series, None
            self._check_preemptor(state, series)
        if type(event) is ev.Placed and event.flags & ev.BACKFILLED:
            self.backfilled_at = state.changes_mark

    # -- preemption: P4, P5, P13, P18 ---------------------------------------------------------------------------------

    def _check_victim(self, state: State, event: ev.Evicted) -> None:
        w, q, now_ms = state.workloads, state.queues, state.now_ms
        victim, by, cause = event.row, event.by, ev.EVICTION_CAUSES[event.cause]
        name, spec = w.ids[victim], q.specs[w.queue[victim]]
        assert by >= 0, f"{name} was preempted for nobody"
        assert by != victim, f"{name} preempted itself"
        assert w.state[victim] in BOUND, f"{name} was preempted while {w.state[victim]}"
        assert w.priority_classes[w.priority[victim]].preemptible, f"{name} may not be preempted"
        same_queue = w.queue[victim] == w.queue[by]
        if same_queue:
            assert w.value_at(victim) < w.value_at(by), f"{name} ({cause}) is no less than {w.ids[by]}"
        if cause == "lower priority":
            assert same_queue, f"{name} is of another queue than {w.ids[by]}"
            assert w.priority_classes[w.priority[by]].preemption == "lower", f"{w.ids[by]} may not preempt"
        elif cause == "reclaimed":
            assert not same_queue, f"{name} reclaimed within its queue"
            reclaim = q.specs[w.queue[by]].reclaim
            assert reclaim != "never", f"{w.ids[by]} reclaims though its queue never does"
            assert reclaim == "any" or w.value_at(victim) < w.value_at(by), f"{name} is no less than {w.ids[by]}"
        elif cause == "overran backfill":
            assert w.flags[victim] & ev.BACKFILLED, f"{name} was no backfill"
            assert estimated_end(state, victim) <= now_ms, f"{name} has not overrun"
        elif cause == "expired burst":
            # All of them go at once: what counts is how it was before the first.
            tree = self.series.before.queues
            path = tree.path[w.queue[victim]]
            expired = [v for v in path if tree.burst_excess(v) and tree.burst_state(v, now_ms) != "burst"]
            assert expired, f"{name} was preempted for a burst that has not expired"
        if cause != "expired burst":
            assert now_ms - w.started[victim] >= spec.min_runtime_ms, f"{name} ran less than its queue assures"
        self.preempted.append((spec.name, now_ms))
        if spec.disruptions >= 0:
            recent = [q for q, at in self.preempted if q == spec.name and at > now_ms - spec.disruption_window_ms]
            assert len(recent) <= spec.disruptions, f"queue {spec.name} was disrupted {len(recent)} times"
        if self.pairs_at != now_ms:
            self.pairs.clear()
            self.pairs_at = now_ms
        assert not any(victim == other for _, other in self.pairs), f"{name} was preempted twice at one time"
        self.pairs.add((by, victim))

    def _check_preemptor(self, state: State, series: Series) -> None:
        w = state.workloads
        name = w.ids[series.row]
        if any(ev.EVICTION_CAUSES[v.cause] == "reclaimed" for v in series.victims):
            books = Books(state.queues.specs)
            queue = state.queues.specs[w.queue[series.row]].name
            over = [slot for slot in books.borrows(queue, leaf_use(state)) if _asks(state, series.row, slot)]
            assert not over, f"{name} reclaimed, and now its queue {queue} is above nominal in {over}"
            _check_reclaimed(series)
        if series.cleared:
            return
        for spared in series.victims:
            trial = series.before.copy()
            rest = [victim for victim in series.victims if victim is not spared]
            for victim in rest:
                trial.apply(victim)
            # Whoever reclaims keeps within its queue's quota, for which lower work of that queue may have to go.
            borrow = not any(ev.EVICTION_CAUSES[victim.cause] == "reclaimed" for victim in rest)
            could = could_start(trial, series.row, borrow=borrow)
            assert not could, f"{w.ids[spared.row]} need not have gone for {name}"


def _check_reclaimed(series: Series) -> None:
    """P4: in some order each reclaimed victim goes while its queue is above its nominal quota."""
    before = series.before
    w, books = before.workloads, Books(before.queues.specs)
    for queue in {w.queue[victim.row] for victim in series.victims}:
        name = before.queues.specs[queue].name
        mine = [v.row for v in series.victims if w.queue[v.row] == queue]
        others = [v.row for v in series.victims if ev.EVICTION_CAUSES[v.cause] != "reclaimed"]
        parts = {row: leaf_use(before, {row}) for row in mine}

        def above(gone: Sequence[int], name: str = name, parts: dict = parts) -> bool:
            use = leaf_use(before)
            for row in gone:
                for key, quantity in parts[row].items():
                    use[key] -= quantity
            return bool(books.borrows(name, use))

        orders = islice(permutations(mine), 720)
        fine = any(all(row in others or above(order[:i]) for i, row in enumerate(order)) for order in orders)
        assert fine, f"{[w.ids[row] for row in mine]} were reclaimed from what queue {name} has within its quota"


def _asks(state: State, row: int, slot: Slot) -> bool:
    return state.workloads.class_at(row).request[RESOURCES.index(slot[1])] > 0


def estimated_end(state: State, row: int) -> int:
    """Cell time at which bound work ends by its estimate: with fewer tasks it takes longer in proportion."""
    w = state.workloads
    work = (w.class_at(row).estimate_ms or UNBOUNDED_MS) - w.kept[row] - w.done[row]
    return w.rated[row] + max(-(-work * sum(w.class_at(row).counts) // w.tasks[row]), 1)


def _goes_on(event: ev.AnyEvent, row: int) -> bool:
    """Whether the event may follow in a preemption for the row that has begun."""
    if type(event) is ev.Evicted:
        return event.by == row
    return type(event) is ev.Tick or (type(event) is ev.Placed and event.row == row)


def could_start(state: State, row: int, *, borrow: bool = True) -> bool:
    """Whether quota, its queue's own unless it may `borrow`, and room let the workload start as things are."""
    counts = state.workloads.class_at(row).least
    for shapes in variants(state, row):
        charge = state.charge_if(row, shapes, counts)
        if state.queues.lack(state.workloads.queue[row], charge, state.now_ms, borrow=borrow) is None:
            claims = place(state.capacity, shapes, counts)
            if claims is not None:
                return True
    return False


def _bursting(state: State) -> set[str]:
    """Vertices whose burst is open: it has not begun, or its window is not over."""
    q = state.queues
    return {spec.name for row, spec in enumerate(q.specs) if q.burst_state(row, state.now_ms) != "cooldown"}


def _check_admission(state: State, before: dict[tuple[str, str, str], int], bursting: set[str]) -> None:
    """P3: what just started keeps every vertex within what it may draw, or within its burst while that is open."""
    books, after = Books(state.queues.specs), leaf_use(state)
    drew = books.draws(before)
    for (name, pool, resource), drawn in books.draws(after).items():
        ceiling = books.ceiling(name, (pool, resource))
        if ceiling is None or drawn <= ceiling or drawn <= drew[name, pool, resource]:
            continue
        burst = books.specs[name].burst
        limit = -1 if burst is None or pool or name not in bursting else burst.limit.get(resource, -1)
        assert books.used(name, (pool, resource), after) <= limit, (
            f"queue {name} draws {drawn} {resource} {pool}, it may {ceiling}, or use {limit} in all"
        )


def _check_place(state: State, event: ev.Placed | ev.Grown | ev.Swapped) -> None:
    """P15: only on ready nodes of pools it accepts, and on kept nodes only if they are kept for it, or if it is
    expected to be gone when the reservation starts."""
    w, q, capacity = state.workloads, state.queues, state.capacity
    row = event.row
    name = w.ids[row]
    books = Books(q.specs)
    queue = q.specs[w.queue[row]]
    path = set(books.path(queue.name))
    own = w.class_at(row).reservation
    by_booking = {r.booking: r.spec for r in state.bookings.reservations}
    for group, placement in enumerate(event.groups):
        spec = w.class_at(row).groups[group]
        pools_used = set()
        for node in array("i", placement.nodes):
            pool = capacity.pools[capacity.pool[node]]
            pools_used.add(pool.name)
            assert accepts(spec, pool, w.class_at(row).bonds.qos), f"{name} is in pool {pool.name}"
            assert capacity.state[node] == NodeState.READY, f"{name} is on {capacity.node_ids[node]}"
            reservation = by_booking.get(capacity.booking[node])
            if own:
                assert reservation is not None, f"{name} is outside its reservation {own}"
                assert reservation.name == own, f"{name} is in reservation {reservation.name}, not in {own}"
                assert reservation.start_ms <= state.now_ms, f"{name} is early in its reservation"
            elif reservation is not None:
                open_to_it = reservation.start_ms <= state.now_ms and not path.isdisjoint(reservation.queues)
                assert open_to_it or estimated_end(state, row) <= reservation.start_ms, (
                    f"{name} is expected until {estimated_end(state, row)} on a node of {reservation.name}, from "
                    f"{reservation.start_ms}"
                )
            elif capacity.booking[node] != OPEN:
                raise AssertionError(f"{name} is on a node that is kept for another")
        if books.flavored(queue.name) and queue.flavors:
            assert pools_used <= {flavor.pool for flavor in queue.flavors}, f"{name} is outside its flavors"


class Places:
    """P15 for labels, taints, bonds, spread and topology, from nothing but the specs of nodes and workloads."""

    def __init__(self) -> None:
        self._pools: dict[str, PoolSpec] = {}
        self._nodes: list[NodeSpec] = []
        self._workloads: list[WorkloadSpec] = []

    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        return tuple(self._nodes)

    def learn(self, event: ev.AnyEvent) -> None:
        if isinstance(event, ev.PoolAdded):
            self._pools[event.pool.name] = event.pool
        elif isinstance(event, ev.NodesAdded | ev.NodesGranted):
            self._nodes += event.nodes
        elif isinstance(event, ev.Submitted):
            array = event.workload.array
            self._workloads += [event.workload] * (1 if array is None else len(members(array)))
        elif isinstance(event, ev.SubmittedMany):
            self._workloads += event.workloads

    def check(self, state: State, event: ev.Placed | ev.Grown | ev.Swapped) -> None:
        """That a workload may have the tasks it just got where they are. Near others and evenly spread are those that
        were placed now: nobody moves the tasks that stayed when others left, or when room came up elsewhere."""
        row = event.row
        spec, held = self._workloads[row], self._held(state, row)
        new = [set(array("i", placement.nodes)) for placement in event.groups]
        for group, nodes in enumerate(held):
            for node in nodes:
                self._check_node(spec, spec.groups[group], self._nodes[node])
        mine = {node for nodes in held for node in nodes}
        if spec.topology is not None and spec.topology.required:
            domains = {self.domain(spec.topology.required, node) for node in mine}
            assert len(domains) == 1, f"{spec.id} must be in one {spec.topology.required}, and is in {domains}"
        others = {
            other: {node for nodes in self._held(state, other) for node in nodes}
            for other in range(len(self._workloads))
            if other != row and state.workloads.state[other] in BOUND
        }
        self._check_bonds(spec, set().union(*new), mine, others)
        for group, nodes in enumerate(held):
            self._check_spread(state, row, group, nodes, new[group])

    def domain(self, level: str, node: int) -> tuple[str, ...]:
        """Names from the widest level down; a node whose name at the level is not known is alone."""
        spec = self._nodes[node]
        if level == "node" or not getattr(spec, level):
            return ("", spec.id)
        return tuple(getattr(spec, wider) for wider in LEVELS[: LEVELS.index(level) + 1])  # type: ignore[arg-type]

    def _held(self, state: State, row: int) -> list[Counter[int]]:
        """Tasks by node of each group."""
        a, w = state.allocations, state.workloads
        held: list[Counter[int]] = [Counter() for _ in self._workloads[row].groups]
        for entry in a.of_workload(w.first_allocation[row]):
            held[a.group[entry]][a.node[entry]] += a.count[entry]
        return held

    def _check_node(self, spec: WorkloadSpec, group: TaskGroup, node: NodeSpec) -> None:
        pool = self._pools[node.pool]
        labels = {**pool.labels, **node.labels}
        for key, values in group.node_labels.items():
            there = key in labels and ("*" in values or labels[key] in values)
            assert there, f"{spec.id} wants {key} of {values}, and {node.id} has {labels}"
        for key, values in group.avoid_labels.items():
            assert labels.get(key) not in values, f"{spec.id} avoids {key} of {values}, and {node.id} has {labels}"
        for taint in (*pool.taints, *node.taints):
            tolerated = any(t.key == taint.key and t.value in ("", taint.value) for t in group.tolerations)
            assert tolerated or taint.effect != "NoSchedule", f"{spec.id} does not tolerate {taint.label} of {node.id}"

    def _check_bonds(self, spec: WorkloadSpec, new: set[int], mine: set[int], others: dict[int, set[int]]) -> None:
        for bond in spec.near:
            domains = {self.domain(bond.level, n) for o, at in others.items() if self._carries(o, bond) for n in at}
            here = {self.domain(bond.level, node) for node in new}
            assert not domains or here <= domains, f"{spec.id} must be near {bond}: it is in {here}, not in {domains}"
        for other, at in others.items():
            both = [bond for bond in spec.apart if self._carries(other, bond)]
            both += [b for b in self._workloads[other].apart if b.tags.items() <= spec.tags.items()]
            for bond in both:
                shared = {self.domain(bond.level, n) for n in mine} & {self.domain(bond.level, n) for n in at}
                assert not shared, f"{spec.id} and {self._workloads[other].id} keep apart, and share {shared}"

    def _carries(self, row: int, bond: Affinity) -> bool:
        return bond.tags.items() <= self._workloads[row].tags.items()

    def _check_spread(self, state: State, row: int, group: int, nodes: Counter[int], new: set[int]) -> None:
        """No domain that got a task has more than the skew above another in which one more could have gone."""
        spec = self._workloads[row].groups[group].spread
        if spec is None or not new:
            return
        counts: Counter[tuple[str, ...]] = Counter()
        for node, count in nodes.items():
            counts[self.domain(spec.level, node)] += count
        capacity = state.capacity
        # Where they may go: in their reservation alone, if they have one.
        shapes = [each[group] for each in variants(state, row)]
        queue = state.queues.specs[state.workloads.queue[row]].name
        # Where quota is by pool, all tasks of a group are in one.
        confined = Books(state.queues.specs).flavored(queue)
        pools = {capacity.pool[node] for node in nodes}
        for node in range(len(self._nodes)):
            if capacity.state[node] != NodeState.READY:
                continue
            if confined and capacity.pool[node] not in pools:
                continue
            if any(capacity.usable(node, shape) and capacity.fits(node, shape) for shape in shapes):
                domain = self.domain(spec.level, node)
                skew = max(counts[self.domain(spec.level, at)] for at in new) - counts[domain]
                assert skew <= spec.max_skew, f"{self._workloads[row].id} has {counts}, and room in {domain}"


class WatchedEngine(Engine):
    """An engine whose every event is looked at, and so does everything one by one. Forks of it are not, and do not."""

    def __init__(self, *args, **kwargs) -> None:
        self.witness = Witness()
        super().__init__(*args, **kwargs)

    def _adopt(self, state: State) -> None:
        super()._adopt(state)
        self.scheduler.binder.max_at_once = 1

    def _emit(self, event: ev.AnyEvent) -> None:
        self._tick()
        self.witness.before(self.state, event)
        super()._emit(event)
        self.witness.after(self.state, event)

    def _emit_claimed(self, event: ev.Placed | ev.Grown) -> None:
        self._tick()
        self.witness.before(self.state, event)
        super()._emit_claimed(event)
        self.witness.after(self.state, event)

    def _record(self, event: ev.AnyEvent) -> None:
        self.witness.record(event)
        super()._record(event)


def check_found_anew(engine: WatchedEngine, twin: Engine) -> None:
    """What a cycle without memory (`twin`, a fork that has settled) may start where the engine found no more to do.

    Nothing, except under EASY, and there only behind a promise. EASY looks at each workload once, in order, and holds
    against it the nodes that the placer gives it at that moment, and spare slots that leave out what ends at the very
    time of the promised start but later in the order (`engine.scheduling.backfill`). What it starts afterwards in the
    same pass can change both: the refused would now be given other nodes, or other ends come first at that time. The
    engine looks again when something is freed. Until then, a cycle without memory

    - starts more only if something has started behind the promise since it was made: before, it decides the same;
    - starts only what would still run at the promised start, and what a strict queue kept behind that: what is gone by
      then is never refused for it;
    - makes the same promise to the same workload, not later, and leaves alone all that runs.
    """
    if twin.version == engine.version:
        return
    what = f"a cycle without memory found more to do: {twin.changes(engine.version).items}"
    state, found, promise = engine.state, twin.state, engine.scheduler.memory.reservation
    w = state.workloads
    assert promise is not None, what
    assert engine.witness.backfilled_at == state.changes_mark, f"{what}; nothing has been backfilled before"
    more = {row for row, now in enumerate(w.state) if found.workloads.state[row] != now}
    assert more, what
    late = {row for row in more if not promise.ends_in_time(row)}
    opened = {w.queue[row] for row in late if state.queues.specs[w.queue[row]].order == "strict_fifo"}
    for row, name in enumerate(w.ids):
        if row in more:
            started = w.state[row] == WorkloadState.QUEUED and found.is_bound(row)
            assert started, what
            assert row in late or w.queue[row] in opened, f"{name} would be gone by the promised start; {what}"
        else:
            assert state.placed_of(row) == found.placed_of(row), f"{name} was touched; {what}"
    again = twin.scheduler.memory.reservation
    kept = again is not None and again.row == promise.row and again.start_ms <= promise.start_ms
    assert kept, f"{w.ids[promise.row]} was promised {promise.start_ms}, and is not any more; {what}"


def check_settled(engine) -> None:
    """After a cycle: every waiting workload has a true primary reason, and none could simply start."""
    w, explainer = engine.state.workloads, engine.reader.explainer
    for row, name in enumerate(w.ids):
        reasons = explainer.reasons(row)
        waits = not engine.state.is_bound(row) and not WorkloadState(w.state[row]).terminal
        assert bool(reasons) == waits, f"{name} is {WorkloadState(w.state[row]).label}, and its reasons are {reasons}"
        if waits:
            assert explainer.token(row) == reasons[0].token
            assert reasons[0].token != "AwaitingEvaluation", f"{name}: {reasons}"
