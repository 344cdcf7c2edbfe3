"""Scenarios that can be watched, on a clock that people can follow, among them a day of demand with nodes ordered
ahead.

A scenario is a cell and its happenings as cell time passes: the loads that `muster bench` measures. A feed goes by cell
time alone, so a restart goes on where it was.

The day of demand plays one series as the load of a growing pool, three times: with nodes ordered when they are missed,
with nodes ordered ahead by the forecast, and with as many nodes as were ever needed before. Every unit of demand is a
lane of tasks that take a node each, one after the other, shifted within the lane's own phase, so that as many run in an
hour as the series says. The weeks before are known to the forecast and are not played.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from itertools import count

import msgspec
import numpy as np

from engine.control import Engine
from engine.model import events as ev
from engine.model.commands import AnyCommand, SetAutoscaling, Submit
from engine.model.errors import SpecError
from engine.model.specs import (
    HOUR_MS,
    Autoscaling,
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    ScalingSpec,
    Settings,
    TaskGroup,
    WorkloadSpec,
)
from engine.scenarios import clemson, gke, spot_week
from engine.state.demand import KEPT
from engine.traces.demand_series import Load

PEAK_NODES = 40
"""Nodes that the largest demand before the part played is scaled to."""
PLAYED_HOURS = 48
TASKS_AN_HOUR = 3
"""Of each lane."""
MINUTE_MS = 60_000
BOOTS_MS = ((3 * MINUTE_MS, 5 * MINUTE_MS), (15 * MINUTE_MS, 20 * MINUTE_MS))
"""Median and 95th percentile: what is often quoted for machines of clouds, and large ones with images to load."""
ORDER_TIMEOUT_MS = 40 * MINUTE_MS
PRICE_MICROUSD_HOUR = 1_000_000
NODE_CPU_MILLI = 8000
SCAN_MS = MINUTE_MS
ON_TIME_MS = 30_000
"""What has waited less counts as started at once."""


class SizingMethod(msgspec.Struct, frozen=True):
    """A method of sizing the pool."""

    name: str
    permille: int = 0
    """Quantile of the forecast that nodes are ordered ahead for."""
    headroom: int = 0
    """Empty nodes that are kept."""
    static: bool = False
    """As many nodes as were ever needed before, always."""


def sizings(permille: int) -> tuple[SizingMethod, ...]:
    """Return the sizing methods that are compared, with that quantile of the forecast."""
    return (
        SizingMethod("reactive"),
        SizingMethod("reactive, 3 spare", headroom=3),
        SizingMethod("reactive, 6 spare", headroom=6),
        SizingMethod("forecast q0.5", permille=500),
        SizingMethod(f"forecast q{permille / 1000:g}", permille=permille),
        SizingMethod("static peak", static=True),
    )


class SizingResult(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one way of sizing the pool, and the waits of tasks under it."""

    sizing: str
    boot_ms: tuple[int, int]
    hours: int
    tasks: int
    demanded_node_hours: float
    paid_node_hours: float
    cost_microusd: int
    """Of the ledger: all nodes from grant to end."""
    idle_microusd: int
    """Of that, what no task used."""
    over_percent: float
    """Node-hours paid above those demanded, in percent of these."""
    waited_percent: float
    """Node-hours that demand waited, in percent of those demanded."""
    late_permille: int
    """Tasks that waited longer than ON_TIME_MS."""
    wait_p50_ms: int
    wait_p95_ms: int
    wait_max_ms: int
    orders: int
    wall_ms: int


def nodes_of(load: Load) -> tuple[list[int], list[int]]:
    """(nodes' worth of demand in each hour before the part that is played, the same in each hour played)"""
    first = load.first_test
    scale = PEAK_NODES / max(float(load.demand[:first].max()), 1e-9)
    nodes = np.rint(load.demand * scale).astype(int).tolist()
    return nodes[max(first - KEPT, 0) : first], nodes[first : first + PLAYED_HOURS]


def tasks_of(hours: list[int], begin_ms: int, seed: int) -> list[tuple[int, int]]:
    """(cell time of arrival, run time) in milliseconds, by arrival."""
    step_ms = HOUR_MS // TASKS_AN_HOUR
    found = []
    for hour, lanes in enumerate(hours):
        for lane in range(lanes):
            draw = random.Random(f"{seed}/{hour}/{lane}/lane")
            phase_ms = draw.randrange(step_ms)
            for step in range(TASKS_AN_HOUR):
                # What a task runs longer or shorter than its step is made up for by others.
                run_ms = round(step_ms * draw.uniform(0.6, 1.4))
                found.append((begin_ms + hour * HOUR_MS + step * step_ms + phase_ms, run_ms))
    return sorted(found)


