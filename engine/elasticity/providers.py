"""Providers of machines: their interface to the engine, the check of their reports, and simulated clouds.

A provider reads the open orders of the state (`engine.state.machines`) and reports granted machines, orders it cannot
fill, and machines that have booted. Reports may come late, twice or never, and may be untrue, so they reach the state
only through `check`. A machine that no order covers is refused and given back. No order stays open, and no granted
machine stays booting, beyond the order's time.

In a simulated cloud every request is for one machine. A project may make a limited number of requests in any 100
seconds; those above it are refused. A zone has a limited stock at a time, or none: then it answers some seconds later
that it is out of stock. A granted machine boots and calls the head node, which takes a limited number of calls per
second and drops the others. Spot machines may be taken back at any time. The clouds know nothing of the machines' use,
and all chance comes from the seed.
"""

from __future__ import annotations

import math
import random
from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from engine.model import events as ev
from engine.model.columns import view
from engine.model.errors import NotFoundError, SpecError
from engine.model.quantities import counted, lognormal_ms
from engine.model.specs import (
    HOUR_MS,
    NodeSpec,
    NodeState,
    PoolSpec,
    Resources,
    ScalingSpec,
    Spec,
    check_id,
    check_quantity,
)
from engine.placement.node_choice import could_stand
from engine.state.cell_state import State
from engine.state.machines import OrderState
from engine.state.workloads import NONE

WINDOW_MS = 100_000
"""Quotas of requests are counted over so long, as Google Cloud did in 2019."""
ANSWER_MS = (1_000, 4_000)
"""A request is granted or refused for lack of stock after this long."""


class ZoneSpec(Spec, frozen=True, kw_only=True):
    """Machines of one type in one zone."""

    name: str
    region: str = ""
    stock: tuple[tuple[int, int], ...]
    """(cell ms, most machines that are ours from then on) in order of time; linear between, none before the first."""
    boot_ms: tuple[int, int] = (40_000, 100_000)
    """Median and 95th percentile of the time from grant to the call to the head node; lognormal."""
    taken_permille_hour: int = 0
    """Chance of a spot machine to be taken back within an hour."""


class ProjectSpec(Spec, frozen=True, kw_only=True):
    """A project: requests are counted against its quota."""

    name: str
    requests_per_100_s: int
    zones: tuple[ZoneSpec, ...]


class CloudSpec(Spec, frozen=True, kw_only=True):
    projects: tuple[ProjectSpec, ...]
    head_calls_per_s: int
    """Calls of new machines that the head node takes in one second."""


def check_cloud(spec: CloudSpec) -> None:
    """Raises SpecError naming the field."""
    check_quantity(spec.head_calls_per_s, "head_calls_per_s", least=1)
    for i, project in enumerate(spec.projects):
        check_id(project.name, f"projects[{i}].name")
        check_quantity(project.requests_per_100_s, f"projects[{i}].requests_per_100_s", least=1)
        for j, zone in enumerate(project.zones):
            where = f"projects[{i}].zones[{j}]"
            check_id(zone.name, f"{where}.name")
            check_quantity(zone.taken_permille_hour, f"{where}.taken_permille_hour", most=999)
            check_quantity(zone.boot_ms[0], f"{where}.boot_ms[0]", least=1)
            check_quantity(zone.boot_ms[1], f"{where}.boot_ms[1]", least=zone.boot_ms[0])
            for k, (at_ms, machines) in enumerate(zone.stock):
                check_quantity(at_ms, f"{where}.stock[{k}][0]", least=zone.stock[k - 1][0] if k else 0)
                check_quantity(machines, f"{where}.stock[{k}][1]")


class ProviderSignal(IntEnum):
    """A provider's report on one request or machine."""

    GRANTED = 0
    OUT_OF_STOCK = 1
    CALLED = 2
    """It has booted, and the head node has taken its call."""
    DROPPED = 3
    """It has booted, and the head node dropped its call: it costs money and is of no use."""
    TAKEN = 4
    """It is gone."""


