"""Whether work runs slower beside others on its node: its run time against how much of the node the others held.

Runs are compared only with runs of their own kind and size on the same type of machine. The slope of the logarithm of
the run time over the neighbours' share is tested by permutation: the shares are dealt out anew among the runs of each
such group, many times, and the slope must be steeper than all but a few of those. Kinds are tested together (Holm
1979): with nothing there, a finding comes up in about one of a hundred looks, however many kinds there are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recommender.findings.suggestions import Evidence, ModelSkill, Suggestion
from recommender.history.metrics import RunRecord
from recommender.runtimes.machine_choice import Fingerprint, fingerprint, type_of

Floats = NDArray[np.float64]

MIN_RUNS = 30
MIN_GROUP = 5
"""Runs of one size on one type before they are looked at."""
MIN_SPREAD = 0.1
"""Range (p10 to p90) of the neighbours' share below which there is nothing to be told."""
MIN_SLOWDOWN = 0.05
"""Between little (p10) and much (p90) beside it."""
CHANCE = 0.01
PERMUTATIONS = 4_999
DEAL_FROM = 2.3
"""Standard deviations: what is nearer to its mean is not dealt, its chance is above CHANCE."""
MAX_RUNS = 500
"""Of a kind, the newest."""
MAX_KINDS = 40
"""Those with most runs: a look must end, and what is rare tells nothing."""


class ColocatedRun(NamedTuple):
    """A finished run, and what was beside it."""

    kind: str
    like: Fingerprint
    type_name: str
    run_ms: int
    share: float
    """Of the node's CPU (or GPU, where it has more of that) that others held, on average over its run; 0 to 1."""


class Slowdown(NamedTuple):
    """What a kind loses beside others."""

    kind: str
    runs: int
    slowdown: float
    """Part by which it takes longer beside much (p90 of the shares seen) than beside little (p10)."""
    little: float
    much: float
    chance: float
    """Of such a slope or a steeper one by chance, before other kinds are counted."""


def beside(run: RunRecord, share: float) -> ColocatedRun | None:
    """None for what did not finish in one attempt, or whose name says nothing."""
    like = fingerprint(run.tenant, run.name, run.gpu_milli, run.tasks)
    if like is None or run.outcome != "finished" or run.attempts != 1 or not 0 <= run.started_ms < run.ended_ms:
        return None
    return ColocatedRun(like.kind, like, type_of(run.gpu_model, run.pool), run.ended_ms - run.started_ms, share)


def slowdowns(runs: Iterable[ColocatedRun]) -> list[Slowdown]:
    """Kinds that run slower beside others, beyond chance; the worst first."""
    by_kind: dict[str, list[ColocatedRun]] = defaultdict(list)
    for run in runs:
        by_kind[run.kind].append(run)
    most = sorted(by_kind, key=lambda kind: (-len(by_kind[kind]), kind))[:MAX_KINDS]
    tested = [found for kind in most if (found := tested_kind(kind, by_kind[kind][-MAX_RUNS:])) is not None]
    tested.sort(key=lambda each: (each.chance, each.kind))
    sure: list[Slowdown] = []
    for at, each in enumerate(tested):
        if each.chance * (len(tested) - at) > CHANCE:
            break
        if each.slowdown >= MIN_SLOWDOWN:
            sure.append(each)
    return sorted(sure, key=lambda each: (-each.slowdown, each.kind))


def tested_kind(kind: str, runs: Sequence[ColocatedRun]) -> Slowdown | None:
    """None where there is too little to tell."""
    groups: dict[tuple[Fingerprint, str], list[ColocatedRun]] = defaultdict(list)
    for run in runs:
        groups[run.like, run.type_name].append(run)
    kept = [told for _, told in sorted(groups.items()) if len(told) >= MIN_GROUP]
    count = sum(map(len, kept))
    if count < MIN_RUNS:
        return None
    all_shares = np.array([run.share for told in kept for run in told])
    little, much = (float(np.quantile(all_shares, share)) for share in (0.1, 0.9))
    if much - little < MIN_SPREAD:
        return None
    times = [centred(np.array([math.log(run.run_ms) for run in told])) for told in kept]
    shares = [centred(np.array([run.share for run in told])) for told in kept]
    spread = sum(float(each @ each) for each in shares)
    if spread <= 0:
        return None
    together = sum(float(share @ time) for share, time in zip(shares, times, strict=True))
    slowdown = math.expm1(min(together / spread * (much - little), 20.0))
    return Slowdown(kind, count, slowdown, little, much, chance_of(together, shares, times))


def chance_of(together: float, shares: Sequence[Floats], times: Sequence[Floats]) -> float:
    """Of a sum of products as large, when the shares are dealt out anew within each group. By the mean and variance
    that dealing has, where that is plainly no rare one; else dealt."""
    mean = sum(len(share) * float(share.mean() * time.mean()) for share, time in zip(shares, times, strict=True))
    variance = sum(
        float(share.var() * time.var()) * len(share) ** 2 / (len(share) - 1)
        for share, time in zip(shares, times, strict=True)
    )
    spreads = (together - mean) / math.sqrt(variance) if variance > 0 else 0.0
    if spreads < DEAL_FROM:
        return math.erfc(spreads / math.sqrt(2)) / 2
    draw = np.random.default_rng(sum(map(len, shares)))
    dealt = np.zeros(PERMUTATIONS)
    for share, time in zip(shares, times, strict=True):
        for start in range(0, PERMUTATIONS, 500):
            part = min(500, PERMUTATIONS - start)
            order = np.argsort(draw.random((part, len(share))), axis=1)
            dealt[start : start + part] += share[order] @ time
    return (1 + int((dealt >= together - 1e-12).sum())) / (PERMUTATIONS + 1)


def centred(values: Floats) -> Floats:
    """Less their median, so that one odd run does not move all; the far ones drawn in to three robust spreads."""
    off = values - np.median(values)
    scale = 1.4826 * float(np.median(np.abs(off)))
    return np.clip(off, -3 * scale, 3 * scale) if scale > 0 else off


def interference_findings(found: Iterable[Slowdown]) -> list[Suggestion]:
    """One for each kind that is slowed down."""
    return [
        Suggestion(
            kind="interference",
            about=each.kind,
            finding=f"{each.kind} runs {100 * each.slowdown:.0f} % longer beside others on its node",
            action="notify",
            targets=(each.kind,),
            evidence=(
                Evidence(
                    metric=f"run time of {each.kind} over what others hold of its node",
                    window="finished runs of late",
                    rows=each.runs,
                    value=f"{100 * each.slowdown:+.0f} % at {100 * each.much:.0f} % held by others",
                    baseline=f"at {100 * each.little:.0f} % held by others; by chance in 1 of {1 / each.chance:,.0f}",
                ),
            ),
            counterfactual=f"No suggestion below {100 * MIN_SLOWDOWN:.0f} %, or if chance explained it",
            alternatives=(
                "Submit it with apart, so that it is not put beside the work that it meets most",
                "Ask for whole nodes: nothing is beside it then",
                "Do nothing: it takes longer where nodes are shared",
            ),
            thin=("who is beside it is not told apart: only how much of the node others hold",),
            severity=100 * each.slowdown,
            skill=ModelSkill(
                model="slope of the run time, tested by permutation",
                measure="chance of such a slope where there is none",
                value=f"{each.chance:.4f}",
                scored=each.runs,
            ),
        )
        for each in found
    ]
