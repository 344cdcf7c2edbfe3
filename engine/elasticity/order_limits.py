"""How many nodes may be ordered now: sizes of pools and of the cell, quotas of projects, sizes of requests, and pools
that are left alone because they failed to deliver."""

from __future__ import annotations

from typing import NamedTuple

from engine.elasticity.request_pacing import planned_calls_per_s
from engine.elasticity.simulated_clouds import WINDOW_MS
from engine.model.specs import PoolSpec
from engine.placement.node_templates import could_stand, grows
from engine.state.cell_state import State
from engine.state.machine_orders import OrderState

NO_LIMIT = 1 << 40


class GrowthRoom(NamedTuple):
    """How far a pool may grow."""

    most: int
    """Nodes in all, in time."""
    now: int
    """Of them those that the project may still ask for now."""
    in_batch: int
    """Of these those that still go into the request of this scan for whoever comes."""
    at_once: int
    """The most that could ever be asked for in one request."""
    why: str
    """What sets `most`, where it is 0; else what sets the others."""


class OrderLimits:
    """What is left of every limit, while orders are made."""

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
        """Of them those for whoever comes, which go into one request."""
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
        """Whether anything at all may be ordered now."""
        return any(grows(pool) and self.room(row).now for row, pool in enumerate(self._state.capacity.pools))

    def room(self, pool: int) -> GrowthRoom:
        """What may still be ordered of the pool."""
        state, settings = self._state, self._settings
        spec = state.capacity.pools[pool]
        most = could_stand(spec)
        quota = self._quota.get(self._project(pool), NO_LIMIT)
        at_once = min(quota, settings.most_in_batch, self._heard_at_once(spec))
        if state.orders.backed_off_ms.get(pool, 0) > self._now_ms:
            return GrowthRoom(0, 0, 0, at_once, self._failed(pool))
        left = most - state.capacity.pool_nodes[pool] - self.due[pool] - self._ordered[pool]
        if left <= 0:
            return GrowthRoom(0, 0, 0, at_once, f"is at its most, {most} node{'s' if most != 1 else ''}")
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
        """So many of it are ordered."""
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
