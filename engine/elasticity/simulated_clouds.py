"""Simulated clouds: what providers do with requests for machines.

Every request is for one machine. A project may make so many in any 100 seconds; those above it are refused. A zone has
so many machines for us at a time, or none: then the answer, some seconds later, is that it is out of stock. A machine
that was granted boots and calls the head node, which takes so many calls in a second and drops the others. Spot
machines may be taken back at any time.

Nothing here knows what the machines are for. All chance comes from the seed.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

from engine.model.distributions import lognormal_ms
from engine.model.errors import NotFoundError
from engine.model.specs import HOUR_MS, ScalingSpec, Spec, check_id, check_quantity

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
    """What requests are counted against."""

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
    """What a provider reports of one request or machine."""

    GRANTED = 0
    OUT_OF_STOCK = 1
    CALLED = 2
    """It has booted, and the head node has taken its call."""
    DROPPED = 3
    """It has booted, and the head node had no time for it: it costs money and is of no use."""
    TAKEN = 4
    """It is gone."""


class CloudReport(NamedTuple):
    at_ms: int
    machine: int
    """Number of the request, which is that of the machine if it is granted."""
    zone: int
    """Index into `SimulatedCloud.zones`."""
    said: ProviderSignal


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
        """How many of so many requests are within the quota of the zone's project."""
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
        """What happened up to the cell time, in order."""
        reports = []
        while self._due and self._due[0].at_ms <= until_ms:
            due = heappop(self._due)
            if due.machine in self._gone:
                self._gone.discard(due.machine)
                continue
            if due.said == ProviderSignal.GRANTED:
                reports.append(self._grant(due))
            elif due.said == ProviderSignal.CALLED:
                reports.append(self._call(due))
            else:
                self.held[due.zone] -= 1
                reports.append(due)
        return reports

    def _grant(self, due: CloudReport) -> CloudReport:
        zone = self.zones[due.zone]
        if self.held[due.zone] >= stock_at(zone, due.at_ms):
            return due._replace(said=ProviderSignal.OUT_OF_STOCK)
        self.held[due.zone] += 1
        boot_ms = lognormal_ms(self._random, *zone.boot_ms) + 1
        heappush(self._due, CloudReport(due.at_ms + boot_ms, due.machine, due.zone, ProviderSignal.CALLED))
        return due

    def _call(self, due: CloudReport) -> CloudReport:
        second = due.at_ms // 1000
        if self._calls[second] >= self.spec.head_calls_per_s:
            return due._replace(said=ProviderSignal.DROPPED)
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
