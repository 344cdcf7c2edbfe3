"""A Prometheus that is followed: GPU use by device, and figures of nodes, on a thread of its own.

The engine's thread is held for one copy of its allocations a step. Each step asks seven questions about devices and at
most three about nodes; what was missed is asked for in pieces, a second apart. After a failure it waits longer each
time, up to five minutes, and says what is wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.model.columns import view
from engine.model.errors import MusterError
from engine.model.quantities import lasting, utc
from engine.model.specs import WorkloadState
from engine.state.allocations import NONE
from recommender.findings.idle_devices import IdleDevices, idle_devices, idle_now
from recommender.history.gpu_use import SLOT_MS, GpuUse, HeldDevices, Holdings
from recommender.history.metrics import CELL, FollowReport, OutsideNames, Sample
from recommender.history.node_figures import NodeFigures
from recommender.history.prometheus import Prometheus
from runbooks.gate.approval_gate import wall_ms

if TYPE_CHECKING:
    from console.service.prometheus_at import PrometheusAt
    from engine.control import Engine
    from engine.loop import EngineLoop
    from engine.model.specs import PoolSpec
    from engine.state.workloads import Workloads
    from recommender.history.chunks import SeriesPoints
    from recommender.history.telemetry import Telemetry


LAG_MS = 20_000
"""A step is asked for so long after its end: the last scrapes of it have been stored then."""
DEADLINE_S = 120.0
"""Longest time for all questions of one step."""
BEHIND_S = 1.0
"""Between two pieces of what was missed."""
LONGEST_WAIT_S = 300.0
OLD_MS = 15 * 60_000
"""Figures that are older say nothing of now."""
SKEW_S = 60.0
"""A clock that is off by more joins measurements to the wrong work."""
Naming = Callable[[Sequence[str]], OutsideNames]


class PrometheusFollower:
    """Follows one server for the cell of one loop. `step` may be called by hand where no thread was started."""

    def __init__(
        self,
        loop: EngineLoop,
        telemetry: Telemetry,
        at: PrometheusAt,
        naming: Naming = lambda ids: OutsideNames(),
        wall: Callable[[], int] = wall_ms,
    ) -> None:
        self._loop = loop
        self._telemetry = telemetry
        self._at = at
        self._naming = naming
        self._wall = wall
        self._server = Prometheus(at.url, token=at.token)
        self.use = GpuUse(telemetry.records)
        self._nodes = NodeFigures(telemetry, self._server.source)
        self._held = NO_HOLDINGS
        self._trouble = ""
        self._told_ms = 0
        self._found: tuple[int, IdleDevices] = (-1, IdleDevices((), ()))
        """Version of the use that it was made from."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prometheus", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, which may be waiting for the server. Call before the loop stops."""
        self._stopping.set()
        self._server.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        wait_s, failed = BEHIND_S, 0
        while not self._stopping.wait(wait_s):
            try:
                behind = self.step()
                failed = 0
                wait_s = BEHIND_S if behind else self._until_next_s()
            except Exception as error:
                # Whatever it is must not end it; a closed line is how it is stopped.
                known = isinstance(error, MusterError)
                self._trouble = str(error) if known else f"{type(error).__name__}: {error}"
                failed += 1
                wait_s = min(self._at.step_ms / 1000 * 2 ** min(failed - 1, 10), LONGEST_WAIT_S)

    def _until_next_s(self) -> float:
        step_ms = self._at.step_ms
        return (step_ms - (self._wall() - LAG_MS) % step_ms) / 1000 + 0.05

    def step(self) -> bool:
        """Take what is new, a bounded part of it. Returns whether there is more. Raises MusterError."""
        now_ms = self._wall()
        self._held = held = self._holdings(now_ms)
        until_ms = (now_ms - LAG_MS) // self._at.step_ms * self._at.step_ms
        self._server.allow(DEADLINE_S)
        behind = self.use.follow(self._server, held, self._at.step_ms, until_ms)
        if abs(self._server.ahead_s) > SKEW_S:
            way = "ahead of" if self._server.ahead_s > 0 else "behind"
            raise MusterError(
                f"the clock of {self._server.where} is {lasting(round(abs(self._server.ahead_s) * 1000))} {way} this "
                "machine's",
                "Set one of them: its figures would be taken for those of other work",
            )
        behind |= self._nodes.follow(self._server, held.nodes, until_ms)
        if self.use.last_ms() > self._told_ms and not behind:
            self._told_ms = self.use.last_ms()
            self._tell_idle()
        self._trouble = ""
        return behind

    def _holdings(self, now_ms: int) -> Holdings:
        copied = self._loop.call(copied_allocations)
        if abs(copied.now_ms - now_ms) > SKEW_S * 1000:
            raise MusterError(
                f"the cell's time is {lasting(abs(copied.now_ms - now_ms))} from this machine's",
                "A Prometheus is followed by a cell in real time: muster serve without --speed, or with --catch-up",
            )
        return holdings_of(copied, self._naming)

    def _tell_idle(self) -> None:
        """Note how much is idle, of the cell and of each tenant that holds GPUs."""
        idle = idle_now(self.use, self._held)
        at_ms = self.use.last_ms()
        tenants = dict.fromkeys((work.tenant for work in self._held.work if work.tenant), 0)
        samples = [Sample("idle_gpu", CELL, "", at_ms, float(sum(idle.values())))]
        samples += [
            Sample("idle_gpu", "tenant", tenant, at_ms, float(idle.get(tenant, 0))) for tenant in list(tenants)[:2000]
        ]
        self._telemetry.add(samples, source=self._server.source, step_ms=SLOT_MS)

    # -- answers ------------------------------------------------------------------------------------------------------

    def findings(self, waiting_gpu_milli: int) -> IdleDevices:
        """Work that holds GPUs and does not use them, and what could not be judged; of the last complete slot."""
        version = self.use.last_ms()
        if version and self._wall() - version > OLD_MS:
            return IdleDevices(
                (), (f"use of GPUs is not known since {utc(version)}: {self._trouble or 'it is behind'}",)
            )
        if self._found[0] != version:
            self._found = version, idle_devices(self.use, self._held, self._load, waiting_gpu_milli)
        return self._found[1]

    def _load(self, metric: str, node: str, since_ms: int, until_ms: int) -> float | None:
        """The mean of a figure of a node; None where it was not measured."""
        points = self._telemetry.series(metric, "node", node, since_ms, until_ms, SLOT_MS)
        known = points.count > 0
        return float(points.mean[known].mean()) if known.any() else None

    def series(self, metric: str, workload: str, since_ms: int, until_ms: int) -> SeriesPoints | None:
        """GPU use of a workload that runs; None where it is not known."""
        return self.use.series(metric, workload, since_ms, until_ms)

    def report(self) -> FollowReport:
        devices = [device for device in self.use.devices if device.uuid]
        return FollowReport(
            source=self._server.source,
            step_ms=self._at.step_ms,
            since_ms=self._nodes.since_ms(),
            until_ms=self.use.until_ms,
            devices=len(devices),
            joined=sum(bool(device.holder) for device in devices),
            not_joined=self.use.not_joined,
            strangers=tuple(sorted(self.use.no_node)[:3]),
            strangers_count=len(self.use.no_node),
            refused=sum(self._nodes.refused.values()),
            trouble=self._trouble,
        )


# -- on the engine's thread -------------------------------------------------------------------------------------------


class CopiedAllocations(NamedTuple):
    """The allocations with devices at one moment, and the columns that tell of them."""

    now_ms: int
    work: Any
    """[allocation] Row of its workload."""
    node: Any
    devices: Any
    cls: Any
    terms: Any
    tenant: Any
    started: Any
    state: Any
    pool: Any
    pools: tuple[PoolSpec, ...]
    nodes: list[str]
    exact: bool
    """Whether the device indexes are real."""
    workloads: Workloads
    """Read beside the engine for what it only adds to: names and classes."""


def copied_allocations(engine: Engine) -> CopiedAllocations:
    """Numbers of the allocations that have devices."""
    a, w, c = engine.state.allocations, engine.state.workloads, engine.state.capacity
    rows = np.flatnonzero((view(a.workload) != NONE) & (view(a.devices) != 0))
    work, node = view(a.workload)[rows], view(a.node)[rows]
    columns = (w.cls, w.terms, w.tenant, w.started, w.state)
    return CopiedAllocations(
        engine.now_ms,
        work,
        node,
        view(a.devices)[rows],
        *(view(column)[work] for column in columns),
        view(c.pool)[node],
        tuple(c.pools),
        list(c.node_ids),
        engine.state.settings.decided_by != "kubernetes",
        w,
    )


# -- beside it --------------------------------------------------------------------------------------------------------


def holdings_of(copied: CopiedAllocations, naming: Naming) -> Holdings:
    """Who has which devices."""
    w, pools = copied.workloads, copied.pools
    running = copied.state == WorkloadState.RUNNING
    rows, first, at = np.unique(copied.work[running], return_index=True, return_inverse=True)
    devices = copied.devices[running].astype(np.int64)
    counts = np.zeros(len(rows), np.int64)
    np.add.at(counts, at, _bits(devices))
    cls, terms, tenant, started, pool = (
        getattr(copied, name)[running][first].tolist() for name in ("cls", "terms", "tenant", "started", "pool")
    )
    work = [
        HeldDevices(
            id=w.ids[row],
            tenant=w.tenants.names[tenant[n]],
            started_ms=started[n],
            gpus=int(counts[n]),
            part=any(group.request.gpu_milli % 1000 or group.mig for group in w.classes[cls[n]].groups),
            service=w.terms_specs[terms[n]].service is not None,
            price_microusd_gpu_hour=pools[pool[n]].price_microusd_hour
            * 1000
            // max(pools[pool[n]].capacity.gpu_milli, 1000),
        )
        for n, row in enumerate(rows.tolist())
    ]
    return Holdings(
        copied.now_ms,
        work,
        copied.nodes,
        np.asarray(at, np.int64),
        copied.node[running].astype(np.int64),
        devices,
        copied.exact,
        naming([each.id for each in work]),
    )


def _bits(masks: Any) -> Any:
    """How many bits each has."""
    return np.unpackbits(masks.view(np.uint8).reshape(-1, 8), axis=1).sum(axis=1) if len(masks) else masks


NO_HOLDINGS = Holdings(0, (), (), *(np.zeros(0, np.int64) for _ in range(3)), False, OutsideNames())
