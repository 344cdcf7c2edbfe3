"""Machines apart from their free capacity: orders to providers, watched and failed nodes, and the real use of nodes.

Orders and failures are folded from events. The CPU and memory that work really uses are reported by agents, or follow
from the spec of simulated work. Reports are neither events nor journalled: after a restart they come again. Decisions
made because of them are journalled. Work without a report counts as using nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from engine.model import events as ev
from engine.model.columns import Table
from engine.model.spec_parts import MAX_FLAPS, load_permille
from engine.model.specs import NodeState, ServiceSpec, TaskGroup, UsageSample, WorkloadState

if TYPE_CHECKING:
    from engine.state.cell_state import State


class OrderState(IntEnum):
    """The state of an order."""

    OPEN = 0
    """Some of its machines have neither been granted nor refused."""
    FILLED = 1
    """All were granted."""
    CANCELLED = 2
    """Not fulfilled in time, or no longer needed. Granted machines stay."""
    REFUSED = 3
    """The provider has no such machines, or refused for another reason. What was granted of it stays."""

    @property
    def label(self) -> str:
        return self.name.lower()


class Orders(Table):
    """All orders, by row, oldest first; and the pools that failed to deliver."""

    columns = (
        "pool", "zone", "wanted", "granted", "refused", "ordered_ms", "expires_ms", "ended_ms", "state", "workload",
        "backed_off_ms", "failures", "taken", "lived_ms", "storms", "watched_ms",
    )  # fmt: skip

    def __init__(self) -> None:
        self.pool = array("i")
        self.zone: list[str] = []
        self.wanted = array("i")
        """Machines asked for."""
        self.granted = array("i")
        self.refused = array("i")
        """Machines reported for it that were not what was ordered, and given back."""
        self.ordered_ms = array("q")
        self.expires_ms = array("q")
        self.ended_ms = array("q")
        """-1 while it is open."""
        self.state = array("b")
        self.workload = array("i")
        """The gang that it is for, as a whole or not at all; NONE when for whoever comes."""
        self.backed_off_ms: dict[int, int] = {}
        """Pool row -> cell time until which it is left alone."""
        self.failures: dict[int, int] = {}
        """Pool row -> how often in a row it failed to deliver."""
        self.taken: dict[int, int] = {}
        """Pool row -> machines that were given notice, where the pool does not say how often to expect that."""
        self.lived_ms: dict[int, int] = {}
        """Pool row -> how long all its machines had been there when the last of those was."""
        self.storms: dict[int, int] = {}
        """Pool row -> moments at which any of its machines were."""
        self.watched_ms: dict[int, int] = {}
        """Pool row -> time from its first machine to the last of those moments."""
        self.derive()

    def derive(self) -> None:
        self.open = [row for row, state in enumerate(self.state) if state == OrderState.OPEN]
        """Rows of open orders, ascending."""
        self.booting = array("i", bytes(4 * len(self.state)))
        """Machines that were granted and have not called; counted by `State` after a load."""

    def matters(self, row: int) -> bool:
        """True if anything is still to come of the order."""
        return self.state[row] == OrderState.OPEN or self.booting[row] > 0

    def add(self, event: ev.Ordered, now_ms: int) -> int:
        """The order's row."""
        row = len(self.pool)
        self.pool.append(event.pool)
        self.zone.append(event.zone)
        self.wanted.append(event.count)
        self.granted.append(0)
        self.refused.append(0)
        self.ordered_ms.append(now_ms)
        self.expires_ms.append(event.expires_ms)
        self.ended_ms.append(-1)
        self.state.append(OrderState.OPEN)
        self.workload.append(event.row)
        self.booting.append(0)
        self.open.append(row)
        return row

    def end(self, row: int, how: OrderState, now_ms: int) -> None:
        self.open.remove(row)
        self.state[row] = how
        self.ended_ms[row] = now_ms

    def back_off(self, pool: int, until_ms: int) -> None:
        """Leave the pool alone until then, and remember that it failed once more; or forget both when it is 0."""
        if until_ms:
            self.backed_off_ms[pool] = until_ms
            self.failures[pool] = self.failures.get(pool, 0) + 1
        else:
            self.backed_off_ms.pop(pool, None)
            self.failures.pop(pool, None)

    def due(self, pool: int) -> int:
        """Machines of the pool that are asked for and neither granted nor refused yet."""
        return sum(self.wanted[row] - self.granted[row] for row in self.open if self.pool[row] == pool)


