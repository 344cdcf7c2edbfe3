"""Scale-up: the choice of nodes to order for waiting work.

Work that waits for room is placed once more, by the same code, in the scheduler's order of bands, and gangs before
single tasks within a band. It is placed on free capacity (with claims that are undone at the end), on nodes that boot
or are ordered, and then on new nodes of the pools that grow.

A gang gets one order: all of its nodes or none. Single tasks get bulk orders, one for each pool and scan. Where several
pools would do, `engine.elasticity.trial_nodes` chooses. Nothing is ordered for work that does not start on whole free
nodes of the same pool; more of them would not help, and `muster why` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from types import MappingProxyType

import numpy as np

from engine.capacity.index import OPEN, Capacity
from engine.capacity.task_shapes import Shape
from engine.elasticity.order_limits import OrderLimits
from engine.elasticity.trial_nodes import Needs, NewNodes, PlacementNeed, PlacementTrial, choose, empty_like
from engine.model import events as ev
from engine.model.columns import view
from engine.model.quantities import counted
from engine.model.specs import LEVELS, NodeState, WorkloadState
from engine.placement.gang_placement import Claim, place, unplace
from engine.placement.node_choice import grows, suits, suits_in, template, zones_of
from engine.state.cell_state import State
from engine.state.machines import OrderState
from engine.state.workloads import NONE

MAX_GANGS = 500
"""Gangs that get orders in one scan: each takes about a millisecond. The others have theirs in the next."""
PLACED_BY_NAME = ("region", "zone")
"""Levels of the topology at which it is known where a new node will be."""


def plan(state: State, now_ms: int, wanted: Mapping[int, int]) -> list[ev.AnyEvent]:
    """Orders to make now, and those that nobody needs any more. Changes nothing. `wanted`: pool row -> nodes that it
    should have, whatever waits (`engine.elasticity.capacity_ahead`)."""
    ended = list(_not_needed(state))
    if not _any_cause(state, wanted):
        return ended
    return ended + Planner(state, now_ms, wanted=wanted).orders()


def _not_needed(state: State) -> Iterator[ev.AnyEvent]:
    """Ends of open orders for gangs that do not wait any more, nor run on nodes that are taken back."""
    w, a, doomed = state.workloads, state.allocations, state.capacity.doomed
    for row in state.orders.open:
        gang = state.orders.workload[row]
        if gang == NONE or w.state[gang] == WorkloadState.QUEUED:
            continue
        if not state.doomed or all(doomed[a.node[i]] < 0 for i in a.of_workload(w.first_allocation[gang])):
            yield ev.OrderEnded(row, OrderState.CANCELLED)


def _any_cause(state: State, wanted: Mapping[int, int]) -> bool:
    """True if there is anything nodes may be ordered for. Quick."""
    if state.pending.groups or state.doomed or not state.short.isdisjoint(state.replicas.running):
        return True
    c = state.capacity
    return any(
        pool.scaling is not None and (pool.scaling.headroom or wanted.get(row, 0) > c.pool_nodes[row])
        for row, pool in enumerate(c.pools)
    )


class Planner:
    """One decision. `explained`: the workload of which `reasons` are wanted."""

    def __init__(
        self, state: State, now_ms: int, explained: int = NONE, wanted: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        self.state = state
        self.wanted = wanted
        self.now_ms = now_ms
        self.explained = explained
        self.reasons: dict[int, str] = {}
        """Pool row -> why none of its nodes is ordered for that workload."""
        self.outcome = ""
        """The outcome: free, incoming, young, ordered, next; passed over, where quota goes to work ahead; or none of
        them.
        """
        self._limits = OrderLimits(state, now_ms)
        self._claimed: list[tuple[tuple[Shape, ...], list[Claim]]] = []
        """Claims on the live capacity, to be given back."""
        self._incoming: Capacity | None = None
        self._new: dict[tuple[int, str], NewNodes] = {}
        self._zone_in_turn: dict[int, str] = {}
        self._free: dict[tuple[int, str], int] = {}
        """Whole nodes that are free, by pool and zone; forgotten when more is claimed."""
        self._bare: dict[Shape, Shape] = {}
        self._events: list[ev.AnyEvent] = []
        self._bulk: dict[tuple[int, str], int] = {}
        """Nodes to order for whoever comes."""
        self._tasks = 0
        self._expected = incoming(state)
        self._ordered_for = set(state.orders.workload)
        self._gangs = 0
        """Gangs for which nodes are ordered."""
        self._hopeless: set[tuple[tuple[Shape, ...], tuple[int, ...], bool]] = set()
        """(shapes, tasks of each group, young) of gangs that get no place in this scan."""
        self._on_its_way = False
        """Enough nodes are coming for the gang that is looked at, in the one place where it is to be."""

    def orders(self) -> list[ev.AnyEvent]:
        """The events, orders of gangs first."""
        if not self._limits.any_room() and self.explained == NONE:
            return []
        state = self.state
        blocks = Needs(state, self.now_ms, self._limits).blocks() if self._may_help() else []
        if self.explained != NONE and not any(self.explained in need.rows for block in blocks for need in block):
            self.outcome = "passed over"
        self._tasks = sum(sum(need.counts) for block in blocks for need in block)
        try:
            for block in blocks:
                singles = []
                for need in block:
                    if need.gang == NONE:
                        singles.append(need)
                    else:
                        self._serve_gang(need)
                self._serve_singles(singles)
            self._keep_sizes()
        finally:
            for shapes, claims in reversed(self._claimed):
                unplace(state.capacity, shapes, claims)
        for (pool, zone), nodes in self._bulk.items():
            self._events.append(self._order(pool, zone, nodes, NONE))
        return self._events

    def _may_help(self) -> bool:
        """True if some pool that may grow now has nodes large enough for some of the waiting work. Quick."""
        state = self.state
        if self.explained != NONE or state.doomed or not state.short.isdisjoint(state.replicas.running):
            return True
        growing = {row for row, pool in enumerate(state.capacity.pools) if grows(pool) and self._limits.room(row).now}
        w = state.workloads
        return not state.pending.by_class or any(
            not growing.isdisjoint(shape.pool_set)
            for group in state.pending.groups.values()
            for shape in w.class_at(group.rows[group.front]).shapes
        )

    # -- what is there ------------------------------------------------------------------------------------------------

    def _take(self, need: PlacementNeed, on: Capacity, *, whole: bool = False) -> list[Claim]:
        """Place what is needed on that capacity as far as it goes, or `whole` or not at all."""
        live = on is self.state.capacity
        shapes = need.shapes if live else tuple([self._alone(shape) for shape in need.shapes])
        counts = tuple(need.counts)
        claims = place(on, shapes, counts) if whole else place(on, shapes, (0,) * len(counts), counts)
        for group, _, count, _ in claims or ():
            need.counts[group] -= count
        if live and claims:
            self._claimed.append((shapes, claims))
            self._free.clear()
        return claims or []

    def _alone(self, shape: Shape) -> Shape:
        """The shape without bonds to other work, which is not where new nodes are."""
        if shape.terms is None:
            return shape
        if shape not in self._bare:
            bare = self._bare[shape] = copy(shape)
            bare.terms = None
            bare._limited, bare._scored = {}, {}
            bare.plain = bare if shape.plain is shape else self._alone(shape.plain)
        return self._bare[shape]

    def _coming(self) -> Capacity:
        """Nodes that boot or are ordered, empty; no more of a kind than there are tasks."""
        if self._incoming is None:
            state = self.state
            self._incoming = empty_like(state.capacity)
            for (pool, zone), nodes in sorted(self._expected.items()):
                spec = state.capacity.pools[pool]
                ids = [f"{pool}-{zone}-{number}" for number in range(min(nodes, self._tasks))]
                if ids:
                    self._incoming.add_alike(template(spec, zone), ids)
        return self._incoming

    def _whole_free(self, pool: int, zone: str) -> int:
        """Nodes of the pool and zone that are ready, open to all and have nothing on them."""
        found = self._free.get((pool, zone))
        if found is None:
            c = self.state.capacity
            place_row = c.places.index.get(zone, NONE)
            rows = np.flatnonzero(
                (view(c.pool) == pool)
                & (view(c.zone) == place_row)
                & (view(c.state) == NodeState.READY)
                & (view(c.booking) == OPEN)
            )
            cpu, memory, gpu, disk = c.pools[pool].offered.vector()
            empty = (view(c.free_cpu)[rows] == cpu) & (view(c.free_memory)[rows] == memory)
            empty &= (view(c.free_disk)[rows] == disk) & (view(c.whole)[rows] == (1 << gpu // 1000) - 1)
            found = self._free[pool, zone] = int(np.count_nonzero(empty))
        return found

    # -- gangs --------------------------------------------------------------------------------------------------------

    def _serve_gang(self, need: PlacementNeed) -> None:
        """All of it, or nothing of it is claimed anywhere."""
        state = self.state
        counts = list(need.counts)
        kind = need.shapes, tuple(counts), need.young
        if kind in self._hopeless and self.explained not in need.rows:
            # Room has only become less since one like it was looked at.
            return None
        mark = len(self._claimed)
        free = dict(self._free)
        whole = _in_one_place(need)
        self._take(need, state.capacity, whole=whole)
        if not any(need.counts):
            return self._say(need, "free")
        on_coming = self._take(need, self._coming(), whole=whole)
        if not any(need.counts):
            return self._say(need, "incoming")
        self._on_its_way = False
        enough = self._gangs >= MAX_GANGS
        if not need.young and not enough and self._order_for_gang(need):
            self._gangs += 1
            return self._say(need, "ordered")
        self._say(need, "young" if need.young else "next" if enough else "incoming" if self._on_its_way else "")
        if not whole:
            self._hopeless.add(kind)
        if on_coming:
            unplace(self._coming(), tuple([self._alone(shape) for shape in need.shapes]), on_coming)
        for shapes, claims in reversed(self._claimed[mark:]):
            unplace(state.capacity, shapes, claims)
        del self._claimed[mark:]
        self._free = free
        need.counts = counts
        return None

    def _order_for_gang(self, need: PlacementNeed) -> bool:
        """Order what the gang lacks: of one pool if one will do, else group by group. False when it cannot be had."""
        lacking = [group for group, count in enumerate(need.counts) if count]
        parts = [lacking]
        if len(lacking) > 1 and need.shapes[0].topology is None:
            parts += [[group] for group in lacking]
        placed: list[tuple[PlacementTrial, int]] = []
        """Placement with the nodes to be ordered."""
        for part in parts:
            found = self._best_for_gang(need, part)
            if found is None and (part != lacking or len(parts) == 1):
                for each, nodes in placed:
                    each.undo()
                    self._limits.take(each.on.pool, -nodes, gang=True)
                return False
            if found is not None:
                nodes = found.option().nodes
                found.confirm(len(found.nodes))
                self._limits.take(found.on.pool, nodes, gang=True)
                placed.append((found, nodes))
                if part == lacking:
                    break
        self._events += [self._order(f.on.pool, f.on.zone, nodes, need.gang) for f, nodes in placed if nodes]
        return True

    def _best_for_gang(self, need: PlacementNeed, groups: list[int]) -> PlacementTrial | None:
        """The best pool for all tasks that these groups lack, placed there on trial."""
        tries: list[PlacementTrial] = []
        for pool, zone in self._candidates([need], groups):
            room = self._limits.room(pool)
            spare = 0
            if need.gang in self._ordered_for and _in_one_place(need):
                # What was ordered for it waits there, or is on its way.
                spare = self._whole_free(pool, zone) + self._expected.get((pool, zone), 0)
            found = self._place_gang(need, groups, pool, zone, room.most, spare) if room.most + spare else None
            nodes = 0 if found is None else found.option().nodes
            why = ""
            if found is None:
                why = self._why_not_placed(need, groups, pool, room.most) if room.most else room.why
            elif found.nodes and not nodes and self._expected.get((pool, zone)):
                why = "has as many nodes on their way as it needs in one place"
                self._on_its_way = True
            elif found.nodes and (not nodes or (not _in_one_place(need) and self._whole_free(pool, zone))):
                why = "has whole nodes free, but it does not start on them: more would not help"
            elif nodes > room.most:
                why = room.why
            elif nodes > room.at_once:
                why = f"cannot be asked for {nodes} nodes in one request, {room.at_once} at most"
            elif nodes > room.now:
                why = "the machine quota of its project is used up for now"
                self._limits.keep_for_next(pool)
            if why:
                self._note(need, pool, why)
                if found is not None:
                    found.undo()
            elif found is not None:
                tries.append(found)
        if self._on_its_way:
            for each in tries:
                each.undo()
            return None
        return self._chosen(tries)

    def _place_gang(
        self, need: PlacementNeed, groups: list[int], pool: int, zone: str, most: int, spare: int
    ) -> PlacementTrial | None:
        """All that these groups lack, on at most so many new nodes, and `spare` that are there or on their way."""
        new = self._new_nodes(pool, zone)
        shapes = tuple([self._confined(need.shapes[group], pool) for group in groups])
        counts = tuple([need.counts[group] for group in groups])
        bound = sum(-(-count // max(shape.most_on(new.spec), 1)) for shape, count in zip(shapes, counts, strict=True))
        if shapes[0].spread is not None:
            bound = sum(counts)
        new.provide(min(bound, most + spare))
        claims = place(new.capacity, shapes, counts)
        if claims is None:
            return None
        found = PlacementTrial(new, spare)
        part = PlacementNeed(shapes, list(counts), need.rows, need.gang, need.young)
        found.note(part, shapes, claims)
        found.nodes = new.fresh(claims)
        return found

    def _why_not_placed(self, need: PlacementNeed, groups: list[int], pool: int, most: int) -> str:
        topology = need.shapes[0].topology
        level = topology.required if topology is not None else None
        if level is not None and level not in (*PLACED_BY_NAME, LEVELS[-1]):
            return f"may be in different {level}s: only region and zone of a new node are known"
        tasks = sum(need.counts[group] for group in groups)
        left = f"may grow by {counted(most, 'node')}"
        return f"{left}, too few for {counted(tasks, 'task')}"

    # -- single tasks -------------------------------------------------------------------------------------------------

    def _serve_singles(self, needs: list[PlacementNeed]) -> None:
        state = self.state
        for need in needs:
            self._take(need, state.capacity)
            self._say(need, "free")
        left = [need for need in needs if any(need.counts)]
        for need in left:
            self._take(need, self._coming())
            self._say(need, "incoming")
            if need.young:
                self._say(need, "young", all_of_it=True)
        left = [need for need in left if any(need.counts) and not need.young]
        shut: set[tuple[int, str]] = set()
        """Options that have given all they may."""
        while left:
            found = self._best_for_singles(left, shut)
            if found is None:
                break
            pool, zone = found.on.pool, found.on.zone
            room = self._limits.room(pool)
            nodes = min(len(found.nodes), room.in_batch)
            more = nodes < len(found.nodes)
            found.confirm(nodes)
            self._limits.take(pool, nodes, gang=False)
            if nodes:
                self._bulk[pool, zone] = self._bulk.get((pool, zone), 0) + nodes
            for need, _, _ in found.placed:
                self._say(need, "ordered")
                if more:
                    self._say(need, "next", all_of_it=True)
            if more:
                # They wait for the rest of that pool rather than go where it is worse.
                waiting = {id(need) for need, _, _ in found.placed}
                left = [need for need in left if id(need) not in waiting]
            left = [need for need in left if any(need.counts)]
            shut.add((pool, zone))
        for need in left if self.explained != NONE else ():
            for pool, zone in shut:
                if self._suits_new(need.shapes[0], pool, zone):
                    self._note(need, pool, self._limits.room(pool).why)

    def _best_for_singles(self, needs: list[PlacementNeed], shut: set[tuple[int, str]]) -> PlacementTrial | None:
        """The pool that is best for as many of them as it takes, placed there on trial."""
        candidates = [at for at in self._candidates(needs, [0]) if at not in shut]
        tiers: dict[int, list[tuple[int, str]]] = {}
        """Options that would be chosen whatever they cost are looked at first."""
        by_priority = self.state.settings.autoscaling.expanders[:1] == ("priority",)
        for at in candidates:
            tiers.setdefault(self._priority(at[0]) if by_priority else 0, []).append(at)
        for tier in sorted(tiers, reverse=True):
            tries = [found for at in tiers[tier] if (found := self._place_singles(needs, *at)) is not None]
            if tries:
                return self._chosen(tries)
        return None

    def _priority(self, pool: int) -> int:
        scaling = self.state.capacity.pools[pool].scaling
        return scaling.priority if scaling is not None else 0

    def _place_singles(self, needs: list[PlacementNeed], pool: int, zone: str) -> PlacementTrial | None:
        room = self._limits.room(pool)
        mine = [need for need in needs if self._suits_new(need.shapes[0], pool, zone)]
        why = room.why if not room.most else ""
        if not why and self._whole_free(pool, zone):
            why = "has whole nodes free, but it does not start on them: more would not help"
        if why:
            for need in mine:
                self._note(need, pool, why)
            return None
        new = self._new_nodes(pool, zone)
        kinds = [(need, self._confined(need.shapes[0], pool)) for need in mine]
        found = PlacementTrial(new)
        for need, shape in kinds:
            claims = new.fill(shape, need.counts[0], min(room.most, room.at_once))
            if claims:
                found.note(need, (shape,), claims)
        if not found.placed:
            return None
        found.nodes = new.fresh([claim for _, _, claims in found.placed for claim in claims])
        return found

    # -- pools --------------------------------------------------------------------------------------------------------

    def _candidates(self, needs: list[PlacementNeed], groups: list[int]) -> list[tuple[int, str]]:
        """Pools, with the zone in turn, whose new nodes could hold tasks of these groups: all of them for a gang. All
        zones where the tasks say where they want to be, or that they want to be in one place."""
        pools = self.state.capacity.pools
        found = []
        for pool, spec in enumerate(pools):
            if not grows(spec):
                continue
            zones: dict[str, None] = {}
            for need in needs:
                shapes = [need.shapes[group] for group in groups]
                choosy = any(demand.key in PLACED_BY_NAME for shape in shapes for demand in shape.labels)
                in_turn = self._zone(pool)
                for zone in (in_turn, *zones_of(spec)) if choosy or _in_one_place(need) else (in_turn,):
                    if all(self._suits_new(shape, pool, zone) for shape in shapes):
                        zones[zone] = None
                if need.gang != NONE or self.explained in need.rows:
                    self._note_unsuited(need, shapes, pool)
            found += [(pool, zone) for zone in zones]
        return found

    def _suits_new(self, shape: Shape, pool: int, zone: str) -> bool:
        """True if a new node there would do. Devices are left to those who need them, if there is another pool."""
        spec = self.state.capacity.pools[pool]
        if pool not in shape.pool_set or not suits_in(spec, zone, shape):
            return False
        return bool(shape.gpu_milli) or not spec.offered.gpu_milli or not self._others_suit(shape)

    def _others_suit(self, shape: Shape) -> bool:
        """True if a pool without devices grows that would do."""
        pools = self.state.capacity.pools
        return any(
            grows(pools[row]) and not pools[row].offered.gpu_milli and suits(pools[row], shape) for row in shape.pools
        )

    def _note_unsuited(self, need: PlacementNeed, shapes: list[Shape], pool: int) -> None:
        spec = self.state.capacity.pools[pool]
        for shape in shapes:
            if pool not in shape.pool_set:
                self._note(need, pool, "has nodes that are too small for its tasks, or of another kind")
            elif not suits(spec, shape):
                self._note(need, pool, "has nodes whose labels or taints keep its tasks away")
            elif not any(self._suits_new(shape, pool, zone) for zone in zones_of(spec)):
                self._note(need, pool, "is reserved for work that needs devices")

    def _confined(self, shape: Shape, pool: int) -> Shape:
        return self._alone(shape).limited((pool,), ())

    def _new_nodes(self, pool: int, zone: str) -> NewNodes:
        found = self._new.get((pool, zone))
        if found is None:
            found = self._new[pool, zone] = NewNodes(self.state.capacity, pool, zone)
        return found

    def _zone(self, pool: int) -> str:
        """The zone in turn: the one after that of the pool's last order."""
        found = self._zone_in_turn.get(pool)
        if found is None:
            found = self._zone_in_turn[pool] = zone_in_turn(self.state, pool)
        return found

    def _chosen(self, tries: list[PlacementTrial]) -> PlacementTrial | None:
        """The best of them; the others are undone."""
        if not tries:
            return None
        at = choose([each.option() for each in tries], self.state.settings.autoscaling.expanders)
        for other, each in enumerate(tries):
            if other != at:
                each.undo()
        return tries[at]

    def _keep_sizes(self) -> None:
        """Order what pools lack of the size they should have and of the whole nodes that they keep free."""
        state = self.state
        for pool, spec in enumerate(state.capacity.pools):
            if spec.scaling is None or not grows(spec):
                continue
            room = self._limits.room(pool)
            if not room.in_batch:
                continue
            ordered = sum(nodes for (row, _), nodes in self._bulk.items() if row == pool)
            lack = self.wanted.get(pool, spec.scaling.least) - staying(state, pool) - self._limits.due[pool] - ordered
            if spec.scaling.headroom:
                zones = dict.fromkeys([*zones_of(spec), *(zone for row, zone in self._expected if row == pool)])
                free = sum(self._whole_free(pool, zone) for zone in zones) + self._unused_coming(pool)
                lack = max(lack, spec.scaling.headroom - free)
            nodes = min(lack, room.in_batch)
            if nodes > 0:
                at = pool, self._zone(pool)
                self._limits.take(pool, nodes, gang=False)
                self._bulk[at] = self._bulk.get(at, 0) + nodes

    def _unused_coming(self, pool: int) -> int:
        """Nodes of the pool that boot or are ordered, and that nothing was placed on."""
        there = sum(nodes for (row, _), nodes in self._expected.items() if row == pool)
        c = self._incoming
        if c is None:
            return there
        rows = np.flatnonzero(view(c.pool) == pool)
        cpu, memory, gpu, _ = c.pools[pool].offered.vector()
        used = (view(c.free_cpu)[rows] < cpu) | (view(c.free_memory)[rows] < memory)
        used |= view(c.whole)[rows] != (1 << gpu // 1000) - 1
        return there - int(np.count_nonzero(used))

    def _order(self, pool: int, zone: str, nodes: int, gang: int) -> ev.Ordered:
        return ev.Ordered(pool, zone, nodes, self.now_ms + self.state.settings.autoscaling.order_timeout_ms, gang)

    # -- what is said -------------------------------------------------------------------------------------------------

    def _say(self, need: PlacementNeed, outcome: str, *, all_of_it: bool = False) -> None:
        """Single tasks of a kind have their places in order of age: it holds for those that have one by now, or for all
        that have none yet."""
        if self.explained in need.rows and not self.outcome:
            placed = 1 if need.gang != NONE else len(need.rows) - need.counts[0]
            if all_of_it or need.rows.index(self.explained) < placed:
                self.outcome = outcome

    def _note(self, need: PlacementNeed, pool: int, why: str) -> None:
        if self.explained in need.rows:
            self.reasons.setdefault(pool, why)


def zone_in_turn(state: State, pool: int) -> str:
    """The zone after that of the pool's last order."""
    orders, zones = state.orders, zones_of(state.capacity.pools[pool])
    last = next((row for row in range(len(orders.pool) - 1, -1, -1) if orders.pool[row] == pool), NONE)
    after = zones.index(orders.zone[last]) + 1 if last != NONE and orders.zone[last] in zones else 0
    return zones[after % len(zones)]


def _in_one_place(need: PlacementNeed) -> bool:
    """True if it is a gang that requires a domain of the topology to itself."""
    topology = need.shapes[0].topology
    return topology is not None and topology.required is not None


def incoming(state: State) -> dict[tuple[int, str], int]:
    """By pool and zone: nodes that boot, and those that are ordered and not granted yet."""
    c, orders = state.capacity, state.orders
    found: dict[tuple[int, str], int] = {}
    if c.not_ready:
        rows = np.flatnonzero((view(c.state) == NodeState.BOOTING) & (view(c.doomed) < 0))
        pairs, counts = np.unique(np.stack((view(c.pool)[rows], view(c.zone)[rows])), axis=1, return_counts=True)
        for (pool, zone), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
            found[pool, c.places.names[zone]] = count
    for row in orders.open:
        at = orders.pool[row], orders.zone[row]
        found[at] = found.get(at, 0) + orders.wanted[row] - orders.granted[row]
    return found


def staying(state: State, pool: int) -> int:
    """Nodes of the pool that nobody is about to take back."""
    if not state.doomed:
        return state.capacity.pool_nodes[pool]
    c = state.capacity
    leaving = (view(c.pool) == pool) & (view(c.doomed) >= 0) & (view(c.state) != NodeState.REMOVED)
    return int(c.pool_nodes[pool]) - int(np.count_nonzero(leaving))
