"""Changes by the passing of time alone: timers, deadlines of work on spot machines, and downtimes.

Timers are a heap of moments, each checked against the state when it comes. Nothing of it is stored: `Timers.rebuild`
finds every moment again, and an entry whose cause is gone is dropped when met.

The cell's clock never goes back, and never jumps further by itself than the engine was away. A cell in real time
follows its host's clock. The time without an engine is recorded as a downtime (`DowntimeBegan` to `DowntimeEnded`), and
the cost of unused nodes in it is charged as downtime, not as idle. A cell with a clock of its own goes on where its
journal ends.

Work with a deadline leaves spot machines for on-demand ones when it has no time to lose. On spot machines some work is
done more than once. A machine is taken back with hazard h, in parts of an hour. A gang on n of them is stopped up to n
times as often. Each stop loses the work since the last checkpoint, on average half an interval (none if the notice is
enough to write one), and the time to read the checkpoint back. So of every hour h x n x (interval / 2 + restore) is
lost, and the remaining work is expected to take

    (remaining + restore) / (1 - h x n x (interval / 2 + restore)).

Work turns when the time to its deadline is less than that plus the time an on-demand machine needs to come. It also
turns when one more interruption, at the worst moment, would make it late. The rule is that of "Can't Be Late" (Wu et
al., NSDI 2024), with the first-order loss of periodic checkpoints (Young, CACM 17(9), 1974). The slack of running work
does not shrink, so the rule is checked while work waits, and each time it has lost a machine.
"""

from __future__ import annotations

import math
from array import array
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from engine.capacity.task_shapes import accepts
from engine.model import events as ev
from engine.model.columns import Table, view
from engine.model.quantities import utc
from engine.model.specs import FLEXIBLE_TYPES, HOUR_MS, PoolSpec, WorkloadState

if TYPE_CHECKING:
    from engine.control import Engine
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
    """Expected duration of the remaining work on spot machines, of which one is taken with that hazard in an hour at a
    loss of `lost_ms` each time; None when it would never end there.
    """
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


class Timer(IntEnum):
    WAKE = 0
    """A waiting workload's start time or retry."""
    DEADLINE = 1
    """A workload that has not started cannot end in time any more."""
    MAX_RUNTIME = 2
    CONFIRM = 3
    """Executors have not confirmed a placed gang."""
    CLEAR = 4
    """The victims of a preemption have had their time to write checkpoints."""
    RESERVATION_START = 5
    RESERVATION_END = 6
    MIN_RUNTIME = 7
    """A workload on its nodes may be preempted from now on."""
    TURN = 8
    """A workload that was preempted may preempt again."""
    DISRUPTIONS = 9
    """A queue's limit on disruptions counts one less."""
    SLACK = 10
    """A waiting workload has no time to lose on spot machines any more."""


Entry = tuple[int, Timer, int]
"""(cell ms, what, row of a workload or number of a booking)"""
_OF_WORKLOADS = (
    Timer.WAKE, Timer.DEADLINE, Timer.MAX_RUNTIME, Timer.CONFIRM, Timer.MIN_RUNTIME, Timer.TURN, Timer.SLACK,
)  # fmt: skip
_ONCE = (Timer.RESERVATION_START, Timer.MIN_RUNTIME, Timer.TURN, Timer.DISRUPTIONS)
"""They only have waiting work looked at again, and the state does not say whether that has been done."""
_BOUND = (WorkloadState.PLACED, WorkloadState.RUNNING)
_LIVE = (*IDLE, *_BOUND)


