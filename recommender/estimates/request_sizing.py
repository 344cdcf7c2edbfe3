"""Requests against use: the use of each kind of work ("tenant/stem of its name"), and what it should ask for.

Use is kept as the Vertical Pod Autoscaler keeps it (kubernetes/autoscaler, vertical-pod-autoscaler/docs: CPU half-life
24 h, memory peaks of 24 h over 8 days, targets at the 90th percentile and 15 % above): histograms whose buckets grow by
5 %, whose counts decay by half every so often. CPU counts as sampled, memory as the peak of each interval or run,
because work that gets too little CPU is slow and work that gets too little memory dies. A run that seems to have died
of it counts with more.

The recommended request of one task is the Autoscaler's too: a target percentile of use, a safety margin on it, rounded
up, within bounds; with what it saves.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.admission.workload_changes import RequestRecommendation as Size
from engine.model.quantities import counted, whole
from engine.model.specs import PoolSpec
from engine.state.ledger import share
from recommender.estimates.queries import Basis, Need, QuantileSpread, SizedKind, UseEstimate
from recommender.findings.suggestions import MAX_TARGETS, Benefit, Evidence, Suggestion
from recommender.history.metrics import RunRecord, kind_of

if TYPE_CHECKING:
    from engine.model.specs import WorkloadSpec


CPU_SHARE, MEMORY_SHARE = 0.90, 0.95
MARGIN = 1.15
MIN_CPU_MILLI, MIN_MEMORY_MIB = 25, 250
SURE = 1.0
"""Confidence from which on requests are changed by themselves, where the cell lets them, and changes are suggested."""
WASTE = 0.3
"""Part of the CPU or memory asked for that must be of no use before cutting it is suggested."""
SHORT = 1.1
"""A p95 so many times what is asked for is a finding: it is kept in steps of 5 %."""
MIN_SAVED_CPU_MILLI, MIN_SAVED_MEMORY_MIB = 4_000, 16_384
"""Of all running tasks of a kind together: less is not worth anybody's time."""


