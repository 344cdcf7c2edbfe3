"""The machines that suit a kind of work best: by type and money, and by the effect of neighbours on its node.

Types: work of one kind and size is taken to run at a time of its own, and each type of machine to speed all work up or
slow it down by a factor of its own. Deviations of a kind on a type are learnt too, as far as its own runs there tell.
All in logarithms: a mixed model, `log run = kind + type + kind on type + noise`, whose effects are drawn towards zero
by as much as their evidence is weak (best linear unbiased predictors: Henderson 1975). Types are compared by the kinds
seen on several of them, never by different work on each.

Neighbours: the run time is held against the share of the node that others had. Runs are compared only with runs of
their own kind and size on the same type of machine. The slope of the logarithm of the run time over the neighbours'
share is tested by permutation: the shares are dealt out anew among the runs of each such group, many times, and the
slope must be steeper than all but a few of those. Kinds are tested together (Holm 1979): with nothing there, a finding
comes up in about one of a hundred looks, however many kinds there are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recommender.estimates.queries import PlacementAdvice, PlacementOption, QuantileSpread
from recommender.findings.suggestions import Evidence, ModelSkill, Suggestion
from recommender.history.metrics import RunRecord, kind_of

Floats = NDArray[np.float64]

TYPE_SPREAD, OWN_SPREAD = 0.7, 0.2
"""Usual spread (standard deviation of the logarithm) of the speed of types, and of a kind's own on a type."""
USUAL_NOISE = 0.4
"""Spread of runs of one kind and size, before their own tell."""
NOISE_RUNS = 5
"""What that counts as, in runs."""
MIN_OWN = 3
"""Finished runs of its like on a type before they are called known."""
FEW = 10
MAX_FINGERPRINTS = 2_000
"""Of the model, those with most runs."""
Z90 = 1.2815515655446004
HOUR_MS = 3_600_000
PRIOR_EVENTS = 0.5
"""Jeffreys' prior of a Poisson rate."""
ALREADY = 50.0
"""Largest number of interruptions a run that is told of may expect."""

Basis = Literal["own runs", "other work", "price only"]


class Fingerprint(NamedTuple):
    """Work that should take the same time on the same machine."""

    kind: str
    """"tenant/stem of its name"."""
    size: int
    """Power of two nearest to the GPUs of all tasks, or to their number where it has none: what CPU they ask for may be
    changed to what they use, and they take as long as before."""
    gpu: bool


def fingerprint(tenant: str, name: str, gpu_milli: int, tasks: int) -> Fingerprint | None:
    """Return None when the name says nothing."""
    kind = kind_of(tenant, name)
    asked = gpu_milli / 1000 if gpu_milli else max(tasks, 1)
    return Fingerprint(kind, round(math.log2(asked)), gpu_milli > 0) if kind else None


def type_of(gpu_model: str, pool: str) -> str:
    """Return the mark by which machines are alike: the device model, else the pool."""
    return gpu_model or f"pool {pool}"


class Speed(NamedTuple):
    """Natural logarithm of the run time in ms."""

    mean: float
    spread: float
    """Standard deviation of one run, what is not known of the mean among it."""
    runs: int
    """Finished runs of its like on this type."""
    compared: int
    basis: Basis


class CandidatePool(NamedTuple):
    """A pool it could run in, as it is now."""

    pool: str
    gpu_model: str
    spot: bool
    zones: tuple[str, ...]
    allowed: bool
    rate_microusd_hour: int
    """What all its tasks would be charged there."""
    nodes: int
    """That its tasks would fill, at the least."""
    interruptions: int
    node_hours: float
    """Over which they were seen; 0 where none were watched."""


