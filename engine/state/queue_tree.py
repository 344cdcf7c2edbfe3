"""The queue tree: quota in cohorts that lend and borrow, bursts, charges, and starts in time.

Quota follows Kueue's hierarchical cohorts (its `resource_node.go`), for every vertex and slot:

    quota   = nominal + what the children lend              lent by a child = its quota - its local part
    local   = quota - lending limit, if there is one; else 0: what only the vertex's own subtree may use
    drawn   = use that reaches the vertex: of a child's draw only what is above the child's local part
    ceiling = quota + borrowing limit; quota at a root

A charge is allowed when it keeps `drawn` within `ceiling` at every vertex it reaches. A burst raises the ceiling for a
while. A slot is one limited quantity: `flavor * 4 + resource index`. Flavor 0 is all pools together. The others are the
pools that queues name, in the order of first mention.

Each vertex also remembers its decayed average draw, the base of shares over the past. For queues with an objective,
starts in time are counted by the minute; that count is derived and never stored.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import isqrt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np

from engine.model.columns import Mask, Names, Numbers, Table, summed, view
from engine.model.errors import RefusedError, not_found
from engine.model.events import BORROWED, BURST
from engine.model.spec_parts import MINUTE_MS
from engine.model.specs import HOUR_MS, RESOURCES, FlavorQuota, QueueMode, QueueSpec

if TYPE_CHECKING:
    Numbers = Numbers

MINUTES = 360
"""Minutes that are kept: six hours."""


class Starts:
    """Counts of the last minutes. `of` is None until `engine.state.objectives` has read from the histories what was
    before: a replay counts nothing."""

    __slots__ = ("of",)

    def __init__(self) -> None:
        self.of: dict[int, deque[list[int]]] | None = None
        """Row of a queue with an objective -> [minute, started, of these late], oldest first."""

    def note(self, tree: QueueTree, queue: int, wait_ms: int, now_ms: int) -> None:
        """A workload of the queue starts now, `wait_ms` after it could have."""
        if self.of:
            for vertex in tree.path[queue]:
                if vertex in self.of:
                    late = wait_ms > tree.specs[vertex].start_within_ms
                    self.count(vertex, now_ms // MINUTE_MS, 1, int(late))

    def note_many(self, tree: QueueTree, queues: Numbers, waits_ms: Numbers, now_ms: int) -> None:
        """The same of many: the queue and the wait of each."""
        for vertex in self.of or ():
            here = waits_ms[below(tree, vertex)[queues]]
            if len(here):
                late = int((here > tree.specs[vertex].start_within_ms).sum())
                self.count(vertex, now_ms // MINUTE_MS, len(here), late)

    def count(self, vertex: int, minute: int, started: int, late: int) -> None:
        """Add to a minute, which is not before the last one."""
        assert self.of is not None
        minutes = self.of[vertex]
        if not minutes or minutes[-1][0] != minute:
            minutes.append([minute, 0, 0])
            while minutes[0][0] <= minute - MINUTES:
                minutes.popleft()
        minutes[-1][1] += started
        minutes[-1][2] += late

    def within(self, vertex: int, minutes: int, now_ms: int) -> tuple[int, int]:
        """(started, of these late) in the last `minutes` minutes, the present one included."""
        assert self.of is not None
        first = now_ms // MINUTE_MS - minutes
        rows = [row for row in self.of[vertex] if row[0] > first]
        return sum(row[1] for row in rows), sum(row[2] for row in rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Starts) and self.of == other.of

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Starts:
        other = Starts()
        if self.of is not None:
            other.of = {vertex: deque(row[:] for row in minutes) for vertex, minutes in self.of.items()}
        return other


def below(tree: QueueTree, vertex: int) -> Numbers:
    """Mask of the queues that are the vertex or below it."""
    return np.fromiter((vertex in path for path in tree.path), bool, len(tree.path))


Vector = tuple[int, int, int, int]
Charge = tuple[tuple[int, int], ...]
"""(slot, quantity above 0) of everything that is charged at once, in the order of slots."""
BurstState = Literal["idle", "burst", "cooldown"]

UNLIMITED = -1
"""The nominal quota of a slot that no vertex of the tree names."""
NO_LIMIT = 2**63 - 1
DAY_MS = 24 * HOUR_MS
WIDTH = len(RESOURCES)


Reach = tuple[tuple[int, tuple[int, ...]], ...]
"""(quantity, indexes of the draws that it may reach, from the queue's up) for each slot of a charge that counts."""
REFUSED = -1


class Lack(NamedTuple):
    """The reason why a charge is not possible: the nearest vertex that refuses it, the slot, and the missing amount."""

    vertex: int
    slot: int
    short: int


class TreeColumns(NamedTuple):
    """What the specs of the vertices say, as arrays."""

    limited: Mask
    """By vertex and slot: whether some vertex of the same tree has a nominal quota."""
    root: Numbers
    min_runtime_ms: Numbers


class QueueTree(Table):
    """Vertices in creation order; a parent always comes before its children."""

    columns = (
        "specs", "flavors", "mode", "used", "running", "burst_since", "disruptions", "average", "accrued_at",
    )  # fmt: skip

    def __init__(self) -> None:
        self.specs: list[Any] = []
        self.flavors = Names([""])
        """Names of the pools that have slots of their own; index 0 stands for all pools together."""
        self.mode = array("b")
        """A QueueMode."""
        self.used = array("q")
        """Charged to the vertex and all below it; `slots` entries for each vertex."""
        self.running = array("i")
        """Workloads charged at the queue itself."""
        self.burst_since = array("q")
        """Cell time at which the present or last burst began; -1 when there was none."""
        self.disruptions: list[list[int]] = []
        """Cell times at which the queue's workloads were preempted, within its last window; ascending."""
        self.average = array("q")
        """Decayed average draw in all pools, in AVERAGE_UNIT-ths; WIDTH entries for each vertex."""
        self.accrued_at = array("q")
        """Cell time up to which `average` counts."""
        self.half_life_ms = DAY_MS
        """Half-life of the averages; of the cell's settings, so not stored here."""
        self.derive()

    # -- structure ----------------------------------------------------------------------------------------------------

    def derive(self) -> None:
        self.specs = [s if isinstance(s, QueueSpec) else msgspec.convert(s, QueueSpec) for s in self.specs]
        self.starts = Starts()
        """Counted for the objectives of these specs."""
        self.slots = len(self.flavors.names) * WIDTH
        self._columns: TreeColumns | None = None
        """None when it has to be made anew."""
        self.row_of = {spec.name: row for row, spec in enumerate(self.specs)}
        self.path: list[tuple[int, ...]] = []
        """Rows from the queue itself up to its root."""
        self.children: list[list[int]] = []
        self.limited: list[int] = []
        """Bit mask of the slots for which some vertex of the same tree has a nominal quota."""
        self.flavored_trees: set[int] = set()
        """Rows of the roots of trees in which some queue names pools."""
        self.bursts: dict[int, dict[int, int]] = {}
        """Vertex -> slot -> most it may use in all while it bursts."""
        size = len(self.specs) * self.slots
        self.nominal = array("q", bytes(8 * size))
        self.subtree_nominal = array("q", bytes(8 * size))
        """Nominal quota of the vertex and all below it."""
        self.borrowing_limit = array("q", bytes(8 * size))
        """NO_LIMIT where none is given."""
        self.lending_limit = array("q", bytes(8 * size))
        """NO_LIMIT where none is given."""
        self.quota = array("q", bytes(8 * size))
        self.local = array("q", bytes(8 * size))
        self.drawn = array("q", bytes(8 * size))
        self.ceiling = array("q", bytes(8 * size))
        """NO_LIMIT where only the vertices above limit it, and in slots that the tree does not limit."""
        for row in range(len(self.specs)):
            self._link(row)
        for row, path in enumerate(self.path):
            if len(path) == 1:
                self._rebuild(row)

    def dump(self) -> dict[str, Any]:
        return super().dump() | {"specs": [msgspec.to_builtins(spec) for spec in self.specs]}

    def add(self, spec: QueueSpec) -> None:
        """Append a vertex. The spec has passed `check_queues`."""
        row = len(self.specs)
        wider = self._widen(spec)
        self.starts = Starts()
        self.specs.append(spec)
        self.mode.append(QueueMode.OPEN)
        self.used.extend([0] * self.slots)
        self.running.append(0)
        self.burst_since.append(-1)
        self.disruptions.append([])
        self.average.extend([0] * WIDTH)
        self.accrued_at.append(0)
        if wider:
            self.derive()
            return
        self.row_of[spec.name] = row
        for column in (self.nominal, self.subtree_nominal, self.borrowing_limit, self.lending_limit):
            column.extend([0] * self.slots)
        for column in (self.quota, self.local, self.drawn, self.ceiling):
            column.extend([0] * self.slots)
        self._link(row)
        if self._named(row) & ~self.limited[row]:
            self._rebuild(self.path[row][-1])
        else:
            self._enter(row)

    def change(self, spec: QueueSpec) -> None:
        """Give the vertex of that name another spec. The spec has passed `check_change`."""
        row = self.row_of[spec.name]
        self.specs[row] = spec
        self.starts = Starts()
        if self._widen(spec):
            self.derive()
        else:
            self._rebuild(self.path[row][-1])

    def _widen(self, spec: QueueSpec) -> bool:
        """Give slots to the pools the spec is the first to name. True when there were any."""
        before = self.slots
        for flavor in spec.flavors:
            self.flavors.add(flavor.pool)
        self.slots = len(self.flavors.names) * WIDTH
        if self.slots == before:
            return False
        wider = array("q", bytes(8 * len(self.specs) * self.slots))
        for row in range(len(self.used) // before):
            wider[row * self.slots : row * self.slots + before] = self.used[row * before : (row + 1) * before]
        self.used = wider
        return True

    def _link(self, row: int) -> None:
        self._columns = None
        parent_name = self.specs[row].parent
        self.children.append([])
        if parent_name:
            parent = self.row_of[parent_name]
            self.children[parent].append(row)
            self.path.append((row, *self.path[parent]))
            self.limited.append(self.limited[parent])
        else:
            self.path.append((row,))
            self.limited.append(0)

    def _named(self, row: int) -> int:
        """Bit mask of the slots for which the vertex itself has a nominal quota."""
        mask = 0
        for at, quota in self._quotas(row):
            for resource in quota.nominal:
                mask |= 1 << at + RESOURCES.index(resource)
        return mask

    def _quotas(self, row: int) -> list[tuple[int, QueueSpec | FlavorQuota]]:
        """The quotas of a spec in all pools and in single pools, each with its first slot."""
        spec: QueueSpec = self.specs[row]
        return [(0, spec), *((self.flavors.index[flavor.pool] * WIDTH, flavor) for flavor in spec.flavors)]

    def _rebuild(self, root: int) -> None:
        """Work out everything derived in the tree below a root."""
        self._columns = None
        members = [root]
        for row in members:
            members += self.children[row]
        limited = 0
        for row in members:
            limited |= self._named(row)
        self.flavored_trees.discard(root)
        for row in members:
            self.limited[row] = limited
            first, last = row * self.slots, (row + 1) * self.slots
            for column in (self.subtree_nominal, self.quota, self.local, self.drawn):
                column[first:last] = array("q", bytes(8 * self.slots))
        for row in members:
            self._enter(row)

    def _enter(self, row: int) -> None:
        """Fill in what the spec of a vertex says, and count its quota and its own use on the whole path."""
        spec, slots = self.specs[row], self.slots
        base = row * slots
        if spec.flavors:
            self.flavored_trees.add(self.path[row][-1])
        self.bursts.pop(row, None)
        if spec.burst is not None:
            self.bursts[row] = {RESOURCES.index(name): limit for name, limit in spec.burst.limit.items()}
        self.nominal[base : base + slots] = array("q", bytes(8 * slots))
        for column in (self.borrowing_limit, self.lending_limit, self.ceiling):
            column[base : base + slots] = array("q", [NO_LIMIT]) * slots
        for at, quota in self._quotas(row):
            for column, given in (
                (self.nominal, quota.nominal),
                (self.borrowing_limit, quota.borrowing_limit),
                (self.lending_limit, quota.lending_limit),
            ):
                for resource, quantity in given.items():
                    column[base + at + RESOURCES.index(resource)] = quantity
        for slot in range(slots):
            nominal = self.nominal[base + slot]
            for vertex in self.path[row]:
                self.subtree_nominal[vertex * slots + slot] += nominal
            below = sum(self.used[child * slots + slot] for child in self.children[row])
            self._carry(row, slot, nominal, self.used[base + slot] - below)

    def _carry(self, row: int, slot: int, quota: int, drawn: int) -> None:
        """Add to the quota and the draw of a vertex, and above it what it then lends and passes on more than before."""
        limited = self.limited[row] >> slot & 1
        root = self.path[row][-1]
        for vertex in self.path[row]:
            i = vertex * self.slots + slot
            lent, passed = self.quota[i] - self.local[i], max(0, self.drawn[i] - self.local[i])
            self.quota[i] += quota
            self.drawn[i] += drawn
            if self.lending_limit[i] != NO_LIMIT:
                self.local[i] = max(0, self.quota[i] - self.lending_limit[i])
            if limited and vertex == root:
                self.ceiling[i] = self.quota[i]
            elif limited and self.borrowing_limit[i] != NO_LIMIT:
                self.ceiling[i] = self.quota[i] + self.borrowing_limit[i]
            quota = self.quota[i] - self.local[i] - lent
            drawn = max(0, self.drawn[i] - self.local[i]) - passed
            if not quota and not drawn:
                return

    def row(self, name: str) -> int:
        found = self.row_of.get(name)
        if found is None:
            raise not_found("queue", [name], self.row_of)
        return found

    def leaf(self, name: str) -> int:
        """The row of a queue that takes workloads."""
        row = self.row(name)
        if self.children[row]:
            below = ", ".join(self.specs[child].name for child in self.children[row][:5])
            raise RefusedError(f"queue '{name}' has queues below it and takes no workloads", f"Use one of: {below}")
        return row

    # -- modes and pools ----------------------------------------------------------------------------------------------

    def set_mode(self, row: int, mode: int) -> None:
        self.mode[row] = mode

    def is_open(self, queue: int) -> bool:
        """True if the queue may start work: it and all above it are open."""
        return all(self.mode[vertex] == QueueMode.OPEN for vertex in self.path[queue])

    def takes_work(self, queue: int) -> bool:
        """True if work may be submitted to the queue: nothing on its path is draining."""
        return all(self.mode[vertex] != QueueMode.DRAINING for vertex in self.path[queue])

    def flavored(self, queue: int) -> bool:
        """True if the pool of a workload of this queue matters to the quota of its tree."""
        return self.path[queue][-1] in self.flavored_trees

    def profile(self, queue: int) -> tuple[tuple[str, int], ...]:
        """(score, weight) by which nodes are chosen for the queue's work; empty: as pools say."""
        return tuple(self.specs[queue].placement.items())

    def flavors_of(self, queue: int) -> tuple[str, ...]:
        """The pools the queue names, best first; empty when it takes any."""
        return tuple(flavor.pool for flavor in self.specs[queue].flavors)

    def named_slot(self, slot: int) -> tuple[str, str]:
        """(pool name, resource name) of a slot; the pool is empty for all pools together."""
        flavor, resource = divmod(slot, WIDTH)
        return self.flavors.names[flavor], RESOURCES[resource]

    # -- what may be charged ------------------------------------------------------------------------------------------

    @staticmethod
    def total_charge(request: Vector) -> Charge:
        """The charge of a request in a tree without flavors."""
        return tuple((slot, quantity) for slot, quantity in enumerate(request) if quantity)

    def charge_of(self, parts: Iterable[tuple[str, Vector]]) -> Charge:
        """The charge of quantities in the pools that hold them."""
        sums: dict[int, int] = {}
        for pool, quantities in parts:
            flavor = self.flavors.index.get(pool, 0) * WIDTH
            for i, quantity in enumerate(quantities):
                if quantity:
                    sums[i] = sums.get(i, 0) + quantity
                    if flavor:
                        sums[flavor + i] = sums.get(flavor + i, 0) + quantity
        return tuple(sorted(sums.items()))

    def lack(self, queue: int, charge: Charge, now_ms: int, *, borrow: bool = True) -> Lack | None:
        """None when the charge may be made now; otherwise the nearest vertex on the path that does not allow it.

        Without `borrow` the queue itself has to stay within its quota; the vertices above allow what they always do.
        """
        limited = self.limited[queue]
        if not limited:
            return None
        drawn, local, ceiling, slots = self.drawn, self.local, self.ceiling, self.slots
        found: Lack | None = None
        for slot, quantity in charge:
            if not limited >> slot & 1:
                continue
            rest = quantity
            for vertex in self.path[queue]:
                if found is not None and vertex == found.vertex:
                    break
                i = vertex * slots + slot
                have = drawn[i]
                if not borrow and vertex == queue:
                    short = have + rest - self.quota[i]
                else:
                    short = have + rest - ceiling[i]
                    if short > 0 and vertex in self.bursts:
                        short = have + rest - self.ceiling_at(vertex, slot, now_ms)
                if short > 0:
                    found = Lack(vertex, slot, short)
                    if vertex == queue:
                        return found
                    break
                if have < local[i]:
                    rest -= local[i] - have
                    if rest <= 0:
                        break
        return found

    def beyond(self, queue: int, charge: Charge) -> Lack | None:
        """The lack when nothing is in use and nothing has burst: such a charge can never start."""
        limited = self.limited[queue]
        for slot, quantity in charge:
            if not limited >> slot & 1:
                continue
            rest = quantity
            for vertex in self.path[queue]:
                most = max(self.ceiling[vertex * self.slots + slot], self._burst_ceiling(vertex, slot))
                if rest > most:
                    return Lack(vertex, slot, rest - most)
                rest -= self.local[vertex * self.slots + slot]
                if rest <= 0:
                    break
        return None

    def available(self, queue: int, slot: int, now_ms: int) -> int:
        """The most that may be charged now in one slot; NO_LIMIT when the tree does not limit it."""
        if not self.limited[queue] >> slot & 1:
            return NO_LIMIT
        most = NO_LIMIT
        for vertex in reversed(self.path[queue]):
            i = vertex * self.slots + slot
            own = max(0, self.local[i] - self.drawn[i])
            room = self.ceiling_at(vertex, slot, now_ms) - self.drawn[i]
            most = max(0, min(room, own + most))
        return most

    def flags_of(self, queue: int, charge: Charge) -> int:
        """The quota taken by a charge that `lack` allows: 0 for the queue's own, BORROWED, or BURST when it passes the
        ceiling of a vertex. Use within the queue's own quota is never a burst, whatever the others do.
        """
        limited = self.limited[queue]
        flags = 0
        for slot, quantity in charge:
            if not limited >> slot & 1:
                continue
            at = queue * self.slots + slot
            if self.drawn[at] + quantity <= self.quota[at]:
                continue
            flags = flags or BORROWED
            rest = quantity
            for vertex in self.path[queue]:
                i = vertex * self.slots + slot
                have = self.drawn[i]
                if have + rest > self.ceiling[i]:
                    return BURST
                rest -= max(0, self.local[i] - have)
                if rest <= 0:
                    break
        return flags

    def reach(self, queue: int, charge: Charge) -> Reach:
        """The slots in which the charge counts: the limited ones; all slots of a tree that limits none, for its shares
        alone.
        """
        limited, slots = self.limited[queue], self.slots
        return tuple(
            (quantity, tuple(vertex * slots + slot for vertex in self.path[queue]))
            for slot, quantity in charge
            if not limited or limited >> slot & 1
        )

    def draw(self, reach: Reach, *, limited: bool) -> int:
        """Add to `drawn` alone what a charge would, and return the flags it would get. REFUSED, with nothing added,
        when a ceiling does not allow it: a burst might still. What is drawn is charged later, or taken back by
        whoever called."""
        drawn, local, ceiling = self.drawn, self.local, self.ceiling
        flags = 0
        if limited:
            for quantity, path in reach:
                rest = quantity
                if drawn[path[0]] + rest > self.quota[path[0]]:
                    flags = BORROWED
                for i in path:
                    have = drawn[i]
                    if have + rest > ceiling[i]:
                        return REFUSED
                    if have < local[i]:
                        rest -= local[i] - have
                        if rest <= 0:
                            break
        for quantity, path in reach:
            rest = quantity
            for i in path:
                have = drawn[i]
                drawn[i] = have + rest
                if have < local[i]:
                    rest -= local[i] - have
                    if rest <= 0:
                        break
        return flags

    def passes_quota(self, reach: Reach) -> bool:
        """True if a vertex that these reach draws more than its quota."""
        return any(self.drawn[i] > self.quota[i] for _, path in reach for i in path)

    # -- charging -----------------------------------------------------------------------------------------------------

    def charge(self, queue: int, charge: Charge, now_ms: int, workloads: int = 1) -> None:
        """Take the quantities on the whole path. Past the ceiling of a vertex whose burst is idle, its burst begins.

        `workloads` is 0 when a workload that is charged already grows.
        """
        if self.accrued_at[queue] != now_ms:
            self._accrue(queue, now_ms)
        self.running[queue] += workloads
        used, drawn, local, ceiling, slots = self.used, self.drawn, self.local, self.ceiling, self.slots
        path = self.path[queue]
        for slot, quantity in charge:
            rest = quantity
            for vertex in path:
                i = vertex * slots + slot
                used[i] += quantity
                if rest:
                    have = drawn[i]
                    drawn[i] = have + rest
                    if have + rest > ceiling[i]:
                        self._begin_burst(vertex, slot, now_ms)
                    if have < local[i]:
                        rest = max(0, rest - local[i] + have)

    def give_back(self, queue: int, charge: Charge, now_ms: int, workloads: int = 1) -> None:
        """Return what `charge` took, once."""
        if self.accrued_at[queue] != now_ms:
            self._accrue(queue, now_ms)
        self.running[queue] -= workloads
        used, drawn, local, slots = self.used, self.drawn, self.local, self.slots
        path = self.path[queue]
        for slot, quantity in charge:
            rest = quantity
            for vertex in path:
                i = vertex * slots + slot
                used[i] -= quantity
                if rest:
                    have = drawn[i]
                    drawn[i] = have - rest
                    if local[i]:
                        rest = min(rest, max(0, have - local[i]))

    def shift(self, queue: int, before: Charge, after: Charge, now_ms: int) -> None:
        """Charge the one instead of the other: the difference alone, because a new charge could begin a burst."""
        change = dict(after)
        for slot, quantity in before:
            change[slot] = change.get(slot, 0) - quantity
        less = tuple((slot, -quantity) for slot, quantity in sorted(change.items()) if quantity < 0)
        more = tuple((slot, quantity) for slot, quantity in sorted(change.items()) if quantity > 0)
        self.give_back(queue, less, now_ms, workloads=0)
        self.charge(queue, more, now_ms, workloads=0)

    def give_back_many(
        self,
        queues: Numbers,
        quantities: Numbers,
        times: Numbers,
    ) -> None:
        """Call `give_back` for each in turn: queue rows, requests in the order of RESOURCES, cell times that ascend.
        For trees without flavors.
        """
        # Averages change from one step of time to the next; within a step, only sums count.
        steps = (times.astype(object if times[-1] >= MAX_SHIFTED else np.int64) << 2 * STEP_BITS) // self.half_life_ms
        moved = np.cumsum(np.diff(steps, prepend=steps[0]) > 0)
        ends = np.append(np.flatnonzero(np.diff(moved)), len(times) - 1)
        for key, sums, count in zip(*summed(moved << 32 | queues, quantities), strict=True):
            charge = tuple((slot, quantity) for slot, quantity in enumerate(sums) if quantity)
            self.give_back(key & 0xFFFFFFFF, charge, int(times[ends[key >> 32]]), count)
        last = dict(zip(queues.tolist(), times.tolist(), strict=True))
        for queue, at_ms in sorted(last.items(), key=lambda entry: entry[1]):
            for vertex in self.path[queue]:
                self.accrued_at[vertex] = at_ms

    @contextmanager
    def trial(self) -> Iterator[None]:
        """A trial: all charges made and given back inside are forgotten at the end."""
        names = ("used", "drawn", "running", "burst_since", "average", "accrued_at")
        kept = {name: getattr(self, name)[:] for name in names}
        try:
            yield
        finally:
            for name, column in kept.items():
                setattr(self, name, column)

    def leaves_short(self, queue: int, charge: Charge, others: Iterable[tuple[int, Charge]], now_ms: int) -> bool:
        """True if a charge would take quota that others, charged after it in turn, count on. Others that have too
        little even without it do not count.
        """
        if not self.limited[queue]:
            return False
        root = self.path[queue][-1]
        counting = [other for other in others if self.path[other[0]][-1] == root]
        if not counting or self._have_plenty(charge, counting):
            return False
        with self.trial():
            served = []
            for other in counting:
                if self.lack(*other, now_ms) is None:
                    self.charge(*other, now_ms)
                    served.append(other)
            for other in served:
                self.give_back(*other, now_ms)
            self.charge(queue, charge, now_ms)
            for other in served:
                if self.lack(*other, now_ms) is not None:
                    return True
                self.charge(*other, now_ms)
        return False

    def counted_on(self, queue: int, charge: Charge) -> list[tuple[int, int, int]]:
        """(index of the draw, slot, most it may be before the charge would pass a ceiling) on the path of the queue."""
        places = [
            (vertex * self.slots + slot, slot, quantity) for slot, quantity in charge for vertex in self.path[queue]
        ]
        return [(i, slot, self.ceiling[i] - more) for i, slot, more in places if self.ceiling[i] != NO_LIMIT]

    def leaves_plenty(self, charge: Charge, counted_on: list[tuple[int, int, int]]) -> bool:
        """True if what is counted on stays possible even if all of the charge came on top there."""
        drawn = self.drawn
        for i, slot, most in counted_on:
            have = drawn[i]
            for other, quantity in charge:
                if other == slot:
                    have += quantity
            if have > most:
                return False
        return True

    def _have_plenty(self, charge: Charge, others: Sequence[tuple[int, Charge]]) -> bool:
        """A quick sufficient condition: the others stay below every ceiling on their paths even if all of the charge
        and of their own came on top.
        """
        drawn, ceiling, slots = self.drawn, self.ceiling, self.slots
        sums = dict(charge)
        for _, more in others:
            for slot, quantity in more:
                sums[slot] = sums.get(slot, 0) + quantity
        return all(
            drawn[vertex * slots + slot] + sums[slot] <= ceiling[vertex * slots + slot]
            for queue, more in others
            for slot, _ in more
            for vertex in self.path[queue]
        )

    # -- bursts -------------------------------------------------------------------------------------------------------

    def ceiling_at(self, vertex: int, slot: int, now_ms: int) -> int:
        """The most the vertex may draw in the slot at that time. In a cool-down that is less than it may hold still."""
        plain = self.ceiling[vertex * self.slots + slot]
        if vertex in self.bursts and self.burst_state(vertex, now_ms) != "cooldown":
            return max(plain, self._burst_ceiling(vertex, slot))
        return plain

    def _burst_ceiling(self, vertex: int, slot: int) -> int:
        """The burst limit is on all use; what is kept for single queues below never reaches the vertex as draw."""
        limit = self.bursts.get(vertex, {}).get(slot, 0)
        i = vertex * self.slots + slot
        return limit - self.subtree_nominal[i] + self.quota[i]

    def burst_state(self, vertex: int, now_ms: int) -> BurstState:
        """Idle until use passes the ceiling; then one window of burst, then one cool-down, then idle again."""
        since, burst = self.burst_since[vertex], self.specs[vertex].burst
        if since < 0 or burst is None or now_ms >= since + burst.window_ms + burst.cooldown_ms:
            return "idle"
        return "burst" if now_ms < since + burst.window_ms else "cooldown"

    def _begin_burst(self, vertex: int, slot: int, now_ms: int) -> None:
        if slot in self.bursts.get(vertex, ()) and self.burst_state(vertex, now_ms) == "idle":
            self.burst_since[vertex] = now_ms

    def burst_excess(self, vertex: int) -> dict[int, int]:
        """Slot -> what a vertex that may burst draws above its ceiling."""
        base = vertex * self.slots
        excess = {slot: self.drawn[base + slot] - self.ceiling[base + slot] for slot in self.bursts.get(vertex, ())}
        return {slot: quantity for slot, quantity in sorted(excess.items()) if quantity > 0}

    def next_burst_change(self, now_ms: int) -> int | None:
        """The next cell time at which a burst window or a cool-down ends."""
        if not self.bursts:
            return None
        ends = []
        for vertex in self.bursts:
            since, burst = self.burst_since[vertex], self.specs[vertex].burst
            if since >= 0:
                ends += [since + burst.window_ms, since + burst.window_ms + burst.cooldown_ms]
        return min((end for end in ends if end > now_ms), default=None)

    # -- figures ------------------------------------------------------------------------------------------------------

    def used_vector(self, vertex: int) -> Vector:
        """The charges of the vertex and all below it, in all pools."""
        a, b, c, d = self.used[vertex * self.slots : vertex * self.slots + WIDTH]
        return (a, b, c, d)

    def nominal_at(self, vertex: int, slot: int) -> int:
        """The vertex's own nominal quota; UNLIMITED when its tree does not limit the slot."""
        return self.nominal[vertex * self.slots + slot] if self.limited[vertex] >> slot & 1 else UNLIMITED

    def guaranteed(self, vertex: int, slot: int) -> int:
        """Its nominal quota and what the children lend; 0 when the tree does not limit the slot."""
        return self.quota[vertex * self.slots + slot]

    def borrowed(self, vertex: int, slot: int) -> int:
        """The draw above the guaranteed part."""
        i = vertex * self.slots + slot
        return max(0, self.drawn[i] - self.quota[i]) if self.limited[vertex] >> slot & 1 else 0

    def anyone_borrows(self) -> bool:
        """True if any vertex draws more than its quota in a limited slot."""
        return any(self.limited) and bool(self.above_quota().any())

    def others_borrow(self, queue: int) -> bool:
        """True if any vertex off the queue's path, in its tree, does."""
        path = self.path[queue]
        if not self.limited[queue] or (len(path) == 1 and not self.children[queue]):
            return False
        above = self.above_quota().any(axis=1) & (self.in_columns.root == path[-1])
        above[list(path)] = False
        return bool(above.any())

    def others_borrow_of(self, queue: int, slots: Iterable[int]) -> bool:
        """True if any vertex of any tree but the queue itself does, in one of these slots."""
        above = self.above_quota()[:, list(slots)]
        above[queue] = False
        return bool(above.any())

    def above_quota(self) -> Mask:
        """For each vertex and slot."""
        above = (view(self.drawn) > view(self.quota)).reshape(-1, self.slots)
        return np.asarray(above & self.in_columns.limited)

    @property
    def in_columns(self) -> TreeColumns:
        """What the specs say of each vertex, as arrays. Not to be changed."""
        if self._columns is None:
            slots = range(self.slots)
            bits = [[mask >> slot & 1 for slot in slots] for mask in self.limited]
            self._columns = TreeColumns(
                np.array(bits, bool).reshape(-1, self.slots),
                np.array([path[-1] for path in self.path], np.int64),
                np.array([spec.min_runtime_ms for spec in self.specs], np.int64),
            )
        return self._columns

    def over(self, vertex: int, now_ms: int) -> Charge:
        """The vertex's draw above its ceiling at that time: its quota was reduced, or its burst window is over."""
        base = vertex * self.slots
        excess = ((slot, self.drawn[base + slot] - self.ceiling_at(vertex, slot, now_ms)) for slot in range(self.slots))
        return tuple((slot, quantity) for slot, quantity in excess if quantity > 0)

    def over_if(self, spec: QueueSpec, now_ms: int) -> dict[int, Charge]:
        """Vertex -> what `over` would say after a change to that spec, where it says anything."""
        changed = self.copy()
        changed.change(spec)
        found = {vertex: changed.over(vertex, now_ms) for vertex in range(len(changed.specs))}
        return {vertex: excess for vertex, excess in found.items() if excess}

    # -- disruptions --------------------------------------------------------------------------------------------------

    def note_disruption(self, queue: int, now_ms: int) -> None:
        """A workload of the queue was preempted."""
        times = self.disruptions[queue]
        del times[: bisect_right(times, now_ms - self.specs[queue].disruption_window_ms)]
        times.append(now_ms)

    def disruptions_left(self, queue: int, now_ms: int) -> int:
        """The number of further preemptions that the queue's limit allows now; NO_LIMIT when it has none."""
        spec: QueueSpec = self.specs[queue]
        if spec.disruptions < 0:
            return NO_LIMIT
        times = self.disruptions[queue]
        recent = len(times) - bisect_right(times, now_ms - spec.disruption_window_ms)
        return max(0, spec.disruptions - recent)

    # -- past use -----------------------------------------------------------------------------------------------------

    def average_use(self, vertex: int, now_ms: int) -> Vector:
        """Average draw over the past, in all pools; a draw counts half as much for every half-life that has passed."""
        gain = self._gain(self.accrued_at[vertex], now_ms)
        past = self.average[vertex * WIDTH : (vertex + 1) * WIDTH]
        draw = self.drawn[vertex * self.slots : vertex * self.slots + WIDTH]
        a, b, c, d = [
            _blend(have, new, gain) // AVERAGE_UNIT if have or new else 0 for have, new in zip(past, draw, strict=True)
        ]
        return (a, b, c, d)

    def _accrue(self, queue: int, now_ms: int) -> None:
        """Count the draw since the last change into the averages of the path, before it changes."""
        average, drawn = self.average, self.drawn
        for vertex in self.path[queue]:
            gain = self._gain(self.accrued_at[vertex], now_ms)
            self.accrued_at[vertex] = now_ms
            if gain:
                base = vertex * self.slots
                for i in range(WIDTH):
                    past, draw = average[vertex * WIDTH + i], drawn[base + i]
                    if past or draw:
                        average[vertex * WIDTH + i] = _blend(past, draw, gain)

    def _gain(self, then_ms: int, now_ms: int) -> int:
        """The weight of the time from then to now against all before it, in 2^-DECAY_BITS: 1 - 2^(-time / half-life).

        Both times are rounded to steps counted from 0, so that many short times weigh as much as one long time.
        """
        half_life = self.half_life_ms
        steps = (now_ms << 2 * STEP_BITS) // half_life - (then_ms << 2 * STEP_BITS) // half_life
        if steps <= 0:
            return 0
        halvings, steps = steps >> 2 * STEP_BITS, steps & (1 << 2 * STEP_BITS) - 1
        kept = _COARSE[steps >> STEP_BITS] * _FINE[steps & (1 << STEP_BITS) - 1] >> DECAY_BITS
        return (1 << DECAY_BITS) - (kept >> halvings)


AVERAGE_UNIT = 2**20
"""Averages are kept in this fraction, so that frequent small changes are not rounded away."""
MAX_AVERAGED = 2**42
"""A larger draw counts as this much in averages, which then fit 64 bits."""
DECAY_BITS = 48
STEP_BITS = 10
"""A half-life is 2^20 steps."""
MAX_SHIFTED = 2 ** (62 - 2 * STEP_BITS)
"""Cell times below fit 64 bits when they are counted in steps."""


def _blend(past: int, draw: int, gain: int) -> int:
    return past + ((min(draw, MAX_AVERAGED) * AVERAGE_UNIT - past) * gain >> DECAY_BITS)


def _powers(root_bits: int) -> tuple[int, ...]:
    """2^(-i / 2^root_bits) in 2^-DECAY_BITS, i < 2^STEP_BITS. By integer roots: the same on every machine."""
    precision = 2 * DECAY_BITS
    root = 1 << precision - 1
    for _ in range(root_bits):
        root = isqrt(root << precision)
    powers, power = [], 1 << precision
    for _ in range(1 << STEP_BITS):
        powers.append(power >> DECAY_BITS)
        power = power * root >> precision
    return tuple(powers)


_COARSE, _FINE = _powers(STEP_BITS), _powers(2 * STEP_BITS)
