"""Clemson's run of 2019 on Google Cloud: more than two million vCPUs on spot machines, under the same limits.

Published (https://cloud.google.com/blog/topics/hpc/clemson-experiment-uses-2-1-million-vcpus-on-google-cloud): machines
of 16 vCPU in six regions, one project in each; quotas of 2,000 requests in 100 seconds and project, raised to 6,000;
batches of at most 5,000 with pauses of random length, because the head node dropped connections when too many machines
called at once; tasks of about an hour that start over when their machine is taken; 967 thousand vCPUs after one hour,
1.5 million after one and a half, 2.13 million after three, 133,573 machines at the peak.

Not published, and assumed here: how many calls the head node takes, how long machines boot, how often they are taken,
and when which machines were to be had. For the last, the run itself is the witness: its own marks, reached LEAD_MS
before they were, are the stock. So the times of the marks say nothing about Muster: what the run shows is the pacing of
requests under quotas, and the connections that the head node loses (`SHOWN`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import count

import msgspec

from engine.control import Engine
from engine.elasticity.order_limits import Pacer
from engine.elasticity.providers import (
    CloudReport,
    CloudSpec,
    ProjectSpec,
    ProviderSignal,
    SimulatedCloud,
    ZoneSpec,
    stock_at,
)
from engine.model import commands as cmd
from engine.model.errors import MusterError
from engine.model.specs import (
    HOUR_MS,
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
)

SOURCE = "https://cloud.google.com/blog/topics/hpc/clemson-experiment-uses-2-1-million-vcpus-on-google-cloud"
SHOWN = "quota pacing and lost connections only: the stock is the published ramp itself"
"""The first line of every report of this run."""
VCPU = 16
"""Of one machine."""
PEAK = 133_573
"""Machines."""
MARKS = ((HOUR_MS, 967_000), (HOUR_MS * 3 // 2, 1_500_000), (3 * HOUR_MS, 2_130_000))
"""(time from the start in ms, vCPUs)"""
LEAD_MS = 5 * 60_000
"""Stock is there so long before the published run had the machines: they had to be asked for and to boot."""
REGIONS = ("us-central1", "us-east1", "us-east4", "us-west1", "us-west2", "europe-west1")
ZONES = 3
"""In each region."""
HEAD_CALLS_PER_S = 100
BOOT_MS = (45_000, 100_000)
"""Median and 95th percentile."""
TAKEN_PERMILLE_HOUR = 20
TASK_MS = (45 * 60_000, 75 * 60_000)
"""Run times are drawn evenly from this: about an hour."""
AHEAD = 20_000
"""Tasks that wait at any time, as the feeds are cut as they are needed."""
TICK_MS = 1000
TURN_MS = 5000
"""New machines and tasks are brought to the engine this often."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A published point of the ramp, and ours."""

    published_ms: int
    vcpus: int
    reached_ms: int | None
    """First time at which so many vCPUs were connected; None: never."""
    bound_ms: int
    """No run can be there earlier: what the quotas of requests and the stock allow, with no time to boot."""


class Ramp(msgspec.Struct, frozen=True, kw_only=True):
    """How machines came and went. Cell times, the same in every run of one seed."""

    projects: int
    requests_per_100_s: int
    """Of each project."""
    marks: tuple[Mark, ...]
    peak_machines: int
    requests: int
    over_quota: int
    out_of_stock: int
    calls_lost: int
    taken: int
    """Machines that were taken back."""
    release_ms: int
    """From the end of the run until the last machine was given back: each is a request too."""
    release_machine_hours: int
    """Paid for meanwhile, and of no use."""