class SpeedModel:
    """Fitted once to finished runs."""

    def __init__(self, runs: Iterable[RunRecord]) -> None:
        """Runs that finished in one attempt tell; others do not show how long the whole work takes."""
        cells: dict[tuple[Fingerprint, str], list[float]] = defaultdict(list)
        for run in runs:
            if run.outcome != "finished" or run.attempts != 1 or run.started_ms < 0 or run.ended_ms <= run.started_ms:
                continue
            like = fingerprint(run.tenant, run.name, run.gpu_milli, run.tasks)
            if like is not None and (run.gpu_model or run.pool):
                cells[like, type_of(run.gpu_model, run.pool)].append(math.log(run.ended_ms - run.started_ms))
        counted: dict[Fingerprint, int] = defaultdict(int)
        for (like, _), told in cells.items():
            counted[like] += len(told)
        kept = sorted(counted, key=lambda like: (-counted[like], like))[:MAX_FINGERPRINTS]
        self._likes = {like: at for at, like in enumerate(sorted(kept))}
        chosen = sorted(key for key in cells if key[0] in self._likes)
        self._types = {name: at for at, name in enumerate(sorted({key[1] for key in chosen}))}
        self._cells = {key: cells[key] for key in chosen}
        self._noise = self._spreads()
        self._fit()

    def types_of(self, like: Fingerprint | None) -> dict[str, int]:
        """Type -> finished runs of its like there."""
        return {name: len(told) for (each, name), told in self._cells.items() if each == like}

    def speed(self, like: Fingerprint | None, type_name: str) -> Speed | None:
        """Return None where nothing tells: its like never finished, or nothing links this type with those where it
        did."""
        if like not in self._likes:
            return None
        own = self._cells.get((like, type_name), [])
        at, compared = self._likes[like], self._compared(like, type_name)
        noise = self._noise[like]
        if type_name not in self._types or not (own or compared):
            return None
        there = self._types[type_name]
        mean = float(self._kind_effects[at] + self._type_effects[there])
        # Of kind + type, the kind's effect being its mean less the types' in the proportions in which it ran there.
        apart = -self._scaled[at]
        apart[there] += 1.0
        unsure = float(apart @ self._cover @ apart + 1.0 / self._of_like[at])
        # The kind's own speed on this type: what its runs there show beyond both effects, as far as they are many.
        left = (sum(own) / len(own) - mean) if own else 0.0
        weight = OWN_SPREAD**2 / (OWN_SPREAD**2 + noise**2 / len(own)) if own else 0.0
        spread = math.sqrt(noise**2 + unsure + (1 - weight) * OWN_SPREAD**2)
        basis: Basis = "own runs" if len(own) >= MIN_OWN or (own and not compared) else "other work"
        return Speed(mean + weight * left, spread, len(own), compared, basis)

    def _spreads(self) -> dict[Fingerprint, float]:
        """Spread of the runs of each, about its mean on each type, drawn towards the usual."""
        squares: dict[Fingerprint, list[float]] = {like: [0.0, 0.0] for like in self._likes}
        for (like, _), told in self._cells.items():
            mean = sum(told) / len(told)
            squares[like][0] += sum((value - mean) ** 2 for value in told)
            squares[like][1] += len(told) - 1
        return {
            like: math.sqrt((total + NOISE_RUNS * USUAL_NOISE**2) / (count + NOISE_RUNS))
            for like, (total, count) in squares.items()
        }

    def _fit(self) -> None:
        """Means and covariance of the kinds' and the types' effects; kinds are free, types drawn towards each other.

        The system is that of the types alone, the kinds being eliminated from it: it is as large as there are types.
        """
        likes, types = len(self._likes), len(self._types)
        weight, total = np.zeros((likes, types)), np.zeros((likes, types))
        for (like, name), told in self._cells.items():
            row, column = self._likes[like], self._types[name]
            variance = self._noise[like] ** 2 / len(told) + OWN_SPREAD**2
            weight[row, column] = 1.0 / variance
            total[row, column] = sum(told) / len(told) / variance
        self._of_like = weight.sum(axis=1)
        self._scaled = weight / self._of_like[:, None]
        normal = np.diag(weight.sum(axis=0)) - weight.T @ self._scaled + np.eye(types) / TYPE_SPREAD**2
        self._cover = np.linalg.inv(normal)
        self._type_effects = self._cover @ (total.sum(axis=0) - self._scaled.T @ total.sum(axis=1))
        self._kind_effects = total.sum(axis=1) / self._of_like - self._scaled @ self._type_effects

    def _compared(self, like: Fingerprint, type_name: str) -> int:
        """Kinds that finished both on this type and on one where its like did."""
        known = {name for each, name in self._cells if each == like} - {type_name}
        kinds: dict[Fingerprint, set[str]] = defaultdict(set)
        for each, name in self._cells:
            kinds[each].add(name)
        return sum(type_name in names and bool(names & known) for names in kinds.values())