class Timers:
    def __init__(self) -> None:
        self._heap: list[Entry] = []

    def copy(self) -> Timers:
        other = Timers()
        other._heap = list(self._heap)
        return other

    def load(self, state: State) -> None:
        """Enter every moment to come of a state that was just read. Those of `_ONCE` that are due have had their
        effect."""
        self._enter_all(state, state.now_ms + 1)

    def rebuild(self, state: State) -> None:
        """Enter them anew in the middle of a moment, of which more may be due."""
        self._enter_all(state, state.now_ms)

    def _enter_all(self, state: State, from_ms: int) -> None:
        self._heap = []
        for row in _timed(state):
            self.watch(state, row)
        for reservation in state.bookings.reservations:
            self.push(reservation.spec.start_ms, Timer.RESERVATION_START, reservation.booking)
            self.push(reservation.spec.end_ms, Timer.RESERVATION_END, reservation.booking)
        for queue, times in enumerate(state.queues.disruptions):
            for at_ms in times:
                self.watch_disruption(state, queue, at_ms)
        for clearing in state.bookings.clearings:
            self.push(clearing.at_ms, Timer.CLEAR, clearing.booking)
        self._heap = [entry for entry in self._heap if entry[0] >= from_ms or entry[1] not in _ONCE]
        heapify(self._heap)

    def push(self, at_ms: int, timer: Timer, subject: int) -> None:
        heappush(self._heap, (at_ms, timer, subject))

    def watch(self, state: State, row: int) -> None:
        """Enter every moment that the workload's present state brings."""
        for timer in _OF_WORKLOADS:
            at_ms = moment(state, timer, row)
            if at_ms is not None:
                self.push(at_ms, timer, row)

    def watch_disruption(self, state: State, queue: int, at_ms: int) -> None:
        """Enter when a preemption of the queue's work leaves the window of its limit, if it has one."""
        spec = state.queues.specs[queue]
        if spec.disruptions >= 0:
            self.push(at_ms + spec.disruption_window_ms, Timer.DISRUPTIONS, queue)

    def next_at(self, state: State, now_ms: int) -> int | None:
        """The next moment at which something is due; what is due already counts."""
        while self._heap and not _current(state, self._heap[0]):
            heappop(self._heap)
        own = self._heap[0][0] if self._heap else None
        burst = state.queues.next_burst_change(now_ms)
        if own is None or burst is None:
            return burst if own is None else own
        return min(own, burst)

    def take(self, state: State, at_ms: int) -> Entry | None:
        """The first entry that is due by `at_ms`."""
        while self._heap and self._heap[0][0] <= at_ms:
            entry = heappop(self._heap)
            if _current(state, entry):
                return entry
        return None


def _timed(state: State) -> list[int]:
    """Workloads that may have a moment to come: most have none, and are not looked at one by one."""
    w = state.workloads
    if not w.ids:
        return []
    now = view(w.state)
    limited = np.array([bool(terms.deadline_ms or terms.max_runtime_ms) for terms in w.terms_specs])[view(w.terms)]
    protected = np.array([spec.min_runtime_ms > 0 for spec in state.queues.specs])[view(w.queue)]
    maybe = (now == WorkloadState.WAITING) | (now == WorkloadState.PLACED) | limited
    maybe |= ((now == WorkloadState.RUNNING) & protected) | (view(w.evicted_at) >= 0)
    rows: list[int] = np.flatnonzero(maybe & np.isin(now, _LIVE)).tolist()
    return rows


def moment(state: State, timer: Timer, row: int) -> int | None:
    """The due time of the workload's timer, in its present state; None when it is not set."""
    w = state.workloads
    now = w.state[row]
    if timer == Timer.WAKE:
        return w.wake[row] if now == WorkloadState.WAITING and w.wake[row] >= 0 and not w.unmet[row] else None
    if timer == Timer.DEADLINE:
        deadline = w.terms_at(row).deadline_ms
        left = w.class_at(row).estimate_ms - w.kept[row]
        return deadline - max(left, 0) + 1 if deadline and now in IDLE else None
    if timer == Timer.MAX_RUNTIME:
        limit = w.terms_at(row).max_runtime_ms
        return w.started[row] + limit if limit and now == WorkloadState.RUNNING else None
    if timer == Timer.MIN_RUNTIME:
        if now not in _BOUND:
            return None
        at_ms = w.spared_until(row, state.queues.specs[w.queue[row]].min_runtime_ms)
        return at_ms if at_ms > w.started[row] else None
    if timer == Timer.SLACK:
        return turns_at(state, row)
    if timer == Timer.TURN:
        return w.may_preempt_at(row, state.settings) if w.evicted_at[row] >= 0 and now == WorkloadState.QUEUED else None
    limit = state.settings.try_timeout_ms
    return w.since[row] + limit if limit and now == WorkloadState.PLACED else None