class CloudReport(NamedTuple):
    at_ms: int
    machine: int
    """Number of the request, which is that of the machine if it is granted."""
    zone: int
    """Index into `SimulatedCloud.zones`."""
    signal: ProviderSignal


class SimulatedCloud:
    """Providers and the head node, over cell time."""

    def __init__(self, spec: CloudSpec, seed: int = 0) -> None:
        """Raises SpecError for a spec that makes no sense."""
        check_cloud(spec)
        self.spec = spec
        self.zones = [zone for project in spec.projects for zone in project.zones]
        self.project_of = [i for i, project in enumerate(spec.projects) for _ in project.zones]
        """By zone: index of its project."""
        self.held = [0] * len(self.zones)
        """Machines granted and not gone, by zone."""
        self.over_quota = 0
        """Requests that were refused because the project had made too many."""
        self._random = random.Random(f"cloud {seed}")
        self._asked: list[deque[tuple[int, int]]] = [deque() for _ in spec.projects]
        """(cell ms, requests) of the last 100 seconds, by project."""
        self._in_window = [0] * len(spec.projects)
        self._next = 0
        self._due: list[CloudReport] = []
        """Heap of what is to happen; calls are answered when their second comes."""
        self._calls: Counter[int] = Counter()
        """Calls that the head node has taken, by second. Only of late."""
        self._gone: set[int] = set()
        """Machines given back that have something due yet."""

    def request(self, zone: int, count: int, now_ms: int) -> range:
        """Ask for so many machines. The numbers of those requests that count; the others were over the quota."""
        allowed = self._count_requests(zone, count, now_ms)
        first = self._next
        self._next += allowed
        for machine in range(first, self._next):
            at_ms = now_ms + self._random.randint(*ANSWER_MS)
            heappush(self._due, CloudReport(at_ms, machine, zone, ProviderSignal.GRANTED))
        return range(first, self._next)

    def _count_requests(self, zone: int, count: int, now_ms: int) -> int:
        """The number of these requests within the quota of the zone's project."""
        project = self.project_of[zone]
        asked, limit = self._asked[project], self.spec.projects[project].requests_per_100_s
        while asked and asked[0][0] <= now_ms - WINDOW_MS:
            self._in_window[project] -= asked.popleft()[1]
        allowed = min(count, limit - self._in_window[project])
        self.over_quota += count - allowed
        if allowed:
            asked.append((now_ms, allowed))
            self._in_window[project] += allowed
        return allowed

    def give_back(self, zone: int, machines: Iterable[int], now_ms: int) -> int:
        """End machines that were granted: what was due of them does not happen. Each is a request too; returns how many
        of them, from the first on, were within the quota."""
        wanted = list(machines)
        done = self._count_requests(zone, len(wanted), now_ms)
        for machine in wanted[:done]:
            if not 0 <= machine < self._next:
                raise NotFoundError(f"there is no machine {machine}", "Give the number of a request that was granted")
            if machine not in self._gone:
                self._gone.add(machine)
                self.held[zone] -= 1
        return done

    def next_due(self) -> int | None:
        """Cell time of the next report; None when nothing is going on."""
        return self._due[0].at_ms if self._due else None

    def take_reports(self, until_ms: int) -> list[CloudReport]:
        """The reports up to the cell time, in order."""
        reports = []
        while self._due and self._due[0].at_ms <= until_ms:
            due = heappop(self._due)
            if due.machine in self._gone:
                self._gone.discard(due.machine)
                continue
            if due.signal == ProviderSignal.GRANTED:
                reports.append(self._grant(due))
            elif due.signal == ProviderSignal.CALLED:
                reports.append(self._call(due))
            else:
                self.held[due.zone] -= 1
                reports.append(due)
        return reports

    def _grant(self, due: CloudReport) -> CloudReport:
        zone = self.zones[due.zone]
        if self.held[due.zone] >= stock_at(zone, due.at_ms):
            return due._replace(signal=ProviderSignal.OUT_OF_STOCK)
        self.held[due.zone] += 1
        boot_ms = lognormal_ms(self._random, *zone.boot_ms) + 1
        heappush(self._due, CloudReport(due.at_ms + boot_ms, due.machine, due.zone, ProviderSignal.CALLED))
        return due

    def _call(self, due: CloudReport) -> CloudReport:
        second = due.at_ms // 1000
        if self._calls[second] >= self.spec.head_calls_per_s:
            return due._replace(signal=ProviderSignal.DROPPED)
        if len(self._calls) > 1000:
            self._calls = Counter({second: self._calls[second]})
        self._calls[second] += 1
        chance = self.zones[due.zone].taken_permille_hour / 1000
        if chance:
            lasts_ms = int(self._random.expovariate(-math.log1p(-chance) / HOUR_MS)) + 1
            heappush(self._due, CloudReport(due.at_ms + lasts_ms, due.machine, due.zone, ProviderSignal.TAKEN))
        return due