# -- what a finished job costs ----------------------------------------------------------------------------------------


def options(
    model: SpeedModel, like: Fingerprint | None, places: Sequence[CandidatePool], checkpoint_ms: int
) -> list[PlacementOption]:
    """The cheapest for a finished job first; those that are not allowed, or not known, last. `checkpoint_ms`: time
    between checkpoints; 0: an interruption loses all."""
    found = [option(model, like, place, checkpoint_ms) for place in places]
    return sorted(
        found,
        key=lambda each: (
            not each.allowed,
            each.cost_microusd is None,
            each.cost_microusd.p50 if each.cost_microusd else each.rate_microusd_hour,
            each.pool,
        ),
    )


def option(model: SpeedModel, like: Fingerprint | None, place: CandidatePool, checkpoint_ms: int) -> PlacementOption:
    speed = model.speed(like, type_of(place.gpu_model, place.pool))
    hazard = hazard_per_ms(place.interruptions, place.node_hours) * place.nodes if place.spot else 0.0
    times = [speed.mean + z * speed.spread for z in (-Z90, 0.0, Z90)] if speed else []
    runs = [with_interruptions(math.exp(min(time, 40.0)), hazard, checkpoint_ms) for time in times]
    costs = [round(run * place.rate_microusd_hour / HOUR_MS) for run in runs]
    odds = None
    if place.spot and speed and place.node_hours:
        odds = round(1e6 * -math.expm1(-hazard * math.exp(min(speed.mean, 40.0))))
    return PlacementOption(
        pool=place.pool,
        gpu_model=place.gpu_model,
        spot=place.spot,
        zones=place.zones,
        allowed=place.allowed,
        rate_microusd_hour=place.rate_microusd_hour,
        run_ms=QuantileSpread(p10=round(runs[0]), p50=round(runs[1]), p90=round(runs[2])) if runs else None,
        cost_microusd=QuantileSpread(p10=costs[0], p50=costs[1], p90=costs[2]) if costs else None,
        basis=speed.basis if speed else "price only",
        runs=speed.runs if speed else 0,
        compared=speed.compared if speed else 0,
        interruption_ppm=odds,
        interruptions=place.interruptions,
        node_hours=place.node_hours,
        thin=doubts(speed, place),
    )


def doubts(speed: Speed | None, place: CandidatePool) -> tuple[str, ...]:
    found = []
    if speed is None:
        found.append("no finished job shows how fast it runs there")
    elif speed.basis == "other work":
        own = f"only {speed.runs} like it" if speed.runs else "no similar jobs"
        found.append(f"{own} finished there; {speed.compared} kinds of work ran on this type and on others")
    elif speed.runs < FEW:
        found.append(f"only {speed.runs} similar jobs finished there")
    if place.spot and not place.node_hours:
        found.append("spot interruptions not measured")
    elif place.spot and place.interruptions < MIN_OWN:
        found.append(f"{place.interruptions} interruptions seen in {place.node_hours:,.0f} node-hours")
    if not place.rate_microusd_hour:
        found.append("price not known")
    return tuple(found)


def hazard_per_ms(interruptions: int, node_hours: float) -> float:
    """Rate at which one node is taken back; 0 where none was watched. The mean under Jeffreys' prior."""
    return (interruptions + PRIOR_EVENTS) / (node_hours * HOUR_MS) if node_hours else 0.0


