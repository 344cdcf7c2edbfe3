"""The cell at a glance: its gauges at one moment, its activity since the last look, and its map.

A look is taken on the engine's thread in a few passes over columns, and turned into measurements elsewhere. It costs
the number of nodes, of workloads that are not over, and of those that ended since the last look. Work that ended
earlier is never looked at again.

The map shows zones, blocks, racks or nodes as tiles, each with its capacity in use, free and out of order, and its
cost. Sums run over whole columns; only the requested tiles become Python values. The tile of each node is kept until
nodes come or go.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.model.columns import Numbers, view
from engine.model.errors import NotFoundError, SpecError
from engine.model.reports import HeatLevel, HeatMap, HeatRequest, HeatTile
from engine.model.specs import NodeState, PoolSpec, QueueSpec, WorkloadState
from engine.state.cell_state import State
from engine.state.pending_work import STOPPED
from engine.state.workloads import NONE, WorkloadClass

if TYPE_CHECKING:
    from engine.capacity.index import Capacity


CPU, GPU = 0, 2
"""Places in a vector of requests."""
AT_ONCE = 100_000
"""Rows met at once: some milliseconds."""


class GaugeReading(NamedTuple):
    """One look at the cell. Arrays are copies and do not change."""

    since_ms: int
    """Time of the look before. What happened in [since, now) is told."""
    now_ms: int
    pools: tuple[PoolSpec, ...]
    nodes: list[int]
    """By pool; so are the next."""
    ready: list[int]
    """Nodes that take work."""
    down: list[int]
    free_cpu: list[int]
    free_gpu: list[int]
    taken: list[int]
    """Nodes that a provider ever took back, or has given notice of."""
    spent_rate: list[int]
    """Micro-USD per hour of all its nodes."""
    queues: tuple[QueueSpec, ...]
    parents: list[int]
    """By queue, row of its parent; -1 for none. A parent comes before its children."""
    queue_used: list[tuple[int, int]]
    """By queue, (CPU, GPU) milli of all below it."""
    queue_quota: list[tuple[int, int]]
    """By queue, its own nominal (CPU, GPU) milli without those below it; UNLIMITED where its tree has no limit."""
    queue_running: list[int]
    """By queue, without those below it; so are the next."""
    queue_waiting: Numbers
    queue_waiting_cpu: Numbers
    queue_waiting_gpu: Numbers
    tenants: list[str]
    tenant_used: dict[int, tuple[int, int]]
    """Row of the tenant -> (CPU, GPU) milli."""
    tenant_waiting_cpu: Numbers
    tenant_waiting_gpu: Numbers
    waiting_classes: list[tuple[WorkloadClass, int]]
    """(what is asked for, how many wait for that and may start)"""
    waiting_queue: Numbers
    waiting_ms: Numbers
    """Queue and wait so far of each of those."""
    account_tenant: Numbers
    account_queue: Numbers
    account_rate: Numbers
    """Micro-USD per hour."""
    started_queue: Numbers
    """Queue of each workload that started in the interval."""
    wait_queue: Numbers
    wait_pool: Numbers
    wait_ms: Numbers
    """Queue, pool (-1: not known) and wait of each that started for the first time in the interval."""
    evicted_queue: Numbers
    evicted_pool: Numbers
    """Queue and pool (-1: not known) of each that was preempted in the interval."""
    ended_queue: Numbers
    ended_state: Numbers
    ended_rows: Numbers
    ended_pool: Numbers
    """Pools of the workloads that ended in the interval, in the order of their ends."""


class Ended(NamedTuple):
    """The facts of a workload that has ended."""

    id: str
    name: str
    tenant: str
    team: str
    queue: str
    tasks: int
    request: tuple[int, int, int, int]
    """Request of all tasks."""
    estimate_ms: int
    submitted_ms: int
    started_ms: int
    """-1 if it never started."""
    ended_ms: int
    outcome: str
    attempts: int
    pool: PoolSpec | None
    cost_microusd: int


class Gauges:
    """Remembers between looks what was not over. For one state; to be called on its engine's thread."""

    def __init__(self, since_ms: int) -> None:
        """`since_ms`: what happened before is not told."""
        self.since_ms = since_ms
        self._state: State | None = None
        self._open = np.zeros(0, np.int32)
        """Rows that were not over."""
        self._pool = np.zeros(0, np.int32)
        """Last known pool of each of them; -1 for none yet."""
        self._rows = 0

    def meet(self, state: State) -> bool:
        """Take note of AT_ONCE more of the rows there are; returns whether all are known. Before the first look of a
        cell that has run before: that look then costs no more than others."""
        self._turn_to(state)
        known = len(self._open)
        self._open = self._candidates(state, AT_ONCE)
        self._see(state, np.arange(known, len(self._open)), self._open[known:])
        self._rows = min(self._rows + AT_ONCE, len(state.workloads.ids))
        return self._rows == len(state.workloads.ids)

    def look(self, state: State, now_ms: int) -> GaugeReading:
        """Raises nothing; costs some milliseconds in a cell of 130,000 nodes and 300,000 workloads."""
        w, c, queues = state.workloads, state.capacity, state.queues
        since_ms = self.since_ms
        self._turn_to(state)
        rows = self._candidates(state)
        now = view(w.state)[rows]
        # What has been in its state since before the last look is as it was then.
        moved = np.flatnonzero((view(w.since)[rows] >= since_ms) | (rows >= self._rows))
        some = rows[moved]
        self._see(state, moved, some)
        pool = self._pool[moved]
        is_now, ended, started = now[moved], view(w.ended)[some], view(w.started)[some]
        queue = view(w.queue)[some]
        over = (is_now >= WorkloadState.FINISHED) & (is_now <= WorkloadState.CANCELLED)

        def within(times: Numbers) -> Numbers:
            return np.asarray((times >= since_ms) & (times < now_ms))

        gone = np.flatnonzero(over & within(ended))
        gone = gone[np.argsort(ended[gone], kind="stable")]
        starts = np.flatnonzero(within(started))
        first = starts[view(w.attempts)[some[starts]] == 1]
        evicted = np.flatnonzero(within(view(w.evicted_at)[some]))
        waiting, classes = self._waiting(state, rows, now)
        used = {tenant: (use[CPU], use[GPU]) for tenant, use in held_by_tenant(state).items()}
        request = view(w.class_requests).reshape(-1, 4)[view(w.cls)[waiting]]
        waiting_queue, waiting_tenant = view(w.queue)[waiting], view(w.tenant)[waiting]
        pools = len(c.pools)
        pool_of = view(c.pool)
        kinds = len(NodeState)
        states = np.bincount(pool_of * kinds + view(c.state), minlength=kinds * pools).reshape(-1, kinds)
        look = GaugeReading(
            since_ms=since_ms,
            now_ms=now_ms,
            pools=tuple(c.pools),
            nodes=list(c.pool_nodes),
            ready=states[:, NodeState.READY].tolist(),
            down=states[:, NodeState.DOWN].tolist(),
            free_cpu=_sums(pool_of, view(c.free_cpu), pools).tolist(),
            free_gpu=_sums(pool_of, state.capacity.free_gpu(), pools).tolist(),
            taken=np.bincount(pool_of[view(c.doomed) >= 0], minlength=pools).tolist(),
            spent_rate=list(state.ledger.cost.rate),
            queues=tuple(queues.specs),
            parents=[path[1] if len(path) > 1 else -1 for path in queues.path],
            queue_used=[(vector[CPU], vector[GPU]) for vector in map(queues.used_vector, range(len(queues.specs)))],
            queue_quota=[
                (queues.nominal_at(row, CPU), queues.nominal_at(row, GPU)) for row in range(len(queues.specs))
            ],
            queue_running=[sum(counts.values()) for counts in state.workloads_of_queue],
            queue_waiting=np.bincount(waiting_queue, minlength=len(queues.specs)),
            queue_waiting_cpu=_sums(waiting_queue, request[:, CPU], len(queues.specs)),
            queue_waiting_gpu=_sums(waiting_queue, request[:, GPU], len(queues.specs)),
            tenants=list(w.tenants.names),
            tenant_used=used,
            tenant_waiting_cpu=_sums(waiting_tenant, request[:, CPU], len(w.tenants.names)),
            tenant_waiting_gpu=_sums(waiting_tenant, request[:, GPU], len(w.tenants.names)),
            waiting_classes=classes,
            waiting_queue=waiting_queue,
            waiting_ms=now_ms - view(w.submitted)[waiting],
            account_tenant=view(state.ledger.account_tenant).copy(),
            account_queue=view(state.ledger.account_queue).copy(),
            account_rate=view(state.ledger.accounts.rate).copy(),
            started_queue=queue[starts],
            wait_queue=queue[first],
            wait_pool=pool[first],
            wait_ms=started[first] - view(w.submitted)[some[first]],
            evicted_queue=queue[evicted],
            evicted_pool=pool[evicted],
            ended_queue=queue[gone],
            ended_state=is_now[gone],
            ended_rows=some[gone],
            ended_pool=pool[gone],
        )
        left = moved[over & (ended < now_ms)]
        if len(left):
            rows, self._pool = np.delete(rows, left), np.delete(self._pool, left)
        self._open, self._rows, self.since_ms = rows, len(w.ids), now_ms
        return look

    def _turn_to(self, state: State) -> None:
        """Follow a state that was read anew. Its rows are the same, but the memory of it may be ahead of it."""
        if state is not self._state:
            self._state, self._rows, self._open, self._pool = state, 0, self._open[:0], self._pool[:0]

    def _candidates(self, state: State, most: int | None = None) -> Numbers:
        """Rows that were not over at the last look or are new, up to so many of these, ascending."""
        w = state.workloads
        part = slice(self._rows, len(w.ids) if most is None else self._rows + most)
        now = view(w.state)[part]
        over = (now >= WorkloadState.FINISHED) & (now <= WorkloadState.CANCELLED)
        over &= view(w.ended)[part] < self.since_ms
        fresh = (np.flatnonzero(~over) + self._rows).astype(np.int32)
        self._pool = np.concatenate((self._pool, np.full(len(fresh), NONE, np.int32)))
        return np.concatenate((self._open, fresh))

    def _see(self, state: State, moved: Numbers, rows: Numbers) -> None:
        """Note in which pool each of these is, if it is in one."""
        first = view(state.workloads.first_allocation)[rows]
        bound = first != NONE
        node = view(state.allocations.node)[first[bound]]
        self._pool[moved[bound]] = view(state.capacity.pool)[node]

    def _waiting(self, state: State, rows: Numbers, now: Numbers) -> tuple[Numbers, list[tuple[WorkloadClass, int]]]:
        """(rows that wait and that neither their queue nor a budget keeps from starting, how many of each class)"""
        w = state.workloads
        waiting = rows[now == WorkloadState.QUEUED]
        if state.budgets.specs:
            stopped = [r for key, group in state.pending.groups.items() if key[3] == STOPPED for r in group.rows]
            waiting = waiting[~np.isin(waiting, np.array(stopped, np.int32))]
        is_open = np.fromiter(map(state.queues.is_open, range(len(state.queues.specs))), np.bool_)
        waiting = waiting[is_open[view(w.queue)[waiting]]]
        counts = np.bincount(view(w.cls)[waiting], minlength=1)
        asked = np.flatnonzero(counts)
        return waiting, [(w.classes[i], n) for i, n in zip(asked.tolist(), counts[asked].tolist(), strict=True)]


