"""The checks of what-if edits against a cell, and the commands that edits become.

`refuse_wrong` checks all edits before anything runs, and names every problem at once. `commands_of` turns one edit into
commands when its time comes, on the cell as it is then. Nodes of a place, nodes that a pool gives up, and nodes that a
shock hits are chosen at that moment.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from engine.model import commands as cmd
from engine.model import what_if_edits as ed
from engine.model.columns import view
from engine.model.errors import LISTED_BY, MusterError, listed, nearest
from engine.model.specs import MAX_QUANTITY, RESOURCES, NodeSpec, NodeState, WorkloadState, check_id, check_workload
from engine.state.cell_state import State, members

MAX_NEW_NODES = 200_000
Step = tuple[int, tuple[cmd.AnyCommand, ...]]
"""(cell ms, commands)"""

# -- before anything runs ---------------------------------------------------------------------------------------------


def refuse_wrong(state: State, edits: Sequence[ed.AnyEdit], horizon_ms: int) -> None:
    """Raises EditsError with every problem that can be known before the edits are applied."""
    found = _Check(state, horizon_ms)
    if len(edits) > ed.MAX_EDITS:
        raise ed.EditsError([f"{len(edits)} edits, at most {ed.MAX_EDITS}"])
    for i, edit in enumerate(edits):
        found.look_at(i, edit)
    found.contradictions(edits)
    if found.problems:
        raise ed.EditsError(found.problems, found.remedies)


class _Check:
    """Problems of edits, in order. Later edits may name what earlier ones add."""

    def __init__(self, state: State, horizon_ms: int) -> None:
        self.state = state
        self.horizon_ms = horizon_ms
        self.problems: list[str] = []
        self.remedies: list[str] = []
        self._new_nodes: set[str] = set()
        self._new_jobs: set[str] = set()
        self._said = ""
        """The edit that is looked at, for messages."""

    def look_at(self, i: int, edit: ed.AnyEdit) -> None:
        self._said = f"edit {i + 1} '{_cut(ed.written(edit))}'"
        if edit.at_ms < 0:
            self._wrong("its time is in the past")
        elif edit.at_ms >= self.horizon_ms:
            self._wrong("its time is beyond the horizon")
        match edit:
            case ed.AddNodesEdit():
                self._pool(edit.pool)
                self._count(edit.count, 1)
                self._ids(getattr(edit, place) for place in ed.PLACES if place != "pool" and getattr(edit, place))
                self._new_nodes.update(_new_ids(self.state, edit, self._new_nodes, min(edit.count, MAX_NEW_NODES)))
            case ed.ResizePoolEdit():
                self._pool(edit.pool)
                self._count(edit.count, 0)
            case ed.RemoveNodesEdit() | ed.FailNodesEdit() | ed.DrainEdit() | ed.CordonEdit() | ed.UncordonEdit():
                self._nodes(edit.nodes)
                if isinstance(edit, ed.FailNodesEdit) and edit.for_ms < 0:
                    self._wrong("its duration is negative")
            case ed.ShockEdit():
                self._shock(edit)
            case ed.ChangeQuotaEdit():
                self._queue(edit.queue)
                self._quota(edit)
            case ed.SetWeightEdit():
                self._queue(edit.queue)
                if not 1 <= edit.weight <= 1_000_000:
                    self._wrong(f"a weight of {edit.weight} is not from 1 to 1000000")
            case ed.HoldQueueEdit() | ed.OpenQueueEdit():
                self._queue(edit.queue)
            case ed.SetPriorityEdit():
                self._jobs(edit.ids, _LIVE, "has ended", edit.at_ms)
                self._known("priority class", edit.priority_class, self.state.workloads.priority_of)
            case ed.SubmitEdit():
                self._submit(edit)
            case ed.PreemptEdit():
                self._jobs(edit.ids, _BOUND, "is not running", edit.at_ms)
            case ed.CancelEdit():
                self._jobs(edit.ids, _LIVE, "has ended", edit.at_ms)
            case ed.MigrateEdit():
                self._jobs(edit.ids, _BOUND, "is not running", edit.at_ms)
                self._migrate(edit)

    def _wrong(self, problem: str, remedy: str = "") -> None:
        self.problems.append(f"{self._said}: {problem}")
        self.remedies.append(remedy)

    def _known(self, what: str, name: str, known: Iterable[str]) -> bool:
        if name in known:
            return True
        names = list(known)
        near = nearest(name, names)
        hint = f", did you mean {near}?" if near else ""
        there = f"List them with: {LISTED_BY[what]}" if what in LISTED_BY else f"There are {listed(names)}"
        self._wrong(f"there is no {what} '{_cut(name)}'{hint}", "" if near else there)
        return False

    def _pool(self, name: str) -> None:
        self._known("pool", name, self.state.capacity.pool_of)

    def _queue(self, name: str) -> None:
        self._known("queue", name, self.state.queues.row_of)

    def _count(self, count: int, least: int) -> None:
        if not least <= count <= MAX_NEW_NODES:
            self._wrong(f"{count} nodes is not from {least} to {MAX_NEW_NODES}")

    def _ids(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                check_id(name, "place")
            except MusterError as error:
                self._wrong(error.problem)

    def _nodes(self, nodes: ed.Nodes) -> None:
        capacity = self.state.capacity
        if nodes.place is not None:
            if nodes.ids:
                self._wrong("has nodes and a place; give one of them")
            elif nodes.place == "pool":
                self._pool(nodes.name)
            elif not rows_in(self.state, nodes.place, nodes.name):
                names = {capacity.places.names[i] for i in set(getattr(capacity, nodes.place))} - {""}
                self._known(nodes.place, nodes.name, names)
            return
        if not nodes.ids:
            self._wrong("has no node")
        for name in dict.fromkeys(nodes.ids):
            if name not in self._new_nodes:
                self._known("node", name, capacity.row_of)

    def _jobs(self, ids: tuple[str, ...], allowed: frozenset[WorkloadState], otherwise: str, at_ms: int) -> None:
        """`allowed` states count only for what happens now."""
        w = self.state.workloads
        if not ids:
            self._wrong("has no workload")
        for name in dict.fromkeys(ids):
            if name in self._new_jobs or name in w.array_names.index:
                continue
            if self._known("workload", name, w.row_of) and not at_ms and w.state[w.row_of[name]] not in allowed:
                self._wrong(f"'{name}' {otherwise}: it is {WorkloadState(w.state[w.row_of[name]]).label}")

    def _shock(self, edit: ed.ShockEdit) -> None:
        pools = self.state.capacity.pools
        if edit.pool == "spot" and "spot" not in self.state.capacity.pool_of:
            if not any(pool.spot for pool in pools):
                self._wrong("there is no pool of spot nodes")
        else:
            self._pool(edit.pool)
        if not 1 <= edit.permille <= 1000:
            self._wrong(f"{edit.permille / 10:g}% must be above 0% and at most 100%")
        if edit.for_ms < 0:
            self._wrong("its duration is negative")

    def _quota(self, edit: ed.ChangeQuotaEdit) -> None:
        if not edit.nominal:
            self._wrong("has no resource")
        for name, quantity in edit.nominal.items():
            if self._known("resource", name, RESOURCES) and not 0 <= quantity <= MAX_QUANTITY:
                self._wrong(f"a quota of {quantity} {name} is not from 0 to {MAX_QUANTITY}")

    def _submit(self, edit: ed.SubmitEdit) -> None:
        w = self.state.workloads
        if not edit.workloads:
            self._wrong("has no workload")
        for spec in edit.workloads:
            try:
                check_workload(spec, f"workload '{_cut(spec.id)}'")
            except MusterError as error:
                self._wrong(error.problem, error.remedy)
                continue
            self._queue(spec.queue)
            self._known("priority class", spec.priority_class, w.priority_of)
            if spec.id in w.row_of or spec.id in w.array_names.index or spec.id in self._new_jobs:
                self._wrong(f"workload '{spec.id}' already exists")
            self._new_jobs.add(spec.id)
            if spec.array is not None:
                self._new_jobs.update(f"{spec.id}/{index}" for index in members(spec.array))

    def _migrate(self, edit: ed.MigrateEdit) -> None:
        if bool(edit.pool) == bool(edit.nodes):
            self._wrong("needs exactly one target place")
        elif edit.pool:
            self._pool(edit.pool)
        elif pool_meant(self.state, edit) is None:
            self._nodes(ed.Nodes(ids=edit.nodes))

    # -- one against the other ----------------------------------------------------------------------------------------

    def contradictions(self, edits: Sequence[ed.AnyEdit]) -> None:
        """Edits of which only one can be meant: two values for one thing at one time, two fates of one node or
        workload, anything about what is gone by then."""
        once: dict[tuple[str, str, int], int] = {}
        for i, edit in enumerate(edits):
            for kind, name in _settles(edit):
                first = once.setdefault((kind, name, edit.at_ms), i)
                if first != i:
                    self._both(edits, first, i, f"{kind} {name}".strip())
        self._fates_of_one(edits)
        self._adds(edits)

    def _fates_of_one(self, edits: Sequence[ed.AnyEdit]) -> None:
        """One node or workload, two fates at one time, or any after its end."""
        deciding = [i for i, edit in enumerate(edits) if isinstance(edit, _DECIDING)]
        fates: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
        for i in deciding if len(deciding) > 1 else ():
            for subject, fate in self._fates(edits[i]):
                fates.setdefault(subject, []).append((edits[i].at_ms, i, fate))
        told: set[tuple[int, int]] = set()
        for (kind, name), found in fates.items():
            found.sort()
            for (at, i, fate), (later, j, other) in pairwise(found):
                at_once = at == later and (fate, other) != ("target", "target")
                if i != j and (i, j) not in told and (at_once or fate in _FINAL):
                    told.add((i, j))
                    self._both(edits, i, j, f"{kind} '{name}'", gone=at != later)

    def _fates(self, edit: ed.AnyEdit) -> list[tuple[tuple[str, str], str]]:
        """((kind, name), what becomes of it)"""
        fate = str(edit.__struct_config__.tag)
        match edit:
            case ed.RemoveNodesEdit() | ed.FailNodesEdit() | ed.DrainEdit() | ed.CordonEdit() | ed.UncordonEdit():
                ids = self.state.capacity.node_ids
                names = edit.nodes.ids or [ids[row] for row in nodes_meant(self.state, edit.nodes)]
                return [(("node", name), fate) for name in dict.fromkeys(names)]
            case ed.PreemptEdit() | ed.CancelEdit():
                return [(("workload", name), fate) for name in dict.fromkeys(edit.ids)]
            case ed.MigrateEdit():
                moved = [(("workload", name), fate) for name in dict.fromkeys(edit.ids)]
                onto = edit.nodes if pool_meant(self.state, edit) is None else ()
                return moved + [(("node", name), "target") for name in dict.fromkeys(onto)]
            case _:
                return []

    def _adds(self, edits: Sequence[ed.AnyEdit]) -> None:
        """Nodes that are added where others fail or go at the same time: are they meant too?"""
        for i, add in enumerate(edits):
            if not isinstance(add, ed.AddNodesEdit):
                continue
            for j, other in enumerate(edits):
                if isinstance(other, ed.ResizePoolEdit):
                    within = other.pool == add.pool
                elif not isinstance(
                    other, ed.RemoveNodesEdit | ed.FailNodesEdit | ed.DrainEdit | ed.CordonEdit | ed.ShockEdit
                ):
                    continue
                elif isinstance(other, ed.ShockEdit):
                    spot = other.pool == "spot" and any(
                        p.spot and p.name == add.pool for p in self.state.capacity.pools
                    )
                    within = spot or other.pool == add.pool
                else:
                    place = other.nodes.place
                    within = place is not None and getattr(add, place) == other.nodes.name
                if within and add.at_ms == other.at_ms:
                    self._both(edits, min(i, j), max(i, j), f"nodes of pool '{add.pool}'")

    def _both(self, edits: Sequence[ed.AnyEdit], i: int, j: int, subject: str, *, gone: bool = False) -> None:
        first, second = (f"{n + 1} '{_cut(ed.written(edits[n]))}'" for n in (i, j))
        how = f"{subject} is gone by then" if gone else f"both are about {subject}"
        self.problems.append(f"edits {first} and {second} contradict each other: {how}")


_LIVE = frozenset(state for state in WorkloadState if not state.terminal)
_BOUND = frozenset((WorkloadState.PLACED, WorkloadState.RUNNING))
_DECIDING = (
    ed.RemoveNodesEdit,
    ed.FailNodesEdit,
    ed.DrainEdit,
    ed.CordonEdit,
    ed.UncordonEdit,
    ed.PreemptEdit,
    ed.CancelEdit,
    ed.MigrateEdit,
)
"""Edits that decide the fate of named nodes or workloads."""
_FINAL = ("remove_nodes", "cancel")
"""Edits after which nothing is left."""


def _settles(edit: ed.AnyEdit) -> list[tuple[str, str]]:
    """The settings of an edit that can have one value at a time."""
    match edit:
        case ed.ChangeQuotaEdit():
            return [("the quota of queue", edit.queue)]
        case ed.SetWeightEdit():
            return [("the weight of queue", edit.queue)]
        case ed.HoldQueueEdit() | ed.OpenQueueEdit():
            return [("the state of queue", edit.queue)]
        case ed.SetPolicyEdit():
            return [("the policy", "")]
        case ed.SetPriorityEdit():
            return [("the priority of", name) for name in dict.fromkeys(edit.ids)]
        case ed.ResizePoolEdit():
            return [("the size of pool", edit.pool)]
        case _:
            return []


def _cut(text: str) -> str:
    shown = text.encode("unicode_escape").decode()
    return shown if len(shown) <= 80 else shown[:79] + "…"


# -- on the cell ------------------------------------------------------------------------------------------------------


def rows_in(state: State, place: ed.Place, name: str) -> list[int]:
    """Nodes of a pool or of a place in the topology."""
    capacity = state.capacity
    index = capacity.pool_of if place == "pool" else capacity.places.index
    at = index.get(name)
    if at is None or not name or not capacity.node_ids:
        return []
    found = (view(getattr(capacity, place)) == at) & (view(capacity.state) != NodeState.REMOVED)
    rows: list[int] = found.nonzero()[0].tolist()
    return rows


def nodes_meant(state: State, nodes: ed.Nodes) -> list[int]:
    """Rows of those nodes that there are."""
    if nodes.place is not None:
        return rows_in(state, nodes.place, nodes.name)
    return [state.capacity.row_of[name] for name in dict.fromkeys(nodes.ids) if name in state.capacity.row_of]


def pool_meant(state: State, edit: ed.MigrateEdit) -> str | None:
    """The pool to move to; None when it is nodes."""
    if edit.pool:
        return edit.pool
    capacity = state.capacity
    only = edit.nodes[0] if len(edit.nodes) == 1 else ""
    return only if only in capacity.pool_of and only not in capacity.row_of else None


def commands_of(state: State, edit: ed.AnyEdit, seed: int, now_ms: int) -> list[Step]:
    """The commands of the edit now, and those that follow later. Raises MusterError for objects that are gone."""
    ids = state.capacity.node_ids
    match edit:
        case ed.AddNodesEdit():
            return [(now_ms, (cmd.AddNodes(nodes=_new_nodes(state, edit, edit.count)),))]
        case ed.ResizePoolEdit():
            return [(now_ms, _resized(state, edit))]
        case ed.RemoveNodesEdit():
            return [(now_ms, (cmd.RemoveNodes(ids=_node_ids(state, edit.nodes)),))]
        case ed.FailNodesEdit():
            return _failing(_node_ids(state, edit.nodes), edit.for_ms, now_ms)
        case ed.ShockEdit():
            return _failing(tuple(ids[row] for row in _shocked(state, edit, seed)), edit.for_ms, now_ms)
        case ed.DrainEdit():
            return [(now_ms, (cmd.Drain(ids=_node_ids(state, edit.nodes)),))]
        case ed.CordonEdit():
            return [(now_ms, (cmd.Cordon(ids=_node_ids(state, edit.nodes)),))]
        case ed.UncordonEdit():
            return [(now_ms, (cmd.Uncordon(ids=_node_ids(state, edit.nodes)),))]
        case ed.ChangeQuotaEdit():
            spec = state.queues.specs[state.queues.row(edit.queue)]
            spec = msgspec.structs.replace(spec, nominal=spec.nominal | edit.nominal)
            return [(now_ms, (cmd.ChangeQueue(queue=spec, over="evict" if edit.evict else "keep"),))]
        case ed.SetWeightEdit():
            spec = state.queues.specs[state.queues.row(edit.queue)]
            spec = msgspec.structs.replace(spec, weight=edit.weight)
            return [(now_ms, (cmd.ChangeQueue(queue=spec, over="keep"),))]
        case ed.HoldQueueEdit():
            return [(now_ms, (cmd.HoldQueues(names=(edit.queue,)),))]
        case ed.OpenQueueEdit():
            return [(now_ms, (cmd.OpenQueues(names=(edit.queue,)),))]
        case ed.SetPolicyEdit():
            return [(now_ms, (cmd.SetPolicy(policy=edit.policy),))]
        case ed.SetPriorityEdit():
            return [(now_ms, (cmd.SetPriority(ids=edit.ids, priority_class=edit.priority_class),))]
        case ed.SubmitEdit():
            return [(now_ms, (cmd.Submit(workloads=edit.workloads),))]
        case ed.PreemptEdit():
            return [(now_ms, (cmd.Requeue(ids=edit.ids),))]
        case ed.CancelEdit():
            return [(now_ms, (cmd.Cancel(ids=edit.ids),))]
        case ed.MigrateEdit():
            pool = pool_meant(state, edit)
            nodes = () if pool else edit.nodes
            moves = tuple(cmd.Move(id=name, pool=pool or "", nodes=nodes) for name in dict.fromkeys(edit.ids))
            return [(now_ms, (cmd.Migrate(moves=moves),))]


def _node_ids(state: State, nodes: ed.Nodes) -> tuple[str, ...]:
    """The nodes named, or all that are in the place now."""
    return nodes.ids or tuple(state.capacity.node_ids[row] for row in nodes_meant(state, nodes))


def _failing(ids: tuple[str, ...], for_ms: int, now_ms: int) -> list[Step]:
    if not ids:
        return []
    steps: list[Step] = [(now_ms, (cmd.FailNodes(ids=ids),))]
    if for_ms:
        steps.append((now_ms + for_ms, (cmd.RestoreNodes(ids=ids),)))
    return steps


def _shocked(state: State, edit: ed.ShockEdit, seed: int) -> list[int]:
    """The share of the pool's nodes that the seed draws: those whose number, mixed from id and seed, is smallest."""
    capacity = state.capacity
    if edit.pool == "spot" and "spot" not in capacity.pool_of:
        pools = [pool.name for pool in capacity.pools if pool.spot]
    else:
        pools = [edit.pool]
    rows = [row for name in pools for row in rows_in(state, "pool", name) if capacity.state[row] != NodeState.DOWN]
    count = -(-len(rows) * edit.permille // 1000)
    key = zlib.crc32(f"shock/{seed}".encode())
    drawn = sorted(rows, key=lambda row: (zlib.crc32(f"{key}/{capacity.node_ids[row]}".encode()), row))
    return sorted(drawn[:count])


def _resized(state: State, edit: ed.ResizePoolEdit) -> tuple[cmd.AnyCommand, ...]:
    """More nodes, or fewer: those that are not ready go first, then those with fewest workloads, the youngest first."""
    capacity = state.capacity
    rows = rows_in(state, "pool", edit.pool)
    if edit.count > len(rows):
        add = ed.AddNodesEdit(pool=edit.pool, count=edit.count - len(rows))
        return (cmd.AddNodes(nodes=_new_nodes(state, add, add.count)),)
    if edit.count == len(rows):
        return ()
    a = state.allocations
    rows.sort(key=lambda row: (capacity.state[row] == NodeState.READY, a.workloads_on(row), -row))
    return (cmd.RemoveNodes(ids=tuple(capacity.node_ids[row] for row in rows[: len(rows) - edit.count])),)


def _new_nodes(state: State, edit: ed.AddNodesEdit, count: int) -> tuple[NodeSpec, ...]:
    places = {place: getattr(edit, place) for place in ed.PLACES if place != "pool" and getattr(edit, place)}
    return tuple(NodeSpec(id=name, pool=edit.pool, **places) for name in _new_ids(state, edit, set(), count))


def _new_ids(state: State, edit: ed.AddNodesEdit, taken: set[str], count: int) -> list[str]:
    found: list[str] = []
    number = 0
    while len(found) < count:
        number += 1
        name = f"{edit.pool}-new-{number}"
        if name not in state.capacity.row_of and name not in taken:
            found.append(name)
    return found
