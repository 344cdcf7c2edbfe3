"""Findings in what was measured over time. Pure functions of sequences; nothing here knows where they are kept.

Each compares the last hours with what is usual for the same series, says on how many hours that rests, and calls it
thin where fewer than a week of them is known: a weekly season has not been seen then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from engine.model.quantities import lasting, whole
from recommender.findings.suggestions import CPUS_OF_A_GPU, Benefit, Evidence, Expected, ModelSkill, Suggestion

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MIN_HOURS = 24
"""Hours of a series without which nothing is called usual."""
WEEK = 168
RECENT = 3
"""The last hours that are compared with those before."""
WORSE = 2.0
"""So many times the 95th percentile of the usual is a finding."""
IDLE_HOURS = 24
MIN_TAKEN = 5
"""Nodes taken back in a day below which nothing is said of a pool."""
TAKEN_SHARE = 0.10
"""Share of a pool's nodes taken back in a day that is a finding."""
RUNAWAY, RUNAWAY_SHARE = 3.0, 0.10
"""A tenant is one when it holds so many times its usual, and at least such a share of the cell."""
STALE_RESERVATION_MS = HOUR_MS


class HourlySeries(msgspec.Struct, frozen=True, kw_only=True):
    """[hour] of one thing, oldest first; nan where nothing was measured. The last is the last whole hour."""

    subject: str
    hours: Sequence[float]

    @property
    def known(self) -> list[float]:
        return [value for value in self.hours if math.isfinite(value)]


# -- pools ------------------------------------------------------------------------------------------------------------


class PoolNow(msgspec.Struct, frozen=True, kw_only=True):
    """A pool as it is."""

    name: str
    nodes: int
    """That there are, boot, or are on order."""
    least: int | None
    """None: it does not grow and shrink by itself."""
    most: int
    wanted: int
    """That the autoscaler will see to by itself, whatever waits."""
    boot_ms: int
    """From an order to a ready node, 95th percentile."""
    price_microusd_hour: int
    node_gpu_milli: int
    node_cpu_milli: int
    spot: bool = False


