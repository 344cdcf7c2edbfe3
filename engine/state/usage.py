"""The CPU and memory that work really uses on its nodes: as agents report it, or as its spec says for simulated work.

Reports are neither events nor journalled: after a restart they come again. Decisions made because of them are
journalled. The use of simulated work follows from the state alone. Work without a report counts as using nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from engine.model.spec_parts import load_permille
from engine.model.specs import ServiceSpec, Spec, TaskGroup, WorkloadState

if TYPE_CHECKING:
    from engine.state.cell_state import State

FRESH_MS = 60_000
"""Time for which a report says something about the load of a service."""
ALWAYS = 2**62


class UsageSample(Spec, frozen=True, kw_only=True):
    """The joint use of all tasks of a workload on one node."""

    workload: str
    node: str
    cpu_milli: int
    memory_mib: int


class Peaks:
    """Most CPU (milli) and memory (MiB) that one task of a workload used, for somebody who looks now and then."""

    def __init__(self) -> None:
        self.of: dict[int, tuple[int, int]] = {}
        """By workload row, since its first report. Whoever looks drops what is over."""
        self.lately: dict[int, tuple[int, int]] = {}
        """The same since the last look, which empties it."""

    def take(self, row: int, use: TaskUse, tasks: int) -> None:
        cpu, memory = -(-use.cpu_milli // tasks), -(-use.memory_mib // tasks)
        for kept in (self.of, self.lately):
            before = kept.get(row, (0, 0))
            kept[row] = (max(before[0], cpu), max(before[1], memory))


class TaskUse(NamedTuple):
    cpu_milli: int
    memory_mib: int
    at_ms: int
    """Cell time of the report; ALWAYS for what is simulated."""


class Usage:
    """Use by workload and node, and its sums. Nothing of it is stored."""

    def __init__(self) -> None:
        self.of: dict[int, dict[int, TaskUse]] = {}
        """Workload row -> node row -> what its tasks there use."""
        self.on: dict[int, dict[int, TaskUse]] = {}
        """The same the other way round."""
        self.pressed: set[int] = set()
        """Rows of nodes that use more of their memory than they may."""
        self.peaks: Peaks | None = None
        """Set by who wants to know them."""

    def copy(self) -> Usage:
        other = Usage()
        other.of = {row: dict(there) for row, there in self.of.items()}
        other.on = {node: dict(there) for node, there in self.on.items()}
        other.pressed = set(self.pressed)
        return other

    def take(self, state: State, samples: Iterable[UsageSample], now_ms: int) -> int:
        """Note reports. Those of work that is not there, which may have just left, are passed over. Returns how many
        were noted."""
        w, capacity, taken = state.workloads, state.capacity, 0
        for sample in samples:
            row, node = w.row_of.get(sample.workload), capacity.row_of.get(sample.node)
            if row is None or node is None or not state.is_bound(row):
                continue
            counts = _tasks_of(state, row).get(node)
            if counts is None:
                continue
            use = TaskUse(max(sample.cpu_milli, 0), max(sample.memory_mib, 0), now_ms)
            self._set(state, row, node, use, sum(counts.values()))
            taken += 1
        return taken

    def renew(self, state: State, row: int) -> None:
        """The workload has other tasks than before, or has just got its first."""
        simulated = state.workloads.terms_at(row).simulated_usage_permille
        if not simulated and row not in self.of:
            return
        tasks = _tasks_of(state, row)
        for node in [node for node in self.of.get(row, ()) if node not in tasks]:
            self._drop(state, row, node)
        for node, counts in tasks.items() if simulated else ():
            self._set(state, row, node, _simulated(state, row, counts, simulated), sum(counts.values()))

    def forget(self, state: State, row: int) -> None:
        """It has left all its nodes."""
        for node in list(self.of.get(row, ())):
            self._drop(state, row, node)

    def memory_on(self, node: int) -> int:
        return sum(use.memory_mib for use in self.on.get(node, {}).values())

    def cpu_on(self, node: int) -> int:
        return sum(use.cpu_milli for use in self.on.get(node, {}).values())

    def weigh(self, state: State) -> None:
        """The limits have changed."""
        for node in list(self.on):
            self._weigh(state, node)

    def _set(self, state: State, row: int, node: int, use: TaskUse, tasks: int) -> None:
        if self.peaks is not None:
            self.peaks.take(row, use, tasks)
        self.of.setdefault(row, {})[node] = use
        self.on.setdefault(node, {})[row] = use
        self._weigh(state, node)

    def _drop(self, state: State, row: int, node: int) -> None:
        for table, one, other in ((self.of, row, node), (self.on, node, row)):
            del table[one][other]
            if not table[one]:
                del table[one]
        self._weigh(state, node)

    def _weigh(self, state: State, node: int) -> None:
        permille = state.settings.pressure.evict_at_permille
        if permille and self.memory_on(node) > memory_limit(state, node, permille):
            self.pressed.add(node)
        else:
            self.pressed.discard(node)


def memory_limit(state: State, node: int, permille: int) -> int:
    """So much of the node's physical memory, MiB."""
    pool = state.capacity.pools[state.capacity.pool[node]]
    limit_mib: int = pool.physical_memory_mib * permille // 1000
    return limit_mib