def noted_of(hours: list[int], seed: int) -> list[int]:
    """Return what a cell with nodes for everybody would have noted of these hours: the most tasks at once at any
    scan."""
    tasks = np.array(tasks_of(hours, 0, seed), np.int64).reshape(-1, 2)
    scans = np.arange(0, len(hours) * HOUR_MS, SCAN_MS)
    begun = np.searchsorted(tasks[:, 0], scans, side="right")
    ended = np.searchsorted(np.sort(tasks.sum(axis=1)), scans, side="right")
    most: list[int] = (begun - ended).reshape(len(hours), -1).max(axis=1).tolist()
    return most


def play(load: Load, sizing: SizingMethod, boot_ms: tuple[int, int] = BOOTS_MS[0], seed: int = 1) -> SizingResult:
    """Play the hours of the series after its `first_test` on an engine of their own, in memory and in virtual time."""
    begun = time.perf_counter()
    before, hours = nodes_of(load)
    begin_ms = len(before) * HOUR_MS
    engine = Engine.open(None, seed=seed, cell=_cell(max(before) if sizing.static else before[-1], sizing, boot_ms))
    for hour, nodes in enumerate(noted_of(before, seed)):
        engine.state.apply(ev.DemandNoted(0, hour, nodes))
    engine.advance(begin_ms)
    engine.command(SetAutoscaling(changes={"enabled": True, "predict_permille": sizing.permille}))
    ledger = engine.state.ledger
    total, idle = ledger.total(begin_ms), ledger.idle(begin_ms)
    tasks = tasks_of(hours, begin_ms, seed)
    for number, (at_ms, run_ms) in enumerate(tasks):
        engine.advance(at_ms)
        engine.command(Submit(workloads=(_task(f"t{number}", run_ms),)))
    end_ms = begin_ms + len(hours) * HOUR_MS
    engine.advance(end_ms)
    total, idle = ledger.total(end_ms) - total, ledger.idle(end_ms) - idle
    # What has not ended by then is still waited for; what that costs is not counted.
    while engine.overview().states["finished"] < len(tasks):
        engine.advance(engine.now_ms + HOUR_MS)
    w = engine.state.workloads
    waits = np.array([w.started[row] - w.submitted[row] for row in range(len(tasks))], np.int64)
    demanded = sum(run_ms for _, run_ms in tasks) / HOUR_MS
    paid = total / PRICE_MICROUSD_HOUR
    return SizingResult(
        sizing=sizing.name,
        boot_ms=boot_ms,
        hours=len(hours),
        tasks=len(tasks),
        demanded_node_hours=demanded,
        paid_node_hours=paid,
        cost_microusd=total,
        idle_microusd=idle,
        over_percent=(paid / demanded - 1) * 100,
        waited_percent=float(waits.sum()) / HOUR_MS / demanded * 100,
        late_permille=int(np.count_nonzero(waits > ON_TIME_MS)) * 1000 // len(tasks),
        wait_p50_ms=int(np.percentile(waits, 50)),
        wait_p95_ms=int(np.percentile(waits, 95)),
        wait_max_ms=int(waits.max()),
        orders=len(engine.state.orders.pool),
        wall_ms=round((time.perf_counter() - begun) * 1000),
    )


def _cell(nodes: int, sizing: SizingMethod, boot_ms: tuple[int, int]) -> CellSpec:
    """So many nodes that are there already; the autoscaler rests until it is told."""
    rests = Autoscaling(enabled=False, scan_every_ms=SCAN_MS, order_timeout_ms=ORDER_TIMEOUT_MS)
    scaling = ScalingSpec(most=10 * PEAK_NODES, headroom=sizing.headroom, boot_ms=boot_ms)
    pool = PoolSpec(
        name="pool",
        capacity=Resources(cpu_milli=NODE_CPU_MILLI),
        price_microusd_hour=PRICE_MICROUSD_HOUR,
        scaling=None if sizing.static else scaling,
    )
    return CellSpec(
        name="predictive-day",
        pools=(pool,),
        nodes=tuple(NodeSpec(id=f"first-{number}", pool="pool") for number in range(nodes)),
        queues=(QueueSpec(name="queue"),),
        settings=Settings(autoscaling=rests),
    )