def stock_at(zone: ZoneSpec | ScalingSpec, at_ms: int) -> int:
    """Most machines of the zone that are ours at the time."""
    after = bisect_right(zone.stock, at_ms, key=lambda point: point[0])
    if not after:
        return 0
    begin_ms, begin = zone.stock[after - 1]
    if after == len(zone.stock):
        return begin
    end_ms, end = zone.stock[after]
    return begin + (end - begin) * (at_ms - begin_ms) // (end_ms - begin_ms)


HEARD_EVERY_MS = 1000
"""Machines that have booted call at the full second, so that a thousand of them are not a thousand events."""
MAX_NAME = 100
"""Characters of a pool's name that names of its machines begin with."""


class Machine(msgspec.Struct, frozen=True, array_like=True):
    """A machine as its provider describes it. Its name is the provider's, and becomes the node's id."""

    name: str
    pool: str
    region: str
    zone: str
    capacity: Resources


class MachinesGranted(msgspec.Struct, frozen=True, array_like=True):
    """Machines for an order: they cost money from now on, and boot."""

    order: int
    machines: tuple[Machine, ...]


class OutOfStock(msgspec.Struct, frozen=True, array_like=True):
    """The provider has no more machines for the order."""

    order: int


class MachinesBooted(msgspec.Struct, frozen=True, array_like=True):
    """Machines that have called."""

    machines: tuple[Machine, ...]


Report = MachinesGranted | OutOfStock | MachinesBooted


class Provider(Protocol):
    """Delivers machines. Called by the engine alone, on its thread. It finds what is asked of it in the state: open
    orders are to be answered, nodes that are removed are to be ended. It never changes the state, and after a restart
    it is made anew."""

    def next_report_ms(self) -> int | None:
        """Cell time of the earliest report not taken yet, as far as it is known; None when there is none."""
        ...

    def take_reports(self, until_ms: int) -> list[Report]:
        """Reports made up to the cell time, each given once, in order."""
        ...

    def give_back(self, names: Iterable[str]) -> None:
        """End machines that were reported and that the engine did not order so."""
        ...


# -- the check of reports ---------------------------------------------------------------------------------------------


def check(state: State, report: Report, now_ms: int) -> tuple[list[ev.AnyEvent], list[str]]:
    """The events of a report, and the names of machines to give back. A report without news has no events."""
    if isinstance(report, MachinesGranted):
        return _granted(state, report, now_ms)
    if isinstance(report, MachinesBooted):
        return _booted(state, report)
    if not _is_open(state, report.order):
        return [], []
    return [ev.OrderEnded(report.order, OrderState.REFUSED), *failed(state, report.order, now_ms)], []


def _is_open(state: State, order: int) -> bool:
    return 0 <= order < len(state.orders.state) and state.orders.state[order] == OrderState.OPEN