def pools_ahead(
    pools: Sequence[PoolNow],
    demand_p90: Mapping[str, Sequence[float]],
    now_ms: int,
    made_ms: int,
    skill: Mapping[str, ModelSkill],
    thin: Mapping[str, tuple[str, ...]],
) -> list[Suggestion]:
    """Growing pools whose demand within the day is likely to be more than they will have: the p90 of the first hour
    that a node ordered now is ready for, and of the two after it. `demand_p90`: by pool, nodes in each hour from
    `made_ms` on."""
    found = []
    for pool in pools:
        hours = demand_p90.get(pool.name, ())
        if pool.least is None or not hours:
            continue
        first = (now_ms + pool.boot_ms - made_ms) // HOUR_MS
        window = hours[first : first + 3]
        if not window:
            continue
        needed = min(math.ceil(max(window)), pool.most)
        has = max(pool.nodes, pool.wanted)
        if needed <= has:
            continue
        at_ms = made_ms + first * HOUR_MS
        more = needed - has
        found.append(
            Suggestion(
                kind="pool_ahead",
                finding=f"pool {pool.name} is likely to need {needed:,} nodes by {_utc(at_ms)} UTC and has {has:,}",
                action="set_targets",
                targets=(pool.name,),
                parameters=(
                    f"{_utc(at_ms).replace(' ', 'T')}={needed}",
                    f"{_utc(at_ms + 3 * HOUR_MS).replace(' ', 'T')}=0",
                ),
                trial=(f"resize {pool.name} {needed}",),
                evidence=(
                    Evidence(
                        metric="p90 of nodes asked for",
                        window=f"{_utc(at_ms)} and two hours after it",
                        rows=len(window),
                        value=f"{needed:,}",
                        baseline=f"{has:,} existing or ordered",
                    ),
                    Evidence(
                        metric="boot time, 95th percentile", window="of its kind", rows=1, value=lasting(pool.boot_ms)
                    ),
                ),
                counterfactual=f"Not suggested if the p90 were {has:,} nodes or fewer",
                alternatives=(
                    "Let the autoscaler do this: `muster cell set-autoscaling predict_permille=900`",
                    f"No action: new work then waits for nodes to boot, {lasting(pool.boot_ms)} or so",
                ),
                severity=float(more),
                benefit=Benefit(waiting_gpu_milli_h=_node_milli(pool) * more * pool.boot_ms // HOUR_MS),
                cost_delta_microusd_hour=more * pool.price_microusd_hour,
                skill=skill.get(pool.name),
                thin=thin.get(pool.name, ()),
            )
        )
    return found


def idle_pools(pools: Sequence[PoolNow], used: Mapping[str, HourlySeries]) -> list[Suggestion]:
    """Pools that are paid for and had whole nodes idle in every hour of the last day. `used`: by pool, the most
    milli-GPU (milli-CPU where it has no GPU) held in each hour."""
    found = []
    for pool in pools:
        series, size = used.get(pool.name), pool.node_gpu_milli or pool.node_cpu_milli
        if series is None or not size or not pool.price_microusd_hour:
            continue
        last = [value for value in series.hours[-WEEK:] if math.isfinite(value)]
        if len(last) < IDLE_HOURS:
            continue
        needed = -(-int(max(last)) // size)
        idle = pool.nodes - needed
        if idle < 1:
            continue
        unit = "GPU" if pool.node_gpu_milli else "CPU"
        saved = idle * pool.price_microusd_hour
        if pool.least is not None and pool.least <= needed:
            continue
        told = "it does not shrink automatically"
        if pool.least is not None:
            told = f"its least is {pool.least:,}"
            saved = min(pool.least - needed, idle) * pool.price_microusd_hour
        found.append(
            Suggestion(
                kind="idle_pool",
                finding=f"{idle:,} of {pool.nodes:,} nodes of pool {pool.name} were never needed at once; {told}",
                action="notify" if pool.least is None else "set_scaling",
                targets=(pool.name,),
                parameters=() if pool.least is None else ("--least", str(needed)),
                trial=(f"resize {pool.name} {needed}",),
                evidence=(
                    Evidence(
                        metric=f"most {unit} held at once",
                        window=f"last {len(last):,} hours",
                        rows=len(last),
                        value=whole(int(max(last))),
                        baseline=f"{whole(pool.nodes * size)} in the pool",
                    ),
                    Evidence(
                        metric="price of a node",
                        window="now",
                        rows=1,
                        value=f"USD {pool.price_microusd_hour / 1e6:,.2f}/h",
                    ),
                ),
                counterfactual=f"Not suggested if all {pool.nodes:,} had been needed once",
                alternatives=(
                    "Keep some as headroom: `muster pool set-scaling --headroom` keeps whole nodes free",
                    f"No action: USD {saved / 1e6:,.2f} an hour for idle nodes",
                ),
                severity=saved / 1e6,
                cost_delta_microusd_hour=-saved,
                expected=Expected(
                    metric="nodes",
                    of="pool",
                    subject=pool.name,
                    was=float(pool.nodes),
                    to=float(pool.nodes - saved // max(pool.price_microusd_hour, 1)),
                    within_ms=12 * HOUR_MS,
                ),
                thin=_short(len(last)),
            )
        )
    return found


def interruptions(pools: Sequence[PoolNow], taken: Mapping[str, HourlySeries]) -> list[Suggestion]:
    """Spot pools of which providers took back much in the last day. `taken`: by pool, nodes in each hour."""
    found = []
    for pool in pools:
        series = taken.get(pool.name)
        if series is None or not pool.spot:
            continue
        day = [value for value in series.hours[-24:] if math.isfinite(value)]
        count, share = round(sum(day)), sum(day) / max(pool.nodes, 1)
        if count < MIN_TAKEN or share < TAKEN_SHARE:
            continue
        before = [value for value in series.hours[:-24] if math.isfinite(value)]
        usual = 24 * sum(before) / len(before) if len(before) >= MIN_HOURS else None
        if usual is not None and count < WORSE * usual:
            continue
        found.append(
            Suggestion(
                kind="interruptions",
                finding=f"{count:,} nodes of spot pool {pool.name} were reclaimed in a day, {share:.0%} of its size",
                action="notify",
                targets=(pool.name,),
                evidence=(
                    Evidence(
                        metric="nodes reclaimed",
                        window=f"last {len(day)} hours",
                        rows=count,
                        value=f"{count:,}",
                        baseline="" if usual is None else f"{usual:,.1f} on a usual day",
                    ),
                ),
                counterfactual=f"Not suggested below {max(MIN_TAKEN, math.ceil(TAKEN_SHARE * pool.nodes)):,} a day",
                alternatives=(
                    "Ask for some tasks on demand: `--on-demand-share 30%` keeps a gang's core when spot nodes go",
                    "Checkpoint more often: work since the last checkpoint is lost",
                    "No action: stopped work waits and restarts from its last checkpoint",
                ),
                severity=share,
                benefit=Benefit(at_risk_gpu_milli_h=_node_milli(pool) * count // 2),
                expected=Expected(
                    metric="interrupted",
                    of="pool",
                    subject=pool.name,
                    was=count / 24,
                    to=(usual or 0) / 24,
                    within_ms=DAY_MS,
                ),
                thin=_short(len(before)),
            )
        )
    return found


# -- tenants ----------------------------------------------------------------------------------------------------------


def runaways(tenants: Sequence[HourlySeries], capacity: int, others_wait: int, unit: str = "GPU") -> list[Suggestion]:
    """Tenants that hold far more than they usually do while others wait. [hour] milli-GPU held (milli-CPU where the
    cell has no GPU), `capacity` of the cell in the same unit; `others_wait`: how much is asked for by what waits."""
    found = []
    for tenant in tenants:
        recent, before = _split(tenant.hours)
        if not recent or len(before) < MIN_HOURS or not others_wait:
            continue
        now, usual = min(recent), quantile(before, 0.95)
        if now < RUNAWAY * usual or now < RUNAWAY_SHARE * capacity:
            continue
        excess = min(int(now - usual), others_wait)
        found.append(
            Suggestion(
                kind="runaway_tenant",
                finding=f"tenant {tenant.subject} holds {whole(int(now))} {unit}, over {RUNAWAY:g} x its usual, "
                "while others wait",
                action="notify",
                targets=(tenant.subject,),
                evidence=(
                    Evidence(
                        metric="held at least",
                        window=f"last {RECENT} hours",
                        rows=len(recent),
                        value=whole(int(now)),
                        baseline=f"{whole(int(usual))}, the 95th percentile of {len(before):,} hours before",
                    ),
                    Evidence(metric="requested by waiting work", window="now", rows=1, value=whole(others_wait)),
                ),
                counterfactual=f"Not suggested if it held less than {whole(int(RUNAWAY * usual))}, or if nobody waited",
                alternatives=(
                    "Suspend some of its work: `muster get workloads -f tenant:NAME`, `muster workload suspend ID`",
                    "Give it a budget: `muster budget set NAME --tenant TENANT --limit USD`",
                    "No action: quota and fair sharing decide what starts first",
                ),
                severity=now / max(usual, 1),
                benefit=Benefit(waiting_gpu_milli_h=excess * RECENT),
                expected=Expected(
                    metric=f"used_{unit.lower()}",
                    of="tenant",
                    subject=tenant.subject,
                    was=now,
                    to=usual,
                    within_ms=DAY_MS,
                ),
                thin=_short(len(before)),
            )
        )
    return found


# -- reservations -----------------------------------------------------------------------------------------------------


class ReservationNow(msgspec.Struct, frozen=True, kw_only=True):
    """An advance reservation that is active."""

    name: str
    nodes: int
    busy: int
    """Of them with work on them."""
    gpu_milli: int
    """Of all its nodes."""
    cpu_milli: int
    since_ms: int
    end_ms: int


def stale_reservations(reservations: Sequence[ReservationNow], now_ms: int, waiting_milli: int) -> list[Suggestion]:
    """Reservations that began over an hour ago, have nothing on their nodes, and go on for over an hour.
    `waiting_milli`: milli-GPU (milli-CPU where the cell has no GPU) asked for by what waits."""
    found = []
    for each in reservations:
        empty_ms, left_ms = now_ms - each.since_ms, each.end_ms - now_ms
        if each.busy or empty_ms <= STALE_RESERVATION_MS or left_ms <= STALE_RESERVATION_MS:
            continue
        held = each.gpu_milli or each.cpu_milli
        useful = min(held, waiting_milli) // (1 if each.gpu_milli else CPUS_OF_A_GPU)
        found.append(
            Suggestion(
                kind="stale_reservation",
                finding=f"reservation {each.name} keeps {each.nodes:,} nodes, and nothing runs on them",
                action="unreserve",
                targets=(each.name,),
                evidence=(
                    Evidence(metric="nodes with work", window="now", rows=each.nodes, value="0"),
                    Evidence(metric="active for", window="since its start", rows=1, value=lasting(empty_ms)),
                    Evidence(metric="time left", window="to its end", rows=1, value=lasting(left_ms)),
                ),
                counterfactual="Not suggested if something ran on its nodes, or it ended within the hour",
                alternatives=(
                    "Ask its owner whether it is still needed",
                    f"No action: {whole(held)} {'GPU' if each.gpu_milli else 'CPU'} stay reserved for "
                    f"{lasting(left_ms)}",
                ),
                severity=held / 1000,
                benefit=Benefit(waiting_gpu_milli_h=useful * min(left_ms, DAY_MS) // HOUR_MS),
                thin=("a single reading: its nodes may have been in use before, or be needed soon",),
            )
        )
    return found


# -- figures ----------------------------------------------------------------------------------------------------------


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that so many of the others do not exceed. Raises ValueError for none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[max(math.ceil(len(ordered) * share), 1) - 1]


def _split(hours: Sequence[float]) -> tuple[list[float], list[float]]:
    """The last RECENT hours, and those before, without what was not measured."""
    return (
        [value for value in hours[-RECENT:] if math.isfinite(value)],
        [value for value in hours[:-RECENT] if math.isfinite(value)],
    )


def _short(hours: int) -> tuple[str, ...]:
    return (f"only {hours:,} hours of history: less than a week",) if hours < WEEK else ()


def _node_milli(pool: PoolNow) -> int:
    return pool.node_gpu_milli or pool.node_cpu_milli // CPUS_OF_A_GPU


def _utc(ms: int) -> str:
    import datetime

    return f"{datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC):%Y-%m-%d %H:%M}"
