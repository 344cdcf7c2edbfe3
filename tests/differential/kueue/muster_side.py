"""A life as a cell of Muster's engine, which decides by Kueue's rules."""

from __future__ import annotations

import contextlib

import msgspec

from engine.control import Engine
from engine.external.kubernetes.queue_mapping import with_rules
from engine.external.kubernetes_api.kueue_objects import ClusterQueueSpec
from engine.model.commands import Cancel, SetPolicy, Submit
from engine.model.errors import MusterError
from engine.model.specs import (
    CellSpec,
    FlavorQuota,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    TaskGroup,
    TopologyRequest,
    WorkloadSpec,
)
from engine.scheduling.kueue_cycles import MAX_STOPS
from tests.differential.kueue.lives import NODE_CPU, NODES, FlavorLimits, Life, LifeJob, LifeQueue, Step
from tests.differential.kueue.objects import LifeObjects
from tests.differential.kueue.verdicts import Verdict, Verdicts, without_end

STEP_MS = 10_000
AMPLE_CPU = 1_000
AMPLE_NODES, NODE_GPU = 32, 8
"""Nodes of a flavor where there is no topology, and devices of each node: more than a life can ask for."""


class MusterSide:
    """An engine in memory."""

    def __init__(self, life: Life) -> None:
        self.engine = Engine.open(None, cell=cell(life))
        self.engine.command(SetPolicy(policy="kueue"))
        self._now_ms = 0
        self._live: list[str] = []
        self._preempted: dict[str, int] = {}
        self._refused: set[str] = set()

    def play(self, step: Step, *, together: bool = False) -> Verdicts:
        """`together`: all jobs of a step are there when the first is looked at."""
        self._now_ms += STEP_MS
        self.engine.advance(self._now_ms)
        names = [job.name for job in step.submit]
        self._live += names
        self._preempted |= dict.fromkeys(names, 0)
        submits = [Submit(workloads=(workload(job),)) for job in step.submit]
        for at_once in [submits] if together else [[each] for each in submits]:
            answers = self.engine.commands(at_once)
            # What can never start is refused here, and waits for ever in Kueue.
            self._refused |= {
                each.workloads[0].id
                for each, answer in zip(at_once, answers, strict=True)
                if isinstance(answer, MusterError)
            }
        if step.end:
            self._live.remove(step.end)
            with contextlib.suppress(MusterError):
                self.engine.command(Cancel(ids=(step.end,)))
        self.engine.advance(self._now_ms + 1)
        found = {name: self._verdict(name) for name in self._live}
        endless = {name for name, verdict in found.items() if verdict.endless}
        return without_end(self._live, endless) if endless else found

    def _verdict(self, name: str) -> Verdict:
        if name in self._refused:
            return Verdict()
        view = self.engine.workload(name)
        times = sum(item.what == "requeued" for item in view.history)
        before, self._preempted[name] = self._preempted[name], times
        flavor = ""
        if view.state in ("placed", "running"):
            flavor = self.engine.node(view.placement[0].node).pool
        why = "; ".join(reason.text for reason in view.reasons[:1])
        return Verdict(flavor, view.tasks_placed if flavor else 0, times > before, times - before > MAX_STOPS, why)


def cell(life: Life) -> CellSpec:
    cpu = NODE_CPU if life.topology else AMPLE_CPU
    capacity = Resources(cpu_milli=1000 * cpu, gpu_milli=1000 * NODE_GPU)
    pools = tuple(PoolSpec(name=flavor, capacity=capacity, gpu_model="any") for flavor in life.flavors)
    nodes = tuple(
        NodeSpec(
            id=f"{flavor}-{block}{rack}{node}", pool=flavor, block=f"{flavor}{block}", rack=f"{flavor}{block}{rack}"
        )
        for flavor in life.flavors
        for block, rack, node in (NODES if life.topology else [(0, 0, node) for node in range(AMPLE_NODES)])
    )
    cohorts = sorted(life.cohorts, key=lambda name: life.cohorts[name] != "")
    return CellSpec(
        pools=pools,
        nodes=nodes,
        queues=(
            *(QueueSpec(name=name, parent=life.cohorts[name]) for name in cohorts),
            *(queue(life, each) for each in life.queues),
        ),
        priority_classes=tuple(PriorityClassSpec(name=f"p{value}", value=value) for value in (0, 10, 20)),
    )


def queue(life: Life, spec: LifeQueue) -> QueueSpec:
    made = QueueSpec(name=spec.name, parent=spec.cohort, flavors=tuple(map(quota, spec.flavors)))
    objects = LifeObjects(life, "", "", pods=False)
    return with_rules(made, msgspec.convert(objects.cluster_queue(spec)[1]["spec"], ClusterQueueSpec))


def quota(limits: FlavorLimits) -> FlavorQuota:
    given: dict[str, dict[str, int]] = {"nominal": {}, "borrowing_limit": {}, "lending_limit": {}}
    cpu = limits.nominal, limits.borrowing, limits.lending
    for resource, values in (("cpu_milli", cpu), ("gpu_milli", limits.gpu or (None, None, None))):
        for name, value in zip(given, values, strict=True):
            if value is not None:
                given[name][resource] = 1000 * value
    return FlavorQuota(pool=limits.flavor, **given)


def workload(job: LifeJob) -> WorkloadSpec:
    request = Resources(cpu_milli=1000 * job.cpu, gpu_milli=1000 * job.gpu)
    return WorkloadSpec(
        id=job.name,
        queue=job.queue,
        priority_class=f"p{job.priority}",
        groups=(TaskGroup(count=job.count, min_count=job.least, request=request),),
        topology=TopologyRequest(**{job.topology[0]: job.topology[1]}) if job.topology else None,
        simulated_runtime_ms=10**12,
    )
