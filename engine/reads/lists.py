"""Lists: workloads, nodes, queues, reservations, pools and orders as columns, filtered, sorted and shown a window at a
time.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, get_args

import numpy as np

from engine.elasticity.scaling_report import ready_ms
from engine.model.columns import Numbers, Rank, view, window
from engine.model.details import Burn
from engine.model.errors import SpecError, did_you_mean
from engine.model.list_queries import COLUMNS, Kind, Term
from engine.model.reports import VertexReport
from engine.model.specs import NodeState, PoolSpec, QueueMode, ReservationSpec, WorkloadState
from engine.reads.id_search import WORDS, Texts
from engine.reads.pending_reasons import Explainer
from engine.scheduling.candidate_order import report
from engine.state.cell_state import State
from engine.state.machines import OrderState
from engine.state.pending_work import burns
from engine.state.queue_tree import UNLIMITED, WIDTH, BurstState

Rows = Numbers | slice
ALL = slice(None)
MAX_ONE_BY_ONE = 1_000
"""Rows of which each is looked up by itself."""
_STILL_WAITS = (WorkloadState.QUEUED, WorkloadState.HELD, WorkloadState.SUSPENDED, WorkloadState.WAITING)
_HAS_WAITED = np.array([s in _STILL_WAITS for s in WorkloadState])


class RowSource:
    """Rows of one kind. A column is numeric, coded text (codes into a few names) or plain text.

    Column functions take the rows that are wanted, so that a window costs a window and only filters cost a column.
    `indexes` are of texts by column, where the cell is so large that they are kept.
    """

    size = 0

    def __init__(self) -> None:
        self.numbers: dict[str, Callable[[Rows], Numbers]] = {}
        """Numeric columns; values that do not apply are the column's `absent` number."""
        self.codes: dict[str, Callable[[Rows], tuple[Numbers, list[str]]]] = {}
        """Text columns with few distinct values."""
        self.texts: dict[str, list[str]] = {}
        """Text columns with a value of their own in every row."""
        self.absent: dict[str, int] = {}
        """Numeric column -> the number that means "does not apply"."""
        self.indexes: dict[str, Texts] = {}
        """Text columns that can be searched and sorted quickly."""
        self.hidden: Numbers | None = None
        """Mask of rows that no answer shows; None when there are none."""

    def values(self, name: str, rows: Numbers) -> list[Any]:
        """The column's values at the rows, as an answer carries them."""
        if name in self.texts:
            column = self.texts[name]
            return [column[row] for row in rows.tolist()]
        if name in self.codes:
            coded, names = self.codes[name](rows)
            return [names[i] for i in coded.tolist()]
        numbers = self.numbers[name](rows).tolist()
        missing = self.absent.get(name)
        return numbers if missing is None else [None if n == missing else n for n in numbers]

    def rank(self, name: str, rows: Rows) -> Numbers:
        """Numbers that sort as the column does."""
        if name in self.texts:
            column = self.texts[name]
            chosen = column[rows] if isinstance(rows, slice) else [column[row] for row in rows.tolist()]
            position = {text: i for i, text in enumerate(sorted(set(chosen)))}
            return np.fromiter((position[text] for text in chosen), np.int64, len(chosen))
        if name in self.codes:
            coded, names = self.codes[name](rows)
            order = sorted(range(len(names)), key=names.__getitem__)
            rank = np.empty(len(names), np.int64)
            rank[order] = np.arange(len(names))
            return np.asarray(rank[coded])
        return self.numbers[name](rows)


