"""The load of Kueue's scheduler performance tests, run through the engine in virtual time.

Source of shapes and published figures: kubernetes-sigs/kueue, test/performance/scheduler (configs/*/generator.yaml and
rangespec.yaml, runner/, minimalkueue/), read at the commit COMMIT.

What is kept: the queues with their quota and preemption rules; how many workloads of which size, run time and priority
arrive when; work that is preempted starts from nothing. What stands in for what: a unit is one CPU, a workload of n
units a gang of n tasks, and the nodes hold exactly the nominal quota of all queues, in tasks of one unit that fit
anywhere, so that quota alone limits. What is left out: API server, admission webhooks, kubelet and network, which are
part of every published figure.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from engine.control import Engine
from engine.model.commands import Submit
from engine.model.details import WorkloadDetail
from engine.model.errors import MusterError
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    Settings,
    TaskGroup,
    WorkloadSpec,
)
from engine.traces.progress import counted

COMMIT = "ff69552e"
COMMIT_DATE = "2026-08-22"
UNIT = Resources(cpu_milli=1000)

Estimates = Literal["none", "known"]
"""What the engine is told of run times before they have passed: nothing, as in Kueue, or the truth."""


class WorkloadMix(msgspec.Struct, frozen=True, kw_only=True):
    """The workloads of one class, in every queue."""

    name: str
    count: int
    interval_ms: int
    """The first arrives this long after the start, each further one this long after the one before."""
    units: int
    runtime_ms: int
    priority: int
    published_ms: int
    """Kueue's mean time to the last admission of such a workload."""

    @property
    def unit_ms(self) -> int:
        """Work of all of them in one queue."""
        return self.count * self.units * self.runtime_ms


