"""When work with a deadline has no time to lose on spot machines any more, and turns to on-demand ones.

On spot machines work that is left takes longer than on others, because some of it is done more than once. A machine is
taken back with hazard h, in parts of an hour; a gang on n of them is stopped up to n times as often; each time it loses
the work since its last checkpoint, on average half an interval (none if the notice is enough to write one), and the
time to read the checkpoint back. So of every hour h x n x (interval / 2 + restore) is lost, and what is left is
expected to take

    (remaining + restore) / (1 - h x n x (interval / 2 + restore)).

Work turns when the time to its deadline is less than that and the time an on-demand machine needs to come; and also
when it would be too late after a single interruption more, at the worst moment. The rule is that of schedulers which
mix both kinds of machines under a deadline, as in "Can't Be Late" (Wu et al., NSDI 2024), with the first-order loss of
periodic checkpoints (Young, CACM 17(9), 1974). While work runs its slack does not shrink; it is looked at while the
work waits, and so each time a machine was taken from under it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from engine.capacity.task_shapes import accepts
from engine.model.specs import FLEXIBLE_TYPES, HOUR_MS, PoolSpec, WorkloadState

if TYPE_CHECKING:
    from engine.state.cell_state import State

PPM = 1_000_000
IDLE = (WorkloadState.QUEUED, WorkloadState.HELD, WorkloadState.WAITING, WorkloadState.SUSPENDED)
"""States in which a workload has no tasks placed, and has not ended."""


def hazard_ppm_hour(state: State, pool: int, machines: int = 1) -> int:
    """Expected interruptions in an hour of work on so many of the pool's machines, in millionths: as the pool says,
    each machine by itself; else as measured, and no more often than any of the pool's machines were taken."""
    scaling = state.capacity.pools[pool].scaling
    if scaling is not None and scaling.taken_permille_hour:
        return round(-math.log1p(-scaling.taken_permille_hour / 1000) * PPM) * machines
    orders = state.orders
    lived_ms, watched_ms = orders.lived_ms.get(pool, 0), orders.watched_ms.get(pool, 0)
    if not lived_ms or not watched_ms:
        return 0
    each = orders.taken[pool] * HOUR_MS * PPM // lived_ms
    return min(each * machines, max(each, orders.storms[pool] * HOUR_MS * PPM // watched_ms))


def spot_time_ms(remaining_ms: int, lost_ms: int, hazard_ppm: int) -> int | None:
    """How long what is left is expected to take on spot machines, of which one is taken with that hazard in an hour and
    each time costs `lost_ms`; None when it would never end there."""
    lost_ppm = hazard_ppm * lost_ms // HOUR_MS
    return None if lost_ppm >= PPM else -(-remaining_ms * PPM // (PPM - lost_ppm))


def turns_at(state: State, row: int) -> int | None:
    """Cell time at which the waiting workload turns to on-demand machines; None when it has no deadline or estimate,
    may not use both kinds, or does not wait."""
    w = state.workloads
    terms = w.terms_at(row)
    workload_class = w.class_at(row)
    if not terms.deadline_ms or not workload_class.estimate_ms or w.state[row] not in IDLE:
        return None
    pools = state.capacity.pools
    open_to_both = hazard_ppm = lead_ms = 0
    notices = []
    for group, shape in zip(workload_class.groups, workload_class.shapes, strict=True):
        spot = [pool for pool in shape.pools if pools[pool].spot]
        if group.capacity_type not in FLEXIBLE_TYPES or not spot:
            continue
        turned = msgspec.structs.replace(group, capacity_type="on-demand")
        certain = [pool for pool in pools if accepts(turned, pool)]
        if not certain:
            continue
        open_to_both += 1
        lead_ms = max(lead_ms, *(_lead_ms(state, pool) for pool in certain))
        hazard_ppm += max(
            hazard_ppm_hour(state, pool, -(-group.count // max(shape.most_on(pools[pool]), 1))) for pool in spot
        )
        notices += [scaling.notice_ms if (scaling := pools[pool].scaling) is not None else 0 for pool in spot]
    if not open_to_both:
        return None
    remaining_ms = w.remaining_ms(row)
    most_lost_ms = 0
    if not 0 < w.checkpoint_cost[row] <= min(notices):
        # What runs without checkpoints loses all.
        most_lost_ms = min(w.checkpoint[row], remaining_ms) if w.checkpoint[row] else remaining_ms
    expected_ms = spot_time_ms(remaining_ms, terms.restore_ms + most_lost_ms // 2, hazard_ppm)
    if expected_ms is None:
        return w.submitted[row]
    once_more_ms = remaining_ms + most_lost_ms + terms.restore_ms
    return max(terms.deadline_ms - max(expected_ms, once_more_ms) - lead_ms, w.submitted[row])


def _lead_ms(state: State, pool: PoolSpec) -> int:
    """Time within which a machine of the pool that is missed is almost always there: at the second scan, and after a
    boot that is as far above the 95th percentile as that is above the median (99.95 %, if lognormal)."""
    settings = state.settings.autoscaling
    if pool.scaling is None or not settings.enabled:
        return 0
    median_ms, late_ms = pool.scaling.boot_ms
    return settings.scale_up_after_ms + 2 * settings.scan_every_ms + late_ms * late_ms // median_ms