class WorkloadSource(RowSource):
    """Columns of `COLUMNS["workloads"]`."""

    def __init__(self, state: State, explainer: Explainer, now_ms: int) -> None:
        super().__init__()
        w = state.workloads
        self.size = len(w.ids)
        totals_of = np.array([(c.tasks, *c.request, c.estimate_ms) for c in w.classes], np.int64).reshape(-1, 6)
        totals_of = np.ascontiguousarray(totals_of.T)

        def of_class(i: int) -> Callable[[Rows], Numbers]:
            return lambda rows: np.asarray(totals_of[i].take(view(w.cls)[rows]))

        def waited(rows: Rows) -> Numbers:
            started, ended = view(w.started)[rows], view(w.ended)[rows]
            until = np.where(started >= 0, started, np.where(ended >= 0, ended, now_ms))
            return np.asarray(np.where(_HAS_WAITED[view(w.state)[rows]], now_ms, until) - view(w.submitted)[rows])

        def ran(rows: Rows) -> Numbers:
            started, ended = view(w.started)[rows], view(w.ended)[rows]
            never = (started < 0) | _HAS_WAITED[view(w.state)[rows]]
            return np.asarray(np.where(never, -1, np.where(ended >= 0, ended, now_ms) - started))

        def reason(rows: Rows) -> tuple[Numbers, list[str]]:
            wanted = np.arange(self.size)[rows] if isinstance(rows, slice) else rows
            waits = np.flatnonzero(_HAS_WAITED[view(w.state)[wanted]])
            coded = np.zeros(len(wanted), np.int32)
            codes, tokens = explainer.tokens(wanted[waits])
            coded[waits] = codes + 1
            return coded, ["", *tokens]

        self.texts = {"id": w.ids, "name": w.names}
        self.codes = {
            "state": lambda rows: (view(w.state)[rows], [s.label for s in WorkloadState]),
            "queue": lambda rows: (view(w.queue)[rows], [spec.name for spec in state.queues.specs]),
            "tenant": lambda rows: (view(w.tenant)[rows], w.tenants.names),
            "team": lambda rows: (view(w.team)[rows], w.teams.names),
            "array": lambda rows: (view(w.array)[rows] + 1, ["", *w.array_names.names]),
            "reason": reason,
        }
        self.numbers = {
            "priority": lambda rows: np.array(w.priority_value, np.int64)[view(w.priority)[rows]],
            "tasks": of_class(0),
            "cpu": of_class(1),
            "memory": of_class(2),
            "gpu": of_class(3),
            "estimate": of_class(5),
            "wait": waited,
            "age": lambda rows: now_ms - view(w.submitted)[rows],
            "run": ran,
            "submitted": lambda rows: view(w.submitted)[rows],
            "started": lambda rows: view(w.started)[rows],
            "ended": lambda rows: view(w.ended)[rows],
            "attempts": lambda rows: view(w.attempts)[rows],
            "cost": lambda rows: state.ledger.costs(now_ms)[rows],
            "wasted": lambda rows: view(state.ledger.wasted_whole)[rows],
        }
        self.absent = {"run": -1, "started": -1, "ended": -1}