NOTES = ("", "needs hands: its repairs failed", "flaps: lost again and again within a short time")
"""The reason why a node is kept out, by code."""
NEEDS_HANDS, FLAPS = 1, 2
MIN_MASS = 5
"""Suspects below which it is no mass suspicion, however small the cell."""


class Failures(Table):
    """Failures by node row. Only nodes with a record have an entry."""

    columns = ("watched", "before", "losses", "repairs", "repair_until", "notes", "lost_at_ms")

    def __init__(self) -> None:
        self.watched = array("b")
        """True if an agent ever called from the node: then its silence means something. Nodes beyond the end: no."""
        self.before: dict[int, int] = {}
        """State of a node before it fell silent, for nodes that are suspect, or down because they stayed silent."""
        self.losses: dict[int, list[int]] = {}
        """Cell times at which the node went down, the last few."""
        self.repairs: dict[int, int] = {}
        """Repairs begun since the node went down."""
        self.repair_until: dict[int, int] = {}
        """Cell time at which the repair under way is over."""
        self.notes: dict[int, int] = {}
        """Index into NOTES."""
        self.lost_at_ms = -1
        """Time at which silent nodes were last declared lost."""
        self.derive()

    def derive(self) -> None:
        self.watched_count = sum(self.watched)
        self.suspects = 0
        """Nodes that are suspect now; counted by `State` after a load."""
        self.touched: list[int] = []
        """Nodes that changed since the watch last looked."""

    def watch(self, nodes: Iterable[int], watching: bool = True) -> None:
        """Watch these nodes from now on, or no longer."""
        for node in nodes:
            if node >= len(self.watched):
                self.watched.extend([0] * (node + 1 - len(self.watched)))
            self.watched_count += watching - self.watched[node]
            self.watched[node] = watching
            self.touched.append(node)

    def is_watched(self, node: int) -> bool:
        return node < len(self.watched) and self.watched[node] == 1

    def changed(self, node: int, was: int, to: int, now_ms: int) -> None:
        """The node goes from one state to another."""
        self.touched.append(node)
        self.suspects += (to == NodeState.SUSPECT) - (was == NodeState.SUSPECT)
        if to == NodeState.SUSPECT:
            self.before[node] = was
            return
        if to == NodeState.DOWN:
            if was == NodeState.SUSPECT:
                self.lost_at_ms = now_ms
            else:
                self.before.pop(node, None)
            self.losses[node] = [*self.losses.get(node, ()), now_ms][-MAX_FLAPS:]
            return
        for known in (self.before, self.repairs, self.repair_until):
            known.pop(node, None)
        if to != NodeState.CORDONED:
            self.notes.pop(node, None)
        if to == NodeState.REMOVED:
            self.losses.pop(node, None)
            if self.is_watched(node):
                self.watch((node,), False)

    def repairing(self, nodes: Iterable[int], until_ms: int) -> None:
        for node in nodes:
            self.touched.append(node)
            self.repairs[node] = self.repairs.get(node, 0) + 1
            self.repair_until[node] = until_ms

    def note(self, nodes: Iterable[int], note: int) -> None:
        for node in nodes:
            self.touched.append(node)
            self.notes[node] = note
            self.repair_until.pop(node, None)

    def is_mass(self, permille: int) -> bool:
        """True if so large a part of the watched nodes is suspect that it may be the network."""
        return self.suspects >= MIN_MASS and self.suspects * 1000 > permille * self.watched_count

    def flaps(self, node: int, times: int, window_ms: int, now_ms: int) -> bool:
        """True if the node went down that often within the window."""
        recent = [at_ms for at_ms in self.losses.get(node, ()) if at_ms > now_ms - window_ms]
        return 0 < times <= len(recent)


FRESH_MS = 60_000
"""Time for which a report says something about the load of a service."""
ALWAYS = 2**62


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
        """Drop a workload that has left all its nodes."""
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
    """That part of the node's physical memory, MiB."""
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