class ClemsonResult(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run: with the engine, and, of the machines alone, what one project does under the same conditions and
    what both do when all machines are to be had from the beginning."""

    ramp: Ramp
    one_project: Ramp
    plenty: Ramp
    plenty_one_project: Ramp
    tasks_started: int
    tasks_finished: int
    tasks_restarted: int
    busy_permille: int
    """Of the connected machines' time, how much tasks ran, sampled at every turn."""
    wall_ms: int
    """Of the run with the engine."""


def cloud(projects: int = len(REGIONS), requests_per_100_s: int = 6000, *, plenty: bool = False) -> CloudSpec:
    """The regions as so many projects. The stock is the same however they are divided; with `plenty`, that of the peak
    is there from the beginning."""
    stock = [(0, PEAK * VCPU)] if plenty else _stock()
    zones = [
        ZoneSpec(
            name=f"{region}-{'abc'[i]}",
            region=region,
            stock=tuple(_share(at_ms, vcpus, at * ZONES + i) for at_ms, vcpus in stock),
            boot_ms=BOOT_MS,
            taken_permille_hour=TAKEN_PERMILLE_HOUR,
        )
        for at, region in enumerate(REGIONS)
        for i in range(ZONES)
    ]
    each = -(-len(zones) // projects)
    return CloudSpec(
        projects=tuple(
            ProjectSpec(
                name=f"project-{i}", requests_per_100_s=requests_per_100_s, zones=tuple(zones[i * each :][:each])
            )
            for i in range(projects)
        ),
        head_calls_per_s=HEAD_CALLS_PER_S,
    )


def _stock() -> list[tuple[int, int]]:
    """(cell ms, vCPUs) that there are for us."""
    return [(0, 0), *((at_ms - LEAD_MS, vcpus) for at_ms, vcpus in MARKS[:-1]), (MARKS[-1][0] - LEAD_MS, PEAK * VCPU)]


def _share(at_ms: int, vcpus: int, zone: int) -> tuple[int, int]:
    """The zone's part of it, in machines: they differ, the largest has twice as many as the smallest."""
    count = len(REGIONS) * ZONES
    weights = [2 * count + 2 * i for i in range(count)]
    machines = -(-vcpus // VCPU)
    before, after = sum(weights[:zone]), sum(weights[: zone + 1])
    return at_ms, machines * after // sum(weights) - machines * before // sum(weights)


def cell() -> CellSpec:
    pool = PoolSpec(
        name="spot",
        capacity=Resources(cpu_milli=VCPU * 1000, memory_mib=16_384),
        machine_type="custom-16-16384",
        spot=True,
    )
    return CellSpec(
        name="clemson",
        pools=(pool,),
        queues=(QueueSpec(name="video"),),
        priority_classes=(PriorityClassSpec(name="normal", value=0),),
    )


def bench(*, hours: float = 3.25, seed: int = 1) -> ClemsonResult:
    """Run the ramp and measure it. Raises MusterError if the engine refuses anything."""
    begun = time.perf_counter()
    until_ms = int(hours * HOUR_MS) // TURN_MS * TURN_MS
    run = _Run(cloud(), seed)
    run.go(until_ms)
    ramp = run.ramp(until_ms)
    wall_ms = round((time.perf_counter() - begun) * 1000)
    w = run.engine.state.workloads
    started = sum(w.attempts)
    return ClemsonResult(
        ramp=ramp,
        one_project=fleet_alone(cloud(1, 2000), until_ms, seed),
        plenty=fleet_alone(cloud(plenty=True), until_ms, seed),
        plenty_one_project=fleet_alone(cloud(1, 2000, plenty=True), until_ms, seed),
        tasks_started=started,
        tasks_finished=w.state_counts[WorkloadState.FINISHED],
        tasks_restarted=started - sum(attempts > 0 for attempts in w.attempts),
        busy_permille=run.busy_ms * 1000 // max(run.connected_ms, 1),
        wall_ms=wall_ms,
    )


def fleet_alone(spec: CloudSpec, until_ms: int, seed: int = 1) -> Ramp:
    """The machines without anything running on them."""
    fleet = _Fleet(spec, seed)
    fleet.go(until_ms)
    return fleet.ramp(until_ms)


def bound_ms(spec: CloudSpec, machines: int) -> int:
    """Earliest time at which so many machines may have been granted: one request each, and no more than the stock."""
    granted = at_ms = 0
    while granted < machines:
        granted = 0
        for project in spec.projects:
            allowed = (at_ms // 100_000 + 1) * project.requests_per_100_s
            granted += min(allowed, sum(stock_at(zone, at_ms) for zone in project.zones))
        at_ms += TICK_MS
        if at_ms > 24 * HOUR_MS:
            break
    return at_ms - TICK_MS


class _Fleet:
    """Cloud and pacer."""

    def __init__(self, spec: CloudSpec, seed: int) -> None:
        self.cloud = SimulatedCloud(spec, seed)
        self.pacer = Pacer(spec, seed)
        self.connected: dict[int, int] = {}
        """Machine -> zone."""
        self._reached: dict[int, int] = {}
        self._peak = self._taken = 0

    def go(self, until_ms: int) -> None:
        for now_ms in range(0, until_ms + 1, TICK_MS):
            reports = self.cloud.take_reports(now_ms)
            self.pacer.take(reports)
            for report in reports:
                self.hear(report)
            self.pacer.ask(PEAK, self.cloud, now_ms)
            if now_ms % TURN_MS == 0:
                self.turn(now_ms)

    def hear(self, report: CloudReport) -> None:
        if report.signal == ProviderSignal.CALLED:
            self.connected[report.machine] = report.zone
            self._peak = max(self._peak, len(self.connected))
            for _, vcpus in MARKS:
                if len(self.connected) * VCPU >= vcpus:
                    self._reached.setdefault(vcpus, report.at_ms)
        elif report.signal == ProviderSignal.TAKEN:
            self._taken += 1
            del self.connected[report.machine]

    def turn(self, now_ms: int) -> None:
        """Nobody uses the machines."""

    def ramp(self, now_ms: int) -> Ramp:
        """Give every machine back, and say how it went."""
        release_ms, paid_ms = self._release(now_ms)
        spec, pacer = self.cloud.spec, self.pacer
        return Ramp(
            projects=len(spec.projects),
            requests_per_100_s=spec.projects[0].requests_per_100_s,
            marks=tuple(
                Mark(
                    published_ms=at_ms,
                    vcpus=vcpus,
                    reached_ms=self._reached.get(vcpus),
                    bound_ms=bound_ms(spec, -(-vcpus // VCPU)),
                )
                for at_ms, vcpus in MARKS
            ),
            peak_machines=self._peak,
            requests=pacer.requests,
            over_quota=self.cloud.over_quota,
            out_of_stock=pacer.out_of_stock,
            calls_lost=pacer.calls_lost,
            taken=self._taken,
            release_ms=release_ms,
            release_machine_hours=paid_ms // HOUR_MS,
        )

    def _release(self, from_ms: int) -> tuple[int, int]:
        """(how long it takes to give every machine back, machines x milliseconds paid for meanwhile)"""
        for machine, zone in self.connected.items():
            self.pacer.release(zone, (machine,))
        now_ms, paid_ms = from_ms, 0
        while self.pacer.leaving:
            self.pacer.ask(0, self.cloud, now_ms)
            paid_ms += self.pacer.leaving * TICK_MS
            now_ms += TICK_MS
        return now_ms - from_ms, paid_ms


class _Run(_Fleet):
    """With an engine, whose work runs on the machines."""

    def __init__(self, spec: CloudSpec, seed: int) -> None:
        super().__init__(spec, seed)
        self.engine = Engine.open(None, cell=cell(), seed=seed)
        self.engine.cycle_every_ms = TURN_MS
        self.busy_ms = self.connected_ms = 0
        self._tasks = new_tasks(seed)
        self._up: dict[int, int] = {}
        """Machines that called -> their zone, brought to the engine with the next turn."""
        self._down: list[int] = []

    def hear(self, report: CloudReport) -> None:
        super().hear(report)
        if report.signal == ProviderSignal.CALLED:
            self._up[report.machine] = report.zone
        elif report.signal == ProviderSignal.TAKEN and self._up.pop(report.machine, None) is None:
            # One that the engine does not know yet never comes.
            self._down.append(report.machine)

    def turn(self, now_ms: int) -> None:
        """Give the engine what came and went, and let its time pass."""
        w = self.engine.state.workloads
        self.busy_ms += w.state_counts[WorkloadState.RUNNING] * TURN_MS
        self.connected_ms += len(self.connected) * TURN_MS
        commands: list[cmd.AnyCommand] = []
        if self._down:
            commands.append(cmd.RemoveNodes(ids=tuple(f"vm-{machine}" for machine in self._down)))
        if self._up:
            commands.append(cmd.AddNodes(nodes=tuple(self._node(machine, zone) for machine, zone in self._up.items())))
        self._down, self._up = [], {}
        missing = AHEAD - w.state_counts[WorkloadState.QUEUED]
        if missing > AHEAD // 10 and self.connected:
            commands.append(cmd.Submit(workloads=tuple(next(self._tasks) for _ in range(missing))))
        for answer in self.engine.commands(commands):
            if isinstance(answer, MusterError):
                raise answer
        self.engine.advance(now_ms + TURN_MS)

    def _node(self, machine: int, zone: int) -> NodeSpec:
        place = self.cloud.zones[zone]
        return NodeSpec(id=f"vm-{machine}", pool="spot", region=place.region, zone=place.name)


def new_tasks(seed: int) -> Iterator[WorkloadSpec]:
    """Tasks without end, each for a whole machine."""
    draw = random.Random(f"tasks {seed}")
    groups = (TaskGroup(request=Resources(cpu_milli=VCPU * 1000, memory_mib=16_384)),)
    for number in count():
        yield WorkloadSpec(
            id=f"segment-{number}",
            queue="video",
            groups=groups,
            estimate_ms=HOUR_MS,
            simulated_runtime_ms=draw.randint(*TASK_MS),
        )