class NodeSource(RowSource):
    """Columns of `COLUMNS["nodes"]`."""

    def __init__(self, state: State, explainer: Explainer, now_ms: int) -> None:
        super().__init__()
        c = state.capacity
        self.size = len(c.node_ids)
        if len(c.row_of) < self.size:
            self.hidden = view(c.state) == NodeState.REMOVED
        full = np.array([pool.offered.vector() for pool in c.pools], np.int64).reshape(-1, 4)

        def total(i: int) -> Callable[[Rows], Numbers]:
            return lambda rows: np.asarray(full[view(c.pool)[rows], i])

        def of_pool(fact: Callable[[PoolSpec], int]) -> Callable[[Rows], Numbers]:
            facts = np.array([fact(pool) for pool in c.pools], np.int64)
            return lambda rows: np.asarray(facts[view(c.pool)[rows]])

        def memory_used(rows: Rows) -> Numbers:
            found = np.zeros(self.size, np.int64)
            for node in state.usage.on:
                found[node] = state.usage.memory_on(node)
            return np.asarray(found[rows])

        gpu_of_all = cache(lambda: state.capacity.free_gpu())

        def use(rows: Rows) -> Numbers:
            shares = []
            for i, free in enumerate((view(c.free_cpu), view(c.free_memory), gpu_of_all())):
                most = full[view(c.pool)[rows], i]
                shares.append(np.where(most > 0, (most - free[rows]) * 1000 // np.maximum(most, 1), 0))
            return np.asarray(np.max(shares, axis=0))

        def bound(rows: Rows) -> Numbers:
            if isinstance(rows, slice) or len(rows) > MAX_ONE_BY_ONE:
                return np.asarray(state.allocations.workloads_on_each()[rows])
            wanted = rows.tolist()
            return np.fromiter((state.allocations.workloads_on(node) for node in wanted), np.int64, len(wanted))

        self.texts = {"id": c.node_ids}
        self.codes = {
            "state": lambda rows: (view(c.state)[rows], [s.label for s in NodeState]),
            "pool": lambda rows: (view(c.pool)[rows], [pool.name for pool in c.pools]),
            "gpu_model": lambda rows: (view(c.pool)[rows], [pool.gpu_model for pool in c.pools]),
            "zone": lambda rows: (view(c.zone)[rows], c.places.names),
            "block": lambda rows: (view(c.block)[rows], c.places.names),
            "rack": lambda rows: (view(c.rack)[rows], c.places.names),
        }
        self.numbers = {
            "cpu": total(0),
            "memory": total(1),
            "gpu": total(2),
            "cpu_free": lambda rows: view(c.free_cpu)[rows],
            "memory_free": lambda rows: view(c.free_memory)[rows],
            "gpu_free": lambda rows: gpu_of_all()[rows],
            "use": use,
            "workloads": bound,
            "cpu_physical": of_pool(lambda pool: pool.capacity.cpu_milli + pool.reserved.cpu_milli),
            "cpu_allocatable": of_pool(lambda pool: pool.capacity.cpu_milli),
            "memory_physical": of_pool(lambda pool: pool.physical_memory_mib),
            "memory_allocatable": of_pool(lambda pool: pool.capacity.memory_mib),
            "overcommit": of_pool(lambda pool: max([1000, *pool.overcommit.values()])),
            "memory_used": memory_used,
        }


class QueueSource(RowSource):
    """Columns of `COLUMNS["queues"]`. Counts and charges of a queue include all below it."""

    def __init__(self, state: State, explainer: Explainer, now_ms: int) -> None:
        super().__init__()
        q, w = state.queues, state.workloads
        self.size = len(q.specs)

        def up(own: Numbers) -> Numbers:
            """Sums over the queue and everything below it."""
            total = own.astype(np.int64)
            for row in range(self.size - 1, -1, -1):
                if len(q.path[row]) > 1:
                    total[q.path[row][1]] += total[row]
            return total

        def in_states(*states: WorkloadState) -> Callable[[Rows], Numbers]:
            chosen = np.array([s in states for s in WorkloadState])
            return lambda rows: up(np.bincount(view(w.queue)[chosen[view(w.state)]], minlength=self.size))[rows]

        def oldest(rows: Rows) -> Numbers:
            since = np.full(self.size, -1, np.int64)
            for (_, queue, _, _), group in state.pending.groups.items():
                wait = now_ms - w.submitted[group.rows[group.front]]
                for vertex in q.path[queue]:
                    since[vertex] = max(since[vertex], wait)
            return np.asarray(since[rows])

        def state_of(rows: Rows) -> tuple[Numbers, list[str]]:
            strictest = [max(q.mode[vertex] for vertex in path) for path in q.path]
            return np.array(strictest, np.int64)[rows], [mode.label for mode in QueueMode]

        def burst_state(rows: Rows) -> tuple[Numbers, list[str]]:
            states = [q.burst_state(row, now_ms) if q.specs[row].burst else "" for row in range(self.size)]
            names = ["", *get_args(BurstState)]
            return np.array([names.index(state) for state in states], np.int64)[rows], names

        def burst_left(rows: Rows) -> Numbers:
            bursts = [vertex.burst for vertex in reports()]
            left = [-1 if burst is None or burst.state == "idle" else burst.ends_in_ms for burst in bursts]
            return np.array(left, np.int64)[rows]

        @cache
        def reports() -> list[VertexReport]:
            demand = [q.used_vector(row) for row in range(self.size)]
            return report(q, state.capacity.totals, demand, now_ms)

        def reported(figures: str, resource: str) -> Callable[[Rows], Numbers]:
            return lambda rows: np.array([getattr(v, figures).get(resource, 0) for v in reports()], np.int64)[rows]

        def share_of(figure: str) -> Callable[[Rows], Numbers]:
            return lambda rows: np.array([getattr(v, figure) // 1_000_000 for v in reports()], np.int64)[rows]

        used = np.array([q.used_vector(row) for row in range(self.size)], np.int64).reshape(-1, 4)
        nominal = np.array([q.nominal_at(row, slot) for row in range(self.size) for slot in range(WIDTH)], np.int64)
        nominal = nominal.reshape(-1, WIDTH)

        @cache
        def burn_of() -> dict[str, Burn]:
            return {burn.queue: burn for burn in burns(state, now_ms)}

        def burning(window: str) -> Callable[[Rows], Numbers]:
            def column(rows: Rows) -> Numbers:
                found = [burn_of().get(spec.name) for spec in q.specs]
                permille = [None if burn is None else getattr(burn, window).burn_permille for burn in found]
                return np.array([-1 if each is None else each for each in permille], np.int64)[rows]

            return column

        self.texts = {"name": [spec.name for spec in q.specs], "parent": [spec.parent for spec in q.specs]}
        self.codes = {"state": state_of, "burst": burst_state}
        self.numbers = {
            "depth": lambda rows: np.array([len(path) - 1 for path in q.path], np.int64)[rows],
            "queued": in_states(WorkloadState.QUEUED),
            "held": in_states(WorkloadState.HELD),
            "waiting": in_states(WorkloadState.WAITING),
            "suspended": in_states(WorkloadState.SUSPENDED),
            "running": in_states(WorkloadState.PLACED, WorkloadState.RUNNING),
            "oldest_wait": oldest,
            "share": share_of("share_ppb"),
            "past_share": share_of("past_share_ppb"),
            "burst_left": burst_left,
            "weight": lambda rows: np.array([spec.weight for spec in q.specs], np.int64)[rows],
            "burn": burning("hour"),
            "burn_6h": burning("six_hours"),
        }
        for i, name in ((0, "cpu"), (1, "memory"), (2, "gpu")):
            self.numbers[f"{name}_used"] = lambda rows, i=i: used[rows, i]  # type: ignore[misc]
            self.numbers[f"{name}_nominal"] = lambda rows, i=i: nominal[rows, i]  # type: ignore[misc]
            self.absent[f"{name}_nominal"] = UNLIMITED
        for name in ("cpu", "gpu"):
            self.numbers[f"{name}_borrowed"] = reported("borrowed", f"{name}_milli")
            self.numbers[f"{name}_lent"] = reported("lent", f"{name}_milli")
        for name in ("oldest_wait", "burst_left", "burn", "burn_6h"):
            self.absent[name] = -1


class ReservationSource(RowSource):
    """Columns of `COLUMNS["reservations"]`."""

    def __init__(self, state: State, explainer: Explainer, now_ms: int) -> None:
        super().__init__()
        specs: list[ReservationSpec] = [reservation.spec for reservation in state.bookings.reservations]
        self.size = len(specs)
        self.texts = {
            "name": [spec.name for spec in specs],
            "state": ["ahead" if now_ms < spec.start_ms else "active" for spec in specs],
            "queues": [", ".join(spec.queues) for spec in specs],
        }
        self.numbers = {
            "start": lambda rows: np.array([spec.start_ms for spec in specs], np.int64)[rows],
            "end": lambda rows: np.array([spec.end_ms for spec in specs], np.int64)[rows],
            "nodes": lambda rows: np.array([len(spec.nodes) for spec in specs], np.int64)[rows],
        }


_UNSCALED = -(1 << 40)
"""Target of a pool that does not grow by itself, where a priority may be below zero."""


class PoolSource(RowSource):
    """Columns of `COLUMNS["pools"]`."""

    def __init__(self, state: State, explainer: Explainer, now_ms: int) -> None:
        super().__init__()
        c, orders, pools = state.capacity, state.orders, state.capacity.pools
        self.size = len(pools)

        def in_state(wanted: NodeState) -> Callable[[Rows], Numbers]:
            return lambda rows: np.bincount(view(c.pool)[view(c.state) == wanted], minlength=self.size)[rows]

        def scaled(field: str) -> Callable[[Rows], Numbers]:
            values = [_UNSCALED if pool.scaling is None else getattr(pool.scaling, field) for pool in pools]
            return lambda rows: np.array(values, np.int64)[rows]

        def each(values: list[int]) -> Callable[[Rows], Numbers]:
            return lambda rows: np.array(values, np.int64)[rows]

        def summed(of_nodes: Numbers) -> Numbers:
            return np.bincount(view(c.pool), weights=of_nodes, minlength=self.size).astype(np.int64)

        gpu = np.array([pool.offered.gpu_milli for pool in pools], np.int64) * np.array(list(c.pool_nodes), np.int64)
        cpu = np.array([pool.offered.cpu_milli for pool in pools], np.int64) * np.array(list(c.pool_nodes), np.int64)

        def use(rows: Rows) -> Numbers:
            """Permille of the GPU, or of the CPU where there are none."""
            free = np.where(gpu > 0, summed(state.capacity.free_gpu()), summed(view(c.free_cpu)))
            total = np.where(gpu > 0, gpu, cpu)
            return ((total - free) * 1000 // np.maximum(total, 1))[rows]

        scaling = [pool.scaling for pool in pools]
        self.texts = {
            "name": [pool.name for pool in pools],
            "spot": ["spot" if pool.spot else "on-demand" for pool in pools],
            "region": ["" if own is None else own.region for own in scaling],
            "zones": ["" if own is None else ", ".join(own.zones) for own in scaling],
            "machine_type": [pool.machine_type for pool in pools],
        }
        until = [orders.backed_off_ms.get(row, -1) for row in range(self.size)]
        self.numbers = {
            "nodes": each(list(c.pool_nodes)),
            "ready": in_state(NodeState.READY),
            "down": in_state(NodeState.DOWN),
            "use": use,
            "gpu_free": lambda rows: summed(state.capacity.free_gpu())[rows],
            "gpu": lambda rows: gpu[rows],
            "booting": in_state(NodeState.BOOTING),
            "suspect": in_state(NodeState.SUSPECT),
            "ordered": each([orders.due(row) for row in range(self.size)]),
            "price": each([pool.price_microusd_hour for pool in pools]),
            "backed_off": each([at_ms if at_ms > now_ms else -1 for at_ms in until]),
            "failures": each([orders.failures.get(row, 0) for row in range(self.size)]),
        } | {field: scaled(field) for field in ("least", "most", "headroom", "priority")}
        self.absent = {"backed_off": -1} | dict.fromkeys(("least", "most", "headroom", "priority"), _UNSCALED)


class OrderSource(RowSource):
    """Columns of `COLUMNS["orders"]`."""

    def __init__(self, state: State, explainer: Explainer, now_ms: int) -> None:
        super().__init__()
        orders, ids = state.orders, state.workloads.ids
        self.size = len(orders.pool)

        def one_by_one(value: Callable[[int], int]) -> Callable[[Rows], Numbers]:
            return lambda rows: np.array([value(row) for row in np.arange(self.size)[rows].tolist()], np.int64)

        def ready(row: int) -> int:
            at_ms = ready_ms(state, row)
            return -1 if at_ms is None else at_ms

        self.texts = {
            "id": [str(row) for row in range(self.size)],
            "zone": orders.zone,
            "workload": [ids[row] if row >= 0 else "" for row in orders.workload],
        }
        self.codes = {
            "state": lambda rows: (view(orders.state)[rows], [each.label for each in OrderState]),
            "pool": lambda rows: (view(orders.pool)[rows], [pool.name for pool in state.capacity.pools]),
        }
        self.numbers = {
            "nodes": lambda rows: view(orders.wanted)[rows],
            "granted": lambda rows: view(orders.granted)[rows],
            "refused": lambda rows: view(orders.refused)[rows],
            "booting": lambda rows: view(orders.booting)[rows],
            "ordered": lambda rows: view(orders.ordered_ms)[rows],
            "ready": one_by_one(ready),
            "expires": lambda rows: view(orders.expires_ms)[rows],
            "ended": lambda rows: view(orders.ended_ms)[rows],
        }
        self.absent = {"ready": -1, "ended": -1}


SOURCES: dict[Kind, Callable[[State, Explainer, int], RowSource]] = {
    "workloads": WorkloadSource,
    "nodes": NodeSource,
    "queues": QueueSource,
    "reservations": ReservationSource,
    "pools": PoolSource,
    "orders": OrderSource,
}


# -- filter and sort -----------------------------------------------------------------------------------------------


def column_named(kind: Kind, name: str) -> None:
    """Raises SpecError, with the nearest name, when the kind has no such column."""
    known = [column.name for column in COLUMNS[kind]]
    if name not in known:
        remedy = did_you_mean(name, known, f"Use: {', '.join(known)}")
        raise SpecError("column", f"{kind} have no '{name[:40]}'", remedy)


def matching(kind: Kind, source: RowSource, where: tuple[Term, ...]) -> Numbers:
    """Rows that satisfy the terms. Positive terms on one column are alternatives; all else must hold together."""
    keep = np.ones(source.size, bool) if source.hidden is None else ~source.hidden
    either: dict[str, Numbers] = {}
    for term in where:
        if term.column != "text":
            column_named(kind, term.column)
        mask = _mask(source, term)
        if term.op in ("=", "~"):
            known = either.get(term.column)
            either[term.column] = mask if known is None else known | mask
        else:
            keep &= mask
    for mask in either.values():
        keep &= mask
    return np.flatnonzero(keep)


def _mask(source: RowSource, term: Term) -> Numbers:
    name = term.column
    if name == "text":
        masks = [_column_mask(source, column, term) for column in source.texts]
        # "Not anywhere" must hold in every column, "somewhere" in one.
        return np.asarray(np.all(masks, axis=0) if term.op in ("!=", "!~") else np.any(masks, axis=0))
    if name in source.texts:
        return _column_mask(source, name, term)
    if name in source.codes:
        coded, names = source.codes[name](ALL)
        return np.asarray(_text_mask(names, term)[coded]) if names else np.zeros(source.size, bool)
    return _number_mask(source.numbers[name](ALL), source.absent.get(name), term)


def _column_mask(source: RowSource, name: str, term: Term) -> Numbers:
    """The mask of a column with a text of its own in every row."""
    index, values = source.indexes.get(name), source.texts[name]
    if index is None or not index.covers or term.op not in ("=", "!=", "~", "!~"):
        return _text_mask(values, term)
    # What is equal, or fits a pattern, contains each part of it that holds no sign for others.
    part = str(term.value) if term.op in ("~", "!~") else max(re.split(r"[*?]", str(term.value)), key=len)
    found = index.containing(part)
    if term.op in ("=", "!="):
        rows = np.flatnonzero(found)
        found[rows] = _text_mask([values[row] for row in rows.tolist()], Term(name, "=", term.value))
    return ~found if term.op in ("!=", "!~") else found


def _text_mask(values: list[str], term: Term) -> Numbers:
    if term.op not in ("=", "!=", "~", "!~"):
        raise SpecError(f"filter {term.column}", f"text cannot be compared with '{term.op}'", "Use =, !=, ~ or !~")
    wanted = str(term.value)
    if term.op in ("~", "!~"):
        folded = wanted.casefold()
        hits = (folded in value.casefold() for value in values)
    elif "*" in wanted or "?" in wanted:
        pattern = re.compile(fnmatch.translate(wanted.replace("[", "[[]")))
        hits = (pattern.match(value) is not None for value in values)
    else:
        hits = (value == wanted for value in values)
    mask = np.fromiter(hits, bool, len(values))
    return ~mask if term.op in ("!=", "!~") else mask


def _number_mask(numbers: Numbers, absent: int | None, term: Term) -> Numbers:
    if not isinstance(term.value, int):
        raise SpecError(f"filter {term.column}", f"'{str(term.value)[:40]}' is not a number", "Give a whole number")
    value = max(-(2**62), min(term.value, 2**62))
    compare = {
        "=": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
    }.get(term.op)  # fmt: skip
    if compare is None:
        raise SpecError(
            f"filter {term.column}", f"a number cannot be searched with '{term.op}'", "Use =, !=, <, <=, > or >="
        )
    mask = np.asarray(compare(numbers, value))
    return mask if absent is None else mask & (numbers != absent)


def ordered(kind: Kind, source: RowSource, rows: Numbers, sort: tuple[str, ...], start: int, stop: int) -> Numbers:
    """Rows `start` to `stop` of the rows sorted. Ties keep creation order; values that do not apply come last."""
    ranks: list[Rank] = []
    for entry in sort:
        name = entry.removeprefix("-")
        column_named(kind, name)
        ranks += [_of_rows(rows, rank, source.size) for rank in _ranks(source, name, entry.startswith("-"))]
    return np.asarray(rows[window(len(rows), ranks, start, stop)])


def _ranks(source: RowSource, name: str, descending: bool) -> list[Rank]:
    """The sort key of the column."""
    index = source.indexes.get(name)
    if index is not None and index.covers:
        ranks: list[Rank] = [partial(index.words, number) for number in range(WORDS)] + [index.rank]
    else:
        ranks = [partial(source.rank, name)]
    if descending:
        # Of numbers without a sign too, this turns the order around.
        ranks = [partial(_turned, rank) for rank in ranks]
    missing = source.absent.get(name)
    if missing is None:
        return ranks
    return [lambda rows: source.numbers[name](rows) == missing, *ranks]


def _turned(rank: Rank, rows: Rows) -> Numbers:
    return ~rank(rows)


def _of_rows(rows: Numbers, rank: Rank, size: int) -> Rank:
    """The same by positions among the rows."""
    if len(rows) == size:
        return rank
    return lambda positions: rank(rows[positions])