def _task(name: str, run_ms: int) -> WorkloadSpec:
    group = TaskGroup(request=Resources(cpu_milli=NODE_CPU_MILLI))
    return WorkloadSpec(id=name, queue="queue", groups=(group,), estimate_ms=run_ms, simulated_runtime_ms=run_ms)


DAY_HOURS = 24
Happening = tuple[int, WorkloadSpec | AnyCommand]
"""(cell ms, workload to submit or what is commanded)"""


class LiveScenario(msgspec.Struct, frozen=True, kw_only=True):
    """One that can be watched."""

    load: str
    """In a line."""
    nodes: int
    """As many as it has, or may grow to, unless another number is asked for."""
    speed: float
    """Cell seconds per second at which something can be seen to happen, and followed."""
    cell: Callable[[int, int], CellSpec]
    """Given the nodes and the cell ms at which it begins."""
    feed: Callable[[int, int, int], Iterator[Happening]]
    """Given the nodes, the seed and the cell ms at which it begins; in order of time."""


def scenario(name: str) -> LiveScenario:
    """Raises SpecError where there is not one of that name."""
    found = SCENARIOS.get(name)
    if found is None:
        raise SpecError("--scenario", f"there is no '{name[:40]}'", f"Use one of: {', '.join(SCENARIOS)}")
    return found


# -- clusters of GKE --------------------------------------------------------------------------------------------------


def _gke(name: str, load: str) -> LiveScenario:
    def feed(nodes: int, seed: int, start_ms: int) -> Iterator[Happening]:
        for phase in gke.phases(name, nodes, seed):
            for at_ms, command in phase.steps:
                if command is not None:
                    yield start_ms + at_ms, command

    def cell(nodes: int, start_ms: int) -> CellSpec:
        return msgspec.structs.replace(gke.cell(nodes), name=name)

    return LiveScenario(load=load, nodes=gke.SCENARIOS[name].nodes, speed=30, cell=cell, feed=feed)


# -- Clemson ----------------------------------------------------------------------------------------------------------

RAMP_MS = 3 * HOUR_MS + HOUR_MS // 2
"""New tasks arrive for so long."""
AHEAD_MS = 15 * MINUTE_MS
"""Tasks wait so long before the published run had the machines."""


