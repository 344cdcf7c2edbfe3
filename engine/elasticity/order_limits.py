"""Limits on orders of nodes: sizes of pools and of the cell, quotas of projects, sizes of requests, and their pace.
Pools that failed to deliver are left alone for a while.

Requests go out in batches with pauses of random length between them, as in Clemson's run on Google Cloud. A batch is
held to the rest of each project's quota, to the likely stock of each zone, and to the calls that the head node can
bear. However long machines boot, they call on average as often as they were requested some time ago. So they are
requested no more often than the head node's limit less four standard deviations of a Poisson count. Requests that come
to nothing make no call and do not count.

The stock of a zone is found by trial. After a batch that is granted whole, the next may be twice as large. After any
other comes a pause, and then a batch of as many as the zone gave since the pause before.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from engine.elasticity.providers import WINDOW_MS, CloudReport, CloudSpec, ProviderSignal, SimulatedCloud
from engine.model.quantities import counted
from engine.model.specs import PoolSpec
from engine.placement.node_choice import could_stand, grows
from engine.state.cell_state import State
from engine.state.machines import OrderState

MAX_IN_BATCH = 5_000
PAUSE_MS = (500, 1_500)
"""Between batches."""
FIRST_ASKED = 16
"""Machines a zone is asked for when it is not known whether it has any."""
SOLD_OUT_MS = (10_000, 30_000)
"""A zone that was out of stock is left alone for so long."""
SAFETY = 4.0
SAVED_UP_S = 1.5
"""Seconds' worth of calls that may be planned for at once after a pause."""


def planned_calls_per_s(limit: int) -> float:
    """Calls to plan for, on average, where so many are taken in a second and the others lost: four standard deviations
    of a Poisson count below it, and at least a quarter."""
    return max(limit - SAFETY * math.sqrt(limit), limit / 4)