class KueueScenario(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration of the tests, and what Kueue published for it."""

    config: str
    """Its folder in test/performance/scheduler/configs."""
    cohorts: int
    queues: int
    """In each cohort."""
    nominal: int
    """Units of each queue."""
    borrowing_limit: int
    mix: tuple[WorkloadMix, ...]
    published_wall_ms: int
    """Mean wall time of a whole test, arrivals in real time included."""
    published_usage_permille: int
    """Mean use of the nominal quota over a test."""

    @property
    def workloads(self) -> int:
        return self.cohorts * self.queues * sum(mix.count for mix in self.mix)

    @property
    def work_unit_ms(self) -> int:
        """Units x milliseconds of all workloads together."""
        return self.cohorts * self.queues * sum(mix.unit_ms for mix in self.mix)

    @property
    def capacity(self) -> int:
        """Units of the whole cell."""
        return self.cohorts * self.queues * self.nominal

    @property
    def capacity_bound_ms(self) -> int:
        """No schedule is shorter: all work at full use from the start."""
        return -(-self.work_unit_ms // self.capacity)

    @property
    def arrival_bound_ms(self) -> int:
        """No schedule is shorter either: from any arrival on, at full use with what had not come before it. All queues
        are alike, so one stands for all."""
        arriving = sorted(
            (mix.interval_ms * (i + 1), mix.units * mix.runtime_ms) for mix in self.mix for i in range(mix.count)
        )
        bound = left = 0
        for at_ms, unit_ms in reversed(arriving):
            left += unit_ms
            bound = max(bound, at_ms + -(-left // self.nominal))
        return bound


SCENARIOS = {
    "kueue-baseline": KueueScenario(
        config="baseline",
        cohorts=5,
        queues=6,
        nominal=20,
        borrowing_limit=100,
        mix=(
            WorkloadMix(
                name="small", count=350, interval_ms=100, units=1, runtime_ms=200, priority=50, published_ms=215_468
            ),
            WorkloadMix(
                name="medium", count=100, interval_ms=500, units=5, runtime_ms=500, priority=100, published_ms=76_768
            ),
            WorkloadMix(
                name="large", count=50, interval_ms=1200, units=20, runtime_ms=1000, priority=200, published_ms=16_501
            ),
        ),
        published_wall_ms=351_116,
        published_usage_permille=559,
    ),
    "kueue-large-scale": KueueScenario(
        config="large-scale",
        cohorts=10,
        queues=100,
        nominal=20,
        borrowing_limit=100,
        mix=(
            WorkloadMix(
                name="small", count=35, interval_ms=60, units=1, runtime_ms=150, priority=50, published_ms=700_379
            ),
            WorkloadMix(
                name="medium", count=11, interval_ms=300, units=5, runtime_ms=350, priority=100, published_ms=256_413
            ),
            WorkloadMix(
                name="large", count=4, interval_ms=700, units=20, runtime_ms=700, priority=200, published_ms=105_604
            ),
        ),
        published_wall_ms=1_179_411,
        published_usage_permille=386,
    ),
}


class TimeSpread(msgspec.Struct, frozen=True, kw_only=True):
    """The spread of some times."""

    mean_ms: int
    p95_ms: int
    max_ms: int


class ClassResult(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the workloads of one class. Times from submission."""

    name: str
    workloads: int
    first_admission: TimeSpread
    final_admission: TimeSpread
    """To the start of the attempt that finished, which is the time Kueue publishes."""
    preemptions: int
    """Of running work."""
    withdrawn: int
    """Placements taken back for another workload before an executor saw them."""
    lost_unit_ms: int
    """Units x milliseconds that preempted attempts had run."""


class KueueResult(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run. Everything but the wall time is cell time, the same in every run of one seed."""

    workloads: int
    makespan_ms: int
    """From the start of the arrivals to the last end."""
    used_permille: int
    """Of the capacity over the makespan, with work that was lost."""
    starts: int
    preemptions: int
    withdrawn: int
    lost_unit_ms: int
    cycles: int
    """Moments at which something happened: work arrived, work ended, or what was preempted might preempt again."""
    wall_ms: int
    """Wall time of the engine from its definition to the last end. Making the workload specs is not in it."""
    decisions_per_s: int
    """Starts and preemptions per second of wall time."""
    classes: tuple[ClassResult, ...]


def cell(scenario: KueueScenario) -> CellSpec:
    """A node of the size of a queue for every queue; cohorts have no quota of their own. Preemption waits for nothing,
    as in Kueue."""
    cohorts = [QueueSpec(name=f"cohort{c}") for c in range(scenario.cohorts)]
    nominal, limit = ({"cpu_milli": n * UNIT.cpu_milli} for n in (scenario.nominal, scenario.borrowing_limit))
    queues = [
        QueueSpec(name=name, parent=cohort.name, nominal=nominal, borrowing_limit=limit, reclaim="any")
        for cohort in cohorts
        for name in _queue_names(cohort.name, scenario.queues)
    ]
    return CellSpec(
        name="kueue",
        pools=(PoolSpec(name="plain", capacity=Resources(cpu_milli=scenario.nominal * UNIT.cpu_milli)),),
        nodes=tuple(NodeSpec(id=f"n{i}", pool="plain") for i in range(len(queues))),
        queues=(*cohorts, *queues),
        priority_classes=tuple(
            PriorityClassSpec(name=mix.name, value=mix.priority, preemption="lower") for mix in scenario.mix
        ),
        settings=Settings(preempt_after_ms=0),
    )


def arrivals(
    scenario: KueueScenario, *, estimates: Estimates = "none", seed: int = 1
) -> Iterator[tuple[int, WorkloadSpec]]:
    """(cell ms, workload) of the whole load in order of time. The order of those that arrive at one instant, which is
    chance in Kueue's test too, is drawn from the seed."""
    draw = random.Random(seed)
    queues = [name for c in range(scenario.cohorts) for name in _queue_names(f"cohort{c}", scenario.queues)]
    order = sorted(
        (mix.interval_ms * (i + 1), draw.getrandbits(32), queue, row, i)
        for row, mix in enumerate(scenario.mix)
        for i in range(mix.count)
        for queue in queues
    )
    groups = [(TaskGroup(count=mix.units, request=UNIT),) for mix in scenario.mix]
    for at_ms, _, queue, row, i in order:
        mix = scenario.mix[row]
        yield (
            at_ms,
            WorkloadSpec(
                id=f"{queue}/{mix.name}-{i}",
                queue=queue,
                groups=groups[row],
                priority_class=mix.name,
                estimate_ms=mix.runtime_ms if estimates == "known" else 0,
                simulated_runtime_ms=mix.runtime_ms,
            ),
        )


def _queue_names(cohort: str, queues: int) -> list[str]:
    return [f"{cohort}/queue{q}" for q in range(queues)]


def bench(scenario: KueueScenario, *, estimates: Estimates = "none", seed: int = 1) -> KueueResult:
    """Run the load to its end and measure it. Raises MusterError if work is left that never starts."""
    load = list(arrivals(scenario, estimates=estimates, seed=seed))
    begun = time.perf_counter()
    engine, cycles = run(scenario, load)
    return measure(scenario, engine, cycles, time.perf_counter() - begun)


def run(scenario: KueueScenario, load: Sequence[tuple[int, WorkloadSpec]]) -> tuple[Engine, int]:
    """The engine when nothing runs any more, and the cycles it took. Every workload is a submission of its own; at
    equal times ends come before arrivals."""
    engine = Engine.open(None, cell=cell(scenario))
    cycles = 0
    for at_ms, arriving in groupby(counted(load, "workloads", len(load)), key=lambda entry: entry[0]):
        cycles += _let_end(engine, at_ms)
        engine.advance(at_ms)
        for answer in engine.commands([Submit(workloads=(spec,)) for _, spec in arriving]):
            if isinstance(answer, MusterError):
                raise answer
        cycles += 1
    return engine, cycles + _let_end(engine, None)


def _let_end(engine: Engine, until_ms: int | None) -> int:
    """Pass time to each instant at which work ends, up to a time or until nothing runs. How many there were."""
    instants = 0
    while (end_ms := engine.next_due()) is not None and (until_ms is None or end_ms <= until_ms):
        engine.advance(end_ms)
        instants += 1
    return instants


def measure(scenario: KueueScenario, engine: Engine, cycles: int, wall_s: float) -> KueueResult:
    """The figures of a finished run. Raises MusterError if work is left."""
    views: dict[str, list[WorkloadDetail]] = {mix.name: [] for mix in scenario.mix}
    makespan_ms = 0
    for workload_id in engine.state.workloads.ids:
        view = engine.workload(workload_id)
        if view.ended_ms is None:
            raise MusterError(f"workload '{workload_id}' never finished: it is {view.state} and nothing runs any more")
        makespan_ms = max(makespan_ms, view.ended_ms)
        views[view.priority_class].append(view)
    classes = tuple(_class_result(mix, views[mix.name]) for mix in scenario.mix)
    preemptions = sum(result.preemptions for result in classes)
    starts = scenario.workloads + preemptions
    lost_unit_ms = sum(result.lost_unit_ms for result in classes)
    used_unit_ms = scenario.work_unit_ms + lost_unit_ms
    return KueueResult(
        workloads=scenario.workloads,
        makespan_ms=makespan_ms,
        used_permille=used_unit_ms * 1000 // (scenario.capacity * makespan_ms),
        starts=starts,
        preemptions=preemptions,
        withdrawn=sum(result.withdrawn for result in classes),
        lost_unit_ms=lost_unit_ms,
        cycles=cycles,
        wall_ms=round(wall_s * 1000),
        decisions_per_s=round((starts + preemptions) / wall_s),
        classes=classes,
    )


def _class_result(mix: WorkloadMix, views: list[WorkloadDetail]) -> ClassResult:
    """Return the results of workloads that are all of one class and all finished."""
    first, final = [], []
    preemptions = withdrawn = lost_ms = 0
    for view in views:
        starts: list[int] = []
        runs = False
        for item in view.history:
            if item.what == "running":
                starts.append(item.at_ms)
                runs = True
            elif item.what == "requeued" and runs:
                preemptions += 1
                lost_ms += item.at_ms - starts[-1]
                runs = False
            elif item.what == "requeued":
                withdrawn += 1
        first.append(starts[0] - view.submitted_ms)
        final.append(starts[-1] - view.submitted_ms)
    return ClassResult(
        name=mix.name,
        workloads=len(views),
        first_admission=_spread(first),
        final_admission=_spread(final),
        preemptions=preemptions,
        withdrawn=withdrawn,
        lost_unit_ms=lost_ms * mix.units,
    )


def _spread(times_ms: list[int]) -> TimeSpread:
    ordered = sorted(times_ms)
    return TimeSpread(
        mean_ms=round(sum(ordered) / len(ordered)), p95_ms=ordered[len(ordered) * 95 // 100], max_ms=ordered[-1]
    )