def _granted(state: State, report: MachinesGranted, now_ms: int) -> tuple[list[ev.AnyEvent], list[str]]:
    orders, order = state.orders, report.order
    known = 0 <= order < len(orders.state)
    new = [m for m in report.machines if not (known and _is_of(state, m.name, order))]
    if not new:
        return [], []
    faults: dict[str, list[str]] = {}
    """Reason -> names."""
    nodes: dict[str, NodeSpec] = {}
    if not known or not _is_open(state, order):
        why = f"order {order} is {OrderState(orders.state[order]).label}" if known else "nobody ordered it"
        faults[why] = [machine.name for machine in new]
    else:
        left = orders.wanted[order] - orders.granted[order]
        pool = orders.pool[order]
        most = could_stand(state.capacity.pools[pool])
        for machine in new:
            why = _fault(state, order, machine)
            if not why and state.capacity.pool_nodes[pool] + len(nodes) >= most:
                why = f"its pool may have {counted(most, 'node')} at most"
            if not why and machine.name in nodes:
                why = "its name is given to another"
            if not why and len(nodes) == left:
                why = f"order {order} is for {orders.wanted[order]}"
            if why:
                faults.setdefault(why, []).append(machine.name)
            else:
                nodes[machine.name] = NodeSpec(
                    id=machine.name, pool=machine.pool, region=machine.region, zone=machine.zone
                )
        if orders.workload[order] != NONE and len(nodes) < left:
            if nodes:
                faults.setdefault(f"a gang needs all {left} of the order", []).extend(nodes)
            nodes = {}
    events: list[ev.AnyEvent] = []
    if nodes:
        events.append(ev.NodesGranted(order, tuple(nodes.values())))
        if len(nodes) == orders.wanted[order] - orders.granted[order]:
            events.append(ev.OrderEnded(order, OrderState.FILLED))
    events += _refusals({(order if known else NONE, why): names for why, names in faults.items()})
    if faults and known and _is_open(state, order) and len(nodes) < orders.wanted[order] - orders.granted[order]:
        # What it delivers is not what was ordered: others are asked.
        events += [ev.OrderEnded(order, OrderState.REFUSED), *failed(state, order, now_ms)]
    return events, [name for names in faults.values() for name in names]


def _refusals(faults: dict[tuple[int, str], list[str]]) -> list[ev.AnyEvent]:
    """By order and reason: names of machines."""
    return [
        ev.MachinesRefused(order, tuple(_shown(name) for name in names), why) for (order, why), names in faults.items()
    ]


def _is_of(state: State, name: str, order: int) -> bool:
    """True if that machine was granted for the order already: the report is a repetition."""
    node = state.capacity.row_of.get(name)
    return node is not None and state.capacity.order[node] == order


def _fault(state: State, order: int, machine: Machine) -> str:
    """The fault of a machine granted for an open order; empty when there is none."""
    pool: PoolSpec = state.capacity.pools[state.orders.pool[order]]
    try:
        check_id(machine.name, "machine")
    except SpecError:
        return "its name is not a valid id"
    if machine.name in state.capacity.row_of:
        return "a node of that name already exists"
    if machine.pool != pool.name:
        return f"it is of pool {_shown(machine.pool)}, not {pool.name}"
    if machine.zone != state.orders.zone[order]:
        return f"it is in zone {_shown(machine.zone) or '-'}, not {state.orders.zone[order] or '-'}"
    if machine.region != (pool.scaling.region if pool.scaling else ""):
        return f"it is in region {_shown(machine.region) or '-'}"
    return _other_size(machine, pool)


def _other_size(machine: Machine, pool: PoolSpec) -> str:
    """The difference in size from nodes of the pool; empty when there is none."""
    if machine.capacity == pool.capacity:
        return ""
    return f"it is another machine than those of {pool.name}"


