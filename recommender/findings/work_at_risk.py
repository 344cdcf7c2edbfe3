"""Findings on work that is lost or about to be held, of a reading of the cell: nodes that fail under work, retry
storms, spot pools that are taken back, budgets and prices."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from engine.model.quantities import counted, lasting, shortlist, usd
from recommender.findings.cell_reading import LOSSES_MS, RECENT_MS, CellReading, PoolState
from recommender.findings.suggestions import CPUS_OF_A_GPU, Benefit, Evidence, Expected, Suggestion

MIN_FAILED, FAILED_SHARE = 8, 0.7
"""Attempts of one kind that failed of late, and their share of those that ended: a storm."""
MIN_LEAVING, LEAVING_PERMILLE = 3, 100
"""Spot nodes with notice at once, and their share of the pool."""
HOLDS_SOON_MS = 4 * 3_600_000
"""A budget that holds work within so long, and at least as long before its window ends, is a finding."""
PRICE_TIMES = 4.0
"""A price so many times that of its like, or that part of it."""
CHECK_MS = 2 * 3_600_000
DAY_H = 24


def failing_node(reading: CellReading) -> list[Suggestion]:
    """Nodes lost twice within LOSSES_MS that take work again."""
    return [
        Suggestion(
            kind="failing_node",
            about=node.id,
            finding=f"node {node.id} was lost {node.losses} times in {lasting(LOSSES_MS)} and takes work again"
            + (f": {shortlist(node.gangs, 2)} on it" if node.gangs else ""),
            action="drain" if node.pool_ready > 1 else "notify",
            targets=(node.id,),
            evidence=(
                Evidence(metric=f"losses of node {node.id}", window=lasting(LOSSES_MS), rows=1, value=f"{node.losses}"),
            ),
            counterfactual="Not suggested after a single loss",
            alternatives=(
                "Cordon it: running work continues, at risk",
                "No action: the next loss stops its work again, back to the last checkpoint",
            ),
            severity=node.losses,
            benefit=Benefit(at_risk_gpu_milli_h=8_000 * DAY_H),
            expected=None,
        )
        for node in reading.failing
    ]


def retry_storm(reading: CellReading) -> list[Suggestion]:
    """Kinds of work of which nearly every attempt fails, again and again."""
    found = []
    for group in reading.retries:
        if group.failed < MIN_FAILED or group.failed < FAILED_SHARE * (group.failed + group.finished):
            continue
        found.append(
            Suggestion(
                kind="retry_storm",
                about=group.kind,
                finding=f"{group.kind} fails and is tried again: {group.failed:,} attempts failed, "
                f"{group.finished:,} finished in {lasting(RECENT_MS)}",
                action="hold" if group.waiting else "notify",
                targets=group.waiting or (group.kind,),
                evidence=(
                    Evidence(
                        metric=f"failed attempts of {group.kind}",
                        window=lasting(RECENT_MS),
                        rows=group.failed + group.finished,
                        value=f"{group.failed:,}",
                        baseline=f"{group.finished:,} finished",
                    ),
                ),
                counterfactual=f"Not suggested below {MIN_FAILED} failed attempts, or if three in ten finished",
                alternatives=(
                    "Tell its owner: code, data or image may be broken",
                    "No action: it uses capacity until its retries are spent",
                ),
                severity=group.failed,
                benefit=Benefit(at_risk_gpu_milli_h=1000 * group.failed),
            )
        )
    return found


def spot_leaving(reading: CellReading) -> list[Suggestion]:
    """Spot pools of which many nodes have notice, or have just been taken back."""
    found = []
    for pool in reading.pools:
        there, leaving = pool.nodes, len(pool.leaving)
        if not pool.spec.spot or leaving < MIN_LEAVING or leaving * 1000 < LEAVING_PERMILLE * max(there, leaving):
            continue
        size = pool.spec.offered
        found.append(
            Suggestion(
                kind="spot_leaving",
                about=pool.spec.name,
                finding=f"spot pool {pool.spec.name} loses nodes: {leaving:,} reclaimed or with notice in "
                f"{lasting(RECENT_MS)}, {there:,} left",
                action="notify",
                targets=(pool.spec.name,),
                evidence=(
                    Evidence(
                        metric="nodes with notice or reclaimed",
                        window=lasting(RECENT_MS),
                        rows=max(there, leaving),
                        value=f"{leaving:,}",
                    ),
                ),
                counterfactual=f"Not suggested below {MIN_LEAVING} nodes, or a tenth of the pool",
                alternatives=(
                    "Move what must not stop to on-demand nodes: muster workload requeue ID, or an on-demand share",
                    "Drain what is left, so that checkpoints are written before the notice ends",
                    "No action: stopped work waits and restarts from its last checkpoint",
                ),
                severity=leaving,
                benefit=Benefit(at_risk_gpu_milli_h=there * (size.gpu_milli or size.cpu_milli // CPUS_OF_A_GPU)),
            )
        )
    return found


def budget_holds(reading: CellReading) -> list[Suggestion]:
    """Budgets that hold work, or will within HOLDS_SOON_MS at the present rate, well before their window ends."""
    found = []
    for line in reading.budgets:
        spec, now_ms = line.spec, reading.now_ms
        if spec.action == "warn" or not spec.limit_microusd:
            continue
        left_ms = line.window_end_ms - now_ms
        holds = bool(line.waiting)
        in_ms = None if line.spent_at_ms is None else max(line.spent_at_ms - now_ms, 0)
        soon = in_ms is not None and in_ms <= HOLDS_SOON_MS and left_ms >= 2 * in_ms + 3_600_000
        if not (holds or soon):
            continue
        when = f"holds {line.waiting:,} now" if holds else f"holds work in {lasting(in_ms or 0)}"
        # Enough for the rest of its window at this rate, in whole USD.
        limit = -(-max(line.forecast_microusd, spec.limit_microusd) // 1_000_000) + 1
        found.append(
            Suggestion(
                kind="budget_holds",
                about=spec.name,
                finding=f"budget {spec.name} of {spec.scope} {spec.of} {when}; {lasting(left_ms)} to its window's end",
                action="set_budget",
                targets=(spec.name,),
                parameters=("--limit", str(limit)),
                evidence=(
                    Evidence(
                        metric=f"spent of budget {spec.name}",
                        window="this window",
                        rows=1,
                        value=usd(line.spent_microusd),
                        baseline=f"{usd(spec.limit_microusd)} limit; {usd(line.rate_microusd_hour)} an hour",
                    ),
                ),
                counterfactual=f"Not suggested if it lasted more than {lasting(HOLDS_SOON_MS)}, or to its window's end",
                alternatives=(
                    "Spend less: suspend what can wait",
                    f"No action: new work of {spec.of} waits until the window ends",
                ),
                severity=line.spent_microusd / spec.limit_microusd,
                benefit=Benefit(
                    at_risk_gpu_milli_h=line.rate_microusd_hour * min(left_ms, DAY_H * 3_600_000) // 3_600_000 // 2_000
                ),
                expected=None
                if not holds
                else Expected(
                    metric="waiting",
                    of="cell",
                    subject="",
                    was=float(reading.waiting),
                    to=float(reading.waiting - line.waiting),
                    within_ms=CHECK_MS,
                ),
            )
        )
    return found


def mispriced(reading: CellReading) -> list[Suggestion]:
    """Pools whose price is far from that of pools with the same devices, or from what it was, and spot that costs more
    than the same on demand."""
    alike: dict[tuple[str, bool], list[PoolState]] = defaultdict(list)
    for pool in reading.pools:
        alike[pool.spec.gpu_model, bool(pool.spec.capacity.gpu_milli)].append(pool)
    priced = any(pool.spec.price_microusd_hour for pool in reading.pools)
    found = []
    for pool in reading.pools:
        others = [one for one in alike[pool.spec.gpu_model, bool(pool.spec.capacity.gpu_milli)] if one is not pool]
        why = _price_fault(pool, others) if priced else ""
        if why:
            price = pool.spec.price_microusd_hour
            found.append(
                Suggestion(
                    kind="mispriced_pool",
                    about=pool.spec.name,
                    finding=f"pool {pool.spec.name} is priced {usd(price)} an hour: {why}",
                    action="notify",
                    targets=(pool.spec.name,),
                    evidence=(
                        Evidence(
                            metric=f"price of a node of {pool.spec.name}",
                            window="now",
                            rows=1 + len(others),
                            value=usd(price),
                            baseline=why,
                        ),
                    ),
                    counterfactual=f"Not suggested within {PRICE_TIMES:g} times the price of its like",
                    alternatives=(
                        f"Correct it: muster pool set-price {pool.spec.name} USD",
                        "No action: charges, budgets and choices by price go by it",
                    ),
                    severity=float(pool.nodes),
                )
            )
    return found


def _price_fault(pool: PoolState, others: list[PoolState]) -> str:
    price, first = _unit_price(pool), pool.first_price
    now = pool.spec.price_microusd_hour
    if not now:
        return "other pools have a price"
    if first and not first / PRICE_TIMES < now < first * PRICE_TIMES:
        return f"it was {usd(first)} before"
    same = [_unit_price(one) for one in others if one.spec.spot == pool.spec.spot and one.spec.price_microusd_hour]
    if same and not median(same) / PRICE_TIMES < price < median(same) * PRICE_TIMES:
        return f"{price / median(same):.2g} times that of {counted(len(same), 'pool')} with the same devices"
    on_demand = [_unit_price(one) for one in others if not one.spec.spot and one.spec.price_microusd_hour]
    if pool.spec.spot and on_demand and price >= min(on_demand):
        return "spot nodes cost no less than the same on demand"
    return ""


def _unit_price(pool: PoolState) -> float:
    """Micro-USD an hour of one device, or of one core."""
    size = pool.spec.capacity
    return 1000 * pool.spec.price_microusd_hour / max(size.gpu_milli or size.cpu_milli, 1)
