"""What agents on nodes say to the engine: that they are there, that they live, how far tasks are. Batches, on the
engine's thread.

Only a registration may reach the journal, once for each node: that the node is watched. Everything else is held in
memory alone and begins anew after a restart; agents whose tokens are not known then register again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import numpy as np

from engine.health.heartbeats import FOREVER, NEVER, Column, HeartbeatResult, Leases
from engine.health.stragglers import Progress, SampleOf, StalledGang, Straggler
from engine.model.commands import UnwatchNodes, WatchNodes
from engine.model.specs import NodeState
from engine.state.node_failures import FLAPS, NEEDS_HANDS
from engine.state.usage import UsageSample
from engine.tables.columns import view

if TYPE_CHECKING:
    from engine.control import Engine

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
    """What all tasks of a workload on the node use together."""

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
    """What is known of the watched nodes beyond their states."""

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
        """Which of these rows are nodes in those pools. Rows that are no nodes are in none."""
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
        """How far tasks on a node are, and what work there uses. Returns how many samples of tasks were taken; None
        when the token is not known."""
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