def usage_of(state: State) -> Usage:
    """The use that follows from the state alone."""
    usage, w = Usage(), state.workloads
    simulated = {i for i, terms in enumerate(w.terms_specs) if terms.simulated_usage_permille}
    if simulated:
        for row, terms in enumerate(w.terms):
            if terms in simulated and w.state[row] in (WorkloadState.PLACED, WorkloadState.RUNNING):
                usage.renew(state, row)
    return usage


def _tasks_of(state: State, row: int) -> dict[int, dict[int, int]]:
    """Node -> group -> tasks of the workload there."""
    a = state.allocations
    found: dict[int, dict[int, int]] = {}
    for i in a.of_workload(state.workloads.first_allocation[row]):
        counts = found.setdefault(a.node[i], {})
        counts[a.group[i]] = counts.get(a.group[i], 0) + a.count[i]
    return found


def _simulated(state: State, row: int, counts: dict[int, int], permille: int) -> TaskUse:
    workload_class = state.workloads.class_at(row)
    cpu = memory = 0
    for group, count in counts.items():
        asked = workload_class.groups[group]
        most_cpu, most_memory = _most(asked, workload_class.bonds.qos)
        cpu += count * min(asked.request.cpu_milli * permille // 1000, most_cpu)
        memory += count * min(asked.request.memory_mib * permille // 1000, most_memory)
    return TaskUse(cpu, memory, ALWAYS)


def _most(group: TaskGroup, qos: str) -> tuple[int, int]:
    """CPU and memory that one task can use at most: guaranteed work what it asks for, burstable work its limit."""
    if qos == "guaranteed":
        return group.request.cpu_milli, group.request.memory_mib
    if group.limit is None:
        return ALWAYS, ALWAYS
    return group.limit.cpu_milli or ALWAYS, group.limit.memory_mib or ALWAYS


def load_of(state: State, row: int, spec: ServiceSpec, now_ms: int) -> tuple[int, int]:
    """(replicas that say how busy they are, their use in permille of what one asks for). Replicas are counted in whole
    nodes: what one node reports is of all that are there."""
    w, a = state.workloads, state.allocations
    if spec.simulated_load:
        return w.tasks[row], load_permille(spec, now_ms)
    asked = w.class_at(row).groups[0].request.cpu_milli
    known = state.usage.of.get(row, {})
    fresh = {node: use for node, use in known.items() if use.at_ms > now_ms - FRESH_MS}
    if not fresh or not asked:
        return 0, 0
    there = [a.count[i] for i in a.of_workload(w.first_allocation[row]) if a.node[i] in fresh]
    return sum(there), sum(use.cpu_milli for use in fresh.values()) * 1000 // asked