def ended(state: State, rows: Sequence[int], pools: Sequence[int], now_ms: int) -> list[Ended]:
    """The facts of these. Some microseconds each. `pools`: the pool of each; -1 when it is not known."""
    w, c = state.workloads, state.capacity
    found = []
    for row, pool in zip(rows, pools, strict=True):
        asked = w.class_at(row)
        if pool < 0:
            usable = {each for shape in asked.shapes for each in shape.pools}
            pool = usable.pop() if len(usable) == 1 and w.started[row] >= 0 else -1
        found.append(
            Ended(
                id=w.ids[row],
                name=w.names[row],
                tenant=w.tenants.names[w.tenant[row]],
                team=w.teams.names[w.team[row]],
                queue=state.queues.specs[w.queue[row]].name,
                tasks=asked.tasks,
                request=asked.request,
                estimate_ms=asked.estimate_ms,
                submitted_ms=w.submitted[row],
                started_ms=w.started[row],
                ended_ms=w.ended[row],
                outcome=WorkloadState(w.state[row]).label,
                attempts=w.attempts[row],
                pool=c.pools[pool] if pool >= 0 else None,
                cost_microusd=state.ledger.cost_of(row, now_ms),
            )
        )
    return found


def held_by_tenant(state: State) -> dict[int, list[int]]:
    """Row of the tenant -> what its placed and running work asked for, in the order of RESOURCES."""
    found: dict[int, list[int]] = {}
    for (_, tenant), use in state.tenant_use.items():
        sums = found.setdefault(tenant, [0, 0, 0, 0])
        for i, quantity in enumerate(use):
            sums[i] += quantity
    return found


