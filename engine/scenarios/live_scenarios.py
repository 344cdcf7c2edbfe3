"""Scenarios that can be watched: what the cell is, and what happens to it as its time passes.

The same loads that `muster bench` measures, on a clock that people can follow. A feed goes by cell time alone, so a
restart goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count

import msgspec

from engine.model.commands import AnyCommand, Submit
from engine.model.errors import SpecError
from engine.model.specs import (
    HOUR_MS,
    Autoscaling,
    CellSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    ScalingSpec,
    Settings,
    TaskGroup,
    WorkloadSpec,
)
from engine.scenarios import clemson, gke_phases, spot_week
from engine.scenarios.predictive_day import BOOTS_MS, NODE_CPU_MILLI, PRICE_MICROUSD_HOUR, tasks_of

MINUTE_MS = 60_000
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
    """Raises SpecError where there is none of that name."""
    found = SCENARIOS.get(name)
    if found is None:
        raise SpecError("--scenario", f"there is no '{name[:40]}'", f"Use one of: {', '.join(SCENARIOS)}")
    return found


# -- clusters of GKE --------------------------------------------------------------------------------------------------


def _gke(name: str, load: str) -> LiveScenario:
    def feed(nodes: int, seed: int, start_ms: int) -> Iterator[Happening]:
        for phase in gke_phases.phases(name, nodes, seed):
            for at_ms, command in phase.steps:
                if command is not None:
                    yield start_ms + at_ms, command

    def cell(nodes: int, start_ms: int) -> CellSpec:
        return msgspec.structs.replace(gke_phases.cell(nodes), name=name)

    return LiveScenario(load=load, nodes=gke_phases.SCENARIOS[name].nodes, speed=30, cell=cell, feed=feed)


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
