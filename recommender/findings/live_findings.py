"""Findings in the pages that an engine answers, each with the action it suggests.

Pure functions. A finding whose evidence is weaker than it looks says why; what cannot be judged is said to be so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from engine.model.details import NodeDetail
from engine.model.errors import SpecError
from engine.model.list_queries import Page
from engine.model.overviews import Overview
from engine.model.quantities import lasting, whole
from recommender.findings.suggestions import (
    CPUS_OF_A_GPU,
    MAX_TARGETS,
    Advice,
    Benefit,
    Evidence,
    Expected,
    ModelSkill,
    Suggestion,
)
from recommender.history.metrics import kind_of

FRAGMENTED_WAIT_MS = 3 * 3_600_000
"""A wait longer than this for room that is there, but in pieces, is a finding: most of them end by themselves."""
CORDONED_MS = 60 * 60_000
"""A node that is cordoned and empty for longer than this may have been forgotten."""
CHECK_MS = 2 * 3_600_000
"""What is promised is looked at after so long, where nothing else says when."""
DAY_MS = 24 * 3_600_000
OVERRUN = 2
"""A run past this many times the p90 of its likes is a finding."""
CALIBRATED_PERMILLE = (800, 980)
"""A p90 that covered fewer, or more, of the past runs than this is not to be leaned on."""
CLOSE = ("name", "request")
"""What likes have to share, one or the other: a service and a test of one tenant and size are not alike."""
MIN_LIKES = 20
"""Finished likes below which their p90 says little."""
MIN_SCORED = 30
"""Scored runs below which a measured skill says little."""

Row = dict[str, Any]


class RunTimeOpinion(msgspec.Struct, frozen=True, kw_only=True):
    """A model's estimate of the run time of a kind."""

    p90_ms: int
    samples: int
    """Finished runs that it rests on."""
    level: str
    """What makes them its likes."""


class OverdueRun(NamedTuple):
    """A run that is past what its likes take."""

    row: Row
    likely: RunTimeOpinion


class QuantileCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """The measured coverage of such a p90."""

    scored: int
    p90_coverage_permille: int
    """900 is perfect."""


def advise(
    overview: Overview,
    *,
    waiting: Page,
    cordoned: Sequence[NodeDetail],
    running: Page,
    likely: Mapping[str, RunTimeOpinion],
    covered: QuantileCoverage | None,
) -> Advice:
    """All findings. `waiting` are queued workloads, `running` running ones, `cordoned` nodes in that state; `likely`
    how long those that run should, by id, where their likes tell; `covered` how well such figures have held.

    Raises SpecError naming a column that a page lacks.
    """
    late, unknown = overruns(running, likely, covered)
    found = [
        *fragmented_gangs(overview, waiting),
        *forgotten_cordons(overview, cordoned, waiting),
        *late,
    ]
    return Advice(
        version=max(overview.version, waiting.version, running.version),
        suggestions=tuple(found),
        unknown=unknown,
    )


# -- waits for room that is there, but in pieces ----------------------------------------------------------------------


def waited(row: Row) -> int:
    """Return the worth of ending a wait, in GPU milli-hours. Work that has waited for so long is taken to wait as long
    again, which is the median of waits without a scale; at most a day is counted."""
    return gpu_milli_h(row.get("gpu") or 0, row.get("cpu") or 0, min(row["wait"], DAY_MS))


def fragmented_gangs(overview: Overview, waiting: Page) -> list[Suggestion]:
    """One suggestion for all that fragmentation has held up for long: to make room for the largest of them."""
    late = [
        row
        for row in rows(waiting, "id", "queue", "state", "reason", "wait")
        if row["state"] == "queued" and row["reason"] == "Fragmented" and row["wait"] > FRAGMENTED_WAIT_MS
    ]
    if not late:
        return []
    first = max(late, key=lambda row: (row.get("gpu") or 0, row["wait"]))
    longest = max(row["wait"] for row in late)
    asked_gpu = sum(row.get("gpu") or 0 for row in late)
    evidence = [Evidence(metric="longest wait for whole pieces", window="now", rows=len(late), value=lasting(longest))]
    if asked_gpu:
        evidence.append(Evidence(metric="asked for", window="now", rows=len(late), value=f"{whole(asked_gpu)} GPU"))
    if overview.fragmentation_ppm is not None:
        share = f"{overview.fragmentation_ppm / 10_000:.1f} % of the free GPU"
        evidence.append(Evidence(metric="fragmentation for the live mix", window="now", rows=1, value=share))
    held_up = "1 workload waits" if len(late) == 1 else f"{len(late)} workloads wait"
    return [
        Suggestion(
            kind="fragmented_gangs",
            about="cell",
            severity=longest / 3_600_000,
            parameters=("--unblock", first["id"]),
            benefit=Benefit(waiting_gpu_milli_h=waited(first)),
            finding=f"{held_up} for free but fragmented capacity; the largest is {first['id']}",
            action="consolidate",
            targets=(first["id"],),
            evidence=tuple(evidence),
            counterfactual=f"Not suggested if none had waited over {lasting(FRAGMENTED_WAIT_MS)} because of "
            "fragmentation",
            alternatives=(
                "Uncordon or add nodes, if possible: nothing is stopped",
                "No action: it starts when enough work ends on the same nodes",
            ),
            thin=(
                "whether moves make room, and at what cost, is known once they are planned",
                *partial(waiting),
            ),
        )
    ]


