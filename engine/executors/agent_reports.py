"""Reports of agents on nodes: registrations, heartbeats, progress of tasks and use, in batches on the engine's thread.

Only a registration may reach the journal, once for each node: that the node is watched. Everything else is held in
memory and begins anew after a restart; agents whose tokens are unknown then register again.

`Progress` finds members of a gang that fall behind the others, and gangs that stand still. Nothing follows from it but
advice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import numpy as np

from engine.executors.node_watch import FOREVER, NEVER, Column, HeartbeatResult, Leases
from engine.model.columns import view
from engine.model.commands import UnwatchNodes, WatchNodes
from engine.model.specs import NodeState, UsageSample
from engine.state.cell_state import State
from engine.state.machines import FLAPS, NEEDS_HANDS

if TYPE_CHECKING:
    from engine.control import Engine


SLOW_PERMILLE = 700
"""Progress below this part of the gang's median is slow."""
SAMPLES = 3
"""So many slow samples in a row make a straggler."""
MIN_MEMBERS = 3
"""Members that must have reported before anyone is judged by their median."""
MIN_MEDIAN = 10
"""Permille of work done by the median below which nobody is judged: a whole permille decides too much there."""
STILL_MS, STILL_STEPS = 15 * 60_000, 3
"""A gang that has not come on for so long, and for as long as so many permille of its estimate take, stands still."""
MAX_MEMBERS = 200_000
"""Members of all gangs that are remembered. Beyond that the gangs that reported longest ago are forgotten."""


