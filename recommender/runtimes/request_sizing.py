"""Requests against use: what one task of each kind of work should ask for, and what that saves.

The rule is the Vertical Pod Autoscaler's: a target percentile of use, a safety margin on it, rounded up, within bounds;
see `recommender.runtimes.usage_model` for how use is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.admission.resizing import RequestRecommendation as Size
from engine.ledger.charges import share
from engine.model.specs import PoolSpec
from recommender.findings.suggestions import MAX_TARGETS, Benefit, Evidence, Suggestion, whole
from recommender.history.metrics import kind_of
from recommender.runtimes.sizing_queries import Need, SizedKind

if TYPE_CHECKING:
    from engine.model.specs import WorkloadSpec
    from recommender.runtimes.usage_model import KindUse, UsageModel

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
    """What the engine asks before new work starts (`engine.admission.resizing.RequestRecommender`). Answers from what
    was last told."""

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
    """As in `p90 CPU 420m, p95 memory 1,740 MiB of 1,440 samples and 12 runs, x 1.15`."""
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
        finding=f"{kind.tasks:,} task{'s' * (kind.tasks != 1)} of {kind.kind} asked for more than is used: "
        f"{whole(max(kind.saved_cpu_milli, 0))} CPU and {max(kind.saved_memory_mib, 0) / 1024:,.0f} GiB could be free",
        counterfactual=f"No suggestion if less than {100 * WASTE:.0f} % of what they ask for were of no use",
        nothing="Do nothing: what they do not use stays out of reach of what waits",
        benefit=Benefit(at_risk_gpu_milli_h=max(kind.saved_cpu_milli, 0) * 24 // 16),
    )


def short_of_memory(kind: SizedKind, ids: Sequence[str]) -> Suggestion:
    return suggestion(
        kind,
        ids,
        {"memory": kind.memory},
        token="short_of_memory",
        finding=f"{kind.kind} uses more memory than it asks for: {kind.memory.p95:,} MiB (p95), "
        f"{kind.memory.asked:,} MiB asked for",
        counterfactual="No suggestion if its p95 were below its request",
        nothing="Do nothing: where a node runs short, it is the first to be put out",
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
    """To resize those of the kind that run and can be stopped for it; where there are none, to tell people."""
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
            "Set rightsizing to initial: new work of known kinds starts with what it needs",
            "Tell its owner: the next submission can ask for less or more",
            nothing,
        ),
        thin=(
            *((f"{kind.runs} runs and {kind.samples} samples so far",) if kind.confidence < 2 * SURE else ()),
            *(() if ids else ("none of what runs could go on from a checkpoint: this is for what comes",)),
        ),
        severity=kind.saved_cpu_milli / 1000,
        benefit=benefit,
        # Those that run on as they are cost what they do.
        cost_delta_microusd_hour=-kind.saved_microusd_hour if ids else None,
    )
