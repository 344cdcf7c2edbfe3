"""How fast to ask for machines: as fast as the quotas allow, and no faster than the head node can take their calls.

Requests go out in batches with pauses of random length between them, as in Clemson's run on Google Cloud. A batch is
held to what is left of each project's quota, to what each zone seems to have, and to what the head node can bear.
However long machines boot, they call on average as often as they were asked for some time ago; so they are asked for no
more often than the head node's limit less four standard deviations of a Poisson count. Requests that come to nothing
make no call and do not count.

What a zone has is found by asking: a batch that is granted whole may be twice as large next time; one that is not is
followed by a pause, after which as many are asked for as the zone gave since the pause before.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable

from engine.elasticity.simulated_clouds import WINDOW_MS, CloudReport, CloudSpec, ProviderSignal, SimulatedCloud

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
        """That may be planned for now."""
        self._counted_ms = 0
        """When that was last worked out."""
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
        """Of the zone's batch so far."""
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