def _sums(keys: Numbers, values: Numbers, size: int) -> Numbers:
    """Sums of the values of each key. Exact up to 2^53."""
    return np.bincount(keys, weights=values, minlength=size)


DOMAINS = ("zone", "block", "rack")
"""Levels whose tiles hold nodes, widest first."""
MAX_TILES = 10_000
"""Tiles in one answer."""
_CPU, _MEMORY, _GPU = range(3)


class Division(NamedTuple):
    """The tile of a level that each node is in."""

    tile_of: Numbers
    """By node; tiles are numbered in the order in which they are shown."""
    ways: list[tuple[int, ...]]
    """By tile: rows of its zone, block and rack in `places`, down to its own level."""


class Measures(NamedTuple):
    """Sums over the nodes of each tile."""

    full: Numbers
    """By resource."""
    free: Numbers
    split: Numbers
    price: Numbers
    spot: Numbers
    states: Numbers
    """By node state."""


class Heat:
    """Maps of one State. Never changes it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._divided_for: tuple[int, int] = (-1, -1)
        self._divisions: dict[HeatLevel, Division] = {}
        self._in_order: Numbers | None = None
        """Rows of nodes as they are shown; None until all of them are."""

    def map(self, request: HeatRequest, now_ms: int) -> HeatMap:
        """Raises SpecError for a window or a level that there is not, NotFoundError for a place."""
        if request.offset < 0 or not 0 <= request.limit <= MAX_TILES:
            raise SpecError(
                "limit",
                f"{request.limit} from {request.offset} is not a valid window",
                f"Ask for 0 to {MAX_TILES} tiles",
            )
        c = self._state.capacity
        if self._divided_for != (self._state.rules, len(c.node_ids)):
            self._divided_for = (self._state.rules, len(c.node_ids))
            self._divisions.clear()
            self._in_order = None
        here = _within(c, request.within)
        if request.level == "node":
            total, tiles = self._nodes(here, request)
        else:
            total, tiles = self._domains(here, request)
        return HeatMap(
            version=self._state.version,
            now_ms=now_ms,
            level=request.level,
            within=request.within,
            offset=request.offset,
            total=total,
            tiles=tiles,
            dearest_microusd_hour=max((pool.price_microusd_hour for pool in c.pools), default=0),
        )

    def _nodes(self, here: Numbers, request: HeatRequest) -> tuple[int, tuple[HeatTile, ...]]:
        c = self._state.capacity
        if not request.within:
            if self._in_order is None:
                self._in_order = self._ordered(np.arange(len(c.node_ids)))
            rows = self._in_order[here[self._in_order]]
        else:
            rows = self._ordered(np.flatnonzero(here))
        shown = rows[request.offset : request.offset + request.limit]
        measures = _measured(self._state, shown, np.arange(len(shown)), len(shown))
        names, pools = c.places.names, view(c.pool)[shown].tolist()
        places = [[names[place] for place in view(getattr(c, level))[shown].tolist()] for level in DOMAINS]
        tiles = [
            _tile(measures, i, c.node_ids[row], (places[0][i], places[1][i], places[2][i]), c.pools[pools[i]].name)
            for i, row in enumerate(shown.tolist())
        ]
        return len(rows), tuple(tiles)

    def _ordered(self, rows: Numbers) -> Numbers:
        """The nodes by rack, as racks are shown; in a rack the oldest first."""
        return rows[np.argsort(self._division("rack").tile_of[rows], kind="stable")]

    def _domains(self, here: Numbers, request: HeatRequest) -> tuple[int, tuple[HeatTile, ...]]:
        division = self._division(request.level)
        rows = np.flatnonzero(here)
        tile_of = division.tile_of[rows]
        there = np.flatnonzero(np.bincount(tile_of, minlength=len(division.ways)))
        shown = there[request.offset : request.offset + request.limit]
        if len(shown) < len(division.ways):
            # Those that are not shown are added up in a tile of their own, which is thrown away.
            number = np.full(len(division.ways), len(shown))
            number[shown] = np.arange(len(shown))
            tile_of = number[tile_of]
        measures = _measured(self._state, rows, tile_of, len(shown) + 1)
        names = self._state.capacity.places.names
        tiles = []
        for i, tile in enumerate(shown.tolist()):
            way = [names[place] for place in division.ways[tile]]
            zone, block, rack = (*way, "", "")[:3]
            tiles.append(_tile(measures, i, way[-1], (zone, block, rack)))
        return len(there), tuple(tiles)

    def _division(self, level: HeatLevel) -> Division:
        found = self._divisions.get(level)
        if found is None:
            found = self._divisions[level] = _divided(self._state.capacity, level)
        return found


def _within(c: Capacity, within: dict[str, str]) -> Numbers:
    """Mask of the nodes there are in all of these places."""
    here: Numbers = view(c.state) != NodeState.REMOVED
    for level, name in within.items():
        if level not in DOMAINS:
            raise SpecError("within", f"'{level[:40]}' is not a topology level", f"Use: {', '.join(DOMAINS)}")
        place = c.places.index.get(name)
        inside = view(getattr(c, level)) == (-1 if place is None else place)
        if not inside.any():
            raise NotFoundError(f"there is no {level} '{name}'", "See `muster get nodes`")
        here &= inside
    return here


def _divided(c: Capacity, level: HeatLevel) -> Division:
    depth = DOMAINS.index(level) + 1
    size = len(c.places.names)
    key = np.zeros(len(c.node_ids), np.int64)
    for each in DOMAINS[:depth]:
        key = key * size + view(getattr(c, each))
    distinct, tile_of = np.unique(key, return_inverse=True)
    ways = [_way(int(each), size, depth) for each in distinct.tolist()]
    natural = {place: _natural(c.places.names[place]) for way in ways for place in way}
    order = sorted(range(len(ways)), key=lambda tile: [natural[place] for place in ways[tile]])
    number = np.empty(len(ways), np.int64)
    number[order] = np.arange(len(ways))
    return Division(number[tile_of], [ways[tile] for tile in order])


def _way(key: int, size: int, depth: int) -> tuple[int, ...]:
    way = []
    for _ in range(depth):
        key, place = divmod(key, size)
        way.append(place)
    return tuple(reversed(way))


def _natural(name: str) -> tuple[bool, list[tuple[int, str]]]:
    """The sort key of a name as people count: r2 before r10. An empty name comes last."""
    return not name, [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", name)]


def _measured(state: State, rows: Numbers, tile_of: Numbers, tiles: int) -> Measures:
    """Sums over these nodes by tile. Whole numbers below 2^53, so that sums of floats are exact."""
    c = state.capacity
    pool = view(c.pool)[rows]
    offered = np.array([spec.offered.vector()[:3] for spec in c.pools], np.int64).reshape(-1, 3)

    def summed(values: Numbers) -> Numbers:
        return np.bincount(tile_of, weights=values, minlength=tiles).astype(np.int64)

    # What a pool says of each of its nodes is counted by pool first.
    pools = max(len(c.pools), 1)
    by_pool = np.bincount(tile_of * pools + pool, minlength=tiles * pools).reshape(tiles, pools)[:, : len(c.pools)]
    free_devices = state.capacity.free_gpu()[rows]
    partly = (free_devices > 0) & (free_devices < offered[pool, _GPU]) if len(c.pools) else free_devices > 0
    kinds = len(NodeState)
    return Measures(
        full=by_pool @ offered,
        free=np.stack([summed(view(c.free_cpu)[rows]), summed(view(c.free_memory)[rows]), summed(free_devices)], 1),
        split=summed(np.where(partly, free_devices, 0)),
        price=by_pool @ np.array([spec.price_microusd_hour for spec in c.pools], np.int64),
        spot=by_pool @ np.array([int(spec.spot) for spec in c.pools], np.int64),
        states=np.bincount(tile_of * kinds + view(c.state)[rows], minlength=tiles * kinds).reshape(tiles, kinds),
    )


def _tile(m: Measures, i: int, name: str, place: tuple[str, str, str], pool: str = "") -> HeatTile:
    full, free = m.full[i].tolist(), m.free[i].tolist()
    states = m.states[i].tolist()
    return HeatTile(
        name=name,
        zone=place[0],
        block=place[1],
        rack=place[2],
        nodes=sum(states),
        states={NodeState(state).label: count for state, count in enumerate(states) if count},
        use_permille=max(
            ((have - left) * 1000 // have for have, left in zip(full, free, strict=True) if have), default=0
        ),
        gpu_milli=full[_GPU],
        gpu_free_milli=free[_GPU],
        split_milli=int(m.split[i]),
        price_microusd_hour=int(m.price[i]),
        spot=int(m.spot[i]),
        pool=pool,
    )