class Pacer:
    """Asks a cloud for machines until there are as many as wanted."""

    def __init__(self, spec: CloudSpec, seed: int = 0) -> None:
        self._random = random.Random(f"pacing {seed}")
        self.calls_per_s = planned_calls_per_s(spec.head_calls_per_s)
        """Planned for."""
        self._calls_left = self.calls_per_s
        """Calls that may be planned for now."""
        self._counted_ms = 0
        """Time of that count."""
        zones = [i for i, project in enumerate(spec.projects) for _ in project.zones]
        self._project_of = zones
        self._quota = [project.requests_per_100_s for project in spec.projects]
        self._asked: list[deque[tuple[int, int]]] = [deque() for _ in spec.projects]
        """(cell ms, requests) of the last 100 seconds, by project."""
        self._in_window = [0] * len(spec.projects)
        self._batch = [FIRST_ASKED] * len(zones)
        """Machines to ask each zone for next time."""
        self._open_ms = [0] * len(zones)
        """Cell time before which the zone is left alone."""
        self._unanswered = [0] * len(zones)
        self._granted = [0] * len(zones)
        """Machines the zone gave since it was last out of stock."""
        self._refused = [0] * len(zones)
        """Refused requests of the zone's batch so far."""
        self._next_ms = 0
        self.alive = 0
        """Machines granted and not gone, dropped ones not counted."""
        self.calls_lost = 0
        self.out_of_stock = 0
        self.requests = 0
        self._leaving: list[deque[int]] = [deque() for _ in zones]
        """Machines to be given back, by zone."""

    def take(self, reports: list[CloudReport]) -> None:
        """Learn from what the cloud said. Machines whose call was dropped are given back with the next batch."""
        for at_ms, machine, zone, said in reports:
            if said == ProviderSignal.GRANTED:
                self.alive += 1
                self._answered(zone, granted=True, at_ms=at_ms)
            elif said == ProviderSignal.OUT_OF_STOCK:
                self.out_of_stock += 1
                self._calls_left += 1
                self._answered(zone, granted=False, at_ms=at_ms)
            elif said == ProviderSignal.TAKEN:
                self.alive -= 1
            elif said == ProviderSignal.DROPPED:
                self.calls_lost += 1
                self._leaving[zone].append(machine)

    def _answered(self, zone: int, *, granted: bool, at_ms: int) -> None:
        self._unanswered[zone] -= 1
        self._granted[zone] += granted
        self._refused[zone] += not granted
        if self._unanswered[zone]:
            return
        if self._refused[zone]:
            self._batch[zone] = min(max(FIRST_ASKED, self._granted[zone]), MAX_IN_BATCH)
            self._open_ms[zone] = at_ms + self._random.randint(*SOLD_OUT_MS)
            self._granted[zone] = self._refused[zone] = 0
        else:
            self._batch[zone] = min(2 * self._batch[zone], MAX_IN_BATCH)

    def ask(self, wanted: int, cloud: SimulatedCloud, now_ms: int) -> int:
        """Send the next batch if it is time, towards `wanted` machines in all. Returns the requests made."""
        if now_ms < self._next_ms:
            return 0
        self._next_ms = now_ms + self._random.randint(*PAUSE_MS)
        self._give_back(cloud, now_ms)
        missing = wanted - self.alive - sum(self._unanswered)
        left = min(missing, MAX_IN_BATCH, self._room_at_head(now_ms))
        asked = 0
        zones = [zone for zone, open_ms in enumerate(self._open_ms) if open_ms <= now_ms and not self._unanswered[zone]]
        self._random.shuffle(zones)
        for at, zone in enumerate(zones):
            # What one zone cannot use is left for the next ones.
            share = -(-(left - asked) // (len(zones) - at))
            count = min(share, self._batch[zone], self._quota_left(self._project_of[zone], now_ms))
            if count > 0:
                self._request(zone, count, cloud, now_ms)
                asked += count
        self._calls_left -= asked
        return asked

    def release(self, zone: int, machines: Iterable[int]) -> None:
        """Give machines that called back to the cloud, from the next batch on."""
        self._leaving[zone].extend(machines)

    @property
    def leaving(self) -> int:
        """Machines that are to be given back and are still paid for."""
        return sum(map(len, self._leaving))

    def _give_back(self, cloud: SimulatedCloud, now_ms: int) -> None:
        for zone, machines in enumerate(self._leaving):
            count = min(len(machines), self._quota_left(self._project_of[zone], now_ms))
            if count:
                self._spend(zone, count, now_ms)
                self.alive -= cloud.give_back(zone, [machines.popleft() for _ in range(count)], now_ms)

    def _spend(self, zone: int, count: int, now_ms: int) -> None:
        project = self._project_of[zone]
        self._asked[project].append((now_ms, count))
        self._in_window[project] += count
        self.requests += count

    def _request(self, zone: int, count: int, cloud: SimulatedCloud, now_ms: int) -> None:
        self._spend(zone, count, now_ms)
        self._unanswered[zone] += len(cloud.request(zone, count, now_ms))

    def _quota_left(self, project: int, now_ms: int) -> int:
        asked = self._asked[project]
        while asked and asked[0][0] <= now_ms - WINDOW_MS:
            self._in_window[project] -= asked.popleft()[1]
        return self._quota[project] - self._in_window[project]

    def _room_at_head(self, now_ms: int) -> int:
        """Machines that may be asked for now without too many calls some time later."""
        more = self.calls_per_s * (now_ms - self._counted_ms) / 1000
        self._calls_left = min(self._calls_left + more, self.calls_per_s * SAVED_UP_S)
        self._counted_ms = now_ms
        return int(self._calls_left)


NO_LIMIT = 1 << 40


class GrowthRoom(NamedTuple):
    """The limits of a pool's growth."""

    most: int
    """Nodes in all, in time."""
    now: int
    """Nodes of `most` that the project may still request now."""
    in_batch: int
    """Nodes of `now` that still fit this scan's request for single tasks."""
    at_once: int
    """The most that could ever be asked for in one request."""
    why: str
    """The limit that sets `most`, where it is 0; else the one that sets the others."""


class OrderLimits:
    """The rest of every limit, while orders are made."""

    def __init__(self, state: State, now_ms: int) -> None:
        self._state = state
        self._now_ms = now_ms
        self._settings = state.settings.autoscaling
        orders, pools = state.orders, state.capacity.pools
        self.due = [0] * len(pools)
        """By pool, nodes that are ordered and not granted yet."""
        for row in orders.open:
            self.due[orders.pool[row]] += orders.wanted[row] - orders.granted[row]
        self._nodes = len(state.capacity.row_of) + sum(self.due)
        self._ordered = [0] * len(pools)
        self._in_batch = [0] * len(pools)
        """The part for single tasks, which goes into one request."""
        self._asked: dict[str, int] = {}
        """By project, machines asked for in the last 100 seconds."""
        for row in range(len(orders.pool) - 1, -1, -1):
            if orders.ordered_ms[row] <= now_ms - WINDOW_MS:
                break
            project = self._project(orders.pool[row])
            self._asked[project] = self._asked.get(project, 0) + orders.wanted[row]
        self._calls = NO_LIMIT
        """Machines that may be asked for now, so that the head node can take their calls."""
        if self._settings.calls_per_s:
            rate, every_ms = planned_calls_per_s(self._settings.calls_per_s), self._settings.scan_every_ms
            lately = sum(
                orders.wanted[row] for row in range(len(orders.pool)) if orders.ordered_ms[row] > now_ms - every_ms
            )
            self._calls = max(int(rate * every_ms / 1000) - lately, 0)
        self._quota: dict[str, int] = {}
        for row, pool in enumerate(pools):
            if pool.scaling is not None and pool.scaling.requests_per_100_s:
                project = self._project(row)
                self._quota[project] = min(self._quota.get(project, NO_LIMIT), pool.scaling.requests_per_100_s)

    def _project(self, pool: int) -> str:
        scaling = self._state.capacity.pools[pool].scaling
        return f"project {scaling.project}" if scaling is not None and scaling.project else f"pool {pool}"

    def any_room(self) -> bool:
        """True if anything at all may be ordered now."""
        return any(grows(pool) and self.room(row).now for row, pool in enumerate(self._state.capacity.pools))

    def room(self, pool: int) -> GrowthRoom:
        """The nodes that may still be ordered of the pool."""
        state, settings = self._state, self._settings
        spec = state.capacity.pools[pool]
        most = could_stand(spec)
        quota = self._quota.get(self._project(pool), NO_LIMIT)
        at_once = min(quota, settings.most_in_batch, self._heard_at_once(spec))
        if state.orders.backed_off_ms.get(pool, 0) > self._now_ms:
            return GrowthRoom(0, 0, 0, at_once, self._failed(pool))
        left = most - state.capacity.pool_nodes[pool] - self.due[pool] - self._ordered[pool]
        if left <= 0:
            return GrowthRoom(0, 0, 0, at_once, f"is at its maximum, {counted(most, 'node')}")
        if settings.most_nodes and self._nodes >= settings.most_nodes:
            return GrowthRoom(0, 0, 0, at_once, f"would make the cell larger than {settings.most_nodes} nodes")
        if settings.most_nodes:
            left = min(left, settings.most_nodes - self._nodes)
        asked = max(quota - self._asked.get(self._project(pool), 0), 0)
        in_batch = max(settings.most_in_batch - self._in_batch[pool], 0)
        why = "its project has asked for its quota of machines in these 100 seconds"
        if in_batch <= asked:
            why = f"a request takes at most {settings.most_in_batch} machines"
        if self._calls < min(asked, in_batch):
            why = f"the head node takes the calls of {settings.calls_per_s} new machines in a second"
        now = max(min(left, asked, self._calls), 0)
        return GrowthRoom(left, now, min(now, in_batch, at_once), at_once, why)

    def _heard_at_once(self, pool: PoolSpec) -> int:
        """Machines of the pool that the head node can take the calls of when they are ordered together: they call over
        about as long as lies between the median and the 95th percentile of their boot time."""
        if not self._settings.calls_per_s or pool.scaling is None:
            return NO_LIMIT
        median_ms, late_ms = pool.scaling.boot_ms
        return max(int(planned_calls_per_s(self._settings.calls_per_s) * max(late_ms - median_ms, 1000) / 1000), 1)

    def _failed(self, pool: int) -> str:
        orders = self._state.orders
        last = next((row for row in range(len(orders.pool) - 1, -1, -1) if orders.pool[row] == pool), -1)
        refused = last >= 0 and orders.state[last] == OrderState.REFUSED
        return "is out of stock" if refused else "has not delivered what was ordered"

    def take(self, pool: int, nodes: int, *, gang: bool) -> None:
        """Count so many nodes of it as ordered."""
        self._ordered[pool] += nodes
        self._in_batch[pool] += 0 if gang else nodes
        self._nodes += nodes
        self._calls -= nodes
        project = self._project(pool)
        self._asked[project] = self._asked.get(project, 0) + nodes

    def keep_for_next(self, pool: int) -> None:
        """Its project asks for nothing more in this scan: what is left of the quota adds up for a gang."""
        project = self._project(pool)
        self._asked[project] = max(self._asked.get(project, 0), self._quota.get(project, 0))
