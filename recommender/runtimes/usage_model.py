"""What work uses of what it asks for, by kind ("tenant/stem of its name"), from measurements and from ended runs.

As the Vertical Pod Autoscaler keeps it (kubernetes/autoscaler, vertical-pod-autoscaler/docs: CPU half-life 24 h, memory
peaks of 24 h over 8 days, targets at the 90th percentile and 15 % above): histograms whose buckets grow by 5 %, whose
counts decay by half every so often; CPU as sampled, memory as the peak of each interval or run, because work that gets
too little CPU is slow and work that gets too little memory dies. A run that seems to have died of it counts with more.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from recommender.history.metrics import RunRecord, kind_of
from recommender.runtimes.placement_queries import QuantileSpread
from recommender.runtimes.sizing_queries import Basis, UseEstimate

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
    """What is known of one kind."""

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
        """With the peak of the interval that is under way, which counts from its first sample on."""
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
        """Of work that asks for so much for one task. From its own kind where three runs of it have ended, else from
        what part of their requests the tenant's runs used, or everybody's; else what it asks for."""
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