def _current(state: State, entry: Entry) -> bool:
    at_ms, timer, subject = entry
    if timer in _OF_WORKLOADS:
        return moment(state, timer, subject) == at_ms
    if timer == Timer.DISRUPTIONS:
        return True
    if timer == Timer.CLEAR:
        return any(c.booking == subject for c in state.bookings.clearings)
    return any(r.booking == subject for r in state.bookings.reservations)


MIN_DOWNTIME_MS = 5 * 60_000
"""A shorter gap is a restart, and is not reported. Time is unrecorded for less than that (`loop.KEEP_TIME_S`)."""
MAX_DOWNTIME_MS = 7 * 86_400_000
"""After a longer one the host's clock is not believed without being asked to."""
MAX_CLOCK_ERROR_MS = 5_000
"""Lag of a host's clock behind the journal that is tolerated silently: clocks of two hosts may differ so much."""
KEPT = 100


class Downtimes(Table):
    """The newest, oldest first."""

    columns = ("began", "ended")

    def __init__(self) -> None:
        self.began = array("q")
        """Cell time."""
        self.ended = array("q")

    def since(self, at_ms: int) -> list[tuple[int, int]]:
        """(began, ended) of those that were not over at `at_ms`."""
        return [(began, ended) for began, ended in zip(self.began, self.ended, strict=False) if ended > at_ms]


def began(state: State, event: ev.DowntimeBegan) -> None:
    times = state.downtimes
    if len(times.began) == KEPT:
        del times.began[0], times.ended[0]
    times.began.append(state.now_ms)
    state.ledger.begin_downtime(state.now_ms)


def ended(state: State, event: ev.DowntimeEnded) -> None:
    state.downtimes.ended.append(state.now_ms)
    state.ledger.end_downtime(state.now_ms)


def clock_held(state: State, event: ev.ClockHeld) -> None:
    """Change nothing: the event is only on record, as the state has no clock but the cell's own."""


def resume(engine: Engine, host_ms: int, *, follow: bool) -> str:
    """Go on with a cell whose engine was away, at the time that its host's clock shows. Where that would go back, the
    cell goes on from the journal's time, and that is recorded; likewise, unless it is to `follow`, where the cell has
    had a time of its own (a demo, or another speed), or was away for longer than MAX_DOWNTIME_MS: then the clock may
    be wrong. Returns what is to be said, if anything."""
    left_ms, written_ms = engine.now_ms, engine.written_ms
    doubtful = written_ms - left_ms > MIN_DOWNTIME_MS or host_ms - written_ms > MAX_DOWNTIME_MS
    if host_ms < left_ms - MAX_CLOCK_ERROR_MS or (host_ms > left_ms and doubtful and not follow):
        engine.hold_clock(host_ms)
        how = "; start it with --catch-up to follow the host's clock" if host_ms > left_ms else ""
        return (
            f"this host's clock shows {utc(host_ms)}, the journal ends at {utc(left_ms)}: "
            "the cell goes on from "
            f"there{how}"
        )
    if host_ms > left_ms:
        engine.catch_up(host_ms)
    if host_ms < left_ms + MIN_DOWNTIME_MS:
        return ""
    between = f"from {utc(left_ms)} to {utc(host_ms)}"
    return f"no engine was running {between}: idle capacity in that time is charged as downtime"