class SampleOf(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The progress of one task of a workload."""

    workload: str
    task: int
    done_permille: int


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    workload: str
    task: int
    done_permille: int
    median_permille: int
    """What the median member of the gang has done."""
    samples: int
    """Slow samples in a row."""
    members: int
    """Members that report."""


class StalledGang(msgspec.Struct, frozen=True, kw_only=True):
    """A gang whose members report, and none of them more than before."""

    workload: str
    since_ms: int
    """Cell time at which one of them last had done more."""
    members: int
    """That report."""


class _Gang:
    """One attempt of a workload, as far as its members report.

    Members are compared once all have reported anew, or one for the second time: what was reported at different times
    is not comparable.
    """

    __slots__ = ("attempt", "done", "heard_ms", "median", "most", "moved_ms", "node", "round", "slow")

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.node: dict[int, int] = {}
        """Task -> node, of all that ever reported."""
        self.round: dict[int, int] = {}
        """Task -> permille done, of those that reported since members were last compared."""
        self.done: dict[int, int] = {}
        """The same of when they were last compared."""
        self.median = 0
        self.slow: dict[int, int] = {}
        """Task -> slow samples in a row, where there is any."""
        self.most: dict[int, int] = {}
        """Task -> the most that it ever reported."""
        self.heard_ms = self.moved_ms = 0
        """When one of them last reported anything, and last more than before."""

    def take(self, task: int, node: int, permille: int, tasks: int, now_ms: int) -> None:
        """`tasks`: how many members it has."""
        self.heard_ms = now_ms
        if permille > self.most.get(task, -1):
            self.most[task], self.moved_ms = permille, now_ms
        if task in self.round and 2 * len(self.round) >= len(self.node):
            self._compare()
        self.node[task] = node
        self.round[task] = permille
        if len(self.round) == tasks:
            self._compare()

    def _compare(self) -> None:
        self.done, self.round = self.round, {}
        self.median = int(np.median(np.fromiter(self.done.values(), np.int64)))
        judged = len(self.done) >= MIN_MEMBERS and self.median >= MIN_MEDIAN
        for task, permille in self.done.items():
            if judged and permille * 1000 < SLOW_PERMILLE * self.median:
                self.slow[task] = self.slow.get(task, 0) + 1
            else:
                self.slow.pop(task, None)


class Progress:
    """The last reports of the members of running gangs."""

    def __init__(self) -> None:
        self._gangs: dict[int, _Gang] = {}
        """Workload row -> its gang; the one that reported longest ago first."""
        self._members = 0
        self._numbers: dict[int, int] = {}
        """Node -> number of its last report."""

    def take(self, state: State, node: int, number: int, samples: Iterable[SampleOf], now_ms: int | None = None) -> int:
        """Samples of tasks on the node. Returns how many were taken: those of work that does not run there are not,
        nor any of a report that is not later than the last of the node. `now_ms`: None for the state's own time."""
        if number <= self._numbers.get(node, 0):
            return 0
        self._numbers[node] = number
        w, a = state.workloads, state.allocations
        here = {a.workload[i] for i in a.on_node(node)}
        taken = 0
        for sample in samples:
            row = w.row_of.get(sample.workload, -1)
            if row not in here or not (0 <= sample.task < w.tasks[row]) or not 0 <= sample.done_permille <= 1000:
                continue
            gang = self._gangs.pop(row, None)
            if gang is None or gang.attempt != w.attempts[row]:
                self._members -= len(gang.node) if gang else 0
                gang = _Gang(w.attempts[row])
            self._gangs[row] = gang
            self._members -= len(gang.node)
            at_ms = state.now_ms if now_ms is None else now_ms
            gang.take(sample.task, node, sample.done_permille, w.tasks[row], at_ms)
            self._members += len(gang.node)
            taken += 1
        while self._members > MAX_MEMBERS:
            self._members -= len(self._gangs.pop(next(iter(self._gangs))).node)
        return taken

    def forget(self, node: int) -> None:
        """Another agent reports for the node from now on."""
        self._numbers.pop(node, None)

    def still(self, state: State, now_ms: int) -> list[StalledGang]:
        """Gangs that still run as they did, were heard of within STILL_MS, and have not come on for as long, nor for as
        long as STILL_STEPS permille of their estimate take; longest first."""
        w = state.workloads
        found = []
        for row, gang in self._gangs.items():
            least_ms = max(STILL_MS, STILL_STEPS * w.class_at(row).estimate_ms // 1000)
            heard = now_ms - gang.heard_ms <= STILL_MS
            if state.is_bound(row) and w.attempts[row] == gang.attempt and heard and now_ms - gang.moved_ms >= least_ms:
                found.append(StalledGang(workload=w.ids[row], since_ms=gang.moved_ms, members=len(gang.most)))
        return sorted(found, key=lambda one: (one.since_ms, one.workload))

    def moves(self, state: State, now_ms: int) -> list[str]:
        """Gangs that still run as they did and have come on within STILL_MS."""
        w = state.workloads
        return [
            w.ids[row]
            for row, gang in self._gangs.items()
            if state.is_bound(row) and w.attempts[row] == gang.attempt and now_ms - gang.moved_ms < STILL_MS
        ]

    def stragglers(self, state: State) -> list[Straggler]:
        """Return the stragglers of gangs that still run as they did, slowest first."""
        w, a = state.workloads, state.allocations
        found = []
        for row, gang in list(self._gangs.items()):
            if not state.is_bound(row) or w.attempts[row] != gang.attempt:
                self._members -= len(self._gangs.pop(row).node)
                continue
            for task, samples in gang.slow.items():
                node = gang.node[task]
                if samples >= SAMPLES and task in gang.done and any(a.workload[i] == row for i in a.on_node(node)):
                    found.append(
                        Straggler(
                            node=state.capacity.node_ids[node],
                            workload=w.ids[row],
                            task=task,
                            done_permille=gang.done[task],
                            median_permille=gang.median,
                            samples=samples,
                            members=len(gang.done),
                        )
                    )
        return sorted(found, key=lambda s: (s.done_permille * 1000 // s.median_permille, s.node, s.workload, s.task))


MAX_STRANGERS = 100
"""Names of unknown nodes that are remembered."""
MAX_NAMED = 100
"""Nodes named in a report, of each sort."""
MAX_MOVING = 1_000
SKEW_MS = 5_000
"""A clock that is off by more is reported."""
_SILENT = (NodeState.SUSPECT, NodeState.DOWN)


_Quantity = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class UsageOf(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The use of all tasks of a workload on one node together."""

    workload: str
    cpu_milli: _Quantity
    memory_mib: _Quantity


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a registration. Row and epoch of a node are its token."""

    nodes: tuple[str, ...]
    rows: tuple[int, ...]
    epochs: tuple[int, ...]
    refused: tuple[str, ...]
    """Those that the cell does not have."""
    heartbeat_every_ms: int
    """Cell milliseconds."""
    forbidden: tuple[str, ...] = ()
    """Those in pools that whoever calls may not speak for."""


class LeaveResult(NamedTuple):
    """The answer to agents that leave: nodes that the cell does not have, and those in pools of others."""

    refused: tuple[str, ...]
    forbidden: tuple[str, ...] = ()


class AgentsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the watched nodes beyond their states."""

    version: int
    now_ms: int
    watched: int
    suspect: int
    mass_suspicion: bool
    """So many are suspect at once that it may be the network: few are declared lost at a time."""
    renewed: int
    """Heartbeats taken since the engine started."""
    repeated: int
    refused: int
    strangers: tuple[tuple[str, int], ...]
    """Names of nodes that nobody ordered from which agents called, and how often; the first few."""
    stranger_calls: int
    """All their calls."""
    skewed: tuple[tuple[str, int], ...]
    """Nodes whose clocks are off by more than SKEW_MS, and by how much; the worst."""
    skewed_count: int
    needs_hands: tuple[tuple[str, int], ...]
    """Nodes whose repairs failed, and how many did."""
    flapping: tuple[tuple[str, int], ...]
    """Nodes that are cordoned because they were lost again and again, and how often they were within the window."""
    stragglers: tuple[Straggler, ...]
    still: tuple[StalledGang, ...] = ()
    """Gangs that report and do not come on."""
    moving: tuple[str, ...] = ()
    """Gangs of which it is known that they do, the first few."""


class Agents:
    """The agents' side of one engine. `pools`, where it is given, names those whose nodes a caller may speak for: of a
    batch the rest counts for nothing, and is named."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.leases = Leases()
        self.progress = Progress()
        self.strangers: dict[str, int] = {}
        self.stranger_calls = 0
        self.renewed = self.repeated = self.refused = 0

    def open(self, first_epoch: int = 0) -> None:
        """Watch from now on: every watched node is given as long as if it had just called. Epochs are above
        `first_epoch`, which should be another after each restart."""
        state, now_ms = self._engine.state, self._engine.now_ms
        self.leases.open(now_ms, state.settings.health.suspect_after_ms, first_epoch)
        self.progress = Progress()
        if state.failures.watched_count:
            rows = np.flatnonzero(view(state.failures.watched))
            silent = np.isin(view(state.capacity.state)[rows], _SILENT)
            self.leases.lease(rows[~silent], now_ms)
            self.leases.silence(rows[silent])

    def reopen(self) -> None:
        """The state was read anew: so much of it may be gone that all register again. Nothing happens in a fork."""
        if self.leases.opened_ms not in (NEVER, FOREVER):
            self.open(self.leases.epochs)

    def register(self, nodes: Sequence[str], pools: Collection[str] = ()) -> Registered:
        """An agent has started on each of these nodes. Tokens given before for the same node are void. Raises
        JournalError when a node that was not watched before cannot be recorded."""
        state = self._engine.state
        row_of = state.capacity.row_of
        known, forbidden = self._told_apart(nodes, pools)
        refused = [name for name in dict.fromkeys(nodes) if name not in row_of]
        for name in refused:
            self._note_stranger(name)
        rows = [row_of[name] for name in known]
        booting = NodeState.BOOTING
        if any(not state.failures.is_watched(row) or state.capacity.state[row] == booting for row in rows):
            self._engine.command(WatchNodes(ids=tuple(known)))
        for row in rows:
            self.progress.forget(row)
        epochs = self.leases.register(np.array(rows, np.int64), self._engine.now_ms)
        return Registered(
            nodes=tuple(known),
            rows=tuple(rows),
            epochs=tuple(epochs.tolist()),
            refused=tuple(refused),
            heartbeat_every_ms=state.settings.health.heartbeat_every_ms,
            forbidden=tuple(forbidden),
        )

    def leave(self, nodes: Sequence[str], pools: Collection[str] = ()) -> LeaveResult:
        """The agents of these nodes were taken away on purpose."""
        row_of = self._engine.state.capacity.row_of
        known, forbidden = self._told_apart(nodes, pools)
        if known:
            self._engine.command(UnwatchNodes(ids=tuple(known)))
        for name in known:
            self.leases.drop(row_of[name])
        return LeaveResult(tuple(name for name in dict.fromkeys(nodes) if name not in row_of), tuple(forbidden))

    def _told_apart(self, nodes: Sequence[str], pools: Collection[str]) -> tuple[list[str], list[str]]:
        """Nodes of the cell that may be spoken for, and those that may not."""
        row_of = self._engine.state.capacity.row_of
        known = [name for name in dict.fromkeys(nodes) if name in row_of]
        if not pools:
            return known, []
        ours = self.of_pools(np.array([row_of[name] for name in known], np.int64), pools).tolist()
        apart = list(zip(known, ours, strict=True))
        return [name for name, is_ours in apart if is_ours], [name for name, is_ours in apart if not is_ours]

    def of_pools(self, rows: Column, pools: Collection[str]) -> Column:
        """Return which of these rows are nodes in those pools. Rows that are no nodes are in none."""
        capacity = self._engine.state.capacity
        named = [row for row, pool in enumerate(capacity.pools) if pool.name in pools]
        pool_of = view(capacity.pool)
        there = (rows >= 0) & (rows < len(pool_of))
        found: Column = there & np.isin(pool_of[np.where(there, rows, 0)], named) if len(pool_of) else there
        return found

    def beat(self, rows: Column, epochs: Column, numbers: Column, skews_ms: Column | None = None) -> HeartbeatResult:
        """A batch of heartbeats, as in `Leases.beat`."""
        failures = self._engine.state.failures
        for node in failures.touched:
            if not failures.is_watched(node):
                self.leases.drop(node)
        taken = self.leases.beat(rows, epochs, numbers, skews_ms, self._engine.now_ms)
        self.renewed += taken.renewed
        self.repeated += taken.repeated
        self.refused += len(taken.refused)
        return taken

    def status(
        self, row: int, epoch: int, number: int, tasks: Sequence[SampleOf], usage: Sequence[UsageOf] = ()
    ) -> int | None:
        """Take the progress of tasks on a node, and the use of work there. Returns how many samples of tasks were
        taken; None when the token is not known."""
        leases = self.leases
        if not (0 <= row < len(leases.epoch) and epoch > 0 and leases.epoch[row] == epoch):
            self.refused += 1
            return None
        if usage:
            node = self._engine.state.capacity.node_ids[row]
            self._engine.report_usage(
                UsageSample(workload=one.workload, node=node, cpu_milli=one.cpu_milli, memory_mib=one.memory_mib)
                for one in usage
            )
        return self.progress.take(self._engine.state, row, number, tasks, self._engine.now_ms)

    def _note_stranger(self, name: str) -> None:
        self.stranger_calls += 1
        if name in self.strangers or len(self.strangers) < MAX_STRANGERS:
            self.strangers[name] = self.strangers.get(name, 0) + 1

    def report(self) -> AgentsReport:
        state, leases = self._engine.state, self.leases
        failures, ids, settings = state.failures, state.capacity.node_ids, state.settings.health
        off = np.abs(leases.skew_ms)
        skewed = np.flatnonzero((off > SKEW_MS) & (leases.epoch > 0))
        worst = skewed[np.argsort(-off[skewed], kind="stable")][:MAX_NAMED].tolist()
        since_ms = self._engine.now_ms - settings.flap_window_ms
        noted = sorted(failures.notes.items())
        return AgentsReport(
            version=state.version,
            now_ms=self._engine.now_ms,
            watched=failures.watched_count,
            suspect=failures.suspects,
            mass_suspicion=failures.is_mass(settings.mass_permille),
            renewed=self.renewed,
            repeated=self.repeated,
            refused=self.refused,
            strangers=tuple(sorted(self.strangers.items())),
            stranger_calls=self.stranger_calls,
            skewed=tuple((ids[row], int(leases.skew_ms[row])) for row in worst),
            skewed_count=len(skewed),
            needs_hands=tuple(
                (ids[node], failures.repairs.get(node, 0)) for node, note in noted if note == NEEDS_HANDS
            )[:MAX_NAMED],
            flapping=tuple(
                (ids[node], sum(at_ms > since_ms for at_ms in failures.losses.get(node, ())))
                for node, note in noted
                if note == FLAPS
            )[:MAX_NAMED],
            stragglers=tuple(self.progress.stragglers(state))[:MAX_NAMED],
            still=tuple(self.progress.still(state, self._engine.now_ms))[:MAX_NAMED],
            moving=tuple(self.progress.moves(state, self._engine.now_ms))[:MAX_MOVING],
        )