def _booted(state: State, report: MachinesBooted) -> tuple[list[ev.AnyEvent], list[str]]:
    capacity = state.capacity
    ready: dict[int, None] = {}
    gone: dict[int, None] = {}
    faults: dict[tuple[int, str], list[str]] = {}
    for machine in report.machines:
        node = capacity.row_of.get(machine.name)
        order = NONE if node is None else capacity.order[node]
        if node is None or order == NONE:
            faults.setdefault((NONE, "nobody ordered it"), []).append(machine.name)
        elif capacity.state[node] == NodeState.BOOTING and node not in ready and node not in gone:
            pool = capacity.pools[capacity.pool[node]]
            why = _other_size(machine, pool) if machine.pool == pool.name else f"it is not of pool {pool.name}"
            if why:
                gone[node] = None
                faults.setdefault((order, why), []).append(machine.name)
            else:
                ready[node] = None
    events: list[ev.AnyEvent] = []
    if ready:
        events.append(ev.NodesChanged(array("i", ready).tobytes(), NodeState.READY))
        events += _delivered(state, list(ready))
    if gone:
        events.append(ev.NodesChanged(array("i", gone).tobytes(), NodeState.REMOVED))
    return events + _refusals(faults), [name for names in faults.values() for name in names]


def _shown(name: str) -> str:
    """A provider's word, safe to keep and to show."""
    return name[:MAX_NAME].encode("unicode_escape").decode()


def _delivered(state: State, nodes: list[int]) -> list[ev.AnyEvent]:
    """Pools that had failed deliver again: machines of a filled order boot, and their time of rest is over."""
    orders = state.orders
    pools = {
        state.capacity.pool[node] for node in nodes if orders.state[state.capacity.order[node]] == OrderState.FILLED
    }
    return [
        ev.BackedOff(pool, 0)
        for pool in sorted(pools)
        if pool in orders.failures and orders.backed_off_ms.get(pool, 0) <= state.now_ms
    ]


def failed(state: State, order: int, now_ms: int) -> list[ev.AnyEvent]:
    """The pool is left alone for a while because of this order: doubling each time in a row, once every one of its
    zones has failed since it was left alone last."""
    orders, pool = state.orders, state.orders.pool[order]
    scaling: ScalingSpec | None = state.capacity.pools[pool].scaling
    since_ms = orders.backed_off_ms.get(pool, 0)
    tried = {orders.zone[order]}
    for row in range(order - 1, -1, -1):
        if orders.pool[row] == pool and orders.state[row] != OrderState.OPEN:
            if orders.state[row] != OrderState.REFUSED or orders.ordered_ms[row] < since_ms:
                break
            tried.add(orders.zone[row])
    return _back_off(state, pool, now_ms) if scaling is None or tried.issuperset(scaling.zones) else []


def expired(state: State, order: int, now_ms: int) -> list[ev.AnyEvent]:
    """The order's time is over: what has not been granted is not wanted any more, and what has not booted goes."""
    capacity = state.capacity
    late = np.flatnonzero((view(capacity.order) == order) & (view(capacity.state) == NodeState.BOOTING))
    is_open = _is_open(state, order)
    if not is_open and not len(late):
        return []
    events: list[ev.AnyEvent] = [ev.OrderEnded(order, OrderState.CANCELLED)] if is_open else []
    if len(late):
        events.append(ev.NodesChanged(late.astype(np.int32).tobytes(), NodeState.REMOVED))
    return events + _back_off(state, state.orders.pool[order], now_ms)


def _back_off(state: State, pool: int, now_ms: int) -> list[ev.AnyEvent]:
    """Leave the pool alone, unless it is already: twice as long each time in a row."""
    orders, settings = state.orders, state.settings.autoscaling
    pause_ms = min(settings.back_off_ms << min(orders.failures.get(pool, 0), 20), settings.most_back_off_ms)
    return [ev.BackedOff(pool, now_ms + pause_ms)] if pause_ms and orders.backed_off_ms.get(pool, 0) <= now_ms else []


