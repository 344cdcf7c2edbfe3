"""Gang placement: all tasks of all groups or none, the ways in which a workload may start, and repair after lost nodes.

`place` claims capacity as it goes, and gives everything back when a task finds no node. So no half-placed gang exists
outside this function. On success the claims stand, and the caller emits `Placed` at once or gives them back.

A way to start says on which pools and kept nodes each group goes, and how many tasks quota lets it have there. A gang
that asks for a level of the topology goes where `engine.capacity.topology` has room. A required level holds it in one
domain of that level; a preferred one uses as few of its domains as possible. Claims are in the order of the tree, so
neighbours in rank are neighbours in the network.

When nodes are lost, members of a gang are replaced in place, or it runs on with fewer, or all of it goes back to its
queue. Replacements are tried on the capacity without the lost nodes and with the rest of the gang in place, one gang
after the other, higher priority first; the trial is then undone. The events that follow repeat it exactly, in one turn,
so nothing else can come in between.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator
from contextlib import contextmanager
from itertools import islice, permutations, product

import numpy as np

from engine.capacity.index import NOWHERE, OPEN, Capacity
from engine.capacity.task_shapes import Shape
from engine.capacity.topology import DomainChoice, DomainRoom, TopologyTree, domain_room, levels_asked, pick, spans
from engine.model import events as ev
from engine.model.columns import Ints, view
from engine.model.events import GroupPlacement
from engine.model.specs import NodeState, TopologyRequest, WorkloadState
from engine.placement import node_choice
from engine.state import allocations
from engine.state.cell_state import State
from engine.state.workloads import NONE, WorkloadClass

Claim = tuple[int, int, int, int]
"""(group, node row, tasks, device mask)"""
MAX_ORDERS = 6
"""Orders in which the groups of a gang are tried."""


def place(
    capacity: Capacity,
    shapes: tuple[Shape, ...],
    counts: tuple[int, ...],
    up_to: tuple[int, ...] | None = None,
    beside: int = NOWHERE,
) -> list[Claim] | None:
    """Claims for `counts[g]` tasks of `shapes[g]`, and for as many more as there is room for up to `up_to[g]`; or None
    with nothing claimed. `beside`: a node that the gang is on already, if it is.

    Groups are placed one after the other. Where that fails, groups of one gang may only be in each other's way: other
    orders are tried.
    """
    if shapes[0].topology is not None:
        return _place_close(capacity, shapes, counts, up_to or counts, shapes[0].topology, beside)
    for order in orders_of_groups(shapes):
        claims: list[Claim] = []
        if all(_place_group(capacity, group, shapes[group], counts[group], claims) for group in order):
            if up_to is not None and up_to != counts:
                for group in order:
                    _extend_group(capacity, group, shapes[group], up_to[group] - counts[group], claims)
                return _merged(shapes, claims)
            return claims
        if not claims:
            # Its first group finds no room even alone, whatever the order.
            return None
        unplace(capacity, shapes, claims)
    return None


def orders_of_groups(shapes: tuple[Shape, ...]) -> Iterator[tuple[int, ...]]:
    """Orders in which to place the groups of a gang. What asks for most devices, then most CPU, then has fewest pools
    to choose from, is hardest to place and goes first in the first of them."""
    if len(shapes) == 1:
        return iter(((0,),))
    hardest = sorted(range(len(shapes)), key=lambda g: (-shapes[g].gpu_milli, -shapes[g].cpu, len(shapes[g].pools), g))
    return islice(permutations(hardest), MAX_ORDERS)


def _place_group(capacity: Capacity, group: int, shape: Shape, left: int, claims: list[Claim]) -> bool:
    """Add claims for all the tasks; false when not all found room. Adds nothing when none did."""
    if not capacity.could_hold(shape, left):
        return False
    return _extend_group(capacity, group, shape, left, claims) == 0


def _extend_group(capacity: Capacity, group: int, shape: Shape, left: int, claims: list[Claim]) -> int:
    """Add claims for as many of `left` tasks as there is room for. Returns how many were left over."""
    if not node_choice.is_simple(capacity, shape):
        return node_choice.extend(capacity, group, shape, left, claims)
    node, bucket = NOWHERE, 0
    while left:
        following = NOWHERE if node == NOWHERE else capacity.find_after(node, bucket, shape)
        node = capacity.find(shape) if following == NOWHERE else following
        if node == NOWHERE:
            break
        bucket = capacity.key[node]
        many = allocations.take_first(capacity, shape, node, left)
        if many is not None:
            nodes, tasks = many
            claims += [(group, n, t, 0) for n, t in zip(nodes.tolist(), tasks.tolist(), strict=True)]
            left -= int(tasks.sum())
            node = NOWHERE
        else:
            count = capacity.room(node, shape, left)
            claims.append((group, node, count, capacity.claim(node, shape, count)))
            left -= count
    return left


# -- close together ---------------------------------------------------------------------------------------------------


def _place_close(
    capacity: Capacity,
    shapes: tuple[Shape, ...],
    counts: tuple[int, ...],
    up_to: tuple[int, ...],
    request: TopologyRequest,
    beside: int,
) -> list[Claim] | None:
    known = domain_room(capacity)
    if beside != NOWHERE:
        return _place_beside(capacity, known, shapes, counts, up_to, request, beside)
    rooms = [known.rooms(capacity, shape) for shape in shapes]
    if len(shapes) == 1 and up_to != counts:
        # As many as fit where most do, but no more than asked for.
        required, _ = levels_asked(known.tree, request)
        up_to = (min(up_to[0], max(rooms[0].largest(required)[0], counts[0])),)
    for wanted in dict.fromkeys((up_to, counts)):
        for choice in spans(known.tree, rooms, wanted, request):
            claims = _place_in(capacity, known, shapes, wanted, choice)
            if claims is not None:
                if wanted != up_to:
                    claims = _extend_in(capacity, known, shapes, wanted, up_to, choice, claims)
                # One group's are in order already.
                return claims if len(shapes) == 1 else _in_rank_order(known.tree, claims)
    return None


def _place_in(
    capacity: Capacity, known: DomainRoom, shapes: tuple[Shape, ...], counts: tuple[int, ...], choice: DomainChoice
) -> list[Claim] | None:
    """Claims for all groups within the span, or None with nothing claimed."""
    for order in orders_of_groups(shapes):
        claims: list[Claim] = []
        if all(_claim_in(capacity, known, group, shapes[group], counts[group], choice, claims) for group in order):
            return claims
        unplace(capacity, shapes, claims)
    return None


def _claim_in(
    capacity: Capacity,
    known: DomainRoom,
    group: int,
    shape: Shape,
    count: int,
    choice: DomainChoice,
    claims: list[Claim],
) -> bool:
    """Add claims for tasks of one group within the span; False, and none added, when there is not room for all."""
    if not count:
        return True
    tree, rooms = known.tree, known.rooms(capacity, shape)
    low, high = choice.span
    room = rooms.by_position
    if int(room[low:high].sum()) < count:
        return False
    if shape.spread is not None:
        return not node_choice.spread_over(capacity, group, shape, count, claims, tree.rows[low:high], room[low:high])
    if len(shape.pools) + len(shape.booked) > 1:
        room = _of_liked_pools(capacity, tree, shape, room, choice, count)
    positions, tasks = pick(tree, room, choice, count)
    claims += _claim_many(capacity, group, shape, tree.rows[positions], tasks)
    return True


def _claim_many(capacity: Capacity, group: int, shape: Shape, rows: Ints, tasks: Ints) -> list[Claim]:
    """Claims for tasks of one group on different nodes that have room for them; parts of devices one at a time."""
    nodes, counts = rows.tolist(), tasks.tolist()
    if allocations.worth_it(shape, len(nodes)):
        allocations.shift_many(capacity, shape, rows, -tasks)
        return [(group, node, count, 0) for node, count in zip(nodes, counts, strict=True)]
    masks = allocations.take_all_devices(capacity, shape, rows, tasks)
    if masks is not None:
        return [(group, *claim) for claim in zip(nodes, counts, masks.tolist(), strict=True)]
    if shape.part:
        return [
            (group, node, 1, capacity.claim(node, shape, 1))
            for node, count in zip(nodes, counts, strict=True)
            for _ in range(count)
        ]
    return [(group, node, count, capacity.claim(node, shape, count)) for node, count in zip(nodes, counts, strict=True)]


def _of_liked_pools(
    capacity: Capacity, tree: TopologyTree, shape: Shape, room: Ints, choice: DomainChoice, count: int
) -> Ints:
    """The room within the span on kept nodes and those of the pools the shape likes best, as many as are enough."""
    low, high = choice.span
    rows = tree.rows[low:high]
    rank = np.zeros(len(capacity.pools), np.int64)
    rank[shape.pools] = np.arange(1, len(shape.pools) + 1)
    ranks = np.where(view(capacity.booking)[rows] == OPEN, rank[view(capacity.pool)[rows]], 0)
    reached = np.cumsum(np.bincount(ranks, weights=room[low:high], minlength=len(shape.pools) + 1))
    liked = np.zeros(len(room), np.int64)
    liked[low:high] = np.where(ranks <= np.searchsorted(reached, count), room[low:high], 0)
    return liked


def _extend_in(
    capacity: Capacity,
    known: DomainRoom,
    shapes: tuple[Shape, ...],
    counts: tuple[int, ...],
    up_to: tuple[int, ...],
    choice: DomainChoice,
    claims: list[Claim],
) -> list[Claim]:
    """The claims, and more of each group where the span has room."""
    for group, shape in enumerate(shapes):
        more = min(up_to[group] - counts[group], known.rooms(capacity, shape).total(choice.span))
        _claim_in(capacity, known, group, shape, more, choice, claims)
    return _merged(shapes, claims)


def _place_beside(
    capacity: Capacity,
    known: DomainRoom,
    shapes: tuple[Shape, ...],
    counts: tuple[int, ...],
    up_to: tuple[int, ...],
    request: TopologyRequest,
    beside: int,
) -> list[Claim] | None:
    """More tasks for a gang that is there: as near to it as there is room, and in its domain of the required level."""
    required, preferred = levels_asked(known.tree, request)
    claims: list[Claim] = []
    placed = [0] * len(shapes)
    for level in known.tree.wider(preferred, required):
        near, within = known.tree.around(level, beside), known.tree.around(required, beside)
        span = max(near[0], within[0]), min(near[1], within[1])
        choice = DomainChoice(span, known.tree.next_narrower(level))
        for group, shape in enumerate(shapes):
            more = min(up_to[group] - placed[group], known.rooms(capacity, shape).total(choice.span))
            if _claim_in(capacity, known, group, shape, more, choice, claims):
                placed[group] += more
    if any(have < least for have, least in zip(placed, counts, strict=True)):
        unplace(capacity, shapes, claims)
        return None
    return _in_rank_order(known.tree, _merged(shapes, claims))


def _in_rank_order(tree: TopologyTree, claims: list[Claim]) -> list[Claim]:
    """Group by group in the order of the tree."""
    return sorted(claims, key=lambda claim: (claim[0], tree.position[claim[1]], claim[3]))


def _merged(shapes: tuple[Shape, ...], claims: list[Claim]) -> list[Claim]:
    """The claims with one for each node that a group got twice. Parts of devices stay by themselves."""
    merged: list[Claim] = []
    at: dict[tuple[int, int], int] = {}
    for claim in claims:
        group, node, count, devices = claim
        before = len(merged) if shapes[group].part else at.setdefault((group, node), len(merged))
        if before == len(merged):
            merged.append(claim)
        else:
            merged[before] = (group, node, merged[before][2] + count, merged[before][3] | devices)
    return merged


def unplace(capacity: Capacity, shapes: tuple[Shape, ...], claims: list[Claim]) -> None:
    """Give claims back."""
    for group, shape in enumerate(shapes):
        mine = [claim for claim in claims if claim[0] == group]
        _, nodes, counts, masks = np.array(mine, np.int64).reshape(-1, 4).T
        if allocations.worth_shifting(shape, nodes):
            allocations.shift_many(capacity, shape, nodes, counts, masks)
        else:
            for _, node, count, devices in reversed(mine):
                capacity.give_back(node, shape, count, devices)


def packed(claims: list[Claim], groups: int) -> tuple[GroupPlacement, ...]:
    """The claims as an event carries them."""
    if groups == 1:
        masks = [mask for _, _, _, mask in claims]
        nodes_of, counts_of = (
            array("i", [node for _, node, _, _ in claims]),
            array("i", [count for _, _, count, _ in claims]),
        )
        return (
            GroupPlacement(nodes_of.tobytes(), counts_of.tobytes(), array("q", masks).tobytes() if any(masks) else b""),
        )
    nodes = [array("i") for _ in range(groups)]
    counts = [array("i") for _ in range(groups)]
    devices = [array("q") for _ in range(groups)]
    for group in range(groups):
        mine = [claim for claim in claims if claim[0] == group]
        if mine:
            _, *columns = zip(*mine, strict=True)
            for column, values in zip((nodes[group], counts[group], devices[group]), columns, strict=True):
                column.extend(values)
    return tuple(
        GroupPlacement(n.tobytes(), c.tobytes(), d.tobytes() if any(d) else b"")
        for n, c, d in zip(nodes, counts, devices, strict=True)
    )


MAX_VARIANTS = 64
"""Assignments of task groups to pools that are tried, in order of preference."""


def variants(state: State, row: int) -> Iterator[tuple[Shape, ...]]:
    """The ways its groups may be laid on pools and kept nodes, in order of preference, to be placed by the scores of
    its queue. Where a tree has quotas by pool, each group goes to one pool."""
    profile = state.queues.profile(state.workloads.queue[row])
    for shapes in _laid_out(state, row):
        yield tuple(shape.scored(profile) for shape in shapes) if profile else shapes


def _laid_out(state: State, row: int) -> Iterator[tuple[Shape, ...]]:
    workload_class = state.workloads.class_at(row)
    bookings = usable_bookings(state, row)
    if workload_class.reservation and not bookings:
        return
    if state.queues.flavored(state.workloads.queue[row]):
        yield from islice(_pool_by_pool(state, row, bookings), MAX_VARIANTS)
    elif bookings or workload_class.reservation:
        yield tuple(_on_kept_nodes(workload_class, shape, bookings) for shape in workload_class.shapes)
    else:
        yield workload_class.shapes


def _on_kept_nodes(workload_class: WorkloadClass, shape: Shape, bookings: tuple[int, ...]) -> Shape:
    """The shape on the nodes that are kept for the workload, and on open ones unless it names a reservation."""
    pools = () if workload_class.reservation else tuple(shape.pools)
    return shape.limited(pools, tuple((booking, pool) for booking in bookings for pool in shape.pools))


def _pool_by_pool(state: State, row: int, bookings: tuple[int, ...]) -> Iterator[tuple[Shape, ...]]:
    """Every assignment of its groups to the pools that its queue has quotas for."""
    workload_class = state.workloads.class_at(row)
    named = state.queues.flavors_of(state.workloads.queue[row])
    choices = []
    for shape in workload_class.shapes:
        pools = [state.capacity.pool_of[name] for name in named] if named else shape.pools
        choices.append(
            [
                shape.limited(
                    () if workload_class.reservation else (pool,), tuple((booking, pool) for booking in bookings)
                )
                for pool in pools
                if pool in shape.pool_set
            ]
        )
    return product(*choices)


def usable_bookings(state: State, row: int) -> tuple[int, ...]:
    """Bookings whose nodes the workload may use now."""
    if not (state.bookings.reservations or state.bookings.clearings):
        return ()
    w = state.workloads
    queues = frozenset(state.queues.specs[vertex].name for vertex in state.queues.path[w.queue[row]])
    end_ms = state.now_ms + w.remaining_ms(row)
    return state.bookings.usable(row, w.class_at(row).reservation, queues, state.now_ms, end_ms)


def counts_in_quota(state: State, row: int, shapes: tuple[Shape, ...], *, borrow: bool) -> tuple[int, ...] | None:
    """The number of tasks of each group that quota allows, from the fewest it can start with up to all; None if even
    the fewest are too many.
    """
    queue = state.workloads.queue[row]
    workload_class = state.workloads.class_at(row)
    wanted = state.counts_wanted(row)
    if not state.queues.limited[queue]:
        return wanted

    def allowed(counts: tuple[int, ...]) -> bool:
        charge = state.charge_if(row, shapes, counts)
        return state.queues.lack(queue, charge, state.now_ms, borrow=borrow) is None

    if allowed(wanted):
        return wanted
    if workload_class.rigid or not allowed(workload_class.least):
        return None
    low, high = 0, sum(wanted) - sum(workload_class.least)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if allowed(workload_class.least_and(middle)) else (low, middle)
    return workload_class.least_and(low)


NODE_LOST = ev.EVICTION_CAUSES.index("node lost")
_GONE = (NodeState.DOWN, NodeState.REMOVED)
Swap = tuple[int, tuple[Shape, ...], list[Claim]]
"""(workload row, shapes its replacements were placed as, claims)"""


def after_loss(state: State, nodes: list[int]) -> list[ev.AnyEvent]:
    """The events of the loss of these nodes. They are down, and each workload with tasks there goes on with others in
    their place, or waits again at its original age. Nodes that are down already are left out.
    """
    lost = [node for node in nodes if state.capacity.state[node] not in _GONE]
    if not lost:
        return []
    rows = sorted({state.allocations.workload[a] for node in lost for a in state.allocations.on_node(node)})
    gone = frozenset(lost)
    swaps = _swaps(state, lost, gone, rows)
    events: list[ev.AnyEvent] = [ev.NodesChanged(array("i", lost).tobytes(), NodeState.DOWN)]
    for row, shapes, claims in swaps:
        events.append(ev.Swapped(row, _leaves(state, row, gone), packed(claims, len(shapes))))
    going_on = {row for row, _, _ in swaps}
    events += [ev.Evicted(row, NODE_LOST) for row in rows if row not in going_on]
    return events


def spared(state: State, row: int, nodes: Container[int]) -> list[Claim] | None:
    """All that running elastic work has on the nodes, (group, node, tasks, device mask) each, if it can do without;
    None when it cannot. Spread evenly, it cannot do without those of one domain alone."""
    w, a = state.workloads, state.allocations
    workload_class = w.class_at(row)
    if not w.elastic[row] or w.state[row] != WorkloadState.RUNNING or any(s.spread for s in workload_class.shapes):
        return None
    left = state.placed_of(row)
    there = [i for i in a.of_workload(w.first_allocation[row]) if a.node[i] in nodes]
    for i in there:
        left[a.group[i]] -= a.count[i]
    if any(have < fewest for have, fewest in zip(left, workload_class.least, strict=True)):
        return None
    return [(a.group[i], a.node[i], a.count[i], a.devices[i]) for i in there]


def _leaves(state: State, row: int, gone: frozenset[int]) -> bytes:
    """The lost nodes that the workload had tasks on."""
    a = state.allocations
    own = {a.node[i] for i in a.of_workload(state.workloads.first_allocation[row])}
    return array("i", sorted(own & gone)).tobytes()


def _swaps(state: State, lost: list[int], gone: frozenset[int], rows: list[int]) -> list[Swap]:
    """The gangs that can go on, in the order in which their replacements were found room for."""
    w = state.workloads
    able = [row for row in rows if _may_go_on(state, row)]
    if not able:
        return []
    able.sort(key=lambda row: (-w.band_at(row), -w.value_at(row), row))
    swaps: list[Swap] = []
    with _out_of_use(state, lost):
        for row in able:
            found = _replacements(state, row, gone)
            if found is not None:
                swaps.append((row, *found))
                state.shift_company(row, 1, [(node, count) for _, node, count, _ in found[1]])
        for row, shapes, claims in reversed(swaps):
            state.shift_company(row, -1, [(node, count) for _, node, count, _ in claims])
            unplace(state.capacity, shapes, claims)
    return swaps


def _may_go_on(state: State, row: int) -> bool:
    """True if losing members need not stop it: it runs, and no preemptor is about to take its place."""
    w = state.workloads
    return (
        w.state[row] == WorkloadState.RUNNING and w.preempting[row] == NONE and bool(w.hot_swap[row] or w.elastic[row])
    )


@contextmanager
def _out_of_use(state: State, lost: list[int]) -> Iterator[None]:
    """Meanwhile nothing can be placed on the nodes."""
    capacity = state.capacity
    ready = [(node, capacity.since[node]) for node in lost if capacity.state[node] == NodeState.READY]
    for node, _ in ready:
        capacity.set_state(node, NodeState.DOWN, state.now_ms)
    yield
    for node, since_ms in ready:
        capacity.set_state(node, NodeState.READY, since_ms)


def _replacements(state: State, row: int, gone: frozenset[int]) -> tuple[tuple[Shape, ...], list[Claim]] | None:
    """Claims for the tasks that go where the lost ones were, none where it can do without; None when it cannot go on.
    A gang all of whose tasks are lost has nothing left to go on with."""
    w, a = state.workloads, state.allocations
    workload_class = w.class_at(row)
    missing = [0] * len(workload_class.counts)
    stay: tuple[dict[int, int], ...] = tuple({} for _ in missing)
    pools: list[set[int]] = [set() for _ in missing]
    beside = NONE
    leaving: list[tuple[int, int]] = []
    for i in a.of_workload(w.first_allocation[row]):
        group, node = a.group[i], a.node[i]
        if node in gone:
            missing[group] += a.count[i]
            pools[group].add(state.capacity.pool[node])
            leaving.append((node, a.count[i]))
        else:
            stay[group][node] = stay[group].get(node, 0) + a.count[i]
            beside = node
    if beside == NONE:
        return None
    least = tuple(missing)
    if w.elastic[row] and not any(shape.spread for shape in workload_class.shapes):
        # Spread evenly, it cannot do without those of one domain alone.
        pairs = zip(workload_class.least, stay, strict=True)
        least = tuple(max(fewest - sum(there.values()), 0) for fewest, there in pairs)
    shapes = _shapes(state, row, pools)
    if not w.hot_swap[row]:
        return None if any(least) else (shapes, [])
    remaining = [(node, count) for there in stay for node, count in there.items()]
    state.shift_company(row, -1, leaving + remaining)
    state.capacity.company.placed = stay
    claims = place(state.capacity, shapes, least, tuple(missing), beside)
    state.capacity.company.placed = ()
    state.shift_company(row, 1, leaving + remaining)
    return None if claims is None else (shapes, claims)


def _shapes(state: State, row: int, pools: list[set[int]]) -> tuple[Shape, ...]:
    """Its groups as they may be placed. Where its queue has quotas by pool, tasks stay in the pool they were lost in,
    so that what it is charged stays as it is."""
    w = state.workloads
    queue = w.queue[row]
    workload_class = w.class_at(row)
    names = frozenset(state.queues.specs[vertex].name for vertex in state.queues.path[queue])
    end_ms = state.now_ms + w.remaining_ms(row)
    bookings = state.bookings.usable(row, workload_class.reservation, names, state.now_ms, end_ms)
    by_pool = state.queues.flavored(queue)
    profile = state.queues.profile(queue)
    found = []
    for shape, own in zip(workload_class.shapes, pools, strict=True):
        allowed = tuple(pool for pool in shape.pools if not by_pool or not own or pool in own)
        if bookings or workload_class.reservation or by_pool:
            kept = tuple((booking, pool) for booking in bookings for pool in allowed)
            shape = shape.limited(() if workload_class.reservation else allowed, kept)
        found.append(shape.scored(profile) if profile else shape)
    return tuple(found)