# -- nodes left cordoned ----------------------------------------------------------------------------------------------


def forgotten_cordons(
    overview: Overview, cordoned: Sequence[NodeDetail], waiting: Page | None = None
) -> list[Suggestion]:
    """One suggestion for all nodes that were cordoned long ago and are empty. Down and draining nodes are not meant."""
    idle = [
        node
        for node in cordoned
        if node.state == "cordoned" and not node.workloads and node.now_ms - node.since_ms > CORDONED_MS
    ]
    if not idle:
        return []
    shortest = min(node.now_ms - node.since_ms for node in idle)
    capacity = sum(node.capacity.get("gpu_milli", 0) for node in idle)
    unit = "GPU" if capacity else "CPU"
    capacity = capacity or sum(node.capacity.get("cpu_milli", 0) for node in idle)
    resource = unit.lower()
    useful = 0 if waiting is None else min(capacity, sum(row.get(resource) or 0 for row in rows(waiting)))
    empty = "1 cordoned node is empty" if len(idle) == 1 else f"{len(idle)} cordoned nodes are empty"
    # Nodes of a pool are alike.
    taken = sum(pool.capacity.get(f"{resource}_milli", 0) * pool.ready // max(pool.nodes, 1) for pool in overview.pools)
    queued = overview.states.get("queued", 0)
    return [
        Suggestion(
            kind="forgotten_cordons",
            about="cell",
            severity=capacity / 1000,
            benefit=Benefit(
                waiting_gpu_milli_h=gpu_milli_h(useful if unit == "GPU" else useful // CPUS_OF_A_GPU, 0, DAY_MS)
            ),
            cost_delta_microusd_hour=0,
            expected=Expected(
                metric=f"capacity_{resource}",
                of="cell",
                subject="",
                was=taken,
                to=taken + capacity,
                within_ms=CHECK_MS,
            ),
            finding=f"{empty}, the newest cordon {lasting(shortest)} old",
            action="uncordon",
            targets=tuple(node.id for node in idle[:MAX_TARGETS]),
            evidence=(
                Evidence(
                    metric="minimum time cordoned", window="since the cordon", rows=len(idle), value=lasting(shortest)
                ),
                Evidence(
                    metric="capacity out of service", window="now", rows=len(idle), value=f"{whole(capacity)} {unit}"
                ),
                Evidence(metric="workloads queued", window="now", rows=queued, value=f"{queued:,}"),
            ),
            counterfactual=f"Not suggested if they had been cordoned for less than {lasting(CORDONED_MS)} or had work",
            alternatives=(
                "Ask who cordoned them, and why, before returning them",
                f"No action: {whole(capacity)} {unit} stay out of service"
                + ("" if queued else "; nothing is waiting for them"),
            ),
            thin=("whether they are healthy is not known here: ask whoever cordoned them",),
        )
    ]


# -- runs far past their likes ----------------------------------------------------------------------------------------


def overruns(
    running: Page, likely: Mapping[str, RunTimeOpinion], covered: QuantileCoverage | None
) -> tuple[list[Suggestion], tuple[str, ...]]:
    """One suggestion for each kind of work of which runs are past OVERRUN x p90 of their likes, and lines on those that
    cannot be judged: without likes, or with few while their owner asked for longer."""
    late: dict[str, list[OverdueRun]] = defaultdict(list)
    judged = silent = early = 0
    for row in rows(running, "id", "name", "tenant", "state", "gpu", "run", "estimate"):
        if row["state"] != "running" or row["run"] is None:
            continue
        judged += 1
        its = likely.get(row["id"])
        if its is None or not any(word in its.level for word in CLOSE):
            silent += 1
        elif row["run"] <= OVERRUN * its.p90_ms:
            continue
        elif its.samples < MIN_LIKES and (row["estimate"] or 0) > row["run"]:
            early += 1
        else:
            late[kind_of(row["tenant"], row["name"]) or row["id"]].append(OverdueRun(row, its))
    unknown = list(partial(running))
    if silent:
        unknown.append(
            f"{silent} of {judged} running workloads have too few similar finished jobs for a run time estimate"
        )
    if early:
        unknown.append(
            f"{early} of {judged} running workloads are past {OVERRUN} x the p90 of similar jobs, but fewer than "
            f"{MIN_LIKES} of those have finished, and what their owners asked for is not over"
        )
    return [overrun_suggestion(kind, sorted(its, key=by_excess), covered) for kind, its in late.items()], tuple(unknown)


def by_excess(late: OverdueRun) -> tuple[float, str]:
    return -late.row["run"] / late.likely.p90_ms, late.row["id"]


def overrun_suggestion(kind: str, late: Sequence[OverdueRun], covered: QuantileCoverage | None) -> Suggestion:
    """`late`: of one kind, the worst first."""
    row, likely = late[0]
    limit = OVERRUN * likely.p90_ms
    others = f"{len(late)} of {kind}: " if len(late) > 1 else ""
    evidence = [
        Evidence(
            metric="run so far",
            window="this attempt, the furthest past" if others else "this attempt",
            rows=len(late),
            value=lasting(row["run"]),
        ),
        Evidence(
            metric=f"p90 run time of similar jobs ({likely.level})",
            window=f"last {likely.samples} finished",
            rows=likely.samples,
            value=lasting(likely.p90_ms),
        ),
    ]
    risk = sum(
        gpu_milli_h(each["gpu"] or 0, each.get("cpu") or 0, each["run"] - OVERRUN * its.p90_ms) for each, its in late
    )
    return Suggestion(
        kind="overrun",
        about=kind,
        finding=f"{others}{row['id']} has run {lasting(row['run'])}, over {OVERRUN} x the p90 of similar jobs "
        f"({lasting(likely.p90_ms)})",
        action="notify",
        targets=tuple(each["id"] for each, _ in late[:MAX_TARGETS]),
        evidence=tuple(evidence),
        counterfactual=f"Not suggested if {'none' if others else 'it'} had run {'more' if others else 'less'} than "
        f"{f'{OVERRUN} x the p90 of similar jobs' if others else lasting(limit)}",
        alternatives=(
            f"Requeue {'those' if others else 'it'}, if the owner finds {'them' if others else 'it'} stuck: work since "
            "the last checkpoint is lost",
            f"No action: {'they keep their' if others else 'it keeps its'} capacity until the end",
        ),
        thin=doubts(row, likely, covered),
        severity=row["run"] / likely.p90_ms,
        benefit=Benefit(at_risk_gpu_milli_h=risk),
        skill=None
        if covered is None
        else ModelSkill(
            model="run times",
            measure="runs within their p90 (900 of 1,000 is ideal)",
            value=f"{covered.p90_coverage_permille:,} of 1,000",
            scored=covered.scored,
        ),
    )


def doubts(row: Row, likely: RunTimeOpinion, covered: QuantileCoverage | None) -> tuple[str, ...]:
    """Return the reasons that weaken a finding which rests on the estimated run time."""
    found = []
    if likely.samples < MIN_LIKES:
        found.append(f"only {likely.samples} similar jobs have finished")
    if (row["estimate"] or 0) > row["run"]:
        found.append(f"its requested time, {lasting(row['estimate'])}, is not over yet")
    if covered is None or covered.scored < MIN_SCORED:
        found.append(f"fewer than {MIN_SCORED} estimates have been scored so far")
    elif not CALIBRATED_PERMILLE[0] <= covered.p90_coverage_permille <= CALIBRATED_PERMILLE[1]:
        found.append(
            f"the estimates are off: p90 right for {covered.p90_coverage_permille / 10:.1f} % of past runs, not 90 %"
        )
    return tuple(found)


# -- reading pages ----------------------------------------------------------------------------------------------------


def rows(page: Page, *needed: str) -> Iterator[Row]:
    """The page's rows by column name. Raises SpecError naming columns it lacks."""
    missing = [name for name in needed if name not in page.columns]
    if missing:
        raise SpecError("columns", f"the page lacks {', '.join(missing)}", f"Ask for {', '.join(needed)}")
    return (dict(zip(page.columns, row, strict=True)) for row in page.rows)


def partial(page: Page) -> tuple[str, ...]:
    """A line when the page is a window onto more rows than it holds."""
    seen = len(page.rows)
    return (f"checked {seen:,} of {page.matched:,} workloads",) if seen < page.matched else ()


def gpu_milli_h(gpu_milli: int, cpu_milli: int, ms: int) -> int:
    """Return capacity times duration in thousandths of GPU-hours; cores count where there are no GPUs."""
    return (gpu_milli or cpu_milli // CPUS_OF_A_GPU) * max(ms, 0) // 3_600_000


def ids(found: list[Row]) -> tuple[str, ...]:
    return tuple(row["id"] for row in found[:MAX_TARGETS])