def _clemson_cell(nodes: int, start_ms: int) -> CellSpec:
    """A pool for each region, of as many machines as the stock gives, in proportion to the nodes asked for."""
    size = Resources(cpu_milli=clemson.VCPU * 1000, memory_mib=16_384)
    pools = []
    for project in clemson.cloud().projects:
        region = project.zones[0].region
        zones = tuple(zone.name for zone in project.zones)
        stock = [
            (start_ms + points[0][0], sum(machines for _, machines in points) * nodes // (clemson.PEAK * len(zones)))
            for points in zip(*(zone.stock for zone in project.zones), strict=True)
        ]
        scaling = ScalingSpec(
            most=max(stock[-1][1] * len(zones), 1),
            region=region,
            zones=zones,
            project=project.name,
            requests_per_100_s=project.requests_per_100_s,
            boot_ms=clemson.BOOT_MS,
            stock=tuple(stock),
            taken_permille_hour=clemson.TAKEN_PERMILLE_HOUR,
        )
        pools.append(PoolSpec(name=region, capacity=size, spot=True, scaling=scaling))
    return CellSpec(
        name="clemson",
        pools=tuple(pools),
        queues=(QueueSpec(name="video"),),
        priority_classes=(PriorityClassSpec(name="normal", value=0),),
        # Stock grows all the time here: who is out of it is asked again soon.
        settings=Settings(
            autoscaling=Autoscaling(
                scale_up_after_ms=0, expanders=("price",), back_off_ms=MINUTE_MS // 2, most_back_off_ms=2 * MINUTE_MS
            )
        ),
    )


def _clemson_feed(nodes: int, seed: int, start_ms: int) -> Iterator[Happening]:
    """Tasks of about an hour, as many at any time as the published run had machines for a little later, and new ones
    for those that end."""
    tasks = clemson.new_tasks(seed)
    sent = 0
    done = 0.0
    for at_ms in range(0, RAMP_MS, MINUTE_MS):
        wanted = int(done + _published(at_ms + AHEAD_MS, nodes))
        if wanted > sent:
            yield start_ms + at_ms, Submit(workloads=tuple(next(tasks) for _ in range(wanted - sent)))
            sent = wanted
        done += _published(at_ms, nodes) * MINUTE_MS / HOUR_MS


def _published(at_ms: int, nodes: int) -> float:
    """Machines that the published run had by then, in proportion to the nodes asked for."""
    before = (0, 0)
    for mark in clemson.MARKS:
        if at_ms < mark[0]:
            share = (at_ms - before[0]) / (mark[0] - before[0])
            return (before[1] + share * (mark[1] - before[1])) / (clemson.PEAK * clemson.VCPU) * nodes
        before = mark
    return before[1] / (clemson.PEAK * clemson.VCPU) * nodes


# -- a week on spot machines ------------------------------------------------------------------------------------------


def _spot_cell(nodes: int, start_ms: int) -> CellSpec:
    return spot_week.cell(spot_week.assumed_market())


def _spot_feed(nodes: int, seed: int, start_ms: int) -> Iterator[Happening]:
    """The jobs of `muster bench spot-week`, under the policy that turns to on-demand when the slack runs out."""
    for job in spot_week.jobs(seed, nodes / spot_week.MOST):
        at_ms = start_ms + job.arrives_ms
        moved = msgspec.structs.replace(job, arrives_ms=at_ms, deadline_ms=start_ms + job.deadline_ms)
        yield at_ms, spot_week.spec_of(moved, "spot first")


# -- days that are foreseen -------------------------------------------------------------------------------------------

QUANTILE_PERMILLE = 900


def _foreseen_cell(nodes: int, start_ms: int) -> CellSpec:
    pool = PoolSpec(
        name="pool",
        capacity=Resources(cpu_milli=NODE_CPU_MILLI),
        price_microusd_hour=PRICE_MICROUSD_HOUR,
        scaling=ScalingSpec(most=2 * nodes, boot_ms=BOOTS_MS[-1]),
    )
    return CellSpec(
        name="predictive-day",
        pools=(pool,),
        queues=(QueueSpec(name="queue"),),
        priority_classes=(PriorityClassSpec(name="normal", value=0),),
        settings=Settings(
            autoscaling=Autoscaling(
                scan_every_ms=MINUTE_MS,
                scale_up_after_ms=0,
                order_timeout_ms=HOUR_MS,
                predict_permille=QUANTILE_PERMILLE,
            )
        ),
    )


def _foreseen_feed(nodes: int, seed: int, start_ms: int) -> Iterator[Happening]:
    """Days like each other, without end: what the forecast has seen it orders machines ahead of."""
    group = TaskGroup(request=Resources(cpu_milli=NODE_CPU_MILLI))
    number = count()
    for day in count():
        hours = [_demand(hour, nodes) for hour in range(DAY_HOURS)]
        for at_ms, run_ms in tasks_of(hours, start_ms + day * DAY_HOURS * HOUR_MS, seed + day):
            yield (
                at_ms,
                WorkloadSpec(
                    id=f"task-{next(number)}",
                    queue="queue",
                    groups=(group,),
                    estimate_ms=run_ms,
                    simulated_runtime_ms=run_ms,
                ),
            )


def _demand(hour: int, nodes: int) -> int:
    """Nodes' worth of work in an hour of the day: a fifth of the most at night, all of it in the afternoon."""
    return round(nodes * (0.6 - 0.4 * math.cos((hour - 3) / DAY_HOURS * math.tau)))


SCENARIOS = {
    "gke-65k": _gke("gke-65k", "training and inference that takes turns, in five phases"),
    "gke-130k": _gke("gke-130k", "batch, training that preempts it, a surge of inference, in four phases"),
    "clemson": LiveScenario(
        load="spot machines in six regions as the published stock gives them, and an hour's tasks",
        nodes=13_000,
        speed=60,
        cell=_clemson_cell,
        feed=_clemson_feed,
    ),
    "spot-week": LiveScenario(
        load="jobs on spot machines that are taken, and on demand when their slack runs out",
        nodes=spot_week.MOST,
        speed=600,
        cell=_spot_cell,
        feed=_spot_feed,
    ),
    "predictive-day": LiveScenario(
        load="days like each other, for which machines are ordered ahead",
        nodes=40,
        speed=600,
        cell=_foreseen_cell,
        feed=_foreseen_feed,
    ),
}