class TaskGroupUse(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of one kind that ask for the same and are in one pool."""

    kind: str
    ids: tuple[str, ...]
    """Of their workloads that go on from a checkpoint, or are services: others cannot be resized while they run."""
    tasks: int
    cpu_milli: int
    """Asked for by one task."""
    memory_mib: int
    gpu_milli: int
    pool: PoolSpec
    """Where they run."""
    guaranteed: bool = False
    """They are held to what they ask for."""


def recommended(use: KindUse) -> tuple[int, int]:
    """(CPU milli, memory MiB) that one task should ask for; 0 where nothing is known."""
    cpu = use.cpu if use.cpu.count else use.run_cpu
    milli = round_cpu(cpu.quantile(CPU_SHARE) * MARGIN) if cpu.count else 0
    memory = use.memory_quantile(MEMORY_SHARE)
    return milli, round_memory(memory * MARGIN) if memory else 0


def round_cpu(milli: float) -> int:
    """Up to steps of 10 milli below half a core, else of 100."""
    step = 10 if milli < 500 else 100
    return max(math.ceil(milli / step - 1e-9) * step, MIN_CPU_MILLI)


def round_memory(mib: float) -> int:
    """Up to steps of 64 MiB below 2 GiB, else of 1 GiB."""
    step = 64 if mib < 2048 else 1024
    return max(math.ceil(mib / step - 1e-9) * step, MIN_MEMORY_MIB)


class Sizer:
    """Asked by the engine before new work starts (`engine.admission.workload_changes.RequestRecommender`). Answers
    from what was last told."""

    def __init__(self) -> None:
        self._sizes: dict[str, Size] = {}

    def tell(self, model: UsageModel) -> None:
        """Go by what the model knows now."""
        sizes = {}
        for kind, use in model.kinds.items():
            if use.confidence >= SURE:
                cpu, memory = recommended(use)
                sizes[kind] = Size(group="", cpu_milli=cpu, memory_mib=memory, evidence=evidence(use))
        self._sizes = sizes

    def recommend(self, spec: WorkloadSpec) -> Sequence[Size]:
        """Nothing for work of several groups: what was measured is of its tasks together."""
        size = self._sizes.get(kind_of(spec.tenant, spec.name))
        if size is None or len(spec.groups) != 1:
            return ()
        return (msgspec.structs.replace(size, group=spec.groups[0].name),)


def evidence(use: KindUse) -> str:
    """Describe the evidence, as in `p90 CPU 420m, p95 memory 1,740 MiB of 1,440 samples and 12 runs, x 1.15`."""
    cpu = use.cpu if use.cpu.count else use.run_cpu
    return (
        f"p90 CPU {cpu.quantile(CPU_SHARE):.0f}m, p95 memory {use.memory_quantile(MEMORY_SHARE):,.0f} MiB of "
        f"{use.samples:,} samples and {use.runs:,} runs, x {MARGIN:g}"
    )


def sized(model: UsageModel, running: Sequence[TaskGroupUse]) -> list[SizedKind]:
    """Every kind of which anything is known; what saves most first."""
    by_kind: dict[str, list[TaskGroupUse]] = {}
    for each in running:
        by_kind.setdefault(each.kind, []).append(each)
    found = [sized_kind(kind, use, by_kind.get(kind, ())) for kind, use in sorted(model.kinds.items())]
    return sorted(found, key=lambda each: (-each.saved_microusd_hour, -each.saved_cpu_milli, each.kind))


def sized_kind(kind: str, use: KindUse, running: Sequence[TaskGroupUse]) -> SizedKind:
    cpu, memory = recommended(use)
    saved = [savings(each, cpu, memory) for each in running]
    cpus = use.cpu if use.cpu.count else use.run_cpu
    asked = max(running, key=lambda each: (each.tasks, each.cpu_milli, each.memory_mib), default=None)
    return SizedKind(
        kind=kind,
        cpu=Need(
            asked=asked.cpu_milli if asked else use.cpu_asked,
            p50=round(cpus.quantile(0.5)),
            p95=round(cpus.quantile(0.95)),
            recommended=cpu,
        ),
        memory=Need(
            asked=asked.memory_mib if asked else use.memory_asked,
            p50=round(use.memory_quantile(0.5)),
            p95=round(use.memory_quantile(0.95)),
            recommended=memory,
        ),
        samples=use.samples,
        runs=use.runs,
        confidence=round(use.confidence, 3),
        tasks=sum(each.tasks for each in running),
        bumped=use.bumped,
        saved_cpu_milli=sum(each[0] for each in saved),
        saved_memory_mib=sum(each[1] for each in saved),
        saved_microusd_hour=sum(each[2] for each in saved),
    )


def savings(running: TaskGroupUse, cpu_milli: int, memory_mib: int) -> tuple[int, int, int]:
    """(CPU milli, memory MiB, micro-USD per hour) that these tasks would save, were they to ask for so much. Money goes
    by the ledger's rule."""
    cpu, memory = cpu_milli or running.cpu_milli, memory_mib or running.memory_mib
    before, after = (
        share(running.pool, milli, mib, running.gpu_milli)
        for milli, mib in ((running.cpu_milli, running.memory_mib), (cpu, memory))
    )
    money = round((before - after) * running.pool.price_microusd_hour * running.tasks)
    return (running.cpu_milli - cpu) * running.tasks, (running.memory_mib - memory) * running.tasks, money


# -- findings ---------------------------------------------------------------------------------------------------------


def sizing_findings(kinds: Sequence[SizedKind], running: Sequence[TaskGroupUse]) -> list[Suggestion]:
    """Kinds that ask for far more than they use, and such as may run out of memory."""
    by_kind: dict[str, list[TaskGroupUse]] = {}
    for each in running:
        by_kind.setdefault(each.kind, []).append(each)
    found = []
    for kind in kinds:
        if kind.confidence < SURE or not kind.tasks:
            continue
        mine, cpu, memory = by_kind[kind.kind], kind.cpu.recommended, kind.memory.recommended
        # Where tasks of a kind ask for different amounts, its p95 may be that of the larger ones. What is held to its
        # request uses no more of it, but dies.
        alike = len({each.memory_mib for each in mine}) == 1
        possible = kind.bumped > 0 or not all(each.guaranteed for each in mine)
        if alike and possible and 0 < kind.memory.asked * SHORT < kind.memory.p95:
            found.append(short_of_memory(kind, [id_ for each in mine if each.memory_mib < memory for id_ in each.ids]))
        elif wasteful(kind):
            larger = [each for each in mine if each.cpu_milli > cpu or each.memory_mib > memory]
            found.append(too_large(kind, [id_ for each in larger for id_ in each.ids]))
    return found


def wasteful(kind: SizedKind) -> bool:
    cut_cpu = kind.saved_cpu_milli >= MIN_SAVED_CPU_MILLI and over(kind.cpu)
    cut_memory = kind.saved_memory_mib >= MIN_SAVED_MEMORY_MIB and over(kind.memory)
    return cut_cpu or cut_memory


def over(need: Need) -> bool:
    return 0 < need.recommended < (1 - WASTE) * need.asked


def too_large(kind: SizedKind, ids: Sequence[str]) -> Suggestion:
    changes = {name: need for name, need in (("cpu", kind.cpu), ("memory", kind.memory)) if over(need)}
    return suggestion(
        kind,
        ids,
        changes,
        token="oversized",
        finding=f"{counted(kind.tasks, 'task')} of {kind.kind} request more than they use: "
        f"{whole(max(kind.saved_cpu_milli, 0))} CPU and {max(kind.saved_memory_mib, 0) / 1024:,.0f} GiB could be free",
        counterfactual=f"Not suggested if less than {100 * WASTE:.0f} % of their request were unused",
        nothing="No action: waiting work cannot use the unused part",
        benefit=Benefit(at_risk_gpu_milli_h=max(kind.saved_cpu_milli, 0) * 24 // 16),
    )


def short_of_memory(kind: SizedKind, ids: Sequence[str]) -> Suggestion:
    return suggestion(
        kind,
        ids,
        {"memory": kind.memory},
        token="short_of_memory",
        finding=f"{kind.kind} uses more memory than it requests: {kind.memory.p95:,} MiB (p95), "
        f"{kind.memory.asked:,} MiB requested",
        counterfactual="Not suggested if its p95 were below its request",
        nothing="No action: under memory pressure it is evicted first",
        benefit=Benefit(),
    )


def suggestion(
    kind: SizedKind,
    ids: Sequence[str],
    changes: dict[str, Need],
    *,
    token: str,
    finding: str,
    counterfactual: str,
    nothing: str,
    benefit: Benefit,
) -> Suggestion:
    """Suggest to resize the kind's running work that can be stopped for it; where there is none, to tell people."""
    words = {"cpu": lambda value: f"{value}m", "memory": lambda value: f"{value}MiB"}
    request = tuple(f"{name}={words[name](need.recommended)}" for name, need in changes.items())
    return Suggestion(
        kind=token,
        about=kind.kind,
        finding=finding,
        action="resize" if ids else "notify",
        targets=tuple(ids[:MAX_TARGETS]) or (kind.kind,),
        parameters=("--request", *request) if ids else (),
        evidence=tuple(
            Evidence(
                metric=f"use_{'cpu' if name == 'cpu' else 'memory_mib'} of {kind.kind}, p95 of one task",
                window="half-life 24 h",
                rows=kind.samples + kind.runs,
                value=words[name](need.p95),
                baseline=f"{words[name](need.asked)} asked for, {words[name](need.recommended)} recommended",
            )
            for name, need in changes.items()
        ),
        counterfactual=counterfactual,
        alternatives=(
            "Set rightsizing to initial: new work of known kinds starts with the recommended request",
            "Tell its owner: the next submission can change its request",
            nothing,
        ),
        thin=(
            *((f"{kind.runs} runs and {kind.samples} samples so far",) if kind.confidence < 2 * SURE else ()),
            *(() if ids else ("no running task has a checkpoint to continue from: this is for new work",)),
        ),
        severity=kind.saved_cpu_milli / 1000,
        benefit=benefit,
        # Those that run on as they are cost what they do.
        cost_delta_microusd_hour=-kind.saved_microusd_hour if ids else None,
    )


Floats = NDArray[np.float64]
Times = NDArray[np.int64]

DAY_MS = 86_400_000
HALF_LIFE_MS = DAY_MS
PEAK_INTERVAL_MS = DAY_MS
PEAK_HALF_LIFE_MS = 8 * DAY_MS // 8
"""Of memory peaks, in step with the intervals: after eight of them a peak counts 1/256."""
GROWTH = 1.05
FIRST_CPU, MAX_CPU = 10.0, 1e6
"""Milli: upper edge of the first bucket, and the largest that is told."""
FIRST_MEMORY, MAX_MEMORY = 10.0, 1e8
"""MiB."""
FIRST_RATIO, MAX_RATIO = 0.01, 100.0
FULL = 0.98
"""A memory peak above this part of the request is taken for a run that wanted more."""
BUMP, BUMP_MIB = 1.2, 100
"""What such a peak counts as: so much more of it, and at least so many MiB more."""
MIN_RUNS = 3
"""Of a kind, before its own runs tell what the next one uses."""
SAMPLES_OF_A_DAY = 288
RUNS_OF_A_DAY = 10
"""So many runs count for the confidence as much as a day of samples."""
RESCALE = 100.0
"""Half-lives after which weights are brought back to a scale that floats hold."""


class DecayingHistogram:
    """Weighted values in buckets that grow by GROWTH; weights halve every half-life."""

    def __init__(self, first: float, most: float, half_life_ms: int) -> None:
        self._edges = edges_of(first, most)
        self._weights = np.zeros(len(self._edges))
        self._half_life_ms = half_life_ms
        self._since_ms = 0
        """Time at which a weight of 1 is worth 1."""
        self.count = 0
        """Values added, however long ago."""

    def add(self, values: Sequence[float] | Floats, at_ms: Sequence[int] | Times) -> None:
        """Values of 0 or more, at times in any order."""
        if not len(values):
            return
        times = np.asarray(at_ms, np.float64)
        self._keep_scale(int(times.max()))
        weights = np.exp2(np.maximum((times - self._since_ms) / self._half_life_ms, -RESCALE))
        at = np.minimum(np.searchsorted(self._edges, np.asarray(values, np.float64)), len(self._edges) - 1)
        np.add.at(self._weights, at, weights)
        self.count += len(values)

    def add_one(self, value: float, at_ms: int) -> None:
        """The same for a single value, without the arrays: history comes run by run, and by the ten thousand."""
        self._keep_scale(at_ms)
        at = min(bisect_left(self._edges, value), len(self._edges) - 1)
        self._weights[at] += 2.0 ** max((at_ms - self._since_ms) / self._half_life_ms, -RESCALE)
        self.count += 1

    def _keep_scale(self, newest_ms: int) -> None:
        if not self.count:
            self._since_ms = newest_ms
        elif newest_ms - self._since_ms > RESCALE * self._half_life_ms:
            self._weights *= 0.5 ** ((newest_ms - self._since_ms) / self._half_life_ms)
            self._since_ms = newest_ms

    def quantile(self, share: float) -> float:
        """The upper edge of the bucket below which lies so much of the weight; 0 while it is empty."""
        sums = np.cumsum(self._weights)
        if not self.count or not sums[-1] > 0:
            return 0.0
        return self._edges[min(int(np.searchsorted(sums, share * sums[-1])), len(self._edges) - 1)]


@cache
def edges_of(first: float, most: float) -> tuple[float, ...]:
    """Upper edges of the buckets."""
    count = math.ceil(math.log(most / first) / math.log(GROWTH)) + 1
    return tuple((first * GROWTH ** np.arange(count)).tolist())


class KindUse:
    """The measured use of one kind."""

    def __init__(self) -> None:
        self.cpu = DecayingHistogram(FIRST_CPU, MAX_CPU, HALF_LIFE_MS)
        """Samples of what one task used."""
        self.memory = DecayingHistogram(FIRST_MEMORY, MAX_MEMORY, PEAK_HALF_LIFE_MS)
        """Peaks of one task: of runs, and of intervals."""
        self.run_cpu = DecayingHistogram(FIRST_CPU, MAX_CPU, HALF_LIFE_MS)
        self.run_memory = DecayingHistogram(FIRST_MEMORY, MAX_MEMORY, PEAK_HALF_LIFE_MS)
        self.cpu_asked = self.memory_asked = 0
        """Of one task, as the last ended run asked; 0 not known."""
        self.bumped = 0
        """Runs that seem to have wanted more memory than they had."""
        self.samples = 0
        self.runs = 0
        self._peak: tuple[int, float] = (-1, 0.0)
        """Interval that is under way, and the most in it."""

    @property
    def confidence(self) -> float:
        """1 after a day of samples, one in five minutes, or after RUNS_OF_A_DAY runs."""
        return max(self.samples / SAMPLES_OF_A_DAY, self.runs / RUNS_OF_A_DAY)

    def memory_quantile(self, share: float) -> float:
        """Return a quantile of memory, with the peak of the interval under way, which counts from its first sample
        on."""
        return max(self.memory.quantile(share), self._peak[1] if self.memory.count < RUNS_OF_A_DAY else 0.0)

    def sample_memory(self, at_ms: Times, memory_mib: Floats) -> None:
        for interval, most in peaks_of(at_ms, memory_mib):
            if interval > self._peak[0]:
                if self._peak[0] >= 0:
                    self.memory.add_one(self._peak[1], (self._peak[0] + 1) * PEAK_INTERVAL_MS)
                self._peak = (interval, most)
            elif interval == self._peak[0]:
                self._peak = (interval, max(self._peak[1], most))


def peaks_of(at_ms: Times, values: Floats) -> list[tuple[int, float]]:
    """(interval, most in it), ascending."""
    intervals = at_ms // PEAK_INTERVAL_MS
    return [(int(each), float(values[intervals == each].max())) for each in np.unique(intervals)]


class UsageModel:
    """Learns from samples and ended runs; tells what kinds use. Times may come in any order, late ones count less."""

    def __init__(self) -> None:
        self.kinds: dict[str, KindUse] = {}
        self._ratios: dict[str, tuple[DecayingHistogram, DecayingHistogram, list[int]]] = {}
        """Tenant, or "" for all -> peak use of what was asked for, CPU and memory; and the number of runs."""

    def sample(self, kind: str, at_ms: Times, cpu_milli: Floats, memory_mib: Floats) -> None:
        """[sample] What one task of the kind used at these times, ascending; 0 is not known. Samples are taken as
        those of five minutes each."""
        use = self._kind(kind)
        used = cpu_milli > 0
        use.cpu.add(cpu_milli[used], at_ms[used])
        used_memory = memory_mib > 0
        use.sample_memory(at_ms[used_memory], memory_mib[used_memory])
        use.samples += int((used | used_memory).sum())

    def ended(self, runs: Iterable[RunRecord]) -> None:
        """Learn what they used at their peak. Those whose use is not known tell nothing."""
        for run in runs:
            kind = kind_of(run.tenant, run.name)
            if not kind or run.started_ms < 0 or max(run.peak_cpu_milli, run.peak_memory_mib) <= 0:
                continue
            use, tasks = self._kind(kind), max(run.tasks, 1)
            cpu_asked, memory_asked = run.cpu_milli // tasks, run.memory_mib // tasks
            use.cpu_asked, use.memory_asked = cpu_asked or use.cpu_asked, memory_asked or use.memory_asked
            use.runs += 1
            memory = float(max(run.peak_memory_mib, 0))
            # More than one attempt tells nothing: most are preemptions.
            if run.outcome == "failed" and memory_asked and memory >= FULL * memory_asked:
                memory = max(memory * BUMP, memory + BUMP_MIB)
                use.bumped += 1
            if run.peak_cpu_milli > 0:
                use.run_cpu.add_one(run.peak_cpu_milli, run.ended_ms)
            if memory:
                use.memory.add_one(memory, run.ended_ms)
                use.run_memory.add_one(memory, run.ended_ms)
            for group in dict.fromkeys(("", run.tenant)):
                self._learn_ratio(group, run.ended_ms, max(run.peak_cpu_milli, 0), cpu_asked, memory, memory_asked)

    def estimate(self, tenant: str, name: str, cpu_milli: int, memory_mib: int) -> UseEstimate:
        """Estimate the use of work that asks for so much for one task. It rests on its own kind where three runs of it
        have ended, else from what part of their requests the tenant's runs used, or everybody's; else what it asks for.
        """
        use = self.kinds.get(kind_of(tenant, name))
        if use is not None and use.runs >= MIN_RUNS:
            cpu, memory = spread(use.run_cpu, 1.0, cpu_milli), spread(use.run_memory, 1.0, memory_mib)
            return UseEstimate(cpu_milli=cpu, memory_mib=memory, runs=use.runs, basis="kind")
        groups: tuple[tuple[str, Basis], ...] = ((tenant, "tenant"), ("", "all"))
        for group, basis in groups:
            known = self._ratios.get(group)
            if known is not None and known[2][0] >= RUNS_OF_A_DAY:
                cpus, memories, (runs,) = known
                cpu, memory = spread(cpus, cpu_milli, cpu_milli), spread(memories, memory_mib, memory_mib)
                return UseEstimate(cpu_milli=cpu, memory_mib=memory, runs=runs, basis=basis)
        asked = [QuantileSpread(p10=each, p50=each, p90=each) for each in (cpu_milli, memory_mib)]
        return UseEstimate(cpu_milli=asked[0], memory_mib=asked[1], runs=0, basis="request")

    def _kind(self, kind: str) -> KindUse:
        if kind not in self.kinds:
            self.kinds[kind] = KindUse()
        return self.kinds[kind]

    def _learn_ratio(
        self, group: str, at_ms: int, cpu: float, cpu_asked: int, memory: float, memory_asked: int
    ) -> None:
        if group not in self._ratios:
            self._ratios[group] = (
                DecayingHistogram(FIRST_RATIO, MAX_RATIO, HALF_LIFE_MS),
                DecayingHistogram(FIRST_RATIO, MAX_RATIO, PEAK_HALF_LIFE_MS),
                [0],
            )
        cpus, memories, runs = self._ratios[group]
        if cpu and cpu_asked:
            cpus.add_one(cpu / cpu_asked, at_ms)
        if memory and memory_asked:
            memories.add_one(memory / memory_asked, at_ms)
        runs[0] += 1


def spread(histogram: DecayingHistogram, scale: float, otherwise: int) -> QuantileSpread:
    """p10, p50 and p90 of the histogram times `scale`; `otherwise` while it is empty."""
    if not histogram.count:
        return QuantileSpread(p10=otherwise, p50=otherwise, p90=otherwise)
    return QuantileSpread(
        p10=round(scale * histogram.quantile(0.1)),
        p50=round(scale * histogram.quantile(0.5)),
        p90=round(scale * histogram.quantile(0.9)),
    )