# -- the controller ---------------------------------------------------------------------------------------------------


class Provisioning:
    """Takes a provider's reports, and ends orders whose time is over."""

    def __init__(self, state: State, provider: Provider, emit: Callable[[ev.AnyEvent], None]) -> None:
        self._state = state
        self._provider = provider
        self._emit = emit
        self._seen = len(state.orders.pool)
        """Orders looked at."""
        ends = enumerate(state.orders.expires_ms)
        self._ends = [(end_ms, row) for row, end_ms in ends if state.orders.matters(row)]
        """Heap of (cell ms at which its time is over, order)."""
        heapify(self._ends)

    def next_ms(self, now_ms: int) -> int | None:
        orders = self._state.orders
        if self._seen == len(orders.expires_ms) == 0:
            return None
        for row in range(self._seen, len(orders.expires_ms)):
            heappush(self._ends, (orders.expires_ms[row], row))
        self._seen = len(orders.expires_ms)
        while self._ends and not orders.matters(self._ends[0][1]):
            heappop(self._ends)
        report_ms = self._provider.next_report_ms()
        end_ms = self._ends[0][0] if self._ends else None
        if report_ms is None or end_ms is None:
            return end_ms if report_ms is None else report_ms
        return min(report_ms, end_ms)

    def act(self, now_ms: int) -> None:
        for report in self._provider.take_reports(now_ms):
            events, names = check(self._state, report, now_ms)
            for event in events:
                self._emit(event)
            if names:
                self._provider.give_back(names)
        while self._ends and self._ends[0][0] <= now_ms:
            _, order = heappop(self._ends)
            for event in expired(self._state, order, now_ms):
                self._emit(event)


# -- the simulated provider -------------------------------------------------------------------------------------------


class ProviderFaults(msgspec.Struct, frozen=True, kw_only=True):
    """False reports of the simulated provider. Rates are per thousand, drawn for every order or machine on its own.
    Raises SpecError.
    """

    silent: int = 0
    """Machines that are granted and never boot."""
    twice: int = 0
    """Machines that boot twice: under their own name, or as another that nobody ordered."""
    extra: int = 0
    """Orders for which one machine more is granted than was asked for."""
    other: int = 0
    """Machines that are something else: as granted, or only once they have booted."""
    late: int = 0
    """Orders that are answered only after they were cancelled."""
    duplicated: int = 0
    """Answers that come twice."""

    def __post_init__(self) -> None:
        for rate in self.__struct_fields__:
            check_quantity(getattr(self, rate), f"provider_faults.{rate}", most=1000)


class _Due(IntEnum):
    ANSWER = 0
    BOOT = 1
    ANSWER_AGAIN = 2
    BOOT_AGAIN = 3


