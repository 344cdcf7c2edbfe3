"""What runs and what waits in one version of the state, as arrays: who frees room or quota when, and who goes first.

Of a large cell a sample stands for the whole, spread evenly, so that a question costs the same at any size.
"""

from __future__ import annotations

from enum import IntEnum
from math import ceil
from typing import NamedTuple

import numpy as np

from engine.capacity.task_shapes import Shape
from engine.model.columns import Ints, Mask, Numbers, view
from engine.model.specs import RESOURCES, WorkloadState
from engine.state.cell_state import State
from engine.state.queue_tree import NO_LIMIT, WIDTH, below
from engine.state.run_times import Parts, RunTimes, uniforms
from engine.state.workloads import WorkloadClass
from engine.twin import start_line
from engine.twin.start_line import Supply

DRAWS = 5
MAX_RUNNING, MAX_AHEAD, MAX_NODES = 1024, 768, 160
"""Running workloads, waiting workloads and nodes that are looked at one by one; more are sampled."""
CPU, GPU = RESOURCES.index("cpu_milli"), RESOURCES.index("gpu_milli")


class First(IntEnum):
    """Who goes first: the truth lies between nobody and all."""

    NOBODY = 0
    OWN_QUEUE = 1
    """What is ahead in its own queue: by priority, then by age."""
    ALL = 2
    """The same, and in other queues what is of a higher band, or older within its band."""


class Asked(NamedTuple):
    """Work whose start is asked for, submitted or not."""

    workload_class: WorkloadClass
    queue: int
    priority: int
    """Row of its priority class."""
    row: int
    """Its age in the line; beyond all rows for what is not submitted."""


class WaitingLine:
    """What waits: higher bands first, then higher priorities, then older work."""

    def __init__(self, state: State, rows: Ints) -> None:
        """`rows`: ascending."""
        w = state.workloads
        self._bands = np.array(w.priority_band, np.int64)
        _, ranks = np.unique(
            np.stack((self._bands, np.array(w.priority_value, np.int64))).T, axis=0, return_inverse=True
        )
        self._ranks: Numbers = -ranks.ravel().astype(np.int16)
        """By priority class: the highest is the lowest number."""
        # Of so short numbers there is a sort in linear time.
        self.rows: Ints = rows[np.argsort(self._ranks[view(w.priority)[rows]], kind="stable")]
        self.cls: Ints = view(w.cls)[self.rows]
        self._queue, self._priority = view(w.queue)[self.rows], view(w.priority)[self.rows]
        self._asked: Asked | None = None
        self._ahead: dict[First, Ints] = {}
        """Of the last that was asked for."""

    def ahead(self, asked: Asked, first: First) -> Ints:
        """Places in the line of what goes first."""
        if self._asked is not asked:
            self._asked, self._ahead = asked, self._found(asked)
        return self._ahead[first]

    def _found(self, asked: Asked) -> dict[First, Ints]:
        own, older = self._queue == asked.queue, self.rows < asked.row
        ranks, bands = self._ranks[self._priority], self._bands[self._priority]
        rank, band = self._ranks[asked.priority], self._bands[asked.priority]
        in_own = own & ((ranks < rank) | ((ranks == rank) & older))
        elsewhere = ~own & ((bands > band) | ((bands == band) & older))
        return {
            First.NOBODY: self.rows[:0],
            First.OWN_QUEUE: np.flatnonzero(in_own),
            First.ALL: np.flatnonzero(in_own | elsewhere),
        }


