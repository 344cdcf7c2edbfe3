"""What must hold of any state, checked from the ground up: nothing here uses the engine's own sums."""

from __future__ import annotations

from engine.capacity import NOWHERE
from engine.model import NodeState, WorkloadState
from engine.state import BOUND, State


def check_state(state: State) -> None:
    """Every invariant of one state (DESIGN section 5). Raises AssertionError naming what is off."""
    _check_nodes(state)
    _check_gangs(state)
    _check_quota(state)
    _check_pending(state)


def _check_nodes(state: State) -> None:
    capacity, allocations, w = state.capacity, state.allocations, state.workloads
    for node, node_id in enumerate(capacity.node_ids):
        pool = capacity.pools[capacity.pool[node]]
        cpu, memory, gpu, disk = pool.capacity.vector()
        devices = [1000] * (gpu // 1000)
        for a in allocations.on_node(node):
            assert allocations.node[a] == node, f"allocation {a} is in the chain of {node_id} but not on it"
            shape = w.class_at(allocations.workload[a]).shapes[allocations.group[a]]
            count, mask = allocations.count[a], allocations.devices[a]
            cpu -= shape.cpu * count
            memory -= shape.memory * count
            disk -= shape.disk * count
            assert mask.bit_count() == (shape.gpus * count or bool(shape.share)), f"devices of allocation {a}"
            for device in range(len(devices)):
                if mask >> device & 1:
                    devices[device] -= shape.share * count if shape.share else 1000
            assert mask >> len(devices) == 0, f"allocation {a} uses a device that {node_id} does not have"
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
    for pool_row, index in enumerate(capacity.indexes):
        ready = [
            n for n in range(len(capacity.node_ids)) if capacity.pool[n] == pool_row and capacity.key[n] != NOWHERE
        ]
        assert index.free_cpu == sum(capacity.free_cpu[n] for n in ready)
        assert index.free_memory == sum(capacity.free_memory[n] for n in ready)
        assert index.free_devices == sum(capacity.whole[n].bit_count() for n in ready)
        assert sum(index.counts.values()) == len(ready)
        found = {key: set(heap) for key, heap in index.heaps.items()}
        assert all(n in found[capacity.key[n]] for n in ready), "a ready node cannot be found"


def _check_gangs(state: State) -> None:
    w, allocations = state.workloads, state.allocations
    assert len(set(w.ids)) == len(w.ids), "an id is there twice"
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


def check_settled(engine) -> None:
    """After a cycle: every waiting workload has a true primary reason, and none could simply start."""
    state = engine.state
    for row in range(len(state.workloads.ids)):
        if state.workloads.state[row] in (WorkloadState.QUEUED, WorkloadState.HELD):
            reasons = engine.reader._explainer.reasons(row)
            assert reasons, f"{state.workloads.ids[row]} waits without a reason"
            assert reasons[0].token != "AwaitingEvaluation", f"{state.workloads.ids[row]}: {reasons}"