class SimulatedProvider(Provider):
    """Grants what the stock of the pool allows, a few seconds after the order; machines boot after a time drawn for
    each. What it says, and when, is a function of the seed and the state, so it goes on alike after a restart."""

    def __init__(self, state: State, seed: int, faults: ProviderFaults | None = None) -> None:
        self._state = state
        self._seed = seed
        self._faults = faults or ProviderFaults()
        self._orders_seen = 0
        self._nodes_seen = 0
        self._due: list[tuple[int, int, int]] = []
        """Heap of (cell ms, what, row of the order or node)."""
        self._look(beyond_ms=state.now_ms)

    def next_report_ms(self) -> int | None:
        self._look()
        return self._due[0][0] if self._due else None

    def give_back(self, names: Iterable[str]) -> None:
        """Give back machines that never became nodes, at no cost."""

    def take_reports(self, until_ms: int) -> list[Report]:
        self._look()
        reports: list[Report] = []
        booted: list[Machine] = []
        answered: list[tuple[int, int]] = []
        most = self._state.settings.autoscaling.calls_per_s
        heard: dict[int, int] = {}
        """Calls that were taken, by moment: all come at full seconds."""
        while self._due and self._due[0][0] <= until_ms:
            at_ms, what, row = heappop(self._due)
            if what in (_Due.BOOT, _Due.BOOT_AGAIN):
                calls = self._calls(row, again=what == _Due.BOOT_AGAIN)
                taken_now = heard.get(at_ms, 0)
                heard[at_ms] = taken_now + len(calls)
                if not most or taken_now < most:
                    booted += calls
            else:
                answered.append((row, what))
        taken: dict[tuple[int, str], int] = {}
        """Machines granted just now, by pool and zone."""
        for row, what in answered:
            reports += self._answer(row, taken, again=what == _Due.ANSWER_AGAIN)
        if booted:
            reports.append(MachinesBooted(tuple(booted)))
        return reports

    # -- when ---------------------------------------------------------------------------------------------------------

    def _look(self, beyond_ms: int = -1) -> None:
        """Enter what is to come of new orders and nodes. What is repeated counts only where it lies beyond that
        time."""
        orders, capacity = self._state.orders, self._state.capacity
        first, self._orders_seen = self._orders_seen, len(orders.state)
        liar = self._faults != ProviderFaults()
        for row in range(first, self._orders_seen):
            is_open = orders.state[row] == OrderState.OPEN
            if not (is_open or liar):
                continue
            at_ms = orders.ordered_ms[row] + self._draw(row, "answer").randint(*ANSWER_MS)
            late = self._lies(row, "late", self._faults.late)
            if late:
                at_ms += max(orders.expires_ms[row] - orders.ordered_ms[row], 0)
            if is_open or (late and at_ms > beyond_ms):
                heappush(self._due, (at_ms, _Due.ANSWER, row))
            if self._lies(row, "duplicated", self._faults.duplicated):
                at_ms += self._draw(row, "again").randint(*ANSWER_MS)
                if at_ms > beyond_ms:
                    heappush(self._due, (at_ms, _Due.ANSWER_AGAIN, row))
        first, self._nodes_seen = self._nodes_seen, len(capacity.node_ids)
        if first == self._nodes_seen:
            return
        ours = view(capacity.order)[first:] >= 0
        if not liar:
            ours &= view(capacity.state)[first:] == NodeState.BOOTING
        for node in (np.flatnonzero(ours) + first).tolist():
            self._expect(node, beyond_ms)

    def _expect(self, node: int, beyond_ms: int) -> None:
        """Enter when the machine calls, if it ever does."""
        capacity = self._state.capacity
        name = capacity.node_ids[node]
        at_ms = capacity.born[node] + self._boot_ms(node)
        # One whose call was lost does not call again.
        lost = self._state.settings.autoscaling.calls_per_s > 0 and at_ms <= beyond_ms
        booting = capacity.state[node] == NodeState.BOOTING and not lost
        if booting and not self._lies(name, "silent", self._faults.silent):
            heappush(self._due, (at_ms, _Due.BOOT, node))
        if self._lies(name, "twice", self._faults.twice) and at_ms + HEARD_EVERY_MS > beyond_ms:
            heappush(self._due, (at_ms + HEARD_EVERY_MS, _Due.BOOT_AGAIN, node))

    def _boot_ms(self, node: int) -> int:
        """Time from the grant to the full second at which its call is heard."""
        capacity = self._state.capacity
        scaling = capacity.pools[capacity.pool[node]].scaling
        median, p95 = ScalingSpec(most=0).boot_ms if scaling is None else scaling.boot_ms
        drawn = self._draw(capacity.node_ids[node], "boot")
        at_ms = capacity.born[node] + lognormal_ms(drawn, median, p95)
        return (at_ms // HEARD_EVERY_MS + 1) * HEARD_EVERY_MS - capacity.born[node]

    def _draw(self, subject: int | str, what: str) -> random.Random:
        return random.Random(f"{self._seed}/{subject}/{what}")

    def _lies(self, subject: int | str, what: str, permille: int) -> bool:
        return permille > 0 and self._draw(subject, what).randrange(1000) < permille

    # -- what ---------------------------------------------------------------------------------------------------------

    def _answer(self, order: int, taken: dict[tuple[int, str], int], *, again: bool) -> list[Report]:
        """Answer an order. The provider has heard of its cancellation, unless it lies."""
        state, orders = self._state, self._state.orders
        pool_row, zone = orders.pool[order], orders.zone[order]
        late = self._lies(order, "late", self._faults.late)
        if again and orders.granted[order]:
            granted = np.flatnonzero(view(state.capacity.order) == order).tolist()
            return [
                MachinesGranted(
                    order, tuple(self._machine(state.capacity.node_ids[node], pool_row) for node in granted)
                )
            ]
        if orders.state[order] != OrderState.OPEN and not late:
            return []
        wanted = orders.wanted[order] - orders.granted[order]
        scaling = state.capacity.pools[pool_row].scaling
        count = wanted
        if scaling is None:
            count = 0
        elif scaling.stock:
            ours = self._ours(pool_row, zone) + taken.get((pool_row, zone), 0)
            count = max(0, min(wanted, stock_at(scaling, state.now_ms) - ours))
        if orders.workload[order] != NONE and count < wanted:
            count = 0
        taken[pool_row, zone] = taken.get((pool_row, zone), 0) + count
        reports: list[Report] = []
        if count:
            more = int(self._lies(order, "extra", self._faults.extra))
            names = self._new_names(order, count + more)
            reports.append(MachinesGranted(order, tuple(self._granted(name, pool_row, zone) for name in names)))
        if count < wanted:
            reports.append(OutOfStock(order))
        return reports

    def _ours(self, pool: int, zone: str) -> int:
        """Machines of the pool in the zone that are there."""
        c = self._state.capacity
        place = c.places.index.get(zone, NONE)
        there = (view(c.pool) == pool) & (view(c.zone) == place) & (view(c.state) != NodeState.REMOVED)
        return int(np.count_nonzero(there))

    def _new_names(self, order: int, count: int) -> list[str]:
        c = self._state.capacity
        first = f"{c.pools[self._state.orders.pool[order]].name[:MAX_NAME]}-{order}"
        names: list[str] = []
        number = 0
        while len(names) < count:
            number += 1
            if f"{first}-{number}" not in c.row_of:
                names.append(f"{first}-{number}")
        return names

    def _granted(self, name: str, pool: int, zone: str) -> Machine:
        """The provider's first report on a machine that it grants."""
        machine = self._machine(name, pool, zone)
        if self._lies(name, "other", self._faults.other) and self._draw(name, "seen").random() < 0.5:
            return _something_else(machine)
        return machine

    def _calls(self, node: int, *, again: bool) -> list[Machine]:
        """The machine's call, unless it is gone."""
        capacity = self._state.capacity
        if capacity.state[node] == NodeState.REMOVED:
            return []
        name = capacity.node_ids[node]
        machine = self._machine(name, capacity.pool[node], capacity.places.names[capacity.zone[node]])
        if again and self._draw(name, "stray").random() < 0.5:
            return [msgspec.structs.replace(machine, name=f"{name}-again")]
        return [_something_else(machine)] if self._lies(name, "other", self._faults.other) else [machine]

    def _machine(self, name: str, pool: int, zone: str = "") -> Machine:
        spec: PoolSpec = self._state.capacity.pools[pool]
        return Machine(name, spec.name, spec.scaling.region if spec.scaling else "", zone, spec.capacity)


def _something_else(machine: Machine) -> Machine:
    """Half the machine."""
    cpu, memory, gpu, disk = machine.capacity.vector()
    half = Resources(cpu_milli=cpu // 2, memory_mib=memory // 2, gpu_milli=gpu // 2000 * 1000, disk_mib=disk // 2)
    return msgspec.structs.replace(machine, capacity=half)