class CellFlow:
    def __init__(self, state: State, run_times: RunTimes, now_ms: int, seed: int = 0) -> None:
        """`seed`: of the draws of run times."""
        self.state, self.now_ms = state, now_ms
        self._run_times, self._seed = run_times, seed
        w = state.workloads
        states = view(w.state)
        self._bound: Mask = (states == WorkloadState.RUNNING) | (states == WorkloadState.PLACED)
        self._running: Ints = np.flatnonzero(self._bound)
        self._waiting = WaitingLine(state, np.flatnonzero(states == WorkloadState.QUEUED))
        self._requests = np.array([each.request for each in w.classes], np.int64).reshape(-1, WIDTH)
        self._tasks = np.array([each.tasks for each in w.classes], np.int64)
        self._rooms: dict[Shape, list[Supply]] = {}
        """In tasks of the shape, by draw."""
        self._freed: dict[tuple[int, int], list[Supply]] = {}
        """(vertex, slot) -> what is given back below the vertex, by draw."""
        self._kind_ms: dict[int, Numbers] = {}
        """Kind of waiting work, by queue and class -> its run times, by draw."""

    # -- run times ----------------------------------------------------------------------------------------------------

    def ends_ms(self, rows: Ints) -> Numbers:
        """[draws, rows]: milliseconds until each of these ends, which run."""
        w = self.state.workloads
        all_tasks, tasks = self._tasks[view(w.cls)[rows]], np.maximum(view(w.tasks)[rows], 1)
        rated = view(w.rated)[rows]
        since_ms = np.where(rated >= 0, np.maximum(self.now_ms - rated, 0), 0)
        done = view(w.kept)[rows] + np.maximum(view(w.done)[rows] + since_ms * tasks // all_tasks, 0)
        return np.asarray(np.maximum((self._work(rows, done) - done) * all_tasks // tasks, 1))

    def _typical_ms(self, rows: Ints) -> Numbers:
        """[draws, rows]: the same for many that wait, by queue and class: in every draw some of a kind run short and
        others long."""
        w = self.state.workloads
        kinds, firsts, which = np.unique(
            view(w.queue)[rows].astype(np.int64) * len(w.classes) + view(w.cls)[rows],
            return_index=True,
            return_inverse=True,
        )
        new = np.flatnonzero([kind not in self._kind_ms for kind in kinds.tolist()])
        if len(new):
            self._kind_ms.update(zip(kinds[new].tolist(), self.run_ms(rows[firsts[new]]).T, strict=True))
        each = np.array([self._kind_ms[kind] for kind in kinds.tolist()], np.int64).reshape(-1, DRAWS)
        draws = (np.arange(DRAWS)[:, None] + np.arange(len(rows))) % DRAWS
        return np.asarray(each[which, draws])

    def run_ms(self, rows: Ints) -> Numbers:
        """[draws, rows]: milliseconds that each of these runs once it starts."""
        kept = view(self.state.workloads.kept)[rows].astype(np.int64)
        return np.maximum(self._work(rows, kept) - kept, 1)

    def _work(self, rows: Ints, done: Numbers) -> Numbers:
        """[draws, rows]: the whole work of each, beyond what it has done. The draws of one are spread evenly."""
        own = uniforms(self._seed, [self.state.workloads.ids[row] for row in rows.tolist()])
        shares = (own + np.arange(DRAWS)[:, None] / DRAWS) % 1
        drawn = self._run_times.draw_many(np.tile(rows, DRAWS), shares.ravel(), np.tile(done, DRAWS))
        return drawn.reshape(DRAWS, len(rows))

    # -- room ---------------------------------------------------------------------------------------------------------

    def room_ms(self, asked: Asked, first: First) -> Numbers:
        """[draws]: milliseconds until there is room for it, on the nodes that its main group may use."""
        w = self.state.workloads
        group = main_group(asked.workload_class)
        shape, own = asked.workload_class.shapes[group], asked.workload_class.least[group]
        if shape not in self._rooms:
            self._rooms[shape] = self._room(shape)
        there = np.array([any(shape.pool_set & other.pool_set for other in each.shapes) for each in w.classes], bool)
        rows = self._first(asked, there, first)
        return self._waits(self._rooms[shape], self._with_quota(rows), self._in_tasks(shape), own)

    def _with_quota(self, rows: Ints) -> Ints:
        """Those that do not wait for quota: others do not take room before them."""
        w, tree = self.state.workloads, self.state.queues
        step = ceil(len(rows) / (4 * MAX_AHEAD)) or 1
        known: dict[tuple[int, int], bool] = {}
        kept = []
        for row in rows[::step].tolist():
            kind = (w.queue[row], w.cls[row])
            if kind not in known:
                known[kind] = tree.lack(kind[0], w.class_at(row).charge, self.now_ms) is None
            if known[kind]:
                kept.append(row)
        return np.array(kept, np.int64).repeat(step)

    def _in_tasks(self, shape: Shape) -> Parts:
        """The request of each class in tasks of the shape, by what is scarce for it."""
        if shape.gpu_milli:
            return np.asarray(self._requests[:, GPU] / shape.gpu_milli)
        return np.asarray((self._requests[:, :2] / np.maximum((shape.cpu, shape.memory), 1)).max(axis=1))

    def _room(self, shape: Shape) -> list[Supply]:
        """Tasks of the shape that fit, node by node as work there ends, by draw."""
        capacity, a = self.state.capacity, self.state.allocations
        nodes = np.flatnonzero(capacity.usable_mask(shape))
        if not len(nodes):
            return [start_line.supply(0.0, np.zeros(0), np.zeros(0))] * DRAWS
        sample = nodes[:: ceil(len(nodes) / MAX_NODES)]
        now = capacity.rooms(shape, sample)
        place = np.full(len(capacity.node_ids), -1, np.int64)
        place[sample] = np.arange(len(sample))
        there = np.flatnonzero((place[view(a.node)] >= 0) & (view(a.workload) >= 0))
        there = there[self._bound[view(a.workload)[there]]]
        rows, which = np.unique(view(a.workload)[there], return_inverse=True)
        ends = self.ends_ms(rows)[:, which]
        at = place[view(a.node)[there]]
        freed, free = self._freed_on(shape, there, sample)
        found = []
        for draw in ends:
            order = np.lexsort((draw, at))
            gains = _gained(at[order], freed[order], free, _wants(shape), now)
            found.append(start_line.supply(float(now.sum()), gains, draw[order]).times(len(nodes) / len(sample)))
        return found

    def _freed_on(self, shape: Shape, there: Ints, nodes: Ints) -> tuple[Ints, Ints]:
        """(what each allocation gives back, what each node has free): CPU, memory, milli-GPU."""
        capacity, a, requests = self.state.capacity, self.state.allocations, self.state.requests
        requests.update(self.state.workloads.classes)
        cls = view(self.state.workloads.cls)[view(a.workload)[there]]
        entry = view(requests.first)[cls] + view(a.group)[there]
        each = np.stack([view(column)[entry] for column in requests.by_resource[:3]], axis=1)
        gpu = (
            np.bitwise_count(view(capacity.whole)[nodes]) * np.int64(1000) if shape.gpus else capacity.free_gpu()[nodes]
        )
        free = np.stack([view(capacity.free_cpu)[nodes], view(capacity.free_memory)[nodes], gpu], axis=1)
        return each * view(a.count)[there][:, None], free

    # -- quota --------------------------------------------------------------------------------------------------------

    def quota_ms(self, asked: Asked, first: First) -> Numbers:
        """[draws]: milliseconds until the queue and those above it allow its charge; 0 where none has a limit."""
        tree = self.state.queues
        found = np.zeros(DRAWS, np.int64)
        for slot, quantity in asked.workload_class.charge:
            if not tree.limited[asked.queue] >> slot & 1:
                continue
            rest = quantity
            for vertex in tree.path[asked.queue]:
                i = vertex * tree.slots + slot
                if tree.ceiling[i] < NO_LIMIT:
                    free = tree.ceiling_at(vertex, slot, self.now_ms) - tree.drawn[i]
                    found = np.maximum(found, self._quota_at(asked, vertex, slot, free / rest, rest, first))
                rest -= max(tree.local[i] - tree.drawn[i], 0)
                if rest <= 0:
                    break
        return found

    def _quota_at(self, asked: Asked, vertex: int, slot: int, free: float, rest: int, first: First) -> Numbers:
        """The same at one vertex, by what ends and what waits in the queues below it. `free` in units of `rest`."""
        w = self.state.workloads
        sizes, inside = self._requests[:, slot % WIDTH] / rest, below(self.state.queues, vertex)
        rows = self._first(asked, sizes > 0, first)
        have = self._given_back(vertex, slot)
        units = [Supply(free, one.ends_ms, one.gains / rest) for one in have]
        return self._waits(units, rows[inside[view(w.queue)[rows]]], sizes, 1.0)

    def _given_back(self, vertex: int, slot: int) -> list[Supply]:
        if (vertex, slot) not in self._freed:
            w = self.state.workloads
            inside = below(self.state.queues, vertex)
            rows = self._running[inside[view(w.queue)[self._running]]]
            sample = rows[:: ceil(len(rows) / MAX_RUNNING) or 1]
            sizes = self._requests[view(w.cls)[sample], slot % WIDTH] * (len(rows) / max(len(sample), 1))
            self._freed[vertex, slot] = [start_line.supply(0.0, sizes, ends) for ends in self.ends_ms(sample)]
        return self._freed[vertex, slot]

    # -- the line -----------------------------------------------------------------------------------------------------

    def _first(self, asked: Asked, classes: Mask, first: First) -> Ints:
        """What waits and goes first, of these classes, in its order."""
        line = self._waiting
        ahead = line.ahead(asked, first)
        return line.rows[ahead[classes[line.cls[ahead]]]]

    def _waits(self, have: list[Supply], rows: Ints, sizes: Parts, own: float) -> Numbers:
        """[draws]: the wait behind these rows, by the sizes of their classes."""
        each = sizes[view(self.state.workloads.cls)[rows]]
        if each.sum() + own <= have[0].free:
            return np.zeros(DRAWS, np.int64)
        sample = slice(None, None, ceil(len(rows) / MAX_AHEAD) or 1)
        weight = len(rows) / max(len(rows[sample]), 1)
        runs = self._typical_ms(rows[sample])
        return np.array(
            [
                start_line.wait_ms(one, each[sample] * weight, run_ms, own)
                for one, run_ms in zip(have, runs, strict=True)
            ]
        )

    def last_wait_ms(self, asked: Asked) -> int:
        """The wait of the last that started of its queue and class, else of its queue; 0 where there is none."""
        w = self.state.workloads
        if not w.ids:
            return 0
        started = view(w.started)
        own = np.flatnonzero((view(w.queue) == asked.queue) & (started >= 0) & (view(w.attempts) == 1))
        same = own[view(w.cls)[own] == w.cls[asked.row]] if asked.row < len(w.ids) else own[:0]
        rows = same if len(same) else own
        if not len(rows):
            return 0
        last = int(rows[np.argmax(started[rows])])
        return w.started[last] - w.submitted[last]

    def ahead_in_queue(self, asked: Asked) -> int:
        """The number of workloads ahead in its own queue."""
        return len(self._waiting.ahead(asked, First.OWN_QUEUE))


def main_group(workload_class: WorkloadClass) -> int:
    """The group that asks for most: of devices, then of CPU."""
    return max(
        range(len(workload_class.shapes)),
        key=lambda group: tuple(
            quantity * workload_class.least[group]
            for quantity in (workload_class.shapes[group].gpu_milli, workload_class.shapes[group].cpu)
        ),
    )


def _wants(shape: Shape) -> tuple[int, int, int]:
    return shape.cpu, shape.memory, shape.gpu_milli


def _gained(at: Ints, freed: Ints, free: Ints, wants: tuple[int, int, int], now: Ints) -> Parts:
    """Tasks that more fit after each of these ends, which are in order by node and time. `at`: index of the node in
    `free` and `now`, what it has free and the tasks that fit there now."""
    firsts = np.searchsorted(at, at)
    room = np.full(len(at), np.iinfo(np.int64).max)
    for resource, want in enumerate(wants):
        if want:
            sums = np.cumsum(freed[:, resource])
            sums += free[at, resource] - (sums - freed[:, resource])[firsts]
            np.minimum(room, sums // want, out=room)
    begins = np.arange(len(at)) == firsts
    before = np.where(begins, now[at], np.roll(room, 1))
    return np.asarray(np.maximum(room - before, 0), np.float64)