def with_interruptions(run_ms: float, hazard: float, checkpoint_ms: int) -> float:
    """Expected time in which the work is done, when it loses what it did since its last checkpoint at each of the
    interruptions that come at `hazard` per ms (Daly 2006, without the time that writing and restarting take)."""
    piece = min(checkpoint_ms, run_ms) if checkpoint_ms else run_ms
    if hazard <= 0 or piece <= 0:
        return run_ms
    return math.expm1(min(hazard * piece, ALREADY)) / hazard * run_ms / piece


def best_in_words(found: Sequence[PlacementOption], workload_id: str) -> str:
    """Say in one sentence which type is best, or that it cannot be told."""
    known = [each for each in found if each.allowed and each.cost_microusd is not None and each.rate_microusd_hour]
    allowed = [each for each in found if each.allowed]
    if not allowed:
        return f"no pool could run {workload_id} as it asks"
    if len(allowed) == 1:
        return f"{allowed[0].pool} is the only pool that {workload_id} could run in"
    if not known:
        cheap = min(allowed, key=lambda each: (each.rate_microusd_hour, each.pool))
        return f"its speed is not known anywhere; by price alone, {cheap.pool} is cheapest per hour"
    best, others = known[0], known[1:]
    if not others:
        return f"of {best.pool} alone it is known how fast it runs there"
    assert best.cost_microusd is not None
    second = others[0].cost_microusd
    assert second is not None
    less = 100 * (1 - best.cost_microusd.p50 / max(second.p50, 1))
    ground = "; single runs differ by more than that" if best.cost_microusd.p90 > second.p50 else ""
    return f"{best.pool} does it for {less:.0f} % less than {others[0].pool}{ground}"


def advised(
    model: SpeedModel,
    *,
    version: int,
    workload_id: str,
    like: Fingerprint | None,
    places: Sequence[CandidatePool],
    checkpoint_ms: int,
) -> PlacementAdvice:
    """Return the placement advice for a workload."""
    found = options(model, like, places, checkpoint_ms)
    unknown = (
        [] if like else ["its name does not say what it is: give work of one kind one name, as in train-1, train-2"]
    )
    return PlacementAdvice(
        version=version,
        workload_id=workload_id,
        kind=like.kind if like else "",
        options=tuple(found),
        said=best_in_words(found, workload_id),
        runs=sum(model.types_of(like).values()),
        unknown=tuple(unknown),
    )


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
    """The loss of a kind beside others."""

    kind: str
    runs: int
    slowdown: float
    """Part by which it takes longer beside much (p90 of the shares seen) than beside little (p10)."""
    little: float
    much: float
    chance: float
    """Of such a slope or a steeper one by chance, before other kinds are counted."""


def beside(run: RunRecord, share: float) -> ColocatedRun | None:
    """Return None for what did not finish in one attempt, or whose name says nothing."""
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
    """Return None where there is too little to tell."""
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
    """Return the chance of a sum of products as large, when the shares are dealt out anew within each group. By the
    mean and variance that dealing has, where that is plainly no rare one; else dealt."""
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
                    metric=f"run time of {each.kind} against how much of its node others hold",
                    window="recent finished runs",
                    rows=each.runs,
                    value=f"{100 * each.slowdown:+.0f} % at {100 * each.much:.0f} % held by others",
                    baseline=f"at {100 * each.little:.0f} % held by others; by chance in 1 of {1 / each.chance:,.0f}",
                ),
            ),
            counterfactual=f"Not suggested below {100 * MIN_SLOWDOWN:.0f} %, or if it could be chance",
            alternatives=(
                "Submit it with apart, so it avoids the work it most often shares nodes with",
                "Ask for whole nodes, so nothing shares them",
                "No action: it runs longer on shared nodes",
            ),
            thin=("neighbours are not distinguished: only how much of the node they hold counts",),
            severity=100 * each.slowdown,
            skill=ModelSkill(
                model="slope of the run time, tested by permutation",
                measure="chance of such a slope without an effect",
                value=f"{each.chance:.4f}",
                scored=each.runs,
            ),
        )
        for each in found
    ]
